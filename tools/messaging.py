"""What `qpid-send`, `qpid-receive`, `spout` and `drain` share, on top of the broker's client.

options        those that both Qpid commands have, and the value types of the originals
Contents       what is sent: generated, from standard input, or given; headers and groups
StallWatch     what a sender waits for, if the broker confirms nothing
Reporter       throughput and latency, in the format of the originals; `Pace` limits the rate
formatted      messages as text; Ctrl-C, and connections that are lost
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, TextIO, TypeVar

import click

from qstore.broker.client import Connection, Message, MessagingError, Sender
from qstore.broker.client.address import CLIENT_LOGGER, Value, word_value
from qstore.broker.client.links import DELAY
from qstore.broker.management.console import Console
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import UINT32, TypedValue
from qstore.formats.wording import plural
from qstore.tools.console.amounts import plain
from qstore.tools.console.broker import CONNECTION_OPTIONS, BrokerOptions, security_options
from qstore.tools.console.command import EXIT_FAILED, say
from qstore.tools.console.text import printable

_WORDS: Final = {
    "yes": True,
    "true": True,
    "1": True,
    "on": True,
    "no": False,
    "false": False,
    "0": False,
    "off": False,
}
_Function = TypeVar("_Function", bound=Callable[..., Any])


class YesNo(click.ParamType[bool]):
    """Type of an option: yes or no."""

    name = "yes|no"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Convert a word to a boolean."""
        if isinstance(value, bool):
            return value
        if str(value).lower() not in _WORDS:
            self.fail(f"{value!r} is neither yes nor no", param, ctx)
        return _WORDS[str(value).lower()]


class NameValue(click.ParamType[tuple[str, Any]]):
    """Type of an option: NAME=VALUE, where VALUE is a number, a boolean or text."""

    name = "NAME=VALUE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Convert to name and value."""
        if isinstance(value, tuple):
            return value
        name, equals, word = str(value).partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, word_value(word)


class Timeout(click.ParamType[float]):
    """Type of an option: seconds, or "forever"."""

    name = "SECONDS|forever"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert to seconds; "forever" is infinity."""
        if str(value).lower() in ("forever", "infinite"):
            return float("inf")
        try:
            seconds = float(str(value))
        except ValueError:
            self.fail(f'{value!r} is neither a number of seconds nor "forever"', param, ctx)
        if not seconds >= 0:
            self.fail(f"{value} is not a number of seconds, 0 or more", param, ctx)
        return seconds


def yes_no(name: str, *, default: bool = False, text: str) -> Callable[[_Function], _Function]:
    """An option with the value yes or no; without a value it means yes."""
    shown = "yes" if default else "no"
    return click.option(
        name, type=YesNo(), default=default, is_flag=False, flag_value="yes", help=f"{text}  [default: {shown}]"
    )


def count(*names: str, default: int, text: str) -> Callable[[_Function], _Function]:
    """An option with a number, 0 or more."""
    return click.option(
        *names, type=click.IntRange(0, (1 << 31) - 1), default=default, show_default=True, metavar="N", help=text
    )


def shared_options(function: _Function) -> _Function:
    """Add the options of both commands to a command."""
    options: tuple[Callable[[_Function], _Function], ...] = (
        click.option("-b", "--broker", "url", default="127.0.0.1", show_default=True, metavar="URL",
                     help="URL of the broker: [user/password@]host[:port], or several separated by commas."),
        click.option("-a", "--address", metavar="ADDRESS", help="Address in the syntax of the Qpid Messaging API."),
        CONNECTION_OPTIONS,
        security_options,
        click.option("--rollback-frequency", type=click.IntRange(0), default=0, metavar="N",
                     help="Roll back every Nth transaction."),
        click.option("--failover-updates", is_flag=True, help="With the connection option reconnect: reconnect to "
                     "other addresses that the broker announces, too."),
        click.option("--report-total", is_flag=True, help="Report throughput at the end."),
        count("--report-every", default=0, text="Report throughput every N messages; 0 for never."),
        yes_no("--report-header", default=True, text="Print a heading above the reports."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def connect(url: str, options: dict[str, Value], *, failover_updates: bool) -> Connection:
    """Open a connection; `failover_updates` as the connection option.

    Raises:
        MessagingError: it cannot be opened.
    """
    own = {"send_timeout": None, **({"failover_updates": True} if failover_updates else {})}
    return Connection.establish(url, **(own | options))


def run_messaging(program: str, work: Callable[[], int], summary: Callable[[], str]) -> int:
    """Run a command. An error is printed as one line, and makes the exit code EXIT_FAILED.

    Args:
        program: the command's name.
        work: runs the command, and returns the exit code.
        summary: text for standard error at the end, also after an error; empty for none.
    """
    try:
        code = work()
        sys.stdout.flush()
    except MessagingError as error:
        say(program, str(error))
        code = EXIT_FAILED
    except BrokenPipeError:
        raise
    except OSError as error:
        text = f"{error.filename or 'standard input or output'}: {error.strerror or error}"
        say(program, text)
        code = EXIT_FAILED
    finally:
        if text := summary():
            say(program, text)
    return code


# ---- messages to send, and what senders wait for ----

SEQUENCE: Final = "sn"
END_OF_STREAM: Final = "eos"
_NUMBERS: Final = 1 << 32

STALL_SECONDS: Final = 5.0
"""Seconds without a confirmation after which a command says what it waits for."""
_LOOK_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 3.0


class Contents(NamedTuple):
    """The source of contents: the first of these that is given.

    Attributes:
        lines: a file; each line, without its newline, is the content of a message.
        size: generated content of this size, in bytes.
        entries: a map.
        text: a text.
    """

    lines: TextIO | None = None
    size: int = 0
    entries: Mapping[str, Any] | None = None
    text: str | None = None

    def __iter__(self) -> Iterator[Any]:
        """The contents, one per message; infinite except for lines."""
        if self.lines is not None:
            for line in self.lines:
                yield line.removesuffix("\n")
            return
        content: Any = self.text or ""
        if self.size:
            content = b"X" * self.size
        elif self.entries:
            content = dict(self.entries)
        while True:
            yield content


def groups(prefix: str, size: int, interleave: int, *, randomize: bool, choose: random.Random) -> Iterator[str]:
    """The group name of each message.

    Args:
        prefix: prefix of the names, which is followed by the group's number.
        size: number of messages in a group; with `randomize` the maximum.
        interleave: number of groups whose messages alternate.
        randomize: whether group sizes are random.
        choose: the random generator for sizes.
    """
    begun = 0
    open_groups: list[tuple[str, int]] = []
    while True:
        while len(open_groups) < max(1, interleave):
            open_groups.append((f"{prefix}{begun}", choose.randint(1, size) if randomize else size))
            begun += 1
        name, left = open_groups.pop(0)
        yield name
        if left > 1:
            open_groups.append((name, left - 1))


class Headers:
    """The properties of each message.

    Args:
        fixed: the properties that are the same for all messages.
        has_sequence: whether to add "sn": 1, 2, ..., as uint32.
        has_timestamp: whether to add "ts": nanoseconds since 1970.
        group_key: the property for the group name.
        group_names: the group names, see `groups`.
    """

    def __init__(
        self,
        fixed: Mapping[str, Any],
        *,
        has_sequence: bool,
        has_timestamp: bool,
        group_key: str | None = None,
        group_names: Iterator[str] | None = None,
    ) -> None:
        self._fixed = fixed
        self._has_sequence, self._has_timestamp = has_sequence, has_timestamp
        self._group_key, self._group_names = group_key, group_names
        self._number = 0

    def next(self) -> dict[str, Any]:
        """The properties of the next message."""
        properties = dict(self._fixed)
        if self._has_sequence:
            self._number += 1
            properties[SEQUENCE] = TypedValue(UINT32, self._number % _NUMBERS)
        if self._has_timestamp:
            properties[TIMESTAMP] = time.time_ns()
        if self._group_key is not None and self._group_names is not None:
            properties[self._group_key] = next(self._group_names)
        return properties


def _is_no_delay(record: logging.LogRecord) -> bool:
    return not hasattr(record, DELAY)


class StallWatch:
    """Says on standard error what a command waits for, if the broker confirms none of its messages for some seconds.

    Used as a context manager; the senders are looked at by a thread of their own.

    Args:
        program: the command's name.
        connection: its connection, over which the broker is asked how the queue is.
        show: prints a line.
        after: seconds until then.
    """

    def __init__(
        self,
        program: str,
        connection: Connection,
        show: Callable[[str], None] = lambda line: click.echo(line, err=True),
        after: float = STALL_SECONDS,
    ) -> None:
        self._program, self._connection, self._show, self._after = program, connection, show, after
        self._log = logging.getLogger(CLIENT_LOGGER)
        self._senders: list[Sender] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stalls", daemon=True)

    def add(self, sender: Sender) -> Sender:
        """Watch one more sender, which is returned."""
        self._senders.append(sender)
        return sender

    def __enter__(self) -> StallWatch:
        self._log.addFilter(_is_no_delay)  # what this watch says has the cause, too
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._log.removeFilter(_is_no_delay)

    def _watch(self) -> None:
        settled, since, told_at = 0, time.monotonic(), 0.0
        while not self._is_over.wait(_LOOK_SECONDS):
            now, senders = time.monotonic(), list(self._senders)
            waiting = [each for each in senders if each.unsettled()]
            before, settled = settled, sum(each.settled() for each in senders)
            if settled != before or not waiting:
                if told_at:
                    self._say(f"the broker confirms messages again after {now - since:.0f} s")
                since, told_at = now, 0.0
            elif not told_at and now - since >= self._after:
                told_at = now
                count = sum(each.unsettled() for each in waiting)
                what = f"waiting for {self._after:g} s: the broker has confirmed {plural(settled, 'message')}"
                self._say(f"{what}, and none of {count:,} more. {self._cause(waiting[0])}")

    def _say(self, text: str) -> None:
        if not self._is_over.is_set():
            self._show(f"{self._program}: {printable(text)}")

    def _cause(self, sender: Sender) -> str:
        """Why the messages of a sender are not confirmed: what the broker says, if it answers."""
        said: list[str] = []
        asking = threading.Thread(target=lambda: said.append(self._flow_of(sender.name)), name="cause", daemon=True)
        asking.start()
        asking.join(_ANSWER_SECONDS)
        return "".join(said) or (
            "A queue may be above its flow control threshold, or the broker may be short of memory or disk, or not "
            "answer: see its log"
        )

    def _flow_of(self, queue: str) -> str:
        """What flow control does to publishers of a queue; empty if there is none, or it is not known."""
        with contextlib.suppress(MessagingError, LookupError, TypeError):
            with Console(self._connection, timeout=_ANSWER_SECONDS) as console:
                values = console.find(f"queue:{queue}").values
            if values["flowStopped"]:
                depth = f"{plural(values['msgDepth'], 'message')} with {values['byteDepth']:,} bytes"
                return (
                    f'Flow control makes publishers to queue "{queue}" wait, which has {depth}: '
                    "consume or purge messages, or raise its limit"
                )
        return ""


# ---- throughput, latency and pace ----
#
#     qpid-send       tp(m/s)
#     qpid-receive    tp(m/s)   l-min   l-max   l-avg      separated by tabs; latencies in milliseconds
#
# Throughput is the average since the first message. Latency is the current time minus the message's "ts" (nanoseconds
# since 1970), so it is correct only if both clocks are synchronized.

TIMESTAMP = "ts"


class Throughput:
    """Counts messages.

    Args:
        clock: monotonic clock, in seconds.
    """

    heading = "tp(m/s)"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.messages = 0
        self._began = 0.0

    def add(self, timestamp: object = None) -> None:
        """Count a message, with its "ts" if it has one."""
        del timestamp
        if not self.messages:
            self._began = self._clock()
        self.messages += 1

    def line(self) -> str:
        """The current report line."""
        if not self.messages:
            return "0"
        return f"{self.messages / max(self._clock() - self._began, 1e-9):.0f}"


class ThroughputAndLatency(Throughput):
    """Counts messages and measures their latency.

    Args:
        clock: monotonic clock, in seconds.
        now: current time, in nanoseconds since 1970.
    """

    heading = "tp(m/s)\tl-min\tl-max\tl-avg"

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], int] = time.time_ns) -> None:
        super().__init__(clock)
        self._now = now
        self._min = self._max = self._total = 0.0
        self._samples = 0

    def add(self, timestamp: object = None) -> None:
        """Count a message, with its "ts" if it has one."""
        super().add()
        if not isinstance(timestamp, int):
            return
        latency = (self._now() - timestamp) / 1e6
        self._min = min(self._min, latency) if self._samples else latency
        self._max = max(self._max, latency) if self._samples else latency
        self._total += latency
        self._samples += 1

    def line(self) -> str:
        """The current report line."""
        if not self._samples:
            return super().line()
        average = self._total / self._samples
        return "\t".join([super().line(), *(f"{each:.2f}" for each in (self._min, self._max, average))])


class Reporter:
    """Prints reports at intervals and at the end, under one heading.

    Args:
        statistic: the statistic to report.
        show: prints a line.
        every: messages between two reports; 0 for none.
        is_total: whether to report at the end.
        has_heading: whether to print the heading.
    """

    def __init__(
        self, statistic: Throughput, show: Callable[[str], None], *, every: int, is_total: bool, has_heading: bool
    ) -> None:
        self._statistic, self._show = statistic, show
        self._every, self._is_total, self._has_heading = every, is_total, has_heading
        self.is_wanted = bool(every) or is_total

    def add(self, timestamp: object = None) -> None:
        """Count a message, with its "ts" if it has one."""
        self._statistic.add(timestamp)
        if self._every and self._statistic.messages % self._every == 0:
            self._report()

    def finish(self) -> None:
        """Print the final report, if wanted."""
        if self._is_total:
            self._report()

    def _report(self) -> None:
        if self._has_heading:
            self._show(self._statistic.heading)
            self._has_heading = False
        self._show(self._statistic.line())


class Pace:
    """Limits the rate of messages.

    Args:
        rate: messages per second; 0 for no limit.
        clock: monotonic clock, in seconds.
        sleep: sleeps for a number of seconds.
    """

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._began = clock()

    def keep(self, done: int) -> None:
        """Sleep until `done` messages do not exceed the rate."""
        if self._rate:
            ahead = self._began + done / self._rate - self._clock()
            if ahead > 0:
                self._sleep(ahead)


# ---- messages as text: `spout`, `drain --print` ----
#
# A format is text with `%(M)s` for the message, `%(M.content)s` for one of its attributes (`ATTRIBUTES`), and
# `%(M.properties[NAME])s` for one of its properties or of the entries of a map. `r` instead of `s` prints it quoted.

#: What a format may name, in the order in which a message is described.
ATTRIBUTES: Final = (
    "id", "subject", "user_id", "reply_to", "correlation_id", "durable", "priority", "ttl", "redelivered", "properties",
    "content_type", "content",
)  # fmt: skip
_PATH: Final = re.compile(r"M((?:\.[a-z_]+)?)((?:\[[^\[\]]+\])*)")
_KEY: Final = re.compile(r"\[([^\[\]]+)\]")


class PrintFormatError(MessagingError):
    """A format cannot be used."""


def described(message: Message) -> str:
    """A message on one line."""
    found = []
    for name in ATTRIBUTES:
        value = getattr(message, name)
        if value is None or value is False or (name == "properties" and not value):
            continue
        if name == "content_type" and value in ("text/plain", "amqp/map", "amqp/list"):
            continue
        if name != "content" or value not in ("", b""):
            found.append(f"{name}={value!r}")
    return f"Message({', '.join(found)})"


def message_json(message: Message) -> dict[str, Any]:
    """A message as JSON."""
    return {"kind": "message", **{name: plain(getattr(message, name)) for name in ATTRIBUTES}}


class _Values:
    """What a format may name of one message."""

    def __init__(self, message: Message) -> None:
        self._message = message

    def __str__(self) -> str:
        return described(self._message)

    def __getitem__(self, path: str) -> Any:
        found = _PATH.fullmatch(path)
        name = "" if found is None else found[1].removeprefix(".")
        if found is None or (name and name not in ATTRIBUTES):
            raise PrintFormatError(f"the format has {path!r}; it may have M, or M. with one of {', '.join(ATTRIBUTES)}")
        value: Any = getattr(self._message, name) if name else described(self._message)
        for key in _KEY.findall(found[2]):
            value = value.get(key.strip("'\"")) if isinstance(value, dict) else None
        return value


def formatted(message: Message, pattern: str) -> str:
    """A message in a format.

    Raises:
        PrintFormatError: the format is invalid.
    """
    try:
        return pattern % _Values(message)
    except (ValueError, TypeError) as error:
        raise PrintFormatError(f"the format {pattern!r} cannot be used: {error}") from None


# ---- Ctrl-C ----


class Interruption:
    """Handles SIGINT: the first one is recorded and ends a wait, the second one raises KeyboardInterrupt anywhere.

    Attributes:
        is_requested: whether SIGINT was received.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._is_waiting = False

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Handle SIGINT in this block."""
        before = signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A block that may be interrupted at any point: the first SIGINT raises KeyboardInterrupt."""
        self._is_waiting = True
        try:
            if self.is_requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_waiting = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        is_second, self.is_requested = self.is_requested, True
        if is_second or self._is_waiting:
            raise KeyboardInterrupt


# ---- lost connections ----


def reconnect_options(function: _Function) -> _Function:
    """Add them to a command."""
    options: tuple[Callable[[_Function], _Function], ...] = (
        click.option("-r", "--reconnect", is_flag=True, help="Reconnect when the connection is lost."),
        click.option("-i", "--reconnect-interval", type=click.FloatRange(0), metavar="SECONDS",
                     help="Seconds between two attempts."),
        click.option("-l", "--reconnect-limit", type=click.IntRange(0), metavar="N",
                     help="Give up after N attempts."),
        click.option("-v", "--verbose", is_flag=True,
                     help="Say on standard error when the program is connected, and why it reconnects."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def reconnecting(broker: BrokerOptions, values: dict[str, Any]) -> dict[str, Any]:
    """The connection options of a command, with these."""
    if values["verbose"]:
        _show_log(click.get_current_context())
    chosen = {name: values[name] for name in ("reconnect_interval", "reconnect_limit") if values[name] is not None}
    reconnect = {"reconnect": True} if values["reconnect"] else {}
    return {"send_timeout": None, **reconnect, **chosen, **broker.connection}


def _show_log(context: click.Context) -> None:
    """Print the log of the client on standard error until the command ends."""
    log, printer = logging.getLogger(CLIENT_LOGGER), _Printer(str(context.info_name))
    before = log.level
    log.addHandler(printer)
    log.setLevel(logging.INFO)

    def end() -> None:
        log.removeHandler(printer)
        log.setLevel(before)

    context.call_on_close(end)


class _Printer(logging.Handler):
    """Prints lines of a log as those of a program."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line."""
        say(self._program, record.getMessage())
