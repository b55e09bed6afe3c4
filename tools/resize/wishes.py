"""What a user wants of each journal: the same numbers for all, or what the sizing rule says for the messages there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from formats.rhm.geometry import PAGE_SIZE, Geometry
from store.disk import Disk
from store.inspect.offline import open_store
from store.inspect.sizing import RingSize
from store.repair.resize_plan import Choose
from tools.size.queues import Wanted, size_queue


def same_for_all(files: int | None, pages: int | None) -> Choose:
    """These numbers for every journal; one that is None stays what it is."""

    def choose(_: str, before: Geometry) -> Geometry:
        after = before if files is None else replace(before, files=files)
        return after if pages is None else replace(after, data_size=pages * PAGE_SIZE)

    return choose


@dataclass(frozen=True, slots=True)
class ByRule:
    """What `qstore-size --from` recommends for each queue; one without messages stays as it is.

    The messages that are there now need not be all that a queue was made for: no journal gets smaller unasked.

    Attributes:
        recommended: the geometries, by the queues' names.
        may_shrink: whether a journal may get smaller.
    """

    recommended: Mapping[str, Geometry]
    may_shrink: bool

    def __call__(self, name: str, before: Geometry) -> Geometry | None:
        """What the journal of queue `name` is to be; None for as it is."""
        return None if self.not_shrunk(name, before) is not None else self.recommended.get(name)

    def not_shrunk(self, name: str, before: Geometry) -> Geometry | None:
        """The geometry that is recommended, where it is not taken because it is smaller."""
        wanted = self.recommended.get(name)
        return wanted if wanted is not None and not self.may_shrink and wanted.capacity < before.capacity else None


def recommended_sizes(disk: Disk, path: str) -> dict[str, Geometry]:
    """What `qstore-size --from` recommends for each queue that has messages.

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
