"""Arguments of a queue's declaration that ask for something that this broker does not have.

Each key has one row: which values ask for something, what the queue does instead, and whether that is REFUSED or only
TOLD. The rule: a queue that would lose, reorder or multiply messages, hand them to the wrong consumer or not keep a
copy that somebody counts on is refused, so that nobody finds out from the messages. What only tunes a queue, or only
watches it, is accepted, and the log says that it has no effect. When such a kind of queue is there, its rows go.

Arguments that are in no row, here or in `arguments`, mean nothing to anybody (Qpid C++ Broker Book, 1.2.1.4).

Sources: qpidd, QueueSettings.cpp and QueueFactory.cpp; Qpid C++ Broker Book, 1.2, 1.3, 1.6 to 1.8, 1.11 and 1.12;
MRG 2 Messaging User Guide, 3; Qpid wiki, "Qpid extensions to AMQP".
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from formats.values import TypedMap

_Asks: TypeAlias = Callable[[object], bool]


class Effect(Enum):
    """What becomes of a declaration."""

    REFUSED = auto()  # as not implemented
    TOLD = auto()  # accepted, and the log says that the argument has no effect


class Row(NamedTuple):
    """One argument.

    Attributes:
        key: its name; one that ends in `*` stands for all names that begin so.
        asks: whether a value asks for something; bytes come as text.
        effect: what becomes of a declaration that does.
        instead: what a queue of this broker does, in a few words.
    """

    key: str
    asks: _Asks
    effect: Effect
    instead: str


class Unmet(NamedTuple):
    """An argument of a declaration that asks for what is not there."""

    row: Row
    name: str
    value: object

    @property
    def is_refused(self) -> bool:
        """Whether a declaration that asks for it is refused."""
        return self.row.effect is Effect.REFUSED

    def __str__(self) -> str:
        return f"{self.name} {shown(self.value)} is not implemented: {self.row.instead}"


def _given(_value: object) -> bool:
    """Whatever its value is: qpidd looks no further either."""
    return True


def _set(value: object) -> bool:
    """Neither empty nor a way to say no."""
    return not (isinstance(value, str) and value.lower() in ("", "0", "false", "no", "none")) and bool(value)


def _several(value: object) -> bool:
    """More than one level; what is no number is taken for a wish, too."""
    return value not in (0, 1, "", "0", "1")


def _not_reject(value: object) -> bool:
    return value != "reject"


_ORDER: Final = "messages are delivered in the order in which they came"
_ALL_KEPT: Final = "every message is kept, whether or not a newer one has the same key"
_AT_LIMIT: Final = "the queue drops or moves no message, and refuses more when it is full"
_NO_GROUPS: Final = "messages of one group may go to several consumers at the same time"
_NO_COPY: Final = "its messages and its state are copied to no other broker"
_NO_TRACE: Final = "messages are not marked with the brokers that they have passed, and none is left out for it"
_NO_FLOW: Final = "publishers are not stopped before the queue is full; then it refuses messages"
_NO_ALERT: Final = "no events are raised"
_NO_PAGING: Final = "its messages stay in memory"
_RING_JOURNAL: Final = "its journal is sized by qpid.file_count and qpid.file_size"

_REFUSED, _TOLD = Effect.REFUSED, Effect.TOLD

TABLE: Final = (
    Row("qpid.policy_type", _not_reject, _REFUSED, _AT_LIMIT),
    Row("qpid.last_value_queue", _given, _REFUSED, _ALL_KEPT),
    Row("qpid.last_value_queue_no_browse", _given, _REFUSED, _ALL_KEPT),
    Row("qpid.last_value_queue_key", _set, _REFUSED, _ALL_KEPT),
    Row("qpid.LVQ_key", _set, _REFUSED, _ALL_KEPT),
    Row("qpid.priorities", _several, _REFUSED, _ORDER),
    Row("x-qpid-priorities", _several, _REFUSED, _ORDER),
    Row("qpid.fairshare*", _set, _REFUSED, _ORDER),
    Row("x-qpid-fairshare*", _set, _REFUSED, _ORDER),
    Row("qpid.group_header_key", _set, _REFUSED, _NO_GROUPS),
    Row("qpid.shared_msg_group", _set, _REFUSED, _NO_GROUPS),
    Row("qpid.group_timestamp", _set, _REFUSED, _NO_GROUPS),
    Row("qpid.browse-only", _set, _REFUSED, "a consumer that takes messages removes them"),
    Row("qpid.filter", _set, _REFUSED, "the queue takes every message that is routed to it"),
    Row("qpid.queue_msg_sequence", _set, _REFUSED, "the queue does not number messages"),
    Row("qpid.lifetime-policy", _set, _REFUSED, "only the declaration's auto-delete says when the queue goes"),
    Row("qpid.queue_event_generation", _set, _REFUSED, _NO_COPY),
    Row("qpid.replicate", _set, _REFUSED, _NO_COPY),
    Row("qpid.trace.id", _set, _REFUSED, _NO_TRACE),
    Row("qpid.trace.exclude", _set, _REFUSED, _NO_TRACE),
    Row("qpid.trace.excludes", _set, _REFUSED, _NO_TRACE),
    Row("qpid.persist_last_node", _set, _TOLD, "a broker stands alone, and is never the last of a cluster"),
    Row("qpid.flow_stop_count", _set, _TOLD, _NO_FLOW),
    Row("qpid.flow_stop_size", _set, _TOLD, _NO_FLOW),
    Row("qpid.flow_resume_count", _set, _TOLD, _NO_FLOW),
    Row("qpid.flow_resume_size", _set, _TOLD, _NO_FLOW),
    Row("x-qpid-capacity", _set, _TOLD, _NO_FLOW),
    Row("x-qpid-flow-resume-capacity", _set, _TOLD, _NO_FLOW),
    Row("qpid.alert_*", _set, _TOLD, _NO_ALERT),
    Row("x-qpid-maximum-message-count", _set, _TOLD, _NO_ALERT),
    Row("x-qpid-maximum-message-size", _set, _TOLD, _NO_ALERT),
    Row("x-qpid-maximum-message-age", _set, _TOLD, _NO_ALERT),
    Row("x-qpid-minimum-alert-repeat-gap", _set, _TOLD, _NO_ALERT),
    Row("qpid.paging", _set, _TOLD, _NO_PAGING),
    Row("qpid.max_pages_loaded", _set, _TOLD, _NO_PAGING),
    Row("qpid.page_factor", _set, _TOLD, _NO_PAGING),
    Row("qpid.efp_partition_num", _set, _TOLD, _RING_JOURNAL),
    Row("qpid.efp_pool_file_size", _set, _TOLD, _RING_JOURNAL),
    Row("qpid.wcache-page-size", _set, _TOLD, "the broker's option wcache-page-size holds for all queues"),
    Row("qpid.wcache-num-pages", _set, _TOLD, "write cache pages are not counted"),
)  # fmt: skip

_BY_KEY: Final = {row.key: row for row in TABLE if not row.key.endswith("*")}
_BY_PREFIX: Final = tuple((row.key[:-1], row) for row in TABLE if row.key.endswith("*"))


def _row(name: str) -> Row | None:
    row = _BY_KEY.get(name)
    return row or next((found for prefix, found in _BY_PREFIX if name.startswith(prefix)), None)


def unmet(arguments: TypedMap) -> list[Unmet]:
    """What a declaration asks for and this broker does not have, in the order of its arguments."""
    found = []
    for name, typed in arguments.entries:
        value = as_text(typed.value)
        row = _row(name)
        if row is not None and row.asks(value):
            found.append(Unmet(row, name, value))
    return found


def as_text(value: object) -> object:
    """Bytes as a text: the C++ client sends so what nobody has told it to be one."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def shown(value: object) -> str:
    """A value, for a message: printable, and not too long."""
    text = ascii(value)
    return text if len(text) <= 64 else f"{text[:64]}..."
