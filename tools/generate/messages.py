"""The messages of a fleet: each is determined by its queue and its place in the order of publishing, from 0.

    message id          32 bits of the store's seed, 32 of the queue's number (some of them the version of a UUID), and
                        the place
    headers             `seq`, the place; `producer`, the queue's name
    timestamp           one second later for every `_RATE` messages
    priority            0 to 9; mostly 4
    body                printable text, a piece of one block that all messages of the fleet share

A message's header is encoded once for each priority of a queue; the variable fields are packed into it.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from string import ascii_letters, digits
from typing import Final
from uuid import UUID

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.values import typed_map
from qstore.tools.generate.seeds import seeded

#: The start time of every fleet, in seconds since 1970: a fleet must not depend on the time of its creation.
BEGINNING: Final = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
_RATE: Final = 100  # messages of a queue per second
_BLOCK: Final = 1 << 20  # bytes of text
_STRIDE: Final = 7919  # bytes between the bodies of consecutive messages: a prime
_ALPHABET: Final = (ascii_letters + digits + "  ").encode()
_PRIORITIES: Final = 10
_USUAL_PRIORITY: Final = 4
_VERSION: Final = 0x4000  # of a UUID, among its first 64 bits
_VARIANT: Final = 0x8 << 60
# Placeholders for variable fields while a header is encoded: no other field has such a value.
_CONTENT_LENGTH: Final = 0x1122334455667701
_MESSAGE_ID: Final = UUID(int=0xA1B2C3D4_E5F60718_293A4B5C_6D7E8F90)
_SEQUENCE: Final = 0x1122334455667703
_TIMESTAMP: Final = 0x1122334455667704


def body_text(seed: int) -> bytes:
    """The block of text from which all bodies of a fleet are cut."""
    source = seeded(seed, "text")
    table = bytes(_ALPHABET[value % len(_ALPHABET)] for value in range(256))
    return source.randbytes(_BLOCK).translate(table)


def queue_prefix(store_seed: int, queue: int) -> int:
    """The first 64 bits of the message ids of a queue."""
    return store_seed << 32 | (queue >> 12 & 0xFFFF) << 16 | _VERSION | queue & 0xFFF


def message_id(prefix: int, place: int) -> UUID:
    """The message id of the message at `place` of the queue with that prefix."""
    return UUID(int=prefix << 64 | _VARIANT | place)


def header_size(queue: str, exchange: str, key: str) -> int:
    """Bytes stored in front of the body of each message of a queue."""
    return _packer(queue, exchange, key, _USUAL_PRIORITY)[0].size


class MessageFactory:
    """Creates the messages of one queue.

    Args:
        queue: the queue's name.
        exchange: to which they were sent.
        key: their routing key.
        prefix: `queue_prefix` of the queue.
        text: `body_text` of the fleet.
    """

    def __init__(self, queue: str, exchange: str, key: str, prefix: int, text: bytes) -> None:
        self._prefix, self._text = prefix, text
        self._packers = [_packer(queue, exchange, key, priority) for priority in range(_PRIORITIES)]

    def message(self, place: int, size: int) -> bytes:
        """The data of the enqueue record of the message at `place`, with a body of `size` bytes."""
        # One message in sixteen has another priority.
        priority = _USUAL_PRIORITY if place & 15 else (place >> 4) % _PRIORITIES
        packer, (first, second, third, fourth, last) = self._packers[priority]
        head = packer.pack(
            first, size, second, self._prefix, _VARIANT | place, third, place, fourth, BEGINNING + place // _RATE, last
        )
        return head + self.body(place, size)

    def body(self, place: int, size: int) -> bytes:
        """The body of the message at `place`."""
        text = self._text
        at = place * _STRIDE % _BLOCK
        if at + size <= _BLOCK:
            return text[at : at + size]
        return (text[at:] + text * (size // _BLOCK + 1))[:size]


def _packer(queue: str, exchange: str, key: str, priority: int) -> tuple[struct.Struct, tuple[bytes, ...]]:
    """Packs a header: the struct, and the constant pieces between the fields, in the order of `message`."""
    whole = encode_message(
        b"",
        destination=exchange,
        delivery_properties={
            "priority": priority,
            "delivery_mode": 2,
            "timestamp": _TIMESTAMP,
            "exchange": exchange,
            "routing_key": key,
        },
        message_properties={
            "content_length": _CONTENT_LENGTH,
            "message_id": _MESSAGE_ID,
            "content_type": "text/plain",
            "application_headers": typed_map({"seq": _SEQUENCE, "producer": queue}),
        },
        last_segment=False,
    )
    pieces, at = [], 0
    for field in (_CONTENT_LENGTH.to_bytes(8), _MESSAGE_ID.bytes, _SEQUENCE.to_bytes(8), _TIMESTAMP.to_bytes(8)):
        found = whole.index(field, at)
        pieces.append(whole[at:found])
        at = found + len(field)
    pieces.append(whole[at:])
    sizes = [len(piece) for piece in pieces]
    form = ">{}sQ{}sQQ{}sQ{}sQ{}s".format(*sizes)
    return struct.Struct(form), tuple(pieces)
