"""The configuration file (Qpid C++ Broker Book, 1.1.3.3 and 1.1.5).

    # a comment; blank lines are ignored
    name=value              whitespace around name and value is ignored
    name="value"            a value with leading or trailing whitespace, or with a #, is quoted
    daemon=yes              flags are yes (true, 1) or no

Names are those of the command line without the dashes, one per line. A `#` at the beginning of a line or after
whitespace begins a comment. An unknown option is not an error: the file may be for a qpidd with other modules.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from qstore.broker.process.options.option import OptionError, shown
from qstore.formats.wording import printable

DEFAULT_FILE: Final = "/etc/qpidd.conf"
"""Qpid C++ Broker Book, 1.1.5."""

MAX_BYTES: Final = 1 << 20

_COMMENT: Final = re.compile(r"(?:^|\s)#")
_NAME: Final = re.compile(r'[^\s"#]+')
_FIRST_WORD: Final = re.compile(r"[^\s=:]+")


class Entry(NamedTuple):
    """An option in the configuration file or the environment.

    Attributes:
        name: the option's name, without dashes.
        text: its value.
        place: where it was found, for errors.
    """

    name: str
    text: str
    place: str


class ConfigFile(NamedTuple):
    """The contents of a configuration file.

    Attributes:
        entries: its options, in order.
        warnings: for the log, one line each.
        path: its full path; empty if there is none.
    """

    entries: tuple[Entry, ...] = ()
    warnings: tuple[str, ...] = ()
    path: str = ""


def read_config_file(path: str, *, is_optional: bool) -> ConfigFile:
    """Read a configuration file.

    Args:
        path: the file.
        is_optional: whether the file may be missing.

    Raises:
        OptionError: the file cannot be read, is not a configuration file, or has an invalid line.
    """
    where = printable(path)
    try:
        data, warnings = _contents(path, where)
    except (FileNotFoundError, NotADirectoryError) as error:
        if is_optional:
            return ConfigFile()
        raise OptionError(f"{where}: the configuration file cannot be read: {error.strerror}; see --config") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OptionError(f"{where}: the configuration file cannot be read: {reason}; see --config") from None
    if b"\0" in data:
        raise OptionError(f"{where}: not a configuration file: NUL character at byte {data.index(0)}; see --config")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{where}: not a configuration file: invalid UTF-8 at byte {error.start}; see --config"
        ) from None
    return ConfigFile(tuple(_entries(text, where)), warnings, str(Path(path).absolute()))


def _contents(path: str, where: str) -> tuple[bytes, tuple[str, ...]]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)  # do not block on a FIFO
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OptionError(f"{where}: not a configuration file, but a directory or a device; see --config")
        data = bytearray()
        while len(data) <= MAX_BYTES and (more := os.read(descriptor, MAX_BYTES + 1 - len(data))):
            data += more
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise OptionError(f"{where}: not a configuration file: larger than {MAX_BYTES:,} bytes; see --config")
    warnings = []
    if status.st_uid not in (0, os.geteuid()):
        warnings.append(
            f"{where}: the configuration file belongs to user {status.st_uid}, who can change the broker's options"
        )
    if status.st_mode & stat.S_IWOTH:
        warnings.append(f"{where}: the configuration file is world-writable; fix this with chmod o-w")
    return bytes(data), tuple(warnings)


def _entries(text: str, where: str) -> Iterator[Entry]:
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, rest = (part.strip() for part in stripped.partition("="))
        value = _value(rest)
        if not equals or value is None or not _NAME.fullmatch(name):
            raise OptionError(f'{where}, line {number}: "{_beginning(stripped)}" is not name=value')
        yield Entry(name, value, f"{where}, line {number}: {shown(name)}")


def _beginning(line: str) -> str:
    """The first word of a line; the rest is hidden, since it may be a password."""
    found = _FIRST_WORD.match(line)
    word = found[0] if found else ""
    return shown(word) if word == line else shown(word) + "…"


def _value(text: str) -> str | None:
    """The value after `=`, without quotes and comment; None if it is invalid."""
    if text.startswith('"'):
        value, quote, rest = text[1:].partition('"')
        is_whole = quote and (not rest.strip() or rest.strip().startswith("#"))
        return value if is_whole else None
    comment = _COMMENT.search(text)
    return text if comment is None else text[: comment.start()].rstrip()
