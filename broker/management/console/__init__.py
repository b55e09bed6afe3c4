"""A console: queries the management agents of a broker by QMF version 2, calls methods, and receives events.

    with Console("localhost:5672") as console:
        for queue in console.query("queue", where=["gt", "msgDepth", 1000]):
            print(queue["name"], queue["msgDepth"])
        console.call("broker", "create", type="queue", name="orders", properties={"durable": True})
        for event in console.events():
            print(event.name, event.values)

`Console` blocks; `aio.Console` has the same calls for asyncio. `README.md` describes the modules.
"""

from __future__ import annotations

from qstore.broker.management.console.blocking import Console, Indications
from qstore.broker.management.console.schema import Argument, Method, Property, Schema
from qstore.broker.management.console.values import (
    AgentError,
    AgentInfo,
    AnswerError,
    Data,
    Event,
    ManagementError,
    NoAgentError,
    NoAnswerError,
    NoObjectError,
    ObjectId,
    SchemaId,
)

__all__ = [
    "AgentError",
    "AgentInfo",
    "AnswerError",
    "Argument",
    "Console",
    "Data",
    "Event",
    "Indications",
    "ManagementError",
    "Method",
    "NoAgentError",
    "NoAnswerError",
    "NoObjectError",
    "ObjectId",
    "Property",
    "Schema",
    "SchemaId",
]
