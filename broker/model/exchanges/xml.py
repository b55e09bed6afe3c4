"""The XML exchange: routes to queues whose bindings have the message's key, and a query that its content matches.

The query is the binding's argument `xquery` (`model/xquery`); its external variables are the headers of the message.
The bindings with the key of a message are evaluated, each different query once, and the content is parsed once. So a
queue can be bound once with each key, and the same key with another query is refused.

A message whose content is not XML matches no query that looks at the content. One that takes too long, or whose content
is too large, is refused (RoutingLimitError): all its queries together take at most the steps of a message, which are
calls of functions here.

Sources: qpidd, XmlExchange.cpp; MRG 2 Messaging User Guide, 2.1.6.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model import xquery
from qstore.broker.model.arguments import XQUERY, as_text
from qstore.broker.model.errors import (
    InternalError,
    NotAllowedError,
    NotImplementedByBrokerError,
    RoutingLimitError,
)
from qstore.broker.model.exchanges.exchange import Exchange, Headers
from qstore.broker.model.exchanges.matching import Steps
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.message import LargeContent, Message
from qstore.broker.model.queues.queue import Queue
from qstore.formats.values import TypedMap

_LOG: Final = log_of("Model")

EVENTS_PER_STEP: Final = 2
"""Calls and returns of functions that count as one step of matching: some 10 ms for all of a message."""


class XmlExchange(Exchange):
    """An exchange of type xml."""

    kind: ClassVar[str] = "xml"
    is_keyed: ClassVar[bool] = False
    is_even: ClassVar[bool] = False
    is_destination: ClassVar[bool] = True
    takes_selectors: ClassVar[bool] = True

    __slots__ = ("_has_warned", "_queries")

    def _set_up(self) -> None:
        self._queries: dict[Binding, xquery.Query] = {}
        self._has_warned = False

    def matched(self, key: str, headers: Headers, steps: Steps) -> Collection[Binding]:
        """The bindings with this key whose queries match the message.

        Raises:
            RoutingLimitError: evaluating them takes too long.
        """
        held, message = self._by_key.get(key), headers.message
        if held is None or message is None:
            return ()
        document = xquery.Document(_content_of(message))
        variables = xquery.variables(message.headers())
        budget = xquery.Budget(EVENTS_PER_STEP * steps.left)
        results: dict[str, bool] = {}
        try:
            for binding in held.values():
                query = self._queries[binding]
                if query.text not in results:
                    results[query.text] = query.matches(document, variables, budget)
        except xquery.TooExpensiveError as error:
            raise self._too_expensive(key, error) from error
        finally:
            steps.left = budget.left // EVENTS_PER_STEP
        matching = [binding for binding in held.values() if results[self._queries[binding].text]]
        return self.selected(matching, headers, steps) if self.selectors else matching

    def _too_expensive(self, key: str, error: Exception) -> RoutingLimitError:
        text = f'exchange "{self.name}": a message with the routing key {key!a:.60} cannot be matched: {error}'
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("A message is refused: %s. Later refusals are not logged", text)
        return RoutingLimitError(text)

    def prepare(self, queue: Queue, key: str, arguments: TypedMap) -> Binding | None:
        """A binding for `put`; None if it already exists.

        Raises:
            InternalError: there is no query, or it is not valid, as in qpidd.
            NotAllowedError: the queue is bound with this key and another query.
        """
        query = read_query(arguments)
        binding = self.find_binding(queue, key)
        if binding is not None and self._queries[binding].text != query.text:
            raise NotAllowedError(
                f'queue "{queue.name}" is bound to exchange "{self.name}" with key "{key}" and another query: '
                "unbind it first, or use another key"
            )
        return super().prepare(queue, key, arguments)

    def _add(self, binding: Binding) -> None:
        self._queries[binding] = read_query(binding.arguments)
        super()._add(binding)

    def _remove(self, binding: Binding) -> None:
        super()._remove(binding)
        del self._queries[binding]

    def is_equivalent(self, binding: Binding, arguments: TypedMap) -> bool:
        """Whether a binding has the same query as these arguments; any if they have none."""
        text = _query_in(arguments)
        return not text or self._queries[binding].text == text


def read_query(arguments: TypedMap) -> xquery.Query:
    """The query of a binding with these arguments. Raises InternalError: it has none, or it is not valid."""
    try:
        return xquery.query_of(_query_in(arguments))
    except xquery.QueryError as error:
        raise InternalError(f"a binding to an XML exchange needs a query in the argument {XQUERY}: {error}") from error


def _query_in(arguments: TypedMap) -> str:
    typed = arguments.get(XQUERY)
    text = "" if typed is None else as_text(typed.value)
    return text if isinstance(text, str) else ""


def _content_of(message: Message) -> bytes | str:
    content = message.whole().readable_content()
    if isinstance(content, LargeContent):  # of which a parser needs a copy: not if it is too large anyway
        return bytes(content) if len(content) <= xquery.MAX_BYTES else b" " * (xquery.MAX_BYTES + 1)
    return content


def xml_type(_arguments: TypedMap) -> type[Exchange]:
    """The class. Raises NotImplementedByBrokerError: what evaluates queries is not installed."""
    if not xquery.is_available():
        raise NotImplementedByBrokerError(
            "exchanges of type xml need the library elementpath, which is not installed: pip install 'qstore[xml]'"
        )
    return XmlExchange
