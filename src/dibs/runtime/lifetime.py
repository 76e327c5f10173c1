"""Tells objects that their process was forked or that it ends, without keeping them alive."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable
from types import MethodType

Calls = dict[int, tuple[weakref.ref[object], Callable[[object], None]]]
"""By what is one step of a dictionary: threads add at any moment, and the forgotten are taken out in a collection."""

ENDED_BY_US = 76
"""What `end_now` exits with: what the command line has for a lost lease."""

_forking: Calls = {}
_has_forked: Calls = {}
_forked: Calls = {}
_ending: Calls = {}
_ended = False


def around_fork(before: Callable[[], None], after: Callable[[], None]) -> None:
    """Do *before* in this process ahead of every fork and *after* in it behind, two bound methods, while their
    owner lives.

    So that no thread is in the middle of something at that moment, which the child could never finish.
    """
    _add(_forking, before)
    _add(_has_forked, after)


def after_fork(call: Callable[[], None]) -> None:
    """Do *call*, a bound method, in every forked child while its owner lives."""
    _add(_forked, call)


def at_exit(call: Callable[[], None]) -> None:
    """Do *call*, a bound method, at the end of this interpreter while its owner lives."""
    _add(_ending, call)


def end_now(why: str) -> None:
    """End this process, without a chance for anybody in it to object or to clean up."""
    with contextlib.suppress(OSError):
        os.write(2, f"dibs: {why}\n".encode(errors="backslashreplace"))
    os._exit(ENDED_BY_US)


def ending() -> bool:
    """Whether the end of this interpreter has begun: of the threads only daemons are left, and what was open closes."""
    return _ended


def _end() -> None:
    global _ended  # noqa: PLW0603 - one interpreter, one end
    _ended = True
    _do(_ending)


def _add(calls: Calls, call: Callable[[], None]) -> None:
    assert isinstance(call, MethodType)
    owner = weakref.ref(call.__self__, lambda gone: calls.pop(id(gone), None))
    calls[id(owner)] = owner, call.__func__


def _do(calls: Calls) -> None:
    for reference, call in list(calls.values()):
        owner = reference()
        if owner is not None:
            call(owner)


os.register_at_fork(
    before=lambda: _do(_forking), after_in_parent=lambda: _do(_has_forked), after_in_child=lambda: _do(_forked)
)
atexit.register(_end)
