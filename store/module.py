"""What `qpidd --load-module store` finds: the store's options, and the plug by which a broker opens the store.

The broker defines the shape of both and does not know what fills it; this is what fills it, and does not know the
broker. A test that mypy checks, `tests/broker/test_store_protocol.py`, holds the two together. The names under which
the module is found are entry points of the group `qstore.modules` (pyproject.toml): those of all the stores that qpidd
ever had, so that an old command line or configuration file opens this one.

`PluggedStore` is the store with what the broker, which may not import from here, has to get from it: the kinds of its
errors, the parts of a transaction, and the size of a queue's journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from formats.rhm.geometry import Geometry
from formats.rhm.headers import data_crc
from store.environment import system_environment
from store.errors import StoreError
from store.journal.write.step import JournalError, JournalFailedError, JournalFullError
from store.key_value import CatalogueError
from store.live.message_store import MessageStore
from store.live.queue_journal import QueueJournal
from store.live.transactions import Dequeue, Enqueue
from store.log_lines import LogLine
from store.parameters import (
    OPTIONS,
    Kind,
    ParameterError,
    StoreOption,
    parse_parameters,
    queue_geometry,
    store_directory,
)

OptionKind: TypeAlias = Literal["number", "switch", "choice", "text"]

_KINDS: Final[dict[Kind, OptionKind]] = {
    Kind.NUMBER: "number",
    Kind.SWITCH: "switch",
    Kind.CHOICE: "choice",
    Kind.TEXT: "text",
}


class ModuleOption(NamedTuple):
    """One of the store's options, as a broker shows it.

    Attributes:
        name: as it is written after `--`.
        alias: another name for it; empty if it has none.
        kind: what its value is.
        default: what help shows as the default; empty for none.
        help: what it is for, in one line, with what there is to choose from.
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


class PluggedStore(MessageStore):
    """The store that a broker has: see `MessageStore`.

    Attributes:
        errors: what its calls raise by design.
        full_error: a journal has no room until messages are dequeued.
        failed_error: a journal's disk has failed.
        argument_error: an argument of a queue's declaration cannot be understood.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = (JournalError, StoreError, CatalogueError)
    full_error: ClassVar[type[Exception]] = JournalFullError
    failed_error: ClassVar[type[Exception]] = JournalFailedError
    argument_error: ClassVar[type[Exception]] = ParameterError

    def crc(self, parts: Iterable[bytes]) -> int:
        """The checksum of a message's data."""
        return data_crc(parts)

    def queue_geometry(self, arguments: Mapping[str, Any]) -> Geometry:
        """How large a queue's journal is to be; what is corrected in its arguments is logged.

        Args:
            arguments: of its declaration, as plain values; others than the store's are passed over.

        Raises:
            ParameterError: an argument is no number.
        """
        geometry, lines = queue_geometry(arguments, self.parameters)
        for line in lines:
            self._log(line)
        return geometry

    def transaction_enqueue(self, journal: QueueJournal, parts: Sequence[bytes], size: int, crc: int) -> Enqueue:
        """A message that a transaction enqueues."""
        return Enqueue(journal, parts, size, crc)

    def transaction_dequeue(self, journal: QueueJournal, rid: int) -> Dequeue:
        """A message that a transaction dequeues."""
        return Dequeue(journal, rid)


class Module:
    """The plug.

    Attributes:
        title: the heading of the options.
        options: the options, in the order in which help shows them.
        errors: why `open` gives up.
    """

    title: ClassVar[str] = "Store"
    options: ClassVar[tuple[ModuleOption, ...]] = tuple(_shown(option) for option in OPTIONS)
    errors: ClassVar[tuple[type[Exception], ...]] = (StoreError, ParameterError)

    def open(
        self, values: Mapping[str, str], data_directory: str | None, version: str, log: Callable[[LogLine], None]
    ) -> PluggedStore:
        """Open the store.

        Args:
            values: the options that were given, by name or alias.
            data_directory: where it is, if the option store-dir does not say otherwise; None if there is none.
            version: the broker's, for the STORE file.
            log: takes lines for the log.

        Raises:
            StoreError: it cannot be opened.
            ParameterError: an option's value cannot be understood, or there is no directory.
        """
        parameters, lines = parse_parameters(values)
        for line in lines:
            log(line)
        return PluggedStore.open(
            system_environment(), store_directory(parameters, data_directory), parameters, version, log=log
        )
