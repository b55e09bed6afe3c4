"""Whole version-2 stores, laid out for tests: catalogue, journals, prepared list and STORE file held together."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

from qstore.formats.broker_records.topology import (
    Binding,
    Exchange,
    Queue,
    encode_binding,
    encode_exchange,
    encode_queue,
)
from qstore.formats.catalogue import BindingEntry, ExchangeEntry, QueueEntry
from qstore.formats.rhm import store_file
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import TPL_BASE_NAME, decode_jinf, encode_jinf
from qstore.formats.topology_copy import encode_snapshot
from qstore.formats.values import typed_map
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.topology_copy import batch_of
from qstore.store.key_value import RocksKeyValue
from tests.support.journal_builder import JournalBuilder

STORE_ID: Final = UUID("6d3c2f10-5a0e-4a52-9a7e-0b8f6f2f7a11")
GEOMETRY: Final = Geometry(4, 4096)
ORDERS: Final = Queue("orders", typed_map({"qpid.max_count": 10}), "dead")
BILLS: Final = Queue("bills")


class StoreBuilder:
    """A version-2 store with the queues `orders` (journal 1) and `bills` (journal 2).

    Args:
        path: the store directory, which is made by `write`.
        orders_geometry: number and size of the files of `orders`.

    Attributes:
        rhm: the directory that holds the parts.
        orders, bills, prepared: the journals; each has record ids of its own.
    """

    def __init__(self, path: Path, *, orders_geometry: Geometry = GEOMETRY) -> None:
        self.path = path
        self.rhm = path / "rhm"
        self.orders = JournalBuilder(2, orders_geometry, queue_id=1, queue_name="orders")
        self.bills = JournalBuilder(2, GEOMETRY, queue_id=2, queue_name="bills", seed=1)
        self.prepared = JournalBuilder(2, GEOMETRY, queue_id=0, queue_name="TplStore", base_name=TPL_BASE_NAME, seed=2)
        self.bills.next_rid, self.prepared.next_rid = 1000, 2000

    def write(self, *, clean: bool = True) -> Path:
        """Everything onto disk; the first block of record ids is reserved, and what was closed cleanly is sealed."""
        (self.rhm / "jrnl").mkdir(parents=True)
        for builder, directory in ((self.orders, "jrnl/1"), (self.bills, "jrnl/2"), (self.prepared, "tpl")):
            builder.flush()
            if clean and builder.records:
                builder.seal()
            builder.write_to(self.rhm / directory)
        self._write_info("jrnl/1", ORDERS)
        self._write_info("jrnl/2", BILLS)
        key_value = RocksKeyValue.open(self.rhm / "catalogue", create=True)
        catalogue = Catalogue.create(key_value, STORE_ID)
        catalogue.create_exchange(ExchangeEntry(1, encode_exchange(Exchange("dead", True, "fanout"))))
        catalogue.create_queue(QueueEntry(1, 1, 1, encode_queue(ORDERS)))
        catalogue.create_queue(QueueEntry(2, 2, 1, encode_queue(BILLS)))
        catalogue.create_binding(BindingEntry(1, 1, 1, encode_binding(Binding(1, "orders", "key"))))
        catalogue.reserve_rids()
        entries = dict(key_value.items(b""))
        (self.rhm / "topology").write_bytes(encode_snapshot(STORE_ID, batch_of(entries), entries) + bytes(4096))
        key_value.close()
        content = store_file.StoreFile(STORE_ID, clean, datetime(2026, 11, 20, tzinfo=UTC), "0.1.0")
        (self.rhm / "STORE").write_bytes(store_file.encode(content))
        return self.path

    def _write_info(self, directory: str, queue: Queue) -> None:
        path = self.rhm / directory / "JournalData.jinf"
        info = decode_jinf(path.read_bytes())
        fields = {name: getattr(info, name) for name in info.__dataclass_fields__}
        path.write_bytes(encode_jinf(type(info)(**{**fields, "queue_record": encode_queue(queue)})))
