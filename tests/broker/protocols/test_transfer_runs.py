"""Transfers of AMQP 0-10 that are read together are handled as runs; a client cannot tell, whatever it does with them.

As `test_basic_runs`: two brokers get the same bytes, one of them many messages at once, and the other one by one.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.queues.entry import HELD, RUN
from qstore.broker.protocols.amqp_0_10.message import content_length_field
from qstore.broker.protocols.amqp_0_10.server_session import ServerSession
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.frames import encode_command_frames
from tests.broker.protocols.read_together import QUEUES, Script, Side, assert_alike, bodies, runs_on
from tests.broker.protocols.world import BYTES, CREDIT, MESSAGES, UNLIMITED, WINDOW, header

TRANSIENT, PERSISTENT = 1, 2


class TransferSide(Side):
    """A client with a session on channel 1 and a transactional one on channel 2."""

    def __init__(self, *, reads_together: bool, most_of_run: int = 1_000_000) -> None:
        super().__init__(reads_together=reads_together, most_of_run=most_of_run)
        self.client = self.world.open_client()
        self.client.attach(b"other", on=2)
        self.client.declare("t")
        self.client.command("tx.select", on=2)
        self.rest()

    @property
    def sessions(self) -> list[ServerSession]:
        return [self.client.session(), self.client.session(b"other")]

    def publish(self, key: str, bodies: list[bytes], mode: int, *, gives_length: bool = False) -> None:
        self.send(self.transfers(key, bodies, mode, gives_length=gives_length))

    def transfers(
        self, key: str, bodies: list[bytes], mode: int, *, gives_length: bool = False, exchange: str = ""
    ) -> list[bytes]:
        """The frames of each; the last of an odd number asks for its completion."""
        payload, last = (encode_command("message.transfer", sync=sync, destination=exchange) for sync in (False, True))
        self.client.sent[1] = self.client.sent.get(1, 0) + len(bodies)
        frames = []
        for left, body in zip(range(len(bodies), 0, -1), bodies, strict=True):
            command = last if left == 1 and len(bodies) % 2 else payload
            properties = {"content_length": len(body), "content_type": "x"} if gives_length else {}
            head = header(properties, routing_key=key, delivery_mode=mode)
            frames.append(b"".join(encode_command_frames(1, command, head, body, 65535)))
        return frames

    def state(self) -> dict[str, Any]:
        client = self.client
        return super().state() | {
            "deliveries": client.deliveries,
            "controls": client.controls,
            "exceptions": client.exceptions,
            "completed": client.completed,
            "unsettled": [each.unsettled_count for each in self.sessions],
            "credit": [
                (each.message_credit, each.byte_credit, each.delivered)
                for session in self.sessions
                for each in session.subscriptions.values()
            ],
        }


class TransferScript(Script):
    """Ranges of transfers are chosen from those that were sent."""

    def publish(self, key: str, count: int, size: int, spread: int, gives_length: bool, mode: int) -> None:
        self.side.publish(key, bodies(count, size, self.published, spread), mode, gives_length=gives_length)
        self.published += count

    def subscribe(self, queue: str, on: int, credit: int, size: int, mode: int, accept: int) -> None:
        if not self.side.queue(queue).consumer_count:
            self.client.subscribe(queue, on=on, messages=credit, size=size, mode=mode, accept_mode=accept)

    def flow(self, queue: str, unit: int, value: int) -> None:
        for on in (1, 2):
            if queue in self.side.sessions[on - 1].subscriptions:
                self.client.flow(queue, unit, value, on=on)

    def cancel(self, queue: str) -> None:
        for on in (1, 2):
            if queue in self.side.sessions[on - 1].subscriptions:
                self.client.command("message.cancel", on=on, destination=queue)

    def _ranges(self, on: int, where: float, length: int) -> tuple[tuple[int, int], ...]:
        sent = self.side.sessions[on - 1].sent
        first = int(where * sent)
        return ((first, first + length),)

    def accept(self, on: int, where: float, length: int) -> None:
        self.client.command("message.accept", on=on, transfers=self._ranges(on, where, length))

    def release(self, on: int, where: float, length: int, is_redelivered: bool) -> None:
        ranges = self._ranges(on, where, length)
        self.client.command("message.release", on=on, transfers=ranges, set_redelivered=is_redelivered)

    def reject(self, on: int, where: float, length: int) -> None:
        self.client.command("message.reject", on=on, transfers=self._ranges(on, where, length))

    def complete(self, on: int, where: float) -> None:
        sent = self.side.sessions[on - 1].sent
        if sent:
            self.client.control("session.completed", on=on, commands=((0, int(where * (sent - 1))),))

    def commit(self) -> None:
        self.client.command("tx.commit", on=2)
        self.side.rest()

    def rollback(self) -> None:
        self.client.command("tx.rollback", on=2)
        self.side.rest()


SESSIONS = st.sampled_from((1, 2))
WHERE, LENGTHS = st.floats(0, 1), st.integers(0, 40)


def publishing() -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(
        st.just("publish"),
        st.sampled_from(QUEUES),
        st.integers(1, 30),
        st.integers(2, 4),
        st.sampled_from((0, 0, 1, 50, 300)),
        st.booleans(),
        st.sampled_from((TRANSIENT, PERSISTENT)),
    )


def subscribing() -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(
        st.just("subscribe"),
        st.sampled_from(QUEUES),
        SESSIONS,
        st.sampled_from((5, 20, UNLIMITED)),
        st.sampled_from((300, UNLIMITED)),
        st.sampled_from((CREDIT, WINDOW)),
        st.sampled_from((0, 1)),
    )


OPERATIONS = st.lists(
    st.one_of(
        publishing(),
        publishing(),
        subscribing(),
        st.tuples(st.just("flow"), st.sampled_from(QUEUES), st.sampled_from((MESSAGES, BYTES)), st.integers(1, 500)),
        st.tuples(st.just("cancel"), st.sampled_from(QUEUES)),
        st.tuples(st.just("accept"), SESSIONS, WHERE, LENGTHS),
        st.tuples(st.just("accept"), SESSIONS, WHERE, LENGTHS),
        st.tuples(st.just("release"), SESSIONS, WHERE, LENGTHS, st.booleans()),
        st.tuples(st.just("reject"), SESSIONS, WHERE, LENGTHS),
        st.tuples(st.just("complete"), SESSIONS, WHERE),
        st.tuples(st.just("commit")),
        st.tuples(st.just("rollback")),
        st.tuples(st.just("look"), st.sampled_from(QUEUES)),
        st.tuples(st.just("rest")),
        st.tuples(st.just("page out")),
        st.tuples(st.just("tick")),
    ),
    max_size=25,
)


@given(OPERATIONS, st.sampled_from((1_000_000, 7, 3)))
def test_no_client_can_tell_runs_from_single_messages(operations: list[tuple[Any, ...]], most_of_run: int) -> None:
    together = TransferSide(reads_together=True, most_of_run=most_of_run)
    singly = TransferSide(reads_together=False)
    assert_alike((TransferScript(together), TransferScript(singly)), operations)


@pytest.mark.parametrize("gives_length", [True, False])
def test_messages_whose_bodies_differ_in_size_are_a_run(gives_length: bool) -> None:
    side = TransferSide(reads_together=True)
    side.publish("d", bodies(3, spread=50), PERSISTENT, gives_length=gives_length)
    side.rest()
    uneven = bodies(100, begin=3, spread=200)
    side.publish("d", uneven, PERSISTENT, gives_length=gives_length)
    side.rest()
    assert runs_on(side.queue("d")) == [(RUN, 100)]
    side.client.subscribe("d", messages=63)
    assert runs_on(side.queue("d")) == [(HELD, 60), (RUN, 40)]
    assert [each.body for each in side.client.deliveries[3:]] == uneven[:60]
    headers = [each.header for each in side.client.deliveries[3:]]
    fields = [content_length_field(head) for head in headers]
    lengths = [field and field.read(head, 0) for field, head in zip(fields, headers, strict=True)]
    assert lengths == [len(body) if gives_length else None for body in uneven[:60]]


@pytest.mark.parametrize("spread", [0, 200])
@pytest.mark.parametrize("gives_length", [True, False])
def test_messages_that_were_out_of_memory_are_runs(spread: int, gives_length: bool) -> None:
    side, wanted = TransferSide(reads_together=True), bodies(100, spread=spread)
    for body in wanted:
        side.publish("d", [body], PERSISTENT, gives_length=gives_length)
    side.rest()
    side.page_out()
    side.client.subscribe("d", messages=60)
    assert runs_on(side.queue("d")) == [(HELD, 60), (RUN, 40)]
    assert [each.body for each in side.client.deliveries] == wanted[:60]
    fields = [content_length_field(each.header) for each in side.client.deliveries]
    lengths = [field and field.read(each.header, 0) for field, each in zip(fields, side.client.deliveries, strict=True)]
    assert lengths == [len(body) if gives_length else None for body in wanted[:60]]


@pytest.mark.parametrize("gives_length", [True, False])
def test_messages_that_were_delivered_before_are_a_run_of_their_own_and_say_so(gives_length: bool) -> None:
    side, wanted = TransferSide(reads_together=True), bodies(100, spread=50)
    side.publish("d", wanted, PERSISTENT, gives_length=gives_length)
    side.rest()
    side.client.subscribe("d", messages=60)
    side.client.command("message.cancel", destination="d")
    side.client.command("message.release", transfers=((0, 59),), set_redelivered=True)
    side.rest()
    side.page_out()
    side.client.deliveries.clear()
    side.client.subscribe("d", messages=80)
    assert runs_on(side.queue("d")) == [(HELD, 60), (HELD, 20), (RUN, 20)]
    assert [each.body for each in side.client.deliveries] == wanted[:80]
    fields = [content_length_field(each.header) for each in side.client.deliveries]
    lengths = [field and field.read(each.header, 0) for field, each in zip(fields, side.client.deliveries, strict=True)]
    assert lengths == [len(body) if gives_length else None for body in wanted[:80]]
    marks = [each.properties["redelivered"] for each in side.client.deliveries]
    assert marks == 60 * [True] + 20 * [False]


@pytest.mark.parametrize("piece", [1, 7, 50, 101, 150, 333, 1000])
@pytest.mark.parametrize("gives_length", [True, False])
def test_uneven_messages_arrive_whole_in_whatever_pieces_they_are_read(piece: int, gives_length: bool) -> None:
    side, wanted = TransferSide(reads_together=True), bodies(60, spread=90)
    stream = b"".join(side.transfers("t", wanted, TRANSIENT, gives_length=gives_length))
    for at in range(0, len(stream), piece):
        side.client.send(stream[at : at + piece])
    side.rest()
    assert bool(runs_on(side.queue("t"))) >= (piece > 500)
    assert [body for _, body, *_ in side.messages("t")] == wanted


@pytest.mark.parametrize("name", QUEUES)
def test_accepting_the_first_part_of_a_run_leaves_the_rest_with_the_consumer(name: str) -> None:
    side = TransferSide(reads_together=True)
    side.publish(name, bodies(3), PERSISTENT)
    side.rest()
    side.publish(name, bodies(100), PERSISTENT)
    side.rest()
    side.client.subscribe(name, messages=63)
    assert runs_on(side.queue(name)) == [(HELD, 60), (RUN, 40)]
    first = side.client.deliveries[3].number
    side.client.command("message.accept", transfers=((first, first + 29),))
    side.rest()
    assert runs_on(side.queue(name)) == [(HELD, 30), (RUN, 40)]
    assert len(side.world.store.dequeued) == (30 if name == "d" else 0)
