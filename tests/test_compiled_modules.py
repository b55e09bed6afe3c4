"""Code that the compiler rejects, or changes silently, in the modules that are compiled (`hatch_build.py`)."""

from __future__ import annotations

import ast
import builtins
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from hatch_build import modules_to_compile
from tests.test_house import MODULES, PACKAGE, ROOT, SOURCES, parsed

_HOOK: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
    "hooks"
]
COMPILED: Final = modules_to_compile(ROOT, _HOOK["custom"]["modules"])


@cache
def trees() -> dict[str, ast.Module]:
    """All modules, parsed."""
    return {f"{PACKAGE}/{path}": parsed(SOURCES[path]) for path in MODULES}


def names_of_bases(node: ast.ClassDef) -> set[str]:
    """Without their modules and type arguments."""
    return {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}


@cache
def nodes(module: str) -> list[ast.AST]:
    """All nodes of a module."""
    return list(ast.walk(trees()[module]))


@cache
def classes(module: str) -> list[ast.ClassDef]:
    return [node for node in nodes(module) if isinstance(node, ast.ClassDef)]


def compiled_nodes() -> Iterator[tuple[str, ast.AST]]:
    """All nodes of the compiled modules, each with its module."""
    return ((module, node) for module in COMPILED for node in nodes(module))


def test_each_pattern_names_a_module() -> None:
    for pattern in _HOOK["custom"]["modules"]:
        assert list(Path(ROOT).glob(pattern)), pattern
    assert set(COMPILED) <= trees().keys()


def test_subclasses_of_compiled_classes_are_compiled() -> None:
    """Python refuses others when they are instantiated; `NamedTuple`, `Protocol` and exceptions do not count."""
    plain = {"NamedTuple", "Protocol", "Enum", "IntEnum"}
    compiled = {
        node.name
        for module in COMPILED
        for node in classes(module)
        if not names_of_bases(node) & plain and not node.name.endswith("Error")
    }
    others = {(module, node.name) for module in trees().keys() - set(COMPILED) for node in classes(module)
              if names_of_bases(node) & compiled}  # fmt: skip
    assert others == set()


def test_compiled_classes_are_not_those_of_abc() -> None:
    """All of them would have one cache, so that `isinstance` in other modules would find one to be another.

    `abstractmethod` does without: mypy checks it in all classes.
    """
    derived = {(module, node.name) for module in COMPILED for node in classes(module) if "ABC" in names_of_bases(node)}
    meta = {
        (module, node.name)
        for module in COMPILED
        for node in classes(module)
        if any(each.arg == "metaclass" for each in node.keywords)
    }
    assert derived | meta == set()


def test_compiled_exceptions_derive_from_those_without_fields() -> None:
    """The compiler gives each the layout of `Exception`, which `OSError` and some others do not have."""
    larger = {
        name
        for name, each in vars(builtins).items()
        if isinstance(each, type) and issubclass(each, Exception) and each.__basicsize__ != Exception.__basicsize__
    }
    assert {"OSError", "StopIteration"} <= larger
    derived = [
        (module, node.name)
        for module in COMPILED
        for node in classes(module)
        if names_of_bases(node) & larger
        and not any("native_class=False" in ast.unparse(each) for each in node.decorator_list)
    ]
    assert derived == []


def test_attributes_that_are_deleted_are_declared() -> None:
    """The compiler refuses only some of the others, and Python all."""
    deleted: set[str] = set()
    declared: set[str] = set()
    for _, node in compiled_nodes():
        if isinstance(node, ast.Delete):
            deleted |= {target.attr for target in node.targets if isinstance(target, ast.Attribute)}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__deletable__":
            declared |= set(ast.literal_eval(node.value))
    assert deleted == declared


def test_nothing_refers_weakly_to_compiled_objects() -> None:
    """They are freed without a word to weak references, which then crash the process."""
    users = {module for module in trees() for node in nodes(module)
             if isinstance(node, (ast.Import, ast.ImportFrom)) and "weakref" in ast.unparse(node)}  # fmt: skip
    assert {user for user in users if user.startswith(("qstore/broker/model", "qstore/store"))} == set()
    assert users.isdisjoint(COMPILED)


def test_no_lazy_generator_expression() -> None:
    """The compiler makes lists of those that are returned."""
    returned = [(module, node.value) for module, node in compiled_nodes() if isinstance(node, ast.Return)]
    assert [(module, node.lineno) for module, node in returned if isinstance(node, ast.GeneratorExp)] == []


def test_bounds_of_slices_call_nothing_that_has_effects() -> None:
    """The compiler evaluates them twice if what is sliced may be other than a list, a tuple, a string or bytes."""
    slices = [(module, node) for module, node in compiled_nodes() if isinstance(node, ast.Slice)]
    calls = [
        (module, call)
        for module, node in slices
        for call in ast.walk(node)
        if isinstance(call, (ast.Call, ast.NamedExpr, ast.Await))
    ]
    harmless = {"bisect_left", "bisect_right", "len", "max", "min"}
    assert [(module, call.lineno) for module, call in calls
            if not isinstance(call, ast.Call) or ast.unparse(call.func) not in harmless] == []  # fmt: skip


def test_arguments_are_not_passed_on_to_a_base_class_in_bulk() -> None:
    """The compiler passes them as one tuple."""
    calls = [(module, node) for module, node in compiled_nodes() if isinstance(node, ast.Call)]
    to_base = [(module, call) for module, call in calls if ast.unparse(call.func).startswith("super().")]
    assert [
        (module, call.lineno) for module, call in to_base for each in call.args if isinstance(each, ast.Starred)
    ] == []


def test_a_name_of_caught_errors_has_one_type_in_a_function() -> None:
    """The compiler gives it the type of the first, and refuses the other errors with a TypeError."""
    found = set()
    for module, function in compiled_nodes():
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            handlers = [each for each in ast.walk(function) if isinstance(each, ast.ExceptHandler) and each.type]
            types = {(each.name, ast.unparse(each.type)) for each in handlers if each.type and each.name}
            names = [name for name, _ in types]
            found |= {(module, function.name, name) for name in names if names.count(name) > 1}
    assert found == set()


def test_positional_arguments_have_names_of_their_own() -> None:
    """A compiled function takes a keyword for `**values` that has a positional argument's name for that argument."""
    functions = [node for _, node in compiled_nodes() if isinstance(node, ast.FunctionDef) and node.args.kwarg]
    assert {each.arg for node in functions for each in node.args.posonlyargs} & {"name", "type", "value"} == set()


def test_classes_of_fields_are_there_when_they_are_named() -> None:
    """The class of a dataclass's or named tuple's field is looked up when that is defined, and crashes if it is not."""
    found = set()
    for module in COMPILED:
        later = {
            alias.asname or alias.name
            for node in nodes(module)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for each in node.body
            if isinstance(each, ast.ImportFrom) and f"{each.module}".replace(".", "/") + ".py" in COMPILED
            for alias in each.names
        }
        for node in classes(module):
            if not node.decorator_list and "NamedTuple" not in names_of_bases(node):
                continue
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            found |= {
                (module, node.name, ast.unparse(each)) for each in fields if ast.unparse(each.annotation) in later
            }
    assert found == set()


def test_nested_functions_do_not_refer_to_each_other() -> None:
    """A compiled one is then in a cycle with the variables of the outer one: only the collector frees what these hold.

    That is rare, because it counts objects, and the messages of a whole read are few.
    """
    functions = [(module, node) for module, node in compiled_nodes() if isinstance(node, ast.FunctionDef)]
    found = set()
    for module, outer in functions:
        inner = [
            each for each in ast.walk(outer) if isinstance(each, (ast.FunctionDef, ast.Lambda)) and each is not outer
        ]
        names = {each.name for each in inner if isinstance(each, ast.FunctionDef)}
        used = {each.id for function in inner for each in ast.walk(function) if isinstance(each, ast.Name)}
        found |= {(module, outer.name, name) for name in names & used}
    assert found == set()
