"""`qpid-cluster-store`: show whether a cluster may start from a broker's store, and select the store to start from.

It replaces Apache's tool of this name and has its options `-d DIR` and `-c DIR`. In addition it asks for confirmation,
refuses a store that is in use, checks the stores of all members together, and can move a store aside.

Exit codes: 0 success, 1 the stores do not fit together, 2 a store or the command line is unusable, or the change was
not confirmed.
"""

from __future__ import annotations

import fcntl
import os
import posixpath
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import click
from rich.console import Console
from rich.text import Text

from qstore import __version__
from qstore.broker.process.held_files import holder_of, lock_path
from qstore.formats.named_tuple import NamedTuple
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.cluster.identity import (
    NOBODY,
    STORE_ROOTS,
    Backup,
    ClusterIds,
    IdentityError,
    State,
    StoreIdentity,
    backups_in,
    read_identity,
    stores_in,
)
from qstore.store.cluster.rules import Member, Verdict, plan_join, plan_start
from qstore.store.disk import Disk, OsDisk
from qstore.store.environment import Environment, tool_environment
from qstore.store.errors import StoreError
from qstore.store.inspect.layout import StoreKind, UnusableInputError, find_layout
from qstore.store.inspect.offline import open_store
from qstore.tools.console.command import EXIT_DAMAGE, JSON, SETTINGS, YES, PathName, fail, failing, run
from qstore.tools.console.progress import reading_progress
from qstore.tools.console.rows import Column, Object, plain_console, print_grid, print_json, print_wrapped
from qstore.tools.console.text import escape_name, printable

_PROGRAM: Final = "qpid-cluster-store"
_ALIAS: Final = "qstore-identity"

_EPILOG = """
\b
Examples:
qpid-cluster-store /var/lib/qpidd               show cluster-id, shutdown-id, state and backups
qpid-cluster-store /srv/a /srv/b /srv/c         check whether these three can start a cluster
qpid-cluster-store --best /srv/a /srv/b         find the store that was written last
qpid-cluster-store -c /srv/b                    mark it clean: the cluster starts from it

\b
If all members refuse to start with "Cannot recover, no clean store":
cd /srv/b; mv rhm rhm.bak; cp -a _cluster.bak.0002/rhm .     if the store was discarded: the highest number
qpid-cluster-store -c /srv/b                                 then start all brokers; they start from this store

\b
States of a store:
empty  not used in a cluster
dirty  may be behind the other members; outside a cluster a broker opens and recovers it as usual
clean  complete: all members were shut down, or this was the last one running; a cluster can start from it

\b
Exit codes: 0 success, 1 the stores do not fit together, 2 a store or the command line is unusable, or the change
was not confirmed.
"""


class _Uuid(click.ParamType[UUID]):
    """Option type for a UUID; with `or_new`, the word "new" generates one."""

    name = "uuid"

    def __init__(self, *, or_new: bool = False) -> None:
        self._or_new = or_new

    def convert(self, value: str | UUID, param: click.Parameter | None, ctx: click.Context | None) -> UUID:
        """Parse `value` as a UUID."""
        if isinstance(value, UUID):
            return value
        if self._or_new and value == "new":
            return uuid4()
        try:
            found = UUID(value)
        except ValueError:
            self.fail(f"{value!r} is not a UUID, such as 6ba7b810-9dad-11d1-80b4-00c04fd430c8", param, ctx)
        if not found.int:
            self.fail("a UUID of zeros means no id", param, ctx)
        return found


class _Report:
    """Prints what was found and done, as JSON lines or as text.

    Args:
        as_json: whether to print JSON lines.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._console = plain_console()
        self._as_json = as_json

    def store(self, found: Look) -> None:
        """One store."""
        if self._as_json:
            print_json([store_object(found)])
        else:
            show_store(self._console, found)

    def change(self, fields: Object, text: str) -> None:
        """A change."""
        if self._as_json:
            print_json([fields])
        else:
            self._console.print(Text(printable(text)), soft_wrap=True)

    def candidates(self, found: list[Candidate]) -> None:
        """The stores in order, last written first."""
        if self._as_json:
            print_json(candidate_object(rank, each) for rank, each in enumerate(found, 1))
        else:
            show_candidates(self._console, found)

    def verdict(self, of: str, verdict: Verdict, paths: list[str]) -> None:
        """Whether a cluster can be formed, or joined."""
        if self._as_json:
            print_json([verdict_object(of, verdict, paths)])
        else:
            show_verdict(self._console, of, verdict, paths)


@click.command(_PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("paths", nargs=-1, required=True, metavar="DIR...", type=PathName(readable=False))
@click.option("-d", "--display", is_flag=True, expose_value=False, help="Show the state; this is the default.")
@click.option(
    "-c",
    "--mark-clean",
    "clean",
    is_flag=True,
    help="Mark the store of one DIR clean, so that the cluster starts from it.",
)
@click.option(
    "--discard", "aside", is_flag=True, help="Move the store of one DIR to DIR/_cluster.bak.<nnnn> and leave it empty."
)
@click.option(
    "--cluster-id",
    type=_Uuid(or_new=True),
    help='With -c: the cluster to which the store belongs; "new" generates an id.',
)
@click.option("--join", type=_Uuid(), help="Check whether each DIR may join the running cluster with this cluster-id.")
@click.option("--best", is_flag=True, help="Read the stores and report which one was written last.")
@YES
@JSON
@click.version_option(__version__, prog_name=_PROGRAM)
@click.pass_context
def command(
    context: click.Context,
    paths: tuple[str, ...],
    *,
    clean: bool,
    aside: bool,
    cluster_id: UUID | None,
    join: UUID | None,
    best: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show, check and change the cluster state of the stores of a cluster's brokers.

    Each DIR is a broker's data directory. For several, the report also states whether exactly these brokers can start a
    cluster, and what each will do with its store. Outside a cluster a dirty store is simply recovered.

    Only -c and --discard change anything: -c rewrites DIR/cluster/store.status, and --discard also moves the store to
    DIR/_cluster.bak.<nnnn>. They are meant for the case that the whole cluster has failed, and refuse a store that a
    broker is using.
    """
    if clean + aside + best + (join is not None) > 1:
        raise click.UsageError("-c, --discard, --best and --join cannot be combined")
    if (clean or aside) and len(paths) > 1:
        raise click.UsageError("-c and --discard take exactly one DIR")
    if cluster_id is not None and not clean:
        raise click.UsageError("--cluster-id requires -c")
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise click.UsageError("the same DIR is given twice")
    report = _Report(as_json=as_json)
    with failing(_PROGRAM, UnusableDirectoryError, NotToBeChangedError, StoreError, UnusableInputError):
        if clean:
            _mark_clean(report, paths[0], cluster_id, yes=yes)
        elif aside:
            _discard(report, paths[0], yes=yes)
        code = _show(report, paths, join, best=best, quiet=clean or aside)
    context.exit(code)


def _show(report: _Report, paths: Sequence[str], join: UUID | None, *, best: bool, quiet: bool) -> int:
    """Show the stores and the verdict; returns the exit code."""
    environment = tool_environment()
    found = [look(environment, path) for path in paths]
    for each in found:
        report.store(each)
    if quiet:
        return 0
    verdicts: list[tuple[str, Verdict, list[str]]] = []
    if join is not None:
        verdicts = [("join", plan_join(join, each.member), [each.path]) for each in found]
    elif best:
        report.candidates(_best(found))
    elif len(found) > 1 or found[0].identity.state is State.CLEAN:
        verdicts = [("start", plan_start([each.member for each in found]), list(paths))]
    for of, verdict, members in verdicts:
        if verdict.problems or len(found) > 1 or join is not None:
            report.verdict(of, verdict, members)
    return EXIT_DAMAGE if any(verdict.problems for _, verdict, _ in verdicts) else 0


def _best(found: list[Look]) -> list[Candidate]:
    with reading_progress(OsDisk()) as disk:
        return ranked([candidate(disk, each.path) for each in found if each.roots])


def _mark_clean(report: _Report, path: str, cluster_id: UUID | None, *, yes: bool) -> None:
    with held(tool_environment(), path) as identity:
        cluster_id = identity.cluster_to_mark(cluster_id)
        before = _readable(identity)
        if before.state is State.CLEAN and before.cluster_id == cluster_id:
            report.change(change_object(path, "none", before), f"{path}: already clean; nothing was changed")
            return
        _confirm(
            f"{path}: all members of the cluster will start from this store and discard their own. Mark it as clean?",
            yes=yes,
        )
        after = identity.mark_clean(identity.new_id(), cluster_id)
    report.change(change_object(path, "clean", after), f"{path}: marked clean")


def _readable(identity: StoreIdentity) -> ClusterIds:
    """Cluster state of a store; None if the file is damaged, because it is about to be rewritten."""
    try:
        return identity.read()
    except IdentityError:
        return NOBODY


def _discard(report: _Report, path: str, *, yes: bool) -> None:
    with held(tool_environment(), path) as identity:
        _confirm(f"{path}: move its store to a backup directory and leave it empty?", yes=yes)
        backup = identity.discard()
        after = identity.read()
    text = "there was no store; it counts as empty" if backup is None else f"its store was moved to {backup}"
    report.change(change_object(path, "discarded", after, backup), f"{path}: {text}")


def _confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on standard error, unless --yes was given."""
    try:
        if yes or click.confirm(printable(question), err=True):
            return
    except click.Abort:
        click.echo(err=True)
    fail(_PROGRAM, "not confirmed (--yes skips the question); nothing was changed")


# ---- what a data directory has ----


class UnusableDirectoryError(Exception):
    """The data directory does not exist or cannot be read. One line."""


class Look(NamedTuple):
    """The content of a data directory.

    Attributes:
        path: the data directory.
        identity: the store's cluster identity.
        roots: names of the stores in it: `rhm`, `qls`.
        kind: format of the first of them; None if there is none, or it is unknown.
        closed_cleanly: version 2: the mark in the STORE file; None for other formats, or if the file has none.
        backups: stores that were discarded, the newest last.
        notices: one line each, for the user.
    """

    path: str
    identity: ClusterIds
    roots: list[str]
    kind: StoreKind | None
    closed_cleanly: bool | None
    backups: list[Backup]
    notices: list[str]

    @property
    def member(self) -> Member:
        """The same data as input for the rules."""
        return Member(self.path, self.identity, bool(self.roots))


def look(environment: Environment, path: str) -> Look:
    """Read the data directory `path`.

    Raises:
        UnusableDirectoryError: there is none, or its identity cannot be read.
    """
    disk = environment.disk
    try:
        check_directory(disk, path)
        identity, roots, backups = read_identity(disk, path), stores_in(disk, path), backups_in(disk, path)
        kind, closed_cleanly, notices = _look_at_store(environment, path) if roots else (None, None, [])
    except IdentityError as error:
        advice = "; if its store is the one to start from, qpid-cluster-store -c --cluster-id UUID rewrites it"
        raise UnusableDirectoryError(f"{error}{advice}") from None
    except OSError as error:
        raise UnusableDirectoryError(f"{error.filename or path}: {error.strerror or error}") from error
    notices += _notices(path, identity, roots, closed_cleanly)
    return Look(path, identity, roots, kind, closed_cleanly, backups, notices)


def check_directory(disk: Disk, path: str) -> None:
    """Check that `path` can be a data directory. For the store directory inside it, the report would be "empty".

    Raises:
        UnusableDirectoryError: it is not one.
        OSError: it cannot be read.
    """
    if not disk.is_directory(path):
        raise UnusableDirectoryError(
            f"{path}: there is no such directory; name the data directory of the store's broker"
        )
    real = disk.real_path(path)
    if posixpath.basename(real) in (*STORE_ROOTS, "cluster") and not stores_in(disk, path):
        raise UnusableDirectoryError(f"{path}: name the data directory that contains it, {posixpath.dirname(real)}")


def _look_at_store(environment: Environment, path: str) -> tuple[StoreKind | None, bool | None, list[str]]:
    try:
        kind = find_layout(environment.disk, path).kind
        mark = StoreDirectory(environment, path, "").read_mark() if kind is StoreKind.VERSION_2 else None
    except UnusableInputError as error:
        return None, None, [str(error)]
    except StoreError as error:
        return StoreKind.VERSION_2, None, [str(error)]
    return kind, None if mark is None else mark.clean_close, []


def _notices(path: str, identity: ClusterIds, roots: list[str], closed_cleanly: bool | None) -> list[str]:
    found = []
    if len(roots) > 1:
        found.append(f"{path}: there are two stores, {' and '.join(roots)}; the status applies to both")
    if identity.state is State.CLEAN and closed_cleanly is False:
        found.append(
            f"{path}: marked clean, but its broker did not close it: it crashed as the last one running, or has used "
            "the store since without the cluster"
        )
    return found


# ---- --best: which store to start from ----
#
# All members of a cluster perform the same operations on their stores in the same order, so the store of the broker
# that ran longest is the most complete. The indicator is the time of the last write to a journal: it depends on the
# hosts' clocks, and `cp` without `-p` or `-a` loses it. The number of messages is no indicator, because later ones may
# have been consumed. The decision is the operator's.


class Candidate(NamedTuple):
    """A store that could be the one to start from.

    Attributes:
        path: the data directory.
        last_write: latest write to its journals, UTC; None if it has none.
        queues: number of queues.
        messages: number of messages that would be delivered.
        transactions: number of open transactions.
        damage: number of damaged places.
    """

    path: str
    last_write: datetime | None
    queues: int
    messages: int
    transactions: int
    damage: int


def candidate(disk: Disk, path: str) -> Candidate:
    """Read the store in a data directory. Raises UnusableInputError, OSError."""
    store = open_store(disk, path)
    try:
        recovered = store.recover()
        files = [file.path for journal in store.all_journals() for file in journal.files.files]
        return Candidate(
            path,
            _last_write(files),
            len(recovered.queues),
            sum(queue.deliverable for queue in recovered.queues),
            len(recovered.transactions),
            len(store.damage),
        )
    finally:
        store.close()


def ranked(candidates: list[Candidate]) -> list[Candidate]:
    """The latest first; among those written at the same time the one with less damage."""
    first = datetime.min.replace(tzinfo=UTC)
    return sorted(candidates, key=lambda each: (each.last_write or first, -each.damage), reverse=True)


def _last_write(files: list[str]) -> datetime | None:
    return datetime.fromtimestamp(max(Path(file).stat().st_mtime for file in files), UTC) if files else None


# ---- -c and --discard ----


class NotToBeChangedError(Exception):
    """The store is in use, or belongs to another user. One line."""


@contextmanager
def held(environment: Environment, path: str) -> Iterator[StoreIdentity]:
    """The identity in the data directory `path`, while brokers are locked out.

    Raises:
        UnusableDirectoryError: there is none.
        NotToBeChangedError: it may not be changed now, or not by this user.
        StoreError: another process has the store open.
    """
    try:
        check_directory(environment.disk, path)
        _check_owner(path)
        _check_broker(path)
        lock = StoreDirectory(environment, path, "").lock()
    except OSError as error:
        raise NotToBeChangedError(f"{error.filename or path}: {error.strerror or error}") from error
    try:
        # A store that was just copied into place may not be synced yet; the mark must not become durable before it.
        os.sync()
        identity = StoreIdentity(environment, path)
        identity.finish_interrupted()
        yield identity
    finally:
        lock.release()


def _check_owner(path: str) -> None:
    """Files that root creates in a directory of the broker's own user would not be readable by the broker."""
    owner = Path(path).stat().st_uid
    if os.geteuid() == 0 and owner != 0:
        raise NotToBeChangedError(
            f"{path}: the directory belongs to another user than root, and the broker could not read files that root "
            f"writes there; run this as that user: sudo -u '#{owner}' …"
        )


def _check_broker(path: str) -> None:
    lock = Path(lock_path(path))
    if lock.exists() and not lock.is_file():
        raise NotToBeChangedError(f"{lock}: this is not a lock file, so it is unknown whether a broker is running")
    holder = holder_of(str(lock))
    if holder is not None or _is_locked_by_qpidd(str(lock)):
        who = "a broker" if holder is None else f"process {holder}"
        raise NotToBeChangedError(f"{path}: {who} is using this directory; stop it first (qpidd --quit)")


def _is_locked_by_qpidd(path: str) -> bool:
    """Whether the lock file is locked in the way of Apache qpidd, with lockf(3), which `holder_of` cannot see."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


# ---- JSON ----
#
# kind       fields
# ---------  --------------------------------------------------------------------------------------------------
# store      path, state, cluster_id, shutdown_id, store (`qstore`, `legacystore`, `linearstore` or null), roots,
# closed_cleanly (of a qstore; otherwise null), backups, notices
# change     path, change (`clean`, `discarded`, `none`), cluster_id, shutdown_id, backup
# candidate  path, rank (from 1), last_write, queues, messages, transactions, damage
# verdict    of (`start`, `join`), possible, cluster_id, problems, actions (path -> `begin`, `restore`, …)


def store_object(found: Look) -> Object:
    """A store."""
    return {
        "kind": "store",
        "path": escape_name(found.path),
        "state": found.identity.state.value,
        "cluster_id": _text(found.identity.cluster_id),
        "shutdown_id": _text(found.identity.shutdown_id),
        "store": None if found.kind is None else found.kind.value,
        "roots": found.roots,
        "closed_cleanly": found.closed_cleanly,
        "backups": [escape_name(backup.path) for backup in found.backups if backup.has_store],
        "notices": [escape_name(notice) for notice in found.notices],
    }


def change_object(path: str, change: str, identity: ClusterIds, backup: str | None = None) -> Object:
    """What was done."""
    return {
        "kind": "change",
        "path": escape_name(path),
        "change": change,
        "cluster_id": _text(identity.cluster_id),
        "shutdown_id": _text(identity.shutdown_id),
        "backup": None if backup is None else escape_name(backup),
    }


def candidate_object(rank: int, found: Candidate) -> Object:
    """A store that could be the one to start from."""
    fields = found._asdict()
    fields["path"] = escape_name(found.path)
    return {"kind": "candidate", "rank": rank, **fields}


def verdict_object(of: str, verdict: Verdict, paths: list[str]) -> Object:
    """Whether a cluster can be formed, or joined."""
    return {
        "kind": "verdict",
        "of": of,
        "possible": not verdict.problems,
        "cluster_id": _text(verdict.cluster_id),
        "problems": [escape_name(problem) for problem in verdict.problems],
        "actions": {
            escape_name(path): action.name.lower()
            for path, action in zip(paths, verdict.actions, strict=not verdict.problems)
        },
    }


def _text(uuid: UUID | None) -> str | None:
    return None if uuid is None else str(uuid)


# ---- text ----

_STYLES = {State.EMPTY: "dim", State.DIRTY: "bold yellow", State.CLEAN: "bold green"}
_MEANINGS = {
    State.EMPTY: "not used in a cluster",
    State.DIRTY: "a cluster cannot start from it; outside a cluster it is simply recovered",
    State.CLEAN: "a cluster can start from it",
}
_MAX_BACKUPS = 5


def show_store(console: Console, found: Look) -> None:
    """One store."""
    state = found.identity.state
    head = Text(f"{printable(found.path)}: ", style="bold")
    head.append(state.value, style=_STYLES[state])
    head.append(f" ({_MEANINGS[state]})", style="not bold")
    console.print(head, soft_wrap=True)
    for name, value in (
        ("cluster-id", str(found.identity.cluster_id or "none")),
        ("shutdown-id", str(found.identity.shutdown_id or "none")),
        ("store", _store(found)),
        ("backups", _backups(found)),
    ):
        print_wrapped(console, f"  {name:<12} {printable(value)}")
    for notice in found.notices:
        print_wrapped(console, f"notice: {printable(notice)}")


def _store(found: Look) -> str:
    if not found.roots:
        return "none"
    names = " and ".join(found.roots)
    if found.kind is None:
        return f"{names}: of unknown format"
    if found.kind is not StoreKind.VERSION_2 or found.closed_cleanly is None:
        return f"{names}: {found.kind.value}"
    how = "closed cleanly" if found.closed_cleanly else "in use, or not closed cleanly: opening it recovers it"
    return f"{names}: {found.kind.value}, {how}"


def _backups(found: Look) -> str:
    names = [backup.path.rpartition("/")[2] for backup in found.backups if backup.has_store]
    if not names:
        return "none"
    earlier = f"… {len(names) - _MAX_BACKUPS} earlier, " if len(names) > _MAX_BACKUPS else ""
    return earlier + ", ".join(names[-_MAX_BACKUPS:]) + (" (the newest)" if len(names) > 1 else "")


_CANDIDATE_COLUMNS: Final = (
    Column("STORE", lambda each: Text(printable(each.path)), folds=True),
    Column(
        "LAST WRITE (UTC)", lambda each: "-" if each.last_write is None else f"{each.last_write:%Y-%m-%d %H:%M:%S.%f}"
    ),
    Column("QUEUES", lambda each: f"{each.queues:,}", number=True),
    Column("MESSAGES", lambda each: f"{each.messages:,}", number=True),
    Column("OPEN TX", lambda each: f"{each.transactions:,}", number=True),
    Column("DAMAGE", lambda each: f"{each.damage:,}", number=True),
)


def show_candidates(console: Console, candidates: list[Candidate]) -> None:
    """The stores, last written first."""
    print_grid(console, _CANDIDATE_COLUMNS, candidates)
    console.print(Text("The store that was written last is the most complete, provided that the hosts' clocks agree."))


def show_verdict(console: Console, of: str, verdict: Verdict, paths: list[str]) -> None:
    """Whether a cluster can be formed, or joined."""
    if verdict.problems:
        console.print(Text(f"The cluster cannot {_WORDS[of]}:", style="bold red"))
        for problem in verdict.problems:
            print_wrapped(console, f"  {printable(problem)}")
        for advice in _advice(of, verdict):
            print_wrapped(console, advice)
        return
    cluster = "" if verdict.cluster_id is None else f" {verdict.cluster_id}"
    console.print(Text(f"The cluster{cluster} can {_WORDS[of]}:", style="bold green"), soft_wrap=True)
    for path, action in zip(paths, verdict.actions, strict=True):
        console.print(Text(f"  {printable(path)} {action.value}"), soft_wrap=True)


_WORDS = {"start": "start", "join": "be joined"}


def _advice(of: str, verdict: Verdict) -> list[str]:
    if verdict.lacks_clean:
        return ["Find the store to start from (--best), and mark it clean: qpid-cluster-store -c DIR"]
    if of == "start":
        return [
            "Decide which stores to start from, and move the others aside: qpid-cluster-store --discard DIR",
            "To start a new cluster from a store never used in one: qpid-cluster-store -c --cluster-id new DIR",
        ]
    return ["To join anyway, move the store aside: qpid-cluster-store --discard DIR"]


def main() -> None:
    """Console script entry point; uses the name by which it was called."""
    run(_ALIAS if Path(sys.argv[0]).name == _ALIAS else _PROGRAM, command)


if __name__ == "__main__":
    main()
