"""Configuration records: policies, permissions, parameters, virtual hosts: whatever is set while the broker runs.

A record is a kind, a name of one or more parts, and a small map of text, numbers and flags. It is stored as a general
object of the catalogue (`qstore.policy`, ...), so that copies, snapshots and backups contain it like the topology; its
page is `formats/broker_records/README.md`, 4.5. Older versions keep these objects, without effect.

A change puts and deletes any number of records in one synced batch: after a crash all of it is there, or nothing. It
shares the batch with the changes of the topology that are made at the same time. Its effects follow when it is on the
disk. Changes that have a record in common run one after the other.

A broker without a store keeps the records in memory, and says so once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from qstore.broker.log.logs import log_of
from qstore.broker.model.errors import InternalError, InvalidArgumentError
from qstore.broker.model.store_protocol import Store
from qstore.broker.model.topology.changes import ChangeOrder
from qstore.formats.broker_records.topology import CONFIGURATION_KINDS, GeneralObject
from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import typed_map

_LOG: Final = log_of("Model")

MAX_RECORDS: Final = 100_000
"""Records of all kinds together: each takes about a kilobyte of memory and of the catalogue."""

MAX_TEXT: Final = 32 << 10
"""Characters of all texts of a record, its name included."""

Value: TypeAlias = str | int | bool
Values: TypeAlias = Mapping[str, Value]


class Record(NamedTuple):
    """What identifies a record: its kind, one of `CONFIGURATION_KINDS`, and the parts of its name."""

    kind: str
    name: tuple[str, ...]


class Configuration:
    """The configuration records of one broker.

    Args:
        store: persists them; None to keep them in memory.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._records: dict[Record, Values] = {}
        self._numbers: dict[Record, int] = {}
        self._changes = ChangeOrder()
        self._has_noticed = False

    def recover(self) -> None:
        """Load the records from the store."""
        if self._store is None:
            return
        for number, stored in self._store.topology.general.items():
            if not isinstance(stored, GeneralObject) or stored.kind not in CONFIGURATION_KINDS:
                continue
            found = record_of(stored)
            if found is None:
                _LOG.error("The configuration record %s of the store is not valid and has no effect", number)
                continue
            record, self._records[found[0]] = found
            self._numbers[record] = number

    async def finish(self) -> None:
        """Wait until no change is pending. Called before the store is closed."""
        await self._changes.finish()

    def of(self, kind: str) -> dict[tuple[str, ...], Values]:
        """The records of a kind: name -> values."""
        return {record.name: values for record, values in self._records.items() if record.kind == kind}

    def get(self, record: Record) -> Values | None:
        """The values of a record; None if there is none."""
        return self._records.get(record)

    async def change(
        self,
        puts: Mapping[Record, Values],
        deletes: Iterable[Record] = (),
        *,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        """Put records, each in place of that with its name, and delete others, in one step.

        Args:
            puts: record -> its values.
            deletes: records to delete; those that do not exist are ignored.
            then: called when it is on the disk, before any later change of these records.

        Raises:
            InvalidArgumentError: a record is too large, or has text that is not valid, or there are too many.
            InternalError: the store cannot store them, and nothing was changed.
        """
        gone = [record for record in deletes if record not in puts]
        for record, values in puts.items():
            _check(record, values)
        concerned = {*puts, *gone}
        only = repr(next(iter(concerned))) if len(concerned) == 1 else None
        await self._changes.do(lambda: self._change(puts, gone, then), only)

    async def _change(
        self, puts: Mapping[Record, Values], deletes: Iterable[Record], then: Callable[[], object]
    ) -> None:
        gone = [record for record in deletes if record in self._records]
        new = sum(record not in self._records for record in puts)
        if new and len(self._records) + new - len(gone) > MAX_RECORDS:
            raise InvalidArgumentError(f"there are {MAX_RECORDS:,} configuration records; this is the maximum")
        if puts or gone:
            await self._store_change(puts, gone)
        self._records.update(puts)
        for record in gone:
            del self._records[record]
            self._numbers.pop(record, None)
        then()

    async def _store_change(self, puts: Mapping[Record, Values], gone: list[Record]) -> None:
        store = self._store
        if store is None:
            if not self._has_noticed:
                self._has_noticed = True
                _LOG.notice("Policies, permissions and parameters are kept in memory only: no store is loaded")
            return
        objects = [object_of(each, values) for each, values in puts.items()]
        numbers = [self._numbers[record] for record in gone]
        answer: asyncio.Future[tuple[list[int] | None, Exception | None]]
        answer = asyncio.get_running_loop().create_future()

        def done(made: list[int] | None, error: Exception | None) -> None:
            if not answer.done():
                answer.set_result((made, error))

        try:
            store.changes.change_general(objects, numbers, done)
        except FormatError as error:
            raise InvalidArgumentError(str(error)) from error
        except store.errors as error:
            raise InternalError(str(error)) from error
        made, failure = await answer
        if failure is not None or made is None:
            raise InternalError(str(failure))
        self._numbers.update(zip(puts, made, strict=True))


def _check(record: Record, values: Values) -> None:
    texts = [*record.name, *values, *(value for value in values.values() if isinstance(value, str))]
    if sum(map(len, texts)) > MAX_TEXT:
        raise InvalidArgumentError(f"the {record.kind} is too large: more than {MAX_TEXT:,} characters")
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError(f"the {record.kind} has text that is not valid UTF-8") from None
    if any(not isinstance(value, str) and not -(1 << 63) <= value < 1 << 63 for value in values.values()):
        raise InvalidArgumentError(f"the {record.kind} has a number that is too large")


def object_of(record: Record, values: Values) -> GeneralObject:
    """The general object that keeps a record."""
    return GeneralObject(record.kind, json.dumps(record.name), typed_map(values))


def record_of(stored: GeneralObject) -> tuple[Record, Values] | None:
    """The record that a general object of one of `CONFIGURATION_KINDS` is, with its values; None if it is not valid."""
    try:
        name = json.loads(stored.name)
    except ValueError:
        return None
    if not isinstance(name, list) or not name or not all(isinstance(part, str) for part in name):
        return None
    values = {name: typed.value for name, typed in stored.properties.entries if isinstance(typed.value, str | int)}
    return Record(stored.kind, tuple(name)), values
