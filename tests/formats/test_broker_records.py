"""The records of queues, exchanges, bindings, links, bridges and general objects."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qstore.formats.amqp_0_10.maps import decode_map
from qstore.formats.broker_records.topology import (
    HOST_SEPARATOR,
    REPLICATION_KEY,
    Binding,
    Bridge,
    Exchange,
    ExchangeBinding,
    GeneralObject,
    Link,
    Queue,
    decode_binding,
    decode_exchange,
    decode_general,
    decode_queue,
    encode_binding,
    encode_exchange,
    encode_general,
    encode_queue,
    exchange_binding_object,
    exchange_binding_of,
    full_name,
    is_storable_name,
    names_a_host,
    problem_of_new_name,
    split_name,
    without_passwords,
)
from qstore.formats.errors import BrokerRecordError
from qstore.formats.values import TYPES, TypedMap, TypedValue, typed_map
from tests.support.coded import coded

QUEUE = b"\x02q1\0\0\0\x04\0\0\0\0\0\x09anonymous\0"
EXCHANGE = b"\x0aamq.direct\x01\x06direct\0\0\0\x1a\0\0\0\x01\x0eqpid.replicate\x95\0\x04none\0\0"
BINDING = b"\0\0\0\0\0\0\0\x02\x02q1\x02k1\0\0\0\x04\0\0\0\0"
BRIDGE_FIELDS = b"\x01\x03src\x04dest\x03key\x01\x00\x03tag\x02ex\x01\x00\x05\x00\x00\x01\x00"

NAMES = (st.text(max_size=20) | st.binary(max_size=20).map(lambda raw: raw.decode("utf-8", "surrogateescape"))).filter(
    lambda name: HOST_SEPARATOR not in name
)
ARGUMENTS = st.dictionaries(
    NAMES, st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.booleans() | st.lists(st.none()), max_size=3
).map(typed_map) | st.just(TypedMap(bare=True))
U16, U32 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)
BRIDGE_VALUES = {
    "durable": st.booleans(), "source": NAMES, "destination": NAMES, "key": NAMES, "source_is_queue": st.booleans(),
    "source_is_local": st.booleans(), "tag": NAMES, "excludes": NAMES, "dynamic": st.booleans(), "sync": U16,
    "credit": U32,
}  # fmt: skip
NONE = st.none()
GENERAL = (
    st.builds(Link, st.just("link.v2"), NAMES, NAMES, U16, NAMES, st.booleans(), NAMES, NAMES, NAMES)
    | st.builds(Link, st.just("link"), NONE, NAMES, U16, NAMES, st.booleans(), NAMES, NAMES, NAMES)
    | st.builds(Bridge, st.just("bridge.v2"), NAMES, NAMES, NONE, NONE, **BRIDGE_VALUES)
    | st.builds(Bridge, st.just("bridge"), NONE, NONE, NAMES, U16, **BRIDGE_VALUES)
    | st.builds(GeneralObject, st.sampled_from(["domain", "topic", "QueuePolicy", ""]), NAMES, ARGUMENTS)
)

DECODERS: list[Callable[[bytes], Any]] = [decode_queue, decode_exchange, decode_binding, decode_general]


def test_the_vectors() -> None:
    assert decode_queue(QUEUE) == Queue("q1", typed_map({}), "", "anonymous", False)
    assert encode_queue(decode_queue(QUEUE)) == QUEUE
    arguments = typed_map({"qpid.replicate": "none"})
    assert decode_exchange(EXCHANGE) == Exchange("amq.direct", True, "direct", arguments, "", False)
    assert encode_exchange(decode_exchange(EXCHANGE)) == EXCHANGE
    assert decode_binding(BINDING) == Binding(2, "q1", "k1", typed_map({}))
    assert encode_binding(decode_binding(BINDING)) == BINDING


def test_general_records() -> None:
    link = b"\x07link.v2\x01l\x09localhost\x16\x28\x03tcp\x01\x05PLAIN\x04user\x06secret"
    assert decode_general(link) == Link("link.v2", "l", "localhost", 5672, "tcp", True, "PLAIN", "user", "secret")
    old_link = b"\x04link\x09localhost\x16\x28\x03tcp\x00\x00\x00\x00"
    assert decode_general(old_link) == Link("link", None, "localhost", 5672, "tcp", False, "", "", "")
    bridge = b"\x09bridge.v2\x01b\x01l" + BRIDGE_FIELDS
    decoded = decode_general(bridge)
    assert isinstance(decoded, Bridge)
    assert (decoded.name, decoded.link_name, decoded.link_host, decoded.link_port) == ("b", "l", None, None)
    assert (decoded.source, decoded.destination, decoded.key, decoded.tag) == ("src", "dest", "key", "tag")
    assert (decoded.source_is_queue, decoded.source_is_local, decoded.dynamic) == (True, False, True)
    assert (decoded.excludes, decoded.sync, decoded.credit) == ("ex", 5, 256)
    old_bridge = b"\x06bridge\x04host\x16\x28" + BRIDGE_FIELDS
    assert decode_general(old_bridge) == replace(
        decoded, kind="bridge", name=None, link_name=None, link_host="host", link_port=5672
    )
    other = b"\x06domain\x00\x03dom\0\0\0\x0a\0\0\0\x01\x01a\x95\0\x01b"
    assert decode_general(other) == GeneralObject("domain", "dom", typed_map({"a": "b"}))
    for record in (link, old_link, bridge, old_bridge, other):
        assert encode_general(decode_general(record)) == record


@given(NAMES, ARGUMENTS, st.integers(0, 3), NAMES, NAMES, st.booleans())
def test_queues_come_back(
    name: str, arguments: TypedMap, present: int, alternate: str, owner: str, auto_delete: bool
) -> None:
    optional: list[Any] = [*[alternate, owner, auto_delete][:present], None, None, None]
    queue = Queue(name, arguments, *optional[:3])
    assert decode_queue(encode_queue(queue)) == queue


@given(NAMES, st.booleans(), NAMES, ARGUMENTS, st.integers(0, 2), NAMES, st.booleans())
def test_exchanges_come_back(
    name: str, durable: bool, kind: str, arguments: TypedMap, present: int, alternate: str, auto_delete: bool
) -> None:
    optional: list[Any] = [*[alternate, auto_delete][:present], None, None]
    exchange = Exchange(name, durable, kind, arguments, *optional[:2])
    assert decode_exchange(encode_exchange(exchange)) == exchange


@given(st.builds(Binding, st.integers(0, 2**64 - 1), NAMES, NAMES, ARGUMENTS))
def test_bindings_come_back(binding: Binding) -> None:
    assert decode_binding(encode_binding(binding)) == binding


@given(NAMES.filter(bool), NAMES.filter(bool), NAMES)
def test_objects_of_a_virtual_host_come_back(host: str, name: str, alternate: str) -> None:
    assume(host != "/")
    full, other = full_name(host, name), full_name(host, alternate)
    assert split_name(full) == (host, name)
    queue = Queue(full, typed_map({"a": 1}), other, "me", True)
    assert decode_queue(encode_queue(queue)) == queue
    exchange = Exchange(full, True, "direct", typed_map({}), other, False)
    assert decode_exchange(encode_exchange(exchange)) == exchange
    binding = Binding(2, full, "k", typed_map({}))
    assert decode_binding(encode_binding(binding)) == binding


def test_the_default_host_is_not_in_records_and_the_name_of_another_is_their_end() -> None:
    queue = Queue("q1", typed_map({}), "", "anonymous", False)
    assert encode_queue(replace(queue, name=full_name("/", "q1"))) == QUEUE
    assert encode_queue(replace(queue, name=full_name("blue", "q1"))) == QUEUE + b"\x04blue"
    for host in (b"\x00", b"\x01/"):
        with pytest.raises(BrokerRecordError, match="virtual host"):
            decode_queue(QUEUE + host)


def test_a_stored_name_with_the_separator_is_of_the_default_host() -> None:
    stored = QUEUE.replace(b"\x02q1", b"\x03a\x1fb")
    queue = decode_queue(stored)
    assert split_name(queue.name) == ("/", "a\x1fb")
    assert encode_queue(queue) == stored


def test_records_that_mix_hosts_or_lack_fields_are_refused() -> None:
    for queue in (
        Queue(full_name("a", "q"), typed_map({}), full_name("b", "x"), "", False),
        Queue(full_name("a", "q"), typed_map({}), full_name("a", "x"), None, None),
    ):
        with pytest.raises(BrokerRecordError):
            encode_queue(queue)


def test_which_objects_are_about_hosts() -> None:
    about = [
        GeneralObject("qstore.virtual-host", name) for name in ('["a"]', '["/", "limits"]', "x", '["a", "limits"]')
    ]
    assert [names_a_host(each) for each in about] == [True, False, False, True]
    assert names_a_host(Queue(full_name("a", "q")))
    assert not names_a_host(Queue("a/q"))
    assert not names_a_host(GeneralObject("qstore.policy", '["a", "p"]'))


@given(GENERAL)
def test_general_records_come_back(record: Link | Bridge | GeneralObject) -> None:
    assert decode_general(encode_general(record)) == record


@pytest.mark.parametrize("keep", [11, 12, 22, 23])
def test_old_queues_lack_fields_at_the_end(keep: int) -> None:
    queue = decode_queue(QUEUE[:keep])
    assert [queue.alternate_exchange, queue.owner, queue.auto_delete].count(None) == {11: 3, 12: 2, 22: 1, 23: 0}[keep]
    assert encode_queue(queue) == QUEUE[:keep]


def test_a_binding_keeps_arguments_of_size_0() -> None:
    record = BINDING[:-8] + bytes(4)
    assert decode_binding(record).arguments == TypedMap(bare=True)
    assert encode_binding(decode_binding(record)) == record


@pytest.mark.parametrize("record", [QUEUE, EXCHANGE, BINDING])
def test_bytes_after_a_record_are_refused(record: bytes) -> None:
    for decode, own in ((decode_queue, QUEUE), (decode_exchange, EXCHANGE), (decode_binding, BINDING)):
        if own == record:
            with pytest.raises(BrokerRecordError, match="2 bytes follow"):
                decode(record + b"xx")


@given(st.data())
def test_hostile_records_are_read_or_refused(data: st.DataObject) -> None:
    link = encode_general(Link("link.v2", "n", "h", 1, "tcp", True, "PLAIN", "u", "p"))
    record = bytearray(data.draw(st.sampled_from([QUEUE, EXCHANGE, BINDING, link])))
    record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    hostile = bytes(record[: data.draw(st.integers(0, len(record)))])
    for raw in (hostile, data.draw(st.binary(max_size=60))):
        for decode in DECODERS:
            offset = 0
            try:
                decode(raw)
            except BrokerRecordError as error:
                offset = error.offset
            assert 0 <= offset <= len(raw)


def test_an_absent_field_cannot_be_followed_by_one_that_is_present() -> None:
    with pytest.raises(BrokerRecordError, match="owner cannot follow alternate_exchange"):
        encode_queue(Queue("q", alternate_exchange=None, owner="me"))


@pytest.mark.parametrize(
    "record",
    [
        Link("link", "named", "h", 1, "tcp", True, "", "", ""),
        Link("bridge", None, "h", 1, "tcp", True, "", "", ""),
        Link("link.v2", "n", "h", 65536, "tcp", True, "", "", ""),
        GeneralObject("link", "n"),
        GeneralObject("domain", "n" * 65536),
        GeneralObject("domain", "n", TypedMap((("x", coded(0xB0, b"")),))),
    ],
)
def test_unrepresentable_record_is_refused(record: Link | GeneralObject) -> None:
    with pytest.raises(BrokerRecordError):
        encode_general(record)


def test_passwords_are_shown_nowhere() -> None:
    link = Link("link.v2", "n", "h", 1, "tcp", True, "PLAIN", "u", "s3cret" * 50)
    assert "s3cret" not in repr(link)
    with pytest.raises(BrokerRecordError, match="password") as raised:
        encode_general(link)
    assert "s3cret" not in "".join(traceback.format_exception(raised.value))


def test_the_last_of_a_repeated_argument_counts() -> None:
    table = decode_map(bytes.fromhex("0000000c00000002017802010178 0202".replace(" ", "")))
    assert table.get("x") == coded(0x02, 2)
    assert len(table) == 2


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("q", ""),
        ("ä €/a b*#\\\"'", ""),
        ("amq.gen-x", ""),  # a reserved name is a matter of who asks
        ("q" * 255, ""),
        ("€" * 85, ""),
        ("", "its name is empty"),
        ("q" * 256, "its name has 256 bytes, more than 255"),
        ("€" * 86, "its name has 258 bytes, more than 255"),
        ("a\0b", "its name contains the control character U+0000"),
        ("a\nb\0", "its name contains the control character U+000A"),
        ("\x7f", "its name contains the control character U+007F"),
        ("\x9b2J", "its name contains the control character U+009B"),
        ("a\udcff", "its name is not valid UTF-8"),
    ],
)
def test_the_rule_of_names(name: str, problem: str) -> None:
    assert problem_of_new_name(name) == problem


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("amqp://u:secret@h", "amqp://u@h"),
        ("AMQPS://u@example.org:se:cr@et@h:5671/v", "AMQPS://u@example.org@h:5671/v"),
        ("amqp://:secret@[::1]/v", "amqp://@[::1]/v"),
        ("amqp://u@h:5672/a@b", "amqp://u@h:5672/a@b"),
        ("amqp://h:5672/a:b@c?heartbeat=5", "amqp://h:5672/a:b@c?heartbeat=5"),
    ],
)
def test_passwords_in_uris_are_left_out(uri: str, shown: str) -> None:
    for text in ("{}", '{{"uri":["{}"]}}'):
        record = GeneralObject("qstore.parameter", "name", typed_map({"value": text.format(uri)}))
        found = without_passwords(record)
        assert isinstance(found, GeneralObject)
        assert found.properties == typed_map({"value": text.format(shown)})


def test_passwords_of_links_are_left_out() -> None:
    link = Link("link.v2", "n", "h", 1, "tcp", True, "PLAIN", "u", "s3cret")
    assert without_passwords(link) == replace(link, password="")
    bridge = Bridge(
        "bridge.v2", "n", "l", None, None, durable=True, source="a", destination="b", key="k", source_is_queue=True,
        source_is_local=False, tag="", excludes="", dynamic=False, sync=1, credit=1,
    )  # fmt: skip
    assert without_passwords(bridge) is bridge
    mixed = typed_map({"number": 1, "uri": "amqp://u:s3cret@h", "list": '{"uris":["amqp://u:s3cret@h", 7]}'})
    shown = without_passwords(GeneralObject("qstore.parameter", "name", mixed))
    assert isinstance(shown, GeneralObject)
    assert "s3cret" not in str(shown)
    assert shown.properties.get("number") == mixed.get("number")


def test_the_key_of_replicated_copies_is_left_out() -> None:
    record = GeneralObject(REPLICATION_KEY, '["copies"]', typed_map({"key": "5ec2e7"}))
    assert without_passwords(record) == replace(record, properties=typed_map({}))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("q", True),
        ("a\nb", True),  # no new one may have it
        ("\udcff", True),
        ("q" * 255, True),
        ("q" * 256, False),
        ("", False),
        (full_name("host", "q"), True),
        (full_name("host", "q" * 256), False),
        (full_name("host", ""), False),
        ("\ud800", False),
    ],
)
def test_names_that_a_record_can_hold(name: str, expected: bool) -> None:
    assert is_storable_name(name) is expected


EXCHANGES = NAMES.filter(bool)
EXCHANGE_BINDINGS = st.builds(
    ExchangeBinding, EXCHANGES, EXCHANGES, NAMES, ARGUMENTS.filter(lambda each: not each.bare)
)


@given(EXCHANGE_BINDINGS)
def test_bindings_between_exchanges_come_back(binding: ExchangeBinding) -> None:
    record = exchange_binding_object(binding)
    assert exchange_binding_of(decode_general(encode_general(record))) == binding


@given(EXCHANGE_BINDINGS, EXCHANGE_BINDINGS)
def test_bindings_between_exchanges_with_other_fields_have_other_names(
    one: ExchangeBinding, other: ExchangeBinding
) -> None:
    """They are stored under their name, so that one would replace the other."""
    names = {exchange_binding_object(each).name for each in (one, other, one._replace(key=other.key))}
    fields = {each[:3] for each in (one, other, one._replace(key=other.key))}
    assert len(names) >= len(fields)
    assert exchange_binding_object(one._replace(arguments=one.arguments)).name == exchange_binding_object(one).name


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"source": "a", "destination": "b"},
        {"source": "a", "key": "k"},
        {"source": "", "destination": "b", "key": "k"},
        {"source": 1, "destination": "b", "key": "k"},
    ],
)
def test_what_is_no_complete_binding_between_exchanges(properties: dict[str, Any]) -> None:
    kind = exchange_binding_object(ExchangeBinding("a", "b", "k")).kind
    assert exchange_binding_of(GeneralObject(kind, "name", typed_map(properties))) is None
    complete = typed_map({"source": "a", "destination": "b", "key": "k"})
    assert exchange_binding_of(GeneralObject("domain", "name", complete)) is None
    assert exchange_binding_of(GeneralObject(kind, "name", complete)) == ExchangeBinding("a", "b", "k")


def test_arguments_that_cannot_be_stored_are_refused() -> None:
    arguments = TypedMap((("x", TypedValue(TYPES["int8"], 1000)),))
    with pytest.raises(BrokerRecordError, match="arguments"):
        exchange_binding_object(ExchangeBinding("a", "b", "k", arguments))
