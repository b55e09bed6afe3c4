"""Logins over HTTP: clients that are not logged in do not lock others out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from qstore.tools.web.amqp import LoginError, UserConnection
from qstore.tools.web.logins import MAX_FAILURES, Logins, TooManyFailuresError

ATTACKER = "192.0.2.1"


class SlowBroker:
    """A broker that answers logins when the test says so.

    Attributes:
        asked: the passwords that it has been asked for.
        answers: lets all those be answered.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.answers = asyncio.Event()
        monkeypatch.setattr(UserConnection, "log_in", self._log_in)

    async def _log_in(self, _place: Any, user: str, password: str, _peer: str, **_options: Any) -> Any:
        self.asked.append(password)
        if password != "right":
            await self.answers.wait()
            raise LoginError("no")

        class Connection:
            pass

        connection: Any = Connection()
        connection.user = user
        return connection


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def make_logins() -> Callable[[], Logins]:
    place: Any = None
    return lambda: Logins(place, "", {}, admits_anonymous=False)


async def test_logins_at_the_same_time_count_as_failed(
    monkeypatch: pytest.MonkeyPatch, make_logins: Callable[[], Logins]
) -> None:
    broker, logins = SlowBroker(monkeypatch), make_logins()
    tries = [asyncio.create_task(logins.session("guest", f"wrong {number}", ATTACKER)) for number in range(500)]
    await settle()
    broker.answers.set()
    ended = await asyncio.gather(*tries, return_exceptions=True)
    assert len(broker.asked) == MAX_FAILURES
    assert sum(isinstance(each, TooManyFailuresError) for each in ended) == 500 - MAX_FAILURES
    with pytest.raises(TooManyFailuresError):
        await logins.session("guest", "right", ATTACKER)
    assert not logins._hosts


async def test_others_do_not_wait_for_a_host_that_guesses(
    monkeypatch: pytest.MonkeyPatch, make_logins: Callable[[], Logins]
) -> None:
    broker, logins = SlowBroker(monkeypatch), make_logins()
    tries = [asyncio.create_task(logins.session("guest", f"wrong {number}", ATTACKER)) for number in range(500)]
    await settle()
    assert (await asyncio.wait_for(logins.session("guest", "right", "198.51.100.7"), 5)).user == "guest"
    broker.answers.set()
    await asyncio.gather(*tries, return_exceptions=True)


async def test_a_network_of_ipv6_is_one_host(
    monkeypatch: pytest.MonkeyPatch, make_logins: Callable[[], Logins]
) -> None:
    broker, logins = SlowBroker(monkeypatch), make_logins()
    broker.answers.set()
    for number in range(MAX_FAILURES):
        with pytest.raises(LoginError):
            await logins.session("guest", f"wrong {number}", f"2001:db8::{number:x}")
    with pytest.raises(TooManyFailuresError):
        await logins.session("guest", "wrong", "2001:db8::ffff")


async def test_requests_with_the_same_password_are_one_login(
    monkeypatch: pytest.MonkeyPatch, make_logins: Callable[[], Logins]
) -> None:
    broker, logins = SlowBroker(monkeypatch), make_logins()
    sessions = await asyncio.gather(*(logins.session("guest", "right", ATTACKER) for _ in range(50)))
    assert len(set(map(id, sessions))) == 1
    assert broker.asked == ["right"]
