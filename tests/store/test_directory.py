"""A journal directory whose info file is lost, or contradicts the files beside it."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import encode_jinf
from qstore.store.disk import OsDisk, ReadableFile
from qstore.store.journal.directory import NotAJournalError, journal_base_names, open_journal
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery
from tests.support.journal_builder import DIRECTORY, JournalBuilder
from tests.support.memory_disk import MemoryDisk

INFO = f"{DIRECTORY}/JournalData.jinf"


@pytest.fixture(params=[1, 2])
def builder(request: pytest.FixtureRequest) -> JournalBuilder:
    builder = JournalBuilder(request.param, Geometry(4, 1024))
    for number in range(12):
        builder.enqueue(bytes([number]) * 200)
        builder.flush()
    return builder


def tell(disk: MemoryDisk, builder: JournalBuilder, geometry: Geometry) -> None:
    disk.files[INFO] = encode_jinf(builder.info._replace(geometry=geometry))


def rids(journal: Journal) -> list[int]:
    recovery = JournalRecovery()
    journal.walk(recovery)
    assert recovery.damage == []
    return [rid for rid, *_ in recovery.outstanding(journal.format)]


def all_rids(builder: JournalBuilder) -> list[int]:
    return rids(open_journal(builder.disk(), DIRECTORY))


def test_without_an_info_file_the_files_tell_number_and_size(builder: JournalBuilder) -> None:
    disk = builder.disk()
    del disk.files[INFO]
    journal = open_journal(disk, DIRECTORY, name="orders")
    assert journal.files.geometry == builder.geometry
    assert journal.name == "orders"
    assert [damage.file for damage in journal.damage] == [INFO]
    assert rids(journal) == all_rids(builder)


@pytest.mark.parametrize("reported", [Geometry(4, 2048), Geometry(4, 512), Geometry(3, 1024), Geometry(2, 4096)])
def test_an_info_file_that_the_files_contradict_is_not_believed(builder: JournalBuilder, reported: Geometry) -> None:
    disk = builder.disk()
    tell(disk, builder, reported)
    journal = open_journal(disk, DIRECTORY)
    assert journal.files.geometry == builder.geometry
    (damage,) = journal.damage
    assert damage.file == INFO
    assert damage.consequence == "the actual number and size of the files are used"
    assert rids(journal) == all_rids(builder)


def test_missing_or_short_files_do_not_contradict_it(builder: JournalBuilder) -> None:
    disk = builder.disk()
    disk.files[f"{DIRECTORY}/{builder.name(0)}"] = disk.files[f"{DIRECTORY}/{builder.name(0)}"][:1024]
    for number in (1, 2, 3):
        del disk.files[f"{DIRECTORY}/{builder.name(number)}"]
    journal = open_journal(disk, DIRECTORY)
    assert journal.files.geometry == builder.geometry
    assert {damage.file for damage in journal.damage} == {f"{DIRECTORY}/{builder.name(number)}" for number in range(4)}


def test_a_stray_file_with_a_high_number_is_not_read(builder: JournalBuilder) -> None:
    disk = builder.disk()
    stray = f"{DIRECTORY}/JournalData.ffff.jdat"
    disk.files[stray] = bytes(1536)
    journal = open_journal(disk, DIRECTORY)
    assert [(damage.file, damage.consequence) for damage in journal.damage] == [(stray, "it is not read")]
    assert rids(journal) == all_rids(builder)
    del disk.files[INFO]
    assert open_journal(disk, DIRECTORY).files.geometry == builder.geometry


def test_without_any_size_there_is_no_journal() -> None:
    disk = MemoryDisk({INFO: b"", f"{DIRECTORY}/JournalData.0000.jdat": bytes(100)})
    with pytest.raises(NotAJournalError, match="neither an info file nor a journal file"):
        open_journal(disk, DIRECTORY)


def test_the_base_names_of_several_journals() -> None:
    names = ["tpl.jinf", "tpl.0000.jdat", "JournalData.0001.jdat", "a.b.0002.jdat", "x.jdat", "y.00g0.jdat"]
    assert journal_base_names(names) == ["JournalData", "a.b", "tpl"]
    disk = MemoryDisk({f"{DIRECTORY}/{name}": b"" for name in ("x.0000.jdat", "y.0000.jdat")})
    with pytest.raises(NotAJournalError, match="several journals"):
        open_journal(disk, DIRECTORY)


def test_old_files_that_a_resize_left_beside_the_new(builder: JournalBuilder) -> None:
    disk = builder.disk()
    for number in range(builder.geometry.files):
        disk.files[f"{DIRECTORY}/old.{number:04x}.jdat"] = disk.files[f"{DIRECTORY}/{builder.name(number)}"]
    disk.files[f"{DIRECTORY}/old.jinf"] = disk.files[INFO]
    journal = open_journal(disk, DIRECTORY)
    assert journal.damage == []
    assert rids(journal) == all_rids(builder)
    assert "another journal (old)" in journal.notices[0]


@pytest.mark.parametrize("files", [65, 4096, 65535])
def test_an_info_file_that_claims_too_many_files_is_not_believed(builder: JournalBuilder, files: int) -> None:
    disk = builder.disk()
    tell(disk, builder, Geometry(files, 1024))
    journal = open_journal(disk, DIRECTORY)
    assert journal.files.geometry == builder.geometry
    assert "out of range (at most 64)" in journal.damage[0].what


class CountingDisk:
    """Counts how often each file is opened."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk, self.opened = disk, Counter[str]()

    def open(self, path: str) -> ReadableFile:
        self.opened[path] += 1
        return self._disk.open(path)

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)


def test_each_file_of_a_sound_journal_is_opened_once(builder: JournalBuilder) -> None:
    disk = CountingDisk(builder.disk())
    open_journal(disk, DIRECTORY)  # type: ignore[arg-type]
    files = {path for path in builder.disk().files if path.startswith(DIRECTORY)}
    assert disk.opened == Counter(files)
    assert len(files) == builder.geometry.files + 1


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_a_path_that_cannot_be_examined_is_not_reported_as_missing(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: str) -> os.stat_result:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "stat", refuse)
    for question in (OsDisk().is_file, OsDisk().is_directory):
        with pytest.raises(OSError, match=os.strerror(error)):
            question("/journal")


def test_a_missing_path_is_neither_a_file_nor_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    disk = OsDisk()
    for name in ("nothing", "file/below", "loop", "a\0b"):
        assert (disk.is_file(f"{tmp_path}/{name}"), disk.is_directory(f"{tmp_path}/{name}")) == (False, False)
    assert (disk.is_file(f"{tmp_path}/file"), disk.is_directory(str(tmp_path))) == (True, True)
    assert disk.names(str(tmp_path)) == ["file", "loop"]
