"""Filters on the properties of messages, as RabbitMQ 4 has them: a link gets only messages that match all entries.

    amqp:properties-filter                fields of the section properties, by their names in the specification
    amqp:application-properties-filter    application-properties

    value of an entry    matches
    -------------------  ---------------------------------------------------------------
    null                 a message without the property
    "&p:TEXT"            a string that begins with TEXT
    "&s:TEXT"            a string that ends with TEXT
    "&&TEXT"             the string "&TEXT"
    any other            an equal value; numbers of all types are compared as numbers

A value of several types, such as message-id, matches only in the type of the entry. Each filter has at most
`MAX_ENTRIES`; with a selector a message must match both.

Source: AMQP Filter Expressions 1.0, working draft 9, sections 4.2.4 to 4.2.6; RabbitMQ, "Stream Filtering".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from qstore.broker.protocols.amqp_1_0.errors import ConditionError
from qstore.broker.protocols.amqp_1_0.message import SectionMessage, as_sections
from qstore.formats.amqp_1_0.codes import Condition
from qstore.formats.amqp_1_0.composites import BY_NAME
from qstore.formats.amqp_1_0.neutral import neutral_value
from qstore.formats.amqp_1_0.values import Value, plain_key

if TYPE_CHECKING:
    from qstore.broker.model.selectors.candidate import Candidate
    from qstore.broker.model.selectors.selector import Selector

MAX_ENTRIES: Final = 16
"""Entries of a filter, as in RabbitMQ."""

PROPERTIES_FILTER: Final = "properties-filter"
APPLICATION_FILTER: Final = "application-properties-filter"

_FIELDS: Final = {each.name.replace("_", "-"): each.name for each in BY_NAME["properties"].fields}
_BYTE_COST: Final = 8  # a converted byte of a body counts as much as one of so many compared ones


class PropertyFilter:
    """Decides which messages a link gets, by their properties and perhaps by a selector.

    Args:
        properties: field -> wanted value.
        application: application property -> wanted value.
        selector: must match, too; None for none.

    Attributes:
        text: equal for filters that match the same messages.
    """

    __slots__ = ("_application", "_length", "_properties", "_selector", "text")

    def __init__(
        self, properties: Mapping[str, Value], application: Mapping[str, Value], selector: Selector | None
    ) -> None:
        self._properties = {name: _matcher(value) for name, value in properties.items()}
        self._application = {name: _matcher(value) for name, value in application.items()}
        self._selector = selector
        text = "" if selector is None else selector.text
        self.text = repr((sorted(properties.items(), key=repr), sorted(application.items(), key=repr), text))
        self._length = len(self.text)

    def matches(self, candidate: Candidate) -> bool:
        """Whether a message matches. Adds to the candidate's work."""
        if self._selector is not None and not self._selector.matches(candidate):
            return False
        candidate.work += self._length
        message = candidate.message.whole()
        if not isinstance(message, SectionMessage):
            candidate.work += message.size - len(message.body) + len(message.body) // _BYTE_COST
            converted = as_sections(message)
            if converted is None:
                return False
            message = converted
        candidate.work += len(message.header)
        if self._properties:
            fields = message.section_properties()
            if not all(wanted(_plain(fields.get(name))) for name, wanted in self._properties.items()):
                return False
        if self._application:
            found = message.application_properties()
            for name, wanted in self._application.items():
                typed = found.get(name)
                if not wanted(None if typed is None else typed.value):
                    return False
        return True


def read_property_filter(name: str, value: Value) -> dict[str, Value]:
    """The entries of one of the filters. Raises ConditionError."""
    if value.type_name != "map":
        raise ConditionError(Condition.INVALID_FIELD, f"filter {name} is not a map")
    if len(value.value) > MAX_ENTRIES:
        text = f"filter {name} has {len(value.value)} entries, more than {MAX_ENTRIES}"
        raise ConditionError(Condition.INVALID_FIELD, text)
    entries: dict[str, Value] = {}
    for key, wanted in value.value:
        field = plain_key(key)
        if name == PROPERTIES_FILTER:
            known = _FIELDS.get(field)
            if known is None:
                raise ConditionError(Condition.INVALID_FIELD, f"filter {name}: there is no property {field!a:.64}")
            field = known
        if wanted.value is not None and not isinstance(wanted.value, bool | int | float | str | bytes | UUID):
            text = f"filter {name}: {field!a:.64} is of type {wanted.type_name}, which is not a simple one"
            raise ConditionError(Condition.INVALID_FIELD, text)
        entries[field] = wanted
    return entries


def _plain(found: Any) -> object:
    """A field of the section properties as a plain value, as those of application-properties are."""
    return neutral_value(found).value if isinstance(found, Value) else found


def _matcher(wanted: Value) -> Callable[[object], bool]:
    """The test for a wanted value."""
    value = neutral_value(wanted).value if wanted.value is not None else None
    if isinstance(value, str) and value.startswith("&"):
        rest = value[3:]
        if value.startswith("&p:"):
            return lambda found: isinstance(found, str) and found.startswith(rest)
        if value.startswith("&s:"):
            return lambda found: isinstance(found, str) and found.endswith(rest)
        if not value.startswith("&&"):
            raise ConditionError(Condition.INVALID_FIELD, f"{value!a:.64} has a modifier that is not implemented")
        value = value[1:]
    kind = _kind(value)
    return lambda found: _kind(found) is kind and found == value


def _kind(value: object) -> type:
    """Values of equal kinds are compared: those of one type, and numbers of all types."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float if is_number else type(value)
