"""`qpid-qls-analyze` on forged bytes: one line for what is wrong, and never a traceback."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from qstore.formats.rhm.records import COMMIT_DECISION, EXTERNAL, TRANSIENT
from qstore.tools.qpid_qls_analyze import Problems, Show
from tests.support.linear_builder import LinearBuilder, make_tree
from tests.support.memory_disk import MemoryDisk
from tests.support.profiles import examples
from tests.tools.qls_analyze_runs import Run, analysed, command, written

EVERYTHING: Final = Show(*[True] * 9)
QUEUE: Final = "/store/qls/jrnl2/q"
PREPARED: Final = "/store/qls/tpl2"


def store() -> dict[str, bytes]:
    """A queue in three files, with records of all kinds, and a prepared list."""
    queue = LinearBuilder("q", data_size=4)
    queue.enqueue(1, b"one")
    queue.enqueue(2, b"two", xid=b"x1")
    queue.enqueue(3, b"\0" * 300, flags=TRANSIENT)
    queue.dequeue(4, 1, xid=b"x1")
    queue.enqueue(5, b"msg7\0", xid=b"x2")
    queue.abort(6, b"x2")
    queue.dequeue(7, 99)
    queue.enqueue(8, b"d" * 5000)
    queue.flush()
    queue.enqueue(9, b"", flags=EXTERNAL)
    queue.commit(10, b"x1")
    queue.dequeue(11, 8, xid=b"x3")
    queue.flush()
    prepared = LinearBuilder("TplStore", data_size=4)
    prepared.enqueue(12, b"\1", xid=b"x1")
    prepared.dequeue(13, 12, xid=b"x1", flags=COMMIT_DECISION)
    prepared.enqueue(14, b"\1", xid=b"x3")
    prepared.flush()
    files = {**queue.disk(QUEUE).files, **prepared.disk(PREPARED).files}
    return {path: bytes(content) for path, content in files.items()}


STORE: Final = store()
PATHS: Final = sorted(STORE)
#: Offsets where something stands, and the fields that matter most.
OFFSETS: Final = st.integers(0, 80) | st.integers(0x1000, 0x1800) | st.integers(0, 8191)


def check(disk: MemoryDisk, show: Show = EVERYTHING) -> Run:
    """Analyse; the exit code is 0, or 1 and something is said, and the output goes to the end."""
    result = analysed(disk, show)
    assert result.code == (1 if result.problems else 0)
    assert result.is_complete
    assert "object at 0x" not in result.out
    assert "'None'" not in result.out
    assert all(line.isprintable() for line in result.lines)
    assert disk.bytes_read < 10_000_000
    return result


def test_the_store_itself_is_sound() -> None:
    result = check(MemoryDisk(STORE))
    assert (result.code, result.report()[0]) == (0, "2 enqueued records found:")


@examples(300)
@given(st.sampled_from(PATHS), st.lists(st.tuples(OFFSETS, st.integers(0, 7)), min_size=1, max_size=4))
def test_flipped_bits(path: str, bits: list[tuple[int, int]]) -> None:
    content = bytearray(STORE[path])
    for offset, bit in bits:
        content[offset] ^= 1 << bit
    check(MemoryDisk({**STORE, path: content}))


@examples(300)
@given(
    st.sampled_from(PATHS),
    OFFSETS,
    st.sampled_from([b"\xff" * 8, bytes(8), b"\0" * 7 + b"\x80", b"QLSe\2\0", b"QLSf\2\0", b"QLSx"]) | st.binary(),
)
@example(PATHS[0], 40, b"\xff" * 8)
@example(PATHS[0], 32, b"\0\0\0\0\1")
def test_forged_fields(path: str, offset: int, field: bytes) -> None:
    content = STORE[path]
    forged = (content[:offset] + field + content[offset + len(field) :])[: len(content)]
    check(MemoryDisk({**STORE, path: forged}))


@examples(100)
@given(st.sampled_from(PATHS), st.integers(0, 8191))
def test_files_that_are_cut_short(path: str, size: int) -> None:
    assert check(MemoryDisk({**STORE, path: STORE[path][:size]})).code == 1


@examples(100)
@given(st.lists(st.tuples(st.sampled_from(PATHS), st.binary(max_size=300)), max_size=3))
def test_garbage_for_files(files: list[tuple[str, bytes]]) -> None:
    check(MemoryDisk({**STORE, **dict(files)}))


@examples(100)
@given(st.sets(st.sampled_from(PATHS)), st.permutations(PATHS), st.builds(Show, *[st.booleans()] * 9))
def test_files_that_are_missing_or_at_each_others_places(missing: set[str], paths: list[str], show: Show) -> None:
    contents = dict(zip(paths, STORE.values(), strict=True))
    check(MemoryDisk({"/store/qls/x": b"", **{path: contents[path] for path in PATHS if path not in missing}}), show)


@examples(40, suppress=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=9000), st.sampled_from(["tpl2", "jrnl2/q", "p001/efp/4k", "p001/efp/4k/in_use"]))
def test_the_command_itself(tmp_path: Path, content: bytes, below: str) -> None:
    qls = make_tree(tmp_path / "store")
    (qls / below).mkdir(parents=True, exist_ok=True)
    file = qls / below / f"{'0' * 36}.jrnl"
    file.write_bytes(content)
    try:
        result = command("--efp", "--show-all-recs", "--show-recovered-recs", "--txn", qls)
    finally:
        file.unlink()
    assert result.code in (0, 1)
    assert "Traceback" not in result.out + result.err
    assert result.code == (1 if result.problems else 0)


# ---- sizes ----


def test_a_header_that_tells_of_terabytes() -> None:
    """A file of 4 TiB by its header, and a record of 3 TiB in it: neither is there, so nothing of them is read."""
    queue = LinearBuilder("q", data_size=4)
    queue.enqueue(1, b"a")
    queue.enqueue(2, b"b")
    queue.flush()
    queue.patch(0, 32, (1 << 32).to_bytes(8, "little"))
    queue.patch(0, 0x1080 + 32, (3 << 40).to_bytes(8, "little"))
    disk = queue.disk(QUEUE)
    result = check(disk)
    assert result.code == 1
    assert f"its header says {(1 << 42) + 4096}" in result.problems[0]
    assert disk.bytes_read < 100_000


def test_a_large_sparse_file_costs_no_memory(tmp_path: Path) -> None:
    """A record with an xid and data of hundreds of megabytes of holes: they are read in parts, twice."""
    size = 300 << 20
    qls = written(tmp_path, LinearBuilder("q"))
    queue = LinearBuilder("q", data_size=4)
    queue.enqueue(1, b"a", xid=b"x")
    head = bytearray(queue.files()[0][: 0x1000 + 40])
    head[32:40] = (size >> 10).to_bytes(8, "little")
    head[0x1018:0x1028] = (100 << 20).to_bytes(8, "little") + (150 << 20).to_bytes(8, "little")
    (qls / "jrnl2" / "q").mkdir(exist_ok=True)
    path = qls / "jrnl2" / "q" / queue.names()[0]
    path.write_bytes(head)
    os.truncate(path, size + 4096)
    tracemalloc.start()
    try:
        result = command("--show-all-recs", "--show-xids", "--show-data", "--txtest", qls)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.code == 0
    assert peak < 10 << 20
    line = result.walked()[1]
    assert line.startswith(f"0x1:0x00001000: [E v=2 f=0x0000 rid=0x1] xid({100 << 20})='0x{'00' * 25} ... ")
    assert line.endswith(
        f" data({150 << 20})='{chr(92)}00{f'{chr(92)}00' * 9} ... {f'{chr(92)}00' * 10}' [INVALID RECORD TAIL]  "
    )


def test_any_number_of_problems_is_reported_in_few_lines() -> None:
    problems = Problems()
    for number in range(1000):
        problems.add("file", str(number))
    assert problems.count == 1000
    assert len(problems.lines()) == 101
    assert problems.lines()[-1] == "and 900 more"
    queue = LinearBuilder("q", data_size=64)
    for _ in range(500):
        queue.enqueue(1, b"a")
    result = check(queue.disk(QUEUE))
    assert (result.code, len(result.problems)) == (1, 101)
    assert result.problems[-1] == "and 399 more"
    assert result.files() == [("0x1", 1)]


# ---- names ----


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\udcff", "é", "x" * 250])
def test_names_of_files_and_directories(tmp_path: Path, name: str) -> None:
    qls = make_tree(tmp_path)
    (qls / "jrnl2" / name).mkdir()
    queue = LinearBuilder(name, data_size=4)
    queue.enqueue(1, b"m")
    queue.flush()
    (qls / "jrnl2" / name / ("0" * 36 + ".jrnl")).write_bytes(queue.files()[0])
    (qls / "jrnl2" / name / f"{name[:200]}.jrnl").write_bytes(b"garbage")
    result = command("--show-recovered-recs", qls)
    assert result.code == 1
    assert len(result.problems) == 1
    assert result.problems[0].endswith(": truncated file header")
    assert "\x1b" not in result.out + result.err
    assert "1 enqueued records found:" in result.lines


def test_links_that_lead_back(tmp_path: Path) -> None:
    qls = make_tree(tmp_path)
    (qls / "jrnl2" / "a").mkdir()
    (qls / "jrnl2" / "a" / "again").symlink_to("..")
    (qls / "jrnl2" / "self").symlink_to("self")
    (qls / "jrnl2" / "a" / ("0" * 36 + ".jrnl")).symlink_to("0" * 36 + ".jrnl")
    result = command(qls)
    assert result.code == 1
    assert len(result.problems) == 1
    assert result.is_complete
