"""A function whose ``try`` begins before its first bytecode, for what has something to give back from then on.

CPython looks for signals on entering a function written in Python, before anything of it has run. Ctrl-C in that moment
of an ``__exit__`` comes out of it past the ``try`` inside: the body has been left, nobody knows what it held, and the
lease would be renewed until the process ends. What an exception is caught by is a table beside the bytecode, so one
more entry of it is enough. That costs nothing as long as nothing is raised.

https://github.com/python/cpython/blob/main/InternalDocs/exception_handling.md describes the table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

KNOWN = sys.implementation.name == "cpython" and (3, 11) <= sys.version_info < (3, 14)
"""Whether the table is known to be as we read it: CI runs on these versions. Elsewhere that one moment stays open."""


def whole_try(function: F) -> F:
    """Let the first ``try`` in *function* hold from the moment of the call on."""
    if KNOWN:
        code = function.__code__
        function.__code__ = code.replace(co_exceptiontable=_from_the_start(code.co_exceptiontable))
    return function


def _from_the_start(table: bytes) -> bytes:
    """*table* with an entry in front, for what comes before its first one, that leads to the same handler.

    An entry is start, length, handler and depth of the stack, each in groups of six bits. Bit 7 is set where an entry
    begins, bit 6 where the number goes on in the next byte.
    """
    assert table[0] & 0xC0 == 0x80, "the try does not begin the function: its start takes more than one byte"
    start = table[0] & 0x3F
    handler = next(at for at in range(1, len(table)) if not table[at] & 0x40) + 1
    end = next((at for at in range(1, len(table)) if table[at] & 0x80), len(table))
    return bytes([0x80, start]) + table[handler:end] + table
