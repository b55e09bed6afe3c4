"""`qstore-shell` and `qstore-replay` are killed at any moment of their changes: nothing is lost, nothing doubled.

What the shell has said to be done is there; of the change after that all or nothing is. A replay takes place once,
however often it is begun.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from qstore.broker.client import Connection
from qstore.broker.management.console import Console
from qstore.store.disk import OsWritableDisk
from qstore.store.inspect.offline import open_store
from qstore.store.journal.recovery import LIVE
from qstore.store.repair.stopped_messages import MAX_MESSAGES
from qstore.tools.store_shell.broker import PORTION
from tests.support import forked
from tests.support.forked import Forked
from tests.support.processes import comes
from tests.support.profiles import is_nightly, seeds_of_the_day
from tests.support.running_broker import RunningBroker, one_broker
from tests.tools.interchange_runs import bring, write_lines
from tests.tools.shell_runs import bodies
from tests.tools.test_commands import command
from tests.tools.test_interchange import simple_lines
from tests.tools.test_replay import replay

COUNT: Final = 60  # messages at the beginning
COMMANDS: Final = 6  # of a script that is killed
REPLAY_CALLS: Final = 60  # about how many a replay into a store makes
REPLAYED: Final = 2 * 500 + 100  # two transactions into a broker, and a part of a third one

#: The bodies of each queue's messages.
State = dict[str, list[str]]


class Step(NamedTuple):
    """A command of the shell, and what there is after it."""

    command: str
    state: State


def kill(process: Forked) -> None:
    """SIGKILL, if it has not ended."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def script(chance: random.Random, state: State) -> list[Step]:
    """Changes of any kind between the queues `orders` and `old`."""
    steps: list[Step] = []
    for turn in range(COMMANDS):
        source, target = chance.sample(sorted(state), 2)
        mine, others = state[source], state[target]
        first, middle = chance.randint(1, 20), 2 * (len(mine) // 3)
        limit = int(mine[middle]) if mine else 0
        low = [each for each in mine if int(each) < limit]
        high = [each for each in mine if int(each) >= limit]
        new = f"{chance.randrange(COUNT, 999_999):06}"
        kinds: list[tuple[str, list[str], list[str]]] = [
            (f"inject {target} body={new} header.n={int(new)}", mine, [*others, new]),
            (f"move {source} to {target}", [], others + mine),
            (f"move {source} first={first} to {target}", mine[first:], others + mine[:first]),
            (f"move {source} to {target} where n < {limit}", high, others + low),
            (f"copy {source} to {target} where n >= {limit}", mine, others + high),
            (f"delete {source} where n < {limit}", high, others),
            (f"purge {source}", [], others),
        ]
        if turn == 0 or not mine:
            kinds = kinds[:1]
        elif len(mine) + len(others) < COUNT // 2:
            kinds = kinds[:-2]
        elif len(mine) + len(others) > 3 * COUNT:
            kinds = kinds[-3:]
        reported, mine, others = chance.choice(kinds)
        state = {source: mine, target: others}
        steps.append(Step(reported, state))
    return steps


def dying(name: str, number: int) -> list[str]:
    """A command that is killed at its call of this number (`dying`)."""
    program, option, code = command(name)
    return [program, option, f"from tests.support.dying import die_at; die_at({number}); {code}"]


def killed(where: str, steps: list[Step], at: int) -> int:
    """Run the commands; the shell is killed at a call. Returns how many it has said to be done."""
    line = "; ".join(step.command for step in steps)
    given = [where, "--yes", "--json", "-c", line]
    done = forked.run([*dying("qstore-shell", at), *given], capture_output=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return int(done.stdout.count(b'{"kind":"change"'))


def check(seed: int, where: str, held: Callable[[], State], kills: int, calls: int) -> None:
    """Kill scripts one after the other, each on what the one before it has left.

    Args:
        seed: of what is done, and when.
        where: the store or the broker.
        held: tells what there is.
        kills: how many scripts.
        calls: about how many of those that count a command makes.
    """
    chance = random.Random(seed)
    for _ in range(kills):
        before = held()
        steps = script(chance, before)
        done = killed(where, steps, chance.randint(1, calls * len(steps)))
        allowed = [before, *(step.state for step in steps)][done : done + 2]
        assert comes(lambda allowed=allowed: held() in allowed), (held(), steps, done)


def made(path: Path, count: int = COUNT) -> Path:
    """A store with the queue `orders`, which has messages with their numbers, and the empty queue `old`."""
    lines = simple_lines(count, "orders")
    lines.insert(1, {"kind": "queue", "name": "old"})
    for number, line in enumerate(line for line in lines if line["kind"] == "message"):
        line["body"] = f"{number:06}"
    assert bring(write_lines(path.with_suffix(".jsonl"), lines), path, "--edited", "-q").exit_code == 0
    return path


def held_by(path: Path) -> State:
    """What a start would find."""
    found: State = {}
    with contextlib.closing(open_store(OsWritableDisk(), str(path))) as store:
        for queue in store.recover().queues:
            messages = found[queue.name] = []
            for _, place, state, _ in queue.outstanding():
                assert state == LIVE
                assert queue.journal is not None
                at, size = queue.journal.data_of_enqueue(place)
                messages.append(bytes(queue.journal.stream.read(at + size - 6, 6)).decode())
        assert not store.damage
    return found


# ---- a stopped store ----


@pytest.mark.parametrize("seed", seeds_of_the_day(1))
def test_the_shell_of_a_store(tmp_path: Path, seed: int) -> None:
    path = made(tmp_path / "store")
    check(seed, str(path), lambda: held_by(path), 2, 40)


@pytest.mark.core
@pytest.mark.skipif(not is_nightly(), reason="a large store")
def test_a_move_in_several_transactions(tmp_path: Path) -> None:
    """It has moved whole portions, in order, and goes on with the rest."""
    path, chance = made(tmp_path / "store", 3 * MAX_MESSAGES), random.Random(7)
    source, target = "orders", "old"
    for _ in range(20):
        before = held_by(path)
        arguments = [*command("qstore-shell"), str(path), "-c", f"move {source} to {target}"]
        with Forked(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            process.stdout.readline()  # the plan
            time.sleep(chance.random())
            kill(process)
            process.communicate()
        found = held_by(path)
        moved = len(found[target]) - len(before[target])
        assert found == {target: before[target] + before[source][:moved], source: before[source][moved:]}
        assert moved % MAX_MESSAGES == 0
        if not found[source]:
            source, target = target, source


@pytest.mark.parametrize("seed", seeds_of_the_day(1))
def test_replays_into_a_store(tmp_path: Path, seed: int) -> None:
    path, source, chance = made(tmp_path / "store"), made(tmp_path / "source", 300), random.Random(seed)
    every = held_by(source)["orders"]
    for _ in range(3):
        begin, limit = chance.sample(range(2, 200), 2)
        choice = "--queue", "orders", "--to", "old", "--from-header", f"n={begin}", "--limit", str(limit)
        before = held_by(path)
        after = before | {"old": before["old"] + every[begin : begin + limit]}
        forked.run([*dying("qstore-replay", chance.randint(1, REPLAY_CALLS)), str(source), str(path), *choice])
        found = held_by(path)
        assert found in (before, after)
        assert replay(source, path, *choice)["replayed"] is (found == before)
        assert held_by(path) == after
    assert held_by(source) == {"orders": every, "old": []}


# ---- a running broker ----

broker = pytest.fixture(one_broker, scope="module")


@pytest.fixture
def url(broker: RunningBroker) -> Iterator[str]:
    """Its URL; the queues are new."""
    with Connection(f"127.0.0.1:{broker.port}") as connection, connection.session() as session:
        for queue in ("orders", "old"):
            session.invoke("queue.declare", queue=queue, durable=True)
        yield f"amqp://127.0.0.1:{broker.port}"
        for queue in ("orders", "old"):
            session.invoke("queue.delete", queue=queue)


def alone(url: str) -> bool:
    """Whether the broker has dropped all clients but this test's."""
    with Console(url.removeprefix("amqp://")) as console:
        return comes(lambda: len(list(console.query("connection"))) == 2)


def held_in(url: str) -> State:
    """What clients can see, once those that were killed have gone."""
    assert alone(url)
    return {queue: bodies(url, queue) for queue in ("orders", "old")}


@pytest.mark.parametrize("seed", seeds_of_the_day(1))
def test_the_shell_of_a_broker(tmp_path: Path, url: str, seed: int) -> None:
    made(tmp_path / "store")
    assert bring(tmp_path / "store.jsonl", url, "--edited", "-q", "--again").exit_code == 0
    check(seed, url, lambda: held_in(url), 3, 12)


@pytest.mark.skipif(not is_nightly(), reason="many messages")
def test_a_move_in_several_transactions_of_a_broker(tmp_path: Path, url: str) -> None:
    made(tmp_path / "store", count := 4 * PORTION + 100)
    assert bring(tmp_path / "store.jsonl", url, "--edited", "-q", "--again").exit_code == 0
    chance, every = random.Random(7), [f"{number:06}" for number in range(count)]
    source, target = "orders", "old"
    for _ in range(20):
        arguments = [*command("qstore-shell"), url, "-c", f"move {source} to {target} where n >= 0"]
        with Forked(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            process.stdout.readline()  # the plan
            time.sleep(chance.random())
            kill(process)
            process.communicate()
        found = held_in(url)
        moved = len(found[target])
        assert (found[target], found[source]) == (every[:moved], every[moved:])
        assert moved % PORTION == 0 or moved == count
        if not found[source]:
            source, target = target, source


@pytest.mark.parametrize("seed", seeds_of_the_day(1))
def test_replays_into_a_broker(tmp_path: Path, url: str, seed: int) -> None:
    source, chance = made(tmp_path / "source", REPLAYED + 105), random.Random(seed)
    begin = 5 + seed % 100  # the broker's ledger knows those of other seeds
    choice = "--queue", "orders", "--to", "old", "--from-header", f"n={begin}", "--limit", str(REPLAYED)
    every = held_by(source)["orders"][begin : begin + REPLAYED]
    with Connection(url.removeprefix("amqp://")) as connection, connection.session() as session:

        def count() -> int:
            return int(session.invoke("queue.query", queue="old")["message_count"])

        for least in (0, 500):
            arguments = [*command("qstore-replay"), str(source), url, *choice, "--rate", "2000"]
            with Forked(arguments, stdout=subprocess.DEVNULL) as process:
                assert comes(lambda least=least: count() >= least)
                time.sleep(chance.random() * 0.2)
                kill(process)
            with Console(connection) as console:
                assert comes(lambda console=console: len(list(console.query("connection"))) == 2)
            assert count() in (0, 500, 1000, REPLAYED)
    had = len(bodies(url, "old"))
    assert replay(source, url, *choice)["replayed"] is (had < REPLAYED)
    assert bodies(url, "old") == every
    assert replay(source, url, *choice)["replayed"] is False
