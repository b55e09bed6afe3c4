"""Exports and imports of whole stores: round trips, choices, names, the ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qstore.formats.broker_records.topology import Binding, Exchange, Link, Queue
from qstore.formats.values import TypedMap, typed_map, typed_value
from qstore.store.environment import tool_environment
from qstore.store.importing.store_import import StoreImport
from tests.support.dump import dump
from tests.support.fixtures import LEGACY_STORES, LINEAR_STORES, StoreFixture, StoreOpener, snapshot
from tests.support.opened_store import MESSAGES, OpenedStore, make_store
from tests.support.profiles import today
from tests.tools.interchange_runs import FORMS, bring, export, held, lines_of, of_kind, write_lines

STORES = [(store, form) for store in LEGACY_STORES + LINEAR_STORES for form in FORMS]


@pytest.mark.parametrize(("name", "form"), today(STORES, 4))
def test_a_round_trip_changes_nothing(tmp_path: Path, open_fixture: StoreOpener, name: str, form: str) -> None:
    source = open_fixture(name).path
    before, file, store = snapshot(source), tmp_path / f"export.{form}", tmp_path / "store"
    assert export(source, file).exit_code == 0
    assert file.stat().st_mode & 0o077 == 0
    result = bring(file, store)
    assert result.exit_code == 0, result.output
    assert held(store, tmp_path) == held(source, tmp_path)
    assert snapshot(source) == before
    # Once more, now from the new store's format: record ids too.
    again = tmp_path / f"again.{form}"
    assert export(store, again).exit_code == 0
    assert bring(again, tmp_path / "second", "-q").exit_code == 0
    assert held(tmp_path / "second", tmp_path, rids=True) == held(store, tmp_path, rids=True)
    old = dump(store, "--outstanding", "--json").lines()
    assert dump(tmp_path / "second", "--outstanding", "--json").lines() == old


def test_the_messages_of_a_dump_are_those_of_the_source(tmp_path: Path, dtx: StoreFixture) -> None:
    """In doubt, delivery state, order: as `qstore-dump` sees them."""
    assert export(dtx.path, tmp_path / "e.tar.zst").exit_code == 0
    assert bring(tmp_path / "e.tar.zst", tmp_path / "store").exit_code == 0
    shown = [
        [line | {"rid": 0} for line in dump(path, "--outstanding", "--json").lines()]
        for path in (dtx.path, tmp_path / "store")
    ]
    assert shown[0] == shown[1]
    assert sum(line["kind"] == "transaction" for line in shown[0]) == 3


def test_compressed_messages_are_exported_as_they_were(tmp_path: Path) -> None:
    store = make_store(tmp_path / "compressed")
    OpenedStore(tool_environment(), store).store.close()
    assert export(store, tmp_path / "e.tar.zst").exit_code == 0
    assert bring(tmp_path / "e.tar.zst", tmp_path / "store").exit_code == 0
    opened = OpenedStore(tool_environment(), tmp_path / "store")
    assert opened.recovered_data() == {"orders": MESSAGES}
    opened.store.close()
    assert held(tmp_path / "store", tmp_path) == held(store, tmp_path)


# ---- what is exported ----


def test_filters(tmp_path: Path, local: StoreFixture) -> None:
    everything = of_kind(held(local.path, tmp_path, rids=True), "message")
    queue = everything[0]["queue"]
    of_queue = [line for line in everything if line["queue"] == queue]
    assert 3 < len(of_queue) < len(everything)
    low, high = of_queue[1]["rid"], of_queue[-2]["rid"]

    def chosen(*options: object) -> list[int]:
        (tmp_path / "some.jsonl").unlink(missing_ok=True)
        result = export(local.path, tmp_path / "some.jsonl", *options)
        assert result.exit_code == 0, result.output
        return [line["rid"] for line in of_kind(lines_of(tmp_path / "some.jsonl"), "message")]

    assert chosen("--queue", queue) == [line["rid"] for line in of_queue]
    in_range = [line["rid"] for line in of_queue if low <= line["rid"] <= high]
    assert chosen("--queue", queue, "--rid", f"{low}..{high}") == in_range
    assert chosen("--no-messages") == []
    assert chosen("--selector", "sn IS NULL AND sn IS NOT NULL") == []
    assert chosen("--selector", "JMSDeliveryMode = 'PERSISTENT'") == [line["rid"] for line in everything]
    assert chosen("--since", "2100-01-01") == []
    assert of_kind(lines_of(tmp_path / "some.jsonl"), "queue")
    chosen("--no-topology", "--queue", queue)
    assert {line["kind"] for line in lines_of(tmp_path / "some.jsonl")} == {"export", "message", "end"}


def test_a_selection_by_time(tmp_path: Path) -> None:
    lines = simple_lines(count=4)
    for number, line in enumerate(lines[2:-1]):
        line["properties"] = {"timestamp": 1000 + number} if number else {}
    assert bring(write_lines(tmp_path / "in.jsonl", lines), tmp_path / "store", "--edited").exit_code == 0
    for options, bodies in {
        ("--since", "1002"): ["2", "3"],
        ("--until", "1970-01-01T00:16:42Z"): ["1", "2"],
        ("--since", "1001", "--until", "1001"): ["1"],
    }.items():
        file = tmp_path / ("-".join(options).replace(":", "") + ".jsonl")
        assert export(tmp_path / "store", file, *options).exit_code == 0
        assert [line["body"] for line in of_kind(lines_of(file), "message")] == bodies


def simple_lines(count: int = 2, queue: str = "q") -> list[dict[str, object]]:
    """Lines written by hand."""
    return [
        {"kind": "export", "format": "qstore-export", "version": 1},
        {"kind": "queue", "name": queue},
        *(
            {"kind": "message", "queue": queue, "routing_key": queue, "headers": {"n": number}, "body": str(number)}
            for number in range(count)
        ),
        {"kind": "end"},
    ]


def test_lines_written_by_hand(tmp_path: Path) -> None:
    lines = simple_lines(1)
    lines[2] |= {
        "priority": 7,
        "headers": {"text": "ä", "whole": 5, "small": 7, "bytes": "b", "list": [1, "x"], "none": None},
        "header_types": {"small": "uint8", "bytes": "vbin16"},
        "message_id": "12345678-1234-5678-1234-567812345678",
        "properties": {
            "content_type": "text/plain",
            "correlation_id": "c",
            "reply_to": {"exchange": "e", "routing_key": "k"},
        },
    }
    file = write_lines(tmp_path / "in.jsonl", lines)
    assert "does not have the content that its last line states" in bring(file, tmp_path / "s").output
    assert bring(file, tmp_path / "s", "--edited").exit_code == 0
    (message,) = of_kind(held(tmp_path / "s", tmp_path), "message")
    assert (message["priority"], message["delivery_mode"], message["body"]) == (7, 2, "0")
    assert message["headers"] == lines[2]["headers"]
    assert message["header_types"]["small"] == "uint8"
    assert message["header_types"]["bytes"] == "vbin16"
    assert message["message_id"] == lines[2]["message_id"]
    assert message["properties"].items() >= lines[2]["properties"].items()
    assert message["redelivered"] is False


def test_a_changed_field_is_never_ignored(tmp_path: Path, local: StoreFixture) -> None:
    assert export(local.path, tmp_path / "e.jsonl").exit_code == 0
    lines = lines_of(tmp_path / "e.jsonl")
    changed = next(line for line in lines if line["kind"] == "message")
    changed["routing_key"] = "another"
    file = write_lines(tmp_path / "changed.jsonl", lines)
    result = bring(file, tmp_path / "store", "--edited")
    assert result.exit_code == 2
    assert "routing_key does not agree with header_base64" in result.output
    del changed["header_base64"]
    write_lines(file, lines)
    assert bring(file, tmp_path / "store", "--edited").exit_code == 0
    assert of_kind(held(tmp_path / "store", tmp_path), "message")[0]["routing_key"] == "another"


# ---- where it goes ----


def test_names_are_mapped(tmp_path: Path, local: StoreFixture) -> None:
    assert export(local.path, tmp_path / "e.jsonl").exit_code == 0
    old = held(local.path, tmp_path)
    rules = ("--map", "c.*=eu.c.*", "--map", "exchange:*=x.*", "--map", "*=never")
    assert bring(tmp_path / "e.jsonl", tmp_path / "store", *rules).exit_code == 0
    new = held(tmp_path / "store", tmp_path)
    names = {line["name"] for line in of_kind(old, "queue")}
    assert {line["name"] for line in of_kind(new, "queue")} == {
        f"eu.{name}" if name.startswith("c.") else "never" for name in names
    }
    assert [line["body_sha256"] for line in of_kind(new, "message")] == [
        line["body_sha256"] for line in of_kind(old, "message")
    ]
    assert {line["name"] for line in of_kind(new, "exchange")} == {
        f"x.{line['name']}" for line in of_kind(old, "exchange")
    }


def test_names_are_mapped_only_to_such_as_a_broker_would_take(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "e.jsonl", simple_lines())
    result = bring(file, tmp_path / "store", "--edited", "--map", "q=" + "n" * 256)
    assert result.exit_code == 2
    assert "its name has 256 bytes, more than 255" in result.output
    assert not (tmp_path / "store").exists()


def test_messages_follow_those_that_a_queue_has(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for number, queue in enumerate(("q", "r", "q")):
        lines = simple_lines(2, queue)
        lines[2]["body"] = f"import {number}"
        result = bring(write_lines(tmp_path / f"{number}.jsonl", lines), store, "--edited")
        assert result.exit_code == 0, result.output
    messages = of_kind(held(store, tmp_path, rids=True), "message")
    assert [(line["queue"], line["body"]) for line in messages] == [
        ("q", "import 0"), ("q", "1"), ("q", "import 2"), ("q", "1"), ("r", "import 1"), ("r", "1"),
    ]  # fmt: skip
    assert len({line["rid"] for line in messages}) == 6


def test_an_import_takes_place_once(tmp_path: Path) -> None:
    file, store = write_lines(tmp_path / "e.jsonl", simple_lines()), tmp_path / "store"

    def run(*options: object) -> dict[str, object]:
        result = bring(file, store, "--edited", "--json", *options)
        assert result.exit_code == 0, result.output
        summary: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
        return summary

    assert run("--dry-run")["dry_run"] is True
    assert not store.exists()
    assert run()["imported"] is True
    again = run()
    assert (again["imported"], again["messages"]) == (False, 2)
    assert run("--again")["imported"] is True
    assert run("--again")["imported"] is True
    assert run("--map", "q=other")["imported"] is True
    assert run("--map", "q=other")["imported"] is False
    queues = [line["queue"] for line in of_kind(held(store, tmp_path), "message")]
    assert queues == ["q"] * 6 + ["other"] * 2
    before = snapshot(store)
    assert run("--again", "--dry-run")["imported"] is False
    assert snapshot(store) == before


@pytest.mark.parametrize(("outcome", "kept"), [("commit", "in-doubt-enqueue"), ("rollback", "in-doubt-dequeue")])
def test_branches_in_doubt_are_decided(tmp_path: Path, dtx: StoreFixture, outcome: str, kept: str) -> None:
    assert export(dtx.path, tmp_path / "e.parquet").exit_code == 0
    assert bring(tmp_path / "e.parquet", tmp_path / "store", "--in-doubt", outcome).exit_code == 0
    new, old = (held(path, tmp_path) for path in (tmp_path / "store", dtx.path))
    expected = [line["body_sha256"] for line in of_kind(old, "message") if line["state"] in ("outstanding", kept)]
    assert [line["body_sha256"] for line in of_kind(new, "message")] == expected
    assert {line["state"] for line in of_kind(new, "message")} == {"outstanding"}
    assert not of_kind(new, "transaction")


def test_all_kinds_of_topology(tmp_path: Path) -> None:
    odd = TypedMap((("twice", typed_value(1)), ("twice", typed_value(2))))
    every = typed_map(
        {"text": "ä", "octets": b"\xff\0", "float": 1.0, "map": typed_map({"a": [1, None]}), "nan": float("inf")}
    )
    with StoreImport(tool_environment(), str(tmp_path / "store"), "test") as work:
        work.intake.exchange(Exchange("e", True, "headers", every, "alternate", None))
        work.intake.queue(Queue("q\udcff\\x", typed_map({"qpid.max_count": 5, "octets": b"x"}), "e", "owner", True))
        work.intake.queue(Queue("odd", odd))
        work.intake.binding("e", Binding(0, "q\udcff\\x", "k", odd))
        work.intake.binding("e", Binding(0, "odd", "k", typed_map({"x-match": "all", "y": 2})))
        work.intake.other(Link("link.v2", "l", "host", 5672, "tcp", True, "PLAIN", "user", "secret"))
        work.apply(work.plan(), "made")
    for form in FORMS:
        target = tmp_path / f"store-{form}"
        assert export(tmp_path / "store", tmp_path / f"e.{form}", "--with-passwords").exit_code == 0
        assert bring(tmp_path / f"e.{form}", target).exit_code == 0
        assert held(target, tmp_path) == held(tmp_path / "store", tmp_path)
    assert b"secret" in (tmp_path / "e.jsonl").read_bytes()
    assert export(tmp_path / "store", tmp_path / "safe.jsonl").exit_code == 0
    assert b"secret" not in (tmp_path / "safe.jsonl").read_bytes()


# ---- what is refused ----


def test_contradictory_import_is_refused_and_changes_nothing(tmp_path: Path, dtx: StoreFixture) -> None:
    store = tmp_path / "store"
    assert export(dtx.path, tmp_path / "e.jsonl").exit_code == 0
    assert bring(tmp_path / "e.jsonl", store).exit_code == 0
    before = held(store, tmp_path, rids=True)
    for lines, text in (
        ([{"kind": "exchange", "name": "new", "type": "topic"}, {"kind": "message", "queue": "gone"}], "no such queue"),
        ([{"kind": "exchange", "name": "x" * 300, "type": "topic"}], "this exchange is not valid"),
        ([{"kind": "message", "queue": "d.q1", "state": "in-doubt-enqueue"}], "lacks an xid"),
        ([{"kind": "queue", "name": ""}], "without a name"),
    ):
        write_lines(tmp_path / "bad.jsonl", [*simple_lines()[:1], *lines])
        result = bring(tmp_path / "bad.jsonl", store, "--edited")
        assert result.exit_code == 2
        assert text in result.output
        assert result.output.count("\n") == 1
        assert held(store, tmp_path, rids=True) == before
    result = bring(tmp_path / "e.jsonl", store, "--again")
    assert result.exit_code == 2
    assert "is in the store already: resolve it first; nothing was changed" in result.output
    assert held(store, tmp_path, rids=True) == before


def test_stores_that_are_not_for_it(tmp_path: Path, local: StoreFixture) -> None:
    file = write_lines(tmp_path / "e.jsonl", simple_lines())
    result = bring(file, local.path, "--edited")
    assert result.exit_code == 2
    assert "this is qpidd's store (version 1): convert it first" in result.output
    assert "no such directory; create it first" in bring(file, tmp_path / "no" / "store", "--edited").output
    file = tmp_path / "there.jsonl"
    file.touch()
    result = export(local.path, file)
    assert (result.exit_code, file.read_bytes()) == (2, b"")
    assert "exists; choose another name" in result.output
