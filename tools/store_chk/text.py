r"""How `qpid-store-chk` writes records, headers, times, transaction ids and data (formats page, section 15.1).

A transaction id, or data, that is wholly printable (ASCII from blank to tilde) and shorter than 50 bytes stands as it
is; of a longer one the first and the last 25 bytes are shown. Where anything is not printable, each such byte is
written `\xx`, two hex digits: up to 50 bytes all is shown, of more the first and the last 10. What is rendered is read
in parts, and little of it where its first bytes are not printable, as those of a message are.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from formats.rhm.file_header import FileHeader
from formats.rhm.records import EXTERNAL, TRANSIENT, Kind, RecordHeader

PRINTABLE: Final = bytes(range(0x20, 0x7F))
SHORT: Final = 50  # bytes: what is longer is cut in the middle
PRINTABLE_ENDS: Final = 25  # bytes at either end that are left of what is printable ...
ESCAPED_ENDS: Final = 10  # ... and of what is not
_CHUNK: Final = 1 << 16  # bytes looked at in one go

_ESCAPED: Final = [chr(byte) if byte in PRINTABLE else f"\\{byte:02x}" for byte in range(256)]

# The Gregorian calendar, weekdays too, repeats after 400 years. datetime ends with the year 9999, a forged header not.
_CYCLE_YEARS, _CYCLE_SECONDS = 400, 146_097 * 86_400

_FLAG_TEXTS: Final = {
    0: "",
    TRANSIENT: "*TRANSIENT*",
    EXTERNAL: "*EXTERNAL*",
    TRANSIENT | EXTERNAL: "*TRANSIENT,EXTERNAL*",
}

#: Gives `length` bytes from `offset` of something.
Read = Callable[[int, int], bytes]


def rendering(read: Read, size: int) -> str:
    """The `size` bytes that `read` gives, as they are printed."""
    if _is_printable(read, size):
        return _shortened(read, size, SHORT - 1, PRINTABLE_ENDS)
    return _shortened(read, size, SHORT, ESCAPED_ENDS)


def _shortened(read: Read, size: int, whole: int, ends: int) -> str:
    if size <= whole:
        return _escaped(read(0, size))
    return f"{_escaped(read(0, ends))} ... {_escaped(read(size - ends, ends))}"


def _escaped(content: bytes) -> str:
    return "".join(map(_ESCAPED.__getitem__, content))


def _is_printable(read: Read, size: int) -> bool:
    # Messages begin with their header: most are told apart by their first bytes.
    if read(0, min(size, SHORT)).strip(PRINTABLE):
        return False
    return not any(read(offset, min(_CHUNK, size - offset)).strip(PRINTABLE) for offset in range(SHORT, size, _CHUNK))


def xid_text(read: Read, size: int) -> str:
    """A transaction id: nothing where there is none."""
    return f'xid({size})="{rendering(read, size)}" ' if size else ""


def data_text(read: Read, size: int) -> str:
    """The data of an enqueue: nothing where there is none."""
    return f'data({size})="{rendering(read, size)}" ' if size else ""


def time_text(seconds: int, nanoseconds: int) -> str:
    """A time in UTC: `Tue Nov 14 22:13:20.000000000 2023`."""
    cycles, rest = divmod(seconds, _CYCLE_SECONDS)
    time = datetime.fromtimestamp(rest, UTC)
    return f"{time:%a %b %d %H:%M:%S}.{nanoseconds:09d} {time.year + cycles * _CYCLE_YEARS}"


def file_header_text(header: FileHeader, flags: int, offset: int = 0) -> str:
    """A file header; `flags` are those of its record header, `offset` where it was found."""
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
