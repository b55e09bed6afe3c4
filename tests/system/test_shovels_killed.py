"""A shovel between brokers that are killed again and again loses nothing that was confirmed to the publisher."""

from __future__ import annotations

import random

import pytest

from tests.support.running_broker import BrokerMaker, make_broker
from tests.system.shovels import channel_to, drain, fill, managing, set_shovel, shovels, wait_until

__all__ = ["make_broker"]

KILLS = 6
BODIES = [b"%d" % number for number in range(3000)]


@pytest.mark.parametrize("works_at", ["source", "destination"])
def test_nothing_is_lost_when_either_broker_is_killed(make_broker: BrokerMaker, works_at: str) -> None:
    chance = random.Random(5)
    source, destination = make_broker().start(), make_broker().start()
    ports = {source: source.port, destination: destination.port}
    own, other = (source, destination) if works_at == "source" else (destination, source)
    uris = {own: "amqp://", other: f"amqp://127.0.0.1:{other.port}"}
    with managing(own.port) as console:
        set_shovel(
            console, "s", src_uri=uris[source], src_queue="a", dest_uri=uris[destination], dest_queue="b",
            reconnect_delay=0.1, src_prefetch_count=100,
        )  # fmt: skip
    for kill in range(KILLS):
        begin, end = kill * len(BODIES) // KILLS, (kill + 1) * len(BODIES) // KILLS
        fill(ports[source], "a", BODIES[begin:end])
        victim = chance.choice((source, destination))
        victim.kill()
        victim.launch("--port", str(ports[victim]))
        wait_until(lambda victim=victim: _answers(ports[victim]), "it is back")  # type: ignore[misc]

    def is_done() -> bool:
        with managing(ports[own]) as console:
            found = shovels(console).get("s", {})
        return found.get("state") == "running" and not found["pending"] and not _left(ports[source])

    wait_until(is_done, "all have moved")
    numbers = [int(body) for _, _, body in drain(ports[destination], "b")]
    assert set(numbers) == set(range(len(BODIES)))
    first = list(dict.fromkeys(numbers))
    assert first == sorted(first), "messages come in order the first time"


def _answers(port: int) -> bool:
    try:
        with managing(port) as console:
            shovels(console)
    except Exception:
        return False
    return True


def _left(port: int) -> int:
    with channel_to(port) as channel:
        return int(channel.queue_declare("a", durable=True).method.message_count)
