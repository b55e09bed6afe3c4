"""Damage planted in stores of every format: what `qstore-check` reports, and that it is true.

Each format has its table of plants (`planted_version_1`, `planted_version_2`, `planted_linear`): what is damaged, what
must be reported, and what recovery loses. All go through one frame. What needs more than a row is below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.dump import dump
from tests.support.planted_damage import (
    Original,
    Plant,
    Planted,
    examine,
    linear_store,
    version_1_store,
    version_2_store,
)
from tests.tools import planted_linear, planted_version_1, planted_version_2
from tests.tools.planted_version_2 import CATALOGUES, COPY, STORES

#: Store -> how it is made, and what is planted in it.
STORES_OF: Final[dict[str, tuple[Callable[[Path], Original], Mapping[str, Sequence[Plant]]]]] = {
    "version 1": (version_1_store, planted_version_1.PLANTS),
    "version 2": (version_2_store, planted_version_2.PLANTS),
    "version 2, left": (partial(version_2_store, clean=False), planted_version_2.PLANTS_OF_LEFT),
    "linear": (linear_store, planted_linear.PLANTS),
}


@pytest.fixture(scope="module")
def original_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Original]:
    @cache
    def made(store: str) -> Original:
        return STORES_OF[store][0](tmp_path_factory.mktemp(store.replace(" ", "-")) / "store")

    return made


def cases() -> Iterator[Any]:
    for store, (_, groups) in STORES_OF.items():
        yield pytest.param(store, Plant("nothing", lambda planted: None), id=f"{store}: nothing")
        for group, plants in groups.items():
            for plant in plants:
                yield pytest.param(store, plant, id=f"{store}: {group}: {plant}")


@pytest.mark.parametrize(("store", "plant"), list(cases()))
def test_damage_is_reported_as_it_is(
    original_of: Callable[[str], Original], store: str, plant: Plant, tmp_path: Path
) -> None:
    examine(original_of(store), plant, tmp_path / "store")


# ---- version 2: the catalogue ----


@pytest.mark.parametrize("plant", STORES, ids=str)
def test_damage_of_catalogue_and_store_file(
    original_of: Callable[[str], Original], plant: Plant, tmp_path: Path
) -> None:
    """Of a store that has no second copy of its catalogue."""

    def do(planted: Planted) -> None:
        planted.remove(COPY)
        plant.do(planted)

    examine(original_of("version 2"), replace(plant, do=do), tmp_path / "store")
    if "deleted" in plant.name:
        assert len(dump(tmp_path / "store/rhm/jrnl/2", "--outstanding", "--json").lines("message")) == 6


@pytest.mark.parametrize("plant", CATALOGUES, ids=str)
def test_a_damaged_catalogue_costs_nothing_beside_its_second_copy(
    original_of: Callable[[str], Original], plant: Plant, tmp_path: Path
) -> None:
    taken = [each._replace(consequence="no data loss: its second copy is used instead") for each in plant.findings]
    examine(original_of("version 2"), replace(plant, findings=taken), tmp_path / "store")
    dumped = dump(tmp_path / "store", "--topology", "--json")
    assert [line["name"] for line in dumped.lines("queue")] == ["orders", "bills"]
    assert [line["queue"] for line in dumped.lines("binding")] == ["orders"]
    assert dumped.code == 1


# ---- linearstores: links and pools ----


def test_links_that_lead_nowhere(original_of: Callable[[str], Original], tmp_path: Path) -> None:
    original = original_of("linear")
    for number, plant in enumerate(planted_linear.plants_of_links(original)):
        examine(original, plant, tmp_path / f"store {number}")


def test_the_pool(original_of: Callable[[str], Original], tmp_path: Path) -> None:
    original = original_of("linear")
    for plant in planted_linear.plants_of_pool(original):
        examine(original, plant, tmp_path / plant.name)
