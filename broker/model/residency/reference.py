"""A message whose content is out of memory, on a queue where its entry must stay.

What queues and routing need is kept: size, expiry, routing key and so on. Everything else is read back when it is asked
for, while the event loop waits; the message is not kept in memory for that. `whole` is the message itself. Whoever
routes, converts or delivers a message that was on a queue asks for that first.

A reference whose message cannot be read has no headers and no properties, and no consumer can take it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from qstore.broker.model.errors import InternalError
from qstore.broker.model.message import Message, Properties, StoredForm
from qstore.formats.values import EMPTY_MAP, TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.content import Content

REFERENCE_BYTES: Final = 280
"""Memory of a message that is out, but has its entry: as measured with `sys.getsizeof`, and the store's share."""

_MessageT = TypeVar("_MessageT", bound="Message")


class Reader(Protocol):
    """Reads messages of one queue back."""

    def read(self, key: int, position: int, *, is_stored: bool) -> Message | None:
        """The message with that key, and that position on the queue; None if it cannot be read."""


class Reference(Message):
    """A message that is out of memory.

    Args:
        reader: reads it back.
        key, is_stored: its key, and whether that is of the journal.
        position: its position on the queue.
        size, expires_at, is_persistent: as of any message.

    Attributes:
        key, is_stored, position: as above.
        was_tried: it was to be read back for a consumer, and could not be.
    """

    __slots__ = ("_reader", "is_stored", "key", "position", "was_tried")

    def __init__(
        self,
        reader: Reader,
        key: int,
        position: int,
        *,
        is_stored: bool,
        size: int,
        expires_at: float,
        is_persistent: bool,
    ) -> None:
        self._reader, self.key, self.position, self.is_stored = reader, key, position, is_stored
        self.was_tried = False
        self.size, self.expires_at, self.is_persistent = size, expires_at, is_persistent

    def whole(self) -> Message:
        """The message itself, read back. Raises InternalError: it cannot be read."""
        message = self._read()
        if message is None:
            raise InternalError(f"message {self.position} of its queue cannot be read back from the disk")
        return message

    def _read(self) -> Message | None:
        message = self._reader.read(self.key, self.position, is_stored=self.is_stored)
        if message is not None and self.expires_at:  # what is stored is in whole seconds
            message.expires_at = self.expires_at
        return message

    def stored_form(self) -> StoredForm:
        """The bytes that a journal stores. Raises as `whole`."""
        return self.whole().stored_form()

    def headers(self) -> TypedMap:
        """The application headers; empty if it cannot be read."""
        message = self._read()
        return EMPTY_MAP if message is None else message.headers()

    def properties(self) -> Properties:
        """The properties; none if it cannot be read."""
        message = self._read()
        return Properties() if message is None else message.properties()

    def content(self) -> Content | TypedValue:
        """The content. Raises as `whole`."""
        return self.whole().content()

    def converted(self, convert: Callable[[Message], _MessageT | None]) -> _MessageT | None:
        """As `Message.converted`. Raises as `whole`."""
        return self.whole().converted(convert)

    def expiring_at(self, moment: float) -> Message:
        """As of the message itself. Raises InternalError: it cannot be read."""
        return self.whole().expiring_at(moment)

    def readdressed(self, exchange: str, routing_key: str, changes: Mapping[str, TypedValue | None]) -> Message:
        """As of the message itself. Raises as `whole`, and as `Message.readdressed`."""
        return self.whole().readdressed(exchange, routing_key, changes)

    def with_headers(self, changes: Mapping[str, TypedValue | None]) -> Message:
        """A copy of the message with some headers set. Raises as `whole`, and as `Message.with_headers`."""
        return self.whole().with_headers(changes)
