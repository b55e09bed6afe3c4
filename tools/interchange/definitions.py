"""RabbitMQ's definitions (definitions.json) as exports of topology without messages, read and written.

key            what becomes of it
-------------  -----------------------------------------------------------------------------------------------
queues, exchanges, bindings   see "what corresponds to what"
vhosts         all are read, or the one that is chosen, which can get another name
policies, operator_policies   configuration records, without the keys that are not known, which are listed
permissions, topic_permissions   configuration records
parameters, global_parameters   configuration records; limits of virtual hosts are parameters of `vhost-limits`
users and so on   listed, with their number
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, BinaryIO, Final
from uuid import UUID

from orjson import OPT_APPEND_NEWLINE, OPT_INDENT_2, OPT_SORT_KEYS, JSONDecodeError, dumps, loads

from qstore.broker.federation.shovel import COMPONENT as SHOVEL
from qstore.broker.model.arguments import (
    ALTERNATE,
    DELAYED_TYPE,
    HASH_HEADER,
    HASH_PROPERTY,
    HISTORY_LENGTH,
    MAX_MILLISECONDS,
    MAX_PRIORITY,
)
from qstore.broker.model.configuration import Record, Values, object_of, record_of
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.exchanges.delayed import DELAYED
from qstore.broker.model.exchanges.dividing import CONSISTENT_HASH, LOCAL_RANDOM, MODULUS_HASH, RANDOM
from qstore.broker.model.exchanges.history import MAX_LENGTH, RECENT_HISTORY
from qstore.broker.model.exchanges.types import MANAGEMENT_EXCHANGES
from qstore.broker.model.parameters import MAX_VALUE
from qstore.broker.model.patterns import compile_pattern
from qstore.broker.model.policies import (
    OPERATOR_POLICY,
    POLICY,
    check_policy,
    policy_of,
    policy_record,
    recorded_policy,
)
from qstore.broker.model.queues.arguments import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    DEAD_EXCHANGE,
    DEAD_KEY,
    DEAD_STRATEGY,
    DELIVERY_LIMIT,
    EXPIRES,
    HIGHEST_PRIORITY,
    KEEP_UNREAD,
    MAX_AGE,
    MESSAGE_TTL,
    OF_STREAMS,
    OVERFLOW,
    REJECT_DEAD,
    REJECT_PUBLISH,
    SINGLE_ACTIVE,
    is_interval,
)
from qstore.broker.model.queues.due import is_brokers_own
from qstore.broker.model.queues.priority import MAX_LEVELS
from qstore.broker.model.virtual_host import LIMIT_NAMES
from qstore.broker.model.virtual_host import LIMITS as LIMITS_RECORD
from qstore.broker.protocols.amqp_0_9_1.arguments import (
    binding_arguments,
    client_key,
    exchange_name,
    is_supported,
    own_key,
)
from qstore.broker.security.permissions import PERMISSION, TOPIC_PERMISSION
from qstore.formats.broker_records.topology import (
    DEFAULT_HOST,
    GLOBAL_PARAMETER,
    HOST_KIND,
    LOCAL_KINDS,
    PARAMETER,
    Binding,
    Bridge,
    Exchange,
    ExchangeBinding,
    GeneralObject,
    Link,
    Queue,
    encode_binding,
    encode_exchange,
    encode_general,
    encode_queue,
    exchange_binding_object,
    exchange_binding_of,
    full_name,
    problem_of_new_name,
    split_name,
    without_passwords,
)
from qstore.formats.errors import BrokerRecordError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedMap, typed_map
from qstore.formats.wording import plural, printable
from qstore.store.importing.intake import ImportedMessage
from qstore.store.importing.plan import LEDGER_QUEUES
from qstore.tools.interchange.items import ExportHeader, InterchangeError, ItemSink, ReadExport

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
_LISTS: Final = {
    POLICY: "policies", OPERATOR_POLICY: "operator_policies", PERMISSION: "permissions",
    TOPIC_PERMISSION: "topic_permissions",
}  # fmt: skip
"""Kind of a configuration record -> the list of definitions with the same."""
_POLICIES: Final = {"policies": POLICY, "operator_policies": OPERATOR_POLICY}
_PERMISSIONS: Final = {"permissions": PERMISSION, "topic_permissions": TOPIC_PERMISSION}
_PARTS: Final = {PERMISSION: ("configure", "write", "read"), TOPIC_PERMISSION: ("write", "read")}
_CONFIGURED: Final = (*_POLICIES, *_PERMISSIONS, "parameters")
_LIMITS: Final = "vhost-limits"
"""The component whose parameters are the limits of virtual hosts."""
_DEFAULTS: Final = frozenset(("cluster_name", "internal_cluster_id", "cluster_tags"))  # of every node's parameters


class DefinitionOptions(NamedTuple):
    """How definitions are read.

    Attributes:
        vhost: the virtual host to read; None for all.
        unmapped: gets what cannot be mapped.
        into: the name that it gets; None for its own.
    """

    vhost: str | None
    unmapped: Unmapped
    into: str | None = None


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
    hosts = reader.choose(options.vhost, options.into)
    for vhost, into in hosts.items():
        reader.read(vhost, into, sink)
    reader.read_rest(sink)
    software = f"RabbitMQ {fields.get('rabbitmq_version') or fields.get('rabbit_version') or ''}".strip()
    digest = sha256(content + b"\0" + dumps(hosts, option=OPT_SORT_KEYS)).hexdigest()
    return ReadExport(ExportHeader(UUID(int=0), 0, software[:100], "definitions", "rabbitmq", None), digest)


class _Reader:
    """Definitions that are being read."""

    def __init__(self, fields: dict[str, Any], unmapped: Unmapped) -> None:
        self._fields, self._unmapped = fields, unmapped
        self._noticed: set[str] = set()
        self._lists = {key: list(self._list(key)) for key in (*_TOPOLOGY, *_CONFIGURED, "vhosts")}
        self._default = _VHOST  # the virtual host of what names none

    def _list(self, key: str) -> Iterator[dict[str, Any]]:
        found = self._fields.get(key, [])
        if not isinstance(found, list):
            raise InterchangeError(f"{key} is not a list")
        for number, each in enumerate(found, 1):
            if not isinstance(each, dict):
                raise InterchangeError(f"{key}, entry {number}: this is not an object")
            for name in ("name", "vhost", "source", "destination", "routing_key") if key in _TOPOLOGY else ("vhost",):
                if not isinstance(each.get(name, ""), str):
                    raise InterchangeError(f"{key}, entry {number}: {name} is not a text")
            if not each.get("arguments"):  # an empty one is written as [] by old versions
                each["arguments"] = {}
            if not isinstance(each["arguments"], dict):
                raise InterchangeError(f"{key}, entry {number}: the arguments are not an object")
            yield each

    def choose(self, wanted: str | None, into: str | None) -> dict[str, str]:
        """The virtual hosts that are read, and the names that they get; what is of others is listed."""
        objects = Counter(str(each.get("vhost") or "") for key in _TOPOLOGY for each in self._lists[key])
        objects.update(str(each.get("vhost") or "") for key in _CONFIGURED for each in self._lists[key])
        named = {name for name in objects if name} | {str(each.get("name")) for each in self._lists["vhosts"]}
        if not named:
            self._default = wanted or _VHOST
        if objects.get("") or not named:
            named.add(self._default)
        if wanted is not None and wanted not in named:
            raise InterchangeError(f"there is no virtual host {wanted!r}; there are {', '.join(sorted(named))}")
        chosen = sorted(named) if wanted is None else [wanted]
        if into is not None and len(chosen) > 1:
            raise InterchangeError(
                f"there are several virtual hosts ({', '.join(sorted(named))}): choose one (--vhost), for --to-vhost"
            )
        for name in sorted(named.difference(chosen)):
            if objects[name]:
                self._unmapped.add("vhost", name, f"{plural(objects[name], 'object')} of another virtual host")
        hosts: dict[str, str] = {}
        for name in chosen:
            problem = problem_of_new_name(into or name)
            if problem and into:
                raise InterchangeError(f"a virtual host cannot be named {printable(into)}: {problem}")
            if problem:
                self._unmapped.add("vhost", printable(name), f"{problem}: it is left out, with what it has")
            else:
                hosts[name] = into or name
        return hosts

    def read(self, vhost: str, into: str, sink: ItemSink) -> None:
        """Pass everything of a virtual host on, as of another one."""
        self._host(vhost, into, sink)
        self._unmapped.host = "" if vhost == self._default else vhost
        to_host = _ToHost(sink, into)
        left_out = self._exchanges(vhost, to_host)
        self._queues(vhost, to_host, left_out)
        self._bindings(vhost, to_host, left_out)
        self._policies(vhost, into, sink)
        self._permissions(vhost, into, sink)
        self._parameters(vhost, into, sink)
        self._unmapped.host = ""

    def read_rest(self, sink: ItemSink) -> None:
        """Pass on what is of no virtual host, and list what is not known."""
        for each in self._list("global_parameters"):
            if str(each.get("name")) in _DEFAULTS:
                continue
            self._parameter("global parameter", Record(GLOBAL_PARAMETER, (str(each.get("name")),)), each, sink)
        for key, value in self._fields.items():
            is_known = key in (*_TOPOLOGY, *_CONFIGURED, "global_parameters") or key in _SILENT
            if isinstance(value, list) and value and not is_known:
                self._unmapped.append(f"{key}: {len(value)} of them")

    def _host(self, vhost: str, into: str, sink: ItemSink) -> None:
        if into == DEFAULT_HOST:
            return
        about = next((each for each in self._lists["vhosts"] if each.get("name") == vhost), {})
        metadata = about.get("metadata")
        found = {**about, **metadata} if isinstance(metadata, dict) else about
        tags = found.get("tags")
        values: dict[str, str | int | bool] = {}
        if isinstance(found.get("description"), str) and found["description"]:
            values["description"] = found["description"]
        if isinstance(tags, list) and tags and all(isinstance(tag, str) for tag in tags):
            values["tags"] = ",".join(tags)
        sink.other(object_of(Record(HOST_KIND, (into,)), values))

    def _parameters(self, vhost: str, into: str, sink: ItemSink) -> None:
        for each in self._of("parameters", vhost):
            component, name = str(each.get("component")), str(each.get("name"))
            if component not in (_LIMITS, SHOVEL):
                self._unmapped.add("parameter", printable(name), f"component {component} is not known: it is left out")
                continue
            if component == SHOVEL:
                self._parameter("parameter", Record(PARAMETER, (into, component, name)), each, sink)
                continue
            value = each.get("value")
            limits = {
                key: limit
                for key, limit in (value.items() if isinstance(value, dict) else ())
                if key in LIMIT_NAMES and type(limit) is int and 0 <= limit < 1 << 32
            }
            if limits:
                sink.other(object_of(Record(HOST_KIND, (into, LIMITS_RECORD)), limits))
            given = value if isinstance(value, dict) else {"": value}
            unlimited = {key for key, limit in given.items() if key in LIMIT_NAMES and type(limit) is int and limit < 0}
            for key in given.keys() - limits.keys() - unlimited:
                self._unmapped.append(
                    printable(f'limits of virtual host "{printable(vhost)}": {key} {given[key]} is not known')
                )

    def _parameter(self, what: str, record: Record, given: dict[str, Any], sink: ItemSink) -> None:
        problems = [problem_of_new_name(part) for part in record.name]
        value = dumps(given.get("value")).decode()
        if len(value) > MAX_VALUE:
            problems.append(f"its value has more than {MAX_VALUE:,} bytes")
        if any(problems) or "value" not in given:
            why = next(filter(None, problems), "it has no value")
            self._unmapped.add(what, printable(record.name[-1]), f"{why}: it is left out")
            return
        sink.other(object_of(record, {"value": value} | ({"user": ""} if record.kind == PARAMETER else {})))

    def _policies(self, vhost: str, into: str, sink: ItemSink) -> None:
        """Pass policies on, as configuration records, without the keys that are not known."""
        for key, kind in _POLICIES.items():
            for each in self._of(key, vhost):
                title, name = key[:-3].replace("_", " ") + "y", str(each.get("name"))
                given = {field: value for field, value in each.items() if field != "arguments"}
                try:
                    policy = policy_of(into, name, given)
                    definition: dict[str, Any] = {}
                    for part, value in policy.definition.items():
                        try:
                            check_policy(policy._replace(definition={part: value}), kind, self._noticed)
                        except InvalidArgumentError:
                            if not definition:  # otherwise the policy itself was valid
                                check_policy(policy._replace(definition={"max-length": 1}), kind, self._noticed)
                            self._unmapped.add(title, name, f"{part} {value} is not known")
                        else:
                            definition[part] = value
                    if definition:
                        sink.other(policy_record(policy._replace(definition=definition), kind))
                    else:
                        self._unmapped.add(title, name, "it sets nothing that is known: it is left out")
                except InvalidArgumentError as error:
                    why = str(error).removeprefix(f'{title} "{printable(name)}": ')
                    self._unmapped.add(title, name, f"{why}: it is left out")

    def _permissions(self, vhost: str, into: str, sink: ItemSink) -> None:
        """Pass permissions on, as configuration records."""
        for key, kind in _PERMISSIONS.items():
            for each in self._of(key, vhost):
                name = [each.get("user"), into, *([each.get("exchange")] if kind == TOPIC_PERMISSION else [])]
                patterns = {part: each.get(part) for part in _PARTS[kind]}
                try:
                    for part, pattern in patterns.items():
                        compile_pattern(part, pattern)  # type: ignore[arg-type]
                    if not all(isinstance(part, str) and part for part in name):
                        raise InvalidArgumentError("it has no user, or no exchange")
                except InvalidArgumentError as error:
                    what = key.removesuffix("s").replace("_", " ")
                    self._unmapped.add(what, printable(str(name[0])), f"{error}: it is left out")
                    continue
                record = Record(kind, tuple(str(part) for part in name))
                sink.other(object_of(record, {part: str(pattern) for part, pattern in patterns.items()}))

    def _of(self, key: str, vhost: str) -> Iterator[dict[str, Any]]:
        return (each for each in self._lists[key] if (each.get("vhost") or self._default) == vhost)

    def _exchanges(self, vhost: str, sink: _ToHost) -> set[str]:
        """Returns the names of those that are left out."""
        left_out = set()
        for each in self._of("exchanges", vhost):
            name, kind = each.get("name", ""), str(each.get("type"))
            if not name or name.startswith(STANDARD_PREFIX):
                continue
            is_known = routing_type(kind, each["arguments"]) in _ROUTING_TYPES
            if not is_known or each.get("durable") is False:
                why = "it is not durable" if is_known else f"type {kind} is not known"
                self._unmapped.add("exchange", name, f"{why}: it is left out, with its bindings")
                left_out.add(name)
                continue
            arguments = dict(each["arguments"])
            alternate = arguments.pop(ALTERNATE, "")
            alternate = exchange_name(alternate) if isinstance(alternate, str) else ""
            problem = problem_of_new_name(alternate) if alternate else ""
            if problem:
                self._unmapped.add("exchange", name, f"alternate exchange {alternate}: {problem}: it has none")
                alternate = ""
            if each.get("internal") is True:
                self._unmapped.add("exchange", name, "internal: clients can publish to it")
            kept = {each: arguments.pop(each) for each in _OF_EXCHANGES if each in arguments}
            length = kept.get(HISTORY_LENGTH)
            if isinstance(length, int) and length > MAX_LENGTH:
                self._unmapped.add("exchange", name, f"{HISTORY_LENGTH} {length}: at most {MAX_LENGTH} are kept")
                kept[HISTORY_LENGTH] = MAX_LENGTH
            for key, value in arguments.items():
                self._unmapped.add("exchange", name, f"{key} {value} is not known")
            if alternate:
                kept[ALTERNATE] = alternate
            exchange = Exchange(
                name, True, kind, typed_map(kept), alternate,
                each.get("auto_delete") is True,
            )  # fmt: skip
            if self._is_valid("exchange", name, lambda exchange=exchange: encode_exchange(exchange)):
                sink.exchange(exchange)
            else:
                left_out.add(name)
        return left_out

    def _queues(self, vhost: str, sink: _ToHost, left_out: set[str]) -> None:
        for each in self._of("queues", vhost):
            name = each.get("name", "")
            if each.get("durable") is False or not name:
                self._unmapped.add("queue", name, "it is not durable: it is left out, with its bindings")
                left_out.add(f"queue {name}")
                continue
            if name.startswith(STANDARD_PREFIX):  # a server has chosen the name
                why = f"names beginning with {STANDARD_PREFIX} are reserved"
                self._unmapped.add("queue", name, f"{why}: it is left out, with its bindings")
                left_out.add(f"queue {name}")
                continue
            arguments = queue_arguments_to_qstore(name, each["arguments"], self._unmapped)
            if arguments.get(DEAD_EXCHANGE) in left_out:
                text = f"{DEAD_EXCHANGE} {arguments[DEAD_EXCHANGE]} is left out: dead messages are dropped"
                self._unmapped.add("queue", name, text)
            queue = Queue(name, typed_map(arguments), "", "", each.get("auto_delete") is True)
            if self._is_valid("queue", name, lambda queue=queue: encode_queue(queue)):
                sink.queue(queue)
            else:
                left_out.add(f"queue {name}")

    def _bindings(self, vhost: str, sink: _ToHost, left_out: set[str]) -> None:
        used = {exchange_name(each.get("source", "")) for each in self._of("bindings", vhost)}
        to_exchanges = (each for each in self._of("bindings", vhost) if each.get("destination_type") == "exchange")
        used |= {exchange_name(each.get("destination", "")) for each in to_exchanges}
        kinds = {
            each.get("name", ""): routing_type(each.get("type"), each["arguments"])
            for each in self._of("exchanges", vhost)
        }
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
                if self._is_valid("binding", shown, lambda bound=bound: encode_general(exchange_binding_object(bound))):
                    sink.bound(bound)
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


class _ToHost:
    """Passes topology on, as of a virtual host.

    Args:
        sink: takes it.
        host: the virtual host.
    """

    def __init__(self, sink: ItemSink, host: str) -> None:
        self._sink, self._host = sink, host

    def _full(self, name: str) -> str:
        return full_name(self._host, name)

    def queue(self, queue: Queue) -> None:
        """A queue."""
        self._sink.queue(replace(queue, name=self._full(queue.name)))

    def exchange(self, exchange: Exchange) -> None:
        """An exchange."""
        alternate = self._full(exchange.alternate_exchange or "")
        self._sink.exchange(replace(exchange, name=self._full(exchange.name), alternate_exchange=alternate))

    def binding(self, exchange: str, binding: Binding) -> None:
        """A binding."""
        self._sink.binding(self._full(exchange), replace(binding, queue_name=self._full(binding.queue_name)))

    def bound(self, bound: ExchangeBinding) -> None:
        """A binding between exchanges."""
        full = bound._replace(source=self._full(bound.source), destination=self._full(bound.destination))
        self._sink.other(exchange_binding_object(full))


# ---- writing ----


class DefinitionsWriter:
    """Writes topology as definitions. Messages are counted, and left out.

    Args:
        stream: takes it.
        with_passwords: whether to write the passwords in the URIs of parameters.

    Attributes:
        unmapped: what cannot be mapped.
        hidden: the number of records whose passwords are left out.
    """

    def __init__(self, stream: BinaryIO, *, with_passwords: bool = False) -> None:
        self._stream, self._with_passwords, self.unmapped, self.hidden = stream, with_passwords, Unmapped(), 0
        self._software = ""
        keys = (*_LISTS.values(), "parameters", "global_parameters", *_TOPOLOGY)
        self._lists: dict[str, list[dict[str, Any]]] = {key: [] for key in keys}
        self._vhosts: dict[str, dict[str, Any]] = {_VHOST: {}}
        self._left_out: set[str] = set()
        self._headers_exchanges = {name for name, kind in STANDARD.items() if kind == HEADERS}

    def begin(self, header: ExportHeader) -> None:
        """Note who writes it."""
        self._software = header.software

    def queue(self, queue: Queue) -> None:
        """Add a queue."""
        vhost, name = split_name(queue.name)
        if not self._has_name("queue", queue.name) or is_brokers_own(name) or name.startswith(LEDGER_QUEUES):
            self._left_out.add(f"queue {queue.name}")
            return
        arguments = queue_arguments_to_rabbitmq(printable(queue.name), _plain(queue.arguments), self.unmapped)
        has_alternate = self._has_alternate("queue", queue.name, queue.alternate_exchange)
        alternate = split_name(queue.alternate_exchange or "")[1]
        if has_alternate and arguments.setdefault(DEAD_EXCHANGE, alternate) != alternate:
            self.unmapped.add("queue", printable(queue.name), f"the alternate exchange {alternate} is not known")
        self._add("queues", vhost, name=name, durable=True, auto_delete=bool(queue.auto_delete), arguments=arguments)

    def exchange(self, exchange: Exchange) -> None:
        """Add an exchange."""
        (vhost, name), shown = split_name(exchange.name), printable(exchange.name)
        self._vhosts.setdefault(vhost, {})
        if not name or name.startswith(STANDARD_PREFIX):
            if exchange.type == HEADERS:
                self._headers_exchanges.add(exchange.name)
            return
        if routing_type(exchange.type, _plain(exchange.arguments)) == HEADERS:
            self._headers_exchanges.add(exchange.name)
        if name in OWN_EXCHANGES or not self._has_name("exchange", exchange.name):
            self._left_out.add(exchange.name)
            return
        if exchange.type not in EXCHANGE_TYPES:
            why = f"type {exchange.type} is not known: it is left out, with its bindings"
            self.unmapped.add("exchange", shown, why)
            self._left_out.add(exchange.name)
            return
        alternate = split_name(exchange.alternate_exchange or "")[1]
        for key, value in _plain(exchange.arguments).items():
            if (key == ALTERNATE and value == alternate) or key in _OF_EXCHANGES:
                continue
            self.unmapped.add("exchange", shown, f"{key} {value} is not known")
        arguments = {key: value for key, value in _plain(exchange.arguments).items() if key in _OF_EXCHANGES}
        if self._has_alternate("exchange", exchange.name, exchange.alternate_exchange):
            arguments[ALTERNATE] = alternate
        self._add(
            "exchanges", vhost, name=name, type=exchange.type, durable=exchange.durable,
            auto_delete=bool(exchange.auto_delete), internal=False,
            arguments=arguments,
        )  # fmt: skip

    def binding(self, exchange: str, binding: Binding) -> None:
        """Add a binding."""
        target = binding.queue_name
        if not exchange or exchange in self._left_out or f"queue {target}" in self._left_out:
            return
        self._bound(exchange, target, "queue", binding.key, binding.arguments)

    def _bound(self, source: str, target: str, kind: str, key: str, arguments: TypedMap) -> None:
        vhost, local = split_name(source)
        if source in self._headers_exchanges or STANDARD.get(local) == HEADERS:
            key = client_key(key)
        found = {
            "source": local, "destination": split_name(target)[1], "destination_type": kind, "routing_key": key,
            "arguments": _plain(arguments),
        }  # fmt: skip
        try:
            dumps(found)
        except TypeError:
            shown = f"{printable(source)} -> {printable(target)} ({printable(key)})"
            self.unmapped.add("binding", shown, "it has values that JSON does not have: it is left out")
            return
        self._add("bindings", vhost, **found)

    def other(self, general: Link | Bridge | GeneralObject) -> None:
        """Add it if it is a binding between exchanges or a configuration record, else list it."""
        bound = exchange_binding_of(general)
        if bound is not None:
            if not {bound.source, bound.destination} & self._left_out:
                self._bound(bound.source, bound.destination, "exchange", bound.key, bound.arguments)
            return
        if isinstance(general, GeneralObject):
            if general.kind in LOCAL_KINDS:
                return
            shown = general if self._with_passwords else without_passwords(general)
            assert isinstance(shown, GeneralObject)
            if self._configured(shown):
                self.hidden += shown != general
                return
            self.unmapped.add(general.kind, printable(general.name), "is not known")
            return
        kind = "link" if isinstance(general, Link) else "bridge"
        self.unmapped.add(kind, printable(general.name or ""), "definitions have no links and bridges: it is left out")

    def _configured(self, general: GeneralObject) -> bool:
        """Add a configuration record. Returns False if it is not one, or not valid."""
        found = record_of(general)
        if found is None:
            return False
        (kind, name), values = found
        if kind == HOST_KIND:
            self._host(name, values)
        elif kind in (POLICY, OPERATOR_POLICY) and len(name) == 2:
            policy = recorded_policy(name, values)
            self._add(
                _LISTS[kind], policy.host, name=policy.name, pattern=policy.pattern, priority=policy.priority,
                definition=dict(policy.definition), **{"apply-to": policy.apply_to},
            )  # fmt: skip
        elif kind in _PARTS and len(name) > 1:
            exchange = {"exchange": name[2]} if len(name) > 2 else {}
            self._add(_LISTS[kind], name[1], user=name[0], **exchange, **values)
        elif kind == PARAMETER and len(name) == 3:
            self._add("parameters", name[0], component=name[1], name=name[2], value=_loaded(values))
        elif kind == GLOBAL_PARAMETER:
            self._lists["global_parameters"].append({"name": name[0], "value": _loaded(values)})
        else:
            return False
        return True

    def _host(self, name: tuple[str, ...], values: Values) -> None:
        if name[1:] == (LIMITS_RECORD,):
            self._add("parameters", name[0], component=_LIMITS, name=LIMITS_RECORD, value=dict(values))
        elif len(name) == 1:
            about = self._vhosts.setdefault(name[0], {})
            about["description"] = str(values.get("description") or "")
            about["tags"] = [each for each in str(values.get("tags") or "").split(",") if each]

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

    def _add(self, key: str, vhost: str, **fields: Any) -> None:
        self._vhosts.setdefault(vhost, {})
        self._lists[key].append({"vhost": vhost, **fields})

    def finish(self) -> None:
        """Write everything."""
        fields: Mapping[str, Any] = {
            "product_name": "qstore", "product_version": self._software, "users": [],
            "vhosts": [{"name": name, **about} for name, about in sorted(self._vhosts.items())], **self._lists,
        }  # fmt: skip
        self._stream.write(dumps(fields, option=OPT_INDENT_2 | OPT_APPEND_NEWLINE))


def _loaded(values: Values) -> Any:
    try:
        return loads(str(values.get("value")))
    except JSONDecodeError:
        return None


def _plain(arguments: TypedMap) -> dict[str, Any]:
    return {
        name: typed.value.decode("utf-8", "replace") if isinstance(typed.value, bytes) else typed.value
        for name, typed in arguments.entries
    }


# ---- what corresponds to what ----
#
#     queue, RabbitMQ                     queue, qstore
#     ----------------------------------  ---------------------------------------------------------------------------
#     x-max-length, x-max-length-bytes,   the same; from qpid.max_count, qpid.max_size and qpid.policy_type, if the
#     x-overflow                          queue was declared with these: ring is drop-head, reject is reject-publish
#     x-message-ttl, x-expires,           the same
#     x-single-active-consumer
#     x-max-priority                      the same; from qpid.priorities, which is one more
#     x-dead-letter-exchange,             the same; an alternate exchange is written as x-dead-letter-exchange, if there
#     x-dead-letter-routing-key,          is no other; at-least-once for quorum queues with reject-publish
#     x-dead-letter-strategy
#     x-queue-type: classic, quorum,      the same, with x-delivery-limit, and x-max-age and the like; of other types, a
#     stream                              note says what they lose
#     x-queue-mode, x-queue-version,      the same, without effect: where and how a queue is kept does not change what
#     x-queue-master-locator              it does
#     other arguments of placement        nothing
#
#     exchange: alternate-exchange        the same, and the alternate exchange
#     exchange types direct, topic,       the same
#     fanout, headers
#     binding from an exchange to a       the same; x-match is all or any
#     queue, or to an exchange
#     exchange amq.headers                amq.match, which is the same one
#
# So what clients of RabbitMQ declare again is what is there.
#
# Everything else is listed as not known by the other side. Sources: RabbitMQ documentation, "Schema Definition Export
# and Import", "Queue Length Limit", "Priority Queue Support", "Dead Letter Exchanges", "Alternate Exchanges"; for the
# other side see `broker/model/queues/arguments`.

LIMITS: Final = {"x-max-length": "qpid.max_count", "x-max-length-bytes": "qpid.max_size"}
OVERFLOWS: Final = {"drop-head": "ring", "reject-publish": "reject"}
_CLASSIC: Final = "classic"
_QUORUM: Final = "quorum"
_STREAM: Final = "stream"
_TYPE: Final = "x-queue-type"
TIMES: Final = {MESSAGE_TTL: 0, EXPIRES: 1}
"""Arguments with a time in milliseconds, and their minimum."""
WITHOUT_EFFECT: Final = (_TYPE, "x-queue-mode", "x-queue-version", "x-queue-master-locator")
DECLARED: Final = (
    *LIMITS, OVERFLOW, HIGHEST_PRIORITY, SINGLE_ACTIVE, *TIMES, DEAD_EXCHANGE, DEAD_KEY, DEAD_STRATEGY,
    DELIVERY_LIMIT, *OF_STREAMS, *WITHOUT_EFFECT,
)  # fmt: skip
"""Arguments that a queue keeps as it was declared with them."""
FLOW_STOPS: Final = {"x-max-length": "qpid.flow_stop_count", "x-max-length-bytes": "qpid.flow_stop_size"}
PRIORITIES: Final = ("qpid.priorities", "x-qpid-priorities")
_MAX_NAME: Final = 255  # bytes
PLACEMENT: Final = frozenset(
    (
        *WITHOUT_EFFECT[1:], "x-queue-leader-locator", "x-quorum-initial-group-size", "x-quorum-target-group-size",
        "x-initial-cluster-size", "x-initial-group-size", "x-deliver-limit", "x-stream-filter-size-bytes",
    )
)  # fmt: skip
JOURNAL: Final = frozenset(
    (
        "qpid.file_count", "qpid.file_size", "qpid.auto_expand", "qpid.auto_expand_max_jfiles", "qpid.max_journal_size",
        "qpid.compress", "qpid.paging", "qpid.max_pages_loaded", "qpid.page_factor",
    )
)  # fmt: skip
"""Likewise, the other way round."""
_OF_PLUGINS: Final = (CONSISTENT_HASH, LOCAL_RANDOM, MODULUS_HASH, RANDOM, RECENT_HISTORY)
_ROUTING_TYPES: Final = ("direct", "topic", "fanout", "headers", *_OF_PLUGINS)
EXCHANGE_TYPES: Final = frozenset((*_ROUTING_TYPES, DELAYED))
_OF_EXCHANGES: Final = (DELAYED_TYPE, HASH_HEADER, HASH_PROPERTY, HISTORY_LENGTH)
"""Arguments of exchanges that both sides have."""
OWN_EXCHANGES: Final = frozenset(MANAGEMENT_EXCHANGES)
"""Those of this broker's management."""
STANDARD_PREFIX: Final = "amq."
STANDARD: Final = {"amq.direct": "direct", "amq.topic": "topic", "amq.fanout": "fanout", "amq.match": "headers"}
"""The exchanges that both sides have from the beginning, and their types."""
MATCHES: Final = frozenset(("all", "any"))


class Unmapped(list[str]):
    """What cannot be mapped: one text each, in the order in which it was found.

    Attributes:
        host: the virtual host that objects are in; empty for the default one.
    """

    host = ""

    def add(self, what: str, name: str, text: str) -> None:
        """Something of an object."""
        where = f' of virtual host "{self.host}"' if self.host else ""
        self.append(printable(f'{what} "{name}"{where}: {text}'))


def check_mapped(unmapped: Unmapped, where: str, *, strict: bool) -> None:
    """Raise InterchangeError if something cannot be mapped, and that is not accepted."""
    if strict and unmapped:
        more = f", and {len(unmapped) - 1} more" if len(unmapped) > 1 else ""
        raise InterchangeError(f"{where}: cannot be mapped: {unmapped[0]}{more}; without --strict all are listed")


def queue_arguments_to_qstore(name: str, given: Mapping[str, Any], unmapped: Unmapped) -> dict[str, Any]:
    """The arguments of a queue of RabbitMQ."""
    kind = given.get(_TYPE, _CLASSIC)
    arguments = {key: given[key] for key in DECLARED if _is_declared(key, given.get(key))}
    if kind not in (_CLASSIC, _QUORUM, _STREAM):
        unmapped.add("queue", name, f"{_TYPE} {kind}: it is a durable queue, without replicas")
    if kind != _STREAM:
        arguments = {key: value for key, value in arguments.items() if key not in OF_STREAMS}
    if arguments.get(_TYPE) != _QUORUM:
        arguments.pop(DELIVERY_LIMIT, None)
    overflow = given.get(OVERFLOW, "drop-head")
    if OVERFLOW in given and OVERFLOW not in arguments:
        unmapped.add("queue", name, f"{OVERFLOW} {overflow}: publishers are refused instead")
        arguments[OVERFLOW] = "reject-publish"
    if DEAD_EXCHANGE in arguments:
        arguments[DEAD_EXCHANGE] = exchange_name(arguments[DEAD_EXCHANGE])
    else:
        arguments.pop(DEAD_KEY, None)
    if arguments.get(DEAD_STRATEGY) == AT_LEAST_ONCE and not (
        kind == _QUORUM and arguments.get(OVERFLOW) == REJECT_PUBLISH and DEAD_EXCHANGE in arguments
    ):
        arguments[DEAD_STRATEGY] = AT_MOST_ONCE  # as RabbitMQ does it
    for key, value in given.items():
        if key not in arguments and key not in PLACEMENT and key != _TYPE:
            unmapped.add("queue", name, f"{key} {value} is not known")
    return arguments


def queue_arguments_to_rabbitmq(name: str, given: Mapping[str, Any], unmapped: Unmapped) -> dict[str, Any]:
    """The arguments of a queue of qstore or qpidd."""
    arguments: dict[str, Any] = {}
    rest = {key: value for key, value in given.items() if key not in JOURNAL}
    declared = {key: rest.pop(key) for key in DECLARED if _is_declared(key, rest.get(key))}
    for key, own in LIMITS.items():
        value = rest.pop(own, None)
        if value:
            if _is_count(value):
                arguments[key] = value
            else:
                unmapped.add("queue", name, f"{own} {value} is not a number")
    policy = str(rest.pop("qpid.policy_type", "reject"))
    for key, stop in FLOW_STOPS.items():
        if policy == "reject" and key in arguments and rest.get(stop) == 0:
            del rest[stop]  # publishers are refused at the limit, and not stopped before
    if arguments:
        overflow = {own: key for key, own in OVERFLOWS.items()}.get(policy)
        if overflow is None:
            unmapped.add("queue", name, f"qpid.policy_type {policy}: publishers are refused instead")
        arguments["x-overflow"] = overflow or "reject-publish"
    for key in PRIORITIES:
        levels: Any = rest.get(key)
        if _is_count(levels) and levels > 1:
            arguments[HIGHEST_PRIORITY] = min(levels, MAX_LEVELS) - 1
            del rest[key]
    for key, value in rest.items():
        unmapped.add("queue", name, f"{key} {value} is not known")
    return arguments | declared


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value.encode("utf-8", "surrogatepass")) <= _MAX_NAME


def _is_time(key: str, value: object) -> bool:
    return type(value) is int and TIMES[key] <= value <= MAX_MILLISECONDS


def _is_declared(key: str, value: object) -> bool:
    """Whether this is an argument of RabbitMQ that the broker has accepted."""
    if key == OVERFLOW:
        return isinstance(value, str) and value in (*OVERFLOWS, REJECT_DEAD)
    if key in WITHOUT_EFFECT:
        return is_supported(key, value)
    if key == SINGLE_ACTIVE:
        return isinstance(value, bool)
    if key == HIGHEST_PRIORITY:
        return type(value) is int and 0 <= value <= MAX_PRIORITY
    if key in (DEAD_EXCHANGE, DEAD_KEY):
        return _is_name(value)
    if key == DEAD_STRATEGY:
        return value in (AT_MOST_ONCE, AT_LEAST_ONCE)
    if key == DELIVERY_LIMIT:
        return type(value) is int and -1 <= value < 1 << 32
    if key in (MAX_AGE, KEEP_UNREAD):
        return is_interval(key, value)
    return _is_time(key, value) if key in TIMES else _is_count(value) and value != 0


# ---- bindings to headers exchanges ----
#
# x-match    "all" if it is not given
# key        bindings of one queue with one key and different arguments are different ones: the first one has that
#            key, and the others get keys of their own (`broker.protocols.amqp_0_9_1.headers_keys`)

HEADERS: Final = "headers"


def routing_type(kind: object, arguments: Mapping[str, Any]) -> object:
    """The type as which an exchange of a type, with these arguments, routes."""
    return arguments.get(DELAYED_TYPE) if kind == DELAYED else kind


class HeadersBindings:
    """The bindings of one file.

    Args:
        exchanges: names of the headers exchanges in it.
    """

    def __init__(self, exchanges: Iterable[str]) -> None:
        self._exchanges = {"amq.match", *exchanges}
        self._first: dict[tuple[str, str, str], TypedMap] = {}

    def arguments(self, exchange: str, given: TypedMap) -> TypedMap:
        """The arguments of a binding to an exchange. Raises InvalidArgumentError if `x-match` is not valid."""
        return binding_arguments(HEADERS if exchange in self._exchanges else "", given)

    def key(self, exchange: str, queue: str, key: str, arguments: TypedMap) -> str:
        """The key of a queue's binding to an exchange, with the arguments that it has here."""
        if exchange not in self._exchanges:
            return key
        first = self._first.setdefault((exchange, queue, key), arguments)
        return key if first == arguments else own_key(key, arguments)
