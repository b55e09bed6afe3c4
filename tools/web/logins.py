"""Who asks: a user of the HTTP API is a user of the broker, and acts over connections of its own.

Name and password of a request are those of a login to the broker. A login that has succeeded is kept for
`KEPT_SECONDS`, with the connections that were opened for it, under a keyed hash of both: the next request with the same
ones takes it without another login. A password is in memory meanwhile, since each virtual host and the management need
a connection of their own, and nowhere else: not in errors, logs or answers.

Logins that fail are counted for each host (an address, or a network of IPv6): after `MAX_FAILURES` in
`FAILURE_SECONDS`, others from there are refused before the broker sees them. Those that are not answered yet count
as failed: otherwise a host could have as many tried as it sends at the same time. The broker has at most `_MAX_OF_HOST`
of a host at a time, so that others do not wait for them. What was valid stays valid.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.client import AuthenticationError, MessagingError, SessionError
from qstore.broker.client.aio import Connection
from qstore.broker.management.console.aio import Console
from qstore.broker.network.clients import network_of
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_10.codes import ErrorCode
from qstore.formats.broker_records.topology import DEFAULT_HOST
from qstore.tools.web.amqp import (
    OWN_PROPERTY,
    Channel,
    LoginError,
    Place,
    RefusedError,
    UnreachableError,
    UserConnection,
)

if TYPE_CHECKING:
    from qstore.tools.web.access import Sight

KEPT_SECONDS: Final = 60.0
"""How long a login is valid after it was checked."""
MAX_SESSIONS: Final = 64
_MAX_CONNECTIONS: Final = 8  # virtual hosts of a session that are open at the same time
MAX_FAILURES: Final = 10
FAILURE_SECONDS: Final = 60.0
_MAX_ADDRESSES: Final = 10_000
_MAX_LOGINS: Final = 8  # at the same time
_MAX_OF_HOST: Final = 2  # of them
MAX_CREDENTIAL: Final = 1024
"""Characters of a name or a password."""


class TooManyFailuresError(Exception):
    """Too many logins from this address have failed.

    Attributes:
        seconds: after which another one may be tried.
    """

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many logins from this address have failed: try again in {seconds} s")
        self.seconds = seconds


class Session:
    """A user who has logged in.

    Args:
        place: the broker.
        url, options: the same for the management.
        user: the user's name; None for one that the broker admits without.
        password: the password.
        peer: the address of the first request.
        spare: the connection of the login.

    Attributes:
        user: the user's name; `anonymous` for one without.
        until: when the login has to be checked again, on the monotonic clock.
        has_read: whether the broker has let the user read.
        sight: what the user sees, as of the last request; None for everything.
    """

    def __init__(
        self,
        place: Place,
        url: str,
        options: Mapping[str, Any],
        user: str | None,
        password: str,
        peer: str,
        spare: UserConnection,
    ) -> None:
        self.user = user or "anonymous"
        self.until = 0.0
        self.has_read = False
        self.sight: Sight | None = None
        self._place, self._url, self._peer = place, url, peer
        self._login, self._password = user, password
        self._options = dict(options)
        self._spare: UserConnection | None = spare
        self._open: OrderedDict[str, UserConnection] = OrderedDict()
        self._console: Console | None = None
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def channel(self, vhost: str) -> AsyncIterator[Channel]:
        """A channel of this user in a virtual host. Raises as `UserConnection.channel`, and LoginError."""
        connection = await self._connection(vhost)
        async with connection.channel() as channel:
            yield channel

    async def _connection(self, vhost: str) -> UserConnection:
        async with self._lock:
            connection = self._open.get(vhost)
            if connection is not None and connection.is_open:
                self._open.move_to_end(vhost)
                return connection
            if connection is not None:
                connection.abort()
            connection, self._spare = self._spare, None
            if connection is None or not connection.is_open:
                if connection is not None:
                    connection.abort()
                connection = await UserConnection.log_in(self._place, self._login, self._password, self._peer)
            await connection.open(vhost)
            self._open[vhost] = connection
            while len(self._open) > _MAX_CONNECTIONS:
                _, oldest = self._open.popitem(last=False)
                await oldest.close()
            return connection

    @property
    def _own_options(self) -> dict[str, Any]:
        """The options of this user's connections of AMQP 0-10."""
        named = {} if self._login is None else {"username": self._login, "password": self._password}
        known = {"client_properties": {OWN_PROPERTY: True, "product": "qstore-console", "peer": self._peer}}
        return self._options | named | known

    @contextlib.asynccontextmanager
    async def connection(self, vhost: str) -> AsyncIterator[Connection]:
        """A connection of AMQP 0-10 of this user to a virtual host. Raises as `console`."""
        if vhost == DEFAULT_HOST:
            yield (await self.console()).connection
            return
        try:
            connection = Connection(self._url, **(self._own_options | {"virtual_host": vhost}))
            await connection.open()
        except (MessagingError, OSError) as error:
            raise UnreachableError(f"the broker cannot be reached: {error}") from None
        try:
            yield connection
        finally:
            await connection.close()

    async def console(self) -> Console:
        """The management of the broker, as this user. Raises LoginError, RefusedError, UnreachableError."""
        async with self._lock:
            if self._console is not None and self._console.connection.is_open:
                return self._console
            console = Console(self._url, timeout=30.0, **self._own_options)
            try:
                await console.open()
            except AuthenticationError as error:
                raise LoginError(str(error)) from None
            except (MessagingError, OSError) as error:
                if isinstance(error, SessionError) and error.code == ErrorCode.UNAUTHORIZED_ACCESS:
                    raise RefusedError(ReplyCode.ACCESS_REFUSED, str(error)) from None
                raise UnreachableError(f"the broker cannot be reached: {error}") from None
            self._console = console
            return console

    async def leave(self, vhost: str) -> None:
        """Close the connection to a virtual host that is about to be deleted."""
        async with self._lock:
            connection = self._open.pop(vhost, None)
        if connection is not None:
            await connection.close()

    async def drop_spare(self) -> None:
        """Close the connection of the login, if nothing has needed it."""
        spare, self._spare = self._spare, None
        if spare is not None:
            await spare.close()

    async def close(self) -> None:
        """Close all connections."""
        await self.drop_spare()
        console, self._console = self._console, None
        opened, self._open = self._open, OrderedDict()
        for connection in opened.values():
            await connection.close()
        if console is not None:
            with contextlib.suppress(MessagingError, OSError, TimeoutError):
                async with asyncio.timeout(2):
                    await console.close()


class _Host:
    """Where logins come from that are not answered yet.

    Attributes:
        logins: how many.
        few: held by those that the broker has.
    """

    def __init__(self) -> None:
        self.logins = 0
        self.few = asyncio.Semaphore(_MAX_OF_HOST)


_NONE: Final[deque[float]] = deque()


class Logins:
    """The users who have logged in.

    Args:
        place: the broker.
        url, options: the same for the management; without a user.
        admits_anonymous: whether a broker that has no users lets everyone in.
        clock: the time.

    Attributes:
        attempts, failures: logins at the broker, and those that have failed.
    """

    def __init__(
        self,
        place: Place,
        url: str,
        options: Mapping[str, Any],
        *,
        admits_anonymous: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place, self._url, self._options = place, url, options
        self._admits_anonymous, self._clock = admits_anonymous, clock
        self._salt = secrets.token_bytes(32)
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._pending: dict[bytes, asyncio.Task[Session]] = {}
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()
        self._few = asyncio.Semaphore(_MAX_LOGINS)
        self._hosts: dict[str, _Host] = {}  # of logins that are not answered yet
        self.attempts = self.failures = 0

    def _key(self, user: str, password: str) -> bytes:
        name = user.encode("utf-8", "surrogateescape")
        secret = password.encode("utf-8", "surrogateescape")
        return hmac.digest(self._salt, len(name).to_bytes(4, "big") + name + secret, hashlib.sha256)

    async def leave(self, vhost: str) -> None:
        """Close all connections to a virtual host that is about to be deleted."""
        for session in list(self._sessions.values()):
            await session.leave(vhost)

    async def session(self, user: str, password: str, peer: str) -> Session:
        """The session of a user.

        Raises:
            LoginError: the broker does not admit the user.
            TooManyFailuresError: too many logins from `peer` have failed.
            UnreachableError: there is no broker.
        """
        if len(user) > MAX_CREDENTIAL or len(password) > MAX_CREDENTIAL:
            raise LoginError("the name or the password is too long")
        key = self._key(user, password)
        found = self._sessions.get(key)
        if found is not None and self._clock() < found.until:
            self._sessions.move_to_end(key)
            return found
        name = network_of(peer)
        task = self._pending.get(key)
        self._check_failures(name, is_new=task is None)
        if task is None:
            host = self._hosts.setdefault(name, _Host())
            host.logins += 1
            task = asyncio.get_running_loop().create_task(self._log_in(key, user, password, peer, host))
            self._pending[key] = task
            task.add_done_callback(lambda _: self._ended(key, name, host))
        try:
            return await asyncio.shield(task)
        except LoginError:
            self._note_failure(name)
            raise

    def _ended(self, key: bytes, name: str, host: _Host) -> None:
        """A login was answered."""
        self._pending.pop(key, None)
        host.logins -= 1
        if not host.logins:
            self._hosts.pop(name, None)

    async def _log_in(self, key: bytes, user: str, password: str, peer: str, host: _Host) -> Session:
        async with host.few, self._few:
            self.attempts += 1
            try:
                connection = await UserConnection.log_in(
                    self._place, user, password, peer, admits_anonymous=self._admits_anonymous
                )
            except LoginError:
                self.failures += 1
                await self._forget(key)
                raise
        session = self._sessions.get(key)
        if session is not None:  # still the same user
            await connection.close()
        else:
            named = connection.user
            session = Session(self._place, self._url, self._options, named, password, peer, connection)
            self._sessions[key] = session
        session.until, session.has_read = self._clock() + KEPT_SECONDS, False
        while len(self._sessions) > MAX_SESSIONS:
            _, oldest = self._sessions.popitem(last=False)
            await oldest.close()
        return session

    def forget(self, user: str) -> None:
        """Check the login of a user again at the next request."""
        for session in self._sessions.values():
            if session.user == user:
                session.until = 0.0

    async def _forget(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            await session.close()

    def _check_failures(self, host: str, *, is_new: bool) -> None:
        failed, now = self._failed.get(host, _NONE), self._clock()
        while failed and now - failed[0] > FAILURE_SECONDS:
            failed.popleft()
        under_way = self._hosts.get(host)
        count = len(failed) + (under_way.logins if under_way is not None and is_new else 0)
        if count >= MAX_FAILURES:
            raise TooManyFailuresError(max(1, round(FAILURE_SECONDS - (now - failed[0]))) if failed else 1)

    def _note_failure(self, host: str) -> None:
        self._failed.setdefault(host, deque(maxlen=MAX_FAILURES)).append(self._clock())
        self._failed.move_to_end(host)
        while len(self._failed) > _MAX_ADDRESSES:
            self._failed.popitem(last=False)

    async def sweep(self) -> None:
        """Close what has not been used for long: to be called every few seconds."""
        now = self._clock()
        for key, session in list(self._sessions.items()):
            if now > session.until + KEPT_SECONDS:
                await self._forget(key)
            elif now > session.until - KEPT_SECONDS + 2:
                await session.drop_spare()

    async def close(self) -> None:
        """Close all sessions."""
        for key in list(self._sessions):
            await self._forget(key)
