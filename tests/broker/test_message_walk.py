"""The way of one durable message through the code, from the socket to the disk and to its consumer, stays short.

Each function of the broker and the store that has the message in hand (its bytes, whole or in parts, or what holds
them) counts as a step.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.support.compiled import replaces
from tests.support.raw_peer import RawPeer
from tests.support.served import client, served

ROOT: Final = Path(__file__).parents[2] / "qstore"
MARK: Final = b"#the message that is followed#"
MAX_FILES: Final = 20
HOLDERS: Final = ("message", "header", "body", "parts", "content", "data", "writes", "steps")
"""Attributes by which an object of ours holds a message, or what holds it."""
DEEP: Final = 3


def holds(value: Any, deep: int = DEEP) -> bool:
    """Whether the message's bytes are in a value."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return MARK in bytes(value)
    if deep == 0:
        return False
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return any(holds(each, deep - 1) for each in value)
    if not type(value).__module__.startswith(("qstore.broker.", "qstore.store.")):
        return False
    return any(holds(getattr(value, name, None), deep - 1) for name in HOLDERS)


class Walk:
    """A profile function that notes who has the message in hand.

    Attributes:
        steps: files (from the root) and functions, in order.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """A function is called."""
        if event != "call":
            return
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in ("broker", "store", "formats"):
            return
        if any(holds(value) for name, value in frame.f_locals.items() if name != "self"):
            self.steps.append((str(path.relative_to(ROOT)), frame.f_code.co_qualname))

    def files(self) -> list[str]:
        """The files that it stays in, one after the other."""
        return [file for file, _ in groupby(file for file, _ in self.steps)]


@replaces
def test_the_way_of_a_durable_message(tmp_path: Path) -> None:
    walk = Walk()

    async def test() -> None:
        async with served(tmp_path / "store") as found:
            peer = await client(RawPeer, found.port)
            await client(peer.declare, "q")
            await client(peer.subscribe, "q")
            await client(peer.sync)
            sys.setprofile(walk)
            try:
                await client(peer.publish, "q", MARK)
                (delivery,) = await client(peer.take, 1)
                await client(peer.accept, [delivery])
                await client(peer.sync)
            finally:
                sys.setprofile(None)
            peer.close()

    asyncio.run(test())
    files = walk.files()
    told = "\n".join(f"{file}: {function}" for file, function in walk.steps)
    assert len(set(files)) <= MAX_FILES, told
    stations = [
        "broker/network/socket_connection.py",
        "broker/model/router.py",
        "broker/model/queues/queue.py",
        "store/journal/write/record_buffer.py",
        "store/writable_disk.py",
        "broker/protocols/amqp_0_10/subscription.py",
        "broker/network/socket_connection.py",
    ]
    at = -1
    for station in stations:
        at = files.index(station, at + 1)
