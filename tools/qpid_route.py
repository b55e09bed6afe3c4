"""`qpid-route`: links and routes between brokers, compatible with the Qpid project's command.

A route is made at its destination, which pulls, or with --src-local at its source, which pushes; the other broker is
reached from there, not from this command. Two routes of one exchange in both directions are shown as one.

Exit codes: 0 fine, 1 failed, 2 invalid command line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import MessagingError
from qstore.broker.client.options import Endpoint, Url, parse_url
from qstore.broker.management.console import Console, Data
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.console.amounts import reference, shown
from qstore.tools.console.broker import (
    EXIT_CODES,
    HA_ADMIN,
    json_object,
    main_of,
    security_options,
    take_ha_admin,
    take_security,
)
from qstore.tools.console.command import EXIT_FAILED, JSON, SETTINGS, os_error_text, say
from qstore.tools.console.rows import print_json
from qstore.tools.console.text import printable

PROGRAM: Final = "qpid-route"

_UNLIMITED: Final = 0xFFFFFFFF
_BEGINNING: Final = ("Waiting", "Connecting", "Closing")
_LINK_SECONDS: Final = 3.0
_HEADER: Final = "Host            Port    Transport Durable  State             Last Error"


class RouteError(Exception):
    """The command has failed; the text is for people."""


class _Options(NamedTuple):
    """The options, as on the command line."""

    timeout: float
    connection: Mapping[str, Any]
    verbose: bool
    quiet: bool
    durable: bool
    del_empty_link: bool
    src_local: bool
    ack: int
    credit: int
    transport: str
    as_json: bool

    def open(self, broker: str) -> Console:
        """A console of a broker."""
        return Console(broker, timeout=self.timeout, connect_timeout=self.timeout, **self.connection)


class _Route(NamedTuple):
    """A route to make, or to find."""

    source: str
    destination: str
    key: str = ""
    is_queue: bool = False
    is_dynamic: bool = False
    tag: str = ""
    excludes: str = ""
    mechanism: str = ""


class Routes:
    """The links and routes of one broker, which has a console.

    Args:
        console: its console.
        url: its address.
        options: those of the command.
    """

    def __init__(self, console: Console, url: str, options: _Options) -> None:
        self._console, self._options = console, options
        self.here = _endpoint(parse_url(url))

    # ---- links ----

    def links(self) -> list[Data]:
        """All links."""
        return list(self._console.query("link"))

    def bridges(self) -> list[Data]:
        """All bridges."""
        return list(self._console.query("bridge"))

    def _link_to(self, remote: Endpoint) -> Data | None:
        wanted = (_host(remote.host), remote.port)
        return next((each for each in self.links() if (_host(each["host"]), each["port"]) == wanted), None)

    def add_link(self, remote: str, mechanism: str) -> Data:
        """Make a link, unless there is one; wait a moment until it is open. Returns it."""
        url = parse_url(remote)
        to = _endpoint(url)
        if (_host(to.host), to.port) == (_host(self.here.host), self.here.port):
            raise RouteError("Linking broker to itself is not permitted")
        if self._link_to(to) is None:
            self._console.call(
                "broker", "connect", host=to.host, port=to.port, durable=self._options.durable,
                authMechanism=mechanism, username=url.username or "", password=url.password or "",
                transport=self._options.transport,
            )  # fmt: skip
        return self._opened(to)

    def _opened(self, to: Endpoint) -> Data:
        deadline = time.monotonic() + (0 if self._options.quiet else _LINK_SECONDS)
        while (link := self._link_to(to)) is None or link["state"] in _BEGINNING:
            if time.monotonic() >= deadline:
                break
            time.sleep(0.1)
        if link is None:
            raise RouteError("Link failed to create")
        if link["state"] == "Failed":
            raise RouteError(f"Link failed to create {link['lastError']}")
        self._say(f"Link state is {link['state']}")
        return link

    def delete_link(self, remote: str) -> None:
        """Delete a link, with its routes."""
        link = self._link_to(_endpoint(parse_url(remote)))
        if link is None:
            raise RouteError("Link not found")
        self._console.call(link, "close")
        self._say("Link closed")

    def list_links(self) -> None:
        """Print all links."""
        links = self.links()
        if self._options.as_json:
            print_json(map(json_object, links))
        elif not links:
            click.echo("No Links Found")
        else:
            click.echo(f"\n{_HEADER}\n{'=' * 77}")
            for each in links:
                durable = "Y" if each["durable"] else "N"
                row = f"{shown(each['host']):<16}{each['port']:<8}{shown(each['transport']):<13}{durable}     "
                click.echo((row + f"{each['state']:<18}{shown(each['lastError'])}").rstrip())

    # ---- routes ----

    def add(self, remote: str, route: _Route) -> None:
        """Make a route, and its link if there is none."""
        options = self._options
        if route.is_dynamic and options.src_local:
            raise RouteError("--src-local is not permitted on dynamic routes")
        link = self.add_link(remote, route.mechanism)
        name, what = str(link["name"]), f"{route.destination}({route.key or route.source})"
        if self._find(link, route) is not None:
            self._missed(f"Duplicate Route - ignoring: {what}")
            return
        self._say("Creating inter-broker binding...")
        properties = {
            "link": name, "src": route.source, "dest": route.destination, "key": route.key, "tag": route.tag,
            "excludes": route.excludes, "srcIsQueue": route.is_queue, "srcIsLocal": options.src_local,
            "durable": options.durable, "dynamic": route.is_dynamic, "sync": options.ack, "credit": options.credit,
        }  # fmt: skip
        key = route.key or route.source
        called = f"{route.destination}:{key}:{name}:{route.is_queue}:{options.src_local}"
        self._console.call("broker", "create", type="bridge", name=called, properties=properties, strict=False)

    def delete(self, remote: str, route: _Route) -> None:
        """Delete a route; with --del-empty-link also its link, if it was the last one."""
        to = _endpoint(parse_url(remote))
        link = self._link_to(to)
        if link is None:
            self._missed(f"No link found from {to} to {self.here}")
            return
        bridge = self._find(link, route)
        if bridge is None:
            self._missed("Route not found")
            return
        self._say("Closing bridge...")
        self._console.call(bridge, "close")
        if self._options.del_empty_link and not any(_is_of(each, link) for each in self.bridges()):
            self._say("Last bridge on link, closing link...")
            self._console.call(link, "close")

    def _find(self, link: Data, route: _Route) -> Data | None:
        wanted = {
            "dest": route.destination, "src": route.source, "key": route.key, "srcIsQueue": route.is_queue,
            "dynamic": route.is_dynamic, "srcIsLocal": self._options.src_local,
        }  # fmt: skip
        for each in self.bridges():
            if _is_of(each, link) and all(each[name] == value for name, value in wanted.items()):
                return each
        return None

    def routes(self) -> Iterator[tuple[Data, Data]]:
        """All routes, each with its link."""
        links = self.links()
        for bridge in self.bridges():
            for link in links:
                if _is_of(bridge, link):
                    yield bridge, link

    def list_routes(self) -> None:
        """Print all routes."""
        if self._options.as_json:
            print_json({**json_object(bridge), "linkHost": link["host"], "linkPort": link["port"]}
                       for bridge, link in self.routes())  # fmt: skip
            return
        for bridge, link in self.routes():
            key = "<dynamic>" if bridge["dynamic"] else bridge["key"] or bridge["src"]
            push = " (push)" if bridge["srcIsLocal"] else ""
            click.echo(f"{self.here} {_place(link)} {shown(bridge['dest'])} {shown(key)}{push}")

    def flush(self) -> None:
        """Delete all routes; with --del-empty-link also the links."""
        for bridge, link in list(self.routes()):
            self._say(f"Deleting Bridge: {_place(link)} {bridge['dest']} {bridge['key']}")
            self._console.call(bridge, "close")
        if self._options.del_empty_link:
            for link in self.links():
                self._say(f"Deleting Link: {_place(link)}")
                self._console.call(link, "close")

    def _missed(self, text: str) -> None:
        if not self._options.quiet:
            raise RouteError(text)

    def _say(self, text: str) -> None:
        if self._options.verbose:
            click.echo(printable(text))


def _endpoint(url: Url) -> Endpoint:
    return url.endpoints[0]


def _host(name: str) -> str:
    """A name by which hosts are compared."""
    return "localhost" if name in ("127.0.0.1", "::1") else name.lower()


def _place(link: Data) -> str:
    return str(Endpoint(str(link["host"]), int(link["port"])))


def _is_of(bridge: Data, link: Data) -> bool:
    """Whether a bridge is of a link."""
    return reference(bridge["linkRef"]) == link.key


# ---- the map ----


class _Edge(NamedTuple):
    """A route between two brokers, each `host:port`."""

    source: str
    destination: str


class RouteMap:
    """The links and routes of all brokers that can be reached over links from one on.

    Args:
        url: the first broker.
        options: those of the command.
    """

    def __init__(self, url: str, options: _Options) -> None:
        self._url, self._options = url, options
        self._dynamic: dict[str, list[_Edge]] = {}
        self._static: list[str] = []

    def print(self) -> None:
        """Find the brokers, and print what they have."""
        click.echo("\nFinding Linked Brokers:")
        first = parse_url(self._url)
        waiting, known = [(self._url, _endpoint(first))], {_name(_endpoint(first))}
        while waiting:
            url, endpoint = waiting.pop(0)
            click.echo(f"    {endpoint}... ", nl=False)
            try:
                with self._options.open(url) as console:
                    routes = Routes(console, url, self._options)
                    links = routes.links()
                    self._take(routes)
            except (MessagingError, OSError) as error:
                if _name(endpoint) == _name(_endpoint(first)):
                    raise
                click.echo(printable(str(error)))
                continue
            click.echo("Ok")
            for link in links:
                to = Endpoint(str(link["host"]), int(link["port"]))
                if _name(to) not in known:
                    known.add(_name(to))
                    waiting.append((_with_login(first, to), to))
        self._print_routes()

    def _take(self, routes: Routes) -> None:
        here = str(routes.here)
        for bridge, link in routes.routes():
            there = _place(link)
            if bridge["dynamic"]:
                self._dynamic.setdefault(str(bridge["src"]), []).append(_Edge(there, here))
                continue
            source, destination = shown(bridge["src"]), shown(bridge["dest"])
            kind = "queue" if bridge["srcIsQueue"] else "ex"
            key = "" if bridge["srcIsQueue"] else f" key={shown(bridge['key'])}"
            if bridge["srcIsLocal"]:
                self._static.append(f"  {here}({kind}={source}) => {there}(ex={destination}){key}")
            else:
                self._static.append(f"  {here}(ex={destination}) <= {there}({kind}={source}){key}")

    def _print_routes(self) -> None:
        click.echo("\nDynamic Routes:")
        for exchange, edges in self._dynamic.items():
            click.echo(f"\n  Exchange {shown(exchange)}:")
            for line in _pairs(edges):
                click.echo(f"    {line}")
        if not self._dynamic:
            click.echo("  none found")
        click.echo("\nStatic Routes:")
        if not self._static:
            click.echo("  none found")
        else:
            click.echo("")
            for line in self._static:
                click.echo(line)
        loops = [(exchange, loop) for exchange, edges in self._dynamic.items() if (loop := _loop(edges))]
        if loops:
            click.echo("\nRedundant Paths (clients may get messages more than once):\n")
            for exchange, loop in loops:
                click.echo(f"  Exchange {shown(exchange)}: {' - '.join(loop)}")


def _name(endpoint: Endpoint) -> tuple[str, int]:
    return _host(endpoint.host), endpoint.port


def _with_login(first: Url, to: Endpoint) -> str:
    """The address of another broker, for the user of the first one."""
    if first.username is None:
        return str(to)
    password = "" if first.password is None else f"/{first.password}"
    return f"{first.username}{password}@{to}"


def _pairs(edges: Sequence[_Edge]) -> Iterator[str]:
    """The lines of the routes of one exchange; two in both directions are one."""
    shown_pairs: dict[frozenset[str], _Edge] = {}
    for edge in edges:
        shown_pairs.setdefault(frozenset(edge), edge)
    every = set(edges)
    for edge in shown_pairs.values():
        is_both = _Edge(edge.destination, edge.source) in every
        yield f"{edge.source} {'<=>' if is_both else '=>'} {edge.destination}"


def _loop(edges: Sequence[_Edge]) -> list[str]:
    """Brokers in a circle, over routes in either direction, the first one also last; empty if there is none."""
    beside: dict[str, list[str]] = {}
    for edge in dict.fromkeys(frozenset(edge) for edge in edges):
        if len(edge) == 2:
            one, other = sorted(edge)
            beside.setdefault(one, []).append(other)
            beside.setdefault(other, []).append(one)
    parents: dict[str, str | None] = {}
    for start in beside:
        if start in parents:
            continue
        parents[start] = None
        waiting = [start]
        while waiting:
            broker = waiting.pop()
            for other in beside[broker]:
                if other == parents[broker]:
                    continue
                if other in parents:
                    return _circle(parents, broker, other)
                parents[other] = broker
                waiting.append(other)
    return []


def _circle(parents: Mapping[str, str | None], one: str, other: str) -> list[str]:
    def up(broker: str | None) -> list[str]:
        found = []
        while broker is not None:
            found.append(broker)
            broker = parents[broker]
        return found

    first, second = up(one), up(other)
    common = next(broker for broker in first if broker in second)
    return [*first[: first.index(common) + 1], *reversed(second[: second.index(common)]), one]


# ---- the command ----

_SYNTAX: Final[Mapping[tuple[str, str], tuple[int, int, str]]] = {
    ("dynamic", "add"): (3, 6, "DEST-BROKER SRC-BROKER EXCHANGE [TAG] [EXCLUDE-LIST] [MECHANISM]"),
    ("dynamic", "del"): (3, 3, "DEST-BROKER SRC-BROKER EXCHANGE"),
    ("route", "add"): (4, 7, "DEST-BROKER SRC-BROKER EXCHANGE ROUTING-KEY [TAG] [EXCLUDE-LIST] [MECHANISM]"),
    ("route", "del"): (4, 4, "DEST-BROKER SRC-BROKER EXCHANGE ROUTING-KEY"),
    ("queue", "add"): (4, 5, "DEST-BROKER SRC-BROKER DEST-EXCHANGE SRC-QUEUE [MECHANISM]"),
    ("queue", "del"): (4, 4, "DEST-BROKER SRC-BROKER DEST-EXCHANGE SRC-QUEUE"),
    ("route", "list"): (0, 1, "[DEST-BROKER]"),
    ("route", "flush"): (0, 1, "[DEST-BROKER]"),
    ("route", "map"): (0, 1, "[BROKER]"),
    ("link", "add"): (2, 3, "DEST-BROKER SRC-BROKER [MECHANISM]"),
    ("link", "del"): (2, 2, "DEST-BROKER SRC-BROKER"),
    ("link", "list"): (0, 1, "[DEST-BROKER]"),
}
_SHORT: Final = {("list",): ("route", "list"), ("flush",): ("route", "flush"), ("map",): ("route", "map")}
"""Older forms: `list`, `flush`, `map`, and `list connections`."""

_EPILOG = f"""
\b
Commands:
{chr(10).join(f"{' '.join(words)} {syntax}" for words, (_, _, syntax) in _SYNTAX.items())}

A BROKER is [USER/PASSWORD@]HOST[:PORT].

\b
Examples:
qpid-route dynamic add localhost:10003 localhost:10004 fed.topic
qpid-route -d route add localhost:10001 localhost:10002 amq.topic 'global.#'
qpid-route --ack 50 queue add localhost:10001 guest/guest@localhost:10002 amq.fanout public
qpid-route -s route add central:5672 localhost:5672 amq.topic 'alarms.#'
qpid-route route map localhost:10003
qpid-route link list localhost:10001
qpid-route -e route del localhost:10001 localhost:10002 amq.topic 'global.#'

\b
{EXIT_CODES}
"""


def _parsed(words: Sequence[str]) -> tuple[tuple[str, str], list[str]]:
    """The command, and its arguments. Raises UsageError."""
    if words[:2] in (("list", "connections"), ["list", "connections"]):
        words = ("link", "list", *words[2:])
    elif tuple(words[:1]) in _SHORT:
        words = (*_SHORT[(words[0],)], *words[1:])
    if len(words) < 2 or (words[0], words[1]) not in _SYNTAX:
        commands = ", ".join(" ".join(each) for each in _SYNTAX)
        raise click.UsageError(f"unknown command {' '.join(words[:2])!r}; the commands are {commands}")
    verb, rest = (words[0], words[1]), list(words[2:])
    least, most, syntax = _SYNTAX[verb]
    if not least <= len(rest) <= most:
        raise click.UsageError(f"expected {' '.join(verb)} {syntax}")
    return verb, rest


def _route_of(verb: tuple[str, str], rest: Sequence[str]) -> _Route:
    """The route that a command line describes, after the two brokers."""
    exchange, *more = rest
    if verb[0] == "queue":
        queue, *more = more
        return _Route(queue, exchange, is_queue=True, mechanism=more[0] if more else "")
    key = ""
    if verb[0] == "route":
        key, *more = more
    tag, excludes, mechanism, *_ = [*more, "", "", ""]
    is_dynamic = verb[0] == "dynamic"
    return _Route(exchange, exchange, key, False, is_dynamic, tag, excludes, mechanism)


def _do(verb: tuple[str, str], rest: list[str], options: _Options) -> None:
    """Execute a command."""
    if verb == ("route", "map"):
        RouteMap(rest[0] if rest else "localhost", options).print()
        return
    local, remote = [*rest, "", ""][:2]
    if options.src_local and verb[1] in ("add", "del"):
        local, remote = remote, local
    with options.open(local or "localhost") as console:
        routes = Routes(console, local or "localhost", options)
        actions: dict[tuple[str, str], Callable[[], object]] = {
            ("route", "list"): routes.list_routes,
            ("route", "flush"): routes.flush,
            ("link", "list"): routes.list_links,
            ("link", "add"): lambda: routes.add_link(remote, rest[2] if len(rest) > 2 else ""),
            ("link", "del"): lambda: routes.delete_link(remote),
        }
        action = actions.get(verb)
        if action is not None:
            action()
        elif verb[1] == "add":
            routes.add(remote, _route_of(verb, rest[2:]))
        else:
            routes.delete(remote, _route_of(verb, rest[2:]))


@click.command(PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("words", nargs=-1, metavar="COMMAND")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS", default=10.0, show_default=True,
              help="Time limit for connecting to a broker, and for each of its answers.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Print what is done.")
@click.option("-q", "--quiet", is_flag=True, help="Ignore what exists already, or is missing; do not wait.")
@click.option("-d", "--durable", is_flag=True, help="Make what is added durable: it survives restarts.")
@click.option("-e", "--del-empty-link", is_flag=True, help="Delete a link with its last route.")
@click.option("-s", "--src-local", is_flag=True, help="Make the route at its source, which pushes.")
@click.option("--ack", type=click.IntRange(0, 0xFFFF), metavar="N", default=0,
              help="Acknowledge messages in batches of N, so that none is lost; 0: no acknowledgements.")  # fmt: skip
@click.option("--credit", type=click.IntRange(0, _UNLIMITED), metavar="N", default=_UNLIMITED,
              help="At most N messages in flight; 0: no limit.")  # fmt: skip
@click.option("-t", "--transport", type=click.Choice(("tcp", "ssl")), default="tcp", show_default=True,
              help="Transport of the link.")  # fmt: skip
@click.option("--client-sasl-mechanism", "client_mechanism", metavar="MECH",
              help="As --sasl-mechanism, which is for this command; that of a link is its last argument.")  # fmt: skip
@security_options
@HA_ADMIN
@JSON
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Show and change the links and routes between brokers."""
    words = values.pop("words")
    take_ha_admin(values)
    mechanism = values.pop("client_mechanism")
    connection = take_security(values)
    if mechanism is not None:
        connection["sasl_mechanisms"] = mechanism
    if not words:
        click.echo(context.get_help())
        context.exit(2)
    verb, rest = _parsed(tuple(words))
    try:
        for broker in rest[:2] if verb[1] in ("add", "del") else rest[:1]:
            parse_url(broker)
    except MessagingError as error:
        raise click.UsageError(str(error)) from None
    options = _Options(connection=connection, **values)
    try:
        _do(verb, rest, options)
        sys.stdout.flush()
    except (RouteError, MessagingError) as error:
        click.echo(printable(f"Failed: {error}"), err=True)
        context.exit(EXIT_FAILED)
    except BrokenPipeError:
        raise
    except OSError as error:
        say(PROGRAM, os_error_text(error))
        context.exit(EXIT_FAILED)


main = main_of(PROGRAM, command)

if __name__ == "__main__":
    main()
