"""Many consoles, some of which never read, and an agent that floods: memory is bounded, and others are served.

Both are long: `pytest -m soak tests/system/test_management_hostile.py`. What was measured is printed (`-s`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Final
from uuid import UUID

import pytest

from qstore.formats.amqp_0_10.maps import encode_value
from qstore.formats.amqp_0_10.structs import ReplyTo
from qstore.formats.amqp_0_10.types import BY_NAME
from qstore.formats.qmf.v1 import encode_message
from qstore.formats.values import typed_map
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import BrokerMaker, RunningBroker, allow_open_files
from tests.system.broker_canary import Canary

_SECONDS: Final = float(os.environ.get("QSTORE_SOAK_SECONDS", "40"))
_CONSOLES: Final = int(os.environ.get("QSTORE_SOAK_CONSOLES", "1000"))
_QUEUES: Final = 50
_MEMORY_MIB: Final = 256
_OPTIONS: Final = ("--broker-memory", f"{_MEMORY_MIB}M", "--mgmt-pub-interval", "3", "--max-connections", "1100")
_PER_CONSOLE: Final = 400 << 10
"""Bytes that a connection with its session, queue and bindings may take, most of it output that is not read."""
_PATIENCE: Final = 10.0
"""Seconds within which another client's message makes its way, on a busy machine."""
_PATIENCE_AT_THE_END: Final = 60.0


@pytest.fixture
def broker(make_broker: BrokerMaker) -> Iterator[RunningBroker]:
    allow_open_files(4096)
    started = make_broker(*_OPTIONS).start()
    yield started
    assert started.stop() == 0, started.log_text()


class Meter:
    """What another client notices, and what the broker takes."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker, self._canary = broker, Canary(broker)
        self.base = self.peak = broker.resident_bytes()
        self.slowest = 0.0

    def sing(self) -> None:
        """A message makes its way."""
        began = time.monotonic()
        self._canary.sing(allowed=1 << 40)
        self.slowest = max(self.slowest, time.monotonic() - began)
        self.peak = max(self.peak, self._broker.resident_bytes())

    def close(self, allowed: int) -> None:
        """The broker has not grown beyond that, and others were served."""
        self._canary.grant()  # how much it may have grown is asserted below
        self._canary.close()
        grown = self.peak - self.base
        print(f"\nbase {self.base >> 20} MiB, grown by {grown >> 20} MiB, slowest message {self.slowest:.2f} s")
        assert grown < allowed
        assert self.slowest < _PATIENCE


def wait_until_idle(broker: RunningBroker) -> None:
    """Until the broker has handled the end of each console, which it announces to the others."""
    end, before = time.monotonic() + _PATIENCE_AT_THE_END, broker.cpu_seconds()
    while time.monotonic() < end:
        time.sleep(1.0)
        now = broker.cpu_seconds()
        if now - before < 0.1:
            return
        before = now
    raise AssertionError("the broker does not come to rest")


def ask(peer: RawPeer, reply_key: str) -> None:
    """Ask for all queues."""
    content = encode_value(
        BY_NAME["map"], typed_map({"_what": "OBJECT", "_schema_id": typed_map({"_class_name": "queue"})})
    )
    properties = {
        "application_headers": typed_map({"qmf.opcode": "_query_request"}), "content_type": "amqp/map",
        "app_id": b"qmf2", "reply_to": ReplyTo("qmf.default.direct", reply_key),
    }  # fmt: skip
    peer.publish("broker", content, exchange="qmf.default.direct", durable=False, properties=properties)


@pytest.mark.soak
def test_a_thousand_consoles(broker: RunningBroker) -> None:
    meter = Meter(broker)
    with contextlib.ExitStack() as opened:
        operator = opened.enter_context(RawPeer(broker.port))
        for number in range(_QUEUES):
            operator.declare(f"queue-{number}", durable=False)
        consoles, readers = [], []
        for number in range(_CONSOLES):
            reads = number % 2 == 0
            peer = opened.enter_context(RawPeer(broker.port, receive_buffer=None if reads else 4096))
            name = f"console-{number}"
            peer.send_command("queue.declare", queue=name, exclusive=True, auto_delete=True)
            for exchange, key in (
                ("qmf.default.direct", name), ("qmf.default.topic", "agent.ind.#"), ("qpid.management", "console.#"),
            ):  # fmt: skip
                peer.send_command("exchange.bind", queue=name, exchange=exchange, binding_key=key)
            if number % 4 != 1:  # every other one of those that never read has no subscription at all
                peer.subscribe(name, accept_mode=1)
            consoles.append((peer, name))
            if reads:
                readers.append(peer)
                peer.on_delivery = lambda _: None
            if number % 100 == 0:
                meter.sing()
        end, rounds = time.monotonic() + _SECONDS, 0
        while time.monotonic() < end:
            rounds += 1
            for peer, name in consoles[rounds % 20 :: 20]:
                ask(peer, name)
            operator.declare(f"new-{rounds}", durable=False)
            for peer in readers:
                while peer.process(0.0):
                    pass
                peer.complete()
            meter.sing()
            operator.call("queue.delete", queue=f"new-{rounds}")
        print(f"\n{_CONSOLES} consoles, {rounds} rounds", end="")
        meter.close((_MEMORY_MIB << 20) + _CONSOLES * _PER_CONSOLE)
    wait_until_idle(broker)


@pytest.mark.soak
def test_an_agent_that_floods(broker: RunningBroker) -> None:
    meter = Meter(broker)
    with contextlib.ExitStack() as opened:
        console = opened.enter_context(RawPeer(broker.port))
        console.declare("console", durable=False)
        console.call("exchange.bind", queue="console", exchange="qpid.management", binding_key="console.#")
        agent = opened.enter_context(RawPeer(broker.port))
        agent.declare("agent", durable=False, arguments={"qpid.policy_type": "ring", "qpid.max_count": 100_000})
        agent.subscribe("agent", accept_mode=1)
        agent.on_delivery = lambda _: None
        reply = {"reply_to": ReplyTo("", "agent")}
        end, number = time.monotonic() + _SECONDS, 0
        while time.monotonic() < end:
            frames = []
            for _ in range(500):
                number += 1
                name = f"class-{number}"
                reported = (
                    encode_message("A", number, f"agent {number}", UUID(int=number), 0, 0),
                    encode_message("q", number, 1, "com.example", name, number.to_bytes(16, "big")),
                    encode_message("s", number, 1, "com.example", name, number.to_bytes(16, "big"), rest=bytes(60_000)),
                )[number % 3]
                frames.append(
                    agent.transfer_frames(
                        "broker", reported, exchange="qpid.management", durable=False, properties=reply
                    )
                )
                frames.append(
                    agent.transfer_frames(
                        "console.obj.1.10.com.example.sensor", bytes(1000), exchange="qpid.management", durable=False
                    )
                )
            agent.publish_all(frames)
            while agent.process(0.0):
                pass
            agent.complete()
            meter.sing()
        sent = agent.sent
    print(f"\n{sent:,} messages of an agent", end="")
    meter.close((_MEMORY_MIB << 20) + (64 << 20))
