"""Record headers for loops that read or write many of them: one number, then the fields.

The first eight bytes of a header (magic, version, endian flag, flags) are one little-endian number, the *word*, so that
one comparison checks kind, version and flags. Structs and offsets are derived from the table in `records`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import COMMON, LAYOUTS, PADDING, TAIL_SIZE, Kind

FLAGS_SHIFT: Final = 48  # of a word
_VERSION_SHIFT: Final = 32
MAGIC_MASK: Final = 0xFFFFFFFF

#: Version 1: word, rid, and of an enqueue xid size and data size, of a dequeue the message's rid and xid size.
HEADER_1: Final = struct.Struct("<Q" + LAYOUTS[1, Kind.ENQUEUE].rest.format[1:])
#: Version 2: word, rid, xid size, flush, and the last field, which depends on the kind.
HEADER_2: Final = struct.Struct("<Q" + LAYOUTS[2, Kind.ENQUEUE].rest.format[1:])
assert all(HEADER_1.size == LAYOUTS[1, kind].size for kind in (Kind.ENQUEUE, Kind.DEQUEUE))
assert all(HEADER_2.size == layout.size for (version, _), layout in LAYOUTS.items() if version == 2)

RID: Final = struct.Struct("<Q")
RID_OFFSET: Final = COMMON.size
FLUSH: Final = struct.Struct("<I")
FLUSH_OFFSET: Final = 20  # version 2

#: Flags, xid size and data size of an enqueue, by version.
ENQUEUE_SIZES: Final = {1: struct.Struct("<6xH8xQQ"), 2: struct.Struct("<6xH8xI4xQ")}

#: Version 2: minimum number of flush numbers that are skipped when a journal is continued after a restart.
RESTART_GAP: Final = 65536

# ---- sizes of version-2 records ----

FIXED_SIZE: Final = HEADER_2.size + TAIL_SIZE  # bytes of a record without xid, data and padding
BLOCK_SHIFT: Final = 7
ROUND_UP: Final = FIXED_SIZE + BLOCK_SIZE - 1  # (this + xid size + data size) >> BLOCK_SHIFT: the record's blocks
PADDINGS: Final = tuple(PADDING * count for count in range(BLOCK_SIZE))
assert 1 << BLOCK_SHIFT == BLOCK_SIZE


def word(kind: Kind, version: int, flags: int = 0) -> int:
    """The first eight bytes of a header as one number."""
    return kind | version << _VERSION_SHIFT | flags << FLAGS_SHIFT


def record_blocks(size: int, xid_size: int = 0) -> int:
    """Blocks of a version-2 record with `size` bytes of data."""
    return (ROUND_UP + xid_size + size) >> BLOCK_SHIFT


def data_crc(parts: Iterable[bytes]) -> int:
    """The checksum of a message's data, computed once for all version-2 journals that store the message."""
    crc = 0
    for part in parts:
        crc = extend_crc32c(crc, part)
    return crc
