"""Creates a fleet: its stores, serially or in several processes, and the list of them.

    OUT/MANIFEST.jsonl       a line about the fleet (kind "fleet": the request), then one about each store
        STORE-0001/          a store
        STORE-0001.jsonl     its content: see `make`

MANIFEST.jsonl is written last: if it exists, the fleet is complete.
"""

from __future__ import annotations

import multiprocessing
import os
import posixpath
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, TypeAlias

from qstore.store.errors import StoreError
from qstore.store.key_value import CatalogueError
from qstore.tools.console.json_lines import JsonLines
from qstore.tools.entry import signals_wait
from qstore.tools.generate.fleet import FleetSpec, PlanError, plan_store
from qstore.tools.generate.make import Fields, make_store

MANIFEST: Final = "MANIFEST.jsonl"
#: Bytes that must be free in addition to the journals: for each store (its catalogue), and in the lists for each
#: message that they may contain.
_PER_STORE: Final = 2 << 20
_PER_MESSAGE: Final = 180
_KILLED: Final = "a process that was creating a store was killed, or ran out of memory"
_INTERRUPTS: Final = (signal.SIGINT, signal.SIGHUP)  # sent by a terminal to every process of a command

_Connection: TypeAlias = "Connection[Any, Any]"


class MakerKilledError(Exception):
    """A worker process was killed while it was creating a store; the text says so."""


def fleet_fields(spec: FleetSpec) -> Fields:
    """The line about the fleet."""
    values = {each.name: getattr(spec, each.name) for each in fields(spec)}
    sizes = values.pop("sizes")
    shape = {name: getattr(sizes, name) for name in ("kind", "first", "last", "sigma")}
    return {"kind": "fleet", **values, "sizes": shape}


def planned_fields(spec: FleetSpec) -> Iterator[Fields]:
    """The planned values of each store, without creating it. Raises PlanError."""
    for number in range(1, spec.stores + 1):
        plan = plan_store(spec, number)
        yield {
            "kind": "store",
            "name": plan.name,
            "format": spec.format.value,
            "seed": plan.seed,
            "queues": len(plan.queues),
            "expected_messages": sum(0 if each.messages == 0 else each.expected for each in plan.queues),
            "journal_bytes": plan.size,
            "damage": sum(each.damage is not None for each in plan.queues),
        }


def check_place(directory: str, planned: list[Fields]) -> None:
    """Check that the fleet can be created there.

    Args:
        directory: the fleet's directory.
        planned: `planned_fields` of it.

    Raises:
        StoreError: the directory is not empty, its parent does not exist, or there is not enough space.
        OSError: it cannot be examined.
    """
    path = Path(directory)
    parent = path if path.is_dir() else path.parent
    if not parent.is_dir():
        raise StoreError(f"{parent}: there is no such directory; create it first")
    if path.is_dir():
        if next(path.iterdir(), None) is not None:
            raise StoreError(f"{directory}: not empty; name a directory that does not exist, or is empty")
    elif path.exists() or path.is_symlink():
        raise StoreError(f"{directory}: not a directory; name one that does not exist, or is empty")
    needed = sum(each["journal_bytes"] + _PER_STORE + each["expected_messages"] * _PER_MESSAGE for each in planned)
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise StoreError(f"{parent}: {needed:,} bytes are needed, and {free:,} are free; request less, or make room")


def make_fleet(spec: FleetSpec, directory: str, jobs: int, written: Callable[[int], None]) -> Iterator[Fields]:
    """Create the fleet, after `check_place`.

    Args:
        spec: the request.
        directory: the fleet's directory.
        jobs: number of worker processes.
        written: called with the number of bytes of journals that were created.

    Yields:
        The line about each store, in order, when it and all before it are complete.

    Raises:
        PlanError, StoreError, CatalogueError, OSError: it cannot be created; nothing is left of it.
        MakerKilledError: likewise; completed stores remain, without a list.
    """
    is_new = not Path(directory).is_dir()
    Path(directory).mkdir(exist_ok=True)
    try:
        yield from _create_stores(spec, directory, jobs, written)
    except (PlanError, StoreError, CatalogueError, OSError):
        _remove(Path(directory), keep=not is_new)
        raise


def _remove(directory: Path, *, keep: bool) -> None:
    """Remove the files of a fleet, and the directory except for `keep`, as far as possible."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if not keep:
        with suppress(OSError):
            directory.rmdir()


def _create_stores(spec: FleetSpec, directory: str, jobs: int, written: Callable[[int], None]) -> Iterator[Fields]:
    """Create the stores, and then their list. Yields the line about each store."""
    lines = [fleet_fields(spec)]
    stores = _alone(spec, directory, written) if jobs == 1 else _in_parallel(spec, directory, jobs, written)
    for store in stores:
        lines.append(store)
        yield store
    building = Path(posixpath.join(directory, f"{MANIFEST}.new"))  # the name appears when the content is complete
    with building.open("xb") as file:
        output = JsonLines(file)
        for line in lines:
            output.show(line)
        output.flush()
    building.rename(posixpath.join(directory, MANIFEST))


def _alone(spec: FleetSpec, directory: str, written: Callable[[int], None]) -> Iterator[Fields]:
    for number in range(1, spec.stores + 1):
        yield make_store(spec, directory, number, written)


def _in_parallel(spec: FleetSpec, directory: str, jobs: int, written: Callable[[int], None]) -> Iterator[Fields]:
    """Each process creates one store after the other, whichever is next."""
    numbers = iter(range(1, spec.stores + 1))
    first, made = 1, dict[int, Fields]()
    with _workers(spec, directory, min(jobs, spec.stores)) as makers:
        busy: dict[_Connection, int] = {}
        for maker in makers:
            _assign(maker, numbers, busy)
        while busy:
            ready = wait(list(busy))
            for maker in [each for each in busy if each in ready]:
                number = busy.pop(maker)
                made[number] = _result(maker)
                written(plan_store(spec, number).size)
                _assign(maker, numbers, busy)
            while first in made:
                yield made.pop(first)
                first += 1


def _assign(maker: _Connection, numbers: Iterator[int], busy: dict[_Connection, int]) -> None:
    """Assign the next store to a process, if there is one. Raises MakerKilledError."""
    number = next(numbers, None)
    if number is None:
        return
    on_broken_pipe = signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # commands end silently on one of their output
    try:
        maker.send(number)
    except ConnectionError:
        raise MakerKilledError(_KILLED) from None
    finally:
        signal.signal(signal.SIGPIPE, on_broken_pipe)
    busy[maker] = number


def _result(maker: _Connection) -> Fields:
    """The result of a process. Raises as `make_store`, and MakerKilledError."""
    try:
        made = maker.recv()
    except (EOFError, ConnectionError):
        raise MakerKilledError(_KILLED) from None
    if isinstance(made, Exception):
        raise made
    assert isinstance(made, dict)
    return made


@contextmanager
def _workers(spec: FleetSpec, directory: str, count: int) -> Iterator[list[_Connection]]:
    """Worker processes: they receive numbers of stores, and return the lines about these stores, or errors."""
    # Spawned, not forked: a fork would copy other threads of this process (the progress bar's) in an undefined state.
    context = multiprocessing.get_context("spawn")
    processes, connections = [], []
    try:
        with signals_wait():
            resource_tracker.ensure_running()  # otherwise the first worker starts it, and the signal mask is inherited
            # They inherit that Ctrl-C is blocked: this process ends them.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
            try:
                for _ in range(count):
                    own, theirs = context.Pipe()
                    connections.append(own)
                    process = context.Process(target=_worker_main, args=(spec, directory, theirs), daemon=True)
                    process.start()
                    processes.append(process)
                    theirs.close()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield connections
    finally:
        for process in processes:
            process.kill()  # it is idle, or its store is incomplete in any case
            process.join()
        for connection in connections:
            connection.close()


def _worker_main(spec: FleetSpec, directory: str, connection: _Connection) -> None:
    """Main function of a worker process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        number = connection.recv()
        made: Fields | Exception
        try:
            made = make_store(spec, directory, number)
        except (PlanError, StoreError, CatalogueError, OSError) as error:
            made = error
        connection.send(made)


def _end_with_parent() -> None:
    """Exit when the parent exits, for whatever reason."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
