"""Builds a whole store of version 1, qpidd's legacystore, of what was recovered of any other.

    rhm/dat     queues, exchanges, bindings and general objects with their ids: `version_1_catalogue`
    rhm/jrnl    a journal for each queue with its outstanding messages, in their order: `version_1_journal`
    rhm/tpl     a prepare record for each transaction in doubt; not there if there is none, as in qpidd

What was decided is decided here: of a transaction that is to be committed the messages are there, and of one that is to
be aborted none. One in doubt stays so: its records are open in the journals.

Record ids are kept, since in version 1 a message has the same one on all of its queues, and qpidd goes on above the
highest that it finds. Only where an id is none that it could have given out, 0 or one of the upper half, which its
comparison takes for the past, all messages get new ones.

Which queues, under which numbers, is the caller's to say, as with `store_build`, whose likeness this is.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from typing import Final

from formats.broker_records.wiring import Binding, Bridge, Exchange, GeneralObject, Link, Queue
from formats.rhm.jinf import DEFAULT_BASE_NAME, TPL_BASE_NAME, JournalInfo
from formats.wording import printable
from store.builders.store_build import BuildWatcher, JournalSource, QueueToBuild, build_prepared_list, build_queue
from store.builders.version_1_catalogue import encode_databases, write_databases
from store.builders.version_1_journal import JournalPlaces, version_1_info, why_misread
from store.builders.version_1_packing import fits, legal_geometry
from store.environment import Environment
from store.live.queue_journal import TPL_NAME
from store.parameters import StoreParameters

_PAST: Final = 1 << 63  # from here on a record id counts as older than 1


def highest_kept_rid(sources: Iterable[JournalSource]) -> int | None:
    """The highest record id of the messages in `sources`, 0 if there is none; None where they cannot be kept."""
    highest = 0
    for journal, recovery in sources:
        for rid, *_ in recovery.outstanding(journal.format):
            if not 0 < rid < _PAST:
                return None
            highest = max(highest, rid)
    return highest


class _RecordIds:
    """Record ids above those that messages have."""

    def __init__(self, highest: int) -> None:
        self._last = highest

    def take(self) -> int:
        self._last += 1
        return self._last


class Version1Build:
    """One store that is built.

    Args:
        environment: disk, clock and random numbers.
        directory: the store directory, in which `rhm` is made.
        parameters: the prepared list's geometry, and what info files say of caches.
        watcher: is told how it goes on.
        destination: what `directory` will be called when qpidd finds it; `directory` itself by default.
        highest_rid: what `highest_kept_rid` says of all queues; None: messages get new record ids.

    Attributes:
        notices: one line each: what a user should know.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(
        self,
        environment: Environment,
        directory: str,
        parameters: StoreParameters,
        watcher: BuildWatcher,
        *,
        destination: str | None = None,
        highest_rid: int | None = None,
    ) -> None:
        self._environment, self._disk = environment, environment.disk
        self._parameters, self._watcher = parameters, watcher
        self._root = posixpath.join(directory, "rhm")
        self._final_root = posixpath.join(destination or directory, "rhm")
        self._keep_rids = highest_rid is not None
        self._rids = _RecordIds(highest_rid or 0)
        self._queues: dict[int, Queue] = {}
        self._exchanges: dict[int, Exchange] = {}
        self._bindings: list[tuple[int, Binding]] = []
        self._general: dict[int, Link | Bridge | GeneralObject] = {}
        self._places = JournalPlaces()
        self._made_in: dict[str, None] = {}  # directories in which others were made, to be synced
        self.notices: list[str] = []
        self._make_directory(self._root)
        self._make_directory(posixpath.join(self._root, "jrnl"))

    # ---- journals ----

    def prepared_list(self, xids: Sequence[bytes]) -> None:
        """A prepare record for each transaction that is in doubt. Raises StoreError, OSError."""
        if not xids:
            return
        parameters = self._parameters
        info = version_1_info(
            self._environment,
            TPL_NAME,
            posixpath.join(self._final_root, "tpl"),
            TPL_BASE_NAME,
            parameters.tpl_geometry,
            parameters.tpl_page_bytes,
            parameters.tpl_wcache_num_pages,
        )
        build_prepared_list(self._environment, posixpath.join(self._root, "tpl"), info, xids, self._rids)

    def queue(self, queue: QueueToBuild) -> None:
        """A queue with its messages.

        Raises:
            StoreError: its name cannot be that of a directory, another queue has that directory, or its messages do
                not fit into the largest journal.
            OSError: it cannot be made.
        """
        place = self._places.take(queue.record.name)
        directory = posixpath.join(self._root, "jrnl", place)
        info = self._info(queue, posixpath.join(self._final_root, "jrnl", place))
        self._make_parents(directory)
        result = build_queue(
            self._environment,
            directory,
            info,
            queue,
            self._watcher,
            lambda most: fits(most, legal_geometry(queue.geometry)),
            message_rids=None if self._keep_rids else self._rids,
            removal_rids=self._rids,
        )
        self._queues[queue.number] = queue.record
        self._watcher.built(queue, result)

    def _info(self, queue: QueueToBuild, directory: str) -> JournalInfo:
        name, parameters = queue.record.name, self._parameters
        misread = why_misread(name, directory)
        if misread is not None:
            self.notices.append(f'queue "{printable(name)}": qpidd cannot read the info file of its journal: {misread}')
        return version_1_info(
            self._environment,
            name,
            directory,
            DEFAULT_BASE_NAME,
            queue.geometry,
            parameters.page_bytes,
            parameters.wcache_num_pages,
        )

    def _make_parents(self, directory: str) -> None:
        """Make the directories above a journal's that are not there yet."""
        above = posixpath.dirname(directory)
        missing = []
        while not self._disk.is_directory(above):
            missing.append(above)
            above = posixpath.dirname(above)
        for path in reversed(missing):
            self._make_directory(path)
        self._made_in.setdefault(posixpath.dirname(directory))

    def _make_directory(self, path: str) -> None:
        self._disk.make_directory(path)
        self._made_in.setdefault(posixpath.dirname(path))

    # ---- wiring ----

    def exchange(self, number: int, exchange: Exchange) -> None:
        """An exchange."""
        self._exchanges[number] = exchange

    def binding(self, exchange_id: int, binding: Binding) -> None:
        """A binding of an exchange and a queue that are there. One that is there already counts once."""
        self._bindings.append((exchange_id, binding))

    def general(self, number: int, general: Link | Bridge | GeneralObject) -> None:
        """A link, a bridge or another object."""
        self._general[number] = general

    def finish(self) -> None:
        """Write the databases, and have the names of all that was made on the disk. Raises OSError."""
        files = encode_databases(
            self._queues, self._exchanges, self._bindings, self._general, self._environment.random_bits
        )
        write_databases(self._disk, posixpath.join(self._root, "dat"), files)
        self._made_in.setdefault(self._root)
        for directory in reversed(self._made_in):
            self._disk.sync_directory(directory)
