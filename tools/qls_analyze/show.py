"""What a run shows: the command's options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Show:
    """What is shown in addition to the minimum.

    Attributes:
        pools: the empty file pools.
        recovered: the records that remain, and those of open transactions.
        walked: the records as they are read, ...
        fillers: ... including fillers.
        xids, data: contents and not only sizes.
        test_texts: the texts of test messages.
        counts: record counts of each journal.
        resolved: what remains after the open transactions are resolved.
    """

    pools: bool = False
    recovered: bool = False
    walked: bool = False
    fillers: bool = False
    xids: bool = False
    data: bool = False
    test_texts: bool = False
    counts: bool = False
    resolved: bool = False
