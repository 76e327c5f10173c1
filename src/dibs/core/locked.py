"""The `locked` decorator: a function that runs under a lock whose name comes from its arguments."""

from __future__ import annotations

import functools
import string
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dibs.errors import Misuse

if TYPE_CHECKING:
    import inspect

    from dibs.core.lock import Lock

P = ParamSpec("P")
R = TypeVar("R")


def locked_async(
    make: Callable[[str], Lock], template: str, func: Callable[P, Awaitable[R]]
) -> Callable[P, Awaitable[R]]:
    """Wrap an ``async def`` function."""
    check_async(func, "locked")
    call = Called(func, template)

    @functools.wraps(func)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        async with make(*call.texts(args, kwargs)) as lease:
            return await func(*args, **call.given(kwargs, lease))

    return run


def locked_blocking(make: Callable[[str], Any], template: str, func: Callable[P, R]) -> Callable[P, R]:
    """Wrap a plain function; *make* gives a blocking lock."""
    check_blocking(func, "locked")
    call = Called(func, template)

    @functools.wraps(func)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with make(*call.texts(args, kwargs)) as lease:
            return func(*args, **call.given(kwargs, lease))

    return run


def check_async(func: Callable[..., Any], decorator: str) -> None:
    """Refuse what is not an ``async def`` function."""
    import inspect  # noqa: PLC0415 - costs 5 ms at start, and only decorators need it

    if not _is(inspect.iscoroutinefunction, func):
        raise Misuse(f"{_title(func)} is not an async def function; decorate it with the blocking dibs.{decorator}")


def check_blocking(func: Callable[..., Any], decorator: str) -> None:
    """Refuse what is async."""
    import inspect  # noqa: PLC0415 - see above

    if _is(inspect.iscoroutinefunction, func) or _is(inspect.isasyncgenfunction, func):
        raise Misuse(f"{_title(func)} is async: waiting would block its loop; decorate it with dibs.aio's {decorator}")


class Called:
    """What a decorator knows of the function: its parameters, and the texts that are made of them.

    *given* is what the decorator passes to it, if it has a keyword-only parameter of that name.
    """

    def __init__(self, func: Callable[..., Any], *templates: str, given: str = "lease") -> None:
        import inspect  # noqa: PLC0415 - see above

        if _is(inspect.isgeneratorfunction, func):
            raise Misuse(f"{_title(func)} is a generator: its body runs after the call, without the lock")
        self._templates, self._signature = templates, inspect.signature(func)
        self._given = given if _is_keyword_only(self._signature.parameters.get(given)) else ""
        if self._given:  # it comes from us, so callers leave it out and names cannot be made of it
            others = [each for each in self._signature.parameters.values() if each.name != given]
            self._signature = self._signature.replace(parameters=others)
        for template in templates:
            self._check(template, func)

    def texts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
        """The templates, filled in for one call."""
        arguments = self._arguments(args, kwargs)
        return tuple(template.format(**arguments) for template in self._templates)

    def values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[list[str]]:
        """What the templates name in one call, one by one, which their texts do not tell: ``a:b`` may be two or one.

        Each is its type and its text, so that 7 is not "7"; one with a format is only the text that this makes of it.
        """
        arguments, told = self._arguments(args, kwargs), list[list[str]]()
        for template in self._templates:
            for _, field, spec, conversion in string.Formatter().parse(template):
                if field is not None and (spec or conversion):
                    how = f"!{conversion}" if conversion else ""
                    told.append([f"{{{field}{how}:{spec}}}".format(**arguments)])
                elif field is not None:
                    value = string.Formatter().get_field(field, (), arguments)[0]
                    told.append([type(value).__qualname__, format(value)])
        return told

    def given(self, kwargs: Any, value: object) -> Any:
        """The arguments, and what the function gets of us."""
        return {**kwargs, self._given: value} if self._given else kwargs

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def _check(self, template: str, func: Callable[..., Any]) -> None:
        for field in _fields(template, template):
            if field.replace("[", ".").split(".")[0] not in self._signature.parameters:
                raise Misuse(f"the name {template!r} has {{{field}}}, but {_title(func)} has no such parameter")


def _fields(template: str, whole: str) -> Iterator[str]:
    """What stands in braces in *template*, also inside the format of a field; *whole* is for the error."""
    try:
        for _, field, spec, conversion in string.Formatter().parse(template):
            if field is not None:
                yield field
                yield from _fields(spec or "", whole)
            if conversion not in {None, "r", "s", "a"}:
                raise Misuse(f"the name {whole!r} has !{conversion}: there are only !r, !s and !a")
    except Misuse:
        raise
    except ValueError as exc:
        raise Misuse(f"the name {whole!r} cannot be filled in: {exc}; a brace as such is written twice") from exc


def _is(kind: Callable[[Any], bool], func: Callable[..., Any]) -> bool:
    """Whether *func* is of that kind, also when it is an object that can be called."""
    return kind(func) or kind(getattr(func, "__call__", None))  # noqa: B004 - what it is, not whether


def _title(func: Callable[..., Any]) -> str:
    return getattr(func, "__qualname__", None) or repr(func)


def _is_keyword_only(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and parameter.kind is parameter.KEYWORD_ONLY
