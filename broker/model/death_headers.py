"""The headers that tell where a message has died: x-death, and those of its first and its last death.

    x-death              a list of maps, the latest death first; deaths on the same queue for the same reason are one
                         entry, which counts them and keeps the time and the keys of the first
        count            how often, an int64
        reason           rejected, expired or maxlen
        queue            the queue that it was on
        time             when it died first, in seconds since 1970
        exchange         the exchange that it was published to
        routing-keys     the routing key, in a list, and those of its header CC
        original-expiration    its own time to live in milliseconds, as text; only if it had one
    x-first-death-reason, -queue, -exchange    of its first death: never changed
    x-last-death-reason, -queue, -exchange     of its latest death

A client can send these headers as well. What is not of this form is left out, and does not count.

Where the header of a message has no room for all of them, they are shortened in steps (`SHORTER`): first the keys of
the header CC go from all entries, then the oldest entries that no longer decide about a cycle, then all of a message
that was rejected.

A message is in an automatic cycle if it would come to a queue where it has died before, and was not rejected since
then. Source: RabbitMQ, "Dead Letter Exchanges".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from qstore.formats.values import INT64, LIST, MAP, STR16, TYPES, TypedMap, TypedValue

X_DEATH: Final = "x-death"
REJECTED: Final = "rejected"
EXPIRED: Final = "expired"
MAXLEN: Final = "maxlen"

Changes: TypeAlias = dict[str, TypedValue | None]
"""Headers to set; None for those to remove."""

_KEYS: Final = "routing-keys"
_DATETIME: Final = TYPES["datetime"]


class Death(NamedTuple):
    """One death of a message.

    Attributes:
        reason: REJECTED, EXPIRED or MAXLEN.
        queue, exchange, routing_keys: where it was, and what it was published to.
        time: seconds since 1970.
        ttl: its own time to live in milliseconds; None if it had none.
    """

    reason: str
    queue: str
    exchange: str
    routing_keys: tuple[str, ...]
    time: int
    ttl: int | None = None


def deaths_of(headers: TypedMap) -> list[TypedMap]:
    """The entries of x-death, the latest first."""
    typed = headers.get(X_DEATH)
    if typed is None or not isinstance(typed.value, tuple):
        return []
    return [each.value for each in typed.value if isinstance(each, TypedValue) and isinstance(each.value, TypedMap)]


def headers_after(headers: TypedMap, death: Death) -> tuple[Changes, list[TypedMap]]:
    """The headers to set when a message dies, and the entries of its x-death then."""
    before = deaths_of(headers)
    alike = [each for each in before if _is_at(each, death.queue) and _text(each, "reason") == death.reason]
    latest = _again(alike[0]) if alike else _entry(death)
    deaths = [latest, *(each for each in before if each not in alike)]
    changes = _with_deaths({}, deaths)
    if not before:
        changes |= _named("first", death)
    return changes | _named("last", death), deaths


def with_own_keys(changes: Changes, _excess: int) -> Changes:
    """The same headers; of the routing keys of each death only the first, without those of CC."""
    return _with_deaths(changes, [_with_first_key(each) for each in _deaths_in(changes)])


def without_oldest(changes: Changes, excess: int) -> Changes:
    """The same headers without the oldest deaths: so many that they have had `excess` bytes, if there are so many.

    The latest rejection and those after it stay.
    """
    deaths = _deaths_in(changes)
    reasons = [_text(each, "reason") for each in deaths]
    least = reasons.index(REJECTED) + 1 if REJECTED in reasons else len(deaths)
    while excess > 0 and len(deaths) > least:
        excess -= _least_size(deaths.pop())
    return _with_deaths(changes, deaths)


def without_deaths(changes: Changes, _excess: int) -> Changes:
    """None of these headers, if the latest death is a rejection: it ends what may become a cycle."""
    deaths = _deaths_in(changes)
    if not deaths or _text(deaths[0], "reason") != REJECTED:
        return changes
    return dict.fromkeys(changes)


SHORTER: Final[tuple[Callable[[Changes, int], Changes], ...]] = (with_own_keys, without_oldest, without_deaths)
"""Make the headers of a death shorter, one after the other.

Args:
    changes: the headers to set, and those to remove.
    excess: bytes that the header of the message has too many.
"""


def _deaths_in(changes: Changes) -> list[TypedMap]:
    return deaths_of(TypedMap(tuple((name, each) for name, each in changes.items() if each is not None)))


def _with_deaths(changes: Changes, deaths: Iterable[TypedMap]) -> Changes:
    return {**changes, X_DEATH: TypedValue(LIST, tuple(TypedValue(MAP, each) for each in deaths))}


def _with_first_key(entry: TypedMap) -> TypedMap:
    return TypedMap(tuple((name, _first(typed) if name == _KEYS else typed) for name, typed in entry.entries))


def _first(typed: TypedValue) -> TypedValue:
    return TypedValue(LIST, typed.value[:1]) if isinstance(typed.value, tuple) else typed


def _least_size(entry: TypedMap) -> int:
    """Bytes that an entry has encoded, at least: those of its names and texts."""
    texts = [typed.value for _, typed in entry.entries if isinstance(typed.value, (str, bytes))]
    return sum(2 + len(each) for each in (*texts, *entry))


def is_cycle(queue: str, deaths: Iterable[TypedMap]) -> bool:
    """Whether a message with these deaths has come back to a queue without having been rejected."""
    for each in deaths:
        if _text(each, "reason") == REJECTED:
            return False
        if _is_at(each, queue):
            return True
    return False


def _named(which: str, death: Death) -> Changes:
    values = {"reason": death.reason, "queue": death.queue, "exchange": death.exchange}
    return {f"x-{which}-death-{name}": TypedValue(STR16, value) for name, value in values.items()}


def _entry(death: Death) -> TypedMap:
    entries = [
        ("count", TypedValue(INT64, 1)),
        ("reason", TypedValue(STR16, death.reason)),
        ("queue", TypedValue(STR16, death.queue)),
        ("time", TypedValue(_DATETIME, death.time)),
        ("exchange", TypedValue(STR16, death.exchange)),
        (_KEYS, TypedValue(LIST, tuple(TypedValue(STR16, key) for key in death.routing_keys))),
    ]
    if death.ttl is not None:
        entries.append(("original-expiration", TypedValue(STR16, str(death.ttl))))
    return TypedMap(tuple(entries))


def _again(entry: TypedMap) -> TypedMap:
    """An entry with one more death."""
    typed = entry.get("count")
    count = typed.value if typed is not None and isinstance(typed.value, int) else 1
    others = tuple(each for each in entry.entries if each[0] != "count")
    return TypedMap((("count", TypedValue(INT64, min(max(count, 0), (1 << 63) - 2) + 1)), *others))


def _is_at(entry: TypedMap, queue: str) -> bool:
    return _text(entry, "queue") == queue


def _text(entry: TypedMap, name: str) -> str | None:
    typed = entry.get(name)
    if typed is None:
        return None
    value = typed.value
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else None
