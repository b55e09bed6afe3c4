"""Policies, users and permissions over management: changes, lists, effects, and who may see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qstore.broker.model.configuration import Record
from qstore.broker.model.queues.limits import Limit, OverflowLimit
from qstore.broker.security.acl.control import control_access
from qstore.broker.security.users.user_file import Users
from qstore.broker.security.users.verifiers import Verifiers
from tests.broker.wired_broker import Wired, play_with_console
from tests.support.management_console import Console, take

HASH = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
ALL = {"configure": ".*", "write": ".*", "read": ".*"}


def use(stage: Wired, path: Path | None = None, tags: tuple[str, ...] = ("administrator",)) -> None:
    """Access control, with a user file that has the console's user."""
    if path is not None:
        Users(str(path)).put_all({"console": Verifiers.of_rabbit("sha256", HASH).with_tags(tags)})
        stage.broker.settings = stage.broker.settings._replace(user_file=str(path))
    control_access(stage.broker, None)


async def create(console: Console, kind: str, name: str, **properties: Any) -> str:
    """Returns the error; empty on success."""
    given = {each.replace("_", "-") if each != "password_hash" else each: value for each, value in properties.items()}
    reply = await console.call("create", type=kind, name=name, properties=given, strict=True)
    return str(reply.content.get("_values", {}).get("error_text", ""))


async def delete(console: Console, kind: str, name: str, **options: Any) -> str:
    reply = await console.call("delete", type=kind, name=name, options=options)
    return str(reply.content.get("_values", {}).get("error_text", ""))


async def values(console: Console, class_name: str) -> list[dict[str, Any]]:
    return [each["_values"] for each in await console.query(class_name)]


def test_policies() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        use(stage)
        await stage.topology.declare_queue("q")
        await stage.topology.declare_exchange("x", "direct")
        definition = {"max-length": 5, "overflow": "reject-publish"}
        own = {"pattern": "^q$", "definition": definition, "priority": 3, "apply_to": "queues"}
        assert await create(console, "policy", "p", **own) == ""
        limits = {"pattern": "^q$", "definition": {"max-length": 2}, "apply_to": "queues"}
        assert await create(console, "operator-policy", "o", vhost="/", **limits) == ""
        alternate = {"pattern": "^x$", "definition": {"alternate-exchange": "amq.fanout"}}
        assert await create(console, "policy", "ae", **alternate) == ""
        found = {each["name"]: each for each in await values(console, "policy")}
        assert found["p"] == {
            "kind": "policy", "vhost": "/", "name": "p", "pattern": "^q$", "applyTo": "queues", "priority": 3,
            "definition": definition,
        }  # fmt: skip
        assert found["o"]["kind"] == "operator-policy"
        applied = {each["name"]: each for each in await values(console, "appliedPolicy")}
        assert applied["q"] == {
            "kind": "queue", "vhost": "/", "name": "q", "policy": "p", "operatorPolicy": "o",
            "definition": {"max-length": 2, "overflow": "reject-publish"},
        }  # fmt: skip
        assert applied["x"]["definition"] == {"alternate-exchange": "amq.fanout"}
        assert isinstance(stage.broker.default_host.queues["q"].limit, OverflowLimit)
        (event, *_) = [each for each in take(console.events) if "accessChanged" in each.key]
        assert event.content[0]["_values"]["name"] == "p of /"
        assert await delete(console, "policy", "p", vhost="/") == ""
        assert await delete(console, "operator-policy", "o") == ""
        assert type(stage.broker.default_host.queues["q"].limit) is Limit  # the default
        assert "does not exist" in await delete(console, "policy", "p")

    play_with_console(scene)


@pytest.mark.parametrize(
    ("kind", "properties", "why"),
    [
        ("policy", {"pattern": "x"}, "needs a pattern"),
        ("policy", {"pattern": "x", "definition": {"max-lenght": 1}}, "no such key"),
        ("policy", {"pattern": "(a+)+$", "definition": {"max-length": 1}}, "too long to match"),
        ("policy", {"pattern": "x", "definition": {"max-length": 1}, "colour": "red"}, "unknown property colour"),
        ("user", {"tags": 5}, "tags of a user"),
        ("topic-permission", {"write": "", "read": ""}, "give its name"),
        ("permission", {"read": ""}, "a permission has"),
    ],
)
def test_invalid_values_are_refused(tmp_path: Path, kind: str, properties: dict[str, Any], why: str) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        use(stage, tmp_path / "users")
        assert why in await create(console, kind, "name", **properties)

    play_with_console(scene)


def test_users_and_permissions(tmp_path: Path) -> None:
    path = tmp_path / "users"

    async def scene(stage: Wired, console: Console) -> None:
        use(stage, path)
        assert await create(console, "permission", "console", **ALL) == ""
        assert await create(console, "user", "joe", password_hash=HASH, tags=["monitoring"]) == ""
        assert await create(console, "user", "joe", tags="management, mine") == ""
        assert await create(console, "permission", "joe", vhost="/", configure="^joe", write="", read="") == ""
        assert await create(console, "topic-permission", "joe", exchange="t", write="^a", read="^b") == ""
        users = {each["name"]: each for each in await values(console, "user")}
        assert users["joe"] == {"name": "joe", "tags": "management,mine", "mechanisms": "PLAIN"}
        assert Users(str(path)).verify("joe", "test12")
        permissions = {each["user"]: each for each in await values(console, "permission")}
        assert permissions["joe"] == {"user": "joe", "vhost": "/", "configure": "^joe", "write": "", "read": ""}
        (topic,) = await values(console, "topicPermission")
        assert topic == {"user": "joe", "vhost": "/", "exchange": "t", "write": "^a", "read": "^b"}
        assert await delete(console, "topic-permission", "joe", exchange="t") == ""
        assert await delete(console, "permission", "joe", vhost="/") == ""
        assert await delete(console, "user", "joe") == ""
        assert [each["name"] for each in await values(console, "user")] == ["console"]

    play_with_console(scene)


def test_ordinary_users_see_only_themselves_and_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "users"

    async def scene(stage: Wired, console: Console) -> None:
        use(stage, path, tags=("management",))
        Users(str(path)).put_all({"boss": Verifiers.of_rabbit("sha256", HASH).with_tags(["administrator"])})
        assert [each["name"] for each in await values(console, "user")] == ["console"]
        for kind, given in (("user", {"tags": ""}), ("permission", ALL)):
            assert "administrator" in await create(console, kind, "console", **given)
        assert "policymaker" in await create(console, "policy", "p", pattern="", definition={"max-length": 1})

    play_with_console(scene)


def test_a_broker_without_access_control_says_so() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        assert "no access control" in await create(console, "policy", "p", pattern="", definition={"max-length": 1})

    play_with_console(scene)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a\0b", "the control character U+0000"),
        ("a\nb", "the control character U+000A"),
        ("a\x85", "the control character U+0085"),
        ("x" * 256, "its name has 256 bytes"),
    ],
)
def test_names_that_no_object_can_have_are_refused(tmp_path: Path, name: str, problem: str) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        use(stage, tmp_path / "users")
        limit = {"pattern": "^q$", "definition": {"max-length": 5}}
        topic = {"exchange": "x", "write": "", "read": ""}
        errors = [
            await create(console, "policy", name, **limit),
            await create(console, "operator-policy", name, **limit, apply_to="queues"),
            await create(console, "policy", "fine", **limit, vhost=name),
            await create(console, "policy", "fine", pattern="^x$", definition={"alternate-exchange": name}),
            await create(console, "policy", "fine", pattern="^x$", definition={"dead-letter-exchange": name}),
            await create(console, "permission", "guest", **ALL, vhost=name),
            await create(console, "topic-permission", "guest", **topic, vhost=name),
            await create(console, "topic-permission", "guest", **topic | {"exchange": name}),
        ]
        assert [each for each in errors if problem not in each and "there is no virtual host" not in each] == []
        assert sum(problem in each for each in errors) >= 5
        for kind in ("policy", "permission", "topicPermission"):
            assert await values(console, kind) == []

    play_with_console(scene)


def test_a_policymaker_needs_a_permission_for_the_virtual_host(tmp_path: Path) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        use(stage, tmp_path / "users", ("policymaker", "management"))
        await stage.broker.virtual_hosts.create("other", {})
        records = stage.broker.configuration._records
        records[Record("qstore.permission", ("console", "/"))] = ALL
        records[Record("qstore.policy", ("other", "there"))] = {
            "pattern": "^q$", "apply-to": "all", "priority": 0, "definition": {"max-length": 5}
        }  # fmt: skip
        control = control_access(stage.broker, None)
        control.recovered()
        limit = {"pattern": "^q$", "definition": {"max-length": 5}}
        dead = {"pattern": "^q$", "definition": {"dead-letter-exchange": "kx"}}
        assert await create(console, "policy", "p", **limit) == ""
        assert await create(console, "policy", "p", **dead) == ""
        refused = 'has no permission for virtual host "other"'
        assert refused in await create(console, "policy", "p", **limit, vhost="other")
        assert refused in await delete(console, "policy", "there", vhost="other")
        records[Record("qstore.permission", ("console", "other"))] = ALL | {"write": "^q$"}
        control.recovered()
        assert "is not allowed to publish" in await create(console, "policy", "p", **dead, vhost="other")
        assert await create(console, "policy", "p", **limit, vhost="other") == ""
        assert await delete(console, "policy", "there", vhost="other") == ""

    play_with_console(scene)
