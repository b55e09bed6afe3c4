r"""Reads an ACL file, of any of three versions, and makes rules of it.

    1   XML of the Java broker: begins with `<`
    2   lines, as qpidd reads them
    3   lines of another grammar: the first one that is not a comment begins with CONFIG, a number, a quote, or with ACL
        or GROUP that is not in lower case

The file is not larger than MAX_FILE, its lines not longer than MAX_LINE. All problems are collected, and reported
together.

**Version 2.**

    acl    PERMISSION SUBJECT ACTION [OBJECT [PROPERTY=VALUE ...]]
    group  NAME MEMBER ...
    quota  connections|queues NUMBER SUBJECT ...

A line that begins with `#` is a comment; a comment may not follow anything else, since routing keys have `#`, too.
Words are separated by any white space, and case matters. A line of a group continues on the next one if its last
character is `\`. All of it is ASCII. (The manual allows no space before the first word; qpidd does.)

A group consists of users and of groups defined before it. In a group, a name without a realm can only be a group; as
the subject of a rule it may also be a user's, and then it may have any characters, as in qpidd.

**Version 3.**

    CONFIG NAME=true|false ...
    GROUP NAME MEMBER ...
    [NUMBER] [ACL] PERMISSION SUBJECT ACTION [OBJECT [PROPERTY=VALUE ...]]

Numbers grow from rule to rule. Keywords and names of properties are of any case; the latter may have underscores.
Strings are in `'` or `"`, or unquoted where they have no space, `=`, `#` or quote. Text after `#` outside of quotes
is a comment. A line continues on the next one if its last character but white space is `\`. `=` may have white space
around it.

CONFIG defaultallow and defaultdeny set the decision without a matching rule. Two other settings make further rules of
those that follow them; they stand right after their rule, with its permission and subject:

    expand      a rule about an object that the broker does not have is replaced:
                  publish topic T     publish exchange amq.topic, with the routing key T
                  create topic T      bind exchange amq.topic, likewise; so does delete, with unbind
                  consume topic T     bind exchange amq.topic, likewise; if it allows, only queues of `_SUBSCRIPTIONS`,
                                      which it may also create as temporary ones, and consume
                  publish queue Q     publish exchange amq.default, with the routing key Q
    transitive  an allowing rule brings what its operation needs:
                  any of a queue or an exchange       access virtualhost
                  create queue Q                      bind exchange, with the queue Q, and with the routingkey and the
                                                      exchangename of the rule, if it has them; without a name only for
                                                      temporary queues, those of `_SUBSCRIPTIONS`

T is a name, of which a `*` at the end matches anything, or the value of `routingkey`, a topic pattern. `controlled`,
about other sources of rules, has no effect: it is warned of.

**Version 1.**

    access_control_list
        access/users/user                                   may do everything
        publish/exchanges/exchange                          name; users, or for each key:
            routing_keys/routing_key                        value, of which a `*` at the end matches anything; users
        consume/queues/queue                                name or temporary; users
        create/queues/queue                                 name or temporary; users, or for each exchange:
            exchanges/exchange                              name; users, who may also bind the queue to it

Publishing, consuming and creating queues are denied unless granted; everything else is allowed, since version 1 does
not know it. Temporary queues are those created as exclusive and auto-delete; for consuming, where only the queue's
name is known, those whose names begin with `tmp_` or `TempQueue`. Users without a realm have the broker's. The list
may be anywhere in a file, as in the Java broker's configuration; a file that has two is for two virtual hosts, and
refused. Document types are refused.

Sources: Qpid C++ Broker Book, 1.5.2.1 and 1.5.2.2; the texts of errors that tests of qpidd look for (acl.py); Qpid
wiki, "v2 ACL file format", "Andrew Kennedy's Proposal For ACL v3" and "Java XML ACLs".
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.security.acl.rules import (
    AclFileError,
    Counted,
    HostError,
    HostRange,
    Problem,
    Quota,
    Resolve,
    Rule,
    RuleSet,
    read_hosts,
    resolve,
)
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
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.xml_tree import Element, XmlError, parse_xml

MAX_FILE: Final = 4 << 20
MAX_LINE: Final = 1024
_WORDS: Final = ("acl", "group", "quota")
_SPACE: Final = " \t\n\r\v\f"


def read_file(path: str, realm: str = "QPID", find: Resolve = resolve) -> RuleSet:
    """Read a file.

    Args:
        path: its name.
        realm: of users that a file of version 1 names without it.
        find: resolves host names.

    Raises:
        AclFileError: it cannot be read, or something in it is wrong.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise AclFileError(path, [Problem(0, "the ACL file is not a file")])
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise AclFileError(path, [Problem(0, f"the ACL file cannot be read: {error.strerror}")]) from None
    except ValueError:
        raise AclFileError(path, [Problem(0, "the ACL file's name is not valid")]) from None
    return read(data, path, realm, find)


def read(data: bytes, path: str = "ACL file", realm: str = "QPID", find: Resolve = resolve) -> RuleSet:
    """Read the content of a file; as `read_file`."""
    if len(data) > MAX_FILE:
        raise AclFileError(path, [Problem(0, f"the ACL file is larger than {MAX_FILE:,} bytes")])
    begin = data.lstrip()[:1]
    if begin == b"<":
        return _read_version_1(data, path, realm, find)
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise AclFileError(path, [Problem(line, f"the byte 0x{data[error.start]:02x} is not ASCII")]) from None
    lines = text.split("\n")
    is_version_3 = _is_version_3(_first_words(lines))
    builder = Builder(path, 3 if is_version_3 else 2, find)
    try:
        _check_lines(lines, builder)
        if is_version_3:
            _read_version_3(lines, builder)
        else:
            for statement in _statements(lines, builder):
                builder.add(statement)
    except TooManyError:
        pass
    return builder.result()


def _check_lines(lines: list[str], builder: Builder) -> None:
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE:
            builder.complain(number, f"the line is longer than {MAX_LINE} characters", line)
        elif "\0" in line:
            builder.complain(number, "the line contains a zero byte", line)


def _first_words(lines: list[str]) -> list[str]:
    """The words of the first line that has any and is not a comment."""
    return next((line.split() for line in lines if line.strip() and not line.startswith("#")), [])


def _statements(lines: list[str], builder: Builder) -> Iterator[Statement]:
    """The statements of version 2."""
    begun: Statement | None = None  # a group that continues on the next line
    for number, line in enumerate(lines, 1):
        if line.startswith("#") or (begun is None and not line.strip(_SPACE)):
            continue
        words = line.split()
        continues = bool(words) and words[-1].endswith("\\")
        if continues:
            words[-1] = words[-1][:-1]
            words = [word for word in words if word]
        if begun is not None:
            if not words:
                builder.complain(number, "the line contains an illegal extension: it has no member", line)
                begun = begun if continues else None
                continue
            begun = begun._replace(tokens=[*begun.tokens, *words])
        elif not words or words[0] not in _WORDS:
            builder.complain(number, 'Non-continuation line must start with "group", "acl" or "quota"', line)
            continue
        else:
            begun = Statement(number, line, words)
        if not continues:
            yield begun
            begun = None
        elif begun.tokens[0] != "group" or len(begun.tokens) < 2:
            what = "only a group continues, and after its name"
            builder.complain(number, f"the line contains an illegal extension: {what}", line)
            begun = None
    if begun is not None:
        yield begun


# ---- version 3 ----

_TOKEN: Final = re.compile(r"""[\x00-\x20]*(?:"([^"]*)"|'([^']*)'|(=)|(\#.*)|([^\x00-\x20"'=#]+)|(.))""", re.DOTALL)
_PERMISSION_WORDS: Final = frozenset(each.value for each in Permission)
_KEYWORDS: Final = frozenset(("acl", "group", "config", "quota"))
_DEFAULTS: Final = {"defaultallow": Permission.ALLOW, "defaultdeny": Permission.DENY}
_EVERYBODY: Final = frozenset((ALL, "any"))


class _Token(NamedTuple):
    text: str
    is_quoted: bool

    @property
    def is_equals(self) -> bool:
        return self.text == "=" and not self.is_quoted

    @property
    def keyword(self) -> str:
        """Its meaning in rules, if it is a keyword."""
        return "" if self.is_quoted else self.text.lower().replace("_", "-")


class _TokenError(Exception):
    pass


def _is_version_3(words: Sequence[str]) -> bool:
    """Whether a file whose first line has these words is of version 3."""
    if not words:
        return False
    word = words[0]
    lower = word.lower().replace("_", "-")
    is_keyword = lower in _KEYWORDS or lower in _PERMISSION_WORDS
    return word.isdigit() or word[0] in "'\"" or (is_keyword and word not in ("acl", "group", "quota"))


def _read_version_3(lines: Sequence[str], builder: Builder) -> None:
    """Add the statements to a builder. Raises TooManyError."""
    last = -1
    for number, text in _joined(lines):
        try:
            tokens = list(_tokens(text))
            if not tokens:
                continue
            if tokens[0].text.isdigit() and not tokens[0].is_quoted:
                rule = int(tokens.pop(0).text[:20])
                if rule <= last:
                    raise _TokenError(f"rule {rule} follows rule {last}: numbers must grow")
                last = rule
            if tokens and tokens[0].keyword == "config":
                _configure(tokens[1:], number, text, builder)
                continue
            builder.add(Statement(number, text, _words(tokens)))
        except _TokenError as error:
            builder.complain(number, str(error), text)


def _joined(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Lines with those that continue them, and the numbers of the first ones."""
    begun: list[str] = []
    first = 1
    for number, line in enumerate(lines, 1):
        if not begun:
            first = number
        stripped = line.rstrip()
        if stripped.endswith("\\") and not _has_comment(stripped):
            begun.append(stripped[:-1])
            continue
        yield first, " ".join([*begun, line])
        begun = []
    if begun:
        yield first, " ".join(begun)


def _has_comment(line: str) -> bool:
    return any(match.group(4) for match in _TOKEN.finditer(line))


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text.rstrip()):
        double, single, equals, comment, word, other = match.groups()
        if comment:
            return
        if other:
            raise _TokenError(f"unexpected character {other!a}")
        if double is not None or single is not None:
            yield _Token(double if double is not None else single, is_quoted=True)
        else:
            yield _Token(equals or word, is_quoted=False)


def _words(tokens: Sequence[_Token]) -> list[str]:
    """The words of version 2."""
    if not tokens:
        raise _TokenError("a number without a rule")
    first = tokens[0].keyword
    if first in ("group", "quota"):
        return [first, *(each.text for each in tokens[1:])]
    rest = list(tokens[1:] if first == "acl" else tokens)
    if first != "acl" and first not in _PERMISSION_WORDS:
        raise _TokenError(f'"{tokens[0].text}" is not ACL, GROUP, QUOTA, CONFIG or a permission')
    words = [each.keyword or each.text for each in rest[:1]]
    words += [ALL if each.keyword in _EVERYBODY else each.text for each in rest[1:2]]
    words += [ALL if each.keyword in _EVERYBODY else each.keyword or each.text for each in rest[2:4]]
    return ["acl", *words, *_properties(rest[4:])]


def _properties(tokens: Sequence[_Token]) -> Iterator[str]:
    for name, equals, value in _triples(tokens):
        if not equals.is_equals or name.is_equals or value.is_equals:
            raise _TokenError(f'"{name.text}" is not followed by = and a value')
        given = name.text.lower().replace("_", "")
        kind = PROPERTIES[given].kind if given in PROPERTIES else Kind.TEXT
        yield f"{given}={value.text.lower() if kind in (Kind.FLAG, Kind.POLICY) else value.text}"


def _triples(tokens: Sequence[_Token]) -> Iterator[tuple[_Token, _Token, _Token]]:
    if len(tokens) % 3:
        raise _TokenError("a property is not NAME=VALUE")
    for start in range(0, len(tokens), 3):
        yield tokens[start], tokens[start + 1], tokens[start + 2]


def _configure(tokens: Sequence[_Token], line: int, text: str, builder: Builder) -> None:
    for name, equals, value in _triples(tokens):
        given, flag = name.keyword.replace("-", ""), value.text.lower()
        if not equals.is_equals or flag not in ("true", "false"):
            raise _TokenError(f'"{name.text}" is not followed by =true or =false')
        if given == "expand":
            builder.expands = flag == "true"
        elif given == "transitive":
            builder.is_transitive = flag == "true"
        elif given not in _DEFAULTS:
            builder.warn(line, f"CONFIG {name.text} has no effect", text)
        elif flag == "true":
            builder.default = _DEFAULTS[given]


# ---- version 1 ----

_LIST: Final = "access_control_list"
_TEMPORARY: Final = ("tmp_*", "TempQueue*")
_KEY_PREFIX: Final = Property("routingkey", Kind.KEY_PREFIX, "routingkey")
_SECTIONS: Final = ("access", "publish", "consume", "create")


def _read_version_1(data: bytes, path: str, realm: str, find: Resolve) -> RuleSet:
    """Read the content of a file. Raises AclFileError."""
    try:
        root = parse_xml(data)
    except XmlError as error:
        raise AclFileError(path, [Problem(error.line, str(error))]) from None
    lists = list(root.named(_LIST))
    if len(lists) != 1:
        raise AclFileError(path, [Problem(0, f"the file has {len(lists)} elements <{_LIST}>; it must have one")])
    builder = Builder(path, 1, find)
    with contextlib.suppress(TooManyError):
        _Converter(lists[0], realm, builder).convert()
    return builder.result()


class _Converter:
    def __init__(self, source: Element, realm: str, builder: Builder) -> None:
        self._source, self._realm, self._builder = source, realm, builder

    def convert(self) -> None:
        """Make the rules."""
        source = self._source
        for child in source.children:
            if child.name not in _SECTIONS:
                self._builder.complain(child.line, f"<{child.name}> is not one of {', '.join(_SECTIONS)}")
        for element in source.all("access/users"):
            self._allow(element, None, None)
        for exchange in source.all("publish/exchanges/exchange"):
            self._publish(exchange)
        for queue in source.all("consume/queues/queue"):
            for users in queue.all("users"):
                for name in self._names(queue):
                    self._allow(users, Action.CONSUME, ObjectType.QUEUE, name=name)
        for queue in source.all("create/queues/queue"):
            self._create(queue)
        end = source.line
        for action, object_type in (
            (Action.PUBLISH, ObjectType.EXCHANGE), (Action.CONSUME, ObjectType.QUEUE), (Action.CREATE, ObjectType.QUEUE)
        ):  # fmt: skip
            self._add(end, Permission.DENY, "all", None, action, object_type, ())
        self._add(end, Permission.ALLOW, "all", None, None, None, ())

    def _publish(self, exchange: Element) -> None:
        name = exchange.value("name") or ""
        keys = list(exchange.all("routing_keys/routing_key"))
        for users in exchange.all("users"):
            self._allow(users, Action.PUBLISH, ObjectType.EXCHANGE, name=name)
        for key in keys:
            value = key.value("value")
            if value is None:
                self._builder.complain(key.line, "<routing_key> has no <value>")
                continue
            for users in key.all("users"):
                self._allow(users, Action.PUBLISH, ObjectType.EXCHANGE, key=value, name=name)

    def _create(self, queue: Element) -> None:
        name = queue.value("name")
        for place in (queue, *queue.all("exchanges/exchange")):
            exchange = place.value("name") if place is not queue else None
            for users in place.all("users"):
                if next(queue.all("temporary"), None) is not None:
                    flags = {"autodelete": "true", "exclusive": "true"}
                    self._allow(users, Action.CREATE, ObjectType.QUEUE, **flags)
                if name is not None:
                    self._allow(users, Action.CREATE, ObjectType.QUEUE, name=name)
                if exchange is not None:
                    self._allow(users, Action.BIND, ObjectType.EXCHANGE, name=exchange)

    def _names(self, queue: Element) -> Iterator[str]:
        if next(queue.all("temporary"), None) is not None:
            yield from _TEMPORARY
        name = queue.value("name")
        if name is not None:
            yield name

    def _allow(
        self,
        users: Element,
        action: Action | None,
        object_type: ObjectType | None,
        key: str | None = None,
        **properties: str,
    ) -> None:
        given = [(PROPERTIES[name], value) for name, value in properties.items() if value]
        if key is not None:
            given.append((_KEY_PREFIX, key))
        for user in users.all("user"):
            name = user.text.strip()
            if not name:
                self._builder.complain(user.line, "<user> is empty")
                continue
            full = name if "@" in name else f"{name}@{self._realm}"
            self._add(user.line, Permission.ALLOW, full, frozenset((full,)), action, object_type, tuple(given))

    def _add(
        self,
        line: int,
        permission: Permission,
        subject: str,
        users: frozenset[str] | None,
        action: Action | None,
        object_type: ObjectType | None,
        properties: tuple[tuple[Property, str], ...],
    ) -> None:
        number = self._builder.next_number
        if number > MAX_RULES:
            self._builder.complain(line, f"more than {MAX_RULES:,} rules")
            raise TooManyError
        self._builder.add_rule(Rule(number, line, permission, subject, users, action, object_type, properties))


# ---- from statements to rules ----

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
_TOPIC: Final = "topic"
_TOPIC_EXCHANGE: Final = "amq.topic"
_DEFAULT_EXCHANGE: Final = "amq.default"
_SUBSCRIPTIONS: Final = (*_TEMPORARY, "amq.gen-*", f"{_TOPIC_EXCHANGE}_*")
"""Names of the temporary queues of subscriptions: of Java clients, of AMQP 0-9-1, and of Qpid's C++ and Python ones."""
_COUNTED: Final[dict[str, Counted]] = {"connections": "connections", "queues": "queues"}


class _Made(NamedTuple):
    """What a rule is about: None for every action and object."""

    action: Action | None
    object_type: ObjectType | None
    properties: tuple[tuple[Property, str], ...] = ()


def _about(
    action: Action, object_type: ObjectType, *more: tuple[Property, str] | None, **properties: str | None
) -> _Made:
    given = [(PROPERTIES[name], value) for name, value in properties.items() if value]
    return _Made(action, object_type, (*given, *(each for each in more if each is not None)))


def _expanded(action: str, what: str, given: Mapping[str, str], *, allows: bool) -> list[_Made]:
    """What a rule about an object that the broker does not have means; empty if it means nothing."""
    name, pattern = given.get("name"), given.get("routingkey")
    key = (PROPERTIES["routingkey"], pattern) if pattern is not None else (_KEY_PREFIX, name) if name else None
    publish, bind = Action.PUBLISH, Action.BIND
    if what == ObjectType.QUEUE.value:
        return [_about(publish, ObjectType.EXCHANGE, key, name=_DEFAULT_EXCHANGE)] if action == publish.value else []
    made = []
    if action in (ALL, publish.value):
        made.append(_about(publish, ObjectType.EXCHANGE, key, name=_TOPIC_EXCHANGE))
    if action in (ALL, Action.CREATE.value) or (action == Action.CONSUME.value and not allows):
        made.append(_about(bind, ObjectType.EXCHANGE, key, name=_TOPIC_EXCHANGE))
    if action in (ALL, Action.DELETE.value):
        made.append(_about(Action.UNBIND, ObjectType.EXCHANGE, key, name=_TOPIC_EXCHANGE))
    if action in (ALL, Action.CONSUME.value) and allows:
        made.append(_about(Action.CREATE, ObjectType.QUEUE, temporary="true"))
        for queue in _SUBSCRIPTIONS:
            made.append(_about(Action.CONSUME, ObjectType.QUEUE, name=queue))
            made.append(_about(bind, ObjectType.EXCHANGE, key, name=_TOPIC_EXCHANGE, queuename=queue))
    return made


def _brought(made: _Made, ways: Mapping[str, str]) -> list[_Made]:
    """What else an allowed operation needs; `ways` are the properties of the binding of a queue."""
    if made.object_type not in (ObjectType.QUEUE, ObjectType.EXCHANGE) or made.action is None:
        return []
    found = [_about(Action.ACCESS, ObjectType.VIRTUAL_HOST)]
    if (made.action, made.object_type) == (Action.CREATE, ObjectType.QUEUE):
        given = {each.name: value for each, value in made.properties}
        queues = [given["name"]] if "name" in given else _SUBSCRIPTIONS if given.get("temporary") == "true" else []
        exchange, key = ways.get("exchangename"), ways.get("routingkey")
        keys = None if key is None else (PROPERTIES["routingkey"], key)
        found += [_about(Action.BIND, ObjectType.EXCHANGE, keys, name=exchange, queuename=each) for each in queues]
    return found


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
    """The file has too many problems: the rest is not read."""


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
        default: the decision without a matching rule.
        expands, is_transitive: whether rules from now on make further ones (version 3).
    """

    def __init__(self, path: str, version: int, find: Resolve) -> None:
        self._path, self._version, self._find = path, version, find
        self.default = Permission.DENY
        self.expands = self.is_transitive = False
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
        self._count_rule()
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
        given = {each.name: value for each, value in properties}
        made = [_Made(action, object_type, tuple(properties))]
        if self.expands and (found := _expanded(tokens[2], what, given, allows=permission.allows)):
            if dead or given.keys() - {"name", "routingkey"}:
                raise _WrongError(f"a rule about {tokens[2]} {what} has only the properties name and routingkey")
            made = found
        elif tokens[2] in OLD_ACTIONS or what in OLD_OBJECTS:
            raise _DeadError(_never_checked(tokens[2], what))
        if self.is_transitive and permission.allows:
            ways: dict[str, str] = {}
            if (action, object_type) == (Action.CREATE, ObjectType.QUEUE):
                ways = {each: given.pop(each) for each in ("routingkey", "exchangename") if each in given}
                given.setdefault("name", given.pop("queuename", ""))
                made = [_about(Action.CREATE, ObjectType.QUEUE, **given)]
            brought = [each for one in made for each in _brought(one, ways)]
            if ways and not any(each.action is Action.BIND for each in brought):
                raise _WrongError("to bind a queue with routingkey and exchangename, the rule must name the queue")
            made += dict.fromkeys(brought)
        for number, each in enumerate(made):
            if number:
                self._count_rule()
            rule = Rule(self._count, statement.line, permission, subject, users, *each, hosts)
            self._check_is_alive(rule, dead)
            if self._mode is not None:
                raise _DeadError(f"Rule ignored: rule {self._mode.number}, {self._mode}, has decided already")
            if rule.is_mode:
                self._mode = rule
            self._rules.append(rule)

    def _count_rule(self) -> None:
        self._count += 1
        if self._count > MAX_RULES:
            raise _WrongError(f"more than {MAX_RULES:,} rules")

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
        """The properties of a rule, the addresses of its host, and the properties that no lookup has."""
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
            raise _DeadError("the quota is ignored: it names no users")
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
