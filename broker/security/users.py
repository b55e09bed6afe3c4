"""The file of users: names, and what is kept of their passwords.

One user a line; lines that are empty or begin with `#` are passed over:

    name:scrypt$COST$BLOCK$PARALLEL$SALT$KEY

COST, BLOCK and PARALLEL are scrypt's n, r and p (RFC 7914, section 2), SALT and KEY are base64. So a password cannot be
read from the file, only tried, and each try costs what scrypt costs: about 40 ms and 16 MiB with the numbers that are
written here. That is too long for an event loop; `Users.verify` is to be run beside it, and a few at a time.

The file is read at each check, so a user who is added or removed need not wait for a restart. Someone who is not in it
costs the same time as someone who is.
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
"""Characters of a name, and bytes of a password (RFC 4616, section 2: more need not be supported)."""

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
    """The file cannot be used, or a name in it. The text is one line for a person."""


class _Kept(NamedTuple):
    """What is kept of a password."""

    cost: int
    block: int
    parallel: int
    salt: bytes
    key: bytes

    def derive(self, password: str) -> bytes:
        """The key that `password` gives."""
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
        """As it stands in the file."""
        salt, key = (base64.b64encode(each).decode() for each in (self.salt, self.key))
        return f"{_SCHEME}${self.cost}${self.block}${self.parallel}${salt}${key}"


_NOBODY: Final = _Kept(_COST, _BLOCK, _PARALLEL, bytes(_SALT_BYTES), bytes(_KEY_BYTES))


def is_user_name(name: str) -> bool:
    """Whether `name` may be a user's: printable, without blanks, `:` and `@`, and not too long."""
    return 0 < len(name) <= MAX_NAME and name.isprintable() and not any(one in " :@#" for one in name)


def is_password(password: str) -> bool:
    """Whether `password` may be one: PLAIN can carry it."""
    try:
        return 0 < len(password.encode()) <= MAX_NAME and "\0" not in password
    except UnicodeEncodeError:
        return False


class Users:
    """The users of one file.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def check(self) -> list[str]:
        """Read the whole file once.

        Returns:
            One line for each thing that a person should know, such as a file that others can read.

        Raises:
            UserFileError: it cannot be read, or a line is not as it should be.
        """
        names: set[str] = set()
        for number, line in self._lines():
            name, _ = self._parse(number, line)
            if name in names:
                raise UserFileError(f'{self.path}: line {number}: user "{name}" is there twice; remove one of them')
            names.add(name)
        try:
            mode = Path(self.path).stat().st_mode
        except OSError as error:
            raise self._unreadable(error) from error
        if mode & (stat.S_IRGRP | stat.S_IROTH):
            return [f"{self.path}: others can read the users' password keys; take that away with chmod 600"]
        return []

    def verify(self, name: str, password: str) -> bool:
        """Whether a user has this password. Takes tens of milliseconds: not to be called by an event loop.

        Raises:
            UserFileError: the file cannot be read, or the user's line is not as it should be.
        """
        kept = self._find(name)
        is_right = hmac.compare_digest((kept or _NOBODY).derive(password), (kept or _NOBODY).key)
        return is_right and kept is not None

    def put(self, name: str, password: str) -> bool:
        """Add a user, or give one a new password. Whether the user is new. Raises UserFileError."""
        if not is_user_name(name):
            raise UserFileError(f"{name!a} cannot be a user's name: leave out blanks, ':', '@' and '#'")
        if not is_password(password):
            raise UserFileError(f"a password is text of 1 to {MAX_NAME} bytes in UTF-8, without NUL")
        salt = secrets.token_bytes(_SALT_BYTES)
        kept = _Kept(_COST, _BLOCK, _PARALLEL, salt, bytes(_KEY_BYTES))
        line = f"{name}:{kept._replace(key=kept.derive(password)).encode()}"
        lines, place = self._present(name)
        if place is None:
            lines.append(line)
        else:
            lines[place] = line
        self._replace(lines)
        return place is None

    def remove(self, name: str) -> None:
        """Remove a user. Raises UserFileError, also if there is none of that name."""
        lines, place = self._present(name)
        if place is None:
            raise UserFileError(f"{self.path}: there is no user {name!a}")
        del lines[place]
        self._replace(lines)

    # ---- the file ----

    def _find(self, name: str) -> _Kept | None:
        prefix = name + ":"
        for number, line in self._lines():
            if line.startswith(prefix):
                return self._parse(number, line)[1]
        return None

    def _present(self, name: str) -> tuple[list[str], int | None]:
        """All lines of the file, if there is one, and which of them is the user's."""
        try:
            lines = self._read().splitlines()
        except FileNotFoundError:
            return [], None
        except OSError as error:
            raise self._unreadable(error) from error
        return lines, next((place for place, line in enumerate(lines) if line.startswith(name + ":")), None)

    def _lines(self) -> list[tuple[int, str]]:
        """The users' lines with their numbers."""
        try:
            lines = enumerate(self._read().splitlines(), 1)
        except OSError as error:
            raise self._unreadable(error) from error
        return [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]

    def _read(self) -> str:
        # O_NONBLOCK: a FIFO is refused, and not waited for.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise UserFileError(f"{self.path}: this is no user file: it is not a regular file")
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise UserFileError(f"{self.path}: this is no user file: it is larger than {MAX_FILE_BYTES:,} bytes")
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise UserFileError(f"{self.path}: this is no user file: byte {error.start} is no UTF-8 text") from None

    def _unreadable(self, error: OSError) -> UserFileError:
        return UserFileError(f"{self.path}: the user file cannot be read: {error.strerror}; qstore-passwd makes one")

    def _parse(self, number: int, line: str) -> tuple[str, _Kept]:
        name, _, rest = line.strip().partition(":")
        fields = rest.split("$")
        try:
            scheme, cost, block, parallel, salt, key = fields
            kept = _Kept(
                int(cost), int(block), int(parallel),
                base64.b64decode(salt, validate=True), base64.b64decode(key, validate=True),
            )  # fmt: skip
        except (ValueError, binascii.Error):
            raise self._wrong(number) from None
        is_legal = (
            scheme == _SCHEME
            and is_user_name(name)
            and 2 <= kept.cost <= _MAX_COST
            and kept.cost & (kept.cost - 1) == 0
            and 1 <= kept.block <= _MAX_BLOCK
            and 1 <= kept.parallel <= _MAX_PARALLEL
            and _SALT_BYTES <= len(kept.key) <= _MAX_KEY_BYTES
        )
        if not is_legal:
            raise self._wrong(number)
        return name, kept

    def _wrong(self, number: int) -> UserFileError:
        return UserFileError(
            f"{self.path}: line {number}: this is not name:scrypt$… as qstore-passwd writes it; set the password again"
        )

    def _replace(self, lines: list[str]) -> None:
        """Write the file anew, whole or not at all, readable by its owner only."""
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
