"""Bindings between exchanges: routes, their invalidation, and restarts."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    NotImplementedByBrokerError,
    RoutingLimitError,
)
from qstore.broker.model.events import ExchangeBind, ExchangeUnbind
from qstore.broker.model.exchanges import exchange as exchange_module
from qstore.broker.model.exchanges.exchange import HOP_STEPS, Exchange, ExchangeBinding, refresh
from qstore.broker.model.exchanges.matching import MAX_STEPS
from qstore.broker.model.exchanges.route import KEY_STEPS, MAX_KEY_STEPS, route_by_all
from qstore.broker.model.exchanges.types import EXCHANGE_TYPES
from qstore.formats.broker_records.topology import (
    EXCHANGE_BINDING_KIND,
    GeneralObject,
    decode_general,
    encode_general,
    exchange_binding_object,
    exchange_binding_of,
)
from qstore.formats.broker_records.topology import ExchangeBinding as Stored
from qstore.formats.values import EMPTY_MAP, TypedMap, typed_map
from tests.broker.exchange_parts import FakeMessage, fake_queues, routed
from tests.broker.wired_broker import Wired, wired
from tests.support.compiled import replaces
from tests.support.profiles import examples

ALL = typed_map({"x-match": "all"})


def link(source: Exchange, destination: Exchange, key: str = "", arguments: TypedMap = EMPTY_MAP) -> ExchangeBinding:
    """Bind an exchange to another one."""
    binding = ExchangeBinding(source, destination, key, arguments)
    source.bind_exchange(binding)
    return binding


def exchanges(**types: str) -> list[Exchange]:
    return [EXCHANGE_TYPES[kind](name) for name, kind in types.items()]


# ---- routing ----


def test_a_message_goes_through_a_chain() -> None:
    a, b, c = exchanges(a="topic", b="direct", c="fanout")
    p, q, r = fake_queues("pqr")
    a.bind(p, "x.#")
    b.bind(q, "x.y")
    c.bind(r, "")
    link(a, b, "*.y")
    link(b, c, "x.y")
    refresh((a, b, c))
    assert (routed(a, "x.y"), routed(a, "x.z"), routed(a, "y.y"), routed(b, "x.y")) == ("pqr", "p", "", "qr")
    assert a.routes_by_key


def test_each_queue_gets_it_once_and_cycles_end() -> None:
    a, b, c = exchanges(a="fanout", b="fanout", c="fanout")
    (q,) = fake_queues("q")
    for source, destination in ((a, b), (b, c), (c, a), (a, a)):
        source.bind(q, "")
        link(source, destination)
    refresh((a, b, c))
    for exchange in (a, b, c):
        assert routed(exchange, "k") == "q"


def test_headers_are_matched_wherever_they_count() -> None:
    a, b, c = exchanges(a="direct", b="headers", c="direct")
    p, q = fake_queues("pq")
    b.bind(p, "", typed_map({"x-match": "all", "n": 1}))
    c.bind(q, "k")
    link(a, b, "k")
    link(b, c, "", typed_map({"x-match": "any", "m": 1, "n": 2}))
    refresh((a, b, c))
    assert not a.routes_by_key
    for headers, found in (({"n": 1}, "p"), ({"n": 2}, "q"), ({"n": 1, "m": 1}, "pq"), ({}, "")):
        assert routed(a, "k", headers) == routed(a, "k", headers) == found
    assert routed(a, "other", {"n": 1}) == ""
    a.unbind_exchange(next(iter(a.onward or ())))
    refresh((a, b, c))
    assert a.routes_by_key


def test_alternate_exchanges_on_the_way() -> None:
    a, other = exchanges(a="fanout", other="fanout")
    b = EXCHANGE_TYPES["direct"]("b", alternate=other)
    p, q = fake_queues("pq")
    b.bind(p, "known")
    other.bind(q, "")
    link(a, b)
    refresh((a, b, other))
    assert (routed(a, "known"), routed(a, "unknown")) == ("p", "q")
    other.unbind(q, "")
    assert routed(a, "unknown") == ""
    other.bind(p, "")
    assert routed(a, "unknown") == "p"


def test_the_same_binding_is_one_and_others_are_others() -> None:
    a, b = exchanges(a="headers", b="fanout")
    binding = link(a, b, "k", typed_map({"x-match": "all", "n": 1}))
    assert a.onward is not None
    assert a.onward.find(ExchangeBinding(a, b, "k", typed_map({"n": 1, "x-match": "all"}))) is binding
    for key, arguments in (("", binding.arguments), ("k", ALL)):
        assert a.onward.find(ExchangeBinding(a, b, key, arguments)) is None


@replaces
@pytest.mark.parametrize("limit", ["MAX_FOUND", "MAX_ROUTED"])
def test_few_routes_of_headers_are_kept(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(exchange_module, limit, {"MAX_FOUND": 3, "MAX_ROUTED": 57}[limit])  # each is of size 19
    a, b = exchanges(a="headers", b="headers")
    queues = fake_queues("pqrst")
    for number, queue in enumerate(queues):
        b.bind(queue, "", typed_map({"x-match": "any", "n": number}))
    link(a, b, "", ALL)
    refresh((a, b))
    for _ in range(3):
        for number, queue in enumerate(queues):
            assert routed(a, "", {"n": number}) == queue.name
            assert a.onward is not None
            assert len(a.onward._found) <= 4
            assert len(b._live) <= 4


def test_every_exchange_counts_its_received_messages() -> None:
    a, b, c = exchanges(a="topic", b="direct", c="fanout")
    p, q = fake_queues("pq")
    first = a.bind(p, "#")
    second = b.bind(q, "k")
    link(a, b, "#")
    link(b, c, "k")
    refresh((a, b, c))
    assert first is not None
    assert second is not None
    for key, count in (("k", 3), ("l", 2)):
        for _ in range(count):
            message: Any = FakeMessage(key)
            a.route(message).count(10)
    b.find("k").count(10)
    for _ in range(2):
        assert (a.counts.messages_received, a.counts.messages_routed, a.counts.messages_dropped) == (5, 8, 0)
        assert (b.counts.messages_received, b.counts.messages_routed, b.counts.messages_dropped) == (6, 4, 2)
        assert (c.counts.messages_received, c.counts.bytes_dropped) == (4, 40)
        assert (first.messages_matched, second.messages_matched) == (5, 4)
        c.forget_routes()  # and with them those of the others
        assert not a.routes


def test_routes_take_no_memory_when_they_are_forgotten() -> None:
    a, b = exchanges(a="fanout", b="fanout")
    (q,) = fake_queues("q")
    b.bind(q, "")
    link(a, b)
    refresh((a, b))
    for _ in range(3):
        for number in range(100):
            routed(a, str(number))
        a.forget_routes()
    assert (len(a._live), len(b._live), len(a._sharing), len(b._sharing)) == (0, 0, 0, 0)
    assert next(b.bindings).routes == []


def test_a_chain_may_be_long() -> None:
    chain = [EXCHANGE_TYPES["fanout"](str(number)) for number in range(400)]
    (q,) = fake_queues("q")
    for one, other in pairwise(chain):
        link(one, other)
    refresh(chain)
    chain[-1].bind(q, "")
    for exchange in chain[::20]:
        assert routed(exchange) == "q"
    chain[-1].unbind(q, "")
    for exchange in chain[::20]:
        assert routed(exchange) == ""


KEYS = ("a", "b", "a.b", "")
PATTERNS = (*KEYS, "*", "#", "a.*")
CRITERIA = ({"x-match": "all"}, {"x-match": "any", "a": 1}, {"x-match": "all", "a": 1, "b": 2})
CHANGE = st.tuples(
    st.integers(0, 4), st.one_of(st.integers(0, 4), st.sampled_from("pqr")), st.sampled_from(PATTERNS),
    st.sampled_from(CRITERIA),
)  # fmt: skip


@given(
    kinds=st.lists(st.sampled_from(("direct", "topic", "fanout", "headers")), min_size=5, max_size=5),
    alternates=st.lists(st.none() | st.integers(0, 4), min_size=5, max_size=5),
    changes=st.lists(CHANGE, min_size=1, max_size=12),
)
@examples(60)
def test_routes_are_those_of_exchanges_that_ask_each_other(
    kinds: list[str], alternates: list[int | None], changes: list[tuple[int, int | str, str, dict[str, Any]]]
) -> None:
    every = [EXCHANGE_TYPES[kind](str(place)) for place, kind in enumerate(kinds)]
    for exchange, alternate in zip(every, alternates, strict=True):
        exchange.alternate = None if alternate is None else every[alternate]
    queues = dict(zip("pqr", fake_queues("pqr"), strict=True))
    links: dict[tuple[int, int, str, str], ExchangeBinding] = {}
    refresh(every)
    for place, target, key, criteria in changes:
        arguments = typed_map(criteria)
        exchange = every[place]
        if isinstance(target, str):
            if exchange.find_binding(queues[target], key) is None:
                exchange.bind(queues[target], key, arguments)
            else:
                exchange.unbind(queues[target], key)
        elif (name := (place, target, key, str(criteria))) in links:
            exchange.unbind_exchange(links.pop(name))
        else:
            links[name] = link(exchange, every[target], key, arguments)
        if not isinstance(target, str):
            refresh(every)
        for sent, headers in ((each, {"a": 1, "b": number}) for number, each in enumerate(KEYS)):
            for source in range(5):
                assert routed(every[source], sent, headers) == expected(source, every, links, sent, headers)


def expected(
    source: int,
    every: list[Exchange],
    links: dict[tuple[int, int, str, str], ExchangeBinding],
    key: str,
    headers: dict[str, Any],
) -> str:
    """The queues that a message reaches, computed by plain exchanges with queues in place of exchanges."""
    found: set[str] = set()
    reached, work = {source}, [source]
    for place in work:
        exchange = every[place]
        plain = type(exchange)("plain")
        for binding in exchange.bindings:
            plain.bind(binding.queue, binding.key, binding.arguments)
        queues = routed(plain, key, headers)
        further = set()
        for number, ((begin, end, pattern, _), binding) in enumerate(links.items()):
            if begin == place:
                alone = type(exchange)(str(number))
                alone.bind(fake_queues("x")[0], pattern, binding.arguments)
                if routed(alone, key, headers):
                    further.add(end)
        if not queues and not further and place != source and exchange.alternate is not None:
            further.add(every.index(exchange.alternate))
        found |= set(queues)
        work += sorted(further - reached)
        reached |= further
    return "".join(sorted(found))


# ---- records ----


@given(names=st.lists(st.binary(min_size=1, max_size=20), min_size=3, max_size=3), number=st.integers(0, 1 << 31))
def test_binding_record_round_trip(names: list[bytes], number: int) -> None:
    source, destination, key = (name.decode("utf-8", "surrogateescape") for name in names)
    for arguments in (EMPTY_MAP, typed_map({"n": number})):
        binding = Stored(source, destination, key, arguments)
        record = decode_general(encode_general(exchange_binding_object(binding)))
        assert exchange_binding_of(record) == binding
    assert exchange_binding_object(Stored(source, destination, key)).name != record.name


def test_other_objects_are_no_bindings() -> None:
    assert exchange_binding_of(GeneralObject("domain", "x")) is None
    assert exchange_binding_of(GeneralObject(EXCHANGE_BINDING_KIND, "x", typed_map({"source": "a", "key": ""}))) is None
    assert (
        exchange_binding_of(
            GeneralObject(EXCHANGE_BINDING_KIND, "x", typed_map({"source": 1, "destination": "b", "key": "k"}))
        )
        is None
    )


# ---- with a store ----


def bound(world: Wired) -> set[tuple[str, str, str]]:
    return {
        (each.source.name, each.destination.name, each.key)
        for exchange in world.broker.default_host.exchanges.values()
        for each in exchange.onward or ()
    }


def test_durable_bindings_come_back(tmp_path: Path) -> None:
    async def first() -> None:
        async with wired(tmp_path) as world:
            topology, links = world.topology, world.broker.default_host.exchange_bindings
            for name, durable in (("a", True), ("b", True), ("c", True), ("d", True), ("t", False)):
                await topology.declare_exchange(name, "topic", durable=durable)
            await topology.declare_queue("q", durable=True)
            await topology.bind("q", "b", "#")
            assert await links.bind("a", "b", "x")
            assert not await links.bind("a", "b", "x")
            assert await links.bind("a", "b", "y", typed_map({"n": 1}))
            assert await links.bind("amq.topic", "a", "#")
            for source, destination in (("a", "c"), ("c", "b"), ("a", "d"), ("a", "t"), ("t", "b")):
                assert await links.bind(source, destination, "x")
            await links.unbind("a", "d", "x")
            await topology.delete_exchange("c")
            with pytest.raises(NotFoundError):
                await links.unbind("a", "d", "x")
            await topology.declare_exchange("c", "topic", durable=True)

    async def second() -> None:
        async with wired(tmp_path) as world:
            assert bound(world) == {("a", "b", "x"), ("a", "b", "y"), ("amq.topic", "a", "#")}
            await world.publish("amq.topic", "x", b"1")
            assert world.bodies("q") == [b"1"]
            await world.broker.default_host.exchange_bindings.unbind("a", "b", "y", typed_map({"n": 1}))
            await world.topology.delete_exchange("b")
            assert bound(world) == {("amq.topic", "a", "#")}

    async def third() -> None:
        async with wired(tmp_path) as world:
            assert bound(world) == {("amq.topic", "a", "#")}
            store = world.store
            assert store is not None
            assert len(store.topology.general) == 1

    for each in (first, second, third):
        asyncio.run(each())


def test_binding_of_a_missing_exchange_is_deleted_at_start(tmp_path: Path) -> None:
    async def leave() -> None:
        async with wired(tmp_path) as world:
            store, done = world.store, asyncio.get_running_loop().create_future()
            assert store is not None
            record = exchange_binding_object(Stored("amq.topic", "gone", "#"))
            store.changes.create_general(record, lambda _, error: done.set_result(error))
            assert await done is None

    async def begin(count: int) -> None:
        async with wired(tmp_path) as world:
            assert world.store is not None
            assert len(world.store.topology.general) == count
            assert bound(world) == set()
            await world.topology.declare_exchange("gone", "fanout", durable=True)
            await world.topology.delete_exchange("gone")

    asyncio.run(leave())
    asyncio.run(begin(1))
    asyncio.run(begin(0))


def test_the_last_binding_of_an_auto_delete_exchange() -> None:
    reported: list[Any] = []

    async def scenario() -> None:
        async with wired(None, reported.append) as world:
            topology, links = world.topology, world.broker.default_host.exchange_bindings
            for name in ("a", "b", "c"):
                await topology.declare_exchange(name, "fanout", auto_delete=name != "c")
            await topology.declare_queue("q")
            await links.bind("a", "b", "")
            await links.bind("b", "c", "")
            await topology.bind("q", "a", "")
            await topology.unbind("q", "a", "")
            assert "a" in world.broker.default_host.exchanges
            await topology.delete_exchange("c")
            assert not {"a", "b", "c"} & world.broker.default_host.exchanges.keys()

    asyncio.run(scenario())
    assert [each.destination for each in reported if isinstance(each, ExchangeBind)] == ["b", "c"]
    assert [each.destination for each in reported if isinstance(each, ExchangeUnbind)] == ["c", "b"]


async def test_invalid_exchange_binding_is_refused() -> None:
    async with wired() as world:
        bind = world.broker.default_host.exchange_bindings.bind
        await world.topology.declare_exchange("r", "replication")
        for error, source, destination in (
            (NotFoundError, "no", "amq.topic"), (NotFoundError, "amq.topic", "no"),
            (InvalidArgumentError, "", "amq.topic"), (InvalidArgumentError, "amq.topic", ""),
            (NotImplementedByBrokerError, "r", "amq.topic"), (NotImplementedByBrokerError, "amq.topic", "r"),
            (InternalError, "amq.match", "amq.topic"),
        ):  # fmt: skip
            with pytest.raises(error):
                await bind(source, destination, "k")
        assert bound(world) == set()


def chain(length: int) -> list[Exchange]:
    """Fanout exchanges, each bound to the next."""
    made = exchanges(**{f"x{number}": "fanout" for number in range(length)})
    for source, destination in pairwise(made):
        link(source, destination)
    refresh(made)
    return made


def test_each_exchange_on_the_way_costs_steps() -> None:
    made = chain(MAX_STEPS // HOP_STEPS + 1)
    (queue,) = fake_queues("q")
    made[-1].bind(queue, "")
    assert routed(made[0], "key") == "q"
    assert made[0].steps == MAX_STEPS


def test_a_message_that_reaches_too_many_exchanges_is_refused() -> None:
    made = chain(MAX_STEPS // HOP_STEPS + 2)
    with pytest.raises(RoutingLimitError, match="more than 20,000 steps"):
        routed(made[0], "key")


@replaces
def test_routes_over_many_exchanges_are_dropped_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "MAX_ROUTED", 1_000)
    made = chain(60)
    (queue,) = fake_queues("q")
    made[-1].bind(queue, "")
    for number in range(50):
        assert routed(made[0], f"key.{number}") == "q"
        assert sum(len(each._live) for each in made) <= 3 * 60


def test_each_further_key_costs_steps() -> None:
    (exchange,) = exchanges(a="fanout")
    (queue,) = fake_queues("q")
    exchange.bind(queue, "")
    message: Any = FakeMessage("key")
    fitting = MAX_KEY_STEPS // KEY_STEPS - 1
    message.under_further_keys = lambda: [FakeMessage(f"key.{number}") for number in range(fitting)]
    assert route_by_all(message, exchange).queues == (queue,)
    message.under_further_keys = lambda: [FakeMessage(f"key.{number}") for number in range(fitting + 1)]
    with pytest.raises(RoutingLimitError):
        route_by_all(message, exchange)


def test_many_keys_through_many_exchanges_are_refused() -> None:
    made = chain(10)
    message: Any = FakeMessage("key")
    message.under_further_keys = lambda: [FakeMessage(f"key.{number}") for number in range(1_000)]
    with pytest.raises(RoutingLimitError, match="CC and BCC take more than 9,000 steps"):
        route_by_all(message, made[0])
    assert made[0].steps <= MAX_KEY_STEPS + 10 * HOP_STEPS
