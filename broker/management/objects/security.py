"""The class security: logins that have failed, and the certificate, which is read again without a restart.

It is this broker's own: qpidd has none. There is one object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from qstore.broker.management.methods import security
from qstore.broker.management.objects.element import ManagedClass, arg, method, stat, table
from qstore.broker.management.objects.names import BROKER, BROKER_NAME, BROKER_REFERENCE

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker, SecurityControl


def _objects(managed: ManagedBroker) -> Iterable[tuple[str, SecurityControl]]:
    return () if managed.security is None else ((BROKER.name_of(BROKER_NAME), managed.security),)


SECURITY_CLASS: Final = ManagedClass(
    "qstore",
    "security",
    (BROKER_REFERENCE,),
    (stat("failedLogins", "count64", lambda view: view.authentication.failures, "Logins that have failed", "login"),),
    table(
        (
            method(
                "reload",
                "Read the TLS certificate, its authorities and the keytab again, for new connections",
                (arg("warnings", "list", "O", "What is unusual about them, one text each"),),
                security.reload,
            ),
        )
    ),
    objects=_objects,
)
