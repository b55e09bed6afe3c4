"""Methods of management beyond the commands of a protocol: redirection, the log, transactions in doubt, the end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.log.logs import Rules
from qstore.broker.log.sinks import RecentLines
from qstore.broker.management.identity import Identity
from qstore.broker.model.authorization import Action, AllowAll, ObjectType
from qstore.broker.model.caller import Caller
from qstore.broker.model.events import QueueRedirect, QueueRedirectCancelled
from qstore.broker.model.transactions.branch import State
from qstore.formats.broker_records.xids import encode_dtx_xid
from tests.broker.wired_broker import Wired, play_with_console
from tests.support.management_console import Console

# ---- redirection ----


def test_messages_for_each_of_two_queues_are_put_on_the_other_one_until_that_is_cancelled(tmp_path: Path) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        seen: list[object] = []
        stage.broker.events.listen(seen.append)
        for name in ("a", "b"):
            await stage.topology.declare_queue(name, durable=True)
            await stage.topology.bind(name, "amq.fanout", "")
        await stage.publish("", "a", b"0")
        await console.do("queueRedirect", sourceQueue="a", targetQueue="b")
        await stage.publish("", "a", b"1")
        await stage.publish("", "b", b"2")
        await stage.publish("amq.fanout", "", b"3")  # matches both, and is put on each once
        assert (stage.bodies("a"), stage.bodies("b")) == ([b"0", b"2", b"3"], [b"1", b"3"])
        reported = {each["_values"]["name"]: each["_values"] for each in await console.query("queue")}
        assert (reported["a"]["redirectPeer"], reported["a"]["redirectSource"]) == ("b", True)
        assert (reported["b"]["redirectPeer"], reported["b"]["redirectSource"]) == ("a", False)
        reply = await console.call("queueRedirect", sourceQueue="b", targetQueue="")
        assert 'cancel it at its source, "a"' in reply.values["error_text"]
        await console.do("queueRedirect", sourceQueue="a", targetQueue="")
        await stage.publish("", "a", b"4")
        await stage.publish("", "b", b"5")
        assert (stage.bodies("a"), stage.bodies("b")) == ([b"0", b"2", b"3", b"4"], [b"1", b"3", b"5"])
        assert [each for each in seen if isinstance(each, QueueRedirect | QueueRedirectCancelled)] == [
            QueueRedirect("a", "b"),
            QueueRedirectCancelled("a", "b"),
        ]
        await console.do("queueRedirect", sourceQueue="a", targetQueue="b")  # which the broker forgets when it stops

    async def after(stage: Wired, _console: Console) -> None:
        assert (stage.bodies("a"), stage.bodies("b")) == ([b"0", b"2", b"3", b"4"], [b"1", b"3", b"5"])
        await stage.publish("", "a", b"6")
        await stage.publish("", "b", b"7")
        assert (stage.bodies("a")[-1], stage.bodies("b")[-1]) == (b"6", b"7")

    play_with_console(scene, tmp_path)
    play_with_console(after, tmp_path)


def test_five_three_and_two_messages_of_qpidd_s_redirection() -> None:
    """As in qpidd's queue_redirect tests: 5 to B, redirection of A to B, 3 to B, 2 to A."""

    async def scene(stage: Wired, console: Console) -> None:
        for name in ("a", "b"):
            await stage.topology.declare_queue(name)
        await stage.publish("", "b", *[b"."] * 5, persistent=False)
        await console.do("queueRedirect", sourceQueue="a", targetQueue="b")
        await stage.publish("", "b", *[b"."] * 3, persistent=False)
        await stage.publish("", "a", *[b"."] * 2, persistent=False)
        assert (len(stage.bodies("a")), len(stage.bodies("b"))) == (3, 7)

    play_with_console(scene)


@pytest.mark.parametrize("exchange", ["", "amq.topic", "way"])
def test_a_redirection_holds_for_every_way_to_a_queue(exchange: str) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        for name in ("a", "b"):
            await stage.topology.declare_queue(name)
            await stage.topology.bind(name, "amq.topic", name)
        await stage.topology.declare_exchange("way", "fanout")
        await stage.broker.default_host.exchange_bindings.bind("way", "amq.topic", "")
        await console.do("queueRedirect", sourceQueue="a", targetQueue="b")
        await stage.publish(exchange, "a", b"for a", persistent=False)
        await stage.publish(exchange, "b", b"for b", persistent=False)
        assert (stage.bodies("a"), stage.bodies("b")) == ([b"for b"], [b"for a"])

    play_with_console(scene)


@pytest.mark.parametrize("gone", ["a", "b"])
def test_a_redirection_ends_with_either_queue(gone: str) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        for name in ("a", "b"):
            await stage.topology.declare_queue(name)
        await console.do("queueRedirect", sourceQueue="a", targetQueue="b")
        await stage.topology.delete_queue(gone)
        left = "b" if gone == "a" else "a"
        assert stage.broker.default_host.queues[left].redirect_peer is None
        assert not stage.broker.default_host.queues[left].is_redirect_source
        await stage.publish("", left, b"1", persistent=False)
        assert stage.bodies(left) == [b"1"]
        await stage.topology.declare_queue("c")
        await console.do("queueRedirect", sourceQueue="c", targetQueue=left)  # which is free again

    play_with_console(scene)


def test_access_rules_are_asked_for_the_queue_that_a_redirection_is_cancelled_for() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        asked: list[tuple[str, str]] = []

        class Rules(AllowAll):
            def allows(
                self, _caller: Caller, action: Action, _type: ObjectType, name: str, properties: Mapping[str, object]
            ) -> bool:
                if action is Action.REDIRECT:
                    asked.append((name, str(properties["queuename"])))
                return True

        for name in ("a", "b"):
            await stage.topology.declare_queue(name)
        stage.broker.authorization.authorizer = Rules()
        await console.do("queueRedirect", sourceQueue="a", targetQueue="b")
        await console.do("queueRedirect", sourceQueue="a", targetQueue="")
        assert asked == [("a", "b"), ("a", "b")]

    play_with_console(scene)


def test_queues_that_cannot_be_redirected() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        for name in ("a", "b", "c"):
            await stage.topology.declare_queue(name)
        await stage.topology.declare_queue("passing", auto_delete=True)
        await console.do("queueRedirect", sourceQueue="a", targetQueue="b")
        for source, target, reported in (
            ("a", "c", "already part of a redirection"),
            ("c", "b", "already part of a redirection"),
            ("b", "c", "already part of a redirection"),
            ("c", "c", "both source and target"),
            ("c", "passing", "deleted automatically"),
            ("c", "none", "none"),
            ("c", "", "not redirected"),
        ):
            reply = await console.call("queueRedirect", sourceQueue=source, targetQueue=target)
            assert reported in reply.values["error_text"]

    play_with_console(scene)


# ---- the log, and the end ----


class FakeLog:
    """The log of a process."""

    def __init__(self) -> None:
        self.rules, self.has_microseconds = Rules(["notice+"], ["debug:Network"]), False
        self.recent = RecentLines()

    def select(self, rules: Rules) -> None:
        self.rules = rules

    def show_microseconds(self, *, is_on: bool) -> None:
        self.has_microseconds = is_on


def test_the_log_is_changed() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        log = console.managed.log = FakeLog()
        assert await console.do("getLogLevel") == {"level": "notice+,!debug:Network"}
        await console.do("setLogLevel", level="debug+:Broker  !trace-:Model,info+")
        assert (log.rules.enabled, log.rules.disabled) == (("debug+:Broker", "info+"), ("trace-:Model",))
        for level in ("", "loud", "info+:", " ".join(["info+"] * 101), "info+:" + "x" * 300, 7):
            reply = await console.call("setLogLevel", level=level)
            assert reply.values["error_code"] == 4
        assert log.rules.enabled == ("debug+:Broker", "info+")
        await console.do("setLogHiresTimestamp", logHires=True)
        assert await console.do("getLogHiresTimestamp") == {"logHires": True}

    play_with_console(scene)


def test_the_broker_is_shut_down() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        ended: list[int] = []
        console.managed.shut_down = lambda: ended.append(1)
        await console.do("shutdown")
        assert ended == []  # not before the answer
        while not ended:
            await asyncio.sleep(0.05)

    play_with_console(scene)


# ---- transactions in doubt ----

XIDS = [encode_dtx_xid(1, b"global", branch) for branch in (b"1", b"2")]


async def prepare(stage: Wired, xid: bytes, body: bytes) -> None:
    """A branch that enqueues a message, and is in doubt."""
    distributed = stage.broker.distributed
    branch = distributed.start(xid)
    queue = stage.broker.default_host.queues["q"]
    branch.work.publish(stage.message("q", body), stage.broker.default_host.exchanges[""])
    distributed.leave(branch, has_failed=False)
    prepared: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    branch.prepare(lambda status, error: prepared.set_result((status, error)))
    stage.broker.tick.schedule()
    assert (await prepared)[1] is None
    assert (branch.state, queue.uncommitted) == (State.PREPARED, len(distributed.in_doubt))


def test_an_operator_ends_transactions_in_doubt(tmp_path: Path) -> None:
    async def first(stage: Wired, _console: Console) -> None:
        await stage.topology.declare_queue("q", durable=True)
        await prepare(stage, XIDS[0], b"committed")
        await prepare(stage, XIDS[1], b"rolled back")

    async def second(stage: Wired, console: Console) -> None:
        found = await console.query("transaction")
        assert sorted(each["_values"]["xid"] for each in found) == sorted(xid.hex() for xid in XIDS)
        assert {each["_values"]["state"] for each in found} == {"PREPARED"}
        for xid, method in zip(XIDS, ("commit", "rollback"), strict=True):
            await console.do(method, f"transaction:{xid.hex()}", package="qstore")
        assert stage.bodies("q") == [b"committed"]
        reply = await console.call("commit", f"transaction:{XIDS[0].hex()}", package="qstore")
        assert reply.values["error_code"] == 1

    async def third(stage: Wired, console: Console) -> None:
        assert stage.bodies("q") == [b"committed"]
        assert await console.query("transaction") == []

    for scene in (first, second, third):
        play_with_console(scene, tmp_path)


def test_a_branch_that_is_not_prepared_is_not_committed() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        branch = stage.broker.distributed.start(XIDS[0])
        reply = await console.call("commit", f"transaction:{XIDS[0].hex()}", package="qstore")
        assert reply.values["error_code"] == 7
        stage.broker.distributed.leave(branch, has_failed=False)
        await console.do("rollback", f"transaction:{XIDS[0].hex()}", package="qstore")
        assert stage.broker.distributed.branches == {}

    play_with_console(scene)


# ---- the store, and who the broker is ----


def test_the_store_and_its_journals(tmp_path: Path) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("q", durable=True)
        await stage.publish("", "q", b"1", b"2")
        (store,) = await console.query("store")
        assert store["_schema_id"]["_package_name"] == "org.apache.qpid.legacystore"
        assert store["_values"]["location"].startswith(str(tmp_path))
        assert store["_values"]["defaultInitialFileCount"] == 4
        (journal,) = await console.query("journal")
        values = journal["_values"]
        assert (values["name"], values["enqueues"], values["recordDepth"], values["dequeues"]) == ("q", 2, 2, 0)
        assert values["queueRef"] == {"_object_name": "org.apache.qpid.broker:queue:q"}
        reply = await console.call("expand", "journal:q", package="org.apache.qpid.legacystore", by=1)
        assert (reply.values["error_code"], "qstore-resize" in reply.values["error_text"]) == (3, True)

    play_with_console(scene, tmp_path)


def test_a_broker_is_known_again(tmp_path: Path) -> None:
    first = Identity.of(str(tmp_path))
    second = Identity.of(str(tmp_path))
    assert second == first._replace(starts=first.starts + 1)
    path = tmp_path / ".mbrokerdata"
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(f"{first.instance} 4095 1\n")
    assert Identity.of(str(tmp_path)).starts == 1
    for damaged in (b"", b"x 1 1", b"\xff" * 500, f"{first.instance} x".encode()):
        path.write_bytes(damaged)
        assert Identity.of(str(tmp_path)).instance != first.instance
    for name in (".mbrokerdata", ".mbrokerdata.new"):
        (tmp_path / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name)  # opening it would wait for another process
        assert Identity.of(str(tmp_path)).starts in (1, 2)
    assert Identity.of(None) != Identity.of(None)
    assert Identity.of(str(tmp_path / "none")).starts == 1  # a directory that is not there is no reason to stop
