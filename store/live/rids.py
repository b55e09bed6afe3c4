"""Record ids: one for every record of the whole store, never given out twice.

They are reserved in the catalogue in blocks, on the disk before the first of a block is used; after a restart counting
goes on from what was reserved. So that nobody waits for the catalogue, the next block is reserved when half of the
present one is used up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from store.background import Background
from store.catalogue.catalogue import Catalogue


class RecordIds:
    """The next record ids.

    Args:
        catalogue: where blocks are reserved.
        background: where that is done.
        failed: called if a block cannot be reserved.
        highest: the highest record id that any journal has; ids go on above it, whatever was reserved.

    Attributes:
        next: the next record id.
        limit: the first one that may not be used without `more`.
    """

    __slots__ = ("_background", "_blocks", "_catalogue", "_failed", "_is_asked", "_reserved", "limit", "next")

    def __init__(
        self, catalogue: Catalogue, background: Background, failed: Callable[[Exception], None], highest: int = 0
    ) -> None:
        self._catalogue, self._background, self._failed = catalogue, background, failed
        self._blocks: deque[range] = deque()  # reserved, and not taken over yet
        block = catalogue.reserve_rids(highest)
        self.next = max(block.start, 1)  # 0 is no record id
        self._reserved = block.stop
        self._is_asked = False
        self.limit = self._middle()

    def take(self) -> int:
        """A record id. Raises CatalogueError if there is none left and none can be reserved."""
        rid = self.next
        if rid >= self.limit:
            self.more()
            rid = self.next
        self.next = rid + 1
        return rid

    def more(self) -> None:
        """The limit is reached: see that there are more. Raises CatalogueError as `take`."""
        if self.next < self._reserved:
            if not self._is_asked:
                self._is_asked = True
                self._background.run(self._reserve, lambda _: self._take_over(), self._failed)
            self.limit = self._reserved
            return
        self._background.wait()  # nobody is called back here: whoever appends does not expect that
        if not self._blocks:
            self._reserve()
        self._take_over()

    def _reserve(self) -> None:
        self._blocks.append(self._catalogue.reserve_rids())

    def _take_over(self) -> None:
        if not self._blocks:
            return  # somebody who could not wait has done it
        block = self._blocks.popleft()
        # Ids are contiguous unless somebody else reserved too; then those in between stay unused.
        if self.next >= self._reserved:
            self.next = max(self.next, block.start)
        self._reserved = block.stop
        self._is_asked = False
        self.limit = self._middle()

    def _middle(self) -> int:
        return self.next + (self._reserved - self.next) // 2
