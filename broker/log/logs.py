"""The broker's log: categories and levels as qpidd has them, and the rules that choose lines.

A module takes the log of a category once, `LOG = log_of("Network")`, and writes to it with the standard library's
formatting: `LOG.notice("Listening on port %d", port)`. A line that no rule wants costs one look into a dictionary;
where even the arguments cost something, ask `LOG.is_on(DEBUG)` first. Passwords are never handed to a log.

A rule is `LEVEL[+-][:PATTERN]`: `+` is this level and above, `-` this level and below. A pattern is the name of a
category, or a part of the name of the function that writes (`broker.server.Server.listen`: room, module, class; `::`
is read as a dot, and `qpid::`, with which all of qpidd's names begin, stands for every function). First match decides
(Qpid C++ Broker Book, 1.1.8.3):

    1  a disabled function    hidden
    2  a disabled category    hidden
    3  an enabled function    shown
    4  an enabled category    shown
    5  nothing of these       hidden

`log_sinks` writes the lines.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from formats.wording import printable

TRACE, DEBUG, INFO, NOTICE = 5, logging.DEBUG, logging.INFO, 25
WARNING, ERROR, CRITICAL = logging.WARNING, logging.ERROR, logging.CRITICAL

LEVELS: Final = {
    "trace": TRACE,
    "debug": DEBUG,
    "info": INFO,
    "notice": NOTICE,
    "warning": WARNING,
    "error": ERROR,
    "critical": CRITICAL,
}

CATEGORIES: Final = (
    "Security", "Broker", "Management", "Protocol", "System", "HA", "Messaging",
    "Store", "Network", "Test", "Client", "Model", "Unspecified",
)  # fmt: skip
"""Qpid C++ Broker Book, 1.1.8.1.2."""

DEFAULT_RULE: Final = "notice+"
OFF: Final = CRITICAL + 1
"""The level of a log that shows nothing."""
FUNCTION: Final = "function_in_class"
"""The attribute of a line's record that has the name of the function that writes, and of its class before it."""


class LogError(Exception):
    """A rule or a place for the log cannot be used. The text is one line for a person."""


class CategoryLog:
    """The log of one category.

    Args:
        category: one of CATEGORIES.
    """

    __slots__ = ("_logger",)

    def __init__(self, category: str) -> None:
        assert category in CATEGORIES
        self._logger = logging.getLogger(category)

    def is_on(self, level: int) -> bool:
        """Whether a line of this level may be shown."""
        return self._logger.isEnabledFor(level)

    def log(self, level: int, text: str, *arguments: object) -> None:
        """Write a line; `text` is formatted with the arguments, if there are any, by `%`."""
        if self._logger.isEnabledFor(level):
            self._logger.log(level, text, *arguments, stacklevel=2, extra=_caller())

    def trace(self, text: str, *arguments: object) -> None:
        """Every step."""
        if self._logger.isEnabledFor(TRACE):
            self._logger.log(TRACE, text, *arguments, stacklevel=2, extra=_caller())

    def debug(self, text: str, *arguments: object) -> None:
        """What somebody wants to know who looks for an error."""
        if self._logger.isEnabledFor(DEBUG):
            self._logger.log(DEBUG, text, *arguments, stacklevel=2, extra=_caller())

    def info(self, text: str, *arguments: object) -> None:
        """What happens and is as it should be."""
        if self._logger.isEnabledFor(INFO):
            self._logger.log(INFO, text, *arguments, stacklevel=2, extra=_caller())

    def notice(self, text: str, *arguments: object) -> None:
        """What happens seldom, and an operator wants to see."""
        if self._logger.isEnabledFor(NOTICE):
            self._logger.log(NOTICE, text, *arguments, stacklevel=2, extra=_caller())

    def warning(self, text: str, *arguments: object) -> None:
        """What may be wrong."""
        if self._logger.isEnabledFor(WARNING):
            self._logger.log(WARNING, text, *arguments, stacklevel=2, extra=_caller())

    def error(self, text: str, *arguments: object) -> None:
        """What is wrong."""
        if self._logger.isEnabledFor(ERROR):
            self._logger.log(ERROR, text, *arguments, stacklevel=2, extra=_caller())

    def exception(self, text: str, *arguments: object) -> None:
        """What is wrong, with the exception that is being handled."""
        if self._logger.isEnabledFor(ERROR):
            self._logger.log(ERROR, text, *arguments, stacklevel=2, exc_info=True, extra=_caller())

    def critical(self, text: str, *arguments: object) -> None:
        """What the broker cannot go on with, or that loses data."""
        if self._logger.isEnabledFor(CRITICAL):
            self._logger.log(CRITICAL, text, *arguments, stacklevel=2, extra=_caller())


def log_of(category: str) -> CategoryLog:
    """The log of a category."""
    return CategoryLog(category)


def _caller() -> Mapping[str, object]:
    """The name of the function that writes, with its class: the standard library keeps it without."""
    return {FUNCTION: sys._getframe(2).f_code.co_qualname}


# ---- rules ----


class Rule(NamedTuple):
    """A rule, taken apart.

    Attributes:
        lowest, highest: the levels that it is for.
        category: the category that it is for; None for all, or if it is for a function.
        function: the part of a function's name that it is for; None if it is for categories.
    """

    lowest: int
    highest: int
    category: str | None
    function: str | None

    def fits(self, level: int, category: str, function: str) -> bool:
        """Whether it is for this line."""
        if not self.lowest <= level <= self.highest:
            return False
        if self.function is not None:
            return self.function in function
        return self.category in (None, category)


def parse_rule(text: str) -> Rule:
    """The rule that `text` is. Raises LogError."""
    selector, colon, pattern = text.partition(":")
    sign = selector[-1:] if selector[-1:] in ("+", "-") else ""
    level = LEVELS.get(selector.removesuffix(sign))
    if level is None or (colon and not pattern):
        raise LogError(
            f'"{printable(text)}" is no rule for the log: give LEVEL, LEVEL+ or LEVEL-, and perhaps :PATTERN, '
            f"with LEVEL one of {', '.join(LEVELS)}"
        )
    lowest = TRACE if sign == "-" else level
    highest = CRITICAL if sign == "+" else level
    if pattern in CATEGORIES:
        return Rule(lowest, highest, pattern, None)
    function = pattern.removeprefix("qpid::").replace("::", ".")
    return Rule(lowest, highest, None, function if colon else None)


class Rules:
    """All rules of a broker's log.

    Args:
        enabled: of `--log-enable`.
        disabled: of `--log-disable`.
    """

    def __init__(self, enabled: Iterable[str], disabled: Iterable[str] = ()) -> None:
        self._enabled = [parse_rule(text) for text in enabled]
        self._disabled = [parse_rule(text) for text in disabled]

    def lowest(self, category: str) -> int:
        """The lowest level of which a line of this category may be shown."""
        levels = [rule.lowest for rule in self._enabled if rule.category in (None, category)]
        return min(levels, default=OFF)

    def shows(self, level: int, category: str, function: str) -> bool:
        """Whether a line is shown."""
        if any(rule.fits(level, category, function) for rule in self._disabled):
            return False  # by function or by category: both come before what enables
        return any(rule.fits(level, category, function) for rule in self._enabled)

    @property
    def has_functions(self) -> bool:
        """Whether the name of the function that writes matters."""
        return any(rule.function is not None for rule in (*self._enabled, *self._disabled))


def enabled_rules(rules: Sequence[str], *, trace: bool) -> Sequence[str]:
    """The rules of `--log-enable`, with what stands for none and for `--trace`."""
    return [*(rules or [DEFAULT_RULE]), *(["trace+"] if trace else [])]
