"""How often messages have returned: the file of a store after clean closes, kills and damages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.environment import Environment
from qstore.store.live import returns as returns_module
from tests.support.compiled import replaces
from tests.support.opened_store import Calls, OpenedStore


def file_of(path: Path) -> Path:
    return path / "rhm" / "RETURNS"


def known(opened: OpenedStore, number: int = 0) -> dict[int, int]:
    return dict(opened.store.returns(opened.store.recovered_queues[number]))


def settle(opened: OpenedStore) -> None:
    """Until the background has written everything."""
    store = opened.store
    while store._returns._is_writing:
        store._background.wait()
        store.collect()


def killed(opened: OpenedStore, to: str = "killed") -> Path:
    """What is found if the process is killed now."""
    settle(opened)
    path = Path(opened.store.directory.path)
    copy = path.parent / to
    shutil.copytree(path, copy)
    opened.store.close()
    return copy


def noted(environment: Environment, path: Path) -> tuple[OpenedStore, list[int]]:
    """A store with messages on one queue, some of which have returned."""
    opened = OpenedStore(environment, path)
    queue = opened.make_queue("q")
    rids = [opened.enqueue(queue, b"m") for _ in range(10)]
    opened.flush(queue)
    for rid, count in ((rids[0], 1), (rids[3], 7), (rids[0], 2), (rids[4], 7), (rids[9], 5)):
        opened.store.returned(queue, rid, count)
        settle(opened)
    return opened, rids


@pytest.mark.parametrize("is_clean", [False, True])
def test_counts_are_known_after_a_start(environment: Environment, path: Path, is_clean: bool) -> None:
    opened, rids = noted(environment, path)
    expected = {rids[0]: 2, rids[3]: 7, rids[4]: 7, rids[9]: 5}
    if is_clean:
        opened.store.close()
        assert file_of(path).stat().st_size == 32 * 3, "consecutive messages with the same count are one record"
    else:
        path = killed(opened)
    again = OpenedStore(environment, path)
    assert known(again) == expected
    again.store.returned(again.store.journals[1], rids[5], 1)
    last = OpenedStore(environment, killed(again, "again"))
    assert known(last) == {**expected, rids[5]: 1}
    last.store.close()


def test_a_store_whose_messages_have_not_returned_has_no_file(environment: Environment, path: Path) -> None:
    opened, rids = noted(environment, path)
    for rid in rids:
        opened.store.returned(opened.store.journals[1], rid, None)
    opened.store.close()
    assert not file_of(path).exists()
    opened = OpenedStore(environment, path)
    assert known(opened) == {}
    opened.store.close()
    assert not file_of(path).exists()


def test_messages_and_queues_that_are_gone_are_forgotten(environment: Environment, path: Path) -> None:
    opened, rids = noted(environment, path)
    opened.store.append.dequeue(opened.store.journals[1], rids[3])
    opened.flush(opened.store.journals[1])
    opened = OpenedStore(environment, killed(opened))
    assert known(opened) == {rids[0]: 2, rids[4]: 7, rids[9]: 5}
    opened.store.close()


def test_releases_are_known_after_a_clean_close_until_recovery_ends(environment: Environment, path: Path) -> None:
    """After a kill every message may have been delivered; at a close the broker says again what has not returned."""
    opened, rids = noted(environment, path)
    counts = {rids[0]: 2, rids[3]: 7, rids[4]: 7, rids[9]: 5}
    opened.store.returned(opened.store.journals[1], rids[5], 0)
    assert opened.store.close()
    opened = OpenedStore(environment, path)
    assert known(opened) == {**counts, rids[5]: 0}
    opened.store.end_recovery()
    assert opened.store._returns._known == 4
    path = killed(opened)
    opened = OpenedStore(environment, path)
    assert known(opened) == counts
    assert opened.store.close()
    opened = OpenedStore(environment, path)
    assert known(opened) == counts
    opened.store.close()


@pytest.mark.parametrize("damage", ["torn", "lost block", "of another store", "a directory"])
def test_what_is_not_valid_is_ignored(environment: Environment, path: Path, damage: str) -> None:
    opened, rids = noted(environment, path)
    expected = {rids[0]: 2, rids[3]: 7, rids[4]: 7, rids[9]: 5}
    path = killed(opened)
    file, content = file_of(path), file_of(path).read_bytes()
    assert len(content) == 32 * 5
    if damage == "torn":
        file.write_bytes(content[:-1])
        del expected[rids[9]]
    elif damage == "lost block":
        file.write_bytes(content[:32] + bytes(32) + content[64:])
        del expected[rids[3]]
    elif damage == "of another store":
        file.write_bytes(b"".join(content[at : at + 28] + bytes(4) for at in range(0, 160, 32)))
        expected.clear()
    else:
        file.unlink()
        file.mkdir()
        expected.clear()
    again = OpenedStore(environment, path)
    assert known(again) == expected
    again.store.returned(again.store.journals[1], rids[5], 3)
    settle(again)
    assert again.store.close()
    last = OpenedStore(environment, path)
    assert known(last) == {**expected, rids[5]: 3}
    last.store.close()


@replaces
def test_the_file_is_written_anew_when_most_of_it_is_out_of_date(
    environment: Environment, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(returns_module, "_SPARE", 1000)
    opened, rids = noted(environment, path)
    sizes = []
    for count in range(200):
        opened.store.returned(opened.store.journals[1], rids[0], count)
        settle(opened)
        sizes.append(file_of(path).stat().st_size)
    assert max(sizes) < 1500
    last = OpenedStore(environment, killed(opened))
    assert known(last)[rids[0]] == 199
    last.store.close()


@replaces
def test_the_counts_of_a_store_are_limited(
    environment: Environment, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(returns_module, "MAX_COUNTS", 2)
    opened, rids = noted(environment, path)
    last = OpenedStore(environment, killed(opened))
    assert known(last) == {rids[0]: 2, rids[3]: 7}
    last.store.close()


@replaces
def test_messages_and_queues_that_are_gone_leave_room_for_others(
    environment: Environment, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(returns_module, "MAX_COUNTS", 2)
    opened, rids = noted(environment, path)
    store, first, second = opened.store, opened.store.journals[1], opened.make_queue("other")
    others = [opened.enqueue(second, b"m") for _ in range(2)]
    opened.flush(second)
    calls = Calls()
    store.changes.delete_queue(first, calls)
    opened.wait(calls)
    store.returned(first, rids[5], 1)  # its consumers release what they hold
    for rid in others:
        store.returned(second, rid, 3)
        settle(opened)
    opened = OpenedStore(environment, killed(opened))
    assert known(opened) == dict.fromkeys(others, 3)
    second = opened.store.journals[2]
    opened.store.append.dequeue(second, others[0])
    opened.store.returned(second, others[0], None)
    last = opened.enqueue(second, b"m")
    opened.flush(second)
    opened.store.returned(second, last, 4)
    opened = OpenedStore(environment, killed(opened, "again"))
    assert known(opened) == {others[1]: 3, last: 4}
    opened.store.close()


def test_what_waits_for_the_background_is_limited(environment: Environment, path: Path) -> None:
    opened, rids = noted(environment, path)
    store, journal = opened.store, opened.store.journals[1]
    returns = store._returns
    returns._is_writing = True
    for count in range(100):
        store.returned(journal, rids[0], count)
        store.returned(journal, rids[1], count)
        store.returned(journal, rids[2], count)
        store.returned(journal, rids[2], None)
    assert returns._waiting == {(1, rids[0]): 99, (1, rids[1]): 99}
    returns._written(returns._end)
    last = OpenedStore(environment, killed(opened))
    assert known(last) == {rids[0]: 99, rids[1]: 99, rids[3]: 7, rids[4]: 7, rids[9]: 5}
    last.store.close()


def test_a_store_is_closed_cleanly_without_the_file(environment: Environment, path: Path) -> None:
    opened, _ = noted(environment, path)

    def refuse(_: StoreDirectory, name: str, content: bytes) -> None:
        if name == returns_module.NAME:
            raise OSError(28, "No space left on device")
        replace(_, name, content)

    replace = StoreDirectory.replace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoreDirectory, "replace", refuse)
        assert opened.store.close()
    assert [text for text in opened.texts if "how often messages have returned" in text]


def test_a_disk_that_does_not_take_it_is_logged_once(environment: Environment, path: Path) -> None:
    opened, rids = noted(environment, path)

    def refuse(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    returns = opened.store._returns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(returns_module.Returns, "_append", refuse)
        for count in range(3):
            opened.store.returned(opened.store.journals[1], rids[1], count)
            settle(opened)
    assert returns._has_failed
    lines = [text for text in opened.texts if "how often messages have returned" in text]
    assert len(lines) == 1
    opened.store.close()
