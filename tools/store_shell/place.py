"""What the shell works on, a stopped store or a running broker, and the words of a line that select its messages.

A line has commands separated by semicolons. Quotes and backslashes are those of a POSIX shell; a comment begins with a
number sign at the beginning of a word. What follows the word `where` is a selector, verbatim: its quotes are its own.

Stores and brokers describe their content by the same objects, those of `qstore-dump --json` and `qstore-check --json`
(tools/README.md), and make a plan of every change before it is made (`Place`, `Plan`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import plural
from qstore.store.importing.intake import ImportedMessage
from qstore.tools.console.rows import Object
from qstore.tools.console.text import unescape_name
from qstore.tools.dump.messages import BodyForm, parse_rids, selector_of

if TYPE_CHECKING:
    from qstore.broker.model.selectors.selector import Selector


_NOT_BARE: Final = re.compile(
    r"""\\.?\#*                          # escaped: what follows does not begin a word
    | '[^']*(?:'|\Z)                    # quoted; the closing quote may be missing
    | "(?:[^"\\]|\\.)*(?:"|\\?\Z)
    | (?<![^\s;])(?P<comment>\#[^\n]*)
    """,
    re.DOTALL | re.VERBOSE,
)
_WHERE: Final = re.compile(r"\swhere\s", re.IGNORECASE)
_SEPARATOR: Final = re.compile(r"[;\n]")
_FIRST: Final = re.compile(r"first=([0-9]{1,12})")


class ShellError(Exception):
    """A command cannot be carried out: one line that says why."""


class Line(NamedTuple):
    """A command.

    Attributes:
        words: its words, without quotes.
        where: the selector behind `where`; None if there is none.
    """

    words: list[str]
    where: str | None


def split_commands(text: str) -> list[str]:
    """The commands in a text: separated by semicolons and line ends that are not within quotes."""
    text, bare = _bare(text)
    ends = [*(found.start() for found in _SEPARATOR.finditer(bare)), len(text)]
    commands = [text[begin:end].strip() for begin, end in zip([0, *(end + 1 for end in ends)], ends, strict=False)]
    return [command for command in commands if command]


def read_line(command: str) -> Line:
    """The words of a command. Raises ShellError: a quote is not closed, or nothing follows `where`."""
    if "\0" in command:
        raise ShellError("a command has no NUL characters")
    command, bare = _bare(command)
    where, found = None, _WHERE.search(f"{bare} ")
    if found is not None:
        command, where = command[: found.start()], command[found.end() :].strip()
        if not where:
            raise ShellError("where is followed by a selector, such as: where priority > 4 AND region = 'EU'")
    try:
        return Line(shlex.split(command), where)
    except ValueError as error:
        raise ShellError(f"{command.strip()}: {str(error).lower()}") from None


def _bare(text: str) -> tuple[str, str]:
    """The text with its comments blanked, and of the same length what is not quoted in it, the rest as underscores."""
    text = _NOT_BARE.sub(lambda found: " " * len(found[0]) if found["comment"] else found[0], text)
    return text, _NOT_BARE.sub(lambda found: "_" * len(found[0]), text)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages of which queue are selected.

    Attributes:
        queue: its name.
        rids: ranges of record ids; empty for all.
        first: at most this many of those that match; None for all.
        selector: only those that it selects; None for all.
    """

    queue: str
    rids: tuple[tuple[int, int], ...] = ()
    first: int | None = None
    selector: Selector | None = None

    def has_rid(self, rid: int) -> bool:
        """Whether a record id is in one of the ranges."""
        return not self.rids or any(low <= rid <= high for low, high in self.rids)

    @property
    def text(self) -> str:
        """The selection in words."""
        ranges = [f"0x{low:x}" if low == high else f"0x{low:x}..0x{high:x}" for low, high in self.rids]
        parts = [
            *([f"records {', '.join(ranges)}"] if ranges else []),
            *([f"where {self.selector.text}"] if self.selector is not None else []),
            *([f"the first {plural(self.first, 'message')}"] if self.first is not None else []),
        ]
        return f"queue {self.queue}{''.join(f', {each}' for each in parts)}"


def read_wanted(words: Sequence[str], where: str | None, before: Wanted | None) -> Wanted:
    """The selection that words describe: `[QUEUE] [RID ...] [first=N]`, and a selector.

    Args:
        words: the words.
        where: the selector.
        before: what is selected so far, whose queue is meant if words name none.

    Raises:
        ShellError: they are not valid.
    """
    rest = list(words)
    if rest and not _is_detail(rest[0]):
        queue = unescape_name(rest.pop(0))
    elif before is not None:
        queue = before.queue
    else:
        raise ShellError("select which queue? Give its name: select QUEUE [RID ...] [first=N] [where SELECTOR]")
    ranges, first = [], None
    for word in rest:
        found = _FIRST.fullmatch(word)
        if found is not None:
            first = int(found[1])
            continue
        if word.startswith("first="):
            raise ShellError(f"{word!r}: first= takes a number, such as first=10")
        try:
            ranges.append(parse_rids(word))
        except ValueError as error:
            raise ShellError(str(error)) from None
    return Wanted(queue, tuple(ranges), first, None if where is None else _selector(where))


def _is_detail(word: str) -> bool:
    if _FIRST.fullmatch(word):
        return True
    try:
        parse_rids(word)
    except ValueError:
        return False
    return True


def _selector(text: str) -> Selector:
    try:
        return selector_of(text)
    except ValueError as error:
        raise ShellError(str(error)) from None


# ---- stores and brokers ----
#
# The objects are those of `qstore-dump --json` and `qstore-check --json` (tools/README.md).

#: Receives numbers of messages that are done.
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A change that was decided on, and is not made yet.

    Attributes:
        text: what it does, in a line: "move 3 messages (1,234 bytes) of queue orders to queue old".
        fields: the same as JSON.
        destroys: whether what it takes away is lost.
        count: number of messages; 0 if there is nothing to do.
        apply: makes it, durable on return; returns more fields of the result.
    """

    text: str
    fields: Mapping[str, Any]
    destroys: bool
    count: int
    apply: Callable[[Advance], Mapping[str, Any]]
    notices: list[str] = field(default_factory=list)


class Place(Protocol):
    """A store or a broker. Every method may raise one of the errors in `FAILURES` of `commands`.

    Attributes:
        title: what it is, for people.
        notices: one line each, shown before the change.
    """

    title: str
    notices: list[str]

    def queues(self, exchange: str | None) -> Iterable[Object]:
        """The queues; only those bound to an exchange, if one is given."""

    def exchanges(self) -> Iterable[Object]:
        """The exchanges."""

    def bindings(self, exchange: str | None) -> Iterable[Object]:
        """The bindings; only those of an exchange, if one is given."""

    def transactions(self) -> Iterable[Object]:
        """The open transactions."""

    def journals(self) -> Iterable[Object]:
        """The journals."""

    def full_name(self, name: str) -> str:
        """The name of a queue that may be given as people see it: one of a virtual host as `host/name`."""

    def check(self, wanted: Wanted) -> int:
        """The number of messages in a queue that is selected. Raises ShellError if a selection is not possible."""

    def messages(self, wanted: Wanted, form: BodyForm) -> Iterable[Object]:
        """The messages that are selected, in the order of delivery."""

    def plan_copy(self, wanted: Wanted, target: str, *, removes: bool) -> Plan:
        """Copying or moving messages to the end of a queue."""

    def plan_removal(self, wanted: Wanted, verb: str) -> Plan:
        """Removing messages."""

    def plan_message(self, message: ImportedMessage) -> Plan:
        """Adding a message."""

    def plan_quarantine(self, directory: str | None, numbers: list[int], target: str | None) -> Plan:
        """Adding the messages of a quarantine's entries; of all entries, if no numbers are given."""

    def plan_resolution(self, xid: bytes, *, commits: bool) -> Plan:
        """Deciding a branch in doubt."""

    def close(self) -> None:
        """Close it."""
