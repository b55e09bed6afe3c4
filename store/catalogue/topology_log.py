"""The catalogue's map together with its second copy: each batch is in both before `write` returns.

    write, in this order                                    a crash after it leaves
    ------------------------------------------------------  -----------------------------------------------------
    1. the batch is written to the map and synced           the copy one batch behind; nothing was acknowledged
    2. its record is appended to the copy and synced        both
    or 2. a new copy is written, synced, renamed in place   the old copy, one batch behind; or both

The second way is used when the room in the file is used up, and after a failure of the copy's file: the result of a
failed sync is never trusted. While the copy cannot be written, no further change is made: it is never more than one
batch behind.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from uuid import UUID

from qstore.formats.catalogue import Kind
from qstore.formats.topology_copy import encode_batch
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.catalogue.topology_copy import NAME, batch_of
from qstore.store.disk import WritableDisk, WritableFile
from qstore.store.errors import advice
from qstore.store.key_value import CatalogueError, KeyValue, MapDamage
from qstore.store.log_lines import Level, LogLine


class MirroredKeyValue:
    """A `KeyValue` with a second copy.

    Args:
        key_value: the catalogue's map, which has a census; closed with this.
        disk: the disk with the copy.
        directory: the store's.
        store_id: the store's unique id.
        log: receives log lines.

    Attributes:
        batch: number of the last batch that both have; may be read in any thread.
    """

    __slots__ = ("_directory", "_disk", "_end", "_file", "_key_value", "_log", "_store_id", "batch")

    def __init__(
        self,
        key_value: KeyValue,
        disk: WritableDisk,
        directory: StoreDirectory,
        store_id: UUID,
        log: Callable[[LogLine], None],
    ) -> None:
        self._key_value, self._disk, self._directory = key_value, disk, directory
        self._store_id, self._log = store_id, log
        self._file: WritableFile | None = None
        self._end = self.batch = 0

    # ---- the copy ----

    def resume(self, end: int, batch: int) -> None:
        """Continue an existing copy, equal to the map, after its last record, that of `batch`. Raises OSError."""
        self._file = self._disk.open_writable(posixpath.join(self._directory.root, NAME))
        self._end = end
        self._file.sync()  # a killed process may have left its last record unsynced
        self.batch = batch

    def renew(self) -> None:
        """Write a new copy of the whole map. Raises OSError, CatalogueError."""
        self._drop()
        self._end = self._directory.write_topology(self._store_id, self._key_value)
        self.batch = batch_of(dict(self._key_value.items(Kind.CENSUS.prefix)))
        self._file = self._disk.open_writable(posixpath.join(self._directory.root, NAME))

    def _keep(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Write a batch that is in the map to the copy too. Raises OSError, CatalogueError."""
        file = self._file
        if file is not None:
            record = encode_batch(self._store_id, _batch(changes), changes)
            if self._end + len(record) <= file.size:
                try:
                    file.write(self._end, record)
                    file.sync()
                except OSError:
                    self._drop()
                    raise
                self._end += len(record)
                self.batch = _batch(changes)
                return
        self.renew()

    def _drop(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # ---- the map ----

    @property
    def damage(self) -> tuple[MapDamage, ...]:
        """Damage that was found and skipped when the map was opened."""
        return self._key_value.damage

    def get(self, key: bytes) -> bytes | None:
        """The value at `key`; None if there is none."""
        return self._key_value.get(key)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that start with `prefix`, with their values, in key order, as of the time of this call."""
        return self._key_value.items(prefix)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Change the map and its copy: all or nothing, and durable on return."""
        if self._file is None:
            try:
                self.renew()
            except OSError as error:
                raise CatalogueError(self._failure(error)) from error
        self._key_value.write(changes)
        try:
            self._keep(changes)
        except (OSError, CatalogueError) as error:
            told = advice(error) if isinstance(error, OSError) else ""
            text = f"{self._failure(error)}{told}; queues, exchanges and bindings cannot be changed until it is"
            self._log(LogLine(Level.CRITICAL, text))

    def _failure(self, error: OSError | CatalogueError) -> str:
        path = posixpath.join(self._directory.root, NAME)
        cause = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        return f"{path}: the second copy of the topology cannot be written: {cause}"

    def checkpoint(self, directory: str) -> None:
        """Copy the map into a new directory, without the second copy."""
        self._key_value.checkpoint(directory)

    def close(self) -> None:
        """Close both. May be called twice."""
        self._drop()
        self._key_value.close()


def _batch(changes: Mapping[bytes, bytes | None]) -> int:
    """The number of a batch, from its census."""
    return batch_of({key: value for key, value in changes.items() if value is not None})
