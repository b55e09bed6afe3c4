"""`qstore-quarantine`: inspect records that a recovery could not save, and inject their messages into a store.

Exit codes: 0 success, 1 the quarantine itself is damaged, or not everything was injected, 2 the quarantine, the store
or the command line is unusable.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from qstore import __version__
from qstore.formats.quarantine_index import QuarantineEntry, raw_name
from qstore.formats.wording import plural
from qstore.store.disk import OsDisk
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError, StoreLockedError, advice
from qstore.store.log_lines import Level, LogLine
from qstore.store.repair.quarantine import INDEX, Quarantine, QuarantineError
from qstore.tools.check.report import plain_console
from qstore.tools.console.json_lines import JsonLines
from qstore.tools.console.tables import print_wrapped
from qstore.tools.console.text import printable, unescape_name
from qstore.tools.entry import EXIT_DAMAGE, PathName, fail, failing, run
from qstore.tools.quarantine.evidence import MAX_BYTES, RecordFinder, judge
from qstore.tools.quarantine.injection import GAVE_UP, InjectionRequest, inject
from qstore.tools.quarantine.objects import entry_object, injected_object, problem_object, record_object
from qstore.tools.quarantine.report import EntryTables, hex_lines, show_entry, show_injected, show_record

_NAME = "qstore-quarantine"
_MAX_SHOWN = 50  # records shown per entry; --json shows all

_EPILOG = """
\b
Examples:
qstore-quarantine list /var/lib/saved/quarantine
qstore-quarantine show /var/lib/saved/quarantine 3
qstore-quarantine show /var/lib/saved/quarantine 3 --raw > record.bin
qstore-quarantine inject /var/lib/saved/quarantine 3 4 --store /var/lib/saved
qstore-quarantine inject /var/lib/saved/quarantine 5 --store /var/lib/saved --queue inspected --force

\b
qstore-quarantine list, show or inject --help shows the options of each.
Exit codes: 0 success, 1 the quarantine itself is damaged, or not everything was injected, 2 the quarantine, the store
or the command line is unusable.
"""

_SETTINGS = {"help_option_names": ["-h", "--help"]}
_DIRECTORY = click.argument("directory", metavar="DIR", type=PathName(readable=False))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead of a report.")


@click.group(_NAME, epilog=_EPILOG, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name=_NAME)
def command() -> None:
    """Inspect damaged records that were quarantined, and inject their messages into a store.

    DIR is a quarantine directory, as created by qstore-recover (DEST/quarantine) or by a broker (STORE/rhm/quarantine):
    the bytes of each damaged place, and an index of them.
    """


@contextmanager
def _failures() -> Iterator[None]:
    """Report errors in one line and exit."""
    with failing(_NAME, QuarantineError, StoreError, advise=advice):
        try:
            yield
        except StoreLockedError:
            fail(_NAME, "the store is in use by a broker or another tool; stop that one first (qpidd --quit)")


# ---- list ----


@command.command("list", context_settings=_SETTINGS)
@_DIRECTORY
@_JSON
@click.pass_context
def list_entries(context: click.Context, directory: str, *, as_json: bool) -> None:
    """List the entries of the quarantine DIR.

    Files that are missing from the index, and unusable lines of the index, are also listed.
    """
    with _failures():
        damage = _list(Quarantine(OsDisk(), directory), as_json=as_json)
    context.exit(EXIT_DAMAGE if damage else 0)


def _list(quarantine: Quarantine, *, as_json: bool) -> int:
    """Returns the number of problems."""
    console = plain_console()
    output, tables = JsonLines(sys.stdout.buffer), EntryTables(console)
    entries = size = injected = unknown = 0
    damage: list[str] = []
    unlisted = set(quarantine.raw_names())
    path = quarantine.path(INDEX)
    for entry in quarantine.entries():
        if not isinstance(entry, QuarantineEntry):
            damage.append(f"{path}, line {entry.line}: {entry.what}")
            if as_json:
                output.show(problem_object(path, entry))
            continue
        unlisted.discard(raw_name(entry.number))
        problem = None if entry.raw is None else quarantine.size_problem(entry)
        entries, size = entries + 1, size + entry.size
        if entry.injected is not None:
            unknown += not entry.injected.is_known
            injected += entry.injected.is_known
        if problem is not None:
            damage.append(problem)
        if as_json:
            output.show(entry_object(entry, problem))
        else:
            tables.show(entry, problem)
    for name in sorted(unlisted):
        what = "the index has no entry for this file"
        damage.append(f"{quarantine.path(name)}: {what}")
        if as_json:
            output.show({"kind": "damage", "file": quarantine.path(name), "line": None, "what": what})
    if as_json:
        summary = {"entries": entries, "bytes": size, "injected": injected, "unknown": unknown, "damage": len(damage)}
        output.show({"kind": "summary", **summary})
        output.flush()
        return len(damage)
    tables.flush()
    for text in damage:
        print_wrapped(console, f"damage: {printable(text)}", style="bold red")
    count = plural(entries, "entry", "entries")
    console.print(f"{count}, {size:,} bytes, {injected:,} injected", soft_wrap=True, highlight=False)
    if unknown:
        text = f"{plural(unknown, 'entry', 'entries')} marked ?: an interrupted injection may have taken place"
        console.print(
            f"{text}: look for the message with qstore-dump", style="bold red", soft_wrap=True, highlight=False
        )
    return len(damage)


# ---- show ----


@command.command("show", context_settings=_SETTINGS)
@_DIRECTORY
@click.argument("number", type=click.IntRange(min=1))
@click.option("--raw", "form", flag_value="raw", help="Print only the bytes, unchanged.")
@click.option("--hex", "form", flag_value="hex", help="Print only the bytes, in hex.")
@_JSON
@click.pass_context
def show(context: click.Context, directory: str, number: int, *, form: str | None, as_json: bool) -> None:
    """Show entry NUMBER of the quarantine DIR, the records in it, and their messages.

    A record is intact if its checksum matches (linearstore, and version 2 if the salt of its file is known) or its
    tail does (version 1). Other records are shown as far as they can be decoded, with everything that is wrong with
    them.
    """
    if form is not None and as_json:
        raise click.UsageError(f"--json and --{form} cannot be combined.")
    with _failures():
        quarantine = Quarantine(OsDisk(), directory)
        entry = quarantine.find([number]).get(number)
        if entry is None:
            fail(_NAME, f"{directory}: there is no entry {number}; {_NAME} list shows the entries")
        if form == "raw":
            for chunk in quarantine.raw(entry):
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            return
        if form == "hex":
            for line in hex_lines(quarantine.raw(entry)):
                click.echo(line)
            return
        problem = quarantine.raw_problem(entry)
        _show(quarantine, entry, problem, as_json=as_json)
    context.exit(EXIT_DAMAGE if problem is not None else 0)


def _show(quarantine: Quarantine, entry: QuarantineEntry, problem: str | None, *, as_json: bool) -> None:
    console, output = plain_console(), JsonLines(sys.stdout.buffer)
    if as_json:
        output.show(entry_object(entry, problem))
    else:
        show_entry(console, entry, problem)
    is_large = entry.size > MAX_BYTES
    raw = b""
    if not is_large:
        with suppress(QuarantineError):  # that the bytes cannot be read was reported above
            raw = b"".join(quarantine.raw(entry))
    count = 0
    finder = RecordFinder(raw, entry.salt)
    for count, evidence in enumerate(finder.records(), 1):
        fields = record_object(entry.queue, evidence, judge(raw, evidence))
        if as_json:
            output.show(fields)
        elif count <= _MAX_SHOWN:
            show_record(console, fields)
    if finder.gave_up:
        click.echo(f"{_NAME}: entry {entry.number}: {GAVE_UP}", err=True)
    if as_json:
        output.flush()
    elif is_large:
        click.echo(f"  not decoded: more than {MAX_BYTES:,} bytes; --raw prints them")
    elif not count:
        click.echo("  no record was recognized in it")
    elif count > _MAX_SHOWN:
        click.echo(f"  … and {count - _MAX_SHOWN:,} more records; --json shows all")


# ---- inject ----


@command.command("inject", context_settings=_SETTINGS)
@_DIRECTORY
@click.argument("numbers", nargs=-1, required=True, metavar="NUMBER...", type=click.IntRange(min=1))
@click.option(
    "--store",
    required=True,
    type=PathName(readable=False),
    help="The store to inject into; no broker may have it open.",
)
@click.option(
    "--queue", metavar="NAME", help="The destination queue.  [default: the queue in which each entry was found]"
)
@click.option(
    "--force", is_flag=True, help="Also inject records that are not intact; what is wrong with them is reported."
)
@click.option("--again", is_flag=True, help="Also inject entries that were injected before.")
@_JSON
@click.pass_context
def inject_entries(
    context: click.Context,
    directory: str,
    numbers: tuple[int, ...],
    *,
    store: str,
    queue: str | None,
    force: bool,
    again: bool,
    as_json: bool,
) -> None:
    """Inject the messages of entries NUMBER... into a store, at the end of their queue.

    They get new record ids and are durable when the command ends; the messages of one entry are injected all together
    or not at all. Injected entries are marked in the index and are skipped next time, except with --again.
    """
    request = InjectionRequest(numbers, None if queue is None else unescape_name(queue), force=force, again=again)
    with _failures():
        results = inject(tool_environment(), directory, store, request, __version__, _print_log_line)
        output, console = JsonLines(sys.stdout.buffer), plain_console()
        for result in results:
            if as_json:
                output.show(injected_object(result))
            else:
                show_injected(console, result)
        output.flush()
    context.exit(EXIT_DAMAGE if any(result.failure is not None for result in results) else 0)


def _print_log_line(line: LogLine) -> None:
    if line.level in (Level.WARNING, Level.CRITICAL):
        click.echo(f"{_NAME}: {printable(line.text)}", err=True)


def main() -> None:
    """Console script entry point."""
    run(_NAME, command)


if __name__ == "__main__":
    main()
