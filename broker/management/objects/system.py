"""The classes of the machine and the process: system, memory, vhost, agent, log and security.

`memory` shows the figures of the C library's allocator; without one that reports them, it has only a name. `log` (the
operational log, switched on and off without a restart) and `security` (failed logins, and the certificate, which is
read again as by SIGHUP) are this broker's own: qpidd has none. There is one object of each, except attached agents.

Source: the QMF schema of qpidd's broker.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from operator import attrgetter as of
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.log.status_rules import read_rules
from qstore.broker.management.objects.broker import started
from qstore.broker.management.schema import (
    AGENT,
    BROKER,
    BROKER_NAME,
    BROKER_REFERENCE,
    CONNECTION,
    MEMORY,
    SYSTEM,
    VHOST,
    ClassName,
    ManagedClass,
    always,
    arg,
    method,
    prop,
    stat,
    vhost_key,
    vhost_reference,
)
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import InvalidArgumentError, NotImplementedByBrokerError
from qstore.broker.model.heap import Allocated, allocated
from qstore.broker.security.tls import TlsConfigurationError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedMap, typed_map, typed_value

if TYPE_CHECKING:
    from qstore.broker.log.status_log import StatusLog
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.remote_agents import RemoteAgent
    from qstore.broker.management.request import Arguments
    from qstore.broker.management.schema import Results
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.memory import MemoryCeiling
    from qstore.broker.model.virtual_host import VirtualHost
    from qstore.broker.network.server import Server


# ---- system, memory, vhost, agent ----


def _system(managed: ManagedBroker) -> Iterable[tuple[str, ManagedBroker]]:
    return ((str(managed.system_id), managed),)


class _Host(NamedTuple):
    """A virtual host, and its broker."""

    managed: ManagedBroker
    host: VirtualHost

    @property
    def about(self) -> TypedMap:
        """Its description and tags, if set."""
        return typed_map(dict(self.managed.broker.virtual_hosts.about(self.host.name)))

    @property
    def limits(self) -> TypedMap:
        """Its limits, if set."""
        return typed_map(dict(self.managed.broker.virtual_hosts.limits(self.host.name)))


def _hosts(managed: ManagedBroker) -> Iterable[tuple[str, _Host]]:
    return [(vhost_key(name), _Host(managed, host)) for name, host in managed.broker.hosts.items()]


def _host_created(of_host: _Host) -> float:
    return of_host.host.created_at


def _brokers(managed: ManagedBroker) -> Iterable[tuple[str, ManagedBroker]]:
    return ((BROKER.name_of(BROKER_NAME), managed),)


def _memory(managed: ManagedBroker) -> Iterable[tuple[str, ManagedBroker]]:
    return ((BROKER_NAME, managed),)


def _look_at_memory(_managed: ManagedBroker) -> Allocated:
    return allocated()


def _agents(managed: ManagedBroker) -> Iterable[tuple[str, RemoteAgent]]:
    return [(CONNECTION.name_of(agent.peer), agent) for agent in managed.agents()]


# fmt: off
SYSTEM_CLASS: Final = ManagedClass(
    SYSTEM,
    properties=(
        prop("systemId", "uuid", "RC index", of("system_id")),
        prop("osName", "sstr", "RO", lambda _: platform.system(), "Operating System Name"),
        prop("nodeName", "sstr", "RO", lambda _: platform.node(), "Node Name"),
        prop("release", "sstr", "RO", lambda _: platform.release()),
        prop("version", "sstr", "RO", lambda _: platform.version()),
        prop("machine", "sstr", "RO", lambda _: platform.machine()),
    ),
    objects=_system, created=started,
)
# fmt: on


# fmt: off
MEMORY_CLASS: Final = ManagedClass(
    MEMORY,
    properties=(
        prop("name", "sstr", "RC index", always(BROKER_NAME), "Index for the broker at this agent"),
        prop("malloc_arena", "uint64", "RO optional", of("arena"),
             "Total size of memory allocated with `sbrk' by `malloc', in bytes"),
        prop("malloc_ordblks", "uint64", "RO optional", of("ordblks"), "The number of chunks not in use"),
        prop("malloc_hblks", "uint64", "RO optional", of("hblks"), "Total number of chunks allocated with `mmap'"),
        prop("malloc_hblkhd", "uint64", "RO optional", of("hblkhd"),
             "Total size of memory allocated with `mmap', in bytes"),
        prop("malloc_uordblks", "uint64", "RO optional", of("uordblks"),
             "Total size of memory occupied by chunks handed out by `malloc'"),
        prop("malloc_fordblks", "uint64", "RO optional", of("fordblks"),
             "Total size of memory occupied by free (not in use) chunks"),
        prop("malloc_keepcost", "uint64", "RO optional", of("keepcost"),
             "The size of the top-most releasable chunk that normally borders the end of the heap"),
    ),
    objects=_memory, look=_look_at_memory, created=started,
)
# fmt: on


# fmt: off
VHOST_CLASS: Final = ManagedClass(
    VHOST,
    properties=(
        prop("brokerRef", "objId", "RC index parent", always(BROKER.reference(BROKER_NAME)), "", "", "Broker"),
        prop("name", "sstr", "RC index", of("host.name")),
        prop("federationTag", "sstr", "RO", of("managed.federation_tag")),
    ),
    objects=_hosts, created=_host_created, belongs=lambda each: (each.host.name, ""),
)

HOST_CLASS: Final = ManagedClass(
    ClassName("qstore", "virtual_host"),
    properties=(
        prop("vhostRef", "objId", "RC index parent", lambda each: vhost_reference(each.host.name), "", "", "Vhost"),
        prop("name", "sstr", "RC index", of("host.name")),
        prop("about", "map", "RO", of("about"), "Description and tags, if set"),
        prop("limits", "map", "RO", of("limits"), "max-connections and max-queues, if set"),
    ),
    statistics=(
        stat("connectionCount", "count32", of("host.connection_count"), "Open connections", "connection"),
        stat("queueCount", "count64", lambda each: len(each.host.queues), "Queues", "queue"),
    ),
    objects=_hosts, created=_host_created, belongs=lambda each: (each.host.name, ""),
)
# fmt: on


# fmt: off
AGENT_CLASS: Final = ManagedClass(
    AGENT,
    properties=(
        prop("connectionRef", "objId", "RO index", lambda agent: CONNECTION.reference(agent.peer), "", "",
             "Connection"),
        prop("label", "sstr", "RO", of("label"), "Label for agent"),
        prop("registeredTo", "objId", "RO", always(BROKER.reference(BROKER_NAME)), "Broker agent is registered to", "",
             "Broker"),
        prop("systemId", "uuid", "RO", of("system_id"), "Identifier of system where agent resides"),
        prop("brokerBank", "uint32", "RO", of("broker_bank"), "Assigned object-id broker bank"),
        prop("agentBank", "uint32", "RO", of("agent_bank"), "Assigned object-id agent bank"),
    ),
    objects=_agents,
)
# fmt: on


# ---- log ----


async def set_status(managed: ManagedBroker, status: StatusLog, arguments: Arguments, caller: Caller) -> Results:
    """Switch the operational log on or off."""
    _check(managed, caller)
    if "status" not in arguments:
        raise InvalidArgumentError("give the argument status: true or false")
    status.switch(is_on=arguments.flag("status"))
    return {}


async def set_status_rules(managed: ManagedBroker, status: StatusLog, arguments: Arguments, caller: Caller) -> Results:
    """Choose the objects that the operational log is about."""
    _check(managed, caller)
    try:
        status.rules = read_rules(arguments.texts("rules"))
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None
    return {}


_MAX_LINES: Final = 1000  # of the log in a reply
_MAX_CHARACTERS: Final = 256 << 10


async def recent_lines(managed: ManagedBroker, _status: StatusLog, arguments: Arguments, caller: Caller) -> Results:
    """The last lines of the log, as its outputs have them."""
    _check(managed, caller)
    if managed.log is None:
        raise NotImplementedByBrokerError("the log of this broker cannot be read")
    number, most = arguments.count("after"), arguments.count("count") or _MAX_LINES
    first, lines = managed.log.recent.since(number, min(most, _MAX_LINES), _MAX_CHARACTERS)
    return {"first": first, "lines": lines, "last": managed.log.recent.last}


def _check(managed: ManagedBroker, caller: Caller) -> None:
    managed.broker.authorization.check(caller, Action.UPDATE, ObjectType.BROKER, "")


def _logs(managed: ManagedBroker) -> Iterable[tuple[str, StatusLog]]:
    return () if managed.status is None else ((BROKER.name_of(BROKER_NAME), managed.status),)


# fmt: off
LOG_CLASS: Final = ManagedClass(
    ClassName("qstore", "log"),
    properties=(
        BROKER_REFERENCE,
        prop("status", "bool", "RO", of("is_on"), "The operational log is on"),
        prop("statusRules", "list", "RO", lambda each: tuple(typed_value(rule.text) for rule in each.rules),
             "The rules for the objects that it is about"),
    ),
    methods=(
        method("setStatus", "Switch the operational log on or off until the broker stops", (
            arg("status", "bool", "I", "True to switch it on"),
        ), set_status),
        method("setStatusRules", "Choose the objects that the operational log is about, until the broker stops", (
            arg("rules", "list", "I", "Such as qpid.virtualhost.*.queue.orders=OFF; the last that matches counts"),
        ), set_status_rules),
        method("recent", "The last lines of the log, which are kept in memory", (
            arg("after", "uint64", "I", "Only lines after the one with this number"),
            arg("count", "uint32", "I", "Maximum number of lines"),
            arg("first", "uint64", "O", "The number of the first of them"),
            arg("lines", "list", "O", "The lines"),
            arg("last", "uint64", "O", "The number of the newest line"),
        ), recent_lines),
    ),
    objects=_logs,
)
# fmt: on


# ---- alarms ----

_MAX_NAMES: Final = 100  # of journals in an alarm


class _Alarms(NamedTuple):
    """What the broker is short of."""

    memory: MemoryCeiling
    disk: Mapping[str, Any]
    slowed: list[str]


def _look_at_alarms(managed: ManagedBroker) -> _Alarms:
    store, server = managed.broker.store, managed.security
    disk = _NO_DISK if store is None else store.disk_metrics()
    slowed = [] if server is None else server.clients.pressure.tight_journals(_MAX_NAMES)
    return _Alarms(managed.broker.memory, disk, slowed)


_NO_DISK: Final = {"free": -1, "total": 0, "kept": 0, "failure": ""}


# fmt: off
ALARMS_CLASS: Final = ManagedClass(
    ClassName("qstore", "alarms"),
    properties=(
        BROKER_REFERENCE,
    ),
    statistics=(
        stat("memoryLimit", "uint64", of("memory.limit"), "Limit of the memory of all messages; 0 for none", "octet"),
        stat("memoryUsed", "uint64", of("memory.used"), "Memory used, when last counted", "octet"),
        stat("memoryState", "sstr", lambda view: view.memory.state.name.lower(),
             "ample; short: publishers are slowed down; full: messages are refused"),
        stat("diskFree", "int64", lambda view: view.disk["free"], "Free space on the disk of the store; -1 if unknown",
             "octet"),
        stat("diskTotal", "uint64", lambda view: view.disk["total"], "Size of that disk", "octet"),
        stat("diskKept", "uint64", lambda view: view.disk["kept"], "Journals do not grow when less space is free",
             "octet"),
        stat("slowedJournals", "list", lambda view: tuple([typed_value(each) for each in view.slowed]),
             "Queues whose publishers are slowed down: their journals cannot grow"),
        stat("storeFailure", "lstr", lambda view: view.disk["failure"], "Why the store can no longer write"),
    ),
    objects=_brokers, look=_look_at_alarms,
)
# fmt: on


# ---- security ----


async def reload(managed: ManagedBroker, security: Server, _arguments: Arguments, caller: Caller) -> Results:
    """Read the certificate again; if it cannot be used, the previous one stays in use."""
    managed.broker.authorization.check(caller, Action.UPDATE, ObjectType.BROKER, "")
    try:
        return {"warnings": security.reload_security()}
    except TlsConfigurationError as error:
        raise InvalidArgumentError(f"{error}; the previous certificate stays in use") from error


def _security(managed: ManagedBroker) -> Iterable[tuple[str, Server]]:
    return () if managed.security is None else ((BROKER.name_of(BROKER_NAME), managed.security),)


# fmt: off
SECURITY_CLASS: Final = ManagedClass(
    ClassName("qstore", "security"),
    properties=(
        BROKER_REFERENCE,
    ),
    statistics=(
        stat("failedLogins", "count64", lambda view: view.authentication.failures, "Logins that have failed", "login"),
        stat("certificateExpires", "absTime", lambda view: round(view.certificate_expires * 1e9),
             "When the first certificate of the broker's chain expires; 0 without TLS"),
    ),
    methods=(
        method("reload", "Read the TLS certificate, its authorities and the keytab again, for new connections", (
            arg("warnings", "list", "O", "Warnings about them, one string each"),
        ), reload),
    ),
    objects=_security,
)
# fmt: on
