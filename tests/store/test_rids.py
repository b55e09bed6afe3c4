"""Record ids: none is given out twice, and each is reserved on the disk before."""

from __future__ import annotations

import random
from collections.abc import Mapping
from uuid import UUID

import pytest

from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.environment import Background, InlineBackground, ThreadBackground
from qstore.store.key_value import CatalogueError
from qstore.store.live.appender import RecordIds
from tests.support.memory_disk import MemoryKeyValue

STORE_ID = UUID(int=1, version=4)


class FailingKeyValue(MemoryKeyValue):
    """A map that accepts a limited number of batches."""

    left = 1_000_000

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        if self.left == 0:
            raise CatalogueError("the disk is full")
        self.left -= 1
        super().write(changes)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("qstore.formats.catalogue", "qstore.store.catalogue.catalogue"):
        monkeypatch.setattr(f"{module}.RID_BLOCK", 8)


@pytest.fixture
def key_value() -> FailingKeyValue:
    return FailingKeyValue()


@pytest.fixture
def catalogue(key_value: FailingKeyValue) -> Catalogue:
    return Catalogue.create(key_value, STORE_ID)


def unexpected(error: Exception) -> None:
    raise AssertionError(error)


def test_the_first_is_1(catalogue: Catalogue) -> None:
    ids = RecordIds(catalogue, InlineBackground(), unexpected)
    assert [ids.take() for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("collects", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("kind", [InlineBackground, ThreadBackground])
def test_each_is_reserved_before_it_is_given(catalogue: Catalogue, kind: type[Background], collects: float) -> None:
    background, source = kind(), random.Random(1)
    ids = RecordIds(catalogue, background, unexpected)
    for expected in range(1, 2000):
        assert ids.take() == expected
        assert expected < catalogue.rid_high_water()
        if source.random() < collects:
            background.collect()
    background.close()


def test_the_next_block_is_reserved_in_the_background(catalogue: Catalogue) -> None:
    """Reserved when half of the block is used; the rest of the block is used until then."""
    background = InlineBackground()
    ids = RecordIds(catalogue, background, unexpected)
    while not background.is_busy:
        assert catalogue.rid_high_water() == 8
        ids.take()
    assert 3 < ids.next < 7
    assert catalogue.rid_high_water() == 16


def test_a_store_that_is_opened_again_continues_above(catalogue: Catalogue, key_value: FailingKeyValue) -> None:
    given: list[int] = []
    for run in range(30):
        ids = RecordIds(Catalogue(key_value), InlineBackground(), unexpected)
        given.extend(ids.take() for _ in range(run))
    assert given == sorted(set(given))


@pytest.mark.parametrize("kind", [InlineBackground, ThreadBackground])
def test_where_none_can_be_reserved(key_value: FailingKeyValue, catalogue: Catalogue, kind: type[Background]) -> None:
    """Those that are reserved are used up, then there is an error each time; and none is lost or given twice."""
    background = kind()
    failures: list[Exception] = []
    ids = RecordIds(catalogue, background, failures.append)
    key_value.left = 0
    assert [ids.take() for _ in range(7)] == list(range(1, 8))
    for _ in range(3):
        with pytest.raises(CatalogueError, match="the disk is full"):
            ids.take()
    background.wait()
    background.collect()
    assert [str(failure) for failure in failures] == ["the disk is full"]
    key_value.left = 1_000_000
    assert [ids.take() for _ in range(50)] == list(range(8, 58))
    assert catalogue.rid_high_water() > 57
    background.close()


def test_blocks_reserved_by_others_stay_unused(catalogue: Catalogue) -> None:
    ids = RecordIds(catalogue, InlineBackground(), unexpected)
    theirs = catalogue.reserve_rids()
    given = [ids.take() for _ in range(40)]
    assert given == sorted(set(given))
    assert not set(given) & set(theirs)
