"""A priority queue against a list: as `test_queue_machine`, and each consumer is given the one message that it has to
be: of those that it can take, the oldest of the level whose turn it is."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from qstore.broker.model.message import PLAIN_HANDLING
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.priority import PriorityOrder
from tests.broker.test_queue_machine import WAITING, Item, Kind, QueueMachine, TrackedMessage
from tests.support.profiles import examples


class Rounds:
    """Whose turn it is, with limits for some levels."""

    def __init__(self, limits: list[int]) -> None:
        self.limits = limits
        self.begin()

    def begin(self) -> None:
        self.level, self.left = len(self.limits) - 1, self.limits[-1]

    def next_level(self, there: set[int]) -> int:
        """Of the levels that have something, which is next."""
        level = self.level
        if self.limits[level] and not self.left:
            level -= 1
        for _ in self.limits:
            level %= len(self.limits)
            if level in there:
                return level
            level -= 1
        raise AssertionError("nothing is there")

    def took(self, level: int) -> None:
        if level != self.level or (self.limits[level] and not self.left):
            self.level, self.left = level, self.limits[level]
        self.left -= 1


class PriorityMachine(QueueMachine):
    @initialize(
        levels=st.integers(2, 10),
        limits=st.none() | st.lists(st.integers(0, 3), min_size=10, max_size=10),
        priorities=st.lists(st.integers(0, 9), min_size=1, max_size=12),
        is_capped=st.booleans(),
    )
    def begin(self, levels: int, limits: list[int] | None, priorities: list[int], is_capped: bool) -> None:
        self.levels, self.priorities, self.is_capped = levels, priorities, is_capped
        self.limits = [0] * levels if limits is None else limits[:levels]
        self.rounds = Rounds(self.limits) if any(self.limits) else None
        self.asked: set[Kind] = set()
        self.begin_with_nothing()

    def new_order(self) -> PriorityOrder:
        return PriorityOrder(self.levels, self.limits, is_capped=self.is_capped)

    def level(self, place: int) -> int:
        """By the rule priority-level-implementation, in its own words."""
        priority, levels = self.priorities[place % len(self.priorities)], self.levels
        if self.is_capped:
            return priority if priority < levels else levels - 1
        distinct = list(range(5 - -(-levels // 2), 4 + levels // 2 + 1))
        assert len(distinct) == levels
        return distinct.index(min(max(priority, distinct[0]), distinct[-1]))

    def new_message(self, *, kept: bool, lasts: float) -> tuple[TrackedMessage, Item]:
        message, item = super().new_message(kept=kept, lasts=lasts)
        message.handling = PLAIN_HANDLING._replace(priority=self.priorities[item.place % len(self.priorities)])
        return message, item

    def to_purge(self, places: list[int]) -> list[int]:
        return sorted(places, key=lambda place: (self.level(place), place))

    @rule(count=st.integers(2, 12))
    def burst(self, count: int) -> None:
        for _ in range(count):
            self.publish(kept=False, lasts=0)

    @rule(count=st.integers(2, 12), credit=st.integers(3, 12))
    def burst_for_all(self, count: int, credit: int) -> None:
        self.burst(count=count)
        for consumer in self.consumers:
            consumer.give(credit)
        self.dispatch()

    def got(self, kind: Kind, entry: Entry) -> None:
        there: dict[int, list[int]] = {}
        for place, item in self.items.items():
            if item.state == WAITING and place < self.limit and not self.is_expired(item) and kind.takes(place):
                there.setdefault(self.level(place), []).append(place)
        level = max(there) if self.rounds is None else self.rounds.next_level(set(there))
        assert entry.position == min(there[level])
        if self.rounds is not None:
            self.rounds.took(level)
        super().got(kind, entry)

    def check_order(self, kind: Kind, item: Item) -> None:
        """Was checked by `got`."""

    @rule()
    def dispatch(self) -> None:
        self.asked.update(
            each.wants
            for each in self.consumers
            if each.acquires and each.is_waiting and self.may_get(each) and isinstance(each.wants, Kind)
        )
        self.dispatch_and_look()
        left = [place for place, item in self.items.items() if item.state == WAITING and place < self.limit]
        if self.rounds is not None and all(
            kind in self.declined.get(place, ()) for place in left for kind in self.asked
        ):
            self.rounds.begin()


TestPriorityMachine = PriorityMachine.TestCase
TestPriorityMachine.settings = examples(150, stateful_step_count=60)
