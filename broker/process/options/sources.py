"""The sources of options together.

The command line comes before the environment, and that before the file: of an option that several of them give, the
highest source's value counts. What adds up (modules, rules of the log) is taken from all of them, the file's first.
Where two options are contrary to each other, as data-dir and no-data-dir, a lower source's gives way to a higher one's;
of one source that gives both the flag counts, with a warning.

What the environment and the file have that is no option gets a warning; on the command line it is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from broker.process.options.command_line import read_arguments, words_of
from broker.process.options.config_file import DEFAULT_FILE, ConfigFile, Entry, read_config_file
from broker.process.options.environment import read_environment
from broker.process.options.lookup import Table, add
from broker.process.options.option import TRUTH, Given, Kind, Option, OptionError, Source

_MOST_UNKNOWN: Final = 20  # names that are warned of one by one


class Sources(NamedTuple):
    """What there is to read, before it is known what options there are.

    Attributes:
        arguments: the command line.
        environment: what the environment gives.
        file: what the file gives.
    """

    arguments: Sequence[str]
    environment: Sequence[Entry]
    file: ConfigFile

    def modules(self) -> list[str]:
        """The names of all modules that are to be loaded, but for those of a directory."""
        return [name for names in self._by_source("load-module") for name in names]

    def module_directory(self) -> str | None:
        """The directory whose modules are to be loaded; None if there is none."""
        refusals = self._by_source("no-module-dir", "no-module", has_value=False)
        for refusal, directories in zip(refusals, self._by_source("module-dir"), strict=True):
            if any(TRUTH.get(word.lower(), False) for word in refusal):
                return None
            if directories:
                return directories[-1]
        return None

    def _by_source(self, *names: str, has_value: bool = True) -> list[list[str]]:
        """What is given for one option, which has these names, by each source, the highest first."""
        return [
            [word for name in names for word in words_of(name, self.arguments, has_value=has_value)],
            *(
                [entry.text for entry in entries if entry.name in names]
                for entries in (self.environment, self.file.entries)
            ),
        ]


def open_sources(arguments: Sequence[str], variables: Mapping[str, str]) -> Sources:
    """Read the environment and the file. Raises OptionError."""
    environment = read_environment(variables)
    named = [*words_of("config", arguments), *(entry.text for entry in environment if entry.name == "config")]
    if any(not name or "\0" in name for name in named):
        raise OptionError("--config: an empty value, or one with NUL, cannot be used")
    file = read_config_file(named[0] if named else DEFAULT_FILE, is_optional=not named)
    return Sources(arguments, environment, file)


class Said(NamedTuple):
    """What all sources say.

    Attributes:
        given: option -> what was given for it.
        warnings: a line for each thing that somebody should know.
    """

    given: dict[str, list[Given]]
    warnings: list[str]


def read_sources(sources: Sources, table: Table) -> Said:
    """What was given for each option. Raises OptionError."""
    warnings = list(sources.file.warnings)
    command_line = read_arguments(sources.arguments, table)
    environment = _read(sources.environment, Source.ENVIRONMENT, table, warnings)
    file = _read(sources.file.entries, Source.FILE, table, warnings)
    given = _joined((file, environment, command_line), table)
    return Said(given, [*warnings, *_contradictions(given, table)])


def _read(entries: Iterable[Entry], source: Source, table: Table, warnings: list[str]) -> dict[str, list[Given]]:
    given: dict[str, list[Given]] = {}
    unknown = 0
    for entry in entries:
        option = table.by_name.get(entry.name)
        if option is None:
            unknown += 1
            if unknown > _MOST_UNKNOWN:
                continue
            if whose := table.owner(entry.name):
                warnings.append(f"{entry.place} has no effect: it {whose}")
                continue
            near = table.near(entry.name)
            advice = f"do you mean {near}?" if near else "see --help"
            warnings.append(f"{entry.place} is no option, and has no effect; {advice}")
        elif source not in option.sources:
            warnings.append(f"{entry.place} has no effect: it is for the command line")
        else:
            add(given, option, table.given(entry.name, entry.text, entry.place))
    if unknown > _MOST_UNKNOWN:
        warnings.append(f"{unknown - _MOST_UNKNOWN:,} more are no options, and have no effect")
    return given


def _joined(lowest_first: Iterable[Mapping[str, list[Given]]], table: Table) -> dict[str, list[Given]]:
    joined: dict[str, list[Given]] = {}
    for given in lowest_first:
        for name, values in given.items():
            option = table.by_name[name]
            joined[name] = [*joined.get(name, ()), *values] if option.adds_up else values
            if option.contrary not in given and not _is_off(option, values):
                joined.pop(option.contrary, None)
    return joined


def _is_off(option: Option, values: Sequence[Given]) -> bool:
    return option.kind is Kind.FLAG and not TRUTH.get(values[-1].text.lower(), True)


def _contradictions(given: Mapping[str, Sequence[Given]], table: Table) -> Iterator[str]:
    """A line for each option that one source gives together with the flag that refuses it."""
    for name, values in given.items():
        option = table.by_name[name]
        if option.kind is Kind.FLAG and option.contrary in given and not _is_off(option, values):
            yield f"{given[option.contrary][-1].place} has no effect: {values[-1].place} is given, too"
