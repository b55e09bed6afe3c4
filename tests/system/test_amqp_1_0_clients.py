"""Qpid Proton, unchanged, against a real broker: AMQP 1.0, alone and with clients of the other protocols."""

from __future__ import annotations

import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner
from proton import ConnectionException, Data, Delivery, Event, Link, Terminus, Timeout, symbol
from proton import Message as ProtonMessage
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container, DurableSubscription, LinkOption, Selector
from proton.utils import BlockingConnection, LinkDetached, SyncRequestResponse

from qstore import Connection, Message
from qstore.broker.management.console import Console
from qstore.tools.qstore_passwd import command as qstore_passwd
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker, one_broker

broker = pytest.fixture(scope="module")(one_broker)


class Wants(LinkOption):
    """Capabilities that a link asks for."""

    def __init__(self, *capabilities: str) -> None:
        self._capabilities = capabilities

    def apply(self, link: Link) -> None:
        data = (link.target if link.is_sender else link.source).capabilities
        data.put_array(False, Data.SYMBOL)
        data.enter()
        for each in self._capabilities:
            data.put_symbol(symbol(each))
        data.exit()


DURABLE_QUEUE = Wants("create-on-demand", "queue", "durable")


@pytest.fixture
def queue() -> str:
    return f"queue-{uuid.uuid4()}"


def connect(broker: RunningBroker, **options: Any) -> BlockingConnection:
    return BlockingConnection(f"amqp://127.0.0.1:{broker.port}", timeout=PATIENCE_SECONDS, **options)


@pytest.fixture
def connection(broker: RunningBroker) -> Iterator[BlockingConnection]:
    found = connect(broker)
    yield found
    found.close()


@pytest.mark.core
def test_proton_sends_and_receives(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue, options=DURABLE_QUEUE)
    for number in range(20):
        sent = ProtonMessage(
            body={"number": number}, durable=True, id=uuid.uuid4(), subject="news", properties={"n": number},
            priority=7, content_type="text/x", correlation_id="c", reply_to="answers",
        )  # fmt: skip
        assert sender.send(sent).remote_state == Delivery.ACCEPTED
    receiver = connection.create_receiver(queue, credit=5)
    for number in range(20):
        found = receiver.receive(PATIENCE_SECONDS)
        assert (found.body, found.properties, found.subject) == ({"number": number}, {"n": number}, "news")
        assert (found.durable, found.priority, found.correlation_id) == (True, 7, "c")
        assert found.delivery_count == 0
        receiver.accept()


def test_outcomes_of_a_receiver(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue, options=DURABLE_QUEUE)
    sender.send(ProtonMessage(body="x"))
    receiver = connection.create_receiver(queue, credit=1)
    receiver.receive(PATIENCE_SECONDS)
    receiver.release(delivered=False)
    assert receiver.receive(PATIENCE_SECONDS).delivery_count == 0
    receiver.release(delivered=True)  # Proton does not say that the delivery has failed
    assert receiver.receive(PATIENCE_SECONDS).delivery_count == 0
    receiver.reject()
    receiver.close()
    sender.send(ProtonMessage(body="last"))
    receiver = connection.create_receiver(queue, credit=1)
    assert receiver.receive(PATIENCE_SECONDS).body == "last"


@pytest.mark.parametrize("size", [0, 1, 60_000, 5_000_000])
def test_messages_of_every_size(connection: BlockingConnection, queue: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sender = connection.create_sender(queue, options=DURABLE_QUEUE)
    sender.send(ProtonMessage(body=body, durable=True))
    receiver = connection.create_receiver(queue, credit=1)
    assert receiver.receive(PATIENCE_SECONDS).body == body
    receiver.accept()


def test_an_unknown_address_is_refused_with_its_condition(broker: RunningBroker) -> None:
    connection = connect(broker)
    with pytest.raises(LinkDetached) as refused:
        connection.create_sender("nowhere")
    assert refused.value.condition == "amqp:not-found"
    connection.close()


def test_topics_selectors_and_dynamic_nodes(connection: BlockingConnection) -> None:
    receiver = connection.create_receiver("amq.topic/a.*", credit=10)
    odd = connection.create_receiver("amq.topic", credit=10, options=Selector("n = 1"))
    sender = connection.create_sender("amq.topic")
    for number, key in enumerate(("a.b", "b", "a.c")):
        sender.send(ProtonMessage(body=key, subject=key, properties={"n": number}))
    assert [receiver.receive(PATIENCE_SECONDS).body for _ in range(2)] == ["a.b", "a.c"]
    assert odd.receive(PATIENCE_SECONDS).body == "b"
    answers = connection.create_receiver(None, dynamic=True, credit=1)
    address = answers.link.remote_source.address
    connection.create_sender(None).send(ProtonMessage(body="answer", address=address))
    assert answers.receive(PATIENCE_SECONDS).body == "answer"


def test_durable_subscriptions_of_a_container(broker: RunningBroker) -> None:
    name = f"sub-{uuid.uuid4()}"
    first = connect(broker)
    container = first.container.container_id
    first.create_receiver("amq.fanout", name=name, options=DurableSubscription())
    first.close()
    other = connect(broker)
    other.create_sender("amq.fanout").send(ProtonMessage(body="kept"))
    kept = other.create_receiver(f"{container}_{name}", credit=1)
    assert kept.receive(PATIENCE_SECONDS).body == "kept"
    other.close()


class Expires(LinkOption):
    """A durable source with a time-out and an expiry policy, which is detached when its connection ends."""

    def __init__(self, policy: int, timeout: int) -> None:
        self._policy, self._timeout = policy, timeout

    def apply(self, link: Link) -> None:
        link.source.durability = Terminus.DELIVERIES
        link.source.expiry_policy, link.source.timeout = self._policy, self._timeout


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_the_time_of_a_subscription_begins_again_with_the_broker(make_broker: BrokerMaker, way: str) -> None:
    """Its queue has what was sent while it was detached; one without a time-out has expired with its session."""
    broker = make_broker().start()
    first = connect(broker)
    container = first.container.container_id
    for name, timeout in (("long", 3600), ("short", 2), ("none", 0)):
        first.create_receiver("amq.fanout", name=name, options=Expires(Terminus.EXPIRE_WITH_SESSION, timeout))
    first.create_receiver("amq.fanout", name="never", options=DurableSubscription())
    first.create_sender("amq.fanout").send(ProtonMessage(body="kept", durable=True))
    getattr(broker, way)()
    broker.start()
    connection = connect(broker)
    for name in ("long", "never"):
        assert connection.create_receiver(f"{container}_{name}", credit=1).receive(PATIENCE_SECONDS).body == "kept"

    def is_there(name: str) -> bool:
        try:
            connection.create_sender(f"{container}_{name}", name=str(uuid.uuid4())).close()
        except LinkDetached as error:
            if error.condition != "amqp:not-found":
                raise
            return False
        return True

    assert not is_there("none")
    until = time.monotonic() + PATIENCE_SECONDS
    while is_there("short"):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert is_there("long")
    connection.close()


class Echo(MessagingHandler):
    """Sends a number of messages and receives them again, in one reactor."""

    def __init__(self, url: str, queue: str, count: int) -> None:
        super().__init__(prefetch=10)
        self.url, self.queue, self.count = url, queue, count
        self.sent = self.accepted = 0
        self.found: list[Any] = []

    def on_start(self, event: Event) -> None:
        connection = event.container.connect(self.url)
        self.sender = event.container.create_sender(connection, self.queue, options=DURABLE_QUEUE)

    def on_link_opened(self, event: Event) -> None:
        if event.link.is_sender:
            event.container.create_receiver(event.connection, self.queue)

    def on_sendable(self, event: Event) -> None:
        while event.sender.credit and self.sent < self.count:
            event.sender.send(ProtonMessage(body=self.sent, durable=True))
            self.sent += 1

    def on_accepted(self, event: Event) -> None:
        self.accepted += 1
        self._end(event)

    def on_message(self, event: Event) -> None:
        self.found.append(event.message.body)
        self._end(event)

    def _end(self, event: Event) -> None:
        if self.accepted == len(self.found) == self.count:
            event.connection.close()


def test_protons_reactor(broker: RunningBroker, queue: str) -> None:
    echo = Echo(f"amqp://127.0.0.1:{broker.port}", queue, 3_000)
    reactor = threading.Thread(target=Container(echo).run, daemon=True)
    reactor.start()
    reactor.join(PATIENCE_SECONDS)
    assert (echo.accepted, echo.found) == (3_000, list(range(3_000)))


class Transfers(MessagingHandler, TransactionHandler):
    """Moves messages from one queue to another, each in a transaction; the last one is aborted."""

    def __init__(self, url: str, source: str, target: str, count: int) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self._url, self._source, self._target, self._left = url, source, target, count
        self.ended: list[str] = []

    def on_start(self, event: Event) -> None:
        self._container, self._connection = event.container, event.container.connect(self._url)
        self._receiver = event.container.create_receiver(self._connection, self._source)
        self._sender = event.container.create_sender(self._connection, self._target, options=DURABLE_QUEUE)
        self._container.declare_transaction(self._connection, handler=self)

    def on_transaction_declared(self, event: Event) -> None:
        self._transaction = event.transaction
        self._receiver.flow(1)

    def on_message(self, event: Event) -> None:
        self._transaction.send(self._sender, event.message)
        self._transaction.accept(event.delivery)
        if len(self.ended) < self._left:
            self._transaction.commit()
        else:
            self._transaction.abort()

    def on_transaction_commit_failed(self, event: Event) -> None:
        raise AssertionError(event)

    def on_transaction_committed(self, _event: Event) -> None:
        self.ended.append("committed")
        self._container.declare_transaction(self._connection, handler=self)

    def on_transaction_aborted(self, event: Event) -> None:
        self.ended.append("aborted")
        self._connection.close()


def test_transactions_of_proton(make_broker: BrokerMaker, queue: str) -> None:
    broker = make_broker().start()
    with closing(connect(broker)) as connection:
        sender = connection.create_sender(queue, options=DURABLE_QUEUE)
        for number in range(3):
            sender.send(ProtonMessage(body=number, durable=True))
    transfers = Transfers(f"127.0.0.1:{broker.port}", queue, f"{queue}-moved", 2)
    Container(transfers).run()
    assert transfers.ended == ["committed", "committed", "aborted"]
    broker.kill()
    broker.start()
    with closing(connect(broker)) as connection:
        for name, count in ((queue, 1), (f"{queue}-moved", 2)):
            receiver = connection.create_receiver(name, credit=5)
            for _ in range(count):
                receiver.receive(PATIENCE_SECONDS)
                receiver.accept()
            with pytest.raises(Timeout):
                receiver.receive(0.2)


def test_what_is_accepted_survives_a_kill(make_broker: BrokerMaker, queue: str) -> None:
    broker = make_broker().start()
    connection = connect(broker)
    sender = connection.create_sender(queue, options=DURABLE_QUEUE)
    for number in range(50):
        sender.send(ProtonMessage(body=[number, "é", 1.5, None, {"a": b"\xff"}], durable=True, ttl=1e6, id=number))
    broker.kill()
    broker.start()
    receiver = connect(broker).create_receiver(f"/queues/{queue}", credit=100)
    for number in range(50):
        found = receiver.receive(PATIENCE_SECONDS)
        assert (found.body, found.id) == ([number, "é", 1.5, None, {"a": b"\xff"}], number)
        assert 900 < found.ttl < 1_000_000
        receiver.accept()


def fail_once(connection: BlockingConnection, queue: str) -> int:
    """Have a delivery fail. Returns its delivery count."""
    receiver = connection.create_receiver(queue, credit=1, name=f"receiver-{uuid.uuid4()}")
    count: int = receiver.receive(PATIENCE_SECONDS).delivery_count
    delivery = receiver.fetcher.unsettled.pop()
    delivery.local.failed = True
    delivery.update(Delivery.MODIFIED)
    delivery.settle()
    receiver.close()
    return count


def wait_for_returns(data_directory: Path, *counts: int) -> None:
    """Wait until the file of returns has each of the counts. The background writes it: no confirmation tells that."""
    path = data_directory / "rhm" / "RETURNS"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        content = path.read_bytes() if path.exists() else b""
        whole = content[: len(content) // 32 * 32]  # queue id, record id, messages, count, zero, CRC
        if set(counts) <= {count for _, _, _, count, _, _ in struct.iter_unpack("<QQIIII", whole)}:
            return
        assert time.monotonic() < deadline, "the returns were not written"
        time.sleep(0.01)


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_delivery_counts_are_kept(make_broker: BrokerMaker, queue: str, way: str) -> None:
    """The same for a queue without a limit, and for 0-9-1 clients of a quorum queue."""
    broker = make_broker().start()

    def declare(channel: Any) -> None:
        channel.queue_declare(f"q{queue}", durable=True, arguments={"x-queue-type": "quorum"})

    def count(channel: Any) -> int:
        method, properties, _ = channel.basic_get(f"q{queue}")
        channel.basic_nack(method.delivery_tag, requeue=True)
        return int((properties.headers or {}).get("x-delivery-count", 0))

    on_channel(broker, declare)
    connection = connect(broker)
    connection.create_sender(queue, options=DURABLE_QUEUE).send(ProtonMessage(body="x", durable=True))
    connection.create_sender(f"q{queue}").send(ProtonMessage(body="x", durable=True))
    assert [fail_once(connection, queue) for _ in range(4)] == [0, 1, 2, 3]
    assert [fail_once(connection, f"q{queue}") for _ in range(2)] == [0, 1]
    assert on_channel(broker, count) == 2
    if way == "kill":
        wait_for_returns(broker.data_directory, 4, 3)
    getattr(broker, way)()
    broker.start()
    connection = connect(broker)
    assert fail_once(connection, queue) == 4
    assert on_channel(broker, count) == 3
    assert fail_once(connection, f"q{queue}") == 4
    connection.close()


@pytest.mark.parametrize(
    "options",
    [
        {"allowed_mechs": "PLAIN", "user": "guest", "password": "guest"},
        {"allowed_mechs": "ANONYMOUS"},
        {"sasl_enabled": False},
    ],
)
def test_clients_log_in_with_and_without_sasl(broker: RunningBroker, queue: str, options: dict[str, Any]) -> None:
    connection = connect(broker, **options)
    connection.create_sender(queue, options=DURABLE_QUEUE).send(ProtonMessage(body="x"))
    connection.close()


def test_passwords_are_checked(make_broker: BrokerMaker, tmp_path: Path, queue: str) -> None:
    users = tmp_path / "users"
    assert CliRunner().invoke(qstore_passwd, ["--stdin", str(users), "ann"], input="secret\n").exit_code == 0
    broker = make_broker("--auth", "yes", "--user-file", str(users)).start()
    connection = connect(broker, allowed_mechs="PLAIN", user="ann", password="secret")
    connection.create_sender(queue, options=DURABLE_QUEUE).send(ProtonMessage(body="x", user_id=b"ann"))
    connection.close()
    for wrong in ({"user": "ann", "password": "wrong", "allowed_mechs": "PLAIN"}, {"sasl_enabled": False}):
        with pytest.raises(ConnectionException):
            connect(broker, **wrong)


# ---- other protocols on the same queue ----


def from_proton(broker: RunningBroker, queue: str, message: ProtonMessage) -> None:
    connection = connect(broker)
    connection.create_sender(queue, options=DURABLE_QUEUE).send(message)
    connection.close()


def to_proton(broker: RunningBroker, queue: str) -> ProtonMessage:
    connection = connect(broker)
    receiver = connection.create_receiver(queue, credit=1)
    found = receiver.receive(PATIENCE_SECONDS)
    receiver.accept()
    connection.close()
    return found


def on_channel(broker: RunningBroker, work: Callable[[Any], Any]) -> Any:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        return work(connection.channel())


@pytest.mark.parametrize(
    ("body", "basic", "content_type"),
    [
        (b"\xff\x00", b"\xff\x00", None),
        ("é", "é".encode(), "text/plain"),
        (7, b"7", "text/plain"),
        (None, b"", None),
    ],
)
def test_bodies_to_0_9_1(broker: RunningBroker, queue: str, body: Any, basic: bytes, content_type: str | None) -> None:
    from_proton(broker, queue, ProtonMessage(body=body, inferred=True))
    _, properties, found = on_channel(broker, lambda channel: channel.basic_get(queue, auto_ack=True))
    assert (found, properties.content_type) == (basic, content_type)


def test_properties_to_0_9_1_and_back(broker: RunningBroker, queue: str) -> None:
    from_proton(
        broker,
        queue,
        ProtonMessage(
            body=b"x", inferred=True, durable=True, priority=3, id="m", correlation_id="c", subject="s", reply_to="r",
            content_type="a/b", content_encoding="gzip", creation_time=1_700_000_000, properties={"t": "é", "n": -1},
            annotations={symbol("x-note"): 5},
        ),
    )  # fmt: skip

    def forward(channel: Any) -> Any:
        _, properties, body = channel.basic_get(queue, auto_ack=True)
        channel.basic_publish("", queue, body, properties)
        channel.confirm_delivery()
        return properties

    properties = on_channel(broker, forward)
    assert (properties.delivery_mode, properties.priority, properties.message_id) == (2, 3, "m")
    assert (properties.correlation_id, properties.type, properties.reply_to) == ("c", "s", "r")
    assert (properties.content_type, properties.content_encoding) == ("a/b", "gzip")
    assert (properties.timestamp, properties.headers) == (1_700_000_000, {"t": "é", "n": -1, "x-note": 5})
    found = to_proton(broker, queue)
    assert (found.body, found.durable, found.priority, found.id) == (b"x", True, 3, "m")
    assert (found.correlation_id, found.subject, found.reply_to) == ("c", "s", "r")
    assert (found.content_type, found.content_encoding, found.creation_time) == ("a/b", "gzip", 1_700_000_000)
    assert found.properties == {"t": "é", "n": -1, "x-note": 5}


@pytest.mark.parametrize(
    "content", [b"\xff\x00", "text é", {"a": 1, "b": {"c": [True, None]}}, [1, "two", 3.0, b"\xfe"]]
)
def test_contents_to_and_from_0_10(broker: RunningBroker, queue: str, content: Any) -> None:
    from_proton(broker, queue, ProtonMessage(body=content, inferred=isinstance(content, bytes), properties={"k": "v"}))
    with Connection.establish(f"127.0.0.1:{broker.port}") as connection:
        session = connection.session()
        found = session.receiver(queue).fetch(timeout=PATIENCE_SECONDS)
        session.acknowledge()
        assert (found.content, found.properties["k"]) == (content, "v")
        session.sender(queue).send(Message(content, properties={"k": "w", "n": {"deep": 1}}, id=str(uuid.UUID(int=9))))
    back = to_proton(broker, queue)
    expected = content.encode() if isinstance(content, str) else content
    assert (back.body, back.properties["k"], back.id) == (expected, "w", uuid.UUID(int=9))
    assert back.annotations == {symbol("x-opt-n"): {"deep": 1}}


def test_management_shows_connections_and_links(broker: RunningBroker, queue: str) -> None:
    connection = connect(broker)
    connection.create_sender(queue, options=DURABLE_QUEUE)
    receiver = connection.create_receiver(queue, credit=3)
    with Console(f"127.0.0.1:{broker.port}") as console:
        assert "AMQP 1.0" in {each["protocol"] for each in console.query("connection")}
        assert receiver.link.name in {each["name"] for each in console.query("subscription")}
    connection.close()


@pytest.mark.parametrize("is_volatile", [False, True], ids=["plain name", "/queues/NAME"])
def test_management_answers_requests_of_amqp_1_0(connection: BlockingConnection, queue: str, is_volatile: bool) -> None:
    """A request with a map is answered, wherever its reply-to says, with the correlation-id of the request."""
    connection.create_sender(queue, options=DURABLE_QUEUE)
    options = Wants("rabbitmq:volatile-queue") if is_volatile else None
    answers = connection.create_receiver(None, dynamic=True, credit=10, options=options)
    reply_to = answers.link.remote_source.address
    assert reply_to.startswith("/queues/") == is_volatile
    requests = connection.create_sender("qmf.default.direct/broker")

    ids = iter((uuid.UUID(int=5), "five", 5, b"five", uuid.UUID(int=6)))

    def ask(opcode: str, body: Any) -> ProtonMessage:
        number = next(ids)
        requests.send(
            ProtonMessage(body=body, properties={"qmf.opcode": opcode}, reply_to=reply_to, correlation_id=number)
        )
        found = answers.receive(PATIENCE_SECONDS)
        answers.accept()
        came = found.correlation_id
        came = bytes(came) if isinstance(came, memoryview) else came
        assert (came, type(came)) == (number, type(number))
        return found

    identity = {"_object_name": f"org.apache.qpid.broker:queue:{queue}"}
    found = ask("_query_request", {"_what": "OBJECT", "_object_id": identity})
    assert found.properties["qmf.opcode"] == "_query_response"
    assert [each["_values"]["name"] for each in found.body] == [queue]
    arguments = {"type": "queue", "name": queue, "options": {}}
    target = {"_object_name": "org.apache.qpid.broker:broker:amqp-broker"}
    found = ask("_method_request", {"_object_id": target, "_method_name": "delete", "_arguments": arguments})
    assert found.properties["qmf.opcode"] == "_method_response", found.body
    found = ask("_query_request", {"_what": "OBJECT", "_object_id": identity})
    assert found.body == []
    found = ask("_agent_locate_request", [])
    assert found.properties["qmf.opcode"] == "_agent_locate_response"
    found = ask("_query_request", {"_what": "OBJECT", "values": list(range(5_000))})
    assert found.properties["qmf.opcode"] == "_exception"
    assert "4,096 values" in found.body["_values"]["error_text"]


def test_the_node_for_management(connection: BlockingConnection, broker: RunningBroker, queue: str) -> None:
    """As the client of Qpid Dispatch asks: a link to the node, and answers to a dynamic node."""
    node = SyncRequestResponse(connection, "$management")
    kind = "org.apache.qpid.broker.queue"

    def ask(operation: str, body: Any = None, **headers: Any) -> tuple[int, Any]:
        answer = node.call(ProtonMessage(properties={"operation": operation, **headers}, body=body))
        return answer.properties["statusCode"], answer.body

    status, created = ask("CREATE", {"durable": True, "arguments": {"qpid.max_count": 9}}, type=kind, name=queue)
    assert (status, created["name"], created["durable"]) == (201, queue, True)
    assert created["arguments"]["qpid.max_count"] == 9
    sender = connection.create_sender(f"/queues/{queue}")
    for _ in range(3):
        sender.send(ProtonMessage("x"))
    status, found = ask(
        "QUERY", {"attributeNames": ["name", "msgDepth"]}, entityType=kind, type="org.amqp.management", name="self"
    )
    assert (status, found["attributeNames"]) == (200, ["name", "msgDepth"])
    assert [queue, 3] in found["results"]
    assert ask("purge", {"request": 1}, identity=created["identity"]) == (200, {})
    assert ask("READ", identity=created["identity"])[1]["msgDepth"] == 2
    assert ask("DELETE", type=kind, name=queue) == (204, {})
    assert ask("READ", type=kind, name=queue)[0] == 404
    with Console(f"127.0.0.1:{broker.port}") as console:
        assert queue not in {each["name"] for each in console.query("queue")}
