"""Logs a persistent failure twice: when it first occurs, and when it is over.

Each failing request returns an error; the log, which an operator watches, gets one critical line with advice, and a
notice when the failure is over.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from qstore.store.key_value import CatalogueError, KeyValue, MapDamage
from qstore.store.log_lines import Level, LogLine

_ADVICE: Final = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the quota is exhausted: free some space",
    errno.EROFS: "the file system is read-only (see the kernel log): repair it, and restart the broker",
    errno.EIO: "the disk is failing (see the kernel log): replace it, and restart the broker",
}
_OTHERWISE: Final = "check whether the disk is full, read-only or failing"


def advice(error: OSError | None = None) -> str:
    """What to do about a failing disk; `error` is the OSError, if there is one."""
    return _OTHERWISE if error is None or error.errno is None else _ADVICE.get(error.errno, _OTHERWISE)


class Outage:
    """The state of one function as last logged: working or failing.

    Args:
        what: the failure: `the catalogue cannot be written`.
        again: the notice when it is over: `the catalogue can be written again`.
        log: receives log lines.
    """

    __slots__ = ("_again", "_is_out", "_log", "_what")

    def __init__(self, what: str, again: str, log: Callable[[LogLine], None]) -> None:
        self._what, self._again, self._log = what, again, log
        self._is_out = False

    def failed(self, reason: str, to_do: str) -> None:
        """An attempt failed."""
        if not self._is_out:
            self._is_out = True
            self._log(LogLine(Level.CRITICAL, f"{self._what}: {reason}; {to_do}"))

    def worked(self) -> None:
        """An attempt succeeded."""
        if self._is_out:
            self._is_out = False
            self._log(LogLine(Level.NOTICE, self._again))


class WatchedKeyValue:
    """A `KeyValue` that logs failing writes.

    Args:
        inner: the map.
        log: receives log lines, from any thread.
    """

    __slots__ = ("_inner", "_outage")

    def __init__(self, inner: KeyValue, log: Callable[[LogLine], None]) -> None:
        self._inner = inner
        what = "the catalogue cannot be written, and queues, exchanges and bindings cannot be created or deleted"
        self._outage = Outage(what, "the catalogue can be written again", log)

    @property
    def damage(self) -> tuple[MapDamage, ...]:
        """See `KeyValue`."""
        return self._inner.damage

    def get(self, key: bytes) -> bytes | None:
        """See `KeyValue`."""
        return self._inner.get(key)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See `KeyValue`."""
        return self._inner.items(prefix)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """See `KeyValue`; a failure is logged."""
        try:
            self._inner.write(changes)
        except CatalogueError as error:
            self._outage.failed(str(error), f"{advice()}, and restart the broker if it does not resume by itself")
            raise
        self._outage.worked()

    def checkpoint(self, directory: str) -> None:
        """See `KeyValue`."""
        self._inner.checkpoint(directory)

    def close(self) -> None:
        """See `KeyValue`."""
        self._inner.close()
