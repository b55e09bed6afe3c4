"""The store's log lines, letter by letter as the documents have them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.wording import printable
from qstore.store import log_lines
from qstore.store.log_lines import MAX_IN_DOUBT_LINES, TPL_NAME, Level, LogLine


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        (
            log_lines.below_minimum("num-jfiles", 1, 4),
            "warning",
            "parameter num-jfiles (1) is below allowable minimum (4); changing this parameter to minimum value.",
        ),
        (
            log_lines.above_maximum("num-jfiles", 65, 64),
            "warning",
            "parameter num-jfiles (65) is above allowable maximum (64); changing this parameter to maximum value.",
        ),
        (
            log_lines.not_legal("wcache-page-size", 100, "a power of 2", 128),
            "warning",
            "parameter wcache-page-size (100) is not a power of 2; changing this parameter to 128.",
        ),
        (
            log_lines.not_needed("store-async", "why."),
            "notice",
            "option store-async is not needed here and has no effect: why.",
        ),
        (
            log_lines.store_initialized("/home/aperson/.qpidd"),
            "notice",
            "Store module initialized; dir=/home/aperson/.qpidd",
        ),
        (log_lines.store_truncated("/var/lib/qpidd"), "notice", "Store truncated; dir=/var/lib/qpidd"),
        (log_lines.directory_locked(), "critical", "Data directory is locked by another process."),
        (log_lines.no_clean_store(), "critical", "Cannot recover, no clean store"),
        (log_lines.journal_created(TPL_NAME), "notice", 'Journal "TplStore": Created'),
        (
            log_lines.queue_recovered("orders", 12, 3),
            "info",
            'Recovered queue "orders": 12 messages recovered; 3 messages in-doubt.',
        ),
        (
            log_lines.queue_recovered("orders", 1, 1),
            "info",
            'Recovered queue "orders": 1 messages recovered; 1 messages in-doubt.',
        ),
        (log_lines.highest_record_id(0x1F00), "info", "Most recent persistence id found: 0x1f00"),
        (
            log_lines.threshold_exceeded("orders"),
            "warning",
            'Enqueue capacity threshold exceeded on queue "orders" (RHM_IORES_ENQCAPTHRESH).',
        ),
        (log_lines.journal_full("orders"), "critical", 'Journal full on queue "orders".'),
        (log_lines.mst_created("DerbyMessageStore"), "notice", "MST-1001 : Created : DerbyMessageStore"),
        (log_lines.mst_location("./derbyDB"), "notice", "MST-1002 : Store location : ./derbyDB"),
        (log_lines.mst_closed(), "notice", "MST-1003 : Closed"),
        (log_lines.mst_recovery_start(), "notice", "MST-1004 : Recovery Start"),
        (log_lines.mst_recovery_start("q"), "notice", "MST-1004 : Recovery Start : q"),
        (log_lines.mst_recovered("q", 0), "notice", "MST-1005 : Recovered 0 messages for queue q"),
        (log_lines.mst_recovered("q", 1), "notice", "MST-1005 : Recovered 1 message for queue q"),
        (log_lines.mst_recovered("q", 100), "notice", "MST-1005 : Recovered 100 messages for queue q"),
        (log_lines.mst_recovery_complete("q"), "notice", "MST-1006 : Recovery Complete : q"),
        (log_lines.mst_recovery_complete(), "notice", "MST-1006 : Recovery Complete"),
    ],
)
def test_line(line: LogLine, level: str, text: str) -> None:
    assert line == (level, text)


def test_a_queue_with_an_empty_name_is_not_the_whole_store() -> None:
    assert log_lines.mst_recovery_start("").text == "MST-1004 : Recovery Start : "
    assert log_lines.mst_recovery_complete("").text == "MST-1006 : Recovery Complete : "


def test_sizes() -> None:
    assert [line.text for line in log_lines.journal_sizes(8, 24, 32, 32)] == [
        "> Default files per journal: 8",
        "> Default journal file size: 24 (wpgs)",
        "> Default write cache page size: 32 (KiB)",
        "> Default number of write cache pages: 32",
    ]
    assert [line.text for line in log_lines.tpl_sizes(4, 1, 4, 64)] == [
        "> TPL files per journal: 4",
        "> TPL journal file size: 1 (wpgs)",
        "> TPL write cache page size: 4 (KiB)",
        "> TPL number of write cache pages: 64",
    ]
    assert {line.level for line in log_lines.journal_sizes(8, 24, 32, 32)} == {Level.INFO}


# ---- names that clients choose ----


def test_names_cannot_forge_a_line() -> None:
    line = log_lines.journal_created('x": Created\n2009-nov-04 notice all is well\x1b[2J\udcff')
    assert line.text == 'Journal "x": Created\\n2009-nov-04 notice all is well\\x1b[2J\\udcff": Created'


@pytest.mark.parametrize("name", ["orders", "größe", "日本語", "a b", 'a"b', "back\\slash"])
def test_names_that_can_be_printed_stay(name: str) -> None:
    assert printable(name) == name


@given(st.text(st.characters(codec=None)))
def test_any_name_gives_one_line_that_can_be_written(name: str) -> None:
    for line in (
        log_lines.store_initialized(name),
        log_lines.store_truncated(name),
        log_lines.journal_created(name),
        log_lines.queue_recovered(name, 1, 0),
        log_lines.threshold_exceeded(name),
        log_lines.journal_full(name),
        log_lines.mst_created(name),
        log_lines.mst_location(name),
        log_lines.mst_recovery_start(name),
        log_lines.mst_recovered(name, 2),
        log_lines.mst_recovery_complete(name),
    ):
        assert line.text.isprintable()
        assert line.text.encode()


def test_in_doubt_lines_name_the_command_and_are_limited() -> None:
    (line,) = log_lines.transactions_in_doubt("/srv/my store", [b"\x06\xff"])
    assert line.level == "notice"
    assert line.text.startswith("Transaction 06ff is in doubt: ")
    assert "qstore-shell amqp://HOST --yes -c 'resolve 06ff commit' (or rollback); " in line.text
    assert line.text.endswith(" with '/srv/my store' instead of amqp://HOST")
    assert list(log_lines.transactions_in_doubt("/srv", [])) == []
    *lines, last = log_lines.transactions_in_doubt("/srv", [bytes((number,)) for number in range(50)])
    assert [line.text[12:14] for line in lines] == [f"{number:02x}" for number in range(MAX_IN_DOUBT_LINES)]
    assert last.text.startswith("30 more transactions are in doubt: ")
    assert "-c 'list transactions' lists all 50" in last.text
    assert "qstore-recover /srv NEW-DIRECTORY --resolve-all commit (or rollback)" in last.text
