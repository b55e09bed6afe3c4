"""The broker's log: the categories and levels of qpidd, and the rules that select lines.

A module gets the log of a category once, `LOG = log_of("Network")`, and writes to it with the standard library's
formatting: `LOG.notice("Listening on port %d", port)`. A line that no rule enables costs one dictionary lookup; if the
arguments are expensive, check `LOG.is_on(DEBUG)` first. Passwords are never logged.

A rule is `LEVEL[+-][:PATTERN]`: `+` means this level and above, `-` this level and below. A pattern is the name of a
category, or a part of the name of the logging function (`broker.server.Server.listen`: room, module, class; `::` is
read as a dot, and `qpid::`, the prefix of all names in qpidd, matches every function). The first match decides (Qpid
C++ Broker Book, 1.1.8.3):

    1  a disabled function    hidden
    2  a disabled category    hidden
    3  an enabled function    shown
    4  an enabled category    shown
    5  no match               hidden

`sinks` writes the lines.

Log lines that any peer can cause have a rate limit: a flood of failed logins must not fill the log's disk. In each
period up to `MAX_LINES` lines of one kind are logged at their level, further ones at level debug, and their number at
its end (`LogBudget`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import printable

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

STATUS: Final = "Status"
"""The logger of the operational log (`status_log`), which is no category: rules do not apply to it."""

DEFAULT_RULE: Final = "notice+"
OFF: Final = CRITICAL + 1
"""The level that hides all lines."""
FUNCTION: Final = "function_in_class"
"""The attribute of a log record with the qualified name of the logging function: class and function."""


class LogError(Exception):
    """A log rule or output is invalid. The text is one line for the user."""


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
        """Whether any rule may show a line of this level."""
        return self._logger.isEnabledFor(level)

    def log(self, level: int, text: str, *arguments: object) -> None:
        """Log a line at `level`; `text` is formatted with the arguments, if there are any, by `%`."""
        if self._logger.isEnabledFor(level):
            self._logger.log(level, text, *arguments, stacklevel=2, extra=_caller())

    def trace(self, text: str, *arguments: object) -> None:
        """Log at level trace: every step."""
        if self._logger.isEnabledFor(TRACE):
            self._logger.log(TRACE, text, *arguments, stacklevel=2, extra=_caller())

    def debug(self, text: str, *arguments: object) -> None:
        """Log at level debug: details for finding an error."""
        if self._logger.isEnabledFor(DEBUG):
            self._logger.log(DEBUG, text, *arguments, stacklevel=2, extra=_caller())

    def info(self, text: str, *arguments: object) -> None:
        """Log at level info: frequent normal events."""
        if self._logger.isEnabledFor(INFO):
            self._logger.log(INFO, text, *arguments, stacklevel=2, extra=_caller())

    def notice(self, text: str, *arguments: object) -> None:
        """Log at level notice: rare normal events that concern the operator."""
        if self._logger.isEnabledFor(NOTICE):
            self._logger.log(NOTICE, text, *arguments, stacklevel=2, extra=_caller())

    def warning(self, text: str, *arguments: object) -> None:
        """Log at level warning: possible problems."""
        if self._logger.isEnabledFor(WARNING):
            self._logger.log(WARNING, text, *arguments, stacklevel=2, extra=_caller())

    def error(self, text: str, *arguments: object) -> None:
        """Log at level error: errors."""
        if self._logger.isEnabledFor(ERROR):
            self._logger.log(ERROR, text, *arguments, stacklevel=2, extra=_caller())

    def exception(self, text: str, *arguments: object) -> None:
        """Log at level error, with the exception that is being handled."""
        if self._logger.isEnabledFor(ERROR):
            self._logger.log(ERROR, text, *arguments, stacklevel=2, exc_info=True, extra=_caller())

    def critical(self, text: str, *arguments: object) -> None:
        """Log at level critical: errors that end the broker or lose data."""
        if self._logger.isEnabledFor(CRITICAL):
            self._logger.log(CRITICAL, text, *arguments, stacklevel=2, extra=_caller())


def log_of(category: str) -> CategoryLog:
    """The log of a category, one of CATEGORIES."""
    return CategoryLog(category)


def _caller() -> Mapping[str, object]:
    """The qualified name of the logging function; the standard library records it without its class."""
    return {FUNCTION: sys._getframe(2).f_code.co_qualname}


# ---- rules ----


class Rule(NamedTuple):
    """A parsed rule.

    Attributes:
        lowest, highest: the range of levels that it matches, inclusive.
        category: the category that it matches; None for all, or if it matches functions.
        function: the part of a function's name that it matches; None if it matches categories.
    """

    lowest: int
    highest: int
    category: str | None
    function: str | None

    def fits(self, level: int, category: str, function: str) -> bool:
        """Whether the rule matches a line."""
        if not self.lowest <= level <= self.highest:
            return False
        if self.function is not None:
            return self.function in function
        return self.category in (None, category)


def parse_rule(text: str) -> Rule:
    """Parse a rule. Raises LogError."""
    selector, colon, pattern = text.partition(":")
    sign = selector[-1:] if selector[-1:] in ("+", "-") else ""
    level = LEVELS.get(selector.removesuffix(sign))
    if level is None or (colon and not pattern):
        raise LogError(
            f'"{printable(text)}" is not a log rule: give LEVEL, LEVEL+ or LEVEL-, optionally followed by :PATTERN, '
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
        enabled: the rules of `--log-enable`.
        disabled: the rules of `--log-disable`.

    Attributes:
        enabled, disabled: as above.
    """

    def __init__(self, enabled: Iterable[str], disabled: Iterable[str] = ()) -> None:
        self.enabled, self.disabled = tuple(enabled), tuple(disabled)
        self._enabled = [parse_rule(text) for text in self.enabled]
        self._disabled = [parse_rule(text) for text in self.disabled]

    def lowest(self, category: str) -> int:
        """The lowest level at which a line of this category may be shown; OFF if none is."""
        levels = [rule.lowest for rule in self._enabled if rule.category in (None, category)]
        return min(levels, default=OFF)

    def shows(self, level: int, category: str, function: str) -> bool:
        """Whether a line is shown."""
        if any(rule.fits(level, category, function) for rule in self._disabled):
            return False  # by function or by category: both take precedence over the enabled ones
        return any(rule.fits(level, category, function) for rule in self._enabled)

    @property
    def has_functions(self) -> bool:
        """Whether any rule needs the name of the logging function."""
        return any(rule.function is not None for rule in (*self._enabled, *self._disabled))


def enabled_rules(rules: Sequence[str], *, trace: bool) -> Sequence[str]:
    """The rules of `--log-enable`, or the default rule, and the rule of `--trace`."""
    return [*(rules or [DEFAULT_RULE]), *(["trace+"] if trace else [])]


# ---- rate limits ----

MAX_LINES: Final = 20
PERIOD_SECONDS: Final = 60.0


class LineLimit:
    """The rate limit of one kind of lines.

    Args:
        max_lines: lines in a period.
    """

    def __init__(self, max_lines: int) -> None:
        self._max_lines = max_lines
        self._began = 0.0
        self._written = self._left_out = 0

    def admits(self, now: float) -> bool:
        """Whether one more line may be written. `now` is the time of a monotonic clock, in seconds, here and below."""
        if not self._written:
            self._began = now
        if self._written < self._max_lines:
            self._written += 1
            return True
        self._left_out += 1
        return False

    def ended(self, now: float, period: float = PERIOD_SECONDS) -> tuple[int, float]:
        """End the period if it is over. Returns how many lines were left out, and in how many seconds; 0 if none."""
        took = now - self._began
        if not self._written or took < period:
            return 0, 0.0
        left_out, self._written, self._left_out = self._left_out, 0, 0
        return left_out, took


class LogBudget:
    """The rate limit of one kind of lines.

    Args:
        log: the log to write to.
        level: the level of the lines.
        what: the subject of the lines, in the plural, such as "failed logins".
    """

    def __init__(self, log: CategoryLog, level: int, what: str) -> None:
        self._log, self._level, self._what = log, level, what
        self._limit = LineLimit(MAX_LINES)

    def write(self, now: float, text: str, *arguments: object) -> None:
        """Log a line, at level debug if the limit of the period is reached.

        Args:
            now: the time of a monotonic clock, in seconds.
            text: the text, as for `CategoryLog.log`.
            *arguments: its arguments.
        """
        self.on_timer(now)
        if self._limit.admits(now):
            self._log.log(self._level, text, *arguments)
        else:
            self._log.debug(text, *arguments)

    def on_timer(self, now: float) -> None:
        """End the period if it is over, and log the number of suppressed lines."""
        left_out, seconds = self._limit.ended(now)
        if left_out:
            text = "%d more %s within %.0f seconds; log level debug+ shows each of them"
            self._log.log(self._level, text, left_out, self._what, seconds)
