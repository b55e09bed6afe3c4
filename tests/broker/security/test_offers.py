"""SASL mechanisms that a broker offers, by connection."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from qstore.broker.security.authentication import Authentication, LoginAttempt, LoginOptions, PeerSecurity, unusable
from qstore.broker.security.sasl import kerberos
from qstore.broker.security.sasl.exchange import Failure, PasswordCheck, Success
from qstore.broker.security.users.user_file import Users
from qstore.broker.security.users.verifiers import MECHANISMS

LOCAL, REMOTE = PeerSecurity(is_local=True), PeerSecurity(is_local=False)
TLS = PeerSecurity(is_local=False, is_encrypted=True)
CERTIFIED = PeerSecurity(is_local=False, is_encrypted=True, certificate_user="bob@acme.com")


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Users:
    found = Users(str(tmp_path_factory.mktemp("users") / "users"))
    found.put("guest", "secret")
    return found


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Users:
    """Users with all verifiers."""
    found = Users(str(tmp_path_factory.mktemp("users") / "users"))
    found.put("guest", "secret", MECHANISMS)
    return found


def offered(users: Users | None, security: PeerSecurity, policy: LoginOptions | None = None) -> list[str]:
    return list(Authentication(policy or LoginOptions(), users).mechanisms(security))


def test_without_authentication(users: Users) -> None:
    for known in (None, users):
        for security in (LOCAL, REMOTE, TLS):
            assert offered(known, security, LoginOptions(is_on=False)) == ["ANONYMOUS", "PLAIN", "AMQPLAIN"]
    assert offered(None, LOCAL, LoginOptions(is_on=False, mechanisms=("AMQPLAIN",))) == ["AMQPLAIN"]
    assert offered(None, LOCAL, LoginOptions(is_on=False, mechanisms=("PLAIN", "SCRAM-SHA-1"))) == ["PLAIN"]


def test_without_a_user_file() -> None:
    assert offered(None, LOCAL) == ["ANONYMOUS"]
    assert offered(None, REMOTE) == offered(None, TLS) == []
    assert offered(None, CERTIFIED) == ["EXTERNAL"]


def test_with_a_user_file(users: Users, full: Users) -> None:
    assert offered(users, LOCAL) == offered(users, TLS) == ["SCRAM-SHA-256", "PLAIN", "AMQPLAIN"]
    assert offered(users, REMOTE) == ["SCRAM-SHA-256"]
    assert offered(users, CERTIFIED) == ["EXTERNAL", "SCRAM-SHA-256", "PLAIN", "AMQPLAIN"]
    everything = [
        "SCRAM-SHA-512",
        "SCRAM-SHA-256",
        "SCRAM-SHA-1",
        "DIGEST-MD5",
        "CRAM-MD5",
        "CRAM-MD5-HASHED",
        "CRAM-MD5-HEX",
        "PLAIN",
        "AMQPLAIN",
    ]
    assert offered(full, LOCAL) == everything
    assert offered(full, REMOTE) == everything[:-2]


def test_passwords_in_the_clear_need_consent(users: Users) -> None:
    assert offered(users, REMOTE, LoginOptions(allows_cleartext=True)) == [
        "SCRAM-SHA-256",
        "PLAIN",
        "AMQPLAIN",
    ]
    asked = LoginOptions(mechanisms=("PLAIN", "AMQPLAIN"))
    assert offered(users, REMOTE, asked) == []
    assert offered(users, TLS, asked) == offered(users, LOCAL, asked) == ["PLAIN", "AMQPLAIN"]
    reported, logged = Authentication(asked, users).why_none(REMOTE)
    assert "--auth-allow-cleartext" in logged
    assert "--" not in reported


def test_configured_mechanisms_are_offered_in_order(users: Users, full: Users) -> None:
    assert offered(full, LOCAL, LoginOptions(mechanisms=("PLAIN", "CRAM-MD5"))) == ["PLAIN", "CRAM-MD5"]
    assert offered(users, REMOTE, LoginOptions(mechanisms=("SCRAM-SHA-1",))) == ["SCRAM-SHA-1"]  # some may have it
    assert offered(users, REMOTE, LoginOptions(mechanisms=("ANONYMOUS",))) == ["ANONYMOUS"]
    assert offered(users, REMOTE, LoginOptions(mechanisms=("EXTERNAL",))) == []
    assert offered(None, REMOTE, LoginOptions(mechanisms=("PLAIN",), allows_cleartext=True)) == []


def test_no_dictionary_attacks_over_tls(full: Users) -> None:
    policy = LoginOptions(no_dictionary=True)
    assert offered(full, TLS, policy) == []
    assert offered(full, CERTIFIED, policy) == ["EXTERNAL"]
    assert "PLAIN" in offered(full, LOCAL, policy)


def test_encryption_can_be_required(users: Users) -> None:
    for is_on in (True, False):
        policy = LoginOptions(is_on=is_on, requires_encryption=True)
        assert offered(users, LOCAL, policy) == offered(users, REMOTE, policy) == []
        assert offered(users, TLS, policy) != []
        assert Authentication(policy, users).why_none(LOCAL)[0] == "only encrypted connections are accepted"


def test_where_encryption_is_required_kerberos_may_encrypt(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kerberos, "has_keytab", lambda: True)
    policy = Authentication(LoginOptions(requires_encryption=True), users)
    assert policy.mechanisms(REMOTE, has_layers=True) == ("GSSAPI",)
    assert policy.mechanisms(REMOTE) == ()
    assert {"GSSAPI", "PLAIN"} <= set(policy.mechanisms(TLS, has_layers=True))
    assert isinstance(LoginAttempt(policy, REMOTE, has_layers=True).start("PLAIN", b""), Failure)
    only_plain = Authentication(LoginOptions(requires_encryption=True, mechanisms=("PLAIN",)), users)
    assert only_plain.mechanisms(REMOTE, has_layers=True) == ()
    without = Authentication(LoginOptions(is_on=False, requires_encryption=True), users)
    assert without.mechanisms(REMOTE, has_layers=True) == ()


def test_users_of_a_file_that_changes(users: Users, tmp_path: Path) -> None:
    changing = Users(str(tmp_path / "users"))
    policy = Authentication(LoginOptions(), changing)
    assert policy.mechanisms(LOCAL) == ()
    changing.put("guest", "secret", ["PLAIN"])
    assert policy.mechanisms(LOCAL) == ("PLAIN", "AMQPLAIN")
    changing.put("guest", "secret", ["PLAIN", "CRAM-MD5"])
    assert policy.mechanisms(LOCAL) == ("CRAM-MD5", "PLAIN", "AMQPLAIN")


def test_only_offered_mechanisms_are_accepted(users: Users) -> None:
    policy = Authentication(LoginOptions(), users)
    for name in ("ANONYMOUS", "CRAM-MD5", "EXTERNAL", "", "PLAIN\n"):
        assert LoginAttempt(policy, LOCAL).start(name, b"") == Failure(f"mechanism {name!a} is not offered")
    assert isinstance(LoginAttempt(policy, REMOTE).start("PLAIN", b""), Failure)
    assert isinstance(LoginAttempt(Authentication(LoginOptions(), None), REMOTE).start("ANONYMOUS", b""), Failure)
    plain = policy.mechanism("PLAIN", LOCAL)
    check = plain.start(b"\0guest\0secret")
    assert isinstance(check, PasswordCheck)
    assert check.run() == Success("guest@QPID")


def test_amqplain_is_offered_wherever_plain_is(users: Users, full: Users) -> None:
    for known in (None, users, full):
        for policy in (
            LoginOptions(),
            LoginOptions(is_on=False),
            LoginOptions(allows_cleartext=True),
            LoginOptions(requires_encryption=True),
        ):
            for security in (LOCAL, REMOTE, TLS, CERTIFIED):
                names = offered(known, security, policy)
                assert ("AMQPLAIN" in names) == ("PLAIN" in names)
                assert "PLAIN" not in names or names.index("AMQPLAIN") == names.index("PLAIN") + 1


def test_the_offer_for_many_users_is_found_once(tmp_path: Path, full: Users) -> None:
    """20,000 users: each connection would take the event loop 60 ms."""
    line = Path(full.path).read_text().splitlines()[-1].partition(":")[2]
    path = tmp_path / "users"
    path.write_text("".join(f"user{number}:{line}\n" for number in range(20_000)))
    path.chmod(0o600)
    policy = Authentication(LoginOptions(), Users(str(path)))
    first = policy.mechanisms(LOCAL)
    began = time.process_time()
    for _ in range(100):
        assert policy.mechanisms(LOCAL) == first
    assert time.process_time() - began < 0.5
    users = Users(str(path))
    users.scram("SCRAM-SHA-256", "nobody")
    began = time.process_time()
    for number in range(100):
        users.scram("SCRAM-SHA-256", f"nobody{number}")
    assert time.process_time() - began < 0.5


def test_a_password_counts_only_with_auth(users: Users) -> None:
    plain = Authentication(LoginOptions(is_on=False, realm="R"), users).mechanism("PLAIN", REMOTE)
    assert plain.start(b"\0guest\0wrong") == Success("guest@R")


def test_missing_user_file_refuses_every_login(tmp_path: Path) -> None:
    users = Users(str(tmp_path / "users"))
    users.put("guest", "secret")
    plain = Authentication(LoginOptions(), users).mechanism("PLAIN", LOCAL)
    Path(users.path).unlink()
    check = plain.start(b"\0guest\0secret")
    assert isinstance(check, PasswordCheck)
    failure = check.run()
    assert isinstance(failure, Failure)
    assert "cannot be read" in failure.reason


def test_unknown_mechanisms() -> None:
    assert unusable(["PLAIN", "SCRAM-SHA-256"]) == []
    (line,) = unusable(["PLIAN"])
    assert "PLIAN" in line
    assert "SCRAM-SHA-512" in line
