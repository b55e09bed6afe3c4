"""The transactions of one session: several at a time, each a local transaction of the model.

A client attaches a link to the coordinator and sends it commands:

    declare      begins a transaction; the outcome `declared` has its id
    discharge    commits it, or rolls it back if `fail` is set. The outcome is `accepted` when that is on the disk;
                 a transaction that cannot be committed was rolled back, and the outcome is `rejected`

    work of a transaction                 commit                             roll back
    ------------------------------------  ---------------------------------  ---------------------------------------
    posting: a transfer with its id       the message is published           nothing was published
    retirement: an outcome with its id    the outcome is applied             the delivery is as before; released if
                                                                             the client has settled it meanwhile
    acquisition: credit with its id       nothing                            the message is available again

Outcomes other than accepted are applied once the rest is on the disk, as for AMQP 0-9-1, and before the client gets the
outcome of its discharge.

A transaction is rolled back if its control link ends, or its session. One of whose messages was refused, or discarded
because their link was detached, cannot be committed; nor can one that retires a delivery that has returned with another
transaction. If the broker cannot commit a transaction, the deliveries retired in it are released and settled.

Source: AMQP 1.0, part "transactions", section 4.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from qstore.broker.model.errors import InvalidArgumentError, ModelError, ResourceLimitExceededError
from qstore.broker.model.message import Content
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.settlement import AT_ONCE, MOVED_AT_ONCE, release, release_in_turns
from qstore.broker.model.transactions.local import LocalTransaction
from qstore.broker.protocols.amqp_1_0.errors import ConditionError, error_value
from qstore.broker.protocols.amqp_1_0.links import NO_ANNOTATIONS, has_foreign_annotations
from qstore.broker.protocols.consumer import give_back
from qstore.formats.amqp_1_0.codes import Condition
from qstore.formats.amqp_1_0.composites import OUTCOMES, Composite, read_composite
from qstore.formats.amqp_1_0.sections import VALUE, begin_section, section_value_at, split_sections
from qstore.formats.amqp_1_0.values import Amqp10Error, Value
from qstore.formats.named_tuple import NamedTuple

if TYPE_CHECKING:
    from qstore.broker.protocols.amqp_1_0.links import Delivery, IncomingLink, OutgoingLink
    from qstore.broker.protocols.amqp_1_0.session import Session

COORDINATOR: Final = "coordinator"
TRANSACTIONAL: Final = "transactional-state"
TXN_ID: Final = "txn-id"

OFFERED: Final = ("amqp:local-transactions", "amqp:multi-txns-per-ssn")
"""Capabilities of the coordinator."""

MAX_TRANSACTIONS: Final = 256
"""Transactions that one session may have at a time."""

MAX_COMMAND: Final = 1024
"""Bytes of a message to the coordinator."""

_DECLARED: Final = "declared"
_ACCEPTED: Final = Composite("accepted", {})
_MISSED: Final = InvalidArgumentError("a message of the transaction was discarded with its link")
_LOST: Final = InvalidArgumentError("a delivery was acquired in another transaction, which was rolled back")
_RETURNED: Final = Composite("modified", {"delivery_failed": True})


class Retired(NamedTuple):
    """What becomes of a delivery when a transaction is committed.

    Attributes:
        transaction: the transaction.
        outcome: the delivery's.
        is_settled: whether the client has settled it.
    """

    transaction: OpenTransaction
    outcome: Composite
    is_settled: bool


class OpenTransaction:
    """A transaction.

    Args:
        txn_id: its id.
        link: the control link that has declared it.
        work: what it does.

    Attributes:
        txn_id, link, work: as above.
        accepted: the state of a message that is part of it.
        failure: why it cannot be committed; None if it can be.
        is_committing: whether the client wants it committed: the model has the messages accepted in it now.
        retired: the numbers of the deliveries retired in it.
        acquired: the numbers of the deliveries acquired in it.
        taken: messages acquired in it that were sent settled.
        links: links that acquire messages in it.
    """

    __slots__ = (
        "_forget_at", "accepted", "acquired", "failure", "is_committing", "link", "links", "retired", "taken", "txn_id",
        "work",
    )  # fmt: skip

    def __init__(self, txn_id: bytes, link: IncomingLink, work: LocalTransaction) -> None:
        self.txn_id, self.link, self.work = txn_id, link, work
        self.accepted = self.state_of(_ACCEPTED)
        self.failure: Exception | None = None
        self.is_committing = False
        self.retired: list[int] = []
        self.acquired: dict[int, None] = {}
        self._forget_at = AT_ONCE
        self.taken: list[tuple[Queue, Entry]] = []
        self.links: dict[OutgoingLink, None] = {}

    def state_of(self, outcome: Composite | None = None) -> Composite:
        """The state of a delivery that is part of it."""
        return Composite(TRANSACTIONAL, {"txn_id": Value("binary", self.txn_id), "outcome": outcome})

    def acquire(self, number: int, unsettled: Mapping[int, Delivery]) -> None:
        """Add the number of a delivery acquired in it; those that are settled are forgotten now and then."""
        self.acquired[number] = None
        if len(self.acquired) > self._forget_at:
            self.acquired = {each: None for each in self.acquired if each in unsettled or each == number}
            self._forget_at = AT_ONCE + 2 * len(self.acquired)

    def lose(self, entry: Entry) -> None:
        """A message that was retired in it returns with the transaction in which it was acquired."""
        self.failure = self.failure or _LOST
        self.work.withdraw(entry)

    @property
    def size(self) -> int:
        """Deliveries that are part of it."""
        return len(self.retired) + len(self.acquired) + len(self.taken)


class Transactions:
    """The transactions of one session.

    Args:
        session: the session.

    Attributes:
        retired_count: unsettled deliveries that were retired in transactions whose outcome is not known yet.
        taken_count: messages acquired in open transactions that were sent settled.
    """

    __slots__ = ("_open", "_session", "retired_count", "taken_count")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._open: dict[bytes, OpenTransaction] = {}
        self.retired_count = self.taken_count = 0

    @property
    def open(self) -> list[OpenTransaction]:
        """Those that are neither committed nor rolled back."""
        return list(self._open.values())

    def find(self, txn_id: object) -> OpenTransaction:
        """The transaction with an id. Raises ConditionError."""
        content = txn_id.value if isinstance(txn_id, Value) else None
        found = self._open.get(content) if isinstance(content, bytes) else None
        if found is None:
            shown = content.hex() if isinstance(content, bytes) else "another type"
            raise ConditionError(Condition.UNKNOWN_TRANSACTION, f"there is no transaction with txn-id {shown:.64}")
        return found

    # ---- the control link ----

    def command(self, link: IncomingLink, number: int, content: Content, *, is_settled: bool) -> Composite | None:
        """Do a command of a control link. Returns its outcome; None if that comes later.

        Args:
            link: the link.
            number: of the message that has the command.
            content: the message.
            is_settled: whether the client has settled it.

        Raises:
            Amqp10Error, ConditionError, ModelError: it cannot be done.
        """
        if is_settled:
            raise ConditionError(Condition.NOT_ALLOWED, "a message to the coordinator must not be settled")
        name, fields = _command_in(content)
        if name == "declare":
            if fields.get("global_id") is not None:
                raise ConditionError(Condition.NOT_IMPLEMENTED, "distributed transactions are not implemented")
            return Composite(_DECLARED, {"txn_id": Value("binary", self._declare(link).txn_id)})
        transaction = self.find(fields["txn_id"])
        if fields.get("fail"):
            session = self._session
            session.ledger.postpone(number)
            self._roll_back(transaction, partial(session.set_outcome, number, _ACCEPTED))
        else:
            self._commit(transaction, number)
        return None

    def _declare(self, link: IncomingLink) -> OpenTransaction:
        session = self._session
        if len(self._open) >= MAX_TRANSACTIONS:
            raise ResourceLimitExceededError(f"the session has {MAX_TRANSACTIONS} transactions, the maximum")
        session.connection.declared += 1
        txn_id = session.connection.declared.to_bytes(8, "big")
        session.txn_starts += 1
        work = session.broker.begin_transaction(session.broker.settings.transaction_bytes)
        transaction = self._open[txn_id] = OpenTransaction(txn_id, link, work)
        return transaction

    def _end(self, transaction: OpenTransaction) -> None:
        """Nothing can be added to it any more."""
        del self._open[transaction.txn_id]
        for link in transaction.links:
            link.transaction = None
        transaction.links.clear()
        self.taken_count -= len(transaction.taken)
        self._session.broker.end_transaction(transaction.work)

    def _commit(self, transaction: OpenTransaction, number: int) -> None:
        session, work = self._session, transaction.work
        self._end(transaction)
        transaction.is_committing = True
        session.ledger.postpone(number)

        def done(error: ModelError | None) -> None:
            if error is not None:
                self._refused(transaction, number, error)
            else:
                session.txn_commits += 1
                finish = partial(session.set_outcome, number, _ACCEPTED)
                applying = self._applying(transaction, finish)
                if len(transaction.retired) > MOVED_AT_ONCE:
                    session.broker.tick.turns.do(session, applying)
                else:
                    for _ in applying:
                        pass

        failure = transaction.failure
        if failure is None and work.is_large:
            session.broker.tick.turns.do(session, work.commit_in_turns(done))
            return
        if failure is None:
            try:
                work.commit(done)
            except ModelError as error:
                failure = error
        if failure is not None:
            work.discard()
            self._refused(transaction, number, failure)

    def _refused(self, transaction: OpenTransaction, number: int, error: Exception) -> None:
        """It cannot be committed: the model makes the messages that were to be dequeued available again."""
        rollback = ConditionError(Condition.TRANSACTION_ROLLBACK, str(error))
        outcome = Composite("rejected", {"error": error_value(rollback)})
        self._session.txn_rejects += 1
        self._undo(transaction, has_failed=True, done=partial(self._session.set_outcome, number, outcome))

    # ---- its work ----

    def accept_later(self, transaction: OpenTransaction, queue: Queue, entry: Entry) -> None:
        """Dequeue a message that was sent settled to a link of a transaction when that is committed."""
        transaction.taken.append((queue, entry))
        self.taken_count += 1
        transaction.work.accept(queue, entry)

    def missed(self, state: object) -> None:
        """A message is discarded, since its link was detached: its transaction cannot be committed without it."""
        if isinstance(state, Composite) and state.name == TRANSACTIONAL:
            with contextlib.suppress(ConditionError):
                transaction = self.find(state.fields["txn_id"])
                transaction.failure = transaction.failure or _MISSED

    def retire(self, fields: dict[str, object], numbers: list[int], *, is_settled: bool) -> None:
        """Apply an outcome to deliveries when a transaction is committed.

        Args:
            fields: of the transactional state.
            numbers: the deliveries; those that were retired before keep their outcome.
            is_settled: whether the client has settled them.

        Raises:
            ConditionError: there is no such transaction, or the outcome is none.
        """
        session, transaction = self._session, None
        outcome = fields.get("outcome")
        if isinstance(outcome, Composite) and has_foreign_annotations(outcome):
            links = [each.link for each in map(session.unsettled.__getitem__, numbers) if each.retired is None]
            for link in dict.fromkeys(links):
                error = ConditionError(Condition.NOT_IMPLEMENTED, NO_ANNOTATIONS)
                self.find(fields["txn_id"]).failure = error
                session.fail_link(link.handle, error)
            return
        for number in numbers:
            delivery = session.unsettled[number]
            if delivery.retired is not None:
                if is_settled:
                    delivery.retired = delivery.retired._replace(is_settled=True)
                continue
            if transaction is None:
                transaction = self.find(fields["txn_id"])
            if not isinstance(outcome, Composite) or outcome.name not in OUTCOMES:
                if not is_settled:
                    return
                outcome = delivery.link.default
            delivery.retired = Retired(transaction, outcome, is_settled)
            self.retired_count += 1
            transaction.retired.append(number)
            if outcome.name == "accepted" and delivery.link.acquires:
                transaction.work.accept(delivery.link.queue, delivery.entry)

    def free(self, numbers: Iterable[int], *, is_settled: bool) -> Iterator[int]:
        """Those of the numbers that are not retired; those that are may be settled now."""
        unsettled = self._session.unsettled
        for number in numbers:
            delivery = unsettled.get(number)
            if delivery is None:
                continue
            if delivery.retired is None:
                yield number
            elif is_settled:
                delivery.retired = delivery.retired._replace(is_settled=True)

    # ---- the outcome ----

    def _applying(self, transaction: OpenTransaction, done: Callable[[], None]) -> Iterator[None]:
        """It is committed: apply its outcomes, and tell the client of those deliveries that it has not settled."""
        session = self._session
        left = 1

        def settled(answered: list[int], state: Composite, error: Exception | None) -> None:
            nonlocal left
            session.tell_settled(answered, state, error)
            left -= error is None
            if not left:
                done()

        def all_begun(_: Exception | None) -> None:
            settled([], _ACCEPTED, None)

        numbers = iter(transaction.retired)
        while portion := list(islice(numbers, MOVED_AT_ONCE)):
            parts: dict[int, tuple[Composite, list[int], list[tuple[Queue, Entry]]]] = {}
            for number in portion:
                if number not in session.unsettled:
                    continue  # the session has ended
                delivery = session.take(number)
                if delivery.retired is None:
                    continue
                self.retired_count -= 1
                retired = delivery.retired
                _, answered, acquired = parts.setdefault(id(retired.outcome), (retired.outcome, [], []))
                if not retired.is_settled:
                    answered.append(number)
                if delivery.link.acquires and retired.outcome.name != "accepted":
                    acquired.append((delivery.link.queue, delivery.entry))
            for state, answered, acquired in parts.values():
                left += 1
                ended = partial(settled, sorted(answered), state)
                if state.name == "accepted":
                    ended(None)
                    continue
                try:
                    session.apply(acquired, state, ended)
                except ModelError as error:
                    ended(error)
            yield
        session.have_settled()
        all_begun(None)

    def _undo(
        self, transaction: OpenTransaction, *, has_failed: bool, done: Callable[[], None], in_turns: bool = False
    ) -> None:
        """Make its deliveries what they were; if it `has_failed`, the model releases those that were accepted."""
        undoing = self._undoing(transaction, has_failed, done)
        if in_turns or transaction.size > AT_ONCE:
            self._session.connection.pause()  # later frames see the effect
            self._session.broker.tick.turns.do(self._session, self._unpausing(undoing))
        else:
            for _ in undoing:
                pass

    def _unpausing(self, work: Iterator[None]) -> Iterator[None]:
        try:
            yield from work
        finally:
            self._session.connection.unpause()

    def _undoing(self, transaction: OpenTransaction, has_failed: bool, done: Callable[[], None]) -> Iterator[None]:
        session = self._session
        returned: list[tuple[Queue, Entry]] = [] if has_failed else list(transaction.taken)
        numbers = iter([*transaction.retired, *transaction.acquired])
        while portion := list(islice(numbers, AT_ONCE)):
            told: list[int] = []
            for number in portion:
                delivery = session.unsettled.get(number)
                if delivery is None:
                    continue
                retired = delivery.retired
                if retired is not None and retired.transaction is not transaction:
                    if retired.transaction.is_committing:
                        continue
                    retired.transaction.lose(delivery.entry)
                delivery.retired = None
                self.retired_count -= retired is not None
                is_settled = retired is not None and retired.is_settled
                is_live = delivery.link.is_attached and number not in transaction.acquired
                if is_live and not is_settled and not has_failed:
                    continue
                session.take(number)
                if not is_settled and delivery.link.is_attached:
                    told.append(number)
                is_released = has_failed and retired is not None and retired.outcome.name == "accepted"
                if delivery.link.acquires and not is_released:
                    returned.append((delivery.link.queue, delivery.entry))
            session.tell_settled(sorted(told), _RETURNED, None)
            yield
        if not has_failed:
            _forget(transaction)
        if len(returned) > AT_ONCE:
            yield from release_in_turns(iter(returned), is_redelivered=True)
        else:
            release(returned, is_redelivered=True)
        session.have_settled()
        done()

    # ---- ends ----

    def roll_back_of(self, link: IncomingLink) -> None:
        """A control link has ended: roll back what it has declared."""
        transactions = [each for each in self._open.values() if each.link is link]
        in_turns = sum(each.size for each in transactions) > AT_ONCE
        for transaction in transactions:
            self._roll_back(transaction, _nothing, in_turns=in_turns)

    def _roll_back(self, transaction: OpenTransaction, done: Callable[[], None], *, in_turns: bool = False) -> None:
        self._end(transaction)
        self._session.txn_rejects += 1
        self._undo(transaction, has_failed=False, done=done, in_turns=in_turns)

    def end(self) -> None:
        """The session has ended, and makes available what it has; what was taken for good is part of that."""
        session, count, taken = self._session, self.taken_count, []
        for transaction in list(self._open.values()):
            self._end(transaction)
            session.txn_rejects += 1
            _forget(transaction)
            taken.append(transaction.taken)
        give_back(session, session.broker.tick.turns, count, chain.from_iterable(taken))


def _forget(transaction: OpenTransaction) -> None:
    """Drop its published messages; the session makes available what was accepted in it."""
    transaction.work.accepted = {}
    transaction.work.discard()


def is_left_to_model(delivery: Delivery) -> bool:
    """Whether the model dequeues the message of a delivery with a commit, or makes it available if that fails."""
    retired = delivery.retired
    return retired is not None and retired.transaction.is_committing and retired.outcome.name == "accepted"


def _nothing() -> None:
    """Nobody waits."""


def _command_in(content: Content) -> Composite:
    """The command in a message. Raises Amqp10Error or InvalidArgumentError."""
    if len(content) > MAX_COMMAND:
        raise InvalidArgumentError(f"a message to the coordinator of more than {MAX_COMMAND:,} bytes")
    data = content if isinstance(content, bytes) else b"".join(content.pieces)
    at = split_sections(data).body_at
    if at >= len(data) or begin_section(data, at, len(data))[0] != VALUE:
        raise Amqp10Error("a message to the coordinator without a value", at)
    command = read_composite(data, section_value_at(data, at, len(data)), len(data))[0]
    if command.name not in ("declare", "discharge"):
        raise InvalidArgumentError(f"{command.name} is not a command of the coordinator")
    return command


def transaction_in(properties: tuple[tuple[Value, Value], ...] | None) -> Value | None:
    """The id of a transaction among the properties of a flow; None if there is none."""
    for key, value in properties or ():
        if key.value == TXN_ID:
            return value
    return None


def is_transactional(state: object) -> bool:
    """Whether the state of a delivery makes it part of a transaction."""
    return isinstance(state, Composite) and state.name == TRANSACTIONAL
