"""RabbitMQ's definitions (definitions.json) as exports of topology without messages, read and written.

key            what becomes of it
-------------  -----------------------------------------------------------------------------------------------
queues, exchanges, bindings   of one virtual host: see `definition_tables`
vhosts         one is chosen: that which is asked for, "/", or the only one
policies, operator_policies   set for the queues and exchanges that they apply to: see `policies`
users, permissions, parameters and so on   listed, with their number
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, BinaryIO, Final, NamedTuple
from uuid import UUID

from orjson import OPT_APPEND_NEWLINE, OPT_INDENT_2, JSONDecodeError, dumps, loads

from qstore.broker.model.arguments import ALTERNATE
from qstore.broker.model.queues.arguments import DEAD_EXCHANGE
from qstore.broker.protocols.amqp_0_9_1.arguments import client_key, exchange_name
from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.broker_records.exchange_bindings import ExchangeBinding, exchange_binding_of, general_of
from qstore.formats.broker_records.topology import (
    Binding,
    Bridge,
    Exchange,
    GeneralObject,
    Link,
    Queue,
    encode_binding,
    encode_exchange,
    encode_general,
    encode_queue,
    problem_of_new_name,
)
from qstore.formats.values import TypedMap, typed_map
from qstore.formats.wording import plural, printable
from qstore.store.importing.intake import ImportedMessage
from qstore.store.importing.ledger import LEDGER_QUEUES
from qstore.tools.interchange.definition_tables import (
    EXCHANGE_TYPES,
    MATCHES,
    OWN_EXCHANGES,
    STANDARD,
    STANDARD_PREFIX,
    Unmapped,
    queue_arguments_to_qstore,
    queue_arguments_to_rabbitmq,
)
from qstore.tools.interchange.headers_bindings import HEADERS, HeadersBindings
from qstore.tools.interchange.items import ExportHeader, InterchangeError, ItemSink, ReadExport
from qstore.tools.interchange.policies import Policies

MAX_DEFINITIONS: Final = 1 << 28  # bytes of a file
_VHOST: Final = "/"
_TOPOLOGY: Final = ("exchanges", "queues", "bindings")
_TELLING: Final = (b'"rabbit_version"', b'"rabbitmq_version"', *(f'"{key}"'.encode() for key in (*_TOPOLOGY, "vhosts")))
_SILENT: Final = frozenset(
    (
        "rabbit_version", "rabbitmq_version", "product_name", "product_version", "rabbitmq_definition_format",
        "original_vhost_name", "explanation", "metadata", "description", "default_queue_type", "vhosts", "policies",
        "operator_policies",
    )
)  # fmt: skip
_DEFAULTS: Final = frozenset(("cluster_name", "internal_cluster_id", "cluster_tags"))  # of every node's parameters


class DefinitionOptions(NamedTuple):
    """How definitions are read.

    Attributes:
        vhost: the virtual host; None for "/", or the only one.
        unmapped: gets what cannot be mapped.
    """

    vhost: str | None
    unmapped: Unmapped


def are_definitions(begin: bytes) -> bool:
    """Whether a file that begins so has definitions."""
    return b'"kind"' not in begin[:200] and any(key in begin for key in _TELLING)


# ---- reading ----


def read_definitions(stream: BinaryIO, sink: ItemSink, options: DefinitionOptions) -> ReadExport:
    """Read definitions.

    Args:
        stream: the file.
        sink: takes the items.
        options: how.

    Raises:
        InterchangeError: they are not valid.
        OSError: they cannot be read.
    """
    content = stream.read(MAX_DEFINITIONS + 1)
    if len(content) > MAX_DEFINITIONS:
        raise InterchangeError(f"the definitions have more than {MAX_DEFINITIONS:,} bytes")
    try:
        fields = loads(content)
    except JSONDecodeError as error:
        raise InterchangeError(f"these definitions are not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InterchangeError("these definitions are not a JSON object")
    options.unmapped.clear()
    reader = _Reader(fields, options.unmapped)
    vhost = reader.choose(options.vhost)
    reader.read(vhost, sink)
    software = f"RabbitMQ {fields.get('rabbitmq_version') or fields.get('rabbit_version') or ''}".strip()
    digest = sha256(content + b"\0" + vhost.encode()).hexdigest()
    return ReadExport(ExportHeader(UUID(int=0), 0, software[:100], "definitions", "rabbitmq", None), digest)


class _Reader:
    """Definitions that are being read."""

    def __init__(self, fields: dict[str, Any], unmapped: Unmapped) -> None:
        self._fields, self._unmapped = fields, unmapped
        self._lists = {key: list(self._list(key)) for key in _TOPOLOGY}

    def _list(self, key: str) -> Iterator[dict[str, Any]]:
        found = self._fields.get(key, [])
        if not isinstance(found, list):
            raise InterchangeError(f"{key} is not a list")
        for number, each in enumerate(found, 1):
            if not isinstance(each, dict):
                raise InterchangeError(f"{key}, entry {number}: this is not an object")
            for name in ("name", "vhost", "source", "destination", "routing_key"):
                if not isinstance(each.get(name, ""), str):
                    raise InterchangeError(f"{key}, entry {number}: {name} is not a text")
            if not each.get("arguments"):  # an empty one is written as [] by old versions
                each["arguments"] = {}
            if not isinstance(each["arguments"], dict):
                raise InterchangeError(f"{key}, entry {number}: the arguments are not an object")
            yield each

    def choose(self, wanted: str | None) -> str:
        """The virtual host that is read; the others are listed."""
        there = Counter(str(each.get("vhost", "")) for key in _TOPOLOGY for each in self._lists[key])
        named = [name for name in there if name]
        if wanted is not None and wanted not in there and not (not named and there):
            raise InterchangeError(
                f"there is no virtual host {wanted!r}; there are {', '.join(sorted(named)) or 'none'}"
            )
        chosen = wanted or (_VHOST if _VHOST in there or not named else named[0] if len(named) == 1 else "")
        if not chosen:
            raise InterchangeError(
                f"there are several virtual hosts ({', '.join(sorted(named))}): choose one (--vhost)"
            )
        for name in sorted(named):
            if name != chosen:
                self._unmapped.add("vhost", name, f"{plural(there[name], 'object')} of another virtual host")
        return chosen

    def read(self, vhost: str, sink: ItemSink) -> None:
        """Pass everything of a virtual host on."""
        policies = Policies(self._fields, vhost, self._unmapped)
        left_out = self._exchanges(vhost, sink, policies)
        self._queues(vhost, sink, left_out, policies)
        self._bindings(vhost, sink, left_out)
        policies.tell()
        for key, value in self._fields.items():
            if key not in _TOPOLOGY and key not in _SILENT and isinstance(value, list):
                more = [each for each in value if not (isinstance(each, dict) and str(each.get("name")) in _DEFAULTS)]
                if more:
                    self._unmapped.append(f"{key}: {len(more)} of them")

    def _of(self, key: str, vhost: str) -> Iterator[dict[str, Any]]:
        return (each for each in self._lists[key] if each.get("vhost", vhost) in (vhost, ""))

    def _exchanges(self, vhost: str, sink: ItemSink, policies: Policies) -> set[str]:
        """Returns the names of those that are left out."""
        left_out = set()
        for each in self._of("exchanges", vhost):
            name, kind = each.get("name", ""), str(each.get("type"))
            if not name or name.startswith(STANDARD_PREFIX):
                continue
            if kind not in EXCHANGE_TYPES or each.get("durable") is False:
                why = f"type {kind} is not known" if kind not in EXCHANGE_TYPES else "it is not durable"
                self._unmapped.add("exchange", name, f"{why}: it is left out, with its bindings")
                left_out.add(name)
                continue
            arguments = policies.of_exchange(name, each["arguments"])
            alternate = arguments.pop(ALTERNATE, "")
            alternate = exchange_name(alternate) if isinstance(alternate, str) else ""
            problem = problem_of_new_name(alternate) if alternate else ""
            if problem:
                self._unmapped.add("exchange", name, f"alternate exchange {alternate}: {problem}: it has none")
                alternate = ""
            if each.get("internal") is True:
                self._unmapped.add("exchange", name, "internal: clients can publish to it")
            for key, value in arguments.items():
                self._unmapped.add("exchange", name, f"{key} {value} is not known")
            exchange = Exchange(
                name, True, kind, typed_map({ALTERNATE: alternate} if alternate else {}), alternate,
                each.get("auto_delete") is True,
            )  # fmt: skip
            if self._is_valid("exchange", name, lambda exchange=exchange: encode_exchange(exchange)):
                sink.exchange(exchange)
            else:
                left_out.add(name)
        return left_out

    def _queues(self, vhost: str, sink: ItemSink, left_out: set[str], policies: Policies) -> None:
        for each in self._of("queues", vhost):
            name = each.get("name", "")
            if each.get("durable") is False or not name:
                self._unmapped.add("queue", name, "it is not durable: it is left out, with its bindings")
                left_out.add(f"queue {name}")
                continue
            declared = policies.of_queue(name, each["arguments"])
            arguments = queue_arguments_to_qstore(name, declared, self._unmapped)
            if arguments.get(DEAD_EXCHANGE) in left_out:
                text = f"{DEAD_EXCHANGE} {arguments[DEAD_EXCHANGE]} is left out: dead messages are dropped"
                self._unmapped.add("queue", name, text)
            queue = Queue(name, typed_map(arguments), "", "", each.get("auto_delete") is True)
            if self._is_valid("queue", name, lambda queue=queue: encode_queue(queue)):
                sink.queue(queue)
            else:
                left_out.add(f"queue {name}")

    def _bindings(self, vhost: str, sink: ItemSink, left_out: set[str]) -> None:
        used = {exchange_name(each.get("source", "")) for each in self._of("bindings", vhost)}
        to_exchanges = (each for each in self._of("bindings", vhost) if each.get("destination_type") == "exchange")
        used |= {exchange_name(each.get("destination", "")) for each in to_exchanges}
        kinds = {each.get("name", ""): each.get("type") for each in self._of("exchanges", vhost)}
        headers = HeadersBindings(name for name, kind in kinds.items() if kind == "headers")
        for name in sorted(used & STANDARD.keys()):  # a store may not have them yet
            sink.exchange(Exchange(name, True, STANDARD[name]))
        for each in self._of("bindings", vhost):
            source, target = exchange_name(each.get("source", "")), each.get("destination", "")
            is_exchange = each.get("destination_type") == "exchange"
            target = exchange_name(target) if is_exchange else target
            if source in left_out or (target if is_exchange else f"queue {target}") in left_out or not source:
                continue  # listed above; the default exchange has bindings by itself
            key, arguments = each.get("routing_key", ""), each["arguments"]
            shown = f"{source} -> {target} ({key})"
            if source.startswith(STANDARD_PREFIX) and source not in STANDARD:
                self._unmapped.add("binding", shown, "there is no such exchange: it is left out")
                continue
            kind = each.get("destination_type", "queue")
            if kind not in ("queue", "exchange"):
                self._unmapped.add("binding", shown, f"to a {kind} is not known: it is left out")
                continue
            if str(arguments.get("x-match", "all")) not in MATCHES:
                self._unmapped.add("binding", shown, f"x-match {arguments['x-match']} is not known: it is left out")
                continue
            try:
                table = headers.arguments(source, typed_map(arguments))
                key = key if is_exchange else headers.key(source, target, key, table)
            except (TypeError, ValueError, RecursionError) as error:
                self._unmapped.add("binding", shown, f"{error}: it is left out")
                continue
            if kind == "exchange":
                bound = ExchangeBinding(source, target, key, table)
                if self._is_valid("binding", shown, lambda bound=bound: encode_general(general_of(bound))):
                    sink.other(general_of(bound))
                continue
            binding = Binding(0, target, key, table)
            if self._is_valid("binding", shown, lambda binding=binding: encode_binding(binding)):
                sink.binding(source, binding)

    def _is_valid(self, what: str, name: str, encode: Any) -> bool:
        problem = "" if what == "binding" else problem_of_new_name(name)
        try:
            encode()
        except (BrokerRecordError, ValueError, TypeError) as error:
            problem = problem or str(error)
        if problem:
            self._unmapped.add(what, name, f"{problem}: it is left out")
        return not problem


# ---- writing ----


class DefinitionsWriter:
    """Writes topology as definitions. Messages are counted, and left out.

    Args:
        stream: takes it.
        with_passwords: without effect: links are left out.

    Attributes:
        unmapped: what cannot be mapped.
    """

    def __init__(self, stream: BinaryIO, *, with_passwords: bool = False) -> None:
        del with_passwords
        self._stream, self.unmapped = stream, Unmapped()
        self._software = ""
        self._lists: dict[str, list[dict[str, Any]]] = {key: [] for key in _TOPOLOGY}
        self._left_out: set[str] = set()
        self._headers_exchanges = {name for name, kind in STANDARD.items() if kind == HEADERS}

    def begin(self, header: ExportHeader) -> None:
        """Note who writes it."""
        self._software = header.software

    def queue(self, queue: Queue) -> None:
        """Add a queue."""
        if not self._has_name("queue", queue.name) or queue.name.startswith(LEDGER_QUEUES):
            self._left_out.add(f"queue {queue.name}")
            return
        arguments = queue_arguments_to_rabbitmq(queue.name, _plain(queue.arguments), self.unmapped)
        alternate = queue.alternate_exchange
        has_alternate = self._has_alternate("queue", queue.name, alternate)
        if has_alternate and arguments.setdefault(DEAD_EXCHANGE, alternate) != alternate:
            self.unmapped.add("queue", queue.name, f"the alternate exchange {alternate} is not known")
        self._add("queues", name=queue.name, durable=True, auto_delete=bool(queue.auto_delete), arguments=arguments)

    def exchange(self, exchange: Exchange) -> None:
        """Add an exchange."""
        name = exchange.name
        if not name or name.startswith(STANDARD_PREFIX):
            return
        if exchange.type == HEADERS:
            self._headers_exchanges.add(name)
        if name in OWN_EXCHANGES or not self._has_name("exchange", name):
            self._left_out.add(name)
            return
        if exchange.type not in EXCHANGE_TYPES:
            self.unmapped.add("exchange", name, f"type {exchange.type} is not known: it is left out, with its bindings")
            self._left_out.add(name)
            return
        for key, value in _plain(exchange.arguments).items():
            if key == ALTERNATE and value == exchange.alternate_exchange:
                continue
            self.unmapped.add("exchange", name, f"{key} {value} is not known")
        has_alternate = self._has_alternate("exchange", name, exchange.alternate_exchange)
        arguments = {ALTERNATE: exchange.alternate_exchange} if has_alternate else {}
        self._add(
            "exchanges", name=name, type=exchange.type, durable=exchange.durable,
            auto_delete=bool(exchange.auto_delete), internal=False, arguments=arguments,
        )  # fmt: skip

    def binding(self, exchange: str, binding: Binding) -> None:
        """Add a binding."""
        target = binding.queue_name
        if not exchange or exchange in self._left_out or f"queue {target}" in self._left_out:
            return
        self._bound(exchange, target, "queue", binding.key, binding.arguments)

    def _bound(self, source: str, target: str, kind: str, key: str, arguments: TypedMap) -> None:
        if source in self._headers_exchanges:
            key = client_key(key)
        found = {
            "source": source, "destination": target, "destination_type": kind, "routing_key": key,
            "arguments": _plain(arguments),
        }  # fmt: skip
        try:
            dumps(found)
        except TypeError:
            shown = f"{printable(source)} -> {printable(target)} ({printable(key)})"
            self.unmapped.add("binding", shown, "it has values that JSON does not have: it is left out")
            return
        self._add("bindings", **found)

    def other(self, general: Link | Bridge | GeneralObject) -> None:
        """Add it if it is a binding between exchanges, else list it."""
        bound = exchange_binding_of(general)
        if bound is not None:
            if not {bound.source, bound.destination} & self._left_out:
                self._bound(bound.source, bound.destination, "exchange", bound.key, bound.arguments)
            return
        self.unmapped.add(general.kind, printable(general.name or ""), "is not known")

    def branch(self, xid: bytes) -> None:
        """List it."""
        self.unmapped.append(f"transaction {xid.hex()}: definitions have no messages")

    def message(self, message: ImportedMessage) -> None:
        """Leave it out: definitions have no messages."""

    def _has_name(self, what: str, name: str) -> bool:
        try:
            name.encode()
        except UnicodeEncodeError:
            self.unmapped.add(what, printable(name), "the name is not UTF-8: it is left out, with its bindings")
            return False
        return True

    def _has_alternate(self, what: str, name: str, alternate: str | None) -> bool:
        """Whether there is an alternate exchange that can be written."""
        try:
            return bool((alternate or "").encode())
        except UnicodeEncodeError:
            self.unmapped.add(
                what, name, f"the name of the alternate exchange {printable(alternate or '')} is not UTF-8"
            )
            return False

    def _add(self, key: str, **fields: Any) -> None:
        self._lists[key].append({"vhost": _VHOST, **fields})

    def finish(self) -> None:
        """Write everything."""
        fields: Mapping[str, Any] = {
            "product_name": "qstore", "product_version": self._software, "vhosts": [{"name": _VHOST}], "users": [],
            "permissions": [], "parameters": [], "policies": [], **{key: self._lists[key] for key in _TOPOLOGY},
        }  # fmt: skip
        self._stream.write(dumps(fields, option=OPT_INDENT_2 | OPT_APPEND_NEWLINE))


def _plain(arguments: TypedMap) -> dict[str, Any]:
    return {
        name: typed.value.decode("utf-8", "replace") if isinstance(typed.value, bytes) else typed.value
        for name, typed in arguments.entries
    }
