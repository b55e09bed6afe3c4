"""The table of the documents' features names tests and lines that exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.conformance.seed_features import LINES, TABLE, Feature, features, main

ROOT = Path(__file__).parents[1]
FEATURES = list(features())


@cache
def names_in(path: str) -> frozenset[str]:
    """The tests of a file, methods as CLASS::TEST."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {f"{prefix}{each.name}" for each in inner if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return frozenset(found)


def is_there(test: str) -> bool:
    path, _, name = test.partition("::")
    return (ROOT / path).is_file() and name.rpartition("::")[2].startswith("test_") and name in names_in(path)


def is_source(source: str) -> bool:
    found = re.fullmatch(r"(\d{3}):(\d+)(?:-(\d+))?", source)
    if found is None or found[1] not in LINES:
        return False
    first, last = int(found[2]), int(found[3] or found[2])
    return 0 < first <= last <= LINES[found[1]] and (found[3] is None or first < last)


def test_each_named_test_exists() -> None:
    assert [test for row in FEATURES for test in row.tests if not is_there(test)] == []


def test_each_source_is_a_line_of_a_document() -> None:
    assert [(row.name, source) for row in FEATURES for source in row.sources if not is_source(source)] == []


def test_what_works_has_a_test_and_what_does_not_a_reason() -> None:
    wrong = []
    for row in FEATURES:
        shows, explains = row.state in ("works", "partly"), row.state != "works"
        if (bool(row.tests), bool(row.note)) != (shows, explains):
            wrong.append(row.name)
    assert wrong == []


def test_each_feature_is_there_once() -> None:
    assert [name for name, number in Counter(row.name for row in FEATURES).items() if number > 1] == []
    assert len(FEATURES) == len(re.findall(r"(?m)^[+~/>-] ", TABLE))


@pytest.mark.parametrize(
    ("source", "expected"),
    [("004:1", True), ("004:2-3", True), ("004:3-2", False), ("004:37530", False), ("005:1", False), ("4:1", False)],
)
def test_the_check_itself_knows_sources(source: str, expected: bool) -> None:
    assert is_source(source) is expected


def test_the_check_itself_knows_tests() -> None:
    own = "conformance/test_seed_features.py::test_the_check_itself_knows_tests"
    assert is_there(own)
    assert not any(map(is_there, (f"{own}_", own.replace("seed", "need"), own.replace("::test_", "::"))))


def test_a_line_that_is_no_row_is_refused() -> None:
    assert list(features("== A\n+ b; 004:1 003:2-3\n    c::d\n    = e\n    f\n")) == [
        Feature("A", "works", "b", ("004:1", "003:2-3"), ("c::d", "f"), "e")
    ]
    with pytest.raises(ValueError, match="not a row"):
        list(features("+ b"))


def test_the_command_prints_rows_and_sums(capsys: pytest.CaptureFixture[str]) -> None:
    main("elsewhere")
    printed = capsys.readouterr().out
    assert sum(row.state == "elsewhere" for row in FEATURES) == len(re.findall(r"(?m)^  elsewhere ", printed))
    assert "  works" not in printed
    main()
    printed = capsys.readouterr().out
    assert all(row.name in printed and row.note in printed for row in FEATURES)
    works = sum(row.state == "works" for row in FEATURES)
    assert printed.splitlines()[-1].startswith(f"{len(FEATURES)} features: {works} works, ")
