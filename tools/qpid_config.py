"""`qpid-config`: show and change a broker's queues, exchanges and bindings, compatible with the Qpid project's command.

Exit codes: 0 fine, 1 failed, or nothing has the name that was asked for, 2 invalid command line.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from qstore import __version__
from qstore.broker.client import ConnectionFailedError
from qstore.broker.client.address import word_value
from qstore.broker.management.console import Console, Data, NoObjectError
from qstore.formats.broker_records.topology import DEFAULT_HOST, full_name, split_name
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.console.amounts import reference, shown
from qstore.tools.console.broker import EXIT_CODES, BrokerOptions, broker_options, json_object, main_of, run_on_console
from qstore.tools.console.command import JSON, SETTINGS
from qstore.tools.console.rows import Column, print_json, print_listing

# ---- options of new queues and exchanges ----
#
# `attributes` goes the other way: the options that would create a queue or exchange with the arguments that it has.
#
# Source: qpidd's help of qpid-config; the arguments as qpidd's broker names them.

_Function = TypeVar("_Function", bound=Callable[..., Any])

QUEUE, EXCHANGE = "queue", "exchange"


class NewOption(NamedTuple):
    """An option.

    Attributes:
        name: without the hyphens.
        argument: what it sets.
        of: the kinds of objects that have it.
        type: of its value; None for a flag, which sets 1; a list of words for one of them.
        help: for people.
        words: value of the option -> value of the property, where they differ; None for one that sets nothing. Of
            several for one value, the first is shown.
        older: a name that it had in older versions.
    """

    name: str
    argument: str
    of: tuple[str, ...]
    type: type[int] | type[str] | None
    help: str
    words: Mapping[str, str | None] | None = None
    older: str = ""

    @property
    def parameter(self) -> str:
        """Its name among a command's values."""
        return self.name.replace("-", "_")


_BOTH: Final = (QUEUE, EXCHANGE)


_LIMIT_POLICIES: Final = {
    "none": None, "reject": "reject", "flow-to-disk": "flow_to_disk", "ring": "ring", "ring-strict": "ring_strict",
    "self-destruct": "self-destruct", "flow_to_disk": "flow_to_disk", "ring_strict": "ring_strict",
}  # fmt: skip

#: The options, in the order in which attributes are shown.
OPTIONS: Final = (
    NewOption("replicate", "qpid.replicate", _BOTH, str, "Replicate in a HA cluster: none, configuration or all.",
              {"none": "none", "configuration": "configuration", "all": "all"}),
    NewOption("file-size", "qpid.file_size", (QUEUE,), int, "Size of a journal file, in pages of 64 KiB."),
    NewOption("file-count", "qpid.file_count", (QUEUE,), int, "Number of journal files."),
    NewOption("efp-partition-num", "qpid.efp_partition_num", (QUEUE,), int, "Linearstore: number of the partition."),
    NewOption("efp-pool-file-size", "qpid.efp_pool_file_size", (QUEUE,), int, "Linearstore: size of a file, in KiB."),
    NewOption("wcache-page-size", "qpid.wcache-page-size", (QUEUE,), int, "Linearstore: write cache page, in KiB."),
    NewOption("wcache-num-pages", "qpid.wcache-num-pages", (QUEUE,), int, "Linearstore: number of these pages."),
    NewOption("max-queue-size", "qpid.max_size", (QUEUE,), int, "Limit of the queue, in bytes."),
    NewOption("max-queue-count", "qpid.max_count", (QUEUE,), int, "Limit of the queue, in messages."),
    NewOption("limit-policy", "qpid.policy_type", (QUEUE,), str,
              "What happens at the limit: none (the broker's default), reject, flow-to-disk, ring (discard the oldest"
              " message), ring-strict (the same, and reject if that is acquired) or self-destruct.", _LIMIT_POLICIES,
              older="policy-type"),
    NewOption("lvq-key", "qpid.last_value_queue_key", (QUEUE,), str,
              "Last value queue: keep the last message of each value of this header."),
    NewOption("generate-queue-events", "qpid.queue_event_generation", (QUEUE,), int,
              "Replication events: 1 of enqueues, 2 also of dequeues."),
    NewOption("flow-stop-size", "qpid.flow_stop_size", (QUEUE,), int, "Stop publishers above this many bytes."),
    NewOption("flow-resume-size", "qpid.flow_resume_size", (QUEUE,), int, "Resume publishers below this many bytes."),
    NewOption("flow-stop-count", "qpid.flow_stop_count", (QUEUE,), int, "Stop publishers above this many messages."),
    NewOption("flow-resume-count", "qpid.flow_resume_count", (QUEUE,), int,
              "Resume publishers below this many messages."),
    NewOption("group-header", "qpid.group_header_key", (QUEUE,), str,
              "Message groups: the header that has a message's group."),
    NewOption("shared-groups", "qpid.shared_msg_group", (QUEUE,), None,
              "Message groups: several consumers share the queue, each with groups of its own."),
    NewOption("cluster-durable", "qpid.persist_last_node", (QUEUE,), None,
              "Make the queue durable when only one node of a cluster is left."),
    NewOption("sequence", "qpid.msg_sequence", (EXCHANGE,), None,
              "Number the messages, in the header qpid.msg_sequence."),
    NewOption("ive", "qpid.ive", (EXCHANGE,), None,
              "Initial value exchange: give new bindings the last message."),
)  # fmt: skip

_ORDERS: Final = {"lvq": "qpid.last_value_queue", "lvq-no-browse": "qpid.last_value_queue_no_browse"}


def new_options(function: _Function) -> _Function:
    """Add these options to a command."""
    more = (
        click.option("--durable", is_flag=True, help="The queue or exchange survives a restart."),
        click.option("--alternate-exchange", metavar="NAME",
                     help="Exchange for messages that are rejected, left in a deleted queue, or cannot be routed."),
        click.option("--argument", "arguments", multiple=True, metavar="NAME=VALUE", callback=_read_arguments,
                     help="Set any other argument or property."),
        click.option("--order", type=click.Choice(("fifo", *_ORDERS)), help="Order of the queue."),
        click.option("--last-value-queue", "order", flag_value="lvq", help="The older name of --order lvq."),
        click.option("--start-replica", metavar="URL", help="HA: replicate a queue; not supported."),
    )  # fmt: skip
    for decorate in reversed(more):
        function = decorate(function)
    for option in reversed(OPTIONS):
        function = _click_option(option)(function)
    return function


def _click_option(option: NewOption) -> Callable[[_Function], _Function]:
    flag = f"--{option.name}"
    flags = [flag, f"--{option.older}"] if option.older else [flag]
    if option.type is None:
        return click.option(flag, is_flag=True, default=None, help=option.help)
    if option.words is not None:
        return click.option(*flags, type=click.Choice(tuple(option.words)), metavar="WORD", help=option.help)
    if option.type is int:
        return click.option(flag, type=click.IntRange(0), metavar="N", help=option.help)
    return click.option(flag, metavar="TEXT", help=option.help)


def _read_arguments(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in given:
        name, equals, word = each.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{each!r} is not NAME=VALUE")
        found[name] = word_value(word)
    return found


def properties_of(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of a new object, from a command's values.

    Raises:
        UsageError: an option is not one of this kind of object.
    """
    found: dict[str, Any] = {}
    for option in OPTIONS:
        value = values[option.parameter]
        if value is None or value is False:
            continue
        if kind not in option.of:
            raise click.UsageError(f"--{option.name} is an option of a new {' or '.join(option.of)}, not of {kind}")
        if option.type is None:
            value = 1
        elif option.words is not None:
            value = option.words[value]
        if value is not None:
            found[option.argument] = value
    order = values["order"]
    if order is not None and kind != QUEUE:
        raise click.UsageError(f"--order is an option of a new queue, not of {kind}")
    if order in _ORDERS:
        found[_ORDERS[order]] = 1
    if values["durable"]:
        found["durable"] = True
    if values["alternate_exchange"] is not None:
        found["alternate-exchange"] = values["alternate_exchange"]
    found.update(values["arguments"])
    return found


def attributes(data: Data, kind: str) -> Iterator[str]:
    """The attributes of a queue or exchange, as options where there are some."""
    if data.get("durable"):
        yield "--durable"
    if data.get("autoDelete"):
        yield "auto-del"
    if data.get("exclusive"):
        yield "excl"
    arguments = data.get("arguments")
    arguments = dict(arguments) if isinstance(arguments, dict) else {}
    for option in OPTIONS:
        if option.argument not in arguments or kind not in option.of:
            continue
        value = arguments.pop(option.argument)
        if option.type is not None:
            names = (name for name, word in (option.words or {}).items() if word == value)
            yield f"--{option.name}={next(names, shown(value))}"
        elif value:
            yield f"--{option.name}"
    if name := split_name(reference(data.get("altExchange")))[1]:
        yield f"--alternate-exchange={shown(name)}"
    for order, name in _ORDERS.items():
        if arguments.pop(name, None):
            yield f"--order={order}"
    for name, value in arguments.items():
        yield f"--argument {shown(name)}={shown(value)}"


# ---- changing a broker ----

_MATCHES: Final = ("all", "any")


_ACL: Final = "org.apache.qpid.acl"


_OF_HOSTS: Final = {
    **dict.fromkeys((QUEUE, EXCHANGE, "topic", "binding", "exchange_binding"), "qstore.virtual-host"),
    **dict.fromkeys(("policy", "operator-policy", "permission", "topic-permission", "vhost-limit"), "vhost"),
}  # fmt: skip
"""Type of objects of virtual hosts -> the property with the name of the host."""


def _of_host(kind: str, given: Mapping[str, Any], host: str | None) -> dict[str, Any]:
    return dict(given) if host is None or kind not in _OF_HOSTS else {**given, _OF_HOSTS[kind]: host}


def create(console: Console, kind: str, name: str, properties: Mapping[str, Any], host: str | None = None) -> None:
    """Create an object of any type, in a virtual host."""
    properties = _of_host(kind, properties, host)
    console.call("broker", "create", type=kind, name=name, properties=properties, strict=False)


def delete(console: Console, kind: str, name: str, options: Mapping[str, Any], host: str | None = None) -> None:
    """Delete an object of any type, in a virtual host."""
    console.call("broker", "delete", type=kind, name=name, options=_of_host(kind, options, host))


def bind(
    console: Console, exchange: str, queue: str, rest: Sequence[str], query_file: str | None, host: str | None = None
) -> None:
    """Bind a queue to an exchange.

    Args:
        console: the console.
        host: their virtual host; None for the default one.
        exchange: its name.
        queue: its name.
        rest: the key, and for a headers exchange `all` or `any` and NAME=VALUE.
        query_file: for an XML exchange: a file with an XQuery; `-` is standard input.

    Raises:
        UsageError: the exchange is of another type than `rest` and `query_file` are for.
    """
    try:
        kind = console.find(f"exchange:{full_name(host or DEFAULT_HOST, exchange)}").get("type")
    except NoObjectError:
        kind = None  # the broker finds it
    key, *conditions = rest or [""]
    if kind == "headers" and key in _MATCHES and conditions and "=" in conditions[0]:
        key, conditions = "", [key, *conditions]
    arguments: dict[str, Any] = {}
    if kind == "xml" or query_file is not None:
        if kind != "xml" or query_file is None:
            raise click.UsageError("a binding to an XML exchange has an XQuery, by -f, and no other has")
        arguments["xquery"] = _read(query_file)
    if kind == "headers":
        arguments |= _header_conditions(conditions)
    elif conditions:
        raise click.UsageError(f"only a binding to a headers exchange has conditions: {' '.join(conditions)}")
    create(console, "binding", f"{exchange}/{queue}/{key}", arguments, host)


def _header_conditions(words: Sequence[str]) -> dict[str, Any]:
    match, *pairs = words or ["all"]
    if match not in _MATCHES:
        raise click.UsageError(f"a binding to a headers exchange is for all or any of its conditions, not {match!r}")
    found: dict[str, Any] = {"x-match": match}
    for pair in " ".join(pairs).replace(",", " ").split():
        name, equals, word = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"the condition {pair!r} is not NAME=VALUE")
        found[name] = word_value(word)
    return found


def _read(path: str) -> str:
    return sys.stdin.read() if path == "-" else Path(path).read_text()


def unbind(console: Console, exchange: str, queue: str, key: str, host: str | None = None) -> None:
    """Remove a binding, in a virtual host."""
    delete(console, "binding", f"{exchange}/{queue}/{key}", {}, host)


def show_log_levels(console: Console) -> None:
    """Print which messages the broker logs."""
    click.echo(f"Log level: {shown(console.call('broker', 'getLogLevel').get('level'))}")


def set_log_levels(console: Console, levels: str) -> None:
    """Change which messages the broker logs."""
    console.call("broker", "setLogLevel", level=levels)


def reload_acl(console: Console) -> None:
    """Have the access rules read again. Raises NoObjectError if the broker has none."""
    for acl in console.query("acl", package=_ACL):
        console.call(acl, "reloadACLFile")
        return
    raise NoObjectError("the broker has no access rules (ACL)")


def shut_down(console: Console) -> None:
    """Have the broker end, which ends the connection."""
    with contextlib.suppress(ConnectionFailedError):
        console.call("broker", "shutdown")


# ---- showing what a broker has ----

_TYPES: Final = (
    "topic", "headers", "fanout", "direct", "xml", "x-consistent-hash", "x-delayed-message", "x-modulus-hash",
    "x-random", "x-local-random", "x-recent-history",
)  # fmt: skip


_SUMMARY_WIDTH: Final = 15


_MOST_COLUMNS: Final = 6


_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    QUEUE: ("name", "durable", "autoDelete"),
    EXCHANGE: ("name", "type", "durable"),
    "binding": ("exchangeRef", "queueRef", "bindingKey", "msgMatched", "arguments"),
    "connection": ("address", "authIdentity", "remoteProcessName", "remotePid", "saslMechanism"),
    "session": ("name", "connectionRef", "channelId", "attached", "unackedMessages"),
    "subscription": ("name", "sessionRef", "queueRef", "browsing", "acknowledged", "delivered"),
    "broker": ("name", "version", "port", "uptime", "queueCount", "dataDir"),
    "link": ("name", "host", "port", "transport", "durable", "state"),
    "bridge": ("name", "linkRef", "src", "dest", "key", "durable"),
    "domain": ("name", "url", "mechanisms", "username", "durable"),
    "incoming": ("name", "containerid", "source", "target", "domain", "transfers"),
    "outgoing": ("name", "containerid", "source", "target", "domain", "transfers"),
    "interlink": ("name", "direction", "domain", "source", "target", "state"),
}


def show_summary(console: Console, *, is_json: bool) -> None:
    """How many exchanges and queues there are, and of which kinds."""
    exchanges = Counter(shown(each.get("type")) for each in console.query(EXCHANGE))
    queues = Counter(bool(each.get("durable")) for each in console.query(QUEUE))
    if is_json:
        counts = {"kind": "summary", "exchanges": dict(exchanges), "queues": queues.total()}
        print_json([counts | {"durable_queues": queues[True]}])
        return
    lines: list[tuple[str, object]] = [("Total Exchanges", exchanges.total())]
    lines += [(name, exchanges.pop(name)) for name in _TYPES if name in exchanges]
    lines += sorted(exchanges.items())
    lines += [("", ""), ("Total Queues", queues.total()), ("durable", queues[True]), ("non-durable", queues[False])]
    for name, count in lines:
        click.echo(f"{name:>{_SUMMARY_WIDTH}}: {count}" if name else "")


def _is_shown(data: Data, name_filter: str, host: str | None) -> bool:
    """Whether an object of a virtual host, or of any if it is None, has a part in its name."""
    of, name = split_name(data.key)
    return host in (None, of) and name_filter in name


def show_queues(
    console: Console, name_filter: str, host: str | None, *, is_recursive: bool, hides_default: bool, is_json: bool
) -> None:
    """Queues whose names have a part. Raises NoObjectError if there are none."""
    queues = [each for each in console.query(QUEUE) if _is_shown(each, name_filter, host)]
    _check_found(queues, QUEUE, name_filter)
    if is_json or not is_recursive:
        _show(queues, QUEUE, ("Queue Name", "Attributes"), lambda _: (), is_json=is_json)
        return
    bindings = _bindings(console, "queueRef")
    for queue in queues:
        click.echo(f"Queue '{shown(queue.get('name'))}'")
        for binding in bindings.get(queue.key, ()):
            exchange = split_name(reference(binding.get("exchangeRef")))[1]
            if exchange or not hides_default:
                click.echo(_binding_line(binding, shown(exchange) or "''"))


def show_exchanges(
    console: Console, name_filter: str, host: str | None, *, is_recursive: bool, hides_default: bool, is_json: bool
) -> None:
    """Exchanges whose names have a part. Raises NoObjectError if there are none."""
    exchanges = [
        each
        for each in console.query(EXCHANGE)
        if _is_shown(each, name_filter, host) and (split_name(each.key)[1] or not hides_default)
    ]
    _check_found(exchanges, EXCHANGE, name_filter)
    if is_json or not is_recursive:
        titles = ("Type", "Exchange Name", "Attributes")
        _show(exchanges, EXCHANGE, titles, lambda data: (f"{shown(data.get('type')):<8}",), is_json=is_json)
        return
    bindings, onward = _bindings(console, "exchangeRef"), _bindings(console, "exchangeRef", "exchange_binding")
    for exchange in exchanges:
        click.echo(f"Exchange '{shown(exchange.get('name'))}' ({shown(exchange.get('type'))})")
        for binding in bindings.get(exchange.key, ()):
            click.echo(_binding_line(binding, shown(split_name(reference(binding.get("queueRef")))[1])))
        for binding in onward.get(exchange.key, ()):
            name = split_name(reference(binding.get("destinationRef")))[1]
            click.echo(_binding_line(binding, f"exchange {shown(name)}"))


def _check_found(objects: Sequence[Data], kind: str, name_filter: str) -> None:
    if name_filter and not objects:
        raise NoObjectError(f"no {kind} has {name_filter!r} in its name")


def _show(
    objects: Sequence[Data],
    kind: str,
    titles: Sequence[str],
    before: Callable[[Data], tuple[str, ...]],
    *,
    is_json: bool,
) -> None:
    if is_json:
        print_json(json_object(each) for each in objects)
        return
    rows = [(*before(each), shown(each.get("name")), " ".join(attributes(each, kind))) for each in objects]
    print_listing("", [Column(title, folds=True) for title in titles], rows, indent="", rule=13)


def _bindings(console: Console, by: str, kind: str = "binding") -> Mapping[str, list[Data]]:
    """The bindings of each object to which their property `by` refers."""
    found: dict[str, list[Data]] = {}
    for binding in console.query(kind):
        found.setdefault(reference(binding.get(by)), []).append(binding)
    return found


def _binding_line(binding: Data, other: str) -> str:
    arguments = binding.get("arguments")
    more = f" {shown(arguments)}" if arguments else ""
    return f"    bind [{shown(binding.get('bindingKey'))}] => {other}{more}"


def list_objects(console: Console, kind: str, names: Sequence[str], *, is_json: bool) -> None:
    """Objects of a class, with these properties or the usual ones. Raises NoObjectError if there is no such class."""
    objects = list(console.query(kind))
    if not objects and kind.lower() not in {each.name.lower() for each in console.classes() if not each.is_event}:
        raise NoObjectError(f"the broker has no class {kind}")
    if is_json:
        wanted = [json_object(each) for each in objects]
        print_json({name: each[name] for name in ("kind", "object", *names) if name in each} if names else each
                   for each in wanted)  # fmt: skip
    else:
        click.echo(f"Objects of type '{shown(kind)}'")
        if objects:
            _list_objects(objects, names or _usual(kind, objects[0].values))


def _list_objects(objects: Iterable[Data], names: Sequence[str]) -> None:
    rows = [tuple(shown(each[name]) if name in each.values else "n/a" for name in names) for each in objects]
    print_listing("", [Column(name, folds=True) for name in names], rows)


def _usual(kind: str, values: Mapping[str, Any]) -> Sequence[str]:
    """The properties that are shown if none are named: simple ones, a name first."""
    if kind.lower() in _COLUMNS:
        return _COLUMNS[kind.lower()]
    simple = [name for name, value in values.items() if not isinstance(value, (dict, list)) or name.endswith("Ref")]
    return sorted(simple, key=lambda name: name != "name")[:_MOST_COLUMNS]


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
qpid-config -b exchanges -a host:5672
qpid-config add vhost blue; qpid-config add queue orders --durable --virtual-host blue
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
        return bool(self.values["as_json"])

    @property
    def host(self) -> str | None:
        """The virtual host, if one is given."""
        name = self.values["virtual_host"]
        return None if name is None else str(name)


_Work = Callable[[Console], None]


def _summary(request: _Request) -> _Work:
    return lambda console: show_summary(console, is_json=request.is_json)


def _show_kind(shown: Callable[..., None]) -> Callable[[_Request], _Work]:
    def made(request: _Request) -> _Work:
        (name,) = _words(request, 0, 1, "[PART-OF-NAME]")
        values = request.values
        return lambda console: shown(
            console,
            name,
            request.host,
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
    return lambda console: create(console, kind, name, properties, request.host)


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
    return lambda console: delete(console, kind, name, options, request.host)


def _bind(request: _Request) -> _Work:
    exchange, queue, *rest = _words(request, 2, 1000, "EXCHANGE QUEUE [KEY]", fill=False)
    return lambda console: bind(console, exchange, queue, rest, request.values["file"], request.host)


def _unbind(request: _Request) -> _Work:
    exchange, queue, key = _words(request, 2, 3, "EXCHANGE QUEUE [KEY]")
    return lambda console: unbind(console, exchange, queue, key, request.host)


def _list(request: _Request) -> _Work:
    (kind,) = _words(request, 1, 1, "TYPE")
    names = request.values["show_property"]
    return lambda console: list_objects(console, kind, names, is_json=request.is_json)


def _log(request: _Request) -> _Work:
    (levels,) = _words(request, 0, 1, "[LEVELS]")
    return lambda console: set_log_levels(console, levels) if levels else show_log_levels(console)


def _alone(work: Callable[[Console], None]) -> Callable[[_Request], _Work]:
    def made(request: _Request) -> _Work:
        _words(request, 0, 0, "")
        return work

    return made


_VERBS: Final[Mapping[str, Callable[[_Request], _Work]]] = {
    "queues": _show_kind(show_queues),
    "exchanges": _show_kind(show_exchanges),
    "add": _add,
    "del": _delete,
    "bind": _bind,
    "unbind": _unbind,
    "list": _list,
    "log": _log,
    "reload-acl": _alone(reload_acl),
    "shutdown": _alone(shut_down),
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


class _Command(click.Command):
    """The command line of older versions, too, in which `-b` had no value, and asked for the bindings."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As `click.Command.parse_args`."""
        following = [*args[1:], "-"]
        return super().parse_args(
            ctx,
            [
                "--bindings" if word == "-b" and (after.startswith("-") or after in _SHOWING) else word
                for word, after in zip(args, following, strict=False)
            ],
        )


_SHOWING: Final = ("queues", "exchanges")


@click.command(PROGRAM, cls=_Command, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("words", nargs=-1, metavar="[COMMAND]")
@broker_options
@click.option(
    "--virtual-host",
    metavar="NAME",
    help="The virtual host of what is created, deleted or bound (default: /), or of what is shown (default: all).",
)
@click.option("-r", "--recursive", "--bindings", "recursive", is_flag=True,
              help="Also show the bindings; as in older versions, -b without a URL does it, too.")  # fmt: skip
@click.option("--ignore-default", is_flag=True, help="Do not show the default exchange.")
@new_options
@click.option("--force", is_flag=True, help="Delete a queue although it is used, or not empty.")
@click.option("--force-if-not-empty", is_flag=True, help="Delete a queue although it is not empty.")
@click.option("--force-if-used", is_flag=True, help="Delete a queue although it is used.")
@click.option("--if-empty", is_flag=True, help="Delete a queue if it is empty, also if it is used.")
@click.option("--if-unused", is_flag=True, help="Delete a queue if it is not used, also if it is not empty.")
@click.option("-f", "--file", metavar="FILE", help="XML exchanges: a file with an XQuery; - is standard input.")
@click.option("--show-property", multiple=True, metavar="NAME", help="With list: show this property.")
@JSON
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
