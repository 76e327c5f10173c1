"""What makes a class the blocking face of one in `dibs.core`.

A face has the names, the parameters and the words of its core; its docstrings are written by tools/docstrings.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dibs.core.copying import NotCopied

C = TypeVar("C", bound=type)


def faces(core: type) -> Callable[[C], C]:
    """Mark a class as the blocking face of *core*: it refuses to be copied or pickled if that does."""

    def mark(face: C) -> C:
        if issubclass(core, NotCopied):
            setattr(face, "__reduce__", _as_the_core)  # noqa: B010 - mypy knows it as a method of instances
        return face

    return mark


def _as_the_core(face: Any) -> Any:
    """A face of what is not copied is not copied either."""
    return face._core.__reduce__()
