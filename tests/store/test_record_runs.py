"""Runs of record ids behave like sets; a journal knows by them which messages belong to open transactions."""

from __future__ import annotations

import random

import pytest

from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.store.errors import JournalError
from qstore.store.journal.write.live_records import add_run, holds, remove_runs, rids_in, runs_of
from tests.support.memory_ring import MemoryRing


def test_runs_are_of_consecutive_ids_each_once() -> None:
    assert runs_of([]) == []
    assert runs_of([7, 3, 4, 5, 4, 9, 8]) == [3, 6, 7, 10]
    assert list(rids_in([3, 6, 7, 10])) == [3, 4, 5, 7, 8, 9]


@pytest.mark.parametrize("seed", range(3))
def test_runs_are_as_sets(seed: int) -> None:
    """Several owners, each with its own runs, and the runs of all of them."""
    rng = random.Random(seed)
    everything: list[int] = []
    owners: list[tuple[list[int], set[int]]] = []
    pairs = [(first, first + rng.randrange(1, 6)) for first in range(0, 2400, 6)]
    if seed:  # otherwise in order, as they come most often
        rng.shuffle(pairs)
    for first, end in pairs:
        if not owners or rng.random() < 0.3:
            owners.append(([], set()))
        runs, rids = owners[-1] if rng.random() < 0.7 else rng.choice(owners)
        add_run(runs, first, end)
        add_run(everything, first, end)
        rids.update(range(first, end))
        if len(owners) > 6:
            runs, rids = owners.pop(rng.randrange(len(owners)))
            assert list(rids_in(runs)) == sorted(rids)
            remove_runs(everything, runs)
        expected: set[int] = set().union(*(rids for _, rids in owners))
        assert list(rids_in(everything)) == sorted(expected)
        for rid in (*range(first - 2, end + 2), rng.randrange(2400)):
            assert holds(everything, rid) == (rid in expected)
            assert all(holds(runs, rid) == (rid in rids) for runs, rids in owners)
    remove_runs(everything, [])
    for runs, _ in owners:
        remove_runs(everything, runs)
    assert everything == []


@pytest.mark.parametrize("rids", [[1, 2, 5, 6, 9], [2, 3, 4, 5], [1, 3, 5]])
@pytest.mark.parametrize("commits", [True, False])
def test_only_the_messages_of_an_open_transaction_are_held(rids: list[int], commits: bool) -> None:
    ring = MemoryRing(Geometry(8, 65536))
    writer, body = ring.writer, b"x" * 200
    crc = data_crc((body,))
    plain = [rid for rid in range(1, 11) if rid not in rids]
    for rid in plain:
        writer.enqueue(rid, (body,), len(body), crc)
    writer.admit_transaction(b"x", [len(body)] * len(rids), 0)
    writer.append_admitted(b"x", rids, [((body,), len(body), crc)] * len(rids), [], [])
    ring.rid = 10
    assert ring.free == plain
    assert list(writer.transactions[b"x"].enqueued()) == rids
    for rid in range(12):
        assert writer.records.is_enqueued_by(b"x", rid) == (rid in rids)
        assert not writer.records.is_enqueued_by(b"y", rid)
        assert writer.records.may_dequeue(rid, b"x") == (0 < rid < 11)
        assert writer.records.may_dequeue(rid, b"") == (rid in plain)
    for rid in rids:
        with pytest.raises(JournalError, match="locked by an open transaction"):
            writer.dequeue(20, rid)
    for rid in plain[::2]:
        ring.dequeue(rid)
    ring.end(b"x", commits=commits)
    assert sorted(ring.free) == sorted([*plain[1::2], *(rids if commits else [])])
    ring.drain()
    for rid in list(ring.free):
        ring.dequeue(rid)
    assert not writer.live
