"""The options of authentication and encryption. Those that make a broker less secure say so."""

from __future__ import annotations

from typing import Final

from qstore.broker.process.options.option import YES_NO, Effect, Group, Kind, Option
from qstore.broker.settings import DEFAULT_TLS_PORT

_SWITCH, _TEXT = Kind.SWITCH, Kind.TEXT
_NO_CYRUS: Final = "the broker implements SASL itself, with the users of the user file"

SECURITY: Final = Group(
    "Authentication options",
    (
        Option("auth", _SWITCH, YES_NO, "yes", "Require clients to authenticate; see also user-file. Insecure: no "
               "lets everybody in, under any name", opposite="no-auth"),
        Option("realm", _TEXT, "REALM", "QPID", "Realm of all users: the part of a user id after @",
               alias="auth-realm"),
        Option(
            "user-file", _TEXT, "FILE", "", "File of user names and passwords, written by qstore-passwd. Without it, "
            "auth=yes accepts clients on this host only",
        ),
        Option(
            "sasl-mechanisms", _TEXT, "NAMES", "", "SASL mechanisms to offer, most preferred first, separated by "
            "commas. Default: those that all users can use. Insecure: ANONYMOUS lets everybody in",
        ),
        Option(
            "auth-allow-cleartext", _SWITCH, YES_NO, "no", "Offer PLAIN to clients on other hosts without TLS as well. "
            "Insecure: passwords are sent in the clear",
        ),
        Option("sasl-config", _TEXT, "DIR", "", "SASL configuration", effect=Effect.NOT_NEEDED, reason=_NO_CYRUS),
    ),
)  # fmt: skip
"""Who is let in."""

_CONVERT: Final = (
    "NSS databases are not read; export the certificate (pk12util -o broker.p12 -n NAME -d DIR), convert it "
    "(openssl pkcs12 -in broker.p12 -out broker.pem -nodes), and give --ssl-cert broker.pem"
)

TLS: Final = Group(
    "Encryption options",
    (
        Option("ssl-cert", _TEXT, "FILE", "", "Certificate of the broker, with those of intermediate authorities, in "
               "PEM format; enables TLS"),
        Option("ssl-key", _TEXT, "FILE", "", "Private key of the certificate, in PEM format, if it is not in its file"),
        Option("ssl-cert-password-file", _TEXT, "FILE", "", "File whose first line is the password of the private key"),
        Option("ssl-port", Kind.NUMBER, "PORT", str(DEFAULT_TLS_PORT), "Listen for TLS on PORT. If it is that of port, "
               "connections with and without TLS share it", maximum=65_535),
        Option("ssl-ca", _TEXT, "FILE", "", "Authorities of client certificates, in PEM format: clients are asked for "
               "one, and can log in with it (EXTERNAL)"),
        Option("ssl-require-client-authentication", _SWITCH, YES_NO, "no", "Refuse clients without a certificate"),
        Option("ssl-sasl-no-dict", _SWITCH, YES_NO, "no", "Over TLS, offer no SASL mechanisms open to dictionary "
               "attacks, which leaves EXTERNAL and GSSAPI"),
        Option("require-encryption", _SWITCH, YES_NO, "no", "Accept no connections without TLS. Insecure: no lets "
               "others read and change what is sent without TLS"),
        Option("ssl-cert-db", _TEXT, "DIR", "", "Certificate database (NSS)", effect=Effect.REPLACED, reason=_CONVERT),
        Option("ssl-cert-name", _TEXT, "NAME", "", "Name of the certificate in that database", effect=Effect.REPLACED,
               reason=_CONVERT),
        Option("ssl-use-export-policy", _SWITCH, YES_NO, "", "Allow export ciphers", effect=Effect.REPLACED,
               reason="export ciphers are broken, and TLS has none of them any more"),
    ),
)  # fmt: skip
"""Encrypted connections."""
