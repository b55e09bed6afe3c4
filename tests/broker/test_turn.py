"""A turn's end: in which order things are done, and what is promised when the disk is slow, fails, or is quick."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.model.turn import Turn
from tests.support.fake_store import FakeFailedError, HandTurned, Model

Runs = list[list[int]]


class Session:
    """A worker whose commands wait for the disk if it says so, and which writes down what happens."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log
        self.held: Runs = []
        self.when_told: Callable[[], None] = lambda: None

    def settle(self) -> Runs:
        self.log.append(f"{self.name} settles")
        held, self.held = self.held, []
        return held

    def release(self, runs: Runs) -> None:
        self.log.append(f"{self.name} released {runs}")

    def fail(self, runs: Runs, error: Exception) -> None:
        self.log.append(f"{self.name} failed {runs}: {error}")

    def tell_completed(self) -> None:
        self.log.append(f"{self.name} tells")
        self.when_told()


class Output:
    """A connection with something to send."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def write_output(self) -> None:
        self.log.append("written")


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def log() -> list[str]:
    return []


def test_order_of_the_end(model: Model, log: list[str]) -> None:
    turn, queue = model.turn, model.queue("q", durable=True)
    other = model.queue("other")
    model.consumer(other, on_delivery=lambda _: log.append("delivered"))
    session = Session("s", log)
    flush = model.store.flush

    def logged(*arguments: object, **named: object) -> None:
        log.append("flush")
        flush(*arguments, **named)  # type: ignore[arg-type]

    model.store.flush = logged  # type: ignore[method-assign]
    model.publish("q", b"1")
    model.publish("other", b"2")
    session.held = [[0, 0]]
    turn.workers[session] = turn.outputs[Output(log)] = None
    model.run()
    assert log == ["s settles", "flush", "delivered", "s tells", "written"]
    assert not queue.is_empty


def test_what_is_held_is_released_when_it_is_on_the_disk(model: Model, log: list[str]) -> None:
    queue, session = model.queue("q", durable=True), Session("s", log)
    consumer = model.consumer(queue)
    model.publish("q", b"1")
    session.held = [[0, 0]]
    model.turn.workers[session] = None
    model.run()
    assert log == ["s settles", "s tells"]
    assert consumer.bodies == []
    model.store.complete()
    assert log[2:] == ["s released [[0, 0]]"]
    model.run()
    assert log[3:] == ["s settles", "s tells"]
    assert consumer.bodies == [b"1"]
    assert model.turn.flushes_under_way == 0


def test_a_turn_in_which_nothing_was_written_asks_no_disk(model: Model, log: list[str]) -> None:
    session = Session("s", log)
    session.held = [[3, 4]]
    model.turn.workers[session] = None
    model.turn.when_synced(lambda error: log.append(f"later {error}"))
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
        model.turn.workers[session] = None
    model.run()
    assert model.store.flushed == [[queue.journal for queue in queues]]
    log.clear()
    model.store.complete()
    assert log == ["s released [[0, 0]]", "t released [[1, 1]]"]


def test_turns_gather_while_a_flush_is_under_way(model: Model, log: list[str]) -> None:
    """Each turn's commands wait for that turn's flush, whatever comes before it or after."""
    queue, session = model.queue("q", durable=True), Session("s", log)
    consumer = model.consumer(queue)
    for number in range(4):
        model.publish("q", b"%d" % number)
        session.held = [[number, number]]
        model.turn.workers[session] = None
        model.run()
    assert model.turn.flushes_under_way == 4
    log.clear()
    for number in range(4):
        model.store.complete()
        model.run()
        assert f"s released [[{number}, {number}]]" in log
        assert f"s released [[{number + 1}, {number + 1}]]" not in log
        assert len(consumer.entries) == number + 1
    assert model.turn.flushes_under_way == 0


def test_a_flush_that_is_done_at_once(model: Model, log: list[str]) -> None:
    """What it held goes out in the same turn: a completion, and the message."""
    model.store.is_immediate = True
    queue, session, output = model.queue("q", durable=True), Session("s", log), Output(log)
    model.consumer(queue, on_delivery=lambda _: log.append("delivered"))
    model.publish("q", b"1")
    session.held = [[0, 0]]
    model.turn.workers[session] = model.turn.outputs[output] = None
    model.turn.end()
    assert log == ["s settles", "s released [[0, 0]]", "delivered", "s tells", "written"]
    model.run()
    assert model.turn.flushes_under_way == 0


def test_what_delivery_writes_is_flushed_in_the_same_turn(model: Model, log: list[str]) -> None:
    """One who takes without accepting: the message is gone from the journal, too."""
    queue = model.queue("q", durable=True)
    model.publish("q", b"1")
    model.sync()
    model.store.flushed.clear()
    model.consumer(queue, on_delivery=queue.dequeue)
    model.turn.end()
    assert model.store.flushed == [[queue.journal]]
    assert queue.journal.live == {}


def test_a_flush_that_fails_fails_those_that_were_held(model: Model, log: list[str]) -> None:
    queue = model.queue("q", durable=True)
    consumer = model.consumer(queue)
    session, other = Session("s", log), Session("t", log)
    model.publish("q", b"1")
    session.held = [[5, 6]]
    model.turn.workers[session] = model.turn.workers[other] = None
    model.turn.when_synced(lambda error: log.append(f"later {error}"))
    model.run()
    log.clear()
    model.store.complete(error=FakeFailedError("gone"))
    model.run()
    assert log == ["s failed [[5, 6]]: gone", "later gone", "s settles", "s tells"]
    assert consumer.entries == []
    assert model.turn.flushes_under_way == 0


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
        model.turn.when_synced(lambda error: log.append(f"second {error}"))

    model.publish("q", b"1")
    model.turn.when_synced(first)
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
            model.turn.when_synced(again)

    queue.publish(model.message("q", b"x"))
    model.turn.when_synced(again)
    model.run()
    assert log == ["None"] * 3
    assert len(queue.journal.synced) == 3


def test_what_comes_after_a_turns_end_has_another(log: list[str]) -> None:
    loop = HandTurned()
    turn = Turn(loop, None)
    session = Session("s", log)
    for _ in range(3):
        turn.workers[session] = None
        turn.schedule()
    assert len(loop.calls) == 1
    loop.run()
    assert log == ["s settles", "s tells"]
    turn.workers[session] = None
    turn.schedule()
    loop.run()
    assert log == ["s settles", "s tells"] * 2


def test_one_that_is_told_while_the_turn_ends_gets_another(log: list[str]) -> None:
    """Sending may bring up new work: another connection's session that ends, for one."""
    loop = HandTurned()
    turn = Turn(loop, None)
    first, second = Session("s", log), Session("t", log)

    def tell() -> None:
        first.when_told = lambda: None
        turn.workers[second] = None
        turn.schedule()

    first.when_told = tell
    turn.workers[first] = None
    turn.schedule()
    loop.run()
    assert "t tells" in log
