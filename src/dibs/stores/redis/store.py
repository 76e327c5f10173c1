"""Grants leases from Redis or Valkey: one server, a master behind sentinels, or a cluster. One script for each step.

The protocol, and what stands in which key, is in `scripts` and `keys`; how requests reach a server is in
`port`. A grant costs one round trip, so does a release; any number of renewals cost one for each server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from dibs.errors import LossReason, Misuse, StoreUnavailable
from dibs.holder import Holder, LockState, Record, here
from dibs.runtime import Driver, Runtime
from dibs.share import PREFIX, other_slots
from dibs.stores.doubt import MARKED_FOR, Doubts
from dibs.stores.guarantees import Bound, Effect, Guarantees, Promise
from dibs.stores.record_store import RecordStore
from dibs.stores.redis import values
from dibs.stores.redis.keys import RedisNaming
from dibs.stores.redis.port.command import bulk, command
from dibs.stores.redis.port.open import routes_to, subscriptions_at
from dibs.stores.redis.port.router import Route
from dibs.stores.redis.port.source import RedisSource, from_client, from_url
from dibs.stores.redis.port.subscriptions import POLL, Subscriptions
from dibs.stores.redis.records import RedisRecords
from dibs.stores.redis.renewal import RedisRenewals
from dibs.stores.redis.scripts import ATTACH, EVICT, GRANT, RELEASE, hinting, marking
from dibs.stores.redis.shares import RedisShares
from dibs.stores.redis.view import RedisView
from dibs.stores.store import Ask, Busy, Claim, Grant

REMEMBERED = 4096
"""Commands that are kept ready, for locks that are taken again and again."""


class RedisStore(RecordStore):
    """Grants from the keys of a Redis server; see docs/stores/redis.md."""

    guarantees = Guarantees(
        name="redis",
        good_for="locks over many machines, where Redis or Valkey runs already",
        fence="max(last + 1, server's clock in µs); falls only if a server that lost its memory has a clock behind",
        wake="a message to the first waiter, and a poll at the end of the holder's ttl",
        order="arrival; if the first does not answer for 100 ms, anyone who asks",
        freed="after the ttl",
        waiter_crash=Bound(1.0, "A release calls the first waiter that still listens."),
        client_pause=Promise(Effect.FENCED, "The lease ends by the server's clock, and another gets it."),
        client_crash=Promise(Effect.FREED, "After the ttl."),
        server_restart=Promise(
            Effect.FENCED,
            "Without `appendfsync always` the server may forget the lock; its clock raises the fence all the same.",
        ),
        failover=Promise(
            Effect.FENCED,
            "The replica may not know the lock yet: two holders are possible, and `min_replicas` makes that rarer, not "
            "impossible. The fence rises by the clock, if the replica's is not behind by more than the time between.",
        ),
        partition=Promise(
            Effect.FENCED, "The holder is told in time; a master that is cut off may go on granting to its own side."
        ),
        clock_jump=Promise(
            Effect.FENCED,
            "Setting the server's clock forward ends leases early. Setting it back makes them last longer by the same "
            "amount until the holder renews; a holder that died before that keeps the name for that time.",
        ),
    )
    shortest_ttl = 0.05

    def __init__(
        self, source: RedisSource, namespace: str, runtime: Runtime, options: dict[str, str] | None = None
    ) -> None:
        options = options or {}
        self._runtime = runtime
        self._naming = RedisNaming(namespace, options.get("key"))
        self._min_replicas = _count(options.get("min_replicas", "0"))
        self._shown = f"{source.kind} {source.service or ', '.join(map(str, source.addresses))}"
        self._namespace = namespace
        self._route: Route = routes_to(source, runtime)
        self._subscriptions: Subscriptions = subscriptions_at(self._route.map, runtime)
        sharded = self._route.map.sharded
        scripts = (hinting(script, sharded=sharded) for script in (RELEASE, marking(RELEASE), EVICT))
        self._release_script, self._marking_script, self._evict_script = scripts
        self._doubts = Doubts()
        self._shares = RedisShares(self._route, self._naming, runtime, sharded=sharded)
        self._view = RedisView(self._route, self._naming)
        self._renewals = RedisRenewals(self._route, self._naming, runtime, self._shares)
        self._records = RedisRecords(self._route, self._naming, runtime, self._min_replicas, self._shown)
        self._contended: dict[str, str] = {}  # names whose last ask with a ticket was refused, to its token
        self._heads: dict[Any, tuple[bytes, bytes]] = {}  # key and beginning of commands that were sent before

    # --- the steps -----------------------------------------------------------------------------------------

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """One script: take the lock, or take a ticket and learn who has the lock."""
        name, token, ttl, note, queue = ask
        if token.startswith(PREFIX):
            return await self._grant_share(ask, within)
        channel = b"-"
        if queue:
            channel, within = await self._listen(name, token, within)
        known = self._heads.get((name, ttl, note, channel))
        key, head = known if known is not None else self._grant_head(name, ttl, note, channel)
        try:
            reply = await self._route.call(key, GRANT, head + _last(token), within)
        except BaseException as error:  # what `Doubts.of` does, without a call: this is the lock path
            self._doubts.failed(token, error)
            raise
        if reply.__class__ is not bytes:
            if queue:
                self._note_wait(name, token)
            return self._refusal(name, reply)
        if queue:
            self._served(name, token)
        if self._min_replicas:
            await self._confirm(key, ask, int(reply), within)
        return Grant(int(reply), ttl)

    async def grant_unless_recorded(self, ask: Ask, after: int, within: float) -> Grant | Busy | Record:
        """The script of `grant`, which looks at the record first."""
        channel = b"-"
        if ask.queue:
            channel, within = await self._listen(ask.name, ask.token, within)
        reply = await self._doubts.of(ask.token, self._records.grant(ask, after, channel, within))
        return reply if isinstance(reply, Record) else await self._answered(ask, reply, within)

    async def _grant_share(self, ask: Ask, within: float) -> Grant | Busy:
        """A share of the name: another script, also in one step."""
        channel = b"-"
        if ask.queue:
            channel, within = await self._listen(ask.name, ask.token, within)
        reply = await self._doubts.of(ask.token, self._shares.grant(ask, channel, within))
        if reply[0] == b"slots" and (share := ask.share) is not None:
            raise other_slots(ask.name, share, int(reply[1]))
        return await self._answered(ask, reply, within)

    async def _answered(self, ask: Ask, reply: Any, within: float) -> Grant | Busy:
        """What *reply* means, and what it changes here: what `grant` does, off the lock path."""
        if not isinstance(reply, bytes):
            if ask.queue:
                self._note_wait(ask.name, ask.token)
            return self._refusal(ask.name, reply)
        if ask.queue:
            self._served(ask.name, ask.token)
        if self._min_replicas:
            await self._confirm(self._naming.keys(ask.name).lock, ask, int(reply), within)
        return Grant(int(reply), ask.ttl)

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """One script for a hundred locks, one for each share, one write for all."""
        return await self._renewals.renew(claims, within)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """One script: give back the grant or the ticket, and wake the next."""
        if token in self._doubts:
            return await self._release_for_good(name, token, within)
        if token.startswith(PREFIX):
            self._subscriptions.forget(token)
            return await self._shares.release(name, token, within)
        known = self._heads.get(name)
        if known is None:
            keys = self._naming.keys(name)
            head = self._release_script.head((keys.lock, keys.queue, keys.tickets, keys.evicted), 1)
            known = self._remember(name, (keys.lock, head))
        key, head = known
        reply = await self._route.call(key, self._release_script, head + _last(token), within)
        self._subscriptions.forget(token)
        return values.ANSWERS[reply]

    async def _release_for_good(self, name: str, token: str, within: float) -> LossReason | None:
        """Give back where an ask was not answered: if the ask still arrives, the server refuses it."""
        mark_ms = round(MARKED_FOR * 1000)
        if token.startswith(PREFIX):
            answer = await self._shares.release(name, token, within, mark_ms)
        else:
            keys, script = self._naming.keys(name), self._marking_script
            data = script.call((keys.lock, keys.queue, keys.tickets, keys.evicted), values.quoted(token), mark_ms)
            answer = values.ANSWERS[await self._route.call(keys.lock, script, data, within)]
        self._subscriptions.forget(token)
        self._doubts.settled(token)
        return answer

    def queue_at_once(self, name: str) -> bool:
        """Whether the last ask had to wait. It listens already, so a ticket in the next ask costs only some bytes."""
        return name in self._contended

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """Wait to be called. Other programs call no waiter when they give the lock back, so we look by ourselves."""
        unheard = busy.holder is not None and not busy.holder.pid  # one of ours has a process
        await self._subscriptions.wait(ask.token, min(within, POLL) if unheard else within)

    async def time(self, name: str, within: float) -> float:
        """The clock of the node that keeps *name*, in seconds since 1970."""
        return await self._records.time(name, within)

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """One script, for the lock; another one if *fence* is that of a share."""
        keys = self._naming.keys(name)
        who = values.why(here(self._runtime.pid(), name, ""), reason)
        data = self._evict_script.call((keys.lock, keys.queue, keys.tickets, keys.evicted), fence, who)
        evicted = await self._route.call(keys.lock, self._evict_script, data, within)
        return bool(evicted) or await self._shares.evict(name, fence, reason, within)

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """The holders of all names that begin with *prefix*, found by scanning the keys."""
        return await self._view.holders(prefix, within)

    async def show(self, name: str, within: float) -> LockState:
        """All that is known of *name*, by one script."""
        return await self._view.show(name, within)

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Write this process and *note* into the value, as its holder."""
        if claim.token.startswith(PREFIX):
            return await self._shares.attach(claim, note, within)
        key = self._naming.keys(claim.name).lock
        facts = values.facts(here(self._runtime.pid(), claim.name, note))
        data = ATTACH.call((key,), values.quoted(claim.token), facts)
        await self._route.call(key, ATTACH, data, within)
        return None

    async def remember(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """Write a record while holding the lock, by one script."""
        return await self._records.remember(claim, data, keep, within)

    async def finish(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """One script: write the record, and what `release` does."""
        answer = await self._records.finish(claim, data, keep, within)
        self._subscriptions.forget(claim.token)
        if claim.token in self._doubts:
            with contextlib.suppress(StoreUnavailable):  # it is finished all the same
                await self._release_for_good(claim.name, claim.token, within)
        return answer

    async def record(self, name: str, within: float) -> Record | None:
        """The record of *name*, read from its key."""
        return await self._records.record(name, within)

    async def records(self, prefix: str, most: int, within: float) -> list[Record]:
        """The latest records, found by scanning the keys."""
        return await self._records.records(prefix, most, within)

    async def forget(self, name: str, fence: int, within: float) -> bool:
        """Delete the record of *name* if its fence is *fence*."""
        return await self._records.forget(name, fence, within)

    async def close(self) -> None:
        """Close the connections."""
        await self._subscriptions.close()
        await self._route.close()

    def forked(self) -> None:
        """Forget the parent's connections, and the commands that name its process."""
        self._heads.clear()
        self._contended.clear()
        self._doubts.clear()
        self._route.forked()
        self._subscriptions.forked()

    def __repr__(self) -> str:
        return f"redis: {self._shown}, namespace {self._namespace!r}"

    # --- how they are made ---------------------------------------------------------------------------------

    async def _listen(self, name: str, token: str, within: float) -> tuple[bytes, float]:
        """Where *token* will be called, and what is left of the time."""
        began = self._runtime.now()
        key = self._naming.keys(name).lock
        # Subscribed before the ask, so that the release right after our refusal is heard.
        channel = await self._subscriptions.expect(key, token, within / 2)
        return channel, within - (self._runtime.now() - began)

    def _grant_head(self, name: str, ttl: float, note: str, channel: bytes) -> tuple[bytes, bytes]:
        """The lock's key, and the grant up to the token: the same for every ask, so it is kept."""
        keys = self._naming.keys(name)
        who = values.facts(here(self._runtime.pid(), name, note))
        arguments = bulk(b"%d %b" % (values.ms(ttl), channel)) + bulk(who)
        head = GRANT.head((keys.lock, keys.fence, keys.queue, keys.tickets), 3) + arguments
        return self._remember((name, ttl, note, channel), (keys.lock, head))

    def _served(self, name: str, token: str) -> None:
        """*token*, which may have had a ticket, has got the lock."""
        self._subscriptions.forget(token)
        if self._contended.get(name) != token:  # at the first ask
            self._contended.pop(name, None)

    def _note_wait(self, name: str, token: str) -> None:
        if len(self._contended) >= REMEMBERED:
            self._contended.clear()
        self._contended[name] = token

    def _remember(self, what: Any, head: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        if len(self._heads) >= REMEMBERED:
            self._heads.clear()
        self._heads[what] = head
        return head

    def _refusal(self, name: str, reply: list[Any]) -> Busy:
        kind = reply[0]
        if kind == b"held":
            _, left, now_us, value = reply
            return Busy(values.holder(name, self._naming.keys(name).lock, value, int(now_us), left), left / 1000)
        if kind == b"kept":
            _, left, now_us, since, ticket = reply
            return Busy(values.waiting(name, ticket, since) if ticket and since else None, left / 1000)
        keys = self._naming.keys(name)
        if kind == b"late":
            raise StoreUnavailable(self._shown, f"this request for {name!r} was withdrawn before it arrived; ask again")
        if kind == b"immortal":
            raise StoreUnavailable(
                self._shown,
                f"the key {keys.lock.decode()!r} {values.IMMORTAL}",
            )
        raise StoreUnavailable(
            self._shown,
            f"the key {keys.fence.decode()!r} holds {reply[1]!r}, and no fence can come after it; set it to a smaller "
            "number that is above every fence that a resource has seen",
        )

    async def _confirm(self, key: bytes, ask: Ask, fence: int, within: float) -> None:
        """Wait until enough replicas know the grant; if they do not, give it back."""
        # A renewal goes before WAIT on the same connection: WAIT counts from the last write of its own connection.
        _, script, data = self._renewals.request([Claim(ask.name, ask.token, fence, ask.ttl)])
        wait = command("WAIT", self._min_replicas, max(1, int(within * 500)))
        replies = await self._route.pipeline(key, [script.in_full(data), wait], within)
        if replies[0] == [1] and isinstance(replies[1], int) and replies[1] >= self._min_replicas:
            return
        await self.release(ask.name, ask.token, within)
        raise StoreUnavailable(
            self._shown, f"{replies[1]} of {self._min_replicas} replicas confirmed the grant, so it was given back"
        )


def open_url(url: str, namespace: str, runtime: Runtime) -> RedisStore:
    """``redis://``, ``rediss://``, ``unix://``, ``valkey://``, ``redis+sentinel://`` and ``redis+cluster://``."""
    source, options = from_url(url, blocking=runtime.driver is Driver.BLOCKING)
    return RedisStore(source, namespace, runtime, options)


def open_client(client: object, namespace: str, runtime: Runtime) -> RedisStore:
    """Connect where *client*, a client or pool of redis-py, is connected to."""
    return RedisStore(from_client(client, blocking=runtime.driver is Driver.BLOCKING), namespace, runtime)


def _last(token: str) -> bytes:
    """The token as the last argument of a command."""
    text = token.encode()
    if len(text) == 32 and text.isalnum():  # as runtimes make them
        return b"$32\r\n%b\r\n" % text
    return bulk(values.quoted(token))


def _count(text: str) -> int:
    if not text.isdecimal():
        raise Misuse("min_replicas is a number of replicas")
    return int(text)
