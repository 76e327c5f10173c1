"""The exit codes of the command line, and which error ends with which."""

from __future__ import annotations

from enum import IntEnum

from dibs.errors import DibsError, LeaseLost, Misuse, NotAcquired, StoreUnavailable


class Exit(IntEnum):
    """What `dibs` exits with by itself; `dibs run` otherwise passes on what the command exits with.

    They are those of sysexits.h and of the shell where these have one, so that nothing new has to be learned.
    """

    DONE = 0
    USAGE = 64
    """The call cannot be right (EX_USAGE). Nothing was sent."""
    UNAVAILABLE = 69
    """The store cannot be reached, or its answer never came (EX_UNAVAILABLE)."""
    BUG = 70
    """An error that dibs does not know (EX_SOFTWARE): please report it with its traceback."""
    CANNOT_WRITE = 74
    """The answer could not be written (EX_IOERR)."""
    NOT_ACQUIRED = 75
    """Somebody else holds the lock; try again later (EX_TEMPFAIL)."""
    LOST = 76
    """The lease was lost: the command may have run beside another."""
    MAX_HOLD = 124
    """The command ran for longer than --max-hold, and was ended; as timeout(1) has it."""
    CANNOT_EXEC = 126
    """The command was found and could not be run."""
    NOT_FOUND = 127
    """The command was not found."""
    SIGNAL = 128
    """Plus n: ended by signal n."""


def exit_for(error: DibsError) -> Exit:
    """Tell the code that *error* ends with."""
    if isinstance(error, Misuse):
        return Exit.USAGE
    if isinstance(error, NotAcquired):
        return Exit.NOT_ACQUIRED
    if isinstance(error, LeaseLost):
        return Exit.LOST
    return Exit.UNAVAILABLE if isinstance(error, StoreUnavailable) else Exit.BUG
