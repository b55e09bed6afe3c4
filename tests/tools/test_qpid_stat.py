"""`qpid-stat` and `qpid-queue-stats`: what they show, sorted and in full; amounts as text."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from qstore.broker.client import Connection
from qstore.tools import qpid_queue_stats, qpid_stat
from qstore.tools.console.amounts import clock, compact, duration, full, plain, reference, shown
from qstore.tools.qpid_queue_stats import Counts, Sample, rates, read_patterns
from tests.support.terminal import Terminal
from tests.tools.management_runs import Runs, broker, system_log, url  # noqa: F401 (fixtures)
from tests.tools.test_commands import command


@pytest.fixture(scope="module")
def filled(broker: object) -> Iterator[str]:  # noqa: F811
    """A broker with three queues, of 0, 5 and 1200 messages, and a subscription."""
    address = f"127.0.0.1:{broker.port}"  # type: ignore[attr-defined]
    with Connection(address) as connection:
        session = connection.session()
        for name, count in (("none", 0), ("some", 5), ("many", 1200)):
            sender = session.sender(f"{name}; {{create: always, node: {{durable: {name == 'some'}}}}}")
            for _ in range(count):
                sender.send("x" * 10, sync=False)
            sender.sync()
        session.receiver("none")
        yield address


@pytest.mark.parametrize("option", ["-q", "-c", "-e", "-u"])
def test_lists_fit_a_terminal_of_80_columns(filled: str, tmp_path: Path, option: str) -> None:
    environment = {"TERM": "xterm", "COLUMNS": "80"}
    with Terminal([*command("qpid-stat"), option, "-b", filled], tmp_path, **environment) as terminal:
        lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in terminal.read_all().splitlines()]
    assert len(lines) > 4
    assert max(map(len, lines)) <= 80
    pieces = [line for line in lines if re.fullmatch(r"[0-9a-f-]+", line.strip())]
    assert len(pieces) <= 2  # the ends of long names


@pytest.fixture
def stat(filled: str) -> Runs:
    return Runs(qpid_stat.command, filled)


def rows(stat: Runs, *options: str) -> dict[str, list[str]]:
    """Words of the rows by the first one, below the rule."""
    lines = stat.lines(*options)
    rule = next(index for index, line in enumerate(lines) if set(line.strip()) == {"="})
    return {line.split()[0]: line.split()[1:] for line in lines[rule + 1 :] if line.strip()}


def test_queues(stat: Runs) -> None:
    assert stat.lines("-q")[0] == "Queues"
    found = rows(stat, "-q")
    assert found["some"][:4] == ["Y", "5", "5", "0"]
    assert found["many"][:3] == ["1.20k", "1.20k", "0"]
    assert found["none"][-2:] == ["1", "1"]


def test_sorted_and_limited(stat: Runs) -> None:
    assert list(rows(stat, "-q", "-S", "msg", "-L", "2")) == ["many", "some"]
    assert list(rows(stat, "-q", "--sort-by", "MSG", "-I", "-L", "1")) != ["many"]
    assert [each["name"] for each in stat.json("-q", "-S", "msg", "-L", "1")] == ["many"]
    names = list(rows(stat, "-q", "-S", "queue", "-I"))
    assert names == sorted(names)
    assert "there is no column 'nonsense'; the columns are queue, dur" in stat.fails("-q", "-S", "nonsense")


def test_one_queue(stat: Runs) -> None:
    text = stat.text("-q", "many")
    assert re.search(r"^  queue-depth +1,200 +\d", text, re.MULTILINE)
    assert re.search(r"^  many +N +N +N +N +0 +0 +1$", text, re.MULTILINE)
    (found,) = stat.json("-q", "many")
    assert (found["kind"], found["msgDepth"]) == ("queue", 1200)
    assert stat.fails("-q", "nosuch") == "qpid-stat: Queue 'nosuch' not found\n"


def test_the_broker(stat: Runs) -> None:
    text = stat.text("-g")
    assert re.search(r"^  \d+s +<standalone> +2 +2 +10 +4$", text, re.MULTILINE)
    assert re.search(r"^  persistent-enqueues +0 +0$", text, re.MULTILINE)
    (found,) = stat.json("-g")
    assert found["queueCount"] == 4


def test_connections_subscriptions_exchanges_and_memory(stat: Runs) -> None:
    assert len(rows(stat, "-c")) == 2
    assert any(line.split()[1] == "none" for line in stat.lines("-u")[3:])
    (subscription,) = (each for each in stat.json("-u") if each["queueRef"]["_object_name"].endswith(":none"))
    assert subscription["connection"].startswith("127.0.0.1:")
    assert rows(stat, "-e")["amq.topic"][:2] == ["topic", "Y"]
    assert int(rows(stat, "-m")["malloc_arena"][0].replace(",", "")) > 1_000_000
    assert stat.json("-m")[0]["malloc_arena"] > 1_000_000
    assert len(stat.text("-e", "-q").split("====")) > 2


def test_access_control(stat: Runs) -> None:
    found = rows(stat, "--acl")
    assert (found["enforcing"], found["acl-denials"], found["last-acl-load"]) == (["N"], ["0"], ["-"])
    assert stat.json("--acl")[0]["kind"] == "acl"


def test_a_broker_without_access_control(stat: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstore.tools.qpid_stat._ACL", "no.such.package")
    assert stat.fails("--acl") == "qpid-stat: ACL Policy Module is not installed\n"


def test_command_lines_that_are_none(stat: Runs) -> None:
    assert "choose what to show" in stat.fails(code=2)
    assert "a name is for -q only" in stat.fails("-e", "amq.topic", code=2)


# ---- qpid-queue-stats ----


def test_rates_of_queues(filled: str) -> None:
    runs = Runs(qpid_queue_stats.command, filled)
    heading, rule, *found = runs.lines("-i", "0.05", "-n", "2", "-f", "some,man.*")
    assert heading.split() == ["Queue", "Name", "Sec", "Depth", "Enq", "Rate", "Deq", "Rate"]
    assert (set(rule), len(rule)) == ({"="}, len(heading))
    assert [line.split()[0] for line in found] == ["some", "many"] * 2
    assert found[1].split()[2:] == ["1200", "0.00", "0.00"]
    active = runs.json("-i", "0.05", "-n", "1", "--active", "-f", "some,none")
    assert [each["queue"] for each in active] == ["some"]
    assert "is no regular expression" in runs.fails("-f", "(", code=2)


def test_rates_go_to_the_systems_log(filled: str, system_log: socket.socket) -> None:  # noqa: F811
    runs = Runs(qpid_queue_stats.command, filled)
    assert runs.lines("-i", "0.05", "-n", "1", "-f", "many", "--syslog", "user") == []
    line = system_log.recv(65536).decode()
    assert re.fullmatch(r"<14>qpid-queue-stats\[\d+\]: many: depth 1200, 0\.00 enqueues/s, 0\.00 dequeues/s", line)


def test_rates_are_of_queues_in_both_samples() -> None:
    before = Sample(10.0, {"a": Counts(1, 100, 99), "anew": Counts(5, 50, 45), "gone": Counts(0, 0, 0)})
    after = Sample(12.0, {"a": Counts(3, 120, 117), "anew": Counts(0, 1, 1), "new": Counts(1, 1, 0)})
    (found,) = rates(before, after)
    assert found == ("a", 2.0, 3, 10.0, 9.0)
    assert found.is_active
    assert list(rates(before, before)) == []


def test_names_and_patterns() -> None:
    first, second = read_patterns(" a , b.*,")
    assert first.match("abc")
    assert not second.match("ab")


# ---- amounts ----


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"), (999, "999"), (1000, "1.00k"), (1234, "1.23k"), (9_994, "9.99k"), (9_996, "10.0k"), (12_345, "12.3k"),
        (99_949, "99.9k"), (99_960, "100k"), (123_456, "123k"), (999_499, "999k"), (999_500, "1.00m"),
        (12_345_678, "12.3m"), (19_259_136, "19.3m"), (5 * 10**9, "5.00g"),
        (7 * 10**12, "7.00t"), (7 * 10**15, "7000t"), (-1500, "-1.50k"), (None, ""), (True, "True"),
    ],
)  # fmt: skip
def test_compact_numbers(number: object, text: str) -> None:
    assert compact(number) == text


def test_durations_and_times() -> None:
    assert [duration(seconds * 10**9) for seconds in (0, 59, 61, 3600, 90_061)] == [
        "0s", "59s", "1m 1s", "1h 0m 0s", "1d 1h 1m 1s",
    ]  # fmt: skip
    assert duration(None) == ""
    assert clock(0) == "-"
    assert re.fullmatch(r"\d\d:\d\d:\d\d", clock(10**18))
    assert re.fullmatch(r"2001-09-\d\d \d\d:\d\d:\d\d", clock(10**18, is_long=True))


def test_values() -> None:
    name = {"_object_name": "org.apache.qpid.broker:queue:a:b", "_agent_name": "x"}
    assert (shown(name), reference(name), reference(3)) == ("a:b", "a:b", "")
    assert shown({"a": [1, "b"], "c": b"d"}) == "{a:[1, b], c:d}"
    assert shown("a\x1b[2J\nb") == r"a\x1b[2J\x0ab"
    assert (full(1234567), full("x"), full(None)) == ("1,234,567", "x", "")
    assert plain({"a": b"\xff"}) == {"a": "\udcff"}
