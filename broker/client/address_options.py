"""The options of an address.

    create, assert, delete   always | sender | receiver | never
    mode                     browse | consume
    node                     type queue | topic;  durable;  x-declare { ... };  x-bindings [ ... ]
    link                     name;  durable;  reliability unreliable | at-most-once | at-least-once | exactly-once;
                             selector;  x-declare { ... };  x-subscribe { ... };  x-bindings [ ... ]
    x-declare                durable, auto-delete, exclusive, alternate-exchange, arguments { ... };
                             type (of an exchange)
    x-subscribe              exclusive, resume-id, resume-ttl, arguments { ... }
    x-bindings               a list of { exchange, queue, key, arguments { ... } }

Other options whose names begin with x- are allowed everywhere and ignored.

Source: the address options of the Qpid Messaging API; Qpid C++ Broker Book, 1.6.2.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from qstore.broker.client.address import Address
from qstore.broker.client.errors import AddressError

SENDER: Final = "sender"
RECEIVER: Final = "receiver"

_POLICIES: Final = {
    "always": frozenset([SENDER, RECEIVER]),
    "sender": frozenset([SENDER]),
    "receiver": frozenset([RECEIVER]),
    "never": frozenset[str](),
}
_RELIABILITIES: Final = {"unreliable": False, "at-most-once": False, "at-least-once": True, "exactly-once": True}


class Declare(NamedTuple):
    """An x-declare map; None for missing options."""

    durable: bool | None = None
    auto_delete: bool | None = None
    exclusive: bool | None = None
    alternate_exchange: str | None = None
    type: str | None = None
    arguments: Mapping[str, Any] | None = None


class Subscribe(NamedTuple):
    """An x-subscribe map; None for missing options."""

    exclusive: bool | None = None
    resume_id: str | None = None
    resume_ttl: int | None = None
    arguments: Mapping[str, Any] | None = None


class Binding(NamedTuple):
    """An entry of x-bindings. If exchange or queue is None, it is the node or the link's own queue."""

    exchange: str | None = None
    queue: str | None = None
    key: str | None = None
    arguments: Mapping[str, Any] | None = None


class Target(NamedTuple):
    """An address with interpreted options.

    Attributes:
        name, subject: name and subject of the address.
        create, asserts, delete: the roles, SENDER and RECEIVER, to which the policy applies.
        browse: whether to leave the messages on the queue.
        node_type: "queue" or "topic"; None if not given.
        node_durable: the node's option durable; None if not given.
        node_declare, node_bindings: the node's x-declare and x-bindings.
        link_name, link_durable: the link's name and option durable.
        reliable: whether messages are acknowledged, and sent again after a reconnect; None if not given.
        link_declare, link_bindings: x-declare and x-bindings of a receiver's own queue at an exchange.
        subscribe: the link's x-subscribe.
        selector: which messages a receiver gets, as a condition; None for all.
    """

    name: str
    subject: str | None
    create: frozenset[str]
    asserts: frozenset[str]
    delete: frozenset[str]
    browse: bool
    node_type: str | None
    node_durable: bool | None
    node_declare: Declare
    node_bindings: tuple[Binding, ...]
    link_name: str | None
    link_durable: bool
    reliable: bool | None
    link_declare: Declare
    link_bindings: tuple[Binding, ...]
    subscribe: Subscribe
    selector: str | None


class _Options:
    """A map of options, which are taken out by name; those left at the end are unknown."""

    def __init__(self, address: Address, where: str, values: Any) -> None:
        self._address, self._where = address, where
        if not isinstance(values, Mapping):
            raise self.error(f"{where or 'options'} must be a map")
        self._values = {str(key).replace("_", "-"): value for key, value in values.items()}
        self._known: list[str] = []

    def error(self, what: str) -> AddressError:
        return AddressError(what, str(self._address))

    def _name(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def _take(self, name: str) -> Any:
        self._known.append(name)
        return self._values.pop(name, None)

    def choice(self, name: str, choices: Mapping[str, Any], default: str | None = None) -> Any:
        value = self._take(name)
        word = default if value in (None, "") else value
        if word is None:
            return None
        if not isinstance(word, str) or word not in choices:
            raise self.error(f"{self._name(name)} must be one of {', '.join(choices)}, not {word!r}")
        return choices[word]

    def flag(self, name: str) -> bool | None:
        value = self._take(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{self._name(name)} must be true or false, not {value!r}")
        return value

    def text(self, name: str) -> str | None:
        value = self._take(name)
        if isinstance(value, (Mapping, list)):
            raise self.error(f"{self._name(name)} must be text")
        return None if value is None else str(value)

    def number(self, name: str) -> int | None:
        value = self._take(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise self.error(f"{self._name(name)} must be a number, not {value!r}")
        return value

    def map(self, name: str) -> Mapping[str, Any] | None:
        value = self._take(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(f"{self._name(name)} must be a map, not {value!r}")
        return value

    def within(self, name: str) -> _Options:
        return _Options(self._address, self._name(name), self._take(name) or {})

    def list(self, name: str) -> list[_Options]:
        values = self._take(name) or []
        if not isinstance(values, list):
            raise self.error(f"{self._name(name)} must be a list")
        return [_Options(self._address, f"{self._name(name)}[{index}]", each) for index, each in enumerate(values)]

    def finish(self) -> None:
        for name in self._values:
            if not name.startswith("x-"):
                raise self.error(f"unknown option {self._name(name)}; the options are {', '.join(self._known)}")


def address_target(address: Address) -> Target:
    """Interpret the options of an address.

    Raises:
        AddressError: an option is unknown, or its value is invalid.
    """
    options = _Options(address, "", address.options)
    node, link = options.within("node"), options.within("link")
    target = Target(
        name=address.name,
        subject=address.subject,
        create=options.choice("create", _POLICIES, "never"),
        asserts=options.choice("assert", _POLICIES, "never"),
        delete=options.choice("delete", _POLICIES, "never"),
        browse=options.choice("mode", {"consume": False, "browse": True}, "consume"),
        node_type=node.choice("type", {"queue": "queue", "topic": "topic"}),
        node_durable=node.flag("durable"),
        node_declare=_declare(node.within("x-declare")),
        node_bindings=_bindings(node),
        link_name=link.text("name"),
        link_durable=link.flag("durable") or False,
        reliable=link.choice("reliability", _RELIABILITIES),
        link_declare=_declare(link.within("x-declare")),
        link_bindings=_bindings(link),
        subscribe=_subscribe(link.within("x-subscribe")),
        selector=link.text("selector") or None,
    )
    for each in (options, node, link):
        each.finish()
    return target


def _declare(options: _Options) -> Declare:
    declare = Declare(
        durable=options.flag("durable"),
        auto_delete=options.flag("auto-delete"),
        exclusive=options.flag("exclusive"),
        alternate_exchange=options.text("alternate-exchange"),
        type=options.text("type"),
        arguments=options.map("arguments"),
    )
    options.finish()
    return declare


def _subscribe(options: _Options) -> Subscribe:
    subscribe = Subscribe(
        exclusive=options.flag("exclusive"),
        resume_id=options.text("resume-id"),
        resume_ttl=options.number("resume-ttl"),
        arguments=options.map("arguments"),
    )
    options.finish()
    return subscribe


def _bindings(options: _Options) -> tuple[Binding, ...]:
    bindings = []
    for each in options.list("x-bindings"):
        bindings.append(Binding(each.text("exchange"), each.text("queue"), each.text("key"), each.map("arguments")))
        each.finish()
    return tuple(bindings)
