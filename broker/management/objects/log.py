"""The class log: the operational log, which is switched on and off without a restart.

It is this broker's own: qpidd has none. There is one object. The rules of the log are methods of the class broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter as of
from typing import TYPE_CHECKING, Final

from qstore.broker.management.methods import logging
from qstore.broker.management.objects.element import ManagedClass, arg, method, prop, table
from qstore.broker.management.objects.names import BROKER, BROKER_NAME, BROKER_REFERENCE

if TYPE_CHECKING:
    from qstore.broker.log.status_log import StatusLog
    from qstore.broker.management.managed_broker import ManagedBroker


def _objects(managed: ManagedBroker) -> Iterable[tuple[str, StatusLog]]:
    return () if managed.status is None else ((BROKER.name_of(BROKER_NAME), managed.status),)


LOG_CLASS: Final = ManagedClass(
    "qstore",
    "log",
    (
        BROKER_REFERENCE,
        prop("status", "bool", "RO", of("is_on"), "The operational log is on"),
    ),
    (),
    table(
        (
            method(
                "setStatus",
                "Switch the operational log on or off, until the broker ends",
                (arg("status", "bool", "I", "True to switch it on"),),
                logging.set_status,
            ),
        )
    ),
    objects=_objects,
)
