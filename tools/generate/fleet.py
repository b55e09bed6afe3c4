"""The plan of a fleet and of each store: everything that is decided before a byte is written.

    FleetSpec -> StorePlan for each store -> QueuePlan for each of its queues

The plan depends only on the spec, so that a dry run shows what a run will do, and stores can be created in any order,
by several processes. The size can be given in two ways:

    bytes       the total size of the journals; messages are sent until each journal is nearly full
    messages    the number sent; each journal is made large enough, unless its geometry is given. If that is too
                small, more messages are consumed, and the ring wraps around
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from qstore.formats.broker_records.xids import encode_dtx_xid
from qstore.formats.qls.file_header import FILE_HEADER_SIZE as LINEAR_HEADER_SIZE
from qstore.formats.qls.file_header import KIB
from qstore.formats.qls.records import SECTOR_SIZE
from qstore.formats.rhm.geometry import BLOCK_SIZE, MAX_FILES, PAGE_SIZE, Geometry, padded
from qstore.tools.generate.messages import MessageFactory, header_size, queue_prefix
from qstore.tools.generate.seeds import seeded
from qstore.tools.generate.sizes import BodySizes, shares

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
