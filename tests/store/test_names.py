"""Names are unique: a second queue, exchange or general object of a name is refused; old duplicates are reported."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qstore.formats.broker_records.topology import Binding, Exchange, GeneralObject, Link, Queue, problem_of_new_name
from qstore.formats.catalogue import Kind
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.topology import TakenNames, Topology
from qstore.store.environment import Environment
from qstore.store.errors import NameTakenError, StoreDamagedError
from qstore.store.key_value import CatalogueError
from qstore.store.log_lines import Level
from qstore.store.parameters import OnDamage
from qstore.tools.qstore_recover import command as recover
from tests.support.dump import dump
from tests.support.opened_store import GEOMETRY, PARAMETERS, Calls, OpenedStore
from tests.support.planted_damage import check

DOMAIN = GeneralObject("domain", "far")
LINK = Link("link.v2", "far", "far.example", 5672, "tcp", True, "PLAIN", "guest", "guest")
UNNAMED = Link("link", None, "far.example", 5672, "tcp", True, "PLAIN", "guest", "guest")


def refusal(calls: Calls) -> str:
    made, error = calls[-1]
    assert made is None
    assert isinstance(error, NameTakenError)
    assert "\n" not in str(error)
    return str(error)


def test_a_second_queue_of_a_name_is_refused_and_leaves_nothing(environment: Environment, path: Path) -> None:
    opened, calls = OpenedStore(environment, path), Calls()
    opened.make_queue("orders")
    opened.store.changes.create_queue(Queue("orders"), GEOMETRY, calls)
    opened.wait(calls)
    assert refusal(calls) == ('queue "orders" cannot be created: queue "orders" already exists, with the id 1')
    assert sorted(opened.store.journals) == [1]
    assert [each.name for each in (path / "rhm" / "jrnl").iterdir()] == ["1"]
    assert opened.store.close()

    opened = OpenedStore(environment, path)  # and so does one that an earlier life made
    opened.store.end_recovery()
    opened.store.changes.create_queue(Queue("orders"), GEOMETRY, calls)
    opened.wait(calls, 2)
    refusal(calls)
    assert opened.make_queue("other").queue_id == 2
    assert opened.store.close()


def test_a_name_is_free_again_when_its_queue_is_deleted(environment: Environment, path: Path) -> None:
    opened, calls = OpenedStore(environment, path), Calls()
    journal = opened.make_queue("orders")
    opened.enqueue(journal, b"not synced yet")
    opened.store.changes.delete_queue(journal, calls)
    opened.store.changes.create_queue(Queue("orders"), GEOMETRY, calls)  # asked for before the other one is gone
    opened.wait(calls, 2)
    assert [error for _, error in calls] == [None, None]
    assert [each.queue_id for each in opened.store.journals.values()] == [2]
    assert opened.store.close()


@pytest.mark.parametrize("record", [Exchange("trade", True, "topic"), DOMAIN, LINK], ids=lambda each: each.name)
def test_exchanges_and_general_objects_have_names_of_their_own(
    environment: Environment, path: Path, record: Any
) -> None:
    opened, calls = OpenedStore(environment, path), Calls()
    changes = opened.store.changes
    create = changes.create_exchange if isinstance(record, Exchange) else changes.create_general
    delete = changes.delete_exchange if isinstance(record, Exchange) else changes.delete_general
    for _ in range(2):
        create(record, calls)
    opened.wait(calls, 2)
    number, error = calls[0]
    assert error is None
    assert f'"{record.name}" already exists, with the id {number}' in refusal(calls)
    delete(number, calls)
    create(record, calls)
    opened.wait(calls, 4)
    assert calls[3][1] is None
    assert opened.store.close()


def test_names_of_different_kinds_do_not_meet(environment: Environment, path: Path) -> None:
    opened, calls = OpenedStore(environment, path), Calls()
    opened.make_queue("far")
    opened.store.changes.create_exchange(Exchange("far", True, "topic"), calls)
    for record in (DOMAIN, LINK, GeneralObject("topic", "far"), UNNAMED, UNNAMED):
        opened.store.changes.create_general(record, calls)
    opened.wait(calls, 6)
    assert [error for _, error in calls] == [None] * 6
    assert opened.store.close()


def test_a_queue_that_could_not_be_made_has_taken_no_name(
    environment: Environment, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, calls = OpenedStore(environment, path), Calls()

    def fail(*_: object) -> None:
        raise CatalogueError("the disk says no")

    with monkeypatch.context() as patch:
        patch.setattr(Catalogue, "create_queue", fail)
        opened.store.changes.create_queue(Queue("orders"), GEOMETRY, calls)
        opened.wait(calls)
    assert "the disk says no" in str(calls[0][1])
    assert not isinstance(calls[0][1], NameTakenError)
    opened.make_queue("orders")
    assert opened.store.close()


def test_a_name_is_looked_up_as_fast_among_many() -> None:
    names = TakenNames(Topology())
    for number in range(1, 100_001):
        names.add(Kind.QUEUE, number, Queue(f"queue.{number}"))
    began = time.process_time()
    for number in range(10_000):
        names.check(Queue(f"other.{number}"))
    assert time.process_time() - began < 1.0  # a search would take a minute
    with pytest.raises(NameTakenError, match="with the id 100000"):
        names.check(Queue("queue.100000"))


# ---- stores of earlier versions ----


def with_duplicates(environment: Environment, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store as an earlier version made it: three queues of one name, two exchanges, and a binding of each queue."""
    opened, calls = OpenedStore(environment, path), Calls()
    changes = opened.store.changes
    with monkeypatch.context() as patch:
        patch.setattr(TakenNames, "check", lambda *_: None)
        for content in (b"first", b"second", b"third"):
            opened.enqueue(opened.make_queue("orders"), content)
        for record in (Exchange("trade", True, "topic"), Exchange("trade", True, "topic")):
            changes.create_exchange(record, calls)
        for _ in range(2):
            changes.create_general(DOMAIN, calls)
        for number in (1, 2, 3):
            changes.create_binding(min(number, 2), Binding(number, "orders", f"key.{number}"), calls)
        opened.wait(calls, 7)
    assert [error for _, error in calls] == [None] * 7
    assert opened.store.close()


SHOWN = {"orders": [b"first"], "orders.duplicate-2": [b"second"], "orders.duplicate-3": [b"third"]}
BOUND = {
    ("trade", "orders", "key.1"),
    ("trade.duplicate-2", "orders.duplicate-2", "key.2"),
    ("trade.duplicate-2", "orders.duplicate-3", "key.3"),
}


def test_duplicates_of_an_earlier_version_are_reported_and_lose_nothing(
    environment: Environment, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_duplicates(environment, path, monkeypatch)
    for _ in range(2):  # the same at every start, until one is deleted
        opened = OpenedStore(environment, path)
        assert opened.recovered_data() == SHOWN
        found = {
            (each.exchange.name, each.record.queue_name, each.record.key) for each in opened.store.topology.bindings
        }
        assert found == BOUND
        critical = [line.text for line in opened.lines if line.level is Level.CRITICAL]
        assert len(critical) == 4
        assert (
            'queue 2 has the same name as queue 1, "orders": both are kept; this one is shown as "orders.duplicate-2"'
            in critical[2]
        )
        assert opened.store.close()

    opened, calls = OpenedStore(environment, path), Calls()
    opened.store.end_recovery()
    for number in (1, 3):
        opened.store.changes.delete_queue(opened.store.journals[number], calls)
    for name in ("orders", "orders.duplicate-2"):  # both are still those of queue 2
        opened.store.changes.create_queue(Queue(name), GEOMETRY, calls)
    opened.wait(calls, 4)
    assert [type(error) for _, error in calls] == [type(None), type(None), NameTakenError, NameTakenError]
    assert opened.store.close()
    opened = OpenedStore(environment, path)
    assert opened.recovered_data() == {"orders": [b"second"]}
    assert opened.store.close()


def test_a_store_with_duplicates_is_refused_where_damage_is(
    environment: Environment, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_duplicates(environment, path, monkeypatch)
    with pytest.raises(StoreDamagedError, match="on-damage is refuse"):
        OpenedStore(environment, path, dataclasses.replace(PARAMETERS, on_damage=OnDamage.REFUSE))


def test_the_tools_tell_duplicates_and_read_all_of_them(
    environment: Environment, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_duplicates(environment, path, monkeypatch)
    checked = check(path)
    assert checked.code == 1
    assert [line["what"] for line in checked.lines("damage")] == [
        'domain 2 has the same name as domain 1, "far"',
        'exchange 2 has the same name as exchange 1, "trade"',
        'queue 2 has the same name as queue 1, "orders"',
        'queue 3 has the same name as queue 1, "orders"',
    ]
    shown = dump(path, "--outstanding", "--json")
    assert shown.code == 1
    assert {line["queue"]: [line["body"].encode()] for line in shown.lines("message")} == SHOWN
    saved = path.parent / "saved"
    result = CliRunner().invoke(recover, [str(path), str(saved)])
    assert "3 messages" in result.output
    opened = OpenedStore(environment, saved)
    assert opened.recovered_data() == SHOWN
    assert [line for line in opened.lines if line.level is Level.CRITICAL] == []
    found = {(each.exchange.name, each.record.queue_name, each.record.key) for each in opened.store.topology.bindings}
    assert found == BOUND
    assert opened.store.close()


@pytest.mark.parametrize("name", ["evil\0name", "line\nend", "\x1b[2J", "no text\udcff", "\u0085"])
def test_a_queue_with_a_name_of_an_earlier_version_is_recovered_under_it_with_its_bindings(
    environment: Environment, path: Path, name: str
) -> None:
    """No new queue can have it, but this one has messages."""
    assert problem_of_new_name(name)
    opened, calls = OpenedStore(environment, path), Calls()
    journal = opened.make_queue(name)
    opened.enqueue(journal, b"kept")
    opened.store.changes.create_exchange(Exchange(f"trade {name}", True, "topic"), calls)
    opened.store.changes.create_binding(1, Binding(1, name, f"key {name}"), calls)
    opened.wait(calls, 2)
    assert opened.store.close()
    opened = OpenedStore(environment, path)
    assert opened.recovered_data() == {name: [b"kept"]}
    assert opened.store.close()

    assert check(path).code == 0
    saved = path.parent / "saved"
    result = CliRunner().invoke(recover, [str(path), str(saved)])
    assert result.exit_code == 0, result.output
    assert "lost.found" not in result.output
    opened = OpenedStore(environment, saved)
    assert opened.recovered_data() == {name: [b"kept"]}
    (found,) = opened.store.topology.bindings
    assert (found.exchange.name, found.record.queue_name, found.record.key) == (f"trade {name}", name, f"key {name}")
    assert opened.store.close()
