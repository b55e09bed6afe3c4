"""Configuration records when the power fails: each change is there as a whole, or not at all."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from qstore.broker.model.configuration import Record, Values
from qstore.broker.model.errors import ModelError
from qstore.store.live.topology_changes import Changes
from tests.faults.broker_process import BrokerProcess
from tests.faults.changes_cut_short import cut_short
from tests.support.compiled import replaces
from tests.support.profiles import seeds_of_the_day

pytestmark = pytest.mark.usefixtures("quiet_logs")

RECORDS = [Record("qstore.policy", ("/", str(number))) for number in range(5)]
State = dict[Record, Values]


class Story:
    """The states that the records may be in after a crash: the last one that was answered, and one for each change."""

    def __init__(self, process: BrokerProcess) -> None:
        self.process, self.answered = process, 0
        self.states: list[State] = [{}]  # after each change, if the changes are made in order

    def change(self, chance: random.Random) -> None:
        """One more change of several records, whose values are all the same."""
        number, state = len(self.states), dict(self.states[-1])
        chosen = chance.sample(RECORDS, chance.randrange(2, 5))
        gone = [each for each in chosen if chance.random() < 0.3]
        puts: dict[Record, Values] = {each: {"change": number} for each in chosen if each not in gone}
        self.states.append({each: values for each, values in {**state, **puts}.items() if each not in gone})

        def answered(error: ModelError | None) -> None:
            assert error is None, error
            self.answered = number

        self.process.run(self.process.broker.configuration.change(puts, gone), answered)


def run(seeds: Iterable[int]) -> int:
    """Check what comes back after a crash at some moment. Returns how many records did."""
    count = 0
    for seed in seeds:
        with cut_short(seed, Story) as (story, again):
            stored = again.broker.configuration.of("qstore.policy")
            found = {Record("qstore.policy", name): values for name, values in stored.items()}
        assert found in story.states[story.answered :], seed
        count += len(found)
    return count


def test_changes_survive_crashes_whole() -> None:
    run(seeds_of_the_day(25))


def test_runs_leave_records() -> None:
    assert run(range(40)) > 20


@replaces
def test_changes_in_two_batches_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Changes.change_general

    def in_parts(self: Changes, puts: Any, deletes: Any, done: Any) -> None:
        def then(made: Any, error: Any) -> None:
            if error is not None:
                done(made, error)
            else:
                plain(self, puts[1:], deletes, lambda more, error: done([*made, *(more or ())], error))

        plain(self, puts[:1], (), then)

    monkeypatch.setattr(Changes, "change_general", in_parts)
    with pytest.raises(AssertionError):
        run(range(60))


@replaces
def test_answers_before_the_disk_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Changes.change_general

    def early(self: Changes, puts: Any, deletes: Any, done: Any) -> None:
        plain(self, puts, deletes, lambda _made, _error: None)
        done(list(range(1000, 1000 + len(puts))), None)

    monkeypatch.setattr(Changes, "change_general", early)
    with pytest.raises(AssertionError):
        run(range(60))
