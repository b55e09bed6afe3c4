"""Replicated queues: the events that one broker makes, and what another makes of them."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.configuration import Record
from qstore.broker.model.errors import (
    InvalidArgumentError,
    NotImplementedByBrokerError,
    ResourceLimitExceededError,
)
from qstore.broker.model.exchanges.replication import ReplicationExchange
from qstore.broker.model.exchanges.types import join_host
from qstore.broker.model.message import Message, NewMessage
from qstore.broker.model.queues.due import WAITING
from qstore.broker.model.queues.limits import Capacity, Limit
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.replication import events
from qstore.broker.model.replication.events import MessageId, inventories, stored_id
from qstore.broker.model.replication.source import EventGeneration, register_listener
from qstore.broker.settings import BrokerSettings
from qstore.formats.broker_records.topology import REPLICATION_KEY
from qstore.formats.plain import plain_map
from qstore.formats.values import INT32, TypedValue, typed_map
from tests.broker.wired_broker import PlainMessage, Wired, play
from tests.support.fake_store import Model

EVENTS = "events"
BOTH = {"qpid.queue_event_generation": 2}
ENQUEUES = {"qpid.queue_event_generation": 1}


class Source(Model):
    """A broker that sends events, to a queue."""

    def __init__(self, settings: BrokerSettings | None = None, **arguments: Any) -> None:
        super().__init__(settings or BrokerSettings(replication_queue=EVENTS))
        register_listener(self.broker, self.empty_message)
        self.events = self.queue(EVENTS, durable=True, arguments=typed_map(arguments))

    def empty_message(self, new: NewMessage) -> PlainMessage:
        message = self.message(new.routing_key, b"", persistent=new.is_persistent)
        message.numbers = plain_map(new.headers)
        return message

    def replicated(self, name: str, durable: bool = True, **arguments: Any) -> Queue:
        return self.queue(name, durable=durable, arguments=typed_map(BOTH | arguments))

    def take(self) -> list[Message]:
        """The events that wait, when the disk is done."""
        self.sync()
        messages = [entry.message for entry in self.events.entries()]
        self.events.purge()
        self.sync()
        return messages


class Target(Model):
    """A broker that applies them."""

    def __init__(self, before: Target | None = None) -> None:
        super().__init__()
        self.seal = before.seal if before is not None else self.broker.copy_seal
        host = self.broker.default_host
        self.exchange = host.exchanges["replication"] = ReplicationExchange("replication")
        join_host(self.exchange, host.name, host.queues, host.schedule, self.seal)

    def apply(self, *events: Message) -> None:
        for event in events:
            self.broker.router.publish(event, self.exchange)
        self.sync()


def bodies(queue: Queue) -> list[bytes]:
    return [bytes(entry.message.body) for entry in queue.entries()]


def kinds(events: list[Message]) -> list[tuple[int, str]]:
    found = []
    for event in events:
        headers = plain_map(event.headers())
        found.append((headers["qpid.replication.type"], headers["qpid.replication.target_queue"]))
    return found


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog


def lines(logged: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in logged.records]


# ---- the source ----


def test_event_carries_its_headers() -> None:
    source = Source()
    queue = source.replicated("q")
    source.publish("q", b"1", b"2")
    source.sync()
    queue.purge(1)
    first, second, third = source.take()
    (record, *_) = [entry.rid for entry in queue.entries()]
    headers = plain_map(second.headers())
    run = headers.pop("qpid.replication.source")
    assert len(run) == 32
    assert headers == {
        "qpid.replication.type": 1,
        "qpid.replication.target_queue": "q",
        "qpid.replication.seqno": 2,
        "qpid.replication.queue.position": 2,
        "qpid.replication.record": record,
        "qpid.replication.journal": queue.journal.queue_id,
    }
    assert (first.body, second.body, second.is_persistent) == (b"1", b"2", True)
    headers = plain_map(third.headers())
    assert headers["qpid.replication.type"] == 2
    assert (headers["qpid.replication.message"], headers["qpid.replication.seqno"]) == (1, 3)
    assert (third.body, third.is_persistent, third.routing_key) == (b"", True, "q")


def test_which_events_there_are() -> None:
    source = Source()
    source.queue("one", arguments=typed_map(ENQUEUES))
    source.queue("none", arguments=typed_map({"qpid.queue_event_generation": 0}))
    both = source.replicated("both", durable=False)
    for name in ("one", "none", "both"):
        source.publish(name, b"x", persistent=False)
    for queue in list(source.broker.default_host.queues.values()):
        if queue is not source.events:
            queue.purge()
    events = source.take()
    assert kinds(events) == [(1, "one"), (1, "both"), (2, "both")]
    assert not any("qpid.replication.record" in plain_map(event.headers()) for event in events)
    assert both.message_count == 0


def test_transactions_are_reported_at_their_commit() -> None:
    source = Source()
    source.replicated("q")
    for commits in (False, True):
        transaction = source.broker.begin_transaction(0)
        transaction.publish(source.message("q", b"1"), source.broker.default_host.exchanges[""])
        assert source.take() == []
        if commits:
            transaction.commit(lambda _: None)
            source.sync()
        else:
            transaction.discard()
    assert kinds(source.take()) == [(1, "q")]


def test_a_transaction_that_fails_is_not_reported() -> None:
    source = Source()
    queue = source.replicated("q")
    entry = queue.add_uncommitted(source.message("q", b"1"), 0)
    queue.withdraw(entry)
    assert source.take() == []
    source.publish("q", b"2", persistent=False)
    queue.purge()
    assert kinds(source.take()) == [(1, "q"), (2, "q")]


def test_displacement_event_follows_the_enqueue_event() -> None:
    source = Source()
    source.replicated("q", **{"qpid.max_count": 1, "qpid.policy_type": "ring"})
    source.publish("q", b"1", b"2")
    assert kinds(source.take()) == [(1, "q"), (1, "q"), (2, "q")]


def test_the_replication_queue_has_no_events_of_its_own() -> None:
    source = Source(**BOTH)
    source.publish(EVENTS, b"1", persistent=False)
    assert [message.body for message in source.take()] == [b"1"]
    assert source.take() == []


def test_events_that_lead_to_events_end() -> None:
    """A queue behind the exchange for events generates events, too."""
    source = Source(BrokerSettings(replication_exchange="amq.fanout"), **BOTH)
    source.broker.default_host.exchanges["amq.fanout"].bind(source.events, "")
    source.publish(EVENTS, b"1", b"2", persistent=False)
    assert source.events.message_count == 4  # and an event of each
    assert source.events.purge()[0] == 4
    assert source.events.message_count == 4


def test_events_that_do_not_fit_are_missing_and_the_log_says_how_many(logged: pytest.LogCaptureFixture) -> None:
    source = Source(**{"qpid.max_count": 1})
    queue = source.replicated("q")
    assert source.publish("q", b"1", b"2", b"3") == [True] * 3
    assert bodies(queue) == [b"1", b"2", b"3"]
    assert kinds(source.take()) == [(1, "q")]
    source.publish("q", b"4")
    first, last = [line for line in lines(logged) if "missing from replication" in line]
    assert first.startswith(
        'Events are missing from replication, the first of queue "q": Maximum depth exceeded on queue'
    )
    assert last == "2 events are missing from replication; it continues with the next ones"


def test_a_replication_queue_that_is_not_there(logged: pytest.LogCaptureFixture) -> None:
    source = Source(BrokerSettings(replication_queue="another"))
    source.replicated("q")
    source.publish("q", b"1", b"2")
    (line,) = [line for line in lines(logged) if "missing from replication" in line]
    assert 'there is no queue "another"; see --create-replication-queue' in line


def test_events_go_to_an_exchange() -> None:
    source = Source(BrokerSettings(replication_exchange="amq.fanout"))
    source.broker.default_host.exchanges["amq.fanout"].bind(source.events, "")
    source.replicated("q")
    source.publish("q", b"1")
    assert kinds(source.take()) == [(1, "q")]


def test_publishers_of_other_queues_still_wait_for_them() -> None:
    """The stops of a message with several queues outlive the event that comes between."""
    source = Source()
    limits = typed_map({"qpid.max_count": 10, "qpid.flow_stop_count": 1, "qpid.flow_resume_count": 1})
    stopped = source.queue("stopped", arguments=limits)
    queue = source.replicated("q", durable=False)
    for each in (stopped, queue):
        source.broker.default_host.exchanges["amq.fanout"].bind(each, "")
    source.publish("", b"1", b"2", persistent=False, exchange="amq.fanout")
    assert len(source.broker.router.stops) == 1


# ---- the target ----


def test_a_queue_follows_its_source() -> None:
    source, target = Source(), Target()
    queue, copy = source.replicated("q"), target.queue("q", durable=True)
    source.publish("q", b"1", b"2", b"3")
    target.apply(*source.take())
    assert bodies(copy) == [b"1", b"2", b"3"]
    (first, second, _) = queue.entries()
    ids = [plain_map(entry.message.headers()) for entry in copy.entries()]
    made = [target.seal.header("q", stored_id(queue.journal.queue_id, entry.rid)) for entry in queue.entries()]
    assert ids == [{"qpid.replication.copy": header} for header in made]
    assert made[0].startswith(f"#{queue.journal.queue_id}/{first.rid}/")
    for entry in (second, first):
        queue.acquire(entry)
        queue.dequeue(entry)
    target.apply(*source.take())
    assert bodies(copy) == [b"3"]
    assert len(copy.journal.live) == 1


def test_events_that_come_again_are_ignored() -> None:
    source, target = Source(), Target()
    source.replicated("q")
    copy = target.queue("q", durable=True)
    source.publish("q", b"1", b"2")
    events = source.take()
    target.apply(events[0])
    target.apply(*events)
    target.apply(*events)
    assert bodies(copy) == [b"1", b"2"]
    assert copy.messages_enqueued == 2


def restarted(target: Target, *copies: Message) -> tuple[Target, Queue]:
    """The target after a restart, with these messages on the queue."""
    again = Target(target)
    queue = again.queue("q", durable=True)
    for rid, copy in enumerate(copies, 1):
        queue.enter(copy, rid)
        queue.journal.live[rid] = b""
    queue.end_recovery()
    return again, queue


def test_copies_are_known_over_a_restart_of_the_target() -> None:
    source, target = Source(), Target()
    queue, copy = source.replicated("q"), target.queue("q", durable=True)
    source.publish("q", *(b"%d" % number for number in range(300)))
    events = source.take()
    target.apply(*events)
    target, copy = restarted(target, *(entry.message for entry in copy.entries()))
    (first, *_) = queue.entries()
    queue.acquire(first)
    queue.dequeue(first)
    source.publish("q", b"last")
    target.apply(*events[-2:], *source.take())  # in one tick, while the copies are looked for in turns
    assert bodies(copy) == [*(b"%d" % number for number in range(1, 300)), b"last"]


def test_a_forged_copy_keeps_no_message_away() -> None:
    """Who may publish to the queue, or to an exchange bound to it, cannot claim to be the copy of what is to come."""
    source, target = Source(), Target()
    queue, copy = source.replicated("q"), target.queue("q", durable=True)
    source.publish("q", b"0")
    target.apply(*source.take())
    (before,) = [entry.message.header_text("qpid.replication.copy") for entry in copy.entries()]
    identity, _, seal = str(before).rpartition("/")
    where, _, number = identity.rpartition("/")
    forged = []
    for header in (f"{where}/{int(number) + 1}", f"{where}/{int(number) + 1}/{seal}", f"{where}/{int(number) + 1}/"):
        message = target.message("q", b"forged")
        message.numbers = {"qpid.replication.copy": header}
        forged.append(message)
        assert target.broker.router.publish(message, target.broker.default_host.exchanges[""])
    source.publish("q", b"1")
    events = source.take()
    target.apply(*events)
    assert bodies(copy) == [b"0", *[b"forged"] * 3, b"1"]
    target, copy = restarted(target, *forged)
    target.apply(*events)
    assert bodies(copy) == [*[b"forged"] * 3, b"1"]
    queue.purge()
    target.apply(*source.take())
    assert bodies(copy) == [b"forged"] * 3


def test_a_copy_of_one_queue_is_none_on_another() -> None:
    seal = Target().seal
    message = MessageId("run", 7)
    header = seal.header("a", message)
    assert seal.read("a", header) == message
    assert seal.read("b", header) is None
    assert Target().seal.read("a", header) is None


@given(st.text(max_size=40), st.text(alphabet="0123456789abcdef/#\udcff", max_size=40))
def test_no_other_header_is_that_of_a_copy(queue: str, header: str) -> None:
    assert Target().seal.read(queue, header) is None


def test_the_seal_stays_over_a_restart(tmp_path: Path) -> None:
    message = stored_id(1, 2)
    headers = []

    async def declare(stage: Wired) -> None:
        await stage.topology.declare_exchange("r", "replication", durable=True)
        headers.append(stage.broker.copy_seal.header("q", message))

    async def look(stage: Wired) -> None:
        assert stage.broker.copy_seal.read("q", headers[0]) == message

    async def start_without(stage: Wired) -> None:
        """As after an import of definitions, which do not have it."""
        await stage.broker.configuration.change({}, [Record(REPLICATION_KEY, ("copies",))])

    async def start(stage: Wired) -> None:
        await stage.broker.virtual_hosts.start()
        headers[:] = [stage.broker.copy_seal.header("q", message)]

    for part in (declare, look, start_without, start, look):
        play(tmp_path, part)


def test_events_that_wait_are_completed_when_they_are_on_the_disk() -> None:
    source, target = Source(), Target()
    source.replicated("q")
    source.publish("q", b"1", b"2")
    _, two = source.take()
    target, copy = restarted(target, target.message("q", b"0"))
    router = target.broker.router
    assert router.publish(two, target.exchange)
    fanout = router.take_fanout()
    assert fanout is not None
    target.run()
    assert bodies(copy) == [b"0", b"2"]
    assert not fanout.is_over
    target.sync()
    assert fanout.is_over
    assert fanout.error is None


def test_an_error_ends_all_events_that_wait() -> None:
    source, target = Source(), Target()
    source.replicated("q")
    source.publish("q", b"1", b"2", b"3")
    target, copy = restarted(target, target.message("q", b"0"))
    copy.limit = Limit(Capacity(messages=2))
    found = []
    for event in source.take():
        target.broker.router.publish(event, target.exchange)
        found.append(target.broker.router.take_fanout())
    target.sync()
    assert bodies(copy) == [b"0", b"1"]
    assert [fanout is not None and fanout.error is None for fanout in found] == [True, False, False]


def test_an_event_that_is_known_is_completed_with_the_first_one() -> None:
    """Otherwise the source would remove it before it is on the disk here."""
    source, target = Source(), Target()
    queue = source.replicated("q")
    target.queue("q", durable=True)
    source.publish("q", b"1")
    (event,) = source.take()
    assert target.broker.router.publish(event, target.exchange)
    target.run()
    assert target.broker.router.publish(event, target.exchange)
    target.sync()
    queue.purge()
    (event,) = source.take()
    target.apply(event)
    assert target.broker.router.publish(event, target.exchange)


def test_an_event_that_was_delivered_before_makes_a_marked_copy() -> None:
    source, target = Source(), Target()
    source.replicated("q")
    copy = target.queue("q", durable=True)
    source.publish("q", b"1", b"2")
    first, second = source.take()
    target.apply(first, second.with_headers({"qpid.replication.again": TypedValue(INT32, 1)}))
    assert [entry.is_redelivered for entry in copy.entries()] == [False, True]


def test_after_a_crash_what_is_in_doubt_is_repeated() -> None:
    source, target = Source(), Target()
    queue, copy = source.replicated("q"), target.queue("q", durable=True)
    source.publish("q", b"1", b"2", b"3")
    target.apply(*source.take())
    again = Source()
    recovered = again.replicated("q")
    _, second, third = queue.entries()
    for entry in (second, third):  # the dequeue of the first one has no event, nor has the last message
        recovered.enter(entry.message, entry.rid)
    recovered.enter(again.message("q", b"4"), third.rid + 1)
    recovered.end_recovery()
    (generation,) = recovered.displacements
    assert isinstance(generation, EventGeneration)
    assert len(list(generation.resume(recovered, second.rid))) == 1
    target.apply(*again.take())
    assert bodies(copy) == [b"2", b"3", b"4"]
    assert [entry.is_redelivered for entry in copy.entries()] == [False, False, True]


@given(st.sets(st.integers(1, 3000)), st.integers(1, 3))
def test_inventories_deny_what_is_not_there(records: set[int], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "MAX_RANGES", most)
        found = list(inventories("#1", sorted(records)))
    read = [events._read_inventory("#1", each.text) for each in found]
    assert read == found
    for record in range(1, 3002):
        assert any(each.denies(MessageId("#1", record)) for each in read) is (record not in records)
    assert not any(each.denies(MessageId("#2", 1)) for each in read)


def test_stored_messages_are_known_over_a_restart_of_the_source() -> None:
    """Their record ids stay; numbers of events and positions begin anew, and they are not ignored for it."""
    source, target = Source(), Target()
    queue, copy = source.replicated("q"), target.queue("q", durable=True)
    source.publish("q", b"1", b"2")
    source.publish("q", b"lost", persistent=False)
    target.apply(*source.take())
    (_, second, _) = queue.entries()
    again = Source()
    recovered = again.replicated("q")
    entry = recovered.enter(second.message, second.rid)
    recovered.journal.live[second.rid] = b""
    recovered.end_recovery()
    assert again.take() == []
    again.publish("q", b"3", persistent=False)
    recovered.acquire(entry)
    recovered.dequeue(entry)
    target.apply(*again.take())
    assert bodies(copy) == [b"1", b"lost", b"3"]


def test_event_without_a_queue_or_a_copy_is_ignored(logged: pytest.LogCaptureFixture) -> None:
    source, target = Source(), Target()
    queue = source.replicated("q")
    source.publish("q", b"1")
    target.apply(*source.take())
    copy = target.queue("q")
    queue.purge()
    source.publish("q", b"2", b"3")
    target.apply(*source.take())
    assert bodies(copy) == [b"2", b"3"]
    (line,) = [line for line in lines(logged) if "are ignored" in line]
    assert line == 'Events of queue "q" are ignored: there is no such queue here'


def test_scheduled_messages_are_no_copies(logged: pytest.LogCaptureFixture) -> None:
    source, target = Source(), Target()
    source.replicated("q")
    waiting = target.queue(WAITING)
    source.publish("q", b"1")
    (event,) = source.take()
    assert isinstance(event, PlainMessage)
    event.numbers["qpid.replication.target_queue"] = WAITING
    target.apply(event)
    assert (bodies(waiting), waiting.displacements) == ([], (target.broker.default_host.schedule.due_times,))
    assert [line for line in lines(logged) if "are ignored" in line]


def test_a_copy_that_a_consumer_holds_stays() -> None:
    source, target = Source(), Target()
    queue, copy = source.replicated("q"), target.queue("q")
    source.publish("q", b"1")
    target.apply(*source.take())
    consumer = target.consumer(copy)
    target.sync()
    queue.purge()
    target.apply(*source.take())
    assert bodies(copy) == consumer.bodies == [b"1"]


def test_a_queue_that_is_made_again() -> None:
    source, target = Source(), Target()
    queue = source.replicated("q")
    target.queue("q")
    source.publish("q", b"1")
    target.apply(*source.take())
    copy = target.queue("q")
    source.publish("q", b"2")
    queue.purge()
    target.apply(*source.take())
    assert bodies(copy) == []
    assert target.exchange.replica._mirrors["q"].queue is copy


def test_an_event_without_room_can_come_again() -> None:
    source, target = Source(), Target()
    source.replicated("q")
    copy = target.queue("q", arguments=typed_map({"qpid.max_count": 1}))
    source.publish("q", b"1", b"2")
    first, second = source.take()
    target.apply(first)
    with pytest.raises(ResourceLimitExceededError):
        target.apply(second)
    copy.purge()
    target.apply(second)
    assert bodies(copy) == [b"2"]


def test_memory_of_removed_messages_is_freed() -> None:
    source, target = Source(), Target()
    source.replicated("q")
    copy = target.queue("q")
    for number in range(100):
        source.publish("q", b"%d" % number, persistent=False)
    target.apply(*source.take())
    copy.purge()
    mirror = target.exchange.replica._mirrors["q"]
    assert (len(mirror._copies), len(mirror._ids)) == (0, 0)


def test_other_messages_are_ignored_and_nothing_can_be_bound() -> None:
    target = Target()
    queue = target.queue("q")
    target.apply(target.message("q", b"x"))
    assert bodies(queue) == []
    with pytest.raises(NotImplementedByBrokerError, match='exchange "replication" is of type replication'):
        target.exchange.bind(queue, "q")
    transaction = target.broker.begin_transaction(0)
    with pytest.raises(NotImplementedByBrokerError, match="takes no transactions"):
        transaction.publish(target.message("q", b"x"), target.exchange)


_VALUES = st.one_of(st.integers(-3, 3), st.text(max_size=3), st.binary(max_size=3), st.booleans(), st.none())
_NAMES = ["type", "target_queue", "seqno", "queue.position", "message", "source", "record"]


@given(st.lists(st.dictionaries(st.sampled_from(_NAMES), _VALUES), max_size=8))
def test_hostile_events_are_refused_or_ignored(events: list[dict[str, Any]]) -> None:
    target = Target()
    copy = target.queue("q")
    for given_ in events:
        message = target.message("q", b"x", persistent=False)
        message.numbers = {f"qpid.replication.{name}": value for name, value in given_.items()}
        with contextlib.suppress(InvalidArgumentError):
            target.apply(message)
    assert copy.message_count <= len(events)
