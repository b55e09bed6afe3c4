"""Stores that the real qpidd left, given to the broker: a client receives exactly what qpidd itself recovered."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from qstore.formats.plain import plain_map
from qstore.tools import qstore_shell
from tests.support.dump import dump
from tests.support.fixtures import LEGACY_STORES, StoreFixture, StoreOpener, set_writable
from tests.support.raw_peer import Delivery, RawPeer
from tests.support.running_broker import BrokerMaker, RunningBroker

_SAME: Final = ("app_id", "content_encoding", "content_type", "correlation_id", "priority", "delivery_mode")
"""The fields that the manifest has unchanged, or leaves out."""


def _broker_on_copy(make_broker: BrokerMaker, fixture: StoreFixture) -> RunningBroker:
    broker = make_broker()
    broker.directory.mkdir(parents=True)
    shutil.copytree(fixture.path, broker.data_directory, symlinks=True)
    set_writable(broker.data_directory, writable=True)
    os.chmod(broker.data_directory, 0o700)
    return broker.start()


def _receive_all(broker: RunningBroker, queue: str, *, acquires: bool = False) -> list[Delivery]:
    """What a browser of the queue gets, or a consumer that accepts nothing."""
    with RawPeer(broker.port) as peer:
        count = peer.message_count(queue)
        peer.subscribe(queue, acquire_mode=0 if acquires else 1, accept_mode=0 if acquires else 1)
        deliveries = peer.take(count)
        assert peer.take_all(0.05) == []
        peer.end()
    return deliveries


def _is_plain(queue: dict[str, Any]) -> bool:
    """Whether it delivers in the order in which messages came."""
    return "qpid.priorities" not in queue["arguments"]


def _check_messages(queue: dict[str, Any], deliveries: Sequence[Delivery], reported: Sequence[dict[str, Any]]) -> None:
    """Each message, in its order; a priority queue's by their ids, since the manifest lists them by priority."""
    if not _is_plain(queue):
        deliveries = sorted(deliveries, key=lambda delivery: str(delivery.properties()["message_id"]))
        reported = sorted(reported, key=lambda row: str(row["message_id"]))
    for delivery, row in zip(deliveries, reported, strict=True):
        _check_message(delivery, row)


def _check_message(delivery: Delivery, reported: dict[str, Any]) -> None:
    """A delivery against the manifest's row."""
    fields = delivery.properties()
    assert len(delivery.body) == reported["body_len"]
    assert hashlib.sha256(delivery.body).hexdigest() == reported["body_sha256"]
    assert (fields.get("exchange", ""), fields.get("routing_key", "")) == (
        reported["exchange"],
        reported["routing_key"],
    )
    assert fields.get("message_id") == (uuid.UUID(reported["message_id"]) if reported.get("message_id") else None)
    for name in _SAME:
        value = fields.get(name)
        assert (value.decode() if isinstance(value, bytes) else value) == reported.get(name), name
    reply_to = reported.get("reply_to")
    if reply_to is not None:
        assert tuple(fields["reply_to"]) == (reply_to["exchange"], reply_to["routing_key"])
    headers = fields.get("application_headers")
    assert ({} if headers is None else plain_map(headers)) == {
        name: _plain(value) for name, value in reported.get("headers", {}).items()
    }


def _plain(reported: dict[str, Any]) -> Any:
    """A value of the manifest as `plain_map` shows it."""
    if reported["t"] == "map":
        return {name: _plain(value) for name, value in reported["v"].items()}
    if reported["t"] == "list":
        return [_plain(value) for value in reported["v"]]
    if "hex" in reported:
        return reported["hex"]
    return reported.get("v")


@pytest.mark.parametrize("name", LEGACY_STORES)
def test_the_messages_are_those_that_qpidd_recovered(
    name: str, open_fixture: StoreOpener, make_broker: BrokerMaker
) -> None:
    fixture = open_fixture(name)
    broker = _broker_on_copy(make_broker, fixture)
    for queue in fixture.recovered["queues"]:
        deliveries = _receive_all(broker, queue["name"])
        assert len(deliveries) == queue["message_count"] == len(queue["messages"])
        _check_messages(queue, deliveries, queue["messages"])
    _check_topology(broker, fixture.recovered)
    assert (broker.data_directory / "rhm.version-1").is_dir()


def test_taken_for_good(open_fixture: StoreOpener, make_broker: BrokerMaker) -> None:
    """What was converted and accepted stays away, whether the broker ends cleanly or not."""
    fixture = open_fixture("legacy-a-clean")
    broker = _broker_on_copy(make_broker, fixture)
    left: dict[str, int] = {}
    with RawPeer(broker.port) as peer:
        for queue in fixture.recovered["queues"]:
            taken = queue["message_count"] // 2
            peer.subscribe(queue["name"], queue["name"], messages=taken, window=False)
            deliveries = peer.take(taken)
            if deliveries:
                peer.accept(deliveries)
            left[queue["name"]] = queue["message_count"] - taken
        peer.sync()
    broker.kill()
    for _ in range(2):
        broker.start()
        for queue in filter(_is_plain, fixture.recovered["queues"]):
            rest = _receive_all(broker, queue["name"])
            expected = queue["messages"][queue["message_count"] - left[queue["name"]] :]
            _check_messages(queue, rest, expected)
        assert broker.stop() == 0


def _check_topology(broker: RunningBroker, recovered: dict[str, Any]) -> None:
    with RawPeer(broker.port) as peer:
        for queue in recovered["queues"]:
            reported = peer.call("queue.query", queue=queue["name"])
            assert reported["durable"]
            assert (reported["alternate_exchange"] or "") == queue.get("alternate_exchange", "")
        for exchange in recovered["exchanges"]:
            reported = peer.call("exchange.query", name=exchange["name"])
            assert (reported["type"], reported["durable"], reported["not_found"]) == (exchange["type"], True, False)
        for binding in recovered["bindings"]:
            key = {} if binding.get("key") is None else {"binding_key": binding["key"]}
            reported = peer.call("exchange.bound", exchange=binding["exchange"], queue=binding["queue"], **key)
            assert not any(reported.values()), (binding, reported)
        peer.end()


def test_the_tree_that_was_given_is_kept(open_fixture: StoreOpener, make_broker: BrokerMaker) -> None:
    """Converting leaves each byte of the old journals where it can be found."""
    fixture = open_fixture("legacy-b-crash1")
    broker = _broker_on_copy(make_broker, fixture)
    assert broker.stop() == 0
    kept = broker.data_directory / "rhm.version-1"
    assert _journals(kept) == _journals(fixture.path / "rhm")


def _journals(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).digest() for file in root.rglob("*.jdat")}


def test_a_priority_queue_is_served_as_one_and_the_dump_shows_that_order(
    open_fixture: StoreOpener, make_broker: BrokerMaker
) -> None:
    fixture = open_fixture("legacy-a-clean")
    broker = _broker_on_copy(make_broker, fixture)
    assert "without features" not in broker.log_text()
    (queue,) = [each for each in fixture.recovered["queues"] if each["name"] == "fx.prio"]
    delivered = [hashlib.sha256(each.body).hexdigest() for each in _receive_all(broker, "fx.prio", acquires=True)]
    assert delivered == [message["body_sha256"] for message in queue["messages"]]
    assert broker.stop() == 0
    for path in (broker.data_directory, fixture.path):
        found = dump(path, "--outstanding", "--json")
        assert "priority" not in found.errors
        assert [message["body_sha256"] for message in found.messages("fx.prio")] == delivered


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_the_log_says_how_to_settle_transactions_in_doubt_and_that_works(
    open_fixture: StoreOpener, make_broker: BrokerMaker, outcome: str
) -> None:
    fixture = open_fixture("legacy-d-dtx")
    broker = _broker_on_copy(make_broker, fixture)
    lines = [line for line in broker.log_text().splitlines() if " is in doubt: " in line]
    assert len(lines) == len(fixture.recovered["in_doubt_xids"]) == 3
    assert all(" [Store] notice Transaction " in line for line in lines)
    counts = {queue["name"]: queue["message_count"] for queue in fixture.recovered["queues"]}
    assert broker.stop() == 0
    for line in lines:
        program, url, *options = shlex.split(line.partition("manually: ")[2].partition(" (or rollback)")[0])
        assert (program, url) == ("qstore-shell", "amqp://HOST")
        assert line.endswith(f"with {broker.data_directory} instead of amqp://HOST")
        options = [each.replace("commit", outcome) for each in options]
        found = CliRunner().invoke(qstore_shell.command, [str(broker.data_directory), *options])
        assert found.exit_code == 0, found.output
    said = len(broker.log_text())
    broker.start()
    assert " in doubt" not in broker.log_text()[said:]
    for name, branch in fixture.manifest["branches"].items():
        if name in fixture.manifest["in_doubt_expected"]:
            for queue, numbers in branch["enqueues" if outcome == "commit" else "dequeues"].items():
                counts[queue] += len(numbers)
    with RawPeer(broker.port) as peer:
        assert {name: peer.message_count(name) for name in counts} == counts
