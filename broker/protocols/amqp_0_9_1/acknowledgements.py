"""What a client does with deliveries: ack, nack, reject, recover; and the same at the end of a transaction.

    ack                          the message is dequeued; in a transaction, at commit
    nack, reject with requeue    it is available again, at its position, marked as redelivered
    nack, reject without         it moves to the queue's dead-letter or alternate exchange; without it is dequeued
    recover                      all unacknowledged messages are available again

The model defines these outcomes (`settlement`); the protocol has no answers to them, so nothing waits for the disk.
A delivery tag that is unknown, or was settled before, closes the channel. In a transaction, acknowledged deliveries
are out of reach until its end, and unacknowledged again after a rollback.

Source: AMQP 0-9-1, class basic and tx; RabbitMQ, "Consumer Acknowledgements and Publisher Confirms".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from qstore.broker.model.errors import ModelError
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.settlement import accept, reject, release
from qstore.broker.protocols.amqp_0_9_1.channel import Channel
from qstore.broker.protocols.amqp_0_9_1.delivering import Delivery
from qstore.broker.protocols.amqp_0_9_1.errors import SoftError
from qstore.broker.protocols.amqp_0_9_1.message import BasicMessage
from qstore.formats.amqp_0_9_1.codes import ReplyCode

_SPARE: Final = 1_000  # tags without a delivery that are looked at nevertheless


def acknowledge(channel: Channel, tag: int, multiple: bool) -> None:
    """basic.ack. Raises SoftError or InternalError."""
    if multiple:
        taken = _take(channel, tag, multiple=True)
    else:
        delivery = channel.unsettled.pop(tag, None)
        if delivery is None:
            raise _unknown(tag)
        taken = {tag: delivery}
    if channel.transaction is not None:
        channel.settled.update(taken)
        for queue, entry in _taken(taken):
            channel.transaction.accept(queue, entry)
        return
    accept(channel.broker.tick, _taken(taken), partial(_settled, channel))
    channel.return_credit(taken.values())


def refuse(channel: Channel, tag: int, *, multiple: bool, requeue: bool) -> None:
    """basic.nack and basic.reject. Raises SoftError or ModelError."""
    taken = _take(channel, tag, multiple=multiple)
    if channel.transaction is not None:
        channel.refused.update({each: (delivery, requeue) for each, delivery in taken.items()})
        return
    _refuse(channel, taken, requeue=requeue)


def _refuse(channel: Channel, taken: dict[int, Delivery], *, requeue: bool) -> None:
    if requeue:
        release(_taken(taken), is_redelivered=True)
    else:
        reject(channel.broker, _taken(taken), partial(_settled, channel))
    channel.return_credit(taken.values())


def recover(channel: Channel) -> None:
    """basic.recover: make all unacknowledged messages available again."""
    taken, channel.unsettled = channel.unsettled, {}
    release(_taken(taken), is_redelivered=True)
    channel.return_credit(taken.values())


def _settled(channel: Channel, error: Exception | None) -> None:
    """A settlement that took time is done, or one of its messages could not be settled."""
    if error is not None:
        channel.connection.fail(channel, error)


def _take(channel: Channel, tag: int, *, multiple: bool) -> dict[int, Delivery]:
    """Remove and return deliveries that the client settles. Raises SoftError if there are none."""
    unsettled = channel.unsettled
    if not multiple:
        if tag not in unsettled:
            raise _unknown(tag)
        return {tag: unsettled.pop(tag)}
    if not tag:
        taken, channel.unsettled = unsettled, {}
        return taken
    if tag > channel.last_tag:
        raise _unknown(tag)
    tags: Iterable[int] = range(channel.settled_below, tag + 1)
    if tag - channel.settled_below > len(unsettled) + _SPARE:  # a channel that has consumers without acknowledgement
        tags = [each for each in unsettled if each <= tag]
    channel.settled_below = max(channel.settled_below, tag + 1)
    taken = {each: unsettled.pop(each) for each in tags if each in unsettled}
    if not taken:
        raise _unknown(tag)
    return taken


def _unknown(tag: int) -> SoftError:
    return SoftError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")


def _taken(deliveries: dict[int, Delivery]) -> Iterator[tuple[Queue, Entry]]:
    """The queues and entries of deliveries, except for those of browsers."""
    for queue, entry, consumer in deliveries.values():
        if consumer is None or consumer.acquires:
            yield queue, entry


# ---- transactions ----


def commit(channel: Channel) -> None:
    """tx.commit. Raises ModelError: it cannot be committed, and nothing was changed."""
    transaction, broker, connection = channel.transaction, channel.broker, channel.connection
    assert transaction is not None
    broker.end_transaction(transaction)
    begin_transaction(channel)
    settled, refused = channel.settled, channel.refused
    returns, channel.returns = channel.returns, []
    channel.settled, channel.refused = {}, {}

    def done(error: ModelError | None) -> None:
        if error is not None:
            channel.txn_rejects += 1
            release(_taken({tag: delivery for tag, (delivery, _) in refused.items()}), is_redelivered=True)
            connection.fail(channel, error)
        else:
            _committed(channel, returns, settled, refused)
        connection.unpause()

    connection.pause()
    try:
        transaction.commit(done)
    except ModelError:
        connection.unpause()
        channel.unsettled.update(settled)
        channel.refused = refused
        raise


def _committed(
    channel: Channel,
    returns: list[tuple[bytes, BasicMessage]],
    settled: dict[int, Delivery],
    refused: dict[int, tuple[Delivery, bool]],
) -> None:
    """A transaction is on the disk: tell the client, if it is still there, and do what needs no transaction."""
    if channel.is_open:
        channel.txn_commits += 1
        for method, message in returns:
            channel.send_content(method, message)
        channel.send("tx.commit-ok")
        channel.return_credit(settled.values())
    left = dict(refused)
    try:
        for tag, (delivery, requeue) in refused.items():
            del left[tag]
            _refuse(channel, {tag: delivery}, requeue=requeue)
    except ModelError as error:
        release(_taken({tag: delivery for tag, (delivery, _) in left.items()}), is_redelivered=True)
        channel.connection.fail(channel, error)


def roll_back(channel: Channel) -> None:
    """tx.rollback: what was published is gone, what was settled is unacknowledged."""
    transaction = channel.transaction
    assert transaction is not None
    channel.broker.end_transaction(transaction)
    channel.txn_rejects += 1
    begin_transaction(channel)
    refused = {tag: delivery for tag, (delivery, _) in channel.refused.items()}
    again = {**channel.unsettled, **channel.settled, **refused}
    channel.unsettled = dict(sorted(again.items()))
    channel.settled_below = min(channel.unsettled, default=1)
    channel.settled, channel.refused, channel.returns = {}, {}, []
    channel.send("tx.rollback-ok")


def begin_transaction(channel: Channel) -> None:
    """What is published and settled from now on is part of a transaction."""
    channel.txn_starts += 1
    channel.transaction = channel.broker.begin_transaction(channel.broker.settings.transaction_bytes)
