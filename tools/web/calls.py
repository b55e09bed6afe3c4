"""A request and its answer, as a resource sees them: parameters, the body, errors, pages, columns.

    page, page_size        a page of a list, with its numbers: 1 to …, at most `MAX_PAGE` items
    name, use_regex        which items: those whose name has this text, or matches this regular expression
    sort, sort_reverse     by a field; `a.b` is the field b of the object a
    columns                fields of each item, likewise, separated by commas

Errors are RabbitMQ's: `{"error": …, "reason": …}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import regex
from orjson import JSONDecodeError, dumps, loads

if TYPE_CHECKING:
    from qstore.tools.web.access import Sight
    from qstore.tools.web.logins import Session
    from qstore.tools.web.stored import StoredUser

Row = dict[str, Any]

MAX_PAGE: Final = 500
PAGE: Final = 100
_MAX_PATTERN: Final = 1000
_PATTERN_SECONDS: Final = 0.5
_MAX_COLUMNS: Final = 100


class HttpError(Exception):
    """A request that is refused.

    Attributes:
        status: the HTTP status.
        error: a word for programs.
        reason: for people.
        headers: further ones.
    """

    def __init__(self, status: int, error: str, reason: object, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(str(reason))
        self.status, self.error, self.reason = status, error, reason
        self.headers = dict(headers or {})


def bad_request(reason: object) -> HttpError:
    """The request makes no sense."""
    return HttpError(400, "bad_request", reason)


def not_found(reason: str = "Not Found") -> HttpError:
    """There is no such object."""
    return HttpError(404, "Object Not Found" if reason == "Not Found" else "not_found", reason)


@dataclass(slots=True)
class Reply:
    """An answer.

    Attributes:
        status: the HTTP status.
        value: what is sent as JSON; None for an empty body.
        body: sent as it is, in place of a value.
        content_type: of `body`.
        headers: further ones.
    """

    status: int = 200
    value: Any = None
    body: bytes | None = None
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)

    def content(self) -> bytes:
        """The body."""
        if self.body is not None:
            return self.body
        return b"" if self.value is None and self.status in (201, 202, 204) else dumps(self.value, default=str)


@dataclass(slots=True)
class Call:
    """A request.

    Attributes:
        method: GET, PUT and so on.
        path: the parts of the path that its pattern names.
        query: parameters.
        body: the body.
        peer: the client's address.
        given: who asks; None where nobody has to log in.
        reason: the header X-Reason.
        cookies: the header Cookie.
    """

    method: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    peer: str
    given: Session | StoredUser | None
    reason: str = ""
    cookies: str = ""

    @property
    def session(self) -> Session:
        """Who asks."""
        from qstore.tools.web.logins import Session

        assert isinstance(self.given, Session)
        return self.given

    @property
    def sight(self) -> Sight | None:
        """What the user sees; None for everything."""
        return getattr(self.given, "sight", None)

    def object(self, *needed: str) -> Row:
        """The body, a JSON object; empty if there is none. Raises HttpError if it lacks one of the fields."""
        try:
            found = loads(self.body) if self.body.strip() else {}
        except JSONDecodeError as error:
            raise bad_request(f"the body is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise bad_request("the body is not a JSON object")
        missing = [name for name in needed if name not in found]
        if missing:
            raise bad_request(f"[{','.join(f'{{key_missing,{name}}}' for name in missing)}]")
        return found

    def flag(self, name: str) -> bool:
        """A parameter that is true or false."""
        return self.query.get(name, "").lower() == "true"

    def count(self, name: str, default: int) -> int:
        """A number among the parameters."""
        text = self.query.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise bad_request(f"the parameter {name} is not a number")
        return int(text)


def boolean(body: Row, name: str, *, default: bool = False) -> bool:
    """A field that is true or false, or one of these words."""
    value = body.get(name, default)
    found = (
        {True: True, False: False, "true": True, "false": False}.get(value) if isinstance(value, bool | str) else None
    )
    if found is None:
        raise bad_request(["not_boolean", value])
    return found


def text(body: Row, name: str, default: str = "") -> str:
    """A text field."""
    value = body.get(name, default)
    if not isinstance(value, str):
        raise bad_request(["not_a_string", name])
    return value


def mapping(body: Row, name: str) -> Row:
    """A field with an object; an empty list, which old tools send, is an empty one."""
    value = body.get(name) or {}
    if not isinstance(value, dict):
        raise bad_request(["not_an_object", name])
    return value


def whole(body: Row, name: str, default: int, most: int) -> int:
    """A number from 0."""
    value = body.get(name, default)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if type(value) is not int or not value >= 0:
        raise bad_request(["not_an_integer", name])
    return min(value, most)


# ---- lists ----


def _at(row: Row, path: Sequence[str]) -> Any:
    value: Any = row
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _order(value: Any) -> tuple[int, Any]:
    """Values of all kinds in one order."""
    if value is None:
        return 0, 0
    if isinstance(value, bool | int | float):
        return 1, value
    return 2, value if isinstance(value, str) else dumps(value, default=str).decode()


def columns(row: Row, wanted: Sequence[Sequence[str]]) -> Row:
    """The fields of an object that are asked for."""
    found: Row = {}
    for path in wanted:
        holder = _at(row, path[:-1])
        if not isinstance(holder, dict) or path[-1] not in holder:
            continue
        value = holder[path[-1]]
        into: Any = found
        for name in path[:-1]:
            into[name] = into = dict(into.get(name) or {})
        into[path[-1]] = value
    return found


def wanted_columns(call: Call) -> list[list[str]]:
    """Which fields are asked for; empty for all."""
    found = [each.split(".") for each in call.query.get("columns", "").split(",") if each]
    if len(found) > _MAX_COLUMNS:
        raise bad_request(f"there are more than {_MAX_COLUMNS} columns")
    return found


def _matcher(call: Call, *, is_paged: bool) -> Callable[[str], bool]:
    wanted = call.query.get("name", "") if is_paged else ""
    if not wanted:
        return lambda _: True
    if not call.flag("use_regex"):
        lower = wanted.lower()
        return lambda name: lower in name.lower()
    invalid = bad_request("Pagination parameters are invalid")
    try:
        if len(wanted) > _MAX_PATTERN:
            raise invalid
        pattern = regex.compile(wanted, regex.IGNORECASE)
    except (regex.error, RecursionError, OverflowError, MemoryError):
        raise invalid from None

    def matches(name: str) -> bool:
        try:
            return pattern.search(name, timeout=_PATTERN_SECONDS) is not None
        except TimeoutError:
            raise bad_request("the regular expression takes too long to be searched") from None

    return matches


def listed(call: Call, rows: Sequence[Row]) -> Any:
    """A list as the parameters of a request want it: all of it, or a page."""
    is_paged = "page" in call.query
    if call.sight is not None:
        rows = [row for row in rows if call.sight.sees(row)]
    matches = _matcher(call, is_paged=is_paged)
    found = [row for row in rows if matches(str(row.get("name", "")))] if call.query.get("name") else list(rows)
    sort = call.query.get("sort")
    if sort:
        path = sort.split(".")
        found.sort(key=lambda row: _order(_at(row, path)), reverse=call.flag("sort_reverse"))
    wanted = wanted_columns(call)
    if not is_paged:
        return [columns(row, wanted) for row in found] if wanted else found
    page, size = _page(call)
    begin = (page - 1) * size
    if begin >= len(found) and page > 1:
        reason = f"Page out of range, page: {page} page size: {size}, len: {len(found)}"
        raise HttpError(400, "page_out_of_range", reason)
    items = found[begin : begin + size]
    return {
        "total_count": len(rows),
        "filtered_count": len(found),
        "item_count": len(items),
        "page": page,
        "page_size": size,
        "page_count": max(1, -(-len(found) // size)),
        "items": [columns(row, wanted) for row in items] if wanted else items,
    }


def _page(call: Call) -> tuple[int, int]:
    try:
        page, size = call.count("page", 1), call.count("page_size", PAGE)
    except HttpError:
        raise bad_request("Pagination parameters are invalid") from None
    if not page or not 0 < size <= MAX_PAGE:
        reason = f"Invalid pagination parameters: page number {page}, page size {size}"
        raise HttpError(400, "invalid_pagination_parameters", reason)
    return page, size
