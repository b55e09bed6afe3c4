"""`qstore-analyze`: analyze whole fleets of stores, on this machine or with Spark.

Exit codes: 0 nothing is damaged or missing, 1 something is, 2 the command line is unusable, no input is a store, or
the extra `spark`, or Java where it is needed, is not installed.
"""

from __future__ import annotations

import csv
import os
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from qstore import __version__
from qstore.formats.broker_records.topology import split_name
from qstore.formats.wording import plural
from qstore.tools.console.amounts import exact, human, parse_amount
from qstore.tools.console.command import EXIT_DAMAGE, JSON, SETTINGS, PathName, fail, run
from qstore.tools.console.progress import progress_bar
from qstore.tools.console.rows import (
    Column,
    JsonLines,
    field,
    number,
    plain_console,
    print_json,
    print_line,
    print_table,
)
from qstore.tools.console.text import printable
from qstore.tools.metrics import label, percent
from qstore.tools.report.page import render
from qstore.tools.spark.needed import missing
from qstore.tools.spark.request import (
    QUEUES,
    REPORT,
    STEPS,
    SUMMARY,
    Request,
    UnusableRequestError,
    abandon,
    clean_up,
    prepare,
    processes_of,
)

if TYPE_CHECKING:
    from qstore.tools.spark.analysis import Summary

_PROGRAM: Final = "qstore-analyze"
_LOCAL: Final = "local[*]"
_SHOWN: Final = 50  # queues in the console output; queues.csv has all

_EPILOG = """
\b
Examples:
qstore-analyze /var/lib/qpidd --out /tmp/answers --report                one store, all steps
qstore-analyze '/fleet/*/qpidd' --out /srv/answers --only outstanding,audit
qstore-analyze /fleet/a /fleet/b --out /srv/answers --bodies             include message bodies
qstore-analyze '/fleet/*' --out /srv/answers --master spark://head:7077  on a Spark cluster
qstore-analyze STORE --out DIR --publisher-log sent.csv --publisher-id id    find messages sent but not stored
qstore-analyze STORE --out DIR --compare OTHER                           find differences between two stores
qstore-analyze 's3://bucket/fleet/*' --out /srv/answers                  any URL of fsspec (pip install s3fs)

\b
Results in DIR (all tables are Parquet):
outstanding                          messages that a restart would deliver, and messages in doubt
audit/lifetimes, rates, waits, depth, duplicates, gaps, dangling, overwritten,
    transactions, damage, publisher, compare
sizing, queues, files                recommended journal sizes; inventory of queues and files
export/store_directory=…/queue_directory=…     all records
queues.csv, summary.json             summaries
report.html                          with --report: the same with plots, for a browser

\b
Needs pip install 'qstore[spark]'. On one machine (--master local[N]: N processes) stores are read without Spark,
which compares ids (--publisher-log, --compare) and needs Java 17. Workers of a Spark cluster need this package, too.
Stores are never written to.
Exit codes: 0 nothing is damaged or missing, 1 something is (the results are complete apart from it), 2 the command
line is unusable, no input is a store, or Java or the extra is not installed, 130 interrupted by Ctrl-C.
"""


def _steps(_context: click.Context, _parameter: click.Parameter, text: str | None) -> frozenset[str]:
    if text is None:
        return frozenset(STEPS)
    names = {name.strip() for name in text.split(",") if name.strip()}
    unknown = sorted(names - set(STEPS))
    if unknown or not names:
        raise click.BadParameter(
            f"{', '.join(unknown) or 'an empty value'} is not a step; the steps are {', '.join(STEPS)}"
        )
    return frozenset(names)


def _amount(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    try:
        size = None if text is None else parse_amount(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if size == 0:
        raise click.BadParameter("must be greater than zero")
    return size


@click.command(_PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...", type=PathName())
@click.option("--out", required=True, metavar="DIR", help="Directory for the results; must be empty or not exist.")
@click.option("--force", is_flag=True, help="Replace existing results in DIR.")
@click.option("--master", default=_LOCAL, show_default=True, metavar="URL", help="Spark master.")
@click.option(
    "--only",
    "steps",
    callback=_steps,
    metavar="STEPS",
    help=f"Run only these steps: a comma-separated list of {', '.join(STEPS)}.  [default: all]",
)
@click.option("--bodies", is_flag=True, help="Include message bodies in the tables outstanding and export.")
@click.option(
    "--split-bytes",
    callback=_amount,
    metavar="SIZE",
    help="Largest size of the stores that one task reads.  [default: equal numbers of stores]",
)
@click.option(
    "--publisher-log",
    metavar="TABLE",
    help="Messages that were sent, to find missing ones: a Parquet, CSV or JSON lines file, or a Spark table.",
)
@click.option(
    "--publisher-id",
    metavar="COLUMN",
    default="message_id",
    show_default=True,
    help="Column of the publisher log with the message ids.",
)
@click.option(
    "--compare", multiple=True, metavar="STORE", help="Another store that should have the same messages. Repeatable."
)
@click.option("--report", is_flag=True, help="Also write report.html, a page with plots for a browser.")
@JSON
@click.version_option(__version__, prog_name=_PROGRAM)
@click.pass_context
def command(context: click.Context, /, *, master: str, force: bool, as_json: bool, **asked: Any) -> None:
    """Analyze stores, on this machine or with Spark.

    Each INPUT is a store directory (qpidd's legacystore or linearstore, or qstore's own), a journal, a glob, or a URL
    that fsspec can read. Inputs that cannot be read, or are not stores, are listed in the table of damage and do not
    stop the analysis.
    """
    request = Request(**asked)
    problem = missing(java=request.compares or processes_of(master) is None)
    if problem is not None:
        fail(_PROGRAM, problem)
    try:
        is_new = prepare(request, force=force)
        try:
            summary = _analyzed(request, master)
            write_results(request, summary)
        except BaseException:
            abandon(request, is_new=is_new)
            raise
        finally:
            clean_up(request)
    except UnusableRequestError as error:
        fail(_PROGRAM, str(error))
    except OSError as error:
        fail(_PROGRAM, f"{error.filename or request.out}: {error.strerror or error}")
    if as_json:
        print_json([summary.fields()])
    else:
        show(plain_console(), request, summary)
    context.exit(EXIT_DAMAGE if summary.has_losses else 0)


def _analyzed(request: Request, master: str) -> Summary:
    """Run the analysis and return the summary. Raises UnusableRequestError."""
    from qstore.tools.spark.analysis import Local, analyze  # PyArrow is installed only with the extra

    processes = processes_of(master)
    if processes is not None and not request.compares:
        with progress_bar("starting", MofNCompleteColumn(), TimeElapsedColumn()) as bar:
            if bar is None:
                return analyze(Local(processes, lambda _done, _total: None), request, lambda _: None)
            return analyze(Local(processes, bar.set), request, bar.begin)
    from qstore.tools.spark.session import SparkFailedError, session, spark_progress

    try:
        with (
            session(master, small=request.is_small) as spark,
            spark_progress(spark) as stage,
        ):
            return analyze(spark, request, stage)
    except SparkFailedError as error:
        raise UnusableRequestError(str(error)) from None


# ---- results ----


def write_results(request: Request, summary: Summary) -> None:
    """Write the results that are not tables: summary, queues as CSV, report. Skipped if the output is a URL.

    Raises:
        OSError: a file cannot be written.
    """
    if request.is_remote:
        return
    with open(request.path(SUMMARY), "wb", opener=_private) as file:  # an opener
        output = JsonLines(file)
        output.show(summary.fields())
        output.flush()
    if summary.queue_rows:
        with open(request.path(QUEUES), "w", newline="", opener=_private) as text:
            writer = csv.DictWriter(text, [*summary.queue_rows[0], "vhost"])
            writer.writeheader()
            for row in summary.queue_rows:
                host, name = split_name(row["queue"])
                writer.writerow({**row, "queue": name, "vhost": host})
    if summary.report is not None:
        with open(request.path(REPORT), "w", encoding="utf-8", opener=_private) as text:  # an opener
            text.write(render(summary.report))


def _private(path: str, flags: int) -> int:
    """Open a file with mode 0600, as for all results: they contain names, message ids and bodies."""
    return os.open(path, flags, 0o600)


def _present(row: dict[str, Any]) -> str:
    pages = int(row["pages"])
    return plural(row["files"], "file") if pages < row["pages"] else f"{row['files']} x {plural(pages, 'page')}"


def _recommended(row: dict[str, Any]) -> str:
    if row["pool_files"] is not None:
        return plural(row["pool_files"], "file")
    return "-" if row["num_jfiles"] is None else f"{row['num_jfiles']} x {plural(row['jfile_size_pgs'], 'page')}"


_COLUMNS: Final = (
    Column("queue", field("queue"), folds=True),
    Column("store", field("store"), folds=True),
    Column(label("outstanding"), number("outstanding"), number=True),
    Column(label("in_doubt"), number("in_doubt"), number=True),
    Column(label("peak_depth"), number("peak_depth"), number=True, spare=True),
    Column(label("live_bytes"), lambda row: human(row["live_bytes"]), number=True, spare=True),
    Column(label("peak_fill"), lambda row: "-" if row["peak_fill"] is None else percent(row["peak_fill"]), number=True),
    Column("journal", _present),
    Column("recommended", _recommended),
)


def show(console: Console, request: Request, summary: Summary) -> None:
    """Print the fullest queues, and the summary."""
    rows = sorted(summary.queue_rows, key=lambda row: -(row["peak_fill"] or 0))
    if rows:
        print_table(console, _COLUMNS, rows[:_SHOWN])
        if len(rows) > _SHOWN:
            print_line(console, f"… and {len(rows) - _SHOWN:,} more queues, in {request.path(QUEUES)}")
        print_line(console)
    for name, value in summary.fields().items():
        if name != "kind":
            print_line(console, f"{name.replace('_', ' ')}: {_text(name, value)}")
    print_line(console, f"results are in {printable(request.out)}")


def _text(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(value.items())) or "identical"
    return exact(value) if name.endswith("_bytes") else f"{value:,}"


def main() -> None:
    """Console script entry point. Files that it or Java creates are private to the user."""
    os.umask(0o077)
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
