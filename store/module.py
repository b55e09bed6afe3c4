"""The module that `qpidd --load-module store` loads: the store's options, and the interface by which a broker opens it.

The broker defines the shape of both as protocols and does not import this module, nor does this module import the
broker. `tests/broker/test_store_protocol.py`, which mypy checks, keeps the two in line. The module's names are entry
points of the group `qstore.modules` (pyproject.toml): the names of all stores that qpidd ever had, so that an old
command line or configuration file loads this one.

`PluggedStore` is the store with all that the broker needs but may not import: the classes of its errors, the parts
of a transaction, and the size of a queue's journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, Literal, TypeAlias

from mypy_extensions import mypyc_attr

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.store.environment import system_environment
from qstore.store.errors import JournalError, JournalFullError, StoreError
from qstore.store.key_value import CatalogueError
from qstore.store.live.message_store import MessageStore, journal_files, journal_metrics, store_metrics
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.log_lines import LogLine
from qstore.store.parameters import (
    OPTIONS,
    Kind,
    ParameterError,
    StoreOption,
    parse_parameters,
    queue_compresses,
    queue_geometry,
    queue_max_files,
    store_directory,
)
from qstore.store.recovery.journal_recovery import ReportProgress, no_report

OptionKind: TypeAlias = Literal["number", "switch", "choice", "text"]

_KINDS: Final[dict[Kind, OptionKind]] = {
    Kind.NUMBER: "number",
    Kind.SWITCH: "switch",
    Kind.CHOICE: "choice",
    Kind.TEXT: "text",
}


class ModuleOption(NamedTuple):
    """One of the store's options, in the form in which a broker shows it.

    Attributes:
        name: its name, without `--`.
        alias: another name for it; empty for none.
        kind: the type of its value.
        default: the default that help shows; empty for none.
        help: its purpose and possible values, in one line.
    """

    name: str
    alias: str
    kind: OptionKind
    default: str
    help: str


def _shown(option: StoreOption) -> ModuleOption:
    text = option.help
    if option.words:
        text += f": {', '.join(option.words)}"
    elif option.unit:
        text += f", in {option.unit}" if option.unit != "files" else ""
        text += f": {option.minimum} to {option.maximum}" if option.legal else ""
    if option.not_needed:
        text += " (not needed here, and without effect)"
    default = "" if option.default is None else str(option.default)
    if option.kind is Kind.SWITCH:
        default = "yes" if option.default else "no"
    return ModuleOption(option.name, option.alias, _KINDS[option.kind], default, text)


@mypyc_attr(allow_interpreted_subclasses=True)
class PluggedStore(MessageStore):
    """The store as a broker uses it: see `MessageStore`.

    Attributes:
        errors: the errors that its calls raise by design.
        full_error: a journal has no room until messages are dequeued.
        argument_error: an argument of a queue's declaration is invalid.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = (JournalError, StoreError, CatalogueError)
    full_error: ClassVar[type[Exception]] = JournalFullError
    argument_error: ClassVar[type[Exception]] = ParameterError

    def crc(self, parts: Iterable[bytes]) -> int:
        """The checksum of a message's data."""
        return data_crc(parts)

    def metrics(self) -> Mapping[str, int | str]:
        """The metrics of the store for management (`metrics`): name -> value."""
        return store_metrics(self)._asdict()

    def journal_metrics(self, journal: QueueJournal) -> Mapping[str, int | str]:
        """The metrics of a journal for management: name -> value."""
        return journal_metrics(self, journal)._asdict()

    def journal_files(self, journal: QueueJournal) -> Mapping[str, Any]:
        """Its files, and what holds the oldest one: see `message_store.journal_files`."""
        return journal_files(journal)

    def queue_geometry(self, arguments: Mapping[str, Any]) -> Geometry:
        """The size of a new queue's journal; corrections of its arguments are logged.

        Args:
            arguments: the declaration's arguments as plain values; those that are not the store's are ignored.

        Raises:
            ParameterError: an argument is not a number, or not one of its words.
        """
        geometry, lines = queue_geometry(arguments, self.parameters)
        _, more = queue_max_files(arguments, self.parameters, geometry)
        queue_compresses(arguments)
        for line in (*lines, *more):
            self._log(line)
        return geometry


class Module:
    """The entry point object that a broker loads.

    Attributes:
        title: the heading of the options.
        options: the options, in the order in which help shows them.
        errors: the errors that `open` raises by design.
    """

    title: ClassVar[str] = "Store"
    options: ClassVar[tuple[ModuleOption, ...]] = tuple(_shown(option) for option in OPTIONS)
    errors: ClassVar[tuple[type[Exception], ...]] = (StoreError, ParameterError)

    def open(
        self,
        values: Mapping[str, str],
        data_directory: str | None,
        version: str,
        log: Callable[[LogLine], None],
        progress: ReportProgress = no_report,
    ) -> PluggedStore:
        """Open the store.

        Args:
            values: the options given, by name or alias.
            data_directory: where to put the store unless the option store-dir says otherwise; None if there is none.
            version: the broker's, for the STORE file.
            log: receives log lines.
            progress: gets the progress, again and again.

        Raises:
            StoreError: it cannot be opened.
            ParameterError: an option's value is invalid, or there is no directory.
        """
        parameters, lines = parse_parameters(values)
        for line in lines:
            log(line)
        directory = store_directory(parameters, data_directory)
        return PluggedStore.open(system_environment(), directory, parameters, version, log=log, progress=progress)
