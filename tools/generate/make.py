"""Creates a fleet: its stores, serially or in several processes, and the list of them.

    OUT/MANIFEST.jsonl       a line about the fleet (kind "fleet": the request), then one about each store
        STORE-0001/          a store
        STORE-0001.jsonl     its content: see below

MANIFEST.jsonl is written last: if it exists, the fleet is complete.
"""

from __future__ import annotations

import posixpath
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Final

from qstore.store.errors import StoreError
from qstore.store.key_value import CatalogueError
from qstore.store.recovery.prepared import DISTRIBUTED, LOCAL
from qstore.tools.console.rows import JsonLines
from qstore.tools.console.workers import in_processes
from qstore.tools.generate.damage import PlantedDamage, Planter, Target, target
from qstore.tools.generate.fleet import (
    DamageKind,
    FleetSpec,
    PlanError,
    QueuePlan,
    StoreFormat,
    StorePlan,
    body_text,
    factory,
    message_id,
    plan_store,
    queue_prefix,
    seeded,
)
from qstore.tools.generate.history import QueueHistory
from qstore.tools.generate.stores import GeneratedStore, new_store, pinned_environment

MANIFEST: Final = "MANIFEST.jsonl"
#: Bytes that must be free in addition to the journals: for each store (its catalogue), and in the lists for each
#: message that they may contain.
_PER_STORE: Final = 2 << 20
_PER_MESSAGE: Final = 180


def fleet_fields(spec: FleetSpec) -> Fields:
    """The line about the fleet."""
    values = {each.name: getattr(spec, each.name) for each in fields(spec)}
    sizes = values.pop("sizes")
    shape = {name: getattr(sizes, name) for name in ("kind", "first", "last", "sigma")}
    return {"kind": "fleet", **values, "sizes": shape}


def planned_fields(spec: FleetSpec) -> Iterator[Fields]:
    """The planned values of each store, without creating it. Raises PlanError."""
    for number in range(1, spec.stores + 1):
        plan = plan_store(spec, number)
        yield {
            "kind": "store",
            "name": plan.name,
            "format": spec.format.value,
            "seed": plan.seed,
            "queues": len(plan.queues),
            "expected_messages": sum(0 if each.messages == 0 else each.expected for each in plan.queues),
            "journal_bytes": plan.size,
            "damage": sum(each.damage is not None for each in plan.queues),
        }


def check_place(directory: str, planned: list[Fields]) -> None:
    """Check that the fleet can be created there.

    Args:
        directory: the fleet's directory.
        planned: `planned_fields` of it.

    Raises:
        StoreError: the directory is not empty, its parent does not exist, or there is not enough space.
        OSError: it cannot be examined.
    """
    path = Path(directory)
    parent = path if path.is_dir() else path.parent
    if not parent.is_dir():
        raise StoreError(f"{parent}: there is no such directory; create it first")
    if path.is_dir():
        if next(path.iterdir(), None) is not None:
            raise StoreError(f"{directory}: not empty; name a directory that does not exist, or is empty")
    elif path.exists() or path.is_symlink():
        raise StoreError(f"{directory}: not a directory; name one that does not exist, or is empty")
    needed = sum(each["journal_bytes"] + _PER_STORE + each["expected_messages"] * _PER_MESSAGE for each in planned)
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise StoreError(f"{parent}: {needed:,} bytes are needed, and {free:,} are free; request less, or make room")


def make_fleet(spec: FleetSpec, directory: str, jobs: int, written: Callable[[int], None]) -> Iterator[Fields]:
    """Create the fleet, after `check_place`.

    Args:
        spec: the request.
        directory: the fleet's directory.
        jobs: number of worker processes.
        written: called with the number of bytes of journals that were created.

    Yields:
        The line about each store, in order, when it and all before it are complete.

    Raises:
        PlanError, StoreError, CatalogueError, OSError: it cannot be created; nothing is left of it.
        WorkerKilledError: likewise; completed stores remain, without a list.
    """
    is_new = not Path(directory).is_dir()
    Path(directory).mkdir(exist_ok=True)
    try:
        yield from _create_stores(spec, directory, jobs, written)
    except (PlanError, StoreError, CatalogueError, OSError):
        _remove(Path(directory), keep=not is_new)
        raise


def _remove(directory: Path, *, keep: bool) -> None:
    """Remove the files of a fleet, and the directory except for `keep`, as far as possible."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if not keep:
        with suppress(OSError):
            directory.rmdir()


def _create_stores(spec: FleetSpec, directory: str, jobs: int, written: Callable[[int], None]) -> Iterator[Fields]:
    """Create the stores, and then their list. Yields the line about each store."""
    lines = [fleet_fields(spec)]
    stores = _alone(spec, directory, written) if jobs == 1 else _in_parallel(spec, directory, jobs, written)
    for store in stores:
        lines.append(store)
        yield store
    building = Path(posixpath.join(directory, f"{MANIFEST}.new"))  # the name appears when the content is complete
    with building.open("xb") as file:
        output = JsonLines(file)
        for line in lines:
            output.show(line)
        output.flush()
    building.rename(posixpath.join(directory, MANIFEST))


def _alone(spec: FleetSpec, directory: str, written: Callable[[int], None]) -> Iterator[Fields]:
    for number in range(1, spec.stores + 1):
        yield make_store(spec, directory, number, written)


def _in_parallel(spec: FleetSpec, directory: str, jobs: int, written: Callable[[int], None]) -> Iterator[Fields]:
    """Each process creates one store after the other, whichever is next."""
    first, made = 1, dict[int, Fields]()
    create = partial(_created, spec, directory)
    with closing(in_processes(create, range(1, spec.stores + 1), min(jobs, spec.stores))) as stores:
        for number, created in stores:
            if isinstance(created, Exception):
                raise created
            made[number] = created
            written(plan_store(spec, number).size)
            while first in made:
                yield made.pop(first)
                first += 1


def _created(spec: FleetSpec, directory: str, number: int) -> tuple[int, Fields | Exception]:
    """Create a store in a process. Returns its number, and the line about it or the error."""
    try:
        return number, make_store(spec, directory, number)
    except (PlanError, StoreError, CatalogueError, OSError) as error:
        return number, error


# ---- one store, and the list of its content ----
#
# The list has one JSON object per line, written as the store is. Its names are those of `qstore-dump`.
#
#     queue          name, exchange, num_jfiles, file_size, sent, taken, rolled_back, commits, aborts, refused,
#                    outstanding, in_doubt_enqueues, in_doubt_dequeues; then of this queue each
#     message        queue, rid, state, xid, message_id, body_length: what a restart would deliver, in that order
#     transaction    xid, state, enqueues, dequeues: those in doubt
#     damage         queue, what, file (below the store's directory), offset, length, rid, expected: "damage", or
#                    "notice" for what a crash leaves
#     store          name, format, seed and the totals: the last line, which is also in the fleet's list
#
# Messages lost by planted damage are included: the list describes the store before the damage.

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
