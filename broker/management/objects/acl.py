"""The class acl: access control, its file and its limits. The file is read again, and decisions are looked up.

Source: the QMF schema of qpidd's ACL module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from qstore.broker.management.schema import (
    BROKER,
    BROKER_NAME,
    BROKER_REFERENCE,
    ClassName,
    ManagedClass,
    arg,
    method,
    prop,
    stat,
)
from qstore.broker.security.acl.control import control_of, look_up, look_up_publishing, reload_file
from qstore.formats.named_tuple import NamedTuple

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.request import Arguments
    from qstore.broker.management.schema import Results
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.caller import Caller
    from qstore.broker.security.acl.control import AccessControl

_PACKAGE: Final = "org.apache.qpid.acl"
_MAX: Final = (1 << 16) - 1


class _View(NamedTuple):
    """Access control, and the broker that has it."""

    control: AccessControl
    broker: Broker


def _objects(managed: ManagedBroker) -> Iterable[tuple[str, AccessControl]]:
    control = control_of(managed.broker)
    return () if control is None else ((BROKER.name_of(BROKER_NAME), control),)


def _look(control: AccessControl) -> _View:
    return _View(control, control.broker)


async def reload(_managed: ManagedBroker, control: AccessControl, _arguments: Arguments, caller: Caller) -> Results:
    """Read the file again; if something in it is wrong, the rules remain."""
    await reload_file(control, caller.user)
    return {}


async def lookup(_managed: ManagedBroker, control: AccessControl, arguments: Arguments, _caller: Caller) -> Results:
    """The decision on an operation."""
    user, action, object_type, name = (arguments.text(each) for each in ("userId", "action", "object", "objectName"))
    values = arguments.map("propertyMap")
    return {"result": look_up(control, user, action, object_type, name, values)}


async def lookup_publish(
    _managed: ManagedBroker, control: AccessControl, arguments: Arguments, _caller: Caller
) -> Results:
    """The decision on a message."""
    asked = (arguments.text(name) for name in ("userId", "exchangeName", "routingKey"))
    return {"result": look_up_publishing(control, *asked)}


# fmt: off
ACL_CLASS: Final = ManagedClass(
    ClassName(_PACKAGE, "acl"),
    properties=(
        BROKER_REFERENCE,
        prop("policyFile", "lstr", "RO", lambda view: view.broker.settings.acl_file or "", "Name of the policy file"),
        prop("enforcingAcl", "bool", "RO", lambda view: view.control.engine is not None, "Currently Enforcing ACL"),
        prop("transferAcl", "bool", "RO", lambda view: view.control.checks_publish, "Any transfer ACL rules in force"),
        prop("lastAclLoad", "absTime", "RO", lambda view: round(view.control.loaded_at * 1e9),
             "Timestamp of last successful load of ACL"),
        prop("maxConnections", "uint16", "RO", lambda view: min(view.broker.settings.max_connections, _MAX),
             "Maximum allowed connections"),
        prop("maxConnectionsPerIp", "uint16", "RO", lambda view: view.broker.settings.connections_per_host,
             "Maximum allowed connections"),
        prop("maxConnectionsPerUser", "uint16", "RO", lambda view: view.broker.settings.connections_per_user,
             "Maximum allowed connections"),
        prop("maxQueuesPerUser", "uint16", "RO", lambda view: view.broker.settings.queues_per_user,
             "Maximum allowed queues"),
    ),
    statistics=(
        stat("aclDenyCount", "count64", lambda view: view.control.denied, "Number of ACL requests denied", "request"),
        stat("connectionDenyCount", "count64", lambda view: view.broker.quotas.connections_denied,
             "Number of connections denied", "connection"),
        stat("queueQuotaDenyCount", "count64", lambda view: view.broker.quotas.queues_denied,
             "Number of queue creations denied", "queue"),
    ),
    methods=(
        method("reloadACLFile", "Reload the ACL file", (), reload),
        method("Lookup", "Lookup: user action object [objectName [propertyMap]]", (
            arg("userId", "lstr", "I"),
            arg("action", "lstr", "I"),
            arg("object", "lstr", "I"),
            arg("objectName", "lstr", "I"),
            arg("propertyMap", "map", "I"),
            arg("result", "lstr", "O"),
        ), lookup),
        method("LookupPublish", "Lookup PUBLISH EXCHANGE: user exchangeName routingKey", (
            arg("userId", "lstr", "I"),
            arg("exchangeName", "lstr", "I"),
            arg("routingKey", "lstr", "I"),
            arg("result", "lstr", "O"),
        ), lookup_publish),
    ),
    objects=_objects, look=_look,
)
# fmt: on
