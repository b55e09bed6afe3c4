"""The authentication policy: the SASL mechanisms that a broker offers to a client.

--auth   user file   client        offered
-------  ----------  ------------  -----------------------------------------------
no       any         any           ANONYMOUS, and PLAIN with any password, as in qpidd
yes      none        on this host  ANONYMOUS
yes      none        remote        nothing: the connection is refused
yes      given       any           PLAIN
"""

from __future__ import annotations

from qstore.broker.security.mechanisms import ANONYMOUS, PLAIN, ServerMechanism, server_mechanism
from qstore.broker.security.users import Users


class Authentication:
    """The policy of one broker.

    Args:
        is_on: whether clients must authenticate (`--auth`).
        realm: the realm of all users.
        users: the user file; None if there is none.
    """

    def __init__(self, *, is_on: bool, realm: str, users: Users | None) -> None:
        self._is_on, self._realm, self._users = is_on, realm, users

    def mechanisms(self, *, is_local: bool) -> tuple[str, ...]:
        """The mechanisms to offer, most preferred first. If it is empty, refuse the client.

        Args:
            is_local: whether the client's address is a loopback address.
        """
        if not self._is_on:
            return (ANONYMOUS, PLAIN)
        if self._users is not None:
            return (PLAIN,)
        return (ANONYMOUS,) if is_local else ()

    def mechanism(self, name: str, *, is_local: bool) -> ServerMechanism | None:
        """The mechanism that a client has chosen; None if it is not offered."""
        if name not in self.mechanisms(is_local=is_local):
            return None
        verify = self._users.verify if self._is_on and self._users is not None else None
        return server_mechanism(name, self._realm, verify)
