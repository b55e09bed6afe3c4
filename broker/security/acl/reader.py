r"""Reads an ACL file, of any of three versions.

    1   XML: begins with `<` (`version_1`)
    2   lines; what qpidd reads
    3   lines of another grammar: the first one that is no comment begins with CONFIG, a number, a quote, or with ACL or
        GROUP that is not in lower case (`version_3`)

Version 2: a line that begins with `#` is a comment; it may not stand behind something else, since routing keys have it,
too. Others begin with `acl`, `group` or `quota`; words are separated by any white space, and case
matters. A line of a group continues on the next one if its last character is `\`. All of it is ASCII.

The file is not larger than MAX_FILE, its lines not longer than MAX_LINE. (The manual allows no space before the first
word; qpidd does.)

Sources: Qpid C++ Broker Book, 1.5.2.2; Qpid wiki, "v2 ACL file format".
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Final

from qstore.broker.security.acl import version_1, version_3
from qstore.broker.security.acl.builder import Builder, Statement, TooManyError
from qstore.broker.security.acl.errors import AclFileError, Problem
from qstore.broker.security.acl.hosts import Resolve, resolve
from qstore.broker.security.acl.rules import RuleSet

MAX_FILE: Final = 4 << 20
MAX_LINE: Final = 1024
_WORDS: Final = ("acl", "group", "quota")
_SPACE: Final = " \t\n\r\v\f"


def read_file(path: str, realm: str = "QPID", find: Resolve = resolve) -> RuleSet:
    """Read a file.

    Args:
        path: its name.
        realm: of users that a file of version 1 names without it.
        find: resolves host names.

    Raises:
        AclFileError: it cannot be read, or something in it is wrong.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise AclFileError(path, [Problem(0, "the ACL file is not a file")])
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise AclFileError(path, [Problem(0, f"the ACL file cannot be read: {error.strerror}")]) from None
    except ValueError:
        raise AclFileError(path, [Problem(0, "the ACL file's name is not valid")]) from None
    return read(data, path, realm, find)


def read(data: bytes, path: str = "ACL file", realm: str = "QPID", find: Resolve = resolve) -> RuleSet:
    """Read the content of a file; as `read_file`."""
    if len(data) > MAX_FILE:
        raise AclFileError(path, [Problem(0, f"the ACL file is larger than {MAX_FILE:,} bytes")])
    begin = data.lstrip()[:1]
    if begin == b"<":
        return version_1.read(data, path, realm, find)
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise AclFileError(path, [Problem(line, f"the byte 0x{data[error.start]:02x} is not ASCII")]) from None
    lines = text.split("\n")
    is_version_3 = version_3.begins(_first_words(lines))
    builder = Builder(path, 3 if is_version_3 else 2, find)
    try:
        _check_lines(lines, builder)
        if is_version_3:
            version_3.read(lines, builder)
        else:
            for statement in _statements(lines, builder):
                builder.add(statement)
    except TooManyError:
        pass
    return builder.result()


def _check_lines(lines: list[str], builder: Builder) -> None:
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE:
            builder.complain(number, f"the line is longer than {MAX_LINE} characters", line)
        elif "\0" in line:
            builder.complain(number, "the line contains a zero byte", line)


def _first_words(lines: list[str]) -> list[str]:
    """The words of the first line that has any and is no comment."""
    return next((line.split() for line in lines if line.strip() and not line.startswith("#")), [])


def _statements(lines: list[str], builder: Builder) -> Iterator[Statement]:
    """The statements of version 2."""
    begun: Statement | None = None  # a group that continues on the next line
    for number, line in enumerate(lines, 1):
        if line.startswith("#") or (begun is None and not line.strip(_SPACE)):
            continue
        words = line.split()
        continues = bool(words) and words[-1].endswith("\\")
        if continues:
            words[-1] = words[-1][:-1]
            words = [word for word in words if word]
        if begun is not None:
            if not words:
                builder.complain(number, "the line contains an illegal extension: it has no member", line)
                begun = begun if continues else None
                continue
            begun = begun._replace(tokens=[*begun.tokens, *words])
        elif not words or words[0] not in _WORDS:
            builder.complain(number, 'Non-continuation line must start with "group", "acl" or "quota"', line)
            continue
        else:
            begun = Statement(number, line, words)
        if not continues:
            yield begun
            begun = None
        elif begun.tokens[0] != "group" or len(begun.tokens) < 2:
            what = "only a group continues, and after its name"
            builder.complain(number, f"the line contains an illegal extension: {what}", line)
            begun = None
    if begun is not None:
        yield begun
