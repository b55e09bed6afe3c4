"""Parameters that change when the power fails: each change is there or not, and no component works for one that is not.

A component writes down what it hears. What the next start finds is the state after the last answered change, or after
one that was under way; and it is never older than what the component had heard.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from qstore.broker.model.configuration import Configuration, Record, Values
from qstore.broker.model.errors import ModelError
from qstore.broker.model.parameters import Key, Parameter, Parameters
from qstore.formats.broker_records.topology import PARAMETER
from tests.faults.broker_process import BrokerProcess
from tests.faults.changes_cut_short import cut_short
from tests.support.compiled import replaces
from tests.support.profiles import seeds_of_the_day

pytestmark = pytest.mark.usefixtures("quiet_logs")

NAMES = ("a", "b", "c")


class Story:
    """Changes of parameters of one component, one after the other for each name.

    Attributes:
        asked: name -> the values after each change, None for a deletion; the first is that of the beginning.
        answered: name -> how many changes were answered.
        heard: name -> of how many the component has heard.
    """

    def __init__(self, process: BrokerProcess) -> None:
        self.process = process
        self.asked: dict[str, list[int | None]] = {name: [None] for name in NAMES}
        self.answered, self.heard = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
        process.broker.parameters.register("c", lambda _: None, self._changed)

    def _changed(self, key: Key, parameter: Parameter | None) -> None:
        name = key[2]
        self.heard[name] += 1
        assert self.asked[name][self.heard[name]] == (None if parameter is None else parameter.value["n"])

    def change(self, chance: random.Random) -> None:
        """One more change of a parameter."""
        name = chance.choice(NAMES)
        asked = self.asked[name]
        if self.answered[name] < len(asked) - 1:
            return
        is_gone = asked[-1] is not None and chance.random() < 0.4
        asked.append(None if is_gone else len(asked))

        def answered(error: ModelError | None) -> None:
            assert error is None, error
            self.answered[name] += 1

        parameters = self.process.broker.parameters
        value = {"n": len(asked) - 1}
        delete = parameters.delete("/", "c", name) if is_gone else None
        self.process.run(delete or parameters.set(Parameter("/", "c", name, value, "joe")), answered)


def run(seeds: Iterable[int]) -> int:
    """Check what comes back after a crash at some moment. Returns how many parameters did."""
    count = 0
    for seed in seeds:
        with cut_short(seed, Story) as (story, again):
            found = {each.name: each.value["n"] for each in again.broker.parameters.of("c")}
        for name, asked in story.asked.items():
            known = max(story.answered[name], story.heard[name])
            assert found.get(name) in asked[known:], (seed, name)
        count += len(found)
    return count


def test_what_was_answered_or_heard_is_found_again() -> None:
    run(seeds_of_the_day(40))


def test_something_was_there() -> None:
    assert run(range(40)) > 20


@replaces
def test_a_component_that_hears_before_the_disk_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Configuration.change

    async def early(self: Configuration, puts: Any, deletes: Any = (), *, then: Any) -> None:
        then()
        await plain(self, puts, deletes)

    monkeypatch.setattr(Configuration, "change", early)
    with pytest.raises(AssertionError):
        run(range(100))


@replaces
def test_a_deletion_that_keeps_the_record_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgets(self: Parameters, host: str, component: str, name: str) -> None:
        values: Values = self._configuration.of(PARAMETER)[host, component, name]
        record = Record(PARAMETER, (host, component, name))
        await self._configuration.change({record: values}, then=lambda: self._gone(record.name))  # type: ignore[arg-type]

    monkeypatch.setattr(Parameters, "delete", forgets)
    with pytest.raises(AssertionError):
        run(range(100))
