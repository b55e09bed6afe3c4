"""The distributed transactions of one broker: its branches by xid, and their timeouts.

A branch exists from its start until it is committed or rolled back. Branches that are prepared when the broker stops
exist again after the next start, with their messages, and wait for their outcome: they are in doubt.

A branch that is rollback-only waits for its rollback, too; of those without associated sessions, the oldest are
forgotten beyond `MAX_ROLLBACK_ONLY`.

A branch belongs to the user that started it, on all connections of that user, and after a restart: the store keeps the
name. Other users need rules (`authorization`): ACCESS TRANSACTION to see a branch, UPDATE TRANSACTION to use it. A
transaction manager that recovers under another name needs both; for a branch whose user is unknown, all users do.

Sources: AMQP 0-10, class dtx; Qpid wiki, "Persistent cluster restart" (transactions after a restart).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.log.logs import WARNING, LogBudget, log_of
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.caller import BROKER
from qstore.broker.model.errors import (
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    NotImplementedByBrokerError,
    ResourceLimitExceededError,
    UnauthorizedError,
)
from qstore.broker.model.transactions.branch import Branch, State, Status
from qstore.broker.model.transactions.local import LocalTransaction

if TYPE_CHECKING:
    from qstore.broker.model.authorization import Authorization
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.router import Router
    from qstore.broker.model.store_protocol import Store
    from qstore.broker.model.tick import Tick
    from qstore.broker.model.transactions.effects import Effects

MAX_BRANCHES: Final = 50_000  # unfinished ones
BRANCH_OVERHEAD: Final = 1300  # bytes of memory that a branch without work takes, with a long xid (measured)
MAX_ROLLBACK_ONLY: Final = 10_000  # without associated sessions
_NO_VALUES: Final[Mapping[str, object]] = {}
_MAX_STALE: Final = 64  # stale deadlines, beyond the number of branches


class DistributedTransactions:
    """The branches of one broker.

    Args:
        router, store, tick, authorization: of the broker.
        begin: creates the work of a branch.
        default_timeout: seconds after which a branch is rollback-only unless it is prepared; 0 for never.
        max_timeout: the longest timeout that a client may set; 0 for no limit.
        monotonic: seconds of a monotonic clock.
        call_later: calls a function after some seconds; None: timeouts are checked when a branch is used.

    Attributes:
        branches: xid, as in records -> branch. Read-only.
        default_timeout: as above.
    """

    def __init__(
        self,
        router: Router,
        store: Store | None,
        tick: Tick,
        authorization: Authorization,
        begin: Callable[[], LocalTransaction],
        *,
        default_timeout: int,
        max_timeout: int,
        monotonic: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any] | None,
    ) -> None:
        self._router, self._store, self._tick, self._begin = router, store, tick, begin
        self._authorization = authorization
        self.default_timeout, self._max_timeout = default_timeout, max_timeout
        self._monotonic, self._call_later = monotonic, call_later
        self._branches: dict[bytes, Branch] = {}
        self._deadlines: list[tuple[float, bytes]] = []  # a heap, including stale ones
        self._alarm = 0.0  # when the next call of `_ring` is due; 0 for none
        self._rollback_only: dict[Branch, None] = {}
        self._timed_out = LogBudget(log_of("Broker"), WARNING, "distributed transactions that have timed out")

    @property
    def branches(self) -> Mapping[bytes, Branch]:
        """The branches."""
        return self._branches

    @property
    def memory(self) -> int:
        """Bytes of memory that they take, including messages published in them that are on no queue yet."""
        return sum([branch.work.memory + BRANCH_OVERHEAD for branch in self._branches.values()])

    @property
    def in_doubt(self) -> list[bytes]:
        """The xids of branches that are prepared and wait for their outcome."""
        return [xid for xid, branch in self._branches.items() if branch.state is State.PREPARED]

    def in_doubt_for(self, caller: Caller) -> list[bytes]:
        """The branches of `in_doubt` that a caller may see."""
        may_see = self.seen_by(caller)
        return [xid for xid, branch in self._branches.items() if branch.state is State.PREPARED and may_see(branch)]

    # ---- rights ----

    def seen_by(self, caller: Caller) -> Callable[[Branch], bool]:
        """A function that returns whether a caller may see a branch. The rules are evaluated once for each user."""
        known: dict[str, bool] = {}

        def may_see(branch: Branch) -> bool:
            if branch.user not in known:
                known[branch.user] = self._allows(caller, Action.ACCESS, branch)
            return known[branch.user]

        return may_see

    def check_use(self, caller: Caller, branch: Branch) -> None:
        """Raise UnauthorizedError unless the caller may use a branch."""
        if not self._allows(caller, Action.UPDATE, branch):
            whose = "belongs to another user" if branch.user else "has no known user"
            raise UnauthorizedError(f"{caller.user} is not allowed to use {branch.title}, which {whose}")

    def _allows(self, caller: Caller, action: Action, branch: Branch) -> bool:
        if not self._authorization.is_on or caller is BROKER or (branch.user and branch.user == caller.user):
            return True
        return self._authorization.authorizer.allows(caller, action, ObjectType.TRANSACTION, branch.user, _NO_VALUES)

    # ---- work ----

    def start(self, xid: bytes, caller: Caller = BROKER) -> Branch:
        """Begin a branch, and associate a session with it.

        Raises:
            NotAllowedError: it exists.
            UnauthorizedError: it exists, is another user's, and the caller may not use it.
            ResourceLimitExceededError: there are too many.
        """
        if xid in self._branches:
            branch = self._branches[xid]
            self.check_use(caller, branch)
            what = "it can be joined" if branch.state is State.ACTIVE else f"it is {branch.state.label}"
            raise NotAllowedError(f"{branch.title} already exists; {what}")
        if len(self._branches) >= MAX_BRANCHES:
            raise ResourceLimitExceededError(f"there are more than {MAX_BRANCHES} branches of distributed transactions")
        branch = self._add(xid, caller.user)
        branch.join()
        self._set_timeout(branch, self.default_timeout)
        return branch

    def join(self, xid: bytes, caller: Caller = BROKER) -> tuple[Branch, Status]:
        """Associate one more session with a branch.

        Returns:
            The branch, and OK or why the session was not associated.

        Raises:
            NotAllowedError: it does not exist.
            UnauthorizedError: it is another user's, and the caller may not use it.
            IllegalStateError: it is prepared already.
        """
        if xid not in self._branches:
            raise NotAllowedError(f"there is no branch with xid {xid.hex()} that could be joined")
        branch = self.find(xid, caller)
        return branch, branch.join()

    def leave(self, branch: Branch, *, has_failed: bool) -> Status:
        """End the association of a session. Returns OK, or why the branch is rollback-only."""
        self._expire(branch)
        status = branch.leave(has_failed=has_failed)
        if status is not Status.OK and not branch.associations:
            self._keep_rollback_only(branch)
        return status

    def status_of(self, branch: Branch) -> Status:
        """OK, or why the branch can only be rolled back."""
        self._expire(branch)
        return branch.status

    def find(self, xid: bytes, caller: Caller = BROKER) -> Branch:
        """The branch with an xid, for a caller that uses it. Raises NotFoundError or UnauthorizedError."""
        branch = self._branches.get(xid)
        if branch is None:
            raise NotFoundError(f"there is no branch with xid {xid.hex()}")
        self.check_use(caller, branch)
        self._expire(branch)
        return branch

    def forget(self, xid: bytes) -> None:
        """Forget a branch that was completed heuristically, which this broker never does.

        Raises:
            NotImplementedByBrokerError: always.
        """
        raise NotImplementedByBrokerError(f"the branch with xid {xid.hex()} was not completed heuristically")

    # ---- recovery ----

    def recover(self, xid: bytes, effects: Effects, user: str = "") -> None:
        """Restore a prepared branch of a user, with these effects; the name is empty if unknown."""
        self._add(xid, user).recover(effects)

    # ---- timeouts ----

    def set_timeout(self, xid: bytes, seconds: int, caller: Caller = BROKER) -> None:
        """Set the timeout of a branch, from now on; 0 for the default.

        Raises:
            NotFoundError: it does not exist.
            UnauthorizedError: it is another user's, and the caller may not use it.
            InvalidArgumentError: the timeout is too long.
        """
        branch = self.find(xid, caller)
        if 0 < self._max_timeout < seconds:
            raise InvalidArgumentError(
                f"a timeout of {seconds} s for {branch.title} is longer than {self._max_timeout} s (dtx-max-timeout)"
            )
        self._set_timeout(branch, seconds or self.default_timeout)

    def _set_timeout(self, branch: Branch, seconds: int) -> None:
        branch.timeout = seconds
        branch.deadline = self._monotonic() + seconds if seconds else 0.0
        if not seconds:
            return
        deadlines = self._deadlines
        if len(deadlines) > 2 * len(self._branches) + _MAX_STALE:
            deadlines[:] = [(each.deadline, each.xid) for each in self._branches.values() if each.deadline]
            heapify(deadlines)
        else:
            heappush(deadlines, (branch.deadline, branch.xid))
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Have `_ring` called at the first deadline."""
        if self._call_later is None or not self._deadlines:
            return
        first = self._deadlines[0][0]
        if not self._alarm or first < self._alarm:
            self._alarm = first
            self._call_later(max(0.0, first - self._monotonic()), partial(self._ring, first))

    def _ring(self, due: float) -> None:
        """Expire branches whose deadline has passed, unless `due` is no longer the first one."""
        if due != self._alarm:
            return
        self._alarm = 0.0
        now, deadlines = self._monotonic(), self._deadlines
        while deadlines and deadlines[0][0] <= now:
            branch = self._branches.get(heappop(deadlines)[1])
            if branch is not None:
                self._expire(branch)
        self._set_alarm()

    def _expire(self, branch: Branch) -> None:
        """Make a branch whose timeout is over rollback-only."""
        if branch.state is State.ACTIVE and 0 < branch.deadline <= self._monotonic():
            branch.time_out()
            text = "A distributed transaction has timed out after %d s: %s"
            self._timed_out.write(self._monotonic(), text, branch.timeout, branch.title)
            if not branch.associations:
                self._keep_rollback_only(branch)

    # ---- branches ----

    def _add(self, xid: bytes, user: str) -> Branch:
        branch = Branch(xid, self._begin(), self._router, self._store, self._tick, self._ended, user)
        self._branches[xid] = branch
        return branch

    def _ended(self, branch: Branch) -> None:
        del self._branches[branch.xid]
        self._rollback_only.pop(branch, None)

    def _keep_rollback_only(self, branch: Branch) -> None:
        self._rollback_only[branch] = None
        if len(self._rollback_only) > MAX_ROLLBACK_ONLY:
            self._ended(next(iter(self._rollback_only)))
