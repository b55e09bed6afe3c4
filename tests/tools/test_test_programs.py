"""`qpid-txtest`, `lvqtest`, `qpid-topic-listener` and `qpid-topic-publisher`: what they do and print."""

from __future__ import annotations

import re
import subprocess
import uuid
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner, Result

from qstore.broker.client import Connection, Message
from qstore.formats.amqp_0_10.structs import BranchId
from qstore.tools import lvqtest, qpid_topic_publisher, qpid_txtest
from tests.support.forked import Forked
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import RunningBroker, one_broker
from tests.tools.test_commands import command

Run = Callable[..., Result]
broker = pytest.fixture(one_broker, scope="module")


@pytest.fixture
def url(broker: RunningBroker) -> str:
    return f"127.0.0.1:{broker.port}"


@pytest.fixture
def run(url: str) -> Run:
    def invoke(made: click.Command, *arguments: str) -> Result:
        return CliRunner().invoke(made, ["-b", url, *arguments])

    return invoke


# ---- qpid-txtest ----


@pytest.mark.parametrize("dtx", ["no", "yes"])
def test_all_messages_are_there_after_transactions(run: Run, dtx: str) -> None:
    base = f"tx-{uuid.uuid4()}"
    more = ("--queues", "3", "--total-messages", "30", "--tx-count", "10", "--messages-per-tx", "3", "--dtx", dtx)
    result = run(qpid_txtest.command, "--queue-base-name", base, *more)
    assert (result.exit_code, result.stderr) == (0, "")
    *moved, _, _, _, last = result.stdout.splitlines()
    assert moved == [f"Transferring from {base}-{source} to {base}-{source % 3 + 1}" for source in (1, 2, 3)]
    drained = re.findall(r"Drained (\d+) messages from", result.stdout)
    assert (len(drained), sum(map(int, drained))) == (3, 30)
    assert last == "All expected messages were retrieved."


def test_missing_and_extra_messages_are_told(run: Run, url: str) -> None:
    base = f"tx-{uuid.uuid4()}"
    run(qpid_txtest.command, "--queue-base-name", base, "--check", "no", "--total-messages", "3", "--transfer", "no")
    with Connection(url) as connection:
        session = connection.session()
        message = session.receiver(f"{base}-1").fetch(PATIENCE_SECONDS)
        session.sender(f"{base}-1").send(Message(message.body, correlation_id="other"))
        session.acknowledge()
    check = ("--init", "no", "--transfer", "no", "--quiet", "--total-messages", "3")
    result = run(qpid_txtest.command, "--queue-base-name", base, *check)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "The following ids were missing:", "    'msg-1'", "The following extra ids were encountered:", "    'other'",
    ]  # fmt: skip


def test_branches_in_doubt_are_decided_in_turns(run: Run, url: str) -> None:
    base = f"tx-{uuid.uuid4()}"
    options = ("--queue-base-name", base, "--total-messages", "4")
    run(qpid_txtest.command, *options, "--check", "no", "--transfer", "no")
    with Connection(url) as connection:
        session = connection.session()
        session.invoke("dtx.select")
        receiver, sender = session.receiver(f"{base}-1"), session.sender(f"{base}-2")
        for branch in range(2):
            xid = BranchId(qpid_txtest._FORMAT, b"g%d" % branch, f"{base}-1".encode())
            session.invoke("dtx.start", xid=xid)
            sender.send(receiver.fetch(PATIENCE_SECONDS), sync=False)
            session.acknowledge(sync=False)
            session.invoke("dtx.end", xid=xid)
            session.invoke("dtx.prepare", xid=xid)
    result = run(qpid_txtest.command, *options, "--init", "no", "--transfer", "no", "--dtx", "yes")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "Recovering DTX in-doubt transaction(s):"
    assert [line.split()[1] for line in lines[1:3]] == ["committing", "aborting"]
    assert lines[3:] == [
        f"Drained 3 messages from {base}-1", f"Drained 1 messages from {base}-2",
        "All expected messages were retrieved.",
    ]  # fmt: skip


def test_an_interrupted_transfer_is_told(run: Run) -> None:
    base = f"tx-{uuid.uuid4()}"
    result = run(qpid_txtest.command, "--queue-base-name", base, "--init", "no", "--quiet")
    assert result.exit_code == 1
    assert f"qpid-txtest: Transfer interrupted: no such queue: '{base}-1'" in result.stderr


def test_an_agent_that_fails_ends_the_others(run: Run, url: str) -> None:
    base = f"tx-{uuid.uuid4()}"
    options = ("--queue-base-name", base, "--queues", "3", "--quiet")
    assert run(qpid_txtest.command, *options, "--transfer", "no", "--check", "no").exit_code == 0
    with Connection(url) as connection:
        connection.session().invoke("queue.delete", queue=f"{base}-3")
    result = subprocess.run(
        [*command("qpid-txtest"), "-b", url, *options, "--init", "no", "--check", "no", "--tx-count", "100"],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (1, "")
    first, *others = result.stderr.splitlines()
    assert first == "qpid-txtest: Transfer interrupted: another agent has failed"
    assert len(others) == 2
    assert all(f"Transfer interrupted: no such queue: '{base}-3'" in other for other in others)


def test_a_transaction_that_would_never_end_is_a_usage_error(run: Run) -> None:
    result = run(qpid_txtest.command, "--messages-per-tx", "11")
    assert result.exit_code == 2
    assert "--messages-per-tx is greater than --total-messages" in result.stderr


# ---- lvqtest ----


def test_output_that_cannot_be_written_fails_in_one_line(url: str) -> None:
    arguments = [*command("lvqtest"), "-b", url, "--mode", "write", "--queue", f"lvq-{uuid.uuid4()}"]
    subprocess.run([*arguments, "--mode", "create_lvq"], check=True)
    with open("/dev/full", "w") as full:
        result = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (1, "lvqtest: standard output: No space left on device\n")


def test_last_value_queues_as_the_manual_shows_them(run: Run) -> None:
    queue = ("--queue", f"lvq-{uuid.uuid4()}")

    def lines(mode: str) -> list[str]:
        result = run(lvqtest.command, "--mode", mode, *queue)
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout.splitlines()

    assert lines("create_lvq") == []
    written = lines("write")
    assert [line.split("=")[0] for line in written] == [
        f"Sending Data: {key}" for key in ("key1", "key2", "key3", "key1", "last")
    ]
    values = [line.split("=")[1] for line in written]
    received = [f"Receiving Data:{value}" for value in (*values[:3], "last")]
    assert lines("browse") == received
    lines("write")
    assert lines("browse") == received
    assert lines("consume") == received * 2
    assert lines("create_lvq_no_browse") == []


def test_last_value_queues_that_browsers_do_not_keep(run: Run) -> None:
    queue = ("--queue", f"lvq-{uuid.uuid4()}")
    for mode in ("create_lvq_no_browse", "write", "write", "browse", "write"):
        assert run(lvqtest.command, "--mode", mode, *queue).exit_code == 0
    assert len(run(lvqtest.command, "--mode", "consume", *queue).stdout.splitlines()) == 4
    assert "no such queue: 'nosuch'" in run(lvqtest.command, "--mode", "write", "--queue", "nosuch").stderr


# ---- qpid-topic-listener and -publisher ----


@pytest.mark.parametrize("more", [(), ("--transactional", "yes"), ("--ack", "7", "--durable", "yes")])
def test_topics(run: Run, url: str, more: tuple[str, ...]) -> None:
    status = ("--statusqueue", f"the listeners' {uuid.uuid4()}")
    listeners = [
        Forked(
            [*command("qpid-topic-listener"), "-b", url, *status, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    batches = ("--subscribers", "2", "--messages", "1200", "--batches", "2", "--verbose")
    result = run(qpid_topic_publisher.command, *status, *batches, *more)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [re.sub(r"\d+ ms", "T ms", re.sub(r"=\d+|\d+ms", "", line)) for line in lines] == [
        "Received report: Received 1200 messages in T ms. (1 remaining.)",
        "Received report: Received 1200 messages in T ms. (0 remaining.)",
        "Completed 1 of 2 in ",
        "Received report: Received 1200 messages in T ms. (1 remaining.)",
        "Received report: Received 1200 messages in T ms. (0 remaining.)",
        "Completed 2 of 2 in ",
        "2 batches completed. avg, max, min",
    ]
    for listener in listeners:
        assert listener.stdout is not None
        assert listener.stderr is not None
        heard = ["Received 1000 messages.", "Batch ended: sending report."]
        assert listener.stdout.read().decode().splitlines() == ["topic_listener: listening...", *heard, *heard]
        assert (listener.stderr.read(), listener.wait(PATIENCE_SECONDS)) == (b"", 0)
        listener.stdout.close()
        listener.stderr.close()
