"""Journals of the linearstore: their files, found through links and put in order, and the records in them."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qstore.formats.qls.file_header import FILE_HEADER_SIZE, encode_file_header
from qstore.formats.qls.records import SECTOR_SIZE, TAIL_SIZE, encode_header
from qstore.formats.rhm.records import EXTERNAL, TRANSIENT, Kind
from qstore.store.damage import Damage
from qstore.store.disk import OsDisk
from qstore.store.inspect.layout import StoreKind, UnusableInputError
from qstore.store.inspect.offline import RecoveredStore, open_store
from qstore.store.journal.directory import open_line
from qstore.store.journal.journal import Journal
from qstore.store.journal.reader import JournalEnd
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING, JournalRecovery, Outcome
from tests.support.linear_builder import DIRECTORY, LinearBuilder, PlacedRecord, add_pooled_files, reset_file
from tests.support.memory_disk import MemoryDisk

KIB = 4  # of data in a file: four 1024-byte records
SIZE = KIB * 1024


def recovered(path: Path) -> RecoveredStore:
    store = open_store(OsDisk(), str(path))
    result = store.recover()
    store.close()
    return result


def rids(result: RecoveredStore, queue: str = "q1") -> list[int]:
    (found,) = [entry for entry in result.queues if entry.name == queue]
    return [rid for rid, *_ in found.outstanding()]


def line_of(files: int, first_number: int = 1) -> LinearBuilder:
    """A journal of `files` files, each of which holds four records."""
    builder = LinearBuilder("q1", KIB, first_number)
    for rid in range(1, 4 * files + 1):
        builder.enqueue(rid, b"m" * (1024 - 64))
    assert len(builder.headers) == files
    return builder


def written(builder: LinearBuilder, store: Path) -> list[Path]:
    """The paths of a journal's files in a store, once they are written there."""
    builder.write(store)
    return [taken(store) / name for name in builder.names()]


def taken(store: Path) -> Path:
    return store / f"qls/p001/efp/{KIB}k/in_use"


def queue_of(name: str, *messages: bytes, first_rid: int = 1) -> LinearBuilder:
    builder = LinearBuilder(name, KIB)
    for rid, data in enumerate(messages, first_rid):
        builder.enqueue(rid, data)
    builder.flush()
    return builder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def only(result: RecoveredStore) -> Damage:
    (damage,) = result.store.damage
    return damage


def where(damage: Damage) -> tuple[str, int | None]:
    return damage.file, damage.offset


def told(damage: Damage) -> tuple[str, int | None, int | None, str]:
    return damage.file, damage.offset, damage.rid, damage.what


def change(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


# ---- sound stores ----


def test_links_are_followed_to_the_store_s_own_files(store: Path) -> None:
    builder = line_of(5)
    builder.write(store)
    for link in (store / "qls/jrnl2/q1").iterdir():
        assert link.is_symlink()
        assert not link.exists()
    result = recovered(store)
    assert result.store.layout.kind is StoreKind.LINEAR
    assert result.store.damage == []
    assert rids(result) == list(range(1, 21))


def test_a_link_to_another_store_is_not_followed(store: Path, tmp_path: Path) -> None:
    """The copied store is read, though the links lead to the original, which has gone on."""
    builder = line_of(2)
    paths = written(builder, store)
    other = tmp_path / "other"
    shutil.copytree(store / "qls", other / "qls", symlinks=True)
    for link in (other / "qls/jrnl2/q1").iterdir():
        link.unlink()
        os.symlink(store / "qls/p001/efp/4k/in_use" / link.name, link)
    for path in paths:
        path.write_bytes(reset_file(KIB))
    assert rids(recovered(other)) == list(range(1, 9))


def test_files_without_links(tmp_path: Path) -> None:
    line_of(3).write_plain(tmp_path / "store/qls/jrnl2/q1")
    assert rids(recovered(tmp_path / "store")) == list(range(1, 13))


def test_files_are_ordered_by_number_and_not_by_name(store: Path) -> None:
    builder = line_of(6)
    assert builder.names() != sorted(builder.names())
    builder.write(store)
    result = recovered(store)
    assert result.store.damage == []
    (journal,) = result.store.journals
    assert [file.number for file in journal.files.files] == [1, 2, 3, 4, 5, 6]
    assert not journal.notices


def test_a_line_whose_head_was_given_back(store: Path) -> None:
    line_of(3, 7).write(store)
    result = recovered(store)
    assert result.store.damage == []
    assert not result.store.journals[0].holds_everything


def test_an_unwritten_file_does_not_belong_to_the_line(store: Path) -> None:
    line_of(2).write(store)
    (path,) = add_pooled_files(store, data_size=KIB, where="in_use")
    os.symlink(f"/nowhere/{path.name}", store / "qls/jrnl2/q1" / path.name)
    result = recovered(store)
    assert result.store.damage == []
    assert len(rids(result)) == 8


def test_queue_names_are_paths(store: Path) -> None:
    queue_of("a/b c/00ff/d", b"m").write(store)
    assert rids(recovered(store), "a/b c/00ff/d") == [1]


def test_an_empty_queue_s_directory_is_a_journal(store: Path) -> None:
    line_of(1).write(store)
    (store / "qls/jrnl2/new").mkdir()
    result = recovered(store)
    assert result.store.damage == []
    assert rids(result, "new") == []


@pytest.mark.parametrize("part", ["", "qls", "qls/jrnl2", "qls/jrnl2/q1"])
def test_a_store_by_its_parts(store: Path, part: str) -> None:
    line_of(2).write(store)
    assert rids(recovered(store / part)) == list(range(1, 9))


def test_one_file_by_itself(store: Path) -> None:
    first, second = written(line_of(2), store)
    assert rids(recovered(first)) == [1, 2, 3, 4]
    assert rids(recovered(second)) == [5, 6, 7, 8]


def test_lone_pooled_file_is_refused_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "00000000-0000-4000-8000-000000000000.jrnl"
    path.write_bytes(reset_file(KIB))
    with pytest.raises(UnusableInputError, match="an empty file of the pool"):
        open_store(OsDisk(), str(path))


def test_lone_directory_of_links_asks_for_the_whole_store(tmp_path: Path) -> None:
    line_of(2).write(tmp_path / "store")
    alone = tmp_path / "alone"
    shutil.copytree(tmp_path / "store/qls/jrnl2/q1", alone, symlinks=True)
    with pytest.raises(UnusableInputError, match="pass the whole store"):
        open_store(OsDisk(), str(alone))


# ---- lost and foreign files ----


def test_a_lost_file_in_the_middle(store: Path) -> None:
    paths = written(line_of(4), store)
    paths[1].unlink()
    result = recovered(store)
    assert rids(result) == [1, 2, 3, 4, *range(9, 17)]
    link = only(result)
    assert link.file == str(store / "qls/jrnl2/q1" / paths[1].name)
    assert "link points to a file that is not in the store" in link.what


@pytest.mark.parametrize("sizes", [[3000, 3000, 3000, 3000], [6000, 500, 6000, 500], [500, 9000, 500, 500]])
@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_file_breaks_the_chain(store: Path, sizes: list[int], lost: int) -> None:
    """Neither the file nor its link is there; a record that went on in it, or from it, shows that it was."""
    builder = queue_of("q1", *(bytes([65 + index]) * size for index, size in enumerate(sizes)))
    paths = written(builder, store)
    paths[lost].unlink()
    (store / "qls/jrnl2/q1" / paths[lost].name).unlink()
    result = recovered(store)
    whole = []
    for record in builder.records:
        last, _ = builder.place(record.position + record.size - 1)
        if record.header.kind is Kind.ENQUEUE and lost not in range(record.file, last + 1):
            whole.append(record.header.rid)
    assert rids(result) == whole
    whats = [damage.what for damage in result.store.damage if damage.file == str(store / "qls/jrnl2/q1")]
    assert whats == ([f"file {lost + 1} is missing"] if lost < len(paths) - 1 else [])


def test_numbers_that_a_restart_left_out_are_no_damage(store: Path) -> None:
    """A record had reached into files 2 and 3 when qpidd was killed; it went on with file 4, over the torn record."""
    first, second = LinearBuilder("q1", KIB), LinearBuilder("q1", KIB, 4, seed=1)
    first.enqueue(1, b"before")
    record = first.enqueue(9, bytes(5000))
    second.enqueue(10, b"after")
    content = first.files()
    begin = content[0]
    rest = first.files()[1][FILE_HEADER_SIZE : FILE_HEADER_SIZE + record.position + record.size - SIZE]
    next_file = bytearray(second.files()[0])
    next_file[FILE_HEADER_SIZE + len(rest) :] = next_file[FILE_HEADER_SIZE : FILE_HEADER_SIZE + SIZE - len(rest)]
    next_file[FILE_HEADER_SIZE : FILE_HEADER_SIZE + len(rest)] = rest
    next_file[40:48] = struct.pack("<Q", FILE_HEADER_SIZE + len(rest))
    first.write(store)
    second.write(store)
    paths = sorted(taken(store).iterdir())
    for path in paths:
        number = struct.unpack_from("<Q", path.read_bytes(), 64)[0]
        if number == 2:
            path.write_bytes(reset_file(KIB))
        path.write_bytes({1: begin, 4: bytes(next_file)}.get(number, path.read_bytes()))
    result = recovered(store)
    assert result.store.damage == []
    assert rids(result) == [1, 9, 10]
    assert any("files 2 to 3 are missing before it, but the records continue" in each for each in result.store.notices)


def test_a_lost_link_does_not_lose_the_file(store: Path) -> None:
    paths = written(line_of(4), store)
    (store / "qls/jrnl2/q1" / paths[2].name).unlink()
    result = recovered(store)
    assert rids(result) == list(range(1, 17))
    assert told(only(result)) == (str(paths[2]), None, None, "the journal's directory has no link to this file")


def test_a_lost_directory_does_not_lose_the_journal(store: Path) -> None:
    line_of(3).write(store)
    queue_of("q2", b"m").write(store)
    shutil.rmtree(store / "qls/jrnl2/q1")
    result = recovered(store)
    assert rids(result) == list(range(1, 13))
    assert rids(result, "q2") == [1]
    assert [entry.what for entry in result.store.damage] == ["the journal's directory has no link to this file"] * 3


def test_a_file_on_its_way_back_is_not_damage(store: Path) -> None:
    """The head of the line, unlinked by a broker that was killed before it could give the file back."""
    line = line_of(3)
    for rid in range(1, 5):
        line.dequeue(100 + rid, rid)
    paths = written(line, store)
    (store / "qls/jrnl2/q1" / paths[0].name).unlink()
    result = recovered(store)
    assert result.store.damage == []
    assert rids(result) == list(range(5, 13))
    assert any("is not in the pool yet" in notice for notice in result.store.notices)


def test_the_head_of_a_line_that_lost_its_link(store: Path) -> None:
    """A file whose messages are outstanding is not given back."""
    paths = written(line_of(3), store)
    for path in paths[:2]:
        (store / "qls/jrnl2/q1" / path.name).unlink()
    result = recovered(store)
    assert rids(result) == list(range(1, 13))
    assert [told(damage) for damage in result.store.damage] == [
        (str(path), None, None, "the journal's directory has no link to this file") for path in paths[:2]
    ]


def test_a_file_of_another_queue(store: Path) -> None:
    paths = written(line_of(2), store)
    paths[1].write_bytes(queue_of("q2", b"m").files()[0])
    result = recovered(store)
    assert rids(result) == [1, 2, 3, 4]
    damage = only(result)
    assert where(damage) == (str(paths[1]), 72)
    assert damage.what == 'file of queue "q2" in the journal of queue "q1"'


def test_a_second_copy_of_a_file(store: Path) -> None:
    paths = written(line_of(2), store)
    copy = paths[0].with_name("ffffffff-0000-4000-8000-000000000000.jrnl")
    shutil.copy(paths[0], copy)
    os.symlink(f"/nowhere/{copy.name}", store / "qls/jrnl2/q1" / copy.name)
    result = recovered(store)
    assert rids(result) == list(range(1, 9))
    assert only(result).what == f"second copy of file 1, {paths[0]}"


# ---- headers that are lost or lie ----


@pytest.mark.parametrize("index", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("damage", "offset", "what"),
    [
        (lambda path: change(path, 0, bytes(FILE_HEADER_SIZE)), 0, "not a file header: magic 0x00000000"),
        (lambda path: change(path, 4, b"\x07"), 4, "unsupported journal version 7 in file header"),
        (lambda path: change(path, 24, b"\x02"), 24, "a file header of 2 sectors instead of 1"),
        (lambda path: change(path, 32, b"\x05"), 32, "file header has a data size of 5 KiB"),
        (lambda path: change(path, 72, b"\xff\xff"), 72, "file header has a queue name of 65,535 bytes"),
    ],
)
def test_records_tell_the_place_of_a_file_without_header(
    store: Path, index: int, damage: Callable[[Path], None], offset: int, what: str
) -> None:
    paths = written(line_of(4), store)
    damage(paths[index])
    result = recovered(store)
    assert rids(result) == list(range(1, 17))
    found = only(result)
    assert told(found) == (str(paths[index]), offset, None, what)
    assert found.consequence == "the file's position is derived from its records"


def test_a_wrong_serial_is_seen_through(store: Path) -> None:
    paths = written(line_of(3), store)
    change(paths[1], 8, struct.pack("<Q", 0x1234))
    result = recovered(store)
    assert rids(result) == list(range(1, 13))
    damage = only(result)
    assert where(damage) == (str(paths[1]), 8)
    assert damage.what.startswith("file header has serial 0x1234, but the records have 0x")


def test_a_former_life_is_not_taken_for_a_wrong_serial(store: Path) -> None:
    """A new header, and the data of the file's former life: its record ids are older than the header."""
    builder = line_of(2)
    paths = written(builder, store)
    former = queue_of("gone", b"f" * 900, first_rid=3).files()[0]
    paths[1].write_bytes(paths[1].read_bytes()[:FILE_HEADER_SIZE] + former[FILE_HEADER_SIZE:])
    result = recovered(store)
    assert result.store.damage == []
    assert rids(result) == [1, 2, 3, 4]


@pytest.mark.parametrize(("index", "number"), [(1, 5), (1, 4101), (2, 3), (0, 9)])
def test_a_wrong_file_number(store: Path, index: int, number: int) -> None:
    paths = written(line_of(4, 3), store)
    change(paths[index], 64, struct.pack("<Q", number))
    result = recovered(store)
    if index:
        assert rids(result) == list(range(1, 17))
        assert where(only(result)) == (str(paths[index]), 64)
    else:  # the first of a line can have any number: nothing is missing, and the file seems to be the last
        assert sorted(rids(result)) == list(range(1, 17))


def test_header_fields_that_nothing_reads(store: Path) -> None:
    (path,) = written(line_of(1), store)
    for offset, what in ((6, "unknown flags 0x0001"), (28, "reserved field"), (56, "nanoseconds")):
        whole = path.read_bytes()
        change(path, offset, b"\xff\xff\xff\xff" if offset == 56 else b"\x01")
        result = recovered(store)
        assert rids(result) == [1, 2, 3, 4]
        damage = only(result)
        assert damage.offset == offset
        assert what in damage.what
        path.write_bytes(whole)


# ---- sizes ----


def test_a_file_that_was_cut(store: Path) -> None:
    paths = written(line_of(3), store)
    paths[1].write_bytes(paths[1].read_bytes()[: FILE_HEADER_SIZE + 2048])
    result = recovered(store)
    assert rids(result) == [1, 2, 3, 4, 5, 6, 9, 10, 11, 12]
    cut = only(result)
    assert where(cut) == (str(paths[1]), FILE_HEADER_SIZE + 2048)
    assert cut.consequence == "records beyond its end are lost"


def test_a_header_with_another_data_size(store: Path) -> None:
    paths = written(line_of(3), store)
    change(paths[2], 32, struct.pack("<Q", 2048))
    result = recovered(store)
    assert rids(result) == list(range(1, 13))
    assert where(only(result)) == (str(paths[2]), 32)


def test_the_only_file_cut_off(store: Path) -> None:
    """Its header and its pool agree on what it should have."""
    (path,) = written(line_of(1), store)
    os.truncate(path, FILE_HEADER_SIZE + SIZE // 2)
    result = recovered(store)
    assert rids(result) == [1, 2]
    assert where(only(result)) == (str(path), FILE_HEADER_SIZE + SIZE // 2)
    assert "records beyond its end are lost" in only(result).consequence


@pytest.mark.parametrize("files", [1, 3])
def test_the_end_of_a_line_in_the_pool(store: Path, files: int) -> None:
    """A file that waits for a journal has changed places with the newest one."""
    paths = written(line_of(files), store)
    add_pooled_files(store, 2, KIB)
    waiting = sorted(taken(store).parent.glob("*.jrnl"))[0]
    content = waiting.read_bytes()
    waiting.write_bytes(paths[-1].read_bytes())
    paths[-1].write_bytes(content)
    result = recovered(store)
    assert rids(result) == list(range(1, 4 * files + 1))
    assert where(only(result)) == (str(waiting), None)
    assert "in the pool" in only(result).what


def test_returned_file_with_an_old_header_is_not_read(store: Path) -> None:
    """The head of the line; and a file of a queue of that name that was deleted."""
    paths = written(line_of(3), store)
    add_pooled_files(store, 2, KIB)
    first, second = sorted(taken(store).parent.glob("*.jrnl"))
    first.write_bytes(paths[0].read_bytes())
    for path in (paths[0], store / "qls/jrnl2/q1" / paths[0].name):
        path.unlink()
    deleted = line_of(5)
    header = deleted.headers[4]._replace(seconds=deleted.headers[4].seconds - 10_000)
    second.write_bytes(encode_file_header(header) + deleted.files()[4][FILE_HEADER_SIZE:])
    result = recovered(store)
    assert (result.store.damage, rids(result)) == ([], list(range(5, 13)))


def test_the_header_says_where_the_first_record_is(store: Path) -> None:
    """A record fills the second file and goes on in the third; the header of the last one says that none begins."""
    builder = queue_of("q1", b"a" * (2 * SIZE), b"b")
    assert [header.first_record_offset for header in builder.headers] == [0x1000, 0, 0x1080]
    builder.write(store)
    result = recovered(store)
    assert (result.store.damage, rids(result)) == ([], [1, 2])


def test_an_empty_prepared_list_is_damage_where_transactions_were_committed(store: Path) -> None:
    builder = LinearBuilder("q1", KIB)
    builder.enqueue(1, b"m", xid=b"x" * 24)
    builder.write(store)
    assert (store / "qls/tpl2").is_dir()
    assert recovered(store).store.damage == []  # it may have been killed before it first prepared anything
    builder.commit(2, b"x" * 24)
    shutil.rmtree(store)
    builder.write(store)
    damage = only(recovered(store))
    assert damage.what == "the transaction prepared list is missing, but journals hold transactions"
    assert damage.consequence.startswith("prepared transactions are treated as never prepared")


# ---- reading the records of a linearstore journal: what is good, what is torn, what is damage ----


XID = b"x" * 24


def read(builder: LinearBuilder, disk: MemoryDisk | None = None) -> tuple[Journal, JournalRecovery, JournalEnd | None]:
    journal = open_line(disk or builder.disk(), DIRECTORY, "q", {})
    recovery = JournalRecovery()
    end = journal.walk(recovery)
    return journal, recovery, end


def live(recovery: JournalRecovery, outcomes: dict[bytes, Outcome] | None = None) -> list[tuple[int, int]]:
    recovery.resolve(outcomes or {})
    return [(rid, state) for rid, _, state in recovery.messages.in_rid_order()]


def rids_read(recovery: JournalRecovery) -> list[int]:
    return [rid for rid, _ in live(recovery)]


def flip(builder: LinearBuilder, position: int, bit: int = 0) -> None:
    index, offset = builder.place(position)
    byte = builder.files()[index][offset]
    builder.patch(index, offset, bytes([byte ^ 1 << bit]))


def some_records() -> tuple[LinearBuilder, list[PlacedRecord]]:
    """Three messages, each in a flush of its own but the first two; the third is larger than a file."""
    builder = LinearBuilder("q")
    records = [builder.enqueue(1, b"one" * 50), builder.enqueue(2, b"two" * 500)]
    builder.flush()
    records.append(builder.enqueue(3, b"three" * 4000))
    builder.flush()
    records.append(builder.enqueue(4, b"four"))
    builder.flush()
    return builder, records


# ---- good journals ----


def test_messages_of_all_sizes() -> None:
    builder = LinearBuilder("q")
    sizes = [0, 1, 24, 64, 128, 4096, 8191, 8192, 30_000]
    for rid, size in enumerate(sizes, 1):
        builder.enqueue(rid, bytes(size))
        builder.flush()
    journal, recovery, end = read(builder)
    assert (journal.damage, recovery.damage, journal.notices) == ([], [], [])
    assert end is not None
    assert not end.torn
    for rid, place, _ in recovery.messages.in_rid_order():
        data_place, size = journal.data_of_enqueue(place)
        assert size == sizes[rid - 1]
        assert b"".join(journal.data_chunks(data_place, size)) == bytes(size)


@pytest.mark.parametrize("size", [9_000, 50_000, 1_100_000])
def test_large_and_small_records_in_turn(size: int) -> None:
    builder = LinearBuilder("q", 512)
    count = 3_000_000 // size * 2
    for rid in range(1, count + 1):
        builder.enqueue(rid, bytes(size) if rid % 2 else b"small" * rid, xid=XID if rid % 3 == 0 else b"")
    builder.commit(count + 1, XID)
    _, recovery, end = read(builder)
    assert recovery.damage == []
    assert end is not None
    assert not end.torn
    assert rids_read(recovery) == list(range(1, count + 1))


def test_transactions() -> None:
    builder = LinearBuilder("q")
    builder.enqueue(1, b"old")
    builder.enqueue(2, b"older")
    builder.dequeue(10, 1, XID)
    builder.enqueue(11, b"new", XID)
    assert live(read(builder)[1]) == [(1, LIVE), (2, LIVE)]
    assert live(read(builder)[1], {XID: Outcome.IN_DOUBT}) == [(1, LOCKED), (2, LIVE), (11, PENDING)]
    assert live(read(builder)[1], {XID: Outcome.COMMITTING}) == [(2, LIVE), (11, LIVE)]
    builder.commit(12, XID)
    assert live(read(builder)[1]) == [(2, LIVE), (11, LIVE)]


def test_transient_and_external_records() -> None:
    builder = LinearBuilder("q")
    builder.enqueue(1, b"lost on purpose", flags=TRANSIENT)
    placed = builder.enqueue(2, b"")
    builder.append(placed.header._replace(rid=3, flags=EXTERNAL, data_size=5000))
    builder.enqueue(4, b"after it")
    journal, recovery, _ = read(builder)
    assert (rids_read(recovery), recovery.damage, recovery.transients) == ([2, 3, 4], [], 1)
    place = recovery.messages.get(3)
    assert place is not None
    assert journal.data_of_enqueue(place.place)[1] == 0


# ---- the end ----


@given(st.data())
def test_a_torn_last_flush_is_not_damage(data: st.DataObject) -> None:
    """Cut at any byte of the last record, and whatever stood there before behind the cut."""
    builder, records = some_records()
    last = builder.enqueue(5, b"five" * data.draw(st.sampled_from([1, 100, 1000, 3000])))
    builder.flush()
    keep = data.draw(st.integers(0, last.used - 1))
    former = data.draw(st.sampled_from([b"\0", b"\xff", b"QLSe", b"QLSx"]))
    # The tail's last bytes may be those that stood there before: then nothing is torn.
    assume(not (former == b"\0" and keep >= last.used - 8))
    for position in range(last.position + keep, builder.position):
        index, offset = builder.place(position)
        builder.patch(index, offset, bytes([former[position % len(former)]]))
    journal, recovery, end = read(builder)
    assert (journal.damage, recovery.damage) == ([], [])
    assert rids_read(recovery) == [record.header.rid for record in records]
    assert end is not None
    assert end.place >= last.position  # fillers of any age are passed over


def test_the_former_life_of_a_file_ends_the_journal() -> None:
    """Whole records with good checksums and another serial stand behind the end."""
    builder, records = some_records()
    former = LinearBuilder("q", seed=9)
    for rid in range(50, 60):
        former.enqueue(rid, b"former")
    index, offset = builder.place(builder.position)
    builder.patch(index, offset, former.files()[0][offset : 4096 + 8192])
    _, recovery, end = read(builder)
    assert (recovery.damage, rids_read(recovery)) == ([], [record.header.rid for record in records])
    assert end is not None
    assert not end.torn


# ---- damage ----


@given(st.data())
def test_a_flipped_bit_is_found_and_costs_its_record_only(data: st.DataObject) -> None:
    builder, records = some_records()
    hit = data.draw(st.sampled_from(records[:-1]))
    flip(builder, hit.position + data.draw(st.integers(0, hit.used - 1)), data.draw(st.integers(0, 7)))
    _, recovery, _ = read(builder)
    damage = recovery.damage[0]
    index, offset = builder.place(hit.position)
    flags_only = "unknown flags" in damage.what
    assert (damage.file, damage.offset) == (f"{DIRECTORY}/{builder.names()[index]}", offset + (6 if flags_only else 0))
    assert rids_read(recovery) == [record.header.rid for record in records if record is not hit]
    assert len(recovery.damage) == 1


def test_a_zeroed_sector() -> None:
    builder, _ = some_records()
    builder.patch(0, 4096, bytes(512))
    _, recovery, _ = read(builder)
    assert rids_read(recovery) == [3, 4] or rids_read(recovery) == [2, 3, 4]
    assert [entry.offset for entry in recovery.damage] == [4096]


def test_records_in_a_body_are_never_taken_for_records() -> None:
    """A message holds another journal, and that message's own record is damaged."""
    inner = LinearBuilder("q", seed=3)
    for rid in range(100, 110):
        inner.enqueue(rid, b"inner")
    builder = LinearBuilder("q")
    builder.enqueue(1, b"first")
    outer = builder.enqueue(2, bytes(128 - 40) + inner.files()[0][4096 : 4096 + 2560])
    builder.enqueue(3, b"last")
    flip(builder, outer.position + 16)
    _, recovery, _ = read(builder)
    assert rids_read(recovery) == [1, 3]
    assert [entry.rid for entry in recovery.damage] == [outer.header.rid ^ 1]


def test_a_damaged_length_hides_no_record() -> None:
    """The record claims to reach into the fillers before record 3: record 2 is there all the same."""
    builder, records = some_records()
    flip(builder, records[0].position + 33, 3)
    _, recovery, _ = read(builder)
    assert rids_read(recovery) == [2, 3, 4]
    assert [entry.rid for entry in recovery.damage] == [1]


def test_a_copy_of_the_journal_in_a_body_is_never_taken_for_records() -> None:
    """With the file's own serial, and that message's own record is damaged."""
    builder = LinearBuilder("q")
    for rid in range(1, 6):
        builder.enqueue(rid, b"%d" % rid)
    copy = builder.files()[0][4096 : 4096 + 640]
    outer = builder.enqueue(6, bytes(128 - 40) + copy)
    builder.enqueue(7, b"last")
    flip(builder, outer.position + 16, 6)
    _, recovery, _ = read(builder)
    assert rids_read(recovery) == [1, 2, 3, 4, 5, 7]
    assert len(recovery.damage) == 1


def test_dequeue_of_a_missing_record_is_unfounded() -> None:
    builder = LinearBuilder("q")
    builder.enqueue(5, b"m")
    builder.dequeue(6, 4)
    builder.enqueue(7, b"m")
    journal, recovery, _ = read(builder)
    assert journal.holds_everything
    assert [(entry.rid, entry.dequeued_rid) for entry in recovery.unfounded] == [(6, 4)]
    assert (recovery.enqueues, recovery.dequeues) == (2, 1)


# ---- a writer that had to wait ----


@pytest.mark.parametrize("sectors", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("data_size", [8, 64])
def test_tail_that_covers_only_bytes_after_a_wait_is_accepted(sectors: int, data_size: int) -> None:
    builder = LinearBuilder("q", data_size)
    builder.enqueue(1, b"before")
    waited_at = sectors * SECTOR_SIZE - builder.position
    placed = builder.enqueue(2, bytes(range(256)) * 100, waited_at=waited_at)
    builder.enqueue(3, b"after")
    journal, recovery, _ = read(builder)
    assert (recovery.damage, rids_read(recovery)) == ([], [1, 2, 3])
    assert journal.continued == {placed.position}
    (notice,) = journal.notices
    assert f"at 0x{placed.offset:x} covers only its later part" in notice


def test_such_a_record_is_not_good_if_a_bit_of_its_later_part_flips() -> None:
    builder = LinearBuilder("q", 64)
    placed = builder.enqueue(2, b"m" * 20_000, waited_at=2 * SECTOR_SIZE)
    builder.enqueue(3, b"after")
    flip(builder, placed.position + 3 * SECTOR_SIZE)
    _, recovery, _ = read(builder)
    assert rids_read(recovery) == [3]
    assert recovery.damage[0].what == "enqueue record fails its checksum"


def test_nor_with_a_serial_of_a_file_that_it_does_not_reach() -> None:
    builder = LinearBuilder("q", 64)
    placed = builder.enqueue(2, b"m" * 20_000, waited_at=2 * SECTOR_SIZE)
    builder.enqueue(3, b"after")
    flip(builder, placed.position + placed.used - TAIL_SIZE + 8)
    assert rids_read(read(builder)[1]) == [3]


# ---- hostile bytes ----


@given(st.binary(max_size=4000), st.integers(0, 8191))
def test_any_bytes_anywhere(content: bytes, at: int) -> None:
    builder, _ = some_records()
    disk = builder.disk()
    for name in builder.names()[:2]:
        file = bytearray(disk.files[f"{DIRECTORY}/{name}"])
        end = min(at + len(content), len(file))
        file[at:end] = content[: end - at]
        disk.files[f"{DIRECTORY}/{name}"] = file
    journal, recovery, _ = read(builder, disk)
    assert all(isinstance(entry, Damage) for entry in journal.damage + recovery.damage)
    assert set(rids_read(recovery)) <= {1, 2, 3, 4}
    assert disk.open_now <= 2


def test_overlapping_forged_records_do_not_take_forever() -> None:
    """Each block claims to begin a record that reaches to the end, with the right serial: bytes read stay bounded."""
    builder = LinearBuilder("q", 512)
    builder.enqueue(1, b"m")
    builder.flush()
    serial = builder.headers[0].serial
    size = builder.data_size - builder.position
    for offset in range(0, size, 128):
        if offset + 200 > size:
            break
        forged = builder.records[0].header._replace(serial=serial, data_size=size - offset - 200)
        builder.patch(0, 4096 + builder.position + offset, encode_header(forged))
    disk = builder.disk()
    _, recovery, _ = read(builder, disk)
    assert rids_read(recovery) == [1]
    assert disk.bytes_read < 100 * builder.data_size
