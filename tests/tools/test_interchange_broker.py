"""Exports from, and imports into, a running broker: messages arrive once, whichever process is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pika
import pytest

from qstore.broker.client import Connection, Empty, Message
from qstore.broker.model.queues.due import WAITING
from qstore.formats.values import TYPES, TypedValue
from qstore.tools.interchange.broker import _Sending
from tests.support.fixtures import StoreFixture
from tests.support.forked import ROOT
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker, one_broker
from tests.tools.interchange_runs import bring, export, held, lines_of, of_kind, write_lines
from tests.tools.test_interchange import simple_lines

__all__ = ["make_broker"]

broker = pytest.fixture(scope="module")(one_broker)


@pytest.fixture
def url(broker: RunningBroker) -> str:
    return f"amqp://127.0.0.1:{broker.port}"


def drained(url: str, queue: str) -> list[Message]:
    with Connection(url.removeprefix("amqp://")) as connection:
        session, found = connection.session(), []
        receiver = session.receiver(queue, capacity=100)
        while True:
            try:
                found.append(receiver.fetch(0))
            except Empty:
                session.acknowledge()
                return found


def summary(*arguments: object, code: int = 0) -> dict[str, Any]:
    result = bring(*arguments, "--json")
    assert result.exit_code == code, result.output
    last: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return last


def test_a_store_through_a_broker_and_back(tmp_path: Path, url: str, local: StoreFixture) -> None:
    assert export(local.path, tmp_path / "e.tar.zst").exit_code == 0
    first = summary(tmp_path / "e.tar.zst", url)
    assert first["imported"] is True
    assert summary(tmp_path / "e.tar.zst", url)["imported"] is False
    result = export(url, tmp_path / "back.jsonl")
    assert result.exit_code == 0, result.output
    old, new = of_kind(held(local.path, tmp_path), "message"), of_kind(lines_of(tmp_path / "back.jsonl"), "message")
    names = {line["queue"] for line in old}
    same = ("queue", "body_sha256", "headers", "header_types", "message_id", "delivery_mode", "priority")
    assert first["messages"] == len(old) > 10
    for name in names:
        assert [[line[field] for field in same] for line in new if line["queue"] == name] == [
            [line[field] for field in same] for line in old if line["queue"] == name
        ]
    lines = lines_of(tmp_path / "back.jsonl")
    assert names <= {line["name"] for line in of_kind(lines, "queue")}
    for name in names:
        drained(url, name)


@pytest.mark.parametrize("has_schedule", [False, True])
def test_scheduled_messages_are_not_sent(tmp_path: Path, make_broker: BrokerMaker, has_schedule: bool) -> None:
    own = make_broker()
    own.start()
    at = f"amqp://127.0.0.1:{own.port}"
    lines = simple_lines(2, "plain")
    lines[1:1] = [{"kind": "queue", "name": WAITING}]
    lines[-1:-1] = simple_lines(3, WAITING)[2:5]
    if has_schedule:
        arguments = {"x-delayed-type": "direct"}
        lines[1:1] = [{"kind": "exchange", "name": "later", "type": "x-delayed-message", "arguments": arguments}]
    result = bring(write_lines(tmp_path / "e.jsonl", lines), at, "--edited")
    assert result.exit_code == 1, result.output
    assert "3 messages cannot be decoded, or are scheduled, and were not sent" in result.output
    assert "is left out" not in result.output
    assert len(drained(at, "plain")) == 2


def test_types_and_topology_arrive(tmp_path: Path, url: str) -> None:
    lines = simple_lines(1, "typed")
    lines[1:2] = [
        {"kind": "exchange", "name": "typed.dead", "type": "fanout"},
        {"kind": "exchange", "name": "typed.x", "type": "topic", "alternate_exchange": "typed.dead"},
        {"kind": "queue", "name": "typed", "arguments": {"qpid.max_count": 5}, "alternate_exchange": "typed.dead"},
        {"kind": "binding", "exchange": "typed.x", "queue": "typed", "key": "a.#"},
    ]
    lines[-2] |= {"headers": {"small": 3}, "header_types": {"small": "uint8"}, "priority": 8}
    result = summary(write_lines(tmp_path / "e.jsonl", lines), url, "--edited")
    assert (result["exchanges_created"], result["queues_created"], result["messages"]) == (2, 1, 1)
    back = tmp_path / "back.jsonl"
    assert export(url, back, "--queue", "typed").exit_code == 0
    found = lines_of(back)
    (message,) = of_kind(found, "message")
    assert (message["header_types"], message["priority"]) == ({"small": "uint8"}, 8)
    (queue,) = of_kind(found, "queue")
    assert (queue["arguments"], queue["alternate_exchange"]) == ({"qpid.max_count": 5}, "typed.dead")
    bound = [(line["exchange"], line["key"]) for line in of_kind(found, "binding")]
    assert ("typed.x", "a.#") in bound
    with Connection(url.removeprefix("amqp://")) as connection:
        connection.session().sender("typed.x").send(Message("routed", subject="a.b"))
    assert [each.content for each in drained(url, "typed")][-1] == "routed"


def test_an_alternate_exchange_that_is_declared_later_is_exported(
    tmp_path: Path, url: str, broker: RunningBroker
) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        channel = connection.channel()
        for name, arguments in (("early", {"alternate-exchange": "late"}), ("plain", {})):
            channel.exchange_declare(name, "direct", durable=True, arguments=arguments)
    assert export(url, tmp_path / "back.jsonl").exit_code == 0
    exchanges = {
        each["name"]: each.get("alternate_exchange") for each in of_kind(lines_of(tmp_path / "back.jsonl"), "exchange")
    }
    assert (exchanges["early"], exchanges["plain"]) == ("late", "")


def test_a_number_sign_in_the_name_of_a_queue(tmp_path: Path, url: str) -> None:
    file = write_lines(tmp_path / "e.jsonl", simple_lines(3, "sign#1"))
    assert summary(file, url, "--edited")["messages"] == 3
    assert export(url, tmp_path / "back.jsonl", "--queue", "sign#1", "--take").exit_code == 0
    assert [line["body"] for line in of_kind(lines_of(tmp_path / "back.jsonl"), "message")] == ["0", "1", "2"]


def test_messages_are_taken_when_the_file_is_complete(tmp_path: Path, url: str) -> None:
    with Connection(url.removeprefix("amqp://")) as connection:
        session = connection.session()
        sender = session.sender("taken; {create: always, node: {durable: true}}")
        for number in range(1500):
            sender.send(Message(str(number), durable=True, properties={"n": TypedValue(TYPES["int8"], number % 3)}))
    (tmp_path / "there.jsonl").touch()
    assert export(url, tmp_path / "there.jsonl", "--queue", "taken", "--take").exit_code == 2
    browsed = export(url, tmp_path / "browsed.jsonl", "--queue", "taken", "--selector", "n = 1")
    assert browsed.exit_code == 0, browsed.output
    assert len(of_kind(lines_of(tmp_path / "browsed.jsonl"), "message")) == 500
    assert export(url, tmp_path / "taken.jsonl", "--queue", "taken", "--take").exit_code == 0
    taken = of_kind(lines_of(tmp_path / "taken.jsonl"), "message")
    assert [line["body"] for line in taken] == [str(number) for number in range(1500)]
    assert drained(url, "taken") == []
    assert bring(tmp_path / "taken.jsonl", tmp_path / "store").exit_code == 0
    assert [line["body"] for line in of_kind(held(tmp_path / "store", tmp_path), "message")] == [
        line["body"] for line in taken
    ]


@pytest.mark.parametrize("after", [0, 1, 2])
def test_an_import_that_ends_in_the_middle_continues(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """It dies before and after a commit; nothing is missing, nothing is there twice."""
    queue = f"middle{after}"
    file = write_lines(tmp_path / "e.jsonl", simple_lines(50, queue))
    monkeypatch.setattr("qstore.tools.interchange.broker._BATCH", 20)
    commit, calls = _Sending.commit, []

    def dies(self: _Sending, *, done: bool = False) -> None:
        calls.append(done)
        if after == 0:
            raise KeyboardInterrupt
        commit(self, done=done)
        if len(calls) == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(_Sending, "commit", dies)
    assert bring(file, url, "--edited").exit_code != 0
    monkeypatch.setattr(_Sending, "commit", commit)
    assert summary(file, url, "--edited")["messages"] == 50
    assert summary(file, url, "--edited")["imported"] is False
    assert [each.content for each in drained(url, queue)] == [str(number).encode() for number in range(50)]
    assert summary(file, url, "--edited", "--again")["imported"] is True
    assert len(drained(url, queue)) == 50


def test_a_broker_and_an_import_that_are_killed(tmp_path: Path) -> None:
    """The broker is killed during an import at a low rate, and started again; the import goes on."""
    running = RunningBroker(tmp_path / "broker")
    running.start()
    file = write_lines(tmp_path / "e.jsonl", simple_lines(3000, "killed"))
    command = [sys.executable, "-m", "qstore.tools.qstore_import", str(file), "--edited", "--rate", "4000"]
    url = f"amqp://127.0.0.1:{running.port}"
    process = subprocess.Popen([*command, url], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    with Connection(url.removeprefix("amqp://")) as connection:
        session = connection.session()
        while not session.invoke("queue.query", queue="killed").get("message_count"):
            assert process.poll() is None
        running.kill()
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 2
    assert errors.count("\n") == 1
    running.start()
    try:
        url = f"amqp://127.0.0.1:{running.port}"
        assert summary(file, url, "--edited")["messages"] == 3000
        assert [each.content for each in drained(url, "killed")] == [str(number).encode() for number in range(3000)]
    finally:
        running.close()


def test_invalid_import_into_a_broker_is_refused(tmp_path: Path, url: str, dtx: StoreFixture) -> None:
    assert export(dtx.path, tmp_path / "dtx.jsonl").exit_code == 0
    for arguments, text in (
        ([tmp_path / "dtx.jsonl", url], "--in-doubt commit or rollback decides them"),
        (
            [write_lines(tmp_path / "e.jsonl", simple_lines()[:1] + simple_lines()[2:]), url, "--edited"],
            "no such queue",
        ),
        (
            [
                write_lines(
                    tmp_path / "x.jsonl",
                    [simple_lines()[0], {"kind": "exchange", "name": "amq.topic", "type": "direct"}],
                ),
                url,
                "--edited",
            ],
            "of type topic in the broker",
        ),
        ([tmp_path / "dtx.jsonl", "amqp://127.0.0.1:1"], "127.0.0.1:1"),
    ):
        result = bring(*arguments)
        assert result.exit_code == 2, result.output
        assert text in result.output
        assert result.output.count("\n") == 1
    result = export(url, tmp_path / "no.jsonl", "--queue", "nowhere")
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert 'there is no queue "nowhere"' in result.output
    assert not list(tmp_path.glob("no.jsonl*"))
