"""GSSAPI, both ends (RFC 4752): Kerberos tickets, on the library `gssapi`, which is optional; no security layer.

    client                                          server
    token                                      ->
                                               <-   token; more of them until both contexts are established
    (empty)                                    ->
                                               <-   wrapped: 1 (no security layer), maximum size 0
    wrapped: 1, 0, authorization id            ->   authenticated

The broker's principal is `qpidd/HOST@REALM`, with a key in the keytab that KRB5_KTNAME names (/etc/krb5.keytab by
default). The user id is the client's principal: `guest@EXAMPLE.COM`. Source: Qpid C++ Broker Book, 1.5.1.3.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any, Final

from qstore.broker.security.sasl.exchange import (
    UNEXPECTED,
    Answer,
    Challenge,
    Failure,
    Login,
    Outcome,
    PasswordCheck,
    Success,
    acts_as_another,
)
from qstore.broker.security.users.verifiers import MAX_NAME

GSSAPI: Final = "GSSAPI"
SERVICE: Final = "qpidd"
_MAX_TOKEN: Final = 65_535  # bytes; tickets with many groups have some ten thousand
_NO_LAYER: Final = 1
_OFFER: Final = bytes([_NO_LAYER, 0, 0, 0])


@cache
def is_installed() -> bool:
    """Whether the library is installed, with the system's Kerberos libraries."""
    if importlib.util.find_spec("gssapi") is None:
        return False
    try:
        importlib.import_module("gssapi")
    except ImportError:
        return False
    return True


def _library() -> Any:
    return importlib.import_module("gssapi")


def has_ticket() -> bool:
    """Whether there is a valid ticket to log in with."""
    library = _library()
    try:
        return int(library.Credentials(usage="initiate").lifetime or 0) > 0
    except library.exceptions.GSSError:
        return False


def has_keytab() -> bool:
    """Whether the library is installed, and the keytab has a key of the broker's service."""
    if not is_installed():
        return False
    try:
        _broker_key()
    except _library().exceptions.GSSError:
        return False
    return True


def _broker_key() -> Any:
    library = _library()
    name = library.Name(SERVICE, library.NameType.hostbased_service)
    return library.Credentials(name=name, usage="accept")


class GssapiServer:
    """The server's end."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._context: Any = None
        self._has_offered = False

    def start(self, response: bytes | None, /) -> Outcome:
        """Process the first token, or request it."""
        return self.step(response) if response else Challenge(b"")

    def step(self, response: bytes, /) -> Outcome:
        """Process a token, or the choice of a security layer."""
        if len(response) > _MAX_TOKEN:
            return Failure("the SASL response is too long")
        return PasswordCheck("", lambda: self._work(response))

    def _work(self, response: bytes) -> Answer:
        library = _library()
        try:
            if self._has_offered:
                return self._chosen(self._context.unwrap(response).message)
            if self._context is None:
                self._context = library.SecurityContext(creds=_broker_key(), usage="accept")
            if not self._context.complete:
                token = self._context.step(response)
                if token or not self._context.complete:
                    return Challenge(token or b"")
            elif response:
                return UNEXPECTED
            self._has_offered = True
            return Challenge(self._context.wrap(_OFFER, False).message)
        except library.exceptions.GSSError as error:
            return Failure(f"Kerberos: {str(error)[:300]!a}")

    def _chosen(self, choice: bytes) -> Answer:
        user_id = str(self._context.initiator_name)
        if len(choice) < len(_OFFER) or choice[0] != _NO_LAYER:
            return Failure(f"user {user_id!a}: asked for a security layer that was not offered")
        if not user_id.isprintable() or len(user_id) > MAX_NAME or " " in user_id:
            return Failure("invalid user name")
        authorization = choice[len(_OFFER) :]
        if authorization not in (b"", user_id.encode(), self._login.local(user_id).encode()):
            return acts_as_another(user_id)
        return Success(user_id)


class GssapiClient:
    """The client's end.

    Args:
        service: the first part of the broker's principal.
        host: the second part: the broker's fully qualified host name.
        user: the authorization id; None for that of the ticket.

    Raises:
        ValueError: the library cannot use this principal.
    """

    name = GSSAPI

    def __init__(self, service: str, host: str, user: str | None) -> None:
        self.is_complete = False
        self._user = user or ""
        library = _library()
        try:
            target = library.Name(f"{service}@{host}", library.NameType.hostbased_service)
            self._context: Any = library.SecurityContext(name=target, usage="initiate")
        except library.exceptions.GSSError as error:
            raise ValueError(f"{GSSAPI}: {error}") from None

    def start(self) -> bytes:
        """The first token."""
        return self._guarded(self._context.step)

    def step(self, challenge: bytes, /) -> bytes:
        """The next token, or the choice of no security layer."""
        if not self._context.complete:
            return self._guarded(self._context.step, challenge)
        offer = self._guarded(lambda: self._context.unwrap(challenge).message)
        if len(offer) < len(_OFFER) or not offer[0] & _NO_LAYER:
            raise ValueError(f"{GSSAPI}: the broker requires a security layer, which this client does not support")
        self.is_complete = True
        return self._guarded(lambda: self._context.wrap(_OFFER + self._user.encode(), False).message)

    @staticmethod
    def _guarded(work: Any, *arguments: bytes) -> bytes:
        try:
            return work(*arguments) or b""
        except _library().exceptions.GSSError as error:
            raise ValueError(f"{GSSAPI}: {error}") from None
