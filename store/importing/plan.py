"""The plan of an import: decided before anything is built, to be shown.

    in the import           in the store            what happens
    ----------------------  ----------------------  --------------------------------------------------------------
    queue                   none of this name       created
                            one of this name        kept as it is; the messages follow its own
    exchange                none of this name       created
                            one of the same type    kept as it is
                            one of another type     the import is refused
    binding                 the same                left out
    link, bridge, object    one of this name        left out
    branch in doubt         none with this id       in doubt
                            one with this id that   the import is refused
                            these queues know

Record ids are kept if the store never had any, they are unique, and in each queue ascending, as the order of a queue
in version 2 is that of its ids; otherwise all messages get new ones.

The ledger of a store has its past imports, so that none takes place twice. An import is an object in the catalogue, of
kind `qstore.import`: name, the import's id; properties, when it took place (seconds since 1970) and how many messages
it brought. It is written in the batch that makes the import effective. Brokers ignore it. An import into a running
broker is noted there by a queue instead, which has the id in its name. The id is a digest of the imported
content, and of the changes made to it on import.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from qstore.formats.broker_records.topology import (
    Binding,
    Bridge,
    Exchange,
    GeneralObject,
    Link,
    Queue,
    decode_exchange,
    decode_general,
    encode_binding,
    encode_exchange,
    encode_general,
    encode_queue,
    exchange_binding_of,
)
from qstore.formats.catalogue import QueueEntry
from qstore.formats.errors import BrokerRecordError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.values import typed_map
from qstore.formats.wording import printable
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.errors import StoreError
from qstore.store.importing.intake import MAX_RID, Intake, QueueIntake
from qstore.store.parameters import QUEUE_ARGUMENTS, ParameterError, StoreParameters, queue_geometry

# ---- the ledger ----

LEDGER: Final = "qstore.import"
LEDGER_QUEUES: Final = f"{LEDGER}."
"""The prefix of names of queues that note an import into a running broker; the id follows."""


class PastImport(NamedTuple):
    """An import that took place.

    Attributes:
        identity: its id.
        at: seconds since 1970.
        messages: number of its messages.
    """

    identity: str
    at: int
    messages: int


def ledger_entry(past: PastImport) -> GeneralObject:
    """The object for the catalogue."""
    return GeneralObject(LEDGER, past.identity, typed_map({"at": past.at, "messages": past.messages}))


def find_import(general: Iterable[Link | Bridge | GeneralObject], identity: str) -> PastImport | None:
    """The import with that id; None if it did not take place."""
    for each in general:
        if isinstance(each, GeneralObject) and (each.kind, each.name) == (LEDGER, identity):
            at, messages = each.properties.get("at"), each.properties.get("messages")
            return PastImport(identity, at.value if at else 0, messages.value if messages else 0)
    return None


# ---- the plan ----

_NO_MESSAGES: Final = QueueIntake()


@dataclass(slots=True)
class PlannedQueue:
    """A queue that gets messages, or is created.

    Attributes:
        record: its record.
        entry: its entry in the catalogue; None if it is created.
        intake: its messages.
    """

    record: Queue
    entry: QueueEntry | None
    intake: QueueIntake


@dataclass(slots=True)
class ImportPlan:
    """The changes that an import makes.

    Attributes:
        queues: by name.
        exchanges, bindings, general: the objects to create; a binding with its exchange's and its queue's name.
        in_doubt: branches in doubt.
        keeps_rids: whether messages keep their record ids.
        notices: one line each.
    """

    queues: dict[str, PlannedQueue] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    bindings: list[tuple[str, Binding]] = field(default_factory=list)
    general: list[Link | Bridge | GeneralObject] = field(default_factory=list)
    in_doubt: list[bytes] = field(default_factory=list)
    keeps_rids: bool = False
    notices: list[str] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """Number of messages."""
        return sum(queue.intake.messages for queue in self.queues.values())

    @property
    def waiting(self) -> int:
        """Number of messages in doubt."""
        return sum(queue.intake.in_doubt for queue in self.queues.values())


def make_plan(intake: Intake, catalogue: Catalogue | None, entries: Mapping[str, QueueEntry]) -> ImportPlan:
    """Plan an import.

    Args:
        intake: the data to import.
        catalogue: the store's; None for a new store.
        entries: the store's queues by name.

    Raises:
        StoreError: it cannot be imported.
        CatalogueError: the catalogue cannot be read.
    """
    plan = ImportPlan(in_doubt=list(intake.in_doubt))
    _plan_queues(plan, intake, entries)
    known = {} if catalogue is None else _exchanges(catalogue)
    _plan_exchanges(plan, intake, known)
    exchanges = {*known, *intake.exchanges}
    _plan_bindings(plan, intake, exchanges, entries, catalogue)
    names = set() if catalogue is None else {(each.kind, each.name) for each in general_objects(catalogue)}
    for general in intake.general:
        _checked(encode_general, general, f'object "{general.name}"')
        bound = exchange_binding_of(general)
        gone = [] if bound is None else [name for name in bound[:2] if name not in exchanges]
        if gone:
            plan.notices.append(f'a binding between exchanges is left out: there is no exchange "{gone[0]}"')
        elif general.kind != LEDGER and (general.kind, general.name) not in names:
            names.add((general.kind, general.name))
            plan.general.append(general)
    is_new = catalogue is None or catalogue.rid_high_water() == 0
    plan.keeps_rids = is_new and _can_keep(queue.intake for queue in plan.queues.values())
    return plan


def _plan_queues(plan: ImportPlan, intake: Intake, entries: Mapping[str, QueueEntry]) -> None:
    for name, record in intake.queues.items():
        if not name:
            raise StoreError("a queue without a name cannot be imported")
        _checked(encode_queue, record, f'queue "{name}"')
        if name not in entries:
            plan.queues[name] = PlannedQueue(record, None, intake.messages.get(name, _NO_MESSAGES))
    for name, messages in intake.messages.items():
        if name in plan.queues:
            continue
        if name not in entries:
            text = "there is no such queue in the store, and none is imported"
            advice = "create it, or choose another queue (--map, or --to of qstore-replay)"
            raise StoreError(f'queue "{printable(name)}": {text}: {advice}')
        plan.queues[name] = PlannedQueue(Queue(name), entries[name], messages)


def _plan_exchanges(plan: ImportPlan, intake: Intake, known: Mapping[str, Exchange]) -> None:
    for name, exchange in intake.exchanges.items():
        own = known.get(name)
        if own is None:
            _checked(encode_exchange, exchange, f'exchange "{name}"')
            plan.exchanges.append(exchange)
        elif own.type != exchange.type:
            text = f"it is of type {own.type} in the store, and of type {exchange.type} in the import"
            raise StoreError(f'exchange "{printable(name)}": {printable(text)}: map it to another name (--map)')


def _plan_bindings(
    plan: ImportPlan,
    intake: Intake,
    exchanges: set[str],
    entries: Mapping[str, QueueEntry],
    catalogue: Catalogue | None,
) -> None:
    seen = set() if catalogue is None else _bindings(catalogue)
    for exchange, binding in intake.bindings:
        name = binding.queue_name
        if exchange not in exchanges or (name not in plan.queues and name not in entries):
            gone = f'exchange "{exchange}"' if exchange not in exchanges else f'queue "{name}"'
            plan.notices.append(f'a binding with key "{binding.key}" is left out: there is no {gone}')
            continue
        entry = entries.get(name)
        record = Binding(0 if entry is None else entry.queue_id, name, binding.key, binding.arguments)
        identity = exchange, _checked(encode_binding, record, f'binding of queue "{name}"')
        if identity not in seen:
            seen.add(identity)
            plan.bindings.append((exchange, record))


def _exchanges(catalogue: Catalogue) -> dict[str, Exchange]:
    """The store's exchanges by name; those that cannot be decoded are left out."""
    found: dict[str, Exchange] = {}
    for entry in catalogue.exchanges():
        try:
            exchange = decode_exchange(entry.record)
        except BrokerRecordError as error:
            raise StoreError(f"exchange {entry.exchange_id} of the store: {error.what}; run qstore-check") from error
        found.setdefault(exchange.name, exchange)
    return found


def _bindings(catalogue: Catalogue) -> set[tuple[str, bytes]]:
    names = {entry.exchange_id: decode_exchange(entry.record).name for entry in catalogue.exchanges()}
    return {(names.get(entry.exchange_id, ""), entry.record) for entry in catalogue.bindings()}


def general_objects(catalogue: Catalogue) -> list[Link | Bridge | GeneralObject]:
    """The store's links, bridges and other objects. Raises StoreError, CatalogueError."""
    try:
        return [decode_general(entry.record) for entry in catalogue.general()]
    except BrokerRecordError as error:
        raise StoreError(f"an object of the store: {error.what}; run qstore-check") from error


def _checked(encode: object, record: object, title: str) -> bytes:
    """The record's bytes. Raises StoreError if it does not fit its fields."""
    assert callable(encode)
    try:
        encoded: bytes = encode(record)
    except BrokerRecordError as error:
        raise StoreError(f"{printable(title)} cannot be imported: {printable(error.what)}") from error
    return encoded


def _can_keep(intakes: Iterable[QueueIntake]) -> bool:
    """Whether record ids are unique, and ascending in each queue."""
    columns = [intake.rids for intake in intakes]
    for rids in columns:
        if rids and (not rids[0] or rids[-1] > MAX_RID or any(one >= other for one, other in pairwise(rids))):
            return False
    return all(one < other for one, other in pairwise(heapq.merge(*columns)))


def geometry_for(record: Queue, parameters: StoreParameters) -> Geometry:
    """The size of a new queue's journal, by its arguments."""
    arguments = {option.name: record.arguments.get(option.name) for option in QUEUE_ARGUMENTS}
    values = {name: value.value for name, value in arguments.items() if value is not None}
    try:
        return queue_geometry(values, parameters)[0]
    except ParameterError:
        return parameters.geometry
