"""`qstore-dump` as a command: arguments, exit codes, and where it writes."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support import forked
from tests.support.dump import COMMAND, MODES, ROOT, dump, mode_id, run_dump
from tests.support.fixtures import (
    CopyFactory,
    StoreFixture,
    StoreOpener,
    journal_file,
    needs_recovery,
    snapshot,
    unpack,
)
from tests.support.forked import Forked
from tests.support.processes import PATIENCE_SECONDS

LOCAL: Final = "legacy-c-localtx"
DTX: Final = "legacy-d-dtx"
NOBODY: Final = 65534


# ---- help and the command line ----


def test_help_has_examples() -> None:
    shown = dump("--help")
    assert shown.code == 0
    assert shown.text.count("\n  qstore-dump ") >= 4
    for option in ("--outstanding", "--transactions", "--topology", "--json", "--queue", "--rid", "--xid", "--type"):
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
        ["--rid", "0x10x2"],
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
    return path


@pytest.mark.parametrize("mode", [[], ["--outstanding", "--json"]], ids=["records", "outstanding"])
@pytest.mark.parametrize(
    "kind",
    ["nothing", "empty directory", "directory of text files", "text file", "empty file", "fifo"],
)
def test_unusable_input(tmp_path: Path, kind: str, mode: list[str]) -> None:
    path = make_unusable(kind, tmp_path)
    shown = run_dump(path, *mode) if kind == "fifo" else dump(path, *mode)  # a process of its own has a time limit
    assert shown.code == 2
    assert shown.out == b""
    (line,) = shown.errors.splitlines()
    assert str(path) in line
    shown.assert_no_traceback()


def test_an_unwritten_file_is_not_damage(tmp_path: Path) -> None:
    shown = dump(make_unusable("file of zeros", tmp_path), "--json")
    assert shown.code in (0, 2)
    assert shown.lines() == []
    shown.assert_no_traceback()


# ---- plain when piped, tables on a terminal ----


@pytest.mark.parametrize("mode", MODES, ids=mode_id)
def test_no_escape_codes_when_piped(dtx: StoreFixture, mode: list[str]) -> None:
    shown = dump(dtx.path, *mode)
    assert shown.code == 0
    assert shown.out
    assert b"\x1b" not in shown.out + shown.err


@pytest.mark.parametrize("mode", MODES, ids=mode_id)
def test_control_characters_do_not_reach_the_terminal(local_copies: CopyFactory, mode: list[str]) -> None:
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
    with Forked([*COMMAND, dtx.path, "--transactions"], env=environment, stdout=secondary, stderr=secondary) as process:
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


def test_a_reader_that_goes_away_is_not_an_error(open_fixture: StoreOpener) -> None:
    store = open_fixture("legacy-c-midcommit3")
    with Forked(
        [*COMMAND, store.path, "--outstanding", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'{"kind":')
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode != 0  # most of the output was still to come


@pytest.mark.parametrize("mode", [[], ["--outstanding"]], ids=["records", "outstanding"])
def test_a_terminal_that_cannot_show_every_character(open_fixture: StoreOpener, mode: list[str]) -> None:
    store = open_fixture("legacy-a-clean")  # it has "café" in an argument, and "€" in a header
    shown = run_dump(store.path, *mode, environment={"PYTHONIOENCODING": "ascii"})
    shown.assert_no_traceback()
    assert shown.code == 0
    assert shown.out.isascii()


@pytest.mark.parametrize("mode", [["--outstanding"], ["--outstanding", "--json"]], ids=["tables", "json"])
def test_output_that_cannot_be_written(dtx: StoreFixture, mode: list[str]) -> None:
    """The output is to blame, and not the store that was read."""
    with open("/dev/full", "wb") as full:
        finished = forked.run(
            [*COMMAND, dtx.path, *mode], stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE_SECONDS
        )
    assert finished.returncode != 0
    (line,) = finished.stderr.decode().splitlines()
    assert "No space left" in line
    assert str(dtx.path) not in line


@pytest.mark.parametrize("mode", [["--transactions"], ["--transactions", "--json"]], ids=["tables", "json"])
def test_no_output_at_all(dtx: StoreFixture, mode: list[str]) -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, str(dtx.path), *mode]
    finished = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, timeout=PATIENCE_SECONDS, check=False)
    assert b"Traceback" not in finished.stderr


# ---- it never writes to what it reads ----


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


@pytest.fixture(scope="module")
def as_user() -> list[str]:
    """What to put before a command so that it runs as a user who is not root: root may do anything, whatever the modes
    of files say. Empty where the tests run as such a user already."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) is not installed")
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    probe = [*prefix, sys.executable, "-c", "import qstore.tools.qstore_dump"]
    if subprocess.run(probe, cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("another user may not run the interpreter or read the source")
    return prefix


@needs_recovery
def test_a_read_only_tree_as_an_ordinary_user(public_directory: Path, as_user: list[str]) -> None:
    store = unpack(DTX, public_directory)
    before = snapshot(store.path)
    written = subprocess.run([*as_user, "touch", store.path / "rhm" / "new"], capture_output=True, check=False)
    assert written.returncode != 0
    shown = run_dump(store.path, "--outstanding", "--json", before=as_user)
    assert (shown.code, shown.err) == (0, b"")
    assert shown.lines() == dump(store.path, "--outstanding", "--json").lines()
    assert snapshot(store.path) == before


def test_a_store_that_may_not_be_read(public_directory: Path, as_user: list[str]) -> None:
    store = unpack(LOCAL, public_directory)
    store.path.chmod(0)
    shown = run_dump(store.path, "--outstanding", before=as_user)
    store.path.chmod(0o755)
    assert (shown.code, shown.out) == (2, b"")
    (line,) = shown.errors.splitlines()
    assert str(store.path) in line


def test_a_journal_file_that_may_not_be_read(public_directory: Path, as_user: list[str]) -> None:
    """Its messages are unreadable, and the reason is shown; those of the other queue are readable."""
    store = unpack(LOCAL, public_directory)
    file = journal_file(store.path, "c.q1")
    file.chmod(0)
    shown = run_dump(store.path, "--outstanding", "--json", before=as_user)
    assert shown.code == 1
    assert [line["what"] for line in shown.lines("damage") if line["file"] == str(file) and "ermission" in line["what"]]
    assert [line["headers"]["sn"] for line in shown.messages("c.q2")] == store.sequence_numbers()["c.q2"]


def test_topology_that_may_not_be_read(public_directory: Path, as_user: list[str]) -> None:
    """qpidd keeps its databases for its own user: another user gets the messages, and a notice."""
    store = unpack(LOCAL, public_directory)
    for file in (store.path / "rhm" / "dat").iterdir():
        file.chmod(0)
    shown = run_dump(store.path, "--outstanding", "--json", before=as_user)
    shown.assert_no_traceback()
    assert "ermission" in shown.errors + "".join(line["what"] for line in shown.lines("damage"))
    assert not [line for line in shown.lines("damage") if "missing" in line["what"]]
    for queue, numbers in store.sequence_numbers().items():
        assert [line["headers"]["sn"] for line in shown.messages(queue)] == numbers


def test_a_reader_that_goes_away_leaves_no_progress_bar_on_the_terminal(open_fixture: StoreOpener) -> None:
    store = open_fixture("legacy-c-midcommit3")
    primary, secondary = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    with Forked(
        [*COMMAND, store.path, "--outstanding", "--json"], stdout=subprocess.PIPE, stderr=secondary, env=environment
    ) as process:
        os.close(secondary)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b'{"kind":')
        process.stdout.close()
        shown = bytearray()
        try:
            while chunk := os.read(primary, 65536):
                shown += chunk
        except OSError:
            pass  # how Linux tells that the other side was closed
        finally:
            os.close(primary)
    assert process.returncode == -signal.SIGPIPE
    assert "━".encode() in shown
    assert shown.endswith(b"\x1b[2K")  # the line of the bar is erased
