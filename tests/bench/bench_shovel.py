"""What a shovel from RabbitMQ costs: this broker's, and that of RabbitMQ's own plugin, in turns.

    python -m tests.bench.bench_shovel --messages 20000 --size 1024 --rounds 3

Each round fills a durable queue of one RabbitMQ, and lets this broker, then another RabbitMQ, drain it into a durable
queue of its own (on-confirm). Printed are messages per second, and the processor time a message of the broker that
drains and of the source. Needs Debian's rabbitmq-server.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika

from tests.support.rabbitmq import RabbitMQ
from tests.support.running_broker import RunningBroker, cpu_seconds
from tests.system.shovels import channel_to, depth, managing, set_shovel, shovels

QUEUE = "drained"
_POLL_SECONDS = 0.2


def pid_of(node: RabbitMQ) -> int:
    """The process of a node, which is a descendant of its start script, by a variable of its environment."""
    for process in Path("/proc").iterdir():
        try:
            is_erlang = b"beam.smp" in (process / "cmdline").read_bytes()
            if is_erlang and node.name.encode() in (process / "environ").read_bytes():
                return int(process.name)
        except OSError:
            continue
    raise RuntimeError(f"{node.name} does not run")


def fill(port: int, count: int, size: int) -> None:
    with channel_to(port) as channel:
        channel.queue_declare(QUEUE, durable=True)
        for _ in range(count):
            channel.basic_publish("", QUEUE, b"x" * size, pika.BasicProperties(delivery_mode=2))
    while depth(port, QUEUE) < count:
        time.sleep(_POLL_SECONDS)


def ask(node: RabbitMQ, method: str, body: Any = None) -> Any:
    """Ask for the shovels of a node, or set one."""
    path = "parameters/shovel/%2F" + ("/s" if body else "")
    url = f"http://127.0.0.1:{node.management_port}/api/{path}"
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, method=method)
    request.add_header("Authorization", f"Basic {b64encode(b'guest:guest').decode()}")
    with urllib.request.urlopen(request) as answer:
        content = answer.read()
    return json.loads(content) if content else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        places = [Path(name, each) for each in ("source", "rabbit", "own")]
        for each in places:
            each.mkdir()
        source = RabbitMQ(places[0]).start()
        rabbit = RabbitMQ(places[1], "rabbitmq_management", "rabbitmq_shovel").start()
        own = RunningBroker(places[2]).start()
        value = {"src-uri": f"amqp://127.0.0.1:{source.port}", "src-queue": QUEUE, "dest-uri": "amqp://",
                 "dest-queue": QUEUE, "src-delete-after": "queue-length"}  # fmt: skip

        def measure(what: str, pid: int, drain: Callable[[], None]) -> None:
            fill(source.port, given.messages, given.size)
            of_source = pid_of(source)
            began, before, at_source = time.monotonic(), cpu_seconds(pid), cpu_seconds(of_source)
            drain()
            seconds = time.monotonic() - began
            used, used_at_source = cpu_seconds(pid) - before, cpu_seconds(of_source) - at_source
            print(
                f"{what:8} {given.messages / seconds:8,.0f}/s {1e6 * used / given.messages:6.1f} µs"
                f" {1e6 * used_at_source / given.messages:6.1f} µs at the source",
                flush=True,
            )

        def by_own() -> None:
            with managing(own.port) as console:
                set_shovel(console, "s", **{key.replace("-", "_"): each for key, each in value.items()})
                while "s" in shovels(console):
                    time.sleep(_POLL_SECONDS)

        def by_rabbit() -> None:
            ask(rabbit, "PUT", {"value": value})
            while ask(rabbit, "GET"):
                time.sleep(_POLL_SECONDS)

        try:
            for _ in range(given.rounds):
                measure("qstore", own.pid, by_own)
                measure("RabbitMQ", pid_of(rabbit), by_rabbit)
        finally:
            own.stop()
            source.stop()
            rabbit.stop()


if __name__ == "__main__":
    main()
