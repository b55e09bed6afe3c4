"""Messages sent to an exchange: numbered, and the last one kept."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.model.arguments import EXCLUSIVE_BINDING, INITIAL_VALUE, SEQUENCE, is_switched_on
from qstore.broker.model.errors import InternalError, InvalidArgumentError, ModelError, ResourceLimitExceededError
from qstore.broker.model.exchanges.exchange import Exchange, SentMessages, sent_messages
from qstore.broker.model.exchanges.types import EXCHANGE_TYPES, STANDARD_EXCHANGES
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.queues.queue import Queue
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.types import code_of
from qstore.formats.plain import plain_map
from qstore.formats.values import EMPTY_MAP, TypedMap, typed_map
from tests.broker.wired_broker import PlainMessage
from tests.support.coded import coded
from tests.support.fake_store import FakeFailedError, Model

NUMBERED = typed_map({SEQUENCE: 1})
INITIAL = typed_map({INITIAL_VALUE: 1})
BOTH = typed_map({SEQUENCE: 1, INITIAL_VALUE: 1})


def make(model: Model, type_name: str, arguments: TypedMap, *queues: str, name: str = "x") -> Exchange:
    """An exchange of the broker, to which these queues are bound with the key "k"."""
    exchange = model.broker.default_host.exchanges[name] = EXCHANGE_TYPES[type_name](name, arguments=arguments)
    for queue in queues:
        exchange.bind(model.queue(queue), "k", typed_map({"x-match": "all"}))
    return exchange


def numbers(queue: Queue) -> list[Any]:
    return [plain_map(entry.message.headers()).get(SEQUENCE) for entry in queue.entries()]


class TestArguments:
    @pytest.mark.parametrize("value", [1, True, -1, 2.0, "1", "true", "", b"", None, "exclusive", b"yes"])
    def test_yes(self, value: object) -> None:
        assert is_switched_on(typed_map({EXCLUSIVE_BINDING: value}), EXCLUSIVE_BINDING)

    @pytest.mark.parametrize("value", [0, False, 0.0, "0", "false", "False", b"no", "off"])
    def test_no(self, value: object) -> None:
        assert not is_switched_on(typed_map({EXCLUSIVE_BINDING: value}), EXCLUSIVE_BINDING)

    def test_not_there(self) -> None:
        assert not is_switched_on(EMPTY_MAP, SEQUENCE)
        assert not is_switched_on(typed_map({"qpid.msg_sequences": 1}), SEQUENCE)

    def test_undecodable_argument_switches_the_feature_on(self) -> None:
        wild = TypedMap(((SEQUENCE, coded(code_of("vbin8"), b"\xff\xfe")),))
        assert is_switched_on(wild, SEQUENCE)

    @pytest.mark.parametrize("kind", EXCHANGE_TYPES.values())
    def test_an_exchange_that_does_nothing_more_routes_as_ever(self, kind: type[Exchange]) -> None:
        for arguments in (EMPTY_MAP, typed_map({SEQUENCE: 0, INITIAL_VALUE: False, "who.knows": 1})):
            exchange = kind("x", arguments=arguments)
            assert exchange.sent is None
            assert exchange.routes_by_key == kind.is_keyed

    @pytest.mark.parametrize("kind", EXCHANGE_TYPES.values())
    @pytest.mark.parametrize("arguments", [NUMBERED, INITIAL, BOTH])
    def test_an_exchange_that_keeps_messages_is_asked_about_each(
        self, kind: type[Exchange], arguments: TypedMap
    ) -> None:
        exchange = kind("x", arguments=arguments)
        assert exchange.sent is not None
        assert not exchange.routes_by_key


class TestNumbers:
    @pytest.mark.parametrize("type_name", STANDARD_EXCHANGES.values())
    def test_numbers_begin_with_0_for_every_type(self, model: Model, type_name: str) -> None:
        make(model, type_name, NUMBERED, "q", "r")
        for _ in range(3):
            model.publish("k", b"x", exchange="x")
        assert (
            numbers(model.broker.default_host.queues["q"])
            == numbers(model.broker.default_host.queues["r"])
            == [0, 1, 2]
        )

    def test_each_exchange_counts_for_itself(self, model: Model) -> None:
        make(model, "direct", NUMBERED, "q", name="x")
        make(model, "direct", NUMBERED, "r", name="y")
        model.publish("k", b"1", b"2", exchange="x")
        model.publish("k", b"3", exchange="y")
        assert (numbers(model.broker.default_host.queues["q"]), numbers(model.broker.default_host.queues["r"])) == (
            [0, 1],
            [0],
        )

    def test_after_the_largest_comes_the_smallest(self) -> None:
        sent = SentMessages(numbers=True, keeps_last=False)
        sent.next_number = (1 << 63) - 1
        given = [plain_map(sent.number(PlainMessage("k", b"")).headers())[SEQUENCE] for _ in range(3)]
        assert given == [(1 << 63) - 1, -(1 << 63), -(1 << 63) + 1]

    def test_the_message_that_came_stays_as_it_is(self, model: Model) -> None:
        exchange = make(model, "direct", NUMBERED, "q")
        message = model.message("k", b"x")
        model.broker.router.publish(message, exchange)
        model.broker.router.publish(message, exchange)
        assert plain_map(message.headers()) == {}
        assert numbers(model.broker.default_host.queues["q"]) == [0, 1]

    def test_unroutable_message_takes_a_sequence_number(self, model: Model) -> None:
        make(model, "direct", NUMBERED, "q")
        for key in ("k", "nobody's", "k"):
            model.publish(key, b"x", exchange="x")
        assert numbers(model.broker.default_host.queues["q"]) == [0, 2]

    def test_a_number_is_given_once_though_a_queue_refuses(self) -> None:
        model = Model(BrokerSettings(queue_limit_bytes=2 * MESSAGE_OVERHEAD + 4))
        exchange = make(model, "direct", BOTH, "q")
        model.publish("k", b"123", exchange="x")
        with pytest.raises(ResourceLimitExceededError):
            model.publish("k", bytes(MESSAGE_OVERHEAD + 2), exchange="x")
        model.publish("k", b"6", exchange="x")
        assert numbers(model.broker.default_host.queues["q"]) == [0, 2]
        assert exchange.sent is not None
        assert exchange.sent.last is not None
        assert exchange.sent.last.body == b"6"

    def test_by_the_exchange_that_it_was_sent_to_and_no_other(self, model: Model) -> None:
        """What goes on to an alternate exchange, unrouted or rejected, does not count as sent to that one."""
        other = make(model, "fanout", BOTH, "dead", name="other")
        plain = make(model, "direct", EMPTY_MAP, name="plain")
        numbered = make(model, "direct", NUMBERED, name="numbered")
        plain.alternate = numbered.alternate = other
        model.publish("k", b"unrouted", exchange="plain")
        model.publish("k", b"unrouted", exchange="numbered")
        model.queue("source")
        model.publish("source", b"rejected")
        source = model.broker.default_host.queues["source"]
        (entry,) = source.entries()
        source.acquire(entry)
        model.broker.router.move(source, entry, other, lambda error: None)
        model.run()
        model.publish("", b"sent", exchange="other")
        assert numbers(model.broker.default_host.queues["dead"]) == [None, 0, None, 0]
        assert other.sent is not None
        assert other.sent.last is not None
        assert other.sent.last.body == b"sent"

    def test_a_message_that_takes_none_is_refused_and_no_number_is_lost(
        self, model: Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make(model, "direct", NUMBERED, "q")
        model.publish("k", b"1", exchange="x")
        with monkeypatch.context() as patch:

            def refuse(self: object, name: str, number: int) -> PlainMessage:
                raise InvalidArgumentError("unreadable")

            patch.setattr(PlainMessage, "with_number", refuse)
            with pytest.raises(InvalidArgumentError):
                model.publish("k", b"2", exchange="x")
        model.publish("k", b"3", exchange="x")
        assert numbers(model.broker.default_host.queues["q"]) == [0, 1]


class TestTransactions:
    def test_numbers_rise_in_the_order_of_commits(self, model: Model) -> None:
        exchange = make(model, "direct", BOTH, "q")
        first, second = (model.broker.begin_transaction(0) for _ in range(2))
        rolled_back = model.broker.begin_transaction(0)
        for transaction, body in ((first, b"1"), (second, b"2"), (rolled_back, b"3"), (first, b"4")):
            transaction.publish(model.message("k", body), exchange)
        model.publish("k", b"plain", exchange="x")
        done: list[ModelError | None] = []
        second.commit(done.append)
        first.commit(done.append)
        model.sync()
        assert done == [None, None]
        queue = model.broker.default_host.queues["q"]
        assert [entry.message.body for entry in queue.entries()] == [b"plain", b"2", b"1", b"4"]
        assert numbers(queue) == [0, 1, 2, 3]
        assert exchange.sent is not None
        assert exchange.sent.last is not None
        assert exchange.sent.last.body == b"4"

    def test_on_all_queues_the_same_number(self, model: Model) -> None:
        exchange = make(model, "fanout", NUMBERED, "q", "r")
        transaction = model.broker.begin_transaction(0)
        transaction.publish(model.message("k", b"1"), exchange)
        transaction.commit(lambda error: None)
        assert numbers(model.broker.default_host.queues["q"]) == numbers(model.broker.default_host.queues["r"]) == [0]

    def test_uncommitted_message_is_not_the_last(self) -> None:
        model = Model(BrokerSettings(queue_limit_bytes=4))
        exchange = make(model, "direct", INITIAL, "q")
        transaction = model.broker.begin_transaction(0)
        transaction.publish(model.message("k", b"too large"), exchange)
        with pytest.raises(ResourceLimitExceededError):
            transaction.commit(lambda error: None)
        assert exchange.sent is not None
        assert exchange.sent.last is None


class TestLast:
    def test_the_last_and_with_its_number(self) -> None:
        sent = sent_messages(BOTH)
        assert sent is not None
        assert sent.last is None
        for body in (b"1", b"2"):
            sent.keep(sent.number(PlainMessage("k", body)))
        assert sent.last is not None
        assert (sent.last.body, plain_map(sent.last.headers())) == (b"2", {SEQUENCE: 1})

    def test_is_not_kept_without_being_asked_for(self) -> None:
        sent = sent_messages(NUMBERED)
        assert sent is not None
        sent.keep(sent.number(PlainMessage("k", b"1")))
        assert sent.last is None

    def test_failed_message_is_not_the_last(self, model: Model) -> None:
        exchange = make(model, "direct", INITIAL)
        queue = model.queue("kept", durable=True)
        exchange.bind(queue, "k")
        model.publish("k", b"1", exchange="x")
        queue.journal.has_failed = True
        with pytest.raises((FakeFailedError, InternalError)):
            model.publish("k", b"2", exchange="x")
        assert exchange.sent is not None
        assert exchange.sent.last is not None
        assert exchange.sent.last.body == b"1"

    @pytest.mark.parametrize(
        ("type_name", "key", "asked", "arguments", "would_route"),
        [
            ("direct", "k", "k", {}, True),
            ("direct", "k", "#", {}, False),
            ("topic", "a.b", "a.*", {}, True),
            ("topic", "a.b", "a", {}, False),
            ("fanout", "k", "whatever", {}, True),
            ("headers", "k", "other", {"x-match": "all", "n": 1}, True),
            ("headers", "k", "k", {"x-match": "any", "n": 2}, False),
        ],
    )
    def test_would_route(
        self, model: Model, type_name: str, key: str, asked: str, arguments: dict[str, object], would_route: bool
    ) -> None:
        exchange = make(model, type_name, INITIAL)
        message = PlainMessage(key, b"x").with_number("n", 1)
        queue = model.queue("q")
        binding = exchange.bind(queue, asked, typed_map(arguments))
        assert binding is not None
        assert bool(exchange.with_only(binding).route(message).queues) is would_route
        assert bool(exchange.route(message).queues) is would_route
