"""Logins over real sockets: with a user file and without one, and uses of the user's name."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import amqp
import pytest
from click.testing import CliRunner

from qstore import Connection, Message
from qstore.broker.client.errors import AuthenticationError
from qstore.broker.security.users.verifiers import MECHANISMS, SCRAM_HASHES
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.codes import CloseCode, ErrorCode
from qstore.tools.qstore_passwd import command as set_password
from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import ConnectionClosedError, RawConnection, RawPeer, SessionEndedError
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


def add(users: Path, name: str, *options: str) -> None:
    done = CliRunner().invoke(set_password, [*options, "--stdin", str(users), name], input="secret\n")
    assert done.exit_code == 0, done.output


@pytest.fixture
def full_broker(make_broker: BrokerMaker, tmp_path: Path) -> str:
    """The address of one that knows Anna, who can log in with every mechanism."""
    users = tmp_path / "users"
    add(users, "anna", *(word for each in MECHANISMS for word in ("--mechanism", each)))
    return f"127.0.0.1:{make_broker('--auth', 'yes', '--user-file', str(users)).start().port}"


@pytest.fixture
def broker(make_broker: BrokerMaker, tmp_path: Path) -> RunningBroker:
    """One that knows Anna and Bert."""
    users = tmp_path / "users"
    for name in ("anna", "bert"):
        add(users, name)
    return make_broker("--auth", "yes", "--user-file", str(users)).start()


def test_only_the_right_password_is_accepted(broker: RunningBroker) -> None:
    with Anna(broker.port) as anna:
        anna.declare("q", durable=False)
        anna.end()
    for response in (b"\0anna\0wrong", b"\0nobody\0secret", b"\0anna\0", b"\0anna", b"anna\0anna\0secret\0more"):
        with RawConnection(broker.port) as connection, pytest.raises(ConnectionClosedError) as refused:
            connection.open("PLAIN", response)
        assert refused.value.args[0] == CloseCode.CONNECTION_FORCED
        assert "anna" not in refused.value.args[1]


def test_mechanism_that_is_not_offered_is_refused(broker: RunningBroker) -> None:
    """A client that asks for ANONYMOUS nevertheless is refused as if its password were wrong."""
    with RawConnection(broker.port) as connection:
        connection.exchange_headers()
        assert list(connection.expect("connection.start")["mechanisms"]) == ["SCRAM-SHA-256", "PLAIN", "AMQPLAIN"]
        connection.send_control("connection.start-ok", mechanism="ANONYMOUS", response=b"", locale="en_US")
        with pytest.raises(ConnectionClosedError) as refused:
            connection.expect("connection.tune")
        assert refused.value.args[0] == CloseCode.CONNECTION_FORCED


def test_a_failed_login_is_answered_late_for_any_user(broker: RunningBroker) -> None:
    """For an unknown user and a wrong password alike; meanwhile others are served."""

    def seconds(response: bytes) -> float:
        began = time.monotonic()
        with RawConnection(broker.port) as connection, pytest.raises(ConnectionClosedError):
            connection.open("PLAIN", response)
        return time.monotonic() - began

    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(seconds, response) for response in (b"\0anna\0wrong", b"\0nobody\0wrong")]
        with Anna(broker.port) as anna:
            anna.sync()
            anna.end()
        late = [each.result() for each in waiting]
    assert min(late) >= BrokerSettings().failed_login_seconds


@pytest.mark.parametrize("protocol", ["amqp0-10", "amqp1.0"])
@pytest.mark.parametrize(
    "mechanism", [*SCRAM_HASHES, "DIGEST-MD5", "CRAM-MD5", "CRAM-MD5-HASHED", "CRAM-MD5-HEX", "PLAIN"]
)
def test_the_client_speaks_every_mechanism(full_broker: str, mechanism: str, protocol: str) -> None:
    options = {"username": "anna", "password": "secret", "sasl_mechanisms": mechanism, "protocol": protocol}
    with Connection(full_broker, **options) as connection:
        session = connection.session()
        session.sender("q; {create: always}").send(Message("hello", user_id="anna"))
        assert session.receiver("q").fetch(timeout=PATIENCE_SECONDS).user_id == "anna"
        session.acknowledge()


def test_a_client_that_knows_only_amqplain(broker: RunningBroker) -> None:
    """As php-amqplib."""
    where = f"127.0.0.1:{broker.port}"
    with amqp.Connection(where, authentication=amqp.sasl.AMQPLAIN("anna", "secret")) as connection:
        assert connection.channel().queue_declare("", exclusive=True).queue
    with pytest.raises(amqp.exceptions.AccessRefused):
        amqp.Connection(where, authentication=amqp.sasl.AMQPLAIN("anna", "wrong")).connect()


def test_the_client_reports_why_it_was_refused(full_broker: str) -> None:
    with pytest.raises(AuthenticationError, match="Authentication failed"):
        Connection.establish(full_broker, username="anna", password="wrong")
    with pytest.raises(AuthenticationError, match="a user name and a password are required"):
        Connection.establish(full_broker)
    with pytest.raises(AuthenticationError, match="only GSSAPI may be used"):
        Connection.establish(full_broker, username="anna", password="wrong", sasl_mechanisms="GSSAPI")


def test_users_come_and_go_while_the_broker_runs(make_broker: BrokerMaker, tmp_path: Path) -> None:
    users = tmp_path / "users"
    add(users, "anna")
    broker = make_broker("--auth", "yes", "--user-file", str(users)).start()
    where = f"127.0.0.1:{broker.port}"
    with pytest.raises(AuthenticationError):
        Connection.establish(where, username="bert", password="secret")
    add(users, "bert")
    Connection.establish(where, username="bert", password="secret").close()
    assert CliRunner().invoke(set_password, ["--delete", str(users), "anna"]).exit_code == 0
    with pytest.raises(AuthenticationError):
        Connection.establish(where, username="anna", password="secret")


def test_a_message_has_its_own_senders_name_or_none(broker: RunningBroker) -> None:
    with Anna(broker.port) as anna:
        anna.declare("q", durable=False)
        anna.subscribe("q")
        for name in (None, b"", b"anna", b"anna@QPID"):
            anna.publish("q", b"", durable=False, properties={"user_id": name})
        assert [delivery.properties().get("user_id") for delivery in anna.take(4)] == [None, b"", b"anna", b"anna@QPID"]
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
