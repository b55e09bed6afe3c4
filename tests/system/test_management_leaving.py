"""Many consoles that listen to all events and close at once, while others are served: all others hear of it.

The daily test has a few; `pytest -m soak -s tests/system/test_management_leaving.py` has a thousand, and prints what
was measured.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from typing import Any, Final, NamedTuple

import pytest

from qstore.formats.amqp_0_10.maps import read_value
from qstore.formats.amqp_0_10.types import BY_NAME
from qstore.formats.plain import plain_typed_value
from tests.support.raw_peer import Delivery, RawPeer
from tests.support.running_broker import BrokerMaker, RunningBroker, allow_open_files
from tests.system.broker_canary import Canary

_CONSOLES: Final = int(os.environ.get("QSTORE_SOAK_CONSOLES", "1000"))
_FEW: Final = 30  # more than the number for which events are published one by one
_MEMORY_MIB: Final = 256
_OPTIONS: Final = ("--broker-memory", f"{_MEMORY_MIB}M", "--max-connections", str(_CONSOLES + 100))
_PER_CONSOLE: Final = 400 << 10
"""Bytes that a connection with its session, queue, bindings and unread output may take."""
_PATIENCE: Final = 300.0


class Left(NamedTuple):
    """What was measured.

    Attributes:
        connecting, leaving: the broker's processor time in seconds, until all had subscribed, and from then on.
        seconds: until the end of the last one was told.
        slowest: the longest time in which another client's message made its way meanwhile, in seconds.
        grown: the most bytes that the broker had more than before.
    """

    connecting: float
    leaving: float
    seconds: float
    slowest: float
    grown: int


class Listener:
    """A console that reads, and counts the events by what they are and whose."""

    def __init__(self, broker: RunningBroker) -> None:
        self._peer = RawPeer(broker.port)
        subscribe_to_events(self._peer, "listener")
        self._peer.on_delivery = self._read
        self.heard: Counter[tuple[str, str]] = Counter()

    def _read(self, delivery: Delivery) -> None:
        events: Any
        events, _ = read_value(BY_NAME["list"], delivery.body, 0, len(delivery.body))
        for event in map(plain_typed_value, events):
            self.heard[event["_schema_id"]["_class_name"], event["_values"].get("rhost", "")] += 1

    def read(self) -> None:
        """All that has come in."""
        while self._peer.process(0.0):
            pass
        self._peer.complete()

    def of(self, name: str) -> dict[str, int]:
        """How often an event of this class was heard, by client."""
        return {client: count for (class_name, client), count in self.heard.items() if class_name == name}

    def close(self) -> None:
        self._peer.end()


def subscribe_to_events(peer: RawPeer, queue: str) -> None:
    """Make the queue of a console, and a subscription that is never acknowledged."""
    peer.send_command("queue.declare", queue=queue, exclusive=True, auto_delete=True)
    for exchange, key in (("qmf.default.topic", "agent.ind.event.#"), ("qpid.management", "console.event.#")):
        if exchange == "qmf.default.topic" or queue != "listener":
            peer.send_command("exchange.bind", queue=queue, exchange=exchange, binding_key=key)
    peer.subscribe(queue, accept_mode=1)
    peer.sync()


def leave_at_once(broker: RunningBroker, count: int, *, says_so: bool = False) -> Left:
    """So many consoles connect, subscribe, never read, and close together; another one must hear of each end.

    Args:
        broker: has just been started.
        count: how many.
        says_so: whether they close their connections, and not only their sockets.
    """
    canary, listener = Canary(broker), Listener(broker)
    base, cpu = broker.resident_bytes(), broker.cpu_seconds()
    peak, slowest = base, 0.0
    with contextlib.ExitStack() as opened:
        consoles: list[RawPeer] = []
        for number in range(count):
            console = opened.enter_context(RawPeer(broker.port))
            subscribe_to_events(console, f"console-{number}")
            consoles.append(console)
            listener.read()
        connected = broker.cpu_seconds()
        peak = max(peak, broker.resident_bytes())
        names = {f"{host}:{port}" for host, port in (each.socket.getsockname()[:2] for each in consoles)}
        began = time.monotonic()
        if says_so:
            for each in consoles:
                each.send_control("connection.close", reply_code=200, reply_text="")
    while names - listener.of("clientDisconnect").keys():
        before = time.monotonic()
        assert before - began < _PATIENCE
        canary.sing(allowed=1 << 40)
        slowest = max(slowest, time.monotonic() - before)
        peak = max(peak, broker.resident_bytes())
        listener.read()
    left = Left(connected - cpu, broker.cpu_seconds() - connected, time.monotonic() - began, slowest, peak - base)
    heard = listener.of("clientDisconnect")
    assert {name: heard[name] for name in names} == dict.fromkeys(names, 1)
    canary.close()
    listener.close()
    return left


def test_simultaneous_disconnects_are_reported_to_remaining_consoles(make_broker: BrokerMaker) -> None:
    broker = make_broker(*_OPTIONS).start()
    left = leave_at_once(broker, _FEW)
    assert left.grown < _FEW * _PER_CONSOLE
    assert left.leaving < 2.0
    assert broker.stop() == 0, broker.log_text()


@pytest.mark.soak
@pytest.mark.parametrize("says_so", [False, True])
def test_a_thousand_consoles_leave_at_once(make_broker: BrokerMaker, says_so: bool) -> None:
    allow_open_files(2 * _CONSOLES + 1000)
    broker = make_broker(*_OPTIONS).start()
    left = leave_at_once(broker, _CONSOLES, says_so=says_so)
    print(f"\n{_CONSOLES} consoles: {left}")
    assert left.grown < (_MEMORY_MIB << 20) + _CONSOLES * _PER_CONSOLE
    assert left.slowest < 5.0
    assert broker.stop() == 0, broker.log_text()
