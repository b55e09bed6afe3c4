"""Decodes the messages of AMQP 0-10 that a store has (`TransferMessage.stored_form`), or that qpidd has stored.

Most messages of a queue begin alike, up to the end of their delivery-properties. What was decoded of the last one's
beginning is used again for the next, and caches have the parts of others.

Source: formats/broker_records/README.md, 1.1 and 1.2.
"""

from __future__ import annotations

import struct
import sys
from functools import lru_cache
from typing import Final

from qstore.broker.model.message import Handling
from qstore.broker.protocols.amqp_0_10.transfer import (
    DeliveryProperties,
    TransferMessage,
    read_delivery_properties,
    split_header,
    without_times,
)
from qstore.broker.protocols.shared_head import SharedHead
from qstore.formats.amqp_0_10.commands import decode_struct
from qstore.formats.amqp_0_10.errors import Amqp010Error
from qstore.formats.amqp_0_10.frames import FRAME, LAST_SEGMENT
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES
from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, frames_problem, header_size

_CACHED: Final = 2048
_MAX_CACHED_BYTES: Final = 512  # of what is cached: longer ones are rare
_u32: Final = struct.Struct(">I").unpack_from


class _Beginning:
    """How stored messages begin that differ only after their delivery-properties, and never expire.

    Attributes:
        encoded: their bytes up to there: header size, frame headers, delivery-properties.
        header_at, header_end: where the structs of their headers begin and end.
        may_lack_body: whether they have no body segment if nothing follows the header.
        exchange, properties: as of each of them.
        header: the structs of the last one.
        head: of those with the same header as the last one.
    """

    __slots__ = ("encoded", "exchange", "head", "header", "header_at", "header_end", "may_lack_body", "properties")

    def __init__(
        self,
        encoded: bytes,
        header_at: int,
        header_end: int,
        exchange: str,
        properties: DeliveryProperties,
        header: bytes,
        *,
        may_lack_body: bool,
    ) -> None:
        self.encoded, self.header_at, self.header_end, self.header = encoded, header_at, header_end, header
        self.exchange, self.properties, self.may_lack_body = exchange, properties, may_lack_body
        self.head: SharedHead | None = None if may_lack_body else SharedHead()


class _Recent:
    """The beginning of the message that was decoded last. One queue's messages are decoded one after the other."""

    __slots__ = ("beginning",)

    def __init__(self) -> None:
        nothing = DeliveryProperties(b"", "", False, Handling(), None, 0)
        self.beginning = _Beginning(b"", 0, sys.maxsize, "", nothing, b"", may_lack_body=False)


_RECENT: Final = _Recent()


def restore_transfer(data: bytes) -> TransferMessage:
    """Decode a stored 0-10 message, written by this broker or by qpidd.

    Raises:
        BrokerRecordError: it cannot be decoded.
    """
    return restore_alike(data, 0, len(data)) or _restore_any(data)


def restore_alike(data: bytes, begin: int, end: int) -> TransferMessage | None:
    """Decode a stored 0-10 message that begins as the last one did; None if it does not, or may be damaged.

    Args:
        data: it is in there.
        begin: where it begins.
        end: where it ends.
    """
    known = _RECENT.beginning
    header_end = begin + known.header_end
    if header_end > end or not data.startswith(known.encoded, begin):
        return None
    header, at = known.header, begin + len(known.encoded)
    if at != header_end and not data.startswith(header, begin + known.header_at):
        if at + 8 > header_end or at + 4 + _u32(data, at)[0] != header_end:
            return None
        known.header = header = data[begin + known.header_at : header_end]
        if known.head is not None:
            known.head = SharedHead()
    body = None if known.may_lack_body and header_end == end else data[header_end:end]
    return TransferMessage(header, body, known.exchange, known.properties, 0.0, known.head)


def _restore_any(data: bytes) -> TransferMessage:
    size = len(data)
    header_end = HEADER_SIZE_BYTES + header_size(data)
    if header_end > size:
        raise BrokerRecordError(f"a header of {header_end - HEADER_SIZE_BYTES} bytes in {size} bytes of data", 0)
    header_at = min(HEADER_SIZE_BYTES + int.from_bytes(data[6:8], "big") + FRAME.size, header_end)
    flags = (_flags_alike if header_at <= _MAX_CACHED_BYTES else _frame_flags)(data[:header_at])
    try:
        given, others = split_header(data[header_at:header_end])
        given, times = without_times(given)
        exchange, properties = (_properties_alike if len(given) <= _MAX_CACHED_BYTES else _stored_properties)(given)
    except Amqp010Error as error:
        raise BrokerRecordError(error.what, 0) from error
    may_lack_body = flags & LAST_SEGMENT != 0
    body = None if may_lack_body and header_end == size else data[header_end:]
    encoded, expiration = properties.encoded, properties.expiration
    if times is not None:
        encoded, expiration = times.put_into(encoded), times.expiration
    elif not expiration and encoded + others == data[header_at:header_end]:
        header = encoded + others
        _RECENT.beginning = _Beginning(
            data[: header_at + len(encoded)],
            header_at,
            header_end,
            exchange,
            properties,
            header,
            may_lack_body=may_lack_body,
        )
    return TransferMessage(encoded + others, body, exchange, properties, float(expiration))


def _frame_flags(prefix: bytes) -> int:
    """The flags of the last frame before the content of a stored message, given all bytes before its payload.

    Raises:
        BrokerRecordError: they are not the frames of a 0-10 message.
    """
    header = header_size(prefix)
    problem = frames_problem(prefix, HEADER_SIZE_BYTES + header)
    if problem is not None:
        raise BrokerRecordError(problem, 0)
    if prefix[HEADER_SIZE_BYTES : HEADER_SIZE_BYTES + 4] == b"\0\0\0\0":
        raise BrokerRecordError("an AMQP 1.0 message", 0)
    has_header_frame = int.from_bytes(prefix[6:8], "big") < header
    return prefix[-FRAME.size if has_header_frame else HEADER_SIZE_BYTES]


def _stored_properties(given: bytes) -> tuple[str, DeliveryProperties]:
    """The exchange and the delivery-properties of a stored message. Raises Amqp010Error."""
    values = decode_struct(DELIVERY_PROPERTIES, given, 0, len(given)) if given else {}
    exchange = values.get("exchange") or ""
    return exchange, read_delivery_properties(given, exchange)


# Most messages of a queue begin alike.
_flags_alike: Final = lru_cache(maxsize=_CACHED)(_frame_flags)
_properties_alike: Final = lru_cache(maxsize=_CACHED)(_stored_properties)
