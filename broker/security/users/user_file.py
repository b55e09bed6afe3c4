"""The user file: user names and their verifiers.

One user per line; empty lines and lines that begin with `#` are ignored:

    name:VERIFIER VERIFIER …       see `verifiers`
    :decoy$SECRET                  the secret for the salts of unknown users (base64)

An unknown user must not be distinguishable from a known one. Checking a password takes the same time for both, and
SCRAM shows both a salt: that of an unknown user is derived from the name and the decoy secret, so it is always the
same one.

The file is read again when it has changed, so changes take effect without a restart. What is asked at each connection
(`supports`) or for each unknown user is found once for each content of the file: with 20,000 users that takes
milliseconds, and clients that are not logged in can cause it as often as they like.

`verify` takes tens of milliseconds: run it in a thread, only a few at the same time. So that clients that come back do
not wait for it, `recalls` answers for the last passwords that were right. It keeps no password, but a keyed hash of
name, verifier and password under a key of this process: fast to compute, so it never leaves memory.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from qstore.broker.security.users.verifiers import (
    DEFAULT_MECHANISMS,
    MAX_NAME,
    SALT_BYTES,
    SCRAM_HASHES,
    SCRAM_ITERATIONS,
    UNKNOWN_SCRYPT,
    ScramVerifier,
    Verifiers,
    is_password,
    is_user_name,
    schemes_for,
)
from qstore.formats.named_tuple import NamedTuple

MAX_FILE_BYTES: Final = 16 << 20
_DECOY: Final = ":decoy$"
_DECOY_BYTES: Final = 32
MAX_RECALLED: Final = 4_096
"""Number of correct passwords in the cache of `Users.recalls`: those used last."""


class UserFileError(Exception):
    """The user file is unreadable or invalid, or a user name or password is. The text is one line for the user."""


class _Line(NamedTuple):
    """A user's line: its number, and the text after the name."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class _Table:
    """The content of the file.

    Attributes:
        version: identifies the file's content: its inode, size and times.
        lines: user name -> line.
        decoy: the secret for unknown users; of this process only, if the file has none.
        duplicates: line numbers of users that the file has twice.
        supported: mechanism -> whether all users have a verifier for it, computed on demand.
        usual: SCRAM mechanism -> iterations and bytes of the salt that its users have, likewise.
    """

    version: tuple[int, ...]
    lines: Mapping[str, _Line]
    decoy: bytes
    duplicates: Mapping[str, int]
    supported: dict[str, bool] = field(default_factory=dict)
    usual: dict[str, tuple[int, int]] = field(default_factory=dict)


class Users:
    """One user file.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._table: _Table | None = None
        self._lock = threading.Lock()
        self._own_decoy = secrets.token_bytes(_DECOY_BYTES)
        self._recall_key = secrets.token_bytes(32)
        self._recalled: dict[bytes, None] = {}  # tags of passwords that were right, the last used one last
        self._recall_lock = threading.Lock()

    # ---- reading ----

    def check(self) -> list[str]:
        """Validate the whole file.

        Returns:
            Warnings, one line each, such as that other users can read the file.

        Raises:
            UserFileError: it cannot be read, or has an invalid line.
        """
        table = self._read_table()
        for name, line in table.lines.items():
            self._parse(name, line)
        for name, number in table.duplicates.items():
            raise UserFileError(f'{self.path}: line {number}: duplicate user "{name}"; remove one of the lines')
        try:
            mode = Path(self.path).stat().st_mode
        except OSError as error:
            raise self._unreadable(error) from error
        if mode & (stat.S_IRGRP | stat.S_IROTH):
            return [f"{self.path}: other users can read the password hashes; fix this with chmod 600"]
        return []

    def names(self) -> list[str]:
        """The names of all users, in the order of the file. Raises UserFileError."""
        return list(self._read_table().lines)

    def find(self, name: str) -> Verifiers | None:
        """The verifiers of a user; None if there is no such user. Raises UserFileError."""
        line = self._read_table().lines.get(name)
        return None if line is None else self._parse(name, line)

    def supports(self, mechanism: str) -> bool:
        """Whether all users have a verifier for a mechanism, and there are any. False if the file cannot be read."""
        try:
            table = self._read_table()
        except UserFileError:
            return False
        known = table.supported.get(mechanism)
        if known is None:
            marks = tuple(f" {scheme}$" for scheme in schemes_for(mechanism))
            lines = [text for text in (line.text for line in table.lines.values()) if not text.startswith("tags$")]
            known = bool(lines) and all(any(mark in f" {text}" for mark in marks) for text in lines)
            table.supported[mechanism] = known
        return known

    def recalls(self, name: str, password: str) -> bool:
        """Whether `verify` has found this password right before, and the user's line is still the same. Fast.

        Raises:
            UserFileError: the file cannot be read.
        """
        line = self._read_table().lines.get(name)
        if line is None or not is_password(password):
            return False
        tag = self._tag(name, line, password)
        with self._recall_lock:
            if tag not in self._recalled:
                return False
            self._recalled[tag] = self._recalled.pop(tag)
            return True

    def _tag(self, name: str, line: _Line, password: str) -> bytes:
        return hmac.digest(self._recall_key, f"{name}\0{line.text}\0{password}".encode(), "sha256")

    def _recall(self, tag: bytes) -> None:
        """A password was right."""
        with self._recall_lock:
            self._recalled[tag] = None
            if len(self._recalled) > MAX_RECALLED:
                del self._recalled[next(iter(self._recalled))]

    def verify(self, name: str, password: str) -> bool:
        """Whether a user has this password. Takes tens of milliseconds: do not call it in an event loop.

        Raises:
            UserFileError: the file cannot be read, or the user's line is invalid.
        """
        line = self._read_table().lines.get(name)
        found = None if line is None else self._parse(name, line)
        if not is_password(password):
            return False
        if line is None or found is None or "PLAIN" not in found.mechanisms():
            UNKNOWN_SCRYPT.matches(password)
            return False
        if not found.matches(password):
            return False
        self._recall(self._tag(name, line, password))
        return True

    def scram(self, mechanism: str, name: str) -> ScramVerifier:
        """The verifier of a user for a SCRAM mechanism; an invented one, always with the same salt, for others."""
        found = self.find(name)
        if found is not None and mechanism in found.scram:
            return found.scram[mechanism]
        table = self._read_table()
        iterations, salt_bytes = self._usual(table, mechanism)
        size = hashlib.new(SCRAM_HASHES[mechanism]).digest_size
        salt = hmac.digest(table.decoy, f"{mechanism}:{name}".encode(), "sha512")
        return ScramVerifier(iterations, salt[:salt_bytes], secrets.token_bytes(size), secrets.token_bytes(size))

    def _usual(self, table: _Table, mechanism: str) -> tuple[int, int]:
        """Iterations and bytes of the salt that the users of this mechanism have."""
        usual = table.usual.get(mechanism)
        if usual is None:
            usual = table.usual[mechanism] = self._first(table, mechanism)
        return usual

    def _first(self, table: _Table, mechanism: str) -> tuple[int, int]:
        for name, line in table.lines.items():
            if f"{mechanism}$" in line.text:
                with contextlib.suppress(UserFileError, KeyError):
                    found = self._parse(name, line).scram[mechanism]
                    return found.iterations, len(found.salt)
        return SCRAM_ITERATIONS, SALT_BYTES

    def cram(self, mechanism: str, name: str) -> bytes:
        """The two MD5 states of a user for a mechanism of `verifiers.CRAM`; random ones of an unknown user."""
        found = self.find(name)
        return (found.cram.get(mechanism) if found is not None else None) or secrets.token_bytes(32)

    def digest_md5(self, name: str, realm: str) -> bytes:
        """The hash of a user for DIGEST-MD5 in a realm; a random one if there is none."""
        found = self.find(name)
        if found is not None and found.digest_md5 is not None and found.digest_md5[0] == realm:
            return found.digest_md5[1]
        return secrets.token_bytes(16)

    def why_wrong(self, name: str, mechanism: str) -> str:
        """Why a login has failed, for the log: the client is not told."""
        found = self.find(name)
        mechanism = "PLAIN" if mechanism == "AMQPLAIN" else mechanism
        if found is not None and mechanism not in found.mechanisms():
            return f"the user file has no {mechanism} verifier for this user; set the password again with qstore-passwd"
        return "unknown user or wrong password"

    # ---- changing ----

    def put(
        self, name: str, password: str, mechanisms: Iterable[str] = DEFAULT_MECHANISMS, *, realm: str = "QPID"
    ) -> bool:
        """Add a user, or set an existing user's password.

        Args:
            name: the user's name.
            password: the user's password.
            mechanisms: those that the user can log in with, of `verifiers.MECHANISMS`.
            realm: the broker's realm, for DIGEST-MD5.

        Returns:
            Whether the user is new.

        Raises:
            UserFileError: the name or the password is invalid, or the file cannot be read or written.
        """
        _check_name(name)
        if not is_password(password):
            raise UserFileError(f"invalid password: it must have 1 to {MAX_NAME} bytes in UTF-8, without NUL")
        try:
            verifiers = Verifiers.make(name, password, realm, mechanisms)
        except ValueError as error:
            raise UserFileError(f"invalid password: {error}") from None
        return self.put_all({name: verifiers}) == 1

    @property
    def exists(self) -> bool:
        """Whether there is such a file."""
        return Path(self.path).exists()

    def tags(self, name: str) -> tuple[str, ...]:
        """The tags of a user; none if there is no such user. Raises UserFileError."""
        found = self.find(name)
        return () if found is None else found.tags

    def has_administrator(self) -> bool:
        """Whether a user has the tag administrator. Raises UserFileError."""
        table = self._read_table()
        lines = [(name, line) for name, line in table.lines.items() if "administrator" in line.text]
        return any("administrator" in self._parse(name, line).tags for name, line in lines)

    def put_all(self, users: Mapping[str, Verifiers], *, keeps_tags: bool = True) -> int:
        """Add or replace users.

        Args:
            users: name -> verifiers.
            keeps_tags: whether existing users without tags here keep theirs.

        Returns:
            How many are new.

        Raises:
            UserFileError: a name is not valid, or the file cannot be read or written.
        """
        for name in users:
            _check_name(name)
        lines = self._present()
        if not any(line.startswith(_DECOY) for line in lines):
            lines.append(_DECOY + base64.b64encode(secrets.token_bytes(_DECOY_BYTES)).decode())
        places = {line.partition(":")[0]: place for place, line in enumerate(lines) if not line.startswith("#")}
        new = 0
        for name, verifiers in users.items():
            if keeps_tags and name in places and not verifiers.tags:
                with contextlib.suppress(ValueError):
                    verifiers = verifiers.with_tags(Verifiers.parse(lines[places[name]].partition(":")[2]).tags)
            line = f"{name}:{verifiers.text()}"
            if name in places:
                lines[places[name]] = line
            else:
                lines.append(line)
                new += 1
        self._replace(lines)
        return new

    def remove(self, name: str) -> None:
        """Remove a user. Raises UserFileError, also if the user does not exist."""
        lines = self._present()
        place = next((place for place, line in enumerate(lines) if name and line.startswith(name + ":")), None)
        if place is None:
            raise UserFileError(f"{self.path}: no such user: {name!a}")
        del lines[place]
        self._replace(lines)

    # ---- the file ----

    def _present(self) -> list[str]:
        """All lines of the file; none if it does not exist."""
        try:
            return self._read().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unreadable(error) from error

    def _read_table(self) -> _Table:
        """The content of the file, read again if it has changed."""
        with self._lock:
            try:
                state = Path(self.path).stat()
                version = (state.st_ino, state.st_dev, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
                if self._table is None or self._table.version != version:
                    self._table = None  # with an unreadable file, all logins fail
                    self._table = self._make_table(self._read(), version)
                return self._table
            except OSError as error:
                self._table = None
                raise self._unreadable(error) from error

    def _make_table(self, text: str, version: tuple[int, ...]) -> _Table:
        lines: dict[str, _Line] = {}
        duplicates: dict[str, int] = {}
        decoy = self._own_decoy
        for number, line in enumerate(text.splitlines(), 1):
            stripped = line.strip()
            if stripped.startswith(_DECOY):
                with contextlib.suppress(ValueError):
                    decoy = base64.b64decode(stripped.removeprefix(_DECOY), validate=True) or decoy
            elif stripped and not line.startswith("#"):
                name, _, rest = stripped.partition(":")
                if name in lines:
                    duplicates[name] = number
                else:
                    lines[name] = _Line(number, rest)
        return _Table(version, lines, decoy, duplicates)

    def _read(self) -> str:
        # O_NONBLOCK: refuse a FIFO instead of blocking on it.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise UserFileError(f"{self.path}: not a user file: not a regular file")
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise UserFileError(f"{self.path}: not a user file: larger than {MAX_FILE_BYTES:,} bytes")
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise UserFileError(f"{self.path}: not a user file: invalid UTF-8 at byte {error.start}") from None

    def _unreadable(self, error: OSError) -> UserFileError:
        return UserFileError(f"{self.path}: the user file cannot be read: {error.strerror}; qstore-passwd creates one")

    def _parse(self, name: str, line: _Line) -> Verifiers:
        try:
            if is_user_name(name):
                return Verifiers.parse(line.text)
        except ValueError:
            pass
        raise UserFileError(
            f"{self.path}: line {line.number}: not name:scrypt$… as qstore-passwd writes it; set the user's password "
            "again"
        )

    def _replace(self, lines: list[str]) -> None:
        """Replace the file atomically; the new one is readable by its owner only."""
        new = self.path + ".new"
        try:
            with contextlib.suppress(FileNotFoundError):
                Path(new).unlink()
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            Path(new).replace(self.path)
            directory = os.open(Path(self.path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise UserFileError(f"{self.path}: the user file cannot be written: {error.strerror}") from error


def _check_name(name: str) -> None:
    if not is_user_name(name):
        raise UserFileError(f"{name!a}: invalid user name: it must not contain spaces, ':', '@' or '#'")
