"""Every number that more than one output shows is the same in all of them, and what other code counts.

The outputs of an analysis: the console, `summary.json`, `queues.csv`, the report (sums, cards, table) and the tables.
The other code: `qstore-check`, `qstore-dump` and `qstore-size` on the same stores, and the sizes of the files.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from click.testing import CliRunner
from rich.console import Console

from qstore.tools.console.amounts import exact, human
from qstore.tools.generate.fleet import FleetSpec, StoreFormat
from qstore.tools.generate.make import make_store
from qstore.tools.metrics import METRICS, label, percent
from qstore.tools.qstore_analyze import show, write_results
from qstore.tools.qstore_size import command as size_command
from qstore.tools.report.content import FindingKind, QueueReport, ReportContent
from qstore.tools.report.markup import count
from qstore.tools.spark.request import Request
from tests.spark.analyses import analyzed
from tests.support.dump import Line, dump
from tests.support.fixtures import StoreOpener
from tests.support.generated_fleet import listed
from tests.support.planted_damage import check
from tests.support.profiles import only_on_its_day
from tests.support.report_content import Page

#: What is in the summary and no number, or by its own name.
OTHERS: Final = {"kind", "publisher", "compare"}

pytestmark = only_on_its_day(1, 4)  # another whole analysis is that of test_analyze


class Outputs(NamedTuple):
    """Everything that an analysis has put out, and what other code says of the same stores."""

    paths: tuple[str, ...]
    request: Request
    fields: Line
    report: ReportContent
    page: Page
    console: str
    rows: dict[tuple[str, str], Line]
    checked: dict[str, list[Line]]
    shown: dict[str, list[Line]]
    sized: dict[tuple[str, str], Line]

    def table(self, spark: Any, *names: str) -> Any:
        return spark.read.parquet(self.request.path(*names))

    def journals(self) -> dict[tuple[str, str], Line]:
        """The lines of qstore-check about queues."""
        return {
            (path, line["queue"]): line
            for path, lines in self.checked.items()
            for line in lines
            if line["kind"] == "journal" and line["role"] == "queue"
        }

    def summed(self, name: str) -> int:
        """A number of qstore-check's about whole stores, over all of them."""
        return sum(line[name] for lines in self.checked.values() for line in lines if line["kind"] == "store")


def stores(directory: Path, real: StoreOpener) -> tuple[str, ...]:
    """Stores of every format: transactions in doubt, rings that went round, damage, empty queues, and qpidd's own."""
    ring: dict[str, Any] = {"num_jfiles": 4, "jfile_size_pgs": 1, "dequeued": 0.96}
    common: dict[str, Any] = {"queues": 3, "messages": 900, "in_doubt": 3, "transactions": 0.3}
    specs = {
        "rings": FleetSpec(format=StoreFormat.QSTORE, seed=11, **common, **ring),
        "old-rings": FleetSpec(format=StoreFormat.LEGACYSTORE, seed=12, **common, **ring),
        "damaged": FleetSpec(format=StoreFormat.QSTORE, seed=4, damage=1.0, **common),
        "damaged-rings": FleetSpec(format=StoreFormat.LEGACYSTORE, seed=5, damage=0.7, **common, **ring),
        "damaged-line": FleetSpec(format=StoreFormat.LINEARSTORE, seed=6, damage=0.7, **common),
        "empty": FleetSpec(format=StoreFormat.QSTORE, seed=7, queues=2, messages=0),
    }
    paths = []
    for name, spec in specs.items():
        (directory / name).mkdir()
        paths.append(str(directory / name / make_store(spec, str(directory / name), 1)["name"]))
    fixtures = ("legacy-d-dtx", "legacy-e-wrap-clean", "legacy-c-midcommit1", "linear-c-localtx", "linear-d-dtx")
    return (*paths, *(str(real(name).path) for name in fixtures))


@pytest.fixture(scope="module")
def outputs(spark: Any, open_fixture: StoreOpener, tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    paths = stores(tmp_path_factory.mktemp("stores"), open_fixture)
    request = Request(paths, str(tmp_path_factory.mktemp("answers") / "out"), report=True)
    summary = analyzed(spark, request)
    write_results(request, summary)
    console = Console(file=io.StringIO(), width=400)
    show(console, request, summary)
    with Path(request.path("queues.csv")).open() as file:
        rows = {(row["store"], row["queue"]): row for row in csv.DictReader(file)}
    sized = {}
    for path in paths:
        result = CliRunner().invoke(size_command, ["--from", path, "--json"])
        for line in map(json.loads, result.stdout.splitlines()):
            if line["kind"] == "queue_size":
                sized[path, line["queue"]] = line
    assert isinstance(console.file, io.StringIO)
    return Outputs(
        paths,
        request,
        json.loads(Path(request.path("summary.json")).read_text()),
        summary.report,
        Page(Path(request.path("report.html")).read_text("utf-8")),
        console.file.getvalue(),
        rows,
        {path: check(path).lines() for path in paths},
        {path: dump(path, "--outstanding", "--json", "--body", "none").lines() for path in paths},
        sized,
    )


# ---- the whole ----


def test_every_number_is_defined(outputs: Outputs) -> None:
    numbers = {name for name in outputs.fields if name not in OTHERS}
    assert numbers <= set(METRICS)
    assert {
        "near_threshold", "dangling_dequeues", "overwritten_dequeues", "transactions_in_doubt", "journal_bytes",
    } <= numbers  # fmt: skip


def test_console_matches_the_summary(outputs: Outputs) -> None:
    for name, value in outputs.fields.items():
        if name not in OTHERS:
            shown = exact(value) if name.endswith("_bytes") else f"{value:,}"
            assert f"\n{label(name)}: {shown}\n" in outputs.console, name


def test_report_matches_the_summary(outputs: Outputs) -> None:
    fields, totals = outputs.fields, outputs.report.totals
    for name in (
        "stores", "queues", "files", "journal_bytes", "records", "record_bytes", "outstanding", "live_bytes",
        "in_doubt",
    ):  # fmt: skip
        assert getattr(totals, name) == fields[name], name
    found = {kind.metric: number for kind, number in totals.findings.items()}
    assert found == {kind.metric: fields[kind.metric] for kind in FindingKind if fields.get(kind.metric)}
    assert {"damage", "transactions_in_doubt"} <= set(found)
    for kind, number in totals.findings.items():
        assert kind.counted(number) in outputs.page.text
    for name in ("outstanding", "in_doubt", "queues", "records"):
        assert f"{label(name)}\n{count(fields[name])}\n" in outputs.page.text, name
    for name in ("live_bytes", "journal_bytes"):
        assert f"{label(name)}\n{human(fields[name])}\n" in outputs.page.text, name


def test_summary_matches_counts_of_other_tools(outputs: Outputs) -> None:
    fields = outputs.fields
    assert fields["stores"] == len(outputs.paths)
    for name in ("queues", "records", "outstanding", "in_doubt", "transactions", "damage"):
        assert fields[name] == outputs.summed(name), name
    messages = Counter(line.get("state") for lines in outputs.shown.values() for line in lines
                       if line["kind"] == "message")  # fmt: skip
    assert fields["outstanding"] == messages["outstanding"]
    assert fields["in_doubt"] == messages["in-doubt-enqueue"] + messages["in-doubt-dequeue"]
    states = Counter(line["state"] for lines in outputs.shown.values() for line in lines
                     if line["kind"] == "transaction")  # fmt: skip
    assert fields["transactions_in_doubt"] == states["in-doubt"] > 6
    assert fields["live_bytes"] == sum(line["live_bytes"] for line in outputs.journals().values())
    assert fields["near_threshold"] == sum(line["near_threshold"] for line in outputs.journals().values())
    sizes = [size for path in outputs.paths for size in written_files(Path(path))]
    assert (fields["files"], fields["journal_bytes"]) == (len(sizes), sum(sizes))


def written_files(store: Path) -> list[int]:
    """The sizes of a store's journal files that were written: of a ring, and those of its pool that a line uses."""
    pool = [file for file in store.rglob("*.jrnl") if file.parent.name == "in_use"]
    linked = {file.name for file in store.rglob("*.jrnl") if file.is_symlink()}
    planted = listed(store, "damage") if Path(f"{store}.jsonl").exists() else []
    foreign = {store / line["file"] for line in planted if line["what"] == "foreign"}  # read as nobody's
    linked -= {file.name for file in foreign}
    files = [*store.rglob("*.jdat"), *(file for file in pool if file.name in linked)]
    return [file.stat().st_size for file in files if is_written(file.read_bytes()[:512])]


def is_written(sector: bytes) -> bool:
    """Whether a header says that its file was entered: version 2 creates it with one of flush 0, in the second slot."""
    if sector[:4] == b"RHMf" and sector[4] == 2:
        return True
    return bool(sector[:256].strip(b"\0"))


def test_the_summary_counts_the_rows_of_the_tables(spark: Any, outputs: Outputs) -> None:
    fields = outputs.fields
    for table, name in (
        ("duplicates", "duplicates"), ("gaps", "gaps"), ("dangling", "dangling_dequeues"), ("damage", "damage"),
        ("overwritten", "overwritten_dequeues"), ("transactions", "transactions"),
    ):  # fmt: skip
        assert outputs.table(spark, "audit", table).count() == fields[name], table
    assert fields["overwritten_dequeues"] > 0
    damage = outputs.table(spark, "audit", "damage")
    assert damage.where("checksum").count() == fields["checksum_failures"]
    transactions = outputs.table(spark, "audit", "transactions")
    assert transactions.where("state = 'in-doubt'").count() == fields["transactions_in_doubt"]
    there = outputs.table(spark, "outstanding")
    assert there.where("state = 'outstanding'").count() == fields["outstanding"]
    assert there.where("state != 'outstanding'").count() == fields["in_doubt"]
    assert outputs.table(spark, "export").where("type != 'damage'").count() == fields["records"]
    sizing = outputs.table(spark, "sizing")
    assert sizing.count() == fields["queues"] == len(outputs.rows)
    for name in ("near_threshold", "peak_near_threshold"):
        assert sizing.where(name).count() == fields[name]
    for name in ("outstanding", "in_doubt", "live_bytes"):
        assert sizing.agg({name: "sum"}).first()[0] == fields[name]


# ---- each queue ----


def test_each_queue_matches_other_tools(outputs: Outputs) -> None:
    journals = outputs.journals()
    assert set(outputs.rows) == set(journals) == set(outputs.sized)
    filled = 0
    for key, row in outputs.rows.items():
        journal, sized = journals[key], outputs.sized[key]
        in_doubt = journal["in_doubt_enqueues"] + journal["in_doubt_dequeues"]
        assert [int(row[name]) for name in ("outstanding", "in_doubt", "depth")] == [
            journal["outstanding"], in_doubt, journal["outstanding"] + in_doubt,
        ], key  # fmt: skip
        for name in ("live_bytes", "capacity", "live_share", "limit", "used", "fill"):
            assert _number(row[name]) == journal[name] == sized[name], (key, name)
        if journal["limit"] is None:
            assert row["near_threshold"] == ""
            assert (journal["near_threshold"], sized["near_threshold"]) == (False, None)
        else:
            assert row["near_threshold"] == str(journal["near_threshold"]) == str(sized["near_threshold"])
            assert float(row["peak_fill"]) >= float(row["fill"])
            filled += journal["fill"] > 0
        assert int(row["peak_depth"]) >= int(row["depth"])
        (own,) = [line for line in outputs.shown[key[0]] if line["kind"] == "queue" and line["name"] == key[1]]
        assert own["messages"] == int(row["outstanding"])
    assert filled > 10


def _number(text: str) -> float | None:
    return float(text) if text else None


def test_each_card_matches_the_tables(spark: Any, outputs: Outputs) -> None:
    rates = {(row.store, row.queue): row for row in outputs.table(spark, "audit", "rates").collect()}
    waits = {(row.store, row.queue): row for row in outputs.table(spark, "audit", "waits").collect()}
    journals = outputs.journals()
    assert {(queue.store, queue.queue) for queue in outputs.report.queues} == set(outputs.rows)
    for queue in outputs.report.queues:
        key = (queue.store, queue.queue)
        row, journal = outputs.rows[key], journals[key]
        for name in ("outstanding", "in_doubt", "live_bytes", "peak_depth"):
            assert (getattr(queue, name) or 0) == int(row[name]), (key, name)
        for name in ("enqueues", "dequeues"):
            assert getattr(queue, name) == journal[name], (key, name)
        if key in rates:
            own = rates[key]
            assert own.recorded == own.outstanding + own.in_doubt + own.dequeued == int(row["recorded"])
            assert (own.outstanding, own.in_doubt) == (queue.outstanding, queue.in_doubt)
        assert (0 if queue.waits is None else queue.waits.count) == (waits[key].measured if key in waits else 0)
        assert queue.sizing is not None
        assert queue.sizing.fill == _number(row["peak_fill"])


def test_the_console_and_the_page_show_the_same_of_a_queue(outputs: Outputs) -> None:
    for key, row in outputs.rows.items():
        fill = "-" if not row["peak_fill"] else percent(float(row["peak_fill"]))
        cells = [key[1], key[0], f"{int(row['outstanding']):,}", f"{int(row['in_doubt']):,}",
                 f"{int(row['peak_depth']):,}", human(int(row["live_bytes"])), fill]  # fmt: skip
        pattern = r"\s+".join(map(re.escape, cells))
        assert re.search(rf"^{pattern}\s", outputs.console, re.MULTILINE), cells
    for queue in outputs.report.queues[: outputs.report.plots]:
        if queue.sizing is not None and queue.sizing.fill is not None:
            assert f"{percent(queue.sizing.fill)}" in outputs.page.text


def test_a_queue_with_a_transaction_in_doubt_is_not_called_fine(outputs: Outputs) -> None:
    doubtful = {(path, line["queue"]) for path, lines in outputs.shown.items() for line in lines
                if line["kind"] == "message" and line["state"] != "outstanding"}  # fmt: skip
    assert len(doubtful) > 6
    for queue in outputs.report.queues:
        reported = {finding.kind: finding for finding in queue.findings}
        assert (FindingKind.IN_DOUBT in reported) == ((queue.store, queue.queue) in doubtful)
        if FindingKind.IN_DOUBT in reported:
            assert reported[FindingKind.IN_DOUBT].count == len(branches(outputs, queue))


def branches(outputs: Outputs, queue: QueueReport) -> set[str]:
    """The transactions in doubt that hold messages of a queue."""
    messages = [line for line in outputs.shown[queue.store] if line["kind"] == "message"]
    return {line["xid"] for line in messages if line["queue"] == queue.queue and line["state"] != "outstanding"}
