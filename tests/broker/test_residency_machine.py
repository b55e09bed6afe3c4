"""A queue whose messages go out of memory at any time, and come back: for all else it is as any other."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from qstore.broker.model.queues.fifo import Fifo
from qstore.broker.model.queues.priority import PriorityOrder
from qstore.broker.model.residency.residency import Residency
from qstore.broker.model.residency.sources import JournalSource
from qstore.broker.model.residency.stretch import Portions
from tests.broker.test_queue_machine import Item, Kind, QueueMachine, TrackedMessage
from tests.support.profiles import examples


class ResidencyMachine(QueueMachine):
    """Stretches of one to three messages."""

    def new_residency(self) -> Residency:
        any_store: Any = self.store
        source = JournalSource(any_store, self.journal, "q", self.restored)
        return Residency(
            source,
            None,
            1 << 40,
            has_stretches=type(self.new_order()) is Fifo,
            portions=Portions(1, 3, 1, 1, 1 << 20, 0),
        )

    def restored(self, data: bytes, begin: int = 0, end: int = -1, /) -> TrackedMessage:
        any_store: Any = self.store
        body = (data if end < 0 else data[begin:end]).partition(b"\0")[2]
        message = TrackedMessage("q", body, store=any_store)
        message.expires_at = self.expiries[len(body)]
        return message

    @property
    def residency(self) -> Residency:
        assert self.queue.residency is not None
        return self.queue.residency

    @rule(excess=st.sampled_from([1, 400, 1 << 40]), is_urgent=st.booleans())
    def memory_is_short(self, excess: int, is_urgent: bool) -> None:
        self.residency.relieve(excess, is_urgent=is_urgent)

    @rule(reads_at_once=st.booleans())
    def the_disk_is_cached(self, reads_at_once: bool) -> None:
        self.store.is_immediate = reads_at_once

    @rule(data=st.data())
    def something_was_read(self, data: st.DataObject) -> None:
        if self.store.reads:
            self.store.reads.pop(data.draw(st.integers(0, len(self.store.reads) - 1)))()

    def dispatch_and_look(self) -> None:
        """Whatever can be out is, first."""
        self.residency.relieve(1 << 40, is_urgent=True)
        super().dispatch_and_look()

    @invariant()
    def order_and_counts(self) -> None:
        """Not each time: it looks at every entry, for which stretches are unfolded."""
        if self.places % 3 == 0:
            super().order_and_counts()

    @invariant()
    def what_is_out_is_counted(self) -> None:
        if not hasattr(self, "queue"):
            return
        parts = list(self.queue.order.parts())
        inside = self.residency.messages_out - self.residency.messages_in
        assert inside == sum(getattr(part, "count", 0) or type(part.message).__name__ == "Reference" for part in parts)
        assert 0 <= self.residency.memory_out <= self.queue.message_bytes + 320 * self.queue.message_count
        if not inside:
            assert self.residency.memory_out == 0


class PriorityResidencyMachine(ResidencyMachine):
    """Entries stay, references stand for messages."""

    def new_order(self) -> Fifo:
        return PriorityOrder(2)

    def check_order(self, kind: Kind, item: Item) -> None:
        """That is for `test_priority_machine`."""


TestResidencyMachine = ResidencyMachine.TestCase
TestResidencyMachine.settings = examples(150, stateful_step_count=60)
TestPriorityResidencyMachine = PriorityResidencyMachine.TestCase
TestPriorityResidencyMachine.settings = examples(50, stateful_step_count=60)
