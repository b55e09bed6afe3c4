"""TLS without sockets: both ends against each other, damaged input, certificates, and users in them."""

from __future__ import annotations

import os
import ssl
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.client.errors import ConnectError
from qstore.broker.client.options import ConnectionOptions, client_context
from qstore.broker.security.tls import (
    ServerContexts,
    TlsConfigurationError,
    TlsError,
    TlsSession,
    _name_text,
    certificate_user,
)
from qstore.broker.settings import TlsSettings
from tests.support.certificates import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server_context(certificates: Certificates) -> ssl.SSLContext:
    return ServerContexts(TlsSettings(certificates.server(), authority_file=certificates.trusted)).current


def both(server_context: ssl.SSLContext, options: ConnectionOptions, host: str = "127.0.0.1") -> list[TlsSession]:
    """A server and a client, before their handshake."""
    return [
        TlsSession(server_context, is_server=True),
        TlsSession(client_context(options), is_server=False, host=host),
    ]


def shake_hands(server: TlsSession, client: TlsSession) -> None:
    client.begin()
    for _ in range(6):
        server.receive(client.take_output())
        client.receive(server.take_output())
    assert server.is_established
    assert client.is_established


def test_both_ends_agree(certificates: Certificates, server_context: ssl.SSLContext) -> None:
    server, client = both(server_context, ConnectionOptions(ssl_trustfile=certificates.trusted))
    shake_hands(server, client)
    assert server.certificate == {}
    assert server.version.startswith("TLSv1.3")
    for content in (b"hello", os.urandom(300_000), b""):
        client.send(content)
        assert server.receive(client.take_output()) == content
        server.send(content)
        assert client.receive(server.take_output()) == content
    client.close()
    assert server.receive(client.take_output()) == b""
    assert server.is_over


def test_input_in_pieces(certificates: Certificates, server_context: ssl.SSLContext) -> None:
    server, client = both(server_context, ConnectionOptions(ssl_trustfile=certificates.trusted))
    shake_hands(server, client)
    content = os.urandom(40_000)
    client.send(content)
    output = client.take_output()
    received = [server.receive(output[at : at + 7001]) for at in range(0, len(output), 7001)]
    assert b"".join(received) == content
    assert not received[0]  # half a record


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_1])
def test_versions(certificates: Certificates, server_context: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context(cafile=certificates.trusted)
    with warnings.catch_warnings(action="ignore"):  # that the version is deprecated
        context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    server = TlsSession(server_context, is_server=True)
    client = TlsSession(context, is_server=False, host="127.0.0.1")
    if version is ssl.TLSVersion.TLSv1_2:
        shake_hands(server, client)
        assert client.version.startswith("TLSv1.2")
        return
    client.begin()
    with pytest.raises(TlsError, match=r"only versions of TLS before 1\.2"):
        server.receive(client.take_output())


def test_a_client_trusts_only_whom_it_should(certificates: Certificates, server_context: ssl.SSLContext) -> None:
    def fails(options: ConnectionOptions, host: str = "127.0.0.1") -> str:
        server, client = both(server_context, options, host)
        with pytest.raises(TlsError) as failed:
            shake_hands(server, client)
        return str(failed.value)

    trusting = ConnectionOptions(ssl_trustfile=certificates.trusted)
    assert "self-signed certificate in certificate chain" in fails(ConnectionOptions())
    assert "Hostname mismatch" in fails(trusting, "other.example.com")
    server, client = both(
        server_context,
        ConnectionOptions(ssl_trustfile=certificates.trusted, ssl_skip_hostname_check=True),
        "other.example.com",
    )
    shake_hands(server, client)


def test_the_certificate_of_a_client(certificates: Certificates, server_context: ssl.SSLContext) -> None:
    for file, user in (
        (certificates.client("bob"), "bob@QPID"),
        (certificates.client_of_domain("bob", "acme", "com"), "bob@acme.com"),
    ):
        options = ConnectionOptions(ssl_trustfile=certificates.trusted, ssl_certificate=file)
        server, client = both(server_context, options)
        shake_hands(server, client)
        assert certificate_user(server.certificate, "QPID") == user


def test_a_client_s_certificate_of_another_authority(
    certificates: Certificates, server_context: ssl.SSLContext, tmp_path: Path
) -> None:
    stranger = Certificates(tmp_path).client("bob")
    options = ConnectionOptions(ssl_trustfile=certificates.trusted, ssl_certificate=stranger)
    server, client = both(server_context, options)
    with pytest.raises(TlsError, match="the certificate is not accepted"):
        shake_hands(server, client)
    assert server.take_output()  # the alert


def test_a_client_must_have_a_certificate(certificates: Certificates) -> None:
    settings = TlsSettings(
        certificates.server(), authority_file=certificates.trusted, requires_certificate=True
    )  # fmt: skip
    server, client = both(
        ServerContexts(settings).current, ConnectionOptions(ssl_trustfile=certificates.trusted)
    )  # fmt: skip
    with pytest.raises(TlsError, match="the client has no certificate"):
        shake_hands(server, client)
    with pytest.raises(TlsError, match="the broker requires a client certificate"):
        client.receive(server.take_output())


def subject(*names: tuple[str, str]) -> dict[str, object]:
    return {"subject": tuple((name,) for name in names)}


@pytest.mark.parametrize(
    ("certificate", "user"),
    [
        ({}, ""),
        (subject(("organizationName", "acme")), ""),
        (subject(("commonName", "bob")), "bob@QPID"),
        (subject(("domainComponent", "com"), ("domainComponent", "acme"), ("commonName", "bob")), "bob@acme.com"),
        (subject(("commonName", "bob"), ("organizationName", "acme")), "bob@QPID"),
        (subject(("commonName", "admin@QPID")), ""),
        (subject(("commonName", "bob"), ("domainComponent", "a@b")), ""),
        (subject(("commonName", "a b")), ""),
        (subject(("commonName", "a\0b")), ""),
        (subject(("commonName", "x" * 300)), ""),
        (subject(("domainComponent", "x" * 250), ("commonName", "bobby")), ""),
    ],
)
def test_users_in_certificates(certificate: dict[str, object], user: str) -> None:
    assert certificate_user(certificate, "QPID") == user


# ---- files ----


def test_a_key_with_a_password(certificates: Certificates) -> None:
    certificate, key, password = certificates.encrypted_key()
    assert ServerContexts(TlsSettings(certificate, key, password)).current
    with pytest.raises(TlsConfigurationError, match="the key has a password; see --ssl-cert-password-file"):
        ServerContexts(TlsSettings(certificate, key))
    with pytest.raises(TlsConfigurationError, match="wrong password"):
        ServerContexts(TlsSettings(certificate, key, certificate))
    with pytest.raises(ConnectError, match="see ssl_certificate, ssl_key and ssl_password_file"):
        client_context(ConnectionOptions(ssl_certificate=certificate, ssl_key=key))
    assert client_context(ConnectionOptions(ssl_certificate=certificate, ssl_key=key, ssl_password_file=password))


def test_the_environment_of_the_c_plus_plus_client(
    certificates: Certificates, server_context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate, key, password = certificates.encrypted_key()
    together = tmp_path / "together.pem"
    together.write_text(Path(certificate).read_text() + Path(key).read_text())
    monkeypatch.setenv("QPID_SSL_CERT_DB", certificates.trusted)
    monkeypatch.setenv("QPID_SSL_CERT_NAME", str(together))
    monkeypatch.setenv("QPID_SSL_CERT_PASSWORD_FILE", password)
    server, client = both(server_context, ConnectionOptions())
    shake_hands(server, client)
    with pytest.raises(ConnectError, match="/nowhere: cannot be read"):
        client_context(ConnectionOptions(ssl_trustfile="/nowhere"))
    monkeypatch.setenv("QPID_SSL_CERT_DB", str(tmp_path))
    with pytest.raises(ConnectError, match=r"QPID_SSL_CERT_DB: .* is not a file in PEM format; NSS databases"):
        client_context(ConnectionOptions())
    monkeypatch.setenv("QPID_SSL_USE_EXPORT_POLICY", "yes")
    with pytest.raises(ConnectError, match="QPID_SSL_USE_EXPORT_POLICY: export ciphers are not secure"):
        client_context(ConnectionOptions())


def test_files_that_cannot_be_used(certificates: Certificates, tmp_path: Path) -> None:
    server, nonsense, fifo = certificates.server(), tmp_path / "nonsense", tmp_path / "fifo"
    nonsense.write_text("nonsense")
    os.mkfifo(fifo)
    certificate, key, password = certificates.encrypted_key()
    for settings, text in (
        (TlsSettings("/nowhere"), "/nowhere: not a regular file, or missing; see --ssl-cert"),
        (TlsSettings(str(fifo)), "not a regular file"),
        (TlsSettings(str(nonsense)), "no certificate with its private key in PEM format"),
        (TlsSettings(certificate), "no certificate with its private key"),
        (TlsSettings(server, key, password), "not the private key of the certificate"),
        (TlsSettings(server, "/nowhere"), "see --ssl-key"),
        (TlsSettings(server, authority_file="/nowhere"), "see --ssl-ca"),
        (TlsSettings(server, authority_file=str(nonsense)), "no certificates in PEM format"),
        (TlsSettings(certificate, key, "/nowhere"), "see --ssl-cert-password-file"),
    ):
        with pytest.raises(TlsConfigurationError) as failed:
            ServerContexts(settings)
        assert text in str(failed.value)
        assert "\n" not in str(failed.value)
    for options in (
        ConnectionOptions(ssl_trustfile="/nowhere"),
        ConnectionOptions(ssl_trustfile=str(nonsense)),
        ConnectionOptions(ssl_certificate="/nowhere"),
        ConnectionOptions(ssl_certificate=str(nonsense)),
    ):
        with pytest.raises(ConnectError, match="see ssl_"):
            client_context(options)


def test_failed_reload_keeps_the_working_context(certificates: Certificates, tmp_path: Path) -> None:
    file = tmp_path / "server.pem"
    file.write_bytes(Path(certificates.server()).read_bytes())
    contexts = ServerContexts(TlsSettings(str(file)))
    before = contexts.current
    assert contexts.warnings() == [f"{file}: other users can read the private key; fix this with chmod 600"]
    file.chmod(0o600)
    assert contexts.warnings() == []
    file.write_text("half a certificate")
    with pytest.raises(TlsConfigurationError):
        contexts.reload()
    assert contexts.current is before
    file.write_bytes(Path(certificates.server()).read_bytes())
    contexts.reload()
    assert contexts.current is not before


# ---- whatever comes ----


@given(st.data())
def test_damaged_input_fails_or_waits(
    certificates: Certificates, server_context: ssl.SSLContext, data: st.DataObject
) -> None:
    server, client = both(server_context, ConnectionOptions(ssl_trustfile=certificates.trusted))
    client.begin()
    hello = bytearray(client.take_output())
    for _ in range(data.draw(st.integers(1, 4))):
        hello[data.draw(st.integers(0, len(hello) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert server.receive(bytes(hello)) == b""
    except TlsError as error:
        reason = str(error)
    else:
        reason = "waits"
    assert reason.isprintable()
    assert not server.is_established


@given(st.binary(max_size=300))
def test_garbage_fails_or_waits(server_context: ssl.SSLContext, garbage: bytes) -> None:
    server = TlsSession(server_context, is_server=True)
    try:
        assert server.receive(b"\x16\x03" + garbage) == b""
    except TlsError as error:
        reason = str(error)
    else:
        reason = "waits"
    assert reason.isprintable()
    assert not server.is_established


def test_a_damaged_record_is_an_error(certificates: Certificates, server_context: ssl.SSLContext) -> None:
    server, client = both(server_context, ConnectionOptions(ssl_trustfile=certificates.trusted))
    shake_hands(server, client)
    client.send(b"hello")
    record = bytearray(client.take_output())
    record[-1] ^= 1
    with pytest.raises(TlsError, match="bad record mac"):
        server.receive(bytes(record))


def test_a_name_is_written_with_what_is_special_escaped() -> None:
    names = ((("countryName", "DE"),), (("organizationName", "A, B"), ("userId", "7")), (("commonName", "#1 "),))
    assert _name_text(names) == r"CN=\#1\ ,O=A\, B+UID=7,C=DE"
    assert _name_text(()) == ""
