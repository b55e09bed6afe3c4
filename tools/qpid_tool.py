"""`qpid-tool`: a shell on the management agents of a broker, compatible with the Qpid project's command.

Exit codes: 0 fine, 1 a command has failed, 2 invalid command line.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import AddressError, MessagingError
from qstore.broker.client.address import parse_map, word_value
from qstore.broker.client.errors import ConnectionFailedError
from qstore.broker.management.console import (
    AgentError,
    AgentInfo,
    AnswerError,
    Argument,
    Console,
    Data,
    Method,
    NoObjectError,
    ObjectId,
    Schema,
    SchemaId,
)
from qstore.broker.management.console.core import names_of
from qstore.formats.qmf.predicate import parse_predicate
from qstore.tools.console.amounts import clock, plain, reference, shown
from qstore.tools.console.broker import EXIT_CODES, BrokerOptions, broker_options, json_object, main_of, run_on_console
from qstore.tools.console.command import EXIT_FAILED, JSON, SETTINGS, say
from qstore.tools.console.rows import Column, print_json, print_listing
from qstore.tools.console.shell import CommandShell, ShellCommand, run_lines, run_terminal


class WordError(MessagingError):
    """A word of a command is not what it should be."""


# ---- the commands ----
#
# Each is a row of `COMMANDS`: what may follow it, what it does, and the function that does it with the words behind it.


_MOST_DELETED: Final = 10_000
_LOOK_SECONDS: Final = 0.5


class Deleted:
    """Objects that agents have reported as deleted, as they were at last; of very many, the oldest are forgotten.

    Args:
        console: they are heard of on its connection, in a thread of their own and a session of their own: the broker
            ends it if this user may not listen.

    Raises:
        MessagingError: this user may not listen, or the connection has failed.
    """

    def __init__(self, console: Console) -> None:
        self._console = Console(console.connection)
        self._console.open()
        self._indications = self._console.indications(events=False, heartbeats=False, objects=True)
        broker = self._console.find("broker").object_id
        self._broker = "" if broker is None else broker.agent
        self._objects: deque[Data] = deque(maxlen=_MOST_DELETED)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="deleted objects", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._is_over.is_set():
            try:
                found = self._indications.next(_LOOK_SECONDS)
            except AnswerError:
                continue
            except MessagingError:
                return
            if isinstance(found, Data) and found.deleted:
                times = found.created, found.updated, found.deleted
                self._objects.append(Data(found.values, found.object_id, found.schema_id, times))

    def of_agent(self, agent: str | None) -> list[Data]:
        """Those of an agent, or of the broker's own, in the order of their ends."""
        wanted = agent or self._broker
        return [each for each in tuple(self._objects) if identity_of(each).agent in (wanted, "")]

    def close(self) -> None:
        """Hear of no more."""
        self._is_over.set()
        self._thread.join()
        self._indications.close()
        self._console.close()


class Shell(CommandShell):
    """What the commands share.

    Args:
        console: the console.
        as_json: whether to print JSON lines.
        deleted: objects that were deleted meanwhile; None if they are not kept.

    Attributes:
        numbers: short names of objects.
        agent: the agent that is asked; None for the broker's own.
    """

    program = "qpid-tool"
    banner = "Management Tool for QPID"
    farewell = "Exiting..."
    prompt = "qpid: "
    word_error = WordError
    failures: tuple[type[Exception], ...] = (MessagingError,)
    fatal: tuple[type[Exception], ...] = (ConnectionFailedError,)

    def __init__(self, console: Console, *, as_json: bool, deleted: Deleted | None = None) -> None:
        super().__init__(as_json=as_json)
        self._console, self._deleted = console, deleted
        self.numbers = Identities()
        self.agent: str | None = None
        self._is_long = False
        self._classes: list[SchemaId] | None = None
        self._schemas: dict[str, Schema | None] = {}
        self._agents: list[AgentInfo] = []

    def run(self, line: str) -> None:
        """Carry out a command.

        Raises:
            WordError: there is no such command.
            MessagingError: it has failed.
        """
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise WordError(f"{line.strip()}: {str(error).lower()}") from None
        if not words:
            return
        name, *rest = words
        self.command(name).work(self, rest)

    @property
    def commands(self) -> Mapping[str, ShellCommand]:
        """Name -> command."""
        return COMMANDS

    # ---- what the completion needs ----

    def classes(self) -> list[SchemaId]:
        """The classes of the agent; they are asked for once."""
        if self._classes is None:
            self._classes = self._console.classes(agent=self.agent)
        return self._classes

    def schema(self, name: str) -> Schema | None:
        """A class of the agent; None if the agent does not have it."""
        if name not in self._schemas:
            try:
                self._schemas[name] = self._console.schema(name, agent=self.agent)
            except (AgentError, NoObjectError):
                self._schemas[name] = None
        return self._schemas[name]

    def completions(self, before: Sequence[str], word: str) -> Iterator[str]:
        """How a word may be completed, after those before it on its line."""
        return completions(self, before, word)

    # ---- commands ----

    def print_commands(self) -> None:
        """Print the commands with what may follow them, as the original does."""
        rows = [(f"{name} {each.syntax}".strip(), each.help) for name, each in COMMANDS.items()]
        print_listing(self.banner, (Column("Command"), Column("Purpose", folds=True)), rows, indent="    ")

    def list(self, words: Sequence[str]) -> None:
        """Print a summary, or objects."""
        if not words:
            self._summary()
            return
        objects = self._find(words)
        if self._as_json:
            print_json(json_object(each) for each in objects)
        elif "all" in words[1:]:
            self._show_contents(objects)
        else:
            show_objects(objects, self.numbers, is_long=self._is_long)

    def _summary(self) -> None:
        active, deleted = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for of in self.classes():  # qpidd has no query for objects of all classes
            if not of.is_event:
                for each in self._console.query(of.name, package=of.package, agent=self.agent):
                    (deleted if each.deleted else active)[of.package, of.name] += 1
        for each in self._gone():
            if each.schema_id is not None:
                deleted[each.schema_id.package, each.schema_id.name] += 1
        counts = {name: (active[name], deleted[name]) for name in active | deleted}
        if self._as_json:
            print_json(
                {"kind": "class", "package": package, "class": name, "active": active, "deleted": deleted}
                for (package, name), (active, deleted) in sorted(counts.items())
            )
        else:
            show_summary(counts)

    def _find(self, words: Sequence[str]) -> Iterable[Data]:
        """The objects that words name: numbers, CLASS:KEY, or a class with conditions."""
        first, *rest = words
        if is_number(first):
            for word in words:
                if word not in ("all", "active"):
                    for identity in self.numbers.find_all(word):
                        yield self._last(identity)
            return
        if ":" in first and not is_condition(first):
            yield self._named(first)
            return
        for word in rest:
            if is_number(word):
                raise WordError(f"{word}: give numbers alone, without a class")
        where = condition([word for word in rest if word not in ("all", "active")])
        is_found = False
        for each in self._console.query(first, where=where, agent=self.agent):
            is_found = True
            if not ("active" in rest and each.deleted):
                yield each
        if "active" not in rest:
            holds = None if where is None else parse_predicate(where)
            for each in self._gone():
                if each.class_name.lower() == first.lower() and (holds is None or holds(names_of(each))):
                    yield each
        if not is_found and first.lower() not in {each.name.lower() for each in self.classes()}:
            raise NoObjectError(f"there is no class {first}")

    def _gone(self) -> Sequence[Data]:
        """The objects that were deleted since the shell began."""
        return [] if self._deleted is None else self._deleted.of_agent(self.agent)

    def _last(self, identity: ObjectId) -> Data:
        """An object; if there is none any more, as it was at last."""
        try:
            return self._console.find(identity, agent=self.agent)
        except NoObjectError:
            for each in reversed(self._gone()):
                if identity_of(each).name == identity.name:
                    return each
            raise

    def show(self, words: Sequence[str]) -> None:
        """Print the contents of objects."""
        if not words:
            raise WordError("show what? Give a number, CLASS:KEY, or a class")
        objects = self._find(words)
        if self._as_json:
            print_json(json_object(each) for each in objects)
        else:
            self._show_contents(objects)

    def _show_contents(self, objects: Iterable[Data]) -> None:
        for index, each in enumerate(objects):
            if index:
                click.echo()
            show_contents(each, self.schema(each.class_name), self.numbers, is_long=self._is_long)

    def call(self, words: Sequence[str]) -> None:
        """Call a method."""
        if len(words) < 2:
            raise WordError("call what? Give an object, a method and its arguments")
        target, name, *rest = words
        wanted = self._target(target)
        method = self._method(_class_in(wanted), name)
        results = self._console.call(wanted, name, method_arguments(method, rest), agent=self.agent)
        if self._as_json:
            print_json([{"kind": "result", "method": name, "results": plain(results)}])
        else:
            show_result(name, results)

    def _target(self, word: str) -> ObjectId:
        if is_number(word):
            return self.numbers.find(int(word)) if "-" not in word else self._many(word)
        if ":" in word:
            found = self._named(word)
        elif word == "broker":
            found = self._console.find(word, agent=self.agent)
        else:
            found = next(iter(self._console.query(word, agent=self.agent)), Data({}))
        if found.object_id is None:
            raise NoObjectError(f"there is no object {word}")
        return found.object_id

    def _named(self, word: str) -> Data:
        """The object named PACKAGE:CLASS:KEY, or CLASS:KEY in whichever package it is."""
        first = word.partition(":")[0]
        packages = dict.fromkeys(each.package for each in self.classes() if each.name.lower() == first.lower())
        if any(each.package == first for each in self.classes()):
            packages = {}
        for package in packages:
            try:
                return self._console.find(ObjectId(f"{package}:{word}"), agent=self.agent)
            except NoObjectError:
                continue
        return self._console.find(ObjectId(word), agent=self.agent)

    @staticmethod
    def _many(word: str) -> ObjectId:
        raise WordError(f"{word} are several objects; a method is called on one")

    def _method(self, class_name: str, name: str) -> Method | None:
        """A method of a class; None if the agent does not have it."""
        schema = self.schema(class_name) if class_name else None
        if schema is None:
            return None
        found = next((each for each in schema.methods if each.name == name), None)
        if found is None:
            known = ", ".join(each.name for each in schema.methods) or "none"
            raise NoObjectError(f"the class {class_name} has no method {name}; its methods are: {known}")
        return found

    def describe(self, words: Sequence[str]) -> None:
        """Print the classes, or the schema of one."""
        if not words:
            if self._as_json:
                print_json(
                    {"kind": "class", "package": each.package, "class": each.name, "is_event": each.is_event}
                    for each in self.classes()
                )
            else:
                show_classes(self.classes())
            return
        for word in words:
            schema = self._console.schema(word, agent=self.agent)
            if self._as_json:
                print_json([schema_json(schema)])
            else:
                show_schema(schema)

    def agents(self, _words: Sequence[str]) -> None:
        """Print the agents."""
        self._agents = self._console.agents()
        if self._as_json:
            print_json(agent_json(each) for each in self._agents)
        else:
            show_agents(self._agents, self.agent, is_long=self._is_long)

    def choose(self, words: Sequence[str]) -> None:
        """Choose the agent that is asked."""
        if not words:
            chosen = None
        elif is_number(words[0]) and "-" not in words[0]:
            self._agents = self._agents or self._console.agents()
            if not 1 <= int(words[0]) <= len(self._agents):
                raise NoObjectError(f"there is no agent {words[0]}; agents lists them")
            chosen = self._agents[int(words[0]) - 1].name
        else:
            chosen = words[0]
        self.agent = chosen
        self._classes, self._schemas = None, {}

    def identities(self, _words: Sequence[str]) -> None:
        """Print which number is which object."""
        if self._as_json:
            print_json({"kind": "id", "id": number, "object": each.name} for number, each in self.numbers.items())
        else:
            show_identities(self.numbers)

    def set(self, words: Sequence[str]) -> None:
        """Set the format of times."""
        if len(words) != 2 or words[0] != "time-format" or words[1] not in ("short", "long"):
            raise WordError("set what? Give: time-format short, or time-format long")
        self._is_long = words[1] == "long"

    def quit(self, _words: Sequence[str]) -> None:
        """End the shell."""
        self.end()


COMMANDS: Final[Mapping[str, ShellCommand]] = {
    "help": ShellCommand("[COMMAND]", "Print the commands, or what may follow one", Shell.show_help),
    "list": ShellCommand(
        "[CLASS [all|active] [NAME=VALUE ...]]",
        "Print a summary, or the objects of a class: with numbers; all: with their contents; active: not deleted ones",
        Shell.list,
    ),
    "show": ShellCommand("ID ...|CLASS:KEY|CLASS [NAME=VALUE ...]", "Print the contents of objects", Shell.show),
    "call": ShellCommand("ID|CLASS:KEY|broker METHOD [ARGUMENT ...]", "Call a method of an object", Shell.call),
    "schema": ShellCommand("[CLASS ...]", "Print the classes, or what the objects of one have", Shell.describe),
    "agents": ShellCommand("", "Print the agents of this broker", Shell.agents),
    "agent": ShellCommand("[NAME|NUMBER]", "Ask this agent; without a name: the broker's own", Shell.choose),
    "id": ShellCommand("", "Print which number is which object", Shell.identities),
    "set": ShellCommand("time-format short|long", "Print times without or with their dates", Shell.set),
    "quit": ShellCommand("", "End, as ^D does", Shell.quit),
    "exit": ShellCommand("", "The same", Shell.quit),
}


def completions(shell: Shell, before: Sequence[str], word: str) -> Iterator[str]:
    """How a word may be completed, after those before it on its line."""
    candidates: Iterable[Any] = ()
    try:
        if not before or before[0] == "help":
            candidates = COMMANDS
        elif before[0] in ("list", "show", "schema", "call") and len(before) == 1:
            candidates = ("broker", *sorted({each.name for each in shell.classes() if not each.is_event}))
        elif before[0] == "call" and len(before) == 2:
            schema = shell.schema(_class_of(shell, before[1]))
            candidates = () if schema is None else [each.name for each in schema.methods]
        elif before[0] == "list":
            candidates = ("all", "active")
        elif before[0] == "set":
            candidates = ("time-format",) if len(before) == 1 else ("short", "long")
    except MessagingError:
        return
    for each in candidates:
        if str(each).startswith(word):
            yield str(each)


def _class_of(shell: Shell, word: str) -> str:
    if is_number(word) and "-" not in word:
        return _class_in(shell.numbers.find(int(word)))
    return word.partition(":")[0]


def _class_in(identity: ObjectId) -> str:
    """The class that an object's name has; empty if it has none."""
    parts = identity.name.split(":", 2)
    return parts[1] if len(parts) == 3 else ""


# ---- words as conditions and as arguments of methods ----

_CONDITION: Final = re.compile(r"([A-Za-z_]\w*)(!=|>=|<=|=|>|<|~)(.*)", re.DOTALL)


_OPERATORS: Final = {"=": "eq", "!=": "ne", ">": "gt", ">=": "ge", "<": "lt", "<=": "le", "~": "re_match"}


_FLAGS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def is_condition(word: str) -> bool:
    """Whether a word is NAME OPERATOR VALUE without spaces."""
    return _CONDITION.fullmatch(word) is not None


def condition(words: Sequence[str]) -> list[Any] | None:
    """The condition of a query: each of the words holds; None if there are none.

    Raises:
        WordError: a word is not NAME=VALUE, or with another of != > >= < <= ~.
    """
    conditions: list[Any] = []
    for word in words:
        found = _CONDITION.fullmatch(word)
        if found is None:
            raise WordError(f"{word!r} is not NAME=VALUE, or with != > >= < <= ~ instead of =")
        name, operator, text = found.groups()
        value = text if operator == "~" else word_value(text)
        conditions.append([_OPERATORS[operator], name, ["quote", value] if isinstance(value, str) else value])
    return ["and", *conditions] if conditions else None


def method_arguments(method: Method | None, words: Sequence[str]) -> dict[str, Any]:
    """The arguments of a method: values in the order of the schema, or NAME=VALUE in any order.

    Args:
        method: the method; None if its schema is not known.
        words: the arguments.

    Raises:
        WordError: there are too many, or one is not of its type.
    """
    wanted = {} if method is None else {each.name: each for each in method.arguments if each.direction != "O"}
    left = list(wanted)
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if equals and (name in wanted or method is None):
            found[name] = _value(text, wanted.get(name))
            left = [each for each in left if each != name]
        elif left:
            name = left.pop(0)
            found[name] = _value(word, wanted[name])
        elif method is None:
            raise WordError(f"the schema is not known, so {word!r} should be NAME=VALUE")
        else:
            raise WordError(f"{method.name} has only {len(wanted)} arguments: {', '.join(wanted) or 'none'}")
    return found


def _number(text: str) -> int:
    return int(text, 0)


def _flag(text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise ValueError
    return _FLAGS[text.lower()]


def _map(text: str) -> Any:
    return parse_map(text)


def _list(text: str) -> Any:
    value = parse_map(f"{{value: {text}}}")["value"]
    if not isinstance(value, list):
        raise ValueError
    return value


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    **dict.fromkeys(
        [
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "int8",
            "int16",
            "int32",
            "int64",
            "count8",
            "count16",
            "count32",
            "count64",
            "absTime",
            "deltaTime",
            "timestamp",
            "duration",
            "int",
        ],
        _number,
    ),
    "float": float,
    "double": float,
    "bool": _flag,
    "uuid": uuid.UUID,
    "map": _map,
    "list": _list,
    "array": _list,
    "sstr": str,
    "lstr": str,
    "string": str,
}


def _value(text: str, argument: Argument | None) -> Any:
    if argument is None:
        return _map(text) if text.startswith("{") else word_value(text)
    read = _READERS.get(argument.type, word_value)
    try:
        return read(text)
    except (ValueError, AddressError):
        raise WordError(f"the argument {argument.name} is {argument.type}, not {text!r}") from None


# ---- numbers for objects ----

_FIRST: Final = 101


_MOST: Final = 100_000


class Identities:
    """Numbers of objects, in the order in which they are first shown."""

    def __init__(self) -> None:
        self._numbers: dict[ObjectId, int] = {}
        self._objects: dict[int, ObjectId] = {}

    def number(self, identity: ObjectId) -> int:
        """The number of an object. Of very many objects, the oldest lose theirs."""
        found = self._numbers.get(identity)
        if found is None:
            found = self._numbers[identity] = _FIRST if not self._objects else next(reversed(self._objects)) + 1
            self._objects[found] = identity
            if len(self._objects) > _MOST:
                oldest = next(iter(self._objects))
                del self._numbers[self._objects.pop(oldest)]
        return found

    def find(self, number: int) -> ObjectId:
        """The object with a number. Raises NoObjectError if there is none."""
        if number not in self._objects:
            raise NoObjectError(f"no object has the number {number}: numbers are given by list")
        return self._objects[number]

    def find_all(self, word: str) -> Iterator[ObjectId]:
        """The objects with a number, or those in a range, 101-110. Raises NoObjectError if there are none."""
        first, _, last = word.partition("-")
        if not last:
            yield self.find(int(first))
            return
        found = [each for number, each in self._objects.items() if int(first) <= number <= int(last)]
        if not found:
            raise NoObjectError(f"no object has a number from {first} to {last}")
        yield from found

    def items(self) -> Iterator[tuple[int, ObjectId]]:
        """All numbers and their objects."""
        yield from self._objects.items()


def is_number(word: str) -> bool:
    """Whether a word is a number, or a range of them."""
    first, hyphen, last = word.partition("-")
    parts = (first, last) if hyphen else (first,)
    return all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts)


# ---- text and JSON ----

_INDENT: Final = "    "


_RULE: Final = 0


_TYPES: Final[Mapping[str, str]] = {
    "sstr": "short-string", "lstr": "long-string", "objId": "reference", "bool": "boolean", "deltaTime": "delta-time",
    "absTime": "abs-time", "count32": "uint32", "count64": "uint64", "map": "field-table", "string": "long-string",
}  # fmt: skip


_ACCESS: Final = {"RC": "ReadCreate", "RW": "ReadWrite", "RO": "ReadOnly"}


def _table(title: str, titles: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Collection[str] = ()) -> None:
    last = titles[-1]
    columns = [Column(each, folds=each == last and each not in numbers, number=each in numbers) for each in titles]
    print_listing(title, columns, rows, indent=_INDENT, rule=_RULE)


def show_summary(counts: Mapping[tuple[str, str], tuple[int, int]]) -> None:
    """Active and deleted objects of each package and class."""
    rows = [(*map(shown, name), f"{active:,}", f"{deleted:,}") for name, (active, deleted) in sorted(counts.items())]
    numbers = ("Active", "Deleted")
    _table("Summary of Objects by Type:", ("Package", "Class", *numbers), rows, numbers=numbers)


def show_objects(objects: Iterable[Data], numbers: Identities, *, is_long: bool) -> None:
    """The numbers of objects, when they were created and destroyed, and their names."""
    rows = [
        (
            str(numbers.number(identity_of(each))),
            clock(each.created, is_long=is_long),
            clock(each.deleted, is_long=is_long),
            shown(each.key),
        )
        for each in objects
    ]
    _table("Object Summary:", ("ID", "Created", "Destroyed", "Index"), rows, numbers=("ID",))


def show_contents(data: Data, schema: Schema | None, numbers: Identities, *, is_long: bool) -> None:
    """The values of an object."""
    known = {} if schema is None else {each.name: each for each in schema.properties}
    rows = []
    for name, value in data.values.items():
        described = known.get(name)
        kind = "" if described is None else "inst" if described.is_statistic else "config"
        unit = "" if described is None or isinstance(value, (bool, str)) else shown(described.unit)
        plural = "s" if unit.isalpha() and value != 1 else ""
        rows.append((kind, shown(name), f"{_cell(value, numbers)} {unit}{plural}".rstrip()))
    package = "" if data.schema_id is None else f"{shown(data.schema_id.package)}:"
    time = clock(data.updated, is_long=is_long)
    number = str(numbers.number(identity_of(data)))
    _table(
        f"Object of type {package}{shown(data.class_name)}: (last sample time: {time})",
        ("Type", "Element", number),
        rows,
    )


def _cell(value: Any, numbers: Identities) -> str:
    """A value; a reference as the number of its object, if it has one, and its key."""
    key = reference(value)
    if not key:
        return shown(value)
    known = next((number for number, each in numbers.items() if each.name == value["_object_name"]), None)
    return shown(key) if known is None else f"{known} ({shown(key)})"


def show_identities(numbers: Identities) -> None:
    """Which number is which object."""
    rows = [(str(number), shown(each.name)) for number, each in numbers.items()]
    _table("Translation of Display IDs:", ("ID", "Object"), rows, numbers=("ID",))


def show_agents(agents: Sequence[AgentInfo], chosen: str | None, *, is_long: bool) -> None:
    """The agents; the one that is asked has a mark."""
    rows = [
        (
            "*" if each.name == chosen else "",
            str(index),
            shown(each.name),
            str(each.epoch),
            clock(each.timestamp, is_long=is_long),
        )
        for index, each in enumerate(agents, 1)
    ]
    _table("QMF Agents:", ("", "Number", "Name", "Epoch", "Seen"), rows, numbers=("Number", "Epoch"))


def show_classes(classes: Iterable[SchemaId]) -> None:
    """The classes of objects and of events, by package."""
    rows = [
        (shown(each.package), shown(each.name), "event" if each.is_event else "data", str(each.hash or ""))
        for each in sorted(classes, key=lambda each: (each.package, each.is_event, each.name))
    ]
    _table("QMF Classes:", ("Package", "Class", "Kind", "Hash"), rows)


def show_schema(schema: Schema) -> None:
    """A class: its properties, statistics and methods."""
    rows = []
    for each in schema.properties:
        notes = [word for word, is_so in (("index", each.is_index), ("optional", each.is_optional)) if is_so]
        access = _ACCESS.get(each.access, each.access)
        cells = (each.name, _TYPES.get(each.type, each.type), each.unit, access, " ".join(notes), each.description)
        rows.append([shown(cell) for cell in cells])
    titles = ("Element", "Type", "Unit", "Access", "Notes", "Description")
    _table(f"Schema for class '{shown(schema.id.name)}':", titles, rows)
    for method in schema.methods:
        click.echo()
        title = f"Method '{shown(method.name)}' {shown(method.description)}".rstrip()
        if not method.arguments:
            click.echo(title)
            continue
        described = [
            [shown(cell) for cell in (each.name, _TYPES.get(each.type, each.type), each.direction, each.description)]
            for each in method.arguments
        ]
        _table(title, ("Argument", "Type", "Direction", "Description"), described)


def show_result(method: str, results: Mapping[str, Any]) -> None:
    """What a method has returned."""
    click.echo(f"OK: {shown(method)}")
    for name, value in results.items():
        click.echo(f"{_INDENT}{shown(name)} = {shown(value)}")


def schema_json(schema: Schema) -> dict[str, Any]:
    """A class as JSON."""
    return {
        "kind": "schema",
        "package": schema.id.package,
        "class": schema.id.name,
        "is_event": schema.id.is_event,
        "hash": None if schema.id.hash is None else str(schema.id.hash),
        "properties": [each._asdict() for each in schema.properties],
        "methods": [
            {"name": each.name, "description": each.description, "arguments": [one._asdict() for one in each.arguments]}
            for each in schema.methods
        ],
    }


def agent_json(agent: AgentInfo) -> dict[str, Any]:
    """An agent as JSON."""
    return {
        "kind": "agent",
        "name": agent.name,
        "vendor": agent.vendor,
        "product": agent.product,
        "instance": agent.instance,
        "epoch": agent.epoch,
        "attributes": plain(agent.attributes),
    }


def identity_of(data: Data) -> ObjectId:
    """The identity of an object; an empty one for values that are no object."""
    return data.object_id or ObjectId("")


PROGRAM: Final = Shell.program

_EPILOG: Final = f"""
\b
Examples:
qpid-tool                                              type help
qpid-tool user/password@host:5672
qpid-tool -e 'list queue msgDepth>1000'                one command
qpid-tool -e 'call broker echo 1 hello'
qpid-tool -e 'call queue:orders purge 0'
qpid-tool -e 'call broker create queue orders {{durable: True}}'
qpid-tool --json -e 'show queue:orders' | jq .msgDepth
qpid-tool -e agents

\b
{EXIT_CODES}
"""


@click.command(PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("address", required=False, metavar="[URL]")
@broker_options
@click.option(
    "-e", "--execute", "lines", multiple=True, metavar="COMMAND", help="Run this command, then exit. Repeatable."
)
@click.option("--agent", metavar="NAME", help="Ask this agent instead of the broker's own.")
@JSON
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Browse the objects of a broker, and call their methods.

    Commands are typed, piped, or given with -e. URL is the broker, as with -b.
    """
    broker = BrokerOptions.take(values)
    is_fine = True

    def work(console: Console) -> None:
        nonlocal is_fine
        deleted = None
        if not values["lines"]:
            try:
                deleted = Deleted(console)
            except ConnectionFailedError:
                raise
            except MessagingError as error:
                say(PROGRAM, f"deleted objects will not be listed: {error}")
        shell = Shell(console, as_json=values["as_json"], deleted=deleted)
        shell.agent = values["agent"]
        if values["lines"]:
            is_fine = run_lines(shell, values["lines"])
        elif sys.stdin.isatty():
            run_terminal(shell)
        else:
            is_fine = run_lines(shell, sys.stdin)
        if deleted is not None:
            with contextlib.suppress(MessagingError):
                deleted.close()

    code = run_on_console(PROGRAM, broker if values["address"] is None else broker.at(values["address"]), work)
    context.exit(code if is_fine else EXIT_FAILED)


main = main_of(PROGRAM, command)

if __name__ == "__main__":
    main()
