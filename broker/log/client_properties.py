"""What a client says about itself in connection.start-ok, for the log. Nothing of it can be relied upon.

Source: AMQP 0-10, connection.start-ok, client-properties; the names with `qpid.` are those of qpidd's clients.
"""

from __future__ import annotations

from typing import Final

from formats.values import TypedMap
from formats.wording import printable

#: Name -> what the log calls it, in its order there.
_SHOWN: Final = {
    "product": "product",
    "version": "version",
    "platform": "platform",
    "qpid.client_process": "process",
    "qpid.client_pid": "pid",
}
_MAX_LENGTH: Final = 64


def described(properties: TypedMap | None) -> str:
    """The properties that say which program it is, in parentheses and with a blank before; empty if there are none."""
    given = {} if properties is None else {name: typed.value for name, typed in properties.entries}
    found = [f"{called} {_text(given[name])}" for name, called in _SHOWN.items() if name in given]
    return f" ({', '.join(found)})" if found else ""


def _text(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return printable(text[:_MAX_LENGTH])
