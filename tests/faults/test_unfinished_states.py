"""Every state that a kill leaves of a resize, a conversion, a rebuild, a recovery: what the tools that read make of it.

The disk is a real one, and so is the catalogue: before each change of a name in the store the whole of it is copied, as
a kill would leave it there. For every tool nothing in a copy is damaged, counted twice or missing.
`tests/support/profiles.py` says which copies are checked.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from qstore.formats.broker_records.topology import Queue
from qstore.formats.rhm.geometry import Geometry
from qstore.store.environment import Environment, InlineBackground, tool_environment
from qstore.store.key_value import CatalogueError, KeyValue
from qstore.store.live.message_store import MessageStore
from qstore.store.log_lines import Level, LogLine
from qstore.store.repair.resize import StoreResize
from tests.faults.copied_states import CopyingDisk
from tests.support.dump import dump
from tests.support.fixtures import CopyOpener
from tests.support.opened_store import PARAMETERS
from tests.support.planted_damage import check
from tests.support.profiles import today
from tests.support.recover_runs import invoke

pytestmark = pytest.mark.usefixtures("nothing_is_synced")

Messages = Counter[tuple[str, str, str]]
VERSION: Final = "0.1.0"


def messages(path: Path) -> Messages:
    """Messages that a restart would deliver."""
    shown = dump(path, "--outstanding", "--json")
    assert (shown.code, shown.lines("damage")) == (0, []), shown.lines("damage")
    return Counter((line["queue"], line["state"], line["body_sha256"]) for line in shown.lines("message"))


def opened(path: Path) -> Iterator[LogLine]:
    """Start and stop the store. Yields what it logs."""
    lines: list[LogLine] = []
    MessageStore.open(tool_environment(), str(path), PARAMETERS, VERSION, log=lines.append).close()
    yield from lines


def assert_sound(states: list[Path], expected: Messages, recovered: Path) -> Counter[str]:
    """In each state nothing is damaged, missing, or there twice. Returns how often each notice was there."""
    reported: Counter[str] = Counter()
    for state in states:
        checked = check(state)
        assert (checked.code, checked.lines("damage")) == (0, []), (state, checked.lines("damage"), checked.errors)
        reported.update(line["text"].partition(": ")[2] for line in checked.lines("notice"))
    for state in today(states, 3):
        assert messages(state) == expected, state
        recovery = invoke(state, recovered, "--orphans", "recover")
        assert recovery.report.code == 0, recovery.report.lines()
        assert recovery.summary["messages"] + recovery.summary["in_doubt"] == sum(expected.values()), state
        shutil.rmtree(recovered)
        critical = [line.text for line in opened(state) if line.level is Level.CRITICAL]
        assert critical == [], state
        assert messages(state) == expected, state
        assert not (state / "rhm/orphans").exists()
    return reported


@pytest.fixture
def old(copies: CopyOpener) -> Iterator[Path]:
    """qpidd's store with transactions in doubt."""
    with copies("legacy-d-dtx").copy() as copy:
        yield copy.path


@pytest.fixture
def store(old: Path) -> Path:
    """The same, converted."""
    list(opened(old))
    shutil.rmtree(old / "rhm.version-1")
    return old


@pytest.fixture
def watched(tmp_path: Path) -> Callable[[Path], tuple[CopyingDisk, Environment]]:
    def make(path: Path) -> tuple[CopyingDisk, Environment]:
        disk = CopyingDisk(path, tmp_path / "states")
        return disk, tool_environment()._replace(disk=disk)

    return make


def test_a_conversion(old: Path, watched: Any, tmp_path: Path) -> None:
    expected = messages(old)
    disk, environment = watched(old)
    MessageStore.open(environment, str(old), PARAMETERS, VERSION, log=lambda _: None).close()
    names = [frozenset(path.name for path in state.iterdir()) for state in disk.states]
    assert any({"rhm.version-1", "rhm.new"} <= each and "rhm" not in each for each in names), "between the two renames"
    reported = assert_sound(disk.states, expected, tmp_path / "recovered")
    assert any("is not renamed yet" in text for text in reported)


def test_a_resize(store: Path, watched: Any, tmp_path: Path) -> None:
    expected = messages(store)
    disk, environment = watched(store)
    with StoreResize(environment, str(store), VERSION) as resize:
        plans = resize.plan(resize.queues, lambda *_: Geometry.from_pages(5, 9), prepared_list=True)
        resize.resize(plans)
        resize.discard_old()
    reported = assert_sound(disk.states, expected, tmp_path / "recovered")
    assert any("was replaced by another one" in text for text in reported), "behind the switch"
    assert any("an interrupted resize" in text for text in reported), "before it"
    assert any("complete transaction prepared list" in text for text in reported)


class RefusingKeyValue:
    """A catalogue whose next batch fails on demand, and is then on the disk, or is not."""

    def __init__(self, inner: KeyValue) -> None:
        self._inner = inner
        self.fails: bool | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        if self.fails is None:
            self._inner.write(changes)
            return
        if self.fails:
            self._inner.write(changes)
        self.fails = None
        raise CatalogueError("catalogue: RocksDB cannot write: No space left on device")


@pytest.mark.parametrize("written", [False, True])
def test_a_queue_that_is_refused(store: Path, watched: Any, tmp_path: Path, *, written: bool) -> None:
    expected = messages(store)
    disk, environment = watched(store)
    opened_maps: list[RefusingKeyValue] = []

    def open_key_value(path: str, *, create: bool) -> KeyValue:
        opened_maps.append(RefusingKeyValue(tool_environment().open_key_value(path, create=create)))
        return opened_maps[-1]

    environment = environment._replace(open_key_value=open_key_value, make_background=InlineBackground)
    held = MessageStore.open(environment, str(store), PARAMETERS, VERSION, log=lambda _: None)
    held.end_recovery()
    begun = len(disk.states)
    opened_maps[-1].fails = written
    got: list[Exception | None] = []
    held.changes.create_queue(Queue("refused"), Geometry.from_pages(4, 1), lambda _, error: got.append(error))
    held.collect()
    disk.look()
    held.close()
    assert 'queue "refused" cannot be created' in str(got[0])
    assert list((store / "rhm/jrnl").rglob("*/deleted"))
    reported = assert_sound(disk.states[begun:], expected, tmp_path / "recovered")
    assert any("was refused because the catalogue could not be written" in text for text in reported) is written


def test_a_store_that_is_made_and_truncated(watched: Any, tmp_path: Path) -> None:
    path = tmp_path / "store"
    disk, environment = watched(path)
    for truncate in (False, True):
        parameters = replace(PARAMETERS, truncate=truncate)
        MessageStore.open(environment, str(path), parameters, VERSION, log=lambda _: None).close()
    for state in today(disk.states, 8):
        checked = check(state)
        assert checked.code in (0, 2), checked.lines()
        assert checked.lines("damage") == []
        assert not [line for line in opened(state) if line.level is Level.CRITICAL]
        assert check(state).code == 0
