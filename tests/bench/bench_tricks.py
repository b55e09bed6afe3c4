"""Pieces of code that are shaped by speed, each beside the plain form that it replaces.

    python -m tests.bench.bench_tricks [--rounds N]

Processor time of both, of one call each, in the same run; the code names the gain. A piece whose gain is below a tenth
goes back to its plain form.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from qstore.broker.model.residency import stretch
from qstore.broker.model.selectors import nodes
from qstore.broker.protocols.amqp_1_0.assembly import usual_transfer
from qstore.formats.amqp_0_10 import maps
from qstore.formats.amqp_1_0.composites import BY_NAME, encode_composite, read_fields
from qstore.formats.values import typed_map
from qstore.store.disk import OsDisk
from qstore.store.inspect.measure import Spread
from qstore.store.journal.write.space import SIZE_BITS, SIZE_MASK, blocks_of
from tests.bench.measuring import fastest
from tests.support.fake_store import Model

_TIMES: Final = 2000
_TEXT: Final = "a" * 1000
_SIZES: Final = list(range(4096))

Pair = tuple[str, Callable[[], object], Callable[[], object]]


def _part(length: int, most: int) -> nodes.Part:
    """A part of a pattern that nearly matches everywhere in the text; with an expression up to `most` characters."""
    saved, nodes._MAX_EXPRESSION = nodes._MAX_EXPRESSION, most  # type: ignore[misc]
    try:
        return nodes.Part([None, *"a" * (length - 2), "b"])
    finally:
        nodes._MAX_EXPRESSION = saved  # type: ignore[misc]


def _mark_each() -> bytearray:
    flags = bytearray(len(_SIZES))
    for number in _SIZES:
        flags[number] |= stretch.REDELIVERED
    return flags


def _add_each() -> None:
    spread = Spread()
    for size in _SIZES:
        spread.add((size,))


def _publishing() -> tuple[Callable[[], object], Callable[[], object]]:
    """A message put on the one queue that its key names: by the router's short way, and by the one for all routes."""
    model = Model()
    model.queue("q")
    router, exchange = model.broker.router, model.broker.default_host.exchanges[""]
    message = model.message("q", b"x", persistent=False)
    return (
        lambda: router.publish(message, exchange),
        lambda: router.publish_to(message, exchange, router.route(message, exchange)),
    )


def _pairs(directory: Path) -> Iterator[Pair]:
    table = maps.encode_map(typed_map({f"key-{n}": f"value {n}" if n % 2 else n for n in range(8)}))
    yield "field table to plain values", lambda: maps.read_typed_plain_map(table, 0, 0), lambda: maps.decode_map(table)
    yield "field table to Python values", lambda: maps.python_map(table), lambda: maps.decode_map(table)
    for length in (64, 256):
        expression, loop = _part(length, length), _part(length, 0)
        yield (
            f"pattern of {length} as an expression, not a loop",
            partial(expression.find, _TEXT, 0, len(_TEXT)),
            partial(loop.find, _TEXT, 0, len(_TEXT)),
        )
    yield "4,096 sizes summed up together", lambda: Spread().add(_SIZES), _add_each
    flags = bytes(len(_SIZES))
    yield "4,096 messages marked together", lambda: bytearray(flags.translate(stretch._REDELIVERED)), _mark_each
    yield "message for one queue", *_publishing()
    fields = {"handle": 1, "delivery_id": 1000, "delivery_tag": b"1000", "message_format": 0, "settled": False}
    transfer = encode_composite("transfer", fields)
    yield (
        "usual transfer of AMQP 1.0",
        lambda: usual_transfer(transfer, 3, len(transfer)),
        lambda: read_fields(BY_NAME["transfer"], transfer, 3, len(transfer)),
    )
    places = array("Q", (place << SIZE_BITS | 5 for place in range(4096)))
    yield "blocks of 4,096 short records", lambda: blocks_of(places), lambda: [each & SIZE_MASK for each in places]
    for number in range(9):
        (directory / f"file {number}").touch()
    name = os.fspath(directory)
    yield "names of 9 files", lambda: OsDisk().names(name), lambda: sorted(each.name for each in directory.iterdir())


def _microseconds(work: Callable[[], object], rounds: int) -> float:
    times = 20 if fastest(1, work) > 100e-6 else _TIMES

    def repeated() -> None:
        for _ in range(times):
            work()

    return fastest(rounds, repeated) / times * 1e6


@click.command()
@click.option("--rounds", default=7, show_default=True, help="How often each is measured; the fastest counts.")
def main(rounds: int) -> None:
    """Print a table."""
    table = Table("piece", "as it is, µs", "plain, µs", "share")
    with tempfile.TemporaryDirectory() as directory:
        for name, work, plain in _pairs(Path(directory)):
            ours, theirs = _microseconds(work, rounds), _microseconds(plain, rounds)
            table.add_row(name, f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
