"""The requested geometry of each journal: the same for all, or as recommended for the present messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from qstore.formats.rhm.geometry import PAGE_SIZE, Geometry
from qstore.store.disk import Disk
from qstore.store.inspect.offline import open_store
from qstore.store.inspect.sizing import RingSize
from qstore.store.repair.resize_plan import Choose
from qstore.tools.size.queues import Wanted, size_queue


def same_for_all(files: int | None, pages: int | None) -> Choose:
    """These numbers for every journal; None leaves a number unchanged."""

    def choose(_: str, before: Geometry) -> Geometry:
        after = before if files is None else replace(before, files=files)
        return after if pages is None else replace(after, data_size=pages * PAGE_SIZE)

    return choose


@dataclass(frozen=True, slots=True)
class ByRule:
    """The recommendations of `qstore-size --from`; a queue without messages is left unchanged.

    The present messages may be fewer than the queue was made for, so journals are shrunk only on request.

    Attributes:
        recommended: queue name -> geometry.
        may_shrink: whether a journal may become smaller.
    """

    recommended: Mapping[str, Geometry]
    may_shrink: bool

    def __call__(self, name: str, before: Geometry) -> Geometry | None:
        """The new geometry for queue `name`; None for unchanged."""
        return None if self.not_shrunk(name, before) is not None else self.recommended.get(name)

    def not_shrunk(self, name: str, before: Geometry) -> Geometry | None:
        """The recommended geometry if it was not applied because it is smaller."""
        wanted = self.recommended.get(name)
        return wanted if wanted is not None and not self.may_shrink and wanted.capacity < before.capacity else None


def recommended_sizes(disk: Disk, path: str) -> dict[str, Geometry]:
    """The recommendations of `qstore-size --from` for each queue that has messages.

    Raises:
        UnusableInputError: there is nothing that could be read as a store.
        OSError: it cannot be read.
    """
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
