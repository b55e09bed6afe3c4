"""`qstore-analyze`: its steps in the tests' session, and the command itself."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qstore.tools import qstore_analyze
from qstore.tools.report.page import render
from qstore.tools.spark import request as request_module
from qstore.tools.spark.needed import missing
from qstore.tools.spark.request import Request, UnusableRequestError, clean_up, prepare
from tests.spark.analyses import SHORT_LIVED, Analysis, Fleet, analyzed
from tests.spark.report_checks import check_findings, check_plots, check_queues, check_the_file
from tests.support.dump import ROOT
from tests.support.generated_fleet import listed
from tests.support.profiles import only_on_its_day


@only_on_its_day(0, 4)
def test_analysis_matches_the_fleet(spark: Any, fleet: Fleet, tmp_path: Path) -> None:
    request = fleet.request(tmp_path / "out")
    assert request.is_small
    check(spark, Analysis(fleet, request, analyzed(spark, request)))


@pytest.mark.soak
def test_large_fleets_are_read_by_spark_and_say_the_same(
    spark: Any, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = fleet.request(tmp_path / "small")
    summary = analyzed(spark, small)
    monkeypatch.setattr(request_module, "SMALL_BYTES", 0)
    large = fleet.request(tmp_path / "large")
    assert not large.is_small
    analysis = Analysis(fleet, large, analyzed(spark, large))
    check(spark, analysis)
    assert summary.fields() == analysis.summary.fields()
    audit = [f"audit/{name}" for name in os.listdir(large.path("audit"))]
    for name in ("queues", "files", "sizing", "outstanding", "export", *audit):
        both = [in_order(spark.read.parquet(each.path(name))) for each in (small, large)]
        assert both[0] == both[1], name


def test_processes_read_without_spark_and_say_the_same(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow not installed: pip install 'qstore[spark]'")
    import pyarrow.dataset as ds

    from qstore.tools.spark.analysis import Local, analyze

    done: list[tuple[int, int]] = []
    engine = Local(2, lambda complete, every: done.append((complete, every)))
    reported = []
    for name, most in (("small", request_module.SMALL_BYTES), ("large", 0)):
        monkeypatch.setattr(request_module, "SMALL_BYTES", most)
        request = Request((*fleet.paths, fleet.nothing), str(tmp_path / name), bodies=True, report=True)
        prepare(request, force=False)
        summary = analyze(engine, request, lambda _: None)
        tables = ("queues", "files", "sizing", "outstanding", "export", "audit/lifetimes", "audit/damage")
        rows = [sorted(map(repr, ds.dataset(request.path(each)).to_table().to_pylist())) for each in tables]
        assert summary.report is not None
        reported.append((summary.fields(), summary.queue_rows, summary.report.queues, rows))
    assert reported[0] == reported[1]
    assert done == [(number, 5) for number in range(1, 6)]


def test_an_analysis_on_this_machine_needs_no_java(fleet: Fleet, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark not installed: pip install 'qstore[spark]'")
    without = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    done = child(
        ["-m", "qstore.tools.qstore_analyze", fleet.paths[0], "--out", str(tmp_path / "out"), "--json"], without
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["records"] > 0


def in_order(table: Any) -> list[str]:
    return sorted(repr(row) for row in table.select(sorted(table.columns)).collect())


def check(spark: Any, analysis: Analysis) -> None:
    check_tables(spark, analysis)
    check_missing(spark, analysis)
    check_damage(spark, analysis)
    check_queues(analysis)
    check_findings(spark, analysis)
    check_plots(spark, analysis)
    check_the_file(analysis)


def check_tables(spark: Any, analysis: Analysis) -> None:
    fields, shown = analysis.summary.fields(), analysis.fleet.messages()
    assert fields["outstanding"] == sum(line["state"] == "outstanding" for line in shown)
    assert fields["in_doubt"] == sum(line["state"] != "outstanding" for line in shown) > 0
    assert (fields["stores"], fields["transactions"], fields["compare"]) == (4, 10, {})
    there = analysis.table(spark, "outstanding")
    assert all(each.body is not None for each in there)
    assert Counter(each.message_id for each in there) == Counter(line["message_id"] for line in shown)
    assert sorted(os.listdir(analysis.request.path("audit"))) == [
        "compare", "damage", "dangling", "depth", "duplicates", "gaps", "lifetimes", "overwritten", "publisher",
        "rates",
        "transactions", "waits",
    ]  # fmt: skip
    queues = {(path, line["name"]) for path, lines in analysis.fleet.shown.items() for line in lines
              if line["kind"] == "queue"}  # fmt: skip
    assert {(each["store"], each["queue"]) for each in analysis.summary.queue_rows} == queues
    exported = spark.read.parquet(analysis.request.path("export"))
    assert exported.where("type != 'damage'").count() == fields["records"]


def check_missing(spark: Any, analysis: Analysis) -> None:
    assert analysis.summary.fields()["publisher"]["missing"] == 1
    lost = [each.message_id for each in analysis.table(spark, "audit", "publisher") if each.verdict == "missing"]
    assert lost == ["never-arrived"]


def check_damage(spark: Any, analysis: Analysis) -> None:
    reported = analysis.table(spark, "audit", "damage")
    assert analysis.summary.fields()["damage"] == len(reported)
    assert analysis.summary.has_losses
    files = {each.file for each in reported}
    assert analysis.fleet.nothing in files
    for path in analysis.fleet.paths:
        planted = listed(Path(path), "damage") if Path(f"{path}.jsonl").exists() else []
        assert any(file.startswith(path) for file in files) == bool(planted)


@only_on_its_day(2, 4)
def test_steps_that_are_left_out_leave_nothing(
    spark: Any, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_module, "SMALL_BYTES", 0)  # as a large fleet: read by Spark, in many partitions
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "good").symlink_to(fleet.paths[0])
    (tmp_path / "fleet" / "nothing").mkdir()
    request = Request((str(tmp_path / "fleet" / "*"),), str(tmp_path / "out"), frozenset({"outstanding"}))
    assert not request.is_small
    summary = analyzed(spark, request)
    assert (summary.fields()["damage"], summary.has_losses) == (1, True)
    there = spark.read.parquet(request.path("outstanding")).collect()
    shown = fleet.messages(fleet.paths[0])
    assert Counter(each.message_id for each in there) == Counter(line["message_id"] for line in shown)
    clean_up(request)
    assert sorted(os.listdir(request.out)) == [".qstore-analyze", "files", "outstanding", "queues"]


@only_on_its_day(3, 4)
def test_report_names_omitted_steps(spark: Any, fleet: Fleet, tmp_path: Path) -> None:
    content = analyzed(spark, Request(fleet.paths[:1], str(tmp_path / "out"), frozenset(), report=True)).report
    assert content.findings == ()
    assert all(queue.depth is None and queue.waits is None and queue.sizing is None for queue in content.queues)
    assert [note.split(" was omitted")[0] for note in content.notes[-2:]] == ["The step audit", "The step sizing"]
    assert render(content)


def test_a_report_is_a_file_of_this_machine() -> None:
    with pytest.raises(UnusableRequestError, match="--report needs a local directory"):
        prepare(Request(("store",), "memory://out", report=True), force=False)


def test_a_log_that_cannot_be_used_is_one_line(spark: Any, tmp_path: Path) -> None:
    from qstore.tools.spark.analysis import publisher_log

    (tmp_path / "log.jsonl").write_text('{"number": 1}\n')
    for name, what in ((str(tmp_path / "log.jsonl"), 'no column "id"'), (str(tmp_path / "none.csv"), "cannot be read")):
        with pytest.raises(UnusableRequestError, match=what) as raised:
            publisher_log(spark, name, "id")
        assert "\n" not in str(raised.value)


def test_a_failure_of_spark_is_one_line(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    from qstore.tools.spark.session import reason

    (tmp_path / "empty").mkdir()
    with pytest.raises(PySparkException) as raised:
        spark.read.format("qstore").load(str(tmp_path / "empty")).collect()
    with pytest.raises(UnusableRequestError) as unusable:
        analyzed(spark, Request((str(tmp_path / "empty"),), str(tmp_path / "out")))
    reported = reason(raised.value)
    assert reported == str(unusable.value)
    assert reported.startswith("no input is a store: ")
    assert str(tmp_path / "empty") in reported
    assert "\n" not in reported


# ---- the command ----


def command(*arguments: str) -> Any:
    return CliRunner().invoke(qstore_analyze.command, list(arguments), catch_exceptions=False)


def test_invalid_options_are_refused(tmp_path: Path) -> None:
    for arguments, what in (
        (["--only", "dreams"], "dreams is not a step"),
        (["--split-bytes", "many"], "many"),
        (["--split-bytes", "0"], "greater than zero"),
    ):
        result = command("store", "--out", str(tmp_path / "out"), *arguments)
        assert result.exit_code == 2
        assert what in result.stderr
    assert not (tmp_path / "out").exists()


def test_results_are_not_overwritten(tmp_path: Path) -> None:
    for name in ("outstanding", "mine"):
        (tmp_path / name).mkdir()
    request = Request(("store",), str(tmp_path))
    for force in (False, True):
        with pytest.raises(UnusableRequestError, match="not empty"):
            prepare(request, force=force)
    assert sorted(os.listdir(tmp_path)) == ["mine", "outstanding"]
    (tmp_path / "outstanding").rename(tmp_path / "mine" / "outstanding")
    request = Request(("store",), str(tmp_path / "out"))
    prepare(request, force=False)
    for name in ("outstanding", "mine"):
        (tmp_path / "out" / name).mkdir()
    prepare(request, force=True)
    assert sorted(os.listdir(tmp_path / "out")) == [".qstore-analyze", "mine"]


def test_a_directory_that_is_refused_is_left_as_it_is(tmp_path: Path) -> None:
    problem = missing()
    if problem is not None:
        pytest.skip(problem)
    (tmp_path / "qstore-analyze.work").mkdir()
    result = command("store", "--out", str(tmp_path), "--force")
    assert result.exit_code == 2
    assert "choose another directory" in result.stderr
    assert os.listdir(tmp_path) == ["qstore-analyze.work"]


NO_PYSPARK = "import sys; sys.modules['pyspark'] = None; from qstore.tools.qstore_analyze import main; main()"


def test_missing_extra_gives_a_one_line_install_hint(tmp_path: Path) -> None:
    done = child(["-c", NO_PYSPARK, "store", "--out", str(tmp_path / "out")], dict(os.environ))
    reported = b"qstore-analyze: pyspark not installed: pip install 'qstore[spark]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", reported)
    assert not (tmp_path / "out").exists()


def test_missing_java_gives_a_one_line_install_hint(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark not installed: pip install 'qstore[spark]'")
    without = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    options = ["store", "--compare", "other", "--out", str(tmp_path / "out")]
    done = child(["-m", "qstore.tools.qstore_analyze", *options], without)
    reported = b"Java is not installed: install version 17 or later (Debian: apt install openjdk-17-jre-headless)\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"qstore-analyze: " + reported)
    assert not (tmp_path / "out").exists()


def child(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    run = [sys.executable, *arguments]
    return subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, timeout=300, check=False)


@only_on_its_day(3, 4)
def test_the_command_answers_and_is_quiet(fleet: Fleet, tmp_path: Path) -> None:
    problem = missing()
    if problem is not None:
        pytest.skip(problem)
    store, out = fleet.paths[1], tmp_path / "out"
    options = ["--master", "local[2]", "--json", "--report", "--only", "outstanding,sizing"]
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": SHORT_LIVED}
    done = child(["-m", "qstore.tools.qstore_analyze", *options, store, "--out", str(out)], environment)
    assert (done.returncode, done.stderr) == (0, b"")
    reported = json.loads(done.stdout)
    assert reported["outstanding"] + reported["in_doubt"] == len(fleet.messages(store)) > 0
    assert json.loads((out / "summary.json").read_text()) == reported
    with (out / "queues.csv").open() as file:
        queues = [each["queue"] for each in csv.DictReader(file)]
    assert queues == ["c.q1", "c.q2"]
    page = out / "report.html"
    modes = {path: path.stat().st_mode & 0o077 for path in (out, *out.rglob("*"))}
    assert not any(modes.values()), modes  # names, ids and bodies are their owner's alone
    assert all(queue in page.read_text("utf-8") for queue in queues)
    assert sorted(os.listdir(out))[1:] == [
        "files", "outstanding", "queues", "queues.csv", "report.html", "sizing", "summary.json",
    ]  # fmt: skip


def test_queues_of_other_virtual_hosts_have_their_host_beside_their_name(tmp_path: Path) -> None:
    definitions = tmp_path / "d.json"
    queues = [{"name": "orders", "vhost": host, "durable": True, "arguments": {}} for host in ("/", "a/b")]
    definitions.write_text(json.dumps({"rabbitmq_version": "3.10.8", "vhosts": [{"name": "a/b"}], "queues": queues}))
    store, out = str(tmp_path / "store"), tmp_path / "out"
    child(["-m", "qstore.tools.qstore_import", str(definitions), store], {**os.environ})
    done = child(["-m", "qstore.tools.qstore_analyze", store, "--out", str(out)], {**os.environ})
    assert (done.returncode, done.stderr) == (0, b"")
    wanted = [("/", "orders"), ("a/b", "orders")]
    with (out / "queues.csv").open() as file:
        assert sorted((row["vhost"], row["queue"]) for row in csv.DictReader(file)) == wanted
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(out / "queues").to_pylist()
    assert sorted((row["vhost"], row["name"]) for row in rows) == wanted


@pytest.mark.parametrize("is_there", [True, False])
def test_an_analysis_that_fails_leaves_no_results(tmp_path: Path, is_there: bool) -> None:
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    if is_there:
        out.mkdir()
    for _ in range(2):  # without --force
        result = command(str(tmp_path / "empty"), "--out", str(out))
        assert result.exit_code == 2
        assert "no input is a store" in result.stderr or "empty" in result.stderr
        assert out.exists() == is_there
        assert not is_there or not list(out.iterdir())
