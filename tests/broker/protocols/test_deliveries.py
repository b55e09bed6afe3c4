"""What a session is sent, and what it does with it: credit, acquire, accept, release, reject, browse."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.protocols.amqp_0_10.server_connection import ROOM
from broker.settings import BrokerSettings
from formats.amqp_0_10.codes import ErrorCode
from tests.broker.protocols.world import BYTES, CREDIT, MESSAGES, UNLIMITED, WINDOW, Client, World

ALL = ((0, 0x7FFF_FFFF),)


def filled(*bodies: bytes, queue_limit_bytes: int = 0) -> Client:
    """A client and a queue `q` with these messages."""
    client = World(BrokerSettings(auth=False, queue_limit_bytes=queue_limit_bytes)).open_client()
    client.declare("q")
    client.publish("q", *bodies)
    client.sync()
    return client


def numbered(count: int) -> list[bytes]:
    return [b"%03d" % number for number in range(count)]


def completed(client: Client, *ranges: tuple[int, int]) -> None:
    client.control("session.completed", on=1, commands=ranges, timely_reply=False)
    client.sync()


def left(client: Client, queue: str = "q") -> list[bytes]:
    return [entry.message.body for entry in client.world.broker.queues[queue].available()]


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


def test_stop_takes_the_credit_away_and_what_was_sent_before_gives_none_back() -> None:
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


def test_flush_delivers_what_there_is_and_then_takes_the_credit_away() -> None:
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


def test_completions_after_a_cancel_bring_nothing() -> None:
    """The window of a subscription that is gone does not move."""
    client = filled(*numbered(10))
    client.subscribe("q", messages=2, mode=WINDOW)
    client.take()
    number = client.command("message.cancel", destination="q")
    completed(client, (0, 1))
    assert client.take() == []
    assert number in client.completed
    assert client.world.broker.queues["q"].consumer_count == 0
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


@settings(max_examples=150, deadline=None)
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


# ---- the room of a connection ----


def test_a_connection_that_is_sent_much_gives_others_their_turn() -> None:
    client = filled(*(bytes(100_000) for _ in range(10)))
    client.command("message.subscribe", queue="q", destination="q")
    client.flow("q", MESSAGES, UNLIMITED)
    client.flow("q", BYTES, UNLIMITED)
    client.world.soon.pop(0)()
    assert 100_000 < len(client.host.output) < ROOM + 101_000
    assert len(client.take()) == 10


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


# ---- accept, release, reject ----


def test_accepted_messages_are_gone() -> None:
    client = filled(*numbered(5))
    client.subscribe("q")
    client.command("message.accept", transfers=((0, 1), (3, 3)))
    client.sync()
    queue = client.world.broker.queues["q"]
    assert (queue.message_count, queue.acquired_count) == (2, 2)


@pytest.mark.parametrize("name", ["message.accept", "message.release", "message.reject"])
@pytest.mark.parametrize(
    "transfers",
    [
        ((0, 1), (0, 1)),
        ((0, 3), (1, 2)),
        ALL,
        ((1000, 2000),),
        ((5, 3),),
        ((0xFFFF_FFF0, 2),),
        (),
        None,
        ((0, 0xFFFF_FFFF),),
    ],
)
def test_any_ranges_may_be_named(name: str, transfers: tuple[tuple[int, int], ...] | None) -> None:
    client = filled(*numbered(5))
    client.subscribe("q", messages=5)
    for _ in range(2):
        number = client.command(name, transfers=transfers)
        client.sync()
        assert number in client.completed
    assert client.exceptions == []
    queue = client.world.broker.queues["q"]
    assert queue.acquired_count + len(left(client)) == queue.message_count


def test_without_accepting_a_message_is_gone_when_it_is_sent() -> None:
    client = filled(*numbered(3))
    client.subscribe("q", accept_mode=1, messages=2)
    assert client.take() == numbered(2)
    assert client.world.broker.queues["q"].message_count == 1
    client.command("message.release", transfers=ALL)
    client.sync()
    assert client.world.broker.queues["q"].message_count == 1


@pytest.mark.parametrize("is_marked", [True, False])
def test_released_messages_come_again_in_their_old_order(is_marked: bool) -> None:
    client = filled(*numbered(6))
    client.subscribe("q", messages=4)
    client.take()
    client.command("message.release", transfers=((2, 3), (0, 0)), set_redelivered=is_marked)
    client.flow("q", MESSAGES, 5)
    client.sync()
    marks = [(each.body, each.is_redelivered) for each in client.deliveries]
    assert marks == [
        (b"000", is_marked),
        (b"002", is_marked),
        (b"003", is_marked),
        (b"004", False),
        (b"005", False),
    ]


def test_rejected_messages_are_gone_or_at_the_alternate_exchange() -> None:
    client = filled(b"1", b"2")
    client.declare("dead")
    client.declare("r", alternate_exchange="amq.fanout")
    client.command("exchange.bind", queue="dead", exchange="amq.fanout", binding_key="")
    client.publish("r", b"3", b"4")
    client.subscribe("q")
    client.subscribe("r")
    assert client.take() == [b"1", b"2", b"3", b"4"]
    client.command("message.reject", transfers=((0, 0), (2, 2)), code=0, text="no")
    client.sync()
    assert left(client, "dead") == [b"3"]
    queues = client.world.broker.queues
    assert [queues[name].message_count for name in ("q", "r", "dead")] == [1, 1, 1]


def test_a_reject_that_cannot_be_done_loses_nothing() -> None:
    client = filled(queue_limit_bytes=100)
    client.declare("dead")
    client.declare("r", alternate_exchange="amq.fanout")
    client.command("exchange.bind", queue="dead", exchange="amq.fanout", binding_key="")
    client.publish("r", *(bytes((number,)) * 30 for number in range(3)))
    client.publish("dead", bytes(50))
    client.subscribe("r")
    number = client.command("message.reject", transfers=ALL)
    assert client.failure() == (ErrorCode.RESOURCE_LIMIT_EXCEEDED, number)
    assert [body[:1] for body in left(client, "r")] == [b"\x01", b"\x02"]
    assert client.world.broker.queues["r"].acquired_count == 0
    assert len(left(client, "dead")) == 2


# ---- browse and acquire ----


def test_browsing_leaves_all_where_it_is() -> None:
    client = filled(*numbered(3))
    client.subscribe("q", acquire_mode=1)
    assert client.take() == numbered(3)
    client.publish("q", b"new")
    assert client.take() == [b"new"]
    client.command("message.accept", transfers=ALL)
    client.sync()
    assert left(client) == [*numbered(3), b"new"]


def test_what_was_looked_at_can_be_acquired_once() -> None:
    client = filled(*numbered(6))
    client.subscribe("q", to="look", acquire_mode=1)
    client.take()
    other = client.world.open_client(name=b"other")
    other.subscribe("q", messages=2)
    assert other.take() == numbered(2)
    result = client.call("message.acquire", transfers=((0, 2), (4, 4), (4, 5), (90, 99)))
    assert result["transfers"] == ((2, 2), (4, 5))
    assert client.call("message.acquire", transfers=ALL)["transfers"] == ((3, 3),)
    assert client.call("message.acquire", transfers=ALL)["transfers"] == ()
    client.command("message.accept", transfers=((2, 2),))
    client.command("message.release", transfers=((4, 5),))
    client.sync()
    assert left(client) == [b"004", b"005"]


def test_what_was_looked_at_without_accepting_is_forgotten_when_it_is_completed() -> None:
    client = filled(*numbered(3))
    client.subscribe("q", acquire_mode=1, accept_mode=1, mode=WINDOW, messages=2)
    assert client.take() == numbered(2)
    completed(client, (0, 0))
    assert client.take() == numbered(3)[2:]
    assert client.call("message.acquire", transfers=ALL)["transfers"] == ((1, 2),)


def test_acquired_in_more_ranges_than_a_result_holds() -> None:
    count = 16_400
    client = filled(*(b"x" for _ in range(count)))
    client.subscribe("q", to="look", acquire_mode=1)
    entries = list(client.world.broker.queues["q"].entries())
    for entry in entries[::2]:
        assert client.world.broker.queues["q"].acquire(entry)
    first = client.call("message.acquire", transfers=ALL)["transfers"]
    second = client.call("message.acquire", transfers=ALL)["transfers"]
    assert len(first) + len(second) == count // 2
    assert client.exceptions == []


# ---- several consumers ----


def test_consumers_have_their_turns() -> None:
    client = filled()
    for name in ("a", "b", "c"):
        client.subscribe("q", to=name)
    client.publish("q", *numbered(9))
    client.sync()
    assert [each.destination for each in client.deliveries] == ["a", "b", "c"] * 3


def test_one_without_credit_is_passed_over() -> None:
    client = filled()
    client.subscribe("q", to="a", messages=1)
    client.subscribe("q", to="b")
    client.publish("q", *numbered(5))
    client.sync()
    assert [each.destination for each in client.deliveries] == ["a", "b", "b", "b", "b"]


def test_an_exclusive_consumer_is_the_only_one_until_it_is_cancelled() -> None:
    client = filled(b"1")
    client.subscribe("q", to="only", exclusive=True)
    client.command("message.cancel", destination="only")
    client.subscribe("q", to="next")
    assert client.exceptions == []
    other = client.world.open_client(name=b"other")
    number = other.command("message.subscribe", queue="q", destination="d", exclusive=True)
    assert other.failure() == (ErrorCode.RESOURCE_LOCKED, number)


def test_an_auto_delete_queue_goes_with_its_last_consumer() -> None:
    client = World().open_client()
    client.declare("q", auto_delete=True)
    client.subscribe("q", to="a")
    client.subscribe("q", to="b")
    client.command("message.cancel", destination="a")
    client.sync()
    assert "q" in client.world.broker.queues
    client.command("message.cancel", destination="b")
    client.sync()
    assert "q" not in client.world.broker.queues


def test_an_exclusive_queue_is_free_when_its_session_ends() -> None:
    world = World()
    client = world.open_client(name=b"owner")
    client.declare("q", exclusive=True)
    client.declare("gone", exclusive=True, auto_delete=True)
    client.control("session.detach", on=1, name=b"owner")
    other = world.open_client(name=b"other")
    other.subscribe("q")
    assert other.exceptions == []
    assert "gone" not in world.broker.queues


def test_expired_messages_are_not_delivered() -> None:
    client = filled()
    client.publish("q", b"short", ttl=1000)
    client.publish("q", b"long", ttl=5000)
    client.sync()
    client.world.now += 2
    client.subscribe("q")
    (delivery,) = client.deliveries
    assert (delivery.body, delivery.properties["ttl"]) == (b"long", 3000)


# ---- sessions that outlive their connection ----


def test_a_session_that_is_resumed_keeps_what_it_has_not_accepted() -> None:
    client = World().open_client(timeout=60)
    client.declare("q")
    client.publish("q", *numbered(4))
    client.subscribe("q", messages=2)
    assert client.take() == numbered(2)
    client.machine.closed()
    client.world.run()
    assert client.world.broker.queues["q"].acquired_count == 2
    back = client.world.open_client(name=None)
    back.attach(b"session", on=5, point=client.sent[1])
    assert back.take() == numbered(2), "sent again, since nothing was completed"
    back.command("message.accept", on=5, transfers=((0, 1),))
    back.flow("q", MESSAGES, 9, on=5)
    assert back.take() == numbered(4)[2:]
    assert back.world.broker.queues["q"].message_count == 2


def test_what_an_expired_session_held_is_available_again_and_marked() -> None:
    client = World().open_client(timeout=60)
    client.declare("q")
    client.publish("q", *numbered(3))
    client.subscribe("q", messages=2)
    client.machine.closed()
    client.world.sessions.tick(client.world.now + 61)
    client.world.run()
    queue = client.world.broker.queues["q"]
    assert [(entry.message.body, entry.is_redelivered) for entry in queue.available()] == [
        (b"000", True),
        (b"001", True),
        (b"002", False),
    ]
    assert queue.consumer_count == 0


# ---- transactions ----


def test_a_transaction_shows_nothing_before_its_commit() -> None:
    client = filled(b"old")
    client.subscribe("q", to="d", messages=1)
    client.take()
    client.command("tx.select")
    client.publish("q", b"new")
    client.command("message.accept", transfers=((0, 0),))
    client.sync()
    queue = client.world.broker.queues["q"]
    assert (queue.message_count, queue.acquired_count, left(client)) == (1, 1, [])
    number = client.command("tx.commit")
    client.sync()
    assert number in client.completed
    assert (queue.message_count, queue.acquired_count, left(client)) == (1, 0, [b"new"])


def test_after_a_rollback_the_session_still_has_what_it_was_sent() -> None:
    client = filled(b"old")
    client.subscribe("q", to="d", messages=1)
    client.command("tx.select")
    client.publish("q", b"new")
    client.command("message.accept", transfers=((0, 0),))
    client.command("tx.rollback")
    client.sync()
    queue = client.world.broker.queues["q"]
    assert (queue.message_count, queue.acquired_count) == (1, 1)
    client.command("message.release", transfers=((0, 0),))
    client.sync()
    assert left(client) == [b"old"]


def test_a_session_that_ends_rolls_back() -> None:
    client = filled(b"old")
    client.subscribe("q", to="d", messages=1)
    client.command("tx.select")
    client.publish("q", b"new")
    client.command("message.accept", transfers=((0, 0),))
    client.control("session.detach", on=1, name=b"session")
    client.sync()
    assert left(client) == [b"old"]
    assert client.world.broker.queues["q"].acquired_count == 0


def test_a_commit_that_finds_no_room_loses_nothing() -> None:
    client = filled(b"old", queue_limit_bytes=100)
    client.declare("p")
    client.subscribe("q", to="d")
    client.command("tx.select")
    client.publish("p", bytes(60))
    client.command("message.accept", transfers=((0, 0),))
    other = client.world.open_client(name=b"other")
    other.publish("p", bytes(60))
    number = client.command("tx.commit")
    assert client.failure() == (ErrorCode.RESOURCE_LIMIT_EXCEEDED, number)
    assert left(client) == [b"old"]
    assert len(left(client, "p")) == 1
