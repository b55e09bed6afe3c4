"""Queues that compress their messages: what is stored is smaller, and what is read is what was enqueued."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from qstore.formats.rhm.compressed import MAX_CONTENT_SIZE
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.formats.rhm.records import COMPRESSED
from qstore.formats.values import typed_map
from qstore.store.environment import Environment
from qstore.store.errors import JournalError
from qstore.store.log_lines import Level
from qstore.store.parameters import ParameterError, queue_compresses
from tests.support.opened_store import (
    COMPRESSES,
    MESSAGES,
    OpenedStore,
    append_compressed,
    bomb,
    broken_content,
    enqueued,
    make_store,
    message,
)


def is_compressed(opened: OpenedStore, name: str) -> list[bool]:
    """Of each message of a queue."""
    journal = opened.journal(name)
    return [bool(journal.stored(rid)[0].flags & COMPRESSED) for rid in journal.writer.live]


def test_messages_come_back_as_they_were(environment: Environment, path: Path) -> None:
    opened = OpenedStore(environment, make_store(path))
    assert opened.recovered_data() == {"orders": MESSAGES}
    journal = opened.journal("orders")
    assert [journal.load(rid) for rid in journal.writer.live] == MESSAGES
    compressed = is_compressed(opened, "orders")
    assert compressed[0] is compressed[1] is False  # too short
    assert all(compressed[3:])
    opened.enqueue(journal, MESSAGES[5])
    opened.flush(journal)
    assert is_compressed(opened, "orders")[-1]
    opened.store.close()


def test_content_that_does_not_shrink_is_stored_as_it_is(environment: Environment, path: Path) -> None:
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("q", arguments=COMPRESSES)
    noise = message(random.Random(5).randbytes(2000))
    for data in (b"", b"raw", b"raw" * 200, noise, message(b"a" * 100), message(b"a" * 1000)):
        opened.enqueue(journal, data)
    opened.flush(journal)
    assert is_compressed(opened, "q") == [False, False, False, False, False, True]
    assert journal.load(list(journal.writer.live)[3]) == noise
    opened.store.close()


def test_large_content_is_stored_as_it_is(environment: Environment, path: Path) -> None:
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("q", Geometry.from_pages(4, 300), COMPRESSES)
    large = message(bytes(MAX_CONTENT_SIZE + 1))
    opened.enqueue(journal, large)
    opened.enqueue(journal, message(bytes(MAX_CONTENT_SIZE)))
    opened.flush(journal)
    assert is_compressed(opened, "q") == [False, True]
    assert [len(journal.load(rid)) for rid in journal.writer.live] == [len(large), len(large) - 1]
    opened.store.close()


def test_each_queue_decides_for_itself(environment: Environment, path: Path) -> None:
    opened = OpenedStore(environment, path)
    journals = [opened.make_queue("plain"), *(opened.make_queue(name, arguments=COMPRESSES) for name in "ab")]
    data = MESSAGES[9]
    opened.store.append.enqueue_all(journals, (data[:7], data[7:]), len(data), data_crc((data,)))
    opened.store.append.enqueue_all(journals[:1], (data,), len(data), data_crc((data,)))
    done: list[Exception | None] = []
    opened.store.transactions.commit([enqueued(journal, data) for journal in journals], [], done.append)
    opened.store.transactions.prepare(b"xid", [enqueued(journal, data) for journal in journals], [], done.append)
    opened.wait(done, 2)
    assert {name: is_compressed(opened, name) for name in ("plain", "a", "b")} == {
        "plain": [False] * 4, "a": [True] * 3, "b": [True] * 3,
    }  # fmt: skip
    assert opened.store.close()
    opened = OpenedStore(environment, path)
    assert opened.recovered_data() == {"plain": [data] * 4, "a": [data] * 3, "b": [data] * 3}
    opened.store.close()


def test_copies_that_make_room_stay_compressed(environment: Environment, path: Path) -> None:
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("q", arguments=COMPRESSES)
    kept = opened.enqueue(journal, MESSAGES[11])
    for number in range(3000):
        rid = opened.enqueue(journal, message(b"%d" % number))
        if number % 20 == 0:
            opened.flush(journal)
        opened.store.append.dequeue(journal, rid)
    opened.flush(journal)
    assert journal.writer.compactor.copied
    assert journal.load(kept) == MESSAGES[11]
    assert is_compressed(opened, "q") == [True]
    assert opened.store.close()
    opened = OpenedStore(environment, path)
    assert opened.recovered_data() == {"q": [MESSAGES[11]]}
    opened.store.close()


def test_damaged_content_is_never_delivered_and_stays(environment: Environment, path: Path) -> None:
    make_store(path, broken_content(), bomb())
    for _ in range(2):
        opened = OpenedStore(environment, path)
        assert opened.recovered_data() == {"orders": MESSAGES}
        reported = [line.text for line in opened.lines if line.level is Level.CRITICAL]
        assert len(reported) == 2
        assert all(
            text.startswith("Message 0x") and 'of queue "orders" is not delivered: ' in text for text in reported
        )
        assert "the limit is 16,777,216" in reported[1]
        journal = opened.journal("orders")
        with pytest.raises(JournalError, match="is damaged: compressed content"):
            journal.load(list(journal.writer.live)[-1])
        opened.store.close()


def test_damaged_content_that_a_start_copies(environment: Environment, path: Path) -> None:
    """A start that has to make room reads messages where they are now."""
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("q", arguments=COMPRESSES)
    append_compressed(opened, journal, broken_content())
    opened.enqueue(journal, MESSAGES[8])
    opened.flush(journal)
    opened.store.close()
    opened = OpenedStore(environment, path)
    opened.journal("q").writer.compactor.copied = 1
    assert opened.recovered_data() == {"q": [MESSAGES[8]]}
    assert [line.level for line in opened.lines if "is not delivered" in line.text] == [Level.CRITICAL]
    opened.store.close()


@pytest.mark.parametrize(
    ("value", "compresses"), [("zstd", True), (b"zstd", True), ("ZSTD ", True), ("none", False), (b"none", False)]
)
def test_the_argument(value: object, compresses: bool) -> None:
    assert queue_compresses({"qpid.compress": value}) is compresses
    assert not queue_compresses({})


@pytest.mark.parametrize("value", ["gzip", "", 1, True, None, b"\xff"])
def test_invalid_compression_arguments_are_refused(value: object) -> None:
    with pytest.raises(ParameterError, match=r"queue argument qpid.compress: .* is not one of none, zstd"):
        queue_compresses({"qpid.compress": value})


def test_store_with_an_unknown_compress_argument_opens(environment: Environment, path: Path) -> None:
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("q", arguments=typed_map({"qpid.compress": "later"}))
    opened.enqueue(journal, MESSAGES[9])
    opened.flush(journal)
    assert is_compressed(opened, "q") == [False]
    opened.store.close()
