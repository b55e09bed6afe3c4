"""A client's protocol is found by its first bytes; an unknown one is named, and answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qstore.broker.protocols.table import TABLE, foreign_client
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER
from tests.support.processes import PATIENCE_SECONDS
from tests.support.served import served

FOREIGN = {
    b"AMQP\x00\x00\x09\x01": "an AMQP 0-9-1 client",
    b"AMQP\x01\x01\x09\x01": "an AMQP 0-8 client",
    b"AMQP\x01\x01\x00\x09": "an AMQP 0-9 client",
    b"AMQP\x01\x01\x08\x00": "an AMQP 0-8 client",
    b"AMQP\x00\x01\x00\x00": "an AMQP 1.0 client",
    b"AMQP\x03\x01\x00\x00": "an AMQP 1.0 client that requests SASL",
    b"AMQP\x02\x01\x00\x00": "an AMQP 1.0 client that requests TLS",
    b"AMQP\x09\x09\x09\x09": "a client of an unknown AMQP version (header 41 4d 51 50 09 09 09 09)",
    b"\x16\x03\x01\x02\x00\x01\x00\x01": "a TLS client",
    b"GET / HT": "an HTTP client",
    b"POST /ap": "an HTTP client",
    b"SSH-2.0-": "a client of an unknown protocol (first bytes b'SSH-2.0-')",
    b"\n\x1b[2J\x00xy": "a client of an unknown protocol (first bytes b'\\n\\x1b[2J\\x00xy')",
}


def answer(*pieces: bytes, **settings: Any) -> bytes:
    """What the broker answers to these bytes, piece by piece, until it closes the connection or is silent."""

    async def test() -> bytes:
        async with served(**settings) as found:
            reader, writer = await asyncio.open_connection("127.0.0.1", found.port)
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.01)
            try:
                return await asyncio.wait_for(reader.read(len(PROTOCOL_HEADER)), PATIENCE_SECONDS)
            finally:
                if not any(header in b"".join(pieces) for each in TABLE for header in each.headers):
                    assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b"", "the connection is closed"
                writer.close()

    return asyncio.run(test())


@pytest.mark.parametrize("begin", FOREIGN, ids=FOREIGN.values())
def test_a_client_of_another_protocol_is_named_and_answered(begin: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert foreign_client(begin) == FOREIGN[begin]
    assert answer(begin + b"more", protocols=("0-10",)) == PROTOCOL_HEADER
    reported = [(each.name, each.levelname, each.getMessage()) for each in caplog.records if each.name == "Protocol"]
    assert len(reported) == 1
    assert reported[0][:2] == ("Protocol", "WARNING")
    begins, _, ends = reported[0][2].partition(" from 127.0.0.1:")
    assert begins == f"Refused {FOREIGN[begin]}"
    assert ends.endswith(": this broker supports AMQP 0-10")


@pytest.mark.parametrize("size", range(1, len(PROTOCOL_HEADER)))
def test_a_header_may_come_in_pieces(size: int) -> None:
    assert answer(PROTOCOL_HEADER[:size], PROTOCOL_HEADER[size:]) == PROTOCOL_HEADER


@pytest.mark.parametrize("begin", [b"GET", b"\x16\x03\x01", b"AMQX"])
def test_a_client_that_cannot_speak_amqp_is_not_waited_for(begin: bytes) -> None:
    assert answer(begin) == PROTOCOL_HEADER


def test_the_protocols_that_are_offered() -> None:
    basic = TABLE[1].headers[0]
    assert answer(basic + b"more", protocols=("0-9-1",))[:1] == b"\x01", "a frame of a method"
    assert answer(basic + b"more")[:1] == b"\x01"
    assert answer(b"AMQP\x00\x01\x00\x00") == b"AMQP\x00\x01\x00\x00"
    assert answer(b"AMQP\x03\x01\x00\x00") == b"AMQP\x03\x01\x00\x00"
    assert answer(b"AMQP\x02\x01\x00\x00") == PROTOCOL_HEADER, "the first of those that are offered"


def test_a_broker_of_0_9_1_alone_answers_with_that() -> None:
    assert answer(b"AMQP\x00\x01\x00\x00", protocols=("0-9-1",)) == TABLE[1].headers[0]


def test_each_protocol_has_a_header_of_its_own() -> None:
    headers = [header for each in TABLE for header in each.headers]
    assert len(set(headers)) == len(headers)
    assert all(len(header) == 8 for header in headers)
