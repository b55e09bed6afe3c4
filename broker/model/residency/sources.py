"""The sources of messages that are out of memory, from which they are read back.

    source       messages                                        their keys
    -----------  ----------------------------------------------  -------------------------------------
    the journal  stored ones (`JournalSource`)                   record ids
    a file       all others (`page_file`)                       chosen by it

An error affects only the message that cannot be read back: the source logs it, and the message stays on its queue, is
counted, is declined by all consumers, and can be purged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from logging import ERROR
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from qstore.broker.log.logs import LogBudget, log_of
from qstore.broker.model.run import MAX_BODY, MessageRun, read_run
from qstore.formats.errors import BrokerRecordError

if TYPE_CHECKING:
    from qstore.broker.model.message import Message, RestoreMessage
    from qstore.broker.model.queues.entry import Entry
    from qstore.broker.model.store_protocol import Store
    from qstore.formats.kernels.bodies import Bodies, SizeField

_LOG: Final = log_of("Broker")

Loaded: TypeAlias = "list[Message | None]"
"""Messages in the order of their keys; None for each that cannot be read."""

LoadedRuns: TypeAlias = "Sequence[Message | MessageRun | None]"
"""The same, with a run in the place of consecutive messages that can be in one."""


class ContentSource(Protocol):
    """Keeps messages of one queue that are out of memory. No method raises anything but MemoryError."""

    @property
    def has_failed(self) -> bool:
        """Whether the last messages given to it had to stay in memory."""

    def keep(self, entries: Sequence[Entry]) -> Sequence[int]:
        """Keep the messages of these entries, in order. Returns the key of each; 0 for one that must stay in memory."""

    def load(self, keys: Sequence[int]) -> Loaded:
        """Read messages now; the event loop waits for the disk."""

    def fetch(self, keys: Sequence[int], done: Callable[[Loaded], None]) -> None:
        """As `load`, but without waiting: `done` is called with the result, at once if no disk access is needed."""

    def will_need(self, keys: Sequence[int]) -> None:
        """Have the system read ahead messages that will be fetched soon."""

    def forget(self, keys: Sequence[int]) -> None:
        """Forget messages that are in memory again, or have left the queue."""

    def close(self) -> None:
        """Forget all messages: the queue was deleted."""


class JournalSource:
    """The `ContentSource` of a durable queue: the content of its stored messages is in its journal already.

    The keys are record ids. Only the store knows the places of records, which compaction moves.

    Args:
        store: the store.
        journal: the queue's, of a type the store chooses.
        name: the queue's.
        restore: decodes a stored message.
    """

    __slots__ = ("_budget", "_errors", "_is_closed", "_journal", "_name", "_restore", "_store")

    def __init__(self, store: Store, journal: Any, name: str, restore: RestoreMessage) -> None:
        self._store, self._journal, self._name, self._restore = store, journal, name, restore
        self._errors: tuple[type[Exception], ...] = (*store.errors, OSError, BrokerRecordError)
        self._is_closed = False
        self._budget = LogBudget(_LOG, ERROR, f'messages of queue "{name}" that cannot be read back')

    @property
    def has_failed(self) -> bool:
        """False: the messages are in the journal already."""
        return False

    def keep(self, entries: Sequence[Entry]) -> Sequence[int]:
        """The record ids; the store makes its own index of these records compact."""
        return self.keep_stored([entry.rid for entry in entries])

    def keep_stored(self, rids: Sequence[int]) -> Sequence[int]:
        """As `keep`, of the messages with these record ids."""
        self._store.put_away(self._journal, rids)
        return rids

    def load(self, keys: Sequence[int]) -> Loaded:
        """Read messages now."""
        found: list[Message | Exception] = []
        for rid in keys:
            try:
                found.append(self._restore(self._journal.load(rid)))
            except self._errors as error:
                found.append(error)
        return self._messages(keys, found)

    def fetch(self, keys: Sequence[int], done: Callable[[Loaded], None]) -> None:
        """Read messages without waiting for the disk."""
        self._store.read(self._journal, keys, self._restore, partial(self._read, keys, done))

    def fetch_runs(self, keys: Sequence[int], largest: int, done: Callable[[LoadedRuns], None]) -> None:
        """As `fetch`, with consecutive messages of at most `largest` bytes as runs."""
        self._store.read_runs(
            self._journal, keys, self._restore, partial(_alike, largest), partial(self._runs_read, keys, done)
        )

    def _runs_read(
        self,
        keys: Sequence[int],
        done: Callable[[LoadedRuns], None],
        found: list[Message | Exception | tuple[Message, Bodies]],
    ) -> None:
        if self._is_closed:
            return
        loaded: list[Message | MessageRun | None] = []
        number = 0
        for each in found:
            if isinstance(each, tuple):
                message, bodies = each
                loaded.append(read_run(message, bodies))
                number += bodies.count
                continue
            if isinstance(each, Exception):
                self._unreadable(keys[number], each)
                loaded.append(None)
            else:
                loaded.append(each)
            number += 1
        done(loaded)

    def _read(self, keys: Sequence[int], done: Callable[[Loaded], None], found: list[Message | Exception]) -> None:
        if not self._is_closed:
            done(self._messages(keys, found))

    def _messages(self, keys: Sequence[int], found: list[Message | Exception]) -> Loaded:
        messages: Loaded = []
        for number, each in enumerate(found):
            if isinstance(each, Exception):
                self._unreadable(keys[number], each)
                messages.append(None)
            else:
                messages.append(each)
        return messages

    def _unreadable(self, rid: int, error: Exception) -> None:
        text = 'Queue "%s": record 0x%x cannot be read back, so its message is not delivered; it stays in the store: %s'
        self._budget.write(time.monotonic(), text, self._name, rid, error)

    def will_need(self, keys: Sequence[int]) -> None:
        """Have the system read ahead."""
        self._store.will_read(self._journal, keys)

    def forget(self, keys: Sequence[int]) -> None:
        """Nothing to do: the records stay where they are until they are dequeued."""

    def close(self) -> None:
        """Drop reads under way: the store deletes the journal."""
        self._is_closed = True


def _alike(
    largest: int, message: Message, data: bytes, begin: int, end: int
) -> tuple[bytes, SizeField | None, int] | None:
    """What the messages that can be in one run with one that was read have in common (`Store.read_runs`)."""
    head = message.head_in(data, begin, end)
    if head is None:
        return None
    header = message.size - len(message.body)
    field = message.size_field
    return head, None if field is None else field.moved(len(head) - header), min(MAX_BODY, largest - header)
