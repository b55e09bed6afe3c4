"""Domains and the links through them that change when the power fails: each change is there, or it is not."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from qstore.broker.federation.interlinks import INCOMING, DomainSettings, Interlinks, InterlinkSettings
from qstore.broker.federation.shovel import Shovels
from qstore.broker.model.broker import Broker
from qstore.broker.model.errors import ModelError
from tests.broker.federation.test_stored_links import Nowhere
from tests.broker.wired_broker import Somebody
from tests.faults.broker_process import BrokerProcess
from tests.faults.changes_cut_short import cut_short
from tests.support.compiled import replaces
from tests.support.profiles import seeds_of_the_day

pytestmark = pytest.mark.usefixtures("quiet_logs")

ANN = Somebody("ann@QPID")
NAMES = ("a", "b", "c")


class Unconnected(Nowhere):
    """A network that does not lead to this broker, either."""

    def connect_directly(self, *_: Any) -> Unconnected:
        return self


def interlinks_of(broker: Broker) -> Interlinks:
    network: Any = Unconnected()
    unused: Any = None
    return Interlinks(Shovels(broker, network, unused, network.call_later, unused))


class Story:
    """Domains, each with a link of its name once it is there, made and deleted one step after the other.

    Attributes:
        steps: name -> how far it was asked to be: 0 nothing, 1 a domain, 2 a link, too; the last is what it is to be.
        answered: name -> how many steps were answered.
    """

    def __init__(self, process: BrokerProcess) -> None:
        self.process, self.interlinks = process, interlinks_of(process.broker)
        self.steps: dict[str, list[int]] = {name: [0] for name in NAMES}
        self.answered = dict.fromkeys(NAMES, 0)

    def change(self, chance: random.Random) -> None:
        """One more step of a domain."""
        name, interlinks = chance.choice(NAMES), self.interlinks
        steps = self.steps[name]
        if self.answered[name] < len(steps) - 1:
            return
        before = steps[-1]
        steps.append(before + (-1 if before == 2 or (before and chance.random() < 0.4) else 1))
        domain = DomainSettings(name, "far", durable=True)
        link = InterlinkSettings(name, INCOMING, name, "q", "q", durable=True)
        work: Any = {
            (0, 1): lambda: interlinks.create_domain(domain, ANN), (1, 2): lambda: interlinks.create_link(link, ANN),
            (2, 1): lambda: interlinks.delete_link(INCOMING, name, ANN),
            (1, 0): lambda: interlinks.delete_domain(name, ANN),
        }[before, steps[-1]]  # fmt: skip

        def answered(error: ModelError | None) -> None:
            assert error is None, error
            self.answered[name] += 1

        self.process.run(work(), answered)


def run(seeds: Iterable[int]) -> int:
    """Check what comes back after a crash at some moment. Returns how many links did."""
    count = 0
    for seed in seeds:
        with cut_short(seed, Story) as (story, again):
            found = interlinks_of(again.broker)
            found.start()
        assert {each.creator for each in found.links.values()} <= {"ann@QPID"}
        for name, steps in story.steps.items():
            state = (name in found.domains) + (name in found.links)
            assert state in steps[story.answered[name] :], (seed, name)
        count += len(found.links)
    return count


def test_what_was_answered_is_found_again() -> None:
    run(seeds_of_the_day(40))


def test_something_was_there() -> None:
    assert run(range(40)) > 10


@replaces
def test_a_domain_that_is_made_before_it_is_on_the_disk_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgets(self: Interlinks, record: object) -> int:
        return 1

    monkeypatch.setattr(Interlinks, "_store", forgets)
    monkeypatch.setattr(Interlinks, "_forget", lambda _self, _number: _nothing())
    with pytest.raises(AssertionError):
        run(range(40))


async def _nothing() -> None:
    """In place of a change of the store."""
