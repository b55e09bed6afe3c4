"""What a kill leaves of work on a store: each state by name, for the start, for the tools that read, and for others.

    state             what is there                                what it is, and what the next start does
    ----------------  -------------------------------------------  ----------------------------------------------------
    NEW_STORE         `rhm.new` with its STORE file, and no `rhm`  a store, whole: it gets its name
    BEGUN_STORE       `rhm.new` otherwise                          a beginning: it is removed. A conversion, which has
                                                                   `rhm` beside it, is done again
    DISCARDED_STORE   `rhm.discarded`                              a store that was truncated: the rest is removed
    NEW_LIST          `tpl.new`, and no `tpl`                      the prepared list, whole: it gets its name
    UNUSED_LIST       `tpl.new` beside `tpl`                       means nothing
    UNMADE_JOURNAL    no queue's journal, and never written to     a queue that was being made: it is removed
    MARKED_JOURNAL    no queue's journal, and marked as deleted    a queue that was being deleted, or a resize that did
                                                                   not come to its switch: it is removed
    REPLACED_JOURNAL  no queue's journal, and the queue has one    a resize or a rebuild, behind its switch: all that
                      with a higher incarnation                    is in it is in the other. It is kept aside
    WITHDRAWN_JOURNAL a queue's journal, marked as deleted,        a queue that was refused, since the catalogue could
                      and without its info file                    not be written, and is in it all the same: it gets an
                                                                   empty journal

Nothing of this is damage. Nothing counts twice: of a queue's journals, of two lists, of two stores a reader has one.
What is in `resized.new`, `resized`, `orphans` and `quarantine` is never read as a part of the store.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from enum import Enum
from typing import Final

from store.disk import Disk
from store.journal.journal import Journal

ROOT: Final = "rhm"
STORE: Final = "STORE"
NEW, DISCARDED, CONVERTED = "rhm.new", "rhm.discarded", "rhm.version-1"
LIST: Final = "tpl"
NEW_LIST: Final = "tpl.new"
KEPT: Final = "resized"  # where journals are kept that were replaced


class Unfinished(Enum):
    """A state, and how it is told."""

    NEW_STORE = "a store that is whole and has not got its name yet, which the next start gives it"
    BEGUN_STORE = "the beginning of a store that was being made, which the next start removes"
    DISCARDED_STORE = "what is left of a store that was truncated, which the next start removes"
    NEW_LIST = "the transaction prepared list, whole, which has not got its name yet; the next start gives it that"
    UNUSED_LIST = "a transaction prepared list that did not take the other's place; the next qstore-resize removes it"
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
    WITHDRAWN_JOURNAL = (
        "the journal of a queue that was refused because the catalogue could not be written, and is there all the "
        "same; it is empty, and the next start gives the queue another one"
    )

    def notice(self, path: str) -> str:
        """One line for people."""
        return f"{path}: {self.value}"


def unfinished_stores(disk: Disk, path: str) -> dict[str, Unfinished]:
    """What is unfinished in a store directory, by path. Raises OSError."""
    found = {}
    names = disk.names(path)
    if NEW in names:
        new = posixpath.join(path, NEW)
        whole = ROOT not in names and disk.is_file(posixpath.join(new, STORE))
        found[new] = Unfinished.NEW_STORE if whole else Unfinished.BEGUN_STORE
    if DISCARDED in names:
        found[posixpath.join(path, DISCARDED)] = Unfinished.DISCARDED_STORE
    return found


def unfinished_list(disk: Disk, root: str) -> Unfinished | None:
    """What the `tpl.new` of the store in `root` is, if there is one. Raises OSError."""
    if not disk.is_directory(posixpath.join(root, NEW_LIST)):
        return None
    return Unfinished.UNUSED_LIST if disk.is_directory(posixpath.join(root, LIST)) else Unfinished.NEW_LIST


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
