"""A selector: a condition that decides which messages a consumer gets.

The grammar is imported with this module, at the broker's start: the first selector of a client does not wait for that,
nor do others, for 15 ms, or 70 from a cold disk. Compiled selectors are cached, since clients subscribe with the same
ones again and again.

Source: JMS 1.1, 3.8.1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from qstore.broker.model.arguments import JMS_SELECTOR, SELECTOR, shown
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.selectors.grammar import SelectorError, parse

if TYPE_CHECKING:
    from qstore.broker.model.selectors.candidate import Candidate
    from qstore.broker.model.selectors.nodes import Node
    from qstore.formats.values import TypedMap

MAX_LENGTH: Final = 8192  # characters
_SELECTORS_KEPT: Final = 64


class Selector:
    """A compiled selector.

    Attributes:
        text: as given; selectors with equal texts are equal.
    """

    __slots__ = ("_condition", "_length", "text")

    def __init__(self, text: str, condition: Node) -> None:
        self.text, self._condition, self._length = text, condition, len(text)

    def matches(self, candidate: Candidate) -> bool:
        """Whether a message matches: the condition is true, neither false nor unknown. Adds to the candidate's work."""
        candidate.work += self._length
        return self._condition.truth(candidate) is True


def read_selector(arguments: TypedMap, name: str) -> Selector | None:
    """The selector among the arguments of a command; None without one. A blank one matches all, and counts as none.

    Raises:
        InvalidArgumentError: it is not valid; the text says where.
    """
    typed = arguments.get(name)
    if typed is None or typed.value is None:
        return None
    text = typed.value
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as undecodable:
            raise InvalidArgumentError(f"{name} is not UTF-8 at byte {undecodable.start + 1}") from None
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{name} is {shown(text)}, not a string")
    if len(text) > MAX_LENGTH:
        raise InvalidArgumentError(f"{name} has {len(text)} characters, more than {MAX_LENGTH}")
    try:
        return compile_selector(text) if text.strip() else None
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{name} is not a selector{error}") from None


def requested_selector(arguments: TypedMap) -> Selector | None:
    """The selector of a binding or a subscription, which has two names; None without one.

    Raises:
        InvalidArgumentError: it is not valid, or there are two.
    """
    if not arguments.entries:
        return None
    selector, other = read_selector(arguments, SELECTOR), read_selector(arguments, JMS_SELECTOR)
    if selector is not None and other is not None and selector.text != other.text:
        raise InvalidArgumentError(f"{SELECTOR} and {JMS_SELECTOR} are different selectors, and there can be one")
    return selector or other


@lru_cache(maxsize=_SELECTORS_KEPT)
def compile_selector(text: str) -> Selector:
    """Compile a selector that is not blank. Raises InvalidArgumentError."""
    try:
        return Selector(text, parse(text))
    except SelectorError as error:
        where = "" if error.position is None else f" at character {error.position}"
        raise InvalidArgumentError(f"{where}: {error.problem}") from None
