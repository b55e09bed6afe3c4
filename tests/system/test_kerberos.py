"""GSSAPI with a real KDC on the loopback interface; skipped where MIT Kerberos or the library `gssapi` is missing."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qstore.broker.security.sasl import kerberos
from tests.support.forked import ROOT
from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import ConnectionClosedError, RawConnection
from tests.support.running_broker import BrokerMaker, RunningBroker

REALM = "EXAMPLE.COM"
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")

pytestmark = pytest.mark.skipif(
    not kerberos.is_installed() or not all(shutil.which(program, path=PATH) for program in PROGRAMS),
    reason="MIT Kerberos (krb5-kdc, krb5-admin-server, krb5-user) or the package gssapi is not installed",
)


def _free_port() -> int:
    """A port that is free for TCP and UDP."""
    while True:
        with socket.socket(socket.AF_INET) as stream, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            stream.bind(("127.0.0.1", 0))
            port: int = stream.getsockname()[1]
            with contextlib.suppress(OSError):
                datagrams.bind(("127.0.0.1", port))
                return port


def _is_listening(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS):
        return True
    return False


class Realm:
    """A KDC with its database.

    Attributes:
        environment: for processes that use it.
    """

    def __init__(self, directory: Path) -> None:
        port = _free_port()
        configuration = directory / "krb5.conf"
        configuration.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " rdns = false\n dns_canonicalize_hostname = false\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
            f"[domain_realm]\n localhost = {REALM}\n"
        )
        profile = directory / "kdc.conf"
        profile.write_text(
            f"[realms]\n {REALM} = {{\n  database_name = {directory}/principal\n  key_stash_file = {directory}/stash\n"
            f"  kdc_listen = 127.0.0.1:{port}\n  kdc_tcp_listen = 127.0.0.1:{port}\n }}\n"
            f"[logging]\n kdc = FILE:{directory}/kdc.log\n"
        )
        self.directory = directory
        self.environment = {
            "KRB5_CONFIG": str(configuration),
            "KRB5_KDC_PROFILE": str(profile),
            "KRB5_KTNAME": f"{directory}/keytab",
            "KRB5CCNAME": f"FILE:{directory}/tickets",
            "KRB5RCACHEDIR": str(directory),
        }
        self.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of the database")
        for query in ("addprinc -pw secret anna", "addprinc -randkey qpidd/localhost"):
            self.run("kadmin.local", "-r", REALM, "-q", query)
        self.run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {directory}/keytab qpidd/localhost")
        self.kdc = subprocess.Popen(
            [self._program("krb5kdc"), "-n"], env=os.environ | self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _is_listening(port):
            assert self.kdc.poll() is None, (directory / "kdc.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    @staticmethod
    def _program(name: str) -> str:
        found = shutil.which(name, path=PATH)
        assert found is not None
        return found

    def run(self, program: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self._program(program), *arguments], env=os.environ | self.environment, input=given,
            capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done

    def close(self) -> None:
        self.kdc.terminate()
        self.kdc.wait(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    found = Realm(tmp_path_factory.mktemp("kerberos"))
    yield found
    found.close()


@pytest.fixture
def broker(make_broker: BrokerMaker, realm: Realm) -> RunningBroker:
    found = make_broker("--auth", "yes", "--realm", REALM, "--log-enable", "info+", "--sasl-mechanisms", "GSSAPI")
    found.environment = realm.environment
    return found.start()


def send(realm: Realm, broker: RunningBroker, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qstore.tools.qpid_send", "-b", f"localhost:{broker.port}", "--user-id", "anna"]
    command += ["-a", "q; {create: always}", "--content-string", "hello", *options]
    environment = os.environ | realm.environment
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=PATIENCE_SECONDS, check=False
    )


def test_a_ticket_lets_its_principal_in(realm: Realm, broker: RunningBroker) -> None:
    without = send(realm, broker)
    assert without.returncode == 1
    assert "the broker offers GSSAPI" in without.stderr
    realm.run("kinit", f"anna@{REALM}", given="secret\n")
    done = send(realm, broker)
    assert done.returncode == 0, done.stderr
    assert broker.has_logged(f"connection opened by anna@{REALM}")
    other = send(realm, broker, "--connection-options", "{sasl_service: other}")
    assert other.returncode == 1
    assert "GSSAPI" in other.stderr
    assert "Traceback" not in other.stderr + broker.log_text()


class Wiretap:
    """Passes the bytes of one connection on, and keeps them.

    Args:
        port: where to.
        change: gets what the client sends, and may change it.
    """

    def __init__(self, port: int, change: Callable[[bytes], bytes] = bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.seen = bytearray()
        self._to, self._change = port, change
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # an end that is reset
            self._serve()

    def _serve(self) -> None:
        with self._listener.accept()[0] as client, socket.create_connection(("127.0.0.1", self._to)) as server:
            others = {client: server, server: client}
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    self.seen += data
                    others[source].sendall(self._change(data) if source is client else data)

    def close(self) -> None:
        self._thread.join(PATIENCE_SECONDS)
        self._listener.close()


BODY = "a body that is to be read by nobody else; " * 5_000  # of several parts of a layer


PROGRAM = """
import json, sys
from qstore import Connection, Message
from qstore.broker.management.console.blocking import Console

tapped, direct, options = sys.argv[1:]
body = sys.stdin.read().encode()
with Connection(f"localhost:{tapped}", **json.loads(options)) as connection, connection.session() as session:
    session.sender("q; {create: always}").send(Message(body))
    message = session.receiver("q").fetch(timeout=60)
    assert message.content == body
    session.acknowledge()
    with Connection(f"localhost:{direct}", sasl_max_ssf=0) as other, Console(other) as console:
        print(max(each["saslSsf"] for each in console.query("connection")))
"""


def exchange(realm: Realm, broker: RunningBroker, tap: Wiretap, **options: object) -> subprocess.CompletedProcess[str]:
    """Send a large message and get it back over a tapped connection; prints the strength that the broker shows."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tap.port), str(broker.port), json.dumps(options)], input=BODY,
        capture_output=True, text=True, cwd=ROOT, env=os.environ | realm.environment, timeout=2 * PATIENCE_SECONDS,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("protocol", ["amqp0-10", "amqp1.0"])
@pytest.mark.parametrize(("strongest", "shown", "is_readable"), [(256, 256, False), (1, 1, True), (0, 0, True)])
def test_a_layer_protects_what_follows_the_login(
    realm: Realm, broker: RunningBroker, protocol: str, strongest: int, shown: int, is_readable: bool
) -> None:
    realm.run("kinit", f"anna@{REALM}", given="secret\n")
    tap = Wiretap(broker.port)
    done = exchange(realm, broker, tap, protocol=protocol, sasl_max_ssf=strongest)
    tap.close()
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == shown
    assert (BODY[:40].encode() in tap.seen) == is_readable
    assert "Traceback" not in broker.log_text()


@pytest.mark.parametrize("protocol", ["amqp0-10", "amqp1.0"])
def test_where_encryption_is_required_the_layer_encrypts(realm: Realm, make_broker: BrokerMaker, protocol: str) -> None:
    broker = make_broker("--auth", "yes", "--realm", REALM, "--require-encryption", "yes")
    broker.environment = realm.environment
    broker.start()
    realm.run("kinit", f"anna@{REALM}", given="secret\n")
    options = f"{{protocol: {protocol}, sasl_max_ssf: %d}}"
    done = send(realm, broker, "--connection-options", options % 256)
    assert done.returncode == 0, done.stderr
    for weak in (0, 1):
        done = send(realm, broker, "--connection-options", options % weak)
        assert done.returncode == 1
        refused = "no security layer that sasl_min_ssf" in done.stderr
        assert refused or broker.has_logged("only encrypted connections are accepted")
    with RawConnection(broker.port) as connection:
        connection.exchange_headers()
        assert list(connection.expect("connection.start")["mechanisms"]) == ["GSSAPI"]


def test_what_was_changed_on_the_wire_ends_the_connection(realm: Realm, broker: RunningBroker) -> None:
    realm.run("kinit", f"anna@{REALM}", given="secret\n")
    tap = Wiretap(broker.port, lambda data: data.replace(b"nobody", b"nobodY"))
    done = exchange(realm, broker, tap, sasl_max_ssf=1)
    tap.close()
    assert done.returncode == 1
    assert broker.has_logged("security layer: Kerberos")


def test_a_client_that_requires_more_than_there_is(realm: Realm, broker: RunningBroker) -> None:
    realm.run("kinit", f"anna@{REALM}", given="secret\n")
    done = send(realm, broker, "--connection-options", "{sasl_min_ssf: 1000, sasl_max_ssf: 2000}")
    assert done.returncode == 1
    assert "no security layer that sasl_min_ssf 1000 and sasl_max_ssf 2000 allow" in done.stderr


def test_tokens_that_are_none(realm: Realm, broker: RunningBroker) -> None:
    for response in (b"nonsense", b"\x60\x82\xff\xff" + b"x" * 1000):
        with RawConnection(broker.port) as connection:
            connection.exchange_headers()
            assert list(connection.expect("connection.start")["mechanisms"]) == ["GSSAPI"]
            connection.send_control("connection.start-ok", mechanism="GSSAPI", response=response, locale="en_US")
            with pytest.raises(ConnectionClosedError, match="Authentication failed"):
                connection.expect("connection.tune")
    assert "GSSAPI: Kerberos: " in broker.log_text()
    assert "Traceback" not in broker.log_text()
