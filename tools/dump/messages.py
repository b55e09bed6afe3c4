"""Stored messages: which ones are selected, how their bodies are shown, and what they are as JSON objects.

Selection, RIDS, SELECTOR   by queue, record id, transaction, type of record; the options of commands for these
BodyForm                    a body as text, in hex, not at all, or as a file of its own
MessageReader               an enqueue record as a message; `message_object` is its JSON object
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from qstore.tools.console.text import escape_name, printable

if TYPE_CHECKING:
    from qstore.broker.model.selectors.selector import Selector

import base64
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from qstore.formats.broker_records.message_header import Amqp10Message, MessageHeader
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, decode_message_header, header_size
from qstore.formats.broker_records.topology import HOST_SEPARATOR
from qstore.formats.errors import BrokerRecordError, RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.plain import plain_bytes
from qstore.formats.rhm.records import Kind
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.journal.journal import Journal

_NUMBER = r"(0x[0-9a-f]+|[0-9]+)"
_RANGE = re.compile(rf"(?P<first>{_NUMBER})?\.\.(?P<last>{_NUMBER})?|(?P<only>{_NUMBER})")
_HIGHEST_RID = (1 << 64) - 1
_MAX_NAMED: Final = 5  # queues that an error lists


class BodyForm(Enum):
    """How a message's body is shown."""

    TEXT = "text"
    HEX = "hex"
    NONE = "none"
    FILES = "files"


@dataclass(frozen=True, slots=True)
class Selection:
    """What to show. An empty set selects everything.

    Attributes:
        queues: queue names.
        rids: first and last record id.
        xids: transaction ids.
        kinds: record types.
    """

    queues: frozenset[str] = frozenset()
    rids: tuple[int, int] = (0, _HIGHEST_RID)
    xids: frozenset[bytes] = frozenset()
    kinds: frozenset[Kind] = field(default_factory=frozenset)

    def has_queue(self, name: str) -> bool:
        """Whether a queue is shown. One of a virtual host may be named as people see it, `host/name`."""
        if not self.queues or name in self.queues:
            return True
        return HOST_SEPARATOR in name and _with_slash(name) in self.queues

    def unknown_queues(self, known: Collection[str]) -> frozenset[str]:
        """The queues that were asked for and do not exist."""
        return self.queues - queues_named(self.queues, known, as_given=True)

    def has_rid(self, rid: int) -> bool:
        """Whether a record id is shown."""
        return self.rids[0] <= rid <= self.rids[1]

    def has_xid(self, xid: bytes | None) -> bool:
        """Whether records of a transaction id are shown."""
        return not self.xids or xid in self.xids

    @property
    def all_messages(self) -> bool:
        """Whether all messages of a shown queue are shown."""
        return self.rids == (0, _HIGHEST_RID) and not self.xids


def parse_rids(text: str) -> tuple[int, int]:
    """Parse `A..B`, `A..`, `..B` or `A`, decimal or 0x…, both ends included.

    Raises:
        ValueError: it has another form, or the range is reversed.
    """
    found = _RANGE.fullmatch(text.strip().lower())
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is neither a record id nor a range A..B")
    if found["only"]:
        return _number(found["only"]), _number(found["only"])
    first = _number(found["first"]) if found["first"] else 0
    last = _number(found["last"]) if found["last"] else _HIGHEST_RID
    if last < first:
        raise ValueError(f"{text!r}: the end of the range is below its beginning")
    return first, last


def _number(text: str) -> int:
    """Parse a number in decimal (leading zeros are ignored) or in hex after 0x."""
    number = int(text, 16) if text.startswith("0x") else int(text)
    if number > _HIGHEST_RID:
        raise ValueError(f"{text} is larger than any record id")
    return number


def queues_named(wanted: Iterable[str], known: Collection[str], *, as_given: bool = False) -> frozenset[str]:
    """The queues that are meant by names as people see them: those of virtual hosts are shown as `host/name`.

    Args:
        wanted: the names.
        known: the queues that there are.
        as_given: return those that exist, as they were given; otherwise all, unknown ones as they were given.
    """
    shown = {_with_slash(name): name for name in known if HOST_SEPARATOR in name}
    if as_given:
        return frozenset(name for name in wanted if name in known or name in shown)
    return frozenset(name if name in known else shown.get(name, name) for name in wanted)


def _with_slash(full: str) -> str:
    """The name of a queue of a virtual host as it is typed, `host/name`, after its escapes are resolved."""
    return full.replace(HOST_SEPARATOR, "/", 1)


def no_such_queue(where: str, name: str, known: Iterable[str]) -> str:
    """The error for a queue that does not exist: it lists queues with similar names, or those that there are."""
    names = sorted(map(printable, known))
    near = difflib.get_close_matches(printable(name), names, _MAX_NAMED)
    listed = ", ".join(f'"{each}"' for each in near or names[:_MAX_NAMED])
    if near:
        what = f"did you mean {listed}?"
    elif len(names) > _MAX_NAMED:
        what = f"the queues are {listed} and {len(names) - _MAX_NAMED:,} more"
    else:
        what = f"the queues are {listed}" if names else "it has no queues"
    return f'{where}: there is no queue "{escape_name(name)}"; {what}'


class RidRange(click.ParamType[tuple[int, int]]):
    """A range of record ids, as an option of a command."""

    name = "A..B"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Parse it, unless it is parsed."""
        if isinstance(value, tuple):
            return value
        try:
            return parse_rids(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _JmsSelector(click.ParamType["Selector | None"]):
    """A selector, as an option of a command; an empty one selects everything."""

    name = "TEXT"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Selector | None:
        if value is None or not str(value).strip():
            return None
        try:
            return selector_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def selector_of(text: str) -> Selector:
    """The selector. Raises ValueError: it is not valid; the text is for the user."""
    # Selectors need a parser generator, whose grammar takes a moment to load.
    from qstore.broker.model.errors import InvalidArgumentError
    from qstore.broker.model.selectors.selector import compile_selector

    try:
        return compile_selector(text)
    except InvalidArgumentError as error:
        raise ValueError(f"this is not a selector{error}") from None


RIDS: Final = click.option(
    "--rid", "rids", type=RidRange(), metavar="A..B", help="Only these record ids: A..B, A.., ..B or A; decimal or 0x…."
)
SELECTOR: Final = click.option(
    "--selector", type=_JmsSelector(), metavar="TEXT", help="Only messages that this JMS selector selects."
)


# ---- bodies as files ----

_MAX_NAME: Final = 200  # a file name may have 255 bytes


class BodyFileError(Exception):
    """A body could not be written; the text says where and why."""


def body_directory(root: Path | None, queue: str) -> Path | None:
    """The directory for a queue's bodies below `root`; None without a `root`. It is created with its first file."""
    return None if root is None else root / _safe_name(queue)


class BodyFile:
    """A file for one body, readable only by its owner. An existing file is replaced; symbolic links are not followed.

    Raises:
        BodyFileError: from the constructor, `write` and `close`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._explained():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, chunk: bytes) -> None:
        """Append to the body."""
        view = memoryview(chunk)
        with self._explained():
            while view:
                view = view[os.write(self._descriptor, view) :]

    def close(self) -> None:
        """Close the file; the body is complete."""
        with self._explained():
            os.close(self._descriptor)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BodyFileError(f"{self.path}: {error.strerror}") from error


def _safe_name(queue: str) -> str:
    """A queue's name as a file name: percent-encoded, never "." or "..", and not too long."""
    octets = queue.encode("utf-8", "surrogateescape")
    name = quote(octets, safe="")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _MAX_NAME:
        name = f"{name[: _MAX_NAME - 17]}-{hashlib.sha256(octets).hexdigest()[:16]}"
    return name or "%"


# ---- messages ----
#
# `MessageReader` converts a journal's enqueue record to the object of a message, for everything that shows messages. It
# is the inner loop of a dump: one access to the journal's window, one header decoded, one digest for each message.

_SMALL: Final = 1 << 16  # data up to this size are read at once

_new_tuple: Final = tuple.__new__  # what a NamedTuple's constructor calls, without its overhead
_TOO_SHORT: Final = "the data are shorter than the length of the message header in them"


class Message(NamedTuple):
    """A decoded stored message.

    Attributes:
        header: its decoded header; None if it cannot be decoded, and then the body is all of the data.
        problem: why it cannot be decoded, or, if it can, what is wrong with the compressed content, and then the body
            is what is stored of that; None if nothing is.
        body_length: size of the body in bytes.
        body_sha256: digest of the body, in hex.
        body: the body, if the form includes it.
        body_file: path of the file to which the body was written, if the form is files.
    """

    header: MessageHeader | None
    problem: str | None
    body_length: int
    body_sha256: str
    body: bytes | None
    body_file: str | None


class MessageReader:
    """Reads the messages of one journal.

    Args:
        journal: the journal.
        form: how bodies are shown.
        directory: for `BodyForm.FILES`, the directory for them; file names are record ids in hex.
        max_body: how many bytes of a large body are retained; the rest is only counted and digested.
    """

    def __init__(
        self, journal: Journal, form: BodyForm, directory: Path | None = None, max_body: int | None = None
    ) -> None:
        assert (form is BodyForm.FILES) == (directory is not None)
        self._max_body = sys.maxsize if max_body is None else max_body
        self._journal = journal
        self._form = form
        self._directory = directory

    def read(self, rid: int, place: int) -> Message:
        """Read the message whose enqueue record is at `place`."""
        data = self._journal.small_data(place)
        if data is None or len(data) > _SMALL:
            if self._journal.is_compressed(place):
                return self._read_compressed(rid, *self._journal.data_of_enqueue(place))
            return self._read_large(rid, *self._journal.data_of_enqueue(place))
        return self._read_small(rid, data)

    def _read_small(self, rid: int, data: bytes) -> Message:
        message, parts = _decoded(data)
        return message if self._directory is None else self._finish(rid, message.header, message.problem, parts)

    def _read_compressed(self, rid: int, place: int, size: int) -> Message:
        try:
            return self._read_small(rid, self._journal.compressed_data(place, size).whole())
        except RhmError as error:
            stored = self._read_large(rid, place, size)
            return stored if stored.header is None else stored._replace(problem=error.what)

    def _read_large(self, rid: int, place: int, size: int) -> Message:
        stream = self._journal.stream
        if not size:
            return self._finish(rid, None, "the record is external: its data are not in the journal", [])
        start = HEADER_SIZE_BYTES + header_size(stream.read(place, HEADER_SIZE_BYTES))
        whole = self._journal.data_chunks(place, size)
        if start > size:
            return self._finish(rid, None, _TOO_SHORT, whole)
        raw = stream.read(place + HEADER_SIZE_BYTES, start - HEADER_SIZE_BYTES)  # for AMQP 1.0, the whole message
        try:
            header = decode_message_header(raw)
        except BrokerRecordError as error:
            return self._finish(rid, None, error.what, whole)
        if header.amqp_1_0 is not None:
            return self._finish(rid, header, None, _sections(stream.read(place, start), header.amqp_1_0))
        return self._finish(rid, header, None, self._journal.data_chunks(place + start, size - start))

    def _finish(
        self, rid: int, header: MessageHeader | None, problem: str | None, chunks: Iterator[bytes] | list[bytes]
    ) -> Message:
        digest, length = sha256(), 0
        kept: list[bytes] | None = [] if self._form in (BodyForm.TEXT, BodyForm.HEX) else None
        file = None if self._directory is None else BodyFile(self._directory / f"{rid:016x}")
        for chunk in chunks:
            digest.update(chunk)
            if kept is not None and length < self._max_body:
                kept.append(chunk[: self._max_body - length])
            length += len(chunk)
            if file is not None:
                file.write(chunk)
        if file is not None:
            file.close()
        body = None if kept is None else b"".join(kept)
        return Message(header, problem, length, digest.hexdigest(), body, None if file is None else str(file.path))


def decode_message(data: bytes) -> Message:
    """A message with its body, from the data of its enqueue record."""
    return _decoded(data)[0]


def _decoded(data: bytes) -> tuple[Message, list[bytes]]:
    """A message with its body, and the parts of the body."""
    size = len(data)
    header: MessageHeader | None = None
    problem: str | None = None
    try:
        start = HEADER_SIZE_BYTES + header_size(data)
        if start <= size:
            header = decode_message_header(data[HEADER_SIZE_BYTES:start])
            if header.amqp_1_0 is None:
                body = data[start:]
                digest = sha256(body).hexdigest()
                return _new_tuple(Message, (header, None, size - start, digest, body, None)), [body]
        else:
            problem = _TOO_SHORT
    except BrokerRecordError as error:
        problem = error.what
    parts = [data] if header is None or header.amqp_1_0 is None else _sections(data, header.amqp_1_0)
    body = b"".join(parts)
    return Message(header, problem, len(body), sha256(body).hexdigest(), body, None), parts


def _sections(data: bytes, message: Amqp10Message) -> list[bytes]:
    """The body of an AMQP 1.0 message: the contents of its body sections, concatenated."""
    return [
        data[HEADER_SIZE_BYTES + offset : HEADER_SIZE_BYTES + offset + size] for offset, size in message.body_sections
    ]


def undecoded(journal: Journal, rid: int, place: int, message: Message) -> Damage:
    """The damage to report for a message that has a problem."""
    file, offset = journal.stream.locate(place)
    kind = DamageKind.MESSAGE_UNDECODABLE if message.header is None else DamageKind.CONTENT_DAMAGED
    return Damage(file.path, offset, rid, kind, Effect.SHOWN_AS_BODY, problem=message.problem)


def message_object(
    queue: str, rid: int, state: str, xid: bytes | None, message: Message, form: BodyForm
) -> dict[str, Any]:
    """The JSON object of a message."""
    header = message.header or _UNDECODED
    properties = _properties(header)
    fields: dict[str, Any] = {
        "kind": "message",
        "queue": queue,
        "rid": rid,
        "state": state,
        "xid": None if xid is None else xid.hex(),
        "exchange": header.exchange,
        "routing_key": header.routing_key,
        "message_id": header.message_id,
        "delivery_mode": header.delivery_mode,
        "priority": header.priority,
        "properties": properties,
        "headers": header.headers,
        "header_types": header.header_types,
        "body_length": message.body_length,
        "body_sha256": message.body_sha256,
    }
    if header.amqp_1_0 is not None:
        _add_amqp_1_0(fields, header.amqp_1_0)
    elif header.protocol == "0-9-1":
        fields["protocol"] = header.protocol
        fields["properties"] = {**properties, "type": header.message_type}
    if form is not BodyForm.NONE:
        _add_body(fields, message, form)
    return fields


#: For a message whose header cannot be decoded.
_UNDECODED: Final = MessageHeader._make({"headers": {}, "header_types": {}}.get(name) for name in MessageHeader._fields)

_PROPERTIES: Final = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "user_id",
    "app_id",
    "ttl",
    "expiration",
    "timestamp",
)
_property_values: Final = attrgetter(*_PROPERTIES)
_NO_PROPERTIES: Final[dict[str, Any]] = dict.fromkeys(_PROPERTIES)
_NO_VALUES: Final = (None,) * len(_PROPERTIES)


def _properties(header: MessageHeader) -> dict[str, Any]:
    values = _property_values(header)
    if values == _NO_VALUES:  # most messages have none of them
        return _NO_PROPERTIES
    properties = dict(zip(_PROPERTIES, values, strict=True))
    for name in ("correlation_id", "user_id", "app_id"):
        properties[name] = _text(properties[name])
    properties["reply_to"] = _reply_to(header.reply_to)
    return properties


def _text(value: bytes | str | None) -> str | None:
    return plain_bytes(value) if isinstance(value, bytes) else value


def _reply_to(value: tuple[str, str] | str | None) -> dict[str, str] | str | None:
    return {"exchange": value[0], "routing_key": value[1]} if isinstance(value, tuple) else value


def _add_amqp_1_0(fields: dict[str, Any], message: Amqp10Message) -> None:
    """AMQP 1.0 counts times in milliseconds and routes by subject; its sections are listed as stored."""
    fields["protocol"] = "1.0"
    fields["routing_key"] = message.subject
    properties = fields["properties"] = {**fields["properties"], "to": message.to}
    if message.creation_time is not None:
        properties["timestamp"] = message.creation_time // 1000
    if message.absolute_expiry_time is not None:
        properties["expiration"] = message.absolute_expiry_time // 1000
    fields["sections"] = [{"name": section.name, "size": section.size} for section in message.sections]


def _add_body(fields: dict[str, Any], message: Message, form: BodyForm) -> None:
    body = message.body
    if message.body_file is not None:
        fields["body_file"] = message.body_file
    elif body is None:
        return
    elif form is BodyForm.HEX:
        fields["body_hex"] = body.hex()
    else:
        try:
            fields["body"] = body.decode()
        except UnicodeDecodeError as error:
            if len(body) < message.body_length and error.start > len(body) - 4:
                fields["body"] = body[: error.start].decode()  # retained in part, and cut within a character
            else:
                fields["body_base64"] = base64.b64encode(body).decode()
