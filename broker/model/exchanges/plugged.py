"""Exchange types of other packages: each is an entry point of the group `qstore.exchanges`, named like the type.

    [project.entry-points."qstore.exchanges"]
    x-lossy = "lossy:Lossy"

It names a callable that gets the arguments of an exchange, and returns what decides for that exchange (`Decides`). One
is called whenever an exchange is declared, and after a restart; it refuses arguments with a ValueError.

Everything else is the broker's: names, rights, durability, policies, bindings, alternate exchanges, counters. A plug-in
runs in the broker's event loop and is trusted: it should answer within microseconds, and must not block. If it raises,
the message matches nothing, and that is logged once for each exchange.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from qstore.broker.log.logs import log_of
from qstore.broker.model.arguments import plain
from qstore.broker.model.errors import InternalError, InvalidArgumentError
from qstore.broker.model.exchanges.exchange import Exchange, Headers
from qstore.broker.model.exchanges.matching import Steps
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.queues.queue import Queue
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import EMPTY_MAP, TypedMap

_LOG: Final = log_of("Model")

GROUP: Final = "qstore.exchanges"


class Bound(NamedTuple):
    """A binding as a plug-in sees it: the name of the queue, the key, and the arguments as plain values."""

    queue: str
    key: str
    arguments: Mapping[str, object]


class Published(NamedTuple):
    """A message as a plug-in sees it: its routing key, its application headers as plain values, and its content.

    The content is empty if it is neither bytes nor text, or cannot be decoded.
    """

    key: str
    headers: Mapping[str, object]
    content: bytes


class Decides(Protocol):
    """Decides for one exchange."""

    def check(self, key: str, arguments: Mapping[str, object]) -> None:
        """Raise ValueError if a queue cannot be bound with this key and these arguments."""

    def route(self, message: Published, bindings: Sequence[Bound]) -> Iterable[Bound]:
        """Some of the bindings: the message goes to their queues, to each once.

        Args:
            message: the message.
            bindings: those of the exchange, in order of creation; the same object until they change.
        """


MakeDeciding: TypeAlias = Callable[[Mapping[str, object]], Decides]


@cache
def _found() -> Mapping[str, Any]:
    from importlib.metadata import entry_points  # takes some 20 ms, and as a rule is not needed

    return {each.name: each for each in entry_points(group=GROUP)}


def plugged_names() -> Collection[str]:
    """The names of the types that other packages have."""
    return _found().keys()


def load_plugged(type_name: str) -> None:
    """Import the plug-in of such a type. Whatever prevents it, `make_plugged` says."""
    with contextlib.suppress(Exception):
        _found()[type_name].load()


def make_plugged(type_name: str, arguments: TypedMap) -> Decides:
    """What decides for an exchange of such a type, declared with these arguments.

    Raises:
        InvalidArgumentError: the plug-in refuses the arguments.
        InternalError: it cannot be loaded.
    """
    try:
        make: MakeDeciding = _found()[type_name].load()
        return make(plain(arguments))
    except ValueError as error:
        raise InvalidArgumentError(f"an exchange of type {type_name} cannot have these arguments: {error}") from error
    except Exception as failure:
        raise InternalError(f"the plug-in for exchanges of type {type_name} fails: {failure!r:.200}") from failure


class PluggedExchange(Exchange):
    """An exchange of such a type.

    Args:
        type_name: the name of the type.
        decides: decides for it.
        name, durable, auto_delete, alternate, arguments: as for `Exchange`.
    """

    kind: ClassVar[str] = ""
    is_keyed: ClassVar[bool] = False
    is_even: ClassVar[bool] = False
    is_destination: ClassVar[bool] = True

    __slots__ = ("_bound", "_decides", "_has_failed", "_ids", "_shown", "_type")

    def __init__(
        self,
        type_name: str,
        decides: Decides,
        name: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        alternate: Exchange | None = None,
        arguments: TypedMap = EMPTY_MAP,
    ) -> None:
        self._type, self._decides, self._has_failed = type_name, decides, False
        self._bound: dict[int, tuple[Bound, Binding]] = {}  # by the id of the first, by which they are told apart
        self._ids: dict[Binding, int] = {}
        self._shown: Sequence[Bound] = ()  # all of them, until they change
        # By name: mypyc passes `**` of a dictionary as the first of them.
        super().__init__(name, durable=durable, auto_delete=auto_delete, alternate=alternate, arguments=arguments)

    @property
    def type_name(self) -> str:
        """As `Exchange.type_name`."""
        return self._type

    def matched(self, key: str, headers: Headers, steps: Steps) -> Collection[Binding]:  # noqa: ARG002 – it is trusted
        """The bindings that the plug-in chooses, one for each queue."""
        message = headers.message
        if message is None:
            return ()
        if not self._shown:
            self._shown = tuple(bound for bound, _ in self._bound.values())
        first: dict[Queue, Binding] = {}
        try:
            content = message.whole().readable_content()
            encoded = content.encode() if isinstance(content, str) else bytes(content)
            published = Published(message.routing_key, plain(message.headers()), encoded)
            for chosen in self._decides.route(published, self._shown):
                _, binding = self._bound[id(chosen)]
                first.setdefault(binding.queue, binding)
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                text = 'Exchange "%s": its plug-in, for type %s, fails, and the message is not routed: %r'
                _LOG.error(text, self.name, self._type, error)
            return ()
        return list(first.values())

    def _another(self) -> Exchange:
        return PluggedExchange(self._type, self._decides, self.name)

    def prepare(self, queue: Queue, key: str, arguments: TypedMap) -> Binding | None:
        """As `Exchange.prepare`. Raises InvalidArgumentError if the plug-in refuses the binding, InternalError."""
        try:
            self._decides.check(key, plain(arguments))
        except ValueError as error:
            raise InvalidArgumentError(f'exchange "{self.name}" cannot have this binding: {error}') from error
        except Exception as failure:
            raise InternalError(f"the plug-in for exchanges of type {self._type} fails: {failure!r:.200}") from failure
        return super().prepare(queue, key, arguments)

    def _add(self, binding: Binding) -> None:
        super()._add(binding)
        bound = Bound(binding.queue.name, binding.key, plain(binding.arguments))
        self._bound[id(bound)] = bound, binding
        self._ids[binding] = id(bound)
        self._shown = ()

    def _remove(self, binding: Binding) -> None:
        super()._remove(binding)
        del self._bound[self._ids.pop(binding)]
        self._shown = ()
