"""One contract for every writable disk: the operating system's and the simulated one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from qstore.store.disk import Disk, OsWritableDisk, WritableDisk, read_whole
from tests.faults.simulated_disk import SimulatedDisk
from tests.support.profiles import examples


class Place:
    """A disk, and an empty directory on it."""

    def __init__(self, disk: WritableDisk, root: str) -> None:
        self.disk = disk
        self.root = root

    def __call__(self, name: str) -> str:
        """The path of `name`."""
        return f"{self.root}/{name}"

    def make(self, name: str, content: bytes = b"") -> None:
        """A synced file."""
        file = self.disk.create(self(name), 0)
        file.write(0, content)
        file.sync()
        file.close()

    def content(self, name: str) -> bytes:
        """All that is in a file."""
        return read_whole(self.disk, self(name), 1 << 20)


@pytest.fixture(params=["operating system", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    disk: WritableDisk
    if request.param == "operating system":
        return Place(OsWritableDisk(), str(tmp_path))
    disk = SimulatedDisk(1)
    disk.make_directory("/place")
    return Place(disk, "/place")


@pytest.fixture(params=[0, 0o777], ids=["umask 0", "umask 777"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


class TestFiles:
    def test_a_new_file_is_of_zeros_and_is_open_to_read_and_write(self, place: Place) -> None:
        file = place.disk.create(place("new"), 5000)
        assert (file.size, file.read(0, 6000)) == (5000, bytes(5000))
        file.write(4998, b"ab")
        assert file.read(4990, 100) == bytes(8) + b"ab"
        file.close()
        assert place.content("new") == bytes(4998) + b"ab"

    def test_a_new_file_may_be_empty(self, place: Place) -> None:
        file = place.disk.create(place("new"), 0)
        assert (file.size, file.read(0, 10)) == (0, b"")
        file.close()

    def test_reading_ends_at_the_end(self, place: Place) -> None:
        place.make("file", b"0123456789")
        file = place.disk.open(place("file"))
        assert (file.size, file.read(3, 4), file.read(8, 4), file.read(10, 4), file.read(99, 4), file.read(0, 0)) == (
            10, b"3456", b"89", b"", b"", b"",
        )  # fmt: skip
        file.close()

    def test_a_write_extends_and_leaves_zeros_between(self, place: Place) -> None:
        file = place.disk.create(place("file"), 4)
        file.write(6, b"ab")
        assert (file.size, file.read(0, 99)) == (8, b"\0\0\0\0\0\0ab")
        file.write(0, b"cd")
        assert (file.size, file.read(0, 99)) == (8, b"cd\0\0\0\0ab")
        file.write(99, b"")
        assert (file.size, file.read(0, 99)) == (8, b"cd\0\0\0\0ab")
        file.close()

    def test_filling_ahead_changes_no_content(self, place: Place) -> None:
        file = place.disk.create(place("file"), 200_000)
        file.write(150_000, b"later")
        for offset in (0, 512, 70_000, 149_000, 150_005, 199_999, 200_000):
            file.write(offset, b"ab"[: 200_000 - offset])
            file.fill_ahead(min(offset + 2, 200_000))
        expected = bytearray(200_000)
        expected[150_000:150_005] = b"later"
        for offset in (0, 512, 70_000, 149_000, 150_005, 199_998):
            expected[offset : offset + 2] = b"ab"
        expected[199_998:] = b"\0a"
        assert file.size == 200_000
        assert file.read(0, 300_000) == bytes(expected)
        file.close()

    def test_a_synced_write_is_of_many_pieces(self, place: Place) -> None:
        file = place.disk.create(place("file"), 10)
        file.write_synced(8, (b"ab", b"", memoryview(b"cd")), 4)
        assert (file.size, file.read(0, 99)) == (12, bytes(8) + b"abcd")
        pieces = [b"%d " % number for number in range(3000)]
        content = b"".join(pieces)
        file.write_synced(2, pieces, len(content))
        assert (file.size, file.read(0, 1 << 20)) == (2 + len(content), bytes(2) + content)
        file.close()

    def test_written_content_is_copied(self, place: Place) -> None:
        file = place.disk.create(place("file"), 0)
        content = bytearray(b"abc")
        file.write(0, memoryview(content))
        content[0] = 0
        assert file.read(0, 3) == b"abc"
        file.write(1, memoryview(b"xyz")[1:])
        assert file.read(0, 9) == b"ayz"
        file.close()

    @pytest.mark.parametrize("size", [0, 1100])  # those of the first are joined
    def test_many_pieces_are_written_one_after_the_other(self, place: Place, size: int) -> None:
        file = place.disk.create(place("file"), 10)
        pieces = [b"%d " % number + bytes(size) for number in range(3000)] + [b""]
        content = b"".join(pieces)
        file.write_all(7, pieces, len(content))
        assert file.size == 7 + len(content)
        assert file.read(0, len(content) + 100) == bytes(7) + content
        file.close()

    def test_writes_are_visible_through_another_handle(self, place: Place) -> None:
        place.make("file", b"before")
        reader, writer = place.disk.open(place("file")), place.disk.open_writable(place("file"))
        writer.write(0, b"after!")
        assert reader.read(0, 6) == b"after!"
        writer.sync()
        writer.close()
        assert reader.read(0, 6) == b"after!"
        reader.close()

    def test_a_handle_stays_on_its_file_whatever_becomes_of_the_name(self, place: Place) -> None:
        file = place.disk.create(place("file"), 3)
        place.disk.rename(place("file"), place("moved"))
        file.write(0, b"one")
        assert place.content("moved") == b"one"
        place.disk.remove(place("moved"))
        file.write(0, b"two")
        file.sync()
        assert file.read(0, 3) == b"two"
        file.close()

    def test_a_closed_file_is_neither_read_nor_written(self, place: Place) -> None:
        file = place.disk.create(place("file"), 3)
        file.close()
        file.close()
        attempts: list[Callable[[], object]] = [lambda: file.read(0, 1), lambda: file.write(0, b"a"), file.sync]
        for attempt in attempts:
            assert code_of(attempt) == errno.EBADF

    @examples(30, suppress=[HealthCheck.function_scoped_fixture])
    @given(
        writes=st.lists(st.tuples(st.integers(0, 3000), st.binary(max_size=700), st.booleans()), max_size=6),
        reads=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 2000)), max_size=4),
    )
    def test_file_behaves_like_an_array_of_bytes(
        self, place: Place, writes: list[tuple[int, bytes, bool]], reads: list[tuple[int, int]]
    ) -> None:
        file = place.disk.create(place("array"), 600)
        model = bytearray(600)
        for offset, data, synced in writes:
            file.write(offset, data)
            if data:
                model.extend(bytes(max(0, offset + len(data) - len(model))))
                model[offset : offset + len(data)] = data
            if synced:
                file.sync()
        assert (file.size, file.read(0, 1 << 20)) == (len(model), bytes(model))
        for offset, length in reads:
            assert file.read(offset, length) == model[offset : offset + length]
        file.close()
        assert place.content("array") == model
        place.disk.remove(place("array"))

    def test_a_version_tells_writing_and_replacing(self, place: Place) -> None:
        for name in "ab":
            place.make(name, b"text")
        disk, seen = place.disk, place.disk.version(place("a"))
        assert seen != disk.version(place("b"))
        assert place.content("a") == b"text"
        assert seen == disk.version(place("a")) != ""
        file, end = disk.open_writable(place("a")), time.monotonic() + 10
        while disk.version(place("a")) == seen and time.monotonic() < end:  # its clock may have steps of some ms
            file.write(0, b"next")
        file.close()
        assert disk.version(place("a")) != seen
        seen = disk.version(place("b"))
        disk.rename(place("a"), place("b"))
        assert disk.version(place("b")) != seen
        assert disk.version(place("a")) == disk.version(place("c")) == ""


class TestNames:
    def test_names_are_sorted_and_of_every_kind(self, place: Place) -> None:
        disk = place.disk
        assert disk.names(place.root) == []
        place.make("b")
        disk.make_directory(place("c"))
        place.make("a")
        place.make("c/inside", b"deep")
        assert (disk.names(place.root), disk.names(place("c"))) == (["a", "b", "c"], ["inside"])
        assert [disk.is_file(place(name)) for name in ("a", "c", "c/inside", "d", "a/x", "d/x")] == [
            True, False, True, False, False, False,
        ]  # fmt: skip
        assert [disk.is_directory(place(name)) for name in ("a", "c", "c/inside", "d", "a/x", ".")] == [
            False, True, False, False, False, True,
        ]  # fmt: skip
        assert place.content("c/../c//./inside") == b"deep"
        disk.sync_directory(place.root)

    def test_paths_are_made_absolute(self, place: Place) -> None:
        place.make("a")
        assert place.disk.real_path(place("./b/../a")) == place.disk.real_path(place("a"))
        assert place.disk.real_path(place.disk.real_path(place("a"))) == place.disk.real_path(place("a"))
        assert place.disk.real_path(place("missing")).startswith("/")
        assert place.disk.link_target(place("a")) is None
        assert place.disk.link_target(place("missing")) is None

    def test_renaming_a_file_replaces_the_target(self, place: Place) -> None:
        place.make("a", b"1")
        place.make("b", b"2")
        place.disk.rename(place("a"), place("b"))
        assert (place.disk.names(place.root), place.content("b")) == (["b"], b"1")
        place.disk.rename(place("b"), place("b"))
        place.disk.rename(place("b"), place("c"))
        assert (place.disk.names(place.root), place.content("c")) == (["c"], b"1")

    def test_a_directory_gets_another_name_with_all_that_is_in_it(self, place: Place) -> None:
        disk = place.disk
        disk.make_directory(place("a"))
        disk.make_directory(place("other"))
        disk.make_directory(place("empty"))
        place.make("a/file", b"1")
        disk.rename(place("a"), place("b"))
        disk.rename(place("b"), place("other/c"))
        assert (disk.names(place.root), place.content("other/c/file")) == (["empty", "other"], b"1")
        disk.rename(place("other/c"), place("empty"))
        assert (disk.names(place.root), place.content("empty/file")) == (["empty", "other"], b"1")
        disk.rename(place("empty/file"), place("other/file"))
        assert (disk.names(place("empty")), disk.names(place("other"))) == ([], ["file"])

    def test_removed_names_are_gone_and_can_be_made_again(self, place: Place) -> None:
        disk = place.disk
        disk.make_directory(place("a"))
        place.make("a/file", b"1")
        disk.remove(place("a/file"))
        disk.remove_directory(place("a"))
        assert disk.names(place.root) == []
        disk.make_directory(place("a"))
        place.make("a/file", b"2")
        assert place.content("a/file") == b"2"


# Each attempt is made on a directory with a file `file`, a directory `full` with a file in it, and an empty one.
REFUSALS: list[tuple[int, str, Callable[[WritableDisk, Callable[[str], str]], object]]] = [
    (errno.EEXIST, "create over a file", lambda disk, at: disk.create(at("file"), 1)),
    (errno.EEXIST, "create over a directory", lambda disk, at: disk.create(at("empty"), 1)),
    (errno.ENOENT, "create in what is missing", lambda disk, at: disk.create(at("missing/x"), 1)),
    (errno.ENOTDIR, "create below a file", lambda disk, at: disk.create(at("file/x"), 1)),
    (errno.ENOENT, "open what is missing", lambda disk, at: disk.open(at("missing"))),
    (errno.ENOENT, "open in what is missing", lambda disk, at: disk.open(at("missing/x"))),
    (errno.ENOTDIR, "open below a file", lambda disk, at: disk.open(at("file/x"))),
    (errno.EINVAL, "open a directory", lambda disk, at: disk.open(at("empty"))),
    (errno.ENOENT, "write what is missing", lambda disk, at: disk.open_writable(at("missing"))),
    (errno.ENOTDIR, "write below a file", lambda disk, at: disk.open_writable(at("file/x"))),
    (errno.EISDIR, "write a directory", lambda disk, at: disk.open_writable(at("empty"))),
    (errno.ENOENT, "names of what is missing", lambda disk, at: disk.names(at("missing"))),
    (errno.ENOTDIR, "names of a file", lambda disk, at: disk.names(at("file"))),
    (errno.EEXIST, "directory over a file", lambda disk, at: disk.make_directory(at("file"))),
    (errno.EEXIST, "directory over a directory", lambda disk, at: disk.make_directory(at("empty"))),
    (errno.EEXIST, "directory over the root", lambda disk, at: disk.make_directory("/")),
    (errno.ENOENT, "directory in what is missing", lambda disk, at: disk.make_directory(at("missing/x"))),
    (errno.ENOTDIR, "directory below a file", lambda disk, at: disk.make_directory(at("file/x"))),
    (errno.ENOENT, "rename what is missing", lambda disk, at: disk.rename(at("missing"), at("x"))),
    (errno.ENOENT, "rename into what is missing", lambda disk, at: disk.rename(at("file"), at("missing/x"))),
    (errno.ENOTDIR, "rename below a file", lambda disk, at: disk.rename(at("empty"), at("file/x"))),
    (errno.EISDIR, "rename a file over a directory", lambda disk, at: disk.rename(at("file"), at("empty"))),
    (errno.ENOTDIR, "rename a directory over a file", lambda disk, at: disk.rename(at("empty"), at("file"))),
    (errno.ENOTEMPTY, "rename over a full directory", lambda disk, at: disk.rename(at("empty"), at("full"))),
    (errno.EINVAL, "rename a directory into itself", lambda disk, at: disk.rename(at("full"), at("full/x"))),
    (errno.ENOENT, "remove what is missing", lambda disk, at: disk.remove(at("missing"))),
    (errno.EISDIR, "remove a directory as a file", lambda disk, at: disk.remove(at("empty"))),
    (errno.ENOENT, "remove a directory that is missing", lambda disk, at: disk.remove_directory(at("missing"))),
    (errno.ENOTDIR, "remove a file as a directory", lambda disk, at: disk.remove_directory(at("file"))),
    (errno.ENOTEMPTY, "remove a full directory", lambda disk, at: disk.remove_directory(at("full"))),
    (errno.ENOENT, "sync a directory that is missing", lambda disk, at: disk.sync_directory(at("missing"))),
    (errno.ENOTDIR, "sync a file as a directory", lambda disk, at: disk.sync_directory(at("file"))),
    (errno.EISDIR, "lock a directory", lambda disk, at: disk.lock(at("empty"))),
    (errno.ENOENT, "lock in what is missing", lambda disk, at: disk.lock(at("missing/x"))),
]


def code_of(attempt: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 (its number is compared)
        attempt()
    return caught.value.errno


class TestRefusals:
    @pytest.mark.parametrize(("code", "attempt"), [(r[0], r[2]) for r in REFUSALS], ids=[r[1] for r in REFUSALS])
    def test_impossible_call_is_refused_and_changes_nothing(
        self, place: Place, code: int, attempt: Callable[[WritableDisk, Callable[[str], str]], object]
    ) -> None:
        place.make("file", b"1")
        place.disk.make_directory(place("empty"))
        place.disk.make_directory(place("full"))
        place.make("full/file", b"2")
        with pytest.raises(OSError) as caught:  # noqa: PT011 (its number is compared)
            attempt(place.disk, place)
        assert caught.value.errno == code
        assert caught.value.filename
        assert place.disk.names(place.root) == ["empty", "file", "full"]
        assert (place.disk.names(place("full")), place.disk.names(place("empty"))) == (["file"], [])
        assert (place.content("file"), place.content("full/file")) == (b"1", b"2")

    def test_the_classes_of_errors_are_the_system_s(self, place: Place) -> None:
        place.make("file")
        with pytest.raises(FileExistsError):
            place.disk.create(place("file"), 0)
        with pytest.raises(FileNotFoundError):
            place.disk.open_writable(place("missing"))
        with pytest.raises(NotADirectoryError):
            place.disk.names(place("file"))
        with pytest.raises(IsADirectoryError):
            place.disk.open_writable(place.root)


class TestLocks:
    def test_a_held_lock_is_refused_and_a_released_one_is_free(self, place: Place) -> None:
        lock = place.disk.lock(place("lock"))
        assert place.disk.is_file(place("lock"))
        with pytest.raises(BlockingIOError) as caught:
            place.disk.lock(place("lock"))
        assert caught.value.filename == place("lock")
        other = place.disk.lock(place("other"))
        lock.release()
        lock.release()
        again = place.disk.lock(place("lock"))
        lock.release()
        with pytest.raises(BlockingIOError):
            place.disk.lock(place("lock"))
        again.release()
        other.release()

    def test_a_lock_is_on_the_file_and_does_not_change_it(self, place: Place) -> None:
        place.make("file", b"content")
        lock = place.disk.lock(place("file"))
        assert place.content("file") == b"content"
        place.disk.rename(place("file"), place("moved"))
        with pytest.raises(BlockingIOError):
            place.disk.lock(place("moved"))
        fresh = place.disk.lock(place("file"))
        fresh.release()
        lock.release()


def test_a_disk_that_writes_is_a_disk_that_reads(place: Place) -> None:
    disk: Disk = place.disk
    assert disk.names(place.root) == []


class TestOperatingSystem:
    """What the simulated disk does not have: modes, and allocation that fails."""

    def test_modes_are_private_whatever_the_umask(self, umask: int, tmp_path: Path) -> None:
        disk = OsWritableDisk()
        disk.make_directory(str(tmp_path / "directory"))
        disk.create(str(tmp_path / "directory/file"), 10).close()
        disk.lock(str(tmp_path / "directory/lock")).release()
        modes = [
            stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("directory", "directory/file", "directory/lock")
        ]
        assert modes == [0o700, 0o600, 0o600]

    def test_space_is_allocated(self, tmp_path: Path) -> None:
        OsWritableDisk().create(str(tmp_path / "file"), 1 << 20).close()
        assert (tmp_path / "file").stat().st_blocks * 512 >= 1 << 20

    def test_an_allocation_that_fails_leaves_no_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(descriptor: int, offset: int, length: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "posix_fallocate", fail)
        with pytest.raises(OSError, match=str(tmp_path / "file")) as caught:
            OsWritableDisk().create(str(tmp_path / "file"), 10)
        assert caught.value.errno == errno.ENOSPC
        assert list(tmp_path.iterdir()) == []

    def test_unwritten_regions_are_known(self, tmp_path: Path) -> None:
        file = OsWritableDisk().create(str(tmp_path / "file"), 1 << 20)
        if os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 1 << 20:
            pytest.skip("this file system does not distinguish allocated blocks from written ones")
        assert file.data_from(0) == 1 << 20
        file.write(400_000, b"record")
        assert file.data_from(8192) == 400_000 // 4096 * 4096
        assert file.data_from(500_000) == 1 << 20
        file.write((1 << 20) - 1, b"\0")
        assert file.data_from(500_000) == (1 << 20) - 4096
        assert len(file.read(0, 1 << 20)) == 1 << 20
        assert file.data_from(8192) == 400_000 // 4096 * 4096, "what was read only was not written"
        file.close()
        assert file.data_from(8192) == 8192  # which cannot be known

    def test_written_regions_are_known_after_many_that_are_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[int] = []

        def extents(_file: int, _request: int, answer: bytearray) -> None:
            begin, length, _, _, room, _ = struct.unpack_from("=QQIIII", answer)
            asked.append(begin)
            assert begin + length == 1 << 20
            for number in range(room):
                place = begin // 4096 + number
                flags = 0 if place == 130 else 0x800
                struct.pack_into("=QQQQQIIII", answer, 32 + number * 56, place * 4096, 0, 4096, 0, 0, flags, 0, 0, 0)
            struct.pack_into("=I", answer, 20, room)

        with contextlib.closing(OsWritableDisk().create(str(tmp_path / "file"), 1 << 20)) as file:
            file.write(0, bytes(1 << 20))
            monkeypatch.setattr(fcntl, "ioctl", extents)
            assert file.data_from(4096) == 130 * 4096
            assert asked == list(range(4096, 130 * 4096, asked[1] - asked[0]))
            assert file.data_from(131 * 4096) == 1 << 20

    def test_a_file_system_that_does_not_tell_extents_may_have_data_anywhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

        with contextlib.closing(OsWritableDisk().create(str(tmp_path / "file"), 1 << 20)) as file:
            file.write(0, bytes(1 << 20))
            monkeypatch.setattr(fcntl, "ioctl", fail)
            assert file.data_from(8192) == 8192

    def test_blocks_that_were_never_written_are_filled_ahead(self, tmp_path: Path) -> None:
        file = OsWritableDisk().create(str(tmp_path / "file"), 1 << 20)
        file.write(512, b"record")
        if os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 1 << 20:
            pytest.skip("this file system does not distinguish allocated blocks from written ones")
        assert file.fill_ahead(518)
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 16 << 10
        assert not file.fill_ahead(1024)
        file.write(512 << 10, b"record")
        for offset in (16 << 10, (512 << 10) - 1, (512 << 10) + 6, 1 << 20):
            file.fill_ahead(offset)
        holes = [os.lseek(file.fileno(), offset, os.SEEK_HOLE) for offset in (0, 32 << 10, 508 << 10)]
        assert holes == [32 << 10, 32 << 10, 768 << 10]
        assert file.read(0, 1 << 20).translate(None, b"\0") == b"recordrecord"
        file.close()

    @pytest.mark.parametrize("size", [0, 1100])
    def test_pieces_that_are_not_all_written_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        file = OsWritableDisk().create(str(tmp_path / "file"), 0)
        pieces = [b"%d " % number + bytes(size) for number in range(3000)]
        content = b"".join(pieces)
        calls: list[str] = []

        def halve(name: str) -> None:
            call = getattr(os, name)

            def half(to: int, some: Any, at: int) -> int:
                calls.append(name)
                written: int = call(to, some[: (len(some) + 1) // 2], at)
                return written

            monkeypatch.setattr(os, name, half)

        halve("pwrite")
        halve("pwritev")
        file.write_all(3, pieces, len(content))
        assert file.read(0, len(content) + 10) == bytes(3) + content
        assert calls[:3] == ["pwritev" if size else "pwrite"] * 3
        assert len(calls) > 3
        file.close()

    def test_a_file_that_was_written_is_examined_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = OsWritableDisk().create(str(tmp_path / "file"), 0)
        file.write(0, b"x" * 300_000)
        lseek, calls = os.lseek, []

        def counted(descriptor: int, offset: int, how: int) -> int:
            calls.append(offset)
            return lseek(descriptor, offset, how)

        monkeypatch.setattr(os, "lseek", counted)
        monkeypatch.setattr(os, "pwrite", None)
        for offset in range(1000, 300_000, 1000):
            file.fill_ahead(offset)
        assert calls == [1000]
        file.close()

    @pytest.mark.parametrize("name", ["lseek", "pwrite"])
    def test_blocks_that_cannot_be_filled_stay_as_they_are(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        def fail(descriptor: int, *_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        file = OsWritableDisk().create(str(tmp_path / "file"), 1 << 20)
        file.write(512, b"record")
        with monkeypatch.context() as patched:
            patched.setattr(os, name, fail)
            assert not file.fill_ahead(518)
        file.write(518, b"another")
        assert file.read(512, 99) == b"recordanother" + bytes(86)
        file.close()

    def test_short_writes_are_continued(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pwrite, calls = os.pwrite, []

        def short(descriptor: int, content: bytes, offset: int) -> int:
            calls.append(offset)
            return pwrite(descriptor, memoryview(content)[:3], offset)

        monkeypatch.setattr(os, "pwrite", short)
        file = OsWritableDisk().create(str(tmp_path / "file"), 0)
        file.write(5, b"0123456789")
        assert calls == [5, 8, 11, 14]
        assert file.read(5, 99) == b"0123456789"
        file.close()

    @pytest.mark.parametrize("code", [None, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
    def test_a_synced_write_that_the_system_does_not_do_at_once_is_done_in_steps(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
    ) -> None:
        """A part was written, or the system does not know the flag."""
        pwritev, fdatasync, synced = os.pwritev, os.fdatasync, []

        def written(descriptor: int, pieces: list[bytes], offset: int, flags: int) -> int:
            assert flags == os.RWF_DSYNC
            if code is not None:
                raise OSError(code, os.strerror(code))
            return pwritev(descriptor, pieces[:1], offset, flags)

        monkeypatch.setattr(os, "pwritev", written)
        monkeypatch.setattr(os, "fdatasync", lambda descriptor: (synced.append(1), fdatasync(descriptor))[1])
        file = OsWritableDisk().create(str(tmp_path / "file"), 0)
        file.write_synced(5, [b"0123", b"456789"], 10)
        assert (file.read(5, 99), synced) == (b"0123456789", [1])
        file.close()

    def test_a_synced_write_that_fails_names_the_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "pwritev", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
        file = OsWritableDisk().create(str(tmp_path / "file"), 0)
        with pytest.raises(OSError, match=r"\[Errno 5\] .*/file'"):
            file.write_synced(5, [b"0123"], 4)
        file.close()

    def test_descriptors_are_let_go(self, tmp_path: Path) -> None:
        before = os.listdir("/proc/self/fd")
        disk = OsWritableDisk()
        file = disk.create(str(tmp_path / "file"), 10)
        assert file.fileno() >= 0
        file.close()
        disk.sync_directory(str(tmp_path))
        lock = disk.lock(str(tmp_path / "lock"))
        for attempt in (lambda: disk.lock(str(tmp_path / "lock")), lambda: disk.open(str(tmp_path))):
            assert code_of(attempt) in (errno.EAGAIN, errno.EINVAL)
        lock.release()
        assert os.listdir("/proc/self/fd") == before
