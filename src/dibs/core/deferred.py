"""Work that is done later than the call: a function that returns such work has not done it yet.

A coroutine, a generator or a context manager begins when somebody awaits, iterates or enters it. By then the lock is
given back, the slot is written down as run, or the leader has stepped down. So such a function is refused where it is
decorated, as far as it can be seen there; and such a result is closed before it begins, and refused, where it is
returned. What a wrapper says of the function inside (``__wrapped__``) proves nothing: it may well run that to its end.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from dibs.errors import Misuse

R = TypeVar("R")

BLOCKS = (contextlib._GeneratorContextManager, contextlib._AsyncGeneratorContextManager)
"""What ``@contextmanager`` and ``@asynccontextmanager`` return: their body is still to be entered."""

LATER = (types.GeneratorType, types.AsyncGeneratorType, *BLOCKS)

LAZY = frozenset({map, filter, zip, enumerate, *(each for each in vars(itertools).values() if isinstance(each, type))})
"""Iterators that compute as they go."""

DONE = frozenset({type(None), bool, int, float, str, bytes, list, dict, tuple, set})
"""The types of most results; they need no closer look."""


def check_async(func: Callable[..., Any], decorator: str) -> None:
    """Refuse what is not an ``async def`` function."""
    refuse_descriptor(func)
    if not _is("iscoroutinefunction", func):
        raise Misuse(f"{title(func)} is not an async def function; decorate it with the blocking dibs.{decorator}")


def check_blocking(func: Callable[..., Any], decorator: str) -> None:
    """Refuse what is async, and what runs its body only when somebody iterates or enters it."""
    refuse_descriptor(func)
    if is_async(func):
        raise Misuse(f"{title(func)} is async: waiting would block its loop; use dibs.aio's {decorator}")
    check_at_once(func)


def check_at_once(func: Callable[..., Any]) -> None:
    """Refuse a generator, and a function that makes a context manager of one."""
    if _is("isgeneratorfunction", func) or _is("isasyncgenfunction", func):
        raise Misuse(f"{title(func)} is a generator: {_LATER}")
    if any(getattr(each, "__code__", None) in _makers() for each in _inner(func)):
        raise Misuse(f"{title(func)} is a context manager: {_LATER}")


def is_async(func: Callable[..., Any]) -> bool:
    """Whether *func* is visibly async: calling it returns something to await, or to iterate with ``async for``."""
    return _is("iscoroutinefunction", func) or _is("isasyncgenfunction", func)


def check_answers(**functions: Any) -> None:
    """Refuse an async function where its answer is needed at once."""
    for what, function in functions.items():
        if callable(function) and is_async(function):
            raise Misuse(f"{what}={title(function)} is async, and its answer is needed at once: give a plain function")


def refuse_descriptor(func: object) -> None:
    """Refuse what a class turns into a function only afterwards: the order of decorators is wrong."""
    if isinstance(func, staticmethod | classmethod):
        kind = type(func).__name__
        raise Misuse(f"{title(func)} is a {kind} already: write @{kind} above the decorator of dibs, not below")
    if not callable(func):
        raise Misuse(f"{title(func)} cannot be called, so there is nothing to decorate")


def done(result: R, func: Callable[..., Any]) -> R:
    """Return the *result* of *func* if its work is done; if the work would begin only now, close it: `Misuse`."""
    kind = type(result)
    if kind in DONE:
        return result
    if kind in LAZY or isinstance(result, LATER):
        _refuse(result, func)
    if hasattr(kind, "__await__"):
        is_over = getattr(result, "done", None)
        if isinstance(result, Coroutine) or is_over is None or not is_over():
            _refuse(result, func)
    return result


def awaitable(result: Any, func: Callable[..., Any]) -> Awaitable[Any]:
    """Return *result* of *func*, if it can be awaited."""
    if not isinstance(result, Awaitable):
        close(result)
        raise Misuse(f"{title(func)} returned {_shown(result)}, which cannot be awaited: give an async def function")
    return result


def close(result: Any) -> None:
    """Close *result* before it begins, so that Python does not warn that it was never awaited."""
    if isinstance(result, BLOCKS):
        result = result.gen
    if isinstance(result, Awaitable) and hasattr(result, "add_done_callback"):
        result.cancel()  # type: ignore[attr-defined]  # a task, which would run in the loop's next turn
    elif isinstance(result, Coroutine | types.GeneratorType):
        result.close()


def title(func: object) -> str:
    """What *func* is called in an error."""
    return getattr(func, "__qualname__", None) or repr(func)


_LATER = "its body runs only after the call has returned, when nothing is held any longer"


def _refuse(result: Any, func: Callable[..., Any]) -> None:
    close(result)
    how = "awaited" if isinstance(result, Awaitable) else "entered" if isinstance(result, BLOCKS) else "iterated"
    raise Misuse(
        f"{title(func)} returned {_shown(result)}, whose work would begin only when it is {how}: after the call, when "
        "nothing is held any longer. The work was not begun; let the function do it and return the result"
    )


def _shown(result: object) -> str:
    kind = type(result).__name__
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    return "None" if result is None else f"{article} {kind}"


def _is(kind: str, func: Any) -> bool:
    import inspect  # noqa: PLC0415 - costs 5 ms at start, and only decorators need it

    return any(getattr(inspect, kind)(each) for each in _inner(func))


def _inner(func: Any) -> Iterator[Any]:
    """*func*, and what a call of it calls at once: of a partial, a method, or an object that can be called."""
    while func is not None:
        yield func
        if isinstance(func, functools.partial):
            func = func.func
        elif isinstance(func, types.MethodType):
            func = func.__func__
        elif isinstance(func, types.FunctionType | type):
            return
        else:
            func = getattr(type(func), "__call__", None)  # noqa: B004 - what it is, not whether
            func = func if isinstance(func, types.FunctionType) else None


@functools.cache
def _makers() -> frozenset[types.CodeType]:
    """The code that ``@contextmanager`` and ``@asynccontextmanager`` put around a generator."""

    def nothing() -> types.GeneratorType[None, None, None]:
        raise AssertionError("it is never called")

    async def nothing_async() -> AsyncIterator[None]:
        yield

    blocking: Any = contextlib.contextmanager(nothing)
    other: Any = contextlib.asynccontextmanager(nothing_async)
    return frozenset({blocking.__code__, other.__code__})
