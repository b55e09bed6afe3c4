"""The index of a quarantine: what is written is read again, and nothing that is read does harm."""

from __future__ import annotations

import os

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.quarantine_index import (
    IndexProblem,
    Injection,
    QuarantineEntry,
    decode_index,
    encode_entry,
    marked,
    raw_name,
)

NUMBERS = st.integers(0, (1 << 64) - 1)
# Names are bytes that were decoded with surrogate escapes; some hold what looks like an escape.
NAMES = st.one_of(
    st.binary(max_size=40).map(os.fsdecode),
    st.sampled_from(["\\x41", "\\", "\\\\x", "\\x5cx", "a\x00\nb", "\udcff\\xff"]),
)
INJECTIONS = st.none() | st.builds(Injection, NAMES, NAMES, NUMBERS, NUMBERS, st.none() | NUMBERS)
ENTRIES = st.builds(
    lambda number, **fields: QuarantineEntry(number, raw=raw_name(number), **fields),
    st.integers(1, 2_000_000),
    queue=NAMES,
    file=NAMES,
    offset=NUMBERS,
    size=NUMBERS,
    what=st.text(max_size=30),
    rid=st.none() | NUMBERS,
    sha256=st.just("ab" * 32),
    salt=st.none() | NUMBERS,
    injected=INJECTIONS,
)


def entry(number: int = 1, **changes: object) -> QuarantineEntry:
    made = QuarantineEntry(number, "q", "/f", 128, 3, raw_name(number), "broken", 5, "ab" * 32)
    return made._replace(**changes)


def lines_of(*entries: QuarantineEntry) -> bytes:
    return b"".join(map(encode_entry, entries))


@given(st.lists(ENTRIES, max_size=5, unique_by=lambda each: each.number), st.integers(1, 300))
def test_written_entries_are_read_back(entries: list[QuarantineEntry], step: int) -> None:
    entries.sort()
    content = lines_of(*entries)
    chunks = [content[at : at + step] for at in range(0, len(content), step)]
    assert list(decode_index(chunks)) == entries


def test_a_name_is_shown_as_the_tools_show_it() -> None:
    fields = orjson.loads(encode_entry(entry(queue="a\udcff\\x41")))
    assert fields["queue"] == "a\\xff\\x5cx41"


def test_half_a_utf_16_pair_and_endless_names_can_be_written() -> None:
    line = encode_entry(entry(queue="\ud800", file="\udcff" * 100_000, what="\udcff" * 100_000))
    (found,) = decode_index([line])
    assert isinstance(found, QuarantineEntry)
    assert found.file == "\udcff" * 4096


@given(st.data())
def test_a_damaged_line_costs_one_line(data: st.DataObject) -> None:
    content = bytearray(lines_of(entry(1), entry(2, injected=Injection("/s", "q", 1, 1, 7)), entry(3)))
    first, second = len(encode_entry(entry(1))), len(content) - len(encode_entry(entry(3)))
    at = data.draw(st.integers(first, second - 2))
    content[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != ord("\n")))
    found = list(decode_index([bytes(content)]))
    assert len(found) == 3
    assert (found[0], found[2]) in {
        (entry(1), entry(3)),
        (entry(1), IndexProblem(3, "entry 3 comes after entry 3")),
    } or (
        isinstance(found[1], QuarantineEntry) and found[1].number > 3  # its number was hit: now it comes after entry 3
    )


@given(st.binary(max_size=300), st.integers(1, 50))
def test_hostile_lines_do_no_harm(content: bytes, step: int) -> None:
    chunks = [content[at : at + step] for at in range(0, len(content), step)]
    for found in decode_index(chunks):
        assert isinstance(found, IndexProblem)


CASES = {
    b"{": "not JSON",
    b"[1]": "not a JSON object",
    b"[" * 100_000: "not JSON",
    b"\xff\xfe": "not JSON",
    b"{}": "number is missing",
}


@pytest.mark.parametrize(("line", "what"), CASES.items(), ids=range(len(CASES)))
def test_lines_that_are_none(line: bytes, what: str) -> None:
    first, second = decode_index([line + b"\n" + encode_entry(entry(1))])
    assert isinstance(first, IndexProblem)
    assert (first.line, first.what.startswith(what)) == (1, True)
    assert second == entry(1)


@pytest.mark.parametrize(
    "change",
    [
        {"number": 0, "raw": "000000.raw"},
        {"number": -1},
        {"number": True},
        {"number": 2},
        {"raw": "../../etc/passwd"},
        {"raw": "000002.raw"},
        {"raw": 1},
        {"queue": None},
        {"offset": -1},
        {"offset": 1.5},
        {"size": "3"},
        {"rid": -5},
        {"rid": "5"},
        {"sha256": None},
        {"salt": []},
        {"injected": {}},
        {"injected": []},
        {"injected": {"store": 1, "queue": "q", "at": 1, "messages": 1, "first_rid": 1}},
        {"injected": {"store": "s", "queue": "q", "at": -1, "messages": 1, "first_rid": 1}},
    ],
    ids=str,
)
def test_invalid_values_are_index_problems(change: dict[str, object]) -> None:
    line = orjson.dumps(orjson.loads(encode_entry(entry(1))) | change)
    (found,) = decode_index([line])
    assert isinstance(found, IndexProblem)


def test_numbers_only_go_up() -> None:
    found = list(decode_index([lines_of(entry(2), entry(2), entry(1), entry(3))]))
    assert found == [
        entry(2),
        IndexProblem(2, "entry 2 comes after entry 2"),
        IndexProblem(3, "entry 1 comes after entry 2"),
        entry(3),
    ]


def test_an_endless_line_takes_bounded_memory() -> None:
    piece = b" " * 100_000

    def chunks() -> list[bytes]:
        return [encode_entry(entry(1)), *[piece] * 20, encode_entry(entry(2)), encode_entry(entry(3))]

    assert list(decode_index(chunks())) == [entry(1), IndexProblem(2, "the line is too long"), entry(3)]
    assert b"".join(marked(chunks(), {2: Injection("/s", "q", 1, 1, 7)})) == b"".join(chunks())


@given(st.lists(ENTRIES, min_size=1, max_size=4, unique_by=lambda each: each.number), INJECTIONS, st.integers(1, 300))
def test_a_mark_changes_its_entry_and_nothing_else(
    entries: list[QuarantineEntry], injection: Injection | None, step: int
) -> None:
    entries.sort()
    content = b"garbage\n" + lines_of(*entries) + b"{torn"
    chunks = [content[at : at + step] for at in range(0, len(content), step)]
    new = b"".join(marked(chunks, {entries[0].number: injection}))
    assert new == b"garbage\n" + lines_of(entries[0]._replace(injected=injection), *entries[1:]) + b"{torn"


def test_a_mark_keeps_keys_that_are_not_known() -> None:
    line = orjson.dumps(orjson.loads(encode_entry(entry(1))) | {"note": "seen"}, option=orjson.OPT_APPEND_NEWLINE)
    (new,) = marked([line], {1: Injection("/s", "q", 1, 1, 7)})
    assert orjson.loads(new)["note"] == "seen"
