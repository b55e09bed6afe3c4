"""A broker with distributed transactions, on a simulated disk: it is killed, and so are those that use it.

A `BranchLife` is one process of the broker. A client looks at all queues before and after the transaction manager has
ended what is in doubt, and both is held against the ledger (`branch_model`). Then applications work (`branch_clients`).
"""

from __future__ import annotations

import errno
import random
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from qstore.formats.amqp_0_10.codes import ErrorCode
from tests.faults.branch_clients import Application, Worker, read_token, resolve
from tests.faults.branch_model import Ledger, Place
from tests.faults.broker_clients import OneSession, Watcher
from tests.faults.broker_process import BrokerProcess
from tests.faults.simulated_disk import Call, Killed, SimulatedDisk
from tests.faults.store_model import require

QUEUES: Final = ("a", "b", "c")
TOKENS: Final = 10
_PATIENCE: Final = 20  # rounds of recovery
_TIMEOUT: Final = 61  # seconds, more than that of a branch


class BranchLife:
    """One process, and who uses it.

    Args:
        disk: where its store is.
        ledger: what was expected of the process before; None for the first one.
        rng: decides everything.
        must_be_clean: that process was stopped, not killed.
        pages: as of `BrokerProcess`.

    Raises:
        BrokenPromiseError: something is not as it may be.
        Killed: while it started.
    """

    def __init__(
        self,
        disk: SimulatedDisk,
        ledger: Ledger | None,
        rng: random.Random,
        *,
        must_be_clean: bool = False,
        pages: bool = False,
    ) -> None:
        self.disk, self._rng = disk, rng
        self._now, self._names = 1_700_000_000.0, 0
        self.process = BrokerProcess(
            disk,
            rng,
            lambda: self._now,
            lambda: None,
            must_be_clean=must_be_clean,
            may_be_in_doubt=True,
            pages=pages,
        )
        try:
            if ledger is None:
                ledger = self._furnish()
            self.ledger = ledger
            self.check()
        except BaseException:
            self.process.discard()
            raise
        self._application: Application | None = None

    def _name(self) -> int:
        self._names += 1
        return self._names

    def _join(self, ledger: Ledger) -> Worker:
        worker = Worker(f"checker-{self._name()}", (), ledger)
        self.process.connect(OneSession(worker))
        self.process.settle()
        return worker

    def _furnish(self) -> Ledger:
        """Make queues, with tokens."""
        ledger = Ledger({token: Place(QUEUES[token % 2], 0) for token in range(TOKENS)})
        worker = self._join(ledger)
        for queue in QUEUES:
            worker.send("queue.declare", queue=queue, durable=True)
        for token, place in ledger.places.items():
            worker.publish(token, place)
        self.process.settle()
        return ledger

    # ---- what is there ----

    def check(self) -> None:
        """Hold what is there against the ledger; then end what is in doubt, and do it again."""
        manager = self._join(self.ledger)
        numbers = self._in_doubt(manager)
        self.ledger.check_before(self._seen(), numbers)
        for _ in range(_PATIENCE):
            if not numbers:
                break
            resolve(manager, self.ledger, numbers)
            self.process.settle()
            numbers = self._in_doubt(manager)
        require(not numbers, f"still in doubt: {numbers}")
        require(not manager.has_failed, "the manager's session has failed")
        self.ledger.check_after(self._seen())
        for wire in list(self.process.wires):
            self.process.cut(wire)

    def _in_doubt(self, manager: Worker) -> list[int]:
        found: list[int] = []
        manager.recover(found.extend)
        self.process.settle()
        return found

    def _seen(self) -> Mapping[int, list[Place]]:
        watcher = Watcher(list(QUEUES))
        wire = self.process.connect(OneSession(watcher))
        self.process.settle()
        self.process.cut(wire)
        seen: dict[int, list[Place]] = {}
        for queue, messages in watcher.seen.items():
            for message in messages:
                token, place = read_token(queue, message.body)
                seen.setdefault(token, []).append(place)
        return seen

    @property
    def has_failed(self) -> bool:
        """Whether the broker has ended a session."""
        return self._application is not None and self._application.has_failed

    # ---- work ----

    def work(self, steps: int) -> None:
        """Some steps, by chance. With a disk that may fail, they end when a client has noticed: only a start helps."""
        rng, process = self._rng, self.process
        may_fail = ErrorCode.INTERNAL_ERROR in self.ledger.expected
        for _ in range(steps):
            if self._application is None:
                self._application = Application(process, self.ledger, list(QUEUES), rng, self._name())
            if may_fail and self._application.has_failed:
                return
            chance = rng.random()
            if not may_fail and (chance < 0.004 or self._application.has_failed):
                self._crash_application(self._application)
            elif chance < 0.25:
                self._application.act()
            elif chance < 0.55:
                rng.choice(self._application.wires).carry(rng.choice((None, None, rng.randint(1, 300))))
            elif chance < 0.8:
                process.tick()
            else:
                process.collect()
            process.check()

    def _crash_application(self, application: Application) -> None:
        """It is gone; after a while branches that it had not ended are rolled back, and the manager is back."""
        self._application = None
        application.crash()
        self.process.settle()
        self._now += _TIMEOUT
        self.process.ring()
        self.process.settle()
        self.check()


@dataclass(slots=True)
class BranchMatrix:
    """Kills brokers at calls that change the disk, and looks at what is left.

    Attributes:
        share: of the calls, how many are kill points.
        pages: whether the brokers let messages go out of memory (`BrokerProcess`).
        kill_points: how many brokers were killed.
        in_doubt: how many branches were found in doubt.
        ended: how many branches were ended by an application that went on.
        failure: what was found after a kill.
    """

    share: float = 1.0
    pages: bool = False
    kill_points: int = 0
    in_doubt: int = 0
    ended: int = 0
    failure: BaseException | None = None
    _life: BranchLife | None = field(default=None, repr=False)

    def run(self, seed: int, lives: int = 2, steps: int = 600) -> None:
        """One broker, from the making of its store on. Raises BrokenPromiseError."""
        rng = random.Random(seed)
        disk, ledger = SimulatedDisk(seed), None
        is_clean = False
        for _ in range(lives):
            life = BranchLife(disk, ledger, rng, must_be_clean=is_clean, pages=self.pages)
            self._life, ledger = life, life.ledger
            disk.watch = partial(self._visit, rng)
            try:
                for _ in range(0, steps, 20):
                    life.work(20)
                    self._raise()
                is_clean = rng.random() < 0.3
                if is_clean:
                    life.process.stop()
            finally:
                disk.watch = None
                life.process.discard()
            self._raise()
            disk.crash(power_loss=rng.random() < 0.5)
        BranchLife(disk, ledger, rng, must_be_clean=is_clean, pages=self.pages).process.discard()
        assert ledger is not None
        self.in_doubt += ledger.in_doubt
        self.ended += sum(ledger.ended.values())

    def run_failing(self, seed: int, steps: int = 400) -> bool:
        """A broker with a disk that fails in one call; the next one has to find all that was promised.

        Returns:
            Whether a client has noticed.
        """
        rng = random.Random(seed)
        disk = SimulatedDisk(seed)
        life = BranchLife(disk, None, rng, pages=self.pages)
        ledger = life.ledger
        try:
            life.work(steps // 4)
            ledger.expected.add(ErrorCode.INTERNAL_ERROR)
            disk.fail_at = {disk.calls + rng.randrange(60): rng.choice((errno.EIO, errno.ENOSPC))}
            life.work(steps)
            has_noticed = life.has_failed
        finally:
            life.process.discard()
        disk.fail_at = {}
        ledger.expected.remove(ErrorCode.INTERNAL_ERROR)
        disk.crash(power_loss=rng.random() < 0.5)
        BranchLife(disk, ledger, rng, pages=self.pages).process.discard()
        self.in_doubt += ledger.in_doubt
        return has_noticed

    def _raise(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _visit(self, rng: random.Random, call: Call) -> None:
        chance = random.Random(rng.getrandbits(64))
        if chance.random() >= self.share or self.failure is not None:
            return
        assert self._life is not None
        power_loss = chance.random() < 0.7
        self.kill_points += 1
        disk = call.killed(chance.getrandbits(32), power_loss=power_loss)
        ledger = deepcopy(self._life.ledger)
        try:
            self._survive(disk, ledger, chance)
            self.in_doubt += ledger.in_doubt - self._life.ledger.in_doubt
        except BaseException as error:  # or the broker that goes on would take it for its disk's
            error.add_note(f"killed in call {call.number}, {call.name} {call.path}, power loss: {power_loss}")
            self.failure = error

    def _survive(self, disk: SimulatedDisk, ledger: Ledger, rng: random.Random) -> None:
        if rng.random() < 0.3:
            disk.kill_at = rng.randrange(60)  # while it starts, or while the manager ends what is in doubt
            try:
                BranchLife(disk, ledger, rng, pages=self.pages).process.discard()
            except Killed:
                self.kill_points += 1
            disk.crash(power_loss=rng.random() < 0.5)
        BranchLife(disk, ledger, rng, pages=self.pages).process.discard()
