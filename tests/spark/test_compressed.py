"""Compressed content in the table of records."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow not installed: pip install 'qstore[spark]'")

from tests.spark.reading import records
from tests.support.opened_store import BODIES, bomb, broken_content, make_store

COLUMNS = "type,flags,routing_key,body_length,body,damage,damage_kind"


@pytest.mark.parametrize("split_bytes", [None, 4096])
def test_bodies_are_as_they_were(tmp_path: Path, split_bytes: int | None) -> None:
    rows = records(make_store(tmp_path / "store"), COLUMNS, split_bytes=split_bytes)
    found = [row for row in rows if row["type"] == "enqueue"]
    assert sorted(row["body"] for row in found) == sorted(BODIES)
    assert all(row["body_length"] == len(row["body"]) and row["damage"] is None for row in found)
    assert sum("compressed" in row["flags"] for row in found) >= 9


def test_a_part_of_a_body(tmp_path: Path) -> None:
    rows = records(make_store(tmp_path / "store"), COLUMNS, body_limit=10)
    found = [row for row in rows if row["type"] == "enqueue"]
    assert sorted(row["body"] for row in found) == sorted(body[:10] for body in BODIES)
    assert sorted(row["body_length"] for row in found) == sorted(map(len, BODIES))


def test_damaged_content_is_reported_in_its_row(tmp_path: Path) -> None:
    path = make_store(tmp_path / "store", broken_content(), bomb())
    found = [row for row in records(path, COLUMNS) if row["damage"] is not None]
    assert [row["damage_kind"] for row in found] == ["content-damaged"] * 2
    assert [row["routing_key"] for row in found] == ["orders"] * 2
    assert "cannot be restored" in found[0]["damage"]
    assert "the limit is 16,777,216" in found[1]["damage"]
    without_bodies = records(path, "type,body_length,damage")
    assert [row["damage"] for row in without_bodies if row["damage"]] == [found[1]["damage"]]
