"""Cost of durable queues, bindings and connections that come and go, of this checkout and of another one, in turns.

    python -m tests.bench.bench_changes [--against CHECKOUT] [--seconds S] [--rounds N] [LOAD ...]

    declare     one client declares new durable queues, one after the other
    declare-8   eight clients do
    churn       one client declares a durable queue and deletes it, again and again
    churn-8     eight clients do, each its own
    bind        one client binds a durable queue and unbinds it
    connect     one client opens a connection and a channel, and closes both
    connect-8   eight clients do

The clients speak AMQP 0-9-1 and do as little as they can: their frames are made before. Told are operations a second
(a queue that is declared and deleted is one), and microseconds of the broker's processor time for each, with what it
has started; medians of the rounds. Each round has an empty data directory. On a machine that does other things compare
the processor time.
"""

from __future__ import annotations

import selectors
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import click

from qstore.formats.amqp_0_9_1.frames import METHOD, PROTOCOL_HEADER, encode_frame
from qstore.formats.amqp_0_9_1.methods import encode_method
from tests.bench.bench_pairs import processor_ns
from tests.support.running_broker import ROOT, RunningBroker

_FRAME: Final = struct.Struct(">BHI")
_METHOD: Final = struct.Struct(">HH")
_CLOSE: Final = (10, 50)
_CHANNEL_CLOSE: Final = (20, 40)
_MAX_FRAME: Final = 131_072
_PATIENCE_SECONDS: Final = 30.0


def _frame(name: str, channel: int = 1, /, **values: Any) -> bytes:
    return encode_frame(METHOD, channel, encode_method(name, **values))


_START_OK: Final = _frame("connection.start-ok", 0, mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US")
_TUNED: Final = _frame(
    "connection.tune-ok", 0, channel_max=1, frame_max=_MAX_FRAME, heartbeat=0
) + _frame("connection.open", 0, virtual_host="/")  # fmt: skip
_OPEN: Final = _frame("channel.open")
_CLOSED: Final = _frame("connection.close", 0, reply_code=200, reply_text="", class_id=0, method_id=0)

#: What a client sends in an endless sequence: each when the answer to the one before is there.
Requests = Iterator[bytes]


class Client:
    """A connection that sends one request after the other.

    Attributes:
        done: requests that were answered.
    """

    def __init__(self, port: int, requests: Callable[[], Requests]) -> None:
        self._address, self._requests = ("127.0.0.1", port), requests()
        self.done = 0
        self.socket = self._connected()

    def _connected(self) -> socket.socket:
        connected = socket.create_connection(self._address, timeout=_PATIENCE_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left = b""
        return connected

    def begin(self) -> None:
        """Send the first request."""
        self.socket.sendall(next(self._requests))

    def read(self) -> None:
        """Take what is there, and send the next request for each answer."""
        more = self.socket.recv(65536)
        assert more, "the broker has hung up"
        data = self._left + more
        at = 0
        while len(data) - at >= _FRAME.size:
            _, _, size = _FRAME.unpack_from(data, at)
            if len(data) - at < _FRAME.size + size + 1:
                break
            method = _METHOD.unpack_from(data, at + _FRAME.size)
            assert method not in (_CLOSE, _CHANNEL_CLOSE), data[at:]
            at += _FRAME.size + size + 1
            self.done += 1
            self.begin()
        self._left = data[at:]


class Connecting(Client):
    """Opens a connection and a channel, closes both, and does it again."""

    def __init__(self, port: int, _: Callable[[], Requests]) -> None:
        super().__init__(port, lambda: iter(()))
        self._step = 0

    def begin(self) -> None:
        """Send the protocol header."""
        self.socket.sendall(PROTOCOL_HEADER)
        self._step = 0

    def read(self) -> None:
        """Take one answer; each is one frame, and comes in one piece."""
        assert self.socket.recv(65536), "the broker has hung up"
        if self._step == len(_HANDSHAKE):
            self.socket.close()
            self.socket = self._connected()
            self.done += 1
            self.begin()
            return
        self.socket.sendall(_HANDSHAKE[self._step])
        self._step += 1


_HANDSHAKE: Final = (_START_OK, _TUNED, _OPEN, _CLOSED)
_NUMBERS: Final = count(1)


def _opened() -> Requests:
    yield PROTOCOL_HEADER
    yield from (_START_OK, _TUNED, _OPEN)


def _declares() -> Requests:
    yield from _opened()
    while True:
        yield _frame("queue.declare", queue=f"declared-{next(_NUMBERS)}", durable=True)


def _churns() -> Requests:
    yield from _opened()
    name = f"churned-{next(_NUMBERS)}"
    declare, delete = _frame("queue.declare", queue=name, durable=True), _frame("queue.delete", queue=name)
    while True:
        yield declare
        yield delete


def _binds() -> Requests:
    yield from _opened()
    where = {"queue": f"bound-{next(_NUMBERS)}", "exchange": "amq.direct", "routing_key": "key"}
    yield _frame("queue.declare", queue=where["queue"], durable=True)
    bind, unbind = _frame("queue.bind", **where), _frame("queue.unbind", **where)
    while True:
        yield bind
        yield unbind


class Load(NamedTuple):
    """Clients of one kind.

    Attributes:
        make: makes one.
        requests: what it sends.
        clients: how many there are.
        answers: of one operation.
    """

    make: type[Client]
    requests: Callable[[], Requests]
    clients: int
    answers: int


LOADS: Final = {
    "declare": Load(Client, _declares, 1, 1),
    "declare-8": Load(Client, _declares, 8, 1),
    "churn": Load(Client, _churns, 1, 2),
    "churn-8": Load(Client, _churns, 8, 2),
    "bind": Load(Client, _binds, 1, 2),
    "connect": Load(Connecting, _opened, 1, 1),
    "connect-8": Load(Connecting, _opened, 8, 1),
}


class Measured(NamedTuple):
    """Operations a second, and microseconds of processor time of each."""

    rate: float
    cpu: float


def measure(broker: RunningBroker, load: Load, seconds: float) -> Measured:
    """Run a load on a broker that was just started."""
    clients = [load.make(broker.port, load.requests) for _ in range(load.clients)]
    with selectors.DefaultSelector() as selector:
        for client in clients:
            client.begin()

        def turn(until: float) -> None:
            while (now := time.monotonic()) < until:
                for client in clients:
                    if client.socket.fileno() not in selector.get_map():
                        selector.register(client.socket, selectors.EVENT_READ, client)
                for key, _ in selector.select(until - now):
                    before = client_of(key).socket
                    descriptor = key.fd
                    client_of(key).read()
                    if client_of(key).socket is not before:
                        selector.unregister(descriptor)

        turn(time.monotonic() + min(0.5, seconds / 4))
        began, cpu, done = time.monotonic(), processor_ns(broker.pid), sum(client.done for client in clients)
        turn(began + seconds)
        lasted, cpu = time.monotonic() - began, processor_ns(broker.pid) - cpu
        operations = (sum(client.done for client in clients) - done) / load.answers
    for client in clients:
        client.socket.close()
    return Measured(operations / lasted, cpu / 1000 / operations)


def client_of(key: selectors.SelectorKey) -> Client:
    """The client that was registered."""
    assert isinstance(key.data, Client)
    return key.data


def one_round(checkout: Path, load: Load, seconds: float, options: Sequence[str], directory: Path | None) -> Measured:
    """Measure a load on a new broker of a checkout."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="qstore-bench-") as name:
        broker = RunningBroker(Path(name), *options)
        broker.runner, broker.environment = ("-P",), {"PYTHONPATH": str(checkout)}
        try:
            return measure(broker.start(), load, seconds)
        finally:
            broker.close()


@click.command()
@click.argument("loads", nargs=-1, type=click.Choice(list(LOADS)))
@click.option("--against", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another checkout.")
@click.option("--seconds", default=2.0, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--options", default="", help="Options of the brokers.")
@click.option("--directory", type=click.Path(exists=True, file_okay=False, path_type=Path), help="For the stores.")
def main(
    loads: tuple[str, ...], against: Path | None, seconds: float, rounds: int, options: str, directory: Path | None
) -> None:
    """Measure the brokers of this checkout and another one in turns."""
    checkouts = [ROOT] if against is None else [against, ROOT]
    for name in loads or LOADS:
        results: dict[Path, list[Measured]] = {checkout: [] for checkout in checkouts}
        for number in range(rounds):
            for checkout in checkouts if number % 2 else reversed(checkouts):
                results[checkout].append(one_round(checkout, LOADS[name], seconds, options.split(), directory))
        reported = []
        for checkout in checkouts:
            rate, cpu = (median(values) for values in zip(*results[checkout], strict=True))
            reported.append(f"{rate:9,.0f}/s {cpu:8,.1f} µs")
        click.echo(f"{name:10s} {'   now '.join(reported)}")


if __name__ == "__main__":
    main()
