"""AMQP 1.0: transactions of a session, by its coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.protocols.amqp_1_0.links import MAX_UNSETTLED
from qstore.broker.protocols.amqp_1_0.transactions import MAX_TRANSACTIONS
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_1_0.composites import Composite, encode_composite
from qstore.formats.amqp_1_0.sections import VALUE
from qstore.formats.amqp_1_0.values import Value
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.world import World
from tests.support.sections_peer import ACCEPTED, RECEIVER, REJECTED, RELEASED

CONTROL = 9
TRANSIENT: dict[str, Any] = {"durable": False}
_VALUE = bytes((0, 0x53, VALUE))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> LinksClient:
    make_queue(world)
    return controlled(world)


def controlled(world: World) -> LinksClient:
    """A client with a control link."""
    client = LinksClient(world).open()
    attach(client)
    return client


def attach(client: LinksClient, handle: int = CONTROL) -> Composite:
    """Attach a control link; returns its target."""
    client.do(
        "attach", name=f"control-{handle}", handle=handle, role=False, initial_delivery_count=0,
        source=Composite("source", {}), target=Composite("coordinator", {}),
    )  # fmt: skip
    attached, flow = client.take("attach", "flow")
    assert flow.fields["link_credit"] > 0
    target = attached.fields["target"]
    assert isinstance(target, Composite)
    return target


def command(client: LinksClient, name: str, *, handle: int = CONTROL, **fields: Any) -> None:
    client.publish(message=_VALUE + encode_composite(name, fields), handle=handle)


def declare(client: LinksClient, handle: int = CONTROL) -> Value:
    """Begin a transaction; returns its id."""
    command(client, "declare", handle=handle)
    (told,) = client.take("disposition")
    assert told.fields["settled"]
    assert told.fields["state"].name == "declared"
    txn_id = told.fields["state"].fields["txn_id"]
    assert isinstance(txn_id, Value)
    return txn_id


def discharge(client: LinksClient, txn_id: Value, *, fail: bool = False) -> None:
    command(client, "discharge", txn_id=txn_id, fail=fail)


def state(txn_id: Value, outcome: Composite | None = None) -> Composite:
    return Composite("transactional-state", {"txn_id": txn_id, "outcome": outcome})


def condition(client: LinksClient) -> str:
    """The condition of the one rejection that came."""
    (told,) = client.take("disposition")
    assert told.fields["state"].name == "rejected"
    return str(told.fields["state"].fields["error"].fields["condition"])


def fill(world: World, count: int, queue: str = "q", *, durable: bool = False) -> None:
    sender = LinksClient(world).open().sender(queue)
    for number in range(count):
        sender.publish(b"%d" % number, durable=durable)
        if number % 400 == 399:
            sender.sync()
    sender.sync()


def test_the_coordinator_says_what_it_can_do(world: World) -> None:
    target = attach(LinksClient(world).open())
    assert target.name == "coordinator"
    assert target.fields["capabilities"] == ("amqp:local-transactions", "amqp:multi-txns-per-ssn")


def test_messages_of_a_transaction_come_with_its_commit_which_waits_for_the_disk(world: World) -> None:
    queue = world.durable_queue("d")
    client = controlled(world).sender("d")
    txn_id = declare(client)
    client.publish(b"1", state=state(txn_id))
    client.publish(b"2", state=state(txn_id))
    client.publish(b"3")
    (told,) = client.take("disposition")
    assert (told.fields["first"], told.fields["last"]) == (1, 2)
    assert told.fields["state"].name == "transactional-state"
    assert told.fields["state"].fields["outcome"].name == "accepted"
    assert queue.message_count == 1
    world.store.end_flush()
    assert client.outcomes() == [(3, 3, "accepted")]
    discharge(client, txn_id)
    assert client.outcomes() == []
    world.store.end_flush()
    assert client.outcomes() == [(4, 4, "accepted")]
    assert queue.message_count == 3


def test_a_rollback_takes_messages_back(client: LinksClient) -> None:
    client.sender("q")
    txn_id = declare(client)
    client.publish(b"1", state=state(txn_id))
    client.take()
    discharge(client, txn_id, fail=True)
    assert client.outcomes() == [(2, 2, "accepted")]
    queue = session_queue(client)
    assert queue.message_count == 0
    counts = queue.counters.enqueuing
    assert counts is not None
    assert (counts.starts, counts.rejects, counts.pending.value) == (1, 1, 0)


def test_transactions_of_one_session_are_apart(client: LinksClient) -> None:
    client.sender("q")
    first, second = declare(client), declare(client)
    client.publish(b"1", state=state(first))
    client.publish(b"2", state=state(second))
    client.take()
    discharge(client, first, fail=True)
    discharge(client, second)
    assert client.outcomes() == [(4, 5, "accepted")]
    client.receiver("q", 1)
    assert [each.body[-1:] for each in client.messages()] == [b"2"]


@pytest.mark.parametrize("settled", [True, False])
def test_deliveries_are_settled_with_the_transaction(world: World, settled: bool) -> None:
    queue = world.durable_queue("d")
    client = controlled(world)
    fill(world, 3, "d", durable=True)
    world.store.end_flush()
    client.receiver("d", 1)
    messages = client.messages()
    client.take()
    txn_id = declare(client)
    client.settle(state(txn_id, ACCEPTED), messages[0].id, messages[1].id, settled=settled)
    client.settle(state(txn_id, RELEASED), messages[2].id, settled=settled)
    client.settle(ACCEPTED, messages[0].id, messages[2].id, settled=settled)  # it is part of a transaction
    client.sync()
    assert (queue.message_count, queue.acquired_count) == (3, 3)
    discharge(client, txn_id)
    assert client.outcomes() == []
    world.store.end_flush()
    told = client.outcomes()
    assert told[-1] == (1, 1, "accepted")
    assert told[:-1] == ([] if settled else [(0, 1, "accepted"), (2, 2, "released")])
    assert queue.message_count == 1
    assert not session_of(client).transactions.retired_count
    assert [each.id for each in client.messages()] == [3]  # what was released


def test_a_rollback_leaves_deliveries_to_their_consumer(world: World, client: LinksClient) -> None:
    fill(world, 3)
    client.receiver("q", 1, credit=3)
    client.messages()
    txn_id = declare(client)
    client.settle(state(txn_id, ACCEPTED), 0, settled=False)
    client.settle(state(txn_id, ACCEPTED), 1, settled=True)
    client.settle(state(txn_id, REJECTED), 2, settled=False)
    discharge(client, txn_id, fail=True)
    assert client.outcomes() == [(1, 1, "accepted")]
    queue = session_queue(client)
    assert (queue.message_count, queue.acquired_count) == (3, 2)  # one was settled: it is back
    client.settle(ACCEPTED, 0, 2)
    client.sync()
    assert queue.message_count == 1
    client.credit(1, 1, seen=3)
    (again,) = client.messages()
    assert (again.body[-1:], again.header["delivery_count"]) == (b"1", 1)


def test_messages_acquired_in_a_transaction_return_with_its_rollback(world: World, client: LinksClient) -> None:
    fill(world, 4)
    client.receiver("q", 1, credit=0)
    txn_id = declare(client)
    client.credit(2, 1, properties=((Value("symbol", "txn-id"), txn_id),))
    first = client.messages()
    assert all(each.fields["state"].fields == {"txn_id": txn_id} for each in first)
    client.settle(state(txn_id, ACCEPTED), first[0].id, settled=False)
    discharge(client, txn_id, fail=True)
    assert sorted(client.outcomes()) == [(0, 1, "modified"), (1, 1, "accepted")]
    client.credit(2, 1, seen=2)
    again = client.messages()
    assert [each.body[-1:] for each in again] == [b"0", b"1"]
    assert "state" not in again[0].fields
    txn_id = declare(client)
    client.credit(2, 1, seen=4, properties=((Value("symbol", "txn-id"), txn_id),))
    last = client.messages()
    client.settle(state(txn_id, ACCEPTED), last[0].id, last[1].id)
    discharge(client, txn_id)
    client.settle(ACCEPTED, again[0].id, again[1].id)
    client.sync()
    assert session_queue(client).message_count == 0


def test_messages_that_are_settled_when_they_are_acquired_leave_with_the_commit(
    world: World, client: LinksClient
) -> None:
    fill(world, 2)
    client.receiver("q", 1, credit=0, snd_settle_mode=1)
    for seen, fail in ((0, True), (2, False)):
        txn_id = declare(client)
        client.credit(2, 1, seen=seen, properties=((Value("symbol", "txn-id"), txn_id),))
        assert [each.body[-1:] for each in client.messages()] == [b"0", b"1"]
        discharge(client, txn_id, fail=fail)
        client.take()
        assert session_queue(client).message_count == (2 if fail else 0)


@pytest.mark.parametrize("how", ["detach", "end", "close", "lost"])
def test_a_transaction_ends_with_its_control_link(world: World, client: LinksClient, how: str) -> None:
    fill(world, 1)
    client.sender("q").receiver("q", 1)
    client.messages()
    txn_id = declare(client)
    client.publish(b"new", state=state(txn_id))
    client.settle(state(txn_id, ACCEPTED), 0, settled=False)
    client.sync()
    queue = session_queue(client)
    match how:
        case "detach":
            client.do("detach", handle=CONTROL, closed=True)
        case "lost":
            client.machine.closed()
        case _:
            client.do(how)
    client.sync()
    assert (queue.message_count, queue.acquired_count) == (1, 1 if how == "detach" else 0)
    assert not world.broker.transactions


def test_a_retired_delivery_outlives_its_link(world: World, client: LinksClient) -> None:
    fill(world, 2)
    for fail in (True, False):
        client.receiver("q", 1, credit=1)
        (found,) = client.messages()
        txn_id = declare(client)
        client.settle(state(txn_id, ACCEPTED), found.id, settled=False)
        client.do("detach", handle=1, closed=True)
        client.take()
        assert session_queue(client).acquired_count == 1
        discharge(client, txn_id, fail=fail)
        client.take()
        assert session_queue(client).acquired_count == 0
    assert session_queue(client).message_count == 1


def test_a_commit_without_room_is_rolled_back(world: World) -> None:
    queue = world.durable_queue("d")
    client = controlled(world).sender("d").receiver("d", 1)
    client.publish(b"old")
    client.sync()
    world.store.end_flush()
    (found,) = client.messages()
    client.take()
    txn_id = declare(client)
    client.publish(b"new", state=state(txn_id))
    client.settle(state(txn_id, ACCEPTED), found.id, settled=False)
    client.take()
    discharge(client, txn_id)
    client.sync()
    world.store.end_flush(world.store.FullError("no room"))
    told = client.take("disposition")
    assert [each.fields["state"].name for each in told] == ["modified", "rejected"]
    assert told[1].fields["state"].fields["error"].fields["condition"] == "amqp:transaction:rollback"
    assert queue.message_count == 1
    (again,) = client.messages()
    assert again.body[-3:] == b"old"


def test_a_transaction_with_a_refused_message_cannot_be_committed(world: World, client: LinksClient) -> None:
    client.sender("q").sender(None, 2)
    txn_id = declare(client)
    client.publish(b"1", state=state(txn_id))
    client.publish(b"2", 2, to=Value("string", "nowhere"), state=state(txn_id))
    told = client.take("disposition")
    assert [each.fields["state"].fields["outcome"].name for each in told] == ["accepted", "rejected"]
    discharge(client, txn_id)
    assert condition(client) == "amqp:transaction:rollback"
    assert session_queue(client).message_count == 0


def test_a_transaction_has_a_size() -> None:
    world = World(BrokerSettings(auth=False, queue_limit_bytes=5_000))
    make_queue(world)
    client = controlled(world).sender("q")
    txn_id = declare(client)
    for _ in range(4):
        client.publish(bytes(2_000), state=state(txn_id))
    client.take()
    discharge(client, txn_id)
    assert condition(client) == "amqp:transaction:rollback"


@pytest.mark.parametrize("known", [False, True])
def test_ids_that_are_not_known_are_refused_by_name(world: World, client: LinksClient, known: bool) -> None:
    client.sender("q")
    txn_id = Value("binary", b"none")
    if known:
        txn_id = declare(client)
        discharge(client, txn_id)
        client.take()
    discharge(client, txn_id)
    assert condition(client) == "amqp:transaction:unknown-id"
    client.publish(state=state(txn_id))
    assert condition(client) == "amqp:transaction:unknown-id"
    fill(world, 1)
    client.receiver("q", 1)
    client.messages()
    client.credit(1, 1, properties=((Value("symbol", "txn-id"), txn_id),))
    assert client.error("detach") == "amqp:transaction:unknown-id"
    client.do("detach", handle=1, closed=True)
    client.receiver("q", 2)
    (found,) = client.messages()
    client.settle(state(txn_id, ACCEPTED), found.id)
    assert client.error("end") == "amqp:transaction:unknown-id"
    assert world.broker.default_host.queues["q"].message_count == 1


@pytest.mark.parametrize(
    "section", [b"\0\x80" + VALUE.to_bytes(8, "big"), b"\0\xa3\x11amqp:amqp-value:*"], ids=["number", "symbol"]
)
def test_a_command_may_be_in_a_section_with_any_form_of_its_descriptor(client: LinksClient, section: bytes) -> None:
    client.publish(message=section + encode_composite("declare", {}), handle=CONTROL)
    (told,) = client.take("disposition")
    assert told.fields["state"].name == "declared"


def test_what_is_no_command_is_refused_by_name(client: LinksClient) -> None:
    command(client, "accepted")
    assert condition(client) == "amqp:invalid-field"
    client.publish(message=b"\0Sw\xa1\1x", handle=CONTROL)
    assert condition(client) == "amqp:decode-error"
    client.publish(b"x" * 2_000, CONTROL)
    assert condition(client) == "amqp:invalid-field"
    command(client, "declare", global_id=Value("binary", b"x"))
    assert condition(client) == "amqp:not-implemented"
    client.publish(message=_VALUE + encode_composite("declare", {}), handle=CONTROL, settled=True)
    assert client.error("detach") == "amqp:not-allowed"


def test_a_session_has_so_many_transactions(client: LinksClient) -> None:
    for _ in range(MAX_TRANSACTIONS):
        declare(client)
    command(client, "declare")
    assert condition(client) == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize("fail", [True, False])
def test_large_transactions_end_in_turns(world: World, client: LinksClient, fail: bool) -> None:
    fill(world, 2_500)
    client.sender("q").receiver("q", 1, credit=5_000)
    assert len(client.messages()) == 2_500
    txn_id = declare(client)
    for number in range(2_500):
        client.publish(b"%d" % number, state=state(txn_id), **TRANSIENT)
        if number % 400 == 399:
            client.take()
    client.do("disposition", role=RECEIVER, first=0, last=2_499, settled=fail, state=state(txn_id, ACCEPTED))
    client.take()
    queue = session_queue(client)
    discharge(client, txn_id, fail=fail)
    client.sync()
    assert client.outcomes()[-1] == (2_501, 2_501, "accepted")
    assert queue.message_count == 2_500
    again = client.messages()
    assert len(again) == 2_500
    assert again[0].header["delivery_count"] == (1 if fail else 0)
    assert not session_of(client).transactions.retired_count


def retire_all(client: LinksClient, txn_id: Value, first: int, last: int) -> None:
    client.do("disposition", role=RECEIVER, first=first, last=last, settled=False, state=state(txn_id, ACCEPTED))


def acquire_in(client: LinksClient, txn_id: Value, count: int, handle: int = 1) -> None:
    client.credit(count, handle, properties=((Value("symbol", "txn-id"), txn_id),))


@pytest.mark.parametrize("count", [900, 2_500])
def test_a_session_that_ends_leaves_a_commit_its_messages(world: World, client: LinksClient, count: int) -> None:
    make_queue(world, "full", arguments={"qpid.max_count": 1, "qpid.policy_type": "reject"})
    fill(world, 1, "full")
    fill(world, 2_500)
    client.sender("full").receiver("q", 1, credit=5_000)
    assert len(client.messages()) == 2_500
    txn_id = declare(client)
    client.publish(b"no room", state=state(txn_id))
    retire_all(client, txn_id, 0, count - 1)
    client.take()
    other = LinksClient(world).open().receiver("q", credit=10_000)
    discharge(client, txn_id)
    client.machine.closed()
    assert len(other.messages()) == 2_500  # each of them once
    assert session_queue(other).acquired_count == 2_500


def test_a_message_returns_with_the_transaction_that_has_acquired_it(world: World, client: LinksClient) -> None:
    fill(world, 1)
    client.receiver("q", 1, credit=0)
    first, second = declare(client), declare(client)
    acquire_in(client, first, 1)
    (found,) = client.messages()
    client.settle(state(second, ACCEPTED), found.id, settled=False)
    discharge(client, first, fail=True)
    client.take()
    other = LinksClient(world).open().receiver("q")
    assert len(other.messages()) == 1
    discharge(client, second)
    assert condition(client) == "amqp:transaction:rollback"
    queue = session_queue(client)
    assert (queue.message_count, queue.acquired_count) == (1, 1)


def test_outcomes_that_are_not_implemented_are_refused_in_transactions(world: World, client: LinksClient) -> None:
    fill(world, 1)
    client.receiver("q", 1)
    client.messages()
    txn_id = declare(client)
    annotations = ((Value("symbol", "x"), Value("string", "y")),)
    client.settle(state(txn_id, Composite("modified", {"message_annotations": annotations})), 0, settled=False)
    assert client.error("detach") == "amqp:not-implemented"
    discharge(client, txn_id)
    assert condition(client) == "amqp:transaction:rollback"


@pytest.mark.parametrize("how", ["detached", "large"])
def test_a_transaction_without_one_of_its_messages_cannot_be_committed(how: str) -> None:
    world = World(BrokerSettings(auth=False, max_message_bytes=300_000))
    make_queue(world)
    client = controlled(world).sender("q").sender("q", 1)
    txn_id = declare(client)
    client.publish(b"1", state=state(txn_id), settled=True)
    if how == "detached":
        client.publish(message=b"\0", handle=1, settled=True)
        client.publish(b"2", 1, state=state(txn_id), settled=True)
    else:
        client.publish(bytes(400_000), 1, state=state(txn_id), settled=True)
    (detached,) = client.take("detach")
    assert detached.fields["handle"] == 1
    discharge(client, txn_id)
    assert condition(client) == "amqp:transaction:rollback"
    assert session_queue(client).message_count == 0


def test_what_follows_a_large_rollback_sees_its_effect(world: World, client: LinksClient) -> None:
    fill(world, 2_500)
    client.receiver("q", 1, credit=5_000)
    client.messages()
    txn_id = declare(client)
    retire_all(client, txn_id, 0, 2_499)
    client.take()
    discharge(client, txn_id, fail=True)
    client.settle(ACCEPTED, 2_000, 2_499)
    client.sync()
    assert session_queue(client).message_count == 2_000


def test_retired_deliveries_are_settled_in_turns(world: World, client: LinksClient) -> None:
    fill(world, 3_500)
    client.receiver("q", 1, credit=5_000)
    client.messages()
    txn_id = declare(client)
    retire_all(client, txn_id, 0, 2_999)
    client.take()
    client.settle(ACCEPTED, 0, 3_499)
    unsettled = session_of(client).unsettled
    assert sum(each.retired is not None and each.retired.is_settled for each in unsettled.values()) == 1_000
    client.sync()
    assert len(unsettled) == 3_000
    assert all(each.retired.is_settled for each in unsettled.values())
    assert session_queue(client).message_count == 3_000


def test_many_transactions_of_a_control_link_end_in_turns(world: World, client: LinksClient) -> None:
    fill(world, 2_500)
    client.receiver("q", 1, credit=5_000)
    client.messages()
    for number in range(5):
        txn_id = declare(client)
        first = 500 * number
        client.settle(state(txn_id, ACCEPTED), first, first + 499)
    client.take()
    client.do("detach", handle=CONTROL, closed=True)
    unsettled = session_of(client).unsettled
    assert len(unsettled) >= 1_500
    client.sync()
    assert min(unsettled) == 2_500  # they came again
    assert client.take("detach")


def test_messages_of_a_large_transaction_are_dropped_in_turns(client: LinksClient) -> None:
    client.sender("q")
    txn_id = declare(client)
    for number in range(2_500):
        client.publish(state=state(txn_id), settled=True, **TRANSIENT)
        if number % 400 == 399:
            client.take()
    client.take()
    messages = session_of(client).transactions.find(txn_id).work.messages
    discharge(client, txn_id, fail=True)
    assert len(messages) >= 1_500
    client.sync()
    assert not messages


def test_messages_that_leave_with_a_commit_are_limited(world: World, client: LinksClient) -> None:
    fill(world, 5)
    client.receiver("q", 1, credit=0, snd_settle_mode=1)
    txn_id = declare(client)
    session_of(client).transactions.taken_count += MAX_UNSETTLED - 3
    acquire_in(client, txn_id, 5)
    assert len(client.messages()) == 3
    discharge(client, txn_id)
    assert len(client.messages()) == 2


def test_a_transaction_forgets_what_is_settled_without_it(world: World, client: LinksClient) -> None:
    fill(world, 5_000)
    client.receiver("q", 1, credit=0)
    txn_id = declare(client)
    transaction = session_of(client).transactions.find(txn_id)
    for seen in range(0, 5_000, 500):
        client.credit(500, 1, seen=seen, properties=((Value("symbol", "txn-id"), txn_id),))
        assert len(client.messages()) == 500
        client.settle(ACCEPTED, seen, seen + 499)
    assert len(transaction.acquired) <= 2_000


def session_of(client: LinksClient) -> Any:
    return client.machine.all_sessions[0]


def session_queue(client: LinksClient) -> Any:
    return client.world.broker.default_host.queues["q"]
