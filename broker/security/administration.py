"""Changes of users, permissions, policies and parameters of a running broker: who may make them, and who has made them.

Each change is checked (`AccessControl.check_administration`: users, permissions and global parameters need the tag
administrator, policies and parameters of components that or policymaker), made, and then logged at level notice and
emitted as an event. Neither contains passwords, or anything that is derived from them. A change that is answered is on
the disk.

Users are lines of the user file (`users/user_file`), which qstore-passwd changes as well; the line has the tags. All
else are configuration records. A user is deleted after its permissions: a crash in between leaves a user who may do
nothing, never permissions that wait for a new user of that name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.caller import Caller
from qstore.broker.model.errors import InvalidArgumentError, NotFoundError, PreconditionFailedError
from qstore.broker.model.events import AccessChanged, UserDeleted
from qstore.broker.model.parameters import Parameter
from qstore.broker.model.policies import POLICY, Policy
from qstore.broker.security.acl.control import AccessControl
from qstore.broker.security.permissions import ADMINISTRATOR
from qstore.broker.security.users.user_file import UserFileError, Users
from qstore.broker.security.users.verifiers import DEFAULT_MECHANISMS, Verifiers, is_password, is_user_name
from qstore.formats.broker_records.topology import problem_of_new_name
from qstore.formats.wording import printable

_LOG: Final = log_of("Security")

POLICYMAKER: Final = "policymaker"


class Administration:
    """Makes the changes of one broker; `caller` is always who asks for it.

    Args:
        control: the broker's access control.

    Every method raises UnauthorizedError if the caller may not, InvalidArgumentError if a value is not valid, and
    InternalError if it cannot be stored; nothing has changed then.
    """

    def __init__(self, control: AccessControl) -> None:
        self._control = control
        self._turn = asyncio.Lock()

    # ---- users ----

    async def put_user(
        self,
        name: str,
        caller: Caller,
        *,
        tags: Iterable[str] | None = None,
        password: str = "",
        password_hash: str | None = None,
        algorithm: str = "rabbit_password_hashing_sha256",
    ) -> None:
        """Add a user, or change one.

        Args:
            name: the user, without the realm.
            caller: see above.
            tags: its tags from now on; None to keep them.
            password: its password from now on; empty to keep it.
            password_hash: in place of a password, its hash as RabbitMQ's definitions have it; empty for a user who
                cannot log in with a password.
            algorithm: of the hash.
        """
        self._control.check_administration(caller, ADMINISTRATOR)
        if password and password_hash is not None:
            raise InvalidArgumentError("give a password, or the hash of one, not both")
        if not is_user_name(name):
            raise InvalidArgumentError("a user name must not contain spaces, ':', '@' or '#'")
        if password and not is_password(password):
            raise InvalidArgumentError("the password must have 1 to 255 bytes in UTF-8, without NUL")
        users, realm = self._users(), self._control.broker.settings.realm

        def put() -> bool:
            try:
                found = _find(users, name)
                if password:
                    verifiers = Verifiers.make(name, password, realm, DEFAULT_MECHANISMS)
                elif password_hash is not None:
                    verifiers = Verifiers.of_rabbit(algorithm, password_hash)
                else:
                    verifiers = found or Verifiers()
                kept = () if found is None else found.tags
                users.put_all({name: verifiers.with_tags(kept if tags is None else tags)}, keeps_tags=False)
            except (ValueError, UserFileError) as error:
                raise InvalidArgumentError(f"user {printable(name)} cannot be set: {error}") from None
            return found is None

        async with self._turn:
            is_new = await asyncio.to_thread(put)
        self._told("user", name, "added" if is_new else "changed", caller)
        self._control.permissions_changed()

    async def delete_user(self, name: str, caller: Caller) -> None:
        """Delete a user with its permissions. Raises NotFoundError: there is none."""
        self._control.check_administration(caller, ADMINISTRATOR)
        users = self._users()
        async with self._turn:
            try:
                if await asyncio.to_thread(_find, users, name) is None:
                    raise NotFoundError(f"user {printable(name)} does not exist")
                await self._control.permissions.forget(name)
                await asyncio.to_thread(users.remove, name)
            except UserFileError as error:
                raise InvalidArgumentError(f"user {printable(name)} cannot be deleted: {error}") from None
        self._told("user", name, "deleted", caller)
        self._control.permissions_changed()
        broker = self._control.broker
        broker.events.emit(UserDeleted(f"{name}@{broker.settings.realm}"))

    async def password_hash(self, name: str, caller: Caller) -> tuple[str, str]:
        """The algorithm and the hash of a user's password, for definitions of another broker: `put_user` takes them.

        Raises NotFoundError: there is no such user.
        """
        self._control.check_administration(caller, ADMINISTRATOR)
        try:
            found = await asyncio.to_thread(_find, self._users(), name)
        except UserFileError as error:
            raise InvalidArgumentError(f"user {printable(name)} cannot be read: {error}") from None
        if found is None:
            raise NotFoundError(f"user {printable(name)} does not exist")
        self._told("user", name, "exported with the hash of its password", caller)
        return found.exported()

    def _users(self) -> Users:
        users = self._control.users
        if users is None:
            raise PreconditionFailedError("users cannot be changed: the broker has no user file; see --user-file")
        return users

    # ---- permissions ----

    async def set_permission(
        self, user: str, host: str, values: Mapping[str, object], caller: Caller, exchange: str | None = None
    ) -> None:
        """Set a user's permission for a virtual host, or with an exchange the topic permission.

        Raises:
            PreconditionFailedError: it would be the first, and no administrator could correct a mistake.
        """
        self._control.check_administration(caller, ADMINISTRATOR)
        if not is_user_name(user):
            raise InvalidArgumentError(f"{printable(user)} is not the name of a user")
        self._control.broker.virtual_hosts.get(host)
        problem = problem_of_new_name(exchange) if exchange else ""
        if problem:
            raise InvalidArgumentError(f"there can be no exchange {printable(exchange or '')}: {problem}")
        users, permissions = self._control.users, self._control.permissions
        if exchange is None and not permissions.is_any_set and not self._control.has_rules:
            try:
                has_administrator = users is not None and users.has_administrator()
            except UserFileError as error:
                raise PreconditionFailedError(str(error)) from None
            if not has_administrator:
                why = "with the first permission all users without one lose access, and no user has the tag"
                raise PreconditionFailedError(
                    f"{why} administrator; give it to one: qstore-passwd --tags administrator"
                )
        await permissions.set(user, host, values, exchange)
        self._told_permission(user, host, exchange, "set", caller)
        self._control.permissions_changed()

    async def delete_permission(self, user: str, host: str, caller: Caller, exchange: str | None = None) -> None:
        """Delete a user's permission, or a topic permission. Raises NotFoundError: there is none."""
        self._control.check_administration(caller, ADMINISTRATOR)
        await self._control.permissions.delete(user, host, exchange)
        self._told_permission(user, host, exchange, "deleted", caller)
        self._control.permissions_changed()

    # ---- virtual hosts ----

    async def put_host(self, name: str, about: Mapping[str, str], caller: Caller) -> None:
        """Create a virtual host, or change its description and tags."""
        self._control.check_administration(caller, ADMINISTRATOR)
        is_new = await self._control.broker.virtual_hosts.create(name, about)
        self._told("virtual host", name, "created" if is_new else "changed", caller)

    async def delete_host(self, name: str, caller: Caller) -> None:
        """Delete a virtual host with everything in it. Raises NotFoundError: there is none."""
        self._control.check_administration(caller, ADMINISTRATOR)
        await self._control.broker.virtual_hosts.delete(name)
        self._told("virtual host", name, "deleted", caller)

    async def limit_host(self, name: str, limit: str, value: int | None, caller: Caller) -> None:
        """Set a limit of a virtual host, or end it with None. Raises NotFoundError: there is no such host."""
        self._control.check_administration(caller, ADMINISTRATOR)
        await self._control.broker.virtual_hosts.limit(name, limit, value)
        self._told("limit", f"{limit} of {name}", "cleared" if value is None else f"set to {value}", caller)

    # ---- policies ----

    async def set_policy(self, policy: Policy, caller: Caller, kind: str = POLICY) -> None:
        """Set a policy, and apply it."""
        self._control.check_administration(caller, POLICYMAKER if kind == POLICY else ADMINISTRATOR)
        self._control.broker.virtual_hosts.get(policy.host)
        self._control.check_policies_of(caller, policy.host)
        await self._control.broker.policies.set(self._control.check_policy(caller, policy), kind)
        self._told(kind.removeprefix("qstore."), f"{policy.name} of {policy.host}", "set", caller)

    async def delete_policy(self, host: str, name: str, caller: Caller, kind: str = POLICY) -> None:
        """Delete a policy, and apply the others. Raises NotFoundError: there is none."""
        self._control.check_administration(caller, POLICYMAKER if kind == POLICY else ADMINISTRATOR)
        self._control.check_policies_of(caller, host)
        await self._control.broker.policies.delete(host, name, kind)
        self._told(kind.removeprefix("qstore."), f"{name} of {host}", "deleted", caller)

    # ---- parameters ----

    async def set_parameter(self, host: str, component: str, name: str, value: object, caller: Caller) -> None:
        """Set a parameter of a component, which works for the caller from then on."""
        self._control.check_administration(caller, POLICYMAKER)
        self._control.broker.virtual_hosts.get(host)
        self._control.check_policies_of(caller, host)
        await self._control.broker.parameters.set(Parameter(host, component, name, value, caller.user))
        self._told("parameter", f"{component}/{name} of {host}", "set", caller)

    async def delete_parameter(self, host: str, component: str, name: str, caller: Caller) -> None:
        """Delete a parameter of a component. Raises NotFoundError: there is none."""
        self._control.check_administration(caller, POLICYMAKER)
        self._control.check_policies_of(caller, host)
        await self._control.broker.parameters.delete(host, component, name)
        self._told("parameter", f"{component}/{name} of {host}", "deleted", caller)

    async def set_global_parameter(self, name: str, value: object, caller: Caller) -> None:
        """Set a global parameter."""
        self._control.check_administration(caller, ADMINISTRATOR)
        await self._control.broker.parameters.set_global(name, value)
        self._told("global parameter", name, "set", caller)

    async def delete_global_parameter(self, name: str, caller: Caller) -> None:
        """Delete a global parameter. Raises NotFoundError: there is none."""
        self._control.check_administration(caller, ADMINISTRATOR)
        await self._control.broker.parameters.delete_global(name)
        self._told("global parameter", name, "deleted", caller)

    def _told_permission(self, user: str, host: str, exchange: str | None, what: str, caller: Caller) -> None:
        if exchange is None:
            self._told("permission", f"{user} for {host}", what, caller)
        else:
            self._told("topic-permission", f"{user} for {exchange} of {host}", what, caller)

    def _told(self, kind: str, name: str, what: str, caller: Caller) -> None:
        _LOG.notice("%s %s was %s by %s from %s", kind, printable(name), what, caller.user, caller.remote_host)
        self._control.broker.events.emit(AccessChanged(caller.remote_host, caller.user, kind, name, what))


def _find(users: Users, name: str) -> Verifiers | None:
    """A user; None if there is none, or no file."""
    try:
        return users.find(name)
    except UserFileError:
        if users.exists:
            raise
        return None
