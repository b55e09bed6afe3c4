"""The plan of a fleet and of each store: everything that is decided before a byte is written.

    FleetSpec -> StorePlan for each store -> QueuePlan for each of its queues

The plan depends only on the spec, so that a dry run shows what a run will do, and stores can be created in any order,
by several processes. The size can be given in two ways:

    bytes       the total size of the journals; messages are sent until each journal is nearly full
    messages    the number sent; each journal is made large enough, unless its geometry is given. If that is too
                small, more messages are consumed, and the ring wraps around
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from string import ascii_letters, digits
from typing import Final
from uuid import UUID

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.broker_records.xids import encode_dtx_xid
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.qls.file_header import FILE_HEADER_SIZE as LINEAR_HEADER_SIZE
from qstore.formats.qls.file_header import KIB
from qstore.formats.qls.records import SECTOR_SIZE
from qstore.formats.rhm.geometry import BLOCK_SIZE, MAX_FILES, PAGE_SIZE, Geometry, padded
from qstore.formats.values import typed_map
from qstore.tools.console.amounts import parse_amount


@dataclass(frozen=True, slots=True)
class BodySizes:
    """A distribution of sizes.

    Attributes:
        kind: "fixed", "uniform" or "lognormal".
        first: the size, the minimum, or the median, in bytes.
        last: the maximum, in bytes.
        sigma: for lognormal, the standard deviation of the logarithm.
    """

    kind: str
    first: int
    last: int
    sigma: float = 0.0

    @property
    def mean(self) -> float:
        """The mean size in bytes, ignoring that a lognormal distribution is truncated at its maximum."""
        if self.kind == "uniform":
            return (self.first + self.last) / 2
        return self.first * math.exp(self.sigma**2 / 2)

    def sampler(self, source: random.Random) -> Callable[[], int]:
        """Returns a function that draws sizes with the random numbers of `source`."""
        first, last, sigma = self.first, self.last, self.sigma
        if self.kind == "fixed":
            return lambda: first
        if self.kind == "uniform":
            span, uniform = last - first + 1, source.random
            return lambda: first + int(uniform() * span)
        normal = source.gauss
        return lambda: min(last, int(first * math.exp(normal(0.0, sigma))))


_RECORD: Final = 64  # bytes of a record that are neither xid nor data: the maximum of all formats


_XID: Final = 24  # of a local transaction


_FILES: Final = 8  # of a ring, unless it needs more


_FEWEST_FILES: Final = 4


_PREPARED_ON_PAGE: Final = 200  # transactions in doubt per page of a prepared list's files


PREPARED_LINEAR: Final = 64 * KIB  # bytes of data in each file of a linearstore's prepared list


_NEAR: Final = 0.02  # of the requested bytes


_MAX_PAGES: Final = 32767  # of a file, in every format


_LINEAR_FILE: Final = 2048 * KIB  # qpidd's default


_MIN_LINEAR_FILE: Final = 64 * KIB


_FILLED: Final = 0.7  # of a ring, by what was sent to it, if its geometry is derived from that


_STOPPED_AT: Final = 0.8  # of a ring: where sending to a journal of given size ends, before it has to free space


_FLUSH: Final = 12.0  # average number of messages in a flush


_IN_DOUBT_QUEUES: Final = 3  # largest number that a transaction in doubt touches


IN_DOUBT_RECORDS: Final = 3  # largest number of messages that it enqueues in a queue, and of those it dequeues


_KIBIBYTE: Final = BodySizes("fixed", 1024, 1024)


class StoreFormat(StrEnum):
    """Format of the stores."""

    QSTORE = "qstore"
    LEGACYSTORE = "legacystore"
    LINEARSTORE = "linearstore"


class DamageKind(StrEnum):
    """A damage that can be planted."""

    FLIP = "flip"
    ZEROED = "zeroed"
    TORN = "torn"
    HEADER = "header"
    MISSING = "missing"
    FOREIGN = "foreign"


class PlanError(Exception):
    """The request cannot be fulfilled; the text says why."""


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """The request for a fleet.

    Attributes:
        seed: seed of all random numbers.
        format: format of the stores.
        stores, queues: number of stores, and of queues in each.
        messages: sent in each store; None if `total_bytes` is the limit.
        total_bytes: of all journals together.
        sizes: of bodies.
        spread: distribution over queues: see `sizes.parse_spread`.
        dequeued: share of the messages that are dequeued, 0 to 1.
        transactions: share of the messages that are sent in transactions.
        aborted: share of those transactions that are aborted.
        in_doubt: distributed transactions in doubt, in each store.
        exchanges: durable exchanges in each store.
        num_jfiles, jfile_size_pgs: geometry of the journals; None: as needed. A linearstore creates files as needed;
        the
            second is their size.
        damage: share of the journals that are damaged.
        damage_kinds: kinds to plant.
    """

    seed: int = 1
    format: StoreFormat = StoreFormat.QSTORE
    stores: int = 1
    queues: int = 10
    messages: int | None = 10_000
    total_bytes: int | None = None
    sizes: BodySizes = _KIBIBYTE
    spread: tuple[float, ...] | float = 1.0
    dequeued: float = 0.5
    transactions: float = 0.1
    aborted: float = 0.2
    in_doubt: int = 0
    exchanges: int = 2
    num_jfiles: int | None = None
    jfile_size_pgs: int | None = None
    damage: float = 0.0
    damage_kinds: tuple[DamageKind, ...] = tuple(DamageKind)


class QueuePlan(NamedTuple):
    """The plan of one queue.

    Attributes:
        number: from 1; also its id in the catalogue.
        name: its name, and the routing key of its messages.
        exchange: number of the exchange to which they are sent, from 1.
        geometry: of its journal; for a linearstore the number of files is an upper estimate.
        messages: how many are sent; None: until the journal is nearly full.
        room: bytes of records after which sending ends.
        expected: estimate of the number of messages.
        in_doubt: ids of the transactions in doubt that touch it.
        damage: kind of damage planted in its journal.
    """

    number: int
    name: str
    exchange: int
    geometry: Geometry
    messages: int | None
    room: int
    expected: int
    in_doubt: tuple[bytes, ...]
    damage: DamageKind | None

    @property
    def size(self) -> int:
        """Size of its journal's files in bytes."""
        return self.geometry.files * self.geometry.file_size


class StorePlan(NamedTuple):
    """The plan of one store.

    Attributes:
        number: from 1.
        name: of its directory.
        seed: its own seed, 32 bits.
        exchanges: their names, by number from 1.
        queues: its queues.
        prepared: estimate of the maximum size of its prepared list's files, in bytes.
    """

    number: int
    name: str
    seed: int
    exchanges: tuple[str, ...]
    queues: tuple[QueuePlan, ...]
    prepared: int

    @property
    def size(self) -> int:
        """Size of its journals' files in bytes; for a linearstore an upper estimate."""
        return self.prepared + sum(queue.size for queue in self.queues)


def store_seed(spec: FleetSpec, number: int) -> int:
    """The seed of a store: 32 bits."""
    return seeded(spec.seed, "store", number).getrandbits(32)


def factory(store: StorePlan, queue: QueuePlan, text: bytes) -> MessageFactory:
    """The generator of a queue's messages."""
    exchange = store.exchanges[queue.exchange - 1] if queue.exchange else ""
    return MessageFactory(queue.name, exchange, queue.name, queue_prefix(store.seed, queue.number), text)


def queue_source(spec: FleetSpec, store: int, queue: int, purpose: str) -> random.Random:
    """The random numbers of a queue for one purpose."""
    return seeded(spec.seed, store, queue, purpose)


def plan_store(spec: FleetSpec, number: int) -> StorePlan:
    """Plan the store with that number, from 1.

    Raises:
        PlanError: no journal is large enough.
    """
    source = seeded(spec.seed, "plan", number)
    in_doubt = _in_doubt(spec, source)
    exchanges = tuple(f"exchange.{each:02}" for each in range(1, spec.exchanges + 1))
    queues = []
    for index, share in enumerate(shares(spec.spread, spec.queues), 1):
        name = f"queue.{index:04}"
        exchange = source.randint(1, spec.exchanges) if spec.exchanges else 0
        damage = source.choice(spec.damage_kinds) if source.random() < spec.damage else None
        touched = tuple(in_doubt.get(index, ()))
        geometry, messages, room, expected = _size(spec, number, index, share, name, len(touched))
        queues.append(QueuePlan(index, name, exchange, geometry, messages, room, expected, touched, damage))
    seed, prepared = store_seed(spec, number), _prepared_size(spec)
    return StorePlan(number, f"STORE-{number:04}", seed, exchanges, tuple(queues), prepared)


def prepared_geometry(spec: FleetSpec) -> Geometry:
    """The geometry of prepared lists that are rings."""
    return Geometry.from_pages(_FILES, 1 + spec.in_doubt // _PREPARED_ON_PAGE)


def _prepared_size(spec: FleetSpec) -> int:
    """Size of a prepared list's files in bytes. qpidd creates the list when it is needed."""
    if spec.format is not StoreFormat.QSTORE and not spec.transactions and not spec.in_doubt:
        return 0
    if spec.format is not StoreFormat.LINEARSTORE:
        geometry = prepared_geometry(spec)
        return geometry.files * geometry.file_size
    # Each record occupies a sector: three of the last transaction of a queue, and one of each in doubt.
    sectors = 3 * spec.queues * (spec.transactions > 0) + spec.in_doubt
    return -(-sectors * SECTOR_SIZE // PREPARED_LINEAR) * (PREPARED_LINEAR + LINEAR_HEADER_SIZE)


def _in_doubt(spec: FleetSpec, source: random.Random) -> dict[int, list[bytes]]:
    """Queue -> the transactions in doubt that touch it."""
    touched: dict[int, list[bytes]] = {}
    for _ in range(spec.in_doubt):
        xid = encode_dtx_xid(1145, source.randbytes(12), b"branch")
        for queue in source.sample(range(1, spec.queues + 1), min(spec.queues, source.randint(1, _IN_DOUBT_QUEUES))):
            touched.setdefault(queue, []).append(xid)
    return touched


class _Size(NamedTuple):
    geometry: Geometry
    messages: int | None
    room: int
    expected: int


def _size(spec: FleetSpec, store: int, queue: int, share: float, name: str, in_doubt: int) -> _Size:
    """Size of a queue's journal, and the number of messages sent to it."""
    exchange = "exchange.00" if spec.exchanges else ""
    head = header_size(name, exchange, name)
    mean = _RECORD + head + spec.sizes.mean + BLOCK_SIZE / 2 + BLOCK_SIZE * spec.dequeued
    mean += (SECTOR_SIZE if spec.format is StoreFormat.LINEARSTORE else 4 * BLOCK_SIZE) / 2 / _FLUSH
    # Each transaction in doubt has its own records, and space is reserved for the one that will end it.
    left_open = int(in_doubt * IN_DOUBT_RECORDS * (mean + 4 * BLOCK_SIZE))
    if spec.messages is None:
        assert spec.total_bytes is not None
        wanted = int(spec.total_bytes / spec.stores * share)
        geometry = _geometry(spec, wanted, name, _near_files(wanted))
        is_line = spec.format is StoreFormat.LINEARSTORE
        room = int(geometry.capacity * (1.0 if is_line else _STOPPED_AT)) - left_open
        return _Size(geometry, None, room, max(1, int(room / mean)))
    messages = round(spec.messages * share)
    sampler = spec.sizes.sampler(queue_source(spec, store, queue, "sizes"))
    if spec.sizes.kind == "fixed":
        content = messages * padded(_RECORD + _XID + head + sampler())
    else:
        content = sum(padded(_RECORD + _XID + head + sampler()) for _ in range(messages))
    content += left_open + int(messages * (mean - _RECORD - head - spec.sizes.mean)) + (messages + 8) * BLOCK_SIZE
    return _Size(_geometry(spec, int(content / _FILLED), name), messages, content * 2, max(1, messages))


def _near_files(wanted: int) -> int:
    """The number of files with which a ring of whole pages comes close to `wanted` bytes: 8, if possible."""
    pages = wanted / PAGE_SIZE

    def error(files: int) -> float:
        return abs(max(1, round(pages / files)) * files - pages)

    by_distance = sorted(range(_FEWEST_FILES, 2 * _FILES + 1), key=lambda files: abs(files - _FILES))
    return next((files for files in by_distance if error(files) <= pages * _NEAR), min(by_distance, key=error))


def _geometry(spec: FleetSpec, wanted: int, name: str, near: int | None = None) -> Geometry:
    """The given geometry, completed so that the journal can hold `wanted` bytes.

    With `near` it has that many files, if no number is given, and about that many bytes.
    """
    if spec.format is StoreFormat.LINEARSTORE:
        size = min(_LINEAR_FILE, max(_MIN_LINEAR_FILE, wanted // _FILES // SECTOR_SIZE * SECTOR_SIZE))
        if spec.jfile_size_pgs is not None:
            size = spec.jfile_size_pgs * PAGE_SIZE
        return Geometry(max(1, -(-wanted // size)), size, LINEAR_HEADER_SIZE)
    files, pages = spec.num_jfiles, spec.jfile_size_pgs
    if pages is None:
        files = files or max(near or _FILES, -(-wanted // (_MAX_PAGES * PAGE_SIZE)))
        pages = max(1, round(wanted / (files * PAGE_SIZE)) if near else -(-wanted // (files * PAGE_SIZE)))
    elif files is None:
        files = max(_FEWEST_FILES, -(-wanted // (pages * PAGE_SIZE)))
    if files > MAX_FILES or pages > _MAX_PAGES:
        raise PlanError(
            f"{name}: {wanted:,} bytes do not fit into a journal: it has at most {MAX_FILES} files of {_MAX_PAGES:,} "
            "pages; use more stores, more queues, larger files or less content"
        )
    return Geometry.from_pages(files, pages)


# ---- distributions ----
#
# 1024, fixed:1024        every body has 1,024 bytes
# uniform:100-4096        every size in the range is equally likely
# lognormal:1024,0.8      half of the bodies are smaller than 1,024 bytes, and a few are much larger: the logarithm of
#                         the size has the standard deviation 0.8; like most real traffic
#
# zipf:1.1                the nth queue gets a share in proportion to 1 / n^1.1
# equal                   each the same
# 5,3,1                   in these proportions, repeated for further queues

MAX_BODY: Final = 16 << 20  # bytes


_MAX_SIGMA: Final = 5.0


_MAX_EXPONENT: Final = 10.0


def parse_sizes(text: str) -> BodySizes:
    """Parse a distribution of sizes.

    Raises:
        ValueError: `text` is not one.
    """
    kind, colon, rest = text.partition(":")
    if not colon:
        kind, rest = "fixed" if text[:1].isdigit() else "", text
    if kind == "fixed":
        size = _body(rest)
        return BodySizes("fixed", size, size)
    if kind == "uniform":
        low, dash, high = rest.partition("-")
        if dash and _body(low) <= _body(high):
            return BodySizes("uniform", _body(low), _body(high))
    if kind == "lognormal":
        median, comma, sigma = rest.partition(",")
        deviation = _number(sigma, _MAX_SIGMA) if comma else 1.0
        return BodySizes("lognormal", _body(median), MAX_BODY, deviation)
    raise ValueError(f"{text!r} is not a distribution of sizes; examples: 1024, uniform:100-4096, lognormal:1024,0.8")


def parse_spread(text: str) -> tuple[float, ...] | float:
    """Parse a distribution over queues: the proportions, or the exponent of a Zipf-like law; 0 means equal shares.

    Raises:
        ValueError: `text` is neither.
    """
    if text == "equal":
        return 0.0
    kind, colon, rest = text.partition(":")
    if colon and kind == "zipf":
        return _number(rest, _MAX_EXPONENT)
    try:
        proportions = tuple(float(each) for each in text.split(","))
    except ValueError:
        proportions = ()
    if not proportions or not all(0 < each < math.inf for each in proportions):
        raise ValueError(f"{text!r} is not a distribution over queues; examples: zipf:1.1, equal, 5,3,1")
    return proportions


def shares(spread: Sequence[float] | float, count: int) -> list[float]:
    """The share of each of `count` queues; the sum is 1."""
    if isinstance(spread, float):
        weights = [number**-spread for number in range(1, count + 1)]
    else:
        assert not isinstance(spread, int)
        weights = [spread[number % len(spread)] for number in range(count)]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _body(text: str) -> int:
    size = parse_amount(text)
    if size > MAX_BODY:
        raise ValueError(f"{text!r} is more than {MAX_BODY >> 20} MiB, the largest body that is supported")
    return size


def _number(text: str, maximum: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= maximum:
        raise ValueError(f"{text!r} is not a number from 0 to {maximum:g}")
    return number


# ---- messages ----
#
#     message id          32 bits of the store's seed, 32 of the queue's number (some of them the version of a UUID),
#                         and the place
#     headers             `seq`, the place; `producer`, the queue's name
#     timestamp           one second later for every `_RATE` messages
#     priority            0 to 9; mostly 4
#     body                printable text, a piece of one block that all messages of the fleet share
#
# A message's header is encoded once for each priority of a queue; the variable fields are packed into it.

#: The start time of every fleet, in seconds since 1970: a fleet must not depend on the time of its creation.
BEGINNING: Final = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())


_RATE: Final = 100  # messages of a queue per second


_BLOCK: Final = 1 << 20  # bytes of text


_STRIDE: Final = 7919  # bytes between the bodies of consecutive messages: a prime


_ALPHABET: Final = (ascii_letters + digits + "  ").encode()


_PRIORITIES: Final = 10


_USUAL_PRIORITY: Final = 4


_VERSION: Final = 0x4000  # of a UUID, among its first 64 bits


_VARIANT: Final = 0x8 << 60


# Placeholders for variable fields while a header is encoded: no other field has such a value.
_CONTENT_LENGTH: Final = 0x1122334455667701


_MESSAGE_ID: Final = UUID(int=0xA1B2C3D4_E5F60718_293A4B5C_6D7E8F90)


_SEQUENCE: Final = 0x1122334455667703


_TIMESTAMP: Final = 0x1122334455667704


def body_text(seed: int) -> bytes:
    """The block of text from which all bodies of a fleet are cut."""
    source = seeded(seed, "text")
    table = bytes(_ALPHABET[value % len(_ALPHABET)] for value in range(256))
    return source.randbytes(_BLOCK).translate(table)


def queue_prefix(store_seed: int, queue: int) -> int:
    """The first 64 bits of the message ids of a queue."""
    return store_seed << 32 | (queue >> 12 & 0xFFFF) << 16 | _VERSION | queue & 0xFFF


def message_id(prefix: int, place: int) -> UUID:
    """The message id of the message at `place` of the queue with that prefix."""
    return UUID(int=prefix << 64 | _VARIANT | place)


def header_size(queue: str, exchange: str, key: str) -> int:
    """Bytes stored in front of the body of each message of a queue."""
    return _packer(queue, exchange, key, _USUAL_PRIORITY)[0].size


class MessageFactory:
    """Creates the messages of one queue.

    Args:
        queue: the queue's name.
        exchange: to which they were sent.
        key: their routing key.
        prefix: `queue_prefix` of the queue.
        text: `body_text` of the fleet.
    """

    def __init__(self, queue: str, exchange: str, key: str, prefix: int, text: bytes) -> None:
        self._prefix, self._text = prefix, text
        self._packers = [_packer(queue, exchange, key, priority) for priority in range(_PRIORITIES)]

    def message(self, place: int, size: int) -> bytes:
        """The data of the enqueue record of the message at `place`, with a body of `size` bytes."""
        # One message in sixteen has another priority.
        priority = _USUAL_PRIORITY if place & 15 else (place >> 4) % _PRIORITIES
        packer, (first, second, third, fourth, last) = self._packers[priority]
        head = packer.pack(
            first, size, second, self._prefix, _VARIANT | place, third, place, fourth, BEGINNING + place // _RATE, last
        )
        return head + self.body(place, size)

    def body(self, place: int, size: int) -> bytes:
        """The body of the message at `place`."""
        text = self._text
        at = place * _STRIDE % _BLOCK
        if at + size <= _BLOCK:
            return text[at : at + size]
        return (text[at:] + text * (size // _BLOCK + 1))[:size]


def _packer(queue: str, exchange: str, key: str, priority: int) -> tuple[struct.Struct, tuple[bytes, ...]]:
    """Packs a header: the struct, and the constant pieces between the fields, in the order of `message`."""
    whole = encode_message(
        b"",
        destination=exchange,
        delivery_properties={
            "priority": priority,
            "delivery_mode": 2,
            "timestamp": _TIMESTAMP,
            "exchange": exchange,
            "routing_key": key,
        },
        message_properties={
            "content_length": _CONTENT_LENGTH,
            "message_id": _MESSAGE_ID,
            "content_type": "text/plain",
            "application_headers": typed_map({"seq": _SEQUENCE, "producer": queue}),
        },
        last_segment=False,
    )
    pieces, at = [], 0
    for field in (_CONTENT_LENGTH.to_bytes(8), _MESSAGE_ID.bytes, _SEQUENCE.to_bytes(8), _TIMESTAMP.to_bytes(8)):
        found = whole.index(field, at)
        pieces.append(whole[at:found])
        at = found + len(field)
    pieces.append(whole[at:])
    sizes = [len(piece) for piece in pieces]
    form = ">{}sQ{}sQQ{}sQ{}sQ{}s".format(*sizes)
    return struct.Struct(form), tuple(pieces)


# ---- random numbers ----


def seeded(*purpose: int | str) -> random.Random:
    """The random numbers for one purpose, determined by the fleet's seed and the purpose."""
    return random.Random("/".join(map(str, purpose)))  # noqa: S311 (nothing here is a secret)
