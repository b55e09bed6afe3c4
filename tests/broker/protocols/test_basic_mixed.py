"""Messages that are sent to several queues in turns are sorted into a run for each; a client cannot tell."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.queues.entry import RUN
from qstore.formats.amqp_0_9_1.properties import Properties
from tests.broker.protocols.basic_client import PERSISTENT
from tests.broker.protocols.read_together import assert_alike, bodies, runs_on
from tests.broker.protocols.test_basic_runs import OPERATIONS, TRANSIENT, BasicScript, BasicSide

KEYS = ("d", "t", "e")  # two durable queues, and a transient one between them
KEPT = frozenset(("basic.ack", "basic.nack"))


class MixedSide(BasicSide):
    """A client whose confirms are compared as a whole, since sorted messages are confirmed together."""

    def __init__(self, *, reads_together: bool, most_of_run: int = 1_000_000) -> None:
        super().__init__(reads_together=reads_together, most_of_run=most_of_run)
        self.world.durable_queue("e")

    def publish_in_turns(self, keys: list[str], sizes: list[bytes], properties: Properties) -> None:
        self.send(
            [
                self.client.message(keys[number % len(keys)], body, properties, exchange="")
                for number, body in enumerate(sizes)
            ]
        )

    def confirmed(self) -> dict[int, bool]:
        """Of each number that was confirmed since the channel was opened, whether by basic.ack, which came first.

        Which ones were before it was closed depends on what was on the disk by then.
        """
        found: dict[int, bool] = {}
        reached = 0
        for each in self.client.received:
            if each.name == "channel.open-ok" and each.channel == 1:
                found, reached = {}, 0
            elif each.name in KEPT and each.channel == 1:
                number = each.values["delivery_tag"]
                of = range(reached + 1, number + 1) if each.values["multiple"] else [number]
                found.update((one, each.name == "basic.ack") for one in of if one not in found)
                reached = max(reached, number) if each.values["multiple"] else reached
        return found

    def messages(self, name: str) -> list[Any]:
        """As `Side.messages`, without record ids: the records of several journals are numbered in one sequence."""
        return [(position, body, bool(rid), *rest) for position, body, rid, *rest in super().messages(name)]

    def state(self) -> dict[str, Any]:
        state = super().state()
        enqueued = state["enqueued"]
        state["dequeued"] = sorted(enqueued[rid - 1] for rid in state["dequeued"])
        state["enqueued"] = sorted(enqueued)
        state["received"] = [each for each in state["received"] if each.name not in KEPT or each.channel != 1]
        return state | {"confirmed": self.confirmed()}


class MixedScript(BasicScript):
    def publish_in_turns(self, keys: list[str], count: int, spread: int, properties: Properties) -> None:
        self.side.publish_in_turns(keys, bodies(count, 4, self.published, spread), properties)
        self.published += count


@given(
    st.lists(
        st.one_of(
            OPERATIONS.filter(bool).map(lambda operations: operations[0]),
            st.tuples(
                st.just("publish in turns"),
                st.lists(st.sampled_from(KEYS), min_size=1, max_size=5),
                st.integers(1, 60),
                st.sampled_from((0, 0, 50)),
                st.sampled_from((PERSISTENT, PERSISTENT, TRANSIENT)),
            ),
        ),
        max_size=20,
    ),
    st.sampled_from((1_000_000, 7, 3)),
)
def test_no_client_can_tell_sorted_messages_from_single_ones(operations: list[Any], most_of_run: int) -> None:
    together = MixedSide(reads_together=True, most_of_run=most_of_run)
    singly = MixedSide(reads_together=False)
    assert_alike((MixedScript(together), MixedScript(singly)), operations)


@pytest.fixture
def side() -> MixedSide:
    return MixedSide(reads_together=True)


def learn(side: MixedSide, *keys: str) -> None:
    """Publish one message with each key, and another one, so that the broker knows their basic.publish and header."""
    for key in (*keys, keys[0]):
        side.publish(key, bodies(1), PERSISTENT)
    side.rest()
    for key in keys:
        side.client.method("queue.purge", 1, queue=key)
    side.rest()
    side.client.received.clear()


def test_messages_for_several_queues_in_turns_are_a_run_on_each(side: MixedSide) -> None:
    learn(side, *KEYS)
    sent = bodies(60)
    side.publish_in_turns(list(KEYS), sent, PERSISTENT)
    side.rest()
    for number, key in enumerate(KEYS):
        assert max(count for state, count in runs_on(side.queue(key)) if state == RUN) >= 19
        assert [body for _, body, *_ in side.messages(key)] == sent[number::3]
    assert side.confirmed()[64] is True
    assert set(range(5, 65)) <= set(side.confirmed())


def test_nothing_of_what_was_sorted_is_confirmed_before_all_of_it_is_on_the_disk(side: MixedSide) -> None:
    """A number may stand for a message on another queue than that of the message that was sent with it."""
    learn(side, *KEYS)
    side.publish_in_turns(list(KEYS), bodies(60), PERSISTENT)
    side.client.sync()
    assert runs_on(side.queue("t"))
    assert set(side.confirmed()) <= {6}  # the first two were taken by themselves
    side.rest()
    assert set(side.confirmed()) == set(range(1, 65))


def test_messages_without_room_are_refused_by_their_own_numbers(side: MixedSide) -> None:
    learn(side, "d", "e")
    side.queue("e").journal = journal = object()
    side.world.store.room[journal] = 5
    side.publish_in_turns(["d", "e"], bodies(40), PERSISTENT)
    side.rest()
    on_e = [int.from_bytes(body) for _, body, *_ in side.messages("e")]
    assert len(on_e) == 5
    refused = {number for number, is_done in side.confirmed().items() if not is_done}
    assert refused == {4 + number for number in range(40) if number % 2 and number not in on_e}
    assert len(side.messages("d")) == 20


@pytest.mark.parametrize("exchange", ["amq.direct", "amq.topic"])
def test_messages_for_the_same_queue_by_different_keys_keep_their_order(side: MixedSide, exchange: str) -> None:
    for key in ("a", "b"):
        side.client.call("queue.bind", queue="d", exchange=exchange, routing_key=key)
    sent = bodies(50)
    side.send(
        [side.client.message("ab"[number % 2], body, PERSISTENT, exchange=exchange) for number, body in enumerate(sent)]
    )
    side.rest()
    assert [body for _, body, *_ in side.messages("d")] == sent


def test_messages_of_a_transaction_are_not_sorted(side: MixedSide) -> None:
    sent = bodies(40)
    for number, body in enumerate(sent):
        side.client.publish("de"[number % 2], body, channel=2)
    side.rest()
    assert not side.messages("d")
    side.client.method("tx.commit", 2)
    side.rest()
    assert [body for _, body, *_ in side.messages("d")] == sent[::2]
    assert [body for _, body, *_ in side.messages("e")] == sent[1::2]
