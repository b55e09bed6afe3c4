"""Which objects the operational log is about: rules for paths in the hierarchy of what a broker has.

    qpid.* = OFF                                       nothing, except for
    qpid.virtualhost.*.queue.orders = INFO             the life of this queue
    qpid.connection.guest.* = INFO                     everything that connections of this user do
    qpid.virtualhost.*.exchange.<amq.topic>.* = INFO   the exchange, and its bindings

A path has, after `qpid`, kinds of `KINDS`, each followed by a name if it has one; `*` is any name. A name with dots
is in `<` and `>`. A rule is about lines of the last kind, with `.*` at the end of every kind, that have all objects of
the path, in whichever order. Of several rules that match the last one counts, and without any the line is logged. The
values are levels, as in the Java broker's design; the lines are of level INFO, so that OFF, FATAL, ERROR and WARN hide
them, and INFO, DEBUG, TRACE and ALL show them.

Source: Qpid wiki, "Status Update Design - Logging Configuration".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from qstore.formats.named_tuple import NamedTuple

MAX_RULES: Final = 100
MAX_RULE: Final = 1024
"""Characters of a rule."""

#: Kind of object -> whether a path may have its name. That of a connection is its user or its address.
KINDS: Final[Mapping[str, bool]] = {
    "broker": False,
    "management": False,
    "messagestore": False,
    "connection": True,
    "channel": True,
    "subscription": True,
    "virtualhost": True,
    "exchange": True,
    "queue": True,
    "binding": True,
}
_LEVELS: Final = {
    **dict.fromkeys(("OFF", "FATAL", "ERROR", "WARN"), False),
    **dict.fromkeys(("INFO", "DEBUG", "TRACE", "ALL"), True),
}
_PART: Final = re.compile(r"<([^<>]*)>|([^.<>]+)")

About: TypeAlias = Mapping[str, tuple[str, ...]]
"""What a line is about: kind -> the names of the object, and of those that it belongs to."""


class StatusRule(NamedTuple):
    """A rule.

    Attributes:
        text: as it was given.
        kind: of what the line must be about; empty for anything.
        names: kind -> the name; "*" for any.
        shows: whether lines are shown.
    """

    text: str
    kind: str
    names: Mapping[str, str]
    shows: bool

    def matches(self, kind: str, about: About) -> bool:
        """Whether it is about a line of this kind."""
        if self.kind not in ("", kind):
            return False
        return all(each in about and (name == "*" or name in about[each]) for each, name in self.names.items())


def read_rule(text: str) -> StatusRule:
    """Read a rule. Raises ValueError."""
    path, equals, level = (each.strip() for each in text.partition("="))
    if not equals or level.upper() not in _LEVELS or len(text) > MAX_RULE:
        raise ValueError(f"{text[:100]!a} is not PATH=LEVEL with one of the levels {', '.join(_LEVELS)}")
    parts: list[str] = []
    at = 0
    while at <= len(path):
        found = _PART.match(path, at)
        if found is None or path[found.end() : found.end() + 1] not in ("", "."):
            raise ValueError(f"{text[:100]!a}: a part of the path is missing or wrong at character {at + 1}")
        parts.append(found[1] if found[1] is not None else found[2])
        at = found.end() + 1
    if parts[0] != "qpid" or len(parts) == 1:
        raise ValueError(f"{text[:100]!a}: the path does not begin with qpid.")
    return _read_path(text, parts[1:], shows=_LEVELS[level.upper()])


def _read_path(text: str, parts: list[str], *, shows: bool) -> StatusRule:
    names: dict[str, str] = {}
    kind = ""
    while parts and parts != ["*"]:
        kind = parts.pop(0).lower()
        if kind not in KINDS or kind in names:
            raise ValueError(f"{text[:100]!a}: {kind[:64]!a} is not one of {', '.join(KINDS)}, each once")
        names[kind] = parts.pop(0) if KINDS[kind] and parts and parts != ["*"] else "*"
    return StatusRule(text, "" if parts == ["*"] else kind, names, shows)


def read_rules(texts: Iterable[str]) -> tuple[StatusRule, ...]:
    """Read rules. Raises ValueError: one is not valid, or there are too many."""
    found = tuple(map(read_rule, texts))
    if len(found) > MAX_RULES:
        raise ValueError(f"more than {MAX_RULES} rules for the operational log")
    return found
