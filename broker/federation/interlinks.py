"""Domains, and the links of AMQP 1.0 through them that the broker attaches by itself.

    domain        another broker or container: its addresses, and how to log in there
    incoming      a link from a source there to a target here
    outgoing      a link from a source here to a target there

Sources and targets are addresses of AMQP 1.0 (`protocols/amqp_1_0/addresses`). A link is a shovel (`shovel`) with both
ends over AMQP 1.0: it has a connection of its own to the domain, and one without a socket to this broker, on which it
acts as the user who has made it. Each message is settled at its source when its target has accepted it: none is lost
if a broker is killed, and some may come twice. A connection that fails is made again, with a back-off as that of links
of federation (`link`). Nothing prevents loops.

There, the link is known by its name, and the broker's federation tag is its container's.

Durable domains are stored as qpidd does it (kind `domain`); those of qpidd's stores work here. Links can be durable as
well, other than in qpidd: then they are stored as configuration records, with the user who has made them.

A client that sends to `NODE@DOMAIN`, or receives from it, is connected to the node in the domain (`relay`).

Who makes a domain or a link, or sends or receives through one, needs the permission to create links, as for links of
federation. A domain that has links cannot be deleted.

Source: docs/amqp-1.0.txt of Qpid C++ ("Broker Initiated Links"); qpidd, Interconnects.cpp and Domain.cpp (the
properties, their defaults, the record).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.federation.federation import check_texts
from qstore.broker.federation.link import MAX_INTERVALS, remotes_in
from qstore.broker.federation.link_peer import NO_SASL, LinkSide
from qstore.broker.federation.relay import Fetch, FetchedLink, Relay, RelayedLink, Way
from qstore.broker.federation.shovel import LINKS, Definition, Names, Shovel, read_definition
from qstore.broker.federation.uri import MAX_URIS, AmqpUri, parse_uris
from qstore.broker.log.logs import log_of
from qstore.broker.model.arguments import as_text
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.configuration import Record
from qstore.broker.model.errors import (
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    PreconditionFailedError,
    ResourceLimitExceededError,
)
from qstore.broker.model.topology.changes import make_in, run_in
from qstore.broker.security.sasl.simple import ANONYMOUS
from qstore.broker.security.sasl.table import TABLE
from qstore.formats.broker_records.topology import DEFAULT_HOST, DOMAIN_KIND, INTERLINK_KIND, GeneralObject
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import STR16, TypedMap, TypedValue, typed_value
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.federation.shovel import Shovels, ShovelStatus
    from qstore.broker.model.caller import Caller

_LOG: Final = log_of("Broker")

INCOMING: Final = "incoming"
OUTGOING: Final = "outgoing"

MAX_DOMAINS: Final = 1_000
MAX_INTERLINKS: Final = 1_000
"""Links of one broker: each has two connections."""

MAX_RELAYS: Final = 1_000
"""Clients' links that lead to domains: each has a connection."""

PREFETCH: Final = 1_000
"""Messages of one link that are not settled."""

TLS_SSF: Final = 128
"""The security strength factor of TLS: the least bits of the keys of its ciphers."""

MAX_SSF: Final = "max_ssf"
SASL_SERVICE: Final = "sasl_service"

_IGNORED: Final = {
    MAX_SSF: "it limits layers of SASL, and links have none",
    SASL_SERVICE: "it is for Kerberos, and links log in without",
}
"""Properties of qpidd's domains that have no effect, and why."""

_MAX_TEXT: Final = 255  # bytes, as of `sstr` in QMF
_HERE: Final = AmqpUri("tcp", "", 5672, DEFAULT_HOST, None, None, None, None)


class DomainSettings(NamedTuple):
    """What describes a domain.

    Attributes:
        name: its name.
        url: its addresses: `HOST`, `HOST:PORT`, `amqp:tcp:HOST:PORT,ssl:HOST:PORT` or `amqps://HOST:PORT/VHOST`.
        mechanisms: the SASL mechanisms that may be used, separated by spaces; NONE to leave out SASL; empty for
            ANONYMOUS, or for all with a user name.
        username, password: for the login; empty for none.
        durable: whether it survives a restart.
        min_ssf: the least security strength factor, in bits: from 1 on all addresses must have TLS.
    """

    name: str
    url: str
    mechanisms: str = ""
    username: str = ""
    password: str = ""
    durable: bool = False
    min_ssf: int = 0

    @property
    def shown_mechanisms(self) -> str:
        """The mechanisms that are used; empty for all."""
        return self.mechanisms or ("" if self.username else ANONYMOUS)

    def __repr__(self) -> str:
        return f"DomainSettings(name={self.name!r}, url={self.url!r}, username={self.username!r})"


def read_uris(settings: DomainSettings) -> tuple[AmqpUri, ...]:
    """The addresses of a domain, each with its login. Raises InvalidArgumentError."""
    url, names = settings.url, tuple(settings.shown_mechanisms.upper().replace(",", " ").split())
    unknown = [each for each in names if each not in TABLE and each != NO_SASL]
    if unknown:
        raise InvalidArgumentError(f"sasl_mechanisms: there is no mechanism {unknown[0]!a:.64}")
    if NO_SASL in names and len(names) > 1:
        raise InvalidArgumentError(f"sasl_mechanisms: {NO_SASL} is not one of several")
    if "@" in url:
        raise InvalidArgumentError("url has a user or a password: these are the properties username and password")
    found: tuple[AmqpUri, ...]
    if url.lower().startswith(("amqp://", "amqps://")) and "," not in url:
        found = parse_uris("url", url)
    else:
        remotes = remotes_in(url)
        if not remotes or len(remotes) != len(url.split(",")):
            raise InvalidArgumentError(f"url {url!a:.300} is not a list of addresses HOST:PORT or ssl:HOST:PORT")
        found = tuple(AmqpUri(each.transport, *each[:2], DEFAULT_HOST, None, None, None, None) for each in remotes)
    if len(found) > MAX_URIS or not all(each.host for each in found):
        raise InvalidArgumentError(f"url must have 1 to {MAX_URIS} addresses, each with a host")
    if not 0 <= settings.min_ssf <= TLS_SSF:
        raise InvalidArgumentError(f"min_ssf must be 0 to {TLS_SSF}, which every connection with TLS has")
    if settings.min_ssf and any(each.transport != "ssl" for each in found):
        raise InvalidArgumentError(f"min_ssf {settings.min_ssf} needs TLS at all addresses of url (ssl:HOST:PORT)")
    user, password = settings.username or None, settings.password or None
    return tuple(each._replace(user=user, password=password, mechanisms=names or None) for each in found)


class Domain:
    """A domain.

    Args:
        settings: its settings.
        created_at: when it was made or recovered, in seconds since 1970.

    Attributes:
        settings, created_at: as above.
        uris: its addresses.
        relays: the clients' links that lead there.
        number: its number in the store; None if it is not stored.

    Raises:
        InvalidArgumentError: the settings are not valid.
    """

    def __init__(self, settings: DomainSettings, created_at: float) -> None:
        self.settings, self.created_at = settings, created_at
        self.uris = read_uris(settings)
        self.relays: dict[Way, None] = {}
        self.number: int | None = None


class InterlinkSettings(NamedTuple):
    """What describes a link.

    Attributes:
        name: its name, among those of both directions.
        direction: INCOMING or OUTGOING.
        domain: the name of its domain.
        source, target: addresses.
        durable: whether it survives a restart.
    """

    name: str
    direction: str
    domain: str
    source: str
    target: str
    durable: bool = False


class Interlink:
    """A link.

    Args:
        interlinks: all of them.
        settings: its settings.
        domain: its domain.
        creator: the user who has made it.

    Attributes:
        settings, creator: as above.
        created_at: when it was made or recovered, in seconds since 1970.
        shovel: moves its messages.
    """

    def __init__(self, interlinks: Interlinks, settings: InterlinkSettings, domain: Domain, creator: str) -> None:
        self.settings, self.creator = settings, creator
        shovels = interlinks.shovels
        self.created_at = shovels.clock()
        broker, title = shovels.broker, f'{settings.direction.capitalize()} link "{printable(settings.name)}"'
        names = Names(title, f"{settings.name}@{settings.domain}", broker.federation_tag, settings.name)
        definition = _definition(settings, domain, broker.settings.link_maintenance_seconds)
        self.shovel = Shovel(shovels, (DEFAULT_HOST, settings.direction, settings.name), definition, creator, names)

    @property
    def status(self) -> ShovelStatus:
        """The status of its shovel."""
        return self.shovel.status

    @property
    def container(self) -> str:
        """The name of the container in its domain; empty while there is no connection."""
        side = self.shovel.sides[0 if self.settings.direction == INCOMING else 1]
        return side.peer_container if isinstance(side, LinkSide) else ""


def _definition(settings: InterlinkSettings, domain: Domain, interval: float) -> Definition:
    definition = read_definition({
        "src-uri": "amqp://", "src-protocol": LINKS, "src-address": settings.source, "src-prefetch-count": PREFETCH,
        "dest-uri": "amqp://", "dest-protocol": LINKS, "dest-address": settings.target,
    })  # fmt: skip
    definition = definition._replace(delay=interval, most_delay=interval * MAX_INTERVALS)
    if settings.direction == INCOMING:
        return definition._replace(src_uris=domain.uris, dest_uris=(_HERE,))
    return definition._replace(src_uris=(_HERE,), dest_uris=domain.uris)


class Interlinks:
    """The domains of one broker, and the links through them.

    Args:
        shovels: the broker's, whose network and time they use.

    Attributes:
        shovels: as above.
        domains, links: name -> domain, and link.
    """

    def __init__(self, shovels: Shovels) -> None:
        self.shovels = shovels
        self.domains: dict[str, Domain] = {}
        self.links: dict[str, Interlink] = {}
        self._unusable: dict[str, int] = {}  # of the store: name -> number
        self._broker = shovels.broker
        self._lock = asyncio.Lock()

    # ---- life ----

    def start(self) -> None:
        """Recover the domains and links of the store, and begin to connect."""
        store = self._broker.store
        if store is None:
            return
        for number, record in sorted(store.topology.general.items()):
            if isinstance(record, GeneralObject) and record.kind == DOMAIN_KIND:
                self._recover_domain(number, record)
        for (name, *_), values in sorted(self._broker.configuration.of(INTERLINK_KIND).items()):
            self._recover_link(name, values)

    def _recover_domain(self, number: int, record: GeneralObject) -> None:
        try:
            domain = self.domains[record.name] = Domain(_stored_settings(record), self.shovels.clock())
        except InvalidArgumentError as error:
            _LOG.error('Domain "%s" of the store is not used: %s', printable(record.name), error)
            self._unusable[record.name] = number
            return
        domain.number = number
        for name in _IGNORED:
            typed = record.properties.get(name)
            if typed is not None:
                self.ignored(record.name, name, as_text(typed.value))

    def ignored(self, domain: str, name: str, value: object) -> None:
        """Log that a property of a domain has no effect: `MAX_SSF` or `SASL_SERVICE`."""
        self._broker.arguments.field_ignored(f'Domain "{printable(domain)}"', name, value, _IGNORED[name])

    def _recover_link(self, name: str, values: Mapping[str, Any]) -> None:
        texts = [str(values.get(each, "")) for each in ("direction", "domain", "source", "target")]
        settings = InterlinkSettings(name, texts[0], texts[1], texts[2], texts[3], True)
        domain = self.domains.get(settings.domain)
        if domain is None or settings.direction not in (INCOMING, OUTGOING):
            _LOG.error('Link "%s" of the store is not used: there is no domain "%s"', printable(name), settings.domain)
            return
        link = self.links[name] = Interlink(self, settings, domain, str(values.get("creator", "")))
        link.shovel.start()

    def close(self) -> None:
        """End all links: the broker stops."""
        for link in self.links.values():
            link.shovel.stop()
        for domain in self.domains.values():
            for relay in list(domain.relays):
                relay.fail("the broker stops")

    def _check(self, caller: Caller) -> None:
        self._broker.authorization.check(caller, Action.CREATE, ObjectType.LINK, "")

    # ---- domains ----

    async def create_domain(self, settings: DomainSettings, caller: Caller) -> None:
        """Make a domain.

        Raises:
            UnauthorizedError: the caller may not create links.
            InvalidArgumentError: the name, the addresses or the mechanisms are not valid.
            NotAllowedError: there is such a domain.
            ResourceLimitExceededError: there are too many.
            InternalError: the store cannot store it.
        """
        self._check(caller)
        check_texts("domain", *settings[:5])
        domain = Domain(settings, self.shovels.clock())
        async with self._lock:
            if settings.name in self.domains:
                raise NotAllowedError(f'A domain named "{printable(settings.name)}" already exists')
            if settings.name in self._unusable:
                text = "is in the store, where its settings are not valid: delete it first"
                raise NotAllowedError(f'A domain named "{printable(settings.name)}" {text}')
            if len(self.domains) >= MAX_DOMAINS:
                raise ResourceLimitExceededError(f"there are {MAX_DOMAINS:,} domains; this is the maximum")
            if settings.durable:
                domain.number = await self._store(_record_of(settings))
            self.domains[settings.name] = domain
        by = caller.user or "the broker"
        _LOG.info('Domain "%s" at %s was made by %s', printable(settings.name), domain.uris[0].shown, by)

    async def delete_domain(self, name: str, caller: Caller) -> None:
        """Delete a domain.

        Raises:
            UnauthorizedError: the caller may not.
            NotFoundError: there is no such domain.
            PreconditionFailedError: it has links.
            InternalError: the store cannot delete it.
        """
        self._check(caller)
        async with self._lock:
            domain = self.domains.get(name)
            if domain is None and name in self._unusable:
                await self._forget(self._unusable[name])
                del self._unusable[name]
                _LOG.info('Domain "%s", which was not used, was deleted by %s', printable(name), caller.user)
                return
            if domain is None:
                raise NotFoundError(f"No such domain: {printable(name)}")
            user = next((each for each in self.links.values() if each.settings.domain == name), None)
            if user is not None:
                text = f'{user.settings.direction} link "{printable(user.settings.name)}"'
                raise PreconditionFailedError(f'domain "{printable(name)}" is in use by {text}')
            if domain.number is not None:
                await self._forget(domain.number)
            del self.domains[name]
            for relay in list(domain.relays):
                relay.fail("the domain was deleted")
        _LOG.info('Domain "%s" was deleted by %s', printable(name), caller.user or "the broker")

    # ---- links ----

    async def create_link(self, settings: InterlinkSettings, caller: Caller) -> None:
        """Make a link, which begins to connect.

        Raises:
            UnauthorizedError: the caller may not create links.
            InvalidArgumentError: the name or an address is not valid, or it would be durable and its domain is not.
            NotFoundError: there is no such domain.
            NotAllowedError: there is such a link.
            ResourceLimitExceededError: there are too many.
            InternalError: the store cannot store it.
        """
        self._check(caller)
        check_texts("link", *settings[:5])
        if not settings.domain:
            raise InvalidArgumentError("Domain must be specified")
        if not settings.source or not settings.target:
            raise InvalidArgumentError(f"an {settings.direction} link needs a source and a target")
        async with self._lock:
            domain = self.domains.get(settings.domain)
            if domain is None:
                raise NotFoundError(f"No such domain: {printable(settings.domain)}")
            if settings.name in self.links:
                raise NotAllowedError(f'there is already a link "{printable(settings.name)}"')
            if len(self.links) >= MAX_INTERLINKS:
                raise ResourceLimitExceededError(f"there are {MAX_INTERLINKS:,} links; this is the maximum")
            if settings.durable and not domain.settings.durable:
                raise InvalidArgumentError("a durable link needs a durable domain")
            link = Interlink(self, settings, domain, caller.user)
            if settings.durable and self._broker.store is not None:
                values = {
                    "direction": settings.direction, "domain": settings.domain, "source": settings.source,
                    "target": settings.target, "creator": caller.user,
                }  # fmt: skip
                await self._broker.configuration.change({_record_name(settings.name): values})
            self.links[settings.name] = link
        _LOG.info("%s through domain %s was made by %s", link.shovel, settings.domain, caller.user or "the broker")
        link.shovel.start()

    async def delete_link(self, direction: str, name: str, caller: Caller) -> None:
        """End a link for good.

        Raises:
            UnauthorizedError: the caller may not.
            NotFoundError: there is no such link.
            InternalError: the store cannot delete it.
        """
        self._check(caller)
        async with self._lock:
            link = self._find(direction, name)
            await self._broker.configuration.change({}, (_record_name(name),))
            del self.links[name]
            link.shovel.stop()
        _LOG.info("%s was deleted by %s", link.shovel, caller.user or "the broker")

    def restart(self, direction: str, name: str, caller: Caller) -> None:
        """Connect a link again now. Raises UnauthorizedError or NotFoundError."""
        self._check(caller)
        self._find(direction, name).shovel.restart()

    def _find(self, direction: str, name: str) -> Interlink:
        link = self.links.get(name)
        if link is None or link.settings.direction != direction:
            raise NotFoundError(f"No such {direction} link: {printable(name)}")
        return link

    # ---- relays ----

    def domain_in(self, address: str, host: str) -> Domain | None:
        """The domain in an address NODE@DOMAIN of a virtual host; None if it is none, or there is no such domain."""
        node, _, name = address.partition("@")
        return self.domains.get(name) if node and host == DEFAULT_HOST else None

    def relay(self, address: str, link: RelayedLink, caller: Caller) -> Relay:
        """Begin to relay a client's link to an address that has a domain.

        Raises:
            UnauthorizedError: the caller may not create links.
            NotFoundError: the domain was deleted meanwhile.
            ResourceLimitExceededError: there are too many.
        """
        return Relay(self, self._domain_for(address, caller), address.partition("@")[0], link, caller.user)

    def fetch(
        self, address: str, link: FetchedLink, caller: Caller, source: Mapping[str, Any], *, settles: bool
    ) -> Fetch:
        """Begin to fetch messages from an address that has a domain, for a client's link.

        Args:
            address: the address.
            link: the link.
            caller: its session.
            source: fields of the source beside the address.
            settles: whether messages come settled.

        Raises:
            As `relay`.
        """
        domain, node = self._domain_for(address, caller), address.partition("@")[0]
        return Fetch(self, domain, node, link, caller.user, source, settles=settles)

    def _domain_for(self, address: str, caller: Caller) -> Domain:
        self._check(caller)
        domain = self.domain_in(address, caller.vhost)
        if domain is None:
            raise NotFoundError(f"there is no domain of {printable(address[:_MAX_TEXT])}")
        if sum(len(each.relays) for each in self.domains.values()) >= MAX_RELAYS:
            raise ResourceLimitExceededError(f"there are {MAX_RELAYS:,} relays; this is the maximum")
        return domain

    # ---- the store ----

    async def _store(self, record: GeneralObject) -> int | None:
        store = self._broker.store
        if store is None:
            return None
        return await make_in(store, lambda done: store.changes.create_general(record, done))

    async def _forget(self, number: int) -> None:
        store = self._broker.store
        assert store is not None, "it has given the number"
        await run_in(store, lambda done: store.changes.delete_general(number, done))


def _record_name(name: str) -> Record:
    return Record(INTERLINK_KIND, (name,))


_MIN_SSF: Final = "min_ssf"
_MAX_DIGITS: Final = 9

#: Property of a stored domain -> attribute of its settings.
_STORED: Final = {
    "url": "url", "sasl_mechanisms": "mechanisms", "username": "username", "password": "password",
}  # fmt: skip


def _record_of(settings: DomainSettings) -> GeneralObject:
    given = [(name, getattr(settings, attribute)) for name, attribute in _STORED.items()]
    entries = [(name, TypedValue(STR16, text)) for name, text in given if text]
    if settings.min_ssf:
        entries.append((_MIN_SSF, typed_value(settings.min_ssf)))
    return GeneralObject(DOMAIN_KIND, settings.name, TypedMap((*entries, ("durable", typed_value(True)))))


def _stored_settings(record: GeneralObject) -> DomainSettings:
    found = {_STORED[name]: _text(typed.value) for name, typed in record.properties.entries if name in _STORED}
    typed = record.properties.get(_MIN_SSF)
    least = _text(0 if typed is None else typed.value)
    min_ssf = int(least) if least.isdecimal() and len(least) <= _MAX_DIGITS else _MAX_TEXT  # which is not valid
    return DomainSettings(**{"name": record.name, "url": "", **found}, durable=True, min_ssf=min_ssf)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
