"""Address strings, URLs of brokers and options of connections: what they mean, and errors in them."""

from __future__ import annotations

import re
from typing import Any

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
    plain_address,
    warn_of_idle,
    word_value,
)
from qstore.broker.client.connection import ConnectionCore
from qstore.broker.client.errors import AddressError, UrlError
from qstore.broker.client.options import ConnectionOptions, Destination, Endpoint, Url, connection_options, parse_url


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


_ME = {"container_id": "me", "client_properties": {"clientName": "me"}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amqp://foo:bar@host1:1234/vhost?clientid=me", Url((Endpoint("host1", 1234),), "foo", "bar", "vhost", _ME)),
        ("amqp://host?ssl=true", Url((Endpoint("host", 5671, True),), options={"transport": "ssl"})),
        (
            "host/v?ssl=true;transport=tcp",
            Url((Endpoint("host", 5671, True),), virtual_host="v", options={"transport": "ssl"}),
        ),
        ("amqp://host?ssl=off", Url((Endpoint("host"),))),
        ("host/v?transport=tls", Url((Endpoint("host", 5671, True),), virtual_host="v", options={"transport": "tls"})),
        ("amqp://host/?protocol=ssl", Url((Endpoint("host", 5671, True),), options={"transport": "ssl"})),
        ("amqp://host/?protocol=TLS", Url((Endpoint("host", 5671, True),), options={"transport": "TLS"})),
        ("amqp://tls:host", Url((Endpoint("host", 5671, True),))),
        (
            "amqp://a,b?retry=2,c",
            Url((Endpoint("a"), Endpoint("b"), Endpoint("c")), options={"reconnect": True, "reconnect_limit": 3}),
        ),
        (
            "a/blue%3F?heartbeat=10&sasl-mechanisms=PLAIN%20ANONYMOUS",
            Url((Endpoint("a"),), virtual_host="blue?",
                options={"heartbeat": "10", "sasl_mechanisms": "PLAIN ANONYMOUS"}),
        ),
    ],
)  # fmt: skip
def test_options_of_urls_are_read(text: str, expected: Url) -> None:
    assert parse_url(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "amqp://guest:guest@me/development?brokerlist='tcp://localhost:5672'",
            Url((Endpoint("localhost"),), "guest", "guest", "development",
                {"reconnect": True, "reconnect_limit": 2} | _ME),
        ),
        (
            "amqp:///test?brokerlist='localhost'",
            Url((Endpoint("localhost"),), virtual_host="test", options={"reconnect": True, "reconnect_limit": 2}),
        ),
        (
            "amqp:///test?brokerlist='tcp://anotherhost:5684?retries='10''",
            Url((Endpoint("anotherhost", 5684),), None, None, "test", {"reconnect": True, "reconnect_limit": 11}),
        ),
        (
            ("amqp://u:p@/test?brokerlist='tcp://a;tcp://b:5673?ssl='true'&connectdelay='5000''"
             "&failover='roundrobin?cyclecount='20''&maxprefetch='50'"),
            Url((Endpoint("a"), Endpoint("b", 5673, True)), "u", "p", "test",
                {"reconnect_interval": 5.0, "reconnect": True, "reconnect_limit": 40, "receiver_capacity": 50}),
        ),
        (
            "amqp:///?brokerlist='tcp://host1&tcp://host2:5673'&failover='singlebroker'",
            Url((Endpoint("host1"),), options={"reconnect": True, "reconnect_limit": 2}),
        ),
        (
            "amqp://username:password@me/test?brokerlist='tcp://localhost:5672?ssl='true''&failover='nofailover'",
            Url((Endpoint("localhost", 5672, True),), "username", "password", "test", {"reconnect": False} | _ME),
        ),
        ("qpid:tcp:myHost", Url((Endpoint("myHost"),))),
        (
            "qpid:client_id=me;password=myPassword;username=myUsername;virtualhost=blue@tls:myHost:5644",
            Url((Endpoint("myHost", 5644, True),), "myUsername", "myPassword", "blue", _ME),
        ),
    ],
)  # fmt: skip
def test_urls_of_the_java_client_are_read(text: str, expected: Url) -> None:
    found = parse_url(text)
    assert found == expected
    connection_options(found.options)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("amqp://guest:guest@test?brokerlist='vm://:1;vm://:2'", "'vm://:1' is not tcp://host"),
        ("amqp:///t?brokerlist='tcp://a'&failover='never'", "failover is one of singlebroker, roundrobin, nofailover"),
        ("amqp:///t?brokerlist='tcp://a?retries='x''", "retries='x' is not a number"),
        ("amqp:///t?brokerlist='tcp://a?colour='red''", "are not the options retries, ssl"),
        ("amqp:///t?brokerlist=tcp://a", "with a value in quotes"),
        ("amqp:///t?brokerlist=''", "is not host"),
        ("qpid:colour=red@tcp:a", "not qpid:["),
        ("qpid:rdma:a", "not qpid:["),
        ("amqp://a/v?colour=red", "unknown connection option 'colour'"),
        ("amqp://a?heartbeat=3", "an address has the options ssl and retry"),
        ("amqp://a/v?retry=often", "retry='often' is not a number"),
        ("amqp://a/v?retry=" + "9" * 5000, "is not a number"),
        ("amqp://a/v?heartbeat=1;retry", "option 2 is not name=value"),
        ("amqp://a/v?ssl=enabled", "ssl='enabled': it must be true or false"),
        ("amqp:///t?brokerlist='tcp://a?ssl='enabled''", "ssl='enabled': it must be true or false"),
        ("a:" + "9" * 5000, "is not host"),
    ],
)
def test_options_of_urls_that_are_none(text: str, what: str) -> None:
    with pytest.raises(UrlError, match=re.escape(what)):
        parse_url(text)


def test_options_take_precedence_over_those_of_a_url() -> None:
    found = Destination("amqp://a/blue?heartbeat=10;reconnect=yes", {"heartbeat": 3, "virtual-host": "red"})
    assert (found.options.heartbeat, found.options.reconnect, found.options.virtual_host) == (3, True, "red")
    assert connection_options({"protocol": "ssl"}).transport == "ssl"
    assert Destination("a", {"protocol": "ssl"}).endpoints == (Endpoint("a", 5671, True),)
    with pytest.raises(UrlError, match="option protocol"):
        connection_options({"protocol": ["ssl"]})


@pytest.mark.parametrize(
    ("url", "values"),
    [
        ("a/?ssl=true;reconnect_urls=b", {}),
        ("a/?transport=ssl", {"reconnect_urls": ["b"]}),
        ("a", {"reconnect_urls": "b", "transport": "ssl"}),
    ],
)
def test_encryption_is_also_for_the_brokers_to_reconnect_to(url: str, values: dict[str, Any]) -> None:
    assert Destination(url, values).options.reconnect_urls == (Endpoint("b", 5671, True),)


@pytest.mark.parametrize(
    ("url", "role", "address"),
    [
        (
            "direct://amq.direct//simpleQueue", RECEIVER,
            ("simpleQueue; {create: always, node: {type: queue, durable: false, x-declare: {exclusive: false,"
             " auto-delete: false}, x-bindings: [{exchange: amq.direct, key: simpleQueue}]}}"),
        ),
        (
            "direct://amq.direct/UnusuallyBoundQueue?routingkey='/queue'&durable='true'&autodelete='True'", RECEIVER,
            ("UnusuallyBoundQueue; {create: always, node: {type: queue, durable: true, x-declare: {exclusive: false,"
             " auto-delete: true}, x-bindings: [{exchange: amq.direct, key: /queue}]}}"),
        ),
        (
            "direct://amq.direct//simpleQueue", SENDER,
            "amq.direct/simpleQueue; {create: always, node: {type: topic, x-declare: {type: direct}}}",
        ),
        (
            "topic://amq.topic?routingkey='stocks.#'", RECEIVER,
            "amq.topic/stocks.#; {create: always, node: {type: topic, x-declare: {type: topic}}}",
        ),
        (
            "topic://amq.topic/news//?subscription='true'&clientid='me'", RECEIVER,
            ("amq.topic/news; {create: always, node: {type: topic, x-declare: {type: topic}},"
             " link: {name: 'me:news', durable: true}}"),
        ),
        (
            "topic://amq.topic/news/?subscription='true'&clientid='me'", RECEIVER,
            ("amq.topic/news; {create: always, node: {type: topic, x-declare: {type: topic}},"
             " link: {name: 'me:news', durable: true}}"),
        ),
        ("direct:////orders", SENDER, "orders"),
        ("orders/direct://x", SENDER, "orders/direct://x"),
    ],
)  # fmt: skip
def test_binding_urls_are_addresses(url: str, role: str, address: str) -> None:
    assert parse_address(plain_address(url, role)) == parse_address(address)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("direct://amq.direct", "needs a queue, a destination or a routingkey"),
        ("direct://amq.direct//q?colour='red'", "the options of a binding URL are"),
        ("direct://amq.direct//q?durable=true", "the options of a binding URL are"),
        ("direct://amq.direct//q?durable='perhaps'", "are 'true' or 'false'"),
    ],
)
def test_binding_urls_that_are_none(url: str, what: str) -> None:
    with pytest.raises(AddressError, match=re.escape(what)):
        plain_address(url, RECEIVER)


@pytest.mark.parametrize("text", ["", "a:b", "a:0", "a:65536", "a,,b", "rdma:a", "ssl:", "[::1", "::1", "a b"])
def test_refuses(text: str) -> None:
    with pytest.raises(UrlError):
        parse_url(text)


def test_the_transport_of_endpoints_that_tell_none() -> None:
    encrypted = parse_url("amqp://a,tcp:b", is_encrypted=True)
    assert encrypted == Url((Endpoint("a", 5671, True), Endpoint("b", 5672)))


@pytest.mark.parametrize(
    "url",
    [
        "me/secret@host:port",
        "host/v?password=secret;colour=red",
        "host/v?password=secret;colour",
        "host/v?password=a;secret",
        "host/v?password=secret;retry=x",
        "host/v?username=me;password=secret;heartbeat=x",
        "qpid:password=secret;tcp:host",
        "qpid:password=secret@rdma:host",
        "amqp://me:a?secret@id/v?brokerlist='tcp://host'",
        "amqp://me:secret@id/v?brokerlist=tcp://host",
    ],
)
def test_no_password_in_errors_of_urls(url: str) -> None:
    with pytest.raises(UrlError) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)


def test_no_password_in_errors_of_options() -> None:
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


def test_an_unknown_option_that_begins_with_x_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    address_target(parse_address("q; {link: {x-subscribes: {exclusive: true}, x-subscribe: {exclusive: true}}}"))
    (line,) = [each.getMessage() for each in caplog.records if each.name == "qstore.client"]
    assert "option link.x-subscribes is ignored" in line
    assert "x-subscribe" in line.partition("options are")[2]


MAKES = "create: always"


@pytest.mark.parametrize(
    ("options", "role", "is_queue", "idle"),
    [
        ("mode: browse", SENDER, True, "mode"),
        ("link: {selector: 'a = 1'}", SENDER, True, "link.selector"),
        ("link: {selector: 'a = 1'}", SENDER, None, "link.selector"),
        ("link: {filter: {name: f, descriptor: 1, value: 1}}", SENDER, None, "link.filter"),
        ("link: {timeout: 5}", SENDER, None, "link.timeout"),
        ("link: {x-subscribe: {exclusive: true}}", SENDER, True, "link.x-subscribe"),
        ("link: {x-declare: {exclusive: true}}", SENDER, False, "link.x-declare"),
        ("link: {durable: true}", SENDER, False, "link.durable"),
        ("link: {x-declare: {exclusive: true}}", RECEIVER, True, "link.x-declare"),
        ("link: {durable: true}", RECEIVER, True, "link.durable"),
        ("link: {x-declare: {type: topic}}", RECEIVER, False, "link.x-declare.type"),
        ("node: {x-declare: {auto-delete: true}}", RECEIVER, True, "node.x-declare"),
        ("node: {x-declare: {auto-delete: true}}", SENDER, None, "node.x-declare"),
        ("node: {x-bindings: [{exchange: amq.direct, key: k}]}", SENDER, True, "node.x-bindings"),
        ("node: {durable: true}", SENDER, True, "node.durable"),
        ("node: {properties: {a: 1}}", SENDER, None, "node.properties"),
        (f"{MAKES}, node: {{x-declare: {{type: topic}}}}", SENDER, True, "node.x-declare.type"),
        (f"{MAKES}, node: {{type: topic, x-declare: {{exclusive: true}}}}", SENDER, False, "node.x-declare.exclusive"),
        # What has an effect.
        ("mode: browse, link: {selector: 'a = 1', x-subscribe: {exclusive: true}}", RECEIVER, True, ""),
        ("link: {durable: true, x-declare: {exclusive: true}}", RECEIVER, False, ""),
        ("link: {timeout: 5, durable: true}", RECEIVER, None, ""),
        ("link: {durable: true}, node: {durable: true, capabilities: [a]}", SENDER, None, ""),
        (f"{MAKES}, node: {{durable: true, x-declare: {{exclusive: true}}}}", SENDER, True, ""),
        ("assert: always, node: {durable: true, x-bindings: [{exchange: x}]}", SENDER, True, ""),
        ("create: receiver, node: {x-declare: {auto-delete: true}}", SENDER, True, ""),  # an address that both use
    ],
)
def test_options_without_effect_on_a_link_are_warned_of(
    options: str, role: str, is_queue: bool | None, idle: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = f"q; {{{options}}}"
    warn_of_idle(text, address_target(parse_address(text)), role, is_queue=is_queue)
    lines = [each.getMessage() for each in caplog.records if each.name == "qstore.client"]
    assert [line.partition(" has no effect: ")[0] for line in lines] == ([f"Address {text!r}: {idle}"] if idle else [])


def test_the_subject_of_a_receiver_of_a_queue_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for text in ("q/red", "q/red; {link: {x-bindings: [{exchange: amq.direct}]}}"):
        warn_of_idle(text, address_target(parse_address(text)), RECEIVER, is_queue=True)
    (line,) = [each.getMessage() for each in caplog.records if each.name == "qstore.client"]
    assert line.startswith("Address 'q/red': the subject has no effect: ")


@pytest.mark.parametrize(
    ("url", "values", "idle"),
    [
        *(
            ("host", {name: value}, [name])
            for name, value in {
                "reconnect_timeout": 5, "reconnect_limit": 5, "reconnect_interval": 5, "reconnect_interval_min": 5,
                "reconnect_interval_max": 5, "ssl_certificate": "f", "ssl_trustfile": "f",
                "ssl_skip_hostname_check": True, "password": "p", "container_id": "c", "nest_annotations": True,
                "failover_updates": True,
            }.items()
        ),
        ("amqp://host/?clientid=c", {}, []),
        ("amqps:host", {"ssl_key": "f"}, ["ssl_key"]),
        ("amqps:host", {"ssl_password_file": "f"}, ["ssl_password_file"]),
        ("amqps:host", {"sasl_min_ssf": 5}, ["sasl_min_ssf"]),
        ("amqps:host", {"sasl_max_ssf": 5}, ["sasl_max_ssf"]),
        ("host", {"sasl_service": "s", "sasl_mechanisms": "PLAIN"}, ["sasl_service"]),
        ("host", {"failover_updates": True, "protocol": "amqp1.0", "reconnect": True}, ["failover_updates"]),
        # What has an effect.
        ("host", {"reconnect": True, "reconnect_limit": 5, "failover_updates": True}, []),
        ("amqps:host", {"ssl_certificate": "f", "ssl_key": "f", "ssl_trustfile": "f"}, []),
        ("host", {"reconnect_urls": "amqps:other", "ssl_trustfile": "f", "sasl_min_ssf": 1}, []),
        ("me@host", {"password": "p", "protocol": "amqp1.0", "container_id": "c"}, []),
        ("host", {"ssl_trustfile": None, "nest_annotations": False, "sasl_min_ssf": 0}, []),
    ],
)  # fmt: skip
def test_connection_options_without_effect_are_warned_of(
    url: str, values: dict[str, object], idle: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    ConnectionCore(url, values)
    lines = [each.getMessage() for each in caplog.records if each.name == "qstore.client"]
    assert [line.partition(" has no effect: ")[0] for line in lines] == [
        f"The connection option {each}" for each in idle
    ]


@pytest.mark.parametrize(
    ("url", "role", "idle"),
    [
        ("direct://amq.direct//q?durable='true'&exclusive='true'", SENDER, ["durable", "exclusive"]),
        ("topic://amq.topic/news?clientid='c'", RECEIVER, ["clientid"]),
        ("topic://amq.topic/news?autodelete='true'", RECEIVER, ["autodelete"]),
        ("direct://amq.direct//q?subscription='true'", RECEIVER, ["subscription"]),
        ("topic://amq.topic/news/q?clientid='c'&durable='true'", RECEIVER, []),
        ("direct://amq.direct//q?durable='true'&exclusive='true'&autodelete='false'&routingkey='k'", RECEIVER, []),
        ("direct://amq.direct//q?routingkey='k'", SENDER, []),
    ],
)
def test_options_of_binding_urls_without_effect_are_warned_of(
    url: str, role: str, idle: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    plain_address(url, role)
    lines = [each.getMessage() for each in caplog.records if each.name == "qstore.client"]
    assert [line.partition("the option ")[2].partition(" has no effect")[0] for line in lines] == idle


@pytest.mark.parametrize("name", ["heartbeat", "idle_timeout"])
def test_java_urls_have_heartbeats_and_the_failover_exchange(name: str) -> None:
    url = f"amqp://guest:guest@me/test?brokerlist='tcp://localhost:5672'&{name}='3'&failover='failover_exchange'"
    options = Destination(url, {}).options
    assert (options.heartbeat, options.reconnect, options.failover_updates) == (3, True, True)
