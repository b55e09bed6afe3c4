"""Damage in a store, as every reader and every tool reports it.

The fields of a damage state where it is, its kind (`DamageKind`), its effect on reading (`Effect`), and the values that
describe it. Code decides by these fields. `what` and `consequence` are texts for people, built from the tables in
`damage_kinds` and `damage_effects`.
"""

from __future__ import annotations

from dataclasses import dataclass

from qstore.store.damage_effects import Detail, Effect, Loss
from qstore.store.damage_kinds import DamageKind


@dataclass(frozen=True, slots=True, init=False)
class Damage:
    """Something wrong in a store that a crash alone does not explain.

    Attributes:
        file: path of the file.
        offset: bytes from its start; None if the whole file is meant.
        rid: record id, if known.
        kind: what is wrong.
        effect: what reading makes of it.
        details: name -> value of the details that the texts of kind and effect name.
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
            offset: bytes from its start; None if the whole file is meant.
            rid: record id, if known.
            kind: what is wrong.
            effect: one of the kind's effects; the first by default.
            details: the values that the texts of the kind and its effect name.
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
        """What is wrong, as text for people."""
        return self.kind.words(**dict(self.details))

    @property
    def where(self) -> str:
        """The file, and the offset in it if there is one, as text for people."""
        return self.file if self.offset is None else f"{self.file} at 0x{self.offset:x}"

    @property
    def consequence(self) -> str:
        """What reading makes of it, as text for people."""
        return self.effect.words(**dict(self.details))

    @property
    def loses(self) -> Loss:
        """What is lost through it."""
        return self.effect.loses

    @property
    def costs(self) -> bool:
        """Whether anything is lost: whether the damaged data is not known from elsewhere."""
        return self.loses is not Loss.NOTHING

    def with_effect(self, effect: Effect, **details: Detail) -> Damage:
        """The same damage with another effect; `details` are the values that the new effect's text names."""
        return Damage(self.file, self.offset, self.rid, self.kind, effect, **dict(self.details), **details)
