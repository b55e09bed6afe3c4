"""The topology of a store: queues, exchanges, bindings, links, bridges, general objects; and their names.

qpidd stores them in Berkeley DB files, version 2 in its catalogue; the records are the same, and both are decoded here.
A record that cannot be decoded is damage, and the rest is read nevertheless. A binding whose queue or exchange is
missing is stale, as an interrupted deletion leaves it: recovery drops it (formats/broker_records/README.md, 4.4).

Names are unique for each kind of object. If a store has two objects with one name, which earlier versions permitted,
both the name in the record and the name that it is shown with (`Duplicate`) are taken, until the object is deleted.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from qstore.formats.broker_records.topology import (
    Binding,
    Bridge,
    Exchange,
    GeneralObject,
    Link,
    Queue,
    decode_binding,
    decode_exchange,
    decode_general,
    decode_queue,
    names_a_host,
)
from qstore.formats.catalogue import BindingEntry, Kind
from qstore.formats.errors import BrokerRecordError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import printable
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.damage import Damage, DamageKind
from qstore.store.errors import NameTakenError

if TYPE_CHECKING:
    from qstore.store.catalogue.berkeley import BerkeleyEnvironment


_Record = TypeVar("_Record")
_KEY = struct.Struct("<Q")

_MAX_NAME_KEPT = 200  # characters of a name used in a derived name, which has at most 255 bytes
#: The prefix of the name of a queue whose own name is unknown, or taken by another queue.
LOST_AND_FOUND = "lost.found."

#: The types of exchange that qpidd has (formats/broker_records/README.md, 4.3).
EXCHANGE_TYPES = frozenset({"direct", "topic", "fanout", "headers", "xml"})


class StoredQueue(NamedTuple):
    """A queue and, in version 2, the number of its journal's directory."""

    record: Queue
    journal_id: int | None


class StoredBinding(NamedTuple):
    """A binding and its exchange; version 2: and its entry in the catalogue, which identifies it for deletion."""

    exchange: Exchange
    record: Binding
    entry: BindingEntry | None = None


class Duplicate(NamedTuple):
    """An object of a store with the same name as an earlier one of its kind.

    Attributes:
        kind: "queue", "exchange", or the kind of another object.
        number: its id.
        name: the name in its record.
        first: the id of the object that keeps the name.
        shown: the name assigned to it when the store is read or opened; not written anywhere.
    """

    kind: str
    number: int
    name: str
    first: int
    shown: str

    def damage(self, catalogue: str) -> Damage:
        """The duplicate as damage to the catalogue at that path."""
        return Damage(
            catalogue,
            None,
            None,
            DamageKind.NAME_TWICE,
            object=self.kind,
            number=self.number,
            first=self.first,
            name=self.name,
            shown=self.shown,
        )


@dataclass(slots=True)
class Topology:
    """The decoded records of one store, each kind by id.

    Attributes:
        duplicates: objects with the name of another; here they have the names that they are shown with.
        complete: False if committed records may be missing, because they are in a log that could not be replayed.
        notices: one line each for the user, about things that are not damage.
    """

    queues: dict[int, StoredQueue] = field(default_factory=dict)
    exchanges: dict[int, Exchange] = field(default_factory=dict)
    bindings: list[StoredBinding] = field(default_factory=list)
    general: dict[int, Link | Bridge | GeneralObject] = field(default_factory=dict)
    duplicates: list[Duplicate] = field(default_factory=list)
    complete: bool = True
    damage: list[Damage] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def has_hosts(self) -> bool:
        """Whether it has virtual hosts other than "/", or objects of one."""
        named = (*self.exchanges.values(), *self.general.values(), *(each.record for each in self.queues.values()))
        return any(map(names_a_host, named))

    def _decode(self, decode: Callable[[bytes], _Record], record: bytes, file: str, title: str) -> _Record | None:
        try:
            return decode(record)
        except BrokerRecordError as error:
            kind = DamageKind.OBJECT_UNDECODABLE
            self.damage.append(Damage(file, None, None, kind, object=title, problem=error.what))
            return None

    def add_queue(self, number: int, record: bytes, file: str, journal_id: int | None = None) -> None:
        """Decode a queue's record."""
        queue = self._decode(decode_queue, record, file, f"queue {number}")
        if queue is not None:
            self.queues[number] = StoredQueue(queue, journal_id)

    def add_exchange(self, number: int, record: bytes, file: str) -> None:
        """Decode an exchange's record."""
        exchange = self._decode(decode_exchange, record, file, f"exchange {number}")
        if exchange is None:
            return
        self.exchanges[number] = exchange
        if exchange.type not in EXCHANGE_TYPES:
            self.notices.append(f'exchange "{exchange.name}" is of type "{exchange.type}", which qpidd ignores')

    def add_binding(self, exchange_id: int, record: bytes, file: str, entry: BindingEntry | None = None) -> None:
        """Decode a binding's record; queues and exchanges must precede it."""
        binding = self._decode(decode_binding, record, file, f"binding of exchange {exchange_id}")
        if binding is None:
            return
        exchange = self.exchanges.get(exchange_id)
        queue = self.queues.get(binding.queue_id)
        if exchange is not None and queue is not None and queue.record.name == binding.queue_name:
            self.bindings.append(StoredBinding(exchange, binding, entry))
            return
        if not self.complete:
            return  # the newest queue or exchange may be missing, as a notice already states
        gone = f"exchange {exchange_id}" if exchange is None else f'queue {binding.queue_id} "{binding.queue_name}"'
        self.notices.append(
            f'stale binding of queue "{binding.queue_name}" with key "{binding.key}": the {gone} does not exist'
        )

    def add_general(self, number: int, record: bytes, file: str) -> None:
        """Decode the record of a link, a bridge or another object."""
        general = self._decode(decode_general, record, file, f"object {number}")
        if general is not None:
            self.general[number] = general

    def rename_duplicates(self, *, queues: bool) -> None:
        """Give each object with the name of an earlier one of its kind a unique name, and its bindings likewise.

        No store permits creating a second object with one name, but earlier versions did. Each has its own messages or
        bindings, so none is omitted.

        Args:
            queues: whether to include queues; not in qpidd's stores, whose journals are found by these names.
        """
        names = {("exchange", number): each.name for number, each in self.exchanges.items()}
        names |= {(each.kind, number): each.name for number, each in self.general.items() if each.name}
        if queues:
            names |= {("queue", number): each.record.name for number, each in self.queues.items()}
        self.duplicates = _duplicates(names)
        exchange_ids = {id(each): number for number, each in self.exchanges.items()}  # a binding has the same object
        for each in self.duplicates:
            if each.kind == "queue":
                stored = self.queues[each.number]
                self.queues[each.number] = stored._replace(record=replace(stored.record, name=each.shown))
            elif each.kind == "exchange":
                self.exchanges[each.number] = replace(self.exchanges[each.number], name=each.shown)
            else:
                self.general[each.number] = replace(self.general[each.number], name=each.shown)
        for place, binding in enumerate(self.bindings if self.duplicates else ()):
            queue = self.queues[binding.record.queue_id].record
            record = replace(binding.record, queue_name=queue.name)
            self.bindings[place] = binding._replace(
                exchange=self.exchanges[exchange_ids[id(binding.exchange)]], record=record
            )


def _duplicates(names: Mapping[tuple[str, int], str]) -> list[Duplicate]:
    """The objects with the same name as another of their kind with a lower id."""
    holders: dict[tuple[str, str], int] = {}
    for kind, number in sorted(names, reverse=True):
        holders[kind, names[kind, number]] = number
    taken = set(holders)
    duplicates = []
    for kind, number in sorted(names):
        name = names[kind, number]
        first = holders[kind, name]
        if first == number:
            continue
        shown = f"{name[:_MAX_NAME_KEPT]}.duplicate-{number}"
        while (kind, shown) in taken:
            shown += "+"
        taken.add((kind, shown))
        duplicates.append(Duplicate(kind, number, name, first, shown))
    return duplicates


def environment_topology(environment: BerkeleyEnvironment, directory: str) -> Topology:
    """The topology of a qpidd store, by ascending id (Berkeley DB orders little-endian keys differently)."""
    topology = Topology(complete=environment.complete, notices=list(environment.notices))
    for entry in environment.damage:
        if not entry.is_healed:
            kind = DamageKind.ENVIRONMENT_DAMAGED
            topology.damage.append(Damage(entry.file, entry.offset, None, kind, problem=entry.what))

    def by_id(rows: Iterable[tuple[bytes, bytes]], file: str) -> list[tuple[int, bytes]]:
        numbered = []
        for key, value in rows:
            if len(key) == _KEY.size:
                numbered.append((int(_KEY.unpack(key)[0]), value))
            else:
                topology.damage.append(Damage(file, None, None, DamageKind.ENVIRONMENT_KEY, size=len(key)))
        return sorted(numbered, key=lambda row: row[0])

    def path(name: str) -> str:
        return posixpath.join(directory, name)

    for number, record in by_id(environment.queues, path("queues.db")):
        topology.add_queue(number, record, path("queues.db"))
    for number, record in by_id(environment.exchanges, path("exchanges.db")):
        topology.add_exchange(number, record, path("exchanges.db"))
    for number, record in by_id(environment.bindings, path("bindings.db")):
        topology.add_binding(number, record, path("bindings.db"))
    for number, record in by_id(environment.general, path("general.db")):
        topology.add_general(number, record, path("general.db"))
    topology.rename_duplicates(queues=False)
    return topology


def catalogue_topology(catalogue: Catalogue, directory: str, *, is_checked: bool = False) -> Topology:
    """The topology of a version-2 store; bindings in order of creation.

    Args:
        catalogue: the store's.
        directory: its path.
        is_checked: the catalogue was checked when it was opened, and is sound.
    """
    topology = Topology()
    for queue in catalogue.queues():
        topology.add_queue(queue.queue_id, queue.record, directory, queue.journal_id)
    for exchange in catalogue.exchanges():
        topology.add_exchange(exchange.exchange_id, exchange.record, directory)
    for binding in sorted(catalogue.bindings(), key=lambda each: each.sequence):
        topology.add_binding(binding.exchange_id, binding.record, directory, binding)
    for general in catalogue.general():
        topology.add_general(general.general_id, general.record, directory)
    topology.rename_duplicates(queues=True)
    for entry in () if is_checked else catalogue.check():
        file, kind = entry.file or directory, DamageKind.CATALOGUE_ENTRY
        topology.damage.append(Damage(file, None, None, kind, problem=entry.what, key=entry.key or None))
    return topology


def effective_bindings(bindings: Iterable[StoredBinding]) -> list[StoredBinding]:
    """The bindings that a broker has after recovery: a queue is bound to a fanout exchange once, whatever the keys."""
    seen: set[tuple[str, str]] = set()
    effective = []
    for binding in bindings:
        pair = (binding.exchange.name, binding.record.queue_name)
        if binding.exchange.type == "fanout" and pair in seen:
            continue
        seen.add(pair)
        effective.append(binding)
    return effective


Record: TypeAlias = Queue | Exchange | Link | Bridge | GeneralObject
_Name: TypeAlias = tuple[str, str]  # the kind of object, and its name


class TakenNames:
    """The names of one store's objects, in the memory of the thread that makes the changes.

    They are read from the catalogue when the store is opened, and changed with each change that is added to a batch of
    it; `undo` takes back those of a batch that fails. Looking a name up takes as long in a store of 10,000 queues as in
    an empty one.

    Args:
        topology: the content of the store when it is opened.
    """

    def __init__(self, topology: Topology) -> None:
        self._holders: dict[_Name, set[int]] = {}
        self._names: dict[tuple[Kind, int], list[_Name]] = {}
        self._changed: list[tuple[Kind, int, list[_Name]]] = []  # since `keep`: objects, and their names before
        for number, queue in topology.queues.items():
            self.add(Kind.QUEUE, number, queue.record)
        for number, exchange in topology.exchanges.items():
            self.add(Kind.EXCHANGE, number, exchange)
        for number, general in topology.general.items():
            self.add(Kind.GENERAL, number, general)
        for each in topology.duplicates:
            self._add(_SORTS.get(each.kind, Kind.GENERAL), each.number, (each.kind, each.name))
        self.keep()

    def keep(self) -> None:
        """All changes so far are on the disk."""
        self._changed.clear()

    def undo(self) -> None:
        """All changes since `keep` are not made after all."""
        for kind, number, names in reversed(self._changed):
            self._release(kind, number)
            for name in names:
                self._add(kind, number, name)
        self._changed.clear()

    def check(self, record: Record) -> None:
        """Check that an object with this record can be created.

        Raises:
            NameTakenError: an object of its kind and name exists.
        """
        kind, name = _name_of(record)
        holders = self._holders.get((kind, name))
        if holders and name:
            raise NameTakenError(f'{kind} "{printable(name)}" already exists, with the id {min(holders)}')

    def holder(self, record: Record) -> int:
        """The id of the object with the kind and name of a record; 0 if there is none, or it has no name."""
        kind, name = _name_of(record)
        return min(self._holders.get((kind, name), ()), default=0) if name else 0

    def add(self, kind: Kind, number: int, record: Record) -> None:
        """An object was created."""
        self._changed.append((kind, number, []))
        self._add(kind, number, _name_of(record))

    def remove(self, kind: Kind, number: int) -> None:
        """An object was deleted."""
        self._changed.append((kind, number, self._release(kind, number)))

    def _release(self, kind: Kind, number: int) -> list[_Name]:
        """Free the names of an object, and return them."""
        names = self._names.pop((kind, number), [])
        for name in names:
            holders = self._holders[name]
            holders.discard(number)
            if not holders:
                del self._holders[name]
        return names

    def _add(self, kind: Kind, number: int, name: _Name) -> None:
        self._holders.setdefault(name, set()).add(number)
        self._names.setdefault((kind, number), []).append(name)


_SORTS = {"queue": Kind.QUEUE, "exchange": Kind.EXCHANGE}


def _name_of(record: Record) -> _Name:
    """The kind of an object as text, and its name; empty if its record has none, and none is taken."""
    if isinstance(record, Queue):
        return "queue", record.name
    if isinstance(record, Exchange):
        return "exchange", record.name
    return record.kind, record.name or ""
