"""The life of a link, with a network and a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qstore.broker.federation.link import Link, LinkState, Remote, RemoteLogin

FIRST, SECOND, THIRD = Remote("one", 5672), Remote("two", 5672), Remote("three", 5671, "ssl")


class Timer:
    """A scheduled function."""

    def __init__(self, seconds: float, function: Callable[[], None]) -> None:
        self.seconds, self.function, self.is_cancelled = seconds, function, False

    def cancel(self) -> None:
        self.is_cancelled = True


class World:
    """A network, a clock and an owner."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.attempts: list[tuple[Remote, Callable[[str], None]]] = []
        self.aborted = 0
        self.states: list[LinkState] = []
        self.link = Link(self, FIRST, self, self.call_later)

    def call_later(self, seconds: float, function: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, function))
        return self.timers[-1]

    def connect(self, *arguments: Any) -> Any:
        if len(arguments) == 2:
            raise NotImplementedError("no machine is made here")
        remote, _, lost = arguments
        self.attempts.append((remote, lost))
        return self

    def abort(self) -> None:
        self.aborted += 1

    def link_changed(self, link: Link, before: LinkState) -> None:
        assert link.state is not before
        self.states.append(link.state)

    def lose(self, reason: str = "Connection refused") -> float:
        """End the current attempt. Returns the seconds until the next one, which is begun."""
        self.attempts[-1][1](reason)
        timer = self.timers[-1]
        timer.function()
        return timer.seconds


@pytest.fixture
def world() -> World:
    return World()


def test_the_back_off_doubles_from_2_to_64_seconds(world: World) -> None:
    world.link.start()
    assert [world.lose() for _ in range(8)] == [2, 4, 8, 16, 32, 64, 64, 64]
    assert world.link.last_error == "Connection refused"


def test_a_connection_that_opens_ends_the_back_off(world: World) -> None:
    world.link.start()
    assert [world.lose() for _ in range(3)] == [2, 4, 8]
    world.link.opened()
    assert (world.link.state, world.link.last_error) == (LinkState.OPERATIONAL, "")
    assert world.lose("Closed by peer") == 2
    assert world.states[-3:] == [LinkState.OPERATIONAL, LinkState.WAITING, LinkState.CONNECTING]


def test_learned_addresses_are_tried_one_interval_apart_before_the_time_doubles(world: World) -> None:
    world.link.start()
    world.link.opened()
    world.link.learn([FIRST, SECOND, THIRD, SECOND])
    assert world.link.learned == (SECOND, THIRD)
    waits = [world.lose() for _ in range(7)]
    tried = [remote for remote, _ in world.attempts]
    assert tried == [FIRST, FIRST, SECOND, THIRD, FIRST, SECOND, THIRD, FIRST]
    assert waits == [2, 2, 2, 4, 2, 2, 8]


def test_a_refused_login_is_tried_again_with_the_same_back_off(world: World) -> None:
    world.link.start()
    waits = []
    for _ in range(7):
        world.link.refused("Authentication failed")
        world.attempts[-1][1]("Closed by peer")
        assert world.link.state is LinkState.FAILED
        assert world.link.last_error == "Authentication failed"
        waits.append(world.timers[-1].seconds)
        world.timers[-1].function()
        assert world.link.state is LinkState.CONNECTING
    assert waits == [2, 4, 8, 16, 32, 64, 64]


def test_a_failed_link_can_be_restarted_at_once(world: World) -> None:
    world.link.start()
    world.link.refused("the broker is shutting down")
    world.attempts[-1][1]("Closed by peer")
    world.link.restart()
    assert world.timers[-1].is_cancelled
    world.link.opened()
    assert (world.link.state, world.link.last_error) == (LinkState.OPERATIONAL, "")


def test_a_closed_link_stays_closed(world: World) -> None:
    world.link.start()
    world.attempts[-1][1]("Connection refused")
    world.link.close()
    assert world.timers[-1].is_cancelled
    world.timers[-1].function()
    assert world.link.state is LinkState.CLOSED
    assert len(world.attempts) == 1
    world.link.restart()
    assert world.link.state is LinkState.CLOSED


def test_closing_aborts_the_attempt_and_ignores_its_end(world: World) -> None:
    world.link.start()
    world.link.close()
    world.attempts[-1][1]("Cancelled")
    assert world.aborted == 1
    assert world.states == [LinkState.CONNECTING, LinkState.CLOSED]


def test_the_end_of_an_earlier_attempt_is_ignored(world: World) -> None:
    world.link.start()
    world.lose()
    world.attempts[0][1]("late")
    assert world.link.state is LinkState.CONNECTING


def test_a_login_does_not_show_its_password() -> None:
    assert "secret" not in repr(RemoteLogin("PLAIN", "bob", "secret"))
