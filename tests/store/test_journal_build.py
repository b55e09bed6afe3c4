"""Journals that are built: what fits into which, and what happens where it does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qstore.formats.rhm.geometry import BLOCK_SIZE, PAGE_SIZE, Geometry
from qstore.formats.rhm.headers import data_crc, record_blocks
from qstore.formats.rhm.jinf import TPL_BASE_NAME, JournalInfo
from qstore.formats.rhm.records import COMMIT_DECISION
from qstore.store.builders.journal_build import (
    JournalBuild,
    JournalTooSmallError,
    build_journal,
)
from qstore.store.disk import OsDisk
from qstore.store.environment import Environment, tool_environment
from qstore.store.errors import JournalBusyError, StoreError
from qstore.store.journal.directory import open_journal
from qstore.store.journal.recovery import JournalRecovery, Outcome
from qstore.store.journal.write.storage import create_journal
from qstore.store.journal.write.version_2_writer import new_state
from qstore.store.live.queue_journal import resume_journal
from qstore.store.recovery.close_record import Closing
from qstore.store.recovery.journal_content import FLUSH_BYTES, JournalContent, content_of, described, fitting_geometry
from qstore.store.recovery.journal_recovery import RecoveredJournal, recover_directory
from qstore.store.sync.driver import sync_all
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.store_simulation import simulated_environment
from tests.support.journal_builder import DIRECTORY, JournalBuilder
from tests.support.profiles import examples

NEW = "/new"
PAGE = 1024
XID = b"transaction"
RING = Geometry(4, 4096)


def environment_on(disk: SimulatedDisk) -> Environment:
    return simulated_environment(disk, random.Random(1))


def empty(disk: SimulatedDisk, info: JournalInfo) -> JournalBuild:
    """A build into files that are there."""
    create_journal(disk, NEW, info)
    return JournalBuild(environment_on(disk), NEW, info)


def counts(disk: SimulatedDisk) -> tuple[int, int]:
    """Messages that are enqueued, and dequeues of the open transaction."""
    journal = open_journal(disk, NEW)
    recovery = JournalRecovery()
    journal.walk(recovery)
    journal.close()
    assert [*journal.damage, *recovery.damage] == []
    return len(recovery.messages), sum(each.dequeues for each in recovery.transactions)


def filled(sizes: list[int], opened: list[int], removals: int) -> JournalContent:
    content = JournalContent()
    for size in sizes:
        content.message(size)
    if opened or removals:
        content.transaction(len(XID))
    for size in opened:
        content.message(size, len(XID))
    for _ in range(removals):
        content.removal(len(XID))
    return content


@examples(300)
@given(
    sizes=st.lists(st.integers(0, 3000), max_size=80),
    opened=st.lists(st.integers(0, 500), max_size=10),
    part=st.floats(0, 1),
    geometry=st.builds(Geometry, st.integers(2, 9), st.sampled_from([512, 2048, 8192, 32768])),
    alignment=st.sampled_from([512, 4096]),
)
def test_content_that_should_fit_does_fit(
    sizes: list[int], opened: list[int], part: float, geometry: Geometry, alignment: int
) -> None:
    removals = int(len(sizes) * part)
    content = filled(sizes, opened, removals)
    assume(content.fits(geometry, alignment))
    disk = SimulatedDisk()
    info = JournalInfo(2, "q", "JournalData", geometry, queue_id=7, incarnation=1, flush_alignment=alignment)
    build = empty(disk, info)
    fill(build, sizes, opened, removals)
    build.finish(seal=True)
    assert counts(disk) == (len(sizes), removals)
    write_as_a_running_queue_does(info, sizes, opened, removals)


def fill(build: JournalBuild, sizes: list[int], opened: list[int], removals: int) -> None:
    for rid, size in enumerate(sizes, 1):
        build.message(rid, [bytes(size // 2), bytes(size - size // 2)])
    for rid, size in enumerate(opened, 1000):
        build.message(rid, [bytes(size)], XID)
    for target in range(1, removals + 1):
        build.removal(XID, 2000 + target, target)


def write_as_a_running_queue_does(info: JournalInfo, sizes: list[int], opened: list[int], removals: int) -> None:
    """The writer of a running queue, which has the rules of the ring, takes all of it too, and the removal of each."""
    disk = SimulatedDisk()
    create_journal(disk, NEW, info)
    state = new_state()
    journal = resume_journal(environment_on(disk), NEW, info, info.geometry, state, bound=FLUSH_BYTES)
    writer = journal.writer

    def append(call: Callable[..., None], *arguments: object) -> None:
        for _ in range(1000):
            try:
                return call(*arguments)
            except JournalBusyError:
                while files := journal.begin():
                    journal.finish(sync_all(files))
        raise AssertionError("there is never room")

    for rid, size in enumerate(sizes, 1):
        append(writer.enqueue, rid, [bytes(size)], size, data_crc([bytes(size)]))
    for rid, size in enumerate(opened, 1000):
        append(writer.enqueue_in, XID, rid, [bytes(size)], size, data_crc([bytes(size)]))
    for target in range(1, removals + 1):
        append(writer.dequeue_in, XID, 2000 + target, target)
    if opened or removals:
        append(writer.commit, XID, 5000)
    for target in [*range(removals + 1, len(sizes) + 1), *range(1000, 1000 + len(opened))]:
        append(writer.dequeue, 6000 + target, target)
    assert not writer.live
    journal.close()


def test_the_nearest_geometry() -> None:
    content = filled([BLOCK_SIZE] * 1000, [], 0)  # 2,000 blocks, and 1,000 reserved
    assert fitting_geometry(content, Geometry(8, PAGE_SIZE), 512) == Geometry(8, PAGE_SIZE)
    grown = fitting_geometry(content, Geometry(4, PAGE_SIZE), 512)
    assert grown is not None
    assert (grown.data_size, grown.files > 4) == (PAGE_SIZE, True)
    assert not content.fits(Geometry(grown.files - 1, PAGE_SIZE), 512)
    large = filled([1 << 20] * 10, [], 0)
    grown = fitting_geometry(large, Geometry(4, PAGE_SIZE), 512)
    assert grown is not None
    assert (grown.files, grown.data_size % PAGE_SIZE) == (64, 0)
    assert not large.fits(Geometry(64, grown.data_size - PAGE_SIZE), 512)


def test_a_geometry_with_one_file_is_never_kept() -> None:
    assert fitting_geometry(JournalContent(), Geometry(1, PAGE_SIZE), 512) == Geometry(2, PAGE_SIZE)


def test_content_too_large_for_any_journal_is_refused() -> None:
    content = JournalContent()
    content.blocks = 1 << 40
    assert fitting_geometry(content, Geometry(4, PAGE_SIZE), 512) is None
    info = JournalInfo(2, "q\n", "JournalData", RING)
    with pytest.raises(StoreError, match=r'queue "q\\n": .* largest journal, 64 files of 32,768 pages'):
        build_journal(environment_on(SimulatedDisk()), NEW, info, content, lambda _: None)


def test_build_tries_more_files_if_the_content_does_not_fit() -> None:
    """Where less fits than was computed, more files are tried, and nothing of the first try is left."""
    disk = SimulatedDisk()
    info = JournalInfo(2, "q", "JournalData", Geometry(4, 2048), queue_id=7, incarnation=1)
    sizes = [400] * 40
    built = build_journal(environment_on(disk), NEW, info, JournalContent(), lambda build: fill(build, sizes, [], 0))
    assert built.geometry.files > 4
    assert open_journal(disk, NEW).info == built
    assert counts(disk) == (40, 0)
    assert len(disk.names(NEW)) == built.geometry.files + 2  # the info file, and its copy, as it has no record
    assert disk.open_now == 0


def test_too_small_error_names_the_queue_and_its_messages() -> None:
    info = JournalInfo(2, "q", "JournalData", Geometry(4, 2048), queue_id=7, incarnation=1)
    build = empty(SimulatedDisk(), info)
    fill(build, [400] * 40, [], 0)
    with pytest.raises(JournalTooSmallError, match='queue "q": its messages do not fit into 4 files of 2,048 bytes'):
        build.finish()
    build.close()


@pytest.mark.parametrize(
    ("geometry", "text"),
    [
        (Geometry.from_pages(8, 24), "8 files of 24 pages"),
        (Geometry.from_pages(4, 1), "4 files of 1 page"),
        (Geometry(3, 4096), "3 files of 4,096 bytes"),
    ],
)
def test_a_geometry_for_people(geometry: Geometry, text: str) -> None:
    assert described(geometry) == text


def test_flushes_of_version_1_end_with_a_sector_where_records_do(tmp_path: Path) -> None:
    """So no fillers come between them."""
    count, blocks, path = 25_000, 3, str(tmp_path / "q")
    info = JournalInfo(1, "q", "JournalData", Geometry.from_pages(4, 100))
    content = filled([blocks * BLOCK_SIZE - 60] * count, [], 0)
    data = bytes(blocks * BLOCK_SIZE - 60)

    def fill(build: JournalBuild) -> None:
        for rid in range(1, count + 1):
            build.enqueue(rid, data, 0)

    build_journal(tool_environment(), path, info, content, fill)
    journal, recovery = open_journal(OsDisk(), path), JournalRecovery()
    end = journal.walk(recovery)
    journal.close()
    assert len(recovery.messages) == count
    assert count * blocks * BLOCK_SIZE > 2 * FLUSH_BYTES
    assert end is not None
    assert end.place == count * blocks * BLOCK_SIZE


# ---- content of a journal that a new one is to take: the same before transactions are resolved and afterwards ----


TRANSACTION, OTHER = b"transaction", b"another"
CONTENT_RING = Geometry(4, 8192)


def recovered(builder: JournalBuilder) -> RecoveredJournal:
    builder.flush()
    return recover_directory(builder.disk(), DIRECTORY, "orders", Closing(is_clean=False))


def branch() -> JournalBuilder:
    """Two messages, one of which a branch dequeues; it enqueues two, one of which it dequeues, and misses one."""
    builder = JournalBuilder(2, CONTENT_RING)
    first = builder.enqueue(b"m" * 300).header.rid
    builder.enqueue(b"m" * 400)
    own = builder.enqueue(b"m" * 500, xid=TRANSACTION).header.rid
    builder.enqueue(b"m" * 600, xid=TRANSACTION)
    builder.dequeue(first, xid=TRANSACTION)
    builder.dequeue(own, xid=TRANSACTION)
    builder.dequeue(99_999, xid=TRANSACTION)
    return builder


@pytest.mark.parametrize("is_resolved", [False, True])
def test_a_branch_in_doubt_counts_once(*, is_resolved: bool) -> None:
    found = recovered(branch())
    if is_resolved:
        found.recovery.resolve({TRANSACTION: Outcome.IN_DOUBT})
    expected = JournalContent()
    for size in (300, 400):
        expected.message(size)
    expected.transaction(len(TRANSACTION))
    for size in (500, 600):
        expected.message(size, len(TRANSACTION))
    expected.removal(len(TRANSACTION))
    expected.removal(len(TRANSACTION))
    assert content_of(found.journal, found.recovery) == expected


def test_resolved_transaction_counts_by_its_outcome() -> None:
    found = recovered(branch())
    found.recovery.resolve({TRANSACTION: Outcome.COMMITTING})
    expected = JournalContent()
    for size in (400, 600):
        expected.message(size)
    assert content_of(found.journal, found.recovery) == expected


def test_a_transaction_that_has_nothing_left_counts_for_nothing() -> None:
    builder = JournalBuilder(2, CONTENT_RING)
    builder.dequeue(99_999, xid=OTHER)
    found = recovered(builder)
    assert content_of(found.journal, found.recovery) == JournalContent()


def test_a_decision_without_its_prepare_record_gets_one() -> None:
    builder = JournalBuilder(2, CONTENT_RING, queue_name="TplStore", base_name=TPL_BASE_NAME)
    prepare = builder.enqueue(b"\1", xid=TRANSACTION).header.rid
    builder.dequeue(prepare, xid=TRANSACTION, flags=COMMIT_DECISION)
    builder.dequeue(99_999, xid=OTHER, flags=COMMIT_DECISION)
    found = recovered(builder)
    content = content_of(found.journal, found.recovery, is_prepared_list=True)
    assert (content.messages, content.transactions) == (2, 2)
    assert content.removal_blocks == record_blocks(0, len(TRANSACTION)) + record_blocks(0, len(OTHER))
