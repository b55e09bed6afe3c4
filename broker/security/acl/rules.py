"""Rules, quotas and groups as a file has them: values, without a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.security.acl.errors import Problem
from qstore.broker.security.acl.hosts import HostRange
from qstore.broker.security.acl.tables import ALL, Kind, Permission, Property, lookups_for

Counted: TypeAlias = Literal["connections", "queues"]
"""What a quota limits."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule.

    Attributes:
        number: its number among the rules of its file, counted from 1.
        line: the number of its line, counted from 1.
        permission: what it decides.
        subject: the user, the group or `all`, as written.
        users: the users whom it concerns; None for all.
        action, object_type: what it is about; None for all.
        properties: its properties and their values.
        hosts: the addresses of its property `host`; empty for all of them, and without that property.
    """

    number: int
    line: int
    permission: Permission
    subject: str
    users: frozenset[str] | None
    action: Action | None
    object_type: ObjectType | None
    properties: tuple[tuple[Property, str], ...] = ()
    hosts: tuple[HostRange, ...] = ()

    @property
    def is_mode(self) -> bool:
        """Whether it decides about everything that no other rule decides about."""
        return self.users is None and self.action is None and self.object_type is None and not self.properties

    @property
    def is_about_connections(self) -> bool:
        """Whether it is about the creation of connections: only rules that say so are."""
        return self.action is Action.CREATE and self.object_type is ObjectType.CONNECTION

    @property
    def is_about_publishing(self) -> bool:
        """Whether messages must be checked for its sake."""
        return not self.is_mode and self.fits(Action.PUBLISH, ObjectType.EXCHANGE)

    def fits(self, action: Action, object_type: ObjectType) -> bool:
        """Whether it is about this action and this object."""
        return self.action in (None, action) and self.object_type in (None, object_type)

    @property
    def lookups(self) -> list[int]:
        """The numbers of the lookups that it may match."""
        asked = {each.asked for each, _ in self.properties}
        return [number for number, each in lookups_for(self.action, self.object_type).items() if asked <= each.asked]

    def __str__(self) -> str:
        action = ALL if self.action is None else self.action.value
        object_type = ALL if self.object_type is None else self.object_type.value
        given = "".join(f" {each.name}={_shown(each, value)}" for each, value in self.properties)
        return f"{self.permission.value} {self.subject} {action} {object_type}{given}"


def _shown(each: Property, value: str) -> str:
    return f"{value}*" if each.kind is Kind.KEY_PREFIX else value


@dataclass(frozen=True, slots=True)
class Quota:
    """How many connections or queues each of some users may have.

    Attributes:
        line: the number of its line, counted from 1.
        counted: what it limits.
        limit: how many.
        users: the users whom it concerns; None for those without another one.
    """

    line: int
    counted: Counted
    limit: int
    users: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class RuleSet:
    """What a file says.

    Attributes:
        version: the version of its format, 1 to 3.
        rules: in the order of the file; the first that matches decides.
        quotas: likewise; the last one for a user counts.
        groups: name -> users.
        default: what is decided without a matching rule.
        warnings: what has no effect.
    """

    version: int
    rules: tuple[Rule, ...] = ()
    quotas: tuple[Quota, ...] = ()
    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)
    default: Permission = Permission.DENY
    warnings: tuple[Problem, ...] = ()

    def limits(self, counted: Counted) -> tuple[dict[str, int], int | None]:
        """The quotas of the users that are named, and that of all others; None if none is given."""
        named: dict[str, int] = {}
        others: int | None = None
        for each in self.quotas:
            if each.counted != counted:
                continue
            if each.users is None:
                others = each.limit
            else:
                named.update(dict.fromkeys(each.users, each.limit))
        return named, others
