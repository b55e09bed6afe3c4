"""A client on its way to an open connection."""

from __future__ import annotations

from typing import Any

from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER
from tests.broker.protocols.world import Client


def started(client: Client, mechanism: str, response: bytes | None = None) -> Client:
    client.send(PROTOCOL_HEADER)
    client.control("connection.start-ok", client_properties={}, mechanism=mechanism, response=response, locale="en_US")
    client.sync()
    return client


def tuned(client: Client, **values: Any) -> Client:
    started(client, "ANONYMOUS")
    client.control("connection.tune-ok", **values)
    client.control("connection.open")
    client.sync()
    return client
