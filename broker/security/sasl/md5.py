"""DIGEST-MD5 and CRAM-MD5, both ends: mechanisms of older clients.

**DIGEST-MD5** (RFC 2831), for authentication only: no security layer, and no fast reauthentication.

    client                                          server
                                               <-   realm, nonce, qop=auth, algorithm=md5-sess, charset=utf-8
    username, realm, nonce, cnonce, nc=1, qop=auth,
    digest-uri, response                       ->
                                               <-   rspauth
    (empty)                                    ->   authenticated

    HA1       H(H(username:realm:password):nonce:cnonce[:authzid])       in hexadecimal, as are HA2 and the result
    HA2       H(AUTHENTICATE:digest-uri), and for rspauth H(:digest-uri)
    response  H(HA1:nonce:nc:cnonce:qop:HA2)

The server keeps H(username:realm:password), so the realm belongs to the verifier. RFC 6331 has declared the mechanism
historic.

**CRAM-MD5** (RFC 2195): the server sends a unique text, the client its HMAC-MD5 with the password as key.

    client                          server
                               <-   <nonce.time@host>
    user digest                ->   authenticated

The server does not prove anything. Anyone who reads the exchange can search for the password in a dictionary.
**CRAM-MD5-HASHED** and **CRAM-MD5-HEX**, of Apache's Java and .NET clients, have other keys, made from the password's
MD5 (`verifiers.key_of_md5`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

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
    acts_as_another,
    wrong,
)
from qstore.broker.security.users.verifiers import (
    CRAM,
    cram_key,
    digest_md5_hash,
    hmac_from_states,
    is_user_name,
)

DIGEST_MD5: Final = "DIGEST-MD5"
_SERVICE: Final = "amqp"
_COUNT: Final = "00000001"
_MAX_DIRECTIVES: Final = 32

_match_directive: Final = re.compile(
    r'[ \t\r\n]*(?P<name>[A-Za-z-]+)[ \t\r\n]*=[ \t\r\n]*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<token>[^\s",]+))'
    r"[ \t\r\n]*(?:,|$)",
    re.DOTALL,
).match


def parse_directives(data: bytes) -> dict[str, str]:
    """The directives of a challenge or a response; of a repeated one the first. Raises ValueError."""
    text = data.decode()
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _match_directive(text, at)
        if match is None:
            if not text[at:].strip(" \t\r\n,"):
                break
            raise ValueError(f"malformed directive at character {at}")
        quoted = match["quoted"]
        value = match["token"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        found.setdefault(match["name"].lower(), value)
        if len(found) > _MAX_DIRECTIVES:
            raise ValueError("too many directives")
        at = match.end()
    return found


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _hash(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _response(secret: bytes, given: Mapping[str, str], method: str) -> str:
    """The value of `response`, or of `rspauth` if `method` is empty."""
    first = secret + f":{given['nonce']}:{given['cnonce']}".encode()
    if "authzid" in given:
        first += f":{given['authzid']}".encode()
    parts = (
        _hash(first).hex(), given["nonce"], given["nc"], given["cnonce"], "auth",
        _hash(f"{method}:{given['digest-uri']}".encode()).hex(),
    )  # fmt: skip
    return _hash(":".join(parts).encode()).hex()


class DigestMd5Server:
    """The server's end.

    Args:
        login: with users.
    """

    def __init__(self, login: Login) -> None:
        assert login.users is not None
        self._login, self._users = login, login.users
        self._nonce = secrets.token_urlsafe(24)
        self._name = ""
        self._is_proved = False

    def start(self, _response: bytes | None, /) -> Outcome:
        """Send the challenge; a first response would be fast reauthentication, and is ignored."""
        realm = _quoted(self._login.realm)
        text = f'realm={realm},nonce="{self._nonce}",qop="auth",charset=utf-8,algorithm=md5-sess'
        return Challenge(text.encode())

    def step(self, response: bytes, /) -> Outcome:
        """Check the response; then take the empty one."""
        if self._is_proved:
            return UNEXPECTED if response else Success(self._login.user_id(self._name))
        if len(response) > MAX_RESPONSE:
            return TOO_LONG
        try:
            given = parse_directives(response)
        except ValueError as error:
            return Failure(f"invalid DIGEST-MD5 response: {error}")
        missing = [name for name in ("username", "cnonce", "digest-uri", "response") if not given.get(name)]
        if missing:
            return Failure(f"invalid DIGEST-MD5 response: {', '.join(missing)} missing")
        return self._check(given)

    def _check(self, given: dict[str, str]) -> Outcome:
        name = self._login.local(given["username"])
        if not is_user_name(name):
            return Failure("invalid user name")
        if not self._login.may_act(name, given.get("authzid", "")):
            return acts_as_another(name)
        expected = {"nonce": self._nonce, "nc": _COUNT, "qop": "auth"}
        if any(given.get(key, value if key == "qop" else "") != value for key, value in expected.items()):
            return Failure(f"user {name!a}: the DIGEST-MD5 response is not one to this challenge")
        if given.get("realm", "") not in ("", self._login.realm):
            return Failure(f"user {name!a}: another realm than {self._login.realm}")

        def check() -> Answer:
            secret = self._users.digest_md5(name, self._login.realm)
            right = _response(secret, given, "AUTHENTICATE")
            if not hmac.compare_digest(right.encode(), given["response"].encode()):
                return wrong(self._login, name, DIGEST_MD5)
            self._name, self._is_proved = name, True
            return Challenge(f"rspauth={_response(secret, given, '')}".encode())

        return PasswordCheck(name, check)


class DigestMd5Client:
    """The client's end.

    Args:
        user: the user name, without realm.
        password: the password.
        host: the name of the broker's host.
    """

    name = DIGEST_MD5

    def __init__(self, user: str, password: str, host: str) -> None:
        self.is_complete = False
        self._user, self._password, self._host = user, password, host
        self._proof = ""

    def start(self) -> bytes:
        """Nothing: the server begins."""
        return b""

    def step(self, challenge: bytes, /) -> bytes:
        """The response; then, to `rspauth`, an empty one."""
        try:
            found = parse_directives(challenge)
        except ValueError as error:
            raise ValueError(f"{DIGEST_MD5}: invalid challenge of the broker: {error}") from None
        if self._proof:
            if not hmac.compare_digest(found.get("rspauth", "").encode(), self._proof.encode()):
                raise ValueError(f"{DIGEST_MD5}: the broker does not know the password")
            self.is_complete = True
            return b""
        if not found.get("nonce") or "auth" not in found.get("qop", "auth").replace(" ", "").split(","):
            raise ValueError(f"{DIGEST_MD5}: invalid challenge of the broker")
        realm = found.get("realm", "")
        given = {
            "nonce": found["nonce"],
            "cnonce": secrets.token_urlsafe(24),
            "nc": _COUNT,
            "digest-uri": f"{_SERVICE}/{self._host}",
        }
        user = self._user.removesuffix(f"@{realm}")
        secret = digest_md5_hash(user, realm, self._password)
        self._proof = _response(secret, given, "")
        return (
            f"charset=utf-8,username={_quoted(user)},realm={_quoted(realm)},nonce={_quoted(given['nonce'])},"
            f"nc={_COUNT},cnonce={_quoted(given['cnonce'])},digest-uri={_quoted(given['digest-uri'])},"
            f"response={_response(secret, given, 'AUTHENTICATE')},qop=auth"
        ).encode()


# ---- CRAM-MD5 ----


class CramMd5Server:
    """The server's end.

    Args:
        name: the mechanism, one of `CRAM`.
        login: with users.
    """

    def __init__(self, name: str, login: Login) -> None:
        assert name in CRAM
        assert login.users is not None
        self._mechanism = name
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
            right = hmac_from_states(self._users.cram(self._mechanism, name), self._challenge).hex().encode()
            if hmac.compare_digest(right, digest.lower()):
                return Success(self._login.user_id(name))
            return wrong(self._login, name, self._mechanism)

        return PasswordCheck(name, check)


@dataclass(frozen=True, slots=True)
class CramMd5Client:
    """The client's end."""

    user: str
    password: str = field(repr=False)
    name: str
    is_complete: bool = True

    def start(self) -> bytes:
        """Nothing: the server begins."""
        return b""

    def step(self, challenge: bytes, /) -> bytes:
        """User name and digest."""
        digest = hmac.new(cram_key(self.name, self.password.encode()), challenge, "md5").hexdigest()
        return f"{self.user} {digest}".encode()
