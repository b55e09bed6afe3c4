"""The paging file of a queue: messages come back unchanged, space is released, failures lose little."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.message import Message
from qstore.broker.model.residency.page_file import GROUP_BYTES, PageFile, PageSpace
from qstore.broker.model.residency.paging_directory import MAX_OPEN, QUIET_SECONDS, PagingDirectory
from qstore.broker.process.paging import OsPagingDisk
from qstore.broker.protocols.stored_messages import restore_message
from tests.support.paging_disk import LateRuns, MemoryPagingDisk, entry_of, message_of

PATH = "/paging"


class Stage:
    """A directory on a disk in memory."""

    def __init__(self, capacity: int = 1 << 40, max_open: int = MAX_OPEN) -> None:
        self.disk, self.runs = MemoryPagingDisk(capacity), LateRuns()
        self.now = 1.0
        bits = random.Random(7).getrandbits
        self.directory = PagingDirectory(self.disk, PATH, self.runs, bits, max_open, lambda: self.now)
        self.directory.restore = restore_message
        self.directory.prepare()

    def file(self, name: str = "q", **options: Any) -> PageFile:
        return PageFile(self.directory, name, **options)

    @property
    def content(self) -> bytearray:
        (content,) = self.disk.contents.values()
        return content


def keep(file: PageFile, messages: Sequence[Message]) -> list[int]:
    return list(file.keep([entry_of(message, position) for position, message in enumerate(messages, 1)]))


def bodies(messages: Sequence[Message | None]) -> list[bytes | None]:
    return [None if message is None else bytes(message.body) for message in messages]  # type: ignore[arg-type]


def numbered(count: int, size: int = 100) -> list[Message]:
    return [message_of(b"%d:" % number + b"." * size) for number in range(count)]


@pytest.mark.parametrize("options", [{}, {"page_size": 65536}, {"compresses": True}])
def test_messages_come_back_as_they_were(options: dict[str, Any]) -> None:
    stage = Stage()
    file = stage.file(**options)
    messages = [message_of(b""), message_of(b"a", 12.75), message_of(b"b" * 300_000), *numbered(1500)]
    keys = keep(file, messages)
    assert len(set(keys)) == len(keys)
    assert all(keys)
    found = file.load(keys)
    assert bodies(found) == bodies(messages)
    for before, after in zip(messages, found, strict=True):
        assert after is not None
        assert (after.exchange, after.routing_key, after.size) == (before.exchange, before.routing_key, before.size)
        assert (after.expires_at, after.is_persistent) == (before.expires_at, False)
    assert bodies(file.load(keys[7:3:-1])) == bodies(messages[7:3:-1])


def test_groups_are_read_at_once_and_one_by_one() -> None:
    stage = Stage()
    file = stage.file()
    keys = keep(file, numbered(2000))
    assert len(stage.content) < 2000 * 200 + 10 * 4096
    assert len({key >> 12 for key in keys}) == -(-2000 * 150 // GROUP_BYTES) or len({key >> 12 for key in keys}) < 10
    for number in random.Random(3).sample(range(2000), 50):
        assert bodies(file.load([keys[number]])) == [b"%d:" % number + b"." * 100]


def test_uncached_page_is_read_by_a_thread() -> None:
    stage = Stage()
    file = stage.file()
    keys = keep(file, numbered(10))
    found: list[Any] = []
    file.fetch(keys, found.append)
    assert bodies(found.pop()) == bodies(numbered(10))
    stage.disk.has_cache = False
    file.will_need(keys)
    assert len(stage.disk.read_ahead) == 1
    file.fetch(keys[2:5], found.append)
    assert found == []
    stage.runs.go_on()
    assert bodies(found.pop()) == bodies(numbered(10)[2:5])


def test_messages_that_leave_while_they_are_read(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    file, found = stage.file(), list[Any]()
    keys = keep(file, numbered(10))
    others = keep(file, numbered(3))
    stage.disk.has_cache = False
    file.fetch([*keys, *others], found.append)
    file.forget(keys)
    assert keep(file, numbered(12, 90)) != keys  # where they were
    stage.runs.go_on()
    assert bodies(found.pop()) == [*[None] * 10, *bodies(numbered(3))]
    assert caplog.text == ""


def test_a_queue_that_goes_while_it_is_read() -> None:
    stage = Stage()
    file, found = stage.file(), list[Any]()
    keys = keep(file, numbered(10))
    stage.disk.has_cache = False
    file.fetch(keys, found.append)
    file.close()
    assert len(stage.disk.open_files) == len(stage.disk.contents) == 1
    stage.runs.go_on()
    stage.runs.go_on()
    assert found == []
    assert not stage.disk.open_files
    assert not stage.disk.contents
    file.forget(keys)


def test_the_file_goes_when_nothing_is_in_it_and_comes_again() -> None:
    stage = Stage()
    file = stage.file()
    assert not stage.disk.contents
    for _ in range(3):
        keys = keep(file, numbered(100))
        assert len(stage.disk.contents) == 1
        assert file.file_bytes > 10_000
        file.forget(keys[:50])
        file.forget(keys[50:])
        stage.runs.go_on()
        assert not stage.disk.contents
        assert not stage.disk.open_files
        assert file.file_bytes == 0


def test_the_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    file = stage.file()
    first, *others = [keep(file, [message_of(b"x" * (1 << 20))]) for _ in range(40)]
    assert len(stage.content) > 40 << 20
    for keys in others[1:]:
        file.forget(keys)
    assert len(stage.content) < 20 << 20
    assert file.file_bytes <= len(stage.content) + 4096
    assert bodies(file.load(first)) == [b"x" * (1 << 20)]
    more = keep(file, [message_of(b"y" * (1 << 20))])
    assert bodies(file.load([*others[0], *more])) == [b"x" * (1 << 20), b"y" * (1 << 20)]


def test_freed_space_is_reused() -> None:
    stage = Stage()
    file = stage.file()
    waiting = [keep(file, numbered(300)) for _ in range(5)]
    size = file.file_bytes
    for _ in range(50):
        waiting.append(keep(file, numbered(300)))
        file.forget(waiting.pop(0))
    assert file.file_bytes <= size * 1.3
    assert bodies(file.load(waiting[0])) == bodies(numbered(300))


# ---- failures ----


@pytest.mark.parametrize("page_size", [4096, 65536])
def test_a_limit(page_size: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stage = Stage()
    file = stage.file(page_size=page_size, max_bytes=1 << 20)
    messages = numbered(20, 100_000)
    keys = keep(file, messages)
    kept = keys.index(0)
    assert 5 <= kept <= 10
    assert not any(keys[kept:])
    assert file.file_bytes <= 1 << 20
    assert caplog.text.count("\n") == 1
    assert "would be larger than its limit of 1,048,576 bytes" in caplog.text
    assert not any(keep(file, messages[:1]))
    assert caplog.text.count("\n") == 1
    assert bodies(file.load(keys[:kept])) == bodies(messages[:kept])
    for _ in range(5):  # it comes and goes: one line
        file.forget(keys[:1])
        keys[:1] = keep(file, messages[:1])
        assert keys[0]
        assert not any(keep(file, messages[:1]))
        assert all(keep(stage.file("other"), messages[:1]))
    assert caplog.text.count("\n") == 1
    stage.now += QUIET_SECONDS
    assert all(keep(stage.file("other"), messages[:1]))
    assert caplog.text.count("\n") == 1
    file.forget(keys[:1])
    assert all(keep(file, messages[:1]))
    assert 'Messages of queue "q" are paged out again' in caplog.text


@pytest.mark.parametrize("what", ["full", "nearly full", "broken"])
def test_a_disk_that_takes_nothing(what: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stage = Stage(capacity=1 << 22)
    file = stage.file()
    before = keep(file, numbered(10))
    if what == "broken":
        stage.disk.write_error = errno.EIO
    elif what == "full":
        stage.disk.write_error = errno.ENOSPC
    else:
        stage.disk.contents["/other"] = bytearray((1 << 22) - (1 << 17))
    for _ in range(3):
        assert keep(file, numbered(5)) == [0] * 5
    assert caplog.text.count('Messages of queue "q" cannot be paged out, and stay in memory') == 1
    assert bodies(file.load(before)) == bodies(numbered(10))
    stage.disk.write_error = 0
    stage.disk.contents.pop("/other", None)
    after = keep(file, numbered(5))
    assert "paged out again" not in caplog.text
    stage.now += QUIET_SECONDS
    after += keep(file, numbered(5))
    assert bodies(file.load(after)) == 2 * bodies(numbered(5))
    assert caplog.text.count("paged out again") == 1


def test_a_disk_that_becomes_full_on_the_way() -> None:
    stage = Stage(capacity=1 << 20)
    stage.directory.check_room = lambda _size: None  # type: ignore[method-assign]
    file = stage.file()
    messages = numbered(200, 10_000)
    keys = keep(file, messages)
    kept = keys.index(0)
    assert kept > 50
    assert bodies(file.load(keys[:kept])) == bodies(messages[:kept])
    file.forget(keys[:kept])
    stage.runs.go_on()
    assert bodies(file.load(keep(file, messages[:5]))) == bodies(messages[:5])


@pytest.mark.parametrize("reads", ["load", "fetch", "thread"])
def test_a_disk_that_cannot_be_read(reads: str, caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    file, found = stage.file(), list[Any]()
    keys = keep(file, numbered(10))
    stage.disk.fails_reading, stage.disk.has_cache = True, reads != "thread"
    if reads == "load":
        found.append(file.load(keys))
    else:
        file.fetch(keys, found.append)
        stage.runs.go_on()
    assert found == [[None] * 10]
    assert caplog.text.count("cannot be read back") == 1
    stage.disk.fails_reading = False
    assert bodies(file.load(keys)) == bodies(numbered(10))


def test_damage_costs_the_messages_of_its_extent(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    file = stage.file()
    keys = keep(file, numbered(1000))
    stage.content[200] ^= 1
    found = bodies(file.load(keys))
    lost = found.count(None)
    assert 0 < lost < 600
    assert found == [*[None] * lost, *bodies(numbered(1000)[lost:])]
    assert f"({lost}, page 0): the checksum does not match" in caplog.text
    file.forget(keys)  # they can be purged


def test_an_old_extent_is_never_taken_for_a_new_one(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    file = stage.file()
    keep(file, numbered(3))
    first = keep(file, numbered(10))
    old = bytes(stage.content)
    file.forget(first)
    again = keep(file, numbered(10, 101))
    assert again == first
    stage.content[:] = old  # a write that never reached the disk
    assert file.load(again) == [None] * 10
    assert "instead of 3" in caplog.text


# ---- the directory ----


def test_few_files_are_open() -> None:
    stage = Stage(max_open=4)
    files = [stage.file(f"q{number}") for number in range(10)]
    keys = [keep(file, numbered(5)) for file in files]
    assert len(stage.disk.open_files) == 4
    for file, its in zip(files, keys, strict=True):
        assert bodies(file.load(its)) == bodies(numbered(5))
    assert len(stage.disk.open_files) == 4
    stage.directory.close()
    assert not stage.disk.open_files
    assert not stage.disk.contents


def test_start_removes_pages_left_by_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "data" / "paging"
    directory = PagingDirectory(OsPagingDisk(), str(path))
    directory.restore = restore_message
    directory.prepare()
    assert path.stat().st_mode & 0o777 == 0o700
    file = PageFile(directory, "q")
    keys = keep(file, numbered(2000))
    (made,) = path.glob("*/*")
    assert made.stat().st_mode & 0o777 == 0o600
    found: list[Any] = []
    file.will_need(keys)
    file.fetch(keys, found.append)
    assert bodies(found.pop()) == bodies(numbered(2000))
    (path / "notes").write_text("of somebody else")
    again = PagingDirectory(OsPagingDisk(), str(path))
    again.prepare()
    assert made.exists()
    again.look()
    assert sorted(each.name for each in path.iterdir()) == ["2.run", "notes"]
    again.close()
    assert [each.name for each in path.iterdir()] == ["notes"]


def test_a_real_file_gives_its_space_back(tmp_path: Path) -> None:
    directory = PagingDirectory(OsPagingDisk(), str(tmp_path / "paging"))
    directory.restore = restore_message
    directory.prepare()
    file = PageFile(directory, "q")
    parts = [keep(file, [message_of(b"x" * (1 << 20))]) for _ in range(40)]
    (made,) = (tmp_path / "paging").glob("*/*")
    assert made.stat().st_size > 40 << 20
    for keys in parts[2:]:
        file.forget(keys)
    assert made.stat().st_size < 20 << 20
    assert [len(body or b"") for body in bodies(file.load([*parts[0], *parts[1]]))] == [1 << 20] * 2
    file.close()
    assert not made.exists()


@given(st.data())
def test_random_steps_keep_page_file_consistent(draws: st.DataObject) -> None:
    stage = Stage()
    file = stage.file(compresses=draws.draw(st.booleans()), max_bytes=1 << 18)
    out: dict[int, Message] = {}
    serial = 0
    for _ in range(draws.draw(st.integers(1, 25))):
        step = draws.draw(st.sampled_from(("keep", "keep", "forget", "read", "damage")))
        if step == "keep":
            sizes = draws.draw(st.lists(st.sampled_from((0, 10, 500, 5000, 70_000)), min_size=1, max_size=8))
            messages = [message_of(b"%d:" % (serial + number) + b"z" * size) for number, size in enumerate(sizes)]
            serial += len(sizes)
            keys = keep(file, messages)
            assert all(keys[: keys.index(0)] if 0 in keys else keys)
            kept = {key: message for key, message in zip(keys, messages, strict=True) if key}
            assert kept.keys().isdisjoint(out)
            out |= kept
        elif step == "forget" and out:
            gone = draws.draw(st.lists(st.sampled_from(sorted(out)), unique=True))
            file.forget(gone)
            for key in gone:
                del out[key]
        elif step == "damage" and stage.disk.contents:
            for content in stage.disk.contents.values():
                if content:
                    content[draws.draw(st.integers(0, len(content) - 1))] ^= 0x10
        stage.runs.go_on()
        for key, body in zip(out, bodies(file.load(list(out))), strict=True):
            assert body is None or body == out[key].body
    if not out:
        assert not stage.disk.contents
    file.close()
    stage.runs.go_on()
    assert not stage.disk.contents


# ---- the free pages of a paging file: none is given out twice, and the end goes back as far as it can ----


LIMIT = 40


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(0, 100)), max_size=60))
def test_against_a_set_of_pages(steps: list[tuple[bool, int, int]]) -> None:
    space, taken = PageSpace(LIMIT), list[range]()
    for takes, count, which in steps:
        used = {page for run in taken for page in run}
        if takes:
            first = space.take(count)
            free = "".join("x" if page in used else "." for page in range(LIMIT))
            assert (first is None) is ("." * count not in free)
            if first is not None:
                assert used.isdisjoint(range(first, first + count))
                taken.append(range(first, first + count))
        elif taken:
            run = taken.pop(which % len(taken))
            space.give_back(run.start, len(run))
        used = {page for run in taken for page in run}
        assert (space.used, space.end) == (len(used), max(used, default=-1) + 1)


def test_the_lowest_run_is_taken() -> None:
    space = PageSpace(1 << 20)
    assert [space.take(count) for count in (2, 1, 2, 1)] == [0, 2, 3, 5]
    space.give_back(3, 2)
    space.give_back(0, 2)
    assert [space.take(count) for count in (3, 1, 1, 2)] == [6, 0, 1, 3]
