"""The pages `formats/*/README.md` against the code: what they print is what is read and written."""

from __future__ import annotations

import json
import re
from struct import Struct
from typing import Any, Final

import pytest

from qstore.formats.amqp_0_10 import structs
from qstore.formats.amqp_0_10.types import BY_CODE
from qstore.formats.bdb import log, pages, writer
from qstore.formats.broker_records import amqp_0_9_1_messages, amqp_1_0_messages, messages, topology, xids
from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import BrokerRecordError
from qstore.formats.qls import file_header as qls_file
from qstore.formats.qls import records as qls
from qstore.formats.rhm import compressed, geometry, headers, jinf
from qstore.formats.rhm import file_header as rhm_file
from qstore.formats.rhm import records as rhm
from qstore.formats.rhm.records import Kind
from qstore.formats.values import EMPTY_MAP
from tests.support.format_pages import (
    FOLDERS,
    Reference,
    page_text,
    printed_layout,
    references,
    section,
    sections,
    struct_layout,
    table,
    tables,
    texts,
)

_RHM_FILE_1: Final = """
    magic version endian flags rid file_number logical_number reserved first_record_offset seconds nanoseconds reserved
"""
_RHM_FILE_2: Final = """
    magic version endian flags first_flush first_record_offset salt queue_id incarnation file_number flush_alignment
    seconds nanoseconds crc
"""
_QLS_FILE: Final = """
    magic version flags serial rid header_sectors partition reserved data_kib first_record_offset seconds nanoseconds
    file_number name_size
"""
_BDB_PAGE: Final = "lsn_file lsn_offset number previous next entries lowest level type"


def _version_1(kind: Kind) -> tuple[Struct, str, int]:
    layout = rhm.LAYOUTS[1, kind]
    return layout.rest, " ".join(layout.fields), rhm.COMMON.size


_QLS_COMMON: Final = qls.COMMON.size

#: Page, section, which of its tables -> struct, names of its fields, and where in the header it begins.
_LAYOUTS: Final[dict[tuple[str, str, int], tuple[Struct, str, int]]] = {
    ("rhm", "2.1", 0): (rhm.COMMON, "magic version endian flags", 0),
    ("rhm", "2.3", 0): (rhm_file.VERSION_1, _RHM_FILE_1, 0),
    ("rhm", "2.4", 0): _version_1(Kind.ENQUEUE),
    ("rhm", "2.5", 0): _version_1(Kind.DEQUEUE),
    ("rhm", "2.6", 0): _version_1(Kind.COMMIT),
    ("rhm", "2.6", 1): (rhm.TAIL, "check rid", 0),
    ("rhm", "8.1", 0): (Struct(rhm_file.VERSION_2.format + rhm_file.CRC.format[1:]), _RHM_FILE_2, 0),
    ("rhm", "8.3", 0): (rhm.LAYOUTS[2, Kind.ENQUEUE].rest, "rid xid_size flush datum", rhm.COMMON.size),
    ("rhm", "8.3", 1): (rhm.TAIL, "check rid", 0),
    ("rhm", "8.8", 0): (compressed.PREFIX, "method content_size", 0),
    ("qls", "2.1", 0): (qls.COMMON, "magic version flags serial rid", 0),
    ("qls", "2.2", 0): (qls_file.FIELDS, _QLS_FILE, 0),
    ("qls", "2.3", 0): (Struct("<QQ"), "xid_size data_size", _QLS_COMMON),
    ("qls", "2.4", 0): (Struct("<QQ"), "dequeued_rid xid_size", _QLS_COMMON),
    ("qls", "2.4", 1): (Struct("<Q"), "xid_size", _QLS_COMMON),
    ("qls", "2.5", 0): (qls.TAIL, "magic checksum serial rid", 0),
    ("bdb", "2.1", 0): (pages.METADATA["<"], " ".join(pages.Metadata._fields), 0),
    ("bdb", "3.1", 0): (pages.HEADER["<"], _BDB_PAGE, 0),
    ("bdb", "4.2", 0): (pages.DATA_ITEM["<"], "length type", 0),
    ("bdb", "4.2", 1): (pages.REFERENCE["<"], "length type page total", 0),
    ("bdb", "5.1", 0): (log.RECORD_HEADER, "before length checksum", 0),
    ("bdb", "5.1", 1): (log.FILE_HEADER, "magic version file_size unused", log.RECORD_HEADER.size),
    ("bdb", "5.1", 2): (Struct("<IIII"), "type transaction lsn_file lsn_offset", log.RECORD_HEADER.size),
    ("broker_records", "1.3", 0): (Struct(">BBHBBHI"), "flags segment_type size reserved track channel reserved", 0),
    ("broker_records", "1.7", 0): (amqp_0_9_1_messages.HEAD, "mark expiration", 0),
    ("broker_records", "1.8", 0): (amqp_1_0_messages.HEAD, "mark expiration", 0),
}


@pytest.mark.parametrize("where", _LAYOUTS, ids=str)
def test_printed_layouts_are_those_of_the_structs(where: tuple[str, str, int]) -> None:
    layout, names, base = _LAYOUTS[where]
    assert printed_layout(table(*where)) == struct_layout(layout, names.split(), base)


def test_every_printed_layout_is_compared() -> None:
    printed = {
        (page, number, index)
        for page in FOLDERS
        for number, text in sections(page_text(page)).items()
        for index, rows in enumerate(tables(text))
        if rows and "offset" in rows[0]
    }
    assert printed == _LAYOUTS.keys()


# ---- the ring journal ----


def test_ring_geometry() -> None:
    reported = {row["quantity"]: row["value"] for row in table("rhm", "1.2")}
    assert reported["block"] == f"{geometry.BLOCK_SIZE} bytes"
    assert reported["sector"] == f"{geometry.SECTOR_SIZE} bytes"
    assert reported["file header area"] == f"{geometry.FILE_HEADER_SIZE} bytes"
    assert reported["page"] == f"{geometry.PAGE_SIZE} bytes"
    assert f"to {geometry.MAX_FILES}," in reported["files in a ring"]
    largest = (geometry.MAX_FILE_SIZE - geometry.FILE_HEADER_SIZE) // geometry.PAGE_SIZE
    assert f"up to {largest} " in reported["data area in pages"]
    assert f"{geometry.Geometry.from_pages(8, 24).file_size:,} bytes" in section("rhm", "1.2")


def test_ring_kinds() -> None:
    rows = table("rhm", "2.2")
    assert {row["kind"]: int(row["magic as little-endian u32"], 16) for row in rows} == {k.name: k for k in Kind}
    for row in rows:
        assert int.from_bytes(row["magic as bytes"].encode(), "little") == Kind[row["kind"]]


@pytest.mark.parametrize(
    ("number", "version", "kind"),
    [("2.4", 1, Kind.ENQUEUE), ("2.5", 1, Kind.DEQUEUE), ("2.6", 1, Kind.COMMIT), ("8.3", 2, Kind.ENQUEUE)],
)
def test_ring_headers_end_where_the_page_says(number: str, version: int, kind: Kind) -> None:
    assert f"Offset {rhm.LAYOUTS[version, kind].size}: " in section("rhm", number)


def test_ring_last_header_field_of_version_2_by_kind() -> None:
    datum = table("rhm", "8.3")[3]["meaning"]
    reported = {
        "enqueue": Kind.ENQUEUE,
        "dequeue": Kind.DEQUEUE,
        "filler": Kind.FILLER,
        "commit and abort": Kind.COMMIT,
    }
    for words, kind in reported.items():
        assert f"{words}: {rhm.LAYOUTS[2, kind].fields[3]}" in datum


@pytest.mark.parametrize("version", [1, 2])
def test_ring_sizes_of_records(version: int) -> None:
    reported = {row["record"]: row[f"version {version}"] for row in table("rhm", "2.6", 2)}
    xid, data = 1000, 50_000
    for name, header in {
        "enqueue": rhm.RecordHeader(Kind.ENQUEUE, version, 0, xid_size=xid, data_size=data),
        "dequeue under an xid": rhm.RecordHeader(Kind.DEQUEUE, version, 0, xid_size=xid),
        "plain dequeue": rhm.RecordHeader(Kind.DEQUEUE, version, 0),
        "commit, abort": rhm.RecordHeader(Kind.ABORT, version, 0, xid_size=xid),
    }.items():
        terms = {"x": xid, "d": data}
        size = sum(terms[term] if term in terms else int(term) for term in reported[name].split(" + "))
        assert size == header.tail_offset + (rhm.TAIL_SIZE if header.has_tail else 0)
    assert reported["filler"] == (str(geometry.BLOCK_SIZE) if version == 1 else "any number of blocks")


def test_ring_check_words() -> None:
    text = section("rhm", "2.6")
    for kind in (Kind.ENQUEUE, Kind.DEQUEUE, Kind.COMMIT, Kind.ABORT):
        check = rhm.version_1_check(kind).to_bytes(4, "little").hex(" ")
        assert f"`{check[:8]}`" in text
        assert f"`{check[9:]}` ({kind.label})" in text


def test_ring_flags() -> None:
    rows = table("rhm", "2.7")
    flags = [
        "OVERWRITE_INDICATOR",
        "TRANSIENT",
        "COMMIT_DECISION",
        "EXTERNAL",
        "MOVED",
        "COMPRESSED",
        "LAST_OF_FLUSH",
        "SEAL",
        "BOUNDARY",
    ]
    assert {row["name"] for row in rows} == set(flags)
    for row in rows:
        assert getattr(rhm, row["name"]) == int(row["bit"], 16)


def test_ring_info_file_of_version_1_has_the_leaves_in_this_order() -> None:
    info = jinf.JournalInfo(1, "q", "JournalData", geometry.Geometry(4, 65536), auto_expand_limit=8)
    leaves = re.findall(r"<(\w+) value=", jinf.encode_jinf(info).decode())
    words = [word for row in table("rhm", "4.1") for word in re.findall(r"\w+", row["element"])]
    assert [word for word in words if word in leaves] == leaves
    assert f"{jinf.MAX_JINF_SIZE:,} bytes" in section("rhm", "4")


def test_ring_info_file_of_version_2_has_these_keys() -> None:
    info = jinf.JournalInfo(
        2,
        "q",
        "JournalData",
        geometry.Geometry(4, 65536),
        creation_headers=True,
        ring=(0, 1, 4, 2),
        spare=(3,),
        initial_files=3,
    )
    assert {row["key"] for row in table("rhm", "4.3")} == json.loads(jinf.encode_jinf(info)).keys()


def test_ring_numbers_of_version_2_in_the_text() -> None:
    check = extend_crc32c(0, b"123456789")
    assert f"0x{check:08X}" in section("rhm", "8.4")
    assert f"{headers.RESTART_GAP:,} higher" in section("rhm", "8.5")
    assert f"at 0 and {rhm_file.SLOT_SIZE}, each" in section("rhm", "8.2")
    assert f"slot at {rhm_file.CREATION_SLOT * rhm_file.SLOT_SIZE}:" in section("rhm", "8.2")
    alignment = {row["field"]: row["meaning"] for row in table("rhm", "8.1")}["flush_alignment"]
    assert alignment.endswith(f"default {rhm_file.DEFAULT_FLUSH_ALIGNMENT}")


# ---- the linearstore journal ----


def test_linear_geometry() -> None:
    reported = {row["quantity"]: row["value"] for row in table("qls", "1.2")}
    assert reported["block"] == f"{geometry.BLOCK_SIZE} bytes"
    assert reported["sector"] == f"{qls.SECTOR_SIZE} bytes"
    assert reported["file header area"] == f"{qls_file.FILE_HEADER_SIZE} bytes"
    assert f"{qls_file.linear_geometry(1, 2048 << 10).file_size:,} by default" in reported["file"]
    assert f"at most {qls_file.MAX_NAME_SIZE}," in table("qls", "2.2")[-1]["meaning"]
    assert f"Offset {qls_file.NAME_OFFSET}: " in section("qls", "2.2")


def test_linear_kinds_and_flags() -> None:
    rows = table("qls", "2.1", 1)
    reported = {Kind[row["kind"]]: int(row["magic as little-endian u32"], 16) for row in rows}
    assert reported == qls.MAGICS
    for row in rows:
        assert int.from_bytes(row["magic as bytes"].encode(), "little") == qls.MAGICS[Kind[row["kind"]]]
    for row in table("qls", "2.6"):
        assert getattr(rhm, row["name"]) == int(row["bit"], 16)


@pytest.mark.parametrize(
    ("number", "index", "kind"),
    [("2.3", 0, Kind.ENQUEUE), ("2.4", 0, Kind.DEQUEUE), ("2.4", 1, Kind.COMMIT), ("2.4", 1, Kind.ABORT)],
)
def test_linear_record_headers(number: str, index: int, kind: Kind) -> None:
    """The structs are private to the codec: what it encodes says where each field goes."""
    places = printed_layout(table("qls", number, index))
    values = {place.name: 0x0102030405060700 + at for at, place in enumerate(places)}
    header = qls.encode_header(qls.RecordHeader(kind, **values))
    for place in places:
        assert int.from_bytes(header[place.offset : place.offset + place.size], "little") == values[place.name]
    assert len(header) == qls.HEADER_SIZES[kind]
    assert f"Offset {len(header)}: " in section("qls", number)


def test_linear_tail_marks() -> None:
    printed = table("qls", "2.5")[0]["meaning"]
    for kind in (Kind.ENQUEUE, Kind.DEQUEUE, Kind.COMMIT, Kind.ABORT):
        mark = (qls.MAGICS[kind] ^ 0xFFFFFFFF).to_bytes(4, "little").hex(" ")
        assert mark[:8] in printed
        assert f"{mark[9:]} {kind.label}" in printed


# ---- Berkeley DB ----


@pytest.mark.parametrize(
    ("number", "column", "numbers"),
    [("2.2", "bit", pages.MetadataFlag), ("3.2", "value", pages.PageType), ("4.1", "value", pages.ItemType)],
)
def test_bdb_numbers(number: str, column: str, numbers: Any) -> None:
    reported = {row["name"]: int(row[column], 0) for row in table("bdb", number)}
    assert reported == {each.name: each.value for each in numbers}


def test_bdb_metadata_and_log_have_the_numbers_of_the_code() -> None:
    reported = {row["field"]: row["meaning"] for row in table("bdb", "2.1")}
    assert reported["magic"].startswith(f"0x{pages.BTREE_MAGIC:08x}")
    assert reported["version"] == str(pages.SUPPORTED_VERSION)
    assert reported["page_type"] == str(pages.PageType.BTREE_METADATA.value)
    assert reported["page_size"].startswith(f"{min(pages.PAGE_SIZES)} to {max(pages.PAGE_SIZES)},")
    assert reported["page_size"].endswith(f"qpidd: {writer.QPIDD_PAGE_SIZE}")
    first = {row["field"]: row["meaning"] for row in table("bdb", "5.1", 1)}
    assert (first["magic"], first["version"]) == (f"0x{log.LOG_MAGIC:08x}", str(log.LOG_VERSION))
    assert f"Offset {pages.HEADER_SIZE}: the index" in section("bdb", "3.1")
    assert f"Bit 0x{pages.DELETED:x} set" in section("bdb", "4.1")
    assert f"file of {len(writer.encode_empty_log())} bytes" in " ".join(section("bdb", "6.1").split())


def test_bdb_log_records() -> None:
    numbers = {int(row["type"]) for row in table("bdb", "5.2")}
    assert numbers == {
        log.REGISTER, log.COMMIT, log.CHECKPOINT, log.CHILD, log.RECYCLE,
        log.FILE_CREATE, log.FILE_WRITE, log.FILE_RENAME,
    }  # fmt: skip
    listed = section("bdb", "5.2").split("PAGE_CHANGES`:")[1].split("Those")[0]
    assert [int(number) for number in re.findall(r"\b\d+\b", listed)] == list(log.PAGE_CHANGES)


# ---- what brokers put into a store ----

_STRUCTS: Final = (structs.MESSAGE_TRANSFER, structs.MESSAGE_PROPERTIES, structs.DELIVERY_PROPERTIES)


@pytest.mark.parametrize("index", range(3), ids=[each.name for each in _STRUCTS])
def test_fields_of_messages(index: int) -> None:
    rows = table("broker_records", "1.4", index)
    packed = _STRUCTS[index]
    assert [row["field"] for row in rows] == [field.name for field in packed.fields]
    for place, (row, field) in enumerate(zip(rows, packed.fields, strict=True)):
        assert row["flag"] == f"0x{1 << place % 8:02x} of byte {place // 8}"
        first = re.split(r"[ ,:]", row["type"])[0]
        assert first == ("u16" if field.type_name == "reply-to" else field.type_name)
    heading = f"{packed.name} (code 0x{packed.code or 0x0401:04x}"
    assert heading in section("broker_records", "1.4")


def test_frames_of_a_stored_message() -> None:
    data = messages.encode_message(b"body", channel=0x1234, delivery_properties={"routing_key": "k"})
    places = printed_layout(table("broker_records", "1.3"))
    fields = [int.from_bytes(data[4 + at : 4 + at + size], "big") for at, size, _ in places]
    method = int.from_bytes(data[6:8], "big")
    assert fields == [0x0B, 1, method, 0, 1, 0x1234, 0]
    assert data[4 + method] == 0x03
    assert len(data) - len(b"body") == 4 + messages.header_size(data)


def test_sections_of_amqp_1_0() -> None:
    rows = table("broker_records", "1.6")
    empty = {"list": b"\x45", "map": b"\xc1\x01\x00", "binary": b"\xa0\x00", "anything": b"\x40"}
    values = [empty[re.split(r"[:;]", row["value"])[0]] for row in rows]
    parts = [b"\x00\x53" + bytes([int(row["descriptor"], 16)]) + value for row, value in zip(rows, values, strict=True)]
    decoded = messages.decode_message_header(bytes(4) + b"".join(parts)).amqp_1_0
    assert decoded is not None
    assert [each.name for each in decoded.sections] == [row["section"] for row in rows]


def test_type_codes() -> None:
    for row in table("broker_records", "2.2", 1):
        wire_type = BY_CODE[int(row["code"], 16)]
        assert wire_type is not None
        assert wire_type.name == row["type"]


def test_widths_of_type_codes() -> None:
    reported = {row["codes"]: row["width"] for row in table("broker_records", "2.2")}
    for nibble in range(16):
        wire_type = BY_CODE[nibble << 4 | 7]
        width = reported.get(f"0x{nibble:x}_")
        if wire_type is None:
            assert width is None
        elif wire_type.fixed is not None:
            assert width == str(wire_type.fixed)
        else:
            assert width == f"u{8 * wire_type.prefix} size, then so many"


def test_transaction_ids() -> None:
    text = section("broker_records", "3")
    match = re.search(r"is `(06 04[^`]*)`", text)
    assert match is not None
    xid = xids.decode_xid(bytes.fromhex(match[1]))
    assert (xid.kind, xid.format, xid.global_id, xid.branch_id) == ("dtx", 9, b"gid", b"bid")
    longest = xids.decode_xid(bytes.fromhex("06040700 00000000") + (b"\xff" + bytes(255)) * 2)
    assert longest.kind == "dtx"
    assert f"to {len(longest.raw)} bytes" in text
    assert xids.decode_xid(bytes(24)).kind == "local"


def _encoded(kind: str, at: int) -> tuple[bytes, Any]:
    """A value of a type that the page names, different for each field, and what it is in Python."""
    match kind.rstrip("?"):
        case "str8":
            return b"\x02n" + bytes([65 + at]), "n" + chr(65 + at)
        case "str16":
            return b"\x00\x02n" + bytes([65 + at]), "n" + chr(65 + at)
        case "map":
            return bytes.fromhex("0000000400000000"), EMPTY_MAP
        case "uint8" | "int8":
            return b"\x01", True
        case number:
            width = int(number.removeprefix("uint")) // 8
            return (300 + at).to_bytes(width, "big"), 300 + at


@pytest.mark.parametrize("number", ["4.2", "4.3", "4.4"])
def test_records_of_queues_exchanges_bindings(number: str) -> None:
    decode: Any = {"4.2": topology.decode_queue, "4.3": topology.decode_exchange, "4.4": topology.decode_binding}[
        number
    ]
    rows = table("broker_records", number)
    values = [_encoded(row["type"], at) for at, row in enumerate(rows)]
    decoded = decode(b"".join(raw for raw, _ in values))
    assert {name: getattr(decoded, name) for name in decoded.__slots__} == {
        row["field"]: value for row, (_, value) in zip(rows, values, strict=True)
    }
    needed = [row["type"].endswith("?") for row in rows].count(False)
    decode(b"".join(raw for raw, _ in values[:needed]))
    with pytest.raises(BrokerRecordError):
        decode(b"".join(raw for raw, _ in values[: needed - 1]))


def test_records_of_general_objects() -> None:
    for row in table("broker_records", "4.5"):
        kind = "domain" if row["kind"] == "other" else row["kind"]
        fields = [field.split() for field in row["fields"].split(", ")]
        values = [_encoded(type_name, at) for at, (_, type_name) in enumerate(fields)]
        record = bytes([len(kind)]) + kind.encode() + b"".join(raw for raw, _ in values)
        decoded = topology.decode_general(record)
        for (name, _), (_, value) in zip(fields, values, strict=True):
            assert getattr(decoded, name) == value


# ---- references ----


def test_sections_are_numbered_in_order() -> None:
    for page in FOLDERS:
        numbers = [tuple(map(int, number.split("."))) for number in sections(page_text(page))]
        assert numbers == sorted(set(numbers))


def test_references_lead_to_sections() -> None:
    known = {Reference(page, number) for page in FOLDERS for number in sections(page_text(page))}
    found = {(str(path), each) for path, text in texts() for each in references(text)}
    assert {each for each in found if each[1] not in known} == set()
    assert found


def test_the_check_itself_reads_references_over_line_ends() -> None:
    text = (
        "x (formats/rhm/README.md,\n    # 2.3 and 8.1). `formats/bdb/README.md`, 4; formats/qls/README.md, 1 to 2.2.\n"
    )
    assert list(references(text)) == [("rhm", "2.3"), ("rhm", "8.1"), ("bdb", "4"), ("qls", "1"), ("qls", "2.2")]


def test_no_text_refers_to_a_page_that_is_not_in_the_project() -> None:
    named = re.compile(r"formats\s+page,|formats\s+page's", re.IGNORECASE)
    assert [str(path) for path, text in texts() if named.search(text)] == []
