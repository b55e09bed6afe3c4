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
from qstore.broker.model.exchanges.exchange import MAX_ROUTED, MAX_ROUTES, Exchange, Headers
from qstore.broker.model.exchanges.matching import PRESENT, Criteria, Steps, comparable, parse_criteria
from qstore.broker.model.exchanges.route import Binding, Route
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.queue import Queue


class HeadersExchange(Exchange):
    """An exchange of type headers."""

    type_name: ClassVar[str] = "headers"
    is_keyed: ClassVar[bool] = False

    __slots__ = ("_count", "_criteria", "_found", "_numbers", "_unconditional", "_wanting")

    def __init__(
        self,
        name: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        alternate: Exchange | None = None,
        arguments: TypedMap = EMPTY_MAP,
    ) -> None:
        super().__init__(name, durable=durable, auto_delete=auto_delete, alternate=alternate, arguments=arguments)
        self._criteria: dict[Binding, Criteria] = {}
        self._numbers: dict[Binding, int] = {}  # in order of creation
        self._count = 0
        self._wanting: dict[tuple[str, Hashable], dict[Binding, None]] = {}  # header and value -> its bindings
        self._unconditional: dict[Binding, None] = {}
        self._found: dict[tuple[Binding, ...], Route] = {}  # by matching bindings

    # ---- routing ----

    def route(self, message: Message) -> Route:
        """The queues with a binding that matches the headers of this message."""
        if self.onward is not None:
            return self.route_onward(message, self.onward)
        if not self._criteria:
            return self.no_route
        headers = {name: comparable(typed) for name, typed in message.headers().entries}
        bindings = tuple(self.matched(message.routing_key, lambda: headers, Steps()))
        return self._found.get(bindings) or self._remember(bindings)

    def matched(self, key: str, headers: Headers, steps: Steps) -> Collection[Binding]:  # noqa: ARG002 – the headers count
        """The bindings that match these headers, one for each queue."""
        first: dict[Queue, Binding] = {}
        if self._criteria:
            found = headers()
            for binding in sorted(self.candidates(found), key=self._numbers.__getitem__):
                if binding.queue not in first and self._criteria[binding].match(found):
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

    def _remember(self, bindings: tuple[Binding, ...]) -> Route:
        if not bindings:
            return self.no_route
        if len(self._found) >= MAX_ROUTES or self._routed >= MAX_ROUTED:
            self.forget_routes()
        route = Route(bindings)
        self._routed += route.size
        self._found[bindings] = route
        return self.register(route)

    def drop_routes(self) -> None:
        """As `Exchange.drop_routes`."""
        super().drop_routes()
        self._found.clear()

    def match(self, key: str) -> Route:
        """Never called: this exchange does not route by key (`is_keyed`)."""
        raise AssertionError(f"the headers exchange {self.name!r} does not route by key ({key!r})")

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
