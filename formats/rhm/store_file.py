"""The file `rhm/STORE`: the store's format and id, and whether the store was closed cleanly.

It is one JSON object as text, keys sorted, indented by two spaces, with a newline at the end, at most 4096 bytes. There
is exactly one way to write a given content, and anything else is refused:

    key               value
    ----------------  ------------------------------------------------------------------------------------------
    clean_close       true: closed, and nothing was written since. false: in use, or it was when its broker died
    crc32c            8 hexadecimal digits: CRC-32C of the text of the same object without this key
    format            "qstore"
    marked_at         when `clean_close` was set, UTC, as 2031-05-09T17:04:33.000250Z
    software_version  version of the software that set it: 1 to 64 of A-Z a-z 0-9 . + - _
    store_id          UUID of the store, lower case; the same as in the catalogue
    version           2; 3 if the store has virtual hosts other than "/": software that does not know them refuses it
    close_record      true: there is a CLOSED file (`close_record`) next to it. Only if `clean_close` is true; stores
                      that were closed by older software do not have the key

Later versions keep `format` and `version`, so that software of this version can report what it refuses.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import orjson

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import with_article

FORMAT = "qstore"
"""The value of `format`."""

VERSION = 2
"""The value of `version`."""

VERSION_WITH_HOSTS = 3
"""The value of `version` of a store that has virtual hosts other than "/"."""

MAX_SIZE = 4096
"""The longest STORE file, in bytes."""

_SOFTWARE_VERSION = re.compile(r"[A-Za-z0-9.+_-]{1,64}", re.ASCII)
_KEYS = frozenset(
    ("clean_close", "crc32c", "format", "marked_at", "software_version", "store_id", "version"),
)
_CLOSE_RECORD: Final = "close_record"


class StoreFileError(FormatError):
    """A STORE file whose content violates this layout."""

    format_name = "STORE file"


class StoreFile(NamedTuple):
    """The content of a STORE file.

    Attributes:
        store_id: id of the store; the same as in the catalogue.
        clean_close: whether the store was closed cleanly.
        marked_at: when `clean_close` was set: an aware time, with microseconds.
        software_version: version of the software that set it.
        close_record: whether there is a CLOSED file about the clean close.
        has_hosts: whether there may be virtual hosts other than "/".
    """

    store_id: UUID
    clean_close: bool
    marked_at: datetime
    software_version: str
    close_record: bool = False
    has_hosts: bool = False


def encode(content: StoreFile) -> bytes:
    """The file with this `content`. Raises ValueError if the content is not representable."""
    if content.marked_at.tzinfo is None:
        raise ValueError(f"the time {content.marked_at} has no time zone")
    if not _SOFTWARE_VERSION.fullmatch(content.software_version):
        raise ValueError(f"a software version cannot be {content.software_version!r}")
    if content.close_record and not content.clean_close:
        raise ValueError("only a store that was closed cleanly has a close record")
    marked_at = content.marked_at.astimezone(UTC).replace(tzinfo=None)
    fields: dict[str, Any] = {
        "clean_close": content.clean_close,
        "format": FORMAT,
        "marked_at": marked_at.isoformat(timespec="microseconds") + "Z",
        "software_version": content.software_version,
        "store_id": str(content.store_id),
        "version": VERSION_WITH_HOSTS if content.has_hosts else VERSION,
    }
    if content.close_record:
        fields[_CLOSE_RECORD] = True
    checksum = extend_crc32c(0, _text(fields))
    return _text(fields | {"crc32c": f"{checksum:08x}"})


def decode(data: bytes) -> StoreFile:
    """Decode the file `data`. Raises StoreFileError."""
    if len(data) > MAX_SIZE:
        raise StoreFileError(f"{len(data):,} bytes are over the limit of {MAX_SIZE:,}", MAX_SIZE)
    fields = _object(data)
    if fields.get("format") != FORMAT:
        raise StoreFileError(f"the format is {_shown(fields.get('format'))} and not {FORMAT!r}")
    version = fields.get("version")
    if type(version) is not int or version not in (VERSION, VERSION_WITH_HOSTS):
        read = f"versions {VERSION} and {VERSION_WITH_HOSTS}"
        raise StoreFileError(f"unknown store format version {_shown(version)}; this software reads {read}")
    strange = (fields.keys() - {_CLOSE_RECORD}) ^ _KEYS
    if strange:
        raise StoreFileError(f"missing or unexpected keys: {_shown(', '.join(sorted(strange)))}")
    if _CLOSE_RECORD in fields and not (fields[_CLOSE_RECORD] is True is fields["clean_close"]):
        raise StoreFileError(f"{_CLOSE_RECORD} can only be true, in a store that was closed cleanly")
    content = _content(fields)
    if fields["crc32c"] != orjson.loads(encode(content))["crc32c"]:
        raise StoreFileError("the checksum does not match: the file was damaged or edited", fails_checksum=True)
    if encode(content) != data:
        raise StoreFileError("not in the canonical form of a STORE file")
    return content


def _object(data: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise StoreFileError(f"not JSON: {error.msg}", error.pos) from None
    if not isinstance(fields, dict):
        raise StoreFileError("not a JSON object")
    return fields


def _content(fields: dict[str, Any]) -> StoreFile:
    for key, kind in (("clean_close", bool), ("marked_at", str), ("software_version", str), ("store_id", str)):
        if type(fields[key]) is not kind:
            raise StoreFileError(f"{key} is {_shown(fields[key])} and not {with_article(kind.__name__)}")
    if not _SOFTWARE_VERSION.fullmatch(fields["software_version"]):
        raise StoreFileError(f"software_version cannot be {_shown(fields['software_version'])}")
    try:
        store_id = UUID(fields["store_id"])
        marked_at = datetime.fromisoformat(fields["marked_at"])
    except ValueError as error:
        raise StoreFileError(f"store_id or marked_at is malformed: {_shown(str(error))}") from None
    if marked_at.tzinfo is not UTC:
        raise StoreFileError(f"marked_at is not UTC: {_shown(fields['marked_at'])}")
    return StoreFile(
        store_id,
        fields["clean_close"],
        marked_at,
        fields["software_version"],
        close_record=_CLOSE_RECORD in fields,
        has_hosts=fields["version"] == VERSION_WITH_HOSTS,
    )


def _text(fields: dict[str, Any]) -> bytes:
    return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _shown(value: Any) -> str:
    """`value` in an error: escaped and short; for nested values only the type."""
    text = ascii(value) if isinstance(value, str | int | float | None) else f"{with_article(type(value).__name__)}"
    return text if len(text) <= 80 else text[:77] + "..."
