"""Relays: clients of AMQP 1.0 send to `NODE@DOMAIN`, the node in the domain (`interlinks`), and receive from it.

The client attaches a link whose target or source has such an address, and there is no queue or exchange of that name.
The broker attaches a link of its own to the domain, for this one alone, and passes the messages on as they are. It
stores nothing:

    to the domain: `Relay`
        credit      the client gets as much as the domain has given, `MAX_CREDIT` at most
        outcome     the client gets the one of the domain, so an accepted message is where it was sent to
        end         messages without an outcome get `modified` with delivery-failed; so does what is settled without one

    from the domain: `Fetch`
        credit      the domain gets that of the client, `MAX_CREDIT` at most, less what is not settled; and is drained
        outcome     the domain gets that of the client, whose delivery is settled when the domain has settled it
        end         the domain has again what has no outcome

If the way to the domain fails, the client's link is detached with the reason, and nothing is tried again.

While the domain takes nothing although it has given credit (its socket is full), the client's connection is not read.

A message's user id must be that of the client, as everywhere. The broker logs in with the credentials of the domain,
not with those of the client, so the client needs the permission to create links.

Source: qpidd, Relay.cpp and Session.cpp (the address, the credit).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

from qstore.broker.federation.link_peer import LinkSide
from qstore.broker.log.logs import log_of
from qstore.broker.model.errors import InternalError
from qstore.formats.amqp_1_0.composites import OUTCOMES, Composite
from qstore.formats.amqp_1_0.values import plain_key
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.federation.interlinks import Domain, Interlinks
    from qstore.broker.federation.peer import PeerSide
    from qstore.broker.model.message import Content, Message
    from qstore.broker.protocols.amqp_1_0.message import SectionMessage

_LOG: Final = log_of("Broker")

MAX_CREDIT: Final = 1_000
"""Messages that a client may send, or be sent, before others are settled."""

_MAX_NAME: Final = 64  # characters of a filter in the log

_IN_DOUBT: Final = Composite("modified", {"delivery_failed": True})


class WayLink(Protocol):
    """The client's link, as both ways see it."""

    def relay_failed(self, error: Exception) -> None:
        """The way has ended; all messages that were sent have outcomes."""


class RelayedLink(WayLink, Protocol):
    """A link on which the client sends, as its relay sees it."""

    def relay_has_room(self) -> None:
        """The client may be given credit."""

    def relay_settles(self, number: int, outcome: Composite) -> None:
        """The message with that number has an outcome."""

    def relay_blocked(self, *, is_blocked: bool) -> None:
        """Do not read from the client, or read again."""


class FetchedLink(WayLink, Protocol):
    """A link on which the client receives, as what fetches its messages sees it."""

    def fetch_ready(self) -> None:
        """Credit can be given (`Fetch.ask`)."""

    def fetch_has(self, tag: int, message: SectionMessage, *, is_settled: bool) -> None:
        """A message has come; its tag is what it is settled by, unless the domain has settled it."""

    def fetch_settles(self, first: int, last: int) -> None:
        """The domain has settled messages, from one tag to another."""

    def fetch_drained(self) -> None:
        """The domain has no more messages for now, and has given the credit back."""


class Way:
    """The way between a client's link and a node in a domain. It is the owner of a side.

    Args:
        interlinks: all domains.
        domain: the domain.
        node: the address there.
        link: the client's link.
        user: the client's user, for the log.
        title: what it is, for the log.
    """

    def __init__(self, interlinks: Interlinks, domain: Domain, node: str, link: WayLink, user: str, title: str) -> None:
        self._interlinks, self._domain, self._node, self._client = interlinks, domain, node, link
        self._is_over = self._is_attached = False
        shovels, name = interlinks.shovels, f"{node}@{domain.settings.name}"
        broker = shovels.broker
        self._title = f'{title} {user or "a client"}, "{printable(name)}"'
        self._side = LinkSide(
            self, broker, shovels.network, domain.uris, user, name, container=broker.federation_tag,
            link=f"{name}-{uuid4()}",
        )  # fmt: skip
        domain.relays[self] = None

    def start(self) -> None:
        """Begin to connect: the client's link is attached."""
        _LOG.info("%s begins", self._title)
        self._side.connect()

    def close(self) -> None:
        """The client's link has ended."""
        if not self._is_over:
            self._end()
            self._side.close()
            _LOG.info("%s has ended", self._title)

    def fail(self, reason: str) -> None:
        """End it, and detach the client's link."""
        if self._is_over:
            return
        self._end()
        self._side.close()
        _LOG.info("%s has failed: %s", self._title, printable(reason))
        self._client.relay_failed(InternalError(f"the link to the domain has ended: {reason}"))

    def _end(self) -> None:
        self._is_over = True
        self._domain.relays.pop(self, None)

    # ---- its side ----

    def side_open(self, side: PeerSide) -> None:
        """As `SideEvents.side_open`."""

    def side_failed(self, side: PeerSide, reason: str) -> None:
        """As `SideEvents.side_failed`."""
        self.fail(f"{side.uri.shown}: {reason}")

    def side_changed(self, side: PeerSide) -> None:
        """As `SideEvents.side_changed`."""

    def on_room(self) -> None:
        """As `MessageOwner.on_room`."""

    def on_message(self, tag: int, message: Message) -> None:
        """As `MessageOwner.on_message`."""

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:
        """As `MessageOwner.on_confirmed`."""


class Relay(Way):
    """The way of the messages that a client sends. Its arguments are those of `Way`, but for the title."""

    def __init__(self, interlinks: Interlinks, domain: Domain, node: str, link: RelayedLink, user: str) -> None:
        super().__init__(interlinks, domain, node, link, user, "Relay of")
        self._link = link
        self._numbers: dict[int, int] = {}  # number at the side -> the client's, of messages without an outcome
        self._is_blocked = False

    @property
    def room(self) -> int:
        """How many messages the client may send now."""
        if self._is_over or not self._is_attached or self._side.is_full:
            return 0
        return min(self._side.channel.credit, MAX_CREDIT)

    def send(self, number: int, content: Content) -> None:
        """Pass a message on; a relay that has ended gives it an outcome at once."""
        if self._is_over:
            self._link.relay_settles(number, _IN_DOUBT)
            return
        is_full = self._side.is_full
        self._numbers[self._side.channel.publish(b"", b"", content)] = number
        if is_full and not self._is_blocked:
            self._is_blocked = True
            self._link.relay_blocked(is_blocked=True)

    def _end(self) -> None:
        super()._end()
        if self._is_blocked:
            self._is_blocked = False
            self._link.relay_blocked(is_blocked=False)
        numbers, self._numbers = self._numbers, {}
        for number in numbers.values():
            self._link.relay_settles(number, _IN_DOUBT)

    # ---- its side ----

    def side_open(self, side: PeerSide) -> None:  # noqa: ARG002 – there is one
        """As `SideEvents.side_open`."""
        self._side.channel.attach_target(self._node, confirms=True, done=self._attached)

    def _attached(self) -> None:
        self._is_attached = True
        self.on_room()

    def side_changed(self, side: PeerSide) -> None:
        """As `SideEvents.side_changed`."""
        if side.is_full:
            return
        if self._is_blocked:
            self._is_blocked = False
            self._link.relay_blocked(is_blocked=False)
        self.on_room()

    def on_room(self) -> None:
        """As `MessageOwner.on_room`."""
        if self.room:
            self._link.relay_has_room()

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:  # noqa: ARG002 – the outcome has it
        """As `MessageOwner.on_confirmed`: the client gets the outcomes."""
        state = self._side.channel.outcome
        if state is None or state.name not in OUTCOMES:
            state = _IN_DOUBT
        for each in range(first, last + 1):
            self._link.relay_settles(self._numbers.pop(each), state)


class Fetch(Way):
    """The way of the messages that a client receives.

    Args:
        interlinks, domain, node, link, user: as of `Way`.
        source: fields of the source beside its address.
        settles: whether messages come settled.
    """

    def __init__(
        self, interlinks: Interlinks, domain: Domain, node: str, link: FetchedLink, user: str,
        source: Mapping[str, Any], *, settles: bool,
    ) -> None:  # fmt: skip
        super().__init__(interlinks, domain, node, link, user, "Messages for")
        self._link, self._source, self._settles = link, source, settles

    def ask(self, credit: int, *, is_draining: bool) -> bool:
        """Have the domain send so many messages from now on. Returns whether it was asked: there is a link.

        Args:
            credit: how many.
            is_draining: whether it gives back what it has no messages for (`FetchedLink.fetch_drained`).
        """
        if self._is_attached and not self._is_over:
            self._side.channel.ask(credit, is_draining=is_draining)
        return self._is_attached

    def hold(self, *, is_held: bool) -> None:
        """Do not read from the domain, or read again."""
        if not self._is_over:
            self._side.hold(is_held=is_held)

    def settle(self, tags: Sequence[int], state: Composite | None, *, is_settled: bool) -> None:
        """Pass an outcome on; unless `is_settled`, the domain settles the messages."""
        if not self._is_over:
            self._side.channel.settle(tags, state, is_settled=is_settled)

    # ---- its side ----

    def side_open(self, side: PeerSide) -> None:  # noqa: ARG002 – there is one
        """As `SideEvents.side_open`."""
        self._side.channel.attach_own_source(self._node, self, self._source, no_ack=self._settles, done=self._attached)

    def _attached(self) -> None:
        self._is_attached = True
        applied = {plain_key(key) for key, _ in self._side.channel.source.get("filter") or ()}
        asked = [plain_key(key) for key, _ in self._source.get("filter") or ()]
        names = ", ".join(printable(name[:_MAX_NAME]) for name in asked if name not in applied)
        if names:
            _LOG.notice("%s: filters have no effect, as the domain does not apply them: %s", self._title, names)
        self._link.fetch_ready()

    def on_fetched(self, tag: int, message: SectionMessage, *, is_settled: bool) -> None:
        """As `SourceEvents.on_fetched`."""
        self._link.fetch_has(tag, message, is_settled=is_settled)

    def on_settled(self, first: int, last: int) -> None:
        """As `SourceEvents.on_settled`."""
        self._link.fetch_settles(first, last)

    def on_drained(self) -> None:
        """As `SourceEvents.on_drained`."""
        self._link.fetch_drained()
