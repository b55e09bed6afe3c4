"""What is stored before the content of messages with equal headers: encoded once, and its checksum computed once."""

from __future__ import annotations

from typing import Final

from qstore.broker.model.message import StoredForm
from qstore.formats.checksum import extend_crc32c

_EXTEND_CRC: Final = extend_crc32c  # compiled code reaches it faster here


class SharedHead:
    """What is stored before the content of messages with equal headers, exchanges and routing keys.

    Attributes:
        encoded: the bytes; empty until the first of these messages is stored.
        crc: their checksum.
    """

    __slots__ = ("crc", "encoded")

    def __init__(self) -> None:
        self.encoded = b""
        self.crc = 0

    def encode(self, encoded: bytes) -> None:
        """The first of these messages is stored."""
        self.encoded = encoded
        self.crc = _EXTEND_CRC(0, encoded)

    def stored_form(self, body: bytes, crc: int) -> StoredForm:
        """A message's form in the store; `crc` is the checksum of all, or negative if it is not known yet."""
        encoded = self.encoded
        if crc < 0:
            crc = _EXTEND_CRC(self.crc, body)
        return (encoded, body), len(encoded) + len(body), crc
