"""The sources of options, combined.

The command line takes precedence over the environment, and the environment over the configuration file. Options that
accumulate (modules, log rules) take the values of all sources, the file's first. If two options exclude each other,
such as data-dir and no-data-dir, the one from the source with higher precedence applies; if one source gives both, the
flag applies, with a warning.

An unknown option is an error on the command line, and a warning in the file. In the environment it is a warning only if
its name is similar to that of an option: other programs have variables that begin with QPID_, too (`QPID_BLD`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from qstore.broker.process.options.command_line import read_arguments, words_of
from qstore.broker.process.options.config_file import DEFAULT_FILE, ConfigFile, Entry, read_config_file
from qstore.broker.process.options.environment import read_environment
from qstore.broker.process.options.lookup import Table, add
from qstore.broker.process.options.option import TRUTH, Given, Kind, Option, OptionError, Source

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
            if whose := table.owner(entry.name):
                warnings.append(f"{entry.place} is ignored: it {whose}")
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
