"""Tells objects that their process was forked or that it ends, without keeping them alive."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
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

_getpid = os.getpid
_pid = os.getpid()
_looking: dict[int, threading.RLock] = {}
"""For each process a lock of its own: one that was inherited may be held by a thread that only the parent has."""


def around_fork(before: Callable[[], None], after: Callable[[], None]) -> None:
    """Do *before* in this process ahead of every fork and *after* in it behind, two bound methods, while their
    owner lives.

    So that no thread is in the middle of something at that moment, which the child could never finish.
    """
    _add(_forking, before)
    _add(_has_forked, after)


def after_fork(call: Callable[[], None]) -> None:
    """Do *call*, a bound method, in every forked child while its owner lives; see `look`."""
    _add(_forked, call)


def look() -> None:
    """Notice a fork that Python was not told of, and do now what its hook would have done.

    uWSGI forks in C, and so does other code: what is open then seems to be ours, and is the parent's. So this comes
    first wherever a client is used. It costs one system call.
    """
    if _getpid() != _pid:
        _in_child()


def at_exit(call: Callable[[], None]) -> None:
    """Do *call*, a bound method, at the end of this interpreter while its owner lives, and not in forked children."""
    _add(_ending, call)


def end_now(why: str) -> None:
    """End this process, without a chance for anybody in it to object or to clean up."""
    with contextlib.suppress(OSError):
        os.write(2, f"dibs: {why}\n".encode(errors="backslashreplace"))
    os._exit(ENDED_BY_US)


def ending() -> bool:
    """Whether the end of this interpreter has begun: of the threads only daemons are left, and what was open closes."""
    return _ended


def _in_child() -> None:
    """Tell all that they are in a child. Of several threads that come here at once, one does it and the others wait."""
    global _pid  # noqa: PLW0603 - there is one process
    pid = _getpid()
    with _looking.setdefault(pid, threading.RLock()):
        if _pid != pid:
            _ending.clear()
            _do(_forked)
            _pid = pid


def _before_fork() -> None:
    look()
    _do(_forking)


def _end() -> None:
    global _ended  # noqa: PLW0603 - one interpreter, one end
    look()
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


os.register_at_fork(before=_before_fork, after_in_parent=lambda: _do(_has_forked), after_in_child=_in_child)
atexit.register(_end)
