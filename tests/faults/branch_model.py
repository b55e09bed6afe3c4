"""What a transaction manager may expect of a broker that moves tokens between queues in branches.

Each token is one message, which says the token and the branch that has put it where it is. A branch takes tokens from
queues and puts them on others. The manager's own log outlives everything: in it are the branches that it has decided to
commit; those that are not there are rolled back (presumed abort).

    stage        the manager                                     after a crash of the broker, the branch is
    -----------  ----------------------------------------------  ----------------------------------------------
    OPEN         has not heard that it is prepared               in doubt, or has had no effect
    PREPARED     has heard that, and decided nothing             in doubt
    COMMITTING   has decided to commit                           in doubt, or has had its effect
    ABORTING     has asked for the rollback                      in doubt, or has had no effect
    ONE_PHASE    has asked for the commit in one phase           over: all of its effect, or none
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from qstore.formats.amqp_0_10.codes import ErrorCode
from tests.faults.store_model import require


class Stage(Enum):
    """How far a branch is, as the manager knows."""

    OPEN = auto()
    PREPARED = auto()
    COMMITTING = auto()
    ABORTING = auto()
    ONE_PHASE = auto()


class Place(NamedTuple):
    """Where a token is, and which branch has put it there; 0 for the first place."""

    queue: str
    branch: int


@dataclass(eq=False, slots=True)
class BranchModel:
    """A branch. `targets`: token -> the queue that it puts it on."""

    number: int
    targets: dict[int, str] = field(default_factory=dict)
    stage: Stage = Stage.OPEN

    def place(self, token: int) -> Place:
        """Where it puts a token."""
        return Place(self.targets[token], self.number)


class Ledger:
    """Where the tokens are.

    Attributes:
        places: token -> where it is, but for the branches that are under way.
        branches: number -> branch that is under way.
        ended: how many have ended, by how the manager asked for that.
        in_doubt: how many were found in doubt.
        expected: the error codes that a session may end with: there is no room; or the disk fails, too.
    """

    def __init__(self, places: Mapping[int, Place]) -> None:
        self.places = dict(places)
        self.branches: dict[int, BranchModel] = {}
        self.ended = dict.fromkeys(Stage, 0)
        self.in_doubt = 0
        self.expected = {ErrorCode.RESOURCE_LIMIT_EXCEEDED}
        self._numbers = 0

    def begin(self) -> BranchModel:
        """A new branch."""
        self._numbers += 1
        branch = self.branches[self._numbers] = BranchModel(self._numbers)
        return branch

    def end(self, branch: BranchModel, *, has_effect: bool) -> None:
        """The manager has heard that a branch is over."""
        self.ended[branch.stage] += 1
        del self.branches[branch.number]
        if has_effect:
            self.places.update({token: branch.place(token) for token in branch.targets})

    def took(self, token: int, place: Place) -> None:
        """A worker was given a token: there must be no branch that has it."""
        what = f"token {token} comes from {place}"
        if place != self.places[token]:
            found = self.branches.get(place.branch)
            require(found is not None and token in found.targets, f"{what}, and is at {self.places[token]}")
            assert found is not None
            require(found.stage in (Stage.COMMITTING, Stage.ONE_PHASE), f"{what}: that branch was not committed")
            self.end(found, has_effect=True)
        for branch in self.branches.values():
            is_held = token in branch.targets and branch.stage in (Stage.PREPARED, Stage.COMMITTING)
            require(not is_held, f"{what}, and branch {branch.number} has it")

    # ---- after a crash ----

    def check_before(self, seen: Mapping[int, Sequence[Place]], in_doubt: Sequence[int]) -> None:
        """What is found before the manager has resolved what is in doubt."""
        require(len(set(in_doubt)) == len(in_doubt), f"in doubt: {in_doubt}")
        for number in in_doubt:
            require(number in self.branches, f"branch {number} is over, and in doubt")
            branch = self.branches[number]
            require(branch.stage is not Stage.ONE_PHASE, f"branch {number} was never prepared, and is in doubt")
            for token in branch.targets:
                require(
                    not seen.get(token), f"token {token} of branch {number}, in doubt, is seen at {seen.get(token)}"
                )
        for branch in self.branches.values():
            if branch.stage is Stage.PREPARED:
                require(branch.number in in_doubt, f"branch {branch.number} was prepared, and is not in doubt")
        self.in_doubt += len(in_doubt)
        held = {token for number in in_doubt for token in self.branches[number].targets}
        self._check(seen, held)

    def check_after(self, seen: Mapping[int, Sequence[Place]]) -> None:
        """What is found when nothing is in doubt any more; it is what is so from now on."""
        self._check(seen, set())
        self.places = {token: found[0] for token, found in seen.items()}
        self.branches.clear()

    def _check(self, seen: Mapping[int, Sequence[Place]], held: set[int]) -> None:
        for token, before in self.places.items():
            found = seen.get(token, ())
            if token in held:
                continue
            require(len(found) == 1, f"token {token}, last at {before}, is at {found}")
            allowed = self._allowed(token, before)
            require(found[0] in allowed, f"token {token} is at {found[0]}, not at {allowed}")
        for branch in self.branches.values():
            has_it = {branch.place(token) in seen.get(token, ()) for token in branch.targets if token not in held}
            require(len(has_it) <= 1, f"branch {branch.number} has had a part of its effect")

    def _allowed(self, token: int, before: Place) -> list[Place]:
        mine = [branch for branch in self.branches.values() if token in branch.targets]
        for branch in mine:
            if branch.stage is Stage.COMMITTING:
                return [branch.place(token)]
        return [before, *(each.place(token) for each in mine if each.stage is Stage.ONE_PHASE)]
