"""Processes that share the work of a command: each does one task after the other, whichever is next.

They are spawned, not forked: a fork would copy other threads of the command (the progress bar's) in an undefined state.
They end when the command does, for whatever reason, and do not hear Ctrl-C: the command kills them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Final, TypeAlias, TypeVar, cast

from qstore.tools.console.command import signals_wait

_INTERRUPTS: Final = (signal.SIGINT, signal.SIGHUP)  # sent by a terminal to every process of a command

Task = TypeVar("Task")
Result = TypeVar("Result")
_Pipe: TypeAlias = "Connection[Any, Any]"


class WorkerKilledError(Exception):
    """A process was killed, perhaps because memory ran out."""


def in_processes(do: Callable[[Task], Result], tasks: Iterable[Task], count: int) -> Generator[Result]:
    """Do tasks in processes, which are killed when the iterator is closed (`contextlib.closing`).

    Args:
        do: does one; it, its tasks and its results are pickled.
        tasks: what to do.
        count: number of processes.

    Yields:
        The results, in the order in which they are complete.

    Raises:
        WorkerKilledError: a process was killed.
    """
    waiting = iter(tasks)
    with _workers(do, count) as workers:
        busy = {worker for worker in workers if _gets_task(worker, waiting)}
        while busy:
            ready = wait(list(busy))
            for worker in [each for each in busy if each in ready]:
                try:
                    result = cast(Result, worker.recv())
                except (EOFError, ConnectionError):
                    raise WorkerKilledError from None
                if not _gets_task(worker, waiting):
                    busy.discard(worker)
                yield result


def _gets_task(worker: _Pipe, waiting: Iterator[Any]) -> bool:
    """Give a process the next task, if there is one."""
    try:
        task = next(waiting)
    except StopIteration:
        return False
    on_broken_pipe = signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # commands end silently on one of their output
    try:
        worker.send(task)
    except ConnectionError:
        raise WorkerKilledError from None
    finally:
        signal.signal(signal.SIGPIPE, on_broken_pipe)
    return True


@contextmanager
def _workers(do: Callable[[Any], Any], count: int) -> Iterator[list[_Pipe]]:
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    try:
        with signals_wait():
            resource_tracker.ensure_running()  # otherwise the first worker starts it, and the signal mask is inherited
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)  # inherited
            try:
                for _ in range(count):
                    own, theirs = context.Pipe()
                    pipes.append(own)
                    process = context.Process(target=_work, args=(do, theirs), daemon=True)
                    process.start()
                    processes.append(process)
                    theirs.close()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield pipes
    finally:
        for process in processes:
            process.kill()  # it is idle, or its result is incomplete in any case
            process.join()
        for pipe in pipes:
            pipe.close()


def _work(do: Callable[[Any], Any], pipe: _Pipe) -> None:
    """Main function of a process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        pipe.send(do(pipe.recv()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
