"""`qpid-cluster-store`: whether a cluster may start from a broker's store, and marks it as the one to start from.

It stands for qpidd's tool of this name: `-d DIR` and `-c DIR` are its options. It can do more: ask before it marks,
refuse a store that is in use, check the stores of all members together, and set a store aside.

Exit codes: 0 fine, 1 the stores do not fit together, 2 something cannot be used, or was not confirmed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import click
from rich.text import Text

from store.cluster.identity import NOBODY, Identity, IdentityError, State, StoreIdentity
from store.cluster.rules import Verdict, plan_join, plan_start
from store.disk import OsDisk
from store.environment import tool_environment
from store.errors import StoreError
from store.inspect.layout import UnusableInputError
from tools.check.report import plain_console
from tools.console.json_lines import JsonLines
from tools.console.progress import reading_progress
from tools.console.text import printable
from tools.entry import EXIT_DAMAGE, PathName, distribution_version, fail, failing, run
from tools.identity.candidates import Candidate, candidate, ranked
from tools.identity.change import NotToBeChangedError, held
from tools.identity.look import Look, UnusableDirectoryError, look
from tools.identity.objects import Object, candidate_object, change_object, store_object, verdict_object
from tools.identity.report import show_candidates, show_store, show_verdict

_PROGRAM: Final = "qpid-cluster-store"
_ALIAS: Final = "qstore-identity"

_EPILOG = """
\b
Examples:
qpid-cluster-store /var/lib/qpidd               cluster-id, shutdown-id, state, backups
qpid-cluster-store /srv/a /srv/b /srv/c         can these three start a cluster, and what will each do
qpid-cluster-store --best /srv/a /srv/b         which was written last
qpid-cluster-store -c /srv/b                    mark it as the one to start from

\b
All members have failed, and they say "Cannot recover, no clean store":
cd /srv/b; mv rhm rhm.bak; cp -a _cluster.bak.0002/rhm .     if the store was discarded: the highest number
qpid-cluster-store -c /srv/b                                 then start all brokers; they begin with this store

\b
empty  not used in a cluster
dirty  may be behind the other members. Outside a cluster such a store is simply opened and recovered
clean  as it was when all members stopped, or the last one had it alone: a cluster can start from it

\b
Exit codes: 0 fine, 1 the stores do not fit together, 2 something cannot be used, or was not confirmed.
"""


class _Uuid(click.ParamType[UUID]):
    """A UUID; with `or_new`, also the word "new", which makes one."""

    name = "uuid"

    def __init__(self, *, or_new: bool = False) -> None:
        self._or_new = or_new

    def convert(self, value: str | UUID, param: click.Parameter | None, ctx: click.Context | None) -> UUID:
        """The UUID that `value` says."""
        if isinstance(value, UUID):
            return value
        if self._or_new and value == "new":
            return uuid4()
        try:
            found = UUID(value)
        except ValueError:
            self.fail(f"{value!r} is no UUID, as 6ba7b810-9dad-11d1-80b4-00c04fd430c8", param, ctx)
        if not found.int:
            self.fail("a UUID of zeros stands for none", param, ctx)
        return found


class _Output:
    """Where the report goes: JSON lines, or a console.

    Args:
        as_json: whether it is lines.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._console = plain_console()
        self._lines = JsonLines(sys.stdout.buffer) if as_json else None

    def store(self, found: Look) -> None:
        """One store."""
        if self._lines is None:
            show_store(self._console, found)
        else:
            self._show(store_object(found))

    def change(self, fields: Object, text: str) -> None:
        """What was done."""
        if self._lines is None:
            self._console.print(Text(printable(text)), soft_wrap=True)
        else:
            self._show(fields)

    def candidates(self, found: list[Candidate]) -> None:
        """The stores in their order."""
        if self._lines is None:
            show_candidates(self._console, found)
        for number, each in enumerate(found, 1):
            self._show(candidate_object(number, each))

    def verdict(self, of: str, verdict: Verdict, paths: list[str]) -> None:
        """Whether a cluster can be formed, or joined."""
        if self._lines is None:
            show_verdict(self._console, of, verdict, paths)
        else:
            self._show(verdict_object(of, verdict, paths))

    def _show(self, fields: Object) -> None:
        if self._lines is not None:
            self._lines.show(fields)
            self._lines.flush()


@click.command(_PROGRAM, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1, required=True, metavar="DIR...", type=PathName(readable=False))
@click.option("-d", "--display", is_flag=True, expose_value=False, help="Show the state, as without any option.")
@click.option("-c", "--mark-clean", "clean", is_flag=True, help="Mark the store of one DIR as clean.")
@click.option("--discard", "aside", is_flag=True, help="Set the store of one DIR aside as _cluster.bak.<nnnn>.")
@click.option("--cluster-id", type=_Uuid(or_new=True), help='With -c: the cluster it belongs to; "new" makes an id.')
@click.option("--join", type=_Uuid(), help="Whether each DIR may join the running cluster of this id.")
@click.option("--best", is_flag=True, help="Read the stores, and tell which was written last.")
@click.option("-y", "--yes", is_flag=True, help="Ask nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, instead of a report.")
@click.version_option(distribution_version(), prog_name=_PROGRAM)
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
    """Show, check and change the state that the stores of a cluster's brokers have.

    Each DIR is a broker's data directory. One is shown; of several it is also told whether these brokers, and no
    others, can start a cluster, and what each will do with its store.

    Only -c and --discard change anything: DIR/cluster/store.status, and --discard moves the store to
    DIR/_cluster.bak.<nnnn>. They are for disasters, when a cluster has failed as a whole, and refuse a store that a
    broker is using.
    """
    if clean + aside + best + (join is not None) > 1:
        raise click.UsageError("only one of -c, --discard, --best and --join can be done at a time")
    if (clean or aside) and len(paths) > 1:
        raise click.UsageError("-c and --discard take one DIR: which store all begin with is decided for one")
    if cluster_id is not None and not clean:
        raise click.UsageError("--cluster-id goes with -c")
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise click.UsageError("a DIR is named twice")
    output = _Output(as_json=as_json)
    with failing(_PROGRAM, UnusableDirectoryError, NotToBeChangedError, StoreError, UnusableInputError):
        if clean:
            _mark_clean(output, paths[0], cluster_id, yes=yes)
        elif aside:
            _discard(output, paths[0], yes=yes)
        code = _show(output, paths, join, best=best, quiet=clean or aside)
    context.exit(code)


def _show(output: _Output, paths: Sequence[str], join: UUID | None, *, best: bool, quiet: bool) -> int:
    """Show the stores, and what follows; returns the exit code."""
    environment = tool_environment()
    found = [look(environment, path) for path in paths]
    for each in found:
        output.store(each)
    if quiet:
        return 0
    verdicts: list[tuple[str, Verdict, list[str]]] = []
    if join is not None:
        verdicts = [("join", plan_join(join, each.member), [each.path]) for each in found]
    elif best:
        output.candidates(_best(found))
    elif len(found) > 1 or found[0].identity.state is State.CLEAN:
        verdicts = [("start", plan_start([each.member for each in found]), list(paths))]
    for of, verdict, members in verdicts:
        if verdict.problems or len(found) > 1 or join is not None:
            output.verdict(of, verdict, members)
    return EXIT_DAMAGE if any(verdict.problems for _, verdict, _ in verdicts) else 0


def _best(found: list[Look]) -> list[Candidate]:
    with reading_progress(OsDisk()) as disk:
        return ranked([candidate(disk, each.path) for each in found if each.roots])


def _mark_clean(output: _Output, path: str, cluster_id: UUID | None, *, yes: bool) -> None:
    with held(tool_environment(), path) as identity:
        cluster_id = identity.cluster_to_mark(cluster_id)
        before = _readable(identity)
        if before.state is State.CLEAN and before.cluster_id == cluster_id:
            output.change(change_object(path, "none", before), f"{path}: it is clean already; nothing was changed")
            return
        _confirm(
            f"{path}: all members of the cluster will begin with what this store holds, and discard their own. "
            "Mark it as clean?",
            yes=yes,
        )
        after = identity.mark_clean(identity.new_id(), cluster_id)
    output.change(change_object(path, "clean", after), f"{path}: marked clean")


def _readable(identity: StoreIdentity) -> Identity:
    """What it is; where it is damaged, and about to be written anew, nothing."""
    try:
        return identity.read()
    except IdentityError:
        return NOBODY


def _discard(output: _Output, path: str, *, yes: bool) -> None:
    with held(tool_environment(), path) as identity:
        _confirm(f"{path}: set its store aside as a backup, and make it empty?", yes=yes)
        backup = identity.discard()
        after = identity.read()
    text = "there was no store; it counts as empty" if backup is None else f"its store is in {backup} now"
    output.change(change_object(path, "discarded", after, backup), f"{path}: {text}")


def _confirm(question: str, *, yes: bool) -> None:
    """Ask, on standard error, unless that is answered already."""
    try:
        if yes or click.confirm(printable(question), err=True):
            return
    except click.Abort:
        click.echo(err=True)
    fail(_PROGRAM, "not confirmed (--yes does it without a question); nothing was changed")


def main() -> None:
    """The console script, under the name that it was called by."""
    run(_ALIAS if Path(sys.argv[0]).name == _ALIAS else _PROGRAM, command)


if __name__ == "__main__":
    main()
