"""Queues whose consumers have priorities, or of which one is active, against models: as `test_queue_machine`, and
nobody is given a message while another consumer comes before it."""

from __future__ import annotations

from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from qstore.broker.model.queues.consumers import FOREMOST
from qstore.broker.model.queues.entry import Entry
from tests.broker.test_priority_machine import PriorityMachine
from tests.broker.test_queue_machine import Kind, QueueMachine
from tests.support.fake_store import Recorder
from tests.support.profiles import examples

STEPS = 50


class Prioritized(QueueMachine):
    """Consumers with priorities."""

    def begin_with_nothing(self) -> None:
        super().begin_with_nothing()
        self.ranks: dict[Recorder, int] = {}  # in the order in which they came

    @rule(credit=st.integers(0, 4), odd=st.sampled_from([None, None, True, False]), rank=st.integers(-1, 2))
    def subscribe(self, credit: int, odd: bool | None, rank: int = 0) -> None:
        if len(self.ranks) == 5:
            return
        self.take_part(credit, odd, rank)

    def take_part(self, credit: int, odd: bool | None, rank: int) -> Recorder:
        kind = self.kinds[odd]
        consumer = Recorder(self.queue, credit, wants=kind)
        consumer.on_delivery = partial(self.given, consumer, kind)
        self.consumers.append(consumer)
        self.ranks[consumer] = rank
        self.queue.add_consumer(consumer, rank)
        self.queue.wake(consumer)
        return consumer

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        before = list(self.consumers)
        super().unsubscribe(data)
        for consumer in before:
            if consumer not in self.consumers:
                self.ranks.pop(consumer, None)
                self.left(consumer)

    def left(self, consumer: Recorder) -> None:
        """A consumer has left."""

    @precondition(lambda self: not self.seen)  # browsers begin again
    @rule()
    def deletion_fails(self) -> None:
        self.queue.begin_deletion()
        self.queue.undo_deletion()

    @rule(odd=st.sampled_from([None, True]))
    def get_one(self, odd: bool | None) -> None:
        """Somebody takes one message, and then does not wait for any."""
        getter = self.take_part(1, odd, FOREMOST)
        self.dispatch()
        self.queue.remove_consumer(getter)
        self.consumers.remove(getter)
        del self.ranks[getter]
        del getter.on_delivery

    def given(self, consumer: Recorder, kind: Kind, entry: Entry) -> None:
        rank = self.ranks[consumer]
        for other, its in self.ranks.items():
            if rank < its < FOREMOST:
                assert not (other.credit and self.kinds_take(other, entry)), "another comes first"
        self.got(kind, entry)

    @staticmethod
    def kinds_take(consumer: Recorder, entry: Entry) -> bool:
        kind = consumer.kind
        assert isinstance(kind, Kind)
        return kind.takes(entry.position)


class OneActive(Prioritized):
    """Consumers of which one is active."""

    def begin_with_nothing(self) -> None:
        super().begin_with_nothing()
        self.active: Recorder | None = None

    def is_single_active(self) -> bool:
        return True

    def may_get(self, consumer: Recorder) -> bool:
        return consumer is self.active or not consumer.acquires or self.ranks[consumer] == FOREMOST

    def take_part(self, credit: int, odd: bool | None, rank: int) -> Recorder:
        consumer = super().take_part(credit, odd, rank)
        if self.active is None and rank != FOREMOST:
            self.active = consumer
        return consumer

    def left(self, consumer: Recorder) -> None:
        if consumer is self.active:
            highest = max(self.ranks.values(), default=0)
            self.active = next((each for each, rank in self.ranks.items() if rank == highest), None)

    def given(self, consumer: Recorder, kind: Kind, entry: Entry) -> None:
        assert self.may_get(consumer), "another is active"
        self.got(kind, entry)


class PrioritizedOfLevels(Prioritized, PriorityMachine):
    """Priorities of messages, too."""


class OneActiveOfLevels(OneActive, PriorityMachine):
    """Likewise."""


TestPrioritized = Prioritized.TestCase
TestOneActive = OneActive.TestCase
TestPrioritizedOfLevels = PrioritizedOfLevels.TestCase
TestOneActiveOfLevels = OneActiveOfLevels.TestCase
TestPrioritized.settings = TestOneActive.settings = examples(25, stateful_step_count=STEPS)
TestPrioritizedOfLevels.settings = TestOneActiveOfLevels.settings = examples(15, stateful_step_count=STEPS)
