"""Common behaviour of all types of exchange, and direct, fanout and the default exchange."""

from __future__ import annotations

from typing import Any

import pytest

import qstore.broker.model.exchanges.exchange as module
from qstore.broker.model.errors import NotAllowedError, NotFoundError
from qstore.broker.model.exchanges.default import DefaultExchange
from qstore.broker.model.exchanges.direct import DirectExchange
from qstore.broker.model.exchanges.exchange import BoundResult, Exchange
from qstore.broker.model.exchanges.fanout import FanoutExchange
from qstore.broker.model.exchanges.topic import TopicExchange
from qstore.broker.model.exchanges.types import EXCHANGE_TYPES, STANDARD_EXCHANGES, exchange_type
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.broker.exchange_parts import FakeQueue, fake_queues, names, routed, unbind_queue

NONE = BoundResult()
KEYED = (DirectExchange, TopicExchange, FanoutExchange)


class TestTypes:
    def test_every_type_by_its_name(self) -> None:
        assert sorted(EXCHANGE_TYPES) == [
            "direct", "fanout", "headers", "replication", "topic", "x-local-random", "x-modulus-hash", "x-random",
        ]  # fmt: skip
        for name, kind in EXCHANGE_TYPES.items():
            assert exchange_type(name) is kind
            assert kind("x").type_name == name

    def test_an_exchange_is_an_instance_of_its_own_class_and_its_bases(self) -> None:
        """Also compiled, and whatever was asked before."""
        for _ in range(2):
            for kind in EXCHANGE_TYPES.values():
                found = [other for other in EXCHANGE_TYPES.values() if isinstance(kind("x"), other)]
                assert found == [kind]
                assert isinstance(kind("x"), Exchange)

    def test_unknown(self) -> None:
        with pytest.raises(NotFoundError, match="Exchange type not implemented: x-none"):
            exchange_type("x-none")

    def test_standard(self) -> None:
        assert list(STANDARD_EXCHANGES) == ["amq.direct", "amq.topic", "amq.fanout", "amq.match"]
        assert set(STANDARD_EXCHANGES.values()) == {"direct", "topic", "fanout", "headers"}

    def test_which_need_more_than_the_key(self) -> None:
        assert [name for name, kind in EXCHANGE_TYPES.items() if not kind.is_keyed] == [
            "headers", "replication", "x-random", "x-local-random",
        ]  # fmt: skip


class TestDirect:
    def test_routes_by_the_very_key(self) -> None:
        exchange = DirectExchange("d")
        a, b = fake_queues("ab")
        exchange.bind(a, "red")
        exchange.bind(b, "red")
        exchange.bind(b, "")
        assert routed(exchange, "red") == "ab"
        assert routed(exchange, "") == "b"
        assert routed(exchange, "re") == routed(exchange, "red.") == routed(exchange, "Red") == ""

    def test_wildcards_mean_nothing(self) -> None:
        exchange = DirectExchange("d")
        (a,) = fake_queues("a")
        exchange.bind(a, "#")
        assert routed(exchange, "x") == ""
        assert routed(exchange, "#") == "a"


class TestFanout:
    def test_fanout_ignores_the_key(self) -> None:
        exchange = FanoutExchange("f")
        a, b = fake_queues("ab")
        exchange.bind(a, "x")
        exchange.bind(b, "")
        assert routed(exchange, "") == routed(exchange, "x") == routed(exchange, "anything") == "ab"

    def test_a_queue_is_bound_once(self) -> None:
        exchange = FanoutExchange("f")
        (a,) = fake_queues("a")
        first = exchange.bind(a, "x")
        assert first is not None
        assert exchange.bind(a, "y") is None
        assert list(exchange.bindings) == [first]
        assert routed(exchange, "") == "a"

    def test_any_key_unbinds(self) -> None:
        exchange = FanoutExchange("f")
        (a,) = fake_queues("a")
        first = exchange.bind(a, "x")
        assert exchange.unbind(a, "y") is first
        assert exchange.unbind(a, "x") is None
        assert routed(exchange, "x") == ""

    def test_all_keys_share_one_route(self) -> None:
        exchange = FanoutExchange("f")
        exchange.bind(fake_queues("a")[0], "")
        assert exchange.find("x") is exchange.find("y")


@pytest.mark.parametrize("kind", KEYED)
class TestBindings:
    def test_binding_twice_changes_nothing(self, kind: type[Exchange]) -> None:
        exchange = kind("x")
        (a,) = fake_queues("a")
        binding = exchange.bind(a, "k", typed_map({"n": 1}))
        assert binding is not None
        assert (binding.queue, binding.key, binding.arguments, binding.entry) == (a, "k", typed_map({"n": 1}), None)
        assert exchange.bind(a, "k", EMPTY_MAP) is None
        assert list(exchange.bindings) == [binding]

    def test_preparing_is_not_binding(self, kind: type[Exchange]) -> None:
        exchange = kind("x")
        (a,) = fake_queues("a")
        binding = exchange.prepare(a, "k", EMPTY_MAP)
        assert binding is not None
        assert not exchange.has_bindings
        assert routed(exchange, "k") == ""
        exchange.add(binding)
        assert exchange.find_binding(a, "k") is binding
        assert routed(exchange, "k") == "a"

    def test_unbinding(self, kind: type[Exchange]) -> None:
        exchange = kind("x")
        a, b = fake_queues("ab")
        exchange.bind(a, "k")
        exchange.bind(b, "k")
        assert routed(exchange, "k") == "ab"
        exchange.unbind(a, "k")
        assert routed(exchange, "k") == "b"
        assert exchange.unbind(a, "k") is None
        exchange.unbind(b, "k")
        assert routed(exchange, "k") == ""
        assert not exchange.has_bindings

    def test_removed_and_back_again(self, kind: type[Exchange]) -> None:
        exchange = kind("x")
        (a,) = fake_queues("a")
        exchange.bind(a, "k")
        removed = unbind_queue(exchange, a)
        assert routed(exchange, "k") == ""
        for binding in removed:
            exchange.add(binding)
        assert routed(exchange, "k") == "a"

    def test_route_is_cached_until_bindings_change(self, kind: type[Exchange]) -> None:
        exchange = kind("x")
        a, b = fake_queues("ab")
        routes = exchange.routes
        exchange.bind(a, "k")
        found = exchange.find("k")
        assert routes == {"k": found}
        assert exchange.find("other") is routes["other"]
        exchange.bind(b, "k")
        assert routes == {}
        assert names(exchange.find("k")) == "ab"
        unbind_queue(exchange, a)
        assert routes == {}
        assert exchange.routes is routes


class TestManyBindings:
    def test_a_queue_goes_with_all_its_bindings(self) -> None:
        exchange = DirectExchange("d")
        a, b = fake_queues("ab")
        made = [exchange.bind(a, key) for key in ("x", "y")]
        exchange.bind(b, "y")
        assert exchange.bindings_of(a) == made
        assert unbind_queue(exchange, a) == made
        assert unbind_queue(exchange, a) == []
        assert routed(exchange, "x") == ""
        assert routed(exchange, "y") == "b"

    def test_routes_are_bounded_in_keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_ROUTES", 4)
        exchange = DirectExchange("d")
        exchange.bind(fake_queues("a")[0], "k3")
        for number in range(50):
            assert names(exchange.find(f"k{number}")) == ("a" if number == 3 else "")
            assert len(exchange.routes) <= 4
        assert exchange.routes

    def test_routes_are_bounded_in_queues(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_ROUTED", 12)
        exchange = TopicExchange("t")
        for queue in fake_queues("abcd"):
            exchange.bind(queue, "#")
        for number in range(20):
            assert names(exchange.find(str(number))) == "abcd"
            assert len(exchange.routes) <= 2
            assert len(exchange._live) == len(exchange.routes)

    def test_a_route_that_has_no_room_is_found_each_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_ROUTED", 3)
        monkeypatch.setattr(module, "MAX_ROUTED_BY_ONE", 5)
        exchange = DirectExchange("d")
        for queue in fake_queues("abcd"):
            exchange.bind(queue, "k")
        for _ in range(3):
            assert names(exchange.find("k")) == "abcd"
            assert exchange.routes == {}
            assert len(exchange._live) == 1
        exchange.find("other")
        assert exchange.routes == {"other": exchange.no_route}


class TestBound:
    @pytest.fixture
    def exchange(self) -> DirectExchange:
        return DirectExchange("d")

    def test_nothing_asked(self, exchange: DirectExchange) -> None:
        assert exchange.bound() == NONE

    def test_each_alone(self, exchange: DirectExchange) -> None:
        a, b = fake_queues("ab")
        exchange.bind(a, "x")
        assert exchange.bound(a) == NONE
        assert exchange.bound(b) == BoundResult(queue_not_matched=True)
        assert exchange.bound(None, "x") == NONE
        assert exchange.bound(None, "y") == BoundResult(key_not_matched=True)
        assert exchange.bound(None, None, typed_map({"n": 1})) == NONE

    def test_the_key_is_looked_for_among_the_queues(self, exchange: DirectExchange) -> None:
        a, b, c = fake_queues("abc")
        exchange.bind(a, "x")
        exchange.bind(b, "y")
        assert exchange.bound(a, "x") == NONE
        assert exchange.bound(a, "y") == BoundResult(key_not_matched=True)
        assert exchange.bound(c, "y") == BoundResult(queue_not_matched=True)
        assert exchange.bound(c, "z") == BoundResult(queue_not_matched=True, key_not_matched=True)

    def test_topic_by_the_pattern_as_it_was_given(self) -> None:
        exchange = TopicExchange("t")
        (a,) = fake_queues("a")
        exchange.bind(a, "a.#")
        assert exchange.bound(a, "a.#") == NONE
        assert exchange.bound(a, "a.b") == BoundResult(key_not_matched=True)

    def test_fanout_by_any_key(self) -> None:
        exchange = FanoutExchange("f")
        a, b = fake_queues("ab")
        exchange.bind(a, "x")
        assert exchange.bound(a, "y") == NONE
        assert exchange.bound(b, "x") == BoundResult(queue_not_matched=True)


class TestDefault:
    def test_by_name(self) -> None:
        queues: dict[str, Any] = {"a": FakeQueue("a")}
        exchange = DefaultExchange(queues)
        assert exchange.name == ""
        assert exchange.type_name == "direct"
        assert routed(exchange, "a") == "a"
        assert routed(exchange, "b") == ""
        queues["b"] = FakeQueue("b")
        assert routed(exchange, "b") == "b"

    def test_a_queue_that_is_gone_is_forgotten(self) -> None:
        queues: dict[str, Any] = {"a": FakeQueue("a")}
        exchange = DefaultExchange(queues)
        assert exchange.routes == {}
        found = exchange.find("a")
        assert exchange.routes == {"a": found}
        assert found.queues == (queues["a"],)
        del queues["a"]
        exchange.forget("a")
        exchange.forget("never there")
        assert routed(exchange, "a") == ""

    def test_missing_queue_is_not_cached(self) -> None:
        exchange = DefaultExchange({})
        for number in range(100):
            exchange.find(str(number))
        assert exchange.routes == {}

    def test_takes_no_bindings(self) -> None:
        (a,) = fake_queues("a")
        exchange = DefaultExchange({"a": a})
        with pytest.raises(NotAllowedError):
            exchange.bind(a, "k")

    def test_bound(self) -> None:
        (a, b) = fake_queues("ab")
        exchange = DefaultExchange({"a": a, "b": b})
        assert exchange.bound(a) == exchange.bound(a, "a") == exchange.bound(None, "b") == NONE
        assert exchange.bound(a, "b") == BoundResult(key_not_matched=True)
        assert exchange.bound(None, "c") == BoundResult(key_not_matched=True)
