"""The blocking faces are the core: the same names, parameters, defaults and words, method by method."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs import _blocking
from dibs.core import client, guarded, lease, lock, loss
from dibs.core import locks as several
from dibs.core.election import block as leading
from dibs.core.election import election, term
from dibs.core.election import watch as leaders
from dibs.core.idempotent import call, idempotent
from dibs.core.once import once

PAIRS: dict[type, type] = {
    _blocking.Client: client.Client,
    _blocking.Lock: lock.Lock,
    _blocking.Guarded: guarded.Guarded,
    _blocking.Lease: lease.Lease,
    _blocking.Loss: loss.Loss,
    _blocking.Election: election.Election,
    _blocking.Leading: leading.Leading,
    _blocking.Term: term.Term,
    _blocking.Leaders: leaders.Leaders,
    _blocking.Once: once.Once,
    _blocking.Run: once.Run,
    _blocking.Locks: several.Locks,
    _blocking.Leases: several.Leases,
    _blocking.LossOfAny: several.LossOfAny,
    _blocking.Call: call.Call,
    _blocking.Idempotent: idempotent.Idempotent,
}

IN_THREADS = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
"""What the language calls differently."""

SPECIAL = {"__bool__", "__call__", "__reduce__", "__repr__", "__getitem__", "__iter__", "__len__", *IN_THREADS}


def api(core: type) -> set[str]:
    """What users may call on a class of the core."""
    public = {name for name in {*dir(core), *inspect.get_annotations(core)} if not name.startswith("_")}
    return public | (SPECIAL & vars(core).keys())


METHODS = [(face, core, name) for face, core in PAIRS.items() for name in sorted(api(core))]
FUNCTIONS = ["connect", "lock", "locked"]


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(("face", "core", "name"), METHODS, ids=lambda value: getattr(value, "__name__", value))
def test_a_method_has_a_face(face: type, core: type, name: str) -> None:
    its_face = inspect.getattr_static(face, IN_THREADS.get(name, name), None)
    original = inspect.getattr_static(core, name, None)
    assert its_face is not None, f"{face.__name__} has no {name}"
    if inspect.isfunction(original):
        assert inspect.isfunction(its_face)
        assert not inspect.iscoroutinefunction(its_face)
        assert parameters(its_face) == parameters(original)
    else:
        assert isinstance(its_face, property)


@pytest.mark.parametrize(("face", "core", "name"), METHODS, ids=lambda value: getattr(value, "__name__", value))
def test_a_face_says_what_its_method_says(face: type, core: type, name: str) -> None:
    if name in {"__repr__", "__bool__", "__aexit__"}:  # the end of all blocks is `Block.__exit__`
        return
    its_face = inspect.getattr_static(face, IN_THREADS.get(name, name))
    original = inspect.getattr_static(core, name, None)
    assert its_face.__doc__
    if inspect.isfunction(original) or isinstance(original, property):
        assert its_face.__doc__ == original.__doc__


@pytest.mark.parametrize(("face", "core"), PAIRS.items(), ids=lambda value: value.__name__)
def test_a_class_says_what_its_core_says(face: type, core: type) -> None:
    assert face.__doc__ == core.__doc__
    assert face.__name__ == core.__name__


@pytest.mark.parametrize("instead", ["", '        """Of long ago.\n\n        It said more.\n        """\n'])
def test_make_fix_writes_the_docstrings_of_the_core_into_the_source_of_its_faces(instead: str) -> None:
    """So an editor shows them; `test_a_face_says_what_its_method_says` sees one that is missing or outdated."""
    source = Path(inspect.getfile(_blocking.Lock)).read_text(encoding="utf-8")
    fresh = f'        """{lock.Lock.try_acquire.__doc__}"""\n'
    assert source.count(fresh) == 1
    assert _tool("docstrings").filled(source.replace(fresh, instead), _blocking.Lock.__module__) == source


def _tool(name: str) -> ModuleType:
    """A module of the folder tools."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent.parent / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("face", PAIRS, ids=lambda value: value.__name__)
def test_a_face_has_nothing_of_its_own(face: type) -> None:
    back = {new: old for old, new in IN_THREADS.items()}
    own = {
        back.get(name, name) for name, member in vars(face).items() if callable(member) or isinstance(member, property)
    }
    assert own - {"__init__"} <= api(PAIRS[face]) | SPECIAL


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_functions_of_both_modules_are_alike(name: str) -> None:
    assert parameters(getattr(dibs, name)) == parameters(getattr(dibs.aio, name))


@pytest.mark.parametrize("name", ["lock", "locked"])
def test_the_functions_take_what_the_client_takes(name: str) -> None:
    for module, kind in ((dibs, dibs.Client), (dibs.aio, dibs.aio.Client)):
        assert parameters(getattr(module, name)) == parameters(getattr(kind, name))[1:]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_functions_say_what_they_do(name: str) -> None:
    for module in (dibs, dibs.aio):
        assert len((getattr(module, name).__doc__ or "").split()) > 6


def test_both_modules_offer_the_same_names() -> None:
    assert dibs.__all__ == dibs.aio.__all__
    assert dibs.__all__ == sorted(dibs.__all__)
    for module in (dibs, dibs.aio):
        assert all(hasattr(module, name) for name in module.__all__)
