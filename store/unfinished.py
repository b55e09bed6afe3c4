"""The states that a kill can leave of work on a store, by name: used by the start, the tools that read, and others.

    state             found                                        meaning, and action of the next start
    ----------------  -------------------------------------------  ----------------------------------------------------
    NEW_STORE         `rhm.new` with its STORE file, and no `rhm`  a complete store: it is renamed
    BEGUN_STORE       `rhm.new` otherwise                          an incomplete store: it is removed. A conversion,
                                                                   which has `rhm` as well, is repeated
    DISCARDED_STORE   `rhm.discarded`                              a store that was truncated: the rest is removed
    NEW_LIST          `tpl.new`, and no `tpl`                      the complete prepared list: it is renamed
    UNUSED_LIST       `tpl.new` and `tpl`                          means nothing
    BEGUN_LIST        `tpl.making`                                 an empty list being created in place of a lost one:
                                                                   it is created again
    NEW_CATALOGUE     `catalogue.new`, and no `catalogue`          the rebuilt catalogue: it is renamed
    UNUSED_CATALOGUE  `catalogue.new` and `catalogue`              a catalogue being rebuilt: it is removed when that is
                                                                   repeated
    UNMADE_JOURNAL    no queue's journal, and never written to     a queue being created, or a journal made for the
                                                                   next one: it is removed
    UNNAMED_JOURNAL   a queue's journal, whose info file lacks     a queue that was just created: the info file is
                      the queue's name and record                  written
    MARKED_JOURNAL    no queue's journal, and marked as deleted    a queue being deleted, or a resize before its switch:
                                                                   it is removed
    REPLACED_JOURNAL  no queue's journal, and the queue has one    a resize or a rebuild, after its switch: the other
                      with a higher incarnation                    has all of its content. It is moved aside
    REPAIRED_JOURNAL  the same, and it is damaged                  a rebuild, after its switch: the other has its
                                                                   readable content. It goes to the quarantine
    WITHDRAWN_JOURNAL a queue's journal, marked as deleted,        a queue that was refused because the catalogue could
                      and without its info file                    not be written, but is in it nevertheless: it gets
                                                                   an empty journal
    BEGUN_RECOVERY    `RECOVERING`                                 a part of a store that qstore-recover was building:
                                                                   it is refused; repeating the recovery removes it
    BUILT_RECOVERY    `RECOVERED`                                  a complete store built by qstore-recover: the mark is
                                                                   removed. It may not have its final name yet

A start also removes `rhm.snapshots`, the remains of snapshots that another process was reading.

None of this is damage, except an incomplete recovery, which lacks an unknown part. Nothing counts twice: of a queue's
journals, of two lists, of two stores a reader uses one. The content of `resized.new`, `resized`, `orphans` and
`quarantine` is never read as a part of the store.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from enum import Enum
from typing import Final

from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.disk import Disk
from qstore.store.journal.journal import Journal

ROOT: Final = "rhm"
STORE: Final = "STORE"
NEW, DISCARDED, CONVERTED = "rhm.new", "rhm.discarded", "rhm.version-1"
SNAPSHOTS: Final = "rhm.snapshots"
LIST: Final = "tpl"
NEW_LIST: Final = "tpl.new"
MAKING: Final = ".making"  # suffix of a journal's directory: an empty one that replaces a lost one
CATALOGUE: Final = "catalogue"
NEW_CATALOGUE: Final = "catalogue.new"
KEPT: Final = "resized"  # directory of replaced journals
RECOVERING, RECOVERED = "RECOVERING", "RECOVERED"  # marks of qstore-recover next to the store that it builds


class Unfinished(Enum):
    """A state, and its description for people."""

    NEW_STORE = "a complete store that is not renamed yet; the next start renames it"
    BEGUN_STORE = "an incomplete store that was being created; the next start removes it"
    DISCARDED_STORE = "the remains of a store that was truncated; the next start removes them"
    NEW_LIST = "the complete transaction prepared list, which is not renamed yet; the next start renames it"
    UNUSED_LIST = "a transaction prepared list that was not put in use; the next qstore-resize removes it"
    BEGUN_LIST = "a transaction prepared list that was being created for a lost one; the next start repeats that"
    NEW_CATALOGUE = (
        "the catalogue, rebuilt in place of a damaged or lost one, which is not renamed yet; the next start renames it"
    )
    UNUSED_CATALOGUE = "a catalogue that was being rebuilt in place of a damaged one; the next start repeats that"
    UNMADE_JOURNAL = (
        "a journal which is not in the catalogue, left from a queue that was being created, or made for the next one; "
        "the next start removes it"
    )
    UNNAMED_JOURNAL = (
        "the journal of a queue that had just been created; its info file does not have the queue's name yet, and the "
        "next start writes it"
    )
    MARKED_JOURNAL = (
        "a journal which is not in the catalogue, left from a queue that was being deleted, or an interrupted resize; "
        "the next start removes it"
    )
    REPLACED_JOURNAL = (
        "a journal that was replaced by another one, resized or repaired, which has all of its content; the next start "
        "moves it aside"
    )
    REPAIRED_JOURNAL = (
        "a damaged journal that was replaced by one built from its readable content; the next start moves it to the "
        "quarantine; run qstore-recover on this directory to see what was lost"
    )
    WITHDRAWN_JOURNAL = (
        "the journal of a queue that was refused because the catalogue could not be written, but is in the catalogue "
        "nevertheless; it is empty, and the next start gives the queue another one"
    )
    BEGUN_RECOVERY = f"{DamageKind.RECOVERY_UNFINISHED.words()}; {Effect.RECOVER_AGAIN.words()}"
    BUILT_RECOVERY = (
        "the mark of a qstore-recover that was killed after it had built the complete store; the store can be used, "
        "and the next start removes the mark"
    )

    def notice(self, path: str) -> str:
        """A one-line notice for people."""
        return f"{path}: {self.value}"


def unfinished_stores(disk: Disk, path: str) -> dict[str, Unfinished]:
    """The unfinished parts of a store directory, by path; a recovery comes first. Raises OSError."""
    names = disk.names(path)
    found = _unfinished_recovery(path, names)
    if NEW in names:
        new = posixpath.join(path, NEW)
        whole = ROOT not in names and disk.is_file(posixpath.join(new, STORE))
        found[new] = Unfinished.NEW_STORE if whole else Unfinished.BEGUN_STORE
    if DISCARDED in names:
        found[posixpath.join(path, DISCARDED)] = Unfinished.DISCARDED_STORE
    return found


def _unfinished_recovery(path: str, names: Collection[str]) -> dict[str, Unfinished]:
    if RECOVERING in names:
        return {posixpath.join(path, RECOVERING): Unfinished.BEGUN_RECOVERY}
    if RECOVERED in names:
        return {posixpath.join(path, RECOVERED): Unfinished.BUILT_RECOVERY}
    return {}


def recovery_around(disk: Disk, path: str) -> tuple[str, Unfinished] | None:
    """The mark of a recovery and its state, in the directory of the store that contains `path`; None without one.

    Args:
        disk: reads it.
        path: a store's directory, its `rhm` or `rhm.new`, or anything in it.

    Raises:
        OSError: the directory cannot be read.
    """
    real = disk.real_path(path)
    parts = real.split("/")
    inner = [index for index, part in enumerate(parts) if part in (ROOT, NEW)]
    directory = ("/".join(parts[: inner[-1]]) or "/") if inner else real
    names = disk.names(directory) if disk.is_directory(directory) else ()
    return next(iter(_unfinished_recovery(directory, names).items()), None)


def recovery_damage(mark: str) -> Damage:
    """The damage of a store that a recovery has not finished, for tools that read it nevertheless."""
    return Damage(mark, None, None, DamageKind.RECOVERY_UNFINISHED)


def unfinished_list(disk: Disk, root: str) -> Unfinished | None:
    """The state of the `tpl.new` of the store in `root`, if there is one. Raises OSError."""
    if not disk.is_directory(posixpath.join(root, NEW_LIST)):
        return None
    return Unfinished.UNUSED_LIST if disk.is_directory(posixpath.join(root, LIST)) else Unfinished.NEW_LIST


def unfinished_parts(disk: Disk, root: str) -> dict[str, Unfinished]:
    """The unfinished parts of the store in `root`, left by a start that repairs, by path. Raises OSError."""
    found = {}
    new, making = posixpath.join(root, NEW_CATALOGUE), posixpath.join(root, LIST + MAKING)
    if disk.is_directory(new):
        is_beside = disk.is_directory(posixpath.join(root, CATALOGUE))
        found[new] = Unfinished.UNUSED_CATALOGUE if is_beside else Unfinished.NEW_CATALOGUE
    if disk.is_directory(making):
        found[making] = Unfinished.BEGUN_LIST
    return found


def unfinished_journals(journals: Collection[Journal], used: Collection[str] | None) -> dict[str, Unfinished]:
    """The states of those journals in a store of version 2 that no queue has, by path.

    Args:
        journals: all of them.
        used: paths of those that the catalogue's queues have; None where the catalogue cannot say.
    """
    best: dict[int, Journal] = {}
    for journal in sorted(journals, key=lambda each: _precedence(each, used)):
        if journal.info is not None and journal.info.queue_id:
            best[journal.info.queue_id] = journal
    found = {}
    for journal in journals:
        if used is not None and journal.path in used:
            continue
        other = None if journal.info is None else best.get(journal.info.queue_id)
        if used is not None and journal.is_being_deleted:
            found[journal.path] = Unfinished.MARKED_JOURNAL
        elif used is not None and journal.is_remnant:
            found[journal.path] = Unfinished.UNMADE_JOURNAL
        elif other is not None and other is not journal and _is_replaced(journal, other, used):
            marked = journal.is_being_deleted
            found[journal.path] = Unfinished.MARKED_JOURNAL if marked else Unfinished.REPLACED_JOURNAL
    return found


def _precedence(journal: Journal, used: Collection[str] | None) -> tuple[bool, bool, int]:
    """Which journal of a queue counts: the catalogue's; else one that is not marked; else the newest."""
    in_use = used is not None and journal.path in used
    return in_use, not journal.is_being_deleted, 0 if journal.info is None else journal.info.incarnation


def _is_replaced(journal: Journal, other: Journal, used: Collection[str] | None) -> bool:
    """Whether all content of `journal` is in `other`, which counts for the same queue."""
    assert journal.info is not None
    assert other.info is not None
    if journal.is_being_deleted:  # built by a resize that may have reached its switch: the two hold the same
        return True
    return journal.info.incarnation < other.info.incarnation and (used is None or other.path in used)
