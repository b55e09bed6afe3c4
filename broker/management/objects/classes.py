"""All classes of managed objects, and how an object is found by its name.

A class is added here, and nowhere else: by a module like `queue`, with its table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from qstore.broker.management.objects.acl import ACL_CLASS
from qstore.broker.management.objects.amqp_1_0 import (
    DOMAIN_CLASS,
    INCOMING_CLASS,
    OUTGOING_CLASS,
    QUEUE_POLICY_CLASS,
    TOPIC_CLASS,
    TOPIC_POLICY_CLASS,
)
from qstore.broker.management.objects.backup import BACKUP_CLASS
from qstore.broker.management.objects.broker import BROKER_CLASS
from qstore.broker.management.objects.client import CONNECTION_CLASS, SESSION_CLASS, SUBSCRIPTION_CLASS
from qstore.broker.management.objects.cluster import HA_BROKER_CLASS, MANAGEMENT_SETUP_STATE_CLASS
from qstore.broker.management.objects.element import ManagedClass
from qstore.broker.management.objects.exchange import BINDING_CLASS, EXCHANGE_BINDING_CLASS, EXCHANGE_CLASS
from qstore.broker.management.objects.links import BRIDGE_CLASS, LINK_CLASS
from qstore.broker.management.objects.log import LOG_CLASS
from qstore.broker.management.objects.queue import QUEUE_CLASS
from qstore.broker.management.objects.security import SECURITY_CLASS
from qstore.broker.management.objects.store import (
    JOURNAL_CLASS,
    LINEAR_JOURNAL_CLASS,
    LINEAR_STORE_CLASS,
    STORE_CLASS,
)
from qstore.broker.management.objects.system import AGENT_CLASS, MEMORY_CLASS, SYSTEM_CLASS, VHOST_CLASS
from qstore.broker.management.objects.transaction import TRANSACTION_CLASS

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker

CLASSES: Final = (
    SYSTEM_CLASS,
    MEMORY_CLASS,
    BROKER_CLASS,
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
    JOURNAL_CLASS,
    LINEAR_STORE_CLASS,
    LINEAR_JOURNAL_CLASS,
    ACL_CLASS,
    HA_BROKER_CLASS,
    TRANSACTION_CLASS,
    SECURITY_CLASS,
    LOG_CLASS,
    BACKUP_CLASS,
    EXCHANGE_BINDING_CLASS,
)
_BY_NAME: Final = {(each.package, each.name.lower()): each for each in CLASSES}


class ManagedObject(NamedTuple):
    """An object.

    Attributes:
        of: its class.
        key: its name within the class.
        target: what is managed.
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


def find_object(broker: ManagedBroker, name: str) -> ManagedObject | None:
    """The object with this name."""
    package, _, rest = name.partition(":")
    class_name, _, key = rest.partition(":")
    of = _BY_NAME.get((package, class_name.lower()))
    if of is None:
        return None
    target = of.target(broker, key)
    return None if target is None else ManagedObject(of, key, target)
