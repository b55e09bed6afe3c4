"""A broker on a real file system that is full, or becomes read-only: clients get errors, and the log has one line."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from qstore.broker.process.held_files import holder_of, lock_path
from qstore.formats.values import typed_map
from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import ConnectionClosedError, RawPeer, SessionEndedError
from tests.support.running_broker import BrokerMaker, RunningBroker

SMALL = (
    "--num-jfiles", "4", "--jfile-size-pgs", "1", "--tpl-num-jfiles", "4", "--tpl-jfile-size-pgs", "1",
)  # fmt: skip
BYTES = 24 << 20
QUEUE: Final = {"durable": True, "arguments": typed_map({"qpid.file_count": 4, "qpid.file_size": 2})}
"""Not of the size in `SMALL`: within a second, the broker makes such journals in advance, and a queue that takes one of
them needs no space."""


def run(*command: str | Path) -> bool:
    """Whether a command succeeds."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A small ext4 of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a file system")
    image, directory = tmp_path / "image", tmp_path / "mounted"
    directory.mkdir()
    with image.open("wb") as file:
        file.truncate(BYTES)
    if not run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", image):
        pytest.skip("needs mkfs.ext4")
    if not run("mount", "-o", "loop", image, directory):
        pytest.skip("needs a loop device")
    yield directory
    holder = holder_of(lock_path(str(directory / "data")))
    if holder is not None:  # a daemon, which nobody else looks after
        os.kill(holder, signal.SIGKILL)
    run("umount", "--lazy", directory)


@pytest.fixture
def broker(mounted: Path, make_broker: BrokerMaker) -> RunningBroker:
    """One with its data there, and a queue with a message."""
    broker = make_broker(*SMALL)
    broker.data_directory = mounted / "data"
    broker.start()
    with RawPeer(broker.port) as peer:
        peer.call("queue.declare", queue="orders", **QUEUE)
        peer.publish("orders", b"acknowledged")
        peer.sync()
        peer.end()
    return broker


def fill(path: Path) -> None:
    """Write a file until there is no room for another sector."""
    with path.open("wb", buffering=0) as filler:
        for size in (1 << 16, 512):
            with contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(size))


def refusal(broker: RunningBroker, command: str, **values: object) -> str:
    """The error that a client gets on a connection of its own; empty if the command succeeds."""
    with RawPeer(broker.port) as peer:
        try:
            peer.call(command, **values)
        except (SessionEndedError, ConnectionClosedError) as error:
            return str(error)
        peer.end()
    return ""


def lines_of(broker: RunningBroker, level: str) -> list[str]:
    """The lines of the log that have a level."""
    return [line for line in broker.log.read_text().splitlines() if f"] {level} " in line]


def test_a_full_disk_is_logged_once_and_that_it_is_over_too(broker: RunningBroker, mounted: Path) -> None:
    fill(mounted / "filler")
    for number in range(3):
        assert "No space left" in refusal(broker, "queue.declare", queue=f"new-{number}", **QUEUE)
    errors = []
    for number in range(1000):  # what the log of the catalogue has room for
        errors += [refusal(broker, "exchange.declare", exchange=f"e{number}", type="direct", durable=True)]
        if len(errors) > 3 and all(errors[-3:]):
            break
    assert all("No space left" in text for text in errors[-3:])
    critical = lines_of(broker, "critical")
    outages = [line.partition("] critical ")[2].partition(":")[0].partition(",")[0] for line in critical]
    expected = {"queue journals cannot be created or removed", "the catalogue cannot be written"}
    of_the_timer = {"it cannot be recorded how far the store is synced"}  # which may have come meanwhile
    assert len(set(outages)) == len(outages), critical
    assert set(outages) - of_the_timer == expected, critical
    assert any("free some space" in line for line in critical)
    (mounted / "filler").unlink()
    end = time.monotonic() + PATIENCE_SECONDS
    while refusal(broker, "exchange.declare", exchange="again", type="direct", durable=True):
        assert time.monotonic() < end, broker.log_text()
        time.sleep(0.2)
    assert refusal(broker, "queue.declare", queue="again", **QUEUE) == ""
    notices = lines_of(broker, "notice")
    assert sum("the catalogue can be written again" in line for line in notices) == 1
    assert sum("queue journals can be created or removed again" in line for line in notices) == 1
    broker.restart()
    with RawPeer(broker.port) as peer:
        assert [peer.message_count(name) for name in ("orders", "again")] == [1, 0]
        peer.end()
    assert broker.stop() == 0


@pytest.mark.parametrize("is_daemon", [False, True])
def test_the_end_on_a_file_system_that_has_become_read_only(
    broker: RunningBroker, mounted: Path, is_daemon: bool
) -> None:
    pid_directory = mounted / "pid"
    if is_daemon:
        assert broker.stop() == 0
        log = broker.log
        command = broker.command("--daemon", "--pid-dir", str(pid_directory), "--log-to-file", str(log))
        started = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
        broker.port = int(started.stdout)
    assert run("sync", "--file-system", mounted)  # the pid file, too: it is read later
    assert run("mount", "-o", "remount,abort", mounted)
    with RawPeer(broker.port) as peer:
        peer.publish("orders", b"not acknowledged")
        with pytest.raises(SessionEndedError):
            peer.sync()
    for number in range(2):
        assert "Read-only" in refusal(broker, "queue.declare", queue=f"new-{number}", **QUEUE)
    critical = lines_of(broker, "critical")
    assert sum('queue "orders": a write or sync' in line for line in critical) == 1
    assert sum("queue journals cannot be created" in line for line in critical) == 1
    if is_daemon:
        ended = subprocess.run([*command, "--quit"], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
    else:
        assert broker.stop() == 1
    text = broker.log.read_text()
    assert "Traceback" not in text
    assert "Unhandled exception" not in text
    assert "the store was not closed cleanly: 1 of its 2 journals failed" in text
    assert ("the pid file cannot be removed: Read-only file system" in text) == is_daemon
    assert "Shut down, but the store was not closed cleanly" in text
