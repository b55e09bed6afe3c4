"""The files of a linearstore's pools: whether journals can take them, and whether those that are taken are in use.

At its start qpidd looks at the waiting files; one that is not reset it resets, one that is wrong it leaves out.
Source: formats page, section 14.5.
"""

from __future__ import annotations

from collections.abc import Iterable

from formats.qls.errors import QlsError
from formats.qls.file_header import FILE_HEADER_SIZE, FileHeader, decode_file_header
from store.damage import Damage
from store.disk import Disk
from store.file_pool import FilePool, PooledFile
from store.journal.journal import Journal
from store.journal.linear_file import LinearFile

_NOT_TAKEN = "no journal can take it"


def check_pools(disk: Disk, pool: FilePool, journals: Iterable[Journal]) -> tuple[list[Damage], list[str]]:
    """Damage and notices about a store's pools.

    Args:
        disk: where to read.
        pool: the pools' files.
        journals: all journals of the store.
    """
    damage: list[Damage] = []
    notices: list[str] = []
    for file in pool.waiting:
        _check_waiting(disk, file, damage, notices)
    notices.extend(f"{file.path}: was on its way back to the pool; qpidd leaves it there" for file in pool.returned)
    in_use = {file.path: file for journal in journals for file in journal.files.files if isinstance(file, LinearFile)}
    for name, pooled in sorted(pool.taken.items()):
        used = in_use.get(pooled.path)
        if used is not None:
            _check_used(used, pooled, damage)
        elif name not in pool.linked:
            notices.append(f"{pooled.path}: taken from the pool, and no journal has a link to it; it is not read")
    return damage, notices


def _check_waiting(disk: Disk, pooled: PooledFile, damage: list[Damage], notices: list[str]) -> None:
    try:
        file = disk.open(pooled.path)
        try:
            size, sector = file.size, file.read(0, FILE_HEADER_SIZE)
        finally:
            file.close()
        header = decode_file_header(sector)
    except QlsError as error:
        damage.append(Damage(pooled.path, error.offset, None, error.what, _NOT_TAKEN))
        return
    except OSError as error:
        damage.append(Damage(pooled.path, None, None, f"cannot be read: {error.strerror or error}", _NOT_TAKEN))
        return
    if size != pooled.file_size:
        what = f"file has {size} bytes, those of its pool have {pooled.file_size}"
        damage.append(Damage(pooled.path, min(size, pooled.file_size), None, what, _NOT_TAKEN))
    _check_partition(header, pooled, damage)
    if header.file_size != pooled.file_size:
        what = f"file header tells {header.data_size} bytes of data area, its pool is for another size"
        damage.append(Damage(pooled.path, 32, None, what, _NOT_TAKEN))
    if not header.is_reset:
        notices.append(f'{pooled.path}: still has the header that queue "{header.queue_name}" gave it; qpidd resets it')


def _check_used(used: LinearFile, pooled: PooledFile, damage: list[Damage]) -> None:
    if used.header is not None:
        _check_partition(used.header, pooled, damage)


def _check_partition(header: FileHeader, pooled: PooledFile, damage: list[Damage]) -> None:
    if header.partition != pooled.partition:
        what = f"file header tells partition {header.partition}, the file lies in partition {pooled.partition}"
        damage.append(Damage(pooled.path, 26, None, what, "none: its records are read"))
