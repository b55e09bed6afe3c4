"""Permissions of users by virtual host, as RabbitMQ has them; and tags, for what belongs to no virtual host.

A user has for each virtual host three regular expressions, which names of queues and exchanges must match, and perhaps
two more for an exchange, which routing keys must match. They are configuration records (`model/configuration`), which
are compiled here when they change; expressions that could take long are refused (`model/patterns`).

    operation (`model/authorization`)     what it needs
    ------------------------------------  -----------------------------------------------------------------------------
    CREATE, DELETE queue or exchange      configure on its name
    ACCESS queue or exchange              configure, write or read on its name
    BIND, UNBIND exchange                 read on the exchange; write on the queue or exchange that is bound to it;
                                          the topic permission to read, for the binding key
    PUBLISH exchange                      write on the exchange; the topic permission to write, for the routing key
    CONSUME, PURGE queue                  read on its name
    MOVE, REDIRECT, REROUTE queue         read on its name, and write on the destination
    CREATE connection, ACCESS virtualhost a permission for the virtual host
    ACCESS query, ACCESS method           one of the tags management, policymaker, monitoring, administrator; the
                                          objects concerned are checked besides
    ACCESS broker                         one of the tags monitoring, administrator
    seeing and closing other users'       to see them one of the tags monitoring, administrator; to close them the tag
    connections, sessions, consumers      administrator
    seeing objects of a virtual host      a permission for it, or one of the tags monitoring, administrator
    BIND an exchange of management        for keys of its publications, which are about the whole broker, also one of
                                          the tags monitoring, administrator
    CREATE link                           one of the tags policymaker, administrator
    everything else                       the tag administrator: UPDATE broker, others' transactions

The default exchange is called amq.default. An empty expression matches nothing. In topic permissions {username} and
{vhost} are replaced, and match literally. A user without a permission for a virtual host may do nothing there; but an
administrator may always connect, and manage the broker by its own exclusive queues: permissions set by mistake can be
corrected.

Decisions about names are remembered, for each user and virtual host at most MAX_REMEMBERED.

Source: RabbitMQ, "Authentication, Authorisation, Access Control" and "Topic Authorisation".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, TypeAlias

from qstore.broker.log.logs import log_of
from qstore.broker.model.authorization import EVERY_KEY, Action, ObjectType
from qstore.broker.model.configuration import Configuration, Record, Values
from qstore.broker.model.errors import InvalidArgumentError, NotFoundError
from qstore.broker.model.patterns import compile_pattern
from qstore.formats.broker_records.topology import DEFAULT_HOST

_LOG: Final = log_of("Security")

PERMISSION: Final = "qstore.permission"
TOPIC_PERMISSION: Final = "qstore.topic-permission"
ADMINISTRATOR: Final = "administrator"
MAX_REMEMBERED: Final = 10_000

_MANAGERS: Final = frozenset(("management", "policymaker", "monitoring", ADMINISTRATOR))
_LINKERS: Final = frozenset(("policymaker", ADMINISTRATOR))
_WATCHERS: Final = frozenset(("monitoring", ADMINISTRATOR))
_DEFAULT_EXCHANGE: Final = "amq.default"
_CONFIGURE, _WRITE, _READ = 1, 2, 4
_ANY: Final = _CONFIGURE | _WRITE | _READ
_ON_NAME: Final = {
    Action.CREATE: _CONFIGURE, Action.DELETE: _CONFIGURE, Action.CONSUME: _READ, Action.PURGE: _READ,
    Action.BIND: _READ, Action.UNBIND: _READ, Action.PUBLISH: _WRITE, Action.MOVE: _READ, Action.REDIRECT: _READ,
    Action.REROUTE: _READ,
}  # fmt: skip
_ON_TARGET: Final = {
    Action.BIND: "queuename", Action.UNBIND: "queuename", Action.MOVE: "queuename", Action.REDIRECT: "queuename",
    Action.REROUTE: "exchangename",
}  # fmt: skip
_WILDCARDS: Final = frozenset("*#")
_MANAGEMENT: Final = ("qmf.", "qpid.management", "$management")
_PUBLICATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "qmf.default.topic": ("agent",), "qpid.management": ("console", "mgmt"),
}  # fmt: skip
"""Exchange of management -> the first words of the keys of what is published there about all of the broker."""

Sight: TypeAlias = Callable[[str, str], bool]
"""Whether a user sees an object, by its virtual host and the user whose client it belongs to; empty for no client's."""


class _Compiled:
    """The permission of one user for one virtual host, and what it says of names."""

    def __init__(self, values: Values) -> None:
        self._patterns = [
            (flag, compile_pattern(name, str(values.get(name, "")), is_empty_nothing=True))
            for flag, name in ((_CONFIGURE, "configure"), (_WRITE, "write"), (_READ, "read"))
        ]
        self._known: dict[str, int] = {}

    def of(self, name: str) -> int:
        """What it permits on a name."""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            known = self._known[name] = sum(flag for flag, pattern in self._patterns if pattern.search(name))
        return known


_Topics = tuple[re.Pattern[str], re.Pattern[str]]


class Permissions:
    """The permissions of one broker.

    Args:
        configuration: stores them.
        tags_of: returns the tags of a user, by the name without the realm.
    """

    def __init__(self, configuration: Configuration, tags_of: Callable[[str], tuple[str, ...]]) -> None:
        self._configuration, self.tags_of = configuration, tags_of
        self._of: dict[tuple[str, ...], _Compiled] = {}  # user and host
        self._topics: dict[tuple[str, ...], _Topics] = {}  # user, host and exchange
        self.load()

    def load(self) -> None:
        """Compile the configuration's records."""
        self._of, self._topics = {}, {}
        for kind in (PERMISSION, TOPIC_PERMISSION):
            self._use([Record(kind, name) for name in self._configuration.of(kind)])

    def _use(self, records: Iterable[Record]) -> None:
        """Compile records that have changed, or forget those that are gone: there may be very many others."""
        for record in records:
            kind, name = record
            values = self._configuration.get(record)
            try:
                if values is None:
                    (self._of if kind == PERMISSION else self._topics).pop(name, None)
                elif kind == PERMISSION:
                    self._of[name] = _Compiled(values)
                else:
                    self._topics[name] = _topics(name, values)
            except InvalidArgumentError as error:  # stored by another version
                what = "permission" if kind == PERMISSION else "topic permission"
                _LOG.error('The %s of user "%s" permits nothing: %s', what, name[0], error)
                if kind == PERMISSION:
                    self._of[name] = _Compiled({})
                else:
                    self._topics[name] = _topics(name, {})

    def host_forgotten(self, host: str) -> None:
        """The permissions for a virtual host were deleted with it."""
        self._of = {name: each for name, each in self._of.items() if name[1] != host}
        self._topics = {name: each for name, each in self._topics.items() if name[1] != host}

    @property
    def is_any_set(self) -> bool:
        """Whether there is a permission of any user."""
        return bool(self._of)

    # ---- changing ----

    async def set(self, user: str, host: str, values: Mapping[str, object], exchange: str | None = None) -> None:
        """Set a permission, or with an exchange a topic permission.

        Raises:
            InvalidArgumentError: an expression is missing, or not valid.
            InternalError: the store cannot store it, and nothing has changed.
        """
        names = ("configure", "write", "read") if exchange is None else ("write", "read")
        if values.keys() != set(names):
            raise InvalidArgumentError(f"a permission has {', '.join(names)}, each a regular expression")
        given = {name: value for name, value in values.items() if isinstance(value, str)}
        for name in names:
            compile_pattern(f"the expression {name}", given.get(name))  # type: ignore[arg-type]
        record = Record(PERMISSION, (user, host))
        if exchange is not None:
            record = Record(TOPIC_PERMISSION, (user, host, exchange))
            _topics(record.name, given)
        await self._configuration.change({record: given}, then=partial(self._use, (record,)))

    async def delete(self, user: str, host: str, exchange: str | None = None) -> None:
        """Delete a permission, or a topic permission.

        Raises:
            NotFoundError: there is none.
            InternalError: the store cannot delete it, and nothing has changed.
        """
        record = Record(PERMISSION, (user, host))
        if exchange is not None:
            record = Record(TOPIC_PERMISSION, (user, host, exchange))
        if self._configuration.get(record) is None:
            raise NotFoundError(f'user "{user}" has no such permission for virtual host "{host}"')
        await self._configuration.change({}, [record], then=partial(self._use, (record,)))

    async def forget(self, user: str) -> None:
        """Delete all permissions of a user, in one step."""
        kinds = PERMISSION, TOPIC_PERMISSION
        gone = [Record(kind, name) for kind in kinds for name in self._configuration.of(kind) if name[0] == user]
        if gone:
            await self._configuration.change({}, gone, then=partial(self._use, gone))

    # ---- deciding ----

    def allows(
        self,
        user: str,
        host: str,
        action: Action,
        object_type: ObjectType,
        name: str,
        asked: Mapping[str, str],
        *,
        is_owner: Callable[[str], bool] = lambda _queue: False,
    ) -> bool:
        """Whether a user may do something.

        Args:
            user: the name, without the realm.
            host: the virtual host.
            action: the operation.
            object_type: the kind of object.
            name: its name.
            asked: further properties (`model/authorization`).
            is_owner: whether a queue is exclusive to the caller.
        """
        if object_type in (ObjectType.CONNECTION, ObjectType.VIRTUAL_HOST):
            return not user or (user, host) in self._of or ADMINISTRATOR in self.tags_of(user)
        if object_type in (ObjectType.QUEUE, ObjectType.EXCHANGE):
            if self._allows_on(user, host, action, object_type, name, asked):
                return True
            return ADMINISTRATOR in self.tags_of(user) and _manages(action, object_type, name, asked, is_owner)
        tags = _MANAGERS if object_type in (ObjectType.QUERY, ObjectType.METHOD) else frozenset((ADMINISTRATOR,))
        if (action, object_type) == (Action.ACCESS, ObjectType.BROKER):
            tags = _WATCHERS
        elif object_type is ObjectType.LINK:
            tags = _LINKERS
        return not tags.isdisjoint(self.tags_of(user))

    def _allows_on(
        self, user: str, host: str, action: Action, object_type: ObjectType, name: str, asked: Mapping[str, str]
    ) -> bool:
        own = self._of.get((user, host))
        if own is None:
            return False
        if object_type is ObjectType.EXCHANGE:
            name = name or _DEFAULT_EXCHANGE
        wanted = _ON_NAME.get(action)
        if wanted is None:
            return bool(own.of(name) & _ANY)
        if not own.of(name) & wanted:
            return False
        target = _ON_TARGET.get(action)
        if target is not None:
            to = asked.get(target, "") or (_DEFAULT_EXCHANGE if target == "exchangename" else "")
            if to and not own.of(to) & _WRITE:
                return False
        if action is Action.BIND and object_type is ObjectType.EXCHANGE:
            if _hears_publications(host, name, asked) and _WATCHERS.isdisjoint(self.tags_of(user)):
                return False
            topics = self._topics.get((user, host, name))
            return topics is None or topics[1].search(asked.get("routingkey", "")) is not None
        return True

    def has(self, user: str, host: str) -> bool:
        """Whether a user has any permission for a virtual host."""
        return (user, host) in self._of

    def sight(self, user: str) -> Sight | None:
        """What a user sees of the broker's objects; None for everything."""
        if not _WATCHERS.isdisjoint(self.tags_of(user)):
            return None
        hosts = frozenset(host for of, host in self._of if of == user)
        return lambda host, owner: host in hosts and (not owner or name_of(owner) == user)

    def may_close(self, user: str, owner: str) -> bool:
        """Whether a user may close the connections, sessions and consumers of another one, or its own."""
        return name_of(owner) == user or ADMINISTRATOR in self.tags_of(user)

    def allows_publishing(self, user: str, host: str, exchange: str, key: str) -> bool:
        """Whether a user may publish to an exchange with a routing key."""
        exchange = exchange or _DEFAULT_EXCHANGE
        own = self._of.get((user, host))
        if own is None or not own.of(exchange) & _WRITE:
            return exchange.startswith(_MANAGEMENT) and ADMINISTRATOR in self.tags_of(user)
        topics = self._topics.get((user, host, exchange))
        return topics is None or topics[0].search(key) is not None

    def allows_forwarding(self, user: str, host: str, exchange: str, pattern: str) -> bool:
        """Whether a user may publish to an exchange with every routing key that a topic pattern matches."""
        if pattern != EVERY_KEY and _WILDCARDS.isdisjoint(pattern.split(".")):
            return self.allows_publishing(user, host, exchange, pattern)
        own = self._of.get((user, host))
        exchange = exchange or _DEFAULT_EXCHANGE
        if own is None or not own.of(exchange) & _WRITE:
            return False
        topics = self._topics.get((user, host, exchange))
        return topics is None or topics[0].pattern in ("", ".*", "^.*", "^.*$", "^")


def _manages(
    action: Action, object_type: ObjectType, name: str, asked: Mapping[str, str], is_owner: Callable[[str], bool]
) -> bool:
    """Whether an operation is what a console needs: an exclusive queue of its own, bound to exchanges of management."""
    if object_type is ObjectType.QUEUE:
        return is_owner(name) or (action is Action.CREATE and asked.get("exclusive") == "true")
    is_management = name.startswith(_MANAGEMENT) or name in ("amq.direct", "amq.topic")
    if action in (Action.BIND, Action.UNBIND):
        return is_management and is_owner(asked.get("queuename", ""))
    return action is Action.ACCESS and is_management


def _hears_publications(host: str, exchange: str, asked: Mapping[str, str]) -> bool:
    """Whether a binding may match what management publishes about all of the broker."""
    words = _PUBLICATIONS.get(exchange) if host == DEFAULT_HOST else None
    if words is None:
        return False
    return asked.get("routingkey", "").partition(".")[0] in (*words, *_WILDCARDS)


def _topics(name: tuple[str, ...], values: Values) -> _Topics:
    user, host = name[:2]

    def compiled(which: str) -> re.Pattern[str]:
        text = str(values.get(which, ""))
        text = text.replace("{username}", re.escape(user)).replace("{vhost}", re.escape(host))
        return compile_pattern(f"the expression {which}", text, is_empty_nothing=True)

    return compiled("write"), compiled("read")


def name_of(user: str) -> str:
    """The name of a user without the realm."""
    return user.rpartition("@")[0] or user
