"""How modules are found, and their options."""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from qstore.broker.process.modules import (
    GROUP,
    OWN,
    ModuleError,
    installed,
    load_store,
    module_name,
    modules_in,
    options_of,
)
from qstore.broker.process.option_table import GROUPS
from qstore.broker.process.options import Table, Values, help_text, read_arguments
from tests.support.dump import ROOT


def points(*pairs: tuple[str, str]) -> Callable[..., EntryPoints]:
    """Stands for what packages have declared."""
    return lambda group: EntryPoints(EntryPoint(name, value, group) for name, value in pairs)


@pytest.mark.parametrize(
    "name",
    ["store", "store.so", "msgstore.so", "legacystore.so", "linearstore.so", "libbdbstore.so",
     "/usr/lib64/qpid/daemon/legacystore.so", "./msgstore.so"],
)  # fmt: skip
def test_every_name_of_qpidd_s_stores_is_this_one(name: str) -> None:
    module = load_store([name])
    assert module is not None
    assert module.title == "Store"
    assert "num-jfiles" in {option.name for option in module.options}


def test_names() -> None:
    assert module_name("/a/b/store.so") == "store"
    assert module_name("store") == "store"
    assert module_name("store.so/") == "store"
    assert module_name("") == ""


def test_none_and_several_names_of_one() -> None:
    assert load_store([]) is None
    assert load_store(["store", "msgstore.so"]) is not None


@pytest.mark.parametrize("name", ["", "/", "sslconnector.so", "store.so.1", "../etc/passwd", "a\nb"])
def test_names_that_no_module_has(name: str) -> None:
    with pytest.raises(ModuleError, match=r"no such module; installed are .*store") as refusal:
        load_store([name])
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("name", ["acl.so", "/usr/lib64/qpid/daemon/ssl.so", "watchdog", "replicating_listener.so"])
def test_modules_of_qpidd_that_are_built_in_are_accepted(name: str) -> None:
    assert load_store([name]) is None
    module = load_store([name, "store.so"])
    assert module is not None
    assert module.title == "Store"


@pytest.mark.parametrize(
    ("name", "instead"),
    [("rdma.so", "not on RDMA"), ("/usr/lib64/qpid/daemon/cluster.so", "queue replication"),
     ("ha.so", "queue replication"), ("rdma", "listens on TCP")],
)  # fmt: skip
def test_missing_qpidd_module_is_refused_with_an_alternative(name: str, instead: str) -> None:
    with pytest.raises(ModuleError) as refusal:
        load_store([name, "store"])
    text = str(refusal.value)
    assert text.startswith(f"--load-module {name}: this broker ")
    assert instead in text
    assert text.endswith(". Remove the option")


def test_modules_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = points(
        ("a", "no.such:Module"), ("b", "qstore.store.module:Nothing"), ("store", "qstore.store.module:Module")
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", found)
    for name in ("a", "b"):
        with pytest.raises(ModuleError, match=f"module {name} .* cannot be loaded"):
            load_store([name])
    with pytest.raises(ModuleError, match="are different stores"):
        load_store(["a", "store"])
    assert load_store(["store"]) is not None


def test_the_modules_of_this_package_are_declared() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert table == {GROUP: OWN}
    assert installed() == OWN


def test_options_of_a_module_are_read_and_shown_with_the_broker_s() -> None:
    module = load_store(["store"])
    assert module is not None
    added = options_of(module)
    table = Table((*GROUPS, added.group))
    given = read_arguments(["--num-jfiles", "9", "--truncate", "--store-directory=/x", "--port=1"], table)
    Values(table, given).check()
    assert added.given(given) == {"num-jfiles": "9", "truncate": "yes", "store-dir": "/x"}
    assert "Store options:" in help_text(table)
    assert "--num-jfiles N (8)" in help_text(table)
    assert "num-jfiles" not in help_text(Table(GROUPS))
    assert len(table.by_name) == len(Table(GROUPS).by_name) + sum(1 + bool(each.alias) for each in added.group.options)


# ---- a directory of modules ----


def test_a_directory_names_modules_by_its_files(tmp_path: Path) -> None:
    for name in ("legacystore.so", "store.so", "ha.so", "acl.so", "a\nb.so", "store.txt", "readme"):
        (tmp_path / name).write_bytes(b"\x7fELF")
    found = modules_in(str(tmp_path))
    assert found.names == ("legacystore.so", "store.so")
    wanted = f"{tmp_path}: these files are ignored, since no modules with their names are installed: a\\nb.so, ha.so"
    assert found.warnings == (wanted,)
    for number in range(1000):
        (tmp_path / f"b{number:03}.so").touch()
    (line,) = modules_in(str(tmp_path)).warnings
    assert line.endswith("b018.so, …")
    assert load_store(found.names) is not None


def test_a_directory_without_modules(tmp_path: Path) -> None:
    assert modules_in(str(tmp_path)) == ((), ())


@pytest.mark.parametrize("name", ["none", "file", "n\0l"])
def test_a_module_directory_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModuleError, match=r"--module-dir .*: cannot be read: ") as refusal:
        modules_in(str(tmp_path / name))
    assert str(refusal.value).isprintable()
