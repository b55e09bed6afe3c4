"""Messages with headers of one layout: reading them together equals decoding each."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow not installed: pip install 'qstore[spark]'")

from qstore.formats.broker_records.messages import encode_message, header_size
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, JournalInfo
from qstore.formats.values import TYPES, TypedValue, typed_map
from qstore.store.builders.journal_build import JournalBuild
from qstore.store.environment import tool_environment
from qstore.store.journal.write.storage import create_journal
from qstore.tools.spark import records as reading
from tests.spark.reading import Row, records

_LARGE = (1 << 64) - 2


def _journal(directory: Path, stored: list[bytes]) -> Path:
    info = JournalInfo(2, "orders", DEFAULT_BASE_NAME, Geometry(4, 16 << 16), queue_id=1, incarnation=1)
    environment = tool_environment()
    create_journal(environment.disk, str(directory), info)
    bulk = JournalBuild(environment, str(directory), info, beside=True)
    for rid, data in enumerate(stored, 1):
        bulk.enqueue(rid, data, data_crc([data]))
    bulk.finish()
    return directory


def _both(monkeypatch: pytest.MonkeyPatch, path: Path) -> tuple[list[Row], list[Row]]:
    """The rows, and those of messages that are decoded one by one."""
    found = records(path)
    with monkeypatch.context() as patched:
        patched.setattr(reading, "_FEW", 1 << 30)
        return found, records(path)


def _message(number: int, chance: random.Random, layout: int) -> bytes:
    """One of a publisher; each layout has other fields."""
    headers: dict[str, Any] = {"seq": number, "producer": "p1"}
    if layout == 1:
        headers |= {
            "flag": chance.random() < 0.5, "share": chance.choice([0.5, float("nan"), float("-inf")]),
            "text": chance.choice(["äb", "a\\x", "abc"]), "raw": TypedValue(TYPES["vbin8"], chance.randbytes(3)),
            "id": uuid.UUID(int=chance.getrandbits(128)), "list": [number % 3],
            "wide": TypedValue(TYPES["uint64"], _LARGE),
        }  # fmt: skip
    more: dict[str, Any] = {}
    if layout == 2:
        more = {"correlation_id": chance.randbytes(4), "reply_to": ("amq.direct", f"r{number % 4}"), "app_id": b"app"}
    return encode_message(
        b"body" * (number % 5),
        destination="orders",
        delivery_properties={
            "priority": number % 10, "delivery_mode": 2, "timestamp": 1_700_000_000 + number,
            "ttl": _LARGE if number % 97 == 0 else 1000, "exchange": "orders", "routing_key": f"key.{number % 3}",
        },
        message_properties={
            "message_id": uuid.UUID(int=chance.getrandbits(128)), "content_length": 4 * (number % 5),
            "content_type": "text/plain", "application_headers": typed_map(headers), **more,
        },
    )  # fmt: skip


@pytest.mark.parametrize("layouts", [(0,), (1,), (2,), (0, 1, 2)])
def test_fields_of_headers_with_one_layout_are_those_of_each_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layouts: tuple[int, ...]
) -> None:
    chance = random.Random(7)
    stored = [_message(number, chance, layouts[number % len(layouts)]) for number in range(600)]
    found, each = _both(monkeypatch, _journal(tmp_path / "orders", stored))
    assert [row["timestamp"] for row in found] == [1_700_000_000 + number for number in range(600)]
    assert repr(found) == repr(each)


def test_headers_of_one_size_with_a_wrong_byte_are_not_taken_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(11)
    stored = []
    for number in range(1500):
        data = bytearray(whole := _message(number, chance, 1 + number % 2))
        if number % 3 == 0:
            data[chance.randrange(4, 4 + header_size(whole))] ^= 1 << chance.randrange(8)
        stored.append(bytes(data))
    found, each = _both(monkeypatch, _journal(tmp_path / "orders", stored))
    assert sum(row["damage"] is not None for row in found) > 100
    assert repr(found) == repr(each)
