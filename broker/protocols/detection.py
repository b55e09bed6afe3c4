"""Identifies clients that speak an unsupported protocol by the first bytes that they send.

An AMQP client begins with eight bytes, the last four of which give the protocol and version, in an order that differs
between versions. If the broker does not support it, it answers with its own header and closes the connection, as all
AMQP versions require; so it does for clients of other protocols.

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
    b"AMQP\x02\x01\x00\x00": "an AMQP 1.0 client that requests TLS",
    b"AMQP\x03\x01\x00\x00": "an AMQP 1.0 client that requests SASL",
}
TLS_HELLO: Final = b"\x16\x03"
"""The first bytes of a client that speaks TLS."""
_HTTP: Final = tuple(
    method + b" "
    for method in (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH", b"PRI")
)


def foreign_client(begin: bytes) -> str:
    """A description of the client, with an article, by its first bytes: eight, or all that it has sent."""
    named = _HEADERS.get(begin)
    if named is not None:
        return named
    if begin.startswith(TLS_HELLO):
        return "a TLS client"
    if begin.startswith(_HTTP):
        return "an HTTP client"
    if begin.startswith(b"AMQP"):
        return f"a client of an unknown AMQP version (header {begin.hex(' ')})"
    return f"a client of an unknown protocol (first bytes {begin!a})"
