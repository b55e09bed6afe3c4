"""The tables of the documents' features and names have tests and lines that exist, and nothing is accepted in silence.

Whatever the broker, the store and the client read from an argument or an option is used: the last tests walk through
all of them, also those that the documents do not name.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import qstore
from qstore.broker.client.address import Target
from qstore.broker.client.options import TABLE as CLIENT_OPTIONS
from qstore.broker.client.options import ConnectionOptions
from qstore.broker.model.arguments import TABLE as ARGUMENTS
from qstore.broker.model.arguments import Effect as ArgumentEffect
from qstore.broker.model.arguments import Of, rows_of
from qstore.broker.model.queues.arguments import QueueArguments
from qstore.broker.model.queues.stream import Reading
from qstore.broker.process.option_table import GROUPS, Effect
from qstore.broker.settings import BrokerSettings, TlsSettings
from qstore.store.parameters import OPTIONS, StoreParameters
from tests.conformance.seed_features import LINES, NAMES, TABLE, Feature, features, main

ROOT = Path(__file__).parents[1]
PRODUCT = Path(qstore.__file__).parent
FEATURES = list(features())
NAMED = list(features(NAMES))
BROKER_OPTIONS = {
    name: option
    for group in GROUPS
    for option in group.options
    for name in (option.name, option.alias, option.opposite)
}
STORE_OPTIONS = {name: option for option in OPTIONS for name in (option.name, option.alias)}


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
    assert [test for row in (*FEATURES, *NAMED) for test in row.tests if not is_there(test)] == []


def test_each_source_is_a_line_of_a_document() -> None:
    assert [(row.name, source) for row in (*FEATURES, *NAMED) for source in row.sources if not is_source(source)] == []


def test_what_works_has_a_test_and_what_does_not_a_reason() -> None:
    wrong = []
    for row in (*FEATURES, *NAMED):
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


# ---- names ----


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def settings_of_option() -> dict[str, set[str]]:
    """Option -> the attributes of the broker's settings that are made of it."""
    found: dict[str, set[str]] = {}
    for call in ast.walk(ast.parse(text_of(PRODUCT / "broker/process/plan.py"))):
        for keyword in call.keywords if isinstance(call, ast.Call) else ():
            for name in names_read(keyword.value):
                found.setdefault(name, set()).add(str(keyword.arg))
    return found


def names_read(tree: ast.AST) -> set[str]:
    """The options whose values are read: values.number("port")."""
    readers = {"number", "switch", "text", "texts", "word", "size", "seconds", "is_given", "given", "_is_on", "flag"}
    return {
        argument.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in readers
        for argument in call.args[:1]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def other_words(name: str) -> set[str]:
    """What a test of a name may call it."""
    option = BROKER_OPTIONS.get(name)
    own = name if option is None else option.name
    aliases = set() if option is None else {option.alias} - {""}
    parts = {own.removeprefix("log-").replace("-", "_")} if own.startswith("log-") else set()  # of `LineFormat`
    return {name, own, *aliases, name.replace("-", "_"), *settings_of_option().get(own, ()), *parts}


def test_a_test_of_a_name_is_about_it() -> None:
    wrong = []
    for row in NAMED:
        if row.name.partition(" ")[0] != row.name:
            continue
        texts = [text_of(ROOT / test.partition("::")[0]) for test in row.tests]
        wrong += [(row.name, row.tests) for text in texts if not any(word in text for word in other_words(row.name))]
    assert wrong == []


def test_names_have_the_effect_that_the_product_says() -> None:
    wrong = []
    for row in NAMED:
        works = row.state == "works"
        if row.area.startswith("Arguments of "):
            of = Of(row.area.removeprefix("Arguments of ").removesuffix("s"))
            effects = {each.effect for each in rows_of(of, row.name)}
            is_right = (ArgumentEffect.EFFECT in effects) is works and bool(effects)
        elif row.area == "Options of the broker":
            is_right = (BROKER_OPTIONS[row.name].effect is Effect.WORKS) is works
        elif row.area == "Options of the store":
            is_right = (not STORE_OPTIONS[row.name].not_needed) is works
        else:
            continue
        if not is_right:
            wrong.append((row.area, row.name))
    assert wrong == []


def test_each_name_of_an_area_is_there_once() -> None:
    assert [key for key, number in Counter((row.area, row.name) for row in NAMED).items() if number > 1] == []


# ---- nothing is read and dropped ----


@cache
def attributes_read(*folders: str, without: tuple[str, ...] = ()) -> frozenset[str]:
    """The names of all attributes that modules read."""
    found: set[str] = set()
    for folder in folders:
        path = PRODUCT / folder
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            if str(file.relative_to(PRODUCT)) not in without:
                tree = ast.parse(file.read_text())
                loads = (each for each in ast.walk(tree) if isinstance(each, ast.Attribute))
                found |= {each.attr for each in loads if isinstance(each.ctx, ast.Load)}
    return frozenset(found)


def test_every_option_of_the_broker_that_works_is_read() -> None:
    read: set[str] = set()
    for file in (PRODUCT / "broker").rglob("*.py"):
        if "process" in file.parts or "log" in file.parts:
            read |= names_read(ast.parse(file.read_text()))
    listed = set(re.findall(r'"([a-z][a-z-]+)"', text_of(PRODUCT / "broker/process/plan.py")))  # in a loop
    ends = {"help", "version", "config", "load-module", "module-dir", "no-module-dir"}  # read before the others
    works = {option.name for group in GROUPS for option in group.options if option.effect is Effect.WORKS}
    logs = {f"log-to-{each}" for each in ("stderr", "stdout", "syslog")}
    assert works - read - listed - ends - logs == {"transport"}  # which has one value
    assert all(name in text_of(PRODUCT / "broker/process/options.py") for name in ends - {"help", "version"})


def test_every_setting_of_the_broker_is_used() -> None:
    used = attributes_read("broker", "tools", without=("broker/process/plan.py",))
    assert {*BrokerSettings._fields, *TlsSettings._fields} - used == set()


def test_every_option_of_the_store_is_used() -> None:
    assert set(StoreParameters.__dataclass_fields__) - attributes_read("store") == set()
    needed = {option.field for option in OPTIONS if not option.not_needed}
    assert needed - set(StoreParameters.__dataclass_fields__) == set()


def test_every_argument_of_queues_and_consumers_that_is_read_is_used() -> None:
    used = attributes_read("broker/model", without=("broker/model/queues/arguments.py",))
    assert {*QueueArguments._fields, *Reading._fields} - used == set()


def test_every_option_of_clients_is_used() -> None:
    used = attributes_read("broker/client")
    assert set(ConnectionOptions.__dataclass_fields__) - used == set()
    assert {each for names, _ in CLIENT_OPTIONS.values() for each in names} <= set(
        ConnectionOptions.__dataclass_fields__
    )


@pytest.mark.parametrize(("version", "refuses"), [("amqp_0_10", "only_1_0"), ("amqp_1_0", "only_0_10")])
def test_every_option_of_an_address_is_used_or_refused_by_each_protocol(version: str, refuses: str) -> None:
    shared = attributes_read("broker/client/links.py", "broker/client/session.py")
    used = shared | attributes_read(f"broker/client/{version}")
    assert refuses in used
    functions = ast.walk(ast.parse(text_of(PRODUCT / "broker/client/address.py")))
    (check,) = [each for each in functions if isinstance(each, ast.FunctionDef) and each.name == refuses]
    refused = {each.attr for each in ast.walk(check) if isinstance(each, ast.Attribute)}
    assert set(Target._fields) - used - refused == set()


def test_the_walk_of_arguments_has_each_effect_of_the_table() -> None:
    assert {row.effect for row in ARGUMENTS} == set(ArgumentEffect)
    for of in Of:
        assert any(row.of is of for row in ARGUMENTS)
