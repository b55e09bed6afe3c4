"""Credit and windows, by message and by byte: what a session is sent, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.protocols.output import ROOM
from tests.broker.protocols.filled import completed, filled, left, numbered
from tests.broker.protocols.world import BYTES, CREDIT, MESSAGES, UNLIMITED, WINDOW
from tests.support.profiles import examples

SIZE = 11 + 3  # of a message of three bytes: its delivery-properties are 11 bytes with the key "q"


def test_the_size_that_the_tests_of_credit_count_with() -> None:
    client = filled(b"abc")
    client.subscribe("q")
    (delivery,) = client.deliveries
    assert len(delivery.header) + len(delivery.body) == SIZE


# ---- credit ----


def test_nothing_comes_without_credit() -> None:
    client = filled(*numbered(3))
    client.command("message.subscribe", queue="q", destination="d")
    assert client.take() == []
    client.flow("d", MESSAGES, 5)
    assert client.take() == []
    client.flow("d", BYTES, UNLIMITED)
    assert client.take() == numbered(3)


@pytest.mark.parametrize("mode", [CREDIT, WINDOW])
def test_credit_of_messages_is_used_up(mode: int) -> None:
    client = filled(*numbered(10))
    client.subscribe("q", messages=3, mode=mode)
    assert client.take() == numbered(10)[:3]
    client.flow("q", MESSAGES, 2)
    assert client.take() == numbered(10)[3:5]


@pytest.mark.parametrize("mode", [CREDIT, WINDOW])
def test_credit_of_bytes_is_used_up(mode: int) -> None:
    client = filled(*numbered(10))
    client.subscribe("q", size=3 * SIZE - 1, mode=mode)
    assert client.take() == numbered(10)[:2]
    client.flow("q", BYTES, 1)
    assert client.take() == numbered(10)[2:3]


def test_the_window_moves_when_transfers_are_completed() -> None:
    client = filled(*numbered(10))
    client.subscribe("q", messages=3, mode=WINDOW)
    client.take()
    completed(client, (0, 1))
    assert client.take() == numbered(10)[3:5]
    completed(client, (0, 4))
    assert client.take() == numbered(10)[5:8]
    completed(client, (0, 4))
    assert client.take() == []


def test_the_window_of_bytes_moves_too() -> None:
    client = filled(*numbered(10))
    client.subscribe("q", size=2 * SIZE, mode=WINDOW)
    assert client.take() == numbered(10)[:2]
    completed(client, (1, 1))
    assert client.take() == numbered(10)[2:3]
    completed(client, (0, 0), (2, 2))
    assert client.take() == numbered(10)[3:5]


def test_completing_moves_no_credit_in_credit_mode() -> None:
    client = filled(*numbered(10))
    client.subscribe("q", messages=3, mode=CREDIT)
    client.take()
    completed(client, (0, 2))
    client.command("message.accept", transfers=((0, 2),))
    assert client.take() == []


def test_accepting_alone_moves_no_window() -> None:
    client = filled(*numbered(10))
    client.subscribe("q", messages=3, mode=WINDOW)
    client.take()
    client.command("message.accept", transfers=((0, 2),))
    assert client.take() == []
    completed(client, (0, 2))
    assert len(client.take()) == 3


def test_the_window_of_each_subscription_is_its_own() -> None:
    client = filled(*numbered(10))
    client.declare("p")
    client.publish("p", *numbered(10))
    client.subscribe("q", messages=2, mode=WINDOW)
    client.subscribe("p", messages=2, mode=WINDOW)
    assert [each.destination for each in client.deliveries] == ["q", "q", "p", "p"]
    client.take()
    completed(client, (3, 3))
    assert [each.destination for each in client.deliveries] == ["p"]
    completed(client, (0, 3))
    assert [each.destination for each in client.deliveries] == ["p", "q", "q", "p"]


def test_setting_the_flow_mode_takes_the_credit_away() -> None:
    client = filled(*numbered(5))
    client.command("message.subscribe", queue="q", destination="q")
    client.flow("q", MESSAGES, 2)
    client.command("message.set-flow-mode", destination="q", flow_mode=CREDIT)
    client.flow("q", BYTES, UNLIMITED)
    assert client.take() == []


def test_completions_after_stop_restore_no_credit() -> None:
    client = filled(*numbered(10))
    client.subscribe("q", messages=4, mode=WINDOW)
    client.take()
    client.command("message.stop", destination="q")
    completed(client, (0, 3))
    assert client.take() == []
    client.flow("q", MESSAGES, 1)
    client.flow("q", BYTES, UNLIMITED)
    assert client.take() == numbered(10)[4:5]
    completed(client, (4, 4))
    assert client.take() == numbered(10)[5:6]


def test_completions_from_before_a_stop_give_no_credit() -> None:
    client = filled(*numbered(10))
    client.subscribe("q", messages=2, mode=WINDOW)
    client.command("message.stop", destination="q")
    client.flow("q", MESSAGES, 2)
    client.flow("q", BYTES, UNLIMITED)
    assert client.take() == numbered(10)[:4]
    completed(client, (0, 3))
    assert client.take() == numbered(10)[4:6]


def test_flush_delivers_available_messages_and_ends_the_credit() -> None:
    client = filled(*numbered(3))
    client.command("message.subscribe", queue="q", destination="q")
    client.flow("q", MESSAGES, 10)
    client.flow("q", BYTES, UNLIMITED)
    number = client.command("message.flush", destination="q")
    client.publish("q", b"late")
    assert client.take() == numbered(3)
    assert number in client.completed


def test_flush_comes_before_its_completion() -> None:
    client = filled(b"1")
    client.command("message.subscribe", queue="q", destination="q")
    client.flow("q", MESSAGES, 10)
    client.flow("q", BYTES, UNLIMITED)
    client.all.clear()
    client.command("message.flush", destination="q")
    client.sync()
    assert [each.name for each in client.all] == ["message.transfer", "session.completed"]


def test_a_flush_is_completed_when_all_that_there_is_was_sent() -> None:
    """However much that is, and though clients have their turn in between."""
    bodies = [bytes([65 + number]) * (ROOM // 2) for number in range(10)]
    client = filled(*bodies)
    client.command("message.subscribe", queue="q", destination="q")
    client.flow("q", MESSAGES, 10)
    client.flow("q", BYTES, UNLIMITED)
    client.all.clear()
    number = client.command("message.flush", destination="q")
    client.sync()
    assert [each.name for each in client.all][-1] == "session.completed"
    assert client.take() == bodies
    assert number in client.completed


def test_a_flush_waits_for_a_socket_that_takes_no_more_and_ends_with_its_subscription() -> None:
    client = filled(*numbered(3))
    client.command("message.subscribe", queue="q", destination="q")
    client.machine.pause_sending()
    client.flow("q", MESSAGES, 10)
    client.flow("q", BYTES, UNLIMITED)
    first = client.command("message.flush", destination="q")
    client.sync()
    assert first not in client.completed
    client.machine.resume_sending()
    assert client.take() == numbered(3)
    assert first in client.completed
    client.machine.pause_sending()
    client.flow("q", MESSAGES, 10)
    client.flow("q", BYTES, UNLIMITED)
    second = client.command("message.flush", destination="q")
    client.command("message.cancel", destination="q")
    client.sync()
    assert second in client.completed


def test_completions_after_a_cancel_bring_nothing() -> None:
    """The window of a subscription that is gone does not move."""
    client = filled(*numbered(10))
    client.subscribe("q", messages=2, mode=WINDOW)
    client.take()
    number = client.command("message.cancel", destination="q")
    completed(client, (0, 1))
    assert client.take() == []
    assert number in client.completed
    assert client.world.broker.default_host.queues["q"].consumer_count == 0
    client.command("message.accept", transfers=((0, 1),))
    client.sync()
    assert left(client) == numbered(10)[2:]
    client.subscribe("q", messages=2)
    assert client.take() == numbered(10)[2:4]


def test_completions_after_the_queue_is_gone_bring_nothing() -> None:
    client = filled(*numbered(3))
    client.subscribe("q", messages=2, mode=WINDOW)
    client.take()
    client.command("message.cancel", destination="q")
    client.command("queue.delete", queue="q")
    completed(client, (0, 1))
    client.command("message.accept", transfers=((0, 1),))
    client.sync()
    assert client.exceptions == []


@examples(150)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.integers(1, 6)),
            st.tuples(st.just("complete"), st.integers(0, 30)),
            st.tuples(st.just("flow"), st.integers(1, 4)),
            st.tuples(st.just("stop"), st.just(0)),
        ),
        max_size=25,
    )
)
def test_the_window_against_a_model(steps: list[tuple[str, int]]) -> None:
    client = filled()
    client.subscribe("q", messages=3, mode=WINDOW)
    credit, waiting, sent = 3, 0, 0
    outstanding: dict[int, int] = {}
    epoch = 0
    for step, value in steps:
        if step == "publish":
            client.publish("q", *numbered(value))
            waiting += value
        elif step == "flow":
            client.flow("q", MESSAGES, value)
            client.flow("q", BYTES, UNLIMITED)
            credit += value
        elif step == "stop":
            client.command("message.stop", destination="q")
            credit, epoch = 0, epoch + 1
        elif sent:
            number = value % sent
            client.control("session.completed", on=1, commands=((number, number),), timely_reply=False)
            if outstanding.pop(number, -1) == epoch:
                credit += 1
        given_now = min(waiting, credit)
        for number in range(sent, sent + given_now):
            outstanding[number] = epoch
        waiting, credit, sent = waiting - given_now, credit - given_now, sent + given_now
        assert len(client.take()) == given_now


@examples(150)
@given(st.lists(st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=5), max_size=4))
def test_completions_in_any_ranges_move_only_their_own_window(
    controls: list[list[tuple[int, int]]],
) -> None:
    client = filled()
    client.declare("p")
    for name in ("q", "p"):
        client.subscribe(name, messages=20, mode=WINDOW)
    for number in range(60):
        client.publish("q" if number % 3 else "p", b"x" * (number % 4))
        client.publish("p" if number % 3 else "q", b"y")
    client.sync()
    sent_to = {each.number: each.destination for each in client.deliveries}
    assert len(sent_to) == 40
    done: set[int] = set()
    for control in controls:
        client.deliveries.clear()
        ranges = [(min(pair), max(pair)) for pair in control]
        completed(client, *ranges)
        named = {number for first, last in ranges for number in range(first, last + 1)}
        for name in ("q", "p"):
            moved = sum(sent_to[number] == name for number in named - done)
            assert sum(each.destination == name for each in client.deliveries) == moved
        done |= named


# ---- the room of a connection ----


def test_a_connection_that_is_sent_much_gives_others_their_turn() -> None:
    client = filled(*(bytes(100_000) for _ in range(10)))
    client.command("message.subscribe", queue="q", destination="q")
    client.flow("q", MESSAGES, UNLIMITED)
    client.flow("q", BYTES, UNLIMITED)
    client.world.soon.pop(0)()
    assert 100_000 < len(client.host.output) < ROOM + 101_000
    assert len(client.take()) == 10


def test_a_consumer_does_not_fall_behind_a_publisher_that_is_read_once_in_each_turn() -> None:
    read = 256 * 1000  # bytes that uvloop reads from a socket at once
    client = filled()
    client.command("message.subscribe", queue="q", destination="q")
    client.flow("q", MESSAGES, UNLIMITED)
    client.flow("q", BYTES, UNLIMITED)
    bodies = numbered(read // 1100)
    client.publish("q", *(body.ljust(1024) for body in bodies))
    client.world.soon.pop(0)()
    assert len(client.host.output) > read * 1024 // 1100


def test_a_socket_that_takes_no_more_is_sent_no_more() -> None:
    client = filled()
    client.subscribe("q")
    client.machine.pause_sending()
    client.publish("q", *numbered(5))
    assert client.take() == []
    client.machine.resume_sending()
    assert client.take() == numbered(5)


def test_a_message_larger_than_a_frame() -> None:
    body = bytes(range(256)) * 1000
    client = filled(body, b"")
    client.subscribe("q")
    assert client.take() == [body, b""]
