"""What `qstore-console` costs a broker: processor time of both, in percent of one core, while pages are open.

    python -m tests.bench.bench_console [--queues 50] [--seconds 30]

A scraper reads `/metrics` and a page its calls, both every 5 seconds. On a machine whose cores are all busy, what
publishers lose is the share of the cores that goes here: with two cores half of the printed cost. Two rates that are
measured one after the other differ by more than that for other reasons.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Final

import pika

from tests.support.running_broker import RunningBroker, cpu_seconds
from tests.system.test_console import RunningConsole

_EVERY: Final = 5.0
_CONNECTIONS: Final = 20
_METRICS: Final = "/metrics"
_PAGES: Final = {
    "not looked at": (),
    "scraped": (_METRICS,),
    "scraped, overview open": (_METRICS, "/api/overview", "/api/nodes", "/api/qstore/alarms"),
    "scraped, list of queues open": (_METRICS, "/api/queues?page=1&page_size=100&sort=name"),
}


def _ask(console: RunningConsole, path: str) -> None:
    request = urllib.request.Request(console.url + path)
    request.add_header("Authorization", f"Basic {b64encode(b'guest:guest').decode()}")
    with urllib.request.urlopen(request) as answer:
        answer.read()


def _cost(broker: RunningBroker, console: RunningConsole | None, paths: tuple[str, ...], seconds: float) -> list[float]:
    """Percent of a core that the broker takes, and the console."""
    pids = [broker.pid, *([] if console is None else [console.process.pid])]
    before = [cpu_seconds(pid) for pid in pids]
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        for path in paths:
            assert console is not None
            _ask(console, path)
        time.sleep(_EVERY)
    took = time.monotonic() - began
    return [100 * (cpu_seconds(pid) - first) / took for pid, first in zip(pids, before, strict=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--queues", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = RunningBroker(directory / "data").start()
        stack.callback(broker.stop)
        for _ in range(_CONNECTIONS):
            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, heartbeat=0))
            stack.callback(connection.close)
            channel = connection.channel()
        for number in range(options.queues):
            channel.queue_declare(f"queue-{number}", durable=number % 2 == 0)
        [alone] = _cost(broker, None, (), options.seconds / 2)
        print(f"{'':<30}{'broker':>9}{'console':>9}{'cost':>9}   % of a core")
        print(f"{'no console':<30}{alone:>9.2f}{'':>18}")
        console = RunningConsole("-b", f"127.0.0.1:{broker.port}", "--no-history")
        stack.callback(console.end)
        time.sleep(_EVERY)
        for name, paths in _PAGES.items():
            of_broker, of_console = _cost(broker, console, paths, options.seconds)
            print(f"{name:<30}{of_broker:>9.2f}{of_console:>9.2f}{of_broker - alone + of_console:>9.2f}")


if __name__ == "__main__":
    main()
