"""`qstore-resize`: change the number and size of a store's journal files while its broker is stopped.

Exit codes: 0 done (or, with --dry-run, possible), 1 the content does not fit, or a journal is damaged, and nothing was
changed, 2 the input or the command line is unusable.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import click
from rich.console import Console

from qstore import __version__
from qstore.formats.rhm.geometry import MAX_FILES, MAX_PAGES
from qstore.store.environment import dry_run_environment, tool_environment
from qstore.store.errors import StoreDamagedError, StoreError, advice
from qstore.store.inspect.layout import UnusableInputError
from qstore.store.log_lines import LogLine
from qstore.store.repair.resize import StoreResize
from qstore.store.repair.resize_plan import Choose, JournalPlan
from qstore.tools.console.json_lines import JsonLines
from qstore.tools.console.tables import print_line
from qstore.tools.console.text import printable, unescape_name
from qstore.tools.entry import EXIT_DAMAGE, PathName, failing, run
from qstore.tools.resize.geometry import ByRule, recommended_sizes, same_for_all
from qstore.tools.resize.report import Left, discarded_object, plan_object, print_plans, summary_object

_MIN_FILES = 4  # num-jfiles

_EPILOG = """
\b
Examples:
qstore-resize /var/lib/qstore orders --num-jfiles 16 --jfile-size-pgs 64
qstore-resize /var/lib/qstore orders bills --jfile-size-pgs 256 --dry-run
qstore-resize /var/lib/qstore --auto              enlarge where qstore-size --from recommends it
qstore-resize /var/lib/qstore --auto --shrink     also shrink
qstore-resize /var/lib/qstore --tpl --num-jfiles 8 --jfile-size-pgs 48
qstore-resize /var/lib/qstore --discard-old       remove the old journals

\b
The broker must be stopped. All messages and open transactions are copied; if the command is killed, each queue has
either its old or its new journal, complete. If the content does not fit, the command reports a size that would be
large enough, and changes nothing. Old journals are preserved in STORE/rhm/resized until --discard-old.
Stores in qpidd's own format (version 1) are not changed by this command: see qpid-store-resize.
With --auto a journal that is larger than recommended is not changed (result "would shrink"); that is not an error.
Exit codes: 0 done, 1 the content does not fit, or a journal is damaged, and nothing was changed, 2 the input or the
command line is unusable.
"""


class _Request(NamedTuple):
    """The request of the command line.

    Attributes:
        names: the queues; empty for all.
        choose: chooses the geometry of their journals; None if only old journals are removed, or with `auto`.
        auto: use the geometry that the sizing rule recommends.
        shrink: with `auto`, also where that is smaller than the present one.
        prepared_list: include the prepared list.
        dry_run: only show what would be done.
        discard_old: remove old journals.
        as_json: print one JSON object per line.
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
    "--num-jfiles", type=click.IntRange(_MIN_FILES, MAX_FILES), metavar="N",
    help=f"Number of journal files, {_MIN_FILES} to {MAX_FILES}.  [default: unchanged]",
)  # fmt: skip
@click.option(
    "--jfile-size-pgs", type=click.IntRange(1, MAX_PAGES), metavar="M",
    help=f"Size of each file in pages of 64 KiB, 1 to {MAX_PAGES}.  [default: unchanged]",
)  # fmt: skip
@click.option(
    "--auto",
    is_flag=True,
    help="Use the size that qstore-size recommends for the present messages, if that is larger than the present one.",
)
@click.option("--shrink", is_flag=True, help="With --auto: use the recommended size even if it is smaller.")
@click.option("--tpl", is_flag=True, help="Resize the transaction prepared list; without QUEUE, only that.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; write nothing.")
@click.option(
    "--discard-old",
    is_flag=True,
    help="Remove the old journals of the given queues, or of all. With a new size: after resizing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead of a table.")
@click.version_option(__version__, prog_name="qstore-resize")
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
    """Change the number and size of the journal files of a store's queues, preserving their content.

    STORE is the store directory. Without QUEUE, the journals of all queues get the given size.
    """
    given = num_jfiles is not None or jfile_size_pgs is not None
    if auto and given:
        raise click.UsageError("--auto cannot be combined with --num-jfiles or --jfile-size-pgs.")
    if shrink and not auto:
        raise click.UsageError(
            "--shrink requires --auto; --num-jfiles and --jfile-size-pgs may shrink a journal anyway."
        )
    if auto and tpl:
        raise click.UsageError("--auto does not apply to --tpl; give --num-jfiles or --jfile-size-pgs.")
    if not (auto or given or discard_old):
        raise click.UsageError("give a size: --num-jfiles and --jfile-size-pgs, or --auto; or --discard-old.")
    if discard_old and dry_run:
        raise click.UsageError("--dry-run and --discard-old cannot be combined.")
    path = posixpath.dirname(store.rstrip("/")) or "." if _is_root(store) else store
    with failing("qstore-resize", UnusableInputError, StoreError, advise=advice):
        choose = same_for_all(num_jfiles, jfile_size_pgs) if given else None
        names = tuple(dict.fromkeys(map(unescape_name, queues)))
        try:
            context.exit(_run(path, _Request(names, choose, auto, shrink, tpl, dry_run, discard_old, as_json)))
        except StoreDamagedError as error:
            _damaged(error)


def _is_root(path: str) -> bool:
    """Whether `path` is the directory `rhm` itself."""
    try:
        return Path(path, "STORE").is_file()
    except OSError:
        return False


def _damaged(error: StoreDamagedError) -> NoReturn:
    click.echo(f"qstore-resize: {printable(str(error))}", err=True)
    sys.exit(EXIT_DAMAGE)


def _run(path: str, request: _Request) -> int:
    """Resize the journals and show the result. Returns the exit code."""
    environment = dry_run_environment() if request.dry_run else tool_environment()
    version = __version__
    plans: list[JournalPlan] = []
    kept: Mapping[str, str] | None = None
    discarded: list[str] = []
    rule: ByRule | None = None
    with StoreResize(environment, path, version, read_only=request.dry_run, log=_warn) as resize:
        for name in request.names:
            if name not in resize.queues:
                raise StoreError(f'{path}: there is no queue "{name}"')
        names = request.names or ([] if request.prepared_list else list(resize.queues))
        if request.auto:
            rule = ByRule(recommended_sizes(environment.disk, path), request.shrink)
        choose = rule or request.choose
        if choose is not None:
            plans = resize.plan(names, choose, prepared_list=request.prepared_list)
        fits = all(plan.fits for plan in plans)
        if fits and not request.dry_run:
            kept = resize.resize(plans, _progress)
            if request.discard_old:
                all_of_them = not request.names and not request.prepared_list
                discarded = resize.discard_old(None if all_of_them else names, prepared_list=request.prepared_list)
    smaller = {} if rule is None else {plan.name: rule.not_shrunk(plan.name, plan.before) for plan in plans}
    _show(plans, kept, discarded, {name: size for name, size in smaller.items() if size is not None}, request)
    return 0 if fits else EXIT_DAMAGE


def _warn(line: LogLine) -> None:
    click.echo(f"qstore-resize: {printable(line.text)}", err=True)


def _progress(name: str) -> None:
    """On a terminal, show which journal is being built."""
    if sys.stderr.isatty():
        click.echo(f"building the journal of {printable(name)}", err=True)


def _show(
    plans: Sequence[JournalPlan],
    kept: Mapping[str, str] | None,
    discarded: Sequence[str],
    left: Left,
    request: _Request,
) -> None:
    if request.as_json:
        lines = JsonLines(sys.stdout.buffer)
        for plan in plans:
            lines.show(plan_object(plan, kept, left))
        for path in discarded:
            lines.show(discarded_object(path))
        lines.show(summary_object(plans, kept, discarded, left))
        lines.flush()
        return
    console = Console()
    # Old journals that have just been removed are no longer reported as preserved.
    still_kept = None if kept is None else {name: at for name, at in kept.items() if at not in discarded}
    print_plans(console, plans, still_kept, left)
    for path in discarded:
        print_line(console, f"removed {printable(path)}")
    if request.discard_old and not discarded:
        print_line(console, "There are no old journals to remove.")
    if not all(plan.fits for plan in plans):
        print_line(console, "Nothing was changed.")
    elif request.dry_run:
        print_line(console, "Nothing was changed: this was a dry run.")
    sys.stdout.flush()


def main() -> None:
    """Console script entry point."""
    run("qstore-resize", command)


if __name__ == "__main__":
    main()
