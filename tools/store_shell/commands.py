"""The commands of the shell.

Each is a row of `COMMANDS`: what may follow it, what it does, and the function that does it. Those that change
something plan it, show the plan, ask if it destroys something, and make it: durable before the next prompt.
"""

from __future__ import annotations

import base64
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from rich.progress import MofNCompleteColumn

from qstore.broker.client import MessagingError
from qstore.broker.client.errors import ConnectionFailedError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import plural
from qstore.store.errors import StoreError, advice
from qstore.store.importing.intake import ImportedMessage
from qstore.store.inspect.layout import UnusableInputError
from qstore.store.repair.quarantine import QuarantineError
from qstore.tools.console.progress import progress_bar
from qstore.tools.console.rows import JsonLines, Object, Output, note, print_json
from qstore.tools.console.shell import CommandShell, ShellCommand, ask, output_console, paged
from qstore.tools.console.text import escape_name, printable, sentence, unescape_name
from qstore.tools.dump.messages import BodyForm
from qstore.tools.dump.rows import object_tables
from qstore.tools.interchange.items import InterchangeError
from qstore.tools.interchange.json_lines import read_message
from qstore.tools.store_shell.place import Line, Place, Plan, ShellError, Wanted, read_line, read_wanted, split_commands

PROGRAM: Final = "qstore-shell"
FAILURES: Final = (ShellError, StoreError, UnusableInputError, QuarantineError, InterchangeError, MessagingError)
_LISTS: Final = ("queues", "exchanges", "bindings", "transactions", "journals", "all")
_SHOWS: Final = ("content", "headers", "all")
_AGREED: Final = ("y", "yes")


class Settings(NamedTuple):
    """How the shell behaves.

    Attributes:
        is_json: whether to print JSON lines.
        agrees: whether to do what destroys something without asking.
        pages: whether to show long output by a pager.
    """

    is_json: bool = False
    agrees: bool = False
    pages: bool = True


class Shell(CommandShell):
    """What the commands share.

    Args:
        open_place: opens a store or a broker by its path or URL.
        settings: how it behaves.

    Attributes:
        place: the store or the broker; None if there is none.
        wanted: the messages that are selected; None if there are none.
    """

    program = PROGRAM
    banner = "qstore-shell - for examining and changing message stores; help lists the commands"
    word_error = ShellError
    failures: tuple[type[Exception], ...] = (*FAILURES, OSError)
    fatal: tuple[type[Exception], ...] = (ConnectionFailedError,)

    def __init__(self, open_place: Callable[[str], Place], settings: Settings) -> None:
        super().__init__(as_json=settings.is_json)
        self._open_place, self._settings = open_place, settings
        self.place: Place | None = None
        self._where = ""
        self.wanted: Wanted | None = None

    @property
    def commands(self) -> Mapping[str, ShellCommand]:
        """Name -> command."""
        return COMMANDS

    @property
    def prompt(self) -> str:
        """What is shown in front of a line: the selected queue."""
        return "qstore$ " if self.wanted is None else f"qstore:{printable(self.wanted.queue, 40)}$ "

    def open(self, where: str) -> None:
        """Open a store or a broker. Raises what `Place` raises."""
        real, before = os.path.realpath(where), self.place
        if before is not None and real == self._where:
            raise ShellError(f"{where} is open already")
        self.place = self._open_place(where)
        self._where, self.wanted = real, None
        if before is not None:
            before.close()
        self._tell_notices()

    def close(self) -> None:
        """Close the store or the broker."""
        if self.place is not None:
            self.place.close()
            self.place = None

    def run(self, line: str) -> None:
        """Carry out the commands of a line. Raises one of `failures`."""
        for each in split_commands(line):
            command = read_line(each)
            if not command.words or self.has_ended:
                continue
            name, *rest = command.words
            found = self.command(name)
            if command.where is not None and not found.has_where:
                raise ShellError(f"{name} does not take a selector (where)")
            try:
                with paged(is_wanted=found.is_long and self._settings.pages and not self._settings.is_json):
                    found.work(self, Line(rest, command.where))
            except OSError as error:
                if isinstance(error, BrokenPipeError) or error.filename is None:
                    raise
                raise ShellError(f"{error.filename}: {error.strerror or error}{advice(error)}") from error
            self._tell_notices()

    def _tell_notices(self) -> None:
        if self.place is not None:
            for notice in self.place.notices:
                note("notice", notice)
            self.place.notices.clear()

    def completions(self, before: Sequence[str], word: str) -> Iterator[str]:
        """How a word may be completed, after those before it on its line."""
        try:
            candidates = [] if self.place is None and before else _candidates(self, before)
        except (*FAILURES, OSError):
            return
        for each in candidates:
            if each.startswith(word.lstrip("'")):
                yield each if each in _BARE_WORDS else shlex.quote(each)

    # ---- what the commands need ----

    def opened(self) -> Place:
        """The store or the broker. Raises ShellError if there is none."""
        if self.place is None:
            raise ShellError("there is no store: load PATH opens one, or load amqp://HOST a broker")
        return self.place

    def selected(self, line: Line) -> Wanted:
        """The messages that a command is about: those its words describe, or those that are selected."""
        if not line.words and line.where is None and self.wanted is not None:
            return self.wanted
        return self._read_wanted(line)

    def _read_wanted(self, line: Line) -> Wanted:
        wanted = read_wanted(line.words, line.where, self.wanted)
        return replace(wanted, queue=self.opened().full_name(wanted.queue))

    def _named(self, queue: str) -> str:
        return self.opened().full_name(unescape_name(queue))

    def _split_target(self, line: Line, verb: str) -> tuple[Line, str]:
        """A command's words in front of `to QUEUE`, and the queue."""
        *front, to, target = line.words if len(line.words) >= 2 else ("", "", "")
        if to != "to":
            raise ShellError(f"{verb} to which queue? {verb} {COMMANDS[verb].syntax}")
        return Line(front, line.where), self._named(target)

    def _show(self, objects: Iterable[Object], *, fits: bool = False) -> int:
        return show_objects(objects, is_json=self._settings.is_json, fits=fits)

    def _say(self, text: str, fields: Mapping[str, Any]) -> None:
        if self._settings.is_json:
            print_json([dict(fields)])
        else:
            click.echo(sentence(text))

    # ---- commands that look ----

    def help(self, line: Line) -> None:
        """Print the commands, or one of them."""
        self.show_help(line.words)

    def list(self, line: Line) -> None:
        """Print queues, exchanges and so on."""
        what, exchange = (*line.words, None, None)[:2] if line.words else ("", None)
        if what not in _LISTS or len(line.words) > (2 if what in ("queues", "bindings") else 1):
            raise self.usage_error("list", "list what?")
        place, named = self.opened(), None if exchange is None else unescape_name(exchange)
        lists: dict[str, Callable[[], Iterable[Object]]] = {
            "exchanges": place.exchanges,
            "queues": lambda: place.queues(named),
            "bindings": lambda: place.bindings(named),
            "transactions": place.transactions,
            "journals": place.journals,
        }
        for name, of in lists.items():
            if what == "all":
                self._show(of(), fits=True)
            elif name == what and not self._show(of(), fits=True) and not self._settings.is_json:
                click.echo(f"no {what}")

    def select(self, line: Line) -> None:
        """Select messages."""
        place = self.opened()
        if not line.words and line.where is None:
            text = "nothing is selected" if self.wanted is None else f"selected: {self.wanted.text}"
            self._say(text, {"kind": "selection", "text": None if self.wanted is None else self.wanted.text})
            return
        wanted = self._read_wanted(line)
        count = place.check(wanted)
        self.wanted = wanted
        text = f"selected: {wanted.text}; the queue has {plural(count, 'message')}"
        self._say(text, {"kind": "selection", "queue": wanted.queue, "text": wanted.text, "queue_messages": count})

    def clear(self, line: Line) -> None:
        """Select nothing."""
        _no_words("clear", line)
        self.wanted = None

    def show(self, line: Line) -> None:
        """Print the headers of messages."""
        place, wanted = self.opened(), self.selected(line)
        place.check(wanted)
        if not self._show(place.messages(wanted, BodyForm.NONE)) and not self._settings.is_json:
            click.echo("no messages")

    def dump(self, line: Line) -> None:
        """Print the content of messages."""
        shown, is_hex, rest = "content", False, []
        for word in line.words:
            if word.startswith("show="):
                shown = word.removeprefix("show=")
            elif word == "as=hex":
                is_hex = True
            else:
                rest.append(word)
        if shown not in _SHOWS:
            raise ShellError(f"{shown!r}: dump shows {', '.join(_SHOWS)}: show=all")
        place, wanted = self.opened(), self.selected(Line(rest, line.where))
        place.check(wanted)
        messages = place.messages(wanted, BodyForm.NONE if shown == "headers" else BodyForm.TEXT)
        if self._settings.is_json:
            self._show(messages)
            return
        for each in messages:
            show_content(each, headers=shown != "content", body=shown != "headers", is_hex=is_hex)

    # ---- commands that change ----

    def load(self, line: Line) -> None:
        """Open another store or broker."""
        if len(line.words) != 1:
            raise self.usage_error("load", "load what?")
        try:
            self.open(line.words[0])
        except ConnectionFailedError as error:  # what was open before is open still
            raise ShellError(str(error)) from error
        assert self.place is not None
        self._say(self.place.title, {"kind": "opened", "title": self.place.title})

    def copy(self, line: Line) -> None:
        """Copy messages to a queue."""
        front, target = self._split_target(line, "copy")
        self._change(self.opened().plan_copy(self.selected(front), target, removes=False))

    def move(self, line: Line) -> None:
        """Move messages to a queue."""
        front, target = self._split_target(line, "move")
        self._change(self.opened().plan_copy(self.selected(front), target, removes=True))

    def delete(self, line: Line) -> None:
        """Remove messages."""
        self._change(self.opened().plan_removal(self.selected(line), "delete"))

    def purge(self, line: Line) -> None:
        """Remove all messages of a queue."""
        if len(line.words) != 1:
            raise self.usage_error("purge", "purge which queue?")
        self._change(self.opened().plan_removal(Wanted(self._named(line.words[0])), "purge"))

    def inject(self, line: Line) -> None:
        """Add a message, or messages of a quarantine, to a queue."""
        place = self.opened()
        if line.words[:1] == ["quarantine"]:
            directory, numbers, target = _quarantine_words(line.words[1:])
            self._change(place.plan_quarantine(directory, numbers, None if target is None else self._named(target)))
            return
        if not line.words:
            raise self.usage_error("inject", "inject what?")
        queue, *fields = line.words
        self._change(place.plan_message(message_of(self._named(queue), fields)))

    def resolve(self, line: Line) -> None:
        """Commit a transaction in doubt, or roll it back."""
        outcomes = {"commit": True, "rollback": False}
        if len(line.words) != 2 or line.words[1] not in outcomes:
            raise self.usage_error("resolve", "resolve which transaction, and how?")
        try:
            xid = bytes.fromhex(line.words[0])
        except ValueError:
            raise ShellError(f"{line.words[0]!r} is not a transaction id in hexadecimal") from None
        self._change(self.opened().plan_resolution(xid, commits=outcomes[line.words[1]]))

    def _change(self, plan: Plan) -> None:
        """Show a plan, ask if needed, and make the change."""
        for notice in plan.notices:
            note("notice", notice)
        base = {"kind": "change", **plan.fields}
        if not plan.count:
            self._say(f"nothing to do: {plan.text}", {**base, "done": False})
            return
        if plan.destroys and not self._settings.agrees:
            if not sys.stdin.isatty() or self._settings.is_json:
                raise ShellError(f"{plan.text}: this cannot be undone; --yes permits it without asking")
            if ask(f"{sentence(plan.text)}: this cannot be undone. Do it? [y/N] ").strip().lower() not in _AGREED:
                raise ShellError("nothing was changed")
        elif not self._settings.is_json:
            click.echo(f"{sentence(plan.text)} …")
        with progress_bar(str(plan.fields["change"]), MofNCompleteColumn(), total=plan.count) as bar:
            more = plan.apply((lambda _: None) if bar is None else bar.advance)
        rids = ""
        if "first_rid" in more:
            first, last = more["first_rid"], more["last_rid"]
            rids = f", as record 0x{first:x}" + (f" to 0x{last:x}" if last != first else "")
        count = f" ({plural(more['messages'], 'message')})" if "messages" in more else ""
        self._say(f"done{count}{rids}", {**base, **more, "done": True})

    def quit(self, line: Line) -> None:
        """End the shell."""
        _no_words("quit", line)
        self.end()


def _no_words(name: str, line: Line) -> None:
    if line.words:
        raise ShellError(f"{name} takes no arguments")


def _quarantine_words(words: Sequence[str]) -> tuple[str | None, list[int], str | None]:
    """`[NUMBER ...|all] [from DIR] [to QUEUE]`: the directory, the numbers, the queue. Raises ShellError."""
    rest, named = list(words), dict[str, str]()
    while len(rest) >= 2 and rest[-2] in ("from", "to") and rest[-2] not in named:
        named[rest[-2]] = rest[-1]
        del rest[-2:]
    numbers = [] if rest == ["all"] else [int(each) for each in rest if each.isascii() and each.isdecimal()]
    if not rest or (rest != ["all"] and len(numbers) != len(rest)):
        raise ShellError("inject quarantine NUMBER ...|all [from DIR] [to QUEUE]: give the numbers of entries, or all")
    return named.get("from"), numbers, named.get("to")


_SELECTION: Final = "[QUEUE] [RID ...] [first=N] [where SELECTOR]"
_TRANSFER: Final = "[QUEUE] [RID ...] [first=N] to QUEUE [where SELECTOR]"
_SELECTION_HELP: Final = (
    "without words: what is selected. RID is a record id or a range: 0x10, 0x10..0x20, 0x10.. (stores only)",
    "SELECTOR is a JMS selector, and the last argument: where region = 'EU' AND priority > 4",
)

COMMANDS: Final[Mapping[str, ShellCommand]] = {
    "help": ShellCommand("[COMMAND]", "Print the commands, or what may follow one", Shell.help),
    "list": ShellCommand(
        "queues [EXCHANGE] | exchanges | bindings [EXCHANGE] | transactions | journals | all",
        "List available items",
        Shell.list,
        is_long=True,
        example="list bindings amq.topic",
    ),
    "select": ShellCommand(
        _SELECTION,
        "Perform a selection: the messages for the other commands",
        Shell.select,
        _SELECTION_HELP,
        has_where=True,
        example="select orders first=100 where region = 'EU'",
    ),
    "clear": ShellCommand("", "Clear the selection", Shell.clear),
    "show": ShellCommand(
        _SELECTION,
        "Show the headers of messages",
        Shell.show,
        _SELECTION_HELP,
        has_where=True,
        is_long=True,
        example="show orders 0x10..0x1f",
    ),
    "dump": ShellCommand(
        f"[show=content|headers|all] [as=hex] {_SELECTION}",
        "Dump the content of messages",
        Shell.dump,
        _SELECTION_HELP,
        has_where=True,
        is_long=True,
        example="dump orders first=1 show=all",
    ),
    "copy": ShellCommand(
        _TRANSFER,
        "Copy messages to a queue",
        Shell.copy,
        _SELECTION_HELP,
        has_where=True,
        example="copy orders first=100 to old",
    ),
    "move": ShellCommand(
        _TRANSFER,
        "Move messages to a queue",
        Shell.move,
        _SELECTION_HELP,
        has_where=True,
        example="move orders to old where n > 60",
    ),
    "delete": ShellCommand(
        _SELECTION,
        "Remove messages",
        Shell.delete,
        _SELECTION_HELP,
        has_where=True,
        example="delete orders where n < 10",
    ),
    "purge": ShellCommand("QUEUE", "Remove all messages of a queue", Shell.purge, example="purge old"),
    "inject": ShellCommand(
        "QUEUE body=TEXT|file=PATH [NAME=VALUE ...] | quarantine NUMBER ...|all [from DIR] [to QUEUE]",
        "Add a message to a queue, or those of a store's quarantine",
        Shell.inject,
        (
            "NAME is routing_key, exchange, message_id, priority, content_type, content_encoding, correlation_id,",
            "reply_to (EXCHANGE/KEY), user_id, app_id, expiration and timestamp (seconds since 1970), ttl (in",
            "milliseconds), or header.NAME; a message is persistent",
        ),
        example="inject orders body='hello world' content_type=text/plain header.region=EU",
    ),
    "resolve": ShellCommand("XID commit|rollback", "Decide a transaction in doubt", Shell.resolve),
    "load": ShellCommand("PATH | amqp://[user/password@]host[:port]", "Open another store or broker", Shell.load),
    "quit": ShellCommand("", "Quit the shell, as ^D does", Shell.quit),
    "exit": ShellCommand("", "The same", Shell.quit),
}

_BARE_WORDS: Final = frozenset(("first=", "where", "show=content", "show=headers", "show=all"))
_MORE_WORDS: Final[Mapping[str, Sequence[str]]] = {
    "dump": ("show=content", "show=headers", "show=all"),
    "inject": ("quarantine",),
    "copy": ("to",),
    "move": ("to",),
}


def _candidates(shell: Shell, before: Sequence[str]) -> list[str]:
    """The words that may follow others."""
    if not before:
        return list(COMMANDS)
    name, count = before[0].lower(), len(before)
    place = shell.opened()
    if name == "help":
        return list(COMMANDS)
    if name == "list":
        return list(_LISTS) if count == 1 else [escape_name(each["name"]) for each in place.exchanges()]
    if name == "resolve":
        return [each["xid"] for each in place.transactions()] if count == 1 else ["commit", "rollback"]
    queues = [escape_name(each["name"]) for each in place.queues(None)]
    if before[-1] == "to" or count == 1:
        return [*queues, *(_MORE_WORDS.get(name, ()) if before[-1] != "to" else ())]
    return ["to", "first="] if name in ("copy", "move") else ["first=", "where"]


# ---- new messages ----

_MAX_FILE: Final = 256 << 20  # bytes of a body from a file
_TOP: Final = ("routing_key", "exchange", "message_id")
_NUMBERS: Final = ("priority",)
_PROPERTIES: Final = ("content_type", "content_encoding", "correlation_id", "user_id", "app_id")
_TIMES: Final = ("ttl", "expiration", "timestamp")
_HEADER: Final = "header."


def message_of(queue: str, words: Sequence[str]) -> ImportedMessage:
    """The message that words describe.

    Raises:
        ShellError: a word is not NAME=VALUE, or a name is not known.
        InterchangeError: a value is not valid.
        OSError: the file with the body cannot be read.
    """
    fields: dict[str, Any] = {"queue": queue, "routing_key": queue, "properties": {}, "headers": {}}
    has_body = False
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ShellError(f"{word!r} is not NAME=VALUE, such as body=hello")
        has_body = has_body or name in ("body", "file")
        _set(fields, name, value)
    if not has_body:
        raise ShellError("a message has a body: body=TEXT, or file=PATH")
    return read_message(fields, b"")


def _set(fields: dict[str, Any], name: str, value: str) -> None:
    if name == "body" or name in _TOP:
        fields[name] = value
    elif name == "file":
        fields["body_base64"] = base64.b64encode(_content(value)).decode()
    elif name in _NUMBERS:
        fields[name] = _number(name, value)
    elif name in _PROPERTIES:
        fields["properties"][name] = value
    elif name in _TIMES:
        fields["properties"][name] = _number(name, value)
    elif name == "reply_to":
        exchange, _, key = value.rpartition("/")
        fields["properties"]["reply_to"] = {"exchange": exchange, "routing_key": key}
    elif name.startswith(_HEADER) and len(name) > len(_HEADER):
        fields["headers"][name.removeprefix(_HEADER)] = _plain(value)
    else:
        raise ShellError(f"a message has no field {name!r}; help inject lists them")


def _content(path: str) -> bytes:
    try:
        file = Path(path).expanduser()
    except RuntimeError:  # of a user that does not exist
        file = Path(path)
    with file.open("rb") as opened:
        content = opened.read(_MAX_FILE + 1)
    if len(content) > _MAX_FILE:
        raise ShellError(f"{path}: more than {_MAX_FILE:,} bytes; qstore-import brings large messages into a store")
    return content


def _number(name: str, value: str) -> int:
    if not value.isascii() or not value.isdecimal() or len(value) > 18:
        raise ShellError(f"{name} is a number, not {value!r}")
    return int(value)


def _plain(value: str) -> Any:
    """A header: true, false, a number, or a text, also in double quotes."""
    if value in ("true", "false"):
        return value == "true"
    digits = value.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) <= 18:
        return int(value)
    if len(value) >= 2 and value[0] == value[-1] == '"':
        return value[1:-1]
    return value


# ---- output ----

_ROW: Final = 16  # bytes of a line in hexadecimal
_HEADER_FIELDS: Final = ("exchange", "routing_key", "message_id", "delivery_mode", "priority", "xid")


def show_objects(objects: Iterable[dict[str, Any]], *, is_json: bool, fits: bool = False) -> int:
    """Print objects; returns their number. With `fits`, columns are as wide as needed, and all rows buffered."""
    output: Output = JsonLines(sys.stdout.buffer) if is_json else object_tables(output_console(), fits=fits)
    count = 0
    for each in objects:
        output.show(each)
        count += 1
    output.flush()
    return count


def show_content(message: Mapping[str, Any], *, headers: bool, body: bool, is_hex: bool) -> None:
    """Print a message: a title, its header, its body."""
    rid = "" if message["rid"] is None else f" record 0x{message['rid']:x}"
    marks = [*([message["state"]] if message["state"] != "outstanding" else [])]
    marks += ["redelivered"] if message["redelivered"] else []
    state = f" ({', '.join(marks)})" if marks else ""
    click.echo(f"--- {printable(message['queue'])}{rid}{state}, {message['body_length']:,} bytes")
    if headers:
        for name, value in _header_lines(message):
            click.echo(f"{name}: {value}")
    if headers and body:
        click.echo()
    if body:
        for line in _body_lines(message, is_hex=is_hex):
            click.echo(line)


def _header_lines(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    named = {name: message[name] for name in _HEADER_FIELDS}
    for name, value in {**named, **message["properties"]}.items():
        if value is not None and value != "":
            yield name, printable(str(value))
    for name, value in message["headers"].items():
        kind = message["header_types"].get(name)
        type_name = "" if kind is None else f" ({printable(str(kind))})"
        yield f"header {printable(name)}", printable(str(value)) + type_name


def _body_lines(message: Mapping[str, Any], *, is_hex: bool) -> Iterator[str]:
    text = message.get("body")
    if text is not None and not is_hex:
        yield from (printable(line) for line in text.split("\n"))
        return
    body = base64.b64decode(message["body_base64"]) if text is None else text.encode("utf-8", "surrogatepass")
    for at in range(0, len(body), _ROW):
        row = body[at : at + _ROW]
        shown = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in row)
        yield f"{at:08x}  {row.hex(' '):<{3 * _ROW - 1}}  |{shown}|"
