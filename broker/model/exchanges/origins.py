"""Where the bindings of an exchange come from, for routes that announce them to other brokers (`broker.federation`).

A binding is made by a client here, or by another broker's route on behalf of a client elsewhere. Then its arguments
have

    qpid.fed.op        B to bind, U to take an origin's binding back, R to announce everything again; M and S, between
                       brokers of this kind, to take back what was not bound again between the two; not kept
    qpid.fed.origin    the name of the broker where the client is
    qpid.fed.tags      the names of the brokers that have passed the binding on, with commas between

One binding may be there for several origins; it ends with the last one. What an exchange wants of other brokers is a
set of `Wanted`: a key, for a headers exchange with its criteria, for an XML
exchange with its query, and an origin. It is there as long as any binding
gives a reason for it. A route announces what is wanted for a reason that has not passed the route's other broker: so a
binding never comes back to a broker, however the brokers are linked.

An exchange has this only while it is federated. Bindings between exchanges are not announced.

Source: qpidd, FedOps.h (names and values); Qpid wiki, "Using Broker Federation", "Dynamic Routing".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from qstore.broker.model.arguments import FED_ARGUMENTS, FED_ORIGIN, FED_TAGS, as_text
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.queues.queue import Queue
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import EMPTY_MAP, TypedMap

BIND: Final = "B"
UNBIND: Final = "U"
REORIGIN: Final = "R"
MARK: Final = "M"
SWEEP: Final = "S"

MAX_ORIGINS: Final = 1_000
"""Origins of one binding; others are not passed on."""


class Wanted(NamedTuple):
    """Messages that are wanted of other brokers.

    Attributes:
        key: the binding key.
        arguments: the criteria or the query, of a headers or an XML exchange.
        origin: the name of the broker where they are wanted; empty for this one.
    """

    key: str
    arguments: TypedMap
    origin: str


class Follower(Protocol):
    """A route that announces what is wanted."""

    def wanted_changed(self, wanted: Wanted) -> None:
        """The reasons for it have changed: there may be no more, or the first one."""

    def announce_again(self) -> None:
        """Announce everything again."""


class Origins:
    """The origins of one exchange's bindings.

    Args:
        type_name: the exchange's type.
        bindings: its bindings.

    Attributes:
        followers: the routes that announce what is wanted.
    """

    __slots__ = ("_marked", "_origins", "_reasons", "_type", "followers")

    def __init__(self, type_name: str, bindings: Iterable[Binding]) -> None:
        self._type = type_name
        self._origins: dict[Binding, dict[str, str]] = {}  # origin -> tags
        self._reasons: dict[Wanted, dict[Binding, str]] = {}  # binding -> tags
        self._marked: dict[Queue, set[tuple[Binding, str]]] = {}  # binding and origin
        self.followers: list[Follower] = []
        for binding in bindings:
            self.bound(binding)

    def wanted(self) -> list[Wanted]:
        """Everything that is wanted."""
        return list(self._reasons)

    def tags_for(self, wanted: Wanted, peer: str) -> str | None:
        """The tags with which it may be announced to the broker of that name; None if it may not."""
        for tags in self._reasons.get(wanted, _NO_REASONS).values():
            if not peer or peer not in names_in(tags):
                return tags
        return None

    # ---- changes ----

    def bound(self, binding: Binding) -> None:
        """A binding was added."""
        self.add(binding, text_of(binding.arguments, FED_ORIGIN), text_of(binding.arguments, FED_TAGS))

    def add(self, binding: Binding, origin: str, tags: str) -> None:
        """A binding is wanted by an origin."""
        origins = self._origins.setdefault(binding, {})
        marked = self._marked.get(binding.queue)
        if marked:
            marked.discard((binding, origin))
        if origins.get(origin) == tags or len(origins) >= MAX_ORIGINS:
            return
        origins[origin] = tags
        wanted = self._wanted_by(binding, origin)
        self._reasons.setdefault(wanted, {})[binding] = tags
        self._changed(wanted)

    def withdraw(self, binding: Binding, origin: str) -> bool:
        """An origin does not want a binding any more. Whether no other does."""
        origins = self._origins.get(binding, {})
        if origin in origins:
            del origins[origin]
            self._end(self._wanted_by(binding, origin), binding)
        return not origins

    def mark(self, queue: Queue, bindings: Iterable[Binding]) -> None:
        """Another broker will now announce all that it wants through a queue, whose bindings these are."""
        marked = {(binding, origin) for binding in bindings for origin in self._origins.get(binding, ()) if origin}
        if marked:
            self._marked[queue] = marked
        else:
            self._marked.pop(queue, None)

    def take_marked(self, queue: Queue) -> set[tuple[Binding, str]]:
        """It has announced all: what was marked, and has not been announced again, with its origin."""
        return self._marked.pop(queue, set())

    def unbound(self, binding: Binding) -> None:
        """A binding was removed."""
        marked = self._marked.get(binding.queue)
        if marked is not None:
            marked -= {(binding, origin) for origin in self._origins.get(binding, ())}
            if not marked:
                del self._marked[binding.queue]
        for origin in self._origins.pop(binding, {}):
            self._end(self._wanted_by(binding, origin), binding)

    def announce_again(self) -> None:
        """Another broker asks for everything."""
        for follower in self.followers:
            follower.announce_again()

    def _end(self, wanted: Wanted, binding: Binding) -> None:
        reasons = self._reasons.get(wanted)
        if reasons is not None:
            reasons.pop(binding, None)
            if not reasons:
                del self._reasons[wanted]
            self._changed(wanted)

    def _changed(self, wanted: Wanted) -> None:
        for follower in self.followers:
            follower.wanted_changed(wanted)

    def _wanted_by(self, binding: Binding, origin: str) -> Wanted:
        if self._type == "fanout":
            return Wanted("", EMPTY_MAP, origin)
        if self._type not in ("headers", "xml"):
            return Wanted(binding.key, EMPTY_MAP, origin)
        return Wanted(binding.key, criteria_in(binding.arguments), origin)


_NO_REASONS: Final[Mapping[Binding, str]] = {}


def names_in(tags: str) -> list[str]:
    """The names in a list with commas."""
    return tags.replace(",", " ").split()


def text_of(arguments: TypedMap, name: str) -> str:
    """The text of an argument; empty if it is missing, or no text."""
    typed = arguments.get(name)
    value = None if typed is None else as_text(typed.value)
    return value if isinstance(value, str) else ""


def criteria_in(arguments: TypedMap) -> TypedMap:
    """The arguments without those of a federation."""
    return TypedMap(tuple((name, typed) for name, typed in arguments.entries if name not in FED_ARGUMENTS))
