"""Messages move between two durable queues in local transactions while the broker is killed: each is in one of them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Final

from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import ConnectionClosedError, Delivery, PeerGoneError, RawPeer
from tests.support.running_broker import BrokerMaker, RunningBroker

_KILLS: Final = 8
TOKENS: Final = 400
SIDES: Final = ("left", "right")


class Committer(threading.Thread):
    """A client that commits transactions until its connection is lost.

    Attributes:
        commits: how many were completed.
        error: what it failed with.
    """

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.commits = 0
        self.error: BaseException | None = None
        self._port = port

    def run(self) -> None:
        try:
            with RawPeer(self._port) as peer:
                self.work(peer)
        except (PeerGoneError, ConnectionClosedError):
            pass
        except BaseException as error:
            self.error = error

    def work(self, peer: RawPeer) -> None:
        """Commit one transaction after the other."""
        raise NotImplementedError


class Mover(Committer):
    """Takes some messages from one queue, sends them to the other, accepts them, and commits or rolls back.

    Attributes:
        place: token -> the queue that it was last known to be in.
        unsure: the tokens of a commit that was not completed.
    """

    def __init__(self, port: int, source: str, target: str, seed: int) -> None:
        super().__init__(port)
        self.place: dict[int, str] = {}
        self.unsure: set[int] = set()
        self._source, self._target = source, target
        self._random = random.Random(seed)
        self.start()

    def work(self, peer: RawPeer) -> None:
        peer.call("tx.select")
        peer.subscribe(self._source, messages=20)
        while True:
            self._move(peer, peer.take(self._random.randint(1, 12)))

    def _move(self, peer: RawPeer, taken: Sequence[Delivery]) -> None:
        tokens = [int(delivery.body) for delivery in taken]
        for delivery in taken:
            peer.publish(self._target, delivery.body)
        peer.accept(taken)
        if not self._random.randrange(8):
            peer.call("tx.rollback")
            peer.release(taken, set_redelivered=True)
            return
        self.unsure = set(tokens)
        peer.call("tx.commit")
        self.unsure = set()
        self.commits += 1
        self.place.update(dict.fromkeys(tokens, self._target))


def set_out(broker: RunningBroker, queues: Sequence[str] = SIDES, count: int = TOKENS) -> dict[int, str]:
    """Make the queues, with messages in all of them; where each is."""
    place = {token: queues[token % len(queues)] for token in range(count)}
    with RawPeer(broker.port) as peer:
        for queue in queues:
            peer.declare(queue)
        for token, queue in place.items():
            peer.publish(queue, b"%d" % token)
        peer.sync()
        peer.end()
    return place


def look_at(broker: RunningBroker, queues: Sequence[str] = SIDES) -> dict[int, str]:
    """Where each message is, found by browsing."""
    place: dict[int, str] = {}
    with RawPeer(broker.port) as peer:
        for queue in queues:
            count = peer.message_count(queue)
            peer.subscribe(queue, queue, acquire_mode=1, accept_mode=1)
            for delivery in peer.take(count):
                token = int(delivery.body)
                assert token not in place, f"{token} is in {place[token]} and in {queue}"
                place[token] = queue
        assert peer.take_all() == []
        peer.end()
    return place


def test_a_transaction_is_done_in_both_queues_or_in_none(make_broker: BrokerMaker) -> None:
    broker, source = make_broker().start(), random.Random(7)
    place = set_out(broker)
    commits = 0
    for _ in range(_KILLS):
        movers = [Mover(broker.port, *pair, source.randrange(1000)) for pair in (SIDES, SIDES[::-1])]
        wait_for_commits(source.randint(6, 40), movers)
        time.sleep(source.random() * 0.02)
        broker.kill()
        for mover in movers:
            mover.join(PATIENCE_SECONDS)
            if mover.error is not None:
                raise AssertionError(f"a client failed\n{broker.log_text()}") from mover.error
            commits += mover.commits
        broker.start()
        found = look_at(broker)
        assert sorted(found) == list(range(TOKENS))
        check_moves(place, found, movers)
        place = found
    assert commits > 5 * _KILLS


def wait_for_commits(count: int, movers: Sequence[Committer]) -> None:
    """Until they have together committed so often, or one has ended."""
    end = time.monotonic() + PATIENCE_SECONDS
    while sum(mover.commits for mover in movers) < count and all(mover.is_alive() for mover in movers):
        assert time.monotonic() < end, "nothing is committed"
        time.sleep(0.002)


def check_moves(before: dict[int, str], found: dict[int, str], movers: Sequence[Mover]) -> None:
    """What is known of a token's place holds, and an unsure commit is done for all of its tokens or for none."""
    moved = {token for mover in movers for token in mover.place}
    unsure = {token for mover in movers for token in mover.unsure}
    for token, queue in before.items():
        if token not in moved | unsure:
            assert found[token] == queue, f"{token} was moved by nobody"
    for mover, other in (movers, movers[::-1]):
        for token, queue in mover.place.items():
            if token not in other.place.keys() | unsure:
                assert found[token] == queue, f"the move of {token} was committed, and is undone"
        once = {token for token in mover.unsure if token not in other.place.keys() | other.unsure}
        assert len({found[token] for token in once}) < 2, f"half a transaction: {once}"
