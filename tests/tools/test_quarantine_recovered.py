"""From a damaged store to a whole one: qstore-quarantine brings back what qstore-recover has set aside."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qstore.tools import qstore_quarantine, qstore_recover
from tests.support.dump import dump
from tests.support.fixtures import LEGACY_STORES, LINEAR_STORES, set_writable, unpack
from tests.support.profiles import today

#: Bytes of a header that are hit: its magic, the size of its data, and in its record id.
PLACES = {"legacy": (0, 24, 8), "linear": (0, 32, 16)}

#: Queues in which a message that comes removes another. Where linear's plain dequeue, which has no checksum, follows a
#: damage, it is not believed, and the other one comes back.
REMOVING = {"fx.lvq", "fx.ring"}


def messages(path: Path) -> Counter[tuple[Any, ...]]:
    """What a restart would deliver, without record ids, which are new in a recovered store."""
    lines = dump(path, "--outstanding", "--json").lines("message")
    return Counter(
        (
            line["queue"],
            line["state"],
            line["message_id"],
            line["routing_key"],
            line["body_sha256"],
            str(line["headers"]),
        )
        for line in lines
    )


def hit(path: Path, places: tuple[int, ...]) -> list[tuple[str, int]]:
    """Damage the headers of live messages: the queue and record id of each. None is the last: that would look torn."""
    live = [
        (line["queue"], line["rid"])
        for line in dump(path, "--outstanding", "--json", "--body", "none").lines("message")
        if line["state"] == "outstanding" and line["queue"] not in REMOVING
    ]
    live = [each for each, after in itertools.pairwise(live) if each[0] == after[0]]
    chosen = [live[len(live) * number // 4] for number in range(1, 1 + len(places))]
    records = {
        (line["queue"], line["rid"]): line
        for line in dump(path, "--json", "--body", "none").lines("record")
        if line["type"] == "enqueue"
    }
    for each, place in zip(chosen, places, strict=True):
        with Path(records[each]["file"]).open("r+b") as file:
            file.seek(records[each]["offset"] + place)
            byte = os.pread(file.fileno(), 1, file.tell())[0]
            file.write(bytes([byte ^ 0x41]))
    return chosen


def run(command: Any, *arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(command, [str(each) for each in arguments], catch_exceptions=False)
    return result.exit_code, result.stdout


@pytest.mark.parametrize("name", today(LEGACY_STORES + LINEAR_STORES, 5))
def test_quarantined_messages_can_be_injected(tmp_path: Path, name: str) -> None:
    source = unpack(name, tmp_path).path
    set_writable(tmp_path / name, writable=True)
    whole = messages(source)
    chosen = hit(source, PLACES[name.partition("-")[0]])
    code, _ = run(qstore_recover.command, source, tmp_path / "saved")
    assert code == 1
    saved = messages(tmp_path / "saved")
    lost = whole - saved
    assert not saved - whole
    assert Counter(queue for queue, *_ in lost.elements()) == Counter(queue for queue, _ in chosen)

    quarantine = tmp_path / "saved" / "quarantine"
    code, text = run(qstore_quarantine.command, "list", quarantine, "--json")
    entries = [line for line in map(json.loads, text.splitlines()) if line["kind"] == "entry"]
    assert (code, Counter(entry["queue"] for entry in entries)) == (0, Counter(queue for queue, _ in chosen))
    numbers = [entry["number"] for entry in entries]
    code, text = run(qstore_quarantine.command, "inject", quarantine, *numbers, "--store", tmp_path / "saved")
    assert code == 1
    assert text.count("--force injects it anyway") == len(numbers)
    assert messages(tmp_path / "saved") == saved
    code, _ = run(qstore_quarantine.command, "inject", quarantine, *numbers, "--store", tmp_path / "saved", "--force")
    assert code == 0
    assert messages(tmp_path / "saved") == whole
