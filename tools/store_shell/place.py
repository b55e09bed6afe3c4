"""What commands work on: a stopped store, or a running broker. Both describe their content by the same objects.

The objects are those of `qstore-dump --json` and `qstore-check --json` (tools/README.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from qstore.store.importing.intake import ImportedMessage
from qstore.tools.dump.selection import BodyForm
from qstore.tools.store_shell.words import Wanted

Object = dict[str, Any]

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
        notices: what is to be told about it, one line each.
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
