"""The coordinator: has each client send to each other one, and compares what they report.

For each test and pair it chooses a queue or a routing key, assigns the roles, waits until both are accepted, starts the
sender, waits for its report, and asks the receiver for its own (IOP-22 to 49). `Outcome.failure` says what is wrong.
Results can be written as JUnit's XML (IOP-4).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import quoteattr

from tests.interop.client import CONTROL, DUMMY, P2P_SIZES, PUBSUB, PUBSUB_SIZES, TESTS, Headers
from tests.interop.links import TOPIC, Mail, Pika

ANSWER_SECONDS: Final = 60.0
INVITE_SECONDS: Final = 5.0
"""How often all clients are invited again: one that has no part in many cases would hear nothing, and end (IOP-5)."""
KIB: Final = 1024
SIZES: Final = tuple(KIB * each for each in (0, 63, 64, 65, 127, 128, 129, 255, 256, 257))
"""Of IOP-55 and IOP-59."""
DEFAULTS: Final[Mapping[str, int]] = {"P2P_NUM_MESSAGES": 50, "PUBSUB_NUM_RECEIVERS": 5, "PUBSUB_NUM_MESSAGES": 10}
"""Appendix D."""
MOST_BYTES: Final = 4 << 20
"""Of the messages that one receiver gets in a case: of large ones there are fewer than given, but 10 at least."""


class Case(NamedTuple):
    """One test of a pair; `size` of messages, or None for the usual one."""

    test: str
    sender: str
    receiver: str
    size: int | None = None

    def __str__(self) -> str:
        size = "" if self.size is None else f", {self.size} bytes"
        return f"{self.test}: {self.sender} to {self.receiver}{size}"


class Outcome(NamedTuple):
    """The result of a case; `failure` is empty if it has passed. `messages` have arrived."""

    case: Case
    seconds: float
    failure: str
    messages: int = 0


class CoordinationError(Exception):
    """A client has not answered as it must."""


def cases(clients: Iterable[str], *, is_thorough: bool) -> Iterator[Case]:
    """All tests of all pairs; of those about sizes one size for each pair, or all of them."""
    names = tuple(clients)
    for test, (number, (sender, receiver)) in product(TESTS, enumerate(product(names, names))):
        if test not in (P2P_SIZES, PUBSUB_SIZES):
            yield Case(test, sender, receiver)
        elif is_thorough:
            yield from (Case(test, sender, receiver, size) for size in SIZES)
        else:
            yield Case(test, sender, receiver, SIZES[(number + (test == PUBSUB_SIZES)) % len(SIZES)])


class Coordinator:
    """The coordinator of the clients of one broker.

    Args:
        host, port: the broker.
        given: parameters of the tests that differ from `DEFAULTS`.
    """

    def __init__(self, host: str, port: int, given: Headers | None = None) -> None:
        self._link, self._given = Pika(host, port), {**DEFAULTS, **(given or {})}
        self._reply_to = f"iop.replies.{uuid.uuid4()}"
        self._link.subscribe(self._reply_to)
        self._keys: dict[str, str] = {}  # client -> its private key
        self._invited = 0.0

    def enlist(self, expected: Iterable[str]) -> list[str]:
        """Invite all clients until these have enlisted. Returns their names."""
        wanted, end = set(expected), time.monotonic() + ANSWER_SECONDS
        while not wanted <= self._keys.keys():
            if time.monotonic() > end:
                raise CoordinationError(f"not enlisted: {', '.join(sorted(wanted - self._keys.keys()))}")
            self._invite()
            while (mail := self._link.receive(0.5)) is not None:
                if mail.headers.get("CONTROL_TYPE") == "ENLIST":
                    self._keys[str(mail.headers["CLIENT_NAME"])] = str(mail.headers["CLIENT_PRIVATE_CONTROL_KEY"])
        return sorted(self._keys)

    def _invite(self) -> None:
        self._link.send(TOPIC, CONTROL, Mail({"CONTROL_TYPE": "INVITE"}, reply_to=self._reply_to))
        self._invited = time.monotonic()

    def run(self, case: Case) -> Outcome:
        """Run one case."""
        began = time.monotonic()
        if began - self._invited >= INVITE_SECONDS:
            self._invite()
        failure, messages = "", 0
        try:
            messages = self._run(case)
        except CoordinationError as error:
            failure = str(error)
        return Outcome(case, time.monotonic() - began, failure, messages)

    def _run(self, case: Case) -> int:
        identity = str(uuid.uuid4())
        given: dict[str, str | int] = {**self._given, "TEST_NAME": case.test, "SENDER_NAME": case.sender}
        is_pubsub = case.test in (PUBSUB, PUBSUB_SIZES)
        if case.size is not None:
            kind = "PUBSUB" if is_pubsub else "P2P"
            given[f"{kind}_MESSAGE_SIZE"] = case.size
            most = max(10, MOST_BYTES // max(1, case.size))
            given[f"{kind}_NUM_MESSAGES"] = min(int(given[f"{kind}_NUM_MESSAGES"]), most)
        if is_pubsub:
            given["PUBSUB_KEY"] = f"iop.test.{identity}"
        elif case.test != DUMMY:
            given["P2P_QUEUE_AND_KEY_NAME"] = f"iop-{identity}"
            self._link.declare(f"iop-{identity}")
        for role, client in (("RECEIVER", case.receiver), ("SENDER", case.sender)):
            self._ask(client, identity, "ACCEPT_ROLE", {"CONTROL_TYPE": "ASSIGN_ROLE", **given, "ROLE": role})
        sent = self._ask(case.sender, identity, "REPORT", {"CONTROL_TYPE": "START"})
        received = self._ask(case.receiver, identity, "REPORT", {"CONTROL_TYPE": "STATUS_REQUEST"})
        return self._compare(case, given, sent, received)

    def _compare(self, case: Case, given: Headers, sent: Headers, received: Headers) -> int:
        is_pubsub = case.test in (PUBSUB, PUBSUB_SIZES)
        expected = int(sent["MESSAGE_COUNT"]) * (int(given["PUBSUB_NUM_RECEIVERS"]) if is_pubsub else 1)
        wanted = 0 if case.test == DUMMY else int(given["PUBSUB_NUM_MESSAGES" if is_pubsub else "P2P_NUM_MESSAGES"])
        found = int(received["MESSAGE_COUNT"])
        if int(sent["MESSAGE_COUNT"]) != wanted or found != expected:
            raise CoordinationError(f"{sent['MESSAGE_COUNT']} of {wanted} sent, {found} of {expected} received")
        if received.get("WRONG") or int(received.get("OTHERS", 0)) > 0:
            raise CoordinationError(f"{received['WRONG']} wrong messages, {received['OTHERS']} other senders")
        return found

    def _ask(self, client: str, identity: str, expected: str, headers: Headers) -> Headers:
        """Send a client a control message. Returns the headers of its answer."""
        self._link.send(TOPIC, self._keys[client], Mail(headers, correlation_id=identity, reply_to=self._reply_to))
        end = time.monotonic() + ANSWER_SECONDS
        while (mail := self._link.receive(max(0.0, end - time.monotonic()))) is not None:
            if mail.correlation_id == identity:
                if mail.headers.get("CONTROL_TYPE") != expected or "FAILURE" in mail.headers:
                    raise CoordinationError(f"{headers['CONTROL_TYPE']}: {dict(mail.headers)}")
                return mail.headers
        raise CoordinationError(f"{client} does not answer {headers['CONTROL_TYPE']}")

    def leave(self) -> None:
        """End the coordinator, and no client."""
        self._link.close()

    def close(self) -> None:
        """End all clients, and the coordinator."""
        self._link.send(TOPIC, CONTROL, Mail({"CONTROL_TYPE": "TERMINATE"}))
        self.leave()


def write_junit(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Write outcomes as JUnit's XML."""
    found = list(outcomes)
    lines = []
    for each in found:
        failure = f"<failure message={quoteattr(each.failure)}/>" if each.failure else ""
        given = f"name={quoteattr(str(each.case))} time={quoteattr(f'{each.seconds:.3f}')}"
        lines.append(f"<testcase {given}>{failure}</testcase>")
    failed, seconds = sum(bool(each.failure) for each in found), sum(each.seconds for each in found)
    counts = f'tests="{len(found)}" failures="{failed}" errors="0" skipped="0" time="{seconds:.3f}"'
    head = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuite name="interop" {counts}>']
    path.write_text("\n".join([*head, *lines, "</testsuite>", ""]))
