"""A real store in use, and what it must hold; and what a copy of it holds."""

from __future__ import annotations

import random
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from click.testing import CliRunner

from qstore.formats.broker_records.topology import Queue
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.store.environment import Environment, tool_environment
from qstore.store.inspect.layout import find_layout
from qstore.store.inspect.offline import OfflineStore
from qstore.store.live.message_store import MessageStore
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.live.snapshot import Snapshot, copy_snapshot
from qstore.store.log_lines import Level, LogLine
from qstore.store.parameters import StoreParameters
from qstore.tools.qstore_check import command as check

PARAMETERS: Final = StoreParameters(auto_expand=False, wcache_page_size=4, tpl_num_jfiles=4, tpl_jfile_size_pgs=1)
GEOMETRY: Final = Geometry.from_pages(4, 1)  # 256 KiB
MAX_TURNS: Final = 2000
Content = dict[str, dict[int, bytes]]


class Lab:
    """A store, and what it must hold.

    Attributes:
        store: the store.
        content: queue -> record id -> data.
        prepared: xid -> what it would enqueue, and dequeue: (queue, record id).
    """

    def __init__(self, path: Path, environment: Environment, seed: int = 0) -> None:
        self.path, self.environment, self.rng = path, environment, random.Random(seed)
        self.lines: list[LogLine] = []
        self.store = MessageStore.open(environment, str(path), PARAMETERS, "0.1.0", log=self.lines.append)
        self.content: Content = {}
        self.journals: dict[str, QueueJournal] = {}
        self.prepared: dict[bytes, tuple[Content, list[tuple[str, int]]]] = {}

    def wait(self, reached: Callable[[], object]) -> None:
        """Until it is so."""
        for _ in range(MAX_TURNS):
            if reached():
                return
            self.store.start()
            self.store.collect()
            if self.store.fileno() >= 0:
                select.select((self.store.fileno(),), (), (), 0.05)
        raise AssertionError("never called back")

    def create(self, name: str, geometry: Geometry = GEOMETRY) -> QueueJournal:
        """Make a queue."""
        made: list[tuple[QueueJournal | None, Exception | None]] = []
        self.store.changes.create_queue(Queue(name), geometry, lambda journal, error: made.append((journal, error)))
        self.wait(lambda: made)
        journal, error = made[0]
        assert journal is not None, error
        self.content[name], self.journals[name] = {}, journal
        return journal

    def delete(self, name: str) -> None:
        """Delete a queue."""
        done: list[Exception | None] = []
        self.store.changes.delete_queue(self.journals.pop(name), lambda _, error: done.append(error))
        self.wait(lambda: done)
        assert done == [None]
        del self.content[name]

    def enqueue(self, name: str, size: int) -> int:
        """Enqueue a message."""
        data = self.rng.randbytes(size)
        rid = self.store.append.enqueue(self.journals[name], (data,), size, data_crc((data,)))
        self.content[name][rid] = data
        return rid

    def dequeue(self, name: str, rid: int) -> None:
        """Dequeue a message."""
        self.store.append.dequeue(self.journals[name], rid)
        del self.content[name][rid]

    def free(self, name: str) -> list[int]:
        """Messages that no prepared transaction holds."""
        held = {target for _, dequeues in self.prepared.values() for target in dequeues}
        return [rid for rid in self.content[name] if (name, rid) not in held]

    def transaction(self, names: list[str], xid: bytes = b"") -> None:
        """A local transaction that ends, or a branch that stays in doubt."""
        done: list[Exception | None] = []
        data = {name: self.rng.randbytes(self.rng.randint(0, 700)) for name in names}
        enqueues = [(self.journals[name], [((each,), len(each), data_crc((each,)))]) for name, each in data.items()]
        going = [(name, self.rng.choice(self.free(name))) for name in names if self.free(name)]
        dequeues = [(self.journals[name], rid) for name, rid in going]
        if xid:
            rids = self.store.transactions.prepare(xid, enqueues, dequeues, done.append)
        else:
            rids = self.store.transactions.commit(enqueues, dequeues, done.append)
        coming = {name: {rid: data[name]} for name, rid in zip(names, rids, strict=True)}
        if xid:
            self.prepared[xid] = coming, going
        else:
            for name, messages in coming.items():
                self.content[name].update(messages)
            for name, rid in going:
                del self.content[name][rid]
        self.wait(lambda: done)
        assert done == [None]

    def work(self, steps: int, largest: int = 2000) -> None:
        """Some traffic."""
        names = list(self.journals)
        for _ in range(steps):
            name, chance = self.rng.choice(names), self.rng.random()
            free = self.free(name)
            if chance < 0.02:
                self.transaction(self.rng.sample(names, min(len(names), self.rng.choice((1, 2)))))
            elif len(free) < 20 or (chance < 0.5 and len(free) < 60):
                self.enqueue(name, self.rng.choice((self.rng.randint(0, 300), self.rng.randint(0, largest))))
            else:
                self.dequeue(name, free[0] if chance < 0.8 else self.rng.choice(free))
            if self.rng.random() < 0.05:
                self.store.start()
                self.store.collect()

    def snapshot(self) -> tuple[Snapshot, Content]:
        """Take one, and what it must hold."""
        taken: list[tuple[Snapshot | None, Exception | None]] = []
        content = {name: dict(messages) for name, messages in self.content.items()}
        checkpoint = str(self.path.parent / f"checkpoint-{self.rng.getrandbits(64):x}")
        self.store.snapshot(checkpoint, lambda snapshot, error: taken.append((snapshot, error)))
        self.wait(lambda: taken)
        snapshot, error = taken[0]
        assert snapshot is not None, error
        return snapshot, content

    def copy(self, snapshot: Snapshot, name: str = "copy") -> Path:
        """Copy it beside the store."""
        copy_snapshot(self.environment, snapshot, str(self.path.parent / name))
        return self.path.parent / name


@contextmanager
def lab(path: Path, environment: Environment | None = None, seed: int = 0) -> Iterator[Lab]:
    """A store with three queues, one of them with large files."""
    made = Lab(path / "store", environment or tool_environment(), seed)
    with made.store:
        for name, geometry in (("orders", GEOMETRY), ("bills", GEOMETRY), ("logs", Geometry.from_pages(4, 16))):
            made.create(name, geometry)
        yield made
    assert [line.text for line in made.lines if line.level in (Level.WARNING, Level.CRITICAL)] == []


def read(path: Path) -> tuple[Content, dict[bytes, set[tuple[str, int, int]]]]:
    """What a store holds: messages, and those in doubt by their branch: (queue, record id, state)."""
    lines: list[LogLine] = []
    content: Content = {}
    doubt: dict[bytes, set[tuple[str, int, int]]] = {}
    with MessageStore.open(tool_environment(), str(path), PARAMETERS, "0.1.0", log=lines.append) as store:
        assert not store.was_clean
        for queue in store.recovered_queues:
            name = queue.record.name
            content[name] = {}
            for message in store.messages(queue):
                content[name][message.rid] = message.data
                if message.xid is not None:
                    doubt.setdefault(message.xid, set()).add((name, message.rid, message.state))
        assert set(store.transactions.in_doubt) >= set(doubt)
    assert [line.text for line in lines if line.level in (Level.WARNING, Level.CRITICAL)] == []
    return content, doubt


def check_sound(path: Path) -> None:
    """The offline check reports nothing."""
    store = OfflineStore(tool_environment().disk, find_layout(tool_environment().disk, str(path)))
    store.recover()
    store.close()
    assert store.damage == []
    result = CliRunner().invoke(check, [str(path)])
    assert result.exit_code == 0, result.output
