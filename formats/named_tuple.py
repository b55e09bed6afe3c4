"""`NamedTuple` where annotations are text, as in all of this package (`from __future__ import annotations`).

`typing.NamedTuple` compiles each annotation that is text, and keeps the code, which nobody ever runs: that takes five
sixths of the time to define a class. A broker with its store defines 350 of them before it listens: that was a fifth of
the time of its imports, and 0.8 MiB (`tests.bench.bench_start`). Here they are kept as they are. What is left for
`collections.namedtuple` is mostly the compiling of `__new__`: here classes with as many fields share the bytecode, with
names of their own, and all classes their other methods. All else is the same, and type checkers see
`typing.NamedTuple`. In compiled modules it is that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter
    from collections import namedtuple
    from functools import cache
    from types import FunctionType

    _OWN = frozenset(("__annotations__", "__module__", "__classcell__"))

    class _Definition(type):
        def __new__(cls, name, bases, body):
            """The class that `collections.namedtuple` makes of the fields, with the rest of the body."""
            annotations = body.get("__annotations__", {})
            fields = tuple(annotations)
            defaults = [body[field] for field in fields if field in body]
            if any(field in body for field in fields[: len(fields) - len(defaults)]):
                raise TypeError(f"{name}: a field without a default follows one that has one")
            if len(bases) > 1 or "__classcell__" in body:
                raise TypeError(f"{name}: a named tuple has no other base class, and does not call super()")
            if any(field.startswith("_") for field in fields):
                raise ValueError(f"{name}: a field begins with an underscore")
            made = type.__new__(type, name, (tuple,), _namespace(name, fields, tuple(defaults)))
            made.__module__, made.__annotations__ = body["__module__"], annotations
            for key, value in body.items():
                if key not in _OWN and key not in annotations:
                    setattr(made, key, value)
            return made

    def _namespace(name, fields, defaults):
        """What `collections.namedtuple` gives a class."""
        code = _code_of_new(len(fields)).replace(co_varnames=("_cls", *fields))
        new = FunctionType(code, _GLOBALS, "__new__", defaults or None)
        new.__qualname__, new.__doc__ = f"{name}.__new__", f"Create new instance of {name}({', '.join(fields)})"
        namespace = {
            "__doc__": f"{name}({', '.join(fields)})",
            "__slots__": (),
            "_fields": fields,
            "_field_defaults": dict(zip(fields[len(fields) - len(defaults) :], defaults, strict=True)),
            "__new__": new,
            "_make": _MAKE,
            "_replace": _replace,
            "__repr__": _repr,
            "_asdict": _asdict,
            "__getnewargs__": _getnewargs,
            "__match_args__": fields,
        }
        for index, field in enumerate(fields):
            namespace[field] = _tuplegetter(index, _alias(index))
        return namespace

    @cache
    def _code_of_new(count):
        """The code of `__new__` for so many fields."""
        return namedtuple("Any", [f"field_{number}" for number in range(count)]).__new__.__code__

    @cache
    def _alias(index):
        return f"Alias for field number {index}"

    _GLOBALS = {"_tuple_new": tuple.__new__, "__builtins__": {}, "__name__": __name__}

    def _make(cls, iterable):
        """Make one from a sequence or an iterable."""
        made = tuple.__new__(cls, iterable)
        if len(made) != len(cls._fields):
            raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
        return made

    _MAKE = classmethod(_make)

    def _replace(self, /, **changes):
        """One with other values of some fields."""
        made = self._make(map(changes.pop, self._fields, self))
        if changes:
            raise ValueError(f"Got unexpected field names: {list(changes)!r}")
        return made

    def _repr(self):
        return f"{self.__class__.__name__}({', '.join(map('{}={!r}'.format, self._fields, self))})"

    def _getnewargs(self):
        return tuple(self)

    def _asdict(self):
        """The fields' values by name."""
        return dict(zip(self._fields, self, strict=True))

    NamedTuple = type.__new__(_Definition, "NamedTuple", (), {})
