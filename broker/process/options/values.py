"""What was given, with its meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from broker.process.options.lookup import Table
from broker.process.options.option import TRUTH, Effect, Given, Kind, Option, OptionError, shown

_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|ms|us|ns|)")
_UNITS: Final = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SIZE: Final = re.compile(r"([0-9]{1,12})(?:([kmgt])(?:i?b)?)?", re.IGNORECASE)
_SHIFTS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,18}")


class Values:
    """The values of all options: what was given, or the default.

    Args:
        table: all options.
        given: option -> what was given for it.
    """

    def __init__(self, table: Table, given: Mapping[str, Sequence[Given]]) -> None:
        self._table, self._given = table, given

    def is_given(self, name: str) -> bool:
        """Whether an option was given at all."""
        return name in self._given

    def given(self, name: str) -> tuple[Given, ...]:
        """All that was given for an option that is repeatable, with its places."""
        return tuple(self._given.get(name, ()))

    def texts(self, name: str) -> tuple[str, ...]:
        """All that was given for an option that is repeatable."""
        return tuple(each.text for each in self.given(name))

    def text(self, name: str) -> str | None:
        """The text; None if it was not given and has no default. Raises OptionError."""
        option = self._table.by_name[name]
        one = self._one(option)
        if not one.text and name not in self._given:
            return None
        if not one.text or "\0" in one.text:
            raise OptionError(f"{one.place}: an empty value, or one with NUL, cannot be used")
        if option.words and one.text not in option.words:
            raise OptionError(f'{one.place}: "{shown(one.text)}" is none of {", ".join(option.words)}')
        return one.text

    def word(self, name: str) -> str:
        """The text of an option that has a default. Raises OptionError."""
        text = self.text(name)
        assert text is not None
        return text

    def switch(self, name: str) -> bool:
        """Whether it is yes. Raises OptionError."""
        one = self._one(self._table.by_name[name])
        word = one.text.lower() if name in self._given else one.text or "no"
        if word not in TRUTH:
            raise OptionError(f'{one.place}: "{shown(one.text)}" is neither yes nor no')
        return TRUTH[word]

    def number(self, name: str) -> int:
        """The number. Raises OptionError."""
        option = self._table.by_name[name]
        one = self._one(option)
        number = int(one.text) if _WHOLE_NUMBER.fullmatch(one.text) and one.text.isascii() else -1
        if not option.least <= number <= option.most:
            raise OptionError(f'{one.place}: "{shown(one.text)}" is no number from {option.least:,} to {option.most:,}')
        return number

    def size(self, name: str) -> int | None:
        """The bytes; None if they were not given and there is no default. Raises OptionError."""
        option = self._table.by_name[name]
        one = self._one(option)
        if not one.text and name not in self._given:
            return None
        found = _SIZE.fullmatch(one.text) if one.text.isascii() else None
        size = -1 if found is None else int(found[1]) << _SHIFTS[(found[2] or "").lower()]
        if not option.least <= size <= option.most:
            raise OptionError(
                f'{one.place}: "{shown(one.text)}" is no size from {option.least:,} to {option.most:,} bytes: give '
                "bytes, or a number with K, M, G or T"
            )
        return size

    def seconds(self, name: str) -> float:
        """The duration in seconds. Raises OptionError."""
        option = self._table.by_name[name]
        one = self._one(option)
        found = _DURATION.fullmatch(one.text)
        if found is None:
            raise OptionError(
                f'{one.place}: "{shown(one.text)}" is no time: give seconds, or a number with s, ms, us or ns'
            )
        seconds = float(found[1]) * _UNITS[found[2]]
        if not option.least <= seconds <= option.most:
            raise OptionError(
                f'{one.place}: "{shown(one.text)}" is not from {option.least:,} to {option.most:,} seconds'
            )
        return seconds

    def _one(self, option: Option) -> Given:
        return self._given[option.name][-1] if option.name in self._given else Given(option.default, f"--{option.name}")

    # ---- all of them ----

    def check(self) -> None:
        """Look at every value that was given, and at what does not go together. Raises OptionError."""
        for name in self._given:
            option = self._table.by_name[name]
            self._check(option)
            if option.effect is Effect.REFUSED and not self._is_off(option):
                raise OptionError(f"{self._one(option).place} is not to be had here yet: {option.reason}; leave it out")
        if self.number("default-flow-resume-threshold") > self.number("default-flow-stop-threshold"):
            raise OptionError(
                "--default-flow-resume-threshold is above --default-flow-stop-threshold: "
                "what was stopped would go on at once; give a lower one"
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
        return option.kind is Kind.NUMBER and self.number(option.name) == 0

    def without_effect(self) -> list[str]:
        """One line for each option that was given and has no effect here."""
        says = {
            Effect.NOT_NEEDED: "is not needed here and has no effect",
            Effect.LATER: "has no effect yet",
        }
        options = [self._table.by_name[name] for name in self._given]
        return [f"option {each.name} {says[each.effect]}: {each.reason}" for each in options if each.effect in says]
