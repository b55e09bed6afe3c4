"""The other views of `qpid-stat`: the broker, one queue, memory, access control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from qstore.broker.management.console import Console, Data, NoObjectError
from qstore.tools.console.tables import Column
from qstore.tools.management.amounts import clock, duration, full, shown
from qstore.tools.management.listing import json_object, print_json, print_listing
from qstore.tools.statistics.views import yes

_ACL: Final = "org.apache.qpid.acl"

#: Row -> the statistics of messages and of bytes; an empty name for none.
_STATISTICS: Final[tuple[tuple[str, str, str], ...]] = (
    ("queue-depth", "msgDepth", "byteDepth"),
    ("total-enqueues", "msgTotalEnqueues", "byteTotalEnqueues"),
    ("total-dequeues", "msgTotalDequeues", "byteTotalDequeues"),
    ("persistent-enqueues", "msgPersistEnqueues", "bytePersistEnqueues"),
    ("persistent-dequeues", "msgPersistDequeues", "bytePersistDequeues"),
    ("transactional-enqueues", "msgTxnEnqueues", "byteTxnEnqueues"),
    ("transactional-dequeues", "msgTxnDequeues", "byteTxnDequeues"),
    ("flow-to-disk-depth", "msgFtdDepth", "byteFtdDepth"),
    ("flow-to-disk-enqueues", "msgFtdEnqueues", "byteFtdEnqueues"),
    ("flow-to-disk-dequeues", "msgFtdDequeues", "byteFtdDequeues"),
    ("acquires", "acquires", ""),
    ("releases", "releases", ""),
    ("discards-no-route", "discardsNoRoute", ""),
    ("discards-ttl-expired", "discardsTtl", ""),
    ("discards-limit-overflow", "discardsOverflow", ""),
    ("discards-ring-overflow", "discardsRing", ""),
    ("discards-lvq-replace", "discardsLvq", ""),
    ("discards-subscriber-reject", "discardsSubscriber", ""),
    ("discards-purged", "discardsPurge", ""),
    ("reroutes", "reroutes", ""),
    ("abandoned", "abandoned", ""),
    ("abandoned-via-alt", "abandonedViaAlt", ""),
)
_OF_BROKER: Final = frozenset(("discards-no-route", "abandoned", "abandoned-via-alt"))


def _columns(*titles: str, numbers: Sequence[str] = ()) -> list[Column]:
    return [Column(title, number=title in numbers) for title in titles]


def _print_statistics(title: str, data: Data, *, is_broker: bool) -> None:
    rows = [
        (name, full(data.get(messages)), full(data.get(octets)) if octets else "")
        for name, messages, octets in _STATISTICS
        if is_broker or name not in _OF_BROKER
    ]
    print_listing(title, _columns("Statistic", "Messages", "Bytes", numbers=("Messages", "Bytes")), rows)


def _blank() -> None:
    click.echo()


def show_broker(console: Console, *, is_json: bool) -> None:
    """The broker: what it has, and its totals."""
    broker = console.find("broker")
    counts = {name: sum(1 for _ in console.query(name)) for name in ("connection", "session", "exchange", "queue")}
    if is_json:
        print_json([json_object(broker) | {f"{name}Count": count for name, count in counts.items()}])
        return
    titles = ("uptime", "cluster", "connections", "sessions", "exchanges", "queues")
    row = (duration(broker.get("uptime")), "<standalone>", *map(str, counts.values()))
    print_listing("Broker Summary:", _columns(*titles), [row])
    _blank()
    _print_statistics("Aggregate Broker Statistics:", broker, is_broker=True)


def show_queue(console: Console, name: str, *, is_json: bool) -> bool:
    """One queue. Returns whether it exists."""
    try:
        queue = console.find(f"queue:{name}")
    except NoObjectError:
        return False
    if is_json:
        print_json([json_object(queue)])
        return True
    titles = ("Name", "Durable", "AutoDelete", "Exclusive", "FlowStopped", "FlowStoppedCount", "Consumers", "Bindings")
    flags = [yes(queue.get(each)) or "N" for each in ("durable", "autoDelete", "exclusive", "flowStopped")]
    counts = [shown(queue.get(each)) for each in ("flowStoppedCount", "consumerCount", "bindingCount")]
    cells = [shown(queue.get("name")), *flags, *counts]
    print_listing("Properties:", _columns(*titles), [cells])
    _blank()
    optional = [("arguments", shown(queue.get("arguments"))), ("alt-exchange", shown(queue.get("altExchange")))]
    print_listing("Optional Properties:", _columns("Property", "Value"), optional)
    _blank()
    _print_statistics("Statistics:", queue, is_broker=False)
    return True


def show_memory(console: Console, *, is_json: bool) -> None:
    """The memory of the broker's process."""
    for data in console.query("memory"):
        if is_json:
            print_json([json_object(data)])
            continue
        rows = [(shown(name), full(value)) for name, value in data.values.items() if name != "name"]
        print_listing("Broker Memory Statistics:", _columns("Statistic", "Value", numbers=("Value",)), rows)


#: Row -> the property of access control.
_ACL_ROWS: Final = (
    ("policy-file", "policyFile"),
    ("enforcing", "enforcingAcl"),
    ("has-transfer-acls", "transferAcl"),
    ("last-acl-load", "lastAclLoad"),
    ("acl-denials", "aclDenyCount"),
    ("connection-denials", "connectionDenyCount"),
    ("queue-quota-denials", "queueQuotaDenyCount"),
    ("max-connections", "maxConnections"),
    ("max-connections-per-ip", "maxConnectionsPerIp"),
    ("max-connections-per-user", "maxConnectionsPerUser"),
    ("max-queues-per-user", "maxQueuesPerUser"),
)


def show_acl(console: Console, *, is_json: bool) -> bool:
    """Access control. Returns whether the broker has it."""
    objects = list(console.query("acl", package=_ACL))
    for data in objects:
        if is_json:
            print_json([json_object(data)])
            continue
        rows = [(title, _acl_cell(data.get(name), is_time=name == "lastAclLoad")) for title, name in _ACL_ROWS]
        print_listing("ACL Policy Statistics:", _columns("Statistic", "Value"), rows)
    return bool(objects)


def _acl_cell(value: Any, *, is_time: bool) -> str:
    if isinstance(value, bool):
        return yes(value) or "N"
    return clock(value, is_long=True) if is_time and isinstance(value, int) else full(value)
