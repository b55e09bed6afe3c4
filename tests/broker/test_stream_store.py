"""Streams on a store: their journals grow and are overwritten, no record is ever copied, and what is kept of them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.model.configuration import Configuration, Record
from qstore.broker.model.errors import ResourceLimitExceededError
from qstore.broker.model.queues.stream import Stream
from qstore.broker.model.queues.stream_log import Mark, StreamLog
from qstore.formats.broker_records.topology import STREAM_CONSUMER_KIND, STREAM_KIND
from qstore.formats.values import typed_map
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.key_value import CatalogueError
from tests.broker.wired_broker import Taker, Wired, wired
from tests.support.compiled import replaces

NAME = Record(STREAM_CONSUMER_KIND, ("/", "s", "n"))
MARKS = Record(STREAM_KIND, ("/", "s"))


def fail(*_: object) -> None:
    """A change of the catalogue that fails."""
    raise CatalogueError("the disk says no")


class Reader(Taker):
    """A consumer of a stream, with a name."""

    def __init__(self, name: str = "n", offset: str = "first") -> None:
        super().__init__()
        self.arguments = typed_map({"x-stream-consumer-name": name, "x-stream-offset": offset})


async def declared(world: Wired, **arguments: Any) -> Stream:
    stream = await world.topology.declare_queue(
        "s", durable=True, arguments=typed_map({"x-queue-type": "stream", **arguments})
    )
    assert isinstance(stream, Stream)
    return stream


async def accept(world: Wired, stream: Stream, reader: Reader) -> None:
    """It gets the next message, and accepts it."""
    stream.wake(reader)  # type: ignore[arg-type]
    await world.synced()
    (entry,) = reader.taken
    stream.accepted(entry)
    reader.taken.clear()


async def retain(world: Wired, stream: Stream) -> None:
    """As the server does twice a second, until it is done."""
    work = world.broker.streams.look()
    if work is not None:
        await work
        while stream.is_dropping:
            await world.synced()


async def test_the_log_of_a_stream_is_never_relocated(tmp_path: Path) -> None:
    """Not while its ring grows, nor while it is overwritten after its oldest messages have left."""
    declared = {"x-queue-type": "stream", "x-max-length-bytes": 400_000, "qpid.auto_expand": True}
    async with wired(tmp_path / "data") as world:
        stream = await world.topology.declare_queue("s", durable=True, arguments=typed_map(declared))
        assert isinstance(stream, Stream)
        writer = stream.journal.writer
        for begin in range(0, 12_000, 200):
            await world.publish("", "s", *(b"%06d" % number + b"." * 300 for number in range(begin, begin + 200)))
            await retain(world, stream)
            while writer.growth.change is not None:  # otherwise records are moved to make room until it has grown
                await asyncio.sleep(0.001)
        assert stream.message_bytes <= 500_000
        assert stream.journal.geometry.files > 4
        assert writer.batch.position > 2 * stream.journal.geometry.files * writer.space.file  # it was overwritten
        assert writer.compactor.copied == 0
        begin, count = stream.log.begin, stream.message_count
        assert begin + count == 12_000
        assert len(writer.records.resting) + len(writer.live) == count
    async with wired(tmp_path / "data") as world:
        stream = world.broker.default_host.queues["s"]
        assert isinstance(stream, Stream)
        assert (stream.log.begin, stream.log.end, stream.message_count) == (begin, 12_000, count)
        (message,) = stream._source.load([stream.log.at(begin + 7).rids[7]])
        assert message is not None
        assert message.body[:6] == b"%06d" % (begin + 7)
        await world.publish("", "s", b"new")
        assert stream.log.end == 12_001


async def test_offsets_that_could_not_be_stored_are_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wired(tmp_path / "data") as world:
        stream, reader, configuration = await declared(world), Reader(), world.broker.configuration
        await world.publish("", "s", b"0", b"1")
        stream.add_consumer(reader)  # type: ignore[arg-type]
        await accept(world, stream, reader)
        with monkeypatch.context() as patch:
            patch.setattr(Catalogue, "commit", fail)
            await retain(world, stream)
        assert configuration.get(NAME) is None
        await retain(world, stream)
        found = configuration.get(NAME)
        assert found is not None
        assert found["offset"] == 1
        stream.remove_consumer(reader)  # type: ignore[arg-type]
        stream.forget_name("n")
        with monkeypatch.context() as patch:
            patch.setattr(Catalogue, "commit", fail)
            await retain(world, stream)
        assert configuration.get(NAME) is not None
        await retain(world, stream)
        assert configuration.get(NAME) is None
        assert world.broker.streams.look() is None


@replaces
async def test_names_that_cannot_be_stored_do_not_prevent_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wired(tmp_path / "data") as world:
        stream = await declared(world, **{"x-max-length-bytes": 10_000})
        await world.publish("", "s", *(b"%06d" % number + b"." * 300 for number in range(200)))
        stream.add_consumer(Reader())  # type: ignore[arg-type]
        monkeypatch.setattr("qstore.broker.model.configuration.MAX_RECORDS", 1)
        await retain(world, stream)
        assert world.broker.configuration.get(NAME) is None
        assert stream.log.begin > 100


@replaces
async def test_all_streams_together_have_a_limit_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with wired(tmp_path / "data") as world:
        stream = await declared(world)
        monkeypatch.setattr("qstore.broker.model.streams.MAX_NAMES_TOGETHER", 2)
        for name in ("a", "b", "b"):
            stream.add_consumer(Reader(name))  # type: ignore[arg-type]
        with pytest.raises(ResourceLimitExceededError, match="too many names together"):
            stream.add_consumer(Reader("c"))  # type: ignore[arg-type]


async def test_a_stream_begins_anew_where_another_one_was_deleted(tmp_path: Path) -> None:
    async with wired(tmp_path / "data") as world:
        stream, reader = await declared(world, **{"x-max-length-bytes": 10_000}), Reader()
        await world.publish("", "s", *(b"%06d" % number + b"." * 300 for number in range(200)))
        stream.add_consumer(reader)  # type: ignore[arg-type]
        await accept(world, stream, reader)
        await retain(world, stream)
        configuration = world.broker.configuration
        assert configuration.get(NAME)
        assert configuration.get(MARKS)
        await world.topology.delete_queue("s")
        stream = await declared(world)
        assert configuration.get(NAME) is None  # a crash now leaves nothing that would be the new one's
        assert configuration.get(MARKS) is None
        await world.publish("", "s", b"0")
        await retain(world, stream)
        assert (stream.log.begin, stream.log.end, stream.tracked) == (0, 1, {})


@replaces
async def test_marks_of_a_deleted_stream_are_not_stored_for_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is deleted, and another one declared, after the marks were planned and before they are stored."""
    async with wired(tmp_path / "data") as world:
        stream, reader = await declared(world, **{"x-max-length-bytes": 10_000}), Reader()
        await world.publish("", "s", *(b"%06d" % number + b"." * 300 for number in range(200)))
        stream.add_consumer(reader)  # type: ignore[arg-type]
        await retain(world, stream)
        stream.remove_consumer(reader)  # type: ignore[arg-type]
        stream.forget_name("n")  # this is stored first
        await world.publish("", "s", *(b"%06d" % number + b"." * 300 for number in range(200)))
        change, made = Configuration.change, []

        async def change_slowly(self: Configuration, puts: Any, *deletes: Any, **more: Any) -> None:
            await change(self, puts, *deletes, **more)
            if not made:
                made.append(NAME)
                await world.topology.delete_queue("s")
                made.append(await declared(world))

        monkeypatch.setattr(Configuration, "change", change_slowly)
        await retain(world, stream)
        assert made[1:] == [world.broker.default_host.queues["s"]]
        assert world.broker.configuration.get(MARKS) is None


async def test_a_name_that_is_used_at_a_crash_is_kept_from_the_start_on(tmp_path: Path) -> None:
    async with wired(tmp_path / "data") as world:
        stream, reader = await declared(world, **{"x-stream-keep-unread": "1h"}), Reader()
        await world.publish("", "s", b"0", b"1")
        stream.add_consumer(reader)  # type: ignore[arg-type]
        await accept(world, stream, reader)
        await retain(world, stream)
    started = time.time()
    async with wired(tmp_path / "data") as world:  # nothing was stored at the end
        stream = world.broker.default_host.queues["s"]
        assert isinstance(stream, Stream)
        assert stream.tracked["n"].offset == 1
        assert started <= stream.tracked["n"].used_at <= time.time()


def test_recovered_segments_are_as_small_as_others() -> None:
    """So retention drops no more at once than before, and a consumer has no more read into memory."""
    log = StreamLog(lambda: 0.0, 1000)
    log.recover(range(1, 51), [300] * 50)
    log.recover(range(60, 63), [5000, 1, 1])
    log.recover(range(100, 800), [0] * 700)
    assert [segment.first for segment in log.segments] == [*range(0, 48, 4), 48, 50, 51, 53, 53 + 512]
    assert [segment.size for segment in log.segments] == [*([1200] * 12), 600, 5000, 2, 0, 0]
    log.restore([Mark(3, 10_002, 5.0), Mark(9, 10_008, 6.0), Mark(11, 10_010, 6.0), Mark(60, 20_000, 7.0)], 8.0)
    assert [segment.first for segment in log.segments[:7]] == [10_000, 10_002, 10_004, 10_008, 10_010, 10_012, 10_016]
    assert [segment.time for segment in log.segments[:6]] == [0.0, 5.0, 5.0, 6.0, 6.0, 6.0]
    assert (log.at(20_000).rids[0], log.end) == (60, 20_703)
