"""`qstore-backup`: back up a store that is not running, completely or what is new.

Exit codes: 0 there is a new backup, 2 the store, the place or the command line is unusable.
"""

from __future__ import annotations

import sys
import time
from typing import Final

import click

from qstore import __version__
from qstore.formats.wording import plural
from qstore.store.backup.create import BackupResult, StoreBackup
from qstore.store.backup.retention import Removed, keep_latest
from qstore.store.disk import OsDisk
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError, advice
from qstore.store.inspect.in_use import holder_of_store
from qstore.store.inspect.layout import UnusableInputError, find_layout
from qstore.tools.backup.places import open_repository, workers
from qstore.tools.console.json_lines import JsonLines
from qstore.tools.console.progress import bytes_progress
from qstore.tools.console.text import printable
from qstore.tools.entry import PathName, failing, private_files, run

_PROGRAM: Final = "qstore-backup"

_EPILOG = """
\b
Examples:
qstore-backup /var/lib/qstore /backup/qstore               what is new since earlier backups; the first time everything
qstore-backup /var/lib/qstore /backup/qstore --keep 14     and keep the latest 14 backups of this store
qstore-backup /var/lib/qstore /backup/qstore --full --verify
qstore-backup /var/lib/qpidd s3://bucket/qpidd
qstore-restore /backup/qstore --list

\b
STORE is a store of qpidd (legacystore, linearstore) or of qstore; no broker may be running on it, and nothing in it is
changed. PLACE is a directory, or a URL that fsspec knows; it may have backups of many stores. Every backup can be
restored by itself. After a kill run the same command again: what was written is used. Backups are compressed, and not
encrypted: choose a medium that is.

\b
Exit codes: 0 there is a new backup, 2 STORE, PLACE or the command line is unusable: there is no new backup.
"""


@click.command(_PROGRAM, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("store", metavar="STORE", type=PathName(readable=False))
@click.argument("place", metavar="PLACE", type=PathName(readable=False))
@click.option(
    "--full", is_flag=True, help="Read all journals, also those that were not written to since the last backup."
)
@click.option("--verify", is_flag=True, help="Read all chunks of the backup back before it counts.")
@click.option(
    "--keep", type=click.IntRange(1), metavar="N", help="Afterwards keep only the latest N backups of this store."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of a report.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing.")
@click.version_option(__version__, prog_name=_PROGRAM)
def command(store: str, place: str, *, full: bool, verify: bool, keep: int | None, as_json: bool, quiet: bool) -> None:
    """Back up STORE to PLACE."""
    began = time.monotonic()
    removed: Removed | None = None
    with failing(_PROGRAM, StoreError, UnusableInputError, advise=advice), private_files():
        environment = tool_environment()
        holder = holder_of_store(find_layout(OsDisk(), store))
        if holder is not None:
            raise StoreError(f"{store}: process {holder} has this store open: stop the broker first")
        repository = open_repository(environment.disk, place)
        lock = repository.lock()
        try:
            with bytes_progress() as (stage, advance):
                result = StoreBackup(
                    environment,
                    OsDisk(),
                    store,
                    repository,
                    __version__,
                    workers=workers(),
                    stage=stage,
                    advance=advance,
                ).run(full=full, verify=verify)
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
    output = JsonLines(sys.stdout.buffer)
    output.show(
        {
            "kind": "backup",
            "id": manifest.id,
            "store": manifest.store,
            "format": manifest.kind,
            "created": manifest.created,
            "based_on": manifest.based_on,
            "files": len(manifest.files),
            "bytes": manifest.size,
            "new_bytes": result.new,
            "written_bytes": result.written,
            "removed": [] if removed is None else removed.backups,
            "removed_chunks": 0 if removed is None else removed.chunks,
        }
    )
    output.flush()


def _show(result: BackupResult, removed: Removed | None, place: str, seconds: float) -> None:
    manifest = result.manifest
    what = f"{plural(len(manifest.files), 'file')} of {manifest.size:,} bytes, {result.new:,} of them new"
    where = f"{result.written:,} written to {printable(place)} in {seconds:.1f} s"
    click.echo(f"backup {manifest.id}: {what}, {where}")
    if removed is not None and removed.backups:
        count = plural(len(removed.backups), "older backup")
        click.echo(f"{count} removed, and {plural(removed.chunks, 'chunk')} that no other backup has")


def main() -> None:
    """Console script entry point."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
