"""`qstore-export` and `qstore-import` as tests run them, and what a store holds as lines that can be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner, Result

from qstore.tools.qstore_export import command as export_command
from qstore.tools.qstore_import import command as import_command

FORMS: Final = ("jsonl", "jsonl.zst", "parquet", "tar.zst")

Line = dict[str, Any]


def export(*arguments: object) -> Result:
    return CliRunner().invoke(export_command, [str(each) for each in arguments])


def bring(*arguments: object) -> Result:
    return CliRunner().invoke(import_command, [str(each) for each in arguments])


def lines_of(path: Path) -> list[Line]:
    """The lines of an export."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, lines: list[Line]) -> Path:
    path.write_text("".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines))
    return path


def held(store: Path, scratch: Path, *, rids: bool = False) -> list[Line]:
    """Everything that a store holds, as an export has it: in order, with all bytes; without record ids unless asked."""
    path = scratch / f"held-{store.name}.jsonl"
    path.unlink(missing_ok=True)
    assert export(store, path, "--with-passwords").exit_code == 0
    lines = [line for line in lines_of(path) if line["kind"] not in ("export", "end")]
    for line in lines if not rids else ():
        line.pop("rid", None)
    return lines


def of_kind(lines: list[Line], kind: str) -> list[Line]:
    return [line for line in lines if line["kind"] == kind]
