"""Damage planted in stores of all formats: `qstore-recover` saves every undamaged message, and reports the others.

The plants are those of the tests of `qstore-check`. Of single flipped bits every fourteenth is planted here, and all of
them with `-m soak`; of the others a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.planted_damage import Original, Plant, linear_store, version_1_store, version_2_store
from tests.support.profiles import today
from tests.support.recover_runs import examine_recovery
from tests.tools import planted_linear, planted_version_1, planted_version_2

pytestmark = pytest.mark.usefixtures("nothing_is_synced")

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
    *some(planted_version_1.RECORDS),
    *some(planted_version_1.HEADERS),
    *half(planted_version_1.NO_DAMAGE),
    *half([plant for plant in planted_version_1.FILES if plant.name != NOT_OF_THE_HISTORY]),
    *half(planted_version_1.PREPARED),
    *half(planted_version_1.COPIES),
    *half(planted_version_1.INFOS),
    *half(planted_version_1.MORE_INFOS),
]


@pytest.mark.parametrize("plant", third(VERSION_1), ids=str)
def test_version_1(stores: Callable[[str], Original], plant: Plant, tmp_path: Path) -> None:
    examine_recovery(stores("version 1"), plant, tmp_path)


# ---- version 2 ----

VERSION_2: Final = [
    *some(planted_version_2.RECORDS),
    *some(planted_version_2.HEADERS),
    *half(planted_version_2.INFOS),
    *half(planted_version_2.STORES),
    *half(planted_version_2.FILES),
    *half(planted_version_2.COPIES),
]


@pytest.mark.parametrize("plant", third(VERSION_2), ids=str)
def test_version_2(stores: Callable[[str], Original], plant: Plant, tmp_path: Path) -> None:
    """A file's header that is lost costs nothing here: its records tell the salt."""
    if any(finding.consequence == planted_version_2.NO_SALT for finding in plant.findings):
        plant = replace(plant, changes={})
    examine_recovery(stores("version 2"), plant, tmp_path)


@pytest.mark.parametrize("plant", planted_version_2.NO_DAMAGE, ids=str)
def test_crash_leftovers_of_version_2_are_no_damage(
    stores: Callable[[str], Original], plant: Plant, tmp_path: Path
) -> None:
    examine_recovery(stores("left"), plant, tmp_path)


# ---- linearstore ----

LINEAR: Final = [
    *some(planted_linear.RECORDS),
    *some(planted_linear.HEADERS),
    *half(planted_linear.NO_DAMAGE),
    *half(planted_linear.FILES),
    *half(planted_linear.COPIES),
    *half(planted_linear.LINKS),
]


@pytest.mark.parametrize("plant", third(LINEAR), ids=str)
def test_linear(stores: Callable[[str], Original], plant: Plant, tmp_path: Path) -> None:
    examine_recovery(stores("linear"), plant, tmp_path)
