"""The arguments of exchanges and bindings that mean something here.

    name                     of             what it asks for
    ----------------------   ------------   -----------------------------------------------------------------
    qpid.msg_sequence        an exchange    each message that is sent to it gets its number as a header
    qpid.ive                 an exchange    the last message that was sent to it is offered to each new binding
    qpid.exclusive-binding   a binding      on a direct exchange it takes the place of all others of its key

The sources give them the values 1 or true, and for the last one none at all: to be there is enough. So the name alone
(a void or empty value) says yes, and whatever reads as a no says no. `qpid.sequence_counter`, which qpidd adds to a
numbering exchange's stored arguments, is 0 there and means nothing here.

Sources: Qpid C++ Broker Book, 1.3.1; MRG 2 Messaging User Guide, 2; formats/broker_records/README.md, 4.3.
"""

from __future__ import annotations

from typing import Final

from formats.values import TypedMap

SEQUENCE: Final = "qpid.msg_sequence"
INITIAL_VALUE: Final = "qpid.ive"
EXCLUSIVE_BINDING: Final = "qpid.exclusive-binding"

_NO: Final = frozenset(("0", "false", "no", "off"))


def is_switched_on(arguments: TypedMap, name: str) -> bool:
    """Whether the argument `name` is there, and does not say no."""
    typed = arguments.get(name)
    if typed is None:
        return False
    value = typed.value
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value.lower() not in _NO
    return value is None or bool(value)
