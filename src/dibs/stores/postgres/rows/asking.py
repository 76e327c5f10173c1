"""How lease rows are asked for, waited for and given back: which statements are sent when."""

from __future__ import annotations

import contextlib

from dibs.errors import LossReason, StoreUnavailable
from dibs.holder import Holder, here
from dibs.runtime import Runtime
from dibs.stores.postgres.facts import Person, holder
from dibs.stores.postgres.port.listener import Ear
from dibs.stores.postgres.port.pool import Port
from dibs.stores.postgres.port.statement import Call, Row, Rows, Transaction, Value
from dibs.stores.postgres.port.values import number, text
from dibs.stores.postgres.rows import grant as sql
from dibs.stores.postgres.rows import share_sql as postgres_shares
from dibs.stores.store import Ask, Busy, Grant

NEAR_LOOK = 1.0
"""Seconds between two looks of those near the front: a message wakes them, unless their first stands still."""

BLIND_LOOK = 0.1
"""Seconds between two looks of one that cannot be woken."""

LAST_LOOK = 0.1
"""Seconds before the end of a wait at which one asks again: the refusal then names who has the lock, not who had it."""

NEAR = 3
"""Places from the front."""

STEP = 0.005
"""Seconds by which each place in line asks later, so that those at the front act first and alone."""


class Asking:
    """One namespace of a database, as one client asks for it."""

    def __init__(self, port: Port, ear: Ear, runtime: Runtime, namespace: str) -> None:
        self.port, self._ear, self._runtime, self.space = port, ear, runtime, text(namespace)
        self._near: set[str] = set()
        """Tokens of those who wait near the front."""
        self._in_line: set[str] = set()
        """Tokens that may have a ticket."""
        self._known: tuple[int, tuple[bytes, bytes, bytes]] = (0, (b"", b"", b""))

    # --- the beginnings of every statement -------------------------------------------------------------------

    def name(self, name: str) -> tuple[bytes, bytes]:
        """Whose name, and which."""
        return self.space, text(name)

    def me(self, note: str) -> tuple[bytes, ...]:
        """This process."""
        pid = self._runtime.pid()
        if self._known[0] != pid:
            who = here(pid, "", "")
            self._known = (pid, (text(who.host), number(pid), text(who.user)))
        return *self._known[1], text(note)

    # --- taking ------------------------------------------------------------------------------------------------

    async def grant(self, ask: Ask, until: float) -> Grant | Busy:
        """One upsert if the lock is free and nobody waits; else one transaction that decides and queues."""
        if ask.queue:  # it has been told that the lock is taken
            return await self._decide(ask, until) or await self._take(ask, until) or await self._insist(ask, until)
        return await self._take(ask, until) or await self._look(ask, until) or await self._insist(ask, until)

    def taking(self, ask: Ask) -> tuple[bytes, ...]:
        """The values of the upsert."""
        return (*self.name(ask.name), ask.token.encode(), number(ask.ttl), *self.me(ask.note))

    async def _take(self, ask: Ask, until: float) -> Grant | None:
        [rows] = await self.port.do(until, [Call(sql.TAKE, self.taking(ask))], token=ask.token)
        return Grant(int(rows[0][0] or 0), ask.ttl) if rows else None

    async def _look(self, ask: Ask, until: float) -> Busy | None:
        """Who else has it; None if that takes a decision."""
        [rows] = await self.port.do(until, [self.answer(ask)], token=ask.token)
        return self.held_by_another(ask, rows)

    def answer(self, ask: Ask) -> Call:
        """Look at the row."""
        return Call(sql.ANSWER, (*self.name(ask.name), ask.token.encode()))

    def held_by_another(self, ask: Ask, rows: Rows) -> Busy | None:
        """What that look says, if it says that another holds the lock."""
        return self._refusal(ask, rows[0]) if rows and rows[0][9] == "t" and rows[0][8] != ask.token else None

    async def _insist(self, ask: Ask, until: float) -> Grant | Busy:
        answer = await self._decide(ask, until)
        if answer is None:
            raise self.row_is_gone(ask)
        return answer

    def row_is_gone(self, ask: Ask) -> StoreUnavailable:
        """There was a row twice, and none between."""
        return StoreUnavailable(self.port.source.shown, f"the row of {ask.name!r} was deleted just now; ask again")

    async def _decide(self, ask: Ask, until: float) -> Grant | Busy | None:
        """Grant or queue while the row is locked; None if there is no row."""
        rows = await self.port.do(until, await self.decision(ask, until), token=ask.token)
        return self.decided(ask, rows)

    def decided(self, ask: Ask, rows: list[Rows]) -> Grant | Busy | None:
        """What the statements of a `decision` returned."""
        if rows[2]:
            self.served(ask.token)
            return Grant(int(rows[2][0][0] or 0), ask.ttl)
        return self._refusal(ask, rows[-1][0]) if rows[-1] else None

    async def decision(self, ask: Ask, until: float) -> list[Call]:
        """The statements that grant or queue while the row is locked; who queues listens from now on."""
        name, token, me = self.name(ask.name), ask.token.encode(), self.me(ask.note)
        queue = [Call(sql.QUEUE, (*name, token, *await self.ear(ask, until), *me))] if ask.queue else []
        return [
            Call(sql.LOCK, name),
            Call(sql.STRIKE_GONE, (*name, token)),
            Call(sql.DECIDE, (*name, token, number(ask.ttl), *me)),
            *queue,
            Call(sql.SAY_WHO_WAITS, name),
            self.answer(ask),
        ]

    async def ear(self, ask: Ask, until: float) -> tuple[Value, Value]:
        """How *ask* is called from now on: the channel, and the server process that listens; None if it cannot be."""
        self._in_line.add(ask.token)
        listener = await self._ear.listen(ask.token, until)
        return (None, None) if listener is None else (listener.channel.encode(), number(listener.pid))

    def waits_behind(self, token: str, ahead: int) -> None:
        """*token* stands in line behind so many."""
        if ahead <= NEAR:
            self._near.add(token)

    def _refusal(self, ask: Ask, row: Row) -> Busy:
        held, reserved, first, ahead = row[9], float(row[10] or 0), Person(*row[11:16]), int(row[16] or 0)
        if ask.queue:
            self.waits_behind(ask.token, ahead)
        if held == "t":
            last = holder(row)
            return Busy(last._replace(name=ask.name), until_end(last) + STEP * ahead)
        if first.host is None:
            raise StoreUnavailable(
                self.port.source.shown,
                f"the fence of {ask.name!r} has reached its last number, {sql.LAST_FENCE}; this takes 285 years or a "
                "clock that was set far ahead: use another name",
            )
        return Busy(first.holder(ask.name, None, None), max(0.0, reserved) + STEP * ahead)

    def served(self, token: str) -> None:
        """*token* waits no more."""
        self._ear.forget(token)
        self._near.discard(token)
        self._in_line.discard(token)

    # --- waiting -----------------------------------------------------------------------------------------------

    async def wait(self, ask: Ask, within: float) -> None:
        """Wait for the message; look now and then, without writing, where none may come."""
        until = self._runtime.now() + within
        while (left := until - self._runtime.now()) > 0:
            if ask.token not in self._ear:
                await self._runtime.sleep(min(left, BLIND_LOOK * (0.8 + 0.4 * self._runtime.random())))
            elif await self._ear.wait(ask.token, min(left, NEAR_LOOK) if ask.token in self._near else left):
                return
            left = until - self._runtime.now()
            if left > 0 and await self._worth_asking(ask, until):
                return

    async def _worth_asking(self, ask: Ask, until: float) -> bool:
        look = Call(sql.LOOK, self.name(ask.name))
        if ask.share is not None:
            look = Call(postgres_shares.LOOK, (*self.name(ask.name), ask.token.encode()))
        [rows] = await self.port.do(until, [look])
        return not rows or rows[0][0] == "t"

    # --- giving back -------------------------------------------------------------------------------------------

    async def release(self, name: str, token: str, until: float, mark: float = 0.0) -> LossReason | None:
        """One update; if it says that somebody may wait, one message to the first.

        With a *mark*, an ask of the token that still comes in so many seconds is refused.
        """
        if mark:
            return await self._release_for_good(name, token, until, mark)
        waited = token in self._in_line
        [rows] = await self.port.do(until, [Call(sql.RELEASE, (*self.name(name), token.encode()))], token=token)
        if rows and not waited:
            return await self._released(name, rows[0], until)
        reason = await self._left(name, token, until, waited=waited)
        self.served(token)
        return await self._released(name, rows[0], until) if rows else reason

    async def _left(self, name: str, token: str, until: float, *, waited: bool) -> LossReason:
        """Why nothing was given back. That it was not ours is known, also if nobody can say why."""
        try:
            return await self._leave(name, token, until)
        except StoreUnavailable:
            if waited:
                raise
            return LossReason.TAKEN

    async def _release_for_good(self, name: str, token: str, until: float, mark: float) -> LossReason | None:
        both, own = self.name(name), token.encode()
        calls: Transaction = [
            Call(sql.BE_THERE, both),
            Call(sql.LOCK, both),
            Call(sql.RELEASE, (*both, own)),
            Call(sql.MARK, (*both, own, number(mark))),
            Call(sql.SAY_WHO_WAITS, both),
            Call(sql.WHY_NOT, (*both, own)),
        ]
        rows = await self.port.do(until, calls, [Call(sql.WAKE, both)], token=token)
        self.served(token)
        if rows[2]:
            return None if rows[2][0][0] == "t" else LossReason.EXPIRED
        return LossReason.EVICTED if rows[5] and rows[5][0][1] == "t" else LossReason.TAKEN

    async def _released(self, name: str, row: Row, until: float) -> LossReason | None:
        held, waiting = row
        if waiting == "t":
            await self.wake(name, until)
        return None if held == "t" else LossReason.EXPIRED

    async def _leave(self, name: str, token: str, until: float) -> LossReason:
        """Give the ticket back. If the lock is free and was kept for us, the next one must hear of it."""
        both = self.name(name)
        leave: Transaction = [
            Call(sql.LOCK, both),
            Call(sql.LEAVE, (token.encode(),)),
            Call(sql.SAY_WHO_WAITS, both),
            Call(sql.WHY_NOT, (*both, token.encode())),
        ]
        rows = await self.port.do(until, leave, [Call(sql.WAKE, both)], token=token)
        ours, evicted = rows[3][0] if rows[3] else (None, None)
        return LossReason.EVICTED if evicted == "t" else LossReason.EXPIRED if ours == "t" else LossReason.TAKEN

    async def wake(self, name: str, until: float) -> None:
        """Call the first in line. What freed the lock is done: who is not called looks for itself."""
        with contextlib.suppress(StoreUnavailable):
            await self.port.do(until, [Call(sql.WAKE, self.name(name))])


def time_to_look(within: float, busy: Busy) -> float:
    """What is waited of *within*: a little less if the lock is not free by then, to see once more who has it."""
    return within - LAST_LOOK if 2 * LAST_LOOK < within < busy.retry_in else within


def until_end(last: Holder) -> float:
    """Seconds until the lease of *last* is over, if it is not renewed."""
    return sql.NO_END_LOOK if last.expires_in is None else max(0.0, last.expires_in)
