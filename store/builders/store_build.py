"""Builds a whole store of version 2 from the recovered content of another one: shared by conversion and recovery.

    catalogue       queues, exchanges, bindings and general objects
    journals        every outstanding message with its data, in the order of recovery, with a new record id: in version
                    1 a message has one record id on all of its queues, and the order is that of the journal; in version
                    2 each record has its own, and their order is the queue's
    transactions    those in doubt stay so: open in the journals, with a prepare record in the prepared list

The caller chooses the queues and their numbers; a watcher receives progress reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from qstore.formats.broker_records.topology import (
    STREAM_KIND,
    Binding,
    Bridge,
    Exchange,
    GeneralObject,
    Link,
    Queue,
    encode_binding,
    encode_exchange,
    encode_general,
    encode_queue,
    names_a_host,
    with_record_ids,
)
from qstore.formats.catalogue import BindingEntry, ExchangeEntry, GeneralEntry, Kind, QueueEntry
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import TPL_BASE_NAME, JournalInfo
from qstore.store.builders.journal_build import JournalBuild, build_journal
from qstore.store.builders.journal_copy import JournalCopy, NewRecordIds
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.damage import Damage
from qstore.store.environment import Environment, InlineBackground
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.write.storage import remove_journal
from qstore.store.live.appender import RecordIds
from qstore.store.live.queue_journal import TPL_NAME, journal_info
from qstore.store.parameters import StoreParameters
from qstore.store.recovery.journal_content import JournalContent, content_at_most
from qstore.store.recovery.prepared import prepare_data


class JournalSource(NamedTuple):
    """A journal and the content that recovery keeps of it, resolved."""

    journal: Journal
    recovery: JournalRecovery


class QueueToBuild(NamedTuple):
    """A queue that the new store will have.

    Attributes:
        number: its id.
        record: its record.
        source: the journal with its messages; None if it has none.
        geometry: of its journal, unless the messages need a larger one.
        content: upper bound of the content of `source`, if it was counted.
    """

    number: int
    record: Queue
    source: JournalSource | None
    geometry: Geometry
    content: JournalContent | None = None


class BuiltQueue(NamedTuple):
    """The result of building a queue.

    Attributes:
        messages: number of messages, those in doubt included.
        in_doubt: number of messages that wait for a transaction.
        geometry: of its journal.
        renamed: the new record ids of marked messages (`JournalCopy`).
    """

    messages: int
    in_doubt: int
    geometry: Geometry
    renamed: Mapping[int, int] = MappingProxyType({})


class BuildWatcher(Protocol):
    """Receives progress reports."""

    def left_out(self, queue: QueueToBuild, damage: Damage, place: int, end: int) -> None:
        """A message of `queue` cannot be copied; its record is at `place` to `end` of its journal's stream."""

    def built(self, queue: QueueToBuild, result: BuiltQueue) -> None:
        """A queue was built."""


def build_prepared_list(
    environment: Environment, directory: str, info: JournalInfo, prepared: Mapping[bytes, str], rids: NewRecordIds
) -> None:
    """Build a prepared list, of either format, with a prepare record for each transaction in doubt.

    Args:
        environment: disk, clock and random numbers.
        directory: the list's, which is created.
        info: the requested journal.
        prepared: id of each transaction -> its user; empty if unknown.
        rids: source of record ids.

    Raises:
        StoreError, OSError: as `build_journal`.
    """
    content = JournalContent()
    for xid, user in prepared.items():
        content.transaction(len(xid))
        content.message(len(prepare_data(user)), len(xid))

    def fill(build: JournalBuild) -> None:
        for xid, user in prepared.items():
            build.message(rids.take(), (prepare_data(user),), xid)

    build_journal(environment, directory, info, content, fill)


def build_queue(
    environment: Environment,
    directory: str,
    info: JournalInfo,
    queue: QueueToBuild,
    watcher: BuildWatcher,
    fits: Callable[[JournalContent], bool],
    *,
    message_rids: NewRecordIds | None,
    removal_rids: NewRecordIds,
    beside: bool = False,
    marked: frozenset[int] = frozenset(),
) -> BuiltQueue:
    """Build a queue's journal, of either format, with its messages.

    Args:
        environment: disk, clock and random numbers.
        directory: the journal's, which is created.
        info: the requested journal.
        queue: the queue.
        watcher: receives the messages that cannot be copied.
        fits: whether a journal holds the content.
        message_rids: new record ids for messages; None: messages keep theirs.
        removal_rids: new record ids for removals.
        beside: whether another thread writes; the disk must permit that.
        marked: record ids whose new ones are to be in the result.

    Raises:
        StoreError, OSError: as `build_journal`.
    """
    source, content = queue.source, queue.content
    if source is None:
        made = build_journal(environment, directory, info, JournalContent(), lambda _: None)
        return BuiltQueue(0, 0, made.geometry)
    if content is None or not fits(content):
        content = content_at_most(*source, fits)

    def left_out(damage: Damage, place: int, end: int) -> None:
        watcher.left_out(queue, damage, place, end)

    copy = JournalCopy(*source, left_out, message_rids=message_rids, removal_rids=removal_rids, marked=marked)
    made = build_journal(environment, directory, info, content, copy.into, beside=beside)
    return BuiltQueue(copy.messages, copy.in_doubt, made.geometry, copy.renamed)


class StoreBuild:
    """A store being built in `new`, where its directory, `jrnl` and an empty prepared list exist.

    Args:
        environment: disk, clock and so on.
        new: the store's directory.
        parameters: flush alignment, and the prepared list's geometry.
        catalogue: that of the new store, empty.
        watcher: receives progress reports.
        beside: whether another thread writes; the disk must permit that.
        marked: the record ids in the marks of streams: `general` writes the new ones.
    """

    def __init__(
        self,
        environment: Environment,
        new: StoreDirectory,
        parameters: StoreParameters,
        catalogue: Catalogue,
        watcher: BuildWatcher,
        *,
        beside: bool = False,
        marked: frozenset[int] = frozenset(),
    ) -> None:
        self._marked = marked
        self._renamed: dict[int, int] = {}
        self._environment, self._new, self._parameters = environment, new, parameters
        self._catalogue, self._watcher, self._beside = catalogue, watcher, beside
        # An error is raised again when an id is needed.
        self._rids = RecordIds(catalogue, InlineBackground(), lambda _: None)

    def prepared_list(self, prepared: Mapping[bytes, str]) -> None:
        """Add a prepare record for each transaction in doubt, with its user. Raises StoreError, OSError."""
        if not prepared:
            return
        parameters = self._parameters
        info = journal_info(
            self._environment,
            TPL_NAME,
            parameters.tpl_geometry,
            parameters.flush_alignment,
            base_name=TPL_BASE_NAME,
        )
        remove_journal(self._environment.disk, self._new.prepared_list)
        build_prepared_list(self._environment, self._new.prepared_list, info, prepared, self._rids)

    def _note(self, record: Queue | Exchange | Link | Bridge | GeneralObject) -> None:
        """Note that the store will have virtual hosts, if the record is of one."""
        self._new.has_hosts = self._new.has_hosts or names_a_host(record)

    def queue(self, queue: QueueToBuild) -> None:
        """Add a queue with its messages. Raises StoreError, CatalogueError, OSError."""
        self._note(queue.record)
        record = encode_queue(queue.record)
        info = journal_info(
            self._environment,
            queue.record.name,
            queue.geometry,
            self._parameters.flush_alignment,
            queue_id=queue.number,
            incarnation=1,
            record=record,
        )
        result = build_queue(
            self._environment,
            self._new.journal(queue.number),
            info,
            queue,
            self._watcher,
            lambda most: most.fits(queue.geometry, self._parameters.flush_alignment),
            message_rids=self._rids,
            removal_rids=self._rids,
            beside=self._beside,
            marked=self._marked,
        )
        self._renamed.update(result.renamed)
        self._catalogue.create_queue(QueueEntry(queue.number, queue.number, 1, record))
        self._watcher.built(queue, result)

    def exchange(self, number: int, exchange: Exchange) -> None:
        """Add an exchange. Raises CatalogueError."""
        self._note(exchange)
        self._catalogue.create_exchange(ExchangeEntry(number, encode_exchange(exchange)))

    def binding(self, exchange_id: int, binding: Binding) -> None:
        """Add a binding of an existing exchange and queue; numbered in order of the calls. Raises CatalogueError."""
        sequence = self._catalogue.take_id(Kind.BINDING)
        entry = BindingEntry(exchange_id, binding.queue_id, sequence, encode_binding(binding))
        self._catalogue.create_binding(entry)

    def general(self, number: int, general: Link | Bridge | GeneralObject) -> None:
        """Add a link, a bridge or another object, after the queues. Raises CatalogueError."""
        self._note(general)
        if isinstance(general, GeneralObject) and general.kind == STREAM_KIND:
            general = with_record_ids(general, self._renamed)
        self._catalogue.create_general(GeneralEntry(number, encode_general(general)))
