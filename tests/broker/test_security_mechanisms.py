"""SASL: both ends of each mechanism, and what is offered to whom."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.security.authentication import Authentication
from qstore.broker.security.mechanisms import (
    ANONYMOUS,
    MAX_RESPONSE,
    PLAIN,
    AnonymousClient,
    Challenge,
    Failure,
    Outcome,
    PasswordCheck,
    PlainClient,
    Success,
    choose_mechanism,
    server_mechanism,
)
from qstore.broker.security.users import Users


def outcome(response: bytes | None, passwords: dict[str, str] | None = None) -> Outcome:
    """What PLAIN makes of a response, the check of the password included."""
    verify = None if passwords is None else lambda name, password: passwords.get(name) == password
    found = server_mechanism(PLAIN, "QPID", verify).start(response)
    return found.run() if isinstance(found, PasswordCheck) else found


def test_anonymous() -> None:
    assert server_mechanism(ANONYMOUS, "QPID", None).start(None) == Success("anonymous@QPID")
    assert server_mechanism(ANONYMOUS, "X", None).start(AnonymousClient().start()) == Success("anonymous@X")
    assert isinstance(server_mechanism(ANONYMOUS, "X", None).step(b""), Failure)


def test_plain_between_both_ends() -> None:
    passwords = {"guest": "sécret"}
    assert outcome(PlainClient("guest", "sécret").start(), passwords) == Success("guest@QPID")
    assert outcome(PlainClient("guest@QPID", "sécret").start(), passwords) == Success("guest@QPID")
    assert isinstance(outcome(PlainClient("guest", "secret").start(), passwords), Failure)
    assert isinstance(outcome(PlainClient("nobody", "sécret").start(), passwords), Failure)
    assert isinstance(outcome(PlainClient("guest@OTHER", "sécret").start(), passwords), Failure)


def test_plain_asks_for_what_was_left_out() -> None:
    mechanism, client = server_mechanism(PLAIN, "QPID", lambda *_: True), PlainClient("guest", "guest")
    for nothing in (None, b""):
        assert mechanism.start(nothing) == Challenge(b"")
    check = mechanism.step(client.step(b""))
    assert isinstance(check, PasswordCheck)
    assert check.run() == Success("guest@QPID")


def test_plain_with_whatever_password() -> None:
    assert outcome(b"\0guest\0") == Success("guest@QPID")
    assert outcome(b"guest\0guest\0x") == Success("guest@QPID")


@pytest.mark.parametrize(
    "response",
    [
        b"guest",
        b"\0guest",
        b"\0\0",
        b"\0\0secret",
        b"\0guest\0sec\0ret",
        b"other\0guest\0secret",
        b"\0\xff\0secret",
        b"\0guest\nX\0secret",
        b"\0guest\0" + b"x" * MAX_RESPONSE,
    ],
)
def test_plain_that_is_none(response: bytes) -> None:
    for passwords in (None, {"guest": "secret", "": "", "gu est": "secret"}):
        assert isinstance(outcome(response, passwords), Failure)


def test_plain_names_that_no_file_has() -> None:
    for response in (b"\0gu est\0secret", b"\0guest@OTHER\0secret"):
        assert isinstance(outcome(response, {"gu est": "secret", "guest@OTHER": "secret"}), Failure)
    assert outcome(b"\0somebody@example.com\0") == Success("somebody@example.com@QPID")


def test_passwords_are_not_shown() -> None:
    check = server_mechanism(PLAIN, "QPID", lambda *_: False).start(b"\0guest\0hunter2")
    assert isinstance(check, PasswordCheck)
    assert "guest" in repr(check)
    shown = [repr(check), repr(check.run()), repr(PlainClient("guest", "hunter2"))]
    assert not any("hunter2" in text for text in shown)


@given(st.binary(max_size=100), st.booleans())
def test_plain_whatever_comes(response: bytes, knows_users: bool) -> None:
    found = outcome(response, {"a": "b"} if knows_users else None)
    assert isinstance(found, Success | Failure | Challenge)
    if isinstance(found, Success):
        assert found.user_id.endswith("@QPID")
        assert response.count(b"\0") == 2
        assert not knows_users or response.endswith(b"\0b")
    if isinstance(found, Failure):
        assert found.reason.isprintable()


def test_a_client_chooses() -> None:
    assert choose_mechanism(["PLAIN", "ANONYMOUS"], None, None, None) == AnonymousClient()
    assert choose_mechanism(["ANONYMOUS", "PLAIN"], None, "guest", "g") == PlainClient("guest", "g")
    assert choose_mechanism(["ANONYMOUS", "PLAIN"], ["ANONYMOUS"], "guest", "g") == AnonymousClient()
    assert choose_mechanism(["ANONYMOUS"], ["PLAIN", "ANONYMOUS"], "guest", "g") == AnonymousClient()
    assert choose_mechanism(["ANONYMOUS"], None, "guest", "g") is None  # who gives a name is not made anonymous
    assert choose_mechanism(["GSSAPI"], None, "guest", "g") is None
    assert choose_mechanism(["PLAIN"], None, None, None) is None
    assert choose_mechanism(["ANONYMOUS"], [], None, None) is None


@pytest.fixture
def users(tmp_path: Path) -> Users:
    users = Users(str(tmp_path / "users"))
    users.put("guest", "secret")
    return users


def test_who_is_offered_what(users: Users) -> None:
    def offered(*, is_on: bool, known: Users | None) -> list[tuple[str, ...]]:
        policy = Authentication(is_on=is_on, realm="QPID", users=known)
        return [policy.mechanisms(is_local=is_local) for is_local in (True, False)]

    everything = ("ANONYMOUS", "PLAIN")
    assert offered(is_on=False, known=None) == [everything, everything]
    assert offered(is_on=False, known=users) == [everything, everything]
    assert offered(is_on=True, known=None) == [("ANONYMOUS",), ()]
    assert offered(is_on=True, known=users) == [("PLAIN",), ("PLAIN",)]


def test_only_what_is_offered_is_taken(users: Users) -> None:
    with_users = Authentication(is_on=True, realm="QPID", users=users)
    assert with_users.mechanism("ANONYMOUS", is_local=True) is None
    assert with_users.mechanism("CRAM-MD5", is_local=True) is None
    assert Authentication(is_on=True, realm="QPID", users=None).mechanism("ANONYMOUS", is_local=False) is None
    plain = with_users.mechanism("PLAIN", is_local=False)
    assert plain is not None
    check = plain.start(b"\0guest\0secret")
    assert isinstance(check, PasswordCheck)
    assert check.run() == Success("guest@QPID")


def test_a_password_counts_only_with_auth(users: Users) -> None:
    plain = Authentication(is_on=False, realm="R", users=users).mechanism("PLAIN", is_local=False)
    assert plain is not None
    assert plain.start(b"\0guest\0wrong") == Success("guest@R")


def test_a_user_file_that_is_gone_lets_nobody_in(users: Users) -> None:
    plain = Authentication(is_on=True, realm="R", users=users).mechanism("PLAIN", is_local=True)
    assert plain is not None
    Path(users.path).unlink()
    check = plain.start(b"\0guest\0secret")
    assert isinstance(check, PasswordCheck)
    failure = check.run()
    assert isinstance(failure, Failure)
    assert "cannot be read" in failure.reason
