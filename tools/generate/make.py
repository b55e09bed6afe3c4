"""Creates one store of a fleet, and next to it the list of its content: `STORE-0001/` and `STORE-0001.jsonl`.

The list has one JSON object per line, written as the store is. Its names are those of `qstore-dump`.

    queue          name, exchange, num_jfiles, file_size, sent, taken, rolled_back, commits, aborts, refused,
                   outstanding, in_doubt_enqueues, in_doubt_dequeues; then of this queue each
    message        queue, rid, state, xid, message_id, body_length: what a restart would deliver, in that order
    transaction    xid, state, enqueues, dequeues: those in doubt
    damage         queue, what, file (below the store's directory), offset, length, rid, expected: "damage", or "notice"
                   for what a crash leaves
    store          name, format, seed and the totals: the last line, which is also in the fleet's list

Messages lost by planted damage are included: the list describes the store before the damage.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from qstore.store.recovery.prepared import DISTRIBUTED, LOCAL
from qstore.tools.console.json_lines import JsonLines
from qstore.tools.generate.damage import PlantedDamage, Planter, Target, target
from qstore.tools.generate.fleet import DamageKind, FleetSpec, QueuePlan, StoreFormat, StorePlan, factory, plan_store
from qstore.tools.generate.history import QueueHistory
from qstore.tools.generate.messages import body_text, message_id, queue_prefix
from qstore.tools.generate.seeds import seeded
from qstore.tools.generate.stores import GeneratedStore, new_store, pinned_environment

_BUILDING: Final = "/rhm.new/"  # in the paths of a store of version 2 before it is complete
_JOURNAL_FILES: Final = frozenset((".jdat", ".jrnl"))
_SUMMED: Final = (
    "sent", "taken", "rolled_back", "commits", "aborts", "refused",
    "outstanding", "in_doubt_enqueues", "in_doubt_dequeues",
)  # fmt: skip

Fields = dict[str, Any]


def make_store(spec: FleetSpec, directory: str, number: int, written: Callable[[int], None] | None = None) -> Fields:
    """Create the store with that number in its own directory below `directory`.

    Args:
        spec: the fleet's request.
        directory: the fleet's directory.
        number: from 1.
        written: called after each queue with the size of its journal's files.

    Returns:
        The last line of its list.

    Raises:
        PlanError, StoreError, CatalogueError, OSError: it cannot be created; a part of it may exist.
    """
    plan = plan_store(spec, number)
    path = posixpath.join(directory, plan.name)
    Path(path).mkdir()
    store = new_store(spec, pinned_environment(spec.seed, number), path)
    try:
        with Path(f"{path}.jsonl").open("xb") as file:
            lines = JsonLines(file)
            fields = _Making(spec, plan, path, store, lines).all(written or (lambda _: None))
            lines.show(fields)
            lines.flush()
    finally:
        store.close()
    return fields


class _Making:
    """The creation of one store."""

    def __init__(self, spec: FleetSpec, plan: StorePlan, path: str, store: GeneratedStore, lines: JsonLines) -> None:
        self._spec, self._plan, self._path = spec, plan, path
        self._store, self._lines = store, lines
        self._text = body_text(spec.seed)
        self._last_rid = 0
        self._enqueues: dict[bytes, int] = {}
        self._dequeues: dict[bytes, int] = {}
        self._sums: Fields = dict.fromkeys(_SUMMED, 0)
        self._targets: list[Target] = []
        self._ended: list[tuple[bytes, bool]] = []

    def _take_rid(self) -> int:
        self._last_rid += 1
        return self._last_rid

    def all(self, written: Callable[[int], None]) -> Fields:
        """Create everything. Returns the line about the store."""
        for queue in self._plan.queues:
            self._queue(queue)
            written(queue.size)
        # Every transaction with operations is prepared, in the order of the first queue that it touched.
        xids = list(dict.fromkeys([*self._enqueues, *self._dequeues]))
        # In version 2 a transaction of a single journal is never prepared.
        ended = [] if self._spec.format is StoreFormat.QSTORE else self._ended
        if xids or ended:
            self._prepare(xids, ended)
        source = seeded(self._spec.seed, "damage", self._plan.number)
        damage = Planter(self._spec.format, source, self._targets).plant()
        self._store.finish(self._plan, self._last_rid)
        for xid in xids:
            self._lines.show(self._transaction(xid))
        for each in damage:
            self._lines.show(self._damage(each))
        return {
            "kind": "store",
            "name": self._plan.name,
            "format": self._spec.format.value,
            "seed": self._plan.seed,
            "queues": len(self._plan.queues),
            **self._sums,
            "transactions": len(xids),
            "damage": sum(each.kind is not DamageKind.TORN for each in damage),
            "torn": sum(each.kind is DamageKind.TORN for each in damage),
            "journal_bytes": journals_size(self._path),
        }

    def _queue(self, queue: QueuePlan) -> None:
        """Create a queue's journal and its content."""
        spec, plan = self._spec, self._plan
        journal = self._store.journal(queue)
        maker = factory(plan, queue, self._text)
        history = QueueHistory(spec, plan.number, queue, journal, maker, self._take_rid)
        history.run()
        journal.finish()
        if history.last_ended is not None:
            self._ended.append(history.last_ended)
        if spec.damage:
            self._targets.append(target(spec.format, queue, journal, history))
        for xid, number in history.open_enqueues.items():
            self._enqueues[xid] = self._enqueues.get(xid, 0) + number
        for xid, number in history.open_dequeues.items():
            self._dequeues[xid] = self._dequeues.get(xid, 0) + number
        self._show(queue, history)

    def _show(self, queue: QueuePlan, history: QueueHistory) -> None:
        counts = history.counts
        in_doubt_dequeues = sum(history.open_dequeues.values())
        in_doubt_enqueues = sum(history.open_enqueues.values())
        fields = {
            "sent": counts.sent,
            "taken": counts.taken,
            "rolled_back": counts.rolled_back,
            "commits": counts.commits,
            "aborts": counts.aborts,
            "refused": counts.refused,
            "outstanding": counts.sent - counts.taken - counts.rolled_back - in_doubt_enqueues - in_doubt_dequeues,
            "in_doubt_enqueues": in_doubt_enqueues,
            "in_doubt_dequeues": in_doubt_dequeues,
        }
        for name, number in fields.items():
            self._sums[name] += number
        exchange = self._plan.exchanges[queue.exchange - 1] if queue.exchange else ""
        geometry = {"num_jfiles": queue.geometry.files, "file_size": queue.geometry.file_size}
        self._lines.show({"kind": "queue", "name": queue.name, "exchange": exchange, **geometry, **fields})
        prefix, show = queue_prefix(self._plan.seed, queue.number), self._lines.show
        for message in history.live():
            show(
                {
                    "kind": "message",
                    "queue": queue.name,
                    "rid": message.rid,
                    "state": message.state,
                    "xid": message.xid.hex() if message.xid else None,
                    "message_id": str(message_id(prefix, message.place)),
                    "body_length": message.size,
                }
            )

    def _prepare(self, in_doubt: list[bytes], ended: list[tuple[bytes, bool]]) -> None:
        """The prepared list: remains of the last transactions that were ended, and then those in doubt."""
        journal, take_rid = self._store.prepared_list(), self._take_rid
        for xid, commit in ended:
            prepared = take_rid()
            journal.enqueue(prepared, LOCAL, xid)
            journal.flush()
            journal.dequeue(take_rid(), prepared, xid, commit_decision=commit)
            journal.flush()
            journal.finish_transaction(take_rid(), xid, commit=commit)
        for xid in in_doubt:
            journal.enqueue(self._take_rid(), DISTRIBUTED, xid)
            journal.flush()
        journal.finish()

    def _transaction(self, xid: bytes) -> Fields:
        return {
            "kind": "transaction",
            "xid": xid.hex(),
            "state": "in-doubt",
            "enqueues": self._enqueues.get(xid, 0),
            "dequeues": self._dequeues.get(xid, 0),
        }

    def _damage(self, planted: PlantedDamage) -> Fields:
        return {
            "kind": "damage",
            "queue": planted.queue,
            "what": planted.kind.value,
            "file": posixpath.relpath(planted.path.replace(_BUILDING, "/rhm/"), self._path),
            "offset": planted.offset,
            "length": planted.length,
            "rid": planted.rid,
            "expected": "notice" if planted.kind is DamageKind.TORN else "damage",
        }


def journals_size(path: str) -> int:
    """Size of all journals' files of a store; a catalogue's size depends on RocksDB's state."""
    files = (each for each in Path(path).rglob("*") if each.suffix in _JOURNAL_FILES and not each.is_symlink())
    return sum(each.stat().st_size for each in files)
