"""Requests of both versions of QMF with faults in them: each is answered or ignored, and the agent goes on.

A request of every kind, and a call of every method, as a console would send it, and then with bits flipped, bytes cut,
doubled or replaced; or with arguments of any type. Seeds of the day; a failure names its request.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from qstore.broker.management.classes import CLASSES, objects_of
from qstore.broker.management.outbox import VERSION_1
from qstore.formats.amqp_0_10.maps import encode_value
from qstore.formats.amqp_0_10.types import BY_NAME
from qstore.formats.qmf.v1 import FIELDS, ObjectId, decode_message, encode, encode_message
from qstore.formats.values import EMPTY_MAP, typed_map, typed_value
from tests.broker.test_management_every_method import Stage
from tests.broker.test_qmf1 import bodies, id_of
from tests.broker.wired_broker import wired
from tests.support.management_console import Console, take
from tests.support.profiles import seeds_of_the_day

_REQUESTS: Final = 300  # of each seed
_ARGUMENTS: Final[dict[str, Any]] = {"bool": True, "map": {"type": "queue", "a": 1}, "sstr": "q", "lstr": "other"}
_PLAIN: Final[dict[str, Any]] = {"bool": True, "map": EMPTY_MAP, "sstr": "q", "lstr": "q"}
_LEFT_OUT: Final = ("backup", "transaction")  # snapshots take files, and a transaction has one end only
_WHERE: Final = ["and", ["gt", "msgDepth", 0], ["not", ["re_match", "name", ["quote", "a.*"]]], ["exists", "name"]]
_FIELDS: Final[dict[str, Any]] = {
    "lstr": "label", "sstr": "org.apache.qpid.broker", "uint8": 1, "uint32": 1, "bin128": bytes(16), "absTime": 1,
    "uuid": UUID(int=1), "map": typed_map({"_class": "queue"}), "objId": ObjectId(0, 1, 1, 0, 1),
}  # fmt: skip


def anything(source: random.Random, depth: int = 0) -> Any:
    """A value of any type."""
    kinds = [None, True, -(1 << 63), (1 << 63) - 1, "q", "x" * 300, b"\xff\x00", 1.5]
    if depth < 3 and source.random() < 0.4:
        inner = [anything(source, depth + 1) for _ in range(source.randrange(4))]
        return inner if source.random() < 0.5 else {f"k{number}": each for number, each in enumerate(inner)}
    return source.choice(kinds)


def damaged(source: random.Random, body: bytes) -> bytes:
    """The bytes with a few faults; now and then with none."""
    changed = bytearray(body)
    for _ in range(source.choice((0, 1, 1, 2, 8))):
        at = source.randrange(len(changed) + 1)
        match source.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << source.randrange(8)
            case 1:
                del changed[at : at + source.choice((1, 4, 1 << 20))]
            case 2:
                changed[at:at] = source.randbytes(source.choice((1, 4, 64)))
            case 3:
                changed[at:at] = changed[at : at + 32]
            case 4:
                changed[at : at + 4] = source.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)))
    return bytes(changed)


def requests_2(stage: Stage, source: random.Random) -> Iterator[tuple[str, Any]]:
    """Sound requests of version 2, and calls with arguments of any type: opcode and content."""
    yield "_agent_locate_request", {}
    for what in ("SCHEMA_ID", "SCHEMA", "OBJECT", "OBJECT_ID"):
        yield "_query_request", {"_what": what, "_schema_id": {"_class_name": "queue"}, "_where": _WHERE}
    for of in CLASSES:
        name = next((each.key for each in objects_of(stage.console.managed, of)), "none")
        identity = {"_object_name": f"{of.package}:{of.name}:{name}"}
        yield "_query_request", {"_what": "OBJECT", "_object_id": identity}
        for method in of.methods.values() if of.name not in _LEFT_OUT else ():
            wanted = [each for each in method.arguments if "I" in each.direction]
            for given in (
                {each.name: _ARGUMENTS.get(each.type, 1) for each in wanted},
                {each.name: anything(source) for each in wanted},
            ):
                yield "_method_request", {"_object_id": identity, "_method_name": method.name, "_arguments": given}


async def requests_1(stage: Stage) -> list[bytes]:
    """Sound requests of version 1, and what agents and consoles send."""
    found = [
        encode_message(opcode, 7, *(_FIELDS[kind] for _, kind in fields), rest=bytes(8))
        for opcode, fields in FIELDS.items()
    ]
    for of in CLASSES:
        if next(objects_of(stage.console.managed, of), None) is None or of.name in _LEFT_OUT:
            continue
        identity, class_hash = await id_of(stage.console, of.name)
        for method in of.methods.values():
            wanted = (each.type for each in method.arguments if "I" in each.direction)
            rest = b"".join(encode(kind, _PLAIN.get(kind, 1)) for kind in wanted)
            found.append(encode_message("M", 7, identity, of.package, of.name, class_hash, method.name, rest=rest))
    return found


async def damage_2(stage: Stage, source: random.Random) -> None:
    """Requests of version 2, each of which is answered."""
    known = list(requests_2(stage, source))
    for _ in range(_REQUESTS):
        opcode, content = source.choice(known)
        body = damaged(source, encode_value(BY_NAME["map"], typed_value(content).value))
        replies = await stage.console.ask(opcode, body)
        assert replies, (opcode, body)
        assert all(reply.headers["qmf.opcode"].startswith("_") for reply in replies), (opcode, body)


async def damage_1(stage: Stage, source: random.Random) -> None:
    """Requests of version 1, which are answered or ignored."""
    known = await requests_1(stage)
    for _ in range(_REQUESTS):
        body = damaged(source, source.choice(known))
        for key in ("broker", "agent.1.0", source.choice(("agent.1.10", "schema.package", "console.obj.1.10.a.b"))):
            stage.console.send(None, body, exchange=VERSION_1, key=key)
        await stage.console.settle()
        assert all(decode_message(each) for each in bodies(stage.console.replies)), body


@pytest.mark.parametrize("damage", [damage_1, damage_2])
def test_damaged_requests_are_answered_or_ignored(damage: Any, tmp_path: Path) -> None:
    async def run(seed: int, directory: Path) -> None:
        directory.mkdir()
        async with wired(directory / "store") as wired_broker:
            console = Console(wired_broker)
            await console.open()
            stage = Stage(wired_broker, console, directory)
            await stage.open()
            await damage(stage, random.Random(seed))
            take(console.replies)
            (reply,) = await console.ask("_agent_locate_request", {})
            assert reply.headers["qmf.opcode"] == "_agent_locate_response"

    for seed in seeds_of_the_day(1):
        asyncio.run(run(seed, tmp_path / str(seed)))
