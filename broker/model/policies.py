"""Policies: limits and destinations that an operator sets for queues and exchanges by the pattern of their names.

A policy has a virtual host, a name, a pattern, a priority, what it applies to, and a definition:

    key                       of         merged with the declaration's argument (`_KEYS`)
    ------------------------  ---------  -------------------------------------------------------
    message-ttl, expires      queues     the lower number
    max-length(-bytes)        queues     the lower number
    delivery-limit            queues     the lower number
    max-consumers             queues     the lower number
    max-age                   streams    the shorter interval
    stream-max-segment-size-bytes  streams  the lower number
    overflow                  queues     the argument, if it is given
    dead-letter-exchange      queues     the argument, if it is given
    dead-letter-routing-key   queues     the argument, if it is given
    dead-letter-strategy      queues     likewise; quorum queues that refuse publishers have at-least-once
    alternate-exchange        exchanges  that of the declaration, if there is one
    federation-upstream...    both       where messages are got from (`broker.federation.upstreams`); one of three keys

Of the policies that match an object, that of the highest priority applies, and no other; among equals the first by
name. Operator policies, for queues only, are chosen likewise; then the two are merged: the lower number, and for
overflow the operator's. Keys of features that a single broker has not (`IGNORED`) are accepted with a notice, all
others are refused.

What results for a queue are arguments (`effective`), which take the way of a declaration's: `QueueFactory.make` builds
a new queue by them, at a start too, and `QueueFactory.refit` changes the parts of a running one in place. No message is
lost or reordered: those beyond a new limit leave as if a message had arrived, in turns; a new TTL is for messages that
arrive from now on. The declared arguments stay as they are, for redeclarations and in the store.

A change is on the disk (`configuration`) before it takes effect, and its effect is complete when `set` or `delete`
returns. Queues are looked at in turns of a few milliseconds (`SLICE`).

Source: RabbitMQ, "Policies", "Operator Policies" and the documentation of each key.
"""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from collections.abc import Callable, Collection, Mapping
from re import Pattern
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qstore.broker.log.logs import log_of
from qstore.broker.model.arguments import NO_POLICY, Applied, as_text
from qstore.broker.model.configuration import Configuration, Record, Value, Values, object_of
from qstore.broker.model.errors import InvalidArgumentError, NotFoundError
from qstore.broker.model.exchanges.exchange import Exchange, refresh
from qstore.broker.model.patterns import compile_pattern
from qstore.broker.model.queues.arguments import (
    DEAD_EXCHANGE,
    DEAD_KEY,
    DEAD_STRATEGY,
    DELIVERY_LIMIT,
    EXPIRES,
    MAX_AGE,
    MAX_CONSUMERS,
    MAX_COUNT,
    MAX_SIZE,
    MESSAGE_TTL,
    OVERFLOW,
    POLICY_TYPE,
    SEGMENT_BYTES,
    is_quorum,
    is_stream,
    read_arguments,
    read_interval,
)
from qstore.broker.model.queues.due import is_brokers_own
from qstore.broker.model.queues.queue import Queue
from qstore.formats.broker_records.topology import GeneralObject, problem_of_new_name
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedMap, TypedValue, typed_map, typed_value
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.model.queues.composition import QueueFactory
    from qstore.broker.model.virtual_host import VirtualHost

_LOG: Final = log_of("Model")

POLICY: Final = "qstore.policy"
OPERATOR_POLICY: Final = "qstore.operator-policy"

SLICE: Final = 0.005
"""Seconds of a turn in which policies are applied."""

MAX_PRIORITY: Final = 1 << 31

APPLIES_TO: Final = ("queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all")

Definition: TypeAlias = Mapping[str, Value]


class _Key(NamedTuple):
    """A key of definitions: its argument, other names of that, and the checks of its value."""

    argument: str
    also: tuple[str, ...] = ()
    is_number: bool = False
    is_interval: bool = False
    is_operators: bool = True
    of_queues: bool = True


_KEYS: Final[Mapping[str, _Key]] = {
    "message-ttl": _Key(MESSAGE_TTL, is_number=True),
    "expires": _Key(EXPIRES, is_number=True),
    "max-length": _Key("x-max-length", (MAX_COUNT,), is_number=True),
    "max-length-bytes": _Key("x-max-length-bytes", (MAX_SIZE,), is_number=True),
    "delivery-limit": _Key(DELIVERY_LIMIT, is_number=True),
    "max-age": _Key(MAX_AGE, is_interval=True, is_operators=False),
    "stream-max-segment-size-bytes": _Key(SEGMENT_BYTES, is_number=True, is_operators=False),
    "max-consumers": _Key(MAX_CONSUMERS, is_number=True),
    "overflow": _Key(OVERFLOW, (POLICY_TYPE,)),
    "dead-letter-exchange": _Key(DEAD_EXCHANGE, is_operators=False),
    "dead-letter-routing-key": _Key(DEAD_KEY, is_operators=False),
    "dead-letter-strategy": _Key(DEAD_STRATEGY, is_operators=False),
    "alternate-exchange": _Key("alternate-exchange", is_operators=False, of_queues=False),
}
UPSTREAM: Final = "federation-upstream"
UPSTREAM_SET: Final = "federation-upstream-set"
UPSTREAM_PATTERN: Final = "federation-upstream-pattern"
UPSTREAMS: Final = (UPSTREAM, UPSTREAM_SET, UPSTREAM_PATTERN)
"""Keys that federate exchanges and queues. They have no effect on the object itself."""

DESTINATIONS: Final = ("dead-letter-exchange", "alternate-exchange")
"""Keys that send messages to an exchange."""

IGNORED: Final = (
    "queue-mode", "queue-version", "queue-master-locator", "queue-leader-locator", "target-group-size",
)  # fmt: skip
"""Keys of a cluster, or of the layout of queues on the disk, besides those that begin with `ha-`."""

_REFUSED: Final = {
    "max-priority": "the number of priorities cannot change; declare the queue with x-max-priority",
}


class Policy(NamedTuple):
    """One policy.

    Attributes:
        host, name: its virtual host and its name.
        pattern: the regular expression that names must match, as text.
        apply_to: one of `APPLIES_TO`.
        priority: higher ones win.
        definition: key -> value.
        user: whose upstreams it may use; empty for those of all users.
    """

    host: str
    name: str
    pattern: str
    apply_to: str
    priority: int
    definition: Definition
    user: str = ""


class _Matching(NamedTuple):
    policy: Policy
    pattern: Pattern[str]


def _matching(kind: str, policy: Policy) -> _Matching | None:
    try:
        return _Matching(policy, compile_pattern("its pattern", policy.pattern))
    except InvalidArgumentError as error:  # stored by another version
        _LOG.error('%s "%s" has no effect: %s', _described(kind), policy.name, error)
        return None


def _rank_of(each: _Matching) -> tuple[int, str]:
    return -each.policy.priority, each.policy.name


class Policies:
    """The policies of one broker.

    Args:
        configuration: stores them.
        hosts: name -> virtual host.
        factory: changes queues.

    Attributes:
        applied: called when a change of policies has its effect.
        checks: called with a policy whose user is set, where access is controlled; raise UnauthorizedError.
    """

    def __init__(
        self,
        configuration: Configuration,
        hosts: Mapping[str, VirtualHost],
        factory: QueueFactory,
    ) -> None:
        self._configuration, self._hosts, self._factory = configuration, hosts, factory
        self._by_kind: dict[str, dict[str, list[_Matching]]] = {POLICY: {}, OPERATOR_POLICY: {}}  # host -> by rank
        self._turn = asyncio.Lock()
        self._has_noticed: set[str] = set()
        self.applied: list[Callable[[], None]] = []
        self.checks: list[Callable[[Policy], None]] = []

    def recover(self) -> None:
        """Use the policies of the configuration records, before there are any queues."""
        for kind in self._by_kind:
            for host in {name[0] for name in self._configuration.of(kind)}:
                self._rank(kind, host)

    # ---- reading ----

    def all(self, kind: str = POLICY) -> list[Policy]:
        """All policies of a kind, by host and rank."""
        return [each.policy for _, ranked in sorted(self._by_kind[kind].items()) for each in ranked]

    def of_queue(self, host: str, name: str, arguments: TypedMap) -> Applied:
        """What applies to a queue, which need not exist."""
        if is_brokers_own(name):
            return NO_POLICY
        kind = "streams" if is_stream(arguments) else "quorum_queues" if is_quorum(arguments) else "classic_queues"
        targets = ("queues", "all", kind)
        return self._applied(host, name, targets, of_queues=True)

    def of_exchange(self, host: str, name: str) -> Applied:
        """What applies to an exchange, which need not exist."""
        return self._applied(host, name, ("exchanges", "all"), of_queues=False) if name else NO_POLICY

    def _applied(self, host: str, name: str, targets: Collection[str], *, of_queues: bool) -> Applied:
        own = self._first(POLICY, host, name, targets)
        operators = self._first(OPERATOR_POLICY, host, name, targets) if of_queues else None
        if own is None and operators is None:
            return NO_POLICY
        definition = {} if own is None else _effective_keys(own, of_queues=of_queues)
        for key, value in ({} if operators is None else _effective_keys(operators, of_queues=of_queues)).items():
            known = definition.get(key)
            definition[key] = _lower(known, value) if known is not None and _KEYS[key].is_number else value
        name, user = ("", "") if own is None else (own.name, own.user)
        return Applied(name, "" if operators is None else operators.name, definition, user)

    def _first(self, kind: str, host: str, name: str, targets: Collection[str]) -> Policy | None:
        for policy, pattern in self._by_kind[kind].get(host, ()):
            if policy.apply_to in targets and pattern.search(name):
                return policy
        return None

    # ---- changing ----

    async def set(self, policy: Policy, kind: str = POLICY) -> None:
        """Set a policy, in place of that with its name, and apply it.

        Raises:
            InvalidArgumentError: it is not valid.
            InternalError: the store cannot store it, and nothing has changed.
        """
        check_policy(policy, kind, self._has_noticed)
        record = Record(kind, (policy.host, policy.name))
        await self._change({record: _values(policy)}, (), policy.host)

    async def delete(self, host: str, name: str, kind: str = POLICY) -> None:
        """Delete a policy, and apply what is left.

        Raises:
            NotFoundError: there is none with this name.
            InternalError: the store cannot delete it, and nothing has changed.
        """
        record = Record(kind, (host, name))
        if self._configuration.get(record) is None:
            raise NotFoundError(f'{_described(kind)} "{name}" of virtual host "{host}" does not exist')
        await self._change({}, (record,), host)

    async def _change(self, puts: Mapping[Record, Values], deletes: Collection[Record], host: str) -> None:
        changed = (*puts, *deletes)

        def stored() -> None:
            for record in changed:
                self._rank_one(record)

        await self._configuration.change(puts, deletes, then=stored)
        await asyncio.shield(asyncio.ensure_future(self._apply(host)))
        for function in self.applied:
            function()

    def _rank(self, kind: str, host: str) -> None:
        all_of = ((key, each) for key, each in self._configuration.of(kind).items() if key[0] == host)
        found = [_matching(kind, _policy(own_host, name, values)) for (own_host, name), values in all_of]
        self._by_kind[kind][host] = sorted((each for each in found if each is not None), key=_rank_of)

    def _rank_one(self, record: Record) -> None:
        """Rank a policy that has changed, or forget one that is gone: there may be very many others."""
        kind, (host, name) = record
        ranked = [each for each in self._by_kind[kind].get(host, ()) if each.policy.name != name]
        values = self._configuration.get(record)
        changed = None if values is None else _matching(kind, _policy(host, name, values))
        if changed is not None:
            insort(ranked, changed, key=_rank_of)
        self._by_kind[kind][host] = ranked

    def forget(self, host: str) -> None:
        """The policies of a virtual host were deleted with it."""
        for ranked in self._by_kind.values():
            ranked.pop(host, None)

    # ---- applying ----

    async def _apply(self, name: str) -> None:
        """Apply the policies of a host to its queues and exchanges, in turns."""
        async with self._turn:
            host = self._hosts.get(name)
            if host is None:
                return
            has_changed, end = False, time.perf_counter() + SLICE
            for exchange in list(host.exchanges.values()):
                if time.perf_counter() > end:
                    await asyncio.sleep(0)
                    end = time.perf_counter() + SLICE
                if not exchange.is_deleted:
                    has_changed = self._set_alternate(host, exchange) or has_changed
            if has_changed:
                refresh(host.exchanges.values())
            for queue in list(host.queues.values()):
                if time.perf_counter() > end:
                    await asyncio.sleep(0)
                    end = time.perf_counter() + SLICE
                if not queue.is_deleted:
                    self._fit(host, queue)

    def _fit(self, host: VirtualHost, queue: Queue) -> None:
        applied = self.of_queue(host.name, queue.name, queue.arguments)
        if applied == queue.policy:
            return
        had_expiry = queue.expires_seconds
        if applied.definition != queue.policy.definition:
            self._factory.refit(host, queue, self.effective(queue.name, queue.arguments, applied))
        queue.policy = applied
        if queue.expires_seconds:
            if queue.expires_seconds != had_expiry:
                host.idle_queues.used(queue)
        elif had_expiry and not queue.auto_delete_seconds:
            host.idle_queues.forget(queue)

    def effective(self, name: str, arguments: TypedMap, applied: Applied) -> TypedMap:
        """The arguments of a queue as its declaration and its policies give them together."""
        merged = _merged(arguments, applied.definition)
        if merged is arguments:
            return arguments
        try:
            read_arguments(merged)
        except InvalidArgumentError as error:
            policies = " and ".join(f'"{each}"' for each in applied[:2] if each)
            _LOG.warning(
                'Queue "%s": policy %s does not go with its arguments and is not applied: %s', name, policies, error
            )
            return arguments
        return merged

    def for_new(self, host: str, name: str, arguments: TypedMap) -> tuple[Applied, TypedMap]:
        """What applies to a new queue, and its effective arguments."""
        applied = self.of_queue(host, name, arguments)
        return applied, self.effective(name, arguments, applied)

    def exchanges_recovered(self) -> None:
        """Apply the policies to all exchanges, after a start."""
        for host in self._hosts.values():
            for exchange in list(host.exchanges.values()):
                self._set_alternate(host, exchange)
            refresh(host.exchanges.values())

    def exchange_created(self, host: VirtualHost, exchange: Exchange) -> None:
        """Apply the policies to a new exchange."""
        self._set_alternate(host, exchange)
        if exchange.alternate is not None:
            refresh(host.exchanges.values())

    def _set_alternate(self, host: VirtualHost, exchange: Exchange) -> bool:
        """Give an exchange the alternate exchange of its policy. Returns whether it has another one than before."""
        before = exchange.alternate
        applied = exchange.policy = self.of_exchange(host.name, exchange.name)
        awaiting = host.topology.awaiting
        is_own = not exchange.has_policy_alternate and (exchange.alternate is not None or exchange in awaiting)
        if is_own:
            return False
        name = applied.definition.get("alternate-exchange")
        awaiting.pop(exchange, None)
        exchange.has_policy_alternate = name is not None
        exchange.alternate = None if name is None else host.exchanges.get(str(name))
        if name is not None and exchange.alternate is None:
            awaiting[exchange] = str(name)
        return exchange.alternate is not before


_CLASSIC, _QUORUM, _STREAMS, _EXCHANGES = "classic_queues", "quorum_queues", "streams", "exchanges"
_OF_KIND: Final[Mapping[str, frozenset[str]]] = {
    **{kind: frozenset((kind,)) for kind in (_CLASSIC, _QUORUM, _STREAMS, _EXCHANGES)},
    "queues": frozenset((_CLASSIC, _QUORUM, _STREAMS)),
}
"""What a policy applies to -> the kinds of objects."""
_OF_ALL_QUEUES: Final = ("max-length-bytes", "max-consumers")


def _kinds_of(key: str) -> frozenset[str]:
    """The kinds of objects for which a key has an effect; all for keys that are refused or ignored by themselves."""
    known = _KEYS.get(key)
    if known is None:
        return frozenset((_CLASSIC, _QUORUM, _STREAMS, _EXCHANGES))
    if not known.of_queues:
        return frozenset((_EXCHANGES,))
    if key in ("max-age", "stream-max-segment-size-bytes"):
        return frozenset((_STREAMS,))
    if key == "delivery-limit":
        return frozenset((_QUORUM,))
    return _OF_KIND["queues"] if key in _OF_ALL_QUEUES else frozenset((_CLASSIC, _QUORUM))


def check_policy(policy: Policy, kind: str, noticed: set[str]) -> None:
    """Raise InvalidArgumentError if a policy is not valid. `noticed` has the ignored keys that were logged already."""
    what = f'{_described(kind)} "{printable(policy.name)}"'
    for which, name in (("the name of a policy", policy.name), (f"{what}: the virtual host", policy.host)):
        problem = problem_of_new_name(name)
        if problem:
            raise InvalidArgumentError(f"{which} is not valid: {problem}")
    compile_pattern(f"{what}: its pattern", policy.pattern)
    if policy.apply_to not in APPLIES_TO:
        reason = f"it must be one of {', '.join(APPLIES_TO)}"
        raise InvalidArgumentError(f"{what}: apply-to cannot be {policy.apply_to!a:.64}: {reason}")
    if kind == OPERATOR_POLICY and policy.apply_to in ("exchanges", "all"):
        raise InvalidArgumentError(f"{what}: an operator policy applies to queues only")
    if isinstance(policy.priority, bool) or not isinstance(policy.priority, int):
        raise InvalidArgumentError(f"{what}: the priority must be a whole number")
    if abs(policy.priority) > MAX_PRIORITY:
        raise InvalidArgumentError(f"{what}: the priority is not a number from -{MAX_PRIORITY:,} to {MAX_PRIORITY:,}")
    if not policy.definition:
        raise InvalidArgumentError(f"{what}: its definition is empty")
    for key, value in policy.definition.items():
        _check_key(what, kind, key, value, noticed)
    if sum(key in policy.definition for key in UPSTREAMS) > 1:
        raise InvalidArgumentError(f"{what}: give one of {', '.join(UPSTREAMS)}")
    for key in policy.definition:
        kinds = _kinds_of(key)
        if policy.apply_to in _OF_KIND and not _OF_KIND[policy.apply_to] & kinds:
            _LOG.notice("%s: %s has no effect: it is for %s", what, key, " and ".join(sorted(kinds)).replace("_", " "))
    for key in ("dead-letter-routing-key", "dead-letter-strategy"):
        if key in policy.definition and "dead-letter-exchange" not in policy.definition:
            _LOG.notice("%s: %s has an effect for queues declared with x-dead-letter-exchange", what, key)


def _check_key(what: str, kind: str, key: str, value: object, noticed: set[str]) -> None:
    if key in IGNORED or key.startswith("ha-"):
        if key not in noticed:
            noticed.add(key[:32])
            _LOG.notice("%s: %s is ignored: this broker is not a cluster, and places messages by itself", what, key)
        return
    if key in UPSTREAMS and kind == POLICY:
        if not isinstance(value, str) or not value:
            raise InvalidArgumentError(f"{what}: {key} must be text")
        if key == UPSTREAM_PATTERN:
            compile_pattern(f"{what}: {key}", value)
        return
    known = _KEYS.get(key)
    if known is None:
        reason = _REFUSED.get(key, "there is no such key")
        raise InvalidArgumentError(f"{what}: {key!a:.64} cannot be set by a policy: {reason}")
    if kind == OPERATOR_POLICY and not known.is_operators:
        raise InvalidArgumentError(f"{what}: {key} cannot be set by an operator policy")
    if not known.of_queues:
        problem = problem_of_new_name(value) if isinstance(value, str) else "its name must be a string"
        if problem:
            raise InvalidArgumentError(f"{what}: {key} is not the name of an exchange: {problem}")
        return
    if known.argument == DEAD_EXCHANGE and isinstance(value, str) and value:
        problem = problem_of_new_name(value)
        if problem:
            raise InvalidArgumentError(f"{what}: {key} is not the name of an exchange: {problem}")
    if known.is_number and (isinstance(value, bool) or not isinstance(value, int)):
        raise InvalidArgumentError(f"{what}: {key} is {value!a:.64}, not a whole number")
    arguments = {known.argument: value}
    if known.argument in (DEAD_KEY, DEAD_STRATEGY):
        arguments[DEAD_EXCHANGE] = ""
    try:
        read_arguments(typed_map(arguments))
    except (InvalidArgumentError, ValueError) as error:
        raise InvalidArgumentError(f"{what}: {error}") from None


def _effective_keys(policy: Policy, *, of_queues: bool) -> dict[str, Value]:
    """The part of a definition that has an effect for queues, or for exchanges."""
    return {
        key: value
        for key, value in policy.definition.items()
        if key in UPSTREAMS or (key in _KEYS and _KEYS[key].of_queues is of_queues)
    }


def _merged(arguments: TypedMap, definition: Definition) -> TypedMap:
    if not definition:
        return arguments
    entries = dict(arguments.entries)
    for key, value in definition.items():
        if key in UPSTREAMS:
            continue
        known = _KEYS[key]
        name = next((each for each in (known.argument, *known.also) if each in entries), "")
        if not name:
            entries[known.argument] = typed_value(value)
        elif known.is_interval:
            entries[name] = _shorter(known.argument, entries[name], value)
        elif known.is_number:
            declared = entries[name].value
            if isinstance(declared, bytes):
                declared = declared.decode("utf-8", "replace")
            if isinstance(declared, str) and declared.isascii() and declared.isdigit():
                declared = int(declared)
            is_unlimited = name in known.also and declared == 0
            if (
                isinstance(declared, int)
                and isinstance(value, int)
                and (is_unlimited or _lower(declared, value) != declared)
            ):
                entries[name] = typed_value(value)
    if DEAD_EXCHANGE not in entries:
        for name in (DEAD_KEY, DEAD_STRATEGY):
            entries.pop(name, None)
    if MAX_COUNT in entries or MAX_SIZE in entries or POLICY_TYPE in entries:  # the broker's own names, as declared
        for name, own in (("x-max-length", MAX_COUNT), ("x-max-length-bytes", MAX_SIZE)):
            if name in entries and name not in arguments:
                entries[own] = entries.pop(name)
        if OVERFLOW not in arguments:
            overflow = entries.pop(OVERFLOW, None)
            if overflow is not None:
                entries[POLICY_TYPE] = typed_value("ring" if overflow.value == "drop-head" else "reject")
    return TypedMap(tuple(entries.items()))


def _shorter(name: str, declared: TypedValue, value: Value) -> TypedValue:
    """The shorter of two intervals; one that is not valid is left as it is."""
    try:
        is_declared = read_interval(name, as_text(declared.value)) <= read_interval(name, value)
    except InvalidArgumentError:
        is_declared = True
    return declared if is_declared else typed_value(value)


def _lower(one: Value, other: Value) -> Value:
    """The lower of two numbers; negative ones, of delivery-limit, are no limit."""
    if isinstance(one, int) and one < 0:
        return other
    return one if isinstance(other, int) and other < 0 else min(one, other)


_PREFIX: Final = "="  # before the keys of the definition, in a record


def _values(policy: Policy) -> Values:
    values: dict[str, Value] = {
        "pattern": policy.pattern, "apply-to": policy.apply_to, "priority": policy.priority,
    }  # fmt: skip
    for key, value in policy.definition.items():
        if isinstance(value, str | int):
            values[_PREFIX + key] = value
    if policy.user:
        values["user"] = policy.user
    return values


def _policy(host: str, name: str, values: Values) -> Policy:
    definition = {key[1:]: value for key, value in values.items() if key.startswith(_PREFIX)}
    priority = values.get("priority", 0)
    return Policy(
        host,
        name,
        str(values.get("pattern", "")),
        str(values.get("apply-to", "all")),
        priority if isinstance(priority, int) else 0,
        definition,
        str(values.get("user", "")),
    )


def _described(kind: str) -> str:
    return "operator policy" if kind == OPERATOR_POLICY else "policy"


def policy_of(host: str, name: str, properties: Mapping[str, Any]) -> Policy:
    """A policy as RabbitMQ's definitions and API spell it.

    Args:
        host: the virtual host of the policy.
        name: its name.
        properties: pattern, definition, and perhaps priority and apply-to (or apply_to).

    Raises:
        InvalidArgumentError: one of them is missing, unknown, or of the wrong type.
    """
    given = {key.replace("_", "-"): value for key, value in properties.items()}
    pattern, definition = given.pop("pattern", None), given.pop("definition", None)
    apply_to, priority = given.pop("apply-to", "all"), given.pop("priority", 0)
    given.pop("vhost", None)
    given.pop("name", None)
    if given:
        raise InvalidArgumentError(f"a policy has no {', '.join(sorted(map(str, given)))[:200]}")
    if not isinstance(pattern, str) or not isinstance(definition, Mapping) or not isinstance(apply_to, str):
        raise InvalidArgumentError("a policy needs a pattern (a string) and a definition (a map)")
    return Policy(host, name, pattern, apply_to, priority, dict(definition))


def policy_record(policy: Policy, kind: str) -> GeneralObject:
    """A policy as a store keeps it; for tools."""
    return object_of(Record(kind, (policy.host, policy.name)), _values(policy))


def recorded_policy(name: tuple[str, ...], values: Values) -> Policy:
    """The policy of a configuration record."""
    return _policy(name[0], name[1], values)
