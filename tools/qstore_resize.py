"""`qstore-resize`: change the number and size of a store's journal files while its broker is stopped.

Exit codes: 0 done (or, with --dry-run, possible), 1 the content does not fit, or a journal is damaged, and nothing was
changed, 2 the input or the command line is unusable.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final, NoReturn

import click
from rich.console import Console

from qstore import __version__
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import MAX_FILES, MAX_PAGES, PAGE_SIZE, Geometry
from qstore.formats.wording import plural
from qstore.store.disk import Disk
from qstore.store.environment import dry_run_environment, tool_environment
from qstore.store.errors import StoreDamagedError, StoreError, advice
from qstore.store.inspect.layout import UnusableInputError
from qstore.store.inspect.offline import open_store
from qstore.store.inspect.sizing import RingSize
from qstore.store.repair.resize import Choose, JournalPlan, StoreResize
from qstore.tools.console.amounts import human
from qstore.tools.console.command import DRY_RUN, EXIT_DAMAGE, JSON, SETTINGS, PathName, failing, log_printer, run, say
from qstore.tools.console.rows import Cell, Column, Object, number, print_json, print_line, print_table
from qstore.tools.console.text import printable, unescape_name
from qstore.tools.dump.messages import no_such_queue, queues_named
from qstore.tools.qstore_size import Wanted, exact_number, pages, size_queue

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


@click.command("qstore-resize", epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("store", type=PathName(readable=False))
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option(
    "--num-jfiles", type=click.IntRange(_MIN_FILES, MAX_FILES), metavar="N",
    help="Number of files of each journal.  [default: unchanged]",
)  # fmt: skip
@click.option(
    "--jfile-size-pgs", type=click.IntRange(1, MAX_PAGES), metavar="M",
    help="Size of each file in pages of 64 KiB.  [default: unchanged]",
)  # fmt: skip
@click.option(
    "--auto",
    is_flag=True,
    help="Use the size that qstore-size recommends for the present messages, if that is larger than the present one.",
)
@click.option("--shrink", is_flag=True, help="With --auto: use the recommended size even if it is smaller.")
@click.option("--tpl", is_flag=True, help="Resize the transaction prepared list; without QUEUE, only that.")
@DRY_RUN
@click.option(
    "--discard-old",
    is_flag=True,
    help="Remove the old journals of the given queues, or of all. With a new size: after resizing.",
)
@JSON
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
    say("qstore-resize", str(error))
    sys.exit(EXIT_DAMAGE)


def _run(path: str, request: _Request) -> int:
    """Resize the journals and show the result. Returns the exit code."""
    environment = dry_run_environment() if request.dry_run else tool_environment()
    version = __version__
    plans: list[JournalPlan] = []
    kept: Mapping[str, str] | None = None
    discarded: list[str] = []
    rule: ByRule | None = None
    with StoreResize(environment, path, version, read_only=request.dry_run, log=log_printer("qstore-resize")) as resize:
        request = request._replace(
            names=tuple(each for name in request.names for each in queues_named([name], resize.queues))
        )
        for name in request.names:
            if name not in resize.queues:
                raise StoreError(no_such_queue(path, name, resize.queues))
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
        print_json([plan_object(plan, kept, left) for plan in plans])
        print_json({"kind": "discarded", "file": path} for path in discarded)
        print_json([summary_object(plans, kept, discarded, left)])
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


# ---- the requested geometry ----


def same_for_all(files: int | None, pages: int | None) -> Choose:
    """These numbers for every journal; None leaves a number unchanged."""

    def choose(_: str, before: Geometry) -> Geometry:
        after = before if files is None else replace(before, files=files)
        return after if pages is None else replace(after, data_size=pages * PAGE_SIZE)

    return choose


@dataclass(frozen=True, slots=True)
class ByRule:
    """The recommendations of `qstore-size --from`; a queue without messages is left unchanged.

    The present messages may be fewer than the queue was made for, so journals are shrunk only on request.

    Attributes:
        recommended: queue name -> geometry.
        may_shrink: whether a journal may become smaller.
    """

    recommended: Mapping[str, Geometry]
    may_shrink: bool

    def __call__(self, name: str, before: Geometry) -> Geometry | None:
        """The new geometry for queue `name`; None for unchanged."""
        return None if self.not_shrunk(name, before) is not None else self.recommended.get(name)

    def not_shrunk(self, name: str, before: Geometry) -> Geometry | None:
        """The recommended geometry if it was not applied because it is smaller."""
        wanted = self.recommended.get(name)
        return wanted if wanted is not None and not self.may_shrink and wanted.capacity < before.capacity else None


def recommended_sizes(disk: Disk, path: str) -> dict[str, Geometry]:
    """The recommendations of `qstore-size --from` for each queue that has messages.

    Raises:
        UnusableInputError: there is nothing that could be read as a store.
        OSError: it cannot be read.
    """
    store = open_store(disk, path)
    found = {}
    for queue in store.recover().queues:
        size = size_queue(queue, Wanted(None, 1, count_dequeues=False))
        if size.needed is not None and isinstance(size.needed.choice, RingSize):
            found[queue.name] = size.needed.choice.geometry
        if queue.journal is not None:
            queue.journal.close()
    store.close()
    return found


# ---- the report ----


#: A queue's name -> a smaller recommended geometry that was not applied.
Left = Mapping[str, Geometry]


def result_of(plan: JournalPlan, kept: Mapping[str, str] | None, left: Left) -> str:
    """The result for a journal; `kept` is None if nothing was done."""
    if not plan.fits:
        return "too-small"
    if not plan.is_change:
        return "would-shrink" if plan.name in left else "unchanged"
    return "planned" if kept is None else "resized"


# ---- JSON ----


def plan_object(plan: JournalPlan, kept: Mapping[str, str] | None, left: Left) -> Object:
    """One journal as a JSON object."""
    smaller = left.get(plan.name)
    return {
        "kind": "journal",
        "role": "prepared-list" if plan.entry is None else "queue",
        "queue": plan.name,
        "messages": plan.messages,
        "open_transactions": plan.transactions,
        "live_bytes": plan.live_bytes,
        "before": _geometry_object(plan.before),
        "after": _geometry_object(plan.after),
        "result": result_of(plan, kept, left),
        "recommended_smaller": None if smaller is None else _geometry_object(smaller),
        "would_fit": [_geometry_object(geometry) for geometry in plan.would_fit],
        "kept": None if kept is None else kept.get(plan.name),
    }


def summary_object(
    plans: Sequence[JournalPlan], kept: Mapping[str, str] | None, discarded: Sequence[str], left: Left
) -> Object:
    """The totals."""
    results = [result_of(plan, kept, left) for plan in plans]
    names = ("resized", "planned", "unchanged", "would-shrink", "too-small")
    counts = {name.replace("-", "_"): results.count(name) for name in names}
    return {"kind": "summary", **counts, "discarded": len(discarded)}


def _geometry_object(geometry: Geometry) -> Object:
    return {
        "num_jfiles": geometry.files,
        "jfile_size_pgs": exact_number(Fraction(geometry.data_size, PAGE_SIZE)),
        "capacity": geometry.capacity,
    }


# ---- text ----


def _geometry(name: str) -> Cell:
    return lambda journal: f"{journal[name]['num_jfiles']} x {pages(journal[name]['jfile_size_pgs'])}"


_COLUMNS: Final = (
    Column("journal", lambda journal: printable(journal["queue"]), folds=True),
    Column("messages", number("messages"), number=True),
    Column("open tx", number("open_transactions"), number=True, spare=True),
    Column("live", lambda journal: human(journal["live_bytes"]), number=True, spare=True),
    Column("now", _geometry("before")),
    Column("new", _geometry("after")),
    Column("capacity", lambda journal: human(journal["after"]["capacity"]), number=True, spare=True),
    Column("result", lambda journal: journal["result"].replace("-", " ")),
)


def print_plans(console: Console, plans: Sequence[JournalPlan], kept: Mapping[str, str] | None, left: Left) -> None:
    """A line for each journal, then those that do not fit, those not shrunk, and where the old ones are."""
    if not plans:
        return
    print_table(console, _COLUMNS, [plan_object(plan, kept, left) for plan in plans])
    for plan in plans:
        if not plan.fits:
            print_line(console, too_small_text(plan))
        elif plan.name in left:
            what = f"{_cell(left[plan.name])} is enough for the present messages"
            print_line(
                console,
                f"{printable(plan.name)}: not changed from {_cell(plan.before)}; {what}: use --shrink to apply that",
            )
    for path in (kept or {}).values():
        print_line(console, f"The old journal is preserved in {printable(path)} until --discard-old.")


def too_small_text(plan: JournalPlan) -> str:
    """What does not fit, and which sizes would be large enough."""
    choices = [f"--num-jfiles {each.files} --jfile-size-pgs {_pages(each)}" for each in plan.would_fit]
    advice = " or ".join(choices) if choices else "none; consume some messages first"
    return (
        f"{printable(plan.name)}: {plural(plan.messages, 'message')} and "
        f"{plural(plan.transactions, 'open transaction')}, {human(plan.live_bytes)}, do not fit into "
        f"{_cell(plan.after)}; large enough: {advice}"
    )


def _pages(geometry: Geometry) -> str:
    return str(exact_number(Fraction(geometry.data_size, PAGE_SIZE)))


def _cell(geometry: Geometry) -> str:
    return f"{geometry.files} x {pages(exact_number(Fraction(geometry.data_size, PAGE_SIZE)))}"


def main() -> None:
    """Console script entry point."""
    run("qstore-resize", command)


if __name__ == "__main__":
    main()
