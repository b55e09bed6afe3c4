"""A store with some queues, asked for one thing after the other: for tests that know what they want."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from qstore.formats.broker_records.topology import Queue
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.store.live.message_store import MessageStore
from qstore.store.live.queue_journal import Done, QueueJournal
from qstore.store.live.transactions import Enqueue
from qstore.store.log_lines import Level, LogLine
from qstore.store.parameters import OnDamage
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.store_simulation import PATH, SlowSync, TinyParameters, simulated_environment

GEOMETRY: Final = Geometry(8, 4096)


class Shop:
    """A store with some queues, and what its callbacks brought."""

    def __init__(self, disk: SimulatedDisk, queues: int = 0, on_damage: OnDamage = OnDamage.QUARANTINE) -> None:
        self.lines: list[LogLine] = []
        self.disk = disk
        parameters = TinyParameters(on_damage=on_damage)
        environment = simulated_environment(disk, random.Random(1), lambda: SlowSync(random.Random(2)))
        self.store = MessageStore.open(environment, PATH, parameters, "test", log=self.lines.append)
        self.found = {
            queue.record.name: [message.data for message in self.store.messages(queue)]
            for queue in self.store.recovered_queues
        }
        self.store.end_recovery()
        self.journals = {journal.name: journal for journal in self.store.journals.values()}
        for number in range(queues):
            self.make(f"queue-{number}")

    def make(self, name: str, geometry: Geometry = GEOMETRY) -> Exception | None:
        got: list[Exception | None] = []

        def made(journal: QueueJournal | None, error: Exception | None) -> None:
            if journal is not None:
                self.journals[name] = journal
            got.append(error)

        self.store.changes.create_queue(Queue(name), geometry, made)
        return self.wait(got)

    def wait(self, got: list[Exception | None], count: int = 1) -> Exception | None:
        for _ in range(1000):
            if len(got) == count:
                return next((error for error in got if error is not None), None)
            self.store.start()
            self.store.collect(None)
        raise AssertionError("nobody calls back")

    def ask(self, ask: Callable[[Done], object]) -> Exception | None:
        got: list[Exception | None] = []
        ask(got.append)
        return self.wait(got)

    def enqueue(self, name: str, data: bytes) -> int:
        return self.store.append.enqueue(self.journals[name], (data,), len(data), data_crc((data,)))

    def flush(self, *names: str) -> Exception | None:
        return self.ask(lambda done: self.store.flush([self.journals[name] for name in names], done))

    def transaction(self, data: bytes, *names: str) -> Exception | None:
        return self.ask(lambda done: self.store.transactions.commit(self.enqueues(data, *names), [], done))

    def enqueues(self, data: bytes, *names: str) -> list[Enqueue]:
        return [(self.journals[name], [((data,), len(data), data_crc((data,)))]) for name in names]

    def critical(self) -> list[str]:
        return [line.text for line in self.lines if line.level is Level.CRITICAL]
