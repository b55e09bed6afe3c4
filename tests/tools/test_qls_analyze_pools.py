"""`qpid-qls-analyze --efp`: the report of the empty file pools (formats/qls/README.md, 3.4)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qstore.tools.qpid_qls_analyze import Show
from tests.support.linear_builder import LinearBuilder, add_pooled_files, make_tree, reset_file
from tests.support.memory_disk import MemoryDisk
from tests.tools.qls_analyze_runs import Run, analysed, command, written


def efp(qls: Path) -> Run:
    return command("--efp", qls)


def rows(run: Run) -> list[list[str]]:
    """The numbers of each pool's row: size, then count and KiB of waiting, taken and returned files."""
    return [line.split()[:7] for line in run.lines if "/efp/" in line and not line.startswith("WARNING")]


def test_the_report(tmp_path: Path) -> None:
    add_pooled_files(tmp_path, 3, data_size=8)
    add_pooled_files(tmp_path, 1, data_size=512)
    add_pooled_files(tmp_path, 2, data_size=512, where="returned")
    add_pooled_files(tmp_path, 2, data_size=4, partition=12)
    queue = LinearBuilder("q", data_size=8)
    queue.enqueue(1, b"m" * 10_000)
    queue.flush()
    qls = written(tmp_path, queue)
    result = efp(qls)
    assert (result.code, result.err) == (0, "")
    end = result.lines.index("Transaction reconciliation report:")
    groups = "---------- efp ------------ --------- in_use ---------- -------- returned ---------"
    columns = " ".join(["file_count tot_file_size_kb"] * 3)
    lines = " ".join(["---------- ----------------"] * 3)
    head = [
        f"             {groups}",
        f"data_size_kb {columns} efp_directory",
        f"------------ {lines} -------------",
    ]
    zero = "         0                0"
    assert result.lines[:end] == [
        "Recovering tpl2... done",
        "Recovering q... done",
        "",
        "Empty File Pool (EFP) report",
        "============================",
        "Found 2 partition(s)",
        "p_no no_efp tot_files tot_size_kb directory",
        "---- ------ --------- ----------- ---------",
        f"   1      2         4         536 {qls}/p001",
        f"  12      1         2           8 {qls}/p012",
        "",
        "Partition p001:",
        *head,
        f"           8          3               24          2               16 {zero} {qls}/p001/efp/8k",
        f"         512          1              512 {zero}          2             1024 {qls}/p001/efp/512k",
        "",
        "Partition p012:",
        *head,
        f"           4          2                8 {zero} {zero} {qls}/p012/efp/4k",
        "",
    ]
    assert "Empty File Pool" not in command(qls).out


def test_without_partitions(tmp_path: Path) -> None:
    """As the original: no blank line follows."""
    result = efp(make_tree(tmp_path))
    assert result.lines[1:6] == [
        "",
        "Empty File Pool (EFP) report",
        "============================",
        "Found 0 partition(s)",
        "Transaction reconciliation report:",
    ]


@pytest.mark.parametrize("below", ["", "efp"])
def test_a_partition_without_pools(tmp_path: Path, below: str) -> None:
    qls = make_tree(tmp_path)
    (qls / "p007" / below).mkdir(parents=True)
    result = efp(qls)
    assert result.code == 0
    begin = result.lines.index("Partition p007:")
    assert result.lines[begin : begin + 3] == ["Partition p007:", "<empty - no EFPs found in this partition>", ""]
    assert f"   7      0         0           0 {qls}/p007" in result.lines


def test_directories_are_shown_as_absolute_paths_without_following_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_pooled_files(tmp_path / "store", 1, data_size=4)
    make_tree(tmp_path / "store")
    (tmp_path / "link").symlink_to("store")
    monkeypatch.chdir(tmp_path)
    for typed in ("link/qls", "./link/../link/qls/", tmp_path / "link" / "qls"):
        assert f"   1      1         1           4 {tmp_path}/link/qls/p001" in command("--efp", typed).lines


def test_pools_come_by_size_and_partitions_by_number(tmp_path: Path) -> None:
    for size in (512, 4, 2048, 64):
        add_pooled_files(tmp_path, 0, data_size=size)
    for partition in (10, 9, 100):
        add_pooled_files(tmp_path, 0, partition=partition)
    (tmp_path / "qls" / "p1").mkdir()
    result = efp(make_tree(tmp_path))
    assert [int(row[0]) for row in rows(result)][:4] == [4, 64, 512, 2048]
    titles = [line for line in result.lines if line.startswith("Partition p")]
    assert titles == [f"Partition p{name}:" for name in ("001", "1", "009", "010", "100")]


@pytest.mark.parametrize("mode", [0o700, 0o711, 0o755, 0o500])
def test_partition_is_read_with_any_group_mode(tmp_path: Path, mode: int) -> None:
    """The original looks at the group's permission to read, and says that there is none to write."""
    add_pooled_files(tmp_path, 1, data_size=4)
    qls = make_tree(tmp_path)
    (qls / "p001").chmod(mode)
    result = efp(qls)
    assert (result.code, result.err) == (0, "")
    assert rows(result) == [["4", "1", "4", "0", "0", "0", "0"]]


# ---- files that count and files that do not ----


def with_pooled(tmp_path: Path, content: bytes) -> tuple[Run, Path]:
    """A report with a reset file and another one in the pool of 8 KiB."""
    add_pooled_files(tmp_path, 1, data_size=8)
    (path,) = add_pooled_files(tmp_path, data_size=8, seed=1, files=[content])
    return efp(make_tree(tmp_path)), path


def test_a_file_of_another_size_is_warned_of(tmp_path: Path) -> None:
    result, path = with_pooled(tmp_path, reset_file(8)[:-1])
    warning = f"WARNING: File {path} not of correct size (size=12287, expected=12288): Ignoring"
    assert result.lines[0] == warning
    assert rows(result) == [["8", "1", "8", "0", "0", "0", "0"]]
    assert (result.code, result.err) == (0, "")
    assert warning not in command(path.parents[3]).out


@pytest.mark.parametrize(
    ("offset", "content", "counts"),
    [
        (0, b"", 2),
        (8, b"\1", 2),  # serial
        (16, b"\1", 2),  # rid
        (26, b"\2", 2),  # partition
        (40, b"\0\x10", 2),  # first record offset, which qpidd does not compare
        (100, b"x", 2),
        (0, b"z", 1),  # magic
        (48, b"\1", 1),  # time
        (56, b"\1", 1),
        (64, b"\1", 1),  # file number
        (72, b"\1", 1),  # size of the queue's name
    ],
)
def test_a_waiting_file_counts_if_a_journal_could_take_it(
    tmp_path: Path, offset: int, content: bytes, counts: int
) -> None:
    file = reset_file(8)
    result, _ = with_pooled(tmp_path, file[:offset] + content + file[offset + len(content) :])
    assert rows(result) == [["8", str(counts), str(counts * 8), "0", "0", "0", "0"]]
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    ("offset", "content", "what"),
    [
        (4, b"\3", "unsupported journal version 3 in file header"),
        (24, b"\2", "a file header of 2 sectors instead of 1"),
        (32, b"\xff" * 8, "file header has a data size of 18446744073709551615 KiB"),
        (72, b"\xff\xff", "file header has a queue name of 65,535 bytes"),
    ],
)
def test_a_pooled_file_with_a_forged_header_is_reported(tmp_path: Path, offset: int, content: bytes, what: str) -> None:
    file = reset_file(8)
    result, path = with_pooled(tmp_path, file[:offset] + content + file[offset + len(content) :])
    assert (result.code, result.problems) == (1, [f"{path}: {what}"])
    assert rows(result) == [["8", "1", "8", "0", "0", "0", "0"]]


def test_a_file_padded_by_the_original_pool_tool_counts(tmp_path: Path) -> None:
    result, _ = with_pooled(tmp_path, (reset_file(8)[:74] + b"\xff" * 4022).ljust(12288, b"\0"))
    assert rows(result) == [["8", "2", "16", "0", "0", "0", "0"]]


def test_other_files_do_not_count(tmp_path: Path) -> None:
    add_pooled_files(tmp_path, 1, data_size=8)
    qls = make_tree(tmp_path)
    pool = qls / "p001" / "efp" / "8k"
    for name in ("in_use", "returned"):
        (pool / name / "README").write_text("x")
    (pool / "other").mkdir()
    (qls / "p001" / "efp" / "README").write_text("x")
    assert efp(qls).code == 0
    assert rows(efp(qls)) == [["8", "1", "8", "0", "0", "0", "0"]]
    (pool / "README").write_text("hello")
    assert efp(qls).lines[0] == f"WARNING: File {pool}/README not of correct size (size=5, expected=12288): Ignoring"


@pytest.mark.parametrize("name", ["9", "k", "4K", "-4k", "4k4", "x", "abck", "٣k"])
def test_a_directory_that_is_not_a_pool_is_reported(tmp_path: Path, name: str) -> None:
    add_pooled_files(tmp_path, 1, data_size=8)
    qls = make_tree(tmp_path)
    (qls / "p001" / "efp" / name).mkdir()
    result = efp(qls)
    what = "the name is not that of a pool, as 2048k is"
    assert (result.code, result.problems) == (1, [f"{qls}/p001/efp/{name}: {what}"])
    assert len(rows(result)) == 1


@pytest.mark.parametrize("size", ["0", "7", "04", "99999999999999999999"])
def test_pools_of_sizes_that_no_file_has(tmp_path: Path, size: str) -> None:
    qls = make_tree(tmp_path)
    (qls / "p001" / "efp" / f"{size}k").mkdir(parents=True)
    result = efp(qls)
    assert (result.code, rows(result)) == (0, [[str(int(size)), *["0"] * 6]])


def test_links_and_other_things_in_a_pool(tmp_path: Path) -> None:
    add_pooled_files(tmp_path, 1, data_size=8)
    qls = make_tree(tmp_path)
    pool = qls / "p001" / "efp" / "8k"
    (pool / "dangling.jrnl").symlink_to("/no/such")
    os.mkfifo(pool / "pipe.jrnl")
    result = efp(qls)
    assert result.code == 1
    assert sorted(result.problems) == [
        f"{pool}/dangling.jrnl: No such file or directory",
        f"{pool}/pipe.jrnl: not a regular file",
    ]
    assert rows(result) == [["8", "1", "8", "0", "0", "0", "0"]]


def test_a_file_that_cannot_be_opened_is_reported() -> None:
    path = "/store/qls/p001/efp/4k/a.jrnl"
    disk = MemoryDisk({path: reset_file(4), "/store/qls/p001/efp/4k/b.jrnl": reset_file(4)})
    disk.unopenable.add(path)
    result = analysed(disk, Show(pools=True))
    assert (result.code, result.problems) == (1, [f"{path}: Permission denied"])
    assert rows(result) == [["4", "1", "4", "0", "0", "0", "0"]]


def test_a_directory_that_cannot_be_looked_into_is_reported() -> None:
    class Locked(MemoryDisk):
        def names(self, directory: str) -> list[str]:
            if directory.endswith("8k"):
                raise PermissionError(13, "Permission denied", directory)
            return super().names(directory)

        def is_directory(self, path: str) -> bool:
            if "p002/" in path:
                raise PermissionError(13, "Permission denied", path)
            return super().is_directory(path)

    paths = ("p001/efp/4k", "p001/efp/8k", "p002/efp/4k", "p003/efp/4k")
    result = analysed(Locked({f"/store/qls/{path}/a.jrnl": reset_file(4) for path in paths}), Show(pools=True))
    assert result.code == 1
    assert result.problems[:2] == [
        "/store/qls/p001/efp/8k: Permission denied",
        "/store/qls/p002/efp: Permission denied",
    ]
    assert [row[:2] for row in rows(result)] == [["4", "1"], ["8", "0"], ["4", "1"]]
