r"""SASL mechanisms of one message, both ends: ANONYMOUS, PLAIN, AMQPLAIN and EXTERNAL.

| mechanism | the client's message                                              | source               |
|-----------|-------------------------------------------------------------------|----------------------|
| ANONYMOUS | trace information, ignored                                        | RFC 4505             |
| PLAIN     | authzid \0 authcid \0 password                                    | RFC 4616             |
| AMQPLAIN  | the entries of a 0-9-1 field table: strings LOGIN and PASSWORD    | AMQP 0-9-1 errata    |
| EXTERNAL  | authzid; the user is the one of the client's TLS certificate      | RFC 4422, appendix A |

If the client leaves its message out, the server requests it with an empty challenge: 0-10 cannot distinguish an empty
message from none.
"""

from __future__ import annotations

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
from qstore.broker.security.users.verifiers import MAX_NAME, is_user_name
from qstore.formats.named_tuple import NamedTuple

ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"
AMQPLAIN: Final = "AMQPLAIN"
EXTERNAL: Final = "EXTERNAL"

ANONYMOUS_NAME: Final = "anonymous"


class AnonymousServer:
    """Accepts every client as `anonymous@REALM`."""

    def __init__(self, login: Login) -> None:
        self._login = login

    def start(self, _response: bytes | None, /) -> Outcome:
        """Succeed; the trace information is ignored."""
        return Success(self._login.user_id(ANONYMOUS_NAME))

    def step(self, _response: bytes, /) -> Outcome:
        """Fail: this mechanism has no challenges."""
        return UNEXPECTED


def check_password(login: Login, mechanism: str, name: str, authorization: str, password: str) -> Outcome:
    """Check a user name and a clear-text password."""
    name, users = login.local(name), login.users
    if not name.isprintable() or not 0 < len(name) <= MAX_NAME:
        return Failure("invalid user name")
    if not login.may_act(name, authorization):
        return acts_as_another(name)
    if users is None:
        return Success(login.user_id(name))
    if not is_user_name(name):
        return Failure(f"user {name!a}: invalid user name")

    def recall() -> Answer | None:
        return Success(login.user_id(name)) if users.recalls(name, password) else None

    def check() -> Answer:
        return Success(login.user_id(name)) if users.verify(name, password) else wrong(login, name, mechanism)

    return PasswordCheck(name, check, is_slow=True, shortcut=recall)


class ClearTextServer:
    """Checks a user name and a clear-text password: PLAIN and AMQPLAIN.

    Args:
        mechanism: one of these.
        login: as of the other mechanisms.
    """

    def __init__(self, mechanism: str, login: Login) -> None:
        self._mechanism, self._login = mechanism, login

    def start(self, response: bytes | None, /) -> Outcome:
        """Check the first response, or request it."""
        return self.step(response) if response else Challenge(b"")

    def step(self, response: bytes, /) -> Outcome:
        """Parse the response into name and password, and check them."""
        if len(response) > MAX_RESPONSE:
            return TOO_LONG
        try:
            authorization, name, password = _PARSERS[self._mechanism](response)
        except (ValueError, KeyError):
            return Failure(f"the SASL response is not {_CONTENTS[self._mechanism]}")
        return check_password(self._login, self._mechanism, name, authorization, password)


def _parse_plain(response: bytes) -> tuple[str, str, str]:
    authorization, name, password = response.decode().split("\0")
    return authorization, name, password


def _parse_amqplain(response: bytes) -> tuple[str, str, str]:
    entries = _string_entries(response)
    return "", entries[b"LOGIN"].decode(), entries[b"PASSWORD"].decode()


def _string_entries(table: bytes) -> dict[bytes, bytes]:
    """The entries of a field table without its length, all of them long strings (type S). Raises ValueError."""
    entries: dict[bytes, bytes] = {}
    at = 0
    while at < len(table):
        name_end = at + 1 + table[at]
        begin = name_end + 5
        end = begin + int.from_bytes(table[name_end + 1 : begin], "big")
        if table[name_end : name_end + 1] != b"S" or end > len(table):
            raise ValueError
        entries[table[at + 1 : name_end]] = table[begin:end]
        at = end
    return entries


#: Mechanism -> function that parses its response into authorization id, name and password.
_PARSERS: Final = {PLAIN: _parse_plain, AMQPLAIN: _parse_amqplain}
_CONTENTS: Final = {
    PLAIN: "an authorization id, a user name and a password",
    AMQPLAIN: "a field table with the strings LOGIN and PASSWORD",
}


class ExternalServer:
    """Accepts the user of the client's TLS certificate."""

    def __init__(self, login: Login) -> None:
        self._login = login

    def start(self, response: bytes | None, /) -> Outcome:
        """Check the authorization id."""
        return self.step(response or b"")

    def step(self, response: bytes, /) -> Outcome:
        """Check the authorization id."""
        user_id = self._login.certificate_user
        if not user_id:
            return Failure("the client has no TLS certificate with a user")
        if response not in (b"", user_id.encode(), self._login.local(user_id).encode()):
            return acts_as_another(user_id)
        return Success(user_id)


# ---- the client's ends ----


class AnonymousClient(NamedTuple):
    """Logs in without a name."""

    name: str = ANONYMOUS
    is_complete: bool = True

    def start(self) -> bytes:
        """The trace information: the name that the server uses."""
        return ANONYMOUS_NAME.encode()

    def step(self, _challenge: bytes, /) -> bytes:
        """An empty response."""
        return b""


@dataclass(frozen=True, slots=True)
class ClearTextClient:
    """Logs in with a user name and a clear-text password: PLAIN and AMQPLAIN."""

    name: str
    user: str
    password: str = field(repr=False)
    is_complete: bool = True

    def start(self) -> bytes:
        """User name and password, without an authzid; for AMQPLAIN, a field table without its length."""
        if self.name == PLAIN:
            return f"\0{self.user}\0{self.password}".encode()
        entries = ((b"LOGIN", self.user.encode()), (b"PASSWORD", self.password.encode()))
        return b"".join(
            bytes([len(name)]) + name + b"S" + len(value).to_bytes(4, "big") + value for name, value in entries
        )

    def step(self, _challenge: bytes, /) -> bytes:
        """The same response again."""
        return self.start()


class ExternalClient(NamedTuple):
    """Logs in as the user of the TLS certificate."""

    name: str = EXTERNAL
    is_complete: bool = True

    def start(self) -> bytes:
        """No authzid."""
        return b""

    def step(self, _challenge: bytes, /) -> bytes:
        """No authzid."""
        return b""
