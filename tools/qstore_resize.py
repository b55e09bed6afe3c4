"""`qstore-resize`: give journals of a store that nobody runs more files or fewer, larger or smaller ones.

Exit codes: 0 done (or, with --dry-run, it could be), 1 something does not fit or is damaged, and nothing was changed,
2 the input or the command line cannot be used.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, NoReturn

import click
from rich.console import Console

from formats.rhm.geometry import MAX_FILES
from store.environment import Environment, tool_environment
from store.errors import StoreDamagedError, StoreError, advice
from store.inspect.layout import UnusableInputError
from store.inspect.sizing import MAX_PAGES
from store.key_value import KeyValue, open_copy
from store.log_lines import LogLine
from store.repair.resize import StoreResize
from store.repair.resize_plan import Choose, JournalPlan
from tools.console.json_lines import JsonLines
from tools.console.tables import print_line
from tools.console.text import printable, unescape_name
from tools.entry import EXIT_DAMAGE, PathName, distribution_version, failing, run
from tools.resize.report import Left, discarded_object, plan_object, print_plans, summary_object
from tools.resize.wishes import ByRule, recommended_sizes, same_for_all

_LEAST_FILES = 4  # of num-jfiles

_EPILOG = """
\b
Examples:
qstore-resize /var/lib/qstore orders --num-jfiles 16 --jfile-size-pgs 64
qstore-resize /var/lib/qstore orders bills --jfile-size-pgs 256 --dry-run
qstore-resize /var/lib/qstore --auto              larger where qstore-size --from recommends it
qstore-resize /var/lib/qstore --auto --shrink     smaller, too
qstore-resize /var/lib/qstore --tpl --num-jfiles 8 --jfile-size-pgs 48
qstore-resize /var/lib/qstore --discard-old       remove the old journals, when all is well

\b
The broker must not run. All messages and open transactions move; a kill at any moment leaves each queue with its old
journal or with the new one, whole. Old journals are kept in STORE/rhm/resized until --discard-old.
A store of qpidd's own (version 1) is not changed by this command: see qpid-store-resize.
With --auto a journal that is larger than recommended is left as it is (result "would shrink"), which is no error.
Exit codes: 0 done, 1 it does not fit, or a journal is damaged, and nothing was changed, 2 unusable input.
"""


class _Asked(NamedTuple):
    """What the user asks for.

    Attributes:
        names: the queues; none for all.
        choose: what their journals are to be; None where old ones are only to be removed, or with `auto`.
        auto: they are to be what the sizing rule says.
        shrink: with `auto`, even if that is less than they have.
        prepared_list: the prepared list, too.
        dry_run: show only what would be done.
        discard_old: remove old journals.
        as_json: one JSON object a line.
    """

    names: tuple[str, ...]
    choose: Choose | None
    auto: bool
    shrink: bool
    prepared_list: bool
    dry_run: bool
    discard_old: bool
    as_json: bool


@click.command("qstore-resize", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("store", type=PathName(readable=False))
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option(
    "--num-jfiles", type=click.IntRange(_LEAST_FILES, MAX_FILES), metavar="N",
    help=f"Files of the journal, {_LEAST_FILES} to {MAX_FILES}.  [default: as many as it has]",
)  # fmt: skip
@click.option(
    "--jfile-size-pgs", type=click.IntRange(1, MAX_PAGES), metavar="M",
    help=f"Size of each file in pages of 64 KiB, 1 to {MAX_PAGES}.  [default: what it has]",
)  # fmt: skip
@click.option(
    "--auto",
    is_flag=True,
    help="The size that qstore-size recommends for the messages that are there, where it is larger; none, no change.",
)
@click.option("--shrink", is_flag=True, help="With --auto: the recommended size also where it is smaller.")
@click.option("--tpl", is_flag=True, help="The transaction prepared list; without QUEUE, only that.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and write nothing.")
@click.option("--discard-old", is_flag=True, help="Remove the old journals of the queues named, or all; at the end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, instead of a table.")
@click.version_option(distribution_version(), prog_name="qstore-resize")
@click.pass_context
def command(
    context: click.Context,
    *,
    store: str,
    queues: tuple[str, ...],
    num_jfiles: int | None,
    jfile_size_pgs: int | None,
    auto: bool,
    shrink: bool,
    tpl: bool,
    dry_run: bool,
    discard_old: bool,
    as_json: bool,
) -> None:
    """Make the journals of a store's queues larger or smaller, with all that is in them.

    STORE is the store directory. Without QUEUE, every queue's journal gets the size that is given.
    """
    given = num_jfiles is not None or jfile_size_pgs is not None
    if auto and given:
        raise click.UsageError("--auto takes the sizes from the sizing rule; leave --num-jfiles, --jfile-size-pgs out.")
    if shrink and not auto:
        raise click.UsageError("--shrink goes with --auto; --num-jfiles and --jfile-size-pgs need no leave to shrink.")
    if auto and tpl:
        raise click.UsageError("--auto sizes for messages; give --num-jfiles or --jfile-size-pgs with --tpl.")
    if not (auto or given or discard_old):
        raise click.UsageError("say what size: --num-jfiles and --jfile-size-pgs, or --auto; or --discard-old.")
    if discard_old and dry_run:
        raise click.UsageError("--dry-run does not go with --discard-old.")
    path = posixpath.dirname(store.rstrip("/")) or "." if _is_root(store) else store
    with failing("qstore-resize", UnusableInputError, StoreError, advise=advice):
        choose = same_for_all(num_jfiles, jfile_size_pgs) if given else None
        names = tuple(dict.fromkeys(map(unescape_name, queues)))
        try:
            context.exit(_run(path, _Asked(names, choose, auto, shrink, tpl, dry_run, discard_old, as_json)))
        except StoreDamagedError as error:
            _damaged(error)


def _is_root(path: str) -> bool:
    """Whether the directory `rhm` itself was named."""
    try:
        return Path(path, "STORE").is_file()
    except OSError:
        return False


def _damaged(error: StoreDamagedError) -> NoReturn:
    click.echo(f"qstore-resize: {printable(str(error))}", err=True)
    sys.exit(EXIT_DAMAGE)


def _environment(*, dry_run: bool) -> Environment:
    """That of a tool; in a dry run with a catalogue that is copied, and not written to."""

    def open_to_read(path: str, *, create: bool) -> KeyValue:
        assert not create
        return open_copy(Path(path))

    environment = tool_environment()
    return replace(environment, open_key_value=open_to_read) if dry_run else environment


def _run(path: str, asked: _Asked) -> int:
    """Do it, and show it. Returns the exit code."""
    environment = _environment(dry_run=asked.dry_run)
    version = distribution_version()
    plans: list[JournalPlan] = []
    kept: Mapping[str, str] | None = None
    discarded: list[str] = []
    rule: ByRule | None = None
    with StoreResize(environment, path, version, read_only=asked.dry_run, log=_warn) as resize:
        for name in asked.names:
            if name not in resize.queues:
                raise StoreError(f'{path}: there is no queue "{name}" here')
        names = asked.names or ([] if asked.prepared_list else list(resize.queues))
        if asked.auto:
            rule = ByRule(recommended_sizes(environment.disk, path), asked.shrink)
        choose = rule or asked.choose
        if choose is not None:
            plans = resize.plan(names, choose, prepared_list=asked.prepared_list)
        fits = all(plan.fits for plan in plans)
        if fits and not asked.dry_run:
            kept = resize.resize(plans, _progress)
            if asked.discard_old:
                all_of_them = not asked.names and not asked.prepared_list
                discarded = resize.discard_old(None if all_of_them else names, prepared_list=asked.prepared_list)
    smaller = {} if rule is None else {plan.name: rule.not_shrunk(plan.name, plan.before) for plan in plans}
    _show(plans, kept, discarded, {name: size for name, size in smaller.items() if size is not None}, asked)
    return 0 if fits else EXIT_DAMAGE


def _warn(line: LogLine) -> None:
    click.echo(f"qstore-resize: {printable(line.text)}", err=True)


def _progress(name: str) -> None:
    """Say on a terminal which journal is being built."""
    if sys.stderr.isatty():
        click.echo(f"building the journal of {printable(name)}", err=True)


def _show(
    plans: Sequence[JournalPlan],
    kept: Mapping[str, str] | None,
    discarded: Sequence[str],
    left: Left,
    asked: _Asked,
) -> None:
    if asked.as_json:
        lines = JsonLines(sys.stdout.buffer)
        for plan in plans:
            lines.show(plan_object(plan, kept, left))
        for path in discarded:
            lines.show(discarded_object(path))
        lines.show(summary_object(plans, kept, discarded, left))
        lines.flush()
        return
    console = Console()
    # Old journals that are gone again are no longer kept.
    still_kept = None if kept is None else {name: at for name, at in kept.items() if at not in discarded}
    print_plans(console, plans, still_kept, left)
    for path in discarded:
        print_line(console, f"removed {printable(path)}")
    if asked.discard_old and not discarded:
        print_line(console, "There are no old journals to remove.")
    if not all(plan.fits for plan in plans):
        print_line(console, "Nothing was changed.")
    elif asked.dry_run:
        print_line(console, "Nothing was changed: this was a dry run.")
    sys.stdout.flush()


def main() -> None:
    """The console script."""
    run("qstore-resize", command)


if __name__ == "__main__":
    main()
