"""Builds what can be read of a damaged journal of version 2 anew, so that the queue can go on.

The same record ids, and so the same order; the damaged journal itself is only read, and somebody else keeps it.
"""

from __future__ import annotations

from typing import NamedTuple

from formats.rhm.jinf import TPL_BASE_NAME, JournalInfo
from store.builders.journal_build import build_journal
from store.builders.journal_copy import JournalCopy
from store.environment import Environment
from store.journal.journal import Journal
from store.journal.recovery import JournalRecovery
from store.recovery.journal_content import content_of


class Rebuilt(NamedTuple):
    """What became of a journal that was built anew.

    Attributes:
        info: what the new journal is; its geometry may be larger than was asked for.
        messages: how many there are, those of open transactions included.
        transactions: how many transactions are open in it.
        unreadable: messages that were left out, because they could not be read a second time.
    """

    info: JournalInfo
    messages: int
    transactions: int
    unreadable: int


def rebuild(
    environment: Environment,
    directory: str,
    info: JournalInfo,
    journal: Journal,
    recovery: JournalRecovery,
    *,
    seal: bool = False,
) -> Rebuilt:
    """Build what is readable of a journal of version 2 into a new directory. Record ids stay, and so does the order.

    Args:
        environment: disk, clock and random numbers.
        directory: the new journal's, which is made and synced but for its own name.
        info: what the new journal is to be; its geometry is enlarged if the content needs it.
        journal: the old journal.
        recovery: what a walk over all of it found, its open transactions not yet resolved.
        seal: whether the new journal ends as after a clean close.

    Raises:
        StoreError: it does not fit into any journal.
        OSError: the new journal cannot be made or written, or a file of the old one not be read.
    """
    is_prepared_list = info.base_name == TPL_BASE_NAME
    copy = JournalCopy(journal, recovery, lambda *_: None, is_prepared_list=is_prepared_list)
    content = content_of(journal, recovery, is_prepared_list=is_prepared_list)
    built = build_journal(environment, directory, info, content, copy.into, seal=seal)
    return Rebuilt(built, copy.messages, copy.transactions, copy.left_out)
