"""A broker process whose messages go to paging files: they come back, space is given back, a kill leaves nothing."""

from __future__ import annotations

import contextlib
import stat
import time
from pathlib import Path

import pytest

from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import BrokerMaker, RunningBroker

_BODY = b"." * 2000


def _publish(broker: RunningBroker, queue: str, count: int, *, durable: bool) -> None:
    with RawPeer(broker.port) as peer:
        peer.declare(queue, durable=durable, arguments={"qpid.paging": True})
        for number in range(count):
            peer.publish(queue, b"%06d" % number + _BODY, durable=durable)
            if number % 500 == 0:
                peer.sync()
        peer.sync()
        peer.end()


def _consume(broker: RunningBroker, queue: str, count: int) -> None:
    with RawPeer(broker.port) as peer:
        peer.subscribe(queue)
        deliveries = peer.take(count)
        assert [int(delivery.body[:6]) for delivery in deliveries] == list(range(count))
        peer.accept(deliveries, sync=True)
        peer.end()


def _files(directory: Path) -> list[Path]:
    while True:
        with contextlib.suppress(FileNotFoundError):  # a directory is being removed
            return sorted(directory.glob("*.run/*.pages"))


def _wait_until_gone(directory: Path, files: list[Path]) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while set(_files(directory)) & set(files) and time.monotonic() < limit:
        time.sleep(0.05)  # a thread removes them
    assert not set(_files(directory)) & set(files)


@pytest.mark.parametrize("has_store", [True, False])
def test_a_backlog_and_its_end(make_broker: BrokerMaker, tmp_path: Path, has_store: bool) -> None:
    options = [] if has_store else ["--no-data-dir", "--paging-dir", str(tmp_path / "pages")]
    broker = make_broker(*options)
    if not has_store:
        command = broker.command
        broker.command = lambda *more: [  # type: ignore[method-assign]
            word for word in command(*more) if word not in ("--load-module", "store", "--data-dir")
            and word != str(broker.data_directory)
        ]  # fmt: skip
    broker.start()
    pages = tmp_path / "pages" if not has_store else broker.data_directory / "paging"
    for _ in range(2):
        _publish(broker, "q", 4000, durable=False)
        (file,) = _files(pages)
        assert file.stat().st_size > 6 << 20
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(pages.stat().st_mode) == 0o700
        _consume(broker, "q", 4000)
        _wait_until_gone(pages, [file])
    _publish(broker, "q", 1500, durable=False)
    assert _files(pages)
    assert broker.stop() == 0
    assert not list(pages.iterdir())


def test_a_kill_while_messages_are_out(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    _publish(broker, "transient", 3000, durable=False)
    _publish(broker, "durable", 3000, durable=True)
    pages = broker.data_directory / "paging"
    assert _files(pages)
    broker.kill()
    left = _files(pages)
    assert left
    broker.start()
    _wait_until_gone(pages, left)
    _consume(broker, "durable", 3000)
    assert broker.stop() == 0


def test_a_directory_has_one_broker(make_broker: BrokerMaker, tmp_path: Path) -> None:
    first = make_broker("--paging-dir", str(tmp_path / "pages")).start()
    second = make_broker("--paging-dir", str(tmp_path / "pages"))
    with pytest.raises(AssertionError):
        second.start()
    assert "another broker has its paging files there" in second.log_text()
    assert first.stop() == 0
