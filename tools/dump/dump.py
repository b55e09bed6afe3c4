"""The content of a store in the order in which a dump shows it.

    dump_recovered   what recovery would preserve: topology, messages in delivery order, open transactions
    dump_records     every record of every journal, as it was written

Damage comes last, since some is found only while content is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import Final

from qstore.broker.model.arguments import MAX_PRIORITY, as_text
from qstore.broker.model.queues.arguments import HIGHEST_PRIORITY
from qstore.formats.broker_records.message_header import MessageHeader
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.records import Kind
from qstore.store.catalogue.topology import effective_bindings
from qstore.store.damage import Damage
from qstore.store.inspect.offline import OfflineStore, RecoveredQueue, RecoveredStore
from qstore.store.journal.journal import Journal
from qstore.store.journal.records import RecordHeader
from qstore.store.journal.recovery import OutstandingRecord
from qstore.store.recovery.journal_recovery import torn_tail
from qstore.store.recovery.prepared import is_two_phase
from qstore.tools.console.rows import Output
from qstore.tools.dump.messages import BodyForm, MessageReader, Selection, body_directory, message_object, undecoded
from qstore.tools.dump.rows import (
    STATES,
    binding_object,
    damage_object,
    exchange_binding_object,
    exchange_bindings,
    exchange_object,
    general_object,
    queue_object,
    record_object,
    transaction_object,
)


class Sections(NamedTuple):
    """Which parts of a recovered store are shown; if none, its records are listed instead."""

    outstanding: bool
    transactions: bool
    topology: bool


def dump_recovered(
    recovered: RecoveredStore,
    output: Output,
    sections: Sections,
    selection: Selection,
    form: BodyForm,
    bodies: Path | None,
) -> None:
    """Show a store as recovery would leave it, and then the damage."""
    dump = RecoveryDump(recovered.store, output, selection, form, bodies)
    if sections.outstanding or sections.topology:
        dump.topology(recovered, everything=sections.topology)
    if sections.outstanding:
        dump.messages(recovered)
    if sections.outstanding or sections.transactions:
        dump.transactions(recovered)
    dump.damage()


class RecoveryDump:
    """Shows a store as recovery would leave it.

    Args:
        store: the store.
        output: the output.
        selection: which records and messages are shown.
        form: how bodies are shown.
        bodies: for `BodyForm.FILES`, the directory below which they are written.
    """

    def __init__(
        self, store: OfflineStore, output: Output, selection: Selection, form: BodyForm, bodies: Path | None
    ) -> None:
        self._store = store
        self._output = output
        self._selection = selection
        self._form = form
        self._bodies = bodies
        self._order = DeliveryOrder(is_qpidd=store.layout.catalogue is None)

    def damage(self) -> None:
        """Show the damage that has been found so far."""
        for damage in self._store.damage:
            self._output.show(damage_object(damage))

    # ---- recovered content ----

    def topology(self, recovered: RecoveredStore, *, everything: bool) -> None:
        """Exchanges, queues and bindings; with `everything` also links, bridges and other objects."""
        topology = self._store.topology
        if topology is not None:
            for exchange in topology.exchanges.values():
                self._output.show(exchange_object(exchange))
        for queue in recovered.queues:
            if self._selection.has_queue(queue.name):
                self._output.show(queue_object(queue))
        if topology is None:
            return
        for binding in topology.bindings if everything else effective_bindings(topology.bindings):
            if self._selection.has_queue(binding.record.queue_name):
                self._output.show(binding_object(binding))
        if everything:
            objects = map(general_object, topology.general.values())
            for fields in sorted(objects, key=lambda each: (str(each["kind"]), str(each.get("type", "")))):
                self._output.show(fields)
        elif not self._selection.queues:
            for bound in exchange_bindings(topology):
                self._output.show(exchange_binding_object(bound))

    def messages(self, recovered: RecoveredStore) -> None:
        """The outstanding messages, each queue's in delivery order."""
        for queue in recovered.queues:
            if self._selection.has_queue(queue.name) and queue.journal is not None:
                self._messages_of(queue, queue.journal)
                # A walk does not read large bodies; showing them may hit unreadable sectors.
                self._store.damage.extend(queue.journal.stream.unreadable())
                queue.journal.close()
        self._store.notices.extend(self._order.notices())

    def _messages_of(self, queue: RecoveredQueue, journal: Journal) -> None:
        show, form, selection = self._output.show, self._form, self._selection
        directory = body_directory(self._bodies, queue.name)
        read = MessageReader(journal, form, directory, self._output.max_body).read
        everything = selection.all_messages
        for rid, place, state, xid in self._order.of(queue, journal):
            if not everything and not (selection.has_rid(rid) and selection.has_xid(xid)):
                continue
            message = read(rid, place)
            show(message_object(queue.name, rid, STATES[state], xid, message, form))
            if message.problem is not None:
                self._store.damage.append(undecoded(journal, rid, place, message))

    def transactions(self, recovered: RecoveredStore) -> None:
        """The open transactions."""
        for transaction in recovered.transactions:
            if self._selection.has_xid(transaction.xid):
                self._output.show(transaction_object(transaction))


# ---- every record, in the order of writing ----

# Fields of a message's object that the record's own object has, or that only recovery can determine.
_REDUNDANT = frozenset({"kind", "queue", "rid", "state", "xid"})


def dump_records(
    store: OfflineStore, output: Output, selection: Selection, form: BodyForm, bodies: Path | None
) -> None:
    """Show the records of a store's journals: the transaction prepared list first, then each queue's."""
    for damage in store.damage:
        output.show(damage_object(damage))
    for journal in store.named_journals():
        if not selection.has_queue(journal.name):
            continue
        reader = MessageReader(journal, form, body_directory(bodies, journal.name), output.max_body)
        lister = RecordLister(store, journal, reader, output, selection, form)
        for damage in journal.damage:
            lister.damaged(damage)
        end = store.walk(journal, lister, every_record=True)
        for damage in store.closing.contradicted(journal, end, None):
            lister.damaged(damage)
        if end is not None and end.torn:
            store.notices.append(torn_tail(journal, end))
        journal.close()


class RecordLister:
    """A `RecordSink` that shows each record of one journal, and damage in its place."""

    def __init__(
        self,
        store: OfflineStore,
        journal: Journal,
        reader: MessageReader,
        output: Output,
        selection: Selection,
        form: BodyForm,
    ) -> None:
        self._store = store
        self._journal = journal
        self._reader = reader
        self._output = output
        self._selection = selection
        self._form = form

    def enqueue(self, rid: int, place: int, blocks: int = 0) -> None:  # noqa: ARG002
        """Never called: the walk passes every record to `record`."""
        raise AssertionError(rid, place)

    def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
        """Never called: the walk passes every record to `record`."""
        raise AssertionError(rid, dequeued_rid, place)

    def record(self, header: RecordHeader, place: int, xid: bytes) -> None:
        """One record, with its message if it is an enqueue."""
        selection = self._selection
        if selection.kinds and header.kind not in selection.kinds:
            return
        if not selection.has_xid(xid) or not selection.has_rid(header.rid):
            return
        file, offset = self._journal.stream.locate(place)
        fields = record_object(self._journal.name, header, xid, file.path, offset)
        if header.kind is Kind.ENQUEUE:
            if self._journal is self._store.prepared_list:
                fields["prepared"] = "dtx" if is_two_phase(self._journal, place) else "local"
            else:
                message = self._reader.read(header.rid, place)
                values = message_object(self._journal.name, header.rid, "", None, message, self._form)
                fields["message"] = {key: value for key, value in values.items() if key not in _REDUNDANT}
                if message.problem is not None:
                    self.damaged(undecoded(self._journal, header.rid, place, message))
        self._output.show(fields)

    def damaged(self, damage: Damage) -> None:
        """Damage found on the way."""
        self._store.damage.append(damage)
        self._output.show(damage_object(damage))


# ---- delivery order ----
#
# A queue delivers its messages in journal order. A priority queue (argument qpid.priorities, alias x-qpid-priorities:
# the number of levels; or x-max-priority: the highest one) delivers those of the highest level first, and within a
# level in journal order. Limits for levels (qpid.fairshare) are not applied: the order then depends on when consumers
# come.
#
# Brokers differ about a 0-10 message without a priority: for qstore's it has the default of the specification, 4, and
# for qpidd (legacystore, linearstore) the lowest. If a queue has such messages, `DeliveryOrder.notices` states which
# order was shown.

_ARGUMENTS: Final = ("qpid.priorities", "x-qpid-priorities")
_CAPPED: Final = (HIGHEST_PRIORITY,)
_MAX_SHOWN: Final = 10
_MAX_LEVELS: Final = 10
_MAX_LEVELS_OF_QPIDD: Final = 256  # a priority is one byte
_MAX_DIGITS: Final = 20
_ABSENT: Final = 4  # the default priority of AMQP 0-10 and 1.0 ...
_ABSENT_IN_QPIDD: Final = 0  # ... of which qpidd has that of 1.0 only (MessageTransfer.cpp)


class DeliveryOrder:
    """Puts the messages of one store's queues in delivery order.

    Args:
        is_qpidd: whether the store is qpidd's.
    """

    def __init__(self, *, is_qpidd: bool) -> None:
        self._is_qpidd = is_qpidd
        self._differing: list[str] = []

    def of(self, queue: RecoveredQueue, journal: Journal) -> Iterator[OutstandingRecord]:
        """The outstanding messages of a queue, in the order in which its consumers would receive them."""
        highest = 0 if self._is_qpidd else min(_number(queue, _CAPPED), MAX_PRIORITY)
        if highest:
            return self._by_priority(queue, journal, lambda priority: min(priority, highest))
        levels = min(_number(queue, _ARGUMENTS), _MAX_LEVELS_OF_QPIDD if self._is_qpidd else _MAX_LEVELS)
        if levels < 2:
            return queue.outstanding()
        return self._by_priority(queue, journal, lambda priority: level(priority, levels))

    def notices(self) -> list[str]:
        """Notices about the queues whose order differs between brokers: one line, or none."""
        if not self._differing:
            return []
        shown = ", ".join(f'"{name}"' for name in self._differing[:_MAX_SHOWN])
        more = len(self._differing) - _MAX_SHOWN
        names = f"{shown} and {more} more" if more > 0 else shown
        which = "queue" if len(self._differing) == 1 else "queues"
        qpidd, own = "qpidd, lowest", f"qstore's broker, {_ABSENT}"
        first, second = (qpidd, own) if self._is_qpidd else (own, qpidd)
        return [f"{which} {names}: messages without a priority are listed as by {first}; by {second}"]

    def _by_priority(
        self, queue: RecoveredQueue, journal: Journal, level_of_priority: Callable[[int], int]
    ) -> Iterator[OutstandingRecord]:
        reader = MessageReader(journal, BodyForm.NONE)
        level_of, differs = bytearray(), False
        for rid, place, _, _ in queue.outstanding():
            header = reader.read(rid, place).header
            own = level_of_priority(_priority(header, _ABSENT))
            qpidd = level_of_priority(_priority(header, _ABSENT_IN_QPIDD))
            differs = differs or own != qpidd
            level_of.append(qpidd if self._is_qpidd else own)
        if differs:
            self._differing.append(queue.name)
        return _by_level(queue, level_of)


def _by_level(queue: RecoveredQueue, level_of: bytearray) -> Iterator[OutstandingRecord]:
    for wanted in sorted(set(level_of), reverse=True):
        yield from compress(queue.outstanding(), (found == wanted for found in level_of))


def _number(queue: RecoveredQueue, names: Sequence[str]) -> int:
    """The first of these arguments that is a number; 0 for none."""
    if queue.record is None:
        return 0
    for name in names:
        argument = queue.record.arguments.get(name)
        text = "" if argument is None else str(as_text(argument.value))
        if text.isdecimal() and len(text) <= _MAX_DIGITS:
            return int(text)
    return 0


def _priority(header: MessageHeader | None, absent: int) -> int:
    if header is None:
        return absent
    if header.protocol == "0-9-1":
        return header.priority or 0
    if header.priority is None:
        return absent if header.amqp_1_0 is None else _ABSENT
    return header.priority


def level(priority: int, levels: int) -> int:
    """The level of a priority: the ten priorities of AMQP 0-10 mapped to fewer levels, the middle to the middle.

    Source: AMQP 0-10, delivery-properties.priority, rule priority-level-implementation.
    """
    lowest = 5 - min(5, math.ceil(levels / 2))
    return min(max(priority - lowest, 0), levels - 1)
