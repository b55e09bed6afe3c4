"""Hostile sources: nothing is written outside DEST, and nothing without bounds."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.broker_records.topology import Binding, Exchange, Queue, encode_queue
from qstore.formats.catalogue import QueueEntry
from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import decode_jinf, encode_jinf
from qstore.formats.rhm.records import Kind, RecordHeader
from tests.support.dump import Dump
from tests.support.journal_builder import JournalBuilder
from tests.support.linear_builder import LinearBuilder
from tests.support.old_store import SMALL, OldStore
from tests.support.planted_damage import BILLS, UNPAID, Original, linear_store, lost, version_1_store, version_2_store
from tests.support.profiles import today
from tests.support.recover_runs import (
    Recovery,
    expected_states,
    invoke,
    limit_space,
    outside,
    recover,
    states,
)
from tests.tools.planted_version_2 import in_catalogue

pytestmark = pytest.mark.usefixtures("nothing_is_synced")

MESSAGE: Final = encode_message(b"hello", destination="", delivery_properties={"routing_key": "q", "delivery_mode": 2})
NAMES: Final = {
    "up": "../../../../../../evil",
    "dots": "..",
    "dot": ".",
    "absolute": "/evil",
    "slashes": "a//b/",
    "NUL": "evil\0name",
    "line end": "evil\nname",
    "escape": "evil\x1b[2Jname",
    "no text": "evil\udcff",
    "longest": "q" * 255,
    "too long": "q" * 256,
    "4 KiB": "q" * 4096,
    "empty": "",
    "the list's": "TplStore",
    "quarantine": "../quarantine",
}
CHOICES: list[tuple[str, ...]] = [(), ("--orphans", "aside"), ("--orphans", "recover")]

each_name = pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
each_name_and_choice = pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(NAMES[name], options, id=f"{name}-{' '.join(options)}")
        for name, options in today([*product(NAMES, CHOICES)], len(NAMES))
    ],
)
"""As many cases a day as there are names."""


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is claimed, the machine that runs the tests is not filled up."""
    limit_space(monkeypatch, 1 << 28)


def recover_hostile(source: Path, root: Path, *options: str) -> Recovery:
    """Recover below `root`: exit code and text are in order, and nothing outside DEST has changed."""
    path = root / "out" / "new"
    path.parent.mkdir(exist_ok=True)
    before = outside(root, path)
    recovery = recover(source, path, *options)
    assert outside(root, path) == before
    for written in path.rglob("*"):
        assert not written.is_symlink()
    if recovery.report.code == 2:
        assert recovery.report.errors.startswith("qstore-recover: ")
        assert len(recovery.report.errors.splitlines()) == 1
    else:
        recovery.dump()
    assert_printable(recovery.report)
    return recovery


def assert_printable(report: Dump) -> None:
    """A terminal does not obey what a name says."""
    for text in (report.text, report.errors):
        assert "\x1b" not in text
        assert "\0" not in text


def told(recovery: Recovery) -> bool:
    """Whether the message of a store with one message is there, or the report says that it is not."""
    if recovery.report.code == 2:
        return True
    return len(recovery.dump().lines("message")) == 1 or recovery.report.code == 1


# ---- names ----


@each_name
def test_a_queue_of_version_2(name: str, tmp_path: Path) -> None:
    """Its journal's directory is a number: a name of qpidd's length is any text."""
    store = version_2_store(tmp_path / "store")
    try:
        record = encode_queue(Queue(name))
    except ValueError:
        record = b"\0" * 8 + bytes([255]) + name.encode("utf-8", "surrogateescape")
    in_catalogue(lambda catalogue, _: rename_queue(catalogue, record))(store.copy(tmp_path / "copy"))
    recovery = recover_hostile(tmp_path / "copy", tmp_path)
    if recovery.report.code == 0:
        assert len(recovery.dump().lines("message")) == len(expected_messages())


def rename_queue(catalogue: Any, record: bytes) -> None:
    catalogue.delete_queue(2)
    catalogue.create_queue(QueueEntry(2, 2, 1, record))


def expected_messages() -> list[str]:
    return [name for name, state in expected_states({}).items() if state != "in-doubt"]


@each_name_and_choice
def test_an_info_file_of_version_1(name: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Among journals without a store only the info file names the queue."""
    builder = JournalBuilder(1, SMALL, queue_name=name)
    builder.enqueue(MESSAGE)
    builder.flush()
    builder.write_to(tmp_path / "heap" / "journal")
    assert told(recover_hostile(tmp_path / "heap", tmp_path, *options))


@each_name_and_choice
def test_an_orphan_of_version_2(name: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """An info file with a sound checksum, in a directory that the catalogue does not know."""
    planted = version_2_store(tmp_path / "store").copy(tmp_path / "copy")
    builder = JournalBuilder(2, Geometry(4, 4096), queue_id=9, queue_name=name)
    builder.enqueue(MESSAGE, rid=90_000)
    builder.seal()
    builder.write_to(planted.path / "rhm/jrnl/9")
    recovery = recover_hostile(planted.path, tmp_path, *options)
    assert recovery.report.code == 2 or recovery.report.lines("orphan") or recovery.report.lines("damage")


@each_name
def test_a_linear_file(name: str, tmp_path: Path) -> None:
    """The header of a file names its queue, in at most 64 KiB."""
    builder = LinearBuilder("q", 8)
    builder.enqueue(1, MESSAGE)
    builder.flush()
    (file,) = builder.write_plain(tmp_path / "journal").glob("*.jrnl")
    content = bytearray(file.read_bytes())
    encoded = name.encode("utf-8", "surrogateescape")[:4000]
    content[72 : 72 + len(encoded)] = encoded
    file.write_bytes(content)
    recover_hostile(tmp_path / "journal", tmp_path)


@each_name
def test_the_topology_of_version_1(name: str, tmp_path: Path) -> None:
    old = OldStore()
    old.queue("orders").enqueue(MESSAGE)
    old.queues[3] = Queue("orders")
    try:
        old.queues[4] = Queue(name)
        old.exchanges[5] = Exchange(name, True, "fanout")
        old.bindings.append((5, Binding(3, "orders", name)))
        old.write(tmp_path / "store")
    except ValueError:
        pytest.skip("no field can hold it")
    recovery = recover_hostile(tmp_path / "store", tmp_path)
    if recovery.report.code != 2:
        assert len(recovery.dump().messages("orders")) == 1


@pytest.mark.parametrize("base", ["../../evil", "/etc/passwd", "", "a\0b", "b" * 4096])
def test_the_base_name_of_the_files(base: str, tmp_path: Path) -> None:
    planted = version_1_store(tmp_path / "store").copy(tmp_path / "copy")
    info = decode_jinf(bytes(planted.read("rhm/jrnl/0005/c.q2/JournalData.jinf")))
    planted.write("rhm/jrnl/0005/c.q2/JournalData.jinf", encode_jinf(info._replace(base_name=base)))
    recover_hostile(planted.path, tmp_path)


# ---- links ----


def victim(root: Path) -> Path:
    """A directory with a secret."""
    path = root / "victim"
    path.mkdir()
    (path / "secret").write_text("nobody is to have this")
    return path


def test_links_beside_the_destination_are_not_written_through(tmp_path: Path) -> None:
    """Whatever name the unfinished store has: a link of that name is not written through."""
    store = version_2_store(tmp_path / "store").path
    target = victim(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    for suffix in (".new", ".tmp", ".partial", ".building"):
        (out / f"new{suffix}").symlink_to(target)
    before = outside(target, target / "nothing")
    recovery = invoke(store, out / "new")
    assert outside(target, target / "nothing") == before
    assert recovery.report.code in (0, 2)


@pytest.mark.parametrize("what", ["directory", "file", "info", "list"])
def test_links_out_of_the_tree(what: str, tmp_path: Path) -> None:
    """What they lead to may be read, as qpidd does, and is never written or moved."""
    original = version_1_store(tmp_path / "original")
    planted = original.copy(tmp_path / "store")
    target = victim(tmp_path)
    name = {
        "directory": "rhm/jrnl/0005/c.q2",
        "file": "rhm/jrnl/0005/c.q2/JournalData.0001.jdat",
        "info": "rhm/jrnl/0005/c.q2/JournalData.jinf",
        "list": "rhm/tpl",
    }[what]
    planted.remove(name)
    (planted.path / name).symlink_to(target if what in ("directory", "list") else target / "secret")
    recovery = recover_hostile(planted.path, tmp_path)
    if recovery.report.code != 2:
        assert states(original, recovery.dump()).keys() >= {"third", "sixth", "ninth", "tenth"}
    assert_no_secret(recovery)


def test_an_orphan_with_links_is_not_copied_through_them(tmp_path: Path) -> None:
    """`--orphans aside` keeps what is in the journal's directory, not what a link in it leads to."""
    planted = version_2_store(tmp_path / "original").copy(tmp_path / "store")
    target = victim(tmp_path)
    shutil.copytree(planted.path / "rhm/jrnl/1", planted.path / "rhm/jrnl/9")
    (planted.path / "rhm/jrnl/9/JournalData.0002.jdat").unlink()
    (planted.path / "rhm/jrnl/9/JournalData.0002.jdat").symlink_to(target / "secret")
    (planted.path / "rhm/jrnl/9/more").symlink_to(target)
    (planted.path / "rhm/jrnl/9/loop").symlink_to(planted.path)
    recovery = recover_hostile(planted.path, tmp_path, "--orphans", "aside")
    assert recovery.report.code == 1
    assert_no_secret(recovery)


def assert_no_secret(recovery: Recovery) -> None:
    for file in recovery.path.rglob("*"):
        if file.is_file():
            assert b"nobody is to have this" not in file.read_bytes(), file


def test_a_linear_link_out_of_the_tree(tmp_path: Path) -> None:
    original = linear_store(tmp_path / "original")
    planted = original.copy(tmp_path / "store")
    target = victim(tmp_path)
    link = next((planted.path / "qls/jrnl2/c.q2").iterdir())
    link.unlink()
    link.symlink_to(target / "secret")
    recovery = recover_hostile(planted.path, tmp_path)
    assert_no_secret(recovery)
    assert states(original, recovery.dump()).keys() >= {"third", "sixth", "ninth", "tenth"}


def test_links_that_go_round(tmp_path: Path) -> None:
    original = version_1_store(tmp_path / "original")
    planted = original.copy(tmp_path / "store")
    (planted.path / "rhm/jrnl/0004/loop").symlink_to(planted.path)
    (planted.path / "rhm/jrnl/loop").symlink_to("loop")
    recovery = recover_hostile(planted.path, tmp_path)
    assert states(original, recovery.dump()) == expected_states({})


@pytest.mark.parametrize("name", ["rhm/jrnl/0005/c.q2/JournalData.0001.jdat", "rhm/jrnl/0005/c.q2/JournalData.jinf"])
def test_named_pipe_in_a_journal_is_reported_as_damage(name: str, tmp_path: Path) -> None:
    """A pipe that is never written to is not waited for."""
    original = version_1_store(tmp_path / "original")
    planted = original.copy(tmp_path / "store")
    planted.remove(name)
    os.mkfifo(planted.path / name)
    before = sorted(os.listdir((planted.path / name).parent))
    (tmp_path / "out").mkdir()
    recovery = invoke(planted.path, tmp_path / "out/new")
    assert any(line["file"].endswith(name) for line in recovery.report.lines("damage"))
    assert sorted(os.listdir((planted.path / name).parent)) == before


# ---- claims ----


def claim_1(planted: Any, files: int, sectors: int) -> None:
    name = "rhm/jrnl/0005/c.q2/JournalData.jinf"
    content = bytes(planted.read(name))
    content = content.replace(b'number_jrnl_files value="4"', b'number_jrnl_files value="%d"' % files)
    planted.write(name, content.replace(b'sblks value="8"', b'sblks value="%d"' % sectors))


def claim_2(planted: Any, files: int, sectors: int) -> None:
    """As if with a sound checksum."""
    name = "rhm/jrnl/2/JournalData.jinf"
    fields = json.loads(planted.read(name))
    fields.pop("crc32c")
    fields.update(number_jrnl_files=files, jrnl_file_size_sblks=sectors)
    line = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    fields["crc32c"] = extend_crc32c(0, line)
    planted.write(name, json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n")


CLAIMS: Final = {
    "one enormous file": (1, 1 << 40),
    "the largest number": (64, 1 << 47),
    "beyond any number": (64, 1 << 60),
    "a billion files": (1 << 30, 8),
    "none": (0, 8),
    "as large as qpidd makes them": (64, 32768 * 128),
}


@pytest.mark.parametrize(("files", "sectors"), CLAIMS.values(), ids=CLAIMS.keys())
@pytest.mark.parametrize(
    ("make", "claim"), [(version_1_store, claim_1), (version_2_store, claim_2)], ids=["version 1", "version 2"]
)
def test_an_info_file_that_claims_terabytes(
    make: Callable[[Path], Original], claim: Callable[[Any, int, int], None], files: int, sectors: int, tmp_path: Path
) -> None:
    """The files are what they are: nothing that is in them is lost."""
    original = make(tmp_path / "original")
    planted = original.copy(tmp_path / "store")
    claim(planted, files, sectors)
    recovery = recover_hostile(planted.path, tmp_path)
    assert len(recovery.report.lines("damage")) > 0
    assert states(original, recovery.dump()) == expected_states({})


@pytest.mark.parametrize("claimed", [False, True], ids=["the info file is right", "so says the info file"])
@pytest.mark.parametrize(
    ("make", "claim"), [(version_1_store, claim_1), (version_2_store, claim_2)], ids=["version 1", "version 2"]
)
def test_files_with_holes_of_terabytes(
    make: Callable[[Path], Original], claim: Callable[[Any, int, int], None], claimed: bool, tmp_path: Path
) -> None:
    """Holes are not read to their end: as much as the info file states is read, or else the other journals."""
    original = make(tmp_path / "original")
    planted = original.copy(tmp_path / "store")
    for file in original.files["bills"]:
        planted.write(file, planted.read(file))
        os.truncate(planted.path / file, (1 << 41) + 512)
    if claimed:
        claim(planted, 4, 1 << 32)
    recovery = invoke(planted.path, tmp_path / "new")  # a snapshot would read all of the holes
    assert recovery.report.code in (0, 1)
    assert len(recovery.report.lines("damage")) > 0
    assert states(original, recovery.dump()) == expected_states(bills_lost() if claimed else {})


def bills_lost() -> dict[str, str | None]:
    return lost(*(f"bill {number}" for number in range(BILLS - UNPAID, BILLS)))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("size", [1 << 40, (1 << 64) - 1, 1 << 63])
def test_a_message_that_claims_terabytes(version: int, size: int, tmp_path: Path) -> None:
    builder = JournalBuilder(version, SMALL, queue_name="q")
    builder.enqueue(MESSAGE)
    claim = builder.enqueue(MESSAGE)
    builder.flush()
    builder.enqueue(MESSAGE)
    builder.flush()
    at = claim.offset + 24
    builder.files[claim.file][at : at + 8] = size.to_bytes(8, "little")
    builder.write_to(tmp_path / "journal")
    recovery = recover_hostile(tmp_path / "journal", tmp_path)
    assert recovery.report.code == 1
    assert len(recovery.dump().lines("message")) == 2


def test_an_xid_of_terabytes(tmp_path: Path) -> None:
    builder = JournalBuilder(1, SMALL, queue_name="q")
    builder.enqueue(MESSAGE)
    claim = builder.append(RecordHeader(Kind.COMMIT, 1, 0, 7, 24), bytes(24))
    builder.flush()
    builder.enqueue(MESSAGE, rid=9)
    builder.flush()
    at = claim.offset + 16
    builder.files[claim.file][at : at + 8] = (1 << 42).to_bytes(8, "little")
    builder.write_to(tmp_path / "journal")
    recovery = recover_hostile(tmp_path / "journal", tmp_path)
    assert len(recovery.dump().lines("message")) == 2


def test_a_malformed_queue_record(tmp_path: Path) -> None:
    """An info file, sound by its checksum, with any bytes for a record; the store's id is another's."""
    planted = version_2_store(tmp_path / "original").copy(tmp_path / "store")
    planted.remove("rhm/catalogue")
    name = "rhm/jrnl/1/JournalData.jinf"
    for record in (b"", b"\xff" * 100, UUID(int=1).bytes, bytes(1 << 16)):
        info = decode_jinf(bytes(planted.read(name)))
        planted.write(name, encode_jinf(info._replace(queue_record=record)))
        assert base64.b64decode(json.loads(planted.read(name))["queue_record"]) == record
        recovery = recover_hostile(planted.path, tmp_path)
        assert len(recovery.dump().messages("orders")) > 0
        shutil.rmtree(recovery.path)
