"""The client's end of a connection, for tests that make subclasses of it: interpreted, where the broker is compiled.

Nobody can inherit from a compiled class. Here the modules of the client's end are made from their sources a second
time, beside the compiled ones that the broker uses; what they import in turn is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import qstore
from tests.support.compiled import is_compiled

__all__ = ["ClientConnection", "ClientSession"]

_PACKAGE: Final = "qstore.broker.protocols.amqp_0_10"
_MODULES: Final = ("session", "connection", "client_connection")  # each imports those before it


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
