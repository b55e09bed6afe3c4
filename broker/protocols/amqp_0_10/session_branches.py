"""A session's associations with branches of distributed transactions.

    current      what the session publishes and accepts is work of this branch; at most one
    suspended    the session can resume these; they are not ended

When the session ends, both end as failed.

Source: AMQP 0-10, class dtx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qstore.broker.model.errors import IllegalStateError, NotAllowedError
from qstore.broker.model.transactions.branch import Branch, Status
from qstore.broker.model.transactions.distributed import DistributedTransactions

if TYPE_CHECKING:
    from qstore.broker.model.caller import Caller


class SessionBranches:
    """The associations of one session.

    Args:
        distributed: the broker's branches.
        caller: the session.

    Attributes:
        current: the branch that it works for; None if there is none.
    """

    __slots__ = ("_caller", "_distributed", "_suspended", "current")

    def __init__(self, distributed: DistributedTransactions, caller: Caller) -> None:
        self._distributed, self._caller = distributed, caller
        self.current: Branch | None = None
        self._suspended: dict[bytes, Branch] = {}

    def start(self, xid: bytes) -> Status:
        """Begin a branch, and work for it.

        Raises:
            IllegalStateError: it works for another one.
            NotAllowedError: the branch exists; UnauthorizedError: and is another user's.
            ResourceLimitExceededError: there are too many.
        """
        self._check_free()
        self.current = self._distributed.start(xid, self._caller)
        return Status.OK

    def join(self, xid: bytes) -> Status:
        """Work for a branch that exists. Returns OK, or why that was refused.

        Raises:
            IllegalStateError: it works for another one, has suspended this one, or this one is prepared.
            NotAllowedError: the branch does not exist; UnauthorizedError: it is another user's.
        """
        self._check_free()
        if xid in self._suspended:
            raise IllegalStateError(f"{self._suspended[xid].title} is suspended; it can be resumed")
        branch, status = self._distributed.join(xid, self._caller)
        if status is Status.OK:
            self.current = branch
        return status

    def resume(self, xid: bytes) -> Status:
        """Work again for a branch that was suspended. Returns OK, or why that was refused: it can only be ended.

        Raises:
            IllegalStateError: it works for another one.
            NotAllowedError: it has not suspended this one.
        """
        self._check_free()
        branch = self._suspended.get(xid)
        if branch is None:
            raise NotAllowedError(f"the session has not suspended a branch with xid {xid.hex()}")
        status = self._distributed.status_of(branch)
        if status is Status.OK:
            self.current = self._suspended.pop(xid)
        return status

    def suspend(self, xid: bytes) -> Status:
        """Work for the branch later. Returns OK; or why it can no longer be committed: then the association has ended.

        Raises:
            IllegalStateError: the session does not work for it.
        """
        branch = self._working_for(xid)
        if self._distributed.status_of(branch) is not Status.OK:
            return self.end(xid)
        self.current = None
        self._suspended[xid] = branch
        return Status.OK

    def end(self, xid: bytes, *, has_failed: bool = False) -> Status:
        """End the association with a branch. Returns OK, or why it can only be rolled back.

        Raises:
            IllegalStateError: the session is not associated with it.
        """
        branch = self._suspended.pop(xid, None)
        if branch is None:
            branch = self._working_for(xid)
            self.current = None
        return self._distributed.leave(branch, has_failed=has_failed)

    def close(self) -> None:
        """The session has ended."""
        branches = [*self._suspended, *(() if self.current is None else (self.current.xid,))]
        for xid in branches:
            self.end(xid, has_failed=True)

    def _working_for(self, xid: bytes) -> Branch:
        if self.current is None or self.current.xid != xid:
            raise IllegalStateError(f"the session is not associated with a branch with xid {xid.hex()}")
        return self.current

    def _check_free(self) -> None:
        if self.current is not None:
            raise IllegalStateError(f"the session is associated with {self.current.title}")
