"""The access control of one broker: the rules or permissions in force, quotas, and what they have refused.

Which of them decide, by the option `--access`:

    acl            the rules of the ACL file
    permissions    the permissions of users (`security/permissions`), whether or not there are any
    auto           the rules if there is a file; without one the permissions, once one has been set

Without an ACL file every operation is allowed; the limits of the options hold all the same. Who has no quota of the
file has that for `all`, then that of the option; if the file has quotas, but none for `all`, and the option is not
given either, the others have none at all.

Log lines and events: what `allow-log` and `deny-log` rules have decided is logged at level notice, other denials at
level info; each line ends with the rule and its line in the file.

Sources: Qpid C++ Broker Book, 1.5.2 and 1.5.3; the schema of qpidd's ACL module (events).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from qstore.broker.log.logs import INFO, NOTICE, log_of
from qstore.broker.model.authorization import ALLOW_ALL, EVERY_KEY, Action, ObjectType, Publishing
from qstore.broker.model.broker import Broker
from qstore.broker.model.caller import BROKER, Caller, in_host
from qstore.broker.model.errors import InvalidArgumentError, PreconditionFailedError, UnauthorizedError
from qstore.broker.model.events import Allow, Deny, FileLoaded, FileLoadFailed
from qstore.broker.model.policies import DESTINATIONS, Policy
from qstore.broker.model.topology.checks import is_owned_by
from qstore.broker.security.acl.engine import ANONYMOUS, Decision, Engine
from qstore.broker.security.acl.rules import AclFileError, Counted, Problem, RuleSet
from qstore.broker.security.acl.tables import EVERY, asked_values
from qstore.broker.security.permissions import ADMINISTRATOR, Permissions, Sight, name_of
from qstore.broker.security.users.user_file import UserFileError, Users
from qstore.broker.settings import AUTO, PERMISSIONS
from qstore.formats.values import typed_map

_LOG: Final = log_of("Security")


class AccessControl:
    """The rules in force: an `Authorizer`, and the limits of users (`UserLimits`).

    Args:
        broker: the model.
        rules: the rules of the file; None without one.

    Attributes:
        broker: as above.
        engine: decides by the rules; None without a file.
        permissions: the permissions of users, whether or not they are in force.
        users: the user file; None if there is none, or it is not used.
        loaded_at: when the rules were read, by the clock.
        denied: how many requests were denied.
    """

    def __init__(self, broker: Broker, rules: RuleSet | None) -> None:
        self.broker = broker
        self._settings, self._emit, self._clock = broker.settings, broker.events.emit, broker.clock
        self._authorization = broker.authorization
        self.engine: Engine | None = None
        self.loaded_at = 0.0
        self.denied = 0
        self.users = Users(self._settings.user_file) if self._settings.user_file and self._settings.auth else None
        self.permissions = Permissions(broker.configuration, self._tags_of)
        broker.virtual_hosts.forgotten.append(self._host_forgotten)
        self._limits: dict[Counted, tuple[dict[str, int], int | None]] = {}
        self._lock = asyncio.Lock()
        self._reload: asyncio.Task[None] | None = None
        if rules is not None:
            self._use(rules)
        else:
            self._set_limits(RuleSet(2))

    def _tags_of(self, user: str) -> tuple[str, ...]:
        if self.users is None:
            return ()
        try:
            return self.users.tags(user)
        except UserFileError as error:
            _LOG.error("The tags of user %s are not known: %s", user, error)
            return ()

    def _host_forgotten(self, host: str) -> None:
        self.permissions.host_forgotten(host)
        self.permissions_changed()

    # ---- what is in force ----

    @property
    def has_rules(self) -> bool:
        """Whether the rules of a file decide."""
        return self.engine is not None and self._settings.access != PERMISSIONS

    @property
    def has_permissions(self) -> bool:
        """Whether the permissions of users decide."""
        if self._settings.access == PERMISSIONS:
            return True
        return self._settings.access == AUTO and self.engine is None and self.permissions.is_any_set

    def permissions_changed(self) -> None:
        """Use the permissions as they are now, also on open connections."""
        is_on = self.has_rules or self.has_permissions
        self._authorization.authorizer = self if is_on else ALLOW_ALL
        self._authorization.changed()

    def recovered(self) -> None:
        """Use the permissions of the store."""
        self.permissions.load()
        self.permissions_changed()

    def check_administration(self, caller: Caller, tag: str, *, is_counted: bool = True) -> None:
        """Check that a caller may change users and permissions, or what the tag is for.

        With rules in force, that is who may update the broker. Otherwise a user with the tag, or an administrator. If
        no user has that tag and no permissions are in force, policies can be changed by everyone, users and
        permissions by everyone who has logged in with a password.

        Args:
            caller: who asks.
            tag: the least tag.
            is_counted: whether a refusal is counted and logged.

        Raises:
            UnauthorizedError: the caller may not.
        """
        if caller is BROKER:
            return
        if self.has_rules:
            self._authorization.check(caller, Action.UPDATE, ObjectType.BROKER, "")
            return
        user = name_of(caller.user)
        if {tag, ADMINISTRATOR}.isdisjoint(self._tags_of(user)):
            try:
                is_open = not self.has_permissions and (self.users is None or not self.users.has_administrator())
            except UserFileError:
                is_open = False
            if not is_open or (tag == ADMINISTRATOR and user == ANONYMOUS):
                if is_counted:
                    self.denied += 1
                    _LOG.info("%s from %s is refused: it needs the tag %s", caller.user, caller.remote_host, tag)
                raise UnauthorizedError(f"{caller.user} is not allowed to do this: it needs the tag {tag}")

    def check_policy(self, caller: Caller, policy: Policy) -> Policy:
        """Check that a caller may publish where a policy of his sends messages, with every routing key.

        The key may come from the queue or the message. The user must also be the one as whom the policy works
        (`Policies.checks`). Without rules, an administrator may do all this: he can permit himself everything.

        Returns:
            The policy, with the user.

        Raises:
            UnauthorizedError: the caller may not.
        """
        if not self.has_rules and ADMINISTRATOR in self._tags_of(name_of(caller.user)):
            return policy
        caller = in_host(caller, policy.host)
        for key in DESTINATIONS:
            exchange = policy.definition.get(key)
            if isinstance(exchange, str):
                purpose = f'{key} of policy "{policy.name}"'
                self._authorization.check_forwarding(in_host(caller, policy.host), exchange, EVERY_KEY, purpose)
        if self.has_rules or self.has_permissions:
            policy = policy._replace(user=caller.user)
            try:
                for check in self.broker.policies.checks:
                    check(policy)
            except UnauthorizedError:
                self.denied += 1
                raise
        return policy

    def sight(self, caller: Caller) -> Sight | None:
        """What a caller sees of the broker's objects; None for everything. Rules know no objects of their own."""
        if caller is BROKER or self.has_rules or not self.has_permissions:
            return None
        return self.permissions.sight(name_of(caller.user))

    def check_closing(self, caller: Caller, owner: str) -> None:
        """Check that a caller may close the connections, sessions and consumers of a user.

        Raises:
            UnauthorizedError: by permissions, only administrators may close those of other users.
        """
        if caller is BROKER or self.has_rules or not self.has_permissions:
            return
        if not self.permissions.may_close(name_of(caller.user), owner):
            self.denied += 1
            raise UnauthorizedError(
                f"{caller.user} is not allowed to close what clients of {owner} have: it needs the tag {ADMINISTRATOR}"
            )

    def check_policies_of(self, caller: Caller, host: str, *, is_counted: bool = True) -> None:
        """Check that a caller who may change policies and parameters may change those of a virtual host.

        A refusal is counted if `is_counted`.

        Raises:
            UnauthorizedError: without rules, the caller has no permission for it, and is no administrator.
        """
        if self.has_rules or not self.has_permissions or caller is BROKER:
            return
        user = name_of(caller.user)
        if ADMINISTRATOR not in self._tags_of(user) and not self.permissions.has(user, host):
            self.denied += is_counted
            raise UnauthorizedError(f'{caller.user} has no permission for virtual host "{host}"')

    # ---- reading the file ----

    async def reload(self, user: str) -> None:
        """Read the file again, and use its rules from now on; several requests wait for each other.

        It is read in a thread, since names of hosts may take long to resolve.

        Args:
            user: the user whose request it is; empty for a signal.

        Raises:
            AclFileError: the file cannot be used, and the rules remain.
        """
        path = self._settings.acl_file
        try:
            if path is None:
                raise AclFileError("ACL", [Problem(0, "the broker has no ACL file; see --acl-file")])
            async with self._lock:
                settings = self._settings
                rules = await asyncio.to_thread(read_rules, path, settings.realm, settings.acl_validation)
                self._use(rules)
        except AclFileError as error:
            _LOG.error("ACL file not loaded, the rules remain as they are: %s", error)
            self._emit(FileLoadFailed(user, str(error)))
            raise
        self._authorization.changed()
        self._emit(FileLoaded(user))

    def start_reload(self) -> None:
        """Read the file again, on a signal. Errors are logged."""

        async def reload() -> None:
            with contextlib.suppress(AclFileError):
                await self.reload("")

        self._reload = asyncio.get_running_loop().create_task(reload())

    def _use(self, rules: RuleSet) -> None:
        self.engine = Engine(rules)
        self.loaded_at = self._clock()
        self._set_limits(rules)
        log_rules(self._settings.acl_file or "", rules)

    def _set_limits(self, rules: RuleSet) -> None:
        given: dict[Counted, int] = {
            "connections": self._settings.connections_per_user,
            "queues": self._settings.queues_per_user,
        }
        for counted, limit in given.items():
            named, others = rules.limits(counted)
            if others is None and limit:
                others = limit
            self._limits[counted] = named, others

    # ---- Authorizer ----

    @property
    def checks_publish(self) -> bool:
        """Whether a rule is about publishing."""
        if self.has_rules:
            assert self.engine is not None
            return self.engine.checks_publish
        return self.has_permissions

    def allows(
        self, caller: Caller, action: Action, object_type: ObjectType, name: str, properties: Mapping[str, object]
    ) -> bool:
        """Whether the caller may perform the operation."""
        asked = {each: as_text(value) for each, value in properties.items()}
        if not self.has_rules:
            if not self.has_permissions:
                return True

            def is_owner(queue: str) -> bool:
                own = self.broker.hosts.get(caller.vhost)
                found = None if own is None else own.queues.get(queue)
                return found is not None and is_owned_by(found, caller)

            user, host = name_of(caller.user), caller.vhost
            allows = self.permissions.allows(user, host, action, object_type, name, asked, is_owner=is_owner)
            return allows or self._refuse(caller, action, object_type, name, asked)
        assert self.engine is not None
        decision = self.engine.decide(caller.user, action, object_type, name, asked or None)
        self._note(decision, caller, action, object_type, name, asked)
        return decision.allows

    def publishing(self, caller: Caller, exchange: str, routing_key: str) -> Publishing:
        """Whether the caller may publish to an exchange with a routing key."""
        asked = {"routingkey": routing_key}
        if not self.has_rules:
            if not self.has_permissions:
                return Publishing.ALWAYS
            user, host = name_of(caller.user), caller.vhost
            if self.permissions.allows_publishing(user, host, exchange, routing_key):
                return Publishing.ALWAYS
            self._refuse(caller, Action.PUBLISH, ObjectType.EXCHANGE, exchange, asked)
            return Publishing.REFUSED
        assert self.engine is not None
        decision = self.engine.decide_publish(caller.user, exchange, routing_key)
        if decision.allows and not decision.permission.logs:
            return Publishing.ALWAYS
        self._note(decision, caller, Action.PUBLISH, ObjectType.EXCHANGE, exchange, asked)
        return Publishing.ONCE if decision.allows else Publishing.REFUSED

    def allows_forwarding(self, caller: Caller, exchange: str, pattern: str) -> bool:
        """Whether the caller may publish to an exchange with every routing key that a topic pattern matches."""
        asked = {EVERY: pattern}
        if not self.has_rules:
            if not self.has_permissions:
                return True
            user, host = name_of(caller.user), caller.vhost
            allows = self.permissions.allows_forwarding(user, host, exchange, pattern)
            return allows or self._refuse(caller, Action.PUBLISH, ObjectType.EXCHANGE, exchange, asked)
        assert self.engine is not None
        decision = self.engine.decide_forwarding(caller.user, exchange, pattern)
        self._note(decision, caller, Action.PUBLISH, ObjectType.EXCHANGE, exchange, asked)
        return decision.allows

    def _refuse(
        self, caller: Caller, action: Action, object_type: ObjectType, name: str, asked: Mapping[str, str]
    ) -> bool:
        """Count and log a denial by permissions. Always False."""
        self.denied += 1
        if _LOG.is_on(INFO):
            given = "".join(f" {each}={value}" for each, value in asked.items())
            _LOG.info(
                "Permissions deny id:%s action:%s ObjectType:%s Name:%s%s from %s", caller.user, action.value,
                object_type.value, name, given, caller.remote_host,
            )  # fmt: skip
        return False

    def _note(
        self,
        decision: Decision,
        caller: Caller,
        action: Action,
        object_type: ObjectType,
        name: str,
        asked: Mapping[str, str],
    ) -> None:
        """Count, log and emit a decision, as its rule requires."""
        allows, logs = decision.allows, decision.permission.logs
        if allows and not logs:
            return
        if not allows:
            self.denied += 1
        level = NOTICE if logs else INFO
        if _LOG.is_on(level):
            given = "".join(f" {each}={value}" for each, value in asked.items())
            _LOG.log(
                level, "ACL %s id:%s action:%s ObjectType:%s Name:%s%s from %s [%s]",
                "Allow" if allows else "Deny", caller.user, action.value, object_type.value, name, given,
                caller.remote_host, decision.why,
            )  # fmt: skip
        if logs:
            make = Allow if allows else Deny
            self._emit(make(caller.user, action.value, object_type.value, name, typed_map(asked)))

    # ---- UserLimits ----

    def limit(self, counted: Counted, user: str) -> int | None:
        """How many connections or queues a user may have; None if there is no limit."""
        named, others = self._limits[counted]
        if not named and others is None:
            return None
        found = named.get(user)
        if found is None and user.startswith(f"{ANONYMOUS}@"):
            found = named.get(ANONYMOUS)
        return (others or 0) if found is None else found


def control_access(broker: Broker, rules: RuleSet | None) -> AccessControl:
    """Make a broker apply an ACL file's rules, if it has one, and the limits of users."""
    control = AccessControl(broker, rules)
    broker.quotas.limits = control
    if control.has_rules or control.has_permissions:
        broker.authorization.authorizer = control
    return control


def read_rules(path: str, realm: str, validation: str = "warn") -> RuleSet:
    """Read an ACL file, and warn of insecure permissions of it.

    Args:
        path: the file.
        realm: that of all users.
        validation: the treatment of rules that have no effect: `none`, `warn` or `fatal`.

    Raises:
        AclFileError: the file cannot be used.
    """
    from qstore.broker.security.acl.reader import read_file  # 1.6 ms of a start without rules (tests.bench.bench_start)

    rules = read_file(path, realm)
    if validation == "fatal" and rules.warnings:
        raise AclFileError(path, [*rules.warnings, Problem(0, "this is an error by --strict-acl-validation fatal")])
    if validation == "none":
        rules = replace(rules, warnings=())
    mode = Path(path).stat().st_mode
    if mode & 0o022:
        _LOG.warning("%s: users other than its owner can change the ACL file (mode %o)", path, mode & 0o777)
    return rules


def log_rules(path: str, rules: RuleSet) -> None:
    """Log that a file was read, its rules without effect, and at level debug all rules."""
    _LOG.notice('ACL: Read file "%s": %d rules, %d groups', path, len(rules.rules), len(rules.groups))
    for problem in rules.warnings:
        _LOG.warning("%s: %s", path, problem)
    for name, users in rules.groups.items():
        _LOG.debug('ACL: group "%s": %d users', name, len(users))
    for rule in rules.rules:
        _LOG.debug("ACL: rule %d, line %d: %s; may match lookups %s", rule.number, rule.line, rule, rule.lookups)
    for quota in rules.quotas:
        _LOG.debug("ACL: line %d: quota %s %d", quota.line, quota.counted, quota.limit)
    if any(each.is_about_publishing for each in rules.rules):
        _LOG.debug("ACL: Transfer ACL is Enabled! Each message is checked")


def as_text(value: object) -> str:
    """A value as rules have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# ---- for management ----

_ACTIONS: Final = {each.value: each for each in Action}
_OBJECTS: Final = {each.value: each for each in ObjectType}


def control_of(broker: Broker) -> AccessControl | None:
    """The access control of a broker; None if it has none."""
    limits = broker.quotas.limits
    return limits if isinstance(limits, AccessControl) else None


async def reload_file(control: AccessControl, user: str) -> None:
    """Read the file again.

    Raises:
        InvalidArgumentError: it cannot be used, and the rules remain.
    """
    try:
        await control.reload(user)
    except AclFileError as error:
        raise InvalidArgumentError(f"ACL file not loaded, the rules remain as they are: {error}") from None


def look_up(
    control: AccessControl, user: str, action: str, object_type: str, name: str, values: Mapping[str, Any]
) -> str:
    """The decision on a lookup: the permission.

    Args:
        control: the access control.
        user: the user, with the realm.
        action: the name of the action.
        object_type: the name of the object.
        name: the object's name.
        values: the values of the lookup, under their names in rules or in lookups.

    Raises:
        InvalidArgumentError: there is no such action, object or property.
        PreconditionFailedError: the broker has no rules.
    """
    if action not in _ACTIONS:
        raise InvalidArgumentError(f'Unknown ACL action "{action[:64]}"')
    if object_type not in _OBJECTS:
        raise InvalidArgumentError(f'Unknown ACL object "{object_type[:64]}"')
    try:
        asked = asked_values({name: as_text(value) for name, value in values.items()})
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None
    asked_for = _ACTIONS[action], _OBJECTS[object_type]
    return _engine(control).decide(user, *asked_for, name, asked).permission.value


def look_up_publishing(control: AccessControl, user: str, exchange: str, routing_key: str) -> str:
    """The decision on a message: the permission. Raises PreconditionFailedError: there are no rules."""
    return _engine(control).decide_publish(user, exchange, routing_key).permission.value


def _engine(control: AccessControl) -> Engine:
    if control.engine is None:
        raise PreconditionFailedError("the broker has no ACL file; see --acl-file")
    return control.engine
