"""`qstore-ctl`: rabbitmqctl's daily verbs, over the HTTP API of `qstore-console`.

Most verbs are rows of two tables: `_LISTS` (what is listed, from which path, with which columns) and `_CHANGES` (a
request for the words of the command line). The others are functions of their own.

Exit codes: 0 fine, 1 the broker has refused it or cannot be reached, 2 invalid command line.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import click

from qstore import __version__
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.console.broker import main_of
from qstore.tools.console.command import EXIT_FAILED, JSON, SETTINGS, examples, say
from qstore.tools.console.rows import Column, print_json, print_listing
from qstore.tools.console.text import printable
from qstore.tools.qstore_console import read_credentials

PROGRAM: Final = "qstore-ctl"
_DEFAULT_API: Final = "http://127.0.0.1:15672"
_DEFAULT_LOGIN: Final = "guest", "guest"
_MAX_ANSWER: Final = 1 << 30
_AGAIN_SECONDS: Final = 0.5

_EPILOG = """
\b
Examples:
qstore-ctl list_queues name messages consumers
qstore-ctl --api https://broker1:15671 --login-file ~/.qstore-login status
qstore-ctl set_policy limits '^orders' '{"max-length": 1000}' --apply-to queues
qstore-ctl list_connections --json | jq .user

\b
The login file has one line, USER:PASSWORD, and only its owner may read it (mode 0600). Without one, guest:guest is
used, which brokers without a user file admit on their own host.

\b
Exit codes: 0 fine, 1 refused or not reachable, 2 invalid command line.
"""


class CtlError(Exception):
    """The request has failed. The text is one line for the user."""


class Ctl:
    """Requests to an HTTP API.

    Args:
        api: its URL.
        login: user and password.
        trusted: file with certificates of authorities; None for those of the system.
        timeout: seconds that an answer may take.
    """

    def __init__(self, api: str, login: tuple[str, str], trusted: str | None, timeout: float) -> None:
        self._api, self._timeout = api.rstrip("/"), timeout
        self._header = f"Basic {b64encode(':'.join(login).encode()).decode()}"
        context = ssl.create_default_context(cafile=trusted) if urlsplit(api).scheme == "https" else None
        handlers = [] if context is None else [urllib.request.HTTPSHandler(context=context)]
        self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}), *handlers)

    def ask(self, method: str, path: str, body: object = None, reason: str = "") -> Any:
        """The value of an answer; None if it has none. Raises CtlError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._api}/api/{path}", data, method=method)  # noqa: S310 (checked)
        request.add_header("Authorization", self._header)
        request.add_header("Content-Type", "application/json")
        if reason:
            request.add_header("X-Reason", reason.encode("ascii", "replace").decode())
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                content = answer.read(_MAX_ANSWER)
        except urllib.error.HTTPError as error:
            with error:
                raise CtlError(_refusal(error.code, error.read(1 << 16))) from None
        except urllib.error.URLError as error:
            raise CtlError(f"{self._api} cannot be reached: {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            raise CtlError(f"{self._api} has not answered: {error}") from None
        try:
            return json.loads(content) if content else None
        except ValueError:
            raise CtlError(f"{self._api} has not answered with JSON: is it the address of qstore-console?") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A password is sent to nobody else."""

    def redirect_request(self, *_: Any) -> None:
        """None: no redirection is followed."""
        return


def _refusal(status: int, content: bytes) -> str:
    try:
        found = json.loads(content)
        reason = found["reason"]
    except (ValueError, KeyError, TypeError):
        return f"refused with HTTP status {status}"
    return printable(reason if isinstance(reason, str) else json.dumps(reason))


def _path(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


# ---- what is printed ----


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return printable(json.dumps(value, ensure_ascii=False))
    return printable(str(value))


def _at(row: Mapping[str, Any], path: str) -> Any:
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _print(title: str, kind: str, names: Sequence[str], rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print rows, with the columns of these names."""
    if as_json:
        print_json({"kind": kind, **{name: row.get(name) for name in names}} for row in rows)
        return
    columns = [Column(name) for name in names]
    numbers = [all(isinstance(row.get(name), int | float) for row in rows) and bool(rows) for name in names]
    shown = [column._replace(number=is_number) for column, is_number in zip(columns, numbers, strict=True)]
    print_listing(title, shown, [[_shown(row.get(name)) for name in names] for row in rows])


# ---- lists ----


class _List(NamedTuple):
    """A verb that lists objects.

    Attributes:
        path: of the API, below the virtual host if `is_of_vhost`.
        default: the columns that are shown unless others are asked for.
        help: what it lists.
        is_of_vhost: whether a virtual host chooses among them, by the column `vhost` or by the path.
        names: column -> where the API has it; those that are not here have their own names.
    """

    path: str
    default: str
    help: str
    is_of_vhost: bool = True
    names: Mapping[str, str] = {}


_LISTS: Final[Mapping[str, _List]] = {
    "list_queues": _List("queues", "name messages", "List the queues of a virtual host, or of all.",
                         names={"policy": "policy", "message_bytes": "message_bytes"}),
    "list_exchanges": _List("exchanges", "name type", "List the exchanges."),
    "list_bindings": _List(
        "bindings", "source_name source_kind destination_name destination_kind routing_key arguments",
        "List the bindings.", names={
            "source_name": "source", "source_kind": "source_kind", "destination_name": "destination",
            "destination_kind": "destination_type",
        }),
    "list_connections": _List("connections", "user peer_host peer_port state", "List the connections."),
    "list_channels": _List("channels", "name user consumer_count messages_unacknowledged", "List the channels.",
                           names={"connection": "connection_details.name", "pid": "name"}),
    "list_consumers": _List(
        "consumers", "queue_name channel consumer_tag ack_required prefetch_count active arguments",
        "List the consumers.", names={"queue_name": "queue.name", "channel": "channel_details.name",
                                      "channel_pid": "channel_details.name", "vhost": "queue.vhost"}),
    "list_vhosts": _List("vhosts", "name", "List the virtual hosts.", is_of_vhost=False),
    "list_users": _List("users", "user tags", "List the users.", is_of_vhost=False, names={"user": "name"}),
    "list_permissions": _List("permissions", "user configure write read", "List the permissions of users."),
    "list_topic_permissions": _List("topic-permissions", "user exchange write read", "List the topic permissions."),
    "list_policies": _List("policies", "vhost name pattern apply-to definition priority", "List the policies."),
    "list_operator_policies": _List("operator-policies", "vhost name pattern apply-to definition priority",
                                    "List the operator policies."),
    "list_global_parameters": _List("global-parameters", "name value", "List the global parameters.",
                                    is_of_vhost=False),
    "list_parameters": _List("parameters", "component name value", "List the parameters of components."),
    "shovel_status": _List("shovels", "vhost name state src_uri dest_uri messages_forwarded messages_pending failures",
                           "List the shovels and their states."),
    "federation_status": _List("federation-links",
                               "id vhost type exchange queue upstream uri status error messages_forwarded failures",
                               "List the links of federated exchanges and queues."),
    "list_journals": _List("qstore/journals", "name records fill files capacity", "List the journals.",
                           is_of_vhost=False),
    "list_transactions": _List("qstore/transactions", "xid user state", "List branches of distributed transactions.",
                               is_of_vhost=False),
}  # fmt: skip
_ALL_COLUMNS: Final = "all"


def _list_rows(ctl: Ctl, of: _List, vhost: str | None) -> list[dict[str, Any]]:
    found = ctl.ask("GET", of.path)
    rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    if vhost is not None and of.is_of_vhost:
        where = of.names.get("vhost", "vhost")
        rows = [row for row in rows if _at(row, where) == vhost]
    for row in rows:
        row |= {"source_kind": "exchange"} if of.path == "bindings" else {}
        row |= {name: _at(row, where) for name, where in of.names.items()}
    return rows


def _list(ctl: Ctl, verb: str, wanted: Sequence[str], vhost: str | None, *, as_json: bool) -> None:
    of = _LISTS[verb]
    rows = _list_rows(ctl, of, vhost)
    names = list(wanted) or of.default.split()
    if names == [_ALL_COLUMNS]:
        names = sorted({name for row in rows for name in row})
    unknown = [name for name in names if rows and all(name not in row for row in rows)]
    if unknown:
        raise click.UsageError(f"{verb} has no column {unknown[0]}; there are {', '.join(sorted(rows[0]))}")
    _print("", verb.removeprefix("list_").rstrip("s"), names, rows, as_json=as_json)


# ---- changes ----


class _Change(NamedTuple):
    """A verb that changes something, and prints nothing.

    Attributes:
        arguments: the words that follow it.
        help: what it does.
        example: words for which it is an example.
        request: from the words and the virtual host to method, path and body.
    """

    arguments: tuple[str, ...]
    help: str
    example: str
    request: Callable[[Mapping[str, str], str], tuple[str, str, object]]


_CHANGES: Final[Mapping[str, _Change]] = {
    "delete_user": _Change(("NAME",), "Delete a user.", "alice",
                           lambda given, _: ("DELETE", _path("users", given["name"]), None)),
    "set_permissions": _Change(
        ("USER", "CONFIGURE", "WRITE", "READ"), "Set what a user may do in a virtual host, as regular expressions.",
        "alice '^alice-.*' '.*' '.*'", lambda given, vhost: (
            "PUT", _path("permissions", vhost, given["user"]),
            {name: given[name] for name in ("configure", "write", "read")})),
    "clear_permissions": _Change(
        ("USER",), "Remove a user's permissions in a virtual host.", "alice", lambda given, vhost: (
        "DELETE", _path("permissions", vhost, given["user"]), None)),
    "set_topic_permissions": _Change(
        ("USER", "EXCHANGE", "WRITE", "READ"), "Set which routing keys of a topic exchange a user may use.",
        "alice amq.topic '^alice' '.*'", lambda given, vhost: (
            "PUT", _path("topic-permissions", vhost, given["user"]),
            {name: given[name] for name in ("exchange", "write", "read")})),
    "clear_topic_permissions": _Change(
        ("USER",), "Clear the topic permissions of a user in a virtual host.", "alice", lambda given, vhost: (
            "DELETE", _path("topic-permissions", vhost, given["user"]), None)),
    "clear_policy": _Change(("NAME",), "Delete a policy.", "limits", lambda given, vhost: (
        "DELETE", _path("policies", vhost, given["name"]), None)),
    "clear_operator_policy": _Change(("NAME",), "Delete an operator policy.", "limits", lambda given, vhost: (
        "DELETE", _path("operator-policies", vhost, given["name"]), None)),
    "clear_parameter": _Change(("COMPONENT", "NAME"), "Delete a parameter of a component.", "shovel orders",
                               lambda given, vhost: (
        "DELETE", _path("parameters", given["component"], vhost, given["name"]), None)),
    "delete_shovel": _Change(("NAME",), "Delete a shovel.", "orders", lambda given, vhost: (
        "DELETE", _path("shovels", "vhost", vhost, given["name"]), None)),
    "restart_shovel": _Change(("NAME",), "Restart a shovel now.", "orders", lambda given, vhost: (
        "DELETE", _path("shovels", "vhost", vhost, given["name"], "restart"), None)),
    "restart_federation_link": _Change(("ID",), "Restart a federation link now.", "5f3a0c1d", lambda given, vhost: (
        "DELETE", _path("federation-links", "vhost", vhost, given["id"], "any", "restart"), None)),
    "clear_global_parameter": _Change(("NAME",), "Delete a global parameter.", "site", lambda given, _: (
        "DELETE", _path("global-parameters", given["name"]), None)),
    "set_cluster_name": _Change(("NAME",), "Set the broker's name.", "orders@berlin", lambda given, _: (
        "PUT", "cluster-name", {"name": given["name"]})),
    "add_vhost": _Change(("NAME",), "Create a virtual host.", "test",
                         lambda given, _: ("PUT", _path("vhosts", given["name"]), {})),
    "delete_vhost": _Change(("NAME",), "Delete a virtual host and everything in it.", "test",
                            lambda given, _: ("DELETE", _path("vhosts", given["name"]), None)),
    "purge_queue": _Change(("QUEUE",), "Remove all messages of a queue.", "orders", lambda given, vhost: (
        "DELETE", _path("queues", vhost, given["queue"], "contents"), None)),
}  # fmt: skip


_OF_BROKER: Final = ("delete_user", "add_vhost", "delete_vhost", "clear_global_parameter", "set_cluster_name")
"""The changes that are of no virtual host."""


# ---- the command ----


@click.group(PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.option(
    "--api", default=_DEFAULT_API, show_default=True, metavar="URL", envvar="QSTORE_API", help="URL of qstore-console."
)
@click.option(
    "--login-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    envvar="QSTORE_LOGIN_FILE",
    help="File with USER:PASSWORD.  [default: guest:guest]",
)
@click.option("--trust", metavar="FILE", help="TLS: certificates of trusted authorities, in PEM format.")
@click.option(
    "-t",
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of each answer.",
)
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, *, api: str, login_file: Path | None, trust: str | None, timeout: float) -> None:
    """Operate a broker with the verbs of rabbitmqctl."""  # fmt: skip
    parts = urlsplit(api)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise click.UsageError(f"{api} is not a URL like {_DEFAULT_API}")
    if parts.username is not None:
        raise click.UsageError("do not put a password into the URL, where others can see it: use --login-file")
    try:
        login = _DEFAULT_LOGIN if login_file is None else read_credentials(login_file)
        context.obj = Ctl(api, login, trust, timeout)
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from None


_VHOST: Final = click.option("-p", "--vhost", default="/", show_default=True, metavar="VHOST", help="The virtual host.")
_ANY_VHOST: Final = click.option("-p", "--vhost", metavar="VHOST", help="The virtual host.  [default: all]")


def _do(work: Callable[[], object]) -> None:
    """Do the work of a verb; what fails is told in one line."""
    try:
        work()
    except CtlError as error:
        say(PROGRAM, str(error))
        sys.exit(EXIT_FAILED)


def _add_list(verb: str, of: _List) -> None:
    @click.argument("columns", nargs=-1, metavar="[COLUMN...]")
    @JSON
    @click.pass_obj
    def run(ctl: Ctl, *, columns: Sequence[str], vhost: str | None = None, as_json: bool) -> None:
        _do(lambda: _list(ctl, verb, columns, vhost, as_json=as_json))

    made = _ANY_VHOST(run) if of.is_of_vhost else run
    text = f"{of.help}\n\nCOLUMN is a field of the API, by default {', '.join(of.default.split())}; `all` shows all."
    shown = of.default.split()[0]
    command.command(
        verb,
        help=text,
        context_settings=SETTINGS,
        epilog=examples(f"{PROGRAM} {verb}", f"{PROGRAM} {verb} {shown} --json"),
    )(made)


def _add_change(verb: str, change: _Change) -> None:
    @click.pass_obj
    def run(ctl: Ctl, /, **given: str) -> None:
        vhost = given.pop("vhost", "/")
        _do(lambda: ctl.ask(*change.request(given, vhost)))

    made: Any = run
    for name in reversed(change.arguments):
        made = click.argument(name.lower(), metavar=name)(made)
    is_of_vhost = verb not in _OF_BROKER
    command.command(
        verb, help=change.help, context_settings=SETTINGS, epilog=examples(f"{PROGRAM} {verb} {change.example}")
    )(_VHOST(made) if is_of_vhost else made)


for _each, _of in _LISTS.items():
    _add_list(_each, _of)
for _each, _change in _CHANGES.items():
    _add_change(_each, _change)


def _verb(name: str, *shown: str) -> Callable[[Callable[..., None]], click.Command]:
    """A verb that is a function."""
    return command.command(
        name, context_settings=SETTINGS, epilog=examples(*(f"{PROGRAM} {name} {each}".rstrip() for each in shown))
    )


# ---- users ----


def _password(given: str | None, *, from_stdin: bool) -> str:
    """The password that a verb needs: from standard input, typed, or, where others can see it, a word."""
    if given is not None:
        return given
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))


_STDIN: Final = click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")


@_verb("add_user", "alice", "alice --password-stdin < password")
@click.argument("name")
@click.argument("password", required=False)
@_STDIN
@click.pass_obj
def add_user(ctl: Ctl, *, name: str, password: str | None, password_stdin: bool) -> None:
    """Create a user without tags.

    Without PASSWORD it asks for one: other users can see command lines.
    """
    body = {"password": _password(password, from_stdin=password_stdin), "tags": ""}

    def work() -> None:
        if any(row.get("name") == name for row in ctl.ask("GET", "users")):
            raise CtlError(f"user {name} exists already; see change_password")
        ctl.ask("PUT", _path("users", name), body)

    _do(work)


@_verb("change_password", "alice", "alice --password-stdin < password")
@click.argument("name")
@click.argument("password", required=False)
@_STDIN
@click.pass_obj
def change_password(ctl: Ctl, *, name: str, password: str | None, password_stdin: bool) -> None:
    """Change a user's password. Without PASSWORD it asks for one."""
    secret = _password(password, from_stdin=password_stdin)

    def work() -> None:
        user = ctl.ask("GET", _path("users", name))
        ctl.ask("PUT", _path("users", name), {"password": secret, "tags": user["tags"]})

    _do(work)


@_verb("set_user_tags", "alice administrator", "alice")
@click.argument("name")
@click.argument("tags", nargs=-1, metavar="[TAG...]")
@click.pass_obj
def set_user_tags(ctl: Ctl, *, name: str, tags: Sequence[str]) -> None:
    """Set the tags of a user: administrator, monitoring, policymaker, management. Without TAG it has none."""
    _do(lambda: ctl.ask("PUT", f"qstore/{_path('users', name, 'tags')}", {"tags": list(tags)}))


@_verb("list_user_permissions", "alice", "alice --json")
@click.argument("name")
@JSON
@click.pass_obj
def list_user_permissions(ctl: Ctl, *, name: str, as_json: bool) -> None:
    """List what a user may do in each virtual host."""

    def work() -> None:
        found = ctl.ask("GET", _path("users", name, "permissions"))
        _print("", "permission", ("vhost", "configure", "write", "read"), found, as_json=as_json)

    _do(work)


@_verb("authenticate_user", "alice", "alice --password-stdin < password")
@click.argument("name")
@click.argument("password", required=False)
@_STDIN
@click.pass_context
def authenticate_user(context: click.Context, *, name: str, password: str | None, password_stdin: bool) -> None:
    """Check a user's password, by logging in."""
    secret = _password(password, from_stdin=password_stdin)
    assert context.parent is not None
    given = context.parent.params
    ctl = Ctl(given["api"], (name, secret), given["trust"], given["timeout"])
    _do(lambda: ctl.ask("GET", "whoami"))


# ---- policies ----


def _set_policy(kind: str) -> Callable[..., None]:
    def run(ctl: Ctl, *, vhost: str, priority: int, apply_to: str, name: str, pattern: str, definition: str) -> None:
        try:
            wanted = json.loads(definition)
        except ValueError as error:
            raise click.UsageError(f"the definition is not JSON: {error}") from None
        body = {"pattern": pattern, "definition": wanted, "priority": priority, "apply-to": apply_to}
        _do(lambda: ctl.ask("PUT", _path(kind, vhost, name), body))

    return run


for _kind, _name, _title in (
    ("policies", "set_policy", "Set limits and destinations of the queues or exchanges whose names match a pattern."),
    ("operator-policies", "set_operator_policy", "Set limits of queues that policies and clients cannot raise."),
):
    _made: Any = click.pass_obj(_set_policy(_kind))
    for _word in ("definition", "pattern", "name"):
        _made = click.argument(_word)(_made)
    _made = click.option("--apply-to", default="all", show_default=True, metavar="KIND",
                         help="queues, exchanges, classic_queues, quorum_queues, streams or all.")(_made)  # fmt: skip
    _made = click.option("--priority", type=int, default=0, show_default=True, metavar="N",
                         help="The policy with the highest priority applies.")(_made)  # fmt: skip
    command.command(
        _name, help=_title, context_settings=SETTINGS,
        epilog=examples(f"""{PROGRAM} {_name} limits '^orders' '{{"max-length": 1000}}' --apply-to queues"""),
    )(_VHOST(_made))  # fmt: skip


# ---- parameters ----


def _json_value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"the value is not JSON: {error}") from None


@_verb("set_parameter", """federation-upstream hub '{"uri": "amqp://hub"}'""")
@click.argument("component")
@click.argument("name")
@click.argument("value")
@_VHOST
@click.pass_obj
def set_parameter(ctl: Ctl, *, component: str, name: str, value: str, vhost: str) -> None:
    """Set a parameter of a component; VALUE is JSON."""
    body = {"value": _json_value(value)}
    _do(lambda: ctl.ask("PUT", _path("parameters", component, vhost, name), body))


@_verb("set_global_parameter", """site '"berlin"'""")
@click.argument("name")
@click.argument("value")
@click.pass_obj
def set_global_parameter(ctl: Ctl, *, name: str, value: str) -> None:
    """Set a global parameter, which tools can read; VALUE is JSON."""
    body = {"value": _json_value(value)}
    _do(lambda: ctl.ask("PUT", _path("global-parameters", name), body))


# ---- queues, connections ----


@_verb("delete_queue", "orders", "orders --if-empty --if-unused")
@click.argument("queue")
@click.option("--if-empty", is_flag=True, help="Only if it has no messages.")
@click.option("--if-unused", is_flag=True, help="Only if it has no consumers.")
@_VHOST
@click.pass_obj
def delete_queue(ctl: Ctl, *, queue: str, vhost: str, if_empty: bool, if_unused: bool) -> None:
    """Delete a queue with its messages."""
    query = urlencode({name: "true" for name, wanted in (("if-empty", if_empty), ("if-unused", if_unused)) if wanted})
    _do(lambda: ctl.ask("DELETE", _path("queues", vhost, queue) + (f"?{query}" if query else "")))


@_verb("close_connection", "'127.0.0.1:51000 -> 127.0.0.1:5672' maintenance")
@click.argument("name")
@click.argument("reason", required=False, default="")
@click.pass_obj
def close_connection(ctl: Ctl, *, name: str, reason: str) -> None:
    """Close a connection, by its name or its address, as `list_connections name` shows it."""
    _do(lambda: ctl.ask("DELETE", _path("connections", name), reason=reason))


@_verb("close_all_user_connections", "alice maintenance")
@click.argument("user")
@click.argument("reason", required=False, default="")
@click.pass_obj
def close_all_user_connections(ctl: Ctl, *, user: str, reason: str) -> None:
    """Close all connections of a user."""
    _do(lambda: ctl.ask("DELETE", _path("connections", "username", user), reason=reason))


# ---- the broker ----


def _status_rows(ctl: Ctl) -> list[tuple[str, Any]]:
    overview, node = ctl.ask("GET", "overview"), ctl.ask("GET", "nodes")[0]
    totals, objects = overview["queue_totals"], overview["object_totals"]
    rates = {name: overview["message_stats"][f"{name}_details"]["rate"] for name in ("publish", "deliver", "ack")}
    return [
        ("node", node["name"]), ("version", f"{overview['product_name']} {overview['product_version']}"),
        ("uptime_seconds", node["uptime"] // 1000), ("os_pid", node["os_pid"]), ("data_directory", node["db_dir"]),
        ("memory_bytes", node["mem_used"]), ("disk_free_bytes", node["disk_free"]),
        ("descriptors", node["fd_used"]), ("sockets", node["sockets_used"]),
        ("messages_ready", totals["messages_ready"]), ("messages_unacknowledged", totals["messages_unacknowledged"]),
        *((f"{name}_rate", rate) for name, rate in rates.items()), *objects.items(),
        ("listeners", [f"{each['protocol']} {each['ip_address']}:{each['port']}" for each in overview["listeners"]]),
    ]  # fmt: skip


def _print_status(ctl: Ctl, *, as_json: bool) -> None:
    rows = _status_rows(ctl)
    if as_json:
        print_json([{"kind": "status", **dict(rows)}])
        return
    print_listing("", (Column("name"), Column("value")), [(name, _shown(value)) for name, value in rows])


@_verb("status", "", "--json | jq .messages_ready")
@JSON
@click.pass_obj
def status(ctl: Ctl, *, as_json: bool) -> None:
    """Show the broker: version, memory, messages, rates, numbers of objects, listeners."""
    _do(lambda: _print_status(ctl, as_json=as_json))


@_verb("ping", "")
@click.pass_obj
def ping(ctl: Ctl) -> None:
    """Check whether the broker answers."""
    _do(lambda: ctl.ask("GET", "health/checks/alarms"))


@_verb("await_startup", "", "--within 120")
@click.option(
    "--within",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait.",
)
@click.pass_obj
def await_startup(ctl: Ctl, *, within: float) -> None:
    """Wait until the broker answers; qstore-console itself may still be starting."""  # fmt: skip
    end = time.monotonic() + within

    def work() -> None:
        while True:
            try:
                ctl.ask("GET", "health/checks/alarms")
                return
            except CtlError:
                if time.monotonic() + _AGAIN_SECONDS > end:
                    raise
            time.sleep(_AGAIN_SECONDS)

    _do(work)


_REPORTED: Final = (
    "list_vhosts", "list_queues", "list_exchanges", "list_bindings", "list_connections", "list_channels",
    "list_consumers", "list_users", "list_permissions", "list_policies", "list_operator_policies",
    "list_global_parameters", "list_journals", "list_transactions",
)  # fmt: skip


@_verb("report", "> report.txt", "--json > report.jsonl")
@JSON
@click.pass_obj
def report(ctl: Ctl, *, as_json: bool) -> None:
    """Print a report for support: status and all lists. It contains the names of users and queues."""

    def work() -> None:
        if not as_json:
            click.echo("status")
        _print_status(ctl, as_json=as_json)
        for verb in _REPORTED:
            if not as_json:
                click.echo(f"\n{verb}")
            _list(ctl, verb, (), None, as_json=as_json)

    _do(work)


# ---- definitions ----


@_verb("export_definitions", "definitions.json", "- | jq .queues")
@click.argument("file", type=click.Path(allow_dash=True))
@_ANY_VHOST
@click.option("--password-hashes", is_flag=True, help="With the hashes of users' passwords: keep the file secret.")
@click.pass_obj
def export_definitions(ctl: Ctl, *, file: str, vhost: str | None, password_hashes: bool) -> None:
    """Export definitions to FILE, which only its owner can read, or to standard output (-)."""

    def work() -> None:
        query = "?password_hashes=true" if password_hashes and vhost is None else ""
        found = ctl.ask("GET", ("definitions" if vhost is None else _path("definitions", vhost)) + query)
        content = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
        if file == "-":
            click.echo(content, nl=False)
            return
        try:
            number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(number, "w", encoding="utf-8") as stream:
                stream.write(content)
        except OSError as error:
            raise CtlError(f"{file}: {error.strerror}") from None

    _do(work)


@_verb("import_definitions", "definitions.json", "- < definitions.json")
@click.argument("file", type=click.Path(allow_dash=True))
@_ANY_VHOST
@click.pass_obj
def import_definitions(ctl: Ctl, *, file: str, vhost: str | None) -> None:
    """Import definitions from FILE, or standard input (-): create what is missing, and change nothing that exists."""

    def work() -> None:
        try:
            content = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
            found = json.loads(content)
        except OSError as error:
            raise CtlError(f"{file}: {error.strerror}") from None
        except ValueError as error:
            raise CtlError(f"{file} has no definitions: {error}") from None
        ctl.ask("POST", "definitions" if vhost is None else _path("definitions", vhost), found)

    _do(work)


main: Callable[[], None] = main_of(PROGRAM, command)

if __name__ == "__main__":
    main()
