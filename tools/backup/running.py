"""The backup of a running broker: its agent takes a snapshot of the store, whose files this process reads.

The broker goes on meanwhile; its journals grow instead of overwriting what the snapshot has. A journal that cannot grow
(of fixed size, or because the disk is full) may be overwritten before it was read: then there is another snapshot, of
which that journal is read first, and what is known to be right of the earlier one is not read again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Final

from qstore.broker.client import MessagingError
from qstore.broker.management.console import AgentError, Console, Data
from qstore.store.backup.create import BackupResult, StoreBackup
from qstore.store.backup.running import OvertakenError, RunningStore
from qstore.store.disk import OsDisk
from qstore.store.errors import StoreError

_ATTEMPTS: Final = 5
_BEGIN_SECONDS: Final = 120.0  # time limit of a snapshot


class BrokerBackup:
    """The backup of a running broker.

    Args:
        console: reaches it.
        where: its URL, for errors.
        directory: where its store directory is on this machine; None for where the broker says.
    """

    def __init__(self, console: Console, where: str, directory: str | None) -> None:
        self._console, self._where, self._directory = console, where, directory

    def run(self, backup: StoreBackup, *, full: bool, verify: bool) -> BackupResult:
        """Make it.

        Raises:
            StoreError: it cannot be made.
            MessagingError: the connection has failed, or the broker has refused.
        """
        agent = self._agent()
        first: set[int] = set()
        for number in range(1, _ATTEMPTS + 1):
            with self._snapshot(agent, first) as source:
                try:
                    return backup.run(source, full=full, verify=verify)
                except OvertakenError as error:
                    if number == _ATTEMPTS:
                        raise
                    first |= error.queue_ids
        raise AssertionError("the last attempt has returned or raised")

    def _agent(self) -> Data:
        for found in self._console.query("backup", package="qstore"):
            return found
        raise StoreError(f"{self._where}: this broker has no store that can be backed up while it is running")

    @contextlib.contextmanager
    def _snapshot(self, agent: Data, first: Collection[int]) -> Iterator[RunningStore]:
        taken = self._console.call(agent, "begin", timeout=_BEGIN_SECONDS)
        number, is_over = taken["snapshot"], False

        def end() -> None:
            nonlocal is_over
            is_over = True
            self._console.call(agent, "end", snapshot=number)

        try:
            copied = partial(self._copied, agent, number)
            yield RunningStore(OsDisk(), self._directory or taken["directory"], taken["path"], copied, end, first)
        finally:
            if not is_over:
                with contextlib.suppress(MessagingError):  # then the broker ends it
                    end()

    def _copied(self, agent: Data, number: int, queue_ids: Sequence[int]) -> Collection[int]:
        try:
            answer = self._console.call(agent, "copied", snapshot=number, queues=list(queue_ids))
        except AgentError as error:
            raise StoreError(f"{self._where}: {error}; run the same command again") from None
        overtaken: list[int] = answer["overtaken"]
        return overtaken
