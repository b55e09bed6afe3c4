"""SASL: both ends of each mechanism against each other, the RFCs' examples, and hostile input."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.security.sasl import md5
from qstore.broker.security.sasl.exchange import (
    MAX_RESPONSE,
    Challenge,
    ClientMechanism,
    Failure,
    Login,
    Outcome,
    PasswordCheck,
    ServerMechanism,
    Success,
)
from qstore.broker.security.sasl.scram import ScramClient
from qstore.broker.security.sasl.simple import AnonymousClient, ClearTextClient, ExternalClient
from qstore.broker.security.sasl.table import TABLE, Credentials, choose_mechanism, server_mechanism
from qstore.broker.security.users.user_file import Users
from qstore.broker.security.users.verifiers import (
    MECHANISMS,
    SCRAM_HASHES,
    ScramVerifier,
    Verifiers,
    digest_md5_hash,
    hmac_from_states,
    hmac_states,
)

WITH_PASSWORD = (*SCRAM_HASHES, "DIGEST-MD5", "CRAM-MD5", "CRAM-MD5-HASHED", "CRAM-MD5-HEX", "PLAIN", "AMQPLAIN")


class TwoUsers(Users):
    """A user file with `anna` and `bërta`, both with all verifiers, made once."""


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Users:
    found = TwoUsers(str(tmp_path_factory.mktemp("users") / "users"))
    for name in ("anna", "bërta"):
        found.put(name, "sécret, =", MECHANISMS)
    return found


def settled(outcome: Outcome) -> Outcome:
    return outcome.run() if isinstance(outcome, PasswordCheck) else outcome


def exchange(server: ServerMechanism, client: ClientMechanism) -> Success | Failure:
    """Run an exchange to its end."""
    found = settled(server.start(client.start()))
    for _ in range(8):
        if not isinstance(found, Challenge):
            assert isinstance(found, Success | Failure)
            assert client.is_complete or isinstance(found, Failure)
            return found
        found = settled(server.step(client.step(found.data)))
    raise AssertionError("the exchange has no end")


def log_in(mechanism: str, users: Users | None, name: str, password: str) -> Success | Failure:
    client = TABLE[mechanism].client(Credentials(name, password))
    return exchange(server_mechanism(mechanism, Login("QPID", users)), client)


@pytest.mark.parametrize("mechanism", WITH_PASSWORD)
def test_both_ends_agree(mechanism: str, users: Users) -> None:
    assert log_in(mechanism, users, "anna", "sécret, =") == Success("anna@QPID")
    assert log_in(mechanism, users, "anna@QPID", "sécret, =") == Success("anna@QPID")
    assert log_in(mechanism, users, "bërta", "sécret, =") == Success("bërta@QPID")


@pytest.mark.parametrize("mechanism", WITH_PASSWORD)
def test_an_unknown_user_fails_like_a_wrong_password(mechanism: str, users: Users) -> None:
    wrong = log_in(mechanism, users, "anna", "wr0ng")
    unknown = log_in(mechanism, users, "nobody", "wr0ng")
    other_realm = log_in(mechanism, users, "anna@OTHER", "sécret, =")
    assert isinstance(wrong, Failure)
    assert isinstance(unknown, Failure)
    assert isinstance(other_realm, Failure)
    assert wrong.reason == "user 'anna': unknown user or wrong password"
    assert unknown.reason == "user 'nobody': unknown user or wrong password"


def test_mechanisms_of_one_message(users: Users) -> None:
    login = Login("QPID", users, certificate_user="bob@acme.com")
    assert exchange(server_mechanism("ANONYMOUS", login), AnonymousClient()) == Success("anonymous@QPID")
    assert exchange(server_mechanism("EXTERNAL", login), ExternalClient()) == Success("bob@acme.com")
    external = server_mechanism("EXTERNAL", login)
    assert external.start(b"bob@acme.com") == Success("bob@acme.com")
    assert isinstance(external.start(b"anna@QPID"), Failure)
    assert isinstance(server_mechanism("EXTERNAL", Login("QPID", users)).start(b""), Failure)
    assert isinstance(server_mechanism("ANONYMOUS", login).step(b""), Failure)


@pytest.mark.parametrize("client", [ClearTextClient(name, "anna", "sécret, =") for name in ("PLAIN", "AMQPLAIN")])
def test_missing_initial_response_is_requested(client: ClientMechanism, users: Users) -> None:
    for nothing in (None, b""):
        server = server_mechanism(client.name, Login("QPID", users))
        assert server.start(nothing) == Challenge(b"")
        assert settled(server.step(client.step(b""))) == Success("anna@QPID")


def test_scram_without_a_first_response(users: Users) -> None:
    server, client = server_mechanism("SCRAM-SHA-256", Login("QPID", users)), ScramClient("SCRAM-SHA-256", "anna", "x")
    assert server.start(None) == Challenge(b"")
    assert isinstance(settled(server.step(client.start())), Challenge)


def test_plain_accepts_any_password_without_a_user_file() -> None:
    server = server_mechanism("PLAIN", Login("QPID"))
    assert server.start(b"\0guest\0") == Success("guest@QPID")
    assert server.start(b"guest\0guest\0x") == Success("guest@QPID")
    assert server.start(b"\0somebody@example.com\0") == Success("somebody@example.com@QPID")


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
def test_malformed_plain(response: bytes, users: Users) -> None:
    for known in (None, users):
        assert isinstance(settled(server_mechanism("PLAIN", Login("QPID", known)).start(response)), Failure)


@pytest.mark.parametrize(
    "response",
    [
        b"\x05LOGINS\0\0\0\x04anna",
        b"\x05LOGINS\0\0\0\x04anna\x08PASSWORDS\xff\0\0\x01x",
        b"\x05LOGINI\0\0\0\x04anna\x08PASSWORDS\0\0\0\x01x",
        b"\x05LOGIN",
        b"\xff",
        b"\x05LOGINS\0\0\0\x01\xff\x08PASSWORDS\0\0\0\x01x",
    ],
)
def test_malformed_amqplain(response: bytes, users: Users) -> None:
    assert isinstance(settled(server_mechanism("AMQPLAIN", Login("QPID", users)).start(response)), Failure)


def test_passwords_are_not_shown(users: Users) -> None:
    login = Login("QPID", users)
    check = server_mechanism("PLAIN", login).start(b"\0guest\0hunter2")
    assert isinstance(check, PasswordCheck)
    assert "guest" in repr(check)
    clients = [TABLE[name].client(Credentials("guest", "hunter2")) for name in WITH_PASSWORD]
    assert not any("hunter2" in text for text in (repr(check), repr(check.run()), *map(repr, clients)))


# ---- the examples of the RFCs ----


def test_the_example_of_rfc_7677() -> None:
    """SCRAM-SHA-256, section 3: user `user`, password `pencil`."""
    verifier = _scram_example()

    class Example(Users):
        def scram(self, mechanism: str, name: str) -> ScramVerifier:
            assert (mechanism, name) == ("SCRAM-SHA-256", "user")
            return verifier

    server = server_mechanism("SCRAM-SHA-256", Login("QPID", Example("none")))
    server._exchange.s_nonce = scramp.core.Nonce("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")  # type: ignore[attr-defined]
    assert settled(server.start(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")) == Challenge(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert settled(server.step(final)) == Challenge(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert settled(server.step(b"")) == Success("user@QPID")


def _scram_example() -> ScramVerifier:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    return ScramVerifier(4096, salt, stored, hmac.digest(salted, b"Server Key", "sha256"))


def test_the_example_of_rfc_2195() -> None:
    """CRAM-MD5, section 2: user `tim`, password `tanstaaftanstaaf`."""
    client = TABLE["CRAM-MD5"].client(Credentials("tim", "tanstaaftanstaaf"))
    challenge = b"<1896.697170952@postoffice.reston.mci.net>"
    assert client.step(challenge) == b"tim b913a602c7eda7a495b4e6e7334d3890"
    states = hmac_states(b"tanstaaftanstaaf")
    assert hmac_from_states(states, challenge).hex() == "b913a602c7eda7a495b4e6e7334d3890"


def test_cram_md5_hashed_has_the_key_of_java_clients(tmp_path: Path) -> None:
    """A byte above 0x7F of the MD5 is a negative number in Java, and as a character one of the last 128 of 16 bits."""
    assert hashlib.md5(b"password").hexdigest() == "5f4dcc3b5aa765d61d8327deb882cf99"
    key = "\x5f\x4d\uffcc\x3b\x5a\uffa7\x65\uffd6\x1d\uff83\x27\uffde\uffb8\uff82\uffcf\uff99".encode()
    client = TABLE["CRAM-MD5-HASHED"].client(Credentials("martin", "password"))
    assert client.step(b"<1@host>").decode() == f"martin {hmac.new(key, b'<1@host>', 'md5').hexdigest()}"
    users = Users(str(tmp_path / "users"))
    users.put_all({"martin": Verifiers.of_md5(hashlib.md5(b"password").digest(), ["CRAM-MD5-HASHED", "CRAM-MD5"])})
    login = Login("QPID", users)
    assert exchange(server_mechanism("CRAM-MD5-HASHED", login), client) == Success("martin@QPID")
    with_hash = TABLE["CRAM-MD5"].client(Credentials("martin", key.decode()))
    assert exchange(server_mechanism("CRAM-MD5", login), with_hash) == Success("martin@QPID")
    wrong = TABLE["CRAM-MD5"].client(Credentials("martin", "password"))
    assert isinstance(exchange(server_mechanism("CRAM-MD5", login), wrong), Failure)


def test_cram_md5_hex_has_the_hash_in_hexadecimal(tmp_path: Path) -> None:
    key = b"5f4dcc3b5aa765d61d8327deb882cf99"
    client = TABLE["CRAM-MD5-HEX"].client(Credentials("martin", "password"))
    assert client.step(b"<1@host>").decode() == f"martin {hmac.new(key, b'<1@host>', 'md5').hexdigest()}"
    users = Users(str(tmp_path / "users"))
    users.put_all({"martin": Verifiers.of_md5(hashlib.md5(b"password").digest(), ["CRAM-MD5-HEX"])})
    login = Login("QPID", users)
    assert users.supports("CRAM-MD5-HEX")
    assert exchange(server_mechanism("CRAM-MD5-HEX", login), client) == Success("martin@QPID")
    wrong = TABLE["CRAM-MD5-HEX"].client(Credentials("martin", "passwore"))
    assert isinstance(exchange(server_mechanism("CRAM-MD5-HEX", login), wrong), Failure)


def test_the_example_of_rfc_2831() -> None:
    """DIGEST-MD5, section 4: user `chris`, password `secret`."""
    secret = digest_md5_hash("chris", "elwood.innosoft.com", "secret")
    given = {
        "nonce": "OA6MG9tEQGm2hh",
        "nc": "00000001",
        "cnonce": "OA6MHXh6VqTrRk",
        "digest-uri": "imap/elwood.innosoft.com",
    }
    assert md5._response(secret, given, "AUTHENTICATE") == "d388dad90d4bbd760a152321f2143af7"
    assert md5._response(secret, given, "") == "ea40f60335c427b5527b84dbabcdfffd"


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_hmac_continues_from_its_states(key: bytes, data: bytes) -> None:
    assert hmac_from_states(hmac_states(key), data) == hmac.digest(key, data, "md5")


# ---- servers that are not what they say ----


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "DIGEST-MD5"])
def test_a_client_does_not_trust_a_server_that_does_not_know_the_password(mechanism: str, users: Users) -> None:
    class AnyProof(Users):
        """Lets everybody in."""

    client = TABLE[mechanism].client(Credentials("anna", "sécret, ="))
    server = server_mechanism(mechanism, Login("QPID", users))
    found = settled(server.start(client.start()))
    assert isinstance(found, Challenge)
    client.step(found.data)
    assert not client.is_complete  # so that a connection that is opened now is refused
    forged = b"v=" + base64.b64encode(bytes(32)) if "SCRAM" in mechanism else b"rspauth=" + b"0" * 32
    with pytest.raises(ValueError, match=mechanism):
        client.step(forged)


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"\xff",
        b"r=x,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",  # not the client's nonce
        b"i=4096",
        b"r=x,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=999999999",  # minutes of work
    ],
)
def test_scram_challenges_that_are_none(challenge: bytes) -> None:
    client = ScramClient("SCRAM-SHA-1", "anna", "secret")
    client.start()
    with pytest.raises(ValueError, match="invalid challenge"):
        client.step(challenge)


@given(st.sampled_from(sorted(TABLE.keys() - {"GSSAPI"})), st.lists(st.binary(max_size=120), min_size=1, max_size=3))
def test_client_never_reveals_the_password(mechanism: str, challenges: list[bytes]) -> None:
    client = TABLE[mechanism].client(Credentials("anna", "secret"))
    client.start()
    for challenge in challenges:
        try:
            assert isinstance(client.step(challenge), bytes)
        except ValueError as error:
            reported = str(error)
            break
    else:
        reported = ""
    assert "secret" not in reported


FRAGMENTS = st.sampled_from(
    [b"n,,n=anna,r=abc", b"c=biws,r=abc,p=AAAA", b'username="anna"', b"nonce=", b"cnonce=x,", b"nc=00000001,", b",",
     b"qop=auth,", b"digest-uri=a/b,", b"response=" + b"0" * 32, b"\0", b"anna", b" ", b"0" * 32, b"=", b'"', b"\\",
     b"\x05LOGINS\0\0\0\x04anna", b"\x08PASSWORDS\0\0\0\x01x", b"\xff", b"p=tls-unique,,n=a,r=b", b"y,,", b"a=x"]
)  # fmt: skip
RESPONSES = st.one_of(st.binary(max_size=80), st.lists(FRAGMENTS, max_size=8).map(b"".join))


class Broken(Users):
    """A user file that is gone."""

    def __init__(self) -> None:
        super().__init__("/nowhere/users")


@given(
    st.sampled_from(sorted(TABLE.keys() - {"GSSAPI", "ANONYMOUS", "PLAIN"})),
    st.lists(RESPONSES, min_size=1, max_size=4),
)
def test_arbitrary_responses_never_authenticate(mechanism: str, responses: list[bytes]) -> None:
    """No login succeeds without a password, and nothing is raised."""
    server = server_mechanism(mechanism, Login("QPID", Broken()))
    found = settled(server.start(responses[0]))
    for response in responses[1:]:
        if not isinstance(found, Challenge):
            break
        found = settled(server.step(response))
    assert isinstance(found, Challenge | Failure)
    if isinstance(found, Failure):
        assert found.reason.isprintable()


# ---- the client's choice ----


def chosen(offered: list[str], allowed: list[str] | None = None, **credentials: object) -> str | None:
    found = choose_mechanism(offered, allowed, Credentials(**credentials))  # type: ignore[arg-type]
    return None if found is None else found.name


def test_a_client_chooses_the_strongest() -> None:
    everything = [*TABLE]
    assert chosen(everything, user="guest", password="g") == "SCRAM-SHA-512"
    assert chosen(["PLAIN", "CRAM-MD5", "DIGEST-MD5"], user="guest", password="g") == "DIGEST-MD5"
    assert chosen(["ANONYMOUS", "PLAIN"], user="guest", password="g") == "PLAIN"
    assert chosen(["PLAIN", "ANONYMOUS"], password="") == "ANONYMOUS"
    assert chosen(everything, ["PLAIN", "CRAM-MD5"], user="guest", password="g") == "PLAIN"
    assert chosen(everything, has_certificate=True, password="") == "EXTERNAL"
    assert chosen(everything, has_certificate=True, user="guest", password="g") == "SCRAM-SHA-512"
    assert chosen(everything, ["EXTERNAL"], has_certificate=True, user="guest", password="g") == "EXTERNAL"


def test_a_client_with_a_name_is_not_made_anonymous() -> None:
    assert chosen(["ANONYMOUS"], user="guest", password="g") is None
    assert chosen(["ANONYMOUS", "PLAIN"], ["ANONYMOUS"], user="guest", password="g") == "ANONYMOUS"
    assert chosen(["X-OTHER"], user="guest", password="g") is None
    assert chosen(["PLAIN"], password="") is None
    assert chosen(["EXTERNAL"], password="") is None
    assert chosen(["ANONYMOUS"], [], password="") is None


def test_names_that_scram_does_not_allow() -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        ScramClient("SCRAM-SHA-256", "a\u0378", "secret")


def test_the_user_file_is_gone(users: Users, tmp_path: Path) -> None:
    for mechanism in WITH_PASSWORD:
        failed = log_in(mechanism, Users(str(tmp_path / "none")), "anna", "secret")
        assert isinstance(failed, Failure)
        assert "cannot be read" in failed.reason
