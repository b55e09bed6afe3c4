"""Shovels, as the broker runs them. They are created and deleted as parameters (`access`).

Their URIs are shown without user and password.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from orjson import dumps

from qstore.broker.management.schema import ClassName, ManagedClass, method, prop, stat
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.caller import in_host
from qstore.formats.values import TypedMap, typed_map

if TYPE_CHECKING:
    from qstore.broker.federation.shovel import ShovelStatus
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.request import Arguments
    from qstore.broker.management.schema import Results
    from qstore.broker.model.caller import Caller


def _shovels(managed: ManagedBroker) -> Iterator[tuple[str, ShovelStatus]]:
    if managed.shovels is not None:
        for each in managed.shovels.statuses():
            yield dumps((each.host, each.name)).decode(), each


def _map(place: Mapping[str, str]) -> TypedMap:
    return typed_map(place)


async def restart(managed: ManagedBroker, status: ShovelStatus, _arguments: Arguments, caller: Caller) -> Results:
    """Restart a shovel now."""
    managed.broker.authorization.check(in_host(caller, status.host), Action.CREATE, ObjectType.LINK, "")
    if managed.shovels is not None:
        managed.shovels.restart(status.host, status.name)
    return {}


# fmt: off
SHOVEL_CLASS: Final = ManagedClass(
    ClassName("qstore", "shovel"),
    properties=(
        prop("vhost", "sstr", "RC index", lambda each: each.host, "Virtual host of its parameter"),
        prop("name", "sstr", "RC index", lambda each: each.name),
        prop("source", "map", "RO", lambda each: _map(each.source), "URI, and queue, or exchange and key, or address"),
        prop("destination", "map", "RO", lambda each: _map(each.destination), "Likewise"),
        prop("state", "sstr", "RO", lambda each: each.state.value, "starting, running or terminated"),
        prop("since", "absTime", "RO", lambda each: round(each.since * 1e9), "When the state began", "nanosecond"),
        prop("reason", "lstr", "RO", lambda each: each.reason, "Why it is terminated"),
        prop("blocked", "lstr", "RO", lambda each: each.blocked, "Why the destination accepts no messages"),
    ),
    statistics=(
        stat("forwarded", "count64", lambda each: each.forwarded, "Messages published to the destination", "message"),
        stat("pending", "uint32", lambda each: each.pending, "Messages not yet acknowledged at the source", "message"),
        stat("remaining", "int64", lambda each: each.left, "Messages left until it is deleted; -1 for no limit",
             "message"),
        stat("failures", "count32", lambda each: each.failures, "Number of times that it has failed"),
    ),
    methods=(
        method("restart", "Restart it now", (), restart),
    ),
    objects=_shovels, belongs=lambda each: (each.host, ""),
)
# fmt: on
