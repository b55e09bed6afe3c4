"""A live broker with a store under a fire of fuzzed conversations, several at a time, for seconds or for minutes.

What must hold: the process goes on and serves a client that behaves, logs no defect, keeps nothing of those that are
gone (memory and descriptors), ends cleanly, and leaves a store that opens and that `qstore-check` finds sound.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from qstore.broker.management.console import Console
from qstore.broker.model.queues.due import WAITING
from qstore.formats.amqp_0_10.codes import ErrorCode
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER
from qstore.formats.amqp_1_0.frames import AMQP_HEADER
from qstore.tools.qstore_check import command as check_store
from tests.support.processes import PATIENCE_SECONDS
from tests.support.profiles import today
from tests.support.raw_peer import ConnectionClosedError, PeerGoneError, RawConnection, RawPeer, SessionEndedError
from tests.support.running_broker import BrokerMaker, RunningBroker
from tests.support.sections_peer import FrameWire
from tests.system.broker_canary import Canary
from tests.system.fuzzed_conversations import OWN_EXCHANGES, QUEUES, Conversation, Login, Named, damaged, named_in
from tests.system.fuzzed_links import LINKS, SUBSCRIPTIONS, LinksConversation

PEERS: Final = 6
"""Conversations at one time."""
ROUND: Final = 60
"""Conversations until all is cleaned up and looked at."""
MAX_GROWTH: Final = 4 << 20
"""Bytes of memory more than after the first rounds, all cleaned up: the catalogue's 1 MiB, and a heap in pieces."""
MAX_WHILE_RUNNING: Final = 512 << 20
"""Bytes of memory more while conversations go on: what queues, sessions and peers that do not read may hold."""
MAX_CATALOGUE_FILES: Final = 20
"""RocksDB has some eight open, and a few tables more until it merges them."""
MORE_JOURNAL_FILES: Final = 5
"""Of the canary's journal its next one, and two each of the transactions' journal and that of scheduled messages: not
open from the start."""
_LINGER_NEVER: Final = struct.pack("ii", 1, 0)
_DEFECTS: Final = ("Traceback", " critical ", "unexpected", "defect", "never awaited", "never retrieved")
_UNTIL_ANSWERED: Final = 20.0


class Tally:
    """What was done."""

    def __init__(self) -> None:
        self.connections = self.octets = self.frames = self.commands = self.hung_up_on = 0
        self.queues: set[str] = set()
        self.exchanges: set[str] = set()
        self.sessions: set[tuple[Login, bytes]] = set()
        self._lock = threading.Lock()

    def add(self, sent: int, named: Named, *, hung_up: bool) -> None:
        with self._lock:
            self.connections += 1
            self.octets += sent
            self.frames += named.frames
            self.commands += named.commands
            self.hung_up_on += hung_up
            self.queues |= named.queues
            self.exchanges |= named.exchanges
            self.sessions |= named.sessions


# ---- ways of saying it ----


def _send(connection: RawConnection, content: bytes) -> bool:
    """Send it and read what comes meanwhile. Whether the broker has hung up."""
    rest, peer = memoryview(content), connection.socket
    peer.setblocking(False)
    end = time.monotonic() + _UNTIL_ANSWERED
    while rest:
        readable, writable, _ = select.select([peer], [peer], [], 1.0)
        if readable and not peer.recv(1 << 18):
            return True
        if writable:
            rest = rest[peer.send(rest[: 1 << 16]) :]
            end = time.monotonic() + _UNTIL_ANSWERED
        assert time.monotonic() < end, "the broker neither reads nor hangs up"
    return False


def _all_at_once(connection: RawConnection, content: bytes, _source: random.Random) -> bool:
    return _send(connection, content) or _read_to_end(connection)


def _in_pieces(connection: RawConnection, content: bytes, source: random.Random) -> bool:
    """Slowly at first, and reading now and then."""
    place = 0
    for _ in range(30):
        size = source.choice((1, 7, 12, 100, 1000, 4096))
        if _send(connection, content[place : place + size]):
            return True
        place += size
        time.sleep(source.choice((0, 0.001, 0.005)))
    return _send(connection, content[place:]) or _read_to_end(connection)


def _answered(connection: RawConnection, content: bytes, source: random.Random) -> bool:
    """It stays a while after the last word: what was asked for comes."""
    if _send(connection, content):
        return True
    connection.socket.settimeout(source.choice((0.01, 0.05, 0.2)))
    try:
        while connection.socket.recv(1 << 18):
            pass
    except TimeoutError:
        return False
    return True


def _without_reading(connection: RawConnection, content: bytes, source: random.Random) -> bool:
    """The broker may stop reading from one that does not read: then it hangs up."""
    connection.socket.settimeout(source.choice((0.1, 0.5)))
    try:
        connection.socket.sendall(content)
        time.sleep(source.choice((0.01, 0.2)))
    except TimeoutError:
        pass
    return False


def _cut_off(connection: RawConnection, content: bytes, source: random.Random) -> bool:
    """The connection is lost in the middle, by reset."""
    hung_up = _send(connection, content[: source.randrange(len(content) + 1)])
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NEVER)
    return hung_up


def _read_to_end(connection: RawConnection) -> bool:
    """Say that nothing more comes, and wait for the broker to hang up as well."""
    connection.socket.settimeout(_UNTIL_ANSWERED)
    connection.socket.shutdown(socket.SHUT_WR)
    try:
        while connection.socket.recv(1 << 18):
            pass
    except TimeoutError:
        raise AssertionError("the broker does not hang up on a peer that has") from None
    return True


_WAYS: Final[tuple[Callable[[RawConnection, bytes, random.Random], bool], ...]] = (
    *(_all_at_once, _all_at_once, _in_pieces, _answered, _answered, _without_reading, _cut_off),
)


def _converse(port: int, seed: str, tally: Tally) -> None:
    """One conversation: its seed says everything about it but when what comes."""
    source = random.Random(seed)
    said = Conversation(source, source.choice((0.0, 0.05, 0.4)), source.randint(3, 60))
    other = Conversation(source, 0.3, 10)
    is_sound = source.random() < 0.4
    content = b"".join(said.frames) if is_sound else damaged(source, said.frames, other.frames)
    way = source.choice(_WAYS)
    buffer = 4096 if way is _without_reading else None
    hung_up = True
    try:
        with RawConnection(port, receive_buffer=buffer) as connection:
            hung_up = way(connection, content, source)
    except (PeerGoneError, OSError):
        pass
    tally.add(len(content), named_in(content), hung_up=hung_up)


def _converse_links(port: int, seed: str, tally: Tally) -> None:
    """As `_converse`, over AMQP 1.0. What it may leave is known by name."""
    source = random.Random(seed)
    said = LinksConversation(source, source.choice((0.0, 0.05, 0.4)), source.randint(3, 60))
    other = LinksConversation(source, 0.3, 10)
    is_sound = source.random() < 0.4
    content = b"".join(said.frames) if is_sound else damaged(source, said.frames, other.frames)
    way = source.choice(_WAYS)
    hung_up = True
    try:
        with RawConnection(port, receive_buffer=4096 if way is _without_reading else None) as connection:
            hung_up = way(connection, content, source)
    except (PeerGoneError, OSError):
        pass
    named = Named({*QUEUES, *SUBSCRIPTIONS, *LINKS, "nowhere"}, {*OWN_EXCHANGES, "nowhere"}, set(), len(said.frames), 0)
    tally.add(len(content), named, hung_up=hung_up)


# ---- what is left of them ----


def _clean_up(port: int, tally: Tally) -> list[str]:
    """Take over every session and end it, then delete what was declared. What could not be deleted, and why."""
    for login, name in tally.sessions:
        with RawConnection(port) as connection:
            try:
                connection.open(*login)
            except ConnectionClosedError:  # nobody can log in like that
                continue
            connection.send_control("session.attach", 1, name=name, force=True)
            connection.send_control("session.request-timeout", 1, timeout=0)
            connection.send_control("session.detach", 1, name=name)
            connection.send_control("connection.close", reply_code=200, reply_text="")
            _read_to_end(connection)
    _remove(port, "queue.purge", tally.queues)  # what is on them could else have no room where it goes
    _remove(port, "exchange.delete", tally.exchanges)
    left = _remove(port, "queue.delete", tally.queues)
    left += _remove(port, "exchange.delete", tally.exchanges)  # those that were a queue's alternate exchange
    tally.sessions.clear()
    tally.exchanges.clear()
    tally.queues.clear()
    return left


def _remove(port: int, command: str, names: Iterable[str]) -> list[str]:
    """Do it to each. What the broker refused, and why, other than that it is not there."""
    refused: list[str] = []
    peer, field = RawPeer(port), command.partition(".")[0]
    try:
        for name in names:
            try:
                peer.call(command, **{field: name})
            except SessionEndedError as error:
                if error.code != ErrorCode.NOT_FOUND:
                    refused.append(f"{command} {name!r}: {error}")
                peer.close()
                peer = RawPeer(port)
        peer.end()
    finally:
        peer.close()
    return refused


def _until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, what()
        time.sleep(0.02)


def _defects(broker: RunningBroker) -> list[str]:
    return [
        line for line in broker.log.read_text(errors="replace").splitlines() if any(map(line.__contains__, _DEFECTS))
    ]


class Fuzzing:
    """Rounds of conversations against one broker, each cleaned up and looked at."""

    def __init__(
        self, broker: RunningBroker, seed: int, converse: Callable[[int, str, Tally], None] = _converse
    ) -> None:
        self.broker, self.seed, self.tally, self._converse = broker, seed, Tally(), converse
        self.canary = Canary(broker)
        self.canary.sing()
        self.sockets, self.files = self.descriptors()
        self.rounds = 0
        self.most_while_running = 0

    def round(self) -> int:
        """One round; the memory that the broker holds after it."""
        port, number = self.broker.port, self.rounds
        self.rounds += 1
        with ThreadPoolExecutor(PEERS) as pool:
            running = [
                pool.submit(self._converse, port, f"{self.seed}/{number}/{each}", self.tally) for each in range(ROUND)
            ]
            for count, conversation in enumerate(running):
                conversation.result()
                if count % 20 == 0:
                    self.canary.sing(MAX_WHILE_RUNNING)
        self.most_while_running = max(self.most_while_running, self.broker.resident_bytes())
        _until(lambda: self.descriptors()[0] <= self.sockets, lambda: f"{self.sockets} sockets, now {self._links()}")
        if self._converse is _converse_links:  # a damaged name of a container or a link is that of a queue
            self.tally.queues |= self._left_queues()
        left = _clean_up(port, self.tally)
        _until(self._has_let_go, lambda: f"{self.sockets} sockets, {self.files} files; now {self._links()}; {left}")
        self.canary.sing(MAX_WHILE_RUNNING)
        assert not _defects(self.broker), (number, _defects(self.broker)[:3], self.broker.log_text())
        return self.broker.resident_bytes()

    def _left_queues(self) -> set[str]:
        """The queues that are there, but for the canary's, the console's and that of scheduled messages."""
        with Console(f"127.0.0.1:{self.broker.port}") as console:
            names = {str(each.values["name"]) for each in console.query("queue")}
        return {name for name in names if name != WAITING and not name.startswith(("canary-", "console."))}

    def _links(self) -> list[str]:
        """What its descriptors are of, but for those that are closed meanwhile."""
        links: list[str] = []
        for descriptor in Path(f"/proc/{self.broker.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                links.append(os.readlink(descriptor))
        return sorted(links)

    def descriptors(self) -> tuple[int, int]:
        """Sockets, and others but for the catalogue's, which come and go as RocksDB writes tables and merges them."""
        links = self._links()
        sockets = sum(link.startswith("socket:") for link in links)
        catalogue = sum("/catalogue/" in link for link in links)
        assert catalogue <= MAX_CATALOGUE_FILES, links
        return sockets, len(links) - sockets - catalogue

    def _has_let_go(self) -> bool:
        """Whether no socket is left, and no file but those that the store opens when it first needs them."""
        sockets, files = self.descriptors()
        return sockets <= self.sockets and files <= self.files + MORE_JOURNAL_FILES

    def end(self) -> None:
        """The broker ends, its store is sound, and it begins again with what it had."""
        self.canary.close()
        assert self.broker.stop() == 0, self.broker.log_text()
        checked = CliRunner().invoke(check_store, [str(self.broker.data_directory)])
        assert checked.exit_code == 0, checked.output
        self.broker.start()
        with RawPeer(self.broker.port) as peer:
            assert peer.message_count(self.canary.queue) == 0
            peer.end()
        assert self.broker.stop() == 0
        assert not _defects(self.broker)


def _start(make_broker: BrokerMaker) -> RunningBroker:
    small = ("--num-jfiles", "4", "--jfile-size-pgs", "1", "--tpl-num-jfiles", "4", "--tpl-jfile-size-pgs", "1")
    return make_broker(*small, "--default-queue-limit", "5000000", "--log-enable", "warning+").start()


@pytest.mark.parametrize("converse", [_converse, _converse_links], ids=["0-10", "1.0"])
@pytest.mark.parametrize("seed", today(range(4), 1))
def test_fuzzed_conversations(make_broker: BrokerMaker, seed: int, converse: Callable[[int, str, Tally], None]) -> None:
    fuzzing = Fuzzing(_start(make_broker), seed, converse)
    for _ in range(4):
        fuzzing.round()
    fuzzing.end()


def test_sound_conversations_are_understood() -> None:
    """What is damaged is a conversation otherwise: frames to the end, and commands in them."""
    for seed in range(20):
        said = Conversation(random.Random(seed), 0.0, 30)
        content = b"".join(said.frames)
        named = named_in(content)
        assert content.startswith(PROTOCOL_HEADER)
        assert named.sessions
        assert named.commands >= 30
        assert named.frames >= len(said.frames) - 1


def test_conversations_of_1_0_are_understood() -> None:
    """Those without nonsense are frames that can be decoded."""
    for seed in range(20):
        said = LinksConversation(random.Random(seed), 0.0, 30)
        wire = FrameWire()
        wire.feed(b"".join(said.frames))
        assert wire.headers == [AMQP_HEADER]
        assert len(wire.received) >= len(said.frames) - 1


@pytest.mark.soak
@pytest.mark.parametrize("converse", [_converse, _converse_links], ids=["0-10", "1.0"])
def test_fuzzed_for_long(make_broker: BrokerMaker, converse: Callable[[int, str, Tally], None]) -> None:
    """QSTORE_FUZZ_SECONDS of it, from the seed QSTORE_FUZZ_SEED."""
    seconds = float(os.environ.get("QSTORE_FUZZ_SECONDS", "600"))
    fuzzing = Fuzzing(_start(make_broker), int(os.environ.get("QSTORE_FUZZ_SEED", "1")), converse)
    begin = time.monotonic()
    warm = 0
    while time.monotonic() - begin < seconds:
        held = fuzzing.round()
        if not warm and time.monotonic() - begin > seconds / 5:
            warm = held
    reported: dict[str, Any] = {name: value for name, value in vars(fuzzing.tally).items() if isinstance(value, int)}
    print(f"\n{fuzzing.rounds} rounds in {time.monotonic() - begin:.0f} s: {reported}")
    print(f"memory {warm:,} after a fifth, {held:,} at the end, {fuzzing.most_while_running:,} at most")
    sockets, files = fuzzing.descriptors()
    print(f"sockets {fuzzing.sockets} before, {sockets} after; files {fuzzing.files} before, {files} after")
    assert held - warm < MAX_GROWTH
    fuzzing.end()
