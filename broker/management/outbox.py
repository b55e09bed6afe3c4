"""Messages of the management agent: each is put on the queues that its exchange finds for its key.

A message is lost if there is no room for it: on a queue, or in the memory of the broker. So a console that does not
read costs no more than the limit of its queue, or MAX_QUEUE_BYTES, on disk too, and however many there are, publishers
are not slowed down for unsolicited messages, and not refused for replies. When memory is full, replies may take a
little more than the ceiling (`_RESERVE`, half of it on one queue): who looks for the reason gets answers. Events that
are raised while an event of an event is published are not published.

A reply goes to the address in its request, and is therefore authorized as a message of the request's user: if that user
may not publish there, the request is refused, and replies that are under way are dropped. Replies to queues that are
exclusive to the connection of the request, as those of consoles are, need no rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from qstore.broker.model.errors import ModelError, RoutingLimitError
from qstore.broker.model.exchanges.types import MANAGEMENT_EXCHANGES
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.message import ReplyAddress
from qstore.broker.model.topology.checks import is_owned_by
from qstore.broker.settings import QUEUE_LIMIT_BYTES
from qstore.formats.errors import FormatError

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.model.message import MakeMessage, Message, NewMessage
    from qstore.broker.model.queues.queue import Queue

DIRECT, TOPIC, VERSION_1, ENTITIES = MANAGEMENT_EXCHANGES
_DEEP: Final = 2
_UNASKED_SHARE, _REPLY_SHARE = 0.8, 0.95
"""The share of the memory ceiling (`model/memory`) that unsolicited publications and replies may take."""
_RESERVE, _RESERVE_SHARE = 16 << 20, 8
"""Bytes that replies may take beyond that, but at most 1/8 of the ceiling."""
MAX_QUEUE_BYTES: Final = QUEUE_LIMIT_BYTES
"""A queue without a limit that exceeds this gets no messages from the agent: its console does not read."""
_COUNT_SECONDS: Final = 1.0  # between two counts of the memory


class Outbox:
    """Sends the messages of one broker's agent.

    Args:
        broker: the model.
        make_message: encodes messages.

    Attributes:
        lost: how many messages were lost because there was no room for them.
        copies: how many messages were put on queues, each counted once for each queue.
    """

    def __init__(self, broker: Broker, make_message: MakeMessage) -> None:
        self._broker, self._make_message = broker, make_message
        self._depth = 0
        self._next_count = -math.inf
        self._beyond: dict[Queue, None] = {}  # queues with replies that are in the reserve
        self.lost = self.copies = 0

    @property
    def is_sending(self) -> bool:
        """Whether a message is being put on queues."""
        return self._depth > 0

    @property
    def has_consoles(self) -> bool:
        """Whether a queue is bound to any exchange for unsolicited publications, so that events are of interest."""
        exchanges = self._broker.default_host.exchanges
        for name in (TOPIC, VERSION_1):
            found = exchanges.get(name)
            if found is not None and found.has_bindings:
                return True
        return False

    def is_heard(self, exchange: str, key: str) -> bool:
        """Whether a queue is bound for this key, so that a message is worth encoding."""
        found = self._broker.default_host.exchanges.get(exchange)
        if found is None or not found.has_bindings:  # as a rule: no console is attached
            return False
        return self._depth < _DEEP and bool(_queues(found, key))

    def check_reply(self, caller: Caller, address: ReplyAddress) -> None:
        """Raise UnauthorizedError unless the replies to a caller's request may go to this address."""
        if not self._broker.authorization.authorizer.checks_publish:
            return
        exchange = self._broker.default_host.exchanges.get(address.exchange)
        queues: Sequence[Queue] = ()
        if exchange is not None and not exchange.uses_contents and exchange.onward is None:
            queues = _queues(exchange, address.routing_key)
        self._check_reply(caller, address, queues)

    def _check_reply(self, caller: Caller, address: ReplyAddress, queues: Sequence[Queue]) -> None:
        """As `check_reply`; `queues` are those that the replies come to."""
        if not queues or not all(is_owned_by(queue, caller) for queue in queues):
            self._broker.authorization.check_publish(caller, *address)

    def send(
        self, new: NewMessage, *, reply_for: Caller | None = None, make: Callable[[], Message] | None = None
    ) -> None:
        """Send a message: a reply to a caller's request, or an unsolicited message; `make` encodes it another way."""
        exchange = self._broker.default_host.exchanges.get(new.exchange)
        if exchange is None:
            return
        router = self._broker.router
        self._depth += 1
        try:
            message = self._make_message(new) if make is None else make()
            route = router.route(message, exchange)
            size = (message.size + MESSAGE_OVERHEAD) * len(route.queues)
            if reply_for is not None:
                self._check_reply(reply_for, ReplyAddress(new.exchange, new.routing_key), route.queues)
            is_read = all(queue.limit is not None or queue.message_bytes < MAX_QUEUE_BYTES for queue in route.queues)
            has_room = self._has_room(size, _UNASKED_SHARE if reply_for is None else _REPLY_SHARE)
            if not has_room and reply_for is not None:
                has_room = self._is_in_reserve(size, route.queues)
            if not is_read or not has_room:
                self.lost += 1
                return
            router.put(message, route.queues)
            router.count(message, route)
            self.copies += len(route.queues)
        except (ModelError, MemoryError, FormatError):
            self.lost += 1
            return
        finally:
            self._depth -= 1
        self._broker.tick.schedule()

    def _has_room(self, size: int, share: float) -> bool:
        memory = self._broker.memory
        if memory.has_room(size, share):
            return True
        now = self._broker.monotonic()
        if now - self._next_count > _COUNT_SECONDS:  # what was counted last may be gone
            self._next_count = now
            memory.count()
        return memory.has_room(size, share)

    def _is_in_reserve(self, size: int, queues: Sequence[Queue]) -> bool:
        """Whether a reply may be put on its queues although memory is full."""
        memory = self._broker.memory
        if memory.is_exhausted:
            return False
        self._beyond = {queue: None for queue in self._beyond if queue.message_count and not queue.is_deleted}
        reserve = min(_RESERVE, memory.limit // _RESERVE_SHARE)
        held = sum(queue.message_bytes for queue in self._beyond)
        if held + size > reserve or any(queue.message_bytes + size > reserve // 2 for queue in queues):
            return False
        self._beyond |= dict.fromkeys(queues)
        return True


def _queues(exchange: Exchange, key: str) -> Sequence[Queue]:
    """The queues for a routing key; none if finding them takes too many steps."""
    try:
        return exchange.match(key).queues
    except RoutingLimitError:
        return ()
