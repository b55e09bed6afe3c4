"""The messages of a durable queue that are out of memory: their content is in the queue's journal already.

The keys are record ids. Where a record is, only the store knows: compaction moves records, and their ids stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from logging import ERROR
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.log.budget import LogBudget
from qstore.broker.log.logs import log_of
from qstore.formats.broker_records.errors import BrokerRecordError

if TYPE_CHECKING:
    from qstore.broker.model.message import Message, RestoreMessage
    from qstore.broker.model.queues.entry import Entry
    from qstore.broker.model.residency.source import Loaded
    from qstore.broker.model.store_protocol import Store

_LOG: Final = log_of("Broker")


class JournalSource:
    """A `ContentSource` that reads messages from a queue's journal.

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
        """Never: the messages are in the journal already."""
        return False

    def keep(self, entries: Sequence[Entry]) -> Sequence[int]:
        """The record ids; the store makes its own index of these records compact."""
        rids = [entry.rid for entry in entries]
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
        text = 'Queue "%s": record 0x%x cannot be read back, so its message is not delivered; it stays stored: %s'
        self._budget.write(time.monotonic(), text, self._name, rid, error)

    def will_need(self, keys: Sequence[int]) -> None:
        """Have the system read ahead."""
        self._store.will_read(self._journal, keys)

    def forget(self, keys: Sequence[int]) -> None:
        """Nothing to do: the records stay where they are until they are dequeued."""

    def close(self) -> None:
        """The store deletes the journal: what is still being read is not wanted any more."""
        self._is_closed = True
