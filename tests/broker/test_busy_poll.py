"""When the event loop polls after a tick, with a clock and a loop that the tests advance."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qstore.broker.network.busy_poll import FEW, IDLE_GAP, WINDOW, BusyPoll

SOON, LATE = WINDOW / 2, WINDOW * 20
STEP = WINDOW / 10


class Loop:
    """An event loop whose iterations take `STEP`, and that counts those in which it did not sleep."""

    def __init__(self, processors: int = 2) -> None:
        self.now, self.awake = 100.0, 0
        self._calls: list[Callable[[], None]] = []
        self.poll = BusyPoll(self._calls.append, lambda: self.now, processors)

    def tick(self, *gaps: float) -> None:
        """Input after each of these gaps, and then the end of a tick."""
        for gap in gaps:
            until = self.now + gap
            while self._calls and self.now < until:
                calls, self._calls[:] = list(self._calls), []
                for call in calls:
                    call()
                self.awake += 1
                self.now += STEP
            self.now = max(self.now, until)
            self.poll.begins()
            self.poll.ends()


def test_it_stays_awake_for_a_client_that_answers_at_once() -> None:
    loop = Loop()
    loop.tick(LATE, SOON)
    assert loop.awake == 0
    loop.tick(*[SOON] * 10)
    assert 30 < loop.awake < 70


def test_it_sleeps_after_a_moment_without_input() -> None:
    loop = Loop()
    loop.tick(*[SOON] * 10)
    before = loop.awake
    loop.tick(1.0)
    assert loop.awake - before <= WINDOW / STEP + 2


@pytest.mark.parametrize("gaps", [[LATE], [SOON, LATE], [SOON, LATE, LATE]], ids=["rare", "pairs", "rarer"])
def test_it_sleeps_at_once_where_input_comes_at_intervals(gaps: list[float]) -> None:
    loop = Loop()
    loop.tick(*gaps * 5)
    before = loop.awake
    loop.tick(*gaps * 100)
    assert loop.awake == before


def test_a_client_that_begins_to_answer_at_once_is_noticed() -> None:
    loop = Loop()
    loop.tick(*[LATE] * 100)
    loop.tick(*[SOON] * 20)
    assert loop.awake > 0


def test_fruitless_polling_is_bounded() -> None:
    """At worst there is a long gap for each two short ones."""
    loop = Loop()
    loop.tick(*[SOON, SOON, LATE] * 100)
    assert loop.awake <= 100 * 3 * (WINDOW / STEP + 2)


def test_several_inputs_of_one_tick_count_once() -> None:
    loop = Loop()
    loop.tick(LATE, SOON)
    for _ in range(20):
        loop.poll.begins()
    loop.poll.ends()
    loop.tick(LATE, LATE)
    before = loop.awake
    loop.tick(SOON)
    assert loop.awake == before


def test_one_processor_is_left_to_the_client() -> None:
    loop = Loop(processors=1)
    loop.tick(*[SOON] * 100)
    assert loop.awake == 0


# ---- whether the loop is idle ----


def test_a_loop_that_has_slept_is_idle_for_a_few_inputs() -> None:
    """An acknowledgement may come right before the next message."""
    loop = Loop()
    loop.now += IDLE_GAP * 2
    for number in range(1, FEW + 3):
        loop.poll.begins()
        assert loop.poll.is_idle(0, 1) == (number <= FEW)
        loop.now += IDLE_GAP / 10


def test_a_loop_that_waited_for_the_disk_has_slept() -> None:
    loop = Loop()
    for _ in range(FEW + 5):
        loop.poll.begins()
        assert loop.poll.is_idle(0, 1)
        loop.now += IDLE_GAP * 2  # the disk


def test_long_work_does_not_count_as_sleep() -> None:
    loop = Loop()
    loop.now += IDLE_GAP * 2
    for _ in range(FEW + 1):
        loop.poll.begins()
        loop.now += IDLE_GAP * 10
        loop.poll.worked()
    assert not loop.poll.is_idle(0, 1)


def test_peers_that_wait_for_the_disk_leave_the_loop_idle() -> None:
    loop = Loop()
    loop.now += IDLE_GAP * 2
    for _ in range(10):
        for _ in range(20):
            loop.poll.begins()
        assert loop.poll.is_idle(20, 2)
        loop.now += IDLE_GAP / 10


def test_input_of_others_besides_keeps_the_loop_busy_until_it_sleeps() -> None:
    loop = Loop()
    loop.now += IDLE_GAP * 2
    for count in (21, 20, 20):
        for _ in range(count):
            loop.poll.begins()
        assert not loop.poll.is_idle(20, 2)
        loop.now += IDLE_GAP / 10
    loop.now += IDLE_GAP * 2
    for _ in range(20):
        loop.poll.begins()
    assert loop.poll.is_idle(20, 2)


def test_peers_of_one_connection_do_not_stand_for_others() -> None:
    """Several sessions may wait after one input: they make up for no input of a later tick."""
    loop = Loop()
    loop.now += IDLE_GAP * 2
    loop.poll.begins()
    assert loop.poll.is_idle(20, 2)
    for _ in range(FEW):
        loop.poll.begins()
    assert not loop.poll.is_idle(0, 1)


def test_a_peer_that_goes_on_sending_finds_the_loop_idle_for_its_first_flush() -> None:
    """What comes during that one waits for the next, which a thread does: so the loop reads meanwhile."""
    loop = Loop()
    loop.now += IDLE_GAP * 2
    loop.poll.begins()
    assert loop.poll.is_idle(0, 1)
    loop.now += IDLE_GAP / 10
    assert not loop.poll.is_idle(0, 1)
    loop.poll.begins()
    assert not loop.poll.is_idle(0, 2)
