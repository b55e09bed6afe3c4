"""Policies, users, permissions and parameters: what is set, and what policies give each queue and exchange.

They are created and deleted by the broker's methods `create` and `delete`, with these properties and options:

    type              name      properties of create                                       options of delete
    ----------------  --------  ---------------------------------------------------------  -----------------
    policy            its name  vhost, pattern, definition (a map), priority, apply-to     vhost
    operator-policy   its name  likewise                                                   vhost
    user              the user  tags (text with commas, or a list); password, or
                                password_hash (RabbitMQ's) and hashing_algorithm
    permission        the user  vhost, configure, write, read                              vhost
    topic-permission  the user  vhost, exchange, write, read                               vhost, exchange
    vhost             its name  description, tags (text)
    vhost-limit       its name  vhost, value (a negative one ends it)                      vhost
    parameter         its name  vhost, component, value (JSON, as text)                    vhost, component
    global-parameter  its name  value (likewise)

`vhost` is "/" by default. What exists is changed. A user without password and hash keeps its password. Passwords are
in no object; `exportPassword` tells an administrator the hash of one, and the log says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from orjson import JSONDecodeError, dumps, loads

from qstore.broker.management.request import Arguments
from qstore.broker.management.schema import ClassName, ManagedClass, arg, method, prop
from qstore.broker.model.errors import InvalidArgumentError, ModelError, NotImplementedByBrokerError
from qstore.broker.model.parameters import MAX_VALUE
from qstore.broker.model.policies import OPERATOR_POLICY, POLICY, Policy, policy_of
from qstore.broker.security.acl.control import AccessControl, control_of
from qstore.broker.security.administration import POLICYMAKER, Administration
from qstore.broker.security.permissions import ADMINISTRATOR, PERMISSION, TOPIC_PERMISSION, name_of
from qstore.broker.security.users.user_file import UserFileError
from qstore.formats.broker_records.topology import DEFAULT_HOST
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import EMPTY_MAP, TypedMap, typed_map
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.schema import Results
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.configuration import Values
    from qstore.broker.model.parameters import Parameter

_PACKAGE: Final = "qstore"
TYPES: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
    "policy": (frozenset(("vhost", "pattern", "definition", "priority", "apply-to")), frozenset(("vhost",))),
    "operator-policy": (frozenset(("vhost", "pattern", "definition", "priority", "apply-to")), frozenset(("vhost",))),
    "user": (frozenset(("tags", "password", "password_hash", "hashing_algorithm")), frozenset()),
    "permission": (frozenset(("vhost", "configure", "write", "read")), frozenset(("vhost",))),
    "topic-permission": (frozenset(("vhost", "exchange", "write", "read")), frozenset(("vhost", "exchange"))),
    "vhost": (frozenset(("description", "tags")), frozenset()),
    "vhost-limit": (frozenset(("vhost", "value")), frozenset(("vhost",))),
    "parameter": (frozenset(("vhost", "component", "value")), frozenset(("vhost", "component"))),
    "global-parameter": (frozenset(("value",)), frozenset()),
}
"""Type -> the properties of create, and the options of delete."""


async def create_access(managed: ManagedBroker, kind: str, name: str, given: TypedMap, caller: Caller) -> None:
    """Create or change an object of one of `TYPES`."""
    values, administration = Arguments(_plain(given)), _administration(managed)
    _check_known(kind, values, TYPES[kind][0])
    host = values.text("vhost") or DEFAULT_HOST
    if kind == "vhost":
        await administration.put_host(name, {each: values.text(each) for each in values}, caller)
    elif kind == "vhost-limit":
        await administration.limit_host(host, name, _limit(values), caller)
    elif kind == "parameter":
        await administration.set_parameter(host, values.text("component"), name, _json(values), caller)
    elif kind == "global-parameter":
        await administration.set_global_parameter(name, _json(values), caller)
    elif kind in ("policy", "operator-policy"):
        await administration.set_policy(policy_of(host, name, values), caller, f"qstore.{kind}")
    elif kind == "user":
        await administration.put_user(
            name,
            caller,
            tags=_tags(values) if "tags" in values else None,
            password=values.text("password"),
            password_hash=values.text("password_hash") if "password_hash" in values else None,
            algorithm=values.text("hashing_algorithm") or "rabbit_password_hashing_sha256",
        )
    else:
        exchange = _exchange(values) if kind == "topic-permission" else None
        patterns = {each: value for each, value in values.items() if each not in ("vhost", "exchange")}
        await administration.set_permission(name, host, patterns, caller, exchange)


async def delete_access(managed: ManagedBroker, kind: str, name: str, options: TypedMap, caller: Caller) -> None:
    """Delete an object of one of `TYPES`."""
    values, administration = Arguments(_plain(options)), _administration(managed)
    _check_known(kind, values, TYPES[kind][1])
    host = values.text("vhost") or DEFAULT_HOST
    if kind == "vhost":
        await administration.delete_host(name, caller)
    elif kind == "vhost-limit":
        await administration.limit_host(host, name, None, caller)
    elif kind == "parameter":
        await administration.delete_parameter(host, values.text("component"), name, caller)
    elif kind == "global-parameter":
        await administration.delete_global_parameter(name, caller)
    elif kind in ("policy", "operator-policy"):
        await administration.delete_policy(host, name, caller, f"qstore.{kind}")
    elif kind == "user":
        await administration.delete_user(name, caller)
    else:
        exchange = _exchange(values) if kind == "topic-permission" else None
        await administration.delete_permission(name, host, caller, exchange)


def _limit(values: Arguments) -> int:
    value = values.get("value")
    if type(value) is not int:
        raise InvalidArgumentError("a limit of a virtual host must be a whole number")
    return value


def _json(values: Arguments) -> object:
    """The value of a parameter, which comes as JSON: QMF cannot express all of it."""
    text = values.text("value")
    if len(text) > MAX_VALUE:
        raise InvalidArgumentError(f"the value of a parameter has more than {MAX_VALUE:,} bytes")
    try:
        return loads(text)
    except JSONDecodeError as error:
        raise InvalidArgumentError(f"the value of a parameter is not JSON: {error}") from None


def _administration(managed: ManagedBroker) -> Administration:
    control = control_of(managed.broker)
    if control is None:
        raise NotImplementedByBrokerError("this broker has no access control")
    if managed.administration is None:
        managed.administration = Administration(control)
    return managed.administration


def _plain(given: TypedMap) -> dict[str, Any]:
    """The values of a map, with maps and lists in it as such."""
    return {name: _value(typed.value) for name, typed in given.entries}


def _value(value: Any) -> Any:
    if isinstance(value, TypedMap):
        return _plain(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return [_value(getattr(each, "value", each)) for each in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _check_known(kind: str, values: Mapping[str, Any], known: frozenset[str]) -> None:
    unknown = sorted(values.keys() - known)
    if unknown:
        raise InvalidArgumentError(f"{kind}: unknown property {printable(unknown[0])}")


def _exchange(values: Arguments) -> str:
    exchange = values.text("exchange")
    if not exchange:
        raise InvalidArgumentError("a topic permission is for an exchange: give its name")
    return exchange


def _tags(values: Mapping[str, Any]) -> list[str]:
    given = values["tags"]
    found = given.split(",") if isinstance(given, str) else given
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidArgumentError("the tags of a user must be a list, or a string separated by commas")
    return [each.strip() for each in found if each.strip()]


# ---- what consoles see ----


class _Ranked(NamedTuple):
    kind: str
    policy: Policy


class _User(NamedTuple):
    """A user, as far as consoles see it; `mechanisms` are those of SASL."""

    name: str
    tags: str
    mechanisms: str


class _Granted(NamedTuple):
    name: tuple[str, ...]  # user, virtual host, and perhaps exchange
    values: Values


class _Global(NamedTuple):
    name: str
    value: Any


class _Effective(NamedTuple):
    kind: str
    host: str
    target: Any  # a queue or exchange


def _policies(managed: ManagedBroker) -> Iterator[tuple[str, _Ranked]]:
    for kind in (POLICY, OPERATOR_POLICY):
        for policy in managed.broker.policies.all(kind):
            short = kind.removeprefix("qstore.")
            yield f"{short},{policy.host},{policy.name}", _Ranked(short, policy)


def _users(managed: ManagedBroker) -> Iterator[tuple[str, _User]]:
    control = control_of(managed.broker)
    users = None if control is None else control.users
    if users is None:
        return
    try:
        for name in users.names():
            found = users.find(name)
            if found is not None:
                yield name, _User(name, ",".join(found.tags), ",".join(found.mechanisms()))
    except UserFileError:  # logged at each login
        return


def _granted(kind: str) -> Callable[[ManagedBroker], Iterable[tuple[str, _Granted]]]:
    def objects(managed: ManagedBroker) -> Iterable[tuple[str, _Granted]]:
        for name, values in managed.broker.configuration.of(kind).items():
            yield ",".join(name), _Granted(name, values)

    return objects


def _effective(managed: ManagedBroker) -> Iterator[tuple[str, _Effective]]:
    for host in list(managed.broker.hosts.values()):
        for kind, targets in (("queue", list(host.queues.values())), ("exchange", list(host.exchanges.values()))):
            for target in targets:
                if target.policy.policy or target.policy.operator_policy:
                    yield f"{kind},{host.name},{target.name}", _Effective(kind, host.name, target)


def _parameters(managed: ManagedBroker) -> Iterator[tuple[str, Parameter]]:
    for each in managed.broker.parameters.all():
        yield dumps(each[:3]).decode(), each


def _global_parameters(managed: ManagedBroker) -> Iterator[tuple[str, _Global]]:
    for name, value in managed.broker.parameters.all_global():
        yield name, _Global(name, value)


def _parameters_seen_by(managed: ManagedBroker, caller: Caller) -> Callable[[Any], bool]:
    """Parameters may have passwords: they are seen by those who may set them."""
    control = control_of(managed.broker)
    if control is None:
        return lambda _target: True
    try:
        control.check_administration(caller, POLICYMAKER, is_counted=False)
    except ModelError:
        return lambda _target: False

    @cache
    def sees(host: str) -> bool:
        try:
            control.check_policies_of(caller, host, is_counted=False)
        except ModelError:
            return False
        return True

    return lambda target: sees(target.host)


def _seen_by(managed: ManagedBroker, caller: Caller) -> Callable[[Any], bool]:
    """Users and permissions are seen by administrators, and each user's own by that user."""
    control: AccessControl | None = control_of(managed.broker)
    try:
        if control is not None:
            control.check_administration(caller, ADMINISTRATOR, is_counted=False)
    except ModelError:
        user = name_of(caller.user)
        return lambda target: bool((target.name if isinstance(target, _User) else target.name[0]) == user)
    return lambda _target: True


def _definition(definition: Mapping[str, str | int]) -> TypedMap:
    return typed_map(definition) if definition else EMPTY_MAP


async def export_password(managed: ManagedBroker, user: _User, _arguments: Arguments, caller: Caller) -> Results:
    """The hash of a user's password; it is logged who has asked for it."""
    algorithm, text = await _administration(managed).password_hash(user.name, caller)
    return {"algorithm": algorithm, "hash": text}


# fmt: off
POLICY_CLASS: Final = ManagedClass(
    ClassName(_PACKAGE, "policy"),
    properties=(
        prop("kind", "sstr", "RC index", lambda each: each.kind, "policy or operator-policy"),
        prop("vhost", "sstr", "RC index", lambda each: each.policy.host, "Virtual host"),
        prop("name", "sstr", "RC index", lambda each: each.policy.name),
        prop("pattern", "lstr", "RO", lambda each: each.policy.pattern, "Regular expression for names"),
        prop("applyTo", "sstr", "RO", lambda each: each.policy.apply_to,
             "queues, classic_queues, quorum_queues, streams, exchanges or all"),
        prop("priority", "int64", "RO", lambda each: each.policy.priority,
             "The matching policy with the highest priority applies"),
        prop("definition", "map", "RO", lambda each: _definition(each.policy.definition), "Key and value"),
    ),
    objects=_policies, belongs=lambda each: (each.policy.host, ""),
)
USER_CLASS: Final = ManagedClass(
    ClassName(_PACKAGE, "user"),
    properties=(
        prop("name", "sstr", "RC index", lambda each: each.name),
        prop("tags", "lstr", "RO", lambda each: each.tags, "What the user may administer, separated by commas"),
        prop("mechanisms", "lstr", "RO", lambda each: each.mechanisms, "SASL mechanisms to log in with"),
    ),
    methods=(
        method("exportPassword", "The hash of the password, for definitions of another broker", (
            arg("algorithm", "lstr", "O", "RabbitMQ's name of the algorithm, or qstore_verifiers"),
            arg("hash", "lstr", "O", "The hash, in base64; empty if the user has no password"),
        ), export_password),
    ),
    objects=_users, seen_by=_seen_by,
)
PERMISSION_CLASS: Final = ManagedClass(
    ClassName(_PACKAGE, "permission"),
    properties=(
        prop("user", "sstr", "RC index", lambda each: each.name[0]),
        prop("vhost", "sstr", "RC index", lambda each: each.name[1], "Virtual host"),
        prop("configure", "lstr", "RO", lambda each: str(each.values.get("configure", "")), "Regular expression"),
        prop("write", "lstr", "RO", lambda each: str(each.values.get("write", "")), "Regular expression"),
        prop("read", "lstr", "RO", lambda each: str(each.values.get("read", "")), "Regular expression"),
    ),
    objects=_granted(PERMISSION), seen_by=_seen_by,
)
TOPIC_PERMISSION_CLASS: Final = ManagedClass(
    ClassName(_PACKAGE, "topicPermission"),
    properties=(
        prop("user", "sstr", "RC index", lambda each: each.name[0]),
        prop("vhost", "sstr", "RC index", lambda each: each.name[1], "Virtual host"),
        prop("exchange", "sstr", "RC index", lambda each: each.name[2]),
        prop("write", "lstr", "RO", lambda each: str(each.values.get("write", "")), "Regular expression"),
        prop("read", "lstr", "RO", lambda each: str(each.values.get("read", "")), "Regular expression"),
    ),
    objects=_granted(TOPIC_PERMISSION), seen_by=_seen_by,
)
PARAMETER_CLASS: Final = ManagedClass(
    ClassName(_PACKAGE, "parameter"),
    properties=(
        prop("vhost", "sstr", "RC index", lambda each: each.host, "Virtual host"),
        prop("component", "sstr", "RC index", lambda each: each.component, "What it configures"),
        prop("name", "sstr", "RC index", lambda each: each.name),
        prop("value", "lstr", "RO", lambda each: dumps(each.value).decode(), "JSON"),
        prop("user", "sstr", "RO", lambda each: each.user, "User who set it, on whose behalf the component acts"),
    ),
    objects=_parameters, seen_by=_parameters_seen_by,
)
GLOBAL_PARAMETER_CLASS: Final = ManagedClass(
    ClassName(_PACKAGE, "globalParameter"),
    properties=(
        prop("name", "sstr", "RC index", lambda each: each.name),
        prop("value", "lstr", "RO", lambda each: dumps(each.value).decode(), "JSON"),
    ),
    objects=_global_parameters,
)
APPLIED_POLICY_CLASS: Final = ManagedClass(
    ClassName(_PACKAGE, "appliedPolicy"),
    properties=(
        prop("kind", "sstr", "RC index", lambda each: each.kind, "queue or exchange"),
        prop("vhost", "sstr", "RC index", lambda each: each.host, "Virtual host"),
        prop("name", "sstr", "RC index", lambda each: each.target.name, "Name of the queue or exchange"),
        prop("policy", "sstr", "RO", lambda each: each.target.policy.policy, "The policy that applies, if one does"),
        prop("operatorPolicy", "sstr", "RO", lambda each: each.target.policy.operator_policy, "Likewise"),
        prop("definition", "map", "RO", lambda each: _definition(each.target.policy.definition), "Of both together"),
    ),
    objects=_effective, belongs=lambda each: (each.host, ""),
)
# fmt: on
