"""A broker with limited memory: it refuses floods, still answers, and can be stopped."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from qstore.formats.amqp_0_10.codes import ErrorCode
from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import ConnectionClosedError, PeerGoneError, RawPeer, SessionEndedError
from tests.support.running_broker import BrokerMaker, RunningBroker

ROOM = 48 << 20
MAX_MESSAGES = 600_000  # messages: three times what there is room for
EMPTY = b""


def address_space(pid: int) -> int:
    """Bytes of a process's address space."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmSize:")]
    return int(line.split()[1]) << 10


def flood(broker: RunningBroker, queue: str, *, waits: bool = True) -> Exception:
    """Publish small messages, waiting for their completion or not, until the broker refuses to take more.

    No two in a row have bodies of equal size: those would be handled as runs, and take much less memory.

    Returns what it says.
    """
    peer = RawPeer(broker.port)
    peer.declare(queue, durable=False)
    frames = [peer.transfer_frames(queue, body, durable=False) for body in (EMPTY, b"x")]
    try:
        for _ in range(MAX_MESSAGES // 1000):
            peer.publish_all(frames * 500)
            if waits:
                peer.sync()
            while peer.process(0):
                pass
    except (SessionEndedError, ConnectionClosedError, PeerGoneError) as error:
        return error
    finally:
        peer.close()
    raise AssertionError("the broker takes all there is")


def check_alive(broker: RunningBroker) -> None:
    """Another client drains what there is, and then publishes."""
    peer = RawPeer(broker.port)
    peer.call("queue.purge", queue="q")
    peer.sync()
    peer.declare("other", durable=False)
    refusals = set()
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            peer.publish("other", b"hello", durable=False)
            peer.sync()
            break
        except SessionEndedError as error:
            refusals.add(error.code)
            peer.close()
            time.sleep(0.05)  # not more connections than the broker closes meanwhile
            peer = RawPeer(broker.port)
    else:
        raise AssertionError("the broker never takes messages again")
    assert refusals <= {ErrorCode.RESOURCE_LIMIT_EXCEEDED}
    peer.close()


def test_a_queue_of_empty_messages_is_bounded(make_broker: BrokerMaker) -> None:
    broker = make_broker("--default-queue-limit", str(ROOM)).start()
    before = broker.resident_bytes()
    error = flood(broker, "q", waits=False)
    assert isinstance(error, SessionEndedError)
    assert error.code == ErrorCode.RESOURCE_LIMIT_EXCEEDED
    assert broker.resident_bytes() - before < 1.25 * ROOM
    check_alive(broker)
    assert broker.stop() == 0


@pytest.mark.parametrize("room", [16 << 20, 28 << 20, ROOM])
def test_a_process_out_of_memory_refuses_reports_and_ends(room: int, make_broker: BrokerMaker) -> None:
    broker = make_broker("--default-queue-limit=0", "--broker-memory=0").start()
    limit = address_space(broker.pid) + room
    resource.prlimit(broker.pid, resource.RLIMIT_AS, (limit, limit))
    error = flood(broker, "q")
    assert isinstance(error, SessionEndedError)
    assert error.code == ErrorCode.RESOURCE_LIMIT_EXCEEDED
    check_alive(broker)
    assert broker.stop() == 0
    log = broker.log_text()
    assert "out of memory" in log
    assert "Traceback" not in log
    assert "MemoryError" not in log


@pytest.mark.parametrize("text", ["64MiB", "67108864"])
def test_the_ceiling_is_an_option(make_broker: BrokerMaker, text: str) -> None:
    broker = make_broker(f"--broker-memory={text}", "--max-message-size=20000000").start()
    peer = RawPeer(broker.port)
    peer.declare("q", durable=False)
    peer.publish("q", bytes(17 << 20), durable=False)
    with pytest.raises(SessionEndedError, match="larger than 16777216 bytes"):
        peer.sync()
    peer.close()
    assert broker.stop() == 0
