"""Brokers that are linked as processes, with `qpid-route`: routes survive restarts and kills, and lose nothing."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from qstore.broker.client import Connection, Empty, Message
from qstore.broker.management.console import Console, Data
from qstore.tools import qpid_route
from tests.support.certificates import Certificates
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker
from tests.system.test_streams import stores_offset

_SMALL = ("--num-jfiles", "4", "--jfile-size-pgs", "4", "--link-maintenance-interval", "0.1")
_DURABLE = "{create: always, node: {durable: true}}"


def route(*words: str) -> str:
    """Run `qpid-route`."""
    result = CliRunner().invoke(qpid_route.command, words)
    assert result.exit_code == 0, result.output
    return result.output


def address(broker: RunningBroker) -> str:
    return f"127.0.0.1:{broker.port}"


def start_again(broker: RunningBroker, *options: str) -> None:
    """Start it at the same port as before, and wait until it listens there."""
    broker.launch("--port", str(broker.port), *options)
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", broker.port)):
            return
        assert time.monotonic() < end, broker.log_text()
        time.sleep(0.05)


@pytest.fixture
def brokers(make_broker: BrokerMaker) -> list[RunningBroker]:
    """Three brokers that run."""
    made = [make_broker(*_SMALL, "--federation-tag", name) for name in ("one", "two", "three")]
    for broker in made:
        broker.start()
    return made


def restart(broker: RunningBroker, *, kill: bool) -> None:
    if kill:
        broker.kill()
    else:
        assert broker.stop() == 0, broker.log_text()
    start_again(broker)


def until(is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_linked(broker: RunningBroker) -> bool:
    with Console(address(broker)) as console:
        return all(link["state"] == "Operational" for link in console.query("link"))


def bindings(broker: RunningBroker) -> list[Data]:
    with Console(address(broker)) as console:
        return list(console.query("binding"))


def taken(broker: RunningBroker, queue: str, wanted: int = 1) -> list[str]:
    """Take the messages of a queue, until none comes for a moment and at least so many different ones have come."""
    found: list[str] = []
    end = time.monotonic() + PATIENCE_SECONDS
    with Connection(address(broker)) as connection:
        session = connection.session()
        receiver = session.receiver(queue, capacity=100)
        while True:
            try:
                found.append(str(receiver.fetch(timeout=0.5).content))
                session.acknowledge(sync=False)
            except Empty:
                if len(set(found)) >= wanted or time.monotonic() > end:
                    session.acknowledge()
                    return found


def publish(broker: RunningBroker, to: str, contents: list[str], subject: str | None = None) -> None:
    with Connection(address(broker)) as connection:
        sender = connection.session().sender(to, capacity=200)
        for content in contents:
            sender.send(Message(content, durable=True, subject=subject), sync=False)
        sender.sync()


def bound(broker: RunningBroker, queue: str, exchange: str, key: str) -> None:
    """Create a durable queue that is bound to an exchange."""
    with Connection(address(broker)) as connection:
        session = connection.session()
        session.sender(f"{queue}; {_DURABLE}").close()
        session.invoke("exchange.bind", queue=queue, exchange=exchange, binding_key=key)


@pytest.mark.parametrize("push", [False, True])
def test_nothing_is_lost_when_either_broker_is_killed(brokers: list[RunningBroker], push: bool) -> None:
    here, there, _ = brokers
    source, destination = (here, there) if push else (there, here)
    publish(source, f"outbox; {_DURABLE}", [])
    bound(destination, "inbox", "amq.fanout", "")
    local = ["-s"] if push else []
    route("-d", "--ack", "10", *local, "queue", "add", address(destination), address(source), "amq.fanout", "outbox")
    contents, moment = [str(number) for number in range(3_000)], random.Random(7)
    for begin in range(0, len(contents), 500):
        publish(source, "outbox", contents[begin : begin + 500])
        time.sleep(moment.random() * 0.1)
        restart(moment.choice((source, destination)), kill=True)
    found = taken(destination, "inbox", len(contents))
    assert set(found) == set(contents)
    assert len(found) < 2 * len(contents), "nearly everything has come twice"
    with Console(address(source)) as console:
        until(lambda: console.find("queue:outbox")["msgDepth"] == 0)


@pytest.mark.parametrize("push", [False, True])
def test_a_route_from_a_stream_leaves_out_nothing(brokers: list[RunningBroker], push: bool) -> None:
    """It begins with the first message, goes on where it was after kills, and the stream keeps its messages."""
    here, there, _ = brokers
    source, destination = (here, there) if push else (there, here)
    with Connection(address(source)) as connection:
        arguments = {"x-queue-type": "stream"}
        connection.session().invoke("queue.declare", queue="outbox", durable=True, arguments=arguments)
    bound(destination, "inbox", "amq.fanout", "")
    contents = [str(number) for number in range(900)]
    publish(source, "outbox", contents[:300])
    local = ["-s"] if push else []
    route("-d", "--ack", "10", *local, "queue", "add", address(destination), address(source), "amq.fanout", "outbox")
    for begin, killed in ((300, destination), (600, source)):
        until(partial(stores_offset, source, begin))
        publish(source, "outbox", contents[begin : begin + 300])
        restart(killed, kill=True)
    found = taken(destination, "inbox", len(contents))
    assert set(found) == set(contents)
    assert list(dict.fromkeys(found)) == contents, "in order, but for those that came twice"
    assert len(found) < 2 * len(contents), "nearly everything has come twice"
    with Console(address(source)) as console:
        assert console.find("queue:outbox")["msgDepth"] == len(contents)


def test_messages_of_a_durable_route_wait_while_the_brokers_cannot_reach_each_other(
    brokers: list[RunningBroker],
) -> None:
    destination, source, _ = brokers
    bound(destination, "inbox", "amq.topic", "a.#")
    route("-d", "--ack", "5", "route", "add", address(destination), address(source), "amq.topic", "a.#")
    until(lambda: "a.#" in [binding["bindingKey"] for binding in bindings(source)])
    destination.kill()
    publish(source, "amq.topic", ["first", "second"], "a.b")
    restart(source, kill=True)
    publish(source, "amq.topic", ["third"], "a.c")
    start_again(destination)
    assert taken(destination, "inbox", 3) == ["first", "second", "third"]
    assert "127.0.0.1" in route("route", "list", address(destination))


def test_links_and_routes_are_shown_as_in_the_manual(brokers: list[RunningBroker]) -> None:
    one, two, three = brokers
    names = [address(each) for each in brokers]
    for broker in brokers:
        with Connection(address(broker)) as connection:
            connection.session().invoke("exchange.declare", exchange="fed.topic", type="topic")
    for here, there in ((one, two), (two, one), (two, three), (three, two)):
        route("dynamic", "add", address(here), address(there), "fed.topic")
    route("route", "add", names[0], names[1], "amq.topic", "global.#")
    assert route("route", "list", names[0]).splitlines() == [
        f"{names[0]} {names[1]} fed.topic <dynamic>",
        f"{names[0]} {names[1]} amq.topic global.#",
    ]
    shown = route("route", "map", names[0])
    assert shown == (
        f"\nFinding Linked Brokers:\n    {names[0]}... Ok\n    {names[1]}... Ok\n    {names[2]}... Ok\n"
        f"\nDynamic Routes:\n\n  Exchange fed.topic:\n    {names[1]} <=> {names[0]}\n    {names[2]} <=> {names[1]}\n"
        f"\nStatic Routes:\n\n  {names[0]}(ex=amq.topic) <= {names[1]}(ex=amq.topic) key=global.#\n"
    )
    route("dynamic", "add", names[0], names[2], "fed.topic")
    circle = route("map", names[0]).partition("\nRedundant Paths (clients may get messages more than once):\n\n")[2]
    first, *others, last = circle.removeprefix("  Exchange fed.topic: ").strip().split(" - ")
    assert first == last
    assert {first, *others} == set(names)
    listed = route("link", "list", names[1]).splitlines()
    assert listed[1:3] == ["Host            Port    Transport Durable  State             Last Error", "=" * 77]
    assert listed[3] == f"{'127.0.0.1':<16}{one.port:<8}tcp          N     Operational"
    route("-e", "dynamic", "del", names[2], names[1], "fed.topic")
    assert route("link", "list", names[2]) == "No Links Found\n"
    route("-e", "route", "flush", names[0])
    assert route("link", "list", names[0]) == "No Links Found\n"


def test_what_cannot_be_is_refused_in_one_line(brokers: list[RunningBroker]) -> None:
    one, two, _ = (address(each) for each in brokers)

    def refusal(*words: str) -> str:
        result = CliRunner().invoke(qpid_route.command, words)
        assert result.exit_code == 1
        return result.output.strip()

    route("dynamic", "add", one, two, "amq.topic")
    assert "Can't create a durable route on a non-durable link" in refusal(
        "-d", "dynamic", "add", one, two, "amq.direct"
    )
    assert (
        refusal("dynamic", "add", one, two, "amq.topic") == "Failed: Duplicate Route - ignoring: amq.topic(amq.topic)"
    )
    route("-q", "dynamic", "add", one, two, "amq.topic")
    assert refusal("link", "add", one, one) == "Failed: Linking broker to itself is not permitted"
    assert refusal("-s", "dynamic", "add", one, two, "amq.direct") == (
        "Failed: --src-local is not permitted on dynamic routes"
    )
    assert refusal("route", "del", one, two, "amq.topic", "x") == "Failed: Route not found"
    assert refusal("link", "del", two, one) == "Failed: Link not found"
    assert "Exchange not found: missing" in refusal("dynamic", "add", one, two, "missing")
    assert CliRunner().invoke(qpid_route.command, ["route", "add", one]).exit_code == 2


def test_a_queue_is_replicated_over_a_queue_route(brokers: list[RunningBroker]) -> None:
    target, source, _ = brokers
    assert source.stop() == 0
    start_again(source, "--replication-queue", "events")
    events = "x-declare: {arguments: {'qpid.queue_event_generation': 2}}"
    publish(source, f"events; {_DURABLE}", [])
    with Connection(address(target)) as connection:
        session = connection.session()
        session.sender(f"orders; {_DURABLE}").close()
        session.invoke("exchange.declare", exchange="replication", type="replication", durable=True)
    route("-d", "--ack", "50", "queue", "add", address(target), address(source), "replication", "events")
    publish(source, f"orders; {{create: always, node: {{durable: true, {events}}}}}", ["a", "b", "c"])

    def depth(broker: RunningBroker) -> int:
        with Console(address(broker)) as console:
            return int(console.find("queue:orders")["msgDepth"])

    until(lambda: depth(target) == 3)
    source.kill()
    start_again(source, "--replication-queue", "events")
    with Connection(address(source)) as connection:
        session = connection.session()
        assert session.receiver("orders").fetch(timeout=PATIENCE_SECONDS).content == "a"
        session.acknowledge()
    until(lambda: depth(target) == 2)
    publish(source, "orders", ["d"])
    until(lambda: depth(target) == 3)
    assert taken(target, "orders", 3) == ["b", "c", "d"]


def browsed(broker: RunningBroker, queue: str) -> list[str]:
    found: list[str] = []
    with Connection(address(broker)) as connection:
        receiver = connection.session().receiver(f"{queue}; {{mode: browse}}", capacity=100)
        while True:
            try:
                found.append(str(receiver.fetch(timeout=0.3).content))
            except Empty:
                return found


@pytest.mark.parametrize("push", [False, True])
def test_a_replicated_queue_is_the_same_after_kills_of_either_broker(brokers: list[RunningBroker], push: bool) -> None:
    """Messages come and go at the source, while a random broker is killed; then the other queue is equal."""
    target, source, _ = brokers
    assert source.stop() == 0
    options = {source: ("--replication-queue", "events"), target: ()}
    start_again(source, *options[source])
    publish(source, f"events; {_DURABLE}", [])
    arguments = "x-declare: {arguments: {'qpid.queue_event_generation': 2}}"
    publish(source, f"orders; {{create: always, node: {{durable: true, {arguments}}}}}", [])
    with Connection(address(target)) as connection:
        session = connection.session()
        session.sender(f"orders; {_DURABLE}").close()
        session.invoke("exchange.declare", exchange="replication", type="replication", durable=True)
    local = ["-s"] if push else []
    route("-d", "--ack", "50", *local, "queue", "add", address(target), address(source), "replication", "events")
    moment, sent, gone = random.Random(11), 0, 0
    for _ in range(6):
        publish(source, "orders", [str(number) for number in range(sent, sent + 300)])
        sent += 300
        with Connection(address(source)) as connection:
            session = connection.session()
            receiver = session.receiver("orders", capacity=50)
            for _ in range(200):
                assert receiver.fetch(timeout=PATIENCE_SECONDS).content == str(gone)
                gone += 1
                session.acknowledge(sync=False)
            session.acknowledge()
        time.sleep(moment.random() * 0.1)
        killed = moment.choice((source, target))
        killed.kill()
        start_again(killed, *options[killed])
    wanted = [str(number) for number in range(gone, sent)]
    assert browsed(source, "orders") == wanted
    end = time.monotonic() + PATIENCE_SECONDS
    while (found := browsed(target, "orders")) != wanted:
        assert time.monotonic() < end, (found[:3], wanted[:3], len(found), len(wanted))
    with Console(address(source)) as console:
        until(lambda: console.find("queue:events")["msgDepth"] == 0)


def test_passwords_of_links_are_not_shown(brokers: list[RunningBroker], tmp_path: Path) -> None:
    one, two, _ = brokers
    route("-d", "link", "add", address(one), f"bob/hidden-word@{address(two)}", "PLAIN")
    with Console(address(one)) as console:
        (link,) = console.query("link")
        assert link["state"] == "Operational"
        assert "hidden-word" not in str(link.values)
    assert "hidden-word" not in one.log_text()
    restart(one, kill=True)
    until(lambda: is_linked(one))
    assert "hidden-word" not in route("--json", "link", "list", address(one))


@pytest.mark.parametrize("name", ["127.0.0.1", "another.host"])
def test_a_link_over_tls_logs_in_with_its_certificate_and_checks_that_of_the_other_broker(
    make_broker: BrokerMaker, tmp_path: Path, name: str
) -> None:
    certificates = Certificates(tmp_path)
    tls, rules = ("--ssl-port", "0", "--ssl-ca", certificates.trusted), tmp_path / "rules.acl"
    rules.write_text("acl allow bridge@QPID create link\nacl allow bridge@QPID access\nacl deny all all\n")
    far = make_broker(
        *_SMALL, *tls, "--ssl-cert", certificates.server(name), "--ssl-require-client-authentication", "yes",
        "--auth", "yes", "--acl-file", str(rules), "--log-enable", "info+",
    ).start()  # fmt: skip
    near = make_broker(*_SMALL, *tls, "--ssl-cert", certificates.client("bridge")).start()
    route("-t", "ssl", "link", "add", address(near), address(far), "EXTERNAL")

    def link() -> Data:
        with Console(address(near)) as console:
            return next(iter(console.query("link")))

    if name == "127.0.0.1":
        until(lambda: link()["state"] == "Operational")
        until(lambda: far.has_logged("connection opened by bridge@QPID"))
    else:
        until(lambda: "mismatch" in link()["lastError"])
        assert link()["state"] in ("Waiting", "Connecting")
