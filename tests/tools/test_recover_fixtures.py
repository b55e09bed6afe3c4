"""What `qstore-recover` makes of the fourteen stores is what the real qpidd recovered from them.

The tests of `qstore-dump` hold its output against the manifests: here they see the dump of the recovered store.
"""

from __future__ import annotations

import stat

import pytest

from tests.support.dump import Dump, dump
from tests.support.fixtures import StoreFixture
from tests.support.recover_runs import Recovery, as_qpidd_delivers, facts, recover, stored
from tests.tools.test_dump_fixtures import (
    recovered,
    sequence_numbers,
    test_bindings,
    test_bodies_and_ids_follow_the_rule_that_made_them,
    test_bodies_are_whole,
    test_exchanges,
    test_messages,
    test_messages_in_order,
    test_no_damage,
    test_only_the_kinds_of_the_schema,
    test_queues,
    test_record_ids_are_unique_in_a_queue,
    test_transactions_in_doubt,
)

__all__ = [
    "test_bindings",
    "test_bodies_and_ids_follow_the_rule_that_made_them",
    "test_bodies_are_whole",
    "test_exchanges",
    "test_messages",
    "test_messages_in_order",
    "test_no_damage",
    "test_only_the_kinds_of_the_schema",
    "test_queues",
    "test_record_ids_are_unique_in_a_queue",
    "test_transactions_in_doubt",
]


@pytest.fixture(scope="module")
def recovery(qpidd_store: StoreFixture, tmp_path_factory: pytest.TempPathFactory) -> Recovery:
    return recover(qpidd_store.path, tmp_path_factory.mktemp("recovered") / "store")


@pytest.fixture(scope="module")
def dumped(recovery: Recovery) -> Dump:
    """Stands for the one of the same name of the tests that are imported."""
    return as_qpidd_delivers(dump(recovery.path, "--outstanding", "--json"))


def test_all_but_the_record_ids_is_as_before(qpidd_store: StoreFixture, dumped: Dump) -> None:
    """What is in doubt too, which no manifest lists message by message."""
    assert facts(dumped) == facts(dump(qpidd_store.path, "--outstanding", "--json"))


def test_the_report(qpidd_store: StoreFixture, recovery: Recovery, dumped: Dump) -> None:
    assert recovery.report.code == 0, recovery.report.text
    queues = recovered(qpidd_store)["queues"]
    assert {line["name"]: line["messages"] for line in recovery.report.lines("queue")} == {
        queue["name"]: queue["message_count"] for queue in queues
    }
    assert {line["name"]: line["in_doubt"] for line in recovery.report.lines("queue")} == {
        name: len(dumped.messages(name, "in-doubt-enqueue", "in-doubt-dequeue"))
        for name in sequence_numbers(qpidd_store)
    }
    assert recovery.summary["queues"] == len(queues)
    assert recovery.summary["messages"] == sum(queue["message_count"] for queue in queues)
    assert recovery.summary["lost"] == 0
    in_doubt = [line for line in recovery.report.lines("transaction") if line["state"] == "in-doubt"]
    assert {line["xid"] for line in in_doubt} == {line["xid"] for line in dumped.lines("transaction")}


def test_modes(recovery: Recovery) -> None:
    """Other users cannot read it. RocksDB's files have modes of their own, in a directory that keeps others out."""
    for path in [recovery.path, *recovery.path.rglob("*")]:
        if path.is_dir() or path.parent.name != "catalogue":
            assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_brokers_store_opens_it(recovery: Recovery, dumped: Dump) -> None:
    """Every message is there, and after that life everything still is."""
    found = stored(recovery.path)
    assert set(found) == {line["name"] for line in dumped.lines("queue")}
    for name, messages in found.items():
        lines = sorted(dumped.messages(name), key=lambda line: line["rid"])  # a priority queue's are shown otherwise
        assert len(messages) == len(lines)
        assert all(data.endswith(line["body"].encode()) for data, line in zip(messages, lines, strict=True))
    assert facts(as_qpidd_delivers(dump(recovery.path, "--outstanding", "--json"))) == facts(dumped)
