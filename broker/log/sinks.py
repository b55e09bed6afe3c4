"""The outputs of the broker's log, and the format of its lines.

A line looks like `2026-11-20 12:00:00 [Broker] notice Broker running` (Qpid C++ Broker Book, 1.1.8.5), or, of the
operational log, `2026-11-20 12:00:00 +0000 MESSAGE BRK-1004 : Ready` (`status_log`). Unprintable
characters, including newlines, are escaped, whatever a client has sent. A line that cannot be written is dropped, and
the broker continues.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import socket
import sys
import time
from collections import deque
from itertools import islice
from pathlib import Path
from typing import IO, Final, cast

from qstore.broker.log.logs import CATEGORIES, FUNCTION, LEVELS, NOTICE, STATUS, TRACE, LogError, Rules
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import printable

_NAMES: Final = {level: name for name, level in LEVELS.items()}
_SYSLOG_ADDRESS: Final = "/dev/log"
_TOP: Final = Path(__file__).parents[2]  # the directory of the rooms


class LineFormat(NamedTuple):
    """The parts of a line before its text (Qpid C++ Broker Book, 1.1.5)."""

    time: bool = True
    level: bool = True
    category: bool = True
    source: bool = False
    thread: bool = False
    function: bool = False
    hires_timestamp: bool = False
    prefix: str = ""


class _Formatter(logging.Formatter):
    """Formats a line as qpidd does."""

    def __init__(self, parts: LineFormat) -> None:
        super().__init__()
        self._parts = parts

    def format(self, record: logging.LogRecord) -> str:
        """The line of a log record, without the newline."""
        parts, line = self._parts, self._parts.prefix
        if record.name == STATUS:
            return line + _status_time(record.created, parts) + "MESSAGE " + printable(record.getMessage())
        if parts.time:
            seconds, fraction = divmod(record.created, 1)
            line += time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
            line += f".{int(fraction * 1_000_000):06} " if parts.hires_timestamp else " "
        if parts.category:
            line += f"[{_category(record)}] "
        if parts.level:
            line += _NAMES.get(record.levelno, record.levelname.lower()) + " "
        if parts.thread:
            line += f"[{record.thread}] "
        if parts.source:
            line += f"{record.filename}:{record.lineno}: "
        if parts.function:
            line += f"{_function(record)}: "
        text = record.getMessage()
        if record.exc_info:
            text += ": " + self.formatException(record.exc_info)
        return line + printable(text)


def _status_time(created: float, parts: LineFormat) -> str:
    """The time of a line of the operational log, with the time zone."""
    if not parts.time:
        return ""
    seconds, fraction = divmod(created, 1)
    local = time.localtime(seconds)
    sub_seconds = f",{int(fraction * 1_000_000):06}" if parts.hires_timestamp else ""
    return time.strftime("%Y-%m-%d %H:%M:%S", local) + sub_seconds + time.strftime(" %z ", local)


def _category(record: logging.LogRecord) -> str:
    return record.name if record.name in CATEGORIES else "Unspecified"


def _function(record: logging.LogRecord) -> str:
    """The name of the logging function, such as broker.server.Server.listen: room, module without inner room, class."""
    path = Path(record.pathname)
    parts = (path.relative_to(_TOP).parts[0], path.stem) if path.is_relative_to(_TOP) else (record.module,)
    return ".".join((*parts, getattr(record, FUNCTION, record.funcName)))


class _RuleFilter(logging.Filter):
    """Passes the lines that the rules show.

    Args:
        rules: the rules, which may be replaced.
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.rules = rules

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == STATUS:
            return True
        function = _function(record) if self.rules.has_functions else ""
        return self.rules.shows(record.levelno, _category(record), function)


# ---- the last lines ----

MAX_KEPT: Final = 2000
MAX_KEPT_CHARACTERS: Final = 1 << 20
_MAX_LINE: Final = 4096


class RecentLines(logging.Handler):
    """Keeps the last lines for management: at most `MAX_KEPT`, and `MAX_KEPT_CHARACTERS` of them together.

    Lines of level trace, one for each frame of a traced connection, are not kept: they would push all others out.

    Attributes:
        last: how many lines there were.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._lines: deque[str] = deque()
        self._characters = self.last = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        line = self.format(record)[:_MAX_LINE]
        lines = self._lines
        lines.append(line)
        self.last += 1
        self._characters += len(line)
        while len(lines) > MAX_KEPT or self._characters > MAX_KEPT_CHARACTERS:
            self._characters -= len(lines.popleft())

    def since(self, number: int, most: int, characters: int) -> tuple[int, list[str]]:
        """The number of the first of the lines after the line `number` that are still there, and these lines.

        At most `most` of them, and about so many characters: the newest if `number` is 0, else the oldest.
        """
        with self.lock or contextlib.nullcontext():
            first = self.last - len(self._lines) + 1
            lines = list(islice(self._lines, max(0, number + 1 - first), None))
        begin = max(first, number + 1)
        found: list[str] = []
        for line in reversed(lines) if number <= 0 else lines:
            characters -= len(line)
            if len(found) >= most or (characters < 0 and found):
                break
            found.append(line)
        if number <= 0:
            return begin + len(lines) - len(found), found[::-1]
        return begin, found


# ---- outputs ----


class Sinks(NamedTuple):
    """The outputs of the log (Qpid C++ Broker Book, 1.1.5).

    Attributes:
        stderr, stdout, syslog: whether to log there.
        file: the file to append to; None if there is none. It may be renamed at any time: then a new one is created.
        syslog_name: the broker's name in syslog.
        syslog_facility: the syslog facility, such as `LOG_DAEMON`.
    """

    stderr: bool = True
    stdout: bool = False
    file: str | None = None
    syslog: bool = False
    syslog_name: str = "qpidd"
    syslog_facility: str = "LOG_DAEMON"


class _Quiet(logging.Handler):
    """Drops lines that cannot be written, instead of reporting each on standard error."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the standard library's name)
        """Drop the line."""


class _StreamHandler(_Quiet, logging.StreamHandler[IO[str]]):
    """Writes to standard output or standard error."""


class _FileHandler(_Quiet, logging.handlers.WatchedFileHandler):
    """Appends to a file, and creates a new one when it has been renamed."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line. If a new file is needed and cannot be opened, drop the line; the next line retries."""
        with contextlib.suppress(OSError):
            super().emit(record)

    def reopen(self) -> None:
        """Reopen the file, renamed or not. Raises OSError; then each line retries."""
        new = self._open()
        self.acquire()
        try:
            old, self.stream = self.stream, new
            self._statstream()
        finally:
            self.release()
        if old is not None:
            old.close()


class _SyslogHandler(_Quiet, logging.handlers.SysLogHandler):
    """Writes to syslog."""

    def mapPriority(self, levelName: str) -> str:  # noqa: N802, N803 (the standard library's name)
        """The syslog priority of a level."""
        return levelName.lower() if levelName in _SYSLOG_LEVELS else "debug"


_SYSLOG_LEVELS: Final = ("INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL")


def _file_handler(path: str) -> logging.Handler:
    try:
        if Path(path).is_fifo():
            raise LogError(f"{path}: the log cannot be written: it is a FIFO, which could block the broker")
        return _FileHandler(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: str, error: OSError) -> LogError:
    return LogError(f"{path}: the log cannot be written: {error.strerror}; see --log-to-file")


def _syslog_handler(sinks: Sinks) -> logging.Handler:
    names = logging.handlers.SysLogHandler.facility_names
    facility = names.get(sinks.syslog_facility.removeprefix("LOG_").lower())
    if facility is None:
        raise LogError(f'"{printable(sinks.syslog_facility)}" is not a syslog facility: see --syslog-facility')
    if not has_syslog():
        raise LogError(f"{_SYSLOG_ADDRESS}: this system has no syslog; see --log-to-syslog")
    handler = _SyslogHandler(_SYSLOG_ADDRESS, facility)
    handler.ident = f"{sinks.syslog_name}: "
    return handler


def _stream_handlers(stream: IO[str] | None) -> list[logging.Handler]:
    return [] if stream is None else [_StreamHandler(stream)]  # None: closed by the parent process


class Logging:
    """The configured log of the process, until it is closed.

    Args:
        rules: select the lines to show.
        sinks: the outputs.
        parts: the format of the lines.

    Raises:
        LogError: an output cannot be opened.

    Attributes:
        recent: the last lines.
    """

    def __init__(self, rules: Rules, sinks: Sinks, parts: LineFormat) -> None:
        self._loggers = [logging.getLogger(category) for category in CATEGORIES]
        self._status = logging.getLogger(STATUS)
        self.recent = RecentLines()
        self._handlers: list[logging.Handler] = [self.recent]
        if sinks.stderr:
            self._handlers += _stream_handlers(sys.stderr)
        if sinks.stdout:
            self._handlers += _stream_handlers(sys.stdout)
        try:
            if sinks.file is not None:
                self._handlers.append(_file_handler(sinks.file))
            if sinks.syslog:
                self._handlers.append(_syslog_handler(sinks))
        except LogError:
            self._close_handlers()
            raise
        logging.addLevelName(TRACE, "TRACE")
        logging.addLevelName(NOTICE, "NOTICE")
        self._parts, self._filter = parts, _RuleFilter(rules)
        for handler in self._handlers:
            handler.setFormatter(_Formatter(parts))
            handler.addFilter(self._filter)
        self._status.setLevel(NOTICE)
        for logger in (*self._loggers, self._status):
            logger.propagate = False
            for handler in self._handlers:
                logger.addHandler(handler)
        self.select(rules)

    @property
    def rules(self) -> Rules:
        """The rules in force."""
        return self._filter.rules

    def select(self, rules: Rules) -> None:
        """Show the lines that these rules select."""
        self._filter.rules = rules
        for logger in self._loggers:
            logger.setLevel(rules.lowest(logger.name))

    @property
    def has_microseconds(self) -> bool:
        """Whether the time of a line has them."""
        return self._parts.hires_timestamp

    def show_microseconds(self, *, is_on: bool) -> None:
        """Write the time with microseconds, or without."""
        self._parts = self._parts._replace(hires_timestamp=is_on)
        for handler in self._handlers:
            handler.setFormatter(_Formatter(self._parts))

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of all outputs."""
        found: list[int] = []
        for handler in self._handlers:
            if isinstance(handler, _SyslogHandler):
                found.append(cast(socket.socket, vars(handler)["socket"]).fileno())
            elif isinstance(handler, logging.StreamHandler):
                with contextlib.suppress(OSError, ValueError):
                    found.append(handler.stream.fileno())
        return found

    def reopen(self) -> None:
        """Reopen the log file, if there is one. Raises LogError; then each line retries."""
        for handler in self._handlers:
            if isinstance(handler, _FileHandler):
                try:
                    handler.reopen()
                except OSError as error:
                    raise _unwritable(handler.baseFilename, error) from error

    def close(self) -> None:
        """Close the outputs, and reset the loggers."""
        for logger in (*self._loggers, self._status):
            for handler in self._handlers:
                logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
            logger.propagate = True
        self._close_handlers()

    def _close_handlers(self) -> None:
        for handler in self._handlers:
            handler.close()


def has_syslog() -> bool:
    """Whether this system has a syslog socket."""
    return Path(_SYSLOG_ADDRESS).exists()
