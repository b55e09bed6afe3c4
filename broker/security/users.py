"""The user file: user names and their password hashes.

One user per line; empty lines and lines that begin with `#` are ignored:

    name:scrypt$COST$BLOCK$PARALLEL$SALT$KEY

COST, BLOCK and PARALLEL are scrypt's n, r and p (RFC 7914, section 2), SALT and KEY are base64. Checking a password
takes about 40 ms and 16 MiB with the parameters that are used here. That is too slow for an event loop: run
`Users.verify` in a thread, only a few at the same time.

The file is read at each check, so changes take effect without a restart. An unknown user takes the same time as a known
one.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import Final, NamedTuple

MAX_FILE_BYTES: Final = 16 << 20
MAX_NAME: Final = 255
"""Maximum characters of a name, and bytes of a password (RFC 4616, section 2: more need not be supported)."""

_COST, _BLOCK, _PARALLEL = 1 << 14, 8, 1
_MAX_COST: Final = 1 << 17
_MAX_BLOCK: Final = 16
_MAX_PARALLEL: Final = 4
_MAX_MEMORY: Final = 512 << 20
_SALT_BYTES: Final = 16
_KEY_BYTES: Final = 32
_MAX_KEY_BYTES: Final = 128
_SCHEME: Final = "scrypt"


class UserFileError(Exception):
    """The user file is unreadable or invalid, or a user name or password is. The text is one line for the user."""


class _PasswordHash(NamedTuple):
    """A password's hash, and the parameters that it was made with."""

    cost: int
    block: int
    parallel: int
    salt: bytes
    key: bytes

    def derive(self, password: str) -> bytes:
        """The key of `password` with these parameters."""
        return hashlib.scrypt(
            password.encode(),
            salt=self.salt,
            n=self.cost,
            r=self.block,
            p=self.parallel,
            dklen=len(self.key),
            maxmem=_MAX_MEMORY,
        )

    def encode(self) -> str:
        """Its form in the file."""
        salt, key = (base64.b64encode(each).decode() for each in (self.salt, self.key))
        return f"{_SCHEME}${self.cost}${self.block}${self.parallel}${salt}${key}"


_UNKNOWN_USER: Final = _PasswordHash(_COST, _BLOCK, _PARALLEL, bytes(_SALT_BYTES), bytes(_KEY_BYTES))


def is_user_name(name: str) -> bool:
    """Whether `name` is valid: printable, without spaces, `:`, `@` and `#`, and not too long."""
    return 0 < len(name) <= MAX_NAME and name.isprintable() and not any(one in " :@#" for one in name)


def is_password(password: str) -> bool:
    """Whether `password` is valid: PLAIN can transfer it."""
    try:
        return 0 < len(password.encode()) <= MAX_NAME and "\0" not in password
    except UnicodeEncodeError:
        return False


class Users:
    """One user file.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def check(self) -> list[str]:
        """Validate the whole file.

        Returns:
            Warnings, one line each, such as that other users can read the file.

        Raises:
            UserFileError: it cannot be read, or has an invalid line.
        """
        names: set[str] = set()
        for number, line in self._lines():
            name, _ = self._parse(number, line)
            if name in names:
                raise UserFileError(f'{self.path}: line {number}: duplicate user "{name}"; remove one of the lines')
            names.add(name)
        try:
            mode = Path(self.path).stat().st_mode
        except OSError as error:
            raise self._unreadable(error) from error
        if mode & (stat.S_IRGRP | stat.S_IROTH):
            return [f"{self.path}: other users can read the password hashes; fix this with chmod 600"]
        return []

    def verify(self, name: str, password: str) -> bool:
        """Whether a user has this password. Takes tens of milliseconds: do not call it in an event loop.

        Raises:
            UserFileError: the file cannot be read, or the user's line is invalid.
        """
        found = self._find(name)
        is_right = hmac.compare_digest((found or _UNKNOWN_USER).derive(password), (found or _UNKNOWN_USER).key)
        return is_right and found is not None

    def put(self, name: str, password: str) -> bool:
        """Add a user, or set an existing user's password. Returns whether the user is new. Raises UserFileError."""
        if not is_user_name(name):
            raise UserFileError(f"{name!a}: invalid user name: it must not contain spaces, ':', '@' or '#'")
        if not is_password(password):
            raise UserFileError(f"invalid password: it must have 1 to {MAX_NAME} bytes in UTF-8, without NUL")
        salt = secrets.token_bytes(_SALT_BYTES)
        new = _PasswordHash(_COST, _BLOCK, _PARALLEL, salt, bytes(_KEY_BYTES))
        line = f"{name}:{new._replace(key=new.derive(password)).encode()}"
        lines, place = self._present(name)
        if place is None:
            lines.append(line)
        else:
            lines[place] = line
        self._replace(lines)
        return place is None

    def remove(self, name: str) -> None:
        """Remove a user. Raises UserFileError, also if the user does not exist."""
        lines, place = self._present(name)
        if place is None:
            raise UserFileError(f"{self.path}: no such user: {name!a}")
        del lines[place]
        self._replace(lines)

    # ---- the file ----

    def _find(self, name: str) -> _PasswordHash | None:
        prefix = name + ":"
        for number, line in self._lines():
            if line.startswith(prefix):
                return self._parse(number, line)[1]
        return None

    def _present(self, name: str) -> tuple[list[str], int | None]:
        """All lines of the file, none if it does not exist, and the index of the user's line."""
        try:
            lines = self._read().splitlines()
        except FileNotFoundError:
            return [], None
        except OSError as error:
            raise self._unreadable(error) from error
        return lines, next((place for place, line in enumerate(lines) if line.startswith(name + ":")), None)

    def _lines(self) -> list[tuple[int, str]]:
        """The lines of users, with their line numbers."""
        try:
            lines = enumerate(self._read().splitlines(), 1)
        except OSError as error:
            raise self._unreadable(error) from error
        return [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]

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

    def _parse(self, number: int, line: str) -> tuple[str, _PasswordHash]:
        name, _, rest = line.strip().partition(":")
        fields = rest.split("$")
        try:
            scheme, cost, block, parallel, salt, key = fields
            parsed = _PasswordHash(
                int(cost), int(block), int(parallel),
                base64.b64decode(salt, validate=True), base64.b64decode(key, validate=True),
            )  # fmt: skip
        except (ValueError, binascii.Error):
            raise self._invalid(number) from None
        is_legal = (
            scheme == _SCHEME
            and is_user_name(name)
            and 2 <= parsed.cost <= _MAX_COST
            and parsed.cost & (parsed.cost - 1) == 0
            and 1 <= parsed.block <= _MAX_BLOCK
            and 1 <= parsed.parallel <= _MAX_PARALLEL
            and _SALT_BYTES <= len(parsed.key) <= _MAX_KEY_BYTES
        )
        if not is_legal:
            raise self._invalid(number)
        return name, parsed

    def _invalid(self, number: int) -> UserFileError:
        return UserFileError(
            f"{self.path}: line {number}: not name:scrypt$… as qstore-passwd writes it; set the user's password again"
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
        except OSError as error:
            raise UserFileError(f"{self.path}: the user file cannot be written: {error.strerror}") from error
