"""The managed objects of a broker: a table of each class's properties, and how they are read from the object.

    class      an object for each         its name, which follows `org.apache.qpid.broker:CLASS:`
    ---------  -------------------------  -----------------------------------------------------------------
    system     the machine                a UUID
    broker     the broker                 amqp-broker
    vhost      the virtual host           the name of the broker's object, and /
    connection connection                 the client's address
    session    session of a connection    its user and its name
    subscription   subscription           the names of the session's and the queue's object, and the destination
    memory     the broker's process       amqp-broker
    queue      queue                      the queue
    exchange   exchange                   the exchange
    binding    binding                    the names of the exchange's and the queue's object, and the key

The statistics are in `statistics`. Detached sessions are not listed.

Source: the QMF schema of qpidd's broker; the names as qpidd's code generator makes them (managementgen, schema.py).
"""

from __future__ import annotations

import platform
import resource
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from uuid import UUID, uuid5

from qstore.broker.management import statistics
from qstore.broker.management.schema import CLASSES, PACKAGE, ManagedClass
from qstore.broker.model.watermark import Watermark
from qstore.formats.values import EMPTY_MAP

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.model.exchanges.route import Binding
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.protocols.machine import Machine, ManagedSession

BROKER_NAME: Final = "amqp-broker"
_NAMESPACE: Final = UUID("8d1b0f6e-6a0c-5d0b-9a57-0f4f5a3f7c11")

Value: TypeAlias = Any
"""The value of a property or statistic: number, text, flag, map, UUID or `Reference`."""


class Reference(NamedTuple):
    """The name of another object."""

    name: str


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
        return name_of(self.of.name, self.key)


def name_of(class_name: str, key: str) -> str:
    """The name of an object of a class."""
    return f"{PACKAGE}:{class_name}:{key}"


_Reader: TypeAlias = Callable[[Any], Value]


def _alternate(node: Queue | Exchange) -> Value:
    return None if node.alternate is None else Reference(name_of("exchange", node.alternate.name))


class AttachedSession(NamedTuple):
    """A session, and where it is attached."""

    machine: Machine
    channel: int
    session: ManagedSession

    @property
    def key(self) -> str:
        """Its name among all sessions of the broker."""
        return f"{self.session.user}.{self.session.name.decode('utf-8', 'replace')}"


def _told(machine: Machine, name: str) -> Value:
    """What the client has told about itself; None if it has not."""
    typed = machine.client_properties.get(name)
    return None if typed is None else typed.value


class Objects:
    """The managed objects of a broker.

    Args:
        broker: the model.
        version: of this software.
        ports: returns the ports that it listens on.
        machines: returns the open connections.

    Attributes:
        classes: name -> class.
    """

    def __init__(
        self, broker: Broker, version: str, ports: Callable[[], list[int]], machines: Callable[[], list[Machine]]
    ) -> None:
        self._broker, self._machines = broker, machines
        self._system = uuid5(_NAMESPACE, platform.node())
        settings, store = broker.settings, broker.store
        vhost = Reference(name_of("vhost", f"{name_of('broker', BROKER_NAME)},/"))
        self._readers: dict[str, Mapping[str, _Reader]] = {
            "system": {
                "systemId": lambda _: self._system,
                "osName": lambda _: platform.system(),
                "nodeName": lambda _: platform.node(),
                "release": lambda _: platform.release(),
                "version": lambda _: platform.version(),
                "machine": lambda _: platform.machine(),
            },
            "broker": {
                "name": lambda _: BROKER_NAME,
                "systemRef": lambda _: Reference(name_of("system", str(self._system))),
                "port": lambda _: next(iter(ports()), 0),
                "workerThreads": lambda _: 1,
                "maxConns": lambda _: settings.max_connections,
                "connBacklog": lambda _: settings.backlog,
                "stagingThreshold": lambda _: 0,
                "mgmtPublish": lambda _: False,
                "mgmtPubInterval": lambda _: settings.heartbeat_seconds,
                "version": lambda _: version,
                "dataDir": lambda _: None if store is None else settings.data_directory,
            },
            "vhost": {
                "brokerRef": lambda _: Reference(name_of("broker", BROKER_NAME)),
                "name": lambda _: "/",
                "federationTag": lambda _: "",
            },
            "memory": {
                "name": lambda _: BROKER_NAME,
                "malloc_arena": lambda _: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
                "malloc_ordblks": lambda _: None,
                "malloc_hblks": lambda _: None,
                "malloc_hblkhd": lambda _: None,
                "malloc_uordblks": lambda _: broker.held_memory(),
                "malloc_fordblks": lambda _: None,
                "malloc_keepcost": lambda _: None,
            },
            "queue": {
                "vhostRef": lambda _: vhost,
                "name": lambda queue: queue.name,
                "durable": lambda queue: queue.durable,
                "autoDelete": lambda queue: queue.auto_delete,
                "exclusive": lambda queue: queue.owner is not None,
                "arguments": lambda queue: queue.arguments,
                "altExchange": _alternate,
            },
            "exchange": {
                "vhostRef": lambda _: vhost,
                "name": lambda exchange: exchange.name,
                "type": lambda exchange: exchange.type_name,
                "durable": lambda exchange: exchange.durable,
                "autoDelete": lambda exchange: exchange.auto_delete,
                "altExchange": _alternate,
                "arguments": lambda exchange: exchange.arguments,
            },
            "connection": {
                "vhostRef": lambda _: vhost,
                "address": lambda machine: machine.peer,
                "incoming": lambda _: True,
                "SystemConnection": lambda _: False,
                "userProxyAuth": lambda _: False,
                "federationLink": lambda _: False,
                "authIdentity": lambda machine: machine.user,
                "remoteProcessName": lambda machine: _told(machine, "qpid.client_process"),
                "remotePid": lambda machine: _told(machine, "qpid.client_pid"),
                "remoteParentPid": lambda machine: _told(machine, "qpid.client_ppid"),
                "shadow": lambda _: False,
                "saslMechanism": lambda machine: machine.mechanism,
                "saslSsf": lambda _: 0,
                "remoteProperties": lambda machine: machine.client_properties,
                "protocol": lambda machine: machine.protocol,
            },
            "session": {
                "vhostRef": lambda _: vhost,
                "name": lambda attached: attached.key,
                "fullName": lambda attached: attached.key,
                "channelId": lambda attached: attached.channel,
                "connectionRef": lambda attached: Reference(name_of("connection", attached.machine.peer)),
                "detachedLifespan": lambda attached: attached.session.timeout,
                "attached": lambda _: True,
                "expireTime": lambda _: None,
                "maxClientRate": lambda _: None,
            },
            "subscription": {
                "sessionRef": lambda pair: Reference(name_of("session", pair[0].key)),
                "queueRef": lambda pair: Reference(name_of("queue", pair[1].queue.name)),
                "name": lambda pair: pair[1].destination,
                "browsing": lambda pair: not pair[1].acquires,
                "acknowledged": lambda pair: pair[1].is_accepting,
                "exclusive": lambda pair: pair[1].queue.exclusive_consumer is pair[1],
                "creditMode": lambda pair: "WINDOW" if pair[1].is_windowed else "CREDIT",
                "arguments": lambda _: EMPTY_MAP,
            },
            "binding": {
                "exchangeRef": lambda pair: Reference(name_of("exchange", pair[0].name)),
                "queueRef": lambda pair: Reference(name_of("queue", pair[1].queue.name)),
                "bindingKey": lambda pair: pair[1].key,
                "arguments": lambda pair: pair[1].arguments,
                "origin": lambda _: None,
            },
        }
        self.classes = CLASSES

    def values(self, managed: ManagedObject) -> dict[str, Value]:
        """The properties and statistics of an object, without those that it does not have."""
        found = {name: reader(managed.target) for name, reader in self._readers[managed.of.name].items()}
        table = statistics.CLASSES.get(managed.of.name.capitalize())
        if table is not None:
            target = managed.target
            if managed.of.name in ("binding", "subscription"):
                target = target[1]
            elif managed.of.name == "session":
                target = target.session
            for name, value in table.read(target).items():
                if isinstance(value, Watermark):
                    found |= {name: value.value, f"{name}High": value.high, f"{name}Low": value.low}
                else:
                    found[name] = value
        return {name: value for name, value in found.items() if value is not None}

    def of_class(self, name: str) -> Iterator[ManagedObject]:
        """All objects of a class, by its name in any case; none if there is no such class.

        Objects may come and go between one and the next.
        """
        of = self.classes.get(name.lower())
        if of is None:
            return
        if of.name == "queue":
            for queue in list(self._broker.queues.values()):
                yield ManagedObject(of, queue.name, queue)
        elif of.name == "exchange":
            for exchange in list(self._broker.exchanges.values()):
                yield ManagedObject(of, exchange.name, exchange)
        elif of.name == "binding":
            for exchange in list(self._broker.exchanges.values()):
                for binding in self._bindings(exchange):
                    yield self._binding(exchange, binding)
        elif of.name == "connection":
            for machine in self._machines():
                yield ManagedObject(of, machine.peer, machine)
        elif of.name == "session":
            for attached in self._sessions():
                yield ManagedObject(of, attached.key, attached)
        elif of.name == "subscription":
            for attached in self._sessions():
                for subscription in list(attached.session.subscriptions.values()):
                    parts = (name_of("session", attached.key), name_of("queue", subscription.queue.name))
                    yield ManagedObject(of, ",".join((*parts, subscription.destination)), (attached, subscription))
        else:
            yield ManagedObject(of, self._single(of.name), self._broker)

    def find(self, name: str) -> ManagedObject | None:
        """The object with this name."""
        package, _, rest = name.partition(":")
        class_name, _, key = rest.partition(":")
        of = self.classes.get(class_name.lower())
        if package != PACKAGE or of is None:
            return None
        if of.name in ("queue", "exchange"):
            nodes: Mapping[str, Any] = self._broker.queues if of.name == "queue" else self._broker.exchanges
            return ManagedObject(of, key, nodes[key]) if key in nodes else None
        if of.name == "binding":
            return self._find_binding(key)
        if of.name in ("connection", "session", "subscription"):
            return next((each for each in self.of_class(of.name) if each.key == key), None)
        return ManagedObject(of, key, self._broker) if key == self._single(of.name) else None

    def _single(self, class_name: str) -> str:
        """The key of the only object of a class."""
        if class_name == "system":
            return str(self._system)
        return f"{name_of('broker', BROKER_NAME)},/" if class_name == "vhost" else BROKER_NAME

    def _sessions(self) -> Iterator[AttachedSession]:
        for machine in self._machines():
            for channel, session in list(machine.sessions.items()):
                yield AttachedSession(machine, channel, session)

    def _bindings(self, exchange: Exchange) -> list[Binding]:
        if exchange.name:
            return list(exchange.bindings)
        routes = (exchange.routes.get(name) or exchange.match(name) for name in list(self._broker.queues))
        return [binding for route in routes for binding in route.bindings]

    def _binding(self, exchange: Exchange, binding: Binding) -> ManagedObject:
        parts = (name_of("exchange", exchange.name), name_of("queue", binding.queue.name), binding.key)
        return ManagedObject(self.classes["binding"], ",".join(parts), (exchange, binding))

    def _find_binding(self, key: str) -> ManagedObject | None:
        prefix = name_of("exchange", "")
        for exchange in list(self._broker.exchanges.values()):
            if key.startswith(f"{prefix}{exchange.name},"):
                for binding in self._bindings(exchange):
                    found = self._binding(exchange, binding)
                    if found.key == key:
                        return found
        return None
