"""The typed values of the options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from qstore.broker.process.options.lookup import Table
from qstore.broker.process.options.option import TRUTH, Effect, Given, Kind, Option, OptionError, shown

_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|ms|us|ns|)")
_UNITS: Final = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SIZE: Final = re.compile(r"([0-9]{1,12})(?:([kmgt])(?:i?b)?)?", re.IGNORECASE)
_SHIFTS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,18}")


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
        found = _DURATION.fullmatch(one.text)
        if found is None:
            raise OptionError(
                f'{one.place}: "{shown(one.text)}" is not a duration: give seconds, or a number with s, ms, us or ns'
            )
        seconds = float(found[1]) * _UNITS[found[2]]
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
        if self.number("default-flow-resume-threshold") > self.number("default-flow-stop-threshold"):
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
        return option.kind is Kind.NUMBER and self.number(option.name) == 0

    def without_effect(self) -> list[str]:
        """A log line for each given option that has no effect."""
        texts = {
            Effect.NOT_NEEDED: "is ignored",
            Effect.LATER: "is ignored, since it is not supported yet",
        }
        options = [self._table.by_name[name] for name in self._given]
        return [f"Option {each.name} {texts[each.effect]}: {each.reason}" for each in options if each.effect in texts]
