"""The manual lists every default that is another one than in the documents of qpidd, with the value that it has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import qstore
from qstore.broker.process.option_table import GROUPS, Effect
from qstore.formats.rhm.geometry import MAX_RING_FILES, PAGE_SIZE
from qstore.store.parameters import OPTIONS, START

DOCUMENTED: Final = {
    # Qpid C++ Broker Book, 1.1.5: help; 1.1.4; 1.2.1; 1.8.2; 1.9; 1.11.5; table 1.28
    "config": "/etc/qpidd.conf", "module-dir": "/usr/lib/qpidd", "port": "5672", "max-connections": "500",
    "connection-backlog": "10", "staging-threshold": "500000", "mgmt-enable": "yes", "mgmt-pub-interval": "10",
    "wait": "10", "log-enable": "notice+", "log-time": "yes", "log-level": "yes", "log-source": "no",
    "log-thread": "no", "log-function": "no", "log-hires-timestamp": "no", "log-category": "yes",
    "log-to-stderr": "yes", "log-to-stdout": "no", "syslog-name": "qpidd", "syslog-facility": "LOG_DAEMON",
    "realm": "QPID", "enable-timestamp": "no", "ssl-port": "5671", "default-flow-stop-threshold": "80",
    "default-flow-resume-threshold": "70", "default-message-group": "qpid.no-group",
    "replication-listener-name": "replicator", "link-maintenance-interval": "2", "link-heartbeat-interval": "120",
    # MRG Messaging User Guide 2, 4.4, 4.5, table 6.2
    "default-queue-policy": "flow_to_disk", "default-event-threshold-ratio": "80", "num-jfiles": "8",
    "jfile-size-pgs": "24", "wcache-page-size": "32", "tpl-num-jfiles": "8", "tpl-jfile-size-pgs": "24",
    "tpl-wcache-page-size": "32", "truncate": "no",
    # Qpid wiki, FAQ (TCP_NODELAY has to be set), "Checking the broker has started up"
    "tcp-nodelay": "no", "interface": "0.0.0.0",
}  # fmt: skip
"""Option -> its default in the documents; of those that have an effect here."""


def defaults() -> dict[str, str]:
    """Option -> its default here; `none` if there is none."""
    found = {each.name: each.default for group in GROUPS for each in group.options if each.effect is Effect.WORKS}
    for each in OPTIONS:
        if not each.not_needed:
            words = {True: "yes", False: "no", None: ""}
            found[each.name] = words[each.default] if isinstance(each.default, bool | None) else str(each.default)
    return {name: value or "none" for name, value in found.items()}


def rows() -> list[tuple[str, ...]]:
    """The rows of the manual's table, without its head."""
    manual = (Path(qstore.__file__).parent / "broker" / "OPERATING.md").read_text()
    section = re.split(r"(?m)^#+ ", manual.partition("### Differences from qpidd's")[2])[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[1:]]


def test_the_manual_has_each_default_that_differs_with_both_values() -> None:
    here = defaults()
    differing = {name: (value, here[name]) for name, value in DOCUMENTED.items() if here[name] != value}
    listed = {cells[0].strip("`-"): cells[1:3] for cells in rows() if cells[0].startswith("`--")}
    assert listed == differing
    assert listed["connection-backlog"] == ("10", "512")


def test_each_row_has_a_reason() -> None:
    assert [cells for cells in rows() if len(cells) != 4 or not all(cells)] == []
    assert len({cells[0] for cells in rows()}) == len(rows())


def test_the_first_size_of_a_journal_is_the_one_in_the_manual() -> None:
    (here,) = [cells[2] for cells in rows() if cells[0] == "a journal that may grow"]
    size = f"{START.files} files of {START.data_size // PAGE_SIZE} pages"
    assert here == f"{size}, at most {MAX_RING_FILES} files"
