"""Journals that grow before they are full, and give back what they do not need."""

from __future__ import annotations

import errno
import itertools
import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import qstore.store.live.growth as growth
from qstore.formats.rhm.headers import data_crc
from qstore.formats.rhm.jinf import JournalInfo, decode_jinf, encode_jinf
from qstore.formats.values import typed_map
from qstore.store.disk import OsWritableDisk, SyncGroup
from qstore.store.environment import tool_environment
from qstore.store.errors import JournalFailedError, RecordTooLongError, ThresholdError
from qstore.store.journal.directory import open_journal
from qstore.store.live.message_store import journal_metrics
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.parameters import StoreParameters, parse_parameters, queue_geometry, queue_max_files
from tests.support.compiled import replaces
from tests.support.opened_store import OpenedStore

BODY = b"x" * 1000  # nine blocks
FILE_SIZE = 65536 + 512
MESSAGES = 1500  # some thirty files


def parameters(**options: int | bool) -> StoreParameters:
    return StoreParameters(
        num_jfiles=4, jfile_size_pgs=1, wcache_page_size=4, wcache_num_pages=16, tpl_num_jfiles=4,
        tpl_jfile_size_pgs=1, disk_free_limit=0, **options,  # type: ignore[arg-type]
    )  # fmt: skip


def opened(path: Path, **options: int | bool) -> OpenedStore:
    return OpenedStore(tool_environment(), path / "store", parameters(**options))


def fill(store: OpenedStore, journal: QueueJournal, messages: int = MESSAGES) -> list[int]:
    rids = []
    for number in range(messages):
        rids.append(store.enqueue(journal, b"%06d" % number + BODY))
        if number % 20 == 0:
            store.store.start()
            store.store.collect()
    store.flush(journal)
    store.store.collect()
    return rids


def info_of(journal: QueueJournal) -> JournalInfo:
    return decode_jinf(Path(journal.directory, journal.base_name + ".jinf").read_bytes())


def data_files(journal: QueueJournal) -> set[str]:
    return {name for name in os.listdir(journal.directory) if name.endswith(".jdat")}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(growth, "_IDLE_LOOKS", 0)
    return iter(())


def look(store: OpenedStore, times: int = 10) -> None:
    for _ in range(times):
        store.store.look()
        store.store.collect()


def test_a_journal_grows_and_all_is_found_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    journal = store.make_queue("q")
    fill(store, journal)
    assert journal.geometry.files >= 30
    assert journal.geometry.files * FILE_SIZE < 3 * MESSAGES * 1152  # it does not take much more than it needs
    assert info_of(journal).geometry == journal.geometry
    assert info_of(journal).initial_files == 4
    assert len(data_files(journal)) == journal.geometry.files
    assert any('The journal of queue "q" has 8 files now, 0 MiB' in text for text in store.texts)
    store.store.close()
    again = opened(tmp_path)
    assert [data[:6] for data in again.recovered_data()["q"]] == [b"%06d" % number for number in range(MESSAGES)]
    journal = again.journal("q")
    assert journal.initial_files == 4
    fill(again, journal, 200)
    assert not open_journal(OsWritableDisk(), journal.directory).damage
    again.store.close()


@replaces
def test_new_files_are_made_durable_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their names, and with the info file that makes them files of the ring."""
    synced: list[list[tuple[int, int]]] = []
    sync_each = OsWritableDisk.sync_each

    def noted(self: OsWritableDisk, groups: Sequence[SyncGroup]) -> list[OSError | None]:
        synced.append([(len(files), len(directories)) for files, directories in groups])
        return sync_each(self, groups)

    store = opened(tmp_path)
    journal = store.make_queue("q")
    monkeypatch.setattr(OsWritableDisk, "sync_each", noted)
    fill(store, journal)
    assert synced[:4] == [[(1, 0)], [(0, 1)], [(6, 1)], [(0, 1)]]
    created = 4
    for at in range(4, len(synced), 2):  # the info file has listed their files before
        ((files, directories),) = synced[at]
        assert directories == 1
        assert files - 2 >= growth.MIN_STEP
        assert synced[at + 1] == [(0, 1)]
        created += files - 2
    assert 4 + created == journal.geometry.files > 8
    store.store.close()


def test_it_grows_wherever_it_is_in_the_ring(tmp_path: Path) -> None:
    """Messages move through the ring for some laps; then a backlog begins somewhere in the middle."""
    for turns in range(60, 600, 77):
        store = OpenedStore(tool_environment(), tmp_path / f"store{turns}", parameters())
        journal = store.make_queue("q")
        waiting: list[int] = []
        for number in range(turns):
            waiting.append(store.enqueue(journal, b"%06d" % number + BODY))
            if len(waiting) > 50:
                store.store.append.dequeue(journal, waiting.pop(0))
            if number % 7 == 0:
                store.flush(journal)
        assert journal.geometry.files <= 8
        waiting += fill(store, journal, 700)
        assert journal.geometry.files > 8
        assert list(journal.writer.live) == waiting
        store.store._opened.close()  # as a crash leaves it
        again = OpenedStore(tool_environment(), tmp_path / f"store{turns}", parameters())
        assert len(again.recovered_data()["q"]) == len(waiting)
        assert not [line for line in again.lines if line.level in ("critical", "warning")]
        again.store.close()


def test_files_are_given_back(tmp_path: Path, impatient: None) -> None:
    store = opened(tmp_path)
    journal = store.make_queue("q")
    for _ in range(3):
        rids = fill(store, journal)
        for rid in rids:
            store.store.append.dequeue(journal, rid)
        store.flush(journal)
        look(store)
        assert journal.geometry.files == 4
        assert len(data_files(journal)) == 4
    kept = fill(store, journal, 3)
    store.store.close()
    again = opened(tmp_path)
    assert len(again.recovered_data()["q"]) == len(kept)
    assert again.journal("q").geometry.files == 4
    again.store.close()


def emptied(path: Path, *names: str) -> tuple[OpenedStore, list[QueueJournal]]:
    """A store whose journals have grown, and need only few of their files any more."""
    store = opened(path)
    journals = [store.make_queue(name) for name in names]
    for journal in journals:
        for rid in fill(store, journal):
            store.store.append.dequeue(journal, rid)
        store.flush(journal)
        assert journal.geometry.files >= 30
    return store, journals


def test_few_files_are_removed_at_a_time(tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all journals together."""
    monkeypatch.setattr(growth, "MAX_REMOVED", 6)
    store, journals = emptied(tmp_path, "a", "b", "c")
    look(store, 2)
    assert [journal.geometry.files for journal in journals] == [4, 4, 4]
    counts = [sum(len(data_files(journal)) for journal in journals)]
    while counts[-1] > 3 * 4:
        look(store, 1)
        counts.append(sum(len(data_files(journal)) for journal in journals))
        assert counts[-1] < counts[-2]
    assert max(before - after for before, after in itertools.pairwise(counts)) == 6
    store.store.close()


@pytest.mark.parametrize("is_killed", [False, True])
def test_removed_files_go_on_close_or_at_the_next_start(tmp_path: Path, impatient: None, is_killed: bool) -> None:
    """A store that is closed removes it, and otherwise the next start."""
    store, (journal,) = emptied(tmp_path, "q")
    store.store.look()
    store.store.collect()  # the ring is smaller
    assert journal.geometry.files == 4
    assert len(data_files(journal)) >= 30
    assert not open_journal(OsWritableDisk(), journal.directory).damage
    if is_killed:
        store.store._opened.close()
    else:
        store.store.close()
        assert len(data_files(journal)) == 4
    again = opened(tmp_path)
    assert len(data_files(journal)) == 4
    assert not [line for line in again.lines if line.level in ("critical", "warning")]
    again.store.close()


def test_a_ring_that_grows_again_before_its_files_are_removed(
    tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "MAX_REMOVED", 1)
    store, (journal,) = emptied(tmp_path, "q")
    for _ in range(3):
        look(store, 3)
    assert journal.geometry.files == 4
    rids = fill(store, journal)
    look(store, 60)
    assert journal.geometry.files >= 30
    assert len(data_files(journal)) == journal.geometry.files
    store.store._opened.close()
    again = opened(tmp_path)
    assert len(again.recovered_data()["q"]) == len(rids)
    again.store.close()


def test_files_are_removed_at_once_if_the_disk_is_short(
    tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "MAX_REMOVED", 1)
    store, (journal, other) = emptied(tmp_path, "q", "other")
    look(store, 2)
    assert len(data_files(journal)) >= 28
    monkeypatch.setattr(OsWritableDisk, "space", lambda _disk, _path: (0, 100 << 30))
    with pytest.raises(ThresholdError):
        fill(store, other)
    store.store.collect()
    assert len(data_files(journal)) == 4
    store.store.close()


def test_files_are_given_back_after_a_snapshot_though_the_queue_is_idle(tmp_path: Path, impatient: None) -> None:
    store = opened(tmp_path)
    journal = store.make_queue("q")
    pins = [journal.writer.space.pin()]
    for rid in fill(store, journal):
        store.store.append.dequeue(journal, rid)
    store.flush(journal)
    pins.append(journal.writer.space.pin())
    files = journal.geometry.files
    look(store)
    assert journal.geometry.files == files
    for pin in pins:
        pin.holds = False
    look(store)
    assert journal.geometry.files < files // 2
    store.store.close()


def test_shrinking_ring_keeps_its_messages(tmp_path: Path, impatient: None) -> None:
    store = opened(tmp_path)
    journal = store.make_queue("q")
    rids = fill(store, journal)
    for rid in rids[:-100]:
        store.store.append.dequeue(journal, rid)
    store.flush(journal)
    look(store)
    assert journal.geometry.files < 12
    fill(store, journal, 500)
    store.store._opened.close()
    again = opened(tmp_path)
    found = [int(data[:6]) for data in again.recovered_data()["q"]]
    assert found == [*range(MESSAGES - 100, MESSAGES), *range(500)]
    again.store.close()


def test_files_that_are_needed_again_soon_are_kept(tmp_path: Path) -> None:
    store = opened(tmp_path)
    journal = store.make_queue("q")
    for rid in fill(store, journal):
        store.store.append.dequeue(journal, rid)
    store.flush(journal)
    files = journal.geometry.files
    look(store, 5)
    assert journal.geometry.files == files
    look(store, 10)
    assert journal.geometry.files == 4
    store.store.close()


def test_a_message_longer_than_the_ring(tmp_path: Path) -> None:
    store = opened(tmp_path)
    journal = store.make_queue("q")
    store.enqueue(journal, b"y" * 5_000_000)
    store.flush(journal)
    assert journal.geometry.files * 65536 > 5_000_000
    store.store.close()
    again = opened(tmp_path)
    assert again.recovered_data()["q"] == [b"y" * 5_000_000]
    again.store.close()


def test_transactions_grow_journals_too(tmp_path: Path) -> None:
    store = opened(tmp_path)
    one, two = store.make_queue("one"), store.make_queue("two")
    crc = data_crc((BODY,))
    calls: list[object] = []
    for _ in range(10):
        parts = [(journal, [((BODY,), len(BODY), crc)] * 60) for journal in (one, two)]
        store.store.transactions.commit(parts, [], calls.append)
    store.wait(calls, 10)
    assert calls == [None] * 10
    assert (one.depth, two.depth) == (600, 600)
    assert one.geometry.files > 8 < two.geometry.files
    store.store.close()


# ---- limits ----


@pytest.mark.parametrize(
    ("options", "arguments", "files"),
    [
        ({"auto_expand": False}, {}, 4),
        ({}, {"qpid.auto_expand": False}, 4),
        ({"auto_expand": False}, {"qpid.auto_expand": True, "qpid.auto_expand_max_jfiles": 9}, 9),
        ({"auto_expand_max_jfiles": 10}, {}, 10),
        ({"auto_expand_max_jfiles": 2}, {}, 4),
        ({"auto_expand_max_jfiles": 10}, {"qpid.auto_expand_max_jfiles": 7}, 7),
        ({"max_journal_size": 1}, {}, 15),  # 16 are a bit more than 1 MiB
        ({"max_journal_size": 2}, {"qpid.max_journal_size": 1}, 15),
        ({"max_journal_size": 1, "auto_expand_max_jfiles": 12}, {}, 12),
        ({"max_journal_size": 1}, {"qpid.auto_expand_max_jfiles": "nonsense", "qpid.max_journal_size": 3}, 15),
    ],
    ids=str,
)
def test_limits(tmp_path: Path, options: dict[str, int | bool], arguments: dict[str, object], files: int) -> None:
    store = opened(tmp_path, **options)
    journal = store.make_queue("q", arguments=typed_map(arguments))
    with pytest.raises(ThresholdError, match='Enqueue capacity threshold exceeded on queue "q"') as refused:
        fill(store, journal)
    assert journal.geometry.files == files
    fixed = journal.max_files == 0 or files == 4
    assert ("reached its limit" in str(refused.value)) == (journal.max_files > 0)
    assert fixed or f"{files} files" in str(refused.value)
    assert journal_metrics(store.store, journal).max_file_count == files
    assert store.texts.count('Enqueue capacity threshold exceeded on queue "q" (RHM_IORES_ENQCAPTHRESH).') == 1
    store.store.close()
    again = opened(tmp_path, **options)  # the limit is that of the declaration after a start, too
    assert again.journal("q").max_files == journal.max_files
    again.store.close()


def test_a_record_that_no_journal_can_hold(tmp_path: Path) -> None:
    store = opened(tmp_path)
    journal = store.make_queue("q")
    with pytest.raises(RecordTooLongError):
        store.store.append.enqueue(journal, (), 1 << 32, 0)
    assert journal.geometry.files == 4
    store.store.close()


# ---- disks ----


class Disk(OsWritableDisk):
    """A disk with so much room, and calls that fail."""

    __slots__ = ("_listed", "failing", "free")

    def __init__(self) -> None:
        super().__init__()
        self.free, self.failing = 1 << 40, ""
        self._listed = False  # whether the last files created are new ones of a ring, listed as spare

    def space(self, path: str) -> tuple[int, int]:
        """The test's answer."""
        return self.free, 100 << 20

    def create(self, path: str, size: int):  # type: ignore[no-untyped-def]
        """May fail."""
        if self.failing == "create" and path.endswith(".jdat"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self.failing == "info" and path.endswith(".jinf.new") and self._listed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self._listed = path.endswith(".jinf.new") or (self._listed and path.endswith(".jdat"))
        return super().create(path, size)

    def rename(self, source: str, target: str) -> None:
        """May fail."""
        if self.failing == "rename" and "initial_jrnl_files" in Path(source).read_text():
            raise OSError(errno.EIO, os.strerror(errno.EIO), source)
        super().rename(source, target)


def on_disk(path: Path, disk: Disk, **options: int | bool) -> OpenedStore:
    environment = tool_environment()._replace(disk=disk)
    return OpenedStore(environment, path / "store", replace(parameters(), **options))


def test_the_share_of_the_disk_that_stays_free(tmp_path: Path) -> None:
    disk = Disk()
    store = on_disk(tmp_path, disk, disk_free_limit=10)
    journal = store.make_queue("q")
    fill(store, journal, 300)
    files = journal.geometry.files
    disk.free = (10 << 20) + 100_000
    with pytest.raises(ThresholdError, match="the disk has 10 MiB free, and keeps 10 % of 100 MiB free"):
        fill(store, journal, 5000)
    assert journal.geometry.files == files
    assert journal.is_tight
    (line,) = [line for line in store.lines if line.level == "critical"]
    assert line.text.startswith("journals cannot grow: the disk has 10 MiB free")
    assert "disk-free-limit" in line.text
    disk.free = 1 << 40
    fill(store, journal, 500)
    assert journal.geometry.files > files
    assert not journal.is_tight
    assert "journals can grow again" in store.texts
    store.store.close()


def test_the_last_files_that_the_disk_has_room_for(tmp_path: Path) -> None:
    """A large journal takes fewer than it would, until the share that stays free is nearly reached."""

    class Filling(Disk):
        def create(self, path: str, size: int):  # type: ignore[no-untyped-def]
            self.free -= size if path.endswith(".jdat") else 0
            return super().create(path, size)

    disk = Filling()
    store = on_disk(tmp_path, disk, disk_free_limit=10)
    journal = store.make_queue("q")
    while journal.geometry.files < 60:
        fill(store, journal, 100)
    size = journal.geometry.file_size
    disk.free = (10 << 20) + 17 * size
    files = journal.geometry.files
    with pytest.raises(ThresholdError, match="keeps 10 % of 100 MiB free"):
        fill(store, journal, 10_000)
    assert 13 <= journal.geometry.files - files <= 17
    assert disk.free >= 10 << 20
    store.store.close()


def test_a_journal_that_is_drained_is_not_tight_any_more(tmp_path: Path) -> None:
    disk = Disk()
    store = on_disk(tmp_path, disk, disk_free_limit=10)
    journal = store.make_queue("q")
    disk.free = (10 << 20) + 100_000
    rids = []
    while not journal.is_tight:
        rids += fill(store, journal, 10)
    assert len(rids) < journal.geometry.capacity // 1152  # before anything is refused
    for rid in rids:
        store.store.append.dequeue(journal, rid)
    store.flush(journal)
    assert not journal.is_tight
    store.store.close()


def test_a_snapshot_on_a_disk_that_is_nearly_full_slows_no_publisher_down(tmp_path: Path) -> None:
    """There is room but for what the snapshot holds: so it is overtaken in the end."""
    disk = Disk()
    store = on_disk(tmp_path, disk, disk_free_limit=10)
    journal = store.make_queue("q")
    disk.free = (10 << 20) + 100_000
    store.enqueue(journal, BODY)
    store.flush(journal)
    pin = journal.writer.space.pin()
    for _ in range(600):
        store.store.append.dequeue(journal, store.enqueue(journal, BODY))
        store.flush(journal)
        assert not journal.is_tight
    assert not pin.holds
    assert not [line for line in store.lines if line.level == "critical"]
    store.store.close()


def test_a_full_disk_when_files_are_created(tmp_path: Path) -> None:
    disk = Disk()
    store = on_disk(tmp_path, disk)
    journal = store.make_queue("q")
    disk.failing = "create"
    with pytest.raises(ThresholdError, match="cannot grow: No space left on device"):
        fill(store, journal)
    assert journal.geometry.files == 4
    assert len(data_files(journal)) == 4
    assert any(text.startswith("journals cannot grow: No space left on device; ") for text in store.texts)
    disk.failing = ""
    fill(store, journal, 500)
    assert journal.geometry.files > 8
    assert "journals can grow again" in store.texts
    store.store.close()
    again = opened(tmp_path)
    assert not [line for line in again.lines if line.level in ("critical", "warning")]
    again.store.close()


def test_when_it_is_unknown_which_ring_is_on_the_disk(tmp_path: Path) -> None:
    disk = Disk()
    store = on_disk(tmp_path, disk)
    journal = store.make_queue("q")
    rids = fill(store, journal, 20)
    disk.failing = "rename"
    with pytest.raises((JournalFailedError, ThresholdError)):
        fill(store, journal)
    assert journal.writer.failure is not None
    store.store.close()
    assert any("accepts no more records until the store is opened again" in text for text in store.texts)
    again = opened(tmp_path)
    assert len(again.recovered_data()["q"]) >= len(rids)
    fill(again, again.journal("q"))
    again.store.close()


def test_spare_file_of_interrupted_growth_is_removed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    journal = store.make_queue("q")
    fill(store, journal, 300)
    disk, base = OsWritableDisk(), posixpath.join(journal.directory, journal.base_name)
    store.store.close()
    info = info_of(journal)
    spare = max(info.numbers) + 1
    with_spare = info._replace(spare=(spare,))
    Path(base + ".jinf").write_bytes(encode_jinf(with_spare))
    disk.create(f"{base}.{spare:04x}.jdat", 65536).close()
    assert not open_journal(disk, journal.directory).damage
    again = opened(tmp_path)
    assert len(data_files(journal)) == info.geometry.files
    fill(again, again.journal("q"), 900)
    again.store.close()


def test_a_full_disk_when_the_info_file_is_written(tmp_path: Path) -> None:
    """The files exist already: they are removed, and only their numbers stay as spare ones."""
    disk = Disk()
    store = on_disk(tmp_path, disk)
    journal = store.make_queue("q")
    disk.failing = "info"
    with pytest.raises(ThresholdError, match="cannot grow: No space left on device"):
        fill(store, journal)
    assert (journal.geometry.files, len(data_files(journal))) == (4, 4)
    assert info_of(journal).spare
    disk.failing = ""
    fill(store, journal, 500)
    assert journal.geometry.files > 8
    store.store.close()
    again = opened(tmp_path)
    assert not [line for line in again.lines if line.level in ("critical", "warning")]
    again.store.close()


def test_a_message_that_comes_while_files_are_removed(tmp_path: Path, impatient: None) -> None:
    store = opened(tmp_path)
    journal = store.make_queue("q")
    for rid in fill(store, journal):
        store.store.append.dequeue(journal, rid)
    store.flush(journal)
    look_only, files = store.store.look, journal.geometry.files
    look_only()
    look_only()
    change = journal.writer.growth.change
    assert change is not None
    assert change.removed
    store.enqueue(journal, b"y" * (files * 65536))
    store.flush(journal)
    assert journal.depth == 1
    store.store.close()


def test_a_wide_ring_with_a_stuck_message_shrinks(tmp_path: Path, impatient: None) -> None:
    """One old message, and the writer far ahead of it: the few free files between them are given back as well."""
    store = opened(tmp_path)
    journal = store.make_queue("q")
    rids = fill(store, journal)
    for rid in rids[1:]:
        store.store.append.dequeue(journal, rid)
    store.flush(journal)
    files = journal.geometry.files
    look(store, 5)
    assert journal.geometry.files < files
    fill(store, journal, 3000)
    store.store._opened.close()
    again = opened(tmp_path)
    assert len(again.recovered_data()["q"]) == 3001
    again.store.close()


@pytest.mark.parametrize("turns", range(60, 600, 77))
def test_a_grown_ring_without_its_info_file(tmp_path: Path, turns: int) -> None:
    """The order is that of the flush numbers: nothing is lost, though the numbers of the files are in another order."""
    store = opened(tmp_path)
    journal = store.make_queue("q")
    waiting: list[int] = []
    for number in range(turns):
        waiting.append(store.enqueue(journal, b"%06d" % number + BODY))
        if len(waiting) > 50:
            store.store.append.dequeue(journal, waiting.pop(0))
        if number % 7 == 0:
            store.flush(journal)
    waiting += fill(store, journal, 900)
    store.store._opened.close()
    Path(journal.directory, journal.base_name + ".jinf").unlink()
    again = opened(tmp_path)
    assert [each.rid for each in again.recovered()["q"]] == waiting
    again.store.close()


@pytest.mark.parametrize(
    ("arguments", "idle"),
    [
        ({"qpid.auto_expand": False, "qpid.auto_expand_max_jfiles": 9}, "qpid.auto_expand_max_jfiles"),
        ({"qpid.auto_expand": False, "qpid.max_journal_size": 9}, "qpid.max_journal_size"),
        ({"qpid.auto_expand_max_jfiles": 7, "qpid.file_count": 8}, "qpid.auto_expand_max_jfiles"),
        ({"qpid.max_journal_size": 1, "qpid.file_count": 8}, "qpid.max_journal_size"),
        ({"qpid.auto_expand_max_jfiles": 9, "qpid.max_journal_size": 99, "qpid.file_count": 8}, ""),
        ({"qpid.auto_expand": False, "qpid.auto_expand_max_jfiles": 0}, ""),
    ],
    ids=str,
)
def test_a_limit_of_growth_without_effect_is_logged(arguments: dict[str, object], idle: str) -> None:
    parameters = StoreParameters()
    geometry, _ = queue_geometry(arguments, parameters)
    _, lines = queue_max_files(arguments, parameters, geometry)
    assert [line.text.partition(" has no effect: ")[0] for line in lines] == ([f"parameter {idle}"] if idle else [])


def test_options_of_growth_are_logged_if_journals_do_not_grow() -> None:
    given = {"auto-expand": "no", "auto-expand-max-jfiles": "9", "max-journal-size": "0"}
    _, lines = parse_parameters(given)
    (line,) = lines
    assert line.text.startswith("parameter auto-expand-max-jfiles has no effect: ")
    assert parse_parameters(given | {"auto-expand": "yes"})[1] == ()
