"""The client properties of connection.start-ok, for the log. They are untrusted.

Source: AMQP 0-10, connection.start-ok, client-properties; the names that begin with `qpid.` are those of Qpid clients.
"""

from __future__ import annotations

from typing import Final

from qstore.formats.values import TypedMap
from qstore.formats.wording import printable

#: Property -> its name in the log, in the order of the log.
_SHOWN: Final = {
    "product": "product",
    "version": "version",
    "platform": "platform",
    "qpid.client_process": "process",
    "qpid.client_pid": "pid",
}
_MAX_LENGTH: Final = 64


def described(properties: TypedMap | None) -> str:
    """The properties that identify the program, as " (product …, version …)"; empty if there are none."""
    given = {} if properties is None else {name: typed.value for name, typed in properties.entries}
    found = [f"{called} {_text(given[name])}" for name, called in _SHOWN.items() if name in given]
    return f" ({', '.join(found)})" if found else ""


def _text(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return printable(text[:_MAX_LENGTH])
