"""Durability: journals, the catalogue, transactions, recovery.

The only room that reads and writes message data on disk. It knows nothing of sockets, sessions or exchanges.

The names below are the API for programs that store messages without a broker (USING.md in this folder has an
example). They are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qstore.formats.broker_records.topology import Binding, Exchange, Queue
    from qstore.formats.rhm.geometry import Geometry
    from qstore.formats.rhm.headers import data_crc
    from qstore.store.environment import Environment, system_environment, tool_environment
    from qstore.store.errors import StoreDamagedError, StoreError
    from qstore.store.live.message_store import MessageStore
    from qstore.store.live.queue_journal import QueueJournal
    from qstore.store.live.snapshot import copy_snapshot
    from qstore.store.log_lines import Level, LogLine
    from qstore.store.parameters import OnDamage, StoreParameters

__all__ = [
    "Binding",
    "Environment",
    "Exchange",
    "Geometry",
    "Level",
    "LogLine",
    "MessageStore",
    "OnDamage",
    "Queue",
    "QueueJournal",
    "StoreDamagedError",
    "StoreError",
    "StoreParameters",
    "copy_snapshot",
    "data_crc",
    "system_environment",
    "tool_environment",
]

_MODULES: Final = {
    "qstore.formats.broker_records.topology": ("Binding", "Exchange", "Queue"),
    "qstore.formats.rhm.geometry": ("Geometry",),
    "qstore.formats.rhm.headers": ("data_crc",),
    "qstore.store.environment": ("Environment", "system_environment", "tool_environment"),
    "qstore.store.errors": ("StoreDamagedError", "StoreError"),
    "qstore.store.live.message_store": ("MessageStore",),
    "qstore.store.live.queue_journal": ("QueueJournal",),
    "qstore.store.live.snapshot": ("copy_snapshot",),
    "qstore.store.log_lines": ("Level", "LogLine"),
    "qstore.store.parameters": ("OnDamage", "StoreParameters"),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
