"""Messages of every kind and size, laid out by the tests: what `qstore-dump` makes of their data."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from pathlib import Path

import pytest

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.records import EXTERNAL
from qstore.formats.values import typed_map
from qstore.store.inspect.offline import open_store
from qstore.tools.console.rows import JsonLines
from qstore.tools.dump.dump import Sections, dump_recovered
from qstore.tools.dump.messages import BodyForm, Selection
from tests.support.dump import Dump, dump
from tests.support.journal_builder import DIRECTORY, JournalBuilder
from tests.support.memory_disk import BadRegion


@pytest.fixture(params=[1, 2])
def builder(request: pytest.FixtureRequest) -> JournalBuilder:
    return JournalBuilder(request.param, Geometry.from_pages(4, 64))


def shown(builder: JournalBuilder, directory: Path, *arguments: str) -> Dump:
    builder.flush()
    builder.write_to(directory)
    return dump(directory, "--outstanding", "--json", *arguments)


def amqp_1_0(body: bytes) -> bytes:
    """A message of one data section, as it is stored: no header size, then the section."""
    header = b"\0\0\0\0" + bytes([0x00, 0x53, 0x75, 0xB0]) + len(body).to_bytes(4, "big") + body
    return len(header).to_bytes(4, "big") + header


SIZES = [0, 1, 65_536, 200_000, 3 << 20]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("encode", [encode_message, amqp_1_0], ids=["0-10", "1.0"])
def test_a_body_of_any_size(builder: JournalBuilder, tmp_path: Path, encode: object, size: int) -> None:
    body = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    assert callable(encode)
    builder.enqueue(encode(body))
    result = shown(builder, tmp_path / "q")
    (message,) = result.lines("message")
    assert result.code == 0
    assert message["body"] == body.decode()
    assert message["body_length"] == size
    assert message["body_sha256"] == hashlib.sha256(body).hexdigest()
    (brief,) = dump(tmp_path / "q", "--outstanding", "--json", "--body", "none").lines("message")
    assert brief == {key: value for key, value in message.items() if key != "body"}
    assert dump(tmp_path / "q", "--outstanding").code == 0


@pytest.mark.parametrize("size", [1, 200_000])
def test_a_body_that_is_not_text(builder: JournalBuilder, tmp_path: Path, size: int) -> None:
    body = b"\xff" * size
    builder.enqueue(encode_message(body))
    (message,) = shown(builder, tmp_path / "q").lines("message")
    assert "body" not in message
    assert base64.b64decode(message["body_base64"]) == body
    (in_hex,) = dump(tmp_path / "q", "--outstanding", "--json", "--body", "hex").lines("message")
    assert bytes.fromhex(in_hex["body_hex"]) == body


def test_every_property(builder: JournalBuilder, tmp_path: Path) -> None:
    data = encode_message(
        b"x",
        destination="orders",
        delivery_properties={
            "priority": 7,
            "delivery_mode": 2,
            "ttl": 60_000,
            "timestamp": 1_700_000_000,
            "expiration": 1_700_000_060,
            "exchange": "orders",
            "routing_key": "north",
        },
        message_properties={
            "correlation_id": b"corr",
            "content_type": "text/plain",
            "content_encoding": "utf-8",
            "user_id": b"guest",
            "app_id": b"\xff\x00",
            "application_headers": typed_map({"n": 5, "s": "text"}),
        },
    )
    builder.enqueue(data)
    (message,) = shown(builder, tmp_path / "q").lines("message")
    assert message["properties"] == {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "correlation_id": "corr",
        "reply_to": None,
        "user_id": "guest",
        "app_id": "ff00",
        "ttl": 60_000,
        "expiration": 1_700_000_060,
        "timestamp": 1_700_000_000,
    }
    assert (message["exchange"], message["routing_key"]) == ("orders", "north")
    assert (message["priority"], message["delivery_mode"], message["message_id"]) == (7, 2, None)
    assert message["headers"] == {"n": 5, "s": "text"}
    assert message["header_types"] == {"n": "int64", "s": "str16"}


@pytest.mark.parametrize(
    "data", [b"", b"\0\0", b"\0\0\1\0short", b"\xff" * 70_000, b"\0\0\0\x08" + b"not a frame at all"]
)
def test_data_that_are_no_message_are_damage_and_given_as_they_are(
    builder: JournalBuilder, tmp_path: Path, data: bytes
) -> None:
    kept = encode_message(b"kept")
    builder.enqueue(data)
    builder.enqueue(kept)
    result = shown(builder, tmp_path / "q")
    assert result.code == 1
    broken, whole = result.lines("message")
    assert broken["body_sha256"] == hashlib.sha256(data).hexdigest()
    assert (broken["exchange"], broken["headers"]) == (None, {})
    assert whole["body"] == "kept"
    (damage,) = result.lines("damage")
    assert damage["rid"] == broken["rid"]
    assert "message header cannot be decoded" in damage["what"]


def test_an_external_record_is_named_as_such(tmp_path: Path) -> None:
    builder = JournalBuilder(1, Geometry.from_pages(4, 1))
    builder.enqueue(b"", flags=EXTERNAL, size=500)
    result = shown(builder, tmp_path / "q")
    (damage,) = result.lines("damage")
    assert "external: its data are not in the journal" in damage["what"]


def test_a_sector_of_a_large_body_that_cannot_be_read_is_damage() -> None:
    builder = JournalBuilder(1, Geometry.from_pages(4, 64))
    placed = builder.enqueue(encode_message(b"x" * (3 << 20)))
    builder.flush()
    disk = builder.disk()
    path = f"{DIRECTORY}/{builder.name(placed.file)}"
    disk.bad_regions.append(BadRegion(path, 2 << 20, (2 << 20) + 512))
    store = open_store(disk, DIRECTORY)
    output = io.BytesIO()
    lines = JsonLines(output)
    sections = Sections(outstanding=True, transactions=False, topology=False)
    dump_recovered(store.recover(), lines, sections, Selection(), BodyForm.NONE, None)
    lines.flush()
    shown_damage = [json.loads(line) for line in output.getvalue().splitlines() if b'"damage"' in line]
    assert [(damage["file"], damage["offset"]) for damage in shown_damage] == [(path, 2 << 20)]
    assert "cannot be read" in shown_damage[0]["what"]
