"""Requests and answers of HTTP/1.1 as bytes, in either direction; no I/O. The parser is h11's.

h11 is what httpx2 parses with too. Above it httpx2 spends 0.45 ms of computing for each request, more than a round
trip to a server near by, and its limits of time are for each read: a server that sends a byte now and then could
exceed any budget. So the lock path speaks to h11.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

try:
    import h11
except ImportError as exc:
    raise ImportError("the stores behind HTTP need h11: pip install 'dibs[etcd]' or 'dibs[consul]'") from exc

HttpHeaders = tuple[tuple[str, str], ...]

MOST_HEADERS = 128 * 1024
"""Bytes that the head of an answer may have."""


class HttpRequest(NamedTuple):
    """One request to a server."""

    method: str
    target: str
    """Path and query, quoted; see `target`."""
    body: bytes = b""
    headers: HttpHeaders = ()
    held: float = 0.0
    """Seconds for which the server is asked to hold the answer back."""


class HttpAnswer(NamedTuple):
    """What a server answered, whatever its status."""

    status: int
    raw_headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    server: str
    """The name of the server, for messages."""
    repeated: bool = False
    """Whether the request had been sent before and not been answered: it may have been carried out twice."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, by their names in lower case."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.raw_headers}

    def json(self) -> Any:
        """The body, read as JSON; `None` if it is something else."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def target(path: str, params: Mapping[str, str | None] | None = None) -> str:
    """A path and its query, quoted; of a parameter that is None, the query has only the name."""
    query = "&".join(quote(n, safe="") if v is None else urlencode({n: v}) for n, v in (params or {}).items())
    return quote(path) + ("?" + query if query else "")


def json_body(what: Any) -> bytes:
    """*what* as JSON, without spaces."""
    return _encode(what).encode()


class Conversation:
    """One connection: requests go out and answers come in, one after the other."""

    __slots__ = ("_chunks", "_head", "_state", "server")

    def __init__(self, server: str) -> None:
        self.server = server
        self._state = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEADERS)
        self._head: h11.Response | None = None
        self._chunks: list[bytes] = []

    def ask(self, request: HttpRequest) -> bytes:
        """The bytes of *request*."""
        if self._state.our_state is h11.DONE:
            self._state.start_next_cycle()
        self._head, self._chunks = None, []
        send = self._state.send
        head = send(_head(request.method, request.target, self.server, request.headers, len(request.body))) or b""
        body = send(h11.Data(data=request.body)) if request.body else b""
        send(_END)
        return head + (body or b"")

    def feed(self, data: bytes) -> None:
        """The server sent *data*; nothing says that it closed the connection."""
        self._state.receive_data(data)

    def head(self) -> int | None:
        """The status of the answer; None while it is still to come. Raises `ValueError` if it is not HTTP."""
        while self._head is None:
            event = self._next()
            if event is h11.NEED_DATA:
                return None
            if isinstance(event, h11.Response):
                self._head = event
        return self._head.status_code

    def piece(self) -> bytes | None:
        """The next piece of the answer's body; None while it is still to come, and empty at its end."""
        event = self._next()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        return None if event is h11.NEED_DATA else b""

    def answer(self) -> HttpAnswer | None:
        """The whole answer; None while there is more to come. Raises `ValueError` if it is not HTTP."""
        if self.head() is None:
            return None
        while piece := self.piece():
            self._chunks.append(piece)
        if piece is None:
            return None
        assert self._head is not None
        return HttpAnswer(self._head.status_code, self._head.headers, b"".join(self._chunks), self.server)

    @property
    def reusable(self) -> bool:
        """Whether the connection can be asked again: the answer has ended, and both sides keep it open."""
        return self._state.our_state is h11.DONE and self._state.their_state is h11.DONE

    def _next(self) -> Any:
        try:
            return self._state.next_event()
        except h11.RemoteProtocolError as exc:
            raise ValueError(f"its answer is not HTTP ({exc})") from exc


_encode = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` would make one for each call

_END = h11.EndOfMessage()


@lru_cache(maxsize=512)
def _head(method: str, where: str, host: str, headers: HttpHeaders, length: int) -> h11.Request:
    """The head of a request, kept for the next ones: h11 takes its time to check it, and most heads are the same."""
    own = [("Host", host), ("Accept", "application/json"), ("Content-Length", str(length)), *headers]
    return h11.Request(method=method, target=where, headers=own)
