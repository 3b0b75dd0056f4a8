"""Every error is one line, says all it knows, and is the built-in a user would expect."""

import inspect

import pytest

from labkit import errors
from labkit.errors import LabkitError, UnknownNameError

KINDS = [
    (name, kind)
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, LabkitError) and kind is not LabkitError
]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_each_kind_is_a_labkit_error_and_a_builtin_and_drawn_in_the_tree(name: str, kind: type[LabkitError]) -> None:
    builtin = [
        base
        for base in kind.__mro__
        if base.__module__ == "builtins" and base not in (Exception, BaseException, object)
    ]
    assert builtin, f"{name} derives from no built-in error"
    assert errors.__doc__ is not None
    assert f" {name} " in errors.__doc__
    assert f"({builtin[0].__name__})" in errors.__doc__.split(f" {name} ")[1].split("\n")[0]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_the_message_is_one_line_with_everything_in_it(name: str, kind: type[LabkitError]) -> None:
    first = ("a-code", "it is wrong") if name == "FormatError" else ("it is wrong",)
    error = kind(*first, where="a.safetensors", expected=[2, 3], got=[3, 2], fix="mend it")
    assert str(error).startswith("a.safetensors: it is wrong (expected [2, 3], got [3, 2]); mend it")
    assert "\n" not in str(error)
    assert name in repr(error)


@pytest.mark.parametrize(("count", "more"), [(14, ""), (20, ""), (21, " and 1 more")])
def test_a_short_list_of_names_is_told_whole(count: int, more: str) -> None:
    names = [f"name-{number}" for number in range(count)]
    fix = str(UnknownNameError.near("option", "?", names)).partition("; known: ")[2]
    assert fix == ", ".join(map(repr, names[:20])) + more
