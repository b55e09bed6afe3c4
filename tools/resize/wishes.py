"""What a user wants of each journal: the same numbers for all, or what the sizing rule says for the messages there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from formats.rhm.geometry import PAGE_SIZE, Geometry
from store.disk import Disk
from store.offline import open_store
from store.resize_plan import Choose
from store.sizing import RingSize
from tools.size.queues import Wanted, size_queue


def same_for_all(files: int | None, pages: int | None) -> Choose:
    """These numbers for every journal; one that is None stays what it is."""

    def choose(_: str, before: Geometry) -> Geometry:
        after = before if files is None else replace(before, files=files)
        return after if pages is None else replace(after, data_size=pages * PAGE_SIZE)

    return choose


def by_rule(disk: Disk, path: str) -> Choose:
    """What `qstore-size --from` recommends for each queue; one without messages stays as it is.

    Raises:
        UnusableInputError: there is nothing that could be read as a store.
        OSError: it cannot be read.
    """
    recommended: Mapping[str, Geometry] = _recommended(disk, path)
    return lambda name, _: recommended.get(name)


def _recommended(disk: Disk, path: str) -> dict[str, Geometry]:
    store = open_store(disk, path)
    found = {}
    for queue in store.recover().queues:
        size = size_queue(queue, Wanted(None, 1, count_dequeues=False))
        if size.needed is not None and isinstance(size.needed.choice, RingSize):
            found[queue.name] = size.needed.choice.geometry
        if queue.journal is not None:
            queue.journal.close()
    store.close()
    return found
