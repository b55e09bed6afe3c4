"""`qpid-cluster-store` as a command: output, changes, refusals and exit codes."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import pytest
from click.testing import CliRunner

from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.cluster.identity import ClusterIds, State, StoreIdentity, encode, read_identity
from qstore.store.environment import tool_environment
from qstore.tools.qpid_cluster_store import command
from tests.support import forked
from tests.support.dump import ROOT, dump
from tests.support.fixtures import CopyOpener, StoreFixture, snapshot
from tests.support.opened_store import OpenedStore
from tests.support.running_broker import RunningBroker

C1, C2 = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8"), UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
S1, S2 = UUID("0f0e0d0c-0b0a-4908-8706-050403020100"), UUID("1f0e0d0c-0b0a-4908-8706-050403020100")
STORE_FIELDS: Final = {
    "kind", "path", "state", "cluster_id", "shutdown_id", "store", "roots", "closed_cleanly", "backups", "notices",
}  # fmt: skip
DISK: Final = tool_environment().disk

Line = dict[str, Any]


class Run(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Line]:
        return [json.loads(line) for line in self.out.splitlines()]

    def of(self, kind: str) -> list[Line]:
        return [line for line in self.lines if line["kind"] == kind]


def run(*arguments: object, answer: str = "") -> Run:
    result = CliRunner().invoke(command, [str(each) for each in arguments], input=answer, catch_exceptions=False)
    return Run(result.exit_code, result.stdout, result.stderr)


def member(path: Path, identity: ClusterIds | None = None, *, messages: int = 1) -> Path:
    """A data directory with a store of our own."""
    opened = OpenedStore(tool_environment(), path)
    queue = opened.make_queue("orders")
    for number in range(messages):
        opened.enqueue(queue, b"%d" % number)
    opened.flush(queue)
    assert opened.store.close()
    return marked(path, identity)


def marked(path: Path, identity: ClusterIds | None) -> Path:
    if identity is not None:
        (path / "cluster").mkdir(parents=True, exist_ok=True)
        (path / "cluster" / "store.status").write_bytes(encode(identity))
    return path


def identity_of(path: Path) -> ClusterIds:
    return read_identity(DISK, str(path))


# ---- one store ----


@pytest.mark.parametrize(
    ("identity", "state"),
    [(None, "empty"), (ClusterIds(C1, None), "dirty"), (ClusterIds(C1, S1), "clean")],
)
def test_one_store_is_shown_and_not_touched(tmp_path: Path, identity: ClusterIds | None, state: str) -> None:
    path = member(tmp_path / "a", identity)
    before = snapshot(path)
    shown = run("--json", path)
    (store,) = shown.lines
    assert shown.code == 0
    assert set(store) == STORE_FIELDS
    assert (store["state"], store["store"], store["roots"]) == (state, "qstore", ["rhm"])
    assert store["cluster_id"] == (None if identity is None else str(C1))
    assert store["shutdown_id"] == (str(S1) if state == "clean" else None)
    assert store["closed_cleanly"] is True
    text = run("-d", path)
    assert text.code == 0
    assert text.out.startswith(f"{path}: {state} (")
    for value in identity or ():
        assert str(value or "none") in text.out
    assert snapshot(path) == before


def test_report_states_how_the_store_was_closed(tmp_path: Path) -> None:
    path = member(tmp_path / "a", ClusterIds(C1, S1))
    directory = StoreDirectory(tool_environment(), str(path), "test")
    directory.mark(directory.read_mark().store_id, clean=False)
    (store,) = run("--json", path).lines
    assert store["closed_cleanly"] is False
    assert "its broker did not close it" in store["notices"][0]
    assert "opening it recovers it" in run(path).out
    (path / "rhm" / "STORE").write_text("?")
    (store,) = run("--json", path).lines
    assert (store["closed_cleanly"], store["store"]) == (None, "qstore")
    assert "rhm/STORE" in store["notices"][0]


def test_every_kind_of_store(qpidd_store: StoreFixture) -> None:
    before = snapshot(qpidd_store.path)
    shown = run("--json", qpidd_store.path)
    (store,) = shown.lines
    kind = "legacystore" if qpidd_store.name.startswith("legacy") else "linearstore"
    assert (shown.code, store["state"], store["store"]) == (0, "empty", kind)
    assert snapshot(qpidd_store.path) == before


def test_a_clean_mark_on_nothing(tmp_path: Path) -> None:
    found = run(marked(tmp_path, ClusterIds(C1, S1)))
    assert found.code == 1
    assert "it is marked clean, but there is no store" in found.out


def test_backups_are_listed(tmp_path: Path) -> None:
    for number in range(1, 8):
        (tmp_path / f"_cluster.bak.000{number}" / "rhm" / "jrnl").mkdir(parents=True)
    (tmp_path / "_cluster.bak.0009").mkdir()
    (store,) = run("--json", tmp_path).lines
    assert [Path(path).name[-4:] for path in store["backups"]] == [f"000{number}" for number in range(1, 8)]
    assert "… 2 earlier, _cluster.bak.0003, " in run(tmp_path).out
    assert "_cluster.bak.0007 (the newest)" in run(tmp_path).out


# ---- several ----


def test_several_stores_that_can_start(tmp_path: Path) -> None:
    a, b = member(tmp_path / "a", ClusterIds(C1, S1)), member(tmp_path / "b", ClusterIds(C1, None))
    (tmp_path / "c").mkdir()
    found = run("--json", a, b, tmp_path / "c")
    (verdict,) = found.of("verdict")
    assert found.code == 0
    assert [store["state"] for store in found.of("store")] == ["clean", "dirty", "empty"]
    assert verdict == {
        "kind": "verdict",
        "of": "start",
        "possible": True,
        "cluster_id": str(C1),
        "problems": [],
        "actions": {str(a): "restore", str(b): "discard", str(tmp_path / "c"): "update"},
    }
    text = run(a, b, tmp_path / "c").out
    assert f"The cluster {C1} can start:" in text
    assert f"  {b} sets its store aside and gets an update" in text


@pytest.mark.parametrize(
    ("others", "problem"),
    [
        ([ClusterIds(C1, None), ClusterIds(C1, None)], "Cannot recover, no clean store"),
        ([ClusterIds(C1, None), None], "Cannot recover, no clean store"),
        ([ClusterIds(C1, S1), ClusterIds(C1, S2)], "different shutdown-ids: "),
        ([ClusterIds(C1, S1), ClusterIds(C2, None)], "different cluster-ids: "),
    ],
)
def test_several_stores_that_cannot_start(tmp_path: Path, others: list[ClusterIds | None], problem: str) -> None:
    paths = []
    for number, identity in enumerate(others):
        path = tmp_path / str(number)
        if identity is None:
            path.mkdir()
        else:
            (path / "rhm" / "jrnl").mkdir(parents=True)
            marked(path, identity)
        paths.append(path)
    found = run("--json", *paths)
    (verdict,) = found.of("verdict")
    assert (found.code, verdict["possible"], verdict["actions"]) == (1, False, {})
    assert verdict["problems"][0].startswith(problem)
    text = run(*paths)
    assert text.code == 1
    assert f"  {problem}" in text.out
    assert "qpid-cluster-store -c DIR" in text.out or "--discard DIR" in text.out


def test_joining(tmp_path: Path) -> None:
    path = member(tmp_path / "a", ClusterIds(C1, S1))
    (tmp_path / "b").mkdir()
    found = run("--json", "--join", C1, path, tmp_path / "b")
    assert found.code == 0
    assert [verdict["actions"] for verdict in found.of("verdict")] == [
        {str(path): "discard"},
        {str(tmp_path / "b"): "update"},
    ]
    found = run("--join", C2, path)
    assert found.code == 1
    assert "The cluster cannot be joined:" in found.out


def test_the_store_that_was_written_last(tmp_path: Path) -> None:
    paths = [member(tmp_path / str(number), ClusterIds(C1, None), messages=number + 1) for number in range(3)]
    for path, time in zip(paths, (2000, 3000, 1000), strict=True):
        for file in path.rglob("*.jdat"):
            os.utime(file, (time, time))
    (tmp_path / "none").mkdir()
    found = run("--json", "--best", *paths, tmp_path / "none")
    ranked = found.of("candidate")
    assert found.code == 0
    assert [(one["path"], one["rank"], one["messages"]) for one in ranked] == [
        (str(paths[1]), 1, 2),
        (str(paths[0]), 2, 1),
        (str(paths[2]), 3, 3),
    ]
    assert ranked[0]["last_write"] == "1970-01-01T00:50:00+00:00"
    text = run("--best", *paths).out
    assert text.index(f"{paths[1]}  ", text.index("LAST WRITE")) < text.index(f"{paths[2]}  ", text.index("LAST WRITE"))


# ---- marking clean ----


def test_marking_clean_asks_first(tmp_path: Path) -> None:
    path = member(tmp_path / "a", ClusterIds(C1, None))
    before = (path / "cluster" / "store.status").read_bytes()
    for answer in ("", "n\n", "\n"):
        refused = run("-c", path, answer=answer)
        assert refused.code == 2
        assert refused.out == ""
        assert refused.err.endswith("not confirmed (--yes skips the question); nothing was changed\n")
        assert (path / "cluster" / "store.status").read_bytes() == before
    done = run("-c", path, answer="y\n")
    assert done.code == 0
    assert f"{path}: marked clean\n{path}: clean (" in done.out
    assert identity_of(path).cluster_id == C1
    assert identity_of(path).state is State.CLEAN


def test_marking_clean_for_programs(tmp_path: Path) -> None:
    path = member(tmp_path / "a", ClusterIds(C1, None))
    before = {name: what for name, what in snapshot(path).items() if name.startswith("rhm/")}
    done = run("-c", "--yes", "--json", path)
    change, store = done.lines
    assert done.code == 0
    assert (change["kind"], change["change"], change["cluster_id"]) == ("change", "clean", str(C1))
    assert change["shutdown_id"] == store["shutdown_id"] == str(identity_of(path).shutdown_id)
    assert {name: what for name, what in snapshot(path).items() if name.startswith("rhm/")} == before


def test_clean_store_stays_unchanged(tmp_path: Path) -> None:
    path = member(tmp_path / "a", ClusterIds(C1, S1))
    done = run("-c", "--json", path)
    assert done.code == 0
    assert done.of("change")[0]["change"] == "none"
    assert identity_of(path) == ClusterIds(C1, S1)
    assert run("-c", "-y", "--cluster-id", C2, path).code == 0
    assert identity_of(path).cluster_id == C2
    assert identity_of(path).shutdown_id not in (None, S1)


def test_a_store_without_a_cluster_needs_the_option(tmp_path: Path) -> None:
    path = member(tmp_path / "a")
    refused = run("-c", "-y", path)
    assert refused.code == 2
    assert "pass --cluster-id UUID, or --cluster-id new" in refused.err
    assert not (path / "cluster").exists()
    assert run("-c", "-y", "--cluster-id", "new", path).code == 0
    assert identity_of(path).state is State.CLEAN


def test_a_missing_store_is_not_marked_clean(tmp_path: Path) -> None:
    refused = run("-c", "-y", marked(tmp_path, ClusterIds(C1, None)))
    assert refused.code == 2
    assert "there is no store" in refused.err
    assert identity_of(tmp_path) == ClusterIds(C1, None)


def test_a_damaged_status_is_unusable_and_can_be_rewritten(tmp_path: Path) -> None:
    path = member(tmp_path / "a", ClusterIds(C1, None))
    status = path / "cluster" / "store.status"
    status.write_bytes(b"\0" * 74)
    for arguments in ([path], ["-c", "-y", path]):
        refused = run(*arguments)
        assert refused.code == 2
        assert refused.err.startswith(f"qpid-cluster-store: {status}: damaged: ")
        assert refused.err.count("\n") == 1
    assert run("-c", "-y", "--cluster-id", C1, path).code == 0
    assert identity_of(path).cluster_id == C1


def test_the_whole_way_back_after_a_failure_of_all(tmp_path: Path) -> None:
    """MRG 2 Messaging User Guide, 7.5.4, with stores that hold something."""
    good, behind = (
        member(tmp_path / "a", ClusterIds(C1, None), messages=7),
        member(tmp_path / "b", ClusterIds(C1, None)),
    )
    StoreIdentity(tool_environment(), str(good)).discard(C1)
    member(good)
    assert run(good, behind).code == 1
    subprocess.run("mv rhm rhm.bak; cp -a _cluster.bak.0001/rhm .", shell=True, cwd=good, check=True)
    assert run("-c", "-y", good).code == 0
    verdict = run("--json", good, behind)
    assert verdict.code == 0
    assert verdict.of("verdict")[0]["actions"] == {str(good): "restore", str(behind): "discard"}
    assert len(dump(good, "--outstanding", "--json").lines("message")) == 7


def test_marked_store_is_read_as_before(qpidd_store: StoreFixture, copies: CopyOpener) -> None:
    def messages(path: Path) -> list[Line]:
        lines = dump(path, "--outstanding", "--json", "--body", "none").lines("message")
        return [{**line, "body_file": None} for line in lines]

    with copies(qpidd_store.name).copy() as copy:
        assert run("-c", "-y", "--cluster-id", "new", copy.path).code == 0
        assert messages(copy.path) == messages(qpidd_store.path)
        done = run("--discard", "-y", "--json", copy.path)
        assert done.code == 0
        assert messages(Path(done.of("change")[0]["backup"])) == messages(qpidd_store.path)


# ---- setting aside ----


def test_setting_a_store_aside(tmp_path: Path) -> None:
    path = member(tmp_path / "a", ClusterIds(C1, S1), messages=3)
    assert run("--discard", path, answer="n\n").code == 2
    assert identity_of(path) == ClusterIds(C1, S1)
    done = run("--discard", "--json", path, answer="y\n")
    change, store = done.lines
    backup = path / "_cluster.bak.0001"
    assert done.code == 0
    assert (change["change"], change["backup"], change["cluster_id"]) == ("discarded", str(backup), None)
    assert (store["state"], store["roots"], store["backups"]) == ("empty", [], [str(backup)])
    assert identity_of(backup) == ClusterIds(C1, None)
    assert len(dump(backup, "--outstanding", "--json").lines("message")) == 3
    again = run("--discard", "-y", path)
    assert again.code == 0
    assert "there was no store; it counts as empty" in again.out
    member(path)
    assert run("--discard", "-y", path).code == 0
    assert (path / "_cluster.bak.0002" / "rhm" / "STORE").is_file()


# ---- what is refused ----


@pytest.mark.parametrize("option", [["-c"], ["--discard"]])
def test_a_store_in_use_is_left_alone(tmp_path: Path, option: list[str]) -> None:
    broker = RunningBroker(tmp_path / "broker")
    path = marked(broker.data_directory, ClusterIds(C1, None))
    try:
        broker.start()
        refused = run(*option, "-y", path)
        assert refused.code == 2
        assert f"process {broker.pid} is using this directory" in refused.err
        assert identity_of(path) == ClusterIds(C1, None)
        assert run(path).code == 0
        broker.stop()
    finally:
        broker.close()
    assert run("-c", "-y", path).code == 0


def test_a_store_that_is_open_is_left_alone(tmp_path: Path) -> None:
    path = member(tmp_path / "a", ClusterIds(C1, None))
    opened = OpenedStore(tool_environment(), path)
    refused = run("-c", "-y", path)
    opened.store.close()
    assert refused.code == 2
    assert refused.err == "qpid-cluster-store: Data directory is locked by another process.\n"
    assert identity_of(path) == ClusterIds(C1, None)


def test_a_directory_that_qpidd_has_locked_is_left_alone(tmp_path: Path) -> None:
    path = member(tmp_path / "a", ClusterIds(C1, None))
    holder = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); print(1, flush=True)"
    (path / "lock").write_text("")
    with subprocess.Popen(
        [sys.executable, "-c", holder + "; sys.stdin.read()", str(path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        refused = run("-c", "-y", path)
        process.communicate()
    assert refused.code == 2
    assert "a broker is using this directory" in refused.err
    assert run("-c", "-y", path).code == 0
    with (path / "lock").open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_lock_that_is_not_a_file_is_not_waited_for(tmp_path: Path) -> None:
    path = member(tmp_path / "a", ClusterIds(C1, None))
    os.mkfifo(path / "lock")
    refused = run("-c", "-y", path)
    assert refused.code == 2
    assert "this is not a lock file" in refused.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write what belongs to others")
def test_root_does_not_write_for_others(tmp_path: Path) -> None:
    path = member(tmp_path / "a", ClusterIds(C1, None))
    os.chown(path, 12345, 12345)
    refused = run("-c", "-y", path)
    assert refused.code == 2
    assert "sudo -u '#12345'" in refused.err
    assert run(path).code == 0


def test_path_without_a_data_directory_is_refused(tmp_path: Path) -> None:
    path = member(tmp_path / "a", ClusterIds(C1, None))
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "nowhere", tmp_path / "file", path / "rhm", path / "cluster"):
        for option in ([], ["-c", "-y", "--cluster-id", "new"], ["--discard", "-y"]):
            refused = run(*option, wrong)
            assert refused.code == 2, (wrong, option)
            assert refused.err.count("\n") == 1
            assert "name the" in refused.err
    assert not (tmp_path / "nowhere").exists()
    assert not (path / "rhm" / "cluster").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "Missing argument"),
        (["-c", "a", "b"], "take exactly one DIR"),
        (["-c", "--discard", "a"], "cannot be combined"),
        (["--cluster-id", "new", "a"], "requires -c"),
        (["-c", "--cluster-id", "zero", "a"], "is not a UUID"),
        (["--join", "00000000-0000-0000-0000-000000000000", "a"], "a UUID of zeros means no id"),
        (["a", "./a"], "given twice"),
    ],
)
def test_wrong_usage(arguments: list[str], text: str) -> None:
    found = run(*arguments)
    assert found.code == 2
    assert text in found.err


def test_hostile_names_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m\nb"
    path.mkdir()
    os.mkdir(os.fsencode(path) + b"/_cluster.bak.\xff001")
    assert "\x1b" not in run(path).out
    (store,) = run("--json", path).lines
    assert store["path"] == str(path)
    bad = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(bad)
    (store,) = run("--json", bad).lines
    assert store["path"].endswith("/\\xff")
    missing = run(str(path) + "x" * 300)
    assert missing.code == 2
    assert missing.err.count("\n") == 1


# ---- as a program ----


def test_as_a_program(tmp_path: Path) -> None:
    path = member(tmp_path / "a", ClusterIds(C1, None))
    program = [sys.executable, "-m", "qstore.tools.qpid_cluster_store"]
    done = forked.run([*program, "-c", path], given="y\n", capture_output=True, text=True)
    assert (done.returncode, identity_of(path).state) == (0, State.CLEAN)
    assert "Mark it as clean? [y/N]: " in done.stderr
    with open("/dev/full", "w") as full:
        failed = forked.run([*program, path], stdout=full, stderr=subprocess.PIPE, text=True)
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr


def test_both_names_are_installed() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["qpid-cluster-store"] == scripts["qstore-identity"] == "qstore.tools.qpid_cluster_store:main"


def test_help_has_examples_and_exit_codes() -> None:
    text = run("--help").out
    assert "qpid-cluster-store -c /srv/b" in text
    assert "Exit codes: 0 success, 1 the stores do not fit together, 2 a store or the command line is unusable" in text
