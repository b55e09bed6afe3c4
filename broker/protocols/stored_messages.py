"""Decodes stored messages; each stored form has its own decoder.

    form                                                     decoder
    -------------------------------------------------------  ------------------------------------------------
    AMQP 0-10: the frames of a transfer, then the content    `amqp_0_10.message.restore_transfer`
    AMQP 0-9-1: exchange, routing key, content header, body  `amqp_0_9_1.message.restore_basic`
    AMQP 1.0: sections, of this broker or of qpidd           `amqp_1_0.message.restore_sections`

Source: formats/broker_records/README.md, 1.
"""

from __future__ import annotations

from qstore.broker.model.message import Message
from qstore.broker.protocols.amqp_0_9_1.message import restore_basic, restored
from qstore.broker.protocols.amqp_0_10.message import restore_alike, restore_transfer
from qstore.broker.protocols.amqp_1_0.message import restore_sections
from qstore.formats.broker_records.amqp_0_9_1_messages import MARK as BASIC_MARK
from qstore.formats.broker_records.amqp_1_0_messages import MARK as SECTIONS_MARK
from qstore.formats.broker_records.amqp_1_0_messages import MARK_BYTES
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES

_SECTIONS_MARKS = (bytes(MARK_BYTES), SECTIONS_MARK)


def restore_message(data: bytes, begin: int = 0, end: int = -1, /) -> Message:
    """Decode a stored message, written by this broker or by qpidd, of any protocol.

    Args:
        data: bytes that contain it.
        begin: its first byte.
        end: its end; -1 for the end of `data`.

    Raises:
        BrokerRecordError: it cannot be decoded.
    """
    message = restore_alike(data, begin, len(data) if end < 0 else end)
    if message is not None:
        return message
    if begin or end >= 0:
        data = data[begin:end]
    if data.startswith(BASIC_MARK, HEADER_SIZE_BYTES):
        return restored(restore_basic(data))
    if data.startswith(_SECTIONS_MARKS, HEADER_SIZE_BYTES):
        return restore_sections(data)
    return restore_transfer(data)
