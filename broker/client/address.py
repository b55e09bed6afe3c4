r"""Address strings: `name [ "/" subject ] [ ";" options ]`.

    name, subject   text up to the next "/" or ";", without leading and trailing spaces, or quoted text. A subject
                    may contain further slashes.
    options         a map: `{ key : value , ... }`. Keys are words or quoted text.
    value           a map, a list `[ value , ... ]`, quoted text, or a word. The words true and false (in any
                    case) are booleans; a word that reads as a number is one; any other word is text.
    word            characters other than space and  ' " { } [ ] , : ;
    quoted text     in ' or ", with the escapes \\ \' \" \/ \b \f \n \r \t \xHH \uHHHH

The options:

    create, assert, delete   always | sender | receiver | never
    mode                     browse | consume
    node                     type queue | topic;  durable;  x-declare { ... };  x-bindings [ ... ];
                             properties { ... };  capabilities [ ... ]
    link                     name;  durable;  reliability unreliable | at-most-once | at-least-once | exactly-once;
                             selector;  x-declare { ... };  x-subscribe { ... };  x-bindings [ ... ];
                             timeout;  filter { ... } | [ { ... }, ... ]
    x-declare                durable, auto-delete, exclusive, alternate-exchange, arguments { ... };
                             type (of an exchange)
    x-subscribe              exclusive, resume-id, resume-ttl, arguments { ... }
    x-bindings               a list of { exchange, queue, key, arguments { ... } }
    filter                   { name, descriptor, value }

properties, capabilities, timeout and filter are for AMQP 1.0, which has no x-bindings, x-subscribe and link.x-declare
(`amqp_1_0/links`).

Options that have no effect on a link, such as a selector of a sender, are ignored with a warning, too (`warn_of_idle`).

Other options whose names begin with x- are allowed everywhere, and are ignored with a warning in the log
`qstore.client`.

Binding URLs of Qpid's Java client are addresses, too: see `plain_address`.

Sources: Qpid C++ Broker Book, 1.6.2.1 (LVQ); MRG 2 Messaging User Guide, 3 (priorities, alerts); the address options of
the Qpid Messaging API, and its examples.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from qstore.broker.client.errors import AddressError
from qstore.formats.named_tuple import NamedTuple

Value: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value]"

CLIENT_LOGGER: Final = "qstore.client"
"""The name of the client's log."""
_logger: Final = logging.getLogger(CLIENT_LOGGER)

#: Maximum nesting of maps and lists, the same as in formats.amqp_0_10.
MAX_DEPTH: Final = 32

_match_space: Final = re.compile(r"\s*").match
_match_word: Final = re.compile(r"""[^\s'"{}\[\],:;]+""").match
_match_integer: Final = re.compile(r"[+-]?[0-9]{1,19}").fullmatch
_match_number: Final = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]{1,3})?").fullmatch
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"', "/": "/"}
_HEX_DIGITS: Final = {"x": 2, "u": 4}
_is_hex: Final = re.compile(r"[0-9a-fA-F]+").fullmatch


class Address(NamedTuple):
    """A parsed address, with uninterpreted options.

    Attributes:
        name: the name of the queue or exchange.
        subject: None if the address has none.
        options: the map after the semicolon.
    """

    name: str
    subject: str | None = None
    options: dict[str, Value] = {}  # noqa: RUF012 (never changed: an address is a value)

    def __str__(self) -> str:
        return format_address(self)


class _Reader:
    """A position in the text of an address."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def error(self, what: str, position: int | None = None) -> AddressError:
        return AddressError(what, self.text, self.position if position is None else position)

    def peek(self) -> str:
        """Skip spaces, and return the next character; "" at the end."""
        found = _match_space(self.text, self.position)
        assert found is not None
        self.position = found.end()
        return self.text[self.position : self.position + 1]

    def take(self, expected: str) -> bool:
        """Skip `expected` if it is the next character. Returns whether it was."""
        if self.peek() != expected:
            return False
        self.position += 1
        return True

    def read_part(self, stops: str) -> str:
        """A name or subject, up to one of `stops`."""
        if self.peek() in ("'", '"'):
            return self.read_quoted()
        start = self.position
        while self.position < len(self.text) and self.text[self.position] not in stops:
            self.position += 1
        return self.text[start : self.position].rstrip()

    def read_quoted(self) -> str:
        start, quote = self.position, self.text[self.position]
        self.position += 1
        parts: list[str] = []
        while True:
            if self.position >= len(self.text):
                raise self.error(f"missing closing {quote}", start)
            character = self.text[self.position]
            self.position += 1
            if character == quote:
                return "".join(parts)
            parts.append(self.read_escape() if character == "\\" else character)

    def read_escape(self) -> str:
        character = self.text[self.position : self.position + 1]
        self.position += 1
        if character in _ESCAPES:
            return _ESCAPES[character]
        width = _HEX_DIGITS.get(character, 0)
        digits = self.text[self.position : self.position + width]
        if not width or len(digits) < width or not _is_hex(digits):
            raise self.error(f"unknown escape \\{character}{digits}", self.position - 2)
        self.position += width
        return chr(int(digits, 16))

    def read_word(self, what: str) -> str:
        found = _match_word(self.text, self.position)
        if found is None:
            raise self.error(f"missing {what}")
        self.position = found.end()
        return found[0]

    def read_map(self, depth: int) -> dict[str, Value]:
        start = self.position
        self.check_depth(depth)
        self.position += 1
        entries: dict[str, Value] = {}
        while not self.take("}"):
            if entries and not self.take(","):
                raise self.unclosed("map", "}", start)
            if entries and self.take("}"):
                break
            position = self.position
            key = self.read_quoted() if self.peek() in ("'", '"') else self.read_word("option name")
            if key in entries:
                raise self.error(f"duplicate option {key!r}", position)
            if not self.take(":"):
                raise self.error(f"missing colon after {key!r}")
            entries[key] = self.read_value(depth)
        return entries

    def read_list(self, depth: int) -> list[Value]:
        start = self.position
        self.check_depth(depth)
        self.position += 1
        values: list[Value] = []
        while not self.take("]"):
            if values and not self.take(","):
                raise self.unclosed("list", "]", start)
            if values and self.take("]"):
                break
            values.append(self.read_value(depth))
        return values

    def unclosed(self, what: str, end: str, start: int) -> AddressError:
        if self.peek():
            return self.error(f"expected a comma or {end} in the {what} that begins at {start}")
        return self.error(f"missing {end} of the {what} that begins at {start}")

    def check_depth(self, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise self.error(f"maps and lists are nested more than {MAX_DEPTH} deep")

    def read_value(self, depth: int) -> Value:
        match self.peek():
            case "{":
                return self.read_map(depth + 1)
            case "[":
                return self.read_list(depth + 1)
            case "'" | '"':
                return self.read_quoted()
        return word_value(self.read_word("value"))


def word_value(word: str) -> str | int | float | bool:
    """The value of an unquoted word: a boolean, a number, or the word itself."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if _match_integer(word):
        return int(word)
    return float(word) if _match_number(word) else word


def parse_address(text: str) -> Address:
    """Parse an address string.

    Raises:
        AddressError: it has a syntax error, with its position.
    """
    reader = _Reader(text)
    name = reader.read_part("/;")
    subject = reader.read_part(";") if reader.take("/") else None
    options: dict[str, Value] = {}
    if reader.take(";") and reader.peek():
        if reader.peek() != "{":
            raise reader.error("options must begin with {")
        options = reader.read_map(0)
    if reader.peek():
        raise reader.error(f"unexpected {reader.peek()!r}")
    if not name:
        raise reader.error("missing name", 0)
    return Address(name, subject, options)


def parse_map(text: str) -> dict[str, Value]:
    """Parse a map, such as connection options: `{reconnect: true}`; "" is an empty map.

    Raises:
        AddressError: it has a syntax error, with its position.
    """
    reader = _Reader(text)
    if not reader.peek():
        return {}
    if reader.peek() != "{":
        raise reader.error("options must begin with {")
    options = reader.read_map(0)
    if reader.peek():
        raise reader.error(f"unexpected {reader.peek()!r}")
    return options


# ---- binding URLs ----

_match_binding_url: Final = re.compile(
    r"(?P<type>direct|topic|fanout|headers)://(?P<exchange>[^/?]*)(?:/(?P<first>[^/?]*))?(?:/(?P<second>[^?]*))?"
    r"(?:\?(?P<options>.*))?"
).fullmatch
_match_url_options: Final = re.compile(r"(?:\w+='[^']*'(?:&(?=.)|$))*").fullmatch
_find_url_options: Final = re.compile(r"(\w+)='([^']*)'").findall
_FLAGS: Final = {"true": True, "false": False}
_URL_FLAGS: Final = ("exclusive", "autodelete", "durable", "subscription")


def plain_address(text: str, role: str) -> str:
    """The address for a sender or a receiver; a binding URL as the address that does the same, others as they are.

        TYPE://EXCHANGE/[DESTINATION]/[QUEUE]?OPTION='VALUE'&...
        direct://amq.direct//orders      topic://amq.topic/news.#      topic://amq.topic?routingkey='stocks.nyse.*'

    A sender sends to the exchange, with the routing key: that of the option `routingkey`, or the name of the queue or
    destination. A receiver of a queue creates it, and binds it with this key; without a queue it has one of its own at
    the exchange, which is durable and named by `clientid` and QUEUE if it is a durable `subscription`.

    Raises:
        AddressError: it is a binding URL with another option, or without a key.
    """
    found = _match_binding_url(text.strip())
    if found is None:
        return text
    options = dict(_find_url_options(found["options"] or ""))
    known = {*_URL_FLAGS, "routingkey", "clientid"}
    if _match_url_options(found["options"] or "") is None or options.keys() - known:
        raise AddressError(f"the options of a binding URL are {', '.join(sorted(known))}, with values in quotes", text)
    if any(options.get(name, "true").lower() not in _FLAGS for name in _URL_FLAGS):
        raise AddressError(f"{', '.join(_URL_FLAGS)} are 'true' or 'false'", text)
    flags = {name: _FLAGS[options.get(name, "false").lower()] for name in _URL_FLAGS}
    kind, exchange = found["type"], found["exchange"]
    destination, queue = found["first"] or "", (found["second"] or "").strip("/")
    if kind != "topic" and destination and not queue:
        destination, queue = "", destination
    key = options.get("routingkey") or destination or queue
    if not key and kind not in ("fanout", "headers"):
        raise AddressError("a binding URL needs a queue, a destination or a routingkey", text)
    at_exchange: dict[str, Any] = {"create": "always", "node": {"type": "topic", "x-declare": {"type": kind}}}
    has_own = kind == "topic" or not queue
    if role == SENDER:
        idle = options.keys() - {"routingkey"}
    elif has_own:
        idle = options.keys() & {"exclusive", "autodelete"}
        idle |= options.keys() & {"clientid"} if not (flags["durable"] or flags["subscription"]) else set()
    else:
        idle = options.keys() & {"clientid", "subscription"}
    for name in sorted(idle):
        _logger.warning("Binding URL %r: the option %s has no effect for a %s of this kind", text, name, role)
    if role == SENDER:
        return format_address(Address(exchange, key, at_exchange) if exchange else Address(queue or key, None, {}))
    if has_own:
        client = options.get("clientid", "")
        if flags["durable"] or flags["subscription"]:
            name = f"{client}:{queue or key}" if client else queue or key
            at_exchange["link"] = {"name": name, "durable": True}
        elif queue:
            at_exchange["link"] = {"name": queue}
        return format_address(Address(exchange, key or None, at_exchange))
    declare = {"exclusive": flags["exclusive"], "auto-delete": flags["autodelete"]}
    node: dict[str, Any] = {"type": "queue", "durable": flags["durable"], "x-declare": declare}
    if exchange:
        node["x-bindings"] = [{"exchange": exchange, "key": key}]
    return format_address(Address(queue, None, {"create": "always", "node": node}))


# ---- formatting ----


def format_address(address: Address) -> str:
    """The address as a string that parses to the same address."""
    parts = [_format_part(address.name, "/;")]
    if address.subject is not None:
        parts.append("/" + _format_part(address.subject, ";"))
    if address.options:
        parts.append("; " + format_value(address.options))
    return "".join(parts)


def queue_address(name: str, options: Mapping[str, Any] | None = None) -> str:
    """The address of a queue that exists, whatever its name is: a "#" in it is no unique id (see `resolution`)."""
    return format_address(Address(name, None, {"create": "never", "node": {"type": "queue"}, **(options or {})}))


def format_value(value: Any) -> str:
    """An option's value as text; also used to print properties."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_format_text(str(key))}:{format_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(format_value, value)) + "]"
    if isinstance(value, bytes):
        return _format_text(value.decode("utf-8", "backslashreplace"))
    return _format_text(value) if isinstance(value, str) else str(value)


def _format_part(text: str, stops: str) -> str:
    plain = text and text == text.strip() and text[0] not in "'\"" and not any(stop in text for stop in stops)
    return text if plain else _quote(text)


def _format_text(text: str) -> str:
    found = _match_word(text)
    plain = found is not None and found.end() == len(text) and isinstance(word_value(text), str)
    return text if plain else _quote(text)


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# ---- options ----

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


class Filter(NamedTuple):
    """A filter of AMQP 1.0: its descriptor is a number or a symbol."""

    name: str
    descriptor: int | str
    value: Any


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
        properties, capabilities: of the node, for AMQP 1.0.
        timeout: seconds that the link's subscription outlives it, for AMQP 1.0; None if not given.
        filters: of a receiver, for AMQP 1.0.
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
    properties: Mapping[str, Any] | None
    capabilities: tuple[str, ...]
    timeout: int | None
    filters: tuple[Filter, ...]

    @property
    def only_1_0(self) -> str:
        """The first option that is for AMQP 1.0 only; empty for none."""
        found = {
            "node.properties": self.properties, "node.capabilities": self.capabilities, "link.timeout": self.timeout,
            "link.filter": self.filters,
        }  # fmt: skip
        return next((name for name, value in found.items() if value), "")

    @property
    def only_0_10(self) -> str:
        """Likewise, for AMQP 0-10 only."""
        found = {
            "delete": self.delete, "node.x-bindings": self.node_bindings, "link.x-bindings": self.link_bindings,
            "link.x-declare": self.link_declare != Declare(), "link.x-subscribe": self.subscribe != Subscribe(),
        }  # fmt: skip
        return next((name for name, value in found.items() if value), "")


def warn_of_idle(text: str, target: Target, role: str, *, is_queue: bool | None = None) -> None:
    """Log a warning for each option of an address that has no effect on a link.

    Args:
        text: the address.
        target: the same, interpreted.
        role: SENDER or RECEIVER.
        is_queue: whether the node is a queue; None over AMQP 1.0, where the broker decides.
    """
    for name, why in _idle(target, role, is_queue, is_unique="#" in text).items():
        _logger.warning("Address %r: %s has no effect: %s", text, name, why)


def _idle(target: Target, role: str, is_queue: bool | None, *, is_unique: bool) -> dict[str, str]:
    """Name -> why."""
    given: dict[str, str] = {}
    declare, is_1_0 = target.node_declare, is_queue is None
    if not (target.create or target.asserts):
        given |= dict.fromkeys(("node.x-declare", "node.x-bindings", "node.durable", "node.properties"), _NOT_MADE)
    elif is_queue:
        given["node.x-declare.type"] = "the node is a queue"
    elif not is_1_0 and not is_unique:
        given["node.x-declare.exclusive"] = "the node is an exchange"
    if role == SENDER:
        given |= dict.fromkeys(("mode", "link.selector", "link.filter", "link.timeout"), "it is for receivers")
        if not is_1_0:
            names = ("link.x-subscribe", "link.x-declare", "link.durable")
            given |= dict.fromkeys(names, "it is for receivers")
    elif is_queue:
        given |= dict.fromkeys(("link.x-declare", "link.durable"), "it is for receivers at an exchange")
        if not target.link_bindings and not target.node_bindings:
            given["the subject"] = "it is for receivers at an exchange, and the node is a queue; give link.selector"
    given["link.x-declare.type"] = "a receiver has a queue of its own, and no exchange"
    are_given: dict[str, object] = {
        "mode": target.browse, "the subject": target.subject, "link.selector": target.selector,
        "link.filter": target.filters, "link.timeout": target.timeout is not None, "link.durable": target.link_durable,
        "link.x-subscribe": target.subscribe != Subscribe(), "link.x-declare": target.link_declare != Declare(),
        "link.x-declare.type": target.link_declare.type, "node.durable": target.node_durable and not is_1_0,
        "node.x-declare": declare != Declare(), "node.x-declare.type": declare.type,
        "node.x-declare.exclusive": declare.exclusive, "node.x-bindings": target.node_bindings,
        "node.properties": target.properties and target.name != "#",
    }  # fmt: skip
    return {name: why for name, why in given.items() if are_given[name]}


_NOT_MADE: Final = "the address neither creates the node nor asserts what it is"


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

    def texts(self, name: str) -> tuple[str, ...]:
        values = self._take(name) or []
        if isinstance(values, Mapping):
            raise self.error(f"{self._name(name)} must be a list of words")
        return tuple(str(each) for each in (values if isinstance(values, list) else [values]))

    def value(self, name: str) -> Any:
        value = self._take(name)
        if value is None:
            raise self.error(f"{self._name(name)} is missing")
        return value

    def list(self, name: str) -> list[_Options]:
        values = self._take(name) or []
        if isinstance(values, Mapping) and name == "filter":
            values = [values]
        if not isinstance(values, list):
            raise self.error(f"{self._name(name)} must be a list")
        return [_Options(self._address, f"{self._name(name)}[{index}]", each) for index, each in enumerate(values)]

    def finish(self) -> None:
        for name in self._values:
            if not name.startswith("x-"):
                raise self.error(f"unknown option {self._name(name)}; the options are {', '.join(self._known)}")
            text = "Address %r: the option %s is ignored, because it is unknown; the options are %s"
            _logger.warning(text, str(self._address), self._name(name), ", ".join(self._known))


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
        properties=node.map("properties"),
        capabilities=node.texts("capabilities"),
        timeout=link.number("timeout"),
        filters=tuple(_filter(each) for each in link.list("filter")),
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


def _filter(options: _Options) -> Filter:
    descriptor = options.value("descriptor")
    if not isinstance(descriptor, (int, str)):
        raise options.error("the descriptor of a filter must be a number or a word")
    made = Filter(str(options.value("name")), descriptor, options.value("value"))
    options.finish()
    return made


def _bindings(options: _Options) -> tuple[Binding, ...]:
    bindings = []
    for each in options.list("x-bindings"):
        bindings.append(Binding(each.text("exchange"), each.text("queue"), each.text("key"), each.map("arguments")))
        each.finish()
    return tuple(bindings)


def make_unique(address: Address, target: Target) -> Target:
    """The target with a "#" in its name replaced by a unique id, and created by any link, if links may create it."""
    if "#" not in address.name or address.options.get("create") == "never":
        return target
    declare = target.node_declare
    return target._replace(
        name=target.name.replace("#", str(uuid.uuid4())),
        create=frozenset([SENDER, RECEIVER]),
        node_declare=declare._replace(
            exclusive=declare.exclusive is not False, auto_delete=declare.auto_delete is not False
        ),
    )
