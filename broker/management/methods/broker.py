"""Methods of the broker: echo, connect, query, timestamps, redirection of queues, shutdown.

Source: the QMF schema of qpidd's broker; qpidd, Broker.cpp.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from qstore.broker.management.methods.arguments import count, flag, text
from qstore.broker.management.methods.creation import unknown_type
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import NotFoundError, NotImplementedByBrokerError
from qstore.broker.model.queues.groups import GroupOrder
from qstore.broker.model.topology.checks import check_private
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.objects.element import Arguments, Results
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.queues.consumer import Consumer

_FOR_THE_ANSWER: Final = 0.2  # seconds
_MAX_GROUPS: Final = 1000  # in the reply to a query


async def echo(_managed: ManagedBroker, _broker: object, arguments: Arguments, _caller: Caller) -> Results:
    """Return what was sent. Raises InvalidArgumentError: it has other types."""
    sequence, body = count(arguments, "sequence"), text(arguments, "body")
    return {name: value for name, value in (("sequence", sequence), ("body", body)) if name in arguments}


async def connect(managed: ManagedBroker, _broker: object, _arguments: Arguments, caller: Caller) -> Results:
    """Connect to another broker, which this one cannot."""
    managed.broker.authorization.check(caller, Action.CREATE, ObjectType.LINK, "")
    raise NotImplementedByBrokerError("no link can be created: this broker has no links to other brokers")


async def query(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """The values of an object; of a queue with message groups, also the first groups."""
    kind, name = text(arguments, "type"), text(arguments, "name")
    classes = [each for each in managed.classes if each.name.lower() == kind.lower()]
    if not classes:
        raise unknown_type(kind)
    if kind.lower() in ("queue", "exchange"):
        managed.broker.authorization.check(caller, Action.ACCESS, ObjectType(kind.lower()), name)
    for of in classes:
        target = of.target(managed, name)
        if target is not None and (of.seen_by is None or of.seen_by(managed, caller)(target)):
            if of.prepare is not None:
                await of.prepare(managed)
            results: Results = {**of.map_of(*of.values(target))}
            if of.name == "queue" and isinstance(target.order, GroupOrder):
                check_private(target, caller)  # the names of groups are values of headers
                results["qpid.message_group_queue"] = _groups(target.order)
            return {"results": results}
    raise NotFoundError(f"Object not found: {printable(name)}")


def _groups(order: GroupOrder) -> Results:
    """The first groups of a queue, and the consumers to which they belong; empty for one that is free."""
    states = [
        {"group_id": group.name, "msg_count": group.size, "timestamp": 0, "consumer": _name_of(group.owner)}
        for group in order.groups[:_MAX_GROUPS]
    ]
    return {"group_header_key": order.header, "group_state": states}


def _name_of(consumer: Consumer | None) -> str:
    return "" if consumer is None else str(getattr(consumer, "destination", "")) or "a consumer"


async def get_timestamps(managed: ManagedBroker, _broker: object, _arguments: Arguments, caller: Caller) -> Results:
    """Whether messages get their time of arrival."""
    managed.broker.authorization.check(caller, Action.ACCESS, ObjectType.BROKER, "")
    return {"receive": managed.broker.has_timestamps}


async def set_timestamps(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """Change whether messages get their time of arrival, from the next message of each client on."""
    managed.broker.authorization.check(caller, Action.UPDATE, ObjectType.BROKER, "")
    managed.broker.has_timestamps = flag(arguments, "receive")
    for machine in managed.machines():
        machine.set_timestamps(is_on=managed.broker.has_timestamps)
    return {}


async def redirect(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """Put the messages for a queue on another one from now on, or no longer."""
    source, target = text(arguments, "sourceQueue"), text(arguments, "targetQueue")
    managed.broker.redirections.redirect(source, target, caller)
    return {}


async def shut_down(managed: ManagedBroker, _broker: object, _arguments: Arguments, caller: Caller) -> Results:
    """End the broker, as by SIGTERM, when the answer had time to be sent."""
    managed.broker.authorization.check(caller, Action.UPDATE, ObjectType.BROKER, "")
    asyncio.get_running_loop().call_later(_FOR_THE_ANSWER, managed.shut_down)
    return {}
