"""Address strings, URLs of brokers and options of connections: what they mean, and errors in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.client.address import (
    RECEIVER,
    SENDER,
    Address,
    Binding,
    Declare,
    address_target,
    format_address,
    format_value,
    parse_address,
    parse_map,
    word_value,
)
from qstore.broker.client.errors import AddressError, UrlError
from qstore.broker.client.options import ConnectionOptions, Endpoint, Url, connection_options, parse_url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", Address("orders")),
        ("  orders  ", Address("orders")),
        ("amq.topic/usa.news", Address("amq.topic", "usa.news")),
        ("amq.topic/#", Address("amq.topic", "#")),
        ("amq.topic/a/b/c", Address("amq.topic", "a/b/c")),
        ("amq.topic/", Address("amq.topic", "")),
        ("'a/b;c'/'d;e'", Address("a/b;c", "d;e")),
        ("orders;", Address("orders")),
        ("orders; {}", Address("orders")),
        ("orders;{create:always}", Address("orders", None, {"create": "always"})),
        ("orders;{create:always,}", Address("orders", None, {"create": "always"})),
        ("prices;{mode:browse}", Address("prices", None, {"mode": "browse"})),
        (
            "name;{create:always,node:{type:queue,x-declare:{arguments:{'qpid.last_value_queue_key':'ticker'}}}}",
            Address(
                "name",
                None,
                {
                    "create": "always",
                    "node": {
                        "type": "queue",
                        "x-declare": {"arguments": {"qpid.last_value_queue_key": "ticker"}},
                    },
                },
            ),
        ),
        (
            "my-queue; {create: always, node:{x-declare:{arguments:{qpid.priorities:10}}}}",
            Address(
                "my-queue",
                None,
                {"create": "always", "node": {"x-declare": {"arguments": {"qpid.priorities": 10}}}},
            ),
        ),
        (
            "q; {a: True, b: false, c: -1.5, d: 'x\\n\\x41\\u00e9', e: [1, two, {f: g}], h: 1e3}",
            Address(
                "q",
                None,
                {"a": True, "b": False, "c": -1.5, "d": "x\nAé", "e": [1, "two", {"f": "g"}], "h": 1000.0},
            ),
        ),
    ],
)
def test_reads(text: str, expected: Address) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    ("text", "position", "what"),
    [
        ("", 0, "missing .*name"),
        ("/subject", 0, "missing .*name"),
        ("q; create", 3, "must begin with {"),
        ("q; {create always}", 11, "colon"),
        ("q; {create: }", 12, "missing value"),
        ("q; {: x}", 4, "missing .*name"),
        ("q; {a: b", 8, "missing }"),
        ("q; {a: b} c", 10, "unexpected"),
        ("q; {a: [b c]}", 10, "expected a comma or ]"),
        ("q; {a: 'b}", 7, "missing closing"),
        ("q; {a: '\\z'}", 8, "unknown escape"),
        ("q; {a: '\\x4'}", 8, "unknown escape"),
        ("q; {a: 1, a: 2}", 10, "duplicate option"),
        ("'q' x", 4, "unexpected"),
        ("q; " + "{a:" * 33, 3 + 32 * 3, "nested"),
    ],
)
def test_address_error_names_problem_and_position(text: str, position: int, what: str) -> None:
    with pytest.raises(AddressError, match=what) as caught:
        parse_address(text)
    assert caught.value.position == position


def test_connection_options_are_a_map_alone() -> None:
    assert parse_map("{reconnect: true, heartbeat: 10}") == {"reconnect": True, "heartbeat": 10}
    assert parse_map(" ") == {}
    with pytest.raises(AddressError, match="must begin with"):
        parse_map("reconnect: true")


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_values = st.recursive(
    st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15)
    | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=12,
)


@given(st.builds(Address, _text.filter(bool), st.none() | _text, st.dictionaries(_text, _values, max_size=4)))
def test_written_addresses_read_back(address: Address) -> None:
    assert parse_address(format_address(address)) == address


@given(st.text(alphabet="aq1 ;/{}[]:,'\"\\x.-#", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    position: int | None = 0
    try:
        address = parse_address(text)
    except AddressError as error:
        position = error.position
    else:
        assert parse_address(str(address)) == address
    assert position is not None
    assert 0 <= position <= len(text)


@pytest.mark.parametrize("word", ["1e", "0x10", "1.2.3", "-", "+", ".", "e5", "12a", "٣", "99999999999999999999"])
def test_words_that_are_no_numbers_stay_text(word: str) -> None:
    assert word_value(word) == word


def test_properties_print_as_maps() -> None:
    assert format_value({"sn": 1, "color": "red", "ok": True, "raw": b"x y"}) == "{sn:1, color:red, ok:True, raw:'x y'}"


# ---------------------------------------------------------------------------------------- what options mean


def test_defaults() -> None:
    target = address_target(parse_address("q"))
    assert (target.create, target.asserts, target.delete) == (frozenset(), frozenset(), frozenset())
    assert not target.browse
    assert target.node_type is None
    assert target.reliable is None
    assert target.node_declare == Declare()


def test_all_options() -> None:
    target = address_target(
        parse_address(
            "q/s; {create: always, assert: sender, delete: receiver, mode: browse, x-mine: 1,"
            " node: {type: topic, durable: true, x-declare: {auto_delete: true, alternate-exchange: amq.fanout,"
            " type: fanout, arguments: {a: 1}}, x-bindings: [{exchange: e, queue: q, key: k, arguments: {x: 1}}, {}]},"
            " link: {name: mine, durable: true, reliability: at-most-once, x-declare: {exclusive: false},"
            " x-subscribe: {exclusive: true, arguments: {b: 2}}, x-bindings: [{key: z}]}}"
        )
    )
    assert target.create == {SENDER, RECEIVER}
    assert target.asserts == {SENDER}
    assert target.delete == {RECEIVER}
    assert target.browse
    assert target.node_type == "topic"
    assert target.node_durable is True
    assert target.node_declare == Declare(
        auto_delete=True, alternate_exchange="amq.fanout", type="fanout", arguments={"a": 1}
    )
    assert target.node_bindings == (Binding("e", "q", "k", {"x": 1}), Binding())
    assert target.link_name == "mine"
    assert target.link_durable
    assert target.reliable is False
    assert target.link_declare.exclusive is False
    assert target.subscribe.exclusive is True
    assert target.subscribe.arguments == {"b": 2}
    assert target.link_bindings == (Binding(key="z"),)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("q; {creat: always}", "unknown option creat"),
        ("q; {create: allways}", "create must be one of always, sender, receiver, never, not 'allways'"),
        ("q; {node: {type: exchange}}", "node.type must be one of"),
        ("q; {node: 5}", "node must be a map"),
        ("q; {node: {durable: 5}}", "node.durable must be true or false"),
        ("q; {node: {x-declare: {durabel: true}}}", "unknown option node.x-declare.durabel"),
        ("q; {node: {x-bindings: {}}}", None),
        ("q; {node: {x-bindings: {key: a}}}", "node.x-bindings must be a list"),
        ("q; {link: {x-bindings: [5]}}", r"link.x-bindings\[0\] must be a map"),
        ("q; {link: {name: {}}}", "link.name must be text"),
        ("q; {link: {reliability: good}}", "link.reliability must be one of"),
        ("q; {link: {x-subscribe: {resume-ttl: x}}}", "must be a number"),
    ],
)
def test_options_that_cannot_be(text: str, what: str | None) -> None:
    address = parse_address(text)
    if what is None:
        address_target(address)
        return
    with pytest.raises(AddressError, match=what):
        address_target(address)


# ---- URLs of brokers and options of connections ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", Url((Endpoint("localhost", 5672),))),
        ("10.1.1.7:10000", Url((Endpoint("10.1.1.7", 10000),))),
        ("guest/secret@localhost", Url((Endpoint("localhost"),), "guest", "secret")),
        ("guest:sec@ret@localhost:1", Url((Endpoint("localhost", 1),), "guest", "sec@ret")),
        ("guest@localhost", Url((Endpoint("localhost"),), "guest")),
        ("amqp:tcp:127.0.0.1:5672,tcp:other", Url((Endpoint("127.0.0.1"), Endpoint("other")))),
        ("amqp:u/p@a, b:2", Url((Endpoint("a"), Endpoint("b", 2)), "u", "p")),
        ("amqp://a:5/", Url((Endpoint("a", 5),))),
        ("amqp://a:5/blue", Url((Endpoint("a", 5),), virtual_host="blue")),
        ("u/p@a,b/%2Fsky%20x", Url((Endpoint("a"), Endpoint("b")), "u", "p", "/sky x")),
        ("[::1]/blue", Url((Endpoint("::1"),), virtual_host="blue")),
        ("[::1]:99", Url((Endpoint("::1", 99),))),
        ("tcp:[fe80::1%eth0]", Url((Endpoint("fe80::1%eth0"),))),
        ("amqps://a", Url((Endpoint("a", 5671, True),))),
        ("amqps://u:p@a:5,tcp:b", Url((Endpoint("a", 5, True), Endpoint("b")), "u", "p")),
        ("amqp:ssl:a,tcp:b,c:7", Url((Endpoint("a", 5671, True), Endpoint("b"), Endpoint("c", 7)))),
        ("ssl:[::1]", Url((Endpoint("::1", 5671, True),))),
    ],
)
def test_url_is_read(text: str, expected: Url) -> None:
    assert parse_url(text) == expected


@pytest.mark.parametrize("text", ["", "a:b", "a:0", "a:65536", "a,,b", "rdma:a", "ssl:", "[::1", "::1", "a b"])
def test_refuses(text: str) -> None:
    with pytest.raises(UrlError):
        parse_url(text)


def test_the_transport_of_endpoints_that_tell_none() -> None:
    encrypted = parse_url("amqp://a,tcp:b", is_encrypted=True)
    assert encrypted == Url((Endpoint("a", 5671, True), Endpoint("b", 5672)))


def test_no_password_in_errors() -> None:
    with pytest.raises(UrlError) as caught:
        parse_url("me/secret@host:port")
    assert "secret" not in str(caught.value)
    with pytest.raises(UrlError) as caught:
        connection_options({"password": ["secret"]} | {"heartbeat": "x"})
    assert "secret" not in str(caught.value)


def test_options_as_words_or_values() -> None:
    options = connection_options(
        {
            "reconnect": True,
            "reconnect-timeout": 5,
            "reconnect_interval": 2,
            "reconnect_urls": ["a:1", "b"],
            "heartbeat": "10",
            "sasl_mechanisms": "plain ANONYMOUS",
            "username": "me",
        }
    )
    assert options == ConnectionOptions(
        username="me",
        sasl_mechanisms=("PLAIN", "ANONYMOUS"),
        heartbeat=10,
        reconnect=True,
        reconnect_timeout=5.0,
        reconnect_interval_min=2.0,
        reconnect_interval_max=2.0,
        reconnect_urls=(Endpoint("a", 1), Endpoint("b")),
    )


@pytest.mark.parametrize(
    "values",
    [
        {"reconect": True},
        {"reconnect": "maybe"},
        {"heartbeat": -1},
        {"heartbeat": 70000},
        {"reconnect_timeout": "nan"},
        {"client_properties": 5},
        {"reconnect_urls": 5},
    ],
)
def test_invalid_options_of_connections(values: dict[str, object]) -> None:
    with pytest.raises(UrlError, match=next(iter(values))):
        connection_options(values)
