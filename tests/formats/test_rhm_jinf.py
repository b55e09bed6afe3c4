"""Journal info files in both versions."""

from __future__ import annotations

import json
import sys
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import RhmError
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import MAX_JINF_SIZE, JournalInfo, decode_jinf, encode_jinf

EXACT = """\
<?xml version="1.0" ?>
<jrnl>
  <journal_version value="1" />
  <journal_id>
    <id_string value="q1" />
    <directory value="/var/lib/qpidd/rhm/jrnl/0008/q1/" />
    <base_filename value="JournalData" />
  </journal_id>
  <creation_time>
    <seconds value="1795188795" />
    <nanoseconds value="211840519" />
    <string value="2026/11/20 16:53:15.211840519" />
  </creation_time>
  <journal_file_geometry>
    <number_jrnl_files value="8" />
    <auto_expand value="false" />
    <jrnl_file_size_sblks value="3072" />
    <JRNL_SBLK_SIZE value="4" />
    <JRNL_DBLK_SIZE value="128" />
  </journal_file_geometry>
  <cache_geometry>
    <wcache_pgsize_sblks value="64" />
    <wcache_num_pages value="32" />
    <JRNL_RMGR_PAGE_SIZE value="128" />
    <JRNL_RMGR_PAGES value="16" />
  </cache_geometry>
</jrnl>
"""
INFO_1 = JournalInfo(
    1,
    "q1",
    "JournalData",
    Geometry.from_pages(8, 24),
    directory="/var/lib/qpidd/rhm/jrnl/0008/q1/",
    seconds=1795188795,
    nanoseconds=211840519,
    local_time="2026/11/20 16:53:15.211840519",
)
INFO_2 = JournalInfo(
    2,
    "orders",
    "JournalData",
    Geometry.from_pages(4, 1),
    seconds=5,
    nanoseconds=6,
    queue_id=7,
    incarnation=8,
    queue_record=b"\x06orders",
    flush_alignment=4096,
)
AWKWARD_NAMES = [
    "journal_version",
    '<journal_version value="9" />',
    'a"b',
    'a" />',
    'a" />\n',
    "a\nb",
    "two\r\nlines",
    '\n    <number_jrnl_files value="64" />\n',
    '\n    <base_filename value="evil" />\n  </journal_id>',
    'x" />\n    <directory value="y',
    "\udcff\udc80",
    "Grüße 世界",
    "{queue_name}%s",
    "",
    " ",
]
NAMES = st.sampled_from(AWKWARD_NAMES) | st.binary(max_size=40).map(
    lambda content: content.replace(b"\0", b"").decode("utf-8", "surrogateescape")
)
NUMBERS = st.integers(0, 10**15 - 1)
GEOMETRIES = st.builds(Geometry, st.integers(1, 64), st.integers(1, 1 << 40).map(lambda count: count * 512))


def test_exact_text() -> None:
    assert encode_jinf(INFO_1) == EXACT.encode()
    assert decode_jinf(EXACT.encode()) == INFO_1


@pytest.mark.parametrize("limit", [0, 16])
def test_auto_expand(limit: int) -> None:
    leaf = f'    <auto_expand value="true" />\n    <auto_expand_max_jrnl_files value="{limit}" />\n'
    text = EXACT.replace('    <auto_expand value="false" />\n', leaf)
    info = decode_jinf(text.encode())
    assert info.auto_expand_limit == limit
    assert encode_jinf(info) == text.encode()


@given(NAMES, NUMBERS, NUMBERS, GEOMETRIES, st.none() | st.integers(0, 64))
def test_version_1_round_trip(name: str, seconds: int, nanoseconds: int, geometry: Geometry, limit: int | None) -> None:
    info = JournalInfo(
        1,
        name,
        "tpl",
        geometry,
        directory=f"/var/lib/qpidd/rhm/jrnl/0008/{name}/",
        seconds=seconds,
        nanoseconds=nanoseconds,
        local_time="2026/11/20 16:53:15.211840519",
        auto_expand_limit=limit,
    )
    assert decode_jinf(encode_jinf(info)) == info


@given(NAMES, GEOMETRIES, NUMBERS, NUMBERS, st.binary(max_size=100))
def test_version_2_round_trip(name: str, geometry: Geometry, queue_id: int, incarnation: int, record: bytes) -> None:
    info = JournalInfo(
        2, name, "JournalData", geometry, queue_id=queue_id, incarnation=incarnation, queue_record=record
    )
    content = encode_jinf(info)
    assert decode_jinf(content) == info
    assert content.count(b"\n") == 1
    assert content.endswith(b"\n")


def test_version_2_layout() -> None:
    fields = json.loads(encode_jinf(INFO_2))
    crc = fields.pop("crc32c")
    line = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    assert crc == extend_crc32c(0, line)
    assert fields == {
        "journal_version": 2,
        "queue_id": 7,
        "incarnation": 8,
        "queue_name": "orders",
        "queue_record": "Bm9yZGVycw==",
        "base_filename": "JournalData",
        "number_jrnl_files": 4,
        "jrnl_file_size_sblks": 128,
        "flush_alignment": 4096,
        "seconds": 5,
        "nanoseconds": 6,
    }


@given(st.integers(0, len(encode_jinf(INFO_2)) * 8 - 9))
def test_version_2_notices_every_flipped_bit(bit: int) -> None:
    content = bytearray(encode_jinf(INFO_2))
    content[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RhmError):
        decode_jinf(bytes(content))


@given(st.binary(max_size=200))
@example(b"{}")
@example(b"[]")
@example(b"{\0")
@example(b'{"journal_version":2')
@example(b'{"journal_version":2,"crc32c":NaN}')
@example(b'{"journal_version":' + b"9" * 5000 + b"}")
@example(b'{"journal_version":{"a":1}}')
@example(b'{"x":' + b"[" * 100_000)
def test_hostile_bytes(content: bytes) -> None:
    with pytest.raises(RhmError):
        decode_jinf(content)


def test_nested_json_is_refused_at_any_depth() -> None:
    for depth in range(sys.getrecursionlimit() + 10):
        content = b'{"journal_version":2,"x":' + b"[" * depth + b"]" * depth + b"}"
        with pytest.raises(RhmError):
            decode_jinf(content)


@given(st.data())
def test_damaged_version_1_text_gives_an_error_or_a_value(data: st.DataObject) -> None:
    content = bytearray(EXACT.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    for damaged in (bytes(content), bytes(content[:cut])):
        try:
            info = decode_jinf(damaged)
        except RhmError:
            continue
        assert info.geometry.files >= 1


def test_hostile_text_takes_bounded_time() -> None:
    openings = b'<seconds value="\n' * (MAX_JINF_SIZE // 17 - 100)
    begun = time.process_time()
    decode_jinf(EXACT.encode() + openings)
    with pytest.raises(RhmError):
        decode_jinf(b'<journal_version value="1" />\n' + b'<id_string value="\n' * 50_000)
    with pytest.raises(RhmError):
        decode_jinf(b'<journal_version value="1" />\n' + b'<id_string value="" />\n    <directory value="\n' * 20_000)
    assert time.process_time() - begun < 2


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"\0" * 300, "is empty"),
        (b" \n" * 10, "is empty"),
        (b"x" * (MAX_JINF_SIZE + 1), "more than 1,048,576"),
        (EXACT.replace('version value="1"', 'version value="3"').encode(), "unsupported journal version 3"),
        (EXACT.replace('version value="1"', 'version value="2"').encode(), "unsupported journal version 2"),
        (b'{"journal_version":3}', "unsupported journal version 3"),
        (b'{"journal_version":1}', "unsupported journal version 1"),
        (EXACT.replace('SBLK_SIZE value="4"', 'SBLK_SIZE value="8"').encode(), "sectors of 8 blocks of 128 bytes"),
        (EXACT.replace('files value="8"', 'files value="0"').encode(), "0 files is out of range"),
        (EXACT.replace('files value="8"', 'files value="65"').encode(), "65 files is out of range"),
        (EXACT.replace('sblks value="3072"', 'sblks value="0"').encode(), "size of 0 sectors is out of range"),
        (EXACT.replace('files value="8"', 'files value="-8"').encode(), "number_jrnl_files is not a number"),
        (EXACT.replace('files value="8"', 'files value="eight"').encode(), "number_jrnl_files is not a number"),
        (EXACT.replace("jrnl_file_size_sblks", "size").encode(), "no value for jrnl_file_size_sblks"),
        (EXACT.replace("id_string", "id").encode(), "no value for id_string"),
    ],
)
def test_invalid_jinf_error_names_the_problem(content: bytes, what: str) -> None:
    with pytest.raises(RhmError, match=what):
        decode_jinf(content)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"queue_name": 5}, "queue_name is not text"),
        ({"queue_record": "?"}, "queue_record is not base64"),
        ({"seconds": -1}, "seconds is not a number"),
        ({"seconds": True}, "seconds is not a number"),
        ({"number_jrnl_files": 0}, "0 files is out of range"),
        ({"jrnl_file_size_sblks": 1 << 60}, "out of range"),
        ({"incarnation": None}, "has values other than text and numbers"),
        ({"incarnation": "1"}, "incarnation is not a number"),
    ],
)
def test_checksummed_nonsense_is_refused(change: dict[str, object], what: str) -> None:
    fields = json.loads(encode_jinf(INFO_2))
    del fields["crc32c"]
    fields |= change
    line = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    fields["crc32c"] = extend_crc32c(0, line)
    with pytest.raises(RhmError, match=what):
        decode_jinf(json.dumps(fields).encode())


def test_version_2_tells_of_creation_headers() -> None:
    """Only where there are some: journals that are older do not have the key."""
    created = INFO_2._replace(creation_headers=True)
    assert json.loads(encode_jinf(created))["creation_headers"] == 1
    assert decode_jinf(encode_jinf(created)) == created
    assert "creation_headers" not in json.loads(encode_jinf(INFO_2))
    assert not decode_jinf(encode_jinf(INFO_2)).creation_headers


@given(st.lists(st.integers(0, 65535), unique=True, min_size=1, max_size=200), st.integers(1, 100), st.integers(0, 64))
def test_rings_that_grew_round_trip(numbers: list[int], files: int, initial: int) -> None:
    ring, spare = tuple(numbers[:files]), tuple(numbers[files:])
    info = INFO_2._replace(
        geometry=Geometry(len(ring), 65536), ring=ring, spare=spare, initial_files=max(initial, len(ring) > 64)
    )
    assert decode_jinf(encode_jinf(info)) == info
    assert info.numbers == ring


def test_a_ring_that_grew_as_text() -> None:
    ring = (0, 1, 2, 3, 8, 4, 5, 6, 7)
    info = INFO_2._replace(geometry=Geometry(9, 65536), ring=ring, spare=(12, 9), initial_files=8)
    fields = json.loads(encode_jinf(info))
    assert (fields["ring"], fields["spare"], fields["initial_jrnl_files"]) == ("0-3,8,4-7", "12,9", 8)


@pytest.mark.parametrize(
    "changed",
    [
        {"ring": "0-3,3"},
        {"ring": "0-2"},
        {"ring": "0-4"},
        {"ring": "0-3", "spare": "3"},
        {"ring": "3-0"},
        {"ring": ""},
        {"ring": "a-b"},
        {"ring": "0-65536"},
        {"spare": "99999"},
        {"ring": 7},
        {"number_jrnl_files": 65},
        {"number_jrnl_files": 65537, "initial_jrnl_files": 4},
        {"initial_jrnl_files": "4"},
    ],
    ids=str,
)
def test_rings_that_cannot_be(changed: dict[str, object]) -> None:
    fields = {**json.loads(encode_jinf(INFO_2)), **changed}
    del fields["crc32c"]

    def line() -> bytes:
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"

    fields["crc32c"] = extend_crc32c(0, line())
    with pytest.raises(RhmError, match="journal info file"):
        decode_jinf(line())


def test_spaces_may_follow_version_2() -> None:
    info = JournalInfo(2, "q", "JournalData", Geometry(4, 1024), queue_id=1, queue_record=b"x")
    assert decode_jinf(encode_jinf(info).ljust(4096)) == info
    with pytest.raises(RhmError, match="not JSON"):
        decode_jinf(encode_jinf(info) + b" x")
