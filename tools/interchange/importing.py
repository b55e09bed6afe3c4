"""Imports into a stopped store or a running broker: what changes on the way, and doing it once.

`Changes` renames, leaves out and decides branches in doubt between a reader and what takes its items. An import is
planned first; then it takes place, with progress, unless the ledger of its destination has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

from rich.progress import MofNCompleteColumn

from qstore import __version__
from qstore.broker.client import Connection
from qstore.broker.management.console import AgentError, Console
from qstore.broker.model.configuration import record_of
from qstore.formats.broker_records.topology import (
    DEFAULT_HOST,
    HOST_KIND,
    Binding,
    Bridge,
    Exchange,
    GeneralObject,
    Link,
    Queue,
    exchange_binding_object,
    exchange_binding_of,
    full_name,
    problem_of_new_name,
    split_name,
)
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import MAP, TypedValue, typed_map
from qstore.formats.wording import printable
from qstore.store.environment import dry_run_environment, tool_environment
from qstore.store.importing.intake import ImportedMessage, Intake
from qstore.store.importing.plan import ImportPlan, PastImport
from qstore.store.importing.store_import import StoreImport
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING
from qstore.store.log_lines import LogLine
from qstore.tools.console.progress import progress_bar, writing_progress
from qstore.tools.console.text import unescape_name
from qstore.tools.interchange.broker import BrokerChanges, BrokerImport, NoHost
from qstore.tools.interchange.items import InterchangeError, ItemSink

#: Reads what is imported into a sink, the same each time. Returns what identifies this import in the ledger.
Read: TypeAlias = Callable[[ItemSink], str]


class StoreResult(NamedTuple):
    """An import into a store: its plan, and when it took place before, if it did."""

    plan: ImportPlan
    past: PastImport | None


class BrokerResult(NamedTuple):
    """An import into a broker.

    Attributes:
        changes: what it has created in all virtual hosts, or would; queues by their full names.
        left_out, refused: as in `BrokerImport`.
        hosts: the virtual hosts that it has created, or would.
        intake: what was read.
        past: when it took place before, if it did.
    """

    changes: BrokerChanges
    left_out: int
    refused: int
    hosts: list[str]
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
    with ExitStack() as stack:
        connection = stack.enter_context(Connection(url, send_timeout=None))
        new = _new_hosts(connection, intake)
        if not dry_run:
            _create_hosts(connection, intake, new)
        works: dict[str, BrokerImport] = {}
        for host in sorted({DEFAULT_HOST, *_hosts_of(intake)}, key=lambda name: (name != DEFAULT_HOST, name)):
            to_host: Any = connection
            if host in new and dry_run:
                to_host = NoHost()
            elif host != DEFAULT_HOST:
                to_host = stack.enter_context(Connection(url, virtual_host=host, send_timeout=None))
            works[host] = BrokerImport(to_host, _part(intake, host), rate, host, connection)
        pasts = [None if again else work.past(identity) for work in works.values()]
        if dry_run and not all(pasts):
            works[DEFAULT_HOST].foresee()
        if dry_run or all(pasts):
            past = pasts[0] if all(pasts) else None
            return _result(works, new, intake, past)
        total = sum(queue.messages for queue in intake.messages.values())
        with progress_bar("importing messages", MofNCompleteColumn(), total=total) as bar:
            for (host, work), before in zip(works.items(), pasts, strict=True):
                if before is None:
                    name = _unused(work.past, identity) if again else identity
                    work.run(name, partial(_read_host, read, host), bar.advance if bar is not None else lambda _: None)
        return _result(works, new, intake, None)


def _result(works: Mapping[str, BrokerImport], new: list[str], intake: Intake, past: PastImport | None) -> BrokerResult:
    changes = {host: work.changes for host, work in works.items()}
    queues = frozenset(full_name(host, name) for host, each in changes.items() for name in each.queues)
    notices = [
        notice if host == DEFAULT_HOST else f'virtual host "{printable(host)}": {notice}'
        for host, each in changes.items()
        for notice in each.notices
    ]
    exchanges, bindings = (
        sum(each.exchanges for each in changes.values()),
        sum(each.bindings for each in changes.values()),
    )
    left_out, refused = sum(work.left_out for work in works.values()), sum(work.refused for work in works.values())
    return BrokerResult(BrokerChanges(exchanges, bindings, queues, notices), left_out, refused, new, intake, past)


# ---- the virtual hosts of a broker ----


def _hosts_of(intake: Intake) -> set[str]:
    """The virtual hosts that have something in an export."""
    names = [*intake.queues, *intake.exchanges, *intake.messages, *(exchange for exchange, _ in intake.bindings)]
    hosts = {split_name(name)[0] for name in names}
    for each in intake.general:
        found = record_of(each) if isinstance(each, GeneralObject) and each.kind == HOST_KIND else None
        hosts |= {found[0].name[0]} if found is not None else set()
    return hosts


def _new_hosts(connection: Connection, intake: Intake) -> list[str]:
    """Those of them that the broker does not have."""
    hosts = _hosts_of(intake) - {DEFAULT_HOST}
    if not hosts:
        return []
    with Console(connection) as console:
        if "virtual_host" not in {each.name for each in console.classes()}:
            raise InterchangeError("the broker has no virtual hosts, and the export does: choose one (--vhost)")
        return sorted(hosts - {str(each["name"]) for each in console.query("virtual_host")})


def _create_hosts(connection: Connection, intake: Intake, hosts: list[str]) -> None:
    """Create virtual hosts, with their descriptions."""
    if not hosts:
        return
    about: dict[str, dict[str, Any]] = {}
    for each in intake.general:
        found = record_of(each) if isinstance(each, GeneralObject) and each.kind == HOST_KIND else None
        if found is not None and len(found[0].name) == 1:
            about[found[0].name[0]] = dict(found[1])
    with Console(connection) as console:
        for host in hosts:
            properties = TypedValue(MAP, typed_map(about.get(host, {})))
            try:
                console.call("broker", "create", type="vhost", name=host, properties=properties, strict=True)
            except AgentError as error:
                text = f'virtual host "{printable(host)}" cannot be created: {error}'
                raise InterchangeError(text) from None


def _part(intake: Intake, host: str) -> Intake:
    """What an export has for a virtual host, by local names; configuration records go with the default one."""
    part = Intake(None)
    part.in_doubt = intake.in_doubt
    to_part = _OfHost(part, host)
    for queue in intake.queues.values():
        to_part.queue(queue)
    for exchange in intake.exchanges.values():
        to_part.exchange(exchange)
    for name, binding in intake.bindings:
        to_part.binding(name, binding)
    for general in intake.general:
        to_part.other(general)
    for name, messages in intake.messages.items():
        if split_name(name)[0] == host:
            part.messages[split_name(name)[1]] = messages
    return part


def _read_host(read: Read, host: str, sink: ItemSink) -> str:
    return read(_OfHost(sink, host))


class _OfHost:
    """A sink that passes on what is of one virtual host, by local names.

    Args:
        sink: takes it.
        host: the host.
    """

    def __init__(self, sink: ItemSink, host: str) -> None:
        self._sink, self._host = sink, host

    def _local(self, name: str) -> str | None:
        host, local = split_name(name)
        return local if host == self._host else None

    def _alternate(self, name: str | None) -> str | None:
        return split_name(name)[1] if name else name

    def queue(self, queue: Queue) -> None:
        """A queue."""
        if (name := self._local(queue.name)) is not None:
            self._sink.queue(replace(queue, name=name, alternate_exchange=self._alternate(queue.alternate_exchange)))

    def exchange(self, exchange: Exchange) -> None:
        """An exchange."""
        if (name := self._local(exchange.name)) is not None:
            alternate = self._alternate(exchange.alternate_exchange)
            self._sink.exchange(replace(exchange, name=name, alternate_exchange=alternate))

    def binding(self, exchange: str, binding: Binding) -> None:
        """A binding."""
        if (name := self._local(exchange)) is not None and self._local(binding.queue_name) is not None:
            self._sink.binding(name, replace(binding, queue_name=split_name(binding.queue_name)[1]))

    def other(self, general: Link | Bridge | GeneralObject) -> None:
        """A binding between exchanges, or anything else, which is of the default host."""
        bound = exchange_binding_of(general)
        if bound is None:
            if self._host == DEFAULT_HOST:
                self._sink.other(general)
        elif (source := self._local(bound.source)) is not None:
            destination = split_name(bound.destination)[1]
            self._sink.other(exchange_binding_object(bound._replace(source=source, destination=destination)))

    def branch(self, xid: bytes) -> None:
        """A branch in doubt."""
        self._sink.branch(xid)

    def message(self, message: ImportedMessage) -> None:
        """A message."""
        if (name := self._local(message.queue)) is not None:
            self._sink.message(message._replace(queue=name))


def _unused(past: Callable[[str], PastImport | None], identity: str) -> str:
    """An identity that is not in the ledger."""
    number, name = 1, identity
    while past(name) is not None:
        number += 1
        name = f"{identity}.{number}"
    return name


# ---- names, queues left out, branches in doubt ----

_EXCHANGE, _QUEUE = "exchange:", "queue:"


class InDoubt(Enum):
    """What becomes of branches in doubt."""

    KEEP = "keep"
    COMMIT = "commit"
    ROLLBACK = "rollback"


class Renaming(NamedTuple):
    """A rule: names that match the pattern before become those after; each has at most one `*`.

    Attributes:
        of_exchanges: whether it is about exchanges, not queues.
        before, after: what precedes `*`, and what follows it; None after it without `*`.
    """

    of_exchanges: bool
    before: tuple[str, str | None]
    after: tuple[str, str | None]

    def apply(self, name: str) -> str | None:
        """The new name; None if the rule does not match."""
        begin, end = self.before
        if end is None:
            return _joined(self.after, "") if name == begin else None
        if len(name) < len(begin) + len(end) or not (name.startswith(begin) and name.endswith(end)):
            return None
        return _joined(self.after, name[len(begin) : len(name) - len(end)])


def _joined(after: tuple[str, str | None], middle: str) -> str:
    return after[0] if after[1] is None else after[0] + middle + after[1]


def read_renaming(text: str) -> Renaming:
    """Parse `[queue:|exchange:]OLD=NEW`. Raises ValueError."""
    of_exchanges = text.startswith(_EXCHANGE)
    before, equals, after = text.removeprefix(_EXCHANGE).removeprefix(_QUEUE).partition("=")
    if not before or not equals or not after:
        raise ValueError(f"{text!r} does not have the form OLD=NEW, queue:OLD=NEW or exchange:OLD=NEW")
    if before.count("*") > 1 or after.count("*") > before.count("*"):
        raise ValueError(f"{text!r}: each side may have one *, and the new name only if the old one has it")
    return Renaming(of_exchanges, _halves(before), _halves(after))


def _halves(pattern: str) -> tuple[str, str | None]:
    begin, star, end = pattern.partition("*")
    return unescape_name(begin), unescape_name(end) if star else None


class Changes:
    """A sink that passes on what it gets, changed.

    Args:
        sink: takes the rest.
        renamings: the first one that matches a name counts.
        queues: patterns of the queues to be imported; empty for all, and exchanges, links and other objects.
        topology: whether to pass on queues, exchanges, bindings and other objects.
        in_doubt: what becomes of branches in doubt.
    """

    def __init__(
        self,
        sink: ItemSink,
        *,
        renamings: Sequence[Renaming] = (),
        queues: Sequence[str] = (),
        topology: bool = True,
        in_doubt: InDoubt = InDoubt.KEEP,
    ) -> None:
        self._sink, self._renamings, self._in_doubt, self._topology = sink, renamings, in_doubt, topology
        self._patterns = [Renaming(False, _halves(pattern), ("", None)) for pattern in queues]
        self._names: dict[tuple[bool, str], str] = {}
        self._chosen: dict[str, bool] = {}

    def _name(self, name: str, *, of_exchange: bool = False) -> str:
        key = of_exchange, name
        found = self._names.get(key)
        if found is None:
            rules = (rule for rule in self._renamings if rule.of_exchanges is of_exchange)
            found = next((new for rule in rules if (new := rule.apply(name)) is not None), name)
            problem = problem_of_new_name(found) if found != name else ""
            if problem:
                raise InterchangeError(f'"{printable(name)}" cannot be renamed to "{printable(found)}": {problem}')
            self._names[key] = found
        return found

    def _has(self, queue: str) -> bool:
        chosen = self._chosen.get(queue)
        if chosen is None:
            chosen = not self._patterns or any(pattern.apply(queue) is not None for pattern in self._patterns)
            self._chosen[queue] = chosen
        return chosen

    def _alternate(self, name: str | None) -> str | None:
        return self._name(name, of_exchange=True) if name else name

    def queue(self, queue: Queue) -> None:
        """A queue."""
        if self._topology and self._has(queue.name):
            alternate = self._alternate(queue.alternate_exchange)
            self._sink.queue(replace(queue, name=self._name(queue.name), alternate_exchange=alternate))

    def exchange(self, exchange: Exchange) -> None:
        """An exchange."""
        if self._topology:
            alternate, name = self._alternate(exchange.alternate_exchange), self._name(exchange.name, of_exchange=True)
            self._sink.exchange(replace(exchange, name=name, alternate_exchange=alternate))

    def binding(self, exchange: str, binding: Binding) -> None:
        """A binding."""
        if self._topology and self._has(binding.queue_name):
            renamed = replace(binding, queue_name=self._name(binding.queue_name))
            self._sink.binding(self._name(exchange, of_exchange=True), renamed)

    def other(self, general: Link | Bridge | GeneralObject) -> None:
        """A link, a bridge or another object."""
        if not self._topology or self._patterns:
            return
        bound = exchange_binding_of(general)
        if bound is not None:
            source, destination = (self._name(name, of_exchange=True) for name in bound[:2])
            general = exchange_binding_object(bound._replace(source=source, destination=destination))
        self._sink.other(general)

    def branch(self, xid: bytes) -> None:
        """A branch in doubt. With some queues only, those matter that have messages of these."""
        if self._in_doubt is InDoubt.KEEP and not self._patterns:
            self._sink.branch(xid)

    def message(self, message: ImportedMessage) -> None:
        """A message."""
        if not self._has(message.queue):
            return
        name, state, xid = self._name(message.queue), message.state, message.xid
        if state != LIVE and self._in_doubt is not InDoubt.KEEP:
            if state == (LOCKED if self._in_doubt is InDoubt.COMMIT else PENDING):
                return
            state, xid = LIVE, b""
        self._sink.message(message._replace(queue=name, state=state, xid=xid))
