"""Reads a store with the tools, and one of version 2 with the broker's store; with a bound on time and memory.

All of it runs in this process, on a store that may be damaged in any way. Exceptions that are let out, what takes
longer than `MAX_SECONDS`, and memory beyond `MAX_GROWTH` are collected as faults.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from click.testing import CliRunner

from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError
from qstore.store.live.message_store import MessageStore
from qstore.store.log_lines import Level, LogLine
from qstore.store.parameters import OnDamage
from qstore.tools.qstore_recover import command as recover_command
from tests.support.dump import Dump, dump
from tests.support.opened_store import PARAMETERS
from tests.support.planted_damage import check
from tests.support.recover_runs import Facts, facts

MAX_SECONDS: Final = 60  # of one command; the slowest takes one on an idle machine
MAX_GROWTH: Final = 200 << 20  # bytes that a command may add to the process
_LISTS: Final = frozenset({"exchange", "queue", "binding", "message", "transaction", "link", "bridge", "object"})
_RESET_PEAK: Final = b"5"  # proc(5), clear_refs

_Result = TypeVar("_Result")


class TooSlowError(BaseException):
    """A command has had its time. Nothing that it runs catches this."""


class Seen(NamedTuple):
    """What was made of a store.

    Attributes:
        code: `qstore-check`'s exit code; None if it did not end as it should.
        reported: the damage that it reported.
        content: what `qstore-dump` shows of what is there: its lines; None where it shows nothing.
        recover_code: `qstore-recover`'s exit code.
        recovered: what the store holds that it built; None where it built none.
        refusing: what the broker's store has with on-damage refuse; None where it refuses.
        lenient: what it has otherwise; None where it refuses.
        critical: the critical lines that it has logged then.
        faults: what none of them may do, one line each.
    """

    code: int | None
    reported: list[Any]
    content: list[str] | None
    recover_code: int | None
    recovered: Facts | None
    refusing: list[str] | None
    lenient: list[str] | None
    critical: list[str]
    faults: list[str]


@dataclass
class _Watch:
    """Runs what may fail."""

    faults: list[str] = field(default_factory=list)

    def run(self, name: str, call: Callable[[], _Result]) -> _Result | None:
        """What `call` gives, or None if it fails, which is noted."""
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_bytes(_RESET_PEAK)
        try:
            with _limited_time():
                result = call()
        except TooSlowError as error:
            self.faults.append(f"{name}: not done after {MAX_SECONDS} s: {_where(error)}")
            return None
        except Exception as error:
            self.faults.append(f"{name}: {error!r}: {_where(error)}")
            return None
        growth = _memory("VmHWM") - before
        if growth > MAX_GROWTH:
            self.faults.append(f"{name}: {growth >> 20} MiB of memory")
        return result

    def complain(self, name: str, text: str) -> None:
        """Note what was not said as it should be."""
        self.faults.append(f"{name}: {text}")


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-4:]))


@contextmanager
def _limited_time() -> Iterator[None]:
    def stop(_signal: int, _frame: object) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MAX_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _memory(name: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


# ---- the tools ----


def look(path: Path, scratch: Path, *, is_version_2: bool) -> Seen:
    """Check, dump and recover a store, and open copies of it. Nothing at `path` is written to.

    Args:
        path: the store.
        scratch: a directory that is not there, and is not there afterwards.
        is_version_2: whether the broker's store opens it as it is.
    """
    scratch.mkdir()
    watch = _Watch()
    try:
        checked = watch.run("qstore-check", lambda: check(path))
        content = _content(watch, path)
        recovered = watch.run("qstore-recover", lambda: _recover(path, scratch / "recovered"))
        dest = None
        if recovered is not None and recovered.code != 2:
            shown = watch.run("qstore-dump of DEST", lambda: dump(scratch / "recovered", "--outstanding", "--json"))
            dest = None if shown is None else facts(shown)
            if shown is not None and shown.code != 0:
                watch.complain("qstore-recover", f"made a damaged store: {shown.out[-300:]!r} {shown.errors}")
        refusing, lenient, critical = None, None, list[str]()
        if is_version_2:
            refusing, _ = _opened(watch, path, scratch / "refuse", OnDamage.REFUSE)
            lenient, critical = _opened(watch, path, scratch / "keep", OnDamage.QUARANTINE)
        for name, result in (("qstore-check", checked), ("qstore-recover", recovered)):
            if result is not None and result.code == 2:
                _check_refusal(watch, name, result.errors)
        reported = [] if checked is None or checked.code == 2 else checked.lines("damage")
        codes = (None if each is None else each.code for each in (checked, recovered))
        return Seen(next(codes), reported, content, next(codes), dest, refusing, lenient, critical, watch.faults)
    finally:
        shutil.rmtree(scratch)


def _check_refusal(watch: _Watch, name: str, errors: str) -> None:
    """A refusal is one line that says where and why."""
    lines = errors.strip().splitlines()
    if len(lines) != 1 or not lines[0].startswith(f"{name}: ") or len(lines[0]) < 40:
        watch.complain(name, f"refuses without a clear line: {errors!r}")


def _content(watch: _Watch, path: Path) -> list[str] | None:
    """What a restart would bring back, by `qstore-dump`."""
    shown = watch.run("qstore-dump", lambda: dump(path, "--outstanding", "--json"))
    topology = watch.run("qstore-dump --topology", lambda: dump(path, "--topology", "--json"))
    if shown is None or topology is None or 2 in (shown.code, topology.code):
        return None
    lines = [line for line in shown.lines() if _is_there(line)]
    lines += [line for line in topology.lines() if line["kind"] in ("link", "bridge", "object")]
    messages = [str(line) for line in lines if line["kind"] == "message"]
    return sorted(str(line) for line in lines if line["kind"] != "message") + sorted(messages, key=_queue_of)


def _is_there(line: dict[str, Any]) -> bool:
    """Whether a line is about something that a restart brings back: not damage, nor a transaction that is dropped."""
    return line["kind"] in _LISTS and not (line["kind"] == "transaction" and line["state"] != "in-doubt")


def _queue_of(message: str) -> str:
    return message[: message.index("'rid'")]


def _recover(source: Path, target: Path) -> Dump:
    result = CliRunner().invoke(
        recover_command, [os.fspath(source), os.fspath(target), "--json"], catch_exceptions=False
    )
    return Dump(result.exit_code, result.stdout_bytes, result.stderr_bytes)


# ---- the broker's store ----


def _opened(watch: _Watch, path: Path, copy: Path, on_damage: OnDamage) -> tuple[list[str] | None, list[str]]:
    """What the store offers a broker, None where it refuses, and the critical lines that it logs."""
    copy_tree(path, copy)
    lines: list[LogLine] = []

    def open_it() -> list[str] | None:
        parameters = replace(PARAMETERS, on_damage=on_damage)
        try:
            store = MessageStore.open(tool_environment(), str(copy), parameters, "0.1.0", log=lines.append)
        except StoreError as error:
            if "\n" in str(error) or str(copy) not in str(error):
                watch.complain(f"the store ({on_damage.value})", f"refuses without a clear line: {error}")
            return None
        with store:
            return _offered(store)

    found = watch.run(f"the store ({on_damage.value})", open_it)
    return found, [line.text for line in lines if line.level is Level.CRITICAL]


def copy_tree(path: Path, copy: Path) -> None:
    """Copy a store with whatever is in it: links, FIFOs and sockets too."""
    special: list[Path] = []

    def left_out(directory: str, names: list[str]) -> list[str]:
        found = [Path(directory, name) for name in names]
        others = [each for each in found if not (each.is_symlink() or each.is_dir() or each.is_file())]
        special.extend(others)
        return [each.name for each in others]

    shutil.copytree(path, copy, symlinks=True, ignore=left_out)
    for each in special:
        os.mknod(copy / each.relative_to(path), each.stat().st_mode)


def _offered(store: MessageStore) -> list[str]:
    topology = store.topology
    found = [f"exchange {each}" for each in topology.exchanges.values()]
    found += [f"binding {each.exchange.name} {each.record}" for each in topology.bindings]
    found += [f"object {each}" for each in topology.general.values()]
    found += [f"in doubt {xid.hex()}" for xid in store.transactions.in_doubt]
    found += [f"queue {queue.record}" for queue in store.recovered_queues]
    messages = [
        f"message {queue.record.name} {each.state} {each.xid!r} {each.data!r}"
        for queue in sorted(store.recovered_queues, key=lambda queue: queue.record.name)
        for each in store.messages(queue)
    ]
    store.end_recovery()
    return sorted(found) + messages
