"""Branches in doubt, in stores of the real qpidd and our own: clients find them and end them."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from qstore.formats.amqp_0_10.codes import ErrorCode, XaStatus
from qstore.formats.amqp_0_10.structs import BranchId
from qstore.formats.broker_records.xids import decode_xid
from qstore.formats.plain import plain_map
from qstore.tools import qstore_check, qstore_recover
from qstore.tools.console import rows
from tests.support.dump import dump
from tests.support.fixtures import StoreFixture, StoreOpener, set_writable
from tests.support.raw_peer import RawPeer, SessionEndedError
from tests.support.running_broker import BrokerMaker, RunningBroker

STORES: Final = ("legacy-d-dtx", "linear-d-dtx")


def start_on(make_broker: BrokerMaker, fixture: StoreFixture) -> RunningBroker:
    """A broker that serves a copy; of a linearstore, what qstore-recover makes of it."""
    broker = make_broker()
    broker.directory.mkdir(parents=True)
    if fixture.name.startswith("linear"):
        found = CliRunner().invoke(qstore_recover.command, [str(fixture.path), str(broker.data_directory)])
        assert found.exit_code == 0, found.output
    else:
        shutil.copytree(fixture.path, broker.data_directory, symlinks=True)
        set_writable(broker.data_directory, writable=True)
        os.chmod(broker.data_directory, 0o700)
    return broker.start()


def in_doubt(peer: RawPeer) -> list[BranchId]:
    found = [decode_xid(raw) for raw in peer.call("dtx.recover")["in_doubt"].values]
    return sorted(BranchId(each.format, each.global_id, each.branch_id) for each in found)


def xid_of(reported: dict[str, Any]) -> BranchId:
    return BranchId(reported["format"], bytes.fromhex(reported["global_id"]), bytes.fromhex(reported["branch_id"]))


def body(queue: str, number: int, size: int) -> bytes:
    """The rule of the manifests."""
    piece = f"{queue}/{number}|".encode()
    return (piece * (size // len(piece) + 1))[:size]


def names(broker: RunningBroker, queue: str) -> list[str]:
    """The messages of a queue, in order: `queue/number`."""
    with RawPeer(broker.port) as peer:
        count = peer.message_count(queue)
        peer.subscribe(queue, acquire_mode=1, accept_mode=1)
        deliveries = peer.take(count)
        assert peer.take_all(0.05) == []
        peer.end()
    found = []
    for delivery in deliveries:
        fields = delivery.properties()
        number = plain_map(fields["application_headers"])["sn"]
        assert delivery.body == body(queue, number, len(delivery.body))
        assert fields["message_id"] == uuid.uuid5(uuid.NAMESPACE_URL, f"qpid-fixture:{queue}/{number}")
        found.append(f"{queue}/{number}")
    return found


def expected_of(fixture: StoreFixture) -> dict[str, list[str]]:
    """What each queue has while p1, p2 and p3 are in doubt: as qpidd's legacystore has recovered it."""
    return {
        queue["name"]: [f"{queue['name']}/{message['headers']['sn']['v']}" for message in queue["messages"]]
        for queue in fixture.recovered["queues"]
    }


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize(("commits", "is_restarted"), [(True, True), (False, False)], ids=["commit", "rollback"])
def test_branches_in_doubt_are_listed_and_ended(
    name: str, commits: bool, is_restarted: bool, open_fixture: StoreOpener, make_broker: BrokerMaker
) -> None:
    fixture = open_fixture(name)
    before = expected_of(open_fixture("legacy-d-dtx"))
    broker = start_on(make_broker, fixture)
    if is_restarted:
        broker.kill()
        broker.start()
    branches = {each: fixture.manifest["branches"][each] for each in fixture.manifest["in_doubt_expected"]}
    xids = sorted(xid_of(branch["xid"]) for branch in branches.values())
    with RawPeer(broker.port) as peer:
        assert in_doubt(peer) == xids
        assert {queue: names(broker, queue) for queue in before} == before, "what is in doubt is seen by nobody"
        for xid in xids:
            command = "commit" if commits else "rollback"
            assert peer.call(f"dtx.{command}", xid=xid)["status"] == XaStatus.XA_OK
        assert in_doubt(peer) == []
        peer.end()
    after = {queue: sorted(found) for queue, found in before.items()}
    for branch in branches.values():
        for queue, numbers in branch["enqueues" if commits else "dequeues"].items():
            after[queue] = sorted(after[queue] + [f"{queue}/{number}" for number in numbers])
    found = {queue: names(broker, queue) for queue in after}
    assert {queue: sorted(each) for queue, each in found.items()} == after
    broker.kill()
    broker.start()
    assert {queue: names(broker, queue) for queue in after} == found, "each message keeps its place over a restart"


def test_rolled_back_messages_return_to_their_places(open_fixture: StoreOpener, make_broker: BrokerMaker) -> None:
    """qpidd puts it elsewhere (Qpid wiki, "Distributed transactions in the broker": known weakness)."""
    fixture = open_fixture("legacy-d-dtx")
    broker = start_on(make_broker, fixture)
    with RawPeer(broker.port) as peer:
        for xid in in_doubt(peer):
            peer.call("dtx.rollback", xid=xid)
        peer.end()
    numbers = [int(name.rpartition("/")[2]) for name in names(broker, "d.q1")]
    assert numbers == sorted(numbers)
    assert numbers[:5] == [0, 1, 2, 3, 4]


def test_the_log_of_a_start_tells_how_many(open_fixture: StoreOpener, make_broker: BrokerMaker) -> None:
    broker = start_on(make_broker, open_fixture("legacy-d-dtx"))
    (line,) = [line for line in broker.log_text().splitlines() if "In doubt: " in line]
    assert "notice In doubt: 3 transactions with 15 messages, until committed or rolled back; dtx.recover lists" in line


def test_the_tools_agree_with_the_broker(open_fixture: StoreOpener, make_broker: BrokerMaker) -> None:
    """After some were ended, and the broker was stopped, the tools see the rest in doubt."""
    broker = start_on(make_broker, open_fixture("legacy-d-dtx"))
    with RawPeer(broker.port) as peer:
        first, second, third = in_doubt(peer)
        peer.call("dtx.commit", xid=first)
        peer.call("dtx.rollback", xid=third)
        peer.end()
    assert broker.stop() == 0
    lines = dump(broker.data_directory, "--transactions", "--json").lines("transaction")
    shown = [(line["state"], bytes.fromhex(line["global_id"])) for line in lines]
    assert shown == [("in-doubt", second.global_id)]


def test_a_full_prepared_list_refuses_branches_and_leaves_nothing_of_them(
    make_broker: BrokerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused can be prepared, or rolled back, when others have ended."""
    broker = make_broker("--tpl-num-jfiles", "4", "--tpl-jfile-size-pgs", "1").start()
    xids = [BranchId(1, b"%d" % number, b"x" * 250) for number in range(500)]
    with RawPeer(broker.port) as peer:
        peer.declare("q")
        peer.call("dtx.select")
        with pytest.raises(SessionEndedError, match=r"prepared list is full: .* qstore-resize") as refusal:
            prepare_all(peer, xids)
        assert refusal.value.code == ErrorCode.RESOURCE_LIMIT_EXCEEDED
    with RawPeer(broker.port) as peer:
        prepared = in_doubt(peer)
        refused = xids[len(prepared)]
        assert refused not in prepared
        for xid in prepared[:5]:
            peer.call("dtx.commit", xid=xid)
        assert peer.message_count("q") == 5
        assert peer.call("dtx.prepare", xid=refused)["status"] == XaStatus.XA_OK
        assert len(in_doubt(peer)) == len(prepared) - 4
        peer.end()
    broker.kill()
    lines = checked(broker.data_directory, "--json").splitlines()
    shown = [line for line in map(json.loads, lines) if line.get("role") == "prepared-list"]
    assert [(0.9 < line["fill"] <= 1, line["near_threshold"]) for line in shown] == [(True, True)]
    monkeypatch.setattr(rows, "MAX_SHOWN", 40)
    assert f"… and {len(prepared) - 4 - 40} more transactions; --json shows all" in checked(broker.data_directory)
    broker.start()
    with RawPeer(broker.port) as peer:
        assert len(in_doubt(peer)) == len(prepared) - 4
        assert peer.message_count("q") == 5
        peer.end()


def checked(directory: Path, *options: str) -> str:
    """What qstore-check says."""
    return CliRunner().invoke(qstore_check.command, [*options, str(directory)]).output


def prepare_all(peer: RawPeer, xids: Sequence[BranchId]) -> None:
    """Branches of one message each."""
    for xid in xids:
        peer.send_command("dtx.start", xid=xid)
        peer.publish("q", b"m")
        peer.send_command("dtx.end", xid=xid)
        peer.call("dtx.prepare", xid=xid)
