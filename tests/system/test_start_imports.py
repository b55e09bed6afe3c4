"""A start imports no module that it does not need: each one listed here once cost every start some milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support.running_broker import RunningBroker

#: With all that is in them, and what only they need.
DEFERRED: Final = (
    "difflib",
    "gssapi",
    "multiprocessing",
    "qstore.broker.client",
    "qstore.broker.management.console",
    "qstore.broker.security.acl.reader",
    "qstore.formats.bdb",
    "qstore.store.backup",
    "qstore.store.builders",
    "qstore.store.catalogue.berkeley",
    "qstore.store.importing",
    "qstore.store.inspect.check",
    "qstore.store.inspect.offline",
    "qstore.store.journal.write.version_1_writer",
    "qstore.store.repair",
    "qstore.tools",
    "regex",
    "rich",
    "click",
    "scramp",
    "xml",
)


def imported(log: str) -> set[str]:
    """The modules in what `-X importtime` has written."""
    lines = (line for line in log.splitlines() if line.startswith("import time:"))
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.core
def test_a_start_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path)
    broker.runner = ("-X", "importtime")
    try:
        broker.start()
        found = imported(broker.log.read_text())
    finally:
        broker.close()
    assert {"qstore.broker.process.runner", "qstore.store.start.apply"} <= found
    assert [name for name in sorted(found) if name.startswith(tuple(f"{each}." for each in DEFERRED))] == []
    assert sorted(found.intersection(DEFERRED)) == []
