"""The damage that can be planted in a journal, and where, so that `qstore-check` can detect it.

    flip       one bit of a message's record. Version 1 has no checksums: there it is a bit of the record's magic
    zeroed     4 KiB at the beginning of a message's record
    torn       only the first bytes of the last flush reached the disk. A crash leaves this: not damage, but a notice
    header     a file's header is overwritten with random bytes
    missing    a file is deleted
    foreign    a file has the content of another journal's file

The last records are never damaged, because that could not be distinguished from a torn tail. A journal with too little
content for the planned damage gets the most similar kind that is possible, or none.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.qls.file_header import FILE_HEADER_SIZE as LINEAR_HEADER_SIZE
from qstore.formats.rhm.geometry import FILE_HEADER_SIZE
from qstore.tools.generate.fleet import DamageKind, QueuePlan, StoreFormat
from qstore.tools.generate.history import QueueHistory, Sample
from qstore.tools.generate.ring_journals import GeneratedJournal, Spot

_PAGE: Final = 4096  # bytes that are zeroed
_TAIL: Final = 4 * _PAGE  # bytes before a journal's end, and
_TAIL_FLUSHES: Final = 4  # ... flushes, in which only the torn tail is planted
_KEPT_OF_TORN: Final = 64  # bytes of the last flush that reached the disk
_HEADER_BYTES: Final = 32  # of a record: at least in front of its data
_MAGIC_BYTES: Final = 4
_RUBBISH: Final = b"\xa5\x5a\xc3"


class HitRecord(NamedTuple):
    """A record that may be damaged: where it begins, and how many of its bytes are in that file."""

    spot: Spot
    size: int
    rid: int


class Target(NamedTuple):
    """A completed journal in which damage may be planted.

    Attributes:
        queue: the plan of its queue.
        records: records that may be damaged.
        torn: the bytes of a flush that a crash kept from the disk; None if they are not in one file.
        files: those that were written, by number.
    """

    queue: QueuePlan
    records: tuple[HitRecord, ...]
    torn: HitRecord | None
    files: tuple[str, ...]


class PlantedDamage(NamedTuple):
    """Damage that was planted.

    Attributes:
        queue: name of the queue.
        kind: kind of damage.
        path: the file.
        offset, length: the changed bytes.
        rid: the affected record, if it is one message's.
    """

    queue: str
    kind: DamageKind
    path: str
    offset: int
    length: int
    rid: int | None = None


def target(format_: StoreFormat, plan: QueuePlan, journal: GeneratedJournal, history: QueueHistory) -> Target:
    """What may be damaged in a finished journal."""
    data_size = plan.geometry.data_size
    is_ring = format_ is not StoreFormat.LINEARSTORE
    # In a ring that has wrapped around, the oldest file is partly overwritten.
    oldest = journal.end - (plan.geometry.files - 1) * data_size if is_ring else 0

    def may_be_hit(sample: Sample) -> bool:
        is_inside = sample.place + sample.size + _TAIL <= journal.end
        return is_inside and sample.place >= oldest and sample.flush + _TAIL_FLUSHES <= history.flushes

    def hit(place: int, size: int, rid: int) -> HitRecord:
        return HitRecord(journal.spot(place), min(size, data_size - place % data_size), rid)

    records = (
        hit(each.place, _HEADER_BYTES + each.size, each.rid) for each in sorted(history.samples) if may_be_hit(each)
    )
    begin, end = history.last_flush, journal.end
    torn = None
    if begin < end and begin // data_size == (end - 1) // data_size:
        torn = hit(begin + _KEPT_OF_TORN, end - begin - _KEPT_OF_TORN, 0)
    return Target(plan, tuple(records), torn, tuple(journal.files()))


class Planter:
    """Plants damage in the journals of one store.

    Args:
        format: the store's format.
        source: random numbers.
        targets: all journals of the store.
    """

    def __init__(self, format_: StoreFormat, source: random.Random, targets: Sequence[Target]) -> None:
        self._format, self._source, self._targets = format_, source, targets
        self._header_size = LINEAR_HEADER_SIZE if format_ is StoreFormat.LINEARSTORE else FILE_HEADER_SIZE

    def plant(self) -> list[PlantedDamage]:
        """Plant the planned damage. Raises OSError."""
        planted = [self._plant(each, each.queue.damage) for each in self._targets if each.queue.damage is not None]
        return [damage for damage in planted if damage is not None]

    def _plant(self, hit: Target, kind: DamageKind) -> PlantedDamage | None:
        if kind is DamageKind.TORN and hit.torn is not None:
            zero(Path(hit.torn.spot.path), hit.torn.spot.offset, hit.torn.size)
            return PlantedDamage(hit.queue.name, kind, *hit.torn.spot, hit.torn.size)
        if not hit.records:
            return None
        record = self._source.choice(hit.records)
        if kind is DamageKind.ZEROED:
            return self._zero(hit, record)
        if kind is DamageKind.HEADER:
            return self._overwrite_header(hit, record)
        if kind is DamageKind.MISSING:
            return self._remove(hit, record)
        if kind is DamageKind.FOREIGN:
            return self._exchange(hit, record)
        return self._flip(hit, record)

    def _flip(self, hit: Target, record: HitRecord) -> PlantedDamage:
        path, offset = record.spot
        has_checksum = self._format is not StoreFormat.LEGACYSTORE
        at = offset + self._source.randrange(record.size if has_checksum else _MAGIC_BYTES)
        flip(Path(path), at, 1 << self._source.randrange(8))
        return PlantedDamage(hit.queue.name, DamageKind.FLIP, path, at, 1, record.rid)

    def _zero(self, hit: Target, record: HitRecord) -> PlantedDamage:
        path, offset = record.spot
        begin = max(self._header_size, offset // _PAGE * _PAGE)
        length = offset // _PAGE * _PAGE + _PAGE - begin
        zero(Path(path), begin, length)
        return PlantedDamage(hit.queue.name, DamageKind.ZEROED, path, begin, length, record.rid)

    def _overwrite_header(self, hit: Target, record: HitRecord) -> PlantedDamage:
        path, size = record.spot.path, self._header_size
        patch(Path(path), 0, (_RUBBISH * size)[:size])
        return PlantedDamage(hit.queue.name, DamageKind.HEADER, path, 0, size)

    def _remove(self, hit: Target, record: HitRecord) -> PlantedDamage:
        path = Path(record.spot.path)
        size = path.stat().st_size
        path.unlink()
        return PlantedDamage(hit.queue.name, DamageKind.MISSING, str(path), 0, size)

    def _exchange(self, hit: Target, record: HitRecord) -> PlantedDamage:
        number = hit.files.index(record.spot.path)
        # A file of version 1 does not identify its journal, only its number.
        others = [
            path
            for each in self._targets
            if each is not hit and each.queue.damage is None
            for at, path in enumerate(each.files)
            if at != number or self._format is not StoreFormat.LEGACYSTORE
        ]
        if not others:
            return self._overwrite_header(hit, record)
        path = Path(record.spot.path)
        size = path.stat().st_size
        replace_with(path, Path(self._source.choice(others)))
        return PlantedDamage(hit.queue.name, DamageKind.FOREIGN, str(path), 0, size)


# ---- bytes of files ----
#
# A file keeps its size, unless stated otherwise. Each function raises OSError. Tests use these functions, too.


def patch(path: Path, offset: int, content: bytes) -> None:
    """Overwrite bytes."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def flip(path: Path, offset: int, mask: int = 1) -> None:
    """Flip the bits `mask` of one byte."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


def zero(path: Path, offset: int, count: int) -> None:
    """Overwrite bytes with zeros, at most up to the file's end."""
    patch(path, offset, bytes(max(0, min(count, path.stat().st_size - offset))))


def resize(path: Path, size: int) -> None:
    """Truncate a file, or extend it with zeros."""
    with path.open("r+b") as file:
        file.truncate(size)


def replace_with(path: Path, other: Path) -> None:
    """Give a file the content, and so the size, of another one."""
    path.write_bytes(other.read_bytes())
