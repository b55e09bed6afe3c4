"""The tables of management are the schemas of qpidd: every class, element and event."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from qstore.broker.management.classes import CLASSES, classes_named
from qstore.broker.management.events import ARGUMENTS, EVENT_CLASSES, EVENTS, SEVERITIES
from qstore.broker.management.schema import ManagedClass
from qstore.broker.model.events import ClientConnect, Event, Subscribe, Unsubscribe
from qstore.formats.amqp_0_10.maps import encode_value
from qstore.formats.amqp_0_10.types import BY_NAME
from qstore.formats.qmf.v1 import QMF_TYPES, expanded

_SCHEMAS = [
    ElementTree.parse(path).getroot() for path in sorted((Path(__file__).parent.parent / "fixtures" / "qmf").iterdir())
]
_CLASSES = {(str(root.get("package")), str(each.get("name"))): each for root in _SCHEMAS for each in root.iter("class")}
_OWN, _LEGACY = "qstore", "org.apache.qpid.legacystore"
_FOR_OTHERS: dict[type[Event], tuple[str, ...]] = {  # fields of events that consoles are not told
    ClientConnect: ("protocol",),
    Subscribe: ("is_browsing", "is_durable"),
    Unsubscribe: ("queue",),
}


_OF_M3 = {  # of the class queue of Qpid M3, which later brokers lack (its consumers and bindings have other names)
    "storeRef", "msgDepthHigh", "msgDepthLow", "byteDepthHigh", "byteDepthLow",
    "enqueueTxnStarts", "enqueueTxnCommits", "enqueueTxnRejects", "enqueueTxnCount",
    "dequeueTxnStarts", "dequeueTxnCommits", "dequeueTxnRejects", "dequeueTxnCount",
}  # fmt: skip


def own(name: str) -> str:
    """The name of a class as consoles see it."""
    return name[0].lower() + name[1:]


def arguments(element: Any) -> list[tuple[str | None, ...]]:
    return [
        (each.get("name"), each.get("type"), each.get("dir"), each.get("desc") or "") for each in element.iter("arg")
    ]


def flags(prop: Any) -> tuple[str, ...]:
    marks = {"index": "index", "optional": "optional", "parentRef": "parent", "isGeneralReference": "general"}
    return (prop.get("access") or "RO", *(flag for name, flag in marks.items() if prop.get(name) == "y"))


@pytest.mark.parametrize("of", CLASSES, ids=lambda of: f"{of.package}:{of.name}")
def test_a_class_is_that_of_the_schema(of: ManagedClass) -> None:
    if of.package == _OWN:
        return
    (xml,) = (each for (package, name), each in _CLASSES.items() if (package, own(name)) == (of.package, of.name))
    assert [
        (each.name, each.type, each.flags, each.description, each.unit, each.references) for each in of.properties
        if each.name not in _OF_M3
    ] == [
        (
            each.get("name"), each.get("type"), flags(each), each.get("desc") or "", each.get("unit") or "",
            each.get("references") or "",
        )
        for each in xml.iter("property")
    ]  # fmt: skip
    assert [(each.name, each.type, each.description, each.unit) for each in of.declared if each.name not in _OF_M3] == [
        (each.get("name"), each.get("type"), each.get("desc") or "", each.get("unit") or "")
        for each in xml.iter("statistic")
    ]
    assert [(each.name, each.description, [tuple(one) for one in each.arguments]) for each in of.methods.values()] == [
        (each.get("name"), each.get("desc") or "", arguments(each)) for each in xml.iter("method")
    ]
    assert list(of.methods) == [each.name for each in of.methods.values()]


def test_the_queue_has_what_it_had_in_m3() -> None:
    of = classes_named(None, "queue")[0]
    assert {each.name for each in (*of.properties, *of.declared)} >= _OF_M3
    assert {"enqueueTxnCountHigh", "dequeueTxnCountLow"} <= {each.name for each in of.statistics}


def test_no_class_is_forgotten() -> None:
    expected = {(package, own(name)) for package, name in _CLASSES}
    assert {(each.package, each.name) for each in CLASSES if each.package != _OWN} == expected


def test_statistics_are_expanded_and_have_types_of_both_versions() -> None:
    for of in CLASSES:
        reported = [(name, kind) for each in of.declared for _, name, kind in expanded(each.name, each.type)]
        assert [(each.name, each.type) for each in of.statistics] == reported
        assert {each.type for each in (*of.properties, *of.statistics)} <= QMF_TYPES.keys()
    assert list(expanded("a", "mmaTime")) == [
        ("Samples", "aSamples", "uint64"), ("Min", "aMin", "deltaTime"), ("Max", "aMax", "deltaTime"),
        ("Average", "aAverage", "deltaTime"),
    ]  # fmt: skip


def test_events_are_those_of_the_schema() -> None:
    expected = {}
    for root in _SCHEMAS:
        package = str(root.get("package"))
        described = root.find("eventArguments")
        if described is None:
            continue
        reported = {str(each.get("name")): (each.get("type"), each.get("desc") or "") for each in described}
        assert dict(ARGUMENTS[package]) == reported
        for each in root.iter("event"):
            names = [part.strip() for part in str(each.get("args")).split(",")]
            expected[package, each.get("name")] = each.get("sev"), names
    assert {
        (each.package, each.name): (each.severity, [one.name for one in each.arguments])
        for each in EVENT_CLASSES
        if each.package != _OWN
    } == expected
    for kind, of in EVENTS.items():
        prefix = "Journal" if of.package == _LEGACY else ""
        assert kind.__name__ == prefix + of.name[0].upper() + of.name[1:]
        assert kind._fields[len(of.arguments) :] == _FOR_OTHERS.get(kind, ())
    assert {each.severity for each in EVENT_CLASSES} <= SEVERITIES.keys()


def test_hashes_differ() -> None:
    hashes = [each.hash for each in (*CLASSES, *EVENT_CLASSES)]
    assert len(set(hashes)) == len(hashes)


def test_lists_of_all_classes_can_be_encoded() -> None:
    """They are tuples of values with types: compiled code refuses a list of Python, and the reply was lost."""
    view = SimpleNamespace(slowed=["q"], found={"files": [1, 2], "live": [3]})
    statistics = [row for of in CLASSES for row in of.statistics if row.type == "list"]
    for row in statistics:
        assert encode_value(BY_NAME["list"], row.read(view))
        assert isinstance(row.read(view), tuple)
    assert len(statistics) == 3
