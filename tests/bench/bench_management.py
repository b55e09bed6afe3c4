"""Cost of management with many queues: how long it holds the event loop, sweeps, and `qpid-stat -q`.

    python -m tests.bench.bench_management [--queues 10000]

The first part runs a broker's model and its agent in this process, and measures the longest iteration of the event loop
while consoles ask, in processor time, so that other processes do not count. The second starts a broker and
`qpid-stat -q` as processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from qstore.broker.client import Connection
from qstore.broker.management.outbox import TOPIC, VERSION_1
from qstore.broker.model.broker import Broker
from qstore.broker.model.message import NewMessage
from qstore.broker.protocols.amqp_0_10.message import new_transfer
from qstore.broker.settings import BrokerSettings
from qstore.formats.qmf.v1 import encode_message
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.support.management_console import Console
from tests.support.running_broker import RunningBroker

_GOAL = 0.020  # seconds that the loop may be held


class Gaps:
    """Measures the iterations of the event loop."""

    async def during(self, work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
        """Do the work. Returns its processor time, and that of the longest iteration, in seconds."""
        self._longest, self._is_on = 0.0, True
        watcher = asyncio.get_running_loop().create_task(self._watch())
        await asyncio.sleep(0)
        began = time.process_time()
        await work()
        took = time.process_time() - began
        self._is_on = False
        await watcher
        return took, self._longest

    async def _watch(self) -> None:
        before = time.process_time()
        while self._is_on:
            await asyncio.sleep(0)
            now = time.process_time()
            self._longest, before = max(self._longest, now - before), now


class _Stage:
    """A broker's model, without a store."""

    def __init__(self) -> None:
        self.broker = Broker(BrokerSettings(), None, asyncio.get_running_loop().call_soon)
        self.topology = self.broker.default_host.topology


async def _in_process(queues: int) -> None:
    stage, gaps = _Stage(), Gaps()
    console = Console(stage)
    await console.open()
    for number in range(queues):
        await stage.topology.declare_queue(f"queue-{number:05}")
    await stage.topology.bind("events", TOPIC, "agent.ind.data.#")
    await stage.topology.bind("events", VERSION_1, "console.obj.#")
    gc.collect()
    gc.freeze()
    gc.set_threshold(25_000, 100, 100)  # as in the broker's process

    async def listed() -> None:
        console.send("_query_request", {"_what": "OBJECT", "_schema_id": {"_class_name": "queue"}})
        await console.settle()
        console.replies.purge()

    async def version_1() -> None:
        console.send(None, encode_message("G", 5, typed_map({"_class": "queue"})), exchange=VERSION_1)
        await console.settle()
        console.replies.purge()

    async def broker() -> None:
        await console.query("broker")

    async def changed() -> None:
        await console.agent._publisher.sweep()
        console.events.purge()

    async def publish() -> None:
        for queue in list(stage.broker.default_host.queues.values())[2 : queues + 2]:
            stage.broker.router.put(new_transfer(NewMessage("", EMPTY_MAP, content=b"x")), (queue,))

    for what, work in (
        ("sweep, all new", changed), ("sweep, nothing changed", changed), ("list, version 2", listed),
        ("list, version 1", version_1), ("the object broker", broker),
    ):  # fmt: skip
        took, longest = await gaps.during(work)
        print(f"{what:<28}{took * 1e3:10.1f} ms   longest iteration {longest * 1e3:6.1f} ms")
    await publish()
    took, longest = await gaps.during(changed)
    print(f"{'sweep, all changed':<28}{took * 1e3:10.1f} ms   longest iteration {longest * 1e3:6.1f} ms")


def _with_processes(queues: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        broker = RunningBroker(Path(directory) / "broker")
        broker.start()
        try:
            _declare(broker.port, queues)
            url = f"127.0.0.1:{broker.port}"
            for _ in range(3):
                before, began, tool = broker.cpu_seconds(), time.perf_counter(), _used_by_children()
                shown = subprocess.run(
                    [sys.executable, "-m", "qstore.tools.qpid_stat", "-q", "-b", url],
                    stdout=subprocess.PIPE, check=True,
                )  # fmt: skip
                took, used = time.perf_counter() - began, broker.cpu_seconds() - before
                lines, tool = len(shown.stdout.splitlines()), _used_by_children() - tool
                print(f"qpid-stat -q: {lines:,} lines in {took:.2f} s; processor time {used:.2f} s and {tool:.2f} s")
            with Connection(url) as connection:  # a console listens to all changes
                session = connection.session()
                session.receiver("qmf.default.topic/agent.ind.data.#")
                time.sleep(20)  # everything is published once
                before = broker.cpu_seconds()
                time.sleep(30)
                used = broker.cpu_seconds() - before
                print(f"nothing changes, 3 intervals: broker {used / 30:.1%} of a core")
        finally:
            broker.close()


def _used_by_children() -> float:
    """Processor time of the commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _declare(port: int, queues: int) -> None:
    with Connection(f"127.0.0.1:{port}") as connection:
        session = connection.session()
        for number in range(queues):
            session.invoke("queue.declare", queue=f"queue-{number:05}")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--only", choices=("loop", "processes"))
    options = parser.parse_args()
    if options.only != "processes":
        asyncio.run(_in_process(options.queues))
    if options.only != "loop":
        _with_processes(options.queues)


if __name__ == "__main__":
    main()
