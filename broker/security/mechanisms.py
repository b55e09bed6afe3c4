r"""The SASL mechanisms, sans-I/O, both ends: ANONYMOUS (RFC 4505) and PLAIN (RFC 4616).

The server's end gets the client's responses, the first by `start` and the others by `step`, and returns one of

    Challenge       send this to the client, and pass its response to `step`
    PasswordCheck   a password must be checked, which is slow: `run` it outside the event loop; it returns one of
    Success         the client is authenticated as this user
    Failure         authentication failed; the reason is for the log only and not sent to the client

The client's end returns its first response, and one for each challenge. Passwords appear neither in errors nor in
`repr`.

| mechanism | first response                       | challenges |
|-----------|--------------------------------------|------------|
| ANONYMOUS | trace information, ignored           | none       |
| PLAIN     | authzid \0 authcid \0 password       | an empty one, if the first response was left out |

A user id is `name@REALM` (Qpid C++ Broker Book, 1.5.1.1). In PLAIN the authcid (the user name) may include the realm.
The authzid must be empty or the same user: acting as another user is not supported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from qstore.broker.security.users import MAX_NAME, UserFileError, is_user_name

ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"

MAX_RESPONSE: Final = 4 * MAX_NAME
"""Maximum bytes of a response: two names with their realms, and a password."""
ANONYMOUS_NAME: Final = "anonymous"

#: Function of name and password: whether the password is right. It is slow, and may raise UserFileError.
Verify: TypeAlias = Callable[[str, str], bool]


class Challenge(NamedTuple):
    """Data to send to the client, which must respond."""

    data: bytes


class Success(NamedTuple):
    """The client is authenticated: `user_id` is `name@REALM`."""

    user_id: str


class Failure(NamedTuple):
    """Authentication failed; `reason` is for the log only."""

    reason: str


@dataclass(frozen=True, slots=True)
class PasswordCheck:
    """A password to check outside the event loop, only a few at the same time.

    Attributes:
        name: the user's name, without realm.
        user_id: the user id if the password is right.
        password: the password to check.
        verify: the function that checks it.
    """

    name: str
    user_id: str
    password: str = field(repr=False)
    verify: Verify = field(repr=False)

    def run(self) -> Success | Failure:
        """Check the password. Takes tens of milliseconds."""
        try:
            is_right = self.verify(self.name, self.password)
        except UserFileError as error:
            return Failure(str(error))
        return Success(self.user_id) if is_right else Failure(f"user {self.name!a}: unknown user or wrong password")


Outcome: TypeAlias = Challenge | PasswordCheck | Success | Failure

# ---- the server's end ----


class ServerMechanism(Protocol):
    """The server's end of one authentication exchange."""

    def start(self, response: bytes | None, /) -> Outcome:
        """The client has chosen this mechanism, with its first response; None if it sent none."""

    def step(self, response: bytes, /) -> Outcome:
        """The client has responded to a challenge."""


class AnonymousServer:
    """Accepts every client as `anonymous@REALM`."""

    def __init__(self, realm: str, _verify: Verify | None = None) -> None:
        self._realm = realm

    def start(self, _response: bytes | None, /) -> Outcome:
        """Succeed; the trace information is ignored."""
        return Success(f"{ANONYMOUS_NAME}@{self._realm}")

    def step(self, _response: bytes, /) -> Outcome:
        """Fail: this mechanism has no challenges."""
        return Failure("unexpected SASL response")


class PlainServer:
    """Checks a user name and a clear-text password.

    Args:
        realm: the realm of all users.
        verify: checks passwords; None to accept every client under the given name.
    """

    def __init__(self, realm: str, verify: Verify | None = None) -> None:
        self._realm, self._verify = realm, verify

    def start(self, response: bytes | None, /) -> Outcome:
        """Check the first response, or ask for it if it is empty: 0-10 cannot distinguish an empty one from none."""
        return self.step(response) if response else Challenge(b"")

    def step(self, response: bytes, /) -> Outcome:
        """Parse the response into name and password."""
        if len(response) > MAX_RESPONSE:
            return Failure("the SASL response is too long")
        try:
            authorization, name, password = response.decode().split("\0")
        except ValueError:
            return Failure("the SASL response is not an authorization id, a user name and a password")
        suffix = f"@{self._realm}"
        name, authorization = name.removesuffix(suffix), authorization.removesuffix(suffix)
        if not name.isprintable() or not 0 < len(name) <= MAX_NAME:
            return Failure("invalid user name")
        if authorization not in ("", name):
            return Failure(f"user {name!a} may not act as another user")
        if self._verify is None:
            return Success(name + suffix)
        if not is_user_name(name):
            return Failure(f"user {name!a}: invalid user name")
        return PasswordCheck(name, name + suffix, password, self._verify)


_SERVERS: Final[dict[str, Callable[[str, Verify | None], ServerMechanism]]] = {
    ANONYMOUS: AnonymousServer,
    PLAIN: PlainServer,
}


def server_mechanism(name: str, realm: str, verify: Verify | None) -> ServerMechanism:
    """The server's end of the mechanism `name`. Raises KeyError if it is unknown."""
    return _SERVERS[name](realm, verify)


# ---- the client's end ----


class ClientMechanism(Protocol):
    """The client's end of one authentication exchange."""

    @property
    def name(self) -> str:
        """The mechanism's name."""

    def start(self) -> bytes:
        """The first response."""

    def step(self, challenge: bytes, /) -> bytes:
        """The response to a challenge."""


@dataclass(frozen=True, slots=True)
class AnonymousClient:
    """Logs in without a name."""

    name: str = ANONYMOUS

    def start(self) -> bytes:
        """The trace information: the name that the server uses."""
        return ANONYMOUS_NAME.encode()

    def step(self, _challenge: bytes, /) -> bytes:
        """An empty response."""
        return b""


@dataclass(frozen=True, slots=True)
class PlainClient:
    """Logs in with a user name and a clear-text password."""

    user: str
    password: str = field(repr=False)
    name: str = PLAIN

    def start(self) -> bytes:
        """User name and password, without an authzid."""
        return f"\0{self.user}\0{self.password}".encode()

    def step(self, _challenge: bytes, /) -> bytes:
        """The same response again."""
        return self.start()


def choose_mechanism(
    offered: Sequence[str], allowed: Sequence[str] | None, user: str | None, password: str | None
) -> ClientMechanism | None:
    """The client's mechanism for a server's offer; None if no mechanism is acceptable to both.

    A client with a user name does not fall back to ANONYMOUS, unless `allowed` includes it explicitly.

    Args:
        offered: the server's mechanisms.
        allowed: the mechanisms that may be used; None for all.
        user: the user name; None for an anonymous login.
        password: the user's password.
    """
    usable = [name for name in offered if allowed is None or name in allowed]
    if user is not None and PLAIN in usable:
        return PlainClient(user, password or "")
    if ANONYMOUS in usable and (user is None or allowed is not None):
        return AnonymousClient()
    return None
