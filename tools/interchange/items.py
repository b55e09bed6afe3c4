"""What an export consists of, and the interface of those that take its items."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, Protocol
from uuid import UUID

from qstore.formats.broker_records.topology import Binding, Bridge, Exchange, GeneralObject, Link, Queue
from qstore.formats.named_tuple import NamedTuple
from qstore.store.importing.intake import ImportedMessage
from qstore.tools.console.text import escape_name

FORMAT: Final = "qstore-export"
VERSION: Final = 1
MAX_TEXT: Final = 4096  # characters of a text in a header


class InterchangeError(Exception):
    """An export that cannot be read or written: one line that says what is wrong, where, and what to do."""


class ExportHeader(NamedTuple):
    """The beginning of an export.

    Attributes:
        identity: its id.
        created: seconds since 1970.
        software: version of the software that wrote it.
        source: the store's path, or the broker's address.
        source_format: "legacystore", "linearstore", "qstore", ...
        selection: which messages it has, as text; None for all.
    """

    identity: UUID
    created: int
    software: str
    source: str
    source_format: str
    selection: str | None

    def as_object(self) -> dict[str, Any]:
        """The header as a JSON object."""
        return {
            "kind": "export",
            "format": FORMAT,
            "version": VERSION,
            "id": str(self.identity),
            "created": datetime.fromtimestamp(self.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "software": self.software,
            "source": escape_name(self.source),
            "source_format": self.source_format,
            "selection": self.selection,
        }


def read_header(fields: Any) -> ExportHeader:
    """The header in a JSON object; what a file written by hand leaves out is empty.

    Raises:
        InterchangeError: it is not the header of an export, or of a version that is not known.
    """
    if not isinstance(fields, dict) or fields.get("kind") != "export" or fields.get("format") != FORMAT:
        raise InterchangeError(f'this is not an export: it does not begin with {{"kind":"export","format":"{FORMAT}"')
    version = fields.get("version")
    if version != VERSION or isinstance(version, bool):
        shown = version if isinstance(version, int) and 0 <= version < 1 << 31 else "?"
        raise InterchangeError(f"this export is of version {shown}; this software reads version {VERSION}")
    try:
        identity = UUID(_text(fields, "id") or str(UUID(int=0)))
        moment = datetime.fromisoformat(_text(fields, "created") or "1970-01-01T00:00:00Z")
        created = int(moment.timestamp())
    except (ValueError, OverflowError) as error:
        raise InterchangeError(f"the header of this export is not valid: {error}") from None
    selection = _text(fields, "selection") or None
    return ExportHeader(
        identity, created, _text(fields, "software"), _text(fields, "source"), _text(fields, "source_format"), selection
    )


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise ValueError(f"{name} is not a text of up to {MAX_TEXT} characters")
    return value


class ItemSink(Protocol):
    """Takes the items of an export. Topology comes before messages, and each queue's messages in their order."""

    def queue(self, queue: Queue) -> None:
        """A queue."""

    def exchange(self, exchange: Exchange) -> None:
        """An exchange."""

    def binding(self, exchange: str, binding: Binding) -> None:
        """A binding, with the name of its exchange; `queue_id` has no meaning."""

    def other(self, general: Link | Bridge | GeneralObject) -> None:
        """A link, a bridge or another object."""

    def branch(self, xid: bytes) -> None:
        """A branch in doubt."""

    def message(self, message: ImportedMessage) -> None:
        """A message."""


class ExportWriter(ItemSink, Protocol):
    """Writes an export. Every method raises OSError if it cannot be written.

    Attributes:
        hidden: the number of records whose passwords were left out.
    """

    @property
    def hidden(self) -> int: ...

    def begin(self, header: ExportHeader) -> None:
        """Write the beginning."""

    def finish(self) -> None:
        """Write the end."""


class ReadExport(NamedTuple):
    """An export that was read to its end.

    Attributes:
        header: its header.
        digest: identifies its content.
    """

    header: ExportHeader
    digest: str
