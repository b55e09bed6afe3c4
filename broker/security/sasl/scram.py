"""SCRAM, both ends (RFC 5802, RFC 7677), on the library `scramp`: SCRAM-SHA-1, SCRAM-SHA-256 and SCRAM-SHA-512.

    client                                          server
    n,,n=user,r=nonce                          ->
                                               <-   r=nonces,s=salt,i=iterations
    c=biws,r=nonces,p=proof                    ->
                                               <-   v=signature
    (empty)                                    ->   authenticated

The server has only keys derived from the password, and proves with its signature that it has them. An unknown user gets
a salt like any other, always the same one, and fails at the proof. Channel binding is not supported.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, Final

from qstore.broker.security.sasl.exchange import (
    MAX_RESPONSE,
    TOO_LONG,
    UNEXPECTED,
    Answer,
    Challenge,
    Failure,
    Login,
    Outcome,
    PasswordCheck,
    Success,
    wrong,
)
from qstore.broker.security.users.verifiers import MAX_SCRAM_ITERATIONS

SCRAM: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "SCRAM-SHA-1")
"""The strongest first."""


def _library() -> Any:
    """Imported when it is needed, since it takes longer than a tool needs to start."""
    return importlib.import_module("scramp")


_find_iterations: Final = re.compile(r",i=(\d+)").search


class ScramServer:
    """The server's end.

    Args:
        mechanism: one of `SCRAM`.
        login: with users.
    """

    def __init__(self, mechanism: str, login: Login) -> None:
        assert login.users is not None
        self._mechanism, self._login, self._users = mechanism, login, login.users
        self._name = ""
        self._exchange: Any = _library().ScramMechanism(mechanism).make_server(self._verifier)
        self._next: Callable[[str], Outcome] = self._first

    def start(self, response: bytes | None, /) -> Outcome:
        """Process the client's first message, or request it."""
        return self.step(response) if response else Challenge(b"")

    def step(self, response: bytes, /) -> Outcome:
        """Process the client's next message."""
        if len(response) > MAX_RESPONSE:
            return TOO_LONG
        try:
            message = response.decode()
        except ValueError:
            return Failure("the SASL response is not UTF-8")
        return self._next(message)

    def _verifier(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self._name = self._login.local(name)
        found = self._users.scram(self._mechanism, self._name)
        return found.salt, found.stored_key, found.server_key, found.iterations

    def _first(self, message: str) -> Outcome:
        self._next = self._final

        library = _library()

        def check() -> Answer:
            try:
                self._exchange.set_client_first(message)
                return Challenge(self._exchange.get_server_first().encode())
            except library.ScramException as error:
                if error.__cause__ is not None:  # the user file cannot be read
                    return Failure(str(error.__cause__))
                return _malformed(error)

        return PasswordCheck("", check)

    def _final(self, message: str) -> Outcome:
        self._next = self._end

        library = _library()

        def check() -> Answer:
            try:
                self._exchange.set_client_final(message)
                return Challenge(self._exchange.get_server_final().encode())
            except library.ScramException as error:
                if error.server_error is library.core.ServerError.INVALID_PROOF:
                    return wrong(self._login, self._name, self._mechanism)
                return _malformed(error)

        return PasswordCheck(self._name, check)

    def _end(self, message: str) -> Outcome:
        self._next = _over
        return UNEXPECTED if message else Success(self._login.user_id(self._name))


def _over(_message: str) -> Outcome:
    return UNEXPECTED


def _malformed(error: Exception) -> Failure:
    return Failure(f"invalid SCRAM message: {str(error)[:200]!a}")


class ScramClient:
    """The client's end.

    Args:
        name: one of `SCRAM`.
        user, password: of the user.

    Raises:
        ValueError: the user name or the password has characters that SCRAM does not allow.
    """

    def __init__(self, name: str, user: str, password: str) -> None:
        self.name = name
        self.is_complete = False
        library = _library()
        try:
            self._exchange: Any = library.ScramClient([name], user, password)
        except library.ScramException as error:
            raise ValueError(f"{name} cannot be used with this user name or password: {error}") from None
        self._is_first = True

    def start(self) -> bytes:
        """The user name and a nonce."""
        first: str = self._exchange.get_client_first()
        return first.encode()

    def step(self, challenge: bytes, /) -> bytes:
        """The proof; then, to the server's signature, an empty response."""
        try:
            message = challenge.decode()
            if not self._is_first:
                self._exchange.set_server_final(message)
                self.is_complete = True
                return b""
            if not challenge:
                raise ValueError("it is empty")
            self._is_first = False
            found = _find_iterations(message)
            if found is not None and int(found[1][:9]) > MAX_SCRAM_ITERATIONS:
                raise ValueError(f"more than {MAX_SCRAM_ITERATIONS:,} iterations")
            self._exchange.set_server_first(message)
            final: str = self._exchange.get_client_final()
            return final.encode()
        except (_library().ScramException, ValueError) as error:
            raise ValueError(f"{self.name}: invalid challenge of the broker: {error}") from None
