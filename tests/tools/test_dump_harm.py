"""`qstore-dump` on damaged stores: what can be read is shown, what cannot is reported, nothing is raised."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.support.dump import MODES, dump
from tests.support.fixtures import (
    CopyFactory,
    StoreFixture,
    journal_directory,
    journal_file,
    records_of,
)
from tests.support.profiles import examples

# ---- damage ----


def test_damage_is_reported_and_the_rest_is_shown(local_copies: CopyFactory) -> None:
    """The tail of one message in the middle is broken: it is lost and reported, and nothing else is."""
    with local_copies.copy() as copy:
        file = journal_file(copy.path, "c.q1")
        (record,) = (record for record in records_of(file) if record.header.rid == 6)  # sn 5
        content = bytearray(file.read_bytes())
        content[record.offset + record.header.tail_offset] ^= 0xFF
        copy.replace(file, bytes(content))
        shown = dump(copy.path, "--outstanding", "--json")
        text = dump(copy.path, "--outstanding")
        records = dump(file, "--json")
    assert shown.code == text.code == records.code == 1
    (damage,) = shown.lines("damage")
    assert (damage["file"], damage["offset"], damage["rid"]) == (str(file), record.offset, 6)
    assert damage["what"]
    assert damage["consequence"]
    expected = [number for number in local_copies.source.sequence_numbers()["c.q1"] if number != 5]
    assert [line["headers"]["sn"] for line in shown.messages("c.q1")] == expected
    assert damage["what"] in text.text
    assert [(line["offset"], line["rid"]) for line in records.lines("damage")] == [(record.offset, 6)]


def test_a_journal_file_that_is_gone_is_damage(local_copies: CopyFactory) -> None:
    with local_copies.copy() as copy:
        journal_file(copy.path, "c.q1").unlink()
        shown = dump(copy.path, "--outstanding", "--json")
    assert shown.code == 1
    assert shown.lines("damage")
    assert [line["headers"]["sn"] for line in shown.messages("c.q2")] == local_copies.source.sequence_numbers()["c.q2"]


# ---- without Berkeley DB's recovery program ----


def test_without_the_recovery_program(dtx: StoreFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After this kill the queues stand in Berkeley DB's log alone; the journals know their names all the same."""
    whole = dump(dtx.path, "--outstanding", "--json")
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = dump(dtx.path, "--outstanding", "--json")
    assert shown.code == 0
    (line,) = shown.errors.splitlines()
    assert "db5.3-util" in line
    assert sorted(line["name"] for line in shown.lines("queue")) == ["d.q1", "d.q2", "d.q3"]
    for queue in ("d.q1", "d.q2", "d.q3"):
        assert shown.messages(queue) == whole.messages(queue)
    assert shown.lines("transaction") == whole.lines("transaction")


# ---- names that are not UTF-8 ----

ESCAPED_NAMES: Final = [
    (b"c\xff1", r"c\xff1"),
    (b"\xe9t\xe9 caf\xc3\xa9", r"\xe9t\xe9 café"),
    (rb"c\x41", r"c\x5cx41"),
    (b"\\x5c\\\xfe\\y", r"\x5cx5c\\xfe\y"),
]


@pytest.mark.parametrize(("name", "shown_as"), ESCAPED_NAMES, ids=["byte", "text and bytes", "backslash", "both"])
@pytest.mark.parametrize("whole_store", [False, True], ids=["journal", "store"])
def test_names_that_are_not_utf_8(local_copies: CopyFactory, name: bytes, shown_as: str, whole_store: bool) -> None:
    with local_copies.copy() as copy:
        shutil.rmtree(copy.path / "rhm" / "dat")  # the catalogue knows the old name only
        old = journal_directory(copy.path, "c.q1")
        new = Path(os.fsdecode(os.path.join(os.fsencode(old.parent), name)))
        info = old / "JournalData.jinf"
        copy.replace(info, info.read_bytes().replace(b'"c.q1"', b'"' + name + b'"'))
        old.rename(new)
        path = copy.path if whole_store else new
        shown = dump(path, "--outstanding", "--json")
        chosen = dump(path, "--outstanding", "--json", "--queue", shown_as)
        tables = dump(path, "--outstanding")
        records = dump(path, "--json")
    assert shown_as in [line["name"] for line in shown.lines("queue")]
    numbers = [line["headers"]["sn"] for line in shown.messages(shown_as)]
    assert numbers == local_copies.source.sequence_numbers()["c.q1"]
    assert chosen.lines("message") == shown.messages(shown_as)
    assert shown_as in tables.text
    assert shown_as in {line["queue"] for line in records.lines("record")}
    assert shown.code == chosen.code == tables.code == records.code == 0


# ---- whatever the bytes are ----


@st.composite
def harm(draw: st.DrawFn) -> tuple[str, int, bytes]:
    """How to harm a file: cut it off, overwrite some of it, or flip one bit; where, in parts of its used length."""
    action = draw(st.sampled_from(["truncate", "overwrite", "flip"]))
    place = draw(st.integers(0, (1 << 20) - 1))
    return action, place, draw(st.binary(min_size=1, max_size=64))


def harmed(content: bytes, action: str, place: int, octets: bytes) -> bytes:
    used = len(content.rstrip(b"\0")) or 1
    at = place * used >> 20
    if action == "truncate":
        return content[:at]
    if action == "flip":
        octets = bytes([content[at] ^ 1 << octets[0] % 8]) if content else b""
    return content[:at] + octets + content[at + len(octets) :]


@examples(40, suppress=[HealthCheck.function_scoped_fixture])
@given(damages=st.lists(st.tuples(st.integers(0, 1000), harm()), min_size=1, max_size=4), mode=st.sampled_from(MODES))
def test_arbitrary_damage_gives_no_traceback(
    dtx_copies: CopyFactory, damages: list[tuple[int, tuple[str, int, bytes]]], mode: list[str]
) -> None:
    """Never a traceback (one would be raised here), always one of the three exit codes, and JSON that parses."""
    with dtx_copies.copy() as copy:
        files = [path for path in sorted(copy.path.rglob("*")) if path.is_file() and path.stat().st_blocks]
        for number, (action, place, octets) in damages:
            file = files[number % len(files)]
            copy.replace(file, harmed(file.read_bytes(), action, place, octets))
        shown = dump(copy.path, *mode)
    shown.assert_no_traceback()
    assert shown.code != 2 or shown.errors
    if "--json" in mode:
        assert all(line["kind"] for line in shown.lines())
        assert bool(shown.lines("damage")) == (shown.code == 1)


@pytest.mark.parametrize("name", [".jinf", "queues.db", "log.0000000001", "0000.jdat"])
@pytest.mark.parametrize("content", [b"", b"\0" * 8192, b"\xff" * 8192, b"RHMf" * 2048, b"<jrnl>\n" * 1000])
def test_files_with_nonsense_in_them(dtx_copies: CopyFactory, name: str, content: bytes) -> None:
    with dtx_copies.copy() as copy:
        for file in [path for path in copy.path.rglob("*") if path.name.endswith(name)]:
            copy.replace(file, content)
        for mode in ([], ["--outstanding", "--json"]):
            shown = dump(copy.path, *mode)
            shown.assert_no_traceback()
