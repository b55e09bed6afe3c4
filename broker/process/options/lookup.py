"""All options that there are, by every name that they have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from broker.process.options.option import TRUTH, Given, Group, Option, OptionError, shown

_ALIKE: Final = 0.75  # of difflib: prot is as much like port


class Table:
    """All options: the broker's own, and those of its modules.

    Args:
        groups: the options, as help shows them.
        elsewhere: options of modules that are not loaded, with the name of the module that has each.

    Attributes:
        groups: the same.
        by_name: each option by its name, its alias, and the name of its opposite.
        by_letter: those that have a letter.
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
        """The option of that name on a command line. Raises OptionError."""
        option = self.by_name.get(name)
        if option is None:
            if whose := self.owner(name):
                raise OptionError(f"--{shown(name)} {whose}")
            near = self.near(name)
            raise OptionError(f"--{shown(name)} is no option; {f'do you mean --{near}?' if near else 'see --help'}")
        return option

    def owner(self, name: str) -> str:
        """Which module has an option of that name, if it is not loaded, and how to load it; empty if there is none."""
        module = self._elsewhere.get(name)
        if module is None:
            return ""
        return f"is an option of the module {module}, which is not loaded: add --load-module {module}"

    def near(self, name: str) -> str:
        """A name much like this one; empty if there is none."""
        return next(iter(difflib.get_close_matches(name[:100], self.by_name, 1, _ALIKE)), "")

    def given(self, name: str, text: str, place: str) -> Given:
        """What it means for its option that this text was given under this name."""
        is_opposite = name == self.by_name[name].opposite
        if is_opposite and text.lower() in TRUTH:
            text = "no" if TRUTH[text.lower()] else "yes"
        return Given(text, place)


def add(given: dict[str, list[Given]], option: Option, one: Given) -> None:
    """Note what one source gives for an option. Raises OptionError if it has done so before and may not again."""
    if option.name in given and not option.repeatable:
        raise OptionError(f"{one.place} is given twice; give it once")
    given.setdefault(option.name, []).append(one)
