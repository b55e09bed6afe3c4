"""Clients move messages between queues in local and distributed transactions while the broker is killed.

Each client is its own transaction manager: it remembers what it has decided to commit, and ends what is in doubt when
the broker is back. Then every message is there once, and where it has to be.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final

from qstore.formats.amqp_0_10.codes import XaStatus
from qstore.formats.amqp_0_10.structs import BranchId
from qstore.formats.broker_records.xids import decode_xid
from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import Delivery, RawPeer
from tests.support.running_broker import BrokerMaker, RunningBroker
from tests.system.test_broker_transactions_killed import Committer, look_at, set_out, wait_for_commits

_KILLS: Final = 5
_TOKENS: Final = 200
_QUEUES: Final = ("one", "two", "three", "four")


class Mover(Committer):
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


def check(found: dict[int, str], movers: Sequence[Mover]) -> None:
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
    for _ in range(_KILLS):
        movers = []
        for distributed in (True, True, True, False):
            number += 1
            movers.append(Mover(broker.port, number, source, distributed=distributed))
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
    assert branches > 5 * _KILLS
    assert broker.stop() == 0
