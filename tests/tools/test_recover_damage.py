"""Damage planted in stores of all formats: `qstore-recover` saves every message that is not hit, and tells what was.

The plants are those of the tests of `qstore-check`. Of single flipped bits every fourteenth is planted here, and all of
them with `-m soak`; of the others a part, each day another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.planted_damage import Original, Plant, linear_store, version_1_store, version_2_store
from tests.support.profiles import today
from tests.support.recover_runs import examine_recovery, sync_at_once
from tests.tools import (
    test_check_damage_linear,
    test_check_damage_linear_files,
    test_check_damage_linear_links,
    test_check_damage_version_1,
    test_check_damage_version_1_files,
    test_check_damage_version_2,
    test_check_damage_version_2_files,
)

_STEP: Final = 14


def some(plants: Sequence[Plant]) -> Iterator[Any]:
    """Every fourteenth now, the others with the long runs."""
    for number, plant in enumerate(plants):
        yield plant if number % _STEP == 0 else pytest.param(plant, marks=pytest.mark.soak)


def half(plants: Sequence[Plant]) -> list[Plant]:
    """Those of today, and tomorrow the others."""
    return today(plants, -(-len(plants) // 2))


def third(plants: Sequence[Plant]) -> list[Plant]:
    """A third of what is left, so that within six days each has its turn: of halves again one would never come."""
    return today(plants, -(-len(plants) // 3))


@pytest.fixture(autouse=True)
def spared(monkeypatch: pytest.MonkeyPatch) -> None:
    sync_at_once(monkeypatch)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Original]:
    """The undamaged stores by name, each made once."""
    makers: dict[str, Callable[[Path], Original]] = {
        "version 1": version_1_store,
        "version 2": version_2_store,
        "left": lambda path: version_2_store(path, clean=False),
        "linear": linear_store,
    }
    made: dict[str, Original] = {}

    def store(name: str) -> Original:
        if name not in made:
            made[name] = makers[name](tmp_path_factory.mktemp("original") / "store")
        return made[name]

    return store


UNDAMAGED: Final = Plant("nothing", lambda planted: None)


@pytest.mark.parametrize("name", ["version 1", "version 2", "left", "linear"])
def test_the_undamaged_store(stores: Callable[[str], Original], name: str, tmp_path: Path) -> None:
    recovery = examine_recovery(stores(name), UNDAMAGED, tmp_path)
    assert recovery.summary["lost"] == 0
    # Where there never was a catalogue nobody knows which bindings there were.
    assert len(recovery.report.lines("binding")) == (0 if name in ("version 2", "left") else 2)


# ---- version 1 ----

#: Here records of the prepared list come into a queue: they are no messages of which a body could tell the name.
NOT_OF_THE_HISTORY: Final = "file of another queue, newer than the rest of its own"
VERSION_1: Final = [
    *some(test_check_damage_version_1.RECORDS),
    *some(test_check_damage_version_1.HEADERS),
    *half(test_check_damage_version_1.NO_DAMAGE),
    *half([plant for plant in test_check_damage_version_1_files.FILES if plant.name != NOT_OF_THE_HISTORY]),
    *half(test_check_damage_version_1_files.PREPARED),
    *half(test_check_damage_version_1_files.COPIES),
    *half(test_check_damage_version_1_files.INFOS),
    *half(test_check_damage_version_1_files.MORE_INFOS),
]


@pytest.mark.parametrize("plant", third(VERSION_1), ids=str)
def test_version_1(stores: Callable[[str], Original], plant: Plant, tmp_path: Path) -> None:
    examine_recovery(stores("version 1"), plant, tmp_path)


# ---- version 2 ----

VERSION_2: Final = [
    *some(test_check_damage_version_2.RECORDS),
    *some(test_check_damage_version_2.HEADERS),
    *half(test_check_damage_version_2.INFOS),
    *half(test_check_damage_version_2.STORES),
    *half(test_check_damage_version_2_files.FILES),
    *half(test_check_damage_version_2_files.COPIES),
]


@pytest.mark.parametrize("plant", third(VERSION_2), ids=str)
def test_version_2(stores: Callable[[str], Original], plant: Plant, tmp_path: Path) -> None:
    """A file's header that is lost costs nothing here: its records tell the salt."""
    if any(finding.consequence == test_check_damage_version_2.NO_SALT for finding in plant.findings):
        plant = replace(plant, changes={})
    examine_recovery(stores("version 2"), plant, tmp_path)


@pytest.mark.parametrize("plant", test_check_damage_version_2_files.NO_DAMAGE, ids=str)
def test_what_a_crash_leaves_of_version_2(stores: Callable[[str], Original], plant: Plant, tmp_path: Path) -> None:
    examine_recovery(stores("left"), plant, tmp_path)


# ---- linearstore ----

LINEAR: Final = [
    *some(test_check_damage_linear.RECORDS),
    *some(test_check_damage_linear.HEADERS),
    *half(test_check_damage_linear.NO_DAMAGE),
    *half(test_check_damage_linear_files.FILES),
    *half(test_check_damage_linear_files.COPIES),
    *half(test_check_damage_linear_links.LINKS),
]


@pytest.mark.parametrize("plant", third(LINEAR), ids=str)
def test_linear(stores: Callable[[str], Original], plant: Plant, tmp_path: Path) -> None:
    examine_recovery(stores("linear"), plant, tmp_path)
