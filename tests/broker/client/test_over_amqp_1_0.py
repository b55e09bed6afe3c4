"""What is particular to the client over AMQP 1.0: addresses, properties, errors, and a peer that is not our broker."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

proton = pytest.importorskip("proton")
from proton.handlers import MessagingHandler  # noqa: E402
from proton.reactor import Container  # noqa: E402

from qstore.broker.client import (  # noqa: E402
    AddressError,
    AssertionFailed,
    AuthenticationError,
    ConnectError,
    Connection,
    Empty,
    LinkError,
    Message,
    MessageRejected,
    MessageReleased,
    NotFound,
    SendError,
    UnsupportedError,
    UrlError,
)
from qstore.broker.client.amqp_1_0.message import decode_sections, encode_message  # noqa: E402
from qstore.tools import drain, qpid_receive, qpid_send, qpid_stat, spout  # noqa: E402
from tests.broker.client.faces import OVER_1_0, Face  # noqa: E402
from tests.broker.client.test_failures import server  # noqa: E402
from tests.support.processes import PATIENCE_SECONDS  # noqa: E402
from tests.support.running_broker import RunningBroker  # noqa: E402

WAIT = PATIENCE_SECONDS


@pytest.fixture(params=[OVER_1_0])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    made = Face(request.param)
    yield made
    made.close()


@pytest.fixture
def name() -> str:
    return f"q-{uuid.uuid4()}"


def all_of(receiver: Any) -> list[Any]:
    found = []
    while True:
        try:
            found.append(receiver.fetch(timeout=0))
        except Empty:
            return found


def test_options_that_are_for_the_other_protocol(broker: RunningBroker, session: Any, name: str) -> None:
    for options in (
        "delete: always",
        "node: {x-bindings: [{exchange: amq.direct, key: k}]}",
        "link: {x-bindings: [{exchange: amq.direct, key: k}]}",
        "link: {x-declare: {auto-delete: true}}",
        "link: {x-subscribe: {exclusive: true}}",
    ):
        with pytest.raises(AddressError, match=r"AMQP 1\.0 has no"):
            session.sender(f"{name}; {{create: always, {options}}}")
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        for options in ("node: {capabilities: [shared]}", "link: {timeout: 5}", "node: {properties: {durable: true}}"):
            with pytest.raises(AddressError, match=r"only over AMQP 1\.0"):
                connection.session().sender(f"{name}; {{create: always, {options}}}")
    with pytest.raises(UnsupportedError, match=r"queue\.declare"):
        session.invoke("queue.declare", queue=name)
    with pytest.raises(UrlError, match=r"amqp0-10 or amqp1\.0"):
        Connection("localhost", protocol="amqp")


def test_nodes_are_created_with_their_properties(broker: RunningBroker, session: Any, name: str) -> None:
    declared = "x-declare: {alternate-exchange: amq.fanout, arguments: {'qpid.max_count': 5}}"
    session.sender(f"{name}; {{create: always, node: {{type: queue, durable: true, {declared}}}}}")
    topic = f"t-{name}; {{create: always, node: {{type: topic, properties: {{exchange-type: headers}}}}}}"
    session.receiver(topic)
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        found = connection.session()
        queue = found.invoke("queue.query", queue=name)
        assert (queue["durable"], queue["alternate_exchange"]) == (True, "amq.fanout")
        assert "qpid.max_count" in queue["arguments"]
        assert found.invoke("exchange.query", name=f"t-{name}")["type"] == "headers"


def test_assertions(session: Any, name: str) -> None:
    session.sender(f"{name}; {{create: always}}")
    session.sender(f"{name}; {{assert: always, node: {{type: queue}}}}")
    with pytest.raises(AssertionFailed, match="durable"):
        session.sender(f"{name}; {{assert: sender, node: {{type: queue, durable: true}}}}")
    with pytest.raises(AssertionFailed, match="topic"):
        session.receiver(f"{name}; {{assert: receiver, node: {{type: topic}}}}")
    session.receiver(f"{name}; {{assert: sender, node: {{durable: true}}}}")  # it is no sender
    session.receiver(f"{name}; {{assert: always, link: {{selector: 'n = 1'}}}}")


def test_errors_are_those_of_links(session: Any, name: str) -> None:
    with pytest.raises(NotFound, match=name):
        session.receiver(name)
    with pytest.raises(LinkError, match="amqp:not-implemented: filter 'mine'"):
        session.receiver(
            f"{name}; {{create: always, link: {{filter: {{name: mine, descriptor: my-filter, value: 1}}}}}}"
        )
    with pytest.raises(LinkError, match="not a selector"):
        session.receiver(f"{name}; {{create: always, link: {{selector: 'n ='}}}}")
    session.sender(f"{name}; {{create: always}}").send("still there")
    assert session.receiver(name).fetch(timeout=WAIT).content == "still there"


def test_refused_messages(session: Any, name: str) -> None:
    limited = "node: {x-declare: {arguments: {'qpid.max_count': 1, 'qpid.policy_type': reject}}}"
    sender = session.sender(f"{name}; {{create: always, {limited}}}")
    sender.send("fits")
    with pytest.raises(MessageRejected, match="resource-limit-exceeded"):
        sender.send("does not")
    sender.send("does not either", sync=False)
    with pytest.raises(SendError):
        sender.sync()
    sender.sync()  # it was told once
    session.sync()
    unroutable = session.sender("'/exchanges/amq.direct/nowhere'")
    with pytest.raises(MessageReleased):
        unroutable.send("x")


def test_a_dynamic_node_ends_with_its_receiver(connection: Any, session: Any) -> None:
    receiver = session.receiver("#")
    sender = connection.session().sender(receiver.address)
    sender.send("answer")
    assert receiver.fetch(timeout=WAIT).content == "answer"
    address = receiver.address
    session.acknowledge()
    receiver.close()
    with pytest.raises(NotFound):
        connection.session().receiver(address)


def test_a_null_address_sends_to_that_of_each_message(session: Any, name: str) -> None:
    receiver = session.receiver(f"{name}; {{create: always}}")
    session.sender("<null>").send(Message("x", properties={"x-amqp-to": name}))
    assert receiver.fetch(timeout=WAIT).content == "x"


def test_browsing_leaves_messages(session: Any, name: str) -> None:
    sender = session.sender(f"{name}; {{create: always}}")
    sender.send("a")
    sender.send("b")
    for _ in range(2):
        assert [each.content for each in all_of(session.receiver(f"{name}; {{mode: browse}}", capacity=5))] == [
            "a",
            "b",
        ]


def test_a_durable_subscription_collects_while_its_receiver_is_closed(broker: RunningBroker, face: Face) -> None:
    container = f"c-{uuid.uuid4()}"
    address = "amq.topic/news.*; {link: {name: daily, durable: true, reliability: at-least-once}}"

    def subscribe() -> Any:
        connection = face.connect(f"127.0.0.1:{broker.port}", container_id=container)
        return connection, connection.session()

    connection, session = subscribe()
    session.receiver(address).close()
    connection.close()
    connection, session = subscribe()
    session.sender("amq.topic").send(Message("while away", subject="news.today"))
    message = session.receiver(address).fetch(timeout=WAIT)
    assert (message.content, message.subject) == ("while away", "news.today")


def test_fields_have_the_names_of_qpid_messaging(broker: RunningBroker, face: Face, session: Any, name: str) -> None:
    properties = {
        "x-amqp-to": "elsewhere", "x-amqp-content-encoding": "gzip", "x-amqp-creation-time": 1_700_000_000_123,
        "x-amqp-group-id": "g", "x-amqp-group-sequence": 7, "x-amqp-reply-to-group-id": "r",
        "x-amqp-message-annotations": {"x-opt-mine": 3}, "own": "text", "x-amqp-0-10.app-id": "app",
        "nested": {"a": [1, 2.5, None, True]},
    }  # fmt: skip
    sent = Message("x", id="an id", correlation_id=b"\0\1", user_id="me", reply_to="answers/key", properties=properties)
    session.sender(f"{name}; {{create: always}}").send(sent)
    browsed = session.receiver(f"{name}; {{mode: browse}}").fetch(timeout=WAIT)
    assert (browsed.id, browsed.correlation_id, browsed.user_id) == ("an id", "\0\1", "me")
    assert browsed.reply_to == "answers/key"
    flat = {key: value for key, value in properties.items() if "annotations" not in key and key != "nested"}
    annotations = {"x-opt-mine": 3, "x-opt-nested": {"a": [1, 2.5, None, True]}}
    assert browsed.properties == {**flat, **annotations, "x-amqp-first-acquirer": True}
    nesting = face.connect(f"127.0.0.1:{broker.port}", nest_annotations=True).session()
    nested = nesting.receiver(name).fetch(timeout=WAIT)
    assert nested.properties["x-amqp-message-annotations"] == annotations
    assert nested.properties["own"] == "text"


def test_a_received_message_is_sent_again_as_it_was(session: Any, name: str) -> None:
    sender, receiver = session.sender(f"{name}; {{create: always}}"), session.receiver(name)
    contents = ["text", b"\0\xff", {"a": 1}, [1, "two"], "", None, "y" * 100_000]
    for content in contents:
        sender.send(Message(content, properties={"n": 1}))
        sender.send(receiver.fetch(timeout=WAIT))
        again = receiver.fetch(timeout=WAIT)
        assert (again.content or None, again.properties["n"]) == (content or None, 1)
        session.acknowledge()


def test_any_value_can_be_a_content() -> None:
    head, body = encode_message(Message("text"), None)
    assert decode_sections(head + body, nests=False)["_content"] == "text"
    for raw, expected in ((b"\x00Sw\x54\x2a", 42), (b"\x00Sw\x41", True), (b"\x00Sv\xc0\x03\x01\x54\x07", [7])):
        found = decode_sections(raw, nests=False)
        assert found["_content"] == expected


def test_logins(broker: RunningBroker, face: Face) -> None:
    url = f"127.0.0.1:{broker.port}"
    for mechanisms in ("ANONYMOUS", "NONE", None):
        face.connect(url, sasl_mechanisms=mechanisms).session().sync()
    with pytest.raises(AuthenticationError, match="only GSSAPI may be used"):
        face.connect(url, sasl_mechanisms="GSSAPI")
    for mechanisms in ("ANONYMOUS", "NONE", None):
        with pytest.raises(AuthenticationError, match="sasl_min_ssf"):
            face.connect(url, sasl_mechanisms=mechanisms, sasl_min_ssf=1)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"AMQP\x01\x01\x00\x0a", "does not speak AMQP 1.0"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak AMQP 1.0"),
        (b"AMQP\x00\x01\x00\x00", "with no SASL: see sasl_mechanisms"),
        (b"AMQP\x03\x01\x00\x00\x00\x00\x00\x08\x01\x00\x00\x00", "decode-error"),
        (b"AMQP\x03\x01", "lost"),
    ],
)
def test_not_a_broker(face: Face, answer: bytes, text: str) -> None:
    with server(answer) as url, pytest.raises(ConnectError, match=text):
        face.connect(url)


# ---- a peer that is not ours ----


class _Peer(MessagingHandler):  # type: ignore[misc]
    """A Proton server with one queue, which keeps what it gets and sends it to whoever asks."""

    def __init__(self) -> None:
        super().__init__(auto_accept=True)
        self.ready = threading.Event()
        self.port = 0
        self.kept: list[Any] = []
        self.outcomes: list[str] = []
        self.container: Any = None

    def on_start(self, event: Any) -> None:
        self.container = event.container
        self.acceptor = event.container.listen("127.0.0.1:0")
        self.port = self.acceptor._selectable._delegate.getsockname()[1]
        self.ready.set()

    def on_link_opening(self, event: Any) -> None:
        link = event.link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        if link.is_receiver:
            link.flow(10)

    def on_message(self, event: Any) -> None:
        self.kept.append(event.message)
        event.receiver.flow(1)
        if event.message.body == "stop":
            self.acceptor.close()

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self.kept:
            event.sender.send(self.kept.pop(0))

    def on_accepted(self, event: Any) -> None:
        self.outcomes.append("accepted")


@contextmanager
def proton_peer() -> Iterator[_Peer]:
    peer = _Peer()
    container = Container(peer)
    thread = threading.Thread(target=container.run, daemon=True)
    thread.start()
    assert peer.ready.wait(WAIT)
    yield peer
    thread.join(WAIT)
    assert not thread.is_alive()


def test_a_peer_that_is_proton() -> None:
    with proton_peer() as peer, Connection(f"127.0.0.1:{peer.port}", protocol="amqp1.0") as connection:
        session = connection.session()
        sender = session.sender("anything")
        contents: list[Any] = ["text", b"bytes", {"a": 1, "b": [True]}, [1, 2], "z" * 300_000]
        for content in contents:
            sender.send(Message(content, subject="s", durable=True, properties={"n": 5}))
        assert [each.subject for each in peer.kept] == ["s"] * 5
        assert all(each.durable and each.properties == {"n": 5} for each in peer.kept)
        receiver = session.receiver("anything", capacity=10)
        assert [receiver.fetch(timeout=WAIT).content for _ in contents] == contents
        session.acknowledge()
        session.sync()
        sender.send("stop")


# ---- commands ----


def test_commands_take_the_protocol(broker: RunningBroker, name: str) -> None:
    def run(command: Any, *arguments: str) -> str:
        given = ["-b", f"127.0.0.1:{broker.port}", "--connection-options", "{protocol: amqp1.0}", *arguments]
        result = CliRunner().invoke(command, given)
        assert result.exit_code == 0, result.output
        return result.stdout

    address = f"{name}; {{create: always, node: {{durable: true}}}}"
    run(qpid_send.command, "-a", address, "-m", "3", "--durable", "yes", "--content-string", "hi", "-P", "color=red")
    run(qpid_send.command, "-a", name, "-m", "2", "--tx", "1", "-M", "x=1")
    shown = run(qpid_receive.command, "-a", f"{name}; {{mode: browse}}", "--print-headers", "yes", "-m", "1")
    assert "color:red" in shown
    assert run(qpid_receive.command, "-a", name, "--tx", "2").splitlines() == ["hi", "hi", "hi", "{x:1}", "{x:1}"]
    run(spout.command, "--durable", name, "hello")
    assert "content='hello'" in run(drain.command, name)
    assert name in run(qpid_stat.command, "-q")  # management: requests and answers over AMQP 1.0
