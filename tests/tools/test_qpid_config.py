"""`qpid-config`: each verb, and the options of new objects."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from qstore.broker.client import Connection
from qstore.broker.management.console import Console
from qstore.tools import qpid_config
from qstore.tools.qpid_config import OPTIONS
from tests.tools.management_runs import Runs, broker, url  # noqa: F401 (fixtures)


@pytest.fixture
def config(url: str) -> Runs:  # noqa: F811
    return Runs(qpid_config.command, url)


@pytest.fixture
def queue(config: Runs, request: pytest.FixtureRequest) -> str:
    name = request.node.name
    config.text("add", "queue", name)
    return name


def attributes(config: Runs, kind: str, name: str) -> str:
    """The last column of the one object with this in its name."""
    *_, row = config.lines(kind, name)
    return row.partition(name)[2].strip()


def test_the_summary_counts(config: Runs, queue: str) -> None:
    lines = [line.strip() for line in config.lines()]
    assert "Total Exchanges: 10" in lines
    assert "headers: 1" in lines
    (summary,) = config.json()
    assert summary["exchanges"]["topic"] == 3
    assert summary["queues"] >= 2


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--durable", "--file-count", "6", "--file-size", "20"], "--durable --file-size=20 --file-count=6"),
        (["--max-queue-size=5000", "--max-queue-count", "10"], "--max-queue-size=5000 --max-queue-count=10"),
        (["--limit-policy", "ring"], "--limit-policy=ring"),
        (["--limit-policy", "ring-strict"], "--limit-policy=ring-strict"),
        (["--policy-type", "flow_to_disk"], "--limit-policy=flow-to-disk"),
        (["--policy-type", "ring_strict"], "--limit-policy=ring-strict"),
        (["--last-value-queue"], "--order=lvq"),
        (["--limit-policy", "none", "--replicate", "none"], "--replicate=none"),
        (["--lvq-key", "price"], "--lvq-key=price"),
        (["--order", "lvq"], "--order=lvq"),
        (["--order", "fifo"], ""),
        (["--generate-queue-events", "2"], "--generate-queue-events=2"),
        (["--flow-stop-count", "9", "--flow-resume-count", "5"], "--flow-stop-count=9 --flow-resume-count=5"),
        (["--group-header", "g", "--shared-groups"], "--group-header=g --shared-groups"),
        (["--alternate-exchange", "amq.fanout"], "--alternate-exchange=amq.fanout"),
        (["--argument", "x-a=b c", "--argument", "x-n=3"], "--argument x-a=b c --argument x-n=3"),
        (["--argument", "auto-delete=true", "--cluster-durable"], "auto-del --cluster-durable"),
    ],
)
def test_options_of_a_new_queue_are_shown_as_they_were_given(config: Runs, options: list[str], shown: str) -> None:
    name = f"q-{uuid.uuid4()}"
    config.text("add", "queue", name, *options)
    assert attributes(config, "queues", name) == shown
    config.text("del", "queue", name)


def test_options_of_a_new_exchange(config: Runs) -> None:
    config.text("add", "exchange", "topic", "news", "--sequence", "--ive", "--durable")
    config.text("add", "exchange", "direct", "other", "--alternate-exchange", "news")
    assert attributes(config, "exchanges", "news") == "--durable --sequence --ive"
    assert attributes(config, "exchanges", "other") == "--alternate-exchange=news"
    for name in ("other", "news"):
        config.text("del", "exchange", name)
    assert "no exchange has 'news' in its name" in config.fails("exchanges", "news")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["add", "queue", "q", "--ive"], "--ive is an option of a new exchange, not of queue"),
        (["add", "exchange", "topic", "e", "--lvq-key", "k"], "--lvq-key is an option of a new queue"),
        (["add", "exchange", "topic", "e", "--order", "lvq"], "--order is an option of a new queue"),
        (["add", "queue", "q", "--argument", "x"], "is not NAME=VALUE"),
        (["add", "queue", "q", "--limit-policy", "other"], "is not one of"),
        (["add", "queue", "q", "--start-replica", "host"], "--start-replica"),
        (["add", "queue"], "expected TYPE NAME"),
        (["add"], "expected TYPE NAME"),
        (["add", "exchange", "topic"], "expected exchange TYPE NAME"),
        (["bind", "amq.topic"], "expected EXCHANGE QUEUE [KEY]"),
        (["queues", "a", "b"], "expected [PART-OF-NAME]"),
        (["shutdown", "now"], "nothing may follow"),
        (["nonsense"], "unknown command 'nonsense'"),
    ],
)
def test_command_lines_that_are_none(config: Runs, arguments: list[str], complaint: str) -> None:
    assert complaint in config.fails(*arguments, code=2)


def test_bindings(config: Runs, queue: str) -> None:
    config.text("bind", "amq.topic", queue, "usa.#")
    config.text("bind", "amq.fanout", queue)
    config.text("bind", "amq.match", queue, "key", "any", "a=1,", "b=x")
    config.text("bind", "amq.match", queue, "all", "c=2")
    assert config.lines("queues", queue, "-r") == [
        f"Queue '{queue}'",
        f"    bind [{queue}] => ''",
        "    bind [usa.#] => amq.topic",
        "    bind [] => amq.fanout",
        "    bind [key] => amq.match {x-match:any, a:1, b:x}",
        "    bind [] => amq.match {x-match:all, c:2}",
    ]
    assert f"    bind [usa.#] => {queue}" in config.lines("exchanges", "-r", "amq.topic")
    assert f"    bind [{queue}] => ''" not in config.lines("queues", queue, "-r", "--ignore-default")
    config.text("unbind", "amq.topic", queue, "usa.#")
    assert "not bound" in config.fails("unbind", "amq.topic", queue, "usa.#")
    for words in (["amq.match", queue, "k", "some", "a=1"], ["amq.match", queue, "k", "any", "a"]):
        config.fails("bind", *words, code=2)
    assert "only a binding to a headers exchange" in config.fails("bind", "amq.topic", queue, "k", "a=1", code=2)
    assert "Exchange not found" in config.fails("bind", "nosuch", queue, "k")


def test_b_without_a_url_shows_bindings(config: Runs, url: str, queue: str) -> None:  # noqa: F811
    shown = config.lines("-r", "queues", queue)
    assert len(shown) == 2
    assert config.lines("-b", "queues", queue) == shown
    assert config.lines("queues", queue, "-b") == shown
    assert config.lines("-b", "-a", url, "queues", queue) == shown
    assert f"    bind [{queue}] => {queue}" in config.lines("-b", "exchanges")


def test_bindings_between_exchanges(config: Runs, url: str) -> None:  # noqa: F811
    with Connection(url) as connection, Console(connection) as console:
        name = {"type": "exchange_binding", "name": "amq.topic/amq.direct/usa.#"}
        console.call("broker", "create", {**name, "properties": {}, "strict": False})
        assert "    bind [usa.#] => exchange amq.direct" in config.lines("exchanges", "-r", "amq.topic")
        console.call("broker", "delete", {**name, "options": {}})
        assert "    bind [usa.#] => exchange amq.direct" not in config.lines("exchanges", "-r", "amq.topic")


def test_an_xquery_is_for_xml_exchanges(config: Runs, queue: str, tmp_path: Path) -> None:
    query = tmp_path / "query.xq"
    query.write_text("./a")
    assert "XML exchange" in config.fails("bind", "amq.topic", queue, "k", "-f", str(query), code=2)


def test_queue_deletion_respects_its_conditions(config: Runs, url: str) -> None:  # noqa: F811
    with Connection(url) as connection:
        session = connection.session()
        for name in ("full", "used", "both"):
            config.text("add", "queue", name)
        session.sender("full").send("x")
        session.sender("both").send("x")
        session.receiver("used")
        assert "not empty" in config.fails("del", "queue", "full")
        assert "not empty" in config.fails("del", "queue", "full", "--force-if-used")
        assert "not empty" in config.fails("del", "queue", "full", "--if-empty")
        config.text("del", "queue", "full", "--force-if-not-empty")
        config.fails("del", "queue", "used")
        config.fails("del", "queue", "used", "--if-unused")
        config.text("del", "queue", "used", "--if-empty")
        config.text("del", "queue", "both", "--force")
    assert "Queue not found: full" in config.fails("del", "queue", "full")


def test_objects_of_any_class(config: Runs, queue: str) -> None:
    lines = config.lines("list", "queue")
    assert lines[0] == "Objects of type 'queue'"
    assert lines[1].split() == ["name", "durable", "autoDelete"]
    assert any(line.split() == [queue, "False", "False"] for line in lines)
    shown = config.lines("list", "binding", "--show-property", "bindingKey", "--show-property", "nonsense")
    assert [queue, "n/a"] in [line.split() for line in shown]
    (broker_object,) = config.json("list", "broker")
    assert broker_object["kind"] == "broker"
    assert broker_object["queueCount"] >= 1
    assert {"kind", "object", "name"} == config.json("list", "queue", "--show-property", "name")[0].keys()
    assert config.lines("list", "system")[1].split()[0] == "systemId"
    assert "no class nonsense" in config.fails("list", "nonsense")


def test_an_object_of_another_type(config: Runs) -> None:
    assert "unknown object type" in config.fails("add", "nonsense", "name", "--argument", "a=1")
    config.text("add", "topic", "t1", "--argument", "exchange-type=fanout")
    assert any(line.split()[:2] == ["fanout", "t1"] for line in config.lines("exchanges"))
    config.text("del", "exchange", "t1")


def test_a_queue_that_exists(config: Runs, queue: str) -> None:
    assert config.fails("add", "queue", queue) == f"qpid-config: Object already exists: {queue}\n"


def test_access_rules_are_read_again(config: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the broker has no ACL file" in config.fails("reload-acl")
    monkeypatch.setattr("qstore.tools.qpid_config._ACL", "no.such.package")
    assert config.fails("reload-acl") == "qpid-config: the broker has no access rules (ACL)\n"


def test_log_level_is_set_and_shown(config: Runs) -> None:
    config.text("log", "info+")
    assert config.text("log") == "Log level: info+\n"
    config.text("log", "notice+")


def test_no_broker() -> None:
    runs = Runs(qpid_config.command, "127.0.0.1:1")
    assert runs.fails("queues") == "qpid-config: 127.0.0.1:1: connection refused: is a broker running there?\n"


def test_the_table_of_options_has_each_once() -> None:
    assert len({option.name for option in OPTIONS}) == len({option.argument for option in OPTIONS}) == len(OPTIONS)
