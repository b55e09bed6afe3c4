"""How fast Spark scans a store, against the plain single-process scanner over the same bytes.

    python -m tests.bench.bench_spark [--gib N] [--split-mib N] [--rounds N] [--keep DIR] [--only scan,outstanding]

A journal of 1 KiB messages is written, and read as

    walk          what recovery does: every record checked, one process, nothing made of it
    check         what `qstore-check` does, the plain scanner: the walk, and what became of every message; one process
    list          what `qstore-dump` does: every record and its message decoded, and a JSON line made of it; one process
    scan          the table of records without columns of messages, Spark on one and on two processors
    messages      the same with exchange, routing key, message id and body length
    outstanding   the pipeline's `outstanding`, with its join, counted by queue

Wall-clock time; of several rounds the fastest counts. Required: two processors at least 1.3 times as fast as one; scan
and messages at least half as fast as check and list. Machines are noisy: the ratios are of the same run.

Of outstanding a tenth of check's speed is required, and no gain by a second processor. Its rows go from the reader to
the JVM, are shuffled by journal, and go back to a Python worker, of which one journal keeps only one busy: for 256 MiB
(210,000 records) 2.4 s of processor time in the JVM, 0.9 to read, 0.9 to recover, of which 1.2 do not depend on the
size; check takes 0.6, in pure Python. `qstore-analyze` makes the same tables without rows of Spark.
"""

from __future__ import annotations

import io
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from qstore.formats.rhm.geometry import PAGE_SIZE, Geometry, padded
from qstore.formats.rhm.headers import data_crc
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, JournalInfo
from qstore.formats.rhm.records import TAIL_SIZE
from qstore.store.builders.journal_build import JournalBuild
from qstore.store.disk import OsDisk
from qstore.store.environment import tool_environment
from qstore.store.inspect.check import check_store
from qstore.store.inspect.offline import open_store
from qstore.store.journal.directory import open_journal
from qstore.store.journal.write.storage import create_journal
from qstore.tools.console.rows import JsonLines
from qstore.tools.dump.dump import dump_records
from qstore.tools.dump.messages import BodyForm, Selection
from tests.bench.measuring import typical_message

_BODY = 1024
_MIB = 1 << 20
_MIN_FILES = 4
_MAX_FILE = 3 << 29  # bytes; a file of a journal has 2 GiB at most
_SMALL = 64 << 20
_MIN_SPEED_UP = {"scan": 1.3, "messages": 1.3, "outstanding": 0.0}
_MIN_SHARE = {"scan": 0.5, "messages": 0.5, "outstanding": 0.1}
_SCAN = "queue,type,rid,dequeued_rid,file,offset,flush,size,checksum"
_MESSAGES = "queue,type,rid,exchange,routing_key,message_id,durable,body_length"


#: Work and processors -> seconds.
_Seconds = dict[tuple[str, int], float]


class _Counting:
    """A sink that counts."""

    def __init__(self) -> None:
        self.records = 0

    def enqueue(self, rid: int, place: int, blocks: int = 0) -> None:
        self.records += 1

    def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
        self.records += 1

    def record(self, header: object, place: int, xid: bytes) -> None:
        self.records += 1

    def damaged(self, damage: object) -> None:
        raise AssertionError(damage)


def build(directory: Path, size: int) -> int:
    """A journal of at least `size` bytes; how many records."""
    data = typical_message(_BODY)
    record = padded(32 + len(data) + TAIL_SIZE)
    count = size // record
    files = max(_MIN_FILES, -(-size // _MAX_FILE))
    data_size = -(-(size + size // 50 + (8 << 20)) // files // PAGE_SIZE) * PAGE_SIZE
    info = JournalInfo(2, "orders", DEFAULT_BASE_NAME, Geometry(files, data_size), queue_id=1, incarnation=1)
    environment = tool_environment()
    create_journal(environment.disk, str(directory), info)
    bulk = JournalBuild(environment, str(directory), info, beside=True)
    crc = data_crc([data])
    for rid in range(1, count + 1):
        bulk.enqueue(rid, data, crc)
    bulk.finish()
    return count


def _timed(rounds: int, work: Callable[[], int], expected: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        found = work()
        best = min(best, time.perf_counter() - began)
        assert found == expected, (found, expected)
    return best


def _walk(directory: Path) -> int:
    journal = open_journal(OsDisk(), str(directory))
    sink = _Counting()
    journal.walk(sink)
    journal.close()
    return sink.records


def _check(directory: Path) -> int:
    disk = OsDisk()
    store = open_store(disk, str(directory))
    checked = check_store(disk, store, paranoid=False)
    store.close()
    assert not checked.damage, checked.damage
    return checked.records


class _Lines(io.RawIOBase):
    """Counts lines and forgets them."""

    lines = 0

    def write(self, content: Any) -> int:
        self.lines += bytes(content).count(b'"type":"enqueue"')
        return len(content)


def _list(directory: Path) -> int:
    store = open_store(OsDisk(), str(directory))
    out = _Lines()
    lines = JsonLines(out)  # type: ignore[arg-type]
    dump_records(store, lines, Selection(), BodyForm.NONE, None)
    lines.flush()
    store.close()
    return out.lines


def _session(processors: int) -> Any:
    from pyspark.sql import SparkSession

    from qstore.tools.spark.data_source import QstoreDataSource
    from qstore.tools.spark.needed import use_this_python

    use_this_python()
    session = (
        SparkSession.builder.master(f"local[{processors}]")
        .appName("bench_spark")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "16")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(QstoreDataSource)
    return session


def _scan(session: Any, directory: Path, columns: str, split: int) -> int:
    reader = session.read.format("qstore").option("columns", columns)
    if split:
        reader = reader.option("split_bytes", str(split * _MIB))
    name = columns.rsplit(",", 1)[1]
    (row,) = reader.load(str(directory)).selectExpr("count(*)", "count(rid)", f"count({name})").collect()
    assert row[2] == row[0], row
    return int(row[1])


def _outstanding(session: Any, directory: Path, split: int) -> int:
    from qstore.tools.spark.pipeline import outstanding
    from qstore.tools.spark.recovery import NEEDED

    reader = session.read.format("qstore").option("columns", ",".join(NEEDED))
    if split:
        reader = reader.option("split_bytes", str(split * _MIB))
    records = reader.load(str(directory))
    lists = reader.option("queue", "TplStore").load(str(directory))
    (row,) = outstanding(records, prepared_lists=lists).groupBy("queue").count().collect()
    return int(row[1])


def _works(session: Any, split: int) -> dict[str, Callable[[Path], int]]:
    return {
        "scan": lambda directory: _scan(session, directory, _SCAN, split),
        "messages": lambda directory: _scan(session, directory, _MESSAGES, split),
        "outstanding": lambda directory: _outstanding(session, directory, split),
    }


def _spark(small: Path, directory: Path, only: list[str], split: int, rounds: int, count: int) -> _Seconds:
    seconds = {}
    for processors in (1, 2):
        session = _session(processors)
        try:
            for name, work in _works(session, split).items():
                if name in only:
                    work(small)  # workers start, and import
                    seconds[name, processors] = _timed(rounds, partial(work, directory), count)
        finally:
            session.stop()
    return seconds


@click.command()
@click.option("--gib", default=0.25, show_default=True, help="GiB of journal.")
@click.option("--split-mib", default=0, show_default=True, help="MiB of a partition; 0 for the data source's choice.")
@click.option("--rounds", default=2, show_default=True)
@click.option("--only", default=",".join(_MIN_SHARE), show_default=True, help="What Spark does, by commas.")
@click.option("--keep", type=click.Path(path_type=Path), help="Where the journal is written, and left.")
def main(gib: float, split_mib: int, rounds: int, only: str, keep: Path | None) -> None:
    """Measure, and print ratios."""
    chosen = only.split(",")
    parent = Path(tempfile.mkdtemp(prefix="qstore-bench-"))
    directory = keep or parent / "orders"
    size = int(gib * (1 << 30))
    try:
        record = padded(32 + len(typical_message(_BODY)) + TAIL_SIZE)
        count = size // record if directory.exists() else build(directory, size)
        walk = _timed(rounds, lambda: _walk(directory), count)
        check = _timed(rounds, lambda: _check(directory), count)
        listed = _timed(1, lambda: _list(directory), count) if "messages" in chosen else walk
        build(parent / "small", _SMALL)
        seconds = _spark(parent / "small", directory, chosen, split_mib, rounds, count)
    finally:
        shutil.rmtree(parent)
    for name, took in {"walk": walk, "check": check, "list": listed}.items():
        if name == "list" and "messages" not in chosen:
            continue
        print(f"{name}: {size / _MIB / took:.0f} MiB/s, {took / count * 1e6:.2f} µs a record")
    plains = {"scan": check, "messages": listed, "outstanding": check}
    for name, plain in plains.items():
        if name not in chosen:
            continue
        one, two = seconds[name, 1], seconds[name, 2]
        print(
            f"{name}: local[1] {size / _MIB / one:.0f} MiB/s, local[2] {size / _MIB / two:.0f} MiB/s; "
            f"two processors {one / two:.2f} × one (required {_MIN_SPEED_UP[name]}); "
            f"{plain / one:.2f} × and {plain / two:.2f} × the plain scanner (required {_MIN_SHARE[name]})"
        )


if __name__ == "__main__":
    main()
