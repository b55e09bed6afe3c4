"""The configuration of Apache's Java broker: config.xml and virtualhosts.xml as topology to import, and as settings.

A virtual host is read with its exchanges and queues, as its configuration creates them again at each start: so all of
them are durable here. Of queues, with the defaults of <queues> and of the virtual host:

element                              what becomes of it
-----------------------------------  ------------------------------------------------------------------------------
exchange, routingKey                 a binding with the key; without one, with the queue's name. Default: amq.direct
priority, priorities                 `qpid.priorities`; true means 10
lvq, lvqKey                          `qpid.last_value_queue_key`; by default the header qpid.LVQ_key. Before priorities
capacity, flowResumeCapacity         `qpid.flow_stop_size`, `qpid.flow_resume_size`
maximumQueueDepth, maximumMessageCount, maximumMessageSize, maximumMessageAge, minimumAlertRepeatGap
                                     `qpid.alert_size`, `qpid.alert_count`, `qpid.alert_message_size`,
                                     `qpid.alert_message_age`, `qpid.alert_repeat_gap`
consumer                             `qpid.slow_consumer_policy` and its thresholds; Delete and Cycle
autodelete                           whether the queue is deleted after use

Of config.xml, the settings that `write` puts into a directory:

    qpidd.conf   port, TLS port, interface, management, operational log, and the paths of the other files
    users        those of a PlainPasswordFile or Base64MD5PasswordFile; the rights `admin` become the tag administrator
    firewall     all <firewall> elements
    acl          the file of <acl> or <aclv2>, or the one <access_control_list>

Files that are named in it are read if they exist, by their name, or next to config.xml. Everything else that has a
value is listed: each element and attribute is either used or listed, so nothing is ignored silently.

Sources: Qpid wiki, "Configure the Broker via config.xml", "Configure the Virtual Hosts via virtualhosts.xml", "Firewall
Configuration", "Use Priority Queues", "Use Last Value Queues", "Use Producer Flow Control", "Topic Configuration".
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from qstore.broker.model.configuration import Record, object_of
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.queues.arguments import OLD_KEY, read_arguments
from qstore.broker.model.queues.priority import MAX_LEVELS
from qstore.broker.security.firewall import FirewallError
from qstore.broker.security.firewall import read as read_firewall
from qstore.broker.security.permissions import ADMINISTRATOR
from qstore.broker.security.users.imports import BASE64_MD5, PLAIN_FILE, ImportedUser, read_import
from qstore.broker.security.users.user_file import UserFileError, Users
from qstore.broker.security.users.verifiers import DEFAULT_MECHANISMS, Verifiers
from qstore.formats.broker_records.topology import (
    DEFAULT_HOST,
    HOST_KIND,
    Binding,
    Exchange,
    Queue,
    full_name,
    problem_of_new_name,
)
from qstore.formats.values import typed_map
from qstore.formats.wording import plural, printable
from qstore.formats.xml_tree import Element, XmlError, parse_xml
from qstore.tools.interchange.definitions import STANDARD, DefinitionOptions, Unmapped
from qstore.tools.interchange.items import ExportHeader, InterchangeError, ItemSink, ReadExport

MAX_FILE: Final = 4 << 20
"""Bytes of one of the files."""
MAX_TOTAL: Final = 8 << 20
"""Bytes of all of them."""
MAX_FILES: Final = 100
MAX_PATH: Final = 4096
"""Characters of the name of a file, with and without its variables."""
MAX_QUEUES: Final = 20_000
_MAX_NUMBER: Final = (1 << 63) - 1
_REALM: Final = "QPID"
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
_DATABASES: Final = (
    "security/principal-databases/principal-database",
    "security/pd-auth-manager/principal-database",
)
_PASSWORD_FILES: Final = {
    "PlainPasswordFilePrincipalDatabase": PLAIN_FILE,
    "Base64MD5PasswordFilePrincipalDatabase": BASE64_MD5,
}
_OPTION_VALUE: Final = re.compile(r"[\w.:\-]+")
_SECRET: Final = re.compile("password|passwd|secret", re.IGNORECASE)
_TYPES: Final = frozenset(("direct", "topic", "fanout", "headers"))
_DIRECT: Final = "amq.direct"
_NONE: Final = "it has no counterpart"
_DENY_ALL: Final = "deny network 0.0.0.0/0,::/0"
_SPACE: Final = re.compile(r"\s")
_ROOTS: Final = (b"<broker", b"<virtualhosts", b"<configuration")

#: Element of a queue -> argument, for numbers of which 0 means none.
_NUMBERS: Final[Mapping[str, str]] = {
    "capacity": "qpid.flow_stop_size",
    "flowResumeCapacity": "qpid.flow_resume_size",
    "maximumQueueDepth": "qpid.alert_size",
    "maximumMessageCount": "qpid.alert_count",
    "maximumMessageSize": "qpid.alert_message_size",
    "maximumMessageAge": "qpid.alert_message_age",
}
_SLOW: Final[Mapping[str, str]] = {
    "depth": "qpid.slow_consumer_size",
    "maximumDepth": "qpid.slow_consumer_size",
    "messageAge": "qpid.slow_consumer_age",
    "maximumMessageAge": "qpid.slow_consumer_age",
    "messageCount": "qpid.slow_consumer_count",
    "maximumMessageCount": "qpid.slow_consumer_count",
}
_SLOW_POLICIES: Final = {"delete": "delete", "topicdelete": "delete", "cycle": "cycle"}


def is_java_configuration(begin: bytes) -> bool:
    """Whether a file that begins so is one."""
    return begin[:1] == b"<" and any(root in begin for root in _ROOTS)


def read_java_configuration(path: str, sink: ItemSink, options: DefinitionOptions) -> ReadExport:
    """Read the topology.

    Args:
        path: config.xml or virtualhosts.xml.
        sink: takes the items.
        options: how; their `unmapped` gets what cannot be taken over, of the settings, too.

    Raises:
        InterchangeError: it is not a configuration.
        OSError: it cannot be read.
    """
    options.unmapped.clear()
    reader = _Reader(path, options.unmapped)
    hosts = reader.choose(options.vhost, options.into)
    reader.read_settings()
    for name, into in hosts.items():
        reader.read_host(name, into, sink)
    reader.list_rest()
    digest = sha256(reader.digest.digest() + repr(hosts).encode()).hexdigest()
    return ReadExport(ExportHeader(UUID(int=0), 0, "Qpid Java broker", "configuration", "java", None), digest)


def read_java_settings(path: str, options: DefinitionOptions) -> JavaSettings:
    """Read the settings; what cannot be taken over is listed by `read_java_configuration`. Raises as that."""
    reader = _Reader(path, Unmapped())
    reader.choose(options.vhost, options.into)
    return reader.read_settings()


@dataclass(slots=True)
class JavaSettings:
    """The settings of a configuration.

    Attributes:
        options: option of qpidd -> value.
        users: the users, with their tags.
        firewall: the lines of the firewall file; empty for none.
        acl: the content of the ACL file; None for none.
    """

    options: dict[str, str] = field(default_factory=dict)
    users: list[tuple[ImportedUser, tuple[str, ...]]] = field(default_factory=list)
    firewall: list[str] = field(default_factory=list)
    acl: bytes | None = None

    def write(self, directory: str) -> list[str]:
        """Write them into a new directory. Returns the names of the files.

        Raises:
            InterchangeError: the directory exists, or cannot be written, or a password is not valid.
        """
        options, names = dict(self.options), []
        where = Path(directory)
        try:
            where.mkdir(mode=0o700)
            if self.users:
                users = Users(str(where / "users"))
                users.put_all({user.name: _verifiers(user, tags) for user, tags in self.users}, keeps_tags=False)
                options["user-file"] = str((where / "users").absolute())
                names.append("users")
            for name, option, content in (
                ("firewall", "firewall-file", "".join(f"{line}\n" for line in self.firewall).encode()),
                ("acl", "acl-file", self.acl or b""),
            ):
                if content:
                    _create(where / name, content)
                    options[option] = str((where / name).absolute())
                    names.append(name)
            lines = [f"{option}={value}\n" for option, value in sorted(options.items())]
            if "interface" not in options:
                lines.append(
                    "# the Java broker listens on all addresses, qpidd on those of this host only\n#interface=0.0.0.0\n"
                )
            _create(where / "qpidd.conf", "".join(lines).encode())
        except FileExistsError:
            raise InterchangeError(f"{directory}: exists; choose another name, or remove it") from None
        except (OSError, UserFileError, ValueError) as error:
            raise InterchangeError(f"{directory}: the settings cannot be written: {error}") from None
        return ["qpidd.conf", *names]


def _verifiers(user: ImportedUser, tags: tuple[str, ...]) -> Verifiers:
    return user.verifiers(_REALM, DEFAULT_MECHANISMS).with_tags(tags)


def _create(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


# ---- reading ----


class _Reader:
    """One configuration that is being read.

    Args:
        path: its first file.
        unmapped: gets what cannot be taken over.

    Attributes:
        digest: of the content of all its files.
    """

    def __init__(self, path: str, unmapped: Unmapped) -> None:
        self._path, self._unmapped = path, unmapped
        self.digest = sha256()
        self._used: set[int] = set()  # ids of elements
        self._roots: list[tuple[str, Element]] = []  # with the names of their files
        self._variables = {name: value for name, value in os.environ.items() if name in ("QPID_HOME", "QPID_WORK")}
        self._hosts: dict[str, Element] = {}  # with its configuration
        self._chosen: dict[str, str] = {}
        self._default = ""
        self._queues = self._bytes = 0
        self._root = self._parsed(path)
        self._join_parts()
        for name, root in list(self._roots):
            self._find_hosts(name, root)

    def _parsed(self, path: str, *, is_shown: bool = True) -> Element:
        if len(self._roots) >= MAX_FILES:
            raise InterchangeError(f"the configuration has more than {MAX_FILES} files")
        try:
            root = parse_xml(self._content(path))
        except XmlError as error:
            where = f"{Path(path).name}: " if is_shown and path != self._path else ""
            raise InterchangeError(f"{where}line {error.line}: {error}") from None
        self._roots.append((Path(path).name, root))
        return root

    def _content(self, path: str) -> bytes:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise InterchangeError(f"{Path(path).name} is larger than {MAX_FILE:,} bytes")
        self._bytes += len(content)
        if self._bytes > MAX_TOTAL:
            raise InterchangeError(f"the files of the configuration are larger than {MAX_TOTAL:,} bytes")
        self.digest.update(len(content).to_bytes(8, "big") + content)
        return content

    def _join_parts(self) -> None:
        """Read the files of which a configuration consists; what comes first counts."""
        if self._root.name != "configuration":
            return
        parts = Element("broker", self._root.line)
        for each in self._root.children:
            self._used.add(id(each))
            if each.name != "xml":
                continue
            found = self._named_file(each, each.attributes.get("fileName", ""))
            if found is not None:
                parts.children += self._parsed(found).children
        self._root = parts

    def _find_hosts(self, name: str, root: Element) -> None:
        places = [root] if root.name == "virtualhosts" else list(root.all("virtualhosts"))
        for each in places:
            if each.children:
                self._add_hosts(name, each)
                continue
            found = self._named_file(each, each.text)
            if found is not None:
                self._add_hosts(Path(found).name, self._parsed(found))
                self._used.add(id(each))

    def _add_hosts(self, name: str, element: Element) -> None:
        self._default = self._take(element, "default") or self._default
        for each in element.all("virtualhost"):
            host = self._take(each, "name")
            if not host:
                raise InterchangeError(f"{name}: line {each.line}: this virtual host has no name")
            self._hosts.setdefault(host, next(each.all(host), each))

    def _named_file(self, element: Element, text: str) -> str | None:
        """The file that a text names, or one of the same name next to the configuration; None if there is none."""
        name = self._substituted(text.strip())
        beside = Path(self._path).parent / Path(name).name
        for each in (Path(self._path).parent / name, beside):
            with contextlib.suppress(OSError):  # such as a name that is too long
                if name and each.is_file():
                    return str(each)
        self._used.add(id(element))
        self._unmapped.append(printable(f"line {element.line}: <{element.name}>: there is no file {name[:100]}"))
        return None

    def _substituted(self, text: str) -> str:
        """A text with its variables: prefix, work and conf of the configuration, and those of the environment."""
        for name in ("prefix", "work", "conf"):
            if name not in self._variables:
                given = next(self._root.all(name), None)
                if given is not None:
                    self._used.add(id(given))
                    self._variables[name] = self._filled(given.text.strip())
        return self._filled(text)

    def _filled(self, text: str) -> str:
        filled = text if len(text) > MAX_PATH else _VARIABLE.sub(self._value, text)
        if len(filled) > MAX_PATH:
            raise InterchangeError(
                f"a name of a file is longer than {MAX_PATH:,} characters: {printable(filled[:100])}"
            )
        return filled

    def _value(self, variable: re.Match[str]) -> str:
        return self._variables.get(variable[1], variable[0])

    # ---- what is used, and what is left ----

    def _take(self, element: Element, path: str) -> str:
        """The text of an element on a path, which is used; empty if there is none."""
        found = next(element.all(path), None)
        if found is None:
            return ""
        self._used.add(id(found))
        return found.text.strip()

    def list_rest(self) -> None:
        """List every element with a value, and every attribute, that was not used."""
        for name, root in self._roots:
            self._list_in(name, root, "")

    def _list_in(self, file: str, element: Element, path: str) -> None:
        here = f"{path}/{element.name}" if path else element.name
        if id(element) in self._used:
            given = {}
        else:
            given = {f" {name}": value for name, value in element.attributes.items()}
            if element.text.strip() or not element.children:
                given[""] = element.text.strip()
        for name, value in given.items():
            shown = "(not shown)" if _SECRET.search(name or element.name) else printable(value[:100])
            text = f"{file}, line {element.line}: {here}{name} {shown}".rstrip()
            why = "messages in a store of the Java broker cannot be read" if here.endswith("store/class") else _NONE
            self._unmapped.append(printable(f"{text}: {why}"))
        for child in element.children:
            self._list_in(file, child, here)

    # ---- virtual hosts ----

    def choose(self, wanted: str | None, into: str | None) -> dict[str, str]:
        """The virtual hosts that are read, and the names that they get; the others are listed."""
        if wanted is not None and wanted not in self._hosts:
            raise InterchangeError(f"there is no virtual host {wanted!r}; there are {', '.join(sorted(self._hosts))}")
        chosen = list(self._hosts) if wanted is None else [wanted]
        if into is not None and len(chosen) != 1:
            raise InterchangeError(f"there are {len(chosen)} virtual hosts: choose one (--vhost), for --to-vhost")
        for name in self._hosts.keys() - set(chosen):
            self._unmapped.add("vhost", name, "another virtual host: it is left out")
            self._use_all(self._hosts[name])
        hosts = {}
        for name in chosen:
            problem = problem_of_new_name(into or name)
            if problem:
                self._unmapped.add("vhost", name, f"{problem}: it is left out, with what it has")
                self._use_all(self._hosts[name])
            else:
                hosts[name] = into or name
        if self._default and hosts.get(self._default, DEFAULT_HOST) != DEFAULT_HOST:
            hint = f"--vhost {self._default} --to-vhost / imports it as that"
            self._unmapped.add("default virtual host", self._default, f"clients that name none get /; {hint}")
        self._chosen = hosts
        return hosts

    def _use_all(self, element: Element) -> None:
        self._used.add(id(element))
        for child in element.children:
            self._use_all(child)

    def read_host(self, name: str, into: str, sink: ItemSink) -> None:
        """Pass everything of a virtual host on, as of another one."""
        element, self._unmapped.host = self._hosts[name], name
        if into != DEFAULT_HOST:
            sink.other(object_of(Record(HOST_KIND, (into,)), {}))
        known = dict(STANDARD)
        if any(next(each.all(threshold), None) for each in (element, *element.all("queues")) for threshold in _NUMBERS):
            text = "thresholds for all queues: they are set for those of the configuration, not for ones declared later"
            self._unmapped.add("vhost", name, text)
        for each in element.all("exchanges/exchange"):
            self._exchange(each, into, known, sink)
        wanted: dict[str, list[tuple[str, str]]] = {}
        for defaults in [*element.all("queues"), element]:
            for each in defaults.all("queue"):
                layers = [defaults, element] if defaults is not element else [element]
                self._queue(each, layers, into, known, wanted, sink)
        for exchange in sorted({exchange for bound in wanted.values() for exchange, _ in bound} & STANDARD.keys()):
            sink.exchange(Exchange(full_name(into, exchange), True, STANDARD[exchange]))  # a store may not have them
        for queue, bound in wanted.items():
            for exchange, key in bound:
                sink.binding(full_name(into, exchange), Binding(0, full_name(into, queue), key))
        self._unmapped.host = ""

    def _exchange(self, element: Element, into: str, known: dict[str, str], sink: ItemSink) -> None:
        name, kind = self._take(element, "name"), self._take(element, "type") or "direct"
        self._take(element, "durable")  # all are, see the module
        if name in known or name == "<<default>>":
            return
        problem = "" if kind in _TYPES else f"type {kind} is not known"
        problem = problem or ("names beginning with amq. are reserved" if name.startswith("amq.") else "")
        problem = problem or problem_of_new_name(name)
        if problem:
            self._unmapped.add("exchange", name, f"{problem}: it is left out, with its bindings")
            return
        known[name] = kind
        is_auto_delete = self._take(element, "autodelete").lower() == "true"
        sink.exchange(Exchange(full_name(into, name), True, kind, auto_delete=is_auto_delete))

    def _queue(
        self,
        element: Element,
        defaults: list[Element],
        into: str,
        known: Mapping[str, str],
        wanted: dict[str, list[tuple[str, str]]],
        sink: ItemSink,
    ) -> None:
        name = self._take(element, "name")
        self._queues += 1
        if self._queues > MAX_QUEUES:
            raise InterchangeError(f"the configuration has more than {MAX_QUEUES:,} queues")
        problem = problem_of_new_name(name)
        if name.startswith("amq.") or problem or name in wanted:
            why = problem or (
                "there are two of this name" if name in wanted else "names beginning with amq. are reserved"
            )
            self._unmapped.add("queue", name, f"{why}: it is left out")
            self._use_all(element)
            return
        own = next(element.all(name), element)
        layers = [own, *defaults]
        given = _Given(self, name, layers, self._unmapped)
        arguments = given.arguments()
        queue = Queue(full_name(into, name), typed_map(arguments), "", "", given.text("autodelete").lower() == "true")
        given.text("durable")  # all are, see the module
        try:
            read_arguments(queue.arguments)
        except InvalidArgumentError as error:
            self._unmapped.add("queue", name, f"{error}: it is created without arguments")
            queue = Queue(queue.name, typed_map({}), "", "", queue.auto_delete)
        sink.queue(queue)
        exchange = given.text("exchange") or _DIRECT
        keys = [key.text.strip() for key in own.all("routingKey")] or [name]
        for key in own.all("routingKey"):
            self._used.add(id(key))
        wanted[name] = []
        if exchange == "<<default>>":
            return
        if exchange not in known:
            self._unmapped.add("queue", name, f"there is no exchange {exchange}: it is not bound")
        else:
            wanted[name] = [(exchange, key) for key in keys]

    # ---- settings ----

    def read_settings(self) -> JavaSettings:
        """The settings of the broker."""
        found, root = JavaSettings(), self._root
        if root.name == "virtualhosts":
            found.firewall = self._firewall()
            return found
        options = found.options
        self._connector(options)
        management = self._take(root, "management/enabled").lower()
        if management:
            options["mgmt-enable"] = "yes" if management == "true" else "no"
        status = self._take(root, "status-updates").lower()
        options["log-status"] = "yes" if status in ("", "on") else "no"
        if self._take(root, "queue/auto_register").lower() == "false":
            self._unmapped.append("queue/auto_register false: queues are bound to exchanges only on request anyway")
        if options.get("require-encryption") == "yes" or "ssl-port" in options:
            text = "its certificate and key: convert them to PEM, for --ssl-cert and --ssl-key"
            self._unmapped.append(f"connector/ssl: the keystore is not read, with {text}")
        self._security(found)
        found.firewall = self._firewall()
        return found

    def _connector(self, options: dict[str, str]) -> None:
        root = self._root
        for option, path in (("port", "connector/port"), ("interface", "connector/bind")):
            value = self._take(root, path)
            if value and value != "*":
                self._option(options, option, value)
        is_encrypted = self._take(root, "connector/ssl/enabled").lower() == "true"
        port = self._take(root, "connector/ssl/port") or self._take(root, "connector/sslport") or "8672"
        only = self._take(root, "connector/ssl/sslOnly").lower() == "true"
        if is_encrypted:
            self._option(options, "ssl-port", port)
            if only:
                options["require-encryption"] = "yes"

    def _option(self, options: dict[str, str], option: str, value: str) -> None:
        if _OPTION_VALUE.fullmatch(value):
            options[option] = value
        else:
            self._unmapped.append(printable(f"{option} {value[:64]} is not valid: it is left out"))

    def _security(self, found: JavaSettings) -> None:
        root = self._root
        names: dict[str, ImportedUser] = {}
        for database in [each for path in _DATABASES for each in root.all(path)]:
            self._take(database, "name")
            kind = self._take(database, "class").rpartition(".")[2]
            attributes = [each for each in database.all("attributes/attribute") if each.value("name") == "passwordFile"]
            if kind not in _PASSWORD_FILES or not attributes:
                self._unmapped.append(printable(f"principal database {kind or '(none)'}: its users are not read"))
                continue
            self._take(attributes[0], "name")
            file = attributes[0], self._take(attributes[0], "value")
            for user in self._users(file, _PASSWORD_FILES[kind]):
                names.setdefault(user.name, user)
        rights = self._rights() if names else {}
        found.users = [(user, rights.get(name, ())) for name, user in names.items()]
        access = self._take(root, "security/access/class").rpartition(".")[2]
        lists = [each for _, each_root in self._roots for each in each_root.named("access_control_list")]
        for path in ("security/acl", "security/aclv2"):
            element = next(root.all(path), None)
            if element is not None and element.text.strip() and not element.children:
                rules = self._named_file(element, element.text)
                if rules is not None:
                    found.acl = self._content(rules)
                    self._used.add(id(element))
        if found.acl is None and len(lists) == 1:
            found.acl = b"<security>" + _written(lists[0]) + b"</security>"
            self._use_all(lists[0])
            if len(self._hosts) > 1:
                self._unmapped.append("the access_control_list is for all virtual hosts")
        elif found.acl is None and access == "DenyAll" and not lists:
            found.acl = b"acl deny all all\n"
        elif access and access not in ("AllowAll", "DenyAll"):
            self._unmapped.append(
                printable(f"security/access {access}: rules are for all virtual hosts, in an ACL file")
            )

    def _users(self, file: tuple[Element, str], kind: str) -> list[ImportedUser]:
        path = self._named_file(*file)
        if path is None:
            return []
        try:
            users, problems = read_import(kind, self._content(path), _REALM)
        except ValueError as error:
            raise InterchangeError(f"{Path(path).name}: {error}") from None
        self._unmapped.extend(printable(f"{Path(path).name}: {problem}") for problem in problems)
        return users

    def _rights(self) -> dict[str, tuple[str, ...]]:
        """User -> tags, by the file of rights for management."""
        element = next(self._root.all("security/jmx/access"), None)
        self._take(self._root, "security/jmx/principal-database")
        path = None if element is None else self._named_file(element, element.text)
        if path is None or element is None:
            return {}
        self._used.add(id(element))
        found: dict[str, tuple[str, ...]] = {}
        for number, line in enumerate(self._content(path).decode("utf-8", "replace").splitlines(), 1):
            name, equals, right = line.strip().partition("=")
            if not name or name.startswith("#"):
                continue
            if equals and right.strip().lower() == "admin":
                found[name.strip()] = (ADMINISTRATOR,)
            else:
                what = printable(f"{Path(path).name}, line {number}: the rights of {name.strip()[:64]}")
                self._unmapped.append(f"{what} have no counterpart: only admin, as the tag administrator")
        return found

    def _firewall(self) -> list[str]:
        """The lines of the firewall file: those of virtual hosts, and those of the broker."""
        lines: list[str] = []
        for name, into in self._chosen.items():
            for each in self._hosts[name].all("security/firewall"):
                prefix = "" if _SPACE.search(into) else f"vhost {into} "
                if prefix:
                    lines += self._firewall_lines(each, prefix)
                else:
                    self._unmapped.add("firewall of virtual host", name, "the name has a space: all are denied")
                    lines.append(_DENY_ALL)
        for path in ("security/firewall", "security/access/firewall"):
            for each in self._root.all(path):
                lines += self._firewall_lines(each, "")
        lines = list(dict.fromkeys(lines))
        # One firewall may consist of several elements: its default is deny if one of them has that.
        closed = {each.removesuffix("deny") for each in lines if each.endswith("default deny")}
        lines = [
            each for each in lines if not (each.endswith("default allow") and each.removesuffix("allow") in closed)
        ]
        try:
            read_firewall("\n".join(lines))
        except FirewallError as error:
            self._unmapped.append(f"<firewall>: {error}: all are denied")
            return ["default deny"]
        return lines

    def _firewall_lines(self, element: Element, prefix: str, depth: int = 0) -> list[str]:
        """The lines of an element. In place of rules that are not known is one that denies: it fails closed."""
        lines = []
        default = element.attributes.get("default-action")
        for child in element.children:
            if child.name in ("xml", "include") and depth < 5:
                path = self._named_file(child, child.attributes.get("fileName") or child.attributes.get("file") or "")
                if path is None:
                    lines.append(f"{prefix}{_DENY_ALL}")
                    continue
                self._used.add(id(child))
                lines += self._firewall_lines(self._parsed(path), prefix, depth + 1)
                continue
            self._used.add(id(child))
            given = child.attributes
            action = (given.get("access") or given.get("action") or "").lower()
            host, network = given.get("hostname") or given.get("host"), given.get("network")
            kind, values = ("host", host) if host else ("network", network or "")
            line = f"{action} {kind} {','.join(each.strip() for each in values.split(','))}"
            try:
                if child.name != "rule" or "\n" in line:
                    raise FirewallError("this is no rule")
                read_firewall(line)
            except FirewallError as error:
                reason = str(error).removeprefix("line 1: ")
                what = f"line {child.line}: a rule of <firewall>: {reason}"
                if action == "allow":
                    self._unmapped.append(printable(f"{what}: it is left out"))
                    continue
                self._unmapped.append(
                    printable(f"{what}: since it may deny, all are denied that no earlier rule allows")
                )
                line = _DENY_ALL
            lines.append(f"{prefix}{line}")
        self._used.add(id(element))
        if default is not None:
            lines.append(f"{prefix}default {'allow' if default.lower() == 'allow' else 'deny'}")
        return lines


class _Given:
    """What is given for one queue.

    Args:
        reader: notes what is used.
        name: the queue.
        layers: the elements where it may be, those that count first.
        unmapped: gets what cannot be taken over.
    """

    def __init__(self, reader: _Reader, name: str, layers: list[Element], unmapped: Unmapped) -> None:
        self._take: Callable[[Element, str], str] = reader._take
        self._name, self._layers, self._unmapped = name, layers, unmapped

    def text(self, element: str) -> str:
        """The text of an element in the first layer that has it; empty for none."""
        return next(filter(None, [self._take(each, element) for each in self._layers]), "")

    def number(self, element: str) -> int:
        """A number; 0 for none, or an invalid one, which is listed."""
        return self._read(element, self.text(element))

    def _read(self, element: str, text: str) -> int:
        if text and (not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > _MAX_NUMBER):
            self._unmapped.add("queue", self._name, f"{element} {text[:40]} is not a number")
            return 0
        return int(text or "0")

    def arguments(self) -> dict[str, Any]:
        """The arguments of the queue."""
        found: dict[str, Any] = {argument: value for each, argument in _NUMBERS.items() if (value := self.number(each))}
        stop = found.get("qpid.flow_stop_size")
        if stop is None:
            found.pop("qpid.flow_resume_size", None)
        else:
            found["qpid.flow_resume_size"] = min(stop, found.get("qpid.flow_resume_size", stop))
        gap = self.number("minimumAlertRepeatGap")  # milliseconds
        if gap:
            found["qpid.alert_repeat_gap"] = max(1, gap // 1000)
        is_last_value, key = self.text("lvq").lower() == "true", self.text("lvqKey")
        has_priorities, levels = self.text("priority").lower() == "true", self.number("priorities")
        if is_last_value or key:
            found["qpid.last_value_queue_key"] = key or OLD_KEY
        elif has_priorities or levels:
            found["qpid.priorities"] = min(levels or MAX_LEVELS, MAX_LEVELS)
        consumer = next((each for layer in self._layers for each in layer.all("consumer")), None)
        if consumer is not None:
            found |= self._slow(consumer)
        return found

    def _slow(self, consumer: Element) -> dict[str, Any]:
        """The arguments for slow consumers."""
        found: dict[str, Any] = {}
        for each, argument in _SLOW.items():
            value = self._read(each, self._take(consumer, each))
            if value:
                found[argument] = value
        policy = next(consumer.all("policy"), None)
        if policy is None:
            return {"qpid.slow_consumer_policy": "disconnect", **found} if found else {}
        self._take(consumer, "policy")
        name = policy.attributes.get("name", self._take(policy, "name"))
        if name.lower() not in _SLOW_POLICIES:
            self._unmapped.add("queue", self._name, f"policy {name} for slow consumers is not known: it has none")
            return {}
        found["qpid.slow_consumer_policy"] = _SLOW_POLICIES[name.lower()]
        for option in self._options(policy):
            if option.get("name") in ("delete-persistent", "include-persistent"):
                found["qpid.slow_consumer_delete_durable"] = int(option.get("value", "").lower() == "true")
        return found

    def _options(self, policy: Element) -> Iterator[Mapping[str, str]]:
        for option in policy.all("options/option"):
            self._take(policy, "options/option")
            yield option.attributes


def _written(element: Element) -> bytes:
    """An element as XML, without its attributes."""
    text = element.text.strip().replace("&", "&amp;").replace("<", "&lt;")
    inner = text.encode() + b"".join(map(_written, element.children))
    return b"<" + element.name.encode() + b">" + inner + b"</" + element.name.encode() + b">"


def shown_settings(settings: JavaSettings) -> str:
    """What there is of settings, for a notice; empty for nothing."""
    parts = [
        plural(len(settings.options), "option") if settings.options else "",
        plural(len(settings.users), "user") if settings.users else "",
        "the firewall" if settings.firewall else "",
        "the access rules" if settings.acl is not None else "",
    ]
    return ", ".join(each for each in parts if each)
