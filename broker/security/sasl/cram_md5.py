"""CRAM-MD5, both ends (RFC 2195): the server sends a unique text, the client its HMAC-MD5 with the password as key.

    client                          server
                               <-   <nonce.time@host>
    user digest                ->   authenticated

The server does not prove anything. Whoever reads the exchange can search for the password in a dictionary.
"""

from __future__ import annotations

import hmac
import secrets
import time
from dataclasses import dataclass, field
from typing import Final

from qstore.broker.security.sasl.exchange import (
    MAX_RESPONSE,
    TOO_LONG,
    Answer,
    Challenge,
    Failure,
    Login,
    Outcome,
    PasswordCheck,
    Success,
    wrong,
)
from qstore.broker.security.users.md5_state import hmac_from_states
from qstore.broker.security.users.verifiers import is_user_name

CRAM_MD5: Final = "CRAM-MD5"


class CramMd5Server:
    """The server's end.

    Args:
        login: with users.
    """

    def __init__(self, login: Login) -> None:
        assert login.users is not None
        self._login, self._users = login, login.users
        self._challenge = f"<{secrets.token_hex(16)}.{int(time.time())}@{login.host}>".encode()

    def start(self, _response: bytes | None, /) -> Outcome:
        """Send the challenge; the mechanism has no first response, and one is ignored."""
        return Challenge(self._challenge)

    def step(self, response: bytes, /) -> Outcome:
        """Check the digest."""
        if len(response) > MAX_RESPONSE:
            return TOO_LONG
        user, space, digest = response.rpartition(b" ")
        try:
            name = self._login.local(user.decode())
        except ValueError:
            return Failure("the SASL response is not UTF-8")
        if not space or not is_user_name(name):
            return Failure("the SASL response is not a user name and a digest")

        def check() -> Answer:
            right = hmac_from_states(self._users.cram_md5(name), self._challenge).hex().encode()
            if hmac.compare_digest(right, digest.lower()):
                return Success(self._login.user_id(name))
            return wrong(self._login, name, CRAM_MD5)

        return PasswordCheck(name, check)


@dataclass(frozen=True, slots=True)
class CramMd5Client:
    """The client's end."""

    user: str
    password: str = field(repr=False)
    name: str = CRAM_MD5
    is_complete: bool = True

    def start(self) -> bytes:
        """Nothing: the server begins."""
        return b""

    def step(self, challenge: bytes, /) -> bytes:
        """User name and digest."""
        digest = hmac.new(self.password.encode(), challenge, "md5").hexdigest()
        return f"{self.user} {digest}".encode()
