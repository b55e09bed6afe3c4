"""The catalogue: the queues, exchanges, bindings and general objects that survive a restart.

`formats.catalogue` defines the entries in the map; this module defines the operations. Reading continues past damage:
an entry that cannot be decoded is omitted and noted in `damage`, and all others are read. Writing does not: each change
is one atomic, synced batch, and a catalogue with damaged numbering accepts none, because an id or a record id assigned
twice would mix up two queues.

The batches:

    change           in one batch
    ---------------  ----------------------------------------------------------------------------
    create           meta, an empty census
    create_queue     the queue, the queues' next id, the census
    create_exchange  likewise
    create_binding   likewise
    create_general   likewise
    replace_queue    the queue, the queues' next id, the census
    replace_general  the object, the census
    import_all       queues, replaced or new, exchanges, bindings, objects, the next ids, the high-water mark of record
                     ids, the census
    delete_queue     the queue and every binding to it, the census
    delete_exchange  the exchange, every binding of it, and objects that refer to it, the census
    delete_binding   the binding, the census
    delete_general   the object, the census
    reserve_rids     the new high-water mark of record ids, the census

Changes between `begin` and `commit` are one batch together, with one census. Each of them sees those before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, cast
from uuid import UUID

from qstore.formats.catalogue import (
    FORMAT_VERSION,
    NUMBERED_KINDS,
    RID_BLOCK,
    BindingEntry,
    CatalogueFormatError,
    Census,
    Entry,
    ExchangeEntry,
    GeneralEntry,
    Kind,
    Meta,
    NextId,
    QueueEntry,
    RidReservation,
    bindings_prefix,
    decode,
    encode,
    kind_of,
)
from qstore.formats.named_tuple import NamedTuple
from qstore.store.key_value import CatalogueError, KeyValue

_Numbered = TypeVar("_Numbered", QueueEntry, ExchangeEntry, BindingEntry, GeneralEntry)


class CatalogueDamage(NamedTuple):
    """One defect of a catalogue.

    Attributes:
        key: in hexadecimal; empty if it does not concern a single key.
        what: the damage, in one line.
        file: path of the database's file that contains it, if known.
    """

    key: str
    what: str
    file: str | None = None

    def __str__(self) -> str:
        """The text, with the key if there is one."""
        return f"{self.what} (key {self.key})" if self.key else self.what


class Catalogue:
    """A catalogue on a key-value map. Every method raises CatalogueError if the map cannot be read or written.

    Attributes:
        damage: the defects found so far, in order, each one once.
    """

    __slots__ = ("_damage", "_gathered", "_key_value", "_taken")

    def __init__(self, key_value: KeyValue) -> None:
        """Use `key_value`, which the caller closes. Nothing is read yet."""
        self._key_value = key_value
        self._gathered: dict[bytes, bytes | None] | None = None  # the changes since `begin`
        self._damage = dict.fromkeys(CatalogueDamage("", *found) for found in key_value.damage)
        self._taken: dict[Kind, int] = {}

    @classmethod
    def create(cls, key_value: KeyValue, store_id: UUID) -> Catalogue:
        """Write an empty catalogue. Raises CatalogueError if the map is not empty."""
        if next(key_value.items(b""), None) is not None:
            raise CatalogueError("a catalogue cannot be created here: the database is not empty")
        key_value.write(dict((encode(Meta(FORMAT_VERSION, store_id)), encode(Census(1, 0, 0, 0, 0)))))
        return cls(key_value)

    # Reading ---------------------------------------------------------------------------------------------------

    @property
    def damage(self) -> list[CatalogueDamage]:
        """The defects found so far, in order, each one once."""
        return list(self._damage)

    def meta(self) -> Meta | None:
        """The store's identity; None, and a defect, if that is missing or unreadable."""
        entry = cast(Meta | None, self._one(Kind.META.prefix))
        if entry is None:
            self._found("", "no readable meta entry: this is not a catalogue, or a damaged one")
        return entry

    def queues(self) -> Iterator[QueueEntry]:
        """The queues, by id."""
        return cast(Iterator[QueueEntry], self._all(Kind.QUEUE.prefix))

    def exchanges(self) -> Iterator[ExchangeEntry]:
        """The exchanges, by id."""
        return cast(Iterator[ExchangeEntry], self._all(Kind.EXCHANGE.prefix))

    def bindings(self) -> Iterator[BindingEntry]:
        """The bindings, by exchange id, queue id and order of creation."""
        return cast(Iterator[BindingEntry], self._all(Kind.BINDING.prefix))

    def general(self) -> Iterator[GeneralEntry]:
        """The general objects, by id."""
        return cast(Iterator[GeneralEntry], self._all(Kind.GENERAL.prefix))

    def rid_high_water(self) -> int:
        """The first record id that is not reserved: 0 in a new catalogue. Raises CatalogueError if unreadable."""
        entry = cast(RidReservation | None, self._sound(Kind.RIDS.prefix))
        return 0 if entry is None else entry.high_water

    def batch(self) -> int:
        """Number of batches written so far. Raises CatalogueError if unreadable."""
        entry = cast(Census | None, self._sound(Kind.CENSUS.prefix))
        return 0 if entry is None else entry.batch

    def check(self) -> list[CatalogueDamage]:
        """Read everything, check its consistency, and return `damage`.

        In addition to undecodable entries this finds keys of unknown kinds, a missing meta entry, entries that the
        census counts but the map lost, bindings without their queue or exchange, and two queues with one journal.
        """
        self.meta()
        counted: Counter[Kind] = Counter()
        known: dict[Kind, set[int]] = {Kind.QUEUE: set(), Kind.EXCHANGE: set()}
        queues: list[QueueEntry] = []
        bindings: list[BindingEntry] = []
        for key, value in self._key_value.items(b""):
            try:
                kind = kind_of(key)
                counted[kind] += 1
                if kind in known:  # a key suffices for an entry to exist: a damaged value is reported, and only once
                    known[kind].add(int.from_bytes(key[1:]))
                entry = decode(key, value)
                if isinstance(entry, QueueEntry):
                    queues.append(entry)
                elif isinstance(entry, BindingEntry):
                    bindings.append(entry)
            except CatalogueFormatError as error:
                self._found(key.hex(), str(error))
        self._check_census(counted)
        self._check_references(known, queues, bindings)
        return self.damage

    def _check_census(self, counted: Counter[Kind]) -> None:
        census = cast(Census | None, self._one(Kind.CENSUS.prefix))
        if census is None:
            self._found("", "no readable census: entries may be missing")
            return
        for kind, expected in zip(NUMBERED_KINDS, census[1:], strict=True):
            if counted[kind] != expected:
                what = (
                    f"the census counts {expected} entries of kind {kind.name.lower()}, but there are {counted[kind]}"
                )
                self._found("", what)

    def _check_references(
        self, known: Mapping[Kind, Collection[int]], queues: Iterable[QueueEntry], bindings: Iterable[BindingEntry]
    ) -> None:
        journals: dict[int, int] = {}
        for queue in queues:
            other = journals.setdefault(queue.journal_id, queue.queue_id)
            if other != queue.queue_id:
                self._found(
                    encode(queue)[0].hex(),
                    f"queue {queue.queue_id} has journal {queue.journal_id}, as has queue {other}",
                )
        for binding in bindings:
            for kind, number in ((Kind.QUEUE, binding.queue_id), (Kind.EXCHANGE, binding.exchange_id)):
                if number not in known[kind]:
                    what = f"a binding names {kind.name.lower()} {number}, which does not exist"
                    self._found(encode(binding)[0].hex(), what)

    def _all(self, prefix: bytes) -> Iterator[Entry]:
        for key, value in self._key_value.items(prefix):
            try:
                yield decode(key, value)
            except CatalogueFormatError as error:
                self._found(key.hex(), str(error))

    def _one(self, key: bytes) -> Entry | None:
        value = self._key_value.get(key)
        if value is None:
            return None
        try:
            return decode(key, value)
        except CatalogueFormatError as error:
            self._found(key.hex(), str(error))
            return None

    def _found(self, key: str, what: str) -> None:
        self._damage[CatalogueDamage(key, what)] = None

    def checkpoint(self, directory: str) -> None:
        """Copy the map into a new directory."""
        self._key_value.checkpoint(directory)

    def content(self) -> dict[bytes, bytes]:
        """All entries of the map, as they are."""
        return dict(self._key_value.items(b""))

    # Writing ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Gather the changes that follow until `commit`."""
        assert self._gathered is None
        self._gathered = {}

    def commit(self) -> None:
        """Write the gathered entries as one batch, if there are any, and stop gathering."""
        changes, self._gathered = self._gathered, None
        if changes:
            self._key_value.write(changes)

    def abandon(self) -> None:
        """Discard the gathered entries, and stop gathering."""
        self._gathered = None

    def _get(self, key: bytes) -> bytes | None:
        """The value at `key`, as the changes gathered so far leave it."""
        gathered = self._gathered
        return gathered[key] if gathered is not None and key in gathered else self._key_value.get(key)

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        """The keys with a prefix, likewise."""
        gathered = self._gathered or {}
        yield from (key for key, _ in self._key_value.items(prefix) if key not in gathered)
        yield from (key for key, value in gathered.items() if value is not None and key.startswith(prefix))

    def take_id(self, kind: Kind) -> int:
        """Take the next id for an entry of `kind`, which is one of `NUMBERED_KINDS`.

        It is reserved for this process at once, and used up permanently when an entry with it is created: a queue's
        journal built before that and lost to a crash is an orphan whose number may be assigned again.
        """
        key, _ = encode(NextId(kind, 1))
        stored = cast(NextId | None, self._sound(key))
        number = max(self._taken.get(kind, 0) + 1, 1 if stored is None else stored.next_id)
        self._taken[kind] = number
        return number

    def create_queue(self, queue: QueueEntry) -> None:
        """Add `queue`, whose id and journal id were taken from the sequence of queues."""
        self._create(Kind.QUEUE, queue, max(queue.queue_id, queue.journal_id))

    def moved_journal(self, queue: QueueEntry, is_taken: Callable[[int], bool]) -> QueueEntry:
        """`queue` with another journal, of the next incarnation, which is still to be built; for `replace_queue`.

        Args:
            queue: the present entry.
            is_taken: whether something exists under a journal's number, though it is not in the catalogue.
        """
        number = self.take_id(Kind.QUEUE)
        while is_taken(number):
            number = self.take_id(Kind.QUEUE)
        return queue._replace(journal_id=number, incarnation=queue.incarnation + 1)

    def replace_queue(self, queue: QueueEntry) -> None:
        """Change a queue's entry: to another journal, or another record."""
        key, _ = encode(queue)
        if self._get(key) is None:
            raise CatalogueError(f"cannot be changed: {_described(key)} does not exist")
        self._commit([queue, self._next_id(Kind.QUEUE, max(queue.queue_id, queue.journal_id))])

    def create_exchange(self, exchange: ExchangeEntry) -> None:
        """Add `exchange`, whose id was taken."""
        self._create(Kind.EXCHANGE, exchange, exchange.exchange_id)

    def create_binding(self, binding: BindingEntry) -> None:
        """Add `binding`, whose sequence was taken. Raises CatalogueError if its queue or exchange is unknown."""
        for end in (QueueEntry(binding.queue_id, 1, 0, b""), ExchangeEntry(binding.exchange_id, b"")):
            key, _ = encode(end)
            if self._get(key) is None:
                raise CatalogueError(f"a binding cannot be created: {_described(key)} does not exist")
        self._create(Kind.BINDING, binding, binding.sequence)

    def create_general(self, general: GeneralEntry) -> None:
        """Add `general`, whose id was taken."""
        self._create(Kind.GENERAL, general, general.general_id)

    def check_general(self, general_ids: Iterable[int]) -> None:
        """Raise CatalogueError if one of these general objects does not exist."""
        for key in (encode(GeneralEntry(general_id, b""))[0] for general_id in general_ids):
            if self._get(key) is None:
                raise CatalogueError(f"cannot be deleted: {_described(key)} does not exist")

    def replace_general(self, general: GeneralEntry) -> None:
        """Change the record of a general object."""
        key, _ = encode(general)
        if self._get(key) is None:
            raise CatalogueError(f"cannot be changed: {_described(key)} does not exist")
        self._commit([general])

    def import_all(
        self,
        replaced: Sequence[QueueEntry],
        new: Sequence[QueueEntry | ExchangeEntry | BindingEntry | GeneralEntry],
        highest_rid: int,
    ) -> None:
        """Change and add many entries, whose ids were taken; all of them, or none.

        Args:
            replaced: changed queues.
            new: new entries.
            highest_rid: the highest record id that is in use now.
        """
        counts = Counter(kind for kind, _ in map(_kind_and_id, new))
        ids = dict.fromkeys(counts, 0)
        for kind, number in map(_kind_and_id, (*replaced, *new)):
            ids[kind] = max(ids.get(kind, 0), number)
        for entries, is_known in ((replaced, True), (new, False)):
            for key, _ in map(encode, entries):
                if (self._get(key) is not None) is not is_known:
                    raise CatalogueError(f"cannot be imported: {_described(key)} was changed in the meantime")
        rids = max(self.rid_high_water(), -(-(highest_rid + 1) // RID_BLOCK) * RID_BLOCK)
        next_ids = [self._next_id(kind, number) for kind, number in ids.items()]
        self._commit([*replaced, *new, *next_ids, RidReservation(rids)], counts=counts)

    def delete_queue(self, queue_id: int) -> None:
        """Delete the queue and, in the same batch, every binding to it."""
        bindings = (key for key in self._keys(Kind.BINDING.prefix) if _bound_queue(key) == queue_id)
        self._delete(Kind.QUEUE, encode(QueueEntry(queue_id, 1, 0, b""))[0], bindings)

    def delete_exchange(self, exchange_id: int, general_ids: Iterable[int] = ()) -> None:
        """Delete the exchange and, in the same batch, every binding of it, and existing general objects."""
        others = list(self._keys(bindings_prefix(exchange_id)))
        others += [encode(GeneralEntry(general_id, b""))[0] for general_id in general_ids]
        self._delete(Kind.EXCHANGE, encode(ExchangeEntry(exchange_id, b""))[0], others)

    def delete_binding(self, binding: BindingEntry) -> None:
        """Delete the one binding with these ids and this sequence."""
        self._delete(Kind.BINDING, encode(binding)[0])

    def delete_general(self, general_id: int) -> None:
        """Delete one general object."""
        self._delete(Kind.GENERAL, encode(GeneralEntry(general_id, b""))[0])

    def reserve_rids(self, above: int = 0) -> range:
        """Reserve the next block of `RID_BLOCK` record ids permanently, and return it. 0 is not a valid id: skip it.

        Args:
            above: a record id that is in use, whatever was reserved: the block begins after it.
        """
        start = max(self.rid_high_water(), -(-(above + 1) // RID_BLOCK) * RID_BLOCK if above else 0)
        block = range(start, start + RID_BLOCK)
        self._commit([RidReservation(block.stop)])
        return block

    def _create(self, kind: Kind, entry: _Numbered, highest_id: int) -> None:
        key, _ = encode(entry)
        if self._get(key) is not None:
            raise CatalogueError(f"cannot be created: {_described(key)} already exists")
        self._commit([entry, self._next_id(kind, highest_id)], counts={kind: 1})

    def _next_id(self, kind: Kind, highest_id: int) -> NextId:
        """The entry that stores the next id, after `highest_id` is used."""
        key, _ = encode(NextId(kind, 1))
        stored = cast(NextId | None, self._sound(key))
        return NextId(kind, max(highest_id + 1, 1 if stored is None else stored.next_id))

    def _delete(self, kind: Kind, key: bytes, others: Iterable[bytes] = ()) -> None:
        if self._get(key) is None:
            raise CatalogueError(f"cannot be deleted: {_described(key)} does not exist")
        with_it = [other for other in others if self._get(other) is not None]
        counts = Counter({kind: -1})
        for other in with_it:
            counts[kind_of(other)] -= 1
        self._commit([], [key, *with_it], counts)

    def _commit(
        self, puts: Iterable[Entry], deletes: Iterable[bytes] = (), counts: dict[Kind, int] | None = None
    ) -> None:
        """Write one batch, or add to the one that is gathered, with the census changed by `counts`."""
        census, gathered = cast(Census | None, self._sound(Kind.CENSUS.prefix)), self._gathered
        if census is None:
            raise CatalogueError("the catalogue accepts no change: its census is missing")
        batch = census.batch if gathered else census.batch + 1
        moved = [old + (counts or {}).get(kind, 0) for kind, old in zip(NUMBERED_KINDS, census[1:], strict=True)]
        changes: dict[bytes, bytes | None] = dict.fromkeys(deletes)
        try:
            changes.update(map(encode, (*puts, Census(batch, *moved))))
        except ValueError as error:  # numbers that only a forged or damaged catalogue can reach
            raise CatalogueError(f"the catalogue accepts no change: {error}") from error
        if gathered is None:
            self._key_value.write(changes)
        else:
            gathered.update(changes)

    def _sound(self, key: bytes) -> Entry | None:
        """The entry at `key`, None if there is none. Raises CatalogueError if it is damaged."""
        value = self._get(key)
        try:
            return None if value is None else decode(key, value)
        except CatalogueFormatError as error:
            raise CatalogueError(f"the catalogue's entry {key.hex()} is damaged: {error}") from error


def _kind_and_id(entry: QueueEntry | ExchangeEntry | BindingEntry | GeneralEntry) -> tuple[Kind, int]:
    """The kind of an entry, and the highest number of that kind's sequence in it."""
    if isinstance(entry, QueueEntry):
        return Kind.QUEUE, max(entry.queue_id, entry.journal_id)
    if isinstance(entry, ExchangeEntry):
        return Kind.EXCHANGE, entry.exchange_id
    return (Kind.BINDING, entry.sequence) if isinstance(entry, BindingEntry) else (Kind.GENERAL, entry.general_id)


def _bound_queue(key: bytes) -> int:
    """The queue id in a binding's key."""
    return int.from_bytes(key[9:17])


def _described(key: bytes) -> str:
    kind = Kind(key[0])
    numbers = ".".join(str(int.from_bytes(key[at : at + 8])) for at in range(1, len(key), 8))
    return f"{kind.name.lower()} {numbers}"
