"""Two machines over a connection that is lost again and again: every command is executed once, and in order."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import example, given
from hypothesis import strategies as st

from qstore.broker.protocols.output import LARGE as MAX_AT_ONCE
from qstore.broker.security.sasl.simple import AnonymousClient
from qstore.formats.amqp_0_10.commands import encode_command
from tests.broker.protocols.world import BYTES, MESSAGES, UNLIMITED, Client, World, header
from tests.support.compiled import ClientConnection, ClientSession
from tests.support.profiles import examples

TRANSFER = encode_command("message.transfer", destination="")
PADDING = bytes(2 * MAX_AT_ONCE)


class Consumer(ClientSession):
    """A client's session that keeps what arrives, and accepts it on demand."""

    def __init__(self) -> None:
        super().__init__(b"lossy", 1, None)
        self.bodies: list[bytes] = []
        self.unaccepted: list[int] = []

    def on_command(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        number = self.begin_command()
        if number >= 0:
            assert payload[:2] == b"\x04\x01"
            self.bodies.append(body or b"")
            self.unaccepted.append(number)


class Lossy:
    """A client's machine and the broker's, with bytes under way between them in both directions."""

    def __init__(self) -> None:
        self.world = World()
        self.session = Consumer()
        self.published = 0
        self._connect()
        self._move_all()
        self.session.send_control("session.request-timeout", timeout=100)
        self.session.send("queue.declare", queue="q")
        self.session.send("message.subscribe", queue="q", destination="q")
        self.session.send("message.set-flow-mode", destination="q", flow_mode=1)
        self.session.send("message.flow", destination="q", unit=MESSAGES, value=5)
        self.session.send("message.flow", destination="q", unit=BYTES, value=UNLIMITED)
        self._move_all()
        assert self.session.is_resumable

    def _connect(self) -> None:
        self.server: Client = self.world.connect()
        self.client = ClientConnection(lambda _: AnonymousClient(), max_message_bytes=1 << 24)
        self.to_server = bytearray()
        self.to_client = bytearray()
        self.client.on_open = self._attach  # type: ignore[method-assign]

    def _attach(self) -> None:
        self.session.reattach(1, self.client)
        self.client.attach(self.session)

    def cut(self) -> None:
        """The connection is lost, with all that is under way."""
        self.server.machine.closed()
        self.client.closed()
        self.session.detached()
        self.world.run()
        self._connect()

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.session.send_payload(TRANSFER, header(routing_key="q"), b"%d" % self.published)
            self.published += 1

    def publish_large(self) -> None:
        self.session.send_payload(TRANSFER, header(routing_key="q"), b"%d" % self.published + PADDING)
        self.published += 1

    def take_portion(self) -> None:
        """All that the client has sent arrives, and what the broker sends in one tick."""
        machine = self.server.machine
        machine.pause_sending()
        self.move(1 << 24, 0)
        self.world.run()
        machine.resume_sending()
        if self.world.soon:
            self.world.soon.pop(0)()
        machine.pause_sending()

    def accept(self) -> None:
        if self.session.unaccepted:
            transfers = tuple((number, number) for number in self.session.unaccepted)
            self.session.unaccepted = []
            self.session.send("message.accept", transfers=transfers)

    def complete(self) -> None:
        self.session.complete_received()
        if self.session.transport is not None and self.session in self.client.sessions.values():
            self.session.send_completed()

    def move(self, to_server: int, to_client: int) -> bool:
        """Let this many bytes arrive on both sides. Returns whether anything was under way."""
        self.to_server += self.client.take_output()
        self.world.run()
        self.to_client += self.server.host.output
        self.server.host.output.clear()
        moved = bool(self.to_server or self.to_client)
        data, self.to_server = bytes(self.to_server[:to_server]), self.to_server[to_server:]
        if data:
            self.server.machine.receive(data)
        data, self.to_client = bytes(self.to_client[:to_client]), self.to_client[to_client:]
        if data:
            self.client.receive(data)
        assert self.client.close_text == ""
        return moved

    def _move_all(self) -> None:
        while self.move(1 << 20, 1 << 20):
            pass

    def finish(self) -> None:
        """All that is under way arrives, and all is accepted and completed."""
        self.server.machine.resume_sending()
        for _ in range(3 + self.published):
            self._move_all()
            self.complete()
            self.accept()
        self._move_all()


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 5)),
    st.tuples(st.just("move"), st.tuples(st.integers(0, 400), st.integers(0, 600))),
    st.tuples(st.just("all"), st.none()),
    st.tuples(st.just("complete"), st.none()),
    st.tuples(st.just("accept"), st.none()),
    st.tuples(st.just("cut"), st.none()),
    st.tuples(st.just("large"), st.none()),
    st.tuples(st.just("full"), st.none()),
    st.tuples(st.just("portion"), st.none()),
)


def play(steps: Iterable[tuple[str, object]]) -> Lossy:
    lossy = Lossy()
    for step, value in steps:
        if step == "publish":
            assert isinstance(value, int)
            lossy.publish(value)
        elif step == "move":
            assert isinstance(value, tuple)
            lossy.move(*value)
        elif step == "all":
            lossy._move_all()
        elif step == "complete":
            lossy.complete()
        elif step == "accept":
            lossy.accept()
        elif step == "large":
            lossy.publish_large()
        elif step == "full":  # the broker's socket takes no more
            lossy.server.machine.pause_sending()
        elif step == "portion":
            lossy.take_portion()
        else:
            lossy.cut()
    lossy.finish()
    return lossy


@examples(200)
@given(st.lists(STEPS, max_size=30))
@example([("large", None), ("portion", None), ("cut", None), ("large", None), ("portion", None), ("cut", None)])
def test_every_command_is_executed_once_and_in_order(steps: list[tuple[str, object]]) -> None:
    lossy = play(steps)
    bodies = [each.removesuffix(PADDING) for each in lossy.session.bodies]
    assert bodies == [b"%d" % number for number in range(lossy.published)]
    queue = lossy.world.broker.default_host.queues["q"]
    assert (queue.message_count, queue.acquired_count) == (0, 0)
    assert not lossy.session._replay, "the broker has completed all"
    server = lossy.server.session(b"lossy")
    assert not server._replay, "the client has completed all"
    assert len(lossy.world.sessions) == 1


def test_completions_are_repeated_on_resumption() -> None:
    client = World().open_client(timeout=60)
    number = client.declare("q")
    assert number in client.completed
    client.machine.closed()
    back = client.world.open_client(name=None)
    back.attach(b"session", point=number + 1)
    assert number in back.completed


def test_commands_that_come_again_in_the_turn_of_the_first_time() -> None:
    """The connection is lost, and the next one attaches the session, before the broker's tick has ended."""
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    second = world.connect()
    second.negotiate()
    client.publish("q", b"1", b"2")
    client.machine.closed()
    second.control("session.attach", on=1, name=b"session")
    second.control("session.command-point", on=1, command_id=1, command_offset=0)
    second.publish("q", b"1", b"2", b"3")
    second.sync()
    assert second.completed >= {0, 1, 2, 3}
    assert [entry.message.body for entry in world.broker.default_host.queues["q"].entries()] == [b"1", b"2", b"3"]
