"""The `locked` decorator: a function that runs under a lock whose name comes from its arguments."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dibs.core.deferred import check_async, check_blocking, done, title
from dibs.core.template import Template

if TYPE_CHECKING:
    import inspect
    from contextlib import AbstractAsyncContextManager

    from dibs.core.lease import Lease

P = ParamSpec("P")
R = TypeVar("R")


def locked_async(
    make: Callable[[str], AbstractAsyncContextManager[Lease]], template: str, func: Callable[P, Awaitable[R]]
) -> Callable[P, Awaitable[R]]:
    """Wrap an ``async def`` function."""
    check_async(func, "locked")
    call = Called(func, template)

    @functools.wraps(func)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        async with make(call.name(args, kwargs)) as lease:
            return done(await func(*args, **call.given(kwargs, lease)), func)

    return run


def locked_blocking(make: Callable[[str], Any], template: str, func: Callable[P, R]) -> Callable[P, R]:
    """Wrap a plain function; *make* gives a blocking lock."""
    check_blocking(func, "locked")
    call = Called(func, template)

    @functools.wraps(func)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with make(call.name(args, kwargs)) as lease:
            return done(func(*args, **call.given(kwargs, lease)), func)

    return run


class Called:
    """What a decorator knows of the function: its parameters, and the texts that are made of them.

    *name* is the template of the name, *more* those of other texts. *given* is what the decorator passes to the
    function, if it has a keyword-only parameter of that name.
    """

    def __init__(self, func: Callable[..., Any], name: str = "", *more: str, given: str = "lease") -> None:
        import inspect  # noqa: PLC0415 - costs 5 ms at start, and only decorators need it

        self._signature = inspect.signature(func)
        self._given = given if _is_keyword_only(self._signature.parameters.get(given)) else ""
        if self._given:  # it comes from us, so callers leave it out and names cannot be made of it
            others = [each for each in self._signature.parameters.values() if each.name != given]
            self._signature = self._signature.replace(parameters=others)
        self.parameters, owner = frozenset(self._signature.parameters), title(func)
        self._name = Template(name, self.parameters, owner)
        self._more = [Template(text, self.parameters, owner, name=False) for text in more]

    def name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The name for one call."""
        return self._name.filled(self._arguments(args, kwargs))[0]

    def texts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
        """All texts for one call, the name first, and what they are made of."""
        arguments = self._arguments(args, kwargs)
        filled = [each.filled(arguments) for each in (self._name, *self._more)]
        return [text for text, _ in filled], [value for _, values in filled for value in values]

    def given(self, kwargs: Any, value: object) -> Any:
        """The arguments, and what the function gets of us."""
        return {**kwargs, self._given: value} if self._given else kwargs

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments


def _is_keyword_only(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and parameter.kind is parameter.KEYWORD_ONLY
