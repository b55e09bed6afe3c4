"""SASL, sans-I/O: the messages and outcomes of an authentication exchange.

The server's end gets the client's responses, the first by `start` and the others by `step`, and returns one of

    Challenge       send this to the client, and pass its response to `step`
    PasswordCheck   a user must be looked up or a password checked: `run` it outside the event loop; it returns one of
                    the others
    Success         the client is authenticated as this user
    Failure         authentication failed; the reason is for the log only and not sent to the client

An owner that has too many checks to make answers with `Refused` instead of running one (`network/login_checks`).

The client's end returns its first response, and one for each challenge. It raises ValueError if the server's challenge
is invalid, or the server cannot prove that it knows the user. Passwords appear neither in errors nor in `repr`.

A user id is `name@REALM` (Qpid C++ Broker Book, 1.5.1.1). The user name that a client sends may include the realm. An
authorization id must be empty or the same user: acting as another user is not supported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias, TypeVar

from qstore.broker.security.users.user_file import UserFileError, Users
from qstore.broker.security.users.verifiers import MAX_NAME
from qstore.formats.named_tuple import NamedTuple

MAX_RESPONSE: Final = 8 * MAX_NAME
"""Maximum bytes of a response: some names with their realms, a password, nonces and a digest."""


class Challenge(NamedTuple):
    """Data to send to the client, which must respond."""

    data: bytes


class LayerError(ValueError):
    """A security layer cannot begin, or what was received is not protected by it."""


class SecurityLayer(Protocol):
    """Protects everything that follows a login, in both directions (RFC 4422, section 3.7).

    Attributes:
        ssf: its strength: bits of the key, or 1 for integrity only.
    """

    @property
    def ssf(self) -> int:
        """As above."""

    def send(self, data: bytes) -> bytes:
        """Protect bytes."""

    def receive(self, data: bytes) -> bytes:
        """The bytes that were protected, as far as they are complete. Raises LayerError."""


class Success(NamedTuple):
    """The client is authenticated: `user_id` is `name@REALM`. `layer` protects what follows; None for none."""

    user_id: str
    layer: SecurityLayer | None = None


class Failure(NamedTuple):
    """Authentication failed; `reason` is for the log only."""

    reason: str


class Refused(NamedTuple):
    """The response was not checked, which reveals nothing about the password; `reason` may be sent to the client."""

    reason: str


Answer: TypeAlias = Challenge | Success | Failure | Refused


@dataclass(frozen=True, slots=True)
class PasswordCheck:
    """A step that needs the user file, for a worker outside the event loop, only a few at the same time.

    Attributes:
        name: the user's name; empty if it is not known yet.
        work: the step. It may raise UserFileError.
        is_slow: whether `work` derives a key from a password, which takes tens of milliseconds of processor time; other
            steps take less than one.
        shortcut: answers a slow step without `work`, if that is possible; otherwise it returns None. Not slow.
    """

    name: str
    work: Callable[[], Answer] = field(repr=False)
    is_slow: bool = False
    shortcut: Callable[[], Answer | None] | None = field(default=None, repr=False)

    def run_shortcut(self) -> Answer | None:
        """Do the step if it is not slow, or has a shortcut; None if `run_work` is needed."""
        if not self.is_slow:
            return self.run_work()
        return None if self.shortcut is None else _guarded(self.shortcut)

    def run_work(self) -> Answer:
        """Do the step without its shortcut."""
        return _guarded(self.work)

    def run(self) -> Answer:
        """Do the step."""
        return self.run_shortcut() or self.run_work()


_AnswerT = TypeVar("_AnswerT", Answer, Answer | None)


def _guarded(work: Callable[[], _AnswerT]) -> _AnswerT | Failure:
    try:
        return work()
    except UserFileError as error:
        return Failure(str(error))


Outcome: TypeAlias = Answer | PasswordCheck


class Login(NamedTuple):
    """The input of the server's end of a mechanism.

    Attributes:
        realm: the realm of all users.
        users: the users; None to accept every client under the name that it gives.
        certificate_user: the user id in the client's TLS certificate; empty if it has none.
        host: this host's name, in challenges.
        has_layers: whether a security layer may follow the login.
        must_encrypt: whether one must, which encrypts.
    """

    realm: str
    users: Users | None = None
    certificate_user: str = ""
    host: str = "localhost"
    has_layers: bool = False
    must_encrypt: bool = False

    def local(self, name: str) -> str:
        """The user's name without the realm."""
        return name.removesuffix(f"@{self.realm}")

    def user_id(self, name: str) -> str:
        """The user id of a name without realm."""
        return f"{name}@{self.realm}"

    def may_act(self, name: str, authorization: str) -> bool:
        """Whether a user may have this authorization id."""
        return authorization in ("", name, self.user_id(name))


class ServerMechanism(Protocol):
    """The server's end of one authentication exchange."""

    def start(self, response: bytes | None, /) -> Outcome:
        """The client has chosen this mechanism, with its first response; None if it sent none."""

    def step(self, response: bytes, /) -> Outcome:
        """The client has responded to a challenge."""


class ClientMechanism(Protocol):
    """The client's end of one authentication exchange."""

    @property
    def name(self) -> str:
        """The mechanism's name."""

    @property
    def is_complete(self) -> bool:
        """Whether the exchange may end here: the server has proved its identity, if the mechanism requires it."""

    def start(self) -> bytes:
        """The first response; empty if the server begins."""

    def step(self, challenge: bytes, /) -> bytes:
        """The response to a challenge. Raises ValueError if the challenge is invalid."""


TOO_LONG: Final = Failure("the SASL response is too long")
UNEXPECTED: Final = Failure("unexpected SASL response")


def wrong(login: Login, name: str, mechanism: str) -> Failure:
    """The failure of a user whose password is wrong, or who does not exist."""
    assert login.users is not None
    return Failure(f"user {name!a}: {login.users.why_wrong(name, mechanism)}")


def acts_as_another(name: str) -> Failure:
    """The failure of a user who requests another authorization id."""
    return Failure(f"user {name!a} may not act as another user")
