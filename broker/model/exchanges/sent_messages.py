"""What an exchange does with the messages that are sent to it, beside routing them. Most exchanges do nothing.

`qpid.msg_sequence`: each message gets its number, an int64, as the application header `qpid.msg_sequence`; what was in
that header before is replaced. The first is 0, and after the largest int64 comes the smallest.

`qpid.ive`: the last message is kept, its number included, and offered to each binding that is made later. One message
is kept, so the memory for it is bounded by the largest message that the broker takes.

Rules, where the sources leave a choice:

    sent        by a client, to this exchange. What comes because it is the alternate exchange of another, or of a
                queue, is neither numbered nor kept: a message bears the number of the exchange that it was sent to.
    unroutable  counts, as any other.
    refused     by a full queue: its number is not given again, and the message that was the last stays so.
    commit      a message of a transaction is sent when that is committed, so that numbers rise on every queue.
    restart     numbers begin again at 0, and no message is kept: neither is on the disk, as in qpidd
                (formats/broker_records/README.md, 4.3). So a consumer that sees a number go back knows that the
                broker was started again.

Sources: Qpid C++ Broker Book, 1.3.1.1 and 1.3.1.2; MRG 2 Messaging User Guide, 2.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.model.exchanges.arguments import INITIAL_VALUE, SEQUENCE, is_switched_on
from formats.values import TypedMap

if TYPE_CHECKING:
    from broker.model.message import Message

_MOST: Final = (1 << 63) - 1
_LEAST: Final = -(1 << 63)


class SentMessages:
    """What is done with the messages that are sent to one exchange.

    Args:
        numbers: whether they are numbered.
        keeps_last: whether the last one is kept.

    Attributes:
        next_number: that of the next message.
        last: the last message, if it is kept and there was one.
    """

    __slots__ = ("_keeps_last", "_numbers", "last", "next_number")

    def __init__(self, *, numbers: bool, keeps_last: bool) -> None:
        self._numbers, self._keeps_last = numbers, keeps_last
        self.next_number = 0
        self.last: Message | None = None

    def number(self, message: Message) -> Message:
        """The message as it goes to queues.

        Raises:
            InvalidArgumentError: it cannot be given a number.
        """
        if not self._numbers:
            return message
        number = self.next_number
        numbered = message.with_number(SEQUENCE, number)
        self.next_number = _LEAST if number == _MOST else number + 1
        return numbered

    def keep(self, message: Message) -> None:
        """A message that `number` returned is on its queues."""
        if self._keeps_last:
            self.last = message


def sent_messages(arguments: TypedMap) -> SentMessages | None:
    """What an exchange with these arguments does with messages; None for nothing."""
    numbers, keeps_last = is_switched_on(arguments, SEQUENCE), is_switched_on(arguments, INITIAL_VALUE)
    return SentMessages(numbers=numbers, keeps_last=keeps_last) if numbers or keeps_last else None
