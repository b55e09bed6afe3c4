"""A session that ends while its client is sending a message in many frames, as qpidd's C++ client sends one.

That client does not look between two frames whether its session is there; another thread answers session.detach
meanwhile, so that the rest of the message follows session.detached.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from qstore.formats.amqp_0_10.codes import ErrorCode
from qstore.formats.amqp_0_10.commands import decode_command, decode_control, decode_result, encode_command
from qstore.formats.amqp_0_10.frames import CONTROL, LAST_FRAME, LAST_SEGMENT, encode_command_frames
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, encode_struct
from qstore.formats.values import typed_map
from tests.support.raw_peer import RawConnection
from tests.support.running_broker import BrokerMaker, RunningBroker

_ENDING: Final = 1
_LIVING: Final = 2
_NAMES: Final = {_ENDING: b"ending", _LIVING: b"living"}


@pytest.fixture
def broker(make_broker: BrokerMaker) -> RunningBroker:
    """A broker without a message."""
    return make_broker().start()


class TwoSessions(RawConnection):
    """A connection with two sessions, whose client answers nothing by itself."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.open()
        for channel in _NAMES:
            self.attach(channel)

    def attach(self, channel: int) -> None:
        self.send_control("session.attach", channel, name=_NAMES[channel])
        self.send_control("session.command-point", channel, command_id=0, command_offset=0)
        self.until(channel, "session.attached")

    def send_command(self, channel: int, name: str, **values: Any) -> None:
        self.send_bytes(b"".join(encode_command_frames(channel, encode_command(name, **values), None, b"", 65535)))

    def until(self, channel: int, name: str) -> dict[str, Any]:
        """The fields of the next control or command of that name on that channel."""
        while True:
            frame = self.next_frame()
            decoded = decode_control(frame.payload) if frame.segment == CONTROL else decode_command(frame.payload)
            assert decoded[0].name != "connection.close", decoded[-1]
            if (frame.channel, decoded[0].name) == (channel, name):
                assert frame.flags & LAST_SEGMENT
                assert frame.flags & LAST_FRAME
                return decoded[-1]

    def message_count(self, channel: int, queue: str) -> int:
        """The result of `queue.query`."""
        self.send_command(channel, "queue.query", queue=queue)
        result = decode_result(self.until(channel, "execution.result")["value"])[1]
        return int(result["message_count"])


def _message(channel: int, body: bytes) -> list[bytes]:
    header = encode_struct(DELIVERY_PROPERTIES, {"routing_key": "small"})
    return encode_command_frames(channel, encode_command("message.transfer", destination=""), header, body, 4096)


@pytest.mark.parametrize("before", range(1, 5))
def test_the_rest_of_the_message_follows_detached_and_the_other_session_lives(
    broker: RunningBroker, before: int
) -> None:
    with TwoSessions(broker.port) as client:
        client.send_command(_ENDING, "queue.declare", queue="small", arguments=typed_map({"qpid.max_count": 1}))
        frames = _message(_ENDING, bytes(20_000))
        client.send_bytes(b"".join(frames) * 2 + b"".join(frames[:before]))
        exception = client.until(_ENDING, "execution.exception")
        assert exception["error_code"] == ErrorCode.RESOURCE_LIMIT_EXCEEDED
        client.until(_ENDING, "session.detach")
        client.send_control("session.detached", _ENDING, name=_NAMES[_ENDING], code=0)
        client.send_bytes(b"".join(frames[before:] + frames))
        assert client.message_count(_LIVING, "small") == 1
        client.attach(_ENDING)
        client.send_command(_ENDING, "queue.purge", queue="small")
        client.send_bytes(b"".join(frames))
        assert client.message_count(_ENDING, "small") == 1
