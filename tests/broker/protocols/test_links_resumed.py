"""AMQP 1.0: links that are suspended with unsettled deliveries, and resumed."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.model.events import UserDeleted
from qstore.broker.protocols.amqp_0_10.server_connection import Amqp010Connections
from qstore.broker.protocols.amqp_1_0 import connection as connection_module
from qstore.broker.protocols.amqp_1_0 import session as session_module
from qstore.broker.protocols.amqp_1_0.connection import Amqp10Connections
from qstore.broker.protocols.amqp_1_0.links import CREDIT
from qstore.broker.protocols.amqp_1_0.resuming import MAX_IN_MAP, MAX_SECTIONS, NEVER_SECONDS, rest_at
from qstore.broker.protocols.table import Protocols
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER as AMQP_0_10_HEADER
from qstore.formats.amqp_1_0.composites import Composite, encode_composite, read_composite
from qstore.formats.amqp_1_0.frames import AMQP_HEADER
from qstore.formats.amqp_1_0.sections import data_section
from qstore.formats.amqp_1_0.values import Value, encode_value, read_value
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.world import World
from tests.support.compiled import replaces
from tests.support.sections_peer import ACCEPTED, RECEIVER, REJECTED, RELEASED, SENDER, Delivered, Received

TIMEOUT = 60
KEPT = {"timeout": TIMEOUT}
NOTHING = Value("null", None)


def state_value(state: Composite | None) -> Value:
    if state is None:
        return NOTHING
    encoded = encode_composite(state.name, state.fields)
    return read_value(encoded, 0, len(encoded))[0]


def unsettled(states: dict[bytes, Composite | None]) -> tuple[tuple[Value, Value], ...]:
    return tuple((Value("binary", tag), state_value(state)) for tag, state in states.items())


def told(attached: Received) -> dict[bytes, str | None] | None:
    """The broker's map: tag -> the name of the state."""
    given = attached.fields.get("unsettled")
    if given is None:
        return None
    found: dict[bytes, str | None] = {}
    for key, value in given:
        encoded = encode_value(value)
        found[key.value] = None if value == NOTHING else read_composite(encoded, 0, len(encoded))[0].name
    return found


def part(section: int, offset: int) -> Composite:
    return Composite("received", {"section_number": section, "section_offset": offset})


def bodies(found: list[Delivered]) -> list[bytes]:
    return [each.content[-1:] for each in found]


def tags(found: list[Delivered]) -> list[bytes]:
    return [each.fields["delivery_tag"] for each in found]


@pytest.fixture
def world() -> World:
    world = World()
    world.durable_queue("d")
    return world


def fill(world: World, count: int, queue: str = "d", **properties: Any) -> None:
    client = LinksClient(world).open().sender(queue)
    for number in range(count):
        client.publish(b"%d" % (number % 10), settled=True, **properties)
        if number % 100 == 0:
            settle_disk(world)
    client.sync()
    while world.store.flushes:
        world.store.end_flush()
        world.run()


def settle_disk(world: World) -> None:
    world.run()
    while world.store.flushes:
        world.store.end_flush()
        world.run()


def attach(client: LinksClient, handle: int = 0, *, node: str = "d", **fields: Any) -> Received:
    """Attach the link `l`, which receives."""
    terminus = fields.pop("terminus", KEPT)
    (attached, *others) = client.attach(node, handle, receives=True, name="l", terminus=terminus, **fields)
    assert (attached.name, others) == ("attach", [])
    return attached


def received(world: World, count: int, **fields: Any) -> tuple[LinksClient, list[Delivered]]:
    """A client that has received messages, and settled none."""
    fill(world, count)
    client = LinksClient(world).open()
    attach(client, **fields)
    client.credit(count)
    found = client.messages()
    assert len(found) == count
    return client, found


def lose(world: World, client: LinksClient) -> None:
    client.machine.closed()
    world.run()


def waiting(world: World, queue: str = "d") -> int:
    return world.broker.default_host.queues[queue].available_count


def messages(world: World, queue: str = "d") -> int:
    return world.broker.default_host.queues[queue].message_count


def again(world: World, states: dict[bytes, Composite | None], **fields: Any) -> tuple[LinksClient, Received]:
    """A new connection that resumes the link with these states."""
    client = LinksClient(world).open()
    return client, attach(client, unsettled=unsettled(states), **fields)


# ---- the broker sends ----


@pytest.mark.parametrize("way", ["detach", "end", "close", "lost"])
def test_deliveries_are_reconciled_with_the_states_of_the_client(world: World, way: str) -> None:
    client, found = received(world, 5)
    accepted, rejected, bare, partly, absent = tags(found)
    if way == "lost":
        lose(world, client)
    elif way == "detach":
        client.do("detach", handle=0)
    else:
        client.do(way)
    assert way == "lost" or [each.name for each in client.take()] == [way]
    assert waiting(world) == 0
    states = {accepted: ACCEPTED, rejected: REJECTED, bare: None, partly: part(1, 4)}
    if way == "detach":
        attached = attach(client, 1, unsettled=unsettled(states))
        handle = 1
    else:
        client, attached = again(world, states)
        handle = 0
    assert told(attached) == dict.fromkeys(states)
    assert waiting(world) == 1  # the client does not know the last one
    client.credit(5, handle)
    resumed = client.messages()
    assert tags(resumed)[:4] == list(states)
    assert [each.fields["resume"] for each in resumed] == [True] * 4 + [False]
    assert [each.content for each in resumed[:2]] == [b"", b""]
    assert resumed[2].content == found[2].content
    rest = data_section(1) + b"3"
    assert (resumed[3].content, resumed[3].fields["state"]) == (rest[4:], part(1, 4))
    assert absent not in tags(resumed)
    assert (bodies(resumed[4:]), resumed[4].header["delivery_count"]) == ([b"4"], 1)
    assert client.take("disposition") == []  # it is not on the disk yet
    settle_disk(world)
    assert sorted(client.outcomes()) == sorted(
        (each.id, each.id, name) for each, name in zip(resumed[:2], ("accepted", "rejected"), strict=True)
    )
    assert messages(world) == 3
    client.settle(ACCEPTED, resumed[2].id, resumed[4].id)
    settle_disk(world)
    assert messages(world) == 0


def test_an_outcome_is_settled_when_it_is_on_the_disk(world: World) -> None:
    client, (found,) = received(world, 1)
    lose(world, client)
    client, _ = again(world, {found.fields["delivery_tag"]: ACCEPTED})
    client.credit(1)
    (resumed,) = client.messages()
    assert (client.outcomes(), len(world.store.dequeued)) == ([], 1)
    world.store.end_flush()
    assert client.outcomes() == [(resumed.id, resumed.id, "accepted")]


def test_resumed_deliveries_take_credit_and_precede_new_ones(world: World) -> None:
    client, found = received(world, 3)
    lose(world, client)
    fill(world, 2)
    client, _ = again(world, dict.fromkeys(tags(found)))
    client.credit(2)
    assert tags(client.messages()) == tags(found)[:2]
    client.credit(4, seen=0)
    third, new = client.messages()
    assert (third.fields["delivery_tag"], new.fields["resume"]) == (tags(found)[2], False)
    assert len({*tags(found), new.fields["delivery_tag"]}) == 4
    client.credit(5, seen=4, drain=True)
    (flow,) = client.take("flow")
    assert (flow.fields["delivery_count"], flow.fields["link_credit"]) == (9, 0)


def test_a_link_is_resumed_again_and_again(world: World) -> None:
    client, found = received(world, 2)
    for _ in range(3):
        lose(world, client)
        client, attached = again(world, dict.fromkeys(tags(found)))
        assert told(attached) == dict.fromkeys(tags(found))
        client.credit(1)  # the second one is not resumed each time
        assert tags(client.messages()) == tags(found)[:1]
    client.settle(ACCEPTED, 0)
    settle_disk(world)
    assert messages(world) == 1
    lose(world, client)
    _, attached = again(world, dict.fromkeys(tags(found)))
    assert told(attached) == {tags(found)[1]: None}


def test_a_link_that_is_attached_anew_gives_back_what_was_kept(world: World) -> None:
    client, _ = received(world, 2)
    lose(world, client)
    client = LinksClient(world).open()
    assert told(attach(client)) is None
    client.credit(2)
    assert [each.header["delivery_count"] for each in client.messages()] == [1, 1]


def test_a_link_that_the_broker_does_not_know_has_an_empty_map(world: World) -> None:
    fill(world, 1)
    client, attached = again(world, {b"lost": ACCEPTED})
    assert told(attached) == {}
    client.credit(1)
    assert [each.fields["resume"] for each in client.messages()] == [False]


def test_deliveries_are_kept_for_the_timeout(world: World) -> None:
    client, found = received(world, 1)
    lose(world, client)
    shared = client.machine._shared
    shared.on_timer(world.now + TIMEOUT - 1)
    assert waiting(world) == 0
    shared.on_timer(world.now + TIMEOUT)
    assert (waiting(world), messages(world)) == (1, 1)
    _, attached = again(world, dict.fromkeys(tags(found)))
    assert told(attached) == {}


def test_a_terminus_that_never_expires_is_kept_for_some_minutes(world: World) -> None:
    never = {"durable": 2, "expiry_policy": "never"}
    client, _ = received(world, 1, terminus=never)
    lose(world, client)
    client.machine._shared.on_timer(world.now + NEVER_SECONDS - 1)
    assert waiting(world) == 0
    client.machine._shared.on_timer(world.now + NEVER_SECONDS)
    assert waiting(world) == 1


@pytest.mark.parametrize(
    ("terminus", "fields"),
    [
        ({}, {}),
        ({"durable": 2}, {}),
        ({"expiry_policy": "never"}, {}),
        ({"timeout": 60, "distribution_mode": "copy"}, {}),
        ({"durable": 2, "expiry_policy": "never", "capabilities": ("shared",)}, {}),
    ],
)
def test_other_links_are_not_kept(world: World, terminus: dict[str, Any], fields: dict[str, Any]) -> None:
    client, _ = received(world, 1, terminus=terminus, **fields)
    lose(world, client)
    assert waiting(world) == 1
    assert len(client.machine.resumable) == 0


def test_the_broker_says_how_long_it_keeps_deliveries() -> None:
    world = World(BrokerSettings(auth=False, session_timeout_max_seconds=30))
    make_queue(world, "d")
    client = LinksClient(world).open()
    source = attach(client).fields["source"].fields
    assert (source["timeout"], source["expiry_policy"], source["durable"]) == (30, "session-end", 0)


def test_a_link_that_is_closed_ends(world: World) -> None:
    client, found = received(world, 1)
    client.do("detach", handle=0, closed=True)
    client.sync()
    assert waiting(world) == 1
    _, attached = again(world, dict.fromkeys(tags(found)))
    assert told(attached) == {}


def test_another_container_or_another_queue_resumes_nothing(world: World) -> None:
    client, found = received(world, 2)
    lose(world, client)
    other = LinksClient(world).open(container_id="other")
    assert told(attach(other, unsettled=unsettled(dict.fromkeys(tags(found))))) == {}
    assert waiting(world) == 0
    make_queue(world, "e")
    _, attached = again(world, dict.fromkeys(tags(found)), node="e")
    assert (told(attached), waiting(world)) == ({}, 2)


def test_a_link_is_taken_over_from_a_connection_that_is_not_known_to_be_lost(world: World) -> None:
    stale, found = received(world, 2)
    client, attached = again(world, {tags(found)[0]: ACCEPTED, tags(found)[1]: None})
    assert told(attached) == dict.fromkeys(tags(found))
    (detached,) = stale.take("detach")
    assert (detached.fields["error"].fields["condition"], detached.fields["closed"]) == ("amqp:link:stolen", True)
    lose(world, stale)
    client.credit(2)
    assert tags(client.messages()) == tags(found)
    settle_disk(world)
    assert messages(world) == 1


def test_what_is_not_in_an_incomplete_map_stays_until_the_next_attach(world: World) -> None:
    client, found = received(world, 3)
    fill(world, 1)
    lose(world, client)
    first, second, third = tags(found)
    client, attached = again(world, {first: ACCEPTED}, incomplete_unsettled=True)
    assert told(attached) == dict.fromkeys(tags(found))
    client.credit(10)
    assert tags(client.messages()) == [first]  # and no new ones
    settle_disk(world)
    client.credit(10, seen=1, drain=True)
    assert [each.fields["link_credit"] for each in client.take("flow")] == [0]
    client.do("detach", handle=0)
    assert [each.fields["closed"] for each in client.take("detach")] == [False]
    assert told(attach(client, 1, unsettled=unsettled({second: None, third: ACCEPTED}))) == {second: None, third: None}
    client.credit(10, 1)
    resumed = client.messages()
    assert (tags(resumed)[:2], [each.fields["resume"] for each in resumed]) == ([second, third], [True, True, False])


def test_the_map_of_the_broker_is_incomplete_if_it_does_not_fit(world: World) -> None:
    client, found = received(world, 100)
    lose(world, client)
    client = LinksClient(world)
    client.open(max_frame_size=512)
    attached = attach(client, unsettled=unsettled(dict.fromkeys(tags(found)[:20])), incomplete_unsettled=True)
    found_by_client = told(attached)
    assert found_by_client is not None
    assert attached.fields["incomplete_unsettled"] is True
    assert 0 < len(found_by_client) < 100
    assert waiting(world) == 0


def test_the_map_of_the_broker_has_a_limit(world: World) -> None:
    client, found = received(world, MAX_IN_MAP + 10)
    lose(world, client)
    client = LinksClient(world)
    client.open(max_frame_size=1 << 20)
    attached = attach(client, unsettled=unsettled(dict.fromkeys(tags(found)[:100])), incomplete_unsettled=True)
    found_by_client = told(attached)
    assert found_by_client is not None
    assert (len(found_by_client), attached.fields["incomplete_unsettled"]) == (MAX_IN_MAP, True)


def test_the_oldest_suspended_link_ends_if_there_are_too_many() -> None:
    world = World(BrokerSettings(auth=False, max_detached_sessions=1))
    world.durable_queue("d")
    fill(world, 2)
    clients = []
    for name in ("a", "b"):
        client = LinksClient(world).open(container_id=name)
        attach(client)
        client.credit(1)
        clients.append((client, client.messages()))
    for client, _ in clients:
        lose(world, client)
    assert waiting(world) == 1
    for (_, found), is_kept in zip(clients, (False, True), strict=True):
        client = LinksClient(world).open(container_id="a" if not is_kept else "b")
        assert told(attach(client, unsettled=unsettled(dict.fromkeys(tags(found))))) == (
            dict.fromkeys(tags(found)) if is_kept else {}
        )


def test_a_deleted_queue_has_nothing_to_resume(world: World) -> None:
    client, _ = received(world, 1)
    lose(world, client)
    maker = world.open_client(name=b"deleter")
    maker.command("queue.delete", queue="d")
    maker.sync()
    settle_disk(world)
    client.machine._shared.on_timer(world.now + TIMEOUT)
    assert len(client.machine.resumable) == 0


def test_a_large_message_is_resumed_in_frames(world: World) -> None:
    client = LinksClient(world).open().sender("d")
    client.publish(bytes(5000), settled=True)
    settle_disk(world)
    client = LinksClient(world)
    client.open(max_frame_size=1000)
    attach(client)
    client.credit(1)
    (found,) = client.messages()
    lose(world, client)
    client = LinksClient(world)
    client.open(max_frame_size=1000)
    attach(client, unsettled=unsettled({found.fields["delivery_tag"]: part(1, 3000)}))
    client.credit(1)
    (resumed,) = client.messages()
    assert (resumed.fields["state"], resumed.content) == (part(1, 3000), bytes(5008 - 3000))


def test_the_rest_of_a_message_is_found_by_section_and_offset() -> None:
    header, data = encode_composite("header", {"durable": True}), data_section(3) + b"abc"
    whole = header + data
    for place, expected in {
        (0, 0): 0, (0, 3): 0, (1, 0): len(header), (1, 5): len(header) + 5, (1, len(data)): len(whole),
        (2, 0): len(whole), (2, 1): 0, (3, 0): 0, (1, 100): 0,
    }.items():  # fmt: skip
        assert rest_at(whole, *place) == expected, place


def test_a_released_delivery_of_the_client_is_available(world: World) -> None:
    client, found = received(world, 1)
    lose(world, client)
    client, _ = again(world, {tags(found)[0]: RELEASED})
    client.credit(2)
    resumed, new = client.messages()
    assert (resumed.content, new.fields["resume"], new.header.get("delivery_count", 0)) == (b"", False, 0)


@replaces
def test_a_session_with_a_link_that_can_be_resumed_has_fewer_unsettled_deliveries(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "MAX_RESUMABLE", 3)
    fill(world, 5)
    client = LinksClient(world).open()
    attach(client)
    client.credit(5)
    assert bodies(client.messages()) == [b"0", b"1", b"2"]
    client.settle(ACCEPTED, 0)
    assert bodies(client.messages()) == [b"3"]


@pytest.mark.parametrize(
    "state",
    [
        Composite("rejected", {"error": Composite("error", {"condition": "a:b", "description": "x" * 3000})}),
        Composite("modified", {"message_annotations": ((Value("symbol", "x-a"), Value("string", "x" * 3000)),)}),
    ],
)
def test_of_an_outcome_that_exceeds_the_frames_of_the_client_less_is_sent(world: World, state: Composite) -> None:
    client, found = received(world, 1)
    lose(world, client)
    client = LinksClient(world)
    client.open(max_frame_size=512)
    attach(client, unsettled=unsettled({tags(found)[0]: state}))
    client.credit(1)
    (resumed,) = client.messages()
    assert (resumed.fields["delivery_tag"], resumed.fields["state"].name) == (tags(found)[0], state.name)
    settle_disk(world)
    assert client.outcomes() == [(0, 0, state.name)]


def test_a_message_of_very_many_sections_is_sent_again_as_a_whole(world: World) -> None:
    client = LinksClient(world).open().sender("d")
    whole = data_section(0) * (MAX_SECTIONS + 1)
    client.publish(message=whole, settled=True)
    settle_disk(world)
    client = LinksClient(world).open()
    attach(client)
    client.credit(1)
    (found,) = client.messages()
    for section, rest in ((MAX_SECTIONS, data_section(0) * 2), (MAX_SECTIONS + 1, found.content)):
        lose(world, client)
        client, _ = again(world, {found.fields["delivery_tag"]: part(section, 0)})
        client.credit(1)
        (resumed,) = client.messages()
        assert resumed.content == rest, section


@pytest.mark.parametrize("state", [ACCEPTED, REJECTED, part(1, 4), None])
def test_many_deliveries_are_resumed_in_turns(world: World, state: Composite | None) -> None:
    client, found = received(world, 600)
    lose(world, client)
    client, _ = again(world, dict.fromkeys(tags(found), state))
    client.credit(600)
    assert client.machine.sessions[0].next_delivery < 200
    assert tags(client.messages()) == tags(found)


@replaces
def test_resumed_deliveries_are_no_more_than_a_session_may_have(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client, found = received(world, 5)
    lose(world, client)
    monkeypatch.setattr(session_module, "MAX_RESUMABLE", 3)
    client, _ = again(world, dict.fromkeys(tags(found)) | {tags(found)[0]: ACCEPTED})
    client.credit(5)
    resumed = client.messages()
    assert tags(resumed) == tags(found)[:4]
    client.settle(ACCEPTED, resumed[1].id)
    assert tags(client.messages()) == tags(found)[4:]


@pytest.mark.parametrize("state", [None, part(1, 2), ACCEPTED])
def test_what_exceeds_a_new_maximum_size_is_aborted_and_available(world: World, state: Composite | None) -> None:
    client, found = received(world, 1)
    lose(world, client)
    client, attached = again(world, {tags(found)[0]: state}, max_message_size=10)
    assert told(attached) == {tags(found)[0]: None}
    client.credit(2)
    (resumed,) = client.take("transfer")
    assert (resumed.fields["resume"], resumed.fields["delivery_tag"]) == (True, tags(found)[0])
    assert (resumed.fields["aborted"], resumed.content) == (state is not ACCEPTED, b"")
    settle_disk(world)
    if state is ACCEPTED:  # nothing has to be sent
        assert messages(world) == 0
        return
    assert client.machine.sessions[0].unsettled_count == 0
    other = LinksClient(world).open(container_id="other").receiver("d", credit=1)
    assert [each.header["delivery_count"] for each in other.messages()] == [1]


@replaces
@pytest.mark.parametrize("way", ["lost", "close"])
def test_sessions_with_many_deliveries_are_suspended_in_turns(
    world: World, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that is attached again meanwhile is resumed."""
    monkeypatch.setattr(connection_module, "MAX_UNSETTLED", 5)
    fill(world, 6)
    client, found = LinksClient(world).open(0, 1, 2), []
    for channel in range(3):
        client.attach("d", receives=True, name=f"l{channel}", terminus=KEPT, channel=channel)
        client.credit(2, channel=channel)
        found.append(tags(client.messages()))
    sessions, resumable = list(client.machine.sessions.values()), client.machine.resumable
    other = LinksClient(world).open()
    if way == "lost":
        client.machine.closed()
    else:
        client.do("close")
    assert [len(resumable), len(resumable.attached)] == [1, 2]
    for each in sessions:
        each.wake_all()
    assert [each.can_send for each in sessions] == [False] * 3
    source = Composite("source", {"address": Value("string", "d"), **KEPT})
    states = unsettled(dict.fromkeys(found[2]))
    other.do("attach", name="l2", handle=0, role=RECEIVER, source=source, unsettled=states)
    assert [len(resumable), len(resumable.attached)] == [1, 2]
    (attached,) = other.take("attach")
    assert told(attached) == dict.fromkeys(found[2])
    assert [len(resumable), len(resumable.attached)] == [2, 1]
    assert client.take("detach") == []
    other.credit(10)
    assert tags(other.messages()) == found[2]
    assert (waiting(world), messages(world)) == (0, 6)


def test_what_a_deleted_user_has_left_is_available(world: World) -> None:
    """Over both protocols whose clients may come back."""
    protocols = Protocols(world.broker, world.authentication)
    links, transfers = protocols.find(AMQP_HEADER), protocols.find(AMQP_0_10_HEADER)
    assert isinstance(links, Amqp10Connections)
    assert isinstance(transfers, Amqp010Connections)
    links.now = transfers.now = lambda: world.now
    world.links_connections, world.connections = links, transfers  # type: ignore[attr-defined]
    fill(world, 3)
    client = world.open_client(timeout=TIMEOUT)
    client.subscribe("d", messages=1)
    client.sync()
    (session,) = transfers.sessions._sessions.values()
    user = session.user
    client.machine.closed()
    for number in range(2):
        link_client = LinksClient(world).open(container_id=str(number))
        attach(link_client)
        link_client.credit(1)
        assert len(link_client.messages()) == 1
        lose(world, link_client)
    assert (waiting(world), len(links.resumable), len(protocols.detached_sessions())) == (0, 2, 1)
    world.broker.events.emit(UserDeleted(f"other-{user}"))
    world.run()
    assert (waiting(world), len(links.resumable), len(protocols.detached_sessions())) == (0, 2, 1)
    world.broker.events.emit(UserDeleted(user))
    world.run()
    assert (waiting(world), len(links.resumable), len(protocols.detached_sessions())) == (3, 0, 0)


def test_links_whose_time_is_over_end_in_turns(world: World) -> None:
    for number in range(3):
        client = LinksClient(world).open(container_id=str(number))
        fill(world, 1)
        attach(client)
        client.credit(1)
        assert len(client.messages()) == 1
        lose(world, client)
    shared = client.machine._shared
    shared.on_timer(world.now + TIMEOUT)
    assert (waiting(world), len(client.machine.resumable)) == (1, 2)
    shared.on_timer(world.now + TIMEOUT)
    world.run()
    assert (waiting(world), len(client.machine.resumable)) == (3, 0)


def test_a_link_that_is_attached_as_one_that_cannot_be_resumed_gives_back_what_was_kept(world: World) -> None:
    client, _ = received(world, 2)
    lose(world, client)
    client = LinksClient(world).open()
    attach(client, terminus={})
    client.credit(2)
    assert [each.header["delivery_count"] for each in client.messages()] == [1, 1]


# ---- the client sends ----


def sender(client: LinksClient, handle: int = 0, **fields: Any) -> Received:
    came = client.attach("d", handle, name="s", **{"terminus": KEPT, "rcv_settle_mode": 1, **fields})
    assert [each.name for each in came] == ["attach", "flow"], came
    return came[0]


def after_loss(world: World, count: int, **opening: Any) -> LinksClient:
    """A new connection of a client which has lost one over which it has sent messages that were stored."""
    client = LinksClient(world).open()
    sender(client)
    for _ in range(count):
        client.publish()
    settle_disk(world)
    lose(world, client)
    return LinksClient(world).open(**opening)


def dispositions(client: LinksClient) -> list[tuple[int, int, str, bool]]:
    return [
        (each.fields["first"], each.fields.get("last", each.fields["first"]), each.fields["state"].name,
         each.fields["settled"])
        for each in client.take("disposition")
    ]  # fmt: skip


def test_the_sender_settles_if_it_wants_to(world: World) -> None:
    client = LinksClient(world).open()
    attached = sender(client)
    assert attached.fields["rcv_settle_mode"] == 1
    for _ in range(3):
        client.publish()
    client.publish(rcv_settle_mode=0)
    client.publish(settled=True)
    settle_disk(world)
    assert dispositions(client) == [(0, 2, "accepted", False), (3, 3, "accepted", True)]
    session = client.machine.sessions[0]
    assert len(session._told) == 3
    client.do("disposition", role=SENDER, first=0, last=2, settled=True, state=ACCEPTED)
    assert (session._told, session._tracked) == ({}, {})


@replaces
def test_many_messages_are_settled_by_their_sender_in_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "AT_ONCE", 3)
    client = LinksClient(world).open()
    sender(client)
    for _ in range(10):
        client.publish()
    settle_disk(world)
    session = client.machine.sessions[0]
    client.do("disposition", role=SENDER, first=2, last=0, settled=True)
    assert len(session._told) == 10 - 3
    client.publish()  # it is read after them
    client.sync()
    settle_disk(world)
    assert list(session._told) == [1, 10]
    client.do("disposition", role=SENDER, first=0, last=10, settled=True)
    assert session._told == {}


@replaces
@pytest.mark.parametrize("role", [SENDER, RECEIVER])
def test_a_range_without_any_of_many_deliveries_takes_a_turn(
    world: World, role: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = received(world, 5)
    sender(client, 1)
    for _ in range(5):
        client.publish(handle=1)
    settle_disk(world)
    session = client.machine.sessions[0]
    monkeypatch.setattr(session_module, "AT_ONCE", 3)
    client.do("disposition", role=role, first=100, last=200, settled=True, state=ACCEPTED)
    client.publish(handle=1)
    assert session.received == 5
    client.sync()
    assert (session.received, session.unsettled_count, len(session._told)) == (6, 5, 5)


def test_a_refused_message_is_settled_by_its_sender(world: World) -> None:
    client = LinksClient(world).open()
    sender(client)
    client.publish(message=b"\0\x53\x75\xa0\x01x", message_format=7)
    assert dispositions(client) == [(0, 0, "rejected", False)]


def test_messages_that_the_sender_does_not_settle_take_its_credit(world: World) -> None:
    client = LinksClient(world).open()
    sender(client)
    most = CREDIT + CREDIT // 2 + 1  # when half of it is used, it is renewed for once
    for _ in range(most):
        client.publish()
        settle_disk(world)
    assert [each.fields["delivery_count"] for each in client.take("flow")] == [CREDIT // 2 + 1]
    client.do("disposition", role=SENDER, first=0, last=most - 1, settled=True)
    assert [each.fields["link_credit"] for each in client.take("flow")] == [CREDIT]


@replaces
def test_a_session_has_no_more_messages_that_its_client_does_not_settle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "MAX_UNSETTLED", 3)
    client = LinksClient(world).open()
    sender(client)
    for _ in range(3):
        client.publish()
    settle_disk(world)
    client.publish()
    assert client.error("end") == "amqp:resource-limit-exceeded"
    assert messages(world) == 3


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("is_done", [False, True])
def test_a_message_that_was_stored_is_not_stored_again(world: World, mode: int, is_done: bool) -> None:
    """Its sender learns the outcome, whether it was on the disk when the connection was lost, or later."""
    client = LinksClient(world).open()
    sender(client, rcv_settle_mode=mode)
    client.publish(b"x")
    client.sync()
    if is_done and mode:
        settle_disk(world)
    lose(world, client)
    client = LinksClient(world).open()
    came = client.attach("d", 0, name="s", terminus=KEPT, rcv_settle_mode=mode, unsettled=unsettled({b"0": None}))
    if not (is_done and mode):
        assert came == []  # it waits for the disk
        settle_disk(world)
        came = client.take("attach")
    assert told(came[0]) == {b"0": "accepted"}
    client.publish(b"x", resume=True)
    settle_disk(world)
    assert dispositions(client) == [(0, 0, "accepted", not mode)]
    assert messages(world) == 1


def test_a_message_whose_write_has_failed_is_rejected_when_it_is_resumed(world: World) -> None:
    client = LinksClient(world).open()
    sender(client)
    client.publish(b"x")
    client.sync()
    lose(world, client)
    client = LinksClient(world).open()
    client.attach("d", 0, name="s", terminus=KEPT, rcv_settle_mode=1, unsettled=unsettled({b"0": None}))
    world.store.end_flush(OSError("the disk is gone"))
    (attached,) = client.take("attach")
    assert told(attached) == {b"0": "rejected"}


def test_messages_that_are_not_known_are_ignored_when_they_are_resumed(world: World) -> None:
    client = LinksClient(world).open()
    sender(client, unsettled=unsettled({b"0": None}))
    client.publish(b"x", resume=True)
    client.publish(b"y")
    settle_disk(world)
    assert dispositions(client) == [(1, 1, "accepted", False)]
    assert messages(world) == 1


def test_what_the_client_does_not_know_any_more_is_forgotten(world: World) -> None:
    client = after_loss(world, 3)
    assert told(sender(client, unsettled=unsettled({b"1": None}))) == {b"1": "accepted"}
    lose(world, client)
    client = LinksClient(world).open()
    assert told(sender(client, unsettled=unsettled({b"0": None, b"1": None, b"2": None}))) == {b"1": "accepted"}


def test_an_incomplete_map_of_a_sender_settles_nothing(world: World) -> None:
    client = after_loss(world, 2)
    attached = sender(client, unsettled=unsettled({b"1": None}), incomplete_unsettled=True)
    assert told(attached) == {b"0": "accepted", b"1": "accepted"}


def test_resumed_messages_may_be_settled_or_aborted(world: World) -> None:
    client = after_loss(world, 2)
    sender(client, unsettled=unsettled({b"0": None, b"1": ACCEPTED}))
    client.publish(b"", message=b"", resume=True, aborted=True)
    client.publish(b"", message=b"", resume=True, settled=True, state=ACCEPTED)
    settle_disk(world)
    assert dispositions(client) == []
    lose(world, client)
    client = LinksClient(world).open()
    assert told(sender(client, unsettled=unsettled({b"0": None, b"1": None}))) == {}
    assert messages(world) == 2


def test_a_new_message_after_an_incomplete_map_of_the_broker_ends_the_link(world: World) -> None:
    client = after_loss(world, 100, max_frame_size=512)
    states = dict.fromkeys(b"%d" % number for number in range(100))
    assert sender(client, unsettled=unsettled(states)).fields["incomplete_unsettled"] is True
    client.publish(b"x")
    assert client.error("detach") == "amqp:not-allowed"
    assert messages(world) == 100


def test_messages_of_transactions_are_not_resumed(world: World) -> None:
    client = LinksClient(world).open()
    sender(client)
    client.publish(state=Composite("transactional-state", {"txn_id": Value("binary", b"none")}))
    settle_disk(world)
    lose(world, client)
    client = LinksClient(world).open()
    assert told(sender(client, unsettled=unsettled({b"0": None}))) == {}
