"""A subscription with a selector: it gets only the messages that the selector selects, and leaves the others alone.

The selector is the argument `x-apache-selector` of message.subscribe, as in qpidd. All subscriptions of a queue with
the same selector are of one kind: a message that one of them has declined is not evaluated for the others.

Source: Apache Qpid C++, SemanticState.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from qstore.broker.model.queues.consumer import NOT_FOR_ME, REFUSED
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.selectors.candidate import LastCandidate
from qstore.broker.model.selectors.selector import Selector
from qstore.broker.protocols.amqp_0_10.subscription import DeliveringSession, Subscription

SELECTOR: Final = "x-apache-selector"


class SelectiveSubscription(Subscription):
    """A consumer with a selector.

    Args:
        session, destination, queue, accept_mode, acquires: as for `Subscription`.
        selector: the selector.
        last: the candidate that any consumer of the broker has examined last.
    """

    __slots__ = ("_kind", "_last", "_selector")

    def __init__(
        self,
        session: DeliveringSession,
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

    @property
    def kind(self) -> Hashable:
        """Equal for equal selectors."""
        return self._kind

    def deliver(self, entry: Entry) -> int:
        """Send a message if it is selected, and there is credit for it. Returns as `Consumer.deliver` does."""
        session = self.session
        if not self.message_credit or session.connection.room <= 0 or not session.can_send:
            return REFUSED
        last = self._last
        if not self._selector.matches(last.of(entry.message, is_redelivered=entry.is_redelivered)):
            return NOT_FOR_ME
        last.forget()
        return super().deliver(entry)
