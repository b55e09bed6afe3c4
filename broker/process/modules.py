"""Modules: how `--load-module` finds them, and their options.

A module is an entry point of the group `qstore.modules`, which any installed package may declare; its value is called
without arguments and gives a `StoreModule`. It is found by the last part of the name that was given, without `.so`, so
that `store`, `store.so` and `/usr/lib64/qpid/daemon/store.so` are the same. One store may have several names; it is
loaded once, and two different ones are refused.

A directory of modules is looked through for names only: its `.so` files are qpidd's, and nothing of them is run. Those
that no module here is named for get a warning. No directory is searched unless it is given: the default of a qpidd
that is installed beside this one would decide what is loaded here (Qpid C++ Broker Book, 1.1.5, has it differently).
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Final, NamedTuple

from broker.model.store_protocol import ModuleOption, StoreModule
from broker.process.options.option import Given, Group, Kind, Option
from formats.wording import printable

GROUP: Final = "qstore.modules"

_KINDS: Final = {"number": Kind.TEXT, "switch": Kind.SWITCH, "choice": Kind.TEXT, "text": Kind.TEXT}
_SHOWN: Final = 20  # names of files in a warning
_VALUES: Final = {"number": "N", "switch": "yes|no", "choice": "WORD", "text": "TEXT"}


class ModuleError(Exception):
    """A module cannot be loaded. The text is one line for a person."""


def module_name(name: str) -> str:
    """The name of the entry point that a module's file stands for."""
    return posixpath.basename(name.rstrip("/")).removesuffix(".so")


class ModulesFound(NamedTuple):
    """What a directory of modules names.

    Attributes:
        names: of modules that there are.
        warnings: a line for the others, if there are any.
    """

    names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def modules_in(directory: str) -> ModulesFound:
    """The modules that the `.so` files of a directory are named for.

    Raises:
        ModuleError: the directory cannot be read.
    """
    try:
        with os.scandir(directory) as entries:
            files = sorted(entry.name for entry in entries if entry.name.endswith(".so"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModuleError(f"--module-dir {printable(directory)}: cannot be read: {reason}") from error
    known = {point.name for point in entry_points(group=GROUP)}
    others = [file for file in files if module_name(file) not in known]
    shown = ", ".join(others[:_SHOWN]) + (", …" if len(others) > _SHOWN else "")
    line = f"{directory}: passed over, since there are no modules of these names: {shown}"
    names = tuple(file for file in files if module_name(file) in known)
    return ModulesFound(names, (printable(line),) if others else ())


def load_store(names: Sequence[str]) -> StoreModule | None:
    """The store that the modules of these names are; None if there are none.

    Raises:
        ModuleError: there is no such module, it cannot be loaded, or there are two stores.
    """
    found: dict[str, EntryPoint] = {}
    known = {point.name: point for point in entry_points(group=GROUP)}
    for name in names:
        point = known.get(module_name(name))
        if point is None:
            there_are = f"there are {', '.join(sorted(known))}" if known else "none is installed"
            raise ModuleError(f"--load-module {printable(name)}: there is no module of that name; {there_are}")
        found[point.value] = point
    if len(found) > 1:
        raise ModuleError(f"--load-module: {' and '.join(found)} are two stores, and a broker has one")
    return next((_loaded(point) for point in found.values()), None)


def _loaded(point: EntryPoint) -> StoreModule:
    try:
        module: StoreModule = point.load()()
    except (ImportError, AttributeError) as error:
        raise ModuleError(f"module {point.name} ({point.value}) cannot be loaded: {printable(str(error))}") from error
    return module


def options_elsewhere() -> dict[str, str]:
    """The options of all modules that could be loaded, by name and alias, with the name of the module to load."""
    found: dict[str, str] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda each: (len(each.name), each.name)):
        with contextlib.suppress(ModuleError):
            for option in _loaded(point).options:
                for name in filter(None, (option.name, option.alias)):
                    found.setdefault(name, point.name)
    return found


class ModuleOptions(NamedTuple):
    """What a module adds to the broker's options.

    Attributes:
        group: for the table.
        names: of the options, to be given to the module.
    """

    group: Group
    names: frozenset[str]

    def given(self, given: Mapping[str, Sequence[Given]]) -> dict[str, str]:
        """Those that were given, with their values."""
        return {name: values[-1].text for name, values in given.items() if name in self.names}


def options_of(module: StoreModule) -> ModuleOptions:
    """A module's options, in the form of the broker's. The module itself checks the values."""
    options = [_option(option) for option in module.options]
    return ModuleOptions(Group(f"{module.title} options", options), frozenset(option.name for option in options))


def _option(option: ModuleOption) -> Option:
    return Option(
        option.name, _KINDS[option.kind], _VALUES[option.kind], option.default, option.help, alias=option.alias
    )
