"""One branch of a distributed transaction: the work of one or more sessions, committed in two phases.

The transaction manager names a branch by its xid. Sessions associate themselves with it, and their publishes and
accepts meanwhile are its work. When all associations have ended, the branch is prepared, and committed or rolled back;
any session may request that.

    state          the work                                         timeout   prepare  commit  one-phase  roll back
    -------------  -----------------------------------------------  --------  -------  ------  ---------  ---------
    ACTIVE         is collected; messages are acquired              ends it   yes      no      yes        yes
    ROLLBACK_ONLY  is undone; the branch can only be rolled back    -         status   status  status     yes
    PREPARING      is being written to the store                    ignored   no       no      no         no
    PREPARED       is in the store                               ignored   no       yes     no         yes
    ENDING         the outcome is being written to the store        ignored   no       no      no         no
    UNKNOWN        may be in the store: the next start decides      ignored   error    error   error      error

    yes        only when no session is associated with it
    no         refused with illegal-state; the branch is as before
    status     the result says that it was rolled back, or has timed out

A branch becomes rollback-only when one of its sessions ends the association as failed or is lost, or when its timeout
is over before it is prepared. Accepted messages are then available again at once. It is kept until it is rolled back,
so that the transaction manager is informed.

If preparing a branch fails for lack of room, nothing changes: it can be prepared again, or rolled back.

Sources: AMQP 0-10, class dtx; X/Open, Distributed Transaction Processing: The XA Specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

from qstore.broker.model.errors import IllegalStateError, InternalError, ModelError, ResourceLimitExceededError
from qstore.broker.model.transactions.effects import Effects
from qstore.broker.model.transactions.local import LocalTransaction
from qstore.broker.model.transactions.planned import LargePlan, Planned

if TYPE_CHECKING:
    from qstore.broker.model.router import Router
    from qstore.broker.model.store_protocol import Store
    from qstore.broker.model.tick import Portion, Tick


class Status(Enum):
    """The result of an operation on a branch."""

    OK = auto()
    ROLLED_BACK = auto()
    TIMED_OUT = auto()


class State(Enum):
    """The state of a branch."""

    ACTIVE = auto()
    ROLLBACK_ONLY = auto()
    PREPARING = auto()
    PREPARED = auto()
    ENDING = auto()
    UNKNOWN = auto()

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.name.lower().replace("_", "-")


Done = Callable[[Status, ModelError | None], None]
"""Called with the result of an operation, or with an error."""


class Branch:
    """One branch.

    Args:
        xid: its id, as in records.
        work: collects the operations of its sessions.
        router, store, tick: of the broker.
        ended: called when the branch is finished.
        user: its user; empty if unknown, as for one prepared by an older broker.

    Attributes:
        xid, work, user: as above.
        state: its state.
        associations: number of associated sessions, including those that have suspended it.
        timeout: seconds after which it is rollback-only unless it is prepared; 0 for never.
        deadline: the time of that, by the monotonic clock; 0 for never.
    """

    __slots__ = (
        "_effects", "_ended", "_has_timed_out", "_router", "_store", "_tick", "associations", "deadline", "state",
        "timeout", "user", "work", "xid",
    )  # fmt: skip

    def __init__(
        self,
        xid: bytes,
        work: LocalTransaction,
        router: Router,
        store: Store | None,
        tick: Tick,
        ended: Callable[[Branch], None],
        user: str,
    ) -> None:
        self.xid, self.work, self.user = xid, work, user
        self._router, self._store, self._tick, self._ended = router, store, tick, ended
        self._effects = Effects()
        self.state = State.ACTIVE
        self.associations = self.timeout = 0
        self.deadline = 0.0
        self._has_timed_out = False

    # ---- sessions ----

    @property
    def status(self) -> Status:
        """Whether it is rollback-only, and why."""
        if self.state is not State.ROLLBACK_ONLY:
            return Status.OK
        return Status.TIMED_OUT if self._has_timed_out else Status.ROLLED_BACK

    def join(self) -> Status:
        """Associate another session, unless the branch is rollback-only.

        Raises:
            IllegalStateError: it is already prepared.
        """
        if self.state not in (State.ACTIVE, State.ROLLBACK_ONLY):
            raise IllegalStateError(f"no work can be added to {self.title}: it is {self._now}")
        self.associations += self.state is State.ACTIVE
        return self.status

    def leave(self, *, has_failed: bool) -> Status:
        """End the association of a session, after which the branch is rollback-only if the session has failed."""
        self.associations -= 1
        if has_failed and self.state is State.ACTIVE:
            self.state = State.ROLLBACK_ONLY
        if self.state is State.ROLLBACK_ONLY:
            self.work.discard()
        return self.status

    def time_out(self) -> None:
        """Make the branch rollback-only if it is active: its timeout is over."""
        if self.state is State.ACTIVE:
            self.state, self._has_timed_out = State.ROLLBACK_ONLY, True
            self.work.discard()

    # ---- outcome ----

    def prepare(self, done: Done) -> None:
        """Write its work to the store, so that it can be committed or rolled back even after a crash.

        Args:
            done: called when that is on the disk, or with an error; perhaps before this returns.

        Raises:
            ModelError: it cannot be prepared, and nothing was changed.
        """
        self._check_ended()
        if self.state is State.ROLLBACK_ONLY:
            done(self.status, None)
            return
        self._require(State.ACTIVE)
        if self.work.is_large:
            self.state = State.PREPARING
            self._tick.turns.do(self, self._prepare_in_turns(done))
            return
        planned, effects = Planned(self.work, self._router), Effects()
        rids = None
        if self._store is not None:
            rids = planned.write(self._store, self._tick, partial(self._written, effects, done), self.xid, self.user)
        planned.begin(effects, rids)
        self._effects, self.state = effects, State.PREPARING
        if rids is None:
            self._is_prepared()
            done(Status.OK, None)

    def _prepare_in_turns(self, done: Done) -> Iterator[Portion]:
        """Prepare a large branch."""
        effects = self._effects = Effects()
        xid, user = self.xid, self.user
        plan = LargePlan(self.work, self._router, self._store, self._tick, effects, xid=xid, user=user)
        try:
            yield from plan.write()
            plan.end(partial(self._outcome, effects, done))
        except ModelError as error:
            failure = error.with_traceback(None)
        else:
            return
        yield from plan.undo()
        self._effects, self.state = Effects(), State.ACTIVE
        done(Status.OK, failure)

    def _written(self, effects: Effects, done: Done, error: Exception | None) -> None:
        """Continue after the store has prepared it, or failed to."""
        self._tick.transactions_under_way -= 1
        self._outcome(effects, done, error)

    def _outcome(self, effects: Effects, done: Done, error: Exception | None) -> None:
        if error is None:
            self._is_prepared()
            done(Status.OK, None)
            return
        assert self._store is not None
        if isinstance(error, self._store.full_error):
            self._finish(effects, effects.return_to(self.work), partial(self._is_active_again, done, error))
        else:
            self.state = State.UNKNOWN
            work = effects.undo(releases=True, leaves_stored=True)
            self._finish(effects, work, lambda: done(Status.OK, self._unknown(error)))

    def _finish(self, effects: Effects, work: Iterator[None], then: Callable[[], None]) -> None:
        """Complete or undo effects, in turns if they are many, then call `then`."""
        if effects.are_many:
            self._tick.turns.do(self, work)
        else:
            for _ in work:
                pass
        self._tick.turns.after(self, then)

    def _is_active_again(self, done: Done, error: Exception) -> None:
        self._effects, self.state = Effects(), State.ACTIVE
        done(Status.OK, ResourceLimitExceededError(str(error)))

    def _is_prepared(self) -> None:
        self.state = State.PREPARED
        self.work.clear()

    def commit(self, done: Done, *, one_phase: bool) -> None:
        """Commit it.

        Args:
            done: as for `prepare`. Afterwards the branch is finished, unless its outcome is unknown. If there turned
                out to be no room for a commit in one phase, it was rolled back.
            one_phase: whether it is not prepared.

        Raises:
            ModelError: it cannot be committed, and nothing was changed.
        """
        self._check_ended()
        if self.state is State.ROLLBACK_ONLY:
            status = self.status
            self._ended(self)
            done(status, None)
            return
        self._require(State.ACTIVE if one_phase else State.PREPARED)
        if one_phase:
            self._commit_in_one_phase(done)
        else:
            self._decide(done, commits=True)

    def roll_back(self, done: Done) -> None:
        """Roll it back.

        Args:
            done: as for `prepare`. Afterwards the branch is finished, unless its outcome is unknown.

        Raises:
            ModelError: it cannot be rolled back, and nothing was changed.
        """
        self._check_ended()
        if self.state is State.PREPARED:
            self._decide(done, commits=False)
            return
        if self.state is not State.ROLLBACK_ONLY:
            self._require(State.ACTIVE)
        status = Status.TIMED_OUT if self._has_timed_out else Status.OK
        self.state = State.ENDING
        self.work.discard()
        self._tick.turns.after(self.work, partial(self._is_over, done, status))

    def _is_over(self, done: Done, status: Status) -> None:
        self._ended(self)
        done(status, None)

    def _commit_in_one_phase(self, done: Done) -> None:
        self.state = State.ENDING

        def committed(error: ModelError | None) -> None:
            if error is None or isinstance(error, ResourceLimitExceededError):
                self._ended(self)
            else:
                self.state = State.UNKNOWN
            done(Status.OK, error)

        if self.work.is_large:
            self._tick.turns.do(self, self.work.commit_in_turns(committed))
            return
        try:
            self.work.commit(committed)
        except ModelError:
            self.state = State.ACTIVE
            raise

    def _decide(self, done: Done, *, commits: bool) -> None:
        """Write the outcome of a prepared branch to the store."""
        store = self._store
        if store is None:
            self._decided(done, None, commits=commits)
            return
        decide = store.transactions.commit_prepared if commits else store.transactions.abort_prepared
        try:
            decide(self.xid, partial(self._outcome_written, done, commits))
        except store.errors as error:
            raise InternalError(str(error)) from error
        self.state = State.ENDING
        self._tick.transactions_under_way += 1
        self._tick.schedule()

    def _outcome_written(self, done: Done, commits: bool, error: Exception | None) -> None:
        """Continue after the store has written its outcome, or failed to."""
        self._tick.transactions_under_way -= 1
        self._decided(done, error, commits=commits)

    def _decided(self, done: Done, error: Exception | None, *, commits: bool) -> None:
        if error is not None:
            self.state = State.UNKNOWN
            done(Status.OK, self._unknown(error))
            return
        effects = self._effects
        self.work.count_end(is_committed=commits)
        work = effects.complete_in_turns(is_late=True) if commits else effects.undo(releases=True)
        self._finish(effects, work, partial(self._is_over, done, Status.OK))

    def recover(self, effects: Effects) -> None:
        """Restore it as prepared, with these effects."""
        self._effects, self.state = effects, State.PREPARED
        self.work.enqueues_to(list(effects.published))
        for queue in {queue for queue, _ in effects.accepted}:
            self.work.dequeues_from(queue)

    @property
    def message_count(self) -> int:
        """Messages that it holds on queues, from its preparation on."""
        return sum(map(len, self._effects.published.values())) + len(self._effects.accepted)

    # ---- checks ----

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"the branch with xid {self.xid.hex()}"

    @property
    def _now(self) -> str:
        return self.state.label

    def _check_ended(self) -> None:
        if self.associations:
            raise IllegalStateError(f"a session is still associated with {self.title}")

    def _require(self, state: State) -> None:
        if self.state is State.UNKNOWN:
            raise InternalError(f"the outcome of {self.title} is unknown until the broker is restarted")
        if self.state is not state:
            raise IllegalStateError(f"{self.title} is {self._now}, not {state.label}")

    def _unknown(self, error: Exception) -> ModelError:
        return InternalError(f"the outcome of {self.title} is unknown: {error}")
