"""The broker's end of TLS: certificate, key and certificate authorities, read from PEM files and read again on request.

TLS 1.2 and 1.3; no renegotiation, no compression, no session tickets: AMQP connections are long. A client that has a
certificate must have a valid one, of an authority in `authority_file`; with `requires_certificate` each client must.
"""

from __future__ import annotations

import ssl
import stat
from pathlib import Path
from typing import Final

from qstore.broker.security.tls.errors import TlsConfigurationError, tls_reason
from qstore.broker.settings import TlsSettings

_MAX_PASSWORD_BYTES: Final = 1024


class ServerContexts:
    """The context of new connections; those that are open keep theirs.

    Args:
        settings: the files.

    Attributes:
        current: the context.

    Raises:
        TlsConfigurationError: a file cannot be used.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self.current = _make_context(settings)

    def reload(self) -> None:
        """Read all files again.

        Raises:
            TlsConfigurationError: a file cannot be used; the previous context stays.
        """
        self.current = _make_context(self._settings)

    def warnings(self) -> list[str]:
        """What is insecure about the files, one line each."""
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
            raise TlsConfigurationError(f"{path}: not a regular file, or there is none; see {option}")
        with Path(path).open("rb"):
            return
    except OSError as error:
        raise TlsConfigurationError(f"{path}: cannot be read: {error.strerror}; see {option}") from None
