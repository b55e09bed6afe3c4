"""Errors of a client, by what they close: its channel, or its connection."""

from __future__ import annotations

from typing import Final

from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.methods import encode_method

_MAX_TEXT: Final = 255


class ProtocolError(Exception):
    """An error that the client is told with a reply code.

    Args:
        code: the reply code.
        text: the reason.
    """

    def __init__(self, code: ReplyCode, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def reply_text(self) -> str:
        """The text that is sent: the code's name first, as RabbitMQ's clients expect."""
        return f"{self.code.name} - {self}"


class SoftError(ProtocolError):
    """A soft error: the channel is closed."""


class HardError(ProtocolError):
    """A hard error: the connection is closed."""


def encode_close(method: str, code: int, text: str, payload: bytes) -> bytes:
    """channel.close or connection.close, with class and method of the payload that has caused it."""
    short = text.encode("utf-8", "replace")[:_MAX_TEXT].decode("utf-8", "ignore")
    class_id, method_id = int.from_bytes(payload[:2]), int.from_bytes(payload[2:4])
    return encode_method(method, reply_code=code, reply_text=short, class_id=class_id, method_id=method_id)
