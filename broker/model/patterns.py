"""Regular expressions that operators set, for policies and permissions: their cost is known before they are used.

They are matched with names of at most 255 bytes, in the event loop. So an expression is parsed when it is set, and
refused if matching it could take too long (`formats/pattern_steps`).

Expressions are searched for, as in RabbitMQ: `^` and `$` anchor them.
"""

from __future__ import annotations

import re
from typing import Final

from qstore.broker.model.errors import InvalidArgumentError
from qstore.formats.pattern_steps import MAX_STEPS, steps_of

MAX_PATTERN: Final = 1024
"""Characters of an expression."""

_NEVER: Final = re.compile(r"(?!)")


def compile_pattern(what: str, text: str, *, is_empty_nothing: bool = False) -> re.Pattern[str]:
    """An expression, ready to be searched for in names.

    Args:
        what: its place, for errors.
        text: the expression.
        is_empty_nothing: whether the empty expression matches nothing instead of everything, as in permissions.

    Raises:
        InvalidArgumentError: it is not a regular expression, is too long, or could take too long to match.
    """
    if not isinstance(text, str) or len(text) > MAX_PATTERN:
        raise InvalidArgumentError(f"{what} is not a regular expression of at most {MAX_PATTERN:,} characters")
    if not text and is_empty_nothing:
        return _NEVER
    try:
        compiled = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(f"{what} is not a regular expression that this broker supports: {error}") from None
    if steps_of(text) > MAX_STEPS:
        advice = "anchor it with ^, and avoid repetitions of repetitions"
        raise InvalidArgumentError(f"{what} could take too long to match: {advice}")
    return compiled
