"""Messages on their way from one side to another (`peer`), for a shovel or a link of a federation.

    ack-mode      a message is acknowledged at the source              after a failure
    ------------  ---------------------------------------------------  ------------------------------------
    on-confirm    when the destination has confirmed it (its disk)     none is lost, some may come twice
    on-publish    when it was sent                                     those in flight may be lost
    no-ack        never: it is gone when the source has sent it        those in flight may be lost

A message that the destination refuses (a full queue) goes back to the source after a delay; until then it takes one of
the places of the prefetch count, so that a destination that refuses everything stops what feeds it. A message that
cannot be published at all (its header does not fit a frame, or cannot be read) is handled in the same way: the others
overtake it, and it returns after each delay until it is removed at the source. With no-ack it is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from qstore.broker.model.errors import InvalidArgumentError
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.model.message import Content
    from qstore.formats.errors import FormatError


class AckMode(Enum):
    """When a message is acknowledged at the source."""

    ON_CONFIRM = "on-confirm"
    ON_PUBLISH = "on-publish"
    NO_ACK = "no-ack"


# ---- values of parameters ----

MIN_DELAY: Final = 0.1
MAX_DELAY: Final = 86_400


def read_text(what: str, value: object) -> str:
    """A name or a key. Raises InvalidArgumentError."""
    if not isinstance(value, str) or len(value.encode("utf-8", "replace")) > 255:
        raise InvalidArgumentError(f"{what} must be a string of at most 255 bytes")
    return value


def read_flag(what: str, value: object) -> bool:
    """Raises InvalidArgumentError: it is not a boolean."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{what} must be true or false")
    return value


def read_delay(what: str, value: object) -> float:
    """Seconds until a new start; 0 for never. Raises InvalidArgumentError."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
    if number == 0 or MIN_DELAY <= number <= MAX_DELAY:
        return float(number)
    raise InvalidArgumentError(f"{what} must be 0 (never), or a number of seconds from {MIN_DELAY} to {MAX_DELAY:,}")


# ---- messages under way ----


class Channel(Protocol):
    """What a side sends messages on, and acknowledges them: that of AMQP 0-9-1, and those that do the same."""

    @property
    def settled_below(self) -> int:
        """All messages that were sent with numbers, from 1 on, below this are confirmed or refused."""

    def publish(self, payload: bytes, header: bytes, body: Content) -> int:
        """Send a message, and return its number. Raises FormatError: it cannot be sent."""

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Acknowledge a message, or all up to it."""

    def nack(self, tag: int) -> None:
        """Return a message to its queue."""


class Carried(Protocol):
    """A side that messages come from or go to."""

    @property
    def channel(self) -> Channel:
        """Its channel."""


class Carrier:
    """What is under way between two open sides.

    Args:
        source, dest: the sides.
        mode: when messages are acknowledged. With ON_CONFIRM the channel of `dest` has confirms.
        delay: seconds until a refused message goes back.
        call_soon: schedules a function for the next iteration of the event loop.
        call_later: schedules a function after a delay in seconds.
        settled: called when messages were acknowledged at the source.
        returned: called with the number of messages that go back to it.
    """

    def __init__(
        self,
        source: Carried,
        dest: Carried,
        mode: AckMode,
        delay: float,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], Any],
        settled: Callable[[], None],
        returned: Callable[[int], None],
    ) -> None:
        self._source, self._dest, self._mode, self._delay = source, dest, mode, delay
        self._call_soon, self._call_later = call_soon, call_later
        self._settled, self._returned = settled, returned
        self._tags: deque[int] = deque()  # of messages that are not confirmed, in the order of their numbers
        self._first = 1  # the number of the first of them
        self._refused: dict[int, int] = {}  # number -> tag of messages that wait to go back
        self._unpublished: dict[int, int] = {}  # those of them without a number, which have -tag
        self._ack_due = 0  # the tag up to which to acknowledge in the next iteration
        self._is_over = False

    @property
    def pending(self) -> int:
        """Messages that are not acknowledged at the source yet."""
        return len(self._tags) + len(self._refused)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._tags and not self._refused and not self._ack_due

    def stop(self) -> None:
        """The sides have ended: nothing is acknowledged any more."""
        self._is_over = True

    def carry(self, tag: int, payload: bytes, header: bytes, body: Content, *, is_acknowledged: bool = True) -> None:
        """Publish a message.

        Args:
            tag: its delivery tag at the source.
            payload: basic.publish.
            header: its content header.
            body: its body.
            is_acknowledged: whether the source expects an acknowledgement.

        Raises:
            FormatError: it cannot be published.
        """
        self._dest.channel.publish(payload, header, body)
        if self._mode is AckMode.ON_CONFIRM:
            self._tags.append(tag)
        elif is_acknowledged and self._refused:
            self._source.channel.ack(tag)  # not all before it: some of those go back
        elif is_acknowledged:
            if not self._ack_due:
                self._call_soon(self._acknowledge_due)
            self._ack_due = tag

    def refuse(self, tag: int) -> None:
        """Return a message to the source, after the delay, that cannot be published and is to be acknowledged."""
        if self._is_over:
            return
        self._acknowledge_due()  # of those before it
        if not self._unpublished:
            self._call_later(max(self._delay, 1.0), self._return_unpublished)
        self._unpublished[-tag] = self._refused[-tag] = tag

    def _return_unpublished(self) -> None:
        found, self._unpublished = self._unpublished, {}
        self._return(found)

    def drop(self, tag: int) -> None:
        """Take a message from the source that is not to be published."""
        if self._mode is not AckMode.NO_ACK:
            self._source.channel.ack(tag)

    def _acknowledge_due(self) -> None:
        """Acknowledge what was published in this tick."""
        tag, self._ack_due = self._ack_due, 0
        if not self._is_over and tag:
            self._source.channel.ack(tag, multiple=True)
            self._settled()

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:
        """As `SideOwner.on_confirmed`: acknowledge messages at the source, which the destination has stored."""
        if self._is_over:
            return
        channel, tags, offset = self._source.channel, self._tags, self._first
        if not is_accepted:
            found = {number: tags[number - offset] for number in range(first, last + 1)}
            self._refused |= found
            self._call_later(max(self._delay, 1.0), lambda: self._return(found))
        elif first == offset and not self._refused:  # all before it are settled
            channel.ack(tags[last - offset], multiple=True)
        else:
            for number in range(first, last + 1):
                channel.ack(tags[number - offset])
        below = self._dest.channel.settled_below
        while self._first < below:
            tags.popleft()
            self._first += 1
        self._settled()

    def _return(self, refused: Mapping[int, int]) -> None:
        """Return messages to the source that the destination has refused."""
        if self._is_over:
            return  # they have returned with the end of its connection
        for number, tag in refused.items():
            del self._refused[number]
            self._source.channel.nack(tag)
        self._returned(len(refused))


def unpublished(key: str, error: FormatError, *, is_lost: bool) -> str:
    """The sentence for the log about a message with a routing key that cannot be published."""
    what = "it is lost (ack-mode no-ack)" if is_lost else "it is tried again until it is removed from its queue there"
    return f'a message with the routing key "{printable(key)}" cannot be published: {error}; {what}'
