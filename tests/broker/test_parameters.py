"""Parameters of components: checked by the component, which hears of changes, kept across restarts; global ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.model.broker import Broker
from qstore.broker.model.errors import InternalError, InvalidArgumentError, NotFoundError
from qstore.broker.model.parameters import MAX_DEPTH, MAX_VALUE, Key, Parameter
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.key_value import CatalogueError
from tests.broker.test_management_access import create, delete, use, values
from tests.broker.wired_broker import Wired, play, play_with_console
from tests.support.management_console import Console


class Links:
    """A component that wants values with a `uri`.

    Attributes:
        heard: the changes that it has heard of.
    """

    def __init__(self, broker: Broker) -> None:
        self.heard: list[tuple[Key, Any]] = []
        broker.parameters.register("link", self._check, self._changed)

    def _check(self, parameter: Parameter) -> None:
        if "uri" not in parameter.value:
            raise InvalidArgumentError("a link needs a uri")

    def _changed(self, key: Key, parameter: Parameter | None) -> None:
        self.heard.append((key, None if parameter is None else parameter.value["uri"]))


def link(name: str, uri: str = "amqp://x", host: str = "/", user: str = "joe@QPID") -> Parameter:
    return Parameter(host, "link", name, {"uri": uri, "more": [1, {"a": None}]}, user)


def test_a_component_hears_of_each_change_and_finds_its_parameters_after_a_restart(tmp_path: Path) -> None:
    async def change(stage: Wired) -> None:
        links, parameters = Links(stage.broker), stage.broker.parameters
        await parameters.set(link("a"))
        await parameters.set(link("a", "amqp://y"))
        await parameters.set(link("b"))
        await parameters.delete("/", "link", "b")
        assert links.heard == [
            (("/", "link", "a"), "amqp://x"), (("/", "link", "a"), "amqp://y"), (("/", "link", "b"), "amqp://x"),
            (("/", "link", "b"), None),
        ]  # fmt: skip

    async def look(stage: Wired) -> None:
        links = Links(stage.broker)
        assert stage.broker.parameters.get("/", "link", "a") == link("a", "amqp://y")
        assert list(stage.broker.parameters.of("link")) == [link("a", "amqp://y")]
        assert list(stage.broker.parameters.of("other")) == []
        assert links.heard == []

    async def without_the_component(stage: Wired) -> None:
        assert stage.broker.parameters.all() == [link("a", "amqp://y")]
        await stage.broker.parameters.delete("/", "link", "a")
        assert stage.broker.parameters.all() == []

    for part in (change, look, without_the_component):
        play(tmp_path, part)


@pytest.mark.parametrize(
    ("parameter", "why"),
    [
        (link("a")._replace(component="shuttle"), "component shuttle not found: there are link"),
        (link("a")._replace(value={}), "a link needs a uri"),
        (link("a")._replace(value={"uri": "x" * MAX_VALUE}), "may have 16,384"),
        (link("a")._replace(value={"uri": float("nan")}), "cannot be expressed in JSON"),
        (link("a")._replace(value={"uri": "\udcff"}), "cannot be expressed in JSON"),
        (link("a")._replace(value={"uri": json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)}), "more than 20 levels"),
        (link(""), "name of a parameter"),
        (link("a\x1fb"), "name of a parameter"),
    ],
)
def test_what_is_not_valid_is_refused_and_not_stored(tmp_path: Path, parameter: Parameter, why: str) -> None:
    async def story(stage: Wired) -> None:
        links = Links(stage.broker)
        with pytest.raises(InvalidArgumentError, match=why):
            await stage.broker.parameters.set(parameter)
        assert links.heard == []
        assert stage.broker.parameters.all() == []
        with pytest.raises(NotFoundError, match='parameter "a" of component link in virtual host "/"'):
            await stage.broker.parameters.delete("/", "link", "a")

    play(tmp_path, story)


def test_a_change_that_cannot_be_stored_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Wired) -> None:
        links, parameters = Links(stage.broker), stage.broker.parameters
        await parameters.set(link("a"))

        def fail(*_: Any) -> None:
            raise CatalogueError("the disk says no")

        with monkeypatch.context() as patch:
            patch.setattr(Catalogue, "commit", fail)
            for change in (parameters.set(link("a", "amqp://y")), parameters.delete("/", "link", "a")):
                with pytest.raises(InternalError, match="the disk says no"):
                    await change
        assert parameters.all() == [link("a")]
        assert len(links.heard) == 1

    play(tmp_path, story)


def test_changes_of_one_parameter_take_effect_in_their_order(tmp_path: Path) -> None:
    async def story(stage: Wired) -> None:
        links, parameters = Links(stage.broker), stage.broker.parameters
        await asyncio.gather(*(parameters.set(link("a", str(number))) for number in range(20)))
        assert [uri for _, uri in links.heard] == [str(number) for number in range(20)]
        assert parameters.all() == [link("a", "19")]

    play(tmp_path, story)


def test_a_virtual_host_is_deleted_with_its_parameters(tmp_path: Path) -> None:
    async def story(stage: Wired) -> None:
        links, broker = Links(stage.broker), stage.broker
        await broker.virtual_hosts.create("other")
        for host in ("/", "other"):
            await broker.parameters.set(link("a", host=host))
        await broker.virtual_hosts.delete("other")
        assert links.heard[2:] == [(("other", "link", "a"), None)]
        assert broker.parameters.all() == [link("a")]

    async def look(stage: Wired) -> None:
        assert stage.broker.parameters.all() == [link("a")]

    for part in (story, look):
        play(tmp_path, part)


def test_global_parameters(tmp_path: Path) -> None:
    async def change(stage: Wired) -> None:
        parameters = stage.broker.parameters
        for name, value in (("site", {"a": [1.5, None, True]}), ("cluster_name", "c"), ("gone", 1), ("site", "berlin")):
            await parameters.set_global(name, value)
        await parameters.delete_global("gone")
        with pytest.raises(NotFoundError, match='global parameter "gone"'):
            await parameters.delete_global("gone")
        with pytest.raises(InvalidArgumentError, match="cluster_name must be a string"):
            await parameters.set_global("cluster_name", 5)

    async def look(stage: Wired) -> None:
        assert stage.broker.parameters.all_global() == [("cluster_name", "c"), ("site", "berlin")]

    for part in (change, look):
        play(tmp_path, part)


def test_management_sets_lists_and_deletes_them(tmp_path: Path) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        use(stage, tmp_path / "users")
        links = Links(stage.broker)
        value = json.dumps({"uri": "amqp://ü", "n": 1.5})
        assert await create(console, "parameter", "a", component="link", value=value) == ""
        assert await create(console, "global-parameter", "site", value='"berlin"') == ""
        assert "component shuttle not found" in await create(console, "parameter", "a", component="shuttle", value="1")
        assert "not JSON" in await create(console, "parameter", "a", component="link", value="{")
        assert "no virtual host" in await create(console, "parameter", "a", vhost="b", component="link", value=value)
        (found,) = await values(console, "parameter")
        assert json.loads(found.pop("value")) == {"uri": "amqp://ü", "n": 1.5}
        assert found == {"vhost": "/", "component": "link", "name": "a", "user": "console@QPID"}
        assert await values(console, "globalParameter") == [{"name": "site", "value": '"berlin"'}]
        assert await delete(console, "parameter", "a", component="link") == ""
        assert await delete(console, "global-parameter", "site") == ""
        assert "does not exist" in await delete(console, "parameter", "a", component="link")
        assert [uri for _, uri in links.heard] == ["amqp://ü", None]

    play_with_console(scene)


def test_users_see_and_set_what_their_tags_and_permissions_allow(tmp_path: Path) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        use(stage, tmp_path / "users", tags=("policymaker",))
        broker = stage.broker
        Links(broker)
        await broker.virtual_hosts.create("other")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        from qstore.broker.security.acl.control import control_of

        control = control_of(broker)
        assert control is not None
        await control.permissions.set("console", "/", everything, None)
        control.permissions_changed()
        for host in ("/", "other"):
            await broker.parameters.set(link("a", host=host))
        value = json.dumps({"uri": "amqp://y"})
        assert await create(console, "parameter", "b", component="link", value=value) == ""
        refused = await create(console, "parameter", "b", vhost="other", component="link", value=value)
        assert 'no permission for virtual host "other"' in refused
        assert "no permission" in await delete(console, "parameter", "a", vhost="other", component="link")
        assert "administrator" in await create(console, "global-parameter", "site", value="1")
        assert [each["vhost"] for each in await values(console, "parameter")] == ["/", "/"]

    play_with_console(scene)
