"""Imports what a reader reads, into a stopped store or a running broker: planned, once, with progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from rich.progress import MofNCompleteColumn

from qstore import __version__
from qstore.broker.client import Connection
from qstore.store.environment import dry_run_environment, tool_environment
from qstore.store.importing.intake import Intake
from qstore.store.importing.ledger import PastImport
from qstore.store.importing.plan import ImportPlan
from qstore.store.importing.store_import import StoreImport
from qstore.store.log_lines import LogLine
from qstore.tools.console.progress import progress_bar, writing_progress
from qstore.tools.interchange.broker_import import BrokerImport
from qstore.tools.interchange.items import ItemSink

#: Reads what is imported into a sink, the same each time. Returns what identifies this import in the ledger.
Read: TypeAlias = Callable[[ItemSink], str]


class StoreResult(NamedTuple):
    """An import into a store: its plan, and when it took place before, if it did."""

    plan: ImportPlan
    past: PastImport | None


class BrokerResult(NamedTuple):
    """An import into a broker: what it did, what was read, and when it took place before, if it did."""

    work: BrokerImport
    intake: Intake
    past: PastImport | None


def import_into_store(
    read: Read, path: str, *, dry_run: bool, again: bool, log: Callable[[LogLine], None]
) -> StoreResult:
    """Import into the stopped store at `path`, all or nothing.

    Args:
        read: reads what is imported.
        path: the store; it is created if there is none.
        dry_run: whether only to plan.
        again: whether to do it although it was done before.
        log: receives warnings.

    Raises:
        StoreError: it cannot be done. Otherwise what `read` raises.
    """
    environment = dry_run_environment() if dry_run else tool_environment()
    with StoreImport(environment, path, __version__, dry_run=dry_run, log=log) as work:
        identity = read(work.intake)
        past = None if again else work.past(identity)
        plan = work.plan()
        if past is None and not dry_run:
            with writing_progress("importing messages", work.intake.size) as advance:
                work.apply(plan, _unused(work.past, identity), lambda _, done: advance(done))
    return StoreResult(plan, past)


def import_into_broker(read: Read, url: str, *, rate: float, dry_run: bool, again: bool) -> BrokerResult:
    """Import into the running broker at `url`; what was done before a kill is not done again.

    Args:
        read: reads what is imported; called twice.
        url: the broker.
        rate: messages per second; 0 for no limit.
        dry_run: whether only to plan.
        again: whether to do it although it was done before.

    Raises:
        InterchangeError, MessagingError: it cannot be done. Otherwise what `read` raises.
    """
    intake = Intake(None)
    identity = read(intake)
    with Connection(url) as connection:
        work = BrokerImport(connection, intake, rate)
        past = None if again else work.past(identity)
        if past is None and not dry_run:
            if again:
                identity = _unused(work.past, identity)
            total = sum(queue.messages for queue in intake.messages.values())
            with progress_bar("importing messages", MofNCompleteColumn(), total=total) as bar:
                work.run(identity, read, bar.advance if bar is not None else lambda _: None)
    return BrokerResult(work, intake, past)


def _unused(past: Callable[[str], PastImport | None], identity: str) -> str:
    """An identity that is not in the ledger."""
    number, name = 1, identity
    while past(name) is not None:
        number += 1
        name = f"{identity}.{number}"
    return name
