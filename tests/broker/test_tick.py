"""The end of a tick: the order of its steps, and completions on disks that are slow, fast or fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qstore.broker.model.errors import ResourceLimitExceededError
from qstore.broker.model.tick import Tick
from tests.support.fake_store import FakeError, FakeFailedError, FakeFullError, HandTurned, Model

Runs = list[list[int]]


class Session:
    """A worker whose commands wait for the disk if it says so, and which writes down what happens."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log
        self.held: Runs = []
        self.is_in_step = False
        self.when_notified: Callable[[], None] = lambda: None

    def complete_received(self) -> Runs:
        self.log.append(f"{self.name} settles")
        held, self.held = self.held, []
        return held

    def complete(self, runs: Runs) -> None:
        self.log.append(f"{self.name} released {runs}")

    def fail(self, runs: Runs, error: Exception) -> None:
        self.log.append(f"{self.name} failed {runs}: {error}")

    def report_completed(self) -> None:
        self.log.append(f"{self.name} tells")
        self.when_notified()


class Output:
    """A connection with something to send."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def write_output(self) -> None:
        self.log.append("written")


@pytest.fixture
def log() -> list[str]:
    return []


def test_order_of_the_end(model: Model, log: list[str]) -> None:
    tick, queue = model.tick, model.queue("q", durable=True)
    other = model.queue("other")
    model.consumer(other, on_delivery=lambda _: log.append("delivered"))
    session = Session("s", log)
    when_synced = model.store.when_synced

    def logged(*arguments: object, **named: object) -> None:
        log.append("flush")
        when_synced(*arguments, **named)  # type: ignore[arg-type]

    model.store.when_synced = logged  # type: ignore[method-assign]
    model.publish("q", b"1")
    model.publish("other", b"2")
    session.held = [[0, 0]]
    tick.workers[session] = tick.outputs[Output(log)] = None
    model.run()
    assert log == ["s settles", "flush", "delivered", "s tells", "written"]
    assert not queue.is_empty


def test_held_command_is_released_once_on_disk(model: Model, log: list[str]) -> None:
    queue, session = model.queue("q", durable=True), Session("s", log)
    consumer = model.consumer(queue)
    model.publish("q", b"1")
    session.held = [[0, 0]]
    model.tick.workers[session] = None
    model.run()
    assert log == ["s settles", "s tells"]
    assert consumer.bodies == []
    model.store.complete()
    assert log[2:] == ["s released [[0, 0]]"]
    model.run()
    assert log[3:] == ["s settles", "s tells"]
    assert consumer.bodies == [b"1"]
    assert model.tick.flushes_under_way == 0


def test_a_turn_in_which_nothing_was_written_asks_no_disk(model: Model, log: list[str]) -> None:
    session = Session("s", log)
    session.held = [[3, 4]]
    model.tick.workers[session] = None
    model.tick.when_synced(lambda error: log.append(f"later {error}"))
    model.run()
    assert log == ["s settles", "s released [[3, 4]]", "later None", "s tells"]
    assert model.store.flushed == []


def test_one_flush_for_all_journals_and_sessions_of_a_turn(model: Model, log: list[str]) -> None:
    queues = [model.queue(name, durable=True) for name in "abc"]
    sessions = [Session(name, log) for name in "st"]
    for name in "abcabc":
        model.publish(name, b"x")
    for number, session in enumerate(sessions):
        session.held = [[number, number]]
        model.tick.workers[session] = None
    model.run()
    assert model.store.flushed == [[queue.journal for queue in queues]]
    log.clear()
    model.store.complete()
    assert log == ["s released [[0, 0]]", "t released [[1, 1]]"]


@pytest.mark.parametrize("is_commit_first", [False, True])
def test_commit_elsewhere_does_not_complete_unsynced_publishes(
    model: Model, log: list[str], *, is_commit_first: bool
) -> None:
    """In one tick one client publishes and another commits to the same queue: the tick waits for the journal."""
    queue, tick, session = model.queue("q", durable=True), model.tick, Session("s", log)
    transaction = model.broker.begin_transaction(0)
    transaction.publish(model.message("q", b"1"), model.broker.default_host.exchanges[""])

    def commit() -> None:
        transaction.commit(lambda _: None)

    def publish() -> None:
        model.publish("q", b"2")
        session.held = [[0, 0]]
        tick.workers[session] = None

    for work in (commit, publish) if is_commit_first else (publish, commit):
        before = tick.set_aside()
        work()
        assert list(tick.written_since(before)) == [queue.journal]
    model.run()
    assert model.store.flushed == [[queue.journal]]
    assert "s released [[0, 0]]" not in log
    model.sync()
    assert "s released [[0, 0]]" in log


def test_turns_gather_while_a_flush_is_under_way(model: Model, log: list[str]) -> None:
    """Each tick's commands wait for that tick's flush, whatever comes before it or after."""
    queue, session = model.queue("q", durable=True), Session("s", log)
    consumer = model.consumer(queue)
    for number in range(4):
        model.publish("q", b"%d" % number)
        session.held = [[number, number]]
        model.tick.workers[session] = None
        model.run()
    assert model.tick.flushes_under_way == 4
    log.clear()
    for number in range(4):
        model.store.complete()
        model.run()
        assert f"s released [[{number}, {number}]]" in log
        assert f"s released [[{number + 1}, {number + 1}]]" not in log
        assert len(consumer.entries) == number + 1
    assert model.tick.flushes_under_way == 0


@pytest.mark.parametrize(
    "error", [None, FakeFailedError("gone"), FakeFullError("full")], ids=["done", "failed", "full"]
)
def test_a_commit_that_waits_for_the_disk_is_something_that_is_waited_for(
    model: Model, error: FakeError | None
) -> None:
    """The event loop polls for input only on request."""
    model.queue("q", durable=True)
    ended: list[int] = []
    model.tick.ended = lambda: ended.append(1)
    for _ in range(2):
        transaction = model.broker.begin_transaction(0)
        transaction.publish(model.message("q", b"1"), model.broker.default_host.exchanges[""])
        transaction.commit(lambda _: None)
    for left in (2, 1, 0):
        model.run()
        assert model.tick.transactions_under_way == left
        assert bool(ended) == (left == 0)
        if left:
            model.store.complete(error=error)


def test_a_commit_that_is_refused_is_not_waited_for(model: Model) -> None:
    model.queue("q", durable=True).journal.is_full = True
    transaction = model.broker.begin_transaction(0)
    transaction.publish(model.message("q", b"1"), model.broker.default_host.exchanges[""])
    with pytest.raises(ResourceLimitExceededError):
        transaction.commit(lambda _: None)
    assert model.tick.transactions_under_way == 0


def test_a_peer_that_waits_is_answered_before_messages_are_delivered(model: Model, log: list[str]) -> None:
    queue, session = model.queue("q", durable=True), Session("s", log)
    model.consumer(queue, on_delivery=lambda _: log.append("delivered"))
    model.publish("q", b"1")
    model.run()
    model.store.complete()
    output = Output(log)
    session.when_notified = lambda: model.tick.outputs.setdefault(output, None)
    model.tick.workers[session] = model.tick.awaited[session] = None
    log.clear()
    model.run()
    assert log == ["s settles", "s tells", "written", "delivered", "s tells", "written"]


def test_a_flush_that_is_done_at_once(model: Model, log: list[str]) -> None:
    """What it held goes out in the same tick: a completion, and the message."""
    model.store.is_immediate = True
    queue, session, output = model.queue("q", durable=True), Session("s", log), Output(log)
    model.consumer(queue, on_delivery=lambda _: log.append("delivered"))
    model.publish("q", b"1")
    session.held = [[0, 0]]
    model.tick.workers[session] = model.tick.outputs[output] = None
    model.tick.end()
    assert log == ["s settles", "s released [[0, 0]]", "delivered", "s tells", "written"]
    model.run()
    assert model.tick.flushes_under_way == 0


def test_the_removal_by_a_delivery_is_appended_in_the_same_tick(model: Model) -> None:
    """A consumer without acceptance: the message leaves the journal, too, and nothing waits for that."""
    queue = model.queue("q", durable=True)
    model.publish("q", b"1")
    model.sync()
    model.store.flushed.clear()
    model.store.may_block.clear()
    model.consumer(queue, on_delivery=queue.dequeue)
    model.tick.end()
    assert (model.store.flushed, model.store.patient) == ([], [])
    assert queue.journal.live == {}
    assert len(model.store.may_block) == 2, "the store is told after the delivery, too"


def test_the_loop_learns_how_many_peers_wait_for_the_disk(model: Model, log: list[str]) -> None:
    """Those that have nothing to wait for, or go on sending meanwhile, do not count."""
    model.queue("q", durable=True)
    asked: list[int] = []
    model.tick.is_idle = lambda waiting, _flushes: bool(asked.append(waiting))
    sessions = [Session(str(number), log) for number in range(4)]
    for number, session in enumerate(sessions):
        session.is_in_step = number != 0
        session.held = [[0, 0]] if number != 1 else []
        model.tick.workers[session] = None
    model.publish("q", b"1")
    model.tick.end()
    assert asked == [2]


def test_a_flush_that_fails_fails_those_that_were_held(model: Model, log: list[str]) -> None:
    queue = model.queue("q", durable=True)
    consumer = model.consumer(queue)
    session, other = Session("s", log), Session("t", log)
    model.publish("q", b"1")
    session.held = [[5, 6]]
    model.tick.workers[session] = model.tick.workers[other] = None
    model.tick.when_synced(lambda error: log.append(f"later {error}"))
    model.run()
    log.clear()
    model.store.complete(error=FakeFailedError("gone"))
    model.run()
    assert log == ["s failed [[5, 6]]: gone", "later gone", "s settles", "s tells"]
    assert consumer.entries == []
    assert model.tick.flushes_under_way == 0


def test_a_journal_that_fails_does_not_keep_back_another_queue(model: Model) -> None:
    """Two queues wait for one flush; one of their journals fails: the other's messages are on the disk all the same."""
    failing, healthy = model.queue("failing", durable=True), model.queue("healthy", durable=True)
    consumers = [model.consumer(failing), model.consumer(healthy)]
    model.publish("failing", b"1")
    model.publish("healthy", b"2")
    model.run()
    model.store.complete(error=FakeFailedError("gone"))
    model.run()
    while model.store.waiting:
        (journal,) = model.store.waiting[0].journals
        model.store.complete(error=FakeFailedError("gone") if journal is failing.journal else None)
        model.run()
    assert [consumer.bodies for consumer in consumers] == [[], [b"2"]]
    model.publish("healthy", b"3")
    model.sync()
    assert consumers[1].bodies == [b"2", b"3"]


def test_callbacks_may_ask_for_another(model: Model, log: list[str]) -> None:
    """As a message that moves: first it is kept where it goes, then it leaves, and then that is known."""
    queue = model.queue("q", durable=True)

    def first(error: Exception | None) -> None:
        log.append(f"first {error}")
        queue.publish(model.message("q", b"2"))
        model.tick.when_synced(lambda error: log.append(f"second {error}"))

    model.publish("q", b"1")
    model.tick.when_synced(first)
    model.run()
    assert log == []
    model.store.complete()
    model.run()
    assert log == ["first None"]
    model.store.complete()
    model.run()
    assert log == ["first None", "second None"]


def test_a_callback_within_a_flush_that_is_done_at_once_may_ask_for_another(model: Model, log: list[str]) -> None:
    model.store.is_immediate = True
    queue = model.queue("q", durable=True)

    def again(error: Exception | None) -> None:
        log.append(f"{error}")
        if len(log) < 3:
            queue.publish(model.message("q", b"x"))
            model.tick.when_synced(again)

    queue.publish(model.message("q", b"x"))
    model.tick.when_synced(again)
    model.run()
    assert log == ["None"] * 3
    assert len(queue.journal.synced) == 3


def test_work_after_the_end_of_a_turn_gets_another(log: list[str]) -> None:
    loop = HandTurned()
    tick = Tick(loop, None)
    session = Session("s", log)
    for _ in range(3):
        tick.workers[session] = None
        tick.schedule()
    assert len(loop.calls) == 1
    loop.run()
    assert log == ["s settles", "s tells"]
    tick.workers[session] = None
    tick.schedule()
    loop.run()
    assert log == ["s settles", "s tells"] * 2


def test_a_waiter_notified_while_the_turn_ends_gets_another(log: list[str]) -> None:
    """Sending may bring up new work: another connection's session that ends, for one."""
    loop = HandTurned()
    tick = Tick(loop, None)
    first, second = Session("s", log), Session("t", log)

    def tell() -> None:
        first.when_notified = lambda: None
        tick.workers[second] = None
        tick.schedule()

    first.when_notified = tell
    tick.workers[first] = None
    tick.schedule()
    loop.run()
    assert "t tells" in log


# ---- records that no peer waits for ----


@pytest.fixture
def delivered(model: Model) -> Model:
    """A broker with a synced message on the durable queue q, acquired by a consumer."""
    queue = model.queue("q", durable=True)
    model.consumer(queue, credit=1)
    model.publish("q", b"1")
    model.sync()
    assert queue.is_empty is False
    model.store.flushed.clear()
    return model


def accept(model: Model, session: Session | None = None) -> None:
    """Remove the message in this tick, for a command of the session that waits for the disk."""
    queue = model.broker.default_host.queues["q"]
    assert queue.dequeue(next(iter(queue.entries())))
    if session is not None:
        session.held = [[7, 7]]
        model.tick.workers[session] = None


def test_removals_wait_for_the_disk_patiently(delivered: Model, log: list[str]) -> None:
    ended: list[int] = []
    delivered.tick.ended = lambda: ended.append(1)
    accept(delivered, Session("s", log))
    delivered.run()
    assert (delivered.store.flushed, len(delivered.store.patient)) == ([], 1)
    assert log == ["s settles", "s tells"]
    assert ended, "the event loop may poll for input"
    delivered.store.linger_no_longer()
    delivered.store.complete()
    assert log[2:] == ["s released [[7, 7]]"]
    assert delivered.tick.flushes_under_way == 0


def test_a_peer_that_waits_for_completion_makes_all_waiters_urgent(delivered: Model, log: list[str]) -> None:
    accept(delivered, Session("s", log))
    delivered.run()
    delivered.tick.is_urgent = True
    delivered.run()
    assert delivered.store.flushed == [[delivered.broker.default_host.queues["q"].journal]]
    delivered.store.complete()
    assert "s released [[7, 7]]" in log


def test_the_removals_of_a_peer_that_waits_are_urgent(delivered: Model, log: list[str]) -> None:
    accept(delivered, Session("s", log))
    delivered.tick.is_urgent = True
    delivered.run()
    assert (len(delivered.store.flushed), delivered.store.patient) == (1, [])
    assert delivered.tick.flushes_under_way == 1


def test_removals_in_a_tick_with_new_messages_are_urgent(delivered: Model, log: list[str]) -> None:
    delivered.publish("q", b"2")
    accept(delivered, Session("s", log))
    delivered.run()
    assert (len(delivered.store.flushed), delivered.store.patient) == (1, [])
    delivered.sync()
    assert log.count("s released [[7, 7]]") == 1


def test_a_callback_makes_removals_urgent(delivered: Model, log: list[str]) -> None:
    accept(delivered)
    delivered.tick.when_synced(lambda error: log.append(f"later {error}"))
    delivered.run()
    assert delivered.store.flushed == [[delivered.broker.default_host.queues["q"].journal]]
    assert log == []
    delivered.sync()
    assert log == ["later None"]


def test_removals_that_cannot_be_written_fail_the_session(delivered: Model, log: list[str]) -> None:
    accept(delivered, Session("s", log))
    delivered.run()
    delivered.store.linger_no_longer()
    delivered.store.complete(error=FakeFailedError("broken"))
    assert "s failed [[7, 7]]: broken" in log


def test_a_tick_that_was_scheduled_before_the_store_was_closed_does_nothing(model: Model, log: list[str]) -> None:
    """The event loop still calls what was scheduled, as long as it winds up."""
    queue, session = model.queue("q", durable=True), Session("s", log)
    model.consumer(queue)
    model.publish("q", b"1")
    model.tick.workers[session] = model.tick.outputs[Output(log)] = None
    model.broker.close()
    model.run()
    assert (log, model.store.flushed) == ([], [])


def test_an_end_before_the_scheduled_one_leaves_one_scheduled(log: list[str]) -> None:
    """The completion of a flush ends the tick at once: with work left, each added an end to every later iteration."""
    scheduled: list[Callable[[], None]] = []
    tick = Tick(scheduled.append, None)
    session = Session("s", log)

    def has_more() -> None:
        tick.workers[session] = None  # type: ignore[index]

    session.when_notified = has_more
    has_more()
    tick.schedule()
    for _ in range(5):
        tick.end()
        assert len(scheduled) == 1
        scheduled.pop()()
        assert len(scheduled) == 1


def test_a_tick_that_was_ended_early_has_no_second_end(model: Model) -> None:
    queue, ended = model.queue("q", durable=True), []
    model.consumer(queue)
    model.publish("q", b"1")
    model.run()
    model.tick.ended = lambda: ended.append(1)
    model.store.complete()
    model.tick.end()
    assert (ended, queue.message_count) == ([1], 1)
    model.loop.run()
    assert ended == [1]
    model.publish("q", b"2")
    model.run()
    assert len(model.store.waiting) == 1, "what is scheduled later has an end of its own"
