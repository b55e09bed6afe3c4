"""The authentication policy, the SASL mechanisms that a broker offers to a client; and a client's attempt to log in.

--auth   user file   client             offered
-------  ----------  -----------------  ---------------------------------------------------------
no       any         any                ANONYMOUS; PLAIN and AMQPLAIN with any password, as in qpidd
yes      none        on this host       ANONYMOUS
yes      none        remote             nothing of a user: the connection is refused
yes      given       any                each mechanism for which all users have a verifier

With --auth yes, in addition and with or without a user file: EXTERNAL, if the client has a TLS certificate with a user,
and GSSAPI, if the keytab has a key of the broker. The broker itself, as its own client, is always offered EXTERNAL.
Some clients of AMQP 0-9-1 know only AMQPLAIN, so it is offered wherever PLAIN is, after it. Then

    --sasl-mechanisms        offers exactly these, in this order, as far as they are possible at all; a mechanism is
                             then offered even if only some users have a verifier for it, and ANONYMOUS to everyone
    --auth-allow-cleartext   without it, PLAIN and AMQPLAIN are offered only on this host or over TLS
    --ssl-sasl-no-dict       excludes, over TLS, the mechanisms whose exchange allows a search in a dictionary
    --require-encryption     offers nothing without TLS, except GSSAPI, whose security layer must encrypt then, where
                             the protocol has a place for layers

What is not offered is not accepted. A login has a limit of steps, the same for every protocol.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

from qstore.broker.security.sasl import kerberos
from qstore.broker.security.sasl.exchange import Challenge, Failure, Login, Outcome, ServerMechanism
from qstore.broker.security.sasl.simple import AMQPLAIN, ANONYMOUS, EXTERNAL, PLAIN
from qstore.broker.security.sasl.table import TABLE, Needs, server_mechanism
from qstore.broker.security.tls import TlsFacts
from qstore.broker.security.users.user_file import Users
from qstore.broker.settings import BrokerSettings
from qstore.formats.named_tuple import NamedTuple


class PeerSecurity(NamedTuple):
    """The properties of a client's connection that authentication needs.

    Attributes:
        is_local: whether the client's address is a loopback address.
        is_encrypted: whether it is encrypted with TLS.
        certificate_user: the user id in the client's certificate; empty if it has none.
        internal_user: the user id for whom the broker is a client of itself (`network/direct`); empty for others.
        ssf: bits of the key of TLS (security strength factor); 0 without it.
        tls: what its handshake has agreed on; None without it, or if that is not known.
    """

    is_local: bool
    is_encrypted: bool = False
    certificate_user: str = ""
    internal_user: str = ""
    ssf: int = 0
    tls: TlsFacts | None = None


class LoginOptions(NamedTuple):
    """The options for logins.

    Attributes:
        is_on: whether clients must authenticate (`--auth`).
        realm: the realm of all users.
        mechanisms: those to offer (`--sasl-mechanisms`), most preferred first; empty for all that are possible.
        allows_cleartext: `--auth-allow-cleartext`.
        no_dictionary: `--ssl-sasl-no-dict`.
        requires_encryption: `--require-encryption`.
    """

    is_on: bool = True
    realm: str = "QPID"
    mechanisms: tuple[str, ...] = ()
    allows_cleartext: bool = False
    no_dictionary: bool = False
    requires_encryption: bool = False


def options_of(settings: BrokerSettings) -> LoginOptions:
    """The options in the settings."""
    return LoginOptions(
        is_on=settings.auth,
        realm=settings.realm,
        mechanisms=settings.sasl_mechanisms,
        allows_cleartext=settings.auth_allow_cleartext,
        no_dictionary=settings.ssl_sasl_no_dict,
        requires_encryption=settings.require_encryption,
    )


class Authentication:
    """How clients of one broker log in: the options, and its users.

    Args:
        options: the options.
        users: the user file; None if there is none.

    Attributes:
        failures: logins that have failed since the start.
    """

    def __init__(self, options: LoginOptions, users: Users | None) -> None:
        self._options = options
        self._users = users if options.is_on else None
        self._has_keytab = options.is_on and kerberos.has_keytab()
        self._host = socket.gethostname()
        possible = (ANONYMOUS, PLAIN, AMQPLAIN)
        self._without_auth = tuple(name for name in options.mechanisms or possible if name in possible)
        self.failures = 0

    def reload(self) -> None:
        """Look again whether there is a keytab. The user file is looked at at each login."""
        self._has_keytab = self._options.is_on and kerberos.has_keytab()

    def mechanisms(self, security: PeerSecurity, *, has_layers: bool = False) -> tuple[str, ...]:
        """The mechanisms to offer, most preferred first. If it is empty, refuse the client: `why_none`.

        With `has_layers` its protocol has a place where security layers begin.
        """
        options = self._options
        if security.internal_user:
            others = self.mechanisms(security._replace(internal_user="", certificate_user=""))
            return EXTERNAL, *(name for name in others if name != EXTERNAL)
        must_encrypt = options.requires_encryption and not security.is_encrypted
        if must_encrypt and not (has_layers and options.is_on):
            return ()
        if not options.is_on:
            return self._without_auth
        names: Sequence[str] = options.mechanisms or [name for name in TABLE if self._is_usual(name, security)]
        return tuple(
            name
            for name in names
            if self._is_possible(name, security) and not (must_encrypt and TABLE[name].needs is not Needs.KEYTAB)
        )

    def _is_usual(self, name: str, security: PeerSecurity) -> bool:
        """Whether a mechanism is offered by default."""
        if name == ANONYMOUS:
            return self._users is None and security.is_local
        if TABLE[name].needs is Needs.VERIFIERS:
            return self._users is not None and self._users.supports(name)
        return True

    def _is_possible(self, name: str, security: PeerSecurity) -> bool:
        options, mechanism = self._options, TABLE[name]
        if mechanism.is_open and options.no_dictionary and security.is_encrypted:
            return False
        if mechanism.is_cleartext and not (security.is_encrypted or security.is_local or options.allows_cleartext):
            return False
        match mechanism.needs:
            case Needs.VERIFIERS:
                return self._users is not None
            case Needs.CERTIFICATE:
                return bool(security.certificate_user)
            case Needs.KEYTAB:
                return self._has_keytab
            case Needs.NOTHING:
                return True

    def why_none(self, security: PeerSecurity) -> tuple[str, str]:
        """Why no mechanism is offered: for the client, and for the log with advice."""
        if self._options.requires_encryption and not security.is_encrypted:
            return "only encrypted connections are accepted", "neither TLS nor Kerberos; see --require-encryption"
        text = "no SASL mechanism is offered on this connection"
        if self._users is not None and not (
            security.is_encrypted or security.is_local or self._options.allows_cleartext
        ):
            return text, (
                "no mechanism is left without passwords in the clear: use TLS, or set the passwords again with "
                "qstore-passwd for SCRAM, or see --auth-allow-cleartext"
            )
        if self._users is None and not self._options.mechanisms:
            return text, "without a user file only clients on this host can log in; see --user-file"
        return text, "none of the mechanisms is possible here; see --sasl-mechanisms"

    def mechanism(self, name: str, security: PeerSecurity, *, has_layers: bool = False) -> ServerMechanism:
        """The mechanism that a client has chosen of those offered.

        With `has_layers` a security layer may follow the login, unless there is TLS.
        """
        user = security.internal_user or security.certificate_user
        has_layers = has_layers and not security.is_encrypted
        must_encrypt = self._options.requires_encryption and not security.is_encrypted
        return server_mechanism(
            name, Login(self._options.realm, self._users, user, self._host, has_layers, must_encrypt)
        )


def unusable(names: Sequence[str]) -> list[str]:
    """Why mechanisms that `--sasl-mechanisms` names cannot be used at all, one line each."""
    lines = [f"unknown SASL mechanism {name!a}; known are {', '.join(TABLE)}" for name in names if name not in TABLE]
    if kerberos.GSSAPI in names and not kerberos.is_installed():
        lines.append("GSSAPI needs the Python package gssapi: pip install 'qstore[kerberos]'")
    return lines


# ---- a client's login ----

_MAX_CHALLENGES: Final = 8


class LoginAttempt:
    """The broker's end of the authentication of one connection.

    Args:
        authentication: how clients log in.
        security: the properties of the client's connection.
        has_layers: whether its protocol has a place where security layers begin.

    Attributes:
        security: as above.
        offered: the mechanisms to offer, most preferred first.
        mechanism: the name of the chosen mechanism; empty before, or if it is not offered.
    """

    def __init__(self, authentication: Authentication, security: PeerSecurity, *, has_layers: bool = False) -> None:
        self._authentication, self.security, self._has_layers = authentication, security, has_layers
        self._mechanism: ServerMechanism | None = None
        self._challenges = 0
        self.offered = authentication.mechanisms(security, has_layers=has_layers)
        self.mechanism = ""

    def start(self, name: str, response: bytes | None) -> Outcome:
        """The client has chosen a mechanism, with its first response; None if it sent none."""
        if self._mechanism is not None:
            return Failure("a second mechanism was chosen")
        if name not in self.offered:
            return Failure(f"mechanism {name[:64]!a} is not offered")
        self._mechanism = self._authentication.mechanism(name, self.security, has_layers=self._has_layers)
        self.mechanism = name
        return self.limited(self._mechanism.start(response))

    def step(self, response: bytes) -> Outcome:
        """The client has responded to a challenge."""
        if self._mechanism is None:
            return Failure("unexpected SASL response")
        return self.limited(self._mechanism.step(response))

    def limited(self, outcome: Outcome) -> Outcome:
        """An outcome, which is a failure if it is one challenge too many. To be called for the result of a check."""
        if isinstance(outcome, Challenge):
            self._challenges += 1
            if self._challenges > _MAX_CHALLENGES:
                outcome = Failure("too many SASL steps")
        return outcome

    def failed(self, reason: str) -> str:
        """Count a failure. Returns its reason with the mechanism, for the log."""
        self._authentication.failures += 1
        return f"{self.mechanism}: {reason}" if self.mechanism else reason

    def why_none(self) -> tuple[str, str]:
        """Why nothing is offered: for the client, and for the log."""
        return self._authentication.why_none(self.security)
