"""Tells objects that their process was forked or that it ends, without keeping them alive."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable

_forked: list[weakref.WeakMethod[Callable[[], None]]] = []
_ending: list[weakref.WeakMethod[Callable[[], None]]] = []


def after_fork(call: Callable[[], None]) -> None:
    """Do *call*, a bound method, in every forked child while its owner lives."""
    _add(_forked, call)


def at_exit(call: Callable[[], None]) -> None:
    """Do *call*, a bound method, at the end of this interpreter while its owner lives."""
    _add(_ending, call)


def _add(calls: list[weakref.WeakMethod[Callable[[], None]]], call: Callable[[], None]) -> None:
    calls[:] = [known for known in calls if known() is not None]
    calls.append(weakref.WeakMethod(call))


def _do(calls: list[weakref.WeakMethod[Callable[[], None]]]) -> None:
    for known in list(calls):
        call = known()
        if call is not None:
            call()


os.register_at_fork(after_in_child=lambda: _do(_forked))
atexit.register(lambda: _do(_ending))
