r"""Formatting of transaction ids, data, headers and tails in `qpid-qls-analyze`.

Bytes that are all printable (ASCII, and no blank) are in double quotes, in full if shorter than 50 bytes, otherwise the
first and last 25. Otherwise a transaction id is printed as the hexadecimal number that its bytes, the last one first,
form; data has `\xx`, two hex digits, for each byte that is not printable, in full up to 50 bytes, otherwise the first
and last 10. Long values are read in parts.
"""

from __future__ import annotations

from typing import Final

from qstore.formats.qls.file_header import FileHeader
from qstore.formats.qls.records import MAGICS, VERSION, RecordHeader, Tail
from qstore.formats.rhm.records import COMMIT_DECISION, EXTERNAL, TRANSIENT, Kind
from qstore.tools.store_chk.text import Read, rendering_of, time_text

_MAX_XID: Final = 1024  # bytes: qpidd's have 24, those of clients 528 at most; a larger one is cut
_XID_ENDS: Final = 25  # bytes shown at either end of it
_CHUNK: Final = 1 << 16  # bytes examined at once
_MAX_TEXT: Final = 1024  # bytes of a test message's text that are shown

_RENDERING: Final = rendering_of(bytes(range(0x21, 0x7F)))
_TEST_TEXT: Final = b"msg"  # begins the text of a test message; a NUL ends it

_FLAG_TEXTS: Final = {
    0: "",
    TRANSIENT: "[TRANSIENT]",
    EXTERNAL: "*EXTERNAL]",
    TRANSIENT | EXTERNAL: "[TRANSIENT,EXTERNAL]",
}
_LETTERS: Final = {kind: chr(magic >> 24).upper() for kind, magic in MAGICS.items()}

INVALID_TAIL: Final = "[INVALID RECORD TAIL]"
TRUNCATED: Final = "[Truncated, no more files in journal]"
NOT_ENQUEUED: Final = "<NOT IN EMAP>"
NOT_OPEN: Final = "<NOT IN TMAP>"


# ---- transaction ids and data ----


def xid_text(read: Read, size: int, *, whole: bool = True) -> str:
    """A transaction id, or only its size; empty if there is none."""
    if not size:
        return ""
    return f"xid({size})='{_xid(read, size)}'" if whole else f"xid({size})"


def data_text(read: Read, size: int, *, content: bool, test_text: bool) -> str:
    """The data of an enqueue; empty if there is none.

    Args:
        read: reads from the data.
        size: size of the data in bytes.
        content: whether the data itself is shown, and not only its size.
        test_text: whether the text of a test message is shown instead; ignored for data without such a text.
    """
    if not size:
        return ""
    text = _test_text(read, size) if test_text else None
    if text is None and content:
        text = _data(read, size)
    return f"data({size})" if text is None else f"data({size})='{text}'"


def _xid(read: Read, size: int) -> str:
    if size > _MAX_XID:
        first, last = (read(offset, _XID_ENDS) for offset in (0, size - _XID_ENDS))
        if (first + last).strip(_RENDERING.printable):
            return f"0x{last[::-1].hex()} ... {first[::-1].hex()}"
        return f'"{_RENDERING.ends(read, size, _XID_ENDS)}"'
    xid = read(0, size)
    if xid.strip(_RENDERING.printable):
        return f"0x{xid[::-1].hex()}"
    return f'"{_RENDERING.shortened(read, size, is_printable=True)}"'


def _data(read: Read, size: int) -> str:
    is_printable = _RENDERING.is_printable(read, size)
    text = _RENDERING.shortened(read, size, is_printable=is_printable)
    return f'"{text}"' if is_printable else text


def _test_text(read: Read, size: int) -> str | None:
    """From `msg` to the next NUL, or to the end of the data; None without `msg`."""
    overlap = len(_TEST_TEXT) - 1
    for offset in range(0, size, _CHUNK):
        at = read(offset, min(_CHUNK + overlap, size - offset)).find(_TEST_TEXT)
        if at >= 0:
            begin = offset + at
            text = read(begin, min(_MAX_TEXT, size - begin)).partition(b"\0")[0]
            return " ".join(map(_RENDERING.text, text.split(b" ")))
    return None


# ---- headers and tails ----


def file_header_text(header: FileHeader) -> str:
    """The fields of a file's header."""
    return (
        f"[F v={VERSION} f=0x{header.flags:04x} rid=0x{header.rid:x}] fnum=0x{header.file_number:x}"
        f" fro=0x{header.first_record_offset:08x} p={header.partition} s={header.data_size >> 10}k"
        f" t={time_text(header.seconds, header.nanoseconds)} "
    )


def header_text(header: RecordHeader) -> str:
    """A record's header."""
    letter = _LETTERS[header.kind]
    if header.kind is Kind.FILLER:
        return f"[{letter}]"
    return f"[{letter} v={VERSION} f=0x{header.flags:04x} rid=0x{header.rid:x}]"


def tail_text(header: RecordHeader, tail: Tail | None) -> str:
    """A record's tail; empty if there is none, or for an enqueue with neither xid nor data, as in the original."""
    if not header.has_tail or not (header.xid_size or header.data_size):
        return ""
    if tail is None:
        return INVALID_TAIL
    return f"[{_LETTERS[header.kind]} cs=0x{tail.checksum:08x} rid=0x{tail.rid:x}]"


def flags_text(header: RecordHeader, *, is_prepared_list: bool) -> str:
    """The meaning of the flags of an enqueue, or of a transaction's dequeue in the prepared list."""
    if header.kind is Kind.ENQUEUE:
        return _FLAG_TEXTS[header.flags & (TRANSIENT | EXTERNAL)]
    if header.kind is Kind.DEQUEUE and header.xid_size and is_prepared_list:
        return "[COMMIT]" if header.flags & COMMIT_DECISION else "[ABORT]"
    return ""
