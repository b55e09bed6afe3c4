"""MD5 continued from an intermediate state (RFC 1321), and HMAC-MD5 from two of them.

CRAM-MD5 needs HMAC-MD5 with the password as its key. The key is the first block that the inner and the outer hash
process, so the state after this block stands for the password (RFC 2195, section 3): a server keeps these states
instead of the password. `hashlib` cannot continue from a state, hence this module. It hashes some hundred bytes at a
login.

Not for anything new: MD5 is broken, and these states are as good as the password for CRAM-MD5.
"""

from __future__ import annotations

import hashlib
import math
import struct
from typing import Final

BLOCK: Final = 64  # bytes
STATE: Final = 16  # bytes
_MASK: Final = 0xFFFF_FFFF
_START: Final = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476)
_SINES: Final = tuple(int(abs(math.sin(step + 1)) * (1 << 32)) for step in range(64))
_SHIFTS: Final = ((7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21))
_State = tuple[int, int, int, int]


def _compress(state: _State, block: bytes) -> _State:
    """The state after one more block."""
    words = struct.unpack("<16I", block)
    a, b, c, d = state
    for step in range(64):
        turn = step // 16
        if turn == 0:
            mixed, word = (b & c) | (~b & d), step
        elif turn == 1:
            mixed, word = (d & b) | (~d & c), (5 * step + 1) % 16
        elif turn == 2:
            mixed, word = b ^ c ^ d, (3 * step + 5) % 16
        else:
            mixed, word = c ^ (b | (~d & _MASK)), (7 * step) % 16
        total = (a + mixed + _SINES[step] + words[word]) & _MASK
        shift = _SHIFTS[turn][step % 4]
        a, d, c, b = d, c, b, (b + ((total << shift) | (total >> (32 - shift)))) & _MASK
    return tuple((old + new) & _MASK for old, new in zip(state, (a, b, c, d), strict=True))  # type: ignore[return-value]


def _continued(state: bytes, data: bytes) -> bytes:
    """The hash of one block, whose state this is, and of `data`."""
    now: _State = struct.unpack("<4I", state)
    padded = data + b"\x80" + bytes((-len(data) - 9) % BLOCK) + struct.pack("<Q", 8 * (BLOCK + len(data)))
    for at in range(0, len(padded), BLOCK):
        now = _compress(now, padded[at : at + BLOCK])
    return struct.pack("<4I", *now)


def hmac_states(key: bytes) -> bytes:
    """The two states of HMAC-MD5 with this key, the inner and the outer one: 32 bytes."""
    if len(key) > BLOCK:
        key = hashlib.md5(key, usedforsecurity=False).digest()
    padded = key.ljust(BLOCK, b"\0")
    pads = (bytes(one ^ pad for one in padded) for pad in (0x36, 0x5C))  # ipad, opad (RFC 2104)
    return b"".join(struct.pack("<4I", *_compress(_START, pad)) for pad in pads)


def hmac_from_states(states: bytes, data: bytes) -> bytes:
    """HMAC-MD5 of `data` with the key of these states: 16 bytes."""
    return _continued(states[STATE:], _continued(states[:STATE], data))
