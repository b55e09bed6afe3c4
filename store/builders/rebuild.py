"""Builds what can be read of a damaged journal of version 2 anew, so that the queue can go on.

The same record ids, and so the same order; the damaged journal itself is only read, and somebody else keeps it.
"""

from __future__ import annotations

from typing import NamedTuple

from formats.rhm.errors import RhmError
from formats.rhm.jinf import TPL_BASE_NAME, JournalInfo
from formats.rhm.records import COMMIT_DECISION, MAX_HEADER_SIZE, decode_header, decode_record
from store.builders.journal_build import JournalBuild, build_journal
from store.environment import Environment
from store.journal.journal import Journal
from store.journal.recovery import JournalRecovery
from store.journal.ring.order import RingFile
from store.journal.transaction_map import Operation, Transaction
from store.recovery.journal_content import content_of
from store.recovery.prepared import DISTRIBUTED


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
    page: int,
    *,
    seal: bool = False,
) -> Rebuilt:
    """Build what is readable of a journal of version 2 into a new directory: the same record ids, in the same order.

    Args:
        environment: disk, clock and random numbers.
        directory: the new journal's, which is made and synced but for its own name.
        info: what the new journal is to be; its geometry is enlarged if the content needs it.
        journal: the old journal.
        recovery: what a walk over all of it found, its open transactions not yet resolved.
        page: bytes of one write.
        seal: whether the new journal ends as after a clean close.

    Raises:
        StoreError: it does not fit into any journal, or cannot be written.
        OSError: the new journal cannot be made, or a file of the old one not be opened.
    """
    is_prepared_list = info.base_name == TPL_BASE_NAME
    copy = _Copy(journal, recovery, is_prepared_list=is_prepared_list)
    content = content_of(journal, recovery, is_prepared_list=is_prepared_list)
    built = build_journal(environment, directory, info, page, content, copy.into, seal=seal)
    return Rebuilt(built, copy.messages, len(copy.xids), copy.unreadable)


class _Copy:
    """Copies what recovery found in a journal.

    A dequeue in an open transaction is kept if its message is. If several transactions have one, earlier ones were
    dropped without a record of that, and the latest counts; `resumption` has the same rule.

    In the prepared list a decision whose prepare record is lost gets one again: the decision was a promise.
    """

    def __init__(self, journal: Journal, recovery: JournalRecovery, *, is_prepared_list: bool) -> None:
        self._journal, self._recovery = journal, recovery
        self._is_prepared_list = is_prepared_list
        self.messages = self.unreadable = 0
        self.xids: set[bytes] = set()

    def into(self, build: JournalBuild) -> None:
        """Copy everything."""
        self.messages = self.unreadable = 0
        self.xids.clear()
        for rid, place, _ in self._recovery.messages.in_place_order():
            self._copy_message(build, rid, place)
        for transaction in self._recovery.transactions:
            for operation in transaction:
                if operation.is_enqueue:
                    self._copy_message(build, operation.rid, operation.place, transaction.xid)
        for transaction in reversed(list(self._recovery.transactions)):
            self._copy_removals(build, transaction)

    def _copy_message(self, build: JournalBuild, rid: int, place: int, xid: bytes = b"") -> None:
        if build.holds(rid):
            return  # only a damaged journal has two messages with one id
        stream = self._journal.stream
        file, _ = stream.locate(place)
        assert isinstance(file, RingFile)
        assert file.header is not None
        try:
            size = decode_header(stream.read(place, MAX_HEADER_SIZE)).size
            # Verified once more: what is copied gets a checksum of its own, and nobody would ever know.
            _, _, data = decode_record(stream.read(place, size), salt=file.header.salt)
        except RhmError:
            self.unreadable += 1
            return
        build.message(rid, (data,), xid)
        self._copied(xid)

    def _copy_removals(self, build: JournalBuild, transaction: Transaction) -> None:
        xid = transaction.xid
        removals: dict[int, Operation] = {each.rid: each for each in transaction if not each.is_enqueue}
        for target, operation in removals.items():
            try:
                header = decode_header(self._journal.stream.read(operation.place, MAX_HEADER_SIZE))
            except RhmError:
                continue  # as above: it cannot be read a second time
            if self._is_prepared_list and not build.holds(target):
                build.message(target, (DISTRIBUTED,), xid)
                self._copied(xid)
            if not build.holds(header.rid) and build.removal(
                xid, header.rid, target, commit_decision=bool(operation.flags & COMMIT_DECISION)
            ):
                self.xids.add(xid)

    def _copied(self, xid: bytes) -> None:
        self.messages += 1
        if xid:
            self.xids.add(xid)
