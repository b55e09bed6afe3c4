"""Which protocol a client speaks that does not speak AMQP 0-10, by the first bytes that it sends.

An AMQP client begins with eight bytes, of which the last four say what it wants. Their order is another in nearly every
version. One that the broker does not speak is answered with the broker's own header, and the end; that is what all of
them ask for, and for a client that is none of AMQP's, too.

    AMQP 0-8, 0-9      "AMQP" 1 1 major minor
    AMQP 0-9-1         "AMQP" 0 major minor revision
    AMQP 0-10          "AMQP" class instance major minor
    AMQP 1.0           "AMQP" id major minor revision; id 0 plain, 2 TLS, 3 SASL
    TLS                22, a record of kind handshake, then its version, of which the first byte is 3
    HTTP               a method

Source: AMQP 0-9-1, section 4.2.2; 0-10, transport, version negotiation; 1.0, transport, section 2.2; RFC 8446, section
5.1; RFC 9110, section 9.
"""

from __future__ import annotations

from typing import Final

_HEADERS: Final = {
    b"AMQP\x01\x01\x08\x00": "an AMQP 0-8 client",
    b"AMQP\x01\x01\x00\x08": "an AMQP 0-8 client",
    b"AMQP\x01\x01\x00\x09": "an AMQP 0-9 client",
    b"AMQP\x01\x01\x09\x01": "an AMQP 0-9-1 client",
    b"AMQP\x00\x00\x09\x01": "an AMQP 0-9-1 client",
    b"AMQP\x00\x01\x00\x00": "an AMQP 1.0 client",
    b"AMQP\x02\x01\x00\x00": "an AMQP 1.0 client that asks for TLS",
    b"AMQP\x03\x01\x00\x00": "an AMQP 1.0 client that asks for SASL",
}
_TLS: Final = b"\x16\x03"
_HTTP: Final = tuple(
    method + b" "
    for method in (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH", b"PRI")
)


def foreign_client(begin: bytes) -> str:
    """What a client is, with an article, by its first bytes: eight, or those that came."""
    named = _HEADERS.get(begin)
    if named is not None:
        return named
    if begin.startswith(_TLS):
        return "a TLS client"
    if begin.startswith(_HTTP):
        return "an HTTP client"
    if begin.startswith(b"AMQP"):
        return f"a client of an AMQP version that is not known (header {begin.hex(' ')})"
    return f"a client of an unknown protocol (it began with {begin!a})"
