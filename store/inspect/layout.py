"""Determines the kind of a path from its content: a store, a journal, or a file of one.

    <dir>/rhm/dat, jrnl/HHHH/<queue>/, tpl/                    qpidd's legacystore (formats/rhm/README.md, 1.3)
    <dir>/rhm/STORE, catalogue/, topology, jrnl/<id>/, tpl/    version 2
    <dir>/rhm.new/STORE, and no <dir>/rhm                      the same, before it is renamed (`unfinished`)
    <dir>/qls/dat2, jrnl2/<queue>/, tpl2/, pNNN/efp/           qpidd's linearstore (formats/qls/README.md, 1.1)
    <dir> with *.jinf, *.NNNN.jdat or <uuid>.jrnl              one journal
    <file> that begins with a journal's magic                  one journal file

`<dir>/rhm` itself, `<dir>/rhm/jrnl` and `<dir>/rhm/dat` are accepted like `<dir>`; likewise `<dir>/qls` and its parts.

`holder_of_store` finds the process that has a store open, without touching its locks: a broker that starts meanwhile
must not fail. A qstore broker holds <store-dir>/rhm.lock and <data-dir>/lock with flock(2), qpidd holds <data-dir>/lock
with lockf(3). Linux lists both kinds, with the process and the file's inode, in /proc/locks (proc_locks(5)):

    1: FLOCK  ADVISORY  WRITE 4711 fe:00:2156106 0 EOF

If that file is missing, or the process lives in another PID namespace, nothing is found.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from qstore.formats.rhm.jinf import TPL_BASE_NAME
from qstore.store.catalogue.store_directory import LOCK
from qstore.store.damage import Damage, DamageKind
from qstore.store.disk import Disk
from qstore.store.errors import advice
from qstore.store.journal.directory import RESIZING, journal_base_names
from qstore.store.journal.line.files import PARTITION_NAME, linear_file_names
from qstore.store.unfinished import (
    CATALOGUE,
    LIST,
    NEW,
    NEW_CATALOGUE,
    NEW_LIST,
    Unfinished,
    recovery_around,
    recovery_damage,
    unfinished_list,
    unfinished_parts,
    unfinished_stores,
)

_MAX_DEPTH: Final = 160  # a queue name has at most 255 characters, so at most 128 slashes
_HASH_DIRECTORY = re.compile(r"[0-9a-f]{4}")
_BACKUP = re.compile(r"_.+\.bak\.[0-9a-f]{4}", re.DOTALL)


class UnusableInputError(Exception):
    """Nothing at a path can be read as a store; the text has the advice."""


class StoreKind(Enum):
    """The kinds of input."""

    LEGACY = "legacystore"
    VERSION_2 = "qstore"
    LINEAR = "linearstore"
    LOOSE = "loose journals"
    JOURNAL = "journal"
    FILE = "journal file"


@dataclass(slots=True)
class JournalPlace:
    """A directory that contains a queue's journal, and the queue's name according to the path."""

    directory: str
    name: str


@dataclass(slots=True)
class StoreLayout:
    """The locations of a store's parts.

    Attributes:
        kind: the kind of store.
        path: the path as given.
        environment: directory of the Berkeley DB files; None if there is none.
        catalogue: directory of the version-2 catalogue; None if there is none.
        store_file: path of the version-2 STORE file; None if there is none.
        topology_copy: path of the catalogue's second copy; None if there is none.
        pools: directory of the linearstore whose partitions contain the journals' files; None if there is none.
        prepared_list: directory of the transaction prepared list; None if there is none.
        journals: the queues' journals.
        orphans: version 2: journals that no queue has, moved aside.
        quarantine: version 2: damaged journals and catalogues, unchanged.
        damage: the paths that could not be examined.
        notices: one line each for the user.
    """

    kind: StoreKind
    path: str
    environment: str | None = None
    catalogue: str | None = None
    store_file: str | None = None
    topology_copy: str | None = None
    pools: str | None = None
    prepared_list: str | None = None
    journals: list[JournalPlace] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    quarantine: list[str] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def find_layout(disk: Disk, path: str) -> StoreLayout:
    """Determine the kind of `path`.

    Raises:
        UnusableInputError: nothing that can be read as a store.
        OSError: it cannot be examined.
    """
    if not disk.is_file(path) and not disk.is_directory(path):
        raise UnusableInputError(f"{path}: no such directory or regular file")
    layout = _find(disk, path)
    report_recovery(disk, layout)
    return layout


def report_recovery(disk: Disk, layout: StoreLayout) -> None:
    """Report a recovery that was building, or had built, the store when it was killed. Raises OSError."""
    recovery = recovery_around(disk, layout.path)
    if recovery is None:
        return
    mark, state = recovery
    if state is Unfinished.BEGUN_RECOVERY:
        layout.damage.append(recovery_damage(mark))
    else:
        layout.notices.append(state.notice(mark))


def _find(disk: Disk, path: str) -> StoreLayout:
    if disk.is_file(path):
        return _with_store_above(disk, StoreLayout(StoreKind.FILE, path))
    path = path.rstrip("/") or "/"
    names = disk.names(path)
    if _holds_journal(disk, path, names):
        name = posixpath.basename(disk.real_path(path))
        layout = StoreLayout(StoreKind.JOURNAL, path, journals=[JournalPlace(path, name)])
        return _with_store_above(disk, layout)
    root = _store_root(disk, path)
    if root is not None:
        layout = _store(disk, root, path)
        if "qls" in names:
            qls = posixpath.join(path, "qls")
            layout.notices.append(f"{path}: there is also a linearstore, which is not read now; pass {qls} to read it")
        return layout
    root = _linear_root(disk, path)
    if root is not None:
        return _linear_store(disk, root, path)
    raise UnusableInputError(_why_unusable(disk, path, names))


def _holds_journal(disk: Disk, directory: str, names: list[str]) -> bool:
    """Whether a directory with these names is a journal's. A queue may have the name of a linearstore file."""
    linear = (posixpath.join(directory, name) for name in linear_file_names(names))
    return bool(journal_base_names(names)) or RESIZING in names or any(not disk.is_directory(path) for path in linear)


def _store_root(disk: Disk, path: str) -> str | None:
    """The `rhm` directory meant by `path`: below it, itself, or its parent if a part of it was given."""
    candidates = [posixpath.join(path, "rhm"), path]
    new = posixpath.join(path, NEW)
    if unfinished_stores(disk, path).get(new) is Unfinished.NEW_STORE:
        candidates.append(new)
    real = disk.real_path(path)
    if posixpath.basename(real) in ("jrnl", "dat", "catalogue"):
        candidates.append(posixpath.dirname(real))
    return next((root for root in candidates if _is_store(disk, root)), None)


def _is_store(disk: Disk, root: str) -> bool:
    if not disk.is_directory(root):
        return False
    return (
        disk.is_file(posixpath.join(root, "STORE"))
        or disk.is_file(posixpath.join(root, "topology"))
        or disk.is_directory(posixpath.join(root, "catalogue"))
        or "jrnl" in disk.names(root)
        or disk.is_file(posixpath.join(root, "dat", "queues.db"))
        or disk.is_file(posixpath.join(root, "tpl", TPL_BASE_NAME + ".jinf"))
    )


_JAVA_LEVELS: Final = 4
"""In `$QPID_WORK` are `bdbstore/HOST/*.jdb` and `derbyDB/HOST/service.properties`; one level more is for its parent."""
_JAVA_DIRECTORIES: Final = 200  # of a level

#: A kind of store of the Java broker -> whether a directory with these names is one. That in a database of JDBC has no
#: files of its own.
_JAVA_STORES: Final[Mapping[str, Callable[[list[str]], bool]]] = {
    "a Berkeley DB JE": lambda names: any(name.endswith(".jdb") for name in names),
    "a Derby": lambda names: {"service.properties", "seg0"} <= set(names),
}


def _java_store(disk: Disk, path: str) -> tuple[str, str] | None:
    """The kind of a store of the Java broker at or below `path`, such as in its work directory, and where it is."""
    level = [path]
    for depth in range(_JAVA_LEVELS):
        below: list[str] = []
        for each in level:
            try:
                names = disk.names(each)
                found = next((what for what, is_it in _JAVA_STORES.items() if is_it(names)), None)
                if found is not None:
                    return found, each
                if depth + 1 < _JAVA_LEVELS:
                    below += (there for name in names if disk.is_directory(there := posixpath.join(each, name)))
            except OSError:  # somebody else's directory: what is wanted is not there
                continue
        level = below[:_JAVA_DIRECTORIES]
    return None


def _why_unusable(disk: Disk, path: str, names: list[str]) -> str:
    recovery = recovery_around(disk, path)
    if recovery is not None:
        return f"{path}: there is no store, only {recovery[1].notice(recovery[0])}"
    if not names:
        return f"{path}: the directory is empty"
    for left, state in unfinished_stores(disk, path).items():
        return f"{path}: there is no store, only {state.notice(left)}"
    if (java := _java_store(disk, path)) is not None:
        what, there = java
        return (
            f"{there}: this is {what} store of Apache's Java broker, whose layout has no public description: drain its "
            "queues with a client or a shovel while that broker runs; qstore-import reads its configuration"
        )
    below = [posixpath.join(path, name) for name in names]
    nested = [
        name
        for name in below
        if _is_store(disk, posixpath.join(name, "rhm")) or _is_linear_store(disk, posixpath.join(name, "qls"))
    ]
    if nested:
        return f"{path}: no store here, but there is one in {nested[0]}"
    return f"{path}: no store here (nor in its rhm or qls), and no journal (no *.jinf, *.jdat, *.jrnl)"


def _store(disk: Disk, root: str, path: str) -> StoreLayout:
    names = disk.names(root)

    def part(name: str) -> str | None:
        return posixpath.join(root, name) if name in names else None

    version_2 = any(part(name) is not None for name in ("STORE", "catalogue", "topology"))
    layout = StoreLayout(StoreKind.VERSION_2 if version_2 else StoreKind.LEGACY, path)
    layout.prepared_list = part(LIST)
    if version_2:
        _unfinished(disk, root, path, layout)
        layout.store_file, layout.topology_copy = part("STORE"), part("topology")
        layout.catalogue = part(CATALOGUE) or part(NEW_CATALOGUE)
        layout.orphans = _directories(disk, posixpath.join(root, "orphans"), layout)
        layout.quarantine = _directories(disk, posixpath.join(root, "quarantine"), layout)
    else:
        layout.environment = part("dat")
    journals = part("jrnl")
    if journals is None or (disk.is_directory(journals) and not disk.names(journals)):
        layout.notices.append(f"{path}: there are no journals")
    else:
        find_journals(disk, journals, layout)
    return layout


def _directories(disk: Disk, parent: str, layout: StoreLayout) -> list[str]:
    """The directories in `parent`; none if it does not exist."""
    if not _can_be_entered(disk, parent, layout):
        return []
    paths = [posixpath.join(parent, name) for name in disk.names(parent)]
    return [path for path in paths if disk.link_target(path) is None and _can_be_entered(disk, path, layout)]


def _unfinished(disk: Disk, root: str, path: str, layout: StoreLayout) -> None:
    """Report the remains of interrupted work on the store in `root`, and use the valid parts."""
    for left, state in unfinished_stores(disk, path).items():
        if state not in (Unfinished.BEGUN_RECOVERY, Unfinished.BUILT_RECOVERY):  # of either version: reported before
            layout.notices.append(state.notice(left))
    left_list = unfinished_list(disk, root)
    if left_list is not None:
        new = posixpath.join(root, NEW_LIST)
        layout.notices.append(left_list.notice(new))
        if left_list is Unfinished.NEW_LIST:
            layout.prepared_list = new
    layout.notices.extend(state.notice(left) for left, state in unfinished_parts(disk, root).items())


def _linear_root(disk: Disk, path: str) -> str | None:
    """The `qls` directory meant by `path`: below it, itself, or its parent if a part of it was given."""
    candidates = [posixpath.join(path, "qls"), path]
    real = disk.real_path(path)
    if posixpath.basename(real) in ("jrnl2", "dat2"):
        candidates.append(posixpath.dirname(real))
    return next((root for root in candidates if _is_linear_store(disk, root)), None)


def _is_linear_store(disk: Disk, root: str) -> bool:
    if not disk.is_directory(root):
        return False
    names = disk.names(root)
    parts = [name for name in names if name in ("jrnl2", "dat2", "tpl2") or PARTITION_NAME.fullmatch(name)]
    return any(disk.is_directory(posixpath.join(root, name)) for name in parts)


def _linear_store(disk: Disk, root: str, path: str) -> StoreLayout:
    names = disk.names(root)

    def part(name: str) -> str | None:
        return posixpath.join(root, name) if name in names else None

    layout = StoreLayout(StoreKind.LINEAR, path, environment=part("dat2"), pools=root, prepared_list=part("tpl2"))
    journals = part("jrnl2")
    if journals is None or (disk.is_directory(journals) and not disk.names(journals)):
        layout.notices.append(f"{path}: there are no journals")
    else:
        find_journals(disk, journals, layout)
    return layout


def find_journals(disk: Disk, directory: str, layout: StoreLayout) -> None:
    """Add the journals below a `jrnl` or `jrnl2` directory to `layout`.

    A queue name with slashes is a path of directories. A linearstore's journal may be an empty directory.

    A link that leads out of the store may be a queue's directory on another disk: it is examined, but not its
    subdirectories.
    """
    root = disk.real_path(directory)
    pending: list[tuple[str, tuple[str, ...]]] = [(directory, ())]
    seen: set[str] = set()
    while pending:
        here, parts = pending.pop()
        real = disk.real_path(here)
        if real in seen or len(parts) > _MAX_DEPTH:
            continue  # a link that leads back
        seen.add(real)
        try:
            names = disk.names(here)
        except OSError as error:
            kind, reason = DamageKind.DIRECTORY_UNREADABLE, error.strerror
            layout.damage.append(Damage(here, None, None, kind, reason=reason, advice=advice(error)))
            continue
        linear = layout.kind is StoreKind.LINEAR
        holds_journal = _holds_journal(disk, here, names) or (linear and bool(parts) and not names)
        if holds_journal:
            layout.journals.append(JournalPlace(here, "/".join(parts) if linear else _queue_name(parts)))
        if real != root and not real.startswith(root + "/"):
            if not holds_journal:
                layout.notices.append(f"{here}: is a link out of the store, to {real}, and is not followed")
            continue
        for name in names:
            below = posixpath.join(here, name)
            is_other = name == RESIZING or _BACKUP.fullmatch(name) is not None
            if (is_other and not linear) or not _can_be_entered(disk, below, layout):
                continue
            # A directory that a link points to is known by its own name: links come last.
            pending.insert(0 if disk.link_target(below) else len(pending), (below, (*parts, name)))
    layout.journals.sort(key=lambda place: place.directory)


def _can_be_entered(disk: Disk, path: str, layout: StoreLayout) -> bool:
    try:
        return disk.is_directory(path)
    except OSError as error:
        kind, reason = DamageKind.PATH_UNREADABLE, error.strerror
        layout.damage.append(Damage(path, None, None, kind, reason=reason, advice=advice(error)))
        return False


def _queue_name(parts: tuple[str, ...]) -> str:
    """The path below `jrnl` without the hash directory that distributes the queues."""
    if len(parts) > 1 and _HASH_DIRECTORY.fullmatch(parts[0]):
        parts = parts[1:]
    return "/".join(parts)


def _with_store_above(disk: Disk, layout: StoreLayout) -> StoreLayout:
    """Add the parts of the surrounding store, if any, that concern a journal or a file of one."""
    below = here = disk.real_path(layout.path)
    for _ in range(_MAX_DEPTH):
        below, here = here, posixpath.dirname(here)
        if here == below:
            break
        name = posixpath.basename(below)
        if name == "jrnl":
            layout.prepared_list = _directory(disk, posixpath.join(here, TPL_BASE_NAME))
            break
        if (name in ("jrnl2", "tpl2") or PARTITION_NAME.fullmatch(name)) and _is_linear_store(disk, here):
            layout.pools = here
            layout.prepared_list = _directory(disk, posixpath.join(here, "tpl2")) if name != "tpl2" else None
            break
    return layout


def _directory(disk: Disk, path: str) -> str | None:
    return path if disk.is_directory(path) else None


# ---- the process that has it open ----

_LOCKS: Final = Path("/proc/locks")
_DATA_DIRECTORY_LOCK: Final = "lock"
_FIELDS: Final = 8


def holder_of_store(layout: StoreLayout) -> int | None:
    """The process that has the given store open; None if none is known."""
    part = layout.store_file or layout.catalogue or layout.environment or layout.pools
    if part is None:
        return None
    root = part if part == layout.pools else posixpath.dirname(part)
    above = Path(root).resolve().parent
    for name in (LOCK, _DATA_DIRECTORY_LOCK):
        holder = holder_of_lock(above / name)
        if holder is not None:
            return holder
    return None


def in_use_notice(layout: StoreLayout, holder: int) -> str:
    """The notice for readers of a store that the process `holder` has open."""
    return (
        f"{layout.path}: process {holder} has this store open (usually a broker) and may write while it is read: "
        "records that look torn, missing or not yet sealed are not signs of a crash; stop it for a reliable result"
    )


def holder_of_lock(path: Path) -> int | None:
    """The process that holds the lock on the file at `path`."""
    try:
        wanted = path.stat()
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if len(fields) < _FIELDS or fields[3] != "WRITE":  # a waiting process has "->" before these
            continue
        holder, (major, minor, inode) = int(fields[4]), fields[5].split(":")
        if holder <= 0 or int(inode) != wanted.st_ino:
            continue
        if os.makedev(int(major, 16), int(minor, 16)) == wanted.st_dev or _has_open(holder, wanted):
            return holder
    return None


def _has_open(process: int, wanted: os.stat_result) -> bool:
    """Whether a process has the file open: the device numbers of some file systems differ here."""
    try:
        with os.scandir(f"/proc/{process}/fd") as entries:
            return any(_is_same(entry, wanted) for entry in entries)
    except OSError:
        return False


def _is_same(entry: os.DirEntry[str], wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(entry.stat(), wanted)
    except OSError:  # it has just been closed
        return False
