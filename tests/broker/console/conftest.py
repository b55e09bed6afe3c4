"""A broker for all tests of the console, and agents on it that answer what a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from qstore.broker.client import Connection, Empty, Message
from qstore.broker.management.console import Console
from tests.support.running_broker import RunningBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    running = RunningBroker(tmp_path_factory.mktemp("broker"), "--mgmt-pub-interval", "1")
    yield running.start()
    running.close()


@pytest.fixture
def url(broker: RunningBroker) -> str:
    return f"127.0.0.1:{broker.port}"


@pytest.fixture
def console(url: str) -> Iterator[Console]:
    with Console(url, timeout=20) as opened:
        yield opened


class Said(NamedTuple):
    """One message of an answer."""

    opcode: str
    content: Any
    headers: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    content_type: str | None = None


class OddAgent:
    """An agent that answers each request with the same messages.

    Attributes:
        name: where requests are sent to.
        requests: those that have come.
    """

    def __init__(self, url: str, name: str, answer: list[Said]) -> None:
        self.name, self.requests = name, list[Message]()
        self._answer = answer
        self._connection = Connection(url)
        self._connection.open()
        self._session = self._connection.session()
        self._receiver = self._session.receiver(f"qmf.default.direct/{name}; {{node: {{type: topic}}}}")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._is_over.is_set():
            try:
                request = self._receiver.fetch(0.05)
            except Empty:
                continue
            self._session.acknowledge()
            self.requests.append(request)
            sender = self._session.sender(str(request.reply_to))
            for said in self._answer:
                headers = {"qmf.opcode": said.opcode, "qmf.agent": self.name, **said.headers}
                sender.send(
                    Message(
                        said.content,
                        content_type=said.content_type,
                        properties=headers,
                        correlation_id=request.correlation_id,
                    )
                )
            sender.close()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._connection.close()


@pytest.fixture
def odd_agent(url: str) -> Iterator[Callable[..., OddAgent]]:
    made: list[OddAgent] = []

    def make(*answer: Said) -> OddAgent:
        made.append(OddAgent(url, f"odd-{len(made)}", list(answer)))
        return made[-1]

    yield make
    for each in made:
        each.close()
