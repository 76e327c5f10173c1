"""Keeps connections that must never be closed: a forked child has no right to close its parent's."""

from __future__ import annotations

_kept: list[object] = []


def never_close(connection: object) -> None:
    """Keep *connection* until this process has ended, and through the end of its interpreter too.

    Closing what the parent opened would, in the worst case, fold the parent's log into the database and delete it
    under those who use it. A list alone would not do: the interpreter empties every module when it ends.
    """
    import ctypes  # noqa: PLC0415 - costs 3 ms, and hardly anybody needs it

    _kept.append(connection)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
