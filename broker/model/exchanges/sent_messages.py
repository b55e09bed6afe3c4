"""What an exchange does with published messages besides routing them. Most exchanges do nothing.

`qpid.msg_sequence`: each message gets a sequence number, an int64, as the application header `qpid.msg_sequence`, which
replaces an existing one. The first number is 0; after the largest int64 comes the smallest.

`qpid.ive` (initial value exchange): the last message is kept, with its number, and offered to each later binding. Only
one message is kept, so its memory is bounded by the maximum message size.

Rules where the sources leave a choice:

    published   by a client, to this exchange. Messages that arrive because it is an alternate exchange are neither
                numbered nor kept: a message has the number of the exchange that it was published to.
    unroutable  messages count like any other.
    refused     by a full queue: the number is not reused, and the last message is unchanged.
    commit      a message of a transaction is numbered at commit, so that numbers ascend on every queue.
    restart     numbers begin again at 0, and no message is kept: neither is stored, as in qpidd
                (formats/broker_records/README.md, 4.3). So a consumer that sees a number decrease knows that the broker
                was restarted.

Sources: Qpid C++ Broker Book, 1.3.1.1 and 1.3.1.2; MRG 2 Messaging User Guide, 2.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qstore.broker.model.arguments import INITIAL_VALUE, SEQUENCE, is_switched_on
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.message import Message

_MAX: Final = (1 << 63) - 1
_MIN: Final = -(1 << 63)


class SentMessages:
    """The numbering and the last message of one exchange.

    Args:
        numbers: whether messages are numbered.
        keeps_last: whether the last one is kept.

    Attributes:
        next_number: the number of the next message.
        last: the last message, if it is kept and there was one.
    """

    __slots__ = ("_keeps_last", "_numbers", "last", "next_number")

    def __init__(self, *, numbers: bool, keeps_last: bool) -> None:
        self._numbers, self._keeps_last = numbers, keeps_last
        self.next_number = 0
        self.last: Message | None = None

    def number(self, message: Message) -> Message:
        """The message with its number, if messages are numbered.

        Raises:
            InvalidArgumentError: its headers cannot be decoded.
        """
        if not self._numbers:
            return message
        number = self.next_number
        numbered = message.with_number(SEQUENCE, number)
        self.next_number = _MIN if number == _MAX else number + 1
        return numbered

    def keep(self, message: Message) -> None:
        """Keep a message that `number` returned, after it was enqueued."""
        if self._keeps_last:
            self.last = message


def sent_messages(arguments: TypedMap) -> SentMessages | None:
    """The state for an exchange with these arguments; None if it does neither."""
    numbers, keeps_last = is_switched_on(arguments, SEQUENCE), is_switched_on(arguments, INITIAL_VALUE)
    return SentMessages(numbers=numbers, keeps_last=keeps_last) if numbers or keeps_last else None
