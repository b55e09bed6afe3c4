"""Users and permissions that are changed while the power fails: each change is there as a whole, or not at all.

The user file and the store are on one simulated disk, which dies at every call of a sequence of changes. What the next
start finds are the users and permissions before or after the change under way, and never a permission of a user that
the file no longer has: a new user of that name must not inherit it.
"""

from __future__ import annotations

import os as real_os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import pytest

from qstore.broker.model.errors import ModelError
from qstore.broker.security import administration
from qstore.broker.security.acl.control import AccessControl
from qstore.broker.security.administration import Administration
from qstore.broker.security.permissions import PERMISSION
from qstore.broker.security.users import user_file
from qstore.broker.security.users.user_file import UserFileError, Users
from qstore.broker.security.users.verifiers import Verifiers
from tests.faults.broker_process import BrokerProcess
from tests.faults.simulated_disk import Call, SimulatedDisk, SimulatedFile, SimulatedWritableFile
from tests.support.compiled import replaces
from tests.support.management_console import CONSOLE
from tests.support.profiles import today

pytestmark = pytest.mark.usefixtures("quiet_logs")

FILE: Final = "/access/users"
HASHES: Final = (  # of RabbitMQ: nothing slow has to be made for them
    "TBybOvomyVw6BqBU/fHCEpVhDO7fLdQ4kxZDUpt6hagCxV8I",
    "AAAAAMGLxM+uAavE6kWf2yCmxl6sY1H95QnLL+AGPp9dYzWi",
)
State = tuple[dict[str, str], dict[tuple[str, ...], dict[str, Any]]]
"""Users and their verifiers, permissions and their values."""


class Files:
    """The calls of the user file to the operating system, on a simulated disk: in place of `os` and `Path` there."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self._open: dict[int, SimulatedFile | str] = {}
        for name in ("O_RDONLY", "O_WRONLY", "O_CREAT", "O_EXCL", "O_CLOEXEC", "O_DIRECTORY", "O_NONBLOCK", "O_NOCTTY"):
            setattr(self, name, getattr(real_os, name))

    def open(self, path: Any, flags: int, mode: int = 0) -> int:
        number = len(self._open)
        if flags & real_os.O_DIRECTORY:
            self._open[number] = str(path)
        elif flags & real_os.O_CREAT:
            assert (flags & real_os.O_EXCL, mode) == (real_os.O_EXCL, 0o600)
            self._open[number] = self.disk.create(str(path), 0)
        else:
            if not self.disk.is_file(str(path)):
                raise FileNotFoundError(2, "No such file or directory", str(path))
            self._open[number] = self.disk.open(str(path))
        return number

    def close(self, number: int) -> None:
        pass

    def fstat(self, _number: int) -> Any:
        return SimpleNamespace(st_mode=0o100600)

    def fsync(self, number: int) -> None:
        found = self._open[number]
        if isinstance(found, str):
            self.disk.sync_directory(found)
        else:
            assert isinstance(found, SimulatedWritableFile)
            found.sync()

    @contextmanager
    def fdopen(self, number: int, mode: str, encoding: str = "") -> Iterator[Any]:
        del encoding
        found = self._open[number]
        assert isinstance(found, SimulatedFile)
        if mode == "rb":
            yield SimpleNamespace(read=lambda limit: found.read(0, min(found.size, limit)))
            return
        assert isinstance(found, SimulatedWritableFile)

        def writelines(lines: Any) -> None:
            found.write(0, "".join(lines).encode())

        yield SimpleNamespace(writelines=writelines, flush=lambda: None, fileno=lambda: number)

    def path(self, name: Any) -> Any:
        """A `Path`, with what the user file does with it."""
        disk, text = self.disk, str(name)

        def unlink() -> None:
            if not disk.is_file(text):
                raise FileNotFoundError(2, "No such file or directory", text)
            disk.remove(text)

        def version() -> Any:
            if not disk.is_file(text):
                raise FileNotFoundError(2, "No such file or directory", text)
            names = ("st_ino", "st_dev", "st_size", "st_mtime_ns", "st_ctime_ns")
            return SimpleNamespace(**dict.fromkeys(names, object()))  # always another one: nothing is remembered

        return SimpleNamespace(
            unlink=unlink, stat=version, parent=PurePosixPath(text).parent, exists=lambda: disk.is_file(text),
            replace=lambda target: disk.rename(text, str(target)),
        )  # fmt: skip


@contextmanager
def files_on(disk: SimulatedDisk) -> Iterator[None]:
    files = Files(disk)
    with patch.object(user_file, "os", files), patch.object(user_file, "Path", files.path):
        yield


async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
    """In place of a thread."""
    return work(*arguments)


@contextmanager
def running_on(disk: SimulatedDisk, seed: int) -> Iterator[BrokerProcess]:
    process = BrokerProcess(disk, random.Random(seed), lambda: 1_700_000_000.0, lambda: None)
    try:
        yield process
    finally:
        process.discard()


def control_in(process: BrokerProcess) -> AccessControl:
    control = AccessControl(process.broker, None)
    control.users = Users(FILE)
    control.check_administration = lambda *_: None  # type: ignore[method-assign]
    return control


def found_on(disk: SimulatedDisk, seed: int) -> State:
    """What a start finds."""
    with running_on(disk, seed) as process, files_on(disk):
        users = Users(FILE)
        found = {name: _text(users.find(name)) for name in users.names()} if users.exists else {}
        permissions = {name: dict(values) for name, values in process.broker.configuration.of(PERMISSION).items()}
    return found, permissions


def _text(verifiers: Verifiers | None) -> str:
    assert verifiers is not None
    return verifiers.text()


def visit(seed: int) -> Counter[str]:
    """Make changes, and die at every call of the disk. Returns how often the change under way was there, or not."""
    disk = SimulatedDisk(seed)
    disk.make_directory("/access")
    disk.sync_directory("/")
    with running_on(disk, seed) as process:
        return _visit(disk, process, seed)


def _visit(disk: SimulatedDisk, process: BrokerProcess, seed: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    control = control_in(process)
    changes = Administration(control)
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    nothing = {**everything, "configure": ""}
    sequence: list[Callable[[], Any]] = [
        lambda: changes.put_user("ann", CONSOLE, tags=["administrator"], password_hash=HASHES[0]),
        lambda: changes.set_permission("ann", "/", everything, CONSOLE),
        lambda: changes.put_user("bob", CONSOLE, tags=[], password_hash=HASHES[0]),
        lambda: changes.set_permission("bob", "/", everything, CONSOLE),
        lambda: changes.set_permission("bob", "/", nothing, CONSOLE),
        lambda: changes.put_user("bob", CONSOLE, password_hash=HASHES[1]),
        lambda: changes.delete_user("bob", CONSOLE),
        lambda: changes.put_user("bob", CONSOLE, tags=["monitoring"], password_hash=HASHES[1]),
    ]
    rng = random.Random(seed)
    dead: list[tuple[SimulatedDisk, bool]] = []

    def died(call: Call) -> None:
        dead.extend((call.killed(rng.getrandbits(32), power_loss=loss), loss) for loss in (False, True))

    before: State = ({}, {})
    for number, change in enumerate(sequence):
        answers: list[ModelError | None] = []
        disk.watch = died
        with files_on(disk), patch.object(administration.asyncio, "to_thread", at_once):
            process.run(change(), answers.append)
            while not answers:
                process.tick()
                process.collect()
        disk.watch = lambda _call: None
        assert answers == [None]
        answered = disk.copy(rng.getrandbits(32))
        answered.crash(power_loss=True)
        after = found_on(answered, seed)
        assert after != before
        for each, loss in dead:
            users, permissions = found_on(each, seed)
            assert users in (before[0], after[0]), (number, loss)
            assert {name[0] for name in permissions} <= users.keys(), (number, loss)
            deletes = before[0].keys() > after[0].keys()
            assert permissions in (before[1], after[1])
            assert deletes or (users, permissions) in (before, after)
            counts["after" if users == after[0] and permissions == after[1] else "before"] += 1
        dead.clear()
        before = after
    return counts


def visit_all(seeds: Iterable[int]) -> Counter[str]:
    return sum(map(visit, seeds), Counter[str]())


def test_users_and_permissions_are_changed_as_a_whole() -> None:
    counts = visit_all(today(range(2), 1))
    assert counts["before"] > 30
    assert counts["after"] > 10


@replaces
@pytest.mark.parametrize("missing", ["fsync", "rename"])
def test_a_file_that_is_not_synced_or_not_exchanged_is_detected(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    if missing == "fsync":
        monkeypatch.setattr(Files, "fsync", lambda _self, _number: None)
    else:

        def in_place(users: Users, lines: list[str]) -> None:
            files = user_file.os
            text = "".join(line + "\n" for line in lines).encode()
            disk = files.disk  # type: ignore[attr-defined]
            if not disk.is_file(FILE):
                disk.create(FILE, 0).sync()
                disk.sync_directory("/access")
            opened = disk.open_writable(FILE)
            opened.write(0, text)
            opened.sync()

        monkeypatch.setattr(Users, "_replace", in_place)
    with pytest.raises((AssertionError, ValueError, UserFileError)):
        visit_all(range(5))


def test_a_deletion_in_the_other_order_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def first_the_user(changes: Administration, name: str, _caller: Any) -> None:
        changes._users().remove(name)
        await changes._control.permissions.forget(name)

    monkeypatch.setattr(Administration, "delete_user", first_the_user)
    with pytest.raises(AssertionError):
        visit_all(range(5))
