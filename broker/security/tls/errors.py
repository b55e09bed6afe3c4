"""Errors of TLS, and what OpenSSL's mean."""

from __future__ import annotations

import ssl
from typing import Final


class TlsError(Exception):
    """A handshake has failed, or the connection is damaged. The text is for people, without a full stop."""


class TlsConfigurationError(Exception):
    """A certificate, a key or a certificate authority cannot be used. The text is one line for the user."""


_REASONS: Final = {
    "HTTP_REQUEST": "the peer speaks HTTP, not TLS",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS",
    "UNKNOWN_PROTOCOL": "the peer does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "the peer offers only versions of TLS before 1.2",
    "NO_SHARED_CIPHER": "no cipher is acceptable to both",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust the certificate authority",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the broker requires a client certificate",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the peer has refused the handshake",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer has refused the certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer has refused the certificate, since it has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer has refused the certificate",
}


def tls_reason(error: ssl.SSLError) -> str:
    """What an error of OpenSSL means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {error.verify_message}"
    reason = error.reason or ""
    return _REASONS.get(reason) or reason.replace("_", " ").lower() or "the connection is damaged"
