"""Decides by the rules of a file: the first one that matches counts.

A rule matches if it is about the user, the action and the object, and if all of its properties do:

    text            equal, or equal up to a `*` at the end
    routingkey      as the binding key of a topic exchange matches a routing key
    flags           equal
    limits          always; an allowing rule of which a limit is exceeded denies, and later ones are not looked at
    name            the default exchange is called amq.default; amq.match and amq.headers are the same exchange

A lookup that passes nothing but a name is decided by the name, if the rule has one: further properties of the rule are
not compared. A rule without a name, but with other properties, does not match such a lookup.

`${userdomain}`, `${user}` and `${domain}` in values mean parts of the user's name, in which `.` and `@` (and `*`
and `#`, which would be wildcards) are `_`. In a routing key, `${user}_${domain}` matches nothing.

A declaration by which messages will be forwarded (`decide_forwarding`) is about every key that a topic pattern matches.
It is allowed only if all of them surely are: an allowing rule decides if it matches all of these keys, a denying
one if it may match any. Several allowing rules that match all keys only together do not count.

Rules about the creation of connections are separate: only those count that say `create connection`. First those of all
users with a host are tried, then the user's own, then the one of all users and all hosts; without any, the connection
is allowed.

The rules of a user are sorted by action and object, and remembered, as are decisions about publishing.

Sources: Qpid C++ Broker Book, 1.5.2.2.7, 1.5.2.2.8, 1.5.2.3 and 1.5.3.2; tests of qpidd (acl.py: limits of denying
rules, lookups with a name only).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.exchanges.matching import TopicIndex
from qstore.broker.model.exchanges.types import HEADERS_NAMES
from qstore.broker.security.acl.rules import Rule, RuleSet, read_address
from qstore.broker.security.acl.tables import EVERY, Kind, Permission, Property
from qstore.formats.named_tuple import NamedTuple

DEFAULT_EXCHANGE: Final = "amq.default"
ANONYMOUS: Final = "anonymous"
MAX_REMEMBERED: Final = 500_000
"""Rules of single users, and decisions about publishing, that are remembered: then all are forgotten."""
MAX_WORDS: Final = 60
"""Words of a pattern in a lookup, so that they are the bits of a small number."""
_OVERHEAD: Final = 100  # rules that weigh as much as a user
_MAX_PUBLISHED: Final = 1_000  # decisions about publishing that are remembered for one user
_MAX_EXCHANGES: Final = 100  # whose rules about publishing are remembered for one user
_NOT_IN_KEYS: Final = "${user}_${domain}"
_WORDS: Final = re.compile(r"\$\{(?:userdomain|user|domain)\}")
_TO_UNDERSCORE: Final = str.maketrans(".@*#", "____")
Words: TypeAlias = Sequence[str]
"""The words of a topic pattern, with the stars of each group of wildcards first and one `#` after them."""


class _Asked:
    """A pattern in a lookup, as bits: bit 0 is its first word, and the one after its last is the end.

    Args:
        pattern: the pattern; if it has more than `MAX_WORDS` words, it counts as `#`.

    Attributes:
        end: the end.
        rests, stars, single: the places of `#`, of `*`, and of all words but `#`.
        words: the places of each other word.
    """

    __slots__ = ("end", "rests", "single", "stars", "words")

    def __init__(self, pattern: str) -> None:
        words = _words_of(pattern)
        if len(words) > MAX_WORDS:
            words = ("#",)
        self.words: dict[str, int] = {}
        for at, word in enumerate(words):
            self.words[word] = self.words.get(word, 0) | 1 << at
        self.rests, self.stars, self.end = self.words.pop("#", 0), self.words.pop("*", 0), 1 << len(words)
        self.single = (self.end - 1) & ~self.rests


class Decision(NamedTuple):
    """A decision.

    Attributes:
        permission: the decision.
        rule: the rule that has decided; None if none has matched.
        exceeded: the name of the rule's limit that is exceeded; empty for none.
    """

    permission: Permission
    rule: Rule | None
    exceeded: str = ""

    @property
    def allows(self) -> bool:
        """Whether the operation may be performed."""
        return self.permission.allows

    @property
    def why(self) -> str:
        """The reason, for people."""
        if self.rule is None:
            return "no rule matches"
        limit = f", {self.exceeded} is not kept" if self.exceeded else ""
        return f"rule {self.rule.number} in line {self.rule.line}: {self.rule}{limit}"


class _Condition:
    """One property of a rule, for one user."""

    __slots__ = ("_is_prefix", "_pattern", "_text", "_words", "property")

    def __init__(self, each: Property, value: str, names: Mapping[str, str]) -> None:
        self.property = each
        self._is_prefix = each.kind is Kind.KEY_PREFIX or each.kind is Kind.TEXT
        self._is_prefix = self._is_prefix and value.endswith("*")
        self._pattern: TopicIndex | None = None
        self._text = _filled(value.removesuffix("*") if self._is_prefix else value, names)
        self._words: Words = ()  # none: it holds for no key
        if each.kind is Kind.KEY:
            self._pattern = TopicIndex()
            if _NOT_IN_KEYS not in value:
                self._pattern.add(self._text)
                self._words = _words_of(self._text)

    def holds(self, asked: str) -> bool:
        """Whether it holds for this value. Limits always do."""
        if self.property.is_limit:
            return True
        if self._pattern is not None:
            return bool(self._pattern.match(asked))
        return any(map(self._fits, HEADERS_NAMES)) if asked in HEADERS_NAMES else self._fits(asked)

    def _fits(self, asked: str) -> bool:
        return asked.startswith(self._text) if self._is_prefix else asked == self._text

    def holds_for_all(self, asked: _Asked) -> bool:
        """Whether it surely holds for every key that a pattern matches."""
        if self._pattern is None:
            return self._is_prefix and not self._text
        return bool(self._words) and _covers(self._words, asked)

    def may_hold(self, asked: _Asked) -> bool:
        """Whether it may hold for a key that a pattern matches."""
        if self._pattern is None:
            return True
        return bool(self._words) and _overlap(self._words, asked)

    def is_exceeded(self, asked: str) -> bool:
        """Whether it is a limit that this value exceeds. Anything but a number exceeds every limit."""
        if not self.property.is_limit:
            return False
        try:
            value = int(asked)
        except ValueError:
            return True
        limit = int(self._text)
        if self.property.kind is Kind.LOWER:
            return value < limit
        is_unlimited = self.property.is_unlimited_at_zero and value == 0
        return limit > 0 and (value > limit or is_unlimited)


class _UsersRule:
    """A rule, for one user. Its conditions are made when its name has matched for the first time."""

    __slots__ = ("_made", "_name", "_names", "rule")

    def __init__(self, rule: Rule, names: Mapping[str, str]) -> None:
        self.rule, self._names = rule, names
        named = (_Condition(each, value, names) for each, value in rule.properties if each.name == "name")
        self._name = next(named, None)
        self._made: list[_Condition] | None = None

    @property
    def _conditions(self) -> list[_Condition]:
        if self._made is None:
            given = self.rule.properties
            self._made = [_Condition(each, value, self._names) for each, value in given if each.name != "name"]
        return self._made

    def is_about(self, name: str) -> bool:
        """Whether it is about objects of this name."""
        return self._name is None or self._name.holds(name)

    def decide(self, name: str, asked: Mapping[str, str] | None) -> Decision | None:
        """The decision; None if the rule does not match."""
        if not self.is_about(name):
            return None
        if asked is None:
            return Decision(self.rule.permission, self.rule) if self._name or not self._conditions else None
        exceeded = ""
        for each in self._conditions:
            value = asked.get(each.property.asked)
            if value is None or not each.holds(value):
                return None
            if not exceeded and each.is_exceeded(value):
                exceeded = each.property.name
        if exceeded and self.rule.permission.allows:
            return Decision(self.rule.permission.reverse, self.rule, exceeded)
        return Decision(self.rule.permission, self.rule)

    def decide_forwarding(self, asked: _Asked) -> Decision | None:
        """The decision about every key that a pattern matches; None if the rule does not decide about all of them."""
        judges = _Condition.holds_for_all if self.rule.permission.allows else _Condition.may_hold
        if all(each.property.asked == "routingkey" and judges(each, asked) for each in self._conditions):
            return Decision(self.rule.permission, self.rule)
        return None


class _User:
    """The cached decisions and names of one user.

    Attributes:
        names: the values of the placeholders for parts of the user's name.
        questions: the rules by action and object.
        exchanges: the rules about publishing by exchange.
        published: decisions about publishing.
    """

    __slots__ = ("exchanges", "names", "published", "questions")

    def __init__(self, user: str) -> None:
        self.names = substitutions(user)
        self.questions: dict[tuple[Action, ObjectType], list[_UsersRule]] = {}
        self.exchanges: dict[str, list[_UsersRule]] = {}
        self.published: dict[tuple[str, str], Decision] = {}


class Engine:
    """Decides by one rule set.

    Args:
        rules: the rule set.

    Attributes:
        rules: the same.
        checks_publish: whether a rule is about publishing, so that messages must be checked.
    """

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.checks_publish = any(each.is_about_publishing for each in rules.rules)
        self._connections = [each for each in rules.rules if each.is_about_connections]
        self._users: dict[str, _User] = {}
        self._remembered = 0
        self._shared: dict[int, _UsersRule] = {}  # the rules that are the same for all users, by number

    def decide(
        self, user: str, action: Action, object_type: ObjectType, name: str, asked: Mapping[str, str] | None = None
    ) -> Decision:
        """Decide.

        Args:
            user: the user, with the realm.
            action: the operation.
            object_type: the kind of object.
            name: the object's name; empty if it has none.
            asked: the values of the lookup; None if it passes a name only. A text that is empty counts as missing,
                unless it is a routing key. With `EVERY`, as `decide_forwarding`.
        """
        if asked is not None and EVERY in asked and (action, object_type) == (Action.PUBLISH, ObjectType.EXCHANGE):
            return self.decide_forwarding(user, name, asked[EVERY])
        if object_type is ObjectType.CONNECTION and action is Action.CREATE:
            return self.decide_connection(user, (asked or {}).get("host", ""))
        if object_type is ObjectType.EXCHANGE and not name:
            name = DEFAULT_EXCHANGE
        if asked is not None:
            asked = {each: value for each, value in asked.items() if value or each == "routingkey"}
        return self._first(self._rules(user, action, object_type), name, asked)

    def decide_publish(self, user: str, exchange: str, routing_key: str) -> Decision:
        """Decide about publishing to an exchange with a routing key."""
        remembered = self._user(user)
        decision = remembered.published.get((exchange, routing_key))
        if decision is None:
            if len(remembered.published) >= _MAX_PUBLISHED:
                remembered.published.clear()
            name = exchange or DEFAULT_EXCHANGE
            rules = remembered.exchanges.get(name)
            if rules is None:
                if len(remembered.exchanges) >= _MAX_EXCHANGES:
                    remembered.exchanges.clear()
                every = self._rules(user, Action.PUBLISH, ObjectType.EXCHANGE)
                rules = remembered.exchanges[name] = [each for each in every if each.is_about(name)]
                self._remembered += len(rules)
            decision = self._first(rules, name, {"routingkey": routing_key})
            remembered.published[exchange, routing_key] = decision
            self._remembered += 1
        return decision

    def decide_forwarding(self, user: str, exchange: str, pattern: str) -> Decision:
        """Decide about publishing to an exchange with every routing key that a topic pattern matches."""
        asked, name = _Asked(pattern), exchange or DEFAULT_EXCHANGE
        for each in self._rules(user, Action.PUBLISH, ObjectType.EXCHANGE):
            if each.is_about(name):
                decision = each.decide_forwarding(asked)
                if decision is not None:
                    return decision
        return Decision(self.rules.default, None)

    def decide_connection(self, user: str, host: str) -> Decision:
        """Decide about a connection. An empty `user` is not known yet: only the rules of all users apply."""
        address = read_address(host)
        matching = [
            each
            for each in self._connections
            if concerns(each, user) and (not each.hosts or (address and any(one.has(address) for one in each.hosts)))
        ]
        categories = (
            [each for each in matching if each.users is None and each.hosts],
            [each for each in matching if each.users is not None],
            [each for each in matching if each.users is None and not each.hosts and user],
        )
        for rules in categories:
            if rules:
                return Decision(rules[0].permission, rules[0])
        return Decision(Permission.ALLOW, None)

    def _first(self, rules: Sequence[_UsersRule], name: str, asked: Mapping[str, str] | None) -> Decision:
        """The decision of the first rule that matches."""
        for each in rules:
            decision = each.decide(name, asked)
            if decision is not None:
                return decision
        return Decision(self.rules.default, None)

    def _user(self, user: str) -> _User:
        if self._remembered > MAX_REMEMBERED:
            self._users.clear()
            self._remembered = 0
        found = self._users.get(user)
        if found is None:
            self._remembered += _OVERHEAD
            found = self._users[user] = _User(user)
        return found

    def _rules(self, user: str, action: Action, object_type: ObjectType) -> list[_UsersRule]:
        """A user's rules about an action and an object, in the order of the file."""
        remembered = self._user(user)
        found = remembered.questions.get((action, object_type))
        if found is None:
            found = remembered.questions[action, object_type] = [
                self._rule(each, remembered.names)
                for each in self.rules.rules
                if each.fits(action, object_type) and concerns(each, user) and not each.is_about_connections
            ]
            self._remembered += len(found)
        return found

    def _rule(self, rule: Rule, names: Mapping[str, str]) -> _UsersRule:
        if any("${" in value for _, value in rule.properties):
            return _UsersRule(rule, names)
        shared = self._shared.get(rule.number)
        if shared is None:
            shared = self._shared[rule.number] = _UsersRule(rule, names)
        return shared


def concerns(rule: Rule, user: str) -> bool:
    """Whether a rule is about a user. `anonymous` in a rule is the anonymous user of every realm."""
    return rule.users is None or user in rule.users or (ANONYMOUS in rule.users and user.startswith(f"{ANONYMOUS}@"))


def substitutions(user: str) -> dict[str, str]:
    """The placeholders for parts of a user's name, and their values."""
    name, _, domain = user.partition("@")
    return {
        "${userdomain}": user.translate(_TO_UNDERSCORE),
        "${user}": name.translate(_TO_UNDERSCORE),
        "${domain}": domain.translate(_TO_UNDERSCORE),
    }


def _filled(value: str, names: Mapping[str, str]) -> str:
    """A value with the user's name filled in, at once: a name that looks like one of these words stays as it is."""
    return _WORDS.sub(lambda found: names[found.group()], value)


def _words_of(pattern: str) -> Words:
    words: list[str] = []
    for word in pattern.split("."):
        if word == "#" and words[-1:] == ["#"]:
            continue
        if word == "*" and words[-1:] == ["#"]:
            words.insert(-1, "*")
        else:
            words.append(word)
    return words


def _covers(rule: Words, asked: _Asked) -> bool:
    """Whether a pattern matches every key that another one does. Sound, but not complete: False if in doubt."""
    holds = asked.end  # a bit for each place where the rest of `asked` is covered by the words of the rule so far
    for word in reversed(rule):
        if word == "#":
            holds = (1 << holds.bit_length()) - 1
        else:
            holds = (holds >> 1) & (asked.single if word == "*" else asked.words.get(word, 0))
        if not holds:
            return False
    return bool(holds & 1)


def _overlap(rule: Words, asked: _Asked) -> bool:
    """Whether there is a key that both patterns match."""
    holds = asked.end | (asked.end >> 1 & asked.rests)
    for word in reversed(rule):
        if word == "#":
            holds = (1 << holds.bit_length()) - 1
        else:
            same = asked.single if word == "*" else asked.stars | asked.words.get(word, 0)
            holds = (holds >> 1 & same) | (holds & asked.rests)
            holds |= holds >> 1 & asked.rests
        if not holds:
            return False
    return bool(holds & 1)
