"""Links of federated exchanges and queues, as the broker runs them. Policies and parameters make them (`access`).

Their URIs are shown without user and password.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from orjson import dumps

from qstore.broker.management.schema import ClassName, ManagedClass, method, prop, stat
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.caller import in_host

if TYPE_CHECKING:
    from qstore.broker.federation.upstreams import LinkStatus
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.request import Arguments
    from qstore.broker.management.schema import Results
    from qstore.broker.model.caller import Caller


def _links(managed: ManagedBroker) -> Iterator[tuple[str, LinkStatus]]:
    if managed.upstreams is not None:
        for each in managed.upstreams.statuses():
            yield dumps((each.host, each.kind, each.name, each.upstream, each.remote)).decode(), each


async def restart(managed: ManagedBroker, status: LinkStatus, _arguments: Arguments, caller: Caller) -> Results:
    """Start a link again now."""
    managed.broker.authorization.check(in_host(caller, status.host), Action.CREATE, ObjectType.LINK, "")
    if managed.upstreams is not None:
        managed.upstreams.restart(status.id)
    return {}


# fmt: off
FEDERATION_LINK_CLASS: Final = ManagedClass(
    ClassName("qstore", "federationLink"),
    properties=(
        prop("vhost", "sstr", "RC index", lambda each: each.host, "Virtual host of the exchange or queue"),
        prop("kind", "sstr", "RC index", lambda each: each.kind, "exchange or queue"),
        prop("name", "sstr", "RC index", lambda each: each.name),
        prop("upstream", "sstr", "RC index", lambda each: each.upstream, "Name of the upstream's parameter"),
        prop("remote", "sstr", "RC index", lambda each: each.remote, "Name of the exchange or queue there"),
        prop("id", "sstr", "RO", lambda each: each.id),
        prop("uri", "lstr", "RO", lambda each: each.uri, "The upstream, without user and password"),
        prop("consumerTag", "sstr", "RO", lambda each: each.consumer_tag, "Of the consumer of a queue"),
        prop("state", "sstr", "RO", lambda each: each.state.value, "starting, running or error"),
        prop("since", "absTime", "RO", lambda each: round(each.since * 1e9), "When the state began", "nanosecond"),
        prop("error", "lstr", "RO", lambda each: each.error, "Why it has failed"),
    ),
    statistics=(
        stat("forwarded", "count64", lambda each: each.forwarded, "Messages published here", "message"),
        stat("pending", "uint32", lambda each: each.pending, "Messages not acknowledged at the upstream yet",
             "message"),
        stat("failures", "count32", lambda each: each.failures, "How often it has failed"),
    ),
    methods=(
        method("restart", "Start it again now", (), restart),
    ),
    objects=_links, belongs=lambda each: (each.host, ""),
)
# fmt: on
