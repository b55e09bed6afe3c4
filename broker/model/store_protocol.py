"""The broker's requirements of a store, and of the module that provides one.

The broker never imports a store: it finds a module by name (`process/modules`), which opens one. The protocols keep the
two rooms apart; `tests/broker/test_store_protocol.py`, which mypy checks, verifies that the store satisfies them.

* **No call blocks**, except opening and closing, and `drained` if its caller is idle. The broker appends, tells the
  store of callbacks that wait for that (`when_synced`), and of processed input (`drained`); the store decides what is
  written when. A callback, `Done`, is called once, with None when everything is on the disk, or with the error that
  prevented it.
* Callbacks run from `collect`, which is to be called when `fileno` is readable, and sometimes from `drained`. What a
  callback appends is written without another `drained`, if another callback waits for it.
* An operation that can be refused is refused at once, by an exception, and then nothing was written. `full_error`: the
  journal is full until messages are dequeued; its text can be sent to the client. It is among `errors`, which are the
  only exceptions that the calls below raise by design. Their text is one line for a person.
* A message's record id is its position: queue order is the order of record ids, before a restart and after.
* A transaction takes effect at its commit point, or not at all. If `done` gets `full_error`, there was no room for it,
  and nothing of it is left. After any other error the outcome is unknown until the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from qstore.broker.model.message import Message, MessagesRead, RestoreMessage
from qstore.formats.broker_records.topology import Binding, Bridge, Exchange, GeneralObject, Link, Queue
from qstore.formats.catalogue import BindingEntry
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.rhm.geometry import Geometry

_Result = TypeVar("_Result")

Done: TypeAlias = Callable[[Exception | None], None]
Changed: TypeAlias = Callable[[_Result | None, Exception | None], None]
"""Called with the result of a change, or with None and the error. A deletion has no result: None and None."""
Refused: TypeAlias = Callable[[str, bool], None]
"""Called with a journal's name and whether it is full; else it still accepts dequeues. It must not call the store."""
StoreLog: TypeAlias = Callable[["StoreLine"], None]
ReportProgress: TypeAlias = Callable[[Callable[[], str]], None]
"""Receives a function that returns the text about a start's progress, called only if the text is used."""

JournalHandle: TypeAlias = Any  # a journal, of the store's own type, which satisfies `Journal`
QueueHandle: TypeAlias = Any  # likewise, a `RecoveredQueue`
Alike: TypeAlias = Callable[[Message, bytes, int, int], tuple[bytes, SizeField | None, int] | None]
RunsRead: TypeAlias = Callable[[list[Message | Exception | tuple[Message, Bodies]]], None]
"""As `MessagesRead`, with runs (`Store.read_runs`)."""
Enqueues: TypeAlias = Sequence[tuple[JournalHandle, list[tuple[Sequence[bytes], int, int]]]]
"""Messages of a transaction by journal, in order; for each the arguments of `Appends.enqueue`."""
Dequeues: TypeAlias = Sequence[tuple[JournalHandle, int]]

LIVE: Final = 1  # states of a recovered message: available on its queue,
LOCKED: Final = 2  # dequeued by a distributed transaction in doubt,
PENDING: Final = 3  # enqueued by one


class Journal(Protocol):
    """The journal of one durable queue. Counters count from the opening of the store on.

    Beyond `bound` unsynced bytes, an append waits for the disk. A journal is tight when it is nearly full, and the disk
    has no room for it to grow.
    """

    @property
    def queue_id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def geometry(self) -> Geometry: ...
    @property
    def bound(self) -> int: ...
    @property
    def unsynced(self) -> int: ...
    @property
    def is_tight(self) -> bool: ...
    @property
    def depth(self) -> int: ...
    @property
    def enqueues(self) -> int: ...
    @property
    def transaction_enqueues(self) -> int: ...
    def load(self, rid: int) -> bytes:
        """The data of a message, from the disk if it is there. Raises `Store.errors` or OSError."""


# ---- results of recovery ----


class RecoveredMessage(Protocol):
    """A stored message; `xid` is that of the transaction in doubt that holds it."""

    @property
    def rid(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def state(self) -> int: ...
    @property
    def xid(self) -> bytes | None: ...
    @property
    def redelivered(self) -> bool: ...


class IndexPortion(Protocol):
    """Consecutive stored messages that were not read, all LIVE.

    `sizes` are bytes on the disk; `redelivered` has the indices of those that may have been delivered before; `held` is
    the message after them, if a branch holds it.
    """

    @property
    def rids(self) -> Sequence[int]: ...
    @property
    def sizes(self) -> Sequence[int]: ...
    @property
    def redelivered(self) -> Sequence[int]: ...
    @property
    def held(self) -> RecoveredMessage | None: ...


class RecoveredQueue(Protocol):
    """A stored durable queue."""

    @property
    def queue_id(self) -> int: ...
    @property
    def record(self) -> Queue: ...
    @property
    def journal(self) -> Journal: ...


class RecoveredBinding(Protocol):
    """A stored binding; `entry` is the handle for deleting it, None only in a store that is not open for writing."""

    @property
    def exchange(self) -> Exchange: ...
    @property
    def record(self) -> Binding: ...
    @property
    def entry(self) -> BindingEntry | None: ...


class StoredTopology(Protocol):
    """By number: exchanges, and links, bridges and other objects; bindings whose queue and exchange exist, in order."""

    @property
    def exchanges(self) -> Mapping[int, Exchange]: ...
    @property
    def bindings(self) -> Sequence[RecoveredBinding]: ...
    @property
    def general(self) -> Mapping[int, Link | Bridge | GeneralObject]: ...


# ---- operations ----


class Appends(Protocol):
    """Enqueues and dequeues outside transactions. A message is its parts, their size, and their checksum (`crc`)."""

    def enqueue(self, journal: JournalHandle, parts: Sequence[bytes], size: int, crc: int, /) -> int:
        """Append a message. Returns its record id."""

    def enqueue_all(self, journals: Any, parts: Sequence[bytes], size: int, crc: int, /) -> list[int]:
        """Append a message to all of these journals, or to none. Returns its record id in each."""

    def enqueue_run(
        self,
        journal: JournalHandle,
        head: bytes,
        field: SizeField | None,
        bodies: Bodies,
        first: int,
        count: int,
        /,
    ) -> tuple[int, int]:
        """Append messages of a run, in order: `count` of `bodies` from number `first` on.

        The data of each are `head`, in which `field`, if there is one, gives the size of its body, and the body.

        Returns:
            The record id of the first, and how many were appended, with the record ids that follow: 1 to `count`. The
            caller calls again with the rest. An error means that none was.
        """

    def dequeue(self, journal: JournalHandle, target: int, /) -> None:
        """Append the dequeue of the message `target`."""

    def enqueue_run_to_all(
        self,
        journals: Any,
        head: bytes,
        field: SizeField | None,
        bodies: Bodies,
        count: int,
        least: int,
        /,
    ) -> tuple[list[int], int]:
        """As `enqueue_run`, the same of the first `count` messages to all of these journals: at least `least`, or none.

        Returns:
            The record id of the first message in each, and how many were appended to it. If none was, the first must
            be appended by itself.
        """

    def dequeue_run(self, journal: JournalHandle, target: int, count: int, /) -> int:
        """Append the dequeues of messages with consecutive record ids from `target` on. Returns how many: 1 to `count`.

        The caller calls again with the rest. An error means that none was appended.
        """


class StoreTransactions(Protocol):
    """Transactions over several journals: local ones, and branches of distributed ones, by their xid."""

    @property
    def in_doubt(self) -> list[bytes]: ...
    def user_of(self, xid: bytes) -> str:
        """The user who prepared a branch in doubt; empty if unknown."""

    def commit(self, enqueues: Enqueues, dequeues: Dequeues, done: Done, /) -> list[int]:
        """Commit these operations, at the next `drained`. Returns the record ids of the enqueued messages."""

    def prepare(self, xid: bytes, enqueues: Enqueues, dequeues: Dequeues, done: Done, user: str, /) -> list[int]:
        """Write a branch, so that it can be committed or aborted after any crash; otherwise as `commit`."""

    def begin_large(self, xid: bytes = b"", user: str = "", /) -> Any:
        """Begin a transaction that is appended in portions: a local one, or a branch to be prepared."""

    def append_portion(self, large: Any, enqueues: Enqueues, dequeues: Dequeues, /) -> list[int]:
        """Append these operations, or none: then it must be aborted. Returns the record ids of enqueued messages."""

    def when_written(self, large: Any, then: Callable[[], None], /) -> None:
        """Begin to write the appended portion, and call `then` when the next may be appended, perhaps at once."""

    def end_large(self, large: Any, done: Done, /) -> None:
        """Commit or prepare it; otherwise as `commit` and `prepare`. If it is refused, it must be aborted."""

    def abort_large(self, large: Any, done: Callable[[], None], /) -> None:
        """Undo everything, and call `done` when its dequeued messages may be dequeued by others."""

    def commit_prepared(self, xid: bytes, done: Done) -> None: ...
    def abort_prepared(self, xid: bytes, done: Done) -> None: ...


class StoreChanges(Protocol):
    """Changes of stored objects other than messages, made in the order of the calls; results are handles or numbers."""

    def create_queue(self, record: Queue, geometry: Geometry, done: Changed[Any], /) -> None: ...
    def delete_queue(self, journal: JournalHandle, done: Changed[None], /) -> None:
        """Delete a queue, its messages and all bindings to it. Nothing more may be appended to its journal."""

    def create_exchange(self, record: Exchange, done: Changed[int], /) -> None: ...
    def delete_exchange(self, number: int, done: Changed[None], /) -> None: ...
    def delete_exchange_with(self, number: int, general: Sequence[int], done: Changed[None], /) -> None:
        """Delete an exchange, all its bindings, and other objects by number, in one step."""

    def create_binding(self, exchange_id: int, record: Binding, done: Changed[BindingEntry], /) -> None: ...
    def delete_binding(self, binding: BindingEntry, done: Changed[None], /) -> None: ...
    def create_general(self, record: Link | Bridge | GeneralObject, done: Changed[int], /) -> None: ...
    def delete_general(self, number: int, done: Changed[None], /) -> None: ...
    def change_general(
        self, puts: Sequence[GeneralObject], deletes: Sequence[int], done: Changed[list[int]], /
    ) -> None:
        """Store objects, each in place of that with its kind and name, and delete others by number, in one step."""


class SharedSnapshot(Protocol):
    """The whole store at one moment, for another process: `name` is the path of its files below `directory`."""

    @property
    def directory(self) -> str: ...
    @property
    def name(self) -> str: ...
    def copied(self, queue_ids: Iterable[int], /) -> list[int]:
        """Unpin journals that were read, by queue (0: the prepared list). Returns those overwritten before."""

    def release(self) -> None:
        """Release the snapshot. May be called twice."""


class Store(Protocol):
    """An open store."""

    # ---- its parts, its errors, and the results of recovery ----

    @property
    def append(self) -> Appends: ...
    @property
    def transactions(self) -> StoreTransactions: ...
    @property
    def changes(self) -> StoreChanges: ...
    @property
    def errors(self) -> tuple[type[Exception], ...]: ...
    @property
    def full_error(self) -> type[Exception]: ...
    @property
    def argument_error(self) -> type[Exception]: ...
    @property
    def was_clean(self) -> bool: ...
    @property
    def topology(self) -> StoredTopology: ...
    @property
    def recovered_queues(self) -> Sequence[QueueHandle]: ...
    def messages(self, queue: QueueHandle, /) -> Iterator[RecoveredMessage]:
        """The messages of a recovered queue, in order. Read them before appending to the queue."""

    def index(self, queue: QueueHandle, /) -> Iterator[IndexPortion] | None:
        """The places of a recovered queue's messages, in order; None if they are few, so that `messages` reads them."""

    def returns(self, queue: QueueHandle, /) -> Mapping[int, int]:
        """Record ids of messages of a recovered queue that are known to have returned to it, and how often."""

    def returned(self, journal: JournalHandle, rid: int, count: int | None, /) -> None:
        """Note how often a message has returned to its queue, for the next start; None: it is gone. Nothing waits."""

    def end_recovery(self) -> None:
        """End the reading of stored messages; `recovered_queues` is empty from now on."""

    # ---- messages ----

    def crc(self, parts: Iterable[bytes], /) -> int:
        """The checksum of a message's data, computed once for all of its queues."""

    def read(self, journal: JournalHandle, rids: Sequence[int], decode: RestoreMessage, done: MessagesRead, /) -> None:
        """Read and decode messages, and call `done` with each or its error: at once, if no wait is needed."""

    def read_runs(
        self, journal: JournalHandle, rids: Sequence[int], decode: RestoreMessage, alike: Alike, done: RunsRead, /
    ) -> None:
        """As `read`, with consecutive messages that differ only in their bodies as runs.

        In the place of the messages of a run is the first of them, with the bodies of all.

        Args:
            journal: as for `read`.
            rids: as for `read`.
            decode: as for `read`.
            alike: gets a message, and the bytes that it was decoded from. Returns what messages of a run with it have
                in common: the bytes before the body, the field in them that gives its size, if there is one, and the
                size of the largest body; None if it cannot be in a run.
            done: gets them.
        """

    def will_read(self, journal: JournalHandle, rids: Sequence[int], /) -> None:
        """Have the system read ahead messages that will be read soon."""

    def put_away(self, journal: JournalHandle, rids: Sequence[int], /) -> None:
        """Keep only a compact index of messages that are out of the broker's memory; ids ascend."""

    def queue_geometry(self, arguments: Mapping[str, Any], /) -> Geometry:
        """Size of a queue's journal, according to its declaration's arguments. Raises `argument_error`."""

    def on_refusal(self, refused: Refused, /) -> None:
        """Have `refused` called when a journal begins to refuse records, being full; again after it accepted one."""

    # ---- the disk ----

    def when_synced(self, journals: Any, done: Done, *, is_urgent: bool = True) -> None:
        """Call `done` when everything appended to these journals so far is on the disk, or with an error.

        If it `is_urgent`, they are written at the next `drained`. Otherwise their records ride on a write for others,
        or are written some milliseconds later.
        """

    def drained(self, *, is_idle: bool = False, is_urgent: bool = False) -> None:
        """The event loop has processed the input that was there: begin to write what is due.

        Args:
            is_idle: the loop has nothing else to do, and may wait for the disk here.
            is_urgent: all who wait so far wait urgently from now on.
        """

    def collect(self, timeout: float | None = 0.0, *, begins: bool = True) -> None:
        """Process completed disk operations, and run callbacks.

        Args:
            timeout: seconds to wait for an operation; None for no limit.
            begins: whether to begin to write what is due; if not, `drained` must follow.
        """

    def fileno(self) -> int:
        """A descriptor that is readable when `collect` is due; -1 if there is none."""

    def is_watched(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
        /,
    ) -> None:
        """Note that an event loop watches the store; these call a function in its next iteration, or after a delay."""

    @property
    def failure(self) -> Exception | None:
        """The error that stopped all syncing for good (logged); None if there is none. Then only `close` is useful."""

    def look(self) -> None:
        """Check that disk operations make progress, and log it if not. Call this about every second."""

    @property
    def progress(self) -> int:
        """A number that grows with completed disk operations. Any thread may read it."""

    # ---- management, and the end ----

    def metrics(self) -> Mapping[str, int | str]:
        """The metrics for management: names of legacystore's class Store, in snake case -> value."""

    def flush_metrics(self) -> Mapping[str, Any]:
        """What was flushed: `flushes`, `nanoseconds`, `size`, and counts by upper bound, `latencies` and `sizes`."""

    def journal_metrics(self, journal: JournalHandle, /) -> Mapping[str, int | str]:
        """Likewise, for the class Journal."""

    def journal_files(self, journal: JournalHandle, /) -> Mapping[str, Any]:
        """Its `files` from the oldest on, the `live` records in each, how many are `used`, and why the oldest is kept.

        The oldest live record has `rid`, `file` and `offset`; `held_by` is the reason.
        """

    def disk_metrics(self) -> Mapping[str, Any]:
        """Bytes `free` (-1 if unknown), `total` and `kept` of the disk, and the `failure` of the store, if any."""

    def share_snapshot(self, done: Changed[SharedSnapshot], /) -> None:
        """Take a snapshot of everything appended so far, for another process; `done` gets it."""

    def will_close(self) -> None:
        """Bound all waits from now on. Any thread may call this."""

    def close(self, delivered: Mapping[int, Iterable[int]] | None = None) -> bool:
        """Finish pending operations and close the store. Returns whether it is marked clean.

        `delivered` has record ids of messages that had been delivered, by queue id: they will be marked as redelivered.
        """


# ---- the module that provides it ----

OptionKind: TypeAlias = Literal["number", "switch", "choice", "text"]


class StoreLine(Protocol):
    """A log line of a store: one of the broker's levels, such as "notice", and one line of text."""

    @property
    def level(self) -> str: ...
    @property
    def text(self) -> str: ...


class ModuleOption(Protocol):
    """An option that a module adds to the broker's.

    Its name without `--`, an alternative name, its kind (a switch is yes or no), its default as shown, and its help.
    """

    @property
    def name(self) -> str: ...
    @property
    def alias(self) -> str: ...
    @property
    def kind(self) -> OptionKind: ...
    @property
    def default(self) -> str: ...
    @property
    def help(self) -> str: ...


class StoreModule(Protocol):
    """The object that a module's entry point provides: the heading of its options, these, and the errors of `open`."""

    @property
    def title(self) -> str: ...
    @property
    def options(self) -> Sequence[ModuleOption]: ...
    @property
    def errors(self) -> tuple[type[Exception], ...]: ...
    def open(
        self,
        values: Mapping[str, str],
        data_directory: str | None,
        version: str,
        log: StoreLog,
        progress: ReportProgress = ...,
        /,
    ) -> Store:
        """Open the store, in any state, and recover it.

        `values` are the given options, by name or alias; the broker's data directory exists, or is None; its version is
        recorded in the store.
        """
