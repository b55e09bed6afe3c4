"""Durable links and bridges in the store: after a start they are there, with the users who have made them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.federation.bridge import BridgeSettings
from qstore.broker.federation.federation import Federation, LinkSettings
from qstore.broker.federation.link import Remote, RemoteLogin
from qstore.broker.model.errors import InternalError
from qstore.formats.broker_records.topology import Bridge, Link
from tests.broker.wired_broker import Somebody, Wired, failing, play

ANN = Somebody("ann@QPID")
ANN.actor = "ann"  # type: ignore[attr-defined]
LOGIN = RemoteLogin("PLAIN", "bob", "hidden")


class Nowhere:
    """A network in which every attempt takes for ever, and its clock."""

    def __init__(self) -> None:
        self.tried: list[Remote] = []

    def connect(self, remote: Remote, _make: Any, _lost: Any) -> Nowhere:
        self.tried.append(remote)
        return self

    def abort(self) -> None:
        """Nothing to do."""

    def call_later(self, _seconds: float, _function: Any) -> Any:
        return self

    cancel = abort


def federation_of(stage: Wired) -> tuple[Federation, Nowhere]:
    network = Nowhere()
    unused: Any = None
    return Federation(stage.broker, unused, network, network.call_later), network


async def make(stage: Wired, *, durable: bool = True) -> Federation:
    federation, _ = federation_of(stage)
    await federation.create_link(LinkSettings("link", Remote("far", 5671, "ssl"), durable, LOGIN), ANN)
    settings = BridgeSettings(
        "bridge",
        "link",
        durable,
        "outbox",
        "amq.fanout",
        "k",
        True,
        sync=7,
        credit=50,
        tag="t",
        excludes="e",
        queue="q",
    )
    await federation.create_bridge(settings, ANN)
    return federation


def test_durable_ones_are_recovered_as_they_were(tmp_path: Path) -> None:
    made: list[Any] = []

    async def first(stage: Wired) -> None:
        federation = await make(stage)
        made.extend((federation.links["link"].settings, federation.bridges["bridge"].settings))

    async def second(stage: Wired) -> None:
        federation, network = federation_of(stage)
        federation.start()
        link, bridge = federation.links["link"], federation.bridges["bridge"]
        assert [link.settings, bridge.settings] == made
        assert (link.creator, bridge.creator) == ("ann@QPID", "ann@QPID")
        assert network.tried == [Remote("far", 5671, "ssl")]
        await federation.delete_link("link", ANN)

    async def third(stage: Wired) -> None:
        federation, network = federation_of(stage)
        federation.start()
        assert federation.links == federation.bridges == {}
        assert network.tried == []
        assert stage.broker.configuration.of("qstore.link") == stage.broker.configuration.of("qstore.bridge") == {}

    play(tmp_path, first, second, third)


def test_others_are_not_stored(tmp_path: Path) -> None:
    async def first(stage: Wired) -> None:
        await make(stage, durable=False)

    async def second(stage: Wired) -> None:
        federation, _ = federation_of(stage)
        federation.start()
        assert federation.links == {}

    play(tmp_path, first, second)


@pytest.mark.parametrize("is_old", [False, True])
def test_those_of_qpidd_act_as_the_user_of_their_link(tmp_path: Path, is_old: bool) -> None:
    kinds = ("link", "bridge") if is_old else ("link.v2", "bridge.v2")
    link = Link(kinds[0], None if is_old else "L", "far", 5672, "tcp", True, "PLAIN", "bob", "hidden")
    by_address = (None, None, "far", 5672) if is_old else ("B", "L", None, None)
    bridge = Bridge(kinds[1], *by_address, True, "amq.topic", "amq.topic", "k", False, False, "", "", False, 0, 0)

    async def first(stage: Wired) -> None:
        store = stage.broker.store
        assert store is not None
        for record in (link, bridge):
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            store.changes.create_general(record, lambda _made, _error, answer=answer: answer.set_result(None))
            await answer

    async def second(stage: Wired) -> None:
        federation, network = federation_of(stage)
        federation.start()
        (found,), (route,) = federation.links.values(), federation.bridges.values()
        assert found.name == ("qpid.tcp:far:5672" if is_old else "L")
        assert route.settings.name == ("qpid.tcp:far:5672!amq.topic!amq.topic!k" if is_old else "B")
        assert (found.creator, route.creator) == ("bob@QPID", "bob@QPID")
        assert found.settings.login == LOGIN
        assert network.tried == [Remote("far", 5672)]

    play(tmp_path, first, second)


def test_a_link_that_the_store_cannot_keep_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Wired) -> None:
        store = stage.broker.store
        assert store is not None
        federation, network = federation_of(stage)
        with monkeypatch.context() as patch:
            patch.setattr(store.changes, "create_general", failing)
            with pytest.raises(InternalError, match="the disk is broken"):
                await federation.create_link(LinkSettings("link", Remote("far", 5672), True, LOGIN), ANN)
        assert federation.links == {}
        assert network.tried == []

    play(tmp_path, scene)
