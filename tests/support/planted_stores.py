"""The undamaged stores, one of each format, to which `known_history` is told."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Final

from qstore.formats.qls.file_header import FILE_HEADER_SIZE as LINEAR_HEADER_SIZE
from qstore.formats.rhm.geometry import FILE_HEADER_SIZE, Geometry
from qstore.formats.rhm.jinf import TPL_BASE_NAME
from tests.support.journal_builder import JournalBuilder
from tests.support.known_history import BILLS, UNPAID, History, tell
from tests.support.linear_builder import TPL_QUEUE, LinearBuilder, add_pooled_files
from tests.support.planted_damage import Original
from tests.support.store_builder import StoreBuilder

ORDERS_GEOMETRY: Final = Geometry(4, 8192)
BILLS_GEOMETRY: Final = Geometry(4, 4096)
QUEUES: Final = {"orders": "c.q1", "bills": "c.q2"}  # as in the fixture `legacy-c-localtx`
VERSION_1_DIRECTORIES: Final = {"orders": "rhm/jrnl/0004/c.q1", "bills": "rhm/jrnl/0005/c.q2", "prepared": "rhm/tpl"}
VERSION_2_DIRECTORIES: Final = {"orders": "rhm/jrnl/1", "bills": "rhm/jrnl/2", "prepared": "rhm/tpl"}


def version_1_store(path: Path, bills: int = BILLS) -> Original:
    """A legacystore without Berkeley DB files: the journals tell the queues. So many bills have come."""
    builders = _version_1_builders()
    histories = _told(builders, bills)
    for name, builder in builders.items():
        builder.write_to(path / VERSION_1_DIRECTORIES[name])
    return _ring_store(path, histories, builders, VERSION_1_DIRECTORIES)


def _version_1_builders() -> dict[str, JournalBuilder]:
    return {
        "orders": JournalBuilder(1, ORDERS_GEOMETRY, queue_name=QUEUES["orders"]),
        "bills": JournalBuilder(1, BILLS_GEOMETRY, queue_name=QUEUES["bills"]),
        "prepared": JournalBuilder(1, BILLS_GEOMETRY, queue_name="TplStore", base_name=TPL_BASE_NAME),
    }


def earlier_file(version: int, number: int, bills: int) -> bytes:
    """A file of `bills` as it was when so many had come."""
    store = StoreBuilder(Path("/none"), orders_geometry=ORDERS_GEOMETRY)
    builders = {"orders": store.orders, "bills": store.bills, "prepared": store.prepared}
    builders = _version_1_builders() if version == 1 else builders
    _told(builders, bills)
    return bytes(builders["bills"].files[number])


def version_2_store(path: Path, *, clean: bool = True) -> Original:
    """A store of version 2, closed cleanly or left."""
    store = StoreBuilder(path, orders_geometry=ORDERS_GEOMETRY)
    builders = {"orders": store.orders, "bills": store.bills, "prepared": store.prepared}
    histories = _told(builders)
    store.write(clean=clean)
    return _ring_store(path, histories, builders, VERSION_2_DIRECTORIES)


def _told(builders: Mapping[str, JournalBuilder], bills: int = BILLS) -> dict[str, History]:
    rids = count(1)
    histories = {name: History(builder, builder.info.queue_name, rids) for name, builder in builders.items()}
    tell(**histories, count=bills)
    return histories


def _ring_store(
    path: Path, histories: dict[str, History], builders: Mapping[str, JournalBuilder], directories: Mapping[str, str]
) -> Original:
    files = {
        name: [f"{directories[name]}/{builder.name(number)}" for number in range(builder.geometry.files)]
        for name, builder in builders.items()
    }
    sizes = {name: builder.geometry.data_size for name, builder in builders.items()}
    return Original(path, histories, files, FILE_HEADER_SIZE, sizes)


LINEAR_SIZES: Final = {"orders": 64, "bills": 16, "prepared": 64}  # KiB of data in each file


def linear_store(path: Path, bills: int = BILLS) -> Original:
    """A linearstore without Berkeley DB files, with pools; the head of the line of `bills` was given back.

    So many bills have come.
    """
    rids = count(1)
    names = {**QUEUES, "prepared": TPL_QUEUE}
    builders = {name: LinearBuilder(queue, LINEAR_SIZES[name]) for name, queue in names.items()}
    histories = {name: History(builder, names[name], rids) for name, builder in builders.items()}
    tell(**histories, count=bills, large=4300)
    files = {}
    for name, builder in builders.items():
        directory = builder.write(path)
        in_use = f"qls/p001/efp/{LINEAR_SIZES[name]}k/in_use"
        files[name] = [f"{in_use}/{file}" for file in builder.names()]
        if name == "bills":
            oldest = builder.place(histories[name].records[f"bill {bills - UNPAID}"].position)[0]
            for file in builder.names()[:oldest]:
                (directory / file).unlink()
                (path / in_use / file).unlink()
    add_pooled_files(path, 2, LINEAR_SIZES["bills"])
    sizes = {name: builder.data_size for name, builder in builders.items()}
    return Original(path, histories, files, LINEAR_HEADER_SIZE, sizes)
