"""What is wrong with a store, as every reader and every tool tells it.

A damage says in fields where it is, what it is (`DamageKind`), what reading makes of it (`Effect`), and the values that
describe it. Code decides by these fields. `what` and `consequence` are for people; `damage_kinds` and `damage_effects`
have their words.
"""

from __future__ import annotations

from dataclasses import dataclass

from store.damage_effects import Detail, Effect, Loss
from store.damage_kinds import DamageKind


@dataclass(frozen=True, slots=True, init=False)
class Damage:
    """Something in a store that a crash alone does not explain.

    Attributes:
        file: path of the file.
        offset: bytes from its start; None where the whole file is meant.
        rid: record id, where one can be told.
        kind: what is wrong.
        effect: what reading makes of it.
        details: the values that the words of the two name, by their names.
    """

    file: str
    offset: int | None
    rid: int | None
    kind: DamageKind
    effect: Effect
    details: tuple[tuple[str, Detail], ...]

    def __init__(
        self,
        file: str,
        offset: int | None,
        rid: int | None,
        kind: DamageKind,
        effect: Effect | None = None,
        /,
        **details: Detail,
    ) -> None:
        """Describe a damage.

        Args:
            file: path of the file.
            offset: bytes from its start; None where the whole file is meant.
            rid: record id, where one can be told.
            kind: what is wrong.
            effect: one of the kind's effects; the first of them by default.
            details: the values that the words of the kind and its effect name.
        """
        effect = effect or kind.effects[0]
        assert effect in kind.effects
        assert kind.names | effect.names <= details.keys() <= kind.all_names
        self._set(file, offset, rid, kind, effect, tuple(details.items()))

    def _set(self, *values: object) -> None:
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def what(self) -> str:
        """What is wrong, for people."""
        return self.kind.words(**dict(self.details))

    @property
    def where(self) -> str:
        """The file, and the offset in it if there is one, for people."""
        return self.file if self.offset is None else f"{self.file} at 0x{self.offset:x}"

    @property
    def consequence(self) -> str:
        """What reading makes of it, for people."""
        return self.effect.words(**dict(self.details))

    @property
    def loses(self) -> Loss:
        """What it costs."""
        return self.effect.loses

    @property
    def costs(self) -> bool:
        """Whether it costs anything: whether what the damaged part told is not known otherwise."""
        return self.loses is not Loss.NOTHING

    def with_effect(self, effect: Effect, **details: Detail) -> Damage:
        """The same damage, of which reading makes something else; `details` are those that come with that."""
        return Damage(self.file, self.offset, self.rid, self.kind, effect, **dict(self.details), **details)
