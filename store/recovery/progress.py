"""How far a start is, while it reads journals: for the log and the service manager, which the broker tells.

A start of millions of messages takes seconds to minutes. The broker passes a function that decides how often anybody is
told, and makes the text only then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from qstore.formats.wording import plural, printable

if TYPE_CHECKING:
    from qstore.store.journal.recovery import JournalRecovery

#: Receives what makes the text, such as "reading ...".
TellProgress: TypeAlias = Callable[[Callable[[], str]], None]


def not_told(_make_text: Callable[[], str]) -> None:
    """Tell nobody."""


class StartProgress:
    """The progress of one start.

    Args:
        tell: tells it.

    Attributes:
        journals: how many there are.
    """

    __slots__ = ("_found", "_number", "_tell", "journals")

    def __init__(self, tell: TellProgress = not_told) -> None:
        self._tell = tell
        self.journals = self._number = self._found = 0

    def begin(self) -> None:
        """The next journal is opened."""
        self._number += 1
        self._tell(lambda: f"opening journal {self._number:,} of {self.journals:,}")

    def walked(self, name: str, place: int, size: int, recovery: JournalRecovery) -> None:
        """A journal is read up to a log offset, of so many bytes."""

        def text() -> str:
            found, percent = self._found + len(recovery.messages), 100 * place // max(1, size)
            which = f'{self._number:,} of {self.journals:,}, "{printable(name)}"'
            return f"reading journal {which}: {percent} %; {plural(found, 'message')} so far"

        self._tell(text)

    def ended(self, recovery: JournalRecovery) -> None:
        """A journal is read."""
        self._found += len(recovery.messages)

    def preparing(self, number: int, count: int, name: str) -> None:
        """A journal is made ready for new records."""
        self._tell(lambda: f'preparing journal {number:,} of {count:,}, "{printable(name)}"')

    def converting(self, number: int, count: int, name: str) -> None:
        """A queue of a store of version 1 is converted."""
        self._tell(lambda: f'converting queue {number:,} of {count:,}, "{printable(name)}"')

    def rebuilding(self, path: str) -> None:
        """A damaged journal is rebuilt."""
        self._tell(lambda: f"rebuilding {printable(path)}")
