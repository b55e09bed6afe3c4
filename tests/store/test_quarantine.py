"""The quarantine keeps records whole and private, and reports damage to itself; marks are atomic."""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

import qstore.store.repair.quarantine
from qstore.formats.quarantine_index import IndexProblem, Injection, QuarantineEntry, encode_entry
from qstore.store.disk import OsWritableDisk
from qstore.store.repair.quarantine import INDEX, Quarantine, QuarantineError, QuarantineMarks, QuarantineWriter
from tests.faults.simulated_disk import Call, SimulatedDisk

DISK = OsWritableDisk()
INJECTION = Injection("/store", "orders", 1_700_000_000_000_000_000, 1, 77)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "quarantine")


def entries(path: str) -> list[QuarantineEntry | IndexProblem]:
    return list(Quarantine(DISK, path).entries())


def entry_of(path: str, number: int) -> QuarantineEntry:
    return Quarantine(DISK, path).find([number])[number]


def filled(path: str) -> str:
    writer = QuarantineWriter(DISK, path)
    assert writer.add("orders", "/f", 0x200, b"abc", "broken", 5, salt=7) == 1
    assert writer.add("bills", "/g", 0x400, iter([b"de", b"", b"fgh"]), "worse", None) == 2
    writer.close()
    assert writer.entries == 2
    return path


# ---- writing ----


def test_quarantine_lists_its_entries(path: str) -> None:
    filled(path)
    quarantine = Quarantine(DISK, path)
    assert list(quarantine.entries()) == [
        QuarantineEntry(1, "orders", "/f", 0x200, 3, "000001.raw", "broken", 5, sha256(b"abc").hexdigest(), 7),
        QuarantineEntry(2, "bills", "/g", 0x400, 5, "000002.raw", "worse", None, sha256(b"defgh").hexdigest()),
    ]
    assert [b"".join(quarantine.raw(entry_of(path, number))) for number in (1, 2)] == [b"abc", b"defgh"]
    assert [quarantine.raw_problem(entry_of(path, number)) for number in (1, 2)] == [None, None]
    assert quarantine.raw_names() == ["000001.raw", "000002.raw"]


def test_quarantine_is_private_to_its_owner(path: str) -> None:
    filled(path)
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in Path(path).iterdir()} == {0o600}


def test_without_entries_there_is_nothing(path: str) -> None:
    QuarantineWriter(DISK, path).close()
    assert not Path(path).exists()
    with pytest.raises(QuarantineError, match="no such directory"):
        Quarantine(DISK, path)


def test_names_never_come_from_data(path: str) -> None:
    writer = QuarantineWriter(DISK, path)
    writer.add("../../evil/\0", "/../x", 0, b"a", "b\n" * 5000)
    writer.close()
    assert sorted(each.name for each in Path(path).parent.rglob("*")) == ["000001.raw", INDEX, "quarantine"]
    assert entry_of(path, 1).queue == "../../evil/\0"


def test_an_unreadable_entry_is_skipped(path: str) -> None:
    def failing() -> Iterator[bytes]:
        yield b"beginning"
        raise OSError(errno.EIO, "bad sector", "/f")

    writer = QuarantineWriter(DISK, path)
    with pytest.raises(OSError, match="bad sector"):
        writer.add("orders", "/f", 0, failing(), "broken")
    assert writer.add("orders", "/f", 0, b"abc", "broken") == 1
    writer.close()
    assert [each.size for each in entries(path) if isinstance(each, QuarantineEntry)] == [3]
    assert Quarantine(DISK, path).raw_names() == ["000001.raw"]


def test_an_old_quarantine_is_not_written_over(path: str) -> None:
    filled(path)
    with pytest.raises(FileExistsError, match="a quarantine already exists"):
        QuarantineWriter(DISK, path).add("orders", "/f", 0, b"abc", "broken")
    assert len(entries(path)) == 2


def test_beyond_the_most_files_only_the_index_tells(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qstore.store.repair.quarantine, "MAX_RAW_FILES", 1)
    filled(path)
    second = entry_of(path, 2)
    assert (second.raw, second.size, second.sha256) == (None, 5, sha256(b"defgh").hexdigest())
    with pytest.raises(QuarantineError, match=r"not stored here; they are in /g"):
        list(Quarantine(DISK, path).raw(second))


def test_a_long_index_is_written_in_parts(path: str) -> None:
    writer = QuarantineWriter(DISK, path)
    for number in range(700):
        writer.add("q" * 200, "/f", number, b"%d" % number, "broken")
    writer.close()
    assert [each.offset for each in entries(path) if isinstance(each, QuarantineEntry)] == list(range(700))


# ---- damage ----


def test_a_directory_without_an_index(path: str) -> None:
    Path(path, "1-0").mkdir(parents=True)
    with pytest.raises(QuarantineError, match=r"no index\.jsonl here.*qstore-check"):
        Quarantine(DISK, path)


def test_bytes_that_changed_are_reported(path: str) -> None:
    filled(path)
    quarantine = Quarantine(DISK, path)
    first, second = entry_of(path, 1), entry_of(path, 2)
    Path(path, "000001.raw").write_bytes(b"abx")
    assert quarantine.size_problem(first) is None
    assert (quarantine.raw_problem(first) or "").endswith("000001.raw: the bytes have changed (SHA-256 mismatch)")
    Path(path, "000001.raw").write_bytes(b"abcd")
    assert (quarantine.size_problem(first) or "").endswith("000001.raw: 4 bytes, but the index states 3")
    Path(path, "000002.raw").unlink()
    assert "000002.raw: cannot be read: No such file" in (quarantine.raw_problem(second) or "")
    with pytest.raises(QuarantineError, match="cannot be read"):
        list(quarantine.raw(second))


def test_links_are_not_followed(path: str, tmp_path: Path) -> None:
    filled(path)
    (tmp_path / "secret").write_bytes(b"abc")
    Path(path, "000001.raw").unlink()
    Path(path, "000001.raw").symlink_to(tmp_path / "secret")
    with pytest.raises(QuarantineError, match="symbolic link"):
        list(Quarantine(DISK, path).raw(entry_of(path, 1)))
    Path(path, INDEX).rename(tmp_path / "index")
    Path(path, INDEX).symlink_to(tmp_path / "index")
    with pytest.raises(QuarantineError, match="symbolic link"):
        entries(path)


def test_an_index_of_terabytes_is_not_read(path: str) -> None:
    filled(path)
    with Path(path, INDEX).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(QuarantineError, match="1,099,511,627,776 bytes are too large for the index"):
        entries(path)


# ---- marks ----


def test_a_mark_and_its_end(path: str) -> None:
    filled(path)
    marks = QuarantineMarks(DISK, path)
    marks.mark({2: INJECTION})
    assert [each.injected for each in entries(path) if isinstance(each, QuarantineEntry)] == [None, INJECTION]
    Path(path, "index.jsonl.new").write_text("what a crash left")
    marks.mark({2: None, 1: INJECTION})
    assert [each.injected for each in entries(path) if isinstance(each, QuarantineEntry)] == [INJECTION, None]
    assert not Path(path, "index.jsonl.new").exists()
    with pytest.raises(QuarantineError, match="another process injects from it"):
        QuarantineMarks(DISK, path)
    marks.release()
    QuarantineMarks(DISK, path).release()


def test_quarantine_survives_a_power_loss() -> None:
    for seed in range(20):
        disk = SimulatedDisk(seed)
        filled_on(disk)
        disk.crash(power_loss=True)
        quarantine = Quarantine(disk, "/q")
        found = list(quarantine.entries())
        assert [each.number for each in found if isinstance(each, QuarantineEntry)] == [1, 2]
        assert [quarantine.raw_problem(each) for each in found if isinstance(each, QuarantineEntry)] == [None, None]


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_mark_is_there_or_not(power_loss: bool) -> None:
    """Killed at every call, the index is the old one or the new one, and the next mark works."""
    seen = set()
    for seed in range(10):
        disk = SimulatedDisk(seed)
        filled_on(disk)
        marks = QuarantineMarks(disk, "/q")
        killed: list[SimulatedDisk] = []

        def kill(call: Call, into: list[SimulatedDisk] = killed, seed: int = seed) -> None:
            into.append(call.killed(seed, power_loss=power_loss))

        disk.watch = kill
        marks.mark({1: INJECTION})
        after = disk.copy(seed)
        after.crash(power_loss=power_loss)
        killed.append(after)
        assert len(killed) >= 5
        for left in killed:
            found = list(Quarantine(left, "/q").entries())
            assert [each.number for each in found if isinstance(each, QuarantineEntry)] == [1, 2]
            injected = [each.injected for each in found if isinstance(each, QuarantineEntry)]
            assert injected in ([None, None], [INJECTION, None])
            seen.add((left is after, injected[0] is None))
            again = QuarantineMarks(left, "/q")
            again.mark({2: INJECTION})
            again.release()
            assert Quarantine(left, "/q").find([2])[2].injected == INJECTION
    assert (True, False) in seen
    assert (True, True) not in seen
    assert (False, True) in seen


def test_a_mark_that_finds_no_room_changes_nothing() -> None:
    disk = SimulatedDisk(1)
    filled_on(disk)
    marks = QuarantineMarks(disk, "/q")
    for call in range(4):
        disk.fail_at = {disk.calls + call: errno.ENOSPC}
        with pytest.raises(QuarantineError, match=r"index\.jsonl: cannot be rewritten: No space left"):
            marks.mark({1: INJECTION})
        disk.fail_at = {}
        assert Quarantine(disk, "/q").find([1])[1].injected is None
    marks.mark({1: INJECTION})
    assert Quarantine(disk, "/q").find([1])[1].injected == INJECTION


def filled_on(disk: SimulatedDisk) -> None:
    disk.sync_directory("/")
    writer = QuarantineWriter(disk, "/q")
    writer.add("orders", "/f", 0x200, b"abc" * 300, "broken", 5, salt=7)
    writer.add("bills", "/g", 0x400, [b"de", b"fgh"], "worse")
    writer.close()


def test_the_index_is_that_of_the_format(path: str) -> None:
    filled(path)
    content = Path(path, INDEX).read_bytes()
    assert content == encode_entry(entry_of(path, 1)) + encode_entry(entry_of(path, 2))
