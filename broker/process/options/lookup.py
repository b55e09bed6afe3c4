"""All options, by name, alias, opposite and letter."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from qstore.broker.process.options.option import TRUTH, Given, Group, Option, OptionError, shown

_ALIKE: Final = 0.75  # difflib's ratio of "prot" and "port"
_WORD_ALIKE: Final = 0.6  # that of single words: "build-dir" is no misspelt "pid-dir"


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
            if whose := self.owner(name):
                raise OptionError(f"--{shown(name)} {whose}")
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
        return next(iter(difflib.get_close_matches(name[:100], self.by_name, 1, _ALIKE)), "")

    def is_similar(self, name: str) -> bool:
        """Whether this name looks like that of an option: as many words, each of them similar, or of another module."""
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
