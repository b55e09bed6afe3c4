"""Node policies: which queue or exchange is made when a link of AMQP 1.0 is attached to a name that no node has.

    QueuePolicy    a queue. Properties: durable, auto-delete, alternate-exchange, and arguments of queues. If it is not
                   durable, and neither auto-delete nor qpid.lifetime-policy is given, it ends when it is unused and
                   empty
    TopicPolicy    an exchange. Properties: exchange-type (topic), durable, auto-delete, alternate-exchange,
                   qpid.msg_sequence, qpid.ive, qpid.lifetime-policy (manual, or any other for auto-delete). Without
                   them it is auto-delete unless it is durable. All others are arguments of the queues of subscriptions
                   to exchanges whose names match, except for the standard ones

A policy is known by its pattern, a regular expression that is searched for in the name (`patterns`); of several that
match, the one with the longest pattern applies. They are those of the default virtual host.

What is made belongs to the user who attaches the link, and needs the permissions that it needs otherwise; to make or
delete a policy takes the permission to create or delete a queue, or an exchange, that has the pattern as its name.

Durable policies are stored as qpidd does it, so those of qpidd's stores work here.

Source: docs/amqp-1.0.txt of Qpid C++ ("Topics and node policies"); qpidd, NodePolicy.cpp (properties, defaults, which
of several applies, the record).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.arguments import (
    ALTERNATE,
    AUTO_DELETE,
    DURABLE,
    INITIAL_VALUE,
    LIFETIMES,
    SEQUENCE,
    as_text,
    is_set,
    shown,
)
from qstore.broker.model.authorization import Action, Authorization, ObjectType
from qstore.broker.model.errors import (
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    ResourceLimitExceededError,
)
from qstore.broker.model.exchanges.types import STANDARD_EXCHANGES, exchange_type
from qstore.broker.model.patterns import compile_pattern
from qstore.broker.model.queues.arguments import FILTER, LIFETIME, UNTIL_EMPTY, read_arguments
from qstore.broker.model.store_protocol import Store
from qstore.broker.model.topology.changes import make_in, run_in
from qstore.formats.broker_records.topology import MAX_NAME, GeneralObject
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.pattern_steps import MAX_STEPS, steps_of
from qstore.formats.values import EMPTY_MAP, STR16, TypedMap, TypedValue, typed_value
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.model.caller import Caller

_LOG: Final = log_of("Model")

QUEUE_POLICY: Final = "QueuePolicy"
TOPIC_POLICY: Final = "TopicPolicy"
KINDS: Final = (QUEUE_POLICY, TOPIC_POLICY)

MAX_POLICIES: Final = 200
"""Policies of one broker: all their patterns are searched for in a name that no node has."""

_EXCHANGE_TYPE: Final = "exchange-type"
_RESERVED: Final = ("amq.", "qpid.", "qmf.")


class NodePolicy(NamedTuple):
    """A policy.

    Attributes:
        kind: `QUEUE_POLICY` or `TOPIC_POLICY`.
        pattern: the regular expression, as it was given.
        compiled: the same.
        steps: how long searching for it may take (`steps_of`).
        given: the properties, as they were given.
        exchange_type: the type of an exchange; empty for a queue.
        durable, auto_delete, alternate, arguments: of what is made.
        of_subscriptions: arguments of the queues of subscriptions to it.
        created_at: when it was made, in seconds since 1970.
        number: its number in the store; None if it is not stored.
    """

    kind: str
    pattern: str
    compiled: re.Pattern[str]
    steps: int
    given: TypedMap
    exchange_type: str
    durable: bool
    auto_delete: bool
    alternate: str
    arguments: TypedMap
    of_subscriptions: TypedMap
    created_at: float
    number: int | None = None


def _flag(properties: dict[str, TypedValue], name: str, default: bool) -> bool:
    typed = properties.pop(name, None)
    return default if typed is None else is_set(as_text(typed.value))


def _text(properties: dict[str, TypedValue], name: str) -> str:
    typed = properties.pop(name, None)
    value = "" if typed is None else as_text(typed.value)
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} is {shown(value)}, not a string")
    return value


def read_policy(kind: str, pattern: str, given: TypedMap, created_at: float) -> NodePolicy:
    """A policy with these properties. Raises InvalidArgumentError, or NotFoundError: there is no such exchange type."""
    if not pattern:
        raise InvalidArgumentError(f"a {kind} needs a name: the pattern of names that it applies to")
    compiled, steps = compile_pattern(f"the pattern {shown(pattern)}", pattern), steps_of(pattern)
    left = dict(given.entries)
    lifetime = as_text(left[LIFETIME].value) if LIFETIME in left else None
    if lifetime is not None and lifetime not in LIFETIMES:
        raise InvalidArgumentError(f"{LIFETIME} is {shown(lifetime)}, and not one of {', '.join(LIFETIMES)}")
    has_lifetime = lifetime is not None or AUTO_DELETE in left
    durable, alternate = _flag(left, DURABLE, False), _text(left, ALTERNATE)
    if kind == QUEUE_POLICY:
        auto_delete = _flag(left, AUTO_DELETE, False)
        if not durable and not has_lifetime:
            auto_delete, left[LIFETIME] = True, TypedValue(STR16, UNTIL_EMPTY)
        elif lifetime is not None:
            auto_delete = LIFETIMES[str(lifetime)]
        arguments = TypedMap(tuple(left.items()))
        read_arguments(arguments)
        return NodePolicy(
            kind, pattern, compiled, steps, given, "", durable, auto_delete, alternate, arguments, EMPTY_MAP, created_at
        )
    type_name = _text(left, _EXCHANGE_TYPE) or "topic"
    exchange_type(type_name)
    auto_delete = _flag(left, AUTO_DELETE, not durable)
    if lifetime is not None:
        auto_delete = LIFETIMES[str(lifetime)]
        del left[LIFETIME]  # that of a subscription's queue is that of its link
    own = TypedMap(tuple((name, left.pop(name)) for name in (SEQUENCE, INITIAL_VALUE) if name in left))
    if FILTER in left:
        raise InvalidArgumentError(f"a {kind} has no {FILTER}: links have selectors")
    others = TypedMap(tuple(left.items()))
    read_arguments(others)
    return NodePolicy(
        kind, pattern, compiled, steps, given, type_name, durable, auto_delete, alternate, own, others, created_at
    )


class NodePolicies:
    """The policies of one broker.

    Args:
        store: persists durable ones; None to keep them in memory.
        authorization: checks who makes and deletes them.
        clock: seconds since 1970.

    Attributes:
        policies: pattern -> policy.
    """

    def __init__(self, store: Store | None, authorization: Authorization, clock: Callable[[], float]) -> None:
        self._store, self._authorization, self._clock = store, authorization, clock
        self.policies: dict[str, NodePolicy] = {}
        self._lock = asyncio.Lock()

    def recover(self) -> None:
        """Load the policies of the store. Those that are not valid are logged, and have no effect."""
        for number, record in {} if self._store is None else self._store.topology.general.items():
            if not isinstance(record, GeneralObject) or record.kind not in KINDS:
                continue
            try:
                policy = read_policy(record.kind, record.name, record.properties, self._clock())
                self._check_room(policy)
            except (InvalidArgumentError, NotFoundError, ResourceLimitExceededError) as error:
                _LOG.error("%s %s of the store is not used: %s", record.kind, printable(record.name), error)
                continue
            self.policies[record.name] = policy._replace(number=number)

    def _check_room(self, policy: NodePolicy) -> None:
        """Check that a policy may be added. Raises ResourceLimitExceededError."""
        if len(self.policies) >= MAX_POLICIES:
            raise ResourceLimitExceededError(f"there are {MAX_POLICIES} node policies; this is the maximum")
        if policy.steps + sum(each.steps for each in self.policies.values()) > MAX_STEPS:
            pattern = printable(policy.pattern)
            raise ResourceLimitExceededError(
                f"the patterns of all node policies together with {pattern} could take too long to match: "
                "anchor them with ^"
            )

    def match(self, name: str) -> NodePolicy | None:
        """The policy that applies to a name; None for none, and for a name that is too long for any node."""
        if len(name) > MAX_NAME:
            return None
        found = [each for each in self.policies.values() if each.compiled.search(name)]
        return max(found, key=lambda each: len(each.pattern), default=None)

    def of_subscriptions(self, exchange: str) -> NodePolicy | None:
        """The policy that the queues of subscriptions to an exchange follow; None for none."""
        if not self.policies or exchange in STANDARD_EXCHANGES or exchange.startswith(_RESERVED):
            return None
        policy = self.match(exchange)
        return policy if policy is not None and policy.kind == TOPIC_POLICY else None

    async def create(self, kind: str, pattern: str, properties: TypedMap, caller: Caller) -> None:
        """Make a policy.

        Raises:
            UnauthorizedError: the caller may not.
            InvalidArgumentError: the pattern or a property is not valid.
            NotFoundError: there is no such type of exchange.
            NotAllowedError: there is a policy with that pattern.
            ResourceLimitExceededError: there are too many, or all patterns together could take too long to match.
            InternalError: the store cannot store it.
        """
        self._authorization.check(caller, Action.CREATE, _object_of(kind), pattern)
        policy = read_policy(kind, pattern, properties, self._clock())
        async with self._lock:
            existing = self.policies.get(pattern)
            if existing is not None:
                raise NotAllowedError(f"a {existing.kind} with the name {printable(pattern)} already exists")
            self._check_room(policy)
            if policy.durable and self._store is not None:
                entries = dict(properties.entries) | {DURABLE: typed_value(True)}
                record = GeneralObject(kind, pattern, TypedMap(tuple(entries.items())))
                ask = partial(self._store.changes.create_general, record)
                policy = policy._replace(number=await make_in(self._store, ask))
            self.policies[pattern] = policy
        _LOG.info("%s %s was made by %s", kind, printable(pattern), caller.user or "the broker")

    async def delete(self, kind: str, pattern: str, caller: Caller) -> None:
        """Delete a policy; what was made by it stays.

        Raises:
            UnauthorizedError: the caller may not.
            NotFoundError: there is no such policy.
            InternalError: the store cannot delete it.
        """
        self._authorization.check(caller, Action.DELETE, _object_of(kind), pattern)
        async with self._lock:
            policy = self.policies.get(pattern)
            if policy is None or policy.kind != kind:
                raise NotFoundError(f"No such {kind}: {printable(pattern)}")
            if policy.number is not None:
                assert self._store is not None, "it has given the number"
                await run_in(self._store, partial(self._store.changes.delete_general, policy.number))
            del self.policies[pattern]
        _LOG.info("%s %s was deleted by %s", kind, printable(pattern), caller.user or "the broker")


def _object_of(kind: str) -> ObjectType:
    return ObjectType.QUEUE if kind == QUEUE_POLICY else ObjectType.EXCHANGE
