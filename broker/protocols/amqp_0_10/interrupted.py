"""Messages whose transfer was interrupted, kept for a sender that comes back for them.

A sender that may have to resume a message gives it a resume-id, and a resume-ttl: milliseconds for which the part that
came is kept when the session ends, or is detached, within the message's content. The sender asks with message.resume
how many bytes of the content are here; 0 is the answer where nothing is known of that id. Its next transfer with that
resume-id has the rest of the content. The header is that of the first part.

A transfer with that resume-id that nobody has asked about is the whole message again. What is kept is in memory and
belongs to a user; it is bounded, and what was kept first is forgotten first.

Source: AMQP 0-10, message.resume (rule unknown-resume-id), delivery-properties (resume-id, resume-ttl). That what
follows message.resume is the rest, whatever its fragment-properties say, is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.model.content import Content, content_of, pieces_of
from broker.model.errors import ResourceLimitExceededError
from broker.protocols.amqp_0_10.assembly import Begun
from broker.protocols.amqp_0_10.transfer import MOST_HEADER_BYTES, read_delivery_properties, split_header
from broker.settings import BrokerSettings
from formats.amqp_0_10.errors import Amqp010Error

MOST_KEPT: Final = 1_000  # messages of all users


@dataclass(slots=True)
class _Kept:
    """A part of a message: its header and content, until when it is kept, and whether the rest is to come next."""

    header: bytes
    body: Content
    until: float
    is_resumed: bool = False


class InterruptedMessages:
    """All that are kept.

    Args:
        settings: the limits.

    Attributes:
        used: bytes of content that are kept.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._most_message_bytes = settings.max_message_bytes
        self._most_bytes = max(settings.max_unfinished_bytes // 4, settings.max_message_bytes)
        self._most_seconds = settings.session_timeout_max_seconds
        self._kept: dict[tuple[str, str], _Kept] = {}
        self.used = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, user: str, begun: Begun, now: float) -> None:
        """The transfer of a message was interrupted: keep the part that came, if its sender asks for that.

        Args:
            user: the sender.
            begun: what has come.
            now: seconds of a clock that does not go back.
        """
        try:
            given, _ = split_header(begun.header)
            properties = read_delivery_properties(given, "")
        except Amqp010Error:
            return
        seconds = min(properties.resume_ttl / 1000, self._most_seconds)
        if properties.resume_id is None or not seconds or len(begun.header) > MOST_HEADER_BYTES:
            return
        key = user, properties.resume_id
        before = self._pop(key)
        header, body = begun.header, begun.body
        if before is not None and before.is_resumed:
            header, body = before.header, joined(before.body, body)
        if len(body) > self._most_bytes:
            return
        while self._kept and (self.used + len(body) > self._most_bytes or len(self._kept) >= MOST_KEPT):
            self._pop(next(iter(self._kept)))
        self._kept[key] = _Kept(header, body, now + seconds)
        self.used += len(body)

    def resume(self, user: str, resume_id: str) -> int:
        """The user goes on with a message. Returns how many bytes of its content are here."""
        kept = self._kept.get((user, resume_id))
        if kept is None:
            return 0
        kept.is_resumed = True
        return len(kept.body)

    def take(self, user: str, resume_id: str, rest: Content | None) -> tuple[bytes, Content] | None:
        """A transfer with that resume-id is here.

        Returns:
            The header and the content of the message; None if what came is all of it.

        Raises:
            ResourceLimitExceededError: the message is larger than may be.
        """
        kept = self._pop((user, resume_id))
        if kept is None or not kept.is_resumed:
            return None
        body = joined(kept.body, rest or b"")
        if len(body) > self._most_message_bytes:
            raise ResourceLimitExceededError(f"a message is larger than {self._most_message_bytes} bytes")
        return kept.header, body

    def tick(self, now: float) -> None:
        """Forget what was kept long enough."""
        for key in [key for key, kept in self._kept.items() if kept.until <= now]:
            self._pop(key)

    def _pop(self, key: tuple[str, str]) -> _Kept | None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.used -= len(kept.body)
        return kept


def joined(first: Content, second: Content) -> Content:
    """One content after the other, of which nothing is copied."""
    return content_of([piece for piece in (*pieces_of(first), *pieces_of(second)) if piece])
