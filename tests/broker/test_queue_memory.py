"""Memory that a queued message takes besides its content."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Coroutine
from typing import Any, Final
from uuid import UUID

from qstore.broker.protocols.amqp_0_10.server_connection import Amqp010Connections, ServerConnection
from qstore.broker.protocols.connection import Phase
from qstore.broker.protocols.machine import Peer
from qstore.broker.security.authentication import Authentication, LoginOptions, PeerSecurity
from qstore.formats.amqp_0_10.commands import encode_control
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER, encode_control_frame
from qstore.formats.values import TypedMap, typed_map
from tests.support.fake_store import Model
from tests.support.garbage import collect_what_is_old
from tests.support.raw_peer import transfer_frames

MESSAGES: Final = 10_000
MAX_BYTES: Final = 600  # beyond its content, for each queued transient message
READ: Final = 64 << 10


class Host:
    """A socket that is not read."""

    def run(self, work: Coroutine[Any, Any, None], done: Any) -> None:
        raise AssertionError("nothing here takes time")

    def resumed(self) -> None:
        """What was read goes on by itself."""

    def check_password(self, check: Any, done: Any) -> None:
        raise AssertionError("nobody has a password here")

    def write(self, data: bytes) -> None:
        """As good as sent."""

    def close(self) -> None:
        raise AssertionError("the connection is closed")


def control(name: str, channel: int = 0, /, **values: Any) -> bytes:
    return encode_control_frame(channel, encode_control(name, **values))


def opened(model: Model) -> ServerConnection:
    """A connection with a session attached."""
    authentication = Authentication(LoginOptions(is_on=False), None)
    connection = Amqp010Connections(model.broker, authentication).connect(Host(), Peer("", PeerSecurity(is_local=True)))
    connection.receive(
        PROTOCOL_HEADER
        + control("connection.start-ok", client_properties=TypedMap(), mechanism="ANONYMOUS", locale="en_US")
        + control("connection.tune-ok", channel_max=10, max_frame_size=65535, heartbeat=0)
        + control("connection.open", virtual_host="")
        + control("session.attach", 1, name=b"s")
        + control("session.command-point", 1, command_id=0, command_offset=0)
    )
    while connection.is_behind:  # its time was used up
        connection.resume()
    assert connection.phase is Phase.OPEN
    return connection


def message_bytes(number: int) -> bytes:
    headers = typed_map({"sn": number, "ts": 1_600_000_000_000_000_000 + number, "kind": "measurement"})
    properties = {
        "content_length": 100,
        "message_id": UUID(int=number),
        "content_type": "application/octet-stream",
        "application_headers": headers,
    }
    body = number.to_bytes(4, "big") * 25
    return transfer_frames("q", body, durable=False, properties=properties, priority=number % 10)


def test_memory_of_a_queued_transient_message() -> None:
    model = Model()
    queue = model.queue("q")
    connection = opened(model)
    sent = b"".join(message_bytes(number) for number in range(MESSAGES))
    connection.receive(message_bytes(0))
    model.run()
    collect_what_is_old()
    tracemalloc.start()
    try:
        for at in range(0, len(sent), READ):
            connection.receive(sent[at : at + READ])
            while connection.is_behind:
                connection.resume()
            model.run()
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert queue.message_count == MESSAGES + 1
    contents = 0
    for entry in queue.entries():
        message: Any = entry.message
        contents += len(message.header) + len(message.body)
    assert contents > MESSAGES * 200  # headers as real ones are
    each = (used - contents) / MESSAGES
    assert 0 < each <= MAX_BYTES, f"{each:.0f} bytes for each message beside its content"
