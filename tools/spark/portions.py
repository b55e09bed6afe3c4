"""Rows of a large journal or queue in portions: what is made of all of them takes the memory of one portion.

A journal of up to `PORTION_BYTES` has one portion, which is in memory. The rows of a larger one go to a temporary file,
each to the portion that a number in it decides: the id of its message, or a position. So a portion has all rows that
belong together.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

PORTION_BYTES: Final = 64 << 20  # of a journal: 500,000 of the shortest records
MOST: Final = 256  # portions: each is written a piece at a time
_WAITING: Final = 1 << 17  # rows that are divided at once


def portions_of(size: int) -> int:
    """The number of portions for `size` bytes of journals."""
    return max(min(-(-size // PORTION_BYTES), MOST), 1)


def remainders(numbers: Any, count: int) -> Any:
    """The portion of each row, of `count`, by a number; that of null is 0."""
    rest = pc.subtract(numbers, pc.multiply(pc.divide(numbers, count), count))
    return pc.fill_null(pc.if_else(pc.less(rest, 0), pc.add(rest, count), rest), 0)


def by_last_character(names: Any, count: int) -> Any:
    """The portion of each name, by its last character, in which ids and numbers differ."""
    last = pc.utf8_slice_codeunits(names, -1).dictionary_encode()
    numbers = [sum(each.encode()) % count for each in last.dictionary.to_pylist()]
    return pa.array(numbers, pa.int64()).take(last.indices)


class Portions:
    """Rows in portions, in the order in which they were added.

    Args:
        count: number of portions.

    Attributes:
        count: number of portions.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._waiting: list[tuple[Any, Any]] = []
        self._rows = 0
        self._pieces: list[list[Any]] = [[] for _ in range(count)]
        self._file: IO[bytes] | None = None
        self._map: mmap.mmap | None = None

    def add(self, rows: Any, portion: Any = None) -> None:
        """Add rows.

        Args:
            rows: a table.
            portion: the portion of each; None if there is only one.

        Raises:
            OSError: the temporary file cannot be written.
        """
        if not rows.num_rows:
            return
        if self.count == 1:
            self._pieces[0].append(rows)
            return
        self._waiting.append((rows, portion))
        self._rows += rows.num_rows
        if self._rows >= _WAITING:
            self._divide()

    def read(self, number: int) -> Any:
        """The rows of a portion; None if it has none."""
        parts = list(self.pieces(number))
        return pa.concat_tables(parts).combine_chunks() if parts else None

    def parts(self) -> Iterator[Any]:
        """The rows of each portion that has some."""
        found = (self.read(number) for number in range(self.count))
        return (rows for rows in found if rows is not None)

    def every(self, schema: Any) -> Any:
        """All rows, which are not copied: they are in the temporary file if there is one."""
        pieces = [piece for number in range(self.count) for piece in self.pieces(number)]
        return pa.concat_tables(pieces) if pieces else schema.empty_table()

    def pieces(self, number: int) -> Iterator[Any]:
        """The rows of a portion, as they were written."""
        if self.count == 1:
            yield from self._pieces[0]
            return
        self._divide()
        if self._map is None and self._file is not None:
            self._file.flush()
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        for begin, end in self._pieces[number]:
            content = pa.py_buffer(self._map).slice(begin, end - begin)
            yield pa.ipc.open_stream(content).read_all()

    def close(self) -> None:
        """Remove the temporary file; rows that were read remain valid."""
        self._pieces = [[] for _ in range(self.count)]
        self._map = None
        if self._file is not None:
            self._file.close()

    def _divide(self) -> None:
        """Write what is waiting."""
        if not self._rows:
            return
        waiting, self._waiting, self._rows = self._waiting, [], 0
        rows = pa.concat_tables([rows for rows, _ in waiting]).combine_chunks()
        portion = pa.concat_arrays([portion for _, portion in waiting])
        order = pc.sort_indices(portion)  # which keeps the order of rows that are equal
        rows, portion = rows.take(order).unify_dictionaries(), portion.take(order)
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="qstore-analyze-")  # noqa: SIM115  # closed by `close`
        self._map = None
        counts = {each["values"]: each["counts"] for each in pc.value_counts(portion).to_pylist()}
        begin = 0
        for number in sorted(counts):
            place = self._file.tell()
            piece = rows.slice(begin, counts[number]).combine_chunks()
            with pa.ipc.new_stream(self._file, piece.schema) as writer:
                writer.write_table(piece)
            self._pieces[number].append((place, self._file.tell()))
            begin += counts[number]
