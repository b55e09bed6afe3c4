"""The deaths of a message as AMQP 1.0 tells them: the message-annotation `x-opt-deaths`, as in RabbitMQ 4.

It is an array of maps, the latest death first, whose keys are symbols. The header of the other protocols is described
in `model/dead_letters`.

    x-opt-deaths            x-death
    ----------------------  ------------------------------------------------------------------
    queue: string           queue
    reason: symbol          reason
    count: ulong            count
    first-time: timestamp   time, in seconds
    last-time: timestamp    last-time, in seconds; absent if that is `time`
    exchange: string        exchange
    routing-keys: array     routing-keys: a list
    ttl: uint               original-expiration: the number as text

Both ways, an entry or a value of a client that is not as in the table is kept as it is.

Source: RabbitMQ, "Dead Letter Exchanges".
"""

from __future__ import annotations

from typing import Any, Final

from qstore.broker.model.dead_letters import LAST_TIME, NAMED, TTL, X_DEATH
from qstore.formats.amqp_1_0.neutral import value_of
from qstore.formats.amqp_1_0.values import Value
from qstore.formats.values import INT64, LIST, MAP, STR16, TYPES, Family, TypedMap, TypedValue

DEATHS: Final = "x-opt-deaths"

ANNOTATIONS: Final = frozenset((X_DEATH, *NAMED))
"""The headers of a death, which are message-annotations."""

_TIMES: Final = {"time": "first-time", LAST_TIME: LAST_TIME}
_BACK: Final = {name: header for header, name in _TIMES.items()}
_TTL: Final = "ttl"
_DATETIME: Final = TYPES["datetime"]
_MAX_TTL: Final = (1 << 32) - 1


def is_deaths(typed: TypedValue | None) -> bool:
    """Whether a header or an annotation is a list of maps, of one at least."""
    if typed is None or typed.type.family is not Family.LIST or not typed.value:
        return False
    return all(isinstance(each, TypedValue) and isinstance(each.value, TypedMap) for each in typed.value)


def annotation_of(deaths: TypedValue) -> Value:
    """The annotation for an x-death for which `is_deaths` holds."""
    return Value("array", tuple(Value("map", tuple(_entry(each.value))) for each in deaths.value))


def _entry(entry: TypedMap) -> list[tuple[Value, Value]]:
    pairs = [_pair(name, typed) for name, typed in entry.entries]
    if entry.get(LAST_TIME) is None and (first := entry.get("time")) is not None:
        pairs.append(_pair(LAST_TIME, first))
    return [(Value("symbol" if name.isascii() else "string", name), value) for name, value in pairs]


def _pair(name: str, typed: TypedValue) -> tuple[str, Value]:
    """The name and the value of a header's entry in the annotation."""
    value: Any = typed.value
    if name in _TIMES and typed.type.family is Family.TIME:
        return _TIMES[name], value_of(typed)
    if name == "count" and type(value) is int and value >= 0:
        return name, Value("ulong", value)
    if name == "reason" and isinstance(value, str) and value.isascii():
        return name, Value("symbol", value)
    if name == "routing-keys" and typed.type.family is Family.LIST:
        values = tuple(map(value_of, value))
        is_text = bool(values) and all(each.type_name == "string" for each in values)
        return name, Value("array" if is_text else "list", values)
    if name == TTL and isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(_MOST):
        return _TTL, Value("uint", min(int(value), _MAX_TTL))
    return name, value_of(typed)


_MOST: Final = str(_MAX_TTL)


def header_of(deaths: TypedValue) -> TypedValue:
    """The x-death for an annotation for which `is_deaths` holds."""
    return TypedValue(LIST, tuple(TypedValue(MAP, _neutral(each.value)) for each in deaths.value))


def _neutral(entry: TypedMap) -> TypedMap:
    pairs: list[tuple[str, TypedValue]] = []
    for name, typed in entry.entries:
        value: Any = typed.value
        if name in _BACK and type(value) is int and value >= 0:
            pairs.append((_BACK[name], TypedValue(_DATETIME, value // 1000)))
        elif name == "count" and type(value) is int and value < 1 << 63:
            pairs.append((name, TypedValue(INT64, value)))
        elif name == _TTL and type(value) is int:
            pairs.append((TTL, TypedValue(STR16, str(value))))
        else:
            pairs.append((name, typed))
    found = TypedMap(tuple(pairs))
    first, last = found.get("time"), found.get(LAST_TIME)
    if first is not None and last is not None and first.value == last.value:
        return TypedMap(tuple(each for each in pairs if each[0] != LAST_TIME))
    return found
