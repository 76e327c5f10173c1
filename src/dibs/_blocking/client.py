"""The blocking face of a client, which makes all the others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar

from dibs._blocking.election import Election
from dibs._blocking.faces import faces
from dibs._blocking.idempotent import Idempotent
from dibs._blocking.lease import Lease
from dibs._blocking.once import Once
from dibs._blocking.several import Locks
from dibs._blocking.single import Lock
from dibs.core import client as _client
from dibs.core.checks import Seconds
from dibs.core.client import DAY, DEFAULT_TERM, DEFAULT_TTL
from dibs.core.locked import locked_blocking
from dibs.core.once import KEEP
from dibs.core.outcome import from_json, to_json
from dibs.holder import Holder, LockState, Record
from dibs.runtime import run
from dibs.stores.guarantees import Guarantees

P = ParamSpec("P")
R = TypeVar("R")


@faces(_client.Client)
class Client:
    def __init__(self, core: _client.Client) -> None:
        self._core = core

    @property
    def guarantees(self) -> Guarantees:
        return self._core.guarantees

    def lock(
        self,
        name: str,
        *,
        ttl: Seconds = DEFAULT_TTL,
        timeout: Seconds | None = None,
        note: str = "",
        max_hold: Seconds | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel",
        shared: bool = False,
    ) -> Lock:
        return Lock(
            self._core.lock(
                name, ttl=ttl, timeout=timeout, note=note, max_hold=max_hold, on_lost=on_lost, shared=shared
            )
        )

    def semaphore(
        self,
        name: str,
        slots: int,
        *,
        weight: int = 1,
        ttl: Seconds = DEFAULT_TTL,
        timeout: Seconds | None = None,
        note: str = "",
        max_hold: Seconds | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel",
    ) -> Lock:
        return Lock(
            self._core.semaphore(
                name, slots, weight=weight, ttl=ttl, timeout=timeout, note=note, max_hold=max_hold, on_lost=on_lost
            )
        )

    def all(
        self,
        *locks: str | Lock,
        ttl: Seconds = DEFAULT_TTL,
        timeout: Seconds | None = None,
        note: str = "",
        max_hold: Seconds | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel",
    ) -> Locks:
        cores = map(_core_of, locks)
        return Locks(self._core.all(*cores, ttl=ttl, timeout=timeout, note=note, max_hold=max_hold, on_lost=on_lost))

    def locked(
        self,
        name: str,
        *,
        ttl: Seconds = DEFAULT_TTL,
        timeout: Seconds | None = None,
        note: str = "",
        max_hold: Seconds | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel",
        shared: bool = False,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        def make(made_name: str) -> Lock:
            return self.lock(
                made_name, ttl=ttl, timeout=timeout, note=note, max_hold=max_hold, on_lost=on_lost, shared=shared
            )

        make(name)
        return functools.partial(locked_blocking, make, name)

    def election(
        self,
        name: str,
        *,
        ttl: Seconds = DEFAULT_TERM,
        candidate: str = "",
        renew_deadline: Seconds | None = None,
        retry: Seconds | None = None,
        on_stuck: Literal["log", "exit"] = "log",
        stuck_after: Seconds | None = None,
    ) -> Election:
        return Election(
            self._core.election(
                name,
                ttl=ttl,
                candidate=candidate,
                renew_deadline=renew_deadline,
                retry=retry,
                on_stuck=on_stuck,
                stuck_after=stuck_after,
            )
        )

    def idempotent(
        self,
        key: str,
        *,
        fingerprint: Any = None,
        ttl: Seconds = DEFAULT_TTL,
        timeout: Seconds | None = 0,
        keep: Seconds = DAY,
        note: str = "",
        on_lost: Literal["cancel", "flag"] = "cancel",
        dump: Callable[[Any], bytes] = to_json,
        load: Callable[[bytes], Any] = from_json,
    ) -> Idempotent:
        return Idempotent(
            self._core.idempotent(
                key,
                fingerprint=fingerprint,
                ttl=ttl,
                timeout=timeout,
                keep=keep,
                note=note,
                on_lost=on_lost,
                dump=dump,
                load=load,
            )
        )

    def once(
        self,
        name: str,
        *,
        slot: str | None = None,
        cron: str | None = None,
        every: Seconds | None = None,
        tz: str = "UTC",
        ttl: Seconds = DEFAULT_TTL,
        timeout: Seconds | None = 0,
        retries: int = 0,
        min_hold: Seconds | None = None,
        late: Seconds | None = None,
        keep: Seconds = KEEP,
        note: str = "",
        on_lost: Literal["cancel", "flag"] = "cancel",
    ) -> Once:
        return Once(
            self._core.once(
                name,
                slot=slot,
                cron=cron,
                every=every,
                tz=tz,
                ttl=ttl,
                timeout=timeout,
                retries=retries,
                min_hold=min_hold,
                late=late,
                keep=keep,
                note=note,
                on_lost=on_lost,
            )
        )

    def resume(self, text: str) -> Lease:
        return Lease(run(self._core.resume(text)))

    def renew(self, text: str) -> None:
        run(self._core.renew(text))

    def holders(self, prefix: str = "") -> list[Holder]:
        return run(self._core.holders(prefix))

    def show(self, name: str) -> LockState:
        return run(self._core.show(name))

    def evict(self, name: str, *, fence: int, reason: str = "") -> bool:
        return run(self._core.evict(name, fence=fence, reason=reason))

    def record(self, name: str) -> Record | None:
        return run(self._core.record(name))

    def records(self, prefix: str = "", *, most: int = 100) -> list[Record]:
        return run(self._core.records(prefix, most=most))

    def forget_record(self, name: str, *, fence: int) -> bool:
        return run(self._core.forget_record(name, fence=fence))

    def reseed(self, floor: int) -> None:
        run(self._core.reseed(floor))

    def inheritable(self) -> tuple[int, ...]:
        return self._core.inheritable()

    def close(self) -> None:
        run(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._core)


def _core_of(lock: Any) -> Any:
    return lock._core if isinstance(lock, Lock) else lock
