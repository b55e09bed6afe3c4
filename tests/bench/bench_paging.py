"""Messages that are out of memory: what it costs to have them there, and whether a broker holds more than its memory.

    python -m tests.bench.bench_paging [--messages N] [--only NAME]... [--directory PATH] [--json]

    name      what is measured                                                          beside it, in the same run
    --------  ------------------------------------------------------------------------  -----------------------------
    plain     processor time of a message that stays in memory                          without residency
    rate      messages a second to a consumer of a queue that is out of memory          of one that is in memory
    start     a start after `kill -9` with so many messages on a queue: until it        reading the journal's files
              listens, its peak of memory (VmHWM), the first message, and all of them
    cycles    depth 0 -> N -> 0, three times: memory and files                           those of the beginning
    backlog   N messages on a queue of a broker that may have --memory                   -
    queues    --queues queues with 100 messages each, so                                 -
    slow      a queue of --bytes with consumers that take their time, so                 -
    large     one message of --bytes, so                                                 -
    idle      --queues durable queues that nobody uses: their creation, disk, memory,    -
              and a start with them

`cycles`, `backlog`, `queues`, `slow` and `large` run in a control group of `--memory`, or with so much address space if
this process may not make one (`memory_limit`): the broker must take everything, or refuse clearly, and give all of it
back, or go on. Sizes: the issue's are `--messages 5000000 --queues 50000 --bytes 2147483647`. A run on small sizes
shows ratios.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import click
import orjson
from rich.console import Console

from tests.bench.backlog import drain, files_below, fill, peak_bytes
from tests.bench.bench_broker import Generator
from tests.bench.idle_queues import idle_queues
from tests.bench.memory_limit import memory_limit
from tests.support.raw_peer import (
    ConnectionClosedError,
    PeerGoneError,
    RawPeer,
    SessionEndedError,
    checksum_of,
    publish_large,
    receive_large,
)
from tests.support.running_broker import RunningBroker

_SIZE: Final = 1024
_EACH: Final = 100
"""Messages on each of many queues."""
_BUDGET: Final = "8M"
_KINDS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "priorities": {"x-qpid-priorities": 10},
    "groups": {"qpid.group_header_key": "group", "qpid.shared_msg_group": 1},
}
_MODULE: Final = ("-m", "qstore.broker.process.qpidd")
_SETTLE_SECONDS: Final = 20.0
_SPARE_FILES: Final = 8
"""That a broker keeps ready."""
_START_SECONDS: Final = 600.0


class Sizes(NamedTuple):
    """What is put on queues.

    Attributes:
        messages, queues, bytes, memory: as the options.
        directory: where the data directories are.
        seconds: that each line of `plain` is measured.
    """

    messages: int
    queues: int
    bytes: int
    memory: int
    directory: Path
    seconds: float


class Finding(NamedTuple):
    """A line of the result.

    Attributes:
        name: of what was measured.
        values: what was found, with units in their names.
    """

    name: str
    values: dict[str, float | int | str]


@contextlib.contextmanager
def _broker(sizes: Sizes, *options: str, is_limited: bool = False) -> Iterator[RunningBroker]:
    """A broker on an empty data directory; not started yet."""
    directory = Path(tempfile.mkdtemp(prefix="qstore-paging-", dir=sizes.directory))
    broker = RunningBroker(directory, "--default-queue-limit", "0", *options)
    broker.program = (sys.executable, *_MODULE)
    try:
        if not is_limited:
            yield broker
            return
        with memory_limit(sizes.memory) as limit, contextlib.closing(broker):
            broker.program = limit.program(*broker.program)
            print(f"limit: {limit.kind} of {sizes.memory >> 20} MiB", file=sys.stderr)
            yield broker
            assert limit.kills == 0, "the system has ended the broker"
    finally:
        broker.close()
        shutil.rmtree(directory)


def _declare(broker: RunningBroker, queue: str, *, durable: bool, arguments: dict[str, Any] | None = None) -> None:
    with RawPeer(broker.port) as peer:
        peer.declare(queue, durable=durable, arguments=arguments)


# ---- rates ----


def _plain(sizes: Sizes) -> Iterator[Finding]:
    """In turns: without residency, and with it."""
    for durable in (False, True):
        cost: dict[str, list[float]] = {"0": [], "": []}
        for _ in range(3):
            for budget, found in cost.items():
                with _broker(sizes, *(("--queue-memory", budget) if budget else ())) as broker:
                    broker.start()
                    options = ["--size", str(_SIZE), *(["--durable"] if durable else [])]
                    result = Generator(broker.port, sizes.seconds, broker.pid, options).result()
                    found.append(result["broker_cpu"] / max(1, result["messages"]) * 1e6)
        pairs = [mine / without for mine, without in zip(cost[""], cost["0"], strict=True)]
        yield Finding(
            f"plain, {'durable' if durable else 'transient'}",
            {"us": median(cost[""]), "us_without": median(cost["0"]), "ratio": median(pairs), "worst": max(pairs)},
        )


def _rate(sizes: Sizes) -> Iterator[Finding]:
    """A queue whose messages are out, and one whose messages are in memory."""
    for durable in (True, False):
        for kind, arguments in _KINDS.items():
            rates, peaks = {}, {}
            for budget in ("0", _BUDGET):
                with _broker(sizes, "--broker-memory", "0", "--queue-memory", budget) as broker:
                    broker.start()
                    _declare(broker, "q", durable=durable, arguments=arguments)
                    fill(broker.port, "q", sizes.messages, _SIZE, durable=durable)
                    rates[budget] = sizes.messages / drain(broker.port, "q", sizes.messages)
                    peaks[budget] = peak_bytes(broker.pid) >> 20
            yield Finding(
                f"rate, {'durable' if durable else 'transient'} {kind}",
                {
                    "out_per_s": rates[_BUDGET],
                    "in_per_s": rates["0"],
                    "ratio": rates[_BUDGET] / rates["0"],
                    "out_peak_mib": peaks[_BUDGET],
                    "in_peak_mib": peaks["0"],
                },
            )


# ---- a start ----


def _start(sizes: Sizes) -> Iterator[Finding]:
    with _broker(sizes) as broker:
        broker.start()
        _declare(broker, "q", durable=True)
        took = fill(broker.port, "q", sizes.messages, _SIZE)
        broker.kill()
        began = time.perf_counter()
        for path in sorted((broker.data_directory / "rhm" / "jrnl").rglob("*.jdat")):
            path.read_bytes()
        read = time.perf_counter() - began
        began = time.perf_counter()
        broker.launch()
        broker.wait_for_port(_START_SECONDS)
        up, peak = time.perf_counter() - began, peak_bytes(broker.pid)
        began = time.perf_counter()
        with RawPeer(broker.port) as peer:
            peer.subscribe("q", messages=1)
            peer.take(1)
            first = time.perf_counter() - began
        first_peak = peak_bytes(broker.pid)
        broker.kill()  # the delivery was not accepted, and nothing is marked
        broker.launch()
        broker.wait_for_port(_START_SECONDS)
        drained = drain(broker.port, "q", sizes.messages)
        yield Finding(
            "start",
            {
                "messages": sizes.messages,
                "published_per_s": sizes.messages / took,
                "up_s": up,
                "read_files_s": read,
                "peak_mib": peak / 2**20,
                "first_message_s": first,
                "peak_with_first_mib": first_peak / 2**20,
                "drained_per_s": sizes.messages / drained,
                "peak_at_end_mib": peak_bytes(broker.pid) / 2**20,
            },
        )


# ---- depth 0 -> N -> 0 ----


def _cycles(sizes: Sizes) -> Iterator[Finding]:
    for durable in (True, False):
        with _broker(sizes, is_limited=True) as broker:
            broker.start()
            _declare(broker, "q", durable=durable)
            values: dict[str, float | int | str] = {}
            most = sys.maxsize
            for number in range(4):  # the first warms up
                count = sizes.messages if number else _EACH * 100
                fill(broker.port, "q", count, _SIZE, durable=durable)
                drain(broker.port, "q", count, is_checked=True)
                files, size = _settled_files(broker, most)
                most = files if number == 0 else most
                values[f"resident_mib_{number}"] = broker.resident_bytes() / 2**20
                values[f"files_{number}"], values[f"disk_mib_{number}"] = files, size / 2**20
            values["peak_mib"] = peak_bytes(broker.pid) / 2**20
            yield Finding(f"cycles, {'durable' if durable else 'transient'}", values)


def _settled_files(broker: RunningBroker, most: int) -> tuple[int, int]:
    """Files and bytes on the disk, when there are only few more files than `most`, or no fewer for a while."""
    began = time.monotonic()
    files, size = files_below(broker.data_directory)
    while time.monotonic() < began + _SETTLE_SECONDS:
        time.sleep(1.0)
        now, size = files_below(broker.data_directory)
        if now < files and now > most + _SPARE_FILES:
            began = time.monotonic()
        files = now
    return files, size


# ---- a broker that may have little memory ----


def _backlog(sizes: Sizes) -> Iterator[Finding]:
    for durable in (True, False):
        with _broker(sizes, is_limited=True) as broker:
            broker.start()
            _declare(broker, "q", durable=durable)
            took = fill(broker.port, "q", sizes.messages, _SIZE, durable=durable)
            peak = peak_bytes(broker.pid)
            drained = drain(broker.port, "q", sizes.messages)
            yield _limited(
                f"backlog, {'durable' if durable else 'transient'}",
                broker,
                {
                    "messages": sizes.messages,
                    "published_per_s": sizes.messages / took,
                    "peak_mib": peak / 2**20,
                    "drained_per_s": sizes.messages / drained,
                },
            )


def _queues(sizes: Sizes) -> Iterator[Finding]:
    with _broker(sizes, is_limited=True) as broker:
        broker.start()
        began = time.perf_counter()
        with RawPeer(broker.port) as peer:
            for first in range(0, sizes.queues, _EACH):
                names = [f"q{number}" for number in range(first, min(first + _EACH, sizes.queues))]
                peer.publish_all([peer.command_frames("queue.declare", queue=name, durable=False) for name in names])
                peer.sync()
            declared = time.perf_counter() - began
            began = time.perf_counter()
            for _ in range(_EACH // 10):
                for first in range(0, sizes.queues, 100):
                    names = [f"q{number}" for number in range(first, min(first + 100, sizes.queues))]
                    peer.publish_all([peer.transfer_frames(name, b"x" * _SIZE, durable=False) * 10 for name in names])
                    peer.sent += 9 * len(names)
                    peer.sync()
            took = time.perf_counter() - began
            for number in range(0, sizes.queues, max(1, sizes.queues // 100)):
                assert peer.message_count(f"q{number}") == _EACH
        drain(broker.port, "q0", _EACH)
        yield _limited(
            "queues",
            broker,
            {
                "queues": sizes.queues,
                "declared_ms_each": declared / sizes.queues * 1e3,
                "published_per_s": sizes.queues * _EACH / took,
                "peak_mib": peak_bytes(broker.pid) / 2**20,
            },
        )


class _SlowConsumers:
    """Four consumers with ten messages each, who accept one ten times a second.

    Attributes:
        taken: messages that they have accepted.
    """

    def __init__(self, port: int) -> None:
        self.taken, self._next = 0, 0.0
        self._peers = [RawPeer(port) for _ in range(4)]
        for peer in self._peers:
            peer.subscribe("q", window=False, messages=10)

    def take(self) -> None:
        """Each accepts one, if it has any and it is time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 0.1
        for peer in self._peers:
            peer.process(0)
            if peer.deliveries:
                peer.accept([peer.deliveries.popleft()])
                peer.send_command("message.flow", destination="d", unit=0, value=1)
                self.taken += 1

    def close(self) -> None:
        """They leave; what they have goes back to the queue."""
        for peer in self._peers:
            peer.end()


def _slow(sizes: Sizes) -> Iterator[Finding]:
    """Four consumers that take a message, think, and accept it; then they drain the queue."""
    size = 64 << 10
    count = -(-sizes.bytes // size // 100) * 100
    for durable in (True, False):
        with _broker(sizes, is_limited=True) as broker:
            broker.start()
            _declare(broker, "q", durable=durable)
            consumers = _SlowConsumers(broker.port)
            took = fill(broker.port, "q", count, size, durable=durable, meanwhile=consumers.take)
            peak = peak_bytes(broker.pid)
            consumers.close()
            with RawPeer(broker.port) as peer:
                left = peer.message_count("q")
            drained = drain(broker.port, "q", left)
            yield _limited(
                f"slow, {'durable' if durable else 'transient'}",
                broker,
                {
                    "mib": count * size / 2**20,
                    "published_mib_per_s": count * size / 2**20 / took,
                    "taken_meanwhile": consumers.taken,
                    "peak_mib": peak / 2**20,
                    "drained_mib_per_s": left * size / 2**20 / drained,
                },
            )


def _large(sizes: Sizes) -> Iterator[Finding]:
    """The limit of a message is raised, as far as the option goes; what is too large is refused."""
    for durable in (True, False):
        with _broker(sizes, "--max-message-size", str(sizes.bytes), is_limited=True) as broker:
            broker.start()
            _declare(broker, "q", durable=durable)
            answer = "delivered"
            try:
                with RawPeer(broker.port) as peer:
                    publish_large(peer, "q", sizes.bytes, delivery_mode=2 if durable else 1)
                    peer.sync()
                    peer.subscribe("q")
                    assert receive_large(peer) == checksum_of(sizes.bytes)
            except (SessionEndedError, ConnectionClosedError, PeerGoneError) as error:
                answer = str(error.args)[:160]
            yield _limited(
                f"large, {'durable' if durable else 'transient'}",
                broker,
                {"mib": sizes.bytes / 2**20, "answer": answer, "peak_mib": peak_bytes(broker.pid) / 2**20},
            )


def _idle(sizes: Sizes) -> Iterator[Finding]:
    with _broker(sizes) as broker:
        broker.start()
        yield Finding("idle", idle_queues(broker, sizes.queues))


def _limited(name: str, broker: RunningBroker, values: dict[str, float | int | str]) -> Finding:
    """It must still be there, serve another client, and stop cleanly."""
    _declare(broker, "other", durable=True)
    assert fill(broker.port, "other", 100, _SIZE) >= 0
    drain(broker.port, "other", 100)
    values["resident_mib"] = broker.resident_bytes() / 2**20
    began = time.perf_counter()
    assert broker.stop() == 0, broker.log_text()
    values["stopped_s"] = time.perf_counter() - began
    values["problems"] = sum(word in broker.log_text() for word in ("out of memory", "Traceback", "cannot"))
    return Finding(name, values)


_MEASURES: Final[dict[str, Callable[[Sizes], Iterator[Finding]]]] = {
    "plain": _plain,
    "rate": _rate,
    "start": _start,
    "cycles": _cycles,
    "backlog": _backlog,
    "queues": _queues,
    "slow": _slow,
    "large": _large,
    "idle": _idle,
}


@click.command()
@click.option("--messages", default=100_000, show_default=True, help="Messages of 1 KiB, a multiple of 100.")
@click.option("--queues", default=1000, show_default=True, help="Of `queues` and `idle`.")
@click.option("--bytes", "size", default=256 << 20, show_default=True, help="Of `slow` and `large`.")
@click.option("--memory", default=512 << 20, show_default=True, help="Limit of a broker that may have little.")
@click.option("--seconds", default=3.0, show_default=True, help="That each line of `plain` is measured.")
@click.option("--only", multiple=True, type=click.Choice(list(_MEASURES)), help="May be given more than once.")
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), default=Path("/var/tmp"))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def main(
    messages: int,
    queues: int,
    size: int,
    memory: int,
    seconds: float,
    only: Sequence[str],
    directory: Path,
    as_json: bool,
) -> None:
    """Print what was measured."""
    console = Console(width=160, quiet=as_json, highlight=False)
    sizes = Sizes(messages, queues, size, memory, directory, seconds)
    for name in only or _MEASURES:
        for finding in _MEASURES[name](sizes):
            console.print(
                f"{finding.name}: " + ", ".join(f"{key} {_shown(each)}" for key, each in finding.values.items())
            )
            if as_json:
                print(orjson.dumps({"name": finding.name, **finding.values}).decode(), flush=True)


def _shown(value: float | int | str) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


if __name__ == "__main__":
    main()
