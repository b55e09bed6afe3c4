"""How `qpid-store-chk` renders data, transaction ids, times and headers."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.rhm.file_header import FileHeader
from qstore.formats.rhm.records import EXTERNAL, OVERWRITE_INDICATOR, TRANSIENT, Kind, RecordHeader
from qstore.tools.console.text import one_line
from qstore.tools.drop_in import Read, time_text
from qstore.tools.qpid_store_chk import data_text, file_header_text, record_text, rendering, xid_text

PRINTABLE: Final = bytes(range(0x20, 0x7F))
ZEROS: Final = " ... ".join([r"\00" * 10] * 2)


def reader(content: bytes) -> Read:
    """Reads from `content`, and never beyond it."""

    def read(offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= len(content)
        return content[offset : offset + length]

    return read


def rendered(content: bytes) -> str:
    return rendering(reader(content), len(content))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"p", "p"),
        (b"p" * 49, "p" * 49),
        (b"p" * 50, f"{'p' * 25} ... {'p' * 25}"),
        (b"a" * 25 + b"-" * 1000 + b"z" * 25, f"{'a' * 25} ... {'z' * 25}"),
        (b"\0", r"\00"),
        (b"a\tb\nc\r", r"a\09b\0ac\0d"),
        (bytes(50), r"\00" * 50),
        (bytes(51), ZEROS),
        (b"p" * 49 + b"\xff", f"{'p' * 49}\\ff"),
        (b"p" * 30 + b"\0" + b"q" * 30, f"{'p' * 10} ... {'q' * 10}"),
        (b"p" * 70_000 + b"\x7f" + b"q" * 70_000, f"{'p' * 10} ... {'q' * 10}"),
        (b'"\\" ', '"\\" '),
        ("é".encode(), r"\c3\a9"),
    ],
)
def test_rendering(content: bytes, expected: str) -> None:
    assert rendered(content) == expected


@given(st.binary(max_size=200) | st.binary(min_size=45, max_size=55))
def test_rendering_of_anything(content: bytes) -> None:
    text = rendered(content)
    assert text.isascii()
    assert text.isprintable()
    if not content.strip(PRINTABLE):
        assert text == (
            content.decode() if len(content) < 50 else f"{content[:25].decode()} ... {content[-25:].decode()}"
        )
        return
    shown = [content] if len(content) <= 50 else [content[:10], content[-10:]]
    escaped = (re.sub(rb"[^ -~]", lambda found: b"\\%02x" % found[0][0], part).decode() for part in shown)
    assert text == " ... ".join(escaped)


@given(st.binary(max_size=120, min_size=1).map(lambda content: bytes(32 + byte % 95 for byte in content)))
def test_rendering_of_printable_text_escapes_nothing(content: bytes) -> None:
    text = rendered(content)
    assert len(text) == (len(content) if len(content) < 50 else 55)


@given(st.integers(0, 300))
def test_unprintable_text_is_shortened(size: int) -> None:
    assert len(rendered(b"\xff" * size)) == (3 * size if size <= 50 else 65)


def test_little_is_read_of_a_large_message() -> None:
    """Its header is not printable, so the body need not be looked at."""
    asked: list[int] = []

    def read(_: int, length: int) -> bytes:
        asked.append(length)
        return b"\0" * length

    assert rendering(read, 1 << 60) == ZEROS
    assert sum(asked) < 1000


def test_xid_and_data_text() -> None:
    assert xid_text(reader(b"x1"), 2) == 'xid(2)="x1" '
    assert data_text(reader(bytes(60)), 60) == f'data(60)="{ZEROS}" '
    assert xid_text(reader(b""), 0) == data_text(reader(b""), 0) == ""


@pytest.mark.parametrize(
    ("seconds", "nanoseconds", "expected"),
    [
        (0, 0, "Thu Jan 01 00:00:00.000000000 1970"),
        (1_700_000_000, 5, "Tue Nov 14 22:13:20.000000005 2023"),
        (253_402_300_799, 999_999_999, "Fri Dec 31 23:59:59.999999999 9999"),
        (253_402_300_800, 0, "Sat Jan 01 00:00:00.000000000 10000"),
        (1 << 40, 0, "Mon Feb 20 00:36:16.000000000 36812"),
    ],
)
def test_times(seconds: int, nanoseconds: int, expected: str) -> None:
    assert time_text(seconds, nanoseconds) == expected


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 32) - 1))
def test_any_time_can_be_shown(seconds: int, nanoseconds: int) -> None:
    text = time_text(seconds, nanoseconds)
    assert f".{nanoseconds:09d} " in text
    if seconds < 253_402_300_800:
        assert text.startswith(datetime.fromtimestamp(seconds, UTC).strftime("%a %b %d %H:%M:%S."))


@pytest.mark.parametrize(
    ("header", "xid", "data", "expected"),
    [
        (RecordHeader(Kind.FILLER, 1, 0, blocks=1), b"", b"", '0x00001200: ["RHMx"]'),
        (
            RecordHeader(Kind.ENQUEUE, 1, OVERWRITE_INDICATOR, 0x1F, 0, 0),
            b"",
            b"",
            '0x00001200: ["RHMe" v=1 e=0 f=0x0001 rid=0x1f]  ["RHMe" rid=0x1f] ',
        ),
        (
            RecordHeader(Kind.ENQUEUE, 1, TRANSIENT, 2, 2, 1),
            b"x1",
            b"d",
            '0x00001200: ["RHMe" v=1 e=0 f=0x0010 rid=0x2] xid(2)="x1" data(1)="d"  ["RHMe" rid=0x2] *TRANSIENT*',
        ),
        (
            RecordHeader(Kind.ENQUEUE, 1, EXTERNAL, 2, 0, 7),
            b"",
            b"",
            '0x00001200: ["RHMe" v=1 e=0 f=0x0020 rid=0x2]  ["RHMe" rid=0x2] *EXTERNAL*',
        ),
        (
            RecordHeader(Kind.ENQUEUE, 1, EXTERNAL | TRANSIENT, 2, 0, 7),
            b"",
            b"",
            '0x00001200: ["RHMe" v=1 e=0 f=0x0030 rid=0x2]  ["RHMe" rid=0x2] *TRANSIENT,EXTERNAL*',
        ),
        (
            RecordHeader(Kind.DEQUEUE, 1, 0x10, 3, 0, dequeued_rid=0x2A),
            b"",
            b"",
            '0x00001200: ["RHMd" v=1 e=0 f=0x0010 rid=0x3] drid=0x2a',
        ),
        (
            RecordHeader(Kind.DEQUEUE, 1, 0, 3, 1, dequeued_rid=(1 << 64) - 1),
            b"\1",
            b"",
            '0x00001200: ["RHMd" v=1 e=0 f=0x0000 rid=0x3] xid(1)="\\01" drid=0xffffffffffffffff',
        ),
        (
            RecordHeader(Kind.COMMIT, 1, 0, 4, 1),
            b"x",
            b"",
            '0x00001200: ["RHMc" v=1 e=0 f=0x0000 rid=0x4] xid(1)="x" ',
        ),
        (
            RecordHeader(Kind.ABORT, 1, 0, 5, 1),
            b"x",
            b"",
            '0x00001200: ["RHMa" v=1 e=0 f=0x0000 rid=0x5] xid(1)="x" ',
        ),
    ],
)
def test_records(header: RecordHeader, xid: bytes, data: bytes, expected: str) -> None:
    assert record_text(header, 0x1200, reader(xid), reader(data)) == expected


def test_file_header() -> None:
    header = FileHeader(1, 1, 3, 0x480, 1_700_000_000, 7, rid=0x1D, logical_number=3)
    assert file_header_text(header, 0x11) == (
        '0x00000000: ["RHMf" v=1 e=0 f=0x0011 rid=0x1d] fid=3 lid=3 fro=0x00000480 t=Tue Nov 14 22:13:20.000000007 2023'
    )


@given(st.text())
def test_one_line_is_one_line_that_no_terminal_obeys(text: str) -> None:
    shown = one_line(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in shown)
