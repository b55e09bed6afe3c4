"""The HTTP server: who may ask, what is let in, and what is said beside the answer.

    /            pages of the console in a browser: the files of `static`; without them a line that says what is here
    /api/…       the resources
    /metrics…    metrics for Prometheus

**Limits.** A body has at most `MAX_BODY` bytes (definitions more), and `BODY_SECONDS` to arrive; a line of the head
has 16 KiB. At most `MAX_REQUESTS` requests are answered at the same time, further ones wait in their sockets, of which
there are at most `MAX_SOCKETS`; one takes at most `REQUEST_SECONDS`. Failed logins are limited for each address
(`logins`).

**Browsers.** Every answer has a content security policy that allows scripts and styles of this server only, and forbids
frames, guessing of types and referrers. A request that changes something and comes from a page of another server
(Origin, Sec-Fetch-Site) is refused: a browser sends a user's name and password along with it. Pages of another server
may read answers only if `--cors-origin` names it.

**Metrics** need no login on a loopback address, as in RabbitMQ; elsewhere they do, unless that is switched off. The
name of the host in a request is checked, so that a page whose name DNS has pointed here cannot read them.

Nothing that is answered or logged has a password or the header Authorization in it. What is not expected is logged,
with a number that the answer has, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import secrets
import socket
import ssl
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from aiohttp import ClientConnectionError, ClientPayloadError, web
from aiohttp.http_exceptions import PayloadEncodingError

from qstore.broker.security.tls import certificate_expiry
from qstore.tools.web import prometheus
from qstore.tools.web.amqp import LoginError, UnreachableError
from qstore.tools.web.browser import HEADER
from qstore.tools.web.calls import Call, HttpError, Reply, bad_request, not_found
from qstore.tools.web.collector import UnavailableError
from qstore.tools.web.logins import Logins, Session, TooManyFailuresError
from qstore.tools.web.resources import Api, check_role

if TYPE_CHECKING:
    from qstore.tools.web.stored import StoredApi, StoredUser, TokenLogins

MAX_BODY: Final = 16 << 20
MAX_DEFINITIONS: Final = 64 << 20
MAX_REQUESTS: Final = 64
REQUEST_SECONDS: Final = 120.0
MAX_SOCKETS: Final = 1000
KEPT_SECONDS: Final = 75.0
"""How long a socket without requests is kept."""
BODY_SECONDS: Final = 30.0
_MAX_LINE: Final = 16 << 10
_STATIC: Final = Path(__file__).parent / "static"
_CHANGES: Final = frozenset(("PUT", "POST", "DELETE", "PATCH"))
_REALM: Final = 'Basic realm="qstore", charset="UTF-8"'
_SWEEP_SECONDS: Final = 5.0
_TYPES: Final = {
    ".css": "text/css; charset=utf-8", ".html": "text/html; charset=utf-8", ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8", ".json": "application/json", ".map": "application/json",
    ".png": "image/png", ".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8", ".woff2": "font/woff2",
}  # fmt: skip
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self';"
        " connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_LOG: Final = logging.getLogger("qstore.console")
_WELCOME: Final = (
    b"qstore-console: the HTTP API of a broker. /api/overview shows the broker, /api/openapi.json describes all"
    b" resources, /metrics has metrics for Prometheus.\n"
)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the server is asked to do.

    Attributes:
        address, port: what it listens on; port 0 for a free one.
        certificate, key: files for TLS; None for none.
        cors_origins: servers whose pages may read answers.
        open_metrics: whether metrics need no login; None: on loopback addresses.
        static: the folder of pages.
    """

    address: str = "127.0.0.1"
    port: int = 15672
    certificate: str | None = None
    key: str | None = None
    cors_origins: tuple[str, ...] = ()
    open_metrics: bool | None = None
    static: Path = _STATIC


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


class _Full(asyncio.Protocol):
    """A socket for which there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class _BoundedServer(web.Server):
    """Takes `MAX_SOCKETS` sockets, and closes further ones at once."""

    def __call__(self) -> Any:
        """The protocol of a new socket."""
        return _Full() if len(self.connections) >= MAX_SOCKETS else super().__call__()


class Server:
    """The server of one console.

    Args:
        api: the resources.
        logins: the users.
        settings: the settings.
        token: what pages log in with, if users have no names of their own.
    """

    def __init__(
        self, api: Api | StoredApi, logins: Logins | TokenLogins, settings: ServerSettings, token: str = ""
    ) -> None:
        self._api, self._logins, self._settings = api, logins, settings
        self._token = token
        self._few = asyncio.Semaphore(MAX_REQUESTS)
        self._runner: web.ServerRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []
        open_metrics = settings.open_metrics
        self._open_metrics = is_loopback(settings.address) if open_metrics is None else open_metrics
        self._names = {"localhost", socket.gethostname().lower(), settings.address.lower()}
        self.port = settings.port

    @property
    def entrance(self) -> str:
        """The address of the page, with the token; empty if there is none. A browser does not send what follows #."""
        if not self._token:
            return ""
        scheme, host = ("https" if self._settings.certificate else "http"), self._settings.address
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}/#/enter/{self._token}"

    async def start(self) -> None:
        """Listen. Raises OSError, ssl.SSLError."""
        settings = self._settings
        handler = _BoundedServer(
            self._handle,
            access_log=None,
            max_line_size=_MAX_LINE,
            max_field_size=_MAX_LINE,
            lingering_time=2.0,
            keepalive_timeout=KEPT_SECONDS,
        )
        runner = web.ServerRunner(handler)
        await runner.setup()
        tls = None if settings.certificate is None else server_context(settings.certificate, settings.key)
        if settings.certificate is not None and isinstance(self._api, Api):
            self._api.certificate_expires = certificate_expiry(settings.certificate)
        site = web.TCPSite(runner, settings.address, settings.port, ssl_context=tls, backlog=128)
        try:
            await site.start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self.port = runner.addresses[0][1]
        self._api.listeners.append(("https" if tls else "http", settings.address, self.port))
        collector = self._api.collector
        self._tasks = [asyncio.create_task(collector.run()), asyncio.create_task(self._sweep())]

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()
        await self._logins.close()
        await self._api.collector.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            await self._logins.sweep()

    # ---- a request ----

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            async with self._few, asyncio.timeout(REQUEST_SECONDS):
                reply = await self._reply(request)
        except HttpError as error:
            if HEADER in request.headers:  # a page asks for name and password itself
                error.headers.pop("WWW-Authenticate", None)
            reply = Reply(error.status, {"error": error.error, "reason": error.reason}, headers=error.headers)
        except TimeoutError:
            reply = Reply(504, {"error": "timeout", "reason": f"it took more than {REQUEST_SECONDS:g} s"})
        except web.HTTPException as error:  # of aiohttp itself: a body that is too large
            reply = Reply(error.status, {"error": "bad_request", "reason": error.reason})
        except (ConnectionError, ClientConnectionError):
            raise
        except Exception:
            number = secrets.token_hex(4)
            _LOG.exception("error %s at %s %s", number, request.method, _shown_path(request))
            reply = Reply(500, {"error": "internal_error", "reason": f"see error {number} in the console's log"})
        headers = {**_HEADERS, **self._cors(request), **reply.headers}
        body = reply.content()
        if request.method == "HEAD":
            headers["Content-Length"], body = str(len(body)), b""
        if reply.status != 204:
            headers.setdefault("Content-Type", reply.content_type)
        response = web.Response(status=reply.status, headers=headers, body=body or None)
        if len(body) > 1024 and reply.body is None:
            response.enable_compression()
        return response

    def _cors(self, request: web.BaseRequest) -> dict[str, str]:
        origin = request.headers.get("Origin")
        if origin is None or origin not in self._settings.cors_origins:
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Credentials": "true",
            "Cross-Origin-Resource-Policy": "cross-origin",
            "Vary": "Origin",
        }

    async def _reply(self, request: web.BaseRequest) -> Reply:
        path = request.rel_url.raw_path
        if request.method == "OPTIONS":
            return self._options(request)
        self._check_origin(request)
        if path.startswith("/api/") or path == "/api":
            return await self._resource(request, path.removeprefix("/api").lstrip("/"))
        if path == "/metrics" or path.startswith("/metrics/"):
            return await self._metrics(request, path)
        if request.method not in ("GET", "HEAD"):
            raise HttpError(405, "method_not_allowed", "Method Not Allowed", {"Allow": "GET, HEAD"})
        return await self._page(path)

    def _options(self, request: web.BaseRequest) -> Reply:
        allowed = "GET, HEAD, PUT, POST, DELETE, OPTIONS"
        headers = {"Allow": allowed}
        if self._cors(request):
            headers |= {
                "Access-Control-Allow-Methods": allowed,
                "Access-Control-Allow-Headers": "authorization, content-type, x-reason",
                "Access-Control-Max-Age": "600",
            }
        return Reply(204, headers=headers)

    def _check_origin(self, request: web.BaseRequest) -> None:
        """Raise HttpError if a page of another server asks for a change."""
        if request.method not in _CHANGES:
            return
        origin = request.headers.get("Origin")
        if origin is not None and origin in self._settings.cors_origins:
            return
        is_foreign = origin is not None and urlsplit(origin).netloc.lower() != (request.host or "").lower()
        if is_foreign or request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise HttpError(403, "forbidden", "pages of other servers may not change anything")

    async def _resource(self, request: web.BaseRequest, path: str) -> Reply:
        route, named = self._api.resources.find(request.method, path)
        peer = request.remote or ""
        session: Session | StoredUser | None = None
        if route.role != "-":
            session = await self._session(request, peer)
        body = await _body(request, MAX_DEFINITIONS if path.startswith("definitions") else MAX_BODY)
        reason = request.headers.get("X-Reason", "")[:200]
        cookies = request.headers.get("Cookie", "") if HEADER in request.headers else ""
        call = Call(request.method, named, dict(request.query), body, peer, session, reason, cookies)
        with _login_errors():
            return await self._api.answer(route, call)

    async def _session(self, request: web.BaseRequest, peer: str) -> Session | StoredUser:
        remembered = None
        if HEADER in request.headers and "Authorization" not in request.headers:
            remembered = self._api.pages.find(request.headers.get("Cookie", ""))
        user, password = remembered or _credentials(request)
        with _login_errors():
            return await self._logins.session(user, password, peer)

    async def _metrics(self, request: web.BaseRequest, path: str) -> Reply:
        if not isinstance(self._api, Api):
            raise not_found()
        session = None
        if self._open_metrics:
            self._check_host(request)
        else:
            session = await self._session(request, request.remote or "")
        try:
            if isinstance(session, Session):
                await check_role(self._api, "monitoring", session)
            content, content_type = await prometheus.exposition(
                self._api,
                path,
                request.query.getall("family", []),
                request.query.getall("vhost", []),
                request.headers.get("Accept", ""),
            )
        except UnavailableError as error:
            raise HttpError(503, "service_unavailable", str(error)) from None
        except KeyError:
            raise not_found() from None
        return Reply(body=content, content_type=content_type)

    def _check_host(self, request: web.BaseRequest) -> None:
        """Raise HttpError if the server is addressed by a name that is not its own."""
        name = (urlsplit(f"//{request.host}").hostname or "").lower()
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name)
            return
        if name not in self._names:
            raise HttpError(403, "forbidden", "unknown host name of this server")

    async def _page(self, path: str) -> Reply:
        """A file of the console in a browser. Unknown paths without a suffix are its pages."""
        root = self._settings.static
        name = path.strip("/") or "index.html"
        parts = name.split("/")
        if any(part in ("", ".", "..") or "%" in part or "\\" in part or "\0" in part for part in parts):
            raise not_found()
        file = root.joinpath(*parts)
        if not file.suffix:
            file = root / "index.html"
        content_type = _TYPES.get(file.suffix)
        if content_type is None:
            raise not_found()
        try:
            content = await asyncio.to_thread(file.read_bytes)
        except OSError:
            if path in ("/", "/index.html"):
                return Reply(body=_WELCOME, content_type="text/plain; charset=utf-8")
            raise not_found() from None
        return Reply(body=content, content_type=content_type, headers={"Cache-Control": "no-cache"})


@contextlib.contextmanager
def _login_errors() -> Iterator[None]:
    """Turn the errors of a login into those of HTTP."""
    try:
        yield
    except LoginError:
        raise HttpError(401, "not_authorized", "Login failed", {"WWW-Authenticate": _REALM}) from None
    except TooManyFailuresError as error:
        headers = {"Retry-After": str(error.seconds)}
        raise HttpError(429, "too_many_requests", str(error), headers) from None
    except UnreachableError as error:
        raise HttpError(503, "service_unavailable", str(error)) from None


def _shown_path(request: web.BaseRequest) -> str:
    return request.rel_url.raw_path[:200]


def _credentials(request: web.BaseRequest) -> tuple[str, str]:
    """Name and password of a request. Raises HttpError."""
    kind, _, encoded = request.headers.get("Authorization", "").partition(" ")
    missing = HttpError(401, "not_authorized", "Login failed", {"WWW-Authenticate": _REALM})
    if kind.lower() != "basic":
        raise missing
    try:
        user, colon, password = b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError:
        raise missing from None
    if not colon or not user:
        raise missing
    return user, password


async def _body(request: web.BaseRequest, limit: int) -> bytes:
    """The body of a request. Raises HttpError."""
    too_large = HttpError(413, "payload_too_large", f"a body has at most {limit:,} bytes")
    if (request.content_length or 0) > limit:
        raise too_large
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.content.iter_any():
                found += piece
                if len(found) > limit:
                    raise too_large
    except TimeoutError:
        raise HttpError(408, "request_timeout", "the body was not received in time") from None
    except (PayloadEncodingError, ClientPayloadError) as error:
        raise bad_request(f"the body cannot be read: {error}") from None
    return bytes(found)


def server_context(certificate: str, key: str | None) -> ssl.SSLContext:
    """The context of a server with TLS. Raises OSError, ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key, lambda: b"")
    return context
