"""The three journal formats that can be read."""

from __future__ import annotations

from enum import IntEnum


class JournalFormat(IntEnum):
    """The format of a journal. The values of the first two are the version numbers in their files."""

    VERSION_1 = 1  # qpidd's legacystore: a ring of files (formats.rhm)
    VERSION_2 = 2  # qstore's own: the same ring, with checksums
    LINEAR = 3  # qpidd's linearstore: a line of files (formats.qls); its own version number is 2

    @property
    def label(self) -> str:
        """The format's name, as tools print it."""
        return _LABELS[self]

    @property
    def keeps_rid_order(self) -> bool:
        """Whether recovery orders a queue's messages by record id, and not by log offset."""
        return self is not JournalFormat.VERSION_1


_LABELS = {
    JournalFormat.VERSION_1: "legacystore",
    JournalFormat.VERSION_2: "qstore",
    JournalFormat.LINEAR: "linearstore",
}
