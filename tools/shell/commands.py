"""The commands of the shell.

Each is a row of `COMMANDS`: what may follow it, what it does, and the function that does it with the words behind it.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import click

from qstore.broker.client import MessagingError
from qstore.broker.client.errors import ConnectionFailedError
from qstore.broker.management.console import (
    AgentError,
    AgentInfo,
    Console,
    Data,
    Method,
    NoObjectError,
    ObjectId,
    Schema,
    SchemaId,
)
from qstore.tools.console.tables import Column
from qstore.tools.management.amounts import plain
from qstore.tools.management.listing import json_object, print_json, print_listing
from qstore.tools.shell import show
from qstore.tools.shell.arguments import WordError, condition, is_condition, method_arguments
from qstore.tools.shell.identities import Identities, is_number


class Shell:
    """What the commands share.

    Args:
        console: the console.
        is_json: whether to print JSON.

    Attributes:
        numbers: short names of objects.
        agent: the agent that is asked; None for the broker's own.
        has_ended: whether `quit` was given.
    """

    program = "qpid-tool"
    banner = "Management Tool for QPID"
    farewell = "Exiting..."
    prompt = "qpid: "
    failures: tuple[type[Exception], ...] = (MessagingError,)
    fatal: tuple[type[Exception], ...] = (ConnectionFailedError,)

    def __init__(self, console: Console, *, is_json: bool) -> None:
        self._console, self._is_json = console, is_json
        self.numbers = Identities()
        self.agent: str | None = None
        self.has_ended = False
        self._is_long = False
        self._classes: list[SchemaId] | None = None
        self._schemas: dict[str, Schema | None] = {}
        self._agents: list[AgentInfo] = []

    def run(self, line: str) -> None:
        """Carry out a command.

        Raises:
            WordError: it is none.
            MessagingError: it has failed.
        """
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise WordError(f"{line.strip()}: {str(error).lower()}") from None
        if not words:
            return
        name, *rest = words
        found = COMMANDS.get(name.lower())
        if found is None:
            raise WordError(f"unknown command {name!r}; help lists the commands")
        found.work(self, rest)

    # ---- what the completion needs ----

    def classes(self) -> list[SchemaId]:
        """The classes of the agent; they are asked for once."""
        if self._classes is None:
            self._classes = self._console.classes(agent=self.agent)
        return self._classes

    def schema(self, name: str) -> Schema | None:
        """A class of the agent; None if the agent does not tell."""
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

    def help(self, _words: Sequence[str]) -> None:
        """Print what there is."""
        rows = [(f"{name} {each.syntax}".strip(), each.help) for name, each in COMMANDS.items()]
        print_listing(self.banner, (Column("Command"), Column("Purpose", folds=True)), rows, indent="    ")

    def list(self, words: Sequence[str]) -> None:
        """Print a summary, or objects."""
        if not words:
            self._summary()
            return
        objects = self._find(words)
        if self._is_json:
            print_json(json_object(each) for each in objects)
        elif "all" in words[1:]:
            self._show_contents(objects)
        else:
            show.show_objects(objects, self.numbers, is_long=self._is_long)

    def _summary(self) -> None:
        active, deleted = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for of in self.classes():  # qpidd has no query for objects of all classes
            if not of.is_event:
                for each in self._console.query(of.name, package=of.package, agent=self.agent):
                    (deleted if each.deleted else active)[of.package, of.name] += 1
        counts = {name: (active[name], deleted[name]) for name in active | deleted}
        if self._is_json:
            print_json(
                {"kind": "class", "package": package, "class": name, "active": active, "deleted": deleted}
                for (package, name), (active, deleted) in sorted(counts.items())
            )
        else:
            show.show_summary(counts)

    def _find(self, words: Sequence[str]) -> Iterable[Data]:
        """The objects that words name: numbers, CLASS:KEY, or a class with conditions."""
        first, *rest = words
        if is_number(first):
            for word in words:
                if word not in ("all", "active"):
                    for identity in self.numbers.find_all(word):
                        yield self._console.find(identity, agent=self.agent)
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
        if not is_found and first.lower() not in {each.name.lower() for each in self.classes()}:
            raise NoObjectError(f"there is no class {first}")

    def show(self, words: Sequence[str]) -> None:
        """Print the contents of objects."""
        if not words:
            raise WordError("show what? Give a number, CLASS:KEY, or a class")
        objects = self._find(words)
        if self._is_json:
            print_json(json_object(each) for each in objects)
        else:
            self._show_contents(objects)

    def _show_contents(self, objects: Iterable[Data]) -> None:
        for index, each in enumerate(objects):
            if index:
                click.echo()
            show.show_contents(each, self.schema(each.class_name), self.numbers, is_long=self._is_long)

    def call(self, words: Sequence[str]) -> None:
        """Call a method."""
        if len(words) < 2:
            raise WordError("call what? Give an object, a method and its arguments")
        target, name, *rest = words
        wanted = self._target(target)
        method = self._method(_class_in(wanted), name)
        results = self._console.call(wanted, name, method_arguments(method, rest), agent=self.agent)
        if self._is_json:
            print_json([{"kind": "result", "method": name, "results": plain(results)}])
        else:
            show.show_result(name, results)

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
        """A method of a class; None if the agent does not tell."""
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
            if self._is_json:
                print_json(
                    {"kind": "class", "package": each.package, "class": each.name, "is_event": each.is_event}
                    for each in self.classes()
                )
            else:
                show.show_classes(self.classes())
            return
        for word in words:
            schema = self._console.schema(word, agent=self.agent)
            if self._is_json:
                print_json([show.schema_json(schema)])
            else:
                show.show_schema(schema)

    def agents(self, _words: Sequence[str]) -> None:
        """Print the agents."""
        self._agents = self._console.agents()
        if self._is_json:
            print_json(show.agent_json(each) for each in self._agents)
        else:
            show.show_agents(self._agents, self.agent, is_long=self._is_long)

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
        if self._is_json:
            print_json({"kind": "id", "id": number, "object": each.name} for number, each in self.numbers.items())
        else:
            show.show_identities(self.numbers)

    def set(self, words: Sequence[str]) -> None:
        """Set the format of times."""
        if len(words) != 2 or words[0] != "time-format" or words[1] not in ("short", "long"):
            raise WordError("set what? Give: time-format short, or time-format long")
        self._is_long = words[1] == "long"

    def quit(self, _words: Sequence[str]) -> None:
        """End the shell."""
        self.has_ended = True


class _Command(NamedTuple):
    """A command."""

    syntax: str
    help: str
    work: Callable[[Shell, Sequence[str]], None]


COMMANDS: Final = {
    "help": _Command("", "Print the commands", Shell.help),
    "list": _Command(
        "[CLASS [all|active] [NAME=VALUE ...]]",
        "Print a summary, or the objects of a class: with numbers; all: with their contents",
        Shell.list,
    ),
    "show": _Command("ID ...|CLASS:KEY|CLASS [NAME=VALUE ...]", "Print the contents of objects", Shell.show),
    "call": _Command("ID|CLASS:KEY|broker METHOD [ARGUMENT ...]", "Call a method of an object", Shell.call),
    "schema": _Command("[CLASS ...]", "Print the classes, or what the objects of one have", Shell.describe),
    "agents": _Command("", "Print the agents of this broker", Shell.agents),
    "agent": _Command("[NAME|NUMBER]", "Ask this agent; without a name: the broker's own", Shell.choose),
    "id": _Command("", "Print which number is which object", Shell.identities),
    "set": _Command("time-format short|long", "Print times without or with their dates", Shell.set),
    "quit": _Command("", "End, as ^D does", Shell.quit),
    "exit": _Command("", "The same", Shell.quit),
}


def completions(shell: Shell, before: Sequence[str], word: str) -> Iterator[str]:
    """How a word may be completed, after those before it on its line."""
    candidates: Iterable[Any] = ()
    try:
        if not before:
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
