"""Makes a fleet: its stores, one after the other or by several processes, and the list of them.

    OUT/MANIFEST.jsonl       a line about the fleet (kind "fleet": what was asked for), then one about each store
        STORE-0001/          a store
        STORE-0001.jsonl     what is in it: `make`

MANIFEST.jsonl is written last: where it is, the fleet is whole.
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

from store.errors import StoreError
from store.key_value import CatalogueError
from tools.console.json_lines import JsonLines
from tools.entry import signals_wait
from tools.generate.fleet import FleetSpec, PlanError, plan_store
from tools.generate.make import Fields, make_store

MANIFEST: Final = "MANIFEST.jsonl"
#: Bytes that must be free besides the journals: for each store (its catalogue), and of the lists for each
#: message that may be in them.
_PER_STORE: Final = 2 << 20
_PER_MESSAGE: Final = 180
_INTERRUPTS: Final = (signal.SIGINT, signal.SIGHUP)  # what a terminal sends to every process of a command

_Connection: TypeAlias = "Connection[Any, Any]"


class MakerKilledError(Exception):
    """A process that was making a store is gone; the text says so."""


def fleet_fields(spec: FleetSpec) -> Fields:
    """The line about the fleet."""
    values = {each.name: getattr(spec, each.name) for each in fields(spec)}
    sizes = values.pop("sizes")
    shape = {name: getattr(sizes, name) for name in ("kind", "first", "last", "sigma")}
    return {"kind": "fleet", **values, "sizes": shape}


def planned_fields(spec: FleetSpec) -> Iterator[Fields]:
    """What each store will be, without making it. Raises PlanError."""
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
    """Whether the fleet can be made there.

    Args:
        directory: the fleet's.
        planned: `planned_fields` of it.

    Raises:
        StoreError: there is something, its parent is not there, or there is not enough room.
        OSError: it cannot be looked at.
    """
    path = Path(directory)
    parent = path if path.is_dir() else path.parent
    if not parent.is_dir():
        raise StoreError(f"{parent}: there is no such directory; make it first")
    if path.is_dir():
        if next(path.iterdir(), None) is not None:
            raise StoreError(f"{directory}: is not empty; name a directory that does not exist, or is empty")
    elif path.exists() or path.is_symlink():
        raise StoreError(f"{directory}: is no directory; name one that does not exist, or is empty")
    needed = sum(each["journal_bytes"] + _PER_STORE + each["expected_messages"] * _PER_MESSAGE for each in planned)
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise StoreError(f"{parent}: {needed:,} bytes are needed, and {free:,} are free; ask for less, or make room")


def make_fleet(spec: FleetSpec, directory: str, jobs: int, written: Callable[[int], None]) -> Iterator[Fields]:
    """Make the fleet, for which `check_place` was asked.

    Args:
        spec: what it is to be.
        directory: where.
        jobs: how many processes make stores at the same time.
        written: told how many bytes of journals were made.

    Yields:
        The line about each store, in order, when it and all before it are made.

    Raises:
        PlanError, StoreError, CatalogueError, OSError: it cannot be made; nothing is left of it.
        MakerKilledError: likewise; what was made is there, without a list.
    """
    is_new = not Path(directory).is_dir()
    Path(directory).mkdir(exist_ok=True)
    try:
        yield from _made(spec, directory, jobs, written)
    except (PlanError, StoreError, CatalogueError, OSError):
        _remove(Path(directory), keep=not is_new)
        raise


def _remove(directory: Path, *, keep: bool) -> None:
    """Remove what was made of a fleet, and the directory but for `keep`, as far as that can be done."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if not keep:
        with suppress(OSError):
            directory.rmdir()


def _made(spec: FleetSpec, directory: str, jobs: int, written: Callable[[int], None]) -> Iterator[Fields]:
    """Make the stores, and then their list. Yields the line about each store."""
    lines = [fleet_fields(spec)]
    stores = _alone(spec, directory, written) if jobs == 1 else _together(spec, directory, jobs, written)
    for store in stores:
        lines.append(store)
        yield store
    building = Path(posixpath.join(directory, f"{MANIFEST}.new"))  # the name is there when the content is
    with building.open("xb") as file:
        output = JsonLines(file)
        for line in lines:
            output.show(line)
        output.flush()
    building.rename(posixpath.join(directory, MANIFEST))


def _alone(spec: FleetSpec, directory: str, written: Callable[[int], None]) -> Iterator[Fields]:
    for number in range(1, spec.stores + 1):
        yield make_store(spec, directory, number, written)


def _together(spec: FleetSpec, directory: str, jobs: int, written: Callable[[int], None]) -> Iterator[Fields]:
    """Each process makes one store after the other, whichever is next."""
    numbers = iter(range(1, spec.stores + 1))
    first, made = 1, dict[int, Fields]()
    with _makers(spec, directory, min(jobs, spec.stores)) as makers:
        busy: dict[_Connection, int] = {}
        for maker in makers:
            _give(maker, numbers, busy)
        while busy:
            ready = wait(list(busy))
            for maker in [each for each in busy if each in ready]:
                number = busy.pop(maker)
                made[number] = _taken(maker)
                written(plan_store(spec, number).size)
                _give(maker, numbers, busy)
            while first in made:
                yield made.pop(first)
                first += 1


def _give(maker: _Connection, numbers: Iterator[int], busy: dict[_Connection, int]) -> None:
    """Have a process make the next store, if there is one."""
    number = next(numbers, None)
    if number is not None:
        maker.send(number)
        busy[maker] = number


def _taken(maker: _Connection) -> Fields:
    """What a process has made. Raises as `make_store`, and MakerKilledError."""
    try:
        made = maker.recv()
    except (EOFError, ConnectionError):
        raise MakerKilledError("a process that was making a store was killed, or ran out of memory") from None
    if isinstance(made, Exception):
        raise made
    assert isinstance(made, dict)
    return made


@contextmanager
def _makers(spec: FleetSpec, directory: str, count: int) -> Iterator[list[_Connection]]:
    """Processes that make stores: numbers go in, and the lines about these stores, or errors, come out."""
    # Started anew, not forked: threads of this process (the progress bar's) would be lost in the middle of something.
    context = multiprocessing.get_context("spawn")
    processes, connections = [], []
    try:
        with signals_wait():
            resource_tracker.ensure_running()  # else the first process starts it, and that takes the block away again
            # They inherit that Ctrl-C does not reach them: this process ends them.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
            try:
                for _ in range(count):
                    own, theirs = context.Pipe()
                    connections.append(own)
                    process = context.Process(target=_make, args=(spec, directory, theirs), daemon=True)
                    process.start()
                    processes.append(process)
                    theirs.close()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield connections
    finally:
        for process in processes:
            process.kill()  # it waits for work, or what it makes is not whole in any case
            process.join()
        for connection in connections:
            connection.close()


def _make(spec: FleetSpec, directory: str, connection: _Connection) -> None:
    """What such a process does."""
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
    """End with the command, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
