"""The sessions of a broker: attached ones, and detached ones that wait to be attached again.

A session belongs to a user and has a name, which is unique among the user's sessions. One that was granted a timeout
outlives its connection for that long; the number of detached sessions is limited.

Other state shared by connections is here, too: the budget of incomplete messages, and that of log lines.

Source: AMQP 0-10, session, rules one-transport-per-session and scoping.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from qstore.broker.log.budget import LogBudget
from qstore.broker.log.logs import WARNING, log_of
from qstore.broker.model.broker import Broker
from qstore.broker.model.events import SessionEnded
from qstore.broker.protocols.admission import Admission
from qstore.broker.protocols.amqp_0_10.interrupted import InterruptedMessages
from qstore.broker.protocols.amqp_0_10.server_session import ServerSession
from qstore.broker.protocols.budget import Budget
from qstore.broker.protocols.machine import DetachedSession


class _Timeout(NamedTuple):
    """When a detached session ends: by the monotonic clock, and in seconds since 1970."""

    ends: float
    expires_at: float


class SessionRegistry:
    """All sessions.

    Args:
        broker: the model.

    Attributes:
        clock: seconds since 1970.
        budget: limits incomplete messages over all connections; at least the maximum message size.
        events: emits events to listeners.
        interrupted: interrupted messages that their senders may resume.
        admission: admits clients whose user is known.
        failed_logins: log lines about rejected clients.
        arguments: logs what is ignored.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.clock, settings = broker.clock, broker.settings
        largest = settings.max_message_bytes
        self.budget = Budget(max(settings.max_unfinished_bytes, largest), largest, broker.tick.turns)
        self.events, self.arguments = broker.events, broker.arguments
        self.interrupted = InterruptedMessages(settings)
        self.admission = Admission(broker.authorization, broker.quotas)
        self.failed_logins = LogBudget(log_of("Security"), WARNING, "failed logins")
        self._sessions: dict[tuple[str, bytes], ServerSession] = {}
        self._detached: dict[ServerSession, _Timeout] = {}  # in order of detaching

    def next_number(self) -> int:
        """The number of a new connection, from 1."""
        return self._broker.next_connection()

    @property
    def has_timestamps(self) -> bool:
        """Whether messages of new connections get their time of arrival."""
        return self._broker.has_timestamps

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, user: str, name: bytes) -> ServerSession | None:
        """The session with that name, attached or detached."""
        return self._sessions.get((user, name))

    def make(self, user: str, name: bytes) -> ServerSession:
        """Create a session. The user has none with that name."""
        session = self._sessions[(user, name)] = ServerSession(name, user, self._broker)
        return session

    def take(self, session: ServerSession) -> None:
        """A detached session is attached again."""
        self._detached.pop(session, None)

    def detached(self, session: ServerSession, now: float) -> None:
        """A session was detached: keep it for its timeout, or end it."""
        if session.is_failed or not session.timeout or not session.is_resumable:
            self.end(session)
            return
        self._detached[session] = _Timeout(now + session.timeout, self.clock() + session.timeout)
        while len(self._detached) > self._broker.settings.max_detached_sessions:
            self.end(next(iter(self._detached)))

    def end(self, session: ServerSession) -> None:
        """End a session."""
        self._detached.pop(session, None)
        is_known = self._sessions.get((session.user, session.name)) is session
        if is_known:
            del self._sessions[(session.user, session.name)]
        session.end()
        if is_known:
            self.events.emit(SessionEnded(), session)

    def on_timer(self, now: float) -> None:
        """End sessions whose timeout is over, and discard expired interrupted messages."""
        self.interrupted.on_timer(now)
        self.failed_logins.on_timer(now)
        for session, timeout in list(self._detached.items()):
            if timeout.ends <= now:
                self.end(session)

    def list_detached(self, now: Callable[[], float]) -> list[DetachedSession]:
        """The detached sessions; `now` returns seconds of the monotonic clock."""
        return [
            DetachedSession(
                session, session.channel, session.remote_host, timeout.expires_at,
                end=partial(self.end, session), extend=partial(self._extend, session, now),
            )
            for session, timeout in self._detached.items()
        ]  # fmt: skip

    def _extend(self, session: ServerSession, now: Callable[[], float]) -> None:
        if session in self._detached:
            self._detached[session] = _Timeout(now() + session.timeout, self.clock() + session.timeout)

    def close(self) -> None:
        """The broker stops: end all detached sessions."""
        for session in list(self._detached):
            self.end(session)
