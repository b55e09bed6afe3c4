"""Resolution of addresses: finds, creates, asserts and deletes their queues and exchanges.

    name            looked up as a queue and as an exchange, or only as node.type; a queue takes precedence
    missing         created if the create policy allows it: a queue, unless node.type is topic; with its x-bindings
    found           compared with the options if the assert policy asks for it

A "#" in the name is replaced by a unique id, unless the address says `create: never`: then it is part of the name of a
node that exists. A node with a unique id is created by every link that uses the address, and is exclusive and
auto-delete unless x-declare says otherwise.

A receiver at an exchange gets its own exclusive, auto-delete queue, bound by the subject:

    type        with subject                         without
    topic       key: the subject, a pattern          key: #
    headers     qpid.subject must be the subject     all messages
    others      key: the subject                     key: "" (ignored by a fanout exchange)

or by the link's x-bindings instead, if there are any.

Source: AMQP 0-10, classes exchange and queue; the address rules of the Qpid Messaging API.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from qstore.broker.client.address import Address
from qstore.broker.client.address_options import RECEIVER, SENDER, Binding, Declare, Target
from qstore.broker.client.errors import AssertionFailed, NotFound
from qstore.broker.client.message import SUBJECT
from qstore.formats.amqp_0_10.maps import python_value
from qstore.formats.values import TypedMap

Call: TypeAlias = tuple[str, Mapping[str, Any]]
Invoke: TypeAlias = Callable[[Iterable[Call]], Awaitable[list[Mapping[str, Any]]]]

QUEUE: Final = "queue"
TOPIC: Final = "topic"
_DEFAULT_EXCHANGE_TYPE: Final = "topic"
_FILTER: Final = "qpid.filter"


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


# ------------------------------------------------------------------------------------------- asserting


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


# --------------------------------------------------------------------------------------------- binding


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
    """The commands that create and bind a receiver's own queue at an exchange: it keeps what the selector selects."""
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
    if node.exchange_type == "topic":
        return Binding(key="#" if subject is None else subject)
    return Binding(key=subject or "")


# -------------------------------------------------------------------------------------------- deleting


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
