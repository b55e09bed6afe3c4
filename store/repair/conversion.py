"""Converts a store of qpidd's to version 2 when it is first opened; there is no conversion back.

The old store is read as qpidd itself would recover it (`offline`), and a complete new one is built next to it in
`rhm.new`:

    catalogue       queues, exchanges, bindings and general objects with their ids and records; stale bindings, which
                    qpidd drops at recovery, are omitted
    journals        every outstanding message with its data, in the order in which qpidd would have recovered it, with a
                    new record id: in version 1 a message has one record id on all of its queues, and the order is that
                    of the journal; in version 2 each record has its own, and their order is the queue's
    transactions    those in doubt stay so: open in the journals, with a prepare record in the prepared list. Decided
                    ones, and local prepared ones, are rolled forward; the rest is dropped

Then the two are switched, and the old one is kept:

    step                                                             a crash before it
    ---------------------------------------------------------------  --------------------------------------------------
    1. all of the new store is synced, and its STORE file written    the next start removes rhm.new, and converts again
    2. rhm is renamed to rhm.version-1                               likewise
    3. rhm.version-1 gets a file CONVERTED that explains it          the next start does that, and continues with step 4
    4. rhm.new is renamed to rhm                                     the next start does that

Up to step 2 nothing in the old store is touched, and each step is synced before the next begins.

Damage in the old store is refused, or reported and omitted (option on-damage); the old store keeps it either way.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from qstore.formats.broker_records.topology import Queue
from qstore.formats.catalogue import Kind
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import plural, printable
from qstore.store.builders.store_build import BuiltQueue, JournalSource, QueueToBuild, StoreBuild
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.store_directory import Found, StoreDirectory, remove_tree
from qstore.store.catalogue.topology import Topology
from qstore.store.damage import Damage, DamageKind
from qstore.store.environment import Environment
from qstore.store.errors import StoreDamagedError, StoreError, disk_advice
from qstore.store.inspect.layout import UnusableInputError
from qstore.store.inspect.offline import OfflineStore, RecoveredQueue, RecoveredStore, open_store
from qstore.store.journal.recovery import Outcome
from qstore.store.key_value import CatalogueError
from qstore.store.log_lines import Level, LogLine, journal_created
from qstore.store.parameters import OnDamage, StoreParameters
from qstore.store.recovery.journal_content import described
from qstore.store.recovery.journal_recovery import StartProgress
from qstore.store.unfinished import CONVERTED, NEW

# ---- the explanation in the old store ----

MARK: Final = "CONVERTED"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MARK_TEXT: Final = """\
This is a message store of qpidd's (legacystore, version 1). On {time} a new store was created from
it, in the directory rhm next to this one. The content of this directory was not changed, except for this file,
and is not used any more.

To discard it:        remove this directory, after checking that the new store works.
To return to qpidd:   stop the broker; move rhm elsewhere; rename this directory to rhm; remove this file. All
                      later changes are in the new store only.
"""


def mark_converted(environment: Environment, directory: StoreDirectory) -> None:
    """Write the explanation into the old store, unless that was done: a crash may have prevented it.

    Every start does this before `finish_interrupted`, since the kept store's new name may not be durable yet.

    Raises:
        OSError: the disk fails.
    """
    disk = environment.disk
    kept = directory.below(CONVERTED)
    is_marked = disk.is_file(posixpath.join(kept, MARK))
    if not disk.is_directory(kept) or (is_marked and not disk.is_directory(directory.below(NEW))):
        return
    disk.sync_directory(directory.path)  # or the mark might be in a store that has its old name again
    if is_marked:
        disk.sync_directory(kept)
        return
    time = _EPOCH + timedelta(seconds=environment.clock() // 1_000_000_000)
    old = StoreDirectory(environment, directory.path, "")
    old.root = kept
    old.replace(MARK, _MARK_TEXT.format(time=f"{time:%Y-%m-%d %H:%M:%S} UTC").encode())


# ---- the conversion ----

Log = Callable[[LogLine], None]

_MAX_LINES: Final = 200  # maximum lines about damage, and notices; qstore-check reports all


class ConversionReport(NamedTuple):
    """The result of a conversion.

    Attributes:
        queues, exchanges, bindings, general: number of each.
        messages: messages on all queues, one on several queues counted for each; those in doubt included.
        in_doubt: transactions that wait for their transaction manager.
        resized: journals that had to be enlarged.
        damage: damage found in the old store, and omitted.
        kept: path of the old store now.
    """

    queues: int
    exchanges: int
    bindings: int
    general: int
    messages: int
    in_doubt: int
    resized: int
    damage: int
    kept: str


def convert(
    environment: Environment,
    directory: StoreDirectory,
    parameters: StoreParameters,
    log: Log,
    progress: StartProgress | None = None,
) -> ConversionReport:
    """Convert the store of version 1 in `directory`, which is locked and without interrupted work, to version 2.

    Args:
        environment: disk, clock and so on.
        directory: the store's.
        parameters: the options: how to treat damage, and default sizes.
        log: receives log lines.
        progress: reports how far it is.

    Raises:
        StoreDamagedError: the old store is damaged, and the option on-damage is set to refuse it.
        StoreError: there is no store of version 1, it cannot be read or does not fit, or the new one cannot be created.
            Unless the new one was already complete, nothing of it is left.
    """
    disk, kept = environment.disk, directory.below(CONVERTED)
    if directory.look() is not Found.VERSION_1:
        raise StoreError(f"{directory.path}: there is no store of version 1 to convert")
    if disk.is_directory(kept):
        raise StoreError(f"{kept}: a converted store already exists; move it elsewhere first")
    log(LogLine(Level.NOTICE, f"Converting store of version 1; dir={printable(directory.path)}"))
    try:
        source = open_store(disk, directory.root)
    except UnusableInputError as error:
        raise StoreError(str(error)) from error
    except OSError as error:
        raise _failure(directory, error) from error
    store_id = UUID(int=environment.random_bits(128), version=4)
    try:
        conversion = _Conversion(environment, directory, parameters, log, source, progress or StartProgress())
        new = conversion.build(store_id)
    except OSError as error:
        raise _failure(directory, error) from error
    except CatalogueError as error:
        raise StoreError(f"{error}; {disk_advice()}; the old store is unchanged") from error
    finally:
        source.close()
    try:
        directory.set_converted_aside()
        mark_converted(environment, directory)
    except OSError as error:
        if disk.is_directory(directory.root):
            with contextlib.suppress(OSError):  # the next start repeats it
                remove_tree(disk, new.root)
        raise _failure(directory, error, "start again to finish it") from error
    directory.finish_new(new, store_id)
    report = conversion.report(kept)
    log(_converted(report))
    return report


def _failure(directory: StoreDirectory, error: OSError, advice: str = "the old store is unchanged") -> StoreError:
    if error.errno == errno.ENOSPC:
        advice = "free some space and start again"
    where = error.filename or directory.path
    return StoreError(f"{where}: the store of version 1 cannot be converted: {error.strerror or error}; {advice}")


def _converted(report: ConversionReport) -> LogLine:
    left_out = (
        f"; {plural(report.damage, 'damage')} in the old store, see above and qstore-check" if report.damage else ""
    )
    return LogLine(
        Level.NOTICE,
        f"Store converted: {plural(report.queues, 'queue')}, {plural(report.exchanges, 'exchange')}, "
        f"{plural(report.bindings, 'binding')}, {plural(report.general, 'other object')}, "
        f"{plural(report.messages, 'message')}, {plural(report.in_doubt, 'transaction')} in doubt{left_out}"
        f"; the old store is kept in {printable(report.kept)}",
    )


class _Conversion:
    """One conversion, until the new store is complete in `rhm.new`."""

    def __init__(
        self,
        environment: Environment,
        directory: StoreDirectory,
        parameters: StoreParameters,
        log: Log,
        source: OfflineStore,
        progress: StartProgress,
    ) -> None:
        self._environment, self._directory = environment, directory
        self._parameters, self._log, self._progress = parameters, log, progress
        self._disk = environment.disk
        self._source = source
        self._made: Counter[str] = Counter()

    def report(self, kept: str) -> ConversionReport:
        """The result of the conversion."""
        return ConversionReport(**{name: self._made[name] for name in ConversionReport._fields[:-1]}, kept=kept)

    def build(self, store_id: UUID) -> StoreDirectory:
        """Build the new store, synced and marked. Raises as `convert`, or OSError, CatalogueError."""
        recovered = self._source.recover()
        self._log_findings()
        new = self._directory.in_the_making
        try:
            self._directory.begin_new(self._parameters.tpl_geometry, self._parameters.flush_alignment)
            key_value = self._environment.open_key_value(new.catalogue, create=True)
            try:
                self._fill(recovered, new, Catalogue.create(key_value, store_id))
                new.write_topology(store_id, key_value)
            finally:
                key_value.close()
            for path in (new.part("jrnl"), new.root, self._directory.path):
                self._disk.sync_directory(path)
            new.mark(store_id, clean=False)
        except BaseException:
            with contextlib.suppress(OSError):  # the next start repeats it
                remove_tree(self._disk, new.root)
            raise
        return new

    def _fill(self, recovered: RecoveredStore, new: StoreDirectory, catalogue: Catalogue) -> None:
        build = StoreBuild(self._environment, new, self._parameters, catalogue, self)
        prepared = {each.xid: each.user for each in recovered.transactions if each.outcome is Outcome.IN_DOUBT}
        self._made["in_doubt"] = len(prepared)
        build.prepared_list(prepared)
        topology = self._source.topology or Topology()
        for number, exchange in topology.exchanges.items():
            if self._is_legal(number, "exchanges.db"):
                build.exchange(number, exchange)
                self._made["exchanges"] += 1
        queues = self._convert_queues(recovered, build, catalogue)
        self._convert_bindings(topology, queues, build)
        for number, general in topology.general.items():
            if self._is_legal(number, "general.db"):
                build.general(number, general)
                self._made["general"] += 1

    # ---- queues ----

    def _convert_queues(self, recovered: RecoveredStore, build: StoreBuild, catalogue: Catalogue) -> set[int]:
        """Convert the queues in the old catalogue, by id, then those known only from a journal. Returns their ids."""
        known = [] if self._source.topology is None else list(self._source.topology.queues)
        numbers: set[int] = set()
        names: set[str] = set()
        for position, queue in enumerate(recovered.queues):
            number = known[position] if position < len(known) else catalogue.take_id(Kind.QUEUE)
            if not self._is_legal(number, "queues.db"):
                continue
            if queue.name in names:
                path, kind = self._file("queues.db"), DamageKind.QUEUE_TWICE
                self._found(Damage(path, None, None, kind, number=number, queue=queue.name))
                continue
            names.add(queue.name)
            numbers.add(number)
            self._progress.converting(position + 1, len(recovered.queues), queue.name)
            build.queue(self._to_build(number, queue))
        self._made["queues"] = len(numbers)
        return numbers

    def _to_build(self, number: int, queue: RecoveredQueue) -> QueueToBuild:
        journal, recovery = queue.journal, queue.recovery
        geometry = self._parameters.geometry if journal is None else journal.files.geometry
        source = None if journal is None or recovery is None else JournalSource(journal, recovery)
        return QueueToBuild(number, queue.record or Queue(queue.name), source, geometry)

    def left_out(self, _queue: QueueToBuild, damage: Damage, _place: int, _end: int) -> None:
        """A message cannot be copied."""
        self._found(damage)

    def built(self, queue: QueueToBuild, result: BuiltQueue) -> None:
        """A queue was built."""
        name = queue.record.name
        self._made["messages"] += result.messages
        if result.geometry != queue.geometry:
            self._log(_resized(name, described(queue.geometry), described(result.geometry)))
            self._made["resized"] += 1
        self._log(journal_created(name))

    # ---- bindings ----

    def _convert_bindings(self, topology: Topology, queues: set[int], build: StoreBuild) -> None:
        """Convert the bindings. They have no ids in version 1: they are numbered in the order of reading."""
        numbers = {exchange.name: number for number, exchange in topology.exchanges.items() if number > 0}
        for binding in topology.bindings:
            exchange_id = numbers.get(binding.exchange.name)
            if exchange_id is None or binding.record.queue_id not in queues:
                continue  # the omitted one has been reported
            build.binding(exchange_id, binding.record)
            self._made["bindings"] += 1

    def _is_legal(self, number: int, file: str) -> bool:
        if number > 0:
            return True
        self._found(Damage(self._file(file), None, None, DamageKind.OBJECT_WITHOUT_ID))
        return False

    # ---- reporting ----

    def _log_findings(self) -> None:
        """Log damage and notices. Raises StoreDamagedError."""
        source = self._source
        for damage in source.damage:
            self._found(damage)
        if source.topology is not None and not source.topology.complete and not source.topology.damage:
            self._found(Damage(self._directory.part("dat"), None, None, DamageKind.ENVIRONMENT_NOT_RECOVERED))
        for notice in source.notices[:_MAX_LINES]:
            self._log(LogLine(Level.NOTICE, printable(notice)))

    def _file(self, name: str) -> str:
        return posixpath.join(self._directory.part("dat"), name)

    def _found(self, damage: Damage) -> None:
        """Note damage, or refuse the store because of it."""
        text = printable(f"{damage.where}: {damage.what}: {damage.consequence}")
        if self._parameters.on_damage is OnDamage.REFUSE:
            raise StoreDamagedError(
                f"{text}; the store of version 1 is not converted, because on-damage is refuse: "
                f"run qstore-check {self._directory.path}"
            )
        self._made["damage"] += 1
        if self._made["damage"] <= _MAX_LINES:
            self._log(LogLine(Level.CRITICAL, text))


def _resized(name: str, old: str, new: str) -> LogLine:
    return LogLine(
        Level.WARNING,
        f'Journal "{printable(name)}": its messages need more room in version 2 than its {old}; it will have {new}',
    )
