"""`qstore-analyze`: its steps in the tests' session, and the command itself."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.dump import ROOT, dump
from tests.support.fixtures import StoreOpener
from tools import qstore_analyze
from tools.spark.analyze.request import Request, UnusableRequestError, clean_up, prepare
from tools.spark.needed import missing


def analyzed(spark: Any, request: Request) -> Any:
    from tools.spark.analyze.run import analyze

    prepare(request, force=False)
    return analyze(spark, request, lambda _: None)


def test_every_step_writes_its_tables(spark: Any, open_fixture: StoreOpener, tmp_path: Path) -> None:
    dtx, plain = (str(open_fixture(name).path) for name in ("legacy-d-dtx", "linear-c-localtx"))
    sent = dump(dtx, "--outstanding", "--json", "--body", "none").lines("message")
    log = tmp_path / "sent.csv"
    log.write_text("\n".join(["id", *(line["message_id"] for line in sent), "never-arrived"]))
    request = Request(
        (dtx, plain),
        str(tmp_path / "out"),
        bodies=True,
        publisher_log=str(log),
        publisher_id="id",
        compare=(dtx, plain),
    )
    summary = analyzed(spark, request)
    fields = summary.fields()
    shown = [line for path in (dtx, plain) for line in dump(path, "--outstanding", "--json").lines("message")]
    assert fields["outstanding"] == sum(line["state"] == "outstanding" for line in shown)
    assert fields["in_doubt"] == sum(line["state"] != "outstanding" for line in shown)
    assert (fields["stores"], fields["damage"], fields["transactions"], fields["compare"]) == (2, 0, 3, {})
    assert fields["publisher"]["missing"] == 1
    assert summary.has_losses
    there = spark.read.parquet(request.path("outstanding"))
    assert there.where("body is null").count() == 0
    assert {each.message_id for each in there.collect()} == {line["message_id"] for line in shown}
    lost = spark.read.parquet(request.path("audit", "publisher")).where("verdict = 'missing'").collect()
    assert [each.message_id for each in lost] == ["never-arrived"]
    assert sorted(os.listdir(request.path("audit"))) == [
        "compare", "damage", "dangling", "depth", "duplicates", "gaps", "lifetimes", "publisher", "rates",
        "transactions", "waits",
    ]  # fmt: skip
    assert {each["queue"] for each in summary.queue_rows} == {"d.q1", "d.q2", "d.q3", "c.q1", "c.q2"}
    records = spark.read.format("qstore").option("columns", "store,rid").load([dtx, plain])
    assert spark.read.parquet(request.path("export")).count() == records.count()
    clean_up(request)
    assert not Path(request.path("qstore-analyze.work")).exists()


def test_damage_is_told_and_counted(spark: Any, open_fixture: StoreOpener, tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "good").symlink_to(open_fixture("legacy-c-localtx").path)
    (tmp_path / "fleet" / "nothing").mkdir()
    paths = (str(tmp_path / "fleet" / "*"),)
    assert analyzed(spark, Request(paths, str(tmp_path / "short"), frozenset())).has_losses
    request = Request(paths, str(tmp_path / "out"), frozenset({"audit"}))
    summary = analyzed(spark, request)
    assert summary.fields()["damage"] == 1
    assert summary.has_losses
    (told,) = spark.read.parquet(request.path("audit", "damage")).collect()
    assert told.file == str(tmp_path / "fleet" / "nothing")
    assert sorted(os.listdir(request.out)) == [".qstore-analyze", "audit", "files", "qstore-analyze.work", "queues"]


def test_a_log_that_cannot_be_used_is_one_line(spark: Any, open_fixture: StoreOpener, tmp_path: Path) -> None:
    from tools.spark.analyze.tables import publisher_log

    (tmp_path / "log.jsonl").write_text('{"number": 1}\n')
    for name, what in ((str(tmp_path / "log.jsonl"), 'no column "id"'), (str(tmp_path / "none.csv"), "cannot be read")):
        with pytest.raises(UnusableRequestError, match=what) as raised:
            publisher_log(spark, name, "id")
        assert "\n" not in str(raised.value)


def test_a_failure_of_spark_is_one_line(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    from tools.spark.analyze.session import reason

    (tmp_path / "empty").mkdir()
    with pytest.raises(PySparkException) as raised:
        analyzed(spark, Request((str(tmp_path / "empty"),), str(tmp_path / "out")))
    told = reason(raised.value)
    assert told.startswith("nothing here is a store: ")
    assert str(tmp_path / "empty") in told
    assert "\n" not in told


# ---- the command ----


def command(*arguments: str) -> Any:
    return CliRunner().invoke(qstore_analyze.command, list(arguments), catch_exceptions=False)


def test_what_is_asked_for_has_to_make_sense(tmp_path: Path) -> None:
    for arguments, what in (
        (["--only", "dreams"], "dreams is no step"),
        (["--split-bytes", "many"], "many"),
        (["--split-bytes", "0"], "more than nothing"),
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


def test_without_java_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qstore_analyze, "missing", lambda: "there is no Java: install version 17 or later")
    result = command("store", "--out", str(tmp_path / "out"))
    assert (result.exit_code, result.stderr) == (2, "qstore-analyze: there is no Java: install version 17 or later\n")


def test_the_command_answers_and_is_quiet(open_fixture: StoreOpener, tmp_path: Path) -> None:
    problem = missing()
    if problem is not None:
        pytest.skip(problem)
    run = (
        sys.executable,
        "-m",
        "tools.qstore_analyze",
        "--master",
        "local[2]",
        "--json",
        "--only",
        "outstanding,sizing",
    )
    store, out = str(open_fixture("legacy-c-localtx").path), tmp_path / "out"
    done = subprocess.run([*run, store, "--out", str(out)], cwd=ROOT, capture_output=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["outstanding"] == 30
    assert json.loads((out / "summary.json").read_text()) == json.loads(done.stdout)
    with (out / "queues.csv").open() as file:
        assert [each["queue"] for each in csv.DictReader(file)] == ["c.q1", "c.q2"]
    assert sorted(os.listdir(out))[1:] == ["files", "outstanding", "queues", "queues.csv", "sizing", "summary.json"]
