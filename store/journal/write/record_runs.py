"""Runs of record ids: those of many messages in two numbers, if they are consecutive.

Runs are in one list: the first record id of a run and the one after its last, those of the next run, and so on,
ascending. They do not overlap, but one may begin where another ends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain


def runs_of(rids: Iterable[int]) -> list[int]:
    """The runs of some record ids, in any order."""
    runs: list[int] = []
    for rid in sorted(set(rids)):
        if runs and runs[-1] == rid:
            runs[-1] = rid + 1
        else:
            runs += (rid, rid + 1)
    return runs


def rids_in(runs: list[int]) -> Iterator[int]:
    """The record ids in some runs, ascending."""
    return chain.from_iterable(map(range, runs[::2], runs[1::2]))


def holds(runs: list[int], rid: int) -> bool:
    """Whether a record id is in one of the runs."""
    return bisect_right(runs, rid) & 1 == 1


def add_run(runs: list[int], first: int, end: int) -> None:
    """Add a run, most often after all others."""
    if runs and first < runs[-1]:
        at = bisect_right(runs, first)
        runs[at:at] = (first, end)
    else:
        runs.append(first)
        runs.append(end)


def remove_runs(runs: list[int], removed: list[int]) -> None:
    """Remove runs that were added as they are, most often one after another."""
    count = len(removed)
    if not count:
        return
    at = bisect_right(runs, removed[0]) - 1
    if runs[at : at + count] == removed:
        del runs[at : at + count]
        return
    for number in range(0, count, 2):
        at = bisect_right(runs, removed[number]) - 1
        del runs[at : at + 2]
