"""The methods create and delete of the broker: queues, exchanges, topics and bindings, as commands of a protocol do it.

    type               its name               properties
    -----------------  ---------------------  -----------------------------------------------------------------
    queue              NAME                   durable, auto-delete, exclusive, alternate-exchange, and arguments
    exchange, topic    NAME                   exchange-type, durable, auto-delete, alternate-exchange, and arguments
    binding            EXCHANGE/QUEUE[/KEY]   arguments
    exchange_binding   SOURCE/DESTINATION[/KEY]   arguments, also as options of delete

`exclusive` is ignored, with a line in the log: the queue would be exclusive to a console that goes away. With `strict`,
an argument that the broker does not know (`model/arguments`) and that is no extension (`x-…`) is an error. There are
no links to other brokers (link, bridge), and no objects of AMQP 1.0 (domain, incoming, outgoing, and policies): both
methods are refused for them, with the reason. In qpidd, too, these belong to its module for AMQP 1.0; a topic is an
exchange without it.

    delete             options
    -----------------  -------------------------------------
    queue              if_unused, if_empty
    exchange, topic    if_unused

Other options are refused: a misspelt one would delete what it should have kept.

Source: the QMF schema of qpidd's broker; qpidd, Broker.cpp (the types and options of create and delete).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.log.logs import log_of
from qstore.broker.management.methods.arguments import flag, plain, table, text
from qstore.broker.model.arguments import Of, rows_of
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotImplementedByBrokerError,
    PreconditionFailedError,
)
from qstore.formats.values import TypedMap, TypedValue
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.objects.element import Arguments, Results
    from qstore.broker.model.caller import Caller

_NO_LINKS: Final = "this broker has no links to other brokers"
_NO_AMQP_1_0: Final = "it belongs to AMQP 1.0, which this broker does not speak"
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "queue": ("if_unused", "if_empty"),
    "exchange": ("if_unused",),
    "topic": ("if_unused",),
    "binding": (),
}
"""Type -> the options of delete."""
_ABSENT: Final = {
    "link": _NO_LINKS,
    "bridge": _NO_LINKS,
    "domain": _NO_AMQP_1_0,
    "incoming": _NO_AMQP_1_0,
    "outgoing": _NO_AMQP_1_0,
    "QueuePolicy": _NO_AMQP_1_0,
    "TopicPolicy": _NO_AMQP_1_0,
}
"""Type -> why there are no objects of it."""
_EXTENSION: Final = "x-"
_LOG: Final = log_of("Management")


async def create(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """Create an object."""
    kind, name = text(arguments, "type"), text(arguments, "name")
    properties, strict = _Properties(table(arguments, "properties")), flag(arguments, "strict")
    broker = managed.broker
    if kind == "queue":
        _check_new(name, broker.queues)
        if properties.take_flag("exclusive"):
            _LOG.notice('Queue "%s": exclusive is ignored: the console that creates it cannot own it', printable(name))
        await broker.topology.declare_queue(
            name,
            durable=properties.take_flag("durable"),
            auto_delete=properties.take_flag("auto-delete"),
            alternate=properties.take_text("alternate-exchange"),
            arguments=properties.rest(Of.QUEUE, strict=strict),
            caller=caller,
        )
    elif kind in ("exchange", "topic"):
        _check_new(name, broker.exchanges)
        await broker.topology.declare_exchange(
            name,
            properties.take_text("exchange-type") or "topic",
            durable=properties.take_flag("durable"),
            auto_delete=properties.take_flag("auto-delete"),
            alternate=properties.take_text("alternate-exchange"),
            arguments=properties.rest(Of.EXCHANGE, strict=strict),
            caller=caller,
        )
    elif kind == "binding":
        exchange, queue, key = _parts_of_binding(name)
        await broker.topology.bind(queue, exchange, key, properties.rest(Of.BINDING, strict=False), caller=caller)
    elif kind == "exchange_binding":
        bound = _parts_of_binding(name, "SOURCE/DESTINATION/KEY")
        await broker.exchange_bindings.bind(*bound, properties.rest(Of.BINDING, strict=False), caller=caller)
    else:
        _refuse(managed, kind, "created", caller, Action.CREATE)
    return {}


async def delete(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """Delete an object."""
    kind, name = text(arguments, "type"), text(arguments, "name")
    options: Mapping[str, Any] = plain(table(arguments, "options"))
    topology = managed.broker.topology
    known = _OPTIONS.get(kind)
    unknown = [] if known is None else [each for each in options if each not in known]
    if unknown:
        raise InvalidArgumentError(f"unknown option of delete: {printable(unknown[0])}")
    if kind == "queue":
        await topology.delete_queue(
            name, if_unused=flag(options, "if_unused"), if_empty=flag(options, "if_empty"), caller=caller
        )
    elif kind in ("exchange", "topic"):
        await topology.delete_exchange(name, if_unused=flag(options, "if_unused"), caller=caller)
    elif kind == "binding":
        exchange, queue, key = _parts_of_binding(name)
        await topology.unbind(queue, exchange, key, caller=caller)
    elif kind == "exchange_binding":
        bound = _parts_of_binding(name, "SOURCE/DESTINATION/KEY")
        await managed.broker.exchange_bindings.unbind(*bound, table(arguments, "options"), caller=caller)
    else:
        _refuse(managed, kind, "deleted", caller, Action.DELETE)
    return {}


def unknown_type(kind: str) -> ModelError:
    """There are no objects of that type."""
    return InvalidArgumentError(f"unknown object type: {printable(kind)}")


def _refuse(managed: ManagedBroker, kind: str, what: str, caller: Caller, action: Action) -> None:
    if kind not in _ABSENT:
        raise unknown_type(kind)
    managed.broker.authorization.check(caller, action, ObjectType.LINK, "")
    raise NotImplementedByBrokerError(f"no {kind} can be {what}: {_ABSENT[kind]}")


def _check_new(name: str, existing: Mapping[str, object]) -> None:
    if name in existing:
        raise PreconditionFailedError(f"Object already exists: {printable(name)}")


def _parts_of_binding(name: str, form: str = "EXCHANGE/QUEUE/KEY") -> tuple[str, str, str]:
    """The three parts of a name of this form. Raises InvalidArgumentError."""
    parts = name.split("/", 2)
    if len(parts) < 2:
        raise InvalidArgumentError(f"the name of a binding is {form}, not {printable(name)}")
    return parts[0], parts[1], parts[2] if len(parts) > 2 else ""


class _Properties:
    """The properties of an object that is created: some are taken, the rest are its arguments."""

    def __init__(self, properties: TypedMap) -> None:
        self._left: dict[str, TypedValue] = dict(properties.entries)

    def take_flag(self, name: str) -> bool:
        """A flag; False if it is not given."""
        typed = self._left.pop(name, None)
        return typed is not None and flag({name: typed.value}, name)

    def take_text(self, name: str) -> str:
        """A text; empty if it is not given."""
        typed = self._left.pop(name, None)
        return "" if typed is None else text({name: typed.value}, name)

    def rest(self, of: Of, *, strict: bool) -> TypedMap:
        """The properties that are left: the arguments of what is created.

        Raises:
            InvalidArgumentError: `strict`, and one of them is neither known nor an extension.
        """
        unknown = [name for name in self._left if not rows_of(of, name) and not name.startswith(_EXTENSION)]
        if strict and unknown:
            raise InvalidArgumentError(f"unknown property: {printable(unknown[0])}")
        return TypedMap(tuple(self._left.items()))
