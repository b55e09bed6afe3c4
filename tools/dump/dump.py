"""What recovery would preserve of a store, in the order in which a dump shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

from qstore.store.catalogue.topology import effective_bindings
from qstore.store.inspect.offline import OfflineStore, RecoveredQueue, RecoveredStore
from qstore.store.journal.enqueue_map import LIVE, LOCKED, PENDING
from qstore.store.journal.journal import Journal
from qstore.tools.dump.body_files import body_directory
from qstore.tools.dump.delivery_order import DeliveryOrder
from qstore.tools.dump.messages import MessageReader, message_object, undecoded
from qstore.tools.dump.objects import (
    binding_object,
    damage_object,
    exchange_binding_object,
    exchange_bindings,
    exchange_object,
    general_object,
    queue_object,
    transaction_object,
)
from qstore.tools.dump.selection import BodyForm, Selection

STATES = {LIVE: "outstanding", LOCKED: "in-doubt-dequeue", PENDING: "in-doubt-enqueue"}


class Output(Protocol):
    """The output for objects.

    Attributes:
        max_body: how many bytes of a body are used; None for all.
    """

    max_body: int | None

    def show(self, fields: dict[str, Any]) -> None:
        """Print one object."""

    def flush(self) -> None:
        """Print buffered output."""


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
            for record in topology.general.values():
                self._output.show(general_object(record))
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
