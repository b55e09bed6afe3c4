"""Arguments that ask for what this broker does not have: refused, told in the log, or asking for nothing after all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from qstore.broker.log.logs import NOTICE
from qstore.broker.model.errors import NotImplementedByBrokerError
from qstore.broker.model.queues.argument_table import TABLE, Effect, unsupported_arguments
from qstore.broker.model.queues.priority import PriorityOrder
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.broker.test_topology_storage import play
from tests.broker.wired_broker import Wired

REFUSED: Final[tuple[tuple[str, Any], ...]] = (
    ("qpid.lifetime-policy", "delete-after-use"),
    ("qpid.replicate", "all"),
    ("qpid.replicate", "configuration"),
    ("qpid.trace.id", "broker-1"),
    ("qpid.trace.exclude", "broker-1"),
    ("qpid.trace.excludes", "broker-1"),
)
LOGGED: Final[tuple[tuple[str, Any], ...]] = (
    ("qpid.priorities", 11),
    ("x-qpid-priorities", b"256"),
    ("qpid.group_timestamp", True),
    ("x-qpid-capacity", 10),
    ("x-qpid-flow-resume-capacity", 10),
    ("x-qpid-maximum-message-age", 10),
    ("qpid.persist_last_node", 1),
    ("qpid.efp_partition_num", 1),
    ("qpid.efp_pool_file_size", 2048),
    ("qpid.wcache-page-size", 32),
    ("qpid.wcache-num-pages", 16),
    ("x-ha-policy", "all"),
)
MET: Final[tuple[tuple[str, Any], ...]] = (
    ("qpid.policy_type", "reject"),
    ("qpid.policy_type", b"reject"),
    ("qpid.priorities", 1),
    ("qpid.priorities", 0),
    ("qpid.priorities", "10"),
    ("qpid.priorities", "many"),
    ("x-qpid-priorities", "1"),
    ("x-qpid-priorities", b"2"),
    ("qpid.fairshare", 5),
    ("x-qpid-fairshare-0", 1),
    ("qpid.last_value_queue_key", "key"),
    ("qpid.last_value_queue", 0),
    ("qpid.queue_msg_sequence", "number"),
    ("qpid.policy_type", "ring"),
    ("qpid.policy_type", "ring-strict"),
    ("qpid.policy_type", b"self-destruct"),
    ("qpid.shared_msg_group", 0),
    ("qpid.group_header_key", "group"),
    ("qpid.browse-only", True),
    ("qpid.lifetime-policy", b"delete-if-unused"),
    ("qpid.lifetime-policy", "manual"),
    ("qpid.lifetime-policy", "delete-on-close"),
    ("qpid.queue_event_generation", 0),
    ("qpid.queue_event_generation", 2),
    ("qpid.replicate", "none"),
    ("qpid.flow_stop_count", 10),
    ("qpid.flow_resume_size", "10"),
    ("qpid.alert_count_up", 10),
    ("x-qpid-maximum-message-size", 10),
    ("qpid.paging", "false"),
    ("qpid.max_count", 5),
    ("qpid.max_size", 5),
    ("qpid.file_count", 4),
    ("qpid.file_size", 1),
    ("qpid.auto_delete_timeout", 3),
    ("no-local", True),
    ("x-anything", "else"),
)


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_is_refused(name: str, value: Any) -> None:
    (found,) = unsupported_arguments(typed_map({"x": 1, name: value}))
    assert found.is_refused
    text = value.decode() if isinstance(value, bytes) else value
    assert str(found).startswith(f"{name} {text!r} is not implemented: ")


@pytest.mark.parametrize(("name", "value"), LOGGED)
def test_what_is_only_told(name: str, value: Any) -> None:
    (found,) = unsupported_arguments(typed_map({name: value}))
    assert not found.is_refused


@pytest.mark.parametrize(("name", "value"), MET)
def test_what_asks_for_nothing_that_is_not_there(name: str, value: Any) -> None:
    assert unsupported_arguments(typed_map({name: value})) == []


def test_the_table_has_each_key_once_and_every_row_is_tried_here() -> None:
    assert max(Counter(row.key for row in TABLE).values()) == 1
    given = (*REFUSED, *LOGGED)
    tried = {found.row.key for name, value in given for found in unsupported_arguments(typed_map({name: value}))}
    assert tried == {row.key for row in TABLE}
    assert {row.effect for row in TABLE} == set(Effect)
    assert unsupported_arguments(EMPTY_MAP) == []


def test_a_value_as_long_as_may_be_makes_no_long_text() -> None:
    (found,) = unsupported_arguments(typed_map({"qpid.lifetime-policy": "\n" + "g" * 60_000}))
    assert len(str(found)) < 300
    assert str(found).isprintable()
    (found,) = unsupported_arguments(typed_map({"qpid.priorities": "9" * 60_000}))
    assert len(str(found)) < 300


def test_a_declaration_that_is_refused_makes_no_queue(tmp_path: Path) -> None:
    async def scene(stage: Wired) -> None:
        with pytest.raises(NotImplementedByBrokerError, match=r'"copied": qpid\.replicate \'all\' is not i'):
            await stage.topology.declare_queue(
                "copied", durable=True, arguments=typed_map({"qpid.max_count": 5, "qpid.replicate": "all"})
            )
        assert stage.broker.queues == {}
        assert stage.store is not None
        assert not stage.store.journals

    play(tmp_path, scene)


def test_what_has_no_effect_is_told_once_for_each_argument(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(NOTICE)

    async def scene(stage: Wired) -> None:
        for name in ("one", "two"):
            arguments = typed_map({"x-qpid-capacity": 5, "x-qpid-maximum-message-age": 9})
            await stage.topology.declare_queue(name, arguments=arguments)
        await stage.topology.declare_queue("one", arguments=typed_map({"qpid.persist_last_node": True}))

    play(tmp_path, scene)
    lines = [record.getMessage() for record in caplog.records if record.name == "Model"]
    assert [line.split(" is not implemented: ")[0] for line in lines] == [
        'Queue "one": x-qpid-capacity 5',
        'Queue "one": x-qpid-maximum-message-age 9',
    ]


def test_a_recovered_queue_gets_one_warning_for_all_that_it_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there from qpidd, or from an earlier version, and stays."""
    values = {"qpid.trace.id": "a", "qpid.replicate": "all", "qpid.persist_last_node": 1}
    lacking = typed_map(values)

    async def elder(stage: Wired) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("qstore.broker.model.topology.checks.unsupported_arguments", lambda _arguments: [])
            await stage.topology.declare_queue("old", durable=True, arguments=lacking)
            await stage.topology.declare_queue(
                "plain", durable=True, arguments=typed_map({"qpid.persist_last_node": 1})
            )

    async def later(stage: Wired) -> None:
        assert set(stage.broker.queues) == {"old", "plain"}
        await stage.topology.declare_queue("old", durable=True, arguments=lacking)

    play(tmp_path, elder)
    caplog.clear()
    caplog.set_level(NOTICE)
    play(tmp_path, later)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(
        "Queue \"old\" is served without features of its declaration: qpid.trace.id 'a' is not implemented: "
    )
    assert "; qpid.replicate 'all' is not implemented: its messages and state are not replicated" in warning
    assert "qpid.persist_last_node" not in warning
    notices = [record.getMessage() for record in caplog.records if record.levelno == NOTICE]
    assert [notice.partition(":")[0] for notice in notices] == [
        f'Queue "{name}" is served without features of its declaration' for name in ("old", "plain")
    ]


def test_a_recovered_queue_is_served_without_those_arguments_that_are_not_valid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """qpidd takes more levels than ten, and limits for levels that a queue does not have."""
    arguments = {
        "many": {"qpid.priorities": 16, "qpid.fairshare-15": 1, "qpid.max_count": 7},
        "few": {"qpid.fairshare-9": 1, "qpid.priorities": 5, "qpid.max_count": 8},
    }

    async def elder(stage: Wired) -> None:
        for name, values in arguments.items():
            await stage.topology._storage.create_queue(name, "", typed_map(values), "", False)

    async def later(stage: Wired) -> None:
        for name, levels, most in (("many", 10, 7), ("few", 5, 8)):
            queue = stage.broker.queues[name]
            assert isinstance(queue._order, PriorityOrder)
            assert len(queue._order._levels) == levels
            assert queue.limit is not None
            assert queue.limit.max_messages == most
            assert queue.arguments == typed_map(arguments[name])

    play(tmp_path, elder)
    caplog.clear()
    caplog.set_level(NOTICE)
    play(tmp_path, later)
    not_there = "qpid.priorities 16 is not implemented: it has 10 levels, one for each priority"
    assert {record.getMessage() for record in caplog.records if "qpid." in record.getMessage()} == {
        f'Queue "many" is served without features of its declaration: {not_there}',
        'Queue "few": ignoring qpid.fairshare-9 1: qpid.fairshare-9 is 1, but qpid.priorities is 5',
    }
