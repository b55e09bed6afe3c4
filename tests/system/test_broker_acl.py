"""Access control of a real broker: what its file says holds, SIGHUP reads it again, and a wrong one is refused."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qstore.formats.amqp_0_10.codes import CloseCode, ErrorCode, XaStatus
from qstore.formats.amqp_0_10.structs import BranchId
from qstore.formats.values import typed_map
from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import ConnectionClosedError, PeerGoneError, RawPeer, SessionEndedError
from tests.support.running_broker import BrokerMaker, RunningBroker


class Anna(RawPeer):
    """Logs in as anna; without --auth every password is right."""

    user = "anna"

    def open(self, mechanism: str = "PLAIN", response: bytes = b"", heartbeat: int = 0) -> None:
        super().open(mechanism, response or f"\0{self.user}\0-".encode(), heartbeat)


class Bert(Anna):
    user = "bert"


def after_a_while(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.01)
    return False


def reload(broker: RunningBroker, file: Path, text: str, logged: str) -> None:
    file.write_text(text)
    before = broker.log_text().count(logged)
    os.kill(broker.pid, signal.SIGHUP)
    assert after_a_while(lambda: broker.log_text().count(logged) > before), broker.log_text()


def refusal(make: Callable[[], RawPeer]) -> str:
    with pytest.raises(ConnectionClosedError) as caught:
        make()
    code, text = caught.value.args
    assert code == CloseCode.CONNECTION_FORCED
    return str(text)


def test_a_file_with_an_error_keeps_the_broker_from_starting(make_broker: BrokerMaker, tmp_path: Path) -> None:
    file = tmp_path / "broker.acl"
    file.write_text("acl allow all all\nacl allow bob@QPID eat queue\n")
    broker = make_broker("--acl-file", str(file))
    broker.launch()
    assert broker.stop(0) == 1
    assert f"{file}: line 2: Unknown ACL action \"eat\": 'acl allow bob@QPID eat queue'" in broker.log_text()
    assert "Traceback" not in broker.log_text()


def test_rules_quotas_and_reloads(make_broker: BrokerMaker, tmp_path: Path) -> None:
    broker = make_broker("--acl-file", "broker.acl", "--max-queues-per-user", "2", "--connection-limit-per-ip", "4")
    broker.data_directory.mkdir(parents=True)
    file = broker.data_directory / "broker.acl"
    quotas = "quota connections 2 anna@QPID\nquota connections 9 all\n"
    file.write_text(f"acl deny-log anna@QPID purge queue\nacl allow all all\n{quotas}")
    broker.start()
    with Anna(broker.port) as anna:
        anna.declare("q1")
        anna.declare("q2", durable=True)
        with pytest.raises(SessionEndedError) as ended:
            anna.declare("q3")
        assert ended.value.code == ErrorCode.UNAUTHORIZED_ACCESS
        assert 'user "anna@QPID" may not have more than 2 queues: "q3" is refused' in ended.value.text
    with Anna(broker.port) as anna:
        with pytest.raises(SessionEndedError) as ended:
            anna.call("queue.purge", queue="q1")
        assert ended.value.code == ErrorCode.UNAUTHORIZED_ACCESS
        assert after_a_while(lambda: "ACL Deny id:anna@QPID action:purge ObjectType:queue Name:q1" in broker.log_text())
        with Anna(broker.port):
            assert 'the limit of connections of user "anna@QPID" is reached' in refusal(lambda: Anna(broker.port))
            with Bert(broker.port) as bert, Bert(broker.port):
                assert "the limit of connections of this client's host" in refusal(lambda: Bert(broker.port))
                bert.publish("q2", b"1")
                bert.sync()
                # rules that are read again hold for clients that are there already
                reload(broker, file, "acl deny bert@QPID publish exchange\nacl allow all all\n", "ACL: Read file")
                bert.publish("q2", b"2")
                with pytest.raises(SessionEndedError) as ended:
                    bert.sync()
                assert ended.value.code == ErrorCode.UNAUTHORIZED_ACCESS
    reload(broker, file, "acl allow all all all all\n", "ACL file not loaded, the rules remain as they are")
    with Bert(broker.port) as bert:
        bert.publish("q2", b"3")
        with pytest.raises(SessionEndedError):
            bert.sync()
    # a host that no rule lets in is disconnected before it has said anything
    reload(broker, file, "acl deny all create connection host=127.0.0.1\nacl allow all all\n", "ACL: Read file")
    with pytest.raises((PeerGoneError, ConnectionResetError, BrokenPipeError, ConnectionClosedError)):
        Bert(broker.port)
    assert broker.stop() == 0, broker.log_text()
    # the queues of a user count after a restart, too
    file.write_text("acl allow all all\nquota queues 1 anna@QPID\n")
    broker.start()
    with Anna(broker.port) as anna:
        assert anna.message_count("q2") == 1
        with pytest.raises(SessionEndedError) as ended:
            anna.declare("q4")
    assert "may not have more than 1 queues" in ended.value.text
    assert broker.stop() == 0, broker.log_text()


def test_forwarding_lasts_and_branches_keep_their_user_over_a_crash(make_broker: BrokerMaker) -> None:
    broker = make_broker("--acl-file", "broker.acl")
    broker.data_directory.mkdir(parents=True)
    file = broker.data_directory / "broker.acl"
    file.write_text("acl allow all all\n")
    broker.start()
    xid = BranchId(1, b"global", b"branch")
    letters = typed_map({"x-dead-letter-exchange": "kx"})
    with Anna(broker.port) as anna:
        anna.call("exchange.declare", exchange="kx", type="topic", durable=True)
        anna.declare("hot", durable=True)
        anna.call("exchange.bind", exchange="kx", queue="hot", binding_key="hot.#")
        anna.call("queue.declare", queue="hot.work", durable=True, arguments=letters)
        anna.publish("hot.work", b"to be rejected", durable=True)
        anna.call("dtx.select")
        anna.call("dtx.start", xid=xid)
        anna.publish("hot", b"in the branch", durable=True)
        anna.call("dtx.end", xid=xid)
        assert anna.call("dtx.prepare", xid=xid)["status"] == XaStatus.XA_OK
        anna.sync()
        broker.kill()
    file.write_text("acl deny all publish exchange name=kx\nacl deny all all transaction\nacl allow all all\n")
    broker.start()
    for command, values in (
        ("dtx.commit", {"xid": xid}), ("dtx.rollback", {"xid": xid}),
        ("queue.declare", {"queue": "another", "arguments": letters}),
    ):  # fmt: skip
        with Bert(broker.port) as bert:
            bert.call("dtx.select")
            assert bert.call("dtx.recover")["in_doubt"].values == ()
            with pytest.raises(SessionEndedError) as ended:
                bert.call(command, **values)
            assert ended.value.code == ErrorCode.UNAUTHORIZED_ACCESS
    with Anna(broker.port) as anna:
        anna.call("dtx.select")
        assert len(anna.call("dtx.recover")["in_doubt"].values) == 1
        assert anna.call("dtx.commit", xid=xid)["status"] == XaStatus.XA_OK
        anna.subscribe("hot.work")
        (delivery,) = anna.take(1)
        anna.call("message.reject", transfers=((delivery.number, delivery.number),))
        assert anna.message_count("hot") == 2, "messages are forwarded as it was allowed when the queue was created"
        anna.end()
    assert broker.stop() == 0, broker.log_text()
