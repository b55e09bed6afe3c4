"""Events, heartbeats, and what becomes of connections, as lines and as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from qstore.broker.management.console import AgentInfo, Event
from qstore.tools.management.amounts import plain, shown

_OWN: Final = "qpid-printevents"
_NOTICE: Final = 5
_WORDS: Final = ("EMER", "ALERT", "CRIT", "ERROR", "WARN", "NOTIC", "INFO", "DEBUG")


class Happened(NamedTuple):
    """What is printed on one line.

    Attributes:
        timestamp: when, in nanoseconds since 1970.
        severity: 0 (emergency) to 7 (debug).
        package, name: of the class of events.
        values: its arguments.
        broker: where it comes from.
        kind: of the JSON object: event, heartbeat, connected, disconnected.
        agent: the agent's name; empty if there is none.
    """

    timestamp: int
    severity: int
    package: str
    name: str
    values: Mapping[str, Any]
    broker: str
    kind: str
    agent: str = ""

    def line(self, *, has_broker: bool) -> str:
        """As a line; with the broker, if there are several."""
        severity = _WORDS[self.severity] if 0 <= self.severity < len(_WORDS) else str(self.severity)
        values = {**self.values, "broker": self.broker} if has_broker else self.values
        words = [f"{shown(name)}={_quoted(shown(value))}" for name, value in values.items()]
        moment = time.ctime(self.timestamp / 1e9)
        return " ".join([f"{moment} {severity:<5} {shown(self.package)}:{shown(self.name)}", *words])

    def as_json(self) -> dict[str, Any]:
        """As JSON."""
        return {**self._asdict(), "values": plain(dict(self.values))}


def _quoted(text: str) -> str:
    return f"'{text}'" if " " in text and not text.startswith(("{", "[")) else text


def of_event(event: Event, broker: str) -> Happened:
    """An event."""
    package, name = event.schema_id.package, event.schema_id.name
    return Happened(event.timestamp, event.severity, package, name, event.values, broker, "event", event.agent)


def of_heartbeat(agent: AgentInfo, broker: str) -> Happened:
    """A heartbeat of an agent."""
    values = {"agent": agent.name, "interval": agent.heartbeat_interval}
    return Happened(agent.timestamp, _NOTICE, _OWN, "agentHeartbeat", values, broker, "heartbeat", agent.name)


def of_connection(broker: str, *, is_open: bool, reason: str = "") -> Happened:
    """A connection that was opened, or lost."""
    values = {"broker": broker} | ({"reason": reason} if reason else {})
    name, kind = ("brokerConnected", "connected") if is_open else ("brokerDisconnected", "disconnected")
    return Happened(time.time_ns(), _NOTICE, _OWN, name, values, broker, kind)
