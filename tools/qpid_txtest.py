"""`qpid-txtest`: move messages between queues in transactions, and check that none was lost; of the Qpid project.

Each of the agents moves messages from one queue to the next one, in a ring: its transactions accept a message and
publish another with the same content. With `--dtx` they are distributed transactions, prepared before they are
committed.

Exit codes: 0 all messages are there, 1 some are missing or too many, or it has failed, 2 invalid command line.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import Empty, Message, MessagingError, Receiver, Session
from qstore.broker.client.address import queue_address
from qstore.formats.amqp_0_10.codes import XaStatus
from qstore.formats.amqp_0_10.structs import BranchId
from qstore.formats.broker_records.xids import decode_xid
from qstore.tools.console.command import EXIT_FAILED, run, say
from qstore.tools.load.programs import PROGRAM_SETTINGS, BrokerAddress, number, program_options, yes_no

PROGRAM: Final = "qpid-txtest"
_FORMAT: Final = 0x4C414E47
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MAX_QUEUES: Final = 1000
_MAX_MESSAGES: Final = 10_000_000
_LOOK_SECONDS: Final = 0.5

_EPILOG: Final = """
\b
Examples:
qpid-txtest
qpid-txtest --queues 4 --total-messages 1000 --tx-count 100 --messages-per-tx 5
qpid-txtest --dtx yes --tx-count 50
qpid-txtest --check no                               then kill the broker, start it again, and
qpid-txtest --init no --transfer no

\b
Exit codes: 0 all messages are there; 1 some are missing or too many, or it has failed; 2 invalid command line.
"""


@click.command(PROGRAM, epilog=_EPILOG, context_settings=PROGRAM_SETTINGS)
@program_options
@yes_no("--init", default=True, text="Declare the queues, and put the messages into the first one.")
@yes_no("--transfer", default=True, text="Move messages from queue to queue in transactions.")
@yes_no("--check", default=True, text="Take all messages out, and check that each is there once.")
@number("--size", default=256, text="Size of the messages, in bytes.")
@yes_no("--durable", default=True, text="Durable messages, and queues.")
@click.option(
    "--queues",
    type=click.IntRange(1, _MAX_QUEUES),
    default=2,
    show_default=True,
    metavar="N",
    help="Queues, with an agent each.",
)
@click.option(
    "--queue-base-name",
    "base_name",
    default="tx-test",
    show_default=True,
    metavar="NAME",
    help="Beginning of the names of the queues.",
)
@number("--messages-per-tx", default=1, least=1, text="Messages of a transaction.")
@number("--tx-count", default=1, text="Transactions of each agent.")
@click.option(
    "--total-messages",
    type=click.IntRange(0, _MAX_MESSAGES),
    default=10,
    show_default=True,
    metavar="N",
    help="Messages in all.",
)
@yes_no("--dtx", text="Distributed transactions.")
@click.option("--quiet", is_flag=True, help="Print only the result.")
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Move messages in transactions, and check that all are there at the end."""
    test = _Test(BrokerAddress.take(values), values)
    if values["init"] and values["transfer"] and values["messages_per_tx"] > values["total_messages"]:
        raise click.UsageError("--messages-per-tx is greater than --total-messages: no transaction would end")
    is_fine = True
    try:
        if values["init"]:
            test.init()
        if values["transfer"]:
            is_fine = test.transfer()
        if values["check"]:
            is_fine &= test.check()
    except MessagingError as error:
        say(PROGRAM, str(error))
        is_fine = False
    context.exit(0 if is_fine else EXIT_FAILED)


class _Test:
    """The three parts of the test."""

    def __init__(self, address: BrokerAddress, values: dict[str, Any]) -> None:
        self._address, self._values = address, values
        self._queues = [f"{values['base_name']}-{each}" for each in range(1, values["queues"] + 1)]

    def _tell(self, text: str) -> None:
        if not self._values["quiet"]:
            click.echo(text)

    def init(self) -> None:
        """Declare the queues, and fill the first one."""
        values = self._values
        body = (_LETTERS * (values["size"] // len(_LETTERS) + 1))[: values["size"]]
        with self._address.connect() as connection, connection.session() as session:
            for name in self._queues:
                session.invoke("queue.declare", queue=name, durable=values["durable"])
            sender = session.sender(queue_address(self._queues[0]))
            for identity in self._identities():
                sender.send(Message(body, correlation_id=identity, durable=values["durable"]), sync=False)
            sender.sync()

    def _identities(self) -> list[str]:
        return [f"msg-{each}" for each in range(1, self._values["total_messages"] + 1)]

    def transfer(self) -> bool:
        """Run the agents. Returns whether all have come to their ends."""
        agents, is_broken = [], threading.Event()
        for source, target in zip(self._queues, self._queues[1:] + self._queues[:1], strict=True):
            self._tell(f"Transferring from {source} to {target}")
            agents.append(_Agent(self._address, self._values, source, target, is_broken))
        for agent in agents:
            agent.start()
        for agent in agents:
            agent.join()
        failures = [agent.failure for agent in agents if agent.failure]
        for failure in failures:
            say(PROGRAM, f"Transfer interrupted: {failure}")
        return not failures

    def check(self) -> bool:
        """Take all messages out. Returns whether each was there, once."""
        found = Counter[str]()
        with self._address.connect() as connection, connection.session() as session:
            if self._values["dtx"]:
                self._decide(session)
            for name in self._queues:
                before = found.total()
                receiver = session.receiver(queue_address(name), capacity=1000)
                try:
                    while True:
                        found[str(receiver.fetch(timeout=0).correlation_id)] += 1
                except Empty:
                    session.acknowledge()
                receiver.close()
                self._tell(f"Drained {found.total() - before} messages from {name}")
        expected = Counter(self._identities())
        missing, extra = expected - found, found - expected
        if not missing and not extra:
            click.echo("All expected messages were retrieved.")
        for title, identities in (("The following ids were missing:", missing),
                                  ("The following extra ids were encountered:", extra)):  # fmt: skip
            if identities:
                click.echo(title)
                for identity in sorted(identities.elements()):
                    click.echo(f"    '{identity}'")
        return not missing and not extra

    def _decide(self, session: Session) -> None:
        """Decide this program's branches in doubt: commit and roll back in turns."""
        session.invoke("dtx.select")
        in_doubt = session.invoke("dtx.recover").get("in_doubt")
        branches = [decode_xid(bytes(each)) for each in (in_doubt.values if in_doubt is not None else ())]
        names = {name.encode() for name in self._queues}
        mine = [each for each in branches if each.format == _FORMAT and each.branch_id in names]
        if mine:
            self._tell("Recovering DTX in-doubt transaction(s):")
        for position, each in enumerate(mine):
            is_aborted = position % 2 == 1
            self._tell(f" * {'aborting' if is_aborted else 'committing'} {each.raw.hex()}")
            xid = BranchId(each.format, each.global_id, each.branch_id)
            session.invoke("dtx.rollback" if is_aborted else "dtx.commit", xid=xid)


class _Agent(threading.Thread):
    """Moves messages from one queue to another; once an agent has failed, the others end: the ring is broken."""

    def __init__(
        self, address: BrokerAddress, values: dict[str, Any], source: str, target: str, is_broken: threading.Event
    ) -> None:
        super().__init__(name=f"{source} to {target}", daemon=True)
        self._address, self._values, self._source, self._target = address, values, source, target
        self._is_broken = is_broken
        self.failure = ""

    def run(self) -> None:
        """Do all transactions."""
        try:
            with self._address.connect() as connection:
                self._move_all(connection.session(transactional=not self._values["dtx"]))
        except MessagingError as error:
            self.failure = str(error)
            self._is_broken.set()

    def _move_all(self, session: Session) -> None:
        count, is_distributed = self._values["messages_per_tx"], self._values["dtx"]
        if is_distributed:
            session.invoke("dtx.select")
        receiver = session.receiver(queue_address(self._source), capacity=count)
        sender = session.sender(queue_address(self._target))
        for _ in range(self._values["tx_count"]):
            xid = BranchId(_FORMAT, str(uuid.uuid4()).encode(), self._target.encode())
            if is_distributed:
                _check(session.invoke("dtx.start", xid=xid))
            for _ in range(count):
                message = self._fetch(receiver)
                if len(message.body) != self._values["size"]:
                    raise MessagingError(f"a message has {len(message.body)} bytes instead of {self._values['size']}")
                moved = Message(message.body, correlation_id=message.correlation_id, durable=message.durable)
                sender.send(moved, sync=False)
            session.acknowledge(sync=False)
            if is_distributed:
                for step in ("dtx.end", "dtx.prepare", "dtx.commit"):
                    _check(session.invoke(step, xid=xid))
            else:
                session.commit()
        session.close()

    def _fetch(self, receiver: Receiver) -> Message:
        while True:
            try:
                return receiver.fetch(timeout=_LOOK_SECONDS)
            except Empty:
                if self._is_broken.is_set():
                    raise MessagingError("another agent has failed") from None


def _check(result: Any) -> None:
    """Raise an error if a step of a distributed transaction was not fine."""
    status = result.get("status")
    if status not in (None, XaStatus.XA_OK, XaStatus.XA_RDONLY):
        raise MessagingError(f"the broker has answered {XaStatus(status).name}")


def main() -> None:
    """The console script."""
    run(PROGRAM, command)


if __name__ == "__main__":
    main()
