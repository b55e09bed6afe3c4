"""Stores that fsspec reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow not installed: pip install 'qstore[spark]'")
pytest.importorskip("fsspec", reason="fsspec not installed: pip install 'qstore[spark]'")

import fsspec

from qstore.tools.spark.inputs import BLOCK, Input, RemoteDisk, named_inputs
from tests.spark.reading import Row, records, table
from tests.support.fixtures import StoreOpener
from tests.support.planted_damage import version_2_store

ROOT = "/fleet"


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    if system.exists(ROOT):
        system.rm(ROOT, recursive=True)


def put(system: Any, source: Path, target: str) -> str:
    for path in sorted(source.rglob("*")):
        if path.is_file():
            system.pipe_file(f"{target}/{path.relative_to(source)}", path.read_bytes())
    return f"memory://{target}"


def without_places(rows: list[Row], root: object) -> list[str]:
    return sorted(repr(row).replace(str(root), "") for row in rows)


@pytest.mark.parametrize("name", ["legacy-d-dtx", "linear-d-dtx"])
def test_a_store_elsewhere_has_the_same_rows(open_fixture: StoreOpener, memory: Any, name: str) -> None:
    local = open_fixture(name).path
    remote = put(memory, local, f"{ROOT}/{name}")
    assert without_places(records(remote), remote) == without_places(records(local), local)
    for each in ("queues", "exchanges", "bindings", "transactions"):
        assert without_places(table(remote, each), remote) == without_places(table(local, each), local)


def test_the_catalogue_of_a_store_elsewhere_is_read(tmp_path: Path, memory: Any) -> None:
    local = version_2_store(tmp_path / "store").path
    remote = put(memory, local, f"{ROOT}/store")
    assert without_places(table(remote, "bindings"), remote) == without_places(table(local, "bindings"), local)
    assert table(remote, "bindings")
    assert without_places(table(remote, "queues"), remote) == without_places(table(local, "queues"), local)
    assert without_places(records(remote), remote) == without_places(records(local), local)


def test_a_glob_finds_stores_elsewhere(memory: Any) -> None:
    for name in ("a", "b"):
        memory.pipe_file(f"{ROOT}/{name}/rhm/STORE", b"")
    found = named_inputs({"path": f"memory://{ROOT}/*"})
    assert found == [Input(f"memory://{ROOT}/a"), Input(f"memory://{ROOT}/b")]


def test_reading_by_position_is_right_across_blocks(memory: Any) -> None:
    content = bytes(range(256)) * (BLOCK // 256) + b"end of it"
    memory.pipe_file(f"{ROOT}/file", content)
    disk = RemoteDisk(memory)
    file = disk.open(f"{ROOT}/file")
    assert file.size == len(content)
    for offset, length in ((0, 10), (BLOCK - 3, 8), (BLOCK + 4, 100), (len(content), 5), (0, len(content) + 1)):
        assert file.read(offset, length) == content[offset : offset + length]
    file.close()


def test_missing_file_is_an_oserror(memory: Any) -> None:
    disk = RemoteDisk(memory)
    memory.pipe_file(f"{ROOT}/file", b"x")
    for call in (lambda: disk.open(f"{ROOT}/none"), lambda: disk.names(f"{ROOT}/none"), lambda: disk.open(ROOT)):
        with pytest.raises(OSError, match="fleet"):
            call()
    with pytest.raises(FileNotFoundError):
        disk.open(f"{ROOT}/none")
    assert disk.is_directory(ROOT)
    assert not disk.is_file(ROOT)
    assert not disk.is_directory(f"{ROOT}/file")
