"""Bindings between exchanges when the power fails: completed ones are there, and go with their exchange."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from qstore.broker.model.errors import ModelError
from qstore.formats.broker_records.topology import exchange_binding_of
from qstore.store.catalogue.catalogue import Catalogue
from tests.faults.broker_process import BrokerProcess
from tests.faults.changes_cut_short import cut_short
from tests.support.compiled import replaces
from tests.support.profiles import seeds_of_the_day

pytestmark = pytest.mark.usefixtures("quiet_logs")

NAMES = ("a", "b", "c")
Link = tuple[str, str, str]


class Story:
    """What was asked for, and what was answered.

    Attributes:
        links, exchanges: what there is, as far as was answered.
        doubtful: links and exchanges that a change under way may have made or deleted.
    """

    def __init__(self, process: BrokerProcess) -> None:
        self.process = process
        self.links: set[Link] = set()
        self.exchanges: set[str] = set()
        self.doubtful: set[Link | str] = set()

    def change(self, chance: random.Random) -> None:
        """One more change, when all earlier ones are answered."""
        if self.doubtful:
            return
        broker, name = self.process.broker, chance.choice(NAMES)
        other, key = chance.choice(NAMES), chance.choice("kl")
        if name not in self.exchanges:
            self.doubtful = {name}
            work = broker.default_host.topology.declare_exchange(name, "direct", durable=True)
            self.process.run(work, self._then(lambda: self.exchanges.add(name)))  # type: ignore[arg-type]
        elif other in self.exchanges and chance.random() < 0.7:
            link = name, other, key
            self.doubtful = {link}
            if link in self.links:
                self.process.run(
                    broker.default_host.exchange_bindings.unbind(*link), self._then(lambda: self.links.discard(link))
                )
            else:
                bind = broker.default_host.exchange_bindings.bind(*link)
                self.process.run(bind, self._then(lambda: self.links.add(link)))  # type: ignore[arg-type]
        elif chance.random() < 0.4:
            gone = {link for link in self.links if name in link[:2]}
            self.doubtful = {name, *gone}

            def delete() -> None:
                self.exchanges.discard(name)
                self.links -= gone

            self.process.run(broker.default_host.topology.delete_exchange(name), self._then(delete))

    def _then(self, done: Callable[[], object]) -> Callable[[ModelError | None], None]:
        def answered(error: ModelError | None) -> None:
            assert error is None, error
            done()
            self.doubtful = set()

        return answered


def links_of(process: BrokerProcess) -> set[Link]:
    exchanges = process.broker.default_host.exchanges.values()
    return {(each.source.name, each.destination.name, each.key) for one in exchanges for each in one.onward or ()}


def run(seeds: Iterable[int]) -> int:
    """Check what comes back after a crash at some moment. Returns how many links did."""
    count = 0
    for seed in seeds:
        with cut_short(seed, Story) as (story, again):
            links, exchanges = links_of(again), set(NAMES) & again.broker.default_host.exchanges.keys()
            stored = [exchange_binding_of(each) for each in again.store.topology.general.values()]
        assert story.links - story.doubtful <= links <= story.links | story.doubtful, seed
        assert story.exchanges - story.doubtful <= exchanges <= story.exchanges | story.doubtful, seed
        assert all({source, destination} <= exchanges for source, destination, _ in links), seed
        for name in story.doubtful & exchanges:  # it was not deleted, and so has all its bindings
            assert {link for link in story.links if name in link[:2]} <= links, seed
        assert {each[:3] for each in stored if each is not None} == links, seed
        count += len(links)
    return count


def test_completed_bindings_survive_crashes() -> None:
    run(seeds_of_the_day(25))


def test_runs_leave_completed_bindings() -> None:
    assert run(range(100)) > 20


@replaces
def test_bindings_that_go_after_their_exchange_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Catalogue.delete_exchange

    def alone(self: Catalogue, exchange_id: int, _general_ids: Iterable[int] = ()) -> None:
        plain(self, exchange_id)

    monkeypatch.setattr(Catalogue, "delete_exchange", alone)
    with pytest.raises(AssertionError):
        run(range(60))
