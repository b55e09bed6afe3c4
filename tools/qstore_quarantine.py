"""`qstore-quarantine`: look at what a recovery could not save, and put its messages into a store after all.

Exit codes: 0 fine, 1 the quarantine itself is damaged, or not everything was injected, 2 quarantine, store or command
line cannot be used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from formats.quarantine_index import QuarantineEntry, raw_name
from formats.wording import plural
from store.disk import OsDisk
from store.environment import tool_environment
from store.errors import StoreError, StoreLockedError, advice
from store.log_lines import Level, LogLine
from store.repair.quarantine import INDEX, Quarantine, QuarantineError
from tools.check.report import plain_console
from tools.console.json_lines import JsonLines
from tools.console.text import printable, unescape_name
from tools.entry import EXIT_DAMAGE, PathName, distribution_version, fail, failing, run
from tools.quarantine.evidence import MOST_BYTES, RecordFinder, judge
from tools.quarantine.injection import GAVE_UP, Wish, inject
from tools.quarantine.objects import entry_object, injected_object, problem_object, record_object
from tools.quarantine.report import EntryTables, hex_lines, show_entry, show_injected, show_record

_NAME = "qstore-quarantine"
_MOST_SHOWN = 50  # records of one entry; --json shows all

_EPILOG = """
\b
Examples:
qstore-quarantine list /var/lib/saved/quarantine
qstore-quarantine show /var/lib/saved/quarantine 3
qstore-quarantine show /var/lib/saved/quarantine 3 --raw > record.bin
qstore-quarantine inject /var/lib/saved/quarantine 3 4 --store /var/lib/saved
qstore-quarantine inject /var/lib/saved/quarantine 5 --store /var/lib/saved --queue inspected --force

\b
Exit codes: 0 fine, 1 the quarantine itself is damaged, or not everything was injected, 2 something cannot be used.
"""

_SETTINGS = {"help_option_names": ["-h", "--help"]}
_DIRECTORY = click.argument("directory", metavar="DIR", type=PathName(readable=False))
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object a line, instead of a report.")


@click.group(_NAME, epilog=_EPILOG, context_settings=_SETTINGS)
@click.version_option(distribution_version(), prog_name=_NAME)
def command() -> None:
    """Look at damaged records that were kept, and put their messages into a store after all.

    DIR is the directory `quarantine` that qstore-recover made: the bytes of each damaged place, and an index of them.
    """


@contextmanager
def _failures() -> Iterator[None]:
    """Whatever makes the work impossible, in one line."""
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

    Files without a line of the index, and lines that cannot be used, are told, too.
    """
    with _failures():
        damage = _list(Quarantine(OsDisk(), directory), as_json=as_json)
    context.exit(EXIT_DAMAGE if damage else 0)


def _list(quarantine: Quarantine, *, as_json: bool) -> int:
    """Returns how much is wrong."""
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
        what = "no line of the index tells what it is"
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
        console.print(f"damage: {printable(text)}", style="bold red", soft_wrap=True, markup=False, highlight=False)
    count = plural(entries, "entry", "entries")
    console.print(f"{count}, {size:,} bytes, {injected:,} injected", soft_wrap=True, highlight=False)
    if unknown:
        text = (
            f"{plural(unknown, 'entry', 'entries')} marked ?: an injection was cut short, and may have been made or not"
        )
        console.print(f"{text}: see qstore-dump of the store", style="bold red", soft_wrap=True, highlight=False)
    return len(damage)


# ---- show ----


@command.command("show", context_settings=_SETTINGS)
@_DIRECTORY
@click.argument("number", type=click.IntRange(min=1))
@click.option("--raw", "form", flag_value="raw", help="Only the bytes, as they are.")
@click.option("--hex", "form", flag_value="hex", help="Only the bytes, in hex.")
@_JSON
@click.pass_context
def show(context: click.Context, directory: str, number: int, *, form: str | None, as_json: bool) -> None:
    """Show entry NUMBER of the quarantine DIR, the records that can be told in it, and their messages.

    A record is sound if its checksum holds (linearstore, and version 2 where the salt of its file is known) or its
    tail does (version 1). What is not sound is shown as far as it goes, with everything that is wrong with it.
    """
    if form is not None and as_json:
        raise click.UsageError(f"--json does not go with --{form}.")
    with _failures():
        quarantine = Quarantine(OsDisk(), directory)
        entry = quarantine.find([number]).get(number)
        if entry is None:
            fail(_NAME, f"{directory}: there is no entry {number}; {_NAME} list shows what there is")
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
    is_large = entry.size > MOST_BYTES
    raw = b""
    if not is_large:
        with suppress(QuarantineError):  # that they cannot be read is told above
            raw = b"".join(quarantine.raw(entry))
    count = 0
    finder = RecordFinder(raw, entry.salt)
    for count, evidence in enumerate(finder.records(), 1):
        fields = record_object(entry.queue, evidence, judge(raw, evidence))
        if as_json:
            output.show(fields)
        elif count <= _MOST_SHOWN:
            show_record(console, fields)
    if finder.gave_up:
        click.echo(f"{_NAME}: entry {entry.number}: {GAVE_UP}", err=True)
    if as_json:
        output.flush()
    elif is_large:
        click.echo(f"  more than {MOST_BYTES:,} bytes are not looked into; --raw gives them")
    elif not count:
        click.echo("  no record can be told in it")
    elif count > _MOST_SHOWN:
        click.echo(f"  … and {count - _MOST_SHOWN:,} more records; --json shows all")


# ---- inject ----


@command.command("inject", context_settings=_SETTINGS)
@_DIRECTORY
@click.argument("numbers", nargs=-1, required=True, metavar="NUMBER...", type=click.IntRange(min=1))
@click.option("--store", required=True, type=PathName(readable=False), help="The store; no broker may have it open.")
@click.option("--queue", metavar="NAME", help="The queue.  [default: the one that each entry was found in]")
@click.option("--force", is_flag=True, help="Also what is not sound; what is wrong with it is said.")
@click.option("--again", is_flag=True, help="Also what was injected before.")
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
    """Put the messages of entries into a store, at the end of their queue.

    They get new record ids, and are synced when the command ends; those of one entry come all together or not at all.
    Entries are marked in the index, so that none is injected twice unless --again says so.
    """
    wish = Wish(numbers, None if queue is None else unescape_name(queue), force=force, again=again)
    with _failures():
        results = inject(tool_environment(), directory, store, wish, distribution_version(), _tell)
        output, console = JsonLines(sys.stdout.buffer), plain_console()
        for result in results:
            if as_json:
                output.show(injected_object(result))
            else:
                show_injected(console, result)
        output.flush()
    context.exit(EXIT_DAMAGE if any(result.failure is not None for result in results) else 0)


def _tell(line: LogLine) -> None:
    if line.level in (Level.WARNING, Level.CRITICAL):
        click.echo(f"{_NAME}: {printable(line.text)}", err=True)


def main() -> None:
    """The console script."""
    run(_NAME, command)


if __name__ == "__main__":
    main()
