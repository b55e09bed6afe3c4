"""The keys of bindings to headers exchanges.

To clients of AMQP 0-9-1, bindings of one queue with one key and different arguments are different ones; in the model
they need different keys (`exchanges/headers`), which match nothing. The second one gets a key of its own: the client's,
`#`, and a digest of the arguments. A client that unbinds with the same key and arguments finds it again.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from qstore.broker.model.exchanges.headers import HeadersExchange
from qstore.broker.model.queues.queue import Queue
from qstore.formats.amqp_0_9_1.fields import encode_value
from qstore.formats.values import TypedMap

_DIGITS: Final = 16
_has_digest: Final = re.compile(rf".*#[0-9a-f]{{{_DIGITS}}}", re.DOTALL).fullmatch
_MAX_KEY: Final = 255  # bytes


def headers_key(exchange: HeadersExchange, queue: Queue, key: str, arguments: TypedMap) -> str:
    """The key under which a queue is bound, or to be bound, with this key and these arguments."""
    own = own_key(key, arguments)
    if exchange.find_binding(queue, own) is not None:
        return own
    binding = exchange.find_binding(queue, key)
    return key if binding is None or exchange.is_equivalent(binding, arguments) else own


def own_key(key: str, arguments: TypedMap) -> str:
    """The key of a further binding with this key, which has other arguments."""
    ordered = TypedMap(tuple(sorted(arguments.entries, key=lambda entry: entry[0])))
    digest = sha256(key.encode("utf-8", "surrogateescape") + encode_value("table", ordered)).hexdigest()[:_DIGITS]
    kept = key.encode("utf-8", "surrogateescape")[: _MAX_KEY - _DIGITS - 1].decode("utf-8", "ignore")
    return f"{kept}#{digest}"


def client_key(key: str) -> str:
    """The key that the client gave, of a binding that may have a key of its own.

    The digest is not compared: exports of running brokers do not have the types of arguments. A key that was too long
    to be kept whole is returned without its end.
    """
    return key[: -_DIGITS - 1] if _has_digest(key) else key
