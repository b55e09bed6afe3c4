"""A subscription with a selector: it gets only the messages that the selector selects, and leaves the others alone.

The selector is the argument `x-apache-selector` of message.subscribe, as in qpidd, or `x-filter-jms-selector`, as the
Java client calls it. All subscriptions of a queue with the same selector are of one kind: a message that one of them
has declined is not evaluated for the others.

What a selector reads counts like bytes sent to its connection: when the connection has no room left, others are served
first. So a client with a costly selector delays others by one evaluation a tick, not by all of its queue.

Source: Apache Qpid C++, SemanticState.
"""

from __future__ import annotations

from collections.abc import Hashable

from qstore.broker.model.queues.consumer import NOT_FOR_ME, REFUSED
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.selectors.candidate import LastCandidate
from qstore.broker.model.selectors.selector import Selector
from qstore.broker.protocols.amqp_0_10.subscription import ConsumingSession, Subscription


class SelectiveSubscription(Subscription):
    """A consumer with a selector.

    Args:
        session, destination, queue, accept_mode, acquires: as for `Subscription`.
        selector: the selector.
        last: the candidate that any consumer of the broker has examined last.
    """

    __slots__ = ("_kind", "_last", "_selected", "_selector", "_was_redelivered")

    def __init__(
        self,
        session: ConsumingSession,
        destination: str,
        queue: Queue,
        accept_mode: int,
        *,
        acquires: bool,
        selector: Selector,
        last: LastCandidate,
    ) -> None:
        super().__init__(session, destination, queue, accept_mode, acquires=acquires)
        self._selector, self._last = selector, last
        self._kind = ("AMQP 0-10", selector.text)
        self._selected = 0  # position of a message that is selected, but was refused; 0 for none
        self._was_redelivered = False  # whether its delivery would have been marked so

    @property
    def kind(self) -> Hashable:
        """Equal for equal selectors."""
        return self._kind

    def deliver(self, entry: Entry) -> int:
        """Send a message if it is selected, and there is credit for it. Returns as `Consumer.deliver` does."""
        session = self.session
        connection = session.connection
        if not self.message_credit or connection.room <= 0 or not session.can_send:
            return REFUSED
        is_redelivered = entry.is_redelivered
        if entry.position == self._selected and is_redelivered is self._was_redelivered:
            return self._deliver(entry)
        candidate = self._last.of(entry.message, is_redelivered=is_redelivered)
        before = candidate.work
        if self._selector.matches(candidate):
            self._last.forget()
            self._was_redelivered = is_redelivered
            result = self._deliver(entry)
        else:
            result = NOT_FOR_ME
        connection.room -= candidate.work - before
        if connection.room <= 0:
            connection.has_output()  # which gives it new room
        return result

    def _deliver(self, entry: Entry) -> int:
        """Send a selected message. One that there is no credit of bytes for is not evaluated again."""
        result = super().deliver(entry)
        self._selected = entry.position if result == REFUSED else 0
        return result
