"""What is found in a broker that was started again, held against what clients expect (`broker_model`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tests.faults.broker_model import (
    BindingModel,
    Copy,
    ExchangeModel,
    MessageModel,
    Model,
    QueueModel,
    Transaction,
)
from tests.faults.store_model import require


class Seen(NamedTuple):
    """A message that was found on a queue."""

    number: int
    body: bytes
    is_marked: bool


class Found(NamedTuple):
    """What was found.

    Attributes:
        was_clean: whether the broker had been stopped, and not killed.
        queues: name -> messages, in order.
        alternates: name of a queue -> its alternate exchange.
        exchanges: the names of those that are no standard ones.
        bindings: exchange, queue, key; but for the default exchange's.
    """

    was_clean: bool
    queues: Mapping[str, list[Seen]]
    alternates: Mapping[str, str]
    exchanges: set[str]
    bindings: set[tuple[str, str, str]]


def check(model: Model, found: Found, order: Mapping[str, list[int]]) -> None:
    """Raise BrokenPromiseError unless that may be found.

    Args:
        model: what is expected.
        found: what is there.
        order: name of a queue -> the messages that were on it when the broker ended, in order.
    """
    _check_topology(model, found)
    numbers = {name: [each.number for each in seen] for name, seen in found.queues.items()}
    for name, seen in found.queues.items():
        require(len(set(numbers[name])) == len(seen), f"a message is twice on {name}: {numbers[name]}")
        queue = model.queues[name]
        for each in seen:
            _check_seen(model, queue, each, was_clean=found.was_clean)
        _check_order(queue, seen, order.get(name, []))
    there = {name: set(each) for name, each in numbers.items()}
    for queue in model.queues.values():
        for copy in queue.copies.values():
            if copy.is_kept and copy.is_promised and not copy.need_not_be(model.now):
                require(_is_there(copy, there), f"message {copy.message.number} is lost from {queue.name}")
    for move in model.moves:
        if move.source.is_kept and move.source.is_promised and not move.source.need_not_be(model.now, move):
            targets = all(_is_there(each, there) or each.need_not_be(model.now) for each in move.targets)
            is_kept = _is_there(move.source, there) or targets
            require(is_kept, f"message {move.source.message.number} was lost on its way from {move.source.queue.name}")
    for transaction in model.transactions:
        _check_transaction(model, transaction, there)


def _check_topology(model: Model, found: Found) -> None:
    queues = {queue.name: queue for queue in model.queues.values() if queue.durable}
    _check_names("queue", set(found.queues), queues)
    _check_names("exchange", found.exchanges, model.exchanges)
    bindings = {key: each for key, each in model.bindings.items() if each.queue.durable}
    require(found.bindings <= set(bindings), f"bindings are back: {found.bindings - set(bindings)}")
    for key, binding in bindings.items():
        require(not binding.is_sound or key in found.bindings, f"binding {key} is lost")
    for name, alternate in found.alternates.items():
        expected = queues[name].alternate
        require(alternate == ("" if expected is None else expected.name), f"{name} has lost its alternate exchange")


def _check_names(kind: str, found: set[str], known: Mapping[str, QueueModel] | Mapping[str, ExchangeModel]) -> None:
    require(found <= set(known), f"{kind} {found - set(known)} is back")
    for name, each in known.items():
        require(not each.is_certain or each.is_leaving or name in found, f"{kind} {name} is lost")


def _check_seen(model: Model, queue: QueueModel, seen: Seen, *, was_clean: bool) -> None:
    """A message that is there may be there."""
    what = f"message {seen.number} on {queue.name}"
    message = model.messages.get(seen.number)
    require(message is not None, f"{what} is back")
    assert message is not None
    require(seen.body == message.body, f"{what} is not what it was")
    require(message.persistent, f"{what} is transient")
    require(not message.is_expired(model.now), f"{what} has expired")
    require(message.transaction is None or message.transaction.is_sent, f"{what} was not committed")
    copy = queue.copies.get(seen.number)
    require(copy is not None or model.may_be_on(message, queue), f"{what} was never sent there")
    require(copy is None or not copy.is_gone, f"{what} is back")
    if was_clean:
        was_delivered = copy is not None and copy.was_delivered
        require(was_delivered or not seen.is_marked, f"{what} is marked as redelivered, and never was delivered")
        must_be = copy is not None and copy.needs_mark
        require(seen.is_marked or not must_be, f"{what} is not marked as redelivered")
    else:
        require(seen.is_marked, f"{what} is not marked as redelivered")


def _check_order(queue: QueueModel, seen: Iterable[Seen], order: Iterable[int]) -> None:
    """The order is that of each publisher, and that which it was before."""
    last: dict[str, int] = {}
    places = {number: place for place, number in enumerate(order)}
    before = -1
    for number, _, _ in seen:
        place = places.get(number, before)
        require(place >= before, f"message {number} on {queue.name} has another place than it had")
        before = place
        copy = queue.copies.get(number)
        if copy is not None and not copy.is_moved:
            publisher = copy.message.publisher
            require(last.get(publisher, 0) < number, f"message {number} on {queue.name} is out of order")
            last[publisher] = number


def _is_there(copy: Copy, there: Mapping[str, set[int]]) -> bool:
    return copy.message.number in there.get(copy.queue.name, ())


def _check_transaction(model: Model, transaction: Transaction, there: Mapping[str, set[int]]) -> None:
    """All of it, or nothing."""
    enqueues = [copy for each in transaction.messages for copy in each.copies if copy.is_kept]
    enqueues = [each for each in enqueues if each.queue.is_certain and each.queue.name in there]
    dequeues = [copy for copy in transaction.dequeues if copy.is_kept and copy.queue.name in there]
    sound = [each for each in enqueues if _goes_for_sure(each) and not each.need_not_be(model.now, transaction)]
    is_dequeued = not any(_is_there(each, there) for each in dequeues)
    is_committed = is_dequeued and all(_is_there(each, there) for each in sound)
    kept = [each for each in dequeues if each.is_promised and not each.need_not_be(model.now, transaction)]
    is_aborted = not any(_is_there(each, there) for each in enqueues) and all(_is_there(each, there) for each in kept)
    came = {each.message.number: _is_there(each, there) for each in enqueues}
    went = {each.message.number: not _is_there(each, there) for each in dequeues}
    require(is_committed or is_aborted, f"half a transaction: came {came}, went {went}")


def _goes_for_sure(copy: Copy) -> bool:
    """Whether a copy is put on its queue when its transaction is committed."""
    return copy.message.exchange is None or any(way.queue is copy.queue and way.is_sound for way in copy.message.ways)


# ---- the next life ----


def after(model: Model, found: Found) -> Model:
    """What is expected of the broker that was started again, now that this was found."""
    new = Model()
    new.tick, new.now, new.numbers = model.tick, model.now, model.numbers
    for name in sorted(found.exchanges):
        new.exchanges[name] = ExchangeModel(name, model.exchanges[name].kind, is_certain=True)
    queues = {name: model.queues[name] for name in found.queues}
    for name, old in queues.items():
        alternate = None if old.alternate is None else new.exchanges[old.alternate.name]
        new.queues[name] = QueueModel(name, True, alternate, old.has_priorities, old.is_early, is_certain=True)
    for old_exchange in model.exchanges.values():
        if old_exchange.name in new.exchanges:
            ever = (new.queues[each.name] for each in old_exchange.ever if each.name in new.queues)
            new.exchanges[old_exchange.name].ever = set(ever)
    for key in sorted(found.bindings):
        new.bindings[key] = BindingModel(new.exchanges[key[0]], new.queues[key[1]], key[2], is_certain=True)
    for name, seen in found.queues.items():
        for each in seen:
            _take_over(model, new, new.queues[name], model.queues[name].copies.get(each.number), each)
    return new


def _take_over(model: Model, new: Model, queue: QueueModel, old: Copy | None, seen: Seen) -> None:
    was, message = model.messages[seen.number], new.messages.get(seen.number)
    if message is None:
        exchange = None if was.exchange is None else new.exchanges.get(was.exchange.name)
        completed = was.completed_at or model.now
        message = new.messages[seen.number] = MessageModel(
            seen.number, was.publisher, exchange, was.key, True, was.sent_at, was.ttl, completed_at=completed
        )
    copy = new.expect(message, queue)
    if old is not None:
        copy.is_moved = old.is_moved
    elif was.exchange is None:
        copy.is_moved = was.key != queue.name
    else:
        copy.is_moved = model.queues[queue.name] not in was.exchange.ever
    copy.is_promised, copy.available_in = True, new.tick
    copy.was_delivered = copy.needs_mark = seen.is_marked
