"""Methods of access control: the ACL file is read again, and what would be decided.

Source: the QMF schema of qpidd's ACL module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qstore.broker.management.methods.arguments import plain, table, text
from qstore.broker.security.acl.requests import look_up, look_up_publishing, reload_file

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.objects.element import Arguments, Results
    from qstore.broker.model.caller import Caller
    from qstore.broker.security.acl.control import AccessControl


async def reload(_managed: ManagedBroker, control: AccessControl, _arguments: Arguments, caller: Caller) -> Results:
    """Read the file again; if something in it is wrong, the rules remain."""
    await reload_file(control, caller.user)
    return {}


async def lookup(_managed: ManagedBroker, control: AccessControl, arguments: Arguments, _caller: Caller) -> Results:
    """What would be decided about an operation."""
    user, action, object_type, name = (text(arguments, each) for each in ("userId", "action", "object", "objectName"))
    values = plain(table(arguments, "propertyMap"))
    return {"result": look_up(control, user, action, object_type, name, values)}


async def lookup_publish(
    _managed: ManagedBroker, control: AccessControl, arguments: Arguments, _caller: Caller
) -> Results:
    """What would be decided about a message."""
    asked = (text(arguments, name) for name in ("userId", "exchangeName", "routingKey"))
    return {"result": look_up_publishing(control, *asked)}
