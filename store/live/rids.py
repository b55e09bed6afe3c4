"""Record ids: unique for every record of the whole store, never reused.

They are reserved in the catalogue in blocks, synced before the first id of a block is used; after a restart counting
continues after the last reserved block. So that appending never waits for the catalogue, the next block is reserved
when half of the current one is used up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.environment import Background


class RecordIds:
    """A source of record ids.

    Args:
        catalogue: stores the reserved blocks.
        background: runs the reservations.
        failed: called if a block cannot be reserved.
        highest: the highest record id in any journal; ids continue above it, whatever was reserved.

    Attributes:
        next: the next record id.
        limit: the first id that may not be used without `more`.
    """

    __slots__ = ("_background", "_blocks", "_catalogue", "_failed", "_is_asked", "_reserved", "limit", "next")

    def __init__(
        self, catalogue: Catalogue, background: Background, failed: Callable[[Exception], None], highest: int = 0
    ) -> None:
        self._catalogue, self._background, self._failed = catalogue, background, failed
        self._blocks: deque[range] = deque()  # reserved, but not in use yet
        block = catalogue.reserve_rids(highest)
        self.next = max(block.start, 1)  # 0 is not a valid record id
        self._reserved = block.stop
        self._is_asked = False
        self.limit = self._middle()

    def take(self) -> int:
        """Take a record id. Raises CatalogueError if none is left and none can be reserved."""
        rid = self.next
        if rid >= self.limit:
            self.more()
            rid = self.next
        self.next = rid + 1
        return rid

    def take_all(self, count: int) -> list[int]:
        """Take several record ids, in ascending order. Raises as `take`."""
        first = self.next
        if first + count <= self.limit:
            self.next = first + count
            return list(range(first, first + count))
        return [self.take() for _ in range(count)]

    def more(self) -> None:
        """Extend the limit, which is reached. Raises CatalogueError as `take`."""
        if self.next < self._reserved:
            if not self._is_asked:
                self._is_asked = True
                self._background.run(self._reserve, lambda _: self._take_over(), self._failed)
            self.limit = self._reserved
            return
        self._background.wait()  # no callbacks are called here: appenders do not expect them
        if not self._blocks:
            self._reserve()
        self._take_over()

    def _reserve(self) -> None:
        self._blocks.append(self._catalogue.reserve_rids())

    def _take_over(self) -> None:
        if not self._blocks:
            return  # a caller that could not wait has done it
        block = self._blocks.popleft()
        # Ids are contiguous unless another process reserved some; then those in between stay unused.
        if self.next >= self._reserved:
            self.next = max(self.next, block.start)
        self._reserved = block.stop
        self._is_asked = False
        self.limit = self._middle()

    def _middle(self) -> int:
        return self.next + (self._reserved - self.next) // 2
