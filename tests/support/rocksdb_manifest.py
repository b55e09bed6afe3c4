"""The framing of RocksDB's manifest, as far as tests that cut one need it."""

from __future__ import annotations

from collections.abc import Iterator


def record_ends(manifest: bytes) -> Iterator[int]:
    """Where the records of a manifest that fits one block of 32 KiB end: each is u32 CRC, u16 length, u8 type, data."""
    at = 0
    while at < len(manifest):
        at += 7 + int.from_bytes(manifest[at + 4 : at + 6], "little")
        yield at
