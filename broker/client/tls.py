"""The client's end of TLS: whom to trust, and the client's own certificate."""

from __future__ import annotations

import ssl
from pathlib import Path

from qstore.broker.client.errors import ConnectError
from qstore.broker.client.options import ConnectionOptions
from qstore.broker.security.tls.errors import tls_reason


def client_context(options: ConnectionOptions) -> ssl.SSLContext:
    """The context for the connections of these options.

    The broker's certificate must be valid, of an authority in `ssl_trustfile` (by default those that the system
    trusts), and have the name of the host, unless `ssl_skip_hostname_check` is set.

    Raises:
        ConnectError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = not options.ssl_skip_hostname_check
    if options.ssl_trustfile is None:
        context.load_default_certs()
    else:
        _check_readable(options.ssl_trustfile, "ssl_trustfile")
        try:
            context.load_verify_locations(options.ssl_trustfile)
        except ssl.SSLError as error:
            raise ConnectError(
                f"{options.ssl_trustfile}: no certificates in PEM format: {tls_reason(error)}; see ssl_trustfile"
            ) from None
    if options.ssl_certificate is not None:
        _load_certificate(context, options.ssl_certificate, options.ssl_key)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    _check_readable(certificate, "ssl_certificate")
    if key is not None:
        _check_readable(key, "ssl_key")
    try:
        context.load_cert_chain(certificate, key, lambda: b"")
    except ssl.SSLError as error:
        raise ConnectError(
            f"{certificate}{'' if key is None else ' and ' + key}: no certificate with its private key, without a "
            f"password, in PEM format: {tls_reason(error)}; see ssl_certificate and ssl_key"
        ) from None


def _check_readable(path: str, option: str) -> None:
    try:
        with Path(path).open("rb"):
            return
    except OSError as error:
        raise ConnectError(f"{path}: cannot be read: {error.strerror}; see {option}") from None
