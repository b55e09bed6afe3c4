"""What a start imports, and when it imports the rest."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Final

import pytest

from qstore.broker.model.broker import Broker
from qstore.broker.network.server import Server
from qstore.broker.protocols import table
from qstore.broker.protocols.table import TABLE, Protocols
from qstore.broker.security.authentication import Authentication, LoginOptions
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_9_1.frames import PROTOCOL_HEADER as AMQP_0_9_1_HEADER
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER as AMQP_0_10_HEADER
from tests.support.processes import PATIENCE_SECONDS
from tests.support.served import served

LATER: Final = (
    "qstore.broker.federation.federation",
    "qstore.broker.federation.shovel",
    "qstore.broker.management.agent",
    "qstore.broker.management.objects",
    "qstore.broker.protocols.amqp_0_10.server_connection",
    "qstore.broker.protocols.amqp_0_9_1.connection",
    "qstore.broker.protocols.amqp_1_0.connection",
    "qstore.tools",
)
"""What no start needs before it listens, with what is below it."""


def test_a_start_imports_only_what_it_needs_to_listen() -> None:
    code = "import sys, qstore.broker.process.command, qstore.store.module; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
    )
    modules = done.stdout.split()
    assert "qstore.broker.network.server" in modules
    assert [each for each in modules if each.startswith(LATER)] == []


def protocols_of(**settings: object) -> Protocols:
    broker = Broker(BrokerSettings(auth=False)._replace(**settings), None, lambda _function: None)  # type: ignore[arg-type]
    return Protocols(broker, Authentication(LoginOptions(is_on=False), None))


def test_a_protocol_is_made_for_its_first_client_and_once() -> None:
    protocols, begun = protocols_of(), []
    protocols.begins = lambda: begun.append(1)
    found = protocols.find(AMQP_0_10_HEADER)
    assert (found, begun) == (protocols.links, [1])
    assert found is not None
    assert list(protocols.load()) == [None] * len(TABLE)
    assert protocols.find(AMQP_0_10_HEADER) is found


def test_links_use_0_10_where_it_is_not_offered() -> None:
    protocols = protocols_of(protocols=("0-9-1",))
    assert protocols.links is protocols.links
    assert protocols.find(AMQP_0_10_HEADER) is None


def test_clients_are_refused_whose_protocol_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_arguments: object) -> None:
        raise ModuleNotFoundError("No module named 'qstore.broker.x'")

    rows = tuple(each._replace(make=fails) if each.version == "0-9-1" else each for each in TABLE)
    monkeypatch.setattr(table, "TABLE", rows)
    protocols = protocols_of()
    assert protocols.find(AMQP_0_9_1_HEADER) is None
    assert protocols.find(AMQP_0_9_1_HEADER) is None
    assert protocols.find(AMQP_0_10_HEADER) is not None
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "CRITICAL"]
    assert line.startswith("Clients of AMQP 0-9-1 are refused, since a module cannot be imported: No module named ")


def test_everything_is_imported_soon_after_the_broker_listens() -> None:
    """Also if no client comes: the installation may change while the broker runs."""

    async def test() -> None:
        async with served() as found:
            await found.until(lambda: not found.server.broker.tick.turns)
            assert len(found.server.protocols._made) == len(TABLE)
            assert None not in found.server.protocols._made.values()

    asyncio.run(test())


def test_the_first_client_may_come_before_the_services() -> None:
    """While the sockets listen and the start is not complete: it is served when they are there."""

    async def test() -> None:
        settings = BrokerSettings(port=0, interfaces=("127.0.0.1",), auth=False)
        server = Server(Broker(settings, None, asyncio.get_running_loop().call_soon), settings)
        try:
            (port,) = await server.listen()
            assert server.services is None
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(AMQP_0_9_1_HEADER)
            begin = await asyncio.wait_for(reader.readexactly(7), PATIENCE_SECONDS)
            assert begin[:3] == b"\x01\x00\x00", "a method on channel 0: connection.start"
            services = server.services
            assert services is not None
            server.begin()
            assert server.services is services
            writer.close()
        finally:
            await server.close()

    asyncio.run(test())
