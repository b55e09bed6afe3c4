"""Exchanges that divide messages among their queues: each message goes to one of them.

    x-consistent-hash    by the hash of the key, or of something else; the binding key is the weight of the binding, a
                         positive integer: a queue with weight 2 gets twice as many of the hash values as one with
                         weight 1
    x-modulus-hash       by the hash of the key, modulo the number of queues, which are numbered by name
    x-random             at random

With x-consistent-hash, which binding gets a value depends on nothing but the names, the weights and the value (weighted
rendezvous hashing), so it is the same after a restart; a queue that comes takes its share from all others, and the
share of one that goes is divided among the others: nothing else moves.

    hash-header      argument of the exchange: the header by whose value messages are divided
    hash-property    likewise: correlation_id, message_id or timestamp

Without either, the key counts, and a route is cached for each key. Messages without the header or the property all go
to the same queue.

With the others, the binding key has no meaning, and neither has how often a queue is bound. With x-modulus-hash, the
same keys go to the same queues after a restart; if a queue comes or goes, almost all keys go elsewhere.

Sources: RabbitMQ's plug-ins rabbitmq_consistent_hash_exchange, rabbitmq_sharding (x-modulus-hash) and
rabbitmq_random_exchange (behaviour). Which queue a value goes to differs from RabbitMQ.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, insort
from collections.abc import Collection, Hashable, Iterable
from hashlib import blake2b
from math import log
from random import Random
from typing import ClassVar, Final

from qstore.broker.model.arguments import HASH_HEADER, HASH_PROPERTY, as_text, shown
from qstore.broker.model.errors import InvalidArgumentError, ResourceLimitExceededError
from qstore.broker.model.exchanges.exchange import Exchange, Headers
from qstore.broker.model.exchanges.matching import Steps, comparable
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.message import Message
from qstore.broker.model.queues.queue import Queue
from qstore.formats.values import TypedMap

CONSISTENT_HASH: Final = "x-consistent-hash"
MODULUS_HASH: Final = "x-modulus-hash"
RANDOM: Final = "x-random"
LOCAL_RANDOM: Final = "x-local-random"

MAX_WEIGHT: Final = 1_000_000

MAX_BINDINGS: Final = 5_000
"""Bindings of one exchange: all are looked at for a value whose route is not known, which takes a microsecond each."""

BINDING_STEPS: Final = 4
"""Steps for each."""

_PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")
_MASK: Final = (1 << 64) - 1
_MANTISSA: Final = 1 << 53


def hash_of(value: Hashable) -> int:
    """A 64-bit hash that is the same in every process."""
    return int.from_bytes(blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=8).digest())


# ---- by weights ----


class ConsistentHashExchange(Exchange):
    """One of type x-consistent-hash that divides messages by their keys."""

    kind: ClassVar[str] = CONSISTENT_HASH
    is_destination: ClassVar[bool] = True

    __slots__ = ("_shares",)

    def _set_up(self) -> None:
        self._shares: dict[Binding, tuple[int, float]] = {}  # the hash of its names, and its weight

    def matched(self, key: str, headers: Headers, steps: Steps) -> Collection[Binding]:  # noqa: ARG002 – only the key counts
        """The binding that gets this key."""
        return self._choose(key, steps)

    def _choose(self, value: Hashable, steps: Steps) -> tuple[Binding, ...]:
        """The binding that gets a value; none if there are no bindings. Takes `BINDING_STEPS` for each."""
        steps.left -= BINDING_STEPS * len(self._shares)
        wanted = hash_of(value)
        best: Binding | None = None
        highest = 0.0
        for binding, (own, weight) in self._shares.items():
            mixed = ((wanted ^ own) * 0x9E3779B97F4A7C15) & _MASK
            mixed = ((mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93) & _MASK
            score = log(((mixed ^ (mixed >> 32)) % _MANTISSA + 1) / _MANTISSA) / weight
            if best is None or score > highest:
                best, highest = binding, score
        return () if best is None else (best,)

    def prepare(self, queue: Queue, key: str, arguments: TypedMap) -> Binding | None:
        """As `Exchange.prepare`.

        Raises:
            InvalidArgumentError: the key is no weight.
            ResourceLimitExceededError: there are too many bindings.
        """
        weight_of(key)
        binding = super().prepare(queue, key, arguments)
        if binding is not None and len(self._shares) >= MAX_BINDINGS:
            raise ResourceLimitExceededError(f"the exchange has {MAX_BINDINGS:,} bindings; this is the maximum")
        return binding

    def _add(self, binding: Binding) -> None:
        self._shares[binding] = hash_of((binding.queue.name, binding.key)), float(weight_of(binding.key))
        super()._add(binding)

    def _remove(self, binding: Binding) -> None:
        super()._remove(binding)
        del self._shares[binding]


class ConsistentHashByValue(ConsistentHashExchange):
    """One that divides messages by a header or a property."""

    is_keyed: ClassVar[bool] = False

    __slots__ = ("_header", "_property")

    def _set_up(self) -> None:
        super()._set_up()
        self._header, self._property = hashed_by(self.arguments)

    def matched(self, key: str, headers: Headers, steps: Steps) -> Collection[Binding]:  # noqa: ARG002 – the key does not count
        """The binding that gets the value of the message."""
        if self._header:
            return self._choose(headers().get(self._header), steps)
        message = headers.message
        return self._choose(None if message is None else property_of(message, self._property), steps)


def weight_of(key: str) -> int:
    """The weight in a binding key. Raises InvalidArgumentError if it is none."""
    if not (key.isascii() and key.isdigit() and len(key) <= len(str(MAX_WEIGHT))):
        raise InvalidArgumentError(f"the binding key must be a weight, an integer greater than 0, and is {shown(key)}")
    weight = int(key)
    if not 0 < weight <= MAX_WEIGHT:
        raise InvalidArgumentError(f"the binding key must be greater than 0, and at most {MAX_WEIGHT:,}")
    return weight


def property_of(message: Message, name: str) -> Hashable:
    """A property of a message, by its name in AMQP 0-9-1; None if it has none."""
    properties = message.whole().properties()
    if name == "timestamp":
        return properties.created_at
    return comparable(properties.correlation_id if name == "correlation_id" else properties.message_id)


def hashed_by(arguments: TypedMap) -> tuple[str, str]:
    """The header and the property by which an exchange with these arguments divides messages; empty for none.

    Raises:
        InvalidArgumentError: the arguments are not valid.
    """
    header, wanted = (_text(arguments, name) for name in (HASH_HEADER, HASH_PROPERTY))
    if header and wanted:
        raise InvalidArgumentError(f"{HASH_HEADER} and {HASH_PROPERTY} are mutually exclusive")
    if wanted and wanted not in _PROPERTIES:
        raise InvalidArgumentError(f"Unsupported property: {wanted}: {HASH_PROPERTY} is {_one_of(_PROPERTIES)}")
    return header, wanted


def _text(arguments: TypedMap, name: str) -> str:
    typed = arguments.get(name)
    if typed is None:
        return ""
    value = as_text(typed.value)
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(f"{name} is {shown(value)}, not the name of a header or a property")
    return value


def _one_of(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


def consistent_hash_type(arguments: TypedMap) -> type[Exchange]:
    """The class of an exchange with these arguments. Raises InvalidArgumentError: they are not valid."""
    return ConsistentHashByValue if any(hashed_by(arguments)) else ConsistentHashExchange


# ---- by numbers ----


class _NumberedQueues(Exchange):
    """One that chooses among its queues by their numbers, in the order of their names."""

    is_destination: ClassVar[bool] = True

    __slots__ = ("_queues",)

    def _set_up(self) -> None:
        self._queues: list[Queue] = []

    @abstractmethod
    def _number(self, key: str, count: int) -> int:
        """The number of the queue that gets a message with this key, less than their count."""

    def matched(self, key: str, headers: Headers, steps: Steps) -> Collection[Binding]:  # noqa: ARG002
        """A binding of the queue that gets the message."""
        queues = self._queues
        if not queues:
            return ()
        held = self._by_queue[queues[self._number(key, len(queues))]]
        return (next(iter(held.values())),)

    def _add(self, binding: Binding) -> None:
        if binding.queue not in self._by_queue:
            insort(self._queues, binding.queue, key=_name)
        super()._add(binding)

    def _remove(self, binding: Binding) -> None:
        super()._remove(binding)
        if binding.queue not in self._by_queue:
            at = bisect_left(self._queues, binding.queue.name, key=_name)
            del self._queues[self._queues.index(binding.queue, at)]


class ModulusHashExchange(_NumberedQueues):
    """One of type x-modulus-hash."""

    kind: ClassVar[str] = MODULUS_HASH

    __slots__ = ()

    def _number(self, key: str, count: int) -> int:
        return hash_of(key) % count


class _RandomQueues(_NumberedQueues):
    """Takes a queue at random."""

    is_keyed: ClassVar[bool] = False
    is_even: ClassVar[bool] = False

    __slots__ = ("_random",)

    def _set_up(self) -> None:
        super()._set_up()
        self._random = Random(self.name)  # noqa: S311 – it need not be unpredictable, and simulations repeat it

    def _number(self, key: str, count: int) -> int:  # noqa: ARG002 – nothing counts
        return int(self._random.random() * count)


class RandomExchange(_RandomQueues):
    """One of type x-random."""

    kind: ClassVar[str] = RANDOM

    __slots__ = ()


class LocalRandomExchange(_RandomQueues):
    """One of type x-local-random: all queues of this broker are local."""

    kind: ClassVar[str] = LOCAL_RANDOM

    __slots__ = ()


def _name(queue: Queue) -> str:
    return queue.name
