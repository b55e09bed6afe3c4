"""What is stored before the content of messages with equal headers: encoded once, and its checksum computed once."""

from __future__ import annotations

from qstore.formats.checksum import extend_crc32c


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
        self.crc = extend_crc32c(0, encoded)
