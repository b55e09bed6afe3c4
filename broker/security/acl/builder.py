"""Makes a rule set from statements: what they mean, checked. The readers of each version's format make statements.

    acl    PERMISSION SUBJECT ACTION [OBJECT [PROPERTY=VALUE ...]]
    group  NAME MEMBER ...
    quota  connections|queues NUMBER SUBJECT ...

A group consists of users and of groups that stand before it. In a group, a name without a realm can only be a group; as
the subject of a rule it may also be a user's, and then it may have any characters, as in qpidd. All problems are
collected, and reported together.

Sources: Qpid C++ Broker Book, 1.5.2.1 and 1.5.2.2; the texts of errors that tests of qpidd look for (acl.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.security.acl.errors import AclFileError, Problem
from qstore.broker.security.acl.hosts import HostError, HostRange, Resolve, read_hosts
from qstore.broker.security.acl.rules import Counted, Quota, Rule, RuleSet
from qstore.broker.security.acl.tables import (
    ALL,
    MAX_NUMBER,
    MAX_QUOTA,
    NEVER_ASKED,
    OLD_ACTIONS,
    OLD_OBJECTS,
    OLD_PROPERTIES,
    POLICIES,
    PROPERTIES,
    Kind,
    Permission,
    Property,
    lookups_for,
)

MAX_RULES: Final = 20_000
MAX_GROUPS: Final = 10_000
MAX_DEPTH: Final = 100
"""Groups within groups."""
MAX_MEMBERS: Final = 1_000_000
"""Members of all groups together, with those of the groups in them."""
MAX_PROBLEMS: Final = 100
"""Problems of a file that are reported."""

_GROUP_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_USER_NAME: Final = re.compile(r"[A-Za-z0-9_.@/:-]+")
_ACTIONS: Final = {each.value: each for each in Action}
_OBJECTS: Final = {each.value: each for each in ObjectType}
_PERMISSIONS: Final = {each.value: each for each in Permission}
_COUNTED: Final[dict[str, Counted]] = {"connections": "connections", "queues": "queues"}


class Statement(NamedTuple):
    """A statement.

    Attributes:
        line: the number of its first line, counted from 1.
        text: the line.
        tokens: its words.
    """

    line: int
    text: str
    tokens: Sequence[str]


class TooManyError(Exception):
    """There are so many problems that the rest is not read."""


class _WrongError(Exception):
    """A statement is wrong. The text is the reason."""


class _DeadError(Exception):
    """A statement has no effect. The text is the reason."""


class Builder:
    """Collects the statements of one file.

    Args:
        path: the file, for errors.
        version: the version of its format.
        find: resolves host names.

    Attributes:
        default: what is decided without a matching rule.
    """

    def __init__(self, path: str, version: int, find: Resolve) -> None:
        self._path, self._version, self._find = path, version, find
        self.default = Permission.DENY
        self._groups: dict[str, frozenset[str]] = {}
        self._depths: dict[str, int] = {}
        self._members = 0
        self._rules: list[Rule] = []
        self._count = 0  # of rules, also those that have no effect
        self._quotas: list[Quota] = []
        self._problems: list[Problem] = []
        self._warnings: list[Problem] = []
        self._mode: Rule | None = None

    def add(self, statement: Statement) -> None:
        """Add a statement. Raises TooManyError."""
        word, *rest = statement.tokens
        try:
            if word == "acl":
                self._add_rule(statement, rest)
            elif word == "group":
                self._add_group(rest)
            else:
                self._add_quota(statement.line, rest)
        except _WrongError as error:
            self.complain(statement.line, str(error), statement.text)
        except _DeadError as error:
            self.warn(statement.line, str(error), statement.text)

    def add_rule(self, rule: Rule) -> None:
        """Add a rule that is known to be right."""
        self._count += 1
        self._rules.append(rule)

    @property
    def next_number(self) -> int:
        """The number of the next rule."""
        return self._count + 1

    def complain(self, line: int, reason: str, text: str = "") -> None:
        """Something is wrong. Raises TooManyError."""
        self._problems.append(Problem(line, reason, text))
        if len(self._problems) >= MAX_PROBLEMS:
            raise TooManyError

    def warn(self, line: int, reason: str, text: str = "") -> None:
        """Something has no effect."""
        if len(self._warnings) < MAX_PROBLEMS:
            self._warnings.append(Problem(line, reason, text))

    def result(self) -> RuleSet:
        """The rule set. Raises AclFileError."""
        if self._problems:
            raise AclFileError(self._path, sorted(self._problems))
        return RuleSet(
            self._version, tuple(self._rules), tuple(self._quotas), self._groups, self.default, tuple(self._warnings)
        )

    # ---- rules ----

    def _add_rule(self, statement: Statement, tokens: Sequence[str]) -> None:
        if tokens[1:] == [ALL]:
            tokens = [*tokens, ALL]
        if len(tokens) < 3:
            raise _WrongError("Insufficient tokens for acl definition")
        self._count += 1
        if self._count > MAX_RULES:
            raise _WrongError(f"more than {MAX_RULES:,} rules")
        permission = _PERMISSIONS.get(tokens[0])
        if permission is None:
            raise _WrongError(f'Unknown ACL permission "{tokens[0]}"')
        subject = tokens[1]
        users = self._users(subject)
        action = None if tokens[2] == ALL else _ACTIONS.get(tokens[2])
        if action is None and tokens[2] != ALL and tokens[2] not in OLD_ACTIONS:
            raise _WrongError(f'Unknown ACL action "{tokens[2]}"')
        what = tokens[3] if len(tokens) > 3 else ALL
        object_type = None if what == ALL else _OBJECTS.get(what)
        if object_type is None and what != ALL and what not in OLD_OBJECTS:
            raise _WrongError(f'Unknown ACL object "{what}"')
        properties, hosts, dead = self._properties(tokens[4:])
        if tokens[2] in OLD_ACTIONS or what in OLD_OBJECTS:
            raise _DeadError(_never_checked(tokens[2], what))
        rule = Rule(
            self._count, statement.line, permission, subject, users, action, object_type, tuple(properties), hosts
        )
        self._check_is_alive(rule, dead)
        if self._mode is not None:
            raise _DeadError(f"Rule ignored: rule {self._mode.number}, {self._mode}, has decided already")
        if rule.is_mode:
            self._mode = rule
        self._rules.append(rule)

    def _check_is_alive(self, rule: Rule, dead: Sequence[str]) -> None:
        action = ALL if rule.action is None else rule.action.value
        object_type = ALL if rule.object_type is None else rule.object_type.value
        if not lookups_for(rule.action, rule.object_type):
            raise _DeadError(_never_checked(action, object_type))
        is_elsewhere = any(each.kind is Kind.HOST for each, _ in rule.properties) and not rule.is_about_connections
        if dead or is_elsewhere or not rule.lookups:
            names = " ".join([*(f"{each.name}={value}" for each, value in rule.properties), *dead])
            raise _DeadError(
                f"ACL rule ignored: Broker checks for rules with action: '{action}' and object: '{object_type}' but "
                f"will never match with property set: {{ {names} }}"
            )

    def _properties(self, tokens: Sequence[str]) -> tuple[list[tuple[Property, str]], tuple[HostRange, ...], list[str]]:
        """The properties of a rule, the addresses of its host, and what is never asked for."""
        found: dict[str, tuple[Property, str]] = {}
        hosts: tuple[HostRange, ...] = ()
        dead = []
        for token in tokens:
            given, equals, value = token.partition("=")
            if not equals:
                raise _WrongError(f'Badly formed property "{token}": it is not NAME=VALUE')
            if given in NEVER_ASKED:
                dead.append(token)
                continue
            each = PROPERTIES.get(OLD_PROPERTIES.get(given, given))
            if each is None:
                raise _WrongError(f'Unknown ACL property "{given}"')
            if each.name in found:
                raise _WrongError(f'The property "{each.name}" is given twice')
            if each.kind is Kind.HOST:
                hosts = self._hosts(value)
            if each.name != "name" or value:
                found[each.name] = each, _read_value(each, value)
        return list(found.values()), hosts, dead

    def _hosts(self, value: str) -> tuple[HostRange, ...]:
        try:
            return read_hosts(value, self._find)
        except HostError as error:
            raise _WrongError(str(error)) from None

    # ---- groups and users ----

    def _users(self, name: str) -> frozenset[str] | None:
        """The users that the subject of a rule or quota means; None for all."""
        if name == ALL:
            return None
        group = self._groups.get(name)
        return frozenset((name,)) if group is None else group

    def _add_group(self, tokens: Sequence[str]) -> None:
        if not tokens:
            raise _WrongError("Insufficient tokens for group definition: a group must have a name")
        name, members = tokens[0], tokens[1:]
        if not _GROUP_NAME.fullmatch(name):
            raise _WrongError(f'Group name "{name}" contains illegal characters')
        if name == ALL:
            raise _WrongError(f'"{ALL}" cannot be the name of a group: it means all users')
        if name in self._groups:
            raise _WrongError(f'Group "{name}" is defined already')
        if len(self._groups) >= MAX_GROUPS:
            raise _WrongError(f"more than {MAX_GROUPS:,} groups")
        self._groups[name] = (
            frozenset()
        )  # unless the group is wrong, so that its rules are not complained about as well
        users: set[str] = set()
        depth = 1
        for member in members:
            if member in self._groups and member != name:
                users |= self._groups[member]
                depth = max(depth, self._depths[member] + 1)
            elif "@" in member:
                _check_user(member)
                users.add(member)
            else:
                raise _WrongError(
                    f'"{member}" is not a user with a realm, as in {_plain(member)}@QPID, and the group "{member}" is '
                    "not defined yet."
                )
        self._depths[name] = depth
        self._members += len(users)
        if depth > MAX_DEPTH:
            raise _WrongError(f'Group "{name}" is nested more than {MAX_DEPTH} deep')
        if self._members > MAX_MEMBERS:
            raise _WrongError(f"the groups have more than {MAX_MEMBERS:,} members")
        self._groups[name] = frozenset(users)

    def _add_quota(self, line: int, tokens: Sequence[str]) -> None:
        if len(tokens) < 2:
            raise _WrongError("Insufficient tokens for quota definition")
        counted = _COUNTED.get(tokens[0])
        if counted is None:
            raise _WrongError(f'Unknown quota "{tokens[0]}": it is not connections or queues')
        if not _is_number(tokens[1]) or int(tokens[1]) > MAX_QUOTA:
            raise _WrongError(f'"{tokens[1]}" is not a valid quota, values should be between 0 and {MAX_QUOTA}')
        if len(tokens) == 2:
            raise _DeadError("the quota is ignored: it names nobody")
        for name in tokens[2:]:
            self._quotas.append(Quota(line, counted, int(tokens[1]), self._users(name)))


def _plain(name: str) -> str:
    return name if _USER_NAME.fullmatch(name) else "bob"


def _never_checked(action: str, object_type: str) -> str:
    return f"ACL rule ignored: Broker never checks for rules with action: '{action}' and object: '{object_type}'"


def _check_user(name: str) -> None:
    if not _USER_NAME.fullmatch(name):
        raise _WrongError(f'Username "{name}" contains illegal characters')


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(MAX_NUMBER))


def _read_value(each: Property, value: str) -> str:
    """The value of a property, checked."""
    if each.is_limit:
        if not _is_number(value) or int(value) > MAX_NUMBER:
            raise _WrongError(
                f"{value} is not a valid value for '{each.name}', values should be between 0 and {MAX_NUMBER}"
            )
        return value
    possible = {Kind.FLAG: ("true", "false"), Kind.POLICY: tuple(POLICIES)}.get(each.kind)
    if possible is not None and value not in possible:
        shown = " ".join(f"'{one}'" for one in possible)
        raise _WrongError(f"{value} is not a valid value for '{each.name}', possible values are one of {{ {shown} }}")
    return POLICIES[value] if each.kind is Kind.POLICY else value
