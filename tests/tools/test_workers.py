"""The processes that share the work of a command."""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import closing

import pytest

from qstore.tools.console.workers import WorkerKilledError, in_processes


def square(number: int) -> int:
    return number * number


def wait_after_the_first(number: int) -> int:
    if number:
        time.sleep(600)
    return number


def die(number: int) -> int:
    os._exit(number)


def test_every_task_is_done_once() -> None:
    assert sorted(in_processes(square, range(20), 2)) == [number * number for number in range(20)]


def test_processes_are_gone_when_an_error_is_handled() -> None:
    """A caller may remove what they were writing."""
    with pytest.raises(OSError, match="full"):  # noqa: PT012
        try:
            with closing(in_processes(wait_after_the_first, range(3), 2)) as results:
                for _ in results:
                    raise OSError("full")
        except OSError:
            assert multiprocessing.active_children() == []
            raise


def test_a_process_that_dies_is_an_error() -> None:
    with pytest.raises(WorkerKilledError):
        list(in_processes(die, [3], 1))
    assert multiprocessing.active_children() == []
