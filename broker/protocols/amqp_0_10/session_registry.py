"""The sessions of a broker: those that are attached to a connection, and those that wait to be attached again.

A session belongs to a user and has a name, which is unique among the user's sessions. One that was granted a timeout
outlives its connection for so long; there is a limit to how many do.

What else connections have in common is here, too: the room for unfinished messages, and for lines in the log.

Source: AMQP 0-10, session, rules one-transport-per-session and scoping.
"""

from __future__ import annotations

from broker.log.budget import LogBudget
from broker.log.logs import WARNING, log_of
from broker.model.broker import Broker
from broker.protocols.amqp_0_10.assembly import Budget
from broker.protocols.amqp_0_10.interrupted import InterruptedMessages
from broker.protocols.amqp_0_10.server_session import ServerSession


class SessionRegistry:
    """All sessions.

    Args:
        broker: the model.

    Attributes:
        budget: what the messages may hold of which a part has come, over all connections; one of the largest may come
            in any case.
        events: what happens, for those who listen.
        interrupted: messages of which a part has come, and whose senders may go on with them.
        checks_publish: whether messages may be refused by the broker's authorizer.
        failed_logins: lines about clients that are not let in.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        settings = broker.settings
        self.budget = Budget(max(settings.max_unfinished_bytes, settings.max_message_bytes))
        self.events = broker.events
        self.interrupted = InterruptedMessages(settings)
        self.checks_publish = broker.authorization.authorizer.checks_publish
        self.failed_logins = LogBudget(log_of("Security"), WARNING, "failed logins")
        self._sessions: dict[tuple[str, bytes], ServerSession] = {}
        self._detached: dict[ServerSession, float] = {}  # until when it is kept, in order of being detached

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, user: str, name: bytes) -> ServerSession | None:
        """The session of that name, attached or not."""
        return self._sessions.get((user, name))

    def make(self, user: str, name: bytes) -> ServerSession:
        """A new session. The user has none of that name."""
        session = self._sessions[(user, name)] = ServerSession(name, user, self._broker)
        return session

    def take(self, session: ServerSession) -> None:
        """A session that was detached is attached again."""
        self._detached.pop(session, None)

    def detached(self, session: ServerSession, now: float) -> None:
        """A session has no connection any more: it is kept for its timeout, or ended."""
        if session.is_failed or not session.timeout or not session.is_resumable:
            self.end(session)
            return
        self._detached[session] = now + session.timeout
        while len(self._detached) > self._broker.settings.max_detached_sessions:
            self.end(next(iter(self._detached)))

    def end(self, session: ServerSession) -> None:
        """A session is over."""
        self._detached.pop(session, None)
        if self._sessions.get((session.user, session.name)) is session:
            del self._sessions[(session.user, session.name)]
        session.end()

    def tick(self, now: float) -> None:
        """End the sessions whose timeout is over, and forget what was kept long enough."""
        self.interrupted.tick(now)
        self.failed_logins.tick(now)
        for session, until in list(self._detached.items()):
            if until <= now:
                self.end(session)

    def close(self) -> None:
        """The broker stops: none of those that are detached can come back."""
        for session in list(self._detached):
            self.end(session)
