"""One client's attempt to log in: the mechanism that it chooses, and a limit of steps. The same for every protocol."""

from __future__ import annotations

from typing import Final

from qstore.broker.security.authentication import Authentication, Link
from qstore.broker.security.sasl.exchange import Challenge, Failure, Outcome, ServerMechanism

_MAX_CHALLENGES: Final = 8


class LoginAttempt:
    """The broker's end of the authentication of one connection.

    Args:
        authentication: the policy.
        link: what matters of the client's connection.

    Attributes:
        offered: the mechanisms to offer, most preferred first.
        mechanism: the name of the chosen mechanism; empty before, or if it is not offered.
    """

    def __init__(self, authentication: Authentication, link: Link) -> None:
        self._authentication, self._link = authentication, link
        self._mechanism: ServerMechanism | None = None
        self._challenges = 0
        self.offered = authentication.mechanisms(link)
        self.mechanism = ""

    def start(self, name: str, response: bytes | None) -> Outcome:
        """The client has chosen a mechanism, with its first response; None if it sent none."""
        if self._mechanism is not None:
            return Failure("a second mechanism was chosen")
        self._mechanism = self._authentication.mechanism(name, self._link)
        if self._mechanism is None:
            return Failure(f"mechanism {name[:64]!a} is not offered")
        self.mechanism = name
        return self.limited(self._mechanism.start(response))

    def step(self, response: bytes) -> Outcome:
        """The client has responded to a challenge."""
        if self._mechanism is None:
            return Failure("unexpected SASL response")
        return self.limited(self._mechanism.step(response))

    def limited(self, outcome: Outcome) -> Outcome:
        """An outcome, which is a failure if it is one challenge too many. To be called for the result of a check."""
        if isinstance(outcome, Challenge):
            self._challenges += 1
            if self._challenges > _MAX_CHALLENGES:
                outcome = Failure("too many SASL steps")
        return outcome

    def failed(self, reason: str) -> str:
        """Count a failure. Returns its reason with the mechanism, for the log."""
        self._authentication.failures += 1
        return f"{self.mechanism}: {reason}" if self.mechanism else reason

    def why_none(self) -> tuple[str, str]:
        """Why nothing is offered: for the client, and for the log."""
        return self._authentication.why_none(self._link)
