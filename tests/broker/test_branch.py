"""Branches of distributed transactions in the model: what each state allows, what others see, and when."""

from __future__ import annotations

import pytest

from qstore.broker.model.errors import (
    IllegalStateError,
    InternalError,
    InvalidArgumentError,
    ModelError,
    NotAllowedError,
    NotFoundError,
    NotImplementedByBrokerError,
    ResourceLimitExceededError,
)
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.transactions import distributed
from qstore.broker.model.transactions.branch import Branch, State, Status
from qstore.broker.settings import BrokerSettings
from qstore.formats.values import typed_map
from tests.support.fake_store import FakeFailedError, FakeFullError, Model

Results = list[tuple[Status, ModelError | None]]

OK = (Status.OK, None)


class Stage:
    """A broker with a durable queue `source` of three messages that one consumer has, and a durable `target`."""

    def __init__(self, settings: BrokerSettings | None = None, *, has_timers: bool = False) -> None:
        self.model = Model(settings, has_timers=has_timers)
        self.distributed = self.model.broker.distributed
        self.source, self.target = self.model.queue("source", durable=True), self.model.queue("target", durable=True)
        self.model.publish("source", b"1", b"2", b"3")
        self.taker = self.model.consumer(self.source, 3)
        self.model.sync()
        assert self.taker.bodies == [b"1", b"2", b"3"]
        self.results: Results = []

    def done(self, status: Status, error: ModelError | None) -> None:
        self.results.append((status, error))

    def branch(self, xid: bytes = b"x", *, moves: int = 1) -> Branch:
        """A branch that moves messages from `source` to `target`, with no session associated."""
        branch = self.distributed.start(xid)
        for entry in self.taker.entries[:moves]:
            branch.work.accept(self.source, entry)
            branch.work.publish(
                self.model.message("target", b"-" + entry.message.body), self.model.broker.default_host.exchanges[""]
            )
        assert self.distributed.leave(branch, has_failed=False) is Status.OK
        return branch

    def prepared(self, xid: bytes = b"x", *, moves: int = 1) -> Branch:
        branch = self.branch(xid, moves=moves)
        branch.prepare(self.done)
        self.model.sync()
        assert self.results.pop() == OK
        return branch

    def error(self) -> ModelError:
        """The error that the last operation ended with."""
        _, error = self.results.pop()
        assert error is not None
        return error

    @property
    def under_way(self) -> int:
        """Transactions that wait for the disk."""
        return self.model.tick.transactions_under_way

    @property
    def counts(self) -> tuple[int, int]:
        """Messages of both queues that a consumer could have."""
        return self.source.available_count, self.target.available_count


@pytest.fixture
def stage() -> Stage:
    return Stage()


def live(queue: Queue) -> list[bytes]:
    """Content of the queue's journal."""
    return [data[-2:] if data[-2:-1] == b"-" else data[-1:] for data in queue.journal.live.values()]


# ---- two phases ----


def test_a_prepared_branch_is_seen_when_its_commit_is_on_the_disk(stage: Stage) -> None:
    consumer = stage.model.consumer(stage.target)
    branch = stage.branch()
    assert stage.target.is_empty
    branch.prepare(stage.done)
    stage.model.run()
    assert (stage.results, branch.state, stage.under_way) == ([], State.PREPARING, 1)
    stage.model.sync()
    assert (stage.results.pop(), branch.state, stage.under_way) == (OK, State.PREPARED, 0)
    assert stage.distributed.in_doubt == [b"x"]
    assert (stage.counts, consumer.bodies) == ((0, 0), [])
    branch.commit(stage.done, one_phase=False)
    stage.model.run()
    assert (stage.results, consumer.bodies, branch.state, stage.under_way) == ([], [], State.ENDING, 1)
    stage.model.sync()
    assert (stage.results, consumer.bodies, stage.under_way) == ([OK], [b"-1"], 0)
    assert (stage.source.message_count, stage.source.acquired_count) == (2, 2)
    assert (live(stage.source), live(stage.target)) == ([b"2", b"3"], [b"-1"])
    assert not stage.distributed.branches


@pytest.mark.parametrize("commits", [False, True])
def test_the_store_begins_to_write_an_outcome_at_the_end_of_the_tick(stage: Stage, commits: bool) -> None:
    """It is in no queue's journal, so its waiters need not wait for a timer."""
    branch = stage.prepared()
    stage.model.run()
    drained = len(stage.model.store.may_block)
    _decide(stage, branch, commits=commits)
    stage.model.loop.run()
    assert len(stage.model.store.may_block) > drained


def test_a_prepared_branch_that_is_rolled_back_gives_messages_back_in_their_places(stage: Stage) -> None:
    branch = stage.prepared(moves=2)
    stage.source.release(stage.taker.entries[2], is_redelivered=False)
    branch.roll_back(stage.done)
    stage.model.run()
    assert stage.counts == (1, 0)
    stage.model.sync()
    assert (stage.results, stage.counts) == ([OK], (3, 0))
    again = stage.model.consumer(stage.source)
    stage.model.run()
    assert again.bodies == [b"1", b"2", b"3"]
    assert [entry.is_redelivered for entry in again.entries] == [True, True, False]
    assert stage.target.is_empty
    assert (live(stage.source), live(stage.target)) == ([b"1", b"2", b"3"], [])
    assert not stage.distributed.branches


@pytest.mark.parametrize("is_late", [False, True], ids=["before it is asked for", "after it was delivered"])
def test_message_of_a_branch_keeps_its_place_without_blocking(stage: Stage, is_late: bool) -> None:
    branch = stage.prepared()
    stage.model.publish("target", b"a", b"b")
    consumer = stage.model.consumer(stage.target, 1) if is_late else None
    stage.model.sync()
    branch.commit(stage.done, one_phase=False)
    stage.model.sync()
    if consumer is None:
        consumer = stage.model.consumer(stage.target)
    else:
        assert consumer.bodies == [b"a"]
        consumer.give(5)
    stage.model.run()
    assert consumer.bodies == ([b"a", b"-1", b"b"] if is_late else [b"-1", b"a", b"b"])


def test_a_late_message_is_offered_to_those_whose_selectors_have_passed_over_later_ones(stage: Stage) -> None:
    branch = stage.prepared()
    choosy = stage.model.consumer(stage.target, wants=lambda entry: entry.message.body == b"-1")
    stage.model.publish("target", b"a", b"b")
    stage.model.sync()
    branch.commit(stage.done, one_phase=False)
    stage.model.sync()
    assert choosy.bodies == [b"-1"]
    other = stage.model.consumer(stage.target)
    stage.model.run()
    assert other.bodies == [b"a", b"b"]


def test_messages_that_are_not_stored_are_part_of_it(stage: Stage) -> None:
    plain = stage.model.queue("plain")
    branch = stage.distributed.start(b"x")
    branch.work.publish(stage.model.message("plain", b"m"), stage.model.broker.default_host.exchanges[""])
    stage.distributed.leave(branch, has_failed=False)
    branch.prepare(stage.done)
    assert stage.results == []
    stage.model.sync()
    assert stage.results == [OK]
    assert (plain.message_count, plain.available_count) == (1, 0)
    assert stage.model.store.in_doubt == [b"x"]
    branch.commit(stage.done, one_phase=False)
    stage.model.sync()
    assert plain.available_count == 1


def test_without_a_store_it_is_prepared_and_committed_at_once() -> None:
    model = Model()
    model.broker.distributed._store = None
    queue = model.queue("plain")
    branch = model.broker.distributed.start(b"x")
    branch.work.publish(model.message("plain", b"m"), model.broker.default_host.exchanges[""])
    model.broker.distributed.leave(branch, has_failed=False)
    results: Results = []
    branch.prepare(lambda status, error: results.append((status, error)))
    assert (branch.state, queue.available_count) == (State.PREPARED, 0)
    branch.commit(lambda status, error: results.append((status, error)), one_phase=False)
    assert (results, queue.available_count) == ([OK, OK], 1)


def test_one_phase(stage: Stage) -> None:
    consumer = stage.model.consumer(stage.target)
    branch = stage.branch(moves=3)
    branch.commit(stage.done, one_phase=True)
    stage.model.run()
    assert (stage.results, consumer.bodies) == ([], [])
    stage.model.sync()
    assert (stage.results, consumer.bodies) == ([OK], [b"-1", b"-2", b"-3"])
    assert stage.source.is_empty
    assert stage.model.store.in_doubt == []
    assert not stage.distributed.branches


def test_an_xid_can_be_used_again(stage: Stage) -> None:
    for move in (stage.prepared, stage.prepared):
        branch = move()
        branch.roll_back(stage.done)
        stage.model.sync()
        assert stage.results.pop() == OK
        again = stage.model.consumer(stage.source, 1)
        stage.model.run()
        stage.source.remove_consumer(again)
        stage.taker.entries[0] = again.entries[0]


# ---- what each state refuses ----


def test_an_operation_while_a_session_is_associated(stage: Stage) -> None:
    branch = stage.distributed.start(b"x")
    for act in (
        lambda: branch.prepare(stage.done),
        lambda: branch.commit(stage.done, one_phase=True),
        lambda: branch.commit(stage.done, one_phase=False),
        lambda: branch.roll_back(stage.done),
    ):
        with pytest.raises(IllegalStateError, match="a session is still associated with the branch with xid 78"):
            act()
    assert branch.state is State.ACTIVE


def test_phases_in_the_wrong_order(stage: Stage) -> None:
    branch = stage.branch()
    with pytest.raises(IllegalStateError, match="is active, not prepared"):
        branch.commit(stage.done, one_phase=False)
    branch.prepare(stage.done)
    for act in (
        lambda: branch.prepare(stage.done),
        lambda: branch.commit(stage.done, one_phase=True),
        lambda: branch.commit(stage.done, one_phase=False),
        lambda: branch.roll_back(stage.done),
        branch.join,
    ):
        with pytest.raises(IllegalStateError, match="preparing"):
            act()
    stage.model.sync()
    assert stage.results == [OK]
    for act in (lambda: branch.prepare(stage.done), lambda: branch.commit(stage.done, one_phase=True), branch.join):
        with pytest.raises(IllegalStateError, match="prepared"):
            act()
    branch.commit(stage.done, one_phase=False)
    for act in (lambda: branch.commit(stage.done, one_phase=False), lambda: branch.roll_back(stage.done)):
        with pytest.raises(IllegalStateError, match="ending"):
            act()
    stage.model.sync()
    assert stage.results == [OK, OK]


def test_branches_that_are_not_there(stage: Stage) -> None:
    with pytest.raises(NotFoundError):
        stage.distributed.find(b"x")
    with pytest.raises(NotAllowedError):
        stage.distributed.join(b"x")
    with pytest.raises(NotFoundError):
        stage.distributed.set_timeout(b"x", 1)
    with pytest.raises(NotImplementedByBrokerError):
        stage.distributed.forget(b"x")
    stage.distributed.start(b"x")
    with pytest.raises(NotAllowedError, match="can be joined"):
        stage.distributed.start(b"x")


def test_a_branch_that_exists_is_not_begun_again(stage: Stage) -> None:
    branch = stage.branch()
    with pytest.raises(NotAllowedError, match="already exists; it can be joined"):
        stage.distributed.start(b"x")
    branch.prepare(stage.done)
    stage.model.sync()
    with pytest.raises(NotAllowedError, match="already exists; it is prepared"):
        stage.distributed.start(b"x")


def test_branches_are_limited(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "MAX_BRANCHES", 2)
    stage.branch(b"1", moves=0)
    branch = stage.branch(b"2", moves=0)
    with pytest.raises(ResourceLimitExceededError):
        stage.distributed.start(b"3")
    branch.roll_back(stage.done)
    stage.distributed.start(b"3")


# ---- several sessions ----


def test_the_work_of_several_sessions_is_one(stage: Stage) -> None:
    branch = stage.distributed.start(b"x")
    assert stage.distributed.join(b"x") == (branch, Status.OK)
    for body in (b"a", b"b"):
        branch.work.publish(stage.model.message("target", body), stage.model.broker.default_host.exchanges[""])
    stage.distributed.leave(branch, has_failed=False)
    with pytest.raises(IllegalStateError):
        branch.prepare(stage.done)
    stage.distributed.leave(branch, has_failed=False)
    branch.prepare(stage.done)
    stage.model.sync()
    branch.commit(stage.done, one_phase=False)
    stage.model.sync()
    assert stage.target.available_count == 2


def test_one_failed_session_makes_it_rollback_only_for_all(stage: Stage) -> None:
    branch = stage.distributed.start(b"x")
    stage.distributed.join(b"x")
    branch.work.accept(stage.source, stage.taker.entries[0])
    assert stage.distributed.leave(branch, has_failed=True) is Status.ROLLED_BACK
    assert stage.source.available_count == 1
    assert stage.distributed.join(b"x") == (branch, Status.ROLLED_BACK)
    branch.work.accept(stage.source, stage.taker.entries[1])  # by the other, which does not know it yet
    assert stage.source.available_count == 1
    assert stage.distributed.leave(branch, has_failed=False) is Status.ROLLED_BACK
    assert stage.source.available_count == 2
    branch.prepare(stage.done)
    assert stage.results.pop() == (Status.ROLLED_BACK, None)
    branch.roll_back(stage.done)
    assert (stage.results, dict(stage.distributed.branches)) == ([OK], {})


@pytest.mark.parametrize("one_phase", [False, True])
def test_the_commit_of_a_rollback_only_branch_says_that_it_was_rolled_back(stage: Stage, one_phase: bool) -> None:
    branch = stage.distributed.start(b"x")
    stage.distributed.leave(branch, has_failed=True)
    branch.commit(stage.done, one_phase=one_phase)
    assert stage.results == [(Status.ROLLED_BACK, None)]
    assert not stage.distributed.branches


def test_oldest_rollback_only_branches_are_forgotten(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "MAX_ROLLBACK_ONLY", 2)
    for xid in (b"1", b"2", b"3"):
        stage.distributed.leave(stage.distributed.start(xid), has_failed=True)
    assert list(stage.distributed.branches) == [b"2", b"3"]


# ---- time ----


def test_a_branch_times_out_unless_it_is_prepared() -> None:
    stage = Stage(BrokerSettings(dtx_default_timeout_seconds=60), has_timers=True)
    prepared, active = stage.prepared(b"1"), stage.branch(b"2", moves=2)
    used = stage.distributed.start(b"3")
    del stage.model.timers[:-1]
    (seconds, ring), *others = stage.model.timers
    assert (seconds, others) == (60, [])
    stage.model.now += 59.9
    ring()
    assert active.state is State.ACTIVE
    (seconds, ring) = stage.model.timers[-1]
    assert seconds == pytest.approx(0.1)
    stage.model.now += 0.1
    ring()
    assert (prepared.state, active.state, used.state) == (State.PREPARED, State.ROLLBACK_ONLY, State.ROLLBACK_ONLY)
    assert stage.source.available_count == 1  # 2; the prepared branch has 1
    assert stage.distributed.leave(used, has_failed=False) is Status.TIMED_OUT
    for branch in (active, used):
        branch.roll_back(stage.done)
        assert stage.results.pop() == (Status.TIMED_OUT, None)
    assert list(stage.distributed.branches) == [b"1"]


def test_timeouts_are_set_from_now_on() -> None:
    stage = Stage(BrokerSettings(dtx_default_timeout_seconds=60, dtx_max_timeout_seconds=100), has_timers=True)
    branch = stage.branch()
    assert branch.timeout == 60
    stage.distributed.set_timeout(b"x", 100)
    with pytest.raises(InvalidArgumentError, match="longer than 100 s"):
        stage.distributed.set_timeout(b"x", 101)
    assert branch.timeout == 100
    stage.model.now += 99
    stage.model.timers[-1][1]()
    assert branch.state is State.ACTIVE
    stage.distributed.set_timeout(b"x", 10)
    (seconds, ring) = stage.model.timers[-1]
    assert seconds == 1  # of the 100 set before
    stage.model.now += 10
    ring()
    assert branch.state is State.ROLLBACK_ONLY
    stage.distributed.set_timeout(b"x", 0)
    assert branch.timeout == 60


def test_no_timeouts() -> None:
    stage = Stage(BrokerSettings(dtx_default_timeout_seconds=0, dtx_max_timeout_seconds=0), has_timers=True)
    before = len(stage.model.timers)
    branch = stage.branch()
    stage.model.now += 1e6
    assert (stage.distributed.find(b"x").state, branch.timeout) == (State.ACTIVE, 0)
    stage.distributed.set_timeout(b"x", 1 << 31)
    assert len(stage.model.timers) == before + 1


def test_deadlines_of_branches_that_are_over_do_not_pile_up() -> None:
    stage = Stage(has_timers=True)
    before = len(stage.model.timers)
    for number in range(1000):
        branch = stage.branch(b"%d" % number, moves=0)
        stage.distributed.set_timeout(branch.xid, 1000 - number)  # each needs an earlier alarm than the one before
        branch.roll_back(stage.done)
        stage.model.now += 0.001
    assert len(stage.distributed._deadlines) < 200
    alarms = stage.model.timers[before:]
    del stage.model.timers[:]
    stage.model.now += 5000
    for _, ring in alarms:
        ring()
    assert len(stage.model.timers) <= 1  # all alarms but one are void


# ---- when the store refuses or fails ----


def test_no_room_on_a_queue() -> None:
    stage = Stage()
    stage.model.queue("target", arguments=typed_map({"qpid.max_count": 1}))
    branch = stage.branch(moves=2)
    for act in (lambda: branch.prepare(stage.done), lambda: branch.commit(stage.done, one_phase=True)):
        with pytest.raises(ResourceLimitExceededError):
            act()
        assert (branch.state, stage.counts) == (State.ACTIVE, (0, 0))
    assert stage.model.store.in_doubt == []
    branch.roll_back(stage.done)
    assert stage.source.available_count == 2


def test_a_full_journal_refuses_it_before_anything_is_written(stage: Stage) -> None:
    stage.target.journal.is_full = True
    branch = stage.branch()
    with pytest.raises(ResourceLimitExceededError):
        branch.prepare(stage.done)
    assert (branch.state, stage.target.message_count) == (State.ACTIVE, 0)
    stage.target.journal.is_full = False
    branch.prepare(stage.done)
    stage.model.sync()
    assert stage.results == [OK]


def test_a_full_prepared_list_leaves_nothing_half_prepared(stage: Stage) -> None:
    """The store has taken it back: it is as before, and can be prepared when there is room."""
    branch = stage.branch()
    branch.prepare(stage.done)
    del stage.model.store.prepared[b"x"]
    stage.target.journal.live.clear()
    stage.model.store.complete(error=FakeFullError("the prepared list is full"))
    assert isinstance(stage.error(), ResourceLimitExceededError)
    assert (branch.state, stage.counts, stage.target.message_count) == (State.ACTIVE, (0, 0), 0)
    assert stage.source.acquired_count == 3
    branch.prepare(stage.done)
    stage.model.sync()
    assert stage.results.pop() == OK
    branch.commit(stage.done, one_phase=False)
    stage.model.sync()
    assert stage.counts == (0, 1)


def test_the_outcome_of_preparing_may_be_unknown(stage: Stage) -> None:
    plain = stage.model.queue("plain")
    branch = stage.branch()
    branch.work.publish(stage.model.message("plain", b"m"), stage.model.broker.default_host.exchanges[""])
    branch.prepare(stage.done)
    stage.model.store.complete(error=FakeFailedError("EIO"))
    assert isinstance(stage.error(), InternalError)
    assert (branch.state, stage.distributed.in_doubt, plain.message_count) == (State.UNKNOWN, [], 0)
    assert stage.under_way == 0
    for act in (
        lambda: branch.prepare(stage.done),
        lambda: branch.commit(stage.done, one_phase=False),
        lambda: branch.roll_back(stage.done),
    ):
        with pytest.raises(InternalError, match="until the broker is restarted"):
            act()
    assert (stage.counts, stage.target.message_count, stage.source.acquired_count) == ((0, 0), 1, 3)


@pytest.mark.parametrize("commits", [True, False])
def test_an_outcome_that_cannot_be_written(stage: Stage, commits: bool) -> None:
    branch = stage.prepared()
    stage.model.store.refuses_decisions = True
    with pytest.raises(InternalError):
        _decide(stage, branch, commits=commits)
    assert (branch.state, stage.under_way) == (State.PREPARED, 0)
    stage.model.store.refuses_decisions = False
    _decide(stage, branch, commits=commits)
    stage.model.store.complete(error=FakeFailedError("EIO"))
    assert isinstance(stage.error(), InternalError)
    assert (branch.state, stage.counts, stage.under_way) == (State.UNKNOWN, (0, 0), 0)


def _decide(stage: Stage, branch: Branch, *, commits: bool) -> None:
    if commits:
        branch.commit(stage.done, one_phase=False)
    else:
        branch.roll_back(stage.done)


def test_a_commit_in_one_phase_without_room_is_undone(stage: Stage) -> None:
    branch = stage.branch()
    branch.commit(stage.done, one_phase=True)
    stage.model.store.complete(error=FakeFullError("the prepared list is full"))
    assert isinstance(stage.error(), ResourceLimitExceededError)
    assert (stage.counts, dict(stage.distributed.branches)) == ((1, 0), {})


def test_a_commit_in_one_phase_whose_outcome_is_unknown(stage: Stage) -> None:
    branch = stage.branch()
    branch.commit(stage.done, one_phase=True)
    stage.model.store.complete(error=FakeFailedError("EIO"))
    assert isinstance(stage.error(), InternalError)
    assert (branch.state, stage.counts) == (State.UNKNOWN, (0, 0))


# ---- beside other things ----


@pytest.mark.parametrize("commits", [True, False])
def test_a_queue_that_is_deleted_meanwhile_takes_its_part_along(stage: Stage, commits: bool) -> None:
    branch = stage.prepared()
    for queue in (stage.source, stage.target):
        queue.begin_deletion()
        queue.end_deletion()
    _decide(stage, branch, commits=commits)
    stage.model.sync()
    assert stage.results == [OK]
    assert (stage.source.message_count, stage.target.message_count) == (3, 1)


def test_messages_that_it_holds_are_neither_purged_nor_expired(stage: Stage) -> None:
    stage.model.publish("source", b"4")
    branch = stage.distributed.start(b"x")
    branch.work.accept(stage.source, stage.taker.entries[0])
    message = stage.model.message("target", b"m", expires_at=stage.model.now + 1)
    branch.work.publish(message, stage.model.broker.default_host.exchanges[""])
    stage.distributed.leave(branch, has_failed=False)
    branch.prepare(stage.done)
    stage.model.sync()
    stage.model.now += 5
    assert stage.source.purge() == (1, True)
    assert stage.target.purge() == (0, False)
    assert stage.target.expire() == 0
    branch.commit(stage.done, one_phase=False)
    stage.model.sync()
    assert stage.target.expire() == 1


def test_its_memory_is_counted_once(stage: Stage) -> None:
    broker = stage.model.broker
    before = broker.held_memory()
    branch = stage.branch()
    collected = broker.held_memory() - before
    assert collected == branch.work.memory + distributed.BRANCH_OVERHEAD == broker.distributed.memory
    branch.prepare(stage.done)
    stage.model.sync()
    assert broker.distributed.memory == distributed.BRANCH_OVERHEAD
    assert broker.held_memory() - before == collected


def test_the_counters(stage: Stage) -> None:
    stage.prepared(b"1").commit(stage.done, one_phase=False)
    stage.model.sync()
    totals = stage.target.totals
    assert (totals.txn_messages_enqueued, totals.messages_enqueued) == (1, 1)
    assert stage.source.totals.txn_messages_dequeued == 1
    stage.taker.entries.pop(0)
    stage.prepared(b"2").roll_back(stage.done)
    stage.model.sync()
    assert stage.target.message_count == stage.target.available_count == 1
    assert (stage.source.available_count, stage.source.acquired_count, stage.source.message_count) == (1, 1, 2)


@pytest.mark.parametrize("is_local", [False, True])
def test_late_commit_does_not_displace_a_newer_value(is_local: bool) -> None:
    """On a last value queue the last message of a key counts, by the order of the queue, as after a restart."""
    model = Model()
    queue = model.queue("last", durable=True, arguments=typed_map({"qpid.last_value_queue_key": "key"}))
    exchange = model.broker.default_host.exchanges[""]
    old, new = model.message("last", b"old"), model.message("last", b"new")
    old.numbers = new.numbers = {"key": 1}
    branch = model.broker.distributed.start(b"x")
    branch.work.publish(old, exchange)
    model.broker.distributed.leave(branch, has_failed=False)
    results: Results = []
    if is_local:
        branch.work.commit(lambda error: results.append((Status.OK, error)))
    else:
        branch.prepare(lambda *_: None)
        model.sync()
    model.broker.router.publish(new, exchange)
    if not is_local:
        model.sync()
        branch.commit(lambda status, error: results.append((status, error)), one_phase=False)
    model.sync()
    assert results == [OK]
    assert [entry.message.body for entry in queue.entries()] == [b"new"]
    assert len(queue.journal.live) == 1


def test_its_queues_count_it_until_its_outcome_is_known(stage: Stage) -> None:
    def counts() -> list[tuple[int, int, int, int]]:
        found = stage.target.counters.enqueuing, stage.source.counters.dequeuing
        return [
            (each.starts, each.commits, each.rejects, each.pending.value) if each is not None else (0, 0, 0, 0)
            for each in found
        ]

    first, second = stage.prepared(b"1"), stage.branch(b"2")
    assert counts() == [(2, 0, 0, 2)] * 2
    first.commit(stage.done, one_phase=False)
    assert counts() == [(2, 0, 0, 2)] * 2
    stage.model.sync()
    assert counts() == [(2, 1, 0, 1)] * 2
    second.roll_back(stage.done)
    stage.model.sync()
    assert counts() == [(2, 1, 1, 0)] * 2
    third = stage.branch(b"3")
    third.commit(stage.done, one_phase=True)
    stage.model.sync()
    assert counts() == [(3, 2, 1, 0)] * 2
