"""`qstore-recover`: build a clean store of what is left of another.

Exit codes: 0 nothing was lost, 1 something was lost or is in quarantine, 2 SOURCE or the command line cannot be used,
or the store cannot be built.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import click

from store.catalogue.store_directory import LOCK
from store.environment import tool_environment
from store.errors import StoreError, advice
from store.inspect.layout import UnusableInputError
from store.inspect.offline import Decisions, OfflineStore
from store.journal.directory import NotAJournalError
from store.journal.recovery import Outcome
from store.parameters import StoreParameters
from store.repair.recover.build import Recovery, check_destination, check_version_1, recover_into, store_of
from store.repair.recover.loose import find_source
from store.repair.recover.plan import OrphanPolicy, Plan, make_plan
from store.repair.recover.salts import restore_salts
from store.repair.recover.salvage import Salvage
from store.writable_disk import OsWritableDisk
from tools.check.report import plain_console
from tools.console.json_lines import JsonLines
from tools.console.progress import CountingDisk, reading_progress
from tools.entry import EXIT_DAMAGE, PathName, distribution_version, fail, failing, private_files, run
from tools.recover.objects import objects
from tools.recover.report import show_recovery

_PROGRAM: Final = "qstore-recover"
_WORDS: Final = {"commit": Outcome.COMMITTING, "rollback": Outcome.ABORTING}
_SPARE: Final = 64 << 20  # bytes that must be free besides: catalogue, prepared list

_EPILOG = """
\b
Examples:
qstore-recover /var/lib/qpidd /var/lib/qstore           all that can be saved of a crashed store
qstore-recover /var/lib/qpidd /var/lib/qstore --dry-run what would be saved, and nothing is written
qstore-recover --resolve-all rollback /var/lib/qpidd /srv/new
qstore-recover --resolve 0604…=commit /var/lib/qpidd /srv/new     (ids are shown by --dry-run)
qstore-recover /backup/jrnl /srv/new                    journals whose catalogue is lost
qstore-recover --to-version 1 /var/lib/qstore /srv/old  a store for qpidd's legacystore
qstore-recover --json /var/lib/qpidd /srv/new | jq -c 'select(.kind == "queue")'

\b
SOURCE is a store of qpidd (legacystore, linearstore) or of qstore, a directory with journals, or a journal; it is never
written to, and no broker may be running on it. DEST is made: start a broker on it with
qpidd --load-module store --data-dir DEST
What is damaged is in DEST/quarantine as it was, with an index; see qstore-quarantine.

\b
Exit codes: 0 nothing was lost, 1 something was lost or is in quarantine, 2 SOURCE or the options cannot be used.
Torn tails (acknowledged to nobody) are cut and are no loss.
"""


@click.command(_PROGRAM, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", type=PathName(readable=False))
@click.argument("destination", metavar="DEST", type=PathName(readable=False))
@click.option("--dry-run", is_flag=True, help="Show what would be recovered; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, instead of a report.")
@click.option(
    "--resolve",
    "resolutions",
    multiple=True,
    metavar="XID=commit|rollback",
    help="Decide a transaction that is in doubt, or was never prepared; its id in hexadecimal. Several times.",
)
@click.option("--resolve-all", type=click.Choice(list(_WORDS)), help="Decide all others that are in doubt.")
@click.option(
    "--orphans",
    type=click.Choice([policy.value for policy in OrphanPolicy]),
    default=OrphanPolicy.REPORT.value,
    show_default=True,
    help="What belongs to no queue: only told, kept raw in DEST/quarantine, or made queues lost.found.<id>.",
)
@click.option(
    "--to-version", type=click.Choice(["2", "1"]), default="2", show_default=True, help="1: a store that qpidd opens."
)
@click.option("-q", "--quiet", is_flag=True, help="Show only what is lost.")
@click.version_option(distribution_version(), prog_name=_PROGRAM)
@click.pass_context
def command(
    context: click.Context,
    source: str,
    destination: str,
    *,
    dry_run: bool,
    as_json: bool,
    resolutions: tuple[str, ...],
    resolve_all: str | None,
    orphans: str,
    to_version: str,
    quiet: bool,
) -> None:
    """Build a clean store in DEST of everything that can be saved of SOURCE.

    Messages keep their queues and their order. Transactions in doubt stay in doubt, unless they are resolved here.
    Reading goes on behind every damage; what is damaged is kept raw, told, and never silently gone.
    """
    began = time.monotonic()
    decisions = _decisions(resolutions, resolve_all)
    policy = OrphanPolicy(orphans)
    try:
        with private_files(), reading_progress(OsWritableDisk()) as disk:
            check_destination(disk, source, destination)
            _check_not_in_use(source)
            with closing(_open(disk, source)) as store:
                plan = _plan(disk, store, decisions, policy)
                version = int(to_version)
                if version == 1:
                    check_version_1(plan)
                if dry_run:
                    salvage = Salvage(None)
                    salvage.gaps(plan.recovered)
                    if policy is OrphanPolicy.ASIDE:
                        salvage.unprepared(plan)
                    recovery = Recovery(plan, salvage, damage=plan.damage)
                else:
                    recovery = _recover(disk, plan, destination, policy, version)
    except (UnusableInputError, NotAJournalError, StoreError) as error:
        fail(_PROGRAM, str(error))
    except OSError as error:
        fail(_PROGRAM, f"{error.filename or source}: {error.strerror or error}{advice(error)}")
    _show(recovery, None if dry_run else destination, time.monotonic() - began, as_json=as_json, quiet=quiet)
    context.exit(0 if recovery.is_complete else EXIT_DAMAGE)


def _check_not_in_use(source: str) -> None:
    """Whether a broker has the store. Nothing is written for that. Raises StoreError."""
    path = Path(store_of(str(Path(source).resolve())), LOCK)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return  # nobody has it who goes by this file
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(f"{source}: a broker is running on this store; stop it first") from None
    finally:
        os.close(descriptor)


def _decisions(resolutions: Sequence[str], resolve_all: str | None) -> Decisions:
    outcomes: dict[bytes, Outcome] = {}
    for text in resolutions:
        xid, _, word = text.rpartition("=")
        try:
            number = bytes.fromhex(xid)
        except ValueError:
            number = b""
        if not number or word not in _WORDS:
            raise click.BadParameter(f"{text!r} is not of the form XID=commit or XID=rollback", param_hint="--resolve")
        if outcomes.setdefault(number, _WORDS[word]) is not _WORDS[word]:
            raise click.BadParameter(f"{xid} cannot be both committed and rolled back", param_hint="--resolve")
    return Decisions(outcomes, Outcome.IN_DOUBT if resolve_all is None else _WORDS[resolve_all])


def _open(disk: CountingDisk, source: str) -> OfflineStore:
    store = OfflineStore(disk, find_source(disk, source))
    for journal in store.all_journals():
        restore_salts(journal)
    return store


def _plan(disk: CountingDisk, store: OfflineStore, decisions: Decisions, policy: OrphanPolicy) -> Plan:
    disk.expect("reading journals", store.size)
    recovered = store.recover(decisions)
    known = {each.xid: each for each in recovered.transactions}
    for xid in decisions.outcomes:
        if xid not in known:
            raise StoreError(f"--resolve {xid.hex()}: there is no such open transaction; see --dry-run")
        if known[xid].resolved_from is None:
            state = known[xid].outcome.value
            raise StoreError(f"--resolve {xid.hex()}: the transaction is not in doubt but {state}: that was decided")
    return make_plan(recovered, policy, StoreParameters())


def _recover(disk: CountingDisk, plan: Plan, destination: str, policy: OrphanPolicy, version: int) -> Recovery:
    parent = Path(destination.rstrip("/") or "/").parent
    free = shutil.disk_usage(parent).free
    if plan.size + _SPARE > free:
        needed = f"{plan.size:,} bytes of journals are to be made, and {free:,} are free"
        raise StoreError(f"{parent}: {needed}; make room, or name a directory on another disk")
    if Path(destination).is_mount():
        raise StoreError(f"{destination}: another disk is mounted there; name a new directory on it")
    return recover_into(
        tool_environment(),
        disk,
        plan,
        destination,
        version=version,
        orphans=policy,
        parameters=StoreParameters(),
        software_version=distribution_version(),
        stage=disk.expect,
    )


def _show(recovery: Recovery, target: str | None, seconds: float, *, as_json: bool, quiet: bool) -> None:
    with failing(_PROGRAM):
        if not as_json:
            show_recovery(plain_console(), recovery, target, seconds, quiet=quiet)
            return
        output = JsonLines(sys.stdout.buffer)
        for fields in objects(recovery):
            output.show(fields)
        output.flush()


def main() -> None:
    """The console script."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
