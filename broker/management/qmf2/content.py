"""What the messages of QMF version 2 contain: ids, data, events, schemas, and who the agent is.

    schema id    {_package_name, _class_name, _type: _data or _event, _hash}
    object id    {_object_name}: without the agent, which is the one that tells it, as qpidd's
    data         {_object_id, _schema_id, _values, _create_ts, _update_ts, _delete_ts}
    event        {_schema_id, _values, _timestamp, _severity}
    schema       {_schema_id, _properties: [...], _methods: [...]} of a class, {_schema_id, _properties} of an event
    property     {_name, _type, _subtype, _access, _index, _optional, _unit, _desc, _references}; of an event and of a
                 method's argument {_name, _type, _subtype, _dir, _desc}
    method       {_name, _desc, _arguments: [...]}

Times are nanoseconds since 1970; `_delete_ts` is 0 of objects that exist. `_type` is the type in version 2, `_subtype`
that in the schema. A statistic is a property with `_statistic`, which qpidd's agents do not tell.

Sources: Qpid wiki, "QMF Map Message Protocol" (seed 004, lines 19258-19551); qpidd, ManagementAgent.cpp and
qmf/Schema.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qstore.broker.management.objects.element import carried
from qstore.formats.qmf.v1.types import QMF_TYPES
from qstore.formats.values import UINT64, TypedValue

if TYPE_CHECKING:
    from uuid import UUID

    from qstore.broker.management.events import EventClass
    from qstore.broker.management.objects.element import Argument, ManagedClass, Property, Statistic
    from qstore.broker.model.events import Event


def nanoseconds(seconds: float) -> TypedValue:
    """A time."""
    return TypedValue(UINT64, max(0, round(seconds * 1e9)))


def _schema_id(package: str, name: str, kind: str, class_hash: UUID) -> dict[str, Any]:
    return {"_package_name": package, "_class_name": name, "_type": kind, "_hash": class_hash}


def class_id(of: ManagedClass) -> dict[str, Any]:
    """The id of a class of objects."""
    return _schema_id(of.package, of.name, "_data", of.hash)


def event_id(of: EventClass) -> dict[str, Any]:
    """The id of a class of events."""
    return _schema_id(of.package, of.name, "_event", of.hash)


def object_id(name: str) -> dict[str, Any]:
    """The id of an object."""
    return {"_object_name": name}


def data(
    of: ManagedClass, identity: Mapping[str, Any], values: Mapping[str, Any], *, times: tuple[float, float, float]
) -> dict[str, Any]:
    """An object.

    Args:
        of: its class.
        identity: its id.
        values: by name.
        times: when it was created, looked at, and deleted, in seconds since 1970; 0 for not.
    """
    created, updated, deleted = times
    return {
        "_object_id": identity,
        "_schema_id": class_id(of),
        "_values": values,
        "_create_ts": nanoseconds(created),
        "_update_ts": nanoseconds(updated),
        "_delete_ts": nanoseconds(deleted),
    }


def event_data(of: EventClass, event: Event, now: float) -> dict[str, Any]:
    """An event."""
    return {
        "_schema_id": event_id(of),
        "_values": {
            argument.name: carried(argument.type, value)
            for argument, value in zip(of.arguments, of.values(event), strict=True)
        },
        "_timestamp": nanoseconds(now),
        "_severity": of.number,
    }


# ---- schemas ----


def class_schema(of: ManagedClass) -> dict[str, Any]:
    """The schema of a class of objects."""
    return {
        "_schema_id": class_id(of),
        "_properties": [_property(each) for each in of.properties] + [_statistic(each) for each in of.statistics],
        "_methods": [
            {
                "_name": each.name,
                **_described(each.description),
                "_arguments": [_argument(one) for one in each.arguments],
            }
            for each in of.methods.values()
        ],
    }


def event_schema(of: EventClass) -> dict[str, Any]:
    """The schema of a class of events."""
    return {"_schema_id": event_id(of), "_properties": [_argument(each) for each in of.arguments]}


def _typed(name: str, kind: str) -> dict[str, Any]:
    return {"_name": name, "_type": QMF_TYPES[kind].kind, "_subtype": kind}


def _described(text: str) -> dict[str, Any]:
    return {"_desc": text} if text else {}


def _property(of: Property) -> dict[str, Any]:
    more = {"_unit": of.unit, "_references": of.references}
    return {
        **_typed(of.name, of.type),
        "_access": of.access,
        "_index": of.is_index,
        "_optional": of.is_optional,
        **{name: value for name, value in more.items() if value},
        **_described(of.description),
    }


def _statistic(of: Statistic) -> dict[str, Any]:
    unit = {"_unit": of.unit} if of.unit else {}
    return {**_typed(of.name, of.type), "_access": "RO", "_statistic": True, **unit, **_described(of.description)}


def _argument(of: Argument) -> dict[str, Any]:
    direction = {"_dir": of.direction} if of.direction else {}
    return {**_typed(of.name, of.type), **direction, **_described(of.description)}
