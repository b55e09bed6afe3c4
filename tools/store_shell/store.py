"""A stopped store of any format.

While the shell has it, it is locked: a qstore store as a broker locks it, qpidd's as its broker locks the data
directory. It is read as recovery would leave it. To make a change, the store is opened by its own writer and closed
cleanly again (`store.repair.stopped_messages`), so that it is a complete store whenever the prompt is shown.
"""

from __future__ import annotations

import contextlib
import posixpath
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from qstore import __version__
from qstore.formats.quarantine_index import QuarantineEntry
from qstore.formats.wording import plural
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.catalogue.topology import effective_bindings
from qstore.store.damage import Damage
from qstore.store.disk import OsWritableDisk
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError, StoreLockedError
from qstore.store.importing.intake import ImportedMessage
from qstore.store.importing.store_import import StoreImport
from qstore.store.inspect.check import PREPARED_LIST, QUEUE, JournalCheck
from qstore.store.inspect.layout import StoreKind, UnusableInputError, find_layout, holder_of_store
from qstore.store.inspect.measure import measure
from qstore.store.inspect.offline import OfflineStore, RecoveredQueue, RecoveredStore, open_store
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import LIVE, Outcome
from qstore.store.live.delivered import Delivered, delivered_of
from qstore.store.log_lines import LogLine
from qstore.store.repair.quarantine import Quarantine
from qstore.store.repair.stopped_messages import (
    MAX_COPIED_BYTES,
    MAX_COPIED_MESSAGES,
    StoppedMessages,
    store_of_version_2,
)
from qstore.tools.console.command import signals_wait
from qstore.tools.console.rows import Object
from qstore.tools.dump.dump import DeliveryOrder
from qstore.tools.dump.messages import BodyForm, MessageReader, message_object, queues_named
from qstore.tools.dump.rows import (
    STATES,
    binding_object,
    exchange_binding_object,
    exchange_bindings,
    exchange_object,
    journal_object,
    queue_object,
    transaction_object,
)
from qstore.tools.interchange.exporting import ExportSelection, stored_data
from qstore.tools.qpid_store_resize import without_broker
from qstore.tools.quarantine import InjectionRequest, inject
from qstore.tools.store_shell.place import Advance, Plan, ShellError, Wanted

_STOP: Final = "stop the broker first, or ask it for its content: qstore-shell amqp://localhost"
_CONVERT: Final = "this shell changes qstore stores only: convert it with qstore-recover {} DEST"


class StorePlace:
    """A stopped store, locked until it is closed.

    Args:
        path: where it is.
        log: receives the log lines of the store's writer.

    Raises:
        UnusableInputError: there is no store, or a broker has it open.
        StoreError, OSError: it cannot be locked or read.
    """

    def __init__(self, path: str, log: Callable[[LogLine], None]) -> None:
        self._path, self._log, self._disk = path, log, OsWritableDisk()
        self._layout = layout = find_layout(self._disk, path)
        self.kind = layout.kind
        self.title = f"{path}: {layout.kind.value}"
        self.notices: list[str] = []
        self._locked, self._is_locked = contextlib.ExitStack(), False
        self._opened: tuple[OfflineStore, RecoveredStore, Delivered] | None = None
        holder = holder_of_store(layout)
        if holder is not None:
            raise UnusableInputError(f"{path}: process {holder} has this store open: {_STOP}")
        try:
            self._recovered()
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        """Lock the store. A medium that is read-only is read without a lock. Raises StoreLockedError."""
        layout = self._layout
        part = layout.store_file or layout.catalogue or layout.environment or layout.pools
        if part is None:
            return
        root = part if part == layout.pools else posixpath.dirname(part)
        try:
            if self.kind is StoreKind.VERSION_2:
                directory = StoreDirectory(tool_environment(), posixpath.dirname(root) or ".", __version__)
                self._locked.callback(directory.lock().release)
            else:
                self._locked.enter_context(without_broker(posixpath.join(root, "journal")))
        except StoreLockedError:
            raise StoreLockedError(f"{self._path}: another process has locked the store: {_STOP}") from None
        except (StoreError, OSError) as error:
            self.notices.append(f"the store cannot be locked, and not be changed: {error}")
        self._is_locked = True

    def close(self) -> None:
        """Close the store, and release its lock."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None
        self._locked.close()
        self._is_locked = False

    def _recovered(self) -> tuple[OfflineStore, RecoveredStore, Delivered]:
        """The store as recovery would leave it; it is read once, and again after each change."""
        if self._opened is None:
            if not self._is_locked:
                self._lock()
            store = open_store(self._disk, self._path)
            try:
                self._opened = store, store.recover(), delivered_of(self._disk, store.layout)
            except BaseException:
                store.close()
                raise
            self.notices += store.notices
            self.notices += [f"damage: {each.where}: {each.what}" for each in store.damage]
        return self._opened

    # ---- lists ----

    def queues(self, exchange: str | None) -> Iterable[Object]:
        """The queues; only those bound to an exchange, if one is given."""
        _, recovered, _ = self._recovered()
        bound = None if exchange is None else {each.get("queue") for each in self.bindings(exchange)}
        return [queue_object(queue) for queue in recovered.queues if bound is None or queue.name in bound]

    def exchanges(self) -> Iterable[Object]:
        """The exchanges."""
        topology = self._recovered()[0].topology
        return [] if topology is None else [exchange_object(each) for each in topology.exchanges.values()]

    def bindings(self, exchange: str | None) -> Iterable[Object]:
        """The bindings; only those of an exchange, if one is given."""
        topology = self._recovered()[0].topology
        if topology is None:
            return []
        if exchange is not None and exchange not in {each.name for each in topology.exchanges.values()}:
            raise ShellError(f'there is no exchange "{exchange}"; list exchanges shows what there is')
        bindings = effective_bindings(topology.bindings)
        onward = exchange_bindings(topology)
        return [
            *(binding_object(each) for each in bindings if exchange in (None, each.exchange.name)),
            *(exchange_binding_object(each) for each in onward if exchange in (None, each.source)),
        ]

    def transactions(self) -> Iterable[Object]:
        """The open transactions."""
        return [transaction_object(each) for each in self._recovered()[1].transactions]

    def journals(self) -> Iterable[Object]:
        """The journals, measured."""
        store, recovered, _ = self._recovered()
        lists = [] if recovered.prepared_list is None else [(PREPARED_LIST, recovered.prepared_list)]
        damage = Counter(posixpath.dirname(each.file) for each in store.damage)
        for role, queue in [*lists, *((QUEUE, queue) for queue in recovered.queues)]:
            journal, recovery = queue.journal, queue.recovery
            if journal is None or recovery is None:
                yield journal_object(JournalCheck(role, queue, None, None, 0, 0))
                continue
            is_list = role == PREPARED_LIST
            still_open = recovery.transactions if is_list else recovery.left_open
            measured = measure(journal, recovery, queue.end, is_prepared_list=is_list)
            yield journal_object(JournalCheck(role, queue, journal, measured, len(still_open), damage[journal.path]))
            journal.close()

    # ---- messages ----

    def check(self, wanted: Wanted) -> int:
        """The number of messages in a queue that is selected. Raises ShellError if there is no such queue."""
        return self._queue(wanted.queue).deliverable

    def messages(self, wanted: Wanted, form: BodyForm) -> Iterable[Object]:
        """The messages that are selected, in the order of delivery; those in doubt too."""
        queue = self._queue(wanted.queue)
        if queue.journal is None:
            return
        reader, queue_id, delivered = MessageReader(queue.journal, form), _id_of(queue.journal), self._recovered()[2]
        for rid, place, state, xid in self._chosen(queue, queue.journal, wanted):
            fields = message_object(queue.name, rid, STATES[state], xid, reader.read(rid, place), form)
            fields["redelivered"] = delivered.holds(queue_id, rid)
            yield fields
        queue.journal.close()

    def full_name(self, name: str) -> str:
        """As `Place.full_name`."""
        return next(iter(queues_named([name], [queue.name for queue in self._recovered()[1].queues])))

    def _queue(self, name: str) -> RecoveredQueue:
        for queue in self._recovered()[1].queues:
            if queue.name == name:
                return queue
        raise ShellError(f'there is no queue "{name}"; list queues shows what there is')

    def _chosen(
        self, queue: RecoveredQueue, journal: Journal, wanted: Wanted
    ) -> Iterator[tuple[int, int, int, bytes | None]]:
        store, _, delivered = self._recovered()
        order, left = DeliveryOrder(is_qpidd=store.layout.catalogue is None), wanted.first
        by_selector, queue_id = ExportSelection(selector=wanted.selector), _id_of(journal)
        for found in order.of(queue, journal):
            rid, place, _, _ = found
            if left == 0:
                return
            if not wanted.has_rid(rid):
                continue
            if wanted.selector is not None:
                data = self._data(journal, rid, place)
                if data is None or not by_selector.has(rid, data, is_redelivered=delivered.holds(queue_id, rid)):
                    continue
            if left is not None:
                left -= 1
            yield found

    def _data(self, journal: Journal, rid: int, place: int) -> bytes | None:
        """The data of a message; None if they are damaged, which is noted."""
        damage: list[Damage] = []
        data = stored_data(journal, rid, place, damage)
        self.notices += [f"damage: {each.where}: {each.what}" for each in damage]
        return data

    # ---- changes ----

    def _check_writable(self) -> None:
        if self.kind is not StoreKind.VERSION_2:
            raise ShellError(f"{self.title}: {_CONVERT.format(self._path)}")

    def _selected(self, wanted: Wanted) -> tuple[array[int], int, list[str]]:
        """The record ids of what is selected, the bytes of their data, and notices. Those in doubt are left out."""
        self._check_writable()
        queue = self._queue(wanted.queue)
        rids, size, in_doubt = array("Q"), 0, 0
        if queue.journal is not None:
            for rid, place, state, _ in self._chosen(queue, queue.journal, replace(wanted, first=None)):
                if state != LIVE:
                    in_doubt += 1
                    continue
                if len(rids) == wanted.first:
                    break
                rids.append(rid)
                size += queue.journal.data_of_enqueue(place)[1]
            queue.journal.close()
        notice = f"{plural(in_doubt, 'message')} of transactions in doubt are left out: resolve these first"
        return rids, size, [notice] if in_doubt else []

    def plan_copy(self, wanted: Wanted, target: str, *, removes: bool) -> Plan:
        """Copying or moving messages to the end of a queue."""
        rids, size, notices = self._selected(wanted)
        self._queue(target)
        verb, name = "move" if removes else "copy", wanted.queue
        if removes and target == name:
            raise ShellError(f'queue "{name}" is both source and destination')
        text = f"{verb} {_amount(len(rids), size)} from {wanted.text} to queue {target}"

        def apply(advance: Advance) -> Mapping[str, Any]:
            if not removes and (size > MAX_COPIED_BYTES or len(rids) > MAX_COPIED_MESSAGES):
                self._copy_many(name, rids, target)
                return {}
            with self._writer(advance) as (writer, done):
                new = writer.move(name, rids, target, done) if removes else writer.copy(name, rids, target)
            return _new_rids(new)

        fields = {"change": verb, "queue": name, "destination": target, "messages": len(rids), "bytes": size}
        return Plan(text, fields, False, len(rids), apply, notices)

    def plan_removal(self, wanted: Wanted, verb: str) -> Plan:
        """Removing messages."""
        rids, size, notices = self._selected(wanted)

        def apply(advance: Advance) -> Mapping[str, Any]:
            with self._writer(advance) as (writer, done):
                writer.remove(wanted.queue, rids, done)
            return {}

        text = f"{verb} {_amount(len(rids), size)} from {wanted.text}"
        fields = {"change": verb, "queue": wanted.queue, "messages": len(rids), "bytes": size}
        return Plan(text, fields, True, len(rids), apply, notices)

    def plan_message(self, message: ImportedMessage) -> Plan:
        """Adding a message."""
        self._check_writable()
        self._queue(message.queue)

        def apply(advance: Advance) -> Mapping[str, Any]:
            with self._writer(advance) as (writer, _):
                return _new_rids(writer.add(message.queue, [message.data], is_redelivered=message.is_redelivered))

        text = f"add {_amount(1, len(message.data))} to queue {message.queue}"
        fields = {"change": "inject", "destination": message.queue, "messages": 1, "bytes": len(message.data)}
        return Plan(text, fields, False, 1, apply)

    def plan_quarantine(self, directory: str | None, numbers: list[int], target: str | None) -> Plan:
        """Adding the messages of a quarantine's entries; of all entries, if no numbers are given."""
        self._check_writable()
        if target is not None:
            self._queue(target)
        root = posixpath.dirname(self._layout.store_file or "")
        where = directory or posixpath.join(root, "quarantine")
        quarantine = Quarantine(self._disk, where)
        known = [each.number for each in quarantine.entries() if isinstance(each, QuarantineEntry)]
        chosen = numbers or known
        if not chosen:
            raise ShellError(f"{where}: the quarantine has no entries")
        unknown = [each for each in chosen if each not in known]
        if unknown:
            raise ShellError(f"{where}: there is no entry {unknown[0]}; qstore-quarantine list shows the entries")

        def apply(_advance: Advance) -> Mapping[str, Any]:
            with self._released():
                request = InjectionRequest(chosen, target)
                results = inject(tool_environment(), where, self._path, request, __version__, self._log)
            failures = [f"entry {each.entry.number}: {each.failure}" for each in results if each.failure is not None]
            if failures:
                raise ShellError("; ".join(failures))
            return _new_rids([rid for each in results for rid in each.rids])

        what = f"{plural(len(chosen), 'entry', 'entries')} of the quarantine {where}"
        to = "" if target is None else f" to queue {target}"
        fields = {"change": "inject", "quarantine": where, "entries": chosen, "destination": target}
        return Plan(f"add the messages of {what}{to}", fields, False, len(chosen), apply)

    def plan_resolution(self, xid: bytes, *, commits: bool) -> Plan:
        """Deciding a branch in doubt."""
        self._check_writable()
        found = next((each for each in self._recovered()[1].transactions if each.xid == xid), None)
        if found is None or found.outcome is not Outcome.IN_DOUBT:
            raise ShellError(f"there is no transaction {xid.hex()} in doubt; list transactions shows what there is")

        def apply(advance: Advance) -> Mapping[str, Any]:
            with self._writer(advance) as (writer, _):
                writer.resolve(xid, commits=commits)
            return {}

        verb = "commit" if commits else "roll back"
        counts = f"{plural(found.enqueues or 0, 'enqueue')} and {plural(found.dequeues or 0, 'dequeue')}"
        fields = {"change": "resolve", "xid": xid.hex(), "commits": commits}
        fields |= {"enqueues": found.enqueues, "dequeues": found.dequeues}
        return Plan(f"{verb} transaction {xid.hex()}, with {counts}", fields, True, 1, apply)

    # ---- writing ----

    def _copy_many(self, source: str, rids: array[int], target: str) -> None:
        """Copy more messages than fit into memory: as an import, which rebuilds the target's journal."""
        path, chosen = store_of_version_2(tool_environment(), self._path, __version__), frozenset(rids)
        with self._released(), StoreImport(tool_environment(), path, __version__, log=self._log) as work:
            with contextlib.closing(open_store(self._disk, path)) as store:
                delivered = delivered_of(self._disk, store.layout)
                queue = next(each for each in store.recover().queues if each.name == source)
                assert queue.journal is not None  # it has messages
                places = {rid: place for rid, place, _, _ in queue.outstanding() if rid in chosen}
                for rid in rids:
                    data = self._data(queue.journal, rid, places[rid])
                    if data is None:
                        raise ShellError(f"record 0x{rid:x} is damaged; nothing was changed: qstore-check {path}")
                    is_redelivered = delivered.holds(_id_of(queue.journal), rid)
                    work.intake.message(ImportedMessage(target, 0, LIVE, b"", is_redelivered, data))
            work.apply(work.plan(), f"copy {uuid4()}")

    @contextlib.contextmanager
    def _released(self) -> Iterator[list[int]]:
        """The store closed and not locked, for its own writer, which locks it itself; then locked and read again.

        Signals wait until the end; those that have come are yielded.
        """
        with signals_wait() as came:
            self.close()
            try:
                yield came
            finally:
                self.notices.clear()
                self._lock()

    @contextlib.contextmanager
    def _writer(self, advance: Advance) -> Iterator[tuple[StoppedMessages, Advance]]:
        """The store's writer, and a callback for messages that are done, after which it may be interrupted."""
        done, is_whole = 0, False
        try:
            with self._released() as came:

                def advanced(count: int) -> None:
                    nonlocal done
                    done += count
                    advance(count)
                    if came:
                        raise KeyboardInterrupt

                with StoppedMessages(tool_environment(), self._path, __version__, self._log) as writer:
                    yield writer, advanced
                is_whole = True
        except KeyboardInterrupt as interruption:
            part = f"{plural(done, 'message')} done, the others are unchanged"
            interruption.add_note("the change is made" if is_whole else part)
            raise


def _id_of(journal: Journal) -> int:
    return 0 if journal.info is None else journal.info.queue_id


def _amount(count: int, size: int) -> str:
    return f"{plural(count, 'message')} ({size:,} bytes)"


def _new_rids(rids: Sequence[int]) -> Mapping[str, Any]:
    return {"first_rid": rids[0], "last_rid": rids[-1]} if rids else {}
