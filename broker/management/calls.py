"""Calls of methods, and queries, with the question whether the caller may: the same for both versions of QMF."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qstore.broker.management.objects.classes import objects_of
from qstore.broker.management.request import ForbiddenError, UnknownMethodError
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import InvalidArgumentError, UnauthorizedError
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.objects.classes import ManagedObject
    from qstore.broker.management.objects.element import Arguments, ManagedClass, Results
    from qstore.broker.model.caller import Caller


async def call(managed: ManagedBroker, each: ManagedObject, name: str, arguments: Arguments, caller: Caller) -> Results:
    """Call a method of an object. Returns its results.

    Raises:
        UnauthorizedError: the caller may not; a `ForbiddenError` if it may not call the method at all.
        UnknownMethodError: there is no such method.
        InvalidArgumentError: it has not all of these arguments: a misspelt filter would select everything.
        ModelError: it fails.
    """
    of = each.of
    try:
        managed.broker.authorization.check(
            caller, Action.ACCESS, ObjectType.METHOD, name, schemapackage=of.package, schemaclass=of.name
        )
    except UnauthorizedError as error:
        raise ForbiddenError(str(error)) from None
    found = of.methods.get(name)
    if found is None:
        raise UnknownMethodError(f"class {of.name} has no method {printable(name)}")
    unknown = arguments.keys() - {argument.name for argument in found.arguments}
    if unknown:
        raise InvalidArgumentError(f"the method {name} has no argument {printable(min(unknown))}")
    return await found.call(managed, each.target, arguments, caller)


def check_query(managed: ManagedBroker, caller: Caller, name: str, class_name: str) -> None:
    """Raise UnauthorizedError unless the caller may ask for an object, or for those of a class."""
    managed.broker.authorization.check(caller, Action.ACCESS, ObjectType.QUERY, name, schemaclass=class_name)


async def prepare(managed: ManagedBroker, classes: Iterable[ManagedClass]) -> None:
    """Do what has to be done before objects of these classes are looked at."""
    for of in classes:
        if of.prepare is not None:
            await of.prepare(managed)


def all_of(managed: ManagedBroker, classes: Iterable[ManagedClass], caller: Caller) -> Iterator[ManagedObject]:
    """All objects of these classes that a caller may see. They may come and go between one and the next."""
    for of in classes:
        if of.seen_by is None:
            yield from objects_of(managed, of)
        else:
            may_see = of.seen_by(managed, caller)
            yield from (each for each in objects_of(managed, of) if may_see(each.target))


def may_see(managed: ManagedBroker, of: ManagedClass, target: object, caller: Caller) -> bool:
    """Whether a caller may see an object."""
    return of.seen_by is None or of.seen_by(managed, caller)(target)
