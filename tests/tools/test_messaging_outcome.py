"""Final reports of `qpid-send` and `qpid-receive`: how many messages, whatever ended the run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from qstore.broker.client import Connection, Empty
from tests.support import forked
from tests.support.forked import Forked
from tests.support.processes import PATIENCE_SECONDS, send_when_it_waits
from tests.support.running_broker import RunningBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    fixed = ("--auto-expand", "no", "--num-jfiles", "4", "--jfile-size-pgs", "1")
    running = RunningBroker(tmp_path_factory.mktemp("broker"), *fixed)
    running.start()
    yield running
    running.close()


@pytest.fixture
def queue(broker: RunningBroker) -> str:
    name = f"q-{uuid.uuid4()}"
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        connection.session().sender(f"{name}; {{create: always, node: {{durable: true}}}}")
    return name


def command(broker: RunningBroker, name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"qstore.tools.{name}", "-b", f"127.0.0.1:{broker.port}", *arguments]


def run(broker: RunningBroker, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(command(broker, name, *arguments), capture_output=True, text=True, timeout=4 * PATIENCE_SECONDS)


def fill(broker: RunningBroker, queue: str, *options: str) -> subprocess.CompletedProcess[str]:
    size = ("--content-size", "1000", "--durable", "yes", "--capacity", "20")
    return run(broker, "qpid_send", "-a", queue, "-m", "1000", *size, *options)


def left(broker: RunningBroker, queue: str) -> int:
    """The messages that the queue has; they are acknowledged."""
    found = 0
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        session = connection.session()
        receiver = session.receiver(queue, capacity=100)
        while True:
            try:
                receiver.fetch(timeout=0)
            except Empty:
                session.acknowledge()
                return found
            found += 1


def test_full_journal_error_names_remedies_and_confirmed_count(broker: RunningBroker, queue: str) -> None:
    ended = fill(broker, queue)
    assert ended.returncode == 1
    error, outcome = ended.stderr.splitlines()
    assert error.startswith(
        f'qpid-send: resource-limit-exceeded: Enqueue capacity threshold exceeded on queue "{queue}". Consume messages;'
    )
    assert error.endswith(" (RHM_IORES_ENQCAPTHRESH)")
    for remedy in ("qstore-resize DATA-DIR QUEUE --num-jfiles 8", "qpid.file_size"):
        assert remedy in error
    words = outcome.split()
    sent, confirmed = int(words[1]), int(words[4])
    assert outcome == (
        f"qpid-send: {sent} messages sent, {confirmed} confirmed by the broker; it may have received others"
    )
    assert 0 < confirmed <= left(broker, queue) <= sent <= confirmed + 20


def test_committed_messages_are_counted(broker: RunningBroker, queue: str) -> None:
    ended = fill(broker, queue, "--tx", "10", "--rollback-frequency", "3")
    assert ended.returncode == 1
    words = ended.stderr.splitlines()[-1].split()
    committed, rolled_back = int(words[4]), int(words[6])
    assert words[5:] == ["committed,", str(rolled_back), "rolled", "back", "on", "request"]
    assert left(broker, queue) == committed > rolled_back > 0


def test_a_sender_without_confirmation_claims_none(broker: RunningBroker, queue: str) -> None:
    ended = fill(broker, f"{queue}; {{link: {{reliability: unreliable}}}}", "-m", "20000")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].endswith(" messages sent; the address is unreliable, so none are confirmed")


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ((), "3 messages received"),
        (("-m", "1"), "1 message received"),
        (("-t", "0.1"), "3 messages received"),
        (("--ack-frequency", "0"), "3 messages received, none acknowledged"),
        (("--tx", "2", "--rollback-frequency", "9"), "3 messages received"),
    ],
)
def test_received(broker: RunningBroker, queue: str, options: tuple[str, ...], outcome: str) -> None:
    assert run(broker, "qpid_send", "-a", queue, "-m", "3", "--content-string", "x").stderr == ""
    ended = run(broker, "qpid_receive", "-a", queue, *options)
    assert (ended.returncode, ended.stderr) == (0, f"qpid-receive: {outcome}\n")
    count = int(outcome.split()[0])
    assert ended.stdout == "x\n" * count
    assert left(broker, queue) == (3 if "none" in outcome else 3 - count)


def test_an_error_on_the_way(broker: RunningBroker, queue: str) -> None:
    run(broker, "qpid_send", "-a", queue, "-m", "3", "--sequence", "no")
    ended = run(broker, "qpid_receive", "-a", queue, "--verify-sequence")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "qpid-receive: 1 message received; the last 1 may be redelivered"
    assert left(broker, queue) == 3


def test_ctrl_c_acknowledges_printed_messages(broker: RunningBroker, queue: str) -> None:
    receiving = Forked(
        command(broker, "qpid_receive", "-a", queue, "-f"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert receiving.stdout is not None
    run(broker, "qpid_send", "-a", queue, "-m", "3", "--content-string", "x")
    assert [receiving.stdout.readline() for _ in range(3)] == ["x\n"] * 3
    send_when_it_waits(receiving, signal.SIGINT)
    rest, said = receiving.communicate(timeout=PATIENCE_SECONDS)
    assert (receiving.returncode, rest, said) == (128 + signal.SIGINT, "", "qpid-receive: 3 messages received\n")
    assert left(broker, queue) == 0


def test_ctrl_c_while_messages_come_loses_none(broker: RunningBroker, queue: str, tmp_path: Path) -> None:
    """What is printed is what is gone from the queue."""
    run(broker, "qpid_send", "-a", queue, "-m", "600", "--content-string", "x")
    printed = tmp_path / "printed"
    with printed.open("wb") as output:
        receiving = Forked(
            command(broker, "qpid_receive", "-a", queue, "-f", "--rate", "500", "--ack-frequency", "7"),
            stdout=output, stderr=subprocess.PIPE,
        )  # fmt: skip
        end = time.monotonic() + PATIENCE_SECONDS
        while not printed.stat().st_size:
            assert time.monotonic() < end
            time.sleep(0.01)
        receiving.send_signal(signal.SIGINT)
        receiving.communicate(timeout=PATIENCE_SECONDS)
    assert receiving.returncode == 128 + signal.SIGINT
    count = printed.read_bytes().count(b"x\n")
    assert 0 < count < 600
    assert left(broker, queue) == 600 - count


def test_a_broker_that_dies(broker: RunningBroker, queue: str) -> None:
    receiving = Forked(
        command(broker, "qpid_receive", "-a", queue, "-f"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert receiving.stdout is not None
    run(broker, "qpid_send", "-a", queue, "-m", "2", "--content-string", "x", "--durable", "yes")
    assert [receiving.stdout.readline() for _ in range(2)] == ["x\n"] * 2
    broker.kill()
    _, said = receiving.communicate(timeout=PATIENCE_SECONDS)
    broker.start()
    assert receiving.returncode == 1
    assert said.splitlines()[-1] == "qpid-receive: 2 messages received; the last 2 may be redelivered"
    assert left(broker, queue) == 2
