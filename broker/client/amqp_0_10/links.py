"""Senders and receivers over AMQP 0-10: from an address to a queue or exchange, its transfers, and credit.

**Addresses.**

    name            looked up as a queue and as an exchange, or only as node.type; a queue takes precedence
    missing         created if the create policy allows it: a queue, unless node.type is topic; with its x-bindings
    found           compared with the options if the assert policy requires it

A "#" in the name is replaced by a unique id, unless the address says `create: never`: then it is part of the name of a
node that exists. A node with a unique id is created by every link that uses the address, and is exclusive and
auto-delete unless x-declare says otherwise.

A receiver at an exchange gets its own exclusive, auto-delete queue, bound by the subject:

    type        with subject                         without
    topic       key: the subject, a pattern          key: #
    headers     qpid.subject must be the subject     all messages
    xml         key: the subject, a query likewise   key: empty, query: true()
    others      key: the subject                     key: "" (ignored by a fanout exchange)

or by the link's x-bindings instead, if there are any.

**Receivers.** Credit is that of message.flow in window mode: fetching a message completes its transfer, which gives the
broker credit for another; completions are sent in batches. At the end of its timeout a fetch sends message.flush.

Source: AMQP 0-10, classes exchange, queue, message (subscribe, flow, flush) and session (completed); the address rules
of the Qpid Messaging API.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qstore.broker.client.address import (
    RECEIVER,
    SENDER,
    Binding,
    Declare,
    Target,
    address_target,
    make_unique,
    parse_address,
    warn_of_idle,
)
from qstore.broker.client.errors import AddressError, AssertionFailed, LinkClosedError, NotFound
from qstore.broker.client.links import ReceiverCore, SenderCore, Transfer, ranges_of
from qstore.broker.client.message import SUBJECT, Message, encode_message, mark_redelivered
from qstore.broker.protocols.amqp_0_10.session import Ranges, wrap_ranges
from qstore.formats.amqp_0_10.codes import AcceptMode, AcquireMode, CreditUnit, FlowMode
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.maps import python_value
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.client.amqp_0_10.session import Session


# ---- from addresses to queues and exchanges ----

Call: TypeAlias = tuple[str, Mapping[str, Any]]
Invoke: TypeAlias = Callable[[Iterable[Call]], Awaitable[list[Mapping[str, Any]]]]

QUEUE: Final = "queue"
TOPIC: Final = "topic"
_DEFAULT_EXCHANGE_TYPE: Final = "topic"
_FILTER: Final = "qpid.filter"
_REPORTS_PER_CAPACITY: Final = 4
"""Fetched messages are reported to the broker this many times for each capacity of them."""


class Node(NamedTuple):
    """The queue or exchange of an address.

    Attributes:
        name: the name of the queue or exchange.
        exchange_type: the type of the exchange; "" for a queue.
    """

    name: str
    exchange_type: str = ""

    @property
    def is_queue(self) -> bool:
        """Whether it is a queue, not an exchange."""
        return not self.exchange_type


def _target_of(text: str) -> Target:
    """The target of an address. Raises AddressError."""
    address = parse_address(text)
    target = address_target(address)
    if target.only_1_0:
        raise AddressError(f"{target.only_1_0} has an effect only over AMQP 1.0", text)
    return make_unique(address, target)


async def resolve(invoke: Invoke, target: Target, role: str) -> Node:
    """Find the queue or exchange of an address, or create it.

    Args:
        invoke: sends commands to the broker, and waits for their results.
        target: the address.
        role: SENDER or RECEIVER.

    Raises:
        NotFound: it does not exist, and the address does not create it.
        AssertionFailed: it is not as the address asserts.
        SessionError: the broker has refused, and ended the session.
    """
    queue, exchange = await invoke([("queue.query", {"queue": target.name}), ("exchange.query", {"name": target.name})])
    has_queue = queue.get("queue") is not None and target.node_type != TOPIC
    has_exchange = not exchange.get("not_found") and target.node_type != QUEUE
    if not has_queue and not has_exchange:
        if role not in target.create:
            what = {QUEUE: "queue", TOPIC: "exchange"}.get(target.node_type or "", "queue or exchange")
            raise NotFound(f"no such {what}: {target.name!r}; create it, or use create: always in the address")
        return await _create(invoke, target)
    if has_queue:
        if role in target.asserts:
            await _assert_queue(invoke, target, queue)
        return Node(target.name)
    if role in target.asserts:
        await _assert_exchange(invoke, target, exchange)
    return Node(target.name, exchange.get("type") or "unknown")


async def _create(invoke: Invoke, target: Target) -> Node:
    declare = target.node_declare
    durable = bool(declare.durable if target.node_durable is None else target.node_durable)
    values = {
        "alternate_exchange": declare.alternate_exchange,
        "durable": durable,
        "auto_delete": bool(declare.auto_delete),
        "arguments": declare.arguments or None,
    }
    if target.node_type == TOPIC:
        node = Node(target.name, declare.type or _DEFAULT_EXCHANGE_TYPE)
        call = ("exchange.declare", {**values, "exchange": target.name, "type": node.exchange_type})
    else:
        node = Node(target.name)
        call = ("queue.declare", {**values, "queue": target.name, "exclusive": bool(declare.exclusive)})
    await invoke([call, *bind_calls(target.node_bindings, node, None, target.subject)])
    return node


# ---- asserting ----


async def _assert_queue(invoke: Invoke, target: Target, found: Mapping[str, Any]) -> None:
    declare = target.node_declare
    if target.node_type == TOPIC:
        raise AssertionFailed(f"{target.name!r} is a queue")
    _compare(target, "durable", target.node_durable, found.get("durable"))
    _compare(target, "durable", declare.durable, found.get("durable"))
    _compare(target, "exclusive", declare.exclusive, found.get("exclusive"))
    _compare(target, "auto-delete", declare.auto_delete, found.get("auto_delete"))
    _compare(target, "alternate-exchange", declare.alternate_exchange, found.get("alternate_exchange") or "")
    _compare_arguments(target, declare, found)
    await _assert_bindings(invoke, target, Node(target.name))


async def _assert_exchange(invoke: Invoke, target: Target, found: Mapping[str, Any]) -> None:
    declare = target.node_declare
    _compare(target, "durable", target.node_durable, found.get("durable"))
    _compare(target, "durable", declare.durable, found.get("durable"))
    _compare(target, "type", declare.type, found.get("type"))
    _compare_arguments(target, declare, found)
    await _assert_bindings(invoke, target, Node(target.name, found.get("type") or "unknown"))


def _compare(target: Target, what: str, asserted: object, found: object) -> None:
    if asserted is not None and asserted != found:
        raise AssertionFailed(f"{target.name!r}: {what} is {found!r}, but the address asserts {asserted!r}")


def _compare_arguments(target: Target, declare: Declare, found: Mapping[str, Any]) -> None:
    table = found.get("arguments")
    values = {name: python_value(value) for name, value in table.entries} if isinstance(table, TypedMap) else {}
    for name, value in (declare.arguments or {}).items():
        _compare(target, f"argument {name}", value, values.get(name))


async def _assert_bindings(invoke: Invoke, target: Target, node: Node) -> None:
    calls = [("exchange.bound", values) for _, values in bind_calls(target.node_bindings, node, None, target.subject)]
    for (_, values), found in zip(calls, await invoke(calls), strict=True):
        if any(found.values()):
            raise AssertionFailed(
                f"{target.name!r}: {values['queue']!r} is not bound to {values['exchange']!r} by"
                f" {values['binding_key']!r}, as the address asserts"
            )


# ---- binding ----


def bind_calls(bindings: Iterable[Binding], node: Node, queue: str | None, subject: str | None) -> list[Call]:
    """The commands that create x-bindings.

    Args:
        bindings: the bindings in the address.
        node: the default for the exchange or queue of a binding.
        queue: the link's own queue, which is the default before the node; None if it has none.
        subject: the default for the key of a binding.
    """
    calls: list[Call] = []
    for binding in bindings:
        own_queue = queue if queue is not None else node.name if node.is_queue else ""
        values = {
            "exchange": binding.exchange if binding.exchange is not None else "" if node.is_queue else node.name,
            "queue": binding.queue if binding.queue is not None else own_queue,
            "binding_key": binding.key if binding.key is not None else subject or "",
            "arguments": binding.arguments or None,
        }
        calls.append(("exchange.bind", values))
    return calls


def unbind_calls(bindings: list[Call]) -> list[Call]:
    """The commands that remove the bindings of `bind_calls`."""
    return [
        ("exchange.unbind", {name: value for name, value in values.items() if name != "arguments"})
        for _, values in bindings
    ]


def subscription_queue(target: Target, node: Node, name: str) -> list[Call]:
    """The commands to create and bind a receiver's own queue at an exchange, for messages that match the selector."""
    declare = target.link_declare
    arguments = with_selector(declare.arguments, _FILTER, target.selector)
    is_durable = target.link_durable
    values = {
        "queue": name,
        "alternate_exchange": declare.alternate_exchange,
        "durable": is_durable if declare.durable is None else declare.durable,
        "exclusive": True if declare.exclusive is None else declare.exclusive,
        "auto_delete": not is_durable if declare.auto_delete is None else declare.auto_delete,
        "arguments": arguments or None,
    }
    bindings = target.link_bindings or (_subscription_binding(node, target.subject),)
    return [("queue.declare", values), *bind_calls(bindings, node, name, target.subject)]


def with_selector(arguments: Mapping[str, Any] | None, name: str, selector: str | None) -> Mapping[str, Any]:
    """Arguments with a selector added, if there is one."""
    return {**(arguments or {}), **({} if selector is None else {name: selector})}


def _subscription_binding(node: Node, subject: str | None) -> Binding:
    if node.exchange_type == "headers":
        match = {"x-match": "all"} | ({} if subject is None else {SUBJECT: subject})
        return Binding(key=subject or "all", arguments=match)
    if node.exchange_type == "xml":
        query = "true()"
        if subject is not None:
            text = subject.replace("'", "''")
            query = f"declare variable ${SUBJECT} external; ${SUBJECT} = '{text}'"
        return Binding(key=subject or "", arguments={"xquery": query})
    if node.exchange_type == "topic":
        return Binding(key="#" if subject is None else subject)
    return Binding(key=subject or "")


# ---- deleting ----


async def delete_queue(invoke: Invoke, name: str, *, if_unused: bool) -> None:
    """Delete a queue if it exists; with `if_unused` only if it has no subscribers."""
    (found,) = await invoke([("queue.query", {"queue": name})])
    if found.get("queue") is not None and not (if_unused and found.get("subscriber_count")):
        await invoke([("queue.delete", {"queue": name})])


async def delete_node(invoke: Invoke, node: Node) -> None:
    """Delete a queue or exchange if it exists."""
    if node.is_queue:
        await delete_queue(invoke, node.name, if_unused=False)
        return
    (found,) = await invoke([("exchange.query", {"name": node.name})])
    if not found.get("not_found"):
        await invoke([("exchange.delete", {"exchange": node.name})])


# ---- senders ----

#: Number of messages per capacity that request an immediate completion (sync flag).
_SYNCS_PER_CAPACITY: Final = 4


class Sender(SenderCore):
    """A sender. Raises AddressError: the address is invalid."""

    session: Session

    def __init__(self, session: Session, address: str, capacity: int) -> None:
        super().__init__(session, _target_of(address), capacity)
        self._node, self._address = Node(self.target.name), address
        self._bindings: list[Call] = []
        self._payload = self._sync_payload = b""
        self._until_sync = 0

    async def attach(self) -> None:
        """As `SenderCore.attach`."""
        target = self.target
        node = self._node = await resolve(self.session.invoke_all, target, SENDER)
        if self._address:  # not when it connects again
            warn_of_idle(self._address, target, SENDER, is_queue=node.is_queue)
            self._address = ""
        self._bindings = bind_calls(target.link_bindings, node, None, target.subject)
        await self.session.invoke_all(self._bindings)
        values: dict[str, Any] = {
            "destination": "" if node.is_queue else node.name,
            "accept_mode": AcceptMode.NONE,
            "acquire_mode": AcquireMode.PRE_ACQUIRED,
        }
        self._payload = encode_command("message.transfer", **values)
        self._sync_payload = encode_command("message.transfer", sync=True, **values)

    @property
    def has_credit(self) -> bool:
        """As `SenderCore.has_credit`: what message.flow of the empty destination allows the session."""
        return self.session.wire.publish_credit != 0

    def make_transfer(self, message: Message) -> Transfer:
        """As `SenderCore.make_transfer`."""
        subject = self.subject_of(message)
        key = self._node.name if self._node.is_queue else subject or ""
        return Transfer(self, *encode_message(message, key, subject))

    def mark_redelivered(self, transfer: Transfer) -> None:
        """As `SenderCore.mark_redelivered`."""
        transfer.header = mark_redelivered(transfer.header)

    def set_capacity(self, capacity: int) -> None:
        """As `SenderCore.set_capacity`; the next message asks for completion."""
        super().set_capacity(capacity)
        self._until_sync = 0

    def transmit(self, transfer: Transfer, *, sync: bool) -> int:
        """As `SenderCore.transmit`."""
        self._until_sync -= 1
        if self._until_sync < 0:
            self._until_sync = self.capacity // _SYNCS_PER_CAPACITY
            sync = True
        payload = self._sync_payload if sync else self._payload
        wire = self.session.wire
        if wire.publish_credit > 0:
            wire.publish_credit -= 1
        return wire.send_payload(payload, transfer.header, transfer.body)

    def ask_completion(self) -> None:
        """As `SenderCore.ask_completion`."""
        self.session.wire.send("execution.sync", sync=True)

    def unfinished_node(self) -> list[str]:
        """As `SenderCore.unfinished_node`."""
        name = repr(self.target.name)
        found = [f"bindings of {name} not removed"] if self._bindings else []
        return found + ([f"{name} not deleted"] if SENDER in self.target.delete else [])

    async def finish_node(self) -> None:
        """As `SenderCore.finish_node`: remove the link's bindings, delete the node if the address says so."""
        session = self.session
        await session.invoke_all(unbind_calls(self._bindings))
        if SENDER in self.target.delete:
            await delete_node(session.invoke_all, self._node)


# ---- receivers ----

_SELECTOR: Final = "x-apache-selector"
_UNLIMITED: Final = 0xFFFFFFFF


class Receiver(ReceiverCore):
    """A receiver. Raises AddressError: the address is invalid."""

    session: Session

    def __init__(self, session: Session, address: str, capacity: int, destination: str) -> None:
        super().__init__(session, _target_of(address), capacity, destination)
        self._node, self._address = Node(self.target.name), address
        self._own_queue: str | None = None
        self._bindings: list[Call] = []
        self._credit = 0  # given for a fetch, with a capacity of 0
        self._unreported = 0  # completed, but not yet sent to the broker
        self._is_credit_unknown = False

    # ---- attaching ----

    async def attach(self) -> None:
        """Find or create the queue, and subscribe to it. Raises as `resolve` does, and InterruptedByLoss."""
        target, session = self.target, self.session
        node = self._node = await resolve(session.invoke_all, target, RECEIVER)
        if self._address:  # not when it connects again
            warn_of_idle(self._address, target, RECEIVER, is_queue=node.is_queue)
            self._address = ""
        calls: list[Call] = []
        if node.is_queue:
            queue = node.name
            self._bindings = bind_calls(target.link_bindings, node, None, target.subject)
            calls.extend(self._bindings)
        else:
            queue = self._own_queue = target.link_name or f"subscription_{uuid.uuid4()}"
            calls.extend(subscription_queue(target, node, queue))
        subscribe = target.subscribe
        selector = target.selector if node.is_queue else None
        values = {
            "queue": queue,
            "destination": self.destination,
            "accept_mode": AcceptMode.EXPLICIT if self.is_accepting else AcceptMode.NONE,
            "acquire_mode": AcquireMode.NOT_ACQUIRED if target.browse else AcquireMode.PRE_ACQUIRED,
            "exclusive": bool(subscribe.exclusive),
            "resume_id": subscribe.resume_id,
            "resume_ttl": subscribe.resume_ttl,
            "arguments": with_selector(subscribe.arguments, _SELECTOR, selector) or None,
        }
        calls.append(("message.subscribe", values))
        calls.append(("message.set-flow-mode", self._flow_mode()))
        self._credit = self._unreported = 0
        await session.invoke_all(calls)
        self.grant()

    # ---- credit ----

    def _flow_mode(self) -> dict[str, Any]:
        mode = FlowMode.WINDOW if self.capacity else FlowMode.CREDIT
        return {"destination": self.destination, "flow_mode": mode}

    def regrant(self) -> None:
        """As `ReceiverCore.regrant`."""
        send = self.session.wire.send
        send("message.stop", destination=self.destination)
        send("message.set-flow-mode", **self._flow_mode())
        self.grant()

    def _flow(self, messages: int) -> None:
        send, destination = self.session.wire.send, self.destination
        send("message.flow", destination=destination, unit=CreditUnit.BYTE, value=_UNLIMITED)
        send("message.flow", destination=destination, unit=CreditUnit.MESSAGE, value=messages)

    def grant(self) -> None:
        """Give the broker credit when it has none."""
        self._credit = 0
        # Brokers differ in whether completing messages delivered before the credit was reset gives credit back: so the
        # credit is set again when all of them have been fetched.
        self._is_credit_unknown = bool(self.incoming)
        if self.capacity > len(self.incoming):
            self._flow(self.capacity - len(self.incoming))

    def _reset_credit(self) -> None:
        """Set the broker's credit to the capacity, whatever it was."""
        self._is_credit_unknown = False
        self.session.wire.send("message.stop", destination=self.destination)
        self._flow(self.capacity)

    def ask(self) -> None:
        """With a capacity of 0: give credit for one message, unless that was done or a message has arrived."""
        if not self.capacity and not self._credit and not self.incoming and self.failure is None:
            self._flow(1)
            self._credit = 1

    # ---- fetching ----

    def on_fetched(self, message: Message) -> None:
        """As `ReceiverCore.on_fetched`: its transfer is completed."""
        wire, number = self.session.wire, message.delivery.number
        wire.ledger.complete([[number, number]])
        self._credit = 0
        self._unreported += 1
        if self._unreported * _REPORTS_PER_CAPACITY >= self.capacity or not self.incoming:
            self._unreported = 0
            wire.send_completed()
        if self._is_credit_unknown and not self.incoming:
            self._reset_credit()

    async def flush(self) -> None:
        """As `ReceiverCore.flush`."""
        if self.capacity:
            self._reset_credit()
        await self.session.invoke("message.flush", destination=self.destination)
        self.grant()

    def take_waiting(self) -> list[int]:
        """Discard the prefetched messages as completed, and return their command numbers."""
        numbers = [message.delivery.number for message in self.incoming]
        self.incoming.clear()
        self.session.wire.ledger.complete([[number, number] for number in numbers])
        return numbers

    # ---- closing ----

    def unfinished(self) -> list[str]:
        """Operations of `close` that the broker has not confirmed, as text for the user; empty if there are none.

        The subscription and auto-delete queues are not included, since they end with the connection.
        """
        name, target = repr(self.target.name), self.target
        if isinstance(self.failure, (LinkClosedError, NotFound)):
            return []
        found = [f"bindings of {name} not removed"] if self._bindings else []
        if RECEIVER in target.delete:
            found.append(f"{name} not deleted")
        if self._own_queue is not None and not target.link_durable and target.link_declare.auto_delete is False:
            found.append(f"queue {self._own_queue!r} not deleted")
        return found

    async def detach(self) -> None:
        """As `ReceiverCore.detach`."""
        session, target = self.session, self.target
        calls: list[Call] = [("message.cancel", {"destination": self.destination}), *unbind_calls(self._bindings)]
        await session.invoke_all(calls)
        waiting = self.take_waiting()
        if waiting:
            await session.invoke("message.release", transfers=number_ranges(waiting))
            session.wire.send_completed()
        if RECEIVER in target.delete:
            await delete_node(session.invoke_all, self._node)
        if self._own_queue is not None and not target.link_durable:
            await delete_queue(session.invoke_all, self._own_queue, if_unused=True)


def number_ranges(numbers: Iterable[int]) -> Ranges:
    """Ascending numbers as ranges of first and last."""
    return wrap_ranges(ranges_of(numbers))
