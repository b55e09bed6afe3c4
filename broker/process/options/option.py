"""What an option is.

Options have qpidd's names, defaults and forms. What is read of them, wherever it stands, is text (`Given`); only
`values` gives it a meaning. So whatever reads a source of options needs to know little of them.

An option of qpidd's that has no effect here is in the table all the same, since old command lines and files have it.
`Effect` says what becomes of it: a line in the log, if the broker is none the worse for it, or a refusal, if somebody
would rely on it and not get it. A security option that is passed over is a hole.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from formats.wording import printable

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
"""What is yes, and what is no, in small letters."""

YES_NO: Final = "yes|no"

_SHOWN: Final = 60  # characters of what was given that an error shows


class OptionError(Exception):
    """What was given cannot be understood, or not be done. The text is one line for a person."""


class Kind(Enum):
    """What an option's value is."""

    FLAG = auto()  # there or not
    SWITCH = auto()  # yes or no
    NUMBER = auto()
    SIZE = auto()  # bytes, or with a unit of 1024: 512M, 4GiB
    DURATION = auto()  # seconds, or with a unit: 10s, 500ms (Qpid C++ Broker Book, table 1.28)
    TEXT = auto()


class Source(Enum):
    """Where an option may stand, the first before the second and the third."""

    COMMAND_LINE = auto()
    ENVIRONMENT = auto()
    FILE = auto()


class Effect(Enum):
    """What an option does here."""

    WORKS = auto()
    NOT_NEEDED = auto()
    LATER = auto()  # not yet, and the broker is none the worse for it
    REFUSED = auto()  # not yet, and somebody would rely on it


class Option(NamedTuple):
    """One option.

    Attributes:
        name: as it is written after `--`.
        kind: what its value is.
        value: what help calls its value; empty for a flag.
        default: what it is if it is not given, as text; empty if that is nothing, or follows from something else.
        help: what it is for.
        short: its letter, or nothing.
        alias: another name for it.
        opposite: a name that says the opposite, of a switch: `no-auth` is `auth=no`.
        contrary: an option that cannot hold together with it: of the two, the one with the higher source holds.
        repeatable: whether it may be given several times.
        adds_up: whether what several sources give counts together; else the highest source's counts alone.
        words: those to choose from, if a text is one of some.
        least, most: bounds of a number or a duration.
        sources: where it may stand.
        effect: what it does here.
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
    contrary: str = ""
    repeatable: bool = False
    adds_up: bool = False
    words: Sequence[str] = ()
    least: int = 0
    most: int = 1 << 53
    sources: Sequence[Source] = (Source.COMMAND_LINE, Source.ENVIRONMENT, Source.FILE)
    effect: Effect = Effect.WORKS
    reason: str = ""


class Group(NamedTuple):
    """Options that help shows under one heading."""

    title: str
    options: Sequence[Option]


class Given(NamedTuple):
    """A value that was given for an option.

    Attributes:
        text: the value.
        place: where, for errors: `--port`, `QPID_PORT`, or `/etc/qpidd.conf, line 3: port`.
    """

    text: str
    place: str


def shown(text: str) -> str:
    """What was given, as an error shows it: printable, and not too long."""
    return printable(text[:_SHOWN]) + ("…" if len(text) > _SHOWN else "")
