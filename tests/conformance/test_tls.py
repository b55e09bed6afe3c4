"""Encrypted connections over real sockets: the client, the stock `ssl` module, `openssl s_client`, and hostile ones."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import amqp
import pika
import pytest
from click.testing import CliRunner

from qstore import Connection, Message, aio
from qstore.broker.client.errors import AuthenticationError, ConnectError
from qstore.broker.management.console import AgentError, Console
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER
from qstore.tools.qstore_passwd import command as set_password
from tests.support.certificates import Certificates
from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import RawConnection
from tests.support.running_broker import BrokerMaker, RunningBroker


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    found = Certificates(tmp_path_factory.mktemp("certificates"))
    found.server()
    return found


def shared(certificates: Certificates, *options: str) -> tuple[str, ...]:
    """Options of a broker with and without TLS on one port."""
    return ("--ssl-port", "0", "--ssl-cert", certificates.server(), "--ssl-ca", certificates.trusted, *options)


@pytest.fixture
def broker(make_broker: BrokerMaker, certificates: Certificates) -> RunningBroker:
    return make_broker(*shared(certificates)).start()


def encrypted(port: int, certificates: Certificates, certificate: str | None = None) -> ssl.SSLSocket:
    """The stock module's connection."""
    context = ssl.create_default_context(cafile=certificates.trusted)
    if certificate is not None:
        context.load_cert_chain(certificate)
    plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


class EncryptedConnection(RawConnection):
    """Frames over TLS."""

    def __init__(self, port: int, certificates: Certificates, certificate: str | None = None) -> None:
        super().__init__(port)
        self.socket.close()
        self.socket = encrypted(port, certificates, certificate)


def round_trip(connection: Connection, content: bytes) -> None:
    session = connection.session()
    session.sender("q; {create: always, node: {durable: true}}").send(Message(content, durable=True))
    assert session.receiver("q").fetch(timeout=PATIENCE_SECONDS).content == content
    session.acknowledge()


def test_with_and_without_tls_on_one_port(broker: RunningBroker, certificates: Certificates) -> None:
    content = os.urandom(3_000_000)
    with Connection(f"amqps://127.0.0.1:{broker.port}", ssl_trustfile=certificates.trusted) as connection:
        round_trip(connection, content)
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        round_trip(connection, content)


async def test_the_client_for_asyncio(broker: RunningBroker, certificates: Certificates) -> None:
    options = {"transport": "ssl", "ssl_trustfile": certificates.trusted}
    async with aio.Connection(f"127.0.0.1:{broker.port}", **options) as connection:
        session = await connection.session()
        sender = await session.sender("q; {create: always}")
        await sender.send(Message(b"x" * 1_000_000))
        receiver = await session.receiver("q")
        assert len((await receiver.fetch(timeout=PATIENCE_SECONDS)).content) == 1_000_000
        await session.acknowledge()
    with pytest.raises(ConnectError, match="TLS: the certificate is not accepted"):
        await aio.Connection(f"amqps://127.0.0.1:{broker.port}").open()


def test_many_messages_in_both_directions(broker: RunningBroker, certificates: Certificates) -> None:
    """More than the sockets hold: the writer has to wait for the reader."""
    with Connection(f"ssl:127.0.0.1:{broker.port}", ssl_trustfile=certificates.trusted) as connection:
        session = connection.session()
        sender = session.sender("q; {create: always}", capacity=100)
        for number in range(300):
            sender.send(Message(bytes([number % 256]) * 100_000), sync=False)
        sender.sync()
        receiver = session.receiver("q", capacity=300)
        for number in range(300):
            assert receiver.fetch(timeout=PATIENCE_SECONDS).content == bytes([number % 256]) * 100_000
        session.acknowledge()


def test_untrusted_certificate_is_refused_by_the_client(broker: RunningBroker, certificates: Certificates) -> None:
    where = f"amqps://127.0.0.1:{broker.port}"
    with pytest.raises(ConnectError, match="TLS: the certificate is not accepted"):
        Connection.establish(where)
    with pytest.raises(ConnectError, match="Hostname mismatch"):
        Connection.establish(f"amqps://localhost:{broker.port}", ssl_trustfile=certificates.trusted)
    Connection.establish(
        f"amqps://localhost:{broker.port}", ssl_trustfile=certificates.trusted, ssl_skip_hostname_check=True
    ).close()


def test_the_user_of_a_certificate(make_broker: BrokerMaker, certificates: Certificates) -> None:
    broker = make_broker(*shared(certificates, "--auth", "yes", "--log-enable", "info+")).start()
    for file, user in (
        (certificates.client("bob"), "bob@QPID"),
        (certificates.client_of_domain("bob", "acme", "com"), "bob@acme.com"),
    ):
        options = {"ssl_trustfile": certificates.trusted, "ssl_certificate": file}
        with Connection(f"amqps://127.0.0.1:{broker.port}", **options) as connection:
            round_trip(connection, b"x")
        assert broker.has_logged(f"connection opened by {user}")
    with EncryptedConnection(broker.port, certificates) as connection:
        connection.exchange_headers()
        assert list(connection.expect("connection.start")["mechanisms"]) == ["ANONYMOUS"]


def test_each_client_must_have_a_certificate(make_broker: BrokerMaker, certificates: Certificates) -> None:
    broker = make_broker(*shared(certificates, "--ssl-require-client-authentication", "yes")).start()
    where, options = f"amqps://127.0.0.1:{broker.port}", {"ssl_trustfile": certificates.trusted}
    Connection.establish(where, ssl_certificate=certificates.client("bob"), **options).close()
    with pytest.raises(ConnectError):  # what TLS 1.3 tells late may be lost with the reset
        Connection.establish(where, **options)
    assert broker.has_logged("TLS: the client has no certificate")


def test_only_encrypted_connections(make_broker: BrokerMaker, certificates: Certificates) -> None:
    broker = make_broker(*shared(certificates, "--require-encryption", "yes")).start()
    Connection.establish(f"amqps://127.0.0.1:{broker.port}", ssl_trustfile=certificates.trusted).close()
    with pytest.raises(ConnectError, match="only encrypted connections are accepted"):
        Connection.establish(f"127.0.0.1:{broker.port}", username="guest", password="guest")
    assert "see --require-encryption" in broker.log_text()


def test_passwords_over_tls(make_broker: BrokerMaker, certificates: Certificates, tmp_path: Path) -> None:
    users = str(tmp_path / "users")
    assert CliRunner().invoke(set_password, ["--stdin", users, "anna"], input="secret\n").exit_code == 0
    options = ("--auth", "yes", "--user-file", users, "--ssl-sasl-no-dict", "yes")
    broker = make_broker(*shared(certificates, *options)).start()
    with pytest.raises(AuthenticationError, match="no SASL mechanism"):
        Connection.establish(
            f"amqps://127.0.0.1:{broker.port}", ssl_trustfile=certificates.trusted, username="anna", password="secret"
        )
    Connection.establish(f"127.0.0.1:{broker.port}", username="anna", password="secret").close()


def test_a_port_of_its_own(make_broker: BrokerMaker, certificates: Certificates) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = ("--ssl-port", str(port), "--ssl-cert", certificates.server(), "--interface", "127.0.0.1")
    broker = make_broker(*options).start()
    assert broker.port != port
    Connection.establish(f"amqps://127.0.0.1:{port}", ssl_trustfile=certificates.trusted).close()
    Connection.establish(f"127.0.0.1:{broker.port}").close()
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as plain:
        plain.sendall(PROTOCOL_HEADER)
        assert plain.recv(100) == b""
    with pytest.raises(ConnectError, match=r"the peer does not speak TLS|has closed the connection"):
        Connection.establish(f"amqps://127.0.0.1:{broker.port}", ssl_trustfile=certificates.trusted)
    log = broker.log_text()
    assert f"Listening for SSL connections on TCP/TCP6 port {port} (127.0.0.1;" in log
    assert "only TLS is accepted on this port" in log
    assert "Refused a TLS client" in log


def _talk(client: subprocess.Popen[bytes], said: bytes) -> tuple[bytes, bytes]:
    """Say something, and read until the other end closes: `openssl s_client` ends when its input does."""
    assert client.stdin is not None
    assert client.stdout is not None
    assert client.stderr is not None
    client.stdin.write(said)
    client.stdin.flush()
    output = client.stdout.read()
    return output, client.stderr.read()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_s_client(broker: RunningBroker, certificates: Certificates, version: str) -> None:
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{broker.port}", "-CAfile", certificates.trusted]
    command += ["-quiet", "-verify_return_error", "-verify_ip", "127.0.0.1", version]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
        output, errors = _talk(client, b"GET / HTTP/1.0\r\n\r\n")
    assert output == PROTOCOL_HEADER, errors
    assert broker.has_logged("Refused an HTTP client")


def test_the_hello_in_single_bytes_and_data_with_the_last_of_it(
    broker: RunningBroker, certificates: Certificates
) -> None:
    context = ssl.create_default_context(cafile=certificates.trusted)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_SECONDS) as plain:
        with pytest.raises(ssl.SSLWantReadError):
            session.do_handshake()
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in outgoing.read():
            plain.sendall(bytes([byte]))
        while True:
            incoming.write(plain.recv(65536))
            try:
                session.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
        session.write(PROTOCOL_HEADER)
        plain.sendall(outgoing.read())  # with the client's last message of the handshake
        while True:
            try:
                assert session.read(len(PROTOCOL_HEADER)) == PROTOCOL_HEADER
                return
            except ssl.SSLWantReadError:
                incoming.write(plain.recv(65536))


@pytest.mark.parametrize("begin", [b"\x16", b"\x16\x03", b"\x16\x03\x01\xff\xff" + b"x" * 70_000, b"\x16\x02abcdefgh"])
def test_an_invalid_hello_does_no_harm(broker: RunningBroker, certificates: Certificates, begin: bytes) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_SECONDS) as hostile:
        hostile.sendall(begin)
        with EncryptedConnection(broker.port, certificates) as other:
            other.open()
    assert "Traceback" not in broker.log_text()


def test_a_damaged_record_ends_the_connection_and_only_this(broker: RunningBroker, certificates: Certificates) -> None:
    with EncryptedConnection(broker.port, certificates) as other, EncryptedConnection(broker.port, certificates) as one:
        other.open()
        one.open()
        assert isinstance(one.socket, ssl.SSLSocket)
        with socket.socket(fileno=os.dup(one.socket.fileno())) as plain:
            plain.sendall(b"\x17\x03\x03\x00\x20" + b"x" * 32)
        assert broker.has_logged("bad record mac")
        other.send_control("connection.heartbeat")
        with EncryptedConnection(broker.port, certificates) as third:
            third.open()


def serial_number(port: int, certificates: Certificates) -> int:
    """Of the certificate that a broker shows."""
    with encrypted(port, certificates) as found:
        certificate = found.getpeercert()
        assert certificate is not None
        return int(str(certificate["serialNumber"]), 16)


def test_a_certificate_is_replaced_on_sighup(make_broker: BrokerMaker, certificates: Certificates) -> None:
    file = Path(certificates.server(file="replaced.pem"))
    broker = make_broker("--ssl-port", "0", "--ssl-cert", str(file)).start()
    first = serial_number(broker.port, certificates)
    with EncryptedConnection(broker.port, certificates) as old:
        old.open()
        certificates.server(file="replaced.pem")
        assert serial_number(broker.port, certificates) == first
        os.kill(broker.pid, signal.SIGHUP)
        assert broker.has_logged("Failed logins since the start: 0")
        second = serial_number(broker.port, certificates)
        assert second != first
        old.send_control("connection.heartbeat")
        file.write_text("nonsense")
        os.kill(broker.pid, signal.SIGHUP)
        assert broker.has_logged("the previous certificate stays in use")
        assert serial_number(broker.port, certificates) == second


def test_a_certificate_is_replaced_by_management(make_broker: BrokerMaker, certificates: Certificates) -> None:
    file = Path(certificates.server(file="managed.pem"))
    broker = make_broker("--ssl-port", "0", "--ssl-cert", str(file)).start()
    first = serial_number(broker.port, certificates)
    with Console(f"127.0.0.1:{broker.port}") as console:
        (security,) = console.query("security")
        assert security["failedLogins"] == 0
        certificates.server(file="managed.pem")
        console.call(security, "reload")
        second = serial_number(broker.port, certificates)
        assert second != first
        file.write_text("nonsense")
        with pytest.raises(AgentError, match="the previous certificate stays in use"):
            console.call(security, "reload")
        assert serial_number(broker.port, certificates) == second


def test_mistakes_are_found_before_the_broker_starts(make_broker: BrokerMaker, certificates: Certificates) -> None:
    for options, text in (
        (("--ssl-cert", "/nowhere"), "see --ssl-cert"),
        (("--ssl-port", "5671"), "--ssl-port needs a certificate"),
        (("--require-encryption", "yes"), "--require-encryption needs a certificate"),
        (("--ssl-cert-db", "/etc/pki"), "pk12util"),
        (("--ssl-cert", certificates.server(), "--ssl-require-client-authentication", "yes"), "needs --ssl-ca"),
        (("--sasl-mechanisms", "PLIAN"), "unknown SASL mechanism 'PLIAN'"),
    ):
        broker = make_broker(*options)
        broker.launch()
        assert broker.stop(0) == 1
        assert text in broker.log_text()


def test_clients_of_0_9_1_log_in_with_a_certificate_or_a_password(
    make_broker: BrokerMaker, certificates: Certificates, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    assert CliRunner().invoke(set_password, ["--stdin", str(users), "bert"], input="secret\n").exit_code == 0
    options = ("--auth", "yes", "--user-file", str(users), "--sasl-mechanisms", "EXTERNAL AMQPLAIN")
    broker = make_broker(*shared(certificates, *options)).start()
    context = ssl.create_default_context(cafile=certificates.trusted)
    context.load_cert_chain(certificates.client("anna"))
    with pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            broker.port,
            credentials=pika.credentials.ExternalCredentials(),
            ssl_options=pika.SSLOptions(context, "127.0.0.1"),
        )
    ) as connection:
        channel = connection.channel()
        channel.queue_declare("q", exclusive=True)
        channel.basic_publish("", "q", b"x", pika.BasicProperties(user_id="anna"))
        assert channel.basic_get("q")[2] == b"x"
    for password, is_right in ((b"secret", True), (b"wrong", False)):
        login = amqp.Connection(
            f"127.0.0.1:{broker.port}", authentication=amqp.sasl.AMQPLAIN("bert", password.decode()), connect_timeout=5
        )
        if is_right:
            with login:
                assert login.channel().queue_declare("", exclusive=True).queue
        else:
            with pytest.raises(amqp.exceptions.AccessRefused):
                login.connect()
