"""`qstore-shell` is killed while it decides branches in doubt, opens another store, or adds messages of a quarantine.

What it has said to be done is there, in the right store; of the change after that all or nothing is. What a quarantine
says to be injected is in the queue, and what is in the queue is not said to be missing.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest

from qstore.broker.client import Connection, Message
from qstore.formats.amqp_0_10.structs import BranchId
from qstore.formats.quarantine_index import QuarantineEntry
from qstore.store.disk import OsDisk
from qstore.store.repair.quarantine import Quarantine
from tests.support.opened_store import Kept, enqueue, make_quarantine, message
from tests.support.processes import comes
from tests.support.profiles import seeds_of_the_day
from tests.support.running_broker import RunningBroker, one_broker
from tests.system.test_shell_killed import Step, alone, killed
from tests.tools.interchange_runs import bring, write_lines
from tests.tools.shell_runs import bodies, objects
from tests.tools.test_interchange import simple_lines

BRANCHES: Final = ("01", "02")
QUEUES: Final = ("orders", "old")
OUTCOMES: Final = ("commit", "rollback", "commit")
CALLS: Final = 45  # about how many of those that count a command makes

#: store -> queue -> its messages, those in doubt with the branch that has them; and all branches in doubt.
State = dict[str, list[str]]


def made(path: Path) -> Path:
    """A store with two messages and two branches in doubt: each would add a message, and remove one of them."""
    lines: list[dict[str, Any]] = simple_lines(2, "orders")
    lines.insert(1, {"kind": "queue", "name": "old"})
    end = lines.pop()
    for number, xid in enumerate(BRANCHES):
        lines[3 + number] |= {"state": "in-doubt-dequeue", "xid": xid}
        lines.append({"kind": "message", "queue": "old", "body": f"of {xid}", "state": "in-doubt-enqueue", "xid": xid})
    lines[3:3] = [{"kind": "transaction", "xid": xid, "state": "in-doubt"} for xid in BRANCHES]
    assert bring(write_lines(path.with_suffix(".jsonl"), [*lines, end]), path, "--edited", "-q").exit_code == 0
    return path


def held_by(*paths: Path) -> State:
    """What stores have."""
    found: State = {}
    for path in paths:
        for line in objects(path, "dump orders; dump old; list transactions"):
            if line.get("state") in ("committing", "aborting"):
                continue  # it is decided; the next start, or change, completes it
            where = f"{path.name} {line.get('queue', 'in doubt')}"
            what = line["xid"] if line["kind"] == "transaction" else f"{line['body']} {line['xid'] or ''}".rstrip()
            found.setdefault(where, []).append(what)
    return found


def after(state: State, **changed: list[str]) -> State:
    """The state with other messages in some queues of a store: store_queue=[...]; an empty list: there are none."""
    merged = state | {name.replace("__", " ").replace("_", " "): messages for name, messages in changed.items()}
    return {name: messages for name, messages in merged.items() if messages}


def script(first: Path, second: Path, quarantine: Path) -> tuple[State, list[Step]]:
    """Changes of two stores, one after the other, and what there is after each."""
    before = state = held_by(first, second)
    assert before == {
        **{f"{name} orders": ["0 01", "1 02"] for name in ("a", "b")},
        **{f"{name} old": ["of 01 01", "of 02 02"] for name in ("a", "b")},
        **{f"{name} in doubt": ["01", "02"] for name in ("a", "b")},
    }
    steps = []
    for command, changed in (
        ("resolve 01 commit", {"a_orders": ["1 02"], "a_old": ["of 01", "of 02 02"], "a_in_doubt": ["02"]}),
        (
            f"load {second}; resolve 02 rollback",
            {"b_orders": ["0 01", "1"], "b_old": ["of 01 01"], "b_in_doubt": ["01"]},
        ),
        (f"inject quarantine all from {quarantine} to old", {"b_old": ["of 01 01", "kept", "too"]}),
        ("resolve 01 rollback", {"b_orders": ["0", "1"], "b_old": ["kept", "too"], "b_in_doubt": []}),
        (f"load {first}; resolve 02 commit", {"a_orders": [], "a_old": ["of 01", "of 02"], "a_in_doubt": []}),
    ):
        state = after(state, **changed)
        steps.append(Step(command, state))
    return before, steps


@pytest.mark.parametrize("seed", seeds_of_the_day(2))
def test_stores(tmp_path: Path, seed: int) -> None:
    first, second, chance = made(tmp_path / "a"), made(tmp_path / "b"), random.Random(seed)
    kept = [Kept(b"".join(enqueue("version 2", message(body), n) for n, body in enumerate((b"kept", b"too"), 1)))]
    quarantine = make_quarantine(tmp_path / "kept", kept)
    before, steps = script(first, second, quarantine)
    done = killed(str(first), steps, chance.randint(1, CALLS * len(steps)))
    states = [before, *(step.state for step in steps)]
    found = held_by(first, second)
    assert found in states[done : done + 2], (found, steps, done)
    (entry,) = Quarantine(OsDisk(), str(quarantine)).entries()
    assert isinstance(entry, QuarantineEntry)
    is_there = states.index(found) >= 3
    assert is_there <= (entry.injected is not None)
    assert (entry.injected is not None and entry.injected.is_known) <= is_there
    rest = steps[states.index(found) :]
    if is_there or entry.injected is None:  # else an operator decides: it is marked as begun, not injected again
        where = first if states.index(found) < 2 else second
        assert killed(str(where), rest, 0) == len(rest)
        assert held_by(first, second) == states[-1]


broker = pytest.fixture(one_broker, scope="module")


def prepare(connection: Connection, queue: str, numbers: range) -> None:
    """A branch in doubt for each number, with a message."""
    session = connection.session()
    session.invoke("queue.declare", queue=queue, durable=True)
    session.invoke("dtx.select")
    for number in numbers:
        xid = BranchId(7, b"g", b"%d" % number)
        session.invoke("dtx.start", xid=xid)
        session.sender(queue).send(Message(str(number), durable=True))
        session.invoke("dtx.end", xid=xid)
        session.invoke("dtx.prepare", xid=xid)
    session.close()


@pytest.mark.parametrize("seed", seeds_of_the_day(1))
def test_a_broker(broker: RunningBroker, seed: int) -> None:
    url, chance = f"amqp://127.0.0.1:{broker.port}", random.Random(seed)

    def left() -> list[str]:
        return sorted(line["xid"] for line in objects(url, "list transactions"))

    with Connection(url.removeprefix("amqp://")) as connection:
        prepare(connection, "doubts", range(3))
        xids = left()
        steps = [Step(f"resolve {xid} {outcome}", {}) for xid, outcome in zip(xids, OUTCOMES, strict=True)]
        done = killed(url, steps, chance.randint(1, 20))
        assert alone(url)
        assert comes(lambda: left() in (xids[done:], xids[done + 1 :]))
        decided = len(xids) - len(left())
        assert bodies(url, "doubts") == ["0", "2"][: (decided + 1) // 2]
        for step in steps[decided:]:
            assert killed(url, [step], 0) == 1
        assert bodies(url, "doubts") == ["0", "2"]
        connection.session().invoke("queue.delete", queue="doubts")
