"""The client with coroutines of asyncio; messages and errors are those of `qstore` itself.

    from qstore import aio

    async with aio.Connection("localhost:5672") as connection:
        session = await connection.session()
        sender = await session.sender("orders; {create: always}")
        await sender.send("hello")

The classes and their options are documented in `qstore.broker.client.aio`.
"""

from __future__ import annotations

from qstore.broker.client.aio import Connection, Receiver, Sender, Session

__all__ = ["Connection", "Receiver", "Sender", "Session"]
