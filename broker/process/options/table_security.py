"""The options of authentication and encryption. Those that make a broker less secure say so."""

from __future__ import annotations

from typing import Final

from qstore.broker.process.options.option import YES_NO, Effect, Group, Kind, Option

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
