"""`qstore-dump` as a command: what it takes, what it shows, how it ends, and that it never writes to what it reads."""

from __future__ import annotations

import base64
import hashlib
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from formats.rhm.records import Kind
from tests.support.dump import COMMAND, ROOT, dump, run_dump
from tests.support.fixtures import CopyFactory, CopyOpener, StoreFixture, StoreOpener, records_of, unpack

LOCAL: Final = "legacy-c-localtx"
DTX: Final = "legacy-d-dtx"
NOBODY: Final = 65534

#: Every form of output.
MODES: Final = [
    [*mode, *json] for mode in ([], ["--outstanding"], ["--transactions"], ["--wiring"]) for json in ([], ["--json"])
]
mode_id = "+".join


@pytest.fixture(scope="module")
def local(open_fixture: StoreOpener) -> StoreFixture:
    return open_fixture(LOCAL)


@pytest.fixture(scope="module")
def dtx(open_fixture: StoreOpener) -> StoreFixture:
    return open_fixture(DTX)


@pytest.fixture(scope="module")
def local_copies(copies: CopyOpener) -> CopyFactory:
    return copies(LOCAL)


def journal_directory(store: Path, queue: str) -> Path:
    (directory,) = (store / "rhm" / "jrnl").glob(f"*/{queue}")
    return directory


def journal_file(store: Path, queue: str) -> Path:
    """The first file of a queue's journal: in these two stores it holds all records."""
    return journal_directory(store, queue) / "JournalData.0000.jdat"


# ---- help and the command line ----


def test_help_has_examples() -> None:
    shown = dump("--help")
    assert shown.code == 0
    assert shown.text.count("\n  qstore-dump ") >= 4
    for option in ("--outstanding", "--transactions", "--wiring", "--json", "--queue", "--rid", "--xid", "--type"):
        assert option in shown.text
    assert "--body" in shown.text


def test_help_as_a_process_of_its_own() -> None:
    shown = run_dump("--help")
    assert (shown.code, shown.err) == (0, b"")
    assert "Examples" in shown.text


@pytest.mark.parametrize(
    "options",
    [
        ["--rid", "nine"],
        ["--rid", "9..2"],
        ["--rid", ".."],
        ["--rid", "1..2..3"],
        ["--xid", "xyz"],
        ["--type", "message"],
        ["--body", "pictures"],
        ["--no-such-option"],
        ["a second path"],
    ],
    ids=mode_id,
)
def test_a_wrong_command_line_is_refused(local: StoreFixture, options: list[str]) -> None:
    shown = dump(local.path, *options)
    assert shown.code == 2
    assert shown.out == b""
    assert shown.errors.strip()
    shown.assert_no_traceback()


# ---- input that cannot be used ----


def make_unusable(kind: str, directory: Path) -> Path:
    path = directory / "input"
    if kind == "nothing":
        return path
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "text file":
        path.write_text("This is no journal.\n" * 100)
    elif kind == "empty file":
        path.touch()
    elif kind == "file of zeros":
        path.write_bytes(bytes(131_584))
    else:
        path.mkdir()
        if kind == "directory of text files":
            (path / "notes.txt").write_text("no store")
        elif kind == "linearstore":
            for name in ("jrnl2/q1", "p001/efp/512k", "dat2", "tpl2"):
                (path / "qls" / name).mkdir(parents=True)
    return path


@pytest.mark.parametrize("mode", [[], ["--outstanding", "--json"]], ids=["records", "outstanding"])
@pytest.mark.parametrize(
    "kind",
    ["nothing", "empty directory", "directory of text files", "linearstore", "text file", "empty file", "fifo"],
)
def test_unusable_input(tmp_path: Path, kind: str, mode: list[str]) -> None:
    path = make_unusable(kind, tmp_path)
    shown = run_dump(path, *mode) if kind == "fifo" else dump(path, *mode)  # a process of its own has a time limit
    assert shown.code == 2
    assert shown.out == b""
    (line,) = shown.errors.splitlines()
    assert str(path) in line
    shown.assert_no_traceback()


def test_a_linearstore_is_called_by_its_name(tmp_path: Path) -> None:
    shown = dump(make_unusable("linearstore", tmp_path))
    assert "linearstore" in shown.errors


def test_a_file_that_was_never_written_to_is_no_damage(tmp_path: Path) -> None:
    shown = dump(make_unusable("file of zeros", tmp_path), "--json")
    assert shown.code in (0, 2)
    assert shown.lines() == []
    shown.assert_no_traceback()


# ---- what the parts of a store give by themselves ----


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


def test_the_tables_name_what_the_json_names(dtx: StoreFixture) -> None:
    text = dump(dtx.path, "--outstanding").text
    for word in ("d.q1", "d.q2", "d.q3", "amq.direct", "in-doubt-enqueue", "in-doubt-dequeue", "66782d6769642d7031"):
        assert word in text
    transactions = dump(dtx.path, "--transactions").text
    assert transactions.count("66782d6769642d70") >= 3
    assert "d.q1/5" not in transactions
    wiring = dump(dtx.path, "--wiring").text
    assert "amq.match" in wiring
    assert "66782d6769642d70" not in wiring


def test_transactions_and_wiring_alone(dtx: StoreFixture) -> None:
    everything = dump(dtx.path, "--outstanding", "--json")
    assert dump(dtx.path, "--transactions", "--json").lines() == everything.lines("transaction")
    wiring = dump(dtx.path, "--wiring", "--json").lines()
    assert [line for line in wiring if line["kind"] in ("exchange", "queue", "binding")] == [
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


def test_body_that_is_no_text(local_copies: CopyFactory) -> None:
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


# ---- plain when piped, tables on a terminal ----


@pytest.mark.parametrize("mode", MODES, ids=mode_id)
def test_no_escape_codes_when_piped(dtx: StoreFixture, mode: list[str]) -> None:
    shown = dump(dtx.path, *mode)
    assert shown.code == 0
    assert shown.out
    assert b"\x1b" not in shown.out + shown.err


@pytest.mark.parametrize("mode", MODES, ids=mode_id)
def test_what_a_publisher_wrote_is_not_sent_to_the_terminal(local_copies: CopyFactory, mode: list[str]) -> None:
    hostile = "\x1b]0;t\x07\r\x9b31m".encode()
    with local_copies.copy() as copy:
        file = journal_file(copy.path, "c.q1")
        content = file.read_bytes()
        place = content.index(b"c.q1/3|c.q1/3|")
        copy.replace(file, content[:place] + hostile + content[place + len(hostile) :])
        shown = dump(copy.path, *mode)
    assert shown.code == 0
    assert not {0x1B, 0x07, 0x0D} & set(shown.out + shown.err)
    assert "--json" in mode or "\x9b" not in shown.text


def test_tables_on_a_terminal(dtx: StoreFixture) -> None:
    primary, secondary = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        [*COMMAND, dtx.path, "--transactions"], cwd=ROOT, env=environment, stdout=secondary, stderr=secondary
    ) as process:
        os.close(secondary)
        shown = bytearray()
        try:
            while chunk := os.read(primary, 65536):
                shown += chunk
        except OSError:
            pass  # how Linux tells that the other side was closed
        finally:
            os.close(primary)
    assert process.returncode == 0
    assert b"\x1b[" in shown
    assert shown.count(b"in-doubt") == 3


def test_a_reader_that_goes_away_is_no_error(open_fixture: StoreOpener) -> None:
    store = open_fixture("legacy-c-midcommit3")
    with subprocess.Popen(
        [*COMMAND, store.path, "--outstanding", "--json"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'{"kind":')
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode != 0  # most of the output was still to come


# ---- damage ----


def test_damage_is_told_and_the_rest_is_shown(local_copies: CopyFactory) -> None:
    """The tail of one message in the middle is broken: it is lost, and told, and nothing else is."""
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


# ---- it never writes to what it reads ----

Snapshot = dict[str, tuple[int, int, int, str]]


def snapshot(root: Path) -> Snapshot:
    """Everything below `root`: mode, size, time of the last change, and digest of the content."""
    found: Snapshot = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.stat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(root))] = (status.st_mode, status.st_size, status.st_mtime_ns, digest)
    return found


@pytest.mark.parametrize("name", [DTX, "legacy-a-clean"])
def test_it_never_writes(open_fixture: StoreOpener, name: str) -> None:
    store = open_fixture(name)
    before = snapshot(store.path)
    for mode in MODES:
        assert dump(store.path, *mode).code == 0
    assert dump(next((store.path / "rhm" / "jrnl").glob("*/*.q1")) if name == DTX else store.path / "rhm").code == 0
    assert snapshot(store.path) == before


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory that other users may enter; pytest's own are for one user only."""
    directory = Path(tempfile.mkdtemp(prefix="qstore-test-"))
    directory.chmod(0o755)
    yield directory
    subprocess.run(["chmod", "-R", "u+w", directory], check=True)
    shutil.rmtree(directory)


def test_a_read_only_tree_as_an_ordinary_user(public_directory: Path) -> None:
    """Root may write anywhere, whatever the modes say: here the command runs as a user who may not."""
    store = unpack(DTX, public_directory)
    as_user: list[str] = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv (util-linux) is not installed")
        as_user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        probe = [*as_user, sys.executable, "-c", "import tools.qstore_dump"]
        if subprocess.run(probe, cwd=ROOT, capture_output=True, check=False).returncode:
            pytest.skip("another user may not run the interpreter or read the source")
    before = snapshot(store.path)
    written = subprocess.run([*as_user, "touch", store.path / "rhm" / "new"], capture_output=True, check=False)
    assert written.returncode != 0
    shown = run_dump(store.path, "--outstanding", "--json", before=as_user)
    assert (shown.code, shown.err) == (0, b"")
    assert shown.lines() == dump(store.path, "--outstanding", "--json").lines()
    assert snapshot(store.path) == before


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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damages=st.lists(st.tuples(st.integers(0, 1000), harm()), min_size=1, max_size=4), mode=st.sampled_from(MODES))
def test_whatever_the_bytes_are(
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


@pytest.fixture(scope="module")
def dtx_copies(copies: CopyOpener) -> CopyFactory:
    return copies(DTX)


@pytest.mark.parametrize("name", [".jinf", "queues.db", "log.0000000001", "0000.jdat"])
@pytest.mark.parametrize("content", [b"", b"\0" * 8192, b"\xff" * 8192, b"RHMf" * 2048, b"<jrnl>\n" * 1000])
def test_files_with_nonsense_in_them(dtx_copies: CopyFactory, name: str, content: bytes) -> None:
    with dtx_copies.copy() as copy:
        for file in [path for path in copy.path.rglob("*") if path.name.endswith(name)]:
            copy.replace(file, content)
        for mode in ([], ["--outstanding", "--json"]):
            shown = dump(copy.path, *mode)
            shown.assert_no_traceback()
