"""Indexes of journals: their files, when they are written, and that a start with one finds what a scan finds."""

from __future__ import annotations

import errno
import os
import random
import shutil
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qstore.formats.rhm.index as layout
from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.formats.rhm.index import (
    Chunk,
    IndexFileError,
    IndexHeader,
    Run,
    decode_index_header,
    decode_parts,
    encode_index,
)
from qstore.store.disk import OsDisk
from qstore.store.environment import Environment, tool_environment
from qstore.store.errors import JournalError, StoreDamagedError
from qstore.store.journal.write.live_records import RestingRecords
from qstore.store.journal.write.space import SIZE_MASK, RingSpace
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.log_lines import Level
from qstore.store.parameters import OnDamage, StoreParameters
from qstore.store.recovery import index
from qstore.store.start import started
from tests.support.bodies import joined
from tests.support.opened_store import OpenedStore, Recovered, enqueued
from tests.support.planted_damage import check
from tests.support.profiles import examples

RING = Geometry(8, 64 * 1024)
WHOLE = 5000  # messages: more than stay awake at a start


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes of small journals."""
    monkeypatch.setattr(index, "MIN_BYTES", 1)
    monkeypatch.setattr(index, "QUIET_BYTES", 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def environment() -> Environment:
    return tool_environment()


# ---- the file ----


class BytesFile:
    """A file in memory."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size = len(content)
        self.reads = 0

    def read(self, offset: int, length: int) -> bytes:
        self.reads += 1
        return self._content[offset : offset + length]


def decoded(content: bytes) -> tuple[IndexHeader, list[Chunk | Run]]:
    file = BytesFile(content)
    header, offset, crc = decode_index_header(file)
    return header, list(decode_parts(file, header, offset, crc))


def chunk_of(rids: Sequence[int], packed: Sequence[int]) -> Chunk:
    return Chunk(array("Q", rids), array("Q", packed), min(packed), max(packed))


NUMBERS = st.integers(0, (1 << 64) - 1)
CHUNKS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5).map(
    lambda chunk: chunk_of(*zip(*chunk, strict=True))
)
RUNS = st.builds(
    lambda first, count, place, blocks: Run(first, count, place << 24 | blocks),
    st.integers(0, (1 << 64) - (1 << 20)),
    st.integers(1, 1 << 20),
    st.integers(0, 1 << 19),
    st.integers(1, 1 << 19),
)
PARTS = st.lists(CHUNKS | RUNS, max_size=4)


@examples(50)
@given(
    parts=PARTS,
    numbers=st.lists(st.integers(1, (1 << 64) - 1), min_size=8, max_size=8),
    salts=st.lists(NUMBERS, min_size=1, max_size=5),
    data=st.data(),
)
def test_a_file_is_read_as_it_was_written_or_not_at_all(
    parts: list[Chunk | Run], numbers: list[int], salts: list[int], data: st.DataObject
) -> None:
    count = sum(each.messages if isinstance(each, Run) else len(each.rids) for each in parts)
    queue, journal, size, place, flush, last, highest, first = numbers
    header = IndexHeader(
        UUID(int=7), queue, journal, 3, size, place, place - 1, flush, last, highest, first, tuple(salts), count
    )
    content = b"".join(encode_index(header, parts))
    assert len(content) == layout.size_of(len(salts), parts)
    assert decoded(content) == (header, parts)
    cut = data.draw(st.integers(0, len(content) - 1))
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << bit % 8
    for wrong in (content[:cut], bytes(flipped), content + b"\0"):
        with pytest.raises(IndexFileError):
            decoded(wrong)


def test_a_long_file_is_read_in_few_portions() -> None:
    """It has thousands of runs, of 24 bytes each; and chunks, the longest of which are read across a portion's end."""
    rng, rid = random.Random(1), 1
    parts: list[Chunk | Run] = []
    for _ in range(30):
        for _ in range(1500):
            parts.append(Run(rid, count := rng.randrange(5, 100), rid << 24 | 9))
            rid += count
        rids = range(rid, rid + rng.choice((1, 100, 4096)))
        parts.append(chunk_of(rids, [each << 24 | 9 for each in rids]))
        rid = rids.stop
    count = sum(each.messages if isinstance(each, Run) else len(each.rids) for each in parts)
    header = IndexHeader(UUID(int=7), 1, 1, 3, 8, 9, 8, 1, 1, rid, 1, (5,), count)
    content = b"".join(encode_index(header, parts))
    assert len(content) > 1 << 20
    file = BytesFile(content)
    header, offset, crc = decode_index_header(file)
    assert list(decode_parts(file, header, offset, crc)) == parts
    assert file.reads <= 4 + len(content) // (128 << 10)


@pytest.mark.parametrize(
    "run",
    [
        Run(1, 5, 100 << 24),  # records of no blocks
        Run((1 << 64) - 2, 5, 100 << 24 | 9),  # ids that do not fit
        Run(1, 5, ((1 << 40) - 20) << 24 | 9),  # nor do places
    ],
)
def test_a_run_that_cannot_be_is_damage(run: Run) -> None:
    """As in an index that is torn: it is read before its checksum is compared."""
    header = IndexHeader(UUID(int=7), 1, 1, 3, 8, 9, 8, 1, 1, 99, 1, (5,), run.messages)
    content = b"".join(encode_index(header, [run]))
    with pytest.raises(IndexFileError, match="torn"):
        decoded(content)


def test_single_messages_between_runs_join_them() -> None:
    def at(place: int, blocks: int = 9) -> int:
        return place << 24 | blocks

    parts: list[Chunk | Run] = [
        chunk_of([1, 2], [at(100), at(109)]), Run(3, 50, at(118)), chunk_of([53], [at(568)]), Run(54, 50, at(577)),
        Run(104, 50, at(1028)),  # elsewhere in the log
        Run(160, 50, at(1478)),  # others were removed
        chunk_of([210, 211], [at(1928), at(1937, 8)]),  # another size
        Run(212, 50, at(1945)),
        chunk_of([262, 264], [at(2395), at(2404)]),
        chunk_of(range(300, 340), [at(3000 + 9 * number) for number in range(40)]),  # long, as it was
        Run(340, 50, at(3360)),
        chunk_of([390], [at(3810)]),
    ]  # fmt: skip
    assert list(index.contiguous(parts)) == [
        Run(1, 103, at(100)), Run(104, 50, at(1028)), Run(160, 50, at(1478)), parts[6], parts[7], parts[8], parts[9],
        Run(340, 51, at(3360)),
    ]  # fmt: skip


@examples(50)
@given(st.integers(0, 5000), st.integers(1, 40), st.integers(1, 400))
def test_a_run_holds_the_files_of_its_records(place: int, blocks: int, count: int) -> None:
    geometry = Geometry(8, 64 * 1024)
    run, singly = RingSpace(geometry, 512, 512), RingSpace(geometry, 512, 512)
    records = range(place << 24 | blocks, (place + count * blocks) << 24 | blocks, blocks << 24)
    run.hold_all(records, records[0], records[-1])
    for packed in records:
        singly.hold(packed >> 24, blocks)
    assert [run.held_in(index) for index in range(60)] == [singly.held_in(index) for index in range(60)]


def test_runs_that_flushes_have_cut_are_joined() -> None:
    resting = RestingRecords()
    resting.add_run(1, 40, 100, 9)
    resting.add_run(41, 40, 1000, 9)  # after the padding of a flush
    resting.add_run(81, 40, 2000, 8)
    resting.add_run(200, 40, 3000, 8)
    resting.extend(array("Q", [240, 241, 250]), array("Q", [5 << 24 | 1, 6 << 24 | 2, 7 << 24 | 1]))
    resting.add_run(260, 5000, 4000, 8)
    resting.add_run(5260, 40, 60_000, 8)
    resting.add_run(5300, 40, 70_000, 8)
    found = [(rids, list(blocks)) for rids, blocks in started._joined(resting)]
    assert found == [
        (range(1, 81), [9] * 80), (range(81, 121), [8] * 40), (range(200, 240), [8] * 40),
        (array("Q", [240, 241, 250]), [1, 2, 1]),
        (range(260, 5260), [8] * 5000), (range(5260, 5340), [8] * 80),
    ]  # fmt: skip


# ---- stores ----


def filled(environment: Environment, path: Path, count: int = 300, size: int = 200) -> OpenedStore:
    """A store with a queue that has messages; some were removed."""
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("q", RING if count < WHOLE else Geometry(8, 256 * 1024))
    rids = [opened.enqueue(journal, b"%08d" % number + b"x" * size) for number in range(count)]
    for rid in rids[: count // 3 : 2]:
        opened.store.append.dequeue(journal, rid)
    opened.flush(journal)
    return opened


def index_file(path: Path, journal_id: int = 1) -> Path:
    return path / "rhm" / "index" / str(journal_id)


def used(opened: OpenedStore) -> list[bool]:
    """Of the queues, whether an index was used."""
    return [queue.indexed_to is not None for queue in opened.store.recovered_queues]


def found_by(environment: Environment, path: Path, scratch: Path) -> tuple[list[bool], dict[str, list[Recovered]]]:
    """What a start finds, of a copy of the store."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(path, scratch)
    opened = OpenedStore(environment, scratch)
    is_used = used(opened)
    found = opened.recovered()
    opened.store.close()
    return is_used, found


def same_without(environment: Environment, path: Path) -> bool:
    """Require that a start finds the same without indexes. Returns whether it has used one."""
    is_used, found = found_by(environment, path, path.with_name("with"))
    shutil.rmtree(path.with_name("bare"), ignore_errors=True)
    shutil.copytree(path, path.with_name("bare"))
    shutil.rmtree(path.with_name("bare") / "rhm" / "index", ignore_errors=True)
    not_used, scanned = found_by(environment, path.with_name("bare"), path.with_name("without"))
    assert not any(not_used)
    assert found == scanned
    return any(is_used)


@pytest.mark.parametrize("count", [300, WHOLE])
def test_a_clean_close_leaves_an_index_and_a_start_uses_it(environment: Environment, path: Path, count: int) -> None:
    opened = filled(environment, path, count, 20)
    assert opened.store.close()
    assert index_file(path).exists()
    assert same_without(environment, path)


@pytest.mark.parametrize("has_index", [True, False])
def test_runs_are_runs_after_a_start(environment: Environment, path: Path, has_index: bool) -> None:
    """Among messages that came singly, and with an index or without: they leave together then."""
    opened = OpenedStore(environment, path)
    journal, runs = opened.make_queue("q", Geometry(8, 1 << 20)), []
    bodies = joined([b"x" * 20] * 60)
    for _ in range(100):
        opened.enqueue(journal, b"alone")
        done = 0
        while done < 60:  # some do not fit the rest of a file
            first, count = opened.store.append.enqueue_run(journal, b"", None, bodies, done, 60 - done)
            done += count
            if count >= 32:
                runs.append((first, count))
        opened.flush(journal)
    assert len(runs) > 90
    assert opened.store.close()
    parts = decoded(index_file(path).read_bytes())[1]
    ranges = [range(each.first, each.first + each.messages) for each in parts if isinstance(each, Run)]
    assert all(any(first in each and first + count - 1 in each for each in ranges) for first, count in runs)
    if not has_index:
        index_file(path).unlink()
    opened = OpenedStore(environment, path)
    assert used(opened) == [has_index]
    found = opened.recovered()["q"]
    assert [each.data for each in found] == ([b"alone"] + [b"x" * 20] * 60) * 100
    resting = opened.journal("q").writer.records.resting
    assert len(resting) == 6100
    split = [run for run in runs if not resting.has_run(range(run[0], sum(run)))]
    assert len(split) <= (not has_index)  # 4,096 at a time are looked at
    opened.store.close()


def test_messages_that_do_not_rest_are_between_those_that_do() -> None:
    """Before, between and after runs, which stay runs, and among those of a chunk."""
    resting: list[Any] = [Run(10, 40, 700), (array("Q", [60, 70]), array("Q", [6, 7])), Run(80, 40, 900)]
    awake = array("Q", [3, 55, 65, 72, 130, 131]), array("Q", range(6))
    taken = index._Taken(IndexHeader(UUID(int=7), 1, 1, 3, 8, 9, 8, 1, 1, 99, 1, (5,), 88), awake, resting)
    assert list(taken.parts()) == [
        chunk_of([3], [0]), Run(10, 40, 700), chunk_of([55], [1]), chunk_of([60, 65, 70], [6, 2, 7]),
        chunk_of([72], [3]), Run(80, 40, 900), chunk_of([130, 131], [4, 5]),
    ]  # fmt: skip


def test_what_follows_an_index_is_read(environment: Environment, path: Path) -> None:
    """The store is killed: what it had appended, removed and begun after the index is found."""
    opened = filled(environment, path)
    journal = opened.journal("q")
    opened.store.look()
    opened.store.look()
    assert index_file(path).exists()
    rids = [opened.enqueue(journal, b"later %d" % number) for number in range(20)]
    first, second = (rid for rid in list(journal.writer.live)[:2])
    for rid in (first, second, rids[3]):
        opened.store.append.dequeue(journal, rid)
    opened.flush(journal)
    assert same_without(environment, path)
    opened.store.close()


def test_an_index_is_written_again_only_where_something_was_appended(environment: Environment, path: Path) -> None:
    filled(environment, path).store.close()
    before = index_file(path).stat().st_mtime_ns
    opened = OpenedStore(environment, path)
    opened.recovered()
    opened.store.look()
    opened.store.look()
    opened.store.close()
    assert index_file(path).stat().st_mtime_ns == before
    opened = OpenedStore(environment, path)
    opened.recovered()
    opened.enqueue(opened.journal("q"), b"one more")
    opened.store.close()
    assert index_file(path).stat().st_mtime_ns > before
    assert same_without(environment, path)


def test_small_journals_have_none(environment: Environment, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MIN_BYTES", 1 << 20)
    monkeypatch.setattr(index, "QUIET_BYTES", 1 << 20)
    opened = filled(environment, path)
    opened.store.look()
    opened.store.look()
    opened.store.close()
    assert not index_file(path).exists()


def test_a_busy_journal_waits_until_it_has_grown_much(environment: Environment, path: Path) -> None:
    opened = filled(environment, path)
    for _ in range(3):
        opened.store.look()
        opened.enqueue(opened.journal("q"), b"more")
    assert not index_file(path).exists()
    opened.store.look()
    opened.store.look()
    assert index_file(path).exists()
    opened.store.close()


def test_a_journal_with_an_open_transaction_has_none(environment: Environment, path: Path) -> None:
    opened = filled(environment, path)
    journal = opened.journal("q")
    calls: list[Any] = []
    data = b"in doubt"
    opened.store.transactions.prepare(b"xid", [enqueued(journal, data)], [], calls.append)
    opened.wait(calls)
    opened.store.look()
    opened.store.look()
    opened.store.close()
    assert not index_file(path).exists()
    assert not same_without(environment, path)


# ---- an index that is not that of the journal ----


def put_back(kept: bytes, path: Path) -> None:
    index_file(path).parent.mkdir(exist_ok=True)
    index_file(path).write_bytes(kept)


def append_laps(opened: OpenedStore, laps: float) -> None:
    """Fill a part of the ring, or go round it; nearly all is removed at once."""
    journal = opened.journal("q")
    left = int(laps * RING.files * RING.data_size)
    while left > 0:
        rids = [opened.enqueue(journal, b"y" * 1000) for _ in range(20)]
        for rid in rids[1:]:
            opened.store.append.dequeue(journal, rid)
        opened.flush(journal)
        left -= 20 * 1300
        opened.store.append.dequeue(journal, rids[0])
    opened.flush(journal)


@pytest.mark.parametrize("laps", [0.1, 0.6, 1.5, 3.5])
@pytest.mark.parametrize("ends", ["killed", "closed"])
def test_an_old_index_is_right_or_not_used(environment: Environment, path: Path, laps: float, ends: str) -> None:
    """Software that does not know the file has gone on with the journal."""
    filled(environment, path).store.close()
    kept = index_file(path).read_bytes()
    opened = OpenedStore(environment, path)
    opened.recovered()
    append_laps(opened, laps)
    if ends == "closed":
        opened.store.close()
    put_back(kept, path)
    is_used = same_without(environment, path)
    assert is_used is (laps < 1)
    opened.store.close()


def test_an_index_of_another_queue_or_store_is_not_used(environment: Environment, path: Path, tmp_path: Path) -> None:
    opened = filled(environment, path)
    other = opened.make_queue("other", RING)
    for _ in range(50):
        opened.enqueue(other, b"other")
    opened.store.close()
    filled(environment, tmp_path / "second").store.close()
    for wrong in (index_file(path, 2).read_bytes(), index_file(tmp_path / "second").read_bytes()):
        put_back(wrong, path)
        is_used, found = found_by(environment, path, tmp_path / "copy")
        assert is_used == [False, True]
        assert len(found["q"]) == 250
    assert OsDisk().names(str(path / "rhm" / "index")) == ["1", "2"]


@pytest.mark.parametrize(
    "harm",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        lambda content: bytes(len(content)),
    ],
    ids=["torn", "empty", "flipped", "zeros"],
)
def test_a_harmed_index_is_not_used(environment: Environment, path: Path, harm: Callable[[bytes], bytes]) -> None:
    filled(environment, path).store.close()
    put_back(harm(index_file(path).read_bytes()), path)
    assert not same_without(environment, path)


def test_a_journal_that_lost_its_end_is_read(environment: Environment, path: Path) -> None:
    """The index has flushes that the files no longer have: they are missed."""
    opened = filled(environment, path)
    opened.store.close()
    before = {each.name: each.read_bytes() for each in (path / "rhm" / "jrnl" / "1").iterdir()}
    opened = OpenedStore(environment, path)
    opened.recovered()
    for _ in range(10):
        opened.enqueue(opened.journal("q"), b"lost")
    opened.store.close()
    for name, content in before.items():
        (path / "rhm" / "jrnl" / "1" / name).write_bytes(content)
    opened = OpenedStore(environment, path)
    assert used(opened) == [False]
    assert any(line.level is Level.CRITICAL for line in opened.lines)
    opened.store.close()


# ---- damage ----


def flip(path: Path, text: bytes) -> None:
    """Flip a bit of a message in its journal."""
    (file,) = (each for each in (path / "rhm" / "jrnl" / "1").glob("*.jdat") if text in each.read_bytes())
    content = file.read_bytes()
    at = content.index(text)
    file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


def critical(opened: OpenedStore) -> list[str]:
    return [line.text for line in opened.lines if line.level is Level.CRITICAL]


def test_damage_before_an_index_is_found_when_the_message_is_read(environment: Environment, path: Path) -> None:
    """The message is missing, the index is removed, and the next start treats the journal as damaged."""
    filled(environment, path).store.close()
    flip(path, b"00000222")
    opened = OpenedStore(environment, path)
    assert (used(opened), critical(opened)) == ([True], [])
    messages = opened.recovered()["q"]
    assert len(messages) == 249
    assert not any(message.data.startswith(b"0000022") and message.data[7:8] == b"2" for message in messages)
    (text,) = critical(opened)
    assert "its record is damaged" in text
    opened.store.look()
    assert not index_file(path).exists()
    opened.store.close()
    assert not index_file(path).exists()
    opened = OpenedStore(environment, path)
    assert used(opened) == [False]
    assert any("rebuilt with 249 messages" in text for text in opened.texts)
    assert OsDisk().names(str(path / "rhm" / "quarantine")) == ["1-0"]
    assert len(opened.recovered()["q"]) == 249
    opened.store.close()


def test_damage_is_found_when_a_message_is_read_back_later(environment: Environment, path: Path) -> None:
    filled(environment, path).store.close()
    opened = OpenedStore(environment, path)
    opened.recovered()
    journal: QueueJournal = opened.journal("q")
    rid = next(iter(journal.writer.live))
    flip(path, journal.load(rid)[:8])
    with pytest.raises(JournalError, match="is damaged"):
        journal.load(rid)
    opened.store.close()
    assert not index_file(path).exists()


def test_damage_is_found_at_once_where_a_damaged_store_is_refused(environment: Environment, path: Path) -> None:
    filled(environment, path).store.close()
    flip(path, b"00000222")
    parameters = StoreParameters(on_damage=OnDamage.REFUSE)
    with pytest.raises(StoreDamagedError, match="checksum"):
        OpenedStore(environment, path, parameters)


@pytest.mark.parametrize("number", [101, 222, 299])
def test_a_check_finds_damage_before_an_index(environment: Environment, path: Path, number: int) -> None:
    """A start that uses the index does not read it."""
    filled(environment, path).store.close()
    assert check(path).code == 0
    flip(path, b"%08d" % number)
    found = check(path)
    assert found.code != 0
    assert "checksum" in found.text
    opened = OpenedStore(environment, path)
    assert (used(opened), critical(opened)) == ([True], [])
    opened.store.close()


# ---- the disk ----


@pytest.mark.parametrize("when", ["look", "close"])
def test_a_full_disk_costs_nothing_but_the_index(
    environment: Environment, path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    opened = filled(environment, path)
    create = type(environment.disk).create

    def refuse(disk: Any, name: str, size: int) -> Any:
        if f"{os.sep}index{os.sep}" in name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        return create(disk, name, size)

    monkeypatch.setattr(type(environment.disk), "create", refuse)
    if when == "look":
        opened.store.look()
        opened.store.look()
        opened.store.collect()
    assert opened.store.close()
    reported = [line for line in opened.lines if "index" in line.text]
    assert [line.level for line in reported] == [Level.WARNING]
    monkeypatch.undo()
    assert not index_file(path).exists()
    again = OpenedStore(environment, path)
    assert (used(again), len(again.recovered()["q"])) == ([False], 250)
    again.store.close()


def test_indexes_of_deleted_queues_are_removed(environment: Environment, path: Path) -> None:
    opened = filled(environment, path)
    opened.store.look()
    opened.store.look()
    calls: list[Any] = []
    opened.store.changes.delete_queue(opened.journal("q"), lambda *arguments: calls.append(arguments))
    opened.wait(calls)
    assert index_file(path).exists()
    opened.store.look()
    assert not index_file(path).exists()
    opened.store.close()


def test_a_start_removes_what_belongs_to_no_journal(environment: Environment, path: Path) -> None:
    filled(environment, path).store.close()
    for name in ("1.new", "77", "nonsense"):
        (path / "rhm" / "index" / name).write_bytes(b"old")
    OpenedStore(environment, path).store.close()
    assert OsDisk().names(str(path / "rhm" / "index")) == ["1"]


def test_blocks_of_long_records_are_known(environment: Environment, path: Path) -> None:
    """More than 255 blocks, among shorter ones."""
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("q", RING)
    for size in (10, 300 * BLOCK_SIZE, 100):
        opened.enqueue(journal, b"z" * size)
    opened.flush(journal)
    blocks = [packed & SIZE_MASK for packed in journal.writer.live.values()]
    opened.store.close()
    opened = OpenedStore(environment, path)
    assert used(opened) == [True]
    assert [packed & SIZE_MASK for packed in opened.journal("q").writer.live.values()] == blocks
    assert [len(message.data) for message in opened.recovered()["q"]] == [10, 300 * BLOCK_SIZE, 100]
    opened.store.close()
