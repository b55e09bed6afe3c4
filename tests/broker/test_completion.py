"""The completion ledger: which of a publisher's numbers are done, against sets of ints."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from qstore.broker.model.completion import CompletionLedger, Done, Runs

NUMBERS = st.integers(min_value=0, max_value=40)
RANGES = st.tuples(NUMBERS, NUMBERS).map(lambda pair: (min(pair), max(pair)))


def members(done: Done) -> set[int]:
    """All numbers that are done."""
    return set(range(done.below)) | {number for first, last in done.beyond for number in range(first, last + 1)}


def state(ledger: CompletionLedger) -> tuple[int, list[tuple[int, int]]]:
    """What is done: all below a number, and the runs above it."""
    return ledger.done.below, ledger.done.beyond


# ---- the set ----


@given(st.lists(RANGES, max_size=30))
def test_completed_numbers_form_the_fewest_runs(ranges: list[tuple[int, int]]) -> None:
    done, model = Done(), set[int]()
    for first, last in ranges:
        done.add(first, last)
        model.update(range(first, last + 1))
        assert members(done) == model
        assert done.below == min(set(range(42)) - model)
        runs = [(-1, done.below - 1), *done.beyond]
        assert all(last + 1 < first for (_, last), (first, _) in pairwise(runs))


def test_completion_starts_at_the_first_number() -> None:
    done = Done(100)
    assert (done.below, done.beyond) == (100, [])
    done.add(101, 102)
    assert (done.below, done.beyond) == (100, [(101, 102)])
    done.add(100, 100)
    assert (done.below, done.beyond) == (103, [])


def test_many_gaps_are_no_trouble() -> None:
    done = Done()
    for number in range(1, 100_000, 2):
        done.add(number, number)
    assert len(done.beyond) == 50_000
    for number in range(0, 100_000, 2):
        done.add(number, number)
    assert (done.below, done.beyond) == (100_000, [])


# ---- the ledger, by example ----


def test_number_not_held_is_done_on_settling() -> None:
    ledger = CompletionLedger()
    assert ledger.complete_below(3) == []
    assert state(ledger) == (3, [])
    assert ledger.complete_below(3) == []
    assert state(ledger) == (3, [])


def test_held_number_is_done_on_release() -> None:
    ledger = CompletionLedger(10)
    for number in (12, 13, 17):
        ledger.hold(number)
    assert state(ledger) == (10, [])
    assert ledger.complete_below(20) == [[12, 13], [17, 17]]
    assert state(ledger) == (12, [(14, 16), (18, 19)])
    ledger.complete([[17, 17]])
    assert state(ledger) == (12, [(14, 19)])
    ledger.complete([[12, 13]])
    assert state(ledger) == (20, [])


def test_each_tick_has_runs_of_its_own() -> None:
    """Numbers that follow each other and came in two ticks wait for two flushes."""
    ledger = CompletionLedger()
    ledger.hold(0)
    assert ledger.complete_below(1) == [[0, 0]]
    ledger.hold(1)
    assert ledger.complete_below(2) == [[1, 1]]
    ledger.complete([[1, 1]])
    assert state(ledger) == (0, [(1, 1)])


def test_postponed_number_is_not_among_the_held_runs() -> None:
    ledger = CompletionLedger()
    ledger.hold(1)
    ledger.postpone(2)
    assert ledger.complete_below(4) == [[1, 1]]
    assert state(ledger) == (1, [(3, 3)])
    ledger.complete([[2, 2]])
    ledger.complete([[1, 1]])
    assert state(ledger) == (4, [])


def test_a_number_is_held_and_postponed() -> None:
    """A command that is to wait for the disk, and then fails."""
    ledger = CompletionLedger()
    ledger.hold(1)
    ledger.postpone(1)
    assert ledger.complete_below(3) == [[1, 1]]
    assert state(ledger) == (1, [(2, 2)])


def test_a_barrier_waits_for_all_before_it_and_for_nothing_after_it() -> None:
    ledger = CompletionLedger()
    ledger.hold(0)
    ledger.hold_for_all_before(1)
    ledger.hold(2)
    ledger.hold_for_all_before(3)
    assert ledger.complete_below(4) == [[0, 3]]
    ledger.complete([[2, 3]])
    assert state(ledger) == (0, [(2, 2)])
    ledger.complete([[0, 1]])
    assert state(ledger) == (4, [])


def test_barrier_waits_for_postponed_numbers() -> None:
    ledger = CompletionLedger()
    ledger.postpone(0)
    ledger.hold_for_all_before(1)
    ledger.complete(ledger.complete_below(3))
    assert state(ledger) == (0, [(2, 2)])
    ledger.complete([[0, 0]])
    assert state(ledger) == (3, [])


def test_a_flush_that_fails_leaves_its_numbers_and_the_barriers_above_them_undone() -> None:
    ledger = CompletionLedger()
    ledger.hold(0)
    ledger.complete_below(1)  # and the flush fails: nobody releases it
    ledger.hold(1)
    ledger.hold_for_all_before(2)
    ledger.complete(ledger.complete_below(4))
    assert state(ledger) == (0, [(1, 1), (3, 3)])


def test_postponing_after_settling_completes_nothing_else() -> None:
    """The disk fails under numbers that are held, in a tick that has brought others."""
    ledger = CompletionLedger()
    for number in range(5):
        ledger.hold(number)
    ledger.complete_below(5)
    ledger.postpone(1)
    assert ledger.complete_below(7) == []
    assert state(ledger) == (0, [(5, 6)])


# ---- the ledger, against a model ----

Flush: TypeAlias = tuple[Runs, frozenset[int]]


class LedgerMachine(RuleBasedStateMachine):
    """Numbers come and wait in all ways; flushes end in any order, and some fail.

    The model has two sets: the numbers that still wait for something of their own, and the barriers. A number is done
    when it was settled and waits for nothing; a barrier waits for no flush, only until all below it are done.
    """

    flushes = Bundle("flushes")
    postponed = Bundle("postponed")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = CompletionLedger()
        self.came = 0
        self.held_now: set[int] = set()
        self.waiting: set[int] = set()
        self.barriers: set[int] = set()
        self.done_before: set[int] = set()

    def _next(self) -> int:
        number = self.came
        self.came += 1
        return number

    @rule(count=st.integers(1, 4))
    def plain(self, count: int) -> None:
        """Numbers that do not wait: the ledger is not called."""
        self.came += count

    @rule(count=st.integers(1, 4))
    def held(self, count: int) -> None:
        for _ in range(count):
            number = self._next()
            self.ledger.hold(number)
            self.held_now.add(number)

    @rule(target=postponed)
    def postpone(self) -> int:
        number = self._next()
        self.ledger.postpone(number)
        self.waiting.add(number)
        return number

    @rule()
    def barrier(self) -> None:
        number = self._next()
        self.ledger.hold_for_all_before(number)
        self.held_now.add(number)
        self.barriers.add(number)

    @rule(target=flushes)
    def settle(self) -> Flush | object:
        runs = self.ledger.complete_below(self.came)
        numbers = [number for first, last in runs for number in range(first, last + 1)]
        assert numbers == sorted(self.held_now), "the runs are what is held, in order, each number once"
        assert all(last + 1 < first for (_, last), (first, _) in pairwise(runs)), "the runs do not touch"
        self.waiting |= self.held_now - self.barriers
        self.held_now = set()
        return (runs, frozenset(numbers)) if runs else multiple()

    @rule(flush=consumes(flushes))
    def flush_ends(self, flush: Flush) -> None:
        runs, numbers = flush
        self.waiting -= numbers
        self.ledger.complete(runs)

    @rule(flush=consumes(flushes))
    def flush_fails(self, flush: Flush) -> None:
        """Its numbers are never released and keep waiting. The first one waits for others, too."""
        self.ledger.postpone(flush[0][0][0])

    @rule(number=consumes(postponed))
    def release(self, number: int) -> None:
        self.settle_all()
        self.waiting.discard(number)
        self.ledger.complete([[number, number]])

    def settle_all(self) -> None:
        """End the tick, with a flush that fails if anything is held: what is postponed is released later than that."""
        self.ledger.complete_below(self.came)
        self.waiting |= self.held_now - self.barriers
        self.held_now = set()

    @invariant()
    def completed_numbers_equal_the_model(self) -> None:
        done = members(self.ledger.done)
        expected = set(range(self.ledger.processed)) - self.waiting
        for barrier in sorted(self.barriers):
            if not expected.issuperset(range(barrier)):
                expected.discard(barrier)
        # A barrier may be done before its tick is settled, when nothing below it waits any more.
        early = {each for each in self.barriers & self.held_now if each in done and done.issuperset(range(each))}
        assert done - early == expected
        assert done >= self.done_before, "what is done stays done"
        self.done_before = done


LedgerMachine.TestCase.settings = settings(stateful_step_count=40)
TestLedgerMachine = LedgerMachine.TestCase
