"""Ledger of what clients of a broker saw, over all its lives, and what that allows it to deliver.

A message is known by its place: queue, publisher, serial number; a publisher's serials go up. A publisher knows which
of its messages were completed, a consumer which it got, which of them it accepted, and which accepts were completed.
The promises that `check_life` holds a life of the broker against:

    what was completed is delivered, unless an accept of it was sent
    what an accept was completed for never comes back
    what comes a second time is marked as redelivered; after a clean stop, and when new, only that is marked
    the messages of a publisher come in order, and a queue's only consumer sees no gap in what was completed
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_HEAD: Final = struct.Struct(">III")


class Place(NamedTuple):
    """A message in a queue."""

    queue: str
    publisher: int
    serial: int


def body_of(publisher: int, serial: int) -> bytes:
    """The content of a message, from 12 to about 1,000 bytes."""
    length = serial * 7919 % 600 if serial % 37 else 1000
    return _HEAD.pack(publisher, serial, length) + bytes([(serial + publisher) & 0xFF]) * length


def identity_of(body: bytes) -> tuple[int, int]:
    """Publisher and serial of a message whose content is whole."""
    publisher, serial, _ = _HEAD.unpack_from(body)
    assert body == body_of(publisher, serial), f"message {serial} of publisher {publisher} has other content"
    return publisher, serial


class Arrival(NamedTuple):
    """A message that a consumer got."""

    place: Place
    redelivered: bool


@dataclass(slots=True)
class ConsumerLog:
    """What one consumer got in one life of the broker; `alone` if no other had its queue."""

    queue: str
    alone: bool
    arrivals: list[Arrival] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Before:
    """What was so when a life of the broker began.

    Attributes:
        sent, delivered, accepting, accepted: as in the ledger.
        clean: the life before it ended by SIGTERM.
        sessions_end: in this life a session may end by an error: then what it had not accepted goes, marked, to the
            queue's other consumer, be it that nobody had read it.
    """

    sent: frozenset[Place]
    delivered: frozenset[Place]
    accepting: frozenset[Place]
    accepted: frozenset[Place]
    clean: bool
    sessions_end: bool = False


class Ledger:
    """Everything that clients saw. Each set is added to by one thread at a time for each place.

    Attributes:
        serials: queue and publisher -> the serials that were sent there, going up.
        completed: publishes that the broker completed.
        delivered: what consumers got.
        accepting: accepts that were sent, completed or not.
        accepted: accepts that the broker completed.
        gone: what was seen to be missing, and may not come back.
    """

    def __init__(self) -> None:
        self.serials: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.sent: set[Place] = set()
        self.completed: set[Place] = set()
        self.delivered: set[Place] = set()
        self.accepting: set[Place] = set()
        self.accepted: set[Place] = set()
        self.gone: set[Place] = set()

    def send(self, queues: Iterable[str], publisher: int, serial: int) -> list[Place]:
        """A message is sent now."""
        places = [Place(queue, publisher, serial) for queue in queues]
        for place in places:
            self.serials[place.queue, publisher].append(serial)
        self.sent.update(places)
        return places

    def before(self, *, clean: bool) -> Before:
        """What is so now that a life begins."""
        return Before(
            sent=frozenset(self.sent),
            delivered=frozenset(self.delivered),
            accepting=frozenset(self.accepting),
            accepted=frozenset(self.accepted),
            clean=clean,
        )

    def check_life(self, before: Before, logs: Iterable[ConsumerLog]) -> None:
        """Hold what consumers got in one life of the broker against all that was seen. Raises: AssertionError."""
        seen: set[Place] = set()
        for log in logs:
            for arrival in log.arrivals:
                was_given_back = _may_be_given_back(before, log, arrival)
                self._check_arrival(before, arrival, log.queue, was_given_back=was_given_back)
                if not was_given_back:
                    assert arrival.place not in seen, f"{arrival.place} came twice in one life"
                    seen.add(arrival.place)
            self._check_order(before, log)

    def _check_arrival(self, before: Before, arrival: Arrival, queue: str, *, was_given_back: bool) -> None:
        place, redelivered = arrival
        assert place.queue == queue
        assert place in self.sent, f"{place} was never sent there"
        assert place not in before.accepted, f"{place} came back after its accept was completed"
        assert place not in self.gone, f"{place} was missing before, and came back"
        if place in before.delivered:
            assert redelivered, f"{place} came again without a mark"
        elif (before.clean or place not in before.sent) and not was_given_back:
            assert not redelivered, f"{place} is marked, and was never delivered"

    def _check_order(self, before: Before, log: ConsumerLog) -> None:
        by_publisher: dict[int, list[int]] = defaultdict(list)
        for place, _ in (each for each in log.arrivals if not _may_be_given_back(before, log, each)):
            serials = by_publisher[place.publisher]
            assert not serials or serials[-1] < place.serial, f"{place} came after {serials[-1]}"
            serials.append(place.serial)
        if not log.alone:
            return
        for publisher, serials in by_publisher.items():
            sent = self.serials[log.queue, publisher]
            for serial in set(sent[: bisect_left(sent, serials[-1])]).difference(serials):
                place = Place(log.queue, publisher, serial)
                must = place in self.completed and place not in before.accepting
                assert not must, f"{place} is lost, or was overtaken"
                self.gone.add(place)

    def outstanding(self) -> set[Place]:
        """What the broker must have: completed, and never accepted."""
        return self.completed - self.accepting


def _may_be_given_back(before: Before, log: ConsumerLog, arrival: Arrival) -> bool:
    """Whether the session of a queue's other consumer may have had the message in this life, and have ended."""
    return before.sessions_end and not log.alone and arrival.redelivered
