"""No dead code in the rooms: modules that are never imported; functions, methods and constants that are never named.

A name counts as used if the rooms or the manuals have it anywhere but where it is defined; tests do not count. What a
library calls by its name (a protocol's `data_received`) is found by its base class.
"""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.test_house import MODULES, PACKAGE, ROOT, SOURCES, parsed

PUBLIC_MODULES: Final = {
    "broker/client/aio.py",
    "broker/management/agent_library.py",
    "broker/management/console/aio.py",
    "broker/management/console/qmf_console.py",
    "store/live/snapshot.py",
}
"""Nothing in the rooms imports them: programs do, by the package's public names."""

TABLES: Final = ("formats/amqp_0_10/codes.py", "formats/amqp_0_10/structs.py", "formats/amqp_0_10/frames.py")
"""These have all that the specification has, used or not; tests hold them against it."""

AHEAD: Final = {
    "Transactions.commit_prepared": "the transaction manager's decision: what recovery leaves in doubt",
    "Transactions.abort_prepared": "as commit_prepared",
    "StoreTransactions.commit_prepared": "as above, seen from the broker",
    "StoreTransactions.abort_prepared": "as above, seen from the broker",
    "Snapshot.overtaken": "for those who follow a snapshot",
    "PageFile.file_bytes": "the size on disk, which compaction limits",
}
"""What management reads, and what the store offers to programs besides the broker."""

MANUALS: Final = "".join((ROOT / page).read_text() for page in ("README.md", "store/USING.md", "broker/OPERATING.md"))


def all_trees() -> dict[Path, ast.Module]:
    """All modules, parsed."""
    return {path: parsed(SOURCES[path]) for path in MODULES}


def names_used(trees: dict[Path, ast.Module]) -> Counter[str]:
    """How often each name is read, called, imported from elsewhere as an attribute, or given as a text."""
    used: Counter[str] = Counter()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
                used[node.id] += 1
            elif isinstance(node, ast.Attribute):
                used[node.attr] += 1
            elif isinstance(node, ast.keyword) and node.arg:
                used[node.arg] += 1
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts = node.value.split(".")  # also what an attrgetter reads
                used.update(parts if all(part.isidentifier() for part in parts) else ())
            elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.decorator_list:
                used[node.name] += any("command" in ast.unparse(each) for each in node.decorator_list)
    return used


def entry_points() -> set[tuple[str, str]]:
    """Modules and names with which commands and plug-ins begin."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = (project["scripts"], *project["entry-points"].values())
    return {(module, name) for group in groups for module, _, name in (each.partition(":") for each in group.values())}


def definitions(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What a module defines at its top and in its classes: how it is reported (`Class.method`), and its name."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.name
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{member.name}", member.name
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from ((target.id, target.id) for target in targets if isinstance(target, ast.Name))


def is_documented(name: str) -> bool:
    """Whether a manual names it, as code."""
    return re.search(rf"`[^`\n]*\b{name}\b|^(?!#).*\b{name}\(", MANUALS, re.MULTILINE) is not None


def dotted(path: Path) -> str:
    """A module's name."""
    return ".".join((PACKAGE, *path.with_suffix("").parts))


def is_called_by_base(path: Path, reported: str) -> bool:
    """Whether a method overrides one of a base class."""
    owner, _, method = reported.partition(".")
    if not method:
        return False
    kind = getattr(importlib.import_module(dotted(path)), owner)
    return any(hasattr(base, method) for base in kind.__mro__[1:])


def dead_names(trees: dict[Path, ast.Module]) -> list[str]:
    """Definitions that nothing names, as `file: name`."""
    used = names_used(trees)
    begun = {name for _, name in entry_points()}
    found = []
    for path, tree in trees.items():
        if str(path) in TABLES or str(path) in AHEAD:
            continue
        for reported, name in definitions(tree):
            is_special = name.startswith("__") and name.endswith("__")
            if (
                used[name]
                or name in begun
                or is_special
                or reported in AHEAD
                or is_documented(name)
                or is_called_by_base(path, reported)
            ):
                continue
            found.append(f"{path}: {reported}")
    return found


def dead_modules(trees: dict[Path, ast.Module]) -> list[str]:
    """Modules that are not imported, and that are no command's or plug-in's first one."""
    seen = {module for module, _ in entry_points()}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                seen.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                seen.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    kept = {*PUBLIC_MODULES, *AHEAD}
    return [
        str(path) for path in trees if path.name != "__init__.py" and dotted(path) not in seen and str(path) not in kept
    ]


def test_no_dead_modules() -> None:
    assert dead_modules(all_trees()) == []


def test_no_dead_names() -> None:
    assert dead_names(all_trees()) == []


def test_exceptions_are_needed() -> None:
    files = {str(path) for path in MODULES}
    reported = {reported for tree in all_trees().values() for reported, _ in definitions(tree)}
    assert {*PUBLIC_MODULES, *TABLES} <= files
    assert set(AHEAD) <= files | reported


def test_the_check_itself_finds_dead_names() -> None:
    source = "LIMIT = 1\nB = 2\ndef f():\n    f.name = 1\ndef g():\n    return B\nclass FormatError(Exception):\n"
    source += (
        "    def dead_method(self):\n        pass\n    def with_traceback(self, _):\n        pass\nFormatError(), g()"
    )
    path = Path("formats/errors.py")
    assert dead_names({path: ast.parse(source)}) == [f"{path}: {name}" for name in ("LIMIT", "FormatError.dead_method")]


def test_the_check_itself_finds_dead_modules() -> None:
    trees = {Path("formats/a.py"): ast.parse("import qstore.formats.b"), Path("formats/b.py"): ast.parse("X = 1")}
    assert dead_modules(trees) == ["formats/a.py"]
