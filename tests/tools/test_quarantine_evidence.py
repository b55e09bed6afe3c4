"""Evidence about quarantined bytes: sound records are proved, broken ones are never taken for sound."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.rhm.records import COMPRESSED, EXTERNAL, Kind
from qstore.tools.quarantine import Evidence, RecordFinder, judge
from tests.support.opened_store import SALT, VERSIONS, dequeue, enqueue, flipped, message

BODY = bytes(range(256)) * 3
DATA = message(BODY)
HEADER = {"version 1": 32, "version 2": 32, "linear": 40}
TAIL = {"version 1": 12, "version 2": 12, "linear": 24}
SIZE_AT = {"version 1": 24, "version 2": 24, "linear": 32}


def records(raw: bytes, salt: int | None = SALT) -> list[Evidence]:
    return list(RecordFinder(raw, salt).records())


def only(raw: bytes, salt: int | None = SALT) -> Evidence:
    (found,) = records(raw, salt)
    return found


# ---- sound records ----


@pytest.mark.parametrize("version", VERSIONS)
def test_a_sound_record(version: str) -> None:
    raw = enqueue(version, DATA)
    found = only(raw)
    assert (found.format, found.kind, found.rid, found.is_proved) == (version, Kind.ENQUEUE, 5, True)
    assert raw[found.start : found.end] == DATA
    judged = judge(raw, found)
    assert (judged.problems, judged.refusal) == ((), None)
    assert judged.message is not None
    assert judged.message.body == BODY


@pytest.mark.parametrize("version", VERSIONS)
def test_sound_records_in_a_row(version: str) -> None:
    raw = enqueue(version, DATA, 5) + dequeue(version, 5, 6) + enqueue(version, b"x", 7)
    found = records(raw)
    assert [(each.kind, each.rid, each.dequeued_rid) for each in found] == [
        (Kind.ENQUEUE, 5, None),
        (Kind.DEQUEUE, 6, 5),
        (Kind.ENQUEUE, 7, None),
    ]
    assert all(each.is_proved for each in found)
    judged = [judge(raw, each) for each in found]
    assert judged[1].refusal == "a record of type dequeue holds no message"
    assert (judged[2].refusal or "").startswith("its message header cannot be decoded")


def test_without_the_salt_nothing_of_version_2_is_proved() -> None:
    assert only(enqueue("version 2", DATA), None).problems == (
        "its checksum cannot be verified: the salt of its file is unknown",
    )
    assert only(enqueue("version 2", DATA), SALT + 1).problems == ("enqueue record fails its checksum",)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_transaction_is_reported(version: str) -> None:
    raw = enqueue(version, DATA, xid=b"abc")
    found = only(raw)
    assert (found.xid, found.is_proved) == (b"abc", True)
    assert judge(raw, found).problems == ("it was enqueued in transaction 616263, whose outcome is unknown",)


def test_content_that_is_not_there() -> None:
    raw = enqueue("version 2", DATA, flags=COMPRESSED)
    refusal = judge(raw, only(raw)).refusal
    assert refusal is not None
    assert refusal.startswith("its content cannot be used: ")
    raw = enqueue("version 1", b"", flags=EXTERNAL)
    assert judge(raw, only(raw)).refusal == "it is external: its data were never in the journal"


# ---- broken ones ----


@pytest.mark.parametrize("version", ["version 2", "linear"])
def test_no_flipped_byte_passes_for_sound_where_there_is_a_checksum(version: str) -> None:
    raw = enqueue(version, DATA)
    used = HEADER[version] + len(DATA) + TAIL[version]
    for at in range(used):
        for found in records(flipped(raw, at)):
            assert not found.is_proved, at


@pytest.mark.parametrize("version", VERSIONS)
def test_a_flipped_byte_of_the_content(version: str) -> None:
    raw = flipped(enqueue(version, DATA), HEADER[version] + len(DATA) - 5)
    found = only(raw)
    assert found.is_proved == (version == "version 1")  # it has no checksum
    message_found = judge(raw, found).message
    assert message_found is not None
    assert message_found.body == flipped(BODY, len(BODY) - 5)


@pytest.mark.parametrize("xid", [b"", b"some xid"])
@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("version", VERSIONS)
def test_a_lost_beginning(version: str, at: int, xid: bytes) -> None:
    """Magic or version: with those that should be there, the tail holds."""
    broken = flipped(enqueue(version, DATA, xid=xid), at)
    found = only(broken)
    assert (found.format, found.kind, found.rid, found.xid) == (version, Kind.ENQUEUE, 5, xid)
    (problem,) = found.problems
    assert problem.endswith("; with a corrected beginning of the header its tail matches")
    assert broken[found.start : found.end] == DATA


@pytest.mark.parametrize("version", VERSIONS)
def test_a_lost_header(version: str) -> None:
    """The message's own header and the tail tell what it was."""
    broken = bytes(HEADER[version]) + enqueue(version, DATA)[HEADER[version] :]
    found = only(broken)
    assert (found.kind, found.is_proved) == (Kind.ENQUEUE, False)
    judged = judge(broken, found)
    assert judged.refusal is None
    assert judged.message is not None
    assert judged.message.body == BODY
    assert found.rid == (None if version == "version 2" else 5)


@pytest.mark.parametrize("forged", [0, 1, 300, 1 << 20, 1 << 62], ids=hex)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_forged_size(version: str, forged: int) -> None:
    raw = bytearray(enqueue(version, DATA))
    struct.pack_into("<Q", raw, SIZE_AT[version], forged)
    found = records(bytes(raw))[0]
    assert not found.is_proved
    assert bytes(raw[found.start : found.end]) == DATA
    assert found.problems == (f"its header says {forged:,} bytes of data, but its tail is after {len(DATA)}",)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_forged_xid_size(version: str) -> None:
    raw = bytearray(enqueue(version, DATA))
    if version == "version 2":
        struct.pack_into("<I", raw, 16, 0xFFFFFFF0)
    else:
        struct.pack_into("<Q", raw, 16 if version == "version 1" else 24, 1 << 61)
    found = only(bytes(raw))
    assert not found.is_proved
    assert bytes(raw[found.start : found.end]) == DATA


@pytest.mark.parametrize("version", VERSIONS)
def test_a_torn_record(version: str) -> None:
    raw = enqueue(version, DATA)[:512]
    found = only(raw)
    missing = HEADER[version] + len(DATA) - 512
    assert found.problems == (f"{missing} of its {len(DATA)} bytes of data are missing, and its tail",)
    judged = judge(raw, found)
    assert judged.refusal is None
    assert judged.message is not None
    assert judged.message.body == BODY[: len(BODY) - missing]
    assert (
        f"its properties specify {len(BODY)} bytes of content, but there are {len(BODY) - missing}" in judged.problems
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_cut_within_the_messages_own_header(version: str) -> None:
    raw = enqueue(version, message(b"x", "k" * 200))[:128]
    assert judge(raw, only(raw)).refusal is not None


def test_record_behind_a_broken_one_needs_the_salt_for_trust() -> None:
    """A publisher can put records of version 1 into a message, but none of version 2: he does not know the salt."""
    for version, salt, trusted in (("version 1", SALT, False), ("version 2", SALT, True), ("version 2", None, False)):
        forged = enqueue(version, message(b"forged"), 6)
        raw = b"\0" * 128 + forged
        found = only(raw, salt)
        assert (found.offset, found.rid, not judge(raw, found).problems) == (128, 6, trusted)


def test_a_publishers_record_does_not_pass_in_version_2() -> None:
    """Its own salt is in it; the file has another."""
    content = enqueue("version 2", message(b"forged"), 6)
    raw = flipped(enqueue("version 2", message(bytes(45) + content)), 0)
    for found in records(raw, SALT ^ 1):
        assert not found.is_proved


@pytest.mark.parametrize("raw", [b"", bytes(4096), b"\xff" * 512, b"RHM", b"RHMe", b"QLSe\2\0", b"RHMf" + bytes(500)])
def test_evidence_without_records(raw: bytes) -> None:
    assert records(raw) == []


@given(
    st.binary(max_size=600),
    st.sampled_from([None, SALT]),
    st.sampled_from([b"", b"RHMe\1\0", b"RHMe\2\0", b"QLSe\2\0"]),
)
def test_no_bytes_do_harm(tail: bytes, salt: int | None, head: bytes) -> None:
    raw = head + tail
    for found in records(raw, salt):
        assert 0 <= found.offset < len(raw)
        judge(raw, found)


@given(st.data())
def test_no_damage_does_harm(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(VERSIONS))
    raw = bytearray(enqueue(version, DATA, 5) + enqueue(version, DATA, 6) + dequeue(version, 5, 7))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    for found in records(cut):
        judged = judge(cut, found)
        assert judged.refusal is not None or judged.message is not None


def test_tails_everywhere_cost_no_time() -> None:
    """A record whose id stands in its content thousands of times: only a limited number of places is examined."""
    rid = random.Random(1).getrandbits(60)
    data = message(struct.pack("<Q", rid) * 100_000)
    raw = bytearray(enqueue("version 2", data, rid))
    struct.pack_into("<Q", raw, 24, 1 << 40)
    found = records(bytes(raw))
    assert not found[0].is_proved


@pytest.mark.parametrize("version", VERSIONS)
def test_looking_comes_to_an_end(version: str) -> None:
    """Every block claims all that follows, so that it would be looked at once for each block."""
    blocks, filling = 4000, b"\2"
    rid = 0x0101010101010101
    raw = bytearray()
    for block in range(blocks):
        left = (blocks - block) * 128 - HEADER[version] - TAIL[version]
        header = bytearray(enqueue(version, filling * 64, rid)[:128])
        struct.pack_into("<Q", header, SIZE_AT[version], left)
        raw += header[: HEADER[version]] + filling * (128 - HEADER[version])
    finder = RecordFinder(bytes(raw), SALT)
    found = list(finder.records())
    assert finder.gave_up
    assert 0 < len(found) < blocks // 10
    assert not any(each.is_proved for each in found)


def test_a_good_entry_is_never_given_up() -> None:
    raw = b"".join(enqueue("version 2", message(b"x" * (rid % 500)), rid) for rid in range(1, 3000))
    finder = RecordFinder(raw, SALT)
    assert [each.rid for each in finder.records()] == list(range(1, 3000))
    assert not finder.gave_up
