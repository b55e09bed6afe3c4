"""The catalogue on a map in memory, and once on RocksDB: batches, reading past damage, refusing to write on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from rocksdict import Options, Rdict

from qstore.formats.catalogue import (
    NUMBERED_KINDS,
    RID_BLOCK,
    BindingEntry,
    Census,
    ExchangeEntry,
    GeneralEntry,
    Kind,
    Meta,
    NextId,
    QueueEntry,
    RidReservation,
    encode,
)
from qstore.store.catalogue.catalogue import Catalogue, CatalogueDamage
from qstore.store.key_value import CatalogueError, KeyValue, MapDamage, RocksKeyValue, open_copy
from tests.support.memory_disk import MemoryKeyValue
from tests.support.profiles import examples
from tests.support.rocksdb_manifest import record_ends

STORE_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")

QUEUES = [QueueEntry(1, 1, 0, b"first"), QueueEntry(2, 3, 1, b"second")]
EXCHANGES = [ExchangeEntry(1, b"direct"), ExchangeEntry(2, b"topic")]
BINDINGS = [BindingEntry(1, 1, 2, b"b"), BindingEntry(1, 2, 1, b"a"), BindingEntry(2, 2, 3, b"c")]
GENERAL = [GeneralEntry(1, b"link"), GeneralEntry(2, b"bridge")]


def fill(key_value: KeyValue) -> Catalogue:
    catalogue = Catalogue.create(key_value, STORE_ID)
    for queue in QUEUES:
        catalogue.create_queue(queue)
    for exchange in EXCHANGES:
        catalogue.create_exchange(exchange)
    for binding in BINDINGS:
        catalogue.create_binding(binding)
    for general in GENERAL:
        catalogue.create_general(general)
    return catalogue


@pytest.fixture
def key_value() -> MemoryKeyValue:
    return MemoryKeyValue()


@pytest.fixture
def catalogue(key_value: MemoryKeyValue) -> Catalogue:
    return fill(key_value)


def check_contents(catalogue: Catalogue) -> None:
    assert catalogue.meta() == Meta(2, STORE_ID)
    assert list(catalogue.queues()) == QUEUES
    assert list(catalogue.exchanges()) == EXCHANGES
    assert list(catalogue.bindings()) == BINDINGS
    assert list(catalogue.general()) == GENERAL
    assert catalogue.check() == catalogue.damage == []


class TestBatches:
    def test_created_entries_are_read_back(self, catalogue: Catalogue, key_value: MemoryKeyValue) -> None:
        check_contents(catalogue)
        check_contents(Catalogue(key_value))

    def test_on_rocksdb_and_from_a_copy(self, tmp_path: Path) -> None:
        own = RocksKeyValue.open(tmp_path / "catalogue", create=True)
        check_contents(fill(own))
        for times in range(2):
            copy = open_copy(tmp_path / "catalogue")
            check_contents(Catalogue(copy))
            copy.close()
            if not times:
                own.close()

    def test_every_change_is_one_batch(self, catalogue: Catalogue, key_value: MemoryKeyValue) -> None:
        assert key_value.batches == 1 + len(QUEUES + EXCHANGES + BINDINGS + GENERAL)
        before = key_value.batches
        catalogue.delete_queue(2)
        catalogue.delete_exchange(1)
        catalogue.delete_general(2)
        catalogue.reserve_rids()
        assert key_value.batches == before + 4
        assert key_value.contents[b"c"] == encode(Census(key_value.batches, 1, 1, 0, 1))[1]

    def test_changes_that_are_gathered_are_one_batch_and_see_each_other(
        self, catalogue: Catalogue, key_value: MemoryKeyValue
    ) -> None:
        before = key_value.batches
        catalogue.begin()
        number = catalogue.take_id(Kind.QUEUE)
        catalogue.create_queue(QueueEntry(number, number, 1, b"new"))
        catalogue.create_binding(BindingEntry(1, number, catalogue.take_id(Kind.BINDING), b"new"))
        with pytest.raises(CatalogueError, match="already exists"):
            catalogue.create_queue(QueueEntry(number, number, 1, b"again"))
        catalogue.delete_queue(number)
        catalogue.delete_queue(2)
        assert key_value.batches == before
        catalogue.commit()
        assert key_value.batches == before + 1
        assert key_value.contents[b"c"] == encode(Census(before + 1, 1, 2, 1, 2))[1]
        assert list(catalogue.queues()) == QUEUES[:1]
        assert catalogue.take_id(Kind.QUEUE) == number + 1
        assert catalogue.check() == []

    def test_an_empty_batch_is_not_written(self, catalogue: Catalogue, key_value: MemoryKeyValue) -> None:
        before = key_value.batches
        catalogue.begin()
        catalogue.commit()
        assert key_value.batches == before

    def test_a_queue_takes_its_bindings_along(self, catalogue: Catalogue) -> None:
        catalogue.delete_queue(2)
        assert list(catalogue.queues()) == QUEUES[:1]
        assert list(catalogue.bindings()) == BINDINGS[:1]
        assert catalogue.check() == []

    def test_an_exchange_takes_its_bindings_along(self, catalogue: Catalogue) -> None:
        catalogue.delete_exchange(1)
        assert list(catalogue.exchanges()) == EXCHANGES[1:]
        assert list(catalogue.bindings()) == BINDINGS[2:]
        assert catalogue.check() == []

    def test_an_exchange_takes_objects_along_that_refer_to_it(
        self, catalogue: Catalogue, key_value: MemoryKeyValue
    ) -> None:
        before = key_value.batches
        catalogue.delete_exchange(1, (GENERAL[0].general_id, 99))
        assert key_value.batches == before + 1
        assert list(catalogue.general()) == GENERAL[1:]
        assert catalogue.check() == []

    def test_one_binding_goes_alone(self, catalogue: Catalogue) -> None:
        catalogue.delete_binding(BINDINGS[1])
        assert list(catalogue.bindings()) == [BINDINGS[0], BINDINGS[2]]
        assert catalogue.check() == []

    def test_failed_changes_leave_the_catalogue_unchanged(
        self, catalogue: Catalogue, key_value: MemoryKeyValue
    ) -> None:
        before = dict(key_value.contents)
        attempts: dict[str, Callable[[], object]] = {
            "queue 2 already exists": lambda: catalogue.create_queue(QueueEntry(2, 9, 0, b"")),
            "exchange 1 already exists": lambda: catalogue.create_exchange(EXCHANGES[0]),
            "binding 1.1.2 already exists": lambda: catalogue.create_binding(BINDINGS[0]),
            "queue 9 does not exist": lambda: catalogue.create_binding(BindingEntry(1, 9, 4, b"")),
            "exchange 9 does not exist": lambda: catalogue.create_binding(BindingEntry(9, 1, 4, b"")),
            "cannot be deleted: queue 3 does not exist": lambda: catalogue.delete_queue(3),
            "cannot be deleted: exchange 3 does not exist": lambda: catalogue.delete_exchange(3),
            "binding 2.1.9 does not exist": lambda: catalogue.delete_binding(BindingEntry(2, 1, 9, b"")),
            "general [a-z ]*3 does not exist": lambda: catalogue.delete_general(3),
            "the database is not empty": lambda: Catalogue.create(key_value, STORE_ID),
        }
        for what, attempt in attempts.items():
            with pytest.raises(CatalogueError, match=what):
                attempt()
        assert key_value.contents == before


class TestNumbers:
    def test_ids_go_on_where_they_were_and_never_come_again(self, key_value: MemoryKeyValue) -> None:
        catalogue = Catalogue.create(key_value, STORE_ID)
        assert [catalogue.take_id(Kind.QUEUE) for _ in range(3)] == [1, 2, 3]
        assert catalogue.take_id(Kind.EXCHANGE) == 1
        catalogue.create_queue(QueueEntry(2, 3, 0, b""))
        catalogue.delete_queue(2)
        assert Catalogue(key_value).take_id(Kind.QUEUE) == 4
        assert catalogue.take_id(Kind.QUEUE) == 4

    def test_an_older_id_does_not_take_the_numbering_back(self, key_value: MemoryKeyValue) -> None:
        catalogue = Catalogue.create(key_value, STORE_ID)
        low, high = catalogue.take_id(Kind.GENERAL), catalogue.take_id(Kind.GENERAL)
        catalogue.create_general(GeneralEntry(high, b""))
        catalogue.create_general(GeneralEntry(low, b""))
        assert Catalogue(key_value).take_id(Kind.GENERAL) == 3

    def test_record_ids_are_reserved_in_blocks_for_good(self, key_value: MemoryKeyValue) -> None:
        catalogue = Catalogue.create(key_value, STORE_ID)
        assert catalogue.rid_high_water() == 0
        assert catalogue.reserve_rids() == range(RID_BLOCK)
        assert Catalogue(key_value).reserve_rids() == range(RID_BLOCK, 2 * RID_BLOCK)
        assert catalogue.rid_high_water() == 2 * RID_BLOCK

    @pytest.mark.parametrize(
        ("entry", "attempt"),
        [
            (RidReservation(2**64 - RID_BLOCK), lambda catalogue: catalogue.reserve_rids()),
            (NextId(Kind.GENERAL, 1), lambda catalogue: catalogue.create_general(GeneralEntry(2**64 - 1, b""))),
            (Census(2**64 - 1, 0, 0, 0, 0), lambda catalogue: catalogue.create_general(GeneralEntry(3, b""))),
            (Census(1, 0, 0, 0, 0), lambda catalogue: catalogue.delete_general(1)),
        ],
    )
    def test_numbers_without_room_are_refused(
        self, catalogue: Catalogue, key_value: MemoryKeyValue, entry: Census, attempt: Callable[[Catalogue], object]
    ) -> None:
        key_value.write(dict([encode(entry)]))
        before = dict(key_value.contents)
        with pytest.raises(CatalogueError, match="accepts no change"):
            attempt(catalogue)
        assert key_value.contents == before


class TestDamage:
    def test_one_damaged_value_of_each_kind_and_the_rest_is_read(self, key_value: MemoryKeyValue) -> None:
        fill(key_value)
        bad = [encode(entry)[0] for entry in (QUEUES[0], EXCHANGES[0], BINDINGS[1], GENERAL[1])]
        for key in bad:
            key_value.contents[key] = key_value.contents[key][:-1] + b"!"
        catalogue = Catalogue(key_value)
        assert list(catalogue.queues()) == QUEUES[1:]
        assert list(catalogue.exchanges()) == EXCHANGES[1:]
        assert list(catalogue.bindings()) == [BINDINGS[0], BINDINGS[2]]
        assert list(catalogue.general()) == GENERAL[:1]
        assert [damage.key for damage in catalogue.damage] == [key.hex() for key in bad]
        assert all("checksum" in damage.what for damage in catalogue.damage)
        assert catalogue.check() == catalogue.damage
        assert len(catalogue.damage) == 4

    def test_check_lists_each_inconsistency(self, key_value: MemoryKeyValue) -> None:
        fill(key_value)
        dangling = encode(BindingEntry(8, 9, 1, b""))
        twin = encode(QueueEntry(7, 3, 0, b""))
        key_value.contents |= dict([dangling, twin, (b"?x", b""), (b"", b"")])
        del key_value.contents[b"m"]
        del key_value.contents[encode(GENERAL[0])[0]]
        assert Catalogue(key_value).check() == [
            CatalogueDamage("", "no readable meta entry: this is not a catalogue, or a damaged one"),
            CatalogueDamage("", "catalogue: an empty key (at offset 0)"),
            CatalogueDamage("3f78", "catalogue: unknown key kind 0x3f (at offset 0)"),
            CatalogueDamage("", "the census counts 2 entries of kind queue, but there are 3"),
            CatalogueDamage("", "the census counts 3 entries of kind binding, but there are 4"),
            CatalogueDamage("", "the census counts 2 entries of kind general, but there are 1"),
            CatalogueDamage(twin[0].hex(), "queue 7 has journal 3, as has queue 2"),
            CatalogueDamage(dangling[0].hex(), "a binding names queue 9, which does not exist"),
            CatalogueDamage(dangling[0].hex(), "a binding names exchange 8, which does not exist"),
        ]

    @pytest.mark.parametrize("entry", [*QUEUES, *EXCHANGES, *BINDINGS, *GENERAL])
    def test_any_entry_that_gets_lost_is_missed(self, key_value: MemoryKeyValue, entry: QueueEntry) -> None:
        fill(key_value)
        del key_value.contents[encode(entry)[0]]
        assert any("the census counts" in damage.what for damage in Catalogue(key_value).check())

    def test_a_manifest_cut_between_records_is_detected(self, tmp_path: Path) -> None:
        database = Rdict(str(tmp_path / "catalogue"), Options(raw_mode=True))
        owner = RocksKeyValue(database, tmp_path / "catalogue")
        catalogue = fill(owner)
        database.flush()
        catalogue.create_general(GeneralEntry(3, b""))
        killed = Path(shutil.copytree(tmp_path / "catalogue", tmp_path / "killed"))
        owner.close()
        (manifest,) = killed.glob("MANIFEST-*")
        whole = manifest.read_bytes()
        by_census = 0
        for length in record_ends(whole):
            manifest.write_bytes(whole[:length])
            try:
                copy = open_copy(killed)
            except CatalogueError:
                continue
            catalogue = Catalogue(copy)
            found = catalogue.check()
            # RocksDB sees nothing wrong where last records are missing, and brings back the log without the tables.
            by_census += not copy.damage and any("census" in damage.what for damage in found)
            assert found != [] or len(list(catalogue.general())) == 3
            copy.close()
        assert by_census

    def test_an_empty_map_is_not_a_catalogue(self, key_value: MemoryKeyValue) -> None:
        catalogue = Catalogue(key_value)
        assert catalogue.meta() is None
        assert list(catalogue.queues()) == []
        assert [damage.what for damage in catalogue.check()] == [
            "no readable meta entry: this is not a catalogue, or a damaged one",
            "no readable census: entries may be missing",
        ]
        with pytest.raises(CatalogueError, match="its census is missing"):
            catalogue.create_general(GENERAL[0])

    def test_damage_met_on_opening_the_map_is_reported(self, key_value: MemoryKeyValue) -> None:
        key_value.damage = (MapDamage("write-ahead log: damaged", "log"),)
        assert fill(key_value).check() == [CatalogueDamage("", "write-ahead log: damaged", "log")]

    @pytest.mark.parametrize("kind", NUMBERED_KINDS)
    def test_nothing_is_created_on_damaged_numbers(self, key_value: MemoryKeyValue, kind: Kind) -> None:
        catalogue = fill(key_value)
        key_value.contents[b"i" + kind.prefix] = b"damaged"
        before = dict(key_value.contents)
        attempts = {
            Kind.QUEUE: lambda: catalogue.create_queue(QueueEntry(5, 5, 0, b"")),
            Kind.EXCHANGE: lambda: catalogue.create_exchange(ExchangeEntry(5, b"")),
            Kind.BINDING: lambda: catalogue.create_binding(BindingEntry(1, 1, 5, b"")),
            Kind.GENERAL: lambda: catalogue.create_general(GeneralEntry(5, b"")),
        }
        for attempt in (attempts[kind], lambda: catalogue.take_id(kind)):
            with pytest.raises(CatalogueError, match=f"entry 69{kind:02x} is damaged"):
                attempt()
        assert key_value.contents == before

    def test_no_record_ids_from_a_damaged_reservation(self, catalogue: Catalogue, key_value: MemoryKeyValue) -> None:
        catalogue.reserve_rids()
        key_value.contents[b"r"] = key_value.contents[b"r"][:-1]
        with pytest.raises(CatalogueError, match="entry 72 is damaged"):
            catalogue.reserve_rids()

    @given(st.dictionaries(st.binary(max_size=30), st.binary(max_size=40), max_size=20))
    def test_any_map_can_be_read(self, contents: dict[bytes, bytes]) -> None:
        key_value = MemoryKeyValue()
        key_value.contents = {bytes((b"mcriqxbg"[len(key) % 8],)) + key: contents[key] for key in contents}
        assert Catalogue(key_value).check() != []


class CatalogueMachine(RuleBasedStateMachine):
    """Random changes against plain dicts, singly and gathered; what is read back, from the map alone, is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.key_value = MemoryKeyValue()
        self.catalogue = Catalogue.create(self.key_value, STORE_ID)
        self.queues: dict[int, QueueEntry] = {}
        self.exchanges: dict[int, ExchangeEntry] = {}
        self.bindings: dict[int, BindingEntry] = {}
        self.seen: set[tuple[Kind, int]] = set()
        self.before: tuple[dict[int, QueueEntry], dict[int, ExchangeEntry], dict[int, BindingEntry]] | None = None
        self.batch = 1

    @precondition(lambda self: self.before is None)
    @rule()
    def begin(self) -> None:
        self.before = self.queues.copy(), self.exchanges.copy(), self.bindings.copy()
        self.batch = self.catalogue.batch()
        self.catalogue.begin()

    @precondition(lambda self: self.before is not None)
    @rule(fails=st.booleans())
    def end(self, fails: bool) -> None:
        assert self.before is not None
        if fails:
            self.catalogue.abandon()
            self.queues, self.exchanges, self.bindings = self.before
        else:
            self.catalogue.commit()
        assert self.catalogue.batch() - self.batch in (0, 1)
        assert self.catalogue.batch() == self.key_value.batches
        self.before = None

    def number(self, kind: Kind) -> int:
        number = self.catalogue.take_id(kind)
        assert (kind, number) not in self.seen
        self.seen.add((kind, number))
        return number

    @rule(record=st.binary(max_size=5))
    def create_queue(self, record: bytes) -> None:
        number = self.number(Kind.QUEUE)
        self.queues[number] = QueueEntry(number, number, 0, record)
        self.catalogue.create_queue(self.queues[number])

    @rule(record=st.binary(max_size=5))
    def create_exchange(self, record: bytes) -> None:
        number = self.number(Kind.EXCHANGE)
        self.exchanges[number] = ExchangeEntry(number, record)
        self.catalogue.create_exchange(self.exchanges[number])

    @precondition(lambda self: self.queues and self.exchanges)
    @rule(data=st.data(), record=st.binary(max_size=5))
    def create_binding(self, data: st.DataObject, record: bytes) -> None:
        exchange = data.draw(st.sampled_from(sorted(self.exchanges)))
        queue = data.draw(st.sampled_from(sorted(self.queues)))
        number = self.number(Kind.BINDING)
        self.bindings[number] = BindingEntry(exchange, queue, number, record)
        self.catalogue.create_binding(self.bindings[number])

    @precondition(lambda self: self.queues)
    @rule(data=st.data())
    def delete_queue(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.queues)))
        del self.queues[number]
        self.bindings = {at: binding for at, binding in self.bindings.items() if binding.queue_id != number}
        self.catalogue.delete_queue(number)

    @precondition(lambda self: self.exchanges)
    @rule(data=st.data())
    def delete_exchange(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.exchanges)))
        del self.exchanges[number]
        self.bindings = {at: binding for at, binding in self.bindings.items() if binding.exchange_id != number}
        self.catalogue.delete_exchange(number)

    @precondition(lambda self: self.bindings)
    @rule(data=st.data())
    def delete_binding(self, data: st.DataObject) -> None:
        self.catalogue.delete_binding(self.bindings.pop(data.draw(st.sampled_from(sorted(self.bindings)))))

    @precondition(lambda self: self.before is None)
    @rule()
    def restart(self) -> None:
        self.catalogue = Catalogue(self.key_value)
        # A number that was taken and never used may come up again.
        self.seen = {(kind, number) for kind, number in self.seen if self.used(kind, number)}

    def used(self, kind: Kind, number: int) -> bool:
        return number < Catalogue(self.key_value).take_id(kind)

    @precondition(lambda self: self.before is None)
    @invariant()
    def reading_returns_what_was_written(self) -> None:
        catalogue = Catalogue(self.key_value)
        assert list(catalogue.queues()) == [self.queues[number] for number in sorted(self.queues)]
        assert list(catalogue.exchanges()) == [self.exchanges[number] for number in sorted(self.exchanges)]
        assert list(catalogue.bindings()) == sorted(self.bindings.values())
        assert catalogue.check() == []


TestRandomChanges = CatalogueMachine.TestCase
TestRandomChanges.settings = examples(40, stateful_step_count=20)
