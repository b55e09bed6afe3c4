"""Findings and counts of the audit on hand-made records; reconciling, sizing, export."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from qstore.store.disk import OsDisk
from qstore.store.inspect.offline import open_store
from qstore.store.inspect.sizing import RingSize
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.write.space import Threshold, enqueue_limit
from qstore.tools.generate.fleet import FleetSpec, StoreFormat
from qstore.tools.generate.make import make_store
from qstore.tools.qstore_size import Wanted, size_queue
from tests.spark.histories import SCHEMA, History, Row, row
from tests.support.fixtures import StoreOpener
from tests.support.profiles import only_on_its_day

pytest.importorskip("pyspark", reason="pyspark not installed: pip install 'qstore[spark]'")

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from qstore.tools.spark.pipeline import (
    damage,
    dangling,
    depth,
    duplicates,
    export,
    gaps,
    in_doubt_transactions,
    lifetimes,
    messages,
    messages_of,
    open_transactions,
    operations,
    overwritten,
    peak_use,
    peaks,
    prepared_transactions,
    rates,
    reconcile,
    sizing,
    waits,
)
from qstore.tools.spark.recovery import NEEDED

STORE = "/s"
BLOCK = 128


def frame(spark: Any, rows: list[Row]) -> Any:
    return spark.createDataFrame(rows, SCHEMA).coalesce(2)


def enqueue(rid: int, position: int, queue: str = "q", **fields: Any) -> Row:
    return row(STORE, queue, position, "enqueue", rid=rid, **fields)


def dequeue(rid: int, position: int, own: int, queue: str = "q", **fields: Any) -> Row:
    return row(STORE, queue, position, "dequeue", rid=own, dequeued_rid=rid, size=BLOCK, **fields)


def rows_of(found: Any, *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(each[name] for name in names) for each in found.collect()), key=repr)


@only_on_its_day(3, 4)
def test_audit_finds_only_anomalies(spark: Any) -> None:
    records = frame(
        spark,
        [
            dequeue(3, 0, 10),  # its enqueue is overwritten
            enqueue(11, 256, message_id="a"),
            enqueue(12, 512, message_id="b"),
            enqueue(13, 768, message_id="b"),
            enqueue(14, 1024, message_id="c", xid="aa"),
            row(STORE, "q", 1280, "abort", rid=15, xid="aa"),
            enqueue(16, 1536, message_id="c"),
            enqueue(12, 1792, message_id="b", flags=["moved"]),
            dequeue(11, 2048, 17),
            dequeue(11, 2176, 18),
            dequeue(99, 2304, 20),
            enqueue(16, 2560, message_id="d"),
            enqueue(2_000_000, 2816, message_id="e", xid="bb"),
            row(STORE, "q", 3072, "damage", damage="broken", damage_kind="record-checksum", offset=3584),
            row(STORE, "q", 3200, "damage", damage='file of queue "crc"', damage_kind="file-of-other-queue", offset=72),
        ],
    ).cache()
    found = operations(records, also=("message_id",))
    names = ("what", "message_id", "first_rid", "last_rid", "copies")
    assert rows_of(duplicates(found), *names) == [("message id", "b", 12, 13, 2), ("record id", None, 16, 16, 2)]
    names = ("after", "before", "missing")
    assert rows_of(gaps(records), *names) == [(18, 20, 1), (20, 2_000_000, 1_999_979)]
    assert rows_of(dangling(messages_of(found)), "rid", "what", "dequeues", "position") == [
        (11, "dequeued twice", 2, 2048),
        (99, "unknown", 1, 2304),
    ]
    assert rows_of(overwritten(messages_of(found)), "rid", "what", "dequeues", "position") == [
        (3, "overwritten", 1, 0),
    ]
    names = ("damage", "checksum", "offset")
    assert rows_of(damage(records), *names) == [("broken", True, 3584), ('file of queue "crc"', False, 72)]
    opened = open_transactions(found, prepared_transactions(records))
    assert rows_of(opened, "xid", "state", "enqueues", "queues", "bytes") == [("bb", "unprepared", 1, 1, 256)]
    assert rows_of(in_doubt_transactions(prepared_transactions(records)), "xid") == []
    records.unpersist()


def counted(history: History) -> Iterator[tuple[int, int]]:
    """Of a history without transactions each change: place, and messages after it."""
    there: set[int] = set()
    for header, place, _, _ in history.queue:
        (there.add if header.kind.label == "enqueue" else there.discard)(header.dequeued_rid or header.rid)
        yield place, len(there)


class PlainHistory(History):
    """Enqueues and dequeues, nothing else."""

    def _step(self) -> None:
        random_step = self._random.random()
        (self._enqueue if random_step < 0.55 else self._dequeue)()


@only_on_its_day(2, 4)
def test_depth_is_that_of_a_plain_count(spark: Any) -> None:
    histories = [PlainHistory(seed, 300) for seed in range(3)]
    found = messages(frame(spark, [each for history in histories for each in history.rows()])).cache()
    for buckets in (1, 7, 10_000):
        assert_counted(histories, depth(found, buckets).collect())
    tops = {each.store: each.peak for each in peaks(depth(found, 7)).collect()}
    assert tops == {history.store: max(count for _, count in counted(history)) for history in histories}
    found.unpersist()


def assert_counted(histories: list[PlainHistory], series: list[Any]) -> None:
    for history in histories:
        changes = list(counted(history))
        own = sorted((each for each in series if each.store == history.store), key=lambda each: each.bucket)
        assert max(each.peak for each in own) == max(count for _, count in changes)
        assert own[-1].depth == changes[-1][1]
        for each in own:
            expected = [count for place, count in changes if place < each.end]
            assert each.depth == expected[-1] or each.end > len(history.queue) * 256
            assert each.live_bytes == each.depth * 256
            assert each.peak_reserved == each.peak * (256 + BLOCK)


@only_on_its_day(0, 4)
def test_messages_older_than_the_journal_count(spark: Any) -> None:
    records = frame(spark, [dequeue(1, 0, 5), dequeue(2, 128, 6), enqueue(7, 256), dequeue(3, 512, 8)])
    series = depth(messages(records), 1000).orderBy("bucket").collect()
    assert [each.depth for each in series] == [2, 1, 2, 1]
    assert max(each.peak for each in series) == 3


@only_on_its_day(2, 4)
def test_lifetimes_follow_from_known_times(spark: Any) -> None:
    records = frame(
        spark,
        [
            enqueue(1, 0, timestamp=100, flush=1),
            enqueue(2, 256, timestamp=110, flush=2),
            enqueue(3, 512, timestamp=120, flush=2, xid="aa"),
            row(STORE, "q", 768, "commit", rid=4, xid="aa"),
            dequeue(1, 65536 + 256, 5, flush=9),
        ],
    )
    kind = "store string, kind string, journal string, age int, size bigint, written bigint"
    files = spark.createDataFrame(
        [(STORE, "journal file", f"{STORE}/q", age, 66048, (50 + age * 7) * 10**9) for age in range(2)], kind
    )
    lives = lifetimes(messages(records), files).cache()
    names = ("rid", "state", "enqueued", "dequeued", "distance", "enqueued_flush", "dequeued_flush", "waited")
    assert rows_of(lives, *names) == [
        (1, "dequeued", 0, 65792, 65792, 1, 9, 7.0),
        (2, "outstanding", 256, None, None, 2, None, None),
        (3, "outstanding", 768, None, None, 2, None, None),
    ]
    assert rows_of(waits(lives), "measured", "distance_50", "distance_most", "waited_99") == [(1, 65792, 65792, 7.0)]
    names = ("recorded", "outstanding", "dequeued", "transactional", "recorded_bytes", "stamped_per_second")
    assert rows_of(rates(lives), *names) == [(3, 2, 1, 1, 768, 3 / 20)]
    assert lifetimes(messages(records)).where("waited is not null").count() == 0
    lives.unpersist()


def test_both_sides_are_reconciled(spark: Any) -> None:
    left = spark.createDataFrame([("a",), ("b",), ("c",), ("c",), ("d",), (None,), ("f",), ("f",)], "id string")
    right = spark.createDataFrame([("a",), ("c",), ("d",), ("d",), ("e",), (None,), ("f",), ("f",)], "id string")
    assert rows_of(reconcile(left, right, on="id"), "id", "left", "right", "verdict") == [
        ("b", 1, 0, "missing"),
        ("c", 2, 1, "fewer"),
        ("d", 1, 2, "twice"),
        ("e", 0, 1, "unexpected"),
        ("f", 2, 2, "twice"),
    ]


@only_on_its_day(3, 4)
def test_sizing_follows_the_published_formulas(spark: Any, open_fixture: StoreOpener) -> None:
    path = str(open_fixture("legacy-b-crash1").path)
    records = spark.read.format("qstore").option("columns", ",".join(NEEDED)).load(path)
    queues = spark.read.format("qstore").option("table", "queues").load(path)
    found = {each.queue: each for each in sizing(messages(records), queues, records=records).collect()}
    recovered = open_store(OsDisk(), path).recover()
    assert sorted(found) == sorted(queue.name for queue in recovered.queues)
    compared = 0
    for queue in recovered.queues:
        each = found[queue.name]
        measured = size_queue(queue, Wanted(each.peak_depth or None, 1, False)).measurement
        assert measured is not None
        assert each.depth == measured.depth
        assert each.live_bytes == measured.live_bytes
        assert measured.threshold is not None
        assert each.limit == measured.threshold.limit
        assert each.used == measured.threshold.used
        assert each.peak_used >= each.used
        assert each.peak_depth >= each.depth
        if each.recorded == each.depth:
            needed = size_queue(queue, Wanted(None, 1, False)).needed
            assert needed is not None
            assert each.recommended_bytes == needed.recommended
            compared += 1
    assert compared


def test_nearly_full_journals_are_advised_to_grow(spark: Any, tmp_path: Path) -> None:
    """Of qpidd's journals everything after the oldest message is in use, and only half of that are live bytes."""
    spec = FleetSpec(format=StoreFormat.LEGACYSTORE, queues=1, messages=4000, num_jfiles=8, jfile_size_pgs=14, seed=12)
    path = str(tmp_path / make_store(spec, str(tmp_path), 1)["name"])
    records = spark.read.format("qstore").option("columns", ",".join(NEEDED)).load(path)
    queues = spark.read.format("qstore").option("table", "queues").load(path)
    found = operations(records)
    use = peak_use(messages_of(found), queues, found)
    rows = sizing(messages_of(found), queues, records=records, use=use).collect()
    near = [each for each in rows if each.peak_near_threshold]
    assert any(2 * each.peak_bytes < each.capacity for each in near)  # the published formula alone is content with them
    for each in rows:
        advised = RingSize(each.num_jfiles, each.jfile_size_pgs)
        assert each.large_enough == (advised.capacity <= each.capacity and each not in near)
        assert each not in near or advised.capacity > each.capacity
        limit = enqueue_limit(advised.geometry, JournalFormat.VERSION_1)
        assert limit is not None
        assert not Threshold(limit, each.peak_used).is_near


def test_export_has_a_directory_for_each_store_and_queue(spark: Any, tmp_path: Path) -> None:
    names = ["orders", "2024-01-01", "a/b", "1", ".", "x" * 255, "ä=%", "a-b"]
    records = frame(spark, [enqueue(number, 0, name) for number, name in enumerate(names)])
    target = tmp_path / "export"
    export(records, str(target), columns=("rid", "type"))
    (store,) = target.glob("store_directory=*")
    directories = [each.name for each in store.iterdir() if each.is_dir()]
    assert len(directories) == len(names)
    assert all(len(each) < 100 and each.isascii() for each in directories)
    back = spark.read.parquet(str(target))
    assert rows_of(back, "queue", "rid") == sorted(((name, number) for number, name in enumerate(names)), key=repr)
    assert set(back.columns) == {"store", "queue", "rid", "type", "store_directory", "queue_directory"}
    assert dict(back.dtypes)["queue_directory"] == "string"


@only_on_its_day(1, 4)
def test_empty_input_gives_empty_output(spark: Any) -> None:
    records = frame(spark, [])
    found = messages(records)
    lives = lifetimes(found)
    tables = [found, depth(found), lives, waits(lives), rates(lives), gaps(records), dangling(found), damage(records)]
    counts = [each.agg(sql.count("*").alias("rows")) for each in (*tables, operations(records))]
    assert [each.rows for each in reduce(DataFrame.union, counts).collect()] == [0] * len(counts)
