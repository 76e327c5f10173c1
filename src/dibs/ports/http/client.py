"""Requests to a store behind HTTP that has several servers: the next one is asked when one cannot answer.

The server that answered last is asked first. Every request has one budget for all that it needs: names, connections,
TLS, a second server. What could not be sent is `StoreUnavailable`; what was sent and not answered `OutcomeUnknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.ports.http.message import HttpAnswer, HttpRequest
from dibs.ports.http.server import HttpServer, Stream, problem
from dibs.ports.http.source import HttpSource
from dibs.ports.http.wire import Dial, Wire
from dibs.runtime import Driver, Runtime

PATIENCE = 1.0
"""Seconds that one server may take, at most, when there are others to ask."""

MOST_LEFT = 256
"""Connections that are kept for the answer to a caller that was cancelled."""


class Left(NamedTuple):
    """A connection whose answer is still to come, since its caller was cancelled while waiting for it."""

    server: HttpServer
    wire: Wire


class Http:
    """The servers of one store, reached by the kind of I/O that the runtime has."""

    def __init__(
        self,
        source: HttpSource,
        runtime: Runtime,
        cannot_serve: Callable[[HttpAnswer], StoreUnavailable | None] = lambda _: None,
    ) -> None:
        """*cannot_serve* says what keeps a server that answered from serving any client, such as having no leader.

        It returns `OutcomeUnknown` if the server may have done all the same what it was asked; None if it can serve.
        """
        dial = _dial(source, runtime)
        self._shown, self._now, self._cannot_serve = str(source), runtime.now, cannot_serve
        self._servers = [HttpServer(endpoint, dial, runtime.now) for endpoint in source.endpoints]
        self._left: dict[str, Left] = {}
        self._unanswered: set[str] = set()

    async def request(
        self, request: HttpRequest, within: float, *, again: bool = False, ordering_key: str = ""
    ) -> HttpAnswer:
        """Ask, and return the answer, whatever its status.

        *again* says that to carry it out twice is the same as once: then it is sent to the next server too when the
        first does not answer. Requests with one *ordering_key* are carried out in the order in which they were sent,
        even if the caller of an earlier one was cancelled.
        """
        until = self._now() + within
        ready = await self._finished(ordering_key, until)
        servers = [*([ready.server] if ready else []), *self._servers_to_try()]
        errors: dict[str, StoreUnavailable] = {}
        for server in servers:
            ends = until if server is servers[-1] else self._share(until - request.held) + request.held
            try:
                wire, ready = ready.wire if ready else await server.wire(ends), None
                answer = await self._ask(server, wire, request, ends, ordering_key)
                problem = self._cannot_serve(answer)
                if problem is None:
                    self._first(server)
                    return answer._replace(repeated=True) if _is_open(errors) else answer
                raise problem
            except StoreUnavailable as error:
                if not isinstance(errors.get(server.name), OutcomeUnknown):
                    errors[server.name] = error
                if ordering_key and isinstance(error, OutcomeUnknown):
                    self._unanswered.add(ordering_key)
                if self._now() >= until or (isinstance(error, OutcomeUnknown) and not again):
                    break
        raise self._worst(errors)

    def unanswered(self, ordering_key: str) -> bool:
        """Whether a request with *ordering_key* got no answer: it may still be carried out, after all later ones."""
        return ordering_key in self._unanswered

    def forget(self, ordering_key: str) -> None:
        """Forget *ordering_key*: its last request was sent."""
        self._unanswered.discard(ordering_key)

    async def stream(self, request: HttpRequest, within: float) -> Stream:
        """Ask for an answer without an end, and return it once its head has come; `close` it in the end."""
        until = self._now() + within
        errors: dict[str, StoreUnavailable] = {}
        servers = self._servers_to_try()
        for server in servers:
            try:
                stream = await self._open(server, request, until if server is servers[-1] else self._share(until))
            except StoreUnavailable as error:
                errors[server.name] = error
            else:
                self._first(server)
                return stream
        raise StoreUnavailable(self._shown, _said(errors), errors if len(errors) > 1 else None)

    async def close(self) -> None:
        """Close the connections."""
        for left in self._take_left():
            left.wire.close()
        for server in self._servers:
            server.close()

    def forked(self) -> None:
        """Forget the parent's connections."""
        self._unanswered = set()
        for left in self._take_left():
            left.wire.forked()
        for server in self._servers:
            server.forked()

    def __str__(self) -> str:
        return self._shown

    # --- one server ----------------------------------------------------------------------------------------

    async def _ask(
        self, server: HttpServer, wire: Wire, request: HttpRequest, until: float, ordering_key: str
    ) -> HttpAnswer:
        try:
            answer = await server.ask(wire, request, until)
        except Exception:
            wire.close()
            raise
        except BaseException:  # cancelled: the server carries it out, and the next request waits for its answer
            self._leave(ordering_key, Left(server, wire))
            raise
        server.keep(wire)
        return answer

    def _leave(self, ordering_key: str, left: Left) -> None:
        if ordering_key and len(self._left) < MOST_LEFT and ordering_key not in self._left:
            self._left[ordering_key] = left
            return
        left.wire.close()
        if ordering_key:
            self._unanswered.add(ordering_key)

    async def _finished(self, ordering_key: str, until: float) -> Left | None:
        """The connection of *ordering_key*, once its last request is answered. A hung server gets half the time."""
        left = self._left.pop(ordering_key, None) if ordering_key else None
        if left is None:
            return None
        answered = False
        try:
            answered = await left.server.finish(left.wire, self._share(until))
        finally:
            if not answered:
                self._unanswered.add(ordering_key)
                left.wire.close()
        return left if answered else None

    async def _open(self, server: HttpServer, request: HttpRequest, until: float) -> Stream:
        wire = await server.wire(until)
        try:
            await wire.send(wire.conversation.ask(request), until)
            while (status := wire.conversation.head()) is None:
                await wire.hear(until)
            if status >= 300:
                while (answer := wire.conversation.answer()) is None:
                    await wire.hear(until)
                raise StoreUnavailable(server.name, f"HTTP {status}: {answer.body.decode(errors='replace')[:500]}")
        except BaseException as exc:
            wire.close()
            if isinstance(exc, OSError | ValueError):
                raise StoreUnavailable(server.name, problem(exc)) from exc
            raise
        return Stream(server.name, wire, self._now)

    # --- all servers ---------------------------------------------------------------------------------------

    def _servers_to_try(self) -> list[HttpServer]:
        """All servers, in order; a single one twice: it may have closed the connection just as we asked."""
        return self._servers * 2 if len(self._servers) == 1 else self._servers

    def _share(self, until: float) -> float:
        """Until when a server may take its time if there are others to ask."""
        now = self._now()
        return min(now + PATIENCE, (now + until) / 2)

    def _first(self, server: HttpServer) -> None:
        if self._servers[0] is not server:
            self._servers = [server, *(known for known in self._servers if known is not server)]

    def _worst(self, errors: dict[str, StoreUnavailable]) -> StoreUnavailable:
        if not _is_open(errors):
            return StoreUnavailable(self._shown, _said(errors), errors if len(errors) > 1 else None)
        return OutcomeUnknown(self._shown, "; ".join(f"{name}: {error.problem}" for name, error in errors.items()))

    def _take_left(self) -> list[Left]:
        left, self._left = self._left, {}
        return list(left.values())


def _dial(source: HttpSource, runtime: Runtime) -> Dial:
    if runtime.driver is Driver.BLOCKING:
        # Not before it is needed: asyncio costs 40 ms at start, which is too much for a command that takes a lock.
        from dibs.ports.http.wire_blocking import BlockingDial  # noqa: PLC0415

        return BlockingDial(source.tls, runtime.now)
    from dibs.ports.http.wire_async import AsyncDial  # noqa: PLC0415

    return AsyncDial(source.tls, runtime.now)


def _is_open(errors: Mapping[str, StoreUnavailable]) -> bool:
    """Whether one of the servers was asked and did not answer."""
    return any(isinstance(error, OutcomeUnknown) for error in errors.values())


def _said(errors: dict[str, StoreUnavailable]) -> str:
    if len(errors) == 1:
        return next(iter(errors.values())).problem
    return "no server could be asked"
