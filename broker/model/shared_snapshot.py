"""A snapshot of the whole store for another process, as the broker sees it: a part of `store_protocol`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class SharedSnapshot(Protocol):
    """The whole store at one moment, on the disk for another process, until it is released."""

    @property
    def directory(self) -> str:
        """The directory of the store."""

    @property
    def name(self) -> str:
        """The path of the snapshot's own directory below that."""

    def copied(self, queue_ids: Iterable[int], /) -> list[int]:
        """These queues' journals (0: the prepared transactions) were read. Returns those overwritten before that."""

    def release(self) -> None:
        """It is not needed any more. May be called twice."""
