"""`qpid-perftest`: all messages arrive, in each mode, in one process and in several; and its lines."""

from __future__ import annotations

import re
import subprocess
import uuid

import pytest
from click.testing import CliRunner

from qstore.broker.client import Connection
from qstore.tools import qpid_perftest
from qstore.tools.load.clients import STAMP
from tests.support.forked import Forked
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import RunningBroker, one_broker
from tests.tools.test_commands import command

broker = pytest.fixture(one_broker, scope="module")
_NUMBER = r"[\d.e+]+"


@pytest.fixture
def options(broker: RunningBroker) -> list[str]:
    return ["-b", f"127.0.0.1:{broker.port}", "--base-name", f"p-{uuid.uuid4()}-"]


def lines(options: list[str], *arguments: str) -> list[str]:
    result = CliRunner().invoke(qpid_perftest.command, [*options, *arguments])
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout.splitlines()


def depth(options: list[str], queue: str) -> int:
    with Connection(options[1]) as connection:
        return int(connection.session().invoke("queue.query", queue=queue).get("message_count") or 0)


def test_the_report(options: list[str]) -> None:
    found = lines(options, "--count", "300", "--size", "100", "--npubs", "2", "--nsubs", "3", "--sub-ack", "7")
    patterns = [
        "", rf"Total 1200 transfers of 100 bytes in {_NUMBER} seconds\.",
        "", "Publish transfers/sec:    ", *[_NUMBER] * 2, rf"Average: {_NUMBER} \(std\.dev\. {_NUMBER}\)",
        "", "Subscribe transfers/sec:  ", *[_NUMBER] * 3, rf"Average: {_NUMBER} \(std\.dev\. {_NUMBER}\)",
        "", rf"Total transfers/sec:      {_NUMBER}", rf"Total Mbytes/sec: {_NUMBER}",
    ]  # fmt: skip
    assert len(found) == len(patterns)
    for line, pattern in zip(found, patterns, strict=True):
        assert re.fullmatch(pattern, line)
    assert depth(options, f"{options[-1]}0") == 0


@pytest.mark.parametrize("more", [(), ("--durable", "--tx", "10"), ("--pub-confirm", "no"), ("--sync-publish",)])
@pytest.mark.parametrize(("mode", "transfers"), [("shared", 4 * 60), ("fanout", 60 + 2 * 60), ("topic", 120 + 240)])
def test_each_mode(options: list[str], mode: str, transfers: int, more: tuple[str, ...]) -> None:
    topics = ("--qt", "2") if mode != "fanout" else ()
    found = lines(options, "--mode", mode, "--count", "60", "--nsubs", "2", *topics, *more)
    assert found[1].startswith(f"Total {transfers} transfers of 1024 bytes in ")
    with Connection(options[1]) as connection:
        names = [f"{options[-1]}{each}" for each in range(2)]
        assert [connection.session().invoke("queue.query", queue=name).get("message_count", 0) for name in names] in (
            [0, 0], [None, None],
        )  # fmt: skip


def test_the_summary_of_iterations(options: list[str]) -> None:
    *rows, title, averages = lines(options, "--count", "50", "--iterations", "3", "-s")
    assert title == "Averages: "
    values = [[float(each) for each in row.split("\t")] for row in rows]
    assert len(values) == 3
    for column, average in zip(zip(*values, strict=True), averages.split("\t"), strict=True):
        assert float(average) == pytest.approx(sum(column) / 3, rel=1e-4)


def test_unique_data_and_headers(options: list[str]) -> None:
    lines(options, "--count", "20", "--nsubs", "0", "--unique-data", "--size", "30", "--headers", "2", "--durable")
    with Connection(options[1]) as connection:
        receiver = connection.session().receiver(f"{options[-1]}0")
        found = [receiver.fetch(PATIENCE_SECONDS) for _ in range(20)]
    assert [STAMP.unpack_from(message.body)[0] for message in found] == list(range(20))
    assert all((len(each.body), each.durable) == (30, True) for each in found)
    assert (found[0].properties["hdr0"], found[0].properties["hdr1"]) == ("hdr0", "hdr1")


def test_limits_of_queues_refuse_what_is_too_much(options: list[str]) -> None:
    result = CliRunner().invoke(
        qpid_perftest.command, [*options, "--count", "20", "--nsubs", "0", "--queue_max_count", "5"]
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("qpid-perftest: ")


@pytest.mark.parametrize("mode", ["shared", "topic"])
def test_several_processes(options: list[str], mode: str) -> None:
    same = [*options, "--mode", mode, "--count", "100", "--nsubs", "2", "--qt", "2", "--iterations", "2"]
    assert lines(same, "--setup") == []
    processes = [
        Forked([*command("qpid-perftest"), *same, f"--{step}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for step in ("subscribe", "subscribe", "publish")
    ]
    found = lines(same, "--control")
    base, total = options[-1], 2 * 100 + (200 if mode == "shared" else 400)
    assert found[0] == f"Processing 4 messages from {base}_sub_ready .... done."
    assert found[1] == f"Sending start 2 times to {base}_pub_start"
    assert found[2] == f"Processing 2 messages from {base}_pub_done .. done."
    assert found[3] == f"Processing 4 messages from {base}_sub_done .... done."
    assert len([line for line in found if line.startswith(f"Total {total} transfers of 1024 bytes in ")]) == 2
    assert f"Sending next 4 times to {base}_sub_iteration" in found
    for process in processes:
        assert process.stderr is not None
        assert process.stdout is not None
        assert (process.stdout.read(), process.stderr.read(), process.wait(PATIENCE_SECONDS)) == (b"", b"", 0)
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--publish", "--control"], "give one of --setup, --publish, --subscribe and --control to each process"),
        (["--npubs", "0", "--nsubs", "0"], "there is neither a publisher nor a subscriber"),
        (["--npubs", "0"], "--nsubs needs --npubs"),
        (["--unique-data", "--size", "4"], "--unique-data needs messages of 8 bytes or more"),
        (["--durable", "perhaps"], "'perhaps' is neither yes nor no"),
        (["-b", "host:1:2"], "'host:1:2' is not host[:port]"),
    ],
)
def test_command_lines_that_are_none(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(qpid_perftest.command, arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_the_address_of_the_broker(broker: RunningBroker) -> None:
    options = [
        "-h",
        "127.0.0.1",
        "-p",
        str(broker.port),
        "--username",
        "u",
        "--password",
        "p",
        "-n",
        "me",
        "--mechanism",
        "PLAIN",
    ]
    assert len(lines(options, "--count", "10", "-s")) == 1
    result = CliRunner().invoke(qpid_perftest.command, ["-h", "127.0.0.1", "-p", "1", "--count", "10"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "qpid-perftest: 127.0.0.1:1: connection refused: is a broker running there?\n"
