"""The method that reads the certificate again, as SIGHUP does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.security.tls.errors import TlsConfigurationError

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker, SecurityControl
    from qstore.broker.management.objects.element import Arguments, Results
    from qstore.broker.model.caller import Caller


async def reload(managed: ManagedBroker, security: SecurityControl, _arguments: Arguments, caller: Caller) -> Results:
    """Read the certificate again; if it cannot be used, the previous one stays in use."""
    managed.broker.authorization.check(caller, Action.UPDATE, ObjectType.BROKER, "")
    try:
        return {"warnings": security.reload_security()}
    except TlsConfigurationError as error:
        raise InvalidArgumentError(f"{error}; the previous certificate stays in use") from error
