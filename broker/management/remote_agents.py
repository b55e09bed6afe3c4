"""Agents that others attach to this broker: processes that have objects to manage, and speak QMF version 1.

    1. an agent sends A (attach) with its label, and gets a: its banks, the parts of the ids of its objects
    2. it binds a queue to qpid.management with agent.BROKER BANK.AGENT BANK: requests for it go there, and the broker
       routes them
    3. it sends p and q: its packages and classes. The broker requests the schema of each (S) and keeps it (s), and
       announces them to consoles as its own
    4. it publishes its objects, events and heartbeats under console.…, which the broker routes

Consoles see it as an object of class agent. It is gone when its connection is. When a console binds to the exchange,
each agent is sent x, so that it publishes everything.

Agents and what they announce are limited, in number and in bytes; what exceeds a limit is ignored, and logged once.

Sources: Qpid management design notes (seed 001), lines 814-901; Qpid wiki, "QMF Protocol" (seed 004,
lines 20044-20121).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from qstore.broker.log.logs import log_of
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.qmf.v1 import Dialect

_LOG: Final = log_of("Management")

MAX_AGENTS: Final = 100
MAX_CLASSES: Final = 1000  # of all agents
MAX_SCHEMA_BYTES: Final = 1 << 16
MAX_ALL_SCHEMAS_BYTES: Final = 8 << 20
BROKER_BANK: Final = 1
_FIRST_BANK: Final = 10
_MAX_BANK: Final = 0xFFFFFFF
_MAX_BANK_OF_AM1: Final = 0xFFFFFF

ClassKey = tuple[str, str, bytes]
"""Package, class and hash."""


class RemoteAgent(NamedTuple):
    """An attached agent.

    Attributes:
        peer: the address of its connection.
        label: its label.
        system_id: the machine it runs on.
        broker_bank, agent_bank: its banks.
        dialect: the form of version 1 that it speaks.
    """

    peer: str
    label: str
    system_id: UUID
    broker_bank: int
    agent_bank: int
    dialect: Dialect = Dialect.AM2


class RemoteClass(NamedTuple):
    """A class of an agent.

    Attributes:
        kind: of objects or of events (`messages`).
        bank: the agent that has announced it.
        dialect: the form in which it is described.
        schema: its schema; None while that was not received.
    """

    kind: int
    bank: int
    dialect: Dialect
    schema: bytes | None = None


class RemoteAgents:
    """The agents that are attached to one broker, and their classes."""

    def __init__(self) -> None:
        self._agents: dict[int, RemoteAgent] = {}
        self._classes: dict[ClassKey, RemoteClass] = {}
        self._asked: dict[int, ClassKey] = {}  # sequence of a request for a schema -> which
        self._sequence = self._bytes = 0
        self._is_full = False

    def __iter__(self) -> Iterator[RemoteAgent]:
        return iter(list(self._agents.values()))

    # ---- agents ----

    def attach(
        self, peer: str, label: str, system_id: UUID, bank: int, dialect: Dialect = Dialect.AM2
    ) -> RemoteAgent | None:
        """An agent attaches itself and requests a bank; 0 for any. None if there are too many."""
        last = _MAX_BANK if dialect is Dialect.AM2 else _MAX_BANK_OF_AM1
        for each in self:
            if each.peer == peer and each.label == label:
                return each
        if len(self._agents) >= MAX_AGENTS:
            self._full("agents")
            return None
        if not _FIRST_BANK <= bank <= last or bank in self._agents:
            bank = next(each for each in range(_FIRST_BANK, _MAX_BANK) if each not in self._agents)
        agent = self._agents[bank] = RemoteAgent(peer, label, system_id, BROKER_BANK, bank, dialect)
        _LOG.notice('Management agent "%s" attached from %s, bank %d', label, peer, bank)
        return agent

    def of_bank(self, bank: int) -> RemoteAgent | None:
        """The agent with this bank."""
        return self._agents.get(bank)

    def of_peer(self, peer: str) -> RemoteAgent | None:
        """The first agent of a connection."""
        return next((each for each in self._agents.values() if each.peer == peer), None)

    def disconnected(self, peer: str) -> None:
        """A connection is closed: its agents are gone, with the classes that only they had."""
        for agent in [each for each in self._agents.values() if each.peer == peer]:
            del self._agents[agent.agent_bank]
            for key in [key for key, each in self._classes.items() if each.bank == agent.agent_bank]:
                self._bytes -= len(self._classes.pop(key).schema or b"")
            self._asked = {number: key for number, key in self._asked.items() if key in self._classes}
            _LOG.notice('Management agent "%s" of %s is gone', agent.label, peer)

    # ---- classes ----

    def packages(self, dialect: Dialect) -> list[str]:
        """The packages of which a schema is known in this form, each once."""
        return list(dict.fromkeys(package for (package, _, _), _ in self._described(dialect)))

    def classes(self, package: str, dialect: Dialect) -> list[tuple[ClassKey, RemoteClass]]:
        """The classes of a package whose schema is known in this form."""
        return [(key, each) for key, each in self._described(dialect) if key[0] == package]

    def find(self, key: ClassKey, dialect: Dialect) -> RemoteClass | None:
        """The class with this key, if its schema is known in this form."""
        found = self._classes.get(key)
        return None if found is None or found.schema is None or found.dialect is not dialect else found

    def of_agent(self, agent: RemoteAgent) -> list[tuple[ClassKey, RemoteClass]]:
        """The classes that an agent has described."""
        return [(key, each) for key, each in self._described(agent.dialect) if each.bank == agent.agent_bank]

    def _described(self, dialect: Dialect) -> Iterator[tuple[ClassKey, RemoteClass]]:
        for key, each in self._classes.items():
            if each.schema is not None and each.dialect is dialect:
                yield key, each

    def announced(self, agent: RemoteAgent, kind: int, key: ClassKey) -> int | None:
        """An agent announces a class. Returns the sequence of the request for its schema; None if it is known."""
        if key in self._classes:
            return None
        if len(self._classes) >= MAX_CLASSES:
            self._full("classes of agents")
            return None
        self._classes[key] = RemoteClass(kind, agent.agent_bank, agent.dialect)
        self._sequence = self._sequence % 0xFFFFFFFF + 1
        self._asked[self._sequence] = key
        return self._sequence

    def described(self, agent: RemoteAgent, sequence: int, key: ClassKey, schema: bytes) -> bool:
        """An agent has sent a schema. Returns whether it was requested, and is kept."""
        found = self._classes.get(key)
        if self._asked.get(sequence) != key or found is None or found.bank != agent.agent_bank:
            return False
        del self._asked[sequence]
        if len(schema) > MAX_SCHEMA_BYTES or self._bytes + len(schema) > MAX_ALL_SCHEMAS_BYTES:
            self._full("bytes of schemas of agents")
            return False
        self._bytes += len(schema)
        self._classes[key] = found._replace(schema=schema)
        return True

    def _full(self, what: str) -> None:
        if not self._is_full:
            self._is_full = True
            _LOG.warning("There are too many %s for this broker: more are ignored", what)


def agent_key(agent: RemoteAgent) -> str:
    """The key of requests for an agent."""
    banks = f"{agent.broker_bank}.{agent.agent_bank}" if agent.dialect is Dialect.AM2 else f"{agent.agent_bank}"
    return f"agent.{banks}"
