"""The names of objects: `PACKAGE:CLASS:KEY`, and the keys of those that there is one of.

Source: qpidd, as its code generator makes them (managementgen, schema.py).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from qstore.broker.management.objects.element import Reference, always, prop

PACKAGE: Final = "org.apache.qpid.broker"
BROKER_NAME: Final = "amqp-broker"


class ClassName(NamedTuple):
    """The name of a class."""

    package: str
    name: str

    def name_of(self, key: str) -> str:
        """The name of an object."""
        return f"{self.package}:{self.name}:{key}"

    def reference(self, key: str) -> Reference:
        """A reference to an object."""
        return Reference(f"{self.package}:{self.name}:{key}")


AGENT: Final = ClassName(PACKAGE, "agent")
BINDING: Final = ClassName(PACKAGE, "binding")
BROKER: Final = ClassName(PACKAGE, "broker")
CONNECTION: Final = ClassName(PACKAGE, "connection")
EXCHANGE: Final = ClassName(PACKAGE, "exchange")
MEMORY: Final = ClassName(PACKAGE, "memory")
QUEUE: Final = ClassName(PACKAGE, "queue")
SESSION: Final = ClassName(PACKAGE, "session")
SUBSCRIPTION: Final = ClassName(PACKAGE, "subscription")
SYSTEM: Final = ClassName(PACKAGE, "system")
VHOST: Final = ClassName(PACKAGE, "vhost")

VHOST_KEY: Final = f"{BROKER.name_of(BROKER_NAME)},/"
VHOST_REFERENCE: Final = VHOST.reference(VHOST_KEY)

BROKER_REFERENCE: Final = prop(
    "brokerRef", "objId", "RO index parent", always(BROKER.reference(BROKER_NAME)), "", "", f"{PACKAGE}:Broker"
)
"""The row of the broker in classes of other packages of which each broker has one object."""
