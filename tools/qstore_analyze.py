"""`qstore-analyze`: questions about whole fleets of stores, answered by Spark.

Exit codes: 0 nothing is damaged or missing, 1 something is, 2 the command line cannot be used, no input is a store, or
Java or the extra `spark` is missing.
"""

from __future__ import annotations

import csv
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console

from formats.wording import plural
from tools.check.report import plain_console
from tools.console.json_lines import JsonLines
from tools.console.tables import Column, print_line, print_table
from tools.console.text import printable
from tools.entry import EXIT_DAMAGE, PathName, distribution_version, fail, run
from tools.figures import label, percent
from tools.report.page import render
from tools.size.amounts import exact, human, parse_amount
from tools.spark.analyze.request import QUEUES, REPORT, STEPS, SUMMARY, Request, UnusableRequestError, clean_up, prepare
from tools.spark.needed import missing

if TYPE_CHECKING:
    from tools.spark.analyze.summary import Summary

_PROGRAM: Final = "qstore-analyze"
_LOCAL: Final = "local[*]"
_SHOWN: Final = 50  # queues in the report for people; queues.csv has all

_EPILOG = """
\b
Examples:
qstore-analyze /var/lib/qpidd --out /tmp/answers --report                one store, everything
qstore-analyze '/fleet/*/qpidd' --out /srv/answers --only outstanding,audit
qstore-analyze /fleet/a /fleet/b --out /srv/answers --bodies             with the messages' bodies
qstore-analyze '/fleet/*' --out /srv/answers --master spark://head:7077
qstore-analyze STORE --out DIR --publisher-log sent.csv --publisher-id id    what was sent, and is not there
qstore-analyze STORE --out DIR --compare OTHER                           what one store has and the other lacks
qstore-analyze 's3://bucket/fleet/*' --out /srv/answers                  what fsspec reads (pip install s3fs)

\b
DIR/outstanding                      what a restart would deliver, and what is in doubt
DIR/audit/lifetimes, rates, waits, depth, duplicates, gaps, dangling, overwritten,
          transactions, damage, publisher, compare
DIR/sizing, queues, files            recommended journals; what there is
DIR/export/store_directory=…/queue_directory=…     the records
DIR/queues.csv, summary.json         the same in short
DIR/report.html                      with --report: the same with plots, for a browser

\b
All tables are Parquet. Exit codes: 0 nothing is damaged or missing, 1 something is (the rest is there all the same),
2 not usable. Needs Java 17 and pip install 'qstore[spark]'. Nothing is ever written to a store.
"""


def _steps(_context: click.Context, _parameter: click.Parameter, text: str | None) -> frozenset[str]:
    if text is None:
        return frozenset(STEPS)
    names = {name.strip() for name in text.split(",") if name.strip()}
    unknown = sorted(names - set(STEPS))
    if unknown or not names:
        raise click.BadParameter(f"{', '.join(unknown) or 'nothing'} is no step; there are {', '.join(STEPS)}")
    return frozenset(names)


def _amount(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    try:
        size = None if text is None else parse_amount(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if size == 0:
        raise click.BadParameter("must be more than nothing")
    return size


@click.command(_PROGRAM, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...", type=PathName())
@click.option("--out", required=True, metavar="DIR", help="Directory of the results; not there, or empty.")
@click.option("--force", is_flag=True, help="Replace results that are there.")
@click.option("--master", default=_LOCAL, show_default=True, metavar="URL", help="Spark's master.")
@click.option("--only", "steps", callback=_steps, metavar="STEPS", help=f"Some of {', '.join(STEPS)}.")
@click.option("--bodies", is_flag=True, help="Put bodies into outstanding and export.")
@click.option("--split-bytes", callback=_amount, metavar="SIZE", help="Of a partition; chosen by amount otherwise.")
@click.option(
    "--publisher-log", metavar="TABLE", help="What was sent: Parquet, CSV or JSON lines, or a table of Spark."
)
@click.option("--publisher-id", metavar="COLUMN", default="message_id", show_default=True, help="Its message ids.")
@click.option("--compare", multiple=True, metavar="STORE", help="Another store that should have the same messages.")
@click.option("--report", is_flag=True, help="Make report.html too: for a browser, with plots.")
@click.option("--json", "as_json", is_flag=True, help="The summary as one JSON object, instead of tables.")
@click.version_option(distribution_version(), prog_name=_PROGRAM)
@click.pass_context
def command(context: click.Context, /, *, master: str, force: bool, as_json: bool, **asked: Any) -> None:
    """Analyze stores with Spark.

    Each INPUT is a store directory (qpidd's legacystore or linearstore, or qstore's own), a journal, a glob, or a URL
    that fsspec reads. What cannot be read, or is no store, is told in the table of damage, and does not stop the rest.
    """
    problem = missing()
    if problem is not None:
        fail(_PROGRAM, problem)
    request = Request(**asked)
    try:
        prepare(request, force=force)
        try:
            summary = _analyzed(request, master)
        finally:
            clean_up(request)
        write_results(request, summary)
    except UnusableRequestError as error:
        fail(_PROGRAM, str(error))
    except OSError as error:
        fail(_PROGRAM, f"{error.filename or request.out}: {error.strerror or error}")
    if as_json:
        output = JsonLines(sys.stdout.buffer)
        output.show(summary.fields())
        output.flush()
    else:
        show(plain_console(), request, summary)
    context.exit(EXIT_DAMAGE if summary.has_losses else 0)


def _analyzed(request: Request, master: str) -> Summary:
    """Run Spark. Raises UnusableRequestError."""
    from tools.spark.analyze.progress import spark_progress
    from tools.spark.analyze.run import analyze  # PySpark is there only with the extra
    from tools.spark.analyze.session import SparkFailedError, session

    try:
        with session(master, small=request.is_small) as spark, spark_progress(spark) as stage:
            return analyze(spark, request, stage)
    except SparkFailedError as error:
        raise UnusableRequestError(str(error)) from None


# ---- results ----


def write_results(request: Request, summary: Summary) -> None:
    """Write what is no table: the summary, the queues as CSV, the report. On a URL there is none of it.

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
            writer = csv.DictWriter(text, list(summary.queue_rows[0]))
            writer.writeheader()
            writer.writerows(summary.queue_rows)
    if summary.report is not None:
        with open(request.path(REPORT), "w", encoding="utf-8", opener=_private) as text:  # an opener
            text.write(render(summary.report))


def _private(path: str, flags: int) -> int:
    """Opens a file for its owner alone, as all results: they have names, message ids and bodies."""
    return os.open(path, flags, 0o600)


_COLUMNS: Final = (
    Column("queue", folds=True),
    Column("store", folds=True),
    Column(label("outstanding"), number=True),
    Column(label("in_doubt"), number=True),
    Column(label("peak_depth"), number=True, spare=True),
    Column(label("live_bytes"), number=True, spare=True),
    Column(label("peak_fill"), number=True),
    Column("recommended"),
)


def show(console: Console, request: Request, summary: Summary) -> None:
    """Print the queues whose journals were fullest, and the summary."""
    rows = sorted(summary.queue_rows, key=lambda row: -(row["peak_fill"] or 0))
    if rows:
        print_table(console, _COLUMNS, [_row(row) for row in rows[:_SHOWN]])
        if len(rows) > _SHOWN:
            print_line(console, f"… and {len(rows) - _SHOWN:,} more queues, in {request.path(QUEUES)}")
        print_line(console)
    for name, value in summary.fields().items():
        if name != "kind":
            print_line(console, f"{name.replace('_', ' ')}: {_text(name, value)}")
    print_line(console, f"results in {printable(request.out)}")


def _row(row: dict[str, Any]) -> list[str]:
    fill = row["peak_fill"]
    recommended = "-" if row["num_jfiles"] is None else f"{row['num_jfiles']} x {plural(row['jfile_size_pgs'], 'page')}"
    return [
        printable(row["queue"]),
        printable(row["store"]),
        f"{row['outstanding']:,}",
        f"{row['in_doubt']:,}",
        f"{row['peak_depth']:,}",
        human(row["live_bytes"]),
        "-" if fill is None else percent(fill),
        recommended if row["pool_files"] is None else f"{row['pool_files']} files",
    ]


def _text(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(value.items())) or "the same"
    return exact(value) if name.endswith("_bytes") else f"{value:,}"


def main() -> None:
    """The console script. What it writes, and what Java writes for it, is for the owner alone."""
    os.umask(0o077)
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
