"""The clients of a simulated broker that has to do with distributed transactions: an application and its manager.

The application has two sessions, which move tokens from queue to queue, and a third one for its transaction manager. It
crashes now and then, and loses everything but the manager's log (`branch_model`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Final

from qstore.formats.amqp_0_10.codes import XaStatus
from qstore.formats.amqp_0_10.commands import decode_command, decode_result, encode_command
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, BranchId, encode_struct
from qstore.formats.broker_records.xids import decode_xid
from tests.faults.branch_model import BranchModel, Ledger, Place, Stage
from tests.faults.broker_clients import OneSession, ranges_of, subscribe
from tests.faults.broker_process import BrokerProcess, Wire
from tests.faults.store_model import require
from tests.support.compiled import ClientSession

_CREDIT: Final = 4
_MAX_BRANCHES: Final = 4  # under way at a time

Done = Callable[[dict[str, Any]], None]


def xid_of(number: int) -> BranchId:
    """The id of a branch."""
    return BranchId(7, b"%d" % number, b"branch")


def read_token(queue: str, body: bytes) -> tuple[int, Place]:
    """A message: a token, and where it is."""
    token, branch = map(int, body.split(b":"))
    return token, Place(queue, branch)


class Worker(ClientSession):
    """One session.

    Args:
        name: its name.
        queues: those that it takes tokens from.

    Attributes:
        is_ready: whether it is attached; `has_failed`: whether the broker has ended it.
        held: number of a transfer -> the token that it brought, and from where.
    """

    def __init__(self, name: str, queues: Iterable[str], ledger: Ledger) -> None:
        super().__init__(name.encode(), 0, None)
        self._queues, self._ledger = list(queues), ledger
        self.is_ready = self.has_failed = False
        self.held: dict[int, tuple[int, Place]] = {}
        self._results: dict[int, Done] = {}

    def on_attached(self) -> None:
        self.is_ready = True
        self.send("dtx.select")
        for queue in self._queues:
            subscribe(self, queue, acquire_mode=0, credit=_CREDIT)

    def on_command(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        number = self.begin_command()
        command, _, values = decode_command(payload)
        if command.name == "message.transfer":
            token, place = read_token(values["destination"], body or b"")
            self._ledger.took(token, place)
            self.held[number] = token, place
        elif command.name == "execution.result":
            self._results.pop(values["command_id"])(decode_result(values["value"])[1])
        elif command.name == "execution.exception":
            code = values["error_code"]
            require(code in self._ledger.expected, f"{code}: {values['description']}")
            self.has_failed = True

    def on_detached(self, code: int) -> None:
        self.is_ready, self.has_failed = False, True

    def ask(self, command: str, branch: BranchModel, done: Done, **flags: bool) -> None:
        """Send a command of class dtx that has a result."""
        self._results[self.send(f"dtx.{command}", xid=xid_of(branch.number), **flags)] = done

    def recover(self, done: Callable[[list[int]], None]) -> None:
        """Ask for the numbers of the branches that are in doubt."""

        def read(result: dict[str, Any]) -> None:
            xids = [decode_xid(raw) for raw in result["in_doubt"].values]
            done([int(xid.global_id or b"") for xid in xids])

        self._results[self.send("dtx.recover")] = read

    def move(self, branch: BranchModel, number: int, target: str) -> None:
        """Move a token that it holds, in a branch."""
        token, _ = self.held.pop(number)
        branch.targets[token] = target
        self.publish(token, branch.place(token))
        self.send("message.accept", transfers=ranges_of([number]))

    def publish(self, token: int, place: Place) -> None:
        """Send a token."""
        header = encode_struct(DELIVERY_PROPERTIES, {"delivery_mode": 2, "routing_key": place.queue})
        payload = encode_command("message.transfer", destination="", accept_mode=1)
        self.send_payload(payload, header, b"%d:%d" % (token, place.branch))

    def give_back(self) -> None:
        """Release what it holds."""
        if self.held:
            self.send("message.release", transfers=ranges_of(list(self.held)), set_redelivered=True)
            self.held.clear()

    def complete(self) -> None:
        """Tell the broker that what it sent has come: that moves the window."""
        self.complete_received()
        if self.is_ready:
            self.send_completed()


class Application:
    """Two workers and a transaction manager, until they crash.

    Args:
        process: the broker's.
        ledger: what they expect.
        queues: the names of the queues.
        rng: decides everything.
        life: makes the names of the sessions unique.
    """

    def __init__(
        self, process: BrokerProcess, ledger: Ledger, queues: list[str], rng: random.Random, life: int
    ) -> None:
        self._process, self.ledger, self._queues, self._rng = process, ledger, queues, rng
        self._working: BranchModel | None = None
        self._sessions: dict[int, bool] = {}  # index of a worker -> whether it is associated with the branch
        self.workers = [Worker(f"worker-{life}-{number}", queues, ledger) for number in range(2)]
        self.manager = Worker(f"manager-{life}", (), ledger)
        self.wires: list[Wire] = [process.connect(OneSession(each)) for each in (*self.workers, self.manager)]

    @property
    def has_failed(self) -> bool:
        """Whether a session was ended by the broker, for want of room."""
        return any(each.has_failed for each in (*self.workers, self.manager))

    def crash(self) -> None:
        """All its connections are lost. What its manager has not decided is to be rolled back."""
        for wire in self.wires:
            if wire in self._process.wires:
                self._process.cut(wire)
        for branch in self.ledger.branches.values():
            if branch.stage in (Stage.OPEN, Stage.PREPARED):
                branch.stage = Stage.ABORTING

    # ---- work ----

    def act(self) -> None:
        """Do one thing."""
        if not all(each.is_ready for each in (*self.workers, self.manager)):
            return
        for worker in self.workers:
            worker.complete()
        if self._working is None:
            if len(self.ledger.branches) < _MAX_BRANCHES:
                self._start()
        elif not all(self._sessions.values()):
            pass  # a session has not heard that it is associated with the branch
        elif self._rng.random() < 0.6:
            self._move(self._working)
        else:
            self._finish(self._working)
        if self._rng.random() < 0.2:
            self._rng.choice(self.workers).give_back()
        self._decide()

    def _start(self) -> None:
        branch = self._working = self.ledger.begin()
        first, *others = self._rng.sample(range(2), self._rng.choice((1, 1, 2)))
        self._sessions = {first: False}

        def joined(result: dict[str, Any]) -> None:
            _is_ok(result)
            self._sessions[others[0]] = True

        def started(result: dict[str, Any]) -> None:
            _is_ok(result)
            self._sessions[first] = True
            if others:
                self._sessions[others[0]] = False
                self.workers[others[0]].ask("start", branch, joined, join=True)

        self.workers[first].ask("start", branch, started)

    def _move(self, branch: BranchModel) -> None:
        worker = self.workers[self._rng.choice(list(self._sessions))]
        numbers = [number for number, (token, _) in worker.held.items() if token not in branch.targets]
        for number in self._rng.sample(numbers, min(len(numbers), self._rng.randint(1, 3))):
            worker.move(branch, number, self._rng.choice(self._queues))

    def _finish(self, branch: BranchModel) -> None:
        """End the associations; then the manager goes on with the branch."""
        self._working = None
        left = dict(self._sessions)
        has_failed = self._rng.random() < 0.05
        for index in self._sessions:

            def ended(result: dict[str, Any], index: int = index) -> None:
                left.pop(index)
                if not left:
                    self._conclude(branch)

            self.workers[index].ask("end", branch, ended, fail=has_failed)

    def _conclude(self, branch: BranchModel) -> None:
        chance = self._rng.random()
        if chance < 0.15:
            self._roll_back(branch)
        elif chance < 0.35:
            branch.stage = Stage.ONE_PHASE
            self.manager.ask("commit", branch, lambda result: self._ended(branch, result), one_phase=True)
        else:
            self.manager.ask("prepare", branch, lambda result: self._prepared(branch, result))

    def _prepared(self, branch: BranchModel, result: dict[str, Any]) -> None:
        if result["status"] == XaStatus.XA_OK:
            branch.stage = Stage.PREPARED
        else:
            self._roll_back(branch)

    def _decide(self) -> None:
        """The manager decides what is prepared, now or later."""
        for branch in [each for each in self.ledger.branches.values() if each.stage is Stage.PREPARED]:
            if self._rng.random() < 0.3:
                if self._rng.random() < 0.75:
                    self._commit(branch)
                else:
                    self._roll_back(branch)

    def _commit(self, branch: BranchModel) -> None:
        branch.stage = Stage.COMMITTING
        self.manager.ask("commit", branch, lambda result: self._ended(branch, result))

    def _roll_back(self, branch: BranchModel) -> None:
        branch.stage = Stage.ABORTING
        self.manager.ask("rollback", branch, lambda result: self._ended(branch, result))

    def _ended(self, branch: BranchModel, result: dict[str, Any]) -> None:
        is_ok = result["status"] == XaStatus.XA_OK
        require(is_ok or branch.stage is Stage.ONE_PHASE, f"branch {branch.number}: {result}, {branch.stage}")
        if branch.number in self.ledger.branches:  # otherwise a token that it has put somewhere was seen
            self.ledger.end(branch, has_effect=is_ok and branch.stage is not Stage.ABORTING)


def resolve(manager: Worker, ledger: Ledger, numbers: list[int]) -> None:
    """Have the manager end what is in doubt, as its log says."""
    for number in numbers:
        require(number in ledger.branches, f"branch {number} is over, and in doubt")
        branch = ledger.branches[number]
        if branch.stage is Stage.COMMITTING:
            manager.ask("commit", branch, _is_ok)
        else:
            branch.stage = Stage.ABORTING
            manager.ask("rollback", branch, _is_ok)


def _is_ok(result: dict[str, Any]) -> None:
    require(result["status"] == XaStatus.XA_OK, f"{result}")
