"""Messages that a restart would deliver, by Spark and by recovery: hand-made, real and generated stores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qstore.tools.generate.fleet import FleetSpec, StoreFormat, parse_sizes
from qstore.tools.generate.make import make_store
from tests.spark.histories import SCHEMA, History, row
from tests.support.dump import dump
from tests.support.fixtures import LEGACY_STORES, LINEAR_STORES, StoreOpener
from tests.support.profiles import only_on_its_day, today

pytest.importorskip("pyspark", reason="pyspark not installed: pip install 'qstore[spark]'")

from qstore.tools.spark.pipeline import open_transactions, operations, outstanding, prepared_transactions
from qstore.tools.spark.recovery import NEEDED

Told = dict[tuple[str, str], list[tuple[Any, ...]]]


def by_spark(spark: Any, paths: list[str], **options: Any) -> Told:
    """Store and queue -> rid, state, xid, message id and length of the body of each message, in order."""
    details = ("message_id", "body_length")
    reader = spark.read.format("qstore")
    records = reader.option("columns", ",".join((*NEEDED, *details))).load(paths)
    queues = spark.read.format("qstore").option("table", "queues").load(paths)
    reported: Told = {}
    for each in outstanding(records, queues, columns=details, **options).orderBy("delivery").collect():
        message = (each.rid, each.state, each.xid, *(each[name] for name in details))
        reported.setdefault((each.store, each.queue), []).append(message)
    return reported


def by_dump(paths: list[str]) -> Told:
    """The same, as `qstore-dump` has it; a priority queue's messages in the order of their record ids."""
    reported: Told = {}
    for path in paths:
        shown = dump(path, "--outstanding", "--json", "--body", "none")
        ordered = {line["name"]: line["arguments"] or {} for line in shown.lines("queue")}
        for line in shown.lines("message"):
            message = tuple(line[name] for name in ("rid", "state", "xid", "message_id", "body_length"))
            reported.setdefault((path, line["queue"]), []).append(message)
        for queue, arguments in ordered.items():
            if (path, queue) in reported and "qpid.priorities" in arguments:
                reported[path, queue].sort()
    return reported


@only_on_its_day(2, 4)
def test_histories_end_as_recovery_has_them(spark: Any) -> None:
    histories = [History(seed) for seed in range(150)]
    rows = [each for history in histories for each in history.rows()]
    records = spark.createDataFrame(rows, SCHEMA).repartition(3).cache()
    messages: dict[str, list[tuple[Any, ...]]] = {}
    for each in outstanding(records).orderBy("delivery").collect():
        messages.setdefault(each.store, []).append((each.rid, each.position, each.state, each.xid))
    transactions: dict[str, list[tuple[Any, ...]]] = {}
    for each in open_transactions(operations(records), prepared_transactions(records)).collect():
        transactions.setdefault(each.store, []).append((each.xid, each.state, each.enqueues, each.dequeues))
    states = set()
    for history in histories:
        expected, opened = history.recovered()
        assert messages.get(history.store, []) == expected, history.store
        assert sorted(transactions.get(history.store, [])) == opened, history.store
        states |= {each[2] for each in expected} | {each[1] for each in opened}
    assert states == {
        "outstanding", "in-doubt-enqueue", "in-doubt-dequeue", "in-doubt", "committing", "aborting", "unprepared",
    }  # fmt: skip
    records.unpersist()


def test_real_stores_have_the_messages_that_a_dump_shows(spark: Any, open_fixture: StoreOpener) -> None:
    paths = [str(open_fixture(name).path) for name in today(LEGACY_STORES + LINEAR_STORES, 7)]
    reported = by_spark(spark, paths)
    assert reported == by_dump(paths)
    assert len(reported) > len(paths)


def test_bodies_come_back_where_they_are_asked_for(spark: Any, open_fixture: StoreOpener) -> None:
    path = str(open_fixture("legacy-d-dtx").path)
    records = spark.read.format("qstore").option("columns", ",".join(NEEDED)).load(path)
    bodies = spark.read.format("qstore").option("columns", "store,journal,position,type,body").load(path)
    found = outstanding(records, details=bodies, with_body=True).collect()
    shown = dump(path, "--outstanding", "--json", "--body", "hex").lines("message")
    assert sorted((each.queue, each.rid, bytes(each.body).hex()) for each in found) == sorted(
        (line["queue"], line["rid"], line["body_hex"]) for line in shown
    )
    assert len(found) == 42


def fleet(directory: Path, seeds: Sequence[int]) -> list[str]:
    """A store of each format for each seed: small rings, so that they go round, and every third one damaged."""
    paths = []
    for seed in seeds:
        for number, form in enumerate(StoreFormat):
            spec = FleetSpec(
                format=form,
                seed=seed,
                queues=3,
                messages=700,
                sizes=parse_sizes("uniform:10-2000"),
                transactions=0.5,
                in_doubt=3,
                **_RINGS[(seed + number) % 3],
            )
            below = directory / f"{form.value}-{seed}"
            below.mkdir()
            paths.append(str(below / make_store(spec, str(below), 1)["name"]))
    return paths


_RINGS: list[dict[str, Any]] = [
    {},
    {"num_jfiles": 8, "jfile_size_pgs": 1, "dequeued": 0.95},
    {"damage": 0.6},
]


@pytest.mark.parametrize("seeds", [today(range(3), 1), pytest.param(range(3, 20), marks=pytest.mark.soak)])
def test_generated_fleets_have_the_messages_that_a_dump_shows(spark: Any, tmp_path: Path, seeds: Sequence[int]) -> None:
    paths = fleet(tmp_path, seeds)
    assert by_spark(spark, paths) == by_dump(paths)


@only_on_its_day(1, 4)
def test_a_prepared_list_of_its_own_says_the_same(spark: Any, open_fixture: StoreOpener) -> None:
    paths = [str(open_fixture(name).path) for name in ("linear-d-dtx", "legacy-c-midcommit1")]
    lists = spark.read.format("qstore").option("columns", ",".join(NEEDED)).load(paths).where("queue = 'TplStore'")
    assert by_spark(spark, paths, prepared_lists=lists) == by_dump(paths)


@only_on_its_day(2, 4)
def test_journals_that_no_catalogue_knows_are_left_out(spark: Any) -> None:
    rows = [row("/s", queue, 0, "enqueue", rid=1) for queue in ("known", "orphan")]
    queues = spark.createDataFrame([("/s", "/s/known"), ("/s", None)], "store string, journal string")
    found = outstanding(spark.createDataFrame(rows, SCHEMA), queues)
    assert [each.queue for each in found.collect()] == ["known"]
