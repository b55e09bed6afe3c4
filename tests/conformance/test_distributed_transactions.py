"""Distributed transactions as clients see them: class dtx of AMQP 0-10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.codes import ErrorCode, XaStatus
from qstore.formats.amqp_0_10.structs import BranchId
from qstore.formats.broker_records.xids import decode_xid
from tests.broker.protocols.world import Client, World
from tests.conformance.queue_clients import detach, fail, lose

X, Y = BranchId(1, b"global", b"x"), BranchId(1, b"global", b"y")

OK, ROLLED_BACK, TIMED_OUT = XaStatus.XA_OK, XaStatus.XA_RBROLLBACK, XaStatus.XA_RBTIMEOUT


def furnished(settings: BrokerSettings | None = None) -> tuple[World, Client, Client]:
    """The queues `from`, with three messages, and `to`; a client that has them, selected for dtx, and another one."""
    world = World(settings)
    other, client = world.open_client(name=b"other"), world.open_client()
    other.declare("from")
    other.declare("to")
    other.publish("from", b"1", b"2", b"3")
    other.sync()
    client.command("dtx.select")
    client.subscribe("from")
    return world, client, other


def status(client: Client, command: str, xid: BranchId = X, **flags: Any) -> int:
    found: int = client.call(f"dtx.{command}", xid=xid, **flags)["status"]
    return found


def move(client: Client, index: int = 0) -> None:
    """One message of `from` goes to `to`."""
    delivery = client.deliveries[index]
    client.publish("to", delivery.body)
    client.command("message.accept", transfers=((delivery.number, delivery.number),))


def in_doubt(client: Client) -> list[BranchId]:
    found = [decode_xid(raw) for raw in client.call("dtx.recover")["in_doubt"].values]
    return [BranchId(each.format, each.global_id, each.branch_id) for each in found]


def counts(other: Client) -> tuple[int, int]:
    """How many messages anybody could have from either queue."""
    found = [other.call("queue.query", queue=name)["message_count"] or 0 for name in ("from", "to")]
    return found[0], found[1]


def moved(client: Client, xid: BranchId = X, index: int = 0) -> None:
    """A branch that moves one message; its association has ended."""
    assert status(client, "start", xid) == OK
    move(client, index)
    assert status(client, "end", xid) == OK


def refused(client: Client, command: str, code: int, **values: Any) -> None:
    """A command ends its session, with this code."""
    number = client.command(f"dtx.{command}", **values)
    assert client.failure() == (code, number)


# ---- outcomes ----


@pytest.mark.parametrize(
    ("ending", "after"),
    [
        ([("prepare", {}), ("commit", {})], (0, 1)),
        ([("commit", {"one_phase": True})], (0, 1)),
        ([("prepare", {}), ("rollback", {})], (1, 0)),
        ([("rollback", {})], (1, 0)),
    ],
)
@pytest.mark.parametrize("is_same", [True, False], ids=["same session", "another session"])
def test_every_way_to_end_a_branch(
    ending: list[tuple[str, dict[str, bool]]], after: tuple[int, int], is_same: bool
) -> None:
    _, client, other = furnished()
    moved(client)
    for command, flags in ending:
        assert counts(other) == (0, 0)
        assert status(client if is_same else other, command, **flags) == OK
    client.command("message.stop", destination="from")
    assert counts(other)[1] == after[1]
    client.deliveries.clear()
    refused(other, "commit", ErrorCode.NOT_FOUND, xid=X)


def test_messages_that_are_given_back_are_available_to_anyone() -> None:
    _, client, other = furnished()
    moved(client)
    client.command("message.cancel", destination="from")
    assert status(client, "rollback") == OK
    other.subscribe("from")
    assert [(each.body, each.is_redelivered) for each in other.deliveries] == [(b"1", True)]


def test_session_does_not_own_messages_accepted_in_a_branch() -> None:
    """The session can neither release it, nor give it back by ending."""
    world, client, other = furnished()
    moved(client)
    client.command("message.release", transfers=((0, client.deliveries[0].number),))
    detach(client)
    world.run()
    assert counts(other) == (2, 0)
    assert status(other, "prepare") == OK
    assert status(other, "commit") == OK
    assert counts(other) == (2, 1)


def test_outside_of_an_association_everything_takes_effect_at_once() -> None:
    _, client, other = furnished()
    move(client, 0)
    assert counts(other) == (0, 1)
    moved(client, X, 1)
    move(client, 2)
    assert counts(other) == (0, 2)
    assert status(client, "rollback") == OK
    assert client.world.broker.default_host.queues["from"].message_count == 1


def test_branches_are_recovered_until_they_are_ended() -> None:
    _, client, other = furnished()
    for xid, index in ((X, 0), (Y, 1)):
        moved(client, xid, index)
    assert in_doubt(other) == []
    assert status(client, "prepare", X) == status(client, "prepare", Y) == OK
    assert in_doubt(other) == [X, Y]
    assert status(other, "commit", X) == OK
    assert in_doubt(client) == [Y]
    assert status(other, "rollback", Y) == OK
    assert in_doubt(client) == []


def test_an_xid_of_any_form(subtests: pytest.Subtests) -> None:
    _, client, _ = furnished()
    for xid in (BranchId(0, b"", b""), BranchId(0xFFFFFFFF, b"\xff" * 255, b"\0" * 255)):
        with subtests.test(xid=xid):
            moved(client, xid)
            assert status(client, "prepare", xid) == OK
            assert in_doubt(client) == [xid]
            assert status(client, "rollback", xid) == OK
            client.take()
            client.publish("from", b"again")
            client.sync()


def test_many_branches_in_doubt_come_in_one_result() -> None:
    _, client, _ = furnished()
    xids = [BranchId(0, b"%d" % number, b"x" * 200) for number in range(1000)]
    for xid in xids:
        for command in ("start", "end", "prepare"):
            client.command(f"dtx.{command}", xid=xid)
    client.sync()
    assert in_doubt(client) == xids


# ---- associations ----


def test_several_sessions_work_for_one_branch() -> None:
    world, client, other = furnished()
    second = world.open_client(name=b"second")
    second.command("dtx.select")
    assert status(client, "start") == OK
    assert status(second, "start", join=True) == OK
    move(client)
    second.publish("to", b"x")
    assert status(second, "end") == OK
    refused(other, "prepare", ErrorCode.ILLEGAL_STATE, xid=X)
    assert status(client, "end") == OK
    assert status(client, "commit", one_phase=True) == OK
    assert client.call("queue.query", queue="to")["message_count"] == 2


def test_suspended_and_resumed() -> None:
    _, client, other = furnished()
    assert status(client, "start") == OK
    move(client)
    assert status(client, "end", suspend=True) == OK
    client.publish("to", b"outside")
    assert counts(other) == (0, 1)
    moved(client, Y, 1)
    assert status(client, "rollback", Y) == OK
    assert status(client, "start", resume=True) == OK
    move(client, 2)
    assert status(client, "end") == OK
    assert status(client, "commit", one_phase=True) == OK
    assert counts(other)[1] == 3


def test_a_suspended_branch_has_not_ended() -> None:
    _, client, other = furnished()
    assert status(client, "start") == OK
    assert status(client, "end", suspend=True) == OK
    refused(other, "prepare", ErrorCode.ILLEGAL_STATE, xid=X)
    assert status(client, "end") == OK
    assert status(client, "prepare") == OK


def test_an_association_that_ends_as_failed() -> None:
    _, client, other = furnished()
    assert status(client, "start") == OK
    move(client)
    assert status(client, "end", fail=True) == ROLLED_BACK
    client.command("message.cancel", destination="from")
    assert [each.body for each in client.deliveries] == [b"1", b"2", b"3", b"1"]
    assert status(other, "prepare") == ROLLED_BACK
    assert status(client, "start", join=True) == ROLLED_BACK
    assert status(other, "rollback") == OK
    refused(other, "rollback", ErrorCode.NOT_FOUND, xid=X)


@pytest.mark.parametrize("is_suspended", [False, True])
@pytest.mark.parametrize("ending", [detach, lose, fail])
def test_a_session_that_ends_in_the_middle_makes_its_branch_rollback_only(
    ending: Callable[[Client], None], is_suspended: bool
) -> None:
    world, client, other = furnished()
    status(client, "start")
    move(client)
    if is_suspended:
        status(client, "end", suspend=True)
    ending(client)
    world.run()
    assert counts(other) == (3, 0)
    assert status(other, "prepare") == ROLLED_BACK
    assert status(other, "commit") == ROLLED_BACK
    refused(other, "commit", ErrorCode.NOT_FOUND, xid=X)


# ---- timeouts ----


def test_timeouts() -> None:
    world, client, other = furnished(BrokerSettings(auth=False, dtx_default_timeout_seconds=7))
    status(client, "start")
    move(client)
    assert other.call("dtx.get-timeout", xid=X)["timeout"] == 7
    other.command("dtx.set-timeout", xid=X, timeout=20)
    assert client.call("dtx.get-timeout", xid=X)["timeout"] == 20
    client.command("message.cancel", destination="from")
    world.now += 19
    assert client.call("dtx.get-timeout", xid=X)["timeout"] == 20
    assert counts(other) == (0, 0)
    world.now += 1
    assert status(client, "end", suspend=True) == TIMED_OUT
    assert counts(other) == (1, 0)
    assert status(client, "start", join=True) == TIMED_OUT
    assert status(client, "prepare") == TIMED_OUT
    assert status(client, "rollback") == TIMED_OUT


def test_a_branch_that_times_out_while_it_is_suspended() -> None:
    world, client, _ = furnished()
    status(client, "start")
    status(client, "end", suspend=True)
    world.now += 60
    assert status(client, "start", resume=True) == TIMED_OUT
    assert status(client, "end") == TIMED_OUT
    assert status(client, "commit") == TIMED_OUT


def test_a_timeout_that_is_too_long() -> None:
    _, client, other = furnished()
    status(client, "start")
    refused(other, "set-timeout", ErrorCode.INVALID_ARGUMENT, xid=X, timeout=3601)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("command", "flags", "code"),
    [
        ("start", {}, ErrorCode.COMMAND_INVALID),
        ("end", {}, ErrorCode.COMMAND_INVALID),
        ("prepare", {}, ErrorCode.NOT_FOUND),
        ("commit", {}, ErrorCode.NOT_FOUND),
        ("rollback", {}, ErrorCode.NOT_FOUND),
        ("get-timeout", {}, ErrorCode.NOT_FOUND),
        ("set-timeout", {"timeout": 1}, ErrorCode.NOT_FOUND),
        ("forget", {}, ErrorCode.NOT_IMPLEMENTED),
    ],
)
def test_without_selecting_and_without_a_branch(command: str, flags: dict[str, Any], code: int) -> None:
    _, _, other = furnished()
    refused(other, command, code, xid=X, **flags)


@pytest.mark.parametrize(
    ("before", "command", "flags", "code"),
    [
        ("", "start", {"join": True, "resume": True}, ErrorCode.COMMAND_INVALID),
        ("", "start", {"join": True}, ErrorCode.NOT_ALLOWED),
        ("", "start", {"resume": True}, ErrorCode.NOT_ALLOWED),
        ("", "end", {}, ErrorCode.ILLEGAL_STATE),
        ("start", "start", {"xid": Y}, ErrorCode.ILLEGAL_STATE),
        ("start", "start", {}, ErrorCode.ILLEGAL_STATE),
        ("start", "end", {"fail": True, "suspend": True}, ErrorCode.COMMAND_INVALID),
        ("start", "end", {"xid": Y}, ErrorCode.ILLEGAL_STATE),
        ("start", "prepare", {}, ErrorCode.ILLEGAL_STATE),
        ("start", "commit", {"one_phase": True}, ErrorCode.ILLEGAL_STATE),
        ("start", "rollback", {}, ErrorCode.ILLEGAL_STATE),
        ("start end", "start", {}, ErrorCode.NOT_ALLOWED),
        ("start end", "end", {}, ErrorCode.ILLEGAL_STATE),
        ("start end", "commit", {}, ErrorCode.ILLEGAL_STATE),
        ("start end prepare", "commit", {"one_phase": True}, ErrorCode.ILLEGAL_STATE),
        ("start end prepare", "prepare", {}, ErrorCode.ILLEGAL_STATE),
        ("start end prepare", "start", {"join": True}, ErrorCode.ILLEGAL_STATE),
    ],
)
def test_commands_in_the_wrong_state(before: str, command: str, flags: dict[str, Any], code: int) -> None:
    _, client, other = furnished()
    for each in before.split():
        assert status(client, each) == OK
    refused(client, command, code, **{"xid": X, **flags})
    if before:
        assert status(other, "rollback") == OK, "the branch is as it was, but for the session that has ended"


@pytest.mark.parametrize("command", ["start", "end", "prepare", "commit", "rollback", "forget", "get-timeout"])
def test_a_command_without_an_xid(command: str) -> None:
    _, client, _ = furnished()
    refused(client, command, ErrorCode.ILLEGAL_ARGUMENT)


@pytest.mark.parametrize(("first", "second"), [("dtx.select", "tx.select"), ("tx.select", "dtx.select")])
def test_a_session_has_transactions_of_one_kind(first: str, second: str) -> None:
    world = World()
    client = world.open_client()
    client.command(first)
    number = client.command(second)
    assert client.failure() == (ErrorCode.ILLEGAL_STATE, number)


@pytest.mark.parametrize("command", ["tx.commit", "tx.rollback"])
def test_a_branch_is_not_ended_by_a_command_for_local_transactions(command: str) -> None:
    _, client, _ = furnished()
    status(client, "start")
    number = client.command(command)
    assert client.failure() == (ErrorCode.ILLEGAL_STATE, number)


def test_selecting_again_changes_nothing() -> None:
    _, client, other = furnished()
    status(client, "start")
    client.command("dtx.select")
    move(client)
    assert counts(other) == (0, 0)
    assert status(client, "end") == OK


def test_a_result_for_a_session_that_is_gone_is_dropped() -> None:
    world, client, other = furnished()
    moved(client)
    client.command("dtx.prepare", xid=X)
    detach(client)
    world.run()
    assert in_doubt(other) == [X]
