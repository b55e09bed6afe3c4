"""The options of `qpidd`: one table, how they are read from a command line, and how help shows them.

Options have qpidd's names, defaults and forms (000, section A; 003, section 16):

    --name VALUE   --name=VALUE   -n VALUE   -nVALUE      an option with a value
    --name         --name=yes                             a flag; it takes no word of its own
    --name         --name yes     --name=no               a switch: yes, true, 1, or no, false, 0; alone it is yes

What is read is text by option, and only then given its meaning (`Values`), so that a configuration file or the
environment can be read into the same form. Options of modules are known once their modules are: `modules_named` finds
those in a command line before it is read.

An option that other brokers need and this one does not is accepted, and a line in the log says why it does nothing.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from broker.logs import CATEGORIES, DEFAULT_RULE, LEVELS, printable

_TRUTH: Final = {
    "yes": True,
    "true": True,
    "1": True,
    "on": True,
    "no": False,
    "false": False,
    "0": False,
    "off": False,
}
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|ms|us|ns|)")
_UNITS: Final = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_COLUMN: Final = 34
_WIDTH: Final = 100
_SHOWN: Final = 60


class OptionError(Exception):
    """The command line cannot be understood. The text is one line for a person."""


class Kind(Enum):
    """What an option's value is."""

    FLAG = auto()  # there or not
    SWITCH = auto()  # yes or no
    NUMBER = auto()
    DURATION = auto()  # seconds, or with a unit: 10s, 500ms (000, A28)
    TEXT = auto()


class Option(NamedTuple):
    """One option.

    Attributes:
        name: as it is written after `--`.
        kind: what its value is.
        value: what help calls its value; empty for a flag.
        default: what it is if it is not given, as text; empty if that is nothing, or follows from something else.
        help: what it is for.
        short: its letter, or nothing.
        repeatable: whether it may be given several times.
        least, most: bounds of a number.
        not_needed: why it has no effect; empty if it has one.
        alias: another name for it.
    """

    name: str
    kind: Kind
    value: str
    default: str
    help: str
    short: str = ""
    repeatable: bool = False
    least: int = 0
    most: int = 1 << 53
    not_needed: str = ""
    alias: str = ""


class Group(NamedTuple):
    """Options that help shows under one heading."""

    title: str
    options: Sequence[Option]


_FLAG, _SWITCH, _NUMBER, _DURATION_KIND, _TEXT = Kind.FLAG, Kind.SWITCH, Kind.NUMBER, Kind.DURATION, Kind.TEXT
_YES_NO: Final = "yes|no"
_NO_DIRECTORY: Final = "modules are found by their names, there is no directory that would be searched"
_NO_CYRUS: Final = "the mechanisms are the broker's own, and users are in the user file"
_ONE_LOOP: Final = "one event loop does all the work"
_ALWAYS: Final = "it is always so"

_RULE_HELP: Final = (
    f"RULE is LEVEL[+-][:PATTERN]. LEVEL is one of {' '.join(LEVELS)}; + is this level and above, - this level and "
    f"below. PATTERN is a category, or part of a function's name. Categories: {' '.join(CATEGORIES)}. May be repeated"
)

_GENERAL: Final = Group(
    "Options",
    (
        Option("help", _FLAG, "", "", "Displays this, with the options of all modules that are loaded", short="h"),
        Option("version", _FLAG, "", "", "Displays version information", short="v"),
    ),
)
_MODULES: Final = Group(
    "Module options",
    (
        Option("load-module", _TEXT, "NAME", "", "Loads a module, such as store. May be repeated", repeatable=True),
        Option("module-dir", _TEXT, "DIR", "", "Directory of modules", not_needed=_NO_DIRECTORY),
        Option("no-module-dir", _FLAG, "", "", "Loads no modules but those of load-module, as always"),
    ),
)
_BROKER: Final = Group(
    "Broker options",
    (
        Option(
            "data-dir", _TEXT, "DIR", "",
            "Directory for persistent data: ~/.qpidd, or /var/lib/qpidd for a daemon, if it is not given",
        ),
        Option("no-data-dir", _FLAG, "", "", "No data directory: nothing persistent is loaded or stored"),
        Option("port", _NUMBER, "PORT", "5672", "Listens on PORT; 0 to have one chosen and printed", "p", most=65_535),
        Option(
            "interface", _TEXT, "ADDRESS", "", "Listens on this address or host name, else on the loopback addresses "
            "only. 0.0.0.0 and :: are all of IPv4 and IPv6. May be repeated", repeatable=True,
        ),
        Option("max-connections", _NUMBER, "N", "500", "Connections at one time", least=1, most=1_000_000),
        Option("connection-backlog", _NUMBER, "N", "10", "Connections that wait to be accepted", least=1, most=65_535),
        Option("max-negotiate-time", _NUMBER, "MS", "10000", "Until a connection must be open, in ms", least=1),
        Option("default-queue-limit", _NUMBER, "BYTES", "104857600", "Content that a queue holds at most; 0: no limit"),
        Option("auth", _SWITCH, _YES_NO, "yes", "Clients have to say who they are; see also user-file"),
        Option("realm", _TEXT, "REALM", "QPID", "What follows the @ in a user's id"),
        Option(
            "user-file", _TEXT, "FILE", "", "Names and passwords, made by qstore-passwd. Without it, auth lets clients "
            "of this host in and nobody else",
        ),
        Option("worker-threads", _NUMBER, "N", "", "Threads", not_needed=_ONE_LOOP),
        Option("sasl-config", _TEXT, "DIR", "", "Configuration of SASL", not_needed=_NO_CYRUS),
        Option("tcp-nodelay", _SWITCH, _YES_NO, "", "Sends without delay", not_needed=_ALWAYS),
    ),
)  # fmt: skip
_DAEMON: Final = Group(
    "Daemon options",
    (
        Option("daemon", _FLAG, "", "", "Runs as a daemon", short="d"),
        Option(
            "pid-dir", _TEXT, "DIR", "",
            "Directory of the daemon's pid file: /var/run/qpidd, or ~/.qpidd if not run by root, if it is not given",
        ),
        Option(
            "wait", _DURATION_KIND, "SECONDS", "10", "Waits no longer for the daemon to be ready, or to end; then "
            "prints an error and returns 1", short="w",
        ),
        Option("check", _FLAG, "", "", "Prints the process id of a running broker and returns 0, else 1", short="c"),
        Option("quit", _FLAG, "", "", "Tells a running broker to shut down, and waits until it has", short="q"),
    ),
)  # fmt: skip
_LOGGING: Final = Group(
    "Logging options",
    (
        Option("trace", _FLAG, "", "", "Logs everything", short="t"),
        Option(
            "log-enable", _TEXT, "RULE", DEFAULT_RULE, f"Logs what the rule says. {_RULE_HELP}", repeatable=True
        ),
        Option("log-disable", _TEXT, "RULE", "", "Does not log what the rule says", repeatable=True),
        Option("log-time", _SWITCH, _YES_NO, "yes", "Lines have the time"),
        Option("log-level", _SWITCH, _YES_NO, "yes", "Lines have the level"),
        Option("log-source", _SWITCH, _YES_NO, "no", "Lines have file and line of the source"),
        Option("log-thread", _SWITCH, _YES_NO, "no", "Lines have the thread's id"),
        Option("log-function", _SWITCH, _YES_NO, "no", "Lines have the function's name"),
        Option("log-hires-timestamp", _SWITCH, _YES_NO, "no", "Times have microseconds"),
        Option("log-category", _SWITCH, _YES_NO, "yes", "Lines have the category"),
        Option("log-prefix", _TEXT, "STRING", "", "Lines begin with this"),
    ),
)  # fmt: skip
_SINKS: Final = Group(
    "Logging sink options",
    (
        Option("log-to-stderr", _SWITCH, _YES_NO, "yes", "Logs to standard error; never from a daemon"),
        Option("log-to-stdout", _SWITCH, _YES_NO, "no", "Logs to standard output; never from a daemon"),
        Option("log-to-file", _TEXT, "FILE", "", "Logs to FILE"),
        Option(
            "log-to-syslog", _SWITCH, _YES_NO, "", "Logs to syslog: a daemon does, unless it logs to a file",
        ),
        Option("syslog-name", _TEXT, "NAME", "qpidd", "Name in syslog"),
        Option("syslog-facility", _TEXT, "LOG_XXX", "LOG_DAEMON", "Facility of syslog"),
    ),
)  # fmt: skip

GROUPS: Final = (_GENERAL, _MODULES, _BROKER, _DAEMON, _LOGGING, _SINKS)
"""All of the broker's own options, in the order in which help shows them."""

# ---- reading ----


def modules_named(arguments: Sequence[str]) -> list[str]:
    """The modules that a command line loads. A command line that is wrong otherwise is no matter here."""
    named: list[str] = []
    for place, argument in enumerate(arguments):
        if argument == "--":
            break
        name, equals, value = argument.partition("=")
        if name == "--load-module":
            named += [value] if equals else arguments[place + 1 : place + 2]
    return named


class Table:
    """All options that there are, by name, alias and letter."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self.groups = tuple(groups)
        self.by_name = {
            name: option
            for group in self.groups
            for option in group.options
            for name in (option.name, option.alias)
            if name
        }
        self.by_letter = {option.short: option for option in self.by_name.values() if option.short}

    def named(self, name: str) -> Option:
        """The option of that name. Raises OptionError."""
        option = self.by_name.get(name)
        if option is None:
            near = difflib.get_close_matches(name, self.by_name, 1)
            advice = f"do you mean --{near[0]}?" if near else "see --help"
            raise OptionError(f"--{_shown(name)} is no option; {advice}")
        return option


def read_arguments(arguments: Sequence[str], table: Table) -> dict[str, list[str]]:
    """What a command line says: option -> the texts given for it. Raises OptionError."""
    given: dict[str, list[str]] = {}
    rest = list(reversed(arguments))
    while rest:
        argument = rest.pop()
        if argument.startswith("--") and len(argument) > 2:
            name, equals, value = argument[2:].partition("=")
            option = table.named(name)
            text = value if equals else _own_word(option, rest)
        elif argument.startswith("-") and len(argument) > 1 and argument != "--":
            letter, value = argument[1], argument[2:]
            found = table.by_letter.get(letter)
            if found is None:
                raise OptionError(f"-{_shown(letter)} is no option; see --help")
            option = found
            if value and option.kind is Kind.FLAG and not value.startswith("="):
                rest.append("-" + value)  # several flags in one word: -dc
                value = ""
            text = value.removeprefix("=") if value else _own_word(option, rest)
        else:
            raise OptionError(f'"{_shown(argument)}" is not expected here: options begin with --; see --help')
        add(given, option, text)
    return given


def add(given: dict[str, list[str]], option: Option, text: str) -> None:
    """Note what was given for an option. Raises OptionError if it was given before and may not be again."""
    if option.name in given and not option.repeatable:
        raise OptionError(f"--{option.name} is given twice; give it once")
    given.setdefault(option.name, []).append(text)


def _own_word(option: Option, rest: list[str]) -> str:
    """The value of an option that is not in the same word."""
    if option.kind is Kind.FLAG:
        return "yes"
    if option.kind is Kind.SWITCH:
        return rest.pop() if rest and rest[-1].lower() in _TRUTH else "yes"
    if not rest or rest[-1].startswith("--"):
        raise OptionError(f"--{option.name} needs a value: --{option.name} {option.value}")
    return rest.pop()


# ---- meaning ----


class Values:
    """The values of all options: what was given, or the default.

    Args:
        table: all options.
        given: option -> texts, as `read_arguments` gives them.
    """

    def __init__(self, table: Table, given: Mapping[str, Sequence[str]]) -> None:
        self._table, self._given = table, given

    def is_given(self, name: str) -> bool:
        """Whether an option was given at all."""
        return name in self._given

    def texts(self, name: str) -> tuple[str, ...]:
        """All that was given for an option that is repeatable."""
        return tuple(self._given.get(name, ()))

    def text(self, name: str) -> str | None:
        """The text; None if it was not given and has no default."""
        if name in self._given:
            text = self._given[name][-1]
            if not text or "\0" in text:
                raise OptionError(f"--{name}: an empty value, or one with NUL, cannot be used")
            return text
        return self._table.by_name[name].default or None

    def word(self, name: str) -> str:
        """The text of an option that has a default."""
        text = self.text(name)
        assert text is not None
        return text

    def switch(self, name: str) -> bool:
        """Whether it is yes. Raises OptionError."""
        word = self.text(name) or "no"
        if word.lower() not in _TRUTH:
            raise OptionError(f'--{name}: "{_shown(word)}" is neither yes nor no')
        return _TRUTH[word.lower()]

    def number(self, name: str) -> int:
        """The number. Raises OptionError."""
        option, word = self._table.by_name[name], self.word(name)
        number = int(word) if _WHOLE_NUMBER.fullmatch(word) and word.isascii() else -1
        if not option.least <= number <= option.most:
            raise OptionError(f'--{name}: "{_shown(word)}" is no number from {option.least:,} to {option.most:,}')
        return number

    def seconds(self, name: str) -> float:
        """The duration in seconds. Raises OptionError."""
        word = self.word(name)
        found = _DURATION.fullmatch(word)
        if found is None:
            raise OptionError(f'--{name}: "{_shown(word)}" is no time: give seconds, or a number with s, ms, us or ns')
        return float(found[1]) * _UNITS[found[2]]

    def check(self) -> None:
        """Look at every value that was given. Raises OptionError."""
        for name in self._given:
            match self._table.by_name[name].kind:
                case Kind.FLAG | Kind.SWITCH:
                    self.switch(name)
                case Kind.NUMBER:
                    self.number(name)
                case Kind.DURATION:
                    self.seconds(name)
                case Kind.TEXT:
                    self.text(name)

    def not_needed(self) -> list[str]:
        """One line for each option that was given and has no effect here."""
        options = [self._table.by_name[name] for name in self._given]
        return [
            f"option {option.name} is not needed here and has no effect: {option.not_needed}"
            for option in options
            if option.not_needed
        ]


def _shown(text: str) -> str:
    return printable(text[:_SHOWN]) + ("…" if len(text) > _SHOWN else "")


# ---- help ----


def help_text(table: Table) -> str:
    """What `--help` prints."""
    lines = ["Usage: qpidd OPTIONS"]
    for group in table.groups:
        lines += ["", f"{group.title}:"]
        for option in group.options:
            lines += _help_lines(option)
    return "\n".join(lines)


def _help_lines(option: Option) -> list[str]:
    left = f"  -{option.short} [ --{option.name} ]" if option.short else f"  --{option.name}"
    left += f" {option.value}" if option.value else ""
    left += f" ({option.default})" if option.default else ""
    text = option.help + (" (not needed here, and without effect)" if option.not_needed else "")
    text += f" (also --{option.alias})" if option.alias else ""
    wrapped = textwrap.wrap(text, _WIDTH - _COLUMN)
    beside = len(left) < _COLUMN - 1
    lines = [left.ljust(_COLUMN) + wrapped.pop(0)] if beside else [left]
    return lines + [" " * _COLUMN + line for line in wrapped]
