"""No import cycles at run time; imports under `if TYPE_CHECKING` do not count."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.test_house import MODULES, PACKAGE, SOURCES, parsed


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join((PACKAGE, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imports(source: str) -> Iterator[str]:
    """What a module imports at run time, wherever in it: `a.b` and `a.b.c` for `from a.b import c`."""
    nodes: list[ast.AST] = [parsed(source)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            nodes += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        nodes += ast.iter_child_nodes(node)


def graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Module -> the modules that it imports, of those that are given."""
    return {name: (set(imports(source)) & sources.keys()) - {name} for name, source in sources.items()}


def test_no_circles_of_imports() -> None:
    names = {module_name(path): path for path in MODULES}
    sources = {name: SOURCES[path] for name, path in names.items() if path.name != "__init__.py"}
    assert len(sources) > 100
    TopologicalSorter(graph(sources)).prepare()


def test_the_check_itself_finds_circles() -> None:
    sources = {
        "room.a": "from room import b",
        "room.b": "if X:\n    from room.c import C",
        "room.c": "def f():\n    import room.a",
        "room.d": "from room.a import A\nfrom elsewhere import x",
    }
    with pytest.raises(CycleError):
        TopologicalSorter(graph(sources)).prepare()
    TopologicalSorter(graph(sources | {"room.c": "import room.e"})).prepare()
    TopologicalSorter(graph(sources | {"room.b": "if TYPE_CHECKING:\n    from room.c import C"})).prepare()
