"""Parameters: what components of the broker are configured with while it runs, in the way of RabbitMQ.

A parameter has a virtual host, a component, a name, and a value of JSON. A component is a part of the broker that has
registered its name here (`Parameters.register`): it checks each value before it is stored, and hears of each change
when it is on the disk. Parameters of other names are refused, so that nothing is accepted without effect. What a
component does for a parameter is done for the user who has set it, whom the record keeps.

Global parameters have only a name and a value. The broker keeps them for tools; `cluster_name` is how they call it.

Both are configuration records (`configuration`), their values JSON texts. A virtual host is deleted with its
parameters, of which components hear as well. A parameter of the store whose component this broker has not is kept, is
listed, and can be deleted.

Source: RabbitMQ, "Parameters and Policies".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from qstore.broker.log.logs import log_of
from qstore.broker.model.configuration import Configuration, Record, Values
from qstore.broker.model.errors import InvalidArgumentError, NotFoundError
from qstore.formats.broker_records.topology import GLOBAL_PARAMETER, PARAMETER, problem_of_new_name
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import printable

_LOG: Final = log_of("Model")

MAX_VALUE: Final = 16 << 10
"""Bytes of a value, as JSON."""

MAX_DEPTH: Final = 20
"""Levels of a value's arrays and objects."""


class Parameter(NamedTuple):
    """A parameter of a component.

    Attributes:
        host: its virtual host.
        component: the name of the component.
        name: its name, of which the component has one in each virtual host.
        value: what JSON can express; not to be changed.
        user: who has set it, and for whom the component works; empty if the broker has.
    """

    host: str
    component: str
    name: str
    value: Any
    user: str


Key: TypeAlias = tuple[str, str, str]
"""Virtual host, component and name of a parameter."""


class Component(NamedTuple):
    """What a component has registered.

    Attributes:
        check: raises an error of the model if a new parameter is not valid, or its user may not do what it asks for;
            nothing is stored then.
        changed: called with the key of each parameter that was set or deleted, and the parameter, or None if it was
            deleted; it is on the disk, and no other change of it has begun.
    """

    check: Callable[[Parameter], None]
    changed: Callable[[Key, Parameter | None], None]


class Parameters:
    """The parameters of one broker.

    Args:
        configuration: stores them.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._components: dict[str, Component] = {}
        self._known: dict[Key, Parameter] = {}

    def register(
        self,
        component: str,
        check: Callable[[Parameter], None],
        changed: Callable[[Key, Parameter | None], None],
    ) -> None:
        """Let a component have parameters, before the broker serves clients.

        The component does not hear of what `recover` finds: it gets that from `of` when it starts.

        Args:
            component: its name.
            check: see `Component`.
            changed: likewise.
        """
        assert component not in self._components, component
        self._components[component] = Component(check, changed)

    def recover(self) -> None:
        """Use the parameters of the configuration records."""
        for name, values in self._configuration.of(PARAMETER).items():
            found = _parameter(name, values)
            if found is None:
                _LOG.error("The parameter %s of the store is not valid and has no effect", printable(str(name)))
                continue
            self._known[found[:3]] = found

    # ---- reading ----

    def of(self, component: str) -> Iterator[Parameter]:
        """The parameters of a component, in all virtual hosts."""
        return (each for each in list(self._known.values()) if each.component == component)

    def all(self) -> list[Parameter]:
        """All parameters, by virtual host, component and name."""
        return sorted(self._known.values(), key=lambda each: each[:3])

    def get(self, host: str, component: str, name: str) -> Parameter | None:
        """A parameter; None if there is none."""
        return self._known.get((host, component, name))

    def all_global(self) -> list[tuple[str, Any]]:
        """Names and values of the global parameters, by name."""
        found = []
        for name, values in sorted(self._configuration.of(GLOBAL_PARAMETER).items()):
            try:
                found.append((name[0], json.loads(str(values.get("value")))))
            except ValueError:
                _LOG.error("The global parameter %s of the store is not valid", printable(name[0]))
        return found

    @property
    def cluster_name(self) -> str:
        """The name of the broker that is set; empty if none is."""
        values = self._configuration.get(Record(GLOBAL_PARAMETER, (CLUSTER_NAME,)))
        try:
            name = None if values is None else json.loads(str(values.get("value")))
        except ValueError:
            return ""
        return name if isinstance(name, str) else ""

    # ---- changing ----

    async def set(self, parameter: Parameter) -> None:
        """Set a parameter, in place of that with its name.

        Raises:
            InvalidArgumentError: there is no such component, or the value is not valid.
            InternalError: the store cannot store it, and nothing has changed.
            ModelError: the component refuses it.
        """
        component = self._components.get(parameter.component)
        if component is None:
            known = ", ".join(sorted(self._components))
            text = f"there are {known}" if known else "no component of this broker has parameters"
            raise InvalidArgumentError(f"component {printable(parameter.component)} not found: {text}")
        _check_name(parameter.name)
        text = _encoded(parameter.value)
        component.check(parameter)
        key = parameter[:3]

        def stored() -> None:
            self._known[key] = parameter
            component.changed(key, parameter)

        values: Values = {"value": text, "user": parameter.user}
        await self._configuration.change({Record(PARAMETER, key): values}, then=stored)

    async def delete(self, host: str, component: str, name: str) -> None:
        """Delete a parameter.

        Raises:
            NotFoundError: there is none with this name.
            InternalError: the store cannot delete it, and nothing has changed.
        """
        key = host, component, name
        if key not in self._known:
            shown = f'parameter "{printable(name)}" of component {printable(component)}'
            raise NotFoundError(f'{shown} in virtual host "{printable(host)}" does not exist')
        await self._configuration.change({}, [Record(PARAMETER, key)], then=lambda: self._gone(key))

    def forget(self, host: str) -> None:
        """The parameters of a virtual host were deleted with it."""
        for key in [key for key in self._known if key[0] == host]:
            self._gone(key)

    def _gone(self, key: Key) -> None:
        found = self._known.pop(key, None)
        component = self._components.get(key[1])
        if found is not None and component is not None:
            component.changed(key, None)

    async def set_global(self, name: str, value: Any) -> None:
        """Set a global parameter.

        Raises:
            InvalidArgumentError: its name or value is not valid.
            InternalError: the store cannot store it, and nothing has changed.
        """
        _check_name(name)
        if name == CLUSTER_NAME and not (isinstance(value, str) and value and problem_of_new_name(value) == ""):
            raise InvalidArgumentError(f"the global parameter {CLUSTER_NAME} must be a string that is not empty")
        await self._configuration.change({Record(GLOBAL_PARAMETER, (name,)): {"value": _encoded(value)}})

    async def delete_global(self, name: str) -> None:
        """Delete a global parameter.

        Raises:
            NotFoundError: there is none with this name.
            InternalError: the store cannot delete it, and nothing has changed.
        """
        record = Record(GLOBAL_PARAMETER, (name,))
        if self._configuration.get(record) is None:
            raise NotFoundError(f'global parameter "{printable(name)}" does not exist')
        await self._configuration.change({}, [record])


CLUSTER_NAME: Final = "cluster_name"
"""The global parameter with the name of the broker."""


def _check_name(name: str) -> None:
    problem = problem_of_new_name(name)
    if problem:
        raise InvalidArgumentError(f"the name of a parameter is not valid: {problem}")


def _encoded(value: Any) -> str:
    """A value as JSON. Raises InvalidArgumentError if there is none, or it is too large."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError):
        raise InvalidArgumentError("the value of a parameter cannot be expressed in JSON") from None
    if size > MAX_VALUE:
        raise InvalidArgumentError(f"the value of a parameter has {size:,} bytes, and may have {MAX_VALUE:,}")
    if _depth(value) > MAX_DEPTH:
        raise InvalidArgumentError(f"the value of a parameter has more than {MAX_DEPTH} levels")
    return text


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def _parameter(name: tuple[str, ...], values: Values) -> Parameter | None:
    """The parameter of a record; None if it is not valid."""
    if len(name) != 3:
        return None
    try:
        value = json.loads(str(values.get("value")))
    except (ValueError, RecursionError):
        return None
    return Parameter(*name, value, str(values.get("user", "")))
