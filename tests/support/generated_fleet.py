"""Fleets that `qstore-generate` makes for tests, and the other tools' view of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner, Result

from qstore.tools.generate.fleet import FleetSpec
from qstore.tools.generate.make import make_store
from qstore.tools.qstore_generate import command
from tests.support.dump import Dump, Line, dump
from tests.support.planted_damage import check

_OF_MESSAGE: Final = ("queue", "rid", "state", "xid", "message_id", "body_length")
_OF_TRANSACTION: Final = ("xid", "state", "enqueues", "dequeues")


def generate(*arguments: str | Path) -> Result:
    """Run the command in this process. An exception that it lets out is raised here."""
    return CliRunner().invoke(command, list(map(str, arguments)), catch_exceptions=False)


def make(spec: FleetSpec, directory: Path) -> tuple[Path, list[Line]]:
    """The first store of a fleet, made in `directory`, and the lines of its list."""
    directory.mkdir()
    store = make_store(spec, str(directory), 1)
    return directory / store["name"], listed(directory / store["name"])


def listed(store: Path, kind: str | None = None) -> list[Line]:
    """The lines of a store's list, those of one kind only if asked."""
    lines = [json.loads(line) for line in Path(f"{store}.jsonl").read_bytes().splitlines()]
    return [line for line in lines if kind in (None, line["kind"])]


def assert_as_listed(store: Path) -> Dump:
    """A store is undamaged, and what a restart would deliver of it is what its list says. Returns the dump."""
    checked = check("--paranoid", store)
    assert checked.code == 0, checked.lines("damage")
    shown = dump(store, "--outstanding", "--json")
    assert shown.code == 0, shown.errors
    assert [_pick(line, _OF_MESSAGE) for line in shown.lines("message")] == [
        _pick(line, _OF_MESSAGE) for line in listed(store, "message")
    ]
    assert sorted(_pick(line, _OF_TRANSACTION) for line in shown.lines("transaction")) == sorted(
        _pick(line, _OF_TRANSACTION) for line in listed(store, "transaction")
    )
    messages = shown.lines("message")
    for queue in listed(store, "queue"):
        states = [line["state"] for line in messages if line["queue"] == queue["name"]]
        names = ("outstanding", "in-doubt-enqueue", "in-doubt-dequeue")
        fields = ("outstanding", "in_doubt_enqueues", "in_doubt_dequeues")
        assert [queue[field] for field in fields] == [states.count(name) for name in names]
        assert sum(queue[field] for field in fields) == queue["sent"] - queue["taken"] - queue["rolled_back"]
    return shown


def unseen(store: Path) -> list[Line]:
    """The planted damages that `qstore-check` does not report in the journal, or at the file, where they are."""
    checked = check(store)
    damaged = {line["queue"] for line in checked.lines("journal") if line["damage"]}
    names = {Path(line["file"]).name for line in checked.lines("damage")}
    planted = [line for line in listed(store, "damage") if line["expected"] == "damage"]
    assert not planted or checked.code == 1
    return [line for line in planted if line["queue"] not in damaged and Path(line["file"]).name not in names]


def _pick(line: Line, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(line[name] for name in names)
