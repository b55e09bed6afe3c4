"""The statistics of managed objects, as the tables of management read them."""

from __future__ import annotations

from typing import Any

from qstore.broker.management.identity import Identity
from qstore.broker.management.managed_broker import ManagedBroker
from qstore.broker.management.objects.broker import BROKER_CLASS
from qstore.broker.management.objects.element import ManagedClass
from qstore.broker.model.broker import Broker


def managed(broker: Broker, version: str = "", **parts: Any) -> ManagedBroker:
    """A broker as management sees it, without a network."""
    absent: dict[str, Any] = {"ports": list, "machines": list, "shut_down": lambda: None, "log": None}
    return ManagedBroker(broker, Identity.new(), version, **(absent | parts))


def statistics(of: ManagedClass, target: object) -> dict[str, Any]:
    """The statistics of an object; watermarks as they are."""
    view = of.look(target)
    return {each.name: each.read(view) for each in of.declared}


def broker_statistics(broker: Broker) -> dict[str, Any]:
    """The statistics of a broker."""
    return statistics(BROKER_CLASS, managed(broker))
