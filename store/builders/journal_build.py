"""Builds a journal of version 2 from content that is known: a damaged journal's (`rebuild`), or a queue's of qpidd's.

Nobody waits while a journal is built, so nothing is asynchronous here: records are appended, and whenever some MiB are
gathered they are written and synced at once. What is in memory is what the writer keeps of each live record, and the
bodies of one flush. The directory that a journal is built in means nothing to anybody until the builder's caller gives
it a meaning, so a crash leaves at worst a directory to be removed.

What a journal is to hold is counted before it is built, and a geometry chosen that takes it (`journal_content`). The
writer has the last word: where it takes less than was computed, which the margins of the rules make unlikely, the next
larger geometry is tried.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from formats.rhm.headers import data_crc
from formats.rhm.jinf import JournalInfo
from formats.wording import printable
from store.environment import Environment
from store.errors import StoreError
from store.journal.write.step import JournalBusyError, JournalError, JournalFullError
from store.journal.write.storage import create_journal, remove_journal
from store.journal.write.writer_state import new_state
from store.live.taking_up import take_up
from store.recovery.journal_content import (
    FLUSH_BYTES,
    JournalContent,
    described,
    fitting_geometry,
    next_larger,
    too_much,
)
from store.sync.driver import sync_all

_MOST_WAITS: Final = 1000  # for room, of one record; each makes a turn of compaction or a part of one


class JournalTooSmallError(StoreError):
    """What a journal is to hold does not fit into it."""


class JournalBuild:
    """One journal that is built.

    Args:
        environment: disk, clock and random numbers.
        directory: the journal's, which is made.
        info: what the journal is to be.
        page: bytes of one write.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, environment: Environment, directory: str, info: JournalInfo, page: int) -> None:
        create_journal(environment.disk, directory, info)
        self._info = info
        self._journal = take_up(environment, directory, info, info.geometry, new_state(), page=page, bound=FLUSH_BYTES)
        self._writer = self._journal.writer

    def holds(self, rid: int) -> bool:
        """Whether there is a record with that id."""
        return rid in self._writer.live

    def message(self, rid: int, parts: Sequence[bytes], xid: bytes = b"") -> None:
        """A message, enqueued by the open transaction `xid` if there is one.

        Raises:
            JournalTooSmallError: it does not fit.
            StoreError, OSError: it cannot be written.
        """
        size = sum(map(len, parts))
        if xid:
            self._append(self._writer.enqueue_in, xid, rid, parts, size, data_crc(parts))
        else:
            self._append(self._writer.enqueue, rid, parts, size, data_crc(parts))

    def removal(self, xid: bytes, rid: int, target: int, *, commit_decision: bool = False) -> bool:
        """The dequeue of the message `target` by the open transaction `xid`.

        Args:
            xid: the transaction.
            rid: record id of the dequeue.
            target: that of the message.
            commit_decision: in the prepared list: the decision is to commit.

        Returns:
            False, and nothing is done, if there is no such message, or another transaction holds it.

        Raises:
            JournalTooSmallError: it does not fit.
            StoreError, OSError: it cannot be written.
        """
        try:
            self._writer.check_dequeue(target, xid)
        except JournalError:
            return False
        self._append(lambda: self._writer.dequeue_in(xid, rid, target, commit_decision=commit_decision))
        return True

    def finish(self, *, seal: bool = False) -> None:
        """Have all of it on the disk, with or without the seal of a clean close, and let the files go.

        Raises:
            JournalTooSmallError: the seal does not fit.
            StoreError, OSError: it cannot be written.
        """
        self._drain()
        if seal:
            if not self._writer.seal():
                raise self._too_small()
            self._drain()
        self.close()

    def close(self) -> None:
        """Let the files go, whatever is in them. Twice is allowed."""
        self._journal.close()

    def _append(self, append: Callable[..., None], *arguments: object) -> None:
        for _ in range(_MOST_WAITS):
            try:
                append(*arguments)
            except JournalBusyError:
                self._drain()
            except JournalFullError:
                raise self._too_small() from None
            else:
                break
        else:
            raise self._too_small()
        if self._writer.unsynced >= FLUSH_BYTES:
            self._drain()

    def _drain(self) -> None:
        """Write and sync what is gathered. Raises StoreError, OSError."""
        journal = self._journal
        while files := journal.begin():
            journal.finish(sync_all(files))
        failure = self._writer.failure
        if failure is not None and isinstance(failure.__cause__, OSError):
            raise failure.__cause__  # what a running queue is told of it says nothing to whoever builds
        if failure is not None:
            raise StoreError(str(failure))

    def _too_small(self) -> JournalTooSmallError:
        name, geometry = printable(self._info.queue_name), self._info.geometry
        return JournalTooSmallError(f'queue "{name}": its messages do not fit into {described(geometry)}')


class Build(Protocol):
    """A journal that is built: `JournalBuild`, or `BulkBuild`."""

    def finish(self, *, seal: bool = False) -> None:
        """Have all of it on the disk, with or without the seal of a clean close, and let the files go."""

    def close(self) -> None:
        """Let the files go, whatever is in them. Twice is allowed."""


_Build = TypeVar("_Build", bound=Build)


def build_journal(
    environment: Environment,
    directory: str,
    info: JournalInfo,
    page: int,
    content: JournalContent,
    fill: Callable[[JournalBuild], None],
    *,
    seal: bool = False,
) -> JournalInfo:
    """Build a journal in which everything fits, all of it synced but the directory's own name.

    Args:
        environment: disk, clock and random numbers.
        directory: the journal's, which is made.
        info: what the journal is to be; its geometry is enlarged if the content needs it.
        page: bytes of one write.
        content: what it is to hold.
        fill: writes it; called again, for another geometry, if that turns out to be too small.
        seal: whether the journal ends as after a clean close.

    Returns:
        What the journal is.

    Raises:
        StoreError: it does not fit into the largest journal, or cannot be written.
        OSError: it cannot be made or written.
    """

    def begin(chosen: JournalInfo) -> JournalBuild:
        return JournalBuild(environment, directory, chosen, page)

    return build_fitting(environment, directory, info, content, begin, fill, seal=seal)


def build_fitting(
    environment: Environment,
    directory: str,
    info: JournalInfo,
    content: JournalContent,
    begin: Callable[[JournalInfo], _Build],
    fill: Callable[[_Build], None],
    *,
    seal: bool = False,
) -> JournalInfo:
    """As `build_journal`, with whatever `begin` gives for building into the directory."""
    geometry = fitting_geometry(content, info.geometry, info.flush_alignment)
    while geometry is not None:
        chosen = replace(info, geometry=geometry)
        build = begin(chosen)
        try:
            fill(build)
            build.finish(seal=seal)
        except JournalTooSmallError:
            geometry = next_larger(geometry)
            build.close()
            remove_journal(environment.disk, directory)
        except BaseException:
            build.close()
            with contextlib.suppress(OSError):  # the disk may be failing
                remove_journal(environment.disk, directory)
            raise
        else:
            return chosen
    raise too_much(info.queue_name, content)
