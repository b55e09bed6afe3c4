"""`qpid-send` and `qpid-receive`: what they send, print, report, and how they fail."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import uuid
from collections.abc import Callable
from itertools import islice
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from qstore.broker.client import Connection, Message
from qstore.tools import qpid_receive, qpid_send
from qstore.tools.messaging import (
    Contents,
    Headers,
    NameValue,
    Pace,
    Reporter,
    Throughput,
    ThroughputAndLatency,
    Timeout,
    YesNo,
    groups,
)
from qstore.tools.qpid_receive import SequenceError, SequenceTracker
from tests.support import forked
from tests.support.coded import coded
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import RunningBroker, one_broker

Run = Callable[..., Result]


broker = pytest.fixture(one_broker, scope="module")


@pytest.fixture
def url(broker: RunningBroker) -> str:
    return f"127.0.0.1:{broker.port}"


@pytest.fixture
def queue(url: str) -> str:
    name = f"q-{uuid.uuid4()}"
    with Connection(url) as connection:
        connection.session().sender(f"{name}; {{create: always}}")
    return name


@pytest.fixture
def send(url: str) -> Run:
    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(qpid_send.command, ["-b", url, *arguments], input=stdin)

    return run


@pytest.fixture
def receive(url: str) -> Run:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(qpid_receive.command, ["-b", url, *arguments])

    return run


def checked(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def contents(receive: Run, queue: str, *options: str) -> list[str]:
    return checked(receive("-a", queue, *options)).splitlines()


# ------------------------------------------------------------------------------------------------ both


def test_one_message(send: Run, receive: Run, queue: str) -> None:
    assert checked(send("-a", queue, "--content-string", "hello")) == ""
    assert contents(receive, queue) == ["hello"]
    assert contents(receive, queue) == []


def test_many_messages(send: Run, receive: Run, queue: str) -> None:
    checked(send("-a", queue, "-m", "250", "--content-size", "3", "--capacity", "10"))
    assert contents(receive, queue, "--ack-frequency", "7", "--capacity", "3", "-m", "50") == ["XXX"] * 50
    assert contents(receive, queue, "--ack-frequency", "0") == ["XXX"] * 200
    assert contents(receive, queue, "--capacity", "0") == ["XXX"] * 200


def test_lines_of_standard_input(send: Run, receive: Run, queue: str) -> None:
    checked(send("-a", queue, "--content-stdin", stdin="one\ntwo\n\nfour"))
    assert contents(receive, queue) == ["one", "two", "", "four"]


def test_maps(send: Run, receive: Run, queue: str) -> None:
    checked(send("-a", queue, "-M", "n=5", "-M", "color=dark red", "-M", "ok=true"))
    assert contents(receive, queue) == ["{n:5, color:'dark red', ok:True}"]


def test_every_header(send: Run, receive: Run, url: str, queue: str) -> None:
    identity = str(uuid.uuid4())
    checked(
        send(
            "-a",
            f"{queue}/news",
            "--content-string",
            "x",
            "--id",
            identity,
            "--reply-to",
            "nobody",
            "--durable",
            "--ttl",
            "100000",
            "--priority",
            "7",
            "-P",
            "n=5",
            "--property",
            "color=red",
            "--correlation-id",
            "c",
            "--user-id",
            "me",
            "--timestamp",
            "no",
            "--group-key",
            "group",
        )
    )
    with Connection(url) as connection:
        message = connection.session().receiver(f"{queue}; {{mode: browse}}").fetch(timeout=PATIENCE_SECONDS)
    assert (str(message.id), message.durable, message.priority) == (identity, True, 7)
    expected = {"n": 5, "color": "red", "sn": 1, "group": "GROUP-0", "x-amqp-0-10.routing-key": queue}
    assert message.properties == expected
    result = receive("-a", queue, "--print-headers", "yes")
    lines = checked(result).splitlines()
    assert "no such queue: 'nobody'" in result.stderr
    assert lines[0:2] == ["Subject: news", "ReplyTo: nobody; {node:{type:queue}}"]
    assert lines[2:5] == [f"MessageId: {identity}", "CorrelationId: c", "UserId: me"]
    assert lines[5].startswith("TTL: ")
    assert lines[6:9] == ["Priority: 7", "ContentType: text/plain", "Durable: true"]
    assert lines[9].startswith("Properties: {n:5, color:red, sn:1, group:GROUP-0")
    assert lines[10:] == ["", "x"]


def test_transactions(send: Run, receive: Run, queue: str) -> None:
    checked(send("-a", queue, "-m", "25", "--tx", "10", "--rollback-frequency", "2", "--content-stdin",
                 stdin="\n".join(map(str, range(25)))))  # fmt: skip
    kept = [*map(str, range(10)), *map(str, range(20, 25))]
    assert contents(receive, queue, "--tx", "100", "--rollback-frequency", "1") == kept
    assert contents(receive, queue, "--tx", "4") == kept
    assert contents(receive, queue) == []


def test_end_of_stream(send: Run, receive: Run, queue: str) -> None:
    checked(send("-a", queue, "--send-eos", "1", "--content-string", "x"))
    checked(send("-a", queue, "--content-string", "y"))
    assert contents(receive, queue, "--forever") == ["x"]
    assert contents(receive, queue, "-t", "forever", "-m", "1") == ["y"]


def test_duplicates(send: Run, receive: Run, queue: str) -> None:
    for _ in range(2):
        checked(send("-a", queue, "-m", "2", "--content-string", "x"))
    browse = f"{queue}; {{mode: browse}}"
    assert contents(receive, browse, "--ignore-duplicates") == ["x", "x"]
    result = receive("-a", browse, "--ignore-duplicates", "--check-redelivered")
    assert (result.exit_code, "not marked as redelivered" in result.stderr) == (1, True)
    result = receive("-a", browse, "--verify-sequence")
    assert (result.exit_code, "message out of sequence: received 1, expected 3" in result.stderr) == (1, True)


def test_answers(send: Run, receive: Run, url: str, queue: str) -> None:
    with Connection(url) as connection:
        answers = connection.session().receiver("#")
        checked(send("-a", queue, "--reply-to", answers.address, "--content-string", "ping"))
        assert contents(receive, queue, "--ready-address", answers.address) == ["ping"]
        assert [answers.fetch(timeout=PATIENCE_SECONDS).content for _ in range(2)] == [b"", "ping"]


def test_reports(send: Run, receive: Run, queue: str) -> None:
    lines = checked(send("-a", queue, "-m", "10", "--report-total", "--report-every", "5")).splitlines()
    assert lines[0] == "tp(m/s)"
    assert len(lines) == 4
    assert all(int(line) > 0 for line in lines[1:])
    lines = checked(receive("-a", queue, "--report-total", "--print-content", "no")).splitlines()
    assert lines[0].split("\t") == ["tp(m/s)", "l-min", "l-max", "l-avg"]
    assert len(lines[1].split("\t")) == 4
    assert checked(receive("-a", queue, "--report-total", "--report-header", "no")) == "0\n"


def test_as_processes(url: str, queue: str) -> None:
    def process(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", f"qstore.tools.{module}", "-b", url, *arguments]
        return forked.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)

    options = ("--connection-options", "{reconnect: true, heartbeat: 5}")
    sent = process("qpid_send", "-a", queue, "-m", "3", "--content-string", "é", "--rate", "1000", *options)
    assert (sent.returncode, sent.stdout, sent.stderr) == (0, "", "")
    received = process("qpid_receive", "-a", queue, *options)
    assert (received.returncode, received.stdout, received.stderr) == (
        0,
        "é\n" * 3,
        "qpid-receive: 3 messages received\n",
    )


# ---------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("command", [qpid_send.command, qpid_receive.command])
@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        ([], 2, "missing address"),
        (["-a", "q", "-b", "127.0.0.1:1"], 1, "connection refused"),
        (["-a", "q", "-b", "a:b:c"], 1, "is not host"),
        (["-a", "q; {create: allways}"], 1, "create must be one of"),
        (["-a", "no-such-queue"], 1, "no such queue or exchange"),
        (["-a", "q", "--connection-options", "{reconnect"], 2, "position"),
        (["-a", "q", "--connection-options", "{reconect: true}"], 1, "unknown connection option"),
        (["-a", "q", "--report-header", "perhaps"], 2, "neither yes nor no"),
        (["-a", "q", "-m", "-1"], 2, "-1"),
    ],
)
def test_invalid_arguments_are_refused(
    url: str, command: click.Command, arguments: list[str], code: int, what: str
) -> None:
    result = CliRunner().invoke(command, ["-b", url, *arguments])
    assert result.exit_code == code
    assert what in result.stderr
    assert "Traceback" not in result.output


def test_an_invalid_timeout(receive: Run) -> None:
    for word in ("soon", "-1", "nan"):
        assert receive("-a", "q", "-t", word).exit_code == 2


# ----------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize(
    ("kind", "word", "value"),
    [
        (YesNo(), "yes", True),
        (YesNo(), "No", False),
        (YesNo(), "1", True),
        (NameValue(), "a=1", ("a", 1)),
        (NameValue(), "a=b=c", ("a", "b=c")),
        (NameValue(), "a=", ("a", "")),
        (Timeout(), "1.5", 1.5),
        (Timeout(), "forever", float("inf")),
    ],
)
def test_kinds_of_values(kind: click.ParamType[Any], word: str, value: object) -> None:
    assert kind.convert(word, None, None) == value


def test_groups() -> None:
    def first(count: int, size: int, interleave: int, *, randomize: bool = False) -> list[str]:
        return list(islice(groups("g", size, interleave, randomize=randomize, choose=random.Random(5)), count))

    assert first(5, 2, 1) == ["g0", "g0", "g1", "g1", "g2"]
    assert first(8, 2, 2) == ["g0", "g1", "g0", "g1", "g2", "g3", "g2", "g3"]
    names = first(200, 5, 1, randomize=True)
    sizes = [names.count(name) for name in dict.fromkeys(names)][:-1]
    assert set(sizes) == {1, 2, 3, 4, 5}


def test_headers() -> None:
    headers = Headers({"a": 1}, has_sequence=True, has_timestamp=True)
    first, second = headers.next(), headers.next()
    assert (first["sn"], second["sn"]) == (coded(0x22, 1), coded(0x22, 2))
    assert first["ts"] <= second["ts"]
    assert Headers({"a": 1}, has_sequence=False, has_timestamp=False).next() == {"a": 1}


def test_contents() -> None:
    assert list(Contents(io.StringIO("a\nb"))) == ["a", "b"]
    assert list(islice(Contents(size=2, text="x"), 2)) == [b"XX", b"XX"]
    assert next(iter(Contents(entries={"a": 1}, text="x"))) == {"a": 1}
    assert next(iter(Contents())) == ""


def test_statistics() -> None:
    times = iter([10.0, 12.0])
    throughput = Throughput(lambda: next(times))
    assert throughput.line() == "0"
    throughput.add()
    throughput.add()
    assert throughput.line() == "1"

    latency = ThroughputAndLatency(lambda: 1.0, lambda: 5_000_000)
    latency.add("no number")
    latency.add(4_000_000)
    latency.add(1_000_000)
    assert latency.line().split("\t")[1:] == ["1.00", "4.00", "2.50"]


def test_reporter_has_one_heading() -> None:
    lines: list[str] = []
    reporter = Reporter(Throughput(lambda: 1.0), lines.append, every=2, is_total=True, has_heading=True)
    for _ in range(5):
        reporter.add()
    reporter.finish()
    assert [line == "tp(m/s)" for line in lines] == [True, False, False, False]


def test_pace() -> None:
    slept: list[float] = []
    pace = Pace(10, lambda: 100.0, slept.append)
    pace.keep(0)
    pace.keep(5)
    assert slept == [0.5]
    Pace(0, lambda: 100.0, slept.append).keep(1000)
    assert slept == [0.5]


def test_sequence_tracker() -> None:
    tracker = SequenceTracker()
    numbered = [Message(properties={"sn": number}) for number in (1, 2, 2, 1, 5)]
    assert [tracker.is_duplicate(message) for message in numbered] == [False, False, True, True, False]
    with pytest.raises(SequenceError, match="no sequence number"):
        tracker.is_duplicate(Message())


def test_the_mechanism_is_chosen(send: Run, receive: Run, queue: str) -> None:
    checked(send("-a", queue, "--content-string", "x", "--sasl-mechanism", "ANONYMOUS"))
    assert "authentication failed" in receive("-a", queue, "--sasl-mechanism", "PLAIN").stderr
    assert contents(receive, queue) == ["x"]
