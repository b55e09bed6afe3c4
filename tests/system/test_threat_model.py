"""The claims of broker/security/README.md, on running brokers."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from qstore import Connection, Message
from qstore.broker.client.errors import AuthenticationError, ConnectError
from qstore.broker.security.sasl.simple import AMQPLAIN
from qstore.broker.security.users.user_file import Users
from qstore.broker.security.users.verifiers import MECHANISMS
from tests.support.certificates import PASSWORD, Certificates
from tests.support.forked import ROOT
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker

SECRET = "hunter2hunter2"


def test_by_default_only_the_loopback_interface_listens(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    tables = [Path(f"/proc/{broker.pid}/net/{name}") for name in ("tcp", "tcp6")]
    sockets = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()]
    inodes = {line[9]: line[1].partition(":")[0] for line in sockets if line[3] == "0A"}  # listening: its address
    own = {os.readlink(each) for each in Path(f"/proc/{broker.pid}/fd").iterdir() if each.is_symlink()}
    addresses = {address for inode, address in inodes.items() if f"socket:[{inode}]" in own}
    assert addresses
    assert addresses <= {"0100007F", "00000000000000000000000001000000"}


def test_files_are_the_broker_s_user_s_only(make_broker: BrokerMaker, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        log = tmp_path / "qpidd.log"
        broker = make_broker("--log-to-file", str(log)).start()
        with Connection(f"127.0.0.1:{broker.port}") as connection:
            connection.session().sender("q; {create: always, node: {durable: true}}").send(Message("x", durable=True))
        broker.stop()
        Users(str(tmp_path / "users")).put("guest", SECRET)
    finally:
        os.umask(before)
    data = broker.data_directory
    found = [path for path in (data, *data.rglob("*"), log, tmp_path / "users") if not path.is_symlink()]
    assert len(found) > 10
    open_to_others = [str(path) for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert open_to_others == []


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_no_secret_is_logged(make_broker: BrokerMaker, certificates: Certificates, tmp_path: Path) -> None:
    """Not even when everything is: each mechanism, right and wrong, with TLS and without; and what the files have."""
    users = Users(str(tmp_path / "users"))
    users.put("anna", SECRET, MECHANISMS)
    certificate, key, password = certificates.encrypted_key()
    broker = make_broker(
        "--auth", "yes", "--user-file", users.path, "--trace", "--ssl-port", "0", "--ssl-cert", certificate,
        "--ssl-key", key, "--ssl-cert-password-file", password, "--sasl-mechanisms", ",".join((*MECHANISMS, AMQPLAIN)),
    ).start()  # fmt: skip
    for scheme in ("amqp", "amqps"):
        where = f"{scheme}://127.0.0.1:{broker.port}"
        options = {"ssl_trustfile": certificates.trusted, "username": "anna"}
        for mechanism in (*MECHANISMS, AMQPLAIN) if scheme == "amqp" else ("PLAIN",):
            with Connection(where, password=SECRET, sasl_mechanisms=mechanism, **options) as connection:
                connection.session().sender("amq.topic/k").send(Message(f"{SECRET}-content"))
    with pytest.raises(AuthenticationError):
        Connection.establish(f"127.0.0.1:{broker.port}", username="anna", password=f"{SECRET}x")
    broker.stop()
    log = broker.log_text()
    assert "Authentication failed" in log
    assert "connection.start-ok" in log  # what is traced are the kinds of frames
    content = [word for line in Path(users.path).read_text().splitlines() for word in line.split("$") if len(word) > 8]
    secrets = [SECRET, PASSWORD.decode(), *content]
    assert [secret for secret in secrets if secret in log] == []


def test_the_help_warns_of_insecure_options() -> None:
    command = [sys.executable, "-m", "qstore.broker.process.qpidd", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    options: dict[str, str] = {}
    name = ""
    for line in shown.splitlines():
        if line.startswith("  -"):
            name = line.split("--")[1].split()[0]
        options[name] = f"{options.get(name, '')} {line.strip()}"
    insecure = {name for name, text in options.items() if "Insecure" in text}
    assert insecure == {"auth", "sasl-mechanisms", "auth-allow-cleartext", "require-encryption"}
    assert "loopback addresses only" in " ".join(options["interface"].split())


def test_remote_clients_are_refused_without_a_user_file(make_broker: BrokerMaker) -> None:
    """By an address of this host other than loopback, if there is one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            address = probe.getsockname()[0]
        except OSError:
            pytest.skip("there is no other address")
    broker = make_broker("--auth", "yes", "--interface", address).start()
    with pytest.raises(ConnectError, match="no SASL mechanism is offered"):
        Connection.establish(f"{address}:{broker.port}", connect_timeout=PATIENCE_SECONDS)
    assert "see --user-file" in broker.log_text()


def test_passwords_in_the_clear_only_with_consent(make_broker: BrokerMaker, tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            address = probe.getsockname()[0]
        except OSError:
            pytest.skip("there is no other address")
    users = Users(str(tmp_path / "users"))
    users.put("anna", SECRET, ["PLAIN"])
    options = ("--auth", "yes", "--user-file", users.path, "--interface", address)
    login = {"username": "anna", "password": SECRET}
    broker = make_broker(*options).start()
    with pytest.raises(ConnectError, match="no SASL mechanism is offered"):
        Connection.establish(f"{address}:{broker.port}", **login)
    assert "--auth-allow-cleartext" in broker.log_text()
    broker.restart("--auth-allow-cleartext", "yes")
    Connection.establish(f"{address}:{broker.port}", **login).close()
