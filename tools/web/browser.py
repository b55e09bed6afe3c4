"""What only pages in a browser need: logins that a cookie remembers, messages that are looked at, access explained.

A page logs in once, with `POST /api/qstore/login`, and has a cookie from then on, which scripts cannot read and which
is not sent with requests from pages of other servers. It is valid only together with the header `X-Qstore-Page`, which
such pages cannot set either. It ends `IDLE_SECONDS` after its last use, after `LIFE_SECONDS`, at a logout, and with the
console; the password is in memory until then, since each virtual host needs a connection of its own.

Messages are browsed over AMQP 0-10, as the user of the request: they stay where they are, and are not marked as
redelivered. (`queues/V/N/get` takes them and puts them back, as RabbitMQ does.)
"""

from __future__ import annotations

import secrets
import time
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.client import Empty
from qstore.broker.client.address import queue_address
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.console.amounts import plain
from qstore.tools.web.calls import Call, HttpError, Reply, Row, bad_request, mapping, text
from qstore.tools.web.resources import MANAGEMENT, MAX_GET, Api, Route

if TYPE_CHECKING:
    from qstore.broker.client import Message
    from qstore.tools.web.stored import StoredApi

COOKIE: Final = "qstore-session"
HEADER: Final = "X-Qstore-Page"
IDLE_SECONDS: Final = 30 * 60.0
LIFE_SECONDS: Final = 12 * 3600.0
MAX_LOGINS: Final = 256
_ENOUGH_BYTES: Final = 64 << 10
"""Of the body of a message that is browsed: the rest is cut off."""
_FETCH_SECONDS: Final = 0.25


class _Login(NamedTuple):
    """A login of a page."""

    user: str
    password: str
    began: float
    used: float


class BrowserLogins:
    """The logins that cookies remember.

    Args:
        clock: the time.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logins: OrderedDict[str, _Login] = OrderedDict()

    def add(self, user: str, password: str) -> str:
        """Remember a login that was checked. Returns the cookie's value."""
        token, now = secrets.token_urlsafe(32), self._clock()
        self._logins[token] = _Login(user, password, now, now)
        while len(self._logins) > MAX_LOGINS:
            self._logins.popitem(last=False)
        return token

    def find(self, cookies: str) -> tuple[str, str] | None:
        """Name and password of the login that a Cookie header names; None if there is none, or it has ended."""
        token = _token(cookies)
        login = self._logins.get(token)
        if login is None:
            return None
        now = self._clock()
        if now - login.used > IDLE_SECONDS or now - login.began > LIFE_SECONDS:
            del self._logins[token]
            return None
        self._logins[token] = login._replace(used=now)
        self._logins.move_to_end(token)
        return login.user, login.password

    def end(self, cookies: str) -> None:
        """Forget the login that a Cookie header names."""
        self._logins.pop(_token(cookies), None)


def _token(cookies: str) -> str:
    try:
        found = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _cookie(value: str, *, is_secure: bool, age: int) -> dict[str, str]:
    flags = "; Secure" if is_secure else ""
    return {"Set-Cookie": f"{COOKIE}={value}; Path=/api; Max-Age={age}; HttpOnly; SameSite=Strict{flags}"}


def _is_secure(api: Api | StoredApi) -> bool:
    return any(protocol == "https" for protocol, _, _ in api.listeners)


async def log_in(api: Api | StoredApi, call: Call) -> Reply:
    body = call.object("user", "password")
    user, password = text(body, "user"), text(body, "password")
    if not user:
        raise bad_request("the user name is empty")
    session = await api.logins.session(user, password, call.peer)  # the server answers its errors
    token = api.pages.add(user, password)
    headers = _cookie(token, is_secure=_is_secure(api), age=int(LIFE_SECONDS))
    return Reply(value={"name": session.user}, headers=headers)


async def log_out(api: Api | StoredApi, call: Call) -> Reply:
    api.pages.end(call.cookies)
    return Reply(204, headers=_cookie("", is_secure=_is_secure(api), age=0))


# ---- messages ----


async def browse(api: Api, call: Call) -> Reply:
    """The first messages of a queue that can be delivered now."""
    _, data = await api.find_queue(call)
    count = min(call.count("count", 20), MAX_GET)
    found: list[Row] = []
    options: dict[str, Any] = {"mode": "browse", "create": "never"}
    if plain(data.get("arguments") or {}).get("x-queue-type") == "stream":  # others begin with the next message
        options["link"] = {"x-subscribe": {"arguments": {"x-stream-offset": "first"}}}
    async with call.session.connection(call.path["vhost"]) as connection, await connection.session() as session:
        receiver = await session.receiver(queue_address(call.path["name"], options), capacity=min(count, 100))
        try:
            while len(found) < count:
                found.append(_shown(await receiver.fetch(_FETCH_SECONDS)))
        except Empty:
            pass
    return Reply(value=found)


def _shown(message: Message) -> Row:
    content = message.body
    payload = content if isinstance(content, bytes) else str(content).encode("utf-8", "surrogatepass")
    cut = payload[:_ENOUGH_BYTES]
    try:
        shown, encoding = cut.decode(), "string"
    except UnicodeDecodeError:
        shown, encoding = b64encode(cut).decode(), "base64"
    names = ("message_id", "correlation_id", "user_id", "reply_to", "subject", "content_type", "priority", "ttl")
    values: dict[str, Any] = {name: getattr(message, name, None) for name in names}
    return {
        "payload_bytes": len(payload),
        "payload": shown,
        "payload_encoding": encoding,
        "is_cut": len(payload) > len(cut),
        "redelivered": bool(message.redelivered),
        "durable": bool(message.durable),
        "properties": {name: plain(value) for name, value in values.items() if value not in (None, "", 0)},
        "headers": plain(dict(message.properties or {})),
    }


# ---- access ----


async def explain(api: Api, call: Call) -> Reply:
    """Whether a user may do something: the decision of the broker's rules."""
    body = call.object("user", "action", "object")
    del api
    console = await call.session.console()
    arguments = {
        "userId": text(body, "user"),
        "action": text(body, "action"),
        "object": text(body, "object"),
        "objectName": text(body, "name"),
        "propertyMap": mapping(body, "properties"),
    }
    rules = [data async for data in console.query("acl", package=_ACL)]
    if not rules or not rules[0].get("enforcingAcl"):
        raise HttpError(409, "no_rules", "the broker has no access rules: every user may do everything")
    found = await console.call(rules[0], "Lookup", arguments)
    return Reply(value={"result": found.get("result", "")})


_ACL: Final = "org.apache.qpid.acl"

# fmt: off
PAGE_ROUTES: Final = (
    Route("POST", "qstore/login", "-", log_in, "Log in with a cookie, for pages in a browser"),
    Route("DELETE", "qstore/login", "-", log_out, "Log out"),
    Route("GET", "qstore/queues/{vhost}/{name}/browse", MANAGEMENT, browse, "Browse messages without removing them"),
    Route("POST", "qstore/access", MANAGEMENT, explain, "Check what the access rules allow a user to do"),
)
# fmt: on
