"""CRC-32C (Castagnoli), twice: a fast one and an independent one.

The journal (version 2) checks every record with it. `google-crc32c` brings the hot one, a C extension that
uses the processor's instruction; `crcmod` is the second implementation, which tests and paranoid checks hold
the first against, and which takes over where the first cannot be imported.

Check value, from the catalogue of CRC algorithms: CRC-32C of b"123456789" is 0xE3069283.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import crcmod.predefined

# A function (data, crc so far) -> crc. crcmod's own "crc so far" convention is the plain running value.
_crcmod_crc32c = cast(Callable[[bytes, int], int], crcmod.predefined.mkPredefinedCrcFun("crc-32c"))


def independent_crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C of `data`, carried on from `crc`, by crcmod: slow, and written by other people."""
    return _crcmod_crc32c(data, crc)


def _fast_crc32c() -> Callable[[int, bytes], int]:
    try:
        import google_crc32c
    except ImportError:
        return lambda crc, data: _crcmod_crc32c(data, crc)
    if google_crc32c.implementation != "c":
        return lambda crc, data: _crcmod_crc32c(data, crc)
    return cast(Callable[[int, bytes], int], google_crc32c.extend)


#: `extend_crc32c(crc, data)`: the CRC-32C of what `crc` covers followed by `data`. Start from 0. `data` is bytes.
extend_crc32c: Callable[[int, bytes], int] = _fast_crc32c()
