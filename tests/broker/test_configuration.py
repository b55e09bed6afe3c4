"""Configuration records: kept together in one step, replaced, deleted, and found again after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.log.logs import NOTICE
from qstore.broker.model.configuration import MAX_TEXT, Configuration, Record
from qstore.broker.model.errors import InternalError, InvalidArgumentError
from qstore.formats.broker_records.topology import GeneralObject
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.key_value import CatalogueError
from tests.broker.wired_broker import Wired, play

LIMITS, ALL = Record("qstore.policy", ("/", "limits")), Record("qstore.policy", ("/", "all"))
JOE = Record("qstore.permission", ("joe", "/"))


def test_records_are_found_again_as_they_were_put(tmp_path: Path) -> None:
    async def put(stage: Wired) -> None:
        configuration = stage.broker.configuration
        await configuration.change({LIMITS: {"pattern": "^q", "priority": 3}, ALL: {"pattern": ".*"}})
        await configuration.change({LIMITS: {"pattern": "^other", "on": True}, JOE: {"read": "ü*"}}, [ALL])

    async def look(stage: Wired) -> None:
        configuration = stage.broker.configuration
        assert configuration.of("qstore.policy") == {("/", "limits"): {"pattern": "^other", "on": True}}
        assert configuration.get(JOE) == {"read": "ü*"}
        assert configuration.get(ALL) is None
        assert stage.store is not None
        await configuration.change({}, [LIMITS, JOE, ALL])
        await configuration.change({ALL: {"pattern": ""}})

    async def look_again(stage: Wired) -> None:
        assert stage.broker.configuration.of("qstore.policy") == {("/", "all"): {"pattern": ""}}
        assert stage.broker.configuration.of("qstore.permission") == {}

    for part in (put, look, look_again):
        play(tmp_path, part)


def test_a_change_is_one_batch_and_shares_it_with_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Wired) -> None:
        configuration, commits = stage.broker.configuration, []
        commit = Catalogue.commit

        def counting(self: Catalogue) -> None:
            commits.append(1)
            commit(self)

        monkeypatch.setattr(Catalogue, "commit", counting)
        await configuration.change({Record("qstore.user", (str(number),)): {} for number in range(50)})
        assert len(commits) == 1
        changes = [configuration.change({Record("qstore.user", (str(number),)): {"a": 1}}) for number in range(50)]
        await asyncio.gather(*changes, stage.topology.declare_exchange("e", "direct", durable=True))
        assert len(commits) < 10

    play(tmp_path, story)


def test_a_failed_change_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Wired) -> None:
        configuration = stage.broker.configuration
        await configuration.change({LIMITS: {"a": 1}})

        def fail(*_: Any) -> None:
            raise CatalogueError("the disk says no")

        with monkeypatch.context() as patch:
            patch.setattr(Catalogue, "commit", fail)
            with pytest.raises(InternalError, match="the disk says no"):
                await configuration.change({LIMITS: {"a": 2}, ALL: {"a": 2}}, then=lambda: pytest.fail("no effect"))
        assert configuration.of("qstore.policy") == {("/", "limits"): {"a": 1}}
        await configuration.change({ALL: {"a": 3}}, [LIMITS])

    async def look(stage: Wired) -> None:
        assert stage.broker.configuration.of("qstore.policy") == {("/", "all"): {"a": 3}}

    play(tmp_path, story)
    play(tmp_path, look)


def test_changes_of_one_record_are_made_in_order(tmp_path: Path) -> None:
    async def story(stage: Wired) -> None:
        configuration, seen = stage.broker.configuration, list[int]()
        changes = [
            configuration.change(
                {LIMITS: {"n": number}} if number % 3 else {},
                [] if number % 3 else [LIMITS],
                then=lambda number=number: seen.append(number),  # type: ignore[misc]
            )
            for number in range(20)
        ]
        await asyncio.gather(*changes)
        assert seen == list(range(20))
        assert configuration.get(LIMITS) == {"n": 19}

    play(tmp_path, story)


@pytest.mark.parametrize("values", [{"a": "x" * (MAX_TEXT + 1)}, {"a": "\ud800"}, {"a": 1 << 63}])
def test_records_that_cannot_be_stored_are_refused(values: dict[str, Any]) -> None:
    async def story() -> None:
        with pytest.raises(InvalidArgumentError):
            await Configuration(None).change({LIMITS: values})

    asyncio.run(story())


def test_without_a_store_they_are_kept_in_memory_with_one_notice(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(NOTICE)

    async def story() -> None:
        configuration = Configuration(None)
        await configuration.change({LIMITS: {"a": 1}})
        await configuration.change({ALL: {"a": 1}}, [LIMITS])
        assert configuration.of("qstore.policy") == {("/", "all"): {"a": 1}}

    asyncio.run(story())
    assert sum("in memory only" in record.getMessage() for record in caplog.records) == 1


def test_a_damaged_record_has_no_effect(tmp_path: Path) -> None:
    async def put(stage: Wired) -> None:
        assert stage.store is not None
        made: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        broken = [GeneralObject("qstore.policy", "no list"), GeneralObject("qstore.user", '[1, "x"]')]
        stage.store.changes.change_general(broken, [], lambda numbers, error: made.set_result((numbers, error)))
        assert (await made)[1] is None

    async def look(stage: Wired) -> None:
        assert stage.broker.configuration.of("qstore.policy") == {}
        assert stage.broker.configuration.of("qstore.user") == {}

    play(tmp_path, put)
    play(tmp_path, look)
