"""Whether a client may open its connection, once its user is known: asked by every protocol.

Before that, a client is refused by the rules for all users and by the limits for hosts (`network/clients`).
"""

from __future__ import annotations

from qstore.broker.model.authorization import Action, Authorization, ObjectType
from qstore.broker.model.caller import Publisher
from qstore.broker.model.errors import UnauthorizedError
from qstore.broker.model.quotas import Quotas


class Admission:
    """Admits the clients of one broker.

    Args:
        authorization: checks from where a user may connect.
        quotas: limits the connections of a user.
    """

    def __init__(self, authorization: Authorization, quotas: Quotas) -> None:
        self._authorization, self._quotas = authorization, quotas
        self._admitted: set[Publisher] = set()

    @property
    def checks_publish(self) -> bool:
        """Whether messages are checked at present."""
        return self._authorization.authorizer.checks_publish

    def refusal(self, client: Publisher) -> str:
        """Why a client is refused; empty if it is admitted, and then it is counted until it leaves."""
        host = client.remote_host.rpartition(":")[0].strip("[]")
        try:
            self._authorization.check(client, Action.CREATE, ObjectType.CONNECTION, "", host=host)
        except UnauthorizedError as error:
            self._quotas.denied(client.user, client.remote_host)
            return f"{error} from {host}"
        if not self._quotas.log_in(client.user):
            self._quotas.denied(client.user, client.remote_host)
            return f'the limit of connections of user "{client.user}" is reached'
        self._admitted.add(client)
        return ""

    def leave(self, client: Publisher) -> None:
        """A client's connection is closed, whether or not it was admitted."""
        if client in self._admitted:
            self._admitted.discard(client)
            self._quotas.log_out(client.user)
