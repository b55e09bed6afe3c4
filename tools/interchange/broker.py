"""Exports from a running broker: its durable topology, from its management agent, and the messages of its queues.

Messages are browsed, and stay; or taken: they are acknowledged when the file is complete and synced, so that a kill
leaves them in the broker. Those that others have acquired, and those of branches in doubt, are not seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from qstore.broker.client import Connection, Empty, Message, MessagingError, Receiver, Sender, Session, SessionError
from qstore.broker.client.address import queue_address
from qstore.broker.client.message import SUBJECT, TIMESTAMP
from qstore.broker.management.console import AgentError, Console, Data
from qstore.broker.management.objects.broker import HOST_PROPERTY
from qstore.broker.model.arguments import ALTERNATE, as_text
from qstore.broker.model.configuration import Record, object_of, record_of
from qstore.broker.model.exchanges.types import STANDARD_EXCHANGES
from qstore.broker.model.policies import OPERATOR_POLICY, POLICY, Policy, policy_record, recorded_policy
from qstore.broker.model.queues.due import is_brokers_own
from qstore.broker.model.virtual_host import LIMITS
from qstore.broker.protocols.amqp_0_9_1.arguments import exchange_name
from qstore.broker.protocols.amqp_0_10.message import as_transfer
from qstore.broker.protocols.stored_messages import restore_message
from qstore.broker.security.permissions import PERMISSION, TOPIC_PERMISSION
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, MESSAGE_PROPERTIES, decode_struct
from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.broker_records.amqp_0_9_1_messages import MARK
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, frame_message, header_size, header_structs
from qstore.formats.broker_records.topology import (
    CONFIGURATION_KINDS,
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
    exchange_binding_object,
    exchange_binding_of,
    full_name,
    split_name,
)
from qstore.formats.errors import BrokerRecordError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import MAP, TypedMap, TypedValue, typed_map
from qstore.formats.wording import printable
from qstore.store.importing.intake import ImportedMessage, Intake
from qstore.store.importing.plan import LEDGER_QUEUES, PastImport
from qstore.store.journal.recovery import LIVE
from qstore.tools.console.amounts import reference
from qstore.tools.console.text import sentence
from qstore.tools.interchange.exporting import ExportSelection
from qstore.tools.interchange.items import ExportWriter, InterchangeError, ItemSink
from qstore.tools.messaging import Pace

_PREFETCH: Final = 1000
_ONWARD: Final = "exchange_binding"
_CONFIGURED: Final = {
    "virtual_host": (), "policy": (), "permission": ("configure", "write", "read"),
    "topicPermission": ("write", "read"), "parameter": (), "globalParameter": (),
}  # fmt: skip
"""Class of management -> the expressions of its objects."""


class BrokerExport:
    """The export of a running broker.

    Args:
        connect: opens a connection to a virtual host of it.
        selection: what is exported.
        take: whether messages are removed, by `taken`.

    Attributes:
        counts: queue -> number of messages written.
    """

    def __init__(self, connect: Callable[[str], Connection], selection: ExportSelection, *, take: bool) -> None:
        self._selection, self._take, self._connect = selection, take, connect
        self._connections = {DEFAULT_HOST: connect(DEFAULT_HOST)}
        self._sessions: dict[str, Session] = {}
        with Console(self._connections[DEFAULT_HOST]) as console:
            objects = {kind: list(console.query(kind)) for kind in ("queue", "exchange", "binding")}
            known = {each.name for each in console.classes()}
            for kind in (_ONWARD, *_CONFIGURED):  # qpidd has none
                objects[kind] = list(console.query(kind)) if kind in known else []
        self._objects = objects
        names = [queue.key for queue in objects["queue"] if self._is_chosen(queue)]
        unknown = selection.records.unknown_queues(names)
        if unknown:
            raise InterchangeError(f'there is no queue "{min(unknown)}" in the broker')
        self.counts: dict[str, int] = dict.fromkeys(names, 0)

    def _is_chosen(self, queue: Data) -> bool:
        if self._selection.records.queues:
            return self._selection.records.has_queue(queue.key)
        name = split_name(queue.key)[1]
        return bool(queue["durable"]) and not queue.get("exclusive") and not name.startswith(LEDGER_QUEUES)

    def write(self, writer: ExportWriter, advance: Callable[[int], None]) -> None:
        """Write everything but beginning and end. Raises OSError, InterchangeError, MessagingError."""
        if self._selection.topology:
            self._topology(writer)
        if self._selection.messages:
            for name in self.counts:
                self._messages(name, writer, advance)

    def _topology(self, writer: ExportWriter) -> None:
        exchanges = {each.key: each for each in self._objects["exchange"] if each["durable"] and each["name"]}
        for name, each in exchanges.items():
            arguments = _table(each)
            alternate = reference(each.get("altExchange")) or full_name(split_name(name)[0], _awaited(arguments))
            writer.exchange(Exchange(name, True, each["type"], arguments, alternate, bool(each.get("autoDelete"))))
        for each in self._objects["queue"]:
            if each.key in self.counts:
                alternate = reference(each.get("altExchange"))
                writer.queue(Queue(each.key, _table(each), alternate, "", bool(each.get("autoDelete"))))
        for each in self._objects["binding"]:
            exchange, queue = reference(each.get("exchangeRef")), reference(each.get("queueRef"))
            if exchange in exchanges and queue in self.counts:
                writer.binding(exchange, Binding(0, queue, each.get("bindingKey") or "", _table(each)))

        for each in self._objects[_ONWARD] if not self._selection.records.queues else ():
            source, destination = reference(each.get("exchangeRef")), reference(each.get("destinationRef"))
            if source in exchanges and destination in exchanges:
                bound = ExchangeBinding(source, destination, each.get("bindingKey") or "", _table(each))
                writer.other(exchange_binding_object(bound))

        for kind in _CONFIGURED if not self._selection.records.queues else ():
            for each in self._objects[kind]:
                for record in _configuration(kind, each):
                    writer.other(record)

    def _messages(self, name: str, writer: ExportWriter, advance: Callable[[int], None]) -> None:
        options: dict[str, Any] = {"mode": "consume" if self._take else "browse"}
        if self._selection.selector is not None:
            options["link"] = {"selector": self._selection.selector.text}
        host, local = split_name(name)
        receiver = self._session(host).receiver(queue_address(local, options), capacity=_PREFETCH)
        for message in _until_empty(receiver.fetch):
            stored = stored_message(name, message)
            if self._selection.is_in_time(stored.data):
                writer.message(stored)
                self.counts[name] += 1
                advance(1)
        if not self._take:
            receiver.close()

    def _session(self, host: str) -> Session:
        if host not in self._sessions:
            if host not in self._connections:
                self._connections[host] = self._connect(host)
            self._sessions[host] = self._connections[host].session()
        return self._sessions[host]

    def taken(self) -> None:
        """Remove what was taken from the broker: the file is complete. Raises MessagingError."""
        for session in self._sessions.values():
            if self._take:
                session.acknowledge()
            session.close()

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()


def _configuration(kind: str, each: Data) -> Iterable[GeneralObject]:
    """The configuration records of an object."""
    if kind == "virtual_host":
        about, limits = (dict(each.get(name) or {}) for name in ("about", "limits"))
        if each["name"] != DEFAULT_HOST:
            yield object_of(Record(HOST_KIND, (each["name"],)), about)
        if limits:
            yield object_of(Record(HOST_KIND, (each["name"], LIMITS)), limits)
    elif kind == "parameter":
        record = Record(PARAMETER, (each["vhost"], each["component"], each["name"]))
        yield object_of(record, {"value": each["value"], "user": each["user"]})
    elif kind == "globalParameter":
        yield object_of(Record(GLOBAL_PARAMETER, (each["name"],)), {"value": each["value"]})
    elif kind == "policy":
        definition = {key: value for key, value in each["definition"].items() if isinstance(value, str | int)}
        policy = Policy(each["vhost"], each["name"], each["pattern"], each["applyTo"], each["priority"], definition)
        yield policy_record(policy, f"qstore.{each['kind']}")
    else:
        values = {part: str(each[part]) for part in _CONFIGURED[kind]}
        names = each["user"], each["vhost"]
        record = (
            Record(PERMISSION, names) if kind == "permission" else Record(TOPIC_PERMISSION, (*names, each["exchange"]))
        )
        yield object_of(record, values)


def _awaited(arguments: TypedMap) -> str:
    """The name of an alternate exchange that an exchange was declared with over AMQP 0-9-1, and that does not exist."""
    typed = arguments.get(ALTERNATE)
    value = None if typed is None else as_text(typed.value)
    return exchange_name(value) if isinstance(value, str) else ""


def _until_empty(fetch: Callable[[float], Any]) -> Iterable[Any]:
    while True:
        try:
            yield fetch(0)
        except Empty:
            return


def _table(data: Data) -> Any:
    return typed_map(data.get("arguments") or {})


# ---- imports, exactly once ----
#
# The messages are sent in transactions. Each transaction also replaces a token in the queue `qstore.import.<id>`, which
# states how many messages were imported so far: it is the ledger. Whatever ends an import, a kill of either side or a
# lost connection, the next run of the same import continues where the last committed transaction ended. Only the
# process that has acquired the token imports; the last token stays, and marks the import as complete.
#
#     token    durable message, amqp/map: {"messages": number imported, "done": boolean, "at": seconds since 1970}
#
# The export is read twice: once to prove that it is whole, and to count; then to send. Branches in doubt cannot be sent
# to a broker in this way, and are refused: they can be imported as decided.

_BATCH: Final = 500  # messages of one transaction
_BATCH_BYTES: Final = 8 << 20

_Record = TypeVar("_Record", Queue, Exchange)

#: Reads the export into a sink.
ReadInto = Callable[[ItemSink], object]


class BrokerChanges(NamedTuple):
    """What an import creates in a broker.

    Attributes:
        exchanges, bindings: numbers of them.
        queues: names of the queues.
        notices: what is left out and why, one line each; what the broker refuses is added while it is created.
    """

    exchanges: int
    bindings: int
    queues: frozenset[str]
    notices: list[str]


class BrokerImport:
    """An import into the broker of an open connection.

    Args:
        connection: the connection, to the virtual host that it is about.
        intake: what the export has for that host, by local names, counted.
        rate: messages per second; 0 for no limit.
        host: that virtual host.
        management: a connection to the default one, where management is.

    Attributes:
        left_out: number of messages that cannot be sent.
        refused: number of exchanges, queues and bindings that the broker has refused.
    """

    def __init__(self, connection: Connection, intake: Intake, rate: float, host: str, management: Connection) -> None:
        self._connection = connection
        self._intake, self._pace, self._host, self._management = intake, Pace(rate), host, management
        self.left_out = 0
        self._declaring: Session | None = None
        if intake.in_doubt or any(queue.in_doubt for queue in intake.messages.values()):
            text = "this export has branches in doubt, which cannot be imported into a running broker"
            raise InterchangeError(f"{text}: --in-doubt commit or rollback decides them")
        with self._connection.session() as session:
            self._missing_queues = {
                name: queue
                for name, queue in intake.queues.items()
                if not is_brokers_own(name) and _queue(session, name) is None  # the broker makes it itself
            }
            self._missing_exchanges = self._find_exchanges(session)
            for name in intake.messages:
                if name not in intake.queues and _queue(session, name) is None:
                    raise InterchangeError(f'queue "{printable(name)}": there is no such queue in the broker')
            self._notices: list[str] = []
            self._find_alternates(session)
            self._find_bindings(session)
        self._configured = [
            each
            for each in intake.general
            if isinstance(each, GeneralObject) and each.kind in CONFIGURATION_KINDS - LOCAL_KINDS
        ]
        others = sum(exchange_binding_of(each) is None for each in intake.general) - len(self._configured)
        if others:
            self._notices.append(f"{others} links, bridges and other objects are left out")
        self.refused = 0

    @property
    def changes(self) -> BrokerChanges:
        """What is created: planned before `run`, and without what the broker has refused after it."""
        exchanges, bindings = len(self._missing_exchanges), len(self._bindings) + len(self._onward)
        return BrokerChanges(exchanges, bindings, frozenset(self._missing_queues), self._notices)

    def _find_alternates(self, session: Session) -> None:
        """Have what is created no alternate exchange that is neither in the broker nor in the export.

        RabbitMQ, and a store, allow it to be declared later, and drop messages until then; AMQP 0-10 refuses it.
        """
        is_there = {"": True, **dict.fromkeys(self._intake.exchanges, True)}

        def usable(what: str, record: _Record) -> _Record:
            alternate = record.alternate_exchange or ""
            if alternate not in is_there:
                is_there[alternate] = not session.invoke("exchange.query", name=alternate).get("not_found")
            if is_there[alternate]:
                return record
            why = f'there is no exchange "{printable(alternate)}", and what has no queue is dropped'
            self._left_out(f'the alternate exchange of {what} "{printable(record.name)}"', why)
            entries = tuple(each for each in record.arguments.entries if each[0] != ALTERNATE)
            return replace(record, alternate_exchange="", arguments=TypedMap(entries))

        self._missing_exchanges = [usable("exchange", each) for each in self._missing_exchanges]
        self._missing_queues = {name: usable("queue", each) for name, each in self._missing_queues.items()}

    def _find_bindings(self, session: Session) -> None:
        """The bindings whose ends are in the broker or in the export; a notice for each of the others."""
        has_exchange = {"": True, **dict.fromkeys(self._intake.exchanges, True)}
        has_queue = dict.fromkeys(self._intake.queues, True)

        def missing(exchanges: Sequence[str], queue: str | None) -> str | None:
            for name in exchanges:
                if name not in has_exchange:
                    has_exchange[name] = not session.invoke("exchange.query", name=name).get("not_found")
                if not has_exchange[name]:
                    return f'exchange "{printable(name)}"'
            if queue is None:
                return None
            if queue not in has_queue:
                has_queue[queue] = _queue(session, queue) is not None
            return None if has_queue[queue] else f'queue "{printable(queue)}"'

        self._bindings: list[tuple[str, Binding]] = []
        self._onward: list[ExchangeBinding] = []
        for exchange, binding in self._intake.bindings:
            if gone := missing((exchange,), binding.queue_name):
                self._left_out(_shown(exchange, binding.queue_name, binding.key), f"there is no {gone}")
            else:
                self._bindings.append((exchange, binding))
        for bound in filter(None, map(exchange_binding_of, self._intake.general)):
            if gone := missing(bound[:2], None):
                self._left_out(_shown(*bound[:3]), f"there is no {gone}")
            else:
                self._onward.append(bound)

    def _left_out(self, what: str, why: str) -> None:
        self._notices.append(f"{what} is left out: {why}")

    def _find_exchanges(self, session: Session) -> list[Exchange]:
        """The exchanges that the broker does not have, each after its alternate exchange."""
        missing: dict[str, Exchange] = {}
        for name, exchange in self._intake.exchanges.items():
            found = session.invoke("exchange.query", name=name)
            if found.get("not_found"):
                missing[name] = exchange
            elif found.get("type") != exchange.type:
                text = f"it is of type {found.get('type')} in the broker, and of type {exchange.type} in the export"
                raise InterchangeError(
                    f'exchange "{printable(name)}": {printable(text)}: map it to another name (--map)'
                )
        ordered: dict[str, Exchange] = {}
        while missing:
            ready = [name for name, each in missing.items() if (each.alternate_exchange or "") not in missing]
            for name in ready or list(missing):
                ordered[name] = missing.pop(name)
        return list(ordered.values())

    def past(self, identity: str) -> PastImport | None:
        """The import with that id, if it is complete."""
        with self._connection.session() as session:
            if _queue(session, _ledger(identity)) is None:
                return None
            try:
                message = session.receiver(queue_address(_ledger(identity), {"mode": "browse"})).fetch(0)
            except Empty:
                return None
            token = _token(message)
            return PastImport(identity, token["at"], token["messages"]) if token["done"] else None

    def run(self, identity: str, read: ReadInto, advance: Callable[[int], None]) -> None:
        """Import everything that is not imported yet.

        Args:
            identity: that of the import.
            read: reads the export.
            advance: receives numbers of messages.

        Raises:
            InterchangeError: another process has the token, or the export has changed.
            MessagingError: the broker has refused something, or the connection has failed.
        """
        self._create(identity)
        with self._connection.session(transactional=True) as session:
            work = _Sending(session, _ledger(identity), self._pace, advance)
            read(work)
            work.commit(done=True)
            self.left_out = work.left_out

    def _create(self, identity: str) -> None:
        """Create what is missing; the broker leaves alone what exists.

        What the broker refuses is left out, with a notice: the rest is created all the same.

        Raises:
            InterchangeError: it has refused a queue that messages are for.
        """
        self._missing_exchanges = [
            each
            for each in self._missing_exchanges
            if self._declare(
                f'exchange "{printable(each.name)}"',
                "exchange.declare", exchange=each.name, type=each.type, **_declared(each),
            )
        ]  # fmt: skip
        self._missing_queues = {
            name: queue
            for name, queue in self._missing_queues.items()
            if self._declare(f'queue "{printable(name)}"', "queue.declare", queue=name, **_declared(queue))
        }
        asked = self._intake.messages.keys() & self._intake.queues.keys()
        needed = {name for name in asked if not is_brokers_own(name)}
        refused = [name for name in self._intake.messages if name in needed and not self._has(name)]
        if refused:
            text = f'queue "{printable(refused[0])}": the broker has refused it, and messages are for it'
            raise InterchangeError(f"{text}: {self._notices[-1]}; no message was imported")
        self._bindings = [
            (name, binding)
            for name, binding in self._bindings
            if self._declare(
                _shown(name, binding.queue_name, binding.key),
                "exchange.bind", exchange=name, queue=binding.queue_name, binding_key=binding.key,
                arguments=binding.arguments if len(binding.arguments) else None,
            )
        ]  # fmt: skip
        with self._connection.session() as session:
            session.invoke("queue.declare", queue=_ledger(identity), durable=True)
        if self._declaring is not None:
            self._declaring.close()
        if self._onward:
            with Console(self._management) as console:
                self._onward = [bound for bound in self._onward if self._bind_exchanges(console, bound)]

        if self._configured:
            with Console(self._management) as console:
                for record in self._configured:
                    self._configure(console, record)

    def foresee(self) -> None:
        """Note what the broker would refuse, in a dry run: permissions, if the user sees no administrator."""
        permissions = [each for each in self._configured if each.kind in (PERMISSION, TOPIC_PERMISSION)]
        if not permissions:
            return
        with Console(self._management) as console:
            if any(each["enforcingAcl"] for each in console.query("acl")):  # its rules say who may
                return
            if any("administrator" in str(each["tags"]).split(",") for each in console.query("user")):
                return
        why = "administrators set permissions: this user is none, or there is none (qstore-passwd --tags administrator)"
        for each in permissions:
            found = record_of(each)
            self._refuse(f'permission "{printable(each.name if found is None else found[0].name[0])}"', ValueError(why))

    def _configure(self, console: Console, general: GeneralObject) -> None:
        """Set a policy, a permission, a parameter, or limits of a virtual host."""
        found = record_of(general)
        if found is None or (len(found[0].name) < 2 and general.kind not in (GLOBAL_PARAMETER, HOST_KIND)):
            self._refuse(f"{general.kind} {printable(general.name)}", ValueError("it is not valid"))
            return
        (kind, parts), values = found
        given: dict[str, Any]
        if kind == HOST_KIND:
            if len(parts) == 2:
                for limit, value in values.items():
                    self._set(console, "vhost-limit", limit, {"vhost": parts[0], "value": value})
            return
        if kind == GLOBAL_PARAMETER:
            name, given = parts[0], {"value": values["value"]}
        elif kind == PARAMETER:
            name, given = parts[2], {"vhost": parts[0], "component": parts[1], "value": values["value"]}
        elif kind in (POLICY, OPERATOR_POLICY):
            policy, name = recorded_policy(parts, values), parts[1]
            given = {
                "vhost": policy.host, "pattern": policy.pattern, "apply-to": policy.apply_to,
                "priority": policy.priority, "definition": typed_map(policy.definition),
            }  # fmt: skip
        else:
            name, given = parts[0], {"vhost": parts[1], **values}
            given |= {"exchange": parts[2]} if len(parts) > 2 else {}
        self._set(console, kind.removeprefix("qstore."), name, given)

    def _set(self, console: Console, kind: str, name: str, given: dict[str, Any]) -> None:
        properties = TypedValue(MAP, typed_map(given))
        try:
            console.call("broker", "create", type=kind, name=name, properties=properties, strict=True)
        except AgentError as error:
            self._refuse(f'{kind} "{printable(name)}"', error)

    def _has(self, queue: str) -> bool:
        with self._connection.session() as session:
            return _queue(session, queue) is not None

    def _declare(self, what: str, command: str, **arguments: Any) -> bool:
        """Whether the broker has done it. A refusal ends the session: the next declaration opens another one."""
        if self._declaring is None:
            self._declaring = self._connection.session()
        try:
            self._declaring.invoke(command, **arguments)
        except SessionError as error:
            self._declaring = None
            self._refuse(what, error)
            return False
        return True

    def _bind_exchanges(self, console: Console, bound: ExchangeBinding) -> bool:
        arguments = bound.arguments
        if self._host != DEFAULT_HOST:
            arguments = TypedMap((*arguments.entries, *typed_map({HOST_PROPERTY: self._host}).entries))
        properties = TypedValue(MAP, arguments)
        try:
            console.call(
                "broker", "create", type=_ONWARD, name="/".join(bound[:3]), properties=properties, strict=False
            )
        except AgentError as error:
            self._refuse(_shown(*bound[:3]), error)
            return False
        return True

    def _refuse(self, what: str, error: Exception) -> None:
        self.refused += 1
        self._left_out(what, sentence(str(error)))


def _shown(source: str, target: str, key: str) -> str:
    return f'the binding of "{printable(target)}" to exchange "{printable(source)}" with key "{printable(key)}"'


def _ledger(identity: str) -> str:
    return f"{LEDGER_QUEUES}{identity}"


def _queue(session: Session, name: str) -> Mapping[str, Any] | None:
    found = session.invoke("queue.query", queue=name)
    return None if found.get("queue") is None else found


def _declared(record: Queue | Exchange) -> dict[str, Any]:
    return {
        "durable": record.durable if isinstance(record, Exchange) else True,
        "auto_delete": bool(record.auto_delete),
        "alternate_exchange": record.alternate_exchange or None,
        "arguments": record.arguments if len(record.arguments) else None,
    }


def _token(message: Message) -> dict[str, Any]:
    content = message.content
    expected = {"messages": int, "done": bool, "at": int}
    if not isinstance(content, dict) or any(type(content.get(name)) is not kind for name, kind in expected.items()):
        raise InterchangeError("the queue with the state of this import has a message that is not the import's")
    return content


class NoHost:
    """Stands for a connection to a virtual host that does not exist yet: it has the standard exchanges only."""

    def session(self, **_: object) -> NoHost:
        """A session."""
        return self

    def __enter__(self) -> NoHost:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def invoke(self, command: str, **given: str) -> dict[str, Any]:
        """Answer a query."""
        if command == "queue.query":
            return {"queue": None}
        kind = STANDARD_EXCHANGES.get(given["name"])
        return {"not_found": kind is None and bool(given["name"]), "type": kind}


class _Sending:
    """A sink that sends the messages that follow those already imported."""

    def __init__(self, session: Session, ledger: str, pace: Pace, advance: Callable[[int], None]) -> None:
        self._session, self._pace, self._advance = session, pace, advance
        self._tokens, self._ledger = session.receiver(queue_address(ledger)), session.sender(queue_address(ledger))
        self._senders: dict[str, Sender] = {}
        self.left_out = 0
        self._old: Message | None = None
        self._done = self._take_token(self._tokens, ledger)
        self._count = self._sent = self._bytes = 0

    def _take_token(self, tokens: Receiver, ledger: str) -> int:
        """Take the token. Returns the number of messages imported so far."""
        try:
            self._old = tokens.fetch(0)
        except Empty:
            found = _queue(self._session, ledger)
            if found is not None and found.get("message_count"):
                raise InterchangeError("another process is importing this export into the broker") from None
            return 0
        number: int = _token(self._old)["messages"]
        return number

    def queue(self, queue: Queue) -> None:
        """Created before."""

    def exchange(self, exchange: Exchange) -> None:
        """Created before."""

    def binding(self, exchange: str, binding: Binding) -> None:
        """Created before."""

    def other(self, general: Link | Bridge | GeneralObject) -> None:
        """Left out."""

    def branch(self, xid: bytes) -> None:
        """There is none."""

    def message(self, message: ImportedMessage) -> None:
        """Send a message, unless it is imported already."""
        self._count += 1
        self._advance(1)
        if self._count <= self._done:
            return
        if is_brokers_own(message.queue):  # only the broker puts messages there
            self.left_out += 1
            return
        sender = self._senders.get(message.queue)
        if sender is None:
            sender = self._senders[message.queue] = self._session.sender(queue_address(message.queue))
        try:
            sender.send(client_message(message), sync=False)
        except BrokerRecordError:
            self.left_out += 1
        self._sent += 1
        self._bytes += len(message.data)
        self._pace.keep(self._count - self._done)
        if self._sent >= _BATCH or self._bytes >= _BATCH_BYTES:
            self.commit()

    def commit(self, *, done: bool = False) -> None:
        """Commit, with a token that says so."""
        token = {"messages": self._count, "done": done, "at": int(time.time())}
        try:
            self._ledger.send(Message(token, durable=True), sync=False)
            if self._old is not None:
                self._session.acknowledge(self._old, sync=False)
            self._session.commit()
        except MessagingError as error:
            error.add_note(
                f"{self._count - self._sent:,} messages were imported; run the same command again to continue"
            )
            raise
        self._sent = self._bytes = 0
        if not done:
            self._old = self._tokens.fetch()


# ---- messages ----
#
# What cannot be sent to a broker is lost on the way in: the exchange to which the message was once published and its
# routing key, as it goes to its queue directly; its record id. A message of AMQP 0-9-1 or 1.0 is converted to 0-10.

_SOON: Final = 0.001  # seconds that a message lives which has expired
_STRUCT_HEAD: Final = 6  # size and code


def client_message(stored: ImportedMessage) -> Message:
    """The message for sending. Raises BrokerRecordError: it cannot be decoded."""
    data = stored.data
    if data[HEADER_SIZE_BYTES : HEADER_SIZE_BYTES + 4] in (bytes(4), MARK):
        converted = as_transfer(restore_message(data))
        if converted is None:
            raise BrokerRecordError("AMQP 0-10 cannot represent this message of AMQP 0-9-1 or 1.0")
        data = b"".join(converted.stored_form()[0])
    end = HEADER_SIZE_BYTES + header_size(data)
    if end > len(data):
        raise BrokerRecordError("the data are shorter than the length of the message header in them", end)
    structs = header_structs(data[HEADER_SIZE_BYTES:end])
    message = Message.received(structs, data[end:], None)
    try:
        _restore(message, structs)
    except Amqp010Error as error:
        raise BrokerRecordError(error.what, error.offset) from error
    message.redelivered = stored.is_redelivered
    return message


def _restore(message: Message, structs: bytes) -> None:
    """Give the message its headers with their types, and the rest of its time."""
    kept = {name: value for name, value in message.properties.items() if name.startswith("x-amqp-0-10.")}
    kept.pop(TIMESTAMP, None)
    offset = 0
    while offset < len(structs):
        end = offset + 4 + int.from_bytes(structs[offset : offset + 4], "big")
        code = int.from_bytes(structs[offset + 4 : offset + _STRUCT_HEAD], "big")
        if code == MESSAGE_PROPERTIES.code:
            table = decode_struct(MESSAGE_PROPERTIES, structs, offset, end)["application_headers"]
            kept |= {} if table is None else {name: typed for name, typed in table.entries if name != SUBJECT}
        elif code == DELIVERY_PROPERTIES.code:
            expiration = decode_struct(DELIVERY_PROPERTIES, structs, offset, end)["expiration"]
            if expiration is not None and message.ttl:
                message.ttl = max(_SOON, expiration - time.time())
        offset = end
    message.properties = kept


def stored_message(queue: str, message: Message) -> ImportedMessage:
    """A received message as a broker stores it. Raises BrokerRecordError."""
    return ImportedMessage(queue, 0, LIVE, b"", bool(message.redelivered), frame_message(message.header, message.body))
