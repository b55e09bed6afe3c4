"""Short names of objects: numbers that last as long as the shell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qstore.broker.management.console import NoObjectError, ObjectId

_FIRST: Final = 101
_MOST: Final = 100_000


class Identities:
    """Numbers of objects, in the order in which they are first shown."""

    def __init__(self) -> None:
        self._numbers: dict[ObjectId, int] = {}
        self._objects: dict[int, ObjectId] = {}

    def number(self, identity: ObjectId) -> int:
        """The number of an object. Of very many objects, the oldest lose theirs."""
        found = self._numbers.get(identity)
        if found is None:
            found = self._numbers[identity] = _FIRST if not self._objects else next(reversed(self._objects)) + 1
            self._objects[found] = identity
            if len(self._objects) > _MOST:
                oldest = next(iter(self._objects))
                del self._numbers[self._objects.pop(oldest)]
        return found

    def find(self, number: int) -> ObjectId:
        """The object with a number. Raises NoObjectError if there is none."""
        if number not in self._objects:
            raise NoObjectError(f"no object has the number {number}: numbers are given by list")
        return self._objects[number]

    def find_all(self, word: str) -> Iterator[ObjectId]:
        """The objects with a number, or those in a range, 101-110. Raises NoObjectError if there are none."""
        first, _, last = word.partition("-")
        if not last:
            yield self.find(int(first))
            return
        found = [each for number, each in self._objects.items() if int(first) <= number <= int(last)]
        if not found:
            raise NoObjectError(f"no object has a number from {first} to {last}")
        yield from found

    def items(self) -> Iterator[tuple[int, ObjectId]]:
        """All numbers and their objects."""
        yield from self._objects.items()


def is_number(word: str) -> bool:
    """Whether a word is a number, or a range of them."""
    first, hyphen, last = word.partition("-")
    parts = (first, last) if hyphen else (first,)
    return all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts)
