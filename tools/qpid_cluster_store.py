"""`qpid-cluster-store`: show whether a cluster may start from a broker's store, and select the store to start from.

It replaces Apache's tool of this name and has its options `-d DIR` and `-c DIR`. In addition it asks for confirmation,
refuses a store that is in use, checks the stores of all members together, and can move a store aside.

Exit codes: 0 success, 1 the stores do not fit together, 2 a store or the command line is unusable, or the change was
not confirmed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import click
from rich.text import Text

from qstore import __version__
from qstore.store.cluster.identity import NOBODY, ClusterIds, IdentityError, State, StoreIdentity
from qstore.store.cluster.rules import Verdict, plan_join, plan_start
from qstore.store.disk import OsDisk
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError
from qstore.store.inspect.layout import UnusableInputError
from qstore.tools.check.report import plain_console
from qstore.tools.console.json_lines import JsonLines
from qstore.tools.console.progress import reading_progress
from qstore.tools.console.text import printable
from qstore.tools.entry import EXIT_DAMAGE, PathName, fail, failing, run
from qstore.tools.identity.candidates import Candidate, candidate, ranked
from qstore.tools.identity.change import NotToBeChangedError, held
from qstore.tools.identity.look import Look, UnusableDirectoryError, look
from qstore.tools.identity.objects import Object, candidate_object, change_object, store_object, verdict_object
from qstore.tools.identity.report import show_candidates, show_store, show_verdict

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
            self.fail("the UUID of zeros stands for no id", param, ctx)
        return found


class _Output:
    """Writes the report as JSON lines or as text on the console.

    Args:
        as_json: write JSON lines.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._console = plain_console()
        self._lines = JsonLines(sys.stdout.buffer) if as_json else None

    def store(self, found: Look) -> None:
        """Show one store."""
        if self._lines is None:
            show_store(self._console, found)
        else:
            self._show(store_object(found))

    def change(self, fields: Object, text: str) -> None:
        """Report a change."""
        if self._lines is None:
            self._console.print(Text(printable(text)), soft_wrap=True)
        else:
            self._show(fields)

    def candidates(self, found: list[Candidate]) -> None:
        """Show the stores in order, last written first."""
        if self._lines is None:
            show_candidates(self._console, found)
        for number, each in enumerate(found, 1):
            self._show(candidate_object(number, each))

    def verdict(self, of: str, verdict: Verdict, paths: list[str]) -> None:
        """Report whether a cluster can be formed, or joined."""
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
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead of a report.")
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
    output = _Output(as_json=as_json)
    with failing(_PROGRAM, UnusableDirectoryError, NotToBeChangedError, StoreError, UnusableInputError):
        if clean:
            _mark_clean(output, paths[0], cluster_id, yes=yes)
        elif aside:
            _discard(output, paths[0], yes=yes)
        code = _show(output, paths, join, best=best, quiet=clean or aside)
    context.exit(code)


def _show(output: _Output, paths: Sequence[str], join: UUID | None, *, best: bool, quiet: bool) -> int:
    """Show the stores and the verdict; returns the exit code."""
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
            output.change(change_object(path, "none", before), f"{path}: already clean; nothing was changed")
            return
        _confirm(
            f"{path}: all members of the cluster will start from this store and discard their own. Mark it as clean?",
            yes=yes,
        )
        after = identity.mark_clean(identity.new_id(), cluster_id)
    output.change(change_object(path, "clean", after), f"{path}: marked clean")


def _readable(identity: StoreIdentity) -> ClusterIds:
    """Cluster state of a store; None if the file is damaged, because it is about to be rewritten."""
    try:
        return identity.read()
    except IdentityError:
        return NOBODY


def _discard(output: _Output, path: str, *, yes: bool) -> None:
    with held(tool_environment(), path) as identity:
        _confirm(f"{path}: move its store to a backup directory and leave it empty?", yes=yes)
        backup = identity.discard()
        after = identity.read()
    text = "there was no store; it counts as empty" if backup is None else f"its store was moved to {backup}"
    output.change(change_object(path, "discarded", after, backup), f"{path}: {text}")


def _confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on standard error, unless --yes was given."""
    try:
        if yes or click.confirm(printable(question), err=True):
            return
    except click.Abort:
        click.echo(err=True)
    fail(_PROGRAM, "not confirmed (--yes skips the question); nothing was changed")


def main() -> None:
    """Console script entry point; uses the name by which it was called."""
    run(_ALIAS if Path(sys.argv[0]).name == _ALIAS else _PROGRAM, command)


if __name__ == "__main__":
    main()
