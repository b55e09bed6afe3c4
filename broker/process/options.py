"""The values of the options: read from the command line, the environment and the configuration file, and the help.

**Command line.**

    --name VALUE   --name=VALUE   -n VALUE   -nVALUE      an option with a value
    --name         --name=yes                             a flag; the next word is never its value
    --name         --name yes     --name=no               a switch: yes, true, 1, or no, false, 0; without a value yes

The options of a module are known only when the module is loaded. `words_of` finds the values of one option, such as
--load-module, before the command line is parsed.

**Environment.** QPID_ and the option's name in capitals, with _ for -:

    QPID_PORT=5673   QPID_LOG_ENABLE=info+   QPID_NO_DATA_DIR=1

Empty variables are ignored. So are the variables of Qpid clients, some of which have the names of broker options but
another meaning (Qpid C++ Broker Book, table 1.19; Qpid wiki, "Client configuration"): a broker started from a client's
environment must not use that client's certificate or home directory.

**Configuration file** (Qpid C++ Broker Book, 1.1.3.3 and 1.1.5).

    # a comment; blank lines are ignored
    name=value              whitespace around name and value is ignored
    name="value"            a value with leading or trailing whitespace, or with a #, is quoted
    daemon=yes              flags are yes (true, 1) or no

Names are those of the command line without the dashes, one per line. A `#` at the beginning of a line or after
whitespace begins a comment.

**Precedence.** The command line takes precedence over the environment, and the environment over the configuration file.
Options that accumulate (modules, log rules) take the values of all sources, the file's first. If two options exclude
each other, such as data-dir and no-data-dir, the one from the source with higher precedence applies; if one source
gives both, the flag applies, with a warning.

An unknown option is an error on the command line, and a warning in the file, which may be for a qpidd with other
modules. In the environment it is a warning only if its name is similar to that of an option: other programs have
variables that begin with QPID_, too (`QPID_BLD`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from qstore.broker.process.option_table import (
    DEFAULT_FILE,
    PATHS,
    TRUTH,
    Effect,
    Given,
    Group,
    Kind,
    Option,
    OptionError,
    Source,
    shown,
)
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import printable

_ALIKE: Final = 0.75  # difflib's ratio of "prot" and "port"
_WORD_ALIKE: Final = 0.6  # that of single words: "build-dir" is not a misspelt "pid-dir"


class Table:
    """All options: the broker's own, and those of its modules.

    Args:
        groups: the options, in the order of --help.
        elsewhere: option name -> module, for the modules that are not loaded.

    Attributes:
        groups: the same.
        by_name: the options by name, alias, and name of the opposite.
        by_letter: the options with a letter.
    """

    def __init__(self, groups: Iterable[Group], elsewhere: Mapping[str, str] | None = None) -> None:
        self.groups = tuple(groups)
        self._elsewhere = elsewhere or {}
        self.by_name = {
            name: option
            for group in self.groups
            for option in group.options
            for name in (option.name, option.alias, option.opposite)
            if name
        }
        self.by_letter = {option.short: option for option in self.by_name.values() if option.short}

    def named(self, name: str) -> Option:
        """The option with this name on the command line. Raises OptionError."""
        option = self.by_name.get(name)
        if option is None:
            if module := self.owner(name):
                raise OptionError(f"--{shown(name)} {module}")
            near = self.near(name)
            advice = f"did you mean --{near}?" if near else "see --help"
            raise OptionError(f"--{shown(name)}: unknown option; {advice}")
        return option

    def owner(self, name: str) -> str:
        """Text that names the module to load for this option; empty if no module that is not loaded has it."""
        module = self._elsewhere.get(name)
        if module is None:
            return ""
        return f"is an option of module {module}, which is not loaded: add --load-module {module}"

    def near(self, name: str) -> str:
        """The most similar option name; empty if none is similar."""
        import difflib  # with its own imports 1 ms of every start (tests.bench.bench_start)

        return next(iter(difflib.get_close_matches(name[:100], self.by_name, 1, _ALIKE)), "")

    def is_similar(self, name: str) -> bool:
        """Whether this name looks like that of an option: as many words, each of them similar, or of another module."""
        import difflib  # as above

        words, near = name[:100].split("-"), self.near(name).split("-")
        pairs = zip(words, near, strict=False)
        is_near = len(words) == len(near) and all(
            difflib.SequenceMatcher(None, word, other).ratio() >= _WORD_ALIKE for word, other in pairs
        )
        return is_near or bool(self.owner(name))

    def given(self, name: str, text: str, place: str) -> Given:
        """The value of an option that was given under one of its names; the opposite's value is inverted."""
        is_opposite = name == self.by_name[name].opposite
        if is_opposite and text.lower() in TRUTH:
            text = "no" if TRUTH[text.lower()] else "yes"
        return Given(text, place)


def add(given: dict[str, list[Given]], option: Option, one: Given) -> None:
    """Record a value that one source gives for an option. Raises OptionError if it may not be repeated."""
    if option.name in given and not option.repeatable:
        first = given[option.name][0]
        values = f" ({shown(first.text)}, then {shown(one.text)})" if first.text != one.text else ""
        raise OptionError(f"{one.place} is given twice{values}; give it once")
    given.setdefault(option.name, []).append(one)


# ---- typed values ----

_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|ms|us|ns|)")
_UNITS: Final = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SIZE: Final = re.compile(r"([0-9]{1,12})(?:([kmgt])(?:i?b)?)?", re.IGNORECASE)
_SHIFTS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,18}")


def seconds_of(text: str) -> float | None:
    """A duration in seconds: a number, or one with a unit; None if it is none."""
    found = _DURATION.fullmatch(text)
    return None if found is None else float(found[1]) * _UNITS[found[2]]


class Values:
    """The values of all options, given or default.

    Args:
        table: all options.
        given: option name -> values given for it.
    """

    def __init__(self, table: Table, given: Mapping[str, Sequence[Given]]) -> None:
        self._table, self._given = table, given

    def is_given(self, name: str) -> bool:
        """Whether any source gives the option."""
        return name in self._given

    def given(self, name: str) -> tuple[Given, ...]:
        """All values of a repeatable option, with their places."""
        return tuple(self._given.get(name, ()))

    def texts(self, name: str) -> tuple[str, ...]:
        """All values of a repeatable option."""
        return tuple(each.text for each in self.given(name))

    def text(self, name: str) -> str | None:
        """The text; None if the option was not given and has no default. Raises OptionError."""
        option = self._table.by_name[name]
        one = self._one(option)
        if not one.text and name not in self._given:
            return None
        if not one.text or "\0" in one.text:
            raise OptionError(f"{one.place}: the value must not be empty or contain NUL")
        if option.value not in PATHS and not one.text.isprintable():  # nor is half of a UTF-16 pair, a byte of no UTF-8
            raise OptionError(
                f'{one.place}: "{shown(one.text)}" has control characters, or others that cannot be printed'
            )
        if option.choices and one.text not in option.choices:
            raise OptionError(f'{one.place}: "{shown(one.text)}" is not one of {", ".join(option.choices)}')
        return one.text

    def word(self, name: str) -> str:
        """The text of an option with a default. Raises OptionError."""
        text = self.text(name)
        assert text is not None
        return text

    def switch(self, name: str) -> bool:
        """The value of a flag or a switch. Raises OptionError."""
        one = self._one(self._table.by_name[name])
        word = one.text.lower() if name in self._given else one.text or "no"
        if word not in TRUTH:
            raise OptionError(f'{one.place}: "{shown(one.text)}" is neither yes nor no')
        return TRUTH[word]

    def number(self, name: str) -> int:
        """The value of a number. Raises OptionError."""
        option = self._table.by_name[name]
        one = self._one(option)
        number = int(one.text) if _WHOLE_NUMBER.fullmatch(one.text) and one.text.isascii() else -1
        if not option.minimum <= number <= option.maximum:
            bounds = f"{option.minimum:,} to {option.maximum:,}"
            raise OptionError(f'{one.place}: "{shown(one.text)}" is not a number from {bounds}')
        return number

    def size(self, name: str) -> int | None:
        """The value of a size in bytes; None if the option was not given and has no default. Raises OptionError."""
        option = self._table.by_name[name]
        one = self._one(option)
        if not one.text and name not in self._given:
            return None
        found = _SIZE.fullmatch(one.text) if one.text.isascii() else None
        size = -1 if found is None else int(found[1]) << _SHIFTS[(found[2] or "").lower()]
        if not option.minimum <= size <= option.maximum:
            raise OptionError(
                f'{one.place}: "{shown(one.text)}" is not a size from {option.minimum:,} to {option.maximum:,} bytes: '
                "give bytes, or a number with K, M, G or T"
            )
        return size

    def seconds(self, name: str) -> float:
        """The value of a duration in seconds. Raises OptionError."""
        option = self._table.by_name[name]
        one = self._one(option)
        seconds = seconds_of(one.text)
        if seconds is None:
            raise OptionError(
                f'{one.place}: "{shown(one.text)}" is not a duration: give seconds, or a number with s, ms, us or ns'
            )
        if not option.minimum <= seconds <= option.maximum:
            raise OptionError(
                f'{one.place}: "{shown(one.text)}" is not from {option.minimum:,} to {option.maximum:,} seconds'
            )
        return seconds

    def _one(self, option: Option) -> Given:
        return self._given[option.name][-1] if option.name in self._given else Given(option.default, f"--{option.name}")

    # ---- all options ----

    def check(self) -> None:
        """Validate every given value, and the combination. Raises OptionError."""
        for name in self._given:
            option = self._table.by_name[name]
            self._check(option)
            if option.effect is Effect.REFUSED and not self._is_off(option):
                raise OptionError(f"{self._one(option).place} is not supported yet: {option.reason}; remove the option")
            if option.effect is Effect.REPLACED and not self._is_off(option):
                raise OptionError(f"{self._one(option).place} is not supported: {option.reason}")
        stop = self.number("default-flow-stop-threshold")
        if self.number("default-flow-resume-threshold") > stop > 0:
            raise OptionError(
                "--default-flow-resume-threshold is above --default-flow-stop-threshold: "
                "stopped publishers would resume at once; give a lower value"
            )

    def _check(self, option: Option) -> None:
        match option.kind:
            case Kind.FLAG | Kind.SWITCH:
                self.switch(option.name)
            case Kind.NUMBER:
                self.number(option.name)
            case Kind.SIZE:
                self.size(option.name)
            case Kind.DURATION:
                self.seconds(option.name)
            case Kind.TEXT:
                self.text(option.name)

    def _is_off(self, option: Option) -> bool:
        if option.kind in (Kind.FLAG, Kind.SWITCH):
            return not self.switch(option.name)
        read = {Kind.NUMBER: self.number, Kind.SIZE: self.size, Kind.DURATION: self.seconds}.get(option.kind)
        return read is not None and read(option.name) == 0

    def without_effect(self) -> list[str]:
        """A log line for each given option that has no effect."""
        texts = {
            Effect.NOT_NEEDED: "is ignored",
            Effect.LATER: "is ignored, since it is not supported yet",
        }
        options = [self._table.by_name[name] for name in self._given]
        found = [f"Option {each.name} {texts[each.effect]}: {each.reason}" for each in options if each.effect in texts]
        for names, is_there, what in _NEEDS:
            given = [name for name in names if name in self._given and not self._is_off(self._table.by_name[name])]
            if given and not is_there(self):
                found += [f"Option {name} has no effect: {what}" for name in given]
        return found

    def _is_on(self, name: str) -> bool:
        """Whether a switch is on, or a text given."""
        if self._table.by_name[name].kind is Kind.SWITCH:
            return self.switch(name)
        return self.text(name) is not None

    def _offers(self, version: str) -> bool:
        """Whether a version of AMQP is offered."""
        words = (self.text("protocols") or version).replace(",", " ").split()
        return version in [word.removeprefix("amqp") for word in words]

    def _offers_passwords(self) -> bool:
        """Whether mechanisms that send passwords in the clear may be offered."""
        return not {"PLAIN", "AMQPLAIN"}.isdisjoint(
            (self.text("sasl-mechanisms") or "PLAIN").upper().replace(",", " ").split()
        )

    def _has_paging(self) -> bool:
        return self.text("paging-dir") is not None or not self.switch("no-data-dir")

    def _has_syslog(self) -> bool:
        if self.switch("log-to-syslog") or self.text("log-output") == "syslog":
            return True
        return self.switch("daemon") and self.text("log-to-file") is None and self.text("log-output") is None


_NEEDS: Final[tuple[tuple[Sequence[str], Callable[[Values], bool], str], ...]] = (
    (("console-credentials",), lambda values: values._is_on("console"), "there is no console"),
    (("telemetry-limit",), lambda values: values._is_on("telemetry"), "no spans are sent, without telemetry"),
    (("websocket-origin",), lambda values: values._is_on("websocket"), "WebSocket is not spoken, without websocket"),
    (
        ("replication-listener-name",),
        lambda values: values._is_on("replication-queue") or values._is_on("replication-exchange-name"),
        "no events are generated, without replication-queue",
    ),
    (
        ("create-replication-queue",),
        lambda values: values._is_on("replication-queue"),
        "there is no replication-queue to create",
    ),
    (
        ("replication-queue", "create-replication-queue"),
        lambda values: not values._is_on("replication-exchange-name"),
        "events go to replication-exchange-name",
    ),
    (
        ("replication-exchange-type",),
        lambda values: values._is_on("replication-exchange-name"),
        "no exchange is made for events, without replication-exchange-name",
    ),
    (("strict-acl-validation",), lambda values: values._is_on("acl-file"), "there is no acl-file"),
    (("acl-file",), lambda values: values.word("access") != "permissions", "access=permissions decides without it"),
    (("user-file", "auth-allow-cleartext"), lambda values: values._is_on("auth"), "auth=no lets everybody in"),
    (
        ("mgmt-publish", "mgmt-qmf1", "mgmt-qmf2", "mgmt-pub-interval"),
        lambda values: values._is_on("mgmt-enable"),
        "there is no management, since mgmt-enable is no",
    ),
    (
        ("mgmt-publish",),
        lambda values: values.switch("mgmt-qmf1") or values.switch("mgmt-qmf2"),
        "there is no version of QMF to publish by, since mgmt-qmf1 and mgmt-qmf2 are no",
    ),
    (
        ("auth-allow-cleartext",),
        Values._offers_passwords,
        "sasl-mechanisms has none that sends passwords in the clear",
    ),
    (
        ("virtual-hosts",),
        lambda values: values.word("virtual-hosts") == "lax" or values._offers("0-10"),
        "it is about clients of AMQP 0-10, which protocols does not offer",
    ),
    (
        ("rabbitmq-version",),
        lambda values: values._offers("1.0"),
        "it is for clients of AMQP 1.0, which protocols does not offer",
    ),
    (
        ("max-paging-size", "staging-threshold"),
        Values._has_paging,
        "messages stay in memory, without data-dir and paging-dir",
    ),
    (
        ("default-flow-resume-threshold",),
        lambda values: values.number("default-flow-stop-threshold") > 0,
        "publishers do not wait, since default-flow-stop-threshold is 0",
    ),
    (
        ("pid-dir", "wait"),
        lambda values: any(map(values.switch, ("daemon", "check", "quit"))),
        "it is about daemons, and this broker is none",
    ),
    (
        ("log-to-stderr", "log-to-stdout"),
        lambda values: not values.switch("daemon"),
        "a daemon does not log there",
    ),
    (
        ("log-output",),
        lambda values: not values.switch("daemon") or values.text("log-output") not in ("stderr", "stdout"),
        "a daemon logs to a file or to syslog",
    ),
    (
        ("log-status-rule",),
        lambda values: values.switch("log-status"),
        "log-status is no, until management switches it",
    ),
    (("syslog-name", "syslog-facility"), Values._has_syslog, "the log does not go to syslog"),
)
"""Options that only say how another one works, whether that is there, and what is missing otherwise."""


# ---- the command line ----


def words_of(name: str, arguments: Sequence[str], *, has_value: bool = True) -> list[str]:
    """The values of one option on a command line. Errors elsewhere on the command line are ignored.

    Args:
        name: the option's name.
        arguments: the command line.
        has_value: whether the option has a value; otherwise each occurrence gives "yes".
    """
    found: list[str] = []
    for place, argument in enumerate(arguments):
        if argument == "--":
            break
        given, equals, value = argument.partition("=")
        if given == f"--{name}":
            found += [value] if equals else arguments[place + 1 : place + 2] if has_value else ["yes"]
    return found


def read_arguments(arguments: Sequence[str], table: Table) -> dict[str, list[Given]]:
    """Parse a command line: option name -> values given for it. Raises OptionError."""
    given: dict[str, list[Given]] = {}
    rest = list(reversed(arguments))
    while rest:
        argument = rest.pop()
        if argument.startswith("--") and len(argument) > 2:
            name, equals, value = argument[2:].partition("=")
            option = table.named(name)
            text = value if equals else _own_word(option, name, rest)
        elif argument.startswith("-") and len(argument) > 1 and argument != "--":
            letter, value = argument[1], argument[2:]
            found = table.by_letter.get(letter)
            if found is None:
                raise OptionError(f"-{shown(letter)}: unknown option; see --help")
            option, name = found, found.name
            if value and option.kind is Kind.FLAG and not value.startswith("="):
                rest.append("-" + value)  # several flags in one word: -dc
                value = ""
            text = value.removeprefix("=") if value else _own_word(option, name, rest)
        else:
            raise OptionError(f'"{shown(argument)}": unexpected argument: options begin with --; see --help')
        add(given, option, table.given(name, text, f"--{name}"))
    return given


def _own_word(option: Option, name: str, rest: list[str]) -> str:
    """The value of an option that has none in the same word."""
    if option.kind is Kind.FLAG:
        return "yes"
    if option.kind is Kind.SWITCH:
        return rest.pop() if rest and not rest[-1].startswith("-") else "yes"
    if not rest or rest[-1].startswith("--"):
        raise OptionError(f"--{name} requires a value: --{name} {option.value}")
    return rest.pop()


# ---- the configuration file ----

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


# ---- the environment ----

PREFIX: Final = "QPID_"

CLIENTS_OWN: Final = ("QPID_SSL_", "QPID_JAVA_", "QPID_PYTHON_", "QPID_JMX_", "QPID_CLI")
"""Prefixes of the variables of clients and other brokers."""

OTHERS_OWN: Final = frozenset({"QPID_HOME", "QPID_WORK", "QPID_OPTS", "QPID_LOG_SUFFIX", "QPID_ARGS", "QPID_PNAME"})
"""Further variables of clients and other brokers."""


def read_environment(variables: Mapping[str, str]) -> tuple[Entry, ...]:
    """The options in the environment, known or not."""
    return tuple(
        Entry(name.removeprefix(PREFIX).lower().replace("_", "-"), text, shown(name))
        for name, text in sorted(variables.items())
        if name.startswith(PREFIX) and text and name not in OTHERS_OWN and not name.startswith(CLIENTS_OWN)
    )


# ---- the sources, combined ----

_MAX_UNKNOWN: Final = 20  # unknown options with a warning each


class Sources(NamedTuple):
    """The sources, read before all options are known, since modules add theirs.

    Attributes:
        arguments: the command line.
        environment: the options in the environment.
        file: the options in the configuration file.
    """

    arguments: Sequence[str]
    environment: Sequence[Entry]
    file: ConfigFile

    def modules(self) -> list[str]:
        """The names of all modules to load, except those of the module directory."""
        return [name for names in self._by_source("load-module") for name in names]

    def module_directory(self) -> str | None:
        """The directory whose modules are to be loaded; None if none is given."""
        refusals = self._by_source("no-module-dir", "no-module", has_value=False)
        for refusal, directories in zip(refusals, self._by_source("module-dir"), strict=True):
            if any(TRUTH.get(word.lower(), False) for word in refusal):
                return None
            if directories:
                return directories[-1]
        return None

    def _by_source(self, *names: str, has_value: bool = True) -> list[list[str]]:
        """The values of one option under any of its names, a list per source, highest precedence first."""
        return [
            [word for name in names for word in words_of(name, self.arguments, has_value=has_value)],
            *(
                [entry.text for entry in entries if entry.name in names]
                for entries in (self.environment, self.file.entries)
            ),
        ]


def open_sources(arguments: Sequence[str], variables: Mapping[str, str]) -> Sources:
    """Read the environment and the configuration file. Raises OptionError."""
    environment = read_environment(variables)
    named = [*words_of("config", arguments), *(entry.text for entry in environment if entry.name == "config")]
    if any(not name or "\0" in name for name in named):
        raise OptionError("--config: the value must not be empty or contain NUL")
    file = read_config_file(named[0] if named else DEFAULT_FILE, is_optional=not named)
    return Sources(arguments, environment, file)


class GivenOptions(NamedTuple):
    """The options from all sources.

    Attributes:
        given: option name -> values.
        warnings: for the log, one line each.
    """

    given: dict[str, list[Given]]
    warnings: list[str]


def read_sources(sources: Sources, table: Table) -> GivenOptions:
    """Combine the sources. Raises OptionError."""
    warnings = list(sources.file.warnings)
    command_line = read_arguments(sources.arguments, table)
    environment = _read(sources.environment, Source.ENVIRONMENT, table, warnings)
    file = _read(sources.file.entries, Source.FILE, table, warnings)
    given = _joined((file, environment, command_line), table)
    return GivenOptions(given, [*warnings, *_contradictions(given, table)])


def _read(entries: Iterable[Entry], source: Source, table: Table, warnings: list[str]) -> dict[str, list[Given]]:
    given: dict[str, list[Given]] = {}
    unknown = 0
    for entry in entries:
        option = table.by_name.get(entry.name)
        if option is None:
            if source is Source.ENVIRONMENT and not table.is_similar(entry.name):
                continue
            unknown += 1
            if unknown > _MAX_UNKNOWN:
                continue
            if module := table.owner(entry.name):
                warnings.append(f"{entry.place} is ignored: it {module}")
                continue
            near = table.near(entry.name)
            advice = f"did you mean {near}?" if near else "see --help"
            warnings.append(f"{entry.place}: unknown option, ignored; {advice}")
        elif source not in option.sources:
            warnings.append(f"{entry.place} is ignored: it is allowed on the command line only")
        else:
            add(given, option, table.given(entry.name, entry.text, entry.place))
    if unknown > _MAX_UNKNOWN:
        warnings.append(f"{unknown - _MAX_UNKNOWN:,} more unknown options are ignored")
    return given


def _joined(lowest_first: Iterable[Mapping[str, list[Given]]], table: Table) -> dict[str, list[Given]]:
    joined: dict[str, list[Given]] = {}
    for given in lowest_first:
        for name, values in given.items():
            option = table.by_name[name]
            joined[name] = [*joined.get(name, ()), *values] if option.accumulates else values
            if option.conflicts_with not in given and not _is_off(option, values):
                joined.pop(option.conflicts_with, None)
    return joined


def _is_off(option: Option, values: Sequence[Given]) -> bool:
    return option.kind is Kind.FLAG and not TRUTH.get(values[-1].text.lower(), True)


def _contradictions(given: Mapping[str, Sequence[Given]], table: Table) -> Iterator[str]:
    """A warning for each option that one source gives together with the flag that excludes it."""
    for name, values in given.items():
        option = table.by_name[name]
        if option.kind is Kind.FLAG and option.conflicts_with in given and not _is_off(option, values):
            yield f"{given[option.conflicts_with][-1].place} is ignored: {values[-1].place} is given as well"


# ---- --help ----

_COLUMN: Final = 34
_WIDTH: Final = 100
_EFFECTS: Final = {
    Effect.WORKS: "",
    Effect.NOT_NEEDED: " (ignored: not needed by this broker)",
    Effect.LATER: " (ignored: not supported yet)",
    Effect.REPLACED: " (refused: see the other options)",
    Effect.REFUSED: " (refused: not supported yet)",
}
_EXAMPLES: Final = """\

Examples:
  qpidd --load-module store                            durable, in the foreground, on port 5672
  qpidd --load-module store --data-dir DIR --daemon    as a daemon; returns when it is listening
  qpidd --data-dir DIR --quit                          shut that broker down; --check prints its pid
  qpidd --load-module store --help                     show the store's options as well

Exit codes: 0 clean shutdown, or the command succeeded; 1 the shutdown was not clean, the command
failed, or the options are invalid."""


def help_text(table: Table) -> str:
    """The text of `--help`."""
    lines = ["Usage: qpidd OPTIONS"]
    for group in table.groups:
        lines += ["", f"{group.title}:"]
        for option in group.options:
            lines += _help_lines(option)
    return "\n".join([*lines, _EXAMPLES])


def _help_lines(option: Option) -> list[str]:
    left = f"  -{option.short} [ --{option.name} ]" if option.short else f"  --{option.name}"
    left += f" {option.value}" if option.value else ""
    left += f" ({option.default})" if option.default else ""
    text = option.help + _EFFECTS[option.effect]
    text += f" (also --{option.alias})" if option.alias else ""
    text += f" (--{option.opposite}: the opposite)" if option.opposite else ""
    import textwrap  # only help needs it

    wrapped = textwrap.wrap(text, _WIDTH - _COLUMN)
    beside = len(left) < _COLUMN - 1
    lines = [left.ljust(_COLUMN) + wrapped.pop(0)] if beside else [left]
    return lines + [" " * _COLUMN + line for line in wrapped]
