"""`qstore-restore`: restore a backup that `qstore-backup` made; list and verify backups.

Exit codes: 0 restored, or no damage was found, 1 a backup is damaged (--verify), 2 the place, the destination or the
command line is unusable.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import click

from qstore import __version__
from qstore.formats.wording import plural
from qstore.store.backup.repository import Manifest, Repository, backup_names, check_mark, read_manifest, verify_chunks
from qstore.store.backup.restore import restore
from qstore.store.disk import OsWritableDisk
from qstore.store.errors import StoreError, advice
from qstore.tools.backup_places import open_repository
from qstore.tools.console.command import EXIT_DAMAGE, JSON, SETTINGS, PathName, failing, private_files, run
from qstore.tools.console.progress import bytes_progress
from qstore.tools.console.rows import Column, note, plain_console, print_grid, print_json
from qstore.tools.console.text import printable

_PROGRAM: Final = "qstore-restore"

_EPILOG = """
\b
Examples:
qstore-restore /backup/qstore --list
qstore-restore /backup/qstore /var/lib/restored                   the latest backup
qstore-restore /backup/qstore /var/lib/restored --backup 000007-20261124T194500Z-0a1b
qstore-restore s3://bucket/qpidd --verify                         all backups: every chunk is there and unchanged

\b
DEST appears when every byte of it is written and verified; until then it is DEST.restoring. After a kill run the same
command again: it continues. DEST has the same bytes as the store had; files are readable only by the user who restores
them. Start a broker on DEST, or look at it first: qstore-check DEST --paranoid

\b
Exit codes: 0 restored, or no damage was found, 1 a backup is damaged (--verify), 2 PLACE, DEST or the command line is
unusable.
"""


@click.command(_PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("place", metavar="PLACE", type=PathName(readable=False))
@click.argument("destination", metavar="[DEST]", type=PathName(readable=False), required=False)
@click.option("--backup", "wanted", metavar="ID", help="This backup.  [default: the latest; with --verify: all]")
@click.option("--store", "of_store", metavar="PATH", help="Use backups of this store, if PLACE has those of several.")
@click.option("--list", "lists", is_flag=True, help="List the backups.")
@click.option("--verify", is_flag=True, help="Read all chunks, and report damaged ones; restore nothing.")
@JSON
@click.version_option(__version__, prog_name=_PROGRAM)
@click.pass_context
def command(
    context: click.Context,
    place: str,
    destination: str | None,
    *,
    wanted: str | None,
    of_store: str | None,
    lists: bool,
    verify: bool,
    as_json: bool,
) -> None:
    """Restore a backup in PLACE, a directory or a URL, to the new store directory DEST."""
    if (destination is None) is not (lists or verify) or (lists and verify):
        raise click.UsageError("give either DEST, or --list, or --verify.")
    began = time.monotonic()
    problems: list[tuple[str, str]] = []
    with failing(_PROGRAM, StoreError, advise=advice), private_files():
        disk = OsWritableDisk()
        repository = open_repository(disk, place)
        check_mark(repository)
        manifests = _manifests(repository, wanted, of_store, problems)
        if destination is not None:
            if not manifests and problems:
                raise StoreError(problems[-1][1])
            chosen = _chosen(manifests, place, of_store)
            with bytes_progress() as (stage, advance):
                stage("restoring", chosen.size)
                restore(disk, repository, chosen, destination, advance)
            manifests = [chosen]
        elif verify:
            _verify(repository, manifests, problems)
    with failing(_PROGRAM):
        if as_json:
            unread = dict(problems)
            print_json([_object(manifest, unread.pop(manifest.id, None)) for manifest in manifests])
            print_json({"kind": "backup", "id": identity, "problem": problem} for identity, problem in unread.items())
        elif destination is not None:
            what = f"{plural(len(manifests[0].files), 'file')} of {manifests[0].size:,} bytes"
            seconds = time.monotonic() - began
            click.echo(f"backup {manifests[0].id}: {what} restored to {printable(destination)} in {seconds:.1f} s")
        else:
            _show(manifests, verify=verify)
        for _, problem in problems if not as_json else ():
            note("damage", problem)
    if problems and destination is None:
        context.exit(EXIT_DAMAGE)


def _manifests(
    repository: Repository, wanted: str | None, of_store: str | None, problems: list[tuple[str, str]]
) -> list[Manifest]:
    """The manifests that can be read, the oldest first."""
    found = []
    for identity in [wanted] if wanted is not None else backup_names(repository):
        try:
            manifest = read_manifest(repository, identity)
        except StoreError as error:
            if wanted is not None:
                raise
            problems.append((identity, str(error)))
            continue
        if of_store is None or manifest.store == of_store:
            found.append(manifest)
    return found


def _chosen(manifests: Sequence[Manifest], place: str, of_store: str | None) -> Manifest:
    """The latest backup, if it is clear of which store."""
    stores = {manifest.store for manifest in manifests}
    if not manifests:
        of = "" if of_store is None else f" of {of_store}; --list shows those of others"
        raise StoreError(f"{place}: there is no backup{of}")
    if len(stores) > 1:
        listed = ", ".join(sorted(stores)[:5])
        raise StoreError(f"{place}: there are backups of {len(stores)} stores ({listed}): choose one with --store")
    return manifests[-1]


def _verify(repository: Repository, manifests: Sequence[Manifest], problems: list[tuple[str, str]]) -> None:
    with bytes_progress() as (stage, advance):
        stage("verifying", sum(manifest.size for manifest in manifests))
        for manifest in manifests:
            try:
                verify_chunks(repository, manifest, advance)
            except StoreError as error:
                problems.append((manifest.id, f"backup {manifest.id}: {error}"))


def _object(manifest: Manifest, problem: str | None) -> dict[str, Any]:
    return {
        "kind": "backup",
        "id": manifest.id,
        "store": manifest.store,
        "format": manifest.kind,
        "created": manifest.created,
        "based_on": manifest.based_on,
        "files": len(manifest.files),
        "bytes": manifest.size,
        "problem": problem,
    }


_COLUMNS: Final = (
    Column("BACKUP", lambda manifest: manifest.id),
    Column("STORE", lambda manifest: printable(manifest.store), folds=True),
    Column("FORMAT", lambda manifest: manifest.kind),
    Column("FILES", lambda manifest: f"{len(manifest.files):,}", number=True),
    Column("BYTES", lambda manifest: f"{manifest.size:,}", number=True),
)


def _show(manifests: Sequence[Manifest], *, verify: bool) -> None:
    if manifests:
        print_grid(plain_console(), _COLUMNS, manifests)
    click.echo(f"{plural(len(manifests), 'backup')}{' verified' if verify else ''}")


def main() -> None:
    """Console script entry point."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
