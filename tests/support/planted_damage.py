"""Stores with known content, copies of them with damage planted, and what `qstore-check` and `qstore-dump` make of it.

A `Plant` is damage with all that must follow from it: what is reported, and which messages and transactions change.
What is not named must not change, and nothing else may be reported.

The content is one history, told to the journals of a store in any format; its records have names:

orders     everything that was ever written is still there
    first … seventh, ninth, tenth      plain messages; `second` and `seventh` are taken by plain dequeues
    local put, local take (first)      a local transaction that was committed
    aborted put, aborted take (third)  one that was aborted
    branch put, branch take (fourth)   a distributed branch in doubt
    decided put, decided take (fifth)  a branch that is to commit: that was decided, and not carried out
    open put, open take (sixth)        a transaction that was never prepared
bills      a ring that went round, or a line whose head was given back; `bill 34` to `bill 39` are left
prepared   the transaction prepared list
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from click.testing import CliRunner

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.broker_records.xids import encode_dtx_xid
from qstore.formats.qls.file_header import FILE_HEADER_SIZE as LINEAR_HEADER_SIZE
from qstore.formats.rhm.geometry import BLOCK_SIZE, FILE_HEADER_SIZE, Geometry
from qstore.formats.rhm.jinf import TPL_BASE_NAME
from qstore.formats.rhm.records import COMMIT_DECISION
from qstore.tools.generate import damage as planting
from qstore.tools.qstore_check import command
from tests.support.dump import Dump, Line, dump
from tests.support.journal_builder import JournalBuilder, StoreBuilder
from tests.support.linear_builder import TPL_QUEUE, LinearBuilder, add_pooled_files
from tests.support.profiles import today_of_each

BODY: Final = 200  # characters: with header and tail such a message takes three blocks
BILLS: Final = 40  # messages that went through `bills` ...
UNPAID: Final = 6  # ... of which so many were left at any time
XIDS: Final = {
    "local": b"\1" + bytes(7) + b"uuid of process ",
    "aborted": b"\2" + bytes(7) + b"uuid of process ",
    "open": b"\3" + bytes(7) + b"uuid of process ",
    "closing": b"\4" + bytes(7) + b"uuid of process ",
    "branch": encode_dtx_xid(9, b"gid", b"branch"),
    "decided": encode_dtx_xid(9, b"gid", b"decided"),
}
OUTSTANDING, IN_DOUBT_PUT, IN_DOUBT_TAKE = "outstanding", "in-doubt-enqueue", "in-doubt-dequeue"
IN_DOUBT, COMMITTING, ABORTING, UNPREPARED = "in-doubt", "committing", "aborting", "unprepared"


class Record(Protocol):
    """A record as any builder places it."""

    @property
    def header(self) -> Any: ...

    @property
    def position(self) -> int: ...


class Builder(Protocol):
    """What the builders of all formats can do."""

    def enqueue(self, *, data: bytes, rid: int, xid: bytes) -> Record: ...
    def dequeue(self, *, dequeued_rid: int, rid: int, xid: bytes, flags: int) -> Record: ...
    def commit(self, *, xid: bytes, rid: int) -> Record: ...
    def abort(self, *, xid: bytes, rid: int) -> Record: ...
    def flush(self) -> None: ...
    def place(self, position: int) -> tuple[int, int]: ...


class History:
    """One journal, and its history.

    Attributes:
        builder: the journal.
        queue: whose it is.
        records: name -> record.
        messages: the names of those that are messages.
        bodies: record id -> body of the message.
    """

    def __init__(self, builder: Any, queue: str, rids: Iterator[int]) -> None:
        self.builder: Builder = builder
        self.queue = queue
        self.records: dict[str, Record] = {}
        self.messages: list[str] = []
        self.bodies: dict[int, str] = {}
        self._rids = rids

    def put(self, name: str, *, xid: bytes = b"", size: int = BODY) -> None:
        """A message is enqueued; its body has its name."""
        body = f"{self.queue}: {name} ".ljust(size, ".")
        properties = {"routing_key": self.queue, "delivery_mode": 2}
        data = encode_message(body.encode(), destination="amq.direct", delivery_properties=properties)
        placed = self._write(name, self.builder.enqueue(data=data, rid=next(self._rids), xid=xid))
        self.messages.append(name)
        self.bodies[placed.header.rid] = body

    def prepare(self, name: str, xid: bytes, *, two_phase: bool) -> None:
        """The prepared list's enqueue."""
        self._write(name, self.builder.enqueue(data=bytes([two_phase]), rid=next(self._rids), xid=xid))

    def take(self, name: str, target: str, *, xid: bytes = b"", flags: int = 0) -> None:
        """What was enqueued as `target` is dequeued."""
        rid = self.records[target].header.rid
        self._write(name, self.builder.dequeue(dequeued_rid=rid, rid=next(self._rids), xid=xid, flags=flags))

    def commit(self, name: str, xid: bytes) -> None:
        self._write(name, self.builder.commit(xid=xid, rid=next(self._rids)))

    def abort(self, name: str, xid: bytes) -> None:
        self._write(name, self.builder.abort(xid=xid, rid=next(self._rids)))

    def _write(self, name: str, placed: Record) -> Record:
        self.records[name] = placed
        self.builder.flush()
        return placed


def tell(orders: History, bills: History, prepared: History, *, count: int = BILLS, large: int = 600) -> None:
    """Write the history of the module's docstring, up to that many bills; each fourth is so much larger."""

    def transaction(name: str, target: str, *, two_phase: bool = False, decision: int | None = None) -> None:
        xid = XIDS[name]
        orders.put(f"{name} put", xid=xid)
        orders.take(f"{name} take", target, xid=xid)
        if name != "open":
            prepared.prepare(f"{name} prepare", xid, two_phase=two_phase)
        if decision is not None:
            prepared.take(f"{name} decide", f"{name} prepare", xid=xid, flags=decision)

    for name in ("first", "second", "third", "fourth", "fifth", "sixth"):
        orders.put(name)
    orders.take("take second", "second")
    transaction("local", "first", decision=COMMIT_DECISION)
    orders.commit("local commit", XIDS["local"])
    prepared.commit("local done", XIDS["local"])
    transaction("aborted", "third", decision=0)
    orders.abort("aborted abort", XIDS["aborted"])
    prepared.abort("aborted done", XIDS["aborted"])
    orders.put("seventh")
    orders.put("eighth")
    transaction("branch", "fourth", two_phase=True)
    transaction("decided", "fifth", two_phase=True, decision=COMMIT_DECISION)
    transaction("open", "sixth")
    orders.take("take seventh", "seventh")
    transaction("closing", "eighth", decision=COMMIT_DECISION)
    orders.commit("closing commit", XIDS["closing"])
    prepared.commit("closing done", XIDS["closing"])
    orders.put("ninth")
    orders.put("tenth")
    for number in range(count):
        bills.put(f"bill {number}", size=BODY + large * (number % 4 == 0) + 2048 * (number == 0))
        if number >= UNPAID:
            bills.take(f"paid {number - UNPAID}", f"bill {number - UNPAID}")


#: What the history leaves: name of a message or transaction -> its state.
LEFT: Final = {
    **dict.fromkeys(("third", "sixth", "local put", "decided put", "closing put", "ninth", "tenth"), OUTSTANDING),
    "fourth": IN_DOUBT_TAKE,
    "branch put": IN_DOUBT_PUT,
    **{f"bill {number}": OUTSTANDING for number in range(BILLS - UNPAID, BILLS)},
    "branch": IN_DOUBT,
    "decided": COMMITTING,
    "open": UNPREPARED,
}


# ---- stores ----


class Spot(NamedTuple):
    """A file, or directory, below the store, and an offset in it."""

    file: str
    offset: int | None


@dataclass(frozen=True)
class Original:
    """An undamaged store.

    Attributes:
        path: its directory.
        histories: "orders", "bills" and "prepared".
        files: of each the files, in the order of their numbers, below `path`.
        header_size, data_size: bytes of a file's header and, of each journal, of its data area.
    """

    path: Path
    histories: Mapping[str, History]
    files: Mapping[str, Sequence[str]]
    header_size: int
    data_sizes: Mapping[str, int]

    @cached_property
    def before(self) -> Mapping[tuple[str, int], Line]:
        """The message lines of `qstore-dump`, by queue and record id."""
        lines = dump(self.path, "--outstanding", "--json").lines("message")
        return {(line["queue"], line["rid"]): line for line in lines}

    def history_of(self, record: str) -> tuple[str, History]:
        """The journal in which a record is."""
        (found,) = [(name, history) for name, history in self.histories.items() if record in history.records]
        return found

    def spot(self, record: str, at: int = 0) -> Spot:
        """Byte `at` of a record, which may go on in another file."""
        journal, history = self.history_of(record)
        number, offset = history.builder.place(history.records[record].position + at)
        return Spot(self.files[journal][number], offset)

    def copy(self, path: Path) -> Planted:
        """A private copy; what is not damaged in it is shared."""
        shutil.copytree(self.path, path, copy_function=os.link, symlinks=True)
        return Planted(self, path)


@dataclass(frozen=True)
class Planted:
    """A private copy of a store, to be damaged."""

    original: Original
    path: Path

    def read(self, file: str) -> bytearray:
        return bytearray((self.path / file).read_bytes())

    def write(self, file: str, content: bytes | bytearray) -> None:
        """Give a file another content; the original keeps its own."""
        (self.path / file).unlink(missing_ok=True)
        (self.path / file).write_bytes(content)

    def own(self, file: str) -> Path:
        """The path of a file that is this copy's alone, so that it may be damaged."""
        self.write(file, self.read(file))
        return self.path / file

    def patch(self, spot: Spot, content: bytes) -> None:
        """Overwrite bytes of a file."""
        assert spot.offset is not None
        planting.patch(self.own(spot.file), spot.offset, content)

    def flip(self, spot: Spot, mask: int = 1) -> None:
        assert spot.offset is not None
        planting.flip(self.own(spot.file), spot.offset, mask)

    def remove(self, name: str) -> None:
        """Remove a file, a link, or a directory with all that is in it."""
        path = self.path / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


# ---- what is planted, and what must follow ----

Where = str | tuple[str, int] | tuple[str, int, int | None] | Spot


class Finding(NamedTuple):
    """A damage that must be reported.

    Attributes:
        where: a record's name, or that and an offset in it; a journal, the number of a file and an offset in that; or a
            spot.
        what, consequence: parts of the two texts.
    """

    where: Where
    what: str
    consequence: str


@dataclass(frozen=True)
class Plant:
    """Damage, and what must follow.

    Attributes:
        name: what it is.
        do: plants it.
        findings: what must be reported, in any order, and nothing else.
        changes: name of a message or transaction -> its new state, None where it is lost; nothing else changes.
        careful: what is reported with --paranoid besides.
        spoiled: messages that are shown, and not as they were.
        notice: part of a notice.
    """

    name: str
    do: Callable[[Planted], None]
    findings: Sequence[Finding] = ()
    changes: Mapping[str, str | None] = field(default_factory=dict)
    careful: Sequence[Finding] = ()
    spoiled: Sequence[str] = ()
    notice: str = ""

    def __str__(self) -> str:
        return self.name


def spot_of(original: Original, where: Where) -> Spot:
    """The place that `where` means."""
    if isinstance(where, Spot):
        return where
    if isinstance(where, str):
        return original.spot(where)
    if len(where) == 2:
        return original.spot(*where)
    return Spot(original.files[where[0]][where[1]], where[2])


def flip(where: Where, mask: int = 1) -> Callable[[Planted], None]:
    """Plants flipped bits."""
    return lambda planted: planted.flip(spot_of(planted.original, where), mask)


#: One flipped bit: its name, the byte, the bit, the offset that is told, and parts of the texts; {} is the kind.
Row = tuple[str, int, int, int, str, str]
SKIPPED: Final = "skipped; reading continues after"


def flips(record: str, kind: str, rows: Sequence[Row], changes: Mapping[str, str | None]) -> Iterator[Plant]:
    """One plant for each row, with the same changes."""
    for name, at, mask, reported, what, consequence in rows:
        finding = Finding((record, reported), what.format(kind), consequence)
        yield Plant(f"{record}: {name}", flip((record, at), mask), [finding], changes)


def flips_of_the_day(plants: Sequence[Plant]) -> list[Plant]:
    """Of each field that is damaged in many records, or in many files' headers, a quarter of them."""
    return today_of_each(plants, lambda plant: plant.name.partition(": ")[2] or plant.name, 4)


def zero(where: Where, count: int) -> Callable[[Planted], None]:
    """Plants zeros."""
    return lambda planted: planted.patch(spot_of(planted.original, where), bytes(count))


def copy_record(source: str, target: str) -> Callable[[Planted], None]:
    """Plants a whole record in another one's place."""

    def do(planted: Planted) -> None:
        records = [planted.original.history_of(name)[1].records[name] for name in (source, target)]
        size: int = records[0].header.size
        assert size == records[1].header.size
        at = planted.original.spot(source)
        assert at.offset is not None
        planted.patch(planted.original.spot(target), planted.read(at.file)[at.offset : at.offset + size])

    return do


def overwrite(source: tuple[str, int], target: tuple[str, int]) -> Callable[[Planted], None]:
    """Copies one file over another."""

    def do(planted: Planted) -> None:
        files = planted.original.files
        planting.replace_with(planted.own(files[target[0]][target[1]]), planted.path / files[source[0]][source[1]])

    return do


def remove(journal: str, number: int) -> Callable[[Planted], None]:
    """Removes one file of a journal."""
    return lambda planted: planted.remove(planted.original.files[journal][number])


def exchange(one: tuple[str, int], other: tuple[str, int]) -> Callable[[Planted], None]:
    """Exchanges the contents of two files, each given by its journal and number."""

    def do(planted: Planted) -> None:
        names = [planted.original.files[journal][number] for journal, number in (one, other)]
        contents = [planted.read(name) for name in names]
        planted.write(names[0], contents[1])
        planted.write(names[1], contents[0])

    return do


def lost(*names: str) -> dict[str, str | None]:
    """These messages are lost."""
    return dict.fromkeys(names)


def back(*names: str) -> dict[str, str | None]:
    """These messages are delivered again."""
    return dict.fromkeys(names, OUTSTANDING)


def resize(journal: str, number: int, size: int) -> Callable[[Planted], None]:
    """Cuts a file off, or makes it longer."""

    def do(planted: Planted) -> None:
        planting.resize(planted.own(planted.original.files[journal][number]), size)

    return do


# ---- what is made of it ----


def check(*arguments: str | os.PathLike[str]) -> Dump:
    """Run `qstore-check --json` in this process. An exception that it lets out is raised here."""
    result = CliRunner().invoke(command, ["--json", *map(os.fspath, arguments)], catch_exceptions=False)
    return Dump(result.exit_code, result.stdout_bytes, result.stderr_bytes)


def examine(original: Original, plant: Plant, path: Path) -> None:
    """Plant the damage in a copy at `path`, and assert that all of `plant` is found, and nothing else."""
    planted = original.copy(path)
    plant.do(planted)
    checked, careful = check(path), check("--paranoid", path)
    assert_findings(planted, checked, plant.findings)
    assert_findings(planted, careful, [*plant.findings, *plant.careful])
    if plant.notice:
        assert any(plant.notice in line["text"] for line in checked.lines("notice")), checked.lines("notice")
    shown = dump(path, "--outstanding", "--json")
    of_dump = [line for line in shown.lines("damage") if "message header cannot" not in line["what"]]
    assert [line for line in of_dump if line not in checked.lines("damage")] == []
    expected = {**LEFT, **plant.changes}
    assert states(original, shown, plant.spoiled) == {
        name: state for name, state in expected.items() if state is not None
    }


def assert_findings(planted: Planted, checked: Dump, findings: Sequence[Finding]) -> None:
    """The damage that was reported is what should be: each at its file and offset, with its texts, and no other."""
    found = checked.lines("damage")
    prefix = f"{planted.path}/"
    reported = [f"{line['file'].removeprefix(prefix)} {line['offset']} {line['what']}" for line in found]
    assert len(found) == len(findings), reported
    for finding in findings:
        file, offset = spot_of(planted.original, finding.where)
        fitting = [
            line
            for line in found
            if (line["file"], line["offset"]) == (str(planted.path / file), offset)
            and finding.what in line["what"]
            and finding.consequence in line["consequence"]
        ]
        assert len(fitting) == 1, (finding, found)
        assert_skip_adds_up(planted.original, file, fitting[0])
    assert checked.code == (1 if findings else 0)
    (store,) = checked.lines("store")
    assert store["damage"] == len(findings)


def assert_skip_adds_up(original: Original, file: str, damage: Line) -> None:
    """Where blocks are skipped, as many lie between the damage and the reported place."""
    skipped = re.match(
        r"([\d,]+) blocks?, up to 0x([0-9a-f]+)(?: of file (\d+))?, (?:is|are) skipped", damage["consequence"]
    )
    if skipped is None:
        return
    (journal,) = [name for name, files in original.files.items() if file in files]
    blocks, end = int(skipped[1].replace(",", "")), int(skipped[2], 16)
    size = original.data_sizes[journal]
    distance = end - damage["offset"]
    if skipped[3] is not None:
        distance += size  # it goes on in another file; no test skips a whole one besides
    assert blocks * BLOCK_SIZE % size == distance % size, damage


def states(original: Original, shown: Dump, spoiled: Sequence[str] = ()) -> dict[str, str]:
    """Name -> state of the messages and transactions that are shown; messages intact, but the spoiled, and in order."""
    found: dict[str, str] = {}
    for history in original.histories.values():
        names = {history.records[name].header.rid: name for name in history.messages}
        lines = shown.messages(history.queue)
        for line in lines:
            rid = line["rid"]
            name = names.get(rid, f"{history.queue} {rid}")
            found[name] = line["state"]
            if rid in names:
                reported = original.before.get((history.queue, rid), line)
                is_as_it_was = {**line, "state": "", "xid": ""} == {**reported, "state": "", "xid": ""}
                assert (is_as_it_was and line["body"] == history.bodies[rid]) == (name not in spoiled), name
        known = [line["rid"] for line in lines if line["rid"] in names]
        assert known == sorted(known), f"{history.queue} is out of order"
    xids = {xid.hex(): name for name, xid in XIDS.items()}
    found.update({xids.get(line["xid"], line["xid"]): line["state"] for line in shown.lines("transaction")})
    return found


# ---- what the same damage changes in each format ----

Changes = dict[str, str | None]
NOTHING_READ: Final = "no data loss: this part is not used"
LOST_FILE: Final = "records in it are lost"
UNDONE: Final[Changes] = {**lost("local put"), **back("first"), "local": UNPREPARED}
NOT_DOUBTFUL: Final[Changes] = {"branch": UNPREPARED, "fourth": OUTSTANDING, "branch put": None}
UNDECIDED: Final[Changes] = {"decided": IN_DOUBT, "decided put": IN_DOUBT_PUT, "fifth": IN_DOUBT_TAKE}
#: What `orders` loses with its first file, and what is left undone with its second.
ORDERS_0: Final[Changes] = lost("third", "fourth", "sixth", "local put", "branch put")
ORDERS_1: Final[Changes] = {
    **lost("decided put", "closing put", "ninth", "tenth", "open"),
    **back("fifth", "seventh", "eighth"),
    "fourth": OUTSTANDING,
}


# ---- the undamaged stores, one of each format ----


ORDERS_GEOMETRY: Final = Geometry(4, 8192)
BILLS_GEOMETRY: Final = Geometry(4, 4096)
QUEUES: Final = {"orders": "c.q1", "bills": "c.q2"}  # as in the fixture `legacy-c-localtx`
VERSION_1_DIRECTORIES: Final = {"orders": "rhm/jrnl/0004/c.q1", "bills": "rhm/jrnl/0005/c.q2", "prepared": "rhm/tpl"}
VERSION_2_DIRECTORIES: Final = {"orders": "rhm/jrnl/1", "bills": "rhm/jrnl/2", "prepared": "rhm/tpl"}


def version_1_store(path: Path, bills: int = BILLS) -> Original:
    """A legacystore without Berkeley DB files: the journals name the queues. `bills` bills have come."""
    builders = _version_1_builders()
    histories = _told(builders, bills)
    for name, builder in builders.items():
        builder.write_to(path / VERSION_1_DIRECTORIES[name])
    return _ring_store(path, histories, builders, VERSION_1_DIRECTORIES)


def _version_1_builders() -> dict[str, JournalBuilder]:
    return {
        "orders": JournalBuilder(1, ORDERS_GEOMETRY, queue_name=QUEUES["orders"]),
        "bills": JournalBuilder(1, BILLS_GEOMETRY, queue_name=QUEUES["bills"]),
        "prepared": JournalBuilder(1, BILLS_GEOMETRY, queue_name="TplStore", base_name=TPL_BASE_NAME),
    }


def earlier_file(version: int, number: int, bills: int) -> bytes:
    """A file of `bills` as it was when `bills` bills had come."""
    store = StoreBuilder(Path("/none"), orders_geometry=ORDERS_GEOMETRY)
    builders = {"orders": store.orders, "bills": store.bills, "prepared": store.prepared}
    builders = _version_1_builders() if version == 1 else builders
    _told(builders, bills)
    return bytes(builders["bills"].files[number])


def version_2_store(path: Path, *, clean: bool = True) -> Original:
    """A store of version 2, closed cleanly or left."""
    store = StoreBuilder(path, orders_geometry=ORDERS_GEOMETRY)
    builders = {"orders": store.orders, "bills": store.bills, "prepared": store.prepared}
    histories = _told(builders)
    store.write(clean=clean)
    return _ring_store(path, histories, builders, VERSION_2_DIRECTORIES)


def _told(builders: Mapping[str, JournalBuilder], bills: int = BILLS) -> dict[str, History]:
    rids = count(1)
    histories = {name: History(builder, builder.info.queue_name, rids) for name, builder in builders.items()}
    tell(**histories, count=bills)
    return histories


def _ring_store(
    path: Path, histories: dict[str, History], builders: Mapping[str, JournalBuilder], directories: Mapping[str, str]
) -> Original:
    files = {
        name: [f"{directories[name]}/{builder.name(number)}" for number in range(builder.geometry.files)]
        for name, builder in builders.items()
    }
    sizes = {name: builder.geometry.data_size for name, builder in builders.items()}
    return Original(path, histories, files, FILE_HEADER_SIZE, sizes)


LINEAR_SIZES: Final = {"orders": 64, "bills": 16, "prepared": 64}  # KiB of data in each file


def linear_store(path: Path, bills: int = BILLS) -> Original:
    """A linearstore without Berkeley DB files, with pools; the head of the line of `bills` was given back.

    So many bills have come.
    """
    rids = count(1)
    names = {**QUEUES, "prepared": TPL_QUEUE}
    builders = {name: LinearBuilder(queue, LINEAR_SIZES[name]) for name, queue in names.items()}
    histories = {name: History(builder, names[name], rids) for name, builder in builders.items()}
    tell(**histories, count=bills, large=4300)
    files = {}
    for name, builder in builders.items():
        directory = builder.write(path)
        in_use = f"qls/p001/efp/{LINEAR_SIZES[name]}k/in_use"
        files[name] = [f"{in_use}/{file}" for file in builder.names()]
        if name == "bills":
            oldest = builder.place(histories[name].records[f"bill {bills - UNPAID}"].position)[0]
            for file in builder.names()[:oldest]:
                (directory / file).unlink()
                (path / in_use / file).unlink()
    add_pooled_files(path, 2, LINEAR_SIZES["bills"])
    sizes = {name: builder.data_size for name, builder in builders.items()}
    return Original(path, histories, files, LINEAR_HEADER_SIZE, sizes)
