"""Publishers and consumers in threads, each with a connection of its own, that go on until they are told to stop or
their broker is gone, and write down what they saw in a ledger."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from tests.support.raw_peer import UNLIMITED, ConnectionClosedError, Delivery, PeerGoneError, RawPeer
from tests.system.broker_ledger import Arrival, ConsumerLog, Ledger, Place, body_of, identity_of

Route = tuple[str, str]
"""An exchange and a routing key."""

_GONE: Final = (PeerGoneError, ConnectionClosedError)
_WINDOW: Final = 400
_BATCH: Final = 40
_STUCK: Final = 50
"""One in this many deliveries is not accepted in this life of the broker."""


class Actor(threading.Thread):
    """A client in a thread.

    Attributes:
        error: what it failed with; the end of the broker is no failure.
    """

    def __init__(self, port: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self.stopping = threading.Event()
        self.quiet = threading.Event()
        self._port = port
        self._random = random.Random(seed)
        self.start()

    def run(self) -> None:
        try:
            with RawPeer(self._port) as peer:
                try:
                    self.work(peer)
                except _GONE:
                    while True:  # what came before the end may still be read
                        peer.process()
        except _GONE:
            pass
        except BaseException as error:
            self.error = error

    def work(self, peer: RawPeer) -> None:
        """Until `stopping`, or the broker is gone."""
        raise NotImplementedError


class Publisher(Actor):
    """Sends messages by routes chosen at random. `serials` gives its next serial, over all lives of the broker."""

    def __init__(
        self,
        port: int,
        seed: int,
        ledger: Ledger,
        number: int,
        serials: list[int],
        routes: Mapping[Route, Sequence[str]],
    ) -> None:
        self._ledger = ledger
        self._number = number
        self._serials = serials
        self._routes = list(routes.items())
        self._waiting: deque[tuple[int, list[Place]]] = deque()
        super().__init__(port, seed)

    def work(self, peer: RawPeer) -> None:
        while not self.stopping.is_set():
            if len(self._waiting) + _BATCH <= _WINDOW:
                self._send(peer, self._random.randint(1, _BATCH))
            peer.process(0 if len(self._waiting) + _BATCH <= _WINDOW else 0.05)
            self._note(peer)
        peer.sync()
        self._note(peer)

    def _send(self, peer: RawPeer, count: int) -> None:
        frames = []
        for offset in range(count):
            (exchange, key), queues = self._random.choice(self._routes)
            serial = self._serials[self._number]
            self._serials[self._number] += 1
            self._waiting.append((peer.sent + offset, self._ledger.send(queues, self._number, serial)))
            body = body_of(self._number, serial)
            frames.append(peer.transfer_frames(key, body, exchange=exchange, sync=offset == count - 1))
        peer.publish_all(frames)

    def _note(self, peer: RawPeer) -> None:
        """What is completed now, in order; what follows one that waits for a disk is noted later."""
        while self._waiting and self._waiting[0][0] in peer.completed:
            self._ledger.completed.update(self._waiting.popleft()[1])


class Consumer(Actor):
    """Takes from one queue, and accepts a bit later.

    While `quiet` is set it reads, and accepts nothing. With `everything` it leaves no message unaccepted.
    """

    def __init__(
        self, port: int, seed: int, ledger: Ledger, log: ConsumerLog, *, everything: bool = False, credit: int = 500
    ) -> None:
        self._ledger = ledger
        self._log = log
        self._everything = everything
        self._credit = credit
        self._taken: list[tuple[Delivery, Place]] = []
        self._waiting: deque[tuple[int, list[Place]]] = deque()
        self.is_quiet = threading.Event()
        super().__init__(port, seed)

    def work(self, peer: RawPeer) -> None:
        peer.on_delivery = self._take
        peer.subscribe(self._log.queue, messages=self._credit, octets=UNLIMITED)
        wanted = 1
        while not self.stopping.is_set():
            peer.process(0.02)
            self._note(peer)
            if self.quiet.is_set():
                peer.complete()
                if not self.is_quiet.is_set():
                    peer.message_count(self._log.queue)  # the answer tells that the broker has had every accept
                    self.is_quiet.set()
            elif len(self._taken) >= wanted:
                self._accept(peer)
                wanted = self._random.choice((1, 1, 20, 100))
            elif self._taken:
                wanted = 1
        self._accept(peer)
        peer.sync()
        while self._everything and self._taken:  # what was on its way
            self._accept(peer)
            peer.sync()
        self._note(peer)

    def _take(self, delivery: Delivery) -> None:
        place = Place(self._log.queue, *identity_of(delivery.body))
        self._log.arrivals.append(Arrival(place, delivery.redelivered))
        self._ledger.delivered.add(place)
        if self._everything or self._random.randrange(_STUCK):
            self._taken.append((delivery, place))

    def _accept(self, peer: RawPeer) -> None:
        if not self._taken:
            return
        places = [place for _, place in self._taken]
        self._ledger.accepting.update(places)
        self._waiting.append((peer.accept((delivery for delivery, _ in self._taken), sync=True), places))
        self._taken.clear()

    def _note(self, peer: RawPeer) -> None:
        while self._waiting and self._waiting[0][0] in peer.completed:
            self._ledger.accepted.update(self._waiting.popleft()[1])
