"""How parts of a name are asked for and given back in PostgreSQL: which statements are sent when."""

from __future__ import annotations

from collections.abc import Sequence

from dibs.errors import LossReason, StoreUnavailable
from dibs.holder import here, signature
from dibs.runtime import Runtime
from dibs.share import Share, other_slots
from dibs.stores.postgres.facts import Person, holder
from dibs.stores.postgres.port.statement import Call, Row
from dibs.stores.postgres.port.values import number, text
from dibs.stores.postgres.rows import grant as whole
from dibs.stores.postgres.rows import share_sql as sql
from dibs.stores.postgres.rows.asking import STEP, Asking, until_end
from dibs.stores.postgres.rows.lease import renewing
from dibs.stores.store import Ask, Busy, Claim, Grant


class Sharing:
    """One namespace of a database, as one client asks for parts in it."""

    def __init__(self, asking: Asking, runtime: Runtime) -> None:
        self._asking, self._runtime = asking, runtime

    async def grant(self, ask: Ask, share: Share, until: float) -> Grant | Busy:
        """One transaction that grants or queues while the row of the name is locked."""
        asking, name, token = self._asking, self._asking.name(ask.name), ask.token.encode()
        me = asking.me(ask.note)
        queue = [Call(sql.QUEUE, (*name, token, *await asking.ear(ask, until), *me))] if ask.queue else []
        calls = [
            Call(whole.BE_THERE, name),
            Call(whole.LOCK, name),
            Call(whole.STRIKE_GONE, (*name, token)),
            Call(sql.TIDY, name),
            Call(sql.SETTLE, name),
            Call(sql.STRIKE_LATE, (*name, token)),
            Call(sql.GRANT, (*name, token, number(ask.ttl), *me)),
            *queue,
            Call(whole.SAY_WHO_WAITS, name),
            Call(sql.FORGET_KEPT, name),
            Call(sql.KEEP, name),
            Call(sql.ANSWER, (*name, token)),
        ]
        rows = await asking.port.do(until, calls, token=ask.token)
        if rows[-2]:
            await asking.wake(ask.name, until)
        if rows[6]:
            asking.served(ask.token)
            return Grant(int(rows[6][0][0] or 0), ask.ttl)
        if not rows[-1]:
            raise asking.row_is_gone(ask)
        return self._refusal(ask, share, rows[-1][0])

    async def release(self, name: str, token: str, until: float, mark: float = 0.0) -> LossReason | None:
        """Give back the part or the ticket, and call who is next; *mark*: as for a lock."""
        asking, both, own = self._asking, self._asking.name(name), token.encode()
        asking.served(token)
        calls = [
            Call(sql.RELAX),
            *([Call(whole.BE_THERE, both)] if mark else []),
            Call(whole.LOCK, both),
            Call(whole.MARK, (*both, own, number(mark))) if mark else Call(whole.LEAVE, (own,)),
            give_back := Call(sql.GIVE_BACK, (*both, own)),
            *self._afterwards(both),
            Call(whole.WHY_NOT, (*both, own)),
        ]
        rows = await asking.port.do(until, calls, [Call(sql.WAKE, both)], token=token)
        if given_back := rows[calls.index(give_back)]:
            return None if given_back[0][0] == "t" else LossReason.EXPIRED
        evicted = rows[-2] and rows[-2][0][1] == "t"
        return LossReason.EVICTED if evicted else LossReason.TAKEN

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Row]:
        """One statement for all; for each the row that says what became of it."""
        [rows] = await self._asking.port.do(until, [Call(sql.RENEW, (self._asking.space, *renewing(claims)))])
        return rows

    async def evict(self, name: str, fence: int, reason: str, until: float) -> bool:
        """Break the part that was granted with *fence*."""
        both, by = self._asking.name(name), signature(here(self._runtime.pid(), name, ""))
        evict = Call(sql.EVICT, (*both, number(fence), text(reason), text(by)))
        calls = [Call(whole.LOCK, both), evict, *self._afterwards(both)]
        rows = await self._asking.port.do(until, calls, [Call(sql.WAKE, both)])
        return bool(rows[1])

    async def attach(self, claim: Claim, note: str, until: float) -> None:
        """Put this process's facts into the row."""
        asking = self._asking
        values = (*asking.name(claim.name), claim.token.encode(), *asking.me(note))
        await asking.port.do(until, [Call(sql.ATTACH, values)], token=claim.token)

    def _afterwards(self, name: tuple[bytes, bytes]) -> list[Call]:
        """Something was given back: the row ends sooner, and there may be room for the first in line."""
        tidy = [Call(sql.TIDY, name), Call(sql.SETTLE, name), Call(whole.SAY_WHO_WAITS, name)]
        return [*tidy, Call(sql.FORGET_KEPT, name), Call(sql.KEEP, name)]

    def _refusal(self, ask: Ask, share: Share, row: Row) -> Busy:
        held, several, slots, next_end, kept, left = row[8:14]
        first, ahead = Person(*row[14:19]), int(row[19] or 0)
        if several == "t" and slots is not None and int(slots) != share.slots:
            raise other_slots(ask.name, share, int(slots))
        if ask.queue:
            self._asking.waits_behind(ask.token, ahead)
        if kept == "t":
            return Busy(first.holder(ask.name, None, None), max(0.0, float(left or 0)) + STEP * ahead)
        last = holder(row)._replace(name=ask.name)
        if several == "t":
            return Busy(last._replace(share=share.shown), max(0.0, float(next_end or 0)) + STEP * ahead)
        if held != "t":
            raise StoreUnavailable(
                self._asking.port.source.shown,
                f"the fence of {ask.name!r} has reached its last number, {whole.LAST_FENCE}; this takes 285 years or a "
                "clock that was set far ahead: use another name",
            )
        return Busy(last, until_end(last) + STEP * ahead)
