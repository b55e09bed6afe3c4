"""TLS, sans-I/O: the encryption of a connection, the broker's certificate, and the user in a client's certificate.

**A connection** (`TlsSession`), for both ends: bytes of the socket in, plain bytes out, and back.

    begin()            a client's hello is ready to be taken; the server waits for one
    receive(data)      the bytes received from the socket -> the plain bytes of complete records
    send(data)         plain bytes to encrypt; not before `is_established`
    take_output()      the bytes to write to the socket
    close()            notifies the peer that nothing more follows

Memory: OpenSSL keeps at most one incomplete record (16 KiB) and one handshake message, whose size it limits; what is
complete is returned at once. The output grows only by what is sent, and by one answer for each received record.

**The broker's certificate** (`ServerContexts`), its key and certificate authorities are read from PEM files, and read
again on request. TLS 1.2 and 1.3; no renegotiation, no compression, no session tickets: AMQP connections are long. A
client that has a certificate must have a valid one, of an authority in `authority_file`; with `requires_certificate`
each client must.

**The user in a client's certificate** is the common name, with the domain components as its domain:

    CN=bob,DC=acme,DC=com        bob@acme.com
    CN=bob                       bob@REALM, the broker's realm

The order is that in which RFC 4514 writes a name: the most specific part first, the reverse of the order in the
certificate. `openssl req -subj /DC=com/DC=acme/CN=bob` makes such a one. The first common name counts.

Source: Qpid C++ Broker Book, 1.8 (--ssl-require-client-authentication).
"""

from __future__ import annotations

import re
import ssl
import stat
from base64 import b64decode
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from qstore.broker.security.users.verifiers import MAX_NAME, is_user_name
from qstore.broker.settings import TlsSettings
from qstore.formats.named_tuple import NamedTuple


class TlsError(Exception):
    """A handshake has failed, or the connection is damaged. The text is for people, without a full stop."""


class TlsConfigurationError(Exception):
    """A certificate, a key or a certificate authority cannot be used. The text is one line for the user."""


_REASONS: Final = {
    "HTTP_REQUEST": "the peer speaks HTTP, not TLS",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS",
    "UNKNOWN_PROTOCOL": "the peer does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "the peer offers only versions of TLS before 1.2",
    "NO_SHARED_CIPHER": "no cipher is acceptable to both",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust the certificate authority",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the broker requires a client certificate",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the peer has refused the handshake",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer has refused the certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer has refused the certificate, since it has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer has refused the certificate",
}


def tls_reason(error: ssl.SSLError) -> str:
    """The meaning of an error of OpenSSL."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {error.verify_message}"
    reason = error.reason or ""
    return _REASONS.get(reason) or reason.replace("_", " ").lower() or "the connection is damaged"


# ---- one connection ----

_RECORD: Final = 16 * 1024  # bytes: the plain content of a record at most (RFC 8446, section 5.1)


class TlsFacts(NamedTuple):
    """What the handshake has agreed on. All empty if that is not known.

    Attributes:
        version: TLSv1.2 or TLSv1.3.
        cipher: the cipher suite, by OpenSSL's name.
        subject, issuer: names in the peer's certificate, as RFC 4514 writes them; empty if it has none.
        validity: of the certificate: its first and its last moment in UTC, as ISO 8601 writes them; likewise.
    """

    version: str = ""
    cipher: str = ""
    subject: str = ""
    issuer: str = ""
    validity: str = ""


class TlsSession:
    """One connection.

    Args:
        context: certificates and versions.
        is_server: whether this is the broker's end.
        host: the name that the server's certificate must have, for the client's end.

    Attributes:
        is_established: whether the handshake is complete.
        is_over: whether the peer has announced that nothing more follows.
    """

    def __init__(self, context: ssl.SSLContext, *, is_server: bool, host: str | None = None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server, server_hostname=host)
        self.is_established = self.is_over = False

    def begin(self) -> None:
        """Begin the handshake: the client has a hello to send. Raises TlsError."""
        self._shake_hands()

    def receive(self, data: bytes) -> bytes:
        """Process bytes of the socket. Returns plain bytes.

        Raises:
            TlsError: the handshake has failed, or the data is damaged. `take_output` may have the reason for the peer.
        """
        self._incoming.write(data)
        if not self.is_established:
            self._shake_hands()
            if not self.is_established:
                return b""
        parts: list[bytes] = []
        read = self._object.read
        try:
            while True:
                part = read(_RECORD)
                if not part:
                    self.is_over = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_over = True
        except ssl.SSLError as error:
            raise TlsError(tls_reason(error)) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _shake_hands(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise TlsError(tls_reason(error)) from None
        self.is_established = True

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt plain bytes. Raises TlsError."""
        if not data:
            return
        try:
            self._object.write(data)
        except ssl.SSLError as error:
            raise TlsError(tls_reason(error)) from None

    def take_output(self) -> bytes:
        """Take the bytes to write to the socket."""
        return self._outgoing.read()

    def close(self) -> None:
        """Tell the peer that nothing more comes, if the handshake is complete."""
        if self.is_established:
            try:
                self._object.unwrap()
            except ssl.SSLError:
                return  # the peer has not answered yet, and need not

    @property
    def certificate(self) -> dict[str, Any]:
        """The peer's verified certificate, as `ssl` describes it; empty if it has none."""
        return self._object.getpeercert() or {}

    @property
    def ssf(self) -> int:
        """Bits of the key, once the handshake is complete."""
        cipher = self._object.cipher()
        return 0 if cipher is None else cipher[2]

    @property
    def facts(self) -> TlsFacts:
        """What the handshake has agreed on, once it is complete."""
        certificate, cipher = self.certificate, self._object.cipher()
        moments = [_moment(certificate[name]) for name in ("notBefore", "notAfter") if name in certificate]
        return TlsFacts(
            self._object.version() or "",
            cipher[0] if cipher else "",
            _name_text(certificate.get("subject", ())),
            _name_text(certificate.get("issuer", ())),
            " - ".join(moments),
        )

    @property
    def version(self) -> str:
        """Version and cipher, for the log."""
        cipher = self._object.cipher()
        return f"{self._object.version()}, {cipher[0] if cipher else 'no cipher'}"


_SHORT: Final = {
    "commonName": "CN", "countryName": "C", "domainComponent": "DC", "localityName": "L", "organizationName": "O",
    "organizationalUnitName": "OU", "stateOrProvinceName": "ST", "streetAddress": "STREET", "userId": "UID",
}  # fmt: skip
_special = re.compile(r'[,+"\\<>;=]|^[ #]| $')


def _name_text(names: Iterable[Iterable[tuple[str, str]]]) -> str:
    """A name of a certificate, as `ssl` describes it, in the form of RFC 4514: the most specific part first."""
    return ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_special.sub(_escaped, value)}" for kind, value in parts)
        for parts in reversed(list(names))
    )


def _moment(text: str) -> str:
    """A time of a certificate, as `ssl` writes it, in the form of ISO 8601."""
    return f"{datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC):%Y-%m-%dT%H:%M:%SZ}"


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


# ---- the broker's certificate ----

_MAX_PASSWORD_BYTES: Final = 1024


class ServerContexts:
    """The context of new connections; those that are open keep theirs.

    Args:
        settings: the files.

    Attributes:
        current: the context.
        expires_at: when the first certificate of the chain expires, in seconds since 1970; 0 if that is unknown.

    Raises:
        TlsConfigurationError: a file cannot be used.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self.current, self.expires_at = _make_context(settings), certificate_expiry(settings.certificate_file)

    def reload(self) -> None:
        """Read all files again.

        Raises:
            TlsConfigurationError: a file cannot be used; the previous context stays.
        """
        self.current = _make_context(self._settings)
        self.expires_at = certificate_expiry(self._settings.certificate_file)

    def warnings(self) -> list[str]:
        """Warnings about insecure files, one line each."""
        key = self._settings.key_file or self._settings.certificate_file
        try:
            mode = Path(key).stat().st_mode
        except OSError:
            return []
        if mode & (stat.S_IRGRP | stat.S_IROTH) and self._settings.password_file is None:
            return [f"{key}: other users can read the private key; fix this with chmod 600"]
        return []


def _make_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET | ssl.OP_SINGLE_ECDH_USE
    context.num_tickets = 0
    _load_certificate(context, settings)
    if settings.authority_file is not None:
        _check_readable(settings.authority_file, "--ssl-ca")
        try:
            context.load_verify_locations(settings.authority_file)
        except ssl.SSLError as error:
            raise TlsConfigurationError(
                f"{settings.authority_file}: no certificates in PEM format: {tls_reason(error)}; see --ssl-ca"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED if settings.requires_certificate else ssl.CERT_OPTIONAL
    return context


def client_context(settings: TlsSettings | None) -> ssl.SSLContext:
    """The context of connections that the broker opens: the peer's certificate must be valid for its host.

    Raises:
        TlsConfigurationError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings is not None:
        _load_certificate(context, settings)
    if settings is None or settings.authority_file is None:
        context.load_default_certs()
        return context
    _check_readable(settings.authority_file, "--ssl-ca")
    try:
        context.load_verify_locations(settings.authority_file)
    except ssl.SSLError as error:
        text = f"{settings.authority_file}: no certificates in PEM format: {tls_reason(error)}; see --ssl-ca"
        raise TlsConfigurationError(text) from None
    return context


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    certificate, key = settings.certificate_file, settings.key_file
    _check_readable(certificate, "--ssl-cert")
    if key is not None:
        _check_readable(key, "--ssl-key")
    password = b"" if settings.password_file is None else _password(settings.password_file)
    was_asked = False

    def answer() -> bytes:
        nonlocal was_asked
        was_asked = True
        return password

    try:
        context.load_cert_chain(certificate, key, answer)
    except ssl.SSLError as error:
        where = key or certificate
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsConfigurationError(f"{where}: not the private key of the certificate in {certificate}") from None
        if was_asked:
            what = "wrong password" if password else "the key has a password"
            raise TlsConfigurationError(f"{where}: {what}; see --ssl-cert-password-file") from None
        raise TlsConfigurationError(
            f"{certificate}{'' if key is None else ' and ' + key}: no certificate with its private key in PEM format: "
            f"{tls_reason(error)}; see --ssl-cert and --ssl-key"
        ) from None


def _password(path: str) -> bytes:
    """The first line of the password file."""
    _check_readable(path, "--ssl-cert-password-file")
    with Path(path).open("rb") as file:
        return file.readline(_MAX_PASSWORD_BYTES).rstrip(b"\r\n")


def _check_readable(path: str, option: str) -> None:
    """Raise TlsConfigurationError unless this is a regular file that can be read: OpenSSL does not name the file."""
    try:
        if not Path(path).is_file():
            raise TlsConfigurationError(f"{path}: not a regular file, or missing; see {option}")
        with Path(path).open("rb"):
            return
    except OSError as error:
        raise TlsConfigurationError(f"{path}: cannot be read: {error.strerror}; see {option}") from None


# ---- when a certificate expires ----

_MAX_CHAIN: Final = 1 << 20
_PEM: Final = re.compile(rb"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----.*?-----END", re.DOTALL)
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18  # tags
_FIELDS_BEFORE_VALIDITY: Final = 3  # serial number, algorithm, issuer


def certificate_expiry(path: str) -> float:
    """When the first of the certificates in a PEM file expires, in seconds since 1970; 0 if that is unknown."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_CHAIN)
    except OSError:
        return 0.0
    found: list[float] = []
    for block in _PEM.findall(content):
        try:
            found.append(_not_after(b64decode(block.split(b"-----")[2])))
        except (ValueError, IndexError):
            return 0.0
    return min(found, default=0.0)


def _not_after(certificate: bytes) -> float:
    """The end of the validity of a certificate in DER (RFC 5280, 4.1). Raises ValueError, IndexError."""
    _, fields, _ = _element(certificate)
    _, rest, _ = _element(fields)
    kind, _, after = _element(rest)
    rest = after if kind == _VERSION else rest
    for _ in range(_FIELDS_BEFORE_VALIDITY):
        _, _, rest = _element(rest)
    _, validity, _ = _element(rest)
    _, _, rest = _element(validity)
    kind, value, _ = _element(rest)
    if kind not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError("no time")
    text = value.decode("ascii")
    if kind == _UTC_TIME:  # years 50 to 99 are of the last century
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """The first element of DER: its tag and content; and what follows it. Raises ValueError, IndexError."""
    tag, size, begin = data[0], data[1], 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(data[2:begin], "big")
    if len(data) < begin + size:
        raise ValueError("it is cut short")
    return tag, data[begin : begin + size], data[begin + size :]


# ---- the user in a client's certificate ----


def certificate_user(certificate: Mapping[str, Any], realm: str) -> str:
    """The user id in a certificate, as `ssl` describes it; empty if its name cannot be one."""
    parts = [pair for names in reversed(certificate.get("subject", ())) for pair in names]
    names = [value for kind, value in parts if kind == "commonName"]
    domain = ".".join(value for kind, value in parts if kind == "domainComponent")
    if not names or not is_user_name(names[0]) or (domain and not is_user_name(domain)):
        return ""
    user_id = f"{names[0]}@{domain or realm}"
    return user_id if len(user_id) <= MAX_NAME else ""
