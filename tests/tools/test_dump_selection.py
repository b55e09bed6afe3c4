"""Selections of `qstore-dump`: of a store, a journal or a file; chosen by its filters; bodies in each form."""

from __future__ import annotations

import base64
import hashlib
import shutil
from pathlib import Path
from typing import Final

import pytest

from qstore.formats.rhm.records import Kind
from tests.support.dump import dump
from tests.support.fixtures import (
    CopyFactory,
    StoreFixture,
    journal_directory,
    journal_file,
    records_of,
    snapshot,
)

# ---- what the parts of a store give by themselves ----


XID = "060407000000000b0966782d6769642d70310762722d00017031"


def test_the_rhm_directory_does_as_well(local: StoreFixture) -> None:
    assert (
        dump(local.path / "rhm", "--outstanding", "--json").lines()
        == dump(local.path, "--outstanding", "--json").lines()
    )


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_relative_path(local: StoreFixture, monkeypatch: pytest.MonkeyPatch, slash: str) -> None:
    monkeypatch.chdir(local.path.parent)
    expected = dump(local.path, "--outstanding", "--json").lines()
    assert dump(local.path.name + slash, "--outstanding", "--json").lines() == expected


def test_a_journal_directory(local: StoreFixture) -> None:
    shown = dump(journal_directory(local.path, "c.q2"), "--outstanding", "--json")
    assert shown.code == 0
    (queue,) = shown.lines("queue")
    numbers = [line["headers"]["sn"] for line in shown.messages("c.q2")]
    assert (queue["name"], queue["messages"]) == ("c.q2", len(numbers))
    assert numbers == local.sequence_numbers()["c.q2"]


def test_a_journal_directory_away_from_its_store(local: StoreFixture, tmp_path: Path) -> None:
    shutil.copytree(journal_directory(local.path, "c.q1"), tmp_path / "taken away")
    shown = dump(tmp_path / "taken away", "--outstanding", "--json")
    assert shown.code == 0
    assert [line["headers"]["sn"] for line in shown.messages("c.q1")] == local.sequence_numbers()["c.q1"]


def test_a_journal_directory_in_its_store_knows_the_prepared_list(dtx: StoreFixture) -> None:
    whole = dump(dtx.path, "--outstanding", "--json")
    alone = dump(journal_directory(dtx.path, "d.q1"), "--outstanding", "--json")
    assert alone.messages("d.q1") == whole.messages("d.q1")


@pytest.mark.parametrize("queue", ["c.q1", "c.q2"])
def test_records_of_one_file(local: StoreFixture, queue: str) -> None:
    """All records in order: type, rid, xid, file, offset, size."""
    file = journal_file(local.path, queue)
    shown = dump(file, "--json")
    assert shown.code == 0
    lines = [line for line in shown.lines("record") if line["type"] != "filler"]
    expected = list(records_of(file))
    assert [(line["type"], line["rid"], line["offset"], line["size"]) for line in lines] == [
        (record.header.kind.label, record.header.rid, record.offset, record.header.size) for record in expected
    ]
    assert [line["xid"] for line in lines] == [record.xid.hex() or None for record in expected]
    assert {line["file"] for line in lines} == {str(file)}
    assert {"flags", "flush"} <= set(lines[0])


def test_records_of_one_journal(local: StoreFixture) -> None:
    """The directory that was named, and nothing beside it."""
    directory = journal_directory(local.path, "c.q1")
    lines = dump(directory, "--json").lines("record")
    assert {Path(line["file"]).parent for line in lines} == {directory}
    assert [line["rid"] for line in lines if line["type"] != "filler"] == [
        record.header.rid for record in records_of(journal_file(local.path, "c.q1"))
    ]


def test_records_of_the_prepared_list(dtx: StoreFixture) -> None:
    for path in (dtx.path / "rhm" / "tpl", dtx.path / "rhm" / "tpl" / "tpl.0000.jdat"):
        shown = dump(path, "--json")
        assert shown.code == 0
        lines = [line for line in shown.lines("record") if line["type"] != "filler"]
        expected = list(records_of(dtx.path / "rhm" / "tpl" / "tpl.0000.jdat"))
        assert [(line["type"], line["rid"]) for line in lines] == [
            (record.header.kind.label, record.header.rid) for record in expected
        ]


def test_records_of_the_whole_store(dtx: StoreFixture) -> None:
    shown = dump(dtx.path, "--json")
    lines = [(Path(line["file"]), line["offset"]) for line in shown.lines("record") if line["type"] != "filler"]
    files = [journal_file(dtx.path, queue) for queue in ("d.q1", "d.q2", "d.q3")]
    files.append(dtx.path / "rhm" / "tpl" / "tpl.0000.jdat")
    expected = {(file, record.offset) for file in files for record in records_of(file)}
    assert len(lines) == len(expected)
    assert set(lines) == expected


def test_messages_are_decoded_among_the_records(local: StoreFixture) -> None:
    shown = dump(journal_file(local.path, "c.q1"))
    assert shown.code == 0
    assert "c.q1/3|c.q1/3|" in shown.text
    assert "enqueue" in shown.text
    assert "commit" in shown.text


def test_tables_name_the_same_objects_as_json(dtx: StoreFixture) -> None:
    text = dump(dtx.path, "--outstanding").text
    for word in ("d.q1", "d.q2", "d.q3", "amq.direct", "in-doubt-enqueue", "in-doubt-dequeue", "66782d6769642d7031"):
        assert word in text
    transactions = dump(dtx.path, "--transactions").text
    assert transactions.count("66782d6769642d70") >= 3
    assert "d.q1/5" not in transactions
    topology = dump(dtx.path, "--topology").text
    assert "amq.match" in topology
    assert "66782d6769642d70" not in topology


def test_transactions_and_topology_alone(dtx: StoreFixture) -> None:
    everything = dump(dtx.path, "--outstanding", "--json")
    assert dump(dtx.path, "--transactions", "--json").lines() == everything.lines("transaction")
    topology = dump(dtx.path, "--topology", "--json").lines()
    assert [line for line in topology if line["kind"] in ("exchange", "queue", "binding")] == [
        line for line in everything.lines() if line["kind"] in ("exchange", "queue", "binding")
    ]


# ---- filters ----


def test_filter_by_queue(dtx: StoreFixture) -> None:
    everything = dump(dtx.path, "--outstanding", "--json").lines("message")
    one = dump(dtx.path, "--outstanding", "--json", "--queue", "d.q2")
    assert one.lines("message") == [line for line in everything if line["queue"] == "d.q2"]
    assert [line["name"] for line in one.lines("queue")] == ["d.q2"]
    two = dump(dtx.path, "--outstanding", "--json", "--queue", "d.q2", "--queue", "d.q3").lines("message")
    assert two == [line for line in everything if line["queue"] in ("d.q2", "d.q3")]
    assert dump(dtx.path, "--outstanding", "--json", "--queue", "no such queue").lines("message") == []


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [("5..9", 5, 9), ("0x5..0x1F", 5, 31), ("..9", 0, 9), ("45..", 45, 1 << 64), ("7", 7, 7)],
)
def test_filter_by_rid(dtx: StoreFixture, text: str, first: int, last: int) -> None:
    for mode, kind in ((["--outstanding"], "message"), ([], "record")):
        everything = [line for line in dump(dtx.path, *mode, "--json").lines(kind) if line["rid"] is not None]
        expected = [line for line in everything if first <= line["rid"] <= last]
        shown = dump(dtx.path, *mode, "--json", "--rid", text).lines(kind)
        assert [line for line in shown if line["rid"] is not None] == expected
        assert 0 < len(expected) < len(everything)


def test_filter_by_xid(dtx: StoreFixture) -> None:
    everything = dump(dtx.path, "--outstanding", "--json")
    xid = everything.lines("transaction")[0]["xid"]
    shown = dump(dtx.path, "--outstanding", "--json", "--xid", xid)
    assert [line["xid"] for line in shown.lines("transaction")] == [xid]
    assert shown.lines("message") == [line for line in everything.lines("message") if line["xid"] == xid]
    assert len(shown.lines("message")) == 7
    records = dump(dtx.path, "--json", "--xid", xid).lines("record")
    assert len(records) == 8  # four enqueues, three dequeues, and the prepare
    assert {line["xid"] for line in records} == {xid}


@pytest.mark.parametrize("kind", [Kind.ENQUEUE, Kind.DEQUEUE, Kind.COMMIT, Kind.ABORT])
def test_filter_by_type(dtx: StoreFixture, kind: Kind) -> None:
    everything = dump(dtx.path, "--json").lines("record")
    shown = dump(dtx.path, "--json", "--type", kind.label).lines("record")
    assert shown == [line for line in everything if line["type"] == kind.label]
    assert shown


def test_filters_together(dtx: StoreFixture) -> None:
    shown = dump(dtx.path, "--json", "--queue", "d.q2", "--type", "enqueue", "--rid", "49..51").lines("record")
    assert [line["rid"] for line in shown] == [49, 50, 51]


# ---- bodies ----


def body_of(factory: CopyFactory, changed: bytes, *options: str | Path) -> tuple[int, dict[str, object]]:
    """Dump a store whose message 3 of c.q1 has a body that begins with `changed`; that message's line."""
    with factory.copy() as copy:
        file = journal_file(copy.path, "c.q1")
        content = file.read_bytes()
        place = content.index(b"c.q1/3|c.q1/3|")
        copy.replace(file, content[:place] + changed + content[place + len(changed) :])
        shown = dump(copy.path, "--outstanding", "--json", *options)
    (line,) = [line for line in shown.messages("c.q1") if line["headers"]["sn"] == 3]
    return shown.code, line


BODY: Final = (b"c.q1/3|" * 15)[:103]


def test_body_as_text(local_copies: CopyFactory) -> None:
    changed = "zwölf €".encode()
    code, line = body_of(local_copies, changed, "--body", "text")
    body = changed + BODY[len(changed) :]
    assert code == 0
    assert line["body"] == body.decode()
    assert line["body_sha256"] == hashlib.sha256(body).hexdigest()
    assert "body_base64" not in line


def test_body_that_is_not_text(local_copies: CopyFactory) -> None:
    changed = b"\xff\x00\xfe"
    code, line = body_of(local_copies, changed)
    body = changed + BODY[len(changed) :]
    assert code == 0
    assert base64.b64decode(str(line["body_base64"]), validate=True) == body
    assert (line["body_length"], line["body_sha256"]) == (103, hashlib.sha256(body).hexdigest())
    assert "body" not in line


def test_body_in_hex(local_copies: CopyFactory) -> None:
    _, line = body_of(local_copies, b"\xff", "--body", "hex")
    assert bytes.fromhex(str(line["body_hex"])) == b"\xff" + BODY[1:]


def test_no_body(local_copies: CopyFactory) -> None:
    _, line = body_of(local_copies, b"", "--body", "none")
    assert not {"body", "body_base64", "body_hex", "body_file"} & set(line)
    assert (line["body_length"], line["body_sha256"]) == (103, hashlib.sha256(BODY).hexdigest())


def test_bodies_as_files(dtx: StoreFixture, tmp_path: Path) -> None:
    shown = dump(dtx.path, "--outstanding", "--json", "--body", "files", "--body-dir", tmp_path / "bodies")
    assert shown.code == 0
    expected = {}
    for line in shown.lines("message"):
        assert "body" not in line
        expected[Path(line["body_file"])] = (line["body_length"], line["body_sha256"])
    found = {
        path: (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in (tmp_path / "bodies").rglob("*")
        if path.is_file()
    }
    assert found == expected
    assert len(found) == len(shown.lines("message"))
    again = dump(dtx.path, "--outstanding", "--json", "--body", "files", "--body-dir", tmp_path / "bodies")
    assert again.lines() == shown.lines()


def test_bodies_never_go_into_the_store(local_copies: CopyFactory) -> None:
    with local_copies.copy() as copy:
        before = snapshot(copy.path)
        shown = dump(copy.path, "--outstanding", "--body", "files", "--body-dir", copy.path / "bodies")
        assert shown.code == 2
        assert snapshot(copy.path) == before


@pytest.mark.parametrize("view", [(), ("--outstanding",), ("--transactions",), ("--topology",)])
def test_a_queue_that_is_not_there(dtx: StoreFixture, view: tuple[str, ...]) -> None:
    near = dump(dtx.path, *view, "--json", "--queue", "d.q1", "--queue", "d.q9")
    assert (near.code, near.out) == (2, b"")
    (line,) = near.err.decode().splitlines()
    assert f'{dtx.path}: there is no queue "d.q9"; did you mean "d.q' in line
    far = dump(dtx.path, *view, "--queue", "NOPE")
    assert (far.code, far.out) == (2, b"")
    for name in ("d.q1", "d.q2", "d.q3"):
        assert f'"{name}"' in far.err.decode()


def test_a_transaction_that_is_not_there(dtx: StoreFixture) -> None:
    for view in ((), ("--outstanding",), ("--transactions",)):
        shown = dump(dtx.path, *view, "--json", "--xid", "00")
        assert shown.code == 2
        assert "there is no transaction 00 in this view" in shown.err.decode()
        assert (XID in shown.err.decode()) == bool(view)
        assert dump(dtx.path, *view, "--json", "--xid", XID).code == 0
        both = dump(dtx.path, *view, "--json", "--xid", XID, "--xid", "00")
        assert (both.code, b'"xid":"' + XID.encode() in both.out) == (2, True)


def test_a_body_that_cannot_be_written_is_not_damage(dtx: StoreFixture, tmp_path: Path) -> None:
    (tmp_path / "bodies").write_text("a file where a directory should be")
    for arguments in (("--outstanding",), ()):
        shown = dump(dtx.path, *arguments, "--json", "--body", "files", "--body-dir", tmp_path / "bodies")
        assert shown.code == 2
        assert str(tmp_path / "bodies") in shown.err.decode()


def test_bodies_never_go_into_the_store_of_which_a_part_is_named(local_copies: CopyFactory) -> None:
    with local_copies.copy() as copy:
        journal = next(path.parent for path in copy.path.rglob("JournalData.jinf"))
        for named in (journal, next(journal.glob("*.jdat")), copy.path / "rhm/jrnl"):
            for target in (copy.path / "rhm/x", journal / "y"):
                shown = dump(named, "--outstanding", "--body", "files", "--body-dir", target)
                assert shown.code == 2
                assert not target.exists()
