"""Journals without a store: the remains if the catalogue, or all but some directories, are lost.

Their info files hold names and sizes, and in version 2 the whole queue record; for a linearstore the files themselves
do.
"""

from __future__ import annotations

from qstore.formats.rhm.jinf import TPL_BASE_NAME
from qstore.store.disk import Disk
from qstore.store.inspect.layout import (
    StoreKind,
    StoreLayout,
    UnusableInputError,
    find_journals,
    find_layout,
    tell_recovery,
)
from qstore.store.journal.directory import journal_base_names


def find_source(disk: Disk, path: str) -> StoreLayout:
    """Find the source at `path`: a store, a journal, a journal file, or a directory with journals somewhere below it.

    Raises:
        UnusableInputError: nothing that can be recovered.
        OSError: it cannot be examined.
    """
    try:
        return find_layout(disk, path)
    except UnusableInputError:
        if not disk.is_directory(path):
            raise
        layout = StoreLayout(StoreKind.LOOSE, path)
        find_journals(disk, path, layout)
        if not layout.journals:
            raise
        tell_recovery(disk, layout)
    _find_prepared_list(disk, layout)
    return layout


def _find_prepared_list(disk: Disk, layout: StoreLayout) -> None:
    """Find the prepared list by the name of its files."""
    for place in list(layout.journals):
        if journal_base_names(disk.names(place.directory)) != [TPL_BASE_NAME]:
            continue
        layout.journals.remove(place)
        if layout.prepared_list is None:
            layout.prepared_list = place.directory
        else:
            layout.notices.append(f"{place.directory}: a second transaction prepared list, which is not read")
