"""A long start of a broker: it reports its progress to the log and the service manager."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import Final

from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import BrokerMaker

MESSAGES: Final = 4000
#: As if every step took seconds.
LONG: Final = """
from qstore.broker.process import service_manager
service_manager.LOG_SECONDS = service_manager._NOTIFY_SECONDS = 0.0
from qstore.broker.process.qpidd import main
main()
"""


def test_progress_goes_to_the_manager_and_the_log(make_broker: BrokerMaker, tmp_path: Path) -> None:
    broker = make_broker("--jfile-size-pgs", "1", "--num-jfiles", "4").start()
    with RawPeer(broker.port) as peer:
        peer.declare("q", arguments={"qpid.last_value_queue_key": "none"})  # whose messages a start reads
        for number in range(MESSAGES):
            peer.publish("q", b"%d" % number)
            if number % 1000 == 0:
                peer.sync()
        peer.sync()
    broker.kill()
    broker.program = (sys.executable, "-c", LONG)
    broker.environment["NOTIFY_SOCKET"] = str(tmp_path / "notify")
    reported: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_SECONDS)
        broker.launch()
        while not reported or not reported[-1].startswith("READY=1"):
            reported.append(manager.recv(1000).decode())
    broker.wait_for_port()
    assert reported[-1] == f"READY=1\nSTATUS=Listening on port {broker.port}"
    texts = []
    for each in reported[:-1]:
        extension, status = each.split("\n")
        assert extension == "EXTEND_TIMEOUT_USEC=120000000"
        texts.append(status.removeprefix("STATUS="))
    walked = re.compile(r'Starting: reading journal 1 of 1, "q": \d+ %; [\d,]+ messages so far')
    reading = [text for text in texts if walked.fullmatch(text)]
    recovered = [text for text in texts if text.startswith("Starting: recovered ")]
    assert reading
    assert recovered[-1] == f'Starting: recovered 4,000 of {MESSAGES:,} messages; at queue 1 of 1, "q"'
    log = broker.log_text()
    assert all(text in log for text in (reading[-1], recovered[-1]))
    assert broker.stop() == 0
