"""Subscriptions with a selector, and queues with a filter, as clients meet them."""

from __future__ import annotations

from typing import Any, Final

import pytest

from qstore.broker.model.selectors.selector import Selector
from qstore.formats.amqp_0_10.codes import ErrorCode
from qstore.formats.values import typed_map
from tests.broker.protocols.world import BYTES, MESSAGES, UNLIMITED, WINDOW, Client, header
from tests.conformance.queue_clients import BESIDE, Clients, bodies, clients
from tests.support.compiled import replaces

NOT_ACQUIRED, NO_ACCEPT = 1, 1
ALL = ((0, 0x7FFF_FFFF),)


def publish(client: Client, *numbers: int, key: str = "q", exchange: str = "", **delivery: Any) -> None:
    """Messages with the header `n`; "odd" and "even" in the header `kind`."""
    for number in numbers:
        headers = typed_map({"n": number, "kind": "odd" if number % 2 else "even"})
        head = header({"application_headers": headers}, routing_key=key, **delivery)
        client.command("message.transfer", destination=exchange, header=head, body=b"%d" % number)
    client.sync()


def subscribe(client: Client, selector: Any, *, to: str = "s", queue: str = "q", **values: Any) -> None:
    client.subscribe(queue, to=to, arguments=typed_map({"x-apache-selector": selector}), **values)


def numbers(client: Client) -> list[int]:
    return [int(body) for body in client.take()]


@pytest.fixture
def found() -> Clients:
    made = clients()
    made.here.declare("q")
    return made


def test_each_consumer_receives_the_messages_it_selects(found: Clients) -> None:
    world, here, there = found
    subscribe(here, "kind = 'odd'")
    subscribe(there, b"kind = 'even' AND n > 2")
    publish(here, *range(1, 9))
    assert numbers(here) == [1, 3, 5, 7]
    assert numbers(there) == [4, 6, 8]
    assert bodies(world, "q") == [b"2"]
    there.subscribe("q", to="all")
    assert numbers(there) == [2]


def test_messages_that_were_there_before(found: Clients) -> None:
    world, here, there = found
    publish(there, *range(10))
    subscribe(here, "n BETWEEN 3 AND 5")
    assert numbers(here) == [3, 4, 5]
    here.command("message.accept", transfers=ALL)
    here.sync()
    assert bodies(world, "q") == [b"%d" % number for number in (0, 1, 2, 6, 7, 8, 9)]


def test_browsers_see_the_messages_they_select(found: Clients) -> None:
    world, here, there = found
    publish(there, *range(6))
    subscribe(here, "n >= 2", acquire_mode=NOT_ACQUIRED)
    publish(there, 1, 6)
    assert numbers(here) == [2, 3, 4, 5, 6]
    assert len(bodies(world, "q")) == 8


def test_a_browsed_message_can_be_acquired(found: Clients) -> None:
    world, here, there = found
    publish(there, *range(4))
    subscribe(here, "n = 2", acquire_mode=NOT_ACQUIRED)
    (delivery,) = here.deliveries
    assert here.call("message.acquire", transfers=((delivery.number, delivery.number),))["transfers"]
    subscribe(there, "n > 0")
    assert numbers(there) == [1, 3]
    here.command("message.release", transfers=((delivery.number, delivery.number),), set_redelivered=True)
    here.sync()
    there.sync()
    (delivery,) = there.deliveries
    assert (delivery.body, delivery.is_redelivered) == (b"2", True)
    assert bodies(world, "q") == [b"0"]


def test_an_exclusive_consumer(found: Clients) -> None:
    _world, here, there = found
    subscribe(here, "n = 1", exclusive=True)
    publish(there, 1, 2)
    assert numbers(here) == [1]
    there.command("message.subscribe", queue="q", destination="s")
    assert there.failure()[0] == ErrorCode.RESOURCE_LOCKED


def test_released_messages_go_to_consumers_that_select_them(found: Clients) -> None:
    _world, here, there = found
    subscribe(here, "kind = 'odd'", messages=3)
    subscribe(there, "kind = 'odd' AND JMSRedelivered")
    publish(here, *range(8))
    assert numbers(here) == [1, 3, 5]
    assert numbers(there) == []
    here.command("message.release", transfers=((1, 1),), set_redelivered=True)
    here.command("message.release", transfers=((2, 2),), set_redelivered=False)
    here.sync()
    assert numbers(there) == [3]
    here.flow("s", MESSAGES, 5)
    assert numbers(here) == [5, 7]


def test_messages_of_a_session_that_ends_come_back(found: Clients) -> None:
    world, here, there = found
    subscribe(here, "kind = 'odd'")
    publish(there, *range(4))
    assert numbers(here) == [1, 3]
    here.machine.closed()
    subscribe(there, "kind = 'odd'")
    assert numbers(there) == [1, 3]
    assert bodies(world, "q") == [b"0", b"2"]


def test_only_selected_messages_use_credit(found: Clients) -> None:
    _world, here, there = found
    subscribe(here, "n >= 10", messages=2)
    publish(there, *range(20))
    assert numbers(here) == [10, 11]
    here.flow("s", MESSAGES, 3)
    assert numbers(here) == [12, 13, 14]


def test_bytes_of_credit(found: Clients) -> None:
    """A message that is too large for it waits; one that is not selected does not."""
    _world, here, there = found
    publish(there, 2)
    subscribe(there, "n = 2")
    size = len(there.deliveries[0].header) + 1
    there.command("message.cancel", destination="s")
    subscribe(here, "n > 5", size=2 * size)
    publish(there, *range(1, 6), 6, 8, 6, 8)
    assert numbers(here) == [6, 8]
    here.flow("s", BYTES, size)
    assert numbers(here) == [6]


def test_a_window(found: Clients) -> None:
    _world, here, there = found
    subscribe(here, "kind = 'even'", messages=2, mode=WINDOW)
    publish(there, *range(10))
    taken = []
    while got := numbers(here):
        taken += got
        here.control("session.completed", on=1, commands=((0, len(taken) - 1),), timely_reply=False)
    assert taken == [0, 2, 4, 6, 8]


def test_flush_delivers_all_that_is_selected(found: Clients) -> None:
    _world, here, there = found
    publish(there, *range(100))
    here.command("message.subscribe", queue="q", destination="s", arguments=typed_map({"x-apache-selector": "n > 97"}))
    for unit in (MESSAGES, BYTES):
        here.flow("s", unit, UNLIMITED)
    flushed = here.command("message.flush", destination="s")
    assert numbers(here) == [98, 99]
    assert flushed in here.completed


def test_flush_ends_when_a_long_queue_was_looked_through(found: Clients) -> None:
    """A queue with many messages is looked through in several ticks."""
    world, here, there = found
    publish(there, *range(3500))
    here.command("message.subscribe", queue="q", destination="s", arguments=typed_map({"x-apache-selector": "n=3499"}))
    here.command("message.subscribe", queue="q", destination="t", arguments=typed_map({"x-apache-selector": "n=9999"}))
    here.command("message.subscribe", queue="q", destination="u", arguments=typed_map({"x-apache-selector": "n=1"}))
    for name in "st":
        for unit in (MESSAGES, BYTES):
            here.flow(name, unit, UNLIMITED)
    flushed = [here.command("message.flush", destination=name) for name in "stu"]
    assert len(world.soon) == 1
    world.soon.pop(0)()
    here.read()
    assert not {*flushed[:2]} & here.completed
    assert numbers(here) == [3499]
    assert {*flushed} <= here.completed
    publish(there, 3499)
    assert numbers(here) == []


@pytest.mark.parametrize("end", ["message.cancel", "detach", "close"])
def test_a_flush_of_a_subscription_that_ends_meanwhile(found: Clients, end: str) -> None:
    world, here, there = found
    publish(there, *range(3500))
    here.command("message.subscribe", queue="q", destination="s", arguments=typed_map({"x-apache-selector": "n=3499"}))
    for unit in (MESSAGES, BYTES):
        here.flow("s", unit, UNLIMITED)
    here.command("message.flush", destination="s")
    world.soon.pop(0)()
    if end == "message.cancel":
        here.command(end, destination="s")
    elif end == "detach":
        here.control("session.detach", on=1, name=b"owner")
    else:
        here.machine.closed()
    world.run()
    there.subscribe("q", to="all")
    assert numbers(there) == list(range(3500))


def test_without_accepting(found: Clients) -> None:
    world, here, there = found
    subscribe(here, "n <> 1", accept_mode=NO_ACCEPT)
    publish(there, 0, 1, 2)
    assert numbers(here) == [0, 2]
    assert world.broker.default_host.queues["q"].message_count == 1


def test_in_a_transaction(found: Clients) -> None:
    world, here, there = found
    there.command("tx.select")
    publish(there, 1, 2, 3)
    subscribe(here, "n > 1")
    assert numbers(here) == []
    there.command("tx.commit")
    there.sync()
    assert numbers(here) == [2, 3]
    assert bodies(world, "q") == [b"1"]


@replaces
def test_each_message_is_evaluated_once_for_equal_selectors(found: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[str] = []
    matches = Selector.matches

    def counted(self: Selector, candidate: Any) -> bool:
        evaluated.append(self.text)
        return matches(self, candidate)

    monkeypatch.setattr(Selector, "matches", counted)
    _world, here, there = found
    subscribe(here, "n = 999", messages=1)
    subscribe(here, "n = 999", to="again", messages=1)
    subscribe(there, "n = 1000")
    publish(there, *range(1100))
    assert (numbers(here), numbers(there)) == ([999], [1000])
    assert (evaluated.count("n = 999"), evaluated.count("n = 1000")) == (1100, 1099)
    evaluated.clear()
    for _ in range(10):
        here.flow("s", MESSAGES, 1)
        publish(there, 5)
    subscribe(here, "n = 999", to="third")
    assert len(evaluated) <= 20


# ---- costly ones ----

COSTLY: Final = " OR ".join(["h LIKE '%_b%'"] * 40)


def publish_large(client: Client, *bodies: bytes, tail: str = "") -> None:
    """Messages with a header for which `COSTLY` is much work; it selects those with the tail "b"."""
    head = header({"application_headers": typed_map({"h": "a" * 50_000 + tail})}, routing_key="q")
    for body in bodies:
        client.command("message.transfer", destination="", header=head, body=body)
    client.sync()


@pytest.mark.parametrize("acquire_mode", [0, NOT_ACQUIRED])
def test_others_are_served_between_costly_evaluations(found: Clients, acquire_mode: int) -> None:
    world, here, there = found
    publish_large(there, *[b"no"] * 20)
    publish_large(there, b"yes", tail="b")
    here.command(
        "message.subscribe",
        queue="q",
        destination="s",
        acquire_mode=acquire_mode,
        arguments=typed_map({"x-apache-selector": COSTLY}),
    )
    for unit in (MESSAGES, BYTES):
        here.flow("s", unit, UNLIMITED)
    ticks = 0
    while not here.deliveries:
        world.soon.pop(0)()
        ticks += 1
        done = there.command("execution.sync")
        here.read()
        assert ticks < 200
    assert ticks >= 20
    there.sync()
    assert done in there.completed
    assert here.take() == [b"yes"]


def test_all_that_a_costly_one_selects_is_delivered(found: Clients) -> None:
    _world, here, there = found
    bodies = [b"%d" % number for number in range(30)]
    publish_large(there, *bodies[:15], tail="b")
    subscribe(here, COSTLY)
    publish_large(there, *bodies[15:], tail="b")
    assert here.take() == bodies


def test_a_flush_with_a_costly_one(found: Clients) -> None:
    _world, here, there = found
    publish_large(there, *[b"no"] * 5)
    publish_large(there, b"1", b"2", tail="b")
    here.command("message.subscribe", queue="q", destination="s", arguments=typed_map({"x-apache-selector": COSTLY}))
    for unit in (MESSAGES, BYTES):
        here.flow("s", unit, UNLIMITED)
    flushed = here.command("message.flush", destination="s")
    assert here.take() == [b"1", b"2"]
    assert flushed in here.completed


@pytest.mark.parametrize("flushes", [0, 3])
def test_match_without_byte_credit_waits_for_it(found: Clients, flushes: int) -> None:
    """It takes the room of the connection, and must not be tried again and again."""
    _world, here, there = found
    publish_large(there, b"1", b"2", tail="b")
    subscribe(here, COSTLY, size=10)
    for _ in range(flushes):
        here.flow("s", MESSAGES, 5)
        here.flow("s", BYTES, 10)
        done = here.command("message.flush", destination="s")
        here.sync()
        assert done in here.completed
    assert here.take() == []
    if flushes:
        here.flow("s", MESSAGES, 5)
    here.flow("s", BYTES, 60_000)
    assert here.take() == [b"1"]
    here.flow("s", BYTES, UNLIMITED)
    assert here.take() == [b"2"]


@replaces
def test_match_without_byte_credit_is_evaluated_once(found: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = []
    matches = Selector.matches

    def counted(self: Selector, candidate: Any) -> bool:
        evaluated.append(candidate.is_redelivered)
        return matches(self, candidate)

    monkeypatch.setattr(Selector, "matches", counted)
    _world, here, there = found
    publish(there, 1)
    subscribe(here, "n = 1 AND NOT JMSRedelivered", size=10)
    for _ in range(5):
        here.flow("s", BYTES, 1)
        here.sync()
    assert evaluated == [False]
    there.subscribe("q", to="all")
    there.command("message.release", transfers=ALL, set_redelivered=True)
    there.command("message.cancel", destination="all")
    there.sync()
    here.flow("s", BYTES, UNLIMITED)
    assert here.take() == []
    assert evaluated == [False, True]


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ("n = ", "x-apache-selector is not a selector at character 5: unexpected end"),
        ("n = 'x", "x-apache-selector is not a selector at character 5: the quotes are not closed"),
        ("x" * 9000, "x-apache-selector has 9000 characters, more than 8192"),
        (7, "x-apache-selector is 7, not a string"),
    ],
)
def test_an_invalid_one_is_refused(found: Clients, selector: Any, text: str) -> None:
    world, here, _there = found
    arguments = typed_map({"x-apache-selector": selector})
    here.command("message.subscribe", queue="q", destination="s", arguments=arguments)
    assert here.failure()[0] == ErrorCode.INVALID_ARGUMENT
    assert text in here.exceptions[0]["description"]
    assert world.broker.default_host.queues["q"].consumer_count == 0


@pytest.mark.parametrize("selector", ["", "  ", None])
def test_an_empty_one_selects_all(found: Clients, selector: str | None) -> None:
    _world, here, _there = found
    subscribe(here, selector)
    publish(here, 1, 2)
    assert numbers(here) == [1, 2]


# ---- queues with a filter ----


def test_a_queue_accepts_only_messages_its_filter_selects(found: Clients) -> None:
    world, here, there = found
    here.declare("filtered", arguments=typed_map({"qpid.filter": "kind = 'odd'"}))
    for queue in ("q", "filtered"):
        here.command("exchange.bind", queue=queue, exchange="amq.fanout", binding_key="")
    here.sync()
    publish(there, 1, 2, 3, exchange="amq.fanout")
    publish(there, 4, 5, key="filtered")
    assert bodies(world, "filtered") == [b"1", b"3", b"5"]
    assert bodies(world, "q") == [b"1", b"2", b"3"]
    assert there.exceptions == []


def test_a_filter_beside_no_local(found: Clients) -> None:
    world, here, there = found
    here.declare("own", exclusive=True, arguments=typed_map({"qpid.filter": "n > 1", "no-local": 1}))
    publish(here, 1, 2, key="own")
    publish(there, 1, 2, key="own")
    assert bodies(world, "own") == [b"2"]
    assert world.broker.default_host.queues["own"].message_count == 1


def test_in_a_transaction_a_filter_decides_at_the_commit(found: Clients) -> None:
    world, here, there = found
    here.declare("filtered", arguments=typed_map({"qpid.filter": "n = 2"}))
    there.command("tx.select")
    publish(there, 1, 2, 3, key="filtered")
    there.command("tx.commit")
    there.sync()
    assert bodies(world, "filtered") == [b"2"]


def test_an_invalid_filter_is_refused(found: Clients) -> None:
    world, here, _there = found
    here.command("queue.declare", queue="f", on=BESIDE, arguments=typed_map({"qpid.filter": "n ="}))
    here.sync()
    assert here.exceptions[0]["error_code"] == ErrorCode.INVALID_ARGUMENT
    assert "qpid.filter is not a selector at character 4" in here.exceptions[0]["description"]
    assert "f" not in world.broker.default_host.queues
