"""Permissions and tags: what they allow, when they are in force, and who may change them."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.log.logs import INFO
from qstore.broker.model.authorization import ALLOW_ALL, Action, ObjectType, Publishing
from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotFoundError,
    PreconditionFailedError,
    UnauthorizedError,
)
from qstore.broker.model.events import AccessChanged, UserDeleted
from qstore.broker.model.patterns import compile_pattern
from qstore.broker.model.policies import OPERATOR_POLICY, Policy
from qstore.broker.security.acl.control import AccessControl, control_access
from qstore.broker.security.acl.reader import read
from qstore.broker.security.administration import Administration
from qstore.broker.security.permissions import MAX_REMEMBERED, Permissions
from qstore.broker.security.users.user_file import Users
from qstore.broker.security.users.verifiers import Verifiers
from tests.broker.wired_broker import Somebody, Wired, play

ADMIN, JOE, GUEST = Somebody("admin@QPID"), Somebody("joe@QPID"), Somebody("guest@QPID")
HASH = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"  # of test12, from RabbitMQ's documentation


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstore.broker.security.users.verifiers._COST", 2)
    monkeypatch.setattr("qstore.broker.security.users.verifiers.SCRAM_ITERATIONS", 4096)


def user_file(path: Path) -> str:
    """A file with an administrator, a policymaker and two users without tags."""
    name = str(path / "users")
    made = Verifiers.make("x", "secret", "QPID", ["PLAIN"])
    tags = {"admin": ["administrator"], "maker": ["policymaker"], "joe": [], "guest": []}
    Users(name).put_all({user: made.with_tags(each) for user, each in tags.items()})
    return name


def controlled(
    stage: Wired, users: str | None, access: str = "auto", *rules: str
) -> tuple[AccessControl, Administration]:
    stage.broker.settings = stage.broker.settings._replace(user_file=users, access=access)
    control = control_access(stage.broker, read("\n".join(rules).encode()) if rules else None)
    control.recovered()
    return control, Administration(control)


ALL = {"configure": ".*", "write": ".*", "read": ".*"}


PUBLICATIONS = ("console.#", "console.obj.#", "#", "*.obj", "agent.ind.#", "mgmt.#", "mgmt.*.prop.#")


@pytest.mark.parametrize("exchange", ["qpid.management", "qmf.default.topic"])
def test_only_monitoring_users_bind_to_management_events_of_the_whole_broker(exchange: str) -> None:
    async def story(stage: Wired) -> None:
        tags = {"watcher": ("monitoring",), "seer": ("management",)}
        permissions = Permissions(stage.broker.configuration, lambda user: tags.get(user, ()))

        def binds(user: str, key: str, host: str = "/") -> bool:
            asked = {"queuename": "q", "routingkey": key}
            return permissions.allows(user, host, Action.BIND, ObjectType.EXCHANGE, exchange, asked)

        for user in ("watcher", "seer", "joe"):
            await permissions.set(user, "/", ALL)
            await permissions.set(user, "blue", ALL)
        heard = {key for key in PUBLICATIONS if not binds("joe", key)}
        assert heard == {"#", "*.obj"} | (
            {"console.#", "console.obj.#", "mgmt.#", "mgmt.*.prop.#"}
            if exchange == "qpid.management"
            else {"agent.ind.#"}
        )
        assert all(not binds("seer", key) and binds("watcher", key) and binds("joe", key, "blue") for key in heard)
        assert binds("joe", "schema.#")
        assert binds("joe", "console.request.agent_locate") is (exchange == "qmf.default.topic")

    play(None, story)


@pytest.mark.replaces
def test_a_changed_permission_is_compiled_and_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compile_noted(what: str, text: str, **more: Any) -> re.Pattern[str]:
        compiled.append(text)
        return compile_pattern(what, text, **more)

    async def story(stage: Wired) -> None:
        control, _ = controlled(stage, None)
        permissions = control.permissions
        for number in range(50):
            await permissions.set(f"user{number}", "/", {**ALL, "read": f"^{number}$"})
        monkeypatch.setattr("qstore.broker.security.permissions.compile_pattern", compile_noted)
        await permissions.set("joe", "/", {**ALL, "read": "^joe$"})
        await permissions.set("joe", "/", {"write": ".*", "read": "^joe\\."}, "x")
        await permissions.delete("user3", "/")
        permissions.host_forgotten("blue")
        assert {"^joe$", "^joe\\."} <= set(compiled) <= {"^joe$", "^joe\\.", ".*"}
        asked = (Action.CONSUME, ObjectType.QUEUE)
        assert permissions.allows("joe", "/", *asked, "joe", {})
        assert permissions.allows("user4", "/", *asked, "4", {})
        assert not permissions.allows("user3", "/", *asked, "3", {})
        permissions.host_forgotten("/")
        assert not permissions.is_any_set

    play(None, story)


class TestDecisions:
    @pytest.fixture
    def permissions(self) -> Permissions:
        async def story(stage: Wired) -> None:
            nonlocal found
            tags = {"admin": ("administrator",), "watcher": ("monitoring",), "seer": ("management",)}
            found = Permissions(stage.broker.configuration, lambda user: tags.get(user, ()))
            await found.set(
                "joe", "/", {"configure": "^joe\\.", "write": "^(joe\\.|amq\\.topic$)", "read": "^(joe|pub)"}
            )
            await found.set("joe", "/", {"write": "^{username}\\.", "read": "^pub"}, "joe.t")
            await found.set("j.e", "/", ALL)
            await found.set("j.e", "/", {"write": "^{username}\\.", "read": ""}, "t")

        found: Any = None
        play(None, story)
        assert isinstance(found, Permissions)
        return found

    @pytest.mark.parametrize(
        ("action", "kind", "name", "asked", "is_allowed"),
        [
            (Action.CREATE, ObjectType.QUEUE, "joe.q", {}, True),
            (Action.CREATE, ObjectType.QUEUE, "other", {}, False),
            (Action.DELETE, ObjectType.EXCHANGE, "joe.x", {}, True),
            (Action.DELETE, ObjectType.EXCHANGE, "amq.topic", {}, False),
            (Action.ACCESS, ObjectType.QUEUE, "public", {}, True),
            (Action.ACCESS, ObjectType.QUEUE, "other", {}, False),
            (Action.CONSUME, ObjectType.QUEUE, "public", {}, True),
            (Action.PURGE, ObjectType.QUEUE, "amq.topic", {}, False),
            (Action.BIND, ObjectType.EXCHANGE, "public", {"queuename": "joe.q", "routingkey": "k"}, True),
            (Action.BIND, ObjectType.EXCHANGE, "public", {"queuename": "other", "routingkey": "k"}, False),
            (Action.BIND, ObjectType.EXCHANGE, "amq.topic", {"queuename": "joe.q"}, False),
            (Action.BIND, ObjectType.EXCHANGE, "joe.t", {"queuename": "joe.q", "routingkey": "pub.a"}, True),
            (Action.BIND, ObjectType.EXCHANGE, "joe.t", {"queuename": "joe.q", "routingkey": "priv"}, False),
            (Action.UNBIND, ObjectType.EXCHANGE, "joe.t", {"queuename": "joe.q", "routingkey": "priv"}, True),
            (Action.MOVE, ObjectType.QUEUE, "public", {"queuename": "joe.q"}, True),
            (Action.MOVE, ObjectType.QUEUE, "public", {"queuename": "other"}, False),
            (Action.REROUTE, ObjectType.QUEUE, "public", {"exchangename": ""}, False),
            (Action.REROUTE, ObjectType.QUEUE, "public", {"exchangename": "amq.topic"}, True),
            (Action.UPDATE, ObjectType.BROKER, "", {}, False),
            (Action.ACCESS, ObjectType.METHOD, "purge", {}, False),
            (Action.CREATE, ObjectType.CONNECTION, "", {}, True),
        ],
    )  # fmt: skip
    def test_of_a_user(
        self,
        permissions: Permissions,
        action: Action,
        kind: ObjectType,
        name: str,
        asked: dict[str, str],
        is_allowed: bool,
    ) -> None:
        assert permissions.allows("joe", "/", action, kind, name, asked) is is_allowed
        if (action, kind) != (Action.CREATE, ObjectType.CONNECTION):
            assert not permissions.allows("joe", "other", action, kind, name, asked)
            assert not permissions.allows("nobody", "/", action, kind, name, asked)

    def test_publishing_and_topics(self, permissions: Permissions) -> None:
        assert permissions.allows_publishing("joe", "/", "joe.x", "any")
        assert not permissions.allows_publishing("joe", "/", "", "any")
        assert permissions.allows_publishing("joe", "/", "joe.t", "joe.k")
        assert not permissions.allows_publishing("joe", "/", "joe.t", "any.k")
        assert permissions.allows_publishing("j.e", "/", "t", "j.e.k")
        assert not permissions.allows_publishing("j.e", "/", "t", "joe.k")  # a name is no expression
        assert permissions.allows_publishing("j.e", "/", "", "any")

    def test_forwarding_needs_every_key(self, permissions: Permissions) -> None:
        assert permissions.allows_forwarding("joe", "/", "joe.x", "#")
        assert not permissions.allows_forwarding("joe", "/", "joe.t", "#")
        assert not permissions.allows_forwarding("joe", "/", "joe.t", "joe.*")
        assert permissions.allows_forwarding("joe", "/", "joe.t", "joe.k")
        assert not permissions.allows_forwarding("joe", "/", "other", "#")

    def test_tags(self, permissions: Permissions) -> None:
        def allows(user: str, action: Action, kind: ObjectType) -> bool:
            return permissions.allows(user, "/", action, kind, "", {})

        assert allows("admin", Action.UPDATE, ObjectType.BROKER)
        assert not allows("watcher", Action.UPDATE, ObjectType.BROKER)
        assert allows("watcher", Action.ACCESS, ObjectType.BROKER)
        assert not allows("seer", Action.ACCESS, ObjectType.BROKER)
        assert allows("seer", Action.ACCESS, ObjectType.METHOD)
        assert allows("admin", Action.CREATE, ObjectType.CONNECTION)
        assert not allows("watcher", Action.CREATE, ObjectType.CONNECTION)
        assert allows("admin", Action.ACCESS, ObjectType.TRANSACTION)

    def test_an_administrator_without_permission_can_manage_by_its_own_queue(self, permissions: Permissions) -> None:
        def allows(action: Action, kind: ObjectType, name: str, **asked: str) -> bool:
            return permissions.allows("admin", "/", action, kind, name, asked, is_owner=lambda queue: queue == "mine")

        assert allows(Action.CREATE, ObjectType.QUEUE, "mine", exclusive="true")
        assert not allows(Action.CREATE, ObjectType.QUEUE, "other", exclusive="false")
        assert allows(Action.CONSUME, ObjectType.QUEUE, "mine")
        assert not allows(Action.CONSUME, ObjectType.QUEUE, "secret")
        assert allows(Action.BIND, ObjectType.EXCHANGE, "qmf.default.topic", queuename="mine")
        assert not allows(Action.BIND, ObjectType.EXCHANGE, "qmf.default.topic", queuename="secret")
        assert not allows(Action.BIND, ObjectType.EXCHANGE, "orders", queuename="mine")
        assert permissions.allows_publishing("admin", "/", "qmf.default.direct", "broker")
        assert not permissions.allows_publishing("admin", "/", "orders", "broker")
        assert not permissions.allows_publishing("watcher", "/", "qmf.default.direct", "broker")

    def test_remembered_decisions_are_bounded(self, permissions: Permissions) -> None:
        for number in range(MAX_REMEMBERED + 10):
            permissions.allows("joe", "/", Action.CREATE, ObjectType.QUEUE, f"joe.{number}", {})
        assert len(permissions._of["joe", "/"]._known) <= MAX_REMEMBERED


class TestInForce:
    def test_the_first_permission_puts_them_in_force_and_the_last_ends_it(self, tmp_path: Path) -> None:
        async def story(stage: Wired) -> None:
            control, administration = controlled(stage, user_file(tmp_path))
            changes = []
            stage.broker.authorization.changed = lambda: changes.append(1)
            assert stage.broker.authorization.authorizer is ALLOW_ALL
            await administration.set_permission("joe", "/", ALL, ADMIN)
            assert changes
            await stage.topology.declare_queue("q", caller=JOE)
            with pytest.raises(UnauthorizedError):
                await stage.topology.declare_queue("q", caller=GUEST)
            assert control.publishing(GUEST, "", "q") is Publishing.REFUSED
            assert control.publishing(JOE, "", "q") is Publishing.ALWAYS
            assert control.denied == 2
            await administration.delete_permission("joe", "/", ADMIN)
            await stage.topology.declare_queue("q", caller=GUEST)
            assert stage.broker.authorization.authorizer is ALLOW_ALL

        play(tmp_path / "store", story)

    def test_permissions_survive_a_restart(self, tmp_path: Path) -> None:
        users = user_file(tmp_path)

        async def story(stage: Wired) -> None:
            await controlled(stage, users)[1].set_permission("joe", "/", ALL, ADMIN)

        async def look(stage: Wired) -> None:
            controlled(stage, users)
            with pytest.raises(UnauthorizedError):
                await stage.topology.declare_queue("q", caller=GUEST)

        play(tmp_path / "store", story, look)

    def test_a_file_of_rules_goes_first_unless_the_option_says_otherwise(self, tmp_path: Path) -> None:
        users = user_file(tmp_path)

        async def story(stage: Wired) -> None:
            control, administration = controlled(stage, users, "auto", "acl allow all all")
            await administration.set_permission("joe", "/", ALL, ADMIN)
            assert (control.has_rules, control.has_permissions) == (True, False)
            await stage.topology.declare_queue("q", caller=GUEST)
            control, _ = controlled(stage, users, "permissions", "acl allow all all")
            assert (control.has_rules, control.has_permissions) == (False, True)
            with pytest.raises(UnauthorizedError):
                await stage.topology.declare_queue("q", caller=GUEST)

        play(None, story)

    def test_without_any_they_can_be_in_force_by_the_option(self) -> None:
        async def story(stage: Wired) -> None:
            controlled(stage, None, "permissions")
            with pytest.raises(UnauthorizedError):
                await stage.topology.declare_queue("q", caller=GUEST)

        play(None, story)

    def test_the_first_permission_needs_an_administrator_who_could_correct_it(self, tmp_path: Path) -> None:
        async def story(stage: Wired) -> None:
            name = str(tmp_path / "none")
            Users(name).put_all({"joe": Verifiers.make("x", "secret", "QPID", ["PLAIN"])})
            for users in (None, name):
                _, administration = controlled(stage, users)
                with pytest.raises(PreconditionFailedError, match="lose access"):
                    await administration.set_permission("joe", "/", ALL, JOE)

        play(None, story)

    def test_a_stored_expression_of_another_version_permits_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        async def story(stage: Wired) -> None:
            permissions = Permissions(stage.broker.configuration, lambda _: ())
            await permissions.set("joe", "/", ALL)
            record, values = next(iter(stage.broker.configuration._records.items()))
            stage.broker.configuration._records[record] = {**values, "read": "(a+)+$"}
            permissions.load()
            assert not permissions.allows("joe", "/", Action.CREATE, ObjectType.QUEUE, "q", {})

        play(None, story)
        assert "permits nothing" in caplog.text


class TestAdministration:
    def test_only_administrators_change_users_and_permissions(self, tmp_path: Path) -> None:
        async def story(stage: Wired) -> None:
            control, administration = controlled(stage, user_file(tmp_path))
            limits = Policy("/", "o", "", "queues", 0, {"max-length": 1})
            for caller in (JOE, Somebody("maker@QPID"), Somebody("anonymous@QPID")):
                for change in (
                    administration.put_user("new", caller, password="p"),
                    administration.delete_user("joe", caller),
                    administration.set_permission("joe", "/", ALL, caller),
                    administration.delete_permission("joe", "/", caller),
                    administration.set_policy(limits, caller, OPERATOR_POLICY),
                ):
                    with pytest.raises(UnauthorizedError):
                        await change
            assert control.denied == 15

        play(None, story)

    def test_policymakers_change_policies(self, tmp_path: Path) -> None:
        async def story(stage: Wired) -> None:
            _, administration = controlled(stage, user_file(tmp_path))
            policy = Policy("/", "p", "", "all", 0, {"max-length": 1})
            await administration.set_policy(policy, Somebody("maker@QPID"))
            await administration.delete_policy("/", "p", ADMIN)
            for change in (administration.set_policy(policy, JOE), administration.delete_policy("/", "p", JOE)):
                with pytest.raises(UnauthorizedError):
                    await change

        play(None, story)

    def test_without_administrators_anyone_who_has_logged_in_may(self, tmp_path: Path) -> None:
        async def story(stage: Wired) -> None:
            name = str(tmp_path / "none")
            Users(name).put_all({"joe": Verifiers.make("x", "secret", "QPID", ["PLAIN"])})
            _, administration = controlled(stage, name)
            with pytest.raises(UnauthorizedError):
                await administration.put_user("new", Somebody("anonymous@QPID"), password="p")
            await administration.put_user("joe", JOE, tags=["administrator"])
            with pytest.raises(UnauthorizedError):
                await administration.put_user("new", GUEST, password="p")

        play(None, story)

    def test_rules_decide_where_there_are_some(self, tmp_path: Path) -> None:
        async def story(stage: Wired) -> None:
            rules = "acl allow joe@QPID update broker", "acl deny all all"
            _, administration = controlled(stage, user_file(tmp_path), "auto", *rules)
            await administration.put_user("new", JOE, password="p")
            with pytest.raises(UnauthorizedError):
                await administration.put_user("new", ADMIN, password="p")

        play(None, story)

    def test_users_come_change_and_go(self, tmp_path: Path) -> None:
        async def story(stage: Wired) -> None:
            control, administration = controlled(stage, user_file(tmp_path))
            users = control.users
            assert users is not None
            await administration.put_user("new", ADMIN, password="first", tags=["monitoring", "mine"])
            assert users.verify("new", "first")
            assert users.tags("new") == ("monitoring", "mine")
            await administration.put_user("new", ADMIN, password="second")
            assert (users.verify("new", "first"), users.verify("new", "second")) == (False, True)
            assert users.tags("new") == ("monitoring", "mine")
            await administration.put_user("new", ADMIN, tags=[])
            assert (users.verify("new", "second"), users.tags("new")) == (True, ())
            await administration.put_user("new", ADMIN, password_hash=HASH)
            assert (users.verify("new", "test12"), users.verify("new", "second")) == (True, False)
            await administration.put_user("new", ADMIN, password_hash="", tags=["x"])
            assert not users.verify("new", "test12")
            assert users.supports("PLAIN")  # who cannot log in at all does not count
            await administration.set_permission("new", "/", ALL, ADMIN)
            await administration.set_permission("new", "/", {"write": "", "read": ""}, ADMIN, "t")
            await administration.delete_user("new", ADMIN)
            assert users.find("new") is None
            assert not control.permissions.is_any_set
            assert stage.broker.configuration.of("qstore.topic-permission") == {}
            with pytest.raises(NotFoundError):
                await administration.delete_user("new", ADMIN)

        play(None, story)

    @pytest.mark.parametrize(
        ("name", "values", "why"),
        [
            ("a b", {"password": "x"}, "name"),
            ("new", {"password": "x\0"}, "password must have"),
            ("new", {"password": "x", "password_hash": HASH}, "not both"),
            ("new", {"password_hash": "????"}, "cannot be set"),
            ("new", {"password_hash": HASH[:-4]}, "wrong size"),
            ("new", {"password_hash": HASH, "algorithm": "rot13"}, "unknown hashing algorithm"),
            ("new", {"password": "x", "tags": ["a b"]}, "tags"),
            ("new", {"password": "x", "tags": [str(number) for number in range(21)]}, "tags"),
        ],
    )
    def test_invalid_users_are_refused(self, tmp_path: Path, name: str, values: dict[str, Any], why: str) -> None:
        async def story(stage: Wired) -> None:
            control, administration = controlled(stage, user_file(tmp_path))
            assert control.users is not None
            before = Path(control.users.path).read_bytes()
            with pytest.raises(InvalidArgumentError, match=why):
                await administration.put_user(name, ADMIN, **values)
            assert Path(control.users.path).read_bytes() == before

        play(None, story)

    def test_without_a_user_file_users_cannot_be_changed(self) -> None:
        async def story(stage: Wired) -> None:
            _, administration = controlled(stage, None)
            with pytest.raises(PreconditionFailedError, match="--user-file"):
                await administration.put_user("new", JOE, password="x")

        play(None, story)

    @pytest.mark.parametrize(
        "values",
        [
            {},
            {"configure": ""},
            {**ALL, "more": ""},
            {**ALL, "read": "("},
            {**ALL, "read": "(a+)+$"},
            {**ALL, "read": 1},
        ],
    )
    def test_invalid_permissions_are_refused(self, tmp_path: Path, values: dict[str, Any]) -> None:
        async def story(stage: Wired) -> None:
            control, administration = controlled(stage, user_file(tmp_path))
            with pytest.raises(ModelError):
                await administration.set_permission("joe", "/", values, ADMIN)
            assert not control.permissions.is_any_set

        play(None, story)

    def test_changes_are_logged_and_published_without_passwords(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        caplog.set_level(INFO)
        reported: list[Any] = []

        async def story(stage: Wired) -> None:
            _, administration = controlled(stage, user_file(tmp_path))
            stage.broker.events.listen(reported.append)
            await administration.put_user("new", ADMIN, password="hunter2")
            await administration.put_user("new", ADMIN, password_hash=HASH)
            await administration.set_permission("new", "/", ALL, ADMIN)
            await administration.set_permission("new", "/", {"write": "", "read": ""}, ADMIN, "t")
            await administration.set_policy(Policy("/", "p", "", "all", 0, {"max-length": 1}), ADMIN)
            await administration.delete_user("new", ADMIN)

        play(None, story)
        found = [each for each in reported if isinstance(each, AccessChanged)]
        assert [(each.kind, each.name, each.what) for each in found] == [
            ("user", "new", "added"), ("user", "new", "changed"), ("permission", "new for /", "set"),
            ("topic-permission", "new for t of /", "set"), ("policy", "p of /", "set"), ("user", "new", "deleted"),
        ]  # fmt: skip
        assert all(each.user == "admin@QPID" for each in found)
        assert [each.user for each in reported if isinstance(each, UserDeleted)] == ["new@QPID"]
        assert "user new was added by admin@QPID" in caplog.text
        for secret in ("hunter2", HASH):
            assert secret not in caplog.text
            assert secret not in repr(found)


def test_changes_of_users_at_the_same_time_lose_none(tmp_path: Path) -> None:
    async def story(stage: Wired) -> None:
        control, administration = controlled(stage, user_file(tmp_path))
        assert control.users is not None
        await asyncio.gather(
            *(administration.put_user(f"u{number}", ADMIN, password_hash=HASH) for number in range(20))
        )
        assert len(control.users.names()) == 24

    play(None, story)
