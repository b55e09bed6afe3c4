"""`qpid-stat`: statistics of a broker and its objects, compatible with the command of the Qpid project.

Exit codes: 0 fine, 1 failed, or the named queue or the access control does not exist, 2 invalid command line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import click

from qstore import __version__
from qstore.broker.management.console import Console
from qstore.tools.console.broker_options import BrokerOptions, broker_options
from qstore.tools.management.running import EXIT_CODES, EXIT_FAILED, main_of, run_on_console, say
from qstore.tools.statistics.details import show_acl, show_broker, show_memory, show_queue
from qstore.tools.statistics.views import CONNECTIONS, EXCHANGES, QUEUES, SUBSCRIPTIONS, Choice, View, show_view

PROGRAM: Final = "qpid-stat"

_EPILOG = f"""
\b
Examples:
qpid-stat -g                             the broker's totals
qpid-stat -q -S msg -L 10                the ten queues with the most messages
qpid-stat -q orders                      one queue
qpid-stat -c -b user/password@host:5672
qpid-stat -u --json | jq .queueRef

\b
{EXIT_CODES}
"""


class _Option(NamedTuple):
    """An option that chooses what is shown: its view, or None for one of `details`."""

    flags: tuple[str, ...]
    view: View | None
    help: str


_SHOWN: Final = {
    "general": _Option(("-g", "--general"), None, "Show the broker."),
    "connections": _Option(("-c", "--connections"), CONNECTIONS, "Show connections."),
    "exchanges": _Option(("-e", "--exchanges"), EXCHANGES, "Show exchanges."),
    "queues": _Option(("-q", "--queues"), QUEUES, "Show queues, or the one that is named."),
    "subscriptions": _Option(("-u", "--subscriptions"), SUBSCRIPTIONS, "Show subscriptions."),
    "memory": _Option(("-m", "--memory"), None, "Show the memory of the broker's process."),
    "acl": _Option(("--acl",), None, "Show access control."),
}


def _choices(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, option in reversed(_SHOWN.items()):
        function = click.option(*option.flags, name, is_flag=True, help=option.help)(function)
    return function


@click.command(PROGRAM, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", required=False)
@_choices
@click.option("-S", "--sort-by", metavar="COLUMN", help="Sort by a column, by its heading.")
@click.option("-I", "--increasing", is_flag=True, help="Sort from the smallest to the largest value.")
@click.option("-L", "--limit", type=click.IntRange(1), metavar="N", help="Show at most N rows.")
@click.option("--json", "is_json", is_flag=True, help="Print a JSON object a line, with all values of the objects.")
@broker_options
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Show statistics of a broker.

    NAME is a queue, with -q.
    """
    broker = BrokerOptions.take(values)
    wanted = [name for name in _SHOWN if values[name]]
    if not wanted:
        raise click.UsageError("choose what to show: -g, -c, -e, -q, -u, -m or --acl")
    if values["name"] is not None and "queues" not in wanted:
        raise click.UsageError("a name is for -q only")
    choice = Choice(values["sort_by"], values["increasing"], values["limit"], values["is_json"])
    missing: list[str] = []

    def work(console: Console) -> None:
        for name in wanted:
            view = _SHOWN[name].view
            if view is None or (name == "queues" and values["name"] is not None):
                missing.extend(_show_details(console, name, values["name"], is_json=choice.is_json))
                continue
            try:
                show_view(console, view, choice)
            except ValueError as error:
                missing.append(str(error))

    code = run_on_console(PROGRAM, broker, work)
    for text in missing:
        say(PROGRAM, text)
    context.exit(EXIT_FAILED if missing else code)


def _show_details(console: Console, what: str, queue: str, *, is_json: bool) -> list[str]:
    """Show one of the details. Returns what does not exist."""
    if what == "general":
        show_broker(console, is_json=is_json)
    elif what == "memory":
        show_memory(console, is_json=is_json)
    elif what == "acl" and not show_acl(console, is_json=is_json):
        return ["ACL Policy Module is not installed"]
    elif what == "queues" and not show_queue(console, queue, is_json=is_json):
        return [f"Queue '{queue}' not found"]
    return []


main = main_of(PROGRAM, command)

if __name__ == "__main__":
    main()
