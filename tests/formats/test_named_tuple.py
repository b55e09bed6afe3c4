"""Named tuples behave as those of `typing`."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing

import pytest

from qstore.formats.named_tuple import NamedTuple


class Ours(NamedTuple):
    """A value."""

    first: int
    second: str = "b"
    third: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """Of the last."""
        return len(self.third)

    @classmethod
    def of(cls, first: int) -> Ours:
        """One with a third."""
        return cls(first, third=(1, 2))

    def __str__(self) -> str:
        return f"{self.first}-{self.second}"


class Theirs(typing.NamedTuple):
    """A value."""

    first: int
    second: str = "b"
    third: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """Of the last."""
        return len(self.third)

    @classmethod
    def of(cls, first: int) -> Theirs:
        """One with a third."""
        return cls(first, third=(1, 2))

    def __str__(self) -> str:
        return f"{self.first}-{self.second}"


class Another(NamedTuple):
    """With as many fields."""

    fourth: int
    fifth: int
    sixth: int


class Empty(NamedTuple):
    """Nothing."""


def test_they_are_defined_alike() -> None:
    left_out = {"__orig_bases__", "__module__", "__qualname__", "__annotations__", "__new__", "of", "length", "__str__"}
    ours, theirs = vars(Ours), vars(Theirs)
    assert ours.keys() | {"__orig_bases__"} == theirs.keys() | {"__orig_bases__"}
    for name in ours.keys() - left_out:
        if name[0] == "_" and not callable(getattr(Ours, name)):
            assert ours[name] == theirs[name], name
    assert Ours._fields == ("first", "second", "third")
    assert Ours._field_defaults == {"second": "b", "third": ()}
    assert Ours.__match_args__ == Ours._fields
    assert (Ours.__module__, Ours.__qualname__, Ours.__bases__) == (__name__, "Ours", (tuple,))
    assert Ours.__annotations__ == {"first": "int", "second": "str", "third": "tuple[int, ...]"}
    assert typing.get_type_hints(Ours) == typing.get_type_hints(Theirs)


def test_they_behave_alike() -> None:
    value = Ours.of(1)
    assert value == (1, "b", (1, 2)) == Theirs.of(1)
    assert (value.first, value.second, value.third, value.length, str(value)) == (1, "b", (1, 2), 2, "1-b")
    assert repr(value) == repr(Theirs.of(1)).replace("Theirs", "Ours")
    assert value._replace(second="c") == Ours(1, "c", (1, 2))
    assert value._asdict() == Theirs.of(1)._asdict()
    assert Ours._make((1, "b", (1, 2))) == value
    assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value
    assert type(pickle.loads(pickle.dumps(value))) is Ours
    assert Empty() == ()
    with pytest.raises(AttributeError):
        value.first = 2  # type: ignore[misc]
    for wrong in (dict[str, object](), {"first": 1, "fourth": 2}):
        with pytest.raises(TypeError, match=r"Ours\.__new__\(\)"):
            Ours(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unexpected field names: \\['fourth']"):
        value._replace(fourth=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Expected 3 arguments, got 1"):
        Ours._make((1,))


def test_each_has_its_own_names() -> None:
    assert inspect.signature(Ours).parameters.keys() == inspect.signature(Theirs).parameters.keys()
    assert inspect.signature(Another).parameters.keys() == {"fourth", "fifth", "sixth"}
    assert Another(sixth=3, fourth=1, fifth=2) == (1, 2, 3)
    assert repr(Another(1, 2, 3)) == "Another(fourth=1, fifth=2, sixth=3)"
    assert Ours(1) == (1, "b", ())
    with pytest.raises(TypeError):
        Another(1, 2)  # type: ignore[call-arg]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(TypeError, match="follows one that has one"):
        NamedTuple.__class__(
            "Wrong", (NamedTuple,), {"__annotations__": {"a": "int", "b": "int"}, "a": 1, "__module__": ""}
        )
    with pytest.raises(ValueError, match="begins with an underscore"):
        NamedTuple.__class__("Wrong", (NamedTuple,), {"__annotations__": {"_a": "int"}, "__module__": ""})
    with pytest.raises(TypeError, match="no other base class"):
        NamedTuple.__class__("Wrong", (NamedTuple, dict), {"__module__": ""})
