"""Journals that are made ahead, and changes that are made together: syncs counted, and a kill at every call."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest

from qstore.formats.broker_records.topology import Binding, Exchange, Queue
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, MAX_JINF_SIZE, decode_jinf
from qstore.store.disk import WritableFile, read_whole
from qstore.store.journal.directory import COPY_SUFFIX, INFO_SUFFIX, read_info
from qstore.store.live.journal_stock import JournalStock
from qstore.store.log_lines import Level
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.faults.simulator import BrokenPromiseError
from tests.faults.store_simulation import PATH, Shop, TinyParameters, names_in, tiny_rid_blocks
from tests.support.profiles import today

JOURNALS = f"{PATH}/rhm/jrnl"
IN_STOCK = TinyParameters().geometry
SYNCS = ("sync", "sync_directory", "batch")  # the map's batch is synced, too


@pytest.fixture(autouse=True)
def tiny() -> Iterator[None]:
    with (
        tiny_rid_blocks(),
        patch("qstore.store.live.journal_stock.SINGLY", 2),
        patch("qstore.store.live.journal_stock.MAX_MADE", 3),
    ):
        yield


def look(shop: Shop) -> None:
    shop.store.look()
    for _ in range(50):
        shop.store.collect()


def stocked(seed: int = 1) -> Shop:
    """A store with one queue, named, and some journals in stock."""
    shop = Shop(SimulatedDisk(seed))
    assert shop.make("first", IN_STOCK) is None
    look(shop)
    assert len(shop.disk.names(JOURNALS)) > 1
    return shop


def together(shop: Shop, *names: str) -> list[Exception | None]:
    """Declare queues at the same time."""
    got: list[Exception | None] = []
    for name in names:

        def made(journal: object, error: Exception | None, name: str = name) -> None:
            if journal is not None:
                shop.journals[name] = journal  # type: ignore[assignment]
            got.append(error)

        shop.store.changes.create_queue(Queue(name), IN_STOCK, made)
    with patch("random.Random.random", lambda _: 0.0):  # the background takes all that waits
        shop.wait(got, len(names))
    return got


def syncs(shop: Shop, deed: Callable[[], object]) -> list[str]:
    """The syncs that something waits for."""
    calls: list[str] = []
    shop.disk.watch = lambda call: calls.append(call.name)
    try:
        deed()
    finally:
        shop.disk.watch = None
    return [name for name in calls if name in SYNCS]


def is_named(shop: Shop, name: str) -> bool:
    info = read_info(shop.disk, shop.journals[name].directory)
    assert info is not None
    return info.queue_name == name and info.queue_record != b""


def copy_of(shop: Shop, name: str) -> str:
    return f"{shop.journals[name].directory}/{DEFAULT_BASE_NAME}{INFO_SUFFIX}{COPY_SUFFIX}"


def started(disk: SimulatedDisk, *, has: set[str] = frozenset(), may: set[str] = frozenset()) -> Shop:  # type: ignore[assignment]
    """The store after a crash: sound, with nothing left behind, and its info files written."""
    shop = Shop(disk)
    reported = [line.text for line in shop.lines if line.level in (Level.CRITICAL, Level.WARNING)]
    assert reported == []
    assert has <= set(shop.found) <= has | may
    in_use = {each.directory.rsplit("/", 1)[1] for each in shop.store.journals.values()}
    assert set(disk.names(JOURNALS)) == in_use
    for part in ("orphans", "quarantine"):
        assert names_in(shop.store, part) == []
    assert all(is_named(shop, name) for name in shop.found)
    return shop


# ---- how many syncs ----


def test_a_declaration_with_a_journal_in_stock_makes_two_syncs_and_one_meanwhile() -> None:
    shop = stocked()
    assert syncs(shop, lambda: shop.make("second", IN_STOCK)) == ["batch", "sync", "sync"]
    assert len(syncs(shop, lambda: shop.make("third", Geometry(4, 2048)))) > 3  # of another size: none in stock


def test_declarations_at_the_same_time_share_two_syncs() -> None:
    shop = stocked()
    assert syncs(shop, lambda: together(shop, "second", "third")) == ["batch", "sync", "sync", "sync"]
    copies = [copy_of(shop, name) for name in ("second", "third")]
    assert all(map(shop.disk.is_file, copies))
    assert is_named(shop, "third")
    assert syncs(shop, lambda: look(shop))[:2] == ["sync_directory"] * 2
    assert not any(map(shop.disk.is_file, copies))
    assert is_named(shop, "third")


def test_a_binding_and_a_deletion_of_an_empty_new_queue_make_two_syncs_each() -> None:
    shop = stocked()
    exchanges: list[int] = []
    shop.ask(lambda done: shop.store.changes.create_exchange(
        Exchange("e", True, "direct"), lambda number, error: (exchanges.append(number or 0), done(error))[0]
    ))  # fmt: skip
    shop.make("second", IN_STOCK)
    journal = shop.journals["second"]

    def bind() -> None:
        record = Binding(journal.queue_id, "second", "key")
        shop.ask(lambda done: shop.store.changes.create_binding(exchanges[0], record, lambda _, error: done(error)))

    assert syncs(shop, bind) == ["batch", "sync"]
    assert syncs(shop, lambda: delete(shop, "second")) == ["batch", "sync", "sync"]


def test_a_queue_that_comes_and_goes_makes_and_removes_no_files() -> None:
    shop, calls = stocked(), list[str]()
    number = set()
    shop.disk.watch = lambda call: calls.append(call.name)
    for name in ("second", "third", "second"):
        assert shop.make(name, IN_STOCK) is None
        number.add(shop.journals[name].queue_id)
        delete(shop, name)
    assert not {"create", "remove", "make_directory", "remove_directory"} & set(calls)
    assert calls.count("batch") == 6
    assert shop.make("second", IN_STOCK) is None  # with the journal, and the number, of a queue that was deleted
    shop.enqueue("second", b"x")
    assert shop.flush("second") is None
    shop.disk.watch = None
    shop.disk.crash(power_loss=True)
    assert started(shop.disk, has={"first", "second"}).found["second"] == [b"x"]


def test_a_record_that_is_too_long_for_the_copy_is_in_the_info_file_at_once() -> None:
    shop = stocked()
    with patch("qstore.store.journal.write.storage.NAMED_BYTES", 100):
        assert shop.make("second", IN_STOCK) is None
    delete(shop, "second")
    assert shop.make("third", IN_STOCK) is None
    shop.disk.crash(power_loss=True)
    started(shop.disk, has={"first", "third"})


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_name_that_cannot_be_synced_beside_the_catalogue_is_written_anew(is_deleted: bool) -> None:
    shop = stocked()

    def fails(call: Call) -> None:
        if call.name == "sync" and call.path.endswith(COPY_SUFFIX):
            shop.disk.fail_at[call.number] = errno.EIO

    if not is_deleted:
        shop.disk.watch = fails
    assert shop.make("second", IN_STOCK) is None
    shop.disk.watch = fails
    directory = shop.journals["second"].directory
    if is_deleted:
        delete(shop, "second")
        look(shop)
        assert not shop.disk.is_directory(directory)
        return
    shop.disk.watch = None
    look(shop)
    assert is_named(shop, "second")
    assert not shop.disk.is_file(copy_of(shop, "second"))
    shop.disk.crash(power_loss=True)
    assert list(without_catalogue(shop.disk).found) == ["first", "second"]


def delete(shop: Shop, name: str) -> None:
    journal = shop.journals.pop(name)
    assert shop.ask(lambda done: shop.store.changes.delete_queue(journal, lambda _, error: done(error))) is None


def test_the_mark_of_a_deletion_is_synced_if_there_is_anything_that_could_come_back() -> None:
    shop = stocked()
    for name in ("second", "third"):
        assert shop.make(name, IN_STOCK) is None
    shop.enqueue("second", b"x")
    assert shop.flush("second") is None
    assert syncs(shop, lambda: delete(shop, "second"))[:3] == ["sync_directory", "batch", "sync"]
    look(shop)
    assert is_named(shop, "third")
    assert syncs(shop, lambda: delete(shop, "third"))[:3] == ["sync_directory", "batch", "sync"]


# ---- together, and yet each for itself ----


def test_a_change_that_is_refused_does_not_hinder_those_made_with_it() -> None:
    shop = stocked()
    errors = together(shop, "second", "first", "second", "third")
    assert [error is None for error in errors] == [True, False, False, True]
    assert "already exists" in str(errors[1])
    shop.store.close()
    shop.disk.crash(power_loss=True)
    started(shop.disk, has={"first", "second", "third"})


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_if_the_batch_fails_none_of_its_changes_is_made_and_the_names_are_free(code: int) -> None:
    shop = stocked()

    def fails(call: Call) -> None:
        if call.name == "batch":
            shop.disk.fail_at[call.number] = code

    shop.disk.watch = fails
    assert all("cannot be created" in str(error) for error in together(shop, "second", "third"))
    shop.disk.watch = None
    assert sorted(shop.journals) == ["first"]
    again = str(shop.make("second", IN_STOCK))
    assert "RocksDB cannot write" in again  # which only a restart ends; the name is not taken
    shop.disk.crash(power_loss=True)
    started(shop.disk, has={"first"}, may={"second", "third"})


# ---- the stock ----


def test_a_clean_close_leaves_no_stock_and_no_journal_without_a_name() -> None:
    shop = stocked()
    together(shop, "second", "third")
    assert shop.store.close()
    assert len(shop.disk.names(JOURNALS)) == 3
    assert is_named(shop, "third")
    shop.disk.crash(power_loss=True)
    started(shop.disk, has={"first", "second", "third"})


def test_the_stock_is_removed_when_no_queue_is_declared_for_a_while() -> None:
    shop = stocked()
    with patch("qstore.store.live.journal_stock._QUIET_LOOKS", 3):
        for _ in range(2):
            look(shop)
        assert len(shop.disk.names(JOURNALS)) > 1
        look(shop)
    assert shop.disk.names(JOURNALS) == ["1"]


def test_the_stock_waits_while_messages_are_written_but_not_for_long() -> None:
    shop = stocked()
    before = shop.disk.names(JOURNALS)
    with patch("qstore.store.live.journal_stock.BUSY", 1), patch("qstore.store.live.journal_stock._PATIENT_LOOKS", 3):
        for number in range(6):
            shop.enqueue("first", b"x")
            assert shop.flush("first") is None
            if number < len(before) - 1:
                assert shop.make(f"queue-{number}", IN_STOCK) is None
            look(shop)
            assert shop.disk.is_file(copy_of(shop, "queue-0")) is (number < 2), number
            assert (set(shop.disk.names(JOURNALS)) == set(before)) is (number < 5), number


def test_the_stock_does_not_wait_if_many_info_files_lack_names() -> None:
    shop = stocked()
    with patch("qstore.store.live.journal_stock.BUSY", 0), patch("qstore.store.live.journal_stock._MAX_NAMED", 2):
        assert shop.make("second", IN_STOCK) is None
        look(shop)
        assert shop.disk.is_file(copy_of(shop, "second"))
        assert shop.make("third", IN_STOCK) is None
        look(shop)
    assert not shop.disk.is_file(copy_of(shop, "second"))


def test_a_disk_that_is_short_of_room_has_no_stock_but_takes_queues() -> None:
    shop = Shop(SimulatedDisk(1, capacity=1 << 20))
    shop.disk.tree.capacity = shop.disk.tree.used + 4 * (IN_STOCK.files * IN_STOCK.file_size)
    for number in range(2):
        assert shop.make(f"queue-{number}", IN_STOCK) is None
        look(shop)
    assert len(shop.disk.names(JOURNALS)) <= 3
    assert shop.make("third", IN_STOCK) is None


def test_large_journals_are_not_kept_in_stock() -> None:
    size = IN_STOCK.files * IN_STOCK.file_size
    for bound, most in ((size - 1, 0), (2 * size, 2)):
        shop = Shop(SimulatedDisk(1))
        with patch("qstore.store.live.journal_stock.MAX_BYTES", bound):
            for number in range(6):
                assert shop.make(f"queue-{number}", IN_STOCK) is None
                if number == 3:
                    look(shop)
                assert len(shop.disk.names(JOURNALS)) <= len(shop.journals) + most
            look(shop)  # writes info files
            look(shop)
            assert len(shop.disk.names(JOURNALS)) == len(shop.journals) + most


def test_an_info_file_that_cannot_be_written_is_reported_once_and_written_later() -> None:
    shop = stocked()
    together(shop, "second")

    def fails(call: Call) -> None:
        if call.name == "rename" and call.path.endswith(COPY_SUFFIX):
            shop.disk.fail_at[call.number] = errno.ENOSPC

    shop.disk.watch = fails
    for _ in range(3):
        look(shop)
    (line,) = shop.critical()
    assert "info files of new journals cannot be written" in line
    assert shop.disk.is_file(copy_of(shop, "second"))
    shop.disk.watch = None
    look(shop)
    assert not shop.disk.is_file(copy_of(shop, "second"))
    assert is_named(shop, "second")


# ---- kills ----


def history(shop: Shop, promised: set[str], asked: set[str]) -> None:
    """Queues come and go, in ones and twos, and the stock is looked after."""
    for number in range(3):
        names = {f"a{number}", f"b{number}"}
        asked |= names
        assert together(shop, *sorted(names)) == [None, None]
        promised |= names
        if number == 1:
            shop.enqueue("b1", b"x")
            assert shop.flush("b1") is None
        if number != 2:
            look(shop)
        promised.discard(f"a{number}")
        delete(shop, f"a{number}")
        asked.discard(f"a{number}")
    look(shop)


def broken(seed: int, power_loss: bool, seen: Counter[str]) -> None:
    """The history, with a look at what a kill at each of its calls leaves."""
    shop, promised, asked = stocked(seed), {"first"}, {"first"}

    def visit(call: Call) -> None:
        disk = call.killed(call.number, power_loss=power_loss)
        infos = {name: read_info(disk, f"{JOURNALS}/{name}") for name in disk.names(JOURNALS)}
        again = started(disk, has=set(promised), may=set(asked) - promised)
        in_use = {each.directory.rsplit("/", 1)[1] for each in again.store.journals.values()}
        seen["unmade"] += not infos.keys() <= in_use
        seen["unnamed"] += any(info is not None and info.is_unnamed for name, info in infos.items() if name in in_use)
        assert all(data == ([b"x"] if name == "b1" and data else []) for name, data in again.found.items())
        assert again.make("another", IN_STOCK) is None

    shop.disk.watch = visit
    history(shop, promised, asked)
    assert shop.store.close()


@pytest.mark.parametrize("power_loss", today([False, True], 1))
def test_a_kill_at_every_call_leaves_no_half_declared_queue_and_no_deleted_one(power_loss: bool) -> None:
    seen: Counter[str] = Counter()
    broken(7, power_loss, seen)
    assert seen["unnamed"] > 5, seen
    assert seen["unmade"] > 10, seen


def _in_place(disk: SimulatedDisk, journals: list[tuple[str, str]]) -> None:
    """Info files are written in place."""
    for directory, _ in journals:
        path = f"{directory}/{DEFAULT_BASE_NAME}{INFO_SUFFIX}"
        file = disk.open_writable(path)
        file.write(0, b"{" + bytes(40))
        file.close()


def _unsynced(disk: SimulatedDisk, journals: list[tuple[str, object]]) -> None:
    """Journals in stock are not synced."""
    from qstore.store.journal.write.storage import create_journals

    with patch.object(SimulatedDisk, "sync_all", lambda *_: None):
        create_journals(disk, journals)  # type: ignore[arg-type]


def break_all(seeds: range) -> None:
    for seed in seeds:
        broken(seed, True, Counter())


@pytest.mark.parametrize(("name", "bug"), [("put_names", _in_place), ("create_journals", _unsynced)])
def test_a_stock_that_is_kept_wrongly_is_detected(name: str, bug: Callable[..., None]) -> None:
    with patch(f"qstore.store.live.journal_stock.{name}", bug), pytest.raises((AssertionError, BrokenPromiseError)):
        break_all(range(10))


def delete_with_messages(seed: int) -> None:
    """A queue with messages is deleted, and the process killed at each call."""
    shop, killed = stocked(seed), list[SimulatedDisk]()
    assert shop.make("second", IN_STOCK) is None
    shop.enqueue("second", b"x")
    assert shop.flush("second") is None
    shop.disk.watch = lambda call: killed.append(call.killed(call.number, power_loss=False))
    delete(shop, "second")
    for disk in killed:
        started(disk, has={"first"}, may={"second"})


def test_a_deletion_of_a_queue_with_messages_leaves_no_trace_of_it() -> None:
    delete_with_messages(1)


def test_a_deletion_without_a_mark_is_detected() -> None:
    with (
        patch.object(JournalStock, "is_unnamed", lambda *_: True),
        patch("qstore.store.live.queue_journal.QueueJournal.is_blank", True),
        pytest.raises(AssertionError),
    ):
        delete_with_messages(1)


# ---- without the catalogue ----


def without_catalogue(disk: SimulatedDisk) -> Shop:
    """The store after a loss of the catalogue and its second copy."""
    for name in ("catalogue/CURRENT", "topology"):
        disk.remove(f"{PATH}/rhm/{name}")
    disk.remove_directory(f"{PATH}/rhm/catalogue")
    disk.sync_directory(f"{PATH}/rhm")
    return Shop(disk)


def test_without_the_catalogue_new_queues_have_their_names_and_messages() -> None:
    shop = stocked()
    together(shop, "second", "third")
    shop.enqueue("second", b"kept")
    assert shop.flush("second") is None
    shop.disk.crash(power_loss=True)
    assert without_catalogue(shop.disk).found == {"first": [], "second": [b"kept"], "third": []}


def lost_at_every_call(seed: int, power_loss: bool) -> Counter[str]:
    """The history, with a loss of the catalogue and its copy at each of its calls."""
    shop, promised, asked = stocked(seed), {"first"}, {"first"}
    seen: Counter[str] = Counter()

    def visit(call: Call) -> None:
        disk = call.killed(call.number, power_loss=power_loss)
        if not disk.is_file(f"{PATH}/rhm/topology") or not disk.is_file(f"{PATH}/rhm/catalogue/CURRENT"):
            return
        seen["apart"] += any(
            not info.is_unnamed and decode_jinf(read_whole(disk, path, MAX_JINF_SIZE)).is_unnamed
            for path in (f"{JOURNALS}/{each}/{DEFAULT_BASE_NAME}{INFO_SUFFIX}" for each in disk.names(JOURNALS))
            if (info := read_info(disk, path.rsplit("/", 1)[0])) is not None
        )
        again = without_catalogue(disk)
        assert promised <= set(again.found) <= asked, (call, again.found, promised, asked)

    shop.disk.watch = visit
    history(shop, promised, asked)
    assert shop.store.close()
    return seen


@pytest.mark.parametrize("power_loss", today([False, True], 1))
def test_without_the_catalogue_a_kill_at_every_call_forgets_no_queue_and_returns_no_deleted_one(
    power_loss: bool,
) -> None:
    seen = lost_at_every_call(7, power_loss)
    assert seen["apart"] > 10, seen


def test_a_name_that_is_not_synced_beside_the_catalogue_is_detected() -> None:
    def unsynced(_: SimulatedDisk, __: object, work: Callable[[], None]) -> None:
        work()

    def all_lost() -> None:
        for seed in range(10):
            lost_at_every_call(seed, power_loss=True)

    with patch.object(SimulatedDisk, "sync_during", unsynced), pytest.raises(AssertionError):
        all_lost()


def test_a_deleted_queue_whose_name_stays_in_the_copy_is_detected() -> None:
    def stays(stock: JournalStock, directory: str) -> WritableFile:
        return stock._disk.open_writable(f"{directory}/{DEFAULT_BASE_NAME}{INFO_SUFFIX}{COPY_SUFFIX}")

    with patch.object(JournalStock, "reclaim", stays), pytest.raises(AssertionError):
        lost_at_every_call(7, power_loss=False)
