"""Queue arguments that ask for features which this broker does not implement.

Each key has one row: which values ask for the feature, what the queue does instead, and whether the declaration is
REFUSED or the argument only LOGGED. The rule: if without the feature a queue would lose, reorder or duplicate messages,
deliver them to the wrong consumer, or lack a copy that a user relies on, the declaration is refused, so that users do
not discover the problem from their messages. Arguments for tuning or monitoring are accepted, and the log says that
they have no effect. A row is deleted when the broker implements the feature.

Arguments without a row, here or in `arguments`, have no meaning (Qpid C++ Broker Book, 1.2.1.4).

Sources: qpidd, QueueSettings.cpp and QueueFactory.cpp; Qpid C++ Broker Book, 1.2, 1.3, 1.6 to 1.8, 1.11 and 1.12;
MRG 2 Messaging User Guide, 3; Qpid wiki, "Qpid extensions to AMQP".
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, NamedTuple, TypeAlias

from qstore.formats.values import TypedMap

_Asks: TypeAlias = Callable[[object], bool]


class Effect(Enum):
    """What happens to a declaration."""

    REFUSED = auto()  # with not-implemented
    LOGGED = auto()  # accepted, and the log says that the argument has no effect


class Row(NamedTuple):
    """One argument.

    Attributes:
        key: its name.
        asks: whether a value asks for the feature; bytes are passed as text.
        effect: what happens to a declaration that asks for it.
        instead: what a queue of this broker does, in a few words.
    """

    key: str
    asks: _Asks
    effect: Effect
    instead: str


class UnsupportedArgument(NamedTuple):
    """An argument of a declaration that asks for a missing feature."""

    row: Row
    name: str
    value: Any

    @property
    def is_refused(self) -> bool:
        """Whether the declaration is refused."""
        return self.row.effect is Effect.REFUSED

    def __str__(self) -> str:
        return f"{self.name} {shown(self.value)} is not implemented: {self.row.instead}"


def is_set(value: object) -> bool:
    """Whether a value is neither empty nor a form of "no"."""
    return not (isinstance(value, str) and value.lower() in ("", "0", "false", "no", "none")) and bool(value)


def _above_ten(value: object) -> bool:
    text = str(value)
    return text.isdecimal() and (len(text) > _MAX_DIGITS or int(text) > 10)


def _other_lifetime(value: object) -> bool:
    return is_set(value) and value not in (
        "manual", "delete-if-unused", "delete-on-close", "delete-if-unused-and-empty"
    )  # fmt: skip


_MAX_DIGITS: Final = 20
_TEN_LEVELS: Final = "it has 10 levels, one for each priority"
_NO_GROUP_STATE: Final = "the state of message groups is not reported"
_NO_COPY: Final = "its messages and state are not replicated to other brokers"
_NO_TRACE: Final = "messages do not record the brokers they have passed, and none is excluded by them"
_NO_FLOW: Final = "the thresholds of flow control are qpid.flow_stop_size and qpid.flow_resume_size"
_NO_ALERT: Final = "the age of messages raises no events"
_NO_MIRROR: Final = "queues are not mirrored by their arguments; RabbitMQ has ignored this one since 3.0"
_RING_JOURNAL: Final = "its journal is sized by qpid.file_count and qpid.file_size"

_REFUSED, _LOGGED = Effect.REFUSED, Effect.LOGGED

TABLE: Final = (
    Row("qpid.priorities", _above_ten, _LOGGED, _TEN_LEVELS),
    Row("x-qpid-priorities", _above_ten, _LOGGED, _TEN_LEVELS),
    Row("qpid.group_timestamp", is_set, _LOGGED, _NO_GROUP_STATE),
    Row("qpid.lifetime-policy", _other_lifetime, _REFUSED, "it can be deleted when it is unused, or unused and empty"),
    Row("qpid.replicate", is_set, _REFUSED, _NO_COPY),
    Row("qpid.trace.id", is_set, _REFUSED, _NO_TRACE),
    Row("qpid.trace.exclude", is_set, _REFUSED, _NO_TRACE),
    Row("qpid.trace.excludes", is_set, _REFUSED, _NO_TRACE),
    Row("qpid.persist_last_node", is_set, _LOGGED, "the broker is standalone, never the last node of a cluster"),
    Row("x-ha-policy", is_set, _LOGGED, _NO_MIRROR),
    Row("x-qpid-capacity", is_set, _LOGGED, _NO_FLOW),
    Row("x-qpid-flow-resume-capacity", is_set, _LOGGED, _NO_FLOW),
    Row("x-qpid-maximum-message-age", is_set, _LOGGED, _NO_ALERT),
    Row("qpid.efp_partition_num", is_set, _LOGGED, _RING_JOURNAL),
    Row("qpid.efp_pool_file_size", is_set, _LOGGED, _RING_JOURNAL),
    Row("qpid.wcache-page-size", is_set, _LOGGED, "the broker's option wcache-page-size applies to all queues"),
    Row("qpid.wcache-num-pages", is_set, _LOGGED, "the number of write cache pages is not configurable"),
)  # fmt: skip

_BY_KEY: Final = {row.key: row for row in TABLE}


def unsupported_arguments(arguments: TypedMap) -> list[UnsupportedArgument]:
    """The arguments of a declaration that ask for missing features, in order."""
    found = []
    for name, typed in arguments.entries:
        value = as_text(typed.value)
        row = _BY_KEY.get(name)
        if row is not None and row.asks(value):
            found.append(UnsupportedArgument(row, name, value))
    return found


def as_text(value: object) -> object:
    """Bytes as text: the C++ client sends strings as bytes unless told otherwise."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def shown(value: object) -> str:
    """A value for a log line or error: printable, and truncated to 64 characters."""
    text = ascii(value)
    return text if len(text) <= 64 else f"{text[:64]}..."
