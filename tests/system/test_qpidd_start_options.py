"""`qpidd` as a process that is configured by a file, by the environment, and by old command lines."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.forked import Forked
from tests.support.processes import PATIENCE_SECONDS

ROOT: Final = Path(__file__).parents[2]
SMALL: Final = "num-jfiles=4\njfile-size-pgs=1\ntpl-num-jfiles=4\ntpl-jfile-size-pgs=1\n"

Start = Callable[..., Forked]
Ended = tuple[int, str, str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "qpidd.conf"


def ended(process: Forked) -> Ended:
    """How a process ends by itself: exit code, output, errors."""
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, output, errors


def log_of(process: Forked) -> str:
    """The log of a broker that starts and is stopped."""
    assert process.stdout is not None
    assert process.stdout.readline().strip().isdecimal(), process.communicate()[1]
    process.send_signal(signal.SIGTERM)
    code, output, errors = ended(process)
    assert (code, output) == (0, "")
    return errors


# ---- the file and the environment ----


def test_a_broker_that_a_file_describes(start: Start, file: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    file.write_text(f"# mine\nport=0\nload-module=store\n{SMALL}data-dir = {data}\nlog-time=no\nprot=1\n")
    log = log_of(start("--config", str(file)))
    assert f"[Store] notice Store module initialized; dir={data}\n" in log
    assert f"[Broker] warning {file}, line 10: prot: unknown option, ignored; did you mean port?\n" in log
    assert (data / "rhm" / "STORE").is_file()


def test_the_environment_comes_before_the_file(start: Start, file: Path, tmp_path: Path) -> None:
    file.write_text(f"port=1\ndata-dir={tmp_path}/data\nlog-prefix=file\nlog-enable=info+\n")
    variables = {
        "QPID_CONFIG": str(file), "QPID_NO_DATA_DIR": "1", "QPID_LOG_PREFIX": "variable ", "QPID_PORT": "1",
        "QPID_LOG_ENABLE": "debug+:Store", "QPID_SSL_CERT_DB": "/a/client's", "QPID_PROT": "1",
        "QPID_BLD": "/build",
    }  # fmt: skip
    log = log_of(start("--port=0", "--log-prefix", "line ", **variables))
    assert all(line.startswith("line ") for line in log.splitlines())
    assert "warning QPID_PROT: unknown option, ignored; did you mean port?\n" in log
    assert "QPID_BLD" not in log
    assert "QPID_SSL" not in log
    assert not (tmp_path / "data").exists()


def test_the_store_of_a_directory_of_modules(start: Start, tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    for name in ("linearstore.so", "ha.so"):
        (modules / name).write_bytes(b"\x7fELF")
    small = [f"--{line}" for line in SMALL.splitlines()]
    options = ("--module-dir", str(modules), "--port=0", "--data-dir", str(tmp_path / "data"))
    log = log_of(start(*options, *small))
    assert "notice Store module initialized" in log
    assert (
        f"[Broker] warning {modules}: these files are ignored, since no modules with their names are installed: ha.so\n"
        in log
    )
    assert "No store is loaded" in log_of(start(*options, "--no-module-dir"))
    code, output, errors = ended(start("--help", "--module-dir", str(modules)))
    assert (code, errors) == (0, "")
    assert "--num-jfiles N (8)" in output


def test_a_configuration_of_qpidd(start: Start, file: Path, tmp_path: Path) -> None:
    """The modules that qpidd loads for access control, encryption, hangs, replication and XML are always there."""
    (tmp_path / "qpidd.acl").write_text("acl allow all all\n")
    modules = (
        "acl.so", "/usr/lib64/qpid/daemon/ssl.so", "watchdog.so", "replication_exchange.so", "xml.so", "legacystore.so",
    )  # fmt: skip
    file.write_text(
        "".join(f"load-module={name}\n" for name in modules)
        + f"port=0\ndata-dir={tmp_path}/data\nacl-file={tmp_path}/qpidd.acl\nstrict-acl-validation=warn\n"
        f"watchdog-interval=30\ncluster-update-url=10.0.0.1\n{SMALL}"
    )
    log = log_of(start("--config", str(file)))
    assert "notice Store module initialized" in log
    assert "notice Option cluster-update-url " in log
    assert "warning" not in log


def test_a_module_that_this_broker_lacks(start: Start) -> None:
    code, output, errors = ended(start("-p0", "--no-data-dir", "--load-module", "cluster.so"))
    assert (code, output) == (1, "")
    assert errors.startswith("qpidd: --load-module cluster.so: this broker ")
    assert errors.count("\n") == 1


def test_rules_without_effect_end_the_start_if_the_validation_is_strict(start: Start, tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text("acl allow all delete broker\nacl allow all all\n")
    options = ("-p0", "--no-data-dir", "--acl-file", str(rules), "--strict-acl-validation")
    reason = "Broker never checks for rules with action: 'delete' and object: 'broker'"
    assert f"warning {rules}: line 1: " in log_of(start(*options, "warn"))
    assert reason not in log_of(start(*options, "none"))
    code, _, errors = ended(start(*options, "fatal"))
    assert code == 1
    assert f"{rules}: line 1: " in errors
    assert reason in errors
    assert "this is an error by --strict-acl-validation fatal" in errors


@pytest.mark.parametrize("option", ["--help", "--version", "--check"])
def test_unreadable_configuration_file_fails_every_command(start: Start, file: Path, option: str) -> None:
    code, output, errors = ended(start(option, "--config", str(file)))
    assert (code, output) == (1, "")
    wanted = "the configuration file cannot be read: No such file or directory; see --config"
    assert errors == f"qpidd: {file}: {wanted}\n"
    file.write_text("[broker]\n")
    assert ended(start(option, "--config", str(file)))[2] == f'qpidd: {file}, line 1: "[broker]" is not name=value\n'


def test_a_daemon_that_a_file_describes(start: Start, file: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    file.write_text(f"daemon=yes\nport=0\nno-data-dir=yes\npid-dir={tmp_path}\nlog-output={log}\nwait=30s\n")
    code, output, errors = ended(start("--config", str(file)))
    assert (code, errors) == (0, "")
    port = int(output)
    asked = ("--config", str(file), "--port", str(port))
    assert ended(start(*asked, "--check"))[0] == 0
    assert ended(start(*asked, "--quit")) == (0, "", "")
    assert "Broker running" in log.read_text()


# ---- old command lines ----


def test_options_that_have_no_effect_are_reported(start: Start) -> None:
    log = log_of(
        start(
            "-p0", "--no-data-dir", "-m", "yes", "--mgmt-publish=no", "--link-maintenance-interval", "0.1",
            "--ack", "0", "--ha-cluster=no", "--worker-threads", "3", "--staging-threshold=500000", "--no-module-dir",
            "--log-time=no",
        )
    )  # fmt: skip
    lines = [line for line in log.splitlines() if line.startswith("[Broker] notice Option ")]
    assert [line.split()[3] for line in lines] == [
        "ack", "worker-threads", "staging-threshold",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--require-encryption", "needs a certificate"),
        ("--ssl-cert-db=/d", "is not supported: NSS databases are not read"),
        ("--ssl-port=5671", "needs a certificate"),
        ("--ha-cluster=yes", "is not supported yet: "),
    ],
)
@pytest.mark.parametrize("is_daemon", [False, True])
def test_a_broker_that_cannot_be_as_safe_as_configured_does_not_start(
    start: Start, option: str, why: str, is_daemon: bool
) -> None:
    code, output, errors = ended(start("-p0", "--no-data-dir", option, *(["--daemon"] if is_daemon else [])))
    assert (code, output) == (1, "")
    assert errors.startswith(f"qpidd: {option.partition('=')[0]} {why}")
    assert errors.count("\n") == 1


# ---- the network ----


def test_a_service_manager_is_notified(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_SECONDS)
        process = start("-p0", "--no-data-dir", NOTIFY_SOCKET=str(tmp_path / "notify"))
        ready = manager.recv(100)
        assert ready.startswith(b"READY=1\nSTATUS=Listening on port ")
        process.terminate()
        assert manager.recv(100) == b"STOPPING=1"
        assert ended(process)[0] == 0
