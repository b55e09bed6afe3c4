"""Which messages had been delivered at a clean close: runs of record ids, against sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.checksum import extend_crc32c
from qstore.store.environment import Environment
from qstore.store.inspect.layout import find_layout
from qstore.store.live.delivered import Delivered, delivered_of, merged_runs, runs_of
from tests.support.opened_store import OpenedStore
from tests.support.profiles import examples

RIDS = st.integers(1, 60)


def marked(runs: Sequence[int], rids: Sequence[int]) -> list[int]:
    """The marked messages, by either method."""
    found = Delivered({7: runs})
    numbers = found.among(7, rids)
    assert [number for number, rid in enumerate(rids) if found.holds(7, rid)] == list(numbers)
    return [rids[number] for number in numbers]


@given(on_queue=st.sets(RIDS), others=st.sets(RIDS), draws=st.data())
@examples(200)
def test_runs_mark_exactly_the_delivered_messages(on_queue: set[int], others: set[int], draws: st.DataObject) -> None:
    there = sorted(on_queue)
    given_rids = draws.draw(st.permutations(there))[: draws.draw(st.integers(0, len(there)))]
    runs = runs_of([*given_rids, *(others - on_queue)], there)
    assert list(runs) == sorted(runs)
    assert marked(runs, there) == sorted(given_rids)
    alone = runs_of(given_rids)  # by their numbers only
    assert marked(alone, range(1, 61)) == sorted(given_rids)
    more = runs_of(others)
    assert marked(merged_runs(alone, more), range(1, 61)) == sorted({*given_rids, *others})


def test_all_messages_of_a_queue_form_one_run() -> None:
    there = range(1, 100_000, 3)
    assert list(runs_of(there, there)) == [1, 99_999 - 2]
    assert list(runs_of([*there][100:], there)) == [301, 99_997]


def test_runs_of_marks_are_limited() -> None:
    """What is said of too many messages is never said of too few."""
    runs = runs_of(range(1, 100, 2), range(1, 101), most=3)
    assert list(runs) == [1, 1, 3, 3, 5, 99]
    assert {*range(1, 100, 2)} <= {*marked(runs, range(1, 101))}


def test_a_close_after_a_crash_reports_it_in_one_run(environment: Environment, path: Path) -> None:
    opened = OpenedStore(environment, path)
    queues = [opened.make_queue("a"), opened.make_queue("b")]
    rids = [opened.enqueue(queues[number % 2], b"m") for number in range(20)]
    opened.store.close({queue.queue_id: rids[number::2] for number, queue in enumerate(queues)})
    content = json.loads((path / "rhm" / "DELIVERED").read_bytes())
    assert content["runs"] == {"1": [rids[0], rids[18]], "2": [rids[1], rids[19]]}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"queues": {"1": [2, 4, 5]}}, [1, 3, 4]),  # as earlier versions have written it
        ({"runs": {"1": [2, 2, 4, 5]}}, [1, 3, 4]),
        ({"runs": {"2": [1, 9]}}, []),
        ({"runs": {"1": [2, 4, 5]}}, [0, 1, 2, 3, 4]),  # what is damaged says that of all
        ({"runs": {"1": [4, 2]}}, [0, 1, 2, 3, 4]),
        ({"runs": {"1": [-1, 2]}}, [0, 1, 2, 3, 4]),
        ({"runs": {"1": ["2", "4"]}}, [0, 1, 2, 3, 4]),
        ({"runs": {"1": 5}}, [0, 1, 2, 3, 4]),
        ({"runs": []}, [0, 1, 2, 3, 4]),
    ],
)
def test_a_file_that_is_read(
    environment: Environment, path: Path, content: dict[str, object], expected: list[int]
) -> None:
    opened = OpenedStore(environment, path)
    store_id = str(opened.store.store_id)
    opened.store.close({})
    whole: dict[str, object] = {**content, "store_id": store_id}
    text = json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()
    whole["crc32c"] = f"{extend_crc32c(0, text):08x}"
    (path / "rhm" / "DELIVERED").write_bytes(json.dumps(whole, sort_keys=True, separators=(",", ":")).encode())
    found = delivered_of(environment.disk, find_layout(environment.disk, str(path)))
    assert list(found.among(1, range(1, 6))) == expected
