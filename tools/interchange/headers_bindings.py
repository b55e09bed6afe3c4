"""Bindings to headers exchanges, from RabbitMQ's definitions: as a broker has them whose clients declare the same.

x-match    "all" if it is not given
key        bindings of one queue with one key and different arguments are different ones: the first one has that
           key, and the others get keys of their own (`broker.protocols.amqp_0_9_1.headers_keys`)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from qstore.broker.protocols.amqp_0_9_1.arguments import binding_arguments, own_key
from qstore.formats.values import TypedMap

HEADERS: Final = "headers"


class HeadersBindings:
    """The bindings of one file.

    Args:
        exchanges: names of the headers exchanges in it.
    """

    def __init__(self, exchanges: Iterable[str]) -> None:
        self._exchanges = {"amq.match", *exchanges}
        self._first: dict[tuple[str, str, str], TypedMap] = {}

    def arguments(self, exchange: str, given: TypedMap) -> TypedMap:
        """The arguments of a binding to an exchange. Raises InvalidArgumentError if `x-match` is not valid."""
        return binding_arguments(HEADERS if exchange in self._exchanges else "", given)

    def key(self, exchange: str, queue: str, key: str, arguments: TypedMap) -> str:
        """The key of a queue's binding to an exchange, with the arguments that it has here."""
        if exchange not in self._exchanges:
            return key
        first = self._first.setdefault((exchange, queue, key), arguments)
        return key if first == arguments else own_key(key, arguments)
