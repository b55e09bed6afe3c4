"""`qstore-shell` on a running broker: what it shows is what clients see, what it changes too."""

from __future__ import annotations

import itertools
import shlex

import pytest

from qstore.broker.client import Connection, Message, Session, TransactionAborted
from qstore.formats.amqp_0_10.structs import BranchId
from qstore.tools.console.broker import BrokerOptions
from qstore.tools.store_shell.broker import BrokerPlace
from qstore.tools.store_shell.place import read_wanted
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import RunningBroker, one_broker
from tests.tools.shell_runs import bodies, fails, objects, shell, text

broker = pytest.fixture(one_broker, scope="module")


@pytest.fixture
def url(broker: RunningBroker) -> str:
    return f"amqp://127.0.0.1:{broker.port}"


@pytest.fixture
def queue(url: str, request: pytest.FixtureRequest) -> str:
    """A queue with six messages, and another one, its name with `.old`."""
    name = request.node.name
    with Connection(url.removeprefix("amqp://")) as connection:
        session = connection.session()
        for each in (name, f"{name}.old"):
            session.invoke("queue.declare", queue=each, durable=True)
        session.invoke("exchange.bind", exchange="amq.topic", queue=name, binding_key=f"{name}.#")
        sender = session.sender(name)
        for number in range(6):
            message = Message(
                f"{number}", properties={"n": number}, durable=True, priority=number, subject=f"s{number}"
            )
            sender.send(message)
    return name


def test_lists(url: str, queue: str) -> None:
    found = {line["name"]: line for line in objects(url, "list queues")}
    assert (found[queue]["messages"], found[f"{queue}.old"]["messages"]) == (6, 0)
    assert queue in [line["name"] for line in objects(url, "list queues amq.topic")]
    assert f"{queue}.old" not in [line["name"] for line in objects(url, "list queues amq.topic")]
    assert any(line["key"] == f"{queue}.#" for line in objects(url, "list bindings amq.topic"))
    assert queue in [line["queue"] for line in objects(url, "list journals")]
    for line in objects(url, "list queues; list bindings"):
        assert "console." not in line["name" if line["kind"] == "queue" else "queue"]  # the shell's own queue
    shown = text(url, "list all", f"select {queue}; show; dump show=all")
    assert "amq.topic" in shown
    assert "header n: 0" in shown


def test_selections_and_changes(url: str, queue: str) -> None:
    old = f"{queue}.old"
    before = {line["body"]: line for line in objects(url, f"dump {queue}")}
    text(url, f"copy {queue} first=1 to {old}")
    text(url, f"copy {queue} to {old} where n = 5")
    text(url, f"move {queue} to {old} where n IN (2, 3)")
    text(url, f"move {queue} first=1 to {old}")
    assert bodies(url, queue) == ["1", "4", "5"]
    assert bodies(url, old) == ["0", "5", "2", "3", "0"]
    for line in objects(url, f"dump {old}"):
        for field in ("headers", "header_types", "priority", "delivery_mode", "properties", "body_sha256"):
            assert line[field] == before[line["body"]][field]
    assert "--yes permits it" in fails(url, f"delete {old} where n = 5")
    text(url, f"delete {old} where n = 5; delete {old} first=1", options=("--yes",))
    assert bodies(url, old) == ["2", "3", "0"]
    text(url, f"move {old} to {queue}")
    assert bodies(url, queue) == ["1", "4", "5", "2", "3", "0"]
    (change,) = objects(url, f"purge {queue}", options=("--yes",))
    assert (change["messages"], change["done"]) == (6, True)
    text(url, f"inject {old} body=new header.region=EU priority=3")
    (line,) = objects(url, f"dump {old} where region = 'EU'")
    assert (line["body"], line["priority"], line["delivery_mode"]) == ("new", 3, 2)


def test_columns_are_as_wide_as_their_cells(url: str, queue: str) -> None:
    head, *rows = text(url, "list queues").splitlines()
    end = head.index("MESSAGES") + len("MESSAGES")
    assert {row.split()[0]: row[end - 1] for row in rows if queue in row} == {queue: "6", f"{queue}.old": "0"}


def test_messages_that_come_after_the_plan_stay(url: str, queue: str) -> None:
    place = BrokerPlace(BrokerOptions(url, {}, PATIENCE_SECONDS), url)
    wanted = read_wanted([queue], None, None)
    moved, purged = place.plan_copy(wanted, f"{queue}.old", removes=True), place.plan_removal(wanted, "purge")
    text(url, f"inject {queue} body=6")
    moved.apply(lambda _: None)
    assert (bodies(url, queue), bodies(url, f"{queue}.old")) == (["6"], list("012345"))
    text(url, f"move {queue}.old to {queue}")
    purged.apply(lambda _: None)
    assert bodies(url, queue) == ["5"]
    place.close()


def test_any_name_of_a_queue(url: str, queue: str) -> None:
    """A number sign, slashes and quotes have a meaning in the client's addresses, and none here."""
    names = [f"{queue}{mark}" for mark in ("#", "/x", ";y", "it's", '"')]
    with Connection(url.removeprefix("amqp://")) as connection:
        for name in names:
            connection.session().invoke("queue.declare", queue=name, durable=True)
    for name in names:
        quoted = shlex.quote(name)
        text(url, f"inject {quoted} body=new", f"copy {queue} to {quoted} where n = 1")
        assert bodies(url, quoted) == ["new", "1"]
        text(url, f"move {quoted} to {queue}.old where n = 1")
        assert (bodies(url, quoted), bodies(url, f"{queue}.old")) == (["new"], ["1"])
        text(url, f"purge {queue}.old", options=("--yes",))


def test_a_move_that_ends_early_loses_and_doubles_nothing(
    url: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, commit = itertools.count(), Session.commit

    def second_fails(session: Session) -> None:
        if next(commits) == 1:
            raise TransactionAborted("it is rolled back")
        commit(session)

    monkeypatch.setattr("qstore.tools.store_shell.broker.PORTION", 2)
    monkeypatch.setattr(Session, "commit", second_fails)
    assert "it is rolled back" in fails(url, f"move {queue} to {queue}.old where n >= 1")
    assert (bodies(url, queue), bodies(url, f"{queue}.old")) == (["0", "3", "4", "5"], ["1", "2"])
    text(url, f"move {queue} to {queue}.old where n >= 1")
    assert (bodies(url, queue), bodies(url, f"{queue}.old")) == (["0"], ["1", "2", "3", "4", "5"])


def test_branches_in_doubt(url: str, queue: str) -> None:
    with Connection(url.removeprefix("amqp://")) as connection:
        session = connection.session()
        xid = BranchId(7, b"g", b"b")
        session.invoke("dtx.select")
        session.invoke("dtx.start", xid=xid)
        session.sender(f"{queue}.old").send(Message("in doubt", durable=True))
        session.invoke("dtx.end", xid=xid)
        session.invoke("dtx.prepare", xid=xid)
    (found,) = objects(url, "list transactions")
    assert (found["state"], found["format"], found["global_id"]) == ("in-doubt", 7, b"g".hex())
    assert "this cannot be undone" in fails(url, f"resolve {found['xid']} commit")
    text(url, f"resolve {found['xid']} commit", options=("--yes",))
    assert objects(url, "list transactions") == []
    assert bodies(url, f"{queue}.old") == ["in doubt"]


def test_invalid_commands_are_refused(url: str, queue: str, broker: RunningBroker) -> None:
    for line, reported in (
        (f"show {queue} 0x10", "does not show record ids"),
        ("select nosuch", 'there is no queue "nosuch"'),
        (f"move {queue} to nosuch", 'there is no queue "nosuch"'),
        (f"move {queue} to {queue}", "both source and destination"),
        ("list queues nosuch", "there is no exchange"),
        ("inject quarantine all", "has to be stopped"),
        ("resolve 12 commit", "there is no transaction 12"),
    ):
        assert reported in fails(url, line), line
    data = broker.data_directory
    assert "has this store open: stop the broker first" in fails(data, "list all", code=2)
    assert shell("amqp://127.0.0.1:1", "list all").exit_code == 2
