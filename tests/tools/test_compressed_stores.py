"""The tools on stores with compressed messages, sound and damaged ones."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qstore.formats.rhm.compressed import Compressor
from qstore.formats.rhm.records import COMPRESSED
from qstore.store.environment import tool_environment
from qstore.tools.qstore_check import command as check
from qstore.tools.qstore_quarantine import command as quarantine
from qstore.tools.qstore_resize import command as resize
from tests.support.dump import dump
from tests.support.opened_store import (
    BODIES,
    MESSAGES,
    Kept,
    OpenedStore,
    bomb,
    broken_content,
    enqueue,
    make_quarantine,
    make_store,
    message,
)
from tests.support.recover_runs import invoke, recover


def stored(path: Path) -> dict[str, list[bytes]]:
    opened = OpenedStore(tool_environment(), path)
    found = opened.recovered_data()
    opened.store.close()
    return found


def checked(path: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    result = CliRunner().invoke(check, [str(path), "--json", *options], catch_exceptions=False)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return result.exit_code, [line for line in lines if line["kind"] == "damage"]


def test_dump_shows_content_as_it_was(tmp_path: Path) -> None:
    path = make_store(tmp_path / "store")
    shown = dump(path, "--outstanding", "--json")
    assert shown.code == 0
    found = shown.messages("orders")
    assert [line["body_length"] for line in found] == [len(body) for body in BODIES]
    assert [line["body_sha256"] for line in found] == [sha256(body).hexdigest() for body in BODIES]
    bodies = dump(path, "--outstanding", "--json", "--body", "text").messages("orders")
    assert [line["body"].encode() for line in bodies] == BODIES
    directory = tmp_path / "bodies"
    dump(path, "--outstanding", "--json", "--body", "files", "--body-dir", directory)
    assert sorted(file.read_bytes() for file in directory.rglob("*") if file.is_file()) == sorted(BODIES)
    flags = [line["flags"] for line in dump(path, "--json").lines("record") if line["type"] == "enqueue"]
    assert sum("compressed" in each for each in flags) >= 9


def test_check_finds_nothing(tmp_path: Path) -> None:
    path = make_store(tmp_path / "store")
    assert checked(path) == checked(path, "--paranoid") == (0, [])


def test_damaged_content_is_reported(tmp_path: Path) -> None:
    path = make_store(tmp_path / "store", broken_content(), bomb())
    assert checked(path) == (0, [])  # the checksums are right
    code, found = checked(path, "--paranoid")
    assert (code, [each["damage_kind"] for each in found]) == (1, ["content-damaged"] * 2)
    assert "the limit is 16,777,216" in found[1]["what"]
    assert {each["consequence"] for each in found} == {"the message is not delivered"}
    shown = dump(path, "--outstanding", "--json")
    assert shown.code == 1
    assert [line["damage_kind"] for line in shown.lines("damage")] == ["content-damaged"] * 2
    *_, cut, large = shown.messages("orders")
    assert cut["routing_key"] == large["routing_key"] == "orders"


def test_recovery_keeps_it_compressed(tmp_path: Path) -> None:
    path = make_store(tmp_path / "store")
    recovery = recover(path, tmp_path / "new")
    assert recovery.report.code == 0
    assert stored(recovery.path) == {"orders": MESSAGES}
    flags = [line["flags"] for line in dump(recovery.path, "--json").lines("record") if line["type"] == "enqueue"]
    assert sum("compressed" in each for each in flags) >= 9


def test_recovery_to_version_1_restores_it(tmp_path: Path) -> None:
    recovery = recover(make_store(tmp_path / "store"), tmp_path / "new", "--to-version", "1")
    assert recovery.report.code == 0
    found = recovery.dump().messages("orders")
    assert [line["body_sha256"] for line in found] == [sha256(body).hexdigest() for body in BODIES]
    records = dump(recovery.path, "--json").lines("record")
    assert all("compressed" not in line["flags"] for line in records)
    assert stored(recovery.path) == {"orders": MESSAGES}  # converted at its first start


def test_recovery_puts_damaged_content_into_the_quarantine(tmp_path: Path) -> None:
    path = make_store(tmp_path / "store", broken_content(), bomb())
    recovery = invoke(path, tmp_path / "new")
    assert recovery.report.code == 1
    assert [line["damage_kind"] for line in recovery.report.lines("damage")] == ["content-damaged"] * 2
    assert checked(recovery.path, "--paranoid")[1] == []
    shown = CliRunner().invoke(quarantine, ["list", str(recovery.path / "quarantine"), "--json"])
    entries = [json.loads(line) for line in shown.stdout.splitlines()][:-1]
    assert [entry["queue"] for entry in entries] == ["orders"] * 2
    result = CliRunner().invoke(
        quarantine, ["inject", str(recovery.path / "quarantine"), "1", "2", "--store", str(recovery.path), "--force"]
    )
    assert result.exit_code == 1
    assert "its content cannot be used" in result.output
    assert stored(recovery.path) == {"orders": MESSAGES}


@pytest.mark.parametrize("size", [40, 2])
def test_resizing_keeps_it_compressed(tmp_path: Path, size: int) -> None:
    path = make_store(tmp_path / "store")
    result = CliRunner().invoke(resize, [str(path), "--num-jfiles", "6", "--jfile-size-pgs", str(size)])
    assert result.exit_code == 0, result.output
    assert stored(path) == {"orders": MESSAGES}
    assert checked(path, "--paranoid") == (0, [])


def test_a_quarantined_record_is_injected_as_it_was(tmp_path: Path) -> None:
    data = message(b"content " * 100)
    compressed = Compressor().compress(data)
    assert compressed is not None
    kept = make_quarantine(tmp_path / "quarantine", [Kept(enqueue("version 2", compressed, flags=COMPRESSED))])
    path = make_store(tmp_path / "store")
    result = CliRunner().invoke(quarantine, ["inject", str(kept), "1", "--store", str(path)])
    assert result.exit_code == 0, result.output
    assert stored(path) == {"orders": [*MESSAGES, data]}
