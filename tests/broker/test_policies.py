"""Policies: which one applies, how it is merged with arguments, and its effect on queues that run, or come later."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.log.logs import NOTICE
from qstore.broker.model import policies
from qstore.broker.model.broker import Broker
from qstore.broker.model.errors import InvalidArgumentError, ModelError, NotAllowedError, NotFoundError
from qstore.broker.model.patterns import compile_pattern
from qstore.broker.model.policies import OPERATOR_POLICY, POLICY, Policy, check_policy, policy_of
from qstore.broker.model.queues.arguments import read_arguments
from qstore.formats.values import typed_map
from tests.broker.wired_broker import Wired, play
from tests.support.fake_store import Model


def policy(name: str, pattern: str = "", apply_to: str = "all", priority: int = 0, **definition: Any) -> Policy:
    return Policy(
        "/", name, pattern, apply_to, priority, {key.replace("_", "-"): value for key, value in definition.items()}
    )


def spelled(key: str) -> str:
    return key.replace("_", "-") if key.startswith("x_") else key


def effective(broker: Broker, name: str, **declared: Any) -> dict[str, Any]:
    """The arguments of a queue as they have effect."""
    arguments = typed_map({spelled(key): value for key, value in declared.items()})
    _, found = broker.policies.for_new("/", name, arguments)
    return {key: typed.value for key, typed in found.entries}


async def declare(stage: Wired, name: str, **arguments: Any) -> Any:
    named = typed_map({spelled(key): value for key, value in arguments.items()})
    return await stage.topology.declare_queue(name, durable=True, arguments=named)


class TestChoice:
    def test_the_highest_priority_that_matches_applies_alone(self) -> None:
        async def story(stage: Wired) -> None:
            found = stage.broker.policies
            await found.set(policy("b", "^q", "queues", 1, max_length=1, message_ttl=5))
            await found.set(policy("a", "^q", "all", 1, max_length=2))
            await found.set(policy("low", "", "all", -1, expires=9))
            await found.set(policy("x", "^q", "exchanges", 9, alternate_exchange="e"))
            assert found.of_queue("/", "q", typed_map({}))[0] == "a"
            assert effective(stage.broker, "q") == {"x-max-length": 2}
            assert effective(stage.broker, "other") == {"x-expires": 9}
            assert found.of_queue("other", "q", typed_map({})).policy == ""
            assert found.of_exchange("/", "q").definition == {"alternate-exchange": "e"}
            assert found.of_exchange("/", "").policy == ""
            await found.delete("/", "a")
            assert effective(stage.broker, "q") == {"x-max-length": 1, "x-message-ttl": 5}

        play(None, story)

    def test_types_of_queues(self) -> None:
        async def story(stage: Wired) -> None:
            await stage.broker.policies.set(policy("c", "", "classic_queues", 0, max_length=1))
            await stage.broker.policies.set(policy("q", "", "quorum_queues", 0, max_length=2))
            assert effective(stage.broker, "any", x_queue_type="classic")["x-max-length"] == 1
            assert effective(stage.broker, "any", x_queue_type="quorum")["x-max-length"] == 2

        play(None, story)

    def test_operator_policies_lower_numbers(self) -> None:
        async def story(stage: Wired) -> None:
            found = stage.broker.policies
            await found.set(policy("own", "", "queues", 0, max_length=10, message_ttl=5, overflow="drop-head"))
            limits = policy("op", "", "queues", 0, max_length=3, message_ttl=50, expires=7, overflow="reject-publish")
            await found.set(limits, OPERATOR_POLICY)
            applied = found.of_queue("/", "q", typed_map({}))
            assert applied[:2] == ("own", "op")
            assert applied.definition == {
                "max-length": 3, "message-ttl": 5, "expires": 7, "overflow": "reject-publish",
            }  # fmt: skip
            await found.delete("/", "own")
            assert found.of_queue("/", "q", typed_map({})).definition == limits.definition

        play(None, story)

    @pytest.mark.parametrize(
        ("declared", "merged"),
        [
            ({"x_max_length": 5}, {"x-max-length": 5}),
            ({"x_max_length": 50}, {"x-max-length": 10}),
            ({"x_message_ttl": 1}, {"x-message-ttl": 1, "x-max-length": 10}),
            ({"x_dead_letter_exchange": "own"}, {"x-dead-letter-exchange": "own", "x-dead-letter-routing-key": "k"}),
            ({"x_overflow": "drop-head"}, {"x-overflow": "drop-head"}),
            ({"qpid.max_count": 4}, {"qpid.max_count": 4, "qpid.policy_type": "reject"}),
            ({"qpid.max_count": 40, "qpid.policy_type": "ring"}, {"qpid.max_count": 10, "qpid.policy_type": "ring"}),
            ({"qpid.max_count": 0}, {"qpid.max_count": 10}),
            ({"qpid.max_size": 7}, {"qpid.max_size": 7, "qpid.max_count": 10}),
            ({"x_max_length": b"20"}, {"x-max-length": 10}),
        ],
    )
    def test_arguments_and_policies_are_merged(self, declared: dict[str, Any], merged: dict[str, Any]) -> None:
        async def story(stage: Wired) -> None:
            await stage.broker.policies.set(
                policy("p", "", "queues", 0, max_length=10, message_ttl=99, overflow="reject-publish",
                       dead_letter_exchange="e", dead_letter_routing_key="k")
            )  # fmt: skip
            found = effective(stage.broker, "q", **declared)
            assert merged.items() <= found.items()
            read_arguments(typed_map(found))

        play(None, story)

    @pytest.mark.parametrize(("declared", "age"), [("1h", "1h"), ("3D", "2D"), (None, "2D")])
    def test_the_shorter_age_of_a_stream_counts(self, declared: str | None, age: str) -> None:
        async def story(stage: Wired) -> None:
            await stage.broker.policies.set(policy("p", "", "streams", 0, max_age="2D", max_length_bytes=9))
            await stage.broker.policies.set(policy("classic", "", "classic_queues", 5, max_length_bytes=5))
            given = {} if declared is None else {"x-max-age": declared}
            given = typed_map({"x-queue-type": "stream", **given})
            found = dict(stage.broker.policies.for_new("/", "q", given)[1].entries)
            assert (found["x-max-age"].value, found["x-max-length-bytes"].value) == (age, 9)

        play(None, story)

    def test_a_policy_that_contradicts_arguments_is_not_applied(self, caplog: pytest.LogCaptureFixture) -> None:
        async def story(stage: Wired) -> None:
            await stage.broker.policies.set(policy("p", "", "queues", 0, overflow="reject-publish", max_length=1))
            declared = typed_map({"x-max-length": "many"})
            assert stage.broker.policies.for_new("/", "q", declared)[1] is declared

        play(None, story)
        assert "does not go with its arguments" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (policy("p"), "definition is empty"),
        (policy("", max_length=1), "name of a policy"),
        (policy("p", "(", max_length=1), "not a regular expression"),
        (policy("p", "(a+)+$", max_length=1), "too long to match"),
        (policy("p", "", "streams", max_age="5 minutes"), "x-max-age"),
        (policy("p", "", "streams", max_age=5), "x-max-age"),
        (policy("p", "", "streams", stream_max_segment_size_bytes="5"), "whole number"),
        (policy("p", "", "bindings", max_length=1), "it must be one of"),
        (policy("p", "", "all", True, max_length=1), "priority"),
        (policy("p", "", "all", 1 << 40, max_length=1), "priority"),
        (policy("p", max_priority=5), "x-max-priority"),
        (policy("p", max_lenght=5), "'max-lenght' cannot be set by a policy: there is no such key"),
        (policy("p", max_length="5"), "max-length is '5', not a whole number"),
        (policy("p", max_length=-5), "x-max-length"),
        (policy("p", max_length=True), "whole number"),
        (policy("p", expires=0), "x-expires is 0"),
        (policy("p", overflow="stop"), "x-overflow"),
        (policy("p", dead_letter_exchange="x" * 300), "name"),
        (policy("p", alternate_exchange=""), "not the name"),
        (policy("p", federation_upstream=""), "must be text"),
        (policy("p", federation_upstream_pattern="("), "federation-upstream-pattern"),
        (policy("p", federation_upstream="x", federation_upstream_set="all"), "give one of"),
    ],
)
def test_wrong_policies_are_refused(wrong: Policy, why: str) -> None:
    async def story(stage: Wired) -> None:
        with pytest.raises(InvalidArgumentError) as caught:
            await stage.broker.policies.set(wrong)
        assert why in str(caught.value)
        assert stage.broker.policies.all() == []

    play(None, story)


def test_operator_policies_have_fewer_keys() -> None:
    async def story(stage: Wired) -> None:
        found = stage.broker.policies
        with pytest.raises(InvalidArgumentError, match="cannot be set by an operator policy"):
            await found.set(policy("p", "", "queues", 0, dead_letter_exchange="e"), OPERATOR_POLICY)
        with pytest.raises(InvalidArgumentError, match="applies to queues only"):
            await found.set(policy("p", "", "all", 0, max_length=1), OPERATOR_POLICY)
        with pytest.raises(NotFoundError):
            await found.delete("/", "none")

    play(None, story)


def test_keys_of_clusters_are_ignored_with_a_notice_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(NOTICE)

    async def story(stage: Wired) -> None:
        await stage.broker.policies.set(policy("p", "", "all", 0, ha_mode="all", queue_mode="lazy"))
        assert stage.broker.policies.all() == [policy("p", "", "all", 0, ha_mode="all", queue_mode="lazy")]
        assert effective(stage.broker, "q") == {}

    play(None, story)
    assert "ha-mode is ignored" in caplog.text


@pytest.mark.parametrize(
    ("apply_to", "key", "value", "is_idle"),
    [
        ("classic_queues", "delivery-limit", 5, True),
        ("streams", "delivery-limit", 5, True),
        ("queues", "delivery-limit", 5, False),
        ("quorum_queues", "delivery-limit", 5, False),
        ("quorum_queues", "max-age", "1D", True),
        ("streams", "max-age", "1D", False),
        ("streams", "message-ttl", 5, True),
        ("streams", "max-length", 5, True),
        ("streams", "overflow", "reject-publish", True),
        ("streams", "dead-letter-exchange", "x", True),
        ("streams", "max-length-bytes", 5, False),
        ("streams", "max-consumers", 5, False),
        ("exchanges", "expires", 5, True),
        ("queues", "alternate-exchange", "x", True),
        ("all", "alternate-exchange", "x", False),
        ("all", "max-age", "1D", False),
    ],
)
def test_keys_of_other_objects_than_the_policy_s_have_a_notice(
    apply_to: str, key: str, value: int | str, is_idle: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(NOTICE)
    check_policy(Policy("/", "p", "", apply_to, 0, {key: value}), POLICY, set())
    lines = [line for line in caplog.messages if "has no effect" in line]
    assert [line.partition(": it is for ")[0] for line in lines] == ['policy "p": ' + key + " has no effect"] * is_idle


def test_spelling_of_definitions() -> None:
    given = {
        "vhost": "/",
        "name": "p",
        "pattern": "^q",
        "apply-to": "queues",
        "definition": {"max-length": 1},
        "priority": 4,
    }
    assert policy_of("/", "p", given) == policy("p", "^q", "queues", 4, max_length=1)
    assert policy_of("/", "p", {"pattern": "^q", "definition": {"max-length": 1}}).apply_to == "all"
    for wrong in ({}, {"pattern": "x", "definition": 1}, {"pattern": 1, "definition": {}}, {**given, "more": 1}):
        with pytest.raises(InvalidArgumentError):
            policy_of("/", "p", wrong)


class TestRunning:
    def test_messages_beyond_a_new_limit_leave_for_good_and_the_others_stay_in_order(self, tmp_path: Path) -> None:
        async def story(stage: Wired) -> None:
            queue = await declare(stage, "q")
            await stage.publish("", "q", *(b"%d" % number for number in range(10)))
            await stage.broker.policies.set(policy("p", "^q$", "queues", 0, max_length=4))
            await stage.synced()
            assert stage.bodies("q") == [b"6", b"7", b"8", b"9"]
            assert queue.policy.policy == "p"
            await stage.publish("", "q", b"10")
            assert stage.bodies("q") == [b"7", b"8", b"9", b"10"]

        async def look(stage: Wired) -> None:
            assert stage.bodies("q") == [b"7", b"8", b"9", b"10"]
            await stage.publish("", "q", b"11")
            assert stage.bodies("q") == [b"8", b"9", b"10", b"11"]
            await stage.broker.policies.delete("/", "p")
            await stage.publish("", "q", b"12", b"13")
            assert len(stage.bodies("q")) == 6
            assert stage.broker.default_host.queues["q"].displacements == ()

        play(tmp_path, story, look)

    def test_many_leave_in_turns(self) -> None:
        async def story(stage: Wired) -> None:
            await declare(stage, "q")
            await stage.publish("", "q", *(b"" for _ in range(2000)))
            await stage.broker.policies.set(policy("p", "", "queues", 0, max_length=5))
            queue = stage.broker.default_host.queues["q"]
            assert queue.message_count > 1000  # the first turn has taken some
            while stage.broker.tick.turns:
                await asyncio.sleep(0)
            assert queue.message_count == 5

        play(None, story)

    def test_displaced_ones_go_to_the_dead_letter_exchange_of_the_policy(self, tmp_path: Path) -> None:
        async def story(stage: Wired) -> None:
            await declare(stage, "q")
            await declare(stage, "dead")
            await stage.publish("", "q", b"1", b"2", b"3")
            limits = policy(
                "p", "^q$", "queues", 0, max_length=1, dead_letter_exchange="", dead_letter_routing_key="dead"
            )
            await stage.broker.policies.set(limits)
            await stage.synced()
            assert (stage.bodies("q"), stage.bodies("dead")) == ([b"3"], [b"1", b"2"])
            await stage.broker.policies.delete("/", "p")
            assert stage.broker.default_host.queues["q"].dead_letter is None

        async def look(stage: Wired) -> None:
            assert (stage.bodies("q"), stage.bodies("dead")) == ([b"3"], [b"1", b"2"])

        play(tmp_path, story, look)

    def test_reject_publish_refuses_later_messages_and_keeps_those_there(self) -> None:
        async def story(stage: Wired) -> None:
            await declare(stage, "q")
            await stage.publish("", "q", b"1", b"2", b"3")
            await stage.broker.policies.set(policy("p", "", "queues", 0, max_length=2, overflow="reject-publish"))
            with pytest.raises(ModelError, match="Maximum depth"):
                await stage.publish("", "q", b"4")
            assert stage.bodies("q") == [b"1", b"2", b"3"]
            await stage.broker.policies.set(policy("p", "", "queues", 0, max_length=9, overflow="reject-publish"))
            await stage.publish("", "q", b"4")
            assert stage.broker.default_host.queues["q"].refused == 1

        play(None, story)

    def test_times(self) -> None:
        async def story(stage: Wired) -> None:
            broker, queue = stage.broker, await declare(stage, "q", x_message_ttl=60_000)
            await broker.policies.set(policy("p", "", "queues", 0, message_ttl=1000, expires=5000))
            assert (queue.message_ttl, queue.expires_seconds) == (1.0, 5.0)
            assert queue in broker.default_host.idle_queues
            await broker.policies.set(policy("p", "", "queues", 0, message_ttl=90_000))
            assert (queue.message_ttl, queue.expires_seconds) == (60.0, 0.0)
            assert queue not in broker.default_host.idle_queues

        play(None, story)

    def test_publishers_that_wait_continue_if_the_threshold_is_gone(self) -> None:
        async def story(stage: Wired) -> None:
            await declare(stage, "q", **{"qpid.max_count": 10})
            queue = stage.broker.default_host.queues["q"]
            await stage.publish("", "q", *(b"%d" % number for number in range(9)))
            assert queue.watch.is_stopped
            await stage.broker.policies.set(policy("p", "", "queues", 0, max_length=5, overflow="drop-head"))
            assert not queue.watch.is_stopped
            await stage.synced()
            assert queue.message_count == 5
            await stage.broker.policies.delete("/", "p")
            await stage.publish("", "q", *(b"%d" % number for number in range(4)))
            assert queue.watch.is_stopped  # as declared

        play(None, story)

    def test_declared_arguments_stay_for_redeclarations(self) -> None:
        async def story(stage: Wired) -> None:
            queue = await declare(stage, "q", x_max_length=50)
            await stage.broker.policies.set(policy("p", "", "queues", 0, max_length=5))
            arguments = typed_map({"x-max-length": 50})
            found = await stage.topology.declare_queue("q", durable=True, arguments=arguments, is_exact=True)
            assert found is queue

        play(None, story)

    def test_a_queue_that_comes_later_has_it_too(self, tmp_path: Path) -> None:
        async def story(stage: Wired) -> None:
            await stage.broker.policies.set(policy("p", "^q$", "queues", 0, max_length=2))
            assert (await declare(stage, "q")).policy.policy == "p"
            await declare(stage, "other")
            for name in ("q", "other"):
                await stage.publish("", name, b"1", b"2", b"3")
            assert (stage.bodies("q"), len(stage.bodies("other"))) == ([b"2", b"3"], 3)

        play(tmp_path, story)

    def test_queues_are_looked_at_in_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(policies, "SLICE", 0.0)

        async def story(stage: Wired) -> None:
            for number in range(200):
                await declare(stage, f"q{number}")
            turns, is_over = 0, False

            async def other() -> None:
                nonlocal turns
                while not is_over:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(other())
            await stage.broker.policies.set(policy("p", "", "queues", 0, max_length=2))
            is_over = True
            await task
            assert turns > 150
            assert all(queue.policy.policy == "p" for queue in stage.broker.default_host.queues.values())

        play(None, story)


class TestAlternateExchanges:
    def test_policies_come_and_go(self, tmp_path: Path) -> None:
        async def story(stage: Wired) -> None:
            topology, broker = stage.topology, stage.broker
            exchange = await topology.declare_exchange("x", "direct", durable=True)
            await declare(stage, "lost")
            await broker.policies.set(policy("p", "^x$", "exchanges", 0, alternate_exchange="ae"))
            await stage.publish("x", "k", b"1")
            await topology.declare_exchange("ae", "fanout", durable=True)
            await topology.bind("lost", "ae", "")
            await stage.publish("x", "k", b"2")
            assert stage.bodies("lost") == [b"2"]
            with pytest.raises(NotAllowedError):  # it was declared without one
                await topology.declare_exchange("x", "direct", durable=True, alternate="ae")
            await topology.delete_exchange("ae")  # a policy holds nothing back
            assert exchange.alternate is None
            await topology.declare_exchange("ae", "fanout", durable=True)
            await topology.bind("lost", "ae", "")
            await stage.publish("x", "k", b"3")

        async def look(stage: Wired) -> None:
            await stage.publish("x", "k", b"4")
            assert stage.bodies("lost") == [b"2", b"3", b"4"]
            await stage.broker.policies.delete("/", "p")
            await stage.publish("x", "k", b"5")
            assert len(stage.bodies("lost")) == 3

        play(tmp_path, story, look)

    def test_a_declared_one_wins(self) -> None:
        async def story(stage: Wired) -> None:
            topology, broker = stage.topology, stage.broker
            await topology.declare_exchange("own", "fanout")
            await topology.declare_exchange("other", "fanout")
            exchange = await topology.declare_exchange("x", "direct", alternate="own")
            later = await topology.declare_exchange("y", "direct", alternate="later", is_exact=True)
            await broker.policies.set(policy("p", "^[xy]$", "exchanges", 0, alternate_exchange="other"))
            assert exchange.alternate is broker.default_host.exchanges["own"]
            assert later.alternate is None
            await broker.policies.delete("/", "p")
            assert exchange.alternate is broker.default_host.exchanges["own"]
            assert broker.default_host.topology.awaiting[later] == "later"

        play(None, story)


def test_policies_are_found_again(tmp_path: Path) -> None:
    wanted = [
        policy("a", "^q", "queues", 3, max_length=1, overflow="reject-publish"),
        policy("b", "", "all", 0, expires=9),
    ]

    async def story(stage: Wired) -> None:
        for each in wanted:
            await stage.broker.policies.set(each)
        await stage.broker.policies.set(policy("o", "", "queues", 0, max_length=7), OPERATOR_POLICY)

    async def look(stage: Wired) -> None:
        assert stage.broker.policies.all() == wanted
        assert [each.name for each in stage.broker.policies.all(OPERATOR_POLICY)] == ["o"]

    play(tmp_path, story, look)


def test_a_limit_of_a_queue_of_runs_and_held_messages() -> None:
    model = Model()
    queue = model.queue("q")
    consumer = model.consumer(queue, 3)
    model.publish("q", *(b"%d" % number for number in range(8)))
    model.run()
    assert len(consumer.bodies) == 3
    model.broker.queue_factory.refit(model.broker.default_host, queue, typed_map({"x-max-length": 2}))
    model.run()
    assert [entry.message.body for entry in queue.available()] == [b"6", b"7"]
    assert queue.message_count == 2


@pytest.mark.replaces
def test_a_changed_policy_is_compiled_and_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compile_noted(what: str, text: str) -> re.Pattern[str]:
        compiled.append(text)
        return compile_pattern(what, text)

    async def story(stage: Wired) -> None:
        policies = stage.broker.policies
        for number in range(20):
            await policies.set(policy(f"p{number}", f"^{number}$", "queues", max_length=number + 1))
        monkeypatch.setattr("qstore.broker.model.policies.compile_pattern", compile_noted)
        await policies.set(policy("new", "^7", "queues", 5, max_length=99))
        await policies.set(policy("p8", "^8$", "queues", max_length=88))
        await policies.delete("/", "p9")
        assert set(compiled) == {"^7", "^8$"}
        assert [each.name for each in policies.all()][:3] == ["new", "p0", "p1"]
        assert [effective(stage.broker, name).get("x-max-length") for name in ("7", "8", "9")] == [99, 88, None]

    play(None, story)
