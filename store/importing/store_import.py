"""Imports topology and messages into a store that is not running: all of it becomes effective in one batch.

As when journals are resized (`repair/resize`), nothing is changed in place: a queue that gets messages gets a new
journal, with its own content and then the new messages.

    step                                                            the next start, after a crash in or after this step
    --------------------------------------------------------------  ----------------------------------------------------
    1. read the source into the spool, plan                         ignores `resized.new`; so does it in step 2
    2. build all new journals in `resized.new`, read them back,
       mark them as "deleted"
    3. move them into jrnl under new ids                            removes those that are marked
    4. note which messages were delivered before                    likewise: these messages do not exist
    5. branches in doubt: switch the prepared list                  likewise, and has these branches, without messages
    6. the catalogue's batch: queues, exchanges, bindings, other    has everything; it removes the marks, and moves the
       objects, the journals, the ledger's entry                    old journals aside
    7. remove the marks, the old journals, the old list             has everything

A store that did not exist before is created empty in step 1, and opened and closed cleanly after step 7: so its
messages keep what is known about their delivery. Steps 2 to 7 are in `switch`.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final

from qstore.store.catalogue.store_directory import LOCK, Found, StoreDirectory, remove_tree
from qstore.store.environment import Environment
from qstore.store.errors import StoreError
from qstore.store.importing.intake import Intake
from qstore.store.importing.ledger import PastImport, find_import
from qstore.store.importing.plan import ImportPlan, general_objects, make_plan
from qstore.store.importing.switch import ImportSwitch, Stage
from qstore.store.live.message_store import MessageStore
from qstore.store.log_lines import LogLine
from qstore.store.parameters import OnDamage, StoreParameters
from qstore.store.repair.stopped_store import BUILDING, StoppedStore, told_errors

_SPOOL: Final = "spool"
_VERSION_1: Final = "convert it first, with qpidd --load-module store or with qstore-recover"


class StoreImport(AbstractContextManager["StoreImport"]):
    """An import into a locked store of version 2, or into one that is created.

    Args:
        environment: disk, clock and so on.
        path: the store directory.
        software_version: of this program.
        dry_run: only `plan` will be called: nothing is written, and `environment` opens the catalogue read-only.
        log: receives warnings.

    Attributes:
        intake: gathers what is to be imported.

    Raises:
        StoreLockedError, StoreDamagedError, StoreError: as `StoppedStore`; or the store cannot be created.
    """

    def __init__(
        self,
        environment: Environment,
        path: str,
        software_version: str,
        *,
        dry_run: bool = False,
        log: Callable[[LogLine], None] = lambda _: None,
    ) -> None:
        self._environment, self._disk, self._log = environment, environment.disk, log
        self._directory, self._version = StoreDirectory(environment, path, software_version), software_version
        self._parameters = StoreParameters(on_damage=OnDamage.REFUSE)
        self._opened = contextlib.ExitStack()
        self._store: StoppedStore | None = None
        self._is_created = self._had_directory = self._is_applied = False
        try:
            with told_errors(path):
                self._open(dry_run=dry_run)
        except BaseException:
            self._opened.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()
        if self._is_created and not self._is_applied:
            with contextlib.suppress(OSError, StoreError):  # an empty store does not harm the next run
                self._remove()

    def _finds_nothing(self) -> bool:
        """Whether there is no store, and one can be created. Raises StoreError, OSError."""
        path, disk = self._directory.path, self._disk
        if disk.is_directory(path):
            return self._directory.look() is Found.NOTHING
        parent = posixpath.dirname(path.rstrip("/")) or "."
        if not disk.is_directory(parent):
            raise StoreError(f"{parent}: no such directory; create it first")
        return True

    def _open(self, *, dry_run: bool) -> None:
        if self._finds_nothing():
            if dry_run:
                self.intake = Intake(None)
                return
            self._create()
        path, version = self._directory.path, self._version
        self._store = store = StoppedStore(
            self._environment, path, version, version_1=_VERSION_1, read_only=dry_run, log=self._log
        )
        self._opened.push(store)
        spool = None
        if not dry_run:
            building = store.directory.part(BUILDING)
            self._disk.make_directory(building)
            self._opened.callback(self._discard, building)
            spool = self._disk.create(posixpath.join(building, _SPOOL), 0)
            self._opened.callback(spool.close)
        self.intake = Intake(spool)

    def _create(self) -> None:
        """Create an empty store. Raises StoreError, OSError."""
        directory = self._directory
        self._had_directory = self._disk.is_directory(directory.path)
        lock = directory.lock()
        try:
            directory.finish_interrupted()
            if directory.look() is Found.NOTHING:
                directory.create(self._parameters.tpl_geometry, self._parameters.flush_alignment)
                self._is_created = True
        finally:
            lock.release()

    def _remove(self) -> None:
        """Remove the empty store that was created for an import that did not take place. Raises StoreError, OSError."""
        directory, disk = self._directory, self._disk
        lock = directory.lock()
        try:
            directory.discard()
        finally:
            lock.release()
        disk.remove(directory.below(LOCK))
        if not self._had_directory:
            disk.remove_directory(directory.path)

    def _discard(self, building: str) -> None:
        with contextlib.suppress(OSError):  # the next run repeats it
            if self._disk.is_directory(building):
                remove_tree(self._disk, building)

    # ---- planning ----

    def past(self, identity: str) -> PastImport | None:
        """The import with that id, if it took place. Raises StoreError."""
        if self._store is None:
            return None
        with self._store.errors():
            return find_import(general_objects(self._store.catalogue), identity)

    def plan(self) -> ImportPlan:
        """Plan the import of what was gathered. Raises StoreError: it cannot be imported."""
        if self._store is None:
            return make_plan(self.intake, None, {})
        with self._store.errors():
            return make_plan(self.intake, self._store.catalogue, self._store.entries)

    # ---- applying ----

    def apply(self, plan: ImportPlan, identity: str, stage: Stage = lambda *_: None) -> None:
        """Import everything: durable on return.

        Args:
            plan: the plan.
            identity: for the ledger; no import in the store has it.
            stage: receives progress.

        Raises:
            StoreError: it failed; the text states whether anything was changed.
        """
        store = self._store
        assert store is not None
        past = PastImport(identity, self._environment.clock() // 1_000_000_000, plan.messages)
        with store.errors():
            is_new = store.catalogue.rid_high_water() == 0  # it was never opened
            switch = ImportSwitch(self._environment, store, self._parameters, self.intake, plan, stage)
            delivered = switch.run(past)
            self._is_applied = True
            self._opened.close()
            if is_new:
                path, parameters = self._directory.path, self._parameters
                opened = MessageStore.open(self._environment, path, parameters, self._version, log=lambda _: None)
                opened.end_recovery()
                opened.close(delivered)
