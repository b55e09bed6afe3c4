"""The content and the application properties of a stored AMQP 1.0 message, as neutral values.

    body sections            content
    -----------------------  -----------------------------------------------------------------
    data, any number         their bytes, concatenated
    amqp-sequence, any       one list of all their items
    amqp-value               the value
    none                     no bytes

Source: the AMQP 1.0 specification as XML, part "messaging", section 3.2.
"""

from __future__ import annotations

from typing import Final

from qstore.formats.amqp_1_0.errors import Amqp10Error
from qstore.formats.amqp_1_0.neutral import neutral_map, neutral_value
from qstore.formats.amqp_1_0.values import Value, read_constructor, read_value
from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.broker_records.message_header import Amqp10Message, Section
from qstore.formats.values import EMPTY_MAP, LIST, TypedMap, TypedValue

_APPLICATION_PROPERTIES, _DATA, _SEQUENCE, _VALUE = 0x74, 0x75, 0x76, 0x77
_BODY: Final = frozenset((_DATA, _SEQUENCE, _VALUE))


def content_of(header: bytes, message: Amqp10Message) -> bytes | TypedValue:
    """The content of a message: bytes, or a value.

    Args:
        header: the stored header that `decode_sections` has read.
        message: its result.

    Raises:
        BrokerRecordError: the body sections are of kinds that cannot be combined, or cannot be read.
    """
    sections = [each for each in message.sections if each.code in _BODY]
    codes = {each.code for each in sections}
    if codes <= {_DATA}:
        return b"".join(header[offset : offset + size] for offset, size in message.body_sections)
    values = [neutral_value(_value_of(header, each)) for each in sections]
    if codes == {_SEQUENCE} and all(each.type is LIST for each in values):
        return TypedValue(LIST, tuple(item for each in values for item in each.value))
    if codes == {_VALUE} and len(values) == 1:
        return values[0]
    names = ", ".join(each.name for each in sections)
    raise BrokerRecordError(f"body sections that cannot be combined: {names}", sections[0].offset)


def application_properties(header: bytes, message: Amqp10Message) -> TypedMap:
    """The application properties of a message, with their types. `decode_sections` has checked that they are a map."""
    for section in message.sections:
        if section.code == _APPLICATION_PROPERTIES:
            return neutral_map(_value_of(header, section).value)
    return EMPTY_MAP


def _value_of(header: bytes, section: Section) -> Value:
    """The value of a section, without its descriptor."""
    end = section.offset + section.size
    try:
        _, _, begin = read_constructor(header, section.offset, end)
        return read_value(header, begin - 1, end)[0]
    except Amqp10Error as error:
        raise BrokerRecordError(error.what, error.offset) from error
