"""The log of a connection's frames, one line each, for all protocols: `--trace`, or `--log-enable trace+:Protocol`.

    RECV 127.0.0.1:41234, channel 1: message.transfer, 31 bytes
    SENT 127.0.0.1:41234, channel 1: session.completed, 14 bytes

A line has the kind and size of a frame, and never its content, which may include passwords and messages. Frames are
decoded from the raw input and output, independently of the broker's own processing. Whether a connection is traced is
decided once, when it is created; others have no overhead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from qstore.broker.log.logs import TRACE, log_of
from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple

_LOG: Final = log_of("Protocol")


class TracedFrame(NamedTuple):
    """The logged fields of a frame.

    Attributes:
        size: bytes of the whole frame.
        channel: its channel.
        kind: the kind of frame, or its command.
        payload_size: bytes of its payload.
    """

    size: int
    channel: int
    kind: str
    payload_size: int


DecodeFrame: TypeAlias = Callable[[bytes, int], TracedFrame | None]
"""Decodes the frame at a position; None if it is incomplete. Raises FormatError: it is not valid."""


def is_tracing() -> bool:
    """Whether the log level enables frame tracing."""
    return _LOG.is_on(TRACE)


class FrameLog:
    """Logs the frames of one direction, until an invalid one.

    Args:
        begin: prefix of each line.
        decode: decodes the protocol's frames.
        header: the protocol header that comes first; empty for none.
    """

    __slots__ = ("_begin", "_decode", "_header", "_is_lost", "_kept")

    def __init__(self, begin: str, decode: DecodeFrame, header: bytes) -> None:
        self._begin, self._decode = begin, decode
        self._header = header  # until it has passed
        self._kept = b""  # an incomplete frame
        self._is_lost = False

    def take(self, data: bytes) -> None:
        """Log the frames in these bytes."""
        if self._is_lost:
            return
        data, at = self._kept + data, 0
        if self._header:
            at = self._take_header(data)
        try:
            while not self._header and (frame := self._decode(data, at)) is not None:
                at += frame.size
                _LOG.trace("%s, channel %d: %s, %d bytes", self._begin, frame.channel, frame.kind, frame.payload_size)
        except FormatError as error:
            self._is_lost = True
            _LOG.trace("%s: not a valid frame, tracing stops: %s", self._begin, error)
        self._kept = b"" if self._is_lost else data[at:]

    def _take_header(self, data: bytes) -> int:
        header = data[: len(self._header)]
        if len(header) < len(self._header):
            return 0
        _LOG.trace("%s: protocol header %s", self._begin, header.hex(" "))
        self._is_lost = header != self._header
        if not self._is_lost:
            self._header = b""
        return len(header)
