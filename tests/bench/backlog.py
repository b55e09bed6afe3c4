"""A backlog: many messages are put on a queue, and taken from it again, as fast as one process can.

Each message has a number, from 0 on, and what is taken is checked, if that is asked for: no message is missing, none
comes twice or out of order, and every byte is as it was.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.load_generator import BACKLOG, CHUNK, MARK, NUMBER, Consumer, Link, Publisher
from tests.support.processes import memory_of
from tests.support.raw_peer import RawPeer

WINDOW: Final = 4000
_WINDOW_BYTES: Final = 32 << 20
_PATIENCE_SECONDS: Final = 120.0
_TICK_SECONDS: Final = 0.002


@dataclass
class _Taken:
    """Lets a publisher send a certain number of messages and no more."""

    count: int


class NumberedPublisher(Publisher):
    """Numbers its messages from 0 on. Their size has room for that."""

    def __init__(self, peer: RawPeer, queue: str, size: int, durable: bool, window: int, consumer: _Taken) -> None:
        super().__init__(peer, queue, size, durable, window, consumer)
        self._numbered = 0
        self._at = self._chunk.index(MARK) + len(MARK)

    def _next_chunk(self) -> bytearray:
        numbers = b"".join(map(NUMBER.pack, range(self._numbered, self._numbered + CHUNK)))
        for byte in range(NUMBER.size):
            self._chunk[self._at + byte :: self._stride] = numbers[byte :: NUMBER.size]
        self._numbered += CHUNK
        return self._chunk


class CheckedConsumer(Consumer):
    """Takes the messages of a `NumberedPublisher`.

    Args:
        peer: has subscribed.
        except_for: numbers of messages that others have taken.

    Attributes:
        next: the number of the message that comes next.
    """

    def __init__(self, peer: RawPeer, except_for: Container[int] = ()) -> None:
        super().__init__(peer)
        self.next = 0
        self._except_for = except_for
        self._number_at = 0
        self._rest = b""  # of a delivery, after the number

    def _look_at(self, data: bytes, begin: int, end: int) -> None:
        if begin == end:
            return
        stride, following = self._stride, self.next
        if not self._rest:
            self._number_at = data.index(MARK, begin, end) + len(MARK) - begin
            self._rest = data[begin + self._number_at + NUMBER.size : begin + stride]
        starts, rest, number_of = data.startswith, self._rest, NUMBER.unpack_from
        for at in range(begin + self._number_at, end, stride):
            (number,) = number_of(data, at)
            while following in self._except_for:
                following += 1
            assert number == following, f"message {number} comes instead of {following}"
            assert starts(rest, at + NUMBER.size), f"message {number} is not what it was"
            following += 1
        self.next = following


def fill(
    port: int, queue: str, count: int, size: int, *, durable: bool = True, meanwhile: Callable[[], None] | None = None
) -> float:
    """Publish messages and wait until all are completed. Returns the seconds.

    Args:
        port, queue: of the queue.
        count: how many, a multiple of 100.
        size: bytes of a body.
        durable: whether they are persistent.
        meanwhile: called again and again.
    """
    assert count % CHUNK == 0
    with RawPeer(port) as peer:
        wanted, window = peer.sent + count, max(2 * CHUNK, min(WINDOW, _WINDOW_BYTES // size))
        publisher = NumberedPublisher(peer, queue, size, durable, window, _Taken(count - BACKLOG * window))
        took = _drive(publisher, lambda: publisher.completed, wanted, meanwhile)
        peer.socket.setblocking(True)
        return took


def drain(port: int, queue: str, count: int, *, is_checked: bool = False, except_for: Container[int] = ()) -> float:
    """Take and accept `count` messages, and wait until the queue is empty. Returns the seconds until the last came.

    Args:
        port, queue: of the queue.
        count: how many.
        is_checked: whether they must be the messages of one `fill`.
        except_for: numbers of those that others have taken.
    """
    with RawPeer(port) as peer:
        peer.subscribe(queue, messages=WINDOW)
        consumer = CheckedConsumer(peer, except_for) if is_checked else Consumer(peer)
        took = _drive(consumer, lambda: consumer.count, count)
        consumer.write()
        with RawPeer(port) as other:
            end = time.monotonic() + _PATIENCE_SECONDS
            while other.message_count(queue):
                assert time.monotonic() < end, "accepted messages stay on the queue"
                time.sleep(0.05)
        return took


def _drive(link: Link, done: Callable[[], int], wanted: int, meanwhile: Callable[[], None] | None = None) -> float:
    """Read and write until so much is done. AssertionError if nothing happens for two minutes."""
    selector = selectors.DefaultSelector()
    link.socket.setblocking(False)
    selector.register(link.socket, selectors.EVENT_READ, link)
    began = changed = time.monotonic()
    last = done()
    while last < wanted:
        link.write()
        if selector.select(_TICK_SECONDS):
            link.read()
        if meanwhile is not None:
            meanwhile()
        now, at = time.monotonic(), done()
        if at != last:
            last, changed = at, now
        assert now - changed < _PATIENCE_SECONDS, f"{wanted - at} of the messages do not come"
    return time.monotonic() - began


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever held (VmHWM), shared pages of files included."""
    return memory_of(pid, "VmHWM")


def files_below(directory: Path) -> tuple[int, int]:
    """How many regular files are there, and the bytes they take on the disk."""
    sizes = []
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # it was just removed
            if path.is_file():
                sizes.append(path.stat().st_blocks * 512)
    return len(sizes), sum(sizes)
