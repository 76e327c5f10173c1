"""Calls of etcd's JSON gateway: how we log in, what its errors mean, and streams with errors inside.

The gateway speaks gRPC to etcd and tells its status codes in JSON. A refusal is certain: the request was not carried
out. The error of a server without a leader, or with one that took too long, does not tell whether it was. Every request
of ours may be sent again, so it goes to the next server.
"""

from __future__ import annotations

import json
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Self

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.ports.http.client import Http
from dibs.ports.http.message import HttpAnswer, HttpHeaders, HttpRequest, json_body
from dibs.ports.http.server import Stream
from dibs.ports.http.source import HttpSource
from dibs.runtime import Runtime

EtcdJson = dict[str, Any]


class Code(IntEnum):
    """The status codes of gRPC that this store tells apart."""

    UNKNOWN = 2
    INVALID = 3
    DEADLINE = 4
    NOT_FOUND = 5
    DENIED = 7
    EXHAUSTED = 8
    EXISTS = 9  # FailedPrecondition, by its number
    COMPACTED = 11  # OutOfRange, by its number
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


UNCERTAIN: set[int] = {Code.UNKNOWN, Code.DEADLINE, Code.INTERNAL, Code.UNAVAILABLE}
"""Codes with which the server leaves open whether the request was carried out."""

NO_TOKEN = ("invalid auth token", "auth store is old", "user name is empty")
"""Errors of etcd about a token that it does not accept, or no longer; the last one if there is no token."""

TOO_MANY = "too many operations in txn request"
"""The error of etcd for a transaction with more operations than its --max-txn-ops."""

WHAT_TO_DO: dict[int, str] = {
    Code.DENIED: "the user needs a role with read and write access to the prefix dibs/",
    Code.EXHAUSTED: "compact and defragment the database, then disarm the alarm with etcdctl",
}


class EtcdRefused(StoreUnavailable):
    """etcd refused the request: certainly nothing happened."""

    def __init__(self, store: str, problem: str, code: int) -> None:
        super().__init__(store, problem)
        self.code = code

    def __reduce__(self) -> tuple[type[EtcdRefused], tuple[str, str, int]]:
        return type(self), (self.store, self.problem, self.code)


class EtcdError(NamedTuple):
    """An error in an answer of the gateway."""

    code: int
    message: str


class Etcd:
    """Calls and watches at the servers of one cluster."""

    def __init__(self, source: HttpSource, runtime: Runtime) -> None:
        self._http = Http(source, runtime, _cannot_serve)
        self._source, self._now = source, runtime.now
        self._auth: HttpHeaders = ()

    async def call(self, method: str, body: EtcdJson, within: float, ordering_key: str = "") -> EtcdJson:
        """Call *method*, such as ``kv/txn``, which must be safe to carry out twice. See `Http.request`.

        If the request was sent before and not answered, its answer has ``"repeated": True``.
        """
        until = self._now() + within
        if self._source.user and not self._auth:
            await self._log_in(until)
        data = json_body(body)
        answer, error = await self._ask(method, data, until, ordering_key)
        if error is not None and self._source.user and _is_about_the_token(error):
            await self._log_in(until)
            answer, error = await self._ask(method, data, until, ordering_key)
        if error is not None:
            raise _refused(answer.server, error)
        return _body(answer)

    def unanswered(self, ordering_key: str) -> bool:
        """Whether a request with *ordering_key* may still be carried out, after all later ones."""
        return self._http.unanswered(ordering_key)

    def forget(self, ordering_key: str) -> None:
        """Forget *ordering_key*: its last request was sent."""
        self._http.forget(ordering_key)

    async def watch(self, key: str, revision: int, within: float, *, end: str = "", puts: bool = False) -> EtcdWatch:
        """Watch *key*, in base64, from *revision* on: for its end, and with *puts* also for new values.

        With *end*, watch all keys from *key* to before that.
        """
        until = self._now() + within
        if self._source.user and not self._auth:
            await self._log_in(until)
        what: EtcdJson = {"key": key, "start_revision": str(revision)}
        what |= ({"range_end": end} if end else {}) | ({} if puts else {"filters": ["NOPUT"]})
        # A server without a leader sees nothing happen; asked like this, it ends the stream.
        headers = (*self._auth, ("Grpc-Metadata-hasleader", "true"))
        request = HttpRequest("POST", "/v3/watch", json_body({"create_request": what}), headers)
        return EtcdWatch(await self._http.stream(request, until - self._now()))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    def forked(self) -> None:
        """Forget the parent's connections."""
        self._http.forked()

    def __str__(self) -> str:
        return str(self._http)

    async def _ask(
        self, method: str, data: bytes, until: float, ordering_key: str
    ) -> tuple[HttpAnswer, EtcdError | None]:
        request = HttpRequest("POST", f"/v3/{method}", data, self._auth)
        answer = await self._http.request(request, until - self._now(), again=True, ordering_key=ordering_key)
        return answer, _error(answer)

    async def _log_in(self, until: float) -> None:
        body = {"name": self._source.user, "password": self._source.password}
        request = HttpRequest("POST", "/v3/auth/authenticate", json_body(body))
        answer = await self._http.request(request, until - self._now(), again=True)
        error = _error(answer)
        if error is None:
            self._auth = (("Authorization", str(_body(answer)["token"])),)
        elif "authentication is not enabled" in error.message:
            self._auth = (("Authorization", ""),)  # if the cluster gets users later, it refuses, and we log in again
        else:
            raise _refused(answer.server, error)


class EtcdWatch:
    """A watch on one key, or on several."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def told(self, within: float) -> set[str] | None:
        """Wait until something happens, or the watch ends; None if nothing happens *within* seconds.

        Returns the keys that were deleted: an empty set if something else happened.
        """
        while (line := await self._stream.line(within)) is not None:
            told = json.loads(line)
            if "error" in told:
                raise StoreUnavailable(self._stream.server, f"the watch ended: {told['error'].get('message', told)}")
            result = told.get("result", {})
            events = result.get("events", [])
            if events or result.get("canceled"):
                return {event["kv"]["key"] for event in events if event.get("type") == "DELETE"}
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> Literal[False]:
        self._stream.close()
        return False


def _cannot_serve(answer: HttpAnswer) -> StoreUnavailable | None:
    """Why this server cannot serve the request, though another one may; None if it can."""
    if answer.status == 200:
        return None
    error = _error(answer)
    if error is None:
        text = f"HTTP {answer.status}: {answer.body[:200].decode(errors='replace').strip()}"
        if 400 <= answer.status < 500:
            return StoreUnavailable(answer.server, f"{text}; it does not serve etcd's JSON gateway, under /v3/")
        return OutcomeUnknown(answer.server, text)
    return OutcomeUnknown(answer.server, error.message) if error.code in UNCERTAIN else None


def _error(answer: HttpAnswer) -> EtcdError | None:
    """The error in *answer*; None if it has none. A keepalive has its errors inside a stream, with status 200."""
    if answer.status == 200 and not answer.body.startswith(b'{"error"'):
        return None
    told = answer.json()
    if not isinstance(told, dict) or "error" not in told:
        return None
    inner = told["error"] if isinstance(told["error"], dict) else told
    code = inner.get("grpc_code") or inner.get("code") or Code.UNKNOWN
    return EtcdError(int(code), str(inner.get("message") or told["error"]))


def _body(answer: HttpAnswer) -> EtcdJson:
    told = answer.json()
    if not isinstance(told, dict):
        raise OutcomeUnknown(answer.server, f"it answered with {answer.body[:200]!r}, which is not an answer of etcd")
    return {**told, "repeated": True} if answer.repeated else told


def _is_about_the_token(error: EtcdError) -> bool:
    return error.code == Code.UNAUTHENTICATED or any(text in error.message for text in NO_TOKEN)


def _refused(server: str, error: EtcdError) -> StoreUnavailable:
    if error.code in UNCERTAIN:
        return OutcomeUnknown(server, error.message)
    advice = WHAT_TO_DO.get(error.code)
    if TOO_MANY in error.message:
        advice = "start the servers with --max-txn-ops of 8 or more"
    return EtcdRefused(server, error.message + (f"; {advice}" if advice else ""), error.code)
