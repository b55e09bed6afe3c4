"""Users, permissions, policies, parameters, virtual hosts: what RabbitMQ's API and the broker's management call them.

Each kind is a row of `_KINDS`: its class of QMF, which lists its objects, its type for the methods `create` and
`delete` of the broker, which change them, and RabbitMQ's fields of an object. Changes are made as the user of the
request. A broker without a class has no objects of it, and refuses to create any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from orjson import JSONDecodeError, dumps, loads

from qstore.broker.client import SessionError
from qstore.broker.management.console import AgentError, Data
from qstore.broker.model.errors import InvalidArgumentError
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.console.amounts import plain
from qstore.tools.web.amqp import RefusedError
from qstore.tools.web.calls import Call, HttpError, Reply, Row, bad_request, listed, mapping, not_found, text, whole

if TYPE_CHECKING:
    from qstore.tools.web.logins import Session
    from qstore.tools.web.resources import Api

ADMINISTRATOR: Final = "administrator"
_WATCHERS: Final = frozenset(("monitoring", ADMINISTRATOR))


class _Kind(NamedTuple):
    """A kind of objects.

    Attributes:
        of: its class of QMF.
        type: its type for create and delete.
        parts: the fields that identify an object. The last one of `name` and `user` is its name for create and delete,
            the others are properties and options.
        row: RabbitMQ's fields of an object.
        properties: from the body of a request to the properties for create. Raises HttpError.
        is_one: whether an object of the class is of this kind.
    """

    of: str
    type: str
    parts: tuple[str, ...]
    row: Callable[[Data], Row]
    properties: Callable[[Row], Row]
    is_one: Callable[[Data], bool] = lambda _: True

    def named(self, wanted: Mapping[str, str]) -> tuple[str, Row]:
        """The name of an object, and what identifies it besides."""
        part = "user" if "user" in self.parts else "name"
        return wanted[part], {name: wanted[name] for name in self.parts if name != part}


def _tags(value: object) -> list[str]:
    """Tags, as a list or a text with commas."""
    if isinstance(value, str):
        return [each for each in (part.strip() for part in value.split(",")) if each]
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return list(value)
    raise bad_request("invalid_tags")


def _user_row(data: Data) -> Row:
    return {
        "name": data.get("name"),
        "password_hash": "",
        "hashing_algorithm": "",
        "tags": _tags(plain(data.get("tags") or [])),
        "limits": {},
    }


def _user_properties(body: Row) -> Row:
    if "tags" not in body:
        raise bad_request("tags_not_present")
    found: Row = {"tags": _tags(body["tags"])}
    for name in ("password", "password_hash", "hashing_algorithm"):
        if isinstance(body.get(name), str):
            found[name] = body[name]
    return found


def _needed(body: Row, *names: str) -> Row:
    missing = [name for name in names if name not in body]
    if missing:
        raise bad_request(f"[{','.join(f'{{key_missing,{name}}}' for name in missing)}]")
    return {name: text(body, name) for name in names}


def _permission_row(data: Data) -> Row:
    return {name: data.get(name) for name in ("user", "vhost", "configure", "write", "read")}


def _topic_row(data: Data) -> Row:
    return {name: data.get(name) for name in ("user", "vhost", "exchange", "write", "read")}


def definition_of(value: object) -> Row:
    """The definition of a policy: a map, or its JSON."""
    if isinstance(value, str):
        try:
            value = loads(value)
        except JSONDecodeError:
            return {}
    found = plain(value)
    return found if isinstance(found, dict) else {}


def _policy_row(data: Data) -> Row:
    return {
        "vhost": data.get("vhost"),
        "name": data.get("name"),
        "pattern": data.get("pattern"),
        "apply-to": data.get("applyTo"),
        "definition": definition_of(data.get("definition")),
        "priority": data.get("priority"),
    }


def _policy_properties(body: Row, default: str = "all") -> Row:
    _needed_any(body, "pattern", "definition")
    return {
        "pattern": text(body, "pattern"),
        "definition": mapping(body, "definition"),
        "apply-to": text(body, "apply-to", default),
        "priority": whole(body, "priority", 0, 1 << 31),
    }


def _needed_any(body: Row, *names: str) -> None:
    missing = [name for name in names if name not in body]
    if missing:
        raise bad_request(f"[{','.join(f'{{key_missing,{name}}}' for name in missing)}]")


def _host_row(data: Data) -> Row:
    about = plain(data.get("about") or {})
    return {"name": data.get("name"), "description": about.get("description", ""), "tags": _tags(about.get("tags", ""))}


def _host_properties(body: Row) -> Row:
    body = {**body, **mapping(body, "metadata")} if "metadata" in body else body
    found = {"description": text(body, "description")} if "description" in body else {}
    return {**found, "tags": ",".join(_tags(body["tags"]))} if body.get("tags") else found


_KINDS: Final[Mapping[str, _Kind]] = {
    "users": _Kind("user", "user", ("name",), _user_row, _user_properties),
    "permissions": _Kind(
        "permission", "permission", ("vhost", "user"), _permission_row,
        lambda body: _needed(body, "configure", "write", "read"),
    ),
    "topic-permissions": _Kind(
        "topicPermission", "topic-permission", ("vhost", "user", "exchange"), _topic_row,
        lambda body: _needed(body, "write", "read"),
    ),
    "policies": _Kind(
        "policy", "policy", ("vhost", "name"), _policy_row, _policy_properties,
        lambda data: data.get("kind") == "policy",
    ),
    "operator-policies": _Kind(
        "policy", "operator-policy", ("vhost", "name"), _policy_row,
        lambda body: _policy_properties(body, "queues"), lambda data: data.get("kind") == "operator-policy",
    ),
    "vhosts": _Kind("virtual_host", "vhost", ("name",), _host_row, _host_properties),
}  # fmt: skip


async def rows_of(api: Api, kind: str) -> list[Row]:
    """All objects of a kind, ordered."""
    of = _KINDS[kind]
    found = [of.row(data) for data in await api.collector.get(of.of) if of.is_one(data)]
    return sorted(found, key=lambda row: [str(row.get(part)) for part in of.parts])


async def users_of(api: Api, call: Call) -> list[Row]:
    """The users for definitions: with the hashes of their passwords only if the request wants them.

    The broker tells them to administrators, and logs it.
    """
    found = await rows_of(api, "users")
    if not call.flag("password_hashes"):
        return found
    console = await call.session.console()
    for row in found:
        told = await console.call(f"qstore:user:{row['name']}", "exportPassword")
        row["password_hash"], row["hashing_algorithm"] = told["hash"], told["algorithm"]
    return found


async def tags_of(api: Api, session: Session) -> list[str]:
    """The tags of a user, as far as they matter.

    Where an ACL file decides, or no user has tags, everyone has those of an administrator: the broker's rules decide.
    The console may not see all users, but each sees itself.
    """
    acl = next(iter(await api.collector.get("acl", 5)), None)
    if acl is not None and acl.get("enforcingAcl"):
        return [ADMINISTRATOR]
    users = await rows_of(api, "users")
    found = next((row["tags"] for row in users if row["name"] == session.user), None)
    if found is None and users:
        found = [tag async for data in (await session.console()).query("user") for tag in _user_row(data)["tags"]]
    return found or ([] if any(row["tags"] for row in users) else [ADMINISTRATOR])


def _is(row: Row, wanted: Mapping[str, str]) -> bool:
    return all(row.get(name) == value for name, value in wanted.items())


def _wanted(kind: str, call: Call) -> dict[str, str]:
    """The fields that the path gives."""
    return {part: call.path[part] for part in _KINDS[kind].parts if part in call.path}


async def all_of(api: Api, kind: str, call: Call) -> Reply:
    """A list, of a virtual host or a user if the path names one."""
    wanted = {**_wanted(kind, call), **({"vhost": call.path["vhost"]} if "vhost" in call.path else {})}
    if "vhost" in wanted:
        await api.check_vhost(wanted["vhost"])
    if "user" in wanted and not any(row["name"] == wanted["user"] for row in await rows_of(api, "users")):
        raise not_found()
    return Reply(value=listed(call, [row for row in await rows_of(api, kind) if _is(row, wanted)]))


async def one_of(api: Api, kind: str, call: Call) -> Reply:
    """One object."""
    wanted = _wanted(kind, call)
    row = next((row for row in await rows_of(api, kind) if _is(row, wanted)), None)
    if row is None:
        raise not_found()
    return Reply(value=row)


async def put(api: Api, kind: str, call: Call) -> Reply:
    """Create or replace an object."""
    body, wanted = call.object(), _wanted(kind, call)
    of = _KINDS[kind]
    if "exchange" in of.parts and "exchange" not in wanted:
        wanted["exchange"] = _needed(body, "exchange")["exchange"]
    properties = of.properties(body)
    if "vhost" in wanted and wanted["vhost"] not in await api.vhosts():
        raise bad_request("vhost_or_user_not_found") if "user" in wanted else not_found("vhost_not_found")
    users = await rows_of(api, "users") if "user" in wanted else []
    if users and not any(row["name"] == wanted["user"] for row in users):
        raise bad_request("vhost_or_user_not_found")
    is_there = any(_is(row, wanted) for row in await rows_of(api, kind))
    await create(api, kind, call, wanted, properties)
    if kind == "vhosts" and not is_there:
        await _admit_creator(api, call, wanted["name"])
    return Reply(204 if is_there else 201)


async def _admit_creator(api: Api, call: Call, vhost: str) -> None:
    """Let the user of a request use the virtual host that it has created, as RabbitMQ does, if permissions decide.

    Where there are none, everyone may use it, and the first permission would change that.
    """
    if await rows_of(api, "permissions"):
        own = {"vhost": vhost, "user": call.session.user}
        await create(api, "permissions", call, own, dict.fromkeys(("configure", "write", "read"), ".*"))


async def create(api: Api, kind: str, call: Call, wanted: Mapping[str, str], properties: Row) -> None:
    """Let the broker create or replace an object."""
    of = _KINDS[kind]
    name, rest = of.named(wanted)
    arguments: dict[str, Any] = {"type": of.type, "name": name, "properties": {**rest, **properties}, "strict": True}
    await (await call.session.console()).call("broker", "create", arguments)
    _has_changed(api, kind, name)


async def delete(api: Api, kind: str, call: Call) -> Reply:
    """Delete an object, or with a path that names a part, all that match it."""
    wanted = _wanted(kind, call)
    found = [row for row in await rows_of(api, kind) if _is(row, wanted)]
    if not found:
        raise not_found()
    for row in found:
        if kind == "vhosts":
            await api.logins.leave(row["name"])
        await _delete_one(api, kind, call, row)
    return Reply(204)


async def _delete_one(api: Api, kind: str, call: Call, row: Row) -> None:
    name, rest = _KINDS[kind].named(row)
    arguments: dict[str, Any] = {"type": _KINDS[kind].type, "name": name, "options": rest}
    await (await call.session.console()).call("broker", "delete", arguments)
    _has_changed(api, kind, name)


def _has_changed(api: Api, kind: str, name: str) -> None:
    """Next time the broker is asked for all of these; a user who was changed has to log in again."""
    api.collector.changed(*(each.of for each in _KINDS.values()), "appliedPolicy", "queue", "exchange")
    if kind == "vhosts":
        api.collector.changed("vhost", "binding", "exchange_binding", "connection", "session", "subscription")
    if kind == "users":
        api.logins.forget(name)


async def import_all(api: Api, call: Call, kind: str, given: list[Row], vhost: str | None) -> None:
    """Create what definitions have of a kind, and replace what is there.

    Args:
        api: the resources.
        call: the request.
        kind: a key of `_KINDS`.
        given: the objects.
        vhost: the virtual host that they are for; None if each names its own.
    """
    of = _KINDS[kind]
    there = {row["name"] for row in await rows_of(api, kind)} if kind == "users" else set()
    for each in given:
        named = {**each, "vhost": vhost} if vhost is not None else dict(each)
        wanted = _needed(named, *of.parts)
        if each.get("name") in there and not each.get("password_hash"):
            named.pop("password_hash", None)  # an export of this broker has no hashes: the password stays
        await create(api, kind, call, wanted, of.properties(named))


# ---- limits of virtual hosts ----

_LIMITS: Final = "vhost-limits"
_MAX_LIMIT: Final = (1 << 32) - 1


async def about_hosts(api: Api) -> dict[str, Row]:
    """What is set for each virtual host: its description and tags."""
    return {str(data["name"]): plain(data.get("about") or {}) for data in await api.collector.get("virtual_host")}


async def _limits_of(api: Api) -> list[Row]:
    found = await api.collector.get("virtual_host")
    rows = [{"vhost": str(data["name"]), "value": plain(data.get("limits") or {})} for data in found]
    return sorted((row for row in rows if row["value"]), key=lambda row: str(row["vhost"]))


async def limits(api: Api, call: Call) -> Reply:
    """The limits, of all virtual hosts or of one."""
    wanted = call.path.get("vhost")
    if wanted is not None:
        await api.check_vhost(wanted)
    return Reply(value=listed(call, [row for row in await _limits_of(api) if wanted in (None, row["vhost"])]))


async def put_limit(api: Api, call: Call) -> Reply:
    """Set a limit; a negative value ends it."""
    await api.check_vhost(call.path["vhost"], "vhost_not_found")
    value = call.object("value")["value"]
    if type(value) is not int or value > _MAX_LIMIT:
        raise bad_request(["not_an_integer", "value"])
    await _set_limit(api, call, call.path["vhost"], call.path["name"], value)
    return Reply(204)


async def delete_limit(api: Api, call: Call) -> Reply:
    """Remove a limit."""
    await api.check_vhost(call.path["vhost"])
    await _set_limit(api, call, call.path["vhost"], call.path["name"], -1)
    return Reply(204)


async def _set_limit(api: Api, call: Call, vhost: str, name: str, value: int) -> None:
    properties = {"vhost": vhost, "value": value}
    arguments: dict[str, Any] = {"type": "vhost-limit", "name": name, "properties": properties, "strict": True}
    await (await call.session.console()).call("broker", "create", arguments)
    api.collector.changed("virtual_host")


# ---- parameters ----
#
# They may have passwords: the broker is asked for them as the user of the request, and tells each what it may see.

CLUSTER_NAME: Final = "cluster_name"


async def parameters_of(api: Api, call: Call, vhost: str | None = None) -> list[Row]:
    """The parameters of components, of all virtual hosts or of one; limits of hosts are some of `vhost-limits`."""
    console = await call.session.console()
    found = [
        {"value": loads(data["value"]), **{name: data.get(name) for name in ("vhost", "component", "name")}}
        async for data in console.query("parameter")
    ]
    limits_too = await _limits_of(api)
    found += [{"component": _LIMITS, "name": "limits", **row} for row in limits_too]
    found = [row for row in found if vhost in (None, row["vhost"])]
    return sorted(found, key=lambda row: [row[part] for part in ("vhost", "component", "name")])


async def parameters(api: Api, call: Call) -> Reply:
    """Parameters: all, those of a component, those of one in a virtual host."""
    if "vhost" in call.path:
        await api.check_vhost(call.path["vhost"])
    return Reply(value=listed(call, [row for row in await parameters_of(api, call) if _is(row, call.path)]))


async def parameter(api: Api, call: Call) -> Reply:
    """One parameter."""
    return Reply(value=await _one_parameter(api, call))


async def _one_parameter(api: Api, call: Call) -> Row:
    row = next((row for row in await parameters_of(api, call) if _is(row, call.path)), None)
    if row is None:
        raise not_found()
    return row


async def put_parameter(api: Api, call: Call) -> Reply:
    """Set a parameter."""
    value = call.object("value")["value"]
    await api.check_vhost(call.path["vhost"], "vhost_not_found")
    is_there = any(_is(row, call.path) for row in await parameters_of(api, call))
    await _set_parameter(api, call, call.path, value)
    return Reply(204 if is_there else 201)


async def _set_parameter(api: Api, call: Call, named: Mapping[str, str], value: object) -> None:
    if named["component"] != _LIMITS:
        properties = {**named, "value": dumps(value).decode()}
        name = properties.pop("name")
        await _create_parameter(call, {"type": "parameter", "name": name, "properties": properties})
        return
    if not isinstance(value, dict):
        raise bad_request(["not_an_object", "value"])
    for name, limit in value.items():
        if type(limit) is not int or limit > _MAX_LIMIT:
            raise bad_request(["not_an_integer", name])
        await _set_limit(api, call, named["vhost"], name, limit)


async def _create_parameter(call: Call, arguments: Row) -> None:
    """Let the broker set a parameter; what it refuses is said in RabbitMQ's words."""
    try:
        await (await call.session.console()).call("broker", "create", {**arguments, "strict": True})
    except AgentError as error:
        if error.values.get("error_class") == InvalidArgumentError.__name__:
            raise bad_request(f"Validation failed\n\n{error}\n") from None
        raise


async def delete_parameter(api: Api, call: Call) -> Reply:
    """Delete a parameter."""
    row = await _one_parameter(api, call)
    if row["component"] == _LIMITS:
        for name in row["value"]:
            await _set_limit(api, call, row["vhost"], name, -1)
        return Reply(204)
    options = {"vhost": row["vhost"], "component": row["component"]}
    arguments: dict[str, Any] = {"type": "parameter", "name": row["name"], "options": options}
    await (await call.session.console()).call("broker", "delete", arguments)
    return Reply(204)


async def import_parameters(api: Api, call: Call, given: list[Row], vhost: str | None) -> None:
    """Set the parameters that definitions have. Raises HttpError if the broker has not the component of one."""
    for each in given:
        named = _needed({**each, "vhost": vhost} if vhost is not None else each, "vhost", "component", "name")
        if "value" not in each:
            raise bad_request("[{key_missing,value}]")
        await _set_parameter(api, call, named, each["value"])


async def global_rows(api: Api) -> list[Row]:
    """The global parameters; the name of the broker is one of them, whether or not it was set."""
    found = {str(data["name"]): loads(data["value"]) for data in await api.collector.get("globalParameter", 5)}
    found.setdefault(CLUSTER_NAME, await api.node())
    return [{"name": name, "value": value} for name, value in sorted(found.items())]


async def name_of_broker(api: Api) -> str:
    """What tools call the broker: as the global parameter says, or its name as a node."""
    return next(str(row["value"]) for row in await global_rows(api) if row["name"] == CLUSTER_NAME)


async def global_parameters(api: Api, call: Call) -> Reply:
    """The global parameters."""
    return Reply(value=listed(call, await global_rows(api)))


async def global_parameter(api: Api, call: Call) -> Reply:
    """One of them."""
    row = next((row for row in await global_rows(api) if row["name"] == call.path["name"]), None)
    if row is None:
        raise not_found()
    return Reply(value=row)


async def put_global_parameter(api: Api, call: Call) -> Reply:
    """Set a global parameter."""
    name, value = call.path["name"], call.object("value")["value"]
    is_there = any(row["name"] == name for row in await global_rows(api))
    await set_global(api, call, name, value)
    return Reply(204 if is_there else 201)


async def put_cluster_name(api: Api, call: Call) -> Reply:
    """Set the broker's name."""
    await set_global(api, call, CLUSTER_NAME, call.object("name")["name"])
    return Reply(204)


async def set_global(api: Api, call: Call, name: str, value: object) -> None:
    """Set a global parameter."""
    arguments: dict[str, Any] = {"type": "global-parameter", "name": name, "strict": True}
    arguments["properties"] = {"value": dumps(value).decode()}
    await (await call.session.console()).call("broker", "create", arguments)
    api.collector.changed("globalParameter")


async def delete_global_parameter(api: Api, call: Call) -> Reply:
    """Delete a global parameter."""
    arguments: dict[str, Any] = {"type": "global-parameter", "name": call.path["name"], "options": {}}
    await (await call.session.console()).call("broker", "delete", arguments)
    api.collector.changed("globalParameter")
    return Reply(204)


async def import_globals(api: Api, call: Call, given: list[Row]) -> None:
    """Set the global parameters that definitions have, but the names of the broker they come from."""
    for each in given:
        name = _needed(each, "name")["name"]
        if name not in _OF_THEIR_BROKER and "value" in each:
            await set_global(api, call, name, each["value"])


_OF_THEIR_BROKER: Final = (CLUSTER_NAME, "internal_cluster_id")


async def delete_users(api: Api, call: Call) -> Reply:
    """Several users at once."""
    names = call.object("users")["users"]
    if not isinstance(names, list):
        raise bad_request(["not_a_list", "users"])
    there = {row["name"]: row for row in await rows_of(api, "users")}
    unknown = [name for name in names if name not in there]
    if unknown:
        raise bad_request(["no_such_user", unknown[0]])
    for name in names:
        await _delete_one(api, "users", call, there[name])
    return Reply(204)


async def set_tags(api: Api, call: Call) -> Reply:
    """The tags of a user, whose password stays."""
    name, tags = call.path["name"], _tags(call.object("tags")["tags"])
    if not any(row["name"] == name for row in await rows_of(api, "users")):
        raise not_found()
    await create(api, "users", call, {"name": name}, {"tags": tags})
    return Reply(204)


async def without_permissions(api: Api, call: Call) -> Reply:
    """Users who may do nothing anywhere."""
    having = {row["user"] for row in await rows_of(api, "permissions")}
    return Reply(value=listed(call, [row for row in await rows_of(api, "users") if row["name"] not in having]))


async def check_role(api: Api, included: frozenset[str], role: str, session: Session) -> None:
    """Raise HttpError unless a user has one of the tags that include a role."""
    if not included.intersection(await tags_of(api, session)):
        raise HttpError(401, "not_authorised", f"Not {role} user")


class Sight(NamedTuple):
    """What a user sees who is neither `monitoring` nor `administrator`.

    Attributes:
        user: its own connections, channels and consumers.
        hosts: what is in these virtual hosts.
    """

    user: str
    hosts: frozenset[str]

    def sees(self, row: Row) -> bool:
        """Whether the user sees a row of a list, which may be of a consumer."""
        vhost = row.get("queue", row).get("vhost") if "channel_details" in row else row.get("vhost")
        if vhost is not None and vhost not in self.hosts:
            return False
        user = row.get("channel_details", row).get("user")
        return user is None or bool(user == self.user)

    def check(self, row: Row) -> None:
        """Raise HttpError unless the user sees a row."""
        if not self.sees(row):
            raise HttpError(401, "not_authorised", "User not authorised to access object")

    def check_vhost(self, vhost: str) -> None:
        """Raise HttpError unless the user may access a virtual host."""
        if vhost not in self.hosts:
            raise HttpError(401, "not_authorised", "User not authorised to access virtual host")


async def sight_of(api: Api, session: Session) -> Sight | None:
    """What a user sees; None for everything.

    Where permissions decide, that is what is in the virtual hosts that the user has a permission for. The console may
    not see permissions of others, but each user sees its own.
    """
    if not _WATCHERS.isdisjoint(await tags_of(api, session)):
        return None
    granted = await rows_of(api, "permissions")
    hosts = {row["vhost"] for row in granted if row["user"] == session.user}
    if not hosts and not any(row["name"] == session.user for row in await rows_of(api, "users")):
        try:
            console = await session.console()
            hosts = {str(data["vhost"]) async for data in console.query("permission")}
        except RefusedError:
            hosts = set()
    return Sight(session.user, frozenset(hosts)) if hosts or granted else None


async def check_reading(api: Api, session: Session) -> None:
    """Raise HttpError unless a user may read what the console reads for all.

    Where an ACL file decides, that is who may query the broker object: the user itself asks for it, once in a login.
    """
    if session.has_read:
        return
    acl = next(iter(await api.collector.get("acl", 5)), None)
    if acl is not None and acl.get("enforcingAcl"):
        console = await session.console()
        try:
            async for _ in console.query("broker"):
                pass
        except SessionError as error:
            raise HttpError(401, "not_authorised", str(error)) from None
    session.has_read = True
