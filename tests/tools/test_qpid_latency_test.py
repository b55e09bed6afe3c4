"""`qpid-latency-test`: its lines, by count and by rate."""

from __future__ import annotations

import re
import uuid

import pytest
from click.testing import CliRunner

from qstore.broker.client import Connection
from qstore.tools import qpid_latency_test
from tests.support.running_broker import RunningBroker, one_broker

broker = pytest.fixture(one_broker, scope="module")
_LINE = re.compile(r"Latency\(ms\): min=([\d.e-]+), max=([\d.e-]+), avg=([\d.e-]+)")


@pytest.fixture
def options(broker: RunningBroker) -> list[str]:
    return ["-b", f"127.0.0.1:{broker.port}", "--queue-base-name", f"l-{uuid.uuid4()}"]


def lines(options: list[str], *arguments: str) -> list[str]:
    result = CliRunner().invoke(qpid_latency_test.command, [*options, *arguments])
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout.splitlines()


@pytest.mark.parametrize(
    "more", [(), ("--prefetch", "0"), ("--sync",), ("--durable", "--ack", "7"), ("--concurrent-tests", "3")]
)
def test_a_count_of_messages(options: list[str], more: tuple[str, ...]) -> None:
    (line,) = lines(options, "--count", "200", "--size", "32", *more)
    found = _LINE.fullmatch(line)
    assert found is not None
    least, greatest, average = map(float, found.groups())
    assert 0 < least <= average <= greatest
    with Connection(options[1]) as connection:
        assert not connection.session().invoke("queue.query", queue=f"{options[-1]}-1").get("queue")


def test_a_rate_with_reports(options: list[str]) -> None:
    *reports, empty, last = lines(options, "--rate", "200", "--time-limit", "1", "--report-frequency", "250")
    assert empty == ""
    assert all(_LINE.fullmatch(line) for line in [*reports, last])
    assert 2 <= len(reports) <= 4


def test_numbers_of_reports(options: list[str]) -> None:
    rate, least, greatest, average = map(float, lines(options, "--count", "100", "--csv")[0].split(","))
    assert rate > 0
    assert 0 < least <= average <= greatest
    limits = ("--rate", "300", "--time-limit", "1", "--report-frequency", "200", "--cumulative")
    rows = [[float(each) for each in line.split(",")] for line in lines(options, *limits)]
    assert [row[2] for row in rows] == sorted(row[2] for row in rows)
    assert [row[1] for row in rows] == sorted((row[1] for row in rows), reverse=True)


def test_command_lines_that_are_none() -> None:
    result = CliRunner().invoke(qpid_latency_test.command, ["--ack", "11", "--prefetch", "10"])
    assert (result.exit_code, "--ack 11 is never reached with --prefetch 10" in result.stderr) == (2, True)
    result = CliRunner().invoke(qpid_latency_test.command, ["--size", "4"])
    assert result.exit_code == 2
