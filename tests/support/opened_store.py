"""A store that a test has open: made, waited for, filled, read."""

from __future__ import annotations

import select
from pathlib import Path
from typing import Any, Final, NamedTuple

from qstore.formats.broker_records.topology import Queue
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.formats.values import EMPTY_MAP, TypedMap
from qstore.store.environment import Environment
from qstore.store.live.message_store import MessageStore
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.live.transaction_parts import Enqueue
from qstore.store.log_lines import LogLine
from qstore.store.parameters import StoreParameters

GEOMETRY: Final = Geometry.from_pages(4, 1)
PARAMETERS: Final = StoreParameters(
    auto_expand=False,
    num_jfiles=4,
    jfile_size_pgs=1,
    wcache_page_size=4,
    wcache_num_pages=4,
    tpl_num_jfiles=4,
    tpl_jfile_size_pgs=1,
)
PATIENCE_SECONDS: Final = 30.0
"""No test waits longer for what must happen."""


class Recovered(NamedTuple):
    """A recovered message: see `RecoveredMessage`."""

    rid: int
    data: bytes
    state: int
    xid: bytes | None
    redelivered: bool


class Calls(list[Any]):
    """Callbacks: the arguments of each call, a single one as it is."""

    def __call__(self, *arguments: Any) -> None:
        self.append(arguments[0] if len(arguments) == 1 else arguments)


class OpenedStore:
    """A store with small journals.

    Args:
        environment: the tools' or the system's.
        path: its directory.
        parameters: its options.

    Attributes:
        store: the store.
        lines: what it has logged.
    """

    def __init__(self, environment: Environment, path: Path, parameters: StoreParameters = PARAMETERS) -> None:
        self.lines: list[LogLine] = []
        self.store = MessageStore.open(environment, str(path), parameters, "0.1.0", log=self.lines.append)

    @property
    def texts(self) -> list[str]:
        """The lines without their levels."""
        return [line.text for line in self.lines]

    # ---- waiting ----

    def wait(self, calls: list[Any], count: int = 1) -> None:
        """Until so many calls have come, as an event loop waits."""
        while len(calls) < count:
            self.store.start()
            self.store.collect()
            if len(calls) < count and self.store.fileno() >= 0:
                assert select.select([self.store.fileno()], [], [], PATIENCE_SECONDS)[0]

    def flush(self, *journals: QueueJournal) -> None:
        """Until all is on the disk."""
        calls = Calls()
        self.store.flush(journals, calls)
        self.wait(calls)
        assert calls == [None]

    # ---- queues and messages ----

    def make_queue(self, name: str, geometry: Geometry = GEOMETRY, arguments: TypedMap = EMPTY_MAP) -> QueueJournal:
        """A queue, when it is made."""
        calls = Calls()
        self.store.changes.create_queue(Queue(name, arguments), geometry, calls)
        self.wait(calls)
        journal, error = calls[0]
        assert error is None
        assert isinstance(journal, QueueJournal)
        return journal

    def journal(self, name: str) -> QueueJournal:
        """That of a queue that is there."""
        (found,) = [journal for journal in self.store.journals.values() if journal.name == name]
        return found

    def enqueue(self, journal: QueueJournal, data: bytes) -> int:
        """Append a message."""
        return self.store.append.enqueue(journal, (data,), len(data), data_crc((data,)))

    def recovered(self) -> dict[str, list[Recovered]]:
        """What every queue had when the store was opened. Ends recovery."""
        found = {
            queue.record.name: [
                Recovered(each.rid, each.data, each.state, each.xid, each.redelivered)
                for each in self.store.messages(queue)
            ]
            for queue in self.store.recovered_queues
        }
        self.store.end_recovery()
        return found

    def recovered_data(self) -> dict[str, list[bytes]]:
        """As `recovered`, the data alone."""
        return {name: [message.data for message in messages] for name, messages in self.recovered().items()}


def enqueued(journal: QueueJournal, data: bytes) -> Enqueue:
    """A message for a transaction."""
    return (journal, [((data,), len(data), data_crc((data,)))])
