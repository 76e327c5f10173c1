"""How one command under a lock went, as an exit code, as lines for people and as JSON for programs."""

from __future__ import annotations

from typing import Any

from dibs.cli.child import CannotExecError
from dibs.cli.exits import Exit, exit_for
from dibs.cli.lines import say, say_json
from dibs.cli.signals import Interrupted
from dibs.cli.supervise import Ending
from dibs.cli.watch import Cause
from dibs.errors import DibsError, LeaseLost, NotAcquired, Skipped, StoreUnavailable

WHY = {
    Exit.NOT_ACQUIRED: "busy",
    Exit.LOST: "lost",
    Exit.UNAVAILABLE: "unavailable",
    Exit.USAGE: "usage",
    Exit.MAX_HOLD: "max_hold",
}
"""The word in JSON for what an exit code means here."""


class RunOutcome:
    """What is known so far; the last word on the exit code is spoken when the lock was given back."""

    def __init__(self, verb: str, name: str) -> None:
        self.exit = 0
        self.ran = False
        """Whether the command was started."""
        self.signal: int | None = None
        """The signal that ended the command, or the wait for its lock."""
        self._silent = False
        self._lines: list[str] = []
        self._facts: dict[str, Any] = {"dibs": verb, "name": name, "acquired": False}

    def acquired(self, fence: int, waited: float) -> None:
        """The lock was ours."""
        self._facts |= {"acquired": True, "fence": fence, "waited": round(waited, 3)}

    def begun(self, slot: str, attempt: int, fence: int) -> None:
        """The slot was ours to run."""
        self._facts |= {"acquired": True, "fence": fence, "slot": slot, "attempt": attempt}

    def skipped(self, skipped: Skipped, *, verbose: bool) -> None:
        """There was nothing to do, which is told to people only if they want to hear it."""
        self._end(Exit.DONE, "skipped", *([str(skipped)] if verbose else []))
        self._facts |= {"slot": skipped.slot, "reason": str(skipped.reason), "detail": skipped.detail}

    def failed(self, error: DibsError) -> None:
        """It ended before the command could start."""
        code = exit_for(error)
        self._end(code, WHY.get(code, "bug"), str(error))
        if isinstance(error, NotAcquired):
            self._facts["waited"] = round(error.waited, 3)
            self._facts["holder"] = error.holder._asdict() if error.holder else None

    def interrupted(self, signal: Interrupted) -> None:
        """A signal came before the command was started."""
        self._end(signal.exit, "interrupted")
        self._facts["signal"] = self.signal = signal.signum

    def cannot_exec(self, error: CannotExecError) -> None:
        """The command could not be started."""
        self._end(error.exit, "cannot_exec", str(error))

    def ended(self, ending: Ending) -> None:
        """The command has ended."""
        self._end(ending.exit, "exited" if ending.code >= 0 else "signalled")
        self.ran, self.signal = True, -ending.code if ending.code < 0 else None
        self._facts["command"] = {"exit": ending.code} if ending.code >= 0 else {"signal": -ending.code}
        if ending.cause is Cause.LOST:
            self._end(Exit.LOST, "lost")
        elif ending.cause is Cause.MAX_HOLD:
            self._end(Exit.MAX_HOLD, "max_hold")

    def lost(self, error: LeaseLost, *, counts: bool) -> None:
        """The lease turned out to be lost when it was given back; it decides the exit code if it *counts*."""
        self._facts["lost"] = str(error.reason)
        if counts and self.exit != Exit.LOST:
            self._end(Exit.LOST, "lost", f"{error} (the command had ended with {self.exit})")

    def not_given_back(self, error: StoreUnavailable, left: float) -> None:
        """The store could not be told that the lock is free."""
        self._facts["given_back"] = False
        self._lines.append(f"the lock could not be given back, it ends by itself within {left:.0f} s: {error}")

    def excused(self, code: int, *, silent: bool) -> None:
        """Exit with *code* if the lock was not acquired, and say nothing of it to people if *silent*."""
        if self._facts.get("why") == WHY[Exit.NOT_ACQUIRED]:
            self.exit, self._silent = code, silent

    def report(self, *, json: bool) -> int:
        """Say it, and return the exit code."""
        if json:
            say_json({**self._facts, "exit": int(self.exit), "messages": self._lines})
        elif not self._silent:
            for line in self._lines:
                say(line)
        return int(self.exit)

    def _end(self, code: int, why: str, *lines: str) -> None:
        self.exit = code
        self._facts["why"] = why
        self._lines += lines
