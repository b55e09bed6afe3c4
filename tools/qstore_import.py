"""`qstore-import`: bring an export into a store that is not running: all of it, or nothing, and only once.

Exit codes: 0 it was imported, or had been before, 2 the export, the store or the command line is unusable.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import click

from qstore import __version__
from qstore.formats.wording import plural
from qstore.store.environment import dry_run_environment, tool_environment
from qstore.store.errors import StoreError, advice
from qstore.store.importing.ledger import PastImport
from qstore.store.importing.plan import ImportPlan
from qstore.store.importing.store_import import StoreImport
from qstore.store.log_lines import Level, LogLine
from qstore.tools.check.report import plain_console
from qstore.tools.console.json_lines import JsonLines
from qstore.tools.console.progress import writing_progress
from qstore.tools.console.tables import Column, print_grid
from qstore.tools.console.text import printable
from qstore.tools.entry import PathName, failing, private_files, run
from qstore.tools.interchange.changes import Changes, InDoubt, Renaming, read_renaming
from qstore.tools.interchange.files import read_export
from qstore.tools.interchange.items import InterchangeError, ReadExport

_PROGRAM: Final = "qstore-import"
_MAX_SHOWN: Final = 200  # queues in the report

_EPILOG = """
\b
Examples:
qstore-import orders.jsonl /var/lib/qstore                   everything; the store is created if there is none
qstore-import orders.jsonl /var/lib/qstore --dry-run         show what would be imported; write nothing
qstore-import orders.tar.zst /var/lib/qstore --map orders=orders.eu --map 'exchange:amq.*=eu.*'
qstore-import orders.tar.zst /var/lib/qstore --queue 'orders.*' --no-topology
qstore-import orders.parquet /var/lib/qstore --in-doubt rollback

\b
EXPORT is a file that qstore-export wrote, of any form. STORE is a qstore store on which no broker is running. Nothing
in it changes before everything is written next to it and read back; then all takes effect at once. After a kill run
the same command again: the store has a ledger of its imports, and none takes place twice, unless --again asks for it.
Queues, exchanges and bindings that exist are kept as they are; messages follow those of the queue.

\b
Exit codes: 0 it was imported, or had been before, 2 EXPORT, STORE or the command line is unusable: nothing was changed.
"""


class _Map(click.ParamType[Renaming]):
    """A rule for names."""

    name = "OLD=NEW"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Renaming:
        if isinstance(value, Renaming):
            return value
        try:
            return read_renaming(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(_PROGRAM, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="EXPORT", type=PathName(readable=False))
@click.argument("destination", metavar="STORE", type=PathName(readable=False))
@click.option(
    "--map",
    "renamings",
    type=_Map(),
    multiple=True,
    help="Rename queues, or exchanges with exchange:OLD=NEW; each side may have one *. Repeatable; the first match "
    "counts.",
)
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="Only queues of this name or pattern (*). Repeatable."
)
@click.option("--topology/--no-topology", default=True, help="Create missing queues, exchanges, bindings and others.")
@click.option(
    "--in-doubt", type=click.Choice([each.value for each in InDoubt]), default=InDoubt.KEEP.value, show_default=True,
    help="Keep branches in doubt, or import their messages as committed or rolled back.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be imported; write nothing.")
@click.option("--again", is_flag=True, help="Import it although it was imported before.")
@click.option("--edited", is_flag=True, help="Accept JSON lines that were edited: their last line is not compared.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead of a report.")
@click.option("-q", "--quiet", is_flag=True, help="Show nothing but notices.")
@click.version_option(__version__, prog_name=_PROGRAM)
def command(
    source: str,
    destination: str,
    *,
    renamings: tuple[Renaming, ...],
    queues: tuple[str, ...],
    topology: bool,
    in_doubt: str,
    dry_run: bool,
    again: bool,
    edited: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Import the file EXPORT into STORE."""
    began = time.monotonic()
    outcome = InDoubt(in_doubt)
    environment = dry_run_environment() if dry_run else tool_environment()
    with (
        failing(_PROGRAM, InterchangeError, StoreError, advise=advice),
        private_files(),
        StoreImport(environment, destination, __version__, dry_run=dry_run, log=_warn) as work,
    ):
        sink = Changes(work.intake, renamings=renamings, queues=queues, topology=topology, in_doubt=outcome)
        read = read_export(source, sink, is_edited=edited)
        identity = _identity(read, renamings, queues, outcome, topology=topology)
        past = None if again else work.past(identity)
        plan = work.plan()
        if past is None and not dry_run:
            with writing_progress("importing messages", work.intake.size) as advance:
                work.apply(plan, _unused(work, identity), lambda _, done: advance(done))
    for notice in plan.notices:
        click.echo(f"notice: {printable(notice)}", err=True)
    with failing(_PROGRAM):
        if as_json:
            _show_json(plan, past, dry_run=dry_run)
        elif not quiet:
            _show(plan, past, destination, time.monotonic() - began, dry_run=dry_run)


def _warn(line: LogLine) -> None:
    if line.level >= Level.WARNING:
        click.echo(f"{_PROGRAM}: {printable(line.text)}", err=True)


def _identity(
    read: ReadExport, renamings: Sequence[Renaming], queues: Sequence[str], in_doubt: InDoubt, *, topology: bool
) -> str:
    """What identifies this import in the ledger."""
    how = repr((read.digest, renamings, sorted(queues), in_doubt.value, topology))
    return hashlib.sha256(how.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _unused(work: StoreImport, identity: str) -> str:
    """An identity that is not in the ledger."""
    number, name = 1, identity
    while work.past(name) is not None:
        number += 1
        name = f"{identity}.{number}"
    return name


def _summary(plan: ImportPlan, past: PastImport | None, *, dry_run: bool) -> dict[str, Any]:
    done = past is None and not dry_run
    return {
        "kind": "summary",
        "imported": done,
        "imported_before": None if past is None else past.at,
        "dry_run": dry_run,
        "messages": plan.messages if past is None else past.messages,
        "in_doubt": plan.waiting,
        "transactions": len(plan.in_doubt),
        "queues_created": sum(queue.entry is None for queue in plan.queues.values()),
        "exchanges_created": len(plan.exchanges),
        "bindings_created": len(plan.bindings),
        "objects_created": len(plan.general),
        "record_ids_kept": plan.keeps_rids,
    }


def _show_json(plan: ImportPlan, past: PastImport | None, *, dry_run: bool) -> None:
    output = JsonLines(sys.stdout.buffer)
    for name, queue in plan.queues.items():
        output.show(
            {
                "kind": "queue",
                "name": name,
                "created": queue.entry is None,
                "messages": queue.intake.messages,
                "in_doubt": queue.intake.in_doubt,
            }
        )
    output.show(_summary(plan, past, dry_run=dry_run))
    output.flush()


def _show(plan: ImportPlan, past: PastImport | None, store: str, seconds: float, *, dry_run: bool) -> None:
    if past is not None:
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(past.at))
        what = f"{plural(past.messages, 'message')} of this export were imported into {printable(store)} at {at}"
        click.echo(f"nothing to do: {what}; --again imports them once more")
        return
    rows = [
        (
            printable(name),
            f"{queue.intake.messages - queue.intake.in_doubt:,}",
            f"{queue.intake.in_doubt:,}",
            "new" if queue.entry is None else "added to",
        )
        for name, queue in list(plan.queues.items())[:_MAX_SHOWN]
    ]
    columns = (
        Column("QUEUE", folds=True), Column("MESSAGES", number=True), Column("IN DOUBT", number=True), Column("")
    )  # fmt: skip
    if rows:
        print_grid(plain_console(), columns, rows)
    if len(plan.queues) > _MAX_SHOWN:
        click.echo(f"… and {len(plan.queues) - _MAX_SHOWN:,} more queues")
    created = f"{plural(len(plan.exchanges), 'exchange')}, {plural(len(plan.bindings), 'binding')}"
    what = f"{plural(plan.messages, 'message')}, {created} and {plural(len(plan.in_doubt), 'transaction')} in doubt"
    rids = "record ids are kept" if plan.keeps_rids else "messages get new record ids"
    if dry_run:
        click.echo(f"{what} would be imported into {printable(store)}; {rids}; nothing was written")
    else:
        click.echo(f"{what} imported into {printable(store)} in {seconds:.1f} s; {rids}")


def main() -> None:
    """Console script entry point."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
