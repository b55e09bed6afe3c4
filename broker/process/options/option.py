"""The declaration of an option.

Options have qpidd's names, defaults and syntax. The sources give their values as text (`Given`); `values` converts
them, so the parsers of the sources need to know little about the options.

The table also has the options of qpidd that have no effect here, since existing command lines and files use them.
`Effect` says whether such an option is ignored with a log line, because the broker works as well without it, or
refused, because an operator relies on it: a security option that is silently ignored is a vulnerability.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from qstore.formats.wording import printable

TRUTH: Final = {
    "yes": True,
    "true": True,
    "1": True,
    "on": True,
    "no": False,
    "false": False,
    "0": False,
    "off": False,
}
"""The words for yes and no, in lower case."""

YES_NO: Final = "yes|no"

_SHOWN: Final = 60  # characters of a value that an error shows


class OptionError(Exception):
    """An option is unknown, invalid or not supported. The text is one line for the user."""


class Kind(Enum):
    """The type of an option's value."""

    FLAG = auto()  # given or not
    SWITCH = auto()  # yes or no
    NUMBER = auto()
    SIZE = auto()  # bytes, or with a unit of 1024: 512M, 4GiB
    DURATION = auto()  # seconds, or with a unit: 10s, 500ms (Qpid C++ Broker Book, table 1.28)
    TEXT = auto()


class Source(Enum):
    """The sources of options, highest precedence first."""

    COMMAND_LINE = auto()
    ENVIRONMENT = auto()
    FILE = auto()


class Effect(Enum):
    """Whether an option has an effect in this broker."""

    WORKS = auto()
    NOT_NEEDED = auto()
    LATER = auto()  # not supported yet; can be ignored safely
    REFUSED = auto()  # not supported yet; ignoring it would be unsafe
    REPLACED = auto()  # not supported, and refused; the reason says what to do instead


class Option(NamedTuple):
    """One option.

    Attributes:
        name: the name, without `--`.
        kind: the type of its value.
        value: the placeholder for its value in --help; empty for a flag.
        default: the default as text; empty if there is none, or if it depends on other options.
        help: its text in --help.
        short: its letter; empty if it has none.
        alias: another name.
        opposite: a name for the opposite of a switch: `no-auth` is `auth=no`.
        conflicts_with: the option that excludes this one: the one from the source with higher precedence applies.
        repeatable: whether it may be given several times.
        accumulates: whether the values of all sources apply; otherwise only those of the highest source do.
        choices: the allowed values of a text; empty if any is allowed.
        minimum, maximum: bounds of a number, size or duration, inclusive.
        sources: the sources in which it is allowed.
        effect: whether it has an effect.
        reason: why it has no effect, or is refused.
    """

    name: str
    kind: Kind
    value: str
    default: str
    help: str
    short: str = ""
    alias: str = ""
    opposite: str = ""
    conflicts_with: str = ""
    repeatable: bool = False
    accumulates: bool = False
    choices: Sequence[str] = ()
    minimum: int = 0
    maximum: int = 1 << 53
    sources: Sequence[Source] = (Source.COMMAND_LINE, Source.ENVIRONMENT, Source.FILE)
    effect: Effect = Effect.WORKS
    reason: str = ""


class Group(NamedTuple):
    """Options under one heading of --help."""

    title: str
    options: Sequence[Option]


class Given(NamedTuple):
    """A value that was given for an option.

    Attributes:
        text: the value.
        place: where it was given, for errors: `--port`, `QPID_PORT`, or `/etc/qpidd.conf, line 3: port`.
    """

    text: str
    place: str


def shown(text: str) -> str:
    """A value for an error message: printable and shortened."""
    return printable(text[:_SHOWN]) + ("…" if len(text) > _SHOWN else "")
