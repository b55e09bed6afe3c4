"""The files next to a store's journals: its catalogue, or qpidd's Berkeley DB environment, and version 2's STORE file.

A version-2 store always has both its catalogue and its STORE file. Of qpidd's stores only the journals may be
available: then the names of the queues are taken from them.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from qstore.formats.rhm import store_file
from qstore.store.catalogue.berkeley import read_environment
from qstore.store.catalogue.catalogue import Catalogue, CatalogueDamage
from qstore.store.catalogue.topology import Topology, catalogue_topology, environment_topology
from qstore.store.catalogue.topology_copy import NAME as TOPOLOGY
from qstore.store.catalogue.topology_copy import (
    CatalogueView,
    CopyView,
    Judgement,
    MemoryMap,
    Verdict,
    differences,
    judge,
    shown,
    view_catalogue,
    view_copy,
)
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.disk import Disk, read_whole
from qstore.store.inspect.layout import StoreKind, StoreLayout, UnusableInputError
from qstore.store.key_value import CatalogueDamagedError, CatalogueError, open_copy
from qstore.store.recovery.close_record import Closing, read_bounds, read_closing

_LOG_FILE: Final = re.compile(r"log\.[0-9]{10}", re.ASCII)


@dataclass(slots=True)
class Surroundings:
    """The data read from these files.

    Attributes:
        topology: queues, exchanges and so on; None if there is no catalogue, or it is lost.
        rid_high_water: version 2: the first record id that the catalogue has not reserved; None if unknown.
        closing: version 2: how the store was closed.
        store_id: version 2: the store id in the catalogue; None if unknown.
        damage: the damage found.
        notices: one line each for the user, about things that are not damage.
    """

    topology: Topology | None = None
    rid_high_water: int | None = None
    closing: Closing = field(default_factory=lambda: Closing(is_clean=False))
    store_id: UUID | None = None
    damage: list[Damage] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def read_surroundings(disk: Disk, layout: StoreLayout, *, is_open: bool = False) -> Surroundings:
    """Read the files of `layout` next to its journals.

    Args:
        disk: reads it.
        layout: the locations of the parts.
        is_open: whether a process has the store open, which therefore cannot be closed cleanly yet.
    """
    found = Surroundings()
    if layout.environment is not None:
        _read_environment(disk, layout.environment, found)
    elif layout.kind in (StoreKind.LEGACY, StoreKind.LINEAR, StoreKind.LOOSE):
        found.notices.append(f"{layout.path}: no catalogue here; queue names are taken from the journals")
    if layout.kind is StoreKind.VERSION_2:
        _read_version_2(disk, layout, found, is_open=is_open)
    if found.topology is not None:
        found.damage.extend(found.topology.damage)
        found.damage.extend(each.damage(layout.catalogue or layout.path) for each in found.topology.duplicates)
        found.notices.extend(found.topology.notices)
    return found


def _read_environment(disk: Disk, directory: str, found: Surroundings) -> None:
    try:
        environment = read_environment(disk, directory)
        names = disk.names(directory)
    except OSError as error:
        kind, reason = DamageKind.ENVIRONMENT_UNREADABLE, error.strerror
        found.damage.append(Damage(directory, None, None, kind, reason=reason))
        return
    found.topology = environment_topology(environment, directory)
    for entry in environment.damage:
        if entry.is_healed:
            kind, effect = DamageKind.ENVIRONMENT_DAMAGED, Effect.READ_FROM_LOG
            found.damage.append(Damage(entry.file, entry.offset, None, kind, effect, problem=entry.what))
    if not any(_LOG_FILE.fullmatch(name) for name in names):
        found.topology.damage.append(Damage(directory, None, None, DamageKind.ENVIRONMENT_WITHOUT_LOG))


def _read_version_2(disk: Disk, layout: StoreLayout, found: Surroundings, *, is_open: bool) -> None:
    """Read the STORE file, and then the catalogue and its second copy, and compare them.

    What was recorded of a store that is in use is read before what it is compared with.
    """
    mark = _read_store_file(disk, layout, found)
    of_catalogue = Surroundings()
    view = CatalogueView(0, {}, (CatalogueDamage("", "the catalogue is missing"),))
    if layout.catalogue is not None:
        view = _read_catalogue(layout.catalogue, of_catalogue)
    found.store_id = of_catalogue.store_id
    store_id = None if mark is None else _believed(mark, layout, found, is_open=is_open)
    root = posixpath.dirname(layout.store_file or layout.topology_copy or layout.catalogue or layout.path)
    if mark is None and found.store_id is not None:
        found.closing, damage = read_bounds(disk, root, found.store_id)
        found.damage.extend(damage)
    if layout.catalogue is None:
        of_catalogue.damage.append(Damage(root, None, None, DamageKind.CATALOGUE_MISSING))
    least = found.closing.batch
    copy = CopyView(None, "the file is missing", is_missing=True, least=least)
    if layout.topology_copy is not None:
        copy = view_copy(disk, layout.topology_copy, store_id or found.store_id, least)
    judgement = judge(view, copy)
    if judgement.verdict is Verdict.RESTORE:
        of_catalogue = _restored(judgement, view, layout.catalogue or root)
    elif judgement.verdict is Verdict.SALVAGE and judgement.entries is not view.entries:
        _begun(judgement, layout.topology_copy or root, of_catalogue)
    elif judgement.verdict is Verdict.SALVAGE and not view.damage:
        _behind(judgement, layout.catalogue or root, of_catalogue)
    found.topology, found.rid_high_water = of_catalogue.topology, of_catalogue.rid_high_water
    found.damage[:0] = of_catalogue.damage
    if judgement.copy_problem and judgement.entries is view.entries:
        _tell_copy(judgement, layout.topology_copy or posixpath.join(root, TOPOLOGY), found)


def _tell_copy(judgement: Judgement, path: str, found: Surroundings) -> None:
    """Report a second copy that is unusable; one that older software did not write, or not to its end, is no damage."""
    if judgement.copy_is_damaged:
        kind = DamageKind.TOPOLOGY_COPY_UNUSABLE
        effect = Effect.COPY_USELESS if judgement.damage else Effect.COPY_REWRITTEN
        found.damage.append(Damage(path, None, None, kind, effect, problem=judgement.copy_problem))
        return
    text = f"{path}: the second copy of the catalogue is unusable: {judgement.copy_problem}"
    found.notices.append(text if judgement.damage else f"{text}; the next start rewrites it")


def _read_catalogue(directory: str, found: Surroundings) -> CatalogueView:
    """Read a catalogue. Raises UnusableInputError if the system refuses that."""
    try:
        key_value = open_copy(Path(directory))
    except CatalogueDamagedError as error:
        found.damage.append(_unreadable(directory, error))
        return CatalogueView(0, {}, (CatalogueDamage("", str(error), error.file),))
    except CatalogueError as error:
        raise UnusableInputError(str(error)) from error
    try:
        view = view_catalogue(key_value)
        catalogue = Catalogue(key_value)
        found.topology = catalogue_topology(catalogue, directory)
        found.rid_high_water = _reserved(catalogue, directory, found.damage)
        meta = catalogue.meta()
        found.store_id = None if meta is None else meta.store_id
    except CatalogueError as error:
        found.damage.append(_unreadable(directory, error))
    finally:
        key_value.close()
    return view


def _restored(judgement: Judgement, view: CatalogueView, path: str) -> Surroundings:
    """The content of the second copy; damage to the catalogue then costs nothing."""
    found = Surroundings()
    catalogue = Catalogue(MemoryMap(judgement.entries))
    found.topology = catalogue_topology(catalogue, path)
    found.rid_high_water = catalogue.rid_high_water()
    lost, gone = differences(view.entries, judgement.entries)
    missing = shown(lost) if lost and view.entries else None
    deleted = shown(gone) if gone else None
    kind = DamageKind.CATALOGUE_NOT_BELIEVED
    effect = Effect.COPY_TAKEN_UNCERTAIN if judgement.may_lack_last else Effect.COPY_TAKEN
    found.damage.extend(
        Damage(each.file or path, None, None, kind, effect, problem=str(each), missing=missing, gone=deleted)
        for each in judgement.damage
    )
    return found


def _behind(judgement: Judgement, path: str, found: Surroundings) -> None:
    """A catalogue that is sound, but went back in time, as did its second copy, or that is unusable."""
    if found.topology is not None:
        found.topology.complete = False
    kind = DamageKind.CATALOGUE_BEHIND
    found.damage.extend(Damage(path, None, None, kind, problem=str(each)) for each in judgement.damage)


def _begun(judgement: Judgement, path: str, found: Surroundings) -> None:
    """The readable beginning of a damaged second copy, if the catalogue has nothing, or less, that is readable."""
    found.topology = catalogue_topology(Catalogue(MemoryMap(judgement.entries)), path)
    found.topology.complete = False
    kind = DamageKind.CATALOGUE_COPY_DAMAGED
    found.damage.append(Damage(path, None, None, kind, problem=judgement.copy_problem))


def _unreadable(directory: str, error: CatalogueError) -> Damage:
    """The damage of a catalogue that cannot be opened, or cannot be read to its end."""
    return Damage(error.file or directory, None, None, DamageKind.CATALOGUE_BROKEN, problem=str(error))


def _reserved(catalogue: Catalogue, directory: str, damage: list[Damage]) -> int | None:
    try:
        return catalogue.rid_high_water()
    except CatalogueError as error:
        damage.append(Damage(directory, None, None, DamageKind.CATALOGUE_RESERVATION, problem=str(error)))
        return None


def _read_store_file(disk: Disk, layout: StoreLayout, found: Surroundings) -> store_file.StoreFile | None:
    """Read the STORE file, and the records of what the store held. None if it cannot be read."""
    path = layout.store_file
    if path is None:
        root = posixpath.dirname(layout.catalogue or layout.topology_copy or layout.path)
        found.damage.append(Damage(root, None, None, DamageKind.STORE_FILE_MISSING))
        return None
    try:
        mark = store_file.decode(read_whole(disk, path, store_file.MAX_SIZE + 1))
    except (store_file.StoreFileError, OSError) as error:
        is_checksum = isinstance(error, store_file.StoreFileError) and error.fails_checksum
        kind = DamageKind.STORE_FILE_CHECKSUM if is_checksum else DamageKind.STORE_FILE_BROKEN
        what = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        found.damage.append(Damage(path, None, None, kind, problem=what))
        return None
    found.closing, damage = read_closing(disk, posixpath.dirname(path), mark)
    found.damage.extend(damage)
    return mark


def _believed(mark: store_file.StoreFile, layout: StoreLayout, found: Surroundings, *, is_open: bool) -> UUID | None:
    """The id of the store in its STORE file; None if the catalogue is that of another store."""
    path = layout.store_file
    assert path is not None
    if found.store_id not in (None, mark.store_id):
        kind, recorded, own = DamageKind.STORE_FILE_OF_OTHER_STORE, str(mark.store_id), str(found.store_id)
        found.damage[:] = [Damage(path, None, None, kind, recorded=recorded, store=own)]
        found.closing = Closing(is_clean=False)
        return None
    if not mark.clean_close and not is_open:
        found.notices.append(f"{path}: the store was not closed cleanly")
    return mark.store_id
