"""Receivers with a selector, against a running broker, by both faces."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from qstore.broker.client import AddressError, Empty, Message, SessionError
from tests.broker.client.faces import only_0_10
from tests.support.processes import PATIENCE_SECONDS


@pytest.fixture
def name() -> str:
    return f"q-{uuid.uuid4()}"


def send(session: Any, address: str, *numbers: int) -> None:
    sender = session.sender(address)
    for number in numbers:
        properties = {"n": number, "colour": "red" if number % 3 == 0 else "green"}
        sender.send(Message(f"m{number}", properties=properties, priority=number % 10, durable=True), sync=False)
    sender.sync()


def drain(receiver: Any) -> list[int]:
    found = []
    while True:
        try:
            found.append(receiver.fetch(timeout=0).properties["n"])
        except Empty:
            return found


@pytest.mark.parametrize("capacity", [0, 1, 10])
def test_receivers_with_different_selectors(connection: Any, name: str, capacity: int) -> None:
    address = f'{name}; {{create: always, node: {{durable: true}}, link: {{selector: "%s"}}}}'
    session, other = connection.session(), connection.session()
    red = session.receiver(address % "colour = 'red'", capacity=capacity)
    green = other.receiver(address % "colour = 'green' AND n BETWEEN 4 AND 10", capacity=capacity)
    send(session, name, *range(12))
    assert red.fetch(timeout=PATIENCE_SECONDS).content == "m0"
    assert drain(red) == [3, 6, 9]
    assert drain(green) == [4, 5, 7, 8, 10]
    session.acknowledge()
    other.acknowledge()
    red.close()
    green.close()
    assert drain(session.receiver(name)) == [1, 2, 11]


def test_a_browser(session: Any, name: str) -> None:
    send(session, f"{name}; {{create: always}}", *range(6))
    browser = session.receiver(f'{name}; {{mode: browse, link: {{selector: "JMSPriority > 3"}}}}', capacity=3)
    assert drain(browser) == [4, 5]
    browser.close()
    assert drain(session.receiver(name)) == list(range(6))


@only_0_10
def test_at_an_exchange_the_queue_has_the_filter(session: Any, name: str) -> None:
    node = "create: always, node: {type: topic, x-declare: {type: fanout}}"
    receiver = session.receiver(f"{name}; {{{node}, link: {{name: '{name}-s', selector: \"n > 2\"}}}}")
    send(session, name, *range(5))
    assert drain(session.receiver(f"{name}-s; {{mode: browse}}")) == [3, 4]
    assert drain(receiver) == [3, 4]


@only_0_10
def test_invalid_selector_is_refused(connection: Any, name: str) -> None:
    session = connection.session()
    session.sender(f"{name}; {{create: always}}")
    with pytest.raises(SessionError, match="x-apache-selector is not a selector at character 4: unexpected end"):
        session.receiver(f"{name}; {{link: {{selector: 'n ='}}}}")
    with pytest.raises(AddressError, match=r"link\.selector must be text"):
        connection.session().receiver(f"{name}; {{link: {{selector: [1]}}}}")
