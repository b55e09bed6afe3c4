"""The cases of Qpid's performance, reliability and soak kit, as loads of `qstore-perf`; one line of CSV for each run.

    python -m tests.interop.soak_kit [-b HOST:PORT] [--protocol amqp0-10] [-t 'TQ*'] [-c 1,10,30] [-s 512,1024] \
        [-r REPEATS] [-d SECONDS] [-n MESSAGES]

A name says what a case is, as in the kit:

    T, P           transient or persistent messages
    Q, T           a queue that the consumers share, or a topic of which each gets all messages
    BL, CL         latency: at a capped rate, and with more and more consumers
    R              reliability: as fast as they go, for a minute (01, 02) or an hour (03 to 08)
    CT, M, BT      throughput: more and more consumers, larger and larger messages, sustained
    -AA-, -NA-     acknowledged one by one, or not at all; -TX- in transactions

A run publishes a number of messages, and is complete when each consumer has what it is to get. A case with a duration
repeats its run, so that nothing can be lost unseen over the hour. Where the documents name neither a number nor a mode,
`_MODES` and the defaults below have one: the rate caps are the last number of a script's name, of which they tell no
values; 03 to 08 are the six modes of acknowledgement of the kit's runner.

Source: Qpid wiki, "Performance, Reliability and Scaling" (seed 004, lines 36609-36758).
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, Final

from qstore.broker.client.errors import MessagingError
from qstore.tools.load import throughput
from qstore.tools.load.channel import Queue, Style
from qstore.tools.load.latencies import summary
from qstore.tools.load.protocols import AMQP_0_9_1, AMQP_0_10, Broker
from qstore.tools.load.throughput import Load

PROTOCOLS: Final = (AMQP_0_9_1, AMQP_0_10)
"""Those with transactions of consumers."""
CONSUMERS: Final = (1, 2, 4, 8, 16, 30)
SIZES: Final = (512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
MINUTE, HOUR = 60.0, 3600.0
_SMALL, _MEDIUM = 256, 5120  # bytes
_COMMIT: Final = 10
"""Messages of a transaction; the kit's commitBatchSize has the default 1, and its scripts set others."""
_WINDOW: Final = 1000
_MOST_BYTES: Final = 64 << 20
"""Of the messages that are published in a run: of large ones there are fewer."""
_STALL_SECONDS: Final = 120.0
"""A run that takes so much longer than its messages at their rate has lost some."""
_MODES: Final = {"TX": (1, _COMMIT), "AA": (1, 0), "CA": (10, 0), "DO": (100, 0), "NA": (0, 0), "PA": (0, 0)}
"""Mode -> messages of an acknowledgement, and of a transaction. CA, DO, PA: the client acknowledges, duplicates are
allowed, acknowledged before delivery; to a broker the last one is none."""
COLUMNS: Final = (
    "case", "protocol", "consumers", "bytes", "published", "consumed", "seconds", "messages/s",
    "median ms", "99 % ms", "greatest ms",
)  # fmt: skip


class SoakError(Exception):
    """A run has failed: messages were lost, doubled or refused, or the connection was."""


@dataclass(frozen=True, slots=True)
class SoakCase:
    """A case.

    Attributes:
        name: as above.
        kind: latency, reliability or throughput.
        is_persistent: whether messages are.
        is_topic: whether each consumer gets all messages.
        mode: how they are acknowledged, of `_MODES`.
        consumers, sizes: a run for each of both.
        producers: their number.
        rate: messages a second in all, at most; 0 for no limit.
        messages: published in a run.
        seconds: how long runs are repeated; 0 for one.
    """

    name: str
    kind: str
    is_persistent: bool
    is_topic: bool
    mode: str
    consumers: Sequence[int] = (16,)
    sizes: Sequence[int] = (_SMALL,)
    producers: int = 1
    rate: float = 0.0
    messages: int = 20_000
    seconds: float = 0.0


def cases() -> Iterator[SoakCase]:
    """All cases."""
    for is_persistent in (False, True):
        yield from _latency(is_persistent)
        for is_topic in (False, True):
            yield from _reliability(is_persistent, is_topic)
            yield from _throughput(is_persistent, is_topic)


def _latency(is_persistent: bool) -> Iterator[SoakCase]:
    letter = "P" if is_persistent else "T"
    for rate in (1, 2, 4):
        name, per_second = f"{letter}QBL-AA-Qpid-02-{rate}", rate * 1000.0
        yield SoakCase(name, "latency", is_persistent, False, "AA", (10,), (_MEDIUM,), rate=per_second, messages=1000)
        for number, mode, size, factor in (
            ("03", "AA", _SMALL, 1000), ("04", "AA", _MEDIUM, 1000), ("05", "NA", _SMALL, 400),
        ):  # fmt: skip
            name = f"{letter}TBL-{mode}-Qpid-{number}-{rate}"
            yield SoakCase(
                name, "latency", is_persistent, True, mode, (50,), (size,), rate=float(rate * factor), messages=1000
            )
    if is_persistent:
        for number, rate in (("01", 600), ("02", 100)):
            name = f"PQCL-Qpid-{number}"
            yield SoakCase(name, "latency", True, False, "AA", CONSUMERS, rate=rate, messages=1000)
        for number, mode in (("01", "TX"), ("02", "AA")):
            yield SoakCase(f"PTCL-Qpid-{number}", "latency", True, True, mode, CONSUMERS, rate=1, messages=20)


def _reliability(is_persistent: bool, is_topic: bool) -> Iterator[SoakCase]:
    beginning = ("P" if is_persistent else "T") + ("T" if is_topic else "Q")
    numbered = [(1, "TX", MINUTE), (2, "AA", MINUTE), *((at, mode, HOUR) for at, mode in enumerate(_MODES, 3))]
    for number, mode, seconds in numbered:
        yield SoakCase(f"{beginning}R-Qpid-{number:02}", "reliability", is_persistent, is_topic, mode, seconds=seconds)


def _throughput(is_persistent: bool, is_topic: bool) -> Iterator[SoakCase]:
    beginning, kind = ("P" if is_persistent else "T") + ("T" if is_topic else "Q"), "throughput"
    for number, mode in (("01", "TX"), ("02", "AA")):
        yield SoakCase(f"{beginning}CT-Qpid-{number}", kind, is_persistent, is_topic, mode, CONSUMERS)
        yield SoakCase(f"{beginning}M-Qpid-{number}", kind, is_persistent, is_topic, mode, (8,), SIZES, producers=8)
    for mode in ("AA", "TX") if is_persistent else ("AA", "TX", "NA"):
        yield SoakCase(f"{beginning}BT-{mode}-Qpid", kind, is_persistent, is_topic, mode)


# ---- runs ----


def rows_of(broker: Broker, case: SoakCase) -> Iterator[dict[str, Any]]:
    """Run a case: a row of `COLUMNS` for each run. Raises SoakError."""
    for consumers, size in product(case.consumers, case.sizes):
        end = time.monotonic() + case.seconds
        while True:
            yield _run(broker, case, consumers, size)
            if time.monotonic() >= end:
                break


def _run(broker: Broker, case: SoakCase, consumers: int, size: int) -> dict[str, Any]:
    mark = uuid.uuid4().hex[:8]
    queues = [f"soak-{mark}-{number}" for number in range(consumers if case.is_topic else 1)]
    acknowledge, transaction = _MODES[case.mode]
    published = max(case.producers, min(case.messages, _MOST_BYTES // size))
    expected = published * len(queues)
    stall = _STALL_SECONDS + (published / case.rate if case.rate else 0.0)
    load = Load(
        publishers=case.producers, consumers=consumers, queues=queues,
        exchange="amq.topic" if case.is_topic else "", key=mark if case.is_topic else None,
        queue=Queue("", durable=case.is_persistent), sizes=(size,), style=Style(case.is_persistent), window=_WINDOW,
        acknowledge=acknowledge, prefetch=_WINDOW, rate=case.rate / case.producers, consumer_transaction=transaction,
        publish_limit=published, consume_limit=expected, seconds=stall, has_latency=True,
    )  # fmt: skip
    try:
        throughput.set_up(broker, load)
        result = throughput.run(broker, load)
        throughput.delete_queues(broker, queues)
    except MessagingError as error:
        raise SoakError(f"{case.name}: {error}") from None
    if result.error is not None or result.interruption is not None or result.total is None:
        raise SoakError(f"{case.name}: {result.error or 'interrupted'}")
    total = result.total
    if (total.published, total.confirmed, total.consumed, result.unconfirmed) != (published, published, expected, 0):
        raise SoakError(
            f"{case.name}: published {total.published:,} of {published:,}, confirmed {total.confirmed:,}, "
            f"refused {total.refused:,}, consumed {total.consumed:,} of {expected:,}"
        )
    found = summary(total.latencies)
    return dict(zip(COLUMNS, (
        case.name, broker.protocol, consumers, size, total.published, total.consumed, round(total.seconds, 3),
        round(total.consume_rate), found["latency_median_ms"], found["latency_p99_ms"], found["latency_max_ms"],
    ), strict=True))  # fmt: skip


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers above 0, separated by commas. Raises ValueError."""
    found = tuple(map(int, text.split(",")))
    if min(found) < 1:
        raise ValueError(text)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases that the arguments select. Returns the exit code: 1 if one has failed."""
    parser = argparse.ArgumentParser(prog="soak_kit", description="The cases of Qpid's soak kit.")
    parser.add_argument("-b", "--broker", default="localhost:5672", help="HOST:PORT")
    parser.add_argument("--protocol", choices=PROTOCOLS, default=AMQP_0_10)
    parser.add_argument("-t", "--test", default="*", help="pattern of the names of cases, such as 'TQ*'")
    parser.add_argument("-c", "--consumers", type=numbers, help="numbers of consumers instead of a case's own")
    parser.add_argument("-s", "--sizes", type=numbers, help="sizes of messages likewise")
    parser.add_argument("-n", "--messages", type=int, help="most messages of a run")
    parser.add_argument("-r", "--repeat", type=int, default=1, help="how often each case is run")
    parser.add_argument("-d", "--duration", type=float, help="seconds of the cases that have a duration")
    given = parser.parse_args(arguments)
    broker = Broker(given.broker, given.protocol, {})
    chosen = [case for case in cases() if fnmatchcase(case.name, given.test)]
    if not chosen:
        parser.error(f"no case has a name like {given.test!r}")
    out = csv.DictWriter(sys.stdout, COLUMNS)
    out.writeheader()
    failed = 0
    for case in chosen * given.repeat:
        messages = None if given.messages is None else min(given.messages, case.messages)
        changes = {"consumers": given.consumers, "sizes": given.sizes, "messages": messages}
        changes["seconds"] = given.duration if case.seconds else None
        case = replace(case, **{name: value for name, value in changes.items() if value is not None})
        try:
            for row in rows_of(broker, case):
                out.writerow(row)
                sys.stdout.flush()
        except SoakError as error:
            print(error, file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
