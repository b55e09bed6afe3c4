"""Options on a command line.

    --name VALUE   --name=VALUE   -n VALUE   -nVALUE      an option with a value
    --name         --name=yes                             a flag; the next word is never its value
    --name         --name yes     --name=no               a switch: yes, true, 1, or no, false, 0; without a value yes

The options of a module are known only when the module is loaded. `words_of` finds the values of one option, such as
--load-module, before the command line is parsed.
"""

from __future__ import annotations

from collections.abc import Sequence

from qstore.broker.process.options.lookup import Table, add
from qstore.broker.process.options.option import Given, Kind, Option, OptionError, shown


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
