"""The report of the empty file pools (formats/qls/README.md, 3.4).

A partition `pNNN` has below `efp` a directory for each size of data area, `<size>k`. Waiting files are in it, the
others in its directories `in_use` and `returned`. A waiting file counts if it has the size of its pool and a header
without a number, a time and a queue's name; of the others only the names are examined.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from qstore.formats.qls.errors import QlsError
from qstore.formats.qls.file_header import FILE_HEADER_SIZE, KIB, NAME_OFFSET, decode_file_header
from qstore.formats.qls.records import MAGICS
from qstore.formats.rhm.records import Kind
from qstore.store.disk import Disk
from qstore.tools.console.text import one_line
from qstore.tools.qls_analyze.files import SUFFIX
from qstore.tools.qls_analyze.problems import Problems

_PARTITION_NAME: Final = re.compile(r"p([0-9]+)")
_POOL_NAME: Final = re.compile(r"([0-9]+)k")
_MAGIC: Final = MAGICS[Kind.FILE].to_bytes(4, "little")
_BELOW: Final = ("in_use", "returned")


class Pool(NamedTuple):
    """The files of one size in a partition.

    Attributes:
        directory: where they are.
        kib: data area of each.
        waiting, in_use, returned: number of each.
    """

    directory: str
    kib: int
    waiting: int
    in_use: int
    returned: int


class Partition(NamedTuple):
    """One partition.

    Attributes:
        name: of its directory.
        directory: where it is.
        number: in its name.
        pools: by size.
    """

    name: str
    directory: str
    number: int
    pools: tuple[Pool, ...]


def read_partitions(disk: Disk, root: str, problems: Problems) -> tuple[list[Partition], list[str]]:
    """The partitions of the store in `root`, by number, and a warning for each file that has not its pool's size."""
    partitions: list[Partition] = []
    warnings: list[str] = []
    for name in _names(disk, root, problems):
        found = _PARTITION_NAME.fullmatch(name)
        if found is None:
            continue
        directory = posixpath.join(root, name)
        try:
            if disk.is_directory(directory):
                pools = sorted(_read_pools(disk, directory, problems, warnings), key=_pool_order)
                partitions.append(Partition(name, directory, int(found[1]), tuple(pools)))
        except OSError as error:
            problems.add_os_error(error, directory)
    partitions.sort(key=lambda partition: (partition.number, partition.name))
    return partitions, warnings


def _pool_order(pool: Pool) -> tuple[int, str]:
    return pool.kib, pool.directory


def _read_pools(disk: Disk, directory: str, problems: Problems, warnings: list[str]) -> Iterator[Pool]:
    above = posixpath.join(directory, "efp")
    for name in _names(disk, above, problems):
        found = _POOL_NAME.fullmatch(name)
        pool = posixpath.join(above, name)
        if not disk.is_directory(pool):
            continue
        if found is None:
            problems.add(pool, "the name is not that of a pool, as 2048k is")
            continue
        kib = int(found[1])
        file_size = FILE_HEADER_SIZE + kib * KIB
        waiting = sum(
            _is_waiting(disk, posixpath.join(pool, file), file_size, problems, warnings)
            for file in _names(disk, pool, problems)
            if not disk.is_directory(posixpath.join(pool, file))
        )
        in_use, returned = (
            sum(file.endswith(SUFFIX) for file in _names(disk, posixpath.join(pool, below), problems))
            for below in _BELOW
        )
        yield Pool(pool, kib, waiting, in_use, returned)


def _names(disk: Disk, directory: str, problems: Problems) -> list[str]:
    if not disk.is_directory(directory):
        return []
    try:
        return disk.names(directory)
    except OSError as error:
        problems.add_os_error(error, directory)
        return []


def _is_waiting(disk: Disk, path: str, file_size: int, problems: Problems, warnings: list[str]) -> bool:
    """Whether a file of a pool can be taken by a journal."""
    try:
        file = disk.open(path)
        try:
            size, sector = file.size, file.read(0, FILE_HEADER_SIZE)
        finally:
            file.close()
    except OSError as error:
        problems.add_os_error(error, path)
        return False
    if size != file_size:
        what = f"not of correct size (size={size}, expected={file_size}): Ignoring"
        warnings.append(f"WARNING: File {one_line(path)} {what}")
        return False
    if not sector.startswith(_MAGIC) or len(sector) < NAME_OFFSET:
        return False
    try:
        header = decode_file_header(sector)
    except QlsError as error:
        problems.add(path, error.what)
        return False
    return not (header.seconds or header.nanoseconds or header.file_number or header.queue_name)


# ---- the report ----


def pool_lines(partitions: list[Partition]) -> Iterator[str]:
    """The report. Without partitions nothing follows its first lines, not even a blank line."""
    yield ""
    yield "Empty File Pool (EFP) report"
    yield "============================"
    yield f"Found {len(partitions)} partition(s)"
    if not partitions:
        return
    yield "p_no no_efp tot_files tot_size_kb directory"
    yield "---- ------ --------- ----------- ---------"
    for partition in partitions:
        files = sum(pool.waiting for pool in partition.pools)
        kib = sum(pool.waiting * pool.kib for pool in partition.pools)
        directory = one_line(partition.directory)
        yield f"{partition.number:4d} {len(partition.pools):6d} {files:9d} {kib:11d} {directory}"
    yield ""
    for partition in partitions:
        yield f"Partition {partition.name}:"
        yield from _partition_lines(partition)
        yield ""


def _partition_lines(partition: Partition) -> Iterator[str]:
    if not partition.pools:
        yield "<empty - no EFPs found in this partition>"
        return
    columns, lines = " ".join(["file_count tot_file_size_kb"] * 3), " ".join(["---------- ----------------"] * 3)
    yield "             ---------- efp ------------ --------- in_use ---------- -------- returned ---------"
    yield f"data_size_kb {columns} efp_directory"
    yield f"------------ {lines} -------------"
    for pool in partition.pools:
        counts = (pool.waiting, pool.in_use, pool.returned)
        numbers = " ".join(f"{count:10d} {count * pool.kib:16d}" for count in counts)
        yield f"{pool.kib:12d} {numbers} {one_line(pool.directory)}"
