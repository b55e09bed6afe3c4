"""What the broker requires of a store, and of the module that provides one.

The broker never imports a store: it finds a module by name (`modules`), which opens one. Both satisfy these protocols:

* **No call blocks**, except opening and closing. Appended records are written after the next `start` or `flush`, which
  is called once per batch. A caller that needs to know passes a callback, `Done`; it is called once, with None when
  everything is on the disk, or with the error that prevented it.
* Callbacks run from `collect`, which is to be called when `fileno` is readable, and sometimes from `start` and `flush`.
  A callback may append, and need not call `start`: its records are written without it.
* An operation that can be refused is refused at once, by an exception, and then nothing was written. `full_error`: the
  journal is full until messages are dequeued; its text is fit for the client. `failed_error`: the journal's disk has
  failed. Both are among `errors`, which are the only exceptions that the calls below raise by design.
* A message's record id is its position: queue order is the order of record ids, before a restart and after.

`StoreOf` has the types of journals and recovered queues as parameters, for type checkers; the broker uses `Store`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from qstore.broker.model.message import MessagesRead, RestoreMessage
from qstore.broker.model.shared_snapshot import SharedSnapshot
from qstore.formats.broker_records.topology import Binding, Bridge, Exchange, GeneralObject, Link, Queue
from qstore.formats.catalogue import BindingEntry
from qstore.formats.rhm.geometry import Geometry

Done: TypeAlias = Callable[[Exception | None], None]

Refused: TypeAlias = Callable[[str, bool], None]
"""Called with a journal's name and whether it is full; else it still accepts dequeues. It must not call the store."""

_Result = TypeVar("_Result")

#: Called with the result of a change, or with None and the error. A deletion has no result: None and None.
Changed: TypeAlias = Callable[[_Result | None, Exception | None], None]

LIVE: Final = 1
"""State of a recovered message: available on its queue."""
LOCKED: Final = 2
"""State of a recovered message: dequeued by an in-doubt distributed transaction."""
PENDING: Final = 3
"""State of a recovered message: enqueued by an in-doubt distributed transaction."""

# ---- the log ----


class StoreLine(Protocol):
    """A log line of a store."""

    @property
    def level(self) -> str:
        """One of the broker's levels, such as "notice"."""

    @property
    def text(self) -> str:
        """The text: one line, without time and level."""


StoreLog: TypeAlias = Callable[[StoreLine], None]

TellProgress: TypeAlias = Callable[[Callable[[], str]], None]
"""Receives what makes the text that tells how far a start is; made only if the text is used."""

# ---- journals and their records ----


class Journal(Protocol):
    """The journal of one durable queue. Counters count records since the store was opened."""

    @property
    def queue_id(self) -> int:
        """The queue's number, which is never reused."""

    @property
    def name(self) -> str:
        """The queue's name."""

    @property
    def geometry(self) -> Geometry:
        """Number and size of its files."""

    @property
    def bound(self) -> int:
        """Limit of unsynced bytes. Beyond it, an append waits for the disk."""

    @property
    def unsynced(self) -> int:
        """Bytes appended but not on the disk yet. The broker stops reading before they reach `bound`."""

    @property
    def is_tight(self) -> bool:
        """Whether it is nearly full, and the disk has no room for it to grow."""

    @property
    def depth(self) -> int:
        """Messages enqueued, including those of open transactions."""

    @property
    def enqueues(self) -> int:
        """Messages enqueued outside transactions."""

    @property
    def transaction_enqueues(self) -> int:
        """Messages enqueued by transactions."""

    @property
    def dequeues(self) -> int:
        """Messages dequeued outside transactions."""

    def load(self, rid: int) -> bytes:
        """The data of a message, from the disk if it is there. Raises `Store.errors` or OSError."""


class RecoveredMessage(Protocol):
    """A stored message."""

    @property
    def rid(self) -> int:
        """Its record id."""

    @property
    def data(self) -> bytes:
        """Its bytes as enqueued."""

    @property
    def state(self) -> int:
        """LIVE, LOCKED or PENDING."""

    @property
    def xid(self) -> bytes | None:
        """The in-doubt transaction that holds it; None if there is none."""

    @property
    def redelivered(self) -> bool:
        """Whether it may have been delivered before."""


class IndexPortion(Protocol):
    """Consecutive stored messages that were not read, all of them LIVE; and one after them that a branch holds."""

    @property
    def rids(self) -> Sequence[int]:
        """Record ids of those that were not read; may be empty."""

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of their records on the disk."""

    @property
    def redelivered(self) -> Sequence[int]:
        """Those of them that may have been delivered before, by number from 0."""

    @property
    def held(self) -> RecoveredMessage | None:
        """The message after them, LOCKED or PENDING; None if there is none."""


class RecoveredQueue(Protocol):
    """A stored durable queue."""

    @property
    def queue_id(self) -> int:
        """Its number."""

    @property
    def record(self) -> Queue:
        """Its name, arguments and so on, as declared."""

    @property
    def journal(self) -> Journal:
        """Its journal."""


class RecoveredBinding(Protocol):
    """A stored binding of a durable queue to an exchange."""

    @property
    def exchange(self) -> Exchange:
        """The exchange."""

    @property
    def record(self) -> Binding:
        """The queue, the key and the arguments."""

    @property
    def entry(self) -> BindingEntry | None:
        """The handle for deleting it; None only in stores that are not open for writing."""


class StoredTopology(Protocol):
    """Exchanges, bindings and other objects found when the store was opened."""

    @property
    def exchanges(self) -> Mapping[int, Exchange]:
        """Number -> exchange."""

    @property
    def bindings(self) -> Sequence[RecoveredBinding]:
        """Those whose queue and exchange exist, in order of creation."""

    @property
    def general(self) -> Mapping[int, Link | Bridge | GeneralObject]:
        """Number -> link, bridge or other object."""


# ---- operations of a store ----

_JournalT = TypeVar("_JournalT")
_JournalUsed = TypeVar("_JournalUsed", contravariant=True)
_QueueT = TypeVar("_QueueT")


class Appends(Protocol[_JournalUsed]):
    """Appends enqueues and dequeues to journals, outside transactions. Raises `Store.errors`."""

    def enqueue(self, journal: _JournalUsed, parts: Sequence[bytes], size: int, crc: int, /) -> int:
        """Append a message of `size` bytes with checksum `crc` (`Store.crc`). Returns its record id."""

    def enqueue_all(
        self, journals: Sequence[_JournalUsed], parts: Sequence[bytes], size: int, crc: int, /
    ) -> list[int]:
        """Append a message to all of these journals, or to none. Returns its record id in each."""

    def dequeue(self, journal: _JournalUsed, target: int, /) -> None:
        """Append the dequeue of the message `target`."""


class StoreTransactions(Protocol[_JournalUsed]):
    """Transactions: messages to enqueue, by journal and in order, as for `Appends.enqueue`; and those to dequeue."""

    @property
    def in_doubt(self) -> list[bytes]:
        """The xids of distributed transactions that are prepared but neither committed nor aborted."""

    def user_of(self, xid: bytes) -> str:
        """The user who has prepared one of these; empty if the store does not know."""

    def commit(
        self,
        enqueues: Sequence[tuple[_JournalUsed, list[tuple[Sequence[bytes], int, int]]]],
        dequeues: Sequence[tuple[_JournalUsed, int]],
        done: Done,
        /,
    ) -> list[int]:
        """Commit all of this, or nothing. Returns the record ids of the enqueued messages. Raises `Store.errors`.

        Call `Store.start` afterwards. If `done` gets `full_error`, there was no room for the commit: nothing of it is
        left. After any other error the outcome is unknown until the next start.
        """

    def prepare(
        self,
        xid: bytes,
        enqueues: Sequence[tuple[_JournalUsed, list[tuple[Sequence[bytes], int, int]]]],
        dequeues: Sequence[tuple[_JournalUsed, int]],
        done: Done,
        user: str,
        /,
    ) -> list[int]:
        """Write a branch of a user, so that it can be committed or aborted after any crash; otherwise as `commit`."""

    def begin_large(self, xid: bytes = b"", user: str = "", /) -> Any:
        """Begin a transaction that is appended in portions: a local one, or a branch to be prepared. Raises as these.

        All of its records count from its end on, or none. After an error it must be aborted.
        """

    def append_portion(
        self,
        large: Any,
        enqueues: Sequence[tuple[_JournalUsed, list[tuple[Sequence[bytes], int, int]]]],
        dequeues: Sequence[tuple[_JournalUsed, int]],
        /,
    ) -> list[int]:
        """Append all of this, or nothing. Returns the record ids of the enqueued messages. Raises `Store.errors`."""

    def when_written(self, large: Any, then: Callable[[], None], /) -> None:
        """Begin to write what was appended, and call `then` when the next portion may be: perhaps at once."""

    def end_large(self, large: Any, done: Done, /) -> None:
        """Commit or prepare it; otherwise as `commit` and `prepare`."""

    def abort_large(self, large: Any, done: Callable[[], None], /) -> None:
        """Take everything back, and call `done` when its dequeued messages may be dequeued by others."""

    def commit_prepared(self, xid: bytes, done: Done) -> None:
        """Commit a prepared branch. Raises `Store.errors`."""

    def abort_prepared(self, xid: bytes, done: Done) -> None:
        """Abort a prepared branch. Raises `Store.errors`."""


class StoreChanges(Protocol[_JournalT]):
    """Changes of stored objects other than messages. They are made in the order of the calls."""

    def create_queue(self, record: Queue, geometry: Geometry, done: Changed[_JournalT], /) -> None:
        """Create a durable queue; `done` gets its journal."""

    def delete_queue(self, journal: _JournalT, done: Changed[None], /) -> None:
        """Delete a queue, its messages and all bindings to it. Its journal must not be appended to any more."""

    def create_exchange(self, record: Exchange, done: Changed[int], /) -> None:
        """Create a durable exchange; `done` gets its number."""

    def delete_exchange(self, number: int, done: Changed[None], /) -> None:
        """Delete an exchange and all its bindings."""

    def delete_exchange_with(self, number: int, general: Sequence[int], done: Changed[None], /) -> None:
        """Delete an exchange, all its bindings, and other objects by number, in one step."""

    def create_binding(self, exchange_id: int, record: Binding, done: Changed[BindingEntry], /) -> None:
        """Bind a queue to an exchange; `done` gets the handle for deleting the binding."""

    def delete_binding(self, binding: BindingEntry, done: Changed[None], /) -> None:
        """Delete one binding."""

    def create_general(self, record: Link | Bridge | GeneralObject, done: Changed[int], /) -> None:
        """Store a link, a bridge or another object; `done` gets its number."""

    def delete_general(self, number: int, done: Changed[None], /) -> None:
        """Delete a link, a bridge or another object."""


class StoreOf(Protocol[_QueueT, _JournalT]):
    """An open store. The rules are in the module's docstring."""

    @property
    def was_clean(self) -> bool:
        """Whether it was closed cleanly the last time."""

    @property
    def topology(self) -> StoredTopology:
        """Exchanges, bindings and other objects found when it was opened."""

    @property
    def recovered_queues(self) -> Sequence[_QueueT]:
        """The recovered queues, until `end_recovery`."""

    @property
    def journals(self) -> Mapping[int, _JournalT]:
        """Queue id -> journal."""

    @property
    def append(self) -> Appends[_JournalT]:
        """Enqueues and dequeues outside transactions."""

    @property
    def transactions(self) -> StoreTransactions[_JournalT]:
        """Transactions over several queues."""

    @property
    def changes(self) -> StoreChanges[_JournalT]:
        """Creates and deletes queues, exchanges, bindings and so on."""

    # ---- errors ----

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """All errors that the store raises, or passes to a callback, by design. The text is one line for a person."""

    @property
    def full_error(self) -> type[Exception]:
        """A journal is full until messages are dequeued from it."""

    @property
    def failed_error(self) -> type[Exception]:
        """A journal's disk has failed: it accepts nothing more until the store is opened again."""

    @property
    def argument_error(self) -> type[Exception]:
        """An argument of a queue's declaration is not valid."""

    def on_refusal(self, refused: Refused, /) -> None:
        """Call `refused` when a journal begins to refuse records for want of room: once, until it accepts a message."""

    # ---- recovery ----

    def messages(self, queue: _QueueT, /) -> Iterator[RecoveredMessage]:
        """The messages of a recovered queue, in order. Read them before appending to the queue."""

    def index(self, queue: _QueueT, /) -> Iterator[IndexPortion] | None:
        """Where the messages of a recovered queue are, in order; None if they are few, and `messages` reads them."""

    def end_recovery(self) -> None:
        """End recovery: no more stored messages will be read."""

    # ---- normal operation ----

    def crc(self, parts: Iterable[bytes], /) -> int:
        """The checksum of a message's data, computed once for all of its queues."""

    def queue_geometry(self, arguments: Mapping[str, Any], /) -> Geometry:
        """Size of a queue's journal, according to its declaration's arguments. Raises `argument_error`."""

    def start_aged(self) -> None:
        """Start writing the records that were appended before the last call of this method and are still unflushed."""

    @property
    def has_unflushed(self) -> bool:
        """Whether records without waiters are unwritten, or waiters uncalled: a later flush or `start_aged` does it."""

    def metrics(self) -> Mapping[str, int | str]:
        """What management shows: names of the class Store of the schema of legacystore, in snake case -> value."""

    def journal_metrics(self, journal: _JournalT, /) -> Mapping[str, int | str]:
        """Likewise, of the class Journal."""

    def flush(self, journals: Iterable[_JournalT], done: Done, *, is_idle: bool = False) -> None:
        """Flush `journals`; `done` is called when all their appended records are on the disk, or with an error."""

    def fill_ahead(self) -> None:
        """Prepare for the next small flushes. To be called when nothing waits for the disk, and all output is sent."""

    def read(self, journal: _JournalT, rids: Sequence[int], decode: RestoreMessage, done: MessagesRead, /) -> None:
        """Read and decode messages, and call `done` with each, or the error: at once, if that need not wait."""

    def will_read(self, journal: _JournalT, rids: Sequence[int], /) -> None:
        """Have the system read ahead: these messages will be read soon."""

    def put_away(self, journal: _JournalT, rids: Sequence[int], /) -> None:
        """Keep only a compact index of these messages, with ascending ids: they are out of the broker's memory."""

    def purge(self, journal: _JournalT, rids: Iterable[int], done: Done) -> None:
        """Remove messages of a queue; `done` is called when that is on the disk. Raises `errors`."""

    def share_snapshot(self, done: Changed[SharedSnapshot], /) -> None:
        """Take a snapshot of everything appended so far, for another process; `done` gets it."""

    def collect(self, timeout: float | None = 0.0) -> None:
        """Process completed disk operations, and run callbacks. Waits `timeout` seconds for one (None: no limit)."""

    def fileno(self) -> int:
        """A descriptor that is readable when `collect` is due; -1 if there is none."""

    def is_watched(self, call_soon: Callable[[Callable[[], None]], object], /) -> None:
        """An event loop watches it; `call_soon` calls a function in its next iteration."""

    @property
    def failure(self) -> Exception | None:
        """The error that stopped all syncing for good (logged); None if there is none. Then only `close` helps."""

    def look(self) -> None:
        """Check that disk operations make progress, and log it if not. To be called about every second."""

    def will_close(self) -> None:
        """From now on no wait is unbounded. Any thread may call it."""

    @property
    def progress(self) -> int:
        """A number that grows with completed disk operations. Any thread may read it."""

    def close(self, delivered: Mapping[int, Iterable[int]] | None = None) -> bool:
        """Finish pending operations and close the store. Returns whether it is marked clean.

        `delivered` has record ids of messages that had been delivered, by queue id: they will be marked as redelivered.
        """


Store: TypeAlias = StoreOf[Any, Any]
"""A store with any types of journal and recovered queue; they satisfy `Journal` and `RecoveredQueue`."""

# ---- the module that provides it ----

OptionKind: TypeAlias = Literal["number", "switch", "choice", "text"]


class ModuleOption(Protocol):
    """An option that a module adds to the broker's options."""

    @property
    def name(self) -> str:
        """Its name, without the leading `--`."""

    @property
    def alias(self) -> str:
        """An alternative name; empty for none."""

    @property
    def kind(self) -> OptionKind:
        """The kind of its value; a switch is yes or no."""

    @property
    def default(self) -> str:
        """The default as shown in --help; empty for none."""

    @property
    def help(self) -> str:
        """The help text: one line."""


class StoreModule(Protocol):
    """The object that a module's entry point provides."""

    @property
    def title(self) -> str:
        """The heading of its options, such as "Store"."""

    @property
    def options(self) -> Sequence[ModuleOption]:
        """Its options, in the order of --help."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Errors that `open` raises. The text is one line for a person."""

    def open(
        self,
        values: Mapping[str, str],
        data_directory: str | None,
        version: str,
        log: StoreLog,
        progress: TellProgress = ...,
        /,
    ) -> Store:
        """Open the store, in any state, and recover it.

        Args:
            values: the given options, by name or alias, as text.
            data_directory: the broker's, which exists; None if it has none.
            version: the broker's, recorded in the store.
            log: receives log lines.
            progress: is told how far it is, again and again.

        Raises:
            `errors`
        """
