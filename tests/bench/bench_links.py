"""AMQP 1.0 beside AMQP 0-9-1: processor time of the broker for a message, and messages a second.

    python -m tests.bench.bench_links [--size 1024] [--count 50000] [--pairs 5] [--consume]

One durable queue, persistent messages that are equal, confirmed, with at most so many unconfirmed ones; or, with
`--consume`, messages that are there, most of them on the disk only, and accepted by the hundred: also those that were
published over the other protocol, and are converted. All take turns on one broker, the first run of each is not
counted, and the medians of the others are compared. The frames are made beforehand. Goal: each takes at most 1 / 0.8
of the processor time that 0-9-1 takes.
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
_CREDIT: Final = 1_000
_ACCEPTED: Final = 100  # messages that are accepted at once
_TRANSFER: Final = b"\x00\x53\x14"
_BODY_FRAME: Final = 3


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


def _links_consumed(port: int, size: int, count: int) -> Iterator[None]:
    """Consume over 1.0."""
    for _ in _links(port, size, count):
        pass
    yield from _consumed_by_link(port, count)


def _basic_consumed_by_link(port: int, size: int, count: int) -> Iterator[None]:
    """Consume over 1.0 what was published over 0-9-1."""
    for _ in _basic(port, size, count):
        pass
    yield from _consumed_by_link(port, count)


def _consumed_by_link(port: int, count: int) -> Iterator[None]:
    peer = LinksPeer(port)
    peer.socket.sendall(peer.attachment(_QUEUE, receives=True))
    yield
    peer.socket.sendall(peer.flow(0, _CREDIT))
    done, told, begun, data = 0, 0, 0, b""
    while done < count:
        data += peer.socket.recv(1 << 18)
        at = 0
        while at + 4 <= len(data) and at + (size_of_frame := int.from_bytes(data[at : at + 4], "big")) <= len(data):
            done += data.startswith(_TRANSFER, at + 8)
            at += size_of_frame
        data = data[at:]
        while done - told >= _ACCEPTED or told < done == count:
            last = min(told + _ACCEPTED, done) - 1
            peer.do("disposition", role=True, first=told, last=last, settled=True, state=Composite("accepted", {}))
            told = last + 1
        if done - begun >= _CREDIT // 2:
            begun = done
            peer.socket.sendall(peer.flow(0, _CREDIT, delivery_count=done, next_incoming_id=done))
    peer.socket.close()


def _basic_consumed(port: int, size: int, count: int) -> Iterator[None]:
    """Consume over 0-9-1."""
    for _ in _basic(port, size, count):
        pass
    yield from _consumed_by_channel(port, count)


def _links_consumed_by_channel(port: int, size: int, count: int) -> Iterator[None]:
    """Consume over 0-9-1 what was published over 1.0."""
    for _ in _links(port, size, count):
        pass
    yield from _consumed_by_channel(port, count)


def _consumed_by_channel(port: int, count: int) -> Iterator[None]:
    peer = BasicPeer(port)
    peer.call("basic.qos", prefetch_count=_CREDIT)
    yield
    peer.send("basic.consume", queue=_QUEUE)
    done, told, data = 0, 0, b""
    while done < count:
        data += peer.socket.recv(1 << 18)
        at = 0
        while at + 7 <= len(data) and at + (end := int.from_bytes(data[at + 3 : at + 7], "big") + 8) <= len(data):
            done += data[at] == _BODY_FRAME
            at += end
        data = data[at:]
        while done - told >= _ACCEPTED or told < done == count:
            told = min(told + _ACCEPTED, done)
            peer.send("basic.ack", delivery_tag=told, multiple=True)
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
@click.option("--consume", is_flag=True, help="Measure consumers, not publishers.")
def main(size: int, count: int, pairs: int, consume: bool) -> None:
    """Print both, and their ratio."""
    works = {"0-9-1": _basic, "1.0": _links}
    if consume:
        works = {"0-9-1": _basic_consumed, "1.0": _links_consumed, "1.0 of 0-9-1": _basic_consumed_by_link,
                 "0-9-1 of 1.0": _links_consumed_by_channel}  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        broker = RunningBroker(Path(directory))
        broker.start()
        admin = BasicPeer(broker.port)
        admin.call("queue.declare", queue=_QUEUE, durable=True)
        admin.socket.close()
        found: dict[str, list[Spent]] = {name: [] for name in works}
        for number in range(pairs + 1):
            for name, work in works.items():
                spent = _measured(broker, work, size, count)
                if number:
                    found[name].append(spent)
        broker.stop()
    for name, all_spent in found.items():
        processor, clock = median(each.processor for each in all_spent), median(each.clock for each in all_spent)
        click.echo(f"{name:>12}  {processor:6.1f} us of processor a message, {1e6 / clock:9,.0f} messages/s")
    for name in list(works)[1:]:
        ratio = median(b.processor / o.processor for b, o in zip(found["0-9-1"], found[name], strict=True))
        click.echo(f"{name} has {ratio:.2f} of the rate of 0-9-1 by processor time, in pairs (goal {_GOAL})")


if __name__ == "__main__":
    main()
