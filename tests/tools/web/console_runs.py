"""A console in the test's own event loop, and requests to it: the server is real, and so is the broker."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from click.testing import CliRunner

from qstore.tools.console.broker import BrokerOptions
from qstore.tools.qstore_console import make_server
from qstore.tools.qstore_passwd import command
from qstore.tools.web.server import Server, ServerSettings
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker

ADMIN = ("root", "root")
ALL = {"configure": ".*", "write": ".*", "read": ".*"}


def broker_with_users(make_broker: BrokerMaker, directory: Path, **tags: str) -> RunningBroker:
    """A broker with a user file; each user has its name as password, and these tags."""
    file = directory / "users"
    for name, each in tags.items():
        made = CliRunner().invoke(command, ["--tags", each, "--stdin", str(file), name], input=f"{name}\n")
        assert made.exit_code == 0, made.output
    return make_broker("--auth", "yes", "--user-file", str(file)).start()


class Answer(NamedTuple):
    """What a request was answered with."""

    status: int
    value: Any
    headers: dict[str, str]
    body: bytes


class Client:
    """Requests to one console as one user."""

    def __init__(self, server: Server, session: aiohttp.ClientSession, scheme: str = "http") -> None:
        self.server, self._session = server, session
        self.url = f"{scheme}://127.0.0.1:{server.port}"

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: tuple[str, str] | None = ("guest", "guest"),
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
        tls: Any = None,
    ) -> Answer:
        """One request; `path` is used as it is, encoded or not."""
        from yarl import URL

        given = dict(headers or {})
        if user is not None:
            given["Authorization"] = f"Basic {b64encode(':'.join(user).encode()).decode()}"
        content = raw if raw is not None else None if body is None else json.dumps(body).encode()
        data = None if content is None else io.BytesIO(content)
        more = {"ssl": tls} if tls is not None else {}
        async with self._session.request(
            method, URL(self.url + path, encoded=True), data=data, headers=given, **more
        ) as answer:
            content = await answer.read()
            is_json = answer.headers.get("Content-Type", "").startswith("application/json")
            value = json.loads(content) if content and is_json else None
            return Answer(answer.status, value, {k.lower(): v for k, v in answer.headers.items()}, content)

    async def get(self, path: str, **more: Any) -> Any:
        """The value of a GET below /api, which must succeed."""
        answer = await self.ask("GET", f"/api/{path}", **more)
        assert answer.status == 200, answer
        return answer.value

    async def becomes(self, path: str, wanted: Any = lambda _: True) -> Any:
        """The value of a GET, as soon as it succeeds and `wanted` finds it right."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                answer = await self.ask("GET", f"/api/{path}")
                if answer.status == 200 and wanted(answer.value):
                    return answer.value
                await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def console_on(
    broker: str,
    settings: ServerSettings = ServerSettings(),  # noqa: B008 (it is immutable)
    *,
    named: tuple[str, str] | None = None,
    interval: float = 1.0,
    **options: Any,
) -> AsyncIterator[Client]:
    """A console of a broker, on a free port."""
    server = make_server(
        BrokerOptions(broker, {"connect_timeout": 10.0, **options}, 10.0),
        named,
        replace(settings, port=0),
        None,
        interval,
    )
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Client(server, session, "https" if settings.certificate else "http")
    finally:
        await server.close()


async def ask(client: Client, status: int, method: str, path: str, body: Any = None, user: Any = ADMIN) -> Any:
    """What a request to the API is answered with, which must have this status."""
    answer = await client.ask(method, f"/api/{path}", body, user=user)
    assert answer.status == status, (path, answer)
    return answer.value
