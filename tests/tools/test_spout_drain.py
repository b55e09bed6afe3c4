"""`spout` and `drain`: what they send, receive and print."""

from __future__ import annotations

import logging
import uuid

import pytest

from qstore.broker.client import Connection, Message
from qstore.broker.client.address import CLIENT_LOGGER
from qstore.broker.client.links import DELAY
from qstore.tools import drain, spout
from qstore.tools.messaging import PrintFormatError, StallWatch, described, formatted
from tests.tools.management_runs import Runs, broker, url  # noqa: F401 (fixtures)


@pytest.fixture
def send(url: str) -> Runs:  # noqa: F811
    return Runs(spout.command, url)


@pytest.fixture
def receive(url: str) -> Runs:  # noqa: F811
    return Runs(drain.command, url)


@pytest.fixture
def queue(send: Runs, receive: Runs) -> str:
    name = f"q-{uuid.uuid4()}"
    receive.text(f"{name}; {{create: always}}")
    return name


def test_a_message(send: Runs, receive: Runs, queue: str) -> None:
    (sent,) = send.lines(queue, "hello", "world", "-S", "news", "-P", "a=1", "-I", "me", "-R", "back", "-d")
    assert sent == (
        "Message(subject='news', reply_to='back', durable=True, properties={'spout-id': 'me:0', 'a': 1},"
        " content='hello world')"
    )
    (found,) = receive.json(queue)
    assert (found["content"], found["subject"], found["durable"]) == ("hello world", "news", True)
    assert found["properties"]["spout-id"] == "me:0"
    assert receive.lines(queue) == []


def test_counts_and_maps(send: Runs, receive: Runs, queue: str) -> None:
    assert len(send.lines(queue, "-c", "5", "-M", "k=v", "-M", "n=2")) == 5
    assert receive.lines("-c", "2", "-p", "%(M.content[k])s %(M.properties[spout-id])s", queue)[0].startswith("v ")
    assert len(receive.lines(queue)) == 3
    assert send.json(queue, "--content", "x")[0]["content"] == "x"
    assert receive.lines("-p", "%(M.content)r 100%%", queue) == ["'x' 100%"]


def test_several_addresses(send: Runs, receive: Runs, queue: str) -> None:
    other = f"{queue}-2"
    send.text(f"{other}; {{create: always}}", "2")
    send.text(queue, "1")
    assert sorted(receive.lines("-p", "%(M.content)s", queue, other)) == ["1", "2"]
    assert receive.lines("-t", "0.1", queue, other) == []


def test_a_time_limit_of_sending(send: Runs, receive: Runs, queue: str) -> None:
    assert send.lines(queue, "-c", "0", "-t", "0") == []
    assert send.lines(queue, "-c", "0", "-t", "0.05")
    assert receive.lines(queue)


def test_failures(send: Runs, receive: Runs) -> None:
    assert "no such queue or exchange: 'nosuch'" in receive.fails("nosuch")
    assert "no such queue or exchange: 'nosuch'" in send.fails("nosuch")
    assert "Missing argument" in send.fails(code=2)
    assert "Missing argument" in receive.fails(code=2)
    assert "the format has 'x'" in receive.fails("-p", "%(x)s", "nosuch", code=2)
    assert "connection refused" in Runs(spout.command, "127.0.0.1:1").fails("-r", "-l", "0", "x")


@pytest.mark.parametrize(
    "pattern",
    ["%(M.__class__)s", "%(M.content.x)s", "%(x)s", "%(M", "%(M)q", "%d", "%(M.delivery)s", "%(M._body)s", "%"],
)
def test_formats_that_are_none(pattern: str) -> None:
    with pytest.raises(PrintFormatError):
        formatted(Message("x"), pattern)


def test_formats() -> None:
    message = Message({"a": {"b": 1}}, subject="s", priority=3, ttl=1.5, id=uuid.UUID(int=1), properties={"p q": "x"})
    assert formatted(
        message, "%(M.content['a'][b])s %(M.properties[p q])s %(M.properties[z])s %(M.content[a][b][c])s"
    ) == ("1 x None None")
    assert described(message) == (
        "Message(id=UUID('00000000-0000-0000-0000-000000000001'), subject='s', priority=3, ttl=1.5,"
        " properties={'p q': 'x'}, content={'a': {'b': 1}})"
    )
    assert (
        described(Message(b"x", content_type="application/x")) == "Message(content_type='application/x', content=b'x')"
    )


def test_verbose_says_when_it_is_connected(send: Runs) -> None:
    result = send.result("-v", f"verbose-{uuid.uuid4()}; {{create: always}}")
    assert "spout: Connected to 127.0.0.1:" in result.stderr
    assert "onnected" not in send.result(f"quiet-{uuid.uuid4()}; {{create: always}}").stderr


def test_warnings_of_the_client_are_shown_while_messages_are_sent(send: Runs) -> None:
    result = send.result("-v", f"some-{uuid.uuid4()}; {{create: always, x-nonsense: 1}}")
    assert result.exit_code == 0
    assert "the option x-nonsense is ignored" in result.stderr


def test_a_watch_replaces_the_warnings_of_the_client_about_delays(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger(CLIENT_LOGGER)
    with StallWatch("test", Connection("localhost")):
        log.warning("delayed", extra={DELAY: 5.0})
        log.warning("another")
    log.warning("delayed afterwards", extra={DELAY: 5.0})
    assert caplog.messages == ["another", "delayed afterwards"]


def test_ha_admin_is_reported(send: Runs) -> None:
    result = send.result("--ha-admin", f"some-{uuid.uuid4()}; {{create: always}}")
    assert result.exit_code == 0
    assert "--ha-admin is ignored: no broker is the backup" in result.stderr
