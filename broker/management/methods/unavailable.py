"""Methods of the schema that this broker cannot carry out: they are answered with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qstore.broker.model.errors import NotImplementedByBrokerError

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.objects.element import Arguments, Call, Results
    from qstore.broker.model.caller import Caller


def not_available(reason: str) -> Call:
    """A method that is refused for this reason."""

    async def refuse(_managed: ManagedBroker, _target: Any, _arguments: Arguments, _caller: Caller) -> Results:
        raise NotImplementedByBrokerError(reason)

    return refuse
