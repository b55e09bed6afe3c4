"""The classes system, memory, vhost and agent: the machine, the process, its only virtual host, and attached agents.

What memory tells is the C library's (`allocator`); without one that tells it, memory has only a name.

Source: the QMF schema of qpidd's broker.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from operator import attrgetter as of
from typing import TYPE_CHECKING, Final

from qstore.broker.management.objects.broker import started
from qstore.broker.management.objects.element import ManagedClass, always, prop
from qstore.broker.management.objects.names import (
    AGENT,
    BROKER,
    BROKER_NAME,
    CONNECTION,
    MEMORY,
    SYSTEM,
    VHOST,
    VHOST_KEY,
)
from qstore.broker.model.allocator import Allocated, allocated

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.qmf1.remote_agents import RemoteAgent


def _system(managed: ManagedBroker) -> Iterable[tuple[str, ManagedBroker]]:
    return ((str(managed.system_id), managed),)


def _vhost(managed: ManagedBroker) -> Iterable[tuple[str, ManagedBroker]]:
    return ((VHOST_KEY, managed),)


def _memory(managed: ManagedBroker) -> Iterable[tuple[str, ManagedBroker]]:
    return ((BROKER_NAME, managed),)


def _look_at_memory(_managed: ManagedBroker) -> Allocated:
    return allocated()


def _agents(managed: ManagedBroker) -> Iterable[tuple[str, RemoteAgent]]:
    return [(CONNECTION.name_of(agent.peer), agent) for agent in managed.agents()]


SYSTEM_CLASS: Final = ManagedClass(
    SYSTEM.package,
    SYSTEM.name,
    (
        prop("systemId", "uuid", "RC index", of("system_id")),
        prop("osName", "sstr", "RO", lambda _: platform.system(), "Operating System Name"),
        prop("nodeName", "sstr", "RO", lambda _: platform.node(), "Node Name"),
        prop("release", "sstr", "RO", lambda _: platform.release()),
        prop("version", "sstr", "RO", lambda _: platform.version()),
        prop("machine", "sstr", "RO", lambda _: platform.machine()),
    ),
    objects=_system,
    created=started,
)

MEMORY_CLASS: Final = ManagedClass(
    MEMORY.package,
    MEMORY.name,
    (
        prop("name", "sstr", "RC index", always(BROKER_NAME), "Index for the broker at this agent"),
        prop(
            "malloc_arena",
            "uint64",
            "RO optional",
            of("arena"),
            "Total size of memory allocated with `sbrk' by `malloc', in bytes",
        ),
        prop("malloc_ordblks", "uint64", "RO optional", of("ordblks"), "The number of chunks not in use"),
        prop("malloc_hblks", "uint64", "RO optional", of("hblks"), "Total number of chunks allocated with `mmap'"),
        prop(
            "malloc_hblkhd",
            "uint64",
            "RO optional",
            of("hblkhd"),
            "Total size of memory allocated with `mmap', in bytes",
        ),
        prop(
            "malloc_uordblks",
            "uint64",
            "RO optional",
            of("uordblks"),
            "Total size of memory occupied by chunks handed out by `malloc'",
        ),
        prop(
            "malloc_fordblks",
            "uint64",
            "RO optional",
            of("fordblks"),
            "Total size of memory occupied by free (not in use) chunks",
        ),
        prop(
            "malloc_keepcost",
            "uint64",
            "RO optional",
            of("keepcost"),
            "The size of the top-most releasable chunk that normally borders the end of the heap",
        ),
    ),
    objects=_memory,
    look=_look_at_memory,
    created=started,
)

VHOST_CLASS: Final = ManagedClass(
    VHOST.package,
    VHOST.name,
    (
        prop("brokerRef", "objId", "RC index parent", always(BROKER.reference(BROKER_NAME)), "", "", "Broker"),
        prop("name", "sstr", "RC index", always("/")),
        prop("federationTag", "sstr", "RO", of("federation_tag")),
    ),
    objects=_vhost,
    created=started,
)

AGENT_CLASS: Final = ManagedClass(
    AGENT.package,
    AGENT.name,
    (
        prop(
            "connectionRef", "objId", "RO index", lambda agent: CONNECTION.reference(agent.peer), "", "", "Connection"
        ),
        prop("label", "sstr", "RO", of("label"), "Label for agent"),
        prop(
            "registeredTo",
            "objId",
            "RO",
            always(BROKER.reference(BROKER_NAME)),
            "Broker agent is registered to",
            "",
            "Broker",
        ),
        prop("systemId", "uuid", "RO", of("system_id"), "Identifier of system where agent resides"),
        prop("brokerBank", "uint32", "RO", of("broker_bank"), "Assigned object-id broker bank"),
        prop("agentBank", "uint32", "RO", of("agent_bank"), "Assigned object-id agent bank"),
    ),
    objects=_agents,
)
