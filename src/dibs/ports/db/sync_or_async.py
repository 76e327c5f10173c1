"""One call for both colours: it has the colour of the connection, or client, that the caller hands in.

What is done is written once, as ``async def``. With a connection for blocking code none of its awaits suspends, and
the call returns when it is done; with one for async code the call returns something to await.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from dibs.runtime import run

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
O = TypeVar("O", bound="Opened")  # noqa: E741


class AsyncConnection(Protocol):
    """A connection for async code: what it does is awaited."""

    def close(self) -> Coroutine[Any, Any, Any]:
        """Close it."""


class BlockingConnection(Protocol):
    """A connection for blocking code."""

    def close(self) -> None:
        """Close it."""


class Opened:
    """A connection as our code sees it, which passes it on and always awaits."""

    blocking: bool


class Step(Protocol[P, R_co]):
    """Something done on a connection: awaited if the connection is for async code, else done when it returns."""

    @overload
    def __call__(self, conn: Opened, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...
    @overload
    def __call__(self, conn: AsyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...
    @overload
    def __call__(self, conn: BlockingConnection, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class Method(Protocol, Generic[P, R_co]):
    """A `Step` as a method."""

    def __get__(self, owner: object, kind: type | None = None) -> Step[P, R_co]:
        """Bind it."""


def step_on(
    opened: Callable[[Any], O],
) -> Callable[[Callable[Concatenate[O, P], Coroutine[Any, Any, R]]], Step[P, R]]:
    """Let a function that is written against what *opened* makes of a connection take any connection."""

    def decorate(work: Callable[Concatenate[O, P], Coroutine[Any, Any, R]]) -> Step[P, R]:
        @functools.wraps(work)
        def step(conn: Any, /, *args: P.args, **kwargs: P.kwargs) -> object:
            if isinstance(conn, Opened):
                return work(cast("O", conn), *args, **kwargs)
            ours = opened(conn)
            return _done(ours, work(ours, *args, **kwargs))

        return cast("Step[P, R]", step)

    return decorate


def method_on(
    opened: Callable[[Any], O],
) -> Callable[[Callable[Concatenate[S, O, P], Coroutine[Any, Any, R]]], Method[P, R]]:
    """Do the same for a method."""

    def decorate(work: Callable[Concatenate[S, O, P], Coroutine[Any, Any, R]]) -> Method[P, R]:
        @functools.wraps(work)
        def step(self: S, conn: Any, /, *args: P.args, **kwargs: P.kwargs) -> object:
            if isinstance(conn, Opened):
                return work(self, cast("O", conn), *args, **kwargs)
            ours = opened(conn)
            return _done(ours, work(self, ours, *args, **kwargs))

        return cast("Method[P, R]", step)

    return decorate


def _done(ours: Opened, work: Coroutine[Any, Any, R]) -> object:
    return run(work) if ours.blocking else work
