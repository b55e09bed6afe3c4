r"""The SASL mechanisms, sans-I/O, each end of each: ANONYMOUS (RFC 4505) and PLAIN (RFC 4616).

A server's mechanism is asked with what the client said, `start` first and then `step`, and answers with one of

    Challenge       send this, and ask with what comes back
    PasswordCheck   a password is to be checked, which takes long: `run` it beside the event loop; it gives one of
    Success         the client is this user
    Failure         it is not; the reason is for the log, and the client is told nothing of it

A client's mechanism gives its first response, and one for each challenge. Passwords appear in no text here: neither in
errors nor in what `repr` shows.

| mechanism | first response                       | challenges |
|-----------|--------------------------------------|------------|
| ANONYMOUS | a trace, which is not used           | none       |
| PLAIN     | authorization \0 name \0 password    | one, empty, if the first response was left out |

A user's id is `name@REALM` (Qpid C++ Broker Book, 1.5.1.1). In PLAIN the name may have the realm already, and the
authorization must be empty or the same user: nobody acts for others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from broker.security.users import MAX_NAME, UserFileError, is_user_name

ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"

MAX_RESPONSE: Final = 4 * MAX_NAME
"""Bytes of a response that are looked at: two names with their realms, and a password."""
ANONYMOUS_NAME: Final = "anonymous"

#: Whether a user has a password. May take long, and may raise UserFileError.
Verify: TypeAlias = Callable[[str, str], bool]


class Challenge(NamedTuple):
    """The client is to say more."""

    data: bytes


class Success(NamedTuple):
    """The client is who it says: `user_id` is `name@REALM`."""

    user_id: str


class Failure(NamedTuple):
    """The client is not let in; `reason` is for the log only."""

    reason: str


@dataclass(frozen=True, slots=True)
class PasswordCheck:
    """A password that is to be checked: run it beside the event loop, and only a few at a time.

    Attributes:
        name: the user's name, without realm.
        user_id: what the user is called when the password is right.
    """

    name: str
    user_id: str
    password: str = field(repr=False)
    verify: Verify = field(repr=False)

    def run(self) -> Success | Failure:
        """Check it. Takes tens of milliseconds."""
        try:
            is_right = self.verify(self.name, self.password)
        except UserFileError as error:
            return Failure(str(error))
        return Success(self.user_id) if is_right else Failure(f"user {self.name!a}: not known, or a wrong password")


Outcome: TypeAlias = Challenge | PasswordCheck | Success | Failure

# ---- the server's end ----


class ServerMechanism(Protocol):
    """The server's end of one exchange."""

    def start(self, response: bytes | None, /) -> Outcome:
        """The client has chosen this mechanism and said `response`; None if it said nothing."""

    def step(self, response: bytes, /) -> Outcome:
        """The client has answered a challenge."""


class AnonymousServer:
    """Lets everybody in, as `anonymous@REALM`."""

    def __init__(self, realm: str, _verify: Verify | None = None) -> None:
        self._realm = realm

    def start(self, _response: bytes | None, /) -> Outcome:
        """What the client says of itself is of no use."""
        return Success(f"{ANONYMOUS_NAME}@{self._realm}")

    def step(self, _response: bytes, /) -> Outcome:
        """There are no challenges."""
        return Failure("a response that was not asked for")


class PlainServer:
    """A name and a password in clear.

    Args:
        realm: the realm of all users.
        verify: what checks passwords; None to let everybody in under the name that is given.
    """

    def __init__(self, realm: str, verify: Verify | None = None) -> None:
        self._realm, self._verify = realm, verify

    def start(self, response: bytes | None, /) -> Outcome:
        """The response has it all, unless it is left out: 0-10 has no way to tell an empty one from none."""
        return self.step(response) if response else Challenge(b"")

    def step(self, response: bytes, /) -> Outcome:
        """Take name and password apart."""
        if len(response) > MAX_RESPONSE:
            return Failure("the response is too long")
        try:
            authorization, name, password = response.decode().split("\0")
        except ValueError:
            return Failure("the response is not authorization, name and password")
        suffix = f"@{self._realm}"
        name, authorization = name.removesuffix(suffix), authorization.removesuffix(suffix)
        if not name.isprintable() or not 0 < len(name) <= MAX_NAME:
            return Failure("the name cannot be a user's")
        if authorization not in ("", name):
            return Failure(f"user {name!a} may not act for another")
        if self._verify is None:
            return Success(name + suffix)
        if not is_user_name(name):
            return Failure(f"user {name!a}: no name in a user file is like that")
        return PasswordCheck(name, name + suffix, password, self._verify)


_SERVERS: Final[dict[str, Callable[[str, Verify | None], ServerMechanism]]] = {
    ANONYMOUS: AnonymousServer,
    PLAIN: PlainServer,
}


def server_mechanism(name: str, realm: str, verify: Verify | None) -> ServerMechanism:
    """The server's end of the mechanism `name`. Raises KeyError if there is none."""
    return _SERVERS[name](realm, verify)


# ---- the client's end ----


class ClientMechanism(Protocol):
    """The client's end of one exchange."""

    @property
    def name(self) -> str:
        """The mechanism's name."""

    def start(self) -> bytes:
        """The first response."""

    def step(self, challenge: bytes, /) -> bytes:
        """The response to a challenge."""


@dataclass(frozen=True, slots=True)
class AnonymousClient:
    """Says who it is only for the log of the other side, and here not even that."""

    name: str = ANONYMOUS

    def start(self) -> bytes:
        """A trace: the name that a server uses."""
        return ANONYMOUS_NAME.encode()

    def step(self, _challenge: bytes, /) -> bytes:
        """There is nothing more to say."""
        return b""


@dataclass(frozen=True, slots=True)
class PlainClient:
    """A name and a password in clear."""

    user: str
    password: str = field(repr=False)
    name: str = PLAIN

    def start(self) -> bytes:
        """All there is to say."""
        return f"\0{self.user}\0{self.password}".encode()

    def step(self, _challenge: bytes, /) -> bytes:
        """A server that wants to hear it again may."""
        return self.start()


def choose_mechanism(
    offered: Sequence[str], allowed: Sequence[str] | None, user: str | None, password: str | None
) -> ClientMechanism | None:
    """What a client takes of what a server offers; None if there is nothing that both have.

    Who gives a name is not made anonymous because the server cannot check it, unless ANONYMOUS is allowed by name.

    Args:
        offered: the server's mechanisms.
        allowed: those that may be used; None for all.
        user: the name to log in with; None to stay anonymous.
        password: its password.
    """
    usable = [name for name in offered if allowed is None or name in allowed]
    if user is not None and PLAIN in usable:
        return PlainClient(user, password or "")
    if ANONYMOUS in usable and (user is None or allowed is not None):
        return AnonymousClient()
    return None
