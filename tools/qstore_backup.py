"""`qstore-backup`: back up a store, or that of a running broker, completely or what is new.

Exit codes: 0 there is a new backup, 2 the store, the broker, the place or the command line is unusable.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import MessagingError
from qstore.broker.management.console import AgentError, Console, Data
from qstore.formats.wording import plural
from qstore.store.backup.create import BackupResult, Effort, LinuxMachine, Pace, StoreBackup
from qstore.store.backup.repository import MAX_UNSYNCED, Removed, keep_latest
from qstore.store.backup.sources import OvertakenError, RunningSource, stopped_store
from qstore.store.disk import OsDisk
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError, advice
from qstore.store.inspect.layout import UnusableInputError, find_layout, holder_of_store
from qstore.store.repair.stopped_store import reported_errors
from qstore.tools.backup_places import is_local, open_repository, workers
from qstore.tools.console.broker import broker_url, security_options, take_security, timeout_option
from qstore.tools.console.command import JSON, QUIET, SETTINGS, PathName, failing, private_files, run
from qstore.tools.console.progress import bytes_progress
from qstore.tools.console.rows import print_json
from qstore.tools.console.text import printable

_PROGRAM: Final = "qstore-backup"
_NICENESS: Final = 15  # for a running broker: a thread has then a thirtieth of the share of others (sched(7))
_GENTLE_UNSYNCED: Final = 4 << 20  # bytes: the broker's own syncs wait for those that are under way

_EPILOG = """
\b
Examples:
qstore-backup /var/lib/qstore /backup/qstore               what is new since earlier backups; the first time everything
qstore-backup /var/lib/qstore /backup/qstore --keep 14     and keep the latest 14 backups of this store
qstore-backup /var/lib/qstore /backup/qstore --full --verify
qstore-backup /var/lib/qpidd s3://bucket/qpidd
qstore-backup amqp://admin/secret@localhost /backup/qstore  a running broker, on this machine
qstore-backup amqp://localhost /backup/qstore --full-speed  do not pause for other load
qstore-restore /backup/qstore --list

\b
STORE is a store of qpidd (legacystore, linearstore) or of qstore; no broker may be running on it, and nothing in it
is changed. Or it is the URL of a running qstore broker: all queues are backed up as they are at one moment, and the
broker keeps running. This command reads the broker's files itself, so run it on the same machine, as the same user or
as root; it pauses while the machine is busy (not with --full-speed) and runs at low priority (--nice); --max-rate
limits reading. PLACE is a directory, or a URL that fsspec knows; it may hold backups of many stores. Every backup can
be restored on its own. After a kill run the same command again: it reuses what was written. Backups are compressed,
and not encrypted: choose a medium that is.

\b
Exit codes: 0 there is a new backup, 2 STORE, the broker, PLACE or the command line is unusable: there is no new backup.
"""


@click.command(_PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("store", metavar="STORE|URL", type=PathName(readable=False))
@click.argument("place", metavar="PLACE", type=PathName(readable=False))
@click.option("--full", is_flag=True, help="Read everything, even if it has not changed since the last backup.")
@click.option("--verify", is_flag=True, help="Read back and verify all chunks before the backup counts.")
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Then keep only the latest N backups of this store.")
@click.option(
    "--store-dir",
    metavar="DIR",
    type=PathName(readable=False),
    help="Where a running broker's store directory is on this machine.  [default: where the broker says]",
)
@click.option(
    "--nice",
    type=click.IntRange(0, 19),
    metavar="N",
    help=f"Niceness of this process.  [default: {_NICENESS} for a running broker, else 0]",
)
@click.option("--full-speed", is_flag=True, help="Of a running broker: do not pause while the machine is busy.")
@click.option("--max-rate", type=click.IntRange(1), metavar="MIB", help="Read at most MIB MiB per second.")
@timeout_option("-t", "--timeout", default=30.0)
@security_options
@JSON
@QUIET
@click.version_option(__version__, prog_name=_PROGRAM)
def command(
    store: str,
    place: str,
    *,
    full: bool,
    verify: bool,
    keep: int | None,
    store_dir: str | None,
    nice: int | None,
    full_speed: bool,
    max_rate: int | None,
    timeout: float,
    as_json: bool,
    quiet: bool,
    **values: Any,
) -> None:
    """Back up STORE, or the store of the running broker at URL (amqp://[user/password@]host[:port]), to PLACE."""
    began = time.monotonic()
    removed: Removed | None = None
    broker = broker_url(store)
    is_running = broker is not None
    security = take_security(values)
    if not is_running and (store_dir is not None or security):
        raise click.UsageError("--store-dir and the options of SASL and TLS apply to a running broker.")
    niceness = _NICENESS * is_running if nice is None else nice
    pace = Pace(LinuxMachine(), is_local=is_local(place)) if is_running and not full_speed else None
    count = 1 if pace is not None and is_local(place) else workers()
    effort = Effort(count, niceness, (max_rate or 0) << 20, pace)
    with failing(_PROGRAM, StoreError, UnusableInputError, MessagingError, advise=advice), private_files():
        environment = tool_environment()
        holder = None if is_running else holder_of_store(find_layout(OsDisk(), store))
        if holder is not None:
            text = "stop the broker first, or back it up by its URL, amqp://HOST:PORT"
            raise StoreError(f"{store}: process {holder} has this store open: {text}")
        repository = open_repository(environment.disk, place, MAX_UNSYNCED if pace is None else _GENTLE_UNSYNCED)
        lock = repository.lock()
        try:
            with bytes_progress() as (stage, advance):
                backup = StoreBackup(environment, repository, __version__, effort=effort, stage=stage, advance=advance)
                if broker is not None:
                    with Console(broker.text, timeout=timeout, connect_timeout=timeout, **security) as console:
                        result = BrokerBackup(console, broker.shown, store_dir).run(backup, full=full, verify=verify)
                else:
                    with reported_errors(store), stopped_store(environment, OsDisk(), store) as source:
                        result = backup.run(source, full=full, verify=verify)
            if keep is not None:
                removed = keep_latest(repository, result.manifest.store, keep)
        finally:
            lock.release()
    with failing(_PROGRAM):
        if as_json:
            _show_json(result, removed)
        elif not quiet:
            _show(result, removed, place, time.monotonic() - began)


def _show_json(result: BackupResult, removed: Removed | None) -> None:
    manifest = result.manifest
    print_json(
        [
            {
                "kind": "backup",
                "id": manifest.id,
                "store": manifest.store,
                "format": manifest.kind,
                "created": manifest.created,
                "running": manifest.live,
                "based_on": manifest.based_on,
                "files": len(manifest.files),
                "bytes": manifest.size,
                "new_bytes": result.new,
                "written_bytes": result.written,
                "removed": [] if removed is None else removed.backups,
                "removed_chunks": 0 if removed is None else removed.chunks,
            }
        ]
    )


def _show(result: BackupResult, removed: Removed | None, place: str, seconds: float) -> None:
    manifest = result.manifest
    what = f"{plural(len(manifest.files), 'file')} of {manifest.size:,} bytes, {result.new:,} of them new"
    where = f"{result.written:,} written to {printable(place)} in {seconds:.1f} s"
    click.echo(f"backup {manifest.id}: {what}, {where}")
    if removed is not None and removed.backups:
        count = plural(len(removed.backups), "older backup")
        click.echo(f"{count} removed, and {plural(removed.chunks, 'chunk')} that no other backup has")


# ---- a running broker: its agent takes a snapshot, whose files this process reads ----
#
# The broker keeps running; its journals grow instead of overwriting what the snapshot has. A journal that cannot
# grow (of fixed size, or because the disk is full) may be overwritten before it was read: then there is another
# snapshot, of which that journal is read first, and what was read correctly from the earlier one is not read again.

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
    def _snapshot(self, agent: Data, first: Collection[int]) -> Iterator[RunningSource]:
        taken = self._console.call(agent, "begin", timeout=_BEGIN_SECONDS)
        number, is_over = taken["snapshot"], False

        def end() -> None:
            nonlocal is_over
            is_over = True
            self._console.call(agent, "end", snapshot=number)

        try:
            copied = partial(self._copied, agent, number)
            yield RunningSource(OsDisk(), self._directory or taken["directory"], taken["path"], copied, end, first)
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


def main() -> None:
    """Console script entry point."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
