"""What makes a class the blocking face of one in `dibs.core`: it says the same words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

C = TypeVar("C", bound=type)


def faces(core: type) -> Callable[[C], C]:
    """Mark a class as the blocking face of *core* and give it and its methods the docstrings of *core*."""

    def mark(face: C) -> C:
        face.__doc__ = core.__doc__
        for name, member in vars(face).items():
            original = getattr(core, _ASYNC_NAMES.get(name, name), None) or getattr(core, name, None)
            if (callable(member) or isinstance(member, property)) and not getattr(member, "__doc__", None):
                member.__doc__ = getattr(original, "__doc__", None)
        return face

    return mark


_ASYNC_NAMES = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__", "__next__": "__anext__"}
