"""What a recovered store will have: decided before anything is written, to be shown, and checked afterwards.

Queues keep their names and, where they can have them, their numbers. What no queue may be called, and what belongs to
no queue, gets a queue called `lost.found.<id>`, if orphans are to be recovered; <id> is that of the journal's directory
or the queue's number.

What is damaged and costs nothing is told, and does not count as a loss: `Damage.costs` tells the two apart.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from formats.broker_records.wiring import Binding, Bridge, Exchange, GeneralObject, Link, Queue
from formats.rhm.geometry import PAGE_SIZE, Geometry
from store.builders.store_build import JournalSource, QueueToBuild
from store.catalogue.wiring import LOST_AND_FOUND, Wiring
from store.damage import Damage
from store.damage_effects import Effect
from store.damage_kinds import DamageKind
from store.inspect.offline import RecoveredQueue, RecoveredStore, RecoveredTransaction
from store.inspect.sizing import MAX_PAGES
from store.journal.format import JournalFormat
from store.journal.journal import Journal
from store.journal.recovery import JournalRecovery, Outcome
from store.journal.transaction_map import Transaction
from store.parameters import QUEUE_ARGUMENTS, ParameterError, StoreParameters, queue_geometry
from store.recovery.journal_content import content_at_most, fitting_geometry, too_much

_MOST_NAME_BYTES: Final = 255
_MOST_NUMBER: Final = 1 << 62  # there must be higher ones


class OrphanPolicy(Enum):
    """What becomes of what belongs to no queue."""

    REPORT = "report"
    ASIDE = "aside"
    RECOVER = "recover"


class PlannedQueue(NamedTuple):
    """A queue of the new store.

    Attributes:
        name: as it will be.
        queue: what is to be built.
        found: the queue that was found; of an orphan its journal's.
        deliverable, in_doubt: messages that it will have, unless some cannot be read a second time.
    """

    name: str
    queue: QueueToBuild
    found: RecoveredQueue
    deliverable: int
    in_doubt: int


class Orphan(NamedTuple):
    """Something that belongs to no queue.

    Attributes:
        what: what it is.
        found: the journal in which it is.
        messages: how many.
        transaction: of records that were never prepared, theirs; None for a whole journal.
        becomes: the queue that it is recovered into; None if it is not.
    """

    what: str
    found: RecoveredQueue
    messages: int
    transaction: Transaction | None
    becomes: str | None


class LostBinding(NamedTuple):
    """A binding that the new store will not have; None where nothing tells."""

    exchange: str | None
    queue: str
    key: str | None
    what: str


@dataclass(slots=True)
class Plan:
    """What a recovered store will have.

    Attributes:
        recovered: what it is made of.
        queues: its queues, in the order in which they are built.
        exchanges, bindings, general: the wiring, by number; bindings with their exchange's number.
        in_doubt: transactions that stay in doubt.
        orphans: what belongs to no queue.
        lost_exchanges, lost_bindings: what is known to be missing.
        damage: what is wrong with what was read.
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
        """Bytes of all journals that will be made."""
        return sum(queue.queue.geometry.files * queue.queue.geometry.file_size for queue in self.queues)


def make_plan(recovered: RecoveredStore, orphans: OrphanPolicy, parameters: StoreParameters) -> Plan:
    """What is to be made of a store.

    Args:
        recovered: what was read.
        orphans: what becomes of what belongs to no queue.
        parameters: geometry of queues whose own says nothing.

    Raises:
        StoreError: a queue's messages fit into no journal.
    """
    planning = _Planning(recovered, orphans, parameters)
    return planning.plan()


class _Planning:
    def __init__(self, recovered: RecoveredStore, orphans: OrphanPolicy, parameters: StoreParameters) -> None:
        self._recovered, self._policy, self._parameters = recovered, orphans, parameters
        self._wiring = recovered.store.wiring or Wiring()
        self._names: set[str] = set()
        self._numbers: dict[int, int] = {}  # of queues: the one that was found -> the new one
        self._next = 1 + max((number for number in self._wiring.queues if number < _MOST_NUMBER), default=0)
        self._plan = Plan(recovered)

    def plan(self) -> Plan:
        """Decide everything."""
        plan, store = self._plan, self._recovered.store
        plan.damage.extend(store.damage)
        plan.notices.extend(store.notices)
        self._names.update(name for queue in self._recovered.queues if _is_usable(name := queue.name))
        self._queues()
        for queue in self._recovered.orphans:
            if queue.recovery is not None and len(queue.recovery.messages):
                self._orphan(queue)
        self._unprepared()
        self._exchanges()
        self._bindings()
        for number, general in self._wiring.general.items():
            plan.general[self._free(number, plan.general)] = general
        plan.in_doubt.extend(each.xid for each in plan.transactions if each.outcome is Outcome.IN_DOUBT)
        self._version_1()
        return plan

    # ---- queues ----

    def _queues(self) -> None:
        """The queues that the catalogue has, then those that only a journal tells of."""
        known = list(self._wiring.queues)
        taken: set[str] = set()
        for position, queue in enumerate(self._recovered.queues):
            number = known[position] if position < len(known) else 0
            name, path = queue.name, self._recovered.store.layout.path
            problem = None
            if not _is_usable(name):
                problem = Damage(path, None, None, DamageKind.QUEUE_NAME_LENGTH, length=len(name))
            elif name in taken:
                problem = Damage(path, None, None, DamageKind.QUEUE_TWICE, number=None, queue=name)
            if problem is not None and (queue.recovery is None or not len(queue.recovery.messages)):
                self._plan.damage.append(problem)
                continue
            new = self._number(number)
            if problem is not None:
                name = self._unique(str(new))
                self._plan.damage.append(problem.with_effect(Effect.MESSAGES_GO_UNBOUND, renamed=name))
            elif position < len(known):
                self._numbers[number] = new
            taken.add(name)
            record = replace(queue.record or Queue(name), name=name)
            self._add(new, record, queue, queue.recovery)

    def _number(self, wanted: int) -> int:
        """A queue's number: that which it had, if it can."""
        if 0 < wanted < _MOST_NUMBER:
            return wanted
        self._next += 1
        return self._next - 1

    def _free(self, number: int, taken: dict[int, Exchange] | dict[int, Link | Bridge | GeneralObject]) -> int:
        """A number for an exchange or object: its own if it can have it."""
        return number if 0 < number < _MOST_NUMBER else 1 + max((1, *(each for each in taken), *self._high(taken)))

    def _high(self, taken: object) -> Iterator[int]:
        known = self._wiring.exchanges if taken is self._plan.exchanges else self._wiring.general
        return (number for number in known if number < _MOST_NUMBER)

    def _unique(self, identity: str) -> str:
        """A name for what has none that can be used."""
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
        """That of the old journal, if there are really such files; else what the queue's arguments say."""
        if journal is not None and journal.format is not JournalFormat.LINEAR and not journal.is_single_file:
            geometry = journal.files.geometry
            is_legal = geometry.files > 1 and geometry.data_size <= MAX_PAGES * PAGE_SIZE
            if is_legal and (
                not journal.files.files or any(file.size >= geometry.file_size for file in journal.files.files)
            ):
                return geometry
        try:
            arguments = {option.name: record.arguments.get(option.name) for option in QUEUE_ARGUMENTS}
            told = {name: value.value for name, value in arguments.items() if value is not None}
            return queue_geometry(told, self._parameters)[0]
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
        what = "a journal that the catalogue does not know"
        self._plan.orphans.append(Orphan(what, queue, len(queue.recovery.messages), None, name))

    def _settled(self, path: str, effect: Effect | None) -> None:
        """The damage that an orphan is has another effect, or is none."""
        for damage in self._recovered.store.orphaned:
            if damage.file == path:
                self._plan.damage.remove(damage)
                if effect is not None:
                    self._plan.damage.append(damage.with_effect(effect))

    def _unprepared(self) -> None:
        """Messages that transactions enqueue which were never prepared."""
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

    # ---- wiring ----

    def _exchanges(self) -> None:
        plan = self._plan
        for number, exchange in self._wiring.exchanges.items():
            plan.exchanges[self._free(number, plan.exchanges)] = exchange
        known = {exchange.name for exchange in plan.exchanges.values()}
        for queue in plan.queues:
            alternate = queue.queue.record.alternate_exchange
            if alternate and alternate not in known and not alternate.startswith("amq."):
                known.add(alternate)
                plan.lost_exchanges.append((alternate, f'queue "{queue.name}" names it as its alternate exchange'))

    def _bindings(self) -> None:
        plan, wiring = self._plan, self._wiring
        numbers = {exchange.name: number for number, exchange in plan.exchanges.items()}
        for binding in wiring.bindings:
            record = binding.record
            new = self._numbers.get(record.queue_id)
            exchange = binding.exchange.name
            if new is None or exchange not in numbers:
                what = "its queue is left out"
                plan.lost_bindings.append(LostBinding(exchange, record.queue_name, record.key, what))
            else:
                plan.bindings.append((numbers[exchange], replace(record, queue_id=new)))
        bound = {binding.queue_name for _, binding in plan.bindings}
        if self._recovered.store.wiring is None or not wiring.complete or wiring.damage:
            told = "the catalogue is lost" if self._recovered.store.wiring is None else "the catalogue is damaged"
            for queue in plan.queues:
                if queue.name not in bound and not queue.name.startswith(LOST_AND_FOUND):
                    what = f"{told}: bindings of this queue, if it had any, have to be made again"
                    plan.lost_bindings.append(LostBinding(None, queue.name, None, what))

    # ---- what is told ----

    def _version_1(self) -> None:
        """Of journals without checksums it is said, where it matters, what that means."""
        for queue in self._plan.queues:
            journal = queue.found.journal
            if journal is not None and journal.format is JournalFormat.VERSION_1 and len(journal.gaps):
                self._plan.notices.append(
                    f"{journal.path}: version 1 has no checksums: behind a damage, what looks like a record with its "
                    "tail is taken for one, and bytes that went bad within a message are not seen"
                )


def _is_usable(name: str) -> bool:
    """Whether a queue can have that name."""
    try:
        return 0 < len(name.encode("utf-8", "surrogateescape")) <= _MOST_NAME_BYTES and "\0" not in name
    except UnicodeEncodeError:
        return False
