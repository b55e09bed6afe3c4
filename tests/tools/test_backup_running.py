"""`qstore-backup` of a running broker: a consistent state, whatever goes on and whichever process is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import qstore.store.backup.sources as running
from qstore.broker.client import Connection, Empty, Message
from qstore.broker.management.console import AgentError, Console
from qstore.store.backup.create import ChunkWriter, Effort
from qstore.store.backup.repository import DiskRepository
from qstore.store.disk import OsDisk
from qstore.store.environment import tool_environment
from qstore.store.live.snapshot import SharedSnapshot
from qstore.tools.backup_places import workers
from qstore.tools.qstore_check import command as check_command
from tests.support.dump import dump
from tests.support.forked import ROOT
from tests.support.opened_store import Calls, OpenedStore
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker
from tests.tools.test_backup import backup, made, refused, restore
from tests.tools.test_backup_slow_place import Clock

__all__ = ["make_broker"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    running = RunningBroker(tmp_path_factory.mktemp("broker"), "--num-jfiles", "4", "--jfile-size-pgs", "1")
    running.start()
    yield running
    running.close()


def url_of(broker: RunningBroker) -> str:
    return f"amqp://127.0.0.1:{broker.port}"


def connection_to(broker: RunningBroker) -> Connection:
    return Connection(f"127.0.0.1:{broker.port}")


def held(store: Path) -> list[dict[str, Any]]:
    """What a store holds, after a thorough check."""
    result = CliRunner().invoke(check_command, [str(store), "--paranoid"])
    assert result.exit_code == 0, result.output
    return [line for line in dump(store, "--outstanding", "--json").lines() if line["kind"] != "damage"]


def bodies(store: Path, queue: str) -> list[str]:
    return [line["body"] for line in held(store) if line["kind"] == "message" and line["queue"] == queue]


def test_all_that_was_there_comes_back(tmp_path: Path, broker: RunningBroker) -> None:
    place, url = tmp_path / "place", url_of(broker)
    with connection_to(broker) as connection:
        session = connection.session()
        session.invoke("exchange.declare", exchange="x", type="topic", durable=True)
        senders = [session.sender(f"{name}; {{create: always, node: {{durable: true}}}}") for name in "ab"]
        session.invoke("exchange.bind", queue="a", exchange="x", binding_key="k.#")
        for number in range(20):
            senders[number % 2].send(Message(str(number), durable=True, properties={"n": number}))
        first = made(url, place, "--verify")
        assert (first["running"], first["based_on"], first["store"]) == (True, None, str(broker.data_directory))
        again = made(url, place)
        assert again["based_on"] == first["id"]
        assert again["new_bytes"] < 2000  # marks of the store
        senders[0].send(Message("later", durable=True))
        third = made(url, place)
        assert 60_000 < third["new_bytes"] < 200_000  # one file of the journal
        assert made(url, place, "--full", "--keep", "2")["removed"] == [first["id"], again["id"]]
    assert restore(place, tmp_path / "restored", "--backup", third["id"]).exit_code == 0
    lines = held(tmp_path / "restored")
    assert [line["body"] for line in lines if line["kind"] == "message" and line["queue"] == "a"] == [
        *map(str, range(0, 20, 2)),
        "later",
    ]
    assert ("x", "a", "k.#") in [(x["exchange"], x["queue"], x["key"]) for x in lines if x["kind"] == "binding"]
    assert not (broker.data_directory / "rhm.snapshots").exists()
    with Console(f"127.0.0.1:{broker.port}") as console:
        (found,) = console.query("backup", package="qstore")
        assert (found["snapshots"], found["snapshotsTaken"]) == (0, 4)


def test_it_is_one_moment_for_all_queues(tmp_path: Path, broker: RunningBroker) -> None:
    """Tokens move from queue to queue in transactions, through small journals; none is lost, and none there twice."""
    names, tokens, stop = ("t0", "t1", "t2"), 40, threading.Event()
    moved: Counter[str] = Counter()
    with connection_to(broker) as connection:
        session = connection.session()
        for name in names:
            session.sender(f"{name}; {{create: always, node: {{durable: true}}}}").close()
        sender = session.sender("t0")
        for number in range(tokens):
            sender.send(Message(f"{number:04d}" + "x" * 1000, durable=True))

    def move(source: str, target: str) -> None:
        with connection_to(broker) as own:
            session = own.session(transactional=True)
            receiver, sender = session.receiver(source, capacity=10), session.sender(target)
            while not stop.is_set():
                try:
                    message = receiver.fetch(0.05)
                except Empty:
                    continue
                sender.send(message)
                session.acknowledge()
                session.commit()
                moved[source] += 1

    threads = [threading.Thread(target=move, args=(names[n], names[(n + 1) % 3])) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        found = []
        for _ in range(3):
            while moved.total() < 100 * (1 + len(found)) and all(thread.is_alive() for thread in threads):
                time.sleep(0.01)
            found.append(made(url_of(broker), tmp_path / "place"))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert min(moved[name] for name in names) > 20
    for each in found:
        path = tmp_path / each["id"]
        assert restore(tmp_path / "place", path, "--backup", each["id"]).exit_code == 0
        messages = [line for line in held(path) if line["kind"] == "message" and line["queue"] in names]
        assert sorted(line["body"][:4] for line in messages) == [f"{number:04d}" for number in range(tokens)]


def start_of_a_backup(broker: RunningBroker, place: Path) -> subprocess.Popen[str]:
    """A backup that has its snapshot and goes no further: its PLACE is a pipe that is never written to."""
    code = (
        "import sys, time, qstore.store.backup.create as chunks\n"
        "def stall(*_):\n    print('stalled', flush=True)\n    time.sleep(600)\n"
        "chunks.ChunkWriter.write = stall\n"
        "from qstore.tools.qstore_backup import main\nmain()"
    )
    command = [sys.executable, "-c", code, url_of(broker), str(place)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "stalled\n"
    return process


def test_a_tool_that_is_killed_leaves_nothing_in_the_broker(tmp_path: Path, broker: RunningBroker) -> None:
    snapshots = broker.data_directory / "rhm.snapshots"
    process = start_of_a_backup(broker, tmp_path / "place")
    assert snapshots.is_dir()
    assert all(path.stat().st_mode & 0o077 == 0 for path in snapshots.rglob("*"))
    process.kill()
    process.communicate()
    end = time.monotonic() + 20
    while snapshots.exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert not snapshots.exists()
    made(url_of(broker), tmp_path / "place")


def test_a_broker_that_is_killed_starts_again_and_the_backup_fails(tmp_path: Path, make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    with connection_to(broker) as connection:
        connection.session().sender("q; {create: always, node: {durable: true}}").send(Message("kept", durable=True))
    first = made(url_of(broker), tmp_path / "place")
    process = start_of_a_backup(broker, tmp_path / "place")
    broker.kill()
    assert (broker.data_directory / "rhm.snapshots").is_dir()
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    broker.start()
    assert not (broker.data_directory / "rhm.snapshots").exists()
    assert made(url_of(broker), tmp_path / "place")["based_on"] == first["id"]
    broker.stop()
    stopped = made(broker.data_directory, tmp_path / "place")
    assert (stopped["running"], stopped["based_on"]) == (False, None)
    for each in (first, stopped):
        assert restore(tmp_path / "place", tmp_path / each["id"], "--backup", each["id"]).exit_code == 0
        assert bodies(tmp_path / each["id"], "q") == ["kept"]


def test_backup_without_permission_or_broker_is_refused(tmp_path: Path, make_broker: BrokerMaker) -> None:
    (tmp_path / "acl").write_text("acl deny all update broker\nacl allow all all\n")
    broker = make_broker("--acl-file", str(tmp_path / "acl"), "--mgmt-enable", "yes").start()
    refused(backup(url_of(broker), tmp_path / "place"), "ot allowed")
    assert not (broker.data_directory / "rhm.snapshots").exists()
    refused(backup("amqp://127.0.0.1:1", tmp_path / "place"), "127.0.0.1:1")
    refused(backup(broker.data_directory, tmp_path / "place"), "amqp://HOST:PORT")
    assert backup(broker.data_directory, tmp_path / "place", "--store-dir", tmp_path).exit_code == 2


def test_a_snapshot_belongs_to_its_connection(tmp_path: Path, broker: RunningBroker) -> None:
    refused(backup(url_of(broker), tmp_path / "place", "--store-dir", tmp_path), "the broker's snapshot is not there")
    where = f"127.0.0.1:{broker.port}"
    with Console(where) as console, Console(where) as other:
        (agent,) = console.query("backup", package="qstore")
        taken = [console.call(agent, "begin")["snapshot"] for _ in range(4)]
        for call in (lambda: other.call(agent, "begin"), lambda: other.call(agent, "end", snapshot=taken[0])):
            with pytest.raises(AgentError, match=r"4 snapshots are in use|no snapshot"):
                call()
        with pytest.raises(AgentError, match="must be a list of integers"):
            console.call(agent, "copied", snapshot=taken[0], queues=[-1])
        assert console.call(agent, "copied", snapshot=taken[0], queues=[12345])["overtaken"] == [12345]
        console.call(agent, "end", snapshot=taken[0])
        with pytest.raises(AgentError, match="no snapshot"):
            console.call(agent, "copied", snapshot=taken[0], queues=[])


def test_invalid_snapshot_description_is_refused(tmp_path: Path, broker: RunningBroker) -> None:
    from qstore.store.live.snapshot import decode_cut

    with Console(f"127.0.0.1:{broker.port}") as console:
        (agent,) = console.query("backup", package="qstore")
        taken = console.call(agent, "begin")
        content = (Path(taken["directory"]) / taken["path"] / "CUT").read_bytes()
    fields = json.loads(content)
    assert decode_cut(content, "/s").journals[-1].directory == "/s/tpl"
    for length in range(0, len(content), 7):
        with pytest.raises(ValueError, match=r"\w"):
            decode_cut(content[:length], "/s")
    for name, value in (
        ("directory", "../../etc"), ("directory", "jrnl/../../x"), ("base_name", "../x"), ("files", 1 << 40),
        ("size", 0), ("size", -128), ("ring", [0, 0, 1, 2]), ("ring", [0]), ("cut", [1]),
        ("cut", [0, -5, 1, 1, 0, 0, 0]), ("queue_id", None), ("queue_id", "1"),
    ):  # fmt: skip
        changed = {**fields, "journals": [{**fields["journals"][-1], name: value}]}
        with pytest.raises(ValueError, match=r"\w"):
            decode_cut(json.dumps(changed).encode(), "/s")


def test_the_command_stands_back_for_a_broker(
    tmp_path: Path, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Effort] = []
    begin = ChunkWriter.__init__

    def noted(self: ChunkWriter, place: DiskRepository, known: set[str], effort: Effort, advance: object) -> None:
        found.append(effort)
        begin(self, place, known, effort, advance)  # type: ignore[arg-type]

    monkeypatch.setattr(ChunkWriter, "__init__", noted)
    for options in ((), ("--nice", "3", "--max-rate", "50"), ("--nice", "0", "--full-speed")):
        made(url_of(broker), tmp_path / "place", *options)
    assert [(each.niceness, each.max_rate, each.pace is not None) for each in found] == [
        (15, 0, True), (3, 50 << 20, True), (0, 0, False),
    ]  # fmt: skip
    assert [each.workers for each in found] == [1, 1, workers()]


def test_read_journals_are_reported_to_the_broker_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that was read grows no more, however long the others take; many are reported together."""
    opened, clock = OpenedStore(tool_environment(), tmp_path / "store"), Clock()
    said: list[list[int]] = []
    for name in "abc":
        opened.make_queue(name)
    taken = Calls()
    opened.store.share_snapshot(taken)
    opened.wait(taken)
    shared, _ = taken[0]
    assert isinstance(shared, SharedSnapshot)
    monkeypatch.setattr(running, "time", clock)

    def copied(queue_ids: Sequence[int]) -> list[int]:
        said.append(list(queue_ids))
        return shared.copied(queue_ids)

    source = running.RunningSource(OsDisk(), str(shared.directory), shared.name, copied, shared.release)
    first, second, third, *_ = [part for part in source.parts() if part.queue_id is not None]
    source.was_read(first)
    source.was_read(second)
    assert said == []
    clock.now += 0.2
    source.alive()
    assert said == [[first.queue_id, second.queue_id]]
    clock.now += 0.2
    source.alive()
    assert len(said) == 1
    source.was_read(third)
    assert said[1:] == [[third.queue_id]]
    clock.now += 6
    source.alive()
    assert said[2:] == [[]]
    source.check()
    opened.store.close()
