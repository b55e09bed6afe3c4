"""When passwords are checked and TLS handshakes are made: one scheduler for all clients that are not logged in.

Their requests cost processor time, whatever their mechanism and protocol. It is spent in threads:

    lane        check                                                          time, on one core at 3 GHz
    ----------  -------------------------------------------------------------  ----------------------------------
    quick       SCRAM, each step; DIGEST-MD5; CRAM-MD5                         0.1 ms: the keys are in the file
                PLAIN and AMQPLAIN, with a password that was right before      0.03 ms (`Users.recalls`)
                GSSAPI, each token                                             depends on the library
    slow        PLAIN and AMQPLAIN, any other password                         25 ms: scrypt, or PBKDF2
    handshakes  TLS, each read of the socket until the handshake is complete   0.6 ms with a key on the curve P-256,
                                                                               1.6 with RSA 2048, 14 with RSA 4096

Each lane has threads and a queue of its own, so that quick checks never wait for slow ones. The rules:

 1. Hosts take turns, and the users of a host likewise, but every other turn of a host that fails goes to a user with no
    recent failure there, if one waits. So a login waits for the checks that run, and for one of each other host,
    however many these have.
 2. A check whose client has left is not made.
 3. `MAX_WAITING` checks wait in a lane. The one that is too many takes the place of one of the host that has most of
    them, hosts that fail first; if that is its own host, it is refused.
 4. A host that fails is one with `FAILING` failed logins, half of which are forgotten each `HALF_LIFE_SECONDS`. Until
    then, in each lane
      - one check of it runs at a time, and after one that has failed it rests for as long as that took, but at least
        `REST_SECONDS`: it gets at most half a processor, and at most 100 guesses a second;
      - such hosts together leave one thread to the others, if there are two;
      - not all checks may wait: 32 slow ones, 128 quick ones, 256 handshakes. Further ones are refused, first those of
        users that have most. More would make right logins wait for too long, and fewer would refuse the clients of a
        large network that reconnect at the same time, while one of them has a wrong password.
 5. A failed login is answered late: `failed_login_seconds` after the client has sent its response, and after up to four
    times as long for a host that fails. So guessing is slow, and the time does not reveal whether the user exists. A
    right login is answered at once, whatever its host has done before.

What this promises, with two processors: a right login of another host waits for one check that runs, however many
hosts attack, once these have failed; that is 0.1 s with its own check. One of the attacker's own host (a NAT, a local
machine) is not slow if its user has logged in with this password since the start of the broker, and waits for at most
as many checks as rule 4 lets wait: 1.7 s for a slow check, 1.3 s for each quick step. Or it is refused, with advice to
try again. It does so only if the attacker guesses for ever new users; against guesses for the same ones it waits for
two checks.

Hosts are networks of IPv6, see `network_of`. At most `MAX_HOSTS` with failures are remembered.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from qstore.broker.log.logs import WARNING, LogBudget, log_of
from qstore.broker.security.sasl.exchange import Answer, Failure, PasswordCheck, Refused
from qstore.broker.settings import BrokerSettings

_LOG: Final = log_of("Security")

MAX_WAITING: Final = 512
"""Checks that may wait in a lane: PLAIN logins that two threads get done within `--max-negotiate-time`."""
FAILING: Final = 10
MANY: Final = 100
"""Failures from which on a host's failed logins are answered after 4 times as long; from `FAILING` on, after twice."""
HALF_LIFE_SECONDS: Final = 60.0
REST_SECONDS: Final = 0.01
MAX_HOSTS: Final = 4_096
MAX_NAMES: Final = 64
"""Users of a host whose failures are remembered: more than checks of them may wait in the lane of slow ones."""

_QUICK_THREADS: Final = 2  # one more than needed, in case that a disk is slow
_SWEEP_SECONDS: Final = 0.02  # between searches of a full lane for clients that have left
_BUSY: Final = Refused("too many logins are waiting to be checked; try again later")


class LoginCheck:
    """One check: it waits, runs, and may wait for the time of its answer.

    Args:
        host: its client's host.
        name: its user; empty if it is not known.
        work: makes the check; returns None if `slow_work` is needed, in the lane of slow checks.
        slow_work: makes it there.
        done: called with the answer.
        has_left: whether the client has closed the connection.
        began: when it was requested.

    Attributes:
        host, name, work, slow_work, has_left, began: as above.
        lane: where it waits or runs.
        started: when it has begun to run.
        is_of_failing: whether its host was one that fails, then.
        is_over: whether it was answered, or its answer is not needed any more.
        timer: calls for the answer, when it is late.
    """

    __slots__ = (
        "_done", "began", "has_left", "host", "is_of_failing", "is_over", "lane", "name", "slow_work", "started",
        "timer", "work",
    )  # fmt: skip

    def __init__(
        self,
        host: str,
        name: str,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        has_left: Callable[[], bool],
        began: float,
        slow_work: Callable[[], Any] | None = None,
    ) -> None:
        self.host, self.name, self.work, self.slow_work = host, name, work, slow_work
        self._done, self.has_left, self.began = done, has_left, began
        self.lane: Lane | None = None
        self.started = 0.0
        self.is_of_failing = self.is_over = False
        self.timer: asyncio.TimerHandle | None = None

    def answer(self, answer: object) -> None:
        """It is over, with this answer."""
        if not self.is_over:
            done = self._done
            self.drop()
            done(answer)

    def drop(self) -> None:
        """It is over. The references to the connection are dropped, even if a thread still has the check."""
        self.is_over = True
        self._done, self.has_left = _ignore_answer, _left
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def _ignore_answer(_answer: object) -> None:
    """For a check whose connection is gone."""


def _left() -> bool:
    return True


class Lane:
    """The checks of one cost: those that wait, by host and user, each in the order of their turns.

    Attributes:
        threads: how many may run at the same time.
        max_of_failing: how many of a host that fails may wait.
        count: how many wait.
        running: host -> how many run.
        running_in_all: how many run.
        running_of_failing: how many of hosts that failed when they began.
        wakes_at: when a check may run next that waits only for its host's rest; None if none does.
    """

    __slots__ = (
        "_waiting", "count", "max_of_failing", "running", "running_in_all", "running_of_failing", "threads", "wakes_at",
    )  # fmt: skip

    def __init__(self, threads: int, max_of_failing: int) -> None:
        self.threads, self.max_of_failing = threads, max_of_failing
        self._waiting: dict[str, dict[str, dict[LoginCheck, None]]] = {}
        self.running: dict[str, int] = {}
        self.count = self.running_in_all = self.running_of_failing = 0
        self.wakes_at: float | None = None

    def __iter__(self) -> Iterator[LoginCheck]:
        """All that wait."""
        for users in self._waiting.values():
            for checks in users.values():
                yield from checks

    @property
    def hosts(self) -> Iterator[str]:
        """The hosts with checks that wait, the one first whose turn is next."""
        return iter(self._waiting)

    def waiting_of(self, host: str) -> int:
        """The number of waiting checks of a host."""
        return sum(map(len, self._waiting.get(host, {}).values()))

    def add(self, check: LoginCheck) -> None:
        """A check waits."""
        self._waiting.setdefault(check.host, {}).setdefault(check.name, {})[check] = None
        check.lane = self
        self.count += 1

    def remove(self, check: LoginCheck) -> bool:
        """A check does not wait any more. Returns whether it did."""
        users = self._waiting.get(check.host, {})
        checks = users.get(check.name, {})
        if check not in checks:
            return False
        del checks[check]
        if not checks:
            del users[check.name]
            if not users:
                del self._waiting[check.host]
        self.count -= 1
        return True

    def pop(self, host: str, failed: Container[int] = ()) -> LoginCheck:
        """Take the next check of a host: it is the turn of others then, of other users and other hosts.

        Args:
            host: the host.
            failed: hashes of users whose turn it is only if no others wait.
        """
        users = self._waiting.pop(host)
        name = next((each for each in users if hash(each) not in failed), None) or next(iter(users))
        checks = users[name]
        check = next(iter(checks))
        del users[name], checks[check]
        if checks:
            users[name] = checks
        if users:
            self._waiting[host] = users
        self.count -= 1
        return check

    def crowd_out(self, host: str, newcomer: str) -> LoginCheck | None:
        """The last check of the user of a host that has the most; None if a check of `newcomer` is no better."""
        users = self._waiting[host]
        name = max(users, key=lambda each: len(users[each]))
        if len(users[name]) <= len(users.get(newcomer, ())) + 1:
            return None
        return next(reversed(users[name]))


class _Failures:
    """The failed logins of a host: a number that decays, the latest users, and until when it rests in each lane."""

    __slots__ = ("_count", "_counted_at", "_is_turn_of_others", "_names", "rests_until")

    def __init__(self) -> None:
        self._count = self._counted_at = 0.0
        self._is_turn_of_others = False
        self._names: dict[int, None] = {}  # hashes of users; the one that failed last is the last
        self.rests_until: dict[Lane, float] = {}

    def count(self, now: float) -> float:
        return self._count * math.pow(0.5, (now - self._counted_at) / HALF_LIFE_SECONDS)

    def add(self, name: str, now: float) -> None:
        self._count = self.count(now) + 1
        self._counted_at = now
        self._names.pop(hash(name), None)
        self._names[hash(name)] = None
        if len(self._names) > MAX_NAMES:
            del self._names[next(iter(self._names))]

    def take_turn(self) -> Container[int]:
        """A check is taken: hashes of the users that must wait for others, which are none in every other turn."""
        self._is_turn_of_others = not self._is_turn_of_others
        return self._names if self._is_turn_of_others else ()


class LoginSchedule:
    """The rules, without threads and clock. `now` is in seconds of a monotonic clock.

    Args:
        slow_threads: how many slow checks run at the same time. Handshakes leave one processor to others.

    Attributes:
        quick, slow, handshakes: the lanes.
        lanes: all of them.
    """

    def __init__(self, slow_threads: int) -> None:
        self.quick, self.slow = Lane(_QUICK_THREADS, 128), Lane(slow_threads, 32)
        self.handshakes = Lane(max(1, slow_threads - 1), 256)
        self.lanes = (self.quick, self.slow, self.handshakes)
        self._failures: dict[str, _Failures] = {}  # by host, the one with the latest failure last

    def failures(self, host: str, now: float) -> float:
        """The number of recent failed logins of a host."""
        found = self._failures.get(host)
        return 0.0 if found is None else found.count(now)

    def add(self, check: LoginCheck, lane: Lane, now: float) -> LoginCheck | None:
        """A check waits. Returns the one that is refused for it, or is refused itself."""
        refused = self._place(check, lane, now)
        if refused is not check:
            if refused is not None:
                lane.remove(refused)
            lane.add(check)
        return refused

    def is_crowded(self, check: LoginCheck, lane: Lane, now: float) -> bool:
        """Whether one is refused if this check is added."""
        return self._place(check, lane, now) is not None

    def _place(self, check: LoginCheck, lane: Lane, now: float) -> LoginCheck | None:
        """Which check makes room for a new one: this one if none does, None if there is room."""
        host, name = check.host, check.name
        own = lane.waiting_of(host)
        is_failing = self.failures(host, now) >= FAILING
        if is_failing and own >= lane.max_of_failing:
            return lane.crowd_out(host, name) or check
        if lane.count < MAX_WAITING:
            return None
        crowds = ((self.failures(each, now) >= FAILING, lane.waiting_of(each), each) for each in lane.hosts)
        most_failing, most, most_host = max(crowds)
        if most_host == host or (most_failing, most) <= (is_failing, own + 1):
            return (lane.crowd_out(host, name) if own else None) or check
        return lane.crowd_out(most_host, "") or check

    def take(self, now: float) -> LoginCheck | None:
        """The check to begin now, if there is one."""
        for lane in self.lanes:
            lane.wakes_at = None
            if lane.running_in_all >= lane.threads:
                continue
            for host in lane.hosts:
                is_failing = self.failures(host, now) >= FAILING
                if is_failing and not self._may_run(lane, host, now):
                    continue
                check = lane.pop(host, self._failures[host].take_turn() if is_failing else ())
                check.started, check.is_of_failing = now, is_failing
                lane.running[host] = lane.running.get(host, 0) + 1
                lane.running_in_all += 1
                lane.running_of_failing += is_failing
                return check
        return None

    def _may_run(self, lane: Lane, host: str, now: float) -> bool:
        """Whether a check of a host that fails may begin."""
        if lane.running.get(host) or lane.running_of_failing >= max(1, lane.threads - 1):
            return False
        until = self._failures[host].rests_until.get(lane, 0.0)
        if until > now:
            lane.wakes_at = until if lane.wakes_at is None else min(lane.wakes_at, until)
            return False
        return True

    def ended(self, check: LoginCheck, now: float, *, has_failed: bool) -> None:
        """A check that was taken has ended."""
        lane, host = check.lane, check.host
        assert lane is not None
        lane.running[host] -= 1
        if not lane.running[host]:
            del lane.running[host]
        lane.running_in_all -= 1
        lane.running_of_failing -= check.is_of_failing
        if has_failed:
            failures = self._failures.pop(host, None) or _Failures()
            failures.add(check.name, now)
            failures.rests_until[lane] = now + max(now - check.started, REST_SECONDS)
            self._failures[host] = failures
            if len(self._failures) > MAX_HOSTS:
                del self._failures[next(iter(self._failures))]


class LoginChecks:
    """Makes the checks and handshakes in threads, and answers them.

    Args:
        loop: the event loop.
        settings: how many slow checks run at the same time, if there are as many processors, and when failures are
            answered.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: BrokerSettings) -> None:
        self._loop = loop
        threads = max(1, min(settings.password_checks, len(os.sched_getaffinity(0))))
        schedule = self._schedule = LoginSchedule(threads)
        names = {schedule.quick: "login-step", schedule.slow: "password-check", schedule.handshakes: "handshake"}
        self._pools = {lane: ThreadPoolExecutor(lane.threads, name) for lane, name in names.items()}
        self._failed_seconds = settings.failed_login_seconds
        self._latest_seconds = max(settings.failed_login_seconds, settings.negotiate_seconds / 2)
        self._slowed = LogBudget(_LOG, WARNING, "hosts whose logins are slowed")
        self._swept_at = 0.0
        self._wake: asyncio.TimerHandle | None = None
        self._is_closed = False

    def check(
        self, host: str, what: PasswordCheck, done: Callable[[Answer], None], has_left: Callable[[], bool]
    ) -> LoginCheck:
        """Make a check, and call `done` with the result in the event loop, unless it is cancelled.

        Args:
            host: the client's, see `network_of`.
            what: the check.
            done: gets the answer, never before this method returns.
            has_left: whether the client has closed the connection, which the event loop may not have noticed.
        """
        now, schedule = self._loop.time(), self._schedule
        if what.is_slow and what.shortcut is None:
            check = LoginCheck(host, what.name, what.run_work, done, has_left, now)
            self._enter(check, schedule.slow)
        else:
            check = LoginCheck(host, what.name, what.run_shortcut, done, has_left, now, what.run_work)
            self._enter(check, schedule.quick)
        self._begin()
        return check

    def shake_hands(
        self, host: str, work: Callable[[], object], done: Callable[[Any], None], has_left: Callable[[], bool]
    ) -> LoginCheck:
        """Do a step of a TLS handshake, and call `done` with its result, or `Refused`; otherwise as `check`."""
        check = LoginCheck(host, "", work, done, has_left, self._loop.time())
        self._enter(check, self._schedule.handshakes)
        self._begin()
        return check

    def cancel(self, check: LoginCheck) -> None:
        """The connection is closed: do not make the check, if it has not begun, and do not answer it."""
        if not check.is_over:
            check.drop()
            if check.lane is not None:
                check.lane.remove(check)

    def on_timer(self, now: float) -> None:
        """Called at intervals with the time of a monotonic clock, in seconds."""
        self._slowed.on_timer(now)

    def close(self) -> None:
        """Cancel the checks that wait, and make no more."""
        self._is_closed = True
        if self._wake is not None:
            self._wake.cancel()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _enter(self, check: LoginCheck, lane: Lane) -> None:
        """A check waits in a lane, or is refused."""
        now = self._loop.time()
        if now - self._swept_at >= _SWEEP_SECONDS and self._schedule.is_crowded(check, lane, now):
            self._swept_at = now
            for each in [each for each in lane if each.has_left()]:
                self.cancel(each)
        refused = self._schedule.add(check, lane, now)
        if refused is not None:
            self._answer_late(refused, _BUSY, self._failed_seconds)

    def _begin(self) -> None:
        """Begin the checks that may run now."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        schedule = self._schedule
        while not self._is_closed:
            now = self._loop.time()
            check = schedule.take(now)
            if check is None:
                wakes = [lane.wakes_at for lane in schedule.lanes if lane.wakes_at is not None]
                if wakes:
                    self._wake = self._loop.call_at(min(wakes), self._begin)
                return
            if check.has_left():
                check.drop()
                schedule.ended(check, now, has_failed=False)
                continue
            assert check.lane is not None
            future = self._loop.run_in_executor(self._pools[check.lane], check.work)
            future.add_done_callback(partial(self._ran, check))

    def _ran(self, check: LoginCheck, future: asyncio.Future[Any]) -> None:
        """A thread has made a check, or has found that it is a slow one."""
        answer, now = _answer(future), self._loop.time()
        is_failure = isinstance(answer, Failure)  # of a login
        self._schedule.ended(check, now, has_failed=is_failure)
        if is_failure:
            self._failed(check.host, now)
        if check.is_over:
            pass
        elif answer is None and check.slow_work is not None:
            check.work = check.slow_work
            self._enter(check, self._schedule.slow)
        elif is_failure:
            self._answer_late(check, answer, self._delay(check.host, now))
        else:
            check.answer(answer)
        self._begin()

    def _failed(self, host: str, now: float) -> None:
        """Log that a host is one that fails from now on."""
        count = self._schedule.failures(host, now)
        if FAILING <= count < FAILING + 1:
            text = "Host %s: %d logins have failed within a short time: further ones are checked one at a time"
            self._slowed.write(now, text, host, count)

    def _delay(self, host: str, now: float) -> float:
        """After how many seconds a failed login is answered."""
        failures = self._schedule.failures(host, now)
        factor = 1 if failures < FAILING else 2 if failures < MANY else 4
        return min(factor * self._failed_seconds, self._latest_seconds)

    def _answer_late(self, check: LoginCheck, answer: Failure | Refused, seconds: float) -> None:
        check.timer = self._loop.call_at(check.began + seconds, check.answer, answer)


def _answer(future: asyncio.Future[Any]) -> Any:
    """The result of a check; an unhandled exception in it, which is a defect, refuses the login."""
    try:
        return future.result()
    except asyncio.CancelledError:
        return Failure("the broker is shutting down")
    except Exception as error:
        _LOG.exception("Unhandled exception in a password check or handshake")
        return Failure(f"internal error: {type(error).__name__}")
