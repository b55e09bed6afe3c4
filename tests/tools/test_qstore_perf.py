"""`qstore-perf`: every message is published, confirmed, consumed and counted, over each protocol; and how it fails."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result

from qstore.broker.client import Connection
from qstore.tools import qpid_config, qstore_perf
from qstore.tools.load import clients as load_clients
from qstore.tools.load import counts
from qstore.tools.load.loop import Loop
from qstore.tools.load.protocols import AMQP_0_9_1, AMQP_0_10, AMQP_1_0, PROTOCOLS
from tests.support.processes import PATIENCE_SECONDS, children_of
from tests.support.running_broker import ROOT, BrokerMaker, RunningBroker, make_broker, one_broker

__all__ = ["make_broker"]

Run = Callable[..., Result]

broker = pytest.fixture(one_broker, scope="module")
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture
def url(broker: RunningBroker) -> str:
    return f"127.0.0.1:{broker.port}"


@pytest.fixture
def perf(url: str) -> Run:
    def run(scenario: str, *arguments: str) -> Result:
        return CliRunner().invoke(qstore_perf.command, [scenario, "-b", url, *arguments])

    return run


@pytest.fixture
def queue() -> str:
    return f"perf-{uuid.uuid4()}"


def objects(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def depth(url: str, queue: str) -> int:
    with Connection(url) as connection:
        return int(connection.session().invoke("queue.query", queue=queue).get("message_count") or 0)


ONE = ("--processes", "1", "--json", "-q")


@each_protocol
def test_all_messages_are_published_confirmed_consumed_and_acknowledged(
    perf: Run, url: str, queue: str, protocol: str
) -> None:
    limits = ("-C", "5000", "-D", "5000", "-c", "300", "-a", "7", "-P", "100", "-p", "-s", "64")
    (found,) = objects(perf("throughput", "--protocol", protocol, "-u", queue, *limits, *ONE))
    assert (found["published"], found["confirmed"], found["consumed"]) == (5000, 5000, 5000)
    assert found["kind"] == "throughput"
    assert found["publish_rate"] == pytest.approx(5000 / found["elapsed_seconds"], rel=0.05)
    assert depth(url, queue) == 0


@each_protocol
def test_a_publisher_alone_declares_its_queue(perf: Run, url: str, queue: str, protocol: str) -> None:
    (found,) = objects(
        perf("throughput", "--protocol", protocol, "-u", queue, "-y", "0", "-C", "1000", "-c", "100", *ONE)
    )
    assert (found["published"], found["confirmed"]) == (1000, 1000)
    assert depth(url, queue) == 1000
    consume = ("-x", "0", "-D", "600", "-a", "50", "-P", "100")
    (found,) = objects(perf("throughput", "--protocol", protocol, "-u", queue, *consume, *ONE))
    assert (found["published"], found["consumed"]) == (0, 600)
    assert depth(url, queue) == 400


@each_protocol
def test_messages_without_confirms_and_acknowledgements(perf: Run, url: str, queue: str, protocol: str) -> None:
    (found,) = objects(perf("throughput", "--protocol", protocol, "-u", queue, "-C", "3000", "-D", "3000", *ONE))
    assert (found["published"], found["consumed"]) == (3000, 3000)
    assert "confirmed" not in found
    assert depth(url, queue) == 0


@each_protocol
def test_sizes_and_queues_are_used_in_turns(perf: Run, url: str, queue: str, protocol: str) -> None:
    pattern = ("--queue-pattern", f"{queue}-%", "--queue-pattern-to", "3")
    publish = ("-s", "10,2000", "-x", "2", "-y", "0", "-C", "1200", "-c", "60")
    (found,) = objects(perf("throughput", "--protocol", protocol, *pattern, *publish, *ONE))
    assert found["confirmed"] == 1200
    assert [depth(url, f"{queue}-{number}") for number in (1, 2, 3)] == [400, 400, 400]
    consume = (
        "--queue-pattern",
        f"{queue}-%",
        "--queue-pattern-to",
        "3",
        "-x",
        "0",
        "-y",
        "3",
        "-D",
        "1200",
        "-a",
        "1",
    )
    (found,) = objects(perf("throughput", "--protocol", protocol, *consume, *ONE))
    assert found["consumed"] == 1200
    assert [depth(url, f"{queue}-{number}") for number in (1, 2, 3)] == [0, 0, 0]


@each_protocol
def test_large_messages_take_several_frames(perf: Run, url: str, queue: str, protocol: str) -> None:
    limits = ("-C", "20", "-D", "20", "-c", "5", "-a", "1", "-P", "5", "-s", "300000")
    (found,) = objects(perf("throughput", "--protocol", protocol, "-u", queue, *limits, *ONE))
    assert (found["confirmed"], found["consumed"]) == (20, 20)


@each_protocol
def test_latencies_are_those_of_the_messages_of_this_run(perf: Run, url: str, queue: str, protocol: str) -> None:
    assert perf("throughput", "-u", queue, "-y", "0", "-C", "50", *ONE).exit_code == 0
    run = ("-C", "400", "-D", "450", "-r", "2000", "-a", "1", "-P", "50")
    (found,) = objects(perf("throughput", "-l", "--protocol", protocol, "-u", queue, *run, *ONE))
    assert (found["latency_count"], found["not_measured"]) == (400, 50)
    names = ("min", "median", "p75", "p90", "p95", "p99", "p999", "max")
    values = [found[f"latency_{name}_ms"] for name in names]
    assert values == sorted(values)
    assert values[0] > 0


def test_latency_draws_a_histogram(perf: Run, queue: str) -> None:
    result = perf("latency", "-u", queue, "-r", "500", "-C", "300", "-D", "300", "--processes", "1")
    assert result.exit_code == 0, result.output
    assert "99.9 %" in result.stdout
    assert "█" in result.stdout
    assert "100.00 %" in result.stdout


def test_a_publisher_with_a_rate_stays_at_it(monkeypatch: pytest.MonkeyPatch, perf: Run, queue: str) -> None:
    (found,) = objects(perf("throughput", "-u", queue, "-r", "200", "-z", "1", *ONE))
    assert 100 <= found["published"] <= 201
    assert found["consumed"] <= found["published"]


def test_a_consumer_with_a_rate_takes_no_more(perf: Run, url: str, queue: str) -> None:
    perf("throughput", "-u", queue, "-y", "0", "-C", "5000", *ONE)
    (found,) = objects(perf("throughput", "-u", queue, "-x", "0", "-R", "300", "-a", "1", "-z", "1", *ONE))
    assert 0 < found["consumed"] <= 600  # the first read may bring more than is due


@pytest.mark.parametrize("protocol", [AMQP_0_9_1, AMQP_0_10])
def test_transactions_are_committed(perf: Run, url: str, queue: str, protocol: str) -> None:
    run = ("-C", "95", "-D", "95", "-t", "10", "-T", "10", "-a", "5", "-p")
    (found,) = objects(perf("throughput", "--protocol", protocol, "-u", queue, *run, *ONE))
    assert (found["published"], found["consumed"]) == (95, 95)
    assert depth(url, queue) == 0


def test_each_queue_of_an_exchange_gets_every_message(perf: Run, url: str, queue: str) -> None:
    fan = ("-e", "amq.fanout", "-k", "", "--queue-pattern", f"{queue}-%", "--queue-pattern-to", "4", "-y", "4")
    (found,) = objects(perf("throughput", *fan, "-C", "500", "-D", "2000", "-a", "10", "--delete-queues", *ONE))
    assert (found["published"], found["consumed"]) == (500, 2000)
    assert depth(url, f"{queue}-1") == 0


def test_bodies_may_be_random_and_have_headers_and_priorities(perf: Run, url: str, queue: str) -> None:
    what = ("--random-bodies", "--headers", '{"a": 1}', "--priority", "7", "-s", "50")
    assert perf("throughput", "-u", queue, "-y", "0", "-C", "100", *what, *ONE).exit_code == 0
    with Connection(url) as connection:
        receiver = connection.session().receiver(queue, capacity=100)
        messages = [receiver.fetch(PATIENCE_SECONDS) for _ in range(100)]
    assert len({each.body for each in messages}) == 64
    assert {(each.properties["a"], each.priority) for each in messages} == {(1, 7)}


def test_progress_is_told_every_second(perf: Run, queue: str) -> None:
    found = objects(perf("throughput", "-u", queue, "-z", "2.3", "--json", "--processes", "1", "-c", "10", "-a", "1"))
    assert [each["kind"] for each in found] == ["interval", "interval", "throughput"]
    assert sum(each["published"] for each in found[:2]) <= found[2]["published"]
    text = perf("throughput", "-u", queue, "-z", "1.2", "--processes", "1", "-c", "10", "-a", "1").stdout
    assert text.splitlines()[0].split()[:3] == ["1.0", "s", "published"]


# ---- problems ----


@pytest.mark.parametrize("protocol", [AMQP_0_9_1, AMQP_0_10])
def test_a_queue_that_is_said_to_be_there_must_be_there(perf: Run, protocol: str) -> None:
    result = perf("throughput", "--protocol", protocol, "-u", "nowhere", "--predeclared", "-y", "0", "-C", "1")
    assert result.exit_code == 1
    assert "nowhere" in result.stderr


def test_unroutable_messages_are_not_passed_off_as_published(perf: Run) -> None:
    result = perf("throughput", "-e", "amq.direct", "-k", "nobody", "--predeclared", "-y", "0", "-C", "10", *ONE)
    assert result.exit_code == 1
    assert "unroutable" in result.stderr
    assert json.loads(result.stdout)["returned"] == 1  # the first message of each publisher is asked after


@pytest.mark.parametrize("protocol", [AMQP_0_9_1, AMQP_1_0])
def test_refused_messages_are_told(perf: Run, queue: str, protocol: str) -> None:
    limit = ("--queue-args", '{"x-max-length": 5, "x-overflow": "reject-publish"}')
    run = ("-u", queue, *limit, "-y", "0", "-C", "12", "-c", "20")
    result = perf("throughput", "--protocol", protocol, *run, *ONE)
    assert result.exit_code == 1
    assert "refused 7 messages" in result.stderr


@pytest.mark.parametrize("scenario", ["throughput", "connection-churn", "queue-count", "connection-count"])
@each_protocol
def test_without_a_broker_it_fails_in_one_line(scenario: str, protocol: str) -> None:
    result = CliRunner().invoke(qstore_perf.command, [scenario, "-b", "127.0.0.1:1", "--protocol", protocol])
    assert result.exit_code == 1
    assert "127.0.0.1:1: connection refused" in result.stderr


@each_protocol
def test_a_broker_that_is_killed_ends_the_run(tmp_path: Any, protocol: str) -> None:
    broker = RunningBroker(tmp_path)
    broker.start()
    try:
        command = [sys.executable, "-m", "qstore.tools.qstore_perf", "throughput", "-b", f"127.0.0.1:{broker.port}"]
        command += ["--protocol", protocol, "--json", "-c", "10", "-a", "1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True) as running:
            assert running.stdout is not None
            assert json.loads(running.stdout.readline())["kind"] == "interval"
            broker.kill()
            output, errors = running.communicate(timeout=PATIENCE_SECONDS)
        assert running.returncode == 1
        assert "127.0.0.1" in errors
        assert json.loads(output.splitlines()[-1])["kind"] == "throughput"
    finally:
        broker.close()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("-x", "0", "-y", "0"), "neither a publisher nor a consumer"),
        (("-l", "-s", "7"), "8 bytes"),
        (("-a", "20", "-P", "10"), "never reached"),
        (("-T", "5"), "--ack"),
        (("--queue-pattern", "q"), "%"),
        (("--queue-pattern", "q%", "--queue-pattern-from", "3"), "greater"),
        (("-y", "0", "-D", "5"), "needs a consumer"),
        (("-x", "0", "-C", "5"), "needs a publisher"),
        (("-s", "1,x"), "bytes"),
        (("--queue-args", "[]"), "JSON object"),
        (("--broker-pid", "999999999"), "no process"),
        (("--connection-options", "{nothing: 1}"), "unknown connection option"),
    ],
)
def test_what_cannot_be_is_a_usage_error(perf: Run, arguments: tuple[str, ...], reason: str) -> None:
    result = perf("throughput", *arguments)
    assert result.exit_code == 2
    assert reason in result.output


# ---- several processes ----


def in_a_process(url: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "qstore.tools.qstore_perf", arguments[0], "-b", url, *arguments[1:]]


@each_protocol
def test_several_processes_share_the_clients(broker: RunningBroker, url: str, queue: str, protocol: str) -> None:
    run = ("-x", "3", "-y", "2", "-C", "6001", "-c", "50", "-a", "1", "--processes", "3", "--json", "-q")
    command = in_a_process(url, "throughput", "--protocol", protocol, "-u", queue, *run)
    command += ["--broker-pid", str(broker.pid)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_SECONDS, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert (found["published"], found["confirmed"], found["consumed"]) == (6001, 6001, 6001)
    assert found["broker_processor_seconds"] > 0
    assert found["broker_memory"] > 1 << 20


def test_ctrl_c_ends_the_run_with_its_summary(url: str, queue: str) -> None:
    command = in_a_process(url, "throughput", "-u", queue, "--json", "--processes", "2", "-c", "10", "-a", "1")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True) as running:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["kind"] == "interval"
        children = children_of(running.pid)
        running.send_signal(signal.SIGINT)
        output, errors = running.communicate(timeout=PATIENCE_SECONDS)
    assert (running.returncode, errors.strip()) == (130, "qstore-perf: interrupted")
    assert json.loads(output.splitlines()[-1])["kind"] == "throughput"
    assert len(children) == 1
    until = time.monotonic() + PATIENCE_SECONDS
    while any(os.path.exists(f"/proc/{each}") for each in children):
        assert time.monotonic() < until
        time.sleep(0.01)


# ---- churn and counts ----


@each_protocol
@pytest.mark.parametrize("kind", ["connection", "channel", "queue", "consumer"])
def test_churn_does_as_much_as_is_asked_for(perf: Run, kind: str, protocol: str) -> None:
    durable = () if protocol != AMQP_1_0 or kind != "consumer" else ("--durable",)
    result = perf(f"{kind}-churn", "--protocol", protocol, "-x", "3", "-C", "20", "--json", *durable)
    if protocol == AMQP_1_0 and kind == "consumer":
        assert result.exit_code == 1
        assert "AMQP 1.0 has no words to delete the queue" in result.stderr
        return
    (found,) = objects(result)
    assert (found["kind"], found["operations"], found["latency_count"]) == (f"{kind}-churn", 20, 20)


@pytest.mark.parametrize("protocol", [AMQP_0_9_1, AMQP_0_10])
@pytest.mark.parametrize("durable", [(), ("--durable",)])
def test_bindings_churn(perf: Run, protocol: str, durable: tuple[str, ...]) -> None:
    (found,) = objects(perf("bind-churn", "--protocol", protocol, "-C", "10", "--json", *durable))
    assert found["operations"] == 10


def test_churn_ends_after_its_time(perf: Run) -> None:
    result = perf("channel-churn", "-z", "0.3")
    assert result.exit_code == 0
    assert "channel-churn: " in result.stdout
    assert "100.00 %" in result.stdout


def queues_of(url: str, beginning: str) -> set[str]:
    result = CliRunner().invoke(qpid_config.command, ["-b", url, "list", "queue"])
    assert result.exit_code == 0
    return {line for line in result.stdout.splitlines() if line.strip().startswith(beginning)}


def interrupted(url: str, *arguments: str) -> None:
    """Run a scenario until it has printed a line, and end it by Ctrl-C."""
    command = in_a_process(url, *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=PATIENCE_SECONDS)
    assert (running.returncode, errors.strip()) == (130, "qstore-perf: interrupted")


@pytest.mark.parametrize("scenario", ["bind-churn", "queue-churn"])
def test_ctrl_c_leaves_no_queue_of_churn(url: str, scenario: str) -> None:
    before = queues_of(url, "qstore-perf.")  # those of AMQP 1.0
    interrupted(url, scenario, "-z", "1000", "-x", "4", "--durable")
    assert queues_of(url, "qstore-perf.") == before


def test_ctrl_c_leaves_no_queue_that_was_counted(url: str) -> None:
    name = f"qc-{uuid.uuid4()}"
    interrupted(url, "queue-count", "-n", "100000", "--durable", "-u", name)
    assert queues_of(url, name) == set()


def test_churn_that_is_refused_fails(perf: Run) -> None:
    result = perf("bind-churn", "-e", "no such exchange")
    assert result.exit_code == 1
    assert "no such exchange" in result.stderr


def test_what_access_rules_deny_fails(make_broker: BrokerMaker, tmp_path: Path) -> None:
    rules = tmp_path / "rules.acl"
    rules.write_text("acl deny all create queue\nacl allow all all\n")
    url = f"127.0.0.1:{make_broker('--acl-file', str(rules)).start().port}"
    for protocol in PROTOCOLS:
        for scenario in ("queue-churn", "consumer-churn", "queue-count", "throughput"):
            result = CliRunner().invoke(qstore_perf.command, [scenario, "-b", url, "--protocol", protocol])
            assert result.exit_code == 1, (scenario, protocol)
            assert "not allowed to create queue" in result.stderr, (scenario, protocol)


@each_protocol
def test_connections_are_opened_and_counted(perf: Run, broker: RunningBroker, protocol: str) -> None:
    what = ("-x", "130", "-c", "2", "--consumers-each", "1", "-u", f"cc-{protocol}", "--broker-pid", str(broker.pid))
    (found,) = objects(perf("connection-count", "--protocol", protocol, *what, "--json"))
    assert found["connections"] == 130
    assert found["broker_memory"] > 1 << 20


@each_protocol
def test_queues_are_declared_and_deleted(perf: Run, url: str, protocol: str) -> None:
    name = f"qc-{uuid.uuid4()}"
    durable = () if protocol == AMQP_1_0 else ("--durable",)
    (found,) = objects(perf("queue-count", "--protocol", protocol, "-n", "120", "-u", name, "--json", *durable))
    assert found["queues"] == 120


def test_more_connections_than_files_are_refused(perf: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qstore_perf.counts, "raise_file_limit", lambda: 100)
    result = perf("connection-count", "-x", "100")
    assert result.exit_code == 2
    assert "ulimit -n" in result.output


def test_a_message_that_is_sent_late_counts_from_when_it_was_due() -> None:
    sent: list[tuple[bytes, int]] = []

    class Loop:
        wake = wake_at = staticmethod(lambda *_: None)

    class Line:
        is_full, loop = False, Loop
        worker: Any = None

    class Channel:
        joins, confirms, line = True, None, Line

        def encode(self, route: int, body: bytes, style: Any) -> Any:
            return load_clients.Encoded(body, 0, route)

        def room(self, route: int) -> int:
            return 1000

        def put(self, message: Any, times: int, each: int = 1) -> None:
            sent.append((message.data, times))

    row = load_clients.Row(memoryview(bytearray(8 * 4096)).cast("q"))
    publisher = load_clients.Publisher(
        Channel(),  # type: ignore[arg-type]
        row,
        routes=[load_clients.Route("", "q")],
        sizes=[16],
        style=load_clients.Style(),
        rate=1000.0,
        clock=lambda: time.monotonic_ns(),
    )
    publisher.start(100.0)
    began = publisher._began
    publisher.work(began + 0.0095)  # ten messages are due by then
    assert len(sent) == 10
    offset = time.monotonic_ns() - int(time.monotonic() * 1e9)
    stamps = [int.from_bytes(data[:8], "big") for data, _ in sent]
    for number, stamp in enumerate(stamps):
        assert abs(stamp - offset - int((began + number / 1000) * 1e9)) < 10_000_000
    assert all(later - earlier == pytest.approx(1e6, abs=2) for earlier, later in pairwise(stamps))


def test_a_loop_with_a_rate_serves_sockets_with_high_numbers() -> None:
    one, other = socket.socketpair()
    number = 1024 + 76
    if counts.raise_file_limit() <= number:
        pytest.skip("fewer files may be open")
    high = socket.socket(fileno=fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, number))
    one.close()
    loop, lines = Loop(is_timed=True), [Mock(), Mock()]
    loop.add(lines[0], high)
    loop.add(lines[1], other)
    high.send(b"x")
    other.send(b"x")
    loop.turn(0.0, 1.0)
    assert [line.read.call_count for line in lines] == [1, 1]
    loop.close()
    high.close()
    other.close()
