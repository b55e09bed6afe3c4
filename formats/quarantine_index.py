r"""The index of a quarantine, `index.jsonl`: one JSON object per line, by number.

    key         value
    ----------  ----------------------------------------------------------------------------------------------------
    number      1, 2, 3 ...; the lines are in this order
    queue       the queue's name
    file        the file that contained the bytes
    offset      where in it they began
    size        number of bytes
    raw         the file here that contains them; null beyond `MAX_RAW_FILES` entries: they are in `file` only
    what        their defect
    rid         the record id, or null if unknown
    sha256      of the bytes, in hex
    salt        version 2: that of their file, or null: their checksums are verified with it
    injected    null; or an object that records where the messages of this entry were injected: `store`, `queue`, `at`
                (nanoseconds since 1970), `messages`, and `first_rid`: their record ids are this one and those after
                it. A null `first_rid`: it was begun, and it is unknown whether it was completed

In names, a byte that is not UTF-8 is written `\xNN`, and a backslash before an x is then `\x5c`, as the tools show
them. Unknown keys are preserved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Any, Final

import orjson

from qstore.formats.named_tuple import NamedTuple

MAX_RAW_FILES: Final = 999_999

_MAX_NAME: Final = 4096  # characters
_MAX_LINE: Final = 1 << 17  # bytes: longer than any line that is written
_ESCAPED: Final = re.compile(rb"\\x([0-9a-f]{2})")

# Key -> the type of its value. Numbers are not negative.
_KEYS: Final[dict[str, type | UnionType]] = {
    "number": int,
    "queue": str,
    "file": str,
    "offset": int,
    "size": int,
    "raw": str | None,
    "what": str,
    "rid": int | None,
    "sha256": str,
    "salt": int | None,
    "injected": dict | None,
}
_INJECTION_KEYS: Final[dict[str, type | UnionType]] = {
    "store": str,
    "queue": str,
    "at": int,
    "messages": int,
    "first_rid": int | None,
}


class Injection(NamedTuple):
    """Where the messages of an entry were injected.

    Attributes:
        store: path of the store.
        queue: name of the queue.
        at: nanoseconds since 1970.
        messages: number of messages.
        first_rid: the first one's record id; None if it is unknown whether they were injected.
    """

    store: str
    queue: str
    at: int
    messages: int
    first_rid: int | None

    @property
    def is_known(self) -> bool:
        """Whether the injection is known to be complete: it was not interrupted."""
        return self.first_rid is not None


class QuarantineEntry(NamedTuple):
    """One line of the index; the attributes are its keys."""

    number: int
    queue: str
    file: str
    offset: int
    size: int
    raw: str | None
    what: str
    rid: int | None
    sha256: str
    salt: int | None = None
    injected: Injection | None = None


class IndexProblem(NamedTuple):
    """An unusable line of the index.

    Attributes:
        line: counted from 1.
        what: its defect.
    """

    line: int
    what: str


def raw_name(number: int) -> str:
    """The file of an entry's bytes."""
    return f"{number:06d}.raw"


# ---- writing ----


def encode_entry(entry: QuarantineEntry) -> bytes:
    """The line of an entry. Names and descriptions are cut if they are longer than any valid one."""
    fields = entry._asdict()
    fields["queue"], fields["file"] = _escape(entry.queue), _escape(entry.file)
    fields["what"] = entry.what[:_MAX_NAME].encode(errors="backslashreplace").decode()
    if entry.injected is not None:
        fields["injected"] = _injection_fields(entry.injected)
    return _encode(fields)


def _injection_fields(injection: Injection) -> dict[str, Any]:
    fields = injection._asdict()
    fields["store"], fields["queue"] = _escape(injection.store), _escape(injection.queue)
    return fields


def _encode(fields: Mapping[str, Any]) -> bytes:
    line = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    assert len(line) <= _MAX_LINE
    return line


def _escape(name: str) -> str:
    text = name[:_MAX_NAME].replace("\\x", "\\x5cx")
    try:
        octets = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a UTF-16 pair, which cannot result from UTF-8
        octets = text.encode("utf-8", "surrogatepass")
    return octets.decode("utf-8", "backslashreplace")


def _unescape(text: str) -> str:
    octets = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), text.encode())
    return octets.decode("utf-8", "surrogateescape")


# ---- reading ----


def decode_index(chunks: Iterable[bytes]) -> Iterator[QuarantineEntry | IndexProblem]:
    """The entries of an index that is read in chunks, by number, and between them its unusable lines."""
    last = 0
    for number, line in _lines(chunks):
        entry = IndexProblem(number, "the line is too long") if line is None else _decode(number, line)
        if isinstance(entry, QuarantineEntry):
            if entry.number <= last:
                entry = IndexProblem(number, f"entry {entry.number} comes after entry {last}")
            else:
                last = entry.number
        yield entry


def marked(chunks: Iterable[bytes], injections: Mapping[int, Injection | None]) -> Iterator[bytes]:
    """The index in pieces, unchanged except for the entries that are marked, or lose their mark."""
    last = 0
    for piece, is_whole in _pieces(chunks):
        entry = _decode(0, piece) if is_whole else None
        if isinstance(entry, QuarantineEntry) and entry.number > last:
            last = entry.number
            if entry.number in injections:
                injection = injections[entry.number]
                injected = None if injection is None else _injection_fields(injection)
                yield _encode(orjson.loads(piece) | {"injected": injected})
                continue
        yield piece


def _pieces(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Lines with their newlines, and whether each is complete: too long a line is returned in pieces that are not."""
    rest, is_whole = b"", True
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n", is_whole
            is_whole = True
        if len(rest) > _MAX_LINE:
            yield rest, False
            rest, is_whole = b"", False
    if rest:
        yield rest, is_whole


def _lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """The lines with their numbers, counted from 1; None for one that is too long."""
    number, reported = 1, 0
    for piece, is_whole in _pieces(chunks):
        if is_whole:
            yield number, piece
        elif reported != number:
            yield number, None
            reported = number
        number += piece.endswith(b"\n")


def _decode(number: int, line: bytes) -> QuarantineEntry | IndexProblem:
    """The entry of a line."""
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return IndexProblem(number, f"not JSON: {error.msg}")
    if not isinstance(fields, dict):
        return IndexProblem(number, "not a JSON object")
    wrong = _wrong(fields, _KEYS)
    if wrong is not None:
        return IndexProblem(number, f"{wrong} is missing or of the wrong type")
    if fields["number"] == 0 or fields["raw"] not in (None, raw_name(fields["number"])):
        return IndexProblem(number, "number and raw contradict each other")
    injected = fields["injected"]
    if injected is not None and _wrong(injected, _INJECTION_KEYS) is not None:
        return IndexProblem(number, "injected is malformed")
    known = {name: fields[name] for name in _KEYS}
    known["queue"], known["file"] = _unescape(fields["queue"]), _unescape(fields["file"])
    known["injected"] = None if injected is None else _injection(injected)
    return QuarantineEntry(**known)


def _wrong(fields: Mapping[str, Any], keys: Mapping[str, type | UnionType]) -> str | None:
    """The first key whose value is missing or of the wrong type."""
    for name, kinds in keys.items():
        value = fields.get(name, ...)
        if not isinstance(value, kinds) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
            return name
    return None


def _injection(fields: Mapping[str, Any]) -> Injection:
    known = {name: fields[name] for name in _INJECTION_KEYS}
    known["store"], known["queue"] = _unescape(fields["store"]), _unescape(fields["queue"])
    return Injection(**known)
