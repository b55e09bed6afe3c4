"""A message with further routing keys, in its headers CC and BCC (`model/sender_keys`).

Consumers get its content header without BCC. It is stored with BCC, so that a dead letter is routed by these keys after
a restart, too. Its size is that of what is stored. The keys are decoded when they are needed, because they take many
times the memory of the header.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.message import Message, StoredForm
from qstore.broker.model.sender_keys import BCC, CC, selected_keys
from qstore.broker.protocols.amqp_0_9_1.message import BasicMessage
from qstore.formats.amqp_0_9_1.errors import Amqp091Error
from qstore.formats.amqp_0_9_1.properties import decode_header, encode_header
from qstore.formats.values import TypedMap, TypedValue


class CopiedMessage(BasicMessage):
    """A message with further routing keys.

    Args:
        whole: the message with all its headers.
        header: its content header without BCC.
    """

    __slots__ = ("_whole",)

    def __init__(self, whole: BasicMessage, header: bytes) -> None:
        super().__init__(
            header, whole.body, whole.exchange, whole.routing_key, whole.routed, whole.is_persistent, whole.handling,
            whole.expires_at,
        )  # fmt: skip
        self._whole, self.size = whole, whole.size

    def under_further_keys(self) -> Sequence[Message]:
        """As `Message.under_further_keys`."""
        return [
            BasicMessage(
                self.header, self.body, self.exchange, key, self.routed, self.is_persistent, self.handling,
                self.expires_at,
            )
            for key in self.keys
        ]  # fmt: skip

    @property
    def likeness(self) -> Hashable:
        """As `Message.likeness`: it is like no other, because its header is not all."""
        return None

    @property
    def keys(self) -> tuple[str, ...]:
        """The further keys."""
        return _keys(self._whole.headers())

    def stored_form(self) -> StoredForm:
        """The bytes that a journal stores."""
        return self._whole.stored_form()

    def stored_parts(self) -> tuple[Sequence[bytes], int]:
        """The same bytes."""
        return self._whole.stored_parts()

    def expiring_at(self, moment: float) -> BasicMessage:
        """As `Message.expiring_at`."""
        return with_keys(self._whole.expiring_at(moment))

    def readdressed(self, exchange: str, routing_key: str, changes: Mapping[str, TypedValue | None]) -> BasicMessage:
        """As `Message.readdressed`."""
        return with_keys(self._whole.readdressed(exchange, routing_key, changes))

    def with_headers(self, changes: Mapping[str, TypedValue | None]) -> BasicMessage:
        """As `Message.with_headers`."""
        return with_keys(self._whole.with_headers(changes))


def with_keys(message: BasicMessage) -> BasicMessage:
    """A message whose headers were not read yet, with the routing keys in them.

    Raises:
        InvalidArgumentError: CC or BCC is no list, or too long.
        Amqp091Error: its content header cannot be decoded.
    """
    if b"CC" not in message.header:
        return message
    size, properties = decode_header(message.header)
    headers = properties.headers
    if headers is None:
        return message
    keys, header = _keys(headers), message.header
    if headers.get(BCC) is not None:
        entries = tuple(entry for entry in headers.entries if entry[0] != BCC)
        header = encode_header(size, properties._replace(headers=TypedMap(entries)))
    elif not keys:
        return message
    return CopiedMessage(message, header)


def _keys(headers: TypedMap) -> tuple[str, ...]:
    return *selected_keys(headers, CC), *selected_keys(headers, BCC)


def restored(message: BasicMessage) -> BasicMessage:
    """As `with_keys`, for a message that was stored; without further keys, if its headers are not valid."""
    try:
        return with_keys(message)
    except (InvalidArgumentError, Amqp091Error):
        return message
