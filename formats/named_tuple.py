"""`NamedTuple` where annotations are text, as in all of this package (`from __future__ import annotations`).

`typing.NamedTuple` compiles each annotation that is text, and keeps the code, which nobody ever runs: that takes five
sixths of the time to define a class. A broker with its store defines 350 of them before it listens: that was a fifth of
the time of its imports, and 0.8 MiB (`tests.bench.bench_start`). Here they are kept as they are. All else is the same,
and type checkers see `typing.NamedTuple`. In compiled modules it is that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from collections import namedtuple

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
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            made.__annotations__ = annotations
            for key, value in body.items():
                if key not in _OWN and key not in annotations:
                    setattr(made, key, value)
            return made

    NamedTuple = type.__new__(_Definition, "NamedTuple", (), {})
