"""The headers exchange: to the queues whose bindings ask for the headers that a message has.

What they ask is in the bindings' arguments, and `criteria` says how it is matched. The binding key matches nothing; it
only tells the bindings of one queue from each other, so the same key with other arguments is refused, not ignored.
Every message is held against every binding. Source: AMQP 0-10, class exchange, type headers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from broker.model.errors import InternalError, NotAllowedError
from broker.model.exchanges.criteria import Criteria, comparable, parse_criteria
from broker.model.exchanges.exchange import MAX_ROUTED_QUEUES, MAX_ROUTES, Exchange
from broker.model.exchanges.route import Binding, Route
from formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from broker.model.message import Message
    from broker.model.queues.queue import Queue


class HeadersExchange(Exchange):
    """An exchange of type headers."""

    type_name: ClassVar[str] = "headers"
    is_keyed: ClassVar[bool] = False

    __slots__ = ("_criteria", "_found")

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
        self._found: dict[tuple[Binding, ...], Route] = {}  # by what has matched

    # ---- routing ----

    def route(self, message: Message) -> Route:
        """To the queues with a binding that asks for the headers of this message."""
        if not self._criteria:
            return self.no_route
        headers = {name: comparable(typed) for name, typed in message.headers().entries}
        first: dict[Queue, Binding] = {}
        for binding, criteria in self._criteria.items():
            if binding.queue not in first and criteria.match(headers):
                first[binding.queue] = binding
        bindings = tuple(first.values())
        return self._found.get(bindings) or self._remember(bindings)

    def _remember(self, bindings: tuple[Binding, ...]) -> Route:
        if not bindings:
            return self.no_route
        self._routed_queues += len(bindings)
        if len(self._found) >= MAX_ROUTES or self._routed_queues > MAX_ROUTED_QUEUES:
            self.forget_routes()
            self._routed_queues = len(bindings)
        route = self._found[bindings] = Route(bindings)
        return self._kept(route)

    def forget_routes(self) -> None:
        """As `Exchange.forget_routes`."""
        super().forget_routes()
        self._found.clear()

    def match(self, key: str) -> Route:
        """Not to be asked: a key says nothing here (`is_keyed`)."""
        raise AssertionError(f"the headers exchange {self.name!r} does not route by key ({key!r})")

    # ---- bindings ----

    def prepare(self, queue: Queue, key: str, arguments: TypedMap) -> Binding | None:
        """A binding for `put`; None if it is there already.

        Raises:
            InternalError: the arguments ask for nothing.
            NotAllowedError: the queue is bound under this key, with other arguments.
        """
        criteria = parse_criteria(arguments)
        binding = self.find_binding(queue, key)
        if binding is not None and self._criteria[binding] != criteria:
            raise NotAllowedError(
                f'queue "{queue.name}" is bound to exchange "{self.name}" under the key "{key}" with other arguments: '
                "unbind it first, or use another key"
            )
        return super().prepare(queue, key, arguments)

    def _add(self, binding: Binding) -> None:
        super()._add(binding)
        self._criteria[binding] = parse_criteria(binding.arguments)

    def _remove(self, binding: Binding) -> None:
        super()._remove(binding)
        del self._criteria[binding]

    def is_alike(self, binding: Binding, arguments: TypedMap) -> bool:
        """Whether a binding asks for what these arguments do."""
        try:
            return self._criteria[binding] == parse_criteria(arguments)
        except InternalError:
            return False
