"""CRC-32C (Castagnoli), twice: a fast one and an independent one.

The journal (version 2) checks every record with it. `google-crc32c` brings the hot one, a C extension that uses the
processor's instruction; `crcmod`, written by other people, is the second, which tests hold the
first against, and which takes over where the first's extension cannot be loaded.

    implementation             1,100 bytes    where
    -------------------------  -------------  ----------------------------------------------------------------
    google-crc32c, extension   0.1 µs         wheels for Linux on x86-64 and arm64
    crcmod, extension          2.5 µs         built where pip finds a C compiler
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
    """CRC-32C of `data`, carried on from `crc`, by crcmod: slow, and written by other people."""
    return _crcmod_crc32c(data, crc)


def _extend_independent(crc: int, data: bytes) -> int:
    return _crcmod_crc32c(data, crc)


def _fast_crc32c() -> Callable[[int, bytes], int]:
    with warnings.catch_warnings():
        # Without its extension google-crc32c warns and brings a Python loop, slower than crcmod's: not used, so the
        # warning would only puzzle whoever runs a command.
        warnings.filterwarnings("ignore", "As the c extension", RuntimeWarning, r"google_crc32c\Z")
        try:
            import google_crc32c
        except ImportError:
            return _extend_independent
    if google_crc32c.implementation != "c":
        return _extend_independent
    return cast(Callable[[int, bytes], int], google_crc32c.extend)


#: `extend_crc32c(crc, data)`: the CRC-32C of what `crc` covers followed by `data`. Start from 0. `data` is bytes.
extend_crc32c: Callable[[int, bytes], int] = _fast_crc32c()
