"""A test client: `python -m tests.interop.client NAME [-b HOST] -p PORT [-v VHOST]` (IOP-16 to 20).

It listens for the coordinator's messages on `iop.control` and `iop.control.NAME` of `amq.topic`, and answers each one:

    INVITE           ENLIST, if it knows the test; every client knows all of them
    ASSIGN_ROLE      ACCEPT_ROLE, when it is ready to send or to receive
    START            the sender publishes its messages, and answers REPORT with their number
    STATUS_REQUEST   the receiver answers REPORT with the number that has arrived, from this sender and with this
                     correlation id, and with the number of those whose body was not what the sender had sent
    TERMINATE        it ends

Control messages have a connection of their own (IOP-37). A client that hears nothing for 60 s ends (IOP-5).

Source: Qpid wiki, "Interop Testing Specification" (seed 004, lines 36058-36531).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from tests.interop.links import DIRECT, LINKS, TOPIC, Link, Mail

CONTROL: Final = "iop.control"
SILENCE_SECONDS: Final = 60.0
LATE_SECONDS: Final = 5.0
"""For each message that is still under way when the coordinator asks: from then on, or from the one before it."""
DUMMY, P2P, PUBSUB = "TC1_DummyRun", "TC2_BasicP2P", "TC3_BasicPubSub"
P2P_SIZES, PUBSUB_SIZES = "TC4_P2PMessageSize", "TC5_PubSubMessageSize"
TESTS: Final = (DUMMY, P2P, PUBSUB, P2P_SIZES, PUBSUB_SIZES)

Headers = Mapping[str, str | int]


def body_of(number: int, size: int) -> bytes:
    """The body of a message: bytes that depend on its number."""
    block = bytes((number + at) % 251 for at in range(251))
    return (block * (size // 251 + 1))[:size]


class Role:
    """What a client does in one test.

    Args:
        name: the client.
        connect: makes a connection.
        given: the parameters of the test, with ROLE.
        correlation_id: of the test.
    """

    def __init__(self, name: str, connect: Callable[[], Link], given: Headers, correlation_id: str) -> None:
        self._name, self._given, self._correlation_id = name, given, correlation_id
        test = str(given["TEST_NAME"])
        self._is_pubsub = test in (PUBSUB, PUBSUB_SIZES)
        prefix = "PUBSUB" if self._is_pubsub else "P2P"
        self._messages = 0 if test == DUMMY else int(given[f"{prefix}_NUM_MESSAGES"])
        self._size = int(given.get(f"{prefix}_MESSAGE_SIZE", 256))
        receivers = int(given["PUBSUB_NUM_RECEIVERS"]) if self._is_pubsub else 1
        self._key = str(given.get("PUBSUB_KEY" if self._is_pubsub else "P2P_QUEUE_AND_KEY_NAME", ""))
        self._links: list[Link] = []
        if test == DUMMY:
            return
        self._links = [connect() for _ in range(receivers if given["ROLE"] == "RECEIVER" else 1)]
        if given["ROLE"] == "RECEIVER":
            for link in self._links:
                (link.subscribe if self._is_pubsub else link.consume)(self._key)

    def start(self) -> Headers:
        """Send the messages. Returns the report."""
        exchange = TOPIC if self._is_pubsub else DIRECT
        for number in range(self._messages):
            headers: Headers = {"CLIENT_NAME": self._name, "NUMBER": number}
            self._links[0].send(exchange, self._key, Mail(headers, body_of(number, self._size), self._correlation_id))
        return {"MESSAGE_COUNT": self._messages}

    def status(self) -> Headers:
        """Receive the messages. Returns the report."""
        counts: Counter[tuple[str, str]] = Counter()
        wrong = 0
        for link in self._links:
            numbers = []
            while (mail := link.receive(LATE_SECONDS if len(numbers) < self._messages else 0.0)) is not None:
                numbers.append(number := int(mail.headers["NUMBER"]))
                counts[str(mail.headers["CLIENT_NAME"]), mail.correlation_id] += 1
                wrong += mail.body != body_of(number, self._size)
            wrong += numbers != list(range(self._messages))
        sender = str(self._given.get("SENDER_NAME", ""))
        return {"MESSAGE_COUNT": counts[sender, self._correlation_id], "OTHERS": len(counts) - 1, "WRONG": wrong}

    def end(self) -> None:
        """Close the connections."""
        for link in self._links:
            link.close()
        self._links = []


def run(name: str, connect: Callable[[], Link]) -> int:
    """Take part until the coordinator ends it. Returns the exit code."""
    control = connect()
    for key in (CONTROL, f"{CONTROL}.{name}"):
        control.subscribe(key)
    print("ready", flush=True)
    roles: dict[str, Role] = {}  # of one test: a client may send to itself
    identity = ""
    while True:
        mail = control.receive(SILENCE_SECONDS)
        if mail is None:
            print(f"{name}: nothing was heard for {SILENCE_SECONDS:.0f} s", file=sys.stderr)
            return 1
        answer: dict[str, str | int] = {}
        try:
            match mail.headers.get("CONTROL_TYPE"):
                case "INVITE" if mail.headers.get("TEST_NAME") in (None, *TESTS):
                    answer = {"CONTROL_TYPE": "ENLIST", "CLIENT_NAME": name}
                    answer["CLIENT_PRIVATE_CONTROL_KEY"] = f"{CONTROL}.{name}"
                case "ASSIGN_ROLE":
                    if mail.correlation_id != identity:
                        _end(roles)
                    identity = mail.correlation_id
                    roles[str(mail.headers["ROLE"])] = Role(name, connect, mail.headers, identity)
                    answer = {"CONTROL_TYPE": "ACCEPT_ROLE"}
                case "START":
                    answer = {"CONTROL_TYPE": "REPORT", **roles["SENDER"].start()}
                case "STATUS_REQUEST":
                    answer = {"CONTROL_TYPE": "REPORT", **roles["RECEIVER"].status()}
                case "TERMINATE":
                    _end(roles)
                    control.close()
                    return 0
        except Exception as error:  # whatever a library raises: the coordinator reports it
            answer = {"CONTROL_TYPE": "REPORT", "FAILURE": f"{name}: {type(error).__name__}: {error}"[:500]}
        if answer and mail.reply_to:
            control.send(TOPIC, mail.reply_to, Mail(answer, correlation_id=mail.correlation_id))


def _end(roles: dict[str, Role]) -> None:
    for role in roles.values():
        role.end()
    roles.clear()


def main() -> int:
    """Run a client. Returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=LINKS)
    parser.add_argument("-b", dest="host", default="127.0.0.1")
    parser.add_argument("-p", dest="port", type=int, required=True)
    parser.add_argument("-v", dest="vhost", default="")
    given = parser.parse_args()
    return run(given.name, lambda: LINKS[given.name](given.host, given.port, given.vhost))


if __name__ == "__main__":
    sys.exit(main())
