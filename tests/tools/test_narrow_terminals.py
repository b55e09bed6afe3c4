"""80 columns: nothing is left out of a table, and no name is broken."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qstore.store.damage import Damage, DamageKind
from qstore.store.disk import OsDisk
from qstore.store.inspect.check import check_store
from qstore.store.inspect.offline import open_store
from qstore.tools.dump.rows import damage_object, object_tables
from qstore.tools.qstore_check import show_report
from tests.support.fixtures import unpack

XID = "060407000000000b0966782d6769642d70310762722d00017031"
PLACE = "/var/lib/qpidd/rhm/jrnl/0004/a-queue-of-a-long-name/JournalData.0000.jdat"
OBJECTS: list[dict[str, Any]] = [
    {
        "kind": "message", "queue": "a-queue-of-a-long-name", "rid": 1, "state": "in-doubt-enqueue", "xid": XID,
        "exchange": "amq.direct", "routing_key": "a-key-of-some-length", "body": "hello", "body_length": 1,
        "message_id": "59f19d71-aab1-5fbb-bf07-b4ac737133e8", "headers": {"sn": 0},
    },
    {
        "kind": "transaction", "state": "in-doubt", "type": "dtx", "format": 11, "global_id": "66782d6769642d7031",
        "branch_id": "62722d00017031", "enqueues": 4, "dequeues": 3, "xid": XID,
    },
    {
        "kind": "record", "queue": "a-queue-of-a-long-name", "type": "dequeue", "rid": 2, "file": PLACE, "offset": 512,
        "size": 128, "flush": 3, "checksum": "crc ok", "flags": ["last-of-flush"], "dequeued_rid": 1, "xid": XID,
    },
    damage_object(Damage(PLACE, 0xC00, 5, DamageKind.FLUSHES_MISSING, last=4, first=6)),
    damage_object(Damage(PLACE, None, None, DamageKind.JOURNAL_BREAKS_OFF, reason="Input/output error")),
]  # fmt: skip


def shown(fields: dict[str, Any], *, width: int, is_terminal: bool) -> str:
    """The table of one object, without its colours."""
    file = io.StringIO()
    tables = object_tables(Console(file=file, width=width, force_terminal=is_terminal, color_system=None))
    tables.show(fields)
    tables.flush()
    return re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("fields", OBJECTS, ids=lambda fields: fields["kind"])
def test_nothing_is_left_out(fields: dict[str, Any], width: int, is_terminal: bool) -> None:
    text = shown(fields, width=width, is_terminal=is_terminal)
    kept = {
        "message": [XID, "0x1", "in-doubt-enqueue", "59f19d71-aab1-5fbb-bf07-b4ac737133e8", "amq.direct", "hello"],
        "transaction": [XID, "66782d6769642d7031", "62722d00017031", "in-doubt"],
        "record": [XID, "0x2", "JournalData.0000.jdat", "0x200", "crc ok", "of 0x1", "last-of-flush"],
        "damage": [PLACE, fields.get("what"), fields.get("consequence")],
    }[fields["kind"]]
    words = " ".join(text.split())  # lines break between words
    for cell in kept:
        assert cell in words, text


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("width", [80, 160])
def test_names_and_places_are_whole_in_a_check(tmp_path: Path, width: int, is_terminal: bool) -> None:
    disk = OsDisk()
    store = open_store(disk, str(unpack("legacy-d-dtx", tmp_path).path))
    checked = check_store(disk, store, paranoid=False)
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=is_terminal, color_system=None)
    show_report(console, "PATH", checked, 0.1, paranoid=False)
    lines = file.getvalue().splitlines()
    for whole in (
        "TplStore (prepared transactions)",
        "0x1 in JournalData.0000.jdat at 0x200 (in-doubt-dequeue)",
        "0x16 in JournalData.0000.jdat at 0x400",
    ):
        assert sum(whole in line for line in lines) == 1, lines
    assert all(any(re.match(rf" ?{name}\b", line) for line in lines) for name in ("d.q1", "d.q2", "d.q3"))
