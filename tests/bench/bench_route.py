"""What a federation route costs, compared with a consumer of the same queue.

    python -m tests.bench.bench_route --messages 20000 --size 1024 --rounds 3 --transient

Each round fills a queue, has a client take and acknowledge all messages, fills it again, and has a queue route with
acknowledgements bring them to a queue of another broker. Printed are messages per second, and the processor time a
message of each broker; the last lines are the medians of the ratios of the pairs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from click.testing import CliRunner

from qstore.broker.client import Connection, Message
from qstore.broker.management.console import Console
from qstore.tools import qpid_route
from tests.support.running_broker import RunningBroker, cpu_seconds

_POLL_SECONDS = 0.01


def address(broker: RunningBroker) -> str:
    return f"127.0.0.1:{broker.port}"


def fill(broker: RunningBroker, count: int, size: int, *, durable: bool) -> None:
    with Connection(address(broker)) as connection:
        sender = connection.session().sender("source", capacity=1_000)
        for _ in range(count):
            sender.send(Message(b"x" * size, durable=durable), sync=False)
        sender.sync()


def consume(broker: RunningBroker, count: int) -> None:
    with Connection(address(broker)) as connection:
        session = connection.session()
        receiver = session.receiver("source", capacity=1_000)
        for number in range(1, count + 1):
            receiver.fetch(timeout=60)
            if not number % 100:
                session.acknowledge(sync=False)
        session.acknowledge()


def carry(source: RunningBroker, destination: RunningBroker, ack: int) -> float:
    """Returns when the first message has come: the link is there."""
    words = ["--ack", str(ack), "queue", "add", address(destination), address(source), "amq.fanout", "source"]
    result = CliRunner().invoke(qpid_route.command, words)
    assert result.exit_code == 0, result.output
    with Console(address(destination)) as console:
        while not console.find("queue:destination")["msgDepth"]:
            time.sleep(_POLL_SECONDS)
    began = time.monotonic()
    with Console(address(source)) as console:
        while console.find("queue:source")["msgDepth"]:
            time.sleep(_POLL_SECONDS)
    CliRunner().invoke(qpid_route.command, ["queue", "del", *words[4:]])
    return began


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description="What a federation route costs.")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=1_024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ack", type=int, default=100)
    parser.add_argument("--transient", action="store_true")
    given = parser.parse_args()
    durable, count = not given.transient, given.messages
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        source, destination = (RunningBroker(Path(directory) / name) for name in ("source", "destination"))
        brokers = (source, destination)
        for broker, queue in zip(brokers, ("source", "destination"), strict=True):
            broker.start("--link-maintenance-interval", "0.1")
            with Connection(address(broker)) as connection:
                session = connection.session()
                session.invoke("queue.declare", queue=queue, durable=durable)
                session.invoke("exchange.bind", queue=queue, exchange="amq.fanout", binding_key="")
        rates, costs = [], []
        try:
            for _ in range(given.rounds):
                found = []
                for what in ("a consumer", "a route"):
                    published = cpu_seconds(source.pid)
                    fill(source, count, given.size, durable=durable)
                    published = cpu_seconds(source.pid) - published
                    before, began = [cpu_seconds(broker.pid) for broker in brokers], time.monotonic()
                    if what == "a route":
                        began = carry(source, destination, given.ack)
                    else:
                        consume(source, count)
                    seconds = time.monotonic() - began
                    used = [cpu_seconds(each.pid) - cpu for each, cpu in zip(brokers, before, strict=True)]
                    found.append((count / seconds, used))
                    micros = ", ".join(f"{cpu / count * 1e6:.1f}" for cpu in used)
                    text = f"processor: {micros} us; to publish them: {published / count * 1e6:.1f} us"
                    print(f"{what:<12}{count / seconds:>9,.0f}/s   {text}", flush=True)
                with Connection(address(destination)) as connection:
                    connection.session().invoke("queue.purge", queue="destination")
                (local, _), (route, cpu) = found
                rates.append(route / local)
                costs.append(found[0][1][0] / max(cpu))
        finally:
            for broker in brokers:
                broker.stop()
        print(f"a route's rate is {statistics.median(rates):.2f} of a consumer's; by the processor time of the slower")
        print(f"broker it could be {statistics.median(costs):.2f}")


if __name__ == "__main__":
    main()
