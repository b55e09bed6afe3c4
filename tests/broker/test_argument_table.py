"""Arguments that this broker does not support: refused, logged, or without effect."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from qstore.broker.log.logs import NOTICE
from qstore.broker.model.arguments import (
    AUTO_DELETE,
    DELETES_SLOW,
    DURABLE,
    EXCLUSIVE,
    JMS_SELECTOR,
    REPLICATING,
    TABLE,
    Effect,
    Lacking,
    Of,
    lacking,
    rows_of,
)
from qstore.broker.model.errors import NotImplementedByBrokerError
from qstore.broker.model.queues.priority import PriorityOrder
from qstore.formats.values import EMPTY_MAP, TypedMap, typed_map
from tests.broker.wired_broker import Wired, play

REFUSED: Final[tuple[tuple[str, Any], ...]] = (
    ("qpid.lifetime-policy", "delete-after-use"),
    ("qpid.replicate", "all"),
    ("qpid.replicate", "configuration"),
    ("x-qpid-dlq-enabled", True),
    ("x-qpid-maximum-delivery-count", 3),
    ("x-qpid-sorted-key", "header"),
    ("qpid.queue_sort_key", b"header"),
    ("x-message-deduplication", True),
    ("qpid.ensure_nondestructive_consumers", True),
    ("qpid.default_filters", "{}"),
    ("qpid.message_durability", "ALWAYS"),
    ("alternate-exchange", "amq.fanout"),
    ("x-queue-type", "mirrored"),
    ("x-queue-type", b"streams"),
    ("x-queue-mode", "eager"),
    ("x-queue-version", 3),
    ("x-queue-master-locator", 1),
    ("x-queue-leader-locator", 1),
)
LOGGED: Final[tuple[tuple[str, Any], ...]] = (
    ("qpid.priorities", 11),
    ("x-qpid-priorities", b"256"),
    ("qpid.group_timestamp", True),
    ("x-queue-mode", "lazy"),
    ("x-queue-version", 2),
    ("x-quorum-initial-group-size", 3),
    ("x-initial-cluster-size", 3),
    ("x-initial-group-size", 3),
    ("x-deliver-limit", 3),
    ("x-stream-filter-size-bytes", 32),
    ("x-quorum-target-group-size", 3),
    ("x-max-in-memory-length", 3),
    ("x-max-in-memory-bytes", 3),
    ("x-queue-master-locator", "min-masters"),
    ("x-queue-leader-locator", "client-local"),
    ("x-ha-policy", "all"),
    ("x-ha-policy-params", "node"),
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
    ("x-qpid-capacity", 10),
    ("x-qpid-flow-resume-capacity", 10),
    ("x-qpid-dlq-enabled", False),
    ("x-qpid-maximum-delivery-count", 0),
    ("x-queue-type", "classic"),
    ("x-queue-type", "quorum"),
    ("x-delivery-limit", 3),
    ("qpid.msg_sequence", 1),
)


def unsupported_arguments(arguments: TypedMap) -> list[Lacking]:
    return lacking(Of.QUEUE, arguments, (DURABLE, AUTO_DELETE, EXCLUSIVE, REPLICATING, DELETES_SLOW))


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_unimplemented_argument_is_refused(name: str, value: Any) -> None:
    (found,) = unsupported_arguments(typed_map({"qpid.max_count": 1, name: value}))
    assert found.is_refused
    text = value.decode() if isinstance(value, bytes) else value
    assert str(found).startswith(f"{name} {text!r} is not implemented: ")


@pytest.mark.parametrize(("name", "value"), LOGGED)
def test_ineffective_argument_is_reported_as_ignored(name: str, value: Any) -> None:
    (found,) = unsupported_arguments(typed_map({name: value}))
    assert not found.is_refused
    assert f"{name} " in str(found)
    assert " is ignored: " in str(found)


@pytest.mark.parametrize(("name", "value"), MET)
def test_satisfied_argument_is_not_reported(name: str, value: Any) -> None:
    assert unsupported_arguments(typed_map({name: value})) == []


def test_the_table_has_each_key_once_and_every_row_is_tried_here() -> None:
    assert max(Counter((row.of, row.key, row.effect, row.protocol, row.says) for row in TABLE).values()) == 1
    given = (*REFUSED, *LOGGED)
    tried = {found.row for name, value in given for found in unsupported_arguments(typed_map({name: value}))}
    assert tried == {row for row in TABLE if row.of is Of.QUEUE and row.effect is not Effect.EFFECT}
    assert {row.effect for row in TABLE} == set(Effect)
    assert unsupported_arguments(EMPTY_MAP) == []


@pytest.mark.parametrize("name", ["x-anything", "qpid.max_cuont", "note"])
def test_a_name_without_a_row_has_no_meaning(name: str) -> None:
    assert rows_of(Of.QUEUE, name) == ()
    (found,) = unsupported_arguments(typed_map({name: "secret"}))
    assert not found.is_refused
    assert str(found) == f"{name} is unknown and ignored"


def test_argument_with_an_effect_only_elsewhere_is_ignored() -> None:
    arguments = typed_map({"qpid.file_count": 8, "qpid.auto_delete_timeout": 3})
    assert [str(found) for found in lacking(Of.QUEUE, arguments)] == [
        "qpid.file_count is ignored: it has an effect only for durable queues of a broker with a store",
        "qpid.auto_delete_timeout is ignored: it has an effect only for auto-delete queues",
    ]
    assert lacking(Of.BINDING, typed_map({"x-match": "all", "colour": "red"}), ("headers",)) == []
    found = lacking(Of.BINDING, typed_map({"x-match": "all", "colour": "red"}), ("topic",))
    assert [str(each) for each in found] == [
        "x-match is ignored: it has an effect only for bindings to a headers exchange",
        "colour is unknown and ignored",
    ]


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
        assert stage.broker.default_host.queues == {}
        assert stage.store is not None
        assert not stage.store.journals

    play(tmp_path, scene)


def test_ineffective_argument_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(NOTICE)

    async def scene(stage: Wired) -> None:
        for name in ("one", "two"):
            arguments = typed_map({"qpid.wcache-num-pages": 5, "qpid.persist_last_node": 9, "qpid.max_cuont": 5})
            await stage.topology.declare_queue(name, arguments=arguments)
        await stage.topology.declare_queue("one", arguments=typed_map({"x-ha-policy": "all"}))

    play(tmp_path, scene)
    lines = [record.getMessage() for record in caplog.records if record.name == "Model"]
    assert [line.split(" is ignored: ")[0] for line in lines] == [
        'Queue "one": qpid.wcache-num-pages 5',
        'Queue "one": qpid.persist_last_node 9',
        'Queue "one": qpid.max_cuont is unknown and ignored',
        "Queue \"one\" exists already: x-ha-policy remains unset and does not become 'all'",
    ]


def test_differing_redeclaration_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(NOTICE)

    async def scene(stage: Wired) -> None:
        await stage.topology.declare_queue("q", arguments=typed_map({"qpid.max_count": 5}))
        await stage.topology.declare_exchange("x", "topic")
        for _ in range(2):
            await stage.topology.declare_queue("q")
            await stage.topology.declare_queue("q", passive=True, arguments=typed_map({"qpid.max_count": 7}))
            await stage.topology.declare_queue(
                "q", durable=True, auto_delete=True, arguments=typed_map({"qpid.max_count": b"7"})
            )
            await stage.topology.declare_exchange("x", "topic", durable=True, arguments=typed_map({"qpid.ive": 1}))

    play(tmp_path, scene)
    assert [record.getMessage() for record in caplog.records if record.name == "Model"] == [
        'Queue "q" exists already: durable remains False and does not become True',
        'Queue "q" exists already: auto-delete remains False and does not become True',
        "Queue \"q\" exists already: qpid.max_count remains 5 and does not become '7'",
        'Exchange "x" exists already: durable remains False and does not become True',
        'Exchange "x" exists already: qpid.ive remains unset and does not become 1',
    ]


def test_names_that_clients_make_up_are_not_remembered_without_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(NOTICE)

    async def scene(stage: Wired) -> None:
        for number in range(60):
            made_up = {f"made.up.{number}.{each}": 1 for each in range(100)}
            await stage.topology.declare_queue(f"q.{number}", arguments=typed_map(made_up))
        await stage.topology.declare_queue("last", arguments=typed_map({"qpid.wcache-num-pages": 5}))

    play(tmp_path, scene)
    assert len([record for record in caplog.records if "made.up" in record.getMessage()]) == 1000
    assert caplog.records[-1].getMessage().startswith('Queue "last": qpid.wcache-num-pages 5 is ignored: ')


def test_a_recovered_queue_gets_one_warning_for_all_that_it_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there from qpidd, or from an earlier version, and stays."""
    values = {"qpid.queue_sort_key": "a", "qpid.replicate": "all", "qpid.persist_last_node": 1}
    lacking = typed_map(values)

    async def elder(stage: Wired) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(stage.broker.arguments, "check", lambda *_: None)
            await stage.topology.declare_queue("old", durable=True, arguments=lacking)
            await stage.topology.declare_queue(
                "plain", durable=True, arguments=typed_map({"qpid.persist_last_node": 1})
            )

    async def later(stage: Wired) -> None:
        assert set(stage.broker.default_host.queues) == {"old", "plain"}
        await stage.topology.declare_queue("old", durable=True, arguments=lacking)

    play(tmp_path, elder)
    caplog.clear()
    caplog.set_level(NOTICE)
    play(tmp_path, later)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(
        "Queue \"old\" lacks features of its declaration: qpid.queue_sort_key 'a' is not implemented: "
    )
    assert "; qpid.replicate 'all' is not implemented: its messages and state are not replicated" in warning
    assert "qpid.persist_last_node" not in warning
    notices = [record.getMessage() for record in caplog.records if record.levelno == NOTICE]
    assert [notice.partition(":")[0] for notice in notices] == [
        f'Queue "{name}" lacks features of its declaration' for name in ("old", "plain")
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
            queue = stage.broker.default_host.queues[name]
            assert isinstance(queue.order, PriorityOrder)
            assert len(queue.order._levels) == levels
            assert queue.limit is not None
            assert queue.limit.max_messages == most
            assert queue.arguments == typed_map(arguments[name])

    play(tmp_path, elder)
    caplog.clear()
    caplog.set_level(NOTICE)
    play(tmp_path, later)
    not_there = "qpid.priorities 16 is ignored: it has 10 levels, one for each priority"
    assert {record.getMessage() for record in caplog.records if "qpid." in record.getMessage()} == {
        f'Queue "many" lacks features of its declaration: {not_there}',
        'Queue "few": ignoring qpid.fairshare-9 1: qpid.fairshare-9 is 1, but qpid.priorities is 5',
    }


def test_bindings_between_exchanges_have_no_selectors_either(tmp_path: Path) -> None:
    async def scene(stage: Wired) -> None:
        with pytest.raises(NotImplementedByBrokerError, match="between exchanges have no selectors"):
            await stage.broker.default_host.exchange_bindings.bind(
                "amq.topic", "amq.fanout", "k", typed_map({"x-filter-jms-selector": "a = 1"})
            )
        await stage.broker.default_host.exchange_bindings.bind(
            "amq.topic", "amq.fanout", "k", typed_map({JMS_SELECTOR: ""})
        )

    play(tmp_path, scene)


def test_recovered_exchanges_and_bindings_are_reported_as_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def elder(stage: Wired) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(stage.broker.arguments, "check", lambda *_: None)
            await stage.topology.declare_exchange(
                "old", "topic", durable=True, arguments=typed_map({"qpid.replicate": "all"})
            )
            await stage.topology.declare_queue("q", durable=True)
            await stage.topology.bind("q", "old", "k", typed_map({"qpid.filter": "a = 1"}))

    async def later(stage: Wired) -> None:
        assert [binding.key for binding in stage.broker.default_host.exchanges["old"].bindings] == ["k"]

    play(tmp_path, elder)
    caplog.clear()
    caplog.set_level(NOTICE)
    play(tmp_path, later)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.partition(" is not implemented: ")[0] for line in warnings] == [
        "Exchange \"old\" lacks features of its declaration: qpid.replicate 'all'",
        'Binding of queue "q" to exchange "old" lacks features of its declaration: qpid.filter \'a = 1\'',
    ]
