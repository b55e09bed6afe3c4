"""What a kill leaves of work on a store: each state by name, for the start, for the tools that read, and for others.

    state             what is there                                what it is, and what the next start does
    ----------------  -------------------------------------------  ----------------------------------------------------
    NEW_STORE         `rhm.new` with its STORE file, and no `rhm`  a store, whole: it gets its name
    BEGUN_STORE       `rhm.new` otherwise                          a beginning: it is removed. A conversion, which has
                                                                   `rhm` beside it, is done again
    DISCARDED_STORE   `rhm.discarded`                              a store that was truncated: the rest is removed
    NEW_LIST          `tpl.new`, and no `tpl`                      the prepared list, whole: it gets its name
    UNUSED_LIST       `tpl.new` beside `tpl`                       means nothing
    BEGUN_LIST        `tpl.making`                                 an empty list that was being made in place of one
                                                                   that is lost: it is made anew
    NEW_CATALOGUE     `catalogue.new`, and no `catalogue`          the catalogue, built anew: it gets its name
    UNUSED_CATALOGUE  `catalogue.new` beside `catalogue`           a catalogue that was being built anew: it is removed
                                                                   when that is done again
    UNMADE_JOURNAL    no queue's journal, and never written to     a queue that was being made: it is removed
    MARKED_JOURNAL    no queue's journal, and marked as deleted    a queue that was being deleted, or a resize that did
                                                                   not come to its switch: it is removed
    REPLACED_JOURNAL  no queue's journal, and the queue has one    a resize or a rebuild, behind its switch: all that
                      with a higher incarnation                    is in it is in the other. It is kept aside
    REPAIRED_JOURNAL  the same, and it is damaged                  a rebuild, behind its switch: all that can be read in
                                                                   it is in the other. It goes to the quarantine
    WITHDRAWN_JOURNAL a queue's journal, marked as deleted,        a queue that was refused, since the catalogue could
                      and without its info file                    not be written, and is in it all the same: it gets an
                                                                   empty journal
    BEGUN_RECOVERY    `RECOVERING`                                 a store that qstore-recover was building, in part: it
                                                                   is refused; the same recovery, run again, removes it
    BUILT_RECOVERY    `RECOVERED`                                  a store that qstore-recover has built, whole: the
                                                                   mark is removed. It may not have its name yet

Nothing of this is damage, but for the first part of a recovery, which lacks what was not copied yet and does not know
what that is. Nothing counts twice: of a queue's journals, of two lists, of two stores a reader has one.
What is in `resized.new`, `resized`, `orphans` and `quarantine` is never read as a part of the store.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from enum import Enum
from typing import Final

from store.damage import Damage
from store.damage_effects import Effect
from store.damage_kinds import DamageKind
from store.disk import Disk
from store.journal.journal import Journal

ROOT: Final = "rhm"
STORE: Final = "STORE"
NEW, DISCARDED, CONVERTED = "rhm.new", "rhm.discarded", "rhm.version-1"
LIST: Final = "tpl"
NEW_LIST: Final = "tpl.new"
MAKING: Final = ".making"  # behind the name of a journal's directory: an empty one that takes the place of a lost one
CATALOGUE: Final = "catalogue"
NEW_CATALOGUE: Final = "catalogue.new"
KEPT: Final = "resized"  # where journals are kept that were replaced
RECOVERING, RECOVERED = "RECOVERING", "RECOVERED"  # marks that qstore-recover puts beside the store that it builds


class Unfinished(Enum):
    """A state, and how it is told."""

    NEW_STORE = "a store that is whole and has not got its name yet, which the next start gives it"
    BEGUN_STORE = "the beginning of a store that was being made, which the next start removes"
    DISCARDED_STORE = "what is left of a store that was truncated, which the next start removes"
    NEW_LIST = "the transaction prepared list, whole, which has not got its name yet; the next start gives it that"
    UNUSED_LIST = "a transaction prepared list that did not take the other's place; the next qstore-resize removes it"
    BEGUN_LIST = "a transaction prepared list that was being made in place of a lost one; the next start makes it anew"
    NEW_CATALOGUE = (
        "the catalogue, built anew in place of a damaged or lost one, which has not got its name yet; the next start "
        "gives it that"
    )
    UNUSED_CATALOGUE = "a catalogue that was being built anew in place of a damaged one; the next start does it again"
    UNMADE_JOURNAL = (
        "a journal which the catalogue does not know, left of a queue that was being made; the next start removes it"
    )
    MARKED_JOURNAL = (
        "a journal which the catalogue does not know, left of a queue that was being deleted, or of a resize that was "
        "cut short; the next start removes it"
    )
    REPLACED_JOURNAL = (
        "a journal that was replaced by another one, of another size or repaired, which has all that was in it; "
        "the next start keeps it aside"
    )
    REPAIRED_JOURNAL = (
        "a damaged journal in whose place another one was built, of all that can be read in it; the next start keeps "
        "it in quarantine; qstore-recover of this directory shows what was lost"
    )
    WITHDRAWN_JOURNAL = (
        "the journal of a queue that was refused because the catalogue could not be written, and is there all the "
        "same; it is empty, and the next start gives the queue another one"
    )
    BEGUN_RECOVERY = f"{DamageKind.RECOVERY_UNFINISHED.words()}; {Effect.RECOVER_AGAIN.words()}"
    BUILT_RECOVERY = (
        "the mark of a qstore-recover that was killed after it had built the whole store; the store can be used as it "
        "is, and the next start removes the mark"
    )

    def notice(self, path: str) -> str:
        """One line for people."""
        return f"{path}: {self.value}"


def unfinished_stores(disk: Disk, path: str) -> dict[str, Unfinished]:
    """What is unfinished in a store directory, by path; a recovery comes first. Raises OSError."""
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
    """The mark of a recovery, and what it says, in the directory of the store in which `path` lies; None without one.

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
    """What is wrong with a store that a recovery has not finished, for those that read it all the same."""
    return Damage(mark, None, None, DamageKind.RECOVERY_UNFINISHED)


def unfinished_list(disk: Disk, root: str) -> Unfinished | None:
    """What the `tpl.new` of the store in `root` is, if there is one. Raises OSError."""
    if not disk.is_directory(posixpath.join(root, NEW_LIST)):
        return None
    return Unfinished.UNUSED_LIST if disk.is_directory(posixpath.join(root, LIST)) else Unfinished.NEW_LIST


def unfinished_parts(disk: Disk, root: str) -> dict[str, Unfinished]:
    """What a start that repairs has left in the store in `root`, by path. Raises OSError."""
    found = {}
    new, making = posixpath.join(root, NEW_CATALOGUE), posixpath.join(root, LIST + MAKING)
    if disk.is_directory(new):
        is_beside = disk.is_directory(posixpath.join(root, CATALOGUE))
        found[new] = Unfinished.UNUSED_CATALOGUE if is_beside else Unfinished.NEW_CATALOGUE
    if disk.is_directory(making):
        found[making] = Unfinished.BEGUN_LIST
    return found


def unfinished_journals(journals: Collection[Journal], used: Collection[str] | None) -> dict[str, Unfinished]:
    """What the journals of a store of version 2 are that are none of a queue's, by path.

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
    """Whether all that is in `journal` is in `other`, which counts for the same queue."""
    assert journal.info is not None
    assert other.info is not None
    if journal.is_being_deleted:  # built by a resize that may have come to its switch: the two hold the same
        return True
    return journal.info.incarnation < other.info.incarnation and (used is None or other.path in used)
