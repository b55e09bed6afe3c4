"""All classes of managed objects: how an object is found, whether a caller may see it, and how its methods are called.

A class is added to `CLASSES`, and nowhere else: by a module of `objects` with its table. What is here is the same for
both versions of QMF.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.management.objects.absent import HA_BROKER_CLASS, MANAGEMENT_SETUP_STATE_CLASS, TOPIC_CLASS
from qstore.broker.management.objects.access import (
    APPLIED_POLICY_CLASS,
    GLOBAL_PARAMETER_CLASS,
    PARAMETER_CLASS,
    PERMISSION_CLASS,
    POLICY_CLASS,
    TOPIC_PERMISSION_CLASS,
    USER_CLASS,
)
from qstore.broker.management.objects.acl import ACL_CLASS
from qstore.broker.management.objects.backup import BACKUP_CLASS
from qstore.broker.management.objects.broker import BROKER_CLASS, MESSAGE_SIZES_CLASS
from qstore.broker.management.objects.client import CONNECTION_CLASS, SESSION_CLASS, SUBSCRIPTION_CLASS
from qstore.broker.management.objects.details import (
    CLIENT_CONNECTION_CLASS,
    CLIENT_SESSION_CLASS,
    CLIENT_SUBSCRIPTION_CLASS,
    QUEUE_HEAD_CLASS,
)
from qstore.broker.management.objects.exchange import (
    BINDING_CLASS,
    EXCHANGE_BINDING_CLASS,
    EXCHANGE_CLASS,
    ROUTING_CLASS,
)
from qstore.broker.management.objects.federation import BRIDGE_CLASS, LINK_CLASS
from qstore.broker.management.objects.interlink import (
    DOMAIN_CLASS,
    INCOMING_CLASS,
    INTERLINK_CLASS,
    OUTGOING_CLASS,
)
from qstore.broker.management.objects.node_policy import QUEUE_POLICY_CLASS, TOPIC_POLICY_CLASS
from qstore.broker.management.objects.queue import QUEUE_CLASS
from qstore.broker.management.objects.shovel import SHOVEL_CLASS
from qstore.broker.management.objects.store import (
    FLUSHES_CLASS,
    JOURNAL_CLASS,
    JOURNAL_FILES_CLASS,
    LINEAR_JOURNAL_CLASS,
    LINEAR_STORE_CLASS,
    STORE_CLASS,
)
from qstore.broker.management.objects.system import (
    AGENT_CLASS,
    ALARMS_CLASS,
    HOST_CLASS,
    LOG_CLASS,
    MEMORY_CLASS,
    SECURITY_CLASS,
    SYSTEM_CLASS,
    VHOST_CLASS,
)
from qstore.broker.management.objects.transaction import TRANSACTION_CLASS
from qstore.broker.management.objects.upstream import FEDERATION_LINK_CLASS
from qstore.broker.management.request import Arguments, ForbiddenError, UnknownMethodError, UnknownObjectError
from qstore.broker.management.schema import ManagedClass
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import InvalidArgumentError, UnauthorizedError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.schema import ManagedClass, Results
    from qstore.broker.model.caller import Caller

CLASSES: Final = (
    SYSTEM_CLASS,
    MEMORY_CLASS,
    BROKER_CLASS,
    MESSAGE_SIZES_CLASS,
    AGENT_CLASS,
    VHOST_CLASS,
    QUEUE_CLASS,
    EXCHANGE_CLASS,
    BINDING_CLASS,
    SUBSCRIPTION_CLASS,
    CONNECTION_CLASS,
    SESSION_CLASS,
    LINK_CLASS,
    BRIDGE_CLASS,
    INCOMING_CLASS,
    OUTGOING_CLASS,
    DOMAIN_CLASS,
    TOPIC_CLASS,
    QUEUE_POLICY_CLASS,
    TOPIC_POLICY_CLASS,
    MANAGEMENT_SETUP_STATE_CLASS,
    STORE_CLASS,
    FLUSHES_CLASS,
    JOURNAL_CLASS,
    LINEAR_STORE_CLASS,
    LINEAR_JOURNAL_CLASS,
    ACL_CLASS,
    HA_BROKER_CLASS,
    TRANSACTION_CLASS,
    SECURITY_CLASS,
    LOG_CLASS,
    ALARMS_CLASS,
    JOURNAL_FILES_CLASS,
    BACKUP_CLASS,
    EXCHANGE_BINDING_CLASS,
    ROUTING_CLASS,
    POLICY_CLASS,
    USER_CLASS,
    PERMISSION_CLASS,
    TOPIC_PERMISSION_CLASS,
    APPLIED_POLICY_CLASS,
    PARAMETER_CLASS,
    GLOBAL_PARAMETER_CLASS,
    SHOVEL_CLASS,
    FEDERATION_LINK_CLASS,
    INTERLINK_CLASS,
    HOST_CLASS,
    CLIENT_CONNECTION_CLASS,
    CLIENT_SESSION_CLASS,
    CLIENT_SUBSCRIPTION_CLASS,
    QUEUE_HEAD_CLASS,
)
_BY_NAME: Final = {(each.package, each.name.lower()): each for each in CLASSES}


class ManagedObject(NamedTuple):
    """An object.

    Attributes:
        of: its class.
        key: its name within the class.
        target: the managed thing, such as a queue.
    """

    of: ManagedClass
    key: str
    target: Any

    @property
    def name(self) -> str:
        """Its name."""
        return self.of.prefix + self.key


def classes_named(package: str | None, name: str | None) -> list[ManagedClass]:
    """The classes with that package and name, in any case; None stands for all."""
    lower = None if name is None else name.lower()
    return [
        each
        for each in CLASSES
        if (package is None or each.package == package) and (lower is None or each.name.lower() == lower)
    ]


def objects_of(broker: ManagedBroker, of: ManagedClass) -> Iterator[ManagedObject]:
    """All objects of a class. They may come and go between one and the next."""
    for key, target in of.objects(broker):
        yield ManagedObject(of, key, target)


def class_of(name: str) -> ManagedClass | None:
    """The class of an object with this name."""
    package, _, rest = name.partition(":")
    return _BY_NAME.get((package, rest.partition(":")[0].lower()))


def find_object(broker: ManagedBroker, name: str) -> ManagedObject | None:
    """The object with this name."""
    of, key = class_of(name), name.partition(":")[2].partition(":")[2]
    if of is None:
        return None
    target = of.target(broker, key)
    return None if target is None else ManagedObject(of, key, target)


# ---- on behalf of a caller ----


def check_query(managed: ManagedBroker, caller: Caller, name: str, class_name: str) -> None:
    """Raise UnauthorizedError unless the caller may ask for an object, or for those of a class."""
    managed.broker.authorization.check(caller, Action.ACCESS, ObjectType.QUERY, name, schemaclass=class_name)


async def prepare(managed: ManagedBroker, classes: Iterable[ManagedClass]) -> None:
    """Prepare for reading objects of these classes."""
    for of in classes:
        if of.prepare is not None:
            await of.prepare(managed)


def all_of(managed: ManagedBroker, classes: Iterable[ManagedClass], caller: Caller) -> Iterator[ManagedObject]:
    """All objects of these classes that a caller may see. They may come and go between one and the next."""
    for of in classes:
        sees = of.sight(managed, caller)
        if sees is None:
            yield from objects_of(managed, of)
        else:
            yield from (each for each in objects_of(managed, of) if sees(each.target))


async def call(
    managed: ManagedBroker, each: ManagedObject, name: str, arguments: Mapping[str, Any], caller: Caller
) -> Results:
    """Call a method of an object. Returns its results.

    Raises:
        UnauthorizedError: the caller may not; a `ForbiddenError` if it may not call the method at all.
        UnknownMethodError: there is no such method.
        InvalidArgumentError: it lacks one of these arguments: a misspelt filter would select everything.
        ModelError: it fails.
    """
    of = each.of
    try:
        managed.broker.authorization.check(
            caller, Action.ACCESS, ObjectType.METHOD, name, schemapackage=of.package, schemaclass=of.name
        )
    except UnauthorizedError as error:
        raise ForbiddenError(str(error)) from None
    found = of.methods.get(name)
    if found is None:
        raise UnknownMethodError(f"class {of.name} has no method {printable(name)}")
    unknown = arguments.keys() - {argument.name for argument in found.arguments}
    if unknown:
        raise InvalidArgumentError(f"the method {name} has no argument {printable(min(unknown))}")
    if not of.is_seen_by(managed, caller, each.target):
        raise UnknownObjectError(f"there is no object {printable(each.name)}")
    return await found.call(managed, each.target, Arguments(arguments), caller)
