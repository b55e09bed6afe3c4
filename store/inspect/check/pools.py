"""The files of a linearstore's pools: whether journals can take unused ones, and whether taken ones are in use.

At its start qpidd examines the unused files; it resets those that are not reset, and ignores invalid ones.
Source: formats/qls/README.md, 3.4.
"""

from __future__ import annotations

from collections.abc import Iterable

from qstore.formats.qls.errors import QlsError
from qstore.formats.qls.file_header import (
    FILE_HEADER_SIZE,
    NAME_OFFSET,
    FileHeader,
    decode_file_header,
    header_oddities,
)
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.disk import Disk
from qstore.store.journal.journal import Journal
from qstore.store.journal.line.files import FilePool, LinearFile, PooledFile


def check_pools(disk: Disk, pool: FilePool, journals: Iterable[Journal]) -> tuple[list[Damage], list[str]]:
    """Damage and notices about a store's pools.

    Args:
        disk: reads them.
        pool: the pools' files.
        journals: all journals of the store.
    """
    damage: list[Damage] = []
    notices: list[str] = []
    for file in pool.waiting:
        _check_waiting(disk, file, damage, notices)
    notices.extend(f"{file.path}: was being returned to the pool; qpidd leaves it there" for file in pool.returned)
    in_use = {file.path: file for journal in journals for file in journal.files.files if isinstance(file, LinearFile)}
    for name, pooled in sorted(pool.taken.items()):
        used = in_use.get(pooled.path)
        if used is not None:
            _check_used(used, pooled, damage)
        elif name not in pool.linked:
            notices.append(f"{pooled.path}: taken from the pool, but no journal has a link to it; it is not read")
    return damage, notices


def _check_waiting(disk: Disk, pooled: PooledFile, damage: list[Damage], notices: list[str]) -> None:
    try:
        file = disk.open(pooled.path)
        try:
            size, sector = file.size, file.read(0, FILE_HEADER_SIZE)
        finally:
            file.close()
        if size < pooled.file_size:
            notices.append(
                f"{pooled.path}: has only {size:,} of {pooled.file_size:,} bytes, as if qpidd had been stopped while "
                "creating the file; no journal can take the file"
            )
            return
        header = decode_file_header(sector)
    except QlsError as error:
        damage.append(Damage(pooled.path, error.offset, None, DamageKind.POOL_FILE_BROKEN, problem=error.what))
        return
    except OSError as error:
        reason = error.strerror or str(error)
        damage.append(Damage(pooled.path, None, None, DamageKind.POOL_FILE_UNREADABLE, reason=reason))
        return
    if size != pooled.file_size:
        end, expected = min(size, pooled.file_size), pooled.file_size
        damage.append(Damage(pooled.path, end, None, DamageKind.POOL_FILE_SIZE, size=size, expected=expected))
    elif header.file_size != pooled.file_size:
        damage.append(Damage(pooled.path, 32, None, DamageKind.POOL_FILE_DATA_SIZE, recorded=header.data_size))
    _check_partition(header, pooled, damage, Effect.NO_JOURNAL_TAKES_IT)
    for offset, problem in header_oddities(sector):
        if offset < NAME_OFFSET:  # an old name may follow the fields, though its length is 0
            damage.append(Damage(pooled.path, offset, None, DamageKind.FILE_HEADER_ODD, problem=problem))
    _check_reset(header, pooled, damage, notices)


def _check_reset(header: FileHeader, pooled: PooledFile, damage: list[Damage], notices: list[str]) -> None:
    """Report a header that is not reset, or only partly."""
    fields = (
        (8, header.serial),
        (16, header.rid),
        (48, header.seconds),
        (56, header.nanoseconds),
        (64, header.file_number),
        (72, header.queue_name),
    )
    left = [offset for offset, value in fields if value]
    if header.serial and header.file_number and header.queue_name:
        notices.append(f'{pooled.path}: still has the header written for queue "{header.queue_name}"; qpidd resets it')
    elif left:
        damage.append(Damage(pooled.path, left[0], None, DamageKind.POOL_FILE_HALF_RESET))


def _check_used(used: LinearFile, pooled: PooledFile, damage: list[Damage]) -> None:
    if used.header is not None:
        _check_partition(used.header, pooled, damage, Effect.RECORDS_READ)


def _check_partition(header: FileHeader, pooled: PooledFile, damage: list[Damage], effect: Effect) -> None:
    if header.partition != pooled.partition:
        kind, recorded, partition = DamageKind.POOL_FILE_PARTITION, header.partition, pooled.partition
        damage.append(Damage(pooled.path, 26, None, kind, effect, recorded=recorded, partition=partition))
