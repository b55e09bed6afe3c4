"""The SASL mechanisms, declared once: their requirements and protection.

| mechanism     | needs, of the server             | password     | dictionary | client's end needs |
|---------------|----------------------------------|--------------|------------|--------------------|
| EXTERNAL      | a client certificate             | -            | safe       | a certificate      |
| GSSAPI        | a keytab                         | -            | safe       | a Kerberos ticket  |
| SCRAM-…       | a SCRAM verifier of each user    | hidden       | open       | name and password  |
| DIGEST-MD5    | a DIGEST-MD5 verifier            | hidden       | open       | name and password  |
| CRAM-MD5-…    | a verifier for this mechanism    | hidden       | open       | name and password  |
| PLAIN         | any verifier of the password     | in the clear | open       | name and password  |
| AMQPLAIN      | any verifier of the password     | in the clear | open       | name and password  |
| ANONYMOUS     | nothing                          | -            | safe       | nothing            |

The order is the order of preference, of both ends. "Open": who can read or guess in the exchange can search for the
password in a dictionary; `--ssl-sasl-no-dict` excludes these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Final

from qstore.broker.security.sasl import kerberos
from qstore.broker.security.sasl.exchange import ClientMechanism, Login, SecurityLayer, ServerMechanism
from qstore.broker.security.sasl.kerberos import GSSAPI, GssapiClient, GssapiServer
from qstore.broker.security.sasl.md5 import (
    DIGEST_MD5,
    CramMd5Client,
    CramMd5Server,
    DigestMd5Client,
    DigestMd5Server,
)
from qstore.broker.security.sasl.scram import SCRAM, ScramClient, ScramServer
from qstore.broker.security.sasl.simple import (
    AMQPLAIN,
    ANONYMOUS,
    EXTERNAL,
    PLAIN,
    AnonymousClient,
    AnonymousServer,
    ClearTextClient,
    ClearTextServer,
    ExternalClient,
    ExternalServer,
)
from qstore.broker.security.users.verifiers import CRAM
from qstore.formats.named_tuple import NamedTuple


class Needs(Enum):
    """The requirements of the server's end of a mechanism."""

    NOTHING = auto()
    VERIFIERS = auto()
    CERTIFICATE = auto()
    KEYTAB = auto()


class Credentials(NamedTuple):
    """The credentials of a client.

    Attributes:
        user: the user name; None for an anonymous login.
        password: the user's password.
        has_certificate: whether the connection has a TLS client certificate.
        host: the name of the broker's host.
        service: the first part of the broker's Kerberos principal, `service/host@REALM`.
        min_ssf, max_ssf: limits of the strength of a security layer of SASL; 0 and 0 for none, as over TLS.
    """

    user: str | None = None
    password: str | None = None
    has_certificate: bool = False
    host: str = "localhost"
    service: str = kerberos.SERVICE
    min_ssf: int = 0
    max_ssf: int = 0


class Mechanism(NamedTuple):
    """A mechanism.

    Attributes:
        needs: the requirements of the server's end.
        is_cleartext: whether the client sends the password.
        is_open: whether the exchange allows a search for the password in a dictionary.
        server: makes the server's end.
        client: makes the client's end.
    """

    needs: Needs
    is_cleartext: bool
    is_open: bool
    server: Callable[[Login], ServerMechanism]
    client: Callable[[Credentials], ClientMechanism]


def _scram(name: str) -> Mechanism:
    return Mechanism(
        Needs.VERIFIERS, False, True, partial(ScramServer, name),
        lambda given: ScramClient(name, given.user or "", given.password or ""),
    )  # fmt: skip


def _cram(name: str) -> Mechanism:
    return Mechanism(
        Needs.VERIFIERS, False, True, partial(CramMd5Server, name),
        lambda given: CramMd5Client(given.user or "", given.password or "", name),
    )  # fmt: skip


def _clear_text(name: str) -> Mechanism:
    return Mechanism(
        Needs.VERIFIERS, True, True, partial(ClearTextServer, name),
        lambda given: ClearTextClient(name, given.user or "", given.password or ""),
    )  # fmt: skip


TABLE: Final[dict[str, Mechanism]] = {
    EXTERNAL: Mechanism(Needs.CERTIFICATE, False, False, ExternalServer, lambda _: ExternalClient()),
    GSSAPI: Mechanism(
        Needs.KEYTAB, False, False, GssapiServer,
        lambda given: GssapiClient(given.service, given.host, given.user, given.min_ssf, given.max_ssf),
    ),
    **{name: _scram(name) for name in SCRAM},
    DIGEST_MD5: Mechanism(
        Needs.VERIFIERS, False, True, DigestMd5Server,
        lambda given: DigestMd5Client(given.user or "", given.password or "", given.host),
    ),
    **{name: _cram(name) for name in CRAM},
    **{name: _clear_text(name) for name in (PLAIN, AMQPLAIN)},
    ANONYMOUS: Mechanism(Needs.NOTHING, False, False, AnonymousServer, lambda _: AnonymousClient()),
}  # fmt: skip
"""Name -> mechanism, most preferred first."""


def server_mechanism(name: str, login: Login) -> ServerMechanism:
    """The server's end of the mechanism `name`. Raises KeyError if it is unknown."""
    return TABLE[name].server(login)


def layer_of(mechanism: ClientMechanism | None) -> SecurityLayer | None:
    """The security layer that a client has chosen for what follows its login; None for none."""
    return mechanism.layer if isinstance(mechanism, GssapiClient) else None


def choose_mechanism(
    offered: Sequence[str], allowed: Sequence[str] | None, credentials: Credentials
) -> ClientMechanism | None:
    """The client's mechanism for a server's offer; None if no mechanism is acceptable to both.

    The most preferred one that the credentials are enough for. A client with a user name does not fall back to
    ANONYMOUS, unless `allowed` includes it explicitly.

    Args:
        offered: the server's mechanisms.
        allowed: the mechanisms that may be used, most preferred first; None for all.
        credentials: the client's credentials.

    Raises:
        ValueError: the user name or the password has characters that the mechanism does not allow.
    """
    candidates = TABLE if allowed is None else [name for name in allowed if name in TABLE]
    for name in candidates:
        if name in offered and _is_possible(name, credentials, is_explicit=allowed is not None):
            return TABLE[name].client(credentials)
    return None


def _is_possible(name: str, credentials: Credentials, *, is_explicit: bool) -> bool:
    if credentials.min_ssf and name != GSSAPI:
        return False
    match TABLE[name].needs:
        case Needs.VERIFIERS:
            return credentials.user is not None
        case Needs.CERTIFICATE:
            return credentials.has_certificate and (credentials.user is None or is_explicit)
        case Needs.KEYTAB:
            return kerberos.is_installed() and credentials.password is None and kerberos.has_ticket()
        case Needs.NOTHING:
            return credentials.user is None or is_explicit
