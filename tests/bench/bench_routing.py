"""Cost of routing, with few bindings and with very many.

    python -m tests.bench.bench_routing [--bindings N] [--messages N] [--rounds N]

A message finds one queue in each case, for one of 1,000 keys that are drawn at random from those that the bindings
match. "Found" is the work for a key that was not met before: the bindings are searched. "Remembered" is what nearly
every message costs: the key was met, and nothing was bound or unbound since. Required: with 100,000 bindings no more
than 3 times what 10 cost, found or remembered.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from qstore.broker.model.counters import Watermark
from qstore.broker.model.exchanges.direct import DirectExchange
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.topic import TopicExchange
from tests.bench.measuring import fastest

_FEW = 10
_KEYS = 1000
_GOAL = 3.0


class _Queue:
    """A queue that nothing is put on."""

    def __init__(self) -> None:
        self.binding_count = Watermark()
        self.bound_to: dict[Exchange, None] = {}


class _Shape(NamedTuple):
    """Bindings and keys of one kind: the number of a binding -> its key, and a key that it matches."""

    title: str
    kind: type[Exchange]
    binding_key: Callable[[int], str]
    routing_key: Callable[[int], str]


def _word(number: int) -> str:
    return f"{number % 10}.{number // 10 % 100}.{number // 1000}"


_SHAPES = (
    _Shape("direct", DirectExchange, lambda number: f"queue.{number}", lambda number: f"queue.{number}"),
    _Shape("topic, plain words", TopicExchange, _word, _word),
    _Shape("topic, * last", TopicExchange, lambda number: f"{_word(number)}.*", lambda number: f"{_word(number)}.x"),
    _Shape("topic, * first", TopicExchange, lambda number: f"*.{_word(number)}", lambda number: f"x.{_word(number)}"),
    _Shape("topic, # last", TopicExchange, lambda number: f"{_word(number)}.#", lambda number: f"{_word(number)}.x.y"),
    _Shape("topic, # first", TopicExchange, lambda number: f"#.{_word(number)}", lambda number: f"x.{_word(number)}"),
    _Shape("topic, # between", TopicExchange, lambda number: f"a.#.{number}.b", lambda number: f"a.x.y.{number}.b"),
)


def _bound(shape: _Shape, count: int) -> tuple[Exchange, float]:
    """An exchange with `count` bindings, and the µs that each took to make."""
    exchange = shape.kind("bench")
    queues: list[Any] = [_Queue() for _ in range(count)]
    began = time.process_time()
    for number, queue in enumerate(queues):
        exchange.bind(queue, shape.binding_key(number))
    return exchange, (time.process_time() - began) / count * 1e6


def _keys(shape: _Shape, count: int) -> list[str]:
    """Keys that each match one binding, of places all over the exchange."""
    chosen = random.Random(5)
    return [shape.routing_key(chosen.randrange(count)) for _ in range(_KEYS)]


def _costs(shape: _Shape, count: int, messages: int, rounds: int) -> tuple[float, float, float]:
    """µs of one message: found, remembered; and of one binding."""
    exchange, binding = _bound(shape, count)
    keys = _keys(shape, count) * (messages // _KEYS)
    match, get, find = exchange.match, exchange.routes.get, exchange.find
    assert all(len(match(key).queues) == 1 for key in keys[:_KEYS])

    def found() -> None:
        for key in keys:
            match(key)

    def remembered() -> None:
        for key in keys:
            if get(key) is None:
                find(key)

    remembered()
    per_message = 1e6 / len(keys)
    return fastest(rounds, found) * per_message, fastest(rounds, remembered) * per_message, binding


@click.command()
@click.option("--bindings", default=100_000, show_default=True, help="How many are very many.")
@click.option("--messages", default=100_000, show_default=True, help="Messages routed in each round.")
@click.option("--rounds", default=5, show_default=True, help="The fastest of so many counts.")
def main(bindings: int, messages: int, rounds: int) -> None:
    """Print what routing costs."""
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, fastest of {rounds} rounds, CPU time")
    table = Table("exchange", "bindings", "found µs", "ratio", "remembered µs", "ratio", "binding µs")
    worst = 0.0
    for shape in _SHAPES:
        few = _costs(shape, _FEW, messages, rounds)
        many = _costs(shape, bindings, messages, rounds)
        ratios = many[0] / few[0], many[1] / few[1]
        worst = max(worst, *ratios)
        table.add_row(shape.title, f"{_FEW}", f"{few[0]:.2f}", "", f"{few[1]:.3f}", "", f"{few[2]:.1f}")
        table.add_row(
            "", f"{bindings:,}", f"{many[0]:.2f}", f"{ratios[0]:.2f}", f"{many[1]:.3f}", f"{ratios[1]:.2f}",
            f"{many[2]:.1f}",
        )  # fmt: skip
    Console(width=120).print(table)
    print(f"worst ratio {worst:.2f} (goal {_GOAL:.0f})")


if __name__ == "__main__":
    main()
