"""What tests cannot do to compiled modules: replace their parts.

Most tests run against both forms of the modules that each message passes through (`hatch_build.py`). A test that gives
a compiled function an object of another class, or makes a subclass of a compiled class, ends with a TypeError there,
and is skipped; of the client's end of a connection there are interpreted classes as well (`client_machine`). One that
replaces a name of a compiled module, or looks at frames, slots or weak references, which compiled modules do not have,
is marked `replaces`, and is left out; the end of a run says how many are.
"""

from __future__ import annotations

import re
from typing import Final

import pytest

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
