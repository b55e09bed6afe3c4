"""How `qpid-qls-analyze` writes transaction ids, data, flags, times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.qls.file_header import FileHeader
from qstore.formats.qls.records import RecordHeader, Tail
from qstore.formats.rhm.records import COMMIT_DECISION, EXTERNAL, TRANSIENT, Kind
from qstore.tools.drop_in import Read
from qstore.tools.qpid_qls_analyze import (
    Show,
    data_text,
    file_header_text,
    flags_text,
    header_text,
    tail_text,
    xid_text,
)
from tests.support.linear_builder import LinearBuilder
from tests.tools.qls_analyze_runs import analysed, fields

LETTERS = b"abcdefghijklmnopqrstuvwxyz"


def reader(content: bytes) -> Read:
    """Reads from `content`, and never beyond it."""

    def read(offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= len(content)
        return content[offset : offset + length]

    return read


def data(octets: bytes, *, content: bool = True, test_text: bool = False) -> str:
    return data_text(reader(octets), len(octets), content=content, test_text=test_text)


def xid(content: bytes) -> str:
    return xid_text(reader(content), len(content))


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"abc", '"abc"'),
        (b"!a~", '"!a~"'),
        (b"a b", "a\\20b"),
        (b"quote'\"\\", '"quote\'"\\"'),
        (b"a" * 49, '"' + "a" * 49 + '"'),
        (b"a" * 50, '"' + "a" * 25 + " ... " + "a" * 25 + '"'),
        (LETTERS * 2, '"abcdefghijklmnopqrstuvwxy ... bcdefghijklmnopqrstuvwxyz"'),
        (b"\0", "\\00"),
        (b"a b\0", "a\\20b\\00"),
        (b"a\tb", "a\\09b"),
        (b"a\x7fb", "a\\7fb"),
        (b"caf\xc3\xa9", "caf\\c3\\a9"),
        (b"\x1b[31m", "\\1b[31m"),
        (b"\\\0", "\\\\00"),
        (b"'\0\"", "'\\00\""),
        (bytes(range(50)), "".join(f"\\{byte:02x}" for byte in range(33)) + "!\"#$%&'()*+,-./01"),
        (bytes(range(51)), "\\00\\01\\02\\03\\04\\05\\06\\07\\08\\09 ... )*+,-./012"),
        (b"x" * 300_000 + b"\0", "xxxxxxxxxx ... xxxxxxxxx\\00"),
    ],
)
def test_data(content: bytes, shown: str) -> None:
    assert data(content) == f"data({len(content)})='{shown}'"
    assert data(content, content=False) == f"data({len(content)})"


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"x1", '"x1"'),
        (b"a" * 49, '"' + "a" * 49 + '"'),
        (LETTERS * 3, '"abcdefghijklmnopqrstuvwxy ... bcdefghijklmnopqrstuvwxyz"'),
        (b"\x01", "0x01"),
        (b"a\nb", "0x620a61"),
        (b"a b", "0x622061"),
        (b"a\x7f", "0x7f61"),
        (bytes(range(100)), "0x" + bytes(range(99, -1, -1)).hex()),
        (b"\0" * 1024, "0x" + "00" * 1024),
        (b"\1" + b"\0" * 1024, "0x" + "00" * 25 + " ... " + "00" * 24 + "01"),
        (b"y" * 5000, '"' + "y" * 25 + " ... " + "y" * 25 + '"'),
    ],
)
def test_xids(content: bytes, shown: str) -> None:
    assert xid(content) == f"xid({len(content)})='{shown}'"
    assert xid_text(reader(content), len(content), whole=False) == f"xid({len(content)})"


def test_empty_data_is_shown_as_nothing() -> None:
    assert xid(b"") == data(b"") == data(b"", test_text=True) == ""


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"\0msg\0", "msg"),
        (b"xxmsg00001\0yyy", "msg00001"),
        (b"xxmsg00001", "msg00001"),
        (b"xxmsgmsgA\0", "msgmsgA"),
        (b"msg 1\x01\xff\0", "msg 1\\01\\ff"),
        (b"msg\"q'\0", "msg\"q'"),
        (b"msg \\20 \\\0", "msg \\20 \\"),
        (b"mmsg" + b"x" * 100 + b"\0", "msg" + "x" * 100),
        (b"\0" * 65_534 + b"msg7\0", "msg7"),
        (b"\0" * 65_535 + b"msg7\0", "msg7"),
        (b"\0" * 65_536 + b"msg7\0", "msg7"),
        (b"msg" + b"y" * 5000, "msg" + "y" * 1021),
    ],
)
def test_test_texts(content: bytes, shown: str) -> None:
    for whole in (True, False):
        assert data(content, test_text=True, content=whole) == f"data({len(content)})='{shown}'"


def test_data_without_a_test_text_is_shown_as_without_the_option() -> None:
    assert data(b"MSG\0", test_text=True, content=False) == "data(4)"
    assert data(b"MSG\0", test_text=True) == data(b"MSG\0") == "data(4)='MSG\\00'"


@given(st.binary(min_size=1, max_size=200))
def test_shown_text_is_short_printable_ascii(content: bytes) -> None:
    for text in (data(content), xid(content), data(content, test_text=True)):
        assert text.isascii()
        assert text.isprintable()
        assert len(text) <= 20 + max(4 * 50, 2 * len(content))


# ---- headers, tails, flags ----


@pytest.mark.parametrize(
    ("seconds", "nanoseconds", "shown"),
    [
        (0, 0, "Thu Jan 01 00:00:00.000000000 1970"),
        (1_699_142_400, 5, "Sun Nov 05 00:00:00.000000005 2023"),
        (1_700_000_000, 123_456_789, "Tue Nov 14 22:13:20.123456789 2023"),
        ((1 << 40) - 1, 123_456_789, "Mon Feb 20 00:36:15.123456789 36812"),
        (1_700_000_000, 2**64 - 1, "Tue Nov 14 22:13:20.18446744073709551615 2023"),
    ],
)
def test_file_headers(seconds: int, nanoseconds: int, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    header = FileHeader(7, 0x21, 3, 512 << 10, 0x1180, seconds, nanoseconds, 0x1B, "q", flags=0x10)
    assert file_header_text(header) == (f"[F v=2 f=0x0010 rid=0x21] fnum=0x1b fro=0x00001180 p=3 s=512k t={shown} ")


def test_a_forged_time_is_shown_at_any_distance() -> None:
    header = FileHeader(7, 1, 1, 4096, 0x1000, 2**64 - 1, 0, 1, "q")
    assert file_header_text(header).endswith(" 584554051223 ")


@pytest.mark.parametrize(
    ("header", "is_prepared_list", "shown"),
    [
        (RecordHeader(Kind.ENQUEUE), False, ""),
        (RecordHeader(Kind.ENQUEUE, TRANSIENT), False, "[TRANSIENT]"),
        (RecordHeader(Kind.ENQUEUE, EXTERNAL), False, "*EXTERNAL]"),
        (RecordHeader(Kind.ENQUEUE, 0xFFFF), True, "[TRANSIENT,EXTERNAL]"),
        (RecordHeader(Kind.ENQUEUE, 0xFFCF), False, ""),
        (RecordHeader(Kind.DEQUEUE, COMMIT_DECISION, xid_size=1), False, ""),
        (RecordHeader(Kind.DEQUEUE, COMMIT_DECISION, xid_size=1), True, "[COMMIT]"),
        (RecordHeader(Kind.DEQUEUE, 0xFFEF, xid_size=1), True, "[ABORT]"),
        (RecordHeader(Kind.DEQUEUE, COMMIT_DECISION), True, ""),
        (RecordHeader(Kind.COMMIT, 0xFFFF, xid_size=1), True, ""),
    ],
)
def test_flags(header: RecordHeader, is_prepared_list: bool, shown: str) -> None:
    assert flags_text(header, is_prepared_list=is_prepared_list) == shown


def test_headers_and_tails() -> None:
    header = RecordHeader(Kind.ABORT, 0xAB, 5, 0xCDEF, 3)
    assert header_text(header) == "[A v=2 f=0x00ab rid=0xcdef]"
    assert tail_text(header, Tail(0, 0xAB, 5, 0xCDEF)) == "[A cs=0x000000ab rid=0xcdef]"
    assert tail_text(header, None) == "[INVALID RECORD TAIL]"
    assert header_text(RecordHeader(Kind.FILLER)) == "[X]"
    assert tail_text(RecordHeader(Kind.DEQUEUE), None) == ""
    assert tail_text(RecordHeader(Kind.ENQUEUE), Tail(0, 1, 2, 3)) == ""  # as the original


# ---- whole lines ----


def test_lines_of_each_kind() -> None:
    queue = LinearBuilder("q", data_size=4)
    queue.enqueue(1, b"m")
    queue.enqueue(2, b"m", xid=b"x")
    queue.enqueue(3, b"", xid=b"x")
    queue.enqueue(4)
    queue.append(RecordHeader(Kind.ENQUEUE, EXTERNAL, rid=5, data_size=1 << 40))
    queue.append(RecordHeader(Kind.ENQUEUE, EXTERNAL | TRANSIENT, rid=6, xid_size=1, data_size=7), b"x")
    queue.dequeue(7, 1)
    queue.dequeue(8, 2, xid=b"x")
    queue.dequeue(9, 99)
    queue.commit(10, b"x")
    queue.abort(11, b"y")
    queue.fill(1)
    show = Show(walked=True, fillers=True, xids=True, data=True, test_texts=True)
    lines = analysed(queue.disk(), show).walked()
    assert [fields(line) for line in lines[1:13]] == [
        "[E v=2 f=0x0000 rid=0x1]  data(1)='\"m\"' [E rid=0x1]  ",
        "[E v=2 f=0x0000 rid=0x2] xid(1)='\"x\"' data(1)='\"m\"' [E rid=0x2]  ",
        "[E v=2 f=0x0000 rid=0x3] xid(1)='\"x\"'  [E rid=0x3]  ",
        "[E v=2 f=0x0000 rid=0x4]     ",
        "[E v=2 f=0x0020 rid=0x5]  data(1099511627776) [E rid=0x5] *EXTERNAL] ",
        "[E v=2 f=0x0030 rid=0x6] xid(1)='\"x\"' data(7) [E rid=0x6] [TRANSIENT,EXTERNAL] ",
        "[D v=2 f=0x0000 rid=0x7] drid=0x1    ",
        "[D v=2 f=0x0000 rid=0x8] drid=0x2 xid(1)='\"x\"' [D rid=0x8]  <NOT IN EMAP>",
        "[D v=2 f=0x0000 rid=0x9] drid=0x63    <NOT IN EMAP>",
        "[C v=2 f=0x0000 rid=0xa] xid(1)='\"x\"' [C rid=0xa] ",
        "[A v=2 f=0x0000 rid=0xb] xid(1)='\"y\"' [A rid=0xb] <NOT IN TMAP>",
        "[X]",
    ]


def test_large_numbers() -> None:
    queue = LinearBuilder("q", data_size=4, first_number=2**64 - 1)
    queue.enqueue(2**64 - 1, b"m")
    queue.flush()
    result = analysed(queue.disk(), Show(walked=True))
    assert result.walked()[1].startswith("0xffffffffffffffff:0x00001000: [E v=2 f=0x0000 rid=0xffffffffffffffff] ")
    assert result.files() == [("0xffffffffffffffff", 1)]
