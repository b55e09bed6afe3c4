r"""Users of other brokers' password files, to be taken over into a user file.

| format    | file                                                    | entries                                       |
|-----------|---------------------------------------------------------|-----------------------------------------------|
| sasldb    | Cyrus SASL's, of qpidd: a Berkeley DB, as text of       | name \0 realm \0 userPassword -> password     |
|           | `db5.3_dump` (with or without -p)                       |                                               |
| plain     | Apache's Java broker's PlainPasswordFile                | name:password                                 |
| base64md5 | the same broker's Base64MD5PasswordFile                 | name:base64 of the password's MD5             |

The last one has no passwords: until they get a new one, its users log in with PLAIN, or on request with
CRAM-MD5-HASHED or CRAM-MD5-HEX, and with CRAM-MD5 if the client has the hash in place of the password.

Sources: Qpid C++ Broker Book, 1.5.1.2 (sasldb); Java broker, "How do passwords work", the password files.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Final

from qstore.broker.security.users.verifiers import Verifiers, is_password, is_user_name
from qstore.formats.named_tuple import NamedTuple

SASLDB: Final = "sasldb"
PLAIN_FILE: Final = "plain"
BASE64_MD5: Final = "base64md5"
FORMATS: Final = (SASLDB, PLAIN_FILE, BASE64_MD5)

_MD5_BYTES: Final = 16


class ImportedUser(NamedTuple):
    """A user of another broker: either `password` or `md5`, of the password, is given."""

    name: str
    password: str = ""
    md5: bytes = b""

    def __repr__(self) -> str:
        return f"ImportedUser({self.name!r})"

    def verifiers(self, realm: str, mechanisms: Iterable[str]) -> Verifiers:
        """The user's verifiers; see `Verifiers.make`."""
        if self.md5:
            return Verifiers.of_md5(self.md5, mechanisms)
        return Verifiers.make(self.name, self.password, realm, mechanisms)


class Imported(NamedTuple):
    """The users of a file.

    Attributes:
        users: the users, each once.
        problems: entries that cannot be imported, one line each.
    """

    users: list[ImportedUser]
    problems: list[str]


def read_import(kind: str, content: bytes, realm: str) -> Imported:
    """Read the users of a file.

    Args:
        kind: one of `FORMATS`.
        content: of the file.
        realm: only users of this realm are taken from a sasldb.

    Raises:
        ValueError: it is not a file of this format.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"invalid UTF-8 at byte {error.start}") from None
    found = Imported([], [])
    names: set[str] = set()
    if kind == SASLDB:
        candidates = _sasldb_users(text, realm, found.problems)
    else:
        candidates = _password_file_users(text, kind, found.problems)
    for where, user in candidates:
        if not is_user_name(user.name):
            found.problems.append(f"{where}: {user.name!a} is not a valid user name")
        elif user.name in names:
            found.problems.append(f"{where}: user {user.name} again")
        elif not user.md5 and not is_password(user.password):
            found.problems.append(f"{where}: user {user.name}: the password is empty, too long, or contains NUL")
        else:
            names.add(user.name)
            found.users.append(user)
    return found


def _password_file_users(text: str, kind: str, problems: list[str]) -> Iterable[tuple[str, ImportedUser]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, rest = line.partition(":")
        if not colon:
            problems.append(f"line {number}: not name:password")
        elif kind == PLAIN_FILE:
            yield f"line {number}", ImportedUser(name, password=rest)
        else:
            try:
                md5 = base64.b64decode(rest.strip(), validate=True)
            except ValueError:
                md5 = b""
            if len(md5) == _MD5_BYTES:
                yield f"line {number}", ImportedUser(name, md5=md5)
            else:
                problems.append(f"line {number}: not the base64 of an MD5 hash")


def _sasldb_users(text: str, realm: str, problems: list[str]) -> Iterable[tuple[str, ImportedUser]]:
    header, end, body = text.partition("HEADER=END\n")
    if not end or not header.startswith("VERSION="):
        raise ValueError("not the output of db5.3_dump")
    is_printed = "format=print\n" in header
    lines = [line[1:] for line in body.split("DATA=END")[0].splitlines() if line.startswith(" ")]
    if len(lines) % 2:
        raise ValueError("a key without a value")
    for number, (key, value) in enumerate(zip(lines[::2], lines[1::2], strict=True), 1):
        where = f"entry {number}"
        try:
            parts = _dumped(key, is_printed=is_printed).decode().split("\0")
            password = _dumped(value, is_printed=is_printed).decode().removesuffix("\0")
        except ValueError:
            problems.append(f"{where}: not UTF-8")
            continue
        if len(parts) != 3 or parts[2] != "userPassword":
            continue  # other properties of a user
        if parts[1] != realm:
            problems.append(f"{where}: user {parts[0]!a} is of realm {parts[1]!a}, not {realm}")
        else:
            yield where, ImportedUser(parts[0], password=password)


def _dumped(text: str, *, is_printed: bool) -> bytes:
    """The bytes of a line. Raises ValueError."""
    if not is_printed:
        return bytes.fromhex(text)
    return re.sub(
        rb"\\(\\|[0-9a-fA-F]{2})",
        lambda found: b"\\" if found[1] == b"\\" else bytes.fromhex(found[1].decode()),
        text.encode(),
    )
