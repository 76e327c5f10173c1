"""The blocking faces: they decide nothing, call what `dibs.core` does, and take care of Ctrl-C around blocks."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar

from dibs.core import call as _call
from dibs.core import client as _client
from dibs.core import connecting as _connecting
from dibs.core import election as _election
from dibs.core import guarded as _guarded
from dibs.core import idempotent as _idempotent
from dibs.core import leaders as _leaders
from dibs.core import leading as _leading
from dibs.core import lease as _lease
from dibs.core import lock as _lock
from dibs.core import loss as _loss
from dibs.core import once as _once
from dibs.core import several as _several
from dibs.core import term as _term
from dibs.core.checks import Seconds
from dibs.core.client import DAY, DEFAULT_TERM, DEFAULT_TTL
from dibs.core.idempotent import idempotent_blocking
from dibs.core.lock import AS_THE_LOCK_SAYS, _AsTheLockSays
from dibs.core.locked import locked_blocking
from dibs.core.once import KEEP, once_blocking
from dibs.core.outcome import from_json, to_json
from dibs.errors import LossReason
from dibs.holder import Holder, Leader, LockState, Record
from dibs.runtime import run
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.guarantees import Guarantees

if TYPE_CHECKING:
    from dibs.core.history import Past

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


def faces(core: type) -> Callable[[C], C]:
    """Mark a class as the blocking face of *core* and give it and its methods the docstrings of *core*."""

    def mark(face: C) -> C:
        face.__doc__ = core.__doc__
        for name, member in vars(face).items():
            original = getattr(core, _ASYNC_NAMES.get(name, name), None) or getattr(core, name, None)
            if (callable(member) or isinstance(member, property)) and not getattr(member, "__doc__", None):
                member.__doc__ = getattr(original, "__doc__", None)
        return face

    return mark


_ASYNC_NAMES = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__", "__next__": "__anext__"}


@faces(_loss.Loss)
class Loss:
    __slots__ = ("_core",)

    def __init__(self, core: _loss.Loss) -> None:
        self._core = core

    def __bool__(self) -> bool:
        return bool(self._core)

    def is_set(self) -> bool:
        return self._core.is_set()

    def wait(self, timeout: Seconds | None = None) -> bool:
        return run(self._core.wait(timeout))

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_lease.Lease)
class Lease:
    __slots__ = ("__weakref__", "_core")

    def __init__(self, core: _lease.Lease) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """What is locked."""
        return self._core.name

    @property
    def token(self) -> str:
        """Proves ownership to the store. A secret."""
        return self._core.token

    @property
    def fence(self) -> int:
        """What the resource checks: higher for every later grant of the name."""
        return self._core.fence

    @property
    def ttl(self) -> float:
        """The length of the lease in seconds; each renewal extends it by so much."""
        return self._core.ttl

    @property
    def note(self) -> str:
        """What the holder said it does."""
        return self._core.note

    @property
    def lost(self) -> Loss:
        """Whether the lease was lost, as a flag: ``if lease.lost``, ``lease.lost.wait(1)``."""
        return Loss(self._core.lost)

    @property
    def lost_reason(self) -> LossReason | None:
        return self._core.lost_reason

    def expires_in(self) -> float:
        return self._core.expires_in()

    def check(self) -> None:
        self._core.check()

    def renew(self) -> None:
        run(self._core.renew())

    def release(self) -> None:
        run(self._core.release())

    def detach(self) -> str:
        return run(self._core.detach())

    def compare(self) -> Any:
        return self._core.compare()

    def to_str(self) -> str:
        return self._core.to_str()

    def __enter__(self) -> Self:
        run(self._core.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._core.__aexit__(kind, exc, trace))

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_lock.Lock)
class Lock:
    __slots__ = ("_core",)

    def __init__(self, core: _lock.Lock) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """What is locked."""
        return self._core.name

    def acquire(self, *, timeout: Seconds | _AsTheLockSays | None = AS_THE_LOCK_SAYS) -> Lease:
        return Lease(run(self._core.acquire(timeout=timeout)))

    def try_acquire(self) -> Lease | None:
        return _maybe_lease(run(self._core.try_acquire()))

    def guarded(self, guard: _guarded.Guard) -> Guarded:
        return Guarded(self._core.guarded(_guarded.for_blocking(guard, self.name)))

    def __enter__(self) -> Lease:
        try:
            return Lease(run(self._core.__aenter__()))
        except BaseException as error:
            self._core.abandon(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            run(self._core.__aexit__(kind, exc, trace))
        except BaseException as error:
            self._core.abandon(error)
            raise

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_several.LossOfAny)
class LossOfAny:
    __slots__ = ("_core",)

    def __init__(self, core: _several.LossOfAny) -> None:
        self._core = core

    @property
    def reason(self) -> LossReason | None:
        return self._core.reason

    def __bool__(self) -> bool:
        return bool(self._core)

    def is_set(self) -> bool:
        return self._core.is_set()

    def wait(self, timeout: Seconds | None = None) -> bool:
        return run(self._core.wait(timeout))

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_several.Leases)
class Leases(Mapping[str, Lease]):
    __slots__ = ("_core",)

    def __init__(self, core: _several.Leases) -> None:
        self._core = core

    def __getitem__(self, name: str) -> Lease:
        return Lease(self._core[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._core)

    def __len__(self) -> int:
        return len(self._core)

    @property
    def fences(self) -> dict[str, int]:
        return self._core.fences

    @property
    def lost(self) -> LossOfAny:
        return LossOfAny(self._core.lost)

    @property
    def lost_reason(self) -> LossReason | None:
        return self._core.lost_reason

    def expires_in(self) -> float:
        return self._core.expires_in()

    def check(self) -> None:
        self._core.check()

    def renew(self) -> None:
        run(self._core.renew())

    def release(self) -> None:
        run(self._core.release())

    def __enter__(self) -> Self:
        run(self._core.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._core.__aexit__(kind, exc, trace))

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_several.Locks)
class Locks:
    __slots__ = ("_core",)

    def __init__(self, core: _several.Locks) -> None:
        self._core = core

    @property
    def names(self) -> tuple[str, ...]:
        return self._core.names

    def acquire(self, *, timeout: Seconds | _AsTheLockSays | None = AS_THE_LOCK_SAYS) -> Leases:
        return Leases(run(self._core.acquire(timeout=timeout)))

    def try_acquire(self) -> Leases | None:
        return _maybe_leases(run(self._core.try_acquire()))

    def __enter__(self) -> Leases:
        try:
            return Leases(run(self._core.__aenter__()))
        except BaseException as error:
            self._core.abandon(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            run(self._core.__aexit__(kind, exc, trace))
        except BaseException as error:
            self._core.abandon(error)
            raise

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_guarded.Guarded)
class Guarded:
    __slots__ = ("_core",)

    def __init__(self, core: _guarded.Guarded) -> None:
        self._core = core

    def __enter__(self) -> Lease:
        try:
            return Lease(run(self._core.__aenter__()))
        except BaseException as error:
            self._core.abandon(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            run(self._core.__aexit__(kind, exc, trace))
        except BaseException as error:
            self._core.abandon(error)
            raise


@faces(_term.Term)
class Term:
    __slots__ = ("_core",)

    def __init__(self, core: _term.Term) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """What is led."""
        return self._core.name

    @property
    def candidate(self) -> str:
        """Who leads."""
        return self._core.candidate

    @property
    def fence(self) -> int:
        """The number of the term: higher for every later leader. What the resource checks."""
        return self._core.fence

    @property
    def lost(self) -> Loss:
        """Whether the term is over, as a flag: ``if term.lost``, ``term.lost.wait(1)``."""
        return Loss(self._core.lost)

    @property
    def lost_reason(self) -> LossReason | None:
        return self._core.lost_reason

    def expires_in(self) -> float:
        return self._core.expires_in()

    def check(self) -> None:
        self._core.check()

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_leading.Leading)
class Leading:
    __slots__ = ("_core",)

    def __init__(self, core: _leading.Leading) -> None:
        self._core = core

    def __enter__(self) -> Term:
        try:
            return Term(run(self._core.__aenter__()))
        except BaseException as error:
            self._core.abandon(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            run(self._core.__aexit__(kind, exc, trace))
        except BaseException as error:
            self._core.abandon(error)
            raise


@faces(_leaders.Leaders)
class Leaders:
    __slots__ = ("_core",)

    def __init__(self, core: _leaders.Leaders) -> None:
        self._core = core

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Leader | None:
        try:
            return run(self._core.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None


@faces(_election.Election)
class Election:
    def __init__(self, core: _election.Election) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """What is led."""
        return self._core.name

    @property
    def candidate(self) -> str:
        return self._core.candidate

    def lead(self, *, timeout: Seconds | None = None) -> Leading:
        return Leading(self._core.lead(timeout=timeout))

    def run(self, work: Callable[[Term], object]) -> None:
        try:
            run(self._core.run(_awaited(work)))
        except BaseException as error:
            self._core.abandon(error)
            raise

    def is_leader(self) -> float:
        return self._core.is_leader()

    def leader(self) -> Leader | None:
        return run(self._core.leader())

    def watch(self, *, every: Seconds | None = None) -> Leaders:
        return Leaders(self._core.watch(every=every))

    def stop(self) -> None:
        self._core.stop()

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_call.Call)
class Call:
    __slots__ = ("_core",)

    def __init__(self, core: _call.Call) -> None:
        self._core = core

    @property
    def key(self) -> str:
        """What the call is known by."""
        return self._core.key

    @property
    def replayed(self) -> bool:
        return self._core.replayed

    @property
    def result(self) -> Any:
        return self._core.result

    @property
    def lease(self) -> Lease:
        return Lease(self._core.lease)

    @property
    def fence(self) -> int:
        return self._core.fence

    @property
    def attempt(self) -> int:
        return self._core.attempt

    @property
    def last_error(self) -> str | None:
        return self._core.last_error

    def done(self, result: Any = None) -> None:
        self._core.done(result)

    def commit(self, conn: Any, result: Any = None) -> Any:
        return self._core.commit(conn, result)

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_idempotent.Idempotent)
class Idempotent:
    __slots__ = ("_core",)

    def __init__(self, core: _idempotent.Idempotent) -> None:
        self._core = core

    def __call__(self, func: Callable[P, R]) -> Callable[P, R]:
        return idempotent_blocking(self._core, Idempotent, func)

    def __enter__(self) -> Call:
        try:
            return Call(run(self._core.__aenter__()))
        except BaseException as error:
            self._core.abandon(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            run(self._core.__aexit__(kind, exc, trace))
        except BaseException as error:
            self._core.abandon(error)
            raise

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_once.Run)
class Run:
    __slots__ = ("_core",)

    def __init__(self, core: _once.Run) -> None:
        self._core = core

    @property
    def slot(self) -> str:
        """Which slot: the moment at which it begins, in UTC, or the *slot* that was given."""
        return self._core.slot

    @property
    def attempt(self) -> int:
        """1 for the first start of the slot; more if one before it crashed or failed."""
        return self._core.attempt

    @property
    def lease(self) -> Lease:
        """The lease under which it runs: its fence, and whether it was lost. The block gives it back."""
        return Lease(self._core.lease)

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_once.Once)
class Once:
    __slots__ = ("_core",)

    def __init__(self, core: _once.Once) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """The name that is held while a slot runs."""
        return self._core.name

    def __call__(self, func: Callable[P, R]) -> Callable[P, R | None]:
        return once_blocking(lambda: Once(self._core.again()), func)

    def history(self) -> list[Past]:
        return run(self._core.history())

    def __enter__(self) -> Run:
        try:
            return Run(run(self._core.__aenter__()))
        except BaseException as error:
            self._core.abandon(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            run(self._core.__aexit__(kind, exc, trace))
        except BaseException as error:
            self._core.abandon(error)
            raise

    def __repr__(self) -> str:
        return repr(self._core)


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


def connect(url: str | object | None = None, *, namespace: str = "default") -> Client:
    """Return a client of the store at *url*: by default ``DIBS_URL``, else the embedded SQLite store of this user.

    Instead of a URL you may pass the client or connection pool of a driver that you already have, such as redis-py's.
    It returns at once; the first step connects. Locks of different namespaces have nothing to do with each other.
    Close it, or use it as a context manager.
    """
    return Client(_connecting.connected(url, namespace, ThreadRuntime()))


@functools.cache
def _default_client() -> Client:
    return connect()


def lock(
    name: str,
    *,
    ttl: Seconds = DEFAULT_TTL,
    timeout: Seconds | None = None,
    note: str = "",
    max_hold: Seconds | None = None,
    on_lost: Literal["cancel", "flag"] = "cancel",
    shared: bool = False,
) -> Lock:
    """Describe a lock of the default client, as `Client.lock` does; the client lives as long as the process."""
    return _default_client().lock(
        name, ttl=ttl, timeout=timeout, note=note, max_hold=max_hold, on_lost=on_lost, shared=shared
    )


def locked(
    name: str,
    *,
    ttl: Seconds = DEFAULT_TTL,
    timeout: Seconds | None = None,
    note: str = "",
    max_hold: Seconds | None = None,
    on_lost: Literal["cancel", "flag"] = "cancel",
    shared: bool = False,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function with a lock of the default client, as `Client.locked` does."""
    return _default_client().locked(
        name, ttl=ttl, timeout=timeout, note=note, max_hold=max_hold, on_lost=on_lost, shared=shared
    )


def _awaited(work: Callable[[Term], object]) -> Callable[[_term.Term], Awaitable[object]]:
    async def call(term: _term.Term) -> object:
        return work(Term(term))

    return call


def _maybe_lease(core: Any) -> Lease | None:
    return None if core is None else Lease(core)


def _maybe_leases(core: Any) -> Leases | None:
    return None if core is None else Leases(core)


def _core_of(lock: Any) -> Any:
    return lock._core if isinstance(lock, Lock) else lock
