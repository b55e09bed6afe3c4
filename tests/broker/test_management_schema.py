"""The schema that consoles are told: that of the QMF schema, whatever bytes ask for it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.management.event_table import EVENTS, NOT_RAISED
from qstore.broker.management.schema import CLASSES, EVENT_ARGUMENTS, PACKAGE
from qstore.broker.management.schema_requests import SchemaRequests
from qstore.broker.management.statistics import CLASSES as STATISTICS
from qstore.formats.amqp_0_10.maps import read_value
from qstore.formats.amqp_0_10.types import BY_NAME
from qstore.formats.plain import plain_map

_ROOT = ElementTree.parse(Path(__file__).parent.parent / "fixtures" / "qmf" / "broker.xml").getroot()
_XML = {str(each.get("name")).lower(): each for each in _ROOT.iter("class")}
_ID = UUID(int=7)


def arguments(element: Any) -> list[tuple[str | None, ...]]:
    return [(each.get("name"), each.get("type"), each.get("dir")) for each in element.iter("arg")]


def test_classes_are_those_of_the_schema() -> None:
    for name, of in CLASSES.items():
        xml = _XML[name]
        expected = [
            (each.get("name"), each.get("type"), each.get("access"), each.get("unit") or "",
             each.get("index") == "y", each.get("optional") == "y")
            for each in xml.iter("property")
        ]  # fmt: skip
        assert [tuple(each) for each in of.properties] == expected
        types = {str(each.get("name")): (each.get("type"), each.get("unit") or "") for each in xml.iter("statistic")}
        for statistic in of.statistics:
            if statistic.name in types and types[statistic.name][0] != "hilo32":
                assert (statistic.type, statistic.unit) == types[statistic.name]
            else:
                base = statistic.name.removesuffix("High").removesuffix("Low")
                assert types[base][0] == "hilo32"
                assert (statistic.type, statistic.unit) == ("uint32", types[base][1])
        methods = {str(each.get("name")): arguments(each) for each in xml.iter("method")}
        for method, given_ in of.methods.items():
            assert [tuple(each) for each in given_] == methods[method]
    told = {str(each.get("name")): each.get("type") for each in _ROOT.find("eventArguments") or ()}
    assert dict(EVENT_ARGUMENTS) == told


def test_statistics_of_the_schema_are_those_that_are_told() -> None:
    for name, of in CLASSES.items():
        table = STATISTICS.get(name.capitalize())
        told = set() if table is None else set(table.names)
        names = {each.name for each in of.statistics}
        assert told <= names
        marked = [each for each in ("consumerCount", "bindingCount") if each in told]
        assert names - told == {f"{each}{mark}" for each in marked for mark in ("High", "Low")}


def ask(opcode: bytes, content: bytes = b"") -> list[tuple[bytes, bytes]]:
    """Opcode and content of each reply."""
    replies = SchemaRequests(_ID).answer(b"AM2" + opcode + struct.pack(">I", 99) + content)
    assert all(each[:3] == b"AM2" and each[4:8] == struct.pack(">I", 99) for each in replies)
    return [(each[3:4], each[8:]) for each in replies]


def name(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


def test_broker_packages_and_classes() -> None:
    assert ask(b"B") == [(b"b", _ID.bytes)]
    end = (b"z", struct.pack(">I", 0) + name("OK"))
    assert ask(b"P") == [(b"p", name(PACKAGE)), end]
    classes = ask(b"Q", name(PACKAGE))
    assert classes[-1] == end
    assert len(classes) == 1 + len(CLASSES) + len(EVENTS) + len(NOT_RAISED)
    queue = CLASSES["queue"]
    assert (b"q", b"\x01" + name(PACKAGE) + name("queue") + queue.hash.bytes) in classes
    assert ask(b"Q", name("org.example")) == [end]
    assert ask(b"G", b"anything") == [(b"z", struct.pack(">I", 3) + name("NotImplemented"))]


def maps(content: bytes, count: int | None = None) -> list[dict[str, Any]]:
    """All the maps that there are."""
    found, at = [], 0
    while at < len(content) if count is None else len(found) < count:
        value, at = read_value(BY_NAME["map"], content, at, len(content))
        found.append(plain_map(value))
    return found


def test_a_schema() -> None:
    queue = CLASSES["queue"]
    key = name(PACKAGE) + name("queue") + queue.hash.bytes
    ((opcode, content),) = ask(b"S", key)
    assert (opcode, content[0], content[1 : 1 + len(key)]) == (b"s", 1, key)
    counts = struct.unpack_from(">HHH", content, 1 + len(key))
    assert counts == (len(queue.properties), len(queue.statistics), 2)
    told = maps(content[7 + len(key) :])
    assert told[1] == {"name": "name", "type": 6, "access": 1, "index": 1, "optional": 0}
    assert told[counts[0]] == {"name": "msgTotalEnqueues", "type": 4, "unit": "message"}
    assert told[-5:] == [
        {"name": "reroute", "argCount": 4},
        {"name": "request", "type": 3, "dir": "I"},
        {"name": "useAltExchange", "type": 11, "dir": "I"},
        {"name": "exchange", "type": 6, "dir": "I"},
        {"name": "filter", "type": 15, "dir": "I"},
    ]
    event = next(each for each in EVENTS.values() if each.name == "queueDelete")
    ((opcode, content),) = ask(b"S", name(PACKAGE) + name("queueDelete") + event.hash.bytes)
    told = maps(content[content.index(event.hash.bytes) + 18 :])
    assert [each["name"] for each in told] == ["rhost", "user", "qName"]
    for wrong in (name(PACKAGE) + name("queue") + bytes(16), name("x") + name("queue") + queue.hash.bytes, b""):
        assert ask(b"S", wrong) == [(b"z", struct.pack(">I", 1) + name("UnknownObject"))]


@given(st.binary(max_size=60))
def test_any_bytes_are_answered_or_ignored(content: bytes) -> None:
    requests = SchemaRequests(_ID)
    requests.answer(content)
    for opcode in b"BPQSGMx":
        assert requests.answer(b"AM2" + bytes((opcode,)) + bytes(4) + content)
