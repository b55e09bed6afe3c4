"""Damage planted in copies of stores that qpidd wrote: in Berkeley DB files, in whole pages, and whole journals."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final

import pytest

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.rhm.geometry import BLOCK_SIZE, PAGE_SIZE
from tests.support.dump import Dump, Line, dump
from tests.support.fixtures import CopyFactory, CopyOpener, needs_recovery
from tests.support.linear_builder import LinearBuilder
from tests.support.planted_damage import check
from tests.support.profiles import today


@dataclass(frozen=True)
class Kind:
    """Where a kind of store has its parts."""

    name: str
    database: str
    journals: str
    header_size: int


KINDS: Final = [Kind("legacy", "rhm/dat", "rhm/jrnl", 512), Kind("linear", "qls/dat2", "qls/jrnl2", 4096)]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])


@dataclass(frozen=True)
class Examined:
    """What the two commands say of a store."""

    path: Path
    checked: Dump
    shown: Dump

    @property
    def damage(self) -> list[tuple[str, int | None, str, str]]:
        """File below the store directory, offset and texts of each damage; the same with --paranoid."""
        lines = self.checked.lines("damage")
        assert lines == check("--paranoid", self.path).lines("damage")
        assert self.checked.code == bool(lines)
        prefix = f"{self.path}/"
        return [
            (line["file"].removeprefix(prefix), line["offset"], line["what"], line["consequence"]) for line in lines
        ]

    @cached_property
    def messages(self) -> dict[tuple[str, int], Line]:
        """The message lines by queue and record id."""
        return {(line["queue"], line["rid"]): line for line in self.shown.lines("message")}

    def count(self, kind: str) -> int:
        """How many lines of one kind the dump has."""
        return len(self.shown.lines(kind))


def examined(path: Path) -> Examined:
    return Examined(path, check(path), dump(path, "--outstanding", "--json"))


@cache
def examined_once(path: Path) -> Examined:
    """A store that is not changed."""
    return examined(path)


# ---- Berkeley DB files ----


def cut(size: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:size]


def zeros(start: int, end: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:start] + bytes(end - start) + content[end:]


def flipped(offset: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :]


DATABASES: Final = [
    ("queues", zeros(4096, 8192), 4104, "page 1 has the page number 0"),
    ("queues", flipped(4096 + 8), 4104, "page 1 has the page number 0"),
    ("queues", flipped(12), 12, "the magic number is 0x00053163"),
    ("queues", flipped(20), 20, "the page size is 4097"),
    ("queues", flipped(4096 + 24), 4120, "page 1 of type LEAF is on level 0"),
    ("queues", cut(4096), 88, "page 1 is outside the file"),
    ("queues", cut(0), 0, "0 bytes are too short"),
    ("exchanges", zeros(4096, 8192), 4104, "page 1 has the page number 0"),
    ("exchanges", flipped(4096 + 26), 8181, "a reference extends beyond page 1"),
    ("bindings", zeros(4096, 8192), 4104, "page 1 has the page number 0"),
    ("general", flipped(12), 12, "the magic number is 0x00053163"),
]


@needs_recovery
@each_kind
@pytest.mark.parametrize(
    ("table", "change", "offset", "what"), [pytest.param(*row, id=f"{row[0]}-{row[2]}") for row in today(DATABASES, 4)]
)
def test_a_database_file(
    kind: Kind, table: str, change: Callable[[bytes], bytes], offset: int, what: str, copies: CopyOpener
) -> None:
    """It is named, and nothing is missing: the log of these stores has all that was ever written."""
    factory = copies(f"{kind.name}-a-clean")
    sound = examined_once(factory.source.path)
    assert sound.damage == []
    with factory.copy() as copy:
        file = copy.path / kind.database / f"{table}.db"
        copy.replace(file, change(file.read_bytes()))
        found = examined(copy.path)
        (damage,) = found.damage
    assert damage[:2] == (f"{kind.database}/{table}.db", offset)
    assert what in damage[2]
    assert damage[3] == "no data loss: its content is read from the log"
    for each in ("message", "queue", "exchange", "binding"):
        assert found.shown.lines(each) == sound.shown.lines(each)


@needs_recovery
@each_kind
@pytest.mark.parametrize("table", ["queues", "exchanges", "bindings", "general"])
def test_a_database_file_that_is_missing(kind: Kind, table: str, copies: CopyOpener) -> None:
    """Likewise."""
    factory = copies(f"{kind.name}-a-clean")
    sound = examined_once(factory.source.path)
    with factory.copy() as copy:
        (copy.path / kind.database / f"{table}.db").unlink()
        found = examined(copy.path)
        expected = (
            f"{kind.database}/{table}.db",
            None,
            "there is no such file",
            "no data loss: its content is read from the log",
        )
        assert found.damage == [expected]
    for each in ("message", "queue", "exchange", "binding"):
        assert found.shown.lines(each) == sound.shown.lines(each)


@each_kind
@pytest.mark.parametrize("name", ["a-clean", "c-localtx"])
def test_the_log_is_missing(kind: Kind, name: str, copies: CopyOpener) -> None:
    """What stood only in the log is lost, which in the second store is everything: no message is."""
    factory = copies(f"{kind.name}-{name}")
    sound = examined_once(factory.source.path)
    with factory.copy() as copy:
        (copy.path / kind.database / "log.0000000001").unlink()
        found = examined(copy.path)
        (damage,) = found.damage
    assert damage[:2] == (kind.database, None)
    assert "log files (log.*) are missing" in damage[2]
    assert damage[3] == "the queues are taken from the catalogue and from the journals"
    assert found.messages == sound.messages
    assert (found.count("exchange") < sound.count("exchange")) == (name == "c-localtx")


@each_kind
def test_a_log_that_is_damaged(kind: Kind, copies: CopyOpener) -> None:
    factory = copies(f"{kind.name}-c-localtx")
    sound = examined_once(factory.source.path)
    with factory.copy() as copy:
        log = copy.path / kind.database / "log.0000000001"
        copy.replace(log, flipped(1000)(log.read_bytes()))
        found = examined(copy.path)
        (damage,) = found.damage
    assert damage[:2] == (f"{kind.database}/log.0000000001", 95)
    assert "later log entries were not used" in damage[2]
    assert found.messages == sound.messages
    assert found.count("exchange") == 0


@each_kind
def test_without_any_catalogue_the_journals_are_the_queues(kind: Kind, copies: CopyOpener) -> None:
    """Journals alone may have been copied: a notice says so, and it is not damage."""
    factory = copies(f"{kind.name}-c-localtx")
    sound = examined_once(factory.source.path)
    with factory.copy() as copy:
        shutil.rmtree(copy.path / kind.database)
        found = examined(copy.path)
        assert found.damage == []
    assert [line["text"] for line in found.checked.lines("notice")] == [
        f"{found.path}: no catalogue here; queue names are taken from the journals"
    ]
    assert found.messages == sound.messages


@each_kind
def test_a_stale_binding_is_not_damage(kind: Kind, copies: CopyOpener) -> None:
    """Here its exchange's id is another; a deletion that was cut short leaves the same."""
    factory = copies(f"{kind.name}-a-clean")
    sound = examined_once(factory.source.path)
    with factory.copy() as copy:
        file = copy.path / kind.database / "bindings.db"
        copy.replace(file, flipped(8190)(file.read_bytes()))
        found = examined(copy.path)
        assert found.damage == []
    notices = [line["text"] for line in found.checked.lines("notice")]
    assert len(notices) == sound.count("binding") - found.count("binding") == 2
    assert all(notice.startswith('stale binding of queue "fx.bound"') for notice in notices)
    assert found.messages == sound.messages


# ---- journals without a queue, and the reverse ----


def test_a_queue_whose_journal_is_gone(copies: CopyOpener) -> None:
    factory = copies("legacy-c-localtx")
    sound = examined_once(factory.source.path)
    with factory.copy() as copy:
        shutil.rmtree(copy.path / "rhm/jrnl/0004")
        found = examined(copy.path)
        (damage,) = found.damage
        assert damage == (str(copy.path), None, 'queue "c.q1" has no journal', "its messages are lost")
    assert found.messages == {key: line for key, line in sound.messages.items() if key[0] != "c.q1"}
    assert {line["name"] for line in found.shown.lines("queue")} == {"c.q1", "c.q2"}


def test_a_prepared_list_of_zeros(copies: CopyOpener) -> None:
    """qpidd writes to it with the first transaction that it commits, and journals hold commits."""
    factory = copies("legacy-c-localtx")
    sound = examined_once(factory.source.path)
    with factory.copy() as copy:
        for file in list((copy.path / "rhm/tpl").glob("*.jdat")):
            copy.replace(file, bytes(file.stat().st_size))
        found = examined(copy.path)
        ((file, _, what, consequence),) = found.damage
    assert (file, what) == (
        "rhm/tpl",
        "the transaction prepared list was never written to, but journals hold transactions",
    )
    assert "treated as never prepared" in consequence
    assert found.messages == sound.messages


def test_a_linear_queue_whose_directory_is_gone(copies: CopyOpener) -> None:
    """The files are still in the pool, and name their queue."""
    factory = copies("linear-c-localtx")
    sound = examined_once(factory.source.path)
    with factory.copy() as copy:
        (link,) = (copy.path / "qls/jrnl2/c.q1").iterdir()
        shutil.rmtree(copy.path / "qls/jrnl2/c.q1")
        found = examined(copy.path)
        (damage,) = found.damage
    assert damage[:3] == (
        f"qls/p001/efp/512k/in_use/{link.name}",
        None,
        "the journal's directory has no link to this file",
    )
    assert damage[3].startswith("the file is read at its position in the journal")
    assert found.messages == sound.messages


@each_kind
@pytest.mark.parametrize("is_empty", [False, True], ids=["with messages", "empty"])
def test_a_journal_whose_queue_was_deleted(kind: Kind, is_empty: bool, copies: CopyOpener) -> None:
    """With messages in it that is a loss, and they can be seen by naming the directory; an empty one is not damage."""
    factory = copies(f"{kind.name}-c-localtx")
    sound = examined_once(factory.source.path)
    with factory.copy() as copy:
        orphan = _legacy_orphan(copy.path, is_empty) if kind.name == "legacy" else _linear_orphan(copy.path, is_empty)
        found = examined(copy.path)
        what = 'journal of queue "c.q9", which is not in the catalogue'
        if is_empty:
            assert found.damage == []
            notices = [line["text"] for line in found.checked.lines("notice")]
            assert notices == [f"{orphan}: {what}; it is empty and omitted"]
        else:
            (damage,) = found.damage
            assert damage[:2] == (str(orphan.relative_to(copy.path)), None)
            assert damage[2].startswith(f"{what}, holds ")
            assert damage[3] == "the messages are omitted; pass the directory itself to see them"
            assert f"holds {examined(orphan).count('message')} message" in damage[2]
    assert found.messages == sound.messages


def _legacy_orphan(path: Path, is_empty: bool) -> Path:
    orphan = path / "rhm/jrnl/0009/c.q9"
    shutil.copytree(path / "rhm/jrnl/0004/c.q1", orphan)
    info = orphan / "JournalData.jinf"
    info.write_bytes(info.read_bytes().replace(b'"c.q1"', b'"c.q9"'))
    for file in orphan.glob("*.jdat") if is_empty else ():
        file.write_bytes(bytes(file.stat().st_size))
    return orphan


def _linear_orphan(path: Path, is_empty: bool) -> Path:
    builder = LinearBuilder("c.q9", 64)
    builder.enqueue(77, encode_message(b"left"))
    if is_empty:
        builder.dequeue(78, 77)
    builder.flush()
    return builder.write(path)


# ---- a whole page ----


@each_kind
@pytest.mark.parametrize("queue", ["b.q1", "b.q2"])
def test_a_zeroed_page(kind: Kind, queue: str, copies: CopyOpener) -> None:
    """Just what stood in the page is lost, and what was dequeued there is back."""
    factory = copies(f"{kind.name}-b-crash1")
    sound = examined_once(factory.source.path)
    file, start = _page_of(factory, kind, queue)
    end = start + PAGE_SIZE
    records = [
        line
        for line in dump(factory.source.path, "--json", "--queue", queue).lines("record")
        if line["file"].endswith(file) and line["offset"] < end and line["offset"] + line["size"] > start
    ]
    gone = {line["rid"] for line in records if line["type"] == "enqueue"}
    dequeued = {line["dequeued_rid"] for line in records if line["type"] == "dequeue"}
    assert gone
    with factory.copy() as copy:
        copy.replace(copy.path / file, zeros(start, end)((copy.path / file).read_bytes()))
        found = examined(copy.path)
        first = min(line["offset"] for line in records)
        damage = found.damage
    assert damage[0][:2] == (file, first)
    assert len(damage) == 1
    blocks, up_to = damage[0][3].split(" blocks, up to ")
    assert first + int(blocks) * BLOCK_SIZE == int(up_to.split(",")[0], 16) >= end
    before, after = set(sound.messages), set(found.messages)
    assert before - after == {(queue, rid) for rid in gone} & before
    assert after - before == {(queue, rid) for rid in dequeued - gone} - before
    assert all(found.messages[key] == sound.messages[key] for key in before & after)


def _page_of(factory: CopyFactory, kind: Kind, queue: str) -> tuple[str, int]:
    """The second page of the data of a queue's first file."""
    first = dump(factory.source.path, "--json", "--queue", queue, "--type", "enqueue").lines("record")[0]["file"]
    return str(Path(first).relative_to(factory.source.path)), kind.header_size + PAGE_SIZE
