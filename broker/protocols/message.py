"""A message in the encoding of its protocol: kept, stored and delivered as received; and its conversion to others.

The stored form has the same parts in every protocol: a prefix that the protocol defines, the header, and the body.
Messages of a publisher with equal headers, exchanges and routing keys share the part before their bodies: it is encoded
once, and its checksum computed once.

A conversion goes through the neutral properties (`model.message`). Those without a counterpart become headers:

    x-amqp-message-id    a message id
    qpid.subject         a subject
    content type         amqp/map and amqp/list for a typed value, in the encoding of AMQP 0-10; text/plain for text
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from qstore.broker.model.errors import InternalError
from qstore.broker.model.message import Content, LargeContent, Message, ReplyAddress, StoredForm
from qstore.formats.amqp_0_10.maps import encode_value
from qstore.formats.amqp_0_10.types import wire_type_of
from qstore.formats.kernels import extend_crc32c
from qstore.formats.plain import plain_typed_value
from qstore.formats.values import Family, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.virtual_host import VirtualHost

MESSAGE_ID_HEADER: Final = "x-amqp-message-id"
SUBJECT_HEADER: Final = "qpid.subject"
CONTENT_TYPES: Final = {Family.MAP: "amqp/map", Family.LIST: "amqp/list"}
TEXT: Final = "text/plain"

_EXTEND_CRC: Final = extend_crc32c  # compiled, this is a C variable; an imported name would be a dictionary lookup

MessageT = TypeVar("MessageT", bound=Message)

MAX_SHORT: Final = 0xFF
"""Bytes of a short text of AMQP 0-10 and 0-9-1."""


def long_header(name: str) -> str:
    """The header for a property whose text is too long for it."""
    return f"x-amqp-{name.replace('_', '-')}"


def is_long(text: str) -> bool:
    """Whether a text is too long for a property."""
    return len(text.encode("utf-8", "surrogateescape")) > MAX_SHORT


def reply_in(host: VirtualHost, reply: ReplyAddress) -> ReplyAddress:
    """The exchange and the key that a reply address means in a virtual host.

    AMQP 1.0 and 0-9-1 have one text for both, NAME or NAME/KEY: a queue or an exchange may have slashes in its name. An
    address of nothing that exists stays as it is.
    """
    text = "/".join(filter(None, reply))
    if text in host.queues or text in host.replies.queues:
        return ReplyAddress("", text)
    if text in host.exchanges:
        return ReplyAddress(text, "")
    name, _, key = text.partition("/")
    return ReplyAddress(name, key) if not reply.exchange and name in host.exchanges else reply


class SharedHead:
    """The bytes stored before the bodies of messages with equal headers, exchanges and routing keys.

    Attributes:
        encoded: the bytes; empty until the first of these messages is stored.
        crc: their checksum.
    """

    __slots__ = ("crc", "encoded")

    def __init__(self) -> None:
        self.encoded = b""
        self.crc = 0


class NativeMessage(Message):
    """A message in the encoding of its protocol.

    Attributes:
        header: its header in the protocol's encoding.
        head: shared with other messages that have the same header and routing, and do not expire; None for none.
    """

    __slots__ = ("_crc", "head", "header")

    header: bytes
    head: SharedHead | None
    _crc: int  # of the stored form; negative if it is not known yet

    @property
    def header_bytes(self) -> bytes:
        """As `Message.header_bytes`."""
        return self.header

    def patch(self, at: int, data: bytes) -> None:
        """As `Message.patch`."""
        self.header = self.header[:at] + data + self.header[at + len(data) :]

    @abstractmethod
    def stored_begin(self) -> bytes:
        """The bytes stored before its header."""

    def stored_form(self) -> StoredForm:
        """The bytes that a journal stores."""
        body, head = self.body, self.head
        if head is not None and isinstance(body, bytes) and len(head.encoded):
            encoded = head.encoded
            if self._crc < 0:
                self._crc = _EXTEND_CRC(head.crc, body)
            return (encoded, body), len(encoded) + len(body), self._crc
        parts, size = self.stored_parts()
        if self._crc < 0:
            crc = 0
            for part in parts:
                crc = _EXTEND_CRC(crc, part)
            self._crc = crc
        return parts, size, self._crc

    def stored_head(self, body_size: int) -> bytes:  # noqa: ARG002 – a field of the header has it
        """As `Message.stored_head`."""
        head = self.head
        if head is None:
            head = self.head = SharedHead()
        self._encode(head)
        return head.encoded

    def head_in(self, data: bytes, begin: int, end: int) -> bytes | None:
        """As `Message.head_in`."""
        if self.expires_at or not self.body or isinstance(self.body, LargeContent):
            return None
        head = data[begin : end - len(self.body)]
        return head if head.endswith(self.header) else None

    def _encode(self, head: SharedHead) -> None:
        if not head.encoded:
            head.encoded = self.stored_begin() + self.header
            head.crc = _EXTEND_CRC(0, head.encoded)

    def stored_parts(self) -> tuple[Sequence[bytes], int]:
        """As `Message.stored_parts`."""
        header, body, head = self.header, self.body, self.head
        if head is not None:
            self._encode(head)
            if not isinstance(body, LargeContent):
                return (head.encoded, body), len(head.encoded) + len(body)
        begin = self.stored_begin()
        pieces = body.pieces if isinstance(body, LargeContent) else (body,)
        return (begin, header, *pieces), len(begin) + len(header) + len(body)


def native_of(
    message: Message, native: type[MessageT], convert: Callable[[Message], MessageT | None]
) -> MessageT | None:
    """A message that is on a queue in the form of a protocol, read back if it is out of memory.

    None if it cannot be read, or the protocol cannot represent it.
    """
    try:
        message = message.whole()
    except InternalError:
        return None
    return message if isinstance(message, native) else message.converted(convert)


def encoded_content(content: Content | TypedValue, content_type: str | None) -> tuple[str | None, Content]:
    """Content type and body of a content, where a typed value is in the encoding of AMQP 0-10. Raises Amqp010Error."""
    if not isinstance(content, TypedValue):
        return content_type, content
    family, value = content.type.family, content.value
    if family in CONTENT_TYPES:
        return CONTENT_TYPES[family], encode_value(wire_type_of(content.type), value)
    if family is Family.NOTHING:
        return content_type, b""
    if isinstance(value, bytes):
        return content_type, value
    text = value if isinstance(value, str) else str(plain_typed_value(content))
    return content_type or TEXT, text.encode("utf-8", "surrogateescape")
