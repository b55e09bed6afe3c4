"""Rebuilds a damaged journal of version 2 from its readable content, so that the queue can be used again.

Record ids are kept, and with them the order. The damaged journal itself is only read; the caller sets it aside.
"""

from __future__ import annotations

from typing import NamedTuple

from qstore.formats.rhm.jinf import TPL_BASE_NAME, JournalInfo
from qstore.store.builders.journal_build import build_journal
from qstore.store.builders.journal_copy import JournalCopy
from qstore.store.environment import Environment
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.recovery.journal_content import content_of


class Rebuilt(NamedTuple):
    """The result of rebuilding a journal.

    Attributes:
        info: the new journal's info file; its geometry may be larger than requested.
        messages: number of messages, those of open transactions included.
        transactions: number of open transactions.
        unreadable: messages that were omitted because they could not be read again.
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
    """Build the readable content of a journal of version 2 into a new directory, keeping record ids and order.

    Args:
        environment: disk, clock and random numbers.
        directory: the new journal's, which is created and synced except for its own name.
        info: the requested journal; its geometry is enlarged if the content requires it.
        journal: the old journal.
        recovery: the result of a walk over all of it, its open transactions not yet resolved.
        seal: whether the new journal ends as after a clean close.

    Raises:
        StoreError: it does not fit into any journal.
        OSError: the new journal cannot be created or written, or a file of the old one cannot be read.
    """
    is_prepared_list = info.base_name == TPL_BASE_NAME
    copy = JournalCopy(journal, recovery, lambda *_: None, is_prepared_list=is_prepared_list)
    content = content_of(journal, recovery, is_prepared_list=is_prepared_list)
    built = build_journal(environment, directory, info, content, copy.into, seal=seal)
    return Rebuilt(built, copy.messages, copy.transactions, copy.left_out)
