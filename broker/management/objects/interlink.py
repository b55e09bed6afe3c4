"""The classes domain, incoming, outgoing and interlink: links of AMQP 1.0, and where the broker attaches them itself.

    create             properties
    -----------------  ---------------------------------------------------------------------------------------------
    domain             url, sasl_mechanisms, username, password, durable, min_ssf, max_ssf
    incoming           domain, source (or src), target (or dest), durable
    outgoing           likewise

`incoming` and `outgoing` have all links: those that clients have attached, by the direction in which messages come to
the broker or leave it, and, while they are connected, those through domains (`federation/interlinks`). `interlink` has
the latter always, with their state. The property `password` of a domain is empty, in place of the password.

Sources: the QMF schema of qpidd's broker; docs/amqp-1.0.txt of Qpid C++ (src and dest), Interconnects.cpp (source and
target).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter as of
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.federation.interlinks import (
    INCOMING,
    MAX_SSF,
    OUTGOING,
    SASL_SERVICE,
    DomainSettings,
    InterlinkSettings,
)
from qstore.broker.management.objects.federation import log_unknown
from qstore.broker.management.request import Arguments
from qstore.broker.management.schema import (
    PACKAGE,
    SESSION,
    ClassName,
    ManagedClass,
    always,
    method,
    prop,
    stat,
)
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import InvalidArgumentError, NotImplementedByBrokerError
from qstore.formats.broker_records.topology import DEFAULT_HOST
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.federation.interlinks import Domain, Interlink, Interlinks
    from qstore.broker.management.managed_broker import ListedSession, ManagedBroker
    from qstore.broker.management.schema import Reference, Results
    from qstore.broker.model.caller import Caller
    from qstore.broker.protocols.machine import ManagedLink
    from qstore.formats.values import TypedMap

DOMAIN: Final = "domain"
KINDS: Final = (DOMAIN, INCOMING, OUTGOING)
"""The types of objects that are created and deleted here."""

_DOMAIN_PROPERTIES: Final = ("url", "sasl_mechanisms", "username", "password", "durable", "min_ssf", MAX_SSF)
_LINK_PROPERTIES: Final = ("domain", "source", "src", "target", "dest", "durable")


def _interlinks(managed: ManagedBroker, caller: Caller) -> Interlinks:
    """The domains and links, for a caller who may change them.

    Raises:
        UnauthorizedError: the caller may not.
        NotImplementedByBrokerError: there can be none.
    """
    managed.broker.authorization.check(caller, Action.CREATE, ObjectType.LINK, "")
    if managed.interlinks is None:
        raise NotImplementedByBrokerError("this broker cannot have links to other brokers: it has no network")
    return managed.interlinks


# ---- operations ----


async def create_interlink(
    managed: ManagedBroker, kind: str, name: str, properties: TypedMap, *, strict: bool, caller: Caller
) -> None:
    """Create a domain or a link."""
    interlinks = _interlinks(managed, caller)
    given = Arguments({name: typed.value for name, typed in properties.entries})
    known = _DOMAIN_PROPERTIES if kind == DOMAIN else _LINK_PROPERTIES
    for each in given:
        if kind == DOMAIN and each == SASL_SERVICE:
            raise NotImplementedByBrokerError(f"domains have no {each}: links log in without Kerberos")
        if strict and each not in known:
            raise InvalidArgumentError(f"unknown property: {printable(each)}")
    log_unknown(kind, name, [each for each in given if each not in known])
    if kind != DOMAIN:
        source, target = given.text("source") or given.text("src"), given.text("target") or given.text("dest")
        settings = InterlinkSettings(name, kind, given.text("domain"), source, target, given.flag("durable"))
        await interlinks.create_link(settings, caller)
        return
    if not given.text("url"):
        raise InvalidArgumentError("A url is required for a domain!")
    url, mechanisms, username, password = (given.text(each) for each in _DOMAIN_PROPERTIES[:4])
    most = given.count(MAX_SSF)
    domain = DomainSettings(name, url, mechanisms, username, password, given.flag("durable"), given.count("min_ssf"))
    await interlinks.create_domain(domain, caller)
    if MAX_SSF in given:
        interlinks.ignored(name, MAX_SSF, most)


async def delete_interlink(managed: ManagedBroker, kind: str, name: str, caller: Caller) -> None:
    """Delete a domain or a link."""
    interlinks = _interlinks(managed, caller)
    if kind == DOMAIN:
        await interlinks.delete_domain(name, caller)
    else:
        await interlinks.delete_link(kind, name, caller)


async def restart(managed: ManagedBroker, link: Interlink, _arguments: Arguments, caller: Caller) -> Results:
    """Connect a link again now."""
    _interlinks(managed, caller).restart(link.settings.direction, link.settings.name, caller)
    return {}


# ---- the tables ----


class _Attached(NamedTuple):
    """A link as incoming and outgoing show it.

    Attributes:
        listed: its session; None for a link through a domain.
        vhost, user: whose it is.
        container, name, source, target, domain, transfers: as shown.
    """

    listed: ListedSession | None
    vhost: str
    user: str
    container: str
    name: str
    source: str
    target: str
    domain: str
    transfers: int


def _attached(direction: str) -> Callable[[ManagedBroker], Iterator[tuple[str, _Attached]]]:
    def links(managed: ManagedBroker) -> Iterator[tuple[str, _Attached]]:
        for listed in managed.sessions():
            for link in listed.session.attached_links:
                if link.is_incoming is (direction == INCOMING):
                    yield _of_client(listed, link)
        for each in [] if managed.interlinks is None else list(managed.interlinks.links.values()):
            if each.settings.direction == direction and each.container:
                yield _of_domain(each)

    return links


def _of_client(listed: ListedSession, link: ManagedLink) -> tuple[str, _Attached]:
    session = listed.session
    key = ",".join((SESSION.name_of(listed.key), link.container, link.name))
    return key, _Attached(
        listed, session.vhost, session.user, link.container, link.name, link.source, link.target, "", link.transfers
    )


def _of_domain(link: Interlink) -> tuple[str, _Attached]:
    settings, container = link.settings, link.container
    return f"{container},{settings.name}", _Attached(
        None, DEFAULT_HOST, link.creator, container, settings.name, settings.source, settings.target, settings.domain,
        link.status.forwarded,
    )  # fmt: skip


def _session(each: _Attached) -> Reference | None:
    return None if each.listed is None else SESSION.reference(each.listed.key)


def _class_of(direction: str) -> ManagedClass:
    return ManagedClass(
        ClassName(PACKAGE, direction),
        properties=(
            prop("sessionRef", "objId", "RC parent", _session, "", "", "Session"),
            prop("containerid", "sstr", "RC index", of("container")),
            prop("name", "sstr", "RC index", of("name")),
            prop("source", "sstr", "RC", of("source")),
            prop("target", "sstr", "RC", of("target")),
            prop("domain", "sstr", "RC", of("domain")),
        ),
        statistics=(stat("transfers", "count64", of("transfers"), "Messages transferred", "message"),),
        objects=_attached(direction),
        belongs=lambda each: (each.vhost, each.user),
    )


INCOMING_CLASS: Final = _class_of(INCOMING)
OUTGOING_CLASS: Final = _class_of(OUTGOING)


def _domains(managed: ManagedBroker) -> Iterator[tuple[str, Domain]]:
    return iter([] if managed.interlinks is None else list(managed.interlinks.domains.items()))


def _links(managed: ManagedBroker) -> Iterator[tuple[str, Interlink]]:
    return iter([] if managed.interlinks is None else list(managed.interlinks.links.items()))


def _settings(name: str) -> Callable[[Any], Any]:
    return of(f"settings.{name}")


# fmt: off
DOMAIN_CLASS: Final = ManagedClass(
    ClassName(PACKAGE, DOMAIN),
    properties=(
        prop("name", "sstr", "RC index", _settings("name")),
        prop("durable", "bool", "RC", _settings("durable")),
        prop("url", "sstr", "RO", _settings("url")),
        prop("mechanisms", "sstr", "RO", _settings("shown_mechanisms")),
        prop("username", "sstr", "RO", _settings("username")),
        prop("password", "sstr", "RO", always("")),
    ),
    objects=_domains, created=of("created_at"), belongs=lambda _: (DEFAULT_HOST, ""),
)

INTERLINK_CLASS: Final = ManagedClass(
    ClassName("qstore", "interlink"),
    properties=(
        prop("name", "sstr", "RC index", _settings("name")),
        prop("direction", "sstr", "RC", _settings("direction"), "incoming or outgoing"),
        prop("domain", "sstr", "RC", _settings("domain")),
        prop("source", "sstr", "RC", _settings("source"), "Address in the domain, or here if the link is outgoing"),
        prop("target", "sstr", "RC", _settings("target"), "Address here, or in the domain"),
        prop("durable", "bool", "RC", _settings("durable")),
        prop("creator", "sstr", "RC", of("creator"), "The user as whom it acts here"),
        prop("state", "sstr", "RO", of("status.state.value"), "starting, running or terminated"),
        prop("since", "absTime", "RO", lambda each: round(each.status.since * 1e9), "When the state began",
             "nanosecond"),
        prop("reason", "lstr", "RO", of("status.reason"), "Why it is terminated"),
    ),
    statistics=(
        stat("forwarded", "count64", of("status.forwarded"), "Messages sent to the target", "message"),
        stat("pending", "uint32", of("status.pending"), "Messages not yet settled at the source", "message"),
        stat("failures", "count32", of("status.failures"), "Number of times that it has failed"),
    ),
    methods=(
        method("restart", "Connect it again now", (), restart),
    ),
    objects=_links, created=of("created_at"), belongs=lambda _: (DEFAULT_HOST, ""),
)
# fmt: on
