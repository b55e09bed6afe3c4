"""Which checks the messages of one connection need before they are published; most need none."""

from __future__ import annotations

from typing import Final

_REMEMBERED: Final = 2048


class PublishChecks:
    """The checks of one connection's messages.

    Args:
        checks_user_ids: whether a message's user id must be the user's own.
        checks_publish: whether the broker's authorizer checks each message.

    Attributes:
        checks_user_ids, checks_publish: as above.
        allowed: exchanges and routing keys to which the user may publish, as long as the rules do not change.
        has_rare: whether messages need any check: of the user id, by the authorizer, of memory (`watch_memory`), or of
            a flag that few messages have (`has_flags`).
        is_memory_short: whether memory is short, so that each message must be checked against the ceiling.
        has_published: whether a message was published since then.
        has_flags: whether a message with a flag that has to be checked was received.
    """

    __slots__ = (
        "allowed", "checks_publish", "checks_user_ids", "has_flags", "has_published", "has_rare", "is_memory_short"
    )  # fmt: skip

    def __init__(self, *, checks_user_ids: bool, checks_publish: bool) -> None:
        self.checks_user_ids, self.checks_publish = checks_user_ids, checks_publish
        self.allowed: set[tuple[str, str]] = set()
        self.is_memory_short = self.has_published = self.has_flags = False
        self.has_rare = checks_user_ids or checks_publish

    def allow(self, target: tuple[str, str]) -> None:
        """The user may publish to an exchange with a routing key."""
        if len(self.allowed) >= _REMEMBERED:
            self.allowed.clear()
        self.allowed.add(target)

    def watch_rules(self, *, checks_publish: bool) -> None:
        """The authorizer has other rules, by which it checks messages, or does not."""
        self.allowed.clear()
        self.checks_publish = checks_publish
        self._update()

    def watch_memory(self, *, is_short: bool) -> None:
        """Memory is short, or ample again."""
        self.is_memory_short, self.has_published = is_short, False
        self._update()

    def watch_flags(self) -> None:
        """A message with a flag that has to be checked was received."""
        self.has_flags = self.has_rare = True

    def _update(self) -> None:
        self.has_rare = self.is_memory_short or self.checks_user_ids or self.checks_publish or self.has_flags
