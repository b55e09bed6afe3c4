"""Exchange types of plug-ins on brokers that run: over kills, and those of other packages."""

from __future__ import annotations

from pathlib import Path

import pytest
from pika.exceptions import ChannelClosedByBroker

from qstore.broker.client import Connection
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker
from tests.system.shovels import PERSISTENT, channel_to, drain

__all__ = ["make_broker"]

KEYS = [f"key-{number}" for number in range(60)]
SAMPLE = '''
class Sample:
    """As in OPERATING.md."""

    def __init__(self, arguments):
        self.every, self.count = int(arguments.get("every", 10)), 0

    def check(self, key, arguments):
        if key:
            raise ValueError("the binding key must be empty")

    def route(self, message, bindings):
        self.count += 1
        if message.key == "fails":
            raise KeyError("a mistake")
        return bindings if self.count % self.every == 0 else ()
'''


def bodies(port: int, queue: str) -> list[bytes]:
    return [body for _, _, body in drain(port, queue)]


def publish(port: int, exchange: str, *messages: tuple[str, bytes]) -> None:
    with channel_to(port) as channel:
        channel.confirm_delivery()
        for key, body in messages:
            channel.basic_publish(exchange, key, body, PERSISTENT)


def test_hashes_and_history_are_the_same_after_a_kill(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    kinds = {"c": "x-consistent-hash", "m": "x-modulus-hash", "r": "x-random"}
    with channel_to(broker.port) as channel:
        for name, kind in kinds.items():
            channel.exchange_declare(name, kind, durable=True)
            for number in (1, 2, 3):
                channel.queue_declare(f"{name}{number}", durable=True)
                channel.queue_bind(f"{name}{number}", name, "1")
        channel.exchange_declare("h", "x-recent-history", durable=True, arguments={"x-recent-history-length": 5})
    found = []
    for _ in range(2):
        for name in kinds:
            publish(broker.port, name, *((key, key.encode()) for key in KEYS))
        found.append({name: [bodies(broker.port, f"{name}{number}") for number in (1, 2, 3)] for name in kinds})
        publish(broker.port, "h", *(("", b"%d" % number) for number in range(8)))
        broker.kill()
        broker.start()
    assert (found[0]["c"], found[0]["m"]) == (found[1]["c"], found[1]["m"])
    for each in found:
        assert all(
            sorted(body for part in each[name] for body in part) == sorted(map(str.encode, KEYS)) for name in kinds
        )
    with channel_to(broker.port) as channel:
        channel.queue_declare("late", durable=True)
        channel.queue_bind("late", "h", "")
    broker.kill()
    broker.start()
    assert bodies(broker.port, "late") == [b"%d" % number for number in range(3, 8)]
    with channel_to(broker.port) as channel:
        channel.exchange_delete("h")
    assert broker.restart().stop() == 0


def test_xml_bindings_survive_a_kill_and_qpidds_example_works(make_broker: BrokerMaker) -> None:
    """As hello_xml of qpidd's examples."""
    pytest.importorskip("elementpath")
    broker = make_broker().start()
    query = """let $w := ./weather
       return $w/station = 'Raleigh-Durham International Airport (KRDU)' and $w/temperature_f > 50
          and $w/temperature_f - $w/dewpoint > 5 and $w/wind_speed_mph > 7 and $w/wind_speed_mph < 20"""
    observation = (
        "<weather><station>Raleigh-Durham International Airport (KRDU)</station><wind_speed_mph>16</wind_speed_mph>"
        "<temperature_f>%d</temperature_f><dewpoint>35</dewpoint></weather>"
    )
    with Connection(f"127.0.0.1:{broker.port}") as connection, connection.session() as session:
        session.sender("weather; {create: always, node: {type: topic, durable: true, x-declare: {type: xml}}}")
        bound = f"{{exchange: weather, key: weather, arguments: {{xquery: {query!r}}}}}"
        address = f"station; {{create: always, node: {{durable: true, x-bindings: [{bound}]}}}}"
        session.receiver(address)
    broker.kill()
    broker.start()
    with Connection(f"127.0.0.1:{broker.port}") as connection, connection.session() as session:
        sender = session.sender("weather/weather")
        for degrees in (70, 40, 80):
            sender.send(observation % degrees)
        sender.send("no XML")
    assert [b"70" in body or b"80" in body for body in bodies(broker.port, "station")] == [True, True]
    assert broker.stop() == 0


def with_plugin(broker: RunningBroker, directory: Path) -> RunningBroker:
    about = directory / "sample-1.0.dist-info"
    about.mkdir(parents=True)
    (directory / "sample.py").write_text(SAMPLE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[qstore.exchanges]\nx-sample = sample:Sample\n")
    broker.environment = {"PYTHONPATH": f"{Path.cwd()}:{directory}"}
    return broker


def test_a_package_adds_an_exchange_type(make_broker: BrokerMaker, tmp_path: Path) -> None:
    broker = with_plugin(make_broker(), tmp_path / "plugin").start()
    with channel_to(broker.port) as channel:
        channel.exchange_declare("s", "x-sample", durable=True, arguments={"every": 2})
        channel.queue_declare("q", durable=True)
        channel.queue_bind("q", "s", "")
    with channel_to(broker.port) as channel, pytest.raises(ChannelClosedByBroker, match="binding key must be empty"):
        channel.queue_bind("q", "s", "key")
    with channel_to(broker.port) as channel, pytest.raises(ChannelClosedByBroker, match="cannot have these arguments"):
        channel.exchange_declare("t", "x-sample", arguments={"every": "x"})
    publish(broker.port, "s", *(("", b"%d" % number) for number in range(4)), ("fails", b"4"), ("", b"5"))
    assert bodies(broker.port, "q") == [b"1", b"3", b"5"]
    assert broker.log_text().count("its plug-in, for type x-sample, fails") == 1
    broker.kill()
    broker.start()
    publish(broker.port, "s", *(("", b"%d" % number) for number in range(4)))
    assert bodies(broker.port, "q") == [b"1", b"3"]
    broker.environment = {}
    assert broker.stop() == 0
    broker.start()
    assert "Exchange type not implemented: x-sample" in broker.log_text()
    with (
        channel_to(broker.port) as channel,
        pytest.raises(ChannelClosedByBroker, match="invalid exchange type"),
    ):
        channel.exchange_declare("u", "x-sample")
    assert broker.stop() == 0
