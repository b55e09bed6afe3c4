"""What is wrong with a store, as every reader and every tool tells it."""

from __future__ import annotations

from typing import NamedTuple


class Damage(NamedTuple):
    """Something in a store that a crash alone does not explain.

    Attributes:
        file: path of the file.
        offset: bytes from its start; None where the whole file is meant.
        rid: record id, where one can be told.
        what: what is wrong.
        consequence: what reading makes of it.
        loses_nothing: whether everything that the damaged part told is known otherwise.
    """

    file: str
    offset: int | None
    rid: int | None
    what: str
    consequence: str
    loses_nothing: bool = False
