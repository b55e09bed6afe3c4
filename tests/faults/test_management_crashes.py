"""Management methods that change durable things, and a broker that dies: what was answered OK is on the disk.

An operator calls methods by chance: queues, exchanges and bindings are created and deleted, messages are moved,
rerouted and purged. During each call every kill point is visited. A broker that starts on what it leaves has the
topology from before the call or from after it; each message that was moved is at its source or at its destination; and
if the call was answered, everything is as after it. `tests/support/profiles.py` says which kill points are checked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import pytest

from qstore.broker.management.classes import call, find_object
from qstore.broker.management.managed_broker import ManagedBroker
from qstore.broker.management.objects.queue import Waiting
from qstore.broker.model.caller import BROKER
from qstore.broker.model.errors import ModelError
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, MESSAGE_PROPERTIES, encode_struct
from qstore.formats.values import typed_map
from tests.faults.broker_clients import OneSession
from tests.faults.broker_process import BrokerProcess
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.simulation import left_by
from tests.support.compiled import ClientSession
from tests.support.management_console import managed
from tests.support.profiles import today

pytestmark = pytest.mark.usefixtures("quiet_logs", "tiny_blocks")

_PACKAGE: Final = "org.apache.qpid.broker"
_QUEUES: Final = ("a", "b")
_CALLS: Final = 7
_MESSAGES: Final = 4

Topology = frozenset[tuple[str, ...]]
Messages = frozenset[tuple[str, bytes]]


class State(NamedTuple):
    """What a broker has: queues, exchanges and bindings; and messages, with their queues."""

    topology: Topology
    messages: Messages


class Left(NamedTuple):
    """What a killed broker leaves: the states before and after the call, and whether it was answered."""

    disk: SimulatedDisk
    before: State
    after: State
    is_answered: bool
    method: str


def state_of(process: BrokerProcess) -> State:
    """State of a broker."""
    broker = process.broker
    topology: set[tuple[str, ...]] = {("queue", name) for name in broker.default_host.queues}
    for exchange in broker.default_host.exchanges.values():
        topology.add(("exchange", exchange.name))
        topology |= {("binding", exchange.name, each.queue.name, each.key) for each in exchange.bindings}
    messages = {(queue.name, body) for queue in broker.default_host.queues.values() for body in process.bodies(queue)}
    return State(frozenset(topology), frozenset(messages))


class Operator(ClientSession):
    """Publishes messages, and calls methods."""

    def __init__(self, process: BrokerProcess, rng: random.Random) -> None:
        super().__init__(b"operator", 0, None)
        self._process, self._rng = process, rng
        self._managed: ManagedBroker = managed(process.broker)
        self._published = 0
        process.connect(OneSession(self))
        process.settle()

    def on_command(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        raise AssertionError("the broker complains")

    def publish(self, queue: str) -> None:
        """Put a durable message on a queue; some have a header."""
        self._published += 1
        headers = {"application_headers": typed_map({"colour": ("red", "blue")[self._published % 2]})}
        header = encode_struct(DELIVERY_PROPERTIES, {"delivery_mode": 2, "routing_key": queue})
        header += encode_struct(MESSAGE_PROPERTIES, headers)
        self.send_payload(encode_command("message.transfer", accept_mode=1), header, b"%d" % self._published)
        self._process.settle()

    def call(self, method: str, target: str, arguments: dict[str, Any], done: Callable[[], None]) -> None:
        """Call a method, until everything has come to rest; `done` is called with its answer."""
        each = find_object(self._managed, f"{_PACKAGE}:{target}")
        assert each is not None
        plain = {name: typed_map(value) if isinstance(value, dict) else value for name, value in arguments.items()}

        async def work() -> None:
            await call(self._managed, each, method, plain, BROKER)

        def answered(error: ModelError | None) -> None:
            assert error is None, error
            done()

        self._process.run(work(), answered)
        self._process.settle()

    def deed(self, state: State) -> tuple[str, str, dict[str, Any]]:
        """A method that has something to do: its name, its object and its arguments."""
        queues = sorted(name for kind, name, *_ in state.topology if kind == "queue")
        bindings = sorted(each[1:] for each in state.topology if each[0] == "binding" and each[1] == "x")
        source = self._rng.choice(queues)
        other = self._rng.choice([name for name in queues if name != source])
        durable = {"durable": True}
        red = {"filter_type": "header_match_str", "filter_params": {"header_key": "colour", "header_value": "red"}}
        choices: list[tuple[str, str, dict[str, Any]]] = [
            ("queueMoveMessages", "broker:amqp-broker", {"srcQueue": source, "destQueue": other, "qty": 0}),
            ("queueMoveMessages", "broker:amqp-broker", {"srcQueue": source, "destQueue": other, "filter": red}),
            ("reroute", f"queue:{source}", {"exchange": "y", "request": self._rng.randrange(3)}),
            ("purge", f"queue:{source}", {"request": self._rng.randrange(3)}),
            ("purge", f"queue:{source}", {"filter": red}),
        ]
        if bindings:
            name = "/".join(self._rng.choice(bindings))
            choices.append(("delete", "broker:amqp-broker", {"type": "binding", "name": name}))
        if ("binding", "x", source, "k") not in state.topology:
            choices.append(("create", "broker:amqp-broker", {"type": "binding", "name": f"x/{source}/k"}))
        if "new" in queues:
            choices += [("delete", "broker:amqp-broker", {"type": "queue", "name": "new"})] * 2
        else:
            choices += [("create", "broker:amqp-broker", {"type": "queue", "name": "new", "properties": durable})] * 2
        is_there = ("exchange", "e") in state.topology
        choices.append(
            ("delete", "broker:amqp-broker", {"type": "exchange", "name": "e"})
            if is_there
            else ("create", "broker:amqp-broker", {"type": "exchange", "name": "e", "properties": durable})
        )
        return self._rng.choice(choices)


def start(disk: SimulatedDisk, seed: int) -> BrokerProcess:
    return BrokerProcess(disk, random.Random(seed), lambda: 1_700_000_000.0, lambda: None)


def work(seed: int) -> list[Left]:
    """What is left at each kill point of some calls, of a history that the seed decides."""
    rng, disk = random.Random(seed), SimulatedDisk(seed)
    process = start(disk, seed)
    lefts: list[Left] = []
    try:
        operator = Operator(process, rng)
        for name in ("x", "y"):
            operator.send("exchange.declare", exchange=name, type="fanout" if name == "y" else "direct", durable=True)
        for name in _QUEUES:
            operator.send("queue.declare", queue=name, durable=True)
        operator.send("exchange.bind", exchange="y", queue="b", binding_key="")
        process.settle()
        for _ in range(_CALLS):
            for name in _QUEUES:
                while sum(queue == name for queue, _ in state_of(process).messages) < _MESSAGES:
                    operator.publish(name)
            lefts += one_call(operator, process, disk, seed)
    finally:
        process.discard()
    return lefts


def one_call(operator: Operator, process: BrokerProcess, disk: SimulatedDisk, seed: int) -> list[Left]:
    before = state_of(process)
    method, target, arguments = operator.deed(before)
    visited = left_by(disk, seed, lambda answered: operator.call(method, target, arguments, answered))
    after = state_of(process)
    return [Left(left, before, after, is_answered, method) for left, is_answered in visited]


def check(left: Left, seed: int) -> None:
    """Start a broker on what is left."""
    process = start(left.disk, seed)
    try:
        process.settle()
        found = state_of(process)
    finally:
        process.discard()
    if left.is_answered:
        assert found == left.after, left.method
        return
    assert found.topology in (left.before.topology, left.after.topology), left.method
    assert found.messages <= left.before.messages | left.after.messages, left.method
    assert found.messages >= left.before.messages & left.after.messages, left.method
    if left.method in ("queueMoveMessages", "reroute"):
        moved = {body for _, body in left.after.messages - left.before.messages}
        assert {body for _, body in found.messages} >= moved, left.method


@pytest.mark.parametrize("seed", range(6))
def test_answered_methods_are_kept_whenever_the_broker_dies(seed: int) -> None:
    lefts = work(seed)
    chosen = today(range(len(lefts)), len(lefts) // 12)
    for number in chosen:
        check(lefts[number], number)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_answered_methods_are_kept_at_every_kill_point(seed: int) -> None:
    for number, left in enumerate(work(seed)):
        check(left, number)


def test_every_method_is_called() -> None:
    methods = {left.method for seed in range(6) for left in work(seed)}
    assert methods == {"create", "delete", "queueMoveMessages", "reroute", "purge"}


def check_answered(seeds: Iterable[int]) -> None:
    """State after an answer."""
    for seed in seeds:
        for number, left in enumerate(work(seed)):
            if left.is_answered:
                check(left, number)


def test_an_answer_before_the_disk_is_detected() -> None:
    async def at_once(_self: Waiting) -> None:
        """Wait for nothing."""

    with patch.object(Waiting, "all", at_once), pytest.raises(AssertionError, match=r"purge|reroute|queueMoveMessages"):
        check_answered(range(20))
