"""Cost and ratio of `qpid.compress`: a durable queue without and with it, on bodies of several kinds and sizes.

    python -m tests.bench.bench_compression [--messages N] [--rounds N] [--json]

Each row compares the same messages appended, flushed, and read back in both ways, in processor time of this process,
since only the processor is of interest here. The bytes of records include headers, checksums and padding to blocks.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

import click
import orjson
from rich.console import Console
from rich.table import Table

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.formats.values import EMPTY_MAP, TypedMap, typed_map
from qstore.store.environment import tool_environment
from qstore.store.journal.write.space import SIZE_MASK
from qstore.store.parameters import StoreParameters
from tests.support.opened_store import OpenedStore

_SIZES: Final = (256, 1024, 16_384, 262_144)
_GEOMETRY: Final = Geometry.from_pages(64, 128)
_PARAMETERS: Final = StoreParameters(sync="inline", num_jfiles=4, jfile_size_pgs=1)
_WORDS: Final = [
    "order",
    "customer",
    "item",
    "price",
    "count",
    "street",
    "city",
    "paid",
    "open",
    "shipped",
    "returned",
    "note",
    "screw",
    "bolt",
    "nut",
]


class Row(NamedTuple):
    """One kind and size of bodies."""

    bodies: str
    size: int
    messages: int
    ratio: float  # bytes of records: plain / compressed
    plain_us: float  # processor time to append a message
    compressed_us: float
    read_plain_us: float  # to load one
    read_compressed_us: float


def _json(size: int, rng: random.Random) -> bytes:
    """A document of an application: names repeat, values do not."""
    parts = []
    length = 0
    while length < size:
        line = orjson.dumps({rng.choice(_WORDS): rng.randrange(10**6), rng.choice(_WORDS): rng.choice(_WORDS)})
        parts.append(line)
        length += len(line)
    return b"".join(parts)[:size]


def _noise(size: int, rng: random.Random) -> bytes:
    return rng.randbytes(size)


_KINDS: Final = {"JSON": _json, "random": _noise}


def _measured(messages: list[bytes], arguments: TypedMap) -> tuple[int, float, float]:
    """Bytes of records, and processor seconds to append and to load each message."""
    with tempfile.TemporaryDirectory() as directory:
        opened = OpenedStore(tool_environment(), Path(directory), _PARAMETERS)
        journal = opened.make_queue("q", _GEOMETRY, arguments)
        crcs = [data_crc((data,)) for data in messages]
        enqueue = opened.store.append.enqueue
        spent, rids = 0.0, []
        for begin in range(0, len(messages), 64):
            began = time.process_time()
            for data, crc in zip(messages[begin : begin + 64], crcs[begin : begin + 64], strict=True):
                rids.append(enqueue(journal, (data,), len(data), crc))
            spent += time.process_time() - began
            opened.flush(journal)
        size = sum(packed & SIZE_MASK for packed in journal.writer.live.values()) * BLOCK_SIZE
        began = time.process_time()
        for rid in rids:
            journal.load(rid)
        loaded = time.process_time() - began
        opened.store.close()
        return size, spent, loaded


def _row(kind: str, size: int, count: int, rounds: int) -> Row:
    rng = random.Random(size)
    bodies = [_KINDS[kind](size, rng) for _ in range(min(count, 200))]
    properties = {"exchange": "", "routing_key": "orders", "delivery_mode": 2}
    messages = [encode_message(bodies[number % len(bodies)], delivery_properties=properties) for number in range(count)]
    plain = [_measured(messages, EMPTY_MAP) for _ in range(rounds)]
    compressed = [_measured(messages, typed_map({"qpid.compress": "zstd"})) for _ in range(rounds)]
    each = 1e6 / count
    return Row(
        kind,
        size,
        count,
        plain[0][0] / compressed[0][0],
        min(spent for _, spent, _ in plain) * each,
        min(spent for _, spent, _ in compressed) * each,
        min(loaded for _, _, loaded in plain) * each,
        min(loaded for _, _, loaded in compressed) * each,
    )


@click.command()
@click.option("--messages", default=4000, help="Messages of 1 KiB; fewer of larger ones.")
@click.option("--rounds", default=3, help="The fastest counts.")
@click.option("--json", "as_json", is_flag=True)
def main(messages: int, rounds: int, as_json: bool) -> None:
    """Measure."""
    rows = [
        _row(kind, size, max(min(messages, messages * 1024 // size), 50), rounds) for kind in _KINDS for size in _SIZES
    ]
    if as_json:
        for row in rows:
            print(orjson.dumps(row._asdict()).decode())
        return
    shown = Table(title="qpid.compress")
    for name in ("bodies", "bytes", "ratio", "append µs", "compressed", "load µs", "compressed"):
        shown.add_column(name, justify="right")
    for row in rows:
        numbers = (row.plain_us, row.compressed_us, row.read_plain_us, row.read_compressed_us)
        shown.add_row(row.bodies, f"{row.size:,}", f"{row.ratio:.2f}", *(f"{number:.1f}" for number in numbers))
    Console().print(shown)


if __name__ == "__main__":
    main()
