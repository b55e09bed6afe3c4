"""One history, told to the journals of a store in any format: its records have names.

orders     everything that was ever written is still there
    first … seventh, ninth, tenth      plain messages; `second` and `seventh` are taken by plain dequeues
    local put, local take (first)      a local transaction that was committed
    aborted put, aborted take (third)  one that was aborted
    branch put, branch take (fourth)   a distributed branch in doubt
    decided put, decided take (fifth)  a branch that is to commit: that was decided, and not carried out
    open put, open take (sixth)        a transaction that was never prepared
bills      a ring that went round, or a line whose head was given back; `bill 34` to `bill 39` are left
prepared   the transaction prepared list
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.broker_records.xids import encode_dtx_xid
from qstore.formats.rhm.records import COMMIT_DECISION

BODY: Final = 200  # characters: with header and tail such a message takes three blocks
BILLS: Final = 40  # messages that went through `bills` ...
UNPAID: Final = 6  # ... of which so many were left at any time
XIDS: Final = {
    "local": b"\1" + bytes(7) + b"uuid of process ",
    "aborted": b"\2" + bytes(7) + b"uuid of process ",
    "open": b"\3" + bytes(7) + b"uuid of process ",
    "closing": b"\4" + bytes(7) + b"uuid of process ",
    "branch": encode_dtx_xid(9, b"gid", b"branch"),
    "decided": encode_dtx_xid(9, b"gid", b"decided"),
}
OUTSTANDING, IN_DOUBT_PUT, IN_DOUBT_TAKE = "outstanding", "in-doubt-enqueue", "in-doubt-dequeue"
IN_DOUBT, COMMITTING, ABORTING, UNPREPARED = "in-doubt", "committing", "aborting", "unprepared"


class Record(Protocol):
    """A record as any builder places it."""

    @property
    def header(self) -> Any: ...

    @property
    def position(self) -> int: ...


class Builder(Protocol):
    """What the builders of all formats can do."""

    def enqueue(self, *, data: bytes, rid: int, xid: bytes) -> Record: ...
    def dequeue(self, *, dequeued_rid: int, rid: int, xid: bytes, flags: int) -> Record: ...
    def commit(self, *, xid: bytes, rid: int) -> Record: ...
    def abort(self, *, xid: bytes, rid: int) -> Record: ...
    def flush(self) -> None: ...
    def place(self, position: int) -> tuple[int, int]: ...


class History:
    """One journal, and what was told to it.

    Attributes:
        builder: the journal.
        queue: whose it is.
        records: name -> record.
        messages: the names of those that are messages.
        bodies: record id -> body of the message.
    """

    def __init__(self, builder: Any, queue: str, rids: Iterator[int]) -> None:
        self.builder: Builder = builder
        self.queue = queue
        self.records: dict[str, Record] = {}
        self.messages: list[str] = []
        self.bodies: dict[int, str] = {}
        self._rids = rids

    def put(self, name: str, *, xid: bytes = b"", size: int = BODY) -> None:
        """A message is enqueued; its body tells its name."""
        body = f"{self.queue}: {name} ".ljust(size, ".")
        properties = {"routing_key": self.queue, "delivery_mode": 2}
        data = encode_message(body.encode(), destination="amq.direct", delivery_properties=properties)
        placed = self._write(name, self.builder.enqueue(data=data, rid=next(self._rids), xid=xid))
        self.messages.append(name)
        self.bodies[placed.header.rid] = body

    def prepare(self, name: str, xid: bytes, *, two_phase: bool) -> None:
        """The prepared list's enqueue."""
        self._write(name, self.builder.enqueue(data=bytes([two_phase]), rid=next(self._rids), xid=xid))

    def take(self, name: str, target: str, *, xid: bytes = b"", flags: int = 0) -> None:
        """What was enqueued as `target` is dequeued."""
        rid = self.records[target].header.rid
        self._write(name, self.builder.dequeue(dequeued_rid=rid, rid=next(self._rids), xid=xid, flags=flags))

    def commit(self, name: str, xid: bytes) -> None:
        self._write(name, self.builder.commit(xid=xid, rid=next(self._rids)))

    def abort(self, name: str, xid: bytes) -> None:
        self._write(name, self.builder.abort(xid=xid, rid=next(self._rids)))

    def _write(self, name: str, placed: Record) -> Record:
        self.records[name] = placed
        self.builder.flush()
        return placed


def tell(orders: History, bills: History, prepared: History, *, count: int = BILLS, large: int = 600) -> None:
    """Write the history of the module's docstring, up to that many bills; each fourth is so much larger."""

    def transaction(name: str, target: str, *, two_phase: bool = False, decision: int | None = None) -> None:
        xid = XIDS[name]
        orders.put(f"{name} put", xid=xid)
        orders.take(f"{name} take", target, xid=xid)
        if name != "open":
            prepared.prepare(f"{name} prepare", xid, two_phase=two_phase)
        if decision is not None:
            prepared.take(f"{name} decide", f"{name} prepare", xid=xid, flags=decision)

    for name in ("first", "second", "third", "fourth", "fifth", "sixth"):
        orders.put(name)
    orders.take("take second", "second")
    transaction("local", "first", decision=COMMIT_DECISION)
    orders.commit("local commit", XIDS["local"])
    prepared.commit("local done", XIDS["local"])
    transaction("aborted", "third", decision=0)
    orders.abort("aborted abort", XIDS["aborted"])
    prepared.abort("aborted done", XIDS["aborted"])
    orders.put("seventh")
    orders.put("eighth")
    transaction("branch", "fourth", two_phase=True)
    transaction("decided", "fifth", two_phase=True, decision=COMMIT_DECISION)
    transaction("open", "sixth")
    orders.take("take seventh", "seventh")
    transaction("closing", "eighth", decision=COMMIT_DECISION)
    orders.commit("closing commit", XIDS["closing"])
    prepared.commit("closing done", XIDS["closing"])
    orders.put("ninth")
    orders.put("tenth")
    for number in range(count):
        bills.put(f"bill {number}", size=BODY + large * (number % 4 == 0) + 2048 * (number == 0))
        if number >= UNPAID:
            bills.take(f"paid {number - UNPAID}", f"bill {number - UNPAID}")


#: What the history leaves: name of a message or transaction -> its state.
LEFT: Final = {
    **dict.fromkeys(("third", "sixth", "local put", "decided put", "closing put", "ninth", "tenth"), OUTSTANDING),
    "fourth": IN_DOUBT_TAKE,
    "branch put": IN_DOUBT_PUT,
    **{f"bill {number}": OUTSTANDING for number in range(BILLS - UNPAID, BILLS)},
    "branch": IN_DOUBT,
    "decided": COMMITTING,
    "open": UNPREPARED,
}
