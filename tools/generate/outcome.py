"""The result of a queue's history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

OUTSTANDING: Final = "outstanding"
IN_DOUBT_ENQUEUE: Final = "in-doubt-enqueue"
IN_DOUBT_DEQUEUE: Final = "in-doubt-dequeue"


class LiveMessage(NamedTuple):
    """A message that remains at the end.

    Attributes:
        rid: its record id.
        state: "outstanding", "in-doubt-enqueue" or "in-doubt-dequeue".
        place: in the order of publishing, from 0.
        size: size of its body in bytes.
        xid: the transaction in doubt; empty if there is none.
    """

    rid: int
    state: str
    place: int
    size: int
    xid: bytes


class Sample(NamedTuple):
    """The record of a message: its place, its record id, its data's size, and how many flushes came before it."""

    place: int
    rid: int
    size: int
    flush: int


@dataclass(slots=True)
class Counts:
    """Number of operations on a queue.

    Attributes:
        sent: messages that were enqueued, in transactions or not.
        taken: messages that were dequeued permanently.
        rolled_back: messages of transactions that were aborted.
        commits, aborts: ended transactions.
        refused: how often the journal had no space.
    """

    sent: int = 0
    taken: int = 0
    rolled_back: int = 0
    commits: int = 0
    aborts: int = 0
    refused: int = 0
