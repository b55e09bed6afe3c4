"""Deliveries of a session: accept, release, reject, browse, acquire; sessions and transactions."""

from __future__ import annotations

import pytest

from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.protocols.amqp_0_10 import subscription as of_subscription
from qstore.formats.amqp_0_10.codes import ErrorCode
from qstore.formats.values import typed_map
from tests.broker.protocols.filled import completed, filled, left, numbered
from tests.broker.protocols.world import MESSAGES, WINDOW, World
from tests.support.compiled import replaces

ALL = ((0, 0x7FFF_FFFF),)

# ---- accept, release, reject ----


def test_accepted_messages_are_gone() -> None:
    client = filled(*numbered(5))
    client.subscribe("q")
    client.command("message.accept", transfers=((0, 1), (3, 3)))
    client.sync()
    queue = client.world.broker.default_host.queues["q"]
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
    queue = client.world.broker.default_host.queues["q"]
    assert queue.acquired_count + len(left(client)) == queue.message_count


def test_without_accepting_a_message_is_gone_when_it_is_sent() -> None:
    client = filled(*numbered(3))
    client.subscribe("q", accept_mode=1, messages=2)
    assert client.take() == numbered(2)
    assert client.world.broker.default_host.queues["q"].message_count == 1
    client.command("message.release", transfers=ALL)
    client.sync()
    assert client.world.broker.default_host.queues["q"].message_count == 1


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
    queues = client.world.broker.default_host.queues
    assert [queues[name].message_count for name in ("q", "r", "dead")] == [1, 1, 1]


def test_a_reject_that_cannot_be_done_loses_nothing() -> None:
    room = 3 * (MESSAGE_OVERHEAD + 60)
    client = filled(queue_limit_bytes=room)
    client.declare("dead")
    client.declare("r", alternate_exchange="amq.fanout")
    client.command("exchange.bind", queue="dead", exchange="amq.fanout", binding_key="")
    client.publish("r", *(bytes((number,)) * 30 for number in range(3)))
    client.publish("dead", bytes(room - MESSAGE_OVERHEAD - 60 - MESSAGE_OVERHEAD - 60))  # and one that is rejected
    client.subscribe("r")
    number = client.command("message.reject", transfers=ALL)
    assert client.failure() == (ErrorCode.RESOURCE_LIMIT_EXCEEDED, number)
    assert [body[:1] for body in left(client, "r")] == [b"\x01", b"\x02"]
    assert client.world.broker.default_host.queues["r"].acquired_count == 0
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


def test_browsed_message_can_be_acquired_once() -> None:
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


def test_exclusive_queue_can_be_browsed_by_other_sessions() -> None:
    client = filled()
    client.command("queue.declare", queue="owned", exclusive=True)
    client.publish("owned", b"kept")
    other = client.world.open_client(name=b"other")
    for each in (client, other):
        each.subscribe("owned", to="look", acquire_mode=1)
        assert each.take() == [b"kept"]
    assert other.call("message.acquire", transfers=ALL)["transfers"] == ()
    other.command("message.accept", transfers=ALL)
    other.sync()
    assert client.world.broker.default_host.queues["owned"].available_count == 1
    assert client.call("message.acquire", transfers=ALL)["transfers"] == ((0, 0),)


@pytest.mark.parametrize("acquire_mode", [0, 1])
def test_messages_of_a_browse_only_queue_cannot_be_acquired(acquire_mode: int) -> None:
    client = filled()
    client.command("queue.declare", queue="shown", arguments=typed_map({"qpid.browse-only": True}))
    client.publish("shown", b"kept")
    client.subscribe("shown", to="look", acquire_mode=acquire_mode)
    assert client.take() == [b"kept"]
    assert client.call("message.acquire", transfers=ALL)["transfers"] == ()
    client.command("message.accept", transfers=ALL)
    client.sync()
    assert client.world.broker.default_host.queues["shown"].available_count == 1


def test_completed_browsed_message_can_no_longer_be_acquired() -> None:
    client = filled(*numbered(3))
    client.subscribe("q", acquire_mode=1, accept_mode=1, mode=WINDOW, messages=2)
    assert client.take() == numbered(2)
    completed(client, (0, 0))
    assert client.take() == numbered(3)[2:]
    assert client.call("message.acquire", transfers=ALL)["transfers"] == ((1, 2),)


@replaces
def test_an_endless_browser_forgets_the_oldest_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_subscription, "MAX_BROWSED", 5)
    client = filled(*numbered(9))
    client.subscribe("q", to="d", acquire_mode=1)
    client.sync()
    assert client.call("message.acquire", transfers=((0, 8),))["transfers"] == ((4, 8),)


def test_acquired_in_more_ranges_than_a_result_holds() -> None:
    count = 16_400
    client = filled(*(b"x" for _ in range(count)))
    client.subscribe("q", to="look", acquire_mode=1)
    entries = list(client.world.broker.default_host.queues["q"].entries())
    for entry in entries[::2]:
        assert client.world.broker.default_host.queues["q"].acquire(entry)
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


def test_a_consumer_without_credit_is_passed_over() -> None:
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
    assert "q" in client.world.broker.default_host.queues
    client.command("message.cancel", destination="b")
    client.sync()
    assert "q" not in client.world.broker.default_host.queues


def test_an_exclusive_queue_is_free_when_its_session_ends() -> None:
    world = World()
    client = world.open_client(name=b"owner")
    client.declare("q", exclusive=True)
    client.declare("gone", exclusive=True, auto_delete=True)
    client.control("session.detach", on=1, name=b"owner")
    other = world.open_client(name=b"other")
    other.subscribe("q")
    assert other.exceptions == []
    assert "gone" not in world.broker.default_host.queues


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


def test_resumed_session_keeps_unaccepted_messages() -> None:
    client = World().open_client(timeout=60)
    client.declare("q")
    client.publish("q", *numbered(4))
    client.subscribe("q", messages=2)
    assert client.take() == numbered(2)
    client.machine.closed()
    client.world.run()
    assert client.world.broker.default_host.queues["q"].acquired_count == 2
    back = client.world.open_client(name=None)
    back.attach(b"session", on=5, point=client.sent[1])
    assert back.take() == numbered(2), "sent again, since nothing was completed"
    back.command("message.accept", on=5, transfers=((0, 1),))
    back.flow("q", MESSAGES, 9, on=5)
    assert back.take() == numbered(4)[2:]
    assert back.world.broker.default_host.queues["q"].message_count == 2


def test_messages_of_an_expired_session_are_redelivered() -> None:
    client = World().open_client(timeout=60)
    client.declare("q")
    client.publish("q", *numbered(3))
    client.subscribe("q", messages=2)
    client.machine.closed()
    client.world.sessions.on_timer(client.world.now + 61)
    client.world.run()
    queue = client.world.broker.default_host.queues["q"]
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
    queue = client.world.broker.default_host.queues["q"]
    assert (queue.message_count, queue.acquired_count, left(client)) == (1, 1, [])
    number = client.command("tx.commit")
    client.sync()
    assert number in client.completed
    assert (queue.message_count, queue.acquired_count, left(client)) == (1, 0, [b"new"])


def test_rollback_leaves_deliveries_with_the_session() -> None:
    client = filled(b"old")
    client.subscribe("q", to="d", messages=1)
    client.command("tx.select")
    client.publish("q", b"new")
    client.command("message.accept", transfers=((0, 0),))
    client.command("tx.rollback")
    client.sync()
    queue = client.world.broker.default_host.queues["q"]
    assert (queue.message_count, queue.acquired_count) == (1, 1)
    client.command("message.release", transfers=((0, 0),))
    client.sync()
    assert left(client) == [b"old"]


def test_message_accepted_in_a_transaction_can_be_released() -> None:
    client = filled(b"1", b"2")
    client.subscribe("q", to="d", messages=2)
    client.command("tx.select")
    client.command("message.accept", transfers=((0, 1),))
    client.command("message.accept", transfers=((0, 1),))
    client.command("message.release", transfers=((0, 0),), set_redelivered=True)
    client.command("tx.commit")
    client.sync()
    queue = client.world.broker.default_host.queues["q"]
    assert (queue.message_count, queue.acquired_count) == (1, 0)
    assert left(client) == [b"1"]


def test_a_session_that_ends_rolls_back() -> None:
    client = filled(b"old")
    client.subscribe("q", to="d", messages=1)
    client.command("tx.select")
    client.publish("q", b"new")
    client.command("message.accept", transfers=((0, 0),))
    client.control("session.detach", on=1, name=b"session")
    client.sync()
    assert left(client) == [b"old"]
    assert client.world.broker.default_host.queues["q"].acquired_count == 0


def test_a_commit_that_finds_no_room_loses_nothing() -> None:
    client = filled(b"old", queue_limit_bytes=MESSAGE_OVERHEAD + 100)
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
