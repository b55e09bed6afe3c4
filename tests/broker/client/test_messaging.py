"""The Messaging API against a running broker, by both faces."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from qstore.broker.client import (
    AssertionFailed,
    ContentError,
    Empty,
    LinkClosedError,
    Message,
    NotFound,
    SessionClosedError,
    SessionError,
    Timeout,
    TransactionError,
)
from qstore.broker.client.address import queue_address
from tests.broker.client.faces import OVER_1_0, Face, only_0_10
from tests.support.processes import PATIENCE_SECONDS, stop_process
from tests.support.running_broker import RunningBroker


@pytest.fixture
def name() -> str:
    return f"q-{uuid.uuid4()}"


def drain(receiver: Any) -> list[Any]:
    found = []
    while True:
        try:
            found.append(receiver.fetch(timeout=0).content)
        except Empty:
            return found


def wait_until(session: Any, is_so: Callable[[], bool]) -> None:
    """Let the broker do something, until a condition is met."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        session.sync()
        time.sleep(0.01)


@pytest.mark.parametrize("capacity", [0, 1, 10])
def test_queue(session: Any, name: str, capacity: int) -> None:
    sender = session.sender(f"{name}; {{create: always}}")
    receiver = session.receiver(name, capacity=capacity)
    for number in range(25):
        sender.send(Message(f"m{number}", properties={"n": number}, durable=number % 2 == 0), sync=number % 3 == 0)
    sender.sync()
    assert sender.unsettled() == 0
    messages = [receiver.fetch(timeout=PATIENCE_SECONDS) for _ in range(25)]
    assert [message.content for message in messages] == [f"m{number}" for number in range(25)]
    assert [message.properties["n"] for message in messages] == list(range(25))
    assert not any(message.redelivered for message in messages)
    assert drain(receiver) == []
    session.acknowledge()
    receiver.close()
    assert drain(session.receiver(name)) == []


@pytest.mark.parametrize("content", ["text", b"\0\xff", {"a": [1, {"b": None}]}, [1, "two"], "", "x" * 1_000_000])
def test_contents(session: Any, name: str, content: Any) -> None:
    session.sender(f"{name}; {{create: always}}").send(content)
    assert session.receiver(name).fetch(timeout=PATIENCE_SECONDS).content == content


@only_0_10
def test_no_such_node_leaves_the_session_alone(session: Any, name: str) -> None:
    with pytest.raises(NotFound, match=name):
        session.sender(name)
    with pytest.raises(NotFound, match="no such exchange"):
        session.receiver(f"{name}; {{node: {{type: topic}}}}")
    with pytest.raises(NotFound):
        session.receiver(f"{name}; {{create: sender}}")
    session.sender(f"{name}; {{create: sender}}").send("x")


@only_0_10
def test_names_that_are_too_long_leave_the_session_alone(session: Any, name: str) -> None:
    long = "x" * 256
    for address in (long, f"amq.topic/{long}"):
        with pytest.raises(ContentError, match="256 bytes are too long"):
            session.receiver(address)
    with pytest.raises(ContentError, match="256 bytes are too long"):
        session.sender(long)
    session.sender(f"{name}; {{create: always}}").send("still there")
    assert drain(session.receiver(name)) == ["still there"]


@only_0_10
def test_queue_with_options(session: Any, name: str) -> None:
    declare = "x-declare: {arguments: {'qpid.max_count': 5}, alternate-exchange: amq.fanout}"
    session.sender(f"{name}; {{create: always, node: {{durable: true, {declare}}}}}")
    session.sender(f"{name}; {{assert: always, node: {{type: queue, durable: true, {declare}}}}}")
    for asserted in (
        "durable: false",
        "x-declare: {exclusive: true}",
        "x-declare: {arguments: {'qpid.max_count': 6}}",
        "x-declare: {alternate-exchange: amq.topic}",
        "x-bindings: [{exchange: amq.topic, key: k}]",
    ):
        with pytest.raises(AssertionFailed, match=name):
            session.sender(f"{name}; {{assert: always, node: {{{asserted}}}}}")


@only_0_10
def test_bindings_of_a_node(session: Any, name: str) -> None:
    bindings = "node: {x-bindings: [{exchange: amq.direct, key: my-key}]}"
    receiver = session.receiver(f"{name}; {{create: always, {bindings}}}")
    session.sender("amq.direct/my-key").send("bound")
    assert receiver.fetch(timeout=PATIENCE_SECONDS).content == "bound"
    session.sender(f"{name}; {{assert: always, {bindings}}}")


@only_0_10
def test_bindings_of_a_link(session: Any, name: str) -> None:
    address = f"{name}; {{create: always, link: {{x-bindings: [{{exchange: amq.direct, key: {name}}}]}}}}"
    receiver = session.receiver(address)
    sender = session.sender(f"amq.direct/{name}")
    sender.send("one")
    assert receiver.fetch(timeout=PATIENCE_SECONDS).content == "one"
    receiver.close()
    sender.send("two")
    assert drain(session.receiver(name)) == []


@only_0_10
def test_deleting(session: Any, name: str) -> None:
    sender = session.sender(f"{name}; {{create: always, delete: always}}")
    receiver = session.receiver(f"{name}; {{delete: receiver}}")
    receiver.close()
    with pytest.raises(NotFound):
        session.receiver(name)
    sender.close()  # it is gone, which is not held against anybody
    exchange = session.sender(f"{name}; {{create: always, delete: always, node: {{type: topic}}}}")
    session.receiver(f"{name}; {{assert: always, node: {{type: topic}}}}").close()
    exchange.close()
    with pytest.raises(NotFound):
        session.receiver(name)


@pytest.mark.parametrize(
    ("exchange", "pattern", "sent", "expected"),
    [
        ("amq.topic", "/usa.#", ["usa", "usa.news", "europe.news", "usa.news.today"], [0, 1, 3]),
        ("amq.topic", "/*.news", ["usa", "usa.news", "europe.news", "usa.news.today"], [1, 2]),
        ("amq.topic", "", ["usa", "usa.news"], [0, 1]),
        ("amq.direct", "/usa", ["usa", "usa.news"], [0]),
        ("amq.fanout", "", ["usa", "usa.news"], [0, 1]),
        ("amq.match", "/usa", ["usa", "usa.news"], [0]),
        ("amq.match", "", ["usa", "usa.news"], [0, 1]),
    ],
)
def test_exchanges(face: Face, session: Any, exchange: str, pattern: str, sent: list[str], expected: list[int]) -> None:
    if face.name == OVER_1_0 and exchange == "amq.match" and pattern:
        expected = [0, 1]  # the subject is the key of the binding there, which such an exchange ignores
    receiver = session.receiver(exchange + pattern, capacity=5)
    sender = session.sender(exchange)
    for number, subject in enumerate(sent):
        sender.send(Message(str(number), subject=subject))
    assert drain(receiver) == [str(number) for number in expected]
    receiver.close()
    sender.send(Message("after", subject=sent[0]))


def test_subjects(session: Any, name: str) -> None:
    sender = session.sender(f"{name}/default; {{create: always}}")
    sender.send("x")
    sender.send(Message("y", subject="own"))
    receiver = session.receiver(name)
    assert [receiver.fetch(timeout=PATIENCE_SECONDS).subject for _ in range(2)] == ["default", "own"]


@only_0_10
def test_subscription_queue_with_name(session: Any, name: str) -> None:
    receiver = session.receiver(
        f"amq.topic/{name}; {{link: {{name: {name}, x-declare: {{auto-delete: false, exclusive: false}}}}}}"
    )
    session.sender("amq.topic").send(Message("kept", subject=name))
    browser = session.receiver(f"{name}; {{mode: browse}}")
    assert drain(browser) == ["kept"]
    browser.close()
    receiver.close()
    with pytest.raises(NotFound):
        session.receiver(name)


def test_request_and_response(session: Any, name: str) -> None:
    requests = session.receiver(f"{name}; {{create: always}}")
    responses = session.receiver("#")
    assert "#" not in responses.address
    session.sender(name).send(Message("ping", reply_to=responses.address, correlation_id="7"))
    request = requests.fetch(timeout=PATIENCE_SECONDS)
    session.sender(request.reply_to).send(Message("pong", correlation_id=request.correlation_id))
    response = responses.fetch(timeout=PATIENCE_SECONDS)
    assert (response.content, response.correlation_id) == ("pong", "7")


@only_0_10
def test_a_queue_with_a_number_sign_in_its_name(session: Any, name: str) -> None:
    queue = f"{name}#1"
    session.invoke("queue.declare", queue=queue)
    sender, receiver = session.sender(queue_address(queue)), session.receiver(queue_address(queue))
    sender.send("there")
    assert receiver.fetch(timeout=PATIENCE_SECONDS).content == "there"
    session.acknowledge()
    assert session.invoke("queue.query", queue=queue)["queue"] == queue
    with pytest.raises(NotFound):
        session.sender(queue_address(f"{name}#2"))


def test_browsing(session: Any, name: str) -> None:
    sender = session.sender(f"{name}; {{create: always}}")
    for content in ("a", "b", "c"):
        sender.send(content)
    for capacity in (0, 2):
        browser = session.receiver(f"{name}; {{mode: browse}}", capacity=capacity)
        assert drain(browser) == ["a", "b", "c"]
        session.acknowledge()
        browser.close()
    assert drain(session.receiver(name)) == ["a", "b", "c"]


def test_settling_one_by_one(connection: Any, session: Any, name: str) -> None:
    sender = session.sender(f"{name}; {{create: always}}")
    for content in "abcde":
        sender.send(content)
    receiver = session.receiver(name, capacity=2)
    messages = [receiver.fetch(timeout=PATIENCE_SECONDS) for _ in range(4)]
    session.acknowledge(messages[2])
    session.acknowledge(messages[2])  # has been said
    session.reject(messages[0], sync=False)
    session.release(messages[3])
    session.acknowledge(messages[1], sync=False)
    session.sync()
    session.close()
    others = connection.session().receiver(name)
    messages = [others.fetch(timeout=PATIENCE_SECONDS) for _ in range(2)]
    assert [(message.content, message.redelivered) for message in messages] == [("d", True), ("e", False)]


@only_0_10
def test_unacknowledged_message_is_redelivered(connection: Any, session: Any, name: str) -> None:
    sender = session.sender(f"{name}; {{create: always}}")
    for content in "abc":
        sender.send(content)
    receiver = session.receiver(name, capacity=10)
    receiver.fetch(timeout=PATIENCE_SECONDS)
    receiver.close()  # which returns b and c, and leaves a to the session
    assert drain(connection.session().receiver(name)) == ["b", "c"]
    session.close()
    again = connection.session().receiver(name).fetch(timeout=PATIENCE_SECONDS)
    assert (again.content, again.redelivered) == ("a", True)


def test_at_most_once(connection: Any, session: Any, name: str) -> None:
    sender = session.sender(f"{name}; {{create: always, link: {{reliability: at-most-once}}}}")
    sender.send("a", sync=False)
    sender.send("b", sync=False)
    assert sender.unsettled() == 0
    session.sync()
    receiver = session.receiver(f"{name}; {{link: {{reliability: unreliable}}}}")
    assert receiver.fetch(timeout=PATIENCE_SECONDS).content == "a"
    session.close()
    assert drain(connection.session().receiver(name)) == ["b"]


def test_the_capacity_of_a_receiver_can_be_changed(session: Any, name: str) -> None:
    sender = session.sender(f"{name}; {{create: always}}")
    for number in range(30):
        sender.send(str(number), sync=False)
    sender.sync()
    receiver = session.receiver(name)
    assert receiver.fetch(PATIENCE_SECONDS).content == "0"
    receiver.capacity = 10
    assert receiver.capacity == 10
    assert receiver.fetch(PATIENCE_SECONDS).content == "1"
    wait_until(session, lambda: 7 <= receiver.available() <= 10)  # credit for what was fetched may come later
    receiver.capacity = 0
    assert [receiver.fetch(PATIENCE_SECONDS).content for _ in range(20)] == [str(number) for number in range(2, 22)]
    session.sync()
    assert receiver.available() == 0
    receiver.capacity = 3
    assert [receiver.fetch(PATIENCE_SECONDS).content for _ in range(8)] == [str(number) for number in range(22, 30)]
    session.acknowledge()
    receiver.close()
    assert drain(session.receiver(name)) == []


def test_the_capacity_of_a_sender_can_be_changed(session: Any, name: str) -> None:
    sender = session.sender(f"{name}; {{create: always}}", capacity=1000)
    for _ in range(5):
        sender.send("x", sync=False)
    sender.capacity = 1
    assert (sender.capacity, sender.available() <= 1) == (1, True)
    for _ in range(20):
        sender.send("x", sync=False)
        assert sender.unsettled() <= 1
    sender.capacity = 100
    sender.sync()
    assert sender.available() == 100
    assert len(drain(session.receiver(name))) == 25


def test_links_are_found_by_their_names(session: Any, name: str) -> None:
    sender = session.sender(f"{name}; {{create: always}}")
    receiver, other = session.receiver(name), session.receiver(name)
    assert session.get_sender(name) == sender
    assert session.get_receiver(name) == receiver
    assert (sender.name, receiver.name) == (name, name)
    receiver.close()
    assert session.get_receiver(name) == other
    other.close()
    sender.close()
    for find in (session.get_sender, session.get_receiver):
        with pytest.raises(KeyError):
            find(name)


def test_acknowledgements_that_the_broker_has_not_confirmed(session: Any, name: str, broker: RunningBroker) -> None:
    sender = session.sender(f"{name}; {{create: always, node: {{durable: true}}}}")
    for number in range(10):
        sender.send(Message(str(number), durable=True))
    receiver, other = session.receiver(name), session.receiver(name)
    messages = [receiver.fetch(PATIENCE_SECONDS) for _ in range(4)]
    other.fetch(PATIENCE_SECONDS)
    assert receiver.unsettled() == 0
    stop_process(broker.pid)
    try:
        session.acknowledge(messages[0], sync=False)
        session.acknowledge(sync=False)
        assert (receiver.unsettled(), other.unsettled()) == (4, 1)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    session.sync()
    assert (receiver.unsettled(), other.unsettled()) == (0, 0)


def test_acknowledging_up_to_a_message(connection: Any, session: Any, name: str) -> None:
    sender = session.sender(f"{name}; {{create: always}}")
    for number in range(6):
        sender.send(str(number))
    receiver, other = session.receiver(name), session.receiver(name)
    receivers = (receiver, other, receiver, other, receiver)
    messages = [each.fetch(PATIENCE_SECONDS) for each in receivers]
    session.acknowledge(messages[1])
    session.acknowledge(messages[3], up_to=True)
    session.acknowledge(messages[3], up_to=True)  # has no effect
    session.close()
    assert sorted(drain(connection.session().receiver(name))) == ["4", "5"]


@only_0_10
def test_binding_urls(connection: Any, session: Any, name: str) -> None:
    receiver = session.receiver(f"direct://amq.direct//{name}?routingkey='k'&autodelete='true'")
    session.sender(f"direct://amq.direct//{name}?routingkey='k'").send("one")
    session.sender("amq.direct/k").send("two")
    assert [receiver.fetch(PATIENCE_SECONDS).content for _ in range(2)] == ["one", "two"]
    kept = connection.session()
    kept.receiver(f"topic://amq.topic/{name}.*/?subscription='true'&clientid='me'").close()
    session.sender(f"topic://amq.topic/{name}.a/").send("later")
    again = kept.receiver(f"topic://amq.topic/{name}.*/?subscription='true'&clientid='me'")
    assert again.fetch(PATIENCE_SECONDS).content == "later"
    again.close()
    kept.invoke("queue.delete", queue=f"me:{name}.*")


def test_receivers_have_the_capacity_of_the_connection(broker: Any, face: Any, name: str) -> None:
    session = face.connect(f"amqp://127.0.0.1:{broker.port}/?receiver_capacity=7").session()
    session.sender(f"{name}; {{create: always}}")
    assert session.receiver(name).capacity == 7
    assert session.receiver(name, capacity=0).capacity == 0


def send_many(sender: Any, **options: Any) -> None:
    for _ in range(9):
        sender.send("x", **options)


def test_an_option_without_effect_is_warned_of_once(session: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    sender = session.sender(f"{name}; {{create: always, mode: browse}}")
    sender.send("x")
    (line,) = [each.getMessage() for each in caplog.records if each.name == "qstore.client"]
    assert line.endswith(": mode has no effect: it is for receivers")


def test_a_queue_that_controls_the_flow_delays_and_fails_sending(
    broker: Any, face: Any, session: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("qstore.broker.client.links.WARN_SECONDS", 0.1)
    arguments = "{qpid.flow_stop_count: 3, qpid.flow_resume_count: 1}"
    session.sender(f"{name}; {{create: always, node: {{x-declare: {{arguments: {arguments}}}}}}}")
    limited = face.connect(f"127.0.0.1:{broker.port}", send_timeout=0.95).session()
    sender = limited.sender(name)
    with pytest.raises(Timeout, match=r" within 0\.95 seconds"):
        send_many(sender)
    texts = [each.getMessage() for each in caplog.records if each.name == "qstore.client"]
    delayed = "A message to '{}' is delayed by {} seconds: the broker controls the flow"
    expected = [delayed.format(name, f"0.{seconds}") for seconds in range(1, 10)]
    assert texts
    assert texts == expected[: len(texts)]  # a busy machine has no time for all of them
    with pytest.raises(Timeout, match=r"within 0\.2 seconds"):
        send_many(sender, timeout=0.2)
    assert len(drain(session.receiver(name))) >= 4


def test_next_receiver(session: Any, name: str) -> None:
    receivers = [session.receiver(f"{name}{each}; {{create: always}}", capacity=each) for each in range(2)]
    with pytest.raises(Empty):
        session.next_receiver(timeout=0)
    for each in (1, 0, 1):
        session.sender(f"{name}{each}").send(str(each))
        found = session.next_receiver(timeout=PATIENCE_SECONDS)
        assert found == receivers[each]
        assert found.fetch(timeout=0).content == str(each)


# ----------------------------------------------------------------------------------------- transactions


def test_commit_and_rollback(connection: Any, session: Any, name: str) -> None:
    work = connection.session(transactional=True)
    sender = work.sender(f"{name}; {{create: always, node: {{durable: true}}}}")
    outside = session.receiver(name)
    sender.send(Message("lost", durable=True))
    assert drain(outside) == []
    work.rollback()
    for content in "abc":
        sender.send(Message(content, durable=True))
    work.commit()
    assert drain(session.receiver(f"{name}; {{mode: browse}}")) == ["a", "b", "c"]
    outside.close()

    receiver = work.receiver(name, capacity=2)
    assert receiver.fetch(timeout=PATIENCE_SECONDS).content == "a"
    work.acknowledge()
    assert receiver.fetch(timeout=PATIENCE_SECONDS).content == "b"
    work.rollback()
    messages = [receiver.fetch(timeout=PATIENCE_SECONDS) for _ in range(3)]
    assert [message.content for message in messages] == ["a", "b", "c"]
    assert [message.redelivered for message in messages] == [True, True, False]
    work.acknowledge(messages[0])
    work.commit()
    work.rollback()
    assert [receiver.fetch(timeout=PATIENCE_SECONDS).content for _ in range(2)] == ["b", "c"]
    work.acknowledge()
    work.commit()
    assert drain(receiver) == []
    work.close()
    assert drain(session.receiver(name)) == []


def test_only_transactional_sessions_commit(session: Any) -> None:
    with pytest.raises(TransactionError):
        session.commit()
    with pytest.raises(TransactionError):
        session.rollback()


# --------------------------------------------------------------------------------------------- the end


@only_0_10
def test_a_session_error_ends_the_session_only(connection: Any, session: Any, name: str) -> None:
    sender = session.sender(f"{name}; {{create: always, node: {{type: topic}}}}")
    other = connection.session()
    other.sender(f"{name}; {{delete: always}}").close()
    with pytest.raises(SessionError, match="not-found") as caught:
        sender.send(Message("nowhere", subject="x"))
    assert caught.value.code == 404
    with pytest.raises(SessionError, match="not-found"):
        session.sync()
    with pytest.raises(SessionError, match="not-found"):
        sender.send("x", sync=False)
    other.sync()
    assert connection.is_open


@only_0_10
def test_exclusive_queues_are_locked(face: Any, broker: Any, session: Any, name: str) -> None:
    session.sender(f"{name}; {{create: always, node: {{x-declare: {{exclusive: true}}}}}}")
    other = face.connect(f"127.0.0.1:{broker.port}").session()
    with pytest.raises(SessionError) as caught:
        other.receiver(name)
    assert caught.value.code == 405


def test_closed_things_say_so(connection: Any, session: Any, name: str) -> None:
    sender = session.sender(f"{name}; {{create: always}}")
    receiver = session.receiver(name)
    sender.close()
    receiver.close()
    with pytest.raises(LinkClosedError):
        sender.send("x")
    with pytest.raises(LinkClosedError):
        receiver.fetch(timeout=0)
    session.close()
    with pytest.raises(SessionClosedError):
        session.sender(name)
    connection.close()
    assert not connection.is_open
    connection.open()
    assert drain(connection.session().receiver(name)) == []
