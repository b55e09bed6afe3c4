"""All records of all journals, in the order in which they were written."""

from __future__ import annotations

from pathlib import Path

from qstore.formats.rhm.records import Kind
from qstore.store.damage import Damage
from qstore.store.inspect.offline import OfflineStore
from qstore.store.journal.journal import Journal
from qstore.store.journal.records import RecordHeader
from qstore.store.recovery.ends import torn_tail
from qstore.store.recovery.prepared import is_two_phase
from qstore.tools.dump.body_files import body_directory
from qstore.tools.dump.dump import Output
from qstore.tools.dump.messages import MessageReader, message_object, undecoded
from qstore.tools.dump.objects import damage_object, record_object
from qstore.tools.dump.selection import BodyForm, Selection

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
