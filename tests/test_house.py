"""The rules of the house: who may import whom, and what every module has."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import LONG, REASONS, SAMPLED, Unrun, has_core_tests
from tests.support import compiled

ROOT = Path(__file__).parents[1]
ROOMS = ("formats", "store", "broker", "tools")
PACKAGE = "qstore"
"""The one import package: its folder links to the rooms."""
FORBIDDEN = {
    "formats": {"store", "broker", "tools"},
    "store": {"broker", "tools"},
    "broker": {"store", "tools"},
    "tools": set[str](),
}

MODULES = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))
FOLDERS = sorted({parent for path in MODULES for parent in path.parents if parent.parts})
SOURCES = {path: (ROOT / path).read_text() for path in MODULES}


@cache
def parsed(source: str) -> ast.Module:
    """A module, parsed once for all checks (`support/scheduling.py`); they leave it as it is."""
    return ast.parse(source)


def where(check: Callable[[str, Path], object]) -> dict[str, object]:
    """What a check finds, by module; modules in which it finds nothing are left out."""
    found = {str(module): check(source, module) for module, source in SOURCES.items()}
    return {module: each for module, each in found.items() if each}


def called(call: ast.Call) -> str:
    """The last name of what is called; empty if it has none."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def imported(source: str, module: Path) -> Iterator[str]:
    """The full names that a module imports, wherever in it: `from . import x` resolved, `import_module("x")` too."""
    package = (PACKAGE, *module.parent.parts)
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join((*base, node.module or "")).strip(".")
            yield from (f"{name}.{alias.name}" for alias in node.names) if name == PACKAGE else (name,)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            yield from (str(argument.value) for argument in node.args[:1] if isinstance(argument, ast.Constant))


def strays(source: str, module: Path) -> list[str]:
    """What a module imports and may not: rooms below it, tests, and rooms by their bare names."""
    allowed = {"__version__", *ROOMS} - FORBIDDEN[module.parts[0]]
    found = []
    for name in imported(source, module):
        top, room = (*name.split("."), "")[:2]
        if top in (*ROOMS, "tests") or (top == PACKAGE and room not in allowed):
            found.append(name)
    return found


def test_imports_go_one_way() -> None:
    assert where(strays) == {}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("formats/rhm/records.py", "def f():\n    import qstore.store.disk"),
        ("formats/errors.py", "from qstore.tools.qstore_dump import main"),
        ("store/disk.py", "import os, qstore.broker"),
        ("store/disk.py", "from formats.rhm import geometry"),
        ("store/journal/reader.py", "from ...tools import x"),
        ("broker/network/server.py", "import importlib\nimportlib.import_module('qstore.store.module')"),
        ("broker/network/server.py", "if True:\n    from qstore import store"),
        ("broker/network/server.py", "from qstore import Connection"),
        ("tools/qstore_dump.py", "import tests.support"),
    ],
)
def test_the_check_itself_finds_strays(module: str, source: str) -> None:
    assert len(strays(source, Path(module))) == 1


def test_the_check_itself_lets_the_rest_pass() -> None:
    for room, sources in {
        "formats": "import struct\nfrom qstore.formats.errors import FormatError\nfrom . import store_file",
        "store": "from qstore.formats import catalogue\nimport storehouse\nfrom qstore import formats",
        "broker": "from qstore.formats.amqp_0_10 import types\nimport importlib\nimportlib.import_module(name)",
        "tools": "import qstore.formats, qstore.store, qstore.broker",
    }.items():
        assert strays(sources, Path(room, "module.py")) == []


def test_named_tuples_are_those_that_are_defined_fast() -> None:
    """See `formats/named_tuple`: `typing`'s take a fifth of the time in which a broker imports its modules."""
    text = re.compile(r"^from typing import .*\bNamedTuple\b(?! as )", re.MULTILINE)
    assert not where(lambda source, _: text.search(source))


def test_every_folder_of_modules_is_a_package() -> None:
    assert [folder for folder in FOLDERS if not (ROOT / folder / "__init__.py").is_file()] == []


def test_the_package_has_the_rooms_and_says_that_it_is_typed() -> None:
    folder = ROOT / PACKAGE
    assert {path.name for path in folder.iterdir() if path.is_dir()} - {"__pycache__"} == set(ROOMS)
    assert all((folder / room).samefile(ROOT / room) for room in ROOMS)
    assert (folder / "py.typed").is_file()


def test_modules_have_docstrings() -> None:
    assert where(lambda source, _: not ast.get_docstring(parsed(source))) == {}


PAGES = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("README.md"))
PAGES_OF_FILES = [page for page in PAGES if page.parts[0] != "formats" or len(page.parts) == 2]
"""Without those that describe a format's bytes."""


def unnamed(folder: Path, page: str) -> list[str]:
    """Modules and inner rooms of a folder that its page does not name."""
    modules = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    inner = [path.parent.name for path in folder.glob("*/__init__.py")]
    named = set(re.findall(r"[\w.]+", " ".join(re.findall(r"`([^`]*)`", page))))
    patterns = {name[:-1] for name in re.findall(r"`(\w+_)\*`", page)}
    return sorted(name for name in modules + inner if name not in named and name.partition("_")[0] not in patterns)


def test_the_check_detects_files_missing_from_a_page() -> None:
    assert unnamed(ROOT / "store/cluster", "`identity`") == ["rules"]


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_a_page(room: str) -> None:
    assert Path(room, "README.md") in PAGES


@pytest.mark.parametrize("page", PAGES_OF_FILES, ids=[str(page) for page in PAGES_OF_FILES])
def test_a_page_names_all_that_is_in_its_folder(page: Path) -> None:
    assert unnamed(ROOT / page.parent, (ROOT / page).read_text()) == []


MANUALS = [
    Path("README.md"),
    Path("CONTRIBUTING.md"),
    Path("broker/OPERATING.md"),
    Path("store/USING.md"),
    Path("tests/README.md"),
    *PAGES,
]
MAX_README_LINES = 250


def test_the_top_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < MAX_README_LINES


@pytest.mark.parametrize("page", MANUALS, ids=[str(page) for page in MANUALS])
def test_links_of_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    assert [link for link in links if not (ROOT / page.parent / link).exists()] == []


def test_ci_pins_the_dependencies_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pins = (ROOT / ".ci/constraints.txt").read_text().splitlines()
    pinned = {name_of(line) for line in pins if "==" in line}
    assert {name_of(requirement) for requirement in asked} - pinned == set()


def name_of(requirement: str) -> str:
    """The package of a requirement, as indexes spell it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


#: Methods that look into a text, and functions of `re` and of Spark's columns that do.
LOOKS_INTO: Final = {
    "startswith", "endswith", "find", "rfind", "index", "rindex", "count", "partition", "rpartition", "contains",
    "search", "match", "fullmatch", "findall", "finditer", "rlike", "like", "ilike",
}  # fmt: skip


def is_prose(node: ast.AST, caught: set[str]) -> bool:
    """Whether an expression is text for people: that of a damage, of an error, or an error as text."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("what", "consequence")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # str(error).lower()
        return node.func.attr in ("lower", "upper", "casefold", "strip") and is_prose(node.func.value, caught)
    is_text = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr")
    return is_text and any(isinstance(each, ast.Name) and each.id in caught for each in getattr(node, "args", ()))


def decided_by_prose(source: str) -> list[str]:
    """Where a module compares text for people, or searches it: only whether it exists may be asked."""
    tree = parsed(source)
    caught = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    caught |= {"error", "exception"}
    found = []
    for node in ast.walk(tree):
        looked_at: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            if not all(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops):
                looked_at = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            looked_at = [node.subject]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS_INTO:
            looked_at = [node.func.value, *node.args]
        found += [ast.unparse(node) for each in looked_at if is_prose(each, caught)]
    return found


def test_no_decision_depends_on_the_text_of_a_message() -> None:
    assert where(lambda source, _: decided_by_prose(source)) == {}


@pytest.mark.parametrize(
    "source",
    [
        'if "lost" in damage.consequence: pass',
        "is_known = damage.what == NO_LINK",
        "found = PATTERN.search(entry.what)",
        "re.match('none', damage.consequence)",
        "def f(error):\n    return str(error).startswith('Journal full')",
        "try: f()\nexcept OSError as problem:\n    if 'full' in str(problem).lower(): raise",
        "match damage.what:\n    case 'lost': pass",
    ],
)
def test_the_check_itself_finds_decisions_that_hang_on_prose(source: str) -> None:
    assert len(decided_by_prose(source)) == 1


def test_the_check_allows_prose_in_messages() -> None:
    reported = (
        "text = f'{damage.what}: {damage.consequence}'\nif error.what is None or damage.kind is KIND: pass\nstr(error)"
    )
    assert decided_by_prose(reported) == []


LAYOUT_FREE: Final = Path("store/journal")


def layouts(source: str) -> list[str]:
    """What of a layout a module spells out itself: structs, the page size, a header's word put together by hand."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import) and any(alias.name == "struct" for alias in node.names):
            found.append("struct")
        elif isinstance(node, ast.Constant) and node.value == 65536:
            found.append("65536")
        elif (
            isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift) and ast.unparse(node.right) in ("32", "48")
        ):
            found.append(ast.unparse(node))
    return found


def test_layouts_of_journals_stand_in_formats() -> None:
    assert where(lambda source, module: LAYOUT_FREE in module.parents and layouts(source)) == {}


def test_the_check_itself_finds_layouts() -> None:
    source = "import struct\nX = 65536\nY = kind | 2 << 32\nZ = flags << 48"
    assert sorted(layouts(source)) == ["2 << 32", "65536", "flags << 48", "struct"]
    assert layouts("from formats.rhm.geometry import PAGE_SIZE\nX = 1 << 20") == []


# ---- skips ----


def test_the_core_suite_leaves_out_what_is_there() -> None:
    names = (*LONG, *SAMPLED)
    functions = {name: name.partition("::")[2].partition("[")[0] for name in names}
    sources = {name: (ROOT / name.partition("::")[0]).read_text() for name in names}
    assert [name for name in names if functions[name] and f"def {functions[name]}" not in sources[name]] == []


def test_the_core_suite_has_a_crash_simulation_and_a_process_of_each_kind() -> None:
    modules = {path for folder in ("faults", "system") for path in (ROOT / "tests" / folder).glob("test_*.py")}
    core = {path.stem.removeprefix("test_") for path in modules if has_core_tests(path)}
    assert core > {"journal_crashes", "store_crashes", "broker_crashes", "store_killed", "broker_killed", "qpidd_start"}
    assert not has_core_tests(ROOT / "tests/faults/test_group_crashes.py")
    assert has_core_tests(ROOT / "tests/test_house.py")
    assert not has_core_tests(ROOT / "tests/spark")
    assert all(map(has_core_tests, (ROOT / "tests", *(ROOT / "tests" / room for room in ROOMS))))


def test_ci_refuses_skips_for_want_of_a_program() -> None:
    """The reasons that are allowed are few, and the programs of `.ci/run` are not among them."""
    refused = (
        "no Chromium on this machine (Debian: apt-get install chromium)",
        "needs db5.3_recover: Debian's db5.3-util",
        "Java is not installed: install version 17 or later (Debian: apt install openjdk-17-jre-headless)",
        "pyspark not installed: pip install 'qstore[spark]'",
        "node or npm is not on this machine",
        "MIT Kerberos (krb5-kdc, krb5-admin-server, krb5-user) or the package gssapi is not installed",
    )
    allowed = (
        "runs on one of 4 days: --hypothesis-profile nightly has all",
        compiled.REASON,
        "no ext4 can be mounted here",
    )
    unrun = Unrun()
    for number, reason in enumerate((*refused, *allowed)):
        report = pytest.TestReport(
            f"test_{number}", ("", 0, ""), {}, "skipped", ("file.py", number, f"Skipped: {reason}"), "setup"
        )
        unrun.pytest_runtest_logreport(report)
    assert unrun.refused == {reason: [f"test_{number}"] for number, reason in enumerate(refused)}
    assert all(REASONS.values())


def test_ci_installs_the_programs_that_tests_need() -> None:
    """Each program by which a test decides whether it is skipped is in the table of `.ci/run`."""
    listed = {line.split()[0] for line in (ROOT / ".ci" / "run").read_text().split("PROGRAMS")[1].splitlines()[1:]}
    asked = set()
    for path in (*ROOT.glob("tests/**/test_*.py"), ROOT / "tests" / "support" / "node.py"):
        asked |= set(re.findall(r'shutil\.which\("([^"]+)"\)', path.read_text()))
    assert {"node", "npm", "openssl", "systemd-analyze"} <= asked
    of_berkeley_db = {name for name in asked if name.startswith("db5.3_")}  # all in one package
    assert asked - of_berkeley_db - listed == set()
