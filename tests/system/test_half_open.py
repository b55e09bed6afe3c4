"""Connections that are never opened: their time is limited in each stage, and they do not keep others out."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qstore.broker.security.users.user_file import Users
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER
from tests.support.certificates import Certificates
from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import ConnectionClosedError, RawConnection
from tests.support.running_broker import BrokerMaker, allow_open_files


def connected(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS, source_address=(source, 0))


def hello(certificates: Certificates) -> bytes:
    """A TLS hello."""
    context = ssl.create_default_context(cafile=certificates.trusted)
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_the_time_of_each_stage_is_limited(make_broker: BrokerMaker, tmp_path: Path) -> None:
    certificates, users = Certificates(tmp_path), Users(str(tmp_path / "users"))
    users.put("anna", "secret")
    broker = make_broker(
        "--max-negotiate-time", "1500", "--ssl-port", "0", "--ssl-cert", certificates.server(),
        "--auth", "yes", "--user-file", users.path,
    ).start()  # fmt: skip

    def raw(*controls: tuple[str, dict[str, object]], header: bytes = PROTOCOL_HEADER) -> socket.socket:
        connection = RawConnection(broker.port)
        connection.send_bytes(header)
        for name, values in controls:
            connection.send_control(name, **values)
        return connection.socket

    def encrypted() -> socket.socket:
        context = ssl.create_default_context(cafile=certificates.trusted)
        return context.wrap_socket(connected(broker.port), server_hostname="127.0.0.1")

    start = ("connection.start-ok", {"mechanism": "PLAIN", "response": b"\0anna\0secret", "locale": "en_US"})
    tune = ("connection.tune-ok", {"channel_max": 1, "max_frame_size": 4096, "heartbeat": 0})
    stages: dict[str, Callable[[], socket.socket]] = {
        "nothing": lambda: connected(broker.port),
        "half a header": lambda: raw(header=PROTOCOL_HEADER[:5]),
        "a header": raw,
        "half a login": lambda: raw(("connection.start-ok", {"mechanism": "SCRAM-SHA-256", "locale": "en_US"})),
        "a login": lambda: raw(start),
        "limits": lambda: raw(start, tune),
        "TLS": encrypted,
    }
    began = time.monotonic()
    sockets = {stage: make() for stage, make in stages.items()}
    for part in (1, 3, 100):
        sockets[f"{part} bytes of a TLS hello"] = connected(broker.port)
        sockets[f"{part} bytes of a TLS hello"].sendall(hello(certificates)[:part])
    for found in sockets.values():
        found.settimeout(PATIENCE_SECONDS)
        with found, contextlib.suppress(ConnectionResetError, ssl.SSLError):
            while found.recv(65536):
                pass
    assert 1.5 <= time.monotonic() - began < PATIENCE_SECONDS
    with RawConnection(broker.port) as other:
        other.open("PLAIN", b"\0anna\0secret")
    broker.stop()
    assert broker.log_text().count("was not opened within") == 0  # that is for log level info
    assert "Traceback" not in broker.log_text()


@contextlib.contextmanager
def flood(port: int, count: int, *, source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """Connections that say nothing, or the header only."""
    sockets: list[socket.socket] = []
    try:
        for number in range(count):
            found = connected(port, source)
            sockets.append(found)
            with contextlib.suppress(OSError):  # the broker has disconnected it
                found.sendall(PROTOCOL_HEADER if number % 2 else b"")
        yield sockets
    finally:
        for found in sockets:
            found.close()


def check_service(port: int, source: str) -> None:
    """Open a connection as others do."""
    with RawConnection(port) as connection:
        connection.socket.close()
        connection.socket = connected(port, source)
        connection.open()


def test_half_open_connections_leave_the_service_to_others(make_broker: BrokerMaker) -> None:
    broker = make_broker("--max-connections", "20", "--max-negotiate-time", "60000").start()
    with RawConnection(broker.port) as before:
        before.open()
        with flood(broker.port, 100):
            for source in ("127.0.0.1", "127.0.0.2"):
                check_service(broker.port, source)
            before.send_control("connection.heartbeat")
            before.socket.settimeout(0.05)
            with pytest.raises(TimeoutError):  # it is still open
                before.socket.recv(1)
        assert broker.open_files() < 20 + 60
    assert "disconnected before its connection was open" in broker.log_text()


def test_a_host_with_few_connections_is_not_displaced_by_one_with_many(make_broker: BrokerMaker) -> None:
    broker = make_broker("--max-connections", "20", "--max-negotiate-time", "60000").start()
    with RawConnection(broker.port) as slow:
        slow.socket.close()
        slow.socket = connected(broker.port, "127.0.0.2")
        with flood(broker.port, 200):
            slow.open()


def test_open_connections_are_not_displaced(make_broker: BrokerMaker) -> None:
    broker = make_broker("--max-connections", "3").start()
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(RawConnection(broker.port)).open()
        refused = stack.enter_context(RawConnection(broker.port))
        with pytest.raises(ConnectionClosedError, match="limit of connections"):
            refused.open()


@pytest.mark.soak
def test_ten_thousand_half_open_connections(make_broker: BrokerMaker) -> None:
    allow_open_files(12_000)
    broker = make_broker("--max-negotiate-time", "600000").start()
    before = broker.resident_bytes()
    with flood(broker.port, 10_000):
        for source in ("127.0.0.1", "127.0.0.2"):
            check_service(broker.port, source)
        assert broker.open_files() < 600
        assert broker.resident_bytes() - before < 64 << 20
