"""What one lone durable message runs through in the broker: how many calls, of how many functions, in how many files.

    python -m tests.bench.bench_walk [--protocol 0-10] [--messages 40] [--calls] [--options "…"]

A client publishes a message of 1 KiB to a durable queue, waits for its confirm and its delivery, accepts it, and then
leaves the broker alone until nothing happens any more, so that its event loop sleeps. The broker counts its own calls
(`sys.setprofile`), in pure Python. Told are medians of all messages:

    calls      of Python functions of qstore, from the first byte that is read to the last one that is written
    functions  different ones among them
    files      that these are in
    switches   calls of a function that is in another file than the one called before it
    built in   calls of built-in functions

Processor time is measured by `--time` instead, without counting: microseconds of the broker for each message.
"""

from __future__ import annotations

import atexit
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, Final

import click

from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.frames import encode_command_frames
from tests.bench.bench_pairs import processor_ns
from tests.support.basic_peer import BasicPeer
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import RunningBroker

ROOT: Final = Path(__file__).parents[2]
_ROOMS: Final = tuple(f"{root / room}/" for root in (ROOT, ROOT / "qstore") for room in ("formats", "store", "broker"))
_REPORT: Final = "QSTORE_BENCH_WALK"
_GAP_SECONDS: Final = 0.06  # without a call: the next one belongs to another message
_PAUSE_SECONDS: Final = 0.15
_WARM_UP: Final = 10  # messages
_BODY: Final = b"x" * 1024
_QUEUE: Final = "walk"
_ENTRY: Final = "Router.publish"  # every message comes here
_TIMER: Final = "Server._on_timer"  # twice a second; no part of a message's way

Call = tuple[int, str, str]
"""A call: how many of qstore's frames are around it, its file ("": built in), and its name."""


class Walk:
    """Notes the calls of this process, message by message, and writes them when the process ends."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._messages: list[list[Call]] = []
        self._calls: list[Call] = []
        self._last = 0.0

    def start(self) -> None:
        """Count from now on."""
        atexit.register(self._write)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(_ROOMS) or event not in ("call", "c_call"):
            return
        now = time.perf_counter()
        if now - self._last > _GAP_SECONDS:
            self._messages.append(self._calls)
            self._calls = []
        self._last = now
        if event == "c_call":
            self._calls.append((0, "", argument.__qualname__))
            return
        depth, outer = 0, frame.f_back
        while outer is not None:
            depth += outer.f_code.co_filename.startswith(_ROOMS)
            outer = outer.f_back
        self._calls.append((depth, code.co_filename, code.co_qualname))

    def _write(self) -> None:
        sys.setprofile(None)
        self._report.write_text(json.dumps(self._messages))


def _broker() -> None:
    """Run the broker, and count on."""
    walk = Walk(Path(os.environ[_REPORT]))
    signal.signal(signal.SIGUSR2, lambda *_: walk.start())
    from qstore.broker.process.qpidd import main as run

    run()


def _messages_0_10(port: int, count: int) -> Iterator[None]:
    with RawPeer(port) as publisher, RawPeer(port) as consumer:
        publisher.declare(_QUEUE)
        consumer.subscribe(_QUEUE)
        consumer.sync()
        for _ in range(count):
            publisher.wait_for(publisher.publish(_QUEUE, _BODY, sync=True))
            delivery = consumer.take(1)[0].number
            accept = encode_command("message.accept", transfers=((delivery, delivery),))
            consumer.publish_all(encode_command_frames(consumer.channel, accept, None, None, consumer.frame_limit))
            consumer.complete()
            yield


def _messages_0_9_1(port: int, count: int) -> Iterator[None]:
    publisher, consumer = BasicPeer(port), BasicPeer(port)
    publisher.call("queue.declare", queue=_QUEUE, durable=True)
    publisher.call("confirm.select")
    consumer.call("basic.consume", queue=_QUEUE, consumer_tag="c")
    for _ in range(count):
        publisher.socket.sendall(publisher.message(_QUEUE, _BODY))
        publisher.expect("basic.ack")
        tag = consumer.expect("basic.deliver").values["delivery_tag"]
        consumer.send("basic.ack", delivery_tag=tag)
        yield
    publisher.socket.close()
    consumer.socket.close()


_PROTOCOLS: Final[dict[str, Callable[[int, int], Iterator[None]]]] = {
    "0-10": _messages_0_10,
    "0-9-1": _messages_0_9_1,
}


def _run(protocol: str, count: int, broker: RunningBroker, *, is_counted: bool) -> float:
    """Processor microseconds of the broker for each message."""
    began = 0
    for number, _ in enumerate(_PROTOCOLS[protocol](broker.port, count + _WARM_UP)):
        if is_counted:
            time.sleep(_PAUSE_SECONDS)
        if number == _WARM_UP - 1:
            if is_counted:
                os.kill(broker.pid, signal.SIGUSR2)
                time.sleep(_PAUSE_SECONDS)
            began = processor_ns(broker.pid)
        last = processor_ns(broker.pid) if number == count + _WARM_UP - 1 else 0
    return (last - began) / count / 1000


@click.command(help=__doc__)
@click.option("--protocol", type=click.Choice(list(_PROTOCOLS)), multiple=True, default=list(_PROTOCOLS))
@click.option("--messages", default=40, show_default=True)
@click.option("--calls", is_flag=True, help="List the calls of one message.")
@click.option("--options", default="", help="Of the broker.")
@click.option("--time", "is_timed", is_flag=True, help="Processor time, one message after the other.")
@click.option("--checkout", type=click.Path(path_type=Path), default=ROOT, help="Whose broker is timed.")
def main(protocol: list[str], messages: int, calls: bool, options: str, is_timed: bool, checkout: Path) -> None:
    """Measure."""
    for each in protocol:
        with tempfile.TemporaryDirectory(prefix="qstore-bench-") as name:
            report = Path(name) / "walk.json"
            broker = RunningBroker(Path(name), *shlex.split(options))
            if is_timed:
                broker.program = (sys.executable, "-P", "-m", "qstore.broker.process.qpidd")
                broker.environment = {"PYTHONPATH": str(checkout.resolve())}
            else:
                broker.program = (sys.executable, "-c", "from tests.bench.bench_walk import _broker; _broker()")
                broker.environment = {_REPORT: str(report), "PYTHONPATH": str(ROOT)}
            try:
                broker.start()
                took = _run(each, messages, broker, is_counted=not is_timed)
                if is_timed:
                    print(f"{each}: {took:.0f} µs", flush=True)
                    continue
                assert broker.stop() == 0, broker.log_text()
            finally:
                broker.close()
            _show(each, json.loads(report.read_text()), calls=calls)


def _show(protocol: str, messages: list[list[Call]], *, calls: bool) -> None:
    kept, figures = [], []
    for message in messages:
        ours = [(file, name) for _, file, name in message if file]
        names = {name for _, name in ours}
        if _ENTRY in names and _TIMER not in names:
            switches = sum(file != before for (before, _), (file, _) in pairwise(ours))
            files = {file for file, _ in ours}
            kept.append(message)
            figures.append((len(ours), len(set(ours)), len(files), switches, len(message) - len(ours)))
    middle = [round(median(column)) for column in zip(*figures, strict=True)]
    line = "{}: {} calls of {} functions in {} files, {} switches; {} built in ({} messages)"
    print(line.format(protocol, *middle, len(kept)), flush=True)
    if calls:
        nearest = min(range(len(kept)), key=lambda index: abs(figures[index][0] - middle[0]))
        for depth, file, name in kept[nearest]:
            if file:
                print(f"{'  ' * depth}{name}  {file.rpartition('/')[2]}")


if __name__ == "__main__":
    main()
