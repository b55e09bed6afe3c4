"""Modules: how `--load-module` finds them, and their options.

A module is an entry point of the group `qstore.modules`, which any installed package may declare; its value is called
without arguments and returns a `StoreModule`. It is found by the last component of the given name, without `.so`, so
that `store`, `store.so` and `/usr/lib64/qpid/daemon/store.so` are the same. One store may have several names; it is
loaded once. Two different stores are refused.

Modules of qpidd that are parts of this broker are accepted, and nothing is loaded. Those that it lacks are refused, and
the error names the replacement.

A module directory is searched for names only: its `.so` files are qpidd's and are never executed. Files that match no
module cause a warning. There is no default directory, unlike in qpidd (Qpid C++ Broker Book, 1.1.5): otherwise a qpidd
installed on the same host would determine the modules of this broker.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Final

from qstore.broker.model.store_protocol import ModuleOption, StoreModule
from qstore.broker.process.option_table import Given, Group, Kind, Option
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import printable

GROUP: Final = "qstore.modules"

#: The modules of this distribution: name -> where it is. They are found without a search of the installed packages.
OWN: Final = dict.fromkeys(
    ("store", "msgstore", "legacystore", "linearstore", "libbdbstore"), "qstore.store.module:Module"
)

#: Modules of qpidd that are always part of this broker.
BUILT_IN: Final = frozenset({"acl", "amqp", "ssl", "watchdog", "replicating_listener", "replication_exchange", "xml"})

#: Modules of qpidd that it does not have: name -> the reason, and the replacement.
MISSING: Final = {
    "rdma": "this broker listens on TCP, with and without TLS, but not on RDMA",
    **dict.fromkeys(
        ("cluster", "ha"),
        "this broker cannot join a cluster; queue replication keeps copies on another broker (--replication-queue)",
    ),
}

_KINDS: Final = {"number": Kind.TEXT, "switch": Kind.SWITCH, "choice": Kind.TEXT, "text": Kind.TEXT}
_SHOWN: Final = 20  # names of files in a warning
_VALUES: Final = {"number": "N", "switch": "yes|no", "choice": "WORD", "text": "TEXT"}


class ModuleError(Exception):
    """A module cannot be loaded. The text is one line for the user."""


def module_name(name: str) -> str:
    """The entry point's name for the name or path of a module."""
    return posixpath.basename(name.rstrip("/")).removesuffix(".so")


class ModulesFound(NamedTuple):
    """The modules in a module directory.

    Attributes:
        names: the files that match an installed module.
        warnings: for the log: a line about the other files, if there are any.
    """

    names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def installed() -> dict[str, str]:
    """All installed modules: name -> where it is."""
    from importlib.metadata import entry_points

    return OWN | {point.name: point.value for point in entry_points(group=GROUP)}


def modules_in(directory: str) -> ModulesFound:
    """The modules named by the `.so` files of a directory.

    Raises:
        ModuleError: the directory cannot be read.
    """
    try:
        with os.scandir(directory) as entries:
            files = sorted(entry.name for entry in entries if entry.name.endswith(".so"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModuleError(f"--module-dir {printable(directory)}: cannot be read: {reason}") from error
    known = installed()
    others = [file for file in files if module_name(file) not in known.keys() | BUILT_IN]
    shown = ", ".join(others[:_SHOWN]) + (", …" if len(others) > _SHOWN else "")
    line = f"{directory}: these files are ignored, since no modules with their names are installed: {shown}"
    names = tuple(file for file in files if module_name(file) in known)
    return ModulesFound(names, (printable(line),) if others else ())


def load_store(names: Sequence[str]) -> StoreModule | None:
    """Load the store with these names; None if there are no names.

    Raises:
        ModuleError: no such module is installed, it cannot be loaded, or the names are those of two stores.
    """
    found: dict[str, str] = {}  # where it is -> name
    for given in names:
        name = module_name(given)
        if name in BUILT_IN:
            continue
        known = OWN if name in OWN else installed()
        if name not in known and name in MISSING:
            raise ModuleError(f"--load-module {printable(given)}: {MISSING[name]}. Remove the option")
        if name not in known:
            there = ", ".join(sorted(known))
            raise ModuleError(f"--load-module {printable(given)}: no such module; installed are {there}")
        found[known[name]] = name
    if len(found) > 1:
        raise ModuleError(f"--load-module: {' and '.join(found)} are different stores; a broker can load only one")
    return next((_loaded(name, place) for place, name in found.items()), None)


def _loaded(name: str, place: str) -> StoreModule:
    path, _, attribute = place.partition(":")
    try:
        module: StoreModule = getattr(importlib.import_module(path), attribute)()
    except (ImportError, AttributeError) as error:
        raise ModuleError(f"module {name} ({place}) cannot be loaded: {printable(str(error))}") from error
    return module


def options_elsewhere() -> dict[str, str]:
    """The options of all installed modules: option name or alias -> name of the module to load."""
    found: dict[str, str] = {}
    for module, place in sorted(installed().items(), key=lambda each: (len(each[0]), each[0])):
        with contextlib.suppress(ModuleError):
            for option in _loaded(module, place).options:
                for name in filter(None, (option.name, option.alias)):
                    found.setdefault(name, module)
    return found


class ModuleOptions(NamedTuple):
    """The options of a module.

    Attributes:
        group: the options, for the table.
        names: their names.
    """

    group: Group
    names: frozenset[str]

    def given(self, given: Mapping[str, Sequence[Given]]) -> dict[str, str]:
        """The given values of these options, for the module."""
        return {name: values[-1].text for name, values in given.items() if name in self.names}


def options_of(module: StoreModule) -> ModuleOptions:
    """A module's options as options of the broker. The module itself validates the values."""
    options = [_option(option) for option in module.options]
    return ModuleOptions(Group(f"{module.title} options", options), frozenset(option.name for option in options))


def _option(option: ModuleOption) -> Option:
    return Option(
        option.name, _KINDS[option.kind], _VALUES[option.kind], option.default, option.help, alias=option.alias
    )
