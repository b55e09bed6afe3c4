"""What was done to three of qpidd's stores, and what becomes of it when it is cut short (formats/rhm/README.md, 6.2).

The broker took record ids from one counter, and in these three stores they ascend in every journal. So "the broker was
killed while it wrote record N" is: of record N the first bytes are there, and of every later one nothing, in any
journal. `HISTORIES` tells what each transaction did; `CUTS` is the table of that page, once for each record of it that
these stores have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from qstore.formats.rhm.records import Kind

NEVER: Final = 1 << 63  # a record id that none has: nothing is cut

# States of a transaction that is over, besides the four that the dump shows.
COMMITTED, ABORTED = "committed", "aborted"
IN_DOUBT, COMMITTING, ABORTING, UNPREPARED = "in-doubt", "committing", "aborting", "unprepared"


class Transaction(NamedTuple):
    """One transaction: its kind, its first record id, how it ended, and its messages by queue."""

    kind: str
    first: int
    end: str
    enqueues: Mapping[str, Iterable[int]]
    dequeues: Mapping[str, Iterable[int]]


class History(NamedTuple):
    """What a store got: messages of each queue before all transactions, the transactions in order, and last
    the messages that followed them, by record id."""

    first: Mapping[str, int]
    transactions: Mapping[str, Transaction]
    last: Mapping[int, tuple[str, int]]


HISTORIES: Final = {
    "legacy-c-localtx": History(
        {"c.q1": 12, "c.q2": 12},
        {
            "tx1": Transaction("local", 25, COMMITTED, {"c.q1": range(100, 105)}, {"c.q1": range(3)}),
            "tx3": Transaction(
                "local", 37, COMMITTED, {"c.q1": range(120, 123), "c.q2": range(120, 123)}, {"c.q2": range(4)}
            ),
        },
        {52: ("c.q1", 130), 53: ("c.q2", 130)},
    ),
    "legacy-c-midcommit3": History(
        {"c.q1": 50, "c.q2": 50},
        {
            "tx": Transaction(
                "local",
                101,
                COMMITTED,
                {"c.q1": range(1000, 2200), "c.q2": range(1000, 2200)},
                {"c.q1": range(25)},
            )
        },
        {},
    ),
    "legacy-d-dtx": History(
        {"d.q1": 10, "d.q2": 10, "d.q3": 10},
        {
            "p1": Transaction(
                "dtx", 31, IN_DOUBT, {"d.q1": range(100, 103), "d.q2": [100]}, {"d.q1": range(2), "d.q2": [0]}
            ),
            "p2": Transaction("dtx", 39, IN_DOUBT, {}, {"d.q1": range(2, 5)}),
            "p3": Transaction("dtx", 43, IN_DOUBT, {"d.q3": range(300, 305)}, {}),
            "c1": Transaction("dtx", 49, COMMITTED, {"d.q2": range(200, 203)}, {"d.q2": [1, 2]}),
            "r1": Transaction("dtx", 58, ABORTED, {"d.q2": range(210, 213)}, {"d.q2": [3, 4]}),
            "o1": Transaction("local", 67, COMMITTED, {"d.q3": [320, 321]}, {"d.q3": [0]}),
        },
        {74: ("d.q1", 150)},
    ),
}


class Cut(NamedTuple):
    """The kill came while record `rid`, of `kind` in journal `journal`, was written for `transaction`: which is in the
    state `torn` if the record is not whole, `whole` if it is."""

    store: str
    rid: int
    kind: Kind
    journal: str
    transaction: str
    torn: str
    whole: str


def _cuts(store: str, *rows: tuple[int, Kind, str, str, str, str]) -> list[Cut]:
    return [Cut(store, *row) for row in rows]


CUTS: Final = [
    *_cuts(
        "legacy-c-localtx",
        # not in the TPL: dropped; enqueue only, local: committed
        (33, Kind.ENQUEUE, "tpl", "tx1", UNPREPARED, COMMITTING),
        (34, Kind.DEQUEUE, "tpl", "tx1", COMMITTING, COMMITTING),
        (35, Kind.COMMIT, "c.q1", "tx1", COMMITTING, COMMITTING),
        (36, Kind.COMMIT, "tpl", "tx1", COMMITTING, COMMITTED),
        (47, Kind.ENQUEUE, "tpl", "tx3", UNPREPARED, COMMITTING),
        (48, Kind.DEQUEUE, "tpl", "tx3", COMMITTING, COMMITTING),
        (49, Kind.COMMIT, "c.q1", "tx3", COMMITTING, COMMITTING),
        (50, Kind.COMMIT, "c.q2", "tx3", COMMITTING, COMMITTING),
        (51, Kind.COMMIT, "tpl", "tx3", COMMITTING, COMMITTED),
    ),
    *_cuts(
        "legacy-c-midcommit3",
        (2526, Kind.ENQUEUE, "tpl", "tx", UNPREPARED, COMMITTING),
        (2527, Kind.DEQUEUE, "tpl", "tx", COMMITTING, COMMITTING),
        (2528, Kind.COMMIT, "c.q1", "tx", COMMITTING, COMMITTING),
        (2529, Kind.COMMIT, "c.q2", "tx", COMMITTING, COMMITTING),
        (2530, Kind.COMMIT, "tpl", "tx", COMMITTING, COMMITTED),
    ),
    *_cuts(
        "legacy-d-dtx",
        # enqueue only, distributed: in doubt
        (38, Kind.ENQUEUE, "tpl", "p1", UNPREPARED, IN_DOUBT),
        (42, Kind.ENQUEUE, "tpl", "p2", UNPREPARED, IN_DOUBT),
        (48, Kind.ENQUEUE, "tpl", "p3", UNPREPARED, IN_DOUBT),
        # enqueue and dequeue flagged to commit: completed
        (54, Kind.ENQUEUE, "tpl", "c1", UNPREPARED, IN_DOUBT),
        (55, Kind.DEQUEUE, "tpl", "c1", IN_DOUBT, COMMITTING),
        (56, Kind.COMMIT, "d.q2", "c1", COMMITTING, COMMITTING),
        (57, Kind.COMMIT, "tpl", "c1", COMMITTING, COMMITTED),
        # enqueue and dequeue not flagged: aborted
        (63, Kind.ENQUEUE, "tpl", "r1", UNPREPARED, IN_DOUBT),
        (64, Kind.DEQUEUE, "tpl", "r1", IN_DOUBT, ABORTING),
        (65, Kind.ABORT, "d.q2", "r1", ABORTING, ABORTING),
        (66, Kind.ABORT, "tpl", "r1", ABORTING, ABORTED),
        # committed in one phase: local
        (70, Kind.ENQUEUE, "tpl", "o1", UNPREPARED, COMMITTING),
        (71, Kind.DEQUEUE, "tpl", "o1", COMMITTING, COMMITTING),
        (72, Kind.COMMIT, "d.q3", "o1", COMMITTING, COMMITTING),
        (73, Kind.COMMIT, "tpl", "o1", COMMITTING, COMMITTED),
    ),
]
cut_id = "{0.store}-{0.rid}-{0.transaction}".format


# ---- what is to be expected ----

Messages = dict[str, list[tuple[int, str]]]
Transactions = list[tuple[str, str]]


def expected_messages(history: History, states: Mapping[str, str], rid: int) -> Messages:
    """Each queue's messages and their states, with the transactions in `states` and nothing from `rid` on."""
    queues = {queue: dict.fromkeys(range(count), "outstanding") for queue, count in history.first.items()}
    for name, state in states.items():
        transaction = history.transactions[name]
        for queue, numbers in transaction.dequeues.items():
            for number in numbers:
                if state in (COMMITTED, COMMITTING):
                    del queues[queue][number]
                elif state == IN_DOUBT:
                    queues[queue][number] = "in-doubt-dequeue"
        for queue, numbers in transaction.enqueues.items():
            if state in (COMMITTED, COMMITTING):
                queues[queue].update(dict.fromkeys(numbers, "outstanding"))
            elif state == IN_DOUBT:
                queues[queue].update(dict.fromkeys(numbers, "in-doubt-enqueue"))
    for last, (queue, number) in history.last.items():
        if last < rid:
            queues[queue][number] = "outstanding"
    return {queue: list(messages.items()) for queue, messages in queues.items()}


def states_before(history: History, rid: int) -> dict[str, str]:
    """How the transactions stand that began before record `rid`, if all of them came to their end."""
    return {name: transaction.end for name, transaction in history.transactions.items() if transaction.first < rid}


def expected_transactions(history: History, states: Mapping[str, str]) -> Transactions:
    """Kind and state of each transaction that is not over."""
    return sorted(
        (history.transactions[name].kind, state) for name, state in states.items() if state not in (COMMITTED, ABORTED)
    )
