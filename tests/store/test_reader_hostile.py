"""The walk over a journal that is hostile or damaged: forged records, absurd sizes, lying headers, random harm."""

from __future__ import annotations

import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.rhm.geometry import BLOCK_SIZE, PAGE_SIZE, Geometry
from qstore.formats.rhm.jinf import encode_jinf
from qstore.formats.rhm.records import EXTERNAL, Kind, RecordHeader, encode_record
from tests.support.journal_builder import DIRECTORY, JournalBuilder
from tests.support.journal_history import (
    GEOMETRIES,
    History,
    end_of,
    expected_places,
    long_steps,
    recover,
    replay,
    rids,
)
from tests.support.memory_disk import BadRegion, MemoryDisk
from tests.support.profiles import examples

BOTH = pytest.mark.parametrize("version", [1, 2])
SMALL = Geometry(4, 1024)


def forged(version: int, builder: JournalBuilder, count: int = 4) -> bytes:
    """Whole journal records, as good as a publisher can make them: all but the salt is guessed right."""
    flush = builder.flush_number
    records = []
    for rid in range(9000, 9000 + count):
        header = RecordHeader(Kind.ENQUEUE, version, 0, rid, data_size=6, flush=flush + 1 if version == 2 else 0)
        records.append(encode_record(header, b"", b"forged", salt=0))
    # So that they stand on blocks in the enclosing record.
    return bytes(BLOCK_SIZE - 32) + b"".join(records)


@BOTH
def test_forged_records_in_a_body_are_no_records(version: int) -> None:
    builder = JournalBuilder(version, SMALL)
    real = []
    for _ in range(4):
        real.append(builder.enqueue(forged(version, builder)).header.rid)
        real.append(builder.enqueue(b"between").header.rid)
        builder.flush()
    recovered = recover(builder.disk())
    assert rids(recovered) == real
    assert recovered.damage == []


@pytest.mark.parametrize("harm", ["header", "body", "tail", "last tail"])
def test_version_2_is_not_fooled_after_damage(harm: str) -> None:
    """A block inside a body never passes for a record, wherever the search begins."""
    builder = JournalBuilder(2, SMALL)
    records = []
    for _ in range(4):
        records.append(builder.enqueue(forged(2, builder)))
        builder.flush()
    target = records[3 if harm == "last tail" else 1]
    at = {"header": 9, "body": 40}.get(harm, target.header.tail_offset)
    builder.files[target.file][target.offset + at] ^= 0x40
    recovered = recover(builder.disk())
    assert rids(recovered) == [record.header.rid for record in records if record is not target]
    assert len(recovered.damage) == (harm != "last tail")
    assert end_of(recovered).torn == (harm == "last tail")


def test_version_1_is_not_fooled_by_the_body_of_a_record_without_tail() -> None:
    builder = JournalBuilder(1, SMALL)
    first = builder.enqueue(forged(1, builder))
    builder.flush()
    last = builder.enqueue(b"last")
    builder.flush()
    builder.files[first.file][first.offset + first.header.tail_offset] ^= 0x40
    recovered = recover(builder.disk())
    assert rids(recovered) == [last.header.rid]
    assert len(recovered.damage) == 1


def test_version_1_forged_records_of_a_former_lap_are_passed_over_whole() -> None:
    """After the end stand old messages, whose bodies hold records with the present indicator."""
    builder = JournalBuilder(1, Geometry(4, 2048))
    while builder.position < builder.geometry.capacity:
        body = bytearray(forged(1, builder))
        for at in range(BLOCK_SIZE - 32, len(body), BLOCK_SIZE):
            body[at + 6] ^= 1  # the indicator of the next lap
        builder.enqueue(bytes(body))
        builder.dequeue(builder.next_rid - 1)
        builder.flush()
        assert builder.position % 1024 == 0
    new = [builder.enqueue(b"n" * 900).header.rid]
    builder.flush()
    recovered = recover(builder.disk())
    assert rids(recovered) == new
    assert recovered.damage == []


def test_version_1_a_lookalike_of_a_plain_dequeue() -> None:
    """It has no tail, and what follows it in its block is not padding."""
    builder = JournalBuilder(1, SMALL)
    kept = builder.enqueue(b"kept").header.rid
    lookalike = encode_record(RecordHeader(Kind.DEQUEUE, 1, 0, 60, dequeued_rid=kept))
    harmed = builder.enqueue(bytes(BLOCK_SIZE - 32) + lookalike[:32] + b"text" * 24)
    last = builder.enqueue(b"last").header.rid
    builder.flush()
    builder.files[0][harmed.offset] ^= 0x10
    assert rids(recover(builder.disk())) == [kept, last]


@BOTH
@pytest.mark.parametrize("field", ["xid_size", "data_size"])
@pytest.mark.parametrize("size", [2**20 + 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
def test_hostile_sizes(version: int, field: str, size: int) -> None:
    """No size is believed that the journal cannot hold, and nothing is allocated for it."""
    if version == 2 and field == "xid_size":
        size = min(size, 2**32 - 1)
    builder = JournalBuilder(version, SMALL)
    first = builder.enqueue(b"first").header.rid
    hostile = builder.enqueue(b"hostile")
    builder.flush()
    last = builder.enqueue(b"last").header.rid
    builder.flush()
    offset = hostile.offset + {("xid_size", 1): 16, ("data_size", 1): 24, ("xid_size", 2): 16}.get((field, version), 24)
    packed = struct.pack("<I" if (field, version) == ("xid_size", 2) else "<Q", size)
    builder.files[hostile.file][offset : offset + len(packed)] = packed
    recovered = recover(builder.disk())
    assert rids(recovered) == [first, last]
    assert [damage.offset for damage in recovered.damage] == [hostile.offset]
    assert recovered.damage[0].rid == hostile.header.rid


@BOTH
def test_an_xid_that_is_too_long_is_not_read(version: int) -> None:
    builder = JournalBuilder(version, Geometry(4, 20 * PAGE_SIZE))
    longest = builder.enqueue(b"longest", xid=b"x" * 2**20)
    builder.flush()
    too_long = builder.enqueue(b"too long", xid=b"x" * (2**20 + 1))
    builder.flush()
    last = builder.commit(longest.xid)
    builder.flush()
    recovered = recover(builder.disk())
    assert rids(recovered) == [longest.header.rid]
    assert [damage.rid for damage in recovered.damage] == [too_long.header.rid]
    assert last.header.rid > too_long.header.rid


def test_records_of_version_2_in_a_journal_of_version_1() -> None:
    builder = JournalBuilder(1, SMALL)
    first = builder.enqueue(b"first").header.rid
    strange = builder.enqueue(b"strange")
    last = builder.enqueue(b"last").header.rid
    builder.flush()
    header = RecordHeader(Kind.ENQUEUE, 2, 0, 50, data_size=7)
    builder.files[0][strange.offset : strange.offset + 128] = encode_record(header, b"", b"strange")
    recovered = recover(builder.disk())
    assert rids(recovered) == [first, last]
    assert recovered.damage[0].what == "record of version 2 in a journal of version 1"


@pytest.mark.parametrize(("place", "content"), [(0, b"eMHR\1\1"), (4, b"\1\1")])
def test_a_big_endian_record_is_refused_by_name(place: int, content: bytes) -> None:
    builder = JournalBuilder(1, SMALL)
    strange = builder.enqueue(b"strange")
    last = builder.enqueue(b"last").header.rid
    builder.flush()
    at = strange.offset + place
    builder.files[0][at : at + len(content)] = content
    recovered = recover(builder.disk())
    assert rids(recovered) == [last]
    assert "big-endian writer" in recovered.damage[0].what


@pytest.mark.parametrize("offset", [0, 8, 0x200 + 64, 0x200 + 2 * 1024, 2**63, 0x280])
def test_a_first_record_offset_that_lies(offset: int) -> None:
    """Version 1, in a file that is reached by the chain: reported, and without consequence."""
    builder = JournalBuilder(1, SMALL)
    kept = []
    while builder.position <= 2 * 1024:
        kept.append(builder.enqueue(b"kept").header.rid)
    builder.flush()
    builder.files[1][24:32] = struct.pack("<Q", offset)
    recovered = recover(builder.disk())
    assert rids(recovered) == kept
    (damage,) = recovered.damage
    assert damage.file.endswith(".0001.jdat")
    assert f"0x{offset:x}" in damage.what


@pytest.mark.parametrize("offset", [8, 0x200 + 64, 0x200 + 2 * 1024, 2**63])
def test_a_first_record_offset_that_is_none_in_the_oldest_file(offset: int) -> None:
    builder = JournalBuilder(1, SMALL)
    kept = [builder.enqueue(b"kept").header.rid for _ in range(12)]
    builder.flush()
    builder.files[0][24:32] = struct.pack("<Q", offset)
    recovered = recover(builder.disk())
    assert rids(recovered) == kept
    assert recovered.damage


# ---- bounded work ----


@BOTH
def test_an_info_file_that_claims_a_giant_journal(version: int) -> None:
    """Its size comes from a file that anybody can damage: space that is not there takes no time."""
    builder = JournalBuilder(version, SMALL)
    kept = builder.enqueue(b"kept").header.rid
    builder.flush()
    disk = builder.disk()
    info = builder.info._replace(geometry=Geometry(1000, 512 << 40))
    disk.files[f"{DIRECTORY}/JournalData.jinf"] = encode_jinf(info)
    begun = time.process_time()
    recovered = recover(disk)
    assert time.process_time() - begun < 2
    assert rids(recovered) == [kept]
    assert recovered.damage


@BOTH
def test_a_hostile_body_costs_no_more_than_reading_it(version: int) -> None:
    """A torn record whose every block looks like a record with a far tail, or with much data to check."""
    builder = JournalBuilder(version, Geometry(4, 16 * PAGE_SIZE))
    size = 3 * 16 * PAGE_SIZE - 44
    blocks = []
    for index in range(size // BLOCK_SIZE - 1):
        far = max(1, size - index * BLOCK_SIZE - 1000)
        header = RecordHeader(Kind.ENQUEUE, version, 0, 5, data_size=far, flush=builder.flush_number + 5)
        blocks.append(encode_record(header._replace(data_size=0))[:24] + struct.pack("<Q", far))
    body = bytes(BLOCK_SIZE - 32) + b"".join(block.ljust(BLOCK_SIZE, b"\0") for block in blocks)
    torn = builder.enqueue(body[:size])
    builder.flush()
    builder.files[torn.file][torn.offset + 32] ^= 1  # version 2 notices this ...
    tail = torn.position + torn.header.tail_offset
    number, offset = builder.place(tail)
    builder.files[number][offset : offset + 12] = bytes(12)  # ... and version 1 this
    disk = builder.disk()
    begun = time.process_time()
    recovered = recover(disk)
    assert time.process_time() - begun < 5
    assert recovered.places == []
    assert disk.bytes_read < 40 * builder.geometry.capacity


@BOTH
def test_a_bad_sector_is_damage_and_reading_continues(version: int) -> None:
    builder = JournalBuilder(version, SMALL)
    for _ in range(7):
        builder.enqueue(b"x" * 300)
        builder.flush()
    disk = builder.disk()
    bad = builder.records[6]
    path = f"{DIRECTORY}/{builder.name(bad.file)}"
    disk.bad_regions.append(BadRegion(path, bad.offset, bad.offset + 1))
    recovered = recover(disk)
    lost = [record for record in builder.records if record.offset & -512 == bad.offset & -512]
    rest = [record for record in builder.records if record not in lost or record.file != bad.file]
    assert recovered.places == expected_places(builder, replay(rest))
    assert any("cannot be read: Input/output error" in damage.what for damage in recovered.damage)


# ---- random damage to whole journals ----


@examples(300)
@given(st.sampled_from([1, 2]), GEOMETRIES, st.integers(0, 2**32), st.data())
def test_random_damage(version: int, geometry: Geometry, seed: int, data: st.DataObject) -> None:
    """Whatever is flipped, zeroed, cut or mixed up: the walk ends, raises nothing, and keeps to its limits."""
    history = History(JournalBuilder(version, geometry))
    history.run(long_steps(seed, 80))
    history.flush()
    builder = history.builder
    disk = builder.disk()
    paths = sorted(path for path in disk.files if path.endswith(".jdat"))
    for _ in range(data.draw(st.integers(1, 6))):
        path = data.draw(st.sampled_from(paths))
        content = bytearray(disk.files[path])
        if not content:
            continue
        at = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["flip", "flip", "zero", "magic", "cut", "copy", "gone", "swap"])):
            case "flip":
                content[at] ^= 1 << data.draw(st.integers(0, 7))
            case "zero":
                content[at & -512 : (at & -512) + 512] = bytes(len(content[at & -512 : (at & -512) + 512]))
            case "magic":
                at &= -128
                content[at : at + 4] = struct.pack("<I", data.draw(st.sampled_from(sorted(Kind))))
            case "cut":
                del content[at:]
            case "copy":
                block = bytes(content[at & -128 : (at & -128) + 128])
                to = data.draw(st.integers(0, len(content) - 1)) & -128
                content[to : to + len(block)] = block
            case "gone":
                if len(disk.files) > 3:
                    disk.unopenable.add(path)
            case "swap":
                other = data.draw(st.sampled_from(paths))
                content, disk.files[other] = bytearray(disk.files[other]), bytes(content)
        disk.files[path] = bytes(content)
    recovered = recover(disk)
    assert len(set(rids(recovered))) == len(recovered.places)
    assert disk.max_open <= 2
    if version == 2:
        # Whatever is found was really written: the checksum lets nothing else pass.
        written = {record.header.rid for record in builder.records}
        assert set(rids(recovered)) <= written


@examples(200)
@given(
    st.lists(st.binary(max_size=1536), min_size=1, max_size=4), st.sampled_from([b"RHMf\1\0\0\0", b"RHMf\2\0\0\0", b""])
)
def test_files_of_anything(contents: list[bytes], begin: bytes) -> None:
    builder = JournalBuilder(1, Geometry(4, 1024))
    disk = MemoryDisk(
        {f"{DIRECTORY}/{builder.name(number)}": begin + content for number, content in enumerate(contents)}
    )
    disk.files[f"{DIRECTORY}/JournalData.jinf"] = encode_jinf(builder.info)
    recovered = recover(disk)
    assert disk.max_open <= 2
    assert recovered.damage


def test_external_records_are_skipped_by_their_stored_size() -> None:
    builder = JournalBuilder(1, SMALL)
    builder.enqueue(size=10**12, flags=EXTERNAL)
    last = builder.enqueue(b"last").header.rid
    builder.flush()
    assert rids(recover(builder.disk())) == [1, last]
