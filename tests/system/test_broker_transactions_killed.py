"""Messages move between durable queues in transactions of both kinds while the broker is killed; none is lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Final

from qstore.formats.amqp_0_10.codes import XaStatus
from qstore.formats.amqp_0_10.structs import BranchId
from qstore.formats.broker_records.xids import decode_xid
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


# ---- local and distributed transactions ----
# Each client is its own transaction manager: it remembers what it has decided to commit, and ends what is in doubt when
# the broker is back. Then every message is there once, and where it has to be.


_BRANCH_KILLS: Final = 5
_TOKENS: Final = 200
_QUEUES: Final = ("one", "two", "three", "four")


class BranchMover(Committer):
    """Takes messages from a queue and puts them on another, in one transaction after the other.

    Attributes:
        number: part of its xids.
        place: token -> the queue that it was last known to be on.
        unsure: the tokens of the present transaction, and where it puts them; if its outcome is not known.
        decided: the xids of the branches that it has decided to commit.
        branches: how many of its transactions were distributed.
    """

    def __init__(self, port: int, number: int, source: random.Random, *, distributed: bool) -> None:
        super().__init__(port)
        self.number = number
        self.place: dict[int, str] = {}
        self.unsure: dict[int, str] = {}
        self.is_decided = False
        self.decided: set[BranchId] = set()
        self.branches = 0
        self._distributed = distributed
        self._random = random.Random(source.randrange(1 << 30))
        self.start()

    def work(self, peer: RawPeer) -> None:
        peer.call("dtx.select" if self._distributed else "tx.select")
        for queue in _QUEUES:
            peer.subscribe(queue, queue, messages=5)
        while True:
            taken = peer.take(self._random.randint(1, 4))
            (self._branch if self._distributed else self._local)(peer, taken)

    def _move(self, peer: RawPeer, taken: Sequence[Delivery]) -> dict[int, str]:
        targets: dict[int, str] = {}
        for delivery in taken:
            token = int(delivery.body)
            targets[token] = self._random.choice(_QUEUES)
            peer.publish(targets[token], delivery.body)
        peer.accept(taken)
        return targets

    def _local(self, peer: RawPeer, taken: Sequence[Delivery]) -> None:
        self.unsure = self._move(peer, taken)
        peer.call("tx.commit")
        self._committed()

    def _branch(self, peer: RawPeer, taken: Sequence[Delivery]) -> None:
        xid = BranchId(1, b"%d" % self.number, b"%d" % self.commits)
        peer.call("dtx.start", xid=xid)
        targets = self._move(peer, taken)
        peer.call("dtx.end", xid=xid)
        if not self._random.randrange(8):
            assert peer.call("dtx.rollback", xid=xid)["status"] == XaStatus.XA_OK
            return
        if not self._random.randrange(4):
            self.unsure = targets
            assert peer.call("dtx.commit", xid=xid, one_phase=True)["status"] == XaStatus.XA_OK
        else:
            assert peer.call("dtx.prepare", xid=xid)["status"] == XaStatus.XA_OK
            if not self._random.randrange(8):
                assert peer.call("dtx.rollback", xid=xid)["status"] == XaStatus.XA_OK
                return
            self.unsure, self.is_decided = targets, True
            self.decided.add(xid)
            assert peer.call("dtx.commit", xid=xid)["status"] == XaStatus.XA_OK
        self.branches += 1
        self._committed()

    def _committed(self) -> None:
        self.place.update(self.unsure)
        self.unsure, self.is_decided = {}, False
        self.commits += 1


def end_what_is_in_doubt(broker: RunningBroker, decided: set[BranchId]) -> None:
    """As the clients have decided."""
    with RawPeer(broker.port) as peer:
        for each in map(decode_xid, peer.call("dtx.recover")["in_doubt"].values):
            xid = BranchId(each.format, each.global_id, each.branch_id)
            command = "dtx.commit" if xid in decided else "dtx.rollback"
            assert peer.call(command, xid=xid)["status"] == XaStatus.XA_OK
        assert not peer.call("dtx.recover")["in_doubt"].values
        peer.end()


def check(found: dict[int, str], movers: Sequence[BranchMover]) -> None:
    """What only one client has moved is where it has put it, and so is what is in a branch that it had decided."""
    for mover in movers:
        others = {token for each in movers if each is not mover for token in (*each.place, *each.unsure)}
        for token, queue in mover.place.items():
            if token not in others and token not in mover.unsure:
                assert found[token] == queue, f"the move of {token} was committed, and is undone"
        mine = {token: queue for token, queue in mover.unsure.items() if token not in others}
        if mover.is_decided:
            assert {token: found[token] for token in mine} == mine, "a branch that was decided is undone"


def test_every_message_is_there_once_whatever_dies(make_broker: BrokerMaker) -> None:
    broker, source = make_broker().start(), random.Random(11)
    set_out(broker, _QUEUES, _TOKENS)
    branches = number = 0
    for _ in range(_BRANCH_KILLS):
        movers = []
        for distributed in (True, True, True, False):
            number += 1
            movers.append(BranchMover(broker.port, number, source, distributed=distributed))
        wait_for_commits(source.randint(20, 60), movers)
        time.sleep(source.random() * 0.02)
        broker.kill()
        for mover in movers:
            mover.join(PATIENCE_SECONDS)
            if mover.error is not None:
                raise AssertionError(f"a client failed\n{broker.log_text()}") from mover.error
            branches += mover.branches
        broker.start()
        end_what_is_in_doubt(broker, set().union(*(mover.decided for mover in movers)))
        found = look_at(broker, _QUEUES)
        assert sorted(found) == list(range(_TOKENS))
        check(found, movers)
    assert branches > 5 * _BRANCH_KILLS
    assert broker.stop() == 0
