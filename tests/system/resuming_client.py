"""A client of AMQP 1.0 that may be killed at any moment.

    python -m tests.system.resuming_client send|receive PORT JOURNAL COUNT

It writes what it does into a journal, each line before the frame that tells the broker, and begins with what its
former lives have written there. It ends with status `LOST` when the connection is lost.

    send      sends the numbers below COUNT            sent N                the message N is sent
                                                       settled N             it has an outcome, and is settled
    receive   receives, and never ends by itself       processed TAG N COPY  the message N came, and is accepted
                                                       settled TAG           the broker says that it is settled
                                                       gone TAG              the broker does not know it any more

COPY is another number each time a message is sent. Both settle second: the receiver of a message waits for the word of
its sender.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from qstore.formats.amqp_1_0.composites import Composite, encode_composite
from qstore.formats.amqp_1_0.values import Value, read_value
from tests.support.sections_peer import ACCEPTED, RECEIVER, SENDER, LinksPeer, Received, content

QUEUE: Final = "d"
LOST: Final = 3
IN_FLIGHT: Final = 200
TIMEOUT: Final = 120

_KEPT: Final = {"timeout": TIMEOUT}
_SECOND: Final = 1


class Journal:
    """What a client has done: lines of words.

    Args:
        path: where they are.

    Attributes:
        lines: those of its former lives.
    """

    def __init__(self, path: Path) -> None:
        text = path.read_text() if path.exists() else ""
        self.lines = [line.split() for line in text.splitlines()]
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *words: object) -> None:
        """Add a line, which a kill does not take back."""
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class Peer(LinksPeer):
    """A connection with one link on handle 0."""

    def attach(self, unsettled: tuple[tuple[Value, Value], ...], *, receives: bool) -> set[bytes]:
        """Attach the link. Returns the tags that the broker has not settled."""
        frame = self.attachment(QUEUE, receives=receives, terminus=_KEPT, rcv_settle_mode=_SECOND, unsettled=unsettled)
        self.socket.sendall(frame)
        for each in self.events():
            if each.name == "attach":
                assert each.fields["rcv_settle_mode"] == _SECOND, each
                return {key.value for key, _ in each.fields["unsettled"]}
        raise AssertionError("there is no answer")

    def events(self) -> Iterator[Received]:
        """What comes."""
        while True:
            while self.received:
                each = self.received.pop(0)
                assert each.name not in ("detach", "end", "close"), each
                yield each
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError
            self.feed(data)


def send(port: int, journal: Journal, count: int) -> None:
    sent = [int(line[1]) for line in journal.lines if line[0] == "sent"]
    settled = {int(line[1]) for line in journal.lines if line[0] == "settled"}
    open_ones = sorted(set(sent) - settled)
    following = max(sent, default=-1) + 1
    peer = Peer(port)
    states = tuple((Value("binary", b"%d" % number), Value("null", None)) for number in open_ones)
    known = peer.attach(states, receives=False)
    ids: dict[int, int] = {}  # delivery-id -> number
    delivery_id = 0

    def put(number: int, message: bytes, **fields: Any) -> None:
        nonlocal delivery_id
        for frame in peer.transfers(0, delivery_id, message, **{"delivery_tag": b"%d" % number, **fields}):
            peer.socket.sendall(frame)
        delivery_id += 1

    waiting = [number for number in open_ones if b"%d" % number not in known]
    resumed = [number for number in open_ones if b"%d" % number in known]
    limit = 0
    for each in peer.events():
        if each.name == "flow" and each.fields.get("handle") == 0:
            limit = each.fields["delivery_count"] + each.fields["link_credit"]
        elif each.name == "disposition" and each.fields["role"] is RECEIVER:
            first = each.fields["first"]
            last = each.fields.get("last", first)
            assert (each.fields["state"].name, each.fields["settled"]) == ("accepted", False), each
            for number in range(first, last + 1):
                journal.write("settled", ids.pop(number))
            peer.do("disposition", role=SENDER, first=first, last=last, settled=True, state=ACCEPTED)
        while resumed and delivery_id < limit:  # it has an outcome there
            number = resumed.pop(0)
            journal.write("settled", number)
            put(number, b"", resume=True, settled=True, state=ACCEPTED)
        while (waiting or following < count) and len(ids) < IN_FLIGHT and delivery_id < limit and not resumed:
            if waiting:
                number = waiting.pop(0)
            else:
                number, following = following, following + 1
                journal.write("sent", number)
            ids[delivery_id] = number
            put(number, content(b"%d %d" % (number, time.monotonic_ns())))
        if not ids and not waiting and not resumed and following == count:
            peer.do("close")
            return


def receive(port: int, journal: Journal) -> None:
    processed = [line[1] for line in journal.lines if line[0] == "processed"]
    over = {line[1] for line in journal.lines if line[0] != "processed"}
    left = [tag for tag in processed if tag not in over]
    peer = Peer(port)
    accepted = value_of(ACCEPTED)
    known = peer.attach(tuple((Value("binary", bytes.fromhex(tag)), accepted) for tag in left), receives=True)
    for tag in left:
        if bytes.fromhex(tag) not in known:
            journal.write("gone", tag)
    ids: dict[int, str] = {}
    seen = 0
    peer.socket.sendall(peer.flow(0, IN_FLIGHT))
    for each in peer.events():
        if each.name == "transfer":
            assert not each.fields["more"], each
            seen += 1
            tag = each.fields["delivery_tag"].hex()
            ids[each.fields["delivery_id"]] = tag
            if not each.fields["resume"]:
                number, copy = each.content.rpartition(b"\xa0")[2][1:].split()
                journal.write("processed", tag, int(number), int(copy))
                peer.do("disposition", role=RECEIVER, first=each.fields["delivery_id"], settled=False, state=ACCEPTED)
            if seen % (IN_FLIGHT // 2) == 0:
                peer.socket.sendall(peer.flow(0, IN_FLIGHT, delivery_count=seen, next_incoming_id=seen))
        elif each.name == "disposition" and each.fields["role"] is SENDER:
            assert each.fields["settled"], each
            for number in range(each.fields["first"], each.fields.get("last", each.fields["first"]) + 1):
                journal.write("settled", ids.pop(number))


def value_of(state: Composite) -> Value:
    """A state without fields as a value of a map."""
    encoded = encode_composite(state.name, state.fields)
    return read_value(encoded, 0, len(encoded))[0]


def main() -> int:
    what, port, path, count = sys.argv[1:]
    journal = Journal(Path(path))
    try:
        if what == "send":
            send(int(port), journal, int(count))
        else:
            receive(int(port), journal)
    except ConnectionError:
        return LOST
    return 0


if __name__ == "__main__":
    sys.exit(main())
