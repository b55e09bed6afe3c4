"""The report of `qpid-cluster-store` as text."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from qstore.store.cluster.identity import State
from qstore.store.cluster.rules import Verdict
from qstore.store.inspect.layout import StoreKind
from qstore.tools.console.tables import Column, print_grid, print_wrapped
from qstore.tools.console.text import printable
from qstore.tools.identity.candidates import Candidate
from qstore.tools.identity.look import Look

_STYLES = {State.EMPTY: "dim", State.DIRTY: "bold yellow", State.CLEAN: "bold green"}
_MEANINGS = {
    State.EMPTY: "not used in a cluster",
    State.DIRTY: "a cluster cannot start from it; outside a cluster it is simply recovered",
    State.CLEAN: "a cluster can start from it",
}
_MAX_BACKUPS = 5
_CANDIDATE_COLUMNS = (
    Column("STORE", folds=True),
    Column("LAST WRITE (UTC)"),
    *(Column(title, number=True) for title in ("QUEUES", "MESSAGES", "OPEN TX", "DAMAGE")),
)


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


def show_candidates(console: Console, candidates: list[Candidate]) -> None:
    """The stores, last written first."""
    rows: list[list[str | Text]] = [
        [
            Text(printable(each.path)),
            "-" if each.last_write is None else f"{each.last_write:%Y-%m-%d %H:%M:%S.%f}",
            f"{each.queues:,}",
            f"{each.messages:,}",
            f"{each.transactions:,}",
            f"{each.damage:,}",
        ]
        for each in candidates
    ]
    print_grid(console, _CANDIDATE_COLUMNS, rows)
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
