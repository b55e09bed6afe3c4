"""A broker with distributed transactions, on a simulated disk: it is killed, and so are those that use it.

A `BranchLife` is one process of the broker. A client looks at all queues before and after the transaction manager has
ended what is in doubt, and both is held against the `Ledger`. Then an `Application` works: it has two sessions, which
move tokens from queue to queue, and a third one for its transaction manager. It crashes now and then, and loses
everything but the manager's log. `BranchCrashes` kills the broker.

Each token is one message, which says the token and the branch that has put it where it is. A branch takes tokens from
queues and puts them on others. The manager's own log outlives everything: in it are the branches that it has decided to
commit; those that are not there are rolled back (presumed abort).

    stage        the manager                                     after a crash of the broker, the branch is
    -----------  ----------------------------------------------  ----------------------------------------------
    OPEN         has not heard that it is prepared               in doubt, or has had no effect
    PREPARED     has heard that, and decided nothing             in doubt
    COMMITTING   has decided to commit                           in doubt, or has had its effect
    ABORTING     has asked for the rollback                      in doubt, or has had no effect
    ONE_PHASE    has asked for the commit in one phase           over: all of its effect, or none
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, ClassVar, Final, NamedTuple

from qstore.formats.amqp_0_10.codes import ErrorCode, XaStatus
from qstore.formats.amqp_0_10.commands import decode_command, decode_result, encode_command
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, BranchId, encode_struct
from qstore.formats.broker_records.xids import decode_xid
from tests.faults.broker_clients import OneSession, Watcher, ranges_of, subscribe
from tests.faults.broker_process import BrokerProcess, Wire
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.simulator import Simulator, require
from tests.support.compiled import ClientSession


class Stage(Enum):
    """How far a branch is, as the manager knows."""

    OPEN = auto()
    PREPARED = auto()
    COMMITTING = auto()
    ABORTING = auto()
    ONE_PHASE = auto()


class Place(NamedTuple):
    """Where a token is, and which branch has put it there; 0 for the first place."""

    queue: str
    branch: int


@dataclass(eq=False, slots=True)
class BranchModel:
    """A branch. `targets`: token -> the queue that it puts it on."""

    number: int
    targets: dict[int, str] = field(default_factory=dict)
    stage: Stage = Stage.OPEN

    def place(self, token: int) -> Place:
        """Where it puts a token."""
        return Place(self.targets[token], self.number)


class Ledger:
    """Where the tokens are.

    Attributes:
        places: token -> where it is, but for the branches that are under way.
        branches: number -> branch that is under way.
        ended: how many have ended, by how the manager asked for that.
        in_doubt: how many were found in doubt.
        expected: the error codes that a session may end with: there is no room; or the disk fails, too.
    """

    def __init__(self, places: Mapping[int, Place]) -> None:
        self.places = dict(places)
        self.branches: dict[int, BranchModel] = {}
        self.ended = dict.fromkeys(Stage, 0)
        self.in_doubt = 0
        self.expected = {ErrorCode.RESOURCE_LIMIT_EXCEEDED}
        self._numbers = 0

    def copy(self) -> Ledger:
        """The same tokens and branches; nothing is counted yet."""
        ledger = deepcopy(self)
        ledger.ended, ledger.in_doubt = dict.fromkeys(Stage, 0), 0
        return ledger

    def begin(self) -> BranchModel:
        """A new branch."""
        self._numbers += 1
        branch = self.branches[self._numbers] = BranchModel(self._numbers)
        return branch

    def end(self, branch: BranchModel, *, has_effect: bool) -> None:
        """The manager has heard that a branch is over."""
        self.ended[branch.stage] += 1
        del self.branches[branch.number]
        if has_effect:
            self.places.update({token: branch.place(token) for token in branch.targets})

    def took(self, token: int, place: Place) -> None:
        """A worker was given a token: there must be no branch that has it."""
        what = f"token {token} comes from {place}"
        if place != self.places[token]:
            found = self.branches.get(place.branch)
            require(found is not None and token in found.targets, f"{what}, and is at {self.places[token]}")
            assert found is not None
            require(found.stage in (Stage.COMMITTING, Stage.ONE_PHASE), f"{what}: that branch was not committed")
            self.end(found, has_effect=True)
        for branch in self.branches.values():
            is_held = token in branch.targets and branch.stage in (Stage.PREPARED, Stage.COMMITTING)
            require(not is_held, f"{what}, and branch {branch.number} has it")

    # ---- after a crash ----

    def check_before(self, seen: Mapping[int, Sequence[Place]], in_doubt: Sequence[int]) -> None:
        """What is found before the manager has resolved what is in doubt."""
        require(len(set(in_doubt)) == len(in_doubt), f"in doubt: {in_doubt}")
        for number in in_doubt:
            require(number in self.branches, f"branch {number} is over, and in doubt")
            branch = self.branches[number]
            require(branch.stage is not Stage.ONE_PHASE, f"branch {number} was never prepared, and is in doubt")
            for token in branch.targets:
                require(
                    not seen.get(token), f"token {token} of branch {number}, in doubt, is seen at {seen.get(token)}"
                )
        for branch in self.branches.values():
            if branch.stage is Stage.PREPARED:
                require(branch.number in in_doubt, f"branch {branch.number} was prepared, and is not in doubt")
        self.in_doubt += len(in_doubt)
        held = {token for number in in_doubt for token in self.branches[number].targets}
        self._check(seen, held)

    def check_after(self, seen: Mapping[int, Sequence[Place]]) -> None:
        """What is found when nothing is in doubt any more; it is what is so from now on."""
        self._check(seen, set())
        self.places = {token: found[0] for token, found in seen.items()}
        self.branches.clear()

    def _check(self, seen: Mapping[int, Sequence[Place]], held: set[int]) -> None:
        for token, before in self.places.items():
            found = seen.get(token, ())
            if token in held:
                continue
            require(len(found) == 1, f"token {token}, last at {before}, is at {found}")
            allowed = self._allowed(token, before)
            require(found[0] in allowed, f"token {token} is at {found[0]}, not at {allowed}")
        for branch in self.branches.values():
            has_it = {branch.place(token) in seen.get(token, ()) for token in branch.targets if token not in held}
            require(len(has_it) <= 1, f"branch {branch.number} has had a part of its effect")

    def _allowed(self, token: int, before: Place) -> list[Place]:
        mine = [branch for branch in self.branches.values() if token in branch.targets]
        for branch in mine:
            if branch.stage is Stage.COMMITTING:
                return [branch.place(token)]
        return [before, *(each.place(token) for each in mine if each.stage is Stage.ONE_PHASE)]


# ---- the clients: an application with two sessions, and its manager ----

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
        """Whether the broker has ended a session for lack of room."""
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


# ---- the broker ----

QUEUES: Final = ("a", "b", "c")
TOKENS: Final = 10
_PATIENCE: Final = 20  # rounds of recovery
_TIMEOUT: Final = 61  # seconds, more than that of a branch


class BranchLife:
    """One process, and who uses it.

    Args:
        disk: where its store is.
        ledger: what was expected of the process before; None for the first one. What the manager ends is entered there,
            also if the process is killed while it starts.
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
            self.ledger = self._furnish() if ledger is None else ledger
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

    def promises(self) -> Ledger:
        """What its users may expect of the next life."""
        return self.ledger.copy()

    def stop(self) -> bool:
        """SIGTERM."""
        return self.process.stop()

    def discard(self) -> None:
        """The process is gone."""
        self.process.discard()

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


@dataclass(kw_only=True)
class BranchCrashes(Simulator):
    """Brokers that are killed, while they start, while the manager ends what is in doubt, or while applications work.

    Counted are the branches that were `in doubt` after a start, and those that were `ended` by an application.

    Attributes:
        pages: whether the brokers let messages go out of memory (`BrokerProcess`).
    """

    pages: bool = False

    steps: ClassVar = 600
    stops: ClassVar = 0.3
    dies_at_start: ClassVar = False  # the queues and tokens have to be there

    def start(
        self, disk: SimulatedDisk, promises: Ledger | None, rng: random.Random, *, must_be_clean: bool
    ) -> BranchLife:
        before = 0 if promises is None else promises.in_doubt
        life = BranchLife(disk, promises, rng, must_be_clean=must_be_clean, pages=self.pages)
        self.counts["in doubt"] += life.ledger.in_doubt - before
        return life

    def seen(self, life: BranchLife) -> None:
        self.counts["ended"] += sum(life.ledger.ended.values())

    def run_failing(self, seed: int, steps: int = 400) -> bool:
        """A broker with a disk that fails in one call; the next one has to find all that was promised.

        Returns:
            Whether a client has noticed.
        """
        rng = random.Random(seed)
        disk = SimulatedDisk(seed)
        life = self.start(disk, None, rng, must_be_clean=False)
        ledger = life.ledger
        try:
            life.work(steps // 4)
            ledger.expected.add(ErrorCode.INTERNAL_ERROR)
            disk.fail_at = {disk.calls + rng.randrange(60): rng.choice((errno.EIO, errno.ENOSPC))}
            life.work(steps)
            has_noticed = life.has_failed
        finally:
            life.discard()
        disk.fail_at = {}
        ledger.expected.remove(ErrorCode.INTERNAL_ERROR)
        disk.crash(power_loss=rng.random() < 0.5)
        self.start(disk, ledger, rng, must_be_clean=False).discard()
        return has_noticed
