"""The headers exchange: routes to queues whose bindings match the message's headers.

The criteria are in the bindings' arguments; `matching` defines how they match. The binding key matches nothing; it
only distinguishes the bindings of one queue, so the same key with different arguments is refused, not ignored.

A message is matched only against bindings that require one of its headers: a binding for all of several headers is
indexed by the one that indexes the fewest others, a binding for any of them by each. So the cost of a message does not
grow with bindings that require other headers. Source: AMQP 0-10, class exchange, type headers.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import TYPE_CHECKING, ClassVar

from qstore.broker.model.errors import InternalError, NotAllowedError
from qstore.broker.model.exchanges.exchange import Exchange, Headers
from qstore.broker.model.exchanges.matching import PRESENT, Criteria, Steps, parse_criteria
from qstore.broker.model.exchanges.route import Binding
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.queues.queue import Queue


class HeadersExchange(Exchange):
    """An exchange of type headers."""

    kind: ClassVar[str] = "headers"
    is_keyed: ClassVar[bool] = False
    takes_selectors: ClassVar[bool] = True
    __slots__ = ("_count", "_criteria", "_numbers", "_unconditional", "_wanting")

    def _set_up(self) -> None:
        self._criteria: dict[Binding, Criteria] = {}
        self._numbers: dict[Binding, int] = {}  # in order of creation
        self._count = 0
        self._wanting: dict[tuple[str, Hashable], dict[Binding, None]] = {}  # header and value -> its bindings
        self._unconditional: dict[Binding, None] = {}

    # ---- routing ----

    def matched(self, key: str, headers: Headers, steps: Steps) -> Collection[Binding]:  # noqa: ARG002 – the key does not count
        """The bindings that match these headers, one for each queue."""
        first: dict[Queue, Binding] = {}
        if self._criteria:
            found = headers()
            for binding in sorted(self.candidates(found), key=self._numbers.__getitem__):
                if binding.queue in first or not self._criteria[binding].match(found):
                    continue
                if not self.selectors or self.selects(binding, headers, steps):
                    first[binding.queue] = binding
        return first.values()

    def candidates(self, headers: Mapping[str, Hashable]) -> Collection[Binding]:
        """The bindings that may match a message with these headers."""
        candidates, wanting = dict(self._unconditional), self._wanting
        for name, value in headers.items():
            for wanted in {value, PRESENT}:
                bindings = wanting.get((name, wanted))
                if bindings:
                    candidates |= bindings
        return candidates

    # ---- bindings ----

    def prepare(self, queue: Queue, key: str, arguments: TypedMap) -> Binding | None:
        """A binding for `put`; None if it already exists.

        Raises:
            InternalError: the arguments have no valid `x-match`.
            NotAllowedError: the queue is bound with this key and different arguments.
        """
        criteria = parse_criteria(arguments)
        binding = self.find_binding(queue, key)
        if binding is not None and self._criteria[binding] != criteria:
            raise NotAllowedError(
                f'queue "{queue.name}" is bound to exchange "{self.name}" with key "{key}" and different arguments: '
                "unbind it first, or use another key"
            )
        return super().prepare(queue, key, arguments)

    def _add(self, binding: Binding) -> None:
        super()._add(binding)
        criteria = self._criteria[binding] = parse_criteria(binding.arguments)
        self._count += 1
        self._numbers[binding] = self._count
        wanting = self._wanting
        found_by = list(criteria.headers.items())
        if criteria.is_all and found_by:
            found_by = [min(found_by, key=lambda each: len(wanting.get(each, ())))]
        elif criteria.is_all:
            self._unconditional[binding] = None
        for each in found_by:
            wanting.setdefault(each, {})[binding] = None

    def _remove(self, binding: Binding) -> None:
        super()._remove(binding)
        criteria = self._criteria.pop(binding)
        del self._numbers[binding]
        self._unconditional.pop(binding, None)
        for each in criteria.headers.items():
            bindings = self._wanting.get(each)
            if bindings is not None and binding in bindings:
                del bindings[binding]
                if not bindings:
                    del self._wanting[each]

    def is_equivalent(self, binding: Binding, arguments: TypedMap) -> bool:
        """Whether a binding has the same criteria as these arguments."""
        try:
            return self._criteria[binding] == parse_criteria(arguments)
        except InternalError:
            return False
