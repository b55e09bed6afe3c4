"""Access control over management: its object, its methods and events, and what consoles may not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qstore.broker.management.managed_broker import TimeSlices
from qstore.broker.management.objects.exchange import CHECKED_AT_ONCE
from qstore.broker.model.errors import UnauthorizedError
from qstore.broker.security.acl.control import control_access
from qstore.broker.security.acl.reader import read
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.broker.wired_broker import Wired, play_with_console
from tests.support.management_console import Console, Reply, take

NAME = "org.apache.qpid.acl:acl:org.apache.qpid.broker:broker:amqp-broker"


async def call(console: Console, method: str, **arguments: Any) -> Reply:
    """Call a method of the acl object."""
    content = {"_object_id": {"_object_name": NAME}, "_method_name": method, "_arguments": arguments}
    (reply,) = await console.ask("_method_request", content)
    return reply


def use(stage: Wired, *lines: str, file: Path | None = None) -> None:
    if file is not None:
        file.write_text("\n".join(lines))
        stage.broker.settings = stage.broker.settings._replace(acl_file=str(file))
    control_access(stage.broker, read("\n".join(lines).encode()))


def test_the_object() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        assert await console.query("acl") == []
        use(stage, "acl deny all purge queue", "acl deny all publish exchange routingkey=x", "acl allow all all")
        await stage.topology.declare_queue("q")
        assert (await console.call("purge", "queue:q", request=0)).values["error_code"] == 7
        (found,) = await console.query("acl")
        values = found["_values"]
        assert found["_object_id"]["_object_name"] == NAME
        assert (values["enforcingAcl"], values["transferAcl"], values["aclDenyCount"]) == (True, True, 1)
        assert (values["maxConnections"], values["maxQueuesPerUser"], values["policyFile"]) == (500, 0, "")
        assert values["lastAclLoad"] > 1e18

    play_with_console(scene)


def test_a_dry_run_names_queues_for_those_who_may_query_them() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("secret")

        async def run(*lines: str) -> dict[str, object]:
            use(stage, *lines, "acl allow all all")
            target = "routing:org.apache.qpid.broker:broker:amqp-broker"
            return dict(await console.do("dryRun", target, package="qstore", exchange="", routingKey="secret"))

        assert await run() == {"recipients": 1, "queues": ["secret"]}
        assert await run("acl deny all access query schemaclass=queue") == {"recipients": 1, "queues": []}

    play_with_console(scene)


def test_a_dry_run_asks_many_queues_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0

    async def count(_slices: TimeSlices) -> None:
        nonlocal turns
        turns += 1

    async def scene(stage: Wired, console: Console) -> None:
        wanted = typed_map({"qpid.filter": "colour = 'red'"})
        for number in range(3 * CHECKED_AT_ONCE):
            await stage.topology.declare_queue(f"q{number}", arguments=wanted if number % 3 else EMPTY_MAP)
            await stage.topology.bind(f"q{number}", "amq.fanout", "")
        monkeypatch.setattr(TimeSlices, "next", count)
        monkeypatch.setattr(TimeSlices, "is_over", True)
        target = "routing:org.apache.qpid.broker:broker:amqp-broker"
        found = await console.do("dryRun", target, package="qstore", exchange="amq.fanout", routingKey="k")
        assert (found["recipients"], len(found["queues"])) == (CHECKED_AT_ONCE, CHECKED_AT_ONCE)
        assert turns >= 3  # and one before the method is called

    play_with_console(scene)


def test_lookups() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        use(stage, "acl deny-log kim@QPID create queue maxqueuecount=5", "acl allow all all")
        asked = {"userId": "kim@QPID", "action": "create", "object": "queue", "objectName": "q"}
        reply = await call(console, "Lookup", **asked, propertyMap={"maxqueuecount": "4"})
        assert reply.content["_arguments"] == {"result": "deny-log"}
        reply = await call(console, "Lookup", **asked, propertyMap={})
        assert reply.content["_arguments"] == {"result": "allow"}
        reply = await call(console, "LookupPublish", userId="kim@QPID", exchangeName="", routingKey="q")
        assert reply.content["_arguments"] == {"result": "allow"}
        reply = await call(console, "Lookup", **{**asked, "object": "cake"})
        assert reply.values | {"error_class": ""} == {
            "error_code": 4,
            "error_text": 'Unknown ACL object "cake"',
            "error_class": "",
        }

    play_with_console(scene)


def test_the_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "broker.acl"

    async def scene(stage: Wired, console: Console) -> None:
        use(stage, "acl allow all all", file=file)
        file.write_text("acl allow all all\nquack\n")
        reply = await call(console, "reloadACLFile")
        assert reply.values["error_code"] == 4
        assert f'{file}: line 2: Non-continuation line must start with "group", "acl"' in reply.values["error_text"]
        (event,) = [each for each in take(console.events) if "fileLoadFailed" in each.key]
        assert event.content[0]["_values"]["userId"] == "console@QPID"
        assert event.content[0]["_severity"] == 3
        file.write_text("acl deny-log console@QPID delete queue\nacl allow all all\n")
        reply = await call(console, "reloadACLFile")
        assert reply.headers["qmf.opcode"] == "_method_response"
        reply = await console.call("delete", type="queue", name="events")
        text = 'unauthorized-access: console@QPID is not allowed to delete queue "events"'
        assert reply.values == {"error_code": 7, "error_text": text, "error_class": "UnauthorizedError"}
        loaded, denied = (each.content[0] for each in take(console.events) if ".org_apache_qpid_acl." in each.key)
        assert loaded["_schema_id"]["_class_name"] == "fileLoaded"
        assert denied["_schema_id"]["_class_name"] == "deny"
        assert denied["_values"] == {
            "userId": "console@QPID", "action": "delete", "objectType": "queue", "objectName": "events",
            "arguments": {"durable": "false", "autodelete": "false", "exclusive": "false", "alternate": "",
                          "temporary": "false", "policytype": "reject", "owner": ""},
        }  # fmt: skip

    play_with_console(scene)


def test_console_is_refused_by_acl_rules() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        use(
            stage,
            "acl deny all access method name=echo schemaclass=broker",
            "acl deny all access broker",
            "acl deny all access query schemaclass=queue",
            "acl deny all access query name=org.apache.qpid.broker:exchange:*",
            "acl deny all access queue name=secret",
            "acl deny all create link",
            "acl allow all all",
        )
        await stage.topology.declare_queue("secret")
        reply = await console.call("echo", sequence=1)
        assert reply.values == {
            "error_code": 6,
            "error_text": 'console@QPID is not allowed to access method "echo"',
            "error_class": "ForbiddenError",
        }
        for method, arguments in (
            ("getTimestampConfig", {}), ("connect", {"host": "h"}), ("query", {"type": "queue", "name": "secret"}),
        ):  # fmt: skip
            reply = await console.call(method, **arguments)
            assert reply.values["error_code"] == 7
            assert reply.values["error_text"].startswith("unauthorized-access: console@QPID is not allowed to ")
        for content in (
            {"_schema_id": {"_class_name": "queue"}},
            {"_object_id": {"_object_name": "org.apache.qpid.broker:exchange:amq.topic"}},
        ):
            with pytest.raises(UnauthorizedError, match=r"^unauthorized-access: console@QPID is not allowed"):
                console.send("_query_request", {"_what": "OBJECT", **content})
        assert len(await console.query("broker")) == 1

    play_with_console(scene)
