"""A broker that hostile peers are let loose on, and a client of it that must not notice them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import pytest

from qstore.formats.amqp_0_10.commands import decode_command, decode_control
from qstore.formats.amqp_0_10.frames import COMMAND, CONTROL, FRAME, PROTOCOL_HEADER, WHOLE, decode_frame
from tests.support.raw_peer import RawConnection, RawPeer
from tests.support.running_broker import RunningBroker
from tests.support.temporary import directory_on_disk

_ALLOWED: Final = 64 << 20
"""How much the broker may grow."""


class Canary:
    """A client that was there before the hostile ones, and that must not notice them."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self.peer = RawPeer(broker.port)
        self._log_begin = len(broker.log.read_text(errors="replace"))
        self.queue = f"canary-{self.peer.name.decode()}"
        self.peer.declare(self.queue)
        self.peer.subscribe(self.queue)
        self.peer.sync()
        self._sung = 0
        self._base = broker.resident_bytes()

    def sing(self, allowed: int = _ALLOWED) -> None:
        """A durable message makes its way, and the broker has not grown by more than `allowed` bytes."""
        self._sung += 1
        body = b"%d" % self._sung
        self.peer.publish(self.queue, body)
        (delivery,) = self.peer.take(1)
        assert delivery.body == body
        self.peer.accept([delivery], sync=True)
        self.peer.sync()
        grown = self.broker.resident_bytes() - self._base
        assert grown < allowed, f"{grown:,} bytes more"

    def grant(self) -> None:
        """What the broker has grown to is where it begins."""
        self._base = self.broker.resident_bytes()

    def close(self) -> None:
        """It is well, and nothing was logged that should not be."""
        self.sing()
        self.peer.end()
        log = self.broker.log.read_text(errors="replace")[self._log_begin :]
        assert "Traceback" not in log, log[-8000:]


@pytest.fixture(scope="module")
def hostile_broker() -> Iterator[RunningBroker]:
    """One for all tests of a module; that it ends well is checked too."""
    with directory_on_disk() as directory:
        broker = RunningBroker(directory, "--max-connections", "100")
        yield broker
        try:
            if broker.is_running():
                assert broker.stop() == 0, broker.log_text()
        finally:
            broker.close()


@pytest.fixture
def canary(hostile_broker: RunningBroker) -> Iterator[Canary]:
    """A client that was there before the test, and is well after it. A broker that has ended is started again."""
    if not hostile_broker.is_running():
        hostile_broker.close()
        hostile_broker.start()
    canary = Canary(hostile_broker)
    with canary.peer:
        yield canary
        canary.close()


def answer(connection: RawConnection, seconds: float = 0.5) -> bool:
    """Read until the broker hangs up (True), or says nothing for a while. All that it says must be sound.

    Raises:
        Amqp010Error: it is not.
    """
    said, hung_up = b"", False
    connection.socket.settimeout(seconds)
    with contextlib.suppress(TimeoutError):
        while not hung_up:
            try:
                more = connection.socket.recv(1 << 18)
            except ConnectionError:
                more = b""
            said += more
            hung_up = not more
    offset = len(PROTOCOL_HEADER) if said.startswith(PROTOCOL_HEADER) else 0
    while (frame := decode_frame(said, offset)) is not None:
        if frame.segment_type == CONTROL:
            decode_control(frame.payload)
        elif frame.segment_type == COMMAND and frame.flags == WHOLE:
            decode_command(frame.payload)
        offset += FRAME.size + len(frame.payload)
    return hung_up
