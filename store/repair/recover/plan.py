"""The plan of a recovered store: decided before anything is written, to be shown, and to be checked afterwards.

Queues keep their names and, if possible, their numbers; a name that a new queue could not have is kept, too. A queue
whose name no record can hold, and messages that belong to no queue, get a queue called `lost.found.<id>`, if orphans
are to be recovered; <id> is that of the journal's directory or the queue's number.

Damage that costs nothing is reported, but does not count as a loss: see `Damage.costs`.

The source may be journals without a store: the remains if the catalogue, or all but some directories, are lost. Their
info files hold names and sizes, and in version 2 the whole queue record; for a linearstore the files themselves do.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from qstore.formats.broker_records.topology import (
    Binding,
    Bridge,
    Exchange,
    GeneralObject,
    Link,
    Queue,
    full_name,
    is_storable_name,
    split_name,
)
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import MAX_PAGES, PAGE_SIZE, Geometry
from qstore.formats.rhm.jinf import TPL_BASE_NAME
from qstore.store.builders.store_build import JournalSource, QueueToBuild
from qstore.store.catalogue.topology import LOST_AND_FOUND, Topology
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.disk import Disk
from qstore.store.inspect.layout import (
    StoreKind,
    StoreLayout,
    UnusableInputError,
    find_journals,
    find_layout,
    report_recovery,
)
from qstore.store.inspect.offline import RecoveredQueue, RecoveredStore, RecoveredTransaction
from qstore.store.journal.directory import journal_base_names
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery, Outcome, Transaction
from qstore.store.parameters import QUEUE_ARGUMENTS, ParameterError, StoreParameters, queue_geometry
from qstore.store.recovery.journal_content import content_at_most, fitting_geometry, too_much

# ---- the source ----


def find_source(disk: Disk, path: str) -> StoreLayout:
    """Find the source at `path`: a store, a journal, a journal file, or a directory with journals somewhere below it.

    Raises:
        UnusableInputError: nothing that can be recovered.
        OSError: it cannot be examined.
    """
    try:
        return find_layout(disk, path)
    except UnusableInputError:
        if not disk.is_directory(path):
            raise
        layout = StoreLayout(StoreKind.LOOSE, path)
        find_journals(disk, path, layout)
        if not layout.journals:
            raise
        report_recovery(disk, layout)
    _find_prepared_list(disk, layout)
    return layout


def _find_prepared_list(disk: Disk, layout: StoreLayout) -> None:
    """Find the prepared list by the name of its files."""
    for place in list(layout.journals):
        if journal_base_names(disk.names(place.directory)) != [TPL_BASE_NAME]:
            continue
        layout.journals.remove(place)
        if layout.prepared_list is None:
            layout.prepared_list = place.directory
        else:
            layout.notices.append(f"{place.directory}: a second transaction prepared list, which is not read")


# ---- the plan ----

_MAX_NUMBER: Final = 1 << 62  # higher numbers must remain


class OrphanPolicy(Enum):
    """How to treat messages that belong to no queue."""

    REPORT = "report"
    ASIDE = "aside"
    RECOVER = "recover"


class PlannedQueue(NamedTuple):
    """A queue of the new store.

    Attributes:
        name: its new name.
        queue: the queue to build.
        found: the queue that was found; of an orphan that of its journal.
        deliverable, in_doubt: number of its messages, unless some cannot be read again.
    """

    name: str
    queue: QueueToBuild
    found: RecoveredQueue
    deliverable: int
    in_doubt: int


class Orphan(NamedTuple):
    """Messages that belong to no queue.

    Attributes:
        what: its kind, as text.
        found: its journal.
        messages: number of messages.
        transaction: of records that were never prepared, theirs; None for a whole journal.
        becomes: the queue into which it is recovered; None if it is not.
    """

    what: str
    found: RecoveredQueue
    messages: int
    transaction: Transaction | None
    becomes: str | None


class LostBinding(NamedTuple):
    """A binding that the new store will not have; None for unknown parts."""

    exchange: str | None
    queue: str
    key: str | None
    what: str


@dataclass(slots=True)
class RecoveryPlan:
    """The content of the recovered store.

    Attributes:
        recovered: its source.
        queues: its queues, in the order in which they are built.
        exchanges, bindings, general: the topology, by number; bindings with their exchange's number.
        in_doubt: transactions that stay in doubt.
        orphans: messages that belong to no queue.
        lost_exchanges, lost_bindings: those known to be missing.
        damage: the damage found in the source.
        notices: one line each.
    """

    recovered: RecoveredStore
    queues: list[PlannedQueue] = field(default_factory=list)
    exchanges: dict[int, Exchange] = field(default_factory=dict)
    bindings: list[tuple[int, Binding]] = field(default_factory=list)
    general: dict[int, Link | Bridge | GeneralObject] = field(default_factory=dict)
    in_doubt: list[bytes] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    lost_exchanges: list[tuple[str, str]] = field(default_factory=list)
    lost_bindings: list[LostBinding] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def transactions(self) -> list[RecoveredTransaction]:
        """The transactions that were open."""
        return self.recovered.transactions

    @property
    def size(self) -> int:
        """Bytes of all journals to be created."""
        return sum(queue.queue.geometry.files * queue.queue.geometry.file_size for queue in self.queues)


def make_plan(recovered: RecoveredStore, orphans: OrphanPolicy, parameters: StoreParameters) -> RecoveryPlan:
    """Plan the recovery of a store.

    Args:
        recovered: the source.
        orphans: how to treat orphans.
        parameters: default geometry of queues.

    Raises:
        StoreError: a queue's messages fit into no journal.
    """
    planning = _Planning(recovered, orphans, parameters)
    return planning.plan()


class _Planning:
    def __init__(self, recovered: RecoveredStore, orphans: OrphanPolicy, parameters: StoreParameters) -> None:
        self._recovered, self._policy, self._parameters = recovered, orphans, parameters
        self._topology = recovered.store.topology or Topology()
        self._names: set[str] = set()
        self._numbers: dict[int, int] = {}  # of queues: old -> new
        self._next = 1 + max((number for number in self._topology.queues if number < _MAX_NUMBER), default=0)
        self._plan = RecoveryPlan(recovered)

    def plan(self) -> RecoveryPlan:
        """Decide everything."""
        plan, store = self._plan, self._recovered.store
        plan.damage.extend(store.damage)
        plan.notices.extend(store.notices)
        self._names.update(name for queue in self._recovered.queues if is_storable_name(name := queue.name))
        self._queues()
        for queue in self._recovered.orphans:
            if queue.recovery is not None and len(queue.recovery.messages):
                self._orphan(queue)
        self._unprepared()
        self._exchanges()
        self._bindings()
        for number, general in self._topology.general.items():
            plan.general[self._free(number, plan.general)] = general
        plan.in_doubt.extend(each.xid for each in plan.transactions if each.outcome is Outcome.IN_DOUBT)
        self._version_1()
        return plan

    # ---- queues ----

    def _queues(self) -> None:
        """Plan the queues in the catalogue, then those known only from a journal."""
        known = list(self._topology.queues)
        taken: set[str] = set()
        for position, queue in enumerate(self._recovered.queues):
            number = known[position] if position < len(known) else 0
            name, path = queue.name, self._recovered.store.layout.path
            problem = None
            if not is_storable_name(name):
                problem = Damage(path, None, None, DamageKind.QUEUE_NAME_LENGTH, length=len(name))
            elif name in taken:
                problem = Damage(path, None, None, DamageKind.QUEUE_TWICE, number=None, queue=name)
            if problem is not None and (queue.recovery is None or not len(queue.recovery.messages)):
                self._plan.damage.append(problem)
                continue
            new = self._number(number)
            if problem is not None:
                name = full_name(split_name(name)[0], self._unique(str(new)))
                self._plan.damage.append(problem.with_effect(Effect.MESSAGES_GO_UNBOUND, renamed=name))
            elif position < len(known):
                self._numbers[number] = new
            taken.add(name)
            record = replace(queue.record or Queue(name), name=name)
            self._add(new, record, queue, queue.recovery)

    def _number(self, wanted: int) -> int:
        """A queue's number: its old one if possible."""
        if 0 < wanted < _MAX_NUMBER:
            return wanted
        self._next += 1
        return self._next - 1

    def _free(self, number: int, taken: dict[int, Exchange] | dict[int, Link | Bridge | GeneralObject]) -> int:
        """A number for an exchange or object: its old one if possible."""
        return number if 0 < number < _MAX_NUMBER else 1 + max((1, *(each for each in taken), *self._high(taken)))

    def _high(self, taken: object) -> Iterator[int]:
        known = self._topology.exchanges if taken is self._plan.exchanges else self._topology.general
        return (number for number in known if number < _MAX_NUMBER)

    def _unique(self, identity: str) -> str:
        """A unique name for an object without a usable one."""
        base = LOST_AND_FOUND + re.sub(r"[^!-~]", "_", identity)[:200]
        name, count = base, 1
        while name in self._names:
            count += 1
            name = f"{base}-{count}"
        self._names.add(name)
        return name

    def _add(self, number: int, record: Queue, found: RecoveredQueue, recovery: JournalRecovery | None) -> None:
        journal = found.journal
        source = None if journal is None or recovery is None else JournalSource(journal, recovery)
        geometry = self._geometry(record, journal)
        queue = QueueToBuild(number, record, source, geometry)
        deliverable = in_doubt = 0
        if source is not None and recovery is not None:
            alignment = self._parameters.flush_alignment
            content = content_at_most(*source, lambda most: most.fits(geometry, alignment))
            fitting = fitting_geometry(content, geometry, alignment)
            if fitting is None:
                raise too_much(record.name, content)
            queue = queue._replace(geometry=fitting, content=content)
            deliverable = found._replace(recovery=recovery).deliverable
            in_doubt = len(recovery.messages) - deliverable
        self._plan.queues.append(PlannedQueue(record.name, queue, found, deliverable, in_doubt))

    def _geometry(self, record: Queue, journal: Journal | None) -> Geometry:
        """The old journal's geometry, if it has such files; otherwise that of the queue's arguments."""
        if journal is not None and journal.format is not JournalFormat.LINEAR and not journal.is_single_file:
            geometry = journal.files.geometry
            is_legal = geometry.files > 1 and geometry.data_size <= MAX_PAGES * PAGE_SIZE
            if is_legal and (
                not journal.files.files or any(file.size >= geometry.file_size for file in journal.files.files)
            ):
                return geometry
        try:
            arguments = {option.name: record.arguments.get(option.name) for option in QUEUE_ARGUMENTS}
            values = {name: value.value for name, value in arguments.items() if value is not None}
            return queue_geometry(values, self._parameters)[0]
        except ParameterError:
            return self._parameters.geometry

    # ---- orphans ----

    def _orphan(self, queue: RecoveredQueue) -> None:
        """A journal that no queue has."""
        assert queue.journal is not None
        assert queue.recovery is not None
        name = None
        if self._policy is OrphanPolicy.RECOVER:
            name = self._unique(posixpath.basename(queue.journal.path))
            record = self._recovered.store.record_in_info(queue.journal) or Queue(name)
            self._add(self._number(0), replace(record, name=name), queue, queue.recovery)
            self._settled(queue.journal.path, None)
        elif self._policy is OrphanPolicy.ASIDE:
            self._settled(queue.journal.path, Effect.KEPT_ASIDE)
        what = "a journal that is not in the catalogue"
        self._plan.orphans.append(Orphan(what, queue, len(queue.recovery.messages), None, name))

    def _settled(self, path: str, effect: Effect | None) -> None:
        """Change, or remove, the effect of the damage that an orphan is."""
        for damage in self._recovered.store.orphaned:
            if damage.file == path:
                self._plan.damage.remove(damage)
                if effect is not None:
                    self._plan.damage.append(damage.with_effect(effect))

    def _unprepared(self) -> None:
        """Messages enqueued by transactions that were never prepared."""
        for planned in list(self._plan.queues):
            found = planned.found
            if found.recovery is None or not any(each.enqueues for each in found.recovery.unprepared):
                continue
            name = self._unique(str(planned.queue.number)) if self._policy is OrphanPolicy.RECOVER else None
            recovery = JournalRecovery()
            for transaction in found.recovery.unprepared:
                enqueues = [each for each in transaction if each.is_enqueue]
                for each in enqueues:
                    recovery.messages.add(each.rid, each.place)
                what = "messages of a transaction that was never prepared"
                self._plan.orphans.append(Orphan(what, found, len(enqueues), transaction, name))
            if name is not None:
                self._add(self._number(0), Queue(name), found, recovery)

    # ---- topology ----

    def _exchanges(self) -> None:
        plan = self._plan
        for number, exchange in self._topology.exchanges.items():
            plan.exchanges[self._free(number, plan.exchanges)] = exchange
        known = {exchange.name for exchange in plan.exchanges.values()}
        for queue in plan.queues:
            alternate = queue.queue.record.alternate_exchange
            if alternate and alternate not in known and not split_name(alternate)[1].startswith("amq."):
                known.add(alternate)
                plan.lost_exchanges.append((alternate, f'queue "{queue.name}" names it as its alternate exchange'))

    def _bindings(self) -> None:
        plan, topology = self._plan, self._topology
        numbers = {exchange.name: number for number, exchange in plan.exchanges.items()}
        for binding in topology.bindings:
            record = binding.record
            new = self._numbers.get(record.queue_id)
            exchange = binding.exchange.name
            if new is None or exchange not in numbers:
                what = "its queue is omitted"
                plan.lost_bindings.append(LostBinding(exchange, record.queue_name, record.key, what))
            else:
                plan.bindings.append((numbers[exchange], replace(record, queue_id=new)))
        bound = {binding.queue_name for _, binding in plan.bindings}
        if self._recovered.store.topology is None or not topology.complete or topology.damage:
            state = "the catalogue is lost" if self._recovered.store.topology is None else "the catalogue is damaged"
            for queue in plan.queues:
                if queue.name not in bound and not queue.name.startswith(LOST_AND_FOUND):
                    what = f"{state}: bindings of this queue, if it had any, must be created again"
                    plan.lost_bindings.append(LostBinding(None, queue.name, None, what))

    # ---- reporting ----

    def _version_1(self) -> None:
        """Add a notice, where it matters, that journals without checksums hide some damage."""
        for queue in self._plan.queues:
            journal = queue.found.journal
            if journal is not None and journal.format is JournalFormat.VERSION_1 and len(journal.gaps):
                self._plan.notices.append(
                    f"{journal.path}: version 1 has no checksums: after damage, anything like a record with its "
                    "tail is taken for one, and corrupted bytes within a message are not detected"
                )
