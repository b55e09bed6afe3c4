"""The tables of real stores, held against what `qstore-dump` says of them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow not installed: pip install 'qstore[spark]'")

from qstore.tools.spark.columns import table_columns
from tests.spark.reading import Row, in_order, records, table
from tests.support.dump import dump
from tests.support.fixtures import LEGACY_STORES, LINEAR_STORES, StoreOpener
from tests.support.profiles import today

ALL = pytest.mark.parametrize("name", today(LEGACY_STORES + LINEAR_STORES, 7))
_SAME = ("queue", "type", "rid", "xid", "flags", "flush", "file", "offset", "size", "checksum")
_OF_MESSAGE = ("exchange", "routing_key", "message_id", "priority", "header_types", "body_length")
_PROPERTIES = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "user_id",
    "app_id",
    "ttl",
    "expiration",
    "timestamp",
)


def as_text(value: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [
        (key, entry if entry is None or isinstance(entry, str) else json.dumps(entry, separators=(",", ":")))
        for key, entry in value.items()
    ]


def from_dump(line: dict[str, Any]) -> Row:
    """What the row of a record should say, by a line of the dump."""
    row = {name: line[name] for name in _SAME}
    row["dequeued_rid"] = line.get("dequeued_rid")
    row["prepared"] = line.get("prepared")
    message = line.get("message")
    row["has_message"] = message is not None
    if message is not None:
        row |= {name: message[name] for name in _OF_MESSAGE}
        row |= {name: message["properties"][name] for name in _PROPERTIES}
        row["header_types"] = as_text(message["header_types"])
        row["headers"] = as_text(message["headers"])
        row["durable"] = None if message["delivery_mode"] is None else message["delivery_mode"] == 2
        row["body"] = message["body_sha256"]
        row["protocol"] = message.get("protocol", "0-10")
    return row


def from_table(row: Row) -> Row:
    """The same of a row."""
    reported = {name: row[name] for name in (*_SAME, "dequeued_rid", "prepared")}
    reported["has_message"] = row["body"] is not None
    if row["body"] is not None:
        names = (*_OF_MESSAGE, *_PROPERTIES, "headers", "durable", "protocol")
        reported |= {name: row[name] for name in names}
        reported["body"] = hashlib.sha256(row["body"]).hexdigest()
    return reported


@ALL
def test_the_records_are_those_of_the_dump(open_fixture: StoreOpener, name: str) -> None:
    store = open_fixture(name)
    lines = dump(store.path, "--json").lines()
    rows = records(store.path, fillers=True)
    assert Counter(row["type"] == "damage" for row in rows)[True] == sum(line["kind"] == "damage" for line in lines)
    expected = [from_dump(line) for line in lines if line["kind"] == "record"]
    found = [from_table(row) for row in rows if row["type"] != "damage"]
    key = ("queue", "file", "offset")
    assert sorted(found, key=lambda row: [row[each] for each in key]) == sorted(
        expected, key=lambda row: [row[each] for each in key]
    )
    assert len(expected) > 100


@ALL
@pytest.mark.parametrize("split_bytes", [65536, 1 << 20])
def test_parts_together_equal_the_whole(open_fixture: StoreOpener, name: str, split_bytes: int) -> None:
    path = open_fixture(name).path
    assert in_order(records(path, split_bytes=split_bytes)) == in_order(records(path))


@ALL
def test_positions_are_the_order_of_writing(open_fixture: StoreOpener, name: str) -> None:
    path = open_fixture(name).path
    last: dict[str, int] = {}
    order = [(line["file"], line["offset"]) for line in dump(path, "--json", "--body", "none").lines("record")
             if line["type"] != "filler"]  # fmt: skip
    rows = records(path, "journal,file,offset,position")
    assert [(row["file"], row["offset"]) for row in rows] == order
    for row in rows:
        assert row["position"] > last.get(row["journal"], -1)
        last[row["journal"]] = row["position"]


@ALL
def test_the_small_tables_are_those_of_the_dump(open_fixture: StoreOpener, name: str) -> None:
    path = open_fixture(name).path
    topology = dump(path, "--topology", "--outstanding", "--json")
    queues = {row["queue"]: row for row in table(path, "queues")}
    assert {queue: (row["messages"], row["alternate_exchange"], row["arguments"]) for queue, row in queues.items()} == {
        line["name"]: (line["messages"], line["alternate_exchange"], as_text(line["arguments"]))
        for line in topology.lines("queue")
    }
    exchanges = [(row["exchange"], row["type"], row["durable"], row["arguments"]) for row in table(path, "exchanges")]
    assert sorted(exchanges) == sorted(
        (line["name"], line["type"], line["durable"], as_text(line["arguments"])) for line in topology.lines("exchange")
    )
    bindings = [(row["exchange"], row["queue"], row["key"], row["arguments"]) for row in table(path, "bindings")]
    assert sorted(bindings) == sorted(
        (line["exchange"], line["queue"], line["key"], as_text(line["arguments"])) for line in topology.lines("binding")
    )
    same = ("xid", "type", "state", "global_id", "branch_id", "enqueues", "dequeues")
    transactions = [tuple(row[each] for each in same) for row in table(path, "transactions")]
    assert transactions == [tuple(line[each] for each in same) for line in topology.lines("transaction")]


@ALL
def test_the_table_of_files_has_each_file_that_was_written(open_fixture: StoreOpener, name: str) -> None:
    path = open_fixture(name).path
    files = {row["file"]: row for row in table(path, "files") if row["kind"] == "journal file"}
    held = {row["file"] for row in records(path, "file")}
    assert held <= files.keys()
    assert all(row["size"] > 0 and row["written"] > 0 for row in files.values())
    assert not [row for row in table(path, "files") if row["kind"] == "damage"]


@ALL
def test_queues_without_their_messages_are_the_same(open_fixture: StoreOpener, name: str) -> None:
    """Then journals are not walked, so the queues come another way."""
    path = open_fixture(name).path
    names = [column.name for column in table_columns("queues") if column.name != "messages"]
    whole = [{each: row[each] for each in names} for row in table(path, "queues")]
    assert table(path, "queues", ",".join(names)) == whole != []
