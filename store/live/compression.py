"""Compresses the content of messages for queues declared with `qpid.compress`, before they are appended to a journal.

A message is compressed if that saves at least one block of its record; small ones rarely do, and are not tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qstore.formats.rhm.compressed import Compressor
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import data_crc, record_blocks
from qstore.formats.values import TypedMap
from qstore.store.journal.write.flushes import COMPRESSED_MESSAGE, PLAIN_MESSAGE, StoredMessage
from qstore.store.parameters import ParameterError, queue_compresses

MIN_SIZE: Final = 2 * BLOCK_SIZE  # bytes of data, header included, from which on compressing may be worthwhile


class Compression:
    """Compresses messages; one for a whole store."""

    __slots__ = ("_compressor",)

    def __init__(self) -> None:
        self._compressor = Compressor()

    def of(self, arguments: TypedMap) -> Compression | None:
        """This one, if the arguments of a queue's declaration say that its messages are compressed; else None."""
        try:
            return self if queue_compresses({name: typed.value for name, typed in arguments.entries}) else None
        except ParameterError:  # of a store that another software wrote
            return None

    def stored(self, parts: Sequence[bytes], size: int, crc: int) -> StoredMessage:
        """A message in the form in which it is to be stored.

        Args:
            parts: its data, in parts.
            size: bytes of all parts.
            crc: their `data_crc`.
        """
        if size >= MIN_SIZE:
            data = self._compressor.compress(b"".join(parts))
            if data is not None and record_blocks(len(data)) < record_blocks(size):
                return (data,), len(data), data_crc((data,)), COMPRESSED_MESSAGE
        return parts, size, crc, PLAIN_MESSAGE
