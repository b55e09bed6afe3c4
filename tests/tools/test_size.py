"""`qstore-size` by formula: the published examples, the command line, numbers, tables."""

from __future__ import annotations

import os
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from qstore.tools.console.amounts import exact, human, parse_amount, parse_count
from qstore.tools.console.rows import Column, print_table
from tests.support import forked
from tests.support.dump import size, sizing
from tests.support.fixtures import StoreFixture
from tests.support.processes import PATIENCE_SECONDS

EXAMPLE = ["--message-size", "150", "--header-size", "75", "--depth", "25000"]
DISTRIBUTED = ["--transactions", "distributed", "--xid-size", "53"]

SIZING_FIELDS = {
    "kind", "store_type", "message_size", "header_size", "depth", "transactions", "xid_size", "transaction_depth",
    "count_dequeues", "enqueue", "dequeue", "end", "bytes_per_message", "footprint", "recommended_bytes",
    "recommended_pages", "recommended", "holds", "queues", "capacity_of_all_queues",
}  # fmt: skip


# ---- help and the command line ----


def test_help_has_examples() -> None:
    shown = size("--help")
    assert shown.code == 0
    assert shown.text.count("\n  qstore-size ") >= 4
    for option in (
        "--message-size", "--header-size", "--depth", "--transactions", "--xid-size", "--transaction-depth",
        "--count-dequeues", "--queues", "--store-type", "--from", "--queue", "--json",
    ):  # fmt: skip
        assert option in shown.text


def test_as_a_process_of_its_own() -> None:
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    finished = forked.run(
        [sys.executable, "-m", "qstore.tools.qstore_size", *EXAMPLE],
        env=variables, capture_output=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert (finished.returncode, finished.stderr) == (0, b"")
    assert b"--num-jfiles 8 --jfile-size-pgs 37\n" in finished.stdout


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ([], "--message-size, --header-size, --depth missing"),
        (["--message-size", "1", "--depth", "1"], "--header-size missing"),
        (["--message-size", "1", "--header-size", "1"], "--depth missing"),
        ([*EXAMPLE, "--transactions", "distributed"], "needs --xid-size"),
        ([*EXAMPLE, "--xid-size", "53"], "--xid-size requires --transactions distributed"),
        ([*EXAMPLE, "--transactions", "local", "--xid-size", "24"], "--xid-size requires"),
        ([*EXAMPLE, "--transaction-depth", "2"], "--transaction-depth requires"),
        ([*EXAMPLE, "--queue", "q"], "--queue requires --from"),
        ([*EXAMPLE, "--transactions", "some"], "some"),
        ([*EXAMPLE, "--store-type", "bookstore"], "bookstore"),
        ([*EXAMPLE, "--queues", "0"], "out of range"),
        ([*EXAMPLE, *DISTRIBUTED, "--xid-size", "0"], "out of range"),
        ([*EXAMPLE, "--depth", "0"], "out of range"),
        ([*EXAMPLE, "--depth", "2.5"], "is not a whole number"),
        ([*EXAMPLE, "--message-size", "-1"], "is not a size"),
        ([*EXAMPLE, "--message-size", "many"], "is not a size"),
        ([*EXAMPLE, "--message-size", "9999999999999999999"], "larger than a file can be"),
        ([*EXAMPLE, "one more"], "one more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_a_wrong_command_line_is_refused(options: list[str], reported: str) -> None:
    shown = size(*options)
    assert shown.code == 2
    assert shown.out == b""
    assert reported in shown.errors
    shown.assert_no_traceback()


@pytest.mark.parametrize(
    "option",
    [
        ["--message-size", "1"], ["--header-size", "1"], ["--transactions", "none"], ["--xid-size", "1"],
        ["--store-type", "qstore"], ["--queues", "1"],
    ],
    ids=lambda option: option[0],
)  # fmt: skip
def test_given_and_measured_values_cannot_be_combined(local: StoreFixture, option: list[str]) -> None:
    shown = size("--from", local.path, *option)
    assert shown.code == 2
    assert f"{option[0]} cannot be combined with --from" in shown.errors


def test_input_that_is_not_a_store(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        shown = size("--from", path)
        assert shown.code == 2
        assert shown.out == b""
        (line,) = shown.errors.splitlines()
        assert line.startswith("qstore-size: ")
        assert str(path) in line


def test_a_size_that_cannot_be_had() -> None:
    shown = size("--message-size", "1G", "--header-size", "75", "--depth", "25000")
    assert shown.code == 2
    assert shown.out == b""
    (line,) = shown.errors.splitlines()
    assert "64 files of 32768 pages, 137,438,953,472 bytes, for 63 such messages" in line


# ---- numbers ----


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0), ("150", 150), ("150b", 150), ("4K", 4096), ("4k", 4096), ("4KiB", 4096), ("4 KiB", 4096),
        ("4KB", 4000), ("1.5M", 1_572_864), ("2GiB", 1 << 31), ("1T", 1 << 40), ("1TB", 10**12), ("0.5K", 512),
    ],
)  # fmt: skip
def test_amounts(text: str, amount: int) -> None:
    assert parse_amount(text) == amount


@pytest.mark.parametrize(
    "text", ["", "K", "4Ki", "4X", "1e3", "-1", "0x10", "1.0001", "0.1K", "1,000", "9" * 30, "4 K B"]
)
def test_no_amounts(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|whole|hold"):
        parse_amount(text)


def test_counts() -> None:
    assert parse_count("25000") == 25_000
    with pytest.raises(ValueError, match="whole number"):
        parse_count("25K")


def test_amounts_for_people() -> None:
    assert [human(amount) for amount in (0, 1023, 1024, 9_600_000, 1 << 40)] == [
        "0 bytes", "1023 bytes", "1.00 KiB", "9.16 MiB", "1.00 TiB",
    ]  # fmt: skip
    assert [exact(amount) for amount in (1, 384, 25_600_000)] == ["1 byte", "384 bytes", "25,600,000 bytes (24.41 MiB)"]


# ---- by formula ----


def test_the_first_example() -> None:
    line = sizing(*EXAMPLE)
    assert set(line) == SIZING_FIELDS
    assert line["enqueue"] == {"encoded": 269, "blocks": 384, "flushed": 512}
    assert (line["bytes_per_message"], line["footprint"]) == (384, 9_600_000)
    assert (line["recommended_bytes"], line["recommended_pages"]) == (19_200_000, 293)
    assert line["recommended"] == {"num_jfiles": 8, "jfile_size_pgs": 37, "capacity": 19_398_656}
    assert (line["end"], line["transaction_depth"], line["xid_size"]) == (None, None, None)


def test_the_first_example_for_people() -> None:
    text = size(*EXAMPLE).text
    for number in ("269", "384 bytes", "9,600,000 bytes (9.16 MiB)", "19,200,000", "293 pages", "8 files of 37 pages"):
        assert number in text
    assert text.splitlines()[-2:] == [
        "for the broker  --num-jfiles 8 --jfile-size-pgs 37",
        "for one queue   qpid.file_count=8 qpid.file_size=37",
    ]
    assert "use --count-dequeues" in text
    assert "\x1b" not in text


def test_the_second_example() -> None:
    line = sizing(*EXAMPLE, *DISTRIBUTED)
    assert line["enqueue"] == {"encoded": 322, "blocks": 384, "flushed": 512}
    assert line["dequeue"] == line["end"] == {"encoded": 97, "blocks": 128, "flushed": 512}
    assert line["footprint"] == 25_600_000
    assert line["recommended"] == {"num_jfiles": 8, "jfile_size_pgs": 98, "capacity": 51_380_224}
    text = size(*EXAMPLE, *DISTRIBUTED).text
    assert "25,600,000 bytes (24.41 MiB)" in text
    assert "782 pages" in text


def test_options_of_the_calculation() -> None:
    line = sizing(*EXAMPLE, "--transactions", "local", "--transaction-depth", "4", "--count-dequeues", "--queues", "3")
    assert (line["xid_size"], line["transaction_depth"], line["queues"]) == (24, 4, 3)
    assert line["footprint"] == 25_000 // 4 * (4 * 384 + 512 + 4 * 128 + 512)
    assert line["capacity_of_all_queues"] == 3 * line["recommended"]["capacity"]
    text = size(
        *EXAMPLE, "--transactions", "local", "--transaction-depth", "4", "--count-dequeues", "--queues", "3"
    ).text
    assert "a transaction of 4 messages takes  3,072 bytes" in text
    assert "3 such queues" in text
    assert "--count-dequeues" not in text


def test_fractions_of_a_byte() -> None:
    assert sizing(*EXAMPLE, "--transactions", "local", "--transaction-depth", "3")[
        "bytes_per_message"
    ] == pytest.approx((8333 * 2048 + 1024) / 25_000)


def test_suffixes_on_the_command_line() -> None:
    line = sizing("--message-size", "4K", "--header-size", "0.25KiB", "--depth", "10")
    assert (line["message_size"], line["header_size"]) == (4096, 256)


def test_a_legacystore_whose_senders_wait() -> None:
    """Messages of a block that are flushed one by one take four: double is not enough for them."""
    workload = ["--message-size", "20", "--header-size", "60", "--depth", "25000", "--store-type", "legacystore"]
    text = size(*workload).text
    assert "enqueues are refused           not before 35,942 messages are on the queue\n" in text
    assert "if publishers wait for each  not before 8,985, of 512 bytes each: too few" in text
    assert "if publishers wait" in size(*EXAMPLE, "--store-type", "legacystore").text
    assert "too few" not in size(*EXAMPLE, "--store-type", "legacystore").text
    assert "if publishers wait" not in size(*EXAMPLE).text


def test_messages_of_one_block_in_version_2() -> None:
    text = size("--message-size", "20", "--header-size", "60", "--depth", "25000").text
    assert "more than double that (6,400,000)" in text
    assert "--num-jfiles 8 --jfile-size-pgs 16" in text


def test_a_linearstore() -> None:
    line = sizing(*EXAMPLE, "--store-type", "linearstore")
    assert line["recommended"] == {"files": 98, "file_size_kib": 2048, "capacity": 98 * 2_097_152}
    assert line["holds"] is None
    text = size(*EXAMPLE, "--store-type", "linearstore").text
    assert text.splitlines()[-2:] == [
        "for the broker  --efp-file-size 2048",
        "for one queue   qpid.efp_pool_file_size=2048",
    ]
    assert "refused" not in text


# ---- terminals ----


def framed(width: int) -> str:
    """A table as a terminal of that width shows it."""
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None)
    columns = (Column("name"), Column("first", number=True, spare=True), Column("second", spare=True), Column("last"))
    print_table(console, columns, [["a queue", "1,000", "[bold]some", "end"], ["b", "2", "thing", "of it"]])
    return out.getvalue()


def test_columns_that_can_be_spared_go_first() -> None:
    assert "[bold]some" in framed(60)
    assert [word in framed(60) for word in ("name", "first", "second", "last")] == [True] * 4
    assert [word in framed(32) for word in ("name", "first", "second", "last")] == [True, True, False, True]
    assert [word in framed(18) for word in ("name", "first", "second", "last")] == [True, False, False, True]
