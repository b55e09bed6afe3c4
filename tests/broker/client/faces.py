"""Both faces of the client behind the calls of the blocking one, and both protocols: one test serves all of them."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from qstore.broker.client import aio, blocking
from qstore.broker.client.options import AMQP_0_10, AMQP_1_0

OVER_1_0 = "blocking over 1.0"
FACES = ("blocking", "asyncio", OVER_1_0)

only_0_10 = pytest.mark.parametrize("face", FACES[:2], indirect=True)
"""For tests of what AMQP 1.0 has no words for, or does in another way."""


class Awaited:
    """An object of `aio`, each of whose coroutines is run to its end when it is called."""

    def __init__(self, runner: asyncio.Runner, wrapped: Any) -> None:
        self.__dict__.update(_runner=runner, _wrapped=wrapped)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._wrapped, name, value)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._wrapped, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            result = value(*arguments, **options)
            if inspect.iscoroutine(result):
                result = self._runner.run(result)
            return self._wrap(result)

        return call

    def _wrap(self, result: Any) -> Any:
        kinds = (aio.Connection, aio.Session, aio.Sender, aio.Receiver)
        return Awaited(self._runner, result) if isinstance(result, kinds) else result

    _runner: asyncio.Runner
    _wrapped: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Awaited) and other._wrapped is self._wrapped

    def __hash__(self) -> int:
        return hash(self._wrapped)


class Face:
    """Makes connections of one face, and closes what a test leaves open."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.protocol = AMQP_1_0 if name == OVER_1_0 else AMQP_0_10
        self._runner = asyncio.Runner() if name == "asyncio" else None
        self._made: list[Any] = []

    def connection(self, url: str, **options: Any) -> Any:
        """A connection that is not open."""
        options = {"protocol": self.protocol, **options}
        if self._runner is None:
            made: Any = blocking.Connection(url, **options)
        else:
            made = Awaited(self._runner, aio.Connection(url, **options))
        self._made.append(made)
        return made

    def connect(self, url: str, **options: Any) -> Any:
        """A connection that is open."""
        made = self.connection(url, **options)
        made.open()
        return made

    def close(self) -> None:
        """Close all of them."""
        for made in self._made:
            if made.is_open:
                made.close(timeout=0)
        if self._runner is not None:
            self._runner.close()
