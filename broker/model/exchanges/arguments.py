"""The arguments of exchanges and bindings that this broker supports.

    name                     of             effect
    ----------------------   ------------   -----------------------------------------------------------------
    qpid.msg_sequence        an exchange    each message published to it gets its number as a header
    qpid.ive                 an exchange    the last message published to it is offered to each new binding
    qpid.exclusive-binding   a binding      on a direct exchange it replaces all others with its key

The sources give them the values 1 or true, and for the last one no value: presence is enough. So the name alone (a void
or empty value) means yes, and any form of "no" means no. `qpid.sequence_counter`, which qpidd adds to the stored
arguments of a numbering exchange, is 0 there and is ignored here.

Sources: Qpid C++ Broker Book, 1.3.1; MRG 2 Messaging User Guide, 2; formats/broker_records/README.md, 4.3.
"""

from __future__ import annotations

from typing import Final

from qstore.formats.values import TypedMap

SEQUENCE: Final = "qpid.msg_sequence"
INITIAL_VALUE: Final = "qpid.ive"
EXCLUSIVE_BINDING: Final = "qpid.exclusive-binding"

_NO: Final = frozenset(("0", "false", "no", "off"))


def is_switched_on(arguments: TypedMap, name: str) -> bool:
    """Whether the argument `name` is present, and not a form of "no"."""
    typed = arguments.get(name)
    if typed is None:
        return False
    value = typed.value
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value.lower() not in _NO
    return value is None or bool(value)
