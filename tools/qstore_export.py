"""`qstore-export`: write topology and messages of a store to a file: JSON lines, Parquet, or an archive.

Exit codes: 0 everything was exported, 1 damage was found, or definitions cannot express everything (all else is
exported), 2 the store or the command line is unusable, or the file cannot be written.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import uuid4

import click
from rich.progress import MofNCompleteColumn

from qstore import __version__
from qstore.broker.client import Connection, MessagingError
from qstore.broker.model.selectors.selector import Selector
from qstore.formats.broker_records.topology import DEFAULT_HOST
from qstore.formats.wording import plural
from qstore.store.damage import Damage
from qstore.store.disk import OsDisk
from qstore.store.errors import advice
from qstore.store.inspect.layout import UnusableInputError, holder_of_store
from qstore.store.inspect.offline import OfflineStore, RecoveredStore, open_store
from qstore.store.live.delivered import delivered_of
from qstore.tools.console.amounts import Moment
from qstore.tools.console.broker import BrokerUrl, broker_url
from qstore.tools.console.command import (
    EXIT_DAMAGE,
    QUEUES,
    QUIET,
    SETTINGS,
    PathName,
    fail,
    failing,
    private_files,
    run,
)
from qstore.tools.console.progress import CountingDisk, progress_bar, reading_progress
from qstore.tools.console.rows import MAX_SHOWN, Column, note, plain_console, print_grid
from qstore.tools.console.text import escape_name, printable, unescape_name
from qstore.tools.dump.messages import RIDS, SELECTOR, Selection, no_such_queue
from qstore.tools.interchange.broker import BrokerExport
from qstore.tools.interchange.definitions import DefinitionsWriter, Unmapped, check_mapped
from qstore.tools.interchange.exporting import ExportSelection, StoreExport
from qstore.tools.interchange.files import STANDARD_OUTPUT, Form, export_file, form_of
from qstore.tools.interchange.items import ExportHeader, ExportWriter, InterchangeError

_PROGRAM: Final = "qstore-export"

_EPILOG = """
\b
Examples:
qstore-export /var/lib/qpidd orders.jsonl                   everything, as JSON lines
qstore-export /var/lib/qpidd orders.tar.zst                 as an archive: fast and small
qstore-export /var/lib/qpidd orders.parquet                 for Spark, DuckDB, pandas
qstore-export /var/lib/qpidd - --queue orders | jq .body
qstore-export /var/lib/qpidd eu.jsonl.zst --queue orders --selector "region = 'EU' AND priority > 4"
qstore-export /var/lib/qpidd late.jsonl --since 2026-11-01T00:00:00Z --no-topology
qstore-export /var/lib/qpidd topology.jsonl --no-messages
qstore-export /var/lib/qpidd definitions.json               queues, exchanges and bindings for RabbitMQ
qstore-export amqp://guest/guest@localhost orders.jsonl --queue orders --take    from a running broker

\b
STORE is a store of qpidd (legacystore, linearstore) or of qstore; nothing is ever written to it, and no broker may be
running on it. Of a running broker, the messages of durable queues are browsed, or taken with --take; those of branches
in doubt, and those that consumers hold, are not exported. DEST appears when it is complete; it is readable only by its
owner. Messages keep their order, record ids, redelivered marks and branches in doubt. qstore-import brings them into
a store.
Torn tails and stale bindings are normal after a crash: they are notices on standard error.

\b
Exit codes: 0 everything was exported, 1 damage was found, or definitions cannot express everything (all else is
exported), 2 the store or the command line is unusable, or DEST cannot be written.
"""


@click.command(_PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("source", metavar="STORE|URL", type=PathName(readable=False))
@click.argument("destination", metavar="DEST", type=PathName(readable=False, allow_dash=True))
@click.option(
    "--format", "form", type=click.Choice([form.value for form in Form]),
    help="Form of DEST.  [default: by its name: .jsonl, .jsonl.zst, .parquet, .tar.zst, definitions.json; JSON lines "
    "for -]",
)  # fmt: skip
@QUEUES
@SELECTOR
@RIDS
@click.option("--since", type=Moment(), help="Only messages with a timestamp at or after this time.")
@click.option("--until", type=Moment(), help="Only messages with a timestamp at or before this time.")
@click.option("--topology/--no-topology", default=True, help="Export queues, exchanges, bindings and other objects.")
@click.option("--messages/--no-messages", default=True, help="Export messages and branches in doubt.")
@click.option("--with-passwords", is_flag=True, help="Also export passwords of links and shovels, and keys.")
@click.option("--take", is_flag=True, help="From a broker: remove the messages when DEST is complete.")
@click.option("--strict", is_flag=True, help="Write no definitions if they cannot express everything.")
@QUIET
@click.version_option(__version__, prog_name=_PROGRAM)
@click.pass_context
def command(
    context: click.Context,
    source: str,
    destination: str,
    *,
    form: str | None,
    queues: tuple[str, ...],
    selector: Selector | None,
    rids: tuple[int, int] | None,
    since: int | None,
    until: int | None,
    topology: bool,
    messages: bool,
    with_passwords: bool,
    take: bool,
    strict: bool,
    quiet: bool,
) -> None:
    """Write the messages of STORE, and its queues, exchanges and bindings, to the file DEST ("-": standard output).

    STORE is a directory, or the URL of a running broker: amqp://[user/password@]host[:port].
    """
    began = time.monotonic()
    chosen = ExportSelection(
        Selection(queues=frozenset(map(unescape_name, queues)), rids=rids or Selection().rids),
        selector,
        since,
        until,
        topology,
        messages,
    )
    chosen_form = Form(form) if form else form_of(destination)
    if chosen_form is None:
        raise click.BadParameter(f"{destination} has none of the known endings", param_hint="DEST; use --format")
    broker = broker_url(source)
    if take and (broker is None or since is not None or until is not None):
        raise click.UsageError("--take applies to a running broker, and cannot be combined with --since and --until.")
    if broker is not None and rids is not None:
        raise click.UsageError("--rid applies to a store: a broker does not show record ids.")
    if chosen_form is Form.DEFINITIONS:
        if take:
            raise click.UsageError("definitions have no messages: --take cannot be combined with them.")
        chosen = replace(chosen, messages=False)
    damaged: Sequence[Damage] = ()
    unmapped = Unmapped()
    with failing(_PROGRAM, UnusableInputError, InterchangeError, MessagingError, advise=advice), private_files():
        if broker is not None:
            counts, hidden = _export_broker(
                broker, destination, chosen_form, chosen, unmapped,
                take=take, with_passwords=with_passwords, strict=strict,
            )  # fmt: skip
        else:
            recovered, counts, hidden = _export(
                source, destination, chosen_form, chosen, unmapped, with_passwords=with_passwords, strict=strict
            )
            damaged = recovered.store.damage
            for notice in recovered.store.notices:
                note("notice", notice)
    for damage in damaged:
        note("damage", f"{damage.where}: {damage.what}")
    for text in unmapped:
        note("notice", text)
    if hidden:
        what = plural(hidden, "link, parameter or key", "links, parameters or keys")
        note("notice", f"the secrets of {what} are left out; --with-passwords exports them")
    if not quiet and destination != STANDARD_OUTPUT:
        _show(counts, destination, time.monotonic() - began, has_messages=chosen_form is not Form.DEFINITIONS)
    if damaged or unmapped:
        context.exit(EXIT_DAMAGE)


def _export(
    source: str,
    destination: str,
    form: Form,
    chosen: ExportSelection,
    unmapped: Unmapped,
    *,
    with_passwords: bool,
    strict: bool,
) -> tuple[RecoveredStore, Mapping[str, int], int]:
    with reading_progress(OsDisk()) as disk, contextlib.closing(_open(disk, source)) as store:
        unknown = chosen.records.unknown_queues(store.queue_names())
        if unknown:
            fail(_PROGRAM, no_such_queue(source, min(unknown), store.queue_names()))
        disk.expect("reading journals", store.size)
        recovered = store.recover()
        export = StoreExport(recovered, delivered_of(disk, store.layout), chosen)
        header = ExportHeader(
            uuid4(), int(time.time()), __version__, source, store.layout.kind.value, _described(chosen)
        )
        disk.expect("exporting messages", store.size)
        with export_file(destination, form, with_passwords=with_passwords) as writer:
            writer.begin(header)
            export.write(writer)
            _note_unmapped(writer, unmapped, destination, strict=strict)
    return recovered, export.counts, writer.hidden


def _note_unmapped(writer: ExportWriter, unmapped: Unmapped, destination: str, *, strict: bool) -> None:
    """What the writer's form cannot express. Raises InterchangeError if that is not accepted."""
    if isinstance(writer, DefinitionsWriter):
        unmapped.extend(writer.unmapped)
        check_mapped(unmapped, destination, strict=strict)


def _export_broker(
    source: BrokerUrl,
    destination: str,
    form: Form,
    chosen: ExportSelection,
    unmapped: Unmapped,
    *,
    take: bool,
    with_passwords: bool,
    strict: bool,
) -> tuple[Mapping[str, int], int]:
    def connect(host: str) -> Connection:
        connection = Connection(source.text, virtual_host=host) if host != DEFAULT_HOST else Connection(source.text)
        connection.open()
        return connection

    export = BrokerExport(connect, chosen, take=take)
    with contextlib.closing(export):
        header = ExportHeader(uuid4(), int(time.time()), __version__, source.shown, "broker", _described(chosen))
        with progress_bar("exporting messages", MofNCompleteColumn()) as bar:
            with export_file(destination, form, with_passwords=with_passwords) as writer:
                writer.begin(header)
                export.write(writer, bar.advance if bar is not None else lambda _: None)
                _note_unmapped(writer, unmapped, destination, strict=strict)
            export.taken()
    return export.counts, writer.hidden


def _open(disk: CountingDisk, source: str) -> OfflineStore:
    store = open_store(disk, source, holder_of_store)
    if store.holder is not None:
        store.close()
        raise UnusableInputError(f"{source}: process {store.holder} has this store open: stop the broker first")
    return store


def _described(chosen: ExportSelection) -> str | None:
    """The selection as text; None for everything."""
    parts = [
        *(f"queue {escape_name(name)}" for name in sorted(chosen.records.queues)),
        *([f"rid {chosen.records.rids[0]}..{chosen.records.rids[1]}"] if not chosen.records.all_messages else []),
        *([f"selector {chosen.selector.text}"] if chosen.selector else []),
        *([f"since {chosen.since}"] if chosen.since is not None else []),
        *([f"until {chosen.until}"] if chosen.until is not None else []),
        *([] if chosen.topology else ["no topology"]),
        *([] if chosen.messages else ["no messages"]),
    ]
    text = ", ".join(parts)
    return None if not text else text if len(text) <= _MAX_SELECTION else text[: _MAX_SELECTION - 1] + "…"


_MAX_SELECTION: Final = 1000  # characters of the description


def _show(counts: Mapping[str, int], destination: str, seconds: float, *, has_messages: bool) -> None:
    with failing(_PROGRAM):
        if not has_messages:
            what = plural(len(counts), "queue")
            click.echo(f"the definitions of {what} exported to {printable(destination)} in {seconds:.1f} s")
            sys.stdout.flush()
            return
        rows = [(printable(name), f"{count:,}") for name, count in list(counts.items())[:MAX_SHOWN]]
        if rows:
            print_grid(plain_console(), (Column("QUEUE", folds=True), Column("MESSAGES", number=True)), rows)
        if len(counts) > MAX_SHOWN:
            click.echo(f"… and {len(counts) - MAX_SHOWN:,} more queues")
        total = sum(counts.values())
        what = f"{plural(len(counts), 'queue')} and {plural(total, 'message')}"
        click.echo(f"{what} exported to {printable(destination)} in {seconds:.1f} s")
        sys.stdout.flush()


def main() -> None:
    """Console script entry point."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
