"""What management may ask of access control: to read the file again, and what would be decided.

Source: the QMF schema of qpidd's ACL module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.broker import Broker
from qstore.broker.model.errors import InvalidArgumentError, PreconditionFailedError
from qstore.broker.security.acl.control import AccessControl, as_text
from qstore.broker.security.acl.engine import Engine
from qstore.broker.security.acl.errors import AclFileError
from qstore.broker.security.acl.tables import asked_values

_ACTIONS: Final = {each.value: each for each in Action}
_OBJECTS: Final = {each.value: each for each in ObjectType}


def control_of(broker: Broker) -> AccessControl | None:
    """The access control of a broker; None if it has none."""
    limits = broker.quotas.limits
    return limits if isinstance(limits, AccessControl) else None


async def reload_file(control: AccessControl, user: str) -> None:
    """Read the file again.

    Raises:
        InvalidArgumentError: it cannot be used, and the rules remain.
    """
    try:
        await control.reload(user)
    except AclFileError as error:
        raise InvalidArgumentError(f"ACL file not loaded, the rules remain as they are: {error}") from None


def look_up(
    control: AccessControl, user: str, action: str, object_type: str, name: str, values: Mapping[str, Any]
) -> str:
    """What would be decided: the permission.

    Args:
        control: the access control.
        user: the user, with the realm.
        action: the name of the action.
        object_type: the name of the object.
        name: the object's name.
        values: the values of the lookup, under their names in rules or in lookups.

    Raises:
        InvalidArgumentError: there is no such action, object or property.
        PreconditionFailedError: the broker has no rules.
    """
    if action not in _ACTIONS:
        raise InvalidArgumentError(f'Unknown ACL action "{action[:64]}"')
    if object_type not in _OBJECTS:
        raise InvalidArgumentError(f'Unknown ACL object "{object_type[:64]}"')
    try:
        asked = asked_values({name: as_text(value) for name, value in values.items()})
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None
    asked_for = _ACTIONS[action], _OBJECTS[object_type]
    return _engine(control).decide(user, *asked_for, name, asked).permission.value


def look_up_publishing(control: AccessControl, user: str, exchange: str, routing_key: str) -> str:
    """What would be decided about a message: the permission. Raises PreconditionFailedError: there are no rules."""
    return _engine(control).decide_publish(user, exchange, routing_key).permission.value


def _engine(control: AccessControl) -> Engine:
    if control.engine is None:
        raise PreconditionFailedError("the broker has no ACL file; see --acl-file")
    return control.engine
