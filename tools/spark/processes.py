"""Stores that processes of this machine read, without Spark: its start takes 7 s of processor time.

A process gets a group of stores through its pipe, writes their tables (`stores`), hands back what it found, and gets
the next group. It ends when this process does, for whatever reason.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final

from qstore.tools.console.command import signals_wait
from qstore.tools.spark.inputs import Input
from qstore.tools.spark.stores import Found, Job, write_stores

_INTERRUPTS: Final = (signal.SIGINT, signal.SIGHUP)
_KILLED: Final = "a process that reads stores was killed, perhaps for lack of memory: use fewer (--master local[1])"

#: Takes the numbers of groups that are done, and of all.
Done = Callable[[int, int], None]
_Group = Sequence[Input]
if TYPE_CHECKING:
    _Pipe = Connection[Any, Any]


class ReaderKilledError(Exception):
    """A process was killed; the text says what to do."""


def write_in_processes(job: Job, groups: Sequence[_Group], count: int, done: Done) -> list[Found]:
    """Write the files of groups of stores.

    Args:
        job: what to write.
        groups: the stores; each group has its own files.
        count: number of processes.
        done: called when a group is done.

    Raises:
        ReaderKilledError: a process was killed.
    """
    found: list[Found] = []
    waiting = iter(enumerate(groups))
    with _readers(job, min(count, len(groups))) as readers:
        busy = {reader for reader in readers if _assigned(reader, waiting)}
        complete = 0
        while busy:
            for reader in wait(list(busy)):
                assert isinstance(reader, Connection)
                try:
                    found += reader.recv()
                except (EOFError, ConnectionError):
                    raise ReaderKilledError(_KILLED) from None
                complete += 1
                done(complete, len(groups))
                if not _assigned(reader, waiting):
                    busy.discard(reader)
    return found


def _assigned(reader: _Pipe, waiting: Iterator[tuple[int, _Group]]) -> bool:
    """Give a process the next group, if there is one. Raises ReaderKilledError."""
    group = next(waiting, None)
    if group is None:
        return False
    on_broken_pipe = signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # commands end silently on one of their output
    try:
        reader.send(group)
    except ConnectionError:
        raise ReaderKilledError(_KILLED) from None
    finally:
        signal.signal(signal.SIGPIPE, on_broken_pipe)
    return True


@contextmanager
def _readers(job: Job, count: int) -> Iterator[list[_Pipe]]:
    """Processes, which are killed at the end."""
    # Spawned, not forked: a fork would copy other threads of this process (the progress bar's) in an undefined state.
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    try:
        with signals_wait():
            resource_tracker.ensure_running()  # otherwise the first process starts it, with the signal mask
            # They inherit that Ctrl-C is blocked: this process ends them.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
            try:
                for _ in range(count):
                    own, theirs = context.Pipe()
                    pipes.append(own)
                    process = context.Process(target=_read, args=(job, theirs), daemon=True)
                    process.start()
                    processes.append(process)
                    theirs.close()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield pipes
    finally:
        for process in processes:
            process.kill()  # it is idle, or its results are incomplete in any case
            process.join()
        for pipe in pipes:
            pipe.close()


def _read(job: Job, pipe: _Pipe) -> None:
    """Main function of a process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.umask(0o077)
    while True:
        number, group = pipe.recv()
        pipe.send(list(write_stores(job, number, group)))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
