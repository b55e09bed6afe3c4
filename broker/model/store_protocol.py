"""What the broker needs of a store, and of the module that brings one.

The broker never imports a store. It finds a module by name (`modules`), the module opens a store, and both have the
shape that is written here; which store it is, the broker does not know. The rules of the shape:

* **Nothing waits**, but opening and closing. What is appended is on its way to the disk after the next `start` or
  `flush`, which is called once for a batch. Whoever wants to know gives a callback, `Done`; it is called once, with
  None when all is on the disk, or with the error because of which it never will be.
* Callbacks come from `collect`, which is to be called when `fileno` is readable, and at times from `start` and `flush`.
  A callback may append, and need not call `start`: what it appended goes on by itself.
* What can be refused is refused at once, by an exception, and then nothing was written. `full_error` says that there is
  no room until messages are dequeued; its text is fit for the client. `failed_error` says that the journal's disk has
  failed. Both are among `errors`, which is all that the calls below raise by design.
* A message's record id is its place: queue order is the order of record ids, before a restart and after.

A store calls its journals and recovered queues what it likes. The broker keeps them and hands them back; of what they
are it sees `Journal` and `RecoveredQueue`. `StoreOf` has both types as parameters, so that a type checker can hold a
store against it; the broker itself says `Store`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from formats.broker_records.wiring import Binding, Bridge, Exchange, GeneralObject, Link, Queue
from formats.catalogue import BindingEntry
from formats.rhm.geometry import Geometry

Done: TypeAlias = Callable[[Exception | None], None]

_Made = TypeVar("_Made")

#: Called with what a change made, or with None and the error. A deletion makes nothing: None and None.
Changed: TypeAlias = Callable[[_Made | None, Exception | None], None]

LIVE: Final = 1
"""State of a recovered message: it is on its queue."""
LOCKED: Final = 2
"""A distributed transaction in doubt has dequeued it."""
PENDING: Final = 3
"""A distributed transaction in doubt has enqueued it."""

# ---- the log ----


class StoreLine(Protocol):
    """A line that a store wants to have in the log."""

    @property
    def level(self) -> str:
        """One of the broker's levels, such as "notice"."""

    @property
    def text(self) -> str:
        """What it says, on one line, without time and level."""


StoreLog: TypeAlias = Callable[[StoreLine], None]

# ---- journals and what they hold ----


class Journal(Protocol):
    """The journal of one durable queue. Counters are of records, since the store was opened."""

    @property
    def queue_id(self) -> int:
        """The queue's number, never used again for another."""

    @property
    def name(self) -> str:
        """The queue's name."""

    @property
    def geometry(self) -> Geometry:
        """Number and size of its files."""

    @property
    def bound(self) -> int:
        """Bytes that it may have unsynced. With more, an append waits for the disk."""

    @property
    def unsynced(self) -> int:
        """Bytes that were appended and are not on the disk: to stop reading before they come to `bound`."""

    @property
    def depth(self) -> int:
        """Messages that are enqueued, those of open transactions included."""

    @property
    def enqueues(self) -> int:
        """Messages enqueued outside of transactions."""

    @property
    def dequeues(self) -> int:
        """Messages dequeued outside of transactions."""

    def load(self, rid: int) -> bytes:
        """The data of a message that is on the disk. Raises `Store.errors` or OSError."""


class RecoveredMessage(Protocol):
    """A message that the store kept."""

    @property
    def rid(self) -> int:
        """Its record id."""

    @property
    def data(self) -> bytes:
        """As it was enqueued."""

    @property
    def state(self) -> int:
        """LIVE, LOCKED or PENDING."""

    @property
    def xid(self) -> bytes | None:
        """The transaction in doubt that holds it; None if none does."""

    @property
    def redelivered(self) -> bool:
        """Whether it may have been delivered before."""


class RecoveredQueue(Protocol):
    """A durable queue that the store kept."""

    @property
    def queue_id(self) -> int:
        """Its number."""

    @property
    def record(self) -> Queue:
        """Its name, arguments and so on, as it was made."""

    @property
    def journal(self) -> Journal:
        """Its journal."""


class RecoveredBinding(Protocol):
    """A binding of a durable queue to an exchange."""

    @property
    def exchange(self) -> Exchange:
        """The exchange."""

    @property
    def record(self) -> Binding:
        """The queue, the key and the arguments."""

    @property
    def entry(self) -> BindingEntry | None:
        """What deletes it; None only in stores that are not open for writing."""


class StoredWiring(Protocol):
    """Exchanges, bindings and other objects, as they were found when the store was opened."""

    @property
    def exchanges(self) -> Mapping[int, Exchange]:
        """Number -> exchange."""

    @property
    def bindings(self) -> Sequence[RecoveredBinding]:
        """Those whose queue and exchange are there, in the order in which they were made."""

    @property
    def general(self) -> Mapping[int, Link | Bridge | GeneralObject]:
        """Number -> link, bridge or other object."""


# ---- what a store does ----

_JournalT = TypeVar("_JournalT")
_JournalUsed = TypeVar("_JournalUsed", contravariant=True)
_QueueT = TypeVar("_QueueT")
_EnqueueT = TypeVar("_EnqueueT")
_EnqueueUsed = TypeVar("_EnqueueUsed", contravariant=True)
_DequeueT = TypeVar("_DequeueT")
_DequeueUsed = TypeVar("_DequeueUsed", contravariant=True)


class Appends(Protocol[_JournalUsed]):
    """Appends messages to journals, and removes them, outside of transactions. Raises `Store.errors`."""

    def enqueue(self, journal: _JournalUsed, parts: Sequence[bytes], size: int, crc: int, /) -> int:
        """Append a message of `size` bytes, whose `Store.crc` is `crc`. Returns its record id."""

    def enqueue_all(
        self, journals: Sequence[_JournalUsed], parts: Sequence[bytes], size: int, crc: int, /
    ) -> list[int]:
        """Append a message to several queues or to none of them. Returns its record id for each."""

    def dequeue(self, journal: _JournalUsed, target: int, /) -> None:
        """Append the removal of the message `target`."""


class StoreTransactions(Protocol[_EnqueueUsed, _DequeueUsed]):
    """Transactions. Their parts are made by `Store.transaction_enqueue` and `transaction_dequeue`."""

    @property
    def in_doubt(self) -> list[bytes]:
        """The xids of distributed transactions that are prepared and wait for their outcome."""

    def commit(self, enqueues: Sequence[_EnqueueUsed], dequeues: Sequence[_DequeueUsed], done: Done, /) -> list[int]:
        """Do all of this or nothing. Returns the record ids of the messages enqueued. Raises `Store.errors`.

        `Store.start` is to be called afterwards.
        """

    def prepare(
        self, xid: bytes, enqueues: Sequence[_EnqueueUsed], dequeues: Sequence[_DequeueUsed], done: Done, /
    ) -> list[int]:
        """Write a branch, so that it can be committed or aborted whatever happens; then as `commit`."""

    def commit_prepared(self, xid: bytes, done: Done) -> None:
        """Commit a branch that is prepared. Raises `Store.errors`."""

    def abort_prepared(self, xid: bytes, done: Done) -> None:
        """Abort a branch that is prepared. Raises `Store.errors`."""


class StoreChanges(Protocol[_JournalT]):
    """Changes of what is stored besides messages. Each is made in the order in which it was asked for."""

    def create_queue(self, record: Queue, geometry: Geometry, done: Changed[_JournalT], /) -> None:
        """Make a durable queue; `done` gets its journal."""

    def delete_queue(self, journal: _JournalT, done: Changed[None], /) -> None:
        """Delete a queue, its messages and all bindings to it. Nothing may be appended to it any more."""

    def create_exchange(self, record: Exchange, done: Changed[int], /) -> None:
        """Make a durable exchange; `done` gets its number."""

    def delete_exchange(self, number: int, done: Changed[None], /) -> None:
        """Delete an exchange and all bindings of it."""

    def create_binding(self, exchange_id: int, record: Binding, done: Changed[BindingEntry], /) -> None:
        """Bind a queue to an exchange; `done` gets what deletes the binding."""

    def delete_binding(self, binding: BindingEntry, done: Changed[None], /) -> None:
        """Delete one binding."""

    def create_general(self, record: Link | Bridge | GeneralObject, done: Changed[int], /) -> None:
        """Keep a link, a bridge or another object; `done` gets its number."""

    def delete_general(self, number: int, done: Changed[None], /) -> None:
        """Forget a link, a bridge or another object."""


class StoreOf(Protocol[_QueueT, _JournalT, _EnqueueT, _DequeueT]):
    """A store that is open: the module's docstring has the rules."""

    @property
    def was_clean(self) -> bool:
        """Whether it had been closed cleanly."""

    @property
    def wiring(self) -> StoredWiring:
        """Exchanges, bindings and so on, as they were found."""

    @property
    def recovered_queues(self) -> Sequence[_QueueT]:
        """The queues that were found, until `end_recovery`."""

    @property
    def journals(self) -> Mapping[int, _JournalT]:
        """Queue id -> journal."""

    @property
    def append(self) -> Appends[_JournalT]:
        """Appends messages and removes them."""

    @property
    def transactions(self) -> StoreTransactions[_EnqueueT, _DequeueT]:
        """Transactions over several queues."""

    @property
    def changes(self) -> StoreChanges[_JournalT]:
        """Makes and deletes queues, exchanges, bindings and so on."""

    # ---- errors ----

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Whatever the store raises, or hands to a callback, by design. The text is one line for a person."""

    @property
    def full_error(self) -> type[Exception]:
        """There is no room in a journal until messages are dequeued from it."""

    @property
    def failed_error(self) -> type[Exception]:
        """A journal's disk has failed: it takes nothing more until the store is opened again."""

    @property
    def argument_error(self) -> type[Exception]:
        """An argument of a queue's declaration cannot be understood."""

    # ---- recovery ----

    def messages(self, queue: _QueueT, /) -> Iterator[RecoveredMessage]:
        """The messages of a queue that was found, in its order. To be read before anything is appended to it."""

    def end_recovery(self) -> None:
        """All messages were read that will be."""

    # ---- at work ----

    def crc(self, parts: Iterable[bytes], /) -> int:
        """The checksum of a message's data, once for all of its queues."""

    def queue_geometry(self, arguments: Mapping[str, Any], /) -> Geometry:
        """How large a queue's journal is to be, by its declaration's arguments. Raises `argument_error`."""

    def transaction_enqueue(self, journal: _JournalT, parts: Sequence[bytes], size: int, crc: int, /) -> _EnqueueT:
        """A message that a transaction enqueues; arguments as for `Appends.enqueue`."""

    def transaction_dequeue(self, journal: _JournalT, rid: int, /) -> _DequeueT:
        """A message that a transaction dequeues."""

    def start(self, *, is_idle: bool = False) -> None:
        """Bring what was appended on its way; with `is_idle` the disk may be waited for here and now."""

    def flush(self, journals: Iterable[_JournalT], done: Done, *, is_idle: bool = False) -> None:
        """Start, and call `done` when all that was appended to `journals` is on the disk, or cannot be."""

    def purge(self, journal: _JournalT, rids: Iterable[int], done: Done) -> None:
        """Remove messages of a queue, and call `done` when that is on the disk. Raises `errors`."""

    def collect(self, timeout: float | None = 0.0) -> None:
        """Go on with what the disk has done, and call back.

        Args:
            timeout: seconds to wait for something to happen, if anything is under way; None for as long as it takes.
        """

    def fileno(self) -> int:
        """A descriptor that is readable when `collect` has something to do; -1 where there never is one."""

    @property
    def failure(self) -> Exception | None:
        """Why nothing is synced any more, which is logged and stays so; None if it is. Then only `close` helps."""

    def look(self) -> None:
        """See that the disk is not waited for in vain, and log it. To be called about every second."""

    def will_close(self) -> None:
        """From now on nothing is waited for without a bound. Any thread may call it."""

    @property
    def progress(self) -> int:
        """A number that grows when the disk has done something. Any thread may ask."""

    def close(self, delivered: Mapping[int, Iterable[int]] | None = None) -> bool:
        """Finish what is under way and let the store go. Whether it is marked clean.

        Args:
            delivered: queue id -> record ids of the messages that had been delivered, and come back as redelivered.
        """


Store: TypeAlias = StoreOf[Any, Any, Any, Any]
"""A store, whatever it calls its journals. What they are is `Journal` and `RecoveredQueue`."""

# ---- the module that brings it ----

OptionKind: TypeAlias = Literal["number", "switch", "choice", "text"]


class ModuleOption(Protocol):
    """An option that a module adds to the broker's."""

    @property
    def name(self) -> str:
        """As it is written after `--`."""

    @property
    def alias(self) -> str:
        """Another name for it; empty if it has none."""

    @property
    def kind(self) -> OptionKind:
        """What its value is; a switch is yes or no."""

    @property
    def default(self) -> str:
        """What help shows as the default; empty for none."""

    @property
    def help(self) -> str:
        """What it is for, in one line."""


class StoreModule(Protocol):
    """The plug: what a module's entry point gives."""

    @property
    def title(self) -> str:
        """The heading of its options, such as "Store"."""

    @property
    def options(self) -> Sequence[ModuleOption]:
        """Its options, in the order in which help shows them."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Why `open` gives up. The text is one line for a person."""

    def open(self, values: Mapping[str, str], data_directory: str | None, version: str, log: StoreLog, /) -> Store:
        """Open the store, whatever state it is in, and recover it.

        Args:
            values: the options that were given, by name or alias, as text.
            data_directory: the broker's, which exists; None if it has none.
            version: the broker's, for what the store writes about itself.
            log: takes lines for the log.

        Raises:
            `errors`
        """
