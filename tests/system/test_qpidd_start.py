"""`qpidd` as a process: how it starts, what it says, how it ends. Clients come in other tests."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from qstore.broker.process.held_files import holder_of
from qstore.broker.security.users.user_file import Users
from qstore.formats.values import TypedMap
from tests.support.forked import Forked
from tests.support.processes import PATIENCE_SECONDS, children_of, goes, is_running
from tests.support.raw_peer import ConnectionClosedError, PeerGoneError, RawConnection, RawPeer

ROOT: Final = Path(__file__).parents[2]
SMALL: Final = ("--num-jfiles", "4", "--jfile-size-pgs", "1", "--tpl-num-jfiles", "4", "--tpl-jfile-size-pgs", "1")
PROTOCOL_HEADER: Final = b"AMQP\x01\x01\x00\x0a"

Qpidd = Callable[..., subprocess.CompletedProcess[str]]
StartQpidd = Callable[..., Forked]


@pytest.fixture
def qpidd(start: StartQpidd) -> Qpidd:
    """Runs qpidd to its end."""

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        process = start(*options)
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    return run


@pytest.fixture
def daemon(qpidd: Qpidd, tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Starts daemons with a store, on ports of their own; ends them."""
    directories: list[Path] = []

    def start_it(*options: str) -> int:
        directories.append(tmp_path / f"daemon{len(directories)}")
        ended = qpidd(
            "--daemon", "--load-module", "store", *SMALL, "--port", "0", "--data-dir", str(directories[-1]),
            "--pid-dir", str(tmp_path / "run"), "--log-to-file", str(tmp_path / "log"), "--wait", "30", *options,
        )  # fmt: skip
        assert (ended.returncode, ended.stderr) == (0, "")
        return int(ended.stdout)

    yield start_it
    for directory in directories:
        process = holder_of(str(directory / "lock"))
        if process is not None:
            os.kill(process, signal.SIGKILL)


def port_of(process: Forked) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def answer(port: int, host: str = "127.0.0.1") -> bytes:
    """What is said to a client that says what protocol it speaks."""
    with socket.create_connection((host, port), PATIENCE_SECONDS) as client:
        client.sendall(PROTOCOL_HEADER)
        return client.recv(len(PROTOCOL_HEADER))


# ---- help ----


def test_help_shows_a_module_s_options_when_it_is_loaded(qpidd: Qpidd) -> None:
    alone, loaded = qpidd("--help"), qpidd("--load-module", "msgstore.so", "-h")
    for shown in (alone, loaded):
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout.startswith("Usage: qpidd OPTIONS\n")
        assert "-p [ --port ] PORT (5672)" in shown.stdout
    assert "--num-jfiles" not in alone.stdout
    assert "Store options:" in loaded.stdout
    assert "--num-jfiles N (8)" in loaded.stdout


def test_version(qpidd: Qpidd) -> None:
    shown = qpidd("--version")
    assert shown.returncode == 0
    assert re.fullmatch(r"qpidd \(qstore\) version \S+ \((compiled|pure Python)\)\n", shown.stdout)


@pytest.mark.parametrize(("output", "code"), [("/dev/full", 1), (None, 0)])
def test_help_without_a_usable_output(output: str | None, code: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    if output is not None:
        os.dup2(os.open(output, os.O_WRONLY), writing)
    ended = subprocess.run(
        [sys.executable, "-m", "qstore.broker.process.qpidd", "--help"],
        stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    os.close(writing)
    assert ended.returncode == code
    assert ended.stderr == ("qpidd: standard output: No space left on device\n" if code else "")


def test_files_do_not_reuse_closed_standard_descriptors(tmp_path: Path) -> None:
    options = f"-p 0 --data-dir {tmp_path} --log-to-file {tmp_path}/log"
    command = f"exec {sys.executable} -m qstore.broker.process.qpidd {options} 0<&- >&- 2>&-"
    process = subprocess.Popen(["sh", "-c", command], cwd=ROOT)
    end = time.monotonic() + PATIENCE_SECONDS
    while "Broker running" not in ((tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    found = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)]
    process.terminate()
    assert process.wait(PATIENCE_SECONDS) == 0
    assert found == [os.devnull] * 3


# ---- in the foreground ----


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_its_port_and_ends_cleanly(start: StartQpidd, tmp_path: Path, number: signal.Signals) -> None:
    data = tmp_path / "data"
    process = start("--load-module", "store", *SMALL, "--port", "0", "--data-dir", str(data))
    port = port_of(process)
    assert answer(port) == PROTOCOL_HEADER
    assert (data / "lock").read_text() == f"{process.pid}\n"
    assert data.stat().st_mode & 0o777 == 0o700
    helpers = children_of(process.pid)
    process.send_signal(number)
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, output) == (0, "")
    assert f"[Network] notice Listening on TCP/TCP6 port {port}" in errors
    assert f"[Store] notice Store module initialized; dir={data}" in errors
    assert errors.index("Broker running") < errors.index("Shut down")
    assert all(goes(helper) for helper in helpers)
    assert (data / "lock").read_text() == ""


def test_a_port_given_as_an_option_is_not_printed(start: StartQpidd, qpidd: Qpidd) -> None:
    first = start("--port", "0", "--no-data-dir", "--log-to-stderr", "no")
    port = port_of(first)
    first.terminate()
    first.wait(PATIENCE_SECONDS)
    second = start("--port", str(port), "--no-data-dir")
    assert second.stderr is not None
    while "Broker running" not in second.stderr.readline():
        assert second.poll() is None
    second.terminate()
    output, _ = second.communicate(timeout=PATIENCE_SECONDS)
    assert (second.returncode, output) == (0, "")


def test_the_log_names_listening_addresses_and_recovered_content(start: StartQpidd, tmp_path: Path) -> None:
    options = ("--load-module", "store", *SMALL, "--port", "0", "--data-dir", str(tmp_path / "data"))
    first = start(*options, "--auth", "no", "--interface", "0.0.0.0")
    with RawPeer(port_of(first)) as peer:
        peer.declare("q")
        peer.publish("q", b"1")
        peer.publish("q", b"2")
        peer.sync()
    first.kill()
    log = first.communicate(timeout=PATIENCE_SECONDS)[1]
    assert re.search(r"\[Broker\] notice Recovered 0 durable queues and 0 messages in [0-9.]+ s\n", log)
    assert re.search(r"\[Network\] notice Listening on TCP/TCP6 port [0-9]+ \(0\.0\.0\.0\)\n", log)
    second = start(*options)
    port_of(second)
    second.terminate()
    log = second.communicate(timeout=PATIENCE_SECONDS)[1]
    found = "1 durable queue and 2 messages in [0-9.]+ s; the store was not closed cleanly"
    assert re.search(rf"\[Broker\] notice Recovered {found}\n", log)
    third = start(*options)
    port_of(third)
    third.terminate()
    log = third.communicate(timeout=PATIENCE_SECONDS)[1]
    assert re.search(r"\[Broker\] notice Recovered 1 durable queue and 2 messages in [0-9.]+ s\n", log)


def test_a_broker_listens_only_on_loopback_by_default(start: StartQpidd) -> None:
    assert answer(port_of(start("-p0", "--no-data-dir", "--interface", "127.0.0.2")), "127.0.0.2") == PROTOCOL_HEADER
    port = port_of(start("-p0", "--no-data-dir"))
    assert answer(port) == PROTOCOL_HEADER
    with pytest.raises(ConnectionRefusedError):
        answer(port, "127.0.0.2")


def test_without_a_store_it_warns(start: StartQpidd, tmp_path: Path) -> None:
    process = start("--port", "0", "--data-dir", str(tmp_path / "data"))
    port_of(process)
    process.terminate()
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert re.search(r"\[Broker\] warning No store is loaded: durable .* are lost", errors)
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"lock", ".mbrokerdata", "paging"}


def test_the_default_data_directory_is_at_home(start: StartQpidd, home: Path) -> None:
    port_of(start("--port", "0", "--load-module", "store", *SMALL))
    assert (home / ".qpidd" / "rhm" / "STORE").is_file()


def test_no_data_directory(start: StartQpidd, home: Path) -> None:
    port_of(start("--port", "0", "--no-data-dir"))
    assert list(home.iterdir()) == []


def test_a_killed_broker_s_directory_needs_no_tidying(start: StartQpidd, qpidd: Qpidd, tmp_path: Path) -> None:
    options = ("--load-module", "store", *SMALL, "--port", "0", "--data-dir", str(tmp_path / "data"))
    first = start(*options)
    port_of(first)
    first.kill()
    first.wait(PATIENCE_SECONDS)
    assert qpidd("--check", "--data-dir", str(tmp_path / "data")).returncode == 1
    port_of(start(*options))
    assert qpidd("--check", "--data-dir", str(tmp_path / "data")).returncode == 0


def test_the_log_goes_to_the_given_file(start: StartQpidd, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start(
        "--port", "0", "--no-data-dir", "--log-to-stderr", "no", "--log-to-file", str(log), "--log-enable", "notice",
        "--log-disable", "notice:Broker", "--log-time=no", "--sasl-config", "/etc/sasl2",
    )  # fmt: skip
    port = port_of(process)
    process.terminate()
    assert process.communicate(timeout=PATIENCE_SECONDS) == ("", "")
    where = "(127.0.0.1, ::1; the loopback interface only, see --interface)"
    assert log.read_text() == f"[Network] notice Listening on TCP/TCP6 port {port} {where}\n"


def test_an_option_without_effect_is_reported(start: StartQpidd) -> None:
    process = start("--port", "0", "--no-data-dir", "--worker-threads", "4")
    port_of(process)
    process.terminate()
    assert "notice Option worker-threads is ignored" in process.communicate(timeout=PATIENCE_SECONDS)[1]


# ---- who is let in ----


def is_let_in(port: int, mechanism: str, response: bytes = b"") -> bool:
    """Whether a client gets past security that takes this mechanism, offered or not."""
    with RawConnection(port) as client:
        assert client.exchange_headers() == PROTOCOL_HEADER
        client.expect("connection.start")
        client.send_control(
            "connection.start-ok", client_properties=TypedMap(), mechanism=mechanism, response=response, locale="en_US"
        )
        try:
            client.expect("connection.tune")
        except (ConnectionClosedError, PeerGoneError):
            return False
        return True


def test_auth_with_a_user_file(start: StartQpidd, tmp_path: Path) -> None:
    users = Users(str(tmp_path / "users"))
    users.put("guest", "secret")
    port = port_of(start("--port", "0", "--no-data-dir", "--user-file", users.path))
    assert is_let_in(port, "PLAIN", b"\0guest\0secret")
    assert is_let_in(port, "PLAIN", b"\0guest@QPID\0secret")
    assert not is_let_in(port, "PLAIN", b"\0guest\0wrong")
    assert not is_let_in(port, "PLAIN", b"\0nobody\0secret")
    assert not is_let_in(port, "PLAIN", b"\xff")
    assert not is_let_in(port, "ANONYMOUS")
    users.put("nobody", "secret")
    assert is_let_in(port, "PLAIN", b"\0nobody\0secret")


def test_auth_without_a_user_file(start: StartQpidd) -> None:
    port = port_of(start("--port", "0", "--no-data-dir"))
    assert is_let_in(port, "ANONYMOUS")
    assert not is_let_in(port, "PLAIN", b"\0guest\0guest")
    assert not is_let_in(port, "GSSAPI")


def test_no_auth(start: StartQpidd) -> None:
    port = port_of(start("--port", "0", "--no-data-dir", "--auth", "no"))
    assert is_let_in(port, "ANONYMOUS")
    assert is_let_in(port, "PLAIN", b"\0guest\0whatever")


def test_passwords_are_not_logged(start: StartQpidd, tmp_path: Path) -> None:
    users = Users(str(tmp_path / "users"))
    users.put("guest", "hunter2-right")
    process = start("--port", "0", "--no-data-dir", "--user-file", users.path, "--trace")
    port = port_of(process)
    for password in (b"hunter2-right", b"hunter2-wrong"):
        is_let_in(port, "PLAIN", b"\0guest\0" + password)
    process.terminate()
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert "Broker running" in errors
    assert "hunter2" not in errors


# ---- what cannot start ----


def test_two_brokers_on_one_directory(start: StartQpidd, qpidd: Qpidd, tmp_path: Path) -> None:
    first = start("--port", "0", "--data-dir", str(tmp_path / "data"))
    port_of(first)
    second = qpidd("--port", "0", "--data-dir", str(tmp_path / "data"))
    assert (second.returncode, second.stdout) == (1, "")
    wanted = f"Daemon startup failed: Cannot lock {tmp_path}/data/lock: Resource temporarily unavailable; process "
    assert f"[Broker] critical {wanted}{first.pid} is using it" in second.stderr
    quiet = qpidd("--port", "0", "--data-dir", str(tmp_path / "data"), "--log-to-stderr", "no")
    assert quiet.stderr.startswith(f"qpidd: {wanted}")
    assert quiet.stderr.count("\n") == 1


def test_a_port_that_is_taken(start: StartQpidd, qpidd: Qpidd, tmp_path: Path) -> None:
    port = port_of(start("--port", "0", "--no-data-dir"))
    options = ("--load-module", "store", *SMALL, "--data-dir", str(tmp_path / "data"), "--log-enable", "error+")
    second = qpidd("--port", str(port), *options)
    assert second.returncode == 1
    assert f"port {port}: " in second.stderr
    assert f"port {port}: Address already in use; see --interface and --port" in second.stderr
    assert second.stderr.count("\n") == 1
    assert b"clean" in (tmp_path / "data" / "rhm" / "STORE").read_bytes()  # and so its store was closed


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--prot", "0"], "qpidd: --prot: unknown option; did you mean --port?"),
        (["--port", "x"], 'qpidd: --port: "x" is not a number'),
        (
            ["--num-jfiles", "8"],
            "qpidd: --num-jfiles is an option of module store, which is not loaded: add --load-module store",
        ),
        (["--load-module", "nothing.so"], "qpidd: --load-module nothing.so: no such module"),
        (["--log-enable", "loud"], 'qpidd: "loud" is not a log rule'),
        (["--log-to-file", "/nowhere/log"], "qpidd: /nowhere/log: the log cannot be written"),
        (["--data-dir", "/proc/none"], "/proc/none: the data directory cannot be used"),
        (["--user-file", "/nowhere/users"], "/nowhere/users: the user file cannot be read"),
        (["--interface", "nowhere.invalid"], "cannot listen on nowhere.invalid, port 0"),
        (["--load-module", "store"], "no directory for the store"),
        (["--load-module", "store", "--num-jfiles", "x"], 'option num-jfiles: "x" is not a whole number'),
        (["--load-module", "store", "--truncate=perhaps"], '--truncate: "perhaps" is neither yes nor no'),
        (["--load-module", "store", "--store-dir", "/proc/none"], "/proc/none: the store directory cannot be used"),
    ],
)
@pytest.mark.parametrize("is_daemon", [False, True])
def test_failed_start_says_why_in_one_line(
    qpidd: Qpidd, tmp_path: Path, options: list[str], text: str, is_daemon: bool
) -> None:
    where = [] if any(option in options for option in ("--data-dir", "--prot", "--port")) else ["--no-data-dir"]
    port = [] if "--port" in options else ["--port", "0"]
    of_daemon = ["--daemon", "--pid-dir", str(tmp_path / "run")] if is_daemon else []
    ended = qpidd(*port, *where, *options, *of_daemon)
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = (line for line in ended.stderr.splitlines() if "[Broker] warning No store" not in line)
    assert text.removeprefix("qpidd: ") in line
    assert line.startswith("qpidd: ") or "critical Daemon startup failed: " in line


# ---- as a daemon ----


@pytest.mark.core
def test_a_daemon_is_ready_when_its_starter_returns(daemon: Callable[..., int], qpidd: Qpidd, tmp_path: Path) -> None:
    port = daemon()
    assert answer(port) == PROTOCOL_HEADER
    pid_file = tmp_path / "run" / f"qpidd.{port}.pid"
    process = int(pid_file.read_text())
    asked = ("--pid-dir", str(tmp_path / "run"), "--port", str(port))
    assert (qpidd("--check", *asked).stdout, qpidd("-c", *asked).returncode) == (f"{process}\n", 0)
    assert qpidd("--check", "--data-dir", str(tmp_path / "daemon0")).stdout == f"{process}\n"
    assert os.getsid(process) == process
    assert [os.readlink(f"/proc/{process}/fd/{number}") for number in range(3)] == [os.devnull] * 3

    ended = qpidd("--quit", *asked)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert not is_running(process)
    assert not pid_file.exists()
    assert "[Broker] notice Shut down" in (tmp_path / "log").read_text()
    for again in ("--check", "--quit"):
        gone = qpidd(again, *asked)
        assert (gone.returncode, gone.stdout) == (1, "")
        assert gone.stderr == f"qpidd: no broker is running: nothing holds {pid_file}\n"


def test_a_daemon_without_a_log_warns(qpidd: Qpidd, tmp_path: Path) -> None:
    options = ("--port", "0", "--no-data-dir", "--pid-dir", str(tmp_path))
    for said in ((), ("--log-to-syslog=no",)):
        ended = qpidd("--daemon", *options, *said)
        try:
            complains = not said and not Path("/dev/log").exists()
            assert (ended.returncode, "without a log" in ended.stderr) == (0, complains)
        finally:
            assert qpidd("--quit", *options[2:], "--port", ended.stdout.strip()).returncode == 0


def test_two_daemons_and_one_of_them_ends(daemon: Callable[..., int], qpidd: Qpidd, tmp_path: Path) -> None:
    first, second = daemon(), daemon()
    assert qpidd("-q", "--pid-dir", str(tmp_path / "run"), "-p", str(first)).returncode == 0
    assert answer(second) == PROTOCOL_HEADER
    with pytest.raises(ConnectionRefusedError):
        answer(first)


def test_a_daemon_that_was_killed_is_not_running(daemon: Callable[..., int], qpidd: Qpidd, tmp_path: Path) -> None:
    port = daemon()
    pid_file = tmp_path / "run" / f"qpidd.{port}.pid"
    process = int(pid_file.read_text())
    os.kill(process, signal.SIGKILL)
    assert goes(process)
    assert pid_file.exists()
    assert qpidd("--check", "--pid-dir", str(tmp_path / "run"), "-p", str(port)).returncode == 1


def test_a_daemon_on_a_directory_that_is_taken(start: StartQpidd, qpidd: Qpidd, tmp_path: Path) -> None:
    first = start("--port", "0", "--data-dir", str(tmp_path / "data"))
    port_of(first)
    ended = qpidd("--daemon", "--port", "0", "--data-dir", str(tmp_path / "data"))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"qpidd: Daemon startup failed: Cannot lock {tmp_path}/data/lock: Resource ")


def test_a_daemon_that_is_not_ready_in_time_is_ended(qpidd: Qpidd, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for _ in range(20):
        ended = qpidd("-d", "-w", "1us", "--port", "0", "--data-dir", str(data), "--pid-dir", str(tmp_path))
        if ended.returncode:
            break
        # On a busy machine the daemon may be ready before the parent runs again.
        assert qpidd("--quit", "--pid-dir", str(tmp_path), "--port", ended.stdout.strip()).returncode == 0
    assert ended.returncode == 1
    assert ended.stderr.startswith("qpidd: Daemon startup failed: not ready within 1e-06 s; it has been sent SIGTERM")
    end = time.monotonic() + PATIENCE_SECONDS
    while qpidd("--check", "--data-dir", str(data)).returncode == 0:
        assert time.monotonic() < end
