"""Expected content of a store after its process was killed: worked out from what the process had said, and compared.

An operation is `effective` if it was reported as done, not if it was refused, and may be either way if it had only
begun. What was found decides those; a transaction is found done as a whole or not at all. From then on it is settled:
a message that is found once is there until it is taken, and one that is not found never comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from qstore.store.journal.recovery import LIVE, LOCKED, PENDING

Place = tuple[str, int]
"""A queue's name and a message's token."""


class Message(NamedTuple):
    """A message that was found."""

    rid: int
    token: int | None
    state: int
    xid: str | None


@dataclass(slots=True)
class Found:
    """What a store holds.

    Attributes:
        queues: name -> messages, in order.
        in_doubt: the transactions that wait for their outcome.
        topology: exchanges by name, bindings by key.
    """

    queues: dict[str, list[Message]]
    in_doubt: set[str]
    topology: set[str]


@dataclass(slots=True)
class Operation:
    """Something that was begun. `effective` is None while that is unknown."""

    kind: str
    puts: list[Place]
    takes: list[Place]
    effective: bool | None = None
    more: dict[str, Any] = field(default_factory=dict)
    decision: Operation | None = None


class Ledger:
    """What is known about one store."""

    def __init__(self) -> None:
        self.there: dict[Place, int] = {}  # message -> its rid
        self.resources: set[str] = set()  # queues, exchanges and keys of bindings
        self.ends: dict[str, tuple[str, str]] = {}  # a binding's exchange and queue
        self.highest = 0  # of the record ids seen in runs before this one
        self.rids: dict[int, Place] = {}
        self.branches: dict[str, Operation] = {}
        self.operations: dict[int, Operation] = {}
        self.counts = {"done": 0, "open": 0, "refused": 0}

    # ---- what a process says ----

    def hear(self, line: Mapping[str, Any]) -> None:
        """One line of the process."""
        if "do" in line:
            self._begun(line)
        elif "got" in line:
            for place, rid in zip(self.operations[line["got"]].puts, line["rids"], strict=True):
                self._has_rid(place, rid)
        elif "refused" in line:
            self.operations[line["refused"]].effective = False
            self.counts["refused"] += 1
        elif "done" in line:
            assert line["error"] is None, line
            self.operations[line["done"]].effective = True
            self.counts["done"] += 1

    def _begun(self, line: Mapping[str, Any]) -> None:
        puts = [(queue, token) for queue, token in line["puts"]]
        takes = [(queue, token) for queue, token in line["takes"]]
        operation = self.operations[line["do"]] = Operation(line["kind"], puts, takes, more=dict(line))
        if operation.kind == "prepare":
            assert line["xid"] not in self.branches
            self.branches[line["xid"]] = operation
        elif operation.kind == "decide":
            self.branches[line["xid"]].decision = operation

    def _has_rid(self, place: Place, rid: int) -> None:
        assert self.rids.setdefault(rid, place) == place, f"record id {rid} was given out twice"
        assert rid > self.highest or place in self.there, f"the new record id {rid} is not above the old ones"

    # ---- what is found ----

    def settle(self, found: Found) -> None:
        """Compare, and take over what was found. AssertionError if it cannot be."""
        self._settle_topology(found)
        messages = self._found_messages(found)
        settled = self._settle_branches(found, messages)
        must, may = self._expected(messages, found)
        lost = {place for place in must if place not in messages and place[0] in found.queues}
        assert not lost, f"lost: {sorted(lost)}"
        unexpected = messages.keys() - must - may
        assert not unexpected, f"back to life, or never begun: {sorted(unexpected)}"
        held = {place: state for place, state in settled.items() if place[0] in found.queues}
        self._check_states(messages, held)
        self.there = {place: message.rid for place, message in messages.items()}
        self.counts["open"] += sum(operation.effective is None for operation in self.operations.values())
        self.operations.clear()
        self.highest = max(self.rids, default=0)
        self.branches = {xid: self.branches[xid] for xid in found.in_doubt}
        for branch in self.branches.values():
            branch.effective, branch.decision = True, None

    def _found_messages(self, found: Found) -> dict[Place, Message]:
        messages: dict[Place, Message] = {}
        for name, rows in found.queues.items():
            assert [row.rid for row in rows] == sorted(row.rid for row in rows), f"{name} is out of order"
            tokens = [row.token for row in rows]
            assert None not in tokens, f"{name} has a message with wrong content"
            assert tokens == sorted(set(tokens)), f"{name} is not in the order of enqueueing"  # type: ignore[type-var]
            for row in rows:
                place = (name, row.token or 0)
                messages[place] = row
                self._has_rid(place, row.rid)
        return messages

    def _settle_branches(self, found: Found, messages: Mapping[Place, Message]) -> dict[Place, tuple[int, str]]:
        """What the prepared transactions hold, and how: message -> state, xid."""
        assert found.in_doubt <= self.branches.keys()
        held: dict[Place, tuple[int, str]] = {}
        for xid, branch in self.branches.items():
            decision = branch.decision
            decided = decision is not None and decision.effective
            if xid in found.in_doubt:
                assert branch.effective is not False, f"{xid} was refused, and is prepared"
                assert not decided, f"{xid} was decided, and is in doubt"
                branch.effective = True
                held.update(dict.fromkeys(branch.puts, (PENDING, xid)))
                held.update(dict.fromkeys(branch.takes, (LOCKED, xid)))
            elif decision is None:
                assert not branch.effective, f"{xid} was prepared, and is forgotten"
                branch.effective = False
            else:
                branch.effective = bool(decision.more["commits"])
        return held

    def _expected(self, messages: Mapping[Place, Message], found: Found) -> tuple[set[Place], set[Place]]:
        """The messages that must be there, and those that may."""
        in_doubt, queues = found.in_doubt, found.queues.keys()
        must, may = set(self.there), set[Place]()
        of_this_run = {id(operation) for operation in self.operations.values()}
        branches = [branch for branch in self.branches.values() if id(branch) not in of_this_run]
        for operation in [*branches, *self.operations.values()]:
            if operation.kind == "prepare" and (operation.more["xid"] in in_doubt or not operation.effective):
                (must.update if operation.effective else must.difference_update)(operation.puts)
                continue
            if operation.kind == "commit" and operation.effective is None:
                self._decide_by_evidence(operation, messages, must, queues)
            if operation.effective is None:
                may.update(operation.puts)
                may.update(place for place in operation.takes if place in must)
                must.difference_update(operation.takes)
            elif operation.effective:
                must.update(operation.puts)
                must.difference_update(operation.takes)
                may.difference_update(operation.takes)
        return must, may

    @staticmethod
    def _decide_by_evidence(
        operation: Operation, messages: Mapping[Place, Message], must: set[Place], queues: Set[str]
    ) -> None:
        """A local transaction whose end was not reported: all of it, or nothing. Deleted queues tell nothing."""
        takes = [place for place in operation.takes if place in must or place in messages]
        evidence = {place in messages for place in operation.puts if place[0] in queues}
        evidence |= {place not in messages for place in takes if place[0] in queues}
        assert len(evidence) < 2, f"half a transaction: {operation}"
        if evidence:
            operation.effective = evidence.pop()

    @staticmethod
    def _check_states(messages: Mapping[Place, Message], held: Mapping[Place, tuple[int, str]]) -> None:
        for place, message in messages.items():
            assert (message.state, message.xid) == held.get(place, (LIVE, None)), (place, message)
        assert held.keys() <= messages.keys()

    def _settle_topology(self, found: Found) -> None:
        """Queues, exchanges and bindings: each is as the last change that is done left it, or a later one made it."""
        found_now = found.topology | found.queues.keys()
        possible = {name: {True} for name in self.resources}
        for operation in self.operations.values():
            makes = operation.kind in ("create-queue", "create-exchange", "bind")
            if not makes and operation.kind not in ("delete-queue", "delete-exchange", "unbind"):
                continue
            name = str(operation.more["name"])
            if operation.kind == "bind":
                self.ends[name] = (operation.more["exchange"], operation.more["queue"])
            gone_with_it = [] if makes else [key for key, both in self.ends.items() if name in both]
            for each in (name, *gone_with_it):
                states = possible.setdefault(each, {False})
                if operation.effective:
                    states.clear()
                states.add(makes)
        for name, states in possible.items():
            assert (name in found_now) in states, f"{name}: {'there' if name in found_now else 'not there'}"
        assert found_now <= possible.keys()
        self.resources = found_now
