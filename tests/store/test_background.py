"""Background changes of the catalogue: beside the event loop, or at once."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType

import pytest

from qstore.store.environment import MAX_TOGETHER, Background, InlineBackground, ThreadBackground
from tests.support.garbage import no_garbage
from tests.support.processes import PATIENCE_SECONDS


@pytest.fixture(params=[InlineBackground, ThreadBackground])
def background(request: pytest.FixtureRequest) -> Iterator[Background]:
    background: Background = request.param()
    yield background
    background.close()


@pytest.fixture
def threaded() -> Iterator[ThreadBackground]:
    background = ThreadBackground()
    yield background
    background.close()


def is_readable(descriptor: int, seconds: float = 0.0) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def collect_until(background: Background, condition: Callable[[], bool]) -> None:
    """As an event loop does: only when there is something to read."""
    while not condition():
        if background.fileno() >= 0:
            assert is_readable(background.fileno(), PATIENCE_SECONDS)
        background.collect()


def unexpected(error: Exception) -> None:
    raise AssertionError(error)


def raise_value_error() -> int:
    raise ValueError("it went wrong")


def test_work_and_its_callbacks_run_in_order(background: Background) -> None:
    done: list[int] = []
    reported: list[int] = []
    for number in range(1000):

        def work(number: int = number) -> int:
            done.append(number)
            return number * number

        background.run(work, reported.append, unexpected)
    collect_until(background, lambda: len(reported) == 1000)
    assert done == list(range(1000))
    assert reported == [number * number for number in range(1000)]
    background.wait()  # who is told may come before the thread has counted
    assert not background.is_busy


def test_an_error_is_reported_and_the_next_work_is_done(background: Background) -> None:
    reported: list[object] = []
    background.run(raise_value_error, reported.append, reported.append)
    background.run(lambda: 7, reported.append, unexpected)
    collect_until(background, lambda: len(reported) == 2)
    assert isinstance(reported[0], ValueError)
    assert reported[1] == 7


def test_callbacks_run_only_in_collect(background: Background) -> None:
    reported: list[int] = []
    background.run(lambda: 1, reported.append, unexpected)
    background.wait()
    assert reported == []
    assert background.is_busy
    background.collect()
    assert reported == [1]
    assert not background.is_busy


def test_callback_may_run_further_work(background: Background) -> None:
    reported: list[int] = []

    def again(number: int) -> None:
        reported.append(number)
        if number < 100:
            background.run(lambda: number + 1, again, unexpected)

    background.run(lambda: 1, again, unexpected)
    collect_until(background, lambda: len(reported) == 100)
    assert reported == list(range(1, 101))


def test_error_in_one_callback_does_not_lose_the_others(background: Background) -> None:
    """The caller gets the error; the next `collect` goes on, and nothing waits forever."""
    reported: list[int] = []

    def faulty(result: int) -> None:
        raise RuntimeError("a fault of the program")

    background.run(lambda: 1, faulty, unexpected)
    background.run(lambda: 2, reported.append, unexpected)
    background.wait()
    with pytest.raises(RuntimeError, match="a fault of the program"):
        background.collect()
    assert background.is_busy
    background.collect()
    assert reported == [2]
    assert not background.is_busy


def test_the_inline_one_has_no_descriptor_and_works_at_once() -> None:
    background = InlineBackground()
    done: list[str] = []
    background.run(lambda: done.append("work"), lambda _: done.append("told"), unexpected)
    assert (background.fileno(), done) == (-1, ["work"])


def test_the_thread_is_another_and_the_caller_does_not_wait(threaded: ThreadBackground) -> None:
    may_go_on = threading.Event()
    threads: list[int] = []

    def work() -> int:
        assert may_go_on.wait(PATIENCE_SECONDS)
        return threading.get_ident()

    threaded.run(work, threads.append, unexpected)
    threaded.collect()
    assert threads == []
    assert threaded.is_busy
    assert not is_readable(threaded.fileno())
    may_go_on.set()
    collect_until(threaded, lambda: bool(threads))
    assert threads != [threading.get_ident()]


def test_the_descriptor_is_readable_only_while_a_caller_waits(threaded: ThreadBackground) -> None:
    reported: list[int] = []
    for number in range(200):
        threaded.run(lambda number=number: number, reported.append, unexpected)  # type: ignore[misc]
        if number % 2:
            assert is_readable(threaded.fileno(), PATIENCE_SECONDS)
        while len(reported) == number:
            threaded.collect()  # it may find what is done before the descriptor is readable
        threaded.wait()
        threaded.collect()
        assert not is_readable(threaded.fileno())


def test_closing_waits_for_work_and_lets_everything_go() -> None:
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    background = ThreadBackground()
    done: list[int] = []
    for number in range(20):

        def work(number: int = number) -> None:
            time.sleep(0.001)
            done.append(number)

        background.run(work, lambda _: None, unexpected)
    background.close()
    background.close()
    assert done == list(range(20))
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (descriptors, threads)


def test_work_that_fails_is_forgotten(background: Background) -> None:
    reported: list[str] = []

    def work() -> None:
        raise OSError("no")

    with no_garbage(OSError, FunctionType):
        background.run(work, lambda _: None, lambda error: reported.append(str(error)))
        collect_until(background, lambda: bool(reported))
    assert reported == ["no"]


def test_items_that_wait_are_done_together_and_other_work_keeps_its_place(threaded: ThreadBackground) -> None:
    groups: list[list[int]] = []
    reported: list[int | str] = []
    begin = threading.Event()

    def together(items: Sequence[int]) -> list[int]:
        groups.append(list(items))
        return [item * 10 for item in items]

    threaded.run(begin.wait, lambda _: reported.append("begun"), unexpected)
    for number in range(3):
        threaded.run_together(together, number, reported.append, unexpected)
    threaded.run(lambda: groups.append([]), lambda _: reported.append("between"), unexpected)
    for number in range(3, 3 + MAX_TOGETHER + 1):
        threaded.run_together(together, number, reported.append, unexpected)
    begin.set()
    collect_until(threaded, lambda: len(reported) == 5 + MAX_TOGETHER + 1)
    assert [len(group) for group in groups] == [3, 0, MAX_TOGETHER, 1]
    assert reported == ["begun", 0, 10, 20, "between", *(10 * number for number in range(3, 4 + MAX_TOGETHER))]
    threaded.wait()  # the thread counts its work after it has handed over the last result
    assert not threaded.is_busy


def test_an_item_that_fails_fails_alone(background: Background) -> None:
    reported: list[object] = []

    def together(items: Sequence[int]) -> list[int | Exception]:
        return [ValueError("odd") if item % 2 else item for item in items]

    for number in range(4):
        background.run_together(together, number, reported.append, lambda error: reported.append(str(error)))
    collect_until(background, lambda: len(reported) == 4)
    assert reported == [0, "odd", 2, "odd"]


def test_an_error_of_the_whole_group_is_that_of_each_item_and_work_goes_on(threaded: ThreadBackground) -> None:
    reported: list[str] = []
    begin = threading.Event()

    def together(items: Sequence[int]) -> list[int]:
        raise ValueError(f"{len(items)} odd ones")

    threaded.run(begin.wait, lambda _: None, unexpected)
    for number in range(3):
        threaded.run_together(together, number, unexpected, lambda error: reported.append(str(error)))
    threaded.run(lambda: "more", reported.append, unexpected)
    begin.set()
    collect_until(threaded, lambda: len(reported) == 4)
    assert reported == ["3 odd ones"] * 3 + ["more"]


def test_items_are_done_before_a_close(threaded: ThreadBackground) -> None:
    done: list[int] = []
    begin = threading.Event()
    threaded.run(begin.wait, lambda _: None, unexpected)
    for number in range(3):
        threaded.run_together(lambda items: [done.append(item) for item in items], number, lambda _: None, unexpected)
    begin.set()
    threaded.close()
    assert done == [0, 1, 2]
