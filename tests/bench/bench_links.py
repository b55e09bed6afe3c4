"""Publishing over AMQP 1.0 beside AMQP 0-9-1: processor time of the broker for a message, and messages a second.

    python -m tests.bench.bench_links [--size 1024] [--count 50000] [--pairs 5]

One durable queue, persistent messages that are equal, confirmed, with at most so many unconfirmed ones. Both protocols
take turns on one broker, the first run of each is not counted, and the medians of the others are compared. The frames
are made beforehand. Goal: 1.0 takes at most 1 / 0.8 of the processor time that 0-9-1 takes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import click

from qstore.formats.amqp_1_0.composites import Composite
from tests.support.basic_peer import PERSISTENT, BasicPeer
from tests.support.running_broker import RunningBroker
from tests.support.sections_peer import LinksPeer, address, content

_WINDOW: Final = 500
_BLOCK: Final = 50  # messages that are sent at once
_GOAL: Final = 0.8
_QUEUE: Final = "q"


class Spent(NamedTuple):
    """What a message took: microseconds of the broker's processes, and of the clock."""

    processor: float
    clock: float


def _links(port: int, size: int, count: int) -> Iterator[None]:
    """Publish over 1.0; what precedes the yield is not measured."""
    peer = LinksPeer(port)
    peer.max_frame = 1 << 17
    peer.do("attach", name="l", handle=0, role=False, initial_delivery_count=0,
            target=Composite("target", {"address": address(_QUEUE)}))  # fmt: skip
    while not any(each.name == "flow" for each in peer.received):
        peer.feed(peer.socket.recv(1 << 16))
    peer.received.clear()
    message, first = content(bytes(size)), 1000
    frames = [
        peer.transfers(0, number, message, delivery_tag=b"%08d" % number, message_format=0)[0]
        for number in range(first, first + count)
    ]
    blocks = [b"".join(frames[at : at + _BLOCK]) for at in range(0, count, _BLOCK)]
    del frames
    yield
    done = 0
    for number, block in enumerate(blocks, 1):
        peer.socket.sendall(block)
        while number * _BLOCK - done > _WINDOW or (number == len(blocks) and done < count):
            peer.feed(peer.socket.recv(1 << 16))
            for each in peer.received:
                if each.name == "disposition":
                    done += each.fields.get("last", each.fields["first"]) - each.fields["first"] + 1
            peer.received.clear()
    peer.socket.close()


def _basic(port: int, size: int, count: int) -> Iterator[None]:
    """As `_links`, over 0-9-1."""
    peer = BasicPeer(port)
    peer.call("confirm.select")
    block = b"".join(peer.message(_QUEUE, bytes(size), PERSISTENT) for _ in range(_BLOCK))
    yield
    done = 0
    for number in range(1, count // _BLOCK + 1):
        peer.socket.sendall(block)
        while number * _BLOCK - done > _WINDOW or (number == count // _BLOCK and done < count):
            peer.feed(peer.socket.recv(1 << 16))
            for each in peer.received:
                done = max(done, each.values["delivery_tag"])
            peer.received.clear()
    peer.socket.close()


def _measured(
    broker: RunningBroker, publish: Callable[[int, int, int], Iterator[None]], size: int, count: int
) -> Spent:
    work = publish(broker.port, size, count)
    next(work)
    processes = [broker.pid, *map(int, Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split())]
    before, began = _processor(processes), time.monotonic()
    for _ in work:
        pass
    spent, took = _processor(processes) - before, time.monotonic() - began
    admin = BasicPeer(broker.port)
    admin.call("queue.purge", queue=_QUEUE)
    admin.socket.close()
    return Spent(spent / count * 1e6, took / count * 1e6)


def _processor(processes: list[int]) -> float:
    """Processor seconds of processes so far."""
    fields = (Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in processes)
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


@click.command()
@click.option("--size", default=1024, show_default=True, help="Bytes of a message.")
@click.option("--count", default=50_000, show_default=True, help="Messages of a run, a multiple of 50.")
@click.option("--pairs", default=5, show_default=True, help="Runs of each protocol that are counted.")
def main(size: int, count: int, pairs: int) -> None:
    """Print both, and their ratio."""
    with tempfile.TemporaryDirectory() as directory:
        broker = RunningBroker(Path(directory))
        broker.start()
        admin = BasicPeer(broker.port)
        admin.call("queue.declare", queue=_QUEUE, durable=True)
        admin.socket.close()
        found: dict[str, list[Spent]] = {"0-9-1": [], "1.0": []}
        for number in range(pairs + 1):
            for name, publish in (("0-9-1", _basic), ("1.0", _links)):
                spent = _measured(broker, publish, size, count)
                if number:
                    found[name].append(spent)
        broker.stop()
    for name, all_spent in found.items():
        processor, clock = median(each.processor for each in all_spent), median(each.clock for each in all_spent)
        click.echo(f"{name:>6}  {processor:6.1f} us of processor a message, {1e6 / clock:9,.0f} messages/s")
    ratio = median(b.processor / o.processor for b, o in zip(found["0-9-1"], found["1.0"], strict=True))
    click.echo(f"1.0 has {ratio:.2f} of the rate of 0-9-1 by processor time, in pairs (goal {_GOAL})")


if __name__ == "__main__":
    main()
