"""A `store.key_value.KeyValue` in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qstore.store.key_value import CatalogueError, MapDamage


class MemoryKeyValue:
    """Keeps everything in a dict; `contents` is open to tests that want to damage it, `checkpoints` are by path."""

    def __init__(self) -> None:
        self.contents: dict[bytes, bytes] = {}
        self.checkpoints: dict[str, MemoryKeyValue] = {}
        self.batches = 0
        self.damage: tuple[MapDamage, ...] = ()
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        self._check_open()
        return self.contents.get(key)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        return iter(sorted((key, value) for key, value in self.contents.items() if key.startswith(prefix)))

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        self._check_open()
        self.batches += 1
        for key, value in changes.items():
            if value is None:
                self.contents.pop(key, None)
            else:
                self.contents[key] = value

    def checkpoint(self, directory: str) -> None:
        self._check_open()
        if directory in self.checkpoints:
            raise CatalogueError(f"{directory} exists")
        copy = self.checkpoints[directory] = MemoryKeyValue()
        copy.contents = self.contents.copy()

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise CatalogueError("the map is closed")
