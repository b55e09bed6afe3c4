"""CRC-32C (Castagnoli), twice: a fast implementation and an independent one.

Every record of the journal (version 2) is checked with it. `google-crc32c` is the fast one, a C extension that uses the
processor's instruction; `crcmod`, by other authors, is the second one, with which tests compare the first, and which is
used if the first's extension cannot be loaded.

    implementation             1,100 bytes    available
    -------------------------  -------------  ----------------------------------------------------------------
    google-crc32c, extension   0.1 µs         wheels for Linux on x86-64 and arm64
    crcmod, extension          2.5 µs         if pip finds a C compiler
    crcmod, plain Python       75 µs          everywhere else: pip installs it without its extension

Check value, from the catalogue of CRC algorithms: CRC-32C of b"123456789" is 0xE3069283.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import cast

import crcmod.predefined

# A function (data, crc so far) -> crc. crcmod's own "crc so far" convention is the plain running value.
_crcmod_crc32c = cast(Callable[[bytes, int], int], crcmod.predefined.mkPredefinedCrcFun("crc-32c"))


def independent_crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C of `data`, continued from `crc`, by crcmod: slow, but independent."""
    return _crcmod_crc32c(data, crc)


def _extend_independent(crc: int, data: bytes) -> int:
    return _crcmod_crc32c(data, crc)


def _fast_crc32c() -> Callable[[int, bytes], int]:
    with warnings.catch_warnings():
        # Without its extension google-crc32c warns and uses a Python loop, slower than crcmod's. It is not used then,
        # so the warning would only confuse users of a command.
        warnings.filterwarnings("ignore", "As the c extension", RuntimeWarning, r"google_crc32c\Z")
        try:
            import google_crc32c
        except ImportError:
            return _extend_independent
    if google_crc32c.implementation != "c":
        return _extend_independent
    return cast(Callable[[int, bytes], int], google_crc32c.extend)


#: `extend_crc32c(crc, data)` is the CRC-32C of the bytes covered by `crc`, then `data` (bytes). Start from 0.
extend_crc32c: Callable[[int, bytes], int] = _fast_crc32c()
