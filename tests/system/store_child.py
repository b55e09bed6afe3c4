"""A program whose children work on a store until they are killed, and say what they do before and after they do it.

It reads lines from its standard input, each a run's number and the path of a store, and forks a child for each, which
is much faster than a new program for each. The child writes JSON lines to the standard output, each by one write, so
that what was said before a SIGKILL is in the pipe. The messages are numbered by tokens, which go up with the order in
which they are appended, and begin at NUMBER million; a message's whole content follows from its token.

    started   the child runs, with this process id, and opens the store now
    opened    what was recovered: queue -> [rid, token or None for wrong content, state, xid, redelivered], in order
    do        an operation comes now: its number, kind, puts and takes as [queue, token], xid, name
    got       what was put has these record ids
    refused   it was refused, and has done nothing
    done      its callback was called; with an error if there was one
    closing   the store is closed now, with these tokens as delivered: SIGTERM came
    closed    whether it is marked clean, and how many records were relocated in this run
    failed    a traceback
    ended     from the program itself: the child's status, as `os.waitpid` tells it
"""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import orjson

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.broker_records.topology import Binding, Exchange, Queue
from qstore.formats.catalogue import BindingEntry
from qstore.formats.rhm.headers import data_crc
from qstore.store.environment import system_environment
from qstore.store.errors import JournalFullError
from qstore.store.journal.recovery import LIVE, PENDING
from qstore.store.live.message_store import MessageStore
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.live.transactions import Enqueue
from qstore.store.sync import choose_sync_driver
from tests.support.opened_store import GEOMETRY, PARAMETERS

MAX_QUEUES: Final = 5
_HEADER: Final = encode_message(b"", destination="amq.direct", delivery_properties={"delivery_mode": 2})
_DEPTHS: Final = (60, 30, 400)  # messages, from which on more go than come, by run: the last is beyond the threshold
_STUCK: Final = 17  # one of so many messages stays, so that a ring has to carry it on


@cache
def data_of(token: int) -> bytes:
    """The content of a message."""
    source = random.Random(token)
    size = 12_000 if token % 40 == 0 else source.randrange(1_500)
    return b"".join((_HEADER, token.to_bytes(8, "big"), source.randbytes(size)))


def token_of(data: bytes) -> int | None:
    """The message that has this content; None if none has."""
    token = int.from_bytes(data[len(_HEADER) : len(_HEADER) + 8], "big")
    return token if data_of(token) == data else None


def say(**what: Any) -> None:
    """One line for the parent."""
    line = orjson.dumps(what) + b"\n"
    while line:
        line = line[os.write(1, line) :]


Place = tuple[str, int]
"""A queue's name and a message's token."""


@dataclass(slots=True)
class Held:
    """A queue, and its messages that can be taken."""

    journal: QueueJournal
    live: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Branch:
    """A distributed transaction that is prepared."""

    puts: list[tuple[Place, int]]
    takes: list[tuple[Place, int]]


class Child:
    """What works on the store."""

    def __init__(self, path: str, number: int) -> None:
        self.random = random.Random(number)
        self.token = number * 1_000_000
        self.depth = _DEPTHS[number % len(_DEPTHS)]
        self.operation = 0
        driver = "process" if number % 4 else "auto"  # io_uring seldom needs a helper process, which has to end, too
        environment = system_environment()._replace(make_driver=lambda _: choose_sync_driver(driver))
        self.store = MessageStore.open(environment, path, PARAMETERS, "0.1.0", log=lambda line: None)
        self.queues: dict[str, Held] = {}
        self.branches: dict[bytes, Branch] = {xid: Branch([], []) for xid in self.store.transactions.in_doubt}
        self.exchanges: dict[str, int] = {}
        self.bindings: list[tuple[str, BindingEntry]] = []  # those of this run, with their keys
        self.names = number * 1_000
        self.tell_recovered()

    def tell_recovered(self) -> None:
        reported: dict[str, list[Any]] = {}
        for queue in self.store.recovered_queues:
            name = queue.record.name
            held = self.queues[name] = Held(queue.journal)
            rows = reported[name] = []
            for message in self.store.messages(queue):
                token = token_of(message.data)
                xid = None if message.xid is None else message.xid.hex()
                rows.append([message.rid, token, message.state, xid, message.redelivered])
                if message.state == LIVE:
                    held.live[token or 0] = message.rid
                else:
                    branch = self.branches[message.xid or b""]
                    mine = branch.puts if message.state == PENDING else branch.takes
                    mine.append(((name, token or 0), message.rid))
        self.exchanges = {exchange.name: number for number, exchange in self.store.topology.exchanges.items()}
        self.store.end_recovery()
        say(opened=reported, in_doubt=[xid.hex() for xid in self.branches])

    # ---- operations ----

    def begin(self, kind: str, puts: Sequence[Place] = (), takes: Sequence[Place] = (), **more: Any) -> int:
        self.operation += 1
        say(do=self.operation, kind=kind, puts=puts, takes=takes, **more)
        return self.operation

    def done(self, number: int, then: Callable[[], None] = lambda: None) -> Callable[..., None]:
        """A callback, whose last argument is the error."""

        def called(*result: Any) -> None:
            say(done=number, error=None if result[-1] is None else str(result[-1]))
            then()

        return called

    def new_token(self) -> int:
        self.token += 1
        return self.token

    def some_queues(self, most: int) -> list[str]:
        count = min(len(self.queues), self.random.randint(1, most))
        return self.random.sample(sorted(self.queues), count)

    def some_message(self, name: str) -> tuple[int, int] | None:
        """A message that can go: old ones first, but for those that are stuck."""
        held = self.queues[name]
        for token, rid in held.live.items():
            if token % _STUCK or self.random.random() < 0.01:
                return token, rid
        return None

    def work(self) -> None:
        """A batch of plain records on some queues, and now and then something else."""
        if self.queues:
            for name in self.some_queues(3):
                self.plain(name)
        choice = self.random.random()
        if not self.queues or (choice < 0.04 and len(self.queues) < MAX_QUEUES):
            self.create_queue()
        elif choice < 0.055:
            self.delete_queue()
        elif choice < 0.35:
            self.commit()
        elif choice < 0.45:
            self.prepare()
        elif choice < 0.55 and self.branches:
            self.decide()
        elif choice < 0.60:
            self.change_topology()
        elif choice < 0.70:
            self.enqueue_all()
        self.store.start()

    def plain(self, name: str) -> None:
        held, numbers = self.queues[name], []
        for _ in range(self.random.randint(1, 20)):
            message = self.some_message(name)
            if message is not None and self.random.random() * 2 < len(held.live) / self.depth:
                token, rid = message
                numbers.append(self.begin("plain", takes=[(name, token)]))
                self.store.append.dequeue(held.journal, rid)
                del held.live[token]
                continue
            token = self.new_token()
            data = data_of(token)
            number = self.begin("plain", puts=[(name, token)])
            try:
                rid = self.store.append.enqueue(held.journal, (data[:9], data[9:]), len(data), data_crc((data,)))
            except JournalFullError as error:
                say(refused=number, why=str(error))
                continue
            say(got=number, rids=[rid])
            numbers.append(number)
            held.live[token] = rid
        self.when_synced([held], numbers)

    def when_synced(self, queues: list[Held], numbers: list[int]) -> None:
        def called(error: Exception | None) -> None:
            for number in numbers:
                say(done=number, error=None if error is None else str(error))

        self.store.flush([held.journal for held in queues], called)

    def enqueue_all(self) -> None:
        names, token = self.some_queues(4), self.new_token()
        data = data_of(token)
        number = self.begin("all", puts=[(name, token) for name in names])
        queues = [self.queues[name] for name in names]
        try:
            journals = [held.journal for held in queues]
            rids = self.store.append.enqueue_all(journals, (data,), len(data), data_crc((data,)))
        except JournalFullError as error:
            say(refused=number, why=str(error))
            return
        say(got=number, rids=rids)
        for held, rid in zip(queues, rids, strict=True):
            held.live[token] = rid
        self.when_synced(queues, [number])

    # ---- transactions ----

    def some_transaction(self) -> tuple[list[Place], list[Enqueue], list[tuple[Place, int]]]:
        puts: list[Place] = []
        enqueues: list[Enqueue] = []
        takes: list[tuple[Place, int]] = []
        for name in self.some_queues(3):
            held = self.queues[name]
            for _ in range(self.random.randint(0, 3)):
                token = self.new_token()
                data = data_of(token)
                puts.append((name, token))
                enqueues.append((held.journal, [((data,), len(data), data_crc((data,)))]))
            for _ in range(self.random.randint(0, 3)):
                message = self.some_message(name)
                if message is not None:
                    takes.append(((name, message[0]), message[1]))
                    del held.live[message[0]]
        return puts, enqueues, takes

    def commit(self) -> None:
        puts, enqueues, takes = self.some_transaction()
        if not puts and not takes:
            return
        number = self.begin("commit", puts, [place for place, _ in takes])
        rids: list[int] = []

        def committed() -> None:
            self.give_back(list(zip(puts, rids, strict=True)))

        dequeues = [(self.queues[name].journal, rid) for (name, _), rid in takes]
        try:
            rids += self.store.transactions.commit(enqueues, dequeues, self.done(number, committed))
        except JournalFullError as error:
            say(refused=number, why=str(error))
            self.give_back(takes)
            return
        say(got=number, rids=rids)

    def give_back(self, takes: list[tuple[Place, int]]) -> None:
        for (name, token), rid in takes:
            if name in self.queues:  # and is not deleted
                self.queues[name].live[token] = rid

    def prepare(self) -> None:
        puts, enqueues, takes = self.some_transaction()
        if not puts and not takes:
            return
        xid = self.random.randbytes(self.random.randint(1, 40)) + self.token.to_bytes(8, "big")
        number = self.begin("prepare", puts, [place for place, _ in takes], xid=xid.hex())
        branch = Branch([], takes)

        def prepared() -> None:
            self.branches[xid] = branch

        dequeues = [(self.queues[name].journal, rid) for (name, _), rid in takes]
        try:
            rids = self.store.transactions.prepare(xid, enqueues, dequeues, self.done(number, prepared))
        except JournalFullError as error:
            say(refused=number, why=str(error))
            self.give_back(takes)
            return
        branch.puts += zip(puts, rids, strict=True)
        say(got=number, rids=rids)

    def decide(self) -> None:
        xid = self.random.choice(sorted(self.branches))
        branch, commits = self.branches.pop(xid), self.random.random() < 0.6
        number = self.begin("decide", xid=xid.hex(), commits=commits)
        decide = self.store.transactions.commit_prepared if commits else self.store.transactions.abort_prepared

        def decided() -> None:
            self.give_back(branch.puts if commits else branch.takes)

        decide(xid, self.done(number, decided))

    # ---- queues and topology ----

    def create_queue(self) -> None:
        self.names += 1
        name = f"queue-{self.names}"
        number = self.begin("create-queue", name=name)

        def made(journal: QueueJournal | None, error: Exception | None) -> None:
            if journal is not None:
                self.queues[name] = Held(journal)
            self.done(number)(error)

        self.store.changes.create_queue(Queue(name), GEOMETRY, made)
        if not self.queues:
            while not self.queues:
                self.store.collect(0.01)

    def delete_queue(self) -> None:
        """Whatever is under way there: transactions go on in the other queues."""
        name = self.random.choice(sorted(self.queues))
        number = self.begin("delete-queue", name=name)
        journal = self.queues.pop(name).journal
        self.bindings = [each for each in self.bindings if each[1].queue_id != journal.queue_id]
        self.store.changes.delete_queue(journal, self.done(number))

    def change_topology(self) -> None:
        if len(self.exchanges) < 2:
            self.names += 1
            name = f"exchange-{self.names}"
            number = self.begin("create-exchange", name=name)

            def made(exchange: int | None, error: Exception | None) -> None:
                if exchange is not None:
                    self.exchanges[name] = exchange
                self.done(number)(error)

            self.store.changes.create_exchange(Exchange(name, True, "direct"), made)
        elif self.bindings and self.random.random() < 0.5:
            key, binding = self.bindings.pop()
            self.store.changes.delete_binding(binding, self.done(self.begin("unbind", name=key)))
        elif self.random.random() < 0.2:
            name = self.random.choice(sorted(self.exchanges))
            exchange_id = self.exchanges.pop(name)
            self.bindings = [each for each in self.bindings if each[1].exchange_id != exchange_id]
            self.store.changes.delete_exchange(exchange_id, self.done(self.begin("delete-exchange", name=name)))
        elif self.queues:
            self.bind()

    def bind(self) -> None:
        name = self.random.choice(sorted(self.queues))
        exchange, queue = self.random.choice(sorted(self.exchanges)), self.queues[name]
        self.names += 1
        key = f"key-{self.names}"
        number = self.begin("bind", name=key, exchange=exchange, queue=name)
        exchange_id = self.exchanges[exchange]

        def bound(binding: BindingEntry | None, error: Exception | None) -> None:
            if binding is not None and exchange in self.exchanges and name in self.queues:
                self.bindings.append((key, binding))
            self.done(number)(error)

        record = Binding(queue.journal.queue_id, name, key)
        self.store.changes.create_binding(exchange_id, record, bound)

    # ---- the end ----

    def close(self) -> None:
        delivered: dict[str, list[int]] = {}
        ids: dict[int, list[int]] = {}
        for name, held in self.queues.items():
            delivered[name] = [token for token in held.live if self.random.random() < 0.3]
            ids[held.journal.queue_id] = [held.live[token] for token in delivered[name]]
        say(closing=delivered)
        relocated = sum(held.journal.writer.compactor.copied for held in self.queues.values())
        say(closed=self.store.close(ids), relocated=relocated)


def run(path: str, number: int) -> None:
    """Work until SIGTERM comes, or SIGKILL."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    say(started=os.getpid())
    child = Child(path, number)
    while not asked:
        child.work()
        child.store.collect(0.002 if child.random.random() < 0.3 else 0.0)
    child.close()


def main() -> None:
    """A child for each line."""
    for line in sys.stdin:
        number, path = line.rstrip("\n").split(" ", 1)
        child = os.fork()
        if child == 0:
            try:
                run(path, int(number))
            except BaseException:
                say(failed=traceback.format_exc())
            finally:
                os._exit(0)
        status = os.waitpid(child, 0)[1]
        os.write(1, b"\n")  # it may have been killed within a line
        say(ended=status)


if __name__ == "__main__":
    main()
