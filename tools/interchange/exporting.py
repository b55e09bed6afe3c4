"""Exports a store that is not running, of any format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qstore.broker.model.selectors.candidate import Candidate
from qstore.broker.protocols.stored_messages import restore_message
from qstore.formats.broker_records.topology import Queue
from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import BrokerRecordError, RhmError
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.importing.intake import ImportedMessage
from qstore.store.importing.plan import LEDGER
from qstore.store.inspect.offline import RecoveredQueue, RecoveredStore
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import Outcome
from qstore.store.live.delivered import Delivered
from qstore.tools.dump.messages import Selection, decode_message
from qstore.tools.interchange.items import ExportWriter

if TYPE_CHECKING:
    from qstore.broker.model.selectors.selector import Selector

_EVERYTHING: Final = Selection()


@dataclass(frozen=True, slots=True)
class ExportSelection:
    """What is exported.

    Attributes:
        records: queues and record ids.
        selector: messages that it selects; None for all.
        since, until: messages with a timestamp in this range, in seconds since 1970, both included; None for no limit.
        topology: whether to export queues, exchanges, bindings and other objects.
        messages: whether to export messages and branches in doubt.
    """

    records: Selection = _EVERYTHING
    selector: Selector | None = None
    since: int | None = None
    until: int | None = None
    topology: bool = True
    messages: bool = True

    @property
    def all_messages(self) -> bool:
        """Whether all messages of a selected queue are exported."""
        return self.records.all_messages and self.selector is None and self.since is None and self.until is None

    def has(self, rid: int, data: bytes, *, is_redelivered: bool) -> bool:
        """Whether a message is exported. One without a timestamp is in no range of time."""
        if not self.records.has_rid(rid):
            return False
        if not self.is_in_time(data):
            return False
        if self.selector is None:
            return True
        try:
            candidate = Candidate(restore_message(data), is_redelivered=is_redelivered)
        except BrokerRecordError:
            return False
        return self.selector.matches(candidate)

    def is_in_time(self, data: bytes) -> bool:
        """Whether the timestamp of a message is in the range."""
        if self.since is None and self.until is None:
            return True
        header = decode_message(data).header
        if header is None:
            return False
        moment = header.timestamp
        if header.amqp_1_0 is not None and header.amqp_1_0.creation_time is not None:
            moment = header.amqp_1_0.creation_time // 1000
        if moment is None:
            return False
        return (self.since is None or moment >= self.since) and (self.until is None or moment <= self.until)


class StoreExport:
    """The export of one store.

    Args:
        recovered: the store as recovery would leave it; gets the damage that is found.
        delivered: the messages that may have been delivered before.
        selection: what is exported.

    Attributes:
        counts: queue -> number of messages written.
    """

    def __init__(self, recovered: RecoveredStore, delivered: Delivered, selection: ExportSelection) -> None:
        self._recovered, self._delivered, self._selection = recovered, delivered, selection
        self._queues = [queue for queue in recovered.queues if selection.records.has_queue(queue.name)]
        self._xids: set[bytes] = set()
        self.counts: dict[str, int] = {queue.name: 0 for queue in self._queues}

    def write(self, writer: ExportWriter) -> None:
        """Write everything but beginning and end. Raises OSError, InterchangeError."""
        if self._selection.topology:
            self._topology(writer)
        if not self._selection.messages:
            return
        is_whole = self._selection.all_messages and not self._selection.records.queues
        for transaction in self._recovered.transactions:
            if transaction.outcome is Outcome.IN_DOUBT and is_whole:
                writer.branch(transaction.xid)
        for queue in self._queues:
            if queue.journal is not None:
                self._messages(queue, queue.journal, writer)
                queue.journal.close()

    def _topology(self, writer: ExportWriter) -> None:
        topology, chosen = self._recovered.store.topology, self._selection.records
        for exchange in topology.exchanges.values() if topology is not None else ():
            writer.exchange(exchange)
        for queue in self._queues:
            writer.queue(queue.record or Queue(queue.name))
        if topology is None:
            return
        for binding in topology.bindings:
            if chosen.has_queue(binding.record.queue_name):
                writer.binding(binding.exchange.name, binding.record)
        for general in topology.general.values() if not chosen.queues else ():
            if general.kind != LEDGER:
                writer.other(general)

    def _messages(self, queue: RecoveredQueue, journal: Journal, writer: ExportWriter) -> None:
        name, selection, everything = queue.name, self._selection, self._selection.all_messages
        queue_id = 0 if journal.info is None else journal.info.queue_id
        holds, count, write = self._delivered.holds, 0, writer.message
        for rid, data, state, xid in self._data(queue, journal):
            is_redelivered = holds(queue_id, rid)
            if everything or selection.has(rid, data, is_redelivered=is_redelivered):
                write(ImportedMessage(name, rid, state, xid or b"", is_redelivered, data))
                count += 1
        self.counts[name] = count

    def _data(self, queue: RecoveredQueue, journal: Journal) -> Iterator[tuple[int, bytes, int, bytes | None]]:
        """The messages that can be read; the others are damage."""
        for rid, place, state, xid in queue.outstanding():
            data = stored_data(journal, rid, place, self._recovered.store.damage)
            if data is not None:
                yield rid, data, state, xid


def stored_data(journal: Journal, rid: int, place: int, damage: list[Damage]) -> bytes | None:
    """The data of a message, verified as far as its format permits; None if they are damaged.

    Args:
        journal: its journal.
        rid: its record id.
        place: the log offset of its enqueue record.
        damage: receives damage.
    """
    stream, problem = journal.stream, None
    data = None if stream.has_unreadable else journal.small_data(place)
    if data is None:
        at, size = journal.data_of_enqueue(place)
        data = b"".join(journal.data_chunks(at, size))
        if stream.has_unreadable and not stream.is_readable(place, at + size - place):
            problem = DamageKind.MESSAGE_UNREADABLE
    is_verified = journal.format is JournalFormat.VERSION_2
    if problem is None and is_verified and not journal.verifies(place, extend_crc32c(0, data)):
        problem = DamageKind.MESSAGE_CHANGED
    details: dict[str, str] = {}
    if problem is None and journal.is_compressed(place):
        try:
            data = journal.message_data(place)
        except RhmError as error:
            problem, details = DamageKind.CONTENT_DAMAGED, {"problem": error.what}
    if problem is None:
        return data
    file, offset = stream.locate(place)
    damage.append(Damage(file.path, offset, rid, problem, Effect.MESSAGE_LEFT_OUT, **details))
    return None
