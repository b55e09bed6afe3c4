"""Builds a whole store of version 1, qpidd's legacystore, from the recovered content of any other store.

    rhm/dat     queues, exchanges, bindings and general objects with their ids: `version_1_catalogue`
    rhm/jrnl    a journal for each queue with its outstanding messages, in order: `version_1_journal`
    rhm/tpl     a prepare record for each transaction in doubt; missing if there is none, as in qpidd

Decided transactions are applied: the messages of committed ones are present, those of aborted ones are not. Those in
doubt stay so: their records are open in the journals.

Record ids are kept, since in version 1 a message has the same one on all of its queues, and qpidd continues above the
highest that it finds. All messages get new ids only if one has an id that qpidd cannot have assigned: 0, or one of the
upper half, which its comparison takes for the past.

As with `store_build`, the caller chooses the queues and their numbers.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import Final

from qstore.formats.broker_records.topology import Binding, Bridge, Exchange, GeneralObject, Link, Queue
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, TPL_BASE_NAME, JournalInfo
from qstore.formats.wording import printable
from qstore.store.builders.store_build import (
    BuildWatcher,
    JournalSource,
    QueueToBuild,
    build_prepared_list,
    build_queue,
)
from qstore.store.builders.version_1_catalogue import encode_databases, write_databases
from qstore.store.builders.version_1_journal import JournalPlaces, version_1_info, why_misread
from qstore.store.builders.version_1_packing import fits, legal_geometry
from qstore.store.environment import Environment
from qstore.store.live.queue_journal import TPL_NAME
from qstore.store.parameters import StoreParameters

_PAST: Final = 1 << 63  # from this value on, a record id counts as older than 1


def highest_kept_rid(sources: Iterable[JournalSource]) -> int | None:
    """The highest record id of the messages in `sources`, 0 for none; None if the ids cannot be kept."""
    highest = 0
    for journal, recovery in sources:
        for rid, *_ in recovery.outstanding(journal.format):
            if not 0 < rid < _PAST:
                return None
            highest = max(highest, rid)
    return highest


class _RecordIds:
    """New record ids, above those of the messages."""

    def __init__(self, highest: int) -> None:
        self._last = highest

    def take(self) -> int:
        self._last += 1
        return self._last


class Version1Build:
    """A store being built.

    Args:
        environment: disk, clock and random numbers.
        directory: the store directory, in which `rhm` is created.
        parameters: the prepared list's geometry, and the cache sizes in info files.
        watcher: receives progress reports.
        destination: the path of `directory` when qpidd opens it; `directory` itself by default.
        highest_rid: the result of `highest_kept_rid` for all queues; None: messages get new record ids.

    Attributes:
        notices: one line each for the user.

    Raises:
        OSError: it cannot be created.
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
        self._made_in: dict[str, None] = {}  # parents of new directories, to be synced
        self.notices: list[str] = []
        self._make_directory(self._root)
        self._make_directory(posixpath.join(self._root, "jrnl"))

    # ---- journals ----

    def prepared_list(self, prepared: Mapping[bytes, str]) -> None:
        """Add a prepare record for each transaction in doubt; qpidd's have no user. Raises StoreError, OSError."""
        if not prepared:
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
        build_prepared_list(
            self._environment, posixpath.join(self._root, "tpl"), info, dict.fromkeys(prepared, ""), self._rids
        )

    def queue(self, queue: QueueToBuild) -> None:
        """Add a queue with its messages.

        Raises:
            StoreError: its name cannot be that of a directory, another queue has that directory, or its messages do
                not fit into the largest journal.
            OSError: it cannot be created.
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
        """Create the missing directories above a journal's."""
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

    # ---- topology ----

    def exchange(self, number: int, exchange: Exchange) -> None:
        """Add an exchange."""
        self._exchanges[number] = exchange

    def binding(self, exchange_id: int, binding: Binding) -> None:
        """Add a binding of an existing exchange and queue. Duplicates count once."""
        self._bindings.append((exchange_id, binding))

    def general(self, number: int, general: Link | Bridge | GeneralObject) -> None:
        """Add a link, a bridge or another object."""
        self._general[number] = general

    def finish(self) -> None:
        """Write the databases, and sync the names of all new files and directories. Raises OSError."""
        files = encode_databases(
            self._queues, self._exchanges, self._bindings, self._general, self._environment.random_bits
        )
        write_databases(self._disk, posixpath.join(self._root, "dat"), files)
        self._made_in.setdefault(self._root)
        for directory in reversed(self._made_in):
            self._disk.sync_directory(directory)
