"""The console of a store on disk: stopped, crashed, or from a backup. Nothing is ever written to it.

What it shows comes from the tools themselves (`qstore-check`, `qstore-dump`, `qstore-recover --dry-run`), run as
processes that print JSON lines: a large or damaged store costs their memory and time, while the console answers.

    job        a run that reads the whole store, or writes a new one: it goes on without its request, which asks again
    page       of a queue's messages or records: read up to its end, and no further

Who may use it is who has the token that the console prints at its start.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import stat
import sys
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from orjson import JSONDecodeError, loads

from qstore import __version__
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.console.text import escape_name, printable, unescape_name
from qstore.tools.web.amqp import LoginError
from qstore.tools.web.browser import BrowserLogins, log_in, log_out
from qstore.tools.web.calls import (
    MAX_PAGE,
    PAGE,
    Call,
    HttpError,
    Reply,
    Row,
    bad_request,
    boolean,
    not_found,
    text,
    whole,
)
from qstore.tools.web.resources import Resources, Route

MAX_OBJECTS: Final = 20_000
"""Of the output of one job; what follows is counted only."""
MAX_JOBS: Final = 50
_MAX_LINE: Final = 16 << 20
_MAX_BODY: Final = 64 << 10
_MAX_ERRORS: Final = 8 << 10
_AROUND: Final = 64
_SHOWN_BYTES: Final = 320
_FAILED: Final = 2
_TOOLS: Final = "qstore.tools."


class StoredUser(NamedTuple):
    """Who has the token."""

    user: str = "operator"


class TokenLogins:
    """The only login: by a token.

    Attributes:
        token: the secret for the users of the console.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)

    async def session(self, user: str, password: str, peer: str) -> StoredUser:
        """Raise LoginError unless the password is the token."""
        del user, peer
        if not hmac.compare_digest(password.encode("utf-8", "surrogatepass"), self.token.encode()):
            raise LoginError("the token is wrong")
        return StoredUser()

    async def sweep(self) -> None:
        """There is nothing to be closed."""

    async def close(self) -> None:
        """Likewise."""


class Job:
    """A run of a tool.

    Attributes:
        number: of the job.
        what: for people.
        state: `running`, `done` or `failed`.
        objects: what it has printed, at most `MAX_OBJECTS`.
        dropped: how many further ones there were.
        error: why it has failed.
    """

    def __init__(self, number: int, what: str) -> None:
        self.number, self.what = number, what
        self.state, self.error = "running", ""
        self.objects: list[Row] = []
        self.dropped = 0

    def row(self) -> Row:
        """As JSON, without what it has printed."""
        return {"number": self.number, "what": self.what, "state": self.state, "error": self.error}


class StoreReader:
    """Runs the tools on one store.

    Args:
        path: the store.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.jobs: dict[int, Job] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._few = asyncio.Semaphore(2)
        self._numbers = 0
        self._read: dict[str, int] = {}

    async def run(self) -> None:
        """Check the store at once: every page shows something of that."""
        self.begin_once("check")

    async def close(self) -> None:
        """End what runs."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # ---- jobs ----

    def begin_once(self, what: str, *, again: bool = False) -> Job:
        """The job that reads the store for `check` or `plan`: it is run once, unless it is wanted again."""
        number = self._read.get(what)
        job = None if number is None else self.jobs.get(number)
        if job is not None and (job.state == "running" or not again):
            return job
        if what == "check":
            job = self._begin("Check the store", "qstore_check", "--json", "--", str(self.path))
        else:
            nowhere = str(Path(tempfile.gettempdir()) / f"qstore-plan-{secrets.token_hex(8)}")
            job = self._begin("Plan a recovery", "qstore_recover", "--json", "--dry-run", "--", str(self.path), nowhere)
        self._read[what] = job.number
        return job

    def write(self, what: str, tool: str, target: str, *options: str) -> Job:
        """Begin a job that writes to a new place. Raises HttpError."""
        place = Path(target)
        if not place.is_absolute() or "\0" in target:
            raise bad_request("the place must be an absolute path")
        if os.path.lexists(place):
            raise HttpError(409, "conflict", f"{printable(target)} exists already: choose a new place")
        if place.resolve().is_relative_to(self.path.resolve()):
            raise bad_request("the place is inside the store that is read: choose one outside it")
        return self._begin(f"{what} into {printable(target)}", tool, *options, "--", str(self.path), target)

    def _begin(self, what: str, tool: str, *arguments: str) -> Job:
        self._numbers += 1
        job = Job(self._numbers, what)
        while len(self.jobs) >= MAX_JOBS:
            oldest = next((each for each in self.jobs.values() if each.state != "running"), None)
            if oldest is None:
                raise HttpError(429, "too_many_requests", "too many jobs are running: wait for one of them")
            del self.jobs[oldest.number]
        self.jobs[job.number] = job
        task = asyncio.get_running_loop().create_task(self._work(job, tool, arguments))
        self._tasks[job.number] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.number, None))
        return job

    async def _work(self, job: Job, tool: str, arguments: Sequence[str]) -> None:
        try:
            async for found in self.lines(tool, *arguments):
                if len(job.objects) < MAX_OBJECTS:
                    job.objects.append(found)
                else:
                    job.dropped += 1
        except HttpError as error:
            job.state, job.error = "failed", str(error.reason)
        except OSError as error:
            job.state, job.error = "failed", f"the tool cannot be run: {error.strerror}"
        else:
            job.state = "done"

    # ---- a tool ----

    async def lines(self, tool: str, *arguments: str) -> AsyncIterator[Row]:
        """The JSON lines that a tool prints. Ends the tool when nobody wants more.

        Raises:
            HttpError: it cannot read the store.
        """
        async with self._few:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", _TOOLS + tool, *arguments, limit=_MAX_LINE,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            errors = asyncio.get_running_loop().create_task(_first(process.stderr))
            try:
                while line := await process.stdout.readline():
                    found = loads(line)
                    if isinstance(found, dict):
                        yield found
                if await process.wait() == _FAILED:
                    said = (await errors).strip().splitlines()
                    raise HttpError(409, "unusable", said[-1] if said else "the store cannot be read")
            except (ValueError, JSONDecodeError):
                raise HttpError(409, "unusable", "the tool's output cannot be read") from None
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
                errors.cancel()

    async def page(self, kind: str, number: int, size: int, *arguments: str) -> tuple[list[Row], bool]:
        """A page of the objects of a kind that qstore-dump prints, and whether more follow."""
        found: list[Row] = []
        begin, seen = (number - 1) * size, 0
        lines = self.lines("qstore_dump", "--json", *arguments, "--", str(self.path))
        async with contextlib.aclosing(lines):  # type: ignore[type-var]
            async for each in lines:
                if each.get("kind") != kind:
                    continue
                if seen >= begin + size:
                    return found, True
                if seen >= begin:
                    found.append(each)
                seen += 1
        return found, False

    def bytes_at(self, name: str, offset: int) -> tuple[int, bytes]:
        """The bytes around a place of a file of the store: where they begin, and what they are. Raises HttpError."""
        root = self.path.resolve()
        file = Path(name)
        try:
            file = (file if file.is_absolute() else root / file).resolve()
            if not file.is_relative_to(root) or not stat.S_ISREG(file.stat().st_mode):
                raise not_found()
            with file.open("rb") as opened:
                begin = max(0, offset - _AROUND) & ~0xF
                opened.seek(begin)
                return begin, opened.read(_SHOWN_BYTES)
        except (OSError, ValueError):
            raise not_found() from None


async def _first(stream: asyncio.StreamReader) -> str:
    """The end of what a tool complains about: some kilobytes, the rest is read and dropped."""
    kept = b""
    while piece := await stream.read(1 << 16):
        kept = (kept + piece)[-_MAX_ERRORS:]
    return kept.decode("utf-8", "replace")


class StoredApi:
    """The resources of a store on disk; see `resources.Api`.

    Args:
        path: the store.
        logins: who has the token.
        listeners: what the console listens on.
    """

    def __init__(self, path: Path, logins: TokenLogins) -> None:
        self.collector, self.logins = StoreReader(path), logins
        self.pages = BrowserLogins()
        self.listeners: list[tuple[str, str, int]] = []
        self.resources = Resources(STORED_ROUTES)

    async def answer(self, route: Route, call: Call) -> Reply:
        """Answer a request. Raises HttpError."""
        return await route.handler(self, call)


# ---- the resources ----


async def whoami(api: StoredApi, _call: Call) -> Reply:
    return Reply(
        value={"name": StoredUser().user, "tags": [], "store": str(api.collector.path), "version": __version__}
    )


def _report(job: Job) -> Reply:
    kinds: dict[str, list[Row]] = {}
    for found in job.objects:
        kinds.setdefault(str(found.get("kind")), []).append(found)
    return Reply(value={"job": job.row(), "dropped": job.dropped, "found": kinds})


async def checked(api: StoredApi, call: Call) -> Reply:
    return _report(api.collector.begin_once("check", again=call.flag("again")))


async def planned(api: StoredApi, call: Call) -> Reply:
    return _report(api.collector.begin_once("plan", again=call.flag("again")))


def _typed(queue: str) -> str:
    """A queue's name as the tools take it, from a name as their JSON has it, which is escaped already."""
    return escape_name(unescape_name(queue))


async def _page(api: StoredApi, call: Call, kind: str, *arguments: str) -> Reply:
    number, size = max(1, call.count("page", 1)), min(max(1, call.count("page_size", PAGE)), MAX_PAGE)
    queue = f"--queue={_typed(call.path['queue'])}"
    found, has_more = await api.collector.page(kind, number, size, queue, *arguments)
    return Reply(value={"items": found, "page": number, "has_more": has_more})


async def messages(api: StoredApi, call: Call) -> Reply:
    return await _page(api, call, "message", "--outstanding", "--body=none")


async def records(api: StoredApi, call: Call) -> Reply:
    return await _page(api, call, "record", "--body=none")


async def message(api: StoredApi, call: Call) -> Reply:
    rid = call.path["rid"]
    if not rid.isdecimal() or len(rid) > len(str(1 << 64)):
        raise bad_request("the record id is not a number")
    queue = f"--queue={_typed(call.path['queue'])}"
    found, _ = await api.collector.page("message", 1, 1, "--outstanding", queue, f"--rid={rid}")
    if not found:
        raise not_found()
    body = found[0].get("body")
    if isinstance(body, str) and len(body) > _MAX_BODY:
        found[0] |= {"body": body[:_MAX_BODY], "is_cut": True}
    return Reply(value=found[0])


async def content(api: StoredApi, call: Call) -> Reply:
    file, offset = call.query.get("file", ""), call.query.get("offset", "")
    if not (offset.isascii() and offset.isdecimal()) or len(offset) > 18 or "\0" in file:
        raise bad_request("the parameters file and offset are required")
    begin, found = await asyncio.to_thread(api.collector.bytes_at, file, int(offset))
    return Reply(value={"begin": begin, "bytes": b64encode(found).decode()})


async def jobs(api: StoredApi, _call: Call) -> Reply:
    found: list[Row] = []
    for job in api.collector.jobs.values():
        last = (each for each in reversed(job.objects) if each.get("kind") in ("summary", "replay"))
        summary: Any = next(last, None)
        found.append({**job.row(), "summary": summary})
    return Reply(value=found[::-1])


async def recover(api: StoredApi, call: Call) -> Reply:
    body = call.object("target")
    decision = text(body, "decision", "")
    if decision not in ("", "commit", "rollback"):
        raise bad_request("the decision on branches in doubt must be commit, rollback or empty")
    options = ["--json", *([f"--resolve-all={decision}"] if decision else [])]
    job = api.collector.write("Recover", "qstore_recover", text(body, "target"), *options)
    return Reply(202, value=job.row())


async def export(api: StoredApi, call: Call) -> Reply:
    body = call.object("target")
    queue = text(body, "queue", "")
    options = ["--quiet", *([f"--queue={_typed(queue)}"] if queue else [])]
    job = api.collector.write("Export", "qstore_export", text(body, "target"), *options)
    return Reply(202, value=job.row())


async def replay(api: StoredApi, call: Call) -> Reply:
    """Put messages of a queue, delivered ones too, on a queue of a new store."""
    body = call.object("target", "queue")
    queue, destination = text(body, "queue"), text(body, "destination", "")
    if not queue:
        raise bad_request("the queue name is empty")
    begin = whole(body, "from_rid", 0, (1 << 64) - 1)
    options = ["--json", "--create", f"--queue={_typed(queue)}", f"--from-rid={begin}" if begin else "--all"]
    options += [f"--to={_typed(destination)}"] if destination else []
    options += [f"--limit={limit}"] if (limit := whole(body, "limit", 0, 1 << 40)) else []
    options += ["--outstanding"] if boolean(body, "outstanding") else []
    job = api.collector.write(f"Replay {printable(queue)}", "qstore_replay", text(body, "target"), *options)
    return Reply(202, value=job.row())


# fmt: off
STORED_ROUTES: Final = (
    Route("POST", "qstore/login", "-", log_in, "Log in with the token"),
    Route("DELETE", "qstore/login", "-", log_out, "Log out"),
    Route("GET", "whoami", "", whoami, "The store"),
    Route("GET", "qstore/stored/check", "", checked, "Findings of qstore-check"),
    Route("GET", "qstore/stored/plan", "", planned, "Plan of a recovery"),
    Route("GET", "qstore/stored/queues/{queue}/messages", "", messages,
          "Messages that a restart would deliver, in pages"),
    Route("GET", "qstore/stored/queues/{queue}/messages/{rid}", "", message, "One message, with its body"),
    Route("GET", "qstore/stored/queues/{queue}/records", "", records,
          "The records of a journal in the order of writing"),
    Route("GET", "qstore/stored/bytes", "", content, "The bytes around an offset in a file"),
    Route("GET", "qstore/stored/jobs", "", jobs, "Jobs, running and finished"),
    Route("POST", "qstore/stored/recover", "", recover, "Recover the store into a new directory"),
    Route("POST", "qstore/stored/export", "", export, "Export messages and topology to a new file"),
    Route("POST", "qstore/stored/replay", "", replay,
          "Replay a queue's messages, including delivered ones, into a new store"),
)
# fmt: on
