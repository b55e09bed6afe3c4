"""Stored messages as messages of the client, and back: for exports and imports through a running broker.

What cannot be told to a broker is lost on the way in: the exchange to which the message was once published and its
routing key, as it goes to its queue directly; its record id. A message of AMQP 0-9-1 or 1.0 is converted to 0-10.
"""

from __future__ import annotations

import time
from typing import Final

from qstore.broker.client import Message
from qstore.broker.client.message import SUBJECT, TIMESTAMP
from qstore.broker.protocols.amqp_0_10.message import as_transfer
from qstore.broker.protocols.stored_messages import restore_message
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, MESSAGE_PROPERTIES, decode_struct
from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.broker_records.amqp_0_9_1_messages import MARK
from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, frame_message, header_size, header_structs
from qstore.store.importing.intake import ImportedMessage
from qstore.store.journal.enqueue_map import LIVE

_SOON: Final = 0.001  # seconds that a message lives which has expired
_STRUCT_HEAD: Final = 6  # size and code


def client_message(stored: ImportedMessage) -> Message:
    """The message for sending. Raises BrokerRecordError: it cannot be decoded."""
    data = stored.data
    if data[HEADER_SIZE_BYTES : HEADER_SIZE_BYTES + 4] in (bytes(4), MARK):
        converted = as_transfer(restore_message(data))
        if converted is None:
            raise BrokerRecordError("AMQP 0-10 cannot represent this message of AMQP 0-9-1 or 1.0")
        data = b"".join(converted.stored_form()[0])
    end = HEADER_SIZE_BYTES + header_size(data)
    if end > len(data):
        raise BrokerRecordError("the data are shorter than the length of the message header in them", end)
    structs = header_structs(data[HEADER_SIZE_BYTES:end])
    message = Message.received(structs, data[end:], None)
    try:
        _restore(message, structs)
    except Amqp010Error as error:
        raise BrokerRecordError(error.what, error.offset) from error
    message.redelivered = stored.is_redelivered
    return message


def _restore(message: Message, structs: bytes) -> None:
    """Give the message its headers with their types, and the rest of its time."""
    kept = {name: value for name, value in message.properties.items() if name.startswith("x-amqp-0-10.")}
    kept.pop(TIMESTAMP, None)
    offset = 0
    while offset < len(structs):
        end = offset + 4 + int.from_bytes(structs[offset : offset + 4], "big")
        code = int.from_bytes(structs[offset + 4 : offset + _STRUCT_HEAD], "big")
        if code == MESSAGE_PROPERTIES.code:
            table = decode_struct(MESSAGE_PROPERTIES, structs, offset, end)["application_headers"]
            kept |= {} if table is None else {name: typed for name, typed in table.entries if name != SUBJECT}
        elif code == DELIVERY_PROPERTIES.code:
            expiration = decode_struct(DELIVERY_PROPERTIES, structs, offset, end)["expiration"]
            if expiration is not None and message.ttl:
                message.ttl = max(_SOON, expiration - time.time())
        offset = end
    message.properties = kept


def stored_message(queue: str, message: Message) -> ImportedMessage:
    """A received message as a broker stores it. Raises BrokerRecordError."""
    return ImportedMessage(queue, 0, LIVE, b"", bool(message.redelivered), frame_message(message.header, message.body))
