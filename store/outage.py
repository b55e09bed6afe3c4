"""What fails for a while is told twice: when it fails first, and when it works again.

Whoever asks for something that fails gets an error each time; the log, which an operator watches, gets one critical
line with what to do, and a notice when it is over.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from store.key_value import CatalogueError, KeyValue, MapDamage
from store.log_lines import Level, LogLine

_ADVICE: Final = {
    errno.ENOSPC: "the disk is full: make room",
    errno.EDQUOT: "the quota is used up: make room",
    errno.EROFS: "the file system is read-only (see the kernel's log): repair it, and restart the broker",
    errno.EIO: "the disk fails (see the kernel's log): replace it, and restart the broker",
}
_OTHERWISE: Final = "see whether the disk is full, read-only or failing"


def advice(error: OSError | None = None) -> str:
    """What to do about a disk that fails, by the error, if there is one of the system."""
    return _OTHERWISE if error is None or error.errno is None else _ADVICE.get(error.errno, _OTHERWISE)


class Outage:
    """Whether something works, as the log was told.

    Args:
        what: what cannot be done: `the catalogue cannot be written`.
        again: what is said when it can: `the catalogue is written again`.
        log: takes lines for the log.
    """

    __slots__ = ("_again", "_is_out", "_log", "_what")

    def __init__(self, what: str, again: str, log: Callable[[LogLine], None]) -> None:
        self._what, self._again, self._log = what, again, log
        self._is_out = False

    def failed(self, reason: str, to_do: str) -> None:
        """It was tried, and cannot be done."""
        if not self._is_out:
            self._is_out = True
            self._log(LogLine(Level.CRITICAL, f"{self._what}: {reason}; {to_do}"))

    def worked(self) -> None:
        """It was tried, and done."""
        if self._is_out:
            self._is_out = False
            self._log(LogLine(Level.NOTICE, self._again))


class WatchedKeyValue:
    """A `KeyValue` whose failing writes are logged.

    Args:
        inner: the map.
        log: takes lines for the log, from any thread.
    """

    __slots__ = ("_inner", "_outage")

    def __init__(self, inner: KeyValue, log: Callable[[LogLine], None]) -> None:
        self._inner = inner
        what = "the catalogue cannot be written, and queues, exchanges and bindings cannot be made or deleted"
        self._outage = Outage(what, "the catalogue can be written again", log)

    @property
    def damage(self) -> tuple[MapDamage, ...]:
        """As the inner one's."""
        return self._inner.damage

    def get(self, key: bytes) -> bytes | None:
        """As the inner one's."""
        return self._inner.get(key)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As the inner one's."""
        return self._inner.items(prefix)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """As the inner one's."""
        try:
            self._inner.write(changes)
        except CatalogueError as error:
            self._outage.failed(str(error), f"{advice()}, and restart the broker if it does not go on by itself")
            raise
        self._outage.worked()

    def checkpoint(self, directory: str) -> None:
        """As the inner one's."""
        self._inner.checkpoint(directory)

    def close(self) -> None:
        """As the inner one's."""
        self._inner.close()
