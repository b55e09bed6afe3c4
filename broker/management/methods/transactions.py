"""Methods that end a branch of a distributed transaction, as the commands dtx.commit and dtx.rollback do.

For another user's branch the caller needs the right of `UPDATE TRANSACTION`, as for these commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from qstore.broker.model.errors import IllegalStateError, ModelError
from qstore.broker.model.transactions.branch import Status

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.objects.element import Arguments, Results
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.transactions.branch import Branch, Done


async def commit(managed: ManagedBroker, branch: Branch, _arguments: Arguments, caller: Caller) -> Results:
    """Commit a branch that is in doubt."""
    managed.broker.distributed.check_use(caller, branch)
    status = await _end(managed, partial(branch.commit, one_phase=False))
    if status is not Status.OK:
        raise IllegalStateError(f"{branch.title} was rolled back")
    return {}


async def roll_back(managed: ManagedBroker, branch: Branch, _arguments: Arguments, caller: Caller) -> Results:
    """Roll a branch back."""
    managed.broker.distributed.check_use(caller, branch)
    await _end(managed, branch.roll_back)
    return {}


async def _end(managed: ManagedBroker, act: Callable[[Done], None]) -> Status:
    """End a branch, and wait until that is on the disk."""
    ended: asyncio.Future[tuple[Status, ModelError | None]] = asyncio.get_running_loop().create_future()

    def done(status: Status, error: ModelError | None) -> None:
        if not ended.done():
            ended.set_result((status, error))

    act(done)
    managed.broker.tick.schedule()
    status, error = await ended
    if error is not None:
        raise error
    return status
