"""Certificates for tests, made on demand by an authority that is trusted only here."""

from __future__ import annotations

import datetime
from functools import cached_property
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PASSWORD = b"of the key"


class Certificates:
    """Files in a directory.

    Attributes:
        directory: where they are.
        authority: signs them.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = trustme.CA()

    @cached_property
    def trusted(self) -> str:
        """The authority's certificate."""
        path = self.directory / "authority.pem"
        self.authority.cert_pem.write_to_path(str(path))
        return str(path)

    def server(self, name: str = "127.0.0.1", file: str = "server.pem") -> str:
        """Certificate and key of a host, in one file."""
        return self._write(file, self.authority.issue_cert(name).private_key_and_cert_chain_pem.bytes())

    def client(self, name: str) -> str:
        """Certificate and key of a user."""
        issued = self.authority.issue_cert(common_name=name)
        return self._write(f"{name}.pem", issued.private_key_and_cert_chain_pem.bytes())

    def client_of_domain(self, name: str, *domain: str) -> str:
        """Certificate and key of a user of a domain: CN=name and its DCs, the least specific first."""
        parts = [(NameOID.DOMAIN_COMPONENT, each) for each in reversed(domain)]
        subject = x509.Name([x509.NameAttribute(kind, value) for kind, value in [*parts, (NameOID.COMMON_NAME, name)]])
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
        issuer = x509.load_pem_x509_certificate(self.authority.cert_pem.bytes())
        signer = serialization.load_pem_private_key(self.authority.private_key_pem.bytes(), None)
        built = (
            x509.CertificateBuilder(issuer.subject, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .sign(signer, hashes.SHA256())  # type: ignore[arg-type]
        )
        return self._write(f"{name}.{'.'.join(domain)}.pem", _key(key, None) + built.public_bytes(_PEM))

    def encrypted_key(self) -> tuple[str, str, str]:
        """Certificate, its key with a password, and a file with that password."""
        issued = self.authority.issue_cert("127.0.0.1")
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        return (
            self._write("plain.pem", b"".join(blob.bytes() for blob in issued.cert_chain_pems)),
            self._write("key.pem", _key(key, PASSWORD)),
            self._write("password", PASSWORD + b"\n"),
        )

    def _write(self, name: str, content: bytes) -> str:
        path = self.directory / name
        path.touch(0o600)
        path.write_bytes(content)
        return str(path)


_PEM = serialization.Encoding.PEM


def _key(key: object, password: bytes | None) -> bytes:
    encryption = serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    found: bytes = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, encryption)  # type: ignore[attr-defined]
    return found
