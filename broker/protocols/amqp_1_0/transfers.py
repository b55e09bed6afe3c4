"""The frames of transfers, for both ends of a connection, and serial numbers.

The performative of a transfer differs only in delivery id, tag and `settled`, which have a fixed size; the rest is
encoded once for a link.

Source: AMQP 1.0, part "transport", section 2.6.14 and 2.8.10 (serial numbers).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from qstore.broker.model.message import Buffer, Content
from qstore.broker.protocols.output import parts_of
from qstore.formats.amqp_1_0.composites import BY_NAME
from qstore.formats.amqp_1_0.frames import AMQP, FRAME
from qstore.formats.amqp_1_0.values import Value, encode_value

MASK: Final = 0xFFFFFFFF
TAIL: Final = struct.Struct(">BIBBQBB")  # delivery-id, delivery-tag, message-format, settled
TAG_BYTES: Final = 8
UINT, VBIN8, ZERO, TRUE, FALSE = 0x70, 0xA0, 0x43, 0x41, 0x42
MORE: Final = bytes((TRUE,))
DOFF: Final = FRAME.size // 4

_HALF: Final = 1 << 31
_TRANSFER: Final = BY_NAME["transfer"].head


def difference(later: int, earlier: int) -> int:
    """How many steps a serial number of 32 bits is after another one; negative if it is before it."""
    steps = (later - earlier) & MASK
    return steps - (1 << 32) if steps >= _HALF else steps


ID_AT: Final = 1  # in `TAIL`
TAG_AT: Final = 7


def transfer_heads(handle: int) -> tuple[bytes, bytes]:
    """The bytes before `TAIL` of the transfers on a link: of the last frame of a message, and of those with more."""
    number = encode_value(Value("uint", handle))
    size = 1 + len(number) + TAIL.size
    return (
        _TRANSFER + bytes((0xC0, size, 5)) + number,
        _TRANSFER + bytes((0xC0, size + 1, 6)) + number,
    )


def transfer_frames(
    channel: int, max_frame: int, last: bytes, with_more: bytes, sections: bytes, body: Content
) -> Iterator[tuple[Buffer, ...]]:
    """The frames of a message that does not fit one.

    Args:
        channel: their channel.
        max_frame: bytes of a frame at most.
        last: the performative of the last frame.
        with_more: that of the others.
        sections: the first sections of the message.
        body: the others.
    """
    most = max_frame - FRAME.size - len(with_more)
    parts = [*parts_of(sections, most), *parts_of(body, most)]
    for number, part in enumerate(parts, 1):
        performative = with_more if number < len(parts) else last
        yield FRAME.pack(FRAME.size + len(performative) + len(part), DOFF, AMQP, channel), performative, part
