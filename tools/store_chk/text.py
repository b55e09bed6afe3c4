r"""Formatting of records, headers, times, transaction ids and data in `qpid-store-chk`.

A transaction id, or data, that is all printable (ASCII from blank to tilde) and shorter than 50 bytes is printed
unchanged; of a longer one the first and the last 25 bytes are shown. Otherwise each unprintable byte is written `\xx`,
two hex digits: up to 50 bytes everything is shown, of more the first and the last 10. Long values are read in parts,
and only a little if the first bytes are not printable, as in messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from qstore.formats.rhm.file_header import FileHeader
from qstore.formats.rhm.records import EXTERNAL, TRANSIENT, Kind, RecordHeader

_SHORT: Final = 50  # bytes: longer values are cut in the middle
_PRINTABLE_ENDS: Final = 25  # bytes shown at either end of printable values ...
_ESCAPED_ENDS: Final = 10  # ... and of others
_CHUNK: Final = 1 << 16  # bytes examined at once


# The Gregorian calendar, including weekdays, repeats after 400 years. datetime ends with the year 9999, but forged
# headers may have later years.
_CYCLE_YEARS, _CYCLE_SECONDS = 400, 146_097 * 86_400

_FLAG_TEXTS: Final = {
    0: "",
    TRANSIENT: "*TRANSIENT*",
    EXTERNAL: "*EXTERNAL*",
    TRANSIENT | EXTERNAL: "*TRANSIENT,EXTERNAL*",
}

#: Returns `length` bytes from `offset` of a value.
Read = Callable[[int, int], bytes]


class Rendering(NamedTuple):
    """The formatting of arbitrary bytes.

    Attributes:
        printable: the bytes that are printed unchanged if there are no others.
        escaped: the text for each byte.
    """

    printable: bytes
    escaped: Sequence[str]

    def is_printable(self, read: Read, size: int) -> bool:
        """Whether the `size` bytes that `read` returns are all printable."""
        # Messages begin with their header: most are recognized by their first bytes.
        if read(0, min(size, _SHORT)).strip(self.printable):
            return False
        chunks = (read(offset, min(_CHUNK, size - offset)) for offset in range(_SHORT, size, _CHUNK))
        return not any(chunk.strip(self.printable) for chunk in chunks)

    def shortened(self, read: Read, size: int, *, is_printable: bool) -> str:
        """The bytes, or the first and the last of them."""
        whole, ends = (_SHORT - 1, _PRINTABLE_ENDS) if is_printable else (_SHORT, _ESCAPED_ENDS)
        return self.text(read(0, size)) if size <= whole else self.ends(read, size, ends)

    def ends(self, read: Read, size: int, ends: int = _PRINTABLE_ENDS) -> str:
        """The first and the last of the bytes."""
        return f"{self.text(read(0, ends))} ... {self.text(read(size - ends, ends))}"

    def text(self, content: bytes) -> str:
        """All of some bytes."""
        return "".join(map(self.escaped.__getitem__, content))


def rendering_of(printable: bytes) -> Rendering:
    r"""The formatting that writes all but these bytes as `\xx`."""
    return Rendering(printable, [chr(byte) if byte in printable else f"\\{byte:02x}" for byte in range(256)])


_RENDERING: Final = rendering_of(bytes(range(0x20, 0x7F)))


def rendering(read: Read, size: int) -> str:
    """The `size` bytes that `read` returns, as they are printed."""
    return _RENDERING.shortened(read, size, is_printable=_RENDERING.is_printable(read, size))


def xid_text(read: Read, size: int) -> str:
    """A transaction id; empty if there is none."""
    return f'xid({size})="{rendering(read, size)}" ' if size else ""


def data_text(read: Read, size: int) -> str:
    """The data of an enqueue; empty if there is none."""
    return f'data({size})="{rendering(read, size)}" ' if size else ""


def time_text(seconds: int, nanoseconds: int) -> str:
    """A time in UTC: `Tue Nov 14 22:13:20.000000000 2023`."""
    cycles, rest = divmod(seconds, _CYCLE_SECONDS)
    time = datetime.fromtimestamp(rest, UTC)
    return f"{time:%a %b %d %H:%M:%S}.{nanoseconds:09d} {time.year + cycles * _CYCLE_YEARS}"


def file_header_text(header: FileHeader, flags: int, offset: int = 0) -> str:
    """A file header; `flags` are those of its record header, `offset` is its position."""
    return (
        f'0x{offset:08x}: ["RHMf" v={header.version} e=0 f=0x{flags:04x} rid=0x{header.rid:x}]'
        f" fid={header.file_number} lid={header.logical_number} fro=0x{header.first_record_offset:08x}"
        f" t={time_text(header.seconds, header.nanoseconds)}"
    )


def record_text(header: RecordHeader, offset: int, xid: Read, data: Read) -> str:
    """A record that begins at `offset`; `xid` and `data` read what follows its header."""
    magic = header.kind.to_bytes(4, "little").decode()
    if header.kind is Kind.FILLER:
        return f'0x{offset:08x}: ["{magic}"]'
    text = f'0x{offset:08x}: ["{magic}" v={header.version} e=0 f=0x{header.flags:04x} rid=0x{header.rid:x}]'
    text += f" {xid_text(xid, header.xid_size)}"
    if header.kind is Kind.ENQUEUE:
        flags = _FLAG_TEXTS[header.flags & (TRANSIENT | EXTERNAL)]
        return f'{text}{data_text(data, header.stored_size)} ["{magic}" rid=0x{header.rid:x}] {flags}'
    if header.kind is Kind.DEQUEUE:
        return f"{text}drid=0x{header.dequeued_rid:x}"
    return text
