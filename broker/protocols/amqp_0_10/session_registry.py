"""The sessions of a broker, attached and detached, and messages whose transfer was interrupted.

A session belongs to a user and has a name, which is unique among the user's sessions. A session with a timeout outlives
its connection for that time; the number of detached sessions is limited.

A sender that may have to resume a message gives it a resume-id and a resume-ttl: the milliseconds that the received
part is kept if the session ends, or is detached, in the middle of the content. With message.resume the sender asks how
many bytes of the content were received; the answer for an unknown id is 0. Its next transfer with that resume-id
carries the rest of the content. The header is that of the first part. A transfer with that resume-id without a
preceding message.resume is the complete message again. Interrupted messages are kept in memory and belong to a user;
their number and size are bounded, and the oldest is discarded first.

Source: AMQP 0-10, session, rules one-transport-per-session and scoping; message.resume (rule unknown-resume-id),
delivery-properties (resume-id, resume-ttl). The transfer after message.resume is taken for the rest whatever its
fragment-properties say, which the specification leaves open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from qstore.broker.model.broker import Broker
from qstore.broker.model.errors import ResourceLimitExceededError
from qstore.broker.model.events import SessionEnded
from qstore.broker.model.message import Content, content_of, pieces_of
from qstore.broker.model.virtual_host import VirtualHost
from qstore.broker.protocols.amqp_0_10.assembly import PartialMessage
from qstore.broker.protocols.amqp_0_10.message import MAX_HEADER_BYTES, read_delivery_properties, split_header
from qstore.broker.protocols.amqp_0_10.server_session import ServerSession
from qstore.broker.protocols.machine import DetachedSession
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.named_tuple import NamedTuple


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
        interrupted: interrupted messages that their senders may resume.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.clock, settings = broker.clock, broker.settings
        self._events = broker.events
        self.interrupted = InterruptedMessages(settings)
        self._sessions: dict[tuple[str, str, bytes], ServerSession] = {}  # user, virtual host, name
        self._detached: dict[ServerSession, _Timeout] = {}  # in order of detaching

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, user: str, host: VirtualHost, name: bytes) -> ServerSession | None:
        """The session with that name of a user in a virtual host, attached or detached."""
        return self._sessions.get((user, host.name, name))

    def make(self, user: str, host: VirtualHost, name: bytes) -> ServerSession:
        """Create a session. The user has none with that name in the virtual host."""
        session = self._sessions[(user, host.name, name)] = ServerSession(name, user, self._broker, host)
        return session

    def take(self, session: ServerSession) -> None:
        """Remove a detached session that is attached again."""
        self._detached.pop(session, None)

    def detached(self, session: ServerSession, now: float) -> None:
        """Keep a detached session for its timeout, or end it."""
        if session.is_failed or not session.timeout or not session.is_resumable:
            self.end(session)
            return
        self._detached[session] = _Timeout(now + session.timeout, self.clock() + session.timeout)
        while len(self._detached) > self._broker.settings.max_detached_sessions:
            self.end(next(iter(self._detached)))

    def end(self, session: ServerSession) -> None:
        """End a session."""
        self._detached.pop(session, None)
        key = (session.user, session.virtual_host.name, session.name)
        is_known = self._sessions.get(key) is session
        if is_known:
            del self._sessions[key]
        session.end()
        if is_known:
            self._events.emit(SessionEnded(), session)

    def end_detached_of(self, user: str) -> None:
        """End the detached sessions of a user."""
        for session in [each for each in self._detached if each.user == user]:
            self.end(session)

    def on_timer(self, now: float) -> None:
        """End sessions whose timeout is over, and discard expired interrupted messages."""
        self.interrupted.on_timer(now)
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


MAX_KEPT: Final = 1_000  # messages of all users


@dataclass(slots=True)
class _Kept:
    """The received part of a message, when it expires, and whether the next transfer is the rest of it."""

    header: bytes
    body: Content
    until: float
    is_resumed: bool = False


class InterruptedMessages:
    """All interrupted messages.

    Args:
        settings: the limits.

    Attributes:
        used: bytes of content held.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._max_message_bytes = settings.max_message_bytes
        self._max_bytes = max(settings.max_unfinished_bytes // 4, settings.max_message_bytes)
        self._max_seconds = settings.session_timeout_max_seconds
        self._kept: dict[tuple[str, str], _Kept] = {}
        self.used = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, user: str, begun: PartialMessage, now: float) -> None:
        """Keep the received part of an interrupted message, if its sender has requested that.

        Args:
            user: the sender.
            begun: the received part.
            now: seconds of a monotonic clock.
        """
        try:
            given, _ = split_header(begun.header)
            properties = read_delivery_properties(given, "")
        except Amqp010Error:
            return
        seconds = min(properties.resume_ttl / 1000, self._max_seconds)
        if properties.resume_id is None or not seconds or len(begun.header) > MAX_HEADER_BYTES:
            return
        key = user, properties.resume_id
        before = self._pop(key)
        header, body = begun.header, begun.body
        if before is not None and before.is_resumed:
            header, body = before.header, joined(before.body, body)
        if len(body) > self._max_bytes:
            return
        while self._kept and (self.used + len(body) > self._max_bytes or len(self._kept) >= MAX_KEPT):
            self._pop(next(iter(self._kept)))
        self._kept[key] = _Kept(header, body, now + seconds)
        self.used += len(body)

    def resume(self, user: str, resume_id: str) -> int:
        """Resume a message. Returns how many bytes of its content were received."""
        kept = self._kept.get((user, resume_id))
        if kept is None:
            return 0
        kept.is_resumed = True
        return len(kept.body)

    def take(self, user: str, resume_id: str, rest: Content | None) -> tuple[bytes, Content] | None:
        """Complete a message with a transfer that has its resume-id.

        Returns:
            The header and the content of the message; None if the transfer is the complete message.

        Raises:
            ResourceLimitExceededError: the message is too large.
        """
        kept = self._pop((user, resume_id))
        if kept is None or not kept.is_resumed:
            return None
        body = joined(kept.body, rest or b"")
        if len(body) > self._max_message_bytes:
            raise ResourceLimitExceededError(f"the message is larger than {self._max_message_bytes} bytes")
        return kept.header, body

    def on_timer(self, now: float) -> None:
        """Discard messages whose ttl is over; `now` is in seconds of a monotonic clock."""
        for key in [key for key, kept in self._kept.items() if kept.until <= now]:
            self._pop(key)

    def _pop(self, key: tuple[str, str]) -> _Kept | None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.used -= len(kept.body)
        return kept


def joined(first: Content, second: Content) -> Content:
    """One content after the other, without copying."""
    return content_of([piece for piece in (*pieces_of(first), *pieces_of(second)) if piece])
