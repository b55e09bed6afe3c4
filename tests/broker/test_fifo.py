"""The FIFO order against a plain list: messages arrive, are taken, come back and go, in any order."""

from __future__ import annotations

import gc
import weakref

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, END, GONE, Entry
from qstore.broker.model.queues.fifo import Fifo
from tests.broker.wired_broker import PlainMessage


class TrackedMessage(PlainMessage):
    """A message that can be referred to weakly."""


class FifoMachine(RuleBasedStateMachine):
    """The model: the entries in a list, which of them are available, and the position from which on to look."""

    @initialize()
    def begin(self) -> None:
        gc.disable()
        self.fifo = Fifo()
        self.entries: list[Entry] = []
        self.came = 0
        self.cursor = 1
        self.gone: list[weakref.ref[TrackedMessage]] = []

    def teardown(self) -> None:
        """A queue that is dropped with messages frees them at once."""
        references = [weakref.ref(entry.message) for entry in self.entries]
        self.entries.clear()
        del self.fifo
        try:
            assert [each() for each in references if each() is not None] == []
        finally:
            gc.enable()

    @rule()
    def append(self) -> None:
        self.came += 1
        assert self.fifo.next_position == self.came
        entry = self.fifo.append(TrackedMessage("q", b"%d" % self.came), self.came * 10)
        assert (entry.position, entry.rid, entry.state, entry.is_redelivered) == (
            self.came, self.came * 10, AVAILABLE, False,
        )  # fmt: skip
        self.entries.append(entry)

    @rule(ahead=st.integers(-3, 3))
    def take_next(self, ahead: int) -> None:
        limit = self.came + ahead
        wanted = [each for each in self.entries if each.state == AVAILABLE and self.cursor <= each.position < limit]
        found = self.fifo.next_available(limit)
        assert found is (wanted[0] if wanted else None)
        if found is not None:
            found.state = ACQUIRED
            self.cursor = found.position + 1

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        self.entries[data.draw(st.integers(0, len(self.entries) - 1))].state = ACQUIRED

    @precondition(lambda self: any(entry.state == ACQUIRED for entry in self.entries))
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        acquired = [each for each in self.entries if each.state == ACQUIRED]
        entry = acquired[data.draw(st.integers(0, len(acquired) - 1))]  # what is drawn, Hypothesis keeps
        entry.state = AVAILABLE
        self.fifo.put_back(entry)
        self.cursor = min(self.cursor, entry.position)

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.entries) - 1))
        entry = self.entries.pop(at)
        following = self.fifo.remove(entry)
        if at < len(self.entries):
            assert following is self.entries[at]
        else:
            assert (following.state, following.position) == (END, self.came + 1)
        assert entry.state == GONE
        message = entry.message
        assert isinstance(message, TrackedMessage)
        self.gone.append(weakref.ref(message))

    @rule()
    def remove_all_on_the_way(self) -> None:
        for entry in self.fifo:
            self.fifo.remove(entry)
        self.entries.clear()

    @invariant()
    def order(self) -> None:
        if not hasattr(self, "fifo"):
            return
        assert list(self.fifo) == self.entries
        first = self.fifo.first
        assert first is self.entries[0] if self.entries else (first.state, first.position) == (END, self.came + 1)
        for entry in self.entries:
            assert entry.next.previous is entry
            assert entry.previous.next is entry

    @invariant()
    def removed_messages_are_freed(self) -> None:
        assert [each() for each in getattr(self, "gone", ()) if each() is not None] == []


TestFifo = FifoMachine.TestCase
