"""`qpid-config`: show and change a broker's queues, exchanges and bindings, compatible with the Qpid project's command.

Exit codes: 0 fine, 1 failed, or nothing has the name that was asked for, 2 invalid command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from qstore import __version__
from qstore.broker.management.console import Console
from qstore.tools.configuration import change, show
from qstore.tools.configuration.options import EXCHANGE, QUEUE, new_options, properties_of
from qstore.tools.console.broker_options import BrokerOptions, broker_options
from qstore.tools.management.running import EXIT_CODES, main_of, run_on_console

PROGRAM: Final = "qpid-config"

_EPILOG = f"""
\b
Commands:
qpid-config                                       summary
qpid-config queues [PART-OF-NAME]                 queues, with -r their bindings
qpid-config exchanges [PART-OF-NAME]              exchanges, with -r their bindings
qpid-config add queue NAME
qpid-config add exchange TYPE NAME                direct, topic, fanout, headers, xml
qpid-config add TYPE NAME --argument NAME=VALUE   an object of any type
qpid-config del queue|exchange|TYPE NAME
qpid-config bind EXCHANGE QUEUE [KEY]             headers: KEY all|any NAME=VALUE ...
qpid-config unbind EXCHANGE QUEUE [KEY]
qpid-config list TYPE                             objects of any class
qpid-config log [LEVELS]                          such as info+,debug+:Broker
qpid-config reload-acl
qpid-config shutdown

\b
Examples:
qpid-config add queue orders --durable --max-queue-count 100000 --limit-policy ring
qpid-config add exchange topic news --sequence --ive
qpid-config bind amq.match orders key any color=red, size=3
qpid-config del queue orders --force -b user/password@host:5672
qpid-config queues -r --json
qpid-config list binding --show-property bindingKey --show-property msgMatched

\b
{EXIT_CODES}
"""


class _Request(NamedTuple):
    """What the command is to do: its words after the verb, and the values of its options."""

    words: Sequence[str]
    values: Mapping[str, Any]

    @property
    def is_json(self) -> bool:
        """Whether to print JSON."""
        return bool(self.values["is_json"])


_Work = Callable[[Console], None]


def _summary(request: _Request) -> _Work:
    return lambda console: show.show_summary(console, is_json=request.is_json)


def _show_kind(shown: Callable[..., None]) -> Callable[[_Request], _Work]:
    def made(request: _Request) -> _Work:
        (name,) = _words(request, 0, 1, "[PART-OF-NAME]")
        values = request.values
        return lambda console: shown(
            console,
            name,
            is_recursive=values["recursive"],
            hides_default=values["ignore_default"],
            is_json=request.is_json,
        )

    return made


def _add(request: _Request) -> _Work:
    kind, *rest = request.words or [""]
    properties = properties_of(kind if kind in (QUEUE, EXCHANGE) else QUEUE, request.values)
    if kind == EXCHANGE:
        exchange_type, name = _words(request._replace(words=rest), 2, 2, "exchange TYPE NAME")
        properties["exchange-type"] = exchange_type
    else:
        kind, name = _words(request, 2, 2, "TYPE NAME")
    source = request.values["start_replica"]
    if source is not None:
        raise click.UsageError("--start-replica: this broker has no queues that replicate others")
    return lambda console: change.create(console, kind, name, properties)


def _delete(request: _Request) -> _Work:
    kind, name = _words(request, 2, 2, "TYPE NAME")
    values, options = request.values, dict[str, bool]()
    if kind == QUEUE:
        chosen = {name: values[name] for name in ("if_unused", "if_empty")}
        if not any(chosen.values()):
            chosen = {"if_unused": not values["force_if_used"], "if_empty": not values["force_if_not_empty"]}
        options = dict.fromkeys(chosen, False) if values["force"] else chosen
    elif values["if_unused"]:
        options["if_unused"] = True
    return lambda console: change.delete(console, kind, name, options)


def _bind(request: _Request) -> _Work:
    exchange, queue, *rest = _words(request, 2, 1000, "EXCHANGE QUEUE [KEY]", fill=False)
    return lambda console: change.bind(console, exchange, queue, rest, request.values["file"])


def _unbind(request: _Request) -> _Work:
    exchange, queue, key = _words(request, 2, 3, "EXCHANGE QUEUE [KEY]")
    return lambda console: change.unbind(console, exchange, queue, key)


def _list(request: _Request) -> _Work:
    (kind,) = _words(request, 1, 1, "TYPE")
    names = request.values["show_property"]
    return lambda console: show.list_objects(console, kind, names, is_json=request.is_json)


def _log(request: _Request) -> _Work:
    (levels,) = _words(request, 0, 1, "[LEVELS]")
    return lambda console: change.set_log_levels(console, levels) if levels else change.show_log_levels(console)


def _alone(work: Callable[[Console], None]) -> Callable[[_Request], _Work]:
    def made(request: _Request) -> _Work:
        _words(request, 0, 0, "")
        return work

    return made


_VERBS: Final[Mapping[str, Callable[[_Request], _Work]]] = {
    "queues": _show_kind(show.show_queues),
    "exchanges": _show_kind(show.show_exchanges),
    "add": _add,
    "del": _delete,
    "bind": _bind,
    "unbind": _unbind,
    "list": _list,
    "log": _log,
    "reload-acl": _alone(change.reload_acl),
    "shutdown": _alone(change.shut_down),
}


def _words(request: _Request, least: int, most: int, syntax: str, *, fill: bool = True) -> list[str]:
    """The words, with empty ones for those that may be left out.

    Raises:
        UsageError: there are too few or too many.
    """
    words = list(request.words)
    if not least <= len(words) <= most:
        raise click.UsageError(f"expected {syntax}" if syntax else "nothing may follow")
    return words + [""] * (most - len(words)) if fill else words


@click.command(PROGRAM, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", nargs=-1, metavar="[COMMAND]")
@broker_options
@click.option("-r", "--recursive", "--bindings", "recursive", is_flag=True, help="Show the bindings, too.")
@click.option("--ignore-default", is_flag=True, help="Do not show the default exchange.")
@new_options
@click.option("--force", is_flag=True, help="Delete a queue although it is used, or not empty.")
@click.option("--force-if-not-empty", is_flag=True, help="Delete a queue although it is not empty.")
@click.option("--force-if-used", is_flag=True, help="Delete a queue although it is used.")
@click.option("--if-empty", is_flag=True, help="Delete a queue if it is empty, also if it is used.")
@click.option("--if-unused", is_flag=True, help="Delete a queue if it is not used, also if it is not empty.")
@click.option("-f", "--file", metavar="FILE", help="XML exchanges: a file with an XQuery; - is standard input.")
@click.option("--show-property", multiple=True, metavar="NAME", help="With list: show this property.")
@click.option("--json", "is_json", is_flag=True, help="Print a JSON object a line.")
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Show and change a broker's queues, exchanges and bindings."""
    broker = BrokerOptions.take(values)
    verb, *words = values["words"] or [""]
    request = _Request(words, values)
    if not verb:
        work = _summary(request)
    elif verb in _VERBS:
        work = _VERBS[verb](request)
    else:
        raise click.UsageError(f"unknown command {verb!r}; the commands are {', '.join(_VERBS)}")
    context.exit(run_on_console(PROGRAM, broker, work))


main = main_of(PROGRAM, command)

if __name__ == "__main__":
    main()
