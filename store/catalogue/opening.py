"""Opens the catalogue of a store, with its second copy; restores a catalogue that is damaged, lost or out of date.

The action depends on `topology_copy.judge`:

    verdict    action
    ---------  ---------------------------------------------------------------------------------------------------
    SOUND      both are used
    STALE      the copy is rewritten without a log line: normal after a crash
    COPY_LOST  likewise, with a critical line, or refused; with a warning if a store of older software has no copy
    RESTORE    refused, or the catalogue is rebuilt from the copy
    SALVAGE    refused, or the catalogue is rebuilt from the readable parts of both, and from the journals' info files

A catalogue is built next to the old one and read back before the two are switched:

    step                                                       a start after a crash in or after this step
    ---------------------------------------------------------  -------------------------------------------------------
    1. log what is wrong, and what is lost                     logs it again
    2. build `catalogue.new`, read it back                     removes it, and starts over
    3. move `catalogue` into `quarantine`, if it exists;       finds `catalogue.new` alone, renames it, and moves a
       after SALVAGE the copy, too                             damaged copy
    4. rename `catalogue.new` to `catalogue`                   is complete. If the catalogue had been removed before, a
                                                               crash in step 2 leaves `catalogue.new` alone, too: it
                                                               is removed if it is incomplete
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from uuid import UUID

from qstore.formats.wording import printable
from qstore.store.catalogue.catalogue import Catalogue, CatalogueDamage
from qstore.store.catalogue.store_directory import StoreDirectory, remove_tree
from qstore.store.catalogue.topology_copy import (
    NAME,
    CatalogueView,
    Judgement,
    Verdict,
    differences,
    judge,
    shown,
    view_catalogue,
    view_copy,
)
from qstore.store.catalogue.topology_log import MirroredKeyValue
from qstore.store.catalogue.topology_salvage import salvaged
from qstore.store.environment import Environment
from qstore.store.errors import StoreDamagedError, StoreError
from qstore.store.key_value import CatalogueDamagedError, CatalogueError, KeyValue
from qstore.store.log_lines import Level, LogLine
from qstore.store.unfinished import CATALOGUE, NEW_CATALOGUE

Log = Callable[[LogLine], None]


class CatalogueOpening:
    """Opens the catalogue of one store, which is locked and without interrupted work.

    Args:
        environment: disk, clock and so on.
        directory: the store's.
        store_id: the store's unique id, from its STORE file.
        log: receives log lines.
        refusal: why a damaged catalogue is not restored, for the error; None to restore it.
        least: number of a batch that the catalogue and its copy are known to have had; 0 if unknown.

    Attributes:
        mirrored: what `open` returned, unless it was read-only.
    """

    def __init__(
        self,
        environment: Environment,
        directory: StoreDirectory,
        store_id: UUID,
        log: Log,
        *,
        refusal: str | None,
        least: int,
    ) -> None:
        self._environment, self._disk = environment, environment.disk
        self._directory, self._store_id = directory, store_id
        self._log, self._refusal, self._least = log, refusal, least
        self.mirrored: MirroredKeyValue | None = None
        self._key_value: KeyValue | None = None
        self._has_switched = False

    def open(self, *, read_only: bool = False) -> KeyValue:
        """The catalogue's map, sound and with its copy; with `read_only` without a copy, and nothing is written.

        Raises:
            StoreDamagedError: it is damaged, and must not be restored.
            StoreError: it belongs to another store.
            CatalogueError: it cannot be opened, though it is not damaged.
            OSError: the copy cannot be written, or the catalogue cannot be restored.
        """
        try:
            if not read_only:
                self._finish_switch()
            return self._opened(read_only=read_only)
        except BaseException:
            self._close()
            raise

    def _opened(self, *, read_only: bool) -> KeyValue:
        view = self._view()
        copy = view_copy(self._disk, self._directory.part(NAME), self._store_id, self._least)
        judgement = judge(view, copy)
        if judgement.verdict in (Verdict.RESTORE, Verdict.SALVAGE):
            if self._refusal is not None:
                raise StoreDamagedError(f"{self._directory.catalogue}: {judgement.damage[0]}; {self._refusal}")
            self._close()
            self._restore(judgement, view)
        elif judgement.verdict is Verdict.COPY_LOST and not read_only:
            self._tell_lost_copy(judgement)
            is_directory = self._disk.is_directory(self._directory.part(NAME))  # no file can replace it
            if is_directory or (self._has_switched and not judgement.copy_is_missing):
                self._set_aside(self._directory.part(NAME))
        assert self._key_value is not None
        if read_only:
            return self._key_value
        mirrored = MirroredKeyValue(self._key_value, self._disk, self._directory, self._store_id, self._log)
        self._key_value = self.mirrored = mirrored
        if judgement.verdict in (Verdict.SOUND, Verdict.RESTORE) and copy.content is not None and not copy.is_torn:
            mirrored.resume(copy.content.end, copy.content.batch)
        else:
            mirrored.renew()
        return mirrored

    def _view(self) -> CatalogueView:
        """Open the map, and read it. Raises StoreError if it belongs to another store."""
        path = self._directory.catalogue
        try:
            self._key_value = self._environment.open_key_value(path, create=False)
        except CatalogueDamagedError as error:
            what = str(error) if self._is_there else "the catalogue is missing"
            return CatalogueView(0, {}, (CatalogueDamage("", what.removeprefix(f"{path}: "), error.file),))
        view = view_catalogue(self._key_value)
        meta = None if view.damage else Catalogue(self._key_value).meta()
        if meta is not None and meta.store_id != self._store_id:
            raise StoreError(
                f"{path}: the catalogue is that of another store, {meta.store_id}; restore the one of this store, "
                f"{self._store_id}, or move it elsewhere: it is then restored from its second copy"
            )
        return view

    @property
    def _is_there(self) -> bool:
        """Whether there is a catalogue, or something in its place."""
        return CATALOGUE in self._disk.names(self._directory.root)

    def _close(self) -> None:
        if self._key_value is not None:
            with contextlib.suppress(CatalogueError):  # closing a damaged database may fail too
                self._key_value.close()
            self._key_value = None

    def _tell_lost_copy(self, judgement: Judgement) -> None:
        text = f"{self._directory.part(NAME)}: the second copy of the catalogue is unusable: {judgement.copy_problem}"
        if judgement.copy_is_damaged and self._refusal is not None:
            raise StoreDamagedError(f"{printable(text)}; {self._refusal}")
        if judgement.copy_is_missing and not judgement.copy_is_damaged:
            text += ", as in a store created by older software"
        level = Level.CRITICAL if judgement.copy_is_damaged else Level.WARNING
        self._log(LogLine(level, printable(f"{text}; the catalogue is sound, and the copy is rewritten")))

    # ---- restoring ----

    def _finish_switch(self) -> None:
        """Rename a catalogue that an earlier start has built to replace a damaged one.

        If the damaged one had been removed by hand, the new one may be incomplete.
        """
        new, path = self._directory.part(NEW_CATALOGUE), self._directory.catalogue
        if self._is_there or not self._disk.is_directory(new):
            return
        if self._is_whole(new):
            self._disk.rename(new, path)
            self._has_switched = True
        else:
            remove_tree(self._disk, new)
        self._disk.sync_directory(self._directory.root)

    def _is_whole(self, path: str) -> bool:
        try:
            built = self._environment.open_key_value(path, create=False)
        except CatalogueDamagedError:
            return False
        try:
            return not view_catalogue(built).damage
        finally:
            built.close()

    def _restore(self, judgement: Judgement, view: CatalogueView) -> None:
        """Rebuild the catalogue next to the old one, switch the two, and open it."""
        directory, disk, path = self._directory, self._disk, self._directory.catalogue
        entries, told = judgement.entries, ""
        if judgement.verdict is Verdict.SALVAGE:
            entries, told = salvaged(disk, directory, self._store_id, judgement)
        self._tell(judgement, view, entries, told)  # after the switch a start has nothing to report
        new = directory.part(NEW_CATALOGUE)
        if NEW_CATALOGUE in disk.names(directory.root):
            remove_tree(disk, new)
        try:
            self._build(new, entries)
            if self._is_there:
                self._set_aside(path)
        except BaseException:
            if self._is_there:
                with contextlib.suppress(OSError):  # the next start repeats it
                    remove_tree(disk, new)
            raise
        copy = directory.part(NAME)
        if judgement.verdict is Verdict.SALVAGE and (disk.is_file(copy) or disk.is_directory(copy)):
            self._set_aside(copy)
        disk.rename(new, path)
        disk.sync_directory(directory.root)
        self._key_value = self._environment.open_key_value(path, create=False)

    def _build(self, path: str, entries: Mapping[bytes, bytes]) -> None:
        """Build a database with these entries, durable except for its name, and read back. Raises StoreError."""
        built = self._environment.open_key_value(path, create=True)
        try:
            built.write(entries)
        finally:
            built.close()
        built = self._environment.open_key_value(path, create=False)
        try:
            view = view_catalogue(built)
        finally:
            built.close()
        if view.damage or view.entries != entries:
            what = str(view.damage[0]) if view.damage else "its entries differ from those written"
            raise StoreError(f"{path}: the rebuilt catalogue is not sound: {what}; the disk may be failing")

    def _set_aside(self, path: str) -> None:
        kept = self._directory.set_aside(path, "quarantine")
        self._log(LogLine(Level.NOTICE, f"{path}: the damaged one was moved to {kept}"))

    def _tell(self, judgement: Judgement, view: CatalogueView, entries: Mapping[bytes, bytes], told: str) -> None:
        path = self._directory.catalogue
        lost, gone = differences(view.entries, entries)
        where = f"{path}: {judgement.damage[0]}"
        if judgement.verdict is Verdict.SALVAGE:
            self._log(LogLine(Level.CRITICAL, printable(f"{where}; {told}")))
            return
        restored = f"it is restored from its second copy, {self._directory.part(NAME)}"
        restored += ", which may lack the last change" if judgement.may_lack_last else ", and nothing is lost"
        missing = f"; restored: {shown(lost)}" if lost else ""
        deleted = f"; deleted again: {shown(gone)}" if gone else ""
        self._log(LogLine(Level.CRITICAL, printable(f"{where}: {restored}{missing}{deleted}")))
