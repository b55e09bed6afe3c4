"""`qstore-recover`: build a clean store from the recoverable content of another.

Exit codes: 0 nothing was lost, 1 something was lost or quarantined, 2 SOURCE or the command line is unusable, or DEST
cannot be built.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from qstore import __version__
from qstore.formats.rhm.geometry import FILE_HEADER_SIZE, PAGE_SIZE
from qstore.formats.wording import plural
from qstore.store.catalogue.store_directory import LOCK
from qstore.store.disk import OsWritableDisk
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError, advice
from qstore.store.inspect.layout import UnusableInputError
from qstore.store.inspect.offline import Decisions, OfflineStore, RecoveredTransaction
from qstore.store.journal.directory import NotAJournalError
from qstore.store.journal.recovery import Outcome
from qstore.store.parameters import StoreParameters
from qstore.store.repair.recover.build import (
    Recovery,
    Salvage,
    check_destination,
    check_version_1,
    recover_into,
    store_of,
)
from qstore.store.repair.recover.plan import (
    LostBinding,
    Orphan,
    OrphanPolicy,
    PlannedQueue,
    RecoveryPlan,
    find_source,
    make_plan,
)
from qstore.store.repair.recover.salts import restore_salts
from qstore.tools.console.command import (
    DRY_RUN,
    EXIT_DAMAGE,
    JSON,
    QUIET,
    SETTINGS,
    PathName,
    fail,
    failing,
    private_files,
    run,
)
from qstore.tools.console.progress import CountingDisk, reading_progress
from qstore.tools.console.rows import (
    Column,
    Object,
    number,
    plain_console,
    print_grid,
    print_json,
    print_some,
)
from qstore.tools.console.text import printable
from qstore.tools.dump.rows import (
    damage_object,
    notice_object,
    show_damage,
    show_notices,
    transaction_object,
)
from qstore.tools.qstore_size import exact_number, pages

_PROGRAM: Final = "qstore-recover"
_WORDS: Final = {"commit": Outcome.COMMITTING, "rollback": Outcome.ABORTING}
_SPARE: Final = 64 << 20  # bytes that must be free in addition to the journals: catalogue, prepared list

_EPILOG = """
\b
Examples:
qstore-recover /var/lib/qpidd /var/lib/saved            recover a crashed or damaged store
qstore-recover /var/lib/qpidd /var/lib/saved --dry-run  show what would be recovered; write nothing
qstore-recover --resolve-all rollback /var/lib/qpidd /srv/new
qstore-recover --resolve 0604…=commit /var/lib/qpidd /srv/new     (--dry-run shows the ids)
qstore-recover /backup/jrnl /srv/new                    journals whose catalogue is lost
qstore-recover --to-version 1 /var/lib/qstore /srv/old  write a store for qpidd's legacystore
qstore-recover --json /var/lib/qpidd /srv/new | jq -c 'select(.kind == "queue")'

\b
SOURCE is a store of qpidd (legacystore, linearstore) or of qstore, a directory with journals, or a journal. It is
never written to; no broker may be running on it. It must not change during the recovery.
DEST is created when it is complete; until then it is DEST.recovering, on which no broker starts. After a kill run the
same command again. Then start a broker on DEST:
qpidd --load-module store --data-dir DEST

\b
Damaged bytes are preserved in DEST/quarantine, with an index; see qstore-quarantine.
Exit codes: 0 nothing was lost, 1 something was lost or quarantined, 2 SOURCE or the command line is unusable, or DEST
cannot be built.
Torn tails, which were never acknowledged, are cut and do not count as lost.
"""


@click.command(_PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("source", type=PathName(readable=False))
@click.argument("destination", metavar="DEST", type=PathName(readable=False))
@DRY_RUN
@JSON
@click.option(
    "--resolve",
    "resolutions",
    multiple=True,
    metavar="XID=commit|rollback",
    help="Commit or roll back a transaction that is in doubt, or was never prepared; XID in hexadecimal. Repeatable.",
)
@click.option(
    "--resolve-all",
    type=click.Choice(list(_WORDS)),
    help="Commit or roll back all other transactions in doubt.  [default: they stay in doubt]",
)
@click.option(
    "--orphans",
    type=click.Choice([policy.value for policy in OrphanPolicy]),
    default=OrphanPolicy.REPORT.value,
    show_default=True,
    help="What to do with messages that belong to no queue: report them only, also preserve them in "
    "DEST/quarantine (aside), or create queues lost.found.<id> for them (recover).",
)
@click.option(
    "--to-version",
    type=click.Choice(["2", "1"]),
    default="2",
    show_default=True,
    help="Format version of DEST: 2 is qstore's own, 1 is a legacystore for Apache qpidd.",
)
@QUIET
@click.version_option(__version__, prog_name=_PROGRAM)
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
    """Build a clean store in DEST from everything that can be recovered from SOURCE.

    Messages stay in their queues and in order. Transactions in doubt stay in doubt, unless they are resolved here.
    Reading continues after each damaged place with the next valid record, so that one damaged record costs one record.
    Damage is always reported, and the damaged bytes are preserved.
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
    """Check that no broker has the store open, without writing anything. Raises StoreError."""
    path = Path(store_of(str(Path(source).resolve())), LOCK)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return  # the file shows no owner
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
            raise click.BadParameter(
                f"{text!r} does not have the form XID=commit or XID=rollback", param_hint="--resolve"
            )
        if outcomes.setdefault(number, _WORDS[word]) is not _WORDS[word]:
            raise click.BadParameter(f"{xid} cannot be both committed and rolled back", param_hint="--resolve")
    return Decisions(outcomes, Outcome.IN_DOUBT if resolve_all is None else _WORDS[resolve_all])


def _open(disk: CountingDisk, source: str) -> OfflineStore:
    store = OfflineStore(disk, find_source(disk, source))
    for journal in store.all_journals():
        restore_salts(journal)
    return store


def _plan(disk: CountingDisk, store: OfflineStore, decisions: Decisions, policy: OrphanPolicy) -> RecoveryPlan:
    disk.expect("reading journals", store.size)
    recovered = store.recover(decisions)
    known = {each.xid: each for each in recovered.transactions}
    for xid in decisions.outcomes:
        if xid not in known:
            raise StoreError(f"--resolve {xid.hex()}: no such open transaction; --dry-run lists them")
        if known[xid].resolved_from is None:
            state = known[xid].outcome.value
            raise StoreError(
                f"--resolve {xid.hex()}: the transaction is not in doubt but {state}: it was already decided"
            )
    return make_plan(recovered, policy, StoreParameters())


def _recover(disk: CountingDisk, plan: RecoveryPlan, destination: str, policy: OrphanPolicy, version: int) -> Recovery:
    parent = Path(destination.rstrip("/") or "/").parent
    free = shutil.disk_usage(parent).free
    if plan.size + _SPARE > free:
        needed = f"{plan.size:,} bytes of journals are needed, and {free:,} are free"
        raise StoreError(f"{parent}: {needed}; make room, or choose a directory on another disk")
    if Path(destination).is_mount():
        raise StoreError(f"{destination}: another disk is mounted there; choose a new directory on it")
    return recover_into(
        tool_environment(),
        disk,
        plan,
        destination,
        version=version,
        orphans=policy,
        parameters=StoreParameters(),
        software_version=__version__,
        stage=disk.expect,
    )


def _show(recovery: Recovery, target: str | None, seconds: float, *, as_json: bool, quiet: bool) -> None:
    with failing(_PROGRAM):
        if not as_json:
            show_recovery(plain_console(), recovery, target, seconds, quiet=quiet)
            return
        print_json(objects(recovery))


# ---- JSON ----

_RESOLVED = {Outcome.COMMITTING: "commit", Outcome.ABORTING: "rollback"}


def objects(recovery: Recovery) -> Iterator[Object]:
    """All objects; the summary is the last."""
    plan = recovery.plan
    for queue in plan.queues:
        yield queue_object(recovery, queue)
    for name, what in plan.lost_exchanges:
        yield {"kind": "exchange", "name": name, "what": what}
    for binding in plan.lost_bindings:
        yield {"kind": "binding", **binding._asdict()}
    for transaction in plan.transactions:
        yield resolved_object(transaction)
    for orphan in plan.orphans:
        yield orphan_object(orphan)
    for damage in recovery.damage:
        yield damage_object(damage)
    for notice in plan.notices:
        yield notice_object(notice)
    yield summary_object(recovery)


def queue_object(recovery: Recovery, planned: PlannedQueue) -> Object:
    """A queue of the new store."""
    built = recovery.built.get(planned.name)
    geometry = planned.queue.geometry if built is None else built.geometry
    journal = planned.found.journal
    stretches = [] if journal is None else recovery.salvage.stretches.get(journal.path, [])
    return {
        "kind": "queue",
        "name": planned.name,
        "number": planned.queue.number,
        "journal": None if journal is None else journal.path,
        "format": None if journal is None else journal.format.label,
        "messages": planned.deliverable if built is None else built.messages - built.in_doubt,
        "in_doubt": planned.in_doubt if built is None else built.in_doubt,
        "torn_tail": _torn_tail(planned),
        "quarantined": [stretch._asdict() for stretch in stretches],
        "geometry": {"files": geometry.files, "file_size": geometry.file_size},
    }


def _torn_tail(planned: PlannedQueue) -> Object | None:
    end, journal = planned.found.end, planned.found.journal
    if end is None or journal is None or not end.torn:
        return None
    file, offset = journal.stream.locate(min(end.place, journal.stream.size - 1))
    return {"file": file.path, "offset": offset, "rid": end.rid, "what": end.what}


def resolved_object(transaction: RecoveredTransaction) -> Object:
    """A transaction that was open: its state, and how it was resolved, if it was."""
    fields = transaction_object(transaction)
    fields["resolved"] = None
    if transaction.resolved_from is not None:
        fields["state"] = transaction.resolved_from.value
        fields["resolved"] = _RESOLVED[transaction.outcome]
    return fields


def orphan_object(orphan: Orphan) -> Object:
    """Content that belongs to no queue."""
    journal, transaction = orphan.found.journal, orphan.transaction
    return {
        "kind": "orphan",
        "what": orphan.what,
        "queue": orphan.found.name,
        "journal": None if journal is None else journal.path,
        "messages": orphan.messages,
        "xid": None if transaction is None else transaction.xid.hex(),
        "recovered_into": orphan.becomes,
    }


def summary_object(recovery: Recovery) -> Object:
    """The totals."""
    queues = [queue_object(recovery, queue) for queue in recovery.plan.queues]
    return {
        "kind": "summary",
        "queues": len(queues),
        "exchanges": len(recovery.plan.exchanges),
        "bindings": len(recovery.plan.bindings),
        "messages": sum(queue["messages"] for queue in queues),
        "in_doubt": sum(queue["in_doubt"] for queue in queues),
        "transactions_in_doubt": len(recovery.plan.in_doubt),
        "damage": len(recovery.damage),
        "lost": recovery.lost,
        "quarantined": recovery.salvage.entries,
    }


# ---- text ----


def _journal(queue: Object) -> str:
    files, size = queue["geometry"]["files"], queue["geometry"]["file_size"]
    return f"{files} × {pages(exact_number(Fraction(size - FILE_HEADER_SIZE, PAGE_SIZE)))}"


_COLUMNS: Final = (
    Column("QUEUE", lambda queue: Text(printable(queue["name"])), folds=True),
    Column("MESSAGES", number("messages"), number=True),
    Column("IN DOUBT", number("in_doubt"), number=True),
    Column("TORN TAIL", lambda queue: "cut" if queue["torn_tail"] else "-", number=True),
    Column("QUARANTINED", lambda queue: f"{len(queue['quarantined']):,}" if queue["quarantined"] else "-", number=True),
    Column("JOURNAL", _journal, number=True),
)


def show_recovery(console: Console, recovery: Recovery, target: str | None, seconds: float, *, quiet: bool) -> None:
    """Print the report.

    Args:
        console: the output.
        recovery: the result.
        target: path of the new store; None if only the plan is shown.
        seconds: how long it took.
        quiet: show only what is lost or quarantined.
    """
    plan = recovery.plan
    queues = [queue_object(recovery, queue) for queue in plan.queues]
    if quiet:
        queues = [queue for queue in queues if queue["quarantined"]]
    if queues:
        print_grid(console, _COLUMNS, queues)
    if not quiet:
        _show_lines(console, [_transaction(resolved_object(each)) for each in plan.transactions], "transaction")
    orphans = [each for each in plan.orphans if each.transaction is None or not quiet]
    _show_lines(console, [_orphan(orphan_object(each)) for each in orphans], "orphan")
    _show_lines(console, [f"{printable(name)}: {what}" for name, what in plan.lost_exchanges], "lost exchange")
    bindings = [each for each in plan.lost_bindings if each.exchange is not None or not quiet]
    _show_lines(console, [_binding(each) for each in bindings], "lost binding")
    show_damage(console, recovery.damage)
    if not quiet:
        show_notices(console, plan.notices)
        console.print(_sum(recovery, target, seconds), soft_wrap=True)


def _show_lines(console: Console, lines: list[str], title: str) -> None:
    print_some(console, [f"{title}: {line}" for line in lines], f"{title}s")


def _binding(lost: LostBinding) -> str:
    key = printable(lost.key or "")
    exchange = "" if lost.exchange is None else f" to {printable(lost.exchange)} with key {key}"
    return f"of queue {printable(lost.queue)}{exchange}: {lost.what}"


def _transaction(fields: Object) -> str:
    resolved = "" if fields["resolved"] is None else f", resolved: {fields['resolved']}"
    counts = "" if fields["enqueues"] is None else f", {fields['enqueues']} enqueued, {fields['dequeues']} dequeued"
    return f"{fields['type']} {fields['xid']}: {fields['state']}{counts}{resolved}"


def _orphan(fields: Object) -> str:
    into = fields["recovered_into"]
    becomes = "" if into is None else f', recovered into "{printable(into)}"'
    xid = "" if fields["xid"] is None else f" {fields['xid']}"
    where = f'of queue "{printable(fields["queue"])}" in {printable(str(fields["journal"]))}'
    return f"{fields['what']}{xid}, {where}: {fields['messages']:,} messages{becomes}"


def _sum(recovery: Recovery, target: str | None, seconds: float) -> Text:
    fields = summary_object(recovery)
    counts = f"{plural(fields['queues'], 'queue')}, {plural(fields['messages'], 'message')}"
    if fields["in_doubt"]:
        counts += f" and {fields['in_doubt']:,} in doubt"
    done = "would be recovered" if target is None else f"recovered into {printable(target)} in {seconds:.1f} s"
    if recovery.is_complete:
        return Text(f"{counts} {done}: nothing was lost", style="bold green")
    losses = plural(fields["lost"], "loss", "losses")
    lost = f"{losses}, {fields['quarantined']:,} quarantined, see above"
    return Text(f"{counts} {done}: {lost}", style="bold red")


def main() -> None:
    """Console script entry point."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
