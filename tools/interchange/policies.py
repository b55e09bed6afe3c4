"""The policies of RabbitMQ's definitions: what they say to a queue or an exchange, as if it had been declared so.

    which       of those whose pattern is found in the name and that apply to its kind, the one with the highest
                priority; of the operator's policies, one more
    both        of a number that both tell, the smaller one counts; of the rest, what the operator's says
    argument    of a number that the queue was declared with too, the smaller one; of the rest, its declaration

A policy is not kept, as this broker has none: it is set for what the definitions have, and not for what is declared
later. Each is listed, with what became of it. Sources: RabbitMQ documentation, "Parameters and Policies", "Queue Length
Limit", "Time-To-Live and Expiration", "Dead Letter Exchanges".

Patterns are Perl-compatible regular expressions from an untrusted file: matching takes at most `MAX_SECONDS` in all.
Patterns that would need too much memory (counted repetitions are compiled as that many copies) are skipped.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import regex

from qstore.formats.wording import plural, printable
from qstore.tools.interchange.definition_tables import PLACEMENT, Unmapped
from qstore.tools.interchange.items import InterchangeError

MAX_SECONDS: Final = 5.0  # of processor time
_MAX_PATTERN: Final = 1000  # characters
_MAX_REPEATED: Final = 200  # all counts of a pattern added up
_MAX_SIZE: Final = 200_000  # where groups in groups may be repeated: its characters, times all counts
_COUNTS: Final = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_REPEATED_GROUP: Final = re.compile(r"\)\{\d*")
#: Recursion; and comments and white space, which may stand between what is repeated and its count.
_REFUSED: Final = re.compile(r"\(\?(?:R|[+-]?\d|&|P>|#|[a-zA-Z0-9]*x)")
_KEYS: Final = ("policies", "operator_policies")
_PREFIX: Final = "x-"
_SMALLEST: Final = frozenset(("message-ttl", "expires", "max-length", "max-length-bytes"))
_OF_QUEUES: Final = _SMALLEST | {"overflow", "dead-letter-exchange", "dead-letter-routing-key"}
_OF_EXCHANGES: Final = frozenset(("alternate-exchange",))
_SILENT: Final = frozenset(key.removeprefix(_PREFIX) for key in PLACEMENT)
#: x-queue-type -> what `apply-to` calls these queues.
_KINDS: Final = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}
_ALL: Final = "all"


@dataclass(slots=True)
class _Policy:
    """A policy.

    Attributes:
        title: what it is called in the list.
        name, pattern, applies_to, priority, definition: of the policy.
        queues, exchanges: how many it applies to.
    """

    title: str
    name: str
    pattern: regex.Pattern[str]
    applies_to: str
    priority: int
    definition: dict[str, Any]
    queues: int = 0
    exchanges: int = 0


class Policies:
    """The policies of one virtual host.

    Args:
        fields: the definitions.
        vhost: the virtual host.
        unmapped: gets what is not applied.
    """

    def __init__(self, fields: Mapping[str, Any], vhost: str, unmapped: Unmapped) -> None:
        self._unmapped, self._left = unmapped, MAX_SECONDS
        self._own, self._operator = (self._read(fields, key, vhost) for key in _KEYS)

    def _read(self, fields: Mapping[str, Any], key: str, vhost: str) -> list[_Policy]:
        """Those of one list, the most important one first."""
        given, found, elsewhere = fields.get(key) or [], [], 0
        if not isinstance(given, list):
            raise InterchangeError(f"{key} is not a list")
        title = "policy" if key == "policies" else "operator policy"
        for number, each in enumerate(given, 1):
            if not isinstance(each, dict):
                raise InterchangeError(f"{key}, entry {number}: this is not an object")
            if each.get("vhost", vhost) not in (vhost, ""):
                elsewhere += 1
                continue
            policy = self._policy(title, each)
            if policy is not None:
                found.append(policy)
        if elsewhere:
            self._unmapped.append(f"{key}: {elsewhere} of other virtual hosts")
        return sorted(found, key=lambda each: -each.priority)

    def _policy(self, title: str, given: dict[str, Any]) -> _Policy | None:
        name, pattern, definition = given.get("name"), given.get("pattern"), given.get("definition")
        priority, applies_to = given.get("priority", 0), given.get("apply-to", _ALL)
        if not isinstance(name, str) or not isinstance(pattern, str) or not isinstance(definition, dict):
            self._unmapped.add(title, printable(str(name)), "it has no name, pattern or definition: it is left out")
            return None
        if type(priority) is not int or not isinstance(applies_to, str):
            self._unmapped.add(title, name, "its priority or apply-to is not known: it is left out")
            return None
        if not _is_small(pattern):
            self._unmapped.add(title, name, "its pattern is too long, repetitive or recursive: it is left out")
            return None
        try:
            compiled = regex.compile(pattern)
        except (regex.error, RecursionError, OverflowError) as error:
            self._unmapped.add(title, name, f"its pattern is no regular expression ({error}): it is left out")
            return None
        for key, value in definition.items():
            if key not in _OF_QUEUES | _OF_EXCHANGES | _SILENT:
                self._unmapped.add(title, name, f"{key} {value} is not known")
        return _Policy(title, name, compiled, applies_to, priority, definition)

    def of_queue(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a queue, with those of its policies. Raises InterchangeError."""
        kind = _KINDS.get(str(given.get("x-queue-type", "classic")), "")
        arguments = dict(given)
        for key, value in self._defined(name, ("queues", kind), _OF_QUEUES).items():
            declared = arguments.setdefault(_PREFIX + key, value)
            if key in _SMALLEST and type(declared) is int and type(value) is int:
                arguments[_PREFIX + key] = min(declared, value)
        return arguments

    def of_exchange(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of an exchange, with those of its policies. Raises InterchangeError."""
        return {**self._defined(name, ("exchanges",), _OF_EXCHANGES), **given}

    def _defined(self, name: str, kinds: tuple[str, ...], known: frozenset[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for policies in (self._own, self._operator):
            policy = next((each for each in policies if self._applies(each, name, kinds)), None)
            chosen = {key: value for key, value in policy.definition.items() if key in known} if policy else {}
            if policy is None or not chosen:
                continue
            policy.queues += known is _OF_QUEUES
            policy.exchanges += known is _OF_EXCHANGES
            for key, value in chosen.items():
                before = found.get(key)
                is_less = type(before) is int and type(value) is int and before < value
                found[key] = before if is_less else value
        return found

    def _applies(self, policy: _Policy, name: str, kinds: tuple[str, ...]) -> bool:
        if policy.applies_to != _ALL and policy.applies_to not in kinds:
            return False
        began = time.process_time()
        try:
            is_found = policy.pattern.search(name, timeout=max(self._left, 0.001)) is not None
        except (TimeoutError, MemoryError):
            text = f"its pattern takes too long to be searched in names, such as {printable(name)}"
            raise InterchangeError(f'{policy.title} "{printable(policy.name)}": {text}') from None
        self._left -= time.process_time() - began
        return is_found

    def tell(self) -> None:
        """List what became of each."""
        for policy in (*self._own, *self._operator):
            counts = ((policy.queues, "queue"), (policy.exchanges, "exchange"))
            where = " and ".join(plural(count, what) for count, what in counts if count)
            text = f"what is known of it is set for {where}, and not for those that are declared later"
            self._unmapped.add(policy.title, policy.name, text if where else "it is set for nothing: it is left out")


def _is_small(pattern: str) -> bool:
    """Whether a pattern takes little memory, compiled and searched."""
    if len(pattern) > _MAX_PATTERN or _REFUSED.search(pattern) is not None:
        return False
    counts = [max(1, *(int(each[:9] or 0) for each in found.groups(""))) for found in _COUNTS.finditer(pattern)]
    if len(_REPEATED_GROUP.findall(pattern)) > 1 and len(pattern) * math.prod(counts) > _MAX_SIZE:
        return False
    return sum(counts) <= _MAX_REPEATED
