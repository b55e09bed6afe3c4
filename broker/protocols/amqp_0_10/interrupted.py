"""Messages whose transfer was interrupted, kept so that their sender can resume them.

A sender that may have to resume a message gives it a resume-id, and a resume-ttl: milliseconds for which the received
part is kept if the session ends, or is detached, in the middle of the content. The sender asks with message.resume how
many bytes of the content were received; the answer for an unknown id is 0. Its next transfer with that resume-id
carries the rest of the content. The header is that of the first part.

A transfer with that resume-id without a preceding message.resume is the complete message again. Interrupted messages
are kept in memory and belong to a user; they are bounded, and the oldest is discarded first.

Source: AMQP 0-10, message.resume (rule unknown-resume-id), delivery-properties (resume-id, resume-ttl). That the
transfer after message.resume is the rest, whatever its fragment-properties say, is our choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from qstore.broker.model.content import Content, content_of, pieces_of
from qstore.broker.model.errors import ResourceLimitExceededError
from qstore.broker.protocols.amqp_0_10.assembly import PartialMessage
from qstore.broker.protocols.amqp_0_10.transfer import MAX_HEADER_BYTES, read_delivery_properties, split_header
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.errors import Amqp010Error

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
        """The transfer of a message was interrupted: keep the received part, if its sender has requested that.

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
        """The user resumes a message. Returns how many bytes of its content were received."""
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
        """Discard messages whose time is over; `now` is in seconds of a monotonic clock."""
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
