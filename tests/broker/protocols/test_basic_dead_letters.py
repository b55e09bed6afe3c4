"""Dead-letter exchanges: which messages go there, with which headers, and which are dropped."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import pytest

from qstore.broker.model.counters import QueueTotals
from qstore.broker.model.dead_letters import MAX_REFUSALS, MAX_RETRIED, deaths_of
from qstore.broker.model.errors import InvalidArgumentError, UnauthorizedError
from qstore.broker.model.message import MAX_KEYS, Handling, selected_keys
from qstore.broker.model.policies import Policy
from qstore.broker.model.queues.entry import AVAILABLE
from qstore.broker.model.queues.queue import Queue
from qstore.broker.protocols.amqp_0_9_1.message import MAX_FRAME, BasicMessage, with_keys
from qstore.broker.protocols.amqp_0_10.message import MAX_HEADER_BYTES
from qstore.broker.protocols.stored_messages import restore_message
from qstore.formats.amqp_0_9_1.frames import OVERHEAD
from qstore.formats.amqp_0_9_1.methods import encode_routed
from qstore.formats.amqp_0_9_1.properties import Properties, encode_header
from qstore.formats.plain import plain_map
from qstore.formats.values import TypedMap, typed_map
from tests.broker.protocols.basic_client import BasicClient, Received
from tests.broker.protocols.test_basic_channel import failed
from tests.broker.protocols.world import World, header

TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
DEAD_OVERFLOW = "reject-publish-dlx"
NACK = {"delivery_tag": 0, "multiple": True, "requeue": False}


@pytest.fixture
def client(world: World) -> BasicClient:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="dead")
    return client


def plain(headers: TypedMap | None) -> dict[str, Any]:
    return {} if headers is None else plain_map(headers)


def got(client: BasicClient, queue: str) -> Received:
    """The next message of a queue."""
    found = client.call("basic.get", queue=queue, no_ack=True)
    assert found.name == "basic.get-ok", found
    return found


def headers_of(message: Received) -> dict[str, Any]:
    assert message.properties is not None
    return plain(message.properties.headers)


def expire(world: World, queue: str, seconds: float) -> None:
    """Let time pass, and expired messages leave a queue."""
    world.now += seconds
    world.broker.default_host.queues[queue].expire()
    world.run()


def totals(world: World, queue: str) -> QueueTotals:
    return world.broker.default_host.queues[queue].totals


def test_a_rejected_message_goes_there(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="q", arguments=TO_DEAD)
    client.publish("q", b"bad", Properties(headers=typed_map({"own": 1}), priority=3, expiration="90000"))
    client.call("basic.get", queue="q")
    client.method("basic.nack", **NACK)
    found = got(client, "dead")
    assert found.body == b"bad"
    assert (found.values["exchange"], found.values["routing_key"], found.values["redelivered"]) == ("", "dead", False)
    assert found.properties is not None
    assert (found.properties.expiration, found.properties.priority) == (None, 3)
    death = {
        "count": 1, "reason": "rejected", "queue": "q", "time": 1_000_000, "exchange": "", "routing-keys": ["q"],
        "original-expiration": "90000",
    }  # fmt: skip
    names = {
        f"x-{which}-death-{name}": death[name]
        for which in ("first", "last")
        for name in ("reason", "queue", "exchange")
    }
    assert headers_of(found) == {"own": 1, "x-death": [death], **names}
    assert (totals(world, "q").rejected, totals(world, "q").messages) == (1, 0)


def test_a_message_that_is_requeued_does_not(client: BasicClient) -> None:
    client.call("queue.declare", queue="q", arguments=TO_DEAD)
    client.publish("q")
    client.call("basic.get", queue="q")
    client.method("basic.nack", **{**NACK, "requeue": True})
    assert got(client, "q").values["redelivered"]
    assert client.call("basic.get", queue="dead").name == "basic.get-empty"


def test_expired_messages_go_there(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="q", arguments={**TO_DEAD, "x-message-ttl": 1000})
    client.publish("q", b"short", Properties(expiration="100"))
    client.publish("q", b"long", Properties())
    world.run()
    expire(world, "q", 0.5)
    expire(world, "q", 1)
    short, long = got(client, "dead"), got(client, "dead")
    assert (short.body, long.body) == (b"short", b"long")
    (death,) = headers_of(short)["x-death"]
    assert (death["reason"], death["original-expiration"]) == ("expired", "100")
    (death,) = headers_of(long)["x-death"]
    assert (death["reason"], death["queue"]) == ("expired", "q")
    assert "original-expiration" not in death
    assert (totals(world, "q").expired, totals(world, "q").messages) == (2, 0)
    world.now += 1_000_000  # they do not expire again
    assert totals(world, "dead").expired == 0


def test_a_message_that_a_consumer_reaches_too_late_goes_there(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="q", arguments=TO_DEAD)
    client.publish("q", b"late", Properties(expiration="100"))
    client.publish("q", b"other", Properties())
    world.run()
    world.now += 1
    assert got(client, "q").body == b"other"
    assert got(client, "dead").body == b"late"


def test_displaced_messages_go_there(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="q", arguments={**TO_DEAD, "x-max-length": 2})
    for number in range(4):
        client.publish("q", b"%d" % number)
    found = [got(client, "dead") for _ in range(2)]
    assert [each.body for each in found] == [b"0", b"1"]
    assert {headers_of(each)["x-death"][0]["reason"] for each in found} == {"maxlen"}
    assert (totals(world, "q").discarded, totals(world, "q").messages) == (2, 2)


def test_refused_messages_do_not(client: BasicClient) -> None:
    client.call("queue.declare", queue="q", arguments={**TO_DEAD, "x-max-length": 1, "x-overflow": "reject-publish"})
    client.call("confirm.select")
    client.publish("q")
    client.publish("q")
    assert client.take("basic.nack")
    assert client.call("basic.get", queue="dead").name == "basic.get-empty"


@pytest.mark.parametrize("confirms", [False, True])
@pytest.mark.parametrize("exchange", ["", "both"])
def test_unless_the_queue_asks_for_them(client: BasicClient, confirms: bool, exchange: str) -> None:
    """Whether it is the only queue of the message, or one of two: then the other one does not get it either."""
    client.call("queue.declare", queue="q", arguments={**TO_DEAD, "x-max-length": 1, "x-overflow": DEAD_OVERFLOW})
    client.call("queue.declare", queue="other")
    client.call("exchange.declare", exchange="both", type="fanout")
    for queue in ("q", "other"):
        client.call("queue.bind", queue=queue, exchange="both")
    client.publish("q", b"first")
    if confirms:
        client.call("confirm.select")
    client.publish("q", b"second", exchange=exchange)
    assert [each.name for each in client.take("basic.ack", "basic.nack")] == ["basic.nack"] * confirms
    found = got(client, "dead")
    assert found.body == b"second"
    death = headers_of(found)["x-death"][0]
    assert (death["reason"], death["queue"], death["exchange"]) == ("maxlen", "q", exchange)
    assert got(client, "q").body == b"first"
    assert client.call("basic.get", queue="other").name == "basic.get-empty"


def test_refused_messages_go_on_from_one_full_queue_to_the_next(world: World, client: BasicClient) -> None:
    """And not in a cycle."""
    names = [f"q{number}" for number in range(20)]
    for name, following in zip(names, [*names[1:], "dead"], strict=True):
        to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": following}
        client.call("queue.declare", queue=name, arguments={**to, "x-max-length": 1, "x-overflow": DEAD_OVERFLOW})
        client.publish(name, b"here before")
    client.publish("q0", b"new")
    found = got(client, "dead")
    assert (found.body, len(headers_of(found)["x-death"])) == (b"new", 20)
    to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "circle"}
    client.call("queue.declare", queue="circle", arguments={**to, "x-max-length": 1, "x-overflow": DEAD_OVERFLOW})
    client.publish("circle")
    client.publish("circle")
    assert totals(world, "circle").messages == 1
    assert client.call("basic.get", queue="dead").name == "basic.get-empty"


def test_dead_letters_pass_a_limited_number_of_full_queues(
    world: World, client: BasicClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Each makes the headers longer: a message that passes hundreds would hold up the broker for seconds."""
    names = [f"q{number}" for number in range(MAX_REFUSALS + 1)]
    for name, following in zip(names, [*names[1:], "dead"], strict=True):
        to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": following}
        client.call("queue.declare", queue=name, arguments={**to, "x-max-length": 1, "x-overflow": DEAD_OVERFLOW})
        client.publish(name, b"here before")
    client.publish("q0", b"beyond")
    client.sync()
    assert totals(world, "dead").messages == 0
    assert f'1 message was dropped that cannot be sent to the dead-letter exchange "": {MAX_REFUSALS}' in caplog.text
    client.publish("q1", b"within")
    assert got(client, "dead").body == b"within"


@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen"])
def test_dead_messages_go_on_from_a_full_queue_that_asks_for_them(
    world: World, client: BasicClient, reason: str
) -> None:
    """As those that their publisher sends there; without reject-publish-dlx they do not."""
    client.call("queue.declare", queue="full", arguments={**TO_DEAD, "x-max-length": 1, "x-overflow": DEAD_OVERFLOW})
    client.publish("full", b"here before")
    own = {"rejected": {}, "expired": {"x-message-ttl": 1000}, "maxlen": {"x-max-length": 1}}[reason]
    to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "full"}
    client.call("queue.declare", queue="q", arguments={**to, **own})
    client.publish("q", b"first")
    if reason == "rejected":
        client.call("basic.get", queue="q")
        client.method("basic.nack", **NACK)
    elif reason == "expired":
        client.sync()
        expire(world, "q", 2.0)
    else:
        client.publish("q", b"second")
    found = got(client, "dead")
    assert found.body == b"first"
    deaths = headers_of(found)["x-death"]
    assert [(each["reason"], each["queue"]) for each in deaths] == [("maxlen", "full"), (reason, "q")]
    assert totals(world, "q").messages == (reason == "maxlen")
    assert client.take("channel.close") == []


@pytest.mark.parametrize("overflow", ["reject-publish", DEAD_OVERFLOW])
def test_refused_messages_are_dropped_where_there_is_no_room(
    world: World, client: BasicClient, overflow: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With reject-publish-dlx, but no exchange that is there, too."""
    nowhere = {"x-dead-letter-exchange": "nowhere", "x-max-length": 1, "x-overflow": overflow}
    client.call("queue.declare", queue="full", arguments=nowhere)
    to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "full"}
    client.call("queue.declare", queue="q", arguments={**to, "x-max-length": 1, "x-overflow": DEAD_OVERFLOW})
    for queue in ("full", "q", "q"):
        client.publish(queue, queue.encode())
    assert [totals(world, name).messages for name in ("full", "q", "dead")] == [1, 1, 0]
    assert ('"q": 1 message was dropped' in caplog.text) == (overflow == "reject-publish")


def test_messages_of_a_purged_or_deleted_queue_do_not(client: BasicClient) -> None:
    client.call("queue.declare", queue="q", arguments=TO_DEAD)
    client.publish("q")
    client.call("queue.purge", queue="q")
    client.publish("q")
    client.call("queue.delete", queue="q")
    assert client.call("basic.get", queue="dead").name == "basic.get-empty"


def test_without_a_key_of_its_own_the_queue_keeps_that_of_the_message(client: BasicClient) -> None:
    client.call("exchange.declare", exchange="dlx", type="direct")
    client.call("queue.bind", queue="dead", exchange="dlx", routing_key="q")
    client.call("queue.declare", queue="q", arguments={"x-dead-letter-exchange": "dlx"})
    client.publish("q")
    client.call("basic.get", queue="q")
    client.method("basic.nack", **NACK)
    assert (found := got(client, "dead")).values["exchange"] == "dlx"
    assert found.values["routing_key"] == "q"


def test_without_the_exchange_messages_are_dropped(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="q", arguments={"x-dead-letter-exchange": "nowhere", "x-max-length": 1})
    for _ in range(3):
        client.publish("q")
    client.call("basic.get", queue="q")
    client.method("basic.nack", **NACK)
    client.publish("q", b"old", Properties(expiration="1"))
    expire(world, "q", 1)
    found = totals(world, "q")
    assert (found.messages, found.discarded, found.rejected, found.expired) == (0, 2, 1, 1)


def test_each_queue_and_reason_counts(world: World, client: BasicClient) -> None:
    """The usual circle for retries: rejected, waits, and comes back."""
    client.call("queue.declare", queue="work", arguments={**TO_DEAD, "x-dead-letter-routing-key": "wait"})
    waits = {**TO_DEAD, "x-dead-letter-routing-key": "work", "x-message-ttl": 1000}
    client.call("queue.declare", queue="wait", arguments=waits)
    client.publish("work", b"job", Properties(expiration="5000"))
    for _ in range(3):
        assert client.call("basic.get", queue="work").body == b"job"
        client.method("basic.nack", **NACK)
        client.sync()
        expire(world, "wait", 2)
    headers = headers_of(got(client, "work"))
    assert [(each["queue"], each["reason"], each["count"]) for each in headers["x-death"]] == [
        ("wait", "expired", 3), ("work", "rejected", 3)
    ]  # fmt: skip
    assert [each["time"] for each in headers["x-death"]] == [1_000_002, 1_000_000]
    assert headers["x-death"][1]["original-expiration"] == "5000"
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == ("work", "rejected")
    assert (headers["x-last-death-queue"], headers["x-last-death-reason"]) == ("wait", "expired")


def test_an_automatic_cycle_ends(world: World, client: BasicClient) -> None:
    for queue, other in (("a", "b"), ("b", "a")):
        arguments = {**TO_DEAD, "x-dead-letter-routing-key": other, "x-message-ttl": 1000}
        client.call("queue.declare", queue=queue, arguments=arguments)
    client.publish("a")
    world.run()
    expire(world, "a", 2)
    assert [totals(world, queue).messages for queue in "ab"] == [0, 1]
    expire(world, "b", 2)
    assert [totals(world, queue).messages for queue in "ab"] == [0, 0]
    assert world.broker.router.unroutable == 1


def test_the_other_queues_get_a_message_that_comes_back_to_one(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="q", arguments={"x-dead-letter-exchange": "amq.fanout", "x-message-ttl": 1000})
    for queue in ("q", "dead"):
        client.call("queue.bind", queue=queue, exchange="amq.fanout")
    client.publish("q")
    world.run()
    expire(world, "q", 2)
    assert [totals(world, queue).messages for queue in ("q", "dead")] == [0, 1]


def fill(world: World, client: BasicClient, limit: dict[str, Any]) -> None:
    """A full queue, and one whose dead letters go there: it has one that a client has got, others had no room."""
    client.call("queue.declare", queue="full", arguments=limit)
    client.publish("full")
    arguments = {**TO_DEAD, "x-dead-letter-routing-key": "full", "x-max-length": 2}
    client.call("queue.declare", queue="q", arguments=arguments)
    for _ in range(3):
        client.publish("q")
    client.publish("q", b"old", Properties(expiration="1"))
    world.run()
    expire(world, "q", 1)
    assert totals(world, "q").messages == 1
    client.call("basic.get", queue="q")


def test_a_full_queue_gets_none(world: World, client: BasicClient, caplog: pytest.LogCaptureFixture) -> None:
    """A rejected message never stays with its consumer: it is dropped, too."""
    fill(world, client, {"x-max-length": 1, "x-overflow": "reject-publish"})
    client.method("basic.nack", **NACK)
    client.call("basic.qos")
    assert [totals(world, queue).messages for queue in ("q", "full")] == [0, 1]
    assert 'Queue "q": 1 message was dropped that cannot be sent to the dead-letter exchange ""' in caplog.text


def test_rejected_message_stays_if_the_target_is_full(world: World, client: BasicClient) -> None:
    fill(world, client, {"qpid.max_count": 1, "qpid.policy_type": "reject"})
    assert failed(client, "basic.nack", **NACK)[1] == 406
    assert [totals(world, queue).messages for queue in ("q", "full")] == [1, 1]


def test_a_chain_of_full_queues_may_be_long(world: World, client: BasicClient) -> None:
    count = 120
    for number in range(count):
        arguments = {**TO_DEAD, "x-dead-letter-routing-key": f"q{number + 1}", "x-max-length": 1}
        client.call("queue.declare", queue=f"q{number}", arguments=arguments)
        client.publish(f"q{number}", b"%d" % number, Properties())
    client.call("queue.declare", queue=f"q{count}")
    client.publish("q0", b"new", Properties())
    world.run()
    assert got(client, "q0").body == b"new"
    assert [got(client, f"q{number + 1}").body for number in range(count)] == [b"%d" % each for each in range(count)]


def test_a_message_that_expires_may_displace_the_next_one(world: World, client: BasicClient) -> None:
    for queue, other, most in (("a", "b", 3), ("b", "a", 1)):
        arguments = {**TO_DEAD, "x-dead-letter-routing-key": other, "x-max-length": most}
        client.call("queue.declare", queue=queue, arguments=arguments)
    client.publish("b", b"came from b", Properties())
    client.publish("a", b"expires", Properties(expiration="1"))
    for body in (b"next", b"last"):
        client.publish("a", body, Properties())
    world.run()
    expire(world, "a", 1)
    assert [entry.message.body for entry in world.broker.default_host.queues["a"].entries()] == [
        b"last",
        b"came from b",
    ]
    assert [entry.message.body for entry in world.broker.default_host.queues["b"].entries()] == [b"next"]


def test_headers_of_any_form_are_extended(client: BasicClient) -> None:
    client.call("queue.declare", queue="q", arguments=TO_DEAD)
    for x_death in ("x", [], [1, {"queue": 7}, {"reason": "rejected", "queue": "q", "count": "many"}], {"queue": "q"}):
        client.publish("q", b"x", Properties(headers=typed_map({"x-death": x_death})))
        client.call("basic.get", queue="q")
        client.method("basic.nack", **NACK)
        latest = headers_of(got(client, "dead"))["x-death"][0]
        assert (latest["queue"], latest["reason"]) == ("q", "rejected")
        assert latest["count"] in (1, 2)


def large_headers(size: int, **others: Any) -> Properties:
    """Properties whose header takes `size` bytes."""
    given = {**others, "filling": ""}
    made = len(encode_header(1, Properties(headers=typed_map(given), delivery_mode=2)))
    return Properties(headers=typed_map({**given, "filling": "x" * (size - made)}), delivery_mode=2)


def reject_one(client: BasicClient, properties: Properties, queue: str = "q") -> dict[str, Any]:
    """The headers of a message that was rejected, at its dead-letter queue."""
    client.publish(queue, b"x", properties)
    assert client.call("basic.get", queue=queue).name == "basic.get-ok"
    client.method("basic.nack", **NACK)
    return headers_of(got(client, "dead"))


@pytest.mark.parametrize("count", [130, 250])
def test_a_message_with_very_many_keys_can_be_rejected(world: World, count: int) -> None:
    """Of its x-death, the keys of CC are left out."""
    client = BasicClient(world).open(frame_max=MAX_FRAME)
    client.call("queue.declare", queue="dead")
    client.call("queue.bind", queue="dead", exchange="amq.fanout")
    client.call("queue.declare", queue="q", arguments={"x-dead-letter-exchange": "amq.fanout"})
    keys = [f"{number:0250}" for number in range(count)]
    headers = reject_one(client, Properties(headers=typed_map({"CC": keys}), delivery_mode=2))
    (death,) = headers["x-death"]
    assert (death["reason"], death["queue"], death["count"]) == ("rejected", "q", 1)
    assert death["routing-keys"] == ["q"]
    assert headers["x-last-death-queue"] == "q"
    assert headers["CC"] == keys
    assert totals(world, "q").messages == 0


@pytest.mark.parametrize("limit", [0xFFFF, MAX_FRAME - OVERHEAD])
def test_a_message_whose_header_has_no_room_can_be_rejected(world: World, limit: int) -> None:
    """x-death lists the latest deaths that fit, or none."""
    client = BasicClient(world).open(frame_max=MAX_FRAME)
    client.call("queue.declare", queue="dead")
    client.call("queue.declare", queue="q", arguments=TO_DEAD)
    deaths = [{"queue": f"q{number}", "reason": "rejected", "count": 1} for number in range(50)]
    rooms = {
        size: reject_one(client, large_headers(size, **{"x-death": deaths})) for size in (limit - 400, limit - 150)
    }
    for size, headers in rooms.items():
        reported = [each["queue"] for each in headers["x-death"]]
        assert reported == ["q", *(f"q{number}" for number in range(len(reported) - 1))]
        assert len(encode_header(1, Properties(headers=typed_map(headers)))) <= limit, size
    assert len(rooms[limit - 400]["x-death"]) > len(rooms[limit - 150]["x-death"]) > 20
    bare = reject_one(client, large_headers(limit))
    assert set(bare) == {"filling"}
    assert totals(world, "q").messages == 0


def test_a_death_that_ends_no_cycle_is_reported_or_the_message_is_dropped(world: World) -> None:
    client = BasicClient(world).open(frame_max=MAX_FRAME)
    client.call("queue.declare", queue="dead")
    client.call("queue.declare", queue="q", arguments={**TO_DEAD, "x-message-ttl": 1000})
    before = [{"queue": f"q{number}", "reason": "expired"} for number in range(20)]
    after = [{"queue": "old", "reason": reason} for reason in ("rejected", "expired", "maxlen")]
    for room in (150, 60):
        client.publish("q", b"x", large_headers(0xFFFF - room, **{"x-death": [*before, *after]}))
    world.run()
    expire(world, "q", 2)
    assert [totals(world, queue).messages for queue in ("q", "dead")] == [0, 1]
    reported = headers_of(got(client, "dead"))["x-death"]
    assert [each["queue"] for each in reported] == ["q", *(f"q{number}" for number in range(20)), "old"]


def test_a_message_of_0_10_whose_header_has_no_room_can_be_rejected(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="q", arguments=TO_DEAD)
    old = world.open_client()
    filling = typed_map({"first": "x" * 40_000, "second": "x" * (MAX_HEADER_BYTES - 40_000 - 150)})
    old.command("message.transfer", header=header({"application_headers": filling}, routing_key="q"), body=b"x")
    old.subscribe("q")
    old.command("message.reject", transfers=((0, 0),))
    old.sync()
    assert not old.exceptions
    old.subscribe("dead")
    assert [each.body for each in old.deliveries] == [b"x", b"x"]
    assert totals(world, "q").messages == 0


def test_the_move_waits_for_the_disk(world: World, client: BasicClient) -> None:
    """A message leaves its queue once it is on the disk where it goes."""
    client.call("queue.declare", queue="q", arguments=TO_DEAD)
    for name in ("q", "dead"):
        queue: Queue = world.broker.default_host.queues[name]
        world._keep(queue)
        queue.durable = True
    client.publish("q", b"precious")
    world.run()
    world.store.end_flush()
    assert client.call("basic.get", queue="q").body == b"precious"
    client.method("basic.nack", **NACK)
    world.run()
    assert (len(world.store.enqueued), world.store.dequeued) == (2, [])
    world.store.end_flush()
    world.run()
    assert world.store.dequeued == [1]
    world.store.end_flush()
    stored = restore_message(world.store.enqueued[1])
    assert stored.routing_key == "dead"
    assert len(deaths_of(stored.headers())) == 1
    found = got(client, "dead")
    assert (found.body, found.properties and found.properties.delivery_mode) == (b"precious", 2)


def test_dead_letters_over_0_10(world: World, client: BasicClient) -> None:
    old = world.open_client()
    old.declare("q", arguments=typed_map({**TO_DEAD, "x-dead-letter-routing-key": b"dead"}))
    message = header({"application_headers": typed_map({"own": 1})}, routing_key="q", ttl=60_000, priority=7)
    old.command("message.transfer", header=message, body=b"x")
    client.publish("q", b"y")
    old.subscribe("q")
    old.command("message.reject", transfers=((0, 1),))
    old.sync()
    old.subscribe("dead")
    first, second = old.deliveries[2:]
    assert (first.body, second.body) == (b"x", b"y")
    assert first.properties["routing_key"] == "dead"
    assert first.properties["priority"] == 7
    assert "ttl" not in first.properties
    for each in (first, second):
        (entry,) = [
            each for each in world.broker.default_host.queues["dead"].entries() if each.message.body == first.body
        ]
        headers = plain(entry.message.headers())
        assert headers["x-death"][0]["reason"] == "rejected"
        assert each.header.count(b"x-first-death-queue") == 1
    assert headers["own"] == 1
    assert headers["x-death"][0]["original-expiration"] == "60000"


def test_a_dead_message_of_0_10_is_stored_as_it_is_delivered(world: World) -> None:
    old = world.open_client()
    old.declare("q", arguments=typed_map(TO_DEAD))
    old.declare("dead")
    old.publish("q", b"x", ttl=1000, delivery_mode=2)
    world.run()
    expire(world, "q", 2)
    (entry,) = world.broker.default_host.queues["dead"].entries()
    stored = restore_message(b"".join(entry.message.stored_form()[0]))
    assert (stored.exchange, stored.routing_key, stored.expires_at, stored.is_persistent) == ("", "dead", 0, True)
    assert deaths_of(stored.headers()) == deaths_of(entry.message.headers()) != []


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-dead-letter-exchange": 1}, {"x-dead-letter-exchange": "x" * 256},
        {"x-dead-letter-routing-key": "dead"}, {**TO_DEAD, "x-dead-letter-routing-key": True},
    ],
)  # fmt: skip
def test_arguments_that_are_not_valid(client: BasicClient, arguments: dict[str, Any]) -> None:
    closed, code, text = failed(client, "queue.declare", queue="l", arguments=arguments)
    assert (closed, code) == ("channel.close", 406)
    assert "x-dead-letter" in text


def test_a_queue_is_not_declared_again_with_another_exchange(client: BasicClient) -> None:
    client.call("queue.declare", queue="q", arguments=TO_DEAD)
    assert client.call("queue.declare", queue="q", arguments=TO_DEAD).name == "queue.declare-ok"
    _, code, text = failed(client, "queue.declare", queue="q", arguments={"x-dead-letter-exchange": "other"})
    assert code == 406
    assert "inequivalent arg 'x-dead-letter-" in text


def test_declaring_a_dead_letter_exchange_needs_publish_rights(world: World, client: BasicClient) -> None:
    def refuse(_caller: object, exchange: str, key: str) -> bool:
        raise UnauthorizedError(f"{exchange} {key}")

    class Rules:
        checks_publish = True

        def allows(self, *_: object) -> bool:
            return True

    world.broker.authorization.authorizer = Rules()  # type: ignore[assignment]
    world.broker.authorization.check_publish = refuse  # type: ignore[method-assign]
    assert failed(client, "queue.declare", queue="q", arguments=TO_DEAD)[1:] == (403, "ACCESS_REFUSED -  dead")


# ---- further routing keys in the headers CC and BCC: where a message goes, and what its consumers see of them ----


__all__ = ("client",)  # a fixture


def keyed(**headers: Any) -> Properties:
    return Properties(headers=typed_map({"own": 1, **headers}))


@pytest.fixture
def queues(client: BasicClient) -> BasicClient:
    for name in ("a", "b", "c"):
        client.call("queue.declare", queue=name)
    return client


def test_each_queue_gets_the_message_once(world: World, queues: BasicClient) -> None:
    queues.publish("a", b"to all", keyed(CC=["b", "a", "nobody"], BCC=["c", "b"]))
    assert [totals(world, name).messages for name in "abc"] == [1, 1, 1]
    for name in "abc":
        found = got(queues, name)
        assert (found.body, found.values["routing_key"]) == (b"to all", "a")
        assert headers_of(found) == {"own": 1, "CC": ["b", "a", "nobody"]}


def test_consumers_do_not_see_bcc(queues: BasicClient) -> None:
    queues.call("basic.consume", queue="b", consumer_tag="t", no_ack=True)
    queues.publish("a", b"x", keyed(BCC=["b"]))
    assert headers_of(queues.take("basic.deliver")[0]) == {"own": 1}


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout", "headers"])
@pytest.mark.parametrize("is_chained", [False, True])
def test_every_type_of_exchange(world: World, queues: BasicClient, kind: str, is_chained: bool) -> None:
    queues.call("exchange.declare", exchange="x", type=kind)
    source = "x"
    if is_chained:
        source = "source"
        queues.call("exchange.declare", exchange=source, type="fanout")
        queues.call("exchange.bind", destination="x", source=source)
    arguments = {"own": 1} if kind == "headers" else {}
    for name in "ab":
        queues.call("queue.bind", queue=name, exchange="x", routing_key=f"key.{name}", arguments=arguments)
    queues.publish("key.a", b"x", keyed(CC=["key.b"], BCC=["key.a"]), exchange=source)
    assert [totals(world, name).messages for name in "abc"] == [1, 1, 0]
    exchange = world.broker.default_host.exchanges[source].counts
    assert exchange.messages_routed == 2


def test_a_mandatory_message_is_returned_only_if_no_key_has_a_queue(world: World, queues: BasicClient) -> None:
    queues.publish("nobody", b"1", keyed(CC=["b"]), mandatory=True)
    assert (queues.take("basic.return"), totals(world, "b").messages) == ([], 1)
    queues.publish("nobody", b"2", keyed(CC=["else"], BCC=["other"]), mandatory=True)
    (returned,) = queues.take("basic.return")
    assert (returned.values["reply_code"], returned.values["routing_key"]) == (312, "nobody")
    assert headers_of(returned) == {"own": 1, "CC": ["else"]}


def test_alternate_exchange_gets_messages_no_key_routes(world: World, queues: BasicClient) -> None:
    queues.call("exchange.declare", exchange="other", type="direct")
    queues.call("queue.bind", queue="c", exchange="other", routing_key="second")
    queues.call("exchange.declare", exchange="x", type="direct", arguments={"alternate-exchange": "other"})
    queues.publish("first", b"1", keyed(CC=["second"]), exchange="x")
    assert totals(world, "c").messages == 1
    queues.call("queue.bind", queue="a", exchange="x", routing_key="second")
    queues.publish("first", b"2", keyed(CC=["second"]), exchange="x")
    assert [totals(world, name).messages for name in "ac"] == [1, 1]


def test_in_a_transaction(world: World, queues: BasicClient) -> None:
    queues.call("tx.select")
    queues.publish("a", b"x", keyed(CC=["b"], BCC=["c"]))
    assert totals(world, "b").messages == 0
    queues.call("tx.commit")
    assert [totals(world, name).messages for name in "abc"] == [1, 1, 1]


@pytest.mark.parametrize("name", ["CC", "BCC"])
@pytest.mark.parametrize("value", ["b", 1, True, {"b": 1}])
def test_sender_keys_that_are_no_list_close_the_channel(queues: BasicClient, name: str, value: Any) -> None:
    queues.publish("a", b"x", keyed(**{name: value}))
    (closed,) = queues.take("channel.close")
    assert closed.values["reply_code"] == 406
    assert closed.values["reply_text"].startswith(f"PRECONDITION_FAILED - invalid message: header '{name}' ")


def test_sender_keys_are_limited() -> None:
    keys = ["b"] * MAX_KEYS
    assert selected_keys(typed_map({"CC": keys}), "CC") == tuple(keys)
    with pytest.raises(InvalidArgumentError, match="'CC' has more than 1000 keys"):
        selected_keys(typed_map({"CC": [*keys, "b"]}), "CC")


def test_elements_that_are_no_texts_do_not_count(world: World, queues: BasicClient) -> None:
    queues.publish("a", b"x", keyed(CC=[1, "b", None, ["c"]]))
    assert [totals(world, name).messages for name in "abc"] == [1, 1, 0]


def test_headers_that_only_look_like_them(world: World, queues: BasicClient) -> None:
    queues.publish("a", b"CC", Properties(headers=typed_map({"ACCESS": ["b"], "cc": ["b"], "n": {"CC": ["b"]}})))
    queues.publish("a", b"CC", Properties(message_id="CC"))
    assert [totals(world, name).messages for name in "abc"] == [2, 0, 0]


def test_dead_letters_are_routed_by_all_keys(world: World, queues: BasicClient) -> None:
    queues.call("exchange.declare", exchange="dlx", type="direct")
    for name in ("b", "c"):
        queues.call("queue.bind", queue=name, exchange="dlx", routing_key=f"to-{name}")
    queues.call("queue.declare", queue="q", arguments={"x-dead-letter-exchange": "dlx"})
    queues.publish("q", b"x", keyed(CC=["to-b"], BCC=["to-c"]))
    queues.call("basic.get", queue="q")
    queues.method("basic.nack", **NACK)
    found = [got(queues, name) for name in "bc"]
    for each in found:
        headers = headers_of(each)
        assert (headers["CC"], "BCC" in headers) == (["to-b"], False)
        assert headers["x-death"][0]["routing-keys"] == ["q", "to-b"]


def test_a_key_for_dead_letters_replaces_them_all(world: World, queues: BasicClient) -> None:
    to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    queues.call("queue.declare", queue="q", arguments=to)
    queues.publish("q", b"x", keyed(CC=["b"], BCC=["c"]))
    for name in "bc":
        got(queues, name)
    queues.call("basic.get", queue="q")
    queues.method("basic.nack", **NACK)
    headers = headers_of(got(queues, "dead"))
    assert not {"CC", "BCC"} & set(headers)
    assert headers["x-death"][0]["routing-keys"] == ["q", "b"]
    assert [totals(world, name).messages for name in "bc"] == [0, 0]


def test_a_stored_message_keeps_its_keys() -> None:
    """And its consumers do not see BCC after a restart, either."""
    header = encode_header(1, keyed(CC=["b"], BCC=["c"]))
    routed = encode_routed("", "a")
    first = with_keys(BasicMessage(header, b"x", "", "a", routed, True, Handling(priority=0), 0.0))
    again = restore_message(b"".join(first.stored_form()[0]))
    for each in (first, again, again.expiring_at(5.0), again.with_headers({})):
        assert isinstance(each, BasicMessage)
        assert [other.routing_key for other in each.under_further_keys()] == ["b", "c"]
        assert plain(each.headers()) == {"own": 1, "CC": ["b"]}
    damaged = encode_header(1, keyed(CC="b"))
    stored = BasicMessage(damaged, b"x", "", "a", routed, True, Handling(priority=0), 0.0).stored_form()
    assert restore_message(b"".join(stored[0])).under_further_keys() == ()


def test_its_size_is_that_of_all_its_headers() -> None:
    """What consumers do not see counts against the limits of a queue and of memory as well; and keys take no more."""
    header = encode_header(1, keyed(CC=["b"], BCC=[f"{number:>0100}" for number in range(MAX_KEYS)]))
    whole = BasicMessage(header, b"x", "", "a", encode_routed("", "a"), True, Handling(priority=0), 0.0)
    tracemalloc.start()
    message = with_keys(whole)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    again = restore_message(b"".join(message.stored_form()[0]))
    assert [each.size for each in (message, message.expiring_at(5.0), again)] == [len(header) + 1] * 3
    assert len(message.header) < 100
    assert held < 10_000


# ---- at least once ----

KEPT = {
    **TO_DEAD, "x-queue-type": "quorum", "x-overflow": "reject-publish", "x-dead-letter-strategy": "at-least-once",
}  # fmt: skip


class Timers:
    """The timers of dead letters, which ring when a test lets them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.set: list[tuple[float, Any]] = []
        world.broker.default_host.dead_letters._call_later = lambda seconds, work: self.set.append((seconds, work))

    def ring(self) -> None:
        ((seconds, work),) = self.set
        self.set.clear()
        self._world.now += seconds
        work()
        self._world.run()


def kept(world: World, client: BasicClient, **more: Any) -> Timers:
    """A queue `q` whose dead messages must not be lost."""
    timers = Timers(world)
    client.call("queue.declare", queue="q", durable=True, arguments=KEPT | more)
    return timers


def held(world: World, queue: str = "q") -> tuple[int, int]:
    """How many messages of a queue are ready, and how many are not."""
    entries = list(world.broker.default_host.queues[queue].order)
    ready = sum(each.state == AVAILABLE for each in entries)
    return ready, len(entries) - ready


@pytest.mark.parametrize("cause", ["rejected", "expired", "delivery_limit"])
def test_at_least_once_a_dead_message_stays_until_it_has_a_queue(
    world: World, client: BasicClient, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    timers = kept(world, client, **{"x-dead-letter-routing-key": "later", "x-delivery-limit": 0})
    client.publish("q", b"precious", Properties(expiration="100" if cause == "expired" else None))
    if cause == "expired":
        expire(world, "q", 1)
    else:
        client.call("basic.get", queue="q")
        client.method("basic.nack", **{**NACK, "requeue": cause == "delivery_limit"})
        client.sync()
    assert 'dead messages stay until the dead-letter exchange "" takes them' in caplog.text
    assert held(world) == (0, 1)
    timers.ring()
    assert held(world) == (0, 1)
    client.call("queue.declare", queue="later")
    timers.ring()
    assert held(world) == (0, 0)
    found = got(client, "later")
    assert (found.body, [each["reason"] for each in headers_of(found)["x-death"]]) == (b"precious", [cause])
    assert not timers.set


def test_at_least_once_a_dead_message_waits_for_its_exchange(world: World, client: BasicClient) -> None:
    timers = kept(world, client, **{"x-dead-letter-exchange": "later"})
    client.publish("q", b"precious", Properties(expiration="100"))
    expire(world, "q", 1)
    client.call("exchange.declare", exchange="later", type="fanout")
    timers.ring()
    assert held(world) == (0, 1)
    client.call("queue.bind", queue="dead", exchange="later")
    timers.ring()
    assert (held(world), got(client, "dead").body) == ((0, 0), b"precious")


@pytest.mark.parametrize("cause", ["rejected", "expired"])
def test_at_least_once_dead_messages_wait_for_room(world: World, client: BasicClient, cause: str) -> None:
    timers = kept(world, client)
    client.call("queue.delete", queue="dead")
    client.call("queue.declare", queue="dead", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    for number in range(3):
        client.publish("q", b"%d" % number, Properties(expiration="100" if cause == "expired" else None))
        if cause == "rejected":
            client.call("basic.get", queue="q")
    if cause == "rejected":
        client.method("basic.nack", **NACK)
        client.sync()
    else:
        expire(world, "q", 1)
    came = []
    for left in (2, 1, 0):
        assert held(world) == (0, left)
        came.append(got(client, "dead").body)
        if left:
            timers.ring()
    assert sorted(came) == [b"0", b"1", b"2"]


def test_at_least_once_a_message_in_a_cycle_stays(world: World, client: BasicClient) -> None:
    timers = kept(world, client, **{"x-dead-letter-routing-key": "q", "x-message-ttl": 100})
    client.publish("q", b"precious")
    for _ in range(2):
        expire(world, "q", 1)
    assert held(world) == (0, 1)
    timers.ring()
    assert held(world) == (0, 1)


def test_what_is_kept_is_gone_with_its_queue(world: World, client: BasicClient) -> None:
    timers = kept(world, client, **{"x-dead-letter-routing-key": "nowhere", "x-message-ttl": 100})
    client.publish("q", b"precious")
    expire(world, "q", 1)
    client.call("queue.delete", queue="q")
    timers.ring()
    assert not timers.set
    client.call("queue.declare", queue="q", durable=True, arguments=KEPT)
    assert held(world) == (0, 0)


def test_many_kept_messages_are_tried_again_in_turns(world: World, client: BasicClient) -> None:
    timers = kept(world, client, **{"x-dead-letter-routing-key": "later", "x-message-ttl": 100})
    for number in range(3 * MAX_RETRIED):
        client.publish("q", b"%d" % number)
    world.run()
    expire(world, "q", 1)
    assert held(world) == (0, 3 * MAX_RETRIED)
    client.call("queue.declare", queue="later")
    ((_, work),) = timers.set
    work()
    assert 0 < totals(world, "later").messages <= MAX_RETRIED
    world.run()
    assert (held(world), totals(world, "later").messages) == ((0, 0), 3 * MAX_RETRIED)


def test_what_was_kept_of_a_deleted_queue_is_forgotten_in_turns(world: World, client: BasicClient) -> None:
    timers = kept(world, client, **{"x-dead-letter-routing-key": "nowhere", "x-message-ttl": 100})
    for number in range(3 * MAX_RETRIED):
        client.publish("q", b"%d" % number)
    world.run()
    expire(world, "q", 1)
    client.call("queue.delete", queue="q")
    ((_, work),) = timers.set
    work()
    letters = world.broker.default_host.dead_letters
    assert MAX_RETRIED < len(letters._kept) < 3 * MAX_RETRIED
    world.run()
    assert not letters._kept


def test_a_policy_keeps_dead_messages_of_the_queues_that_can(world: World, client: BasicClient) -> None:
    timers = Timers(world)
    definition = {
        "dead-letter-exchange": "", "dead-letter-routing-key": "later", "dead-letter-strategy": "at-least-once",
        "overflow": "reject-publish", "message-ttl": 100,
    }  # fmt: skip
    asyncio.run(world.broker.policies.set(Policy("/", "p", "", "queues", 0, definition)))
    client.call("queue.declare", queue="q", durable=True, arguments={"x-queue-type": "quorum"})
    client.call("queue.declare", queue="classic", durable=True)
    for name in ("q", "classic"):
        client.publish(name, b"precious")
        client.sync()
        expire(world, name, 1)
    assert (held(world), held(world, "classic")) == ((0, 1), (0, 0))
    client.call("queue.declare", queue="later", arguments={"x-message-ttl": 10**6})
    timers.ring()
    assert (held(world), held(world, "later")) == ((0, 0), (1, 0))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"x-queue-type": "classic"}, "needs x-queue-type 'quorum' and x-overflow 'reject-publish'"),
        ({"x-overflow": "drop-head"}, "needs x-queue-type 'quorum' and x-overflow 'reject-publish'"),
        ({"x-dead-letter-strategy": "always"}, "x-dead-letter-strategy is 'always', not at-most-once or at-least-once"),
        ({"x-dead-letter-exchange": None}, "is given without x-dead-letter-exchange"),
    ],
)
def test_at_least_once_is_refused_where_it_cannot_be_kept(
    client: BasicClient, changed: dict[str, Any], why: str
) -> None:
    arguments = {name: value for name, value in (KEPT | changed).items() if value is not None}
    if "x-dead-letter-exchange" not in arguments:
        del arguments["x-dead-letter-routing-key"]
    name, code, text = failed(client, "queue.declare", queue="x", durable=True, arguments=arguments)
    assert (name, code) == ("channel.close", 406)
    assert why in text
