"""`qstore-quarantine` as a command: what it lists, shows and injects, exit codes, and what it never does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qstore.formats.values import typed_map
from qstore.store.environment import tool_environment
from qstore.store.journal.recovery import LIVE
from qstore.store.repair.quarantine import INDEX
from qstore.tools.qstore_quarantine import command
from tests.support.fixtures import snapshot
from tests.support.forked import Forked
from tests.support.opened_store import (
    PARAMETERS,
    SALT,
    VERSIONS,
    Kept,
    OpenedStore,
    dequeue,
    enqueue,
    flipped,
    make_quarantine,
    message,
)

Line = dict[str, Any]


class Run:
    """One run: exit code, standard output as bytes, standard error."""

    def __init__(self, *arguments: str | os.PathLike[str] | int) -> None:
        words = [str(each) if isinstance(each, int) else os.fspath(each) for each in arguments]
        result = CliRunner().invoke(command, words, catch_exceptions=False)
        self.code, self.out, self.err = result.exit_code, result.stdout_bytes, result.stderr

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[Line]:
        return [json.loads(line) for line in self.out.splitlines()]


def make_store(path: Path, *queues: str, clean: bool = True) -> Path:
    """A store with these queues, each with a message that was there before."""
    opened = OpenedStore(tool_environment(), path)
    for name in queues:
        journal = opened.make_queue(name)
        opened.enqueue(journal, message(b"before"))
        opened.flush(journal)
    if clean:
        assert opened.store.close()
    else:
        opened.store._opened.close()
    return path


def messages(path: Path) -> dict[str, list[tuple[bytes, bool]]]:
    """Queue -> data of its messages, and whether they are redelivered."""
    opened = OpenedStore(tool_environment(), path, PARAMETERS)
    found = {name: [(each.data, each.redelivered) for each in kept] for name, kept in opened.recovered().items()}
    opened.store._opened.close()  # the store is left as it is, but for its mark
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store", "orders", "bills")


def quarantine(tmp_path: Path, *kept: Kept) -> Path:
    return make_quarantine(tmp_path / "quarantine", kept)


A, B, C = (message(body) for body in (b"aaa", b"bbb", b"ccc"))


# ---- list ----


def test_the_list(tmp_path: Path) -> None:
    path = quarantine(tmp_path, Kept(enqueue("version 1", A)), Kept(b"x" * 128, "q\udcff", None, None))
    run = Run("list", path)
    assert run.code == 0
    head, first, second, total = run.text.splitlines()
    assert head.split() == ["ENTRY", "QUEUE", "RECORD", "BYTES", "WHERE", "INJECTED", "WHAT"]
    assert first.split() == ["1", "orders", "0x5", "128", "JournalData.0000.jdat", "at", "0x0", "-", "broken"]
    assert second.split() == ["2", "q\\xff", "?", "128", "JournalData.0000.jdat", "at", "0x80", "-", "broken"]
    assert total == "2 entries, 256 bytes, 0 injected"


def test_the_list_as_json(tmp_path: Path) -> None:
    path = quarantine(tmp_path, Kept(enqueue("version 1", A)), Kept(b"x" * 128, "q\udcff", None, None))
    run = Run("list", path, "--json")
    assert run.code == 0
    first, second, summary = run.lines
    assert (first["kind"], first["number"], first["salt"], first["injected"], first["problem"]) == (
        "entry", 1, SALT, None, None,
    )  # fmt: skip
    assert (second["queue"], second["rid"], second["raw"]) == ("q\\xff", None, "000002.raw")
    assert summary == {"kind": "summary", "entries": 2, "bytes": 256, "injected": 0, "unknown": 0, "damage": 0}


def test_damage_in_the_quarantine_is_listed(tmp_path: Path) -> None:
    path = quarantine(tmp_path, *[Kept(enqueue("version 1", A))] * 4)
    (path / "000001.raw").write_bytes(b"short")
    (path / "000002.raw").unlink()
    lines = (path / INDEX).read_bytes().splitlines(keepends=True)
    (path / INDEX).write_bytes(b"".join([*lines[:2], b"{broken\n", lines[3], b'{"number":5']))
    run = Run("list", path)
    assert run.code == 1
    damage = [line.removeprefix("damage: ") for line in run.text.splitlines() if line.startswith("damage: ")]
    assert [line.removeprefix(str(path)).partition("not JSON:")[0] for line in damage] == [
        "/000001.raw: 5 bytes, but the index states 128",
        "/000002.raw: cannot be read: No such file or directory",
        "/index.jsonl, line 3: ",
        "/index.jsonl, line 5: ",
        "/000003.raw: the index has no entry for this file",
    ]
    run = Run("list", path, "--json")
    assert run.code == 1
    assert [line["kind"] for line in run.lines] == ["entry", "entry", "damage", "entry", "damage", "damage", "summary"]
    assert run.lines[-1]["damage"] == 5


# ---- show ----


@pytest.mark.parametrize("version", VERSIONS)
def test_one_entry(tmp_path: Path, version: str) -> None:
    path = quarantine(tmp_path, Kept(enqueue(version, A)), Kept(flipped(enqueue(version, A), 0)))
    run = Run("show", path, 1)
    assert run.code == 0
    assert run.text.splitlines()[3] == f"  at 0x0: enqueue record 0x5, {version}, intact"
    assert "    3 bytes of body  aaa" in run.text.splitlines()
    assert run.text.endswith("    can be injected\n")
    run = Run("show", path, 2)
    assert run.code == 0
    assert (
        "not intact\n    but its header is lost; with a corrected beginning of the header its tail matches\n"
        in run.text
    )
    assert run.text.endswith("    can be injected with --force\n")


def test_one_entry_as_json(tmp_path: Path) -> None:
    raw = enqueue("version 2", A, 5) + dequeue("version 2", 5, 6) + enqueue("version 2", b"?", 7)
    run = Run("show", quarantine(tmp_path, Kept(raw)), 1, "--json")
    assert run.code == 0
    entry, first, second, third = run.lines
    assert entry["kind"] == "entry"
    assert (first["type"], first["rid"], first["proved"], first["injectable"]) == ("enqueue", 5, True, "yes")
    assert (first["message"]["routing_key"], first["message"]["body"]) == ("orders", "aaa")
    assert (second["type"], second["dequeued_rid"], second["injectable"]) == ("dequeue", 5, "no")
    assert (third["injectable"], third["message"]["body"]) == ("no", "?")
    assert third["refusal"].startswith("its message header cannot be decoded")


def test_the_bytes_alone(tmp_path: Path) -> None:
    raw = bytes(range(256)) * 3 + b"\n"
    path = quarantine(tmp_path, Kept(raw))
    assert Run("show", path, 1, "--raw").out == raw
    lines = Run("show", path, 1, "--hex").text.splitlines()
    assert lines[2] == "00000020  20 21 22 23 24 25 26 27 28 29 2a 2b 2c 2d 2e 2f   !\"#$%&'()*+,-./"
    assert lines[-1] == f"00000300  0a{' ' * 45}  ."
    assert bytes.fromhex("".join(line[10:57] for line in lines)) == raw


def test_content_of_messages_is_escaped_for_the_terminal(tmp_path: Path) -> None:
    path = quarantine(tmp_path, Kept(enqueue("version 1", message(b"\x1b[2J\x07body", "key\x1b]0;x")), "q\x1b[31m"))
    for arguments in (["list", path], ["show", path, 1], ["show", path, 1, "--hex"]):
        assert b"\x1b" not in Run(*arguments).out


def test_bytes_that_changed_are_shown_and_reported(tmp_path: Path) -> None:
    path = quarantine(tmp_path, Kept(enqueue("version 1", A)))
    (path / "000001.raw").write_bytes(enqueue("version 1", B))
    run = Run("show", path, 1)
    assert run.code == 1
    assert "the bytes have changed" in run.text
    assert "bbb" in run.text
    (path / "000001.raw").unlink()
    run = Run("show", path, 1)
    assert (run.code, "cannot be read" in run.text) == (1, True)
    run = Run("show", path, 1, "--raw")
    assert (run.code, run.out) == (2, b"")


def test_many_records_are_cut_short(tmp_path: Path) -> None:
    raw = b"".join(enqueue("version 2", A, rid) for rid in range(1, 61))
    path = quarantine(tmp_path, Kept(raw))
    assert Run("show", path, 1).text.endswith("… and 10 more records; --json shows all\n")
    assert len(Run("show", path, 1, "--json").lines) == 61


def test_a_file_that_claims_terabytes_is_not_looked_into(tmp_path: Path, store: Path) -> None:
    path = quarantine(tmp_path, Kept(enqueue("version 1", A)))
    with (path / "000001.raw").open("r+b") as file:
        file.truncate(1 << 40)
    run = Run("show", path, 1)  # no more is read than the index says
    assert (run.code, "1,099,511,627,776 bytes, but the index states 128" in run.text) == (1, True)
    index = (path / INDEX).read_bytes()
    (path / INDEX).write_bytes(index.replace(b'"size":128', b'"size":1099511627776'))
    assert Run("list", path).code == 0
    run = Run("inject", path, 1, "--store", store, "--force")
    assert (run.code, "are more than the limit of" in run.text) == (1, True)


# ---- inject ----


@pytest.mark.parametrize("version", VERSIONS)
def test_messages_go_to_the_end_of_their_queue(tmp_path: Path, store: Path, version: str) -> None:
    path = quarantine(
        tmp_path, Kept(enqueue(version, A)), Kept(enqueue(version, B), "bills"), Kept(enqueue(version, C))
    )
    run = Run("inject", path, 3, 1, 2, "--store", store)
    assert (run.code, run.err) == (0, "")
    assert [line.split(",")[0] for line in run.text.splitlines()] == [
        "entry 3: 1 message at the end of queue orders",
        "entry 1: 1 message at the end of queue orders",
        "entry 2: 1 message at the end of queue bills",
    ]
    before = (message(b"before"), False)
    assert messages(store) == {"orders": [before, (C, True), (A, True)], "bills": [before, (B, True)]}
    assert Run("list", path, "--json").lines[-1]["injected"] == 3


def test_delivered_message_stays_marked_redelivered(tmp_path: Path) -> None:
    """After a crash everything comes back as redelivered, whichever program opens the store first."""
    store = make_store(tmp_path / "store", "orders", clean=False)
    path = quarantine(tmp_path, Kept(enqueue("version 2", A)))
    assert Run("inject", path, 1, "--store", store).code == 0
    assert messages(store) == {"orders": [(message(b"before"), True), (A, True)]}


def test_the_record_ids_are_reported(tmp_path: Path, store: Path) -> None:
    raw = b"".join(enqueue("version 2", data, rid) for rid, data in enumerate((A, B, C), 1))
    path = quarantine(tmp_path, Kept(raw))
    (result,) = Run("inject", path, 1, "--store", store, "--json").lines
    opened = OpenedStore(tool_environment(), store)
    kept = opened.recovered()["orders"]
    opened.store.close()
    assert [each.rid for each in kept[1:]] == result["rids"]
    assert [each.data for each in kept[1:]] == [A, B, C]
    assert {each.state for each in kept} == {LIVE}
    (entry, _) = Run("list", path, "--json").lines
    assert entry["injected"] == {
        "store": str(store), "queue": "orders", "at": entry["injected"]["at"], "messages": 3,
        "first_rid": result["rids"][0], "is_known": True,
    }  # fmt: skip


def test_never_twice_by_mistake(tmp_path: Path, store: Path) -> None:
    path = quarantine(tmp_path, Kept(enqueue("version 2", A)), Kept(enqueue("version 2", B)))
    assert Run("inject", path, 1, 1, "--store", store).code == 0  # once, though it is named twice
    run = Run("inject", path, 1, 2, "--store", store)
    assert run.code == 1
    first, second = run.text.splitlines()
    assert first.startswith('entry 1: not injected: it was injected into queue "orders" of ')
    assert first.endswith("; --again injects it again")
    assert second.startswith("entry 2: 1 message")
    assert [data for data, _ in messages(store)["orders"]][1:] == [A, B]
    assert Run("inject", path, 1, "--store", store, "--again").code == 0
    assert [data for data, _ in messages(store)["orders"]][1:] == [A, B, A]


def test_damaged_entry_needs_force(tmp_path: Path, store: Path) -> None:
    broken = flipped(enqueue("version 2", A), 130 - 16)
    path = quarantine(tmp_path, Kept(bytes(32) + broken[32:]))
    run = Run("inject", path, 1, "--store", store)
    assert run.code == 1
    assert run.text.splitlines()[0] == "entry 1: not injected: it is not intact; --force injects it anyway"
    assert "    a record: its header is lost" in run.text.splitlines()
    assert len(messages(store)["orders"]) == 1
    run = Run("inject", path, 1, "--store", store, "--force")
    assert run.code == 0
    assert "    a record: its header is lost" in run.text.splitlines()
    assert len(messages(store)["orders"]) == 2


def test_a_message_whose_removal_is_in_the_same_entry(tmp_path: Path, store: Path) -> None:
    path = quarantine(tmp_path, Kept(enqueue("version 2", A, 5) + dequeue("version 2", 5, 6)))
    run = Run("inject", path, 1, "--store", store)
    assert (run.code, "record 0x5: the entry also contains its dequeue" in run.text) == (1, True)


def test_entry_without_a_message_is_not_injected(tmp_path: Path, store: Path) -> None:
    path = quarantine(tmp_path, Kept(bytes(512)), Kept(enqueue("version 2", b"?")), Kept(dequeue("version 2", 5)))
    before = (path / INDEX).read_bytes()
    run = Run("inject", path, 1, 2, 3, "--store", store, "--force")
    assert run.code == 1
    assert run.text.count("it contains no message that can be injected") == 3
    assert len(messages(store)["orders"]) == 1
    assert (path / INDEX).read_bytes() == before


def test_another_queue(tmp_path: Path, store: Path) -> None:
    path = quarantine(tmp_path, Kept(enqueue("version 2", A), "lost"))
    run = Run("inject", path, 1, "--store", store)
    assert (run.code, 'there is no queue "lost" in the store; --queue names another' in run.text) == (1, True)
    assert Run("inject", path, 1, "--store", store / "rhm", "--queue", "bills").code == 0
    assert messages(store)["bills"][-1] == (A, True)


def test_a_queue_that_is_full(tmp_path: Path) -> None:
    opened = OpenedStore(tool_environment(), store := tmp_path / "store")
    opened.make_queue("orders", arguments=typed_map({"qpid.auto_expand": False}))
    opened.store.close()
    large = enqueue("version 2", message(b"x" * 300_000))  # a journal has 256 KiB
    path = quarantine(tmp_path, Kept(large), Kept(enqueue("version 2", A)))
    run = Run("inject", path, 1, 2, "--store", store)
    assert run.code == 1
    assert 'entry 1: not injected: Enqueue capacity threshold exceeded on queue "orders"' in run.text
    assert [data for data, _ in messages(store)["orders"]] == [A]
    assert [line.get("injected") is None for line in Run("list", path, "--json").lines[:2]] == [True, False]


# ---- what cannot be used ----


def test_a_store_in_use(tmp_path: Path) -> None:
    opened = OpenedStore(tool_environment(), tmp_path / "store")
    path = quarantine(tmp_path, Kept(enqueue("version 2", A)))
    before = (path / INDEX).read_bytes()
    run = Run("inject", path, 1, "--store", tmp_path / "store")
    assert (run.code, run.out) == (2, b"")
    assert run.err == (
        "qstore-quarantine: the store is in use by a broker or another tool; stop that one first (qpidd --quit)\n"
    )
    assert (path / INDEX).read_bytes() == before
    opened.store.close()


def test_a_directory_that_is_not_a_store(tmp_path: Path, store: Path) -> None:
    path = quarantine(tmp_path, Kept(enqueue("version 2", A)))
    (tmp_path / "empty").mkdir()
    (tmp_path / "legacy" / "rhm" / "dat").mkdir(parents=True)
    (tmp_path / "linear" / "qls").mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"x")
    before = snapshot(tmp_path)
    for name in ("none", "empty", "legacy", "linear", "file"):
        run = Run("inject", path, 1, "--store", tmp_path / name)
        assert (run.code, run.out, run.err.count("\n")) == (2, b"", 1), name
        assert run.err.startswith(f"qstore-quarantine: {tmp_path / name}: ")
    left = snapshot(tmp_path)
    assert {name for name in left if name not in before} == {str(Path("quarantine", "index.lock"))}
    run = Run("inject", path, 1, "--store", store, "--queue", "none")
    assert (run.code, run.err) == (2, f'qstore-quarantine: {store}: there is no queue "none"\n')


def test_a_damaged_store_is_left_alone(tmp_path: Path, store: Path) -> None:
    file = store / "rhm" / "jrnl" / "1" / "JournalData.0000.jdat"
    content = bytearray(file.read_bytes())
    content[512 + 60] ^= 1
    file.write_bytes(content)
    path = quarantine(tmp_path, Kept(enqueue("version 2", A)))
    run = Run("inject", path, 1, "--store", store)
    assert (run.code, run.out) == (2, b"")
    assert "on-damage is refuse" in run.err
    assert file.read_bytes() == content
    assert not (store / "rhm" / "quarantine").exists()


@pytest.mark.parametrize("arguments", [["list"], ["show", "Q"], ["show", "Q", "0"], ["show", "Q", "x"], ["inject", "Q"],
    ["inject", "Q", "1"], ["inject", "Q", "--store", "S"], ["show", "Q", "1", "--raw", "--json"], ["eat", "Q"]],
    ids=" ".join)  # fmt: skip
def test_a_wrong_command_line(arguments: list[str]) -> None:
    run = Run(*arguments)
    assert (run.code, run.out) == (2, b"")
    assert "Error: " in run.err


def test_no_quarantine_and_no_entry(tmp_path: Path, store: Path) -> None:
    path = quarantine(tmp_path, Kept(enqueue("version 2", A)))
    for arguments in (
        ["list", tmp_path / "none"], ["list", store], ["list", path / INDEX], ["show", path, 2],
        ["show", store, 1], ["inject", path, 1, 2, "--store", store], ["inject", store, 1, "--store", store],
    ):  # fmt: skip
        run = Run(*arguments)
        assert (run.code, run.out, run.err.count("\n")) == (2, b"", 1), arguments
        assert run.err.startswith("qstore-quarantine: ")
    assert messages(store)["orders"] == [(message(b"before"), False)]


def test_help_has_examples() -> None:
    assert "Examples:" in Run("--help").text
    for name in ("list", "show", "inject"):
        assert Run(name, "--help").code == 0


def test_looking_writes_nothing(tmp_path: Path) -> None:
    path = quarantine(tmp_path, Kept(enqueue("version 2", A)))
    before = snapshot(path)
    path.chmod(0o500)
    for arguments in (["list", path], ["show", path, 1], ["show", path, 1, "--raw"], ["show", path, 1, "--json"]):
        assert Run(*arguments).code == 0
    path.chmod(0o700)
    assert snapshot(path) == before


def test_list_ends_quietly_if_its_pipe_is_closed(tmp_path: Path) -> None:
    path = quarantine(tmp_path, *[Kept(enqueue("version 2", A))] * 3000)
    process = Forked(
        [sys.executable, "-m", "qstore.tools.qstore_quarantine", "list", path], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()
