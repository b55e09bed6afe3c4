"""Journals that are made before queues need them, and info files that are written after queues have them.

Nearly all that a durable queue's declaration once waited for was its journal: files that are allocated, given a header
and synced one by one, an info file, and two directories. A journal in stock has all of that, under the number that its
queue will have. Its info file lacks only the queue's name and record, and has a copy, of one block. So a queue that
takes one needs the catalogue's batch, and its name in the copy: that is written in place, and synced while the
catalogue syncs its batch. Thus the journal says whose it is before the declaration is acknowledged, even if the
catalogue and its second copy are lost. The copy replaces the info file afterwards.

    found by a start              state (`unfinished`)   action
    ----------------------------  ---------------------  ---------------------------------------------------------------
    a journal in stock, or of a   UNMADE_JOURNAL         it is removed, as if its queue were being created. Without
    queue declared or deleted                            the catalogue: if its copy has a name, that queue is recreated
    when the process ended
    a queue's, with the info      UNNAMED_JOURNAL        it is the queue's journal; its info file is written
    file of the stock, and a
    copy with a name or without
    a queue's, with both the      none                   the second, `.new`, is written again at the next change
    old info file and a new one

**Back into the stock.** If a queue is deleted before the copy has replaced the info file, and nothing was written to
its journal, that goes back: the name is taken out of the copy in the same way, synced with the catalogue's batch. So
queues that are declared and soon deleted, again and again, make and remove no files. The next queue with this journal
has its number, too, which only the catalogue's entry ever had.

**How many.** None, until queues are declared: a journal takes room. Some that are declared one after the other find
none in stock, and each is made for its queue; `look` makes some for the next ones. While many are declared, more and
more are made at once, and synced together, so that each costs a part of a sync. If none is declared for a while, the
stock is removed, as at a clean close. Only journals of the size that the store's options set are kept in stock.

**While messages are written** (`BUSY` flushes since the last look), all this waits for up to `_PATIENT_LOOKS`: while
four journals are made, a flush takes some 5 ms longer, which is the slowest thousandth at 1,000 messages a second.
Declarations that come all the same find what is in stock, or make their own.

All but `look` is for the background's thread.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from qstore.formats.broker_records.topology import Queue, encode_queue
from qstore.formats.catalogue import Kind
from qstore.formats.errors import RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import JournalInfo
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.disk import WritableFile
from qstore.store.environment import Background, Environment
from qstore.store.errors import disk_advice
from qstore.store.journal.write.storage import create_journals, name_journals, put_names, remove_journal, write_name
from qstore.store.live.queue_journal import journal_info
from qstore.store.log_lines import LogLine, Outage
from qstore.store.parameters import StoreParameters

SINGLY: Final = 4
"""Queues declared between two looks whose journals are made singly, if there are none in stock."""

MAX_MADE: Final = 32
"""Journals that are made at once, and kept in stock."""

MAX_BYTES: Final = 64 << 20
"""Bytes that the journals in stock may take: 31 of the size that they have without options, and no large ones."""

BUSY: Final = 50
"""Flushes between two looks from which on the stock waits."""

_PATIENT_LOOKS: Final = 20  # for which it waits at most
_MAX_NAMED: Final = 64  # info files that are written at once
_QUIET_LOOKS: Final = 120  # without a declaration, after which the stock is removed


class _Taken(NamedTuple):
    """A journal of the stock that a queue has, while only the copy of its info file has the queue's name.

    Attributes:
        info, named: its info file without the queue's name, and with it.
        is_written: whether the copy is on the disk.
    """

    info: JournalInfo
    named: JournalInfo
    is_written: bool = True


class JournalStock:
    """The stock of one store.

    Args:
        environment: disk, clock and so on.
        directory: the store's.
        parameters: the store's options.
        catalogue: assigns numbers.
        background: does the work of `look`.
        log: receives log lines.
    """

    def __init__(
        self,
        environment: Environment,
        directory: StoreDirectory,
        parameters: StoreParameters,
        catalogue: Catalogue,
        background: Background,
        log: Callable[[LogLine], None],
    ) -> None:
        self._environment, self._disk, self._directory = environment, environment.disk, directory
        self._parameters, self._catalogue, self._background = parameters, catalogue, background
        self._stock: deque[tuple[str, JournalInfo]] = deque()
        self._unnamed: dict[str, _Taken] = {}  # directory -> the queue whose name its info file lacks
        self._taken = self._wanted = self._quiet_looks = 0
        self._is_looking = self._is_closing = False
        self._synced = self._patience = 0
        self._outage = Outage("info files of new journals cannot be written", "they can be written again", log)

    # ---- one queue ----

    def take(self, record: Queue, geometry: Geometry) -> tuple[str, JournalInfo, WritableFile | None]:
        """A journal for a new queue: its directory, what its info file says, or will say, and a file. Raises OSError.

        It is on the disk, except for the file, which is to be synced and closed. It becomes the queue's with the
        catalogue's batch. If that is not written, call `forget`.
        """
        if geometry == self._parameters.geometry:
            self._taken += 1
            if not self._stock and self._taken > SINGLY and not self._is_closing:
                self._stock_up(min(self._taken, MAX_MADE))
            if self._stock:
                return self._take(record)
        ((directory, info),) = self._make(geometry, 1, record)
        return directory, info, None

    def _take(self, record: Queue) -> tuple[str, JournalInfo, WritableFile | None]:
        directory, info = self._stock.popleft()
        named = info._replace(queue_name=record.name, queue_record=encode_queue(record))
        try:
            file = write_name(self._disk, directory, named)
            if file is None:  # a record of some KiB
                name_journals(self._disk, {directory: (named.queue_name, named.queue_record)})
        except OSError:
            with contextlib.suppress(OSError):  # the next start removes the rest
                remove_journal(self._disk, directory)
            raise
        if file is not None:
            self._unnamed[directory] = _Taken(info, named)
        return directory, named, file

    def reclaim(self, directory: str) -> WritableFile | None:
        """Take the name out of an unnamed journal whose queue is being deleted.

        If the queue is deleted, call `forget`, or `reuse` if the file is synced. If it is not, call `keep_name`.

        Returns:
            A file to be synced and closed; None if that is impossible.
        """
        try:
            return write_name(self._disk, directory, self._unnamed[directory].info)
        except OSError:
            self.keep_name(directory)
            return None

    def keep_name(self, directory: str) -> None:
        """The queue was not deleted: its info file is written as soon as possible."""
        self._unnamed[directory] = self._unnamed[directory]._replace(is_written=False)

    def reuse(self, directory: str) -> bool:
        """Put the journal of a deleted queue, which has no name any more, into the stock, if there is room."""
        taken = self._unnamed.pop(directory)
        if self._is_closing or len(self._stock) >= MAX_MADE:
            return False
        self._stock.append((directory, taken.info))
        return True

    def is_unnamed(self, directory: str) -> bool:
        """Whether a journal's info file does not say whose it is: without the catalogue its queue is unknown."""
        return directory in self._unnamed

    def forget(self, directory: str) -> None:
        """The queue with this journal was not created, or is deleted."""
        self._unnamed.pop(directory, None)

    # ---- the stock ----

    def look(self, synced: int) -> None:
        """Begin to write info files, and to make journals for the next queues. Call it about every second.

        Args:
            synced: flushes so far.
        """
        # After a kill, a start writes each missing info file: there should not be many.
        is_busy = synced - self._synced >= BUSY and len(self._unnamed) < _MAX_NAMED
        self._synced = synced
        if self._is_looking or not (self._taken or self._unnamed or self._stock):
            return
        self._patience = self._patience + 1 if is_busy else _PATIENT_LOOKS
        if self._patience >= _PATIENT_LOOKS:
            self._patience = 0
            self._begin()

    def _begin(self) -> None:
        self._is_looking = True
        self._background.run(self._tend, self._tended, self._tended)

    def _tended(self, is_more: bool | Exception) -> None:
        self._is_looking = False
        if is_more is True:
            self._begin()

    def _tend(self) -> bool:
        """Do what is due, but not so much that a declaration would have to wait for long. Returns whether more is."""
        if self._unnamed:
            return self._name(_MAX_NAMED) and bool(self._unnamed)
        taken, self._taken = self._taken, 0
        self._quiet_looks = 0 if taken else self._quiet_looks + 1
        if self._quiet_looks >= _QUIET_LOOKS:
            self._clear()
        elif taken:
            self._stock_up(min(max(taken, SINGLY), MAX_MADE) - len(self._stock))
        return False

    def will_close(self) -> None:
        """The store is about to be closed: write all info files, and remove the stock."""
        self._is_closing = True
        self._background.run(self._end, lambda _: None, lambda _: None)

    def _end(self) -> None:
        self.name_all()
        self._clear()

    def name_all(self) -> None:
        """Write the info files of all queues, as far as the disk allows it."""
        while self._unnamed and self._name(_MAX_NAMED):
            pass

    def _name(self, most: int) -> bool:
        """Write the info files of some queues. Returns whether that succeeded."""
        chosen = dict(islice(self._unnamed.items(), most))
        try:
            put_names(self._disk, [(path, each.info.base_name) for path, each in chosen.items() if each.is_written])
            again = {path: each.named for path, each in chosen.items() if not each.is_written}
            name_journals(self._disk, {path: (each.queue_name, each.queue_record) for path, each in again.items()})
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            self._outage.failed(f"{where}{error.strerror or error}", disk_advice(error))
            return False
        except RhmError as error:
            self._outage.failed(str(error), "run qstore-check when the broker is stopped")
            return False
        for directory in chosen:
            del self._unnamed[directory]
        self._outage.worked()
        return True

    def _clear(self) -> None:
        """Remove the stock."""
        while self._stock:
            directory, _ = self._stock.pop()
            with contextlib.suppress(OSError):  # the next start removes the rest
                remove_journal(self._disk, directory)

    def _stock_up(self, count: int) -> None:
        """Add `count` journals; fewer, or none, if the disk is short of room: each is then made for its queue."""
        geometry = self._parameters.geometry
        size = geometry.files * geometry.file_size
        with contextlib.suppress(OSError):
            free, total = self._disk.space(self._directory.path)
            room = free - total * self._parameters.disk_free_limit // 100
            count = min(count, MAX_BYTES // size - len(self._stock), room // size - 1)
            if count > 0:
                self._stock.extend(self._make(geometry, count))

    def _make(self, geometry: Geometry, count: int, record: Queue | None = None) -> list[tuple[str, JournalInfo]]:
        """Make journals, for a queue or for the stock, on the disk with their directories' names. Raises OSError."""
        made = []
        for _ in range(count):
            number = self._catalogue.take_id(Kind.QUEUE)
            info = journal_info(
                self._environment,
                "" if record is None else record.name,
                geometry,
                self._parameters.flush_alignment,
                queue_id=number,
                incarnation=1,
                record=b"" if record is None else encode_queue(record),
            )
            made.append((self._directory.journal(number), info))
        create_journals(self._disk, made)
        try:
            self._disk.sync_directory(posixpath.dirname(made[0][0]))
        except OSError:
            for directory, _ in made:
                with contextlib.suppress(OSError):  # the next start removes the rest
                    remove_journal(self._disk, directory)
            raise
        return made
