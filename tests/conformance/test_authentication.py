"""Who may come in, over real sockets: with a user file, without one, and what a user's name is good for."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from qstore.formats.amqp_0_10.codes import CloseCode, ErrorCode
from qstore.tools.qstore_passwd import command as set_password
from tests.support.raw_connection import ConnectionClosedError, RawConnection
from tests.support.raw_peer import RawPeer, SessionEndedError
from tests.support.running_broker import BrokerMaker, RunningBroker


class NamedPeer(RawPeer):
    """A peer that says who it is."""

    credentials = b""

    def open(self, mechanism: str = "PLAIN", response: bytes = b"", heartbeat: int = 0) -> None:
        """As `RawConnection.open`, by name and password."""
        super().open(mechanism, self.credentials, heartbeat)


class Anna(NamedPeer):
    credentials = b"\0anna\0secret"


class Bert(NamedPeer):
    credentials = b"\0bert\0secret"


@pytest.fixture
def broker(make_broker: BrokerMaker, tmp_path: Path) -> RunningBroker:
    """One that knows Anna and Bert."""
    users = tmp_path / "users"
    for name in ("anna", "bert"):
        done = CliRunner().invoke(set_password, ["--stdin", str(users), name], input="secret\n")
        assert done.exit_code == 0, done.output
    return make_broker("--auth", "yes", "--user-file", str(users)).start()


def test_who_has_the_password_is_let_in_and_nobody_else(broker: RunningBroker) -> None:
    with Anna(broker.port) as anna:
        anna.declare("q", durable=False)
        anna.end()
    for response in (b"\0anna\0wrong", b"\0nobody\0secret", b"\0anna\0", b"\0anna", b"anna\0anna\0secret\0more"):
        with RawConnection(broker.port) as connection, pytest.raises(ConnectionClosedError) as refused:
            connection.open("PLAIN", response)
        assert refused.value.args[0] == CloseCode.CONNECTION_FORCED
        assert "anna" not in refused.value.args[1]


def test_what_is_not_offered_is_not_taken(broker: RunningBroker) -> None:
    """Whoever asks for ANONYMOUS nevertheless is refused as if the password had been wrong."""
    with RawConnection(broker.port) as connection:
        connection.exchange_headers()
        assert list(connection.expect("connection.start")["mechanisms"]) == ["PLAIN"]
        connection.send_control("connection.start-ok", mechanism="ANONYMOUS", response=b"", locale="en_US")
        with pytest.raises(ConnectionClosedError) as refused:
            connection.expect("connection.tune")
        assert refused.value.args[0] == CloseCode.CONNECTION_FORCED


def test_a_message_has_its_own_senders_name_or_none(broker: RunningBroker) -> None:
    with Anna(broker.port) as anna:
        anna.declare("q", durable=False)
        anna.subscribe("q")
        for name in (None, b"anna", b"anna@QPID"):
            anna.publish("q", b"", durable=False, properties={"user_id": name})
        assert [delivery.properties().get("user_id") for delivery in anna.take(3)] == [None, b"anna", b"anna@QPID"]
        anna.publish("q", b"", durable=False, properties={"user_id": b"bert@QPID"})
        with pytest.raises(SessionEndedError) as refused:
            anna.sync()
        assert refused.value.code == ErrorCode.UNAUTHORIZED_ACCESS


def test_sessions_of_two_users_may_have_one_name(broker: RunningBroker) -> None:
    with Anna(broker.port, name=b"session") as anna, Bert(broker.port, name=b"session") as bert:
        anna.sync()
        bert.sync()
        anna.end()
        bert.end()
