"""When passwords are checked: turns of hosts and users, bounds, hosts that fail, answers. The clock is simulated."""

from __future__ import annotations

import heapq
import itertools
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from qstore.broker.network.clients import network_of
from qstore.broker.network.login_checks import (
    FAILING,
    HALF_LIFE_SECONDS,
    MAX_HOSTS,
    MAX_WAITING,
    LoginCheck,
    LoginChecks,
    LoginSchedule,
)
from qstore.broker.security.sasl.exchange import Answer, Challenge, Failure, PasswordCheck, Refused, Success
from qstore.broker.settings import BrokerSettings

SLOW, QUICK = 0.025, 0.000_1
"""Seconds that a check takes."""


class Timer:
    """A call at a time."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Running:
    """The work of a thread."""

    def __init__(self) -> None:
        self.found: Any = None
        self.then: list[Callable[[Running], None]] = []

    def add_done_callback(self, then: Callable[[Running], None]) -> None:
        self.then.append(then)

    def result(self) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class Loop:
    """An event loop whose time passes in `run`; a check in a thread takes as long as its cost says."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._calls: list[tuple[float, int, Timer, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self.begun: list[str] = []
        self.at_once: Counter[object] = Counter()
        self.most: Counter[object] = Counter()

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, function: Callable[..., None], *arguments: Any) -> Timer:
        timer = Timer()
        heapq.heappush(self._calls, (when, next(self._numbers), timer, function, arguments))
        return timer

    def run_in_executor(self, pool: object, work: Any) -> Running:
        check: PasswordCheck = work.__self__
        running = Running()
        self.at_once[pool] += 1
        self.most[pool] = max(self.most[pool], self.at_once[pool])
        is_shortcut = work.__name__ == "run_shortcut"
        if not is_shortcut or not check.is_slow:
            self.begun.append(check.name)

        def end() -> None:
            self.at_once[pool] -= 1
            try:
                running.found = work()
            except Exception as error:
                running.found = error
            for then in running.then:
                then(running)

        self.call_at(self.now + (QUICK if is_shortcut else SLOW), end)
        return running

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._calls and self._calls[0][0] <= end:
            when, _, timer, function, arguments = heapq.heappop(self._calls)
            self.now = max(self.now, when)
            if not timer.is_cancelled:
                function(*arguments)
        self.now = end

    def is_idle(self) -> bool:
        return all(timer.is_cancelled for _, _, timer, _, _ in self._calls)


@dataclass
class Step:
    """A step of a handshake."""

    work: Callable[[], object]
    name: str = ""
    is_slow: bool = False

    def run_work(self) -> object:
        return self.work()


@dataclass
class World:
    """The checks of a broker with two processors."""

    loop: Loop = field(default_factory=Loop)
    known: set[str] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    answers: dict[int, tuple[float, Answer]] = field(default_factory=dict)
    checks: list[LoginCheck] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.logins = LoginChecks(self.loop, BrokerSettings())  # type: ignore[arg-type]

    def log_in(self, host: str, name: str, answer: Answer, *, is_slow: bool = True) -> int:
        """A client asks for a check. Returns its number."""
        number, began = len(self.checks), self.loop.now

        def shortcut() -> Answer | None:
            return Success(name) if name in self.known and isinstance(answer, Success) else None

        what = PasswordCheck(name, lambda: answer, is_slow, shortcut if is_slow else None)

        def done(found: Answer) -> None:
            assert number not in self.answers
            self.answers[number] = self.loop.now - began, found

        self.checks.append(self.logins.check(host, what, done, lambda: number in self.left))
        return number

    def right(self, host: str, name: str, *, is_slow: bool = True) -> int:
        return self.log_in(host, name, Success(name), is_slow=is_slow)

    def wrong(self, host: str, name: str = "nobody", *, is_slow: bool = True) -> int:
        return self.log_in(host, name, Failure("wrong"), is_slow=is_slow)

    def seconds(self, number: int) -> float:
        """After how long a right login was let in."""
        seconds, answer = self.answers[number]
        assert isinstance(answer, Success), answer
        return seconds

    def make_fail(self, *hosts: str) -> None:
        """Make hosts ones that fail, and let their checks end."""
        for host in (*hosts,) * 2 * FAILING:
            self.wrong(host, is_slow=False)
        self.loop.run(10.0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    return World()


def test_login_of_another_host_passes_while_300_wrong_ones_wait(world: World) -> None:
    for number in range(300):
        world.wrong("attacker", f"user{number}")
    first = world.right("other", "anna")
    world.loop.run(1.0)
    second = world.right("third", "anna")
    world.loop.run(1.0)
    assert max(world.seconds(first), world.seconds(second)) <= 2 * SLOW + 0.001


def test_checks_of_clients_that_have_left_are_not_made(world: World) -> None:
    for number in range(300):
        world.wrong("attacker", f"user{number}")
        world.left.add(number)
    here = world.right("attacker", "anna")
    world.loop.run(60.0)
    assert world.seconds(here) <= 2 * SLOW + 0.001
    assert world.loop.begun.count("anna") == 1
    assert len(world.loop.begun) == 1
    assert set(world.answers) == {here}


def test_cancelled_checks_are_neither_made_nor_answered(world: World) -> None:
    numbers = [world.wrong("attacker", f"user{number}") for number in range(50)]
    world.loop.run(SLOW / 2)
    for number in numbers:
        world.logins.cancel(world.checks[number])
    world.loop.run(60.0)
    assert len(world.loop.begun) == 2  # they were in the threads already
    assert world.answers == {}
    assert world.loop.is_idle()


def test_an_answer_that_waits_for_its_time_can_be_cancelled(world: World) -> None:
    number = world.wrong("attacker")
    world.loop.run(0.5)
    world.logins.cancel(world.checks[number])
    assert world.loop.is_idle()
    world.loop.run(60.0)
    assert world.answers == {}


def test_quick_checks_do_not_wait_for_slow_ones(world: World) -> None:
    for number in range(100):
        world.wrong("host", f"user{number}")
    scram = world.right("host", "anna", is_slow=False)
    world.loop.run(0.05)
    assert world.seconds(scram) < SLOW


def test_a_password_that_was_right_before_needs_no_slow_check(world: World) -> None:
    world.known.add("anna")
    for number in range(100):
        world.wrong("host", f"user{number}")
    again = world.right("host", "anna")
    world.loop.run(0.05)
    assert world.seconds(again) < SLOW
    assert "anna" not in world.loop.begun


def test_hosts_take_turns(world: World) -> None:
    for number in range(40):
        world.right("a", f"a{number}")
    others = [world.right(host, host) for host in ("b", "c", "d")]
    world.loop.run(10.0)
    assert all(world.seconds(number) < 6 * SLOW for number in others)
    assert len(world.answers) == 43


def test_users_of_a_host_take_turns(world: World) -> None:
    for _ in range(100):
        world.right("nat", "guessed")
    other = world.right("nat", "anna")
    world.loop.run(10.0)
    assert world.seconds(other) < 4 * SLOW


def test_user_without_failures_waits_for_two_checks_of_a_host_that_guesses_for_the_same_users(world: World) -> None:
    world.make_fail("attacker")
    for _ in range(2):  # the first time they have not failed yet
        for number in range(25):
            world.wrong("attacker", f"user{number}")
        world.loop.run(5.0)
    for number in range(25):
        world.wrong("attacker", f"user{number}")
    world.loop.run(SLOW)
    new = world.right("attacker", "anna")
    world.loop.run(10.0)
    assert world.seconds(new) <= 5 * SLOW + 0.001  # the rest of one, another one with its rest, and its own


def test_ever_new_users_do_not_starve_one_with_a_failure(world: World) -> None:
    world.make_fail("attacker")
    world.wrong("attacker", "anna")
    world.loop.run(1.0)
    for number in range(25):
        world.wrong("attacker", f"old{number}")
    again = world.right("attacker", "anna")
    for number in range(100):
        world.wrong("attacker", f"new{number}")
        world.loop.run(2 * SLOW)
    world.loop.run(10.0)
    assert world.seconds(again) <= 55 * 2 * SLOW  # every other turn is by order
    assert max(world.loop.at_once.values()) == 0


def test_slow_checks_run_in_as_many_threads_as_there_are_processors(world: World) -> None:
    for number in range(20):
        world.right("host", f"user{number}")
    world.loop.run(20 * SLOW / 2 + 0.001)
    assert len(world.answers) == 20
    assert sorted(world.loop.most.values()) == [2, 2]


def test_a_failure_is_answered_after_a_second_and_a_success_at_once(world: World) -> None:
    wrong, right = world.wrong("host"), world.right("host", "anna")
    world.loop.run(10.0)
    assert world.answers[wrong] == (pytest.approx(1.0), Failure("wrong"))
    assert world.seconds(right) < 0.1


def test_a_challenge_is_answered_at_once(world: World) -> None:
    number = world.log_in("host", "", Challenge(b"more"), is_slow=False)
    world.loop.run(0.01)
    assert world.answers[number][1] == Challenge(b"more")


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_host_that_fails_is_answered_later_and_rests(world: World, is_slow: bool) -> None:
    world.make_fail("guesser")
    begun = len(world.loop.begun)
    numbers = [world.wrong("guesser", f"user{number}", is_slow=is_slow) for number in range(30)]
    world.loop.run(0.2)
    assert len(world.loop.begun) - begun <= (5 if is_slow else 21)  # half of a processor; 100 a second
    world.loop.run(20.0)
    assert all(seconds >= 1.99 for seconds, _ in map(world.answers.__getitem__, numbers))
    for number in range(100):
        world.wrong("guesser", f"more{number}", is_slow=is_slow)
        world.loop.run(0.1)
    last = world.wrong("guesser", is_slow=is_slow)
    world.loop.run(20.0)
    assert world.answers[last][0] == pytest.approx(4.0)


def test_right_logins_of_a_host_that_fails_are_answered_at_once(world: World) -> None:
    world.make_fail("nat")
    number = world.right("nat", "anna")
    world.loop.run(1.0)
    assert world.seconds(number) < 2 * SLOW


def test_a_host_that_has_failed_long_ago_is_like_others(world: World) -> None:
    world.make_fail("typist")
    world.loop.run(5 * HALF_LIFE_SECONDS)
    number = world.wrong("typist")
    world.loop.run(10.0)
    assert world.answers[number][0] == pytest.approx(1.0)


def test_hosts_that_fail_leave_a_thread_to_the_others(world: World) -> None:
    hosts = [f"bot{number}" for number in range(20)]
    world.make_fail(*hosts)
    for host, number in itertools.product(hosts, range(10)):
        world.wrong(host, f"user{number}")
    numbers = []
    for _ in range(20):
        world.loop.run(SLOW)
        numbers.append(world.right("clean", "anna"))
    world.loop.run(1.0)
    assert all(world.seconds(number) <= SLOW + 0.001 for number in numbers)


def test_checks_of_a_host_that_fails_are_bounded_and_the_rest_is_refused(world: World) -> None:
    world.make_fail("attacker")
    numbers = [world.wrong("attacker", f"user{number}") for number in range(300)]
    world.loop.run(5.0)
    found = Counter(type(world.answers[number][1]) for number in numbers)
    assert 32 <= found[Failure] <= 40
    assert found[Refused] == 300 - found[Failure]
    refused = next(answer for _, answer in world.answers.values() if isinstance(answer, Refused))
    assert refused.reason == "too many logins are waiting to be checked; try again later"


def test_a_user_finds_room_in_the_queue_of_a_host_that_guesses_another_ones_password(world: World) -> None:
    world.make_fail("nat")
    for _ in range(300):
        world.wrong("nat", "guessed")
    number = world.right("nat", "anna")
    world.loop.run(5.0)
    assert world.seconds(number) < 10 * SLOW


def test_checks_of_all_hosts_are_bounded(world: World) -> None:
    for number in range(3 * MAX_WAITING):
        world.right(f"host{number % 3}", f"user{number}")
    world.loop.run(0.01)
    other = world.right("other", "anna")
    world.loop.run(60.0)
    assert world.seconds(other) <= 6 * SLOW
    refused = sum(isinstance(answer, Refused) for _, answer in world.answers.values())
    assert 2 * MAX_WAITING - 2 <= refused <= 2 * MAX_WAITING + 10


def test_clients_that_have_left_make_room(world: World) -> None:
    for number in range(MAX_WAITING + 10):
        world.left.add(world.right("host", f"user{number}"))
    world.loop.run(0.01)
    for number in range(MAX_WAITING // 2):
        world.right("host", f"later{number}")
    world.loop.run(60.0)
    assert all(isinstance(answer, Success) for _, answer in world.answers.values())
    assert len(world.answers) == MAX_WAITING // 2


def test_all_clients_of_one_host_come_back(world: World) -> None:
    """500 clients behind one address, each with a user of its own, as after a restart of the broker."""
    numbers = [world.right("nat", f"user{number}") for number in range(500)]
    world.loop.run(BrokerSettings().negotiate_seconds)
    assert max(map(world.seconds, numbers)) < BrokerSettings().negotiate_seconds


def test_clients_of_a_network_with_one_wrong_password_come_back(world: World) -> None:
    """Their host fails, since one client tries its wrong password again and again; the others are known."""
    world.make_fail("nat")
    names = [f"user{number}" for number in range(120)]
    world.known.update(names)
    numbers = [world.right("nat", name) for name in names]
    world.wrong("nat")
    world.loop.run(1.0)
    assert max(map(world.seconds, numbers)) < 0.5


def test_handshakes_take_turns_and_leave_a_processor(world: World) -> None:
    done: list[int] = []

    def shake(host: str, number: int) -> None:
        def work() -> bytes:
            return b""

        world.logins.shake_hands(host, Step(work).run_work, lambda _result: done.append(number), lambda: False)

    for number in range(100):
        shake("attacker", number)
    shake("other", 1000)
    login = world.right("attacker", "anna")
    world.loop.run(1.0)
    assert done.index(1000) <= 2
    assert world.seconds(login) < 2 * SLOW
    world.loop.run(10.0)
    assert len(done) == 101
    assert sorted(world.loop.most.values()) == [1, 1, 1]


def test_hosts_that_are_remembered_are_bounded() -> None:
    schedule = LoginSchedule(2)
    for number in range(2 * MAX_HOSTS):
        what = PasswordCheck("name", lambda: Failure(""), is_slow=True)
        check = LoginCheck(f"host{number}", "name", what.run_work, print, lambda: False, 0.0)
        schedule.add(check, schedule.slow, number)
        assert schedule.take(number) is check
        schedule.ended(check, number, has_failed=True)
    assert len(schedule._failures) == MAX_HOSTS
    assert schedule.failures("host0", number) == 0.0
    assert schedule.failures(f"host{number}", number) == 1.0
    assert (schedule.slow.count, schedule.slow.running_in_all, schedule.slow.running) == (0, 0, {})


def test_unhandled_exception_fails_the_login(world: World, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Answer] = []
    world.logins.check("host", PasswordCheck("a", lambda: Success(str(1 // 0))), answers.append, lambda: False)
    world.loop.run(2.0)
    assert answers == [Failure("internal error: ZeroDivisionError")]
    assert "Unhandled exception in a password check or handshake" in caplog.text


def test_a_host_that_fails_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        world.make_fail("guesser")
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line == "Host guesser: 10 logins have failed within a short time: further ones are checked one at a time"


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::1", "::1"),
        ("", ""),
        ("no:address", "no:address"),
    ],
)
def test_addresses_of_one_network_are_one_host(address: str, host: str) -> None:
    assert network_of(address) == host
