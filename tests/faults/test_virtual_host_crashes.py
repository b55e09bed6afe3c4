"""Virtual hosts that are created, limited and deleted while the broker dies: each is there as a whole, or not at all.

There are two hosts besides the default one, with queues, exchanges, bindings and messages of equal names. During one
change every kill point is visited. A broker that starts on what it leaves, and finishes what was begun, has the state
from before the change or from after it; if the change was answered, the one from after it. A further start finds the
same, and nothing of a deleted host in the catalogue.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import pytest

from qstore.broker.model.configuration import Record
from qstore.broker.model.errors import ModelError
from qstore.broker.model.message import NewMessage
from qstore.broker.model.policies import POLICY, Policy
from qstore.broker.model.virtual_host import VirtualHosts
from qstore.broker.protocols.amqp_0_10.message import new_transfer
from qstore.formats.broker_records.topology import exchange_binding_of, split_name
from qstore.formats.rhm.store_file import StoreFile, decode
from qstore.formats.values import EMPTY_MAP
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.disk import read_whole
from tests.faults.broker_process import BrokerProcess
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.simulation import left_by
from tests.faults.store_simulation import PATH
from tests.support.compiled import replaces
from tests.support.profiles import today

pytestmark = pytest.mark.usefixtures("quiet_logs", "tiny_blocks")

HOSTS = ("/", "a", "b")
State = frozenset[tuple[str, ...]]


class Left(NamedTuple):
    """What a killed broker leaves: the states before and after the change, and whether it was answered."""

    disk: SimulatedDisk
    before: State
    after: State
    is_answered: bool


def start(disk: SimulatedDisk, seed: int) -> BrokerProcess:
    return BrokerProcess(disk, random.Random(seed), lambda: 1_700_000_000.0, lambda: None)


def state_of(process: BrokerProcess) -> State:
    """Everything of every host."""
    broker, found = process.broker, set[tuple[str, ...]]()
    for host in broker.hosts.values():
        found.add(("host", host.name, str(host.max_connections), str(host.topology.max_queues), str(host.is_leaving)))
        for queue in host.queues.values():
            found.add(("queue", host.name, queue.name, "" if queue.alternate is None else queue.alternate.name))
            found |= {("message", host.name, queue.name, repr(body)) for body in process.bodies(queue)}
        for exchange in host.exchanges.values():
            assert exchange.store_id is not None or not exchange.durable or not exchange.name, (
                host.name,
                exchange.name,
            )
            found.add(("exchange", host.name, exchange.name))
            found |= {("binding", host.name, exchange.name, each.queue.name, each.key) for each in exchange.bindings}
            found |= {("link", host.name, each.source.name, each.destination.name) for each in exchange.onward or ()}
    for kind in ("qstore.permission", POLICY):
        found |= {(kind, *name) for name in broker.configuration.of(kind)}
    return frozenset(found)


def do(process: BrokerProcess, work: Coroutine[Any, Any, Any], done: Callable[[], None] = lambda: None) -> None:
    def answered(error: ModelError | None) -> None:
        assert error is None, error
        done()

    process.run(work, answered)
    process.settle()


def filled(disk: SimulatedDisk, seed: int) -> BrokerProcess:
    """A broker with three hosts, which have the same."""
    process = start(disk, seed)
    broker = process.broker
    for name in HOSTS:
        if name != "/":
            do(process, broker.virtual_hosts.create(name))
        topology = broker.hosts[name].topology
        do(process, topology.declare_exchange("x", "direct", durable=True))
        do(process, topology.declare_exchange("alt", "fanout", durable=True))
        for queue in ("q", "r"):
            do(process, topology.declare_queue(queue, durable=True, alternate="alt"))
        do(process, topology.bind("q", "x", "k"))
        do(process, topology.bind("r", "amq.topic", "#"))
        do(process, broker.hosts[name].exchange_bindings.bind("x", "amq.fanout", "k"))
        do(process, broker.policies.set(Policy(name, "p", "nothing", "queues", 0, {"max-length": 1})))
        record = Record("qstore.permission", ("user", name))
        do(process, broker.configuration.change({record: {"configure": "", "write": name, "read": ""}}))
        for body in (b"1", b"2"):
            message = new_transfer(NewMessage("q", EMPTY_MAP, is_persistent=True, content=body))
            broker.router.put(message, (broker.hosts[name].queues["q"],))
        broker.tick.schedule()
        process.settle()
    return process


def changes(hosts: VirtualHosts) -> list[Coroutine[Any, Any, Any]]:
    return [hosts.create("new", {"description": "d"}), hosts.limit("a", "max-queues", 5), hosts.delete("a")]


def work(seed: int, number: int) -> list[Left]:
    """What is left at each kill point of one change."""
    disk = SimulatedDisk(seed)
    process = filled(disk, seed)
    try:
        before = state_of(process)
        assert len({each for each in before if each[0] == "message"}) == 2 * len(HOSTS)
        asked = changes(process.broker.virtual_hosts)
        for other in [each for place, each in enumerate(asked) if place != number]:
            other.close()
        visited = left_by(disk, seed, lambda answered: do(process, asked[number], answered))
        after = state_of(process)
    finally:
        process.discard()
    assert before != after
    return [Left(left, before, after, is_answered) for left, is_answered in visited]


def mark_of(disk: SimulatedDisk) -> StoreFile:
    return decode(read_whole(disk, f"{PATH}/rhm/STORE", 5000))


def check(left: Left, seed: int) -> None:
    """Start a broker on what is left, twice."""
    for _ in range(2):
        assert mark_of(left.disk).has_hosts
        process = start(left.disk, seed)
        try:
            process.settle()
            found = state_of(process)
            topology = process.store.topology
            is_clean = process.stop()
        finally:
            process.discard()
        assert is_clean
        assert found in ((left.after,) if left.is_answered else (left.before, left.after)), found ^ left.after
    bound = [exchange_binding_of(each) for each in topology.general.values()]
    names = [
        *(each.record.name for each in topology.queues.values()),
        *(each.name for each in topology.exchanges.values()),
        *(each.source for each in bound if each is not None),
    ]
    assert {split_name(name)[0] for name in names} == {each[1] for each in found if each[0] == "host"}


def check_all(seed: int, number: int) -> None:
    for place, left in enumerate(work(seed, number)):
        check(left, place)


@pytest.mark.parametrize("number", range(3))
def test_a_host_is_changed_as_a_whole_or_not_at_all(number: int) -> None:
    lefts = work(number, number)
    for chosen in today(range(len(lefts)), max(12, len(lefts) // 12)):
        check(lefts[chosen], chosen)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_a_host_is_changed_as_a_whole_at_every_kill_point(seed: int) -> None:
    check_all(seed, seed % 3)


@replaces
def test_a_deletion_that_is_not_marked_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unmarked(_self: VirtualHosts, host: Any) -> None:
        host.is_leaving = True

    monkeypatch.setattr(VirtualHosts, "_begin_deletion", unmarked)
    with pytest.raises(AssertionError):
        check_all(2, 2)


def test_software_without_virtual_hosts_can_read_a_store_until_it_has_one() -> None:
    disk = SimulatedDisk(1)
    process = start(disk, 1)
    assert not mark_of(disk).has_hosts
    do(process, process.broker.virtual_hosts.limit("/", "max-queues", 7))
    assert not mark_of(disk).has_hosts
    do(process, process.broker.virtual_hosts.create("a"))
    assert mark_of(disk).has_hosts
    do(process, process.broker.virtual_hosts.delete("a"))
    assert process.stop()
    process.discard()
    again = start(disk, 1)
    assert not mark_of(disk).has_hosts
    assert again.broker.hosts["/"].topology.max_queues == 7
    again.discard()


@replaces
def test_a_host_in_a_store_that_does_not_say_so_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreDirectory, "admit_hosts", lambda _self: None)
    with pytest.raises(AssertionError):
        check(work(0, 2)[-1], 0)


def test_a_host_whose_record_is_lost_is_kept() -> None:
    disk = SimulatedDisk(1)
    process = filled(disk, 1)
    before = state_of(process)
    do(process, process.broker.configuration.change({}, [Record("qstore.virtual-host", ("a",))]))
    assert process.stop()
    process.discard()
    for _ in range(2):
        again = start(disk, 1)
        assert state_of(again) == before
        assert again.broker.configuration.get(Record("qstore.virtual-host", ("a",))) == {}
        assert again.stop()
        again.discard()
