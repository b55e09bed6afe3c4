"""What a fleet is to be, and what follows for each of its stores: everything that is decided before a byte is written.

    FleetSpec -> StorePlan for each store -> QueuePlan for each of its queues

Nothing here depends on anything but the spec, so that a dry run tells what a run will do, and stores can be made in any
order, by several processes. Two ways lead to a size:

    bytes       the journals take so many; messages are sent until each journal is nearly full
    messages    so many are sent; each journal is made large enough, unless its geometry is given. Where that is too
                small, its consumers take more, and the ring goes round
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from formats.broker_records.xids import encode_dtx_xid
from formats.qls.file_header import FILE_HEADER_SIZE as LINEAR_HEADER_SIZE
from formats.qls.file_header import KIB
from formats.qls.records import SECTOR_SIZE
from formats.rhm.geometry import BLOCK_SIZE, MAX_FILES, PAGE_SIZE, Geometry, padded
from tools.generate.messages import MessageFactory, header_size, queue_prefix
from tools.generate.seeds import seeded
from tools.generate.sizes import BodySizes, shares

_RECORD: Final = 64  # bytes of a record that are neither xid nor data: the most that any format has
_XID: Final = 24  # of a local transaction
_FILES: Final = 8  # of a ring, unless it has to have more
_FEWEST_FILES: Final = 4
_PREPARED_ON_PAGE: Final = 200  # transactions in doubt, for each page of a prepared list's files
PREPARED_LINEAR: Final = 64 * KIB  # bytes of data in each file of one that is a line
_NEAR: Final = 0.02  # of the bytes that are asked for
_MOST_PAGES: Final = 32767  # of a file, in every format
_LINEAR_FILE: Final = 2048 * KIB  # qpidd's default
_LEAST_LINEAR_FILE: Final = 64 * KIB
_FILLED: Final = 0.7  # of a ring, by what was sent to it, where its geometry follows from that
_STOPPED_AT: Final = 0.8  # of a ring: where sending to a journal of given size ends, before it has to make room
_FLUSH: Final = 12.0  # messages in a flush, at a mean
_IN_DOUBT_QUEUES: Final = 3  # that a transaction in doubt touches at most
IN_DOUBT_RECORDS: Final = 3  # messages that it enqueues in a queue at most; and dequeues
_KIBIBYTE: Final = BodySizes("fixed", 1024, 1024)


class StoreFormat(StrEnum):
    """What the stores are."""

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
    """What is asked for cannot be made; the text says why."""


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """What a fleet is to be.

    Attributes:
        seed: all random numbers follow from it.
        format: of the stores.
        stores, queues: how many stores, and queues in each.
        messages: sent in each store; None where `total_bytes` says when it is enough.
        total_bytes: of all journals together.
        sizes: of bodies.
        spread: how queues share: see `sizes.parse_spread`.
        dequeued: share of the messages that were taken again, 0 to 1.
        transactions: share of the messages that were sent in transactions.
        aborted: share of those transactions that were aborted.
        in_doubt: distributed transactions in doubt, in each store.
        exchanges: durable exchanges in each store.
        num_jfiles, jfile_size_pgs: geometry of the journals; None: as it is needed. In a linearstore files are made as
            they are needed, and the second is their size.
        damage: share of the journals that are damaged.
        damage_kinds: what is planted.
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
    """What one queue is to be.

    Attributes:
        number: from 1; its id in the catalogue too.
        name: its name, and the routing key of its messages.
        exchange: number of the exchange to which they are sent, from 1.
        geometry: of its journal; of a linearstore the number of files is what will be needed at most, about.
        messages: how many are sent; None: until the journal is nearly full.
        room: bytes of records after which sending ends.
        expected: how many messages that will be, about.
        in_doubt: ids of the transactions in doubt that touch it.
        damage: what is planted in its journal.
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
        """Bytes of its journal's files."""
        return self.geometry.files * self.geometry.file_size


class StorePlan(NamedTuple):
    """What one store is to be.

    Attributes:
        number: from 1.
        name: of its directory.
        seed: of its own, 32 bits.
        exchanges: their names, by number from 1.
        queues: its queues.
        prepared: bytes of its prepared list's files; at most, about.
    """

    number: int
    name: str
    seed: int
    exchanges: tuple[str, ...]
    queues: tuple[QueuePlan, ...]
    prepared: int

    @property
    def size(self) -> int:
        """Bytes of its journals' files; of a linearstore the most that there will be, about."""
        return self.prepared + sum(queue.size for queue in self.queues)


def store_seed(spec: FleetSpec, number: int) -> int:
    """The seed of a store: 32 bits."""
    return seeded(spec.seed, "store", number).getrandbits(32)


def factory(store: StorePlan, queue: QueuePlan, text: bytes) -> MessageFactory:
    """What makes the messages of a queue."""
    exchange = store.exchanges[queue.exchange - 1] if queue.exchange else ""
    return MessageFactory(queue.name, exchange, queue.name, queue_prefix(store.seed, queue.number), text)


def queue_source(spec: FleetSpec, store: int, queue: int, purpose: str) -> random.Random:
    """The random numbers of a queue for one purpose."""
    return seeded(spec.seed, store, queue, purpose)


def plan_store(spec: FleetSpec, number: int) -> StorePlan:
    """What the store with that number, from 1, is to be.

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
    """Bytes of a prepared list's files. qpidd makes it when it is needed."""
    if spec.format is not StoreFormat.QSTORE and not spec.transactions and not spec.in_doubt:
        return 0
    if spec.format is not StoreFormat.LINEARSTORE:
        geometry = prepared_geometry(spec)
        return geometry.files * geometry.file_size
    # Each record takes a sector: three of the last transaction of a queue, and one of each in doubt.
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
    """How large a queue's journal is, and how much is sent to it."""
    exchange = "exchange.00" if spec.exchanges else ""
    head = header_size(name, exchange, name)
    mean = _RECORD + head + spec.sizes.mean + BLOCK_SIZE / 2 + BLOCK_SIZE * spec.dequeued
    mean += (SECTOR_SIZE if spec.format is StoreFormat.LINEARSTORE else 4 * BLOCK_SIZE) / 2 / _FLUSH
    # Each transaction in doubt has records of its own, and room is kept for the one that will end it.
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
    """The number of files with which a ring of whole pages comes near to `wanted` bytes: 8, if that is near enough."""
    pages = wanted / PAGE_SIZE

    def error(files: int) -> float:
        return abs(max(1, round(pages / files)) * files - pages)

    by_distance = sorted(range(_FEWEST_FILES, 2 * _FILES + 1), key=lambda files: abs(files - _FILES))
    return next((files for files in by_distance if error(files) <= pages * _NEAR), min(by_distance, key=error))


def _geometry(spec: FleetSpec, wanted: int, name: str, near: int | None = None) -> Geometry:
    """The geometry that is given, as far as it is; otherwise so that the journal takes `wanted` bytes.

    With `near` it has so many files, if nothing else is given, and about as many bytes.
    """
    if spec.format is StoreFormat.LINEARSTORE:
        size = min(_LINEAR_FILE, max(_LEAST_LINEAR_FILE, wanted // _FILES // SECTOR_SIZE * SECTOR_SIZE))
        if spec.jfile_size_pgs is not None:
            size = spec.jfile_size_pgs * PAGE_SIZE
        return Geometry(max(1, -(-wanted // size)), size, LINEAR_HEADER_SIZE)
    files, pages = spec.num_jfiles, spec.jfile_size_pgs
    if pages is None:
        files = files or max(near or _FILES, -(-wanted // (_MOST_PAGES * PAGE_SIZE)))
        pages = max(1, round(wanted / (files * PAGE_SIZE)) if near else -(-wanted // (files * PAGE_SIZE)))
    elif files is None:
        files = max(_FEWEST_FILES, -(-wanted // (pages * PAGE_SIZE)))
    if files > MAX_FILES or pages > _MOST_PAGES:
        raise PlanError(
            f"{name}: {wanted:,} bytes do not fit into a journal: it has at most {MAX_FILES} files of {_MOST_PAGES:,} "
            "pages; ask for more stores, more queues, larger files or less content"
        )
    return Geometry.from_pages(files, pages)
