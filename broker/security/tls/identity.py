"""The user in a client's certificate: the common name, and the domain components as its domain.

    CN=bob,DC=acme,DC=com        bob@acme.com
    CN=bob                       bob@REALM, the broker's realm

The order is that in which RFC 4514 writes a name: the most specific part first, the reverse of the order in the
certificate. `openssl req -subj /DC=com/DC=acme/CN=bob` makes such a one. The first common name counts.

Source: Qpid C++ Broker Book, 1.8 (--ssl-require-client-authentication).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qstore.broker.security.users.verifiers import MAX_NAME, is_user_name


def certificate_user(certificate: Mapping[str, Any], realm: str) -> str:
    """The user id in a certificate, as `ssl` describes it; empty if its name cannot be one."""
    parts = [pair for names in reversed(certificate.get("subject", ())) for pair in names]
    names = [value for kind, value in parts if kind == "commonName"]
    domain = ".".join(value for kind, value in parts if kind == "domainComponent")
    if not names or not is_user_name(names[0]) or (domain and not is_user_name(domain)):
        return ""
    user_id = f"{names[0]}@{domain or realm}"
    return user_id if len(user_id) <= MAX_NAME else ""
