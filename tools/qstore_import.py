"""`qstore-import`: bring an export into a store that is not running, all of it or nothing, or into a broker; only once.

Exit codes: 0 it was imported, or had been before, 1 messages cannot be sent to a broker, definitions cannot be mapped,
or the broker has refused some of them (the rest is imported), 2 the export, the store, the broker or the command line
is unusable.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import MessagingError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import plural
from qstore.store.disk import OsDisk
from qstore.store.errors import StoreError, advice
from qstore.store.importing.intake import QueueIntake
from qstore.store.importing.plan import ImportPlan, PastImport
from qstore.store.inspect.layout import UnusableInputError, find_layout
from qstore.tools.console.broker import BrokerUrl, broker_url
from qstore.tools.console.command import (
    AGAIN,
    BROKER_RATE,
    DRY_RUN,
    EXIT_DAMAGE,
    JSON,
    QUIET,
    SETTINGS,
    PathName,
    failing,
    log_printer,
    private_files,
    run,
)
from qstore.tools.console.rows import (
    MAX_SHOWN,
    Column,
    field,
    note,
    number,
    plain_console,
    print_grid,
    print_json,
    print_rest,
    print_wrapped,
)
from qstore.tools.console.text import printable
from qstore.tools.interchange.definitions import DefinitionOptions, Unmapped, check_mapped
from qstore.tools.interchange.files import read_export
from qstore.tools.interchange.importing import (
    BrokerResult,
    Changes,
    InDoubt,
    Renaming,
    import_into_broker,
    import_into_store,
    read_renaming,
)
from qstore.tools.interchange.items import InterchangeError, ItemSink
from qstore.tools.interchange.java_broker import (
    JavaSettings,
    is_java_configuration,
    read_java_settings,
    shown_settings,
)

_PROGRAM: Final = "qstore-import"
_BEGIN: Final = 1 << 20

_EPILOG = """
\b
Examples:
qstore-import orders.jsonl /var/lib/qstore                   everything; the store is created if there is none
qstore-import orders.jsonl /var/lib/qstore --dry-run         show what would be imported; write nothing
qstore-import orders.tar.zst /var/lib/qstore --map orders=orders.eu --map 'exchange:amq.*=eu.*'
qstore-import orders.tar.zst /var/lib/qstore --queue 'orders.*' --no-topology
qstore-import orders.parquet /var/lib/qstore --in-doubt rollback
qstore-import orders.tar.zst amqp://guest/guest@localhost --rate 1000     into a running broker
qstore-import definitions.json amqp://localhost --dry-run    RabbitMQ's queues, exchanges and bindings
qstore-import definitions.json /var/lib/qstore --vhost test --to-vhost /      one virtual host, as another one

\b
EXPORT is a file that qstore-export wrote, of any form. STORE is a qstore store on which no broker is running. Nothing
in it changes before everything is written next to it and read back; then all takes effect at once. After a kill run
the same command again: the store has a ledger of its imports, and none takes place twice, unless --again asks for it.
Queues, exchanges and bindings that exist are kept as they are; messages follow those of the queue.

\b
Into a running broker messages are sent in transactions, straight to their queues. A queue qstore.import.<id> in the
broker is the ledger: after a kill or a lost connection the same command continues where it stopped; delete that queue
when it is no longer needed. Record ids and links are not imported, and branches in doubt only if --in-doubt decides
them.

\b
EXPORT may also have the definitions of RabbitMQ (rabbitmqctl export_definitions): virtual hosts with queues, exchanges,
bindings, policies, permissions and parameters are imported, all of them or one (--vhost). What cannot be mapped is
listed in notices, and the exit code is then 1; with --strict nothing is imported.

\b
Or EXPORT is the configuration of Apache's Java broker, config.xml or virtualhosts.xml: its virtual hosts, exchanges and
queues with their limits and alerts are imported in the same way. --settings DIR writes its options, users, firewall and
access rules for qpidd --config DIR/qpidd.conf.

\b
Exit codes: 0 imported, or imported before, 1 imported without some messages or definitions, which notices name: they
cannot be mapped, or the broker has refused them, 2 EXPORT, STORE, the broker or the command line is unusable.
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


@click.command(_PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("source", metavar="EXPORT", type=PathName(readable=False))
@click.argument("destination", metavar="STORE|URL", type=PathName(readable=False))
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
@DRY_RUN
@AGAIN
@click.option("--edited", is_flag=True, help="Accept edited JSON lines: their last line is not verified.")
@BROKER_RATE
@click.option("--vhost", metavar="NAME", help="Definitions, configuration: only this virtual host.  [default: all]")
@click.option("--to-vhost", metavar="NAME", help="Likewise: import a virtual host as this one.")
@click.option("--strict", is_flag=True, help="Likewise: import nothing if something cannot be mapped.")
@click.option(
    "--settings", metavar="DIR", help="Java broker's configuration: write options, users, firewall and access rules to "
    "this new directory.",
)  # fmt: skip
@JSON
@QUIET
@click.version_option(__version__, prog_name=_PROGRAM)
@click.pass_context
def command(
    context: click.Context,
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
    rate: float,
    vhost: str | None,
    to_vhost: str | None,
    strict: bool,
    settings: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Import the file EXPORT into STORE, a directory or the URL of a running broker: amqp://[user/password@]host[:port]."""
    changes = {"renamings": renamings, "queues": queues, "topology": topology, "in_doubt": InDoubt(in_doubt)}
    definitions = DefinitionOptions(vhost, Unmapped(), to_vhost)
    request = _Request(source, destination, changes, dry_run, again, edited, rate, definitions, strict)
    broker = broker_url(destination)
    if rate and broker is None:
        raise click.UsageError("--rate applies to a running broker.")
    with failing(_PROGRAM, InterchangeError, StoreError, MessagingError, advise=advice), private_files():
        found = _settings(request, settings)
        report = _into_broker(request, broker) if broker is not None else _into_store(request)
        if found is not None:
            report.notices.extend(_write_settings(request, found, settings))
    for notice in (*report.notices, *definitions.unmapped):
        note("notice", notice)
    with failing(_PROGRAM):
        if as_json:
            print_json([*report.queue_objects(), report.summary_object()])
        elif not quiet:
            show(report)
    context.exit(EXIT_DAMAGE if report.left_out or report.refused or definitions.unmapped else 0)


class _Request(NamedTuple):
    """What is asked for: see the options; `changes` are the arguments of `Changes`."""

    source: str
    destination: str
    changes: Mapping[str, Any]
    dry_run: bool
    again: bool
    edited: bool
    rate: float
    definitions: DefinitionOptions
    strict: bool

    def read(self, sink: ItemSink) -> str:
        """Read the export, changed as asked for. Returns what identifies this import in the ledger."""
        changes, definitions = Changes(sink, **self.changes), self.definitions
        read = read_export(self.source, changes, is_edited=self.edited, definitions=definitions)
        check_mapped(definitions.unmapped, self.source, strict=self.strict)
        how = repr((read.digest, sorted((name, repr(value)) for name, value in self.changes.items())))
        return hashlib.sha256(how.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _settings(request: _Request, directory: str | None) -> JavaSettings | None:
    """The settings of a configuration, if the export is one; checked before anything is imported."""
    if Path(request.source).is_dir():
        raise InterchangeError(_why_not_directory(request.source))
    with Path(request.source).open("rb") as file:
        is_configuration = is_java_configuration(file.read(_BEGIN).lstrip())
    if not is_configuration:
        if directory is not None:
            raise InterchangeError(f"{request.source}: --settings is for the configuration of the Java broker only")
        return None
    if directory is not None and os.path.lexists(directory):
        raise InterchangeError(f"{directory}: exists; choose another name, or remove it")
    return read_java_settings(request.source, request.definitions)


def _why_not_directory(path: str) -> str:
    """Why a directory is no export, and what to do."""
    try:
        find_layout(OsDisk(), path)
    except UnusableInputError as error:
        return str(error)
    return f"{path}: this is a store; qstore-export writes a file of its messages, which is imported"


def _write_settings(request: _Request, settings: JavaSettings, directory: str | None) -> list[str]:
    """Write settings to a directory, if there is one. Returns notices."""
    what = shown_settings(settings)
    if directory is None or request.dry_run:
        return [f"not in the store: {what}; --settings DIR writes them for qpidd"] if what else []
    return [f"{what} written to {directory}: {', '.join(settings.write(directory))}"]


def _into_store(request: _Request) -> ImportReport:
    began, path = time.monotonic(), request.destination
    done = import_into_store(
        request.read, path, dry_run=request.dry_run, again=request.again, log=log_printer(_PROGRAM)
    )
    return report_of_plan(done.plan, done.past, path, time.monotonic() - began, dry_run=request.dry_run)


def _into_broker(request: _Request, broker: BrokerUrl) -> ImportReport:
    began = time.monotonic()
    done = import_into_broker(
        request.read, broker.text, rate=request.rate, dry_run=request.dry_run, again=request.again
    )
    seconds = time.monotonic() - began
    return report_of_broker(done, broker.shown, seconds, dry_run=request.dry_run)


# ---- the report ----


class ImportReport(NamedTuple):
    """An import.

    Attributes:
        where: the store or the broker.
        past: when it took place before; None if it did not.
        dry_run: whether it was only planned.
        seconds: what it took.
        queues: name -> its messages, and whether it is new.
        exchanges, bindings, others, transactions: numbers of what is created.
        left_out: number of messages that could not be sent.
        refused: number of exchanges, queues and bindings that the broker has refused.
        keeps_rids: whether record ids are kept.
        notices: one line each.
    """

    where: str
    past: PastImport | None
    dry_run: bool
    seconds: float
    queues: Mapping[str, tuple[QueueIntake, bool]]
    exchanges: int
    bindings: int
    others: int
    transactions: int
    left_out: int
    refused: int
    keeps_rids: bool
    notices: list[str]

    @property
    def messages(self) -> int:
        """Number of messages."""
        return sum(queue.messages for queue, _ in self.queues.values()) if self.past is None else self.past.messages

    def queue_objects(self) -> list[dict[str, Any]]:
        """The queues as JSON objects."""
        return [
            {"kind": "queue", "name": name, "created": is_new, "messages": queue.messages, "in_doubt": queue.in_doubt}
            for name, (queue, is_new) in self.queues.items()
        ]

    def summary_object(self) -> dict[str, Any]:
        """The totals as a JSON object."""
        return {
            "kind": "summary",
            "imported": self.past is None and not self.dry_run,
            "imported_before": None if self.past is None else self.past.at,
            "dry_run": self.dry_run,
            "messages": self.messages,
            "in_doubt": sum(queue.in_doubt for queue, _ in self.queues.values()),
            "transactions": self.transactions,
            "queues_created": sum(is_new for _, is_new in self.queues.values()),
            "exchanges_created": self.exchanges,
            "bindings_created": self.bindings,
            "objects_created": self.others,
            "messages_left_out": self.left_out,
            "objects_refused": self.refused,
            "record_ids_kept": self.keeps_rids,
        }


def report_of_plan(
    plan: ImportPlan, past: PastImport | None, where: str, seconds: float, *, dry_run: bool
) -> ImportReport:
    """The report of an import into a store."""
    queues = {name: (queue.intake, queue.entry is None) for name, queue in plan.queues.items()}
    created = len(plan.exchanges), len(plan.bindings), len(plan.general), len(plan.in_doubt)
    return ImportReport(where, past, dry_run, seconds, queues, *created, 0, 0, plan.keeps_rids, list(plan.notices))


def report_of_broker(done: BrokerResult, where: str, seconds: float, *, dry_run: bool) -> ImportReport:
    """The report of an import into a broker."""
    changes, intake, past = done.changes, done.intake, done.past
    names = {**dict.fromkeys(changes.queues), **dict.fromkeys(intake.messages)}
    queues = {name: (intake.messages.get(name, QueueIntake()), name in changes.queues) for name in names}
    notices = list(changes.notices)
    if done.hosts:
        shown = ", ".join(map(printable, done.hosts))
        what = "would be created" if dry_run else "created"
        notices.append(f"{plural(len(done.hosts), 'virtual host')} {what}: {shown}")
    if done.left_out:
        notices.append(f"{plural(done.left_out, 'message')} cannot be decoded, or are scheduled, and were not sent")
    return ImportReport(
        where, past, dry_run, seconds, queues, changes.exchanges, changes.bindings, 0, 0,
        done.left_out, done.refused, False, notices,
    )  # fmt: skip


_COLUMNS: Final = (
    Column("QUEUE", field("name"), folds=True),
    Column("MESSAGES", lambda queue: f"{queue['messages'] - queue['in_doubt']:,}", number=True),
    Column("IN DOUBT", number("in_doubt"), number=True),
    Column("", lambda queue: "new" if queue["created"] else "added to"),
)


def show(report: ImportReport) -> None:
    """Print a report as text."""
    where, past = printable(report.where), report.past
    if past is not None:
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(past.at))
        what = f"{plural(past.messages, 'message')} of this export were imported into {where} at {at}"
        print_wrapped(plain_console(), f"nothing to do: {what}; --again imports them once more")
        return
    queues = report.queue_objects()
    if queues:
        console = plain_console()
        print_grid(console, _COLUMNS, queues[:MAX_SHOWN])
        print_rest(console, len(queues), "queues")
    created = f"{plural(report.exchanges, 'exchange')}, {plural(report.bindings, 'binding')}"
    what = f"{plural(report.messages, 'message')}, {created} and {plural(report.transactions, 'transaction')} in doubt"
    rids = "record ids are kept" if report.keeps_rids else "messages get new record ids"
    if report.dry_run:
        print_wrapped(plain_console(), f"{what} would be imported into {where}; {rids}; nothing was written")
    else:
        print_wrapped(plain_console(), f"{what} imported into {where} in {report.seconds:.1f} s; {rids}")


def main() -> None:
    """Console script entry point."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
