"""A durable queue takes more messages than its journal was created for, keeps them over a kill, and shrinks again."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from qstore.formats.rhm.jinf import JournalInfo, decode_jinf
from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import RawPeer, SessionEndedError
from tests.support.running_broker import BrokerMaker, RunningBroker

_SMALL = ("--num-jfiles", "4", "--jfile-size-pgs", "1")  # 252 KiB
_UNLIMITED = {"qpid.max_size": 0}
_MESSAGES = 6000  # of 1 KiB
_RESOURCE_LIMIT_EXCEEDED = 506


def _journal(broker: RunningBroker) -> Path:
    """The directory of the queue's journal; those of a higher number are in stock."""
    return min((broker.data_directory / "rhm" / "jrnl").glob("[0-9]*"), key=lambda path: int(path.name))


def _info(broker: RunningBroker) -> JournalInfo:
    (path,) = _journal(broker).glob("*.jinf")
    return decode_jinf(path.read_bytes())


def _data_files(broker: RunningBroker) -> int:
    return len(list(_journal(broker).glob("*.jdat")))


def _body(number: int) -> bytes:
    return b"%06d" % number + b"x" * 1018


def _publish(port: int, first: int, last: int) -> None:
    with RawPeer(port) as peer:
        for number in range(first, last):
            peer.publish("q", _body(number))
            if number % 500 == 0:
                peer.sync()
        peer.sync()
        peer.end()


def test_a_backlog_that_outgrows_the_journal(make_broker: BrokerMaker) -> None:
    broker = make_broker(*_SMALL, "--log-enable", "info+").start()
    with RawPeer(broker.port) as peer:
        peer.declare("q", arguments=_UNLIMITED)
        peer.end()
    _publish(broker.port, 0, _MESSAGES)
    grown = _info(broker)
    assert grown.geometry.capacity > _MESSAGES * 1152
    assert grown.initial_files == 4
    broker.kill()
    broker.start()
    _publish(broker.port, _MESSAGES, _MESSAGES + 500)
    with RawPeer(broker.port) as peer:
        assert peer.message_count("q") == _MESSAGES + 500
        peer.subscribe("q")
        deliveries = peer.take(_MESSAGES + 500)
        assert [int(delivery.body[:6]) for delivery in deliveries] == list(range(_MESSAGES + 500))
        peer.accept(deliveries, sync=True)
        peer.sync()
        peer.end()
    limit = time.monotonic() + PATIENCE_SECONDS
    while (_info(broker).geometry.files > 4 or _data_files(broker) > 4) and time.monotonic() < limit:
        time.sleep(0.2)  # the ring is smaller first, then its files are deleted
    assert (_info(broker).geometry.files, _data_files(broker)) == (4, 4)
    assert re.search(r'The journal of queue "q" has \d+ files now, \d+ MiB', broker.log.read_text())
    assert broker.stop() == 0


def test_a_queue_with_a_limit(make_broker: BrokerMaker) -> None:
    broker = make_broker(*_SMALL).start()
    with RawPeer(broker.port) as peer:
        peer.declare("q", arguments=_UNLIMITED | {"qpid.max_journal_size": 1})
        peer.end()
    with pytest.raises(SessionEndedError) as ended:
        _publish(broker.port, 0, _MESSAGES)
    assert ended.value.code == _RESOURCE_LIMIT_EXCEEDED
    assert "its journal has reached its limit of 15 files" in ended.value.text
    with RawPeer(broker.port) as peer:
        assert peer.message_count("q") > 500
        peer.end()
    assert broker.stop() == 0
