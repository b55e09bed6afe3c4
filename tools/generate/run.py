"""Makes a fleet: its stores, one after the other or by several processes, and the list of them.

    OUT/MANIFEST.jsonl       a line about the fleet (kind "fleet": what was asked for), then one about each store
        STORE-0001/          a store
        STORE-0001.jsonl     what is in it: `make`

MANIFEST.jsonl is written last: where it is, the fleet is whole.
"""

from __future__ import annotations

import multiprocessing
import posixpath
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Final

from store.errors import StoreError
from tools.dump.json_lines import JsonLines
from tools.generate.fleet import FleetSpec, plan_store
from tools.generate.make import Fields, make_store

MANIFEST: Final = "MANIFEST.jsonl"
#: Bytes that must be free besides the journals: for each store (its catalogue), and of the lists for each
#: message that may be in them.
_PER_STORE: Final = 2 << 20
_PER_MESSAGE: Final = 180


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
        PlanError, StoreError, CatalogueError, OSError: it cannot be made; what was made is there, without a list.
    """
    Path(directory).mkdir(exist_ok=True)
    lines = [fleet_fields(spec)]
    stores = _alone(spec, directory, written) if jobs == 1 else _together(spec, directory, jobs, written)
    for store in stores:
        lines.append(store)
        yield store
    with Path(posixpath.join(directory, MANIFEST)).open("xb") as file:
        output = JsonLines(file)
        for line in lines:
            output.show(line)
        output.flush()


def _alone(spec: FleetSpec, directory: str, written: Callable[[int], None]) -> Iterator[Fields]:
    for number in range(1, spec.stores + 1):
        yield make_store(spec, directory, number, written)


def _together(spec: FleetSpec, directory: str, jobs: int, written: Callable[[int], None]) -> Iterator[Fields]:
    # Started anew, not forked: threads of this process (the progress bar's) would be lost in the middle of something.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, spec.stores), mp_context=context) as pool:
        try:
            for store in pool.map(partial(make_store, spec, directory), range(1, spec.stores + 1)):
                written(plan_store(spec, int(store["name"].rpartition("-")[2])).size)
                yield store
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
