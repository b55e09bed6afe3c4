"""The topology and the store: stored objects, failures, and concurrent changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import qstore.broker.model.topology.deletion
from qstore.broker.model.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceLimitExceededError,
    UnauthorizedError,
)
from qstore.broker.model.settlement import Settled, accept
from qstore.broker.model.topology.changes import ChangeOrder
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.values import typed_map
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.errors import StoreError
from tests.broker.wired_broker import Somebody, Wired, failing, play


def refusing(*arguments: Any) -> None:
    """One that is refused at once."""
    raise StoreError("the disk is broken")


class TestReopened:
    def test_everything_is_there_again(self, tmp_path: Path) -> None:
        headers = typed_map({"x-match": "any", "n": 1})

        async def make(stage: Wired) -> None:
            topology = stage.topology
            await topology.declare_exchange("dead", "fanout", durable=True)
            await topology.declare_exchange(
                "x", "topic", durable=True, auto_delete=True, alternate="dead", arguments=typed_map({"a": 1})
            )
            await topology.declare_queue(
                "q",
                durable=True,
                auto_delete=True,
                alternate="dead",
                arguments=typed_map({"b": 2}),
                caller=Somebody("joe"),
            )
            await topology.bind("q", "x", "a.#")
            await topology.bind("q", "amq.match", "k", headers)
            await topology.bind("q", "amq.fanout", "")
            await stage.publish("amq.fanout", "any", b"kept")
            await stage.publish("amq.fanout", "any", b"lost", persistent=False)

        async def look(stage: Wired) -> None:
            dead, x, q = (
                stage.broker.default_host.exchanges["dead"],
                stage.broker.default_host.exchanges["x"],
                stage.broker.default_host.queues["q"],
            )
            assert (x.type_name, x.durable, x.auto_delete, x.alternate) == ("topic", True, True, dead)
            assert x.arguments == typed_map({"a": 1})
            assert (q.durable, q.auto_delete, q.alternate, q.arguments) == (True, True, dead, typed_map({"b": 2}))
            assert stage.bindings() == {("x", "q", "a.#"), ("amq.match", "q", "k"), ("amq.fanout", "q", "")}
            binding = stage.broker.default_host.exchanges["amq.match"].find_binding(q, "k")
            assert binding is not None
            assert binding.arguments == headers
            assert stage.bodies("q") == [b"kept"]

        async def take_apart(stage: Wired) -> None:
            await stage.topology.unbind("q", "amq.fanout", "")
            await stage.topology.unbind("q", "amq.match", "k")
            await stage.topology.unbind("q", "x", "a.#")  # which was its last

        async def look_again(stage: Wired) -> None:
            assert stage.bindings() == set()
            assert "x" not in stage.broker.default_host.exchanges
            await stage.topology.delete_queue("q")
            await stage.topology.delete_exchange("dead")

        async def find_nothing(stage: Wired) -> None:
            assert stage.broker.default_host.queues == {}
            assert len(stage.broker.default_host.exchanges) == 5

        play(tmp_path, make, look, take_apart, look_again, find_nothing)

    def test_only_durable_objects_are_stored(self, tmp_path: Path) -> None:
        async def make(stage: Wired) -> None:
            topology = stage.topology
            for durable in (True, False):
                await topology.declare_exchange(f"x{durable:d}", "direct", durable=durable)
                await topology.declare_queue(f"q{durable:d}", durable=durable)
            for exchange in ("x1", "x0", "amq.direct"):
                for queue in ("q1", "q0"):
                    await topology.bind(queue, exchange, "k")

        async def look(stage: Wired) -> None:
            assert list(stage.broker.default_host.queues) == ["q1"]
            assert "x1" in stage.broker.default_host.exchanges
            assert "x0" not in stage.broker.default_host.exchanges
            assert stage.bindings() == {("x1", "q1", "k"), ("amq.direct", "q1", "k")}

        play(tmp_path, make, look)

    def test_standard_exchanges_are_kept_once(self, tmp_path: Path) -> None:
        numbers: list[list[int | None]] = []

        async def look(stage: Wired) -> None:
            await stage.topology.store_standard_exchanges()
            exchanges = stage.broker.default_host.exchanges
            numbers.append([exchanges[name].store_id for name in sorted(exchanges) if name])
            assert stage.store is not None
            assert len(stage.store.topology.exchanges) in (0, 4)

        play(tmp_path, look, look)
        assert None not in numbers[0]
        assert numbers[0] == numbers[1]

    def test_deleted_with_its_ends(self, tmp_path: Path) -> None:
        async def make(stage: Wired) -> None:
            topology = stage.topology
            await topology.declare_exchange("x", "direct", durable=True)
            for name in ("q", "r"):
                await topology.declare_queue(name, durable=True)
                await topology.bind(name, "x", "k")
                await topology.bind(name, "amq.direct", "k")
            await topology.delete_queue("r")
            await topology.delete_exchange("x")

        async def look(stage: Wired) -> None:
            assert stage.bindings() == {("amq.direct", "q", "k")}

        play(tmp_path, make, look)

    def test_messages_that_have_moved(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(qstore.broker.model.topology.deletion, "MOVED_AT_ONCE", 3)
        bodies = [b"%d" % number for number in range(10)]

        async def make(stage: Wired) -> None:
            for name in ("letters", "copies"):
                await stage.topology.declare_queue(name, durable=True)
                await stage.topology.bind(name, "amq.fanout", "")
            await stage.topology.declare_queue("q", durable=True, alternate="amq.fanout")
            await stage.publish("", "q", *bodies)
            await stage.topology.delete_queue("q")
            assert stage.bodies("letters") == bodies

        async def look(stage: Wired) -> None:
            assert stage.bodies("letters") == stage.bodies("copies") == bodies
            assert sorted(stage.broker.default_host.queues) == ["copies", "letters"]

        play(tmp_path, make, look)


class TestGeometry:
    def test_by_the_arguments(self, tmp_path: Path) -> None:
        async def scene(stage: Wired) -> None:
            arguments = typed_map({"qpid.file_count": 5, "qpid.file_size": 2})
            queue = await stage.topology.declare_queue("q", durable=True, arguments=arguments)
            assert queue.journal.geometry == Geometry.from_pages(5, 2)

        play(tmp_path, scene)

    def test_no_number(self, tmp_path: Path) -> None:
        async def scene(stage: Wired) -> None:
            arguments = typed_map({"qpid.file_count": "many"})
            with pytest.raises(InvalidArgumentError, match=r"qpid\.file_count"):
                await stage.topology.declare_queue("q", durable=True, arguments=arguments)
            assert stage.broker.default_host.queues == {}
            await stage.topology.declare_queue("q", arguments=arguments)

        play(tmp_path, scene)

    def test_compression(self, tmp_path: Path) -> None:
        async def scene(stage: Wired) -> None:
            assert stage.store is not None
            for name, value in (("q", b"zstd"), ("r", "zstd"), ("s", "none")):
                arguments = typed_map({"qpid.compress": value})
                queue = await stage.topology.declare_queue(name, durable=True, arguments=arguments)
                assert (stage.store.journals[queue.journal.queue_id].compression is None) is (name == "s")
            with pytest.raises(InvalidArgumentError, match=r"qpid\.compress is 'gzip', not one of none, zstd"):
                await stage.topology.declare_queue("t", durable=True, arguments=typed_map({"qpid.compress": "gzip"}))

        play(tmp_path, scene)


@pytest.mark.parametrize("change", [failing, refusing])
class TestFailingStore:
    def test_nothing_is_made(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            assert stage.store is not None
            await topology.declare_queue("q", durable=True)
            before = dict(stage.broker.default_host.exchanges), dict(stage.broker.default_host.queues)
            for name in ("create_queue", "create_exchange", "create_binding"):
                monkeypatch.setattr(stage.store.changes, name, change)
            for asked in (
                topology.declare_queue("r", durable=True),
                topology.declare_exchange("x", "direct", durable=True),
                topology.bind("q", "amq.direct", "k"),
            ):
                with pytest.raises(InternalError, match="the disk is broken"):
                    await asked
            assert (stage.broker.default_host.exchanges, stage.broker.default_host.queues) == before
            assert stage.bindings() == set()

        play(tmp_path, scene)

    def test_nothing_is_deleted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            assert stage.store is not None
            await topology.declare_exchange("x", "direct", durable=True, auto_delete=True)
            queue = await topology.declare_queue("q", durable=True, alternate="amq.topic")
            await topology.bind("q", "x", "k")
            await topology.bind("q", "amq.topic", "#")
            taker = await stage.consumer(queue)
            with monkeypatch.context() as patch:
                for name in ("delete_queue", "delete_exchange", "delete_binding"):
                    patch.setattr(stage.store.changes, name, change)
                for asked in (
                    topology.delete_queue("q"),
                    topology.delete_exchange("x"),
                    topology.unbind("q", "x", "k"),
                ):
                    with pytest.raises(InternalError, match="the disk is broken"):
                        await asked
            assert stage.bindings() == {("x", "q", "k"), ("amq.topic", "q", "#")}
            assert stage.broker.default_host.queues == {"q": queue}
            assert not queue.is_deleted
            assert not taker.is_notified
            await stage.publish("x", "k", b"1")
            await stage.publish("", "q", b"2")
            assert [entry.message.body for entry in taker.taken] == [b"1"]
            assert stage.bodies("q") == [b"2"]
            queue.dequeue(taker.taken[0])
            await topology.delete_queue("q")
            assert taker.is_notified
            assert "x" not in stage.broker.default_host.exchanges

        play(tmp_path, scene)

    def test_failed_automatic_deletion_is_only_logged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            assert stage.store is not None
            queue = await topology.declare_queue("q", durable=True, auto_delete=True)
            await topology.declare_exchange("x", "direct", durable=True, auto_delete=True)
            await topology.bind("q", "x", "k")
            with monkeypatch.context() as patch:
                patch.setattr(stage.store.changes, "delete_queue", change)
                patch.setattr(stage.store.changes, "delete_exchange", change)
                await topology.delete_if_unused(queue)
                await topology.unbind("q", "x", "k")
            assert stage.broker.default_host.queues == {"q": queue}
            assert "x" in stage.broker.default_host.exchanges

        play(tmp_path, scene)
        assert [record.getMessage().partition(":")[0] for record in caplog.records if record.levelname == "ERROR"] == [
            'Queue "q" was not deleted',
            'Auto-delete exchange "x" was not deleted',
        ]


class TestCancelled:
    def test_queue_under_deletion_gets_no_appends(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is appended to its journal, and what is accepted meanwhile is not done before the next start."""

        async def scene(stage: Wired) -> None:
            assert stage.store is not None
            queue = await stage.topology.declare_queue("q", durable=True)
            taker = await stage.consumer(queue)
            await stage.publish("", "q", b"1")
            asked: list[object] = []
            results: list[Exception | None] = []
            with monkeypatch.context() as patch:
                patch.setattr(stage.store.changes, "delete_queue", lambda journal, _done: asked.append(journal))
                removal = asyncio.create_task(stage.broker.default_host.removal.remove(queue))
                await asyncio.sleep(0)
                assert asked == [queue.journal]
                assert accept(stage.broker.tick, [(queue, taker.taken[0])], results.append) is Settled.LATER
                removal.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await removal
            await asyncio.sleep(0)
            assert results == []
            assert queue.journal.depth == 1
            assert "q" not in stage.broker.default_host.queues
            assert queue in stage.broker.default_host.removal.leaving

        play(tmp_path, scene)


class TestNoRoom:
    def test_a_queue_whose_messages_have_no_room_stays(self, tmp_path: Path) -> None:
        """The queue that is to take them has a small journal: what does not fit stays where it is."""
        size, count = 4000, 120

        async def scene(stage: Wired) -> None:
            topology = stage.topology
            large = typed_map({"qpid.file_count": 16, "qpid.file_size": 2})
            queue = await topology.declare_queue("q", durable=True, alternate="amq.fanout", arguments=large)
            await topology.declare_queue("small", durable=True)
            await topology.bind("small", "amq.fanout", "")
            await topology.bind("q", "amq.direct", "k")
            bodies = [b"%d" % number * size for number in range(count)]
            await stage.publish("", "q", *(b"%3d" % number + b"x" * size for number in range(count)))
            with pytest.raises(ResourceLimitExceededError, match="Enqueue capacity threshold exceeded"):
                await topology.delete_queue("q")
            assert stage.broker.default_host.queues["q"] is queue
            assert not queue.is_deleted
            assert stage.bindings() == {("amq.fanout", "small", ""), ("amq.direct", "q", "k")}
            moved, left = stage.bodies("small"), stage.bodies("q")
            assert moved
            assert left
            assert [int(body[:3]) for body in moved + left] == list(range(len(bodies)))
            await stage.publish("amq.direct", "k", b"more")
            assert stage.bodies("q")[-1] == b"more"

        play(tmp_path, scene)


class TestTogether:
    def test_one_after_the_other(self, tmp_path: Path) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            first, second, _, queue = await asyncio.gather(
                topology.declare_queue("q", durable=True),
                topology.declare_queue("q", durable=True),
                topology.delete_queue("q"),
                topology.declare_queue("q", durable=True),
            )
            assert first is second
            assert first.is_deleted
            assert stage.broker.default_host.queues == {"q": queue}

        play(tmp_path, scene)

    def test_cancelled_declaration_is_still_carried_out(self, tmp_path: Path) -> None:
        async def make(stage: Wired) -> None:
            task = asyncio.ensure_future(stage.topology.declare_queue("q", durable=True))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert stage.broker.default_host.queues == {}
            await stage.topology.finish()
            assert list(stage.broker.default_host.queues) == ["q"]

        async def look(stage: Wired) -> None:
            assert list(stage.broker.default_host.queues) == ["q"]

        play(tmp_path, make, look)

    def test_error_of_a_cancelled_change_is_not_reported(self) -> None:
        async def scene(stage: Wired) -> None:
            complaints: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
            task = asyncio.ensure_future(stage.topology.delete_queue("none"))
            await asyncio.sleep(0)
            task.cancel()
            await stage.topology.finish()
            with pytest.raises((asyncio.CancelledError, NotFoundError)):
                await task
            del task
            await asyncio.sleep(0)
            assert complaints == []

        play(None, scene)

    def test_changes_of_different_queues_are_made_together(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batches: list[int] = []
        commit = Catalogue.commit

        def counted(catalogue: Catalogue) -> None:
            batches.append(1)
            commit(catalogue)

        async def scene(stage: Wired) -> None:
            topology, names = stage.topology, [f"q{number}" for number in range(20)]
            await topology.declare_exchange("x", "direct", durable=True)
            monkeypatch.setattr(Catalogue, "commit", counted)
            await asyncio.gather(*(topology.declare_queue(name, durable=True) for name in names))
            await asyncio.gather(*(topology.bind(name, "x", "key") for name in names))
            await asyncio.gather(*(topology.delete_queue(name) for name in names[1:]))
            assert len(batches) < 20
            assert stage.bindings() == {("x", "q0", "key")}
            assert list(stage.broker.default_host.queues) == ["q0"]

        async def look(stage: Wired) -> None:
            assert stage.bindings() == {("x", "q0", "key")}
            assert list(stage.broker.default_host.queues) == ["q0"]

        play(tmp_path, scene, look)

    def test_declarations_at_the_same_time_do_not_exceed_a_quota(self, tmp_path: Path) -> None:
        class Three:
            def limit(self, counted: str, user: str) -> int | None:
                return 3 if counted == "queues" else None

        async def scene(stage: Wired) -> None:
            topology, quotas, joe = stage.topology, stage.broker.quotas, Somebody("joe")
            quotas.limits = Three()
            declared = (topology.declare_queue(f"q{number}", durable=True, caller=joe) for number in range(8))
            results = await asyncio.gather(*declared, return_exceptions=True)
            assert sum(isinstance(result, UnauthorizedError) for result in results) == 5
            assert quotas.queues["joe"] == len(stage.broker.default_host.queues) == 3

        play(tmp_path, scene)

    def test_an_exchange_goes_with_its_last_binding(self, tmp_path: Path) -> None:
        async def scene(stage: Wired) -> None:
            topology, names = stage.topology, [f"q{number}" for number in range(4)]
            await topology.declare_exchange("x", "direct", durable=True, auto_delete=True)
            for name in names:
                await topology.declare_queue(name, durable=True)
                await topology.bind(name, "x", "key")
            removals = [topology.unbind(name, "x", "key") for name in names[:2]]
            await asyncio.gather(*removals, *(topology.delete_queue(name) for name in names[2:]))
            assert "x" not in stage.broker.default_host.exchanges

        play(tmp_path, scene)

    def test_an_exchange_is_deleted_though_the_client_does_not_wait_for_it(self, tmp_path: Path) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            await topology.declare_exchange("x", "direct", durable=True, auto_delete=True)
            await topology.declare_queue("q", durable=True)
            await topology.bind("q", "x", "key")
            task = asyncio.ensure_future(topology.unbind("q", "x", "key"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await topology.finish()
            assert "x" not in stage.broker.default_host.exchanges

        play(tmp_path, scene)

    def test_those_of_one_queue_are_in_order_and_others_wait_for_all(self) -> None:
        events: list[str] = []

        async def work(name: str) -> None:
            events.append(f"{name} begins")
            for _ in range(5):
                await asyncio.sleep(0)
            events.append(f"{name} ends")

        async def scene() -> None:
            changes = ChangeOrder()
            given = [("a1", "a"), ("b1", "b"), ("a2", "a"), ("all", None), ("a3", "a"), ("c1", "c")]
            await asyncio.gather(*(changes.do(lambda name=name: work(name), queue) for name, queue in given))
            assert not changes._last
            assert changes._barrier is None

        asyncio.run(scene())
        at = {event: place for place, event in enumerate(events)}
        assert at["b1 begins"] < at["a1 ends"] < at["a2 begins"]
        assert max(at["a2 ends"], at["b1 ends"]) < at["all begins"]
        assert at["all ends"] < min(at["a3 begins"], at["c1 begins"])
        assert at["c1 begins"] < at["a3 ends"]

    def test_in_the_order_in_which_they_came(self) -> None:
        done: list[int] = []

        async def work(number: int) -> int:
            for _ in range(3 - number):
                await asyncio.sleep(0)
            done.append(number)
            return number

        async def scene() -> None:
            changes = ChangeOrder()
            assert await asyncio.gather(*(changes.do(lambda each=each: work(each)) for each in range(3))) == [0, 1, 2]

        asyncio.run(scene())
        assert done == [0, 1, 2]
