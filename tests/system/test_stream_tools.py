"""The tools on a store with a stream: its messages, and their offsets, are the same after each of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pika
import pytest

from tests.support.forked import ROOT
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker
from tests.system.test_streams import STREAM, opened, read, stores_offset, until

COUNT: Final = 3000
_PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)


def tool(name: str, *arguments: object) -> str:
    """Run a tool; it succeeds."""
    command = [sys.executable, "-m", f"qstore.tools.{name}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def fill(broker: RunningBroker) -> int:
    """A stream whose record ids have gaps, and whose oldest messages have left. Returns the first offset."""
    with opened(broker) as channel:
        channel.queue_declare("other", durable=True)
        channel.queue_declare("s", durable=True, arguments={**STREAM, "x-max-length-bytes": 300_000})
        for number in range(COUNT):
            channel.basic_publish("", "s", b"%06d" % number + b"." * 200, _PERSISTENT)
            if number % 100 == 0:
                channel.basic_publish("", "other", b"x", _PERSISTENT)
        channel.confirm_delivery()
        channel.basic_publish("", "other", b"x", _PERSISTENT)
        until(lambda: channel.queue_declare("s", passive=True).method.message_count * 206 <= 300_000)  # no more leave
        assert len(read(channel, "s", 7, 2000, tag="t", stream_consumer_name="n")) == 7
        first = read(channel, "s", 1)[0][0]
    assert 0 < first < 2000
    return first


def assert_offsets(broker: RunningBroker, first: int) -> None:
    """Each message, and the name, has the offset that it had."""
    with opened(broker) as channel:
        found = read(channel, "s", COUNT - first, prefetch=1000)
        assert [offset for offset, _ in found] == list(range(first, COUNT))
        assert all(int(body[:6]) == offset for offset, body in found)
        assert read(channel, "s", 1, "first", tag="t", stream_consumer_name="n")[0][0] >= 2007


@pytest.fixture
def stopped(make_broker: BrokerMaker) -> tuple[RunningBroker, int, Path]:
    """A stopped broker with a stream, its first offset, and the store."""
    broker = make_broker().start()
    first = fill(broker)
    assert broker.stop() == 0
    (store,) = broker.data_directory.glob("**/rhm")
    return broker, first, store.parent


def test_resizing_keeps_offsets(stopped: tuple[RunningBroker, int, Path]) -> None:
    broker, first, store = stopped
    tool("qstore_resize", store, "s", "--num-jfiles", 16, "--jfile-size-pgs", 8)
    broker.start()
    assert_offsets(broker, first)


def test_backup_and_restore_keep_offsets(stopped: tuple[RunningBroker, int, Path], tmp_path: Path) -> None:
    broker, first, store = stopped
    tool("qstore_backup", store, tmp_path / "backups")
    restored = tmp_path / "restored"
    tool("qstore_restore", tmp_path / "backups", restored)
    shutil.rmtree(store / "rhm")
    shutil.move(next(restored.glob("**/rhm")), store / "rhm")
    broker.start()
    assert_offsets(broker, first)


def test_a_backup_of_a_running_broker_keeps_offsets(make_broker: BrokerMaker, tmp_path: Path) -> None:
    broker = make_broker("--auth", "no").start()
    first = fill(broker)
    until(lambda: stores_offset(broker, 2007))
    tool("qstore_backup", f"amqp://127.0.0.1:{broker.port}", tmp_path / "backups")
    broker.kill()
    (rhm,) = broker.data_directory.glob("**/rhm")
    restored = tmp_path / "restored"
    tool("qstore_restore", tmp_path / "backups", restored)
    shutil.rmtree(rhm)
    shutil.move(next(restored.glob("**/rhm")), rhm)
    broker.start()
    assert_offsets(broker, first)


def test_recovery_keeps_offsets(stopped: tuple[RunningBroker, int, Path], tmp_path: Path) -> None:
    broker, first, store = stopped
    recovered = tmp_path / "recovered"
    tool("qstore_recover", store, recovered)
    shutil.rmtree(store / "rhm")
    shutil.move(next(recovered.glob("**/rhm")), store / "rhm")
    broker.start()
    assert_offsets(broker, first)


def test_the_tools_show_streams(stopped: tuple[RunningBroker, int, Path], tmp_path: Path) -> None:
    _, first, store = stopped
    lines = [json.loads(line) for line in tool("qstore_dump", store, "--json", "--queue", "s").splitlines()]
    bodies = [line for line in lines if "rid" in line or "body" in line]
    assert len(bodies) >= COUNT - first
    tool("qstore_check", store)
    assert "s" in tool("qstore_size", "--from", store)
    tool("qstore_export", store, tmp_path / "exported.jsonl")
    assert (tmp_path / "exported.jsonl").read_text().count("......") >= COUNT - first


def test_a_start_reads_only_the_index_of_a_long_stream(stopped: tuple[RunningBroker, int, Path]) -> None:
    broker, first, _ = stopped
    for _ in range(2):
        began = time.monotonic()
        broker.start()
        assert time.monotonic() - began < PATIENCE_SECONDS
        assert_offsets(broker, first)
        broker.kill()
    broker.start()
    assert_offsets(broker, first)
