"""Limits of tests of compiled modules: they cannot replace their parts, or inherit from their classes.

Most tests run against both forms of the modules that each message passes through (`hatch_build.py`). A test that gives
a compiled function an object of another class, or makes a subclass of a compiled class, ends with a TypeError there,
and is skipped. One that replaces a name of a compiled module, or looks at frames, slots or weak references, which
compiled modules do not have, is marked `replaces`, and is left out; the end of a run says how many are.

`ClientConnection` and `ClientSession` are the client's end of a connection, for tests that make subclasses of it: their
modules are made from the sources a second time, beside the compiled ones that the broker uses; what they import in turn
is compiled.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import pytest

import qstore
from qstore.broker.process.command import kind_of_modules

REASON: Final = "replaces what is compiled"
_REFUSED: Final = re.compile(
    r"interpreted classes cannot inherit from compiled"
    r"|.* object expected; got tests\.\S+"
    r"|.* object attribute '\w+' is read-only"
)

is_compiled: Final = kind_of_modules() == "compiled"
replaces: Final = pytest.mark.replaces
"""For tests whose replacements would have no effect, and those that look into the interpreter."""


def cannot_be_replaced(error: BaseException) -> bool:
    """Whether compiled modules have refused a test's own classes or methods."""
    if isinstance(error, BaseExceptionGroup):  # hypothesis has found several
        return all(map(cannot_be_replaced, error.exceptions))
    return is_compiled and isinstance(error, (TypeError, AttributeError)) and bool(_REFUSED.fullmatch(str(error)))


__all__ = ["ClientConnection", "ClientSession"]

_PACKAGE: Final = "qstore.broker.protocols"
_MODULES: Final = ("connection", "amqp_0_10.session", "amqp_0_10.connection", "amqp_0_10.client_connection")
"""Each imports those before it."""


def from_sources(names: Sequence[str]) -> ModuleType:
    """Make modules from their sources, in order, so that each sees those before it. Returns the last."""
    compiled = {name: sys.modules.get(name) for name in names}
    try:
        for name in names:
            path = Path(qstore.__file__).parent.joinpath(*name.split(".")[1:]).with_suffix(".py")
            spec = spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        return sys.modules[names[-1]]
    finally:
        for name, module in compiled.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


if TYPE_CHECKING or not is_compiled:
    from qstore.broker.protocols.amqp_0_10.client_connection import ClientConnection, ClientSession
else:
    _made = from_sources([f"{_PACKAGE}.{name}" for name in _MODULES])
    ClientConnection, ClientSession = _made.ClientConnection, _made.ClientSession
